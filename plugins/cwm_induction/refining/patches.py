"""The refiner `patch`: it writes corrections into a program that predicts some rows wrongly.

A correction is a rewrite of an expression or a statement, or a law for a place under a condition.
"""

import ast
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, islice, product
from time import monotonic
from typing import NamedTuple

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_cli.data.spaces import Columns
from cwm_cli.problems.world_model import WorldModelProblem
from cwm_cli.sandbox.job import parse_program
from cwm_cli.search.contracts import Refinement, RefinementTask, Refiner
from cwm_induction.effort import Effort
from cwm_induction.refining.constants import node_span, replace_spans
from cwm_induction.refining.laws import Guard, PatchLaw, find_guard, find_laws
from cwm_induction.refining.targets import PatchTarget, TracedRows, place_targets
from cwm_induction.refining.tracing import (
    Predict,
    ProgramTracer,
    SourceChange,
    TracedSource,
    TracedStatement,
    is_loaded,
    place_of,
)

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


MAX_REWRITES = 1500
"""Most rewrites of a program that are tried."""

BATCH_SIZE, BATCH_LENGTH = 100, 200_000
"""Most rewrites and characters in one instrumented program; the sandbox limits its length."""

FIRST_ROWS = 12
"""Number of wrong rows for all rewrites, and number of rewrites that are tried on all rows."""

OTHER_COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.Gt, ast.GtE),
    ast.LtE: (ast.Lt, ast.GtE, ast.Gt),
    ast.Gt: (ast.GtE, ast.Lt, ast.LtE),
    ast.GtE: (ast.Gt, ast.LtE, ast.Lt),
    ast.Eq: (ast.NotEq, ast.LtE, ast.GtE),
    ast.NotEq: (ast.Eq,),
}


class PatchCandidate(NamedTuple):
    """A corrected text, its worth (gain minus cost), and the finding in words."""

    text: str
    worth: float
    finding: str


class _TriedLaw(NamedTuple):
    """A law, its target, and how many values it corrects and makes wrong in each row."""

    target: PatchTarget
    law: PatchLaw
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
        if problem.dataset.observation_space.kind not in ("box", "discrete"):
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
        if parse_program(text) is None:
            return None
        return TracedRows.of(ProgramTracer(TracedSource(text), data, predict, effort.spend))

    findings: list[str] = []
    traced = trace(program.removeprefix("\ufeff").rstrip("\n") + "\n")
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
    return (traced.source.text, findings) if findings else (program, [])


def _candidates(traced: TracedRows, effort: Effort) -> Iterator[PatchCandidate]:
    """Yield rewrites, and laws with guards."""
    for rewrite, gain in find_rewrites(traced):
        finding = f"{rewrite.finding} (fixes {gain} recorded values)"
        yield PatchCandidate(rewrite.shortest, GAIN * gain - rewrite.cost, finding)
    best = 0.0
    for tried in _try_laws(traced, effort):
        # A guard costs at least 1.
        if tried.most - 1.0 <= best or not effort.spend(0.0):
            break
        target, gained, lost = tried.target, tried.gained, tried.lost
        reached = traced.reached(target.statement)
        inside, outside = (gained > lost) & reached, (lost > 0) & (lost >= gained) & reached
        guard = find_guard(*traced.quantities(target.statement), inside, outside)
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

    def cost(pair: tuple[PatchTarget, PatchLaw]) -> float:
        target, law = pair
        return law.cost - 8.0 * law.served * target.corrected / len(target.rows) ** 2

    pairs = sorted(pairs, key=cost)[:MAX_TRIED]
    rows = np.arange(len(traced.data))
    changes = []
    for target, law in pairs:
        values = np.where(np.isfinite(law.values), law.values, np.nan_to_num(target.current))
        changes.append(SourceChange(rows, 0, target.site, values))
    results = traced.tracer.run(changes) if changes else None
    tried = [
        _TriedLaw(*pair, *traced.effect(result, rows))
        for pair, result in zip(pairs, results or [], strict=False)
    ]
    return sorted(tried, key=lambda each: -each.most)[:MAX_GUARDED]


