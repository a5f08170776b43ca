"""What the process of a program does in a planning session: plan whenever it is asked."""

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from cwm_cli.data.spaces import Columns, Space
from cwm_cli.planning import PLANNERS, Decider, Moment, Unsuited, find_planner
from cwm_cli.planning.forms import Form, Rows, Source, fastest
from cwm_cli.planning.model import LARGEST
from cwm_cli.planning.program import Checks, Program
from cwm_cli.sandbox.answers import (
    Complaint,
    actions_of,
    parts,
    reward_of,
    terminated_of,
    values,
    writer,
)
from cwm_cli.sandbox.arena import slot_type
from cwm_cli.sandbox.job import Job
from cwm_cli.sandbox.messages import SIZE, Record, Reply, decode_question, encode_reply

KNOWN = {name: find_planner(name) for name in PLANNERS}
"""Planners by name, imported before a program is confined with them."""


def decide(
    environment: Any, job: Job, views: Columns, channel: int, reseed: Callable[[int, int], None]
) -> None:
    """Answer questions until nobody asks any more; every step of the model counts as progress.

    The first of the two descriptors from `channel` on brings questions, the
    second takes replies. `reseed` is called with the episode and the number of
    each decision where the program draws random numbers.
    """
    form = formed(environment, job, views["progress"].reshape(1).data)
    planners = [KNOWN[name](**options) for name, options in job.planners]

    def begin(moment: Moment) -> None:
        reseed(moment.episode, moment.decision)

    decider = Decider(planners, form.model, seed=job.seed, begin=begin if job.draws else None)
    observations, actions = (
        Record(job.observation_space, "observations"),
        Record(job.action_space, "actions"),
    )
    while head := read(channel, SIZE.size):
        moments = decode_question(read(channel, *SIZE.unpack(head)), observations)
        reply = encode_reply(_reply(decider, form, moments), actions)
        write(channel + 1, SIZE.pack(len(reply)) + reply)


def formed(environment: Any, job: Job, counter: Any) -> Form:
    """Return the program in the fastest forms that agree with it on the rows of the job."""
    source = Source(job.program, environment, job.observation_space)
    return fastest(_program(environment, job, counter), source, rows_of(job), job.form)


def _reply(decider: Decider, form: Form, moments: list[Moment]) -> Reply:
    """Plan for some moments, or say why no planner can."""
    counter = form.model.counter
    before = counter[0]
    try:
        plans = decider.plan(moments)
    except Unsuited as reason:
        return Reply([], counter[0] - before, 0, 0, str(reason))
    passed_over = decider.passed_over
    note = "; ".join([*passed_over, *form.program.notes])
    return Reply(plans, counter[0] - before, len(passed_over), form.used, note)


def _program(environment: Any, job: Job, counter: Any) -> Program:
    """Return the program as a model whose answers are checked."""
    valid = partial(_admitted, job.action_space) if job.valid else None
    checks = Checks(
        partial(parts, with_valid=job.valid),
        _reward,
        terminated_of,
        _reader(job.observation_space),
        valid,
    )
    return Program(
        environment,
        checks,
        action_space=job.action_space,
        deterministic=not job.draws,
        counter=counter,
    )


def _admitted(space: Space, value: Any) -> tuple[int, ...] | None:
    """Return which of the actions that there are may follow, None where a program names none."""
    low, high = int(space.low[0]), int(space.high[0])
    return tuple(sorted({int(a) for a in actions_of(value) if low <= a <= high})) or None


def rows_of(job: Job) -> Rows:
    """Return the real observations and actions that came with the job."""
    observations = values(job.observation_space, iter(job.observations))
    return Rows(list(observations), list(values(job.action_space, iter(job.actions))))


def _reward(value: Any) -> float:
    """Accept any number that returns can be made of."""
    reward = reward_of(value)
    if -LARGEST < reward < LARGEST:
        return reward
    raise Complaint(f"the reward should be a finite number, got {reward}")


def _reader(space: Space) -> Callable[[Any], Any]:
    """Return what checks an observation that a program gave and makes it a value of our own."""
    slots = [np.zeros((1, *leaf.space.shape), slot_type(leaf.space)) for leaf in space.leaves("")]
    write = writer(space, iter(slots))

    def read(answer: Any) -> Any:
        write(0, answer)
        return next(values(space, map(_decoded, slots)))

    return read


def _decoded(slot: np.ndarray) -> np.ndarray:
    """Return texts as texts and numbers as they are."""
    return np.char.decode(slot, "utf-8", "replace") if slot.dtype.kind == "S" else slot


def read(descriptor: int, size: int) -> bytes:
    """Read as many bytes; none when nobody is left to write them."""
    parts = []
    while size and (part := os.read(descriptor, size)):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def write(descriptor: int, data: bytes) -> None:
    """Write all bytes."""
    while data:
        data = data[os.write(descriptor, data) :]
