"""Terms that may be missing in a program: they explain a residual, or correlate with it.

A term is an input, an action, a product of two inputs, an outcome or a change. It explains a
residual if a multiple of the term, added to the prediction, makes rows right.
"""

from itertools import combinations_with_replacement
from typing import NamedTuple

import numpy as np

from cwm_cli.evaluation import close
from cwm_cli.problems.feedback.examples import ComparedRows
from cwm_cli.worlds.contract import component_names

MAX_INPUTS = 60
"""Most components of the observation, and of the action, that terms contain."""


class CandidateTerms(NamedTuple):
    """The names of candidate terms, and their values, (terms, rows)."""

    names: list[str]
    values: np.ndarray

    def without_outcome(self, name: str) -> "CandidateTerms":
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
    before: dict[str, np.ndarray] = {}
    after: dict[str, np.ndarray] = {}
    reals = [i for i in range(len(comparison.names)) if comparison.is_float(i)]
    for part in map(comparison.component, reals[:MAX_INPUTS]):
        before[part.name] = part.before.astype(np.float64)
        after[part.name] = part.recorded.astype(np.float64)
    actions = _action_terms(comparison)
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


def _action_terms(comparison: ComparedRows) -> dict[str, np.ndarray]:
    """Return the components of the action, or an indicator of each of at most six actions.

    The first action has no indicator: the constant term and the other indicators determine it.
    """
    space, actions = comparison.dataset.action_space, comparison.dataset.columns["actions"]
    if space.kind == "discrete":
        values = np.unique(actions)
        if len(values) > 6:
            return {}
        return {f"(action == {value})": actions == value for value in values[1:]}
    if space.kind not in ("box", "multidiscrete", "multibinary"):
        return {}
    columns = actions.reshape(len(actions), -1).astype(np.float64).T
    return dict(list(zip(component_names(space, "action"), columns, strict=True))[:MAX_INPUTS])


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
    shares: np.ndarray = close(corrected, recorded).mean(axis=1)
    return shares


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
