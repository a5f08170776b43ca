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
    SIGMA,
    ConstantFit,
    Correction,
    FitLimits,
    LimitReached,
    put,
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
        kinds = sorted({each.kind for each in fit.constants})
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
    values = zip(fit.constants, fit.written, fit.values(fit.steps), fit.steps, strict=True)
    pairs = [(each, written, value) for each, written, value, step in values if step]
    corrections = [Correction(each.name, f"{a:.10g}", f"{b:.10g}") for each, a, b in pairs]
    lines = {fit.program.count("\n", 0, each.span[0]) for each, *_ in pairs}
    medians = np.median(np.abs(fit.errors), axis=0).tolist()
    return Calibration(
        # Ten digits are more than float32 has.
        program=add_comments(fit.text(fit.steps, digits=10), lines),
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
    slopes = fit.slopes(fit.steps, every, rows).reshape(-1, len(every))
    moved = [n for n in np.flatnonzero(fit.steps).tolist() if n not in fit.searched]
    restored = _restore(fit, moved, slopes, rows)
    _round(fit, np.array([n for n in moved if fit.steps[n]], int), rows)
    unset = [
        n
        for n in np.flatnonzero(np.abs(slopes).max(axis=0) <= EFFECT).tolist()
        if not fit.steps[n]
        and n not in fit.searched
        and fit.constants[n].kind == ConstantKind.DECLARED
    ]
    return [fit.constants[n].name for n in (*restored, *unset)]


def _restore(fit: ConstantFit, moved: list[int], slopes: np.ndarray, rows: np.ndarray) -> list[int]:
    """Restore constants that others can compensate; return the undetermined constants.

    An example is one of two constants that only act as a ratio. Constants without a name and
    constants that are written as 1 are restored first, because most belong to a formula or a unit.
    """
    undetermined, free = [], list(moved)
    keys = {n: (" in line " not in fit.constants[n].name, fit.written[n] != 1.0) for n in moved}
    for n in sorted(moved, key=lambda n: (*keys[n], abs(fit.steps[n]))):
        others = [other for other in free if other != n]
        rest, shift = residual_of(slopes[:, n], slopes[:, others])
        size = np.abs(slopes[:, n]).max()
        if np.abs(rest).max() > max(0.02 * size, FINE / abs(fit.steps[n])):
            continue
        steps = put(fit.steps, n, 0.0)
        steps[others] += np.clip(shift * fit.steps[n], -MAX_MOVE, MAX_MOVE)
        if others:
            steps = fit.descend(steps, np.array(others), rows, turns=3, shares=(0.5,))
        if size * abs(fit.steps[n]) >= 1:
            undetermined.append(n)
        if fit.accept(steps, or_equal=True, growth=1.0):
            free = others
        elif undetermined[-1:] == [n]:
            undetermined.pop()
    return undetermined


def _round(fit: ConstantFit, moved: np.ndarray, rows: np.ndarray) -> None:
    """Round constants within the error of the fit, the best determined first.

    A constant may move by two standard errors, or until a prediction changes by a fraction of the
    tolerance. The loss may not grow, and the errors may not grow more than the moves explain.
    """
    if not len(moved):
        return
    slopes = fit.slopes(fit.steps, moved, rows).reshape(-1, len(moved))
    errors = _standard_errors(slopes, fit.errors[rows])
    growth = MAX_ROUNDING**2 * len(moved) * len(fit.rows) / len(rows)
    for share in (1.0, 0.1, 0.01):
        steps, left = fit.steps.copy(), list(range(len(moved)))
        while left:
            slack = {}
            for n in left:
                rest, _ = residual_of(slopes[:, n], slopes[:, [m for m in left if m != n]])
                unseen = FINE / max(np.abs(rest).max(initial=0.0), 1e-12)
                slack[n] = min(share * max(unseen, MAX_ROUNDING * errors[n]), 0.05)
            n = min(left, key=lambda each: slack[each])
            left.remove(n)
            place, written = moved[n], fit.written[moved[n]]
            now = fit.values(steps)[place]
            reach = slack[n] * (abs(now) if written else 1.0)
            step = fit.step_to(place, simplest(now - reach, now + reach, written))
            if left:
                _, shift = residual_of(slopes[:, n], slopes[:, left])
                change = np.clip(shift * (step - steps[place]), -MAX_MOVE, MAX_MOVE)
                steps[moved[left]] -= change
            steps[place] = step
        if fit.accept(steps, or_equal=True, growth=growth):
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
