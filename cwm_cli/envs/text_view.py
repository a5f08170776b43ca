"""The seam of text views: what happens in an environment, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from cwm_cli.errors import CwmError

if TYPE_CHECKING:
    import numpy as np

    from cwm_cli.data.dataset import Transition


class Change(NamedTuple):
    """What followed an action, in words: the sentence, what kind of change it is, what of.

    The `fields` are what the sentence is about, by name; changes of one kind have the same names.

        Change("You are holding the pea seed.", "holding 1", {"object": "pea seed"})
    """

    text: str
    kind: str
    fields: Mapping[str, str] = MappingProxyType({})


class Consequence(NamedTuple):
    """What the words of a change mean: what is observed next, the reward, whether it ended."""

    observation: Any
    reward: float
    terminated: bool


class TextView:
    """An environment in words: what a language model reads of it, and what it may say follows.

    All of it is read off an observation, so that any recorded transitions can be put into words.
    A class of this kind has

    - `kinds` of change, the commonest first;
    - `vocabulary`: the facts that the conditions of rules may speak of, and their values;
    - `conclusions`: of each kind of change its fields, and their values;
    - `goals`, the easiest first, that `solution` knows a way to;
    - `lists_discovered`: whether prompts list the sentences that were met so far;
    - `guide`, the environment in words, which gives away no rule that is to be found;
    - `state`, `action` and `change`: what is seen, done and found, each a sentence or two;
    - `legal` actions, and the `facts` that hold as one of them is taken;
    - `candidates`: every change that can be told apart where the environment stands;
    - `consequence`: what a change means, which plans are made by;
    - `features`: what is seen as numbers, for policies that learn;
    - `reachable` and `solution`, which know the rules: for measures and oracles, never for
      whoever proposes rules or weighs them.
    """

    kinds: tuple[str, ...] = ()
    vocabulary: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    conclusions: Mapping[str, Mapping[str, tuple[str, ...]]] = MappingProxyType({})
    goals: tuple[str, ...] = ()
    lists_discovered: bool = False

    def guide(self) -> str:
        """Describe the environment, and no rule of what follows what."""
        raise NotImplementedError

    def state(self, observation: Any) -> str:
        """Say what is seen."""
        raise NotImplementedError

    def legal(self, observation: Any) -> Sequence[int]:
        """Return the actions that may be taken."""
        raise NotImplementedError

    def action(self, observation: Any, action: int) -> str:
        """Say what is done."""
        raise NotImplementedError

    def facts(self, observation: Any, action: int) -> Mapping[str, str]:
        """Return what rules may speak of as an action is taken: names and values."""
        raise NotImplementedError

    def change(self, row: Transition) -> Change:
        """Say what followed a recorded action."""
        raise NotImplementedError

    def candidates(self, observation: Any) -> Sequence[Change]:
        """Return every change that might follow, each once; those of legal actions among them.

        `CwmError` where they cannot be listed.
        """
        raise CwmError(
            f"{type(self).__name__} lists no possible next changes: "
            "ranking, evaluation and planning in words need them"
        )

    def reachable(self, observation: Any) -> Sequence[bool]:
        """Return which of the candidates follow some legal action, as the environment has it."""
        raise CwmError(f"{type(self).__name__} does not list reachable changes")

    def consequence(self, observation: Any, action: int, change: Change) -> Consequence | None:
        """Return what a change means, None where its words do not tell."""
        return None

    def features(self, observation: Any) -> np.ndarray:
        """Return what is seen as a vector of numbers."""
        raise CwmError(f"{type(self).__name__} has no numeric features for a policy")

    def solution(self, observation: Any, goal: str) -> Sequence[int]:
        """Return actions that lead to a goal from here."""
        raise CwmError(f"{type(self).__name__} has no solutions for its goals")
