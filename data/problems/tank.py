"""Water of several temperatures in a tank: answers are real numbers."""

from fractions import Fraction
from random import Random

DIFFICULTY = "introductory"
FUNCTION = ""
STARTER = ""
QUESTION = """\
A tank holds at most C litres and is empty at first. Buckets of water are poured into it, one \
after another. The water of a bucket first mixes evenly with the water in the tank. If the mixture \
has more than C litres, the surplus then flows out. The temperature of a mixture is the mean of \
the temperatures of its parts, weighted by their litres.

Find how much water is in the tank at the end, and its temperature.

-----Input-----

The first line has an integer n and a real number C.
Each of the next n lines has two real numbers v and t: the litres of a bucket and the temperature \
of its water.

-----Output-----

Print two real numbers: the litres and the temperature at the end. Both may be off by a millionth, \
absolutely or relative to the answer. If there is no water, print two zeros.

-----Constraints-----

0 <= n <= 2000, 0 < C <= 1000, 0 <= v <= 2000, -50 <= t <= 100; numbers have at most three \
decimals. Every bucket that is not empty has at least 0.1 litres.

-----Example-----

Input
3 10
4 20
4 30.5
8 80

Output
10.0 52.625

After two buckets the tank holds 8 litres of 25.25 degrees. The third bucket makes 16 litres of \
52.625 degrees, and 10 litres stay.
"""
EXAMPLES = ("3 10\n4 20\n4 30.5\n8 80\n", "1 5\n3 -7.25\n")


def tests(rng: Random) -> list[str]:
    """Return the tests; empty buckets and inputs without buckets are among the later ones."""
    few = [small(rng) for _ in range(7)]
    empty = ["2 10\n0 55\n0 66\n", "0 4\n", "3 8\n0 12\n0 1\n2.5 40\n", "2 1\n0.1 0\n0.2 0\n"]
    many = [_test(rng, n, limit) for n, limit in ((30, 20), (400, 1000), (2000, 333.333))]
    return [*EXAMPLES, *few, *empty, *many]


def small(rng: Random) -> str:
    """Return a few buckets."""
    return _test(rng, rng.randint(2, 5), rng.randint(5, 30))


def _test(rng: Random, count: int, limit: float) -> str:
    buckets = [
        f"{rng.randint(100, 20000) / 1000} {rng.randint(-50000, 100000) / 1000}"
        for _ in range(count)
    ]
    return "\n".join([f"{count} {limit}", *buckets]) + "\n"


def reference(text: str) -> str:
    """Update the litres and the temperature."""
    _, limit, *numbers = map(float, text.split())
    litres = warmth = 0.0
    for volume, degrees in zip(numbers[::2], numbers[1::2], strict=True):
        if volume:
            warmth = (litres * warmth + volume * degrees) / (litres + volume)
            litres = min(limit, litres + volume)
    return f"{litres:.9f} {warmth:.9f}\n"


def brute(text: str) -> str:
    """Compute the share of each bucket in the tank, with fractions."""
    _, limit, *numbers = map(Fraction, text.split())
    shares: list[tuple[Fraction, Fraction]] = []
    for volume, degrees in zip(numbers[::2], numbers[1::2], strict=True):
        shares.append((volume, degrees))
        total = sum(share for share, _ in shares)
        if total > limit:
            shares = [(share * limit / total, each) for share, each in shares]
    litres = sum(share for share, _ in shares)
    warmth = sum(share * each for share, each in shares) / litres if litres else 0
    return f"{float(litres):.9f} {float(warmth):.9f}\n"


RIGHT = (
    """\
n, limit = input().split()
limit = float(limit)
litres = heat = 0.0
for _ in range(int(n)):
    volume, degrees = map(float, input().split())
    litres += volume
    heat += volume * degrees
    if litres > limit:
        heat *= limit / litres
        litres = limit
print(litres, heat / litres if litres else 0.0)
""",
    """\
import sys
from fractions import Fraction


def pour(buckets, limit):
    litres, warmth = 0.0, 0.0
    for volume, degrees in buckets:
        total = litres + volume
        if total > 0:
            warmth += (degrees - warmth) * volume / total
        litres = min(total, limit)
    return litres, warmth


def main():
    lines = sys.stdin.read().splitlines()
    limit = float(Fraction(lines[0].split()[1]))
    buckets = [tuple(map(float, line.split())) for line in lines[1:] if line.strip()]
    print("%.7f %.7f" % pour(buckets, limit))


main()
""",
)
WRONG = (
    # the surplus flows out before it mixes
    """\
n, limit = input().split()
limit = float(limit)
litres = heat = 0.0
for _ in range(int(n)):
    volume, degrees = map(float, input().split())
    volume = min(volume, limit - litres)
    litres += volume
    heat += volume * degrees
print(litres, heat / litres if litres else 0.0)
""",
    # divides by zero if the first bucket is empty
    """\
n, limit = input().split()
limit = float(limit)
litres = warmth = 0.0
for _ in range(int(n)):
    volume, degrees = map(float, input().split())
    warmth = (litres * warmth + volume * degrees) / (litres + volume)
    litres = min(limit, litres + volume)
print(litres, warmth)
""",
    # rounds to one decimal
    """\
n, limit = input().split()
limit = float(limit)
litres = heat = 0.0
for _ in range(int(n)):
    volume, degrees = map(float, input().split())
    litres += volume
    heat += volume * degrees
    if litres > limit:
        heat *= limit / litres
        litres = limit
print(round(litres, 1), round(heat / litres, 1) if litres else 0)
""",
    # prints only the temperature
    """\
n, limit = input().split()
limit = float(limit)
litres = heat = 0.0
for _ in range(int(n)):
    volume, degrees = map(float, input().split())
    litres += volume
    heat += volume * degrees
    if litres > limit:
        heat *= limit / litres
        litres = limit
print(heat / litres if litres else 0.0)
""",
)
