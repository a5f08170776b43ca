"""Lanterns along the lanes of a village: choices on a tree, which may be a long path."""

from itertools import product
from random import Random

DIFFICULTY = "competition"
FUNCTION = ""
STARTER = ""
QUESTION = """\
The n houses of a village are connected by n - 1 lanes, so that every house can be reached from \
every other house. For a festival, each house may have a red lantern, a blue lantern, a double \
lantern that is red and blue, or none. The two houses at the ends of each lane must together have \
both colours.

House i pays r_i for a red lantern, b_i for a blue lantern and d_i for a double lantern. A double \
lantern may cost more than the two others together, or less than each of them. Find the smallest \
total price for the village.

-----Input-----

The first line has an integer n.
Each of the next n lines has three integers r_i, b_i and d_i.
Each of the next n - 1 lines has two integers: the houses at the ends of a lane. Houses are \
numbered from 1.

-----Output-----

Print the smallest total price.

-----Constraints-----

1 <= n <= 10000, prices are between 0 and 10^9.

-----Example-----

Input
4
3 9 10
5 2 4
1 9 9
9 1 8
1 2
2 3
2 4

Output
4

A double lantern at house 2 has both colours for all three lanes.
"""
EXAMPLES = ("4\n3 9 10\n5 2 4\n1 9 9\n9 1 8\n1 2\n2 3\n2 4\n", "2\n1 5 9\n5 1 9\n1 2\n")


def tests(rng: Random) -> list[str]:
    """Return the tests; a single house and long paths are among the later ones."""
    few = [small(rng) for _ in range(8)]
    middle = [_test(rng, 60, 9), _test(rng, 400, 10**9)]
    deep = [_test(rng, 3000, 99, span=1), _test(rng, 3000, 30, span=3)]
    return [*EXAMPLES, *few, "1\n4 4 4\n", "3\n0 0 0\n7 7 7\n0 0 0\n1 2\n2 3\n", *middle, *deep]


def small(rng: Random) -> str:
    """Return a small village."""
    return _test(rng, rng.randint(2, 6), 9)


def _test(rng: Random, count: int, most: int, span: int = 10**9) -> str:
    prices = [" ".join(str(rng.randint(0, most)) for _ in range(3)) for _ in range(count)]
    lanes = [f"{rng.randint(max(1, i - span), i - 1)} {i}" for i in range(2, count + 1)]
    return "\n".join([str(count), *prices, *lanes]) + "\n"


def reference(text: str) -> str:
    """Find the smallest sum of each subtree for each lantern at its top, from the leaves up."""
    count, *numbers = map(int, text.split())
    near: list[list[int]] = [[] for _ in range(count)]
    for a, b in zip(numbers[3 * count :: 2], numbers[3 * count + 1 :: 2], strict=True):
        near[a - 1].append(b - 1)
        near[b - 1].append(a - 1)
    order, above = [0], [-1] * count
    for house in order:
        for other in near[house]:
            if other != above[house]:
                above[other] = house
                order.append(other)
    sums = [[0, *numbers[3 * i : 3 * i + 3]] for i in range(count)]
    for house in reversed(order[1:]):
        for mine in range(4):
            sums[above[house]][mine] += min(
                sums[house][each] for each in range(4) if each | mine == 3
            )
    return f"{min(sums[0])}\n"


def brute(text: str) -> str:
    """Try all lanterns at all houses."""
    count, *numbers = map(int, text.split())
    prices = [[0, *numbers[3 * i : 3 * i + 3]] for i in range(count)]
    ends = [number - 1 for number in numbers[3 * count :]]
    lanes = list(zip(ends[::2], ends[1::2], strict=True))
    fitting = (
        sum(price[each] for price, each in zip(prices, choice, strict=True))
        for choice in product(range(4), repeat=count)
        if all(choice[a] | choice[b] == 3 for a, b in lanes)
    )
    return f"{min(fitting)}\n"


_READ = """\
import sys


def read():
    data = list(map(int, sys.stdin.buffer.read().split()))
    n = data[0]
    prices = [data[1 + 3 * i:4 + 3 * i] for i in range(n)]
    near = [[] for _ in range(n)]
    ends = data[1 + 3 * n:]
    for a, b in zip(ends[::2], ends[1::2]):
        near[a - 1].append(b - 1)
        near[b - 1].append(a - 1)
    return n, prices, near


"""
_RECURSIVE = """\
def best(house, above):
    red, blue, double = prices[house]
    none = 0
    for other in near[house]:
        if other != above:
            n, r, b, d = best(other, house)
            none += d
            red += min(b, d)
            blue += min(r, d)
            double += min(n, r, b, d)
    return none, red, blue, double


"""
RIGHT = (
    _READ
    + """\
def main():
    n, prices, near = read()
    order, above = [0], [-1] * n
    for house in order:
        for other in near[house]:
            if other != above[house]:
                above[other] = house
                order.append(other)
    none, red, blue, double = [0] * n, *map(list, zip(*prices))
    for house in order[:0:-1]:
        up = above[house]
        none[up] += double[house]
        red[up] += min(blue[house], double[house])
        blue[up] += min(red[house], double[house])
        double[up] += min(none[house], red[house], blue[house], double[house])
    print(min(none[0], red[0], blue[0], double[0]))


main()
""",
    _READ.replace("import sys\n", "import sys\nimport threading\n")
    + _RECURSIVE
    + """\
def main():
    global prices, near
    n, prices, near = read()
    print(min(best(0, -1)))


sys.setrecursionlimit(1 << 20)
threading.stack_size(1 << 27)
thread = threading.Thread(target=main)
thread.start()
thread.join()
""",
)
WRONG = (
    # exceeds the default recursion limit of Python
    _READ
    + _RECURSIVE
    + """\
n, prices, near = read()
print(min(best(0, -1)))
""",
    # alternates red and blue, or has double lanterns everywhere
    _READ
    + """\
n, prices, near = read()
colour, order = [-1] * n, [0]
colour[0] = 0
for house in order:
    for other in near[house]:
        if colour[other] < 0:
            colour[other] = 1 - colour[house]
            order.append(other)
first = sum(prices[i][colour[i]] for i in range(n))
second = sum(prices[i][1 - colour[i]] for i in range(n))
print(min(first, second, sum(price[2] for price in prices)))
""",
    # requires a lantern at every house
    _READ
    + _RECURSIVE.replace("min(n, r, b, d)", "min(r, b, d)")
    + """\
sys.setrecursionlimit(1 << 20)
n, prices, near = read()
print(min(best(0, -1)[1:]))
""",
    # computes each subtree again for each choice above it
    _READ
    + """\
def best(house, above, mine):
    total = ([0] + prices[house])[mine]
    for other in near[house]:
        if other != above:
            total += min(best(other, house, each) for each in range(4) if each | mine == 3)
    return total


sys.setrecursionlimit(1 << 20)
n, prices, near = read()
print(min(best(0, -1, each) for each in range(4)))
""",
)
