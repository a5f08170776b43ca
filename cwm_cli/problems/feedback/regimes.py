"""What distinguishes rows: the kinds of transition that a program may get wrong as a whole."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from cwm_cli.problems.feedback.comparison import Comparison, Component

MOST_COMPONENTS = 40
MOST_ACTIONS = 20
MARGIN = 0.1
"""How much more often something has to be wrong to be worth a word."""
FAR = 3.0
"""How many times larger an error has to be to be called far more wrong."""


class Regime(NamedTuple):
    """A kind of transition and the mask of the rows of that kind."""

    name: str
    rows: np.ndarray


def regimes(comparison: Comparison) -> list[Regime]:
    """Return the kinds of transition that occur, but not in every row."""
    found = [*_stages(comparison), *_bounds(comparison), *_actions(comparison)]
    return [regime for regime in found if regime.rows.any() and not regime.rows.all()]


def failing(comparison: Comparison) -> list[Regime]:
    """Return the kinds of transition that fare worse than the others, the costliest first."""
    found = [regime for regime in regimes(comparison) if _fares_worse(comparison, regime.rows)]
    return sorted(found, key=lambda regime: -comparison.lost[regime.rows].sum())


def error_ratio(comparison: Comparison, rows: np.ndarray) -> float:
    """Return how many times larger the typical error of wrong observations is in `rows`."""
    wrong = comparison.observation_wrong
    if not (wrong & rows).any() or not (wrong & ~rows).any():
        return 1.0
    here, elsewhere = (np.median(comparison.errors[wrong & mask]) for mask in (rows, ~rows))
    return float(here / elsewhere) if 0 < elsewhere < np.inf else 1.0


def worse_parts(comparison: Comparison, rows: np.ndarray) -> list[str]:
    """Name the parts that are wrong more often in `rows` than elsewhere, beyond chance."""
    worse = []
    for part, wrong in comparison.mistakes.items():
        here, elsewhere = wrong[rows].mean(), wrong[~rows].mean()
        chance = 2 * np.sqrt(elsewhere * (1 - elsewhere) / rows.sum())
        if here > elsewhere + max(MARGIN, chance):
            worse.append(part)
    return worse


def _fares_worse(comparison: Comparison, rows: np.ndarray) -> bool:
    """Whether rows are wrong more often than the others, or far more wrong."""
    return bool(worse_parts(comparison, rows)) or error_ratio(comparison, rows) > FAR


def actions_taken(comparison: Comparison) -> list[Regime]:
    """Return the rows of each action, where there are few."""
    space = comparison.dataset.action_space
    if space.kind == "text" or space.children or space.is_float:
        return []
    values = comparison.dataset.columns["actions"].reshape(len(comparison.dataset), -1)
    kinds, kind = np.unique(values, axis=0, return_inverse=True)
    if len(kinds) > MOST_ACTIONS:
        return []
    names = [str(row[0] if space.kind == "discrete" else row.tolist()) for row in kinds]
    return [Regime(f"action {n}", kind.reshape(-1) == i) for i, n in enumerate(names)]


def _stages(comparison: Comparison) -> Iterator[Regime]:
    """Yield the ends and the first steps of episodes."""
    yield Regime("the episode terminates", comparison.terminal)
    first = np.zeros(len(comparison.dataset), dtype=np.bool_)
    first[np.unique(comparison.dataset.columns["episodes"], return_index=True)[1]] = True
    yield Regime("first step of an episode", first)


def _bounds(comparison: Comparison) -> Iterator[Regime]:
    """Yield the rows in which a real component is at its largest or smallest value.

    Either at the bound of the space, or at an extreme that comes back
    exactly, as only a clipped value does.
    """
    indices = [i for i in range(len(comparison.names)) if comparison.is_float(i)]
    for index in indices[:MOST_COMPONENTS]:
        part = comparison.component(index)
        for word, bound in _extremes(part):
            rows = (part.before == bound) | (part.recorded == bound)
            yield Regime(f"{part.name} is at its {word}, {float(bound)!r}", rows)


def _extremes(part: Component) -> Iterator[tuple[str, float]]:
    """Yield the values that a component is stopped at."""
    values = np.concatenate([part.before, part.recorded])
    if len(np.unique(values)) <= 10:
        return
    for word, extreme, bound in (
        ("minimum", values.min(), part.low),
        ("maximum", values.max(), part.high),
    ):
        if extreme == bound or (values == extreme).sum() > max(4, len(values) // 100):
            yield word, extreme


def _actions(comparison: Comparison) -> Iterator[Regime]:
    """Yield the rows of real actions that are at a bound; those of whole numbers have a table."""
    space = comparison.dataset.action_space
    if not space.is_float:
        return
    values = comparison.dataset.columns["actions"].reshape(len(comparison.dataset), -1)
    bounds = (np.array(space.low, values.dtype), np.array(space.high, values.dtype))
    at_bound = (values == bounds[0]) | (values == bounds[1])
    yield Regime("some action is at its bound", at_bound.any(axis=1))
