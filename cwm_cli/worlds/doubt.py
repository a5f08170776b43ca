"""Planning that does not rely on steps of a program that no recorded row supports.

A planner finds and exploits the few situations where a program overestimates the reward. Therefore
planning uses a changed program: an unsupported step leads to the worst recorded return (`careful`),
or to the best (`curious`, as in R-max: Brafman and Tennenholtz, 2002). The change is made in the
text of the program, so that translated forms and checks apply to it as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_cli.data.spaces import Space
from cwm_cli.planning.planner import Moment
from cwm_cli.worlds.contract import component_names
from cwm_cli.worlds.model import (
    Confirmation,
    Plan,
    Planning,
    PlanningSession,
    Predictions,
    WorldModel,
)

if TYPE_CHECKING:
    from cwm_cli.envs.tasks import Task

DISCOUNT = 0.99
"""Discount of the returns of recorded rows: the default of planning."""

Mode = Literal["careful", "curious", "ignore"]


@dataclass(frozen=True)
class Doubt:
    """Option for steps that the data do not support."""

    doubt: Mode = "careful"
    """Value of steps that the data do not support. careful: as bad as the worst recorded return;
    curious: as good as the best; ignore: as the program predicts.

    A step is supported if it was recorded, or if the same rules of the program predicted every
    recorded row that they were used for correctly. Real numbers must also be within the recorded
    range.
    """


class ExtremeReturn(NamedTuple):
    """The worst or best discounted return of recorded rows; `ends` if its episode terminated."""

    value: float
    ends: bool

    @property
    def reward_per_step(self) -> float:
        """The constant reward whose endless discounted sum is the return."""
        return (1 - DISCOUNT) * self.value


def extreme_return(rows: Dataset, *, best: bool) -> ExtremeReturn:
    """Return the lowest discounted return after any row, or the highest if `best`.

    An episode that did not terminate is assumed to continue with its mean reward.
    """
    returns = []
    for number in np.unique(rows.columns["episodes"]):
        own = rows.columns["episodes"] == number
        rewards = rows.columns["rewards"][own]
        ends = bool(rows.columns["terminations"][own][-1])
        value = 0.0 if ends else float(rewards.mean()) / (1 - DISCOUNT)
        for reward in rewards[::-1].tolist():
            value = reward + DISCOUNT * value
            returns.append(ExtremeReturn(value, ends))
    return max(returns) if best else min(returns)


@dataclass(frozen=True)
class Support:
    """The steps that recorded rows support.

    Args:
        observation_space: The observation space, without texts.
        action_space: The action space.
        cells: (observations, actions) bool, whether each step is supported, if there are few
            (see `is_enumerable`). The last component of an observation changes fastest.
        low: Without cells: the lower bound of each component of supported observations.
        high: Their upper bounds.
        action_low: Without cells: the lower bound of each component of supported actions.
        action_high: Their upper bounds.
    """

    observation_space: Space
    action_space: Space
    cells: np.ndarray | None = None
    low: np.ndarray | None = None
    high: np.ndarray | None = None
    action_low: np.ndarray | None = None
    action_high: np.ndarray | None = None

    def covers(self, observation: Any, action: Any) -> bool:
        """Return whether a step is supported."""
        if self.cells is not None:
            place = int(action) - int(self.action_space.low[0])
            return bool(self.cells[self._index(observation), place])
        return self._is_within(observation) and _is_within(
            self.action_low, self.action_high, _component_values(self.action_space, action)
        )

    def has_supported_action(self, observation: Any, valid: Sequence[int] | None) -> bool:
        """Return whether any valid action is supported; `valid` is None if all are valid."""
        if self.cells is None:
            return self._is_within(observation)
        actions, low = self.cells[self._index(observation)], int(self.action_space.low[0])
        return bool(
            actions.any() if valid is None else any(actions[action - low] for action in valid)
        )

    def conditions(self) -> list[str]:
        """Return Python expressions of `here` and `action` that all hold for supported steps."""
        observation_names = component_names(self.observation_space, "here")
        action_names = component_names(self.action_space, "action")
        if self.cells is None:
            return [
                *_comparisons(observation_names, self.observation_space, self.low, self.high),
                *_comparisons(action_names, self.action_space, self.action_low, self.action_high),
            ]
        index = "0"
        bounds = component_bounds(self.observation_space) + component_bounds(self.action_space)
        for name, (low, high) in zip(observation_names + action_names, bounds, strict=True):
            index = f"({index}) * {int(high - low + 1)} + int({name}) - {int(low)}"
        return [f"SUPPORTED[{index}] == '1'"]

    def _is_within(self, observation: Any) -> bool:
        return _is_within(
            self.low, self.high, _component_values(self.observation_space, observation)
        )

    def _index(self, observation: Any) -> int:
        """Return the index of an observation in `cells`."""
        index = 0
        components = _component_values(self.observation_space, observation)
        bounds = component_bounds(self.observation_space)
        for number, (low, high) in zip(components, bounds, strict=True):
            index = index * int(high - low + 1) + int(number - low)
        return index


def add_doubt(
    program: str,
    support: Support,
    extreme: ExtremeReturn,
    *,
    best: bool = False,
    valid: bool = False,
) -> str:
    """Return a changed program, whose unsupported steps have the worst return, or the best.

    With cells, an unsupported step ends the episode, with the return as its reward. With bounds, a
    step outside them does the same if the episode of the extreme return terminated. Otherwise the
    step happens as predicted, but with a reward no better (for `best`: no worse) than
    `extreme.reward_per_step`. For example, plans in CartPole, whose worst episodes terminate, stay
    within the recorded part of the track. Plans for a car whose episodes are only truncated may
    reach a speed that no row shows.

    Args:
        program: The text of the program.
        support: The supported steps.
        extreme: The worst or best recorded return.
        best: Whether `extreme` is the best return.
        valid: Whether steps of the program return valid actions.
    """
    conditions = support.conditions()
    if not conditions:
        return program
    if support.cells is not None:
        cells = "".join("01"[int(cell)] for cell in support.cells.ravel())
        program += f"\nSUPPORTED = {cells!r}\n"
    if support.cells is not None or extreme.ends:
        before = f"return here, {float(extreme.value)!r}, True" + ", ()" * valid
        after = "answer"
    else:
        before = "pass"
        bound = f"{'max' if best else 'min'}(float(answer[1]), {float(extreme.reward_per_step)!r})"
        after = f"answer[0], {bound}, *answer[2:]"
    doubtful = f"not ({' and '.join(conditions)})"
    return f"{program}\n{_WRAPPER.format(doubtful, before, after)}"


# The wrapper follows the program, so that the line numbers of the program do not change.
_WRAPPER = """
if hasattr(Environment, "set_state"):

    class _Doubted(Environment):
        def set_state(self, observation):
            self.doubted_here = observation
            super().set_state(observation)

        def step(self, action):
            here = self.doubted_here
            doubtful = {0}
            if doubtful:
                {1}
            answer = super().step(action)
            self.doubted_here = answer[0]
            if doubtful:
                return {2}
            return answer

    Environment = _Doubted
