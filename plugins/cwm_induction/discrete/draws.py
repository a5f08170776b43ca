"""Random draws of steps: the steps, their probabilities, and the transitions by draw.

Each draw is treated as an action with a deterministic result. The rules after a draw are then
fitted like the rules of deterministic environments, including walls and traps.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import NamedTuple

import numpy as np

from cwm_cli.data.spaces import Space
from cwm_induction.discrete.transitions import Layout, Transitions, join

MOST_STEPS = 24, 64
"""Most common steps to consider: while choosing a layout, and in the chosen layout."""

TURNS = 6
"""Iterations that alternate between step probabilities and exceptions of steps."""

ROUNDS = 6, 15
"""Rounds of expectation maximisation: while choosing a layout, and in the chosen layout."""

LEAST_SHARE = 0.004
"""Steps of an action with a smaller share are dropped."""

PARAMETER_BITS = 5.0
"""Price of one non-zero share."""

UNFORESEEN_BITS = 16.0
"""Price of a transition that no step explains."""

EXCEPTION_BITS = 8.0
"""Look for exceptions in places that cost at least this many bits more than necessary."""

LEAST_BITS, MOST_BITS = 3.0, 8.0
"""Price of an exception (a step leads elsewhere in a place), and the surcharge for a unique one."""

NEARLY = 2.0
"""Exceptions whose gain is less than this many bits below the best gain count as equally good."""

SETTING = 1.1
"""Prefer changes to new values of a factor up to this ratio of their entropies."""

MOST_TRIED = 6
"""Number of the rarest steps whose removal is tried in one iteration, to save time."""

LEAST_CONFLICTS = 2
"""A factor is random only if this many situations were followed by different values."""

CERTAIN = 0.03
"""An action is deterministic up to this share of repeats with another outcome."""

LEAST_REPEATS = 12
"""Repeats that an action with any other outcome needs to count as deterministic."""

DEPENDS = 0.01
"""With a larger share of conflicts after equal draws, results may also depend on the action."""

DEPENDENT = 0.01
"""Draw two factors together if their changes share more bits per transition than this."""


class Steps(NamedTuple):
    """Possible joint changes of factors: numbers to add within bounds, or values to set."""

    values: np.ndarray
    added: np.ndarray

    def landing(self, old: np.ndarray, radices: np.ndarray) -> np.ndarray:
        """Return the next factors of each step from each state: (rows, steps, factors)."""
        moved = np.clip(old[:, None] + self.values, 0, radices - 1)
        result: np.ndarray = np.where(self.added, moved, self.values)
        return result

    @classmethod
    def seen(
        cls, old: np.ndarray, after: np.ndarray, added: np.ndarray, count: np.ndarray, most: int
    ) -> "Steps":
        """Return the most common steps."""
        values, index = np.unique(np.where(added, after - old, after), axis=0, return_inverse=True)
        counts = np.bincount(index.reshape(-1), weights=count)
        return cls(values[np.argsort(-counts, kind="stable")[:most]], added)


def _variety(values: np.ndarray, action: np.ndarray, count: np.ndarray) -> float:
    """Return the bits to encode values, given the action."""
    total = 0.0
    for number in np.unique(action):
        rows = action == number
        counts = np.bincount(values[rows] - values.min(), weights=count[rows])
        counts = counts[counts > 0]
        total -= float((counts * np.log2(counts / counts.sum())).sum())
    return total


def _shares(lands: np.ndarray, action: np.ndarray, count: np.ndarray, rounds: int) -> np.ndarray:
    """Estimate the share of each step (columns) by action (rows) with expectation maximisation."""
    actions = int(action.max()) + 1
    counted = (np.arange(actions)[:, None] == action) * count
    shares = np.full((actions, lands.shape[1]), 1 / max(lands.shape[1], 1))
    for _ in range(rounds):
        belief = shares[action] * lands
        belief /= np.maximum(belief.sum(1, keepdims=True), 1e-12)
        totals = counted @ belief
        shares = totals / np.maximum(totals.sum(1, keepdims=True), 1e-12)
        shares = np.where(shares < LEAST_SHARE, 0.0, shares)
    return shares


def chance_layout(seen: Transitions) -> Layout:
    """Return the layout with the shortest description of random steps by action."""
    if len(seen.layouts) == 1:
        return seen.layouts[0][0]
    costs = []
    for layout, bits in seen.layouts:
        old, after = seen.in_factors(layout)
        radices = np.array([radix for part in layout for radix in part])
        varieties = [
            [_variety(part, seen.action, seen.count) for part in (end - begin, end)]
            for begin, end in zip(old.T, after.T, strict=True)
        ]
        added = np.array([adding <= SETTING * setting for adding, setting in varieties])
        steps = Steps.seen(old, after, added, seen.count, MOST_STEPS[0])
        lands = (steps.landing(old, radices) == after[:, None]).all(2)
        shares = _shares(lands, seen.action, seen.count, ROUNDS[0])
        chance = (shares[seen.action] * lands).sum(1)
        bits -= float((seen.count * np.log2(np.maximum(chance, 2**-UNFORESEEN_BITS))).sum())
        bits += PARAMETER_BITS * np.count_nonzero(shares)
        bits += len(steps.values) * float(np.log2(radices).sum())
        costs.append((bits, layout))
    return min(costs)[1]


@dataclass(frozen=True)
class Draws:
    """A joint random draw: the steps of some factors, and their action numbers.

    `axes` are the factors. Actions in `certain` are deterministic and keep their numbers.
    `numbers` has the action number of each step. If `both` is set, the result depends on the
    action and the step, and the number encodes both. `shares` has the probability of each step
    (columns) for each action (rows) without further conditions.
    """

    axes: tuple[int, ...]
    steps: Steps
    certain: tuple[int, ...]
    numbers: tuple[int, ...]
    shares: np.ndarray
    both: bool = False

    def follow(self, action: np.ndarray, step: np.ndarray) -> np.ndarray:
        """Return the action number of each draw; step -1 marks a deterministic action."""
        numbers = np.array([*self.numbers, 0])[step]
        alone: np.ndarray = np.where(step < 0, action, numbers)
        return action * len(self.numbers) + numbers if self.both else alone

    def known_steps(self, count: int) -> dict[int, np.ndarray]:
        """Map each factor that draws add to, to its change for each of `count` numbers."""
        changes = {}
        for place, axis in enumerate(self.axes):
            if self.steps.added[place] and len(self.numbers):
                changes[axis] = np.zeros(count, dtype=np.int64)
                for action in range(len(self.shares)):
                    if action not in self.certain:
                        repeated = np.full(len(self.numbers), action)
                        numbers = self.follow(repeated, np.arange(len(self.numbers)))
                        changes[axis][numbers] = self.steps.values[:, place]
        return changes

    @property
    def intended(self) -> Mapping[int, int]:
        """The intended step of each random action; empty if two actions intend the same step."""
        steps = {}
        for action, shares in enumerate(self.shares):
            if action not in self.certain and shares.any():
                mean = shares @ self.steps.values
                scores = np.where(shares > 0, self.steps.values @ mean + 0.001 * shares, -np.inf)
                steps[action] = int(scores.argmax())
        return steps if len(set(steps.values())) == len(steps) else {}


@dataclass(frozen=True)
class DrawnTransitions:
    """Transitions in factors, with their random draws.

    `landing` is a mask (rows, steps) of the steps of `draws` that explain each row. `as_drawn`
    contains the same transitions with draws instead of actions. `aside` lists further random
    factors, drawn independently.
    """

    seen: Transitions
    layout: Layout
    draws: Draws
    landing: np.ndarray
    as_drawn: Transitions
    aside: tuple[int, ...]


def draw(seen: Transitions) -> DrawnTransitions:
    """Find the random draws in transitions."""
    layout = chance_layout(seen)
    return _DrawSearch(replace(seen, readings=(layout,)), layout).result


@dataclass(frozen=True)
class _DrawSearch:
    """A search for random draws in one layout."""

    seen: Transitions
    layout: Layout

    @cached_property
    def ends(self) -> tuple[np.ndarray, np.ndarray]:
        """The states before and after each transition, in factors."""
        return self.seen.in_factors(self.layout)

    @cached_property
    def radices(self) -> np.ndarray:
        """The radix of every factor."""
        return np.array([radix for part in self.layout for radix in part])

    @cached_property
    def situations(self) -> np.ndarray:
        """The index of the situation (observation and action) of each row."""
        table = np.column_stack([self.seen.before, self.seen.action])
        numbers: np.ndarray = np.unique(table, axis=0, return_inverse=True)[1].reshape(-1)
        return numbers

    @cached_property
    def chancy(self) -> tuple[int, ...]:
        """The factors with different next values after equal situations."""
        going = self.seen.done == 0
        factors = []
        for factor, values in enumerate(self.ends[1].T):
            pairs = np.unique(np.stack([self.situations[going], values[going]], axis=1), axis=0)
            outcomes = np.bincount(pairs[:, 0])
            if np.count_nonzero(outcomes > 1) >= LEAST_CONFLICTS:
                factors.append(factor)
        return tuple(factors)

    @cached_property
    def axes(self) -> tuple[int, ...]:
        """The factors to draw together: the most varied one and all that depend on it."""
        (old, after), action, count = self.ends, self.seen.action, self.seen.count
        change = after - old
        variety = {f: _variety(change[:, f], action, count) for f in self.chancy}
        if not variety:
            return ()
        first = max(variety, key=lambda factor: variety[factor])
        chosen = [first]
        for factor in self.chancy:
            if factor != first:
                both = change[:, first] * 2 * int(self.radices.max()) + change[:, factor]
                shared = variety[first] + variety[factor] - _variety(both, action, count)
                if shared > DEPENDENT * count.sum():
                    chosen.append(factor)
        return tuple(sorted(chosen))

    @cached_property
    def certain(self) -> tuple[int, ...]:
        """The actions after which the situation determines the axes."""
        after = self.ends[1][:, self.axes]
        actions = []
        for action in range(self.seen.encoding.actions):
            rows = (self.seen.action == action) & (self.seen.done == 0)
            pairs, index = np.unique(
                np.column_stack([self.situations[rows], after[rows]]), axis=0, return_inverse=True
            )
            times = np.bincount(index.reshape(-1), weights=self.seen.count[rows])
            _, groups = np.unique(pairs[:, 0], return_inverse=True)
            most = np.zeros(len(np.unique(groups)))
            np.maximum.at(most, groups, times)
            repeats = times.sum() - len(most)
            misses = times.sum() - most.sum()
            if misses <= CERTAIN * repeats and (repeats >= LEAST_REPEATS or not misses):
                actions.append(action)
        return tuple(actions)

    @cached_property
    def result(self) -> DrawnTransitions:
        """The draws and the transitions by draw."""
        axes, drawing = self.axes, ~np.isin(self.seen.action, self.certain)
        aside = tuple(factor for factor in self.chancy if factor not in axes)
        actions = self.seen.encoding.actions
        steps = Steps(np.zeros((0, len(axes)), np.int64), np.ones(len(axes), bool))
        lands, shares = np.zeros((len(drawing), 0), bool), np.zeros((actions, 0))
        certain = tuple(range(actions))
        if axes and drawing.any():
            old, after = (part[drawing][:, axes] for part in self.ends)
            action, count = self.seen.action[drawing], self.seen.count[drawing]
            sizes = self.radices[list(axes)]
            paid = (self.seen.codes * 2 + self.seen.done)[drawing]
            steps, inner, some_shares = _StepSearch.of(
                old, after, paid, action, count, sizes
            ).steps()
            lands = np.zeros((len(drawing), len(steps.values)), bool)
            lands[drawing] = inner
            shares = np.zeros((actions, len(steps.values)))
            shares[: len(some_shares)] = some_shares
            certain = self.certain
        draws = Draws(axes, steps, certain, (), shares)
        draws = replace(draws, numbers=self._numbers(draws))
        drawn = self._draws_as_actions(draws, lands, aside)
        both = replace(draws, both=True, numbers=tuple(range(len(steps.values))))
        if len(steps.values) and _conflicts(drawn) > DEPENDS:
            wider = self._draws_as_actions(both, lands, aside)
            if _conflicts(wider) < _conflicts(drawn) / 2:
                draws, drawn = both, wider
        return DrawnTransitions(self.seen, self.layout, draws, lands, drawn, aside)

    def _numbers(self, draws: Draws) -> tuple[int, ...]:
        """Return a number for each step: of the action that intends it, or a free one."""
        numbers = {step: action for action, step in draws.intended.items()}
        taken = {*draws.certain, *numbers.values()}
        free = (n for n in range(len(draws.steps.values) + len(draws.shares)) if n not in taken)
        return tuple(
            numbers[step] if step in numbers else next(free)
            for step in range(len(draws.steps.values))
        )

    def _draws_as_actions(
        self, draws: Draws, lands: np.ndarray, aside: tuple[int, ...]
    ) -> Transitions:
        """Replace actions by draws; a row that several draws explain is repeated for each."""
        seen = self.seen
        sure = np.isin(seen.action, draws.certain)
        possible = lands & (draws.shares[seen.action] > 0) & ~sure[:, None]
        row, step = np.nonzero(possible)
        rows = np.concatenate([np.flatnonzero(sure), row])
        step = np.concatenate([np.full(int(sure.sum()), -1), step])
        action = draws.follow(seen.action[rows], step)
        weight = possible * draws.shares[seen.action]
        weight = weight / np.maximum(weight.sum(1, keepdims=True), 1e-12) * seen.count[:, None]
        count = np.concatenate([seen.count[sure], np.maximum(1, weight[possible].round())])
        after = self.ends[1][rows].copy()
        after[:, aside] = self.ends[0][rows][:, aside]
        sizes: tuple[int, ...] = (int(action.max()) + 1,)
        if draws.both:
            sizes = (seen.encoding.actions, len(draws.numbers))
        space = Space("discrete", low=(0,), high=(prod(sizes) - 1,))
        encoding = replace(
            seen.encoding, action_space=space, action_lows=(0,) * len(sizes), action_sizes=sizes
        )
        drawn = replace(
            seen,
            encoding=encoding if len(draws.numbers) else seen.encoding,
            before=seen.before[rows],
            action=action,
            after=join(after, self.layout),
            codes=seen.codes[rows],
            done=seen.done[rows],
            count=count,
        )
        return merged(drawn)


def merged(seen: Transitions) -> Transitions:
    """Merge equal transitions, and add up their counts."""
    names = ("before", "action", "after", "codes", "done")
    parts = [getattr(seen, name) for name in names]
    table, index = np.unique(np.column_stack(parts), axis=0, return_inverse=True)
    count = np.bincount(index.reshape(-1), weights=seen.count).astype(np.int64)
    width = seen.before.shape[1]
    return replace(
        seen,
        before=table[:, :width],
        action=table[:, width],
        after=table[:, width + 1 : -2],
        codes=table[:, -2],
        done=table[:, -1],
        count=count,
    )


def _conflicts(drawn: Transitions) -> float:
    """Return the share of rows without the most common outcome of their situation."""
    table = np.column_stack([drawn.before, drawn.action])
    group = np.unique(table, axis=0, return_inverse=True)[1].reshape(-1)
    most = np.zeros(int(group.max()) + 1)
    np.maximum.at(most, group, drawn.count)
    return float(1 - most.sum() / drawn.count.sum())


class _Explanation(NamedTuple):
    """A mask of the rows that steps explain, the shares of steps, and the bits of both."""

    bits: float
    lands: np.ndarray
    shares: np.ndarray


@dataclass(frozen=True)
class _StepSearch:
    """A search for the steps that explain transitions with the fewest bits.

    Equal transitions are merged: `count` says how often each was seen, and `rows` maps each
    original row to its merged transition. `paid` encodes reward and end.
    """

    old: np.ndarray
    after: np.ndarray
    paid: np.ndarray
    action: np.ndarray
    count: np.ndarray
    rows: np.ndarray
    radices: np.ndarray

    @classmethod
    def of(
        cls,
        old: np.ndarray,
        after: np.ndarray,
        paid: np.ndarray,
        action: np.ndarray,
        count: np.ndarray,
        radices: np.ndarray,
    ) -> "_StepSearch":
        """Merge and count equal transitions."""
        width = old.shape[1]
        table, rows = np.unique(
            np.column_stack([old, after, paid, action]), axis=0, return_inverse=True
        )
        rows = rows.reshape(-1)
        counts = np.bincount(rows, weights=count)
        ends = table[:, :width], table[:, width : 2 * width]
        return cls(*ends, table[:, -2], table[:, -1], counts, rows, radices)

    @cached_property
    def places(self) -> np.ndarray:
        """The index of the place before each transition."""
        return _row_indices(self.old)

    @cached_property
    def targets(self) -> np.ndarray:
        """The index of the next place and payment of each transition."""
        return _row_indices(self.after, self.paid)

    @cached_property
    def ways(self) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """For each place: its rows, their targets, and a mask (targets, rows)."""
        ways = []
        for place in range(int(self.places.max()) + 1):
            rows = np.flatnonzero(self.places == place)
            targets = np.unique(self.targets[rows])
            ways.append((rows, targets, self.targets[rows] == targets[:, None]))
        return ways

    @cached_property
    def usual(self) -> np.ndarray:
        """A mask of the transitions with the most common payment between their two places."""
        ways, ends = _row_indices(self.places, self.targets), _row_indices(self.old, self.after)
        counts = np.bincount(ways, weights=self.count)
        most = np.zeros(int(ends.max()) + 1)
        np.maximum.at(most, ends, counts[ways])
        first: np.ndarray = counts[ways] == most[ends]
        return first

    @cached_property
    def is_paid_by_chance(self) -> bool:
        """Whether payments differ between transitions of equal places and actions."""
        moves = _row_indices(self.old, self.after, self.action)
        counts = np.zeros(int(moves.max()) + 1)
        np.maximum.at(counts, moves, self.count)
        return bool(counts.sum() < (1 - CERTAIN / 2) * self.count.sum())

    def steps(self) -> tuple[Steps, np.ndarray, np.ndarray]:
        """Return the steps, a mask (rows, steps) of explained rows, and the shares by action.

        Random payments belong to the target of a step or are drawn separately; the shorter
        description wins.
        """
        apart = replace(self, paid=np.zeros_like(self.paid))._best_steps()
        if not self.is_paid_by_chance:
            best_fit = apart
        else:
            best_fit = self._best_steps()
            moves = _row_indices(self.old, self.after, self.action)
            shares = self.count / np.bincount(moves, weights=self.count)[moves]
            bits = -float((self.count * np.log2(shares)).sum())
            if apart[1].bits + bits < best_fit[1].bits:
                best_fit = apart
        steps, best = best_fit
        order = np.lexsort(steps.values.T[::-1])
        chosen = steps._replace(values=steps.values[order])
        return chosen, best.lands[self.rows][:, order], best.shares[:, order]

    def _best_steps(self) -> tuple[Steps, "_Explanation"]:
        """Return the steps with the shortest description, and their explanation."""
        return min(
            (self._pruned_steps(added) for added in self._readings()), key=lambda pair: pair[1].bits
        )

    @cached_property
    def often(self) -> np.ndarray:
        """The frequency of each transition among all transitions of its place and action."""
        index = _row_indices(self.places, self.action)
        share: np.ndarray = self.count / np.bincount(index, weights=self.count)[index]
        return share

    def _readings(self) -> list[np.ndarray]:
        """Return masks of factors that steps add to; steps set the other factors.

        Steps add to all factors, or only to factors whose changes vary less than their values.
        """
        pairs = zip(self.old.T, self.after.T, strict=True)
        less = [
            _variety(after - old, self.action, self.count)
            <= SETTING * _variety(after, self.action, self.count)
            for old, after in pairs
        ]
        every = np.ones(len(less), dtype=bool)
        return [every] if all(less) else [every, np.array(less)]

    def _pruned_steps(self, added: np.ndarray) -> tuple[Steps, _Explanation]:
        """Drop steps if exceptions of other steps have a shorter description."""
        steps = Steps.seen(self.old, self.after, added, self.count, MOST_STEPS[1])
        lands = (steps.landing(self.old, self.radices) == self.after[:, None]).all(2)
        lands &= self.usual[:, None]
        keys = self._keys(steps.landing(self.old, self.radices))
        kept = np.flatnonzero(_shares(lands, self.action, self.count, ROUNDS[1]).any(axis=0))
        best = self._explanation(lands[:, kept], keys[:, kept])
        while len(kept) > 1:
            rarest = kept[np.argsort(best.shares.sum(axis=0), kind="stable")][:MOST_TRIED]
            parts = [kept[kept != step] for step in rarest]
            trials = [self._explanation(lands[:, part], keys[:, part]) for part in parts]
            at = min(range(len(trials)), key=lambda number: trials[number].bits)
            if trials[at].bits >= best.bits:
                break
            kept, best = parts[at], trials[at]
        used = best.shares.any(axis=0)
        best = _Explanation(best.bits, best.lands[:, used], best.shares[:, used])
        return steps._replace(values=steps.values[kept[used]]), best

    def _keys(self, nominal: np.ndarray) -> np.ndarray:
        """Return an index of the offset between the end of each row and of each step."""
        offset = (self.after[:, None] - nominal).reshape(-1, nominal.shape[2])
        return _row_indices(offset).reshape(nominal.shape[:2])

    def _explanation(self, lands: np.ndarray, keys: np.ndarray) -> _Explanation:
        """Explain rows by steps with exceptions in places where exceptions save bits.

        An exception is cheaper if its offset or its target is common among exceptions.
        """
        nominal, spent = lands, 0.0
        shares = _shares(lands, self.action, self.count, ROUNDS[1])
        usual = np.ones(int(keys.max(initial=0)) + 1), np.ones(int(self.targets.max()) + 1)
        for turn in range(TURNS):
            before = lands
            lands, spent, usual = self._with_exceptions(nominal, keys, shares, usual, turn)
            if (lands == before).all():
                break
            shares = _shares(lands, self.action, self.count, ROUNDS[1])
        bits = _bits(lands, shares[self.action], self.count) + spent
        bits += float(np.log2(self.radices).sum()) * lands.shape[1]
        return _Explanation(bits + PARAMETER_BITS * np.count_nonzero(shares), lands, shares)

    def _with_exceptions(
        self,
        lands: np.ndarray,
        keys: np.ndarray,
        shares: np.ndarray,
        usual: tuple[np.ndarray, np.ndarray],
        turn: int,
    ) -> tuple[np.ndarray, float, tuple[np.ndarray, np.ndarray]]:
        """Return the mask of explained rows with exceptions, their price, and new counts.

        `usual` counts the offsets and the targets of exceptions; the result contains the new
        counts. In the first turn, equally good exceptions of a target share one count.
        """
        lands, given, spent = lands.copy(), shares[self.action], 0.0
        chance = np.maximum((lands * given).sum(1), 2**-UNFORESEEN_BITS)
        excess = self.count * (np.log2(self.often) - np.log2(chance))
        totals = np.bincount(self.places, weights=excess)
        far, ends = (np.full(len(counts), 0.1) for counts in usual)
        for place in np.flatnonzero(totals > EXCEPTION_BITS).tolist():
            rows, targets, there = self.ways[place]
            by_far = keys[rows[there.argmax(axis=1)]]
            odds = np.maximum(
                usual[0][by_far] / usual[0].sum(), (usual[1] / usual[1].sum())[targets][:, None]
            )
            price = LEAST_BITS + np.minimum(-np.log2(odds), MOST_BITS)
            inner, cost, chosen = _choose_exceptions(
                lands[rows], given[rows], self.count[rows], there, price, soft=turn == 0
            )
            spent += cost
            np.add.at(far, by_far, chosen)
            np.add.at(ends, targets, chosen.sum(axis=1))
            lands[rows] = inner
        return lands, spent, (far, ends)


def _row_indices(*columns: np.ndarray) -> np.ndarray:
    """Return an index for each row; equal rows have equal indices."""
    index: np.ndarray = np.unique(np.column_stack(columns), axis=0, return_inverse=True)[1]
    return index.reshape(-1)


def _choose_exceptions(
    lands: np.ndarray,
    given: np.ndarray,
    count: np.ndarray,
    there: np.ndarray,
    price: np.ndarray,
    *,
    soft: bool,
) -> tuple[np.ndarray, float, np.ndarray]:
    """Choose exceptions for one place greedily, the most useful first.

    `there` is a mask (targets, rows), and `price` the bits of an exception (targets, steps).
    Return the mask of explained rows, the bits of the exceptions, and the counts of chosen
    exceptions (targets, steps). If `soft` is set, count for each target all exceptions whose gain
    is near the largest gain; they share one count.
    """
    least, spent = _bits(lands, given, count), 0.0
    chosen = np.zeros(price.shape)
    while True:
        shares = lands * given
        other = shares.sum(1, keepdims=True) - shares
        chance = other + there[:, :, None] * given
        logs = np.log2(np.maximum(chance, 2**-UNFORESEEN_BITS))
        bits = -(logs * count[:, None]).sum(1)
        if soft and not chosen.any():
            gains = least - bits
            near = (gains > LEAST_BITS) & (gains > gains.max(axis=1, keepdims=True) - NEARLY)
            chosen = near / np.maximum(near.sum(axis=1, keepdims=True), 1)
        target, step = np.unravel_index(int((bits + price).argmin()), bits.shape)
        if bits[target, step] + price[target, step] >= least:
            return lands, spent, chosen
        least, spent = float(bits[target, step]), spent + float(price[target, step])
        lands = lands.copy()
        lands[:, step] = there[target]
        if not soft:
            chosen[target, step] += 1


def _bits(lands: np.ndarray, shares: np.ndarray, weight: np.ndarray) -> float:
    """Return the bits of rows, given the shares of their steps."""
    chance = (lands * shares).sum(1)
    return float(-(weight * np.log2(np.maximum(chance, 2**-UNFORESEEN_BITS))).sum())
