"""What chance decides: draws that stand for moves, and tables of how likely each draw is.

A draw is read as an action of its own, after which everything is certain: so what a draw
leads to has the same rules as environments without chance, walls and traps included.
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
"""Different steps that are considered, the commonest: to choose a reading, and of the chosen."""

TURNS = 6
"""Turns of asking how likely steps are, and where they lead elsewhere."""

ROUNDS = 6, 15
"""Rounds of expectation maximisation, likewise."""

LEAST_SHARE = 0.004
"""Share below which a step is taken for none of an action's."""

PARAMETER_BITS = 5.0
"""Price of a share."""

UNFORESEEN_BITS = 16.0
"""Price of a transition that no step explains."""

EXCEPTION_BITS = 8.0
"""Bits by which a place must be worse explained than it could be, to look where draws lead."""

LEAST_BITS, MOST_BITS = 3.0, 8.0
"""Price of a place where a draw leads elsewhere, and what comes on top where no other does so."""

NEARLY = 2.0
"""Bits by which something else may explain less and still be as good."""

SETTING = 1.1
"""How much more varied what is added to a factor may be than what it is set to, and be the rule."""

MOST_TRIED = 6
"""Steps that are tried to do without at a time, the rarest, to save time."""

LEAST_CONFLICTS = 2
"""Situations that must have been followed by different values of a factor that chance changes."""

CERTAIN = 0.03
"""Share of repeated situations with another outcome below which an action draws nothing."""

LEAST_REPEATS = 12
"""Repeated situations of an action from which on that is believed."""

DEPENDS = 0.01
"""Share of conflicts after equal draws from which on what follows may hang on the action too."""

DEPENDENT = 0.01
"""Bits that steps of two factors tell of one another from which on they are drawn together."""


class Steps(NamedTuple):
    """What may happen to factors together: numbers that are added, within bounds, or set."""

    values: np.ndarray
    added: np.ndarray

    def landing(self, old: np.ndarray, radices: np.ndarray) -> np.ndarray:
        """Return where every step leads from states: (rows, steps, factors)."""
        moved = np.clip(old[:, None] + self.values, 0, radices - 1)
        result: np.ndarray = np.where(self.added, moved, self.values)
        return result

    @classmethod
    def seen(
        cls, old: np.ndarray, after: np.ndarray, added: np.ndarray, count: np.ndarray, most: int
    ) -> "Steps":
        """Return the commonest steps."""
        values, index = np.unique(np.where(added, after - old, after), axis=0, return_inverse=True)
        counts = np.bincount(index.reshape(-1), weights=count)
        return cls(values[np.argsort(-counts, kind="stable")[:most]], added)


def _variety(values: np.ndarray, action: np.ndarray, count: np.ndarray) -> float:
    """Return the bits that values take where the action is known."""
    total = 0.0
    for number in np.unique(action):
        rows = action == number
        counts = np.bincount(values[rows] - values.min(), weights=count[rows])
        counts = counts[counts > 0]
        total -= float((counts * np.log2(counts / counts.sum())).sum())
    return total


def _shares(lands: np.ndarray, action: np.ndarray, count: np.ndarray, rounds: int) -> np.ndarray:
    """Estimate how often each action takes which step, by expectation maximisation."""
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
    """Return the reading of numbers in which few steps, drawn by action, explain most."""
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
    """What is drawn together: steps of some factors, and the number that stands for each.

    `axes` are the factors; actions in `certain` draw nothing, and stand for themselves.
    `numbers` has a number for each step, as if it were an action; with `both` that of the action
    stands before it, as what follows hangs on both. `shares` says how likely each action takes
    each step where nothing else is known.
    """

    axes: tuple[int, ...]
    steps: Steps
    certain: tuple[int, ...]
    numbers: tuple[int, ...]
    shares: np.ndarray
    both: bool = False

    def follow(self, action: np.ndarray, step: np.ndarray) -> np.ndarray:
        """Return the number of what is drawn; a step below 0 is that of an action without draws."""
        numbers = np.array([*self.numbers, 0])[step]
        alone: np.ndarray = np.where(step < 0, action, numbers)
        return action * len(self.numbers) + numbers if self.both else alone

    def known_steps(self, count: int) -> dict[int, np.ndarray]:
        """Return what each of so many numbers adds to each factor that draws add to."""
        found = {}
        for place, axis in enumerate(self.axes):
            if self.steps.added[place] and len(self.numbers):
                found[axis] = np.zeros(count, dtype=np.int64)
                for action in range(len(self.shares)):
                    if action not in self.certain:
                        many = np.full(len(self.numbers), action)
                        numbers = self.follow(many, np.arange(len(self.numbers)))
                        found[axis][numbers] = self.steps.values[:, place]
        return found

    @property
    def intended(self) -> Mapping[int, int]:
        """For every action that draws the step that it mostly is about, if no two have the same."""
        found = {}
        for action, shares in enumerate(self.shares):
            if action not in self.certain and shares.any():
                mean = shares @ self.steps.values
                worth = np.where(shares > 0, self.steps.values @ mean + 0.001 * shares, -np.inf)
                found[action] = int(worth.argmax())
        return found if len(set(found.values())) == len(found) else {}


