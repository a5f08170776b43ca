"""A skyline: an answer of several lines."""

from random import Random

DIFFICULTY = "introductory"
FUNCTION = ""
STARTER = ""
QUESTION = """\
Draw a row of towers, each one character wide. A tower of height h is a column of h characters '#' \
on the ground. The air is drawn with '.'. The first row of the drawing is at the top of the \
highest tower. The last row is the ground, with one '=' under every tower. If all heights are 0, \
draw only the ground.

-----Input-----

One line with the heights, separated by spaces: 1 to 60 integers between 0 and 30.

-----Output-----

Print the drawing.

-----Example-----

Input
1 3 0 2

Output
.#..
.#.#
##.#
====
"""
EXAMPLES = ("1 3 0 2\n", "2 2\n")


def tests(rng: Random) -> list[str]:
    """Return the tests; inputs without a tower and with high towers are among the later ones."""
    few = [small(rng) for _ in range(6)]
    more = [_test(rng, n, height) for n, height in ((12, 5), (20, 9), (60, 30), (60, 1))]
    return [*EXAMPLES, *few, "0 0 0\n", "0\n", "30\n", "0 0 7 0\n", *more]


def small(rng: Random) -> str:
    """Return a few low towers."""
    return _test(rng, rng.randint(2, 6), 4)


def _test(rng: Random, count: int, height: int) -> str:
    heights = [rng.randint(0, height) for _ in range(count)]
    heights[rng.randrange(count)] = height
    return " ".join(map(str, heights)) + "\n"


def reference(text: str) -> str:
    """Draw row by row."""
    heights = list(map(int, text.split()))
    rows = [
        "".join("#" if height >= level else "." for height in heights)
        for level in range(max(heights), 0, -1)
    ]
    return "\n".join([*rows, "=" * len(heights)]) + "\n"


def brute(text: str) -> str:
    """Draw tower by tower and turn the picture."""
    heights = list(map(int, text.split()))
    top = max(heights)
    towers = ["." * (top - height) + "#" * height + "=" for height in heights]
    return "".join("".join(row) + "\n" for row in zip(*towers, strict=True))


RIGHT = (
    """\
heights = list(map(int, input().split()))
for level in range(max(heights), 0, -1):
    print("".join("#" if height >= level else "." for height in heights))
print("=" * len(heights))
""",
    """\
import sys


def main():
    read, write = sys.stdin.readline, sys.stdout.write
    heights = [int(word) for word in read().split()]
    top = max(heights)
    columns = ["." * (top - h) + "#" * h + "=" for h in heights]
    write("\\n".join(map("".join, zip(*columns))))


if __name__ == "__main__":
    main()
""",
)
WRONG = (
    # upside down
    """\
heights = list(map(int, input().split()))
for level in range(1, max(heights) + 1):
    print("".join("#" if height >= level else "." for height in heights))
print("=" * len(heights))
""",
    # draws at least one row of air
    """\
heights = list(map(int, input().split()))
for level in range(max(1, max(heights)), 0, -1):
    print("".join("#" if height >= level else "." for height in heights))
print("=" * len(heights))
""",
    # fails for towers higher than nine
    """\
heights = list(map(int, input().split()))
rows = [["."] * len(heights) for _ in range(9)]
for x, height in enumerate(heights):
    for y in range(height):
        rows[8 - y][x] = "#"
for row in rows[9 - max(heights):]:
    print("".join(row))
print("=" * len(heights))
""",
    # stops before the ground is drawn
    """\
import sys

heights = list(map(int, input().split()))
for level in range(max(heights), -1, -1):
    if level == 0:
        sys.exit()
    print("".join("#" if height >= level else "." for height in heights))
""",
)
