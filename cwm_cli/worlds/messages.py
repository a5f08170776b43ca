"""Jobs for programs that are world models, and what both sides say to each other meanwhile.

Of a planning session a question holds the moments at which plans are due, a reply the plans, how
many steps of the model they took, and what they were made with. Both have a
length first, and the layout of the rest follows from the spaces.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from math import prod
from struct import Struct
from typing import Any, ClassVar, NamedTuple

import numpy as np

from cwm_cli.data.spaces import Space
from cwm_cli.planning.planner import Moment
from cwm_cli.sandbox.answers import values
from cwm_cli.sandbox.job import ModelJob

SIZE = Struct("<I")
"""Bytes that follow."""

LONGEST_NOTE = 400
"""Bytes of the note of a reply."""

STEPS_REQUEST = Struct("<BQ")
"""The place of a form in `PACED`, and how many steps to take."""

STEPS_REPLY = Struct(f"<Q{LONGEST_NOTE}s")
"""How many transitions that were, and if there were none why there is no such form."""

PACED = ("scalar", "arithmetic", "batched")
"""Forms that are timed: the program itself, its plain arithmetic, all rows at once."""

_MOMENT = Struct("<3Qi")
_REPLY = Struct(f"<QBBH{LONGEST_NOTE}s")
_ALL_VALID = -1


@dataclass(frozen=True, kw_only=True)
class PlanningJob(ModelJob):
    """A program to plan with, and how.

    `planners` are names or addresses, and options: the first that suits the program is used.
    `columns` are real observations and actions; only forms of the program that agree
    with it there stand in for it, and none does if `form` is scalar.
    """

    handler: ClassVar[str] = "cwm_cli.worlds.confined:PlanningHandler"
    planners: Sequence[tuple[str, Mapping[str, Any]]]
    form: str = "auto"


@dataclass(frozen=True, kw_only=True)
class TimingJob(ModelJob):
    """A program that takes as many steps from its rows, in a form, as it is asked for."""

    handler: ClassVar[str] = "cwm_cli.worlds.confined:TimingHandler"


class PlanningReply(NamedTuple):
    """Plans for the moments of a question; none when no planner suits the model.

    `planner` is the place of the planner among those that were asked for,
    `forms` has a bit for each of `FORMS` that the model was used in.
    """

    plans: list[list[Any]]
    steps: int
    planner: int
    forms: int
    note: str


class Codec:
    """Values of a space as bytes, column by column, in the types that programs see."""

    def __init__(self, space: Space, name: str) -> None:
        self._space, self._name = space, name
        leaves = [(leaf.name, _dtype(leaf.space), leaf.space.shape) for leaf in space.leaves(name)]
        self._leaves = leaves
        self.size = sum(np.dtype(dtype).itemsize * prod(shape) for _, dtype, shape in leaves)

    def encode(self, some: Sequence[Any]) -> bytes:
        """Return the bytes of values; ValueError when one is not of the space."""
        columns = self._space.pack(self._name, some)
        return b"".join(columns[name].astype(dtype).tobytes() for name, dtype, _ in self._leaves)

    def decode(self, data: bytes, count: int) -> list[Any]:
        """Return so many values that `encode` was given, each all its own."""
        offset, columns = 0, []
        for _, dtype, shape in self._leaves:
            column: np.ndarray = np.ndarray((count, *shape), dtype, data, offset)
            columns.append(column)
            offset += column.nbytes
        return list(values(self._space, iter(columns)))


def encode_question(moments: Sequence[Moment], observations: Codec) -> bytes:
    """Return a question without its length; ValueError for what is no observation."""
    parts = [SIZE.pack(len(moments))]
    for moment in moments:
        valid = moment.valid
        count = _ALL_VALID if valid is None else len(valid)
        parts.append(_MOMENT.pack(moment.episode, moment.decision, moment.horizon, count))
        if valid:
            parts.append(np.array(valid, "<i8").tobytes())
    return b"".join([*parts, observations.encode([moment.state for moment in moments])])


def decode_question(data: bytes, observations: Codec) -> list[Moment]:
    """Read what `encode_question` wrote."""
    [count], offset = SIZE.unpack_from(data), SIZE.size
    heads = []
    for _ in range(count):
        episode, decision, horizon, some = _MOMENT.unpack_from(data, offset)
        offset += _MOMENT.size
        valid = None
        if some != _ALL_VALID:
            valid = tuple(np.frombuffer(data, "<i8", some, offset).tolist())
            offset += 8 * some
        heads.append((episode, decision, horizon, valid))
    states = observations.decode(data[offset:], count)
    return [
        Moment(episode, decision, state, horizon, valid)
        for (episode, decision, horizon, valid), state in zip(heads, states, strict=True)
    ]


def encode_reply(reply: PlanningReply, actions: Codec) -> bytes:
    """Return a reply without its length."""
    note = reply.note.encode("utf-8", "replace")[:LONGEST_NOTE]
    head = _REPLY.pack(reply.steps, reply.planner, reply.forms, len(note), note)
    counts = np.array([len(plan) for plan in reply.plans], "<u4").tobytes()
    return head + counts + actions.encode([action for plan in reply.plans for action in plan])


def decode_reply(data: bytes, moments: Sequence[Moment], actions: Codec) -> PlanningReply:
    """Read a reply to a question about some moments; ValueError when it is none."""
    begin = _REPLY.size + SIZE.size * len(moments)
    if len(data) != _REPLY.size and len(data) < begin:
        raise ValueError("a reply that breaks off")
    steps, planner, forms, size, note = _REPLY.unpack_from(data)
    text = note[:size].decode("utf-8", "replace")
    if len(data) == _REPLY.size:
        return PlanningReply([], steps, planner, forms, text)
    counts = [count for [count] in SIZE.iter_unpack(data[_REPLY.size : begin])]
    if len(data) != begin + sum(counts) * actions.size:
        raise ValueError(f"a reply of {len(data)} bytes")
    for count, moment in zip(counts, moments, strict=True):
        if not 1 <= count <= moment.horizon:
            raise ValueError(f"a plan of {count} actions")
    every = iter(actions.decode(data[begin:], sum(counts)))
    plans = [list(islice(every, count)) for count in counts]
    return PlanningReply(plans, steps, planner, forms, text)


def most_bytes(moments: Sequence[Moment], actions: Codec) -> int:
    """Return how long a reply can be."""
    return _REPLY.size + sum(SIZE.size + moment.horizon * actions.size for moment in moments)


def _dtype(leaf: Space) -> str:
    """Return the type that a leaf is sent in."""
    if leaf.kind == "text":
        return f"<U{max(1, leaf.max_length)}"
    return "<f8" if leaf.is_float else "<i8"
