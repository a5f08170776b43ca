"""The report of an improve prompt: where a program goes wrong, how, and on what to check it.

It says which components are wrong and which simple terms of inputs and actions explain by how
much, what tells the end of an episode where one value does, and what the transitions do not show.
"""

from collections.abc import Iterator
from itertools import combinations_with_replacement
from typing import NamedTuple

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_cli.data.spaces import Columns
from cwm_cli.evaluation import Metric, close
from cwm_cli.problems.feedback.examples import (
    EXAMPLES,
    FAR,
    ComparedRows,
    actions_taken,
    error_ratio,
    examples,
    failing,
    share,
    worse_parts,
)
from cwm_cli.text import clean, percent
from cwm_cli.text import share as score_words
from cwm_cli.worlds.contract import component_names

MOST_NAMES = 4


def coverage(comparison: ComparedRows) -> Iterator[str]:
    """Say that the data decide, and what they leave open."""
    yield "Where these transitions and the description disagree, the transitions are right."
    if contradictions := _contradictions(comparison):
        yield (
            f"{contradictions} pairs of observation and action were recorded with different "
            "outcomes: chance, or something that the observation hides. No program is right on "
            "all of these; predict the most frequent outcome."
        )
    missing = [*_ends(comparison), *_actions(comparison), *_components(comparison)]
    if missing:
        yield f"They do not cover everything: {'; '.join(missing)}."


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
    """Say so when no episode ends."""
    if not comparison.terminal.any():
        yield "no episode terminates"


def _actions(comparison: ComparedRows) -> Iterator[str]:
    """Name actions that were never taken, and bounds that no action touches."""
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
    """Name real components that never reach a bound of theirs, and those that never change."""
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
    """Write some names and how many more there are, with a verb."""
    shown = ", ".join(map(str, names[:MOST_NAMES]))
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    plural = "s" if noun and len(names) > 1 else ""
    verb = "are" if len(names) > 1 else "is"
    return f"{noun}{plural} {shown}{more} {verb}".strip()


MOST_ENDS = 60
FEWEST_ENDS = 3


def ends(comparison: ComparedRows) -> list[str]:
    """Name the first value of the next observation that separates ends from other steps."""
    terminal = comparison.terminal
    if comparison.matches.terminated.all() or terminal.sum() < FEWEST_ENDS or terminal.all():
        return []
    for name, values in _values(comparison):
        at_ends, elsewhere = values[terminal], values[~terminal]
        if at_ends.min() > elsewhere.max():
            return [_told(name, "least", at_ends.min(), "most", elsewhere.max())]
        if at_ends.max() < elsewhere.min():
            return [_told(name, "most", at_ends.max(), "least", elsewhere.min())]
    return []


def _told(name: str, end: str, at_ends: float, other: str, elsewhere: float) -> str:
    """Say between which values the end lies."""
    return (
        f"In the recordings {name} is at {end} {float(at_ends)!r} when the episode terminates, "
        f"and at {other} {float(elsewhere)!r} when it goes on."
    )


def _values(comparison: ComparedRows) -> Iterator[tuple[str, np.ndarray]]:
    """Yield each real component of the next observation, and its size."""
    for index, name in enumerate(comparison.names[:MOST_ENDS]):
        if comparison.is_float(index):
            recorded = comparison.component(index).recorded.astype(np.float64)
            yield f"next_{name}", recorded
            yield f"abs(next_{name})", np.abs(recorded)


MOST_PRODUCTS = 14
"""With more inputs than this, products of two are not tried."""
MOST_INPUTS = 60
MOST_ROWS = 250
"""CandidateTerms are chosen on about this many rows, and the chosen one is checked on all."""
WEAKEST = 0.3
"""Correlations below this are not worth a word."""


class CandidateTerms(NamedTuple):
    """Candidate terms: their names and their values, one line per term."""

    names: list[str]
    values: np.ndarray

    def without(self, name: str) -> "CandidateTerms":
        """Leave out what a component itself becomes, which explains its change trivially."""
        own = {f"next_{name}", f"(next_{name} - {name})"}
        kept = [index for index, term in enumerate(self.names) if term not in own]
        return CandidateTerms([self.names[index] for index in kept], self.values[kept])


