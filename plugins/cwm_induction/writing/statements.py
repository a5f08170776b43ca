"""Write a program from statements in any order.

The syntax of each statement shows which names it reads and sets. The writer
sorts the statements and leaves out unneeded ones. It raises an error if a
program reads a name before setting it.
"""

import ast
import builtins
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from cwm_cli.errors import CwmError

GIVEN = frozenset(dir(builtins)) | {"np", "self", "observation", "action"}
"""Names that every step may read."""


class EmissionError(CwmError):
    """Statements that cannot be sorted, or that read a name that no statement sets."""


@dataclass(frozen=True)
class Statement:
    """A piece of a function's body; no other statement may set the same names."""

    text: str
    comment: str = ""

    @cached_property
    def sets(self) -> frozenset[str]:
        """Names that the code sets on every branch."""
        return frozenset(_flow(ast.parse(self.text).body)[1])

    @cached_property
    def reads(self) -> frozenset[str]:
        """Names that the code reads before setting them itself."""
        return frozenset(_flow(ast.parse(self.text).body)[0])

    @property
    def lines(self) -> list[str]:
        """Return the lines of the comment, followed by the lines of code."""
        return [*(f"# {line}" for line in self.comment.splitlines()), *self.text.splitlines()]


@dataclass(frozen=True)
class Constant:
    """A named number; `text` is its source text, such as `np.pi / 2`."""

    name: str
    text: str
    comment: str = ""


@dataclass
class ProgramDraft:
    """The parts of a program that have yet to be written as text.

    `result` is the expression of the next observation; `reward` and
    `terminated` are names that statements set.
    """

    summary: list[str]
    result: str
    shape: tuple[int, ...]
    statements: list[Statement] = field(default_factory=list)
    constants: list[Constant] = field(default_factory=list)
    methods: list[str] = field(default_factory=list)
    approximations: Mapping[int, str] = field(default_factory=dict)
    """Components without an exact equation, and the kind of their prediction."""

    def constant(self, name: str, text: str, comment: str = "") -> str:
        """Add a named number; return its name, with a suffix if another number has the name."""
        taken = {constant.name: constant.text for constant in self.constants}
        unique, number = name, 2
        while unique in taken and taken[unique] != text:
            unique, number = f"{name}_{number}", number + 1
        if unique not in taken:
            self.constants.append(Constant(unique, text, comment))
        return unique

    def text(self) -> str:
        """Return the source text of the program."""
        body = ordered(self._needed(), self._known_outside())
        check_names(body, self._known_outside(), [self.result, "reward", "terminated"])
        step = [line for statement in body for line in statement.lines]
        methods = [method for method in self.methods if _called(method, step)]
        constants = self._used_constants([*step, *methods, self.result])
        return "\n".join([*self._head(constants), *_indented(methods), *self._step(step), ""])

    def _known_outside(self) -> frozenset[str]:
        return GIVEN | {constant.name for constant in self.constants}

    def _needed(self) -> list[Statement]:
        """Return the statements that the results depend on."""
        wanted = {"reward", "terminated", *mentioned(self.result)}
        needed: list[Statement] = []
        rest = list(self.statements)
        while found := [statement for statement in rest if statement.sets & wanted]:
            needed += found
            rest = [statement for statement in rest if statement not in found]
            wanted |= {name for statement in found for name in statement.reads}
        return [statement for statement in self.statements if statement in needed]

    def _used_constants(self, lines: Iterable[str]) -> list[Constant]:
        used = {name for line in lines for name in mentioned(line)}
        return [constant for constant in self.constants if constant.name in used]

    def _head(self, constants: Sequence[Constant]) -> list[str]:
        lines = ["import numpy as np", ""]
        for constant in constants:
            lines += [f"# {constant.comment}"] if constant.comment else []
            lines.append(f"{constant.name} = {constant.text}")
        lines += ["", ""] if constants else [""]
        docstring = _paragraphs(self.summary)
        lines += ["class Environment:", *textwrap.indent(docstring, "    ").splitlines(), ""]
        if self.approximations:
            declared = approximations_line(self.approximations)
            lines += [f"    {declared}", ""]
        size = self.shape if len(self.shape) != 1 else self.shape[0]
        return [*lines, *_indented([_STATE.format(size=size)])]

    def _step(self, body: Sequence[str]) -> list[str]:
        reshaped = self.result if len(self.shape) == 1 else f"{self.result}.reshape({self.shape})"
        read = "observation = self.observation" + (".ravel()" if len(self.shape) != 1 else "")
        lines = [
            *([read] if any("observation" in line for line in body) else []),
            *body,
            f"self.observation = {reshaped}",
            "return self.observation.copy(), reward, terminated",
        ]
        step = ["def step(self, action):", '    """Predict the outcome of an action."""']
        return _indented(["\n".join([*step, *(f"    {line}" for line in lines)])])[:-1]


