"""Convert a published replay buffer to a dataset of an environment, and detect corrupt rows."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any, NamedTuple

import numpy as np

from cwm_cli.commands.data import TransitionShape
from cwm_cli.data.dataset import DONE, Dataset, Transition
from cwm_cli.data.spaces import Space
from cwm_cli.envs.spec import EnvironmentSpec
from cwm_cli.errors import CwmError
from cwm_cli.evaluation import components
from cwm_cli.worlds import EnvironmentModel, Predictions
from cwm_formats.columns import TEST_SHARE, too_many
from cwm_formats.pickles import Inert, plain
from cwm_published.buffer import Buffer, Column


def fit(value: Any, space: Space) -> Any:
    """Return a value of the space; raise a `ValueError` that describes a misfit."""
    return _FITTERS[space.kind](plain(value), space)


def _numbers(value: Any, space: Space) -> np.ndarray:
    """Return a number or an array with the space's shape; a number may be in an array of one."""
    array = np.asarray(_nested(value, space.shape))
    if array.dtype.kind == "O":
        array = np.asarray(_nested(array.tolist(), space.shape))
    if array.dtype.kind not in "biuf":
        raise ValueError(f"expected numbers, found {_kind(value)}")
    if array.shape != space.shape and not array.size == space.size == 1:
        raise ValueError(f"expected shape {_shape(space.shape)}, found {_shape(array.shape)}")
    array = array.reshape(space.shape)
    if not np.isfinite(array).all():
        raise ValueError("some numbers are not finite")
    if not space.is_float and not np.array_equal(array, np.rint(array)):
        raise ValueError("expected whole numbers, found fractions")
    return array


def _nested(value: Any, shape: tuple[int, ...]) -> Any:
    """Return nested lists of plain numbers with the depth of the shape."""
    value = plain(value)
    if isinstance(value, np.ndarray | np.generic):
        if value.size > max(prod(shape), 1):
            raise ValueError(f"expected shape {_shape(shape)}, found {_shape(value.shape)}")
        return value
    if isinstance(value, bool | int | float):
        return value
    if not isinstance(value, list | tuple):
        raise ValueError(f"expected numbers, found {_kind(value)}")
    if not shape or len(value) != shape[0]:
        wanted = f"{shape[0]} values" if shape else "a number"
        raise ValueError(f"expected {wanted}, found a list of {len(value)}")
    return [_nested(part, shape[1:]) for part in value]


def _bounded(value: Any, space: Space) -> np.ndarray:
    array = _numbers(value, space)
    low, high = (np.reshape(bound, space.shape) for bound in (space.low, space.high))
    if (array < low).any() or (array > high).any():
        raise ValueError(f"{array.tolist()} is out of bounds")
    return array


def _text(value: Any, space: Space) -> str:
    value = value.item() if isinstance(value, np.ndarray) and value.size == 1 else value
    if not isinstance(value, str):
        raise ValueError(f"expected text, found {_kind(value)}")
    if len(value) > space.max_length:
        raise ValueError(f"a text has {len(value)} characters; the limit is {space.max_length}")
    return str(value)


def _tuple(value: Any, space: Space) -> tuple[Any, ...]:
    listed = isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.ndim > 0)
    if not listed or len(value) != len(space.children):
        raise ValueError(f"expected {len(space.children)} parts, found {_kind(value)}")
    return tuple(fit(part, child) for part, child in zip(value, space.children, strict=True))


def _dict(value: Any, space: Space) -> dict[str, Any]:
    value = value.items if isinstance(value, Inert) else value  # an OrderedDict has items
    if not isinstance(value, dict) or value.keys() != set(space.keys):
        raise ValueError(f"expected a dict of {', '.join(space.keys)}, found {_kind(value)}")
    parts = zip(space.keys, space.children, strict=True)
    return {key: fit(value[key], child) for key, child in parts}


def _kind(value: Any) -> str:
    """Describe the type of a value."""
    if isinstance(value, Inert):
        return f"an object ({value.name})"
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype} of shape {_shape(value.shape)}"
    if isinstance(value, list | tuple):
        return f"a {type(value).__name__} of {len(value)}"
    return "nothing" if value is None else f"a value of type {type(value).__name__}"


