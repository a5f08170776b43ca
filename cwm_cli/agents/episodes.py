"""Play episodes side by side: plans for all of them are asked for at once."""

import time
from collections import deque
from collections.abc import Generator, Iterable, Sequence
from copy import deepcopy
from itertools import islice
from math import isfinite
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from pydantic import BaseModel, ConfigDict

from cwm_cli.envs.tasks import Task, random_action, seeds_of
from cwm_cli.errors import CwmError
from cwm_cli.planning import Moment
from cwm_cli.sandbox import Plan, Report
from cwm_cli.sandbox.failures import Failure

if TYPE_CHECKING:
    import gymnasium as gym


class Pilot(Protocol):
    """Plans for moments of several episodes."""

    @property
    def steps(self) -> int:
        """Steps of the model so far."""

    @property
    def report(self) -> Report | None:
        """What plans are made with, once that is known."""

    def state(self, env: "gym.Env[Any, Any]", observation: Any) -> Any:
        """Return where an environment stands, as plans begin from it."""

    def plan(self, moments: Sequence[Moment]) -> list[Plan]:
        """Return the next actions at each moment."""


class Cost(NamedTuple):
    """What plans took: decisions, those without a plan, steps of the model, and seconds."""

    decisions: int = 0
    failures: int = 0
    model_steps: int = 0
    seconds: float = 0.0

    def plus(self, other: "Cost") -> "Cost":
        """Return the sum of two costs."""
        return Cost(
            self.decisions + other.decisions,
            self.failures + other.failures,
            self.model_steps + other.model_steps,
            self.seconds + other.seconds,
        )


class Episode(BaseModel):
    """What an episode came to, and what planning it took.

    `seconds` and `model_steps` are shares of those of all episodes that were planned together.
    In `failures` decisions no plan could be made; `failure` is the first.
    """

    model_config = ConfigDict(frozen=True)

    number: int
    returned: float
    length: int
    decisions: int = 0
    model_steps: int = 0
    seconds: float = 0.0
    failures: int = 0
    failure: Failure | None = None

    @property
    def cost(self) -> Cost:
        """What its plans took."""
        return Cost(self.decisions, self.failures, self.model_steps, self.seconds)


class Played(NamedTuple):
    """An episode that is over, and its actions."""

    episode: Episode
    actions: list[Any]


class Standing(NamedTuple):
    """How far an episode is that is not over."""

    number: int
    length: int
    returned: float


class Round(NamedTuple):
    """What playing on came to, up to where every episode is over or needs new actions."""

    finished: list[Played]
    standings: list[Standing]
    cost: Cost
    report: Report | None


Rounds = Generator[Round, None, None]


def play(
    task: Task, numbers: Iterable[int], pilot: Pilot | None = None, *, lanes: int = 1
) -> Rounds:
    """Play episodes, so many at a time: with plans, or at random.

    An episode depends on the seed and its number only, not on those beside it.
    Where there is no plan the action is random.
    """
    waiting = iter(numbers)
    flights: list[_Flight] = []
    try:
        while True:
            for number in islice(waiting, lanes - len(flights)):
                flights.append(_Flight(task, number))
            if not flights:
                return
            cost = _decide(flights, pilot) if pilot else Cost()
            for flight in flights:
                flight.go_on()
            yield Round(
                [flight.played for flight in flights if flight.over],
                [flight.standing for flight in flights if not flight.over],
                cost,
                pilot.report if pilot else None,
            )
            flights = [flight for flight in flights if not flight.ended()]
    finally:
        for flight in flights:
            flight.env.close()


class _Flight:
    """An episode that is being played, in an environment of its own."""

    def __init__(self, task: Task, number: int) -> None:
        reset, random = seeds_of(task.seed, number)
        self.number = number
        self.over = False
        self.queue: deque[Any] = deque()
        self.env = task.make()
        self._task = task
        self._space = deepcopy(self.env.action_space)
        self._space.seed(random)
        self._cost = Cost()
        self._failure: Failure | None = None
        self._returned = 0.0
        self._actions: list[Any] = []
        self._observation, _ = self.env.reset(seed=reset)

    @property
    def standing(self) -> Standing:
        """How far the episode is."""
        return Standing(self.number, len(self._actions), self._returned)

    @property
    def played(self) -> Played:
        """What the episode came to."""
        cost = self._cost._asdict()
        episode = Episode(**self.standing._asdict(), **cost, failure=self._failure)
        return Played(episode, self._actions)

    def moment(self, pilot: Pilot) -> Moment:
        """Return where the episode stands."""
        state = pilot.state(self.env, self._observation)
        horizon = self._task.limit - len(self._actions)
        return Moment(
            self.number, self._cost.decisions, state, horizon, self._task.allowed(self.env)
        )

    def follow(self, plan: Plan, seconds: float, steps: int) -> None:
        """Take in a plan and its share of what planning took."""
        self.queue.extend(plan.actions)
        self._failure = self._failure or plan.failure
        self._cost = self._cost.plus(Cost(1, int(plan.failure is not None), steps, seconds))

    def go_on(self) -> None:
        """Play what is planned, or one random action."""
        if not self.queue:
            self.queue.append(random_action(self._space, self._task.allowed(self.env)))
        while self.queue and not self.over:
            action = self.queue.popleft()
            self._actions.append(action)
            result = self.env.step(deepcopy(action))
            self._observation, reward, terminated, truncated, _ = result
            self._returned += _number(reward)
            self.over = bool(terminated or truncated) or len(self._actions) >= self._task.limit

    def ended(self) -> bool:
        """Whether the episode is over; its environment is then closed."""
        if self.over:
            self.env.close()
        return self.over


def _decide(flights: Sequence[_Flight], pilot: Pilot) -> Cost:
    """Have new actions planned for every episode, and share out what that took."""
    began, before = time.perf_counter(), pilot.steps
    plans = pilot.plan([flight.moment(pilot) for flight in flights])
    seconds, steps = time.perf_counter() - began, pilot.steps - before
    each, rest = divmod(steps, len(flights))
    for place, (flight, plan) in enumerate(zip(flights, plans, strict=True)):
        flight.follow(plan, seconds / len(flights), each + (place < rest))
    failures = sum(plan.failure is not None for plan in plans)
    return Cost(len(flights), failures, steps, seconds)


def _number(reward: Any) -> float:
    """Return a reward, which some environments give as an array of one."""
    values = np.asarray(reward, dtype=np.float64)
    if values.size != 1 or not isfinite(values.item()):
        raise CwmError(f"the environment breaks its own rules: it gave the reward {reward}")
    return values.item()
