"""Planning in a program that was found from data: what no row supports is doubted.

A planner finds the few situations in which a program is wrong in its favour, and makes for them.
So the program is planned with as another one, in which a step that no row supports leads to the
worst that was seen (`careful`), or to the best (`curious`; compare R-max: Brafman and
Tennenholtz, 2002). It is the text that is changed, so that all that stands in for a program, or
checks it, does so for this one.
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
"""What a reward is worth one step later, as by default where it is planned."""

MOST_CELLS = 12_000
"""Situations and actions that are looked at one by one: a second's work, as for a table."""

Mode = Literal["careful", "curious", "ignore"]


@dataclass(frozen=True)
class Doubt:
    """What steps are worth that no row of the data supports."""

    doubt: Mode = "careful"
    """Value of steps that the data do not support. careful: as bad as the worst recorded return;
    curious: as good as the best; ignore: as the program predicts.

    A step is supported if it was recorded, or if the same rules of the program predicted every
    recorded row that they were used for correctly. Real numbers must also be within the recorded
    range.
    """


class Prospect(NamedTuple):
    """A discounted return, and whether the episode that it is from ended, not only was cut."""

    value: float
    ends: bool

    @property
    def rate(self) -> float:
        """What a step is worth where it goes on like that."""
        return (1 - DISCOUNT) * self.value


def prospect(rows: Dataset, *, best: bool) -> Prospect:
    """Return the lowest return that followed any row, or the highest.

    Where an episode was cut its rewards are taken to go on at their mean.
    """
    seen = []
    for number in np.unique(rows.columns["episodes"]):
        own = rows.columns["episodes"] == number
        rewards = rows.columns["rewards"][own]
        ends = bool(rows.columns["terminations"][own][-1])
        value = 0.0 if ends else float(rewards.mean()) / (1 - DISCOUNT)
        for reward in rewards[::-1].tolist():
            value = reward + DISCOUNT * value
            seen.append(Prospect(value, ends))
    return max(seen) if best else min(seen)


@dataclass(frozen=True)
class Support:
    """Which steps the rows of some data support.

    Where there are few situations, `cells` holds for each of them (in the order of their
    components, the last one fastest) and each action whether it is supported. Else `low` and
    `high` bound the components in which something was recorded, and those of actions.
    """

    observation_space: Space
    action_space: Space
    cells: np.ndarray | None = None
    low: np.ndarray | None = None
    high: np.ndarray | None = None
    action_low: np.ndarray | None = None
    action_high: np.ndarray | None = None

    def covers(self, observation: Any, action: Any) -> bool:
        """Whether a step is supported."""
        if self.cells is not None:
            place = int(action) - int(self.action_space.low[0])
            return bool(self.cells[self._place(observation), place])
        within = _within(self.low, self.high, numbers(self.observation_space, observation))
        return within and _within(
            self.action_low, self.action_high, numbers(self.action_space, action)
        )

    def helps(self, observation: Any, valid: Sequence[int] | None) -> bool:
        """Whether any step from a situation is supported, so that there is a choice."""
        if self.cells is None:
            return _within(self.low, self.high, numbers(self.observation_space, observation))
        own, low = self.cells[self._place(observation)], int(self.action_space.low[0])
        return bool(own.any() if valid is None else any(own[action - low] for action in valid))

    def condition(self) -> list[str]:
        """Return Python expressions of `here` and `action` that hold where a step is supported."""
        if self.cells is not None:
            return [f"SUPPORTED[{self._index()}] == '1'"]
        here = component_names(self.observation_space, "here")
        taken = component_names(self.action_space, "action")
        return [
            *_bounds(here, self.observation_space, self.low, self.high),
            *_bounds(taken, self.action_space, self.action_low, self.action_high),
        ]

    def _place(self, observation: Any) -> int:
        place = 0
        components = numbers(self.observation_space, observation)
        for number, (low, high) in zip(components, limits(self.observation_space), strict=True):
            place = place * int(high - low + 1) + int(number - low)
        return place

    def _index(self) -> str:
        """Return the place of a step among the cells, as an expression."""
        text = "0"
        names = component_names(self.observation_space, "here")
        names += component_names(self.action_space, "action")
        bounds = [*limits(self.observation_space), *limits(self.action_space)]
        for name, (low, high) in zip(names, bounds, strict=True):
            text = f"({text}) * {int(high - low + 1)} + int({name}) - {int(low)}"
        return text


