"""The prompt that asks a language model for one transition."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.problems.templates import template
from cwm_cli.search.contracts import Message
from cwm_cli.worlds.contract import describe

GIVEN = ("observation", "action")
ANSWERED = ("next_observation", "reward", "terminated")
VALID = "\n- `valid_actions`: a list of the actions that are allowed after the step."


@dataclass(frozen=True)
class Questioner:
    """Writes prompts: a description of the environment, solved examples, the row to predict.

    The examples are drawn from the train rows, for each question anew.
    """

    description: str
    train: Dataset
    examples: int = 3
    seed: int = 0

    def messages(self, row: Transition, number: int) -> tuple[Message, ...]:
        """Ask for a row; `number` is the place of the question among all."""
        has_valid = self.train.has_valid_actions
        keys = [*ANSWERED, *(["valid_actions"] if has_valid else [])]
        solved = (_written(self.train.row(place), (*GIVEN, *keys)) for place in self._drawn(number))
        content = template("prediction/ask").substitute(
            description=self.description.strip(),
            observation=describe(self.train.observation_space),
            action=describe(self.train.action_space),
            valid=VALID if has_valid else "",
            examples="\n\n".join(solved) or "There are none.",
            question=_written(row, GIVEN),
            keys=", ".join(f"`{key}`" for key in keys),
        )
        system = template("prediction/system").substitute().strip()
        return Message(role="system", content=system), Message(role="user", content=content.strip())

    def _drawn(self, number: int) -> list[int]:
        """Draw rows at random, one of each kind before a second: each reward, goes on or ends."""
        rewards, ends = (self.train.columns[name].tolist() for name in ("rewards", "terminations"))
        order = np.random.default_rng([self.seed, number]).permutation(len(rewards)).tolist()
        seen: Counter[tuple[float, bool]] = Counter()
        turns = []
        for row in order:
            kind = rewards[row], ends[row]
            turns.append(seen[kind])
            seen[kind] += 1
        return [order[place] for place in np.argsort(turns, kind="stable")[: self.examples]]


def _written(row: Transition, keys: Sequence[str]) -> str:
    """Write parts of a transition, a line of JSON each."""
    values = row._asdict() | {"valid_actions": row.valid}
    return "\n".join(f"{key}: {json.dumps(_plain(values[key]))}" for key in keys)


def _plain(value: Any) -> Any:
    """Return what JSON can hold, real numbers with as many digits as tell them apart."""
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, tuple):
        return [_plain(part) for part in value]
    if isinstance(value, np.ndarray) and value.dtype.kind == "f":
        return value.astype(np.str_).astype(np.float64).tolist()
    return value.tolist() if isinstance(value, np.ndarray) else value
