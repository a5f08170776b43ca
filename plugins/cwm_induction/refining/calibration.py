"""The refiner `calibrate`: it fits the constants of a program, rounds them and reports them.

A program with the right law and wrong constants scores next to nothing, and a fit costs no
completion.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_cli.problems.world_model import WorldModelProblem
from cwm_cli.search.contracts import Refinement, RefinementTask, Refiner, unheard
from cwm_induction.refining.constants import ConstantKind, add_comments, simplest
from cwm_induction.refining.fitting import (
    EFFECT,
    FINE,
    MAX_MOVE,
    MAX_STEPS,
    SAMPLE,
    SIGMA,
    ConstantFit,
    Correction,
    FitLimits,
    LimitReached,
    residual_of,
)

if TYPE_CHECKING:
    from cwm_cli.sandbox import Sandbox

MAX_ROUNDING = 2.0
"""Most that rounding may move a constant, in standard errors."""


@dataclass(frozen=True)
class Calibration:
    """The result of a fit.

    Attributes:
        program: The program with the fitted constants.
        corrections: The constants and choices that changed.
        unidentified: The constants that the rows do not determine.
        floor: The median error of each predicted number, in tolerances of the metric.
        wrong: The number of wrong rows after the fit.
        wrong_before: The number of wrong rows before the fit.
        rows: The number of rows.
        failing: A sentence about the wrong components and rows that remain.
        steps: The number of program steps that the fit took.
        stopped: The limit that stopped the fit, "" if none did.
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
        """The findings in words, for the next prompt."""
        right, before = self.rows - self.wrong, self.rows - self.wrong_before
        lines = [
            f"Its numbers were fitted to the {self.rows} fitting transitions: "
            f"{right} are right in every part (before: {before})."
        ]
        if self.corrections:
            moved = (f"{each.name} {each.before} -> {each.after}" for each in self.corrections)
            lines.append(f"Changed: {', '.join(moved)}.")
        if self.unidentified:
            lines.append(f"Not determined by these rows: {', '.join(self.unidentified)}.")
        left = [f"{name} {size:.3g}" for name, size in self.floor.items() if size > 1]
        if self.stopped:
            lines.append(f"The fit stopped after {self.stopped}.")
        elif left and self.wrong:
            lines.append(
                f"No value of the numbers brings these below their median error, in units of "
                f"the tolerance: {', '.join(left)}. The formula lacks a term."
            )
        return "\n".join([*lines, *([self.failing] if self.failing else [])])


