"""Real observations and actions, on which the forms of a program are compared with it."""

import time
from collections.abc import Iterator
from contextlib import closing
from copy import deepcopy
from itertools import count, islice
from typing import Any

from cwm_cli.data.spaces import Columns, Space
from cwm_cli.envs.tasks import Task, random_action

ROWS = 509
"""A prime, so that no axis of an observation is mistaken for that of the rows."""

SECONDS = 2.0


def random_rows(task: Task, spaces: tuple[Space, Space]) -> Columns:
    """Record up to `ROWS` observations and random actions; slow environments give fewer."""
    pairs = list(islice(_pairs(task), ROWS))
    columns: Columns = {}
    for name, space, values in zip(
        ("observations", "actions"), spaces, zip(*pairs, strict=True), strict=True
    ):
        columns |= space.pack(name, values)
    return columns


def _pairs(task: Task) -> Iterator[tuple[Any, Any]]:
    """Yield observations and random actions of many episodes, for a while."""
    deadline = time.monotonic() + SECONDS
    with closing(task.make()) as env:
        space = deepcopy(env.action_space)
        space.seed(task.seed)
        for number in count():
            observation, _ = env.reset(seed=task.seed + number)
            for _ in range(task.limit):
                action = random_action(space, task.allowed(env))
                yield deepcopy(observation), action
                if time.monotonic() > deadline:
                    return
                observation, _, terminated, truncated, _ = env.step(deepcopy(action))
                if terminated or truncated:
                    break
