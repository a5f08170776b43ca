"""The report on a program that is right on all shown rows and wrong on hidden ones.

It names the wrong parts, actions and regions, and reveals no hidden value.
"""

from collections.abc import Iterator

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_cli.data.spaces import Columns
from cwm_cli.evaluation import Metric
from cwm_cli.problems.feedback.examples import ComparedRows, actions_taken
from cwm_cli.text import clean

UNSEEN = (
    "Every transition that may be shown is predicted correctly, but {wrong} of {rows} transitions "
    "of other episodes are not: the program fits the examples and not the environment."
)
GENERALISE = "Replace code that was fitted to single rows by the general rule."
COVERAGE = (
    "Either the program memorises single rows, or it lacks a rule that no shown transition needs, "
    "or it has a rule that does not exist. Look for situations that the shown transitions do not "
    "cover. The bounds above belong to the shown transitions."
)
MOST_LINES = 6
FEW = 10
"""A component with at most this many shown values is described by its values."""

MOSTLY, USUALLY = 0.9, 0.6
"""A region is named if it has the first share of the wrong rows, and not the second of all."""


def dead_end(
    dataset: Dataset, predictions: Columns, metric: Metric, shown: np.ndarray, description: str = ""
) -> str:
    """Return the wrong parts, actions and approximate regions of rows that are not shown."""
    hidden = dataset[~shown]
    answers = {name: column[~shown] for name, column in predictions.items()}
    comparison = ComparedRows.of(hidden, answers, metric, description)
    known = {name: column[shown] for name, column in predictions.items()}
    visible = ComparedRows.of(dataset[shown], known, metric)
    wrong = comparison.wrong
    lines = [
        UNSEEN.format(wrong=int(wrong.sum()), rows=len(hidden)),
        "",
        "Number of wrong transitions, by part:",
        *_parts(comparison),
        *_by_action(comparison),
    ]
    if where := list(_regions(comparison, visible))[:MOST_LINES]:
        lines += ["", "Observation before the step, in most of the wrong transitions:", *where]
    return clean("\n".join([*lines, "", COVERAGE]), newlines=True)


def _parts(comparison: ComparedRows) -> Iterator[str]:
    """Count the wrong rows of each part and of each component of the observation."""
    for part, mask in comparison.mistakes.items():
        if part != "observation" and mask.any():
            yield f"- {part}: {int(mask.sum())}"
    counts = (~comparison.right & comparison.observation_wrong[:, None]).sum(axis=0)
    order = [index for index in np.argsort(-counts, kind="stable").tolist() if counts[index]]
    for index in order[:MOST_LINES]:
        yield f"- {comparison.label(index)}: {counts[index]}"
    if len(order) > MOST_LINES:
        yield f"- {len(order) - MOST_LINES} more components"


def _by_action(comparison: ComparedRows) -> Iterator[str]:
    """Count the wrong rows of each action, if there are few actions."""
    taken = actions_taken(comparison)
    counts = [int((regime.rows & comparison.wrong).sum()) for regime in taken]
    if len(taken) > 1:
        counts_by_action = (
            f"{regime.name}: {count} of {int(regime.rows.sum())}"
            for regime, count in zip(taken, counts, strict=True)
            if count
        )
        yield f"- by action: {', '.join(counts_by_action)}"


def _regions(comparison: ComparedRows, visible: ComparedRows) -> Iterator[str]:
    """Yield regions of most wrong rows and few others, relative to the shown rows."""
    wrong = comparison.wrong
    for index in range(len(comparison.names)):
        here, known = comparison.component(index).before, visible.component(index).before
        if here.dtype.kind not in "biuf":
            continue
        for words, mask in _zones(here, known):
            if mask[wrong].mean() >= MOSTLY and mask.mean() < USUALLY:
                yield f"- {comparison.label(index)} {words}"
                break


def _zones(values: np.ndarray, known: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Yield regions relative to the shown values: beyond them, at one value, or in a third."""
    low, high = float(known.min()), float(known.max())
    yield f"above all shown values (at most {high:.4g})", values > high
    yield f"below all shown values (at least {low:.4g})", values < low
    kinds = np.unique(known)
    if len(kinds) <= FEW:
        yield "has a value that is not shown", ~np.isin(values, kinds)
        yield from ((f"is {kind:g}", values == kind) for kind in kinds.tolist())
        return
    first, second = low + (high - low) / 3, high - (high - low) / 3
    bounds = f"of {low:.4g} to {high:.4g}"
    yield f"in the lowest third, below {first:.4g} ({bounds})", values < first
    yield f"in the highest third, above {second:.4g} ({bounds})", values > second
    middle = (values >= first) & (values <= second)
    yield f"in the middle third, {first:.4g} to {second:.4g} ({bounds})", middle
