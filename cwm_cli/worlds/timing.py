"""Timing of a program's steps, outside the sandbox; `confined_timing` takes the steps."""

from __future__ import annotations

import secrets
import time
from dataclasses import replace
from typing import NamedTuple, Self

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_cli.sandbox.client import Sandbox
from cwm_cli.sandbox.failures import Failure, printable
from cwm_cli.sandbox.job import slot_type
from cwm_cli.worlds.confined_timing import (
    KEY_SIZE,
    PASSED,
    READY,
    ROUND,
    TIMED_FORMS,
    TimedInputs,
    TimingJob,
    sum_columns,
)
from cwm_cli.worlds.messages import MAX_NOTE_BYTES
from cwm_cli.worlds.remote import ProgramFailed

BETWEEN = "failed on the inputs of the timing, which are interpolated between recorded observations"

OTHERWISE = Failure(
    kind="wrong_output",
    message="the program tampered with its process: its predictions differ while it is timed",
)

EXACT = 1e-9
"""Tolerance of the sums of the program itself, relative to the sums of absolute values."""


class TimedSteps(NamedTuple):
    """The number of timed transitions, 0 if the form does not exist, and their seconds."""

    transitions: int
    seconds: float


class _Pass(NamedTuple):
    """Inputs of a timed pass, the weights of its sums, and the sums that the program returned."""

    inputs: TimedInputs
    weights: np.ndarray
    sums: np.ndarray


