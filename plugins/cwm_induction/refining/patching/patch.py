"""Betters a program by what it leaves over: laws for the wrong rows, guards for where they hold."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from time import monotonic

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_cli.problems.feedback.separation import Quantity
from cwm_cli.problems.world_model import WorldModelProblem
from cwm_cli.search.contracts import Refinement, RefinementTask, Refiner
from cwm_induction.continuous.samples import Array
from cwm_induction.effort import Effort
from cwm_induction.refining.guards import Guard, find_guard
from cwm_induction.refining.patching.exceptions import tables, with_tables
from cwm_induction.refining.patching.laws import Law, laws
from cwm_induction.refining.patching.needs import Need, RecordedOutcome, Standing, needs
from cwm_induction.refining.patching.rewrites import rewritten, tried
from cwm_induction.refining.patching.source import CorrectedText, Site
from cwm_induction.refining.patching.trials import Ask, PlaceChange, ProgramTrials

MOST_CORRECTIONS = 6
"""Corrections of one patch: a program that needs more is wrong in another way."""

MOST_CONFIRMED = 3
"""Changed texts that are asked for all rows until one is better, as trials said it would be."""

MOST_TRIED = 30
"""Laws that are tried on all rows."""

MOST_GUARDED = 10
"""Laws that a guard is looked for, those that mend most first."""

WORK = 100.0
"""Units of work of a patch: about a million steps of a program, or as many operations each."""

GAIN = 3.0
"""What a wrong number less is worth, in units of the cost of laws and guards."""


@dataclass(frozen=True)
class Found:
    """A changed text, how much better it is than it costs, and what was changed, in words."""

    text: str
    gain: float
    finding: str


@dataclass(frozen=True)
class Patch(Refiner):
    """Looks at what a program leaves over and writes corrections into it."""

    patch_seconds: float = 30.0
    """Time limit of a search for patches in seconds; the patches found until then are used."""

    def refine(self, task: RefinementTask) -> Refinement | None:
        """Return the program with corrections that make fitted rows right, or None."""
        problem = task.problem
        if not isinstance(problem, WorldModelProblem) or not task.node.program:
            return None

        start = monotonic()  # an effort does not count the time that passes in the sandbox

        def ask(program: str, rows: Dataset) -> dict[str, Array]:
            if monotonic() - start > self.patch_seconds:
                return {}
            columns, failure = problem.sandbox.predict(program, rows, seed=problem.seed)
            return {} if failure else columns

        effort = Effort(WORK, self.patch_seconds, task.tell)
        data = problem.dataset[problem.dataset.fitted]
        program, findings = patched(task.node.program, data, ask, effort)
        return Refinement(program, "\n".join(findings)) if findings else None


def patched(program: str, data: Dataset, ask: Ask, effort: Effort) -> tuple[str, list[str]]:
    """Return a program with corrections, and these in words; `ask` predicts rows."""
    findings: list[str] = []
    outcome = RecordedOutcome(data)
    standing = _standing(program, outcome, ask, effort)
    while standing is not None and standing.losses and len(findings) < MOST_CORRECTIONS:
        effort.tell("searching for corrections")
        with np.errstate(all="ignore"):
            options = sorted(_options(standing, effort), key=lambda one: -one.gain)
        confirmed = []
        for found in options[:MOST_CONFIRMED]:
            after = _standing(found.text, outcome, ask, effort)
            if after is not None and after.losses < standing.losses:
                confirmed.append((after, found.finding))
        if not confirmed:
            break
        standing, finding = min(confirmed, key=lambda pair: pair[0].losses)
        findings.append(finding)
    if standing is None:
        return program, []
    text = standing.trials.source.text
    if standing.losses and (found_tables := tables(standing)):
        looked_up = with_tables(standing, found_tables)
        columns = ask(looked_up, data)
        if columns and outcome.wrong(columns, np.arange(len(data))).sum() < standing.losses:
            text, mended = looked_up, sum(table.mended for table in found_tables)
            entries = sum(len(table.entries) for table in found_tables)
            findings.append(
                f"no rule was found for {mended} recorded values: they are looked "
                f"up in {entries} entries"
            )
    return (text, findings) if findings else (program, [])


def _standing(text: str, outcome: RecordedOutcome, ask: Ask, effort: Effort) -> Standing | None:
    """Ask a program for all rows."""
    try:
        source = CorrectedText(text)
        trials = ProgramTrials(source, outcome.data, ask, effort.spend)
        return Standing.of(trials, outcome)
    except SyntaxError:
        return None


def _options(standing: Standing, effort: Effort) -> Iterator[Found]:
    """Yield corrections of a program."""
    for rewrite, gain in tried(standing):
        text = rewritten(standing.trials.source, rewrite)
        finding = f"{rewrite.words} (fixes {gain} recorded values)"
        yield Found(text, GAIN * gain - rewrite.cost, finding)
    yield from _additions(standing, effort)


def _additions(standing: Standing, effort: Effort) -> Iterator[Found]:
    """Yield statements that set a place to another value, where that is needed."""
    offered: list[tuple[Need, Law]] = [
        (need, law)
        for need in _placed(standing)
        for law in laws(need, standing.places(need.position), effort)
    ]
    offered.sort(
        key=lambda pair: (
            pair[1].cost - 8.0 * pair[1].served * pair[0].mended / len(pair[0].rows) ** 2
        )
    )
    offered = offered[:MOST_TRIED]
    rows = np.arange(len(standing.trials.data))
    changes = [
        PlaceChange(rows, 0, need.site, 0.0, _finite(law.values, need)) for need, law in offered
    ]
    answered = standing.trials.run(changes) if changes else None
    weighed = []
    for (need, law), answers in zip(offered, answered or [], strict=False):
        gained, lost = standing.effect(answers, rows)
        weighed.append((GAIN * int(gained[lost == 0].sum()) - law.cost, need, law, gained, lost))
    weighed.sort(key=lambda one: -one[0])
    best = 0.0
    for most, need, law, gained, lost in weighed[:MOST_GUARDED]:
        if most - 1.0 <= best:  # a guard costs more than that
            break
        reached = standing.reached(need.position)
        inside, outside = (gained > lost) & reached, (lost > 0) & (lost >= gained) & reached
        where = find_guard(_quantities(standing, need), inside, outside)
        if where is not None:
            gain = int(((gained - lost) * where.holds)[reached].sum())
            found = _written(standing, need, law, where, gain)
            if found.gain > 0:
                best = max(best, found.gain)
                yield found


def _placed(standing: Standing) -> Iterator[Need]:
    """Yield what is needed, at the first statement that it may stand before and at the last."""
    seen = set()
    source = standing.trials.source
    for need in needs(standing):
        for position in (source.earliest(Site(need.position, need.place)), need.position):
            if (position, need.place) not in seen:
                seen.add((position, need.place))
                yield replace(need, position=position)


def _finite(values: Array, need: Need) -> Array:
    return np.where(np.isfinite(values), values, np.nan_to_num(need.now))


def _quantities(standing: Standing, need: Need) -> list[Quantity]:
    """Return the quantities that a condition before a statement may compare."""
    data = standing.trials.data
    space = data.observation_space
    stored = [] if space.children else [data.columns["observations"]]
    given = [column for one in stored for column in one.reshape(len(data), -1).T]
    found = []
    for text, values, *_ in standing.places(need.position):
        values = np.nan_to_num(values)
        main = text == "action" or any(np.allclose(values, one, atol=1e-9) for one in given)
        main = main or any(_is_next(values, one) for one in _after(standing))
        is_real = not (values == np.round(values)).all()
        found.append(Quantity(text, values, is_real, True, 0.0 if main else 3.0))
    return [*found, *standing.letters(need.position)]


def _after(standing: Standing) -> Sequence[Array]:
    return list(standing.said.T[:-2])


def _is_next(values: Array, said: Array) -> bool:
    return bool(np.isclose(values, said, atol=1e-9).mean() > 0.7)


def _written(standing: Standing, need: Need, law: Law, where: Guard, gain: int) -> Found:
    """Write a correction before its statement."""
    always = not where.text
    place = "" if always else f"if {where.text}: "
    finding = f"{place}{need.place} = {law.text} (fixes {gain} recorded values)"
    lines = [f"{need.place} = {law.text}"]
    if not always:
        lines = [f"if {where.text}:", f"    {lines[0]}"]
    text = standing.trials.source.with_lines(
        need.position, [f"# Correction: fixes {gain} values that were wrong without it.", *lines]
    )
    return Found(_with_numpy(text), GAIN * gain - law.cost - where.cost, finding)


def _with_numpy(text: str) -> str:
    """Import numpy where a correction needs it."""
    if "np." not in text or "import numpy as np" in text:
        return text
    return f"import numpy as np\n{text}"
