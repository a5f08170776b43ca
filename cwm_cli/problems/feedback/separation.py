"""Conditions that separate some rows from others: half-spaces, boxes, discs, kinds of action.

A condition is a conjunction of a few literals. What it is worth is the number of bits that it
saves in saying which rows are meant, less the bits that it takes to write.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, product
from math import ceil, floor, log10
from typing import NamedTuple

import numpy as np

MOST_ROWS = 400
"""Rows of either kind that are looked at, evenly chosen: more would not change what is found."""

MOST_PAIRED = 6
"""Quantities that are taken two by two: those that separate best alone."""

SLOPES = (1 / 3, 1 / 2, 1.0, 2.0, 3.0)
"""How half-spaces lean, in units of the spreads of both quantities; they are refined afterwards."""

BALANCES = (0.3, 1.0, 3.0)
"""What a row outside weighs against one that is meant, while intervals are looked for."""

BEAM = 4
"""Conditions that are followed up."""

LEAST_WORTH = 6.0
"""Bits that a condition has to save after all: what many trials save by chance stays below."""

DEPTH = 3
"""Literals of a condition at most: two for a box, one more for an action."""

ROUNDS = 2
"""How often the numbers of all literals are chosen anew, one after the other."""

FEWEST_IN_DISC = 5
"""With fewer rows than this a disc says no more than a box."""

BITS_OF_BOUND = 6.0
BITS_OF_SLOPE = 6.0
BITS_OF_DISC = 9.0
"""What parts of a literal take to write, beside the choice of its quantity."""

MOST_VALUES = 12
"""With more different values than this, a quantity is not asked for single ones."""


class Quantity(NamedTuple):
    """A number for each row, by the name that is read; `extra` bits make others preferred.

    Of one that is a code for something else, `labels` say what each number stands for.
    """

    name: str
    values: np.ndarray
    is_real: bool = True
    is_ordered: bool = True
    extra: float = 0.0
    labels: Mapping[float, str] = {}


class Literal(NamedTuple):
    """Some quantity, or what two give together, between bounds or among values.

    `form` is "plain" (the first quantity), "sum" (the first and `numbers[0]` times the
    second) or "disc" (the square of the distance from `numbers[:2]`, in which the
    second counts `numbers[2]` times). `low` and `high` do not belong to it where it is real. One
    that is `outside` holds where it would not hold else.
    """

    form: str
    quantities: tuple[int, ...]
    numbers: tuple[float, ...] = ()
    low: float = -np.inf
    high: float = np.inf
    values: tuple[float, ...] = ()
    outside: bool = False

    def measure(self, quantities: Sequence[Quantity]) -> np.ndarray:
        """Return the number that is compared, for each row."""
        one = quantities[self.quantities[0]].values
        if self.form == "plain":
            return one
        other = quantities[self.quantities[1]].values
        if self.form == "sum":
            total: np.ndarray = one + self.numbers[0] * other
            return total
        x, y, scale = self.numbers
        squared: np.ndarray = (one - x) ** 2 + (scale * (other - y)) ** 2
        return squared

    def holds(self, quantities: Sequence[Quantity]) -> np.ndarray:
        """Return the mask of the rows in which it holds."""
        measured = self.measure(quantities)
        if self.values:
            return np.isin(measured, self.values)
        inside: np.ndarray = (measured > self.low) & (measured < self.high)
        return ~inside if self.outside else inside

    def bits(self, quantities: Sequence[Quantity]) -> float:
        """Return what it takes to write it."""
        chosen = len(self.quantities) * np.log2(max(len(quantities), 2))
        extra = sum(quantities[index].extra for index in self.quantities)
        shape = {"plain": 0.0, "sum": BITS_OF_SLOPE, "disc": BITS_OF_DISC}[self.form]
        bounds = max(1, len(self.values)) if self.values else self._bounds
        return float(chosen + extra + shape + BITS_OF_BOUND * bounds)

    @property
    def _bounds(self) -> int:
        return int(np.isfinite(self.low)) + int(np.isfinite(self.high))

    def subject(self, quantities: Sequence[Quantity]) -> str:
        """Write what is compared."""
        one, *others = (quantities[index].name for index in self.quantities)
        if self.form == "sum":
            factor = abs(self.numbers[0])
            sign = "+" if self.numbers[0] > 0 else "-"
            return f"{one} {sign} {'' if factor == 1 else f'{factor:.9g} * '}{others[0]}"
        if self.form == "disc":
            x, y, scale = self.numbers
            weight = "" if scale == 1 else f"{scale**2:.9g} * "
            return f"({one} - {x:.9g})**2 + {weight}({others[0]} - {y:.9g})**2".replace("- -", "+ ")
        return one

    def words(self, quantities: Sequence[Quantity]) -> str:
        """Write it in Python."""
        if self.outside:
            return f"not {self._replace(outside=False).words(quantities)}"
        name, one = self.subject(quantities), quantities[self.quantities[0]]
        if self.values:
            listed = ", ".join(one.labels.get(value, f"{value:.9g}") for value in self.values)
            return f"{name} in ({listed})" if len(self.values) > 1 else f"{name} == {listed}"
        if not any(quantities[index].is_real for index in self.quantities):
            inside = self.measure(quantities)[self.holds(quantities)]
            if self.form == "plain" and len(inside) and np.ptp(inside) == 0:
                return f"{name} == {inside[0]:.9g}"
            return _whole(name, self.low, self.high)
        if np.isfinite(self.low) and np.isfinite(self.high):
            return f"{self.low:.9g} < {name} < {self.high:.9g}"
        return f"{name} > {self.low:.9g}" if np.isfinite(self.low) else f"{name} < {self.high:.9g}"


class Conjunction(NamedTuple):
    """Literals that hold together, and the bits that they save after what they take."""

    literals: tuple[Literal, ...]
    worth: float = 0.0

    def holds(self, quantities: Sequence[Quantity]) -> np.ndarray:
        """Return the mask of the rows in which it holds."""
        mask = np.ones(len(quantities[0].values), dtype=np.bool_)
        for literal in self.literals:
            mask &= literal.holds(quantities)
        return mask

    def words(self, quantities: Sequence[Quantity]) -> str:
        """Write it in Python."""
        return " and ".join(literal.words(quantities) for literal in self.literals)


def separate(meant: np.ndarray, quantities: Sequence[Quantity]) -> Conjunction | None:
    """Return the condition that tells best which rows are meant, if any is worth its bits."""
    usable = [f for f in quantities if np.isfinite(f.values).all() and np.ptp(f.values) > 0]
    if not usable or meant.all() or not meant.any():
        return None
    places = [index for index, f in enumerate(quantities) if any(f is one for one in usable)]
    some = _some(meant)
    search = _Search(meant[some], [f._replace(values=f.values[some]) for f in usable])
    found = search.best()
    if found is None:
        return None
    literals = [
        literal._replace(quantities=tuple(places[index] for index in literal.quantities))
        for literal in found.literals
    ]
    return Conjunction(tuple(_snapped(literals, quantities)), found.worth)


def _some(meant: np.ndarray) -> np.ndarray:
    """Choose rows of both kinds evenly."""
    chosen = []
    for mask in (meant, ~meant):
        rows = np.flatnonzero(mask)
        places = np.linspace(0, len(rows) - 1, min(len(rows), MOST_ROWS)).astype(int)
        chosen.append(rows[places])
    return np.sort(np.concatenate(chosen))


class _Option(NamedTuple):
    """A literal that may be added, and the bits that it saves, less those that it takes."""

    worth: float
    literal: Literal


class _Search:
    """A beam search over conjunctions, literal by literal."""

    def __init__(self, meant: np.ndarray, quantities: Sequence[Quantity]) -> None:
        self.meant, self.quantities = meant, quantities
        everywhere = np.ones(len(meant), dtype=np.bool_)
        self.plain = [Literal("plain", (index,)) for index in range(len(quantities))]
        ordered = [lit for lit in self.plain if quantities[lit.quantities[0]].is_ordered]
        self.ordered = _Sorted(ordered, quantities)
        alone = sorted(self._intervals(self.ordered, everywhere), reverse=True)
        paired = [option.literal.quantities[0] for option in alone]
        best = [index for index in dict.fromkeys(paired) if not quantities[index].extra]
        self.pairs = list(combinations(sorted(best[:MOST_PAIRED]), 2))
        self.candidates = _Sorted([*ordered, *self._sums()], quantities)

    def best(self) -> Conjunction | None:
        """Return the condition worth most."""
        best = Conjunction(())
        beam = [best]
        for _ in range(DEPTH):
            grown = set()
            for condition in beam:
                inside = self._inside(condition.literals)
                options = sorted(self._options(inside), reverse=True)[: 2 * BEAM]
                grown |= {tuple(sorted((*condition.literals, one.literal))) for one in options}
            ranked = sorted(grown, key=lambda literals: (-self._worth(literals), literals))
            refined = dict.fromkeys(map(self._refined, ranked[:BEAM]))
            beam = [Conjunction(literals, self._worth(literals)) for literals in refined]
            beam = sorted(beam, key=lambda condition: -condition.worth)
            if not beam or beam[0].worth <= best.worth:
                break
            best = beam[0]
        best = max([best, *self._outside()], key=lambda condition: condition.worth)
        return best if best.worth > LEAST_WORTH else None

    def _outside(self) -> Iterator[Conjunction]:
        """Yield the conditions of lying outside of one interval, as what passes either limit."""
        everywhere = np.ones(len(self.meant), dtype=np.bool_)
        for _, literal in self._intervals(self.ordered, everywhere, ~self.meant):
            if np.isfinite(literal.low) and np.isfinite(literal.high):
                outside = literal._replace(outside=True)
                yield Conjunction((outside,), self._worth((outside,)))

    def _inside(self, literals: Sequence[Literal]) -> np.ndarray:
        return Conjunction(tuple(literals)).holds(self.quantities)

    def _worth(self, literals: Sequence[Literal]) -> float:
        """Return the bits that literals save, less those that they take."""
        inside = self._inside(literals)
        counts = np.array([inside.sum()]), np.array([(inside & self.meant).sum()])
        taken = sum(literal.bits(self.quantities) for literal in literals)
        return float(self._saved(*counts)[0]) - taken

    def _saved(self, count: np.ndarray, meant: np.ndarray, every: int | None = None) -> np.ndarray:
        """Return the bits saved by groups of so many rows, of which so many are meant."""
        total = len(self.meant)
        every = int(self.meant.sum()) if every is None else every
        whole = _bits(np.array([total]), np.array([every]))
        saved = whole - _bits(count, meant) - _bits(total - count, every - meant)
        fewer = meant * (total - count) <= (every - meant) * count
        return np.where(fewer, -np.inf, saved)

    def _options(self, inside: np.ndarray) -> Iterator[_Option]:
        """Yield literals that tell the meant rows among those inside."""
        yield from self._intervals(self.candidates, inside)
        yield from self._values(inside)
        yield from self._discs(inside)

    def _intervals(
        self, tried: "_Sorted", inside: np.ndarray, wanted: np.ndarray | None = None
    ) -> Iterator[_Option]:
        """Yield for each literal the bounds between which most wanted rows are, and few others.

        Those are the meant rows, unless others are wanted.
        """
        wanted = self.meant if wanted is None else wanted
        rows, meant = int(inside.sum()), int((inside & wanted).sum())
        if not tried.literals or meant in (0, rows):
            return
        order, values = tried.among(inside)
        hits = wanted[order]
        last = np.ones(values.shape, dtype=np.bool_)
        last[:, :-1] = values[:, 1:] != values[:, :-1]
        first = np.roll(last, 1, axis=1)
        first[:, 0] = True
        lines = np.arange(len(values))
        known = np.pad(np.cumsum(hits, axis=1), ((0, 0), (1, 0)))
        for balance in BALANCES:
            weights = np.where(hits, 1 / meant, -balance / (rows - meant))
            totals = np.cumsum(weights, axis=1)
            before = np.where(first, totals - weights, np.inf)
            gains = np.where(last, totals - np.minimum.accumulate(before, axis=1), -np.inf)
            ends = np.argmax(gains, axis=1)
            until = np.arange(rows) <= ends[:, None]
            begins = np.argmin(np.where(until, before, np.inf), axis=1)
            found = known[lines, ends + 1] - known[lines, begins]
            saved = self._saved(ends + 1 - begins, found, int(wanted.sum()))
            chosen = np.argsort(-saved, kind="stable")[: 4 * BEAM]
            for place in chosen[saved[chosen] > 0].tolist():
                begin, end = int(begins[place]), int(ends[place])
                low = values[place, begin - 1] if begin else -np.inf
                high = values[place, end + 1] if end + 1 < rows else np.inf
                gap = _between(low, values[place, begin]), _between(values[place, end], high)
                literal = tried.literals[place]._replace(low=gap[0], high=gap[1])
                yield _Option(float(saved[place]) - literal.bits(self.quantities), literal)

    def _sums(self) -> Iterator[Literal]:
        """Yield sums and differences of two quantities, at some slopes."""
        for one, other in self.pairs:
            spreads = [self.quantities[index].values.std() for index in (one, other)]
            ratio = spreads[0] / spreads[1]
            is_real = self.quantities[one].is_real or self.quantities[other].is_real
            factors = [
                slope * ratio if is_real else max(1.0, round(slope * ratio)) for slope in SLOPES
            ]
            for factor in dict.fromkeys(_short(factor, 2) for factor in factors):
                yield Literal("sum", (one, other), (factor,))
                yield Literal("sum", (one, other), (-factor,))

    def _discs(self, inside: np.ndarray) -> Iterator[_Option]:
        """Yield discs around where the meant rows are."""
        rows = np.flatnonzero(inside & self.meant)
        if len(rows) < FEWEST_IN_DISC:
            return
        discs = []
        for pair in self.pairs:
            one, other = (self.quantities[index].values for index in pair)
            ratio = one.std() / other.std()
            scale = 1.0 if 1 / 3 <= ratio <= 3 else _short(ratio, 1)
            centre = (_short(_middle(values[rows]), 3) for values in (one, other))
            discs.append(Literal("disc", pair, (*centre, scale)))
        found = self._intervals(_Sorted(discs, self.quantities), inside)
        yield from (option for option in found if option.literal.low == -np.inf)

    def _values(self, inside: np.ndarray) -> Iterator[_Option]:
        """Yield the values of whole quantities at which most rows are meant."""
        overall = float(self.meant[inside].mean())
        for literal in self.plain:
            quantity = self.quantities[literal.quantities[0]]
            if quantity.is_real:
                continue
            values, kinds = np.unique(quantity.values[inside], return_inverse=True)
            if not 2 <= len(values) <= MOST_VALUES**2:
                continue
            counts = np.bincount(kinds, minlength=len(values))
            hits = np.bincount(kinds, self.meant[inside], len(values))
            order = np.argsort(-hits / counts, kind="stable")
            saved = self._saved(np.cumsum(counts[order]), np.cumsum(hits[order]))
            above = int((hits / counts > overall).sum())
            for count in sorted({1, int((hits / counts > 0.5).sum()), above}):
                if 0 < count <= min(len(values) - 1, MOST_VALUES):
                    chosen = literal._replace(values=tuple(sorted(values[order[:count]].tolist())))
                    worth = float(saved[count - 1]) - chosen.bits(self.quantities)
                    yield _Option(worth, chosen)

    def _refined(self, literals: tuple[Literal, ...]) -> tuple[Literal, ...]:
        """Choose each literal's numbers anew, given the others; leave out what is not needed."""
        chosen = list(literals)
        for _ in range(ROUNDS):
            before = list(chosen)
            for place, literal in enumerate(chosen):
                others = [*chosen[:place], *chosen[place + 1 :]]
                near = _Sorted(list(self._near(literal)), self.quantities)
                found = sorted(self._intervals(near, self._inside(others)), reverse=True)
                either = [literal, *(option.literal for option in found[:1])]
                worths = [self._worth((*others, one)) for one in either]
                chosen[place] = either[int(np.argmax(worths))]
            if chosen == before:
                break
        for literal in list(chosen):
            fewer = [one for one in chosen if one is not literal]
            if fewer and self._worth(fewer) >= self._worth(chosen):
                chosen = fewer
        return tuple(sorted(chosen))

    def _near(self, literal: Literal) -> Iterator[Literal]:
        """Yield a literal and those of other slopes or centres nearby, without bounds."""
        if literal.values:
            return
        unbound = literal._replace(low=-np.inf, high=np.inf, outside=False)
        yield unbound
        if literal.form == "sum" and any(self.quantities[i].is_real for i in literal.quantities):
            for factor in np.linspace(0.6, 1.5, 13):
                yield unbound._replace(numbers=(_short(factor * literal.numbers[0], 2),))
        if literal.form == "disc":
            x, y, scale = literal.numbers
            reach = np.sqrt(max(literal.high, 0)) if np.isfinite(literal.high) else 1.0
            for dx, dy in product((-0.3, -0.1, 0.0, 0.1, 0.3), repeat=2):
                centre = (_short(x + dx * reach, 3), _short(y + dy * reach / scale, 3))
                yield unbound._replace(numbers=(*centre, scale))


