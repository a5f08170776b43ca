"""Parcels on a trolley: a simulation."""

from random import Random

DIFFICULTY = "introductory"
FUNCTION = ""
STARTER = ""
QUESTION = """\
Parcels arrive one after another, and a porter puts them on a trolley in this order. The trolley \
carries at most W kilograms. If the next parcel would make the load heavier than W, the porter \
first drives the trolley away, empties it and returns for the parcel. After the last parcel, the \
trolley drives once more if it is not empty.

Find the number of drives and the weight of the heaviest load.

-----Input-----

The first line has two integers n and W: the number of parcels and the limit of the trolley.
The second line has n integers: the weights of the parcels in the order of their arrival. It is \
missing if n is 0.

-----Output-----

Print two integers: the number of drives and the weight of the heaviest load (0 if there is none).

-----Constraints-----

0 <= n <= 1000, 1 <= W <= 10^9, every weight is between 1 and W.

-----Example-----

Input
5 10
4 6 1 9 3

Output
3 10

The loads are 4 + 6, 1 + 9 and 3.
"""
EXAMPLES = ("5 10\n4 6 1 9 3\n", "3 7\n7 7 7\n", "4 10\n6 5 5 2\n")


def tests(rng: Random) -> list[str]:
    """Return the tests; inputs without parcels are among the later ones."""
    few = [small(rng) for _ in range(6)]
    exact = "6 12\n5 7 6 6 11 1\n"
    many = [_test(rng, n, limit) for n, limit in ((50, 100), (300, 50), (1000, 10**9), (1000, 17))]
    return [*EXAMPLES, *few, exact, "0 5\n", "1 9\n9\n", *many]


def small(rng: Random) -> str:
    """Return an input with few parcels."""
    return _test(rng, rng.randint(1, 7), rng.randint(3, 12))


def _test(rng: Random, count: int, limit: int) -> str:
    weights = [rng.randint(1, limit) for _ in range(count)]
    return f"{count} {limit}\n{' '.join(map(str, weights))}\n"


def reference(text: str) -> str:
    """Start a new load if the next parcel is too heavy."""
    _, limit, *weights = map(int, text.split())
    loads = [0]
    for weight in weights:
        if loads[-1] + weight > limit:
            loads.append(0)
        loads[-1] += weight
    return f"{len(loads) if weights else 0} {max(loads)}\n"


def brute(text: str) -> str:
    """Load as many of the remaining parcels as the trolley carries."""
    _, limit, *left = map(int, text.split())
    loads = []
    while left:
        cut = max(k for k in range(1, len(left) + 1) if sum(left[:k]) <= limit)
        loads.append(sum(left[:cut]))
        left = left[cut:]
    return f"{len(loads)} {max(loads, default=0)}\n"


RIGHT = (
    """\
import sys


def main():
    data = list(map(int, sys.stdin.buffer.read().split()))
    n, limit = data[0], data[1]
    drives = best = load = 0
    for weight in data[2:2 + n]:
        if load + weight > limit:
            drives += 1
            best = max(best, load)
            load = 0
        load += weight
    if load:
        drives += 1
        best = max(best, load)
    sys.stdout.write("%d %d\\n" % (drives, best))


main()
""",
    """\
class Trolley:
    def __init__(self, limit):
        self.limit, self.load, self.loads = limit, 0, []

    def put(self, weight):
        if self.load + weight > self.limit:
            self.drive()
        self.load += weight

    def drive(self):
        if self.load:
            self.loads.append(self.load)
        self.load = 0


n, limit = map(int, input().split())
trolley = Trolley(limit)
for weight in map(int, input().split()) if n else []:
    trolley.put(weight)
trolley.drive()
print(len(trolley.loads), max(trolley.loads, default=0))
""",
)
WRONG = (
    # does not count the last load
    """\
n, limit = map(int, input().split())
drives = best = load = 0
for weight in map(int, input().split()):
    if load + weight > limit:
        drives += 1
        best = max(best, load)
        load = 0
    load += weight
print(drives, best)
""",
    # fails without parcels, because the second line is missing
    """\
n, limit = map(int, input().split())
loads = [0]
for weight in map(int, input().split()):
    if loads[-1] + weight > limit:
        loads.append(0)
    loads[-1] += weight
print(len(loads), max(loads))
""",
    # prints nothing: the function is never called
    """\
def main():
    n, limit = map(int, input().split())
    print(n, limit)
""",
    # a full trolley drives immediately, and drives again while it is empty
    """\
n, limit = map(int, input().split())
weights = list(map(int, input().split())) if n else []
drives, best, load = 1, 0, 0
for weight in weights:
    if load + weight >= limit:
        drives += 1
        load = 0
    load += weight
    best = max(best, load)
print(drives, best)
""",
)
