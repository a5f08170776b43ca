"""Candidates for one output: expressions to start from, and the kernels built on them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

import numpy as np
from scipy import special

from cwm_induction.chance.balances import balances
from cwm_induction.chance.counts import (
    BINOMIAL,
    GEOMETRIC,
    NORMAL,
    POISSON,
    CountKernel,
    Draw,
    Family,
    dice,
)
from cwm_induction.chance.kernels import ChoiceKernel, Kernel, OutcomeTarget
from cwm_induction.chance.quantities import (
    MIN_SIDE,
    KnownQuantity,
    OutcomeRows,
    clipped,
    constant,
    distinct,
    flows,
    is_whole,
    number,
    plus,
    shifted,
)
from cwm_induction.effort import Effort

Array = np.ndarray

FACTORS = tuple(range(1, 11))
"""Numbers that an action may be multiplied by."""

MAX_EFFECTS = 10
"""Actions with a constant effect each."""

MAX_CHOICES = 16
"""Expressions of a choice; an output with more values is a count."""

FEW_CHOICES = 3
"""Choices that explain a group so well that no count is tried for it."""

COVERED = 0.995
"""Share of the rows of a group that choices must explain."""

ONE_SIDED = 0.97
"""Minimum share of residuals on one side of the base for a single draw."""

BASES_PER_GROUP = 3
"""Expressions per group of rows that counts are added to: the expressions of lowest cost."""

TWO_SIDED_BASES = 12
"""The same for the sum of two counts, whose base is less sharp."""

NOISY_BASES = 1
"""Expressions per group of rows that rounded normal noise is added to."""

IDLE_SHARE = 0.08
"""Minimum share of rows without a draw, before an event may decide whether a count is drawn."""

RANKING_COST = 6e4
"""Operations to rank an expression in a group of rows."""

MAX_RANKED = 200
"""Rows for the ranking of expressions, because a ranking needs less precision than a fit."""

MAX_BALANCED_GROUPS = 12
"""Maximum number of groups with balances: all rows, and the rows with one action or flag."""

MAX_KERNELS = 60
"""Kernels of counts, because they take most of the time. All rows together get half this number,
every group of rows gets a sixth, and the maximum in total is twice this number."""

DICE = ((1, 4), (1, 6), (1, 8), (1, 10), (1, 12), (1, 20), (2, 4), (2, 6), (2, 8), (2, 10), (3, 6))
"""Numbers of dice and sides that are tried."""

WIDE = 8.0
"""Standard deviation of residuals above which sums of two counts without trials are not tried:
they look like rounded normal noise and take most of the time."""

TOKEN_BITS = 3.0
"""Price of an operand of an expression."""


def kernels(target: OutcomeTarget, rows: OutcomeRows, learn: Array, effort: Effort) -> list[Kernel]:
    """Return the kernels to choose from for an output, the simple ones first."""
    return _Candidates(target, rows, learn, effort).kernels()


def expressions(
    target: OutcomeTarget, rows: OutcomeRows, learn: Array, effort: Effort
) -> list[KnownQuantity]:
    """Return the expressions that an output may equal, the simple ones first."""
    return _Candidates(target, rows, learn, effort).bases


@dataclass(frozen=True)
class _Candidates:
    """Expressions for an output, and their quality in every group of rows."""

    target: OutcomeTarget
    rows: OutcomeRows
    learn: Array
    effort: Effort

    def kernels(self) -> list[Kernel]:
        """Return choices and counts for every group of rows."""
        usual = self.target.own or constant(0, self.target.values)
        choices: dict[tuple[str, ...], Kernel] = {(usual.text,): self._choice([usual])}
        counts: dict[str, CountKernel] = {}
        for group in self.groups:
            chosen = self._cover(group)
            if chosen:
                kernel = self._choice(chosen)
                choices.setdefault(tuple(q.text for q in kernel.choices), kernel)
                for choice in chosen[1:4]:
                    pair = self._choice([chosen[0], choice])
                    choices.setdefault(tuple(q.text for q in pair.choices), pair)
            few = chosen is not None and len(chosen) <= FEW_CHOICES
            if not few and not self.target.is_label:
                most = MAX_KERNELS // (2 if group is self.groups[0] else 6)
                counts |= self._fresh(group, counts, most)
        return [*choices.values(), *counts.values()]

    def _fresh(
        self, group: Array, known: dict[str, CountKernel], most: int
    ) -> dict[str, CountKernel]:
        """Return further counts of a group by their keys, and its normal noise beyond the limit."""
        found = {_key(count): count for count in islice(self._counts(group), 4 * most)}
        fresh = [key for key in found if key not in known]
        noisy = [key for key in fresh if "rounded_normal" in key]
        fresh = [key for key in fresh if key not in noisy]
        room = max(2 * MAX_KERNELS - len(known), 0)
        return {key: found[key] for key in [*fresh[: min(most, room)], *noisy]}

    @cached_property
    def groups(self) -> list[Array]:
        """Masks of the groups of rows that have enough rows."""
        found = [group & self.learn for group in self.rows.groups()]
        return [group for group in found if group.sum() > MIN_SIDE]

    @cached_property
    def changes(self) -> list[float]:
        """The common changes of the output, over all groups."""
        if self.target.own is None:
            return []
        change = self.target.values - self.target.own.values
        return _common([change[group] for group in self.groups])

    @cached_property
    def bases(self) -> list[KnownQuantity]:
        """Expressions that the output may equal, or that a count is added to."""
        target, rows = self.target, self.rows
        zero, own = constant(0, target.values), target.own
        starts = [own] if own is not None else []
        others = [part for part in rows.known if own is None or part.text != own.text]
        others = [part for part in others if is_whole(part.values)]
        if target.is_label:  # numbers of actions are no amounts of a flag
            others = [part for part in others if part not in rows.actions or part.values.max() <= 1]
        found = [*starts, zero]
        if own is not None:
            found += [shifted(own, change) for change in self.changes]
            if set(np.unique(own.values)) <= {0.0, 1.0}:
                found.append(plus(constant(1, own.values), -1, own))
            found += self._cycles(own)
        found += others
        low, high = float(target.low.max()), float(target.high.min())
        if not target.is_label:
            found += balances(target.values, (low, high), rows, self.groups[:MAX_BALANCED_GROUPS])
        common = _common([target.values[group] for group in self.groups])
        found += [constant(value, target.values) for value in common]
        if target.is_label:
            return distinct(self._limited(part) for part in found)
        earlier = [part for part in rows.earlier if is_whole(part.values)]
        for amount in [*earlier, *self.flows]:
            found += [plus(own, sign, amount) for own in starts for sign in (1, -1)]
        whole = [part for part in rows.now if is_whole(part.values)]
        found += [plus(part, 1, step) for part in whole for step in self.steps]
        found += self.flows
        return distinct(self._limited(part) for part in found)

    @cached_property
    def steps(self) -> list[KnownQuantity]:
        """Multiples of each part of the action: the one of lowest entropy, and the action."""
        found = []
        for part in self.rows.actions:
            if len(np.unique(part.values)) > 2 and is_whole(part.values):
                times = [
                    KnownQuantity(part.text if k == 1 else f"{k} * {part.text}", k * part.values)
                    for k in FACTORS
                ]
                costs = [self._factor_bits(step) for step in times]
                found += [times[0], times[int(np.argmin(costs))]]
        return distinct(found)

    def _factor_bits(self, step: KnownQuantity) -> float:
        whole = [part for part in self.rows.now if is_whole(part.values)]
        parts = [self._limited(plus(part, sign, step)) for part in whole for sign in (1, -1)]
        return min((self._normal_bits(part, self.learn) for part in parts), default=0.0)

    @cached_property
    def flows(self) -> list[KnownQuantity]:
        """Amounts that the action may move."""
        factors = {1, *(int(s.text.split(" * ")[0]) for s in self.steps if " * " in s.text)}
        return flows(self.rows, sorted(factors))

    def _cycles(self, own: KnownQuantity) -> Iterator[KnownQuantity]:
        size = self.target.high.max() + 1
        if np.isfinite(size) and 2 < size <= 400:
            for step in (1, -1):
                sign = "+" if step > 0 else "-"
                text = f"({own.text} {sign} 1) % {int(size)}"
                yield KnownQuantity(text, (own.values + step) % size)

    def _limited(self, part: KnownQuantity) -> KnownQuantity:
        low, high = float(self.target.low.max()), float(self.target.high.min())
        return clipped(part, low, high)

    @cached_property
    def matches(self) -> Array:
        """Whether each expression equals the output (rows, expressions)."""
        return np.stack([base.values == self.target.values for base in self.bases], axis=1)

    def _cover(self, group: Array) -> list[KnownQuantity] | None:
        """Return the fewest expressions that explain a group, None if they are too many."""
        left = group.copy()
        chosen: list[KnownQuantity] = []
        simple = np.array([0.25 if self._is_plain(base) else _tokens(base) for base in self.bases])
        own = np.arange(len(self.bases)) == (0 if self.target.own else -1)
        allowed = (1 - COVERED) * group.sum()
        while left.sum() > allowed:
            if len(chosen) >= MAX_CHOICES:
                return None
            gains = self.matches[left].sum(axis=0) - 2.0 * simple + own
            best = int(gains.argmax())
            if self.matches[left, best].sum() < 2 or gains[best] <= 0:
                return None if left.sum() > 0.05 * group.sum() else chosen
            chosen.append(self.bases[best])
            left &= ~self.matches[:, best]
        return chosen

    def _choice(self, chosen: Sequence[KnownQuantity]) -> ChoiceKernel:
        bits = TOKEN_BITS * sum(_tokens(base) for base in chosen)
        return ChoiceKernel(self.target, tuple(chosen), bits, self.learn)

    def _normal_bits(self, base: KnownQuantity, group: Array) -> float:
        """Return the bits of the residuals as rounded normal noise that the bounds limit."""
        group = _some(group)
        values = self.target.values[group]
        gap = values - base.values[group]
        top, bottom = values >= self.target.high[group], values <= self.target.low[group]
        free = gap[~(top | bottom)]
        if len(free) < MIN_SIDE:
            free = gap
        size = max(float(free.std()), 0.3)
        means = float(free.mean()) + size * np.linspace(-1.5, 1.5, 7)[:, None, None]
        sizes = size * np.array([0.7, 1.0, 1.4])[:, None]
        above = np.where(top, 1.0, special.ndtr((gap + 0.5 - means) / sizes))
        below = np.where(bottom, 0.0, special.ndtr((gap - 0.5 - means) / sizes))
        scores = np.log2(np.maximum(above - below, 1e-6)).sum(axis=-1)
        return -float(scores.max())

    def _counts(self, group: Array) -> Iterator[CountKernel]:
        """Yield counts on the best bases of a group."""
        bases = [base for base in self.bases if not base.text.lstrip("-").isdigit()]
        if not self.effort.spend(RANKING_COST * len(bases)):
            return
        costs = [self._normal_bits(base, group) + TOKEN_BITS * _tokens(base) for base in bases]
        order = np.argsort(costs, kind="stable").tolist()
        zero = constant(0, self.target.values)
        own = [self.target.own] if self.target.own else []
        if own:
            usual = _common([(self.target.values - own[0].values)[group]])[:1]
            own += [self._limited(shifted(own[0], change)) for change in usual]
            own += self._effects(own[0])
        own = own or [zero]
        likely = [bases[n] for n in order[:BASES_PER_GROUP]]
        is_whole_table = group is self.groups[0]
        for base in distinct([*own, zero, *likely] if is_whole_table else [*own, *likely, zero]):
            yield from self._on_base(base, group)
        for base in likely[:NOISY_BASES]:
            yield self._count(base, (Draw(NORMAL, 1),), None)
        if is_whole_table:
            for base in [bases[n] for n in order[BASES_PER_GROUP:TWO_SIDED_BASES]]:
                if self._side(base, group) == 0:
                    yield from self._two_sided(base)

    def _effects(self, own: KnownQuantity) -> Iterator[KnownQuantity]:
        """Yield the output's own value plus a constant for each action, the median change."""
        change, learn = self.target.values - own.values, self.learn
        for part in self.rows.actions:
            levels = np.unique(part.values)
            if not is_whole(part.values) or levels.min() < 0 or levels.max() >= MAX_EFFECTS:
                continue
            rows = [learn & (part.values == level) for level in range(int(levels.max()) + 1)]
            medians = [float(np.median(change[r]).round()) if r.any() else 0.0 for r in rows]
            if len(set(medians)) > 1:
                text = f"({', '.join(map(number, medians))})[int({part.text})]"
                effect = np.array(medians)[part.values.astype(int)]
                yield self._limited(plus(own, 1, KnownQuantity(text, effect)))

    def _is_plain(self, base: KnownQuantity) -> bool:
        return np.ptp(base.values) == 0 or self._is_shift(base)

    def _is_shift(self, base: KnownQuantity) -> bool:
        return base.text in self._shifts

    @cached_property
    def _shifts(self) -> set[str]:
        """The texts of all shifts of the output's own value."""
        own = self.target.own
        changes = [change for change in self.changes if change] if own is not None else []
        return {self._limited(shifted(own, change)).text for change in changes if own}

    def _on_base(self, base: KnownQuantity, group: Array) -> Iterator[CountKernel]:
        """Yield the counts that residuals on a base allow."""
        gap, side = self._gap(base, group), self._side(base, group)
        if side > 0:
            for start in sorted({0.0, float(np.quantile(gap, 0.01, method="lower"))}):
                yield from self._one_sided(shifted(base, start), 1, gap - start, group)
        elif side < 0:
            for start in sorted({0.0, float(np.quantile(gap, 0.99, method="higher"))}):
                yield from self._one_sided(shifted(base, start), -1, start - gap, group)
        else:
            yield from self._two_sided(base)

    def _gap(self, base: KnownQuantity, group: Array) -> Array:
        """Return the residuals of the rows of a group that no bound limits."""
        values = self.target.values
        free = group & (values < self.target.high) & (values > self.target.low)
        free = free if free.sum() > MIN_SIDE else group
        gap: Array = (values - base.values)[free]
        return gap

    def _side(self, base: KnownQuantity, group: Array) -> int:
        """Return 1 or -1 if almost all residuals have that sign, else 0."""
        gap = self._gap(base, group)
        return int((gap >= 0).mean() >= ONE_SIDED) or -int((gap <= 0).mean() >= ONE_SIDED)

    def _one_sided(
        self, base: KnownQuantity, sign: int, gap: Array, group: Array
    ) -> Iterator[CountKernel]:
        for limit in (None, *self._limits(base, sign, group)):
            for draw in self._draws(base, sign, gap, group):
                yield self._count(base, (draw,), limit)
        for idle in self._idle(base, group):
            moved = group & (self.target.values != idle.values)
            for draw in self._draws(base, sign, self._gap(base, moved) * sign, moved):
                yield self._count(base, (draw,), None, idle)

    def _idle(self, base: KnownQuantity, group: Array) -> Iterator[KnownQuantity]:
        """Yield values of the output when nothing is drawn, which many rows have."""
        target = self.target
        for idle in [*([target.own] if target.own else []), constant(0, target.values)]:
            share = float((idle.values == target.values)[group].mean())
            if IDLE_SHARE < share < 1 - IDLE_SHARE and target.name:
                yield idle

    def _draws(self, base: KnownQuantity, sign: int, gap: Array, group: Array) -> Iterator[Draw]:
        yield Draw(POISSON, sign)
        yield Draw(GEOMETRIC, sign)
        most = int(gap.max())
        if base.values.min() >= 0 and len(np.unique(base.values)) > 1:
            yield Draw(BINOMIAL, sign, base)
        for trials in range(max(most, 2), most + 2):
            if trials <= 12:
                yield Draw(BINOMIAL, sign, constant(trials, base.values))
        for part in (*self.rows.now, *self.rows.earlier):
            if part.text == base.text or not is_whole(part.values) or np.ptp(part.values) <= 1:
                continue
            tries = part.values
            if tries.min() >= 0 and (tries[group] >= gap.max(initial=0)).mean() > 0.1:
                yield Draw(BINOMIAL, sign, part)
        for count, sides in DICE:
            if gap.min() >= count and most in range(count * sides - count, count * sides + 1):
                yield Draw(dice(count, sides), sign)

    def _limits(self, base: KnownQuantity, sign: int, group: Array) -> Iterator[KnownQuantity]:
        """Yield stocks that the output never exceeds but sometimes reaches."""
        if base.text != "0" or sign < 0:
            return
        values = self.target.values[group]
        for part in self.rows.now:
            stock = part.values[group]
            if (values <= stock).mean() > 0.99 and (values == stock).mean() > 0.01:
                yield part

    def _two_sided(self, base: KnownQuantity) -> Iterator[CountKernel]:
        ups: list[tuple[Family, KnownQuantity | None]] = [(POISSON, None), (GEOMETRIC, None)]
        downs: list[tuple[Family, KnownQuantity | None]] = [(POISSON, None)]
        if (self.target.values - base.values)[self.learn].std() > WIDE:
            ups, downs = [], []
        if base.values.min() >= 0:
            downs.insert(0, (BINOMIAL, base))
            ups.append((BINOMIAL, base))
        for family, trials in ups:
            for other, count in downs:
                yield self._count(base, (Draw(family, 1, trials), Draw(other, -1, count)), None)

    def _count(
        self,
        base: KnownQuantity,
        draws: tuple[Draw, ...],
        limit: KnownQuantity | None,
        idle: KnownQuantity | None = None,
    ) -> CountKernel:
        parts = [base, *([idle] if idle else []), *(draw.trials for draw in draws if draw.trials)]
        bits = TOKEN_BITS * (sum(map(_tokens, parts)) + len(draws) + (limit is not None))
        return CountKernel(self.target, base, draws, bits, limit, idle)


def _some(group: Array) -> Array:
    """Return at most some hundred rows of a mask, as indices."""
    rows = np.flatnonzero(group)
    return rows[:: 1 + len(rows) // MAX_RANKED]


def _common(groups: Sequence[Array]) -> list[float]:
    """Return the common values over groups, at most twelve of each."""
    found: dict[float, None] = {}
    for values in groups:
        levels, counts = np.unique(values, return_counts=True)
        order = np.argsort(-counts, kind="stable")[:12]
        found |= dict.fromkeys(float(levels[n]) for n in order if counts[n] > 1)
    return list(found)


def _tokens(quantity: KnownQuantity) -> int:
    """Return the number of operands of an expression."""
    return 1 + sum(quantity.text.count(mark) for mark in (" + ", " - ", " * ", ", ", " % "))


def _key(kernel: CountKernel) -> str:
    draws = ", ".join(f"{draw.sign}{draw.call('p')}" for draw in kernel.draws)
    others = [part.text for part in (kernel.limit, kernel.idle) if part is not None]
    return f"{kernel.base.text}: {draws} {others}"
