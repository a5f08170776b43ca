"""Value iteration on a grid, for models with few real-valued components.

A regular grid covers the recorded range of every component. One batched step of the model from
each point and action gives the rewards and the next states, and the value of a next state is the
multilinear interpolation of the values at the corners of its cell (Davies, "Multidimensional
triangulation and interpolation for reinforcement learning", 1996). With the nearest point instead,
a state that moves less than a cell per step would never reach another value. Decisions look a few
steps ahead in the model itself, so that errors of the interpolation count only after these steps.
Near the end of an episode, values depend on the number of remaining steps.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, ClassVar, NamedTuple

import numpy as np

from cwm_cli.data.spaces import Space
from cwm_cli.planning.cem import is_bounded
from cwm_cli.planning.model import LARGEST, Model
from cwm_cli.planning.planner import Planner, Situation, Unsuited
from cwm_cli.planning.tabular import MAX_VALUES


@dataclass(frozen=True)
class StateGrid(Planner):
    """Value iteration on a regular grid of states, with lookahead in the model.

    The grid is refined until the decisions at recorded states no longer change, or until it has
    `points` points. The model must be deterministic, and observations must be its whole state.
    """

    NEEDS: ClassVar[str] = "discrete actions, or continuous ones within finite bounds"
    ALONE: ClassVar[bool] = True

    points: int = 100_000
    """Maximum number of grid points. Fewer are used if there are many actions or components."""
    actions: int = 21
    """Maximum number of actions. The range of continuous actions is divided into equal steps."""
    components: int = 6
    """Maximum number of components that vary; an angle given as cosine and sine counts as one."""
    discount: float = 0.995
    """Discount factor per step (gamma)."""
    lookahead: int = 20
    """Maximum number of model steps per decision. It limits the depth of the lookahead, which is at
    least one step."""
    tolerance: float = 0.01
    """Difference of values that makes a decision worse, and that ends value iteration, as a
    fraction of the range of all values. Value iteration ends at a tenth of it."""
    _tables: dict[int, "GridValues"] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.points, self.actions, self.components, self.lookahead) < 1:
            raise ValueError("points, actions, components and lookahead must be at least 1")
        if not 0 <= self.discount < 1:
            raise ValueError("discount must be at least 0 and less than 1")
        if not self.tolerance > 0:
            raise ValueError("tolerance must be positive")

    @classmethod
    def serves(cls, action_space: Space) -> bool:
        """Return whether actions are discrete, or real numbers within finite bounds."""
        return action_space.kind == "discrete" or is_bounded(action_space)

    @classmethod
    def rank(cls, observation_space: Space, action_space: Space) -> float | None:
        """Return 1 for observations of at most 12 real numbers: `plan` refuses most larger ones."""
        is_small = observation_space.is_float and observation_space.size <= 12
        return 1.0 if is_small and cls.serves(action_space) else None

    def plan(self, model: Model, situations: Sequence[Situation]) -> list[list[Any]]:
        """Return the next action of each situation."""
        values = self._tables.get(id(model))
        if values is None:
            values = self._tables[id(model)] = GridValues(model, self)
        return [[values.decide(situation)] for situation in situations]


class Coordinates:
    """Converts observations to the coordinates of a grid, and back.

    Two components whose squares sum to 1 in every example are the cosine and sine of an angle,
    which is one periodic coordinate. Components that are constant in the examples are left out.

    Attributes:
        low: Lower end of each coordinate in the examples; -pi of angles.
        high: Upper end of each coordinate; pi of angles.
        periodic: (coordinates,) bool, whether the ends are the same state.
    """

    def __init__(self, examples: np.ndarray) -> None:
        self._constants = examples[0].copy()
        self._type = examples.dtype
        left = np.flatnonzero(np.ptp(examples, axis=0) > 0).tolist()
        self._places: list[tuple[int, ...]] = []
        while left:
            place = left.pop(0)
            radii = np.square(examples[:, [place]]) + np.square(examples[:, left])
            pairs = np.flatnonzero((np.abs(radii - 1) < 1e-5).all(axis=0))
            self._places.append((place, left.pop(pairs[0])) if len(pairs) else (place,))
        self.periodic = np.array([len(places) == 2 for places in self._places])
        coordinates = self.encode(examples.T)
        self.low = np.where(self.periodic, -np.pi, coordinates.min(axis=1))
        self.high = np.where(self.periodic, np.pi, coordinates.max(axis=1))

    def __len__(self) -> int:
        return len(self._places)

    def encode(self, observations: np.ndarray) -> np.ndarray:
        """Return coordinates (coordinates, lanes) of observations (components, lanes)."""
        coordinates = np.empty((len(self._places), observations.shape[1]))
        for row, (first, *second) in zip(coordinates, self._places, strict=True):
            row[:] = observations[first]
            if second:
                np.arctan2(observations[second[0]], row, out=row)
        return coordinates

    def decode(self, coordinates: np.ndarray) -> np.ndarray:
        """Return observations (components, lanes) of coordinates (coordinates, lanes)."""
        observations = np.repeat(
            self._constants[:, None].astype(float), coordinates.shape[1], axis=1
        )
        for row, (first, *second) in zip(coordinates, self._places, strict=True):
            observations[first] = np.cos(row) if second else row
            for place in second:
                observations[place] = np.sin(row)
        return self.round(observations)

    def round(self, observations: np.ndarray) -> np.ndarray:
        """Return observations in the precision of recorded ones.

        Observations of another process have it, and only then can it repeat all steps exactly.
        """
        rounded: np.ndarray = np.asarray(observations).astype(self._type).astype(float)
        return rounded


class Corners(NamedTuple):
    """The corners of the cells around states: numbers of points, and their weights.

    Both arrays have the shape (corners, lanes); the weights of a lane sum to 1.
    """

    numbers: np.ndarray
    weights: np.ndarray

    def interpolate(self, values: np.ndarray) -> np.ndarray:
        """Return the weighted means (lanes,) of the values of the points."""
        total = np.zeros(self.numbers.shape[1:])
        for numbers, weights in zip(self.numbers, self.weights, strict=True):
            total += weights * values[numbers]
        return total


class Lattice:
    """The points of a regular grid, numbered from 0, and the corners of its cells."""

    def __init__(self, coordinates: Coordinates, count: int) -> None:
        self._count, self.size = count, count ** len(coordinates)
        self._low, self._periodic = coordinates.low, coordinates.periodic
        # The last point of an angle would be the first one again.
        self._cell = (coordinates.high - self._low) / (count - 1 + self._periodic)
        self._strides = count ** np.arange(len(coordinates))[::-1]

    def points(self) -> np.ndarray:
        """Return the coordinates of all points (coordinates, points)."""
        numbers = np.arange(self.size) // self._strides[:, None] % self._count
        points: np.ndarray = self._low[:, None] + numbers * self._cell[:, None]
        return points

    def corners(self, coordinates: np.ndarray) -> Corners:
        """Return the corners around states (coordinates, lanes); outside, those at the edge."""
        lanes = coordinates.shape[1]
        numbers, weights = np.zeros((1, lanes), np.intp), np.ones((1, lanes))
        axes = zip(coordinates, self._low, self._cell, self._periodic, self._strides, strict=True)
        for values, low, cell, periodic, stride in axes:
            place = (values - low) / cell
            if not periodic:
                np.clip(place, 0, self._count - 1, out=place)
            first = np.floor(place).astype(np.intp)
            if not periodic:
                np.minimum(first, self._count - 2, out=first)
            upper = place - first
            below, above = first % self._count * stride, (first + 1) % self._count * stride
            numbers = np.concatenate([numbers + below, numbers + above])
            weights = np.concatenate([weights * (1 - upper), weights * upper])
        return Corners(numbers, weights)


class GridValues:
    """The values of the states of a model, and the actions that they recommend.

    Raises:
        Unsuited: If the model has no such values.
    """

    def __init__(self, model: Model, options: StateGrid) -> None:
        self._model, self._options = model, options
        if model.remembers or model.hides:
            raise Unsuited("has states that observations do not show")
        if not model.deterministic:
            raise Unsuited("draws random numbers")
        if model.examples is None or model.examples.ndim != 2 or not len(model.examples):
            raise Unsuited("has no recorded observations of real numbers")
        examples = model.examples
        self._coordinates = Coordinates(examples)
        self._actions = _list_actions(model.action_space, options.actions)
        if not 1 <= len(self._coordinates) <= options.components:
            count = len(self._coordinates)
            raise Unsuited(f"has {count} components that vary, not 1 to {options.components}")
        self._lattice = Lattice(self._coordinates, 2)
        self._values = np.zeros(self._lattice.size)
        chosen = np.linspace(0, len(examples) - 1, 500).astype(int)
        self._refine(examples[chosen].astype(float))
        if not np.ptp(self._values) > 1e-9 * np.abs(self._values).max():
            raise Unsuited("has the same value in all states")

    def decide(self, situation: Situation) -> Any:
        """Return the best first action of all sequences of a few actions."""
        model, discount = self._model, self._options.discount
        every = range(len(self._actions))
        first = [n for n in every if not situation.valid or self._actions[n] in situation.valid]
        # With the step limit, and without it, which decides between equal returns.
        returns = np.full((2, len(self._actions)), -np.inf)
        # Each path has its state, its return, the discount so far, and its first action.
        paths: list[tuple[Any, float, int | None]] = [(situation.state, 0.0, None)]
        factor, steps, left = 1.0, len(first), situation.horizon
        for depth in range(situation.horizon):
            if depth and steps + len(paths) * len(every) > self._options.lookahead:
                break
            steps += len(paths) * len(every) if depth else 0
            longer: list[tuple[Any, float, int | None]] = []
            for state, total, begin in paths:
                for number in every if depth else first:
                    model.stand(state)
                    step = model.step(self._actions[number])
                    own, start = total + factor * step.reward, number if begin is None else begin
                    if step.terminated:
                        returns[:, start] = np.maximum(returns[:, start], own)
                    else:
                        after = self._coordinates.round(step.observation)
                        longer.append((after, own, start))
            paths, factor, left = longer, factor * discount, left - 1
            if not paths:
                break
        if paths:
            ends = np.array([state for state, _, _ in paths], float).reshape(len(paths), -1).T
            corners, tables = self._corners(ends), (self._values_after(left), self._values)
            values = np.stack([corners.interpolate(table) for table in tables], 1)
            for (_, total, begin), value in zip(paths, values, strict=True):
                assert begin is not None
                returns[:, begin] = np.maximum(returns[:, begin], total + factor * value)
        # The last digits of equal returns can differ in another process, which repeats decisions.
        slack, (limited, endless) = 1e-9 * np.ptp(self._values), returns
        endless[limited < limited.max() - slack] = -np.inf
        return self._actions[int((endless >= endless.max() - slack).argmax())]

    def _corners(self, observations: np.ndarray) -> Corners:
        return self._lattice.corners(self._coordinates.encode(observations))

    def _values_after(self, steps: int) -> np.ndarray:
        """Return the values of all points with n remaining steps.

        If n is large, these are the values without a step limit.
        """
        if steps >= MAX_VALUES // self._lattice.size:
            return self._values
        while len(self._by_steps) <= steps:
            self._by_steps.append(self._returns(self._by_steps[-1]).max(axis=0))
            self._model.counter[0] += 1  # the sandbox stops a process without progress
        return self._by_steps[steps]

    def _returns(self, values: np.ndarray) -> np.ndarray:
        """Return the values of all actions in all points, (actions, points)."""
        returns: np.ndarray = self._rewards + self._outcomes.interpolate(values)
        return returns

    def _refine(self, examples: np.ndarray) -> None:
        """Double the points along each coordinate until the decisions at examples stay."""
        observations = np.ascontiguousarray(examples.T)
        rewards, following = self._step(observations)
        before = None
        for count in self._counts():
            self._solve(count)
            values = rewards + self._options.discount * np.array(
                [
                    np.where(ends, 0.0, self._corners(states).interpolate(self._values))
                    for states, ends in following
                ]
            )
            loss = self._options.tolerance * np.ptp(self._values)
            if before is not None:
                worse = values[before, np.arange(len(before))] < values.max(axis=0) - loss
                if worse.mean() < 0.02:
                    break
            before = values.argmax(axis=0)

    def _counts(self) -> list[int]:
        """Return the numbers of points along each coordinate, from coarse to fine."""
        size, actions = len(self._coordinates), len(self._actions)
        entries = 6_000_000  # of the arrays of corners, about 100 MB
        points = min(self._options.points, entries // (actions * 2**size))
        finest = int(points ** (1 / size) + 1e-9)  # the root of 1000 may be 9.999...
        if finest < 4:
            raise Unsuited(f"needs more than {points} points for its {size} components")
        counts = [min(finest, 1000)]
        # Coarser grids save no time, and may agree with each other on worse decisions.
        while (counts[0] // 2) ** size >= 1000:
            counts.insert(0, counts[0] // 2)
        return counts

    def _solve(self, count: int) -> None:
        """Compute the values of a grid, beginning with those of the coarser grid."""
        lattice, options = Lattice(self._coordinates, count), self._options
        observations = self._coordinates.decode(lattice.points())
        values = self._corners(observations).interpolate(self._values)
        self._rewards, following = self._step(observations)
        corners = []
        for states, ends in following:
            numbers, weights = lattice.corners(self._coordinates.encode(states))
            corners.append((numbers, weights * np.where(ends, 0.0, options.discount)))
        self._outcomes = Corners(
            np.stack([numbers for numbers, _ in corners], 1),
            np.stack([weights for _, weights in corners], 1),
        )
        lanes = np.arange(lattice.size)
        for sweep in range(1000):
            returns = self._returns(values)
            best = returns.argmax(axis=0)
            improved = returns[best, lanes]
            change, values = np.ptp(improved - values), improved
            # Equal changes of all values change no decision (Puterman, 1994, section 6.6). The
            # first sweep may not know yet where episodes end.
            spread = max(np.ptp(values), 1e-9 * np.abs(values).max())
            if sweep and change <= options.tolerance / 10 * spread:
                break
            # Modified policy iteration (Puterman and Shin, 1978): evaluating the best actions
            # for a few sweeps takes less time than comparing all actions in each sweep.
            chosen = Corners(*(part[:, best, lanes] for part in self._outcomes))
            own = self._rewards[best, lanes]
            for _ in range(5):
                values = own + chosen.interpolate(values)
            self._model.counter[0] += 1  # the sandbox stops a process without progress
        self._lattice, self._values = lattice, values
        self._by_steps = [np.zeros(lattice.size)]

    def _step(
        self, observations: np.ndarray
    ) -> tuple[np.ndarray, list[tuple[np.ndarray, np.ndarray]]]:
        """Take every action in each state (components, lanes).

        Returns:
            Rewards (actions, lanes), and for each action the next observations and whether the
            episode ended. The next observation after the end is the one before.
        """
        lanes = observations.shape[1]
        rewards, following = np.empty((len(self._actions), lanes)), []
        for row, action in zip(rewards, self._actions, strict=True):
            states, row[:], ends = self._model.step_all(observations, np.array([action]))
            following.append((np.where(ends, observations, states), ends))
        found = np.array([states for states, _ in following])
        if not (np.abs(rewards).max() < LARGEST and np.isfinite(found).all()):
            raise Unsuited("predicts numbers that are not finite")
        return rewards, following


def _list_actions(space: Space, most: int) -> list[Any]:
    """Return all discrete actions, or combinations of equally spaced continuous ones."""
    if space.kind == "discrete":
        if space.count > most:
            raise Unsuited(f"has more than {most} actions")
        return list(range(int(space.low[0]), int(space.high[0]) + 1))
    parts = int(most ** (1 / space.size) + 1e-9)
    if parts < 3:
        raise Unsuited(f"has actions of {space.size} components, too many for {most} values")
    parts -= 1 - parts % 2  # an odd number, so that the middle is one of them: often no action
    axes = [np.linspace(*bounds, parts) for bounds in zip(space.low, space.high, strict=True)]
    return [np.array(action).reshape(space.shape) for action in product(*axes)]