@dataclass(frozen=True)
class DrawnTransitions:
    """Transitions in factors, with what chance decides in them.

    `landing` has for every row and step of `draws` whether it explains the row. `as_drawn`
    are the same transitions with draws in the place of actions.
    """

    seen: Transitions
    layout: Layout
    draws: Draws
    landing: np.ndarray
    as_drawn: Transitions
    aside: tuple[int, ...]


def draw(seen: Transitions) -> DrawnTransitions:
    """Find what is drawn."""
    layout = chance_layout(seen)
    return _Finding(replace(seen, readings=(layout,)), layout).found


@dataclass(frozen=True)
class _Finding:
    """Transitions that are looked at for what chance decides, in one layout."""

    seen: Transitions
    layout: Layout

    @cached_property
    def ends(self) -> tuple[np.ndarray, np.ndarray]:
        """The states before and after, in factors."""
        return self.seen.in_factors(self.layout)

    @cached_property
    def radices(self) -> np.ndarray:
        """The radix of every factor."""
        return np.array([radix for part in self.layout for radix in part])

    @cached_property
    def situations(self) -> np.ndarray:
        """The number of the observation and action of every row."""
        table = np.column_stack([self.seen.before, self.seen.action])
        numbers: np.ndarray = np.unique(table, axis=0, return_inverse=True)[1].reshape(-1)
        return numbers

    @cached_property
    def chancy(self) -> tuple[int, ...]:
        """The factors that equal situations were followed by different values of."""
        going = self.seen.done == 0
        found = []
        for factor, values in enumerate(self.ends[1].T):
            pairs = np.unique(np.stack([self.situations[going], values[going]], axis=1), axis=0)
            several = np.bincount(pairs[:, 0])
            if np.count_nonzero(several > 1) >= LEAST_CONFLICTS:
                found.append(factor)
        return tuple(found)

    @cached_property
    def axes(self) -> tuple[int, ...]:
        """The factors that are drawn together: one that varies most, and those that hang on it."""
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
        """The actions after which the axes follow from the situation."""
        after = self.ends[1][:, self.axes]
        found = []
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
                found.append(action)
        return tuple(found)

    @cached_property
    def found(self) -> DrawnTransitions:
        """Everything that was found."""
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
            steps, inner, some = _Explaining.of(old, after, paid, action, count, sizes).steps()
            lands = np.zeros((len(drawing), len(steps.values)), bool)
            lands[drawing] = inner
            shares = np.zeros((actions, len(steps.values)))
            shares[: len(some)] = some
            certain = self.certain
        draws = Draws(axes, steps, certain, (), shares)
        draws = replace(draws, numbers=self._numbers(draws))
        drawn = self._drawn(draws, lands, aside)
        both = replace(draws, both=True, numbers=tuple(range(len(steps.values))))
        if len(steps.values) and _conflicts(drawn) > DEPENDS:
            wider = self._drawn(both, lands, aside)
            if _conflicts(wider) < _conflicts(drawn) / 2:
                draws, drawn = both, wider
        return DrawnTransitions(self.seen, self.layout, draws, lands, drawn, aside)

    def _numbers(self, draws: Draws) -> tuple[int, ...]:
        """Return a number for each draw: of the action that intends it, or of no action."""
        numbers = {step: action for action, step in draws.intended.items()}
        taken = {*draws.certain, *numbers.values()}
        free = (n for n in range(len(draws.steps.values) + len(draws.shares)) if n not in taken)
        return tuple(
            numbers[step] if step in numbers else next(free)
            for step in range(len(draws.steps.values))
        )

    def _drawn(self, draws: Draws, lands: np.ndarray, aside: tuple[int, ...]) -> Transitions:
        """Put draws in the place of actions; rows that several explain are rows of each."""
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
        width = seen.before.shape[1]
        table = np.column_stack(
            [seen.before[rows], action, join(after, self.layout), seen.codes[rows], seen.done[rows]]
        )
        unique, index = np.unique(table, axis=0, return_inverse=True)
        counts = np.bincount(index.reshape(-1), weights=count).astype(np.int64)
        sizes: tuple[int, ...] = (int(action.max()) + 1,)
        if draws.both:
            sizes = (seen.encoding.actions, len(draws.numbers))
        space = Space("discrete", low=(0,), high=(prod(sizes) - 1,))
        encoding = replace(
            seen.encoding, action_space=space, action_lows=(0,) * len(sizes), action_sizes=sizes
        )
        if not len(draws.numbers):
            encoding = seen.encoding
        return replace(
            seen,
            encoding=encoding,
            before=unique[:, :width],
            action=unique[:, width],
            after=unique[:, width + 1 : -2],
            codes=unique[:, -2],
            done=unique[:, -1],
            count=counts,
        )


