"""Where translation stands in a function of a program, and words to write Python with."""

import ast
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from cwm_cli.planning.batched.analysis import Definition, Program, bound
from cwm_cli.planning.batched.definite import doubtful
from cwm_cli.planning.batched.lanes import refuse
from cwm_cli.planning.batched.proof import Scope
from cwm_cli.planning.batched.sharing import merge

PREFIX = "_b_"
"""What all names begin with that translation adds."""

DEAD = "False"
"""The mask where control never gets to."""


class Globals:
    """The global names of a translated program, and the functions that still have to be written."""

    def __init__(self, program: Program, numbers: Any, presence: Any) -> None:
        self.program = program
        self.numbers, self.presence = numbers, presence
        self.names: dict[str, Any] = {}
        self._constants: dict[int, tuple[Any, Any]] = {}
        self.wanted: dict[str, tuple[Definition, bool]] = {}

    def add(self, value: Any, word: str) -> ast.expr:
        """Return a name for a value."""
        name = f"{PREFIX}{word}"
        while self.names.setdefault(name, value) is not value:
            name += "_"
        return load(name)

    def constant(self, value: Any, word: str, make: Callable[[Any], Any]) -> ast.expr:
        """Return a name for what stands for a constant, which is made once."""
        if id(value) not in self._constants:
            self._constants[id(value)] = (value, make(value))
        return self.add(self._constants[id(value)][1], f"constant_{word}")

    def function(self, definition: Definition, *, masked: bool) -> ast.expr:
        """Return the name of a translated function."""
        kind = "method" if definition.is_method else "function"
        name = f"{PREFIX}{kind}_{definition.name}{'_masked' if masked else ''}"
        self.wanted.setdefault(name, (definition, masked))
        return load(name)


class Frame:
    """A function that is being translated; `mask` names the lanes that are alive, None for all."""

    def __init__(
        self,
        shared: Globals,
        definition: Definition,
        node: ast.FunctionDef,
        mask: str | None,
        outer: "Frame | None" = None,
    ) -> None:
        self.shared, self.definition, self.node, self.mask = shared, definition, node, mask
        self.numbers: Scope = shared.numbers.scope(definition)
        self.presence: Scope = shared.presence.scope(definition)
        self.names = self.numbers.names
        self.doubtful = doubtful(node, self.names.locals if outer is None else set(bound(node)))
        if outer is not None:
            self.doubtful |= outer.doubtful
        self.declared: set[str] = set()
        self.loop_variables: list[str] = []
        self.outer = outer
        self._count: int = outer._count + 1000 if outer else 0

    def new(self, word: str) -> str:
        """Return a name that nothing has yet."""
        self._count += 1
        return f"{PREFIX}{word}{self._count}"

    def alive(self) -> ast.expr:
        """Return an expression for the lanes that are alive."""
        return ast.Constant(True) if self.mask is None else load(self.mask)

    def choose(self, mask: ast.expr, new: ast.expr, old: ast.expr) -> ast.expr:
        """Write a choice between two values, lane by lane."""
        if not self.shared.program.changes:
            return lanes("select", mask, new, old)
        return call(self.shared.add(merge, "merge"), mask, new, old)

    @contextmanager
    def where(self, mask: str | None) -> Iterator[None]:
        """Translate as if some other lanes were alive."""
        before, self.mask = self.mask, mask
        try:
            yield
        finally:
            self.mask = before


def cannot(node: ast.AST, reason: str) -> NoReturn:
    """Refuse a construct, at its line."""
    refuse(f"line {getattr(node, 'lineno', '?')}: {reason}")


def load(name: str) -> ast.Name:
    """Write a name."""
    return ast.Name(name, ast.Load())


def call(function: ast.expr, *args: ast.expr) -> ast.Call:
    """Write a call."""
    return ast.Call(function, list(args), [])


def lanes(name: str, *args: ast.expr) -> ast.Call:
    """Write a call of a function of the module `lanes`."""
    return call(ast.Attribute(load(f"{PREFIX}lanes"), name, ast.Load()), *args)


def assign(name: str, value: ast.expr) -> ast.Assign:
    """Write an assignment to a variable."""
    return ast.Assign([ast.Name(name, ast.Store())], value)


def unless_false(mask: str, body: list[ast.stmt]) -> list[ast.stmt]:
    """Write statements that are done where a mask has lanes."""
    test = ast.Compare(load(mask), [ast.IsNot()], [ast.Constant(False)])
    return [ast.If(test, body, [])] if body else []
