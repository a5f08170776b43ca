"""What may be said of a program after its own play agreed with the world, and how surely.

Play is counted from the last change on. A mismatch that none of `n` steps showed is met in at most
`1 - d ** (1 / n)` of them, at confidence `1 - d`; the same holds for episodes from independent
starts. The two go wrong in different ways: mismatches that may come at any step, and starts from
which all goes wrong at once. A certificate gives the worse of both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, sqrt
from typing import Literal

from pydantic import BaseModel, ConfigDict

from cwm_cli.runs.observer import Measures
from cwm_cli.text import percent
from cwm_learn.actors.base import PLAY_AIMS

CONFIDENCE = 0.95

ENOUGH_STEPS, ENOUGH_EPISODES = 300, 14
"""A hundredth of the steps and a fifth of the episodes, at most, may still go otherwise."""

MANY_STEPS, FEW_EPISODES = 1500, 5
"""Where episodes are long fewer of them do: their steps bound the mismatches well below 1 %."""

SHORT = 0.05
"""By so much of its size a return may miss what was promised: rounding adds up over an episode."""


class Certificate(BaseModel):
    """How far the play of a program was seen to agree with the world, in so many clean steps.

    At most a share `bound` of further steps meets a mismatch, and at most `episodes_bound` of
    further episodes have one or return less than was promised, each at `confidence`. `changed` is
    the number of steps in the environment at the last change, `attempt` the number of the
    attempts to certify, each of which is held to more, so that together they keep the confidence.
    `untried` says what was never tried, which no certificate covers.
    """

    model_config = ConfigDict(frozen=True)

    kind: Literal["certificate"] = "certificate"
    steps: int
    episodes: int
    bound: float
    episodes_bound: float
    confidence: float = CONFIDENCE
    attempt: int = 1
    changed: int = 0
    mean: float = 0.0
    promised: float | None = None
    untried: tuple[str, ...] = ()

    def holds(self, mismatches: int, steps: int) -> bool:
        """Whether so many episodes with a mismatch in so many further steps are within the bound.

        Of an episode its first mismatch counts, and the steps up to it: there a plan is given up.
        """
        return mismatches <= self.bound * steps

    def __str__(self) -> str:
        return (
            f"no mismatch in {self.steps:,} steps ({self.episodes:,} episodes) of play, so at "
            f"{percent(self.confidence)} confidence at most {percent(self.bound)} of steps and "
            f"{percent(self.episodes_bound)} of episodes have one"
        )


class EpisodeRecord(BaseModel):
    """A line of the journal: an episode that is over.

    `steps` counts those of the environment up to its end, `aims` says for how many of its steps
    each aim was acted for, `promised` is the return that the play was worth in the program at the
    start, None where none was promised. `mismatched` counts predictions that went wrong; it is not
    `whole` where it was given up. Where `chance` decides what follows the promise is a mean.
    """

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="constants")

    kind: Literal["episode"] = "episode"
    number: int
    steps: int
    returned: float
    length: int
    aims: dict[str, int]
    promised: float | None = None
    mismatched: int = 0
    terminated: bool = False
    whole: bool = True
    chance: bool = False

    def measures(self) -> Measures:
        """Return the numbers for trackers."""
        numbers = {"return": self.returned, "length": self.length, "episode": self.number}
        return Measures(self.steps, numbers | {"mismatched": self.mismatched})

    @property
    def aim(self) -> str:
        """What it was played for most."""
        return max(self.aims, key=lambda aim: self.aims[aim], default="")

    @property
    def is_play(self) -> bool:
        """Whether it was played for the return from the first step to the last."""
        return self.whole and bool(self.aims) and set(self.aims) <= PLAY_AIMS

    @property
    def is_cut(self) -> bool:
        """Whether it was play that a budget cut off: what it returned is no return of its play."""
        return not self.whole and set(self.aims) <= PLAY_AIMS

    @property
    def kept(self) -> bool:
        """Whether it returned what was promised."""
        if self.promised is None:
            return False
        if self.chance:
            return True  # a single return says nothing of a mean
        return self.returned >= self.promised - SHORT * abs(self.promised) - 1e-6


@dataclass
class Verification:
    """Counts the play since the program, or how it is played, last changed.

    Every episode is told to `episode`, every change to `change`; so it can be made anew from a
    journal.
    """

    steps: int = 0
    episodes: int = 0
    attempt: int = 1
    changed: int = 0
    returned: float = 0.0
    promised: float = 0.0
    missed: float = 0.0
    squares: float = 0.0
    """Where chance decides: what returns lacked of what was promised, and the squares of that."""

    def change(self, at: int) -> None:
        """Begin anew: something changed after so many steps."""
        if self.episodes:
            self.attempt += 1
        self.steps = self.episodes = 0
        self.returned = self.promised = self.missed = self.squares = 0.0
        self.changed = at

    def episode(self, played: EpisodeRecord) -> None:
        """Count an episode of play; one that went otherwise than promised begins anew."""
        if played.mismatched or (played.is_play and not played.kept):
            self.change(played.steps)
        elif played.is_play:
            self.steps += played.length
            self.episodes += 1
            self.returned += played.returned
            self.promised += played.promised or 0.0
            if played.chance:
                lacking = (played.promised or 0.0) - played.returned
                self.missed += lacking
                self.squares += lacking**2

    @property
    def as_promised(self) -> bool:
        """Whether returns are, on the mean, no less than promised: beyond two standard errors."""
        return self.missed <= 2 * sqrt(self.squares) + 1e-6 * (1 + abs(self.promised))

    @property
    def enough(self) -> bool:
        """Whether this is enough to be told."""
        if not self.as_promised:
            return False
        if self.steps >= MANY_STEPS and self.episodes >= FEW_EPISODES:
            return True
        return self.steps >= ENOUGH_STEPS and self.episodes >= ENOUGH_EPISODES

    def certificate(self, untried: Sequence[str] = ()) -> Certificate | None:
        """Return what can be said by now, None where nothing can."""
        if not self.episodes:
            return None
        doubt = (1 - CONFIDENCE) / (self.attempt * (self.attempt + 1))  # they sum to 1 - CONFIDENCE
        by_step = 1 - doubt ** (1 / max(self.steps, 1))
        starts = 1 - doubt ** (1 / self.episodes)
        odds = starts / (1 - starts) if starts < 1 else inf
        return Certificate(
            steps=self.steps,
            episodes=self.episodes,
            bound=min(1.0, max(by_step, odds * self.episodes / max(self.steps, 1))),
            episodes_bound=starts,
            attempt=self.attempt,
            changed=self.changed,
            mean=self.returned / self.episodes,
            promised=self.promised / self.episodes,
            untried=tuple(untried),
        )
