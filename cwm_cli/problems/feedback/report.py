"""The report of an improve prompt: where a program is wrong, by how much, and examples.

It describes a diagnosis: the conditions of wrong rows, simple terms of inputs and actions that
explain an error, rules of ends and rare rewards, and gaps in the data. A term is an input, an
action, a product of two inputs, an outcome or a change. It explains a residual if a multiple of
the term, added to the prediction, makes rows right.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import combinations_with_replacement, islice
from typing import NamedTuple

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_cli.data.spaces import Columns
from cwm_cli.evaluation import Metric, close
from cwm_cli.evaluation.finding import CERTAIN, ContractName
from cwm_cli.problems.feedback.diagnosis import Diagnosis, Group, OutcomeRule, diagnose
from cwm_cli.problems.feedback.examples import (
    EXAMPLES,
    FAR,
    ComparedRows,
    Example,
    actions_taken,
    difference,
    error_ratio,
    examples,
    failing_regimes,
    right_share,
    worse_parts,
)
from cwm_cli.problems.feedback.steps import rows_by_situation
from cwm_cli.text import clean, first_few, percent, share
from cwm_cli.worlds.contract import component_names


def coverage(diagnosis: Diagnosis, contract: ContractName) -> Iterator[str]:
    """Yield sentences on conflicts and gaps in the data."""
    dataset = diagnosis.comparison.dataset
    yield "If these transitions contradict the description, the transitions are right."
    results = dataset.select("next_observations", "rewards", "terminations").values()
    situations = rows_by_situation(dataset).values() if contract in CERTAIN else ()
    contradictions = sum(
        len({b"".join(column[row].tobytes() for column in results) for row in rows}) > 1
        for rows in situations
    )
    if contradictions:
        yield (
            f"{contradictions} pairs of observation and action were recorded with different "
            "outcomes: chance decides, or the observation hides something. One answer for each "
            "pair cannot be right on all of them; predict the most frequent outcome. The best "
            f"score that can be reached here is {share(diagnosis.best_score, 4)}."
        )
    if missing := list(_missing_data(diagnosis.comparison)):
        yield f"Not covered by these transitions: {'; '.join(missing)}."


def _missing_data(comparison: ComparedRows) -> Iterator[str]:
    """Yield missing ends, actions never taken, and components without a bound or a change."""
    if not comparison.terminal.any():
        yield "no episode terminates"
    space = comparison.dataset.action_space
    actions = np.zeros(0) if space.children else comparison.dataset.columns["actions"]
    if space.kind == "discrete":
        every = range(int(space.low[0]), int(space.high[0]) + 1)
        never = sorted(set(every) - set(actions.tolist())) if len(every) < 1000 else []
        if never:
            yield f"{_listed('action', never)} never taken"
    elif space.is_float and len(actions):
        values = actions.reshape(len(actions), -1)
        low, high = (np.array(bounds, values.dtype) for bounds in (space.low, space.high))
        if not ((values == low) | (values == high)).any():
            yield "no action is at its bound"
    unreached, constant = [], []
    for index, name in enumerate(comparison.names[:1000]):
        if not comparison.is_float(index):
            continue
        part = comparison.component(index)
        low, high = part.recorded.min(), part.recorded.max()
        if low == high:
            constant.append(name)
        # Gymnasium writes some unbounded components with the largest float32 as their bound.
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


MAX_COMPONENTS = 6
"""Most components or parts that a line or a section names."""
MIN_EXPLAINED = 0.5
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
    comparison, groups = diagnosis.comparison, diagnosis.groups
    terms = list_terms(comparison)
    # Prompts with a long description and recorded transitions have a shorter report.
    if brief and len(description) > 1200:
        length, example_length, components = 1800, 600, 3
    else:
        length, example_length, components = 4000, 1500, MAX_COMPONENTS
    named = [f"({name}) {_describe_group(group)}" for name, group in _name_groups(diagnosis)]
    conditions = {group.condition for group in groups}
    sections = [
        _summary(diagnosis, contract),
        ["Where predictions are wrong, the costliest first:", *named] if named else [],
        _describe_components(diagnosis, terms, components),
        _describe_rewards(diagnosis, terms),
        [_describe_rule(rule) for rule in diagnosis.rules if rule.condition not in conditions],
        _by_action(comparison),
        _by_regime(comparison),
    ]
    closing = [] if brief else list(coverage(diagnosis, contract))
    if _is_physical(comparison, description):
        closing.append(CHECKLIST)
    used = sum(len(line) + 1 for section in [*sections, closing] for line in section)
    if contract != "memory":  # a single step of an episode explains nothing without its past
        room = max(example_length, length - used)
        # Fewer examples suffice if the first group explains all mistakes.
        is_explained = (
            bool(groups and groups[0].condition)
            and not groups[0].wrong_elsewhere
            and groups[0].wrong > groups[0].rows / 2
        )
        most = 5 if is_explained else 8
        sections.append([EXAMPLES, *examples(comparison, room, _choose_examples(diagnosis), most)])
    sections.append(closing)
    return clean("\n\n".join("\n".join(s) for s in sections if s), newlines=True)


def _name_groups(diagnosis: Diagnosis) -> Iterator[tuple[str, Group]]:
    """Yield the groups with the letters that the text calls them."""
    return zip("ABCDEFGH", diagnosis.groups, strict=False)


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
    for place, (name, group) in enumerate(_name_groups(diagnosis)):
        sizes = ("smallest error", "typical error")
        for row, size in zip(group.shown, sizes, strict=False):
            yield Example(row, f"in ({name}), {size}")
        if group.contrast is not None:
            wrong, right, differs = group.contrast
            yield Example(wrong, f"in ({name})")
            unlike = f" except for {', '.join(differs)}" if differs else ""
            yield Example(right, f"like the one above{unlike}, and predicted rightly")
        for kind in diagnosis.kinds[:6] if place == 0 else ():
            if kind.part == "reward":
                words = f"reward {kind.recorded!r}, predicted {kind.predicted!r}"
            else:
                words = "missed end" if kind.recorded else "false end"
            yield Example(kind.row, f"{words} ({kind.times} of this kind)")


PHYSICAL = re.compile(
    r"veloc|torque|gravit|accelerat|\bjoint|friction|\bmass\b|pendulum|\bspeed|\bangle",
    re.IGNORECASE,
)


def _is_physical(comparison: ComparedRows, description: str) -> bool:
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
    # A component that grows by itself is not its own velocity.
    np.fill_diagonal(strength, 0.0)
    return bool((np.nan_to_num(strength) > 0.9).any())


def _summary(diagnosis: Diagnosis, contract: ContractName) -> list[str]:
    """Write the share of each part that is right."""
    comparison = diagnosis.comparison
    matches, going = comparison.matches, ~comparison.terminal
    total = len(comparison.dataset)
    score = f"; the weighted score of all is {share(diagnosis.score, 4)}"
    score = score if contract in CERTAIN else ""
    lines = [
        f"{int(comparison.wrong.sum())} of {total} transitions are wrong in some part{score}.",
        f"- observation: {right_share(matches.observation[going])} of its components right",
    ]
    if matches.reward is not None:
        lines.append(f"- reward: right in {right_share(matches.reward)}")
    if matches.valid_actions is not None:
        lines.append(f"- valid actions: right in {right_share(matches.valid_actions[going])}")
    if matches.terminated is None:
        return lines
    lines.append(f"- terminated: right in {right_share(matches.terminated)}")
    missed = int((~matches.terminated & comparison.terminal).sum())
    invented = int((~matches.terminated & going).sum())
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
    recorded, residual = part.recorded.astype(np.float64), part.residual
    yield line + _describe_sizes(residual[going], part.typical_change)
    others = terms.without_outcome(part.name)
    in_groups = []
    for name, group in _name_groups(diagnosis):
        if group.condition and part.name in group.parts:
            rows = np.zeros(len(recorded), dtype=np.bool_)
            rows[list(group.members)] = True
            term = fit_term(others, residual, recorded, rows & going)
            if term is not None and term.right > MIN_EXPLAINED:
                makes = f"adding {term} makes {percent(term.right)} of them right"
                in_groups.append(f"    in ({name}) {makes}")
    yield from in_groups or _explain_residual(others, residual, recorded, going)
    law = fit_term(others, recorded - part.before, recorded, going)
    if law is not None and law.right > MIN_EXPLAINED:
        yield f"    recorded change: {law}, in {percent(law.right)} of the transitions"


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
    if missing is not None and missing.right > max(already + 0.2, MIN_EXPLAINED):
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
        lines = ["Wrong rewards:"] + [
            f"- recorded {kind.recorded!r}, predicted {kind.predicted!r}: {kind.times} times"
            for kind in kinds[:5]
        ]
        return lines + [f"- {len(kinds) - 5} more pairs"] * (len(kinds) > 5)
    recorded = comparison.dataset.columns["rewards"]
    residual = difference(recorded, comparison.predictions["rewards"])
    everywhere = np.ones(len(recorded), dtype=np.bool_)
    sizes = _describe_sizes(residual, float(recorded.std()) or 1.0)
    line = f"The reward (error in units of its standard deviation){sizes}"
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
    lines = ["Kinds of transition with more mistakes than other kinds (number of transitions):"]
    for name, rows in failing_regimes(comparison)[:4]:
        contrasts = []
        for part in worse_parts(comparison, rows):
            here, elsewhere = (right_share(~comparison.mistakes[part][m]) for m in (rows, ~rows))
            contrasts.append(f"{part} right in {here}, otherwise {elsewhere}")
        if (ratio := error_ratio(comparison, rows)) > FAR:
            contrasts.append(f"observation errors {ratio:.2g} times as large as otherwise")
        lines.append(f"- {name} ({int(rows.sum())}): {'; '.join(contrasts)}")
    return lines if len(lines) > 1 else []


# --- terms that may be missing in a program


class CandidateTerms(NamedTuple):
    """The names of candidate terms, and their values, (terms, rows)."""

    names: list[str]
    values: np.ndarray

    def without_outcome(self, name: str) -> CandidateTerms:
        """Leave out the next value and the change of a component, which explain it trivially."""
        own = {f"next_{name}", f"(next_{name} - {name})"}
        kept = [index for index, term in enumerate(self.names) if term not in own]
        return CandidateTerms([self.names[index] for index in kept], self.values[kept])


class FittedTerm(NamedTuple):
    """A term with its coefficient, and the share of rows that it makes right."""

    name: str
    coefficient: float
    right: float

    def __str__(self) -> str:
        number = f"{self.coefficient:.6g}"
        return number if self.name == "1" else f"{number} * {self.name}"


def list_terms(comparison: ComparedRows) -> CandidateTerms:
    """Return inputs, actions, outcomes and changes, and the products of up to 14 inputs."""
    most = 60  # components of the observation, and of the action
    reals = [i for i in range(len(comparison.names)) if comparison.is_float(i)][:most]
    parts = [comparison.component(index) for index in reals]
    before = {part.name: part.before.astype(np.float64) for part in parts}
    after = {part.name: part.recorded.astype(np.float64) for part in parts}
    actions = dict(islice(_action_terms(comparison), most))
    inputs = before | actions
    terms = {"1": np.ones(len(comparison.dataset))} | inputs
    if len(inputs) <= 14:
        for first, second in combinations_with_replacement(inputs, 2):
            name = f"{first}**2" if first == second else f"{first} * {second}"
            terms[name] = inputs[first] * inputs[second]
    for name, values in after.items():
        terms[f"next_{name}"] = values
        terms[f"(next_{name} - {name})"] = values - before[name]
    if comparison.dataset.action_space.kind != "discrete" and len(actions) > 1:
        terms["sum(action**2)"] = np.sum(np.square(list(actions.values())), axis=0)
    return CandidateTerms(list(terms), np.array(list(terms.values())))


def _action_terms(comparison: ComparedRows) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the components of the action, or an indicator of each of at most six actions.

    The first action has no indicator: the constant term and the other indicators determine it.
    """
    space, columns = comparison.dataset.action_space, comparison.dataset.columns
    if space.kind == "discrete":
        actions = columns["actions"]
        values = np.unique(actions)
        if len(values) <= 6:
            yield from ((f"(action == {value})", actions == value) for value in values[1:])
    elif all(leaf.space.kind != "text" for leaf in space.leaves("actions")):
        leaves = [columns[leaf.name] for leaf in space.leaves("actions")]
        values = np.concatenate([leaf.reshape(len(leaf), -1) for leaf in leaves], axis=1)
        yield from zip(component_names(space, "action"), values.T.astype(np.float64), strict=True)