class _Sorted:
    """What literals compare, for every row, and the rows in its order."""

    def __init__(self, literals: Sequence[Literal], quantities: Sequence[Quantity]) -> None:
        self.literals = literals
        rows = len(quantities[0].values)
        measured = [literal.measure(quantities) for literal in literals]
        self.values = np.array(measured, dtype=np.float64).reshape(len(literals), rows)
        self.order = np.argsort(self.values, axis=1, kind="stable")
        self.values = np.take_along_axis(self.values, self.order, axis=1)

    def among(self, inside: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the order and the values of the rows inside alone."""
        kept = inside[self.order]
        shape = len(self.literals), int(inside.sum())
        return self.order[kept].reshape(shape), self.values[kept].reshape(shape)


def _between(below: float, above: float) -> float:
    """Return a bound halfway between two values; where there is none on a side, no bound."""
    if np.isinf(below) or np.isinf(above):
        return below if np.isinf(below) else above
    return (below + above) / 2


def _snapped(literals: Sequence[Literal], quantities: Sequence[Quantity]) -> list[Literal]:
    """Give literals the shortest bounds that leave every row on its side, given the others."""
    chosen = list(literals)
    for place, literal in enumerate(chosen):
        if literal.values:
            continue
        others = Conjunction((*chosen[:place], *chosen[place + 1 :]))
        measured = literal.measure(quantities)[others.holds(quantities)]
        low, high = literal.low, literal.high
        if np.isfinite(low):
            low = simplest(*_sides(measured, low))
        if np.isfinite(high):
            high = simplest(*_sides(measured, high))
        chosen[place] = literal._replace(low=low, high=high)
    return chosen


def _sides(values: np.ndarray, bound: float) -> tuple[float, float]:
    """Return the nearest values on either side of a bound, the bound where there is none."""
    below, above = values[values <= bound], values[values > bound]
    return float(below.max(initial=-np.inf)), float(above.min(initial=np.inf))


def simplest(low: float, high: float) -> float:
    """Return the number with the fewest digits between two others, neither of them included."""
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


def _whole(name: str, low: float, high: float) -> str:
    """Write bounds of whole numbers."""
    first, last = (
        floor(low) + 1 if np.isfinite(low) else low,
        ceil(high) - 1 if np.isfinite(high) else high,
    )
    if first == last:
        return f"{name} == {first}"
    if np.isfinite(low) and np.isfinite(high):
        return f"{first} <= {name} <= {last}"
    return f"{name} >= {first}" if np.isfinite(low) else f"{name} <= {last}"


def _bits(count: np.ndarray, meant: np.ndarray) -> np.ndarray:
    """Return the bits that it takes to say which of so many rows are the so many meant ones."""
    share = np.divide(meant, count, out=np.zeros(len(count)), where=count > 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        each = share * np.log2(share) + (1 - share) * np.log2(1 - share)
    bits: np.ndarray = -count * np.nan_to_num(each)
    return bits


def _middle(values: np.ndarray) -> float:
    """Return the middle between the extremes, but for one row in twenty on either side."""
    low, high = np.quantile(values, [0.05, 0.95])
    return float(low + high) / 2


def _short(value: float, digits: int) -> float:
    """Round to so many significant digits."""
    return float(f"{value:.{digits}g}")
