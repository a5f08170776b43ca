"""Certificates: bounds on how often a program mispredicts its own play, at a confidence.

Only play since the last change counts. If none of `n` steps had a mismatch, then at confidence
`1 - d` at most a fraction `1 - d ** (1 / n)` of all steps has one (the exact binomial bound,
Clopper and Pearson 1934). The same holds for `n` episodes from independent starts. Mismatches may
occur at any step, or fail whole episodes from certain starts, so the certificate reports the
worse of both bounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, sqrt
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from cwm_cli.runs.observer import Measures
from cwm_cli.text import percent
from cwm_learn.actors.base import PLAY_AIMS, Aim

CONFIDENCE = 0.95

MIN_STEPS, MIN_EPISODES = 300, 14
"""Play required for a certificate: it bounds mismatches to about 1 % of steps, 20 % of episodes."""

LONG_MIN_STEPS, LONG_MIN_EPISODES = 1500, 5
"""Play required if episodes are long: 1,500 steps bound mismatches well below 1 % of steps."""

NEEDED = (
    f"this needs {MIN_EPISODES} episodes and {MIN_STEPS} steps without a mismatch, "
    f"or {LONG_MIN_EPISODES} and {LONG_MIN_STEPS:,}"
)
"""The play that a certificate needs before learning ends."""

MAX_SHORT_BOUND = 0.02
"""Largest bound on steps with a mismatch that is certified from less play, at the end of learning.
At the first attempt, at most 2 % of steps takes four episodes of 100 steps, or two of 1,000."""


MIN_CLEAN_EPISODES = 3
"""Episodes of play without a mismatch before the learner probes the program."""

MIN_PASSED_PROBES = 5
"""Probes that the program must pass before it is certified, unless fewer are possible."""


MEAN_EPISODES = 10
"""Episodes of play whose mean return is reported, and compared with a target return."""


class Certificate(BaseModel):
    """A bound on the mismatches in further play, from play without a mismatch.

    `steps` and `episodes` count the play since the last change, which was after `changed`
    environment steps. `mean` is its mean return, and `promised` the mean predicted return.

    Attributes:
        bound: Maximum fraction of further steps with a mismatch.
        episodes_bound: Maximum fraction of further episodes that have a mismatch or return less
            than promised.
        confidence: Probability of each bound.
        attempt: Number of the attempt to certify. Later attempts have a higher confidence each,
            so that all attempts together keep `confidence`.
        untried: Questions that were never tried and that the certificate does not cover.
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
        """Return whether the number of episodes with a mismatch in further steps is within bound.

        Count only the first mismatch of an episode and the steps up to it: the plan ends there.
        """
        return mismatches <= self.bound * steps

    def __str__(self) -> str:
        return (
            f"no mismatch in {self.steps:,} steps ({self.episodes:,} episodes) of play, so at "
            f"{percent(self.confidence)} confidence at most {percent(self.bound)} of steps and "
            f"{percent(self.episodes_bound)} of episodes have one"
        )


