"""What is wrong where nothing that may be shown is: parts and regions, and no value held back."""

from collections.abc import Iterator

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_cli.data.spaces import Columns
from cwm_cli.evaluation import Metric
from cwm_cli.problems.feedback.examples import ComparedRows, actions_taken
from cwm_cli.text import clean

UNSEEN = (
    "Every transition that may be shown to you is predicted correctly, but {wrong} of {rows} "
    "transitions of other episodes, which are not shown, are not: the program fits the examples "
    "and not the environment."
)
GENERALISE = "Replace what was fitted to single rows by the rule behind them."
COVERAGE = (
    "Either something was fitted to single rows, or a rule that none of the shown ones needs is "
    "missing or was invented: look for what they do not cover. Bounds are those of what is shown."
)
MOST_LINES = 6
FEW = 10
"""A component of no more values in what is shown is told by its values."""

MOSTLY, USUALLY = 0.9, 0.6
"""Share of the wrong rows that lie somewhere, and share of all rows that has to be below it."""


def dead_end(
    dataset: Dataset, predictions: Columns, metric: Metric, shown: np.ndarray, description: str = ""
) -> str:
    """Name the parts that are wrong in rows that are not shown, the actions, and roughly where."""
    hidden = dataset[~shown]
    answers = {name: column[~shown] for name, column in predictions.items()}
    comparison = ComparedRows.of(hidden, answers, metric, description)
    known = {name: column[shown] for name, column in predictions.items()}
    visible = ComparedRows.of(dataset[shown], known, metric)
    wrong = comparison.wrong
    lines = [
        UNSEEN.format(wrong=int(wrong.sum()), rows=len(hidden)),
        "",
        "Wrong there, and in how many of these transitions:",
        *_parts(comparison),
        *_by_action(comparison),
    ]
    if where := list(_regions(comparison, visible))[:MOST_LINES]:
        lines += ["", "Before the step, in most of the wrong ones:", *where]
    return clean("\n".join([*lines, "", COVERAGE]), newlines=True)


def _parts(comparison: ComparedRows) -> Iterator[str]:
    """Count for each part, and each component of the observation, the rows it is wrong in."""
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
    """Count the wrong rows of each action, where there are few and they differ."""
    taken = actions_taken(comparison)
    counts = [int((regime.rows & comparison.wrong).sum()) for regime in taken]
    if len(taken) > 1:
        told = (
            f"{regime.name}: {count} of {int(regime.rows.sum())}"
            for regime, count in zip(taken, counts, strict=True)
            if count
        )
        yield f"- by action: {', '.join(told)}"


def _regions(comparison: ComparedRows, visible: ComparedRows) -> Iterator[str]:
    """Yield where wrong rows lie and others seldom do, in terms of what is shown."""
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
    """Yield where values lie beside those that are shown: beyond them, at one, or in a third."""
    low, high = float(known.min()), float(known.max())
    yield f"above all that is shown (at most {high:.4g})", values > high
    yield f"below all that is shown (at least {low:.4g})", values < low
    kinds = np.unique(known)
    if len(kinds) <= FEW:
        yield "at a value that is not shown", ~np.isin(values, kinds)
        yield from ((f"is {kind:g}", values == kind) for kind in kinds.tolist())
        return
    first, second = low + (high - low) / 3, high - (high - low) / 3
    bounds = f"of {low:.4g} to {high:.4g}"
    yield f"in the lowest third, below {first:.4g} ({bounds})", values < first
    yield f"in the highest third, above {second:.4g} ({bounds})", values > second
    middle = (values >= first) & (values <= second)
    yield f"in the middle third, {first:.4g} to {second:.4g} ({bounds})", middle
