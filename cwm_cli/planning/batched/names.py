"""What a name means inside a function of a program."""

import ast
import builtins
import math
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np

from cwm_cli.planning.batched.analysis import Definition, Program, bound
from cwm_cli.planning.batched.lanes import UNDEFINED, refuse

_MODULES = {"math": math, "numpy": np}


class Names:
    """Tells variables from modules, built-ins and what the program defines."""

    def __init__(self, program: Program, definition: Definition) -> None:
        self._program = program
        self._node = definition.node
        self._owner = definition.owner
        self._imported = dict(_imported(definition.node))
        arguments = (node.arg for node in ast.walk(definition.node) if isinstance(node, ast.arg))
        inner = (
            node.name
            for node in ast.walk(definition.node)
            if isinstance(node, ast.FunctionDef) and node is not definition.node
        )
        self.locals = {*bound(definition.node), *arguments, *inner}
        if self._owner in set(bound(definition.node)):
            refuse(f"line {definition.node.lineno}: {self._owner} is assigned to")

    def is_local(self, name: str) -> bool:
        """Whether a name is a variable of the function."""
        return name in self.locals

    def is_owner(self, node: ast.expr) -> bool:
        """Whether an expression is the object itself, or its class."""
        if not isinstance(node, ast.Name):
            return False
        return node.id == self._owner or (
            node.id == self._program.name and not self.is_local(node.id)
        )

    def is_object(self, node: ast.expr) -> bool:
        """Whether an expression is the object itself."""
        return isinstance(node, ast.Name) and node.id == self._owner

    def definition(self, node: ast.expr) -> Definition | None:
        """Return the definition of a function or method that an expression means."""
        if isinstance(node, ast.Name) and not self.is_local(node.id):
            return self._program.functions.get(node.id)
        if isinstance(node, ast.Attribute) and self.is_owner(node.value):
            return self._program.methods.get(node.attr)
        return None

    def value(self, node: ast.expr) -> Any:
        """Return the function, type or constant that an expression means everywhere."""
        if isinstance(node, ast.Name) and not self.is_local(node.id):
            if node.id in self._imported:
                return self._imported[node.id]
            names = self._program.names
            return names.get(node.id, getattr(builtins, node.id, UNDEFINED))
        if isinstance(node, ast.Attribute):
            module = self.value(node.value)
            if isinstance(module, ModuleType):
                return getattr(module, node.attr, UNDEFINED)
        return UNDEFINED

    def is_function_of_numpy(self, value: Any) -> bool:
        """Whether something is a function or type of numpy or `math`."""
        module = getattr(value, "__module__", None) or ""
        return isinstance(value, np.ufunc) or module.partition(".")[0] in _MODULES

    def used_as_values(self) -> Iterator[Definition]:
        """Yield functions that are passed on instead of called."""
        called = {id(node.func) for node in ast.walk(self._node) if isinstance(node, ast.Call)}
        for node in ast.walk(self._node):
            named = isinstance(node, ast.Name | ast.Attribute) and id(node) not in called
            definition = self.definition(node) if named else None  # type: ignore[arg-type]
            if definition is not None and definition.decorator != "property":
                yield definition


def _imported(node: ast.AST) -> Iterator[tuple[str, Any]]:
    """Yield what a function imports."""
    for part in ast.walk(node):
        if isinstance(part, ast.Import):
            for alias in part.names:
                if alias.name not in _MODULES:
                    refuse(f"line {part.lineno}: module {alias.name}")
                yield alias.asname or alias.name, _MODULES[alias.name]
        elif isinstance(part, ast.ImportFrom):
            if part.module not in _MODULES:
                refuse(f"line {part.lineno}: module {part.module}")
            for alias in part.names:
                value = getattr(_MODULES[part.module], alias.name, UNDEFINED)
                yield alias.asname or alias.name, value
