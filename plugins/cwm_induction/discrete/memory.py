"""Transitions that a program remembers because its rules do not explain them."""

import ast
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_cli.data.spaces import Space
from cwm_induction.discrete.conditions import wrapped

Memory = dict[tuple[Any, Any], tuple[Any, float, bool]]
"""What follows an observation and an action: observation, reward, whether the episode ends."""

_STEP = "    def step(self, action):"
_RULES = "    def step_by_rules(self, action):"
_HEADING = "    # Observed transitions that the rules do not explain, by observation and action."
_ANSWER = """
    def step(self, action):
        key = ({observation}, {action})
        if key not in self.REMEMBERED:
            return self.step_by_rules(action)
        observation, reward, terminated = self.REMEMBERED[key]
        self.set_state(observation)
        return self.observation(), reward, terminated
"""


def usual_outcomes(dataset: Dataset, rows: np.ndarray, *, least: int = 1) -> Memory:
    """Return the commonest outcome of every observation and action among the rows of a mask.

    Situations in which no outcome was seen `least` times are left out.
    """
    keys = [*zip(_plain(dataset, "observations"), _plain(dataset, "actions"), strict=True)]
    outcomes = zip(
        _plain(dataset, "next_observations"),
        dataset.columns["rewards"].tolist(),
        dataset.columns["terminations"].tolist(),
        strict=True,
    )
    counts: dict[Any, Counter[Any]] = {keys[row]: Counter() for row in np.flatnonzero(rows)}
    for key, outcome in zip(keys, outcomes, strict=True):
        if key in counts:
            counts[key][outcome] += 1
    return {key: _usual(seen) for key, seen in counts.items() if max(seen.values()) >= least}


def remember(program: str, memory: Memory, dataset: Dataset) -> str:
    """Write a memory into a program of this package, over what it remembers already."""
    if not memory:
        return program
    rules, known = recall(program)
    entries = sorted({**known, **memory}.items())
    display = "{" + ", ".join(f"{key}: {outcome}" for key, outcome in entries) + "}"
    table = [f"    {line}" for line in wrapped("REMEMBERED = ", display)]
    answer = _ANSWER.format(
        observation=_key(dataset.observation_space, "self.observation()"),
        action=_key(dataset.action_space, "action"),
    )
    start = rules.replace(_STEP, _RULES, 1).rstrip("\n")
    return "\n".join([start, "", _HEADING, *table]) + "\n" + answer


def recall(program: str) -> tuple[str, Mapping[Any, Any]]:
    """Return a program's rules alone and what it remembers."""
    rules, heading, memory = program.partition(f"\n{_HEADING}\n")
    if not heading:
        return program, {}
    display = memory.split("REMEMBERED = ", 1)[1].split("\n\n", 1)[0]
    return rules.replace(_RULES, _STEP, 1), ast.literal_eval(display)


def _usual(seen: Mapping[Any, int]) -> Any:
    """Return the commonest outcome, the lowest of several."""
    return min(seen, key=lambda outcome: (-seen[outcome], outcome))


def _plain(dataset: Dataset, name: str) -> list[Any]:
    """Return the values of a field as integers or tuples of integers."""
    space = dataset.action_space if name == "actions" else dataset.observation_space
    rows = len(dataset)
    parts = [dataset.columns[leaf.name].reshape(rows, -1) for leaf in space.leaves(name)]
    values = np.concatenate(parts, axis=1).astype(np.int64).tolist()
    return (
        [row[0] for row in values] if space.kind == "discrete" else [tuple(row) for row in values]
    )


def _key(space: Space, value: str) -> str:
    """Write an expression that turns a value into something to look up."""
    if space.kind == "discrete":
        return value
    if space.kind == "tuple":
        return value
    return f"tuple({value}.ravel())" if len(space.shape) > 1 else f"tuple({value})"
