"""Calls in a program: of its own functions, of those that it imports, and of methods of values."""

import ast
from collections.abc import Callable
from typing import Any

from cwm_cli.planning.batched import calls, methods
from cwm_cli.planning.batched.analysis import Definition, reached_from
from cwm_cli.planning.batched.frame import PREFIX, call, cannot, load
from cwm_cli.planning.batched.lanes import UNDEFINED
from cwm_cli.planning.batched.writing import Writer

_EAGER = (any, all)


def write_call(write: Writer, node: ast.Call) -> ast.expr:
    """Write a call."""
    if any(keyword.arg in (None, "out", "where", "mask") for keyword in node.keywords):
        cannot(node, "** or out= or where= in a call")
    definition = write.frame.names.definition(node.func)
    if definition is not None:
        return _call_of_program(write, node, definition)
    value = write.frame.names.value(node.func)
    if value is not UNDEFINED:
        return _call_of_library(write, node, value)
    if isinstance(node.func, ast.Attribute):
        return _call_of_method(write, node, node.func)
    function = write.runtime(calls.call)
    return _with_keywords(write, node, call(function, write(node.func), write.frame.alive()))


def _call_of_program(write: Writer, node: ast.Call, definition: Definition) -> ast.expr:
    """Write a call of a function or method of the program."""
    frame = write.frame
    masked = frame.mask is not None
    first = [frame.alive()] if masked else []
    if isinstance(node.func, ast.Attribute) and definition.owner is not None:
        if frame.names.is_object(node.func.value) or definition.decorator == "classmethod":
            first.append(write.owner(node.func.value))
        else:
            cannot(node, "a method called on the class")
    if any(isinstance(argument, ast.Starred) for argument in node.args):
        cannot(node, "* in a call")
    name = frame.shared.function(definition, masked=masked)
    return _with_keywords(write, node, call(name, *first), write.raw)


def _call_of_library(write: Writer, node: ast.Call, value: Any) -> ast.expr:
    """Write a call of a function of Python, numpy or `math`."""
    if value is isinstance and len(node.args) == 2:
        types = _types(write, node.args[1])
        return call(write.runtime(calls.FUNCTIONS[isinstance]), write.raw(node.args[0]), types)
    if any(value is function for function in _EAGER):
        _check_eager(write, node)
    function = _standing_for(value)
    if function is None:
        cannot(node, f"a call of {ast.unparse(node.func)}")
    written = _with_keywords(write, node, call(_named(write, node, function)))
    if function in calls.MASKED and write.frame.mask is not None:
        written.keywords.append(ast.keyword("mask", write.frame.alive()))
    return _widened(write, node, written) if _makes_array(function, node) else written


def _call_of_method(write: Writer, node: ast.Call, called: ast.Attribute) -> ast.expr:
    """Write a call of a method of a value."""
    function = write.runtime(methods.method)
    alive = write.frame.alive()
    start = call(function, write(called.value), ast.Constant(called.attr), alive)
    written = _with_keywords(write, node, start)
    return _widened(write, node, written) if called.attr == "copy" else written


def _with_keywords(
    write: Writer,
    node: ast.Call,
    written: ast.Call,
    one: Callable[[ast.expr], ast.expr] | None = None,
) -> ast.Call:
    """Add the arguments of a call to one that begins."""
    one = one or (lambda argument: _argument(write, node, argument))
    written.args += map(one, node.args)
    written.keywords += [ast.keyword(each.arg, one(each.value)) for each in node.keywords]
    return written


def _argument(write: Writer, node: ast.Call, argument: ast.expr) -> ast.expr:
    """Write an argument; where `map` takes a function, what stands for it."""
    if write.frame.names.value(node.func) is map and argument is node.args[0]:
        function = _standing_for(write.frame.names.value(argument))
        if function is None:
            cannot(node, f"a map of {ast.unparse(argument)}")
        return write.runtime(function)
    return write(argument)


def _standing_for(value: Any) -> Callable[..., Any] | None:
    """Return what stands for a function of a library."""
    try:
        return calls.FUNCTIONS.get(value)
    except TypeError:  # it cannot even be hashed
        return None


def _named(write: Writer, node: ast.Call, function: Callable[..., Any]) -> ast.expr:
    """Return a name for a function that says what it stands for."""
    word = ast.unparse(node.func).replace(".", "_")
    return write.frame.shared.add(function, word if word.isidentifier() else "function")


def _types(write: Writer, node: ast.expr) -> ast.expr:
    """Write the types that `isinstance` is asked for."""
    if isinstance(node, ast.Tuple):
        return ast.Tuple([_types(write, part) for part in node.elts], ast.Load())
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return ast.Tuple([_types(write, node.left), _types(write, node.right)], ast.Load())
    value = write.frame.names.value(node)
    if not isinstance(value, type):
        cannot(node, "isinstance with something that is no type")
    return write.frame.shared.add(value, f"type_{value.__name__}")


def _check_eager(write: Writer, node: ast.Call) -> None:
    """Refuse what `any` or `all` may leave undone, where that would change something."""
    for part in ast.walk(node):
        definition = write.frame.names.definition(part) if isinstance(part, ast.expr) else None
        if definition and any(
            _stores(definition.node)
            for definition in reached_from(write.frame.shared.program, [definition.name])
        ):
            cannot(node, "any or all of calls that change something")


def _stores(node: ast.AST) -> bool:
    """Whether a function assigns to attributes or elements."""
    return any(
        isinstance(part, ast.Attribute | ast.Subscript) and isinstance(part.ctx, ast.Store)
        for part in ast.walk(node)
    )


def _makes_array(function: Callable[..., Any], node: ast.Call) -> bool:
    """Whether a call makes a new array."""
    displays = (ast.List, ast.Tuple, ast.ListComp)
    shown = bool(node.args) and isinstance(node.args[0], displays)
    return function in calls.CREATED or (function in calls.CONVERTING and shown)


def _widened(write: Writer, node: ast.Call, written: ast.Call) -> ast.expr:
    """Write a new array so that lanes can be changed, where the program changes arrays."""
    if not write.frame.shared.program.changes:
        return written
    widen = ast.Attribute(load(f"{PREFIX}width"), "widened", ast.Load())
    return call(widen, ast.copy_location(written, node))