@dataclass(frozen=True)
class Calibrate(Refiner):
    """Fits the constants of a program to the fitted rows."""

    calibrate_seconds: float = 30.0
    """Maximum time in seconds for fitting the numbers of one program."""
    calibrate_steps: int = MAX_STEPS
    """Maximum number of program steps in a fit."""
    calibrate_literals: bool = True
    """Also fit numbers that the program does not declare in PARAMETERS."""

    def refine(self, task: RefinementTask) -> Refinement | None:
        """Fit a program; return None for other problems, and if nothing can be fitted.

        Programs with chance are not fitted, because the fit would adjust to single draws.
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
        """Fit the constants of a program; declared ones first, others if these are not enough.

        Args:
            program: The text of the program.
            rows: The recorded rows.
            sandbox: The sandbox that runs the program.
            weights: The weight of each row in the score, equal by default.
            seed: The seed of samples and random starts.
            tell: A function that receives the progress.

        Returns:
            The result, None if the program has no constants, is right, or fails in all rows.
        """
        limits = FitLimits(self.calibrate_seconds, self.calibrate_steps)
        fit = ConstantFit(program, rows, sandbox, weights, limits, seed)
        present = {each.kind for each in fit.constants}
        allowed = ConstantKind if self.calibrate_literals else [ConstantKind.DECLARED]
        kinds = [kind for kind in allowed if kind in present]
        if not (kinds or fit.choices) or not fit.begin():
            return None
        stopped, unidentified = "", list[str]()
        try:
            tell(f"fitting {len(fit.constants)} numbers to {len(fit.rows)} rows")
            fit.choose([kind for kind in kinds if kind <= ConstantKind.NAMED])
            # Declared constants and the constants of a model are fitted together.
            first = 1 + (ConstantKind.MODEL in kinds[1:2])
            for count in range(first, len(kinds) + 1):
                fit.fit_kinds(kinds[:count], is_last=count == len(kinds))
                if not fit.wrong.any():
                    break
        except LimitReached as reached:
            stopped = str(reached)
        limits.extend()
        try:
            unidentified = _simplify(fit)
        except LimitReached as reached:
            stopped = stopped or str(reached)
        return _result(fit, unidentified, stopped)


def _result(fit: ConstantFit, unidentified: list[str], stopped: str) -> Calibration:
    pairs = [
        (each, written, value)
        for each, written, value in zip(fit.constants, fit.written, fit.values, strict=True)
        if abs(value - written) > 1e-9 * abs(written)
    ]
    corrections = [Correction(each.name, f"{a:.10g}", f"{b:.10g}") for each, a, b in pairs]
    lines = {fit.program.count("\n", 0, each.span[0]) for each, *_ in pairs}
    medians = np.median(np.abs(fit.errors), axis=0).tolist()
    return Calibration(
        # Ten digits are more than float32 has.
        program=add_comments(fit.text(fit.values, digits=10), lines),
        corrections=(*fit.chosen, *corrections),
        unidentified=tuple(unidentified),
        floor=dict(zip(fit.components, medians, strict=True)),
        wrong=int(fit.wrong.sum()),
        wrong_before=int(fit.wrong_before.sum()),
        rows=len(fit.rows),
        failing=_describe_failures(fit),
        steps=fit.limits.used,
        stopped=stopped,
    )


def _describe_failures(fit: ConstantFit) -> str:
    """Return the wrong components, and the wrong rows of each action."""
    if not fit.wrong.any() or fit.wrong.all():
        return ""
    counts = (np.abs(fit.errors) > 1).sum(axis=0).tolist()
    parts = [f"{name} in {n}" for name, n in zip(fit.components, counts, strict=True) if n]
    actions = fit.rows.columns.get("actions")
    if actions is not None and actions.ndim == 1 and actions.dtype.kind in "iu":
        masks = ((action, actions == action) for action in np.unique(actions))
        shares = (f"{action}: {fit.wrong[mask].sum()} of {mask.sum()}" for action, mask in masks)
        parts.append(f"by action {', '.join(shares)}")
    return f"Still wrong are {int(fit.wrong.sum())} transitions: {'; '.join(parts)}."


def _simplify(fit: ConstantFit) -> list[str]:
    """Restore and round constants; return the names of undetermined constants."""
    for n in sorted(fit.searched):
        fit.round_threshold(n)
    rows = fit.sample[~fit.wrong[fit.sample]]
    rows = fit.sample if fit.is_noisy or not len(rows) else rows
    every = np.arange(len(fit.constants))
    slopes = fit.slopes(fit.values, every, rows).reshape(-1, len(every))
    is_idle = np.abs(slopes).max(axis=0) <= EFFECT
    idle = [n for n in every.tolist() if is_idle[n] and n not in fit.searched]
    smooth = [
        n for n in np.flatnonzero(fit.values != fit.written).tolist() if n not in fit.searched
    ]
    restored = _restore(fit, smooth, slopes, rows)
    _round(fit, np.array([n for n in smooth if fit.values[n] != fit.written[n]], int), rows)
    _follow_twins(fit, idle)
    unset = [
        n
        for n in idle
        if fit.values[n] == fit.written[n] and fit.constants[n].kind == ConstantKind.DECLARED
    ]
    return [fit.constants[n].name for n in (*sorted(fit.redundant), *restored, *unset)]


def _restore(fit: ConstantFit, moved: list[int], slopes: np.ndarray, rows: np.ndarray) -> list[int]:
    """Restore constants that others can compensate; return the undetermined constants."""
    values, free, undetermined = fit.values.copy(), list(moved), []
    for n in sorted(moved, key=lambda n: abs(fit.values[n] / (fit.written[n] or 1.0) - 1)):
        others = [other for other in free if other != n]
        way = np.log(fit.written[n] / values[n]) if fit.written[n] else 0.0
        rest, shift = residual_of(slopes[:, n], slopes[:, others])
        if np.abs(rest).max(initial=0.0) * abs(way) < FINE:
            free = others
            values[n] = fit.written[n]
            values[others] *= np.exp(-shift * way)
            if np.abs(slopes[:, n]).max() * abs(way) >= 1:
                undetermined.append(n)
    if len(free) == len(moved):
        return []
    if free:
        again = np.union1d(rows, np.flatnonzero(~fit.wrong)[:SAMPLE])
        values = fit.descend(values, np.array(free), again, turns=8, shares=(0.5,))
    return undetermined if fit.accept(values, or_equal=True) else []


def _round(fit: ConstantFit, moved: np.ndarray, rows: np.ndarray) -> None:
    """Round constants within the error of the fit, the best determined first.

    A constant may move by two standard errors, or until a prediction changes by a fraction of the
    tolerance. The loss may not grow, and the errors may not grow more than the moves explain.
    """
    if not len(moved):
        return
    slopes = fit.slopes(fit.values, moved, rows).reshape(-1, len(moved))
    errors = _standard_errors(slopes, fit.errors[rows])
    growth = MAX_ROUNDING**2 * len(moved) * len(fit.rows) / len(rows)
    for share in (1.0, 0.1, 0.01):
        values, left = fit.values.copy(), list(range(len(moved)))
        while left:
            slack = {}
            for n in left:
                rest, _ = residual_of(slopes[:, n], slopes[:, [m for m in left if m != n]])
                unseen = FINE / max(np.abs(rest).max(initial=0.0), 1e-12)
                slack[n] = share * max(unseen, MAX_ROUNDING * errors[n])
            n = min(left, key=lambda each: slack[each])
            left.remove(n)
            place, now = moved[n], values[moved[n]]
            reach = abs(now) * min(slack[n], 0.05)
            values[place] = simplest(now - reach, now + reach, fit.written[place])
            if left and values[place] * now > 0:
                _, shift = residual_of(slopes[:, n], slopes[:, left])
                others = -shift * np.log(values[place] / now)
                values[moved[left]] *= np.exp(np.clip(others, -MAX_MOVE, MAX_MOVE))
        if fit.accept(values, or_equal=True, growth=growth):
            return


def _standard_errors(slopes: np.ndarray, errors: np.ndarray) -> np.ndarray:
    """Return the standard errors (constants,) of fitted constants, relative to their values.

    They follow from the covariance of least squares, inv(J' J) with residuals of unit variance;
    each component is divided by the robust standard deviation of its residuals.

    Args:
        slopes: The change of each prediction with the logarithm of each constant, in tolerances:
            (rows * components, constants).
        errors: The residuals in tolerances: (rows, components).
    """
    spread = np.maximum(SIGMA * np.median(np.abs(errors), axis=0), 1e-6)
    weighted = slopes / np.tile(spread, len(errors))[:, None]
    variances = np.diag(np.linalg.pinv(weighted.T @ weighted))
    relative: np.ndarray = np.sqrt(np.maximum(variances, 0.0))
    return relative


def _follow_twins(fit: ConstantFit, idle: list[int]) -> None:
    """Set constants without an effect to fitted ones of the same size in the same line or list.

    The two ends of a range often have the same size, and the rows may reach only one end.
    """

    def group(n: int) -> str:
        name, is_literal, line = fit.constants[n].name.partition(" in line ")
        return line if is_literal else name.rpartition("[")[0]

    values = fit.values.copy()
    for n in idle:
        for twin in np.flatnonzero(fit.values != fit.written).tolist():
            alike = abs(fit.written[twin]) == abs(fit.written[n]) and twin not in idle
            if alike and group(twin) == group(n):
                values[n] = np.copysign(fit.values[twin], fit.written[n])
    if (values != fit.values).any():
        fit.accept(values, or_equal=True)