def _conflicts(drawn: Transitions) -> float:
    """Return the share of rows in which something else followed than usually does."""
    table = np.column_stack([drawn.before, drawn.action])
    group = np.unique(table, axis=0, return_inverse=True)[1].reshape(-1)
    most = np.zeros(int(group.max()) + 1)
    np.maximum.at(most, group, drawn.count)
    return float(1 - most.sum() / drawn.count.sum())


class _Explained(NamedTuple):
    """What some steps explain, and the bits that it takes."""

    bits: float
    lands: np.ndarray
    shares: np.ndarray


@dataclass(frozen=True)
class _Explaining:
    """Where actions lead from places: different ones, and how often each was seen.

    `rows` holds the number of the different one that every row is.
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
    ) -> "_Explaining":
        """Count what is alike."""
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
        """The number of the place in which each begins."""
        return _numbered(self.old)

    @cached_property
    def targets(self) -> np.ndarray:
        """The number of the place in which each ends, and of what is paid on the way."""
        return _numbered(self.after, self.paid)

    @cached_property
    def ways(self) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """For every place what begins there, the targets, and what ends in which of these."""
        found = []
        for place in range(int(self.places.max()) + 1):
            rows = np.flatnonzero(self.places == place)
            targets = np.unique(self.targets[rows])
            found.append((rows, targets, self.targets[rows] == targets[:, None]))
        return found

    @cached_property
    def usual(self) -> np.ndarray:
        """Whether each is the commonest way from its place to where it ends."""
        ways, ends = _numbered(self.places, self.targets), _numbered(self.old, self.after)
        counts = np.bincount(ways, weights=self.count)
        most = np.zeros(int(ends.max()) + 1)
        np.maximum.at(most, ends, counts[ways])
        first: np.ndarray = counts[ways] == most[ends]
        return first

    @cached_property
    def is_paid_by_chance(self) -> bool:
        """Whether what is paid differs where equal actions led from and to equal places."""
        moves = _numbered(self.old, self.after, self.action)
        counts = np.zeros(int(moves.max()) + 1)
        np.maximum.at(counts, moves, self.count)
        return bool(counts.sum() < (1 - CERTAIN / 2) * self.count.sum())

    def steps(self) -> tuple[Steps, np.ndarray, np.ndarray]:
        """Return the steps, which of them explain which rows, and their shares by action.

        Where chance decides what is paid, that is part of where a step leads or drawn by itself.
        """
        apart = replace(self, paid=np.zeros_like(self.paid))._found()
        if not self.is_paid_by_chance:
            found = apart
        else:
            found = self._found()
            moves = _numbered(self.old, self.after, self.action)
            shares = self.count / np.bincount(moves, weights=self.count)[moves]
            bits = -float((self.count * np.log2(shares)).sum())
            if apart[1].bits + bits < found[1].bits:
                found = apart
        steps, best = found
        order = np.lexsort(steps.values.T[::-1])
        chosen = steps._replace(values=steps.values[order])
        return chosen, best.lands[self.rows][:, order], best.shares[:, order]

    def _found(self) -> tuple[Steps, "_Explained"]:
        """Return the steps that explain most in fewest bits."""
        return min(
            (self._chosen(added) for added in self._readings()), key=lambda pair: pair[1].bits
        )

    @cached_property
    def often(self) -> np.ndarray:
        """How often the action led from the place to the target, as a share."""
        index = _numbered(self.places, self.action)
        share: np.ndarray = self.count / np.bincount(index, weights=self.count)[index]
        return share

    def _readings(self) -> list[np.ndarray]:
        """Return whether numbers are added to each factor, or set: all added, or as varies less."""
        pairs = zip(self.old.T, self.after.T, strict=True)
        less = [
            _variety(after - old, self.action, self.count)
            <= SETTING * _variety(after, self.action, self.count)
            for old, after in pairs
        ]
        every = np.ones(len(less), dtype=bool)
        return [every] if all(less) else [every, np.array(less)]

    def _chosen(self, added: np.ndarray) -> tuple[Steps, _Explained]:
        """Leave out steps where it is shorter to say that others lead elsewhere in some places."""
        steps = Steps.seen(self.old, self.after, added, self.count, MOST_STEPS[1])
        lands = (steps.landing(self.old, self.radices) == self.after[:, None]).all(2)
        lands &= self.usual[:, None]
        keys = self._keys(steps.landing(self.old, self.radices))
        kept = np.flatnonzero(_shares(lands, self.action, self.count, ROUNDS[1]).any(axis=0))
        best = self._explained(lands[:, kept], keys[:, kept])
        rare = True  # the rarest steps are tried first, and the others where none of them is spare
        while len(kept) > 1:
            rarest = kept[np.argsort(best.shares.sum(axis=0), kind="stable")]
            rarest = rarest[:MOST_TRIED] if rare else rarest[MOST_TRIED:]
            parts = [kept[kept != step] for step in rarest]
            found = [self._explained(lands[:, part], keys[:, part]) for part in parts]
            spare = [step for step, one in zip(rarest, found, strict=True) if one.bits < best.bits]
            if not spare and (not rare or len(kept) <= MOST_TRIED):
                break
            rare = bool(spare)
            if not spare:
                continue
            at = min(range(len(found)), key=lambda number: found[number].bits)
            fewer, trial = parts[at], found[at]
            if 1 < len(spare) < len(kept):
                without = kept[~np.isin(kept, spare)]
                several = self._explained(lands[:, without], keys[:, without])
                if several.bits < trial.bits:
                    fewer, trial = without, several
            kept, best = fewer, trial
        used = best.shares.any(axis=0)
        best = _Explained(best.bits, best.lands[:, used], best.shares[:, used])
        return steps._replace(values=steps.values[kept[used]]), best

    def _keys(self, nominal: np.ndarray) -> np.ndarray:
        """Return the number of what lies between where steps lead and where rows end."""
        offset = (self.after[:, None] - nominal).reshape(-1, nominal.shape[2])
        return _numbered(offset).reshape(nominal.shape[:2])

    def _explained(self, lands: np.ndarray, keys: np.ndarray) -> _Explained:
        """Explain rows by some steps, which lead elsewhere in places where that pays.

        It is cheaper where they lead as far from where they should as elsewhere, or to one target.
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
        return _Explained(bits + PARAMETER_BITS * np.count_nonzero(shares), lands, shares)

    def _with_exceptions(
        self,
        lands: np.ndarray,
        keys: np.ndarray,
        shares: np.ndarray,
        usual: tuple[np.ndarray, np.ndarray],
        turn: int,
    ) -> tuple[np.ndarray, float, tuple[np.ndarray, np.ndarray]]:
        """Return which steps explain what, once some lead elsewhere, and what these cost.

        `usual` counts by how much and to which target steps lead elsewhere; also return the new
        counts. In the first turn everything that explains as much counts a part.
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
            inner, cost, chosen = _elsewhere(
                lands[rows], given[rows], self.count[rows], there, price, soft=turn == 0
            )
            spent += cost
            np.add.at(far, by_far, chosen)
            np.add.at(ends, targets, chosen.sum(axis=1))
            lands[rows] = inner
        return lands, spent, (far, ends)


def _numbered(*columns: np.ndarray) -> np.ndarray:
    """Give equal rows of columns equal numbers."""
    index: np.ndarray = np.unique(np.column_stack(columns), axis=0, return_inverse=True)[1]
    return index.reshape(-1)


def _elsewhere(
    lands: np.ndarray,
    given: np.ndarray,
    count: np.ndarray,
    there: np.ndarray,
    price: np.ndarray,
    *,
    soft: bool,
) -> tuple[np.ndarray, float, np.ndarray]:
    """Let steps lead from one place to other targets, the one that explains most first.

    `there` says which rows end at which target, `price` what it costs that a step leads there.
    Return what explains what, what it costs, and the counts of what was chosen (targets, steps):
    where they are `soft`, all that would have explained nearly as much count a part.
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
    """Return the bits of rows whose steps have given shares."""
    chance = (lands * shares).sum(1)
    return float(-(weight * np.log2(np.maximum(chance, 2**-UNFORESEEN_BITS))).sum())
