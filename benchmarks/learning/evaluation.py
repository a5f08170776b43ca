"""Evaluation episodes of a learner, which do not change it."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable
from contextlib import ExitStack, closing, suppress
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from cwm_cli.envs.tasks import random_action
from cwm_cli.worlds.remote import OutOfTime
from cwm_learn.environment import take_step
from cwm_learn.runs import dataset_value

if TYPE_CHECKING:
    from cwm_learn.learner import Learner


class PlayedEpisode(NamedTuple):
    """Return and length of an evaluation episode, and the step of its first mismatch, from 1."""

    returned: float
    length: int
    mismatch: int | None


def play_episodes(
    learner: Learner, seeds: Iterable[int], seconds: float = inf
) -> Generator[PlayedEpisode, None, None]:
    """Play an episode per seed without learning from it; call only between episodes.

    The time limit of learning does not apply. After `seconds`, no episode is yielded any more.
    """
    task, known, actor = learner.task, learner.known, learner.actor
    before, learner.deadline = learner.deadline, time.monotonic() + seconds
    with closing(task.make()) as env, ExitStack() as stack, suppress(OutOfTime):
        stack.callback(setattr, learner, "deadline", before)
        for seed in seeds:
            env.action_space.seed(int(seed))
            returned, mismatch, length = 0.0, None, 0
            observation = dataset_value(known.observation_space, env.reset(seed=int(seed))[0])
            for left in range(known.limit, 0, -1):
                if learner.seconds_left() <= 0:
                    return
                allowed = task.allowed(env)
                intent = actor.choose(observation, left, "exploit", allowed)
                intent = intent or actor.choose(observation, left, None, allowed)
                action = intent.action if intent else random_action(env.action_space, allowed)
                predicted = actor.predict(observation, action)
                row = take_step(env, task, known, observation, action)
                length, returned = length + 1, returned + row.reward
                if mismatch is None and not actor.matches(predicted, row):
                    mismatch = length
                observation = row.next_observation
                if row.terminated or row.truncated:
                    break
            yield PlayedEpisode(returned, length, mismatch)
