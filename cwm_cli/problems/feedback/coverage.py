"""What recorded transitions do not show."""

from collections.abc import Iterator

import numpy as np

from cwm_cli.data.spaces import Columns
from cwm_cli.problems.feedback.comparison import Comparison

MOST_NAMES = 4


def coverage(comparison: Comparison) -> Iterator[str]:
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


def _contradictions(comparison: Comparison) -> int:
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


def _ends(comparison: Comparison) -> Iterator[str]:
    """Say so when no episode ends."""
    if not comparison.terminal.any():
        yield "no episode terminates"


def _actions(comparison: Comparison) -> Iterator[str]:
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


def _components(comparison: Comparison) -> Iterator[str]:
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
