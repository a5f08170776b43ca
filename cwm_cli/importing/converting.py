"""A published replay buffer as a dataset of an environment."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.data.spaces import Space
from cwm_cli.envs.spec import EnvironmentSpec, space_of
from cwm_cli.errors import CwmError
from cwm_cli.importing.arrays import plain
from cwm_cli.importing.buffer import Buffer, Column
from cwm_cli.importing.fitting import fit, weight

if TYPE_CHECKING:
    import gymnasium as gym

CAP = 100
"""Step in which the published collector ended an episode that was not over."""

MOST_NUMBERS = 100_000_000
"""Numbers and characters of the largest dataset that is made."""

TEST_SHARE = 5
"""One in so many episodes is held out."""


class MisfitError(CwmError):
    """A buffer that was recorded in another environment."""


class Imported(NamedTuple):
    """A dataset, and in how many of its rows `done` was taken for the end of time."""

    dataset: Dataset
    limited: int


def convert(
    buffer: Buffer,
    spec: EnvironmentSpec,
    *,
    env_args: Mapping[str, Any],
    drop_corrupt_first_rows: bool = False,
) -> Imported:
    """Read the rows of a buffer as transitions of an environment.

    Rewards are the float64 of what was stored as float32. With
    `drop_corrupt_first_rows` the first row of each episode is left out: where
    the published planner acted in MuJoCo, it does not follow from its
    observation, because copying the environment built it anew.
    """
    shape = _Shape.of(spec, env_args)
    if len(buffer) * (2 * weight(shape.observations) + weight(shape.actions)) > MOST_NUMBERS:
        raise CwmError(f"{buffer.file} has too many rows ({len(buffer):,}): import a part of it")
    kept = np.flatnonzero(buffer.steps > int(drop_corrupt_first_rows))
    if not len(kept):
        raise CwmError(f"{buffer.file} has first rows only: leave out --drop-corrupt-first-rows")
    rows = list(_transitions(buffer, shape, kept, spec.id))
    options = {"drop_corrupt_first_rows": drop_corrupt_first_rows}
    try:
        dataset = Dataset.of(
            rows,
            observation_space=shape.observations,
            action_space=shape.actions,
            metadata=_origin(buffer, spec, env_args) | options,
        )
    except ValueError as error:
        raise MisfitError(f"{buffer.file} is not of {spec.id} ({error})") from error
    limited = dataset.columns["truncations"] & buffer.dones[kept]
    return Imported(dataset, int(limited.sum()))


def _origin(buffer: Buffer, spec: EnvironmentSpec, env_args: Mapping[str, Any]) -> dict[str, Any]:
    """Say where the transitions come from."""
    return {
        "env": spec.id,
        "env_args": dict(env_args),
        "published": True,
        "source": buffer.file.name,
        "sha256": buffer.sha256,
        "rewards": "float64 of the published float32",
    }


def fits(buffer: Buffer, spec: EnvironmentSpec) -> bool:
    """Whether the first row may have been recorded in an environment."""
    try:
        _transition(buffer, _Shape.of(spec, {}), 0, spec.id)
    except CwmError:
        return False
    return True


@dataclass(frozen=True)
class _Shape:
    """What transitions of an environment look like.

    `limit` is the step in which it ends an episode itself, None where it does
    not. `valid` says whether it names the actions that are allowed.
    """

    observations: Space
    actions: Space
    limit: int | None
    valid: bool

    @classmethod
    def of(cls, spec: EnvironmentSpec, env_args: Mapping[str, Any]) -> Self:
        """Look at an environment."""
        with closing(spec.make(**env_args)) as env:
            return cls(
                space_of(env.observation_space),
                space_of(env.action_space, "actions"),
                env.spec.max_episode_steps if env.spec else None,
                _names_valid_actions(spec, env),
            )


def _names_valid_actions(spec: EnvironmentSpec, env: "gym.Env[Any, Any]") -> bool:
    """Whether an environment says which actions are allowed."""
    if spec.valid_actions is None:
        return False
    env.reset(seed=0)
    return spec.valid_actions(env.unwrapped) is not None


def _truncated(buffer: Buffer, limit: int | None) -> np.ndarray:
    """Return in which rows an episode was cut although it could have gone on.

    The file has one mark, `done`, for the end of an episode and for the end of
    its time. In the step of the environment's own limit it is taken for the
    latter, and so it is where the published collector stopped, unless that
    left other episodes without the mark. An episode that ends without it was cut.
    """
    capped = buffer.lasts & (buffer.steps == CAP)
    marks_time = not (capped & ~buffer.dones).any()
    timed = (buffer.steps == limit) | (capped & marks_time)
    cut: np.ndarray = (buffer.dones & timed) | (buffer.lasts & ~buffer.dones)
    return cut


def _transitions(buffer: Buffer, shape: _Shape, kept: np.ndarray, env: str) -> Iterator[Transition]:
    """Read rows, with the numbers of their episodes and how these ended."""
    truncated = _truncated(buffer, shape.limit)
    _, episodes = np.unique(buffer.starts[kept], return_inverse=True)
    for row, episode in zip(kept.tolist(), episodes.reshape(-1).tolist(), strict=True):
        yield _transition(buffer, shape, row, env)._replace(
            terminated=bool(buffer.dones[row] and not truncated[row]),
            truncated=bool(truncated[row]),
            episode=episode,
            split=int(episode % TEST_SHARE == TEST_SHARE - 1),
        )


def _transition(buffer: Buffer, shape: _Shape, row: int, env: str) -> Transition:
    """Read one row, or say what in it is not of the environment."""

    def read(what: str, column: Column, space: Space) -> Any:
        try:
            return fit(column[row], space)
        except Exception as error:  # a stranger's pickle may be wrong in any way
            told = str(error) if isinstance(error, ValueError) else "it is damaged"
            reason = " ".join(told.split())[:120]
            where = f"{what} in row {row} of {buffer.file}"
            raise MisfitError(f"{where} is not of {env} ({reason})") from error

    return Transition(
        read("the observation", buffer.observations, shape.observations),
        read("the action", buffer.actions, shape.actions),
        read("the next observation", buffer.next_observations, shape.observations),
        reward=float(buffer.rewards[row]),
        terminated=False,
        valid=_valid(buffer, shape, row, env) if shape.valid else None,
    )


def _valid(buffer: Buffer, shape: _Shape, row: int, env: str) -> tuple[int, ...]:
    """Return the actions that are allowed after a row."""
    extra = buffer.extras[row] if buffer.extras else None
    stored = extra.get("valid_actions") if isinstance(extra, dict) else None
    try:
        return tuple(sorted(fit(action, shape.actions) for action in _listed(stored)))
    except Exception as error:  # a stranger's pickle may be wrong in any way
        raise MisfitError(
            f"row {row} of {buffer.file} does not say which actions {env} allows"
        ) from error


def _listed(values: Any) -> Sequence[Any]:
    """Return an array, a list or a tuple as a sequence."""
    values = plain(values)
    if not isinstance(values, list | tuple | np.ndarray):
        raise TypeError("no list")
    return list(values)