def _shape(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "() (a single number)"


_FITTERS: Mapping[str, Callable[[Any, Space], Any]] = {
    "box": _numbers,
    "discrete": lambda value, space: int(_bounded(value, space)),
    "multidiscrete": _bounded,
    "multibinary": _bounded,
    "text": _text,
    "tuple": _tuple,
    "dict": _dict,
}


def corrupt_first_rows(spec: EnvironmentSpec, dataset: Dataset) -> int:
    """Estimate how many first rows of episodes are corrupt.

    A first row is corrupt if the second row does not start where it led to, or if the environment,
    set to the observation, goes elsewhere although it predicts second rows well. This applies only
    to observations that are states of real numbers; for games of chance the environment shows
    nothing.
    """
    episodes = dataset.columns["episodes"]
    firsts = np.flatnonzero(np.append(True, episodes[1:] != episodes[:-1]))
    firsts = firsts[np.append(firsts[1:], len(episodes)) - firsts > 1]
    if not len(firsts) or not all(
        leaf.space.is_float for leaf in dataset.observation_space.leaves("")
    ):
        return 0
    broken = int((~_continues(dataset, firsts)).sum())
    return max(broken, _mispredicted(spec, dataset, firsts))


def _continues(dataset: Dataset, rows: np.ndarray) -> np.ndarray:
    """Return for each row whether the next row starts where it led to."""
    after: dict[str, Any] = {
        f"next_{name}": column[rows + 1] for name, column in dataset.select("observations").items()
    }
    right = components(after, dataset[rows])
    same: np.ndarray = np.all([leaf.all(axis=1) for leaf in right], axis=0)
    return same


def _mispredicted(spec: EnvironmentSpec, dataset: Dataset, rows: np.ndarray) -> int:
    """Return how many rows the environment predicts worse than the rows after them."""
    truth = EnvironmentModel(spec, dataset.metadata.get("env_args", {}))
    found = [truth.predict(dataset[which]) for which in (rows, rows + 1)]
    if any(predictions.failure for predictions in found):
        return 0
    first, second = found
    # Errors below these shares of the mean change in a step count as zero. Another version of the
    # physics exceeds the first, and a rebuilt environment may be below the last.
    tolerances = (1e-4, 1e-2, 1e-1)
    return max(_worse(first, second, dataset, rows, tolerance) for tolerance in tolerances)


def _worse(
    first: Predictions, second: Predictions, dataset: Dataset, rows: np.ndarray, tolerance: float
) -> int:
    """Return how many rows have more wrong components than the rows after them, if many have."""
    here, there = (
        _share(first, dataset, rows, tolerance),
        _share(second, dataset, rows + 1, tolerance),
    )
    # share of first rows that may be wrong for other reasons, such as hidden parts of observations
    slack = 0.1
    usual = there.mean() - slack
    return int((here < usual).sum()) if here.mean() < usual else 0


def _share(
    predictions: Predictions, dataset: Dataset, rows: np.ndarray, tolerance: float
) -> np.ndarray:
    """Return for each row the share of the observation that is predicted within the tolerance."""
    shares = []
    for name in dataset.select("observations"):
        before, after = dataset.columns[name], dataset.columns[f"next_{name}"]
        error = np.abs(predictions.columns[f"next_{name}"] - after[rows])
        shares.append(
            (error <= tolerance * np.abs(after - before).mean(axis=0)).reshape(len(rows), -1)
        )
    share: np.ndarray = np.concatenate(shares, axis=1).mean(axis=1)
    return share if predictions.answered is None else share * predictions.answered


class MisfitError(CwmError):
    """A buffer from a recording of another environment."""


class Imported(NamedTuple):
    """A dataset, and the number of its rows whose `done` was read as a time limit."""

    dataset: Dataset
    limited: int


def convert(
    buffer: Buffer,
    spec: EnvironmentSpec,
    *,
    env_args: Mapping[str, Any],
    drop_corrupt_first_rows: bool = False,
) -> Imported:
    """Convert the rows of a buffer to transitions of an environment.

    Rewards are the float64 of the stored float32. `drop_corrupt_first_rows` leaves out the first
    row of each episode: where the published planner acted in MuJoCo, this row does not follow from
    its observation, because copying the environment rebuilt it.
    """
    shape = TransitionShape.of(spec, env_args)
    if too_many(len(buffer), shape):
        raise CwmError(f"{buffer.file} has too many rows ({len(buffer):,}): import a part of it")
    kept = np.flatnonzero(buffer.steps > int(drop_corrupt_first_rows))
    if not len(kept):
        raise CwmError(
            f"{buffer.file} has only first rows of episodes: leave out -o drop_corrupt_first_rows"
        )
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
        raise MisfitError(f"{buffer.file} does not fit {spec.id} ({error})") from error
    marks = buffer.dones[kept]
    limited = int((dataset.columns["truncations"] & marks).sum())
    if limited:
        dataset = replace(dataset, columns=dataset.columns | {DONE: marks})
    return Imported(dataset, limited)


def _origin(buffer: Buffer, spec: EnvironmentSpec, env_args: Mapping[str, Any]) -> dict[str, Any]:
    """Return metadata about the source of the transitions."""
    return {
        "env": spec.id,
        "env_args": dict(env_args),
        "published": True,
        "source": buffer.file.name,
        "sha256": buffer.sha256,
        "rewards": "float64 of the published float32",
    }


def fits(buffer: Buffer, spec: EnvironmentSpec) -> bool:
    """Return whether the first row fits an environment."""
    try:
        _transition(buffer, TransitionShape.of(spec, {}), 0, spec.id)
    except CwmError:
        return False
    return True


def _truncated(buffer: Buffer, limit: int | None) -> np.ndarray:
    """Return the rows at which an unfinished episode was cut.

    The file has one flag, `done`, for the end of an episode and for time limits. In the step of the
    environment's own limit it means a time limit. So it does at the cap of the published collector,
    unless other episodes ended there without the flag. An episode that ends without the flag was
    cut.
    """
    cap = 100  # the step at which the published collector ended unfinished episodes
    capped = buffer.lasts & (buffer.steps == cap)
    marks_time = not (capped & ~buffer.dones).any()
    timed = (buffer.steps == limit) | (capped & marks_time)
    cut: np.ndarray = (buffer.dones & timed) | (buffer.lasts & ~buffer.dones)
    return cut


def _transitions(
    buffer: Buffer, shape: TransitionShape, kept: np.ndarray, env: str
) -> Iterator[Transition]:
    """Yield the rows with the numbers of their episodes and how these ended."""
    truncated = _truncated(buffer, shape.limit)
    _, episodes = np.unique(buffer.starts[kept], return_inverse=True)
    for row, episode in zip(kept.tolist(), episodes.reshape(-1).tolist(), strict=True):
        yield _transition(buffer, shape, row, env)._replace(
            terminated=bool(buffer.dones[row] and not truncated[row]),
            truncated=bool(truncated[row]),
            episode=episode,
            split=int(episode % TEST_SHARE == TEST_SHARE - 1),
        )


def _transition(buffer: Buffer, shape: TransitionShape, row: int, env: str) -> Transition:
    """Read one row, or raise an error about the part that does not fit the environment."""

    def read(what: str, column: Column, space: Space) -> Any:
        try:
            return fit(column[row], space)
        except Exception as error:  # a third-party pickle may be invalid in any way
            message = str(error) if isinstance(error, ValueError) else "it is damaged"
            reason = " ".join(message.split())[:120]
            where = f"{what} in row {row} of {buffer.file}"
            raise MisfitError(f"{where} does not fit {env} ({reason})") from error

    return Transition(
        read("the observation", buffer.observations, shape.observations),
        read("the action", buffer.actions, shape.actions),
        read("the next observation", buffer.next_observations, shape.observations),
        reward=float(buffer.rewards[row]),
        terminated=False,
        valid=_valid(buffer, shape, row, env) if shape.valid else None,
    )


def _valid(buffer: Buffer, shape: TransitionShape, row: int, env: str) -> tuple[int, ...]:
    """Return the valid actions after a row."""
    extra = buffer.extras[row] if buffer.extras else None
    stored = extra.get("valid_actions") if isinstance(extra, dict) else None
    try:
        return tuple(sorted(fit(action, shape.actions) for action in _listed(stored)))
    except Exception as error:  # a third-party pickle may be invalid in any way
        raise MisfitError(f"row {row} of {buffer.file} lacks the valid actions of {env}") from error


def _listed(values: Any) -> Sequence[Any]:
    """Return an array, a list or a tuple as a sequence."""
    values = plain(values)
    if not isinstance(values, list | tuple | np.ndarray):
        raise TypeError("no list")
    return list(values)
