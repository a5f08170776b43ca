# ruff: noqa
"""Steps that a careless translation gets wrong without an error, with the expected results.

Each is the body of a method whose observation (two real numbers) is the array `self.s`, and
`self.a` and `self.b`; the action is 0, 1 or 2. The first word is the expected result: the `same`
answers, a program that is `refused`, or one that `raises` in some lanes, which a batch must refuse.
"""

FRAME = """
import math
import numpy as np

TABLE = [1.0, -2.0, 0.5]
COUNTS = {{0: 3, 1: 5}}
ROWS = np.array([[1.0, 2.0], [3.0, 5.0]])
{before}

class Environment:
    LEVELS = (0.5, 1.5)

    def __init__(self):
        self.s = np.zeros(2)
        self.a = self.b = 0.0
        self.left = None
        self.log = []
        self.buffer = np.zeros(2)
        self.shared = self.other = np.zeros(2)
        self.table = np.array([[1.0, 2.0], [3.0, 4.0]])
        self.done = False
        self.count = 0

    def set_state(self, o):
        self.s = np.array(o)
        self.a, self.b = float(o[0]), float(o[1])
        self.left = None
        self.log = []
        self.done = False
        self.count = 0

    def bump(self):
        self.a += 1.0
        return self.a

    def step(self, action):
        r, done = 0.0, False
{body}
        return [self.a, self.b], r, done
"""

