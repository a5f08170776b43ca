"""Hidden clocks: a mode that is on for some steps and off for others, in turn.

The phase at the start of an episode may be unknown. Two regressions, one for each mode, are fitted
by alternating assignment of rows (classification EM; Celeux and Govaert, 1992). Then the
search takes the period, the length of a mode and the phases with the best agreement.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cwm_induction.continuous.samples import Array
from cwm_induction.effort import Effort
from cwm_induction.memory.history import RecordedHistory, RememberedQuantity
from cwm_induction.memory.lagging import Regressions
from cwm_induction.writing.rounding import literal

MAX_PERIOD = 24
"""Longest period that is tried, in steps."""

ROUNDS = 12
"""Rounds of fitting and assigning."""

LEAST_GAIN = 60.0
"""Minimum gain of a clock in nats, beyond its penalty."""

CLIP = 6.0
"""Largest evidence of one row: a row that no mode explains must not decide."""


_CLOCK = '''
    def is_on(self):
        """Return whether the clock is on, for the phase with the smallest error so far."""
        *_, age, errors = self.memory
        return int((age + errors.index(min(errors))) % {period} < {length})

    def judged(self, after):
        """Add the errors that the last outcome has for each phase at the start."""
        now, memory, action = self.before
        *_, age, errors = memory
        off = []
        for is_on in (0, 1):
            self.set_state([*now, *memory[:{given}], is_on])
            numbers = np.asarray(super().step({executed})[0])[:{size}]
            off.append(min(float(np.sum(((numbers - after) / {scale}) ** 2)), 9.0))
        return tuple(
            error + off[int((age + phase) % {period} < {length})]
            for phase, error in enumerate(errors)
        )
'''


@dataclass(frozen=True)
class Clock:
    """A mode that is on for `length` of `period` steps; `phases` (rows) is 0 when it turns on."""

    period: int
    length: int
    phases: Array
    starts: tuple[int, ...]
    """The phases at the start of the recorded episodes."""
    scale: float
    """The usual error of a prediction for the wrong mode."""

    @property
    def mode(self) -> RememberedQuantity:
        """The mode as a number, which the program takes as a further component."""
        values = (self.phases < self.length).astype(float)
        return RememberedQuantity("clock", "", "", values, "whether the hidden clock is on")

    @property
    def memory(self) -> list[RememberedQuantity]:
        """The age of the episode, and the error of each possible phase at its start."""
        nothing = np.zeros(len(self.phases))
        known = len(set(self.starts)) == 1
        errors = [
            0.0 if not known or phase == self.starts[0] else 1e6 for phase in range(self.period)
        ]
        start = repr(tuple(errors)) if known else f"(0.0,) * {self.period}"
        meaning = f"the error of each phase of a clock at the start, of {self.period} steps"
        return [
            RememberedQuantity(
                "age", "0", "age + 1", nothing, "the number of steps of the episode"
            ),
            RememberedQuantity("errors", start, "self.judged(after)", nothing, meaning),
        ]

    def methods(self, given: int, size: int, executed: str) -> str:
        """Write the methods that estimate the phase of the clock.

        Args:
            given: Number of other remembered quantities that the equations read.
            size: Number of observed numbers.
            executed: Expression of the action in effect.
        """
        return _CLOCK.format(
            period=self.period,
            length=self.length,
            given=given,
            size=size,
            executed=executed.replace("self.memory", "memory"),
            scale=literal(self.scale),
        )


def clock_of(
    history: RecordedHistory,
    regressions: Regressions,
    known: Sequence[RememberedQuantity],
    effort: Effort,
) -> Clock | None:
    """Return the clock that explains most of what known quantities leave, or None."""
    rows = regressions.rows
    matrix = regressions.matrix([quantity.values for quantity in known], regressions.actions)
    weights = np.linalg.lstsq(matrix[rows], regressions.targets[rows], rcond=1e-7)[0]
    left = regressions.targets - matrix @ weights
    spread = left[rows].std(0) + regressions.grain
    best, most = None, LEAST_GAIN
    for start in (left > 0).T:
        if not effort.spend(8.0 * ROUNDS * matrix.size * matrix.shape[1]):
            break
        modes, clock, gain = start, None, 0.0
        for turn in range(2 * ROUNDS):
            errors = _errors(matrix, regressions.targets / spread, rows, modes)
            if errors is None:
                break
            if turn < ROUNDS:
                modes = errors[1] < errors[0]
                continue
            evidence = np.clip(errors[0] - errors[1], -CLIP, CLIP)
            clock = _fitted(history, np.where(history.terminated, 0.0, evidence), float(spread[0]))
            modes = clock.phases < clock.length
            base = 0.5 * left.shape[1] * rows.sum()
            gain = base - float(np.where(modes, errors[1], errors[0])[rows].sum())
            gain -= 0.5 * left.shape[1] * matrix.shape[1] * np.log(rows.sum())
            gain -= (1 + len(clock.starts)) * np.log(clock.period)
        if clock is not None and gain > most:
            best, most = clock, gain
    return best


def _errors(matrix: Array, targets: Array, rows: Array, modes: Array) -> Array | None:
    """Return the negative log-likelihood (2, rows) of each mode, None if a mode is rare."""
    errors = []
    for part in (rows & ~modes, rows & modes):
        if part.sum() < matrix.shape[1]:
            return None
        gram = matrix[part].T @ matrix[part] + 1e-4 * part.sum() * np.eye(matrix.shape[1])
        weights = np.linalg.solve(gram, matrix[part].T @ targets[part])
        errors.append((matrix @ weights - targets) ** 2)
    noise = np.where(modes[:, None], errors[1], errors[0])[rows].mean(0) + 1e-6
    return np.array([(0.5 * error / noise + 0.5 * np.log(noise)).sum(1) for error in errors])


def _fitted(history: RecordedHistory, evidence: Array, scale: float) -> Clock:
    """Return the clock that agrees best with the evidence for modes."""
    age, episodes = history.age, np.cumsum(history.first) - 1
    count = int(episodes[-1]) + 1
    best, most = None, -np.inf
    for period in range(2, MAX_PERIOD + 1):
        folded = np.zeros((count, period))
        np.add.at(folded, (episodes, age % period), evidence)
        shifts = (np.arange(period)[:, None] + np.arange(period)) % period
        for length in range(1, period):
            signs = np.where(shifts < length, 1.0, -1.0)
            scores = folded @ signs.T
            score = float(scores.max(1).sum()) - count * np.log(period)
            if score > most:
                best, most = (period, length, scores.argmax(1)), score
    assert best is not None
    period, length, starts = best
    phases = (age + starts[episodes]) % period
    return Clock(period, length, phases, tuple(starts.tolist()), scale)
