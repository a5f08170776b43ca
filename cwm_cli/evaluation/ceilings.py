"""Which score can be reached at all, given that a program sees nothing but observations."""

from collections.abc import Mapping
from contextlib import closing
from copy import deepcopy
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.envs.spec import EnvironmentSpec
from cwm_cli.evaluation import Metric, Score, match

if TYPE_CHECKING:
    import gymnasium as gym


class Ceiling(NamedTuple):
    """The score of the true environment, and to how many rows it could not be restored."""

    score: Score
    unrestored: int


def ceiling(
    spec: EnvironmentSpec,
    env_args: Mapping[str, Any],
    dataset: Dataset,
    metric: Metric,
    seed: int = 0,
) -> Score | None:
    """Return the score of the true environment, None where observations do not tell its state."""
    reached = reach(spec, env_args, dataset, metric, seed)
    return None if reached is None or 2 * reached.unrestored > len(dataset) else reached.score


def reach(
    spec: EnvironmentSpec,
    env_args: Mapping[str, Any],
    dataset: Dataset,
    metric: Metric,
    seed: int = 0,
) -> Ceiling | None:
    """Restore the true environment to each row, step it, and score what it answers.

    A row that it cannot be restored to counts as wrong in every part. What
    chance decides is drawn once, from `seed`: the score is that of one draw, and
    a program that always says what is likeliest may well score more. It is
    below 1 where chance decides or where an observation hides what matters.
    None where nothing restores the environment, or there is no row.
    """
    if spec.restore is None or not len(dataset):
        return None
    seeds = np.random.SeedSequence(seed).generate_state(len(dataset)).tolist()
    with closing(spec.make(**env_args)) as env:
        answers = [_answer(spec, env, *asked) for asked in zip(dataset, seeds, strict=True)]
    restored = np.array([answer is not None for answer in answers])
    predictions = Dataset.of(
        [answer or _nothing(row) for answer, row in zip(answers, dataset, strict=True)],
        observation_space=dataset.observation_space,
        action_space=dataset.action_space,
    ).columns
    right = match(predictions, dataset).only(restored)
    return Ceiling(metric.score(predictions, dataset, right), int((~restored).sum()))


def _answer(
    spec: EnvironmentSpec, env: "gym.Env[Any, Any]", row: Transition, seed: int
) -> Transition | None:
    """Return what the environment answers to a row, nothing where it cannot be restored to it.

    It is reset before every row, so that no time limit is ever reached.
    """
    env.reset(seed=seed)
    if spec.restore is None or not spec.restore(env.unwrapped, row.observation):
        return None
    following, reward, terminated, *_ = env.step(row.action)
    return Transition(
        row.observation,
        row.action,
        deepcopy(following),
        reward=float(np.asarray(reward).item()),
        terminated=bool(terminated),
        valid=None if row.valid is None else _valid(spec, env),
    )


def _valid(spec: EnvironmentSpec, env: "gym.Env[Any, Any]") -> tuple[int, ...]:
    """Return the actions that the environment allows where it stands, all where it says nothing."""
    allowed = None if spec.valid_actions is None else spec.valid_actions(env.unwrapped)
    space: Any = env.action_space
    return tuple(
        map(int, range(space.start, space.start + space.n) if allowed is None else allowed)
    )


def _nothing(row: Transition) -> Transition:
    """Stand in for an answer that is missing; nothing of it may count."""
    over = row.terminated or row.truncated
    return row._replace(reward=np.nan, terminated=not over)
