"""The report of an improve prompt: where a program is wrong, by how much, and examples.

It describes a diagnosis: the conditions under which rows are wrong, simple terms of inputs and
actions that explain the error, conditions of ends and rare rewards, and gaps in the data.
"""

import re
from collections.abc import Iterator, Sequence

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_cli.data.spaces import Columns
from cwm_cli.evaluation import Metric, close
from cwm_cli.evaluation.finding import ContractName
from cwm_cli.problems.feedback.diagnosis import Diagnosis, Group, OutcomeRule, WrongKind, diagnose
from cwm_cli.problems.feedback.examples import (
    EXAMPLES,
    FAR,
    ComparedRows,
    Component,
    Example,
    actions_taken,
    error_ratio,
    examples,
    failing,
    share,
    worse_parts,
)
from cwm_cli.problems.feedback.terms import (
    CandidateTerms,
    best_term,
    candidate_terms,
    correlations,
)
from cwm_cli.text import clean, percent
from cwm_cli.text import share as score_words

MOST_NAMES = 4


def coverage(diagnosis: Diagnosis, contract: ContractName = "plain") -> Iterator[str]:
    """Yield sentences on conflicts and gaps in the data."""
    comparison = diagnosis.comparison
    yield "If these transitions contradict the description, the transitions are right."
    contradictions = _contradictions(comparison) if contract == "plain" else 0
    if contradictions:
        yield (
            f"{contradictions} pairs of observation and action were recorded with different "
            "outcomes: chance decides, or the observation hides something. One answer for each "
            "pair cannot be right on all of them; predict the most frequent outcome. The best "
            f"score that can be reached here is {score_words(diagnosis.best_score, 4)}."
        )
    missing = [*_ends(comparison), *_actions(comparison), *_components(comparison)]
    if missing:
        yield f"Not covered by these transitions: {'; '.join(missing)}."


def _contradictions(comparison: ComparedRows) -> int:
    """Count the pairs of observation and action that led to different outcomes."""
    dataset = comparison.dataset
    asked = _rows(dataset.select("observations", "actions"))
    followed = _rows(dataset.select("next_observations", "rewards", "terminations"))
    outcomes: dict[bytes, set[bytes]] = {}
    for question, outcome in zip(asked, followed, strict=True):
        outcomes.setdefault(question, set()).add(outcome)
    return sum(len(different) > 1 for different in outcomes.values())


def _rows(columns: Columns) -> Iterator[bytes]:
    """Yield the content of each row."""
    for row in zip(*columns.values(), strict=True):
        yield b"".join(value.tobytes() for value in row)


def _ends(comparison: ComparedRows) -> Iterator[str]:
    """Yield a sentence if no episode ends."""
    if not comparison.terminal.any():
        yield "no episode terminates"


def _actions(comparison: ComparedRows) -> Iterator[str]:
    """Yield actions that were never taken, or that no action is at a bound."""
    space, columns = comparison.dataset.action_space, comparison.dataset.columns
    if space.kind == "discrete":
        every = range(int(space.low[0]), int(space.high[0]) + 1)
        never = sorted(set(every) - set(columns["actions"].tolist())) if len(every) < 1000 else []
        if never:
            yield f"{_listed('action', never)} never taken"
    elif space.is_float and len(columns["actions"]):
        values = columns["actions"].reshape(len(columns["actions"]), -1)
        low, high = (np.array(bounds, values.dtype) for bounds in (space.low, space.high))
        if not ((values == low) | (values == high)).any():
            yield "no action is at its bound"


def _components(comparison: ComparedRows) -> Iterator[str]:
    """Yield real components that never reach a bound or never change."""
    unreached, constant = [], []
    for index, name in enumerate(comparison.names[:1000]):
        if not comparison.is_float(index):
            continue
        part = comparison.component(index)
        low, high = part.recorded.min(), part.recorded.max()
        if low == high:
            constant.append(name)
        elif max(abs(part.low), abs(part.high)) < 1e30 and not (
            np.isclose(low, part.low) or np.isclose(high, part.high)
        ):
            unreached.append(name)
    if constant:
        yield f"{_listed('', constant)} always the same"
    if unreached:
        yield f"{_listed('', unreached)} never at a bound"


