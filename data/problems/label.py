"""Short labels: runs of letters, as a plain function."""

from itertools import groupby
from random import Random

DIFFICULTY = "introductory"
FUNCTION = "shorten"
STARTER = "def shorten(label):\n\t"
QUESTION = """\
A label printer has little room. It shortens a label like this: wherever a character stands three \
or more times in a row, the whole row is replaced by the character, a star, and the number of \
times. Shorter rows stay as they are, and so does everything else.

Write a function `shorten(label)` that takes a text and returns the shortened text. The text has \
up to 2000 lower case letters and spaces, and may be empty. Rows are as long as they can be: a row \
of twelve is one row of twelve.

-----Examples-----

shorten("baaad") returns "ba*3d"
shorten("hello") returns "hello"
shorten("zzzzzyy") returns "z*5yy"
"""
EXAMPLES = (["baaad"], ["hello"], ["zzzzzyy"])


def tests(rng: Random) -> list[list[str]]:
    """Return the tests; long rows and the empty label come late."""
    few = [small(rng) for _ in range(6)]
    long = [["a" * 10], ["x" * 9 + "y" * 12], ["q" * 2000], ["   a   "]]
    rows = "".join(rng.choice("ab c") * rng.randint(1, 15) for _ in range(150))
    return [*EXAMPLES, *few, [""], ["m"], ["nn"], *long, [rows]]


def small(rng: Random) -> list[str]:
    """Return a short label whose rows have fewer than ten characters."""
    rows = [rng.choice("abc") * rng.randint(1, 4) for _ in range(rng.randint(1, 5))]
    return ["".join(rows)[:9]]


def reference(label: str) -> str:
    """Go from row to row."""
    rows = ((letter, len(list(row))) for letter, row in groupby(label))
    return "".join(f"{letter}*{n}" if n > 2 else letter * n for letter, n in rows)


def brute(label: str) -> str:
    """Replace rows from the longest on."""
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
    # rows are cut at nine
    """\
import re


def shorten(label):
    return re.sub(r"(.)\\1{2,8}", lambda m: m[1] + "*" + str(len(m[0])), label)
""",
    # the empty label
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
    # a list of parts and no text
    """\
from itertools import groupby


def shorten(label):
    rows = [(letter, len(list(row))) for letter, row in groupby(label)]
    return [letter * n if n < 3 else f"{letter}*{n}" for letter, n in rows]
""",
    # the text is printed, nothing is returned
    """\
import re


def shorten(label):
    print(re.sub(r"(.)\\1\\1+", lambda m: f"{m[1]}*{len(m[0])}", label))
""",
)
