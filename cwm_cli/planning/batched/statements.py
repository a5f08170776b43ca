"""Statements of a program, written so that they are done in the lanes that are alive.

Where all lanes are for sure (no mask), they are written as they are. A block
for some lanes is skipped when there are none. A `return`, `break` or
`continue` takes its lanes out of the mask; what follows is for the rest.
"""

import ast
from collections.abc import Callable
from typing import Any

from cwm_cli.planning.batched.assignments import Assignments
from cwm_cli.planning.batched.expressions import Expressions
from cwm_cli.planning.batched.frame import (
    DEAD,
    PREFIX,
    Frame,
    assign,
    cannot,
    lanes,
    load,
    unless_false,
)
from cwm_cli.planning.batched.loops import jumps, write_for, write_while

Inner = Callable[["Statements", ast.FunctionDef], list[ast.stmt]]
"""Writes a function within a function."""


class Statements:
    """Writes statements of one function."""

    def __init__(self, frame: Frame, inner: Inner) -> None:
        self.frame = frame
        self.write = Expressions(frame)
        self.assignments = Assignments(frame, self.write)
        self.loops: list[tuple[str, str]] = []
        self.returns = False
        self._writers: dict[type[ast.stmt], Callable[[Any], list[ast.stmt]]] = {
            ast.Expr: self._expression,
            ast.Assign: self.assignments.assignment,
            ast.AnnAssign: self.assignments.annotated,
            ast.AugAssign: self.assignments.augmented,
            ast.If: self._if,
            ast.For: lambda node: write_for(self, node),
            ast.While: lambda node: write_while(self, node),
            ast.Return: self._return,
            ast.Break: lambda node: self._leave(0),
            ast.Continue: lambda node: self._leave(1),
            ast.Assert: self._assert,
            ast.Raise: self._raise,
            ast.Pass: lambda node: [],
            ast.Import: lambda node: [],
            ast.ImportFrom: lambda node: [],
            ast.FunctionDef: lambda node: inner(self, node),
        }

    def block(self, nodes: list[ast.stmt]) -> list[ast.stmt]:
        """Write statements one after the other."""
        written: list[ast.stmt] = []
        for number, node in enumerate(nodes):
            mask = self.frame.mask
            written += self.statement(node)
            if self.frame.mask == DEAD:
                break
            if self.frame.mask is not None and self.frame.mask != mask:
                rest = self.under(self.frame.mask, nodes[number + 1 :])
                written += unless_false(self.frame.mask, rest)
                break
        return written

    def under(self, mask: str, nodes: list[ast.stmt]) -> list[ast.stmt]:
        """Write statements for the lanes of a mask, which is left as it is after them."""
        self.frame.mask = mask
        written = self.block(nodes)
        if self.frame.mask != mask:
            written.append(assign(mask, self.frame.alive() if self.frame.mask != DEAD else _FALSE))
        self.frame.mask = mask
        return written

    def statement(self, node: ast.stmt) -> list[ast.stmt]:
        """Write one statement."""
        write = self._writers.get(type(node))
        if write is None:
            cannot(node, f"a {type(node).__name__.lower()} statement")
        return [ast.copy_location(written, node) for written in write(node)]

    def _expression(self, node: ast.Expr) -> list[ast.stmt]:
        if isinstance(node.value, ast.Constant):
            return []
        return [ast.Expr(self.write(node.value))]

    def _if(self, node: ast.If) -> list[ast.stmt]:
        entry, new = self.frame.mask, self.frame.new
        condition, yes, no = new("if"), new("m"), new("m")
        written: list[ast.stmt] = [
            assign(condition, lanes("settled", self.write.truth(node.test))),
            assign(yes, self._part("meet", condition, entry)),
        ]
        written += unless_false(yes, self.under(yes, node.body))
        leaves = jumps(node)
        if node.orelse or leaves:
            self.frame.mask = entry
            # the lanes of `yes` may have gone, those of the condition have not
            written.append(assign(no, self._part("without", condition, entry)))
            written += unless_false(no, self.under(no, node.orelse))
        self.frame.mask = entry
        if leaves:
            after = new("m")
            written.append(assign(after, lanes("either", load(yes), load(no))))
            self.frame.mask = after
        return written

    def _part(self, function: str, condition: str, entry: str | None) -> ast.expr:
        """Write which of the lanes so far a condition is true or false in."""
        if entry is None:
            return load(condition) if function == "meet" else lanes("inverse", load(condition))
        return lanes("settled", lanes(function, load(entry), load(condition)))

    def _return(self, node: ast.Return) -> list[ast.stmt]:
        value = self.write.raw(node.value) if node.value else ast.Constant(None)
        mask, self.frame.mask = self.frame.alive(), DEAD
        if isinstance(mask, ast.Constant):
            return [ast.Return(value)]
        self.returns = True
        result = f"{PREFIX}result"
        return [assign(result, self._chosen_result(mask, value, load(result)))]

    def _chosen_result(self, mask: ast.expr, new: ast.expr, old: ast.expr) -> ast.expr:
        """Write a choice of results; nobody changes what `step` has returned."""
        final = self.frame.definition.name == "step" and self.frame.definition.is_method
        return lanes("select", mask, new, old) if final else self.frame.choose(mask, new, old)

    def end(self) -> list[ast.stmt]:
        """Write the end of the function."""
        if not self.returns:
            return []
        result = f"{PREFIX}result"
        written: list[ast.stmt] = []
        if self.frame.mask != DEAD:
            none = self._chosen_result(self.frame.alive(), ast.Constant(None), load(result))
            mask = self.frame.mask
            body: list[ast.stmt] = [assign(result, none)]
            written += body if mask is None else unless_false(mask, body)
        return [*written, ast.Return(load(result))]

    def _leave(self, which: int) -> list[ast.stmt]:
        name = self.loops[-1][which]
        mask, self.frame.mask = self.frame.alive(), DEAD
        return [assign(name, lanes("either", load(name), mask))]

    def _assert(self, node: ast.Assert) -> list[ast.stmt]:
        reason = ast.Constant("an assertion fails")
        return [ast.Expr(lanes("demand", self.write.truth(node.test), self.frame.alive(), reason))]

    def _raise(self, node: ast.Raise) -> list[ast.stmt]:
        self.frame.mask = DEAD
        return [ast.Expr(lanes("refuse", ast.Constant("an exception is raised")))]


_FALSE = ast.Constant(False)
