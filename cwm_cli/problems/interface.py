"""How the values of a space reach a program, said in words and in Python expressions."""

from collections.abc import Iterator
from math import isfinite

import numpy as np

from cwm_cli.data.spaces import Space

MOST_BOUNDS = 12
"""Bounds of more components than this are not listed one by one."""


def describe(space: Space) -> str:
    """Say which Python value stands for a value of the space."""
    if space.kind == "tuple":
        if len(space.children) > 1 and len(set(space.children)) == 1:
            return f"a tuple of {len(space.children)} values, each {describe(space.children[0])}"
        parts = [f"[{index}] {describe(child)}" for index, child in enumerate(space.children)]
        return f"a tuple of {len(parts)} values: {'; '.join(parts)}"
    if space.kind == "dict":
        pairs = zip(space.keys, space.children, strict=True)
        parts = [f"[{key!r}] {describe(child)}" for key, child in pairs]
        return f"a dict of {len(parts)} values: {'; '.join(parts)}"
    if space.kind == "discrete":
        return f"an int from {space.low[0]:.0f} to {space.high[0]:.0f}"
    if space.kind == "text":
        return f"a str of at most {space.max_length} characters"
    dtype = "float64" if space.is_float else "int64"
    return f"a numpy {dtype} array of shape {space.shape}{_bounds(space)}"


def expressions(space: Space, name: str) -> Iterator[str]:
    """Yield the Python expression of each leaf, in the order of `Space.leaves`."""
    if space.kind not in ("tuple", "dict"):
        yield name
    keys = space.keys if space.kind == "dict" else range(len(space.children))
    for key, child in zip(keys, space.children, strict=True):
        yield from expressions(child, f"{name}[{key!r}]")


def component_names(space: Space, name: str) -> list[str]:
    """Return the Python expression of each component of each leaf."""
    names = []
    leaves = (leaf.space for leaf in space.leaves(name))
    for leaf, expression in zip(leaves, expressions(space, name), strict=True):
        for index in np.ndindex(leaf.shape):
            names.append(f"{expression}[{', '.join(map(str, index))}]" if index else expression)
    return names


def _bounds(space: Space) -> str:
    """Say within which bounds the components lie, where they do."""
    bounds = list(zip(space.low, space.high, strict=True))
    bounded = [pair for pair in bounds if all(map(isfinite, pair))]
    if not bounded or (len(set(bounds)) > 1 and len(bounds) > MOST_BOUNDS):
        return ""
    if len(set(bounds)) == 1:
        return f", each from {bounds[0][0]:g} to {bounds[0][1]:g}"
    return f", from {[low for low, _ in bounds]} to {[high for _, high in bounds]}"