class _Blend(NamedTuple):
    """A leaf before and after each recorded row, and a mask of its components with fractions."""

    before: np.ndarray
    after: np.ndarray
    fractional: np.ndarray

    @classmethod
    def of(cls, rows: Dataset, name: str) -> Self:
        before, after = rows.columns[name], rows.columns[f"next_{name}"]
        return cls(before.astype(float), after.astype(float), np.any(before % 1, axis=0))

    @property
    def changing(self) -> np.ndarray:
        """Mask of the rows that have other observations between `before` and `after`."""
        changed = self.fractional & (self.before != self.after)
        return np.asarray(changed.reshape(len(changed), -1).any(axis=1))

    def between(self, rows: np.ndarray, common: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Draw values between `before` and `after` at fractions close to `common`."""
        # Each number draws 10 % of its fraction for itself. With 0 % all observations between two
        # recorded ones are on a line, and a program could interpolate along it. Larger shares
        # violate constraints between numbers (such as sine and cosine) more.
        own_share = 0.1
        before = self.before[rows]
        own = rng.random(before.shape)
        common = common.reshape(*common.shape, *[1] * self.fractional.ndim)
        with np.errstate(over="ignore", invalid="ignore"):
            fractions = common + own_share * (own - common)
            blends = (self.after[rows] - before) * fractions + before
        return np.asarray(np.where(self.fractional & np.isfinite(blends), blends, before))


class Timer:
    """Times a program in a confined process, which steps from observations near recorded ones.

    The clock runs outside that process. Each round has inputs that no process of the program has
    received before: observations between a recorded one and the next, drawn after the answer of
    the previous round. Only whole numbers repeat. The answers of a round are returned as sums with
    new random weights. `check` lets other processes predict some passes. The
    limits of a decision hold for each call of `walk`. Close the timer with `with`.

    Args:
        sandbox: The sandbox.
        program: The text of the program.
        rows: Recorded transitions.
        notes: Receives the reason for each form that does not exist.
        seed: Seed of the program's random numbers.
    """

    def __init__(
        self,
        sandbox: Sandbox,
        program: str,
        rows: Dataset,
        notes: dict[str, str] | None = None,
        *,
        seed: int = 0,
    ) -> None:
        leaves = list(rows.observation_space.leaves("observations"))
        self._blends = {
            leaf.name: blend
            for leaf in leaves
            if leaf.space.is_float and (blend := _Blend.of(rows, leaf.name)).fractional.any()
        }
        changing = [blend.changing for blend in self._blends.values()]
        changes = np.any(changing, axis=0) if changing else np.ones(len(rows), bool)
        self._drawable = np.flatnonzero(changes if changes.any() else ~changes)
        self._job = TimingJob.of(
            program,
            rows,
            seed=seed,
            columns=rows.select("observations", "actions"),
            fresh=[leaf.name in self._blends for leaf in leaves],
        )
        self._rows, self._sandbox = rows, sandbox
        self._rng = np.random.default_rng(secrets.randbits(128))
        # the reward, the end of the episode, and the components of the observation
        self._numbers = 2 + sum(
            leaf.space.size
            if leaf.space.kind != "text"
            else np.dtype(slot_type(leaf.space)).itemsize
            for leaf in leaves
        )
        self._passes: dict[str, list[_Pass]] = {}
        self._conversation = sandbox.converse(self._job)
        self.notes = {} if notes is None else notes

    def walk(self, form: str, steps: int) -> TimedSteps:
        """Time at least this many steps of a form; if it does not exist, `notes` get the reason.

        Args:
            form: One of `TIMED_FORMS`.
            steps: The number of steps; in the batched form each step is a step of all rows.

        Raises:
            ProgramFailed: If the program fails.
        """
        count = len(self._rows) if form == "batched" else min(steps, len(self._rows))
        passes = steps if form == "batched" else -(-steps // count)
        rows = self._rng.choice(self._drawable, (passes, count))
        common = self._rng.random((passes, count))
        inputs = TimedInputs(
            rows, [b.between(rows, common, self._rng) for b in self._blends.values()]
        )
        lanes = [np.moveaxis(leaf, 1, -1) for leaf in inputs.leaves] if form == "batched" else None
        key, weights = secrets.token_bytes(KEY_SIZE), self._rng.standard_normal(count)
        sealed = inputs._replace(leaves=lanes or inputs.leaves).seal(key)
        conversation, sums = self._conversation, b""
        try:
            conversation.send(ROUND.pack(TIMED_FORMS.index(form), passes, count) + sealed)
            conversation.receive(len(READY))
            conversation.rest()
            # The clock starts with the key: only now the process can read its inputs.
            started = time.perf_counter()
            conversation.send(key + weights.astype("<f8").tobytes())
            exists, note = PASSED.unpack(conversation.receive(PASSED.size))
            if exists:
                sums = conversation.receive(8 * passes * self._numbers)
            seconds = time.perf_counter() - started
        except EOFError:
            if self._blends:
                self.notes[form] = BETWEEN
            raise ProgramFailed(conversation.failure()) from None
        conversation.rest()
        if not exists and form == "scalar":  # the scalar form is the program, so it exists
            raise ProgramFailed(OTHERWISE)
        if not exists:
            reason = note.rstrip(b"\0").decode("utf-8", "replace")
            self.notes[form] = printable(reason, MAX_NOTE_BYTES)
            return TimedSteps(0, seconds)
        # Drawn after the answer, so that the program does not know which pass will be checked.
        place = int(self._rng.integers(passes))
        checked = TimedInputs(inputs.rows[place], [leaf[place] for leaf in inputs.leaves])
        table = np.frombuffer(sums, "<f8").reshape(passes, self._numbers)
        self._passes.setdefault(form, []).append(_Pass(checked, weights, table[place]))
        return TimedSteps(passes * count, seconds)

    def check(self) -> None:
        """Compare the sums of some passes with predictions of other processes.

        Random parts of the predictions are not compared.

        Raises:
            ProgramFailed: If a sum differs.
        """
        for form, passes in self._passes.items():
            # Six passes find errors in half of all passes with probability 0.98.
            for index in self._rng.permutation(len(passes))[:6]:
                timed = passes[index]
                with np.errstate(over="ignore", invalid="ignore"):
                    expected, sizes = self._expected_sums(timed)
                tolerance = (EXACT if form == "scalar" else 1e-6) * sizes
                if not (np.abs(timed.sums - expected) <= tolerance).all():
                    raise ProgramFailed(OTHERWISE)

    def _expected_sums(self, timed: _Pass) -> tuple[np.ndarray, np.ndarray]:
        """Return the sums of predictions for a pass, and their sizes for the tolerance.

        A size is 1 + the sum of absolute values, and infinite for random parts.
        """
        rows = self._rows[timed.inputs.rows]
        fresh = dict(zip(self._blends, timed.inputs.leaves, strict=True))
        rows = replace(rows, columns={**rows.columns, **fresh})
        predictions = []
        for seed in range(1 + self._job.draws):  # random parts differ between two seeds
            columns, failure = self._sandbox.predict(self._job.program, rows, seed=seed)
            if failure is not None:
                raise ProgramFailed(failure)
            ordered = []
            for leaf in rows.observation_space.leaves("next_observations"):
                column = columns[leaf.name]
                if leaf.space.kind == "text":  # texts are summed as their bytes
                    column = np.char.encode(column, "utf-8").astype(slot_type(leaf.space))
                ordered.append(column)
            predictions.append([*ordered, columns["rewards"], columns["terminations"]])
        expected = [sum_columns(columns, timed.weights) for columns in predictions]
        absolute = [np.abs(c) if c.dtype.kind != "S" else c for c in predictions[0]]
        sizes = sum_columns(absolute, abs(timed.weights))
        is_random = np.abs(expected[0] - expected[-1]) > EXACT * sizes
        return expected[0], np.where(is_random, np.inf, sizes + 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._conversation.close()
