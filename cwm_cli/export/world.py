"""What an exported environment needs beside the program: spaces, starts, limits and seeds."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.errors import CwmError
from cwm_cli.planning.model import key
from cwm_cli.registry import environment

if TYPE_CHECKING:
    import gymnasium as gym

    from cwm_cli.envs.spec import EnvironmentSpec
    from cwm_cli.runs.searches import SearchConfig

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
"""What texts of Gymnasium are made of where nothing else is said."""


class World(NamedTuple):
    """What `world.json` holds, and the time limit, None where none is known."""

    data: dict[str, Any]
    max_episode_steps: int | None


def world_of(config: SearchConfig, dataset: Dataset, program: str) -> World:
    """Gather what was recorded, and what the environment itself says where it can be made."""
    starts = _starts(dataset)
    limit, allowed = _asked(config, starts, dataset.metadata.get("reset_seeds", []))
    known = [{"valid_actions": actions} if actions else {} for actions in allowed]
    data = {
        "seed": config.seed,
        "draws": "random" in program,
        "names_actions": dataset.has_valid_actions,
        "characters": _characters(dataset),
        "observation_space": dataset.observation_space.to_json(),
        "action_space": dataset.action_space.to_json(),
        "starts": [
            {"observation": _plain(start.observation), **valid}
            for start, valid in zip(starts, known, strict=True)
        ],
    }
    return World(data, limit)


def _starts(dataset: Dataset) -> list[Transition]:
    """Return the first transition of each episode."""
    _, rows = np.unique(dataset.columns["episodes"], return_index=True)
    return [dataset.row(row) for row in rows.tolist()]


def _asked(
    config: SearchConfig, starts: Sequence[Transition], seeds: Sequence[int]
) -> tuple[int | None, list[list[int]]]:
    """Ask the environment for its time limit, and for the actions that are allowed at starts."""
    try:
        spec = environment(config.env)
        env = spec.make(**config.env_args)
    except CwmError:  # it is not installed here
        return None, [[] for _ in starts]
    with closing(env):
        limit = env.spec.max_episode_steps if env.spec else None
        return limit, [_allowed(spec, env, start, seeds) for start in starts]


def _allowed(
    spec: EnvironmentSpec, env: gym.Env[Any, Any], start: Transition, seeds: Sequence[int]
) -> list[int]:
    """Return the actions that are allowed at a start, none where that is not known."""
    if spec.valid_actions is None or start.episode >= len(seeds):
        return []
    observation, _ = env.reset(seed=seeds[start.episode])
    if key(observation) != key(start.observation):
        return []
    return [int(action) for action in spec.valid_actions(env.unwrapped) or ()]


def _characters(dataset: Dataset) -> str:
    """Return what texts are made of, as far as texts were recorded."""
    texts = [column for column in dataset.columns.values() if column.dtype.kind == "U"]
    return "".join(sorted({*LETTERS, *"".join(text for c in texts for text in c.tolist())}))


def _plain(value: Any) -> Any:
    """Return an observation as JSON has it."""
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, tuple):
        return [_plain(part) for part in value]
    return value.tolist() if isinstance(value, np.ndarray) else value
