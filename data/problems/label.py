"""Short labels: runs of letters, as a plain function."""

from itertools import groupby
from random import Random

DIFFICULTY = "introductory"
FUNCTION = "shorten"
STARTER = "def shorten(label):\n\t"
QUESTION = """\
A label printer shortens labels. A run of three or more equal characters is replaced by the \
character, a star and the length of the run. Shorter runs do not change.

Write a function `shorten(label)` that takes a text and returns the shortened text. The text has \
up to 2000 lower case letters and spaces, and may be empty. Runs are as long as possible: twelve \
equal characters are one run of twelve.

-----Examples-----

shorten("baaad") returns "ba*3d"
shorten("hello") returns "hello"
shorten("zzzzzyy") returns "z*5yy"
"""
EXAMPLES = (["baaad"], ["hello"], ["zzzzzyy"])


def tests(rng: Random) -> list[list[str]]:
    """Return the tests; long runs and the empty label are among the later ones."""
    few = [small(rng) for _ in range(6)]
    long = [["a" * 10], ["x" * 9 + "y" * 12], ["q" * 2000], ["   a   "]]
    rows = "".join(rng.choice("ab c") * rng.randint(1, 15) for _ in range(150))
    return [*EXAMPLES, *few, [""], ["m"], ["nn"], *long, [rows]]


def small(rng: Random) -> list[str]:
    """Return a short label with runs of fewer than ten characters."""
    rows = [rng.choice("abc") * rng.randint(1, 4) for _ in range(rng.randint(1, 5))]
    return ["".join(rows)[:9]]


def reference(label: str) -> str:
    """Shorten one run after another."""
    rows = ((letter, len(list(row))) for letter, row in groupby(label))
    return "".join(f"{letter}*{n}" if n > 2 else letter * n for letter, n in rows)


def brute(label: str) -> str:
    """Replace runs, the longest first."""
    for length in range(len(label), 2, -1):
        for letter in set(label):
            label = label.replace(letter * length, f"{letter}*{length}")
    return label


RIGHT = (
    """\
def shorten(label):
    parts = []
    i = 0
    while i < len(label):
        j = i
        while j < len(label) and label[j] == label[i]:
            j += 1
        parts.append(label[i:j] if j - i < 3 else "%s*%d" % (label[i], j - i))
        i = j
    return "".join(parts)
""",
    """\
import re


class Solution:
    def shorten(self, label):
        return re.sub(r"(.)\\1\\1+", lambda m: f"{m[1]}*{len(m[0])}", label)
""",
)
WRONG = (
    # cuts runs after nine characters
    """\
import re


def shorten(label):
    return re.sub(r"(.)\\1{2,8}", lambda m: m[1] + "*" + str(len(m[0])), label)
""",
    # fails for the empty label
    """\
def shorten(label):
    rows, last, count = "", label[0], 0
    for letter in label + "\\0":
        if letter == last:
            count += 1
        else:
            rows += last * count if count < 3 else last + "*" + str(count)
            last, count = letter, 1
    return rows
""",
    # returns a list of parts instead of a text
    """\
from itertools import groupby


def shorten(label):
    rows = [(letter, len(list(row))) for letter, row in groupby(label)]
    return [letter * n if n < 3 else f"{letter}*{n}" for letter, n in rows]
""",
    # prints the text and returns nothing
    """\
import re


def shorten(label):
    print(re.sub(r"(.)\\1\\1+", lambda m: f"{m[1]}*{len(m[0])}", label))
""",
)