TRAPS = {
    # changes in place and aliases
    "an array that shares memory": ("same", "x = self.s; x[0] += 1; r = self.s[0]"),
    "a copy that does not": ("same", "x = self.s.copy(); x[0] += 1; r = self.s[0]"),
    "a number out of an array": ("same", "x = self.s[0]; self.s[0] = 5.0; r = x"),
    "numbers unpacked from an array": (
        "same",
        "x, y = self.s; self.s[0] = 5.0; self.s[1] = y; r = x",
    ),
    "a slice is a view": ("same", "x = self.s[:1]; self.s[0] = 5.0; r = x[0]"),
    "numbers looped over": ("same", "out = [v for v in self.s]\nself.s[0] = 7.0\nr = out[0]"),
    "a list of numbers": ("same", "out = list(self.s)\nself.s[0] = 7.0\nr = out[0]"),
    "numbers as lists": ("same", "out = self.s.tolist()\nself.s[0] = 7.0\nr = out[0]"),
    "enumerated and changed": (
        "same",
        "for i, v in enumerate(self.s):\n    self.s[1] = 3.0\n    r += v",
    ),
    "augmented arrays change in place": ("same", "x = self.s\nx += 1.0\nr = self.s[0]"),
    "sums of arrays do not": ("same", "x = self.s\nx = x + 1.0\nr = self.s[0]"),
    "augmented through a helper": ("same", "self._add(self.s)\nr = self.s[1]"),
    "chained assignment": ("same", "self.a = self.b = self.s[0] + 1\nr = self.a - self.b"),
    "chained arrays": ("same", "x = y = np.zeros(2)\nx[0] = self.a\nr = y[0]"),
    "attributes that are one array": ("same", "self.shared[0] = self.a\nr = self.other[0]"),
    "one array in some lanes": (
        "same",
        "x = self.s\ny = np.zeros(2)\nif self.a > 0:\n    y = x\ny[0] = 9.0\nr = x[0]",
    ),
    "one array in some lanes, the other way": (
        "same",
        "x = self.s\ny = np.zeros(2)\nif self.a > 0:\n    y = x\nx[0] = 9.0\nr = y[0]",
    ),
    "one new array in some lanes": (
        "same",
        "x = self.s * 2\nif self.a > 0:\n    x = x - 1\nx[0] = 9.0\nr = x[0] + x[1]",
    ),
    "one list in some lanes": (
        "same",
        "x = [self.a, 1.0]\ny = [0.0, 0.0]\nif self.a > 0:\n    y = x\ny[0] = 9.0\nr = x[0]",
    ),
    "a list under two names": (
        "same",
        "x = [self.a, 1.0]\ny = x\nif self.a > 0:\n    y[0] = 9.0\nr = x[0]",
    ),
    "a constant array is changed": ("same", "t = self.table\nt[0, 0] += 1.0\nr = t[0, 0]"),
    "a constant list is changed": ("refused", "t = TABLE\nt[0] += 1.0\nr = t[0]"),
    "a mutable default": ("refused", "r = collect(self.a)"),
    "a global that changes": ("refused", "tick()\nr = COUNTS[0]"),
    "the action is changed": ("same", "x = np.array([action, 1.0])\nx[0] *= 2\nr = x[0] + action"),
    "an integer array takes no fractions": (
        "same",
        "x = np.zeros(2, dtype=int)\nx[0] = self.a * 3\nr = x[0]",
    ),
    "an integer array is not augmented with fractions": (
        "refused",
        "x = np.zeros(2, dtype=int)\nx += self.a\nr = x[0]",
    ),
    "an element of an integer array is cut off": (
        "same",
        "x = np.array([1, 2])\nx[0] += self.a\nr = x[0]",
    ),
    "an array remembered from step to step": (
        "same",
        "self.buffer[action % 2] += 1.0\nr = self.buffer[0]",
    ),
    "a list that grows": ("refused", "self.log.append(self.a)\nr = sum(self.log) + len(self.log)"),
    "a list that grows in some lanes": (
        "refused",
        "if self.a > 0:\n    self.log.append(self.a)\nr = len(self.log)",
    ),
    "a place that differs from lane to lane": (
        "same",
        "x = np.zeros(3)\nx[action] = self.a\nr = x[0] + 2 * x[1]",
    ),
    "a list place that differs": (
        "same",
        "x = [0.0, 1.0, 2.0]\nx[action] = self.a\nr = x[0] + 2 * x[1]",
    ),
    "one of two lists": (
        "same",
        "x, y = [0.0], [1.0]\nz = x if self.a > 0 else y\nz[0] += 5\nr = x[0] + 10 * y[0]",
    ),
    "one of two arrays": (
        "same",
        "x, y = np.zeros(1), np.ones(1)\nz = x if self.a > 0 else y\nz[0] += 5\nr = x[0] + y[0]",
    ),
    "a truth of numpy is no index of lists": (
        "refused",
        "r = [1.0, 2.0][self.s[0] > 0]",
    ),
    "a row at a place that differs is a view": (
        "same",
        "x = self.table[int(abs(self.a)) % 2]\nx[0] += 1\nr = self.table[0][0]\nx[0] -= 1",
    ),
    "a row of a constant is not changed": ("same", "r = ROWS[int(abs(self.a)) % 2].sum()"),
    "a function with a memory": ("refused", "r = self.a + remember()"),
    # control flow
    "short circuit guards a division": (
        "same",
        "r = 1.0 if self.a != 0 and 1 / self.a > 0.5 else 0.0",
    ),
    "short circuit guards an index": (
        "same",
        "k = int(abs(self.a) * 2)\nr = 1.0 if k < 3 and TABLE[k] > 0 else 0.0",
    ),
    "a branch guards an index": ("same", "k = int(abs(self.a) * 2)\nif k < 3:\n    r = TABLE[k]"),
    "a branch guards a root": ("same", "if self.a >= 0:\n    r = math.sqrt(self.a)"),
    "an early return guards a logarithm": (
        "same",
        "if self.a <= 0:\n    return [self.a, self.b], 0.0, False\nr = math.log(self.a)",
    ),
    "an index out of range": ("raises", "r = TABLE[int(abs(self.a) * 2)]"),
    "a negative index": ("same", "r = TABLE[-1 - action]"),
    "a negative index beyond": ("raises", "r = TABLE[-2 - action]"),
    "an array index beyond": ("raises", "r = self.table[action][0]"),
    "a missing key": ("raises", "r = COUNTS[action]"),
    "a root of a negative number": ("raises", "r = math.sqrt(self.a)"),
    "a division by zero": ("raises", "r = 1.0 / (action - 1)"),
    "a whole division by zero": ("raises", "r = 7 // action"),
    "a remainder by zero": ("raises", "r = 7 % action"),
    "an assertion": ("raises", "assert self.a > -1, f'{self.a} is too low'"),
    "an assertion that holds": ("same", "assert action in (0, 1, 2)"),
    "an exception": ("raises", "if self.a < -1:\n    raise ValueError('low')"),
    "too many to unpack": ("refused", "x, y = self.s[:1]"),
    "a variable without a value": ("raises", "if action < 2:\n    x = 1.0\nr = x"),
    "a variable with one in all lanes": (
        "same",
        "if action < 2:\n    x = 1.0\nelif action == 2:\n    x = 2.0\nr = x",
    ),
    "a variable after a loop": (
        "same",
        "for i in range(4):\n    if i > self.a:\n        break\nr = i",
    ),
    "a loop variable that is assigned to": (
        "same",
        "for i in range(3):\n    i = i * 2\n    r += i",
    ),
    "break, continue and else": (
        "same",
        "for i in range(4):\n    if i == action:\n        continue\n    if i > self.a + 2:\n        break\n    r += i\nelse:\n    r += 100",
    ),
    "break after else leaves the loop around": (
        "same",
        "for i in range(4):\n    for j in range(3):\n        if j > self.a:\n            break\n    else:\n        break\n    r += i + 1",
    ),
    "return within loops": (
        "same",
        "for i in range(3):\n    for j in range(3):\n        if i + j > abs(self.a):\n            return [self.a, self.b], i * 10 + j, False\n    r += 1",
    ),
    "while with else": (
        "same",
        "x = abs(self.a)\nwhile x > 1:\n    x -= 0.7\n    if x < 0.5:\n        break\nelse:\n    r = 5.0\nr += x",
    ),
    "a loop without end in some lanes": (
        "refused",
        "n = 0\nwhile self.a > 1.5 and n < 10500:\n    n += 1\nr = n",
    ),
    "nothing returned in some lanes": ("raises", "r = 1.0 + self._sometimes()"),
    "conditional calls that change": (
        "same",
        "r = self.bump() if self.b > 0 else 0.0\nr += self.a",
    ),
    "and with calls that change": ("same", "done = self.b > 0 and self.bump() > 1\nr = self.a"),
    "or with calls that change": ("same", "done = self.b > 0 or self.bump() > 1\nr = self.a"),
    "order of evaluation": ("same", "r = self.a + self.bump() * 10 + self.a * 100"),
    "order of targets": ("same", "self.a, self.b = self.b, self.bump()"),
    "any leaves calls undone": ("same", "done = any(self.bump() > 1 for _ in range(3))"),
    "operands returned by or": ("same", "r = self.a * 0 or self.b"),
    "operands returned by and": ("same", "r = (self.a > 0) and self.b"),
    # types
    "whole division of negatives": (
        "same",
        "k = int(self.a * 3)\nr = k // 2 + 10 * (k % 3) + 100 * (-k % 4)",
    ),
    "division makes fractions": ("same", "r = (action + 1) / 2"),
    "int cuts towards zero": ("same", "r = int(self.a * 2) + 100 * math.floor(self.a * 2)"),
    "halves are rounded to even": ("same", "r = round(action + 0.5) + 10 * round(self.a)"),
    "rounding to digits": ("same", "r = round(self.a * 0.37, 1)"),
    "whole and real numbers": (
        "same",
        "r = max(0, self.a) + min(1, action) / 3 + max(action, 0.5)",
    ),
    "truths added up": ("same", "r = 1.0 * ((self.a > 0) + (self.b > 0))"),
    "truths summed": ("same", "r = 1.0 * sum([self.a > 0, self.b > 0])"),
    "truths times numbers": ("same", "r = (self.a > 0) * 2.5 - (self.b > 0) * 1"),
    "truths negated": ("refused", "r = 1.0 * ~(self.a > 0)"),
    "truths of arrays": ("refused", "if self.s > 0:\n    r = 1.0"),
    "none in some lanes": (
        "same",
        "if self.a > 0 and self.left is None:\n    self.left = 2\nif self.left is not None:\n    self.left -= 1\n    done = self.left < 0\n    r = 0.5",
    ),
    "steps beyond done": (
        "same",
        "over = abs(self.a) > 0.5\nif not over:\n    r = 1.0\nelif self.left is None:\n    self.left = 0\n    r = 1.0\nelse:\n    self.left += 1\n    r = -1.0 * self.left",
    ),
    "done is remembered": (
        "same",
        "if self.done:\n    return [self.a, self.b], 0.0, True\nself.count += 1\nself.done = self.count > 2\ndone = self.done and self.a > 0\nr = float(self.count)",
    ),
    "lists are no tuples": ("same", "r = 1.0 if [action, 1] == (action, 1) else 2.0"),
    "tuples in lists": ("same", "r = 1.0 if (action, 1) in [(0, 1), (2, 2), [1, 1]] else 2.0"),
    "is with numbers": ("same", "r = 1.0 if action is 1 else 2.0"),
    "a text that differs": (
        "same",
        "name = 'up' if action == 0 else 'down'\nr = 1.0 if name == 'up' else 2.0",
    ),
    "the type of a sometimes whole number": (
        "refused",
        "x = self.a if self.b > 0 else 1\nr = 1.0 if isinstance(x, int) else 2.0",
    ),
    "a function of all elements": (
        "refused",
        "r = np.vectorize(lambda v: v if v > 0 else 0)(self.s).sum()",
    ),
    "a shadowed built-in": ("same", "max = self.a\nr = max + 1"),
    "a shadowed global": ("same", "TABLE = [self.a, 2.0]\nr = TABLE[0]"),
    "a shadowed module": ("same", "math = self.a\nr = math + 1"),
    "a local function": (
        "same",
        "def f(x, k=2.0):\n    if x > 0:\n        return x * k\n    return -x\nr = f(self.a) + f(self.b, 3.0)",
    ),
    "a local function sees changes": (
        "same",
        "k = 1.0\ndef f(x):\n    return x * k\nk = 2.0\nr = f(self.a)",
    ),
    "a property": ("same", "r = self.double + Environment.LEVELS[1]"),
    "a private name": ("same", "self.__x = self.a\nr = self.__x + 1"),
    "class attributes that change": ("refused", "Environment.LEVELS = (1.0, 2.0)"),
    # outside of the supported subset
    "a lambda": ("same", "f = lambda x: x\nr = f(self.a)"),
    "an exception that is caught": (
        "same",
        "try:\n    r = TABLE[action * 2]\nexcept IndexError:\n    r = -1.0",
    ),
    "random numbers": ("refused", "r = np.random.rand()"),
    "time": ("refused", "import time\nr = time.time()"),
    "printing": ("same", "print(self.a)"),
    "a generator": ("same", "def g():\n    yield 1\nr = sum(g())"),
    "global": ("refused", "global TABLE\nTABLE = []"),
    "the object handed around": ("same", "r = look(self)"),
    "sorted": ("same", "r = sorted([self.a, self.b])[0]"),
    "a set looped over": ("same", "for v in {1, 5, 3}:\n    r = r * 2 + v"),
    "large whole numbers": ("same", "r = float((action + 2) ** 70 % 7)"),
}

BEFORE = """
def collect(x, seen=[]):
    seen.append(x)
    return len(seen)

def tick():
    COUNTS[0] += 1

def counter():
    seen = []
    def count():
        seen.append(1)
        return len(seen)
    return count

remember = counter()

def look(e):
    return e.a
"""

METHODS = """
    def _add(self, x):
        x += 1.0

    def _sometimes(self):
        if self.a > 0:
            return 1.0

    @property
    def double(self):
        return 2 * self.a
"""


def trap(name):
    """Return the program of a trap, and the expected result."""
    expected, body = TRAPS[name]
    lines = [line for part in body.split("\n") for line in _split(part)]
    indented = "\n".join(f"        {line}" for line in lines)
    return FRAME.format(before=BEFORE, body=indented) + METHODS, expected


def _split(line):
    return line.split("; ") if not line.startswith((" ", "def", "for", "if", "while")) else [line]
