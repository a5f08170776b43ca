"""Environments as models for planners.

`Simulator` steps a copy of the environment. `CachingSimulator` takes no step twice; it requires
that observations identify the states.
"""

from collections.abc import Callable, Iterable, Sequence
from math import isfinite
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from cwm_cli.data.spaces import Space
from cwm_cli.envs.simulators.saving import GLOBAL, reseed
from cwm_cli.envs.spec import Rewinder, space_of
from cwm_cli.envs.tasks import reward_number
from cwm_cli.planning.model import Counter, Model, Named, Step, copy_value

if TYPE_CHECKING:
    import gymnasium as gym

_CHANCE = 1
"""Separates the random numbers of a simulator from the planner's."""

Binder = Callable[["gym.Env[Any, Any]"], Rewinder]
"""Makes the rewinder of an environment."""


class Simulator(Model):
    """A model that steps its own instance of an environment; states are saves of its rewinder.

    Restoring a state leaves the random generators unchanged, so that planning does not foresee the
    random events of the played environment. An episode ends only by `terminated`, never by a time
    limit.

    Args:
        env: The instance to step.
        bind: Makes rewinders.
        valid_actions: Return the valid actions of an environment, None if all are valid.
        deterministic: Whether equal actions have equal results.
        observed: Whether observations identify the states.
        hides: Whether observations lack parts of the state.
    """

    def __init__(
        self,
        env: "gym.Env[Any, Any]",
        bind: Binder,
        *,
        valid_actions: Callable[["gym.Env[Any, Any]"], Sequence[int] | None] | None = None,
        deterministic: bool = False,
        observed: bool = False,
        hides: bool = False,
    ) -> None:
        self.action_space: Space = space_of(env.action_space, "actions")
        self.deterministic = deterministic
        self.counter: Counter = [0]
        self.rewinder = bind(env)
        self._env = env.unwrapped
        self._step = self._env.step
        self._bind = bind
        self._valid_actions = valid_actions
        self._observed = observed
        self.hides = hides
        self._seen: Any = None
        self._played: WeakKeyDictionary[Any, Rewinder] = WeakKeyDictionary()

    def state_of(self, env: "gym.Env[Any, Any]", observation: Any) -> Any:
        """Return the state of another instance with the same arguments."""
        if env not in self._played:
            self._played[env] = self._bind(env)
        return self._named(observation, self._played[env].save(chance=False))

    def stand(self, state: Any) -> None:
        """Restore a state."""
        if isinstance(state, Named):
            self._seen, state = state, state.state
        self.rewinder.load(state, chance=False)

    def here(self) -> Any:
        """Return the current state."""
        if isinstance(self._seen, Named):
            return self._seen
        return self._named(self._seen, self.rewinder.save(chance=False))

    def draw_from(self, key: Sequence[int]) -> None:
        """Seed the random generators from a key, so that no decision depends on earlier ones."""
        super().draw_from(key)
        rng = np.random.default_rng([*key, _CHANCE])
        for generator in self.rewinder.generators():
            if generator not in GLOBAL:
                reseed(generator, rng)

    def step(self, action: Any) -> Step:
        """Take an action."""
        self.counter[0] += 1
        observation, reward, terminated, _, _ = self._step(action)
        self._seen = observation
        return Step(copy_value(observation), _number(reward), bool(terminated), self._valid())

    def play(self, actions: Iterable[Any], discount: float = 1.0) -> float:
        """Take actions until the episode ends; return the discounted sum of rewards."""
        step, count, total, factor = self._step, 0, 0.0, 1.0
        for action in actions:
            count += 1
            self._seen, reward, terminated, _, _ = step(action)
            total += factor * (reward if type(reward) is float else _number(reward))
            if terminated:
                break
            factor *= discount
        self.counter[0] += count
        return total if isfinite(total) else reward_number(total)

    def returns(self, states: Sequence[Any], plans: np.ndarray, draws: int = 0) -> np.ndarray:
        """Return the sums of rewards of plans from each state, in a batch if the rewinder can."""
        answer = self.rewinder.returns(states, plans) if not draws else None
        if answer is not None:
            self.counter[0] += answer[1]
            return answer[0]
        return super().returns(states, plans, draws)

    def _named(self, observation: Any, state: Any) -> Any:
        return Named(observation, state) if self._observed else state

    def _valid(self) -> tuple[int, ...] | None:
        valid = self._valid_actions(self._env) if self._valid_actions else None
        return None if valid is None else tuple(valid)


def _number(reward: Any) -> float:
    return reward if type(reward) is float and isfinite(reward) else reward_number(reward)


class Place:
    """A state, and the result of each action in it."""

    __slots__ = ("state", "steps")

    def __init__(self, state: Named) -> None:
        self.state = state
        self.steps: dict[int, tuple[Place, Step]] = {}


class CachingSimulator(Model):
    """A cache for a deterministic simulator whose observations identify its states."""

    deterministic = True

    def __init__(self, simulator: Simulator) -> None:
        self._simulator = simulator
        self._places: dict[Named, Place] = {}
        self._here: Any = None
        self.action_space = simulator.action_space
        self.counter: Counter = simulator.counter

    @property
    def rewinder(self) -> Rewinder:
        """The rewinder of the simulated environment."""
        return self._simulator.rewinder

    def state_of(self, env: "gym.Env[Any, Any]", observation: Any) -> Any:
        """Return the state of another instance with the same arguments."""
        return self._simulator.state_of(env, observation)

    def stand(self, state: Any) -> None:
        """Restore a state."""
        self._here = self._place(state)

    def here(self) -> Any:
        """Return the current state."""
        return self._here.state

    def step(self, action: Any) -> Step:
        """Take an action."""
        self.counter[0] += 1
        self._here, step = self._here.steps.get(action) or self._take(self._here, action)
        return step

    def play(self, actions: Iterable[Any], discount: float = 1.0) -> float:
        """Take actions until the episode ends; return the discounted sum of rewards."""
        here, count, total, factor = self._here, 0, 0.0, 1.0
        for action in actions:
            count += 1
            here, step = here.steps.get(action) or self._take(here, action)
            total += factor * step.reward
            if step.terminated:
                break
            factor *= discount
        self._here = here
        self.counter[0] += count
        return total

    def returns(self, states: Sequence[Any], plans: np.ndarray, draws: int = 0) -> np.ndarray:
        """Return the sums of rewards of plans from each state."""
        return self._simulator.returns([state.state for state in states], plans)

    def _take(self, here: Place, action: Any) -> tuple[Place, Step]:
        simulator = self._simulator
        simulator.stand(here.state)
        step = simulator.step(action)
        self.counter[0] -= 1  # `step` and `play` have counted it
        taken = here.steps[action] = self._place(simulator.here()), step
        return taken

    def _place(self, state: Named) -> Place:
        place = self._places.get(state)
        if place is None:
            if len(self._places) >= 200_000:  # limits the memory
                self._places.clear()
            place = self._places[state] = Place(state)
        return place
