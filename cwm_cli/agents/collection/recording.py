"""Play episodes of an environment and record their transitions."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from copy import deepcopy
from typing import Any, NamedTuple, Unpack

import numpy as np

from cwm_cli.agents.collection.playing import Act, Stage, planned_acts, random_acts
from cwm_cli.agents.collection.policies import POLICIES, Way
from cwm_cli.agents.collection.requests import Episode, Options, episodes, request
from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.data.spaces import Space
from cwm_cli.envs.spec import EnvironmentSpec, space_of
from cwm_cli.errors import CwmError

Progress = Callable[[float], None]


class Recorded(NamedTuple):
    """An episode: how its actions were chosen, the seed it was reset with, its transitions."""

    policy: str
    reset_seed: int
    rows: list[Transition]


def collect(
    spec: EnvironmentSpec,
    *,
    env_args: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
    **options: Unpack[Options],
) -> Dataset:
    """Record episodes of a policy; the same request gives the same bytes.

    An episode depends on the seed, its split and its place in the split; one that is
    planned for novelty also on those before it in its split. How many there are does not
    matter. Train and test episodes never start from the same seed. `progress` is called
    with the number of episodes recorded, the one that is played by the share of its steps.
    Where nothing can be planned all episodes are random, and the metadata have a `note`.
    """
    metadata = request(spec, env_args, **options)
    stage = Stage(spec, metadata["env_args"], metadata["seed"], metadata["max_steps"])
    with closing(stage.env) as env:
        observed, acted = space_of(env.observation_space), space_of(env.action_space, "actions")
        recorded = list(_play(stage, metadata, progress or (lambda _: None)))
    metadata["policies"] = [each.policy for each in recorded]
    metadata["reset_seeds"] = [each.reset_seed for each in recorded]
    if stage.note:
        metadata["note"] = stage.note
    try:
        return Dataset.of(
            _completed([row for each in recorded for row in each.rows], acted),
            observation_space=observed,
            action_space=acted,
            metadata=metadata,
        )
    except ValueError as error:
        raise CwmError(f"{spec.id} breaks its own rules: {error}") from error


def _play(stage: Stage, asked: Mapping[str, Any], progress: Progress) -> Iterator[Recorded]:
    """Record every episode."""
    ways = POLICIES[asked["policy"]]
    earlier: list[Transition] = []
    for episode in episodes(asked):
        if episode.place == 0:
            earlier = []
        way = ways[episode.place % len(ways)]
        recorded = _recorded(stage, way, episode, earlier, progress)
        earlier += recorded.rows
        progress(episode.number + 1)
        yield recorded


def _recorded(
    stage: Stage,
    way: Way | None,
    episode: Episode,
    earlier: Sequence[Transition],
    progress: Progress,
) -> Recorded:
    """Record an episode: from the first start, or from another that alone comes to an end."""
    known = any(row.terminated for row in earlier)
    starts = way.starts if way and not known else 1
    attempts: list[Recorded] = []
    for start in range(starts):
        again = episode.again(start)
        with stage.anew() as own:
            name, act = _policy(own, way, again, earlier)
            rows = []
            for row in _record(own, act, again):
                rows.append(row)
                progress(episode.number + (start + len(rows) / (own.max_steps + 1)) / starts)
        attempts.append(Recorded(name, again.reset_seed, rows))
        if rows[-1].terminated or stage.note:
            return attempts[-1]
    return attempts[0]


def _policy(
    stage: Stage, way: Way | None, episode: Episode, earlier: Sequence[Transition]
) -> tuple[str, Act]:
    """Return what is recorded as the policy of an episode, and what chooses its actions."""
    copy = stage.simulator if way else None
    if way is None or copy is None:
        return "random", random_acts(stage, episode.policy_seed)
    return planned_acts(stage, way, copy, episode.policy_seed, earlier)


def _record(stage: Stage, act: Act, episode: Episode) -> Iterator[Transition]:
    """Yield the transitions of one episode; environments may reuse the arrays they give."""
    env = stage.env
    observation = deepcopy(env.reset(seed=episode.reset_seed)[0])
    for step in range(stage.max_steps):
        action = act(observation, step)
        following, reward, terminated, truncated, _ = env.step(deepcopy(action))
        following = deepcopy(following)
        cut = step + 1 == stage.max_steps and not terminated
        yield Transition(
            observation,
            action,
            following,
            reward=_scalar(reward),
            terminated=bool(terminated),
            truncated=bool(truncated) or cut,
            episode=episode.number,
            split=episode.split,
            valid=_valid(stage),
        )
        if terminated or truncated:
            return
        observation = following


def _valid(stage: Stage) -> tuple[int, ...] | None:
    """Return the actions that are allowed where the environment stands, None where all are."""
    named = stage.spec.valid_actions
    valid = named(stage.env.unwrapped) if named else None
    return None if valid is None else tuple(map(int, valid))


def _completed(transitions: Sequence[Transition], space: Space) -> list[Transition]:
    """Name all actions where all are allowed, if elsewhere only some are."""
    if space.kind != "discrete" or all(row.valid is None for row in transitions):
        return [row._replace(valid=None) for row in transitions]
    every = tuple(range(int(space.low[0]), int(space.high[0]) + 1))
    return [row if row.valid is not None else row._replace(valid=every) for row in transitions]


def _scalar(reward: Any) -> float:
    """Return a reward as a number, also where it comes as an array of one."""
    values = np.asarray(reward, dtype=np.float64)
    if values.size != 1:
        shape = "x".join(map(str, values.shape))
        raise CwmError(f"rewards of the shape {shape} are not served: choose one with one reward")
    return float(values.reshape(()))
