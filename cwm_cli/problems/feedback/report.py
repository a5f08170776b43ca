"""The report of an improve prompt: where a program goes wrong, how, and on what to check it."""

from collections.abc import Iterator

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_cli.data.spaces import Columns
from cwm_cli.evaluation import Metric, close
from cwm_cli.problems.feedback.comparison import Comparison, percent, share
from cwm_cli.problems.feedback.coverage import coverage
from cwm_cli.problems.feedback.ends import ends
from cwm_cli.problems.feedback.examples import examples
from cwm_cli.problems.feedback.regimes import FAR, actions_taken, error_ratio, failing, worse_parts
from cwm_cli.problems.feedback.terms import Terms, best_term, candidate_terms, correlations
from cwm_cli.text import clean

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
    comparison = Comparison.of(dataset, predictions, metric, description)
    terms = candidate_terms(comparison)
    sections = [
        _summary(comparison),
        _components(comparison, terms),
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
    sections += [["Transitions that are predicted wrongly, at full precision:", *shown], closing]
    return clean("\n\n".join("\n".join(s) for s in sections if s), newlines=True)


def _summary(comparison: Comparison) -> list[str]:
    """Say how much of each part is right."""
    matches, going = comparison.matches, ~comparison.terminal
    total = len(comparison.dataset)
    score = 1.0 - comparison.lost.sum() / comparison.weights.sum()
    lines = [
        f"{int(comparison.wrong.sum())} of {total} transitions are wrong in some part; "
        f"the weighted score on them is {min(score, 0.9999):.4f}.",
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


def _components(comparison: Comparison, terms: Terms) -> list[str]:
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
    comparison: Comparison, index: int, terms: Terms, going: np.ndarray
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
    terms: Terms, residual: np.ndarray, recorded: np.ndarray, rows: np.ndarray
) -> Iterator[str]:
    """Yield what a residual follows from: one term exactly, or those it correlates with."""
    missing = best_term(terms, residual, recorded, rows)
    already = float(close(recorded - residual, recorded)[rows].mean()) if rows.any() else 1.0
    if missing is not None and missing.right > max(already + 0.2, MOSTLY):
        yield f"    adding {missing} to the prediction makes {percent(missing.right)} of them right"
    elif names := correlations(terms, residual, rows):
        yield f"    residual correlates with {', '.join(names)}"


def _rewards(comparison: Comparison, terms: Terms) -> list[str]:
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


def _by_action(comparison: Comparison) -> list[str]:
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


def _by_regime(comparison: Comparison) -> list[str]:
    """Compare the kinds of transition that fare worse with the others."""
    lines = [
        f"- {name} ({int(rows.sum())}): {'; '.join(_contrasts(comparison, rows))}"
        for name, rows in failing(comparison)[:MOST_REGIMES]
    ]
    heading = "Kinds of transition that fare worse than the others, and how many there are:"
    return [heading, *lines] if lines else []


def _contrasts(comparison: Comparison, rows: np.ndarray) -> Iterator[str]:
    """Say in what some rows fare worse than the others."""
    for part in worse_parts(comparison, rows):
        right = ~comparison.mistakes[part]
        yield f"{part} right in {share(right[rows])}, elsewhere {share(right[~rows])}"
    if (ratio := error_ratio(comparison, rows)) > FAR:
        yield f"observation errors {ratio:.2g} times as large as elsewhere"
