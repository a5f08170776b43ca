"""The base class of actors, and the knowledge that the learning loop shares with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np

from cwm_cli.data.objects import OBJECTS
from cwm_cli.sandbox.failures import printable

if TYPE_CHECKING:
    from cwm_cli.data.dataset import Transition
    from cwm_cli.data.objects import ObjectSchema
    from cwm_cli.data.spaces import Space
    from cwm_cli.planning.model import Step
    from cwm_learn.imagination import SearchImagination

Aim = Literal["exploit", "explore", "probe", "verify"]
"""The purpose of a step: the return, new states, an open question, or a check of the program."""

PLAY_AIMS: frozenset[Aim] = frozenset({"exploit", "verify"})
"""Aims of steps that maximise the return."""


class OpenQuestion(NamedTuple):
    """A question that the rows leave open, and how to answer it.

    `region` describes the place of the test ("position above 1.08") and `action` the action to try
    there (None: any action). `answers` explains the possible outcomes. `weight` is the change of
    the planned return that the answer could cause.
    """

    text: str
    region: str = ""
    action: Any = None
    answers: str = ""
    weight: float = 0.0


class TargetedQuestion(NamedTuple):
    """An open question with the box (2, components) of observations where it can be answered."""

    question: OpenQuestion
    box: np.ndarray

    def contains(self, values: np.ndarray) -> Any:
        """Return whether observations (..., components) are inside the box."""
        return ((values >= self.box[0]) & (values <= self.box[1])).all(-1)

    def is_answered(self, row: Transition) -> bool:
        """Return True if a transition tried the action in the box.

        If the question has no action, starting or ending in the box is enough.
        """
        before, after = np.ravel(row.observation), np.ravel(row.next_observation)
        if self.question.action is None:
            return bool(self.contains(before) or self.contains(after))
        return bool(self.contains(before)) and np.array_equal(self.question.action, row.action)


class Intent(NamedTuple):
    """The next action, its aim and a short reason.

    `promised_return` is the return that the program predicts for the rest of the episode; None if
    the aim is not the return.
    """

    action: Any
    aim: Aim
    reason: str
    promised_return: float | None = None


@dataclass
class Knowledge:
    """All recorded transitions of an environment, and the current program.

    Attributes:
        limit: Maximum number of steps of an episode.
        names: Names of the observation's components; empty if the environment has none.
        rows: All transitions so far. The learning loop appends to `rows` and `starts`.
        starts: The first observations of all episodes so far.
        random_rows: Indices of rows without the most common outcome of their observation and
            action.
        disputed: Pairs of observation and action, to be probed first: other programs, which also
            reproduce every row, predict another outcome.
        targets: Questions of a language model, to be probed in their boxes.
        program: The text of the current program; empty before the first one.
        unexplained_fraction: Fraction of the rows that the rules of the program mispredict; 0 if
            the actor does not override the program.
        plays_badly: Whether play in programs that mispredict most steps was worse than other
            episodes, so that actions are random instead.
        imagination: Simulates with the current program.
    """

    observation_space: Space
    action_space: Space
    limit: int
    seed: int = 0
    schema: ObjectSchema | None = None
    names: Sequence[str] = ()
    rows: list[Transition] = field(default_factory=list)
    starts: list[Any] = field(default_factory=list)
    random_rows: set[int] = field(default_factory=set)
    disputed: list[tuple[Any, Any]] = field(default_factory=list)
    targets: list[TargetedQuestion] = field(default_factory=list)
    program: str = ""
    unexplained_fraction: float = 0.0
    plays_badly: bool = False
    imagination: SearchImagination | None = None
    _returns: list[float] = field(default_factory=list, init=False, repr=False)
    """Returns of all whole episodes in the first `_summed` rows."""
    _return_so_far: float = field(default=0.0, init=False, repr=False)
    _summed: int = field(default=0, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.limit < 1:
            raise ValueError("an episode must have at least one step")

    @property
    def usual_reward(self) -> float | None:
        """The best recurring reward of a step that does not end the episode; None if none recurs.

        An agent can probably collect this reward again and again. If the program is misleading,
        this is the mean reward, because nothing shows that a reward can be repeated.
        """
        if self.is_misleading:
            return sum(row.reward for row in self.rows) / len(self.rows)
        counts = Counter(row.reward for row in self.rows if not row.terminated)
        # a reward is recurring if at least this fraction of the rows has it
        min_recurring_fraction = 0.1
        min_count = max(2.0, min_recurring_fraction * len(self.rows))
        return max((reward for reward, count in counts.items() if count >= min_count), default=None)

    @property
    def is_misleading(self) -> bool:
        """Whether the program mispredicts most rows."""
        # a program that mispredicts more than this fraction of the rows is not planned with
        max_unexplained_fraction = 0.5
        return self.unexplained_fraction > max_unexplained_fraction

    def is_promising(
        self, value: float, late_value: float, left: int, usual: float, tolerance: float
    ) -> bool:
        """Return whether to follow the best plan in the program instead of exploring.

        A plan has to exceed the usual reward at every step. If the program cannot keep the usual
        reward, a plan has to reach the mean return of the whole episodes so far.

        Args:
            value: Value of the current state with `left` steps left.
            late_value: Value of the current state with half as many steps left.
            left: Number of steps left in the episode.
            usual: The usual reward of a step.
            tolerance: Difference below which returns are equal.
        """
        if value > left * usual + tolerance:
            return True
        if value - late_value >= (left - left // 2) * usual - tolerance:
            return False
        self._sum_returns()
        if not self._returns:
            return False
        so_far = self._return_so_far if left < self.limit else 0.0
        return so_far + value >= sum(self._returns) / len(self._returns)

    def _sum_returns(self) -> None:
        """Update the returns of whole episodes, and the return of the current episode."""
        for place in range(self._summed, len(self.rows)):
            row = self.rows[place]
            if place and row.episode != self.rows[place - 1].episode:
                self._return_so_far = 0.0
            self._return_so_far += row.reward
            if row.terminated or row.truncated:
                self._returns.append(self._return_so_far)
                self._return_so_far = 0.0
        self._summed = len(self.rows)

    def component_name(self, place: int) -> str:
        """Return the name of a component of the observation."""
        return self.names[place] if self.names else f"observation[{place}]"

    def describe(self, observation: Any) -> str:
        """Return a short text for an observation; for objects, the agent's position and load."""
        if self.schema is not None:
            table, column = observation[OBJECTS], self.schema.column
            x, y = table[0, [column("x"), column("y")]].tolist()
            text = f"agent at {x}, {y}"
            if "held" in self.schema.names:
                kinds, classes = table[table[:, column("held")] == 1, 0], self.schema.classes
                held = [classes[kind] for kind in kinds.tolist() if 0 < kind < len(classes)]
                text += f" with {', '.join(held)}" * bool(held)
            return text
        if self.names:
            parts = zip(self.names, np.ravel(observation).tolist(), strict=True)
            return printable(", ".join(f"{name} {value:.4g}" for name, value in parts), 80)
        return printable(" ".join(str(observation).split()), 80)