def _write_law(
    traced: TracedRows, target: PatchTarget, law: PatchLaw, guard: Guard, gain: int
) -> PatchCandidate:
    """Insert a law, under its guard, before the statement of a target."""
    line = f"{target.place} = {law.text}"
    finding = f"if {guard.text}: {line}" if guard.text else line
    lines = [f"if {guard.text}:", f"    {line}"] if guard.text else [line]
    comment = f"# Correction: fixes {gain} values that were wrong without it."
    text = traced.source.with_lines(target.statement, [comment, *lines])
    if "np." in text and "import numpy as np" not in text:
        text = f"import numpy as np\n{text}"
    worth = GAIN * gain - law.cost - guard.cost
    return PatchCandidate(text, worth, f"{finding} (fixes {gain} recorded values)")


class Rewrite(NamedTuple):
    """A changed program.

    Attributes:
        text: The text of the program.
        variant: The new text of the method or value that changes.
        cost: The cost of the change.
        finding: The change in words.
        short: The text of the program without parentheses around a new expression.
    """

    text: str
    variant: str
    cost: float
    finding: str
    short: str = ""

    @property
    def shortest(self) -> str:
        """The text of the program, without parentheses if these have no effect."""
        with suppress(SyntaxError):
            if ast.dump(ast.parse(self.short)) == ast.dump(ast.parse(self.text)):
                return self.short
        return self.text


