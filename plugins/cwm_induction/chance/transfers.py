"""Large counts that move between stocks: infections, recoveries, arrivals, departures.

Every transfer takes a binomial number of the items of a stock, or a Poisson number from outside.
Its rate is constant or grows with another stock, and may differ between the levels of the action.
Transfers are selected by forward least squares over all stocks together, weighted by the variance
that the transfers themselves imply (Breto and Ionides, Stochastic Processes and their Applications
121, 2011, describe such models).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

import numpy as np
from scipy.linalg import solve_triangular
from scipy.optimize import least_squares, nnls

from cwm_induction.chance.quantities import KnownQuantity, OutcomeRows, is_whole
from cwm_induction.writing.rounding import literal, rounded

Array = np.ndarray

LARGE, WIDE = 256, 8.0
"""Minimum value of a large count, and minimum standard deviation of its changes: programs list at
most 256 outcomes, and smaller counts are explained more precisely by their likelihood."""

MOST_STOCKS = 6
"""Stocks at most: the number of possible transfers grows with the third power."""

MOST_LEVELS = 6
"""Levels of an action with a rate of their own."""

MOST_TRANSFERS = 8
"""Transfers at most."""

DISPERSION = (0.5, 2.0)
"""Range of the variance of residuals, relative to the variance that the transfers imply."""

DIGITS = 4
"""Digits of a rate: a thousand rows determine no more."""


@dataclass(frozen=True)
class StockTransfer:
    """A flow from one stock to another one; a place of -1 is outside.

    `driver` is the quantity that the rate is proportional to, if any. `levels` has the level of
    the action in every row if each level has a rate; it is 0 otherwise.
    """

    source: int
    target: int
    stock: Array
    driver: KnownQuantity | None
    levels: Array
    choice: str = ""

    @property
    def count(self) -> int:
        """Number of rates."""
        return int(self.levels.max()) + 1

    def exposure(self) -> Array:
        """Return the number of items times the driver, for each rate (rows, rates)."""
        size = self.stock * (1.0 if self.driver is None else self.driver.values)
        columns: Array = size[:, None] * (self.levels[:, None] == np.arange(self.count))
        return columns

    def mean(self, rates: Array, *, saturates: bool) -> Array:
        """Return the expected number of items in every row."""
        hazard = rates[self.levels] * (1.0 if self.driver is None else self.driver.values)
        if self.source < 0:
            return np.asarray(hazard)
        chance = 1 - np.exp(-hazard) if saturates and self.driver else np.clip(hazard, 0, 1)
        return np.asarray(self.stock * chance)

    def signs(self, stocks: int) -> Array:
        """Return the effect of an item on every stock."""
        found = np.zeros(stocks)
        if self.source >= 0:
            found[self.source] = -1.0
        if self.target >= 0:
            found[self.target] = 1.0
        return found

    def text(self, rates: Array, stock: str, *, saturates: bool) -> str:
        """Write the draw of the number of items."""
        numbers = [literal(rounded(rate, DIGITS)) for rate in rates.tolist()]
        rate = f"({', '.join(numbers)})[{self.choice}]" if len(numbers) > 1 else numbers[0]
        hazard = rate if self.driver is None else f"{rate} * {self.driver.text}"
        if self.source < 0:
            return f"self.rng.poisson({hazard})"
        chance = hazard
        if self.driver is not None:
            chance = f"1 - np.exp(-{hazard})" if saturates else f"min({hazard}, 1.0)"
        return f"self.rng.binomial(max({stock}, 0), {chance})"

    def name(self, names: Sequence[str]) -> str:
        """Return the name of the number of items."""
        if self.source < 0:
            return f"{names[self.target]}_arriving"
        if self.target < 0:
            return f"{names[self.source]}_leaving"
        return f"{names[self.source]}_to_{names[self.target]}"


@dataclass(frozen=True)
class StockTransfers:
    """The transfers between stocks, with their rates."""

    stocks: tuple[int, ...]
    transfers: tuple[StockTransfer, ...]
    rates: tuple[Array, ...]
    saturates: bool
    dispersion: float

    def lines(self, names: Sequence[str]) -> Iterator[tuple[str, str]]:
        """Yield the names and the expressions of all transfers, then of all stocks."""
        sums = {n: names[n] for n in self.stocks}
        used: dict[str, int] = {}
        inside = [names[n] for n in self.stocks]
        for transfer, rates in zip(self.transfers, self.rates, strict=True):
            name = transfer.name(inside)
            used[name] = used.get(name, 0) + 1
            name += f"_{used[name]}" if used[name] > 1 else ""
            source = inside[transfer.source] if transfer.source >= 0 else ""
            yield name, transfer.text(rates, source, saturates=self.saturates)
            for place, sign in ((transfer.source, "-"), (transfer.target, "+")):
                if place >= 0:
                    sums[self.stocks[place]] += f" {sign} {name}"
        for place, text in sums.items():
            leaving = sum(
                transfer.source >= 0 and self.stocks[transfer.source] == place
                for transfer in self.transfers
            )
            yield f"{names[place]}_next", text if leaving < 2 else f"max({text}, 0)"

    @property
    def is_calibrated(self) -> bool:
        """Whether residuals vary as much as the transfers imply."""
        return DISPERSION[0] <= self.dispersion <= DISPERSION[1]


def large_counts(rows: OutcomeRows, learn: Array) -> list[int]:
    """Return the places of components that are large counts."""
    return [
        place
        for place, part in enumerate(rows.now)
        if min(part.values.min(), rows.after[:, place].min()) >= 0
        and is_large(part.values, rows.after[:, place], learn)
    ]


def is_large(now: Array, after: Array, learn: Array) -> bool:
    """Return whether a component is a whole number of many values that changes widely."""
    whole = is_whole(now) and is_whole(after)
    return whole and bool(np.abs(now).max() >= LARGE and (after - now)[learn].std() > WIDE)


def fit_transfers(rows: OutcomeRows, learn: Array) -> StockTransfers | None:
    """Return the transfers between all large counts; None if there are no such counts."""
    stocks = large_counts(rows, learn)
    if not 1 <= len(stocks) <= MOST_STOCKS:
        return None
    return _Selection(rows, tuple(stocks), learn).fitted()


@dataclass(frozen=True)
class _Selection:
    rows: OutcomeRows
    stocks: tuple[int, ...]
    learn: Array

    @cached_property
    def changes(self) -> Array:
        """Changes of the stocks (rows, stocks)."""
        now = np.stack([self.rows.now[n].values for n in self.stocks], axis=1)
        found: Array = self.rows.after[:, list(self.stocks)] - now
        return found

    @cached_property
    def candidates(self) -> list[StockTransfer]:
        """All transfers, the ones with a single rate first."""
        return list(self._candidates())

    def _candidates(self) -> Iterator[StockTransfer]:
        parts = [self.rows.now[n] for n in self.stocks]
        one, same = np.ones(len(self.rows)), np.zeros(len(self.rows), int)
        ways = [(same, "")]
        for part in self.rows.actions:
            levels = np.unique(part.values)
            if is_whole(part.values) and levels.min() == 0 and 0 < levels.max() < MOST_LEVELS:
                ways.append((part.values.astype(int), part.text))
        drivers = [None, *(part for part in self.rows.now if np.ptp(part.values) > 0)]
        drivers += [part for part in self.rows.actions if np.unique(part.values).size > 2]
        count = len(self.stocks)
        for levels, choice in ways:
            for source in range(-1, count):
                for target in range(-1, count):
                    if source == target:
                        continue
                    stock = one if source < 0 else parts[source].values
                    for driver in drivers:
                        if driver is None or driver.values.min() >= 0:
                            yield StockTransfer(source, target, stock, driver, levels, choice)

    def fitted(self) -> StockTransfers | None:
        """Select transfers twice: with equal variances, and with the variances they imply."""
        variance = np.maximum(self.changes[self.learn].var(axis=0), 1.0)
        spread = np.broadcast_to(variance, self.changes.shape)
        chosen: list[StockTransfer] = []
        for _ in range(3):
            chosen, rates = self._selected(spread)
            if not chosen:
                return None
            spread = self._spread(chosen, rates)
        fits = [self._pruned(chosen, rates, spread, saturates=way) for way in (False, True)]
        return min(fits, key=lambda found: found[1])[0]

    def _spread(self, chosen: Sequence[StockTransfer], rates: Sequence[Array]) -> Array:
        """Return the variance of every change: of the transfers, and of noise in the readings.

        The noise of a reading has a constant part and a part that is proportional to the stock.
        """
        implied = self._variance(chosen, rates, saturates=False)
        errors = self._errors(chosen, rates, saturates=False) ** 2
        found = implied.copy()
        for place, number in enumerate(self.stocks):
            level = self.rows.now[number].values
            table = np.stack([np.ones(len(level)), implied[:, place], level**2], axis=1)
            scale = 1 / (table / table.mean(axis=0)).sum(axis=1, keepdims=True)
            inner = (table * scale)[self.learn]
            sizes = np.maximum(np.linalg.norm(inner, axis=0), 1e-12)
            goal = errors[self.learn, place] * scale[self.learn, 0]
            found[:, place] = table @ (nnls(inner / sizes, goal)[0] / sizes)
        least: Array = np.maximum(found, 0.5)
        return least

    def _pruned(
        self,
        chosen: Sequence[StockTransfer],
        rates: Sequence[Array],
        spread: Array,
        *,
        saturates: bool,
    ) -> tuple[StockTransfers, float]:
        """Fit all rates together, leave out transfers that are not worth their price."""
        found = self._refined(chosen, rates, spread, saturates=saturates)
        cost = self._cost(chosen, found, spread, saturates=saturates)
        for place in range(len(chosen) if len(chosen) > 1 else 0):
            fewer = [*chosen[:place], *chosen[place + 1 :]]
            start = [*found[:place], *found[place + 1 :]]
            other = self._refined(fewer, start, spread, saturates=saturates)
            if self._cost(fewer, other, spread, saturates=saturates) <= cost:
                return self._pruned(fewer, other, spread, saturates=saturates)
        implied = self._variance(chosen, found, saturates=saturates)
        dispersion = float(self._misfit(chosen, found, implied, saturates=saturates).mean())
        result = StockTransfers(self.stocks, tuple(chosen), tuple(found), saturates, dispersion)
        return result, cost

    def _cost(
        self,
        chosen: Sequence[StockTransfer],
        rates: Sequence[Array],
        spread: Array,
        *,
        saturates: bool,
    ) -> float:
        """Return the negative log-likelihood of given variances, plus the price of all rates."""
        fit = 0.5 * float(self._misfit(chosen, rates, spread, saturates=saturates).sum())
        return fit + sum(self._price(transfer) for transfer in chosen)

    def _price(self, transfer: StockTransfer) -> float:
        size = self.learn.sum() * len(self.stocks)
        return 0.5 * transfer.count * float(np.log(size)) + float(np.log(len(self.candidates)))

    def _selected(self, spread: Array) -> tuple[list[StockTransfer], list[Array]]:
        """Add the transfer with the largest gain in likelihood, until no gain exceeds its price."""
        weights = 1 / np.sqrt(spread[self.learn])
        goal = (self.changes[self.learn] * weights).T.ravel()
        tables = [self._table(candidate, weights) for candidate in self.candidates]
        counts = np.array([table.shape[1] for table in tables])
        firsts = np.concatenate([[0], np.cumsum(counts)])
        table = np.concatenate(tables, axis=1)
        sizes = np.maximum(np.linalg.norm(table, axis=0), 1e-12)
        table /= sizes
        gram, products = table.T @ table, table.T @ goal
        price = np.array([self._price(candidate) for candidate in self.candidates])
        total = len(goal)

        def cost(places: Sequence[int]) -> float:
            """Return the negative log-likelihood plus the price; infinite if a rate is negative."""
            used = self._columns(places, firsts)
            solved = _solved(gram, products, used) if len(used) else used
            if solved is None:
                return np.inf
            left = max(float(goal @ goal) - float(products[used] @ solved), 1e-12)
            return 0.5 * total * float(np.log(left)) + float(price[list(places)].sum())

        # In a steady state flows balance each other, so that single ones explain nothing.
        factor = np.linalg.cholesky(gram + 1e-9 * np.eye(len(gram)))
        short = solve_triangular(factor, products, lower=True)
        active = np.flatnonzero(nnls(factor.T, short, maxiter=20 * len(gram))[0] > 0)
        together = [
            *combinations(np.unique(np.searchsorted(firsts, active, "right") - 1).tolist(), 2)
        ]
        chosen: list[int] = []
        least = cost([])
        while True:
            leaving = [(), *combinations(chosen, 1), *combinations(chosen, 2)]
            kept = [[n for n in chosen if n not in out] for out in leaving]
            ways = [[*part, n] for part in kept for n in range(len(tables)) if n not in part]
            ways += [[*chosen, *pair] for pair in together if not {*chosen} & {*pair}]
            ways = [way for way in [*ways, *kept[1:]] if len(way) <= MOST_TRANSFERS]
            costs = [cost(way) for way in ways]
            best = int(np.argmin(costs))
            if costs[best] >= least - 1e-6:
                break
            chosen, least = ways[best], costs[best]
        if not chosen:
            return [], []
        used = self._columns(chosen, firsts)
        rates = _solved(gram, products, used)
        assert rates is not None
        rates = rates / sizes[used]
        ends = np.cumsum(counts[chosen])[:-1]
        return [self.candidates[n] for n in chosen], np.split(rates, ends)

    def _table(self, transfer: StockTransfer, weights: Array) -> Array:
        """Return the weighted effects of a transfer on all stocks (rows * stocks, rates)."""
        exposure, signs = transfer.exposure()[self.learn], transfer.signs(len(self.stocks))
        parts = [sign * exposure * weights[:, n, None] for n, sign in enumerate(signs.tolist())]
        return np.concatenate(parts)

    def _columns(self, places: Sequence[int], firsts: Array) -> Array:
        parts = [np.arange(firsts[n], firsts[n + 1]) for n in places]
        return np.concatenate([np.zeros(0, int), *parts])

    def _errors(
        self, chosen: Sequence[StockTransfer], rates: Sequence[Array], *, saturates: bool
    ) -> Array:
        found = self.changes.copy()
        for transfer, part in zip(chosen, rates, strict=True):
            mean = transfer.mean(part, saturates=saturates)
            found -= mean[:, None] * transfer.signs(len(self.stocks))
        return found

    def _variance(
        self, chosen: Sequence[StockTransfer], rates: Sequence[Array], *, saturates: bool
    ) -> Array:
        found = np.full(self.changes.shape, 0.5)
        for transfer, part in zip(chosen, rates, strict=True):
            mean = np.maximum(transfer.mean(part, saturates=saturates), 0)
            left = 1.0 if transfer.source < 0 else 1 - mean / np.maximum(transfer.stock, 1)
            found += (mean * left)[:, None] * np.abs(transfer.signs(len(self.stocks)))
        return found

    def _misfit(
        self,
        chosen: Sequence[StockTransfer],
        rates: Sequence[Array],
        spread: Array,
        *,
        saturates: bool,
    ) -> Array:
        """Return the squared errors of the fitted rows and stocks, in units of their variances."""
        errors = self._errors(chosen, rates, saturates=saturates)
        squares: Array = (errors**2 / spread)[self.learn]
        return squares

    def _refined(
        self,
        chosen: Sequence[StockTransfer],
        rates: Sequence[Array],
        spread: Array,
        *,
        saturates: bool,
    ) -> list[Array]:
        """Fit all rates together, with chances that saturate if asked."""
        ends = np.cumsum([len(part) for part in rates])[:-1]
        start = np.maximum(np.concatenate(rates), 1e-12)
        scale = 1 / np.sqrt(spread[self.learn])

        def errors(logs: Array) -> Array:
            parts = np.split(np.exp(logs), ends)
            return np.asarray(
                (self._errors(chosen, parts, saturates=saturates)[self.learn] * scale).ravel()
            )

        found = least_squares(errors, np.log(start), x_scale=0.1, max_nfev=30)
        return np.split(np.exp(found.x), ends)


def _solved(gram: Array, products: Array, used: Array) -> Array | None:
    """Return positive weights of some columns, or None if they are dependent or negative."""
    inner = gram[np.ix_(used, used)]
    try:
        found = np.linalg.solve(inner + 1e-10 * np.eye(len(used)), products[used])
    except np.linalg.LinAlgError:
        return None
    return found if (found > 0).all() else None
