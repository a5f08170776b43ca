"""What is known of a program before it is translated: its functions and what they change."""

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

from cwm_cli.planning.batched.constants import mutables
from cwm_cli.planning.batched.lanes import refuse
from cwm_cli.planning.batched.methods import CHANGING

ENTRIES = ("set_state", "step")
_DECORATORS = ("staticmethod", "classmethod", "property")


@dataclass(frozen=True)
class Definition:
    """A function or method; `owner` names its first argument where that is the object."""

    name: str
    node: ast.FunctionDef
    decorator: str = ""
    is_method: bool = False

    @property
    def owner(self) -> str | None:
        """The name that the object has in a method."""
        if not self.is_method or self.decorator == "staticmethod":
            return None
        if not self.node.args.args:
            refuse(f"line {self.node.lineno}: a method without arguments")
        return self.node.args.args[0].arg


@dataclass
class Program:
    """A program: its methods and functions, and the values of its names and attributes.

    `stored` are attributes whose elements are assigned to; `changes` says that
    arrays may change in place at all.
    """

    name: str
    methods: dict[str, Definition]
    functions: dict[str, Definition]
    names: dict[str, Any]
    attributes: dict[str, Any]
    stored: set[str] = field(default_factory=set)
    changes: bool = False
    own: set[str] = field(default_factory=set)
    inherited: set[str] = field(default_factory=set)
    assigned: set[str] = field(default_factory=set)


def read(text: str, environment: Any) -> Program:
    """Read a program whose Environment has been made."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError) as error:
        refuse(f"it cannot be parsed: {error}")
    kind = type(environment)
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    found = [node for node in classes if node.name == kind.__name__]
    if len(found) != 1:
        refuse("it has not one class Environment")
    names, attributes = _names(kind), _attributes(kind, environment)
    current = {**vars(kind), **vars(environment)}
    methods = dict(_definitions(_body(found[0]), current, is_method=True))
    functions = dict(_definitions(tree.body, names))
    program = Program(kind.__name__, methods, functions, names, attributes)
    program.own |= set(vars(environment))
    program.inherited |= set(attributes) - program.own
    for name in ENTRIES:
        if name not in methods or methods[name].decorator:
            refuse(f"it has no plain method {name}")
    _look(program)
    _check_shared(program)
    return program


def mangled(name: str, owner: str) -> str:
    """Return the name that an attribute has outside of its class."""
    private = name.startswith("__") and not name.endswith("__")
    return f"_{owner.lstrip('_')}{name}" if private else name


def reached(program: Program) -> list[Definition]:
    """Return the definitions that steps may use, found by name."""
    return reached_from(program, ENTRIES)


def reached_from(program: Program, names: Iterable[str]) -> list[Definition]:
    """Return the definitions that some may use, found by name, with themselves."""
    waiting = list(names)
    seen = set(waiting)
    found: list[Definition] = []
    while waiting:
        name = waiting.pop()
        places = (program.methods, program.functions)
        here = [place[name] for place in places if name in place]
        found += here
        used = (node for definition in here for node in ast.walk(definition.node))
        for node in used:
            other = getattr(node, "attr", None) or getattr(node, "id", None)
            if other is not None and other not in seen and any(other in place for place in places):
                seen.add(other)
                waiting.append(other)
    return found


def bound(target: ast.AST) -> Iterator[str]:
    """Yield the names that an assignment target binds."""
    for node in ast.walk(target):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def _body(node: ast.ClassDef) -> list[ast.stmt]:
    """Return what is in a class that has no base class."""
    if node.keywords or node.decorator_list:
        refuse(f"line {node.lineno}: a class with a decorator or metaclass")
    if any(not isinstance(base, ast.Name) or base.id != "object" for base in node.bases):
        refuse(f"line {node.lineno}: a class with a base class")
    return node.body


def _definitions(
    body: Iterable[ast.stmt], current: Mapping[str, Any], *, is_method: bool = False
) -> Iterator[tuple[str, Definition]]:
    """Yield functions that can be translated and still have their names."""
    for node in body:
        if isinstance(node, ast.FunctionDef):
            names = [getattr(decorator, "id", "?") for decorator in node.decorator_list]
            plain = len(names) < 2 and all(name in _DECORATORS for name in names)
            if plain and _line(current.get(node.name)) in (node.lineno, node.lineno - len(names)):
                yield node.name, Definition(node.name, node, "".join(names), is_method)


def _line(value: Any) -> int:
    """Return the line that a function begins at."""
    function = getattr(value, "fget", None) or getattr(value, "__func__", value)
    code = getattr(function, "__code__", None)
    return code.co_firstlineno if code is not None else 0


def _names(kind: type) -> dict[str, Any]:
    """Return the values of the program's global names."""
    methods = (value for value in vars(kind).values() if isinstance(value, FunctionType))
    return next((dict(method.__globals__) for method in methods), {})


def _attributes(kind: type, environment: Any) -> dict[str, Any]:
    """Return the values of the class's and the object's attributes."""
    if hasattr(kind, "__slots__") or not hasattr(environment, "__dict__"):
        refuse("a class with __slots__")
    if any(name in vars(kind) for name in ("__getattr__", "__setattr__", "__getattribute__")):
        refuse("a class that says what its attributes are")
    inherited: dict[str, Any] = {
        name: value
        for name, value in vars(kind).items()
        if not name.startswith("__") and not isinstance(value, _FUNCTIONS)
    }
    return inherited | dict(vars(environment))


_FUNCTIONS = (FunctionType, staticmethod, classmethod, property)


def _look(program: Program) -> None:
    """Find out which attributes are assigned to, and what changes in place."""
    for definition in reached(program):
        for node in ast.walk(definition.node):
            if isinstance(node, ast.AugAssign):
                program.changes = True
                _note_stored(program, node.target)
            elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
                program.changes = True
                _note_stored(program, node)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                program.assigned.add(mangled(node.attr, program.name))
            elif isinstance(node, ast.Attribute) and node.attr in CHANGING:
                program.changes = True
                _note_stored(program, node.value)


def _check_shared(program: Program) -> None:
    """Refuse attributes that share something with one that is changed in place."""
    changed = {part for name in program.stored for part in mutables(program.attributes.get(name))}
    for name in program.own - program.stored:
        if changed & set(mutables(program.attributes[name])):
            refuse(f"attribute {name} shares what is changed in place with another")
    parts = [part for name in program.stored for part in mutables(program.attributes.get(name))]
    if len(parts) > len(changed) or changed & {
        part for name in program.inherited for part in mutables(program.attributes[name])
    }:
        refuse("attributes that are changed in place share something")


def _note_stored(program: Program, target: ast.AST) -> None:
    """Remember an attribute whose elements change."""
    while isinstance(target, ast.Subscript):
        target = target.value
    if isinstance(target, ast.Attribute):
        program.stored.add(mangled(target.attr, program.name))
        program.assigned.add(mangled(target.attr, program.name))
