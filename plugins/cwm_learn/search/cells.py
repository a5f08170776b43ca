"""Plans for continuous observations: a forward search over cells, then local improvement.

Each step of the search tries all actions in all cells. If two trajectories reach the same cell,
the search continues the one with the higher return. `plan` maximises the return, and `reach`
targets unvisited observations or given boxes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from cwm_cli.planning.model import Model
from cwm_learn.search.policies import CERTAIN_SHARE, act, evaluate
from cwm_learn.search.polishing import polish
from cwm_learn.search.rollouts import LaneSimulator, discount_outside_data, distance_to_data
from cwm_learn.search.trajectories import EMPTY, ImaginedTrajectory, simulate, simulate_plan

SPARSE = ((1.0, False), (2.0, False), (4.0, False))
DENSE = (2.0, True)
"""Resolution of cells, and whether each step may enter cells again, tried until a plan is found.

Coarse cells are faster but hide narrow passages. If most steps have the same reward, the shortest
path to another reward is best, and no cell is needed twice. If all rewards differ, staying in a
cell can be best.
"""

MIN_BEAM, MAX_BEAM = 20, 1500
"""Bounds of the number of cells that a step of the search keeps."""

MIN_SCORE_GAIN = 0.02
"""Minimum gain of a score, in spreads of the data, that justifies a longer plan."""

HANDOVER_DEPTHS, HANDOVER_LANES = (16, 32, 64, 128), 32
"""Steps after which a search tries to continue with the policy, and the number of lanes to try. A
policy often fails only from a few observations, and a search over whole episodes is slow: from a
falling pole it took 3 million simulated steps for 1,000 steps."""

_PRIMES = np.array([2654435761, 2246822519, 3266489917, 668265263, 374761393], np.uint64)

Score = Callable[[np.ndarray], np.ndarray]
"""Scores the observations (components, lanes) to reach."""


class CellLayer(NamedTuple):
    """All lanes after one step, with the lane and action in the previous layer."""

    observations: np.ndarray
    returns: np.ndarray
    parents: np.ndarray
    choices: np.ndarray


class CellLeaf(NamedTuple):
    """The last action of a plan: a choice in a lane of the layer at `depth`."""

    value: float
    depth: int
    lane: int
    choice: int


NO_LEAF = CellLeaf(-np.inf, 0, 0, 0)


@dataclass
class CellSearch:
    """A forward search from one start, with at most `beam` cells per step.

    `ended` is the best plan that ends the episode, `surviving` is the best plan that lasts until
    the horizon, and `reached` is the plan with the best score. `handover` is a plan from whose end
    the policy reaches almost the maximum return.
    """

    simulator: LaneSimulator
    arrays: Mapping[str, np.ndarray]
    horizon: int
    beam: int
    seed: int
    ended: CellLeaf = field(default=NO_LEAF, init=False)
    surviving: CellLeaf = field(default=NO_LEAF, init=False)
    reached: CellLeaf = field(default=NO_LEAF, init=False)
    handover: CellLeaf = field(default=NO_LEAF, init=False)

    def __post_init__(self) -> None:
        self._options, self._cell = self.arrays["options"], self.arrays["cell"]
        self._rng = np.random.default_rng(self.seed)
        self._layers: list[CellLayer] = []

    def run(
        self,
        resolution: float,
        max_reward: float,
        score: Score | None = None,
        *,
        enough: float = np.inf,
        revisit: bool = False,
    ) -> None:
        """Search until the horizon, or until no plan can be better.

        `resolution` divides the size of the cells. With `revisit` each step may enter all cells;
        otherwise an earlier cell needs a higher return. `max_reward` is the largest reward of a
        step, and `score` scores observations to reach. The search stops at a score of `enough`.
        """
        start = self.arrays["start"].ravel()
        layer = CellLayer(start[:, None], np.zeros(1), np.zeros(1, int), np.zeros(1, int))
        best_in_cell: dict[int, float] = {}
        self._layers = [layer]
        count = len(self._options)
        # steps after which a score counts half, since these steps are taken in the environment
        half_score_steps = 200
        for depth in range(self.horizon):
            lanes = np.repeat(np.arange(len(layer.returns)), count)
            choices = np.tile(np.arange(count), len(layer.returns))
            actions = np.moveaxis(self._options[choices], 0, -1)
            after, rewards, ends, diverged = self.simulator.step(
                layer.observations[:, lanes], actions
            )
            total = layer.returns[lanes] + discount_outside_data(rewards, after, self.arrays)
            self.ended = self._better(self.ended, np.where(ends, total, -np.inf), depth)
            if score is not None:
                values = score(after)
                sooner = values * half_score_steps / (half_score_steps + depth)
                values = np.where(values > 0, sooner, values)
                values = np.where(diverged, -np.inf, values)
                self.reached = self._better(self.reached, values, depth, MIN_SCORE_GAIN)
                if self.reached.value >= enough:
                    return
            alive = np.flatnonzero(~(ends | diverged))
            if revisit:
                best_in_cell = {}
            kept = alive[self._select(after[:, alive], total[alive], best_in_cell, resolution)]
            if not len(kept):
                return
            layer = CellLayer(after[:, kept], total[kept], lanes[kept], choices[kept])
            self._layers.append(layer)
            bound = layer.returns.max() + max(max_reward, 0.0) * (self.horizon - depth - 1)
            if score is None and self.ended.value >= bound:
                return
            if (
                score is None
                and depth + 1 in HANDOVER_DEPTHS
                and self._hand_over(layer, depth, bound)
            ):
                return
        lane = int(layer.returns.argmax())
        if np.ptp(layer.returns) < 1e-9:
            # of equal returns the lane in the middle is farthest from unexplored observations
            offset = layer.observations - np.median(layer.observations, 1)[:, None]
            lane = int(np.square(offset / self._cell[:, None]).sum(0).argmin())
        value, parent, choice = layer.returns[lane], layer.parents[lane], layer.choices[lane]
        self.surviving = CellLeaf(float(value), self.horizon - 1, int(parent), int(choice))

    def _hand_over(self, layer: CellLayer, depth: int, bound: float) -> bool:
        """Return whether the policy reaches almost the maximum return from a lane of a layer."""
        if "weights" not in self.arrays or bound <= 0:
            return False
        centre, scale = self.arrays["centre"][:, None], self.arrays["scale"][:, None]
        distance = np.square((layer.observations - centre) / scale).sum(0)
        lanes = np.argsort(distance, kind="stable")[:HANDOVER_LANES]
        weights, rest = self.arrays["weights"][None], self.horizon - depth - 1
        starts = layer.observations[:, lanes]
        later = evaluate(self.simulator, weights, starts, self.arrays, rest)[0][0]
        values = layer.returns[lanes] + later
        lane = lanes[values.argmax()]
        if values.max() < CERTAIN_SHARE * bound:
            return False
        parent, choice = int(layer.parents[lane]), int(layer.choices[lane])
        self.handover = CellLeaf(float(values.max()), depth, parent, choice)
        return True

    def actions_to(self, leaf: CellLeaf) -> np.ndarray:
        """Return the actions that lead to a leaf."""
        choices, lane = [leaf.choice], leaf.lane
        for layer in self._layers[leaf.depth : 0 : -1]:
            choices.append(int(layer.choices[lane]))
            lane = int(layer.parents[lane])
        actions: np.ndarray = self._options[choices[::-1]]
        return actions

    def _better(
        self, leaf: CellLeaf, values: np.ndarray, depth: int, min_gain: float = 0.0
    ) -> CellLeaf:
        """Return the better of a leaf and the best lane of a step."""
        best = int(values.argmax())
        if values[best] > leaf.value + min_gain:
            return CellLeaf(float(values[best]), depth, *divmod(best, len(self._options)))
        return leaf

    def _select(
        self,
        after: np.ndarray,
        total: np.ndarray,
        best_in_cell: dict[int, float],
        resolution: float,
    ) -> np.ndarray:
        """Return at most `beam` lanes, each with the highest return so far in its cell."""
        cells = np.floor(after * (resolution / self._cell[:, None]))
        cells = cells.astype(np.int64).astype(np.uint64)
        primes = np.resize(_PRIMES, len(cells)) * np.arange(1, 2 * len(cells), 2, dtype=np.uint64)
        hashes = (cells * primes[:, None] ** np.uint64(3)).sum(0)
        noise = self._rng.random(len(total))
        order = np.lexsort((noise, -total, hashes))
        first = order[np.r_[True, np.diff(hashes[order]) != 0]] if len(order) else order
        names, returns = hashes[first].tolist(), total[first].tolist()
        improved = [
            place
            for place, (name, value) in enumerate(zip(names, returns, strict=True))
            if value > best_in_cell.get(name, -np.inf) + 1e-9
        ]
        best_in_cell.update((names[place], returns[place]) for place in improved)
        selected: np.ndarray = first[improved]
        if len(selected) > self.beam:
            ranked = np.lexsort((noise[selected], -total[selected].round(9)))
            # Share of the kept cells that have the highest returns; the rest are drawn at random.
            # Without random cells, early rewards exclude late ones: swing-ups of a pendulum
            # returned -340, but -120 with random cells.
            best_share = 0.25
            best = int(best_share * self.beam)
            drawn = self._rng.choice(ranked[best:], self.beam - best, replace=False)
            selected = selected[np.r_[ranked[:best], drawn]]
        return selected


def plan(
    model: Model,
    arrays: Mapping[str, np.ndarray],
    *,
    horizon: int,
    max_reward: float,
    usual_reward: float | None,
    budget: int,
    seed: int = 0,
) -> dict[str, np.ndarray]:
    """Return the plan with the highest return, from a policy or a search and then polished.

    Args:
        model: The model.
        arrays: `start`, `shape`, `options`, `cell`, `low`, `high` and `spread`. `weights`, with
            `centre` and `scale`, is a policy. `previous` are the remaining actions of an earlier
            plan, and `previous_value` is their return.
        horizon: Steps until the end of the episode.
        max_reward: Largest observed reward.
        usual_reward: The reward that is available in every step, if there is one.
        budget: Maximum work, in simulated steps.
        seed: Seed of the search.

    Returns:
        The plan (see `_pack`). `flat` is whether no plan exceeds `usual_reward` in every step.
    """
    simulator = LaneSimulator(model, tuple(arrays["shape"].tolist()))
    start, bound = arrays["start"].ravel(), max_reward * horizon - 1e-6 * abs(max_reward * horizon)
    usual = -np.inf if usual_reward is None else usual_reward * horizon
    usual += 1e-6 * abs(usual) if np.isfinite(usual) else 0.0

    def is_best(plan: ImaginedTrajectory) -> bool:
        certain = plan.cautious_value(arrays) >= CERTAIN_SHARE * bound
        return max_reward > 0 and certain and (plan.value >= bound or not plan.ended)

    def follow(_: int, now: np.ndarray) -> np.ndarray:
        return act(arrays["weights"][None], now[:, None], arrays)[..., 0, :]

    best, source = EMPTY, "nothing"
    if "weights" in arrays:
        best, source = simulate(simulator, start, follow, horizon), "policy"
    flat = best.value <= usual
    if is_best(best):
        return _pack(best, simulator, flat=flat, source=source)
    if (kept := _keep_previous(simulator, arrays, start, budget)) is not None:
        return _pack(kept, simulator, flat=kept.value <= usual, source="search")
    beam = int(np.clip(budget / (2 * horizon * len(arrays["options"])), MIN_BEAM, MAX_BEAM))
    # `plan` also tries finer cells while the steps are at most the budget divided by this
    cheap_divisor = 20
    for resolution, revisit in (*SPARSE, DENSE) if usual_reward is not None else (DENSE, *SPARSE):
        search = CellSearch(simulator, arrays, horizon, beam, seed)
        search.run(resolution, max_reward, revisit=revisit)
        if (found := _best_of(search, follow)) is not None:
            flat &= not found.ended and found.value <= usual
            if found.cautious_value(arrays) > best.cautious_value(arrays):
                best, source = found, "search"
        thorough = simulator.lanes > budget / cheap_divisor
        is_done = is_best(best) or (best is not EMPTY and not flat and thorough)
        if is_done or simulator.is_exhausted(budget):
            break
    polished = best if is_best(best) else polish(simulator, arrays, start, best, budget)
    if source == "search" or polished.value > best.value + 1e-9 * abs(best.value):
        best, source = polished, "search"
    return _pack(best, simulator, flat=flat, source=source)


def _keep_previous(
    simulator: LaneSimulator, arrays: Mapping[str, np.ndarray], start: np.ndarray, budget: int
) -> ImaginedTrajectory | None:
    """Return the rest of the earlier plan, polished, if its return is still about the same."""
    if "previous" not in arrays:
        return None
    kept, value = simulate_plan(simulator, start, arrays["previous"]), arrays["previous_value"]
    if kept.value < value - 0.01 * abs(value):
        return None
    return polish(simulator, arrays, start, kept, budget)


def _best_of(
    search: CellSearch, follow: Callable[[int, np.ndarray], np.ndarray]
) -> ImaginedTrajectory | None:
    """Return the best plan of a search; `follow` acts after a handover to the policy."""
    leaf = max(search.ended, search.surviving, search.handover, key=lambda leaf: leaf.value)
    if leaf.value == -np.inf:
        return None
    first = search.actions_to(leaf)

    def choose(step: int, now: np.ndarray) -> np.ndarray:
        return first[step][..., None] if step < len(first) else follow(step, now)

    steps = search.horizon if leaf is search.handover else len(first)
    return simulate(search.simulator, search.arrays["start"].ravel(), choose, steps)


def reach(
    model: Model,
    arrays: Mapping[str, np.ndarray],
    *,
    horizon: int,
    budget: int,
    seed: int = 0,
) -> dict[str, np.ndarray]:
    """Return the plan that leads farthest out of the visited range, or into a box.

    The arguments have the same meaning as in `plan`, except that `budget` only determines the
    number of cells that a step of the search keeps. `arrays` may have `boxes` (boxes, 2,
    components) with lower and upper bounds, which may be infinite. The `value` of the plan is the
    distance from the visited range, or minus the distance from the nearest box, in spreads of the
    data.
    """
    simulator = LaneSimulator(model, tuple(arrays["shape"].tolist()))

    def score(after: np.ndarray) -> np.ndarray:
        if "boxes" not in arrays:
            return distance_to_data(after, arrays)
        spread = arrays["spread"][:, None]
        distances = [
            (np.maximum(np.maximum(low[:, None] - after, after - high[:, None]), 0) / spread).max(0)
            for low, high in arrays["boxes"]
        ]
        nearest: np.ndarray = -np.min(distances, axis=0)
        return nearest

    beam = int(np.clip(budget / (horizon * len(arrays["options"])), MIN_BEAM, MAX_BEAM))
    enough = -MIN_SCORE_GAIN if "boxes" in arrays else np.inf  # inside a box, up to rounding
    best_score, best = -np.inf, EMPTY
    # `reach` tries finer cells if a search simulated at most this many steps: it did not leave its
    # first cells, because it started slowly
    min_lanes = 10_000
    for resolution, revisit in (*SPARSE, DENSE):
        lanes_before = simulator.lanes
        search = CellSearch(simulator, arrays, horizon, beam, seed)
        search.run(resolution, 0.0, score, enough=enough, revisit=revisit)
        if search.reached.value > best_score:
            best_score = search.reached.value
            actions = search.actions_to(search.reached)
            best = simulate_plan(simulator, arrays["start"].ravel(), actions)
        if best_score >= enough or simulator.lanes - lanes_before > min_lanes:
            break
    packed = _pack(best, simulator, flat=False, source="search")
    return packed | {"value": np.array(best_score)}


def _pack(
    plan: ImaginedTrajectory, simulator: LaneSimulator, *, flat: bool, source: str
) -> dict[str, np.ndarray]:
    """Return a plan as named arrays; `source` is "policy", "search" or "nothing"."""
    gains = {} if plan.gains is None else {"gains": plan.gains}
    return gains | {
        "actions": plan.actions,
        "observations": plan.observations,
        "rewards": plan.rewards,
        "ended": np.array(plan.ended),
        "value": np.array(plan.value),
        "flat": np.array(flat),
        "source": np.array(source),
        "work": np.array(simulator.work),
    }
