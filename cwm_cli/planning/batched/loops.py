"""Loops of a program: lanes leave them one by one, and they end when no lane is left."""

import ast
from typing import Protocol

from cwm_cli.planning.batched import calls
from cwm_cli.planning.batched.assignments import Assignments
from cwm_cli.planning.batched.expressions import Expressions
from cwm_cli.planning.batched.frame import Frame, assign, call, lanes, load, unless_false

_NOBODY = ast.Constant(False)
_EVERYBODY = ast.Constant(True)


class Blocks(Protocol):
    """Writes the statements within a loop; `loops` are the lanes that left and went on early."""

    frame: Frame
    write: Expressions
    assignments: Assignments
    loops: list[tuple[str, str]]

    def block(self, nodes: list[ast.stmt]) -> list[ast.stmt]:
        """Write statements one after the other."""

    def under(self, mask: str, nodes: list[ast.stmt]) -> list[ast.stmt]:
        """Write statements for the lanes of a mask, which is left as it is after them."""


def write_for(blocks: Blocks, node: ast.For) -> list[ast.stmt]:
    """Write a `for` loop."""
    over = blocks.write.iterated(node.iter)
    element = blocks.frame.new("t")
    if not _leaves(node):
        body = blocks.assignments.store(node.target, load(element)) + blocks.block(node.body)
        return [_for(element, over, body), *blocks.block(node.orelse)]
    entry, mask, gone, on = _begin(blocks)
    blocks.frame.mask = mask
    body = [assign(on, _NOBODY), *blocks.assignments.store(node.target, load(element))]
    body += _round(blocks, node, (mask, gone, on))
    written = [
        assign(mask, load(entry) if entry else _EVERYBODY),
        assign(gone, _NOBODY),
        _for(element, over, body),
    ]
    written += unless_false(mask, blocks.under(mask, node.orelse))
    return written + _end(blocks, node, entry, (mask, gone))


def write_while(blocks: Blocks, node: ast.While) -> list[ast.stmt]:
    """Write a `while` loop; a lane leaves it when its condition is false."""
    entry, mask, gone, on = _begin(blocks)
    condition, done, count = (blocks.frame.new(word) for word in ("if", "done", "count"))
    blocks.frame.mask = mask
    body: list[ast.stmt] = [
        assign(on, _NOBODY),
        assign(condition, blocks.write.truth(node.test)),
        assign(done, lanes("either", load(done), lanes("without", load(mask), load(condition)))),
        assign(mask, lanes("meet", load(mask), load(condition))),
        ast.If(lanes("none_left", load(mask)), [ast.Break()], []),
        assign(mask, lanes("settled", load(mask))),
        assign(count, call(blocks.write.runtime(calls.counted), load(count))),
    ]
    body += _round(blocks, node, (mask, gone, on))
    written: list[ast.stmt] = [
        assign(mask, load(entry) if entry else _EVERYBODY),
        assign(gone, _NOBODY),
        assign(done, _NOBODY),
        assign(count, ast.Constant(0)),
        ast.While(ast.Constant(True), body, []),
    ]
    written += unless_false(done, blocks.under(done, node.orelse))
    return written + _end(blocks, node, entry, (done, gone))


def jumps(node: ast.stmt) -> bool:
    """Whether control may leave a statement other than by its end."""
    if isinstance(node, ast.FunctionDef):
        return False
    if isinstance(node, ast.For | ast.While):  # `break` after `else` is one of the loop around it
        returns = any(isinstance(part, ast.Return) for part in ast.walk(node))
        return returns or any(map(jumps, node.orelse))
    if isinstance(node, ast.If):
        return any(map(jumps, (*node.body, *node.orelse)))
    return isinstance(node, ast.Return | ast.Break | ast.Continue)


def _begin(blocks: Blocks) -> tuple[str | None, str, str, str]:
    """Return the lanes before a loop, and names for those in it, those out and those that go on."""
    mask, gone, on = (blocks.frame.new(word) for word in ("m", "gone", "on"))
    return blocks.frame.mask, mask, gone, on


def _round(
    blocks: Blocks, node: ast.For | ast.While, masks: tuple[str, str, str]
) -> list[ast.stmt]:
    """Write the body of a loop, after which lanes that went on early are back."""
    mask, gone, on = masks
    blocks.loops.append((gone, on))
    body = blocks.under(mask, node.body)
    blocks.loops.pop()
    back = lanes("settled", lanes("either", load(mask), load(on)))
    over = ast.Compare(load(mask), [ast.Is()], [_NOBODY])
    return [*body, assign(mask, back), ast.If(over, [ast.Break()], [])]


def _end(
    blocks: Blocks, node: ast.For | ast.While, entry: str | None, masks: tuple[str, str]
) -> list[ast.stmt]:
    """Write which lanes are alive after a loop: all, unless it is left otherwise."""
    if not jumps(node):
        blocks.frame.mask = entry
        return []
    after = blocks.frame.new("m")
    blocks.frame.mask = after
    return [assign(after, lanes("either", *map(load, masks)))]


def _for(element: str, over: ast.expr, body: list[ast.stmt]) -> ast.For:
    """Write a `for` loop."""
    return ast.For(ast.Name(element, ast.Store()), over, body, [])


def _leaves(node: ast.For) -> bool:
    """Whether lanes may leave a loop, or a round of it, early."""
    jumps = (ast.Break, ast.Continue, ast.Return)
    return any(isinstance(part, jumps) for part in ast.walk(node))
