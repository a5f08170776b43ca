"""What the parts that write expressions know of each other."""

import ast
from collections.abc import Callable
from typing import Any, Protocol

from cwm_cli.planning.batched.frame import Frame


class Writer(Protocol):
    """Writes the expressions within an expression."""

    frame: Frame

    def __call__(self, node: ast.expr) -> ast.expr:
        """Write an expression as a value."""

    def raw(self, node: ast.expr) -> ast.expr:
        """Write an expression that may be None."""

    def truth(self, node: ast.expr) -> ast.expr:
        """Write an expression as a mask."""

    def runtime(self, function: Callable[..., Any]) -> ast.expr:
        """Return the name of a function that generated code uses."""

    def iterated(self, node: ast.expr) -> ast.expr:
        """Write what a loop goes over."""

    def unpacked(self, value: ast.expr, count: int) -> ast.expr:
        """Write what is assigned to so many targets."""

    def is_known(self, *nodes: ast.expr) -> bool:
        """Whether expressions are numbers or arrays of numbers for sure."""

    def lazy(self, node: ast.expr) -> ast.expr:
        """Write an expression as a function of the lanes that need it."""

    def lazy_truth(self, node: ast.expr) -> ast.expr:
        """Write a condition as a function of the lanes that need it."""

    def lazy_after(self, left: ast.expr, op: ast.cmpop, right: ast.expr) -> ast.expr:
        """Write a comparison of what is written already, for the lanes that need it."""

    def owner(self, node: ast.expr) -> ast.expr:
        """Write the object, or the class, that an attribute belongs to."""
