"""What the process of a program does in a planning session: plan whenever it is asked."""

import os
from collections.abc import Callable
from typing import Any

import numpy as np

from cwm_cli.packing import Columns, Space
from cwm_cli.planning import PLANNERS, Checks, Model
from cwm_cli.planning.model import LARGEST
from cwm_cli.sandbox.answers import Complaint, reward_of, terminated_of, triple, values, writer
from cwm_cli.sandbox.arena import slot_type
from cwm_cli.sandbox.job import Job
from cwm_cli.sandbox.messages import QUESTION, REPLY, Record


def decide(
    environment: Any, job: Job, views: Columns, channel: int, begin: Callable[[int], None]
) -> None:
    """Answer questions until nobody asks any more; every step of the model counts as progress.

    The first of the two descriptors from `channel` on brings questions, the
    second takes replies. `begin` is called with the number of each decision.
    """
    settings = job.planner or {}
    planner = PLANNERS[settings["name"]](**settings["options"])
    counter = views["progress"].reshape(1).data
    model = Model(
        environment,
        Checks(triple, _reward, terminated_of, _reader(job.observation_space)),
        action_space=job.action_space,
        deterministic=not job.draws,
        counter=counter,
    )
    observations, actions = (
        Record(job.observation_space, "observations"),
        Record(job.action_space, "actions"),
    )
    while head := _read(channel, QUESTION.size):
        size, decision, horizon = QUESTION.unpack(head)
        observation = observations.decode(_read(channel, size))
        begin(decision)
        steps, rng = counter[0], np.random.default_rng([job.seed, decision])
        plan = planner.plan(model, observation, horizon=horizon, rng=rng)
        reply = b"".join(map(actions.encode, plan))
        _write(channel + 1, REPLY.pack(len(reply), counter[0] - steps) + reply)


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


def _read(descriptor: int, size: int) -> bytes:
    """Read as many bytes; none when nobody is left to write them."""
    parts = []
    while size and (part := os.read(descriptor, size)):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _write(descriptor: int, data: bytes) -> None:
    """Write all bytes."""
    while data:
        data = data[os.write(descriptor, data) :]
