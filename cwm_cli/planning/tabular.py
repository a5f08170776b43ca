"""Value iteration over all states that can be reached, for small models that answer alike."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from cwm_cli.data.spaces import Space
from cwm_cli.planning.induction import Dynamics
from cwm_cli.planning.model import Model
from cwm_cli.planning.planner import Situation, Unsuited
from cwm_cli.planning.states import countable, name
from cwm_cli.planning.tree import highest

LARGEST = 4_000_000
"""Values that are remembered for different numbers of steps to go."""

MOST_SWEEPS = 10_000
"""Steps to go beyond which values count as converged."""

_SAMPLE = 300


@dataclass(frozen=True)
class Tabular:
    """Plans the action of the highest value, once every state that can be reached was tried.

    Values are those of the steps that the episode can still last. Where they
    do not fit in memory, only those of its last steps are.
    """

    NEEDS: ClassVar[str] = "discrete actions"

    states: int = 100_000
    discount: float = 0.99
    tolerance: float = 1e-6
    _tables: dict[int, "Table"] = field(default_factory=dict, init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.states < 1:
            raise ValueError("states must be at least 1")
        if not 0 <= self.discount <= 1:
            raise ValueError("discount must be from 0 to 1")
        if not self.tolerance >= 0:
            raise ValueError("tolerance must not be negative")

    @staticmethod
    def serves(action_space: Space) -> bool:
        """Whether this planner can choose among such actions."""
        return action_space.kind == "discrete"

    def plan(self, model: Model, situations: Sequence[Situation]) -> list[list[Any]]:
        """Return the next action of each situation."""
        if not model.deterministic:
            raise Unsuited("draws random numbers")
        table = self._tables.setdefault(id(model), Table(model, self))
        numbers = [table.start(situation) for situation in situations]
        table.close()
        pairs = zip(numbers, situations, strict=True)
        return [[table.action(number, situation)] for number, situation in pairs]


class Table:
    """All states of a model, what every action leads to, and values by steps to go.

    State 0 is the end of an episode.
    """

    def __init__(self, model: Model, options: Tabular) -> None:
        low, high = model.action_space.low[0], model.action_space.high[0]
        self._all = range(int(low), int(high) + 1)
        self._model = model
        self._options = options
        self._numbers: dict[Any, int] = {}
        self._states: list[Any] = [None]
        self._valid: list[Sequence[int]] = [()]
        self._firsts = [0, 0]
        self._rewards: list[float] = []
        self._following: list[int] = []
        self._dynamics: Dynamics | None = None
        self._values: list[np.ndarray] = []
        self._sweeps = 0
        self._converged = False

    def start(self, situation: Situation) -> int:
        """Return the number of the state of a situation."""
        self._model.stand(situation.state)
        return self.add(self._model.here(), situation.valid)

    def add(self, state: Any, valid: tuple[int, ...] | None) -> int:
        """Return the number of a state, a new one if it was not met before."""
        number = self._numbers.setdefault(name(state), len(self._states))
        if number == len(self._states):
            self._states.append(state)
            self._valid.append(valid or self._all)
        return number

    def close(self) -> None:
        """Take every action in every state; `Unsuited` when new ones keep coming."""
        tried = len(self._firsts) - 1
        if tried == len(self._states):
            return
        while tried < len(self._states):
            self._try(tried)
            tried += 1
            self._check(tried)
        ones = np.ones(len(self._following))
        counts = np.diff(self._firsts)
        self._dynamics = Dynamics.of(counts, self._rewards, ones.astype(int), self._following, ones)
        self._values = [np.zeros(len(self._states))]
        self._sweeps, self._converged = 0, False

    def action(self, number: int, situation: Situation) -> int:
        """Return an action of the highest value in a state, ties at random."""
        start, valid = self._firsts[number], situation.valid
        places = [
            place
            for place, action in enumerate(self._valid[number])
            if not valid or action in valid
        ]
        values, discount = self._to_go(situation.horizon - 1), self._options.discount
        backed_up = [
            self._rewards[start + place] + discount * float(values[self._following[start + place]])
            for place in places
        ]
        tie = int(situation.rng.integers(1 << 16))
        return self._valid[number][places[highest(backed_up, tie)]]

    def _try(self, number: int) -> None:
        """Take every action in a state."""
        model = self._model
        for action in self._valid[number]:
            model.stand(self._states[number])
            _, reward, terminated, valid = model.step(action)
            self._rewards.append(reward)
            self._following.append(0 if terminated else self.add(model.here(), valid))
        self._firsts.append(len(self._following))

    def _check(self, tried: int) -> None:
        """Refuse too many states, and real-valued ones of which most are new."""
        found = len(self._states) - 1
        opening = tried >= _SAMPLE and 2 * found > len(self._following)
        if found > self._options.states or (opening and not countable(self._states[-1])):
            raise Unsuited(f"does not close within {min(found, self._options.states)} states")

    def _to_go(self, steps: int) -> np.ndarray:
        """Return the values with so many steps to go, or with the most that were needed so far."""
        dynamics, values = self._dynamics, self._values
        room = max(2, LARGEST // len(self._states))
        while dynamics and self._sweeps < min(steps, MOST_SWEEPS) and not self._converged:
            improved = dynamics.improve(values[-1], self._options.discount)
            change = np.abs(improved - values[-1]).max()
            self._converged = bool(change <= self._options.tolerance)
            self._sweeps += 1
            if len(values) == room:
                values.pop()
            values.append(improved)
        return values[min(steps, len(values) - 1)]
