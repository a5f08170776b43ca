"""Trees of many situations, grown side by side on a model that steps many states at once."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from cwm_cli.planning.draws import BLOCK, DEPTHS, Draws
from cwm_cli.planning.model import Batch, Model, Unbatched
from cwm_cli.planning.planner import Situation
from cwm_cli.planning.tree import UNTRIED, Effort, Tried, bonuses

WORTHWHILE = 512
"""With fewer situations one tree after the other can be faster: few rollouts are long."""

LARGEST = 2_000_000
"""States that the trees grown at once may have, so that they fit in the memory of a sandbox."""


_ENDED_SHARE = 0.1
"""Rollouts that have ended go on unheeded until they are so many: to leave them out takes time."""


class Level(NamedTuple):
    """What was chosen at one depth of a descent: trees, their states, and cells of actions."""

    trees: np.ndarray
    states: np.ndarray
    cells: np.ndarray


def serves(model: Model, situations: Sequence[Situation], effort: Effort) -> bool:
    """Whether trees can, and should, be grown side by side."""
    states = [situation.state for situation in situations]
    return (
        model.batch is not None
        and model.deterministic
        and effort.budget is None
        and WORTHWHILE <= len(states) <= LARGEST // (effort.simulations + 1)
        and all(situation.valid is None for situation in situations)
        and (_same_arrays(states) or all(isinstance(state, int) for state in states))
    )


class Forest:
    """One tree per situation, which makes the same choices as if it grew alone.

    The states of a tree are rows that follow each other, the root first; a
    cell is an action in a state.
    """

    def __init__(
        self, model: Model, situations: Sequence[Situation], effort: Effort, draws: Sequence[Draws]
    ) -> None:
        low, high = model.action_space.low[0], model.action_space.high[0]
        self._actions = np.arange(int(low), int(high) + 1)
        self._model = model
        self._effort = effort
        self._draws = draws
        self._horizons = np.array([situation.horizon for situation in situations])
        self._situations = situations
        self._most_ended = _ENDED_SHARE
        self._plant(situations)

    def search(self, batch: Batch) -> list[Tried]:
        """Simulate until the effort is spent; return what was tried at the roots.

        Once more without ended lanes if these are what the batch cannot do.
        """
        try:
            return self._search(batch)
        except Unbatched:
            self._most_ended = 0.0
            self._plant(self._situations)
            return self._search(batch)

    def _search(self, batch: Batch) -> list[Tried]:
        """Simulate until the effort is spent."""
        for start in range(0, self._effort.simulations, BLOCK):
            blocks = [draws.block(start // BLOCK) for draws in self._draws]
            actions = np.stack([actions for actions, _ in blocks], axis=-1)
            ties = np.stack([ties for _, ties in blocks], axis=-1).astype(np.int64)
            for row in range(min(len(actions), self._effort.simulations - start)):
                self._simulate(batch, start + row, actions[row], ties[row])
        width = len(self._actions)
        cells = self._roots[:, None] * width + np.arange(width)
        pairs = zip(self._tried[cells].tolist(), self._values[cells].tolist(), strict=True)
        return [Tried(self._actions.tolist(), tried, values) for tried, values in pairs]

    def _plant(self, situations: Sequence[Situation]) -> None:
        """Make room for all states and put the roots there."""
        trees, nodes = len(situations), self._effort.simulations + 1
        rows, cells = trees * nodes, trees * nodes * len(self._actions)
        factors = bonuses(self._effort.exploration, self._effort.simulations)
        self._factors = np.array(factors.state), np.array(factors.action)
        self._roots = np.arange(0, rows, nodes)
        states = np.stack([situation.state for situation in situations], axis=-1)
        self._states = np.zeros((*states.shape[:-1], rows), np.result_type(states, np.int64))
        self._states[..., self._roots] = states
        self._rewards = np.zeros(rows)
        self._terminated = np.zeros(rows, bool)
        self._visits = np.zeros(rows, np.int64)
        self._visits[self._roots] = 1
        self._tried = np.zeros(cells, np.int64)
        self._totals = np.zeros(cells)
        self._values = np.full(cells, UNTRIED)
        self._bonuses = np.full(cells, factors.action[0])
        self._children = np.full(cells, -1)

    def _simulate(self, batch: Batch, number: int, actions: np.ndarray, ties: np.ndarray) -> None:
        """Descend in every tree, try a new action, roll out from there and back up the return."""
        leaves, path = self._descend(ties)
        returns = np.zeros(len(leaves))
        fresh = np.flatnonzero(leaves < 0)
        if fresh.size:
            cells = -1 - leaves[fresh]
            leaves[fresh] = rows = self._roots[fresh] + number + 1
            self._expand(batch, cells, rows)
            left = self._horizons.copy()
            for level in path:
                left[level.trees] -= 1
            going = np.flatnonzero(~self._terminated[rows] & (left[fresh] > 0))
            batch.keep(going)
            trees = fresh[going]
            returns[trees] = self._rollout(batch, trees, left[trees], actions)
        self._back_up(path, leaves, returns)

    def _descend(self, ties: np.ndarray) -> tuple[np.ndarray, list[Level]]:
        """Choose actions down to terminal states, to the horizon or to an action not tried yet.

        The state that such an action leads to has no row yet: it is -1 minus the cell.
        """
        width, (state_factors, _) = len(self._actions), self._factors
        leaves, path = self._roots.copy(), list[Level]()
        trees = np.arange(len(leaves))
        while trees.size:
            states = leaves[trees]
            cells = states[:, None] * width + np.arange(width)
            factors = state_factors[self._visits[states]]
            bounds = self._values[cells] + factors[:, None] * self._bonuses[cells]
            chosen = states * width + _highest(bounds, ties[len(path) % DEPTHS, trees])
            path.append(Level(trees, states, chosen))
            children = self._children[chosen]
            leaves[trees] = np.where(children < 0, -1 - chosen, children)
            going = (
                (children >= 0) & ~self._terminated[children] & (self._horizons[trees] > len(path))
            )
            trees = trees[going]
        return leaves, path

    def _expand(self, batch: Batch, cells: np.ndarray, rows: np.ndarray) -> None:
        """Take actions for the first time; what they lead to becomes rows."""
        states, actions = np.divmod(cells, len(self._actions))
        batch.stand(self._states[..., states])
        observations, rewards, terminated = batch.step(self._actions[actions])
        self._model.counter[0] += len(cells)
        self._children[cells] = rows
        self._states[..., rows] = observations
        self._rewards[rows] = rewards
        self._terminated[rows] = terminated

    def _rollout(
        self, batch: Batch, trees: np.ndarray, left: np.ndarray, actions: np.ndarray
    ) -> np.ndarray:
        """Return the discounted returns of actions from where the lanes of some trees stand."""
        counter, discount = self._model.counter, self._effort.discount
        returns, lanes = np.zeros(len(trees)), np.arange(len(trees))
        totals, factors = np.zeros(len(trees)), np.ones(len(trees))  # 0 where it has ended
        going, shortest = len(lanes), left.min(initial=0)
        taken = actions[:, trees].astype(np.int64)
        for step, row in enumerate(taken, 1):
            if not going:
                break
            rewards, terminated = batch.advance(row.take(lanes))
            counter[0] += going
            totals += factors * rewards
            factors *= discount
            if terminated.any():
                factors[terminated] = 0.0
            if step >= shortest:
                factors[left <= step] = 0.0
            going = int(np.count_nonzero(factors))
            if going < len(lanes) and len(lanes) - going >= self._most_ended * len(lanes):
                returns[lanes] = totals
                alive = np.flatnonzero(factors)
                lanes, left = lanes.take(alive), left.take(alive)
                totals, factors = totals.take(alive), factors.take(alive)
                batch.keep(alive)
        returns[lanes] = totals
        return returns

    def _back_up(self, path: list[Level], leaves: np.ndarray, returns: np.ndarray) -> None:
        """Count a return for every action that led to it."""
        discount, action_factors = self._effort.discount, self._factors[1]
        self._visits[leaves] += 1
        for trees, states, cells in reversed(path):
            values = self._rewards[leaves[trees]] + discount * returns[trees]
            returns[trees] = values
            leaves[trees] = states
            self._visits[states] += 1
            self._tried[cells] = tried = self._tried[cells] + 1
            self._totals[cells] = totals = self._totals[cells] + values
            self._values[cells] = totals / tried
            self._bonuses[cells] = action_factors[tried]


def _highest(values: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Return the place of the highest value of each row; a 16-bit number decides between ties."""
    ties = values == values.max(axis=1, keepdims=True)
    ranks = ties.cumsum(axis=1)
    chosen: np.ndarray = (ranks <= (numbers * ranks[:, -1] >> 16)[:, None]).sum(axis=1)
    return chosen


def _same_arrays(states: Sequence[object]) -> bool:
    """Whether states are arrays of numbers in a row, all of one length."""
    shapes = {state.shape if isinstance(state, np.ndarray) else None for state in states}
    return len(shapes) == 1 and all(shape is not None and len(shape) == 1 for shape in shapes)