class EpisodeRecord(BaseModel):
    """A journal line: a finished episode.

    Attributes:
        steps: Environment steps up to the end of the episode.
        returned: Return of the episode.
        length: Number of steps.
        aims: Number of steps by aim.
        promised: Return that the program predicted at the start; None if it predicted none.
        mismatched: Number of wrong predictions.
        whole: Whether the episode ran to its end; False if the learner stopped it early.
        chance: Whether the environment is stochastic, so that `promised` is a mean.
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
        """The aim of most steps, "" without steps."""
        return max(self.aims, key=lambda aim: self.aims[aim], default="")

    @property
    def is_play(self) -> bool:
        """Whether every step of a whole episode was taken for the return."""
        return self.whole and bool(self.aims) and set(self.aims) <= PLAY_AIMS

    @property
    def is_cut(self) -> bool:
        """Whether a budget ended an episode of play early, so that its return does not count."""
        return not self.whole and set(self.aims) <= PLAY_AIMS

    @property
    def curve_point(self) -> dict[str, Any]:
        """The point of the episode in the learning curve."""
        return {"steps": self.steps, "return": self.returned, "aim": self.aim}

    @property
    def meets_promise(self) -> bool:
        """Whether the episode returned the promise; single stochastic returns always pass."""
        if self.promised is None or self.chance:
            return self.promised is not None
        # allowed shortfall of a return, as a fraction of the promise: rounding errors add up
        return_tolerance = 0.05
        return self.returned >= self.promised - return_tolerance * abs(self.promised) - 1e-6


@dataclass
class Verification:
    """Statistics of the play and the probes since the program or its play last changed.

    They depend only on the calls of the methods, so a replay of a journal reproduces them.
    """

    steps: int = 0
    starts: int = 0
    """Number of whole and cut episodes."""
    episodes: int = 0
    attempt: int = 1
    changed: int = 0
    returned: float = 0.0
    promised: float = 0.0
    shortfall: float = 0.0
    """Sum of promise minus return, in stochastic environments."""
    squared_shortfall: float = 0.0
    passed_probes: int = 0
    is_probed: bool = False
    """Whether the program passed enough probes, or no probe is left."""
    certificate: Certificate | None = None

    def restart(self, step: int) -> None:
        """Drop the statistics after a change at this number of environment steps."""
        if self.episodes:
            self.attempt += 1
        self.steps = self.starts = self.episodes = self.passed_probes = 0
        self.returned = self.promised = self.shortfall = self.squared_shortfall = 0.0
        self.changed, self.is_probed, self.certificate = step, False, None

    def add(self, episode: EpisodeRecord) -> None:
        """Add an episode; restart if it has a mismatch, or is play below its promise.

        An episode that a budget cut is evidence for its start and its steps, not for its return.
        """
        changed = self.changed
        if episode.mismatched or (episode.is_play and not episode.meets_promise):
            self.restart(episode.steps)
        elif episode.is_cut:
            self.steps += episode.length
            self.starts += 1
        elif episode.is_play:
            self.steps += episode.length
            self.starts += 1
            self.episodes += 1
            self.returned += episode.returned
            self.promised += episode.promised or 0.0
            if episode.chance:
                shortfall = (episode.promised or 0.0) - episode.returned
                self.shortfall += shortfall
                self.squared_shortfall += shortfall**2
        if changed == self.changed and "probe" in episode.aims:
            self.passed_probes += 1

    @property
    def is_clean(self) -> bool:
        """Whether there was enough play without a mismatch to start probes."""
        return self.episodes >= MIN_CLEAN_EPISODES

    @property
    def next_aim(self) -> Aim | None:
        """The aim of the next episode: none at first, after clean play a probe, then play.

        Each episode of play after the first clean ones requires one more passed probe.
        """
        if not self.is_clean:
            return None
        has_passed = self.passed_probes > self.episodes - MIN_CLEAN_EPISODES
        return "verify" if self.is_probed or has_passed else "probe"

    @property
    def is_sufficient(self) -> bool:
        """Whether there is enough play for a certificate.

        In a stochastic environment the mean return also must not be below the mean promise by
        more than two standard errors.
        """
        if not self._keeps_promise:
            return False
        if self.steps >= LONG_MIN_STEPS and self.episodes >= LONG_MIN_EPISODES:
            return True
        return self.steps >= MIN_STEPS and self.episodes >= MIN_EPISODES

    @property
    def _keeps_promise(self) -> bool:
        rounding = 1e-6 * (1 + abs(self.promised))
        return self.shortfall <= 2 * sqrt(self.squared_shortfall) + rounding

    def certify(self, untried: Sequence[str] = ()) -> Certificate | None:
        """Return and keep the certificate for the play so far, None without any."""
        if not self.episodes:
            return None
        # The errors allowed to attempt 1, 2, 3, ... sum to 1 - CONFIDENCE.
        error = (1 - CONFIDENCE) / (self.attempt * (self.attempt + 1))
        step_bound = 1 - error ** (1 / max(self.steps, 1))
        start_bound = 1 - error ** (1 / self.starts)
        # A bad start fails at its first step: convert the bound on starts to one on steps.
        odds = start_bound / (1 - start_bound) if start_bound < 1 else inf
        self.certificate = Certificate(
            steps=self.steps,
            episodes=self.episodes,
            bound=min(1.0, max(step_bound, odds * self.starts / max(self.steps, 1))),
            episodes_bound=1 - error ** (1 / self.episodes),
            attempt=self.attempt,
            changed=self.changed,
            mean=self.returned / self.episodes,
            promised=self.promised / self.episodes,
            untried=tuple(untried),
        )
        return self.certificate

    def certify_short(self, untried: Sequence[str] = ()) -> Certificate | None:
        """Return and keep the certificate for the play so far, at the end of learning.

        The bound holds for any amount of play. None if it exceeds `MAX_SHORT_BOUND`.
        """
        found = self.certify(untried) if self._keeps_promise else None
        self.certificate = found if found and found.bound <= MAX_SHORT_BOUND else None
        return self.certificate