def _listed(noun: str, names: list[str] | list[int]) -> str:
    """Write some names, the number of others, and a verb."""
    shown = ", ".join(map(str, names[:MOST_NAMES]))
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    plural = "s" if noun and len(names) > 1 else ""
    verb = "are" if len(names) > 1 else "is"
    return f"{noun}{plural} {shown}{more} {verb}".strip()


LETTERS = "ABCDEFGH"
LENGTH, BRIEF = 4000, 1800
"""Approximate characters of a report. It is brief if a long description and recorded transitions
are in the prompt as well."""
LONG_DESCRIPTION = 1200
"""Characters of a long description."""
LEAST_EXAMPLES, BRIEF_EXAMPLES = 1500, 600
FEW_EXAMPLES = 5
MOST_EXAMPLES = 8
"""Number of examples: few are enough if one condition covers all mistakes."""
MOST_KINDS = 6
MOST_COMPONENTS, BRIEF_COMPONENTS = 6, 3
UNEVEN = 1.5
"""Mistakes are counted by action if their shares differ by more than this factor."""
MOST_REGIMES = 4
MOST_VALUES = 5
MOSTLY = 0.5
"""A term is named only if it explains a larger share of the rows."""
CHECKLIST = (
    "For a physical system check the integrator (explicit, semi-implicit, Runge-Kutta), time step, "
    "frame skip, units, gears, damping, limits, contacts, clipped or hidden quantities, and "
    "quantities that lag one substep."
)


def report(
    dataset: Dataset,
    predictions: Columns,
    metric: Metric,
    description: str = "",
    *,
    contract: ContractName = "plain",
    brief: bool = False,
) -> str:
    """Describe wrong predictions in about 4,000 characters, for observations of any size.

    Args:
        dataset: The rows.
        predictions: One answer for each row.
        metric: The metric that scores them.
        description: The description of the environment, for the names of components.
        contract: The contract of the program.
        brief: Whether the prompt also has the section "Recorded transitions". The report then
            does not repeat its facts, and is shorter if the description is long.
    """
    diagnosis = diagnose(dataset, predictions, metric, description)
    return words(diagnosis, description, contract=contract, brief=brief)


def words(
    diagnosis: Diagnosis,
    description: str = "",
    *,
    contract: ContractName = "plain",
    brief: bool = False,
) -> str:
    """Write a diagnosis as text; the arguments are the same as for `report`."""
    comparison = diagnosis.comparison
    terms = candidate_terms(comparison)
    short = brief and len(description) > LONG_DESCRIPTION
    conditions = {group.condition for group in diagnosis.groups}
    sections = [
        _summary(diagnosis, contract),
        _groups(diagnosis.groups),
        _component_lines(diagnosis, terms, BRIEF_COMPONENTS if short else MOST_COMPONENTS),
        _rewards(diagnosis, terms),
        [_rule(rule) for rule in diagnosis.rules if rule.condition not in conditions],
        _by_action(comparison),
        _by_regime(comparison),
    ]
    closing = [] if brief else list(coverage(diagnosis, contract))
    if is_physical(comparison, description):
        closing.append(CHECKLIST)
    used = sum(len(line) + 1 for section in [*sections, closing] for line in section)
    length, least = (BRIEF, BRIEF_EXAMPLES) if short else (LENGTH, LEAST_EXAMPLES)
    most = FEW_EXAMPLES if _is_explained(diagnosis) else MOST_EXAMPLES
    if contract != "memory":  # a single step of an episode explains nothing without its past
        shown = examples(comparison, max(least, length - used), _teaching(diagnosis), most)
        sections.append([EXAMPLES, *shown])
    sections.append(closing)
    return clean("\n\n".join("\n".join(s) for s in sections if s), newlines=True)


def _is_explained(diagnosis: Diagnosis) -> bool:
    """Return whether the first group covers all mistakes and few right rows."""
    first = diagnosis.groups[0] if diagnosis.groups else None
    if first is None or not first.condition or first.wrong_elsewhere:
        return False
    return first.wrong > MOSTLY * first.rows


