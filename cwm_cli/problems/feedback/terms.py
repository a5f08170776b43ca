"""Terms that may be missing from a program: what a residual follows from, or goes with.

A term is an input, an action, a product of two, an outcome or a change of one. It explains
a residual where some multiple of it, added to the prediction, makes rows right.
"""

from itertools import combinations_with_replacement
from typing import NamedTuple

import numpy as np

from cwm_cli.evaluation import close
from cwm_cli.problems.feedback.examples import ComparedRows
from cwm_cli.worlds.contract import component_names

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
