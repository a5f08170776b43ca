"""Linear algebra on many small matrices at once; the last axis is the lane."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np

from cwm_cli.planning.batched.creation import lane_array
from cwm_cli.planning.batched.lanes import Value, has_lanes, kind, lanes_of, refuse


def product(left: Value, right: Value) -> Value:
    """Return the product of vectors and matrices that `@` and np.dot return."""
    left, right = lane_array(left), lane_array(right)
    if kind(left) not in "iuf" or kind(right) not in "iuf":
        refuse("a product of things that are no numbers")
    ranks = (left.ndim - 1 if has_lanes(left) else 0, right.ndim - 1 if has_lanes(right) else 0)
    if 0 in ranks:
        return left * right
    if ranks == (1, 1):
        _check(left.shape[0] == right.shape[0])
        return (left * right).sum(0)
    if ranks == (2, 1):
        _check(left.shape[1] == right.shape[0])
        return left[..., 0] @ right if left.shape[-1] == 1 else (left * right).sum(1)
    if ranks == (1, 2):
        _check(left.shape[0] == right.shape[0])
        return (left[:, None] * right).sum(0)
    _check(ranks == (2, 2) and left.shape[1] == right.shape[0])
    return (left[:, :, None] * right[None]).sum(1)


def matrix_product(left: Value, right: Value) -> Value:
    """Return what `@` returns, which takes no numbers."""
    left, right = lane_array(left), lane_array(right)
    if not all(has_lanes(value) and value.ndim > 1 for value in (left, right)):
        refuse("a matrix product with a number")
    return product(left, right)


def norm(value: Value, ord: Any = None, axis: int | None = None) -> Value:
    """Return the length of vectors."""
    value = lane_array(value)
    if not has_lanes(value):
        return np.linalg.norm(value)
    if value.ndim == 1:
        return np.abs(value).astype(float)
    if value.ndim > 2 or ord not in (None, 2) or axis not in (None, 0, -1):
        refuse("such a norm")
    return np.sqrt(np.square(value).sum(0))


def solve(matrix: Value, right: Value) -> Value:
    """Solve linear equations; two by Cramer's rule, which is far faster here."""
    matrix, right = lane_array(matrix), lane_array(right)
    size = _order(matrix)
    _check(right.ndim == 2 and len(right) == size)
    if size == 2:
        (a, b), (c, d) = matrix
        determinant = a * d - b * c
        return _stacked(
            [
                (d * right[0] - b * right[1]) / determinant,
                (a * right[1] - c * right[0]) / determinant,
            ]
        )
    return (inverse(matrix) * right).sum(1)


def inverse(matrix: Value) -> Value:
    """Invert matrices."""
    matrix = lane_array(matrix)
    if _order(matrix) == 2:
        (a, b), (c, d) = matrix
        determinant = a * d - b * c
        rows = [_stacked([d, -b]), _stacked([-c, a])]
        return np.concatenate([row[None] for row in rows]) / determinant
    return np.moveaxis(np.linalg.inv(np.moveaxis(matrix, -1, 0)), 0, -1)


def determinant(matrix: Value) -> Value:
    """Return determinants."""
    matrix = lane_array(matrix)
    if _order(matrix) == 2:
        return matrix[0, 0] * matrix[1, 1] - matrix[0, 1] * matrix[1, 0]
    return np.linalg.det(np.moveaxis(matrix, -1, 0))


def cross(left: Value, right: Value) -> Value:
    """Return the cross product of two vectors in space."""
    left, right = lane_array(left), lane_array(right)
    _check(left.ndim == right.ndim == 2 and len(left) == len(right) == 3)
    turns = [*pairwise((1, 2, 0, 1))]
    return _stacked([left[i] * right[j] - left[j] * right[i] for i, j in turns])


def outer(left: Value, right: Value) -> Value:
    """Return all products of two elements."""
    left, right = lane_array(left), lane_array(right)
    _check(left.ndim == right.ndim == 2)
    return left[:, None] * right


def _order(matrix: np.ndarray) -> int:
    """Return the number of rows of square matrices."""
    _check(has_lanes(matrix) and matrix.ndim == 3 and matrix.shape[0] == matrix.shape[1])
    return int(matrix.shape[0])


def _check(holds: bool) -> None:
    """Refuse arrays of shapes that do not go together."""
    if not holds:
        refuse("linear algebra with arrays of such shapes")


def _stacked(parts: list[np.ndarray]) -> np.ndarray:
    """Return numbers as vectors."""
    count = lanes_of(parts)
    same = [part if part.shape[-1] == count else np.repeat(part, count, -1) for part in parts]
    return np.concatenate([part[None] for part in same])


FUNCTIONS: dict[Any, Callable[..., Value]] = {
    np.dot: product,
    np.inner: product,
    np.matmul: matrix_product,
    np.linalg.norm: norm,
    np.linalg.solve: solve,
    np.linalg.inv: inverse,
    np.linalg.det: determinant,
    np.cross: cross,
    np.outer: outer,
}
"""What stands for functions of numpy."""
