"""What can be proved of variables, attributes and results wherever they are used.

A fact is believed until something is assigned that it does not hold for; what
is left when nothing changes any more holds. So facts may rest on each other.
"""

import ast
from collections.abc import Callable, Iterator
from typing import Any

from cwm_cli.planning.batched.analysis import Definition, Program, mangled, reached
from cwm_cli.planning.batched.names import Names

Fact = tuple[str, str, str]
"""A kind of thing, the function that it belongs to, and its name."""

Holds = Callable[["Scope", ast.expr], bool]


class Scope:
    """What is proved so far, seen from one function."""

    def __init__(self, proof: "Proof", definition: Definition) -> None:
        self.definition = definition
        self.names = Names(proof.program, definition)
        self._proof = proof

    def fact(self, node: ast.expr) -> Fact | None:
        """Return the fact that is about a variable or attribute."""
        if isinstance(node, ast.Name):
            return ("name", self.definition.name, node.id) if self.names.is_local(node.id) else None
        if isinstance(node, ast.Attribute) and self.names.is_owner(node.value):
            if (definition := self.names.definition(node)) is not None:
                return "result", definition.name, ""
            return "attribute", "", mangled(node.attr, self._proof.program.name)
        return None

    def believes(self, fact: Fact | None) -> bool:
        """Whether a fact has not been refuted."""
        return fact is not None and fact not in self._proof.refuted

    def result(self, node: ast.Call) -> Fact | None:
        """Return the fact that is about what a function of the program returns."""
        called = self.names.definition(node.func)
        return ("result", called.name, "") if called else None


class Proof:
    """Refutes facts until nothing changes any more."""

    def __init__(self, program: Program, holds: Holds, initial: Callable[[str, Any], bool]) -> None:
        self.program = program
        self.refuted: set[Fact] = set()
        self._holds = holds
        self._scopes = [Scope(self, definition) for definition in reached(program)]
        for name, value in program.attributes.items():
            if not initial(name, value):
                self.refuted.add(("attribute", "", name))
        claims = [claim for scope in self._scopes for claim in _claims(scope)]
        while self._refute(claims):
            pass

    def scope(self, definition: Definition) -> Scope:
        """Return what is proved, as a function sees it."""
        return next(scope for scope in self._scopes if scope.definition is definition)

    def _refute(self, claims: list["Claim"]) -> bool:
        """Refute facts that rest on what does not hold; return whether there was one."""
        before = len(self.refuted)
        for scope, fact, value in claims:
            if fact not in self.refuted and (value is None or not self._holds(scope, value)):
                self.refuted.add(fact)
        return len(self.refuted) > before


Claim = tuple[Scope, Fact, ast.expr | None]
"""A fact holds only if it holds for a value; never, where there is none."""


def _claims(scope: Scope) -> Iterator[Claim]:
    """Yield what a function assigns, returns and passes."""
    result: Fact = ("result", scope.definition.name, "")
    returned = False
    for node in ast.walk(scope.definition.node):
        if isinstance(node, ast.Return):
            returned = True
            yield scope, result, node.value
        for kind, claims in _CLAIMS:
            if isinstance(node, kind):
                yield from claims(scope, node)
    if not returned:
        yield scope, result, None
    yield from _unknown_arguments(scope)


def _plainly_assigned(scope: Scope, node: ast.Assign) -> Iterator[Claim]:
    """Yield what an assignment says."""
    for target in node.targets:
        yield from _assigned(scope, target, node.value)


def _annotated(scope: Scope, node: ast.AnnAssign) -> Iterator[Claim]:
    """Yield what an assignment with a type says."""
    if node.value is not None:
        yield from _assigned(scope, node.target, node.value)


def _imported(scope: Scope, node: ast.alias) -> Iterator[Claim]:
    """Yield that nothing is known of what is imported."""
    name = (node.asname or node.name).partition(".")[0]
    yield scope, ("name", scope.definition.name, name), None


def _assigned(scope: Scope, target: ast.expr, value: ast.expr | None) -> Iterator[Claim]:
    """Yield what an assignment says of its targets."""
    if (fact := scope.fact(target)) is not None:
        yield scope, fact, value
    elif isinstance(target, ast.Tuple | ast.List):
        parts: list[ast.expr | None] = [_element(value)] * len(target.elts)
        if isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(target.elts):
            parts = list(value.elts)
        for part, element in zip(target.elts, parts, strict=True):
            yield from _assigned(scope, part, element)


def _element(value: ast.expr | None) -> ast.expr | None:
    """Return an element of what is unpacked or looped over."""
    return value and ast.Subscript(value, ast.Constant(0), ast.Load())


def _augmented(scope: Scope, node: ast.AugAssign) -> Iterator[Claim]:
    """Yield what an augmented assignment says of its target."""
    if (fact := scope.fact(node.target)) is not None:
        yield scope, fact, node.value


def _looped(scope: Scope, node: ast.For | ast.comprehension) -> Iterator[Claim]:
    """Yield what a loop says of its variable."""
    over = node.iter
    is_range = isinstance(over, ast.Call) and scope.names.value(over.func) is range
    yield from _assigned(scope, node.target, ast.Constant(0) if is_range else _element(over))


def _passed(scope: Scope, node: ast.Call) -> Iterator[Claim]:
    """Yield what a call says of the arguments of a function."""
    called = scope.names.definition(node.func)
    if called is None:
        return
    arguments = [argument.arg for argument in called.node.args.args]
    if called.owner is not None and isinstance(node.func, ast.Attribute):
        arguments = arguments[1:]
    for name, value in zip(arguments, node.args, strict=False):
        yield scope, ("name", called.name, name), value
    for keyword in node.keywords:
        if keyword.arg:
            yield scope, ("name", called.name, keyword.arg), keyword.value


def _inner(scope: Scope, node: ast.FunctionDef) -> Iterator[Claim]:
    """Yield that nothing is known of what a function within a function is given."""
    if node is scope.definition.node:
        return
    yield scope, ("name", scope.definition.name, node.name), None
    for argument in node.args.args:
        yield scope, ("name", scope.definition.name, argument.arg), None


def _unknown_arguments(scope: Scope) -> Iterator[Claim]:
    """Yield what default values say, and that a function used as a value may be given anything."""
    definition, arguments = scope.definition, scope.definition.node.args
    names = [argument.arg for argument in arguments.args]
    for name, value in zip(reversed(names), reversed(arguments.defaults), strict=False):
        yield scope, ("name", definition.name, name), value
    for other in scope.names.used_as_values():
        for argument in other.node.args.args:
            yield scope, ("name", other.name, argument.arg), None


_CLAIMS: tuple[tuple[Any, Callable[[Scope, Any], Iterator[Claim]]], ...] = (
    (ast.Assign, _plainly_assigned),
    (ast.AnnAssign, _annotated),
    (ast.AugAssign, _augmented),
    (ast.For | ast.comprehension, _looped),
    (ast.Call, _passed),
    (ast.FunctionDef, _inner),
    (ast.alias, _imported),
)
