"""Calibration: a program gets the numbers with which it predicts what was recorded.

A program that has the right law and wrong constants scores next to nothing, and no edit by hand
mends that: a fit does, and costs no completion. This is the refiner, and what it reports.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_cli.problems.world_model import WorldModelProblem
from cwm_cli.search.contracts import Refinement, RefinementTask, Refiner, unheard
from cwm_induction.refining.fitting import (
    ACTS,
    FINE,
    LEAST,
    MOST_STEPS,
    SAMPLE,
    SIGMA,
    WIDEST,
    Correction,
    Fitting,
    OutOfWork,
    Work,
    left_over,
    simplest,
)
from cwm_induction.refining.lifting import NumberKind, annotated

if TYPE_CHECKING:
    from cwm_cli.sandbox import Sandbox

ERRORS = 2.0
"""The most that rounding may move a number, in standard errors."""

DIGITS = 10
"""Significant digits of what is written: more than float32 can tell apart."""

SAME = 1e-9
"""Relative change of a number that counts as none."""


@dataclass(frozen=True)
class Calibration:
    """What a fit came to: the program, what changed in it, and what is left.

    `wrong` are the fitted rows that it does not predict, of `rows`, and `wrong_before` those of
    the program as it was. `floor` is the median error of each number that is predicted, in
    units of what the metric forgives. `unidentified` are numbers that the rows do not determine.
    """

    program: str
    corrections: tuple[Correction, ...]
    unidentified: tuple[str, ...]
    floor: dict[str, float]
    wrong: int
    wrong_before: int
    rows: int
    failing: str = ""
    steps: int = 0
    stopped: str = ""

    @property
    def findings(self) -> str:
        """Say what was found, to whoever betters the program next."""
        lines = [
            f"Its numbers were fitted to the {self.rows} fitting transitions: "
            f"{self.rows - self.wrong} are right in every part (before: "
            f"{self.rows - self.wrong_before})."
        ]
        if self.corrections:
            moved = ", ".join(
                f"{each.name} {each.before} -> {each.after}" for each in self.corrections
            )
            lines.append(f"Changed: {moved}.")
        if self.unidentified:
            lines.append(f"Not determined by these rows: {', '.join(self.unidentified)}.")
        left = {name: size for name, size in self.floor.items() if size > 1}
        if self.stopped:
            lines.append(f"The fit stopped after {self.stopped}.")
        elif left and self.wrong:
            sizes = ", ".join(f"{name} {size:.3g}" for name, size in left.items())
            lines.append(
                f"No value of the numbers brings these below their median error, in units of "
                f"the tolerance: {sizes}. The formula lacks a term."
            )
        if self.failing:
            lines.append(self.failing)
        return "\n".join(lines)


@dataclass(frozen=True)
class Calibrate(Refiner):
    """Fits the numbers of a program, those that it declares and others, to the fitted rows."""

    calibrate_seconds: float = 30.0
    """Maximum time in seconds for fitting the numbers of one program."""
    calibrate_steps: int = MOST_STEPS
    """Maximum number of program steps in a fit."""
    calibrate_literals: bool = True
    """Also fit numbers that the program does not declare in PARAMETERS."""

    def refine(self, task: RefinementTask) -> Refinement | None:
        """Fit a program; None for other problems, without numbers to fit, and under chance.

        The fit compares single predictions with rows, so it would fit draws.
        """
        problem = task.problem
        if not isinstance(problem, WorldModelProblem) or problem.contract == "chance":
            return None
        rows = problem.dataset[problem.dataset.fitted]
        weights = problem.metric.weights(rows)
        found = self.fit(
            task.node.program, rows, problem.sandbox, weights, seed=task.seed, tell=task.tell
        )
        if found is None:
            return None
        return Refinement(found.program if found.corrections else "", found.findings)

    def fit(
        self,
        program: str,
        rows: Dataset,
        sandbox: Sandbox,
        weights: np.ndarray | None = None,
        *,
        seed: int = 0,
        tell: Callable[[str], None] = unheard,
    ) -> Calibration | None:
        """Fit the numbers of a program to rows, which weigh the same unless `weights` say more.

        None where it has no numbers, is right, or answers to no row. What it declares comes
        first, other numbers if that is not enough.
        """
        work = Work(self.calibrate_seconds, self.calibrate_steps)
        fit = Fitting(program, rows, sandbox, weights, work, seed)
        kinds = [
            kind for kind in NumberKind if self.calibrate_literals or kind == NumberKind.DECLARED
        ]
        kinds = [kind for kind in kinds if any(each.kind == kind for each in fit.numbers)]
        if not (kinds or fit.choices) or not fit.begin():
            return None
        stopped = ""
        try:
            tell(f"fitting {len(fit.numbers)} numbers to {len(fit.rows)} rows")
            fit.fix_time_step(kinds)
            fit.choose([kind for kind in kinds if kind <= NumberKind.NAMED])
            first = 1 + (NumberKind.MECHANISM in kinds[1:2])  # which is declared by its nature
            for last in range(first, len(kinds) + 1):
                fit.settle(kinds[:last], is_last=last == len(kinds))
                if not fit.wrong.any():
                    break
        except OutOfWork as reached:
            stopped = str(reached)
        return _result(fit, stopped)


def _result(fit: Fitting, stopped: str) -> Calibration:
    """Write the program with simple numbers, and say what was found."""
    unidentified: list[str] = []
    fit.work.extend()
    try:
        unidentified = _simplified(fit)
    except OutOfWork as reached:
        stopped = stopped or str(reached)
    pairs = [
        (each, was, value)
        for each, was, value in zip(fit.numbers, fit.first, fit.values, strict=True)
        if abs(value - was) > SAME * abs(was)
    ]
    lines = {fit.program.count("\n", 0, each.place[0]) for each, *_ in pairs}
    return Calibration(
        program=annotated(fit.text(fit.values, DIGITS), lines),
        corrections=(
            *fit.taken,
            *(Correction(each.name, f"{was:.10g}", f"{now:.10g}") for each, was, now in pairs),
        ),
        unidentified=tuple(unidentified),
        floor=dict(
            zip(fit.components, np.median(np.abs(fit.errors), axis=0).tolist(), strict=True)
        ),
        wrong=int(fit.wrong.sum()),
        wrong_before=int(fit.wrong_before.sum()),
        rows=len(fit.rows),
        failing=_failing(fit),
        steps=fit.work.done,
        stopped=stopped,
    )


def _failing(fit: Fitting) -> str:
    """Say in which parts rows are still wrong, and whether that depends on the action."""
    if not fit.wrong.any() or fit.wrong.all():
        return ""
    far = (np.abs(fit.errors) > 1).any(axis=0)
    parts = [
        f"{name} in {int((np.abs(fit.errors[:, place]) > 1).sum())}"
        for place, name in enumerate(fit.components)
        if far[place]
    ]
    actions = fit.rows.columns.get("actions")
    if actions is not None and actions.ndim == 1 and actions.dtype.kind in "iu":
        shares = {
            int(action): (int(fit.wrong[actions == action].sum()), int((actions == action).sum()))
            for action in np.unique(actions)
        }
        parts.append(
            "by action "
            + ", ".join(f"{action}: {bad} of {every}" for action, (bad, every) in shares.items())
        )
    return f"Still wrong are {int(fit.wrong.sum())} transitions: {'; '.join(parts)}."


def _simplified(fit: Fitting) -> list[str]:
    """Take back what need not have moved, round the rest; return what rows do not determine."""
    for place in sorted(fit.searched):
        fit.bracket(place)
    rows = fit.sample[~fit.wrong[fit.sample]]
    rows = fit.sample if fit.is_noisy or not len(rows) else rows
    every = list(range(len(fit.numbers)))
    slopes = fit.slopes(fit.values, np.array(every), rows).reshape(-1, len(every))
    idle = [n for n in every if np.abs(slopes[:, n]).max() <= ACTS and n not in fit.searched]
    settled = fit.searched | fit.fixed
    smooth = [n for n in every if fit.values[n] != fit.first[n] and n not in settled]
    pinned = _take_back(fit, smooth, slopes, rows)
    left = np.array([n for n in smooth if fit.values[n] != fit.first[n]], int)
    _round(fit, left, rows)
    _follow_twins(fit, idle)
    still = [n for n in idle if fit.values[n] == fit.first[n]]
    named = [n for n in still if fit.numbers[n].kind == NumberKind.DECLARED]
    return [fit.numbers[n].name for n in (*sorted(fit.redundant), *pinned, *named)]


def _take_back(fit: Fitting, moved: list[int], slopes: np.ndarray, rows: np.ndarray) -> list[int]:
    """Put numbers back that others make up for; return those that rows do not determine."""
    values, free, pinned = fit.values.copy(), list(moved), []
    for n in sorted(moved, key=lambda n: abs(fit.values[n] / (fit.first[n] or 1.0) - 1)):
        others = [other for other in free if other != n]
        way = np.log(fit.first[n] / values[n]) if fit.first[n] else 0.0
        rest, shift = left_over(slopes[:, n], slopes[:, others])
        if np.abs(rest).max(initial=0.0) * abs(way) < FINE:
            free = others
            values[n] = fit.first[n]
            values[others] *= np.exp(-shift * way)
            if np.abs(slopes[:, n]).max() * abs(way) >= 1:
                pinned.append(n)
    if len(free) == len(moved):
        return []
    again = np.union1d(rows, np.flatnonzero(~fit.wrong)[:SAMPLE])
    if free:
        values = fit.descend(values, np.array(free), again, turns=8, shares=(0.5,))
    return pinned if fit.accept(values, at_least=True) else []


def _round(fit: Fitting, moved: np.ndarray, rows: np.ndarray) -> None:
    """Round numbers within the error of the fit, the best determined first.

    A number may move by two standard errors, or until an answer changes by a share of the
    tolerance. The score may not fall, and the errors may not grow more than the moves explain.
    """
    if not len(moved):
        return
    slopes = fit.slopes(fit.values, moved, rows).reshape(-1, len(moved))
    errors = _standard_errors(slopes, fit.errors[rows])
    for share in (1.0, 0.1, 0.01):
        values, left = fit.values.copy(), list(range(len(moved)))
        while left:
            slack = {}
            for n in left:
                rest, _ = left_over(slopes[:, n], slopes[:, [m for m in left if m != n]])
                unseen = FINE / max(np.abs(rest).max(initial=0.0), 1e-12)
                slack[n] = share * max(unseen, ERRORS * errors[n])
            n = min(left, key=lambda each: slack[each])
            left.remove(n)
            place, now = moved[n], values[moved[n]]
            reach = abs(now) * min(slack[n], 0.05)
            values[place] = simplest(now - reach, now + reach, fit.first[place])
            if left and values[place] * now > 0:
                _, shift = left_over(slopes[:, n], slopes[:, left])
                others = -shift * np.log(values[place] / now)
                values[moved[left]] *= np.exp(np.clip(others, -WIDEST, WIDEST))
        growth = ERRORS**2 * len(moved) * len(fit.rows) / len(rows)
        if fit.accept(values, at_least=True, growth=growth):
            return


def _standard_errors(slopes: np.ndarray, errors: np.ndarray) -> np.ndarray:
    """Return the standard errors (numbers,) of fitted numbers, relative to their values.

    They follow from the covariance of least squares, inv(J' J) with residuals of unit variance;
    each component is divided by the robust standard deviation of its residuals.

    Args:
        slopes: Change of each answer with the logarithm of each number, in tolerances:
            (rows * components, numbers).
        errors: Residuals in tolerances: (rows, components).
    """
    spread = np.maximum(SIGMA * np.median(np.abs(errors), axis=0), LEAST)
    weighted = slopes / np.tile(spread, len(errors))[:, None]
    variances = np.diag(np.linalg.pinv(weighted.T @ weighted))
    relative: np.ndarray = np.sqrt(np.maximum(variances, 0.0))
    return relative


def _follow_twins(fit: Fitting, idle: list[int]) -> None:
    """Let numbers that no row touches follow one of the same size that was written beside them.

    The two ends of a range are hardly ever of another size, and often only one of them is met.
    """
    values = fit.values.copy()
    for n in idle:
        family = _family(fit.numbers[n].name)
        for twin in np.flatnonzero(fit.values != fit.first):
            alike = abs(fit.first[twin]) == abs(fit.first[n]) and twin not in idle
            if alike and _family(fit.numbers[twin].name) == family:
                values[n] = np.copysign(fit.values[twin], fit.first[n])
    if (values != fit.values).any():
        fit.accept(values, at_least=True)


def _family(name: str) -> str:
    """Return what numbers that belong together have in common: the list, or the line."""
    _, is_literal, line = name.partition(" in line ")
    return line if is_literal else name.rpartition("[")[0]