def doubted(
    program: str, support: Support, seen: Prospect, *, best: bool = False, valid: bool = False
) -> str:
    """Return a program in which a step that is not supported has the worst prospect, or the best.

    What breaks the rules that were confirmed ends there, with that return as its reward. What
    only leads them beyond the numbers that were recorded ends if that was how it came about, and
    otherwise goes on at that rate: so a track is not left whose end nobody saw, but a speed is
    reached that nobody had. With `valid` the program says which actions may follow.
    """
    conditions = support.condition()
    if not conditions:
        return program
    if support.cells is not None:
        cells = "".join("01"[int(cell)] for cell in support.cells.ravel())
        program += f"\nSUPPORTED = {cells!r}\n"
    if support.cells is not None or seen.ends:
        before, after = f"here, {float(seen.value)!r}, True" + ", ()" * valid, "answer"
        before = f"return {before}"
    else:
        before = "pass"
        after = f"answer[0], {'max' if best else 'min'}(float(answer[1]), {float(seen.rate)!r})"
        after += ", *answer[2:]"
    doubtful = f"not ({' and '.join(conditions)})"
    return f"{program}\n{_WRAPPED.format(doubtful, before, after)}"


_WRAPPED = """
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
"""What stands in for a program: behind its text, so that its lines keep their numbers."""


@dataclass(frozen=True)
class DoubtedModel(WorldModel):
    """A program, and the same one changed where no row supports it, for planning.

    Where nothing supports any step from where an episode really stands, an end of all plans would
    leave nothing to choose by: there plans are made in `otherwise`.
    """

    kind = "program"

    plain: WorldModel
    doubted: WorldModel
    otherwise: WorldModel
    support: Support

    def describe(self) -> str:
        """Say what it is, in a few words."""
        return self.plain.describe()

    def predict(self, rows: Dataset, *, seed: int = 0, draws: int = 1) -> Predictions:
        """Answer as the program does."""
        return self.plain.predict(rows, seed=seed, draws=draws)

    def open(self, planners: Sequence[Planning], task: Task) -> DoubtingSession:
        """Begin to plan with both."""
        otherwise = self.otherwise.open(planners, task)
        alike = self.doubted is self.otherwise
        return DoubtingSession(
            otherwise, otherwise if alike else self.doubted.open(planners, task), self.support
        )


class DoubtingSession(PlanningSession):
    """Plans with a doubted program, and where it is of no help with another one.

    Every plan is marked by whether its first step is supported.
    """

    def __init__(
        self, otherwise: PlanningSession, doubted: PlanningSession, support: Support
    ) -> None:
        self._otherwise, self._doubted, self._support = otherwise, doubted, support

    def plan(self, moments: Sequence[Moment]) -> list[Plan]:
        """Return what to do at each of some moments of different episodes."""
        helped = [self._support.helps(each.state, each.valid) for each in moments]
        plans: list[Plan] = [Plan([], None)] * len(moments)
        for session, which in ((self._doubted, True), (self._otherwise, False)):
            places = [place for place, helps in enumerate(helped) if helps is which]
            if places:
                before = session.steps
                made = session.plan([moments[place] for place in places])
                self.steps += session.steps - before
                self.report = self._doubted.report or self._otherwise.report
                for place, plan in zip(places, made, strict=True):
                    plans[place] = self._marked(plan, moments[place])
        return plans

    def confirm(self, seconds: Mapping[int, float]) -> dict[int, Confirmation]:
        """Check plans of both."""
        found = self._doubted.confirm(seconds)
        if self._otherwise is self._doubted:
            return found
        others = self._otherwise.confirm(seconds)
        return {
            episode: Confirmation(
                one.decisions + others[episode].decisions, one.verified and others[episode].verified
            )
            for episode, one in found.items()
        }

    def close(self) -> None:
        """Let go of both."""
        try:
            self._doubted.close()
        finally:
            self._otherwise.close()

    def _marked(self, plan: Plan, moment: Moment) -> Plan:
        """Say of a plan whether its first step is supported."""
        if not plan.actions:
            return plan
        return plan._replace(supported=self._support.covers(moment.state, plan.actions[0]))


def countable(observation_space: Space, action_space: Space) -> bool:
    """Whether all situations, with each action, are few enough to be asked for."""
    if action_space.kind != "discrete":
        return False
    return observation_space.cardinality * action_space.count <= MOST_CELLS


def numbers(space: Space, value: Any) -> np.ndarray:
    """Return the components of a value that consists of numbers."""
    columns = space.pack("value", [value])
    return np.concatenate([np.ravel(column).astype(float) for column in columns.values()])


def limits(space: Space) -> list[tuple[float, float]]:
    """Return the bounds of every component."""
    leaves = [leaf.space for leaf in space.leaves("")]
    return [pair for leaf in leaves for pair in zip(leaf.low, leaf.high, strict=True)]


def _within(low: np.ndarray | None, high: np.ndarray | None, found: np.ndarray) -> bool:
    return low is None or high is None or bool(np.all((low <= found) & (found <= high)))


def _bounds(
    names: Sequence[str], space: Space, low: np.ndarray | None, high: np.ndarray | None
) -> list[str]:
    """Return comparisons of components with bounds, as far as their space does not imply them."""
    if low is None or high is None:
        return []
    found = []
    for name, (least, most), lower, upper in zip(names, limits(space), low, high, strict=True):
        if lower > least:
            found.append(f"{name} >= {float(lower)!r}")
        if upper < most:
            found.append(f"{name} <= {float(upper)!r}")
    return found