def fit_term(
    terms: CandidateTerms, residual: np.ndarray, recorded: np.ndarray, rows: np.ndarray
) -> FittedTerm | None:
    """Return the term that makes most rows right if it is added to the prediction.

    The coefficient is the median of residual / term: if one value fits most rows, it is the median.
    None if fewer than three rows have a finite residual.

    Args:
        terms: The candidate terms.
        residual: Recorded minus predicted value of each row.
        recorded: The recorded value of each row.
        rows: The mask of the rows to explain.
    """
    rows = rows & np.isfinite(residual)
    if rows.sum() < 3:
        return None
    # Choose the term on about 250 rows, and score it on all rows.
    sample = np.flatnonzero(rows)[:: max(1, int(rows.sum()) // 250)]
    values = terms.values[:, sample]
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratios = np.where(np.abs(values) > 1e-9, residual[sample] / values, np.nan)
    ratios = np.sort(ratios, axis=1)  # sorts NaN to the end
    middle = np.isfinite(ratios).sum(axis=1) // 2
    coefficients = np.nan_to_num(ratios[np.arange(len(ratios)), middle])
    right = _right_shares(coefficients, values, residual[sample], recorded[sample])
    best = int(np.argmax(np.where(coefficients == 0, 0.0, right)))
    chosen = slice(best, best + 1)
    right = _right_shares(
        coefficients[chosen], terms.values[chosen, rows], residual[rows], recorded[rows]
    )
    return FittedTerm(terms.names[best], float(coefficients[best]), float(right[0]))


def _right_shares(
    coefficients: np.ndarray, values: np.ndarray, residual: np.ndarray, recorded: np.ndarray
) -> np.ndarray:
    """Return for each term the share of rows that it makes right."""
    with np.errstate(invalid="ignore", over="ignore"):
        corrected = recorded - residual + coefficients[:, None] * values
    return np.asarray(close(corrected, recorded).mean(axis=1))


def find_correlation(terms: CandidateTerms, residual: np.ndarray, rows: np.ndarray) -> str:
    """Return the term with the largest correlation with a residual, "" if all are below 0.3."""
    rows = rows & np.isfinite(residual)
    if rows.sum() < 3:
        return ""
    values = terms.values[:, rows] - terms.values[:, rows].mean(axis=1, keepdims=True)
    centred = residual[rows] - residual[rows].mean()
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        norms = np.sqrt((values**2).sum(axis=1) * (centred**2).sum())
        strengths = np.nan_to_num(values @ centred / np.where(norms > 1e-12, norms, np.inf))
    best = int(np.argmax(np.abs(strengths)))
    return f"{terms.names[best]} ({strengths[best]:+.2f})" if abs(strengths[best]) >= 0.3 else ""