def _groups(groups: Sequence[Group]) -> list[str]:
    """Write the conditions under which rows are wrong."""
    lines = [
        f"({name}) {_group_words(group)}" for name, group in zip(LETTERS, groups, strict=False)
    ]
    return ["Where predictions are wrong, the costliest first:", *lines] if lines else []


def _group_words(group: Group) -> str:
    """Write which parts are wrong in a group of rows, and how well its condition separates them."""
    parts = ", ".join(group.parts[:MOST_COMPONENTS])
    if len(group.parts) > MOST_COMPONENTS:
        parts += f" and {len(group.parts) - MOST_COMPONENTS} more"
    if not group.condition and group.wrong == group.rows:
        return f"{parts} in all {group.rows} transitions."
    if not group.condition:
        return f"{parts} in {group.wrong} of {group.rows} transitions, under no simple condition."
    return (
        f"{parts} if {group.condition}: wrong in {group.wrong} of {group.rows} transitions, "
        f"otherwise in {group.wrong_elsewhere} of {group.elsewhere}."
    )


def _rule(rule: OutcomeRule) -> str:
    """Write the recorded condition of an end or of a value of the reward."""
    exact = rule.holds == rule.total and not rule.exceptions
    line = (
        f"Recorded: {rule.outcome} {'exactly ' * exact}if {rule.condition} "
        f"({rule.holds} of {rule.total} times"
    )
    line += f", and {rule.exceptions} others)" if rule.exceptions else ")"
    if (pair := rule.bracket) is None:
        return f"{line}."
    inside, outside = f"{pair.inside!r} with it", f"{pair.outside!r} without"
    return f"{line}; nearest values of {pair.measure}: {inside}, {outside}."


def _teaching(diagnosis: Diagnosis) -> Iterator[Example]:
    """Yield rows of the first group, every wrong kind of end and reward, then the other groups."""
    for place, (name, group) in enumerate(zip(LETTERS, diagnosis.groups, strict=False)):
        sizes = ("smallest error", "typical error")
        for row, size in zip(group.shown, sizes, strict=False):
            yield Example(row, f"in ({name}), {size}")
        if group.contrast is not None:
            wrong, right, differs = group.contrast
            yield Example(wrong, f"in ({name})")
            unlike = f" except for {', '.join(differs)}" if differs else ""
            yield Example(right, f"like the one above{unlike}, and predicted rightly")
        for kind in diagnosis.kinds[:MOST_KINDS] if place == 0 else ():
            yield Example(kind.row, f"{_kind_words(kind)} ({kind.times} of this kind)")


def _kind_words(kind: WrongKind) -> str:
    if kind.part == "reward":
        return f"reward {kind.recorded!r}, predicted {kind.predicted!r}"
    return "missed end" if kind.recorded else "false end"


PHYSICAL = re.compile(
    r"veloc|torque|gravit|accelerat|\bjoint|friction|\bmass\b|pendulum|\bspeed|\bangle",
    re.IGNORECASE,
)
"""Words in descriptions of physical systems; two different ones are needed."""

MOST_MOVING = 60
MOVES = 0.9
"""Correlation of the change of one component with another one that is its velocity."""


def is_physical(comparison: ComparedRows, description: str) -> bool:
    """Return whether the system moves: by its description, or one component drives another."""
    real = [
        part
        for part in map(comparison.component, range(min(len(comparison.names), MOST_MOVING)))
        if part.space_is_float and (part.recorded != np.round(part.recorded)).mean() > 1 / 2
    ]
    if not real:
        return False
    if len({found.lower() for found in PHYSICAL.findall(description)}) > 1:
        return True
    with np.errstate(invalid="ignore", divide="ignore"):
        changes = np.array([part.recorded.astype(np.float64) - part.before for part in real])
        inputs = np.array([part.before.astype(np.float64) for part in real])
        strength = np.corrcoef(changes, inputs)[: len(real), len(real) :]
    np.fill_diagonal(strength, 0.0)
    return bool((np.nan_to_num(strength) > MOVES).any())


