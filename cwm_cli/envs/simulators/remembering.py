"""A simulator that takes no step twice."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from cwm_cli.envs.simulators.simulator import Simulator
from cwm_cli.envs.spec import Rewinder
from cwm_cli.planning.model import Batch, Counter, Step
from cwm_cli.planning.states import Named

if TYPE_CHECKING:
    import gymnasium as gym

MOST = 200_000
"""States whose steps are remembered at most."""


class Place:
    """A state, and what each action led to from there."""

    __slots__ = ("state", "steps")

    def __init__(self, state: Named) -> None:
        self.state = state
        self.steps: dict[int, tuple[Place, Step]] = {}


class Remembering:
    """Asks a deterministic simulator, whose observations tell its states, once for every step."""

    batch: Batch | None = None
    deterministic = True

    def __init__(self, simulator: Simulator) -> None:
        self._simulator = simulator
        self._places: dict[Named, Place] = {}
        self._here: Any = None
        self.action_space = simulator.action_space
        self.counter: Counter = simulator.counter

    @property
    def rewinder(self) -> Rewinder:
        """What saves and restores the environment."""
        return self._simulator.rewinder

    def state_of(self, env: "gym.Env[Any, Any]", observation: Any) -> Any:
        """Return the state in which an environment is that was made with the same arguments."""
        return self._simulator.state_of(env, observation)

    def stand(self, state: Any) -> None:
        """Stand at a state."""
        self._here = self._place(state)

    def here(self) -> Any:
        """Return the state."""
        return self._here.state

    def step(self, action: Any) -> Step:
        """Take an action."""
        self.counter[0] += 1
        self._here, step = self._here.steps.get(action) or self._take(self._here, action)
        return step

    def play(self, actions: Iterable[Any], discount: float = 1.0) -> float:
        """Take actions until they or the episode end; return the discounted sum of rewards."""
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

    def returns(self, states: Sequence[Any], plans: np.ndarray) -> np.ndarray:
        """Return the sums of rewards of plans from each state."""
        return self._simulator.returns([state.state for state in states], plans)

    def _take(self, here: Place, action: Any) -> tuple[Place, Step]:
        """Take an action that was not taken from there before."""
        simulator = self._simulator
        simulator.stand(here.state)
        step = simulator.step(action)
        self.counter[0] -= 1  # it is counted where it was asked for
        taken = here.steps[action] = self._place(simulator.here()), step
        return taken

    def _place(self, state: Named) -> Place:
        """Return what is remembered of a state."""
        place = self._places.get(state)
        if place is None:
            if len(self._places) >= MOST:
                self._places.clear()
            place = self._places[state] = Place(state)
        return place
