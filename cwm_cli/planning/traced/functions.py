"""What numpy's functions do with arrays of expressions."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from cwm_cli.planning.model import Unbatched
from cwm_cli.planning.traced.symbols import (
    Symbols,
    arranged,
    graph_of,
    nodes,
    settled,
    truths,
)


def _rearranges(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return what does to one array of nodes what a function does to an array."""

    def handler(array: Symbols, *args: Any, **options: Any) -> Any:
        result = function(nodes(array), *args, **options)
        return settled(result, array.graph, array.dtype)

    return handler


def _combines(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return what does to several arrays of nodes what a function does to arrays."""

    def handler(arrays: Sequence[Any], *args: Any, **options: Any) -> Any:
        graph, dtype = graph_of(arrays), np.result_type(*arrays)
        result = function([nodes(array, graph) for array in arrays], *args, **options)
        return settled(result, graph, dtype)

    return handler


def concatenate(
    arrays: Sequence[Any], axis: int = 0, *, dtype: Any = None, casting: str = "same_kind"
) -> Any:
    """Put arrays one after the other."""
    graph, dtype = graph_of(arrays), np.dtype(dtype or np.result_type(*arrays))
    parts = [nodes(converted(array, dtype), graph) for array in arrays]
    return settled(np.concatenate(parts, axis), graph, dtype)


def converted(array: Any, dtype: np.dtype[Any]) -> Any:
    """Convert values to another type."""
    return array if array.dtype == dtype else array.astype(dtype)


def take(array: Any, places: Any, axis: int | None = None, **_: Any) -> Any:
    """Look up values that are known at places that are not."""
    if not isinstance(places, Symbols) or isinstance(array, Symbols):
        raise Unbatched("it takes elements of an array of values")
    columns = array.reshape(array.shape[0], -1) if axis == 0 else array.reshape(-1, 1)
    found = [
        arranged(lambda place, own=column: places.graph.index(own, place), array.dtype, places)
        for column in columns.T.tolist()
    ]
    if array.ndim == 1:
        return found[0]
    return np.moveaxis(np.stack(found).reshape(*array.shape[1:], *places.shape), -1, 0)


def where(condition: Any, chosen: Any, other: Any) -> Any:
    """Choose element by element."""
    if isinstance(condition, np.ndarray):
        condition = truths(condition)
    graph = graph_of((condition, chosen, other))
    return arranged(graph.select, np.result_type(chosen, other), condition, chosen, other)


def result_type(*values: Any) -> np.dtype[Any]:
    """Return the type that numpy would compute with."""
    return np.result_type(*[getattr(value, "dtype", value) for value in values])


def filled(value: float) -> Callable[..., Any]:
    """Return what makes an array of one value in the shape of another."""

    def handler(array: Any, dtype: Any = None, **_: Any) -> Any:
        return np.full(array.shape, value, dtype or array.dtype)

    return handler


def full_like(array: Any, value: Any, dtype: Any = None, **_: Any) -> Any:
    """Make an array of one value in the shape of another."""
    if isinstance(value, Symbols):
        return np.broadcast_to(value, array.shape)
    return np.full(array.shape, value, dtype or array.dtype)


def argument(better: np.ufunc) -> Callable[..., Any]:
    """Return what finds the place of the first best element along an axis."""

    def handler(array: Any, axis: int | None = None, **_: Any) -> Any:
        if axis is None:
            raise Unbatched("it looks for an element of a flattened array")
        best, *others = _parts(array, axis)
        place: Any = 0
        for number, part in enumerate(others, 1):
            found = better(part, best)
            best, place = np.where(found, part, best), np.where(found, number, place)
        return place

    return handler


def norm(array: Any, ord: Any = None, axis: Any = None, **options: Any) -> Any:
    """Return the Euclidean length."""
    if ord not in (None, 2) or options:
        raise Unbatched("it calls norm in an unusual way")
    return np.sqrt(np.sum(array * array, axis=axis))


def mean(array: Any, axis: Any = None, **options: Any) -> Any:
    """Return the mean along axes."""
    axes = range(array.ndim) if axis is None else np.atleast_1d(axis).tolist()
    count = int(np.prod([array.shape[number] for number in axes]))
    return np.sum(array, axis=axis, **options) / count


def variance(array: Any, axis: Any = None, ddof: int = 0, **options: Any) -> Any:
    """Return the variance along axes."""
    spread = array - mean(array, axis, keepdims=True)
    if ddof:
        raise Unbatched("it calls var in an unusual way")
    return mean(spread * spread, axis, **options)


def rounded(array: Any, decimals: int = 0, **_: Any) -> Any:
    """Round to even."""
    if not decimals:
        return np.rint(array)
    return np.rint(array * 10.0**decimals) / 10.0**decimals


def nan_to_num(array: Any, **options: Any) -> Any:
    """Replace what is not a number, and infinities."""
    if options:
        raise Unbatched("it calls nan_to_num in an unusual way")
    number = np.where(np.isnan(array), 0.0, array)
    largest = np.finfo(float).max
    return np.where(np.isfinite(number), number, np.copysign(largest, number))


def isclose(one: Any, other: Any, rtol: float = 1e-5, atol: float = 1e-8, **_: Any) -> Any:
    """Whether numbers are close."""
    return np.absolute(one - other) <= atol + rtol * np.absolute(other)


def einsum(subscripts: str, *arrays: Any) -> Any:
    """Multiply and add along named axes; an ellipsis at the end stands for the lanes."""
    inputs, output = subscripts.replace("...", "").split("->")
    terms = inputs.split(",")
    added = sorted(set("".join(terms)) - set(output))
    product: Any = 1
    for term, array in zip(terms, arrays, strict=True):
        product = product * _spread(array, term, output + "".join(added))
    axes = tuple(range(len(output), len(output) + len(added)))
    return np.sum(product, axis=axes) if axes else product


def _spread(array: Any, names: str, all_names: str) -> Any:
    """Give an array an axis for each name, of length 1 where it has none."""
    order = [names.index(name) for name in all_names if name in names]
    moved = np.transpose(array, [*order, *range(len(names), array.ndim)])
    return moved[tuple(slice(None) if name in names else None for name in all_names)]


def _parts(array: Any, axis: int) -> list[Any]:
    """Return the elements along an axis."""
    parts = np.moveaxis(nodes(array), axis, 0)
    return [Symbols.of(part, array.graph, array.dtype) for part in parts]


_REARRANGING = (
    np.reshape,
    np.ravel,
    np.transpose,
    np.moveaxis,
    np.swapaxes,
    np.expand_dims,
    np.squeeze,
    np.broadcast_to,
    np.repeat,
    np.roll,
    np.flip,
    np.copy,
    np.atleast_1d,
)

FUNCTIONS: dict[Any, Callable[..., Any]] = {
    **{function: _rearranges(function) for function in _REARRANGING},
    **{function: _combines(function) for function in (np.stack, np.hstack, np.vstack)},
    np.where: where,
    np.concatenate: concatenate,
    np.take: take,
    np.result_type: result_type,
    np.zeros_like: filled(0),
    np.empty_like: filled(0),
    np.ones_like: filled(1),
    np.full_like: full_like,
    np.argmax: argument(np.greater),
    np.argmin: argument(np.less),
    np.linalg.norm: norm,
    np.mean: mean,
    np.var: variance,
    np.std: lambda array, *args, **options: np.sqrt(variance(array, *args, **options)),
    np.round: rounded,
    np.nan_to_num: nan_to_num,
    np.isclose: isclose,
    np.einsum: einsum,
}
