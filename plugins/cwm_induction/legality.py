"""Rules for the valid actions of a state, from recorded states with their valid actions.

The rule of an action is a conjunction of conditions `component == value`, or the negation of one.
If there is no such rule, the conditions are `component != value`. The conditions of a conjunction
hold in all states where it should hold; a greedy set cover selects few conditions that exclude all
other states (Chvatal, 1979).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from cwm_cli.data.dataset import VALID, Dataset
from cwm_cli.worlds.contract import component_names

MIN_EXCLUDED = 3
"""Mean number of states that the conditions `component != value` of a rule exclude at least: values
that occur in few states would explain any valid actions."""


class StateTest(NamedTuple):
    """A test of the components of an observation, and the mask of the states that pass it."""

    text: str
    holds: np.ndarray


class Legality(NamedTuple):
    """An expression over `observation` for each action, and the share of states that agree."""

    rules: dict[int, str]
    right: float


def find_legality(data: Dataset) -> Legality:
    """Return rules that decide which actions are valid in a state.

    If no exact rules are found, the most common valid actions are valid everywhere, unless other
    rules are right in more states.

    Args:
        data: Rows with valid actions. Only states after which the episode continues count.
    """
    going = ~data.columns["terminations"]
    masks = data.columns[VALID][going]
    first = int(data.action_space.low[0])
    if not len(masks):
        return Legality(dict.fromkeys(range(first, first + data.action_space.count), "True"), 0.0)
    components = list(_components(data, going))
    found = [_rule(components, valid) for valid in masks.T]
    distinct, counts = np.unique(masks, axis=0, return_counts=True)
    common = distinct[counts.argmax()]
    right = float((masks == np.array([rule.holds for rule in found]).T).all(axis=1).mean())
    if right < counts.max() / len(masks):
        right = counts.max() / len(masks)
        found = [StateTest(str(bool(valid)), valid) for valid in common]
    return Legality({first + place: rule.text for place, rule in enumerate(found)}, right)


def _components(data: Dataset, rows: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the expression and the values of each component that is no real number."""
    space = data.observation_space
    names = iter(component_names(space, "observation"))
    for leaf in space.leaves("next_observations"):
        column = data.columns[leaf.name][rows]
        for values in column.reshape(len(column), -1).T:
            name = next(names)
            if not leaf.space.is_float:
                yield name, values


def _rule(components: list[tuple[str, np.ndarray]], valid: np.ndarray) -> StateTest:
    """Return the rule of one action: exact, or else the more common answer."""
    if 0 < valid.sum() < len(valid):
        for equal in (True, False):
            if found := _conjunction(components, valid, equal=equal):
                return StateTest(found, valid)
            if found := _conjunction(components, ~valid, equal=equal):
                return StateTest(f"not ({found})", valid)
    usual = bool(2 * valid.sum() >= len(valid))
    return StateTest(str(usual), np.full(len(valid), usual))


def _conjunction(
    components: list[tuple[str, np.ndarray]], wanted: np.ndarray, *, equal: bool
) -> str:
    """Return a conjunction that holds in the wanted states only, "" if there is none.

    Args:
        components: The expression and the values of each component.
        wanted: Mask of the states.
        equal: Conditions are `component == value`, else `component != value`.
    """
    conditions = []
    for name, values in components:
        for value in values[wanted][:1] if equal else np.unique(values[~wanted]):
            holds = (values == value) == equal
            if holds[wanted].all() and not holds.all():
                shown = repr(str(value)) if values.dtype.kind == "U" else f"{value:.0f}"
                conditions.append(StateTest(f"{name} {'==' if equal else '!='} {shown}", holds))
    chosen, left = list[str](), ~wanted
    while left.any():
        excluded = [int((left & ~condition.holds).sum()) for condition in conditions]
        if not max(excluded, default=0):
            return ""
        best = conditions[int(np.argmax(excluded))]
        chosen.append(best.text)
        left &= best.holds
    if not equal and len(chosen) * MIN_EXCLUDED > (~wanted).sum():
        return ""
    return " and ".join(chosen)