_STATE = '''def __init__(self):
    self.observation = np.zeros({size})

def set_state(self, observation):
    """Set the observation to predict from."""
    self.observation = np.array(observation, dtype=float)'''


def approximations_line(kinds: Mapping[int, str]) -> str:
    """Return the class attribute that names components without a law and their predictions."""
    parts = ", ".join(f'{index}: "{kind}"' for index, kind in kinds.items())
    return f"APPROXIMATIONS = {{{parts}}}  # component: kind of prediction"


def ordered(statements: Sequence[Statement], known: Iterable[str] = ()) -> list[Statement]:
    """Sort statements so that names are set before use; keep the order otherwise."""
    waiting, result, available = list(statements), [], set(known)
    unset = {name for statement in statements for name in statement.sets}
    while waiting:
        ready = next((s for s in waiting if not (s.reads & unset) - available), None)
        if ready is None:
            circle = ", ".join(sorted({name for s in waiting for name in s.sets}))
            raise EmissionError(f"these names depend on each other in a circle: {circle}")
        waiting.remove(ready)
        result.append(ready)
        available |= ready.sets
    return result


def check_names(
    statements: Iterable[Statement], known: Iterable[str], results: Iterable[str]
) -> None:
    """Raise an error if a name is read before it is set, or set twice."""
    available: set[str] = set(known)
    assigned: set[str] = set()
    for statement in statements:
        if missing := statement.reads - available:
            raise EmissionError(f"nothing sets {', '.join(sorted(missing))}")
        if twice := statement.sets & assigned:
            raise EmissionError(f"set twice: {', '.join(sorted(twice))}")
        available |= statement.sets
        assigned |= statement.sets
    if unset := {name for text in results for name in mentioned(text)} - available:
        raise EmissionError(f"nothing sets {', '.join(sorted(unset))}")


def mentioned(text: str) -> set[str]:
    """Return every name in a piece of code, which may be incomplete."""
    return set(re.findall(r"(?<![\w.])[A-Za-z_]\w*", text))


def _flow(body: Sequence[ast.stmt]) -> tuple[set[str], set[str]]:
    """Return the names that code reads before setting them, and the names that it always sets."""
    reads: set[str] = set()
    sets: set[str] = set()
    for node in body:
        if isinstance(node, ast.If):
            (read_if, set_if), (read_else, set_else) = _flow(node.body), _flow(node.orelse)
            reads |= (_loaded(node.test) | read_if | read_else) - sets
            sets |= set_if & set_else
        elif isinstance(node, ast.For):
            read_body, set_body = _flow(node.body)
            reads |= (_loaded(node.iter) | (read_body - _stored(node.target))) - sets
            sets |= set_body
        else:
            reads |= _loaded(node) - sets
            sets |= _stored(node)
    return reads, sets


def _loaded(node: ast.AST) -> set[str]:
    """Return the names that a statement or expression reads; `x += 1` reads x."""
    target = (
        {node.target.id}
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name)
        else set()
    )
    return target | {
        n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)
    }


def _stored(node: ast.AST) -> set[str]:
    """Return the names that a statement or a loop's target sets."""
    return {
        n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    }


def _called(method: str, lines: Iterable[str]) -> bool:
    """Return whether a line calls the method."""
    name = method.removeprefix("def ").split("(")[0]
    return any(f"self.{name}(" in line for line in lines)


def _indented(blocks: Iterable[str]) -> list[str]:
    """Return the lines of class members, a blank line after each."""
    return [line for block in blocks for line in [*textwrap.indent(block, "    ").splitlines(), ""]]


def _paragraphs(summary: Sequence[str]) -> str:
    """Write a docstring: one sentence, then wrapped paragraphs."""
    first, *rest = summary
    wrapped = [textwrap.fill(paragraph, 92) for paragraph in rest]
    return '"""' + "\n\n".join([first, *wrapped]) + ('\n"""' if rest else '"""')
