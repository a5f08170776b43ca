"""Conditions that separate target rows from others: half-spaces, boxes, discs, single values.

A condition is a conjunction of at most three literals. Its worth follows the minimum description
length principle (Rissanen 1978): the bits that it saves in the encoding of the target rows, less
the bits that it takes to write the condition.

Searches that use scikit-learn instead found the cause of 90 to 93 of 100 generated faults (see
`benchmarks/faults`), this search of 98.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, product
from math import ceil, floor, log10
from typing import NamedTuple

import numpy as np

BEAM_WIDTH = 4
"""Conditions that each round of the search extends."""

MAX_VALUES = 12
"""Most values in a literal such as `x in (1, 2)`."""


class Quantity(NamedTuple):
    """A named number for each row, which literals compare.

    `extra` is added to the bits of each literal that uses the quantity, so that other quantities
    are preferred. If the numbers are codes, `labels` maps each code to the text that it represents.
    """

    name: str
    values: np.ndarray
    is_real: bool = True
    is_ordered: bool = True
    extra: float = 0.0
    labels: Mapping[float, str] = {}


class Literal(NamedTuple):
    """A comparison of one quantity, or of a combination of two, with bounds or values.

    `form` is the compared number: "plain" (the first quantity), "sum" (the first quantity plus
    `numbers[0]` times the second) or "disc" (the squared distance from the point `numbers[:2]`, in
    which the second quantity is scaled by `numbers[2]`). The bounds `low` and `high` are exclusive.
    `outside` negates the comparison with the bounds.
    """

    form: str
    quantities: tuple[int, ...]
    numbers: tuple[float, ...] = ()
    low: float = -np.inf
    high: float = np.inf
    values: tuple[float, ...] = ()
    outside: bool = False

    def measure(self, quantities: Sequence[Quantity]) -> np.ndarray:
        """Return the compared number of each row."""
        first = quantities[self.quantities[0]].values
        if self.form == "plain":
            return first
        second = quantities[self.quantities[1]].values
        if self.form == "sum":
            total: np.ndarray = first + self.numbers[0] * second
            return total
        x, y, scale = self.numbers
        return np.asarray((first - x) ** 2 + (scale * (second - y)) ** 2)

    def holds(self, quantities: Sequence[Quantity]) -> np.ndarray:
        """Return the mask of the rows that satisfy the literal."""
        measured = self.measure(quantities)
        if self.values:
            return np.isin(measured, self.values)
        inside: np.ndarray = (measured > self.low) & (measured < self.high)
        return ~inside if self.outside else inside

    def count_bits(self, quantities: Sequence[Quantity]) -> float:
        """Return the bits that it takes to write the literal."""
        chosen = len(self.quantities) * np.log2(max(len(quantities), 2))
        extra = sum(quantities[index].extra for index in self.quantities)
        shape = {"plain": 0.0, "sum": 6.0, "disc": 9.0}[self.form]
        bounds = len(self.values) or int(np.isfinite(self.low)) + int(np.isfinite(self.high))
        return float(chosen + extra + shape + 6.0 * bounds)

    def expression(self, quantities: Sequence[Quantity]) -> str:
        """Return the compared number as a Python expression."""
        first, *others = (quantities[index].name for index in self.quantities)
        if self.form == "sum":
            factor = abs(self.numbers[0])
            sign = "+" if self.numbers[0] > 0 else "-"
            return f"{first} {sign} {'' if factor == 1 else f'{factor:.9g} * '}{others[0]}"
        if self.form == "disc":
            x, y, scale = self.numbers
            weight = "" if scale == 1 else f"{scale**2:.9g} * "
            text = f"({first} - {x:.9g})**2 + {weight}({others[0]} - {y:.9g})**2"
            return text.replace("- -", "+ ")
        return first

    def to_python(self, quantities: Sequence[Quantity]) -> str:
        """Return the literal as a Python condition."""
        if self.outside:
            return f"not {self._replace(outside=False).to_python(quantities)}"
        name, first = self.expression(quantities), quantities[self.quantities[0]]
        if self.values:
            listed = ", ".join(first.labels.get(value, f"{value:.9g}") for value in self.values)
            return f"{name} in ({listed})" if len(self.values) > 1 else f"{name} == {listed}"
        if any(quantities[index].is_real for index in self.quantities):
            low, less, high = f"{self.low:.9g}", "<", f"{self.high:.9g}"
        else:
            inside = self.measure(quantities)[self.holds(quantities)]
            if self.form == "plain" and len(inside) and np.ptp(inside) == 0:
                return f"{name} == {inside[0]:.9g}"
            # Whole numbers have inclusive bounds.
            low = str(floor(self.low) + 1) if np.isfinite(self.low) else ""
            high = str(ceil(self.high) - 1) if np.isfinite(self.high) else ""
            less = "<="
            if low == high:
                return f"{name} == {low}"
        if np.isinf(self.high):
            return f"{name} {less.replace('<', '>')} {low}"
        return (
            f"{name} {less} {high}" if np.isinf(self.low) else f"{low} {less} {name} {less} {high}"
        )


class Conjunction(NamedTuple):
    """Literals that are all true, and the worth of their conjunction in bits."""

    literals: tuple[Literal, ...]
    worth: float = 0.0

    def holds(self, quantities: Sequence[Quantity]) -> np.ndarray:
        """Return the mask of the rows that satisfy all literals."""
        mask = np.ones(len(quantities[0].values), dtype=np.bool_)
        for literal in self.literals:
            mask &= literal.holds(quantities)
        return mask

    def to_python(self, quantities: Sequence[Quantity]) -> str:
        """Return the conjunction as a Python condition."""
        return " and ".join(literal.to_python(quantities) for literal in self.literals)


def separate(target: np.ndarray, quantities: Sequence[Quantity]) -> Conjunction | None:
    """Return the condition that separates the target rows best, None if its worth is too low.

    Args:
        target: The mask of the target rows.
        quantities: The quantities that the condition may compare. Quantities that are constant or
            not finite are ignored.
    """
    usable = [
        index
        for index, quantity in enumerate(quantities)
        if np.isfinite(quantity.values).all() and np.ptp(quantity.values) > 0
    ]
    if not usable or target.all() or not target.any():
        return None
    # More than 400 target rows and 400 other rows, evenly spaced, change no result.
    parts = [np.flatnonzero(mask) for mask in (target, ~target)]
    rows = np.sort(
        np.concatenate(
            [part[np.linspace(0, len(part) - 1, min(len(part), 400)).astype(int)] for part in parts]
        )
    )
    samples = [quantities[i]._replace(values=quantities[i].values[rows]) for i in usable]
    found = _Search(target[rows], samples).find_best()
    if found is None:
        return None
    literals = [
        literal._replace(quantities=tuple(usable[index] for index in literal.quantities))
        for literal in found.literals
    ]
    return Conjunction(tuple(_shorten_bounds(literals, quantities)), found.worth)


class _ScoredLiteral(NamedTuple):
    """A literal that may extend a condition; `worth` is the bits saved less the bits taken."""

    worth: float
    literal: Literal


class _Search:
    """A beam search over conjunctions that adds one literal in each round."""

    def __init__(self, target: np.ndarray, quantities: Sequence[Quantity]) -> None:
        self.target, self.quantities = target, quantities
        self.everywhere = np.ones(len(target), dtype=np.bool_)
        self.plain = [Literal("plain", (index,)) for index in range(len(quantities))]
        ordered = [lit for lit in self.plain if quantities[lit.quantities[0]].is_ordered]
        self.ordered = _SortedMeasures(ordered, quantities)
        alone = sorted(self._intervals(self.ordered, self.everywhere), reverse=True)
        ranked = dict.fromkeys(scored.literal.quantities[0] for scored in alone)
        # Sums and discs combine the six quantities that separate best alone.
        paired = [index for index in ranked if not quantities[index].extra][:6]
        self.pairs = list(combinations(sorted(paired), 2))
        self.candidates = _SortedMeasures([*ordered, *self._sums()], quantities)

    def find_best(self) -> Conjunction | None:
        """Return the condition with the largest worth, None if it is below the minimum."""
        best = Conjunction(())
        beam = [best]
        for _ in range(3):  # literals: two for a box, one more for an action
            extended = set()
            for condition in beam:
                inside = self._holds(condition.literals)
                options = [
                    *self._intervals(self.candidates, inside),
                    *self._values(inside),
                    *self._discs(inside),
                ]
                options = sorted(options, reverse=True)[: 2 * BEAM_WIDTH]
                extended |= {tuple(sorted((*condition.literals, one.literal))) for one in options}
            # The literals break ties, so that the order of the set has no effect.
            ranked = sorted(extended, key=lambda literals: (-self._worth(literals), literals))
            # Different conditions may become the same one.
            refined = dict.fromkeys(map(self._refine, ranked[:BEAM_WIDTH]))
            beam = [Conjunction(literals, self._worth(literals)) for literals in refined]
            beam = sorted(beam, key=lambda condition: -condition.worth)
            if not beam or beam[0].worth <= best.worth:
                break
            best = beam[0]
        # The rows outside of an interval are the target if the other rows lie inside it.
        for _, literal in self._intervals(self.ordered, self.everywhere, ~self.target):
            if np.isfinite(literal.low) and np.isfinite(literal.high):
                outside = (literal._replace(outside=True),)
                if (worth := self._worth(outside)) > best.worth:
                    best = Conjunction(outside, worth)
        # The best of many trials on random rows saves less than 6 bits.
        return best if best.worth > 6.0 else None

    def _holds(self, literals: Sequence[Literal]) -> np.ndarray:
        return Conjunction(tuple(literals)).holds(self.quantities)

    def _worth(self, literals: Sequence[Literal]) -> float:
        """Return the bits that literals save, less the bits that it takes to write them."""
        inside = self._holds(literals)
        counts = np.array([inside.sum()]), np.array([(inside & self.target).sum()])
        written = sum(literal.count_bits(self.quantities) for literal in literals)
        return float(self._saved_bits(*counts)[0]) - written

    def _saved_bits(
        self, count: np.ndarray, hits: np.ndarray, total_hits: int | None = None
    ) -> np.ndarray:
        """Return the bits saved by groups of `count` rows with `hits` target rows.

        Groups with a smaller share of target rows than the rest save -inf.
        """
        total = len(self.target)
        total_hits = int(self.target.sum()) if total_hits is None else total_hits
        whole = _mask_bits(np.array([total]), np.array([total_hits]))
        saved = whole - _mask_bits(count, hits) - _mask_bits(total - count, total_hits - hits)
        # Compare hits / count with the share of the rest, without a division by zero.
        fewer = hits * (total - count) <= (total_hits - hits) * count
        return np.where(fewer, -np.inf, saved)

    def _intervals(
        self, measures: "_SortedMeasures", inside: np.ndarray, target: np.ndarray | None = None
    ) -> Iterator[_ScoredLiteral]:
        """Yield for literals the bounds that contain many target rows and few others.

        Only rows `inside` count. `target` are by default the target rows of the search.
        """
        target = self.target if target is None else target
        rows, total_hits = int(inside.sum()), int((inside & target).sum())
        if not measures.literals or total_hits in (0, rows):
            return
        order, values = measures.select(inside)
        hits = target[order]
        # An interval begins and ends between different values only.
        last = np.ones(values.shape, dtype=np.bool_)
        last[:, :-1] = values[:, 1:] != values[:, :-1]
        # A value begins after the last row of the value before it.
        first = np.roll(last, 1, axis=1)
        first[:, 0] = True
        lines = np.arange(len(values))
        hits_before = np.pad(np.cumsum(hits, axis=1), ((0, 0), (1, 0)))
        for balance in (0.3, 1.0, 3.0):
            # Target rows have weights > 0 and other rows weights < 0. The best interval of a
            # literal has the largest sum of weights (Kadane's maximum subarray), which is the
            # largest difference of two cumulative sums.
            weights = np.where(hits, 1 / total_hits, -balance / (rows - total_hits))
            totals = np.cumsum(weights, axis=1)
            before = np.where(first, totals - weights, np.inf)
            gains = np.where(last, totals - np.minimum.accumulate(before, axis=1), -np.inf)
            ends = np.argmax(gains, axis=1)
            until = np.arange(rows) <= ends[:, None]
            begins = np.argmin(np.where(until, before, np.inf), axis=1)
            found = hits_before[lines, ends + 1] - hits_before[lines, begins]
            saved = self._saved_bits(ends + 1 - begins, found, int(target.sum()))
            chosen = np.argsort(-saved, kind="stable")[: 4 * BEAM_WIDTH]
            for place in chosen[saved[chosen] > 0].tolist():
                begin, end, line = int(begins[place]), int(ends[place]), values[place]
                low = (line[begin - 1] + line[begin]) / 2 if begin else -np.inf
                high = (line[end] + line[end + 1]) / 2 if end + 1 < rows else np.inf
                literal = measures.literals[place]._replace(low=low, high=high)
                yield _ScoredLiteral(
                    float(saved[place]) - literal.count_bits(self.quantities), literal
                )

    def _sums(self) -> Iterator[Literal]:
        """Yield sums and differences of two quantities with different weights.

        The weights are in units of the spreads of both quantities; `_refine` improves them later.
        """
        for first, second in self.pairs:
            spreads = [self.quantities[index].values.std() for index in (first, second)]
            ratio = spreads[0] / spreads[1]
            is_real = self.quantities[first].is_real or self.quantities[second].is_real
            factors = [
                slope * ratio if is_real else max(1.0, round(slope * ratio))
                for slope in (1 / 3, 1 / 2, 1.0, 2.0, 3.0)
            ]
            for factor in dict.fromkeys(_round_digits(factor, 2) for factor in factors):
                yield Literal("sum", (first, second), (factor,))
                yield Literal("sum", (first, second), (-factor,))

    def _discs(self, inside: np.ndarray) -> Iterator[_ScoredLiteral]:
        """Yield discs around the target rows; fewer than five rows need no more than a box."""
        rows = np.flatnonzero(inside & self.target)
        if len(rows) < 5:
            return
        discs = []
        for pair in self.pairs:
            columns = [self.quantities[index].values for index in pair]
            ratio = columns[0].std() / columns[1].std()
            scale = 1.0 if 1 / 3 <= ratio <= 3 else _round_digits(ratio, 1)
            # The middle between the extremes, without the outermost 5 % of the rows.
            extremes = (np.quantile(values[rows], [0.05, 0.95]) for values in columns)
            centre = (_round_digits(float(low + high) / 2, 3) for low, high in extremes)
            discs.append(Literal("disc", pair, (*centre, scale)))
        found = self._intervals(_SortedMeasures(discs, self.quantities), inside)
        yield from (scored for scored in found if scored.literal.low == -np.inf)

    def _values(self, inside: np.ndarray) -> Iterator[_ScoredLiteral]:
        """Yield the values of whole-numbered quantities at which most rows are target rows."""
        overall = float(self.target[inside].mean())
        for literal in self.plain:
            quantity = self.quantities[literal.quantities[0]]
            if quantity.is_real:
                continue
            values, kinds = np.unique(quantity.values[inside], return_inverse=True)
            if not 2 <= len(values) <= MAX_VALUES**2:
                continue
            counts = np.bincount(kinds, minlength=len(values))
            hits = np.bincount(kinds, self.target[inside], len(values))
            order = np.argsort(-hits / counts, kind="stable")
            saved = self._saved_bits(np.cumsum(counts[order]), np.cumsum(hits[order]))
            above = int((hits / counts > overall).sum())
            for count in sorted({1, int((hits / counts > 0.5).sum()), above}):
                if 0 < count <= min(len(values) - 1, MAX_VALUES):
                    chosen = literal._replace(values=tuple(sorted(values[order[:count]].tolist())))
                    worth = float(saved[count - 1]) - chosen.count_bits(self.quantities)
                    yield _ScoredLiteral(worth, chosen)

    def _refine(self, literals: tuple[Literal, ...]) -> tuple[Literal, ...]:
        """Optimise the numbers of one literal after another, and drop needless literals."""
        chosen = list(literals)
        for _ in range(2):
            before = list(chosen)
            for place, literal in enumerate(chosen):
                others = [*chosen[:place], *chosen[place + 1 :]]
                near = _SortedMeasures(list(self._neighbours(literal)), self.quantities)
                found = sorted(self._intervals(near, self._holds(others)), reverse=True)
                either = [literal, *(scored.literal for scored in found[:1])]
                worths = [self._worth((*others, one)) for one in either]
                chosen[place] = either[int(np.argmax(worths))]
            if chosen == before:
                break
        for literal in list(chosen):
            fewer = [one for one in chosen if one is not literal]
            if fewer and self._worth(fewer) >= self._worth(chosen):
                chosen = fewer
        return tuple(sorted(chosen))

    def _neighbours(self, literal: Literal) -> Iterator[Literal]:
        """Yield a literal and its neighbours in slope or centre, without bounds."""
        if literal.values:
            return
        unbound = literal._replace(low=-np.inf, high=np.inf, outside=False)
        yield unbound
        if literal.form == "sum" and any(self.quantities[i].is_real for i in literal.quantities):
            for factor in np.linspace(0.6, 1.5, 13):
                yield unbound._replace(numbers=(_round_digits(factor * literal.numbers[0], 2),))
        if literal.form == "disc":
            x, y, scale = literal.numbers
            radius = np.sqrt(max(literal.high, 0)) if np.isfinite(literal.high) else 1.0
            for dx, dy in product((-0.3, -0.1, 0.0, 0.1, 0.3), repeat=2):
                centre = x + dx * radius, y + dy * radius / scale
                rounded = (_round_digits(number, 3) for number in centre)
                yield unbound._replace(numbers=(*rounded, scale))


class _SortedMeasures:
    """The compared numbers of literals, sorted once, so that subsets of rows need no sort."""

    def __init__(self, literals: Sequence[Literal], quantities: Sequence[Quantity]) -> None:
        self.literals = literals
        measured = [literal.measure(quantities) for literal in literals]
        values = np.array(measured, np.float64).reshape(len(literals), len(quantities[0].values))
        self.order = np.argsort(values, axis=1, kind="stable")
        self.values = np.take_along_axis(values, self.order, axis=1)

    def select(self, inside: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the order and the values of the rows `inside`, each (literals, rows inside)."""
        kept = inside[self.order]
        shape = len(self.literals), int(inside.sum())
        return self.order[kept].reshape(shape), self.values[kept].reshape(shape)


