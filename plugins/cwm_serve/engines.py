"""Engines: they step a program in its confined processes, or another world model.

An engine steps a batch of rows in one call. A row is a history of an episode, with the actions that
continue it. All methods block, and may be called from several threads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from queue import LifoQueue
from typing import Any, Literal, NamedTuple

import numpy as np

from cwm_cli.data.dataset import VALID, Dataset
from cwm_cli.data.spaces import Columns, UnfitError
from cwm_cli.errors import CwmError
from cwm_cli.planning.model import EpisodeHistory, Step
from cwm_cli.sandbox.failures import Failure, printable
from cwm_cli.worlds.model import WorldModel
from cwm_cli.worlds.program import ROWS, ProgramModel
from cwm_cli.worlds.remote import NO_PLAN, ProgramFailed
from cwm_serve.batching import REASON_CHARACTERS
from cwm_serve.confined import ServedProcess

Keeps = Literal["observation", "actions", "history"]
"""The state of a session: the latest observation, the start and all actions, or the history."""


class StepRow(NamedTuple):
    """A row to step; its result is the result of the last action.

    Args:
        history: The known part of the episode.
        actions: The actions after the history.
        key: The seed, the number of the first action, and the number of the row; these determine
            random numbers.
        session: The name of the session, or "".
    """

    history: EpisodeHistory
    actions: tuple[Any, ...]
    key: tuple[int, int, int]
    session: str = ""


class PredictionOutcome(NamedTuple):
    """The result of a row: a step, or the reason why the model failed."""

    step: Step | None
    reason: str = ""


class ModelFailure(CwmError):
    """A world model that failed for all rows of a request."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(f"the model failed: {failure.message}")
        self.failure = failure


class Engine:
    """Base class of engines.

    Attributes:
        keeps: The state that a session needs.
    """

    keeps: Keeps = "observation"

    def step(self, rows: Sequence[StepRow]) -> list[PredictionOutcome]:
        """Return the outcome of each row.

        Raises:
            ModelFailure: The model failed for all rows.
        """
        raise NotImplementedError

    def close(self) -> None:
        """End the processes of the engine."""


class ProgramEngine(Engine):
    """Steps a program in `workers` confined processes. Each answers one call at a time.

    A process that fails is replaced at the next call.

    Args:
        model: The program; its sandbox needs `workers` workers.
        rows: Recorded rows, which define the spaces.
        workers: Number of processes.
    """

    def __init__(self, model: ProgramModel, rows: Dataset, workers: int) -> None:
        self.keeps = "actions" if model.remembers else "observation"
        self._rows = rows
        known = rows[np.arange(min(len(rows), ROWS))]
        form = "auto" if _loads(model, known, "auto") else "scalar"
        if form == "scalar" and not _loads(model, known, "scalar"):
            raise CwmError(
                f"{model.name} cannot be loaded: `cwm evaluate` shows the reason; correct it, or "
                "choose another program"
            )
        self._all = [
            ServedProcess(model.sandbox, model.text, known, form=form) for _ in range(workers)
        ]
        self._idle: LifoQueue[ServedProcess] = LifoQueue()
        for process in self._all:
            self._idle.put(process)

    def step(self, rows: Sequence[StepRow]) -> list[PredictionOutcome]:
        """Return the outcome of each row."""
        process = self._idle.get()
        try:
            return _ask(process, rows, self._rows, named=self.keeps == "actions")
        except ProgramFailed as error:
            raise ModelFailure(error.failure) from None
        finally:
            self._idle.put(process)

    def close(self) -> None:
        """End all processes."""
        for process in self._all:
            process.close()


class TrustedEngine(Engine):
    """Steps a world model that runs no generated code, in this process.

    Args:
        model: The model.
        rows: Transitions of the environment, which define the spaces.
    """

    keeps = "history"

    def __init__(self, model: WorldModel, rows: Dataset) -> None:
        self._model, self._rows = model, rows

    def step(self, rows: Sequence[StepRow]) -> list[PredictionOutcome]:
        """Return the outcome of each row; the key of the first row seeds all random numbers."""
        space = self._rows.action_space
        seed, first, _ = rows[0].key
        drawn = int(np.random.default_rng([seed, first]).integers(1 << 31))
        inside = self._model.imagine([row.history for row in rows], self._rows, seed=drawn)
        try:
            found = inside.step(space.pack("actions", [row.actions[-1] for row in rows]))
        except CwmError as error:
            raise ModelFailure(Failure(kind="step_error", message=str(error))) from error
        finally:
            inside.close()
        none = np.zeros(len(rows), np.bool_)
        columns = found.observations | {"rewards": found.rewards, "ends": found.terminated}
        columns |= {"failed": none, "reasons": none.astype(np.str_)}
        if self._rows.has_valid_actions:
            every = np.ones((len(rows), space.count), np.bool_)
            columns[VALID] = every if found.valid is None else found.valid
        return _read_outcomes(columns, len(rows), self._rows)


