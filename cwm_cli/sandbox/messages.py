"""What a planning session and the process of its program say to each other.

A question holds the moments at which plans are due, a reply the plans, how
many steps of the model they took, and what they were made with. Both have a
length first, and the layout of the rest follows from the spaces.
"""

import io
from collections.abc import Iterable, Sequence
from math import prod
from struct import Struct
from typing import Any, NamedTuple

import numpy as np

from cwm_cli.packing import Space
from cwm_cli.planning.planner import Moment
from cwm_cli.sandbox.answers import values

SIZE = Struct("<I")
"""Bytes that follow."""

LONGEST_NOTE = 400
"""Bytes of the note of a reply."""

_MOMENT = Struct("<3Qi")
_REPLY = Struct(f"<QBBH{LONGEST_NOTE}s")
_ALL_VALID = -1


class Reply(NamedTuple):
    """Plans for the moments of a question; none when no planner suits the model.

    `planner` is the place of the planner among those that were asked for,
    `forms` has a bit for each of `FORMS` that the model was used in.
    """

    plans: list[list[Any]]
    steps: int
    planner: int
    forms: int
    note: str


class Record:
    """Values of a space as bytes of one length, in the types that programs see."""

    def __init__(self, space: Space, name: str) -> None:
        self._space, self._name = space, name
        leaves = [(leaf.name, _dtype(leaf.space), leaf.space.shape) for leaf in space.leaves(name)]
        self._leaves = leaves
        self.size = sum(np.dtype(dtype).itemsize * prod(shape) for _, dtype, shape in leaves)

    def encode(self, value: Any) -> bytes:
        """Return the bytes of a value; ValueError when it is not of the space."""
        columns = self._space.pack(self._name, [value])
        return b"".join(columns[name].astype(dtype).tobytes() for name, dtype, _ in self._leaves)

    def decode(self, data: bytes) -> Any:
        """Return the value that `encode` was given, all its own."""
        offset, columns = 0, []
        for _, dtype, shape in self._leaves:
            column: np.ndarray = np.ndarray((1, *shape), dtype, data, offset)
            columns.append(column)
            offset += column.nbytes
        return next(values(self._space, iter(columns)))


def encode_question(moments: Iterable[Moment], observations: Record) -> bytes:
    """Return a question without its length; ValueError for what is no observation."""
    return b"".join(_encode_moment(moment, observations) for moment in moments)


def decode_question(data: bytes, observations: Record) -> list[Moment]:
    """Read what `encode_question` wrote."""
    moments, offset = [], 0
    while offset < len(data):
        episode, decision, horizon, count = _MOMENT.unpack_from(data, offset)
        offset += _MOMENT.size
        valid = None
        if count != _ALL_VALID:
            valid = tuple(np.frombuffer(data, "<i8", count, offset).tolist())
            offset += 8 * count
        state = observations.decode(data[offset : offset + observations.size])
        offset += observations.size
        moments.append(Moment(episode, decision, state, horizon, valid))
    return moments


def encode_reply(reply: Reply, actions: Record) -> bytes:
    """Return a reply without its length."""
    note = reply.note.encode("utf-8", "replace")[:LONGEST_NOTE]
    parts = [_REPLY.pack(reply.steps, reply.planner, reply.forms, len(note), note)]
    for plan in reply.plans:
        parts += [SIZE.pack(len(plan)), *map(actions.encode, plan)]
    return b"".join(parts)


def decode_reply(data: bytes, moments: Sequence[Moment], actions: Record) -> Reply:
    """Read a reply to a question about some moments; ValueError when it is none."""
    rest = io.BytesIO(data)
    steps, planner, forms, size, note = _REPLY.unpack(_exactly(rest, _REPLY.size))
    plans = []
    for moment in moments if len(data) > _REPLY.size else ():
        [count] = SIZE.unpack(_exactly(rest, SIZE.size))
        if not 1 <= count <= moment.horizon:
            raise ValueError(f"a plan of {count} actions")
        plans.append([actions.decode(_exactly(rest, actions.size)) for _ in range(count)])
    if rest.read(1):
        raise ValueError("a reply that goes on")
    return Reply(plans, steps, planner, forms, note[:size].decode("utf-8", "replace"))


def most_bytes(moments: Sequence[Moment], actions: Record) -> int:
    """Return how long a reply can be."""
    return _REPLY.size + sum(SIZE.size + moment.horizon * actions.size for moment in moments)


def _exactly(stream: io.BytesIO, size: int) -> bytes:
    """Read as many bytes; ValueError when there are fewer."""
    data = stream.read(size)
    if len(data) < size:
        raise ValueError("a reply that breaks off")
    return data


def _encode_moment(moment: Moment, observations: Record) -> bytes:
    """Return the bytes of a moment."""
    valid = moment.valid
    count = _ALL_VALID if valid is None else len(valid)
    head = _MOMENT.pack(moment.episode, moment.decision, moment.horizon, count)
    return head + np.array(valid or (), "<i8").tobytes() + observations.encode(moment.state)


def _dtype(leaf: Space) -> str:
    """Return the type that a leaf is sent in."""
    if leaf.kind == "text":
        return f"<U{max(1, leaf.max_length)}"
    return "<f8" if leaf.is_float else "<i8"