def _shorten_bounds(
    literals: Sequence[Literal], quantities: Sequence[Quantity]
) -> Iterator[Literal]:
    """Yield literals with the shortest bounds that leave the rows of the conjunction unchanged."""
    chosen = list(literals)
    for place, literal in enumerate(chosen):
        if not literal.values:
            others = Conjunction((*chosen[:place], *chosen[place + 1 :]))
            measured = literal.measure(quantities)[others.holds(quantities)]
            low, high = (
                simplest(
                    float(measured[measured <= bound].max(initial=-np.inf)),
                    float(measured[measured > bound].min(initial=np.inf)),
                )
                if np.isfinite(bound)
                else bound
                for bound in (literal.low, literal.high)
            )
            chosen[place] = literal._replace(low=low, high=high)
        yield chosen[place]


def simplest(low: float, high: float) -> float:
    """Return the number with the fewest digits between two numbers, both exclusive.

    If `low` or `high` is infinite, return the finite bound.
    """
    if np.isinf(low) or np.isinf(high):
        return high if np.isinf(low) else low
    if low < 0 < high:
        return 0.0
    for digits in range(-ceil(log10(max(abs(low), abs(high)))), 17):
        unit = 10.0**-digits
        first = floor(low / unit) + 1
        options = [round(n * unit, max(digits, 0)) for n in range(first, ceil(high / unit))[:12]]
        inside = [option for option in options if low < option < high]
        if inside:
            return min(inside, key=lambda option: abs(option - (low + high) / 2))
    return (low + high) / 2


def _mask_bits(count: np.ndarray, hits: np.ndarray) -> np.ndarray:
    """Return the bits that encode which of `count` rows are the `hits` target rows."""
    share = np.divide(hits, count, out=np.zeros(len(count)), where=count > 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        entropy = share * np.log2(share) + (1 - share) * np.log2(1 - share)
    return np.asarray(-count * np.nan_to_num(entropy))


def _round_digits(value: float, digits: int) -> float:
    """Round to a number of significant digits."""
    return float(f"{value:.{digits}g}")
