"""Arrays and numbers, from what a pickle says of them."""

import re
from math import prod
from typing import Any

import numpy as np

from cwm_cli.importing.inert import Inert
from cwm_cli.importing.tensors import REBUILD, tensor

RECONSTRUCTED = ("numpy.core.multiarray._reconstruct", "numpy._core.multiarray._reconstruct")
FROM_BUFFER = ("numpy.core.numeric._frombuffer", "numpy._core.numeric._frombuffer")
SCALAR = ("numpy.core.multiarray.scalar", "numpy._core.multiarray.scalar")
BYTES = ("builtins.bytes", "__builtin__.bytes", "builtins.bytearray", "__builtin__.bytearray")

_DTYPE = re.compile(r"b1|[iuf][1248]|f16|[SU]\d{1,6}|O8?")


def plain(value: Any) -> Any:
    """Return the array or the number that is meant; anything else as it is.

    What numpy would not have written is a `ValueError`. Arrays share the memory
    of the file, so that many that name the same bytes take no more than one.
    """
    if not isinstance(value, Inert) or value.arguments is None:
        return value
    if value.name in RECONSTRUCTED and _names(value.arguments[:1], "numpy.ndarray"):
        _, shape, dtype, fortran, data = value.state
        return _array(shape, _dtype(dtype), data, order="F" if fortran else "C")
    if value.name in FROM_BUFFER:
        data, dtype, shape, order = value.arguments
        return _array(shape, _dtype(dtype), data, order=order)
    if value.name in SCALAR:
        dtype, data = value.arguments
        return _array((), _dtype(dtype), data, order="C")[()]
    if value.name == REBUILD:
        return tensor(value.arguments)
    return value


def _array(shape: Any, dtype: np.dtype[Any], data: Any, *, order: Any) -> np.ndarray:
    """Put an array together; the data must be just as much as the shape takes."""
    if not isinstance(shape, tuple) or not all(type(n) is int and n >= 0 for n in shape):
        raise ValueError("an array has no shape")
    count = prod(shape)
    if dtype.kind != "O":
        values = np.frombuffer(_bytes(data, count * dtype.itemsize), dtype)
        return values.reshape(shape, order=order).astype(dtype.newbyteorder("="), copy=False)
    if not isinstance(data, list) or len(data) != count:
        raise ValueError("an array has more or fewer elements than its shape")
    elements = np.empty(count, object)
    for index, element in enumerate(data):
        elements[index] = element
    return elements.reshape(shape)  # numpy lists objects in C order, whatever the flag says


def _dtype(value: Any) -> np.dtype[Any]:
    """Return a dtype of numbers, text or objects; others are refused."""
    if not _names((value,), "numpy.dtype") or not value.arguments:
        raise ValueError("an array has no dtype")
    code, order = value.arguments[0], value.state[1] if value.state else "|"
    if not isinstance(code, str) or not _DTYPE.fullmatch(code) or order not in ("<", ">", "|", "="):
        raise ValueError("an array has a dtype that is not read")
    return np.dtype("O" if code[0] == "O" else f"{order}{code}")


def _bytes(data: Any, size: int) -> bytes | bytearray:
    """Return bytes of a size; old protocols write them as text, which is encoded if it fits."""
    if isinstance(data, Inert) and data.name in BYTES:
        data = data.arguments[0] if data.arguments else b""
    if isinstance(data, Inert) and data.name == "_codecs.encode" and data.arguments:
        data = data.arguments[0]
    if not isinstance(data, bytes | bytearray | str) or len(data) != size:
        raise ValueError("an array has more or fewer bytes than its shape")
    return data.encode("latin-1") if isinstance(data, str) else data


def _names(values: tuple[Any, ...], name: str) -> bool:
    """Whether the only value is of this name."""
    return len(values) == 1 and isinstance(values[0], Inert) and values[0].name == name
