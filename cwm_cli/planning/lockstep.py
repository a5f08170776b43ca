"""Trees of many situations, grown side by side on a model that steps many states at once.

No tree waits for another: as soon as some rollouts have ended their trees begin the next
simulation, whose rollouts go on beside those that have not ended.
"""

from collections.abc import Sequence

import numpy as np

from cwm_cli.planning.draws import DEPTHS, Draws, numbers
from cwm_cli.planning.model import Joining, Model, Unbatched
from cwm_cli.planning.planner import Situation
from cwm_cli.planning.rollouts import Rollouts
from cwm_cli.planning.tree import UNTRIED, Effort, Tried, bonuses

WORTHWHILE = 128
"""With fewer situations one tree after the other can be faster: arrays are short."""

LARGEST = 2_000_000
"""States that the trees grown at once may have, so that they fit in the memory of a sandbox."""

_ENDED_SHARE = 0.5
"""Rollouts that have ended go on unheeded until they are so many: to begin others takes time."""


def serves(model: Model, situations: Sequence[Situation], effort: Effort) -> bool:
    """Whether trees can, and should, be grown side by side."""
    states = [situation.state for situation in situations]
    return (
        WORTHWHILE <= len(states) <= LARGEST // (effort.simulations + 1)
        and model.deterministic
        and effort.budget is None
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
        self._seeds = np.array([each.seed for each in draws], np.uint64)
        self._horizons = np.array([situation.horizon for situation in situations])
        self._situations = situations
        self._most_ended = _ENDED_SHARE

    def search(self, batch: Joining) -> list[Tried]:
        """Simulate until the effort is spent; return what was tried at the roots.

        Once more without ended lanes if these are what the batch cannot do.
        """
        try:
            return self._search(batch)
        except Unbatched:
            self._most_ended = 0.0
            return self._search(batch)

    def _search(self, batch: Joining) -> list[Tried]:
        """Simulate until the effort is spent."""
        self._plant()
        self._batch, self._others = batch.apart(), batch.apart()
        rollouts = self._begin(np.arange(len(self._roots)))
        while self._left.any():
            rollouts.play(
                self._batch,
                self._proposals,
                self._effort.discount,
                counter=self._model.counter,
                most_ended=self._most_ended,
            )
            ended = np.flatnonzero(rollouts.factors == 0)
            trees, going = rollouts.trees[ended], np.flatnonzero(rollouts.factors)
            self._back_up(trees, rollouts.totals[ended])
            self._batch.keep(going)
            begun = self._begin(np.flatnonzero((self._left > 0) & ~self._rolling))
            rollouts = rollouts.keep(going).join(begun)
        width = len(self._actions)
        cells = self._roots[:, None] * width + np.arange(width)
        pairs = zip(self._tried[cells].tolist(), self._values[cells].tolist(), strict=True)
        return [Tried(self._actions.tolist(), tried, values) for tried, values in pairs]

    def _plant(self) -> None:
        """Make room for all states and put the roots there."""
        trees, nodes = len(self._situations), self._effort.simulations + 1
        rows, cells = trees * nodes, trees * nodes * len(self._actions)
        factors = bonuses(self._effort.exploration, self._effort.simulations)
        self._factors = np.array(factors.state), np.array(factors.action)
        self._roots = np.arange(0, rows, nodes)
        states = np.stack([situation.state for situation in self._situations], axis=-1)
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
        self._left = np.full(trees, self._effort.simulations)
        self._rolling = np.zeros(trees, bool)
        self._path, self._depths = np.zeros((nodes, trees), np.int64), np.zeros(trees, np.int64)
        self._leaves = self._roots.copy()
        self._proposals = np.zeros((trees, self._effort.rollout), np.int64)

    def _begin(self, trees: np.ndarray) -> Rollouts:
        """Begin the next simulation of some trees; return the rollouts, whose lanes are added."""
        drawn = self._seeds[trees], self._effort.simulations - self._left[trees]
        low, high = int(self._actions[0]), int(self._actions[-1])
        ties, self._proposals[trees] = numbers(*drawn, (low, high), self._effort.rollout)
        fresh = self._descend(trees, ties)
        rolling = self._expand(trees[fresh])
        self._rolling[rolling] = True
        resting = trees[~self._rolling[trees]]
        self._back_up(resting, np.zeros(len(resting)))
        most = self._effort.rollout
        places = rolling * most
        counts = np.minimum(self._horizons[rolling] - self._depths[rolling], most)
        totals, factors = np.zeros(len(rolling)), np.ones(len(rolling))
        return Rollouts(rolling, places, places + counts, totals, factors)

    def _descend(self, trees: np.ndarray, ties: np.ndarray) -> np.ndarray:
        """Choose actions down to terminal states, to the horizon or to an action not tried yet.

        Return which trees have come to such an action; the leaves of the others are known.
        """
        width, (state_factors, _) = len(self._actions), self._factors
        columns = np.arange(width)
        self._leaves[trees] = self._roots[trees]
        going, fresh, depth = np.arange(len(trees)), np.zeros(len(trees), bool), 0
        while going.size:
            places = trees.take(going)
            states = self._leaves.take(places)
            cells = states[:, None] * width + columns
            factors = state_factors.take(self._visits.take(states))
            bounds = self._values.take(cells) + factors[:, None] * self._bonuses.take(cells)
            chosen = states * width + _highest(bounds, ties[going, depth % DEPTHS])
            self._path[depth, places] = chosen
            depth += 1
            self._depths[places] = depth
            children = self._children.take(chosen)
            new = children < 0
            fresh[going] = new
            self._leaves[places] = np.where(new, states, children)
            ends = new | self._terminated.take(children) | (self._horizons.take(places) <= depth)
            going = going[~ends]
        return fresh

    def _expand(self, trees: np.ndarray) -> np.ndarray:
        """Take the last action of the paths for the first time; what that leads to becomes rows.

        Return the trees which can go on from there; they become lanes.
        """
        if not trees.size:
            return trees
        cells = self._path[self._depths[trees] - 1, trees]
        rows = self._roots[trees] + self._effort.simulations - self._left[trees] + 1
        states, actions = np.divmod(cells, len(self._actions))
        self._others.stand(self._states[..., states])
        observations, rewards, terminated = self._others.step(self._actions[actions])
        self._model.counter[0] += len(cells)
        self._children[cells] = rows
        self._states[..., rows] = observations
        self._rewards[rows] = rewards
        self._terminated[rows] = terminated
        self._leaves[trees] = rows
        going = np.flatnonzero(~terminated & (self._horizons[trees] > self._depths[trees]))
        self._others.keep(going)
        self._batch.join(self._others)
        return trees[going]

    def _back_up(self, trees: np.ndarray, returns: np.ndarray) -> None:
        """Count a return for every action that led to it; the simulations of some trees end."""
        discount, action_factors = self._effort.discount, self._factors[1]
        depths, nodes = self._depths[trees], self._leaves[trees]
        self._left[trees] -= 1
        self._rolling[trees] = False
        self._visits[nodes] += 1
        for level in range(depths.max(initial=0) - 1, -1, -1):
            some = np.flatnonzero(depths > level)
            cells = self._path[level].take(trees.take(some))
            values = self._rewards.take(nodes.take(some)) + discount * returns.take(some)
            returns[some] = values
            nodes[some] = states = cells // len(self._actions)
            self._visits[states] += 1
            self._tried[cells] = tried = self._tried.take(cells) + 1
            self._totals[cells] = totals = self._totals.take(cells) + values
            self._values[cells] = totals / tried
            self._bonuses[cells] = action_factors.take(tried)


def _highest(values: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Return the place of the highest value of each row; a 16-bit number decides between ties."""
    ties = values == values.max(axis=1, keepdims=True)
    ranks = ties.cumsum(axis=1)
    wanted = (numbers * ranks[:, -1] >> 16)[:, None]
    chosen: np.ndarray = (ranks > wanted).argmax(axis=1)
    return chosen


def _same_arrays(states: Sequence[object]) -> bool:
    """Whether states are arrays of numbers in a row, all of one length."""
    shapes = {state.shape if isinstance(state, np.ndarray) else None for state in states}
    return len(shapes) == 1 and all(shape is not None and len(shape) == 1 for shape in shapes)
