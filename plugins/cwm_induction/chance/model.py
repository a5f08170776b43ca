"""The random model of an environment: its outputs in an order, each given those before it.

Every output has a tree of conditions with a kernel in every leaf, chosen by description length.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_induction.chance.balances import balances
from cwm_induction.chance.candidates import COVERED, ONE_SIDED, kernels
from cwm_induction.chance.counts import NORMAL, CountKernel
from cwm_induction.chance.events import SharedEvent, find_event
from cwm_induction.chance.kernels import (
    FittedKernel,
    Kernel,
    OutcomeTarget,
    ParametricKernel,
    SlopeKernel,
)
from cwm_induction.chance.normal import regressions
from cwm_induction.chance.quantities import (
    MIN_SIDE,
    KnownQuantity,
    OutcomeRows,
    ParameterCondition,
    is_whole,
)
from cwm_induction.chance.rewards import RandomReward, fit_reward
from cwm_induction.chance.transfers import fit_transfers, is_large
from cwm_induction.effort import Effort

Array = np.ndarray

MAX_DEPTH = 8
"""Maximum number of conditions above a leaf."""

SMOOTH_TRIED = 3
"""Kernels per node whose parameter may change with a quantity."""

MOST_FITTED, COST_ERROR = 4, 8.0
"""Kernels per node that are fitted, and their distance in bits from the best one, as costs are
interpolated between the points of a coarse grid."""

NOISE_BITS = 30.0
"""Bits that normal noise must save per output, because almost any errors look normal."""

MATRIX_SPEED = 0.05
"""Cost of a multiplication in a matrix product, relative to other arithmetic."""


@dataclass(frozen=True)
class Tree:
    """A leaf, or a condition with a tree for either answer."""

    bits: float
    leaf: FittedKernel | None = None
    condition: ParameterCondition | None = None
    yes: "Tree | None" = None
    no: "Tree | None" = None

    def leaves(self) -> list[FittedKernel]:
        """Return all leaves."""
        if self.leaf is not None:
            return [self.leaf]
        assert self.yes is not None and self.no is not None
        return [*self.yes.leaves(), *self.no.leaves()]

    def refitted(self, rows: Array) -> "Tree":
        """Fit the parameters of all leaves to other rows."""
        if self.leaf is not None:
            enough = rows.sum() > self.leaf.least_rows
            return replace(self, leaf=self.leaf.refit(rows)) if enough else self
        assert self.condition and self.yes and self.no
        mask = self.condition.mask
        return replace(self, yes=self.yes.refitted(rows & mask), no=self.no.refitted(rows & ~mask))

    def means(self, values: Array, rows: Array) -> Array:
        """Return the mean of values over those rows of a mask that have the same leaf."""
        if self.leaf is not None:
            return np.full(len(values), values[rows].mean() if rows.any() else 0.0)
        assert self.condition and self.yes and self.no
        mask = self.condition.mask
        sides = self.yes.means(values, rows & mask), self.no.means(values, rows & ~mask)
        return np.where(mask, *sides)

    def lines(self, *, draws: bool = False) -> list[str]:
        """Write the statements that return the distribution, or statements that draw a value."""
        if self.leaf is not None:
            return self.leaf.drawing_lines if draws else self.leaf.lines
        assert self.condition and self.yes and self.no
        inner = [f"    {line}" for line in self.yes.lines(draws=draws)]
        return [f"if {self.condition.text}:", *inner, *self.no.lines(draws=draws)]


@dataclass(frozen=True)
class Grower:
    """Grows a tree from kernels and conditions."""

    kernels: Sequence[Kernel]
    conditions: Sequence[ParameterCondition]
    slopes: Sequence[KnownQuantity]
    effort: Effort

    @cached_property
    def masks(self) -> Array:
        """Mask of every condition (conditions, rows), as numbers for matrix products."""
        return np.stack([condition.mask for condition in self.conditions]).astype(np.float32)

    def grow(self, rows: Array, depth: int = MAX_DEPTH) -> Tree:
        """Return the shortest tree that explains the rows of a mask."""
        count = np.array([rows.sum()])
        sums = [kernel.columns[rows].sum(axis=0)[None] for kernel in self.kernels]
        costs = np.array(
            [float(k.costs(part, count)[0]) for k, part in zip(self.kernels, sums, strict=True)]
        )
        best = self._fitted(rows, costs)
        best = self._smooth(rows, costs, best.bits) or best
        if not depth or best.bits < 12 or rows.sum() < 2 * MIN_SIDE:
            return best
        split = self._split(rows, float(costs.min()))
        if split is None:
            return best
        yes, no = (self.grow(rows & mask, depth - 1) for mask in (split.mask, ~split.mask))
        bits = yes.bits + no.bits + float(np.log2(len(self.conditions)))
        return Tree(bits, None, split, yes, no) if bits < best.bits else best

    def _fitted(self, rows: Array, costs: Array) -> Tree:
        """Return the shortest fit of the kernels that are likely by their approximate costs."""
        order = np.argsort(costs, kind="stable")[:MOST_FITTED].tolist()
        likely = [n for n in order if costs[n] <= costs.min() + COST_ERROR]
        leaf = min((self.kernels[n].fit(rows) for n in likely), key=lambda leaf: leaf.bits)
        return Tree(leaf.bits, leaf)

    def _split(self, rows: Array, least: float) -> ParameterCondition | None:
        """Return the condition whose sides are shortest to describe."""
        if not self.conditions:
            return None
        inside = self.masks[:, rows]
        count = rows.sum()
        sizes = inside.sum(axis=1)
        usable = np.flatnonzero((sizes >= MIN_SIDE) & (sizes <= count - MIN_SIDE))
        size = sum(kernel.columns.shape[1] for kernel in self.kernels)
        if not len(usable) or not self.effort.spend(MATRIX_SPEED * len(usable) * count * size):
            return None
        inside, sizes = inside[usable], sizes[usable]
        yes, no = np.full(len(usable), np.inf), np.full(len(usable), np.inf)
        for kernel in self.kernels:
            columns = kernel.columns[rows]
            inner = inside @ columns
            outer = columns.sum(axis=0) - inner
            yes = np.minimum(yes, kernel.costs(inner, sizes))
            no = np.minimum(no, kernel.costs(outer, count - sizes))
        total = yes + no
        best = int(total.argmin())
        gained = least - total[best] - np.log2(len(self.conditions))
        return self.conditions[usable[best]] if gained > 0 else None

    def _smooth(self, rows: Array, costs: Array, plain: float) -> Tree | None:
        """Return a leaf whose parameter changes with a quantity, if `plain` bits are more."""
        order = np.argsort(costs, kind="stable")
        likely = [self.kernels[n] for n in order.tolist() if costs[n] <= 1.2 * costs.min() + 30]
        tried = [k for k in likely if isinstance(k, ParametricKernel) and k.top is not None]
        found: Tree | None = None
        for kernel in tried[:SMOOTH_TRIED]:
            for quantity in self.slopes:
                if len(np.unique(quantity.values[rows])) > 3 and self.effort.spend(60 * 400.0):
                    leaf = SlopeKernel(kernel, quantity).fit(rows)
                    if leaf.bits < (found.bits if found else plain - 2):
                        found = Tree(leaf.bits, leaf)
        return found


@dataclass(frozen=True)
class Output:
    """An output with the tree of its distributions."""

    target: OutcomeTarget
    tree: Tree

    @property
    def is_certain(self) -> bool:
        """Whether every leaf has one value."""
        return all(leaf.is_certain and not leaf.draws for leaf in self.tree.leaves())

    @property
    def is_choice(self) -> bool:
        """Whether every leaf chooses between a few expressions."""
        return not any(leaf.sources or leaf.draws for leaf in self.tree.leaves())

    @property
    def has_counts(self) -> bool:
        """Whether some leaf is drawn from a family of counts."""
        return any(leaf.sources for leaf in self.tree.leaves())

    @property
    def kinds(self) -> int:
        """Number of different recorded values or, if these are fewer, changes."""
        target = self.target
        changes = target.values - (0.0 if target.own is None else target.own.values)
        return min(len(np.unique(target.values)), len(np.unique(changes)))

    @property
    def is_regression(self) -> bool:
        """Whether some leaf is a regression on a component of many values."""
        return len(self.target.values) > 1 and any(leaf.draws for leaf in self.tree.leaves())

    @classmethod
    def fixed(cls, name: str, text: str) -> "Output":
        """Return an output with the same expression in all rows."""

        def leaf(_: Array | None = None) -> FittedKernel:
            return FittedKernel(0.0, [f"return [(1, {text})]"], leaf, True, draws="rng." in text)

        target = OutcomeTarget(name, np.zeros(1), np.full(1, -np.inf), np.full(1, np.inf))
        return cls(target, Tree(0.0, leaf()))


@dataclass(frozen=True)
class RandomModel:
    """All outputs in the order of the draws in the program, and the reward."""

    rows: OutcomeRows
    outputs: tuple[Output, ...]
    reward: RandomReward
    learn: Array

    @property
    def bits(self) -> float:
        """Description length of all outputs."""
        return sum(output.tree.bits for output in self.outputs)

    @property
    def has_counts(self) -> bool:
        """Whether some output is drawn from a family of counts."""
        return any(output.has_counts for output in self.outputs)

    def refitted(self, mask: Array) -> "RandomModel":
        """Fit all parameters to other rows."""
        outputs = tuple(replace(o, tree=o.tree.refitted(mask)) for o in self.outputs)
        return replace(self, outputs=outputs)


def learn_model(data: Dataset, learn: Array, effort: Effort) -> RandomModel:
    """Find the model of a flat dataset.

    Args:
        data: Transitions with a box of numbers as observations.
        learn: Mask of the rows to learn from.
        effort: Work units to spend.
    """
    rows = OutcomeRows.of(data)
    after = [
        KnownQuantity(f"{part.text}_next", rows.after[:, n]) for n, part in enumerate(rows.now)
    ]
    reward = fit_reward(rows.knowing(*after), learn, effort)
    states = [
        OutcomeTarget(
            q.text,
            q.values,
            _full(rows, low),
            _full(rows, high),
            own,
            is_label=set(np.unique(q.values)) <= {0.0, 1.0},
        )
        for q, own, low, high in zip(after, rows.now, rows.low, rows.high, strict=True)
    ]
    moving: tuple[Output, ...] = ()
    moved = fit_transfers(rows, learn)
    if moved is not None and moved.is_calibrated:
        names = [part.text for part in rows.now]
        moving = tuple(Output.fixed(*line) for line in moved.lines(names))
        states = [target for n, target in enumerate(states) if n not in moved.stocks]
        rows = rows.knowing(*(after[n] for n in moved.stocks))
    orders = _orders(states, reward, rows, learn, effort)
    found = [_chained(targets, rows, reward, learn, effort) for targets in orders]
    event = find_event(states, rows, learn, effort)
    if event is not None:
        target = _event_target(event, rows, learn, effort)
        given = rows.knowing(KnownQuantity(target.name, target.values))
        orders = _orders(states, reward, given, learn, effort)
        found += [_chained([target, *targets], rows, reward, learn, effort) for targets in orders]
    best = min(found, key=lambda model: model.bits)
    return replace(best, outputs=(*moving, *best.outputs))


def _event_target(
    event: SharedEvent, rows: OutcomeRows, learn: Array, effort: Effort
) -> OutcomeTarget:
    """Return the event as an output, with drawn results in rows that do not show it."""
    target = OutcomeTarget("event", event.result, _full(rows, 0), _full(rows, 1), is_label=True)
    shown = learn & (event.result >= 0)
    tree = _output(target, rows, shown, effort).tree
    return replace(target, values=event.filled(tree.means(event.result, shown)))


def _orders(
    states: Sequence[OutcomeTarget],
    reward: RandomReward,
    rows: OutcomeRows,
    learn: Array,
    effort: Effort,
) -> list[list[OutcomeTarget]]:
    """Return orders of the outputs to try: simple ones first, sums of others last."""
    first = [_output(target, rows, learn, effort) for target in states]
    order = np.argsort([output.tree.bits for output in first], kind="stable").tolist()
    random = [states[n] for n in order if not first[n].is_certain]
    certain = [states[n] for n in order if first[n].is_certain]
    computed = _computed(random, rows, learn)
    ordered = [states[n] for n in order if states[n].name not in computed]
    ordered += [states[n] for n in order if states[n].name in computed]
    if not reward.extra[learn].any():
        return [ordered]
    bounds = _full(rows, -np.inf), _full(rows, np.inf)
    extra = OutcomeTarget("extra", reward.extra, *bounds, is_label=bool(reward.values))
    one_sided = max((reward.extra >= 0)[learn].mean(), (reward.extra <= 0)[learn].mean())
    if one_sided < ONE_SIDED or computed:
        return [[*ordered, extra]]
    later = [target for target in ordered if not any(target is each for each in certain)]
    return [[*ordered, extra], [*certain, extra, *later]]


def _computed(targets: Sequence[OutcomeTarget], rows: OutcomeRows, learn: Array) -> set[str]:
    """Return the names of random outputs that are balances of other outputs, drawn before them.

    Args:
        targets: Random outputs in ascending order of their bits; the last ones are computed.
        rows: The known quantities.
        learn: Mask of the rows to learn from.
    """
    after = [KnownQuantity(target.name, target.values) for target in targets]
    computed: set[str] = set()
    needed: set[str] = set()
    for target in reversed(targets):
        others = [part for part in after if part.text not in {target.name, *computed}]
        if target.name in needed or not is_whole(target.values) or not others:
            continue
        low, high = float(target.low.max()), float(target.high.min())
        for balance in balances(target.values, (low, high), rows.knowing(*others), [learn]):
            right = (balance.values.clip(low, high) == target.values)[learn].mean()
            if right >= COVERED:
                computed.add(target.name)
                needed |= {part.text for part in others if part.text in balance.text}
                break
    return computed


def _full(rows: OutcomeRows, bound: float) -> Array:
    return np.full(len(rows), bound)


def _chained(
    targets: Sequence[OutcomeTarget],
    rows: OutcomeRows,
    reward: RandomReward,
    learn: Array,
    effort: Effort,
) -> RandomModel:
    """Fit outputs one after the other, each given those before it."""
    outputs = []
    for target in [*targets, *_end(rows, learn)]:
        output = _output(target, rows, learn, effort)
        outputs.append(output)
        rows = rows.knowing(KnownQuantity(target.name, target.values))
    return RandomModel(rows, tuple(outputs), reward, learn)


def _end(rows: OutcomeRows, learn: Array) -> Iterator[OutcomeTarget]:
    if rows.terminated[learn].sum() >= MIN_SIDE:
        ends = rows.terminated.astype(float)
        yield OutcomeTarget("terminated", ends, _full(rows, 0), _full(rows, 1), is_label=True)


def _output(target: OutcomeTarget, rows: OutcomeRows, learn: Array, effort: Effort) -> Output:
    found: list[Kernel] = []
    large = target.own is not None and is_large(target.own.values, target.values, learn)
    if is_whole(target.values):  # values of large counts are too many to list
        found += kernels(replace(target, is_label=target.is_label or large), rows, learn, effort)
    if large or not is_whole(target.values):
        found += regressions(target, rows, learn)
    grower = Grower(found, rows.conditions(), rows.known, effort)
    tree = grower.grow(learn)
    if any(NORMAL.source in leaf.sources for leaf in tree.leaves()):
        # Normal noise fits most rows so well that the search may miss sharper laws of some rows.
        inner = replace(grower, kernels=[kernel for kernel in found if not _is_normal(kernel)])
        sharper = inner.grow(learn)
        tree = sharper if sharper.bits <= tree.bits + NOISE_BITS else tree
    return Output(target, tree)


def _is_normal(kernel: Kernel) -> bool:
    return isinstance(kernel, CountKernel) and kernel.draws[0].family is NORMAL
