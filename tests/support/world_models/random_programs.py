# ruff: noqa
"""Programs drawn at random: arithmetic, branches, loops, early returns, and changes in place."""

HEADER = """
import math
import numpy as np
TABLE = [1.0, -2.0, 0.5, 3.0]
LIST = [1, 2, 3, -1, 0]
D = {0: 1.5, 1: -1.0, 2: 0.25}
SET = {0, 3, 5}
PAIRS = {(0, 1), (2, 0), (3, 2), (1, 1)}


class Environment:
    def __init__(self):
        self.set_state(np.zeros(2))

    def set_state(self, o):
        self.a, self.b = o
        self.n = 0
        self.flag = False
        self.last = None
        self.s = np.array(o)
        self.l = [float(o[0]), float(o[1])]

    def pair(self):
        if self.a > self.b:
            return self.b, self.a
        self.n += 1
        return self.a, self.b
"""

STEP = """
    def step(self, action):
        x, y = self.s
        z = self.a * 0.5
        k = int(abs(self.b) * 2) % 7
        v = np.array([x, z])
        w = np.zeros(3)
        t = (y, 1.0)
        r = 0.0
        done = False
"""

END = """
        self.a = max(min(self.a, 9.0), -9.0)
        self.b = max(min(self.b, 9.0), -9.0)
        return [self.a, x], r + z, done
"""

HELPERS = [
    "        return p * 0.5 + q",
    "        if p > q:\n            return p - q\n        if p < -q:\n            self.b += 0.1\n            return q\n        return p",
    "        for i in range(3):\n            if p > i:\n                return i\n            p += 0.5\n        return q",
    "        while p > 2:\n            p -= 1.5\n            if p > 30:\n                break\n        return p",
]

VARIABLES = (
    "x y z k self.a self.b self.n action v[0] v[1] w[2] t[0] self.l[1] TABLE[k%4] D[k%3]".split()
)
NUMBERS = "0.5 1.0 -1.5 2 3 0 -1 0.1 10.0".split()
CHANGES = (
    """
t = (x, y)|t = t[::-1]|v = v + w[:2]|w = np.array([x, y, z])|v = self.s|self.s = v|self.s = v.copy()
w[1:] = v|v += 1|v *= 0.5|self.l = [x, y]|self.s = np.array([y, x])
""".strip()
    .replace("\n", "|")
    .split("|")
)


class Author:
    """Writes a program with the choices of `random`."""

    def __init__(self, random):
        self.random, self.loops = random, 0

    def one(self, *options):
        return self.random.choice(options)

    def number(self, depth=0):
        if depth > 2 or self.random.random() < 0.4:
            return self.one(self.one(*VARIABLES), self.one(*NUMBERS))
        a, b = self.number(depth + 1), self.number(depth + 1)
        return self.one(
            lambda: f"({a} {self.one('+', '-', '*')} {b})",
            lambda: f"({a} {self.one('/', '//', '%')} {self.one(*NUMBERS)})",
            lambda: f"({a} / {b})",
            lambda: f"{self.one('abs', 'float', 'int')}({a})",
            lambda: f"{self.one('min', 'max')}({a}, {b})",
            lambda: f"{self.one('math.sin', 'np.cos', 'math.floor', 'np.tanh', 'np.abs')}({a})",
            lambda: f"({a} if {self.condition(depth + 1)} else {b})",
            lambda: f"self.helper({a}, {b})",
            lambda: f"np.clip({a}, -3, 3)",
            lambda: f"({self.one('v', 'w')} * {self.one(*NUMBERS)})[{self.one('0', '1', '-1')}]",
            lambda: f"LIST[int({a}) % 5]",
            lambda: f"D.get(int({a}), {b})",
            lambda: f"({a})**2",
        )()

    def condition(self, depth=0):
        a, b = self.number(depth + 2), self.number(depth + 2)
        if depth > 2 or self.random.random() < 0.4:
            return f"{a} {self.one('<', '>', '<=', '>=', '==', '!=')} {b}"
        return self.one(
            lambda: (
                f"({self.condition(depth + 1)} {self.one('and', 'or')} {self.condition(depth + 1)})"
            ),
            lambda: f"not ({self.condition(depth + 1)})",
            lambda: f"{a} < {b} <= {self.number(depth + 2)}",
            lambda: self.one("self.flag", "done", "self.last is None", "self.last is not None"),
            lambda: f"k in {self.one('(0, 1)', '[2, 3]', '{1, 4}', 'SET', 'D')}",
            lambda: "(k, action) in PAIRS",
            lambda: f"(self.last is not None and self.last > {a})",
        )()

    def block(self, indent, in_loop, depth):
        for _ in range(self.random.randint(1, 3)):
            yield from self.statement(indent, in_loop, depth)

    def statement(self, indent, in_loop=False, depth=0):
        pad = "    " * indent
        if depth < 3 and self.random.random() < 0.4:
            yield from self.one(self.branch, self.loop, self.repetition)(
                pad, indent, in_loop, depth
            )
            return
        line = self.simple(pad)
        if in_loop and self.random.random() < 0.15:
            line = self.one("break", "continue")
        yield pad + line

    def simple(self, pad):
        a = self.number()
        return self.one(
            lambda: f"{self.one('x', 'y', 'z', 'self.a', 'self.b', 'self.n', 'self.last')} = {a}",
            lambda: (
                f"{self.one('x', 'y', 'z', 'r', 'self.a', 'self.b', 'self.n')} {self.one('+=', '-=', '*=')} {a}"
            ),
            lambda: f"k = int({a}) % 7",
            lambda: (
                f"{self.one('v', 'w', 'self.s', 'self.l')}[{self.one('0', '1', '-1', 'k % 2')}] {self.one('=', '+=')} {a}"
            ),
            lambda: f"x, y = {self.one('y, x', 't', 'v[:2]', 'self.pair()', '(z, k)')}",
            lambda: self.one(*CHANGES),
            lambda: f"{self.one('done', 'self.flag')} = {self.condition()}",
            lambda: f"self.last = None",
            lambda: f"if self.last is not None:\n{pad}    x = self.last - {a}",
            lambda: f"assert {a} > -50",
            lambda: f"return [{a}, x], {self.number()}, {self.condition()}",
        )()

    def branch(self, pad, indent, in_loop, depth):
        yield f"{pad}if {self.condition()}:"
        yield from self.block(indent + 1, in_loop, depth + 1)
        for word in self.one((), ("else:",), (f"elif {self.condition()}:", "else:")):
            yield pad + word
            yield from self.block(indent + 1, in_loop, depth + 1)

    def loop(self, pad, indent, in_loop, depth):
        name = self.one("i", "j")
        yield f"{pad}for {name} in {self.one('range(3)', '(1, 2, 5)', 'v', 't', 'LIST')}:"
        yield f"{pad}    z = z * 0.5 + {name}"
        yield from self.block(indent + 1, True, depth + 1)
        if self.random.random() < 0.25:
            yield f"{pad}else:"
            yield from self.block(indent + 1, in_loop, depth + 1)

    def repetition(self, pad, indent, in_loop, depth):
        self.loops += 1
        count = f"c{self.loops}"
        yield f"{pad}{count} = 0"
        yield f"{pad}while {self.condition()} and {count} < 4:"
        yield f"{pad}    {count} += 1"
        yield from self.block(indent + 1, True, depth + 1)

    def program(self):
        lines = [HEADER, "    def helper(self, p, q=1.0):", self.one(*HELPERS), STEP.rstrip()]
        for _ in range(self.random.randint(3, 8)):
            lines += self.statement(2)
        return "\n".join([*lines, END])
