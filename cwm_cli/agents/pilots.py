"""Who plans while episodes are played: a world model, or the true environment itself."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cwm_cli.envs.simulators import Remembering, Simulator
from cwm_cli.envs.simulators.chance import GLOBAL, reseed
from cwm_cli.errors import CwmError
from cwm_cli.planning import Decider, Moment
from cwm_cli.registry import find
from cwm_cli.sandbox import Plan, Report, Session

if TYPE_CHECKING:
    import gymnasium as gym

_CHANCE = 1
"""Tells the random numbers of the simulator from those of the planner."""


class Planning(NamedTuple):
    """A planner by name, and its options."""

    name: str
    options: Mapping[str, Any]


class WorldModel:
    """Plans with a program, from observations."""

    def __init__(self, session: Session) -> None:
        self._session = session

    @property
    def steps(self) -> int:
        """Steps of the program so far."""
        return self._session.steps

    @property
    def report(self) -> Report | None:
        """What plans are made with, once that is known."""
        return self._session.report

    def state(self, env: "gym.Env[Any, Any]", observation: Any) -> Any:
        """Return the observation."""
        return observation

    def plan(self, moments: Sequence[Moment]) -> list[Plan]:
        """Return the next actions at each moment."""
        try:
            return self._session.plan(moments)
        except ValueError as error:
            raise CwmError(f"the environment breaks its own rules: {error}") from error


class Oracle:
    """Plans in the true environment, from its saved states."""

    def __init__(
        self, simulator: Simulator | Remembering, planners: Sequence[Planning], seed: int
    ) -> None:
        made = [find("planner", name)(**options) for name, options in planners]
        self._names = [name for name, _ in planners]
        self._simulator = simulator
        self._seed = seed
        begin = None if simulator.deterministic else self._begin
        self._decider = Decider(made, simulator, seed=seed, begin=begin)
        self.report: Report | None = None

    @property
    def steps(self) -> int:
        """Steps of the environment that plans took so far."""
        return self._simulator.counter[0]

    def state(self, env: "gym.Env[Any, Any]", observation: Any) -> Any:
        """Save where the environment stands."""
        return self._simulator.state_of(env, observation)

    def plan(self, moments: Sequence[Moment]) -> list[Plan]:
        """Return the next actions at each moment."""
        plans = self._decider.plan(moments)
        reasons = self._decider.passed_over
        notes = (
            f"not {name}: it {reason}" for name, reason in zip(self._names, reasons, strict=False)
        )
        self.report = Report(self._names[len(reasons)], ("simulator",), "; ".join(notes))
        return [Plan(actions, None) for actions in plans]

    def _begin(self, moment: Moment) -> None:
        """Have chances of its own for each decision, so that none depends on those beside it."""
        rng = np.random.default_rng([self._seed, moment.episode, moment.decision, _CHANCE])
        for generator in self._simulator.rewinder.generators():
            if generator not in GLOBAL:
                reseed(generator, rng)