def _summary(diagnosis: Diagnosis, contract: ContractName) -> list[str]:
    """Write how much of each part is right."""
    comparison = diagnosis.comparison
    matches, going = comparison.matches, ~comparison.terminal
    total = len(comparison.dataset)
    score = f"; the weighted score of all is {score_words(diagnosis.score, 4)}"
    score = score if contract == "plain" else ""
    lines = [
        f"{int(comparison.wrong.sum())} of {total} transitions are wrong in some part{score}.",
        f"- observation: {share(matches.observation[going])} of its components right",
        f"- reward: right in {share(matches.reward)}",
        f"- terminated: right in {share(matches.terminated)}",
    ]
    missed = int((~matches.terminated & comparison.terminal).sum())
    invented = int((~matches.terminated & going).sum())
    if matches.valid_actions is not None:
        lines.insert(-1, f"- valid actions: right in {share(matches.valid_actions[going])}")
    if missed or invented:
        lines[-1] += (
            f"; {missed} of {int(comparison.terminal.sum())} ends missed, "
            f"{invented} false ends predicted"
        )
    return lines


def _component_lines(diagnosis: Diagnosis, terms: CandidateTerms, most: int) -> list[str]:
    """Write for each wrong component the size of its error and what explains it."""
    comparison = diagnosis.comparison
    if len(comparison.names) == 1 and not comparison.is_float(0):
        return []
    going = ~comparison.terminal
    shares = comparison.right[going].mean(axis=0) if going.any() else np.ones(1)
    wrong = np.flatnonzero(shares < 1)
    if not len(wrong):
        return []
    lost = (~comparison.right[:, wrong] & going[:, None]).T @ comparison.weights
    worst = sorted(wrong[np.argsort(-lost, kind="stable")][:most].tolist())
    lines = [
        "Wrong components (error in units of the typical change in one step; "
        "residual = recorded - predicted):"
    ]
    for index in worst:
        lines += _component(diagnosis, index, terms, going)
    if len(wrong) > len(worst):
        rest = np.setdiff1d(wrong, worst)
        lines.append(
            f"- {len(rest)} more components: {share(comparison.right[going][:, rest])} right"
        )
    if perfect := int((shares == 1).sum()):
        names = [name for name, value in zip(comparison.names, shares, strict=True) if value == 1]
        listed = ", ".join(names[:MOST_COMPONENTS]) + (", …" if perfect > MOST_COMPONENTS else "")
        lines.append(f"- always right: {listed} ({perfect} of {len(comparison.names)})")
    return lines


def _component(
    diagnosis: Diagnosis, index: int, terms: CandidateTerms, going: np.ndarray
) -> Iterator[str]:
    """Yield the lines of one component."""
    comparison = diagnosis.comparison
    line = f"- {comparison.label(index)}: right in {share(comparison.right[going, index])}"
    part = comparison.component(index)
    if not part.space_is_float:
        yield line
        return
    recorded = part.recorded.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        residual = recorded - part.predicted
    yield line + _sizes(residual[going], part.typical_change)
    others = terms.without(part.name)
    in_groups = list(_in_groups(diagnosis, part, others, residual))
    yield from in_groups or _explained(others, residual, recorded, going)
    law = best_term(others, recorded - part.before, recorded, going)
    if law is not None and law.right > MOSTLY:
        yield f"    recorded change: {law}, in {percent(law.right)} of the transitions"


def _in_groups(
    diagnosis: Diagnosis, part: Component, terms: CandidateTerms, residual: np.ndarray
) -> Iterator[str]:
    """Yield the term that makes a component right in the rows of a group."""
    recorded = part.recorded.astype(np.float64)
    for name, group in zip(LETTERS, diagnosis.groups, strict=False):
        if group.condition and part.name in group.parts:
            rows = np.zeros(len(recorded), dtype=np.bool_)
            rows[list(group.members)] = True
            term = best_term(terms, residual, recorded, rows & ~diagnosis.comparison.terminal)
            if term is not None and term.right > MOSTLY:
                yield f"    in ({name}) adding {term} makes {percent(term.right)} of them right"


