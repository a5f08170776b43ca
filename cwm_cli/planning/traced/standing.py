"""What has to be replaced in `cwm_cli.planning.batched` for arrays of nodes.

Some functions of numpy do not ask their arguments what they are, and arrays of
numbers have no place for nodes.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from cwm_cli.planning.batched import calls, mathematics, places, tables
from cwm_cli.planning.traced.functions import take
from cwm_cli.planning.traced.graph import Graph
from cwm_cli.planning.traced.symbols import LANES, Symbols, nodes


class Numpy:
    """Stands for numpy."""

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    def take(self, array: Any, places: Any, *args: Any, **options: Any) -> Any:
        """Look up what is known, at places that may not be."""
        function = take if isinstance(places, Symbols) else np.take
        return function(array, places, *args, **options)

    def asarray(self, value: Any, dtype: Any = None) -> Any:
        """Convert to another type."""
        if isinstance(value, Symbols):
            return value if dtype is None else value.astype(dtype)
        return np.asarray(value, dtype)


def changeable(value: Any, graph: Graph) -> Any:
    """Return an array in which nodes can be put, in place of one that may be changed."""
    if isinstance(value, np.ndarray) and value.ndim and value.flags.writeable:
        return value if isinstance(value, Symbols) else _symbols(value, graph)
    if type(value) is list:
        return [changeable(part, graph) for part in value]
    if type(value) is dict:
        return {key: changeable(part, graph) for key, part in value.items()}
    return value


@contextmanager
def standing_in(graph: Graph) -> Iterator[None]:
    """Let programs that were made for lanes compute with arrays of nodes."""
    widened = calls.Width.widened

    def symbolic(width: calls.Width, value: Any) -> Any:
        return changeable(widened(width, value), graph)

    numpy = Numpy()
    modules = [vars(module) for module in (places, tables, mathematics)]
    for names in modules:
        names["np"] = numpy
    calls.Width.widened = symbolic  # type: ignore[assignment,method-assign]
    try:
        yield
    finally:
        calls.Width.widened = widened  # type: ignore[method-assign]
        for names in modules:
            names["np"] = np


def _symbols(array: np.ndarray, graph: Graph) -> Any:
    """Return numbers as nodes; texts stay texts."""
    if array.dtype.kind not in "biuf":
        return array
    lanes = np.repeat(array, LANES, -1) if array.shape[-1] == 1 else array
    return Symbols.of(nodes(lanes, graph), graph, array.dtype)