def _loads(model: ProgramModel, rows: Dataset, form: str) -> bool:
    """Return whether a process with a form of the program starts.

    A translated form is compared with the program on recorded rows. A program that hangs in one of
    them has no translated form, but can still answer other rows.
    """
    with ServedProcess(model.sandbox, model.text, rows, form=form) as process:
        try:
            _ask(process, [], rows, named=False)
        except (ProgramFailed, ModelFailure):
            return False
    return True


def _ask(
    process: ServedProcess, rows: Sequence[StepRow], like: Dataset, *, named: bool
) -> list[PredictionOutcome]:
    """Return the outcomes of rows in a process; `named` rows continue their sessions."""
    found = process.ask(
        "batching:step_rows",
        _as_arrays(rows, like),
        space=like.observation_space.to_json(),
        sessions=[row.session if named else "" for row in rows],
        valid=like.has_valid_actions,
    )
    return _read_outcomes(found, len(rows), like)


def _as_arrays(rows: Sequence[StepRow], like: Dataset) -> Columns:
    """Return rows as the arrays that `batching.step_rows` reads."""
    observations = [seen for row in rows for seen in row.history.observations]
    actions = [taken for row in rows for taken in (*row.history.actions, *row.actions)]
    rewards = [reward for row in rows for reward in row.history.rewards]
    return {
        **like.observation_space.pack("observations", observations),
        **like.action_space.pack("actions", actions),
        "rewards": np.array(rewards, float),
        "lengths": np.array([(len(row.history.observations), len(row.actions)) for row in rows]),
        "keys": np.array([row.key for row in rows], np.int64),
    }


def _read_outcomes(
    found: Mapping[str, np.ndarray], count: int, like: Dataset
) -> list[PredictionOutcome]:
    """Check the columns of an untrusted process, and return the outcome of each row."""
    columns = _check_columns(found, count, like)
    space, actions = like.observation_space, like.action_space
    unfit = _unfit_rows(columns, count, like)
    outcomes = []
    for row in range(count):
        reason = printable(str(columns["reasons"][row]), 2 * REASON_CHARACTERS)
        if columns["failed"][row] or row in unfit:
            outcomes.append(
                PredictionOutcome(None, unfit.get(row) or reason or "no reason is known")
            )
            continue
        valid = actions.masked(columns[VALID][row]) if like.has_valid_actions else None
        step = Step(
            space.unpack("observations", columns, row),
            float(columns["rewards"][row]),
            bool(columns["ends"][row]),
            valid,
        )
        outcomes.append(PredictionOutcome(step))
    return outcomes


def _check_columns(found: Mapping[str, np.ndarray], count: int, like: Dataset) -> Columns:
    """Return the columns; raise ModelFailure if one has another type or shape."""
    expected: dict[str, tuple[str, tuple[int, ...]]] = {
        leaf.name: ("U" if leaf.space.kind == "text" else "biuf", leaf.space.shape)
        for leaf in like.observation_space.leaves("observations")
    }
    expected |= {"rewards": ("f", ()), "ends": ("b", ())}
    expected |= {"failed": ("b", ()), "reasons": ("U", ())}
    if like.has_valid_actions:
        expected[VALID] = "b", (like.action_space.count,)
    for name, (kinds, shape) in expected.items():
        column = found.get(name)
        if column is None or column.dtype.kind not in kinds or column.shape != (count, *shape):
            raise ModelFailure(NO_PLAN)
    columns = {name: found[name] for name in expected}
    for leaf in like.observation_space.leaves("observations"):
        if not leaf.space.is_float and columns[leaf.name].dtype.kind == "f":
            raise ModelFailure(NO_PLAN)
    return columns


def _unfit_rows(columns: Columns, count: int, like: Dataset) -> dict[int, str]:
    """Return the rows whose prediction is outside its space or not finite, with the reason."""
    unfit: dict[int, str] = {}
    for leaf in like.observation_space.leaves("observations"):
        column, places = columns[leaf.name], np.arange(count)
        if leaf.space.kind == "text":
            long = np.flatnonzero(np.strings.str_len(column) > leaf.space.max_length)
            unfit |= dict.fromkeys(long.tolist(), f"the predicted {leaf.name} is too long")
        while len(places):
            try:
                leaf.space.check(column[places])
                break
            except UnfitError as error:
                row = int(places[error.row])
                unfit[row] = f"the predicted {leaf.name} {error}".replace(f" (row {error.row})", "")
                places = np.delete(places, error.row)
            except ValueError:
                raise ModelFailure(NO_PLAN) from None
    for row in np.flatnonzero(~np.isfinite(columns["rewards"])).tolist():
        unfit.setdefault(row, "the predicted reward is not a finite number")
    return unfit
