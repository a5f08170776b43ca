"""Trees of conditions with a kernel in every leaf, chosen by description length."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from scipy.optimize import minimize

from cwm_induction.chance.families import LEAST
from cwm_induction.chance.kernels import (
    LOG_2,
    ChoiceKernel,
    ChoiceLeaf,
    CountKernel,
    CountLeaf,
    shortest,
)
from cwm_induction.chance.quantities import MIN_SIDE, KnownQuantity, ParameterCondition
from cwm_induction.chance.regressions import RegressionKernel, RegressionLeaf
from cwm_induction.effort import Effort
from cwm_induction.writing.rounding import literal

Array = np.ndarray
Kernel = CountKernel | ChoiceKernel | RegressionKernel


MAX_DEPTH = 8
"""Maximum number of conditions above a leaf."""

SMOOTH_BITS = 6.0
"""Price of a parameter that changes with a quantity: the quantity and the form."""

SMOOTH_TRIED = 3
"""Kernels per node whose parameter may change with a quantity."""

MATRIX_SPEED = 0.05
"""Cost of a multiplication in a matrix product, relative to other arithmetic."""


@dataclass(frozen=True)
class Tree:
    """A leaf, or a condition with a tree for either answer."""

    bits: float
    leaf: "Leaf | None" = None
    condition: ParameterCondition | None = None
    yes: "Tree | None" = None
    no: "Tree | None" = None

    def leaves(self) -> "list[Leaf]":
        """Return all leaves."""
        if self.leaf is not None:
            return [self.leaf]
        assert self.yes is not None and self.no is not None
        return [*self.yes.leaves(), *self.no.leaves()]

    def refitted(self, rows: Array) -> "Tree":
        """Fit the parameters of all leaves to other rows."""
        if self.leaf is not None:
            return replace(self, leaf=self.leaf.refitted(rows) if rows.any() else self.leaf)
        assert self.condition and self.yes and self.no
        mask = self.condition.mask
        return replace(self, yes=self.yes.refitted(rows & mask), no=self.no.refitted(rows & ~mask))

    def lines(self) -> list[str]:
        """Write the statements that return the distribution."""
        if self.leaf is not None:
            return self.leaf.lines()
        assert self.condition and self.yes and self.no
        inner = [f"    {line}" for line in self.yes.lines()]
        return [f"if {self.condition.text}:", *inner, *self.no.lines()]


@dataclass(frozen=True)
class Grower:
    """Grows a tree from kernels and conditions."""

    kernels: Sequence[Kernel]
    conditions: Sequence[ParameterCondition]
    slopes: Sequence[KnownQuantity]
    effort: Effort
    masks: Array = field(init=False, repr=False)

    def __post_init__(self) -> None:
        masks = [condition.mask for condition in self.conditions]
        count = len(self.kernels[0].target.values)
        stacked = np.stack(masks) if masks else np.zeros((0, count), bool)
        object.__setattr__(self, "masks", stacked.astype(np.float32))

    def grow(self, rows: Array, depth: int = MAX_DEPTH) -> Tree:
        """Return the shortest tree that explains the rows of a mask."""
        count = np.array([rows.sum()])
        sums = [kernel.columns[rows].sum(axis=0)[None] for kernel in self.kernels]
        costs = np.array(
            [float(k.costs(part, count)[0]) for k, part in zip(self.kernels, sums, strict=True)]
        )
        best = self._smooth(rows, costs) or self._fitted(rows, costs)
        if not depth or best.bits < 12 or rows.sum() < 2 * MIN_SIDE:
            return best
        split = self._split(rows, float(costs.min()))
        if split is None:
            return best
        mask_yes = split.mask
        yes, no = self.grow(rows & mask_yes, depth - 1), self.grow(rows & ~mask_yes, depth - 1)
        bits = yes.bits + no.bits + float(np.log2(len(self.conditions)))
        return Tree(bits, None, split, yes, no) if bits < best.bits else best

    def _fitted(self, rows: Array, costs: Array) -> Tree:
        leaf = self.kernels[int(costs.argmin())].fit(rows)
        return Tree(leaf.bits, leaf)

    def _split(self, rows: Array, least: float) -> ParameterCondition | None:
        """Return the condition whose sides are shortest to describe."""
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

    def _smooth(self, rows: Array, costs: Array) -> Tree | None:
        """Return a leaf whose parameter changes with a quantity, if that is shorter."""
        order = np.argsort(costs, kind="stable").tolist()
        tried = [n for n in order if _has_slope(self.kernels[n])][:SMOOTH_TRIED]
        found: Tree | None = None
        for number in tried:
            if costs[number] > 1.2 * costs.min() + 30:
                break
            for quantity in self.slopes:
                if len(np.unique(quantity.values[rows])) > 3 and self.effort.spend(60 * 400.0):
                    leaf = SlopeFit(self.kernels[number], quantity, rows).leaf()
                    if leaf.bits < (found.bits if found else float(costs.min()) - 2):
                        found = Tree(leaf.bits, leaf)
        return found


def _has_slope(kernel: Kernel) -> bool:
    if isinstance(kernel, RegressionKernel):
        return False
    if isinstance(kernel, ChoiceKernel):
        return len(kernel.choices) == 2
    return len(kernel.draws) == 1 and kernel.size == 1 and kernel.idle is None


@dataclass(frozen=True)
class SmoothLeaf:
    """A leaf whose parameter is a function of a quantity."""

    fit: "SlopeFit"
    inner: CountLeaf | ChoiceLeaf

    @property
    def bits(self) -> float:
        """Description length."""
        return self.inner.bits

    @property
    def kernel(self) -> CountKernel | ChoiceKernel:
        """The kernel whose parameter changes."""
        return self.inner.kernel

    @property
    def sources(self) -> set[str]:
        """The functions that the program needs."""
        return self.inner.sources

    def lines(self) -> list[str]:
        """Write the statements that return the distribution."""
        return self.inner.lines()

    def refitted(self, rows: Array) -> "SmoothLeaf":
        """Fit the function to other rows."""
        return replace(self.fit, rows=rows).leaf()


@dataclass(frozen=True)
class SlopeFit:
    """Fits a parameter that is linear or geometric in a quantity."""

    kernel: CountKernel | ChoiceKernel
    quantity: KnownQuantity
    rows: Array

    def leaf(self) -> SmoothLeaf:
        """Return the shortest of all forms."""
        forms = [self._form(kind) for kind in ("linear", "geometric", "proportional")]
        return min(forms, key=lambda leaf: leaf.bits)

    def _form(self, kind: str) -> SmoothLeaf:
        parts = shortest(self._parts(kind), lambda parts: self._loss(self._curve(kind, parts)))
        loss = self._loss(self._curve(kind, parts))
        size = 0.5 * len(parts) * float(np.log2(self.rows.sum() + 1))
        bits = loss / LOG_2 + self.kernel.bits + SMOOTH_BITS + size
        return SmoothLeaf(self, self._inner(self._text(kind, parts), bits))

    def _curve(self, kind: str, parts: Array) -> Array:
        """Return the parameter in every row."""
        values = self.quantity.values
        if kind == "proportional":
            return self._within(parts[0] * values)
        curve = (
            parts[0] * parts[1] ** values if kind == "geometric" else parts[0] + parts[1] * values
        )
        return self._within(curve)

    def _parts(self, kind: str) -> Array:
        """Fit the numbers of a form by the values of the parameter at both ends."""
        values = self.quantity.values
        low, high = float(values[self.rows].min()), float(values[self.rows].max())

        def parts(logs: Array) -> Array:
            if kind == "proportional":
                return np.array(np.exp(logs) / max(abs(high), 1e-9))
            first, last = self._within(np.exp(logs))
            if kind == "geometric":
                rate = (last / first) ** (1 / (high - low))
                return np.array([first * rate**-low, rate])
            slope = (last - first) / (high - low)
            return np.array([first - slope * low, slope])

        start = np.full(1 if kind == "proportional" else 2, np.log(max(self._start(), 0.01)))
        found = minimize(
            lambda logs: self._loss(self._curve(kind, parts(logs))),
            start,
            method="Nelder-Mead",
            options={"maxfev": 60, "xatol": 1e-3, "fatol": 1e-2},
        )
        return parts(found.x)

    def _text(self, kind: str, parts: Array) -> str:
        first, name = literal(float(parts[0])), self.quantity.text
        if kind == "proportional":
            return f"{first} * {name}"
        second = literal(abs(float(parts[1])))
        if kind == "geometric":
            return f"{first} * {second}**{name}"
        return f"{first} {'-' if parts[1] < 0 else '+'} {second} * {name}"

    def _is_chance(self) -> bool:
        kernel = self.kernel
        return isinstance(kernel, ChoiceKernel) or kernel.draws[0].family.grid[-1] < 1

    def _within(self, parameter: Array) -> Array:
        found: Array = np.clip(parameter, 1e-3, 0.999 if self._is_chance() else 99.0)
        return found

    def _start(self) -> float:
        if isinstance(self.kernel, ChoiceKernel):
            return float(np.clip(self.kernel.shares(self.rows)[1], 0.01, 0.99))
        scores = self.kernel.table[:, self.rows].sum(axis=1)
        return float(self.kernel.grid[int(scores.argmax()), 0])

    def _loss(self, parameter: Array) -> float:
        if isinstance(self.kernel, ChoiceKernel):
            first, second = self.kernel.matches.T
            chances = first * (1 - parameter) + second * parameter
        else:
            chances = self.kernel.likelihood([parameter])
        return -float(np.log(np.maximum(chances[self.rows], np.exp(LEAST))).sum())

    def _inner(self, text: str, bits: float) -> CountLeaf | ChoiceLeaf:
        if isinstance(self.kernel, CountKernel):
            return CountLeaf(self.kernel, (text,), bits)
        return ChoiceLeaf(self.kernel, (0.5, 0.5), int(self.rows.sum()), bits, smooth=text)


Leaf = CountLeaf | ChoiceLeaf | RegressionLeaf | SmoothLeaf
