"""Calls of trusted functions inside the process of a program: the job, messages and handler.

`imagining` is the side outside the sandbox.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from types import ModuleType
from typing import Any, ClassVar

import numpy as np

from cwm_cli.planning import stepping
from cwm_cli.sandbox.handlers import ConfinedProgram, Handler
from cwm_cli.sandbox.job import ModelJob
from cwm_cli.worlds.confined import load_form
from cwm_cli.worlds.messages import SIZE


def pack(head: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> bytes:
    """Return the bytes of a head of plain JSON data, and of named arrays of numbers or texts."""
    columns = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    shapes = [[name, column.dtype.str, column.shape] for name, column in columns.items()]
    text = json.dumps([head, shapes]).encode()
    return b"".join([SIZE.pack(len(text)), text, *(c.tobytes() for c in columns.values())])


def unpack(data: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the head and the arrays of packed bytes; raise ValueError if they are malformed."""
    if len(data) < SIZE.size:
        raise ValueError("a reply without a head")
    [size] = SIZE.unpack_from(data)
    offset = SIZE.size + size
    try:
        head, shapes = json.loads(data[SIZE.size : offset])
        arrays: dict[str, np.ndarray] = {}
        for name, kind, shape in shapes:
            dtype, whole = np.dtype(str(kind)), tuple(map(int, shape))
            if dtype.kind not in "biufU" or min(whole, default=0) < 0:
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
    """A job that calls functions of trusted modules, which step a program inside its process.

    `columns` are recorded rows. A translated form replaces the program only if both agree on
    these rows.
    """

    handler: ClassVar[str] = "cwm_cli.worlds.confined_imagining:ImaginingHandler"
    form: str = "auto"


class ImaginingHandler(Handler[ImaginingJob]):
    """Calls functions with the model, on request.

    `modules` contain the functions, by the name before the colon in a request. A subclass adds its
    own modules, which are imported before the process is confined.
    """

    job_class = ImaginingJob
    modules: ClassVar[Mapping[str, ModuleType]] = {"stepping": stepping}

    def run(self, program: ConfinedProgram) -> None:
        """Answer questions until the pipe is closed."""
        model = load_form(program.load(), self.job, self.job.form, program.counter).model
        while head := program.read(SIZE.size):
            call, arrays = unpack(program.read(*SIZE.unpack(head)))
            module, _, name = call["function"].partition(":")
            function = getattr(self.modules[module], name)
            before = model.counter[0]
            results = function(model, arrays, **call["options"])
            reply = pack({"steps": model.counter[0] - before}, results)
            program.write(SIZE.pack(len(reply)) + reply)
