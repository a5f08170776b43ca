"""Plans for observations of real numbers: a search to the end of the episode, and what betters it.

Forward from a start, all actions at once; of two ways into a cell of the space the one that
returned more goes on. What is found is bettered by noise on its actions. `plan` looks for the
return, `reach` for places.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from cwm_cli.planning.model import Model
from cwm_learn.search.policies import act
from cwm_learn.search.polishing import polish
from cwm_learn.search.rollouts import ImaginedLanes, doubted, strayed
from cwm_learn.search.trajectories import NO_WAY, ImaginedWay, played

SPARSE = ((1.0, False), (2.0, False), (4.0, False))
DENSE = (2.0, True)
"""How fine cells are, and whether they are entered again in every step, until something is found:
coarse ones are quicker, and hide narrow ways; where most steps pay alike the way to what pays
otherwise is the shortest, where all pay differently staying counts."""

BEAM = 1500
"""Cells that the search goes on from, at most."""

SHARE_OF_BEST = 0.25
"""Share of them that returned most, the others are drawn: alone, those that paid early crowd out
those that pay later (swing-ups of a pendulum cost 340 that way, 120 this way)."""

NEWS = 0.02
"""How much farther out, in spreads of the data, is worth a longer way."""

FEW = 10_000
"""A search of fewer steps did not get out of its first cells, where it started slowly: finer ones
are tried."""

CHEAP = 20
"""Finer cells are tried, too, where all so far took less than the work by this."""

KNOWN = 0.98
"""Share of the return that has to be sure so that a perfect policy is played unsearched."""

SOON = 200
"""Steps after which something new is worth half of what it is at once: they are real ones."""

_PRIMES = np.array([2654435761, 2246822519, 3266489917, 668265263, 374761393], np.uint64)


class Layer(NamedTuple):
    """Where a search stands after a step, and how it came there."""

    observations: np.ndarray
    returns: np.ndarray
    parents: np.ndarray
    choices: np.ndarray


class CellLeaf(NamedTuple):
    """A way's last step: a choice in a lane of the layer before."""

    value: float
    depth: int
    lane: int
    choice: int


NOWHERE = CellLeaf(-np.inf, 0, 0, 0)

Score = Callable[[np.ndarray], np.ndarray]
"""How good places (components, lanes) are to reach."""


