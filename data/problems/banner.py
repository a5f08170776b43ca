"""Stripes of a banner: numbers are too large for counting one square at a time."""

from itertools import groupby, product
from random import Random

DIFFICULTY = "competition"
FUNCTION = ""
STARTER = ""
QUESTION = """\
A banner is a row of n squares. Each square has one of k colours. A banner is allowed if no stripe \
is wider than r: at most r consecutive squares may have the same colour. A banner and its mirror \
image (read from right to left) count as two banners, unless they are equal.

Find the number of allowed banners, modulo 1000000007.

-----Input-----

One line with three integers n, k and r.

-----Output-----

Print the number of allowed banners, modulo 1000000007.

-----Constraints-----

1 <= n <= 10^18, 1 <= k <= 10^18, 1 <= r <= 6.

-----Examples-----

Input
3 2 2

Output
6

Input
4 3 1

Output
24
"""
EXAMPLES = ("3 2 2\n", "4 3 1\n")


def tests(_: Random) -> list[str]:
    """Return the tests; many squares and many colours are among the later ones."""
    few = ["1 5 3\n", "2 2 1\n", "5 2 2\n", "6 3 3\n", "8 2 6\n", "10 4 2\n"]
    edges = ["1 1000000000000000000 1\n", "2 1000000007 2\n", "5 1 6\n", "7 1 6\n", "6 1 6\n"]
    large = [
        "1000 26 3\n",
        "1000000000000000000 1 2\n",
        "1000000000000000000 2 1\n",
        "999999999999999999 1000000000000000000 6\n",
        "123456789012345678 97 5\n",
    ]
    return [*EXAMPLES, *few, *edges, *large]


def small(rng: Random) -> str:
    """Return a short banner."""
    return f"{rng.randint(1, 7)} {rng.randint(1, 3)} {rng.randint(1, 4)}\n"


def reference(text: str) -> str:
    """Raise the matrix that extends or ends the last stripe to the number of squares."""
    squares, colours, widest = map(int, text.split())
    step = [[0] * widest for _ in range(widest)]
    for width in range(widest):
        step[width][0] = (colours - 1) % MODULUS
        if width + 1 < widest:
            step[width][width + 1] = 1
    row = [colours % MODULUS] + [0] * (widest - 1)
    power = squares - 1
    while power:
        if power & 1:
            row = _times([row], step)[0]
        step = _times(step, step)
        power >>= 1
    return f"{sum(row) % MODULUS}\n"


def _times(left: list[list[int]], right: list[list[int]]) -> list[list[int]]:
    columns = list(zip(*right, strict=True))
    return [
        [sum(a * b for a, b in zip(row, column, strict=True)) % MODULUS for column in columns]
        for row in left
    ]


def brute(text: str) -> str:
    """Check all banners."""
    squares, colours, widest = map(int, text.split())
    allowed = (
        all(len(list(stripe)) <= widest for _, stripe in groupby(banner))
        for banner in product(range(colours), repeat=squares)
    )
    return f"{sum(allowed) % MODULUS}\n"


MODULUS = 1000000007

_LOOP = """\
n, k, r = map(int, input().split())
widths = [k] + [0] * (r - 1)
for _ in range(n - 1):
    widths = [sum(widths) * (k - 1) % 1000000007] + widths[:-1]
"""
RIGHT = (
    """\
P = 1000000007


def times(a, b):
    return [[sum(x * y for x, y in zip(row, col)) % P for col in zip(*b)] for row in a]


def power(a, n):
    if n == 0:
        return [[int(i == j) for j in range(len(a))] for i in range(len(a))]
    half = power(a, n // 2)
    square = times(half, half)
    return times(square, a) if n % 2 else square


n, k, r = map(int, input().split())
step = [[(k - 1) % P] * r] + [[int(j == i) for j in range(r)] for i in range(r - 1)]
print(sum(row[0] for row in power(step, n - 1)) * k % P)
""",
    """\
import sys


class Sequence:
    \"\"\"A linear recurrence, looked up by the remainder of a power of x.\"\"\"

    P = 1000000007

    def __init__(self, rule, first):
        self.rule, self.first = rule, first

    def times(self, a, b):
        r, out = len(self.rule), [0] * (len(a) + len(b) - 1)
        for i, x in enumerate(a):
            for j, y in enumerate(b):
                out[i + j] += x * y
        for i in range(len(out) - 1, r - 1, -1):
            for j, c in enumerate(self.rule):
                out[i - 1 - j] += out[i] * c
        return [x % self.P for x in out[:r]]

    def at(self, n):
        result, base = [1], [0, 1]
        while n:
            if n & 1:
                result = self.times(result, base)
            base = self.times(base, base)
            n >>= 1
        return sum(x * y for x, y in zip(result, self.first)) % self.P


def main():
    n, k, r = map(int, sys.stdin.readline().split())
    P = Sequence.P
    k %= P
    first = [k]
    for i in range(2, r + 1):
        # a banner of at most r squares may have any colours
        first.append(first[-1] * k % P)
    print(Sequence([(k - 1) % P] * r, first).at(n - 1))


main()
""",
)
WRONG = (
    # counts one square at a time
    _LOOP + "print(sum(widths) % 1000000007)\n",
    # no remainder for short banners, a float for long ones
    """\
n, k, r = map(int, input().split())
if n <= r:
    print(k ** n)
else:
    print(int(k ** float(min(n, 300)) * (1 - 1 / k ** r)) % 1000000007)
""",
    # allows stripes that are one square wider
    _LOOP.replace("[0] * (r - 1)", "[0] * r").replace("range(n - 1)", "range(min(n, 10 ** 5) - 1)")
    + "print(sum(widths) % 1000000007)\n",
    # only works up to the size of a table
    """\
n, k, r = map(int, input().split())
table = [0] * 5000
table[0] = 1
for i in range(1, n + 1):
    first = k if i <= r else 0
    table[i] = (first + (k - 1) * sum(table[max(1, i - r):i])) % 1000000007
print(table[n])
""",
)
