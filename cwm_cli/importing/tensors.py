"""Tensors of torch as `pickle` writes them, read without torch."""

from io import BytesIO
from itertools import accumulate
from math import prod
from typing import Any

import numpy as np

from cwm_cli.importing.inert import Inert, load

REBUILD = "torch._utils._rebuild_tensor_v2"
_STORAGE = "torch.storage._load_from_bytes"
_MAGIC = 0x1950A86A20F9469CFC6C

_DTYPES = {
    "torch.DoubleStorage": "<f8",
    "torch.FloatStorage": "<f4",
    "torch.HalfStorage": "<f2",
    "torch.LongStorage": "<i8",
    "torch.IntStorage": "<i4",
    "torch.ShortStorage": "<i2",
    "torch.CharStorage": "<i1",
    "torch.ByteStorage": "<u1",
    "torch.BoolStorage": "|b1",
}


def tensor(arguments: tuple[Any, ...]) -> np.ndarray:
    """Return the array of a dense tensor; other tensors are a `ValueError`."""
    storage, offset, size, stride = arguments[:4]
    if not isinstance(storage, Inert) or storage.name != _STORAGE or not storage.arguments:
        raise ValueError("a tensor has no storage")
    steps = tuple(accumulate(reversed(size[1:]), lambda a, b: a * b, initial=1))[::-1]
    wrong = [s for n, s, step in zip(size, stride, steps) if n > 1 and s != step]  # noqa: B905
    if wrong or min((offset, *size)) < 0:
        raise ValueError("a tensor is not dense: save it as an array")
    values, count = _storage(storage.arguments[0]), prod(size)
    if offset + count > len(values):
        raise ValueError("a tensor has more elements than its storage")
    return values[offset : offset + count].reshape(size)


def _storage(data: Any) -> np.ndarray:
    """Read what torch's older format holds: five pickles, the number of elements, the elements."""
    stream = BytesIO(data)
    magic, _version, _system, reference, _keys = (load(stream) for _ in range(5))
    if magic != _MAGIC:
        raise ValueError("a tensor is in another format: save it as an array")
    kind = reference.arguments[0][1].name
    if kind not in _DTYPES:
        raise ValueError(f"a tensor of {kind} is not read: save it as an array")
    start = stream.tell()
    count = int.from_bytes(data[start : start + 8], "little")
    return np.frombuffer(data, _DTYPES[kind], count, start + 8)