class CellSearch:
    """A search forward from one start."""

    def __init__(
        self,
        lanes: ImaginedLanes,
        arrays: Mapping[str, np.ndarray],
        *,
        horizon: int,
        beam: int,
        seed: int,
    ) -> None:
        self._lanes, self._options, self._cell = lanes, arrays["options"], arrays["cell"]
        self._arrays = arrays
        self._start, self._horizon, self._beam = arrays["start"].ravel(), horizon, beam
        self._rng = np.random.default_rng(seed)
        self._layers: list[Layer] = []
        self.ended, self.lasting, self.reached = NOWHERE, NOWHERE, NOWHERE
        self.alike = True
        """Whether all that lasted returned the same."""

    def run(
        self, fine: float, best: float, score: Score | None = None, *, again: bool = False
    ) -> None:
        """Search to the end of the episode; `best` is the greatest reward of a step.

        A cell that was reached is entered once more only with a higher return, or `again` in
        every step: where each step costs, staying would not be found otherwise.
        """
        now = Layer(self._start[:, None], np.zeros(1), np.zeros(1, int), np.zeros(1, int))
        known: dict[int, float] = {}
        self._layers = [now]
        count = len(self._options)
        for depth in range(self._horizon):
            lanes = np.repeat(np.arange(len(now.returns)), count)
            choices = np.tile(np.arange(count), len(now.returns))
            actions = np.moveaxis(self._options[choices], 0, -1)
            after, rewards, ends, lost = self._lanes.step(now.observations[:, lanes], actions)
            total = now.returns[lanes] + doubted(rewards, after, self._arrays)
            self.ended = self._better(self.ended, np.where(ends, total, -np.inf), depth, count)
            if score is not None:
                worth = score(after)
                worth = np.where(worth > 0, worth * SOON / (SOON + depth), worth)
                worth = np.where(lost, -np.inf, worth)
                self.reached = self._better(self.reached, worth, depth, count, NEWS)
            live = np.flatnonzero(~(ends | lost))
            known = {} if again else known
            picked = live[self._picked(after[:, live], total[live], known, fine)]
            if not len(picked):
                return
            now = Layer(after[:, picked], total[picked], lanes[picked], choices[picked])
            self._layers.append(now)
            hoped = now.returns.max() + max(best, 0.0) * (self._horizon - depth - 1)
            if score is None and self.ended.value >= hoped:
                return
        self.alike = bool(np.ptp(now.returns) < 1e-9)
        lane = int(now.returns.argmax())
        if self.alike:  # the one in the middle is farthest from what was not looked at
            off = now.observations - np.median(now.observations, 1)[:, None]
            lane = int(np.square(off / self._cell[:, None]).sum(0).argmin())
        value, parent, choice = now.returns[lane], now.parents[lane], now.choices[lane]
        self.lasting = CellLeaf(float(value), self._horizon - 1, int(parent), int(choice))

    def way(self, leaf: CellLeaf) -> np.ndarray:
        """Return the actions that lead to a leaf."""
        choices, lane = [leaf.choice], leaf.lane
        for layer in self._layers[leaf.depth : 0 : -1]:
            choices.append(int(layer.choices[lane]))
            lane = int(layer.parents[lane])
        actions: np.ndarray = self._options[choices[::-1]]
        return actions

    def _better(
        self, leaf: CellLeaf, values: np.ndarray, depth: int, count: int, more: float = 0.0
    ) -> CellLeaf:
        """Return the better of a leaf and the best lane of a step."""
        lane = int(values.argmax())
        if values[lane] > leaf.value + more:
            return CellLeaf(float(values[lane]), depth, lane // count, lane % count)
        return leaf

    def _picked(
        self, after: np.ndarray, total: np.ndarray, known: dict[int, float], fine: float
    ) -> np.ndarray:
        """Return lanes in cells that were never reached with so high a return."""
        cells = np.floor(after * (fine / self._cell[:, None])).astype(np.int64).astype(np.uint64)
        primes = np.resize(_PRIMES, len(cells)) * np.arange(1, 2 * len(cells), 2, dtype=np.uint64)
        mixed = (cells * primes[:, None] ** np.uint64(3)).sum(0)
        noise = self._rng.random(len(total))
        order = np.lexsort((noise, -total, mixed))
        first = order[np.r_[True, np.diff(mixed[order]) != 0]] if len(order) else order
        names, gains = mixed[first].tolist(), total[first].tolist()
        fresh = [
            place
            for place, (name, gain) in enumerate(zip(names, gains, strict=True))
            if gain > known.get(name, -np.inf) + 1e-9
        ]
        known.update((names[place], gains[place]) for place in fresh)
        picked: np.ndarray = first[fresh]
        if len(picked) > self._beam:
            best = np.lexsort((noise[picked], -total[picked].round(9)))
            kept = int(SHARE_OF_BEST * self._beam)
            rest = self._rng.choice(best[kept:], self._beam - kept, replace=False)
            picked = picked[np.r_[best[:kept], rest]]
        return picked


def plan(  # options that are plain data
    model: Model,
    arrays: Mapping[str, np.ndarray],
    *,
    horizon: int,
    best: float,
    usual: float | None,
    most: int,
    seed: int = 0,
) -> dict[str, np.ndarray]:
    """Return the way from `start` that returns most: a policy's, a search's, or a bettered one.

    `arrays` also has `shape`, `options`, `cell`, and with `weights` a policy. `best` is the
    greatest reward that was seen, `usual` the one that can be had for ever, if there is one, `most`
    bounds the work. `flat` says that no plan is worth more than `usual` for ever.
    """
    lanes = ImaginedLanes(model, tuple(arrays["shape"].tolist()))
    start, enough = arrays["start"].ravel(), best * horizon - 1e-6 * abs(best * horizon)
    lasting = -np.inf if usual is None else usual * horizon + 1e-6 * abs(usual * horizon)
    if "before" in arrays and "worth" in arrays:
        way = played(lanes, start, arrays["before"])
        if way.value >= arrays["worth"] - 0.01 * abs(arrays["worth"]):
            return _told(way, lanes, flat=way.value <= lasting, how="search")
    way, how = NO_WAY, "nothing"
    if "weights" in arrays:
        way, how = _followed(lanes, arrays, start, horizon), "policy"
    flat = way.value <= lasting
    if best > 0 and way.value >= enough and way.sure(arrays) >= KNOWN * enough:
        return _told(way, lanes, flat=flat, how=how)
    beam = int(np.clip(most / (2 * horizon * len(arrays["options"])), 50, BEAM))
    for fine, again in (*SPARSE, DENSE) if usual is not None else (DENSE, *SPARSE):
        search = CellSearch(lanes, arrays, horizon=horizon, beam=beam, seed=seed)
        search.run(fine, best, again=again)
        leaf = max(search.ended, search.lasting, key=lambda leaf: leaf.value)
        if leaf.value > -np.inf:
            found = played(lanes, start, search.way(leaf))
            flat &= not found.ended and found.value <= lasting
            if found.sure(arrays) > way.sure(arrays):
                way, how = found, "search"
        if (way is not NO_WAY and not flat and lanes.work > most / CHEAP) or lanes.is_over(most):
            break
    bettered = polish(lanes, arrays, start, way, most)
    if bettered.value > way.value + 1e-9 * abs(way.value):
        way, how = bettered, "search"
    return _told(way, lanes, flat=flat, how=how)


def reach(
    model: Model,
    arrays: Mapping[str, np.ndarray],
    *,
    horizon: int,
    most: int,
    seed: int = 0,
) -> dict[str, np.ndarray]:
    """Return the way from `start` that leads farthest out of what was visited, or to a place.

    Out of `low` and `high`, in `spread`; with `places` (places, 2, components) it leads into
    one of these boxes, whose sides may be infinite. `value` is how far out, or how far from the
    box with the opposite sign.
    """
    lanes = ImaginedLanes(model, tuple(arrays["shape"].tolist()))
    spread = arrays["spread"][:, None]
    if "places" in arrays:
        score = _nearness(arrays["places"], spread)
    else:

        def score(after: np.ndarray) -> np.ndarray:
            return strayed(after, arrays)

    beam = int(np.clip(most / (horizon * len(arrays["options"])), 50, BEAM))
    farthest, way = -np.inf, NO_WAY
    for fine, again in (*SPARSE, DENSE):
        begun = lanes.work
        search = CellSearch(lanes, arrays, horizon=horizon, beam=beam, seed=seed)
        search.run(fine, 0.0, score, again=again)
        if search.reached.value > farthest:
            farthest = search.reached.value
            way = played(lanes, arrays["start"].ravel(), search.way(search.reached))
        if lanes.work - begun > FEW:
            break
    told = _told(way, lanes, flat=False, how="search")
    return told | {"value": np.array(farthest)}


def _nearness(places: np.ndarray, spread: np.ndarray) -> Score:
    """Return how near a place is to the nearest box: 0 within."""

    def score(after: np.ndarray) -> np.ndarray:
        far = [
            (np.maximum(np.maximum(low[:, None] - after, after - high[:, None]), 0) / spread).max(0)
            for low, high in places
        ]
        nearest: np.ndarray = -np.min(far, axis=0)
        return nearest

    return score


def _followed(
    lanes: ImaginedLanes, arrays: Mapping[str, np.ndarray], start: np.ndarray, horizon: int
) -> ImaginedWay:
    """Return the way that a policy takes."""
    now, ended = start[:, None], False
    seen: list[np.ndarray] = []
    rewards: list[float] = []
    taken: list[np.ndarray] = []
    weights = arrays["weights"][None]
    while len(seen) < horizon and not ended:
        action = act(weights, now[:, None], arrays)[..., 0, :]
        after, reward, ends, lost = lanes.step(now, action)
        if lost[0]:
            break
        now, ended = after, bool(ends[0])
        seen.append(now[:, 0])
        rewards.append(float(reward[0]))
        taken.append(action[..., 0])
    return ImaginedWay(np.array(taken), np.array(seen), np.array(rewards), ended)


def _told(way: ImaginedWay, lanes: ImaginedLanes, *, flat: bool, how: str) -> dict[str, np.ndarray]:
    """Return a way as named arrays."""
    gains = {} if way.gains is None else {"gains": way.gains}
    return gains | {
        "actions": way.actions,
        "observations": way.observations,
        "rewards": way.rewards,
        "ended": np.array(way.ended),
        "value": np.array(way.value),
        "flat": np.array(flat),
        "how": np.array(how),
        "work": np.array(lanes.work),
    }
