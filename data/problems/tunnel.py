"""Overtaking in a tunnel: inputs are large, and comparing every pair is too slow."""

from bisect import bisect_right, insort
from random import Random

DIFFICULTY = "interview"
FUNCTION = ""
STARTER = ""
QUESTION = """\
Cars may overtake each other in a long tunnel. A camera at the entrance records the order of the \
cars. A camera at the exit records the minute when each car leaves.

A car has overtaken another car if it entered later and left in an earlier minute. The order of \
cars that leave in the same minute is unknown, so these pairs do not count. Find the number of \
pairs of cars where one has overtaken the other.

-----Input-----

The first line has an integer n, the number of cars.
The second line has n integers: the minutes when the cars leave, in the order of their entry.

-----Output-----

Print the number of pairs.

-----Constraints-----

1 <= n <= 100000, minutes are between 0 and 10^9.

-----Example-----

Input
5
3 7 3 2 9

Output
4

The third car has overtaken the second, and the fourth has overtaken the first three.
"""
EXAMPLES = ("5\n3 7 3 2 9\n", "4\n1 2 3 4\n")


def tests(rng: Random) -> list[str]:
    """Return the tests, the long ones last."""
    few = [small(rng) for _ in range(6)]
    edges = ["1\n5\n", "4\n8 8 8 8\n", "3\n1000000000 0 999999999\n"]
    middle = [_test([rng.randint(0, most) for _ in range(300)]) for most in (9, 10**9)]
    long = [_test([rng.randint(0, 9) for _ in range(count)]) for count in (1000, 70000)]
    return [*EXAMPLES, *few, *edges, *middle, *long]


def small(rng: Random) -> str:
    """Return a few cars."""
    return _test([rng.randint(0, 9) for _ in range(rng.randint(2, 8))])


def _test(minutes: list[int]) -> str:
    return f"{len(minutes)}\n{' '.join(map(str, minutes))}\n"


def reference(text: str) -> str:
    """Count the earlier cars that left later, in a sorted list."""
    _, *minutes = map(int, text.split())
    before: list[int] = []
    pairs = 0
    for minute in minutes:
        pairs += len(before) - bisect_right(before, minute)
        insort(before, minute)
    return f"{pairs}\n"


def brute(text: str) -> str:
    """Compare every pair."""
    _, *minutes = map(int, text.split())
    pairs = [a > b for j, b in enumerate(minutes) for a in minutes[:j]]
    return f"{sum(pairs)}\n"


RIGHT = (
    """\
import sys


def count(minutes):
    if len(minutes) < 2:
        return minutes, 0
    half = len(minutes) // 2
    left, a = count(minutes[:half])
    right, b = count(minutes[half:])
    merged, pairs, i, j = [], a + b, 0, 0
    while i < len(left) and j < len(right):
        if left[i] <= right[j]:
            merged.append(left[i])
            i += 1
        else:
            merged.append(right[j])
            pairs += len(left) - i
            j += 1
    return merged + left[i:] + right[j:], pairs


data = sys.stdin.buffer.read().split()
print(count([int(word) for word in data[1:]])[1])
""",
    """\
class Tree:
    def __init__(self, size):
        self.sums = [0] * (size + 1)

    def add(self, place):
        while place < len(self.sums):
            self.sums[place] += 1
            place += place & -place

    def upto(self, place):
        total = 0
        while place:
            total += self.sums[place]
            place -= place & -place
        return total


n = int(input())
minutes = list(map(int, input().split()))
ranks = {minute: rank for rank, minute in enumerate(sorted(set(minutes)), 1)}
tree = Tree(len(ranks))
pairs = 0
for done, minute in enumerate(minutes):
    pairs += done - tree.upto(ranks[minute])
    tree.add(ranks[minute])
print(pairs)
""",
)
WRONG = (
    # compares every pair
    """\
n = int(input())
minutes = list(map(int, input().split()))
pairs = 0
for i in range(n):
    for j in range(i + 1, n):
        if minutes[i] > minutes[j]:
            pairs += 1
print(pairs)
""",
    # counts cars of the same minute
    """\
from bisect import bisect_left, insort

n = int(input())
before, pairs = [], 0
for minute in map(int, input().split()):
    pairs += len(before) - bisect_left(before, minute)
    insort(before, minute)
print(pairs)
""",
    # compares only neighbouring cars
    """\
n = int(input())
minutes = list(map(int, input().split()))
print(sum(a > b for a, b in zip(minutes, minutes[1:])))
""",
    # the table of minutes is too short
    """\
n = int(input())
counts = [0] * 100001
pairs = done = 0
for minute in map(int, input().split()):
    pairs += done - sum(counts[:minute + 1])
    counts[minute] += 1
    done += 1
print(pairs)
""",
)
