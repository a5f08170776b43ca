"""What tells the end of an episode, where one value does."""

from collections.abc import Iterator

import numpy as np

from cwm_cli.problems.feedback.comparison import Comparison

MOST_COMPONENTS = 60
FEWEST_ENDS = 3


def ends(comparison: Comparison) -> list[str]:
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


def _values(comparison: Comparison) -> Iterator[tuple[str, np.ndarray]]:
    """Yield each real component of the next observation, and its size."""
    for index, name in enumerate(comparison.names[:MOST_COMPONENTS]):
        if comparison.is_float(index):
            recorded = comparison.component(index).recorded.astype(np.float64)
            yield f"next_{name}", recorded
            yield f"abs(next_{name})", np.abs(recorded)