def find_rewrites(traced: TracedRows) -> list[tuple[Rewrite, int]]:
    """Return the rewrites that correct values, and how many they correct, the best first."""
    spend = traced.tracer.spend
    every: dict[str, Rewrite] = {}
    for one in islice(_rewrites(traced.source), 4 * MAX_REWRITES):
        every.setdefault(one.text, one)
        if len(every) == MAX_REWRITES or not spend(0):
            break
    rewrites = list(every.values())
    sample = traced.sample[:: max(1, len(traced.sample) // FIRST_ROWS)]
    first = _gains(traced, rewrites, sample)
    order = sorted((n for n in range(len(rewrites)) if first[n] > 0), key=lambda n: -first[n])
    best = [rewrites[n] for n in order[:FIRST_ROWS]]
    gains = _gains(traced, best, np.arange(len(traced.data)))
    found = [(one, gain) for one, gain in zip(best, gains, strict=True) if gain > 0]
    return sorted(found, key=lambda pair: pair[0].cost - 3.0 * pair[1])


def _gains(traced: TracedRows, rewrites: list[Rewrite], rows: np.ndarray) -> list[int]:
    """Return how many more values are right in some rows with each rewrite."""
    gains: list[int] = []
    size = max(1, min(BATCH_SIZE, BATCH_LENGTH // len(traced.source.text)))
    for start in range(0, len(rewrites), size):
        batch = rewrites[start : start + size]
        tracer = replace(traced.tracer, variants=[one.variant for one in batch])
        results = tracer.run([SourceChange(rows, n, -2) for n in range(1, len(batch) + 1)])
        if results is None:
            gains += [0] * len(batch)
            continue
        effects = [traced.effect(result, rows) for result in results]
        gains += [int((gained - lost).sum()) for gained, lost in effects]
    return gains


def _rewrites(source: TracedSource) -> Iterator[Rewrite]:
    for method in source.methods:
        yield from chain(_moved_statements(source, method), _changed_expressions(source, method))
    for value in source.body:
        if isinstance(value, ast.Assign | ast.AnnAssign):
            for node in _expressions(value):
                if isinstance(node, ast.Constant):
                    for other, cost in _other_values(node.value, source):
                        yield _rewrite(source, value, node, repr(other), cost)


def _moved_statements(source: TracedSource, method: ast.FunctionDef) -> Iterator[Rewrite]:
    """Yield programs with one statement at another place of its block."""
    nodes, lines = list(ast.walk(method)), source.lines
    for block in (getattr(node, name, None) for node in nodes for name in ("body", "orelse")):
        if not isinstance(block, list) or not all(source.begins_line(each) for each in block):
            continue
        movable = [each for each in block if not isinstance(each, ast.Return)]
        for (start, moved), (end, other) in product(enumerate(movable), repeat=2):
            if start in (end, end + 1):  # the swap with the next statement is the same
                continue
            first, last = moved.lineno - 1, moved.end_lineno
            place = other.lineno - 1 if end < start else other.end_lineno
            left = [*lines[:first], *[""] * (last - first), *lines[last:]]
            text = "".join([*left[:place], *lines[first:last], *left[place:]])
            finding = f"`{lines[first].strip()}` moves to another line of {method.name}"
            yield Rewrite(text, _part(text, source, method), 1.5, finding)


def _part(text: str, source: TracedSource, old: ast.stmt) -> str:
    """Return the new text of a changed statement of the class."""
    decorators = getattr(old, "decorator_list", [])
    first = min(node.lineno for node in (old, *decorators))
    last = (old.end_lineno or first) + text.count("\n") - source.text.count("\n")
    return "\n".join(text.split("\n")[first - 1 : last])


def _expressions(tree: ast.stmt) -> Iterator[ast.expr]:
    """Yield the expressions of a statement, except in f-strings, which have no exact spans."""
    strings = [node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)]
    hidden = {node for each in strings for node in ast.walk(each)}
    for node in ast.walk(tree):
        if isinstance(node, ast.expr) and node not in hidden:
            yield node


def _changed_expressions(source: TracedSource, method: ast.FunctionDef) -> Iterator[Rewrite]:
    """Yield programs with another name, number, comparison or condition in one place."""
    statements = {each.line: each for each in source.statements if each.method == method.name}
    for node in _expressions(method):
        before = [line for line in statements if line <= node.lineno]
        statement = statements[max(before)] if before else None
        for new, cost in _replacements(node, statement, source):
            yield _rewrite(source, method, node, new, cost)


def _rewrite(source: TracedSource, old: ast.stmt, node: ast.expr, new: str, cost: float) -> Rewrite:
    """Return the program with another text of an expression."""
    place = old.name if isinstance(old, ast.FunctionDef) else ast.unparse(old).split(" = ")[0]
    finding = f"`{ast.unparse(node)}` becomes `{new}` in {place}"
    span = node_span(source.lines, node)
    text, short = (replace_spans(source.text, [(span, each)]) for each in (f"({new})", new))
    return Rewrite(text, _part(text, source, old), cost, finding, short)


def _replacements(
    node: ast.expr, statement: TracedStatement | None, source: TracedSource
) -> Iterator[tuple[str, float]]:
    """Yield other expressions, with their costs."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        for kind in OTHER_COMPARISONS.get(type(node.ops[0]), ()):
            yield ast.unparse(ast.Compare(node.left, [kind()], node.comparators)), 1.5
    if isinstance(node, ast.BoolOp):
        for part in node.values:
            rest = [other for other in node.values if other is not part]
            yield ast.unparse(rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest)), 1.5
        other = ast.And() if isinstance(node.op, ast.Or) else ast.Or()
        yield ast.unparse(ast.BoolOp(other, node.values)), 1.5
    if isinstance(node, ast.Constant):
        for value, cost in _other_values(node.value, source):
            yield repr(value), cost
    place = place_of(node)
    if statement is not None and place in statement.known and is_loaded(node):
        for known in statement.known:
            if known not in (place, "action", "observation"):
                yield known, 1.8


def _other_values(value: object, source: TracedSource) -> Iterator[tuple[str | int, float]]:
    """Yield other integers, truth values or letters for a constant, with their costs."""
    if isinstance(value, bool):
        yield not value, 1.3
    elif isinstance(value, int):
        near = {value + step for step in (-4, -3, -2, -1, 1, 2, 3, 4)} | {0, 1, 2, -value}
        for other in sorted(near - {value}):
            yield other, 1.4 + 0.05 * abs(other - value)
    elif isinstance(value, str) and len(value) < 40 and set(value) <= set(source.letters):
        for place, old in enumerate(value):
            for letter in source.letters:
                if letter != old:
                    yield value[:place] + letter + value[place + 1 :], 1.6
