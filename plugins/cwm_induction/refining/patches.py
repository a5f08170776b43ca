"""The refiner `patch`: it writes corrections into a program that predicts some rows wrongly.

A correction is a rewrite of an expression or a statement, or a law for a place under a condition.
If no correction is found, a lookup table may be.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from time import monotonic
from typing import NamedTuple

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_cli.data.spaces import Columns
from cwm_cli.problems.world_model import WorldModelProblem
from cwm_cli.search.contracts import Refinement, RefinementTask, Refiner
from cwm_induction.effort import Effort
from cwm_induction.refining.guards import Guard, find_guard
from cwm_induction.refining.laws import Law, find_laws
from cwm_induction.refining.lookup import add_tables, find_tables
from cwm_induction.refining.rewrites import apply_rewrite, find_rewrites
from cwm_induction.refining.targets import Target, TracedRows, place_targets
from cwm_induction.refining.tracing import Change, Predict, Source, Tracer

MAX_CORRECTIONS = 6
"""Most corrections of a program; a program that needs more has another fault."""

MAX_CONFIRMED = 3
"""Most candidates that are run on all rows before one is accepted."""

MAX_TRIED = 30
"""Most laws that are tried on all rows."""

MAX_GUARDED = 10
"""Most searches for a guard; laws that can correct the most values come first."""

UNITS = 100.0
"""Work units of a patch: about a million program steps, or a million operations each."""

GAIN = 3.0
"""Worth of a corrected value, in units of the cost of laws and guards."""


class Candidate(NamedTuple):
    """A corrected text, its worth (gain minus cost), and the finding in words."""

    text: str
    worth: float
    finding: str


class _TriedLaw(NamedTuple):
    """A law, its target, and how many values it corrects and makes wrong in each row."""

    target: Target
    law: Law
    gained: np.ndarray
    lost: np.ndarray

    @property
    def most(self) -> float:
        """The worth with a perfect guard that costs nothing."""
        return GAIN * int(self.gained[self.lost == 0].sum()) - self.law.cost


@dataclass(frozen=True)
class Patch(Refiner):
    """Corrects a program with the rows that it predicts wrongly."""

    patch_seconds: float = 30.0
    """Time limit of a search for patches in seconds; the patches found until then are used."""

    def refine(self, task: RefinementTask) -> Refinement | None:
        """Return the program with corrections, None if none was found."""
        problem = task.problem
        if not isinstance(problem, WorldModelProblem) or not task.node.program:
            return None
        start = monotonic()  # an effort does not count the time of the sandbox

        def predict(program: str, rows: Dataset) -> Columns:
            if monotonic() - start > self.patch_seconds:
                return {}
            columns, failure = problem.sandbox.predict(program, rows, seed=problem.seed)
            return {} if failure else columns

        effort = Effort(UNITS, self.patch_seconds, task.tell)
        data = problem.dataset[problem.dataset.fitted]
        program, findings = patch_program(task.node.program, data, predict, effort)
        return Refinement(program, "\n".join(findings)) if findings else None


def patch_program(
    program: str, data: Dataset, predict: Predict, effort: Effort
) -> tuple[str, list[str]]:
    """Return a corrected program and the corrections in words.

    Args:
        program: The text of the program.
        data: The recorded rows.
        predict: The function that runs a program on rows.
        effort: The work units and the time that may be spent.
    """

    def trace(text: str) -> TracedRows | None:
        try:
            return TracedRows.of(Tracer(Source(text), data, predict, effort.spend))
        except SyntaxError:
            return None

    findings: list[str] = []
    traced = trace(program)
    if traced is None:
        return program, []
    while traced.losses and len(findings) < MAX_CORRECTIONS:
        effort.tell("searching for corrections")
        with np.errstate(all="ignore"):
            candidates = sorted(_candidates(traced, effort), key=lambda one: -one.worth)
        confirmed = []
        for candidate in candidates[:MAX_CONFIRMED]:
            after = trace(candidate.text)
            if after is not None and after.losses < traced.losses:
                confirmed.append((after, candidate.finding))
        if not confirmed:
            break
        traced, finding = min(confirmed, key=lambda pair: pair[0].losses)
        findings.append(finding)
    if traced.losses and (tables := find_tables(traced)):
        text = add_tables(traced, tables)
        if traced.count_losses(predict(text, data)) < traced.losses:
            corrected = sum(table.corrected for table in tables)
            entries = sum(len(table.entries) for table in tables)
            findings.append(
                f"no rule was found for {corrected} recorded values: they are looked "
                f"up in {entries} entries"
            )
            return text, findings
    return (traced.source.text, findings) if findings else (program, [])


def _candidates(traced: TracedRows, effort: Effort) -> Iterator[Candidate]:
    """Yield rewrites, and laws with guards."""
    for rewrite, gain in find_rewrites(traced):
        text = apply_rewrite(traced.source, rewrite)
        finding = f"{rewrite.finding} (fixes {gain} recorded values)"
        yield Candidate(text, GAIN * gain - rewrite.cost, finding)
    best = 0.0
    for tried in _try_laws(traced, effort):
        if tried.most - 1.0 <= best:  # a guard costs at least 1
            break
        target, gained, lost = tried.target, tried.gained, tried.lost
        reached = traced.reached(target.statement)
        inside, outside = (gained > lost) & reached, (lost > 0) & (lost >= gained) & reached
        guard = find_guard(traced.quantities(target.statement), inside, outside)
        if guard is not None:
            gain = int(((gained - lost) * guard.holds)[reached].sum())
            candidate = _write_law(traced, target, tried.law, guard, gain)
            if candidate.worth > 0:
                best = max(best, candidate.worth)
                yield candidate


def _try_laws(traced: TracedRows, effort: Effort) -> list[_TriedLaw]:
    """Try laws on all rows; return the most promising ones."""
    pairs = [
        (target, law)
        for target in place_targets(traced)
        for law in find_laws(target, traced.numbers(target.statement), effort)
    ]

    def cost(pair: tuple[Target, Law]) -> float:
        target, law = pair
        return law.cost - 8.0 * law.served * target.corrected / len(target.rows) ** 2

    pairs = sorted(pairs, key=cost)[:MAX_TRIED]
    rows = np.arange(len(traced.data))
    changes = []
    for target, law in pairs:
        values = np.where(np.isfinite(law.values), law.values, np.nan_to_num(target.current))
        changes.append(Change(rows, 0, target.site, 0.0, values))
    results = traced.tracer.run(changes) if changes else None
    tried = [
        _TriedLaw(*pair, *traced.effect(result, rows))
        for pair, result in zip(pairs, results or [], strict=False)
    ]
    return sorted(tried, key=lambda each: -each.most)[:MAX_GUARDED]


def _write_law(traced: TracedRows, target: Target, law: Law, guard: Guard, gain: int) -> Candidate:
    """Insert a law, under its guard, before the statement of a target."""
    line = f"{target.place} = {law.text}"
    finding = f"if {guard.text}: {line}" if guard.text else line
    lines = [f"if {guard.text}:", f"    {line}"] if guard.text else [line]
    comment = f"# Correction: fixes {gain} values that were wrong without it."
    text = traced.source.with_lines(target.statement, [comment, *lines])
    if "np." in text and "import numpy as np" not in text:
        text = f"import numpy as np\n{text}"
    worth = GAIN * gain - law.cost - guard.cost
    return Candidate(text, worth, f"{finding} (fixes {gain} recorded values)")