def _sizes(residual: np.ndarray, unit: float) -> str:
    """Write the size of residuals, as multiples of `unit`."""
    finite = residual[np.isfinite(residual)]
    if not len(finite):
        return "; never a finite number"
    sizes = np.abs(finite) / unit
    median, most = np.quantile(sizes, [0.5, 0.95])
    odd = len(residual) - len(finite)
    return (
        f"; error median {median:.0e}, 95 % below {most:.0e}; "
        f"mean residual {finite.mean():+.2g}"
        + (f"; not a finite number in {odd} rows" if odd else "")
    )


def _explained(
    terms: CandidateTerms, residual: np.ndarray, recorded: np.ndarray, rows: np.ndarray
) -> Iterator[str]:
    """Yield the term that explains a residual exactly, or the terms it correlates with."""
    missing = best_term(terms, residual, recorded, rows)
    already = float(close(recorded - residual, recorded)[rows].mean()) if rows.any() else 1.0
    if missing is not None and missing.right > max(already + 0.2, MOSTLY):
        yield f"    adding {missing} to the prediction makes {percent(missing.right)} of them right"
    elif names := correlations(terms, residual, rows, most=1):
        yield f"    residual correlates with {', '.join(names)}"


def _rewards(diagnosis: Diagnosis, terms: CandidateTerms) -> list[str]:
    """Write the wrong rewards: counts of a few values, or what explains the error."""
    comparison = diagnosis.comparison
    wrong = comparison.mistakes["reward"]
    if not wrong.any():
        return []
    kinds = [kind for kind in diagnosis.kinds if kind.part == "reward"]
    if kinds:
        lines = [
            f"- recorded {kind.recorded!r}, predicted {kind.predicted!r}: {kind.times} times"
            for kind in kinds[:MOST_VALUES]
        ]
        more = [f"- {len(kinds) - MOST_VALUES} more pairs"] if len(kinds) > MOST_VALUES else []
        return ["Wrong rewards:", *lines, *more]
    recorded = comparison.dataset.columns["rewards"]
    with np.errstate(invalid="ignore", over="ignore"):
        residual = recorded - comparison.predictions["rewards"]
    everywhere = np.ones(len(recorded), dtype=np.bool_)
    spread = float(recorded.std()) or 1.0
    line = "The reward (error in units of its standard deviation)" + _sizes(residual, spread)
    return [line, *_explained(terms, residual, recorded, everywhere)]


def _by_action(comparison: ComparedRows) -> list[str]:
    """Count mistakes by action and part, if actions are few and differ."""
    taken = actions_taken(comparison)
    if not taken:
        return []
    names = list(comparison.mistakes)
    shares = [
        [float(wrong[regime.rows].mean()) for regime in taken]
        for wrong in comparison.mistakes.values()
    ]
    if not any(max(part) > UNEVEN * min(part) for part in shares):
        return []
    lines = [f"{'wrong in':<12}{'transitions':>12}{''.join(f'{name:>14}' for name in names)}"]
    for regime in taken:
        counts = [int((part & regime.rows).sum()) for part in comparison.mistakes.values()]
        cells = "".join(f"{count:>14}" for count in counts)
        lines.append(f"{regime.name:<12}{int(regime.rows.sum()):>12}{cells}")
    return lines


def _by_regime(comparison: ComparedRows) -> list[str]:
    """Compare the worst kinds of transition with all other transitions."""
    lines = [
        f"- {name} ({int(rows.sum())}): {'; '.join(_contrasts(comparison, rows))}"
        for name, rows in failing(comparison)[:MOST_REGIMES]
    ]
    heading = "Kinds of transition with more mistakes than other kinds (number of transitions):"
    return [heading, *lines] if lines else []


def _contrasts(comparison: ComparedRows, rows: np.ndarray) -> Iterator[str]:
    """Yield the parts that are wrong more often in some rows than in all other rows."""
    for part in worse_parts(comparison, rows):
        right = ~comparison.mistakes[part]
        yield f"{part} right in {share(right[rows])}, otherwise {share(right[~rows])}"
    if (ratio := error_ratio(comparison, rows)) > FAR:
        yield f"observation errors {ratio:.2g} times as large as otherwise"
