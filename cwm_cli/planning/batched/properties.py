"""Properties of expressions, which hold wherever what they are made of has them."""

import ast
from typing import Any

import numpy as np

from cwm_cli.planning.batched.proof import Scope

_METHODS = "copy sum mean prod max min astype reshape flatten ravel dot clip"
_TRUTHS = """
isnan isfinite isinf any all logical_and logical_or logical_not logical_xor array_equal allclose
isclose less less_equal greater greater_equal equal not_equal isscalar bool_
"""
_ARRAYS = """
array asarray zeros ones full copy concatenate hstack append stack clip where maximum minimum
atleast_1d ravel reshape squeeze round
"""
_OF_NUMBERS, _OF_TRUTHS, _OF_ARRAYS = map(frozenset, map(str.split, (_METHODS, _TRUTHS, _ARRAYS)))


def numeric(scope: Scope, node: ast.expr) -> bool:
    """Whether an expression is a number or an array of numbers, and no truth value."""
    if isinstance(node, ast.Name | ast.Attribute):
        return _numeric_name(scope, node)
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.USub | ast.UAdd) and numeric(scope, node.operand)
    if isinstance(node, ast.Call):
        return _numeric_call(scope, node)
    if isinstance(node, ast.Constant):
        return is_number(node.value)
    parts = _parts(node)
    return bool(parts) and all(numeric(scope, part) for part in parts)


def never_none(scope: Scope, node: ast.expr) -> bool:
    """Whether an expression is not None in some lanes and something else in others."""
    if isinstance(node, ast.Name | ast.Attribute):
        fact = scope.fact(node)
        return fact is None or scope.believes(fact)
    if isinstance(node, ast.IfExp):
        return never_none(scope, node.body) and never_none(scope, node.orelse)
    if isinstance(node, ast.BoolOp):
        return all(never_none(scope, part) for part in node.values)
    if isinstance(node, ast.Call):
        return _call_is_never_none(scope, node)
    return not isinstance(node, ast.Constant) or node.value is not None


def is_number(value: Any) -> bool:
    """Whether a value is a number or an array of them."""
    if isinstance(value, np.ndarray | np.generic):
        return value.dtype.kind in "iuf"
    return type(value) in (int, float)


def starts_as_number(_: str, value: Any) -> bool:
    """Whether an attribute starts as a number, or as None, which no operator takes."""
    return value is None or is_number(value)


def _parts(node: ast.expr) -> tuple[ast.expr, ...]:
    """Return what an expression has the properties of."""
    if isinstance(node, ast.BinOp):
        return node.left, node.right
    if isinstance(node, ast.IfExp):
        return node.body, node.orelse
    return (node.value,) if isinstance(node, ast.Subscript) else ()


def _numeric_name(scope: Scope, node: ast.Name | ast.Attribute) -> bool:
    """Whether a variable, attribute or constant is made of numbers."""
    if (fact := scope.fact(node)) is not None:
        return scope.believes(fact)
    return is_number(scope.names.value(node))


def _numeric_call(scope: Scope, node: ast.Call) -> bool:
    """Whether a call returns numbers."""
    if (result := scope.result(node)) is not None:
        return scope.believes(result)
    called = scope.names.value(node.func)
    if scope.names.is_function_of_numpy(called):
        name = getattr(called, "__name__", "")
        if name in _OF_ARRAYS:
            return all(_numeric_part(scope, part) for part in node.args)
        return name not in _OF_TRUTHS
    if any(called is function for function in (int, float, len)):
        return True
    if any(called is function for function in (abs, min, max, round, sum)):
        return all(numeric(scope, part) for part in node.args)
    return isinstance(node.func, ast.Attribute) and (
        node.func.attr in _OF_NUMBERS and numeric(scope, node.func.value)
    )


def _numeric_part(scope: Scope, node: ast.expr) -> bool:
    """Whether an array made of something is one of numbers."""
    if isinstance(node, ast.List | ast.Tuple):
        return all(_numeric_part(scope, part) for part in node.elts)
    return numeric(scope, node)


def _call_is_never_none(scope: Scope, node: ast.Call) -> bool:
    """Whether a call does not return None in some lanes."""
    if (result := scope.result(node)) is not None:
        return scope.believes(result)
    found = isinstance(node.func, ast.Attribute) and node.func.attr == "get"
    return not found or len(node.args) > 1