class Actor:
    """Base class of actors, which maximise the return in a program and explore.

    The learning loop chooses the first class that `supports` the spaces of the environment. It
    calls `rebuild` after each change of the program and `observe` after each step. `known` is
    shared with the loop, which continues to fill it.
    """

    WARMUP_STEPS: ClassVar[int] = 10
    """Number of random steps before the first program is written."""

    KEEPS_EXCEPTIONS: ClassVar[bool] = True
    """Whether to plan with the program's table of exceptions (recorded transitions that its rules
    do not predict). Real numbers never recur, and a table prevents vectorised steps."""

    OVERRIDES_PROGRAM: ClassVar[bool] = False
    """Whether recorded transitions override the program, so that between two programs the actor
    behaves as if the program reproduced every row."""

    def __init__(self, known: Knowledge) -> None:
        self.known = known

    @classmethod
    def supports(cls, observation_space: Space, action_space: Space) -> bool:
        """Return whether the actor can act in an environment with these spaces."""
        raise NotImplementedError

    @classmethod
    def stochastic_variant(cls) -> type[Actor] | None:
        """Return the class for random outcomes, maybe this one; None if there is no such class."""
        return None

    def rebuild(self) -> None:
        """Recompute everything that depends on the program: tables, values, policies."""

    def observe(self, row: Transition) -> None:
        """Record a transition, which may contradict the program."""

    def predict(self, observation: Any, action: Any) -> Step | None:
        """Return the predicted outcome of an action; None if it is unknown."""
        return None

    def matches(self, predicted: Step, row: Transition) -> bool:
        """Return whether a prediction equals the recorded outcome."""
        raise NotImplementedError

    def promised_return(self, observation: Any, left: int) -> float | None:
        """Return the return of the best plan in the program with `left` steps left.

        None if no plan is better than arbitrary actions.
        """
        return None

    def choose(self, observation: Any, left: int, aim: Aim | None = None) -> Intent | None:
        """Return the next action.

        Args:
            observation: The current observation.
            left: Number of steps left in the episode.
            aim: The purpose of the step. None lets the actor choose between "exploit" and
                "explore".

        Returns:
            None if the actor can do nothing for the aim from here; the episode may then be reset.
        """
        raise NotImplementedError

    def questions(self) -> list[OpenQuestion]:
        """Return the open questions, the most important first."""
        return []

    @property
    def is_settled(self) -> bool:
        """Whether no unvisited state could raise the return, even with the best known reward."""
        return False
