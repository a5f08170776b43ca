"""What is done in the process of a program that is imagined with, and how it is asked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from struct import Struct
from types import ModuleType
from typing import Any, ClassVar

import numpy as np

from cwm_cli.planning import stepping
from cwm_cli.sandbox.handlers import ConfinedProgram, Handler
from cwm_cli.sandbox.job import ModelJob
from cwm_cli.worlds.confined import formed
from cwm_cli.worlds.messages import SIZE

_HEAD = Struct("<I")
_KINDS = frozenset("biufU")


def pack(head: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> bytes:
    """Return a head of plain data and named arrays of numbers or texts as bytes."""
    columns = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    shapes = [[name, column.dtype.str, column.shape] for name, column in columns.items()]
    text = json.dumps([head, shapes]).encode()
    return b"".join([_HEAD.pack(len(text)), text, *(c.tobytes() for c in columns.values())])


def unpack(data: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Read what `pack` wrote; ValueError for what it cannot have written."""
    if len(data) < _HEAD.size:
        raise ValueError("a reply without a head")
    [size] = _HEAD.unpack_from(data)
    offset = _HEAD.size + size
    try:
        head, shapes = json.loads(data[_HEAD.size : offset])
        arrays: dict[str, np.ndarray] = {}
        for name, kind, shape in shapes:
            dtype, whole = np.dtype(str(kind)), tuple(map(int, shape))
            if dtype.kind not in _KINDS or min(whole, default=0) < 0:
                raise ValueError("an array of something else")
            if offset + dtype.itemsize * prod(whole) > len(data):
                raise ValueError("an array that is not there")
            arrays[str(name)] = np.ndarray(whole, dtype, data, offset).copy()
            offset += arrays[str(name)].nbytes
    except (TypeError, KeyError, RecursionError) as error:
        raise ValueError("a reply that makes no sense") from error
    return head, arrays


@dataclass(frozen=True, kw_only=True)
class ImaginingJob(ModelJob):
    """A program that functions of trusted modules step inside its process.

    `columns` are recorded rows. A translated form replaces the program only if both agree on
    these rows.
    """

    handler: ClassVar[str] = "cwm_cli.worlds.confined_imagining:ImaginingHandler"
    form: str = "auto"


class ImaginingHandler(Handler[ImaginingJob]):
    """Calls functions with the model, on request.

    `modules` hold the functions, by the name before the colon in a request. A subclass adds its
    own modules; all of them are imported before the guards are up.
    """

    job_class = ImaginingJob
    modules: ClassVar[Mapping[str, ModuleType]] = {"stepping": stepping}

    def run(self, program: ConfinedProgram) -> None:
        """Answer questions until nobody asks any more."""
        model = formed(program.load(), self.job, self.job.form, program.counter).model
        while head := program.read(SIZE.size):
            asked, arrays = unpack(program.read(*SIZE.unpack(head)))
            module, _, name = asked["function"].partition(":")
            function = getattr(self.modules[module], name)
            before = model.counter[0]
            found = function(model, arrays, **asked["options"])
            reply = pack({"steps": model.counter[0] - before}, found)
            program.write(SIZE.pack(len(reply)) + reply)
