"""Betters a program by what it leaves over: laws for the wrong rows, guards for where they hold."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_cli.data.spaces import Columns
from cwm_cli.evaluation import match
from cwm_cli.problems.world_model import WorldModelProblem
from cwm_cli.search.contracts import Refinement, RefinementTask, Refiner
from cwm_induction.effort import Effort
from cwm_induction.flattening import is_numeric, number_leaves
from cwm_induction.patching.guards import ALWAYS, Guard, guard
from cwm_induction.patching.laws import Law, clamps, laws
from cwm_induction.patching.rows import TERMINATED, Rows, names_in
from cwm_induction.patching.writing import Correction, corrected

MOST_CORRECTIONS = 8
"""Corrections of one patch: a program that needs more is wrong in another way."""

WORK = 20_000.0
"""Units of work of a patch, of which a second takes about a thousand."""

GAIN = 5.0
"""What a wrong number less is worth, in units of the cost of laws and guards."""


@dataclass(frozen=True)
class Found:
    """A correction, what it makes of the rows, and how much better these are by it."""

    correction: Correction
    rows: Rows
    gain: float
    finding: str


@dataclass(frozen=True)
class Patch(Refiner):
    """Looks at what a program leaves over and writes corrections into it."""

    patch_seconds: float = 30.0
    """Seconds after which no further correction is looked for; what is done is counted."""

    def refine(self, task: RefinementTask) -> Refinement | None:
        """Return the program with corrections that make fitted rows right, or None."""
        problem = task.problem
        if not isinstance(problem, WorldModelProblem) or not task.node.program:
            return None
        data = problem.dataset[problem.dataset.fitted]

        def ask(program: str) -> Columns:
            columns, failure = problem.sandbox.predict(program, data, seed=problem.seed)
            return {} if failure else columns

        effort = Effort(WORK, self.patch_seconds, task.tell)
        program, findings = patched(task.node.program, data, ask, effort)
        return Refinement(program, "\n".join(findings)) if findings else None


def patched(
    program: str, data: Dataset, ask: Callable[[str], Columns], effort: Effort
) -> tuple[str, list[str]]:
    """Return a program with corrections, and these in words; `ask` predicts the rows of the data."""
    predictions = ask(program)
    if not predictions or not is_numeric(data.observation_space) or not len(data):
        return program, []
    losses = _losses(predictions, data)
    if not losses:
        return program, []
    effort.tell("looking at what the program leaves over")
    with np.errstate(all="ignore"):
        better, findings = _corrected(program, data, predictions, effort)
    if findings:
        after = ask(better)
        if after and _losses(after, data) < losses:
            return better, findings
    return program, []


def _losses(predictions: Columns, data: Dataset) -> float:
    return float(match(predictions, data).losses(data.columns["terminations"]).sum())


def _corrected(
    program: str, data: Dataset, predictions: Columns, effort: Effort
) -> tuple[str, list[str]]:
    """Correct outputs one after another, each time the one that costs least for what it mends."""
    leaves = number_leaves(data.observation_space, "observations")
    names = names_in(program, sum(leaf.space.size for leaf in leaves))
    rows = Rows.of(data, predictions, names)
    found: list[Found] = []
    while len(found) < MOST_CORRECTIONS and rows.losses:
        best = _best(rows, effort)
        if best is None:
            break
        found.append(best)
        rows = best.rows
    if not found:
        return program, []
    text = corrected(program, data, names, [one.correction for one in found])
    return text, [one.finding for one in found]


def _best(rows: Rows, effort: Effort) -> Found | None:
    """Return the correction that gains most."""
    found = [
        one
        for target in rows.now
        if rows.wrong(target).any()
        for one in _options(rows, target, effort)
    ]
    return max(found, key=lambda one: one.gain, default=None)


def _options(rows: Rows, target: str, effort: Effort) -> list[Found]:
    """Return corrections of one quantity."""
    wrong = rows.wrong(target)
    found = []
    for law, _ in clamps(rows, target):
        found.append(_found(rows, target, law, None))
    for law in laws(rows, target, effort):
        holds = rows.right(target, law.values)
        inside, outside = wrong & holds, ~wrong & ~holds
        where = guard(
            rows, target, inside & rows.counts(target), outside & rows.counts(target), effort
        )
        if where is not None:
            found.append(_found(rows, target, law, where))
    return [one for one in found if one is not None]


def _found(rows: Rows, target: str, law: Law, where: Guard | None) -> Found | None:
    """Weigh a law and its guard by the rows that they make right."""
    mask = np.ones(len(rows), bool) if where is None else where.holds
    after = rows.corrected(target, np.where(mask, law.values, rows.now[target]))
    was, now = rows.wrong(target), after.wrong(target)
    mended = int((was & ~now).sum())
    size = _size(rows, target, was)
    gain = (
        GAIN * (int(was.sum()) - int(now.sum())) - law.cost - (where.cost if where else 0.0) + size
    )
    if gain <= 0 or not mended:
        return None
    condition = "" if where is None or where.text == ALWAYS else where.text
    place = f"where {condition} " if condition else ""
    comment = f"{place}{law.words}: {mended} transitions".strip()
    value = law.text
    return Found(Correction(target, value, condition, comment), after, gain, comment)


def _size(rows: Rows, target: str, wrong: np.ndarray) -> float:
    """Return a little more for what is further off: what follows from it is mended by it."""
    if target == TERMINATED or not wrong.any():
        return 0.0
    error = np.abs(rows.truth[target] - rows.now[target])[wrong]
    return float(np.clip(0.1 * np.log10(np.median(error) + 1e-12), -1.0, 0.5))
