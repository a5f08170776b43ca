"""Outcomes of steps: events for observers, statistics of episodes, and repeated outcomes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from cwm_cli.data.dataset import Transition
from cwm_cli.planning.model import Step, close, key
from cwm_learn.actors.base import Intent
from cwm_learn.certificate import EpisodeRecord


class StepEvent(NamedTuple):
    """A step: its intent, its outcome and prediction, and the seconds to choose and process it."""

    steps: int
    intent: Intent
    row: Transition
    predicted: Step | None
    agreed: bool
    seconds: float


class MismatchEvent(NamedTuple):
    """A wrong prediction, and its wrong parts.

    `by_chance` is set if the same (observation, action) pair had another outcome before.
    """

    steps: int
    row: Transition
    predicted: Step | None
    parts: tuple[str, ...]
    by_chance: bool


@dataclass
class EpisodeStatistics:
    """Statistics of the running episode.

    `is_random` is set if a step was random because the actor had no target.
    """

    promised: float | None = None
    aims: Counter[str] = field(default_factory=Counter)
    returned: float = 0.0
    mismatched: int = 0
    is_random: bool = False
    last: Transition | None = None

    @property
    def had_target(self) -> bool:
        """Whether the actor had a target for every step so far."""
        return bool(self.aims) and not self.is_random

    def add(self, intent: Intent, row: Transition) -> None:
        """Add a step."""
        if not self.aims:
            self.promised = intent.promised_return
        self.aims[intent.aim] += 1
        self.returned += row.reward
        self.last = row

    def record(self, steps: int, limit: int, *, is_stochastic: bool) -> EpisodeRecord:
        """Return the journal line; the episode must have a step."""
        assert self.last is not None
        length = self.aims.total()
        return EpisodeRecord(
            number=self.last.episode,
            steps=steps,
            returned=self.returned,
            length=length,
            aims=dict(self.aims),
            promised=self.promised,
            mismatched=self.mismatched,
            terminated=self.last.terminated,
            whole=self.last.terminated or self.last.truncated or length == limit,
            chance=is_stochastic,
        )


@dataclass
class PlayComparison:
    """Compares the returns of play in programs that mispredict most steps with other episodes.

    Attributes:
        plays: Returns of whole episodes of play with most steps mispredicted, since the last
            program that predicted most rows.
        others: Returns of all whole episodes with exploration, probes or random actions.
    """

    plays: list[float] = field(default_factory=list)
    others: list[float] = field(default_factory=list)

    def add(self, episode: EpisodeRecord) -> None:
        """Add an episode."""
        if not episode.is_play:
            self.others += [episode.returned] * episode.whole
        elif 2 * episode.mismatched > episode.length:
            self.plays.append(episode.returned)

    @property
    def is_worse(self) -> bool:
        """Whether all of at least two plays returned less than the mean of at least two others."""
        if min(len(self.plays), len(self.others)) < 2:
            return False
        return max(self.plays) < sum(self.others) / len(self.others)


def wrong_parts(predicted: Step | None, row: Transition) -> tuple[str, ...]:
    """Return the names of the wrongly predicted parts; "unknown" without a prediction."""
    if predicted is None:
        return ("unknown",)
    parts = {
        "observation": row.terminated or close(predicted.observation, row.next_observation),
        "reward": close(float(predicted.reward), row.reward),
        "terminated": bool(predicted.terminated) == row.terminated,
    }
    return tuple(name for name, right in parts.items() if not right) or ("observation",)


class OutcomeCounts:
    """Outcomes by (observation, action), used to distinguish randomness from missing rules."""

    def __init__(self) -> None:
        self._rows: dict[Any, dict[Any, list[int]]] = {}

    def add(self, number: int, row: Transition, random_rows: set[int]) -> bool:
        """Record a row; return True if the same (observation, action) had several outcomes.

        If outcomes contradict each other, the most common one is the rule. `random_rows` is
        updated to contain the numbers of the rows with the other outcomes.
        """
        outcome = (key(row.next_observation), row.reward, row.terminated)
        outcomes = self._rows.setdefault((key(row.observation), key(row.action)), {})
        outcomes.setdefault(outcome, []).append(number)
        if len(outcomes) == 1:
            return False
        most_common = max(outcomes.values(), key=len)
        random_rows.difference_update(most_common)
        random_rows.update(*(rows for rows in outcomes.values() if rows is not most_common))
        return True

    @property
    def contradicted(self) -> int:
        """Number of (observation, action) pairs with more than one outcome."""
        return sum(len(outcomes) > 1 for outcomes in self._rows.values())