class FittedTerm(NamedTuple):
    """A term with its coefficient, and the share of rows that are right with it."""

    name: str
    coefficient: float
    right: float

    def __str__(self) -> str:
        number = f"{self.coefficient:.6g}"
        return number if self.name == "1" else f"{number} * {self.name}"


def candidate_terms(comparison: ComparedRows) -> CandidateTerms:
    """Return inputs, actions, products of two of them, outcomes and changes."""
    before, after = _observed(comparison)
    inputs = before | _action_terms(comparison)
    terms = {"1": np.ones(len(comparison.dataset))} | inputs
    if len(inputs) <= MOST_PRODUCTS:
        for one, other in combinations_with_replacement(inputs, 2):
            name = f"{one}**2" if one == other else f"{one} * {other}"
            terms[name] = inputs[one] * inputs[other]
    for name, values in after.items():
        terms[f"next_{name}"] = values
        terms[f"(next_{name} - {name})"] = values - before[name]
    if len(actions := _box_actions(comparison)) > 1:
        terms["sum(action**2)"] = np.sum(np.square(list(actions.values())), axis=0)
    return CandidateTerms(list(terms), np.array(list(terms.values())))


def best_term(
    terms: CandidateTerms, residual: np.ndarray, target: np.ndarray, rows: np.ndarray
) -> FittedTerm | None:
    """Return the one term that, added to what is there, makes most of `rows` right.

    The coefficient is the median of residual / term: if one value fits most
    rows, that is it, whatever happens in the others.
    """
    rows = rows & np.isfinite(residual)
    if rows.sum() < 3:
        return None
    some = np.flatnonzero(rows)[:: max(1, int(rows.sum()) // MOST_ROWS)]
    coefficients = _coefficients(terms.values[:, some], residual[some])
    right = _right(coefficients, terms.values[:, some], residual[some], target[some])
    best = int(np.argmax(np.where(coefficients == 0, 0.0, right)))
    chosen = slice(best, best + 1)
    everywhere = _right(
        coefficients[chosen], terms.values[chosen, rows], residual[rows], target[rows]
    )
    return FittedTerm(terms.names[best], float(coefficients[best]), float(everywhere[0]))


def _coefficients(values: np.ndarray, residual: np.ndarray) -> np.ndarray:
    """Return for each term the median of residual / term over the rows where it is not 0."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratios = np.sort(np.where(np.abs(values) > 1e-9, residual / values, np.nan), axis=1)
    middle = np.isfinite(ratios).sum(axis=1) // 2
    coefficients: np.ndarray = np.nan_to_num(ratios[np.arange(len(ratios)), middle])
    return coefficients


def _right(
    coefficients: np.ndarray, values: np.ndarray, residual: np.ndarray, target: np.ndarray
) -> np.ndarray:
    """Return for each term the share of rows that adding it makes right."""
    with np.errstate(invalid="ignore", over="ignore"):
        corrected = target - residual + coefficients[:, None] * values
    share: np.ndarray = close(corrected, target).mean(axis=1)
    return share


def correlations(
    terms: CandidateTerms, residual: np.ndarray, rows: np.ndarray, most: int = 2
) -> list[str]:
    """Name the terms that a residual correlates with most, the strongest first."""
    rows = rows & np.isfinite(residual)
    if rows.sum() < 3:
        return []
    values = terms.values[:, rows] - terms.values[:, rows].mean(axis=1, keepdims=True)
    centred = residual[rows] - residual[rows].mean()
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        norms = np.sqrt((values**2).sum(axis=1) * (centred**2).sum())
        strength = np.nan_to_num(values @ centred / np.where(norms > 1e-12, norms, np.inf))
    order = np.argsort(-np.abs(strength), kind="stable")[:most]
    return [f"{terms.names[i]} ({strength[i]:+.2f})" for i in order if abs(strength[i]) >= WEAKEST]


def _observed(comparison: ComparedRows) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return the real components before and after the step, by name."""
    before, after = {}, {}
    indices = [i for i in range(len(comparison.names)) if comparison.is_float(i)]
    for index in indices[:MOST_INPUTS]:
        part = comparison.component(index)
        before[part.name] = part.before.astype(np.float64)
        after[part.name] = part.recorded.astype(np.float64)
    return before, after


def _action_terms(comparison: ComparedRows) -> dict[str, np.ndarray]:
    """Return the components of the action, or whether it is one of a few."""
    space, columns = comparison.dataset.action_space, comparison.dataset.columns
    if space.kind != "discrete":
        return _box_actions(comparison)
    values = np.unique(columns["actions"])
    if len(values) > 6:
        return {}
    return {f"(action == {value})": columns["actions"] == value for value in values[1:]}


def _box_actions(comparison: ComparedRows) -> dict[str, np.ndarray]:
    """Return the components of an action of numbers, by name."""
    space, columns = comparison.dataset.action_space, comparison.dataset.columns
    if space.kind not in ("box", "multidiscrete", "multibinary"):
        return {}
    values = columns["actions"].reshape(len(comparison.dataset), -1).astype(np.float64)
    names = component_names(space, "action")
    return dict(list(zip(names, values.T, strict=True))[:MOST_INPUTS])


LENGTH = 4000
"""About how many characters a report has."""
LEAST_EXAMPLES = 1500
MOST_COMPONENTS = 6
MOST_REGIMES = 6
MOST_VALUES = 5
MOSTLY = 0.5
"""A term that explains no more than this share of the rows is not worth naming."""
CHECKLIST = (
    "For a physical system check: integrator (explicit, semi-implicit, Runge-Kutta), time step "
    "and frame skip, units and gears, damping, limits, contacts, what the observation clips or "
    "leaves out, and which quantities lag one substep behind."
)


def report(dataset: Dataset, predictions: Columns, metric: Metric, description: str = "") -> str:
    """Describe wrong predictions in about 4,000 characters, however large an observation is."""
    comparison = ComparedRows.of(dataset, predictions, metric, description)
    terms = candidate_terms(comparison)
    sections = [
        _summary(comparison),
        _component_lines(comparison, terms),
        _rewards(comparison, terms),
        ends(comparison),
        _by_action(comparison),
        _by_regime(comparison),
    ]
    closing = list(coverage(comparison))
    if comparison.has_floats:
        closing.append(CHECKLIST)
    used = sum(len(line) + 1 for section in [*sections, closing] for line in section)
    shown = examples(comparison, max(LEAST_EXAMPLES, LENGTH - used))
    sections += [[EXAMPLES, *shown], closing]
    return clean("\n\n".join("\n".join(s) for s in sections if s), newlines=True)


def _summary(comparison: ComparedRows) -> list[str]:
    """Say how much of each part is right."""
    matches, going = comparison.matches, ~comparison.terminal
    total = len(comparison.dataset)
    score = 1.0 - comparison.lost.sum() / comparison.weights.sum()
    lines = [
        f"{int(comparison.wrong.sum())} of {total} transitions are wrong in some part; "
        f"the weighted score on them is {score_words(score, 4)}.",
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
            f"{invented} predicted where the episode went on"
        )
    return lines


def _component_lines(comparison: ComparedRows, terms: CandidateTerms) -> list[str]:
    """Say for each wrong component how large its error is and what it goes with."""
    if len(comparison.names) == 1 and not comparison.is_float(0):
        return []
    going = ~comparison.terminal
    shares = comparison.right[going].mean(axis=0) if going.any() else np.ones(1)
    wrong = np.flatnonzero(shares < 1)
    if not len(wrong):
        return []
    lost = (~comparison.right[:, wrong] & going[:, None]).T @ comparison.weights
    worst = sorted(wrong[np.argsort(-lost, kind="stable")][:MOST_COMPONENTS].tolist())
    lines = [
        "The observation by component (errors in units of the typical change in one step; "
        "residual = recorded - predicted):"
    ]
    for index in worst:
        lines += _component(comparison, index, terms, going)
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
    comparison: ComparedRows, index: int, terms: CandidateTerms, going: np.ndarray
) -> Iterator[str]:
    """Yield the lines on one component."""
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
    yield from _explained(others, residual, recorded, going)
    law = best_term(others, recorded - part.before, recorded, going)
    if law is not None and law.right > MOSTLY:
        yield f"    recorded: it changes by {law}, in {percent(law.right)} of the transitions"


def _sizes(residual: np.ndarray, unit: float) -> str:
    """Say how large residuals are, as multiples of `unit`."""
    finite = residual[np.isfinite(residual)]
    if not len(finite):
        return "; never a finite number"
    median, most = np.quantile(np.abs(finite), [0.5, 0.95]) / unit
    odd = len(residual) - len(finite)
    return (
        f"; error median {median:.0e}, 95 % below {most:.0e}; mean residual {finite.mean():+.3g}"
        + (f"; not a finite number in {odd} rows" if odd else "")
    )


def _explained(
    terms: CandidateTerms, residual: np.ndarray, recorded: np.ndarray, rows: np.ndarray
) -> Iterator[str]:
    """Yield what a residual follows from: one term exactly, or those it correlates with."""
    missing = best_term(terms, residual, recorded, rows)
    already = float(close(recorded - residual, recorded)[rows].mean()) if rows.any() else 1.0
    if missing is not None and missing.right > max(already + 0.2, MOSTLY):
        yield f"    adding {missing} to the prediction makes {percent(missing.right)} of them right"
    elif names := correlations(terms, residual, rows):
        yield f"    residual correlates with {', '.join(names)}"


def _rewards(comparison: ComparedRows, terms: CandidateTerms) -> list[str]:
    """Say how rewards are wrong: by value where there are few, else what the error goes with."""
    wrong = ~comparison.matches.reward
    if not wrong.any():
        return []
    recorded = comparison.dataset.columns["rewards"]
    predicted = comparison.predictions["rewards"]
    if len(np.unique(recorded)) <= 20:
        pairs = np.stack([recorded[wrong], predicted[wrong]], axis=1)
        kinds, counts = np.unique(pairs, axis=0, return_counts=True)
        order = np.argsort(-counts, kind="stable")[:MOST_VALUES]
        lines = [
            f"- recorded {true!r}, predicted {said!r}: {count} times"
            for (true, said), count in zip(kinds[order].tolist(), counts[order], strict=True)
        ]
        more = [f"- {len(counts) - len(order)} more pairs"] if len(counts) > len(order) else []
        return ["Wrong rewards:", *lines, *more]
    with np.errstate(invalid="ignore", over="ignore"):
        residual = recorded - predicted
    everywhere = np.ones(len(recorded), dtype=np.bool_)
    spread = float(recorded.std()) or 1.0
    line = "The reward (errors in units of its standard deviation)" + _sizes(residual, spread)
    return [line, *_explained(terms, residual, recorded, everywhere)]


def _by_action(comparison: ComparedRows) -> list[str]:
    """Count what is wrong by action and part, where actions are few."""
    taken = actions_taken(comparison)
    if not taken:
        return []
    names = list(comparison.mistakes)
    lines = [f"{'wrong in':<12}{'transitions':>12}{''.join(f'{name:>14}' for name in names)}"]
    for regime in taken:
        counts = [int((part & regime.rows).sum()) for part in comparison.mistakes.values()]
        cells = "".join(f"{count:>14}" for count in counts)
        lines.append(f"{regime.name:<12}{int(regime.rows.sum()):>12}{cells}")
    return lines


def _by_regime(comparison: ComparedRows) -> list[str]:
    """Compare the kinds of transition that fare worse with the others."""
    lines = [
        f"- {name} ({int(rows.sum())}): {'; '.join(_contrasts(comparison, rows))}"
        for name, rows in failing(comparison)[:MOST_REGIMES]
    ]
    heading = "Kinds of transition that fare worse than the others, and how many there are:"
    return [heading, *lines] if lines else []


def _contrasts(comparison: ComparedRows, rows: np.ndarray) -> Iterator[str]:
    """Say in what some rows fare worse than the others."""
    for part in worse_parts(comparison, rows):
        right = ~comparison.mistakes[part]
        yield f"{part} right in {share(right[rows])}, elsewhere {share(right[~rows])}"
    if (ratio := error_ratio(comparison, rows)) > FAR:
        yield f"observation errors {ratio:.2g} times as large as elsewhere"
