"""Films and transitions of episodes after each test: the folder `media` of a run."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from contextlib import closing
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np

from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.envs.films import write_film
from cwm_cli.envs.tasks import Task, reward_number, seeds_of
from cwm_neural.reconstructing import RECONSTRUCTIONS, enlarge

MEDIA = Path("media")
"""The folder in the folder of a run."""


def save_media(folder: Path, number: int, episodes: Mapping[str, Dataset], *, kept: int) -> None:
    """Write an episode of each kind, and keep a copy of the reconstructions.

    `media/episodes/KIND/epoch_000005.npz` is a dataset with the observations, actions, rewards and
    ends of the episode. If the observations are images, a .gif beside it is the film.

    Args:
        folder: The folder of the run.
        number: Number of the epoch.
        episodes: The rows of an episode by its kind, such as "test"; none if it has no rows.
        kept: Number of the newest epochs to keep.
    """
    name = f"epoch_{number:06}"

    for kind, rows in episodes.items():
        if not len(rows):
            continue
        file = folder / MEDIA / "episodes" / kind / f"{name}.npz"
        file.parent.mkdir(parents=True, exist_ok=True)
        rows.save(file)
        if rows.observation_space.is_picture:
            last = rows.columns["next_observations"][-1:]
            pictures = enlarge([*rows.columns["observations"], *last])
            write_film(file.with_suffix(".gif"), iter(pictures), len(pictures), fps=15.0)
        _delete_old(file.parent, kept)
    if (folder / RECONSTRUCTIONS).exists():
        file = folder / MEDIA / "reconstructions" / f"{name}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(folder / RECONSTRUCTIONS, file)
        _delete_old(file.parent, kept)


def replay(task: Task, number: int, actions: Sequence[Any], like: Dataset) -> Dataset:
    """Return the rows of a played episode, by taking its actions again.

    Args:
        task: The environment with the seed of the episode.
        number: Number of the episode.
        actions: All actions of the episode.
        like: Rows with the spaces of the environment.
    """
    rows: list[Transition] = []
    with closing(task.make_episode(number)) as env:
        observation, _ = env.reset(seed=seeds_of(task.seed, number)[0])
        for action in actions:
            before = deepcopy(observation)  # some environments change it in place
            observation, reward, terminated, truncated, _ = env.step(deepcopy(action))
            after = deepcopy(observation)
            row = Transition(before, action, after, reward_number(reward), bool(terminated))
            over = bool(truncated) or len(rows) + 1 == len(actions)
            rows.append(row._replace(truncated=over and not row.terminated))
    return rows_of(rows, like)


def rows_of(rows: Sequence[Transition], like: Dataset) -> Dataset:
    """Return transitions as a dataset with the spaces and the environment of other rows."""
    return Dataset.of(
        rows,
        observation_space=like.observation_space,
        action_space=like.action_space,
        metadata=like.metadata,
    )


def last_episode(rows: Dataset) -> Dataset | None:
    """Return the last episode that has ended, None if there is none."""
    ends = np.flatnonzero(rows.columns["terminations"] | rows.columns["truncations"])
    if not len(ends):
        return None
    numbers = rows.columns["episodes"]
    return rows[np.flatnonzero(numbers == numbers[ends[-1]])]


def _delete_old(folder: Path, kept: int) -> None:
    """Delete the files of all epochs except the newest ones."""
    names = sorted({file.stem for file in folder.glob("epoch_*")})
    for name in names[:-kept]:
        for file in folder.glob(f"{name}.*"):
            file.unlink()