"""


@dataclass(frozen=True)
class DoubtedModel(WorldModel):
    """A program that predicts unchanged and plans with changed programs (see `add_doubt`).

    Args:
        plain: The program itself, for predictions.
        doubted: The changed program, for plans.
        otherwise: The program for plans from observations without any supported action. There
            every step of `doubted` may end the episode, which leaves the planner no choice.
        support: The supported steps.
    """

    kind = "program"

    plain: WorldModel
    doubted: WorldModel
    otherwise: WorldModel
    support: Support

    def describe(self) -> str:
        """Return the name of the program."""
        return self.plain.describe()

    def predict(self, rows: Dataset, *, seed: int = 0, draws: int = 1) -> Predictions:
        """Return the predictions of the unchanged program."""
        return self.plain.predict(rows, seed=seed, draws=draws)

    def open(self, planners: Sequence[Planning], task: Task) -> DoubtingSession:
        """Start planning with both programs for plans."""
        otherwise = self.otherwise.open(planners, task)
        is_same = self.doubted is self.otherwise
        doubted = otherwise if is_same else self.doubted.open(planners, task)
        return DoubtingSession(otherwise, doubted, self.support)


class DoubtingSession(PlanningSession):
    """Plans with a `DoubtedModel`; each plan records whether its first step is supported."""

    def __init__(
        self, otherwise: PlanningSession, doubted: PlanningSession, support: Support
    ) -> None:
        self._otherwise, self._doubted, self._support = otherwise, doubted, support

    def plan(self, moments: Sequence[Moment]) -> list[Plan]:
        """Return plans for moments of different episodes, in the order of the moments."""
        has_support = [
            self._support.has_supported_action(moment.state, moment.valid) for moment in moments
        ]
        plans: list[Plan] = [Plan([], None)] * len(moments)
        for session, supported in ((self._doubted, True), (self._otherwise, False)):
            places = [place for place, found in enumerate(has_support) if found is supported]
            if not places:
                continue
            before = session.steps
            new_plans = session.plan([moments[place] for place in places])
            self.steps += session.steps - before
            self.report = self._doubted.report or self._otherwise.report
            for place, plan in zip(places, new_plans, strict=True):
                state = moments[place].state
                covered = not plan.actions or self._support.covers(state, plan.actions[0])
                plans[place] = plan if covered else plan._replace(supported=False)
        return plans

    def confirm(self, seconds: Mapping[int, float]) -> dict[int, Confirmation]:
        """Confirm the plans of both sessions."""
        confirmations = self._doubted.confirm(seconds)
        if self._otherwise is self._doubted:
            return confirmations
        others = self._otherwise.confirm(seconds)
        return {
            episode: Confirmation(
                one.decisions + others[episode].decisions, one.verified and others[episode].verified
            )
            for episode, one in confirmations.items()
        }

    def close(self) -> None:
        """Close both sessions."""
        try:
            self._doubted.close()
        finally:
            self._otherwise.close()


def is_enumerable(observation_space: Space, action_space: Space) -> bool:
    """Return whether there are at most 12,000 pairs of observation and action.

    A program steps through 12,000 pairs in about a second.
    """
    if action_space.kind != "discrete":
        return False
    return observation_space.cardinality * action_space.count <= 12_000


def component_bounds(space: Space) -> list[tuple[float, float]]:
    """Return the lower and upper bound of every component."""
    leaves = [leaf.space for leaf in space.leaves("")]
    return [pair for leaf in leaves for pair in zip(leaf.low, leaf.high, strict=True)]


def _component_values(space: Space, value: Any) -> np.ndarray:
    columns = space.pack("value", [value])
    return np.concatenate([np.ravel(column).astype(float) for column in columns.values()])


def _is_within(low: np.ndarray | None, high: np.ndarray | None, components: np.ndarray) -> bool:
    return low is None or high is None or bool(np.all((low <= components) & (components <= high)))


def _comparisons(
    names: Sequence[str], space: Space, low: np.ndarray | None, high: np.ndarray | None
) -> list[str]:
    """Return comparisons with bounds, if they are narrower than the bounds of the space."""
    if low is None or high is None:
        return []
    comparisons = []
    bounds = component_bounds(space)
    for name, (least, most), lower, upper in zip(names, bounds, low, high, strict=True):
        if lower > least:
            comparisons.append(f"{name} >= {float(lower)!r}")
        if upper < most:
            comparisons.append(f"{name} <= {float(upper)!r}")
    return comparisons
