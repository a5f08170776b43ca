"""What a planner is asked, and what it is."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np

from cwm_cli.data.spaces import Space
from cwm_cli.planning.model import Model


class Unsuited(Exception):
    """A planner cannot plan with this model; the text says why, without naming the planner."""


class Moment(NamedTuple):
    """Where an episode stands when its decision of a number is due, counted from 0.

    `state` is an observation, or for a simulator what it has saved. `horizon` is
    how many steps the episode can still last. `valid` are the actions that are
    allowed, None where all are.
    """

    episode: int
    decision: int
    state: Any
    horizon: int
    valid: tuple[int, ...] | None = None


@dataclass
class Situation:
    """A moment as a planner sees it: with random numbers, and what it remembers of the episode.

    Random numbers follow from `seeds`, either those of `rng` or others from the
    64 bits of `seed`. What the planner leaves in `memory` comes back with the next decision.
    """

    state: Any
    horizon: int
    seeds: tuple[int, ...]
    memory: Any = None
    valid: tuple[int, ...] | None = None

    @cached_property
    def rng(self) -> np.random.Generator:
        """Random numbers of any kind."""
        return np.random.default_rng(self.seeds)

    @property
    def seed(self) -> int:
        """A number of 64 bits, which takes a tenth of the time."""
        digest = blake2b(repr(self.seeds).encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little")


class Planner(Protocol):
    """Chooses actions by trying them in a model; a dataclass whose fields are its options.

    What is planned for a situation does not depend on those beside it.
    """

    NEEDS: ClassVar[str]
    """What kind of environment it takes, in words that follow "needs"."""

    @staticmethod
    def serves(action_space: Space) -> bool:
        """Whether this planner can choose among such actions."""

    def plan(self, model: Model, situations: Sequence[Situation]) -> list[list[Any]]:
        """Return, for each situation, the next actions: at least one, at most its horizon."""
