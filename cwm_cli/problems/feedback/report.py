"""The report of an improve prompt: where a program is wrong, by how much, and examples.

It describes a diagnosis: the conditions of wrong rows, simple terms of inputs and actions that
explain an error, rules of ends and rare rewards, and gaps in the data.
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
    failing_regimes,
    right_share,
    worse_parts,
)
from cwm_cli.problems.feedback.terms import (
    CandidateTerms,
    find_correlation,
    fit_term,
    list_terms,
)
from cwm_cli.text import clean, first_few, percent, share


def coverage(diagnosis: Diagnosis, contract: ContractName = "plain") -> Iterator[str]:
    """Yield sentences on conflicts and gaps in the data."""
    comparison = diagnosis.comparison
    yield "If these transitions contradict the description, the transitions are right."
    contradictions = _count_contradictions(comparison) if contract == "plain" else 0
    if contradictions:
        yield (
            f"{contradictions} pairs of observation and action were recorded with different "
            "outcomes: chance decides, or the observation hides something. One answer for each "
            "pair cannot be right on all of them; predict the most frequent outcome. The best "
            f"score that can be reached here is {share(diagnosis.best_score, 4)}."
        )
    missing = [] if comparison.terminal.any() else ["no episode terminates"]
    missing += [*_missing_actions(comparison), *_missing_values(comparison)]
    if missing:
        yield f"Not covered by these transitions: {'; '.join(missing)}."


def _count_contradictions(comparison: ComparedRows) -> int:
    """Count the pairs of observation and action that were recorded with different outcomes."""
    dataset = comparison.dataset
    situations = _row_bytes(dataset.select("observations", "actions"))
    results = _row_bytes(dataset.select("next_observations", "rewards", "terminations"))
    outcomes: dict[bytes, set[bytes]] = {}
    for situation, result in zip(situations, results, strict=True):
        outcomes.setdefault(situation, set()).add(result)
    return sum(len(different) > 1 for different in outcomes.values())


def _row_bytes(columns: Columns) -> Iterator[bytes]:
    for row in zip(*columns.values(), strict=True):
        yield b"".join(value.tobytes() for value in row)


def _missing_actions(comparison: ComparedRows) -> Iterator[str]:
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


def _missing_values(comparison: ComparedRows) -> Iterator[str]:
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
    """Write four names, the number of other names, and a verb."""
    plural = "s" if noun and len(names) > 1 else ""
    verb = "are" if len(names) > 1 else "is"
    return f"{noun}{plural} {first_few(names, 4)} {verb}".strip()


LETTERS = "ABCDEFGH"
"""Names of the groups."""
MAX_COMPONENTS = 6
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
    return describe(diagnosis, description, contract=contract, brief=brief)


def describe(
    diagnosis: Diagnosis,
    description: str = "",
    *,
    contract: ContractName = "plain",
    brief: bool = False,
) -> str:
    """Write a diagnosis as text; the arguments are the same as for `report`."""
    comparison = diagnosis.comparison
    terms = list_terms(comparison)
    # Prompts with a long description and recorded transitions have a shorter report.
    if brief and len(description) > 1200:
        length, example_length, components = 1800, 600, 3
    else:
        length, example_length, components = 4000, 1500, MAX_COMPONENTS
    conditions = {group.condition for group in diagnosis.groups}
    sections = [
        _summary(diagnosis, contract),
        _describe_groups(diagnosis.groups),
        _describe_components(diagnosis, terms, components),
        _describe_rewards(diagnosis, terms),
        [_describe_rule(rule) for rule in diagnosis.rules if rule.condition not in conditions],
        _by_action(comparison),
        _by_regime(comparison),
    ]
    closing = [] if brief else list(coverage(diagnosis, contract))
    if is_physical(comparison, description):
        closing.append(CHECKLIST)
    used = sum(len(line) + 1 for section in [*sections, closing] for line in section)
    if contract != "memory":  # a single step of an episode explains nothing without its past
        room = max(example_length, length - used)
        most = 5 if _is_explained(diagnosis) else 8
        shown = examples(comparison, room, _choose_examples(diagnosis), most)
        sections.append([EXAMPLES, *shown])
    sections.append(closing)
    return clean("\n\n".join("\n".join(s) for s in sections if s), newlines=True)


def _is_explained(diagnosis: Diagnosis) -> bool:
    """Return whether the first group covers all mistakes and few right rows."""
    first = diagnosis.groups[0] if diagnosis.groups else None
    if first is None or not first.condition or first.wrong_elsewhere:
        return False
    return first.wrong > MOSTLY * first.rows


def _describe_groups(groups: Sequence[Group]) -> list[str]:
    """Write the conditions under which rows are wrong."""
    lines = [
        f"({name}) {_describe_group(group)}" for name, group in zip(LETTERS, groups, strict=False)
    ]
    return ["Where predictions are wrong, the costliest first:", *lines] if lines else []


def _describe_group(group: Group) -> str:
    parts = first_few(group.parts, MAX_COMPONENTS)
    if not group.condition and group.wrong == group.rows:
        return f"{parts} in all {group.rows} transitions."
    if not group.condition:
        return f"{parts} in {group.wrong} of {group.rows} transitions, under no simple condition."
    return (
        f"{parts} if {group.condition}: wrong in {group.wrong} of {group.rows} transitions, "
        f"otherwise in {group.wrong_elsewhere} of {group.elsewhere}."
    )


def _describe_rule(rule: OutcomeRule) -> str:
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


def _choose_examples(diagnosis: Diagnosis) -> Iterator[Example]:
    """Yield rows of the first group, six kinds of wrong ends and rewards, then other groups."""
    for place, (name, group) in enumerate(zip(LETTERS, diagnosis.groups, strict=False)):
        sizes = ("smallest error", "typical error")
        for row, size in zip(group.shown, sizes, strict=False):
            yield Example(row, f"in ({name}), {size}")
        if group.contrast is not None:
            wrong, right, differs = group.contrast
            yield Example(wrong, f"in ({name})")
            unlike = f" except for {', '.join(differs)}" if differs else ""
            yield Example(right, f"like the one above{unlike}, and predicted rightly")
        for kind in diagnosis.kinds[:6] if place == 0 else ():
            yield Example(kind.row, f"{_describe_kind(kind)} ({kind.times} of this kind)")


def _describe_kind(kind: WrongKind) -> str:
    if kind.part == "reward":
        return f"reward {kind.recorded!r}, predicted {kind.predicted!r}"
    return "missed end" if kind.recorded else "false end"


PHYSICAL = re.compile(
    r"veloc|torque|gravit|accelerat|\bjoint|friction|\bmass\b|pendulum|\bspeed|\bangle",
    re.IGNORECASE,
)


def is_physical(comparison: ComparedRows, description: str) -> bool:
    """Return whether an environment with real numbers is a physical system.

    It is, if its description contains two different words of `PHYSICAL`, or if one component is
    the velocity of another component: it correlates with its change by more than 0.9.
    """
    real = [
        part
        for part in map(comparison.component, range(min(len(comparison.names), 60)))
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
    return bool((np.nan_to_num(strength) > 0.9).any())


def _summary(diagnosis: Diagnosis, contract: ContractName) -> list[str]:
    """Write the share of each part that is right."""
    comparison = diagnosis.comparison
    matches, going = comparison.matches, ~comparison.terminal
    total = len(comparison.dataset)
    score = f"; the weighted score of all is {share(diagnosis.score, 4)}"
    score = score if contract == "plain" else ""
    lines = [
        f"{int(comparison.wrong.sum())} of {total} transitions are wrong in some part{score}.",
        f"- observation: {right_share(matches.observation[going])} of its components right",
        f"- reward: right in {right_share(matches.reward)}",
        f"- terminated: right in {right_share(matches.terminated)}",
    ]
    missed = int((~matches.terminated & comparison.terminal).sum())
    invented = int((~matches.terminated & going).sum())
    if matches.valid_actions is not None:
        lines.insert(-1, f"- valid actions: right in {right_share(matches.valid_actions[going])}")
    if missed or invented:
        lines[-1] += (
            f"; {missed} of {int(comparison.terminal.sum())} ends missed, "
            f"{invented} false ends predicted"
        )
    return lines


def _describe_components(diagnosis: Diagnosis, terms: CandidateTerms, most: int) -> list[str]:
    """Write the size of the error of each wrong component, and the term that explains it."""
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
        lines += _describe_component(diagnosis, index, terms, going)
    if len(wrong) > len(worst):
        rest = np.setdiff1d(wrong, worst)
        lines.append(
            f"- {len(rest)} more components: {right_share(comparison.right[going][:, rest])} right"
        )
    if perfect := int((shares == 1).sum()):
        names = [name for name, value in zip(comparison.names, shares, strict=True) if value == 1]
        listed = ", ".join(names[:MAX_COMPONENTS]) + (", …" if perfect > MAX_COMPONENTS else "")
        lines.append(f"- always right: {listed} ({perfect} of {len(comparison.names)})")
    return lines


def _describe_component(
    diagnosis: Diagnosis, index: int, terms: CandidateTerms, going: np.ndarray
) -> Iterator[str]:
    comparison = diagnosis.comparison
    line = f"- {comparison.label(index)}: right in {right_share(comparison.right[going, index])}"
    part = comparison.component(index)
    if not part.space_is_float:
        yield line
        return
    recorded = part.recorded.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        residual = recorded - part.predicted
    yield line + _describe_sizes(residual[going], part.typical_change)
    others = terms.without_outcome(part.name)
    in_groups = list(_explain_in_groups(diagnosis, part, others, residual))
    yield from in_groups or _explain_residual(others, residual, recorded, going)
    law = fit_term(others, recorded - part.before, recorded, going)
    if law is not None and law.right > MOSTLY:
        yield f"    recorded change: {law}, in {percent(law.right)} of the transitions"


def _explain_in_groups(
    diagnosis: Diagnosis, part: Component, terms: CandidateTerms, residual: np.ndarray
) -> Iterator[str]:
    """Yield the term that makes a component right in the rows of a group."""
    recorded = part.recorded.astype(np.float64)
    for name, group in zip(LETTERS, diagnosis.groups, strict=False):
        if group.condition and part.name in group.parts:
            rows = np.zeros(len(recorded), dtype=np.bool_)
            rows[list(group.members)] = True
            term = fit_term(terms, residual, recorded, rows & ~diagnosis.comparison.terminal)
            if term is not None and term.right > MOSTLY:
                yield f"    in ({name}) adding {term} makes {percent(term.right)} of them right"


def _describe_sizes(residual: np.ndarray, unit: float) -> str:
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


def _explain_residual(
    terms: CandidateTerms, residual: np.ndarray, recorded: np.ndarray, rows: np.ndarray
) -> Iterator[str]:
    """Yield the term that explains a residual exactly, or the terms it correlates with."""
    missing = fit_term(terms, residual, recorded, rows)
    already = float(close(recorded - residual, recorded)[rows].mean()) if rows.any() else 1.0
    if missing is not None and missing.right > max(already + 0.2, MOSTLY):
        yield f"    adding {missing} to the prediction makes {percent(missing.right)} of them right"
    elif correlation := find_correlation(terms, residual, rows):
        yield f"    residual correlates with {correlation}"


def _describe_rewards(diagnosis: Diagnosis, terms: CandidateTerms) -> list[str]:
    """Write the counts of wrong rewards, or the size of their error and its explanation."""
    comparison = diagnosis.comparison
    wrong = comparison.mistakes["reward"]
    if not wrong.any():
        return []
    kinds = [kind for kind in diagnosis.kinds if kind.part == "reward"]
    if kinds:
        lines = [
            f"- recorded {kind.recorded!r}, predicted {kind.predicted!r}: {kind.times} times"
            for kind in kinds[:5]
        ]
        more = [f"- {len(kinds) - 5} more pairs"] if len(kinds) > 5 else []
        return ["Wrong rewards:", *lines, *more]
    recorded = comparison.dataset.columns["rewards"]
    with np.errstate(invalid="ignore", over="ignore"):
        residual = recorded - comparison.predictions["rewards"]
    everywhere = np.ones(len(recorded), dtype=np.bool_)
    spread = float(recorded.std()) or 1.0
    line = "The reward (error in units of its standard deviation)" + _describe_sizes(
        residual, spread
    )
    return [line, *_explain_residual(terms, residual, recorded, everywhere)]


def _by_action(comparison: ComparedRows) -> list[str]:
    """Count mistakes by action and part, if actions are few and their shares differ by 50 %."""
    taken = actions_taken(comparison)
    if not taken:
        return []
    names = list(comparison.mistakes)
    shares = [
        [float(wrong[regime.rows].mean()) for regime in taken]
        for wrong in comparison.mistakes.values()
    ]
    if not any(max(part) > 1.5 * min(part) for part in shares):
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
        for name, rows in failing_regimes(comparison)[:4]
    ]
    heading = "Kinds of transition with more mistakes than other kinds (number of transitions):"
    return [heading, *lines] if lines else []


def _contrasts(comparison: ComparedRows, rows: np.ndarray) -> Iterator[str]:
    """Yield the parts that are wrong more often in some rows than in all other rows."""
    for part in worse_parts(comparison, rows):
        right = ~comparison.mistakes[part]
        yield f"{part} right in {right_share(right[rows])}, otherwise {right_share(right[~rows])}"
    if (ratio := error_ratio(comparison, rows)) > FAR:
        yield f"observation errors {ratio:.2g} times as large as otherwise"
