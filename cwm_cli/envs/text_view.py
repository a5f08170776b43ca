"""The interface of text views, which describe transitions of an environment in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from cwm_cli.errors import CwmError

if TYPE_CHECKING:
    import numpy as np

    from cwm_cli.data.dataset import Transition


class Change(NamedTuple):
    """The effect of an action in words: a sentence, its kind, and its fields.

    `fields` are the subjects of the sentence by name; all changes of a kind have the same names.

        Change("You are holding the pea seed.", "holding 1", {"object": "pea seed"})
    """

    text: str
    kind: str
    fields: Mapping[str, str] = MappingProxyType({})


class Consequence(NamedTuple):
    """The meaning of a change: next observation, reward, and whether the episode ended."""

    observation: Any
    reward: float
    terminated: bool


class TextView:
    """An environment in words: texts for a language model, and the changes it may predict.

    Every method needs only an observation, so any recorded transitions can be described. A subclass
    defines

    - `kinds` of change, the most common first;
    - `vocabulary`: the facts that conditions of rules may use, and their values;
    - `conclusions`: the fields of each kind of change, and their values;
    - `goals` of `solution`, the easiest first;
    - `lists_discovered`: whether prompts list the sentences that were observed so far;
    - `guide`, a description of the environment that reveals no rule to be found;
    - `state`, `action` and `change`: one or two sentences on an observation, an action and an
      effect;
    - the `legal` actions, and the `facts` at the time of an action;
    - `candidates`: all distinguishable changes that may follow an observation;
    - `consequence`: the meaning of a change, for planning;
    - `features`: an observation as numbers, for policies that learn;
    - `reachable` and `solution`, which use the true rules: for measures and oracles, never for the
      search or the scoring of rules.
    """

    kinds: tuple[str, ...] = ()
    vocabulary: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    conclusions: Mapping[str, Mapping[str, tuple[str, ...]]] = MappingProxyType({})
    goals: tuple[str, ...] = ()
    lists_discovered: bool = False

    def guide(self) -> str:
        """Return a description of the environment, without rules about the effects of actions."""
        raise NotImplementedError

    def state(self, observation: Any) -> str:
        """Return a description of an observation."""
        raise NotImplementedError

    def legal(self, observation: Any) -> Sequence[int]:
        """Return the legal actions."""
        raise NotImplementedError

    def action(self, observation: Any, action: int) -> str:
        """Return a description of an action."""
        raise NotImplementedError

    def facts(self, observation: Any, action: int) -> Mapping[str, str]:
        """Return the facts at the time of an action, as names and values from `vocabulary`."""
        raise NotImplementedError

    def change(self, row: Transition) -> Change:
        """Return the effect of a recorded action."""
        raise NotImplementedError

    def candidates(self, observation: Any) -> Sequence[Change]:
        """Return every change that may follow, each once, including the changes of legal actions.

        Raises:
            CwmError: The changes cannot be listed.
        """
        raise CwmError(
            f"{type(self).__name__} lists no possible next changes: "
            "ranking, evaluation and planning in words need them"
        )

    def reachable(self, observation: Any) -> Sequence[bool]:
        """Return for each candidate whether a legal action leads to it in the true environment."""
        raise CwmError(f"{type(self).__name__} does not list reachable changes")

    def consequence(self, observation: Any, action: int, change: Change) -> Consequence | None:
        """Return the meaning of a change, None if its words do not determine it."""
        return None

    def features(self, observation: Any) -> np.ndarray:
        """Return the observation as a vector of numbers."""
        raise CwmError(f"{type(self).__name__} has no numeric features for a policy")

    def solution(self, observation: Any, goal: str) -> Sequence[int]:
        """Return actions that lead from an observation to a goal."""
        raise CwmError(f"{type(self).__name__} has no solutions for its goals")
