"""Comparison of rows whose observation and action are almost equal.

A smooth regression on the observation and the action removes the known part of the outcomes. If
the history explains the residuals of similar rows better than thresholds in the observation do,
something is hidden. If nothing explains them, and close rows differ as much as distant ones, they
are random.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.spatial import cKDTree
from scipy.stats import mannwhitneyu, pearsonr, rankdata

from cwm_cli.evaluation.history import (
    MAX_P_VALUE,
    ContextTests,
    Explanation,
    RecordedPast,
    ShuffledOutcomes,
    decimal_unit,
    steps_words,
)
from cwm_cli.evaluation.metric import MOST_CLASSES

STRETCH = 20
"""Consecutive rows that are on one side of the split into halves."""
OUTLIER = 4.0
"""Larger residuals, in medians, are outliers."""


def choose_rows(history: RecordedPast, wrong: np.ndarray | None) -> np.ndarray:
    """Return at most 1,200 rows: stretches spread over all episodes, wrong rows first."""
    most = 1200  # the regression takes time that grows with the third power of the rows
    count = len(history.rows)
    if count <= most:
        return np.arange(count)
    starts = np.linspace(0, count - STRETCH, most // STRETCH).astype(int)
    chosen = np.unique(starts[:, None] + np.arange(STRETCH))
    if wrong is None or not wrong.any():
        return chosen
    bad = np.flatnonzero(wrong)
    bad = bad[np.linspace(0, len(bad) - 1, min(len(bad), most // 3)).astype(int)]
    others = np.linspace(0, len(chosen) - 1, most - len(bad)).astype(int)
    return np.union1d(bad, chosen[others])


class UnexplainedRows(NamedTuple):
    """Components that differ between similar rows, and the history that explains it, if any."""

    components: tuple[int, ...]
    unexplained: float
    explanation: Explanation | None = None


class SensorNoise(NamedTuple):
    """A component with sensor noise, and the correlation of its residuals in consecutive steps."""

    component: int
    correlation: float
    p_value: float


class SimilarRows:
    """Rows with the residuals of a regression on the observation and the action."""

    MAX_NOISY = 8
    """With more inputs, noise looks like a law that is hard to fit."""

    MIN_UNEXPLAINED = 0.02
    """Smaller residuals, as a fraction of the spread of a component, are not tested."""

    def __init__(
        self, history: RecordedPast, chosen: np.ndarray, targets: np.ndarray, of_program: bool
    ) -> None:
        """Fit the regression.

        Args:
            history: All rows.
            chosen: Indices of the rows to compare, ascending.
            targets: Outcomes of all rows, or errors of a program, (rows, components).
            of_program: Whether the targets are errors of a program.
        """
        self.of_program = of_program
        max_targets, max_actions = 6, 8
        inputs, targets = history.inputs[chosen], targets[chosen]
        spread = inputs.std(axis=0)
        self.inputs = (inputs - inputs.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
        self.history, self.chosen, self.targets = history, chosen, targets
        self.names, self.lagged = self._lagged()
        self.fit = CrossFit(self.inputs, chosen // STRETCH % 2 == 0)
        residuals = self.fit.residuals(targets)
        residuals[history.rows.columns["terminations"][chosen], :-2] = 0  # ends show no state
        spread = targets.std(axis=0)
        left = np.sqrt((residuals**2).mean(axis=0)) / np.where(spread > 0, spread, 1)
        # Each target takes time to test, so only those with the largest open share are.
        order = np.argsort(-left, kind="stable")[:max_targets]
        self.open = order[(left[order] > self.MIN_UNEXPLAINED) & (spread[order] > 0)]
        self.left, self.residuals = left, residuals
        self.splits: dict[int, float] = {}
        action = history.action[chosen]
        # With many actions, rows of one action are few, so that all actions are compared.
        self.action = action if len(np.unique(action)) <= max_actions else np.zeros_like(action)
        self.cell = _cells(self.inputs, self.action)
        # Similar rows of the same action that are not of the same stretch of time. The distance of
        # actions is larger than any other, so that the tree never mixes them.
        far = 10 * (1 + np.abs(self.inputs).max())
        points = np.column_stack([self.inputs, far * self.action])
        distance, near = cKDTree(points).query(points, k=min(12, len(points)))
        apart = np.abs(chosen[near] - chosen[:, None]) > 3
        first = np.argsort(~apart, axis=1, kind="stable")[:, :2]
        self.neighbours = np.take_along_axis(near, first, axis=1)
        self.distances = np.take_along_axis(distance, first, axis=1)[:, 0]
        self.surroundings = [
            rows[ok] if ok.any() else rows for rows, ok in zip(near, apart, strict=True)
        ]

    def _lagged(self) -> tuple[list[str], np.ndarray]:
        """Return names and values of components and real actions in the last steps."""
        history = self.history
        names, columns = [], []
        parts = [(f"component {i} seen", column) for i, column in enumerate(history.before.T)]
        if history.rows.action_space.kind != "discrete":
            one = history.actions.shape[1] == 1
            for i, column in enumerate(history.actions.T):
                parts.append(("the action" if one else f"part {i} of the action", column))
        longest = min(history.MAX_LAG, int(history.step[self.chosen].max()))
        for lag in range(1, longest + 1):
            for name, column in parts:
                names.append(f"{name} {steps_words(lag)} earlier")
                shifted = history.earlier(column, lag)
                columns.append(np.where(history.step >= lag, shifted, np.nan)[self.chosen])
        return names, np.reshape(columns, (len(columns), len(self.chosen))).T

    def recent(self) -> Iterator[tuple[str, np.ndarray]]:
        """Yield names and codes of the last steps of the chosen rows."""
        history, chosen = self.history, self.chosen
        if len(np.unique(history.action)) <= MOST_CLASSES:
            for lag in range(1, history.MAX_LAG + 1):
                yield (
                    f"the action {steps_words(lag)} earlier",
                    history.earlier(history.action, lag)[chosen],
                )
        known = np.isfinite(self.lagged)
        filled = np.where(known, self.lagged, np.nanmean(self.lagged, axis=0))
        for name, column, ok in zip(self.names, self.fit.residuals(filled).T, known.T, strict=True):
            yield name, np.where(ok, _binned(column), -1)

    def older(self) -> Iterator[tuple[str, np.ndarray]]:
        """Yield names and codes of other parts of the history of the chosen rows."""
        history, chosen = self.history, self.chosen
        for period in range(2, history.MAX_PERIOD + 1):
            yield f"the number of steps modulo {period}", history.step[chosen] % period
        # more bins at the end, because the largest values of a timer matter
        tailed = (0.25, 0.5, 0.75, 0.9, 0.95, 0.975, 0.99)
        yield "the number of steps since the episode began", _binned(history.step[chosen], tailed)
        for label, event in history.values("action", history.action, MOST_CLASSES):
            count, wait = history.occurred(event)
            yield f"whether {label} occurred earlier", (count > 0)[chosen].astype(int)
            yield f"whether {label} occurred an odd number of times", count[chosen] % 2
            yield f"how many steps ago {label} occurred", np.minimum(wait, 6)[chosen]
            yield f"how many times {label} occurred", np.minimum(count, 6)[chosen]
        for name, stock in history.balances():
            yield name, stock[chosen]
        for index, column in enumerate(history.before.T[: history.MAX_COMPONENTS]):
            for low, high in ((0.2, 0.8), (0.05, 0.95)):
                bounds = np.quantile(column, [low, high])
                above = history.occurred(column >= bounds[1])[1]
                below = history.occurred(column <= bounds[0])[1]
                last = np.where(
                    above < 0,
                    np.where(below < 0, 0, 2),
                    np.where((below < 0) | (above < below), 1, 2),
                )
                yield f"whether component {index} was last high or low", last[chosen]
                yield (
                    f"whether component {index} was high earlier",
                    (above >= 0)[chosen].astype(int),
                )
                yield f"whether component {index} was low earlier", (below >= 0)[chosen].astype(int)
        if not self.of_program or self.inputs.shape[1] > self.MAX_NOISY:
            return  # a bad fit has similar residuals in consecutive steps, too
        place = np.full(len(history.rows), -1)
        place[chosen] = np.arange(len(chosen))
        for lag in range(1, history.MAX_LAG + 1):
            other = history.earlier(place, lag)[chosen]
            for target in self.open:
                code = _binned(self.residuals[:, target])
                yield (
                    f"the error of the program {steps_words(lag)} earlier",
                    np.where(other >= 0, code[other], -1),
                )

    def present(self, target: int) -> Iterator[np.ndarray]:
        """Yield contexts of the present row, and residuals of the most similar ones."""
        for column in self.inputs.T:
            yield _binned(column)
        code = _binned(self.residuals[:, target])
        for neighbours in self.neighbours.T:
            yield code[neighbours]

    def tested(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yield targets with their residuals, also without the weight of outliers."""
        for target in self.open.tolist():
            residual = self.residuals[:, target]
            yield target, residual
            bound = OUTLIER * np.median(np.abs(residual))
            if bound > self.MIN_UNEXPLAINED * self.targets[:, target].std():
                yield target, np.clip(residual, -bound, bound)

    def memory(self) -> UnexplainedRows | None:
        """Return the difference if the history explains the residuals."""
        # The history has to explain this share more than the present row and similar rows do.
        margin = 0.2
        tests, floors, recent = list[Any](), [], list[int]()
        last = list(self.recent())
        contexts = [*last, *self.older()]
        for target, residual in self.tested():
            shuffled = ShuffledOutcomes(self.cell, residual[:, None])
            split = shuffled.split(self.inputs)
            self.splits[target] = max(split, self.splits.get(target, 0.0))
            if shuffled.cells < 10:  # too few cells differ for a test
                continue
            present = max(shuffled.explained(code) for code in self.present(target))
            floor = max(present, split) + margin
            recent += range(len(tests), len(tests) + len(last))
            tests += [(name, shuffled, code) for name, code in contexts]
            for name, _ in contexts:
                more = margin if name.startswith("the error") else 0.0
                floors.append((floor + more, target))
        if not tests:
            return None
        least = np.array([floor for floor, _ in floors])
        found = ContextTests(tests, np.array(recent))
        best = found.strongest(least)
        if best is None:
            return None
        targets = sorted({floors[i][1] for i in found.significant(least).tolist()})
        unexplained = float(min(1.0, np.median(self.left[targets])))
        return UnexplainedRows(tuple(targets), unexplained, best)

    def chance(self) -> UnexplainedRows | None:
        """Return the difference if residuals of similar rows differ without a cause."""
        # With fewer rows a law that is fitted badly looks like noise, and so does a law that
        # thresholds in the observation explain in part.
        min_rows, max_split = 150, 0.1
        if self.inputs.shape[1] > self.MAX_NOISY or len(self.chosen) < min_rows:
            return None
        noisy = [
            target
            for target in self.open.tolist()
            if self._is_jump(target) or (self.splits[target] < max_split and self._is_noise(target))
        ]
        if not noisy:
            return None
        unexplained = float(min(1.0, np.median(self.left[noisy])))
        return UnexplainedRows(tuple(noisy), unexplained)

    def sensor_noise(self) -> SensorNoise | None:
        """Return the component with the strongest sign of sensor noise, if any.

        The noise of a recorded value enters two steps with opposite signs: as the outcome of one
        step, and as the observation of the next. The residuals then are a moving average of order
        one (Box and Jenkins, 1970), whereas random outcomes leave uncorrelated residuals. A law
        that is fitted badly has similar residuals in similar rows instead.

        Counts vary by chance as well. A filter lowers the error of such a moving average by only
        5 % at a correlation of -0.3, so that weaker ones do not show that a program needs memory.
        """
        max_correlation, max_of_counts, max_alike = -0.18, -0.3, 0.15
        found: list[SensorNoise] = []
        chosen, before = self.chosen, self.history.before
        later = np.flatnonzero((np.diff(chosen) == 1) & self.history.follows[chosen[1:]]) + 1
        for target in range(before.shape[1]):
            residual = self.residuals[:, target]
            codes = np.unique(before[:, target])
            coarse = len(codes) <= MOST_CLASSES or residual.std() < self._rounding(target)
            if coarse or len(later) < 100:
                continue
            is_count = bool((codes == np.rint(codes)).all())
            scaled = np.clip(residual / self._local_sizes(residual), -OUTLIER, OUTLIER)
            if min(np.ptp(scaled[later]), np.ptp(scaled[later - 1])) == 0:
                continue  # no correlation is defined
            between = pearsonr(scaled[later], scaled[later - 1])
            alike = pearsonr(scaled, scaled[self.neighbours[:, 0]]).statistic
            p_value = min(1.0, float(between.pvalue) * before.shape[1])
            limit = max_of_counts if is_count else max_correlation
            cancels = between.statistic < limit and p_value < MAX_P_VALUE
            if cancels and alike < max_alike:
                found.append(SensorNoise(target, float(between.statistic), p_value))
        return min(found, key=lambda one: one.correlation) if found else None

    def _rounding(self, target: int) -> float:
        """Return the size below which residuals may be rounding errors of decimal numbers."""
        if target >= self.history.before.shape[1]:
            return 0.0
        return 2.0 * decimal_unit(self.history.before[:, target])

    def _local_sizes(self, residual: np.ndarray) -> np.ndarray:
        """Return the mean size of residuals around each row: large counts vary more."""
        sizes = np.array([np.abs(residual[rows]).mean() for rows in self.surroundings])
        return np.asarray(np.maximum(sizes, 0.1 * sizes.mean() + 1e-300))

    def _is_noise(self, target: int) -> bool:
        """Whether residuals are alike everywhere and independent of their neighbours'.

        Residuals of a law that was fitted badly are similar in neighbouring situations and in
        consecutive steps, larger in some places than in others, and shrink with more rows.
        """
        residual = self.residuals[:, target]
        size = np.abs(residual)
        distinct = len(np.unique(self.targets[:, target]))
        if residual.std() < self._rounding(target):
            return False
        # The ninth decile of noise in medians: 2.4 if normal, 5 if a third of the steps have none.
        if distinct <= MOST_CLASSES or np.quantile(size, 0.9) >= 6 * np.median(size):
            return False
        residual = np.clip(residual, -OUTLIER * np.median(size), OUTLIER * np.median(size))
        near = residual[self.neighbours[:, 0]]
        after = np.flatnonzero(np.diff(self.chosen) == 1) + 1
        alike = (
            pearsonr(residual[after], residual[after - 1]).statistic,
            pearsonr(residual, near).statistic,
        )
        apart = np.abs(residual - near) / self._local_sizes(residual)
        distant = pearsonr(apart, rankdata(self.distances)).statistic
        # largest correlations of noise, in standard errors
        errors, max_alike, max_distant = np.sqrt(len(residual)), 3.5, 2.5
        if max(alike) * errors >= max_alike or distant * errors >= max_distant:
            return False
        # With half of the rows, residuals of a law grow, but residuals of noise grow by under 20 %.
        few = np.flatnonzero(self.chosen // STRETCH % 4 < 2)
        fit = CrossFit(self.inputs[few], self.chosen[few] // STRETCH % 4 == 0)
        fewer = np.abs(fit.residuals(self.targets[few][:, [target]])).mean()
        return bool(fewer < 1.2 * size.mean())

    def _is_jump(self, target: int) -> bool:
        """Whether rare or discrete differences are scattered among similar rows."""
        values = self.targets[:, target]
        codes, counts = np.unique(values, return_counts=True)
        if len(codes) <= MOST_CLASSES:
            flag = values != codes[np.argmax(counts)]
        else:
            size = np.abs(self.residuals[:, target])
            flag = size > max(10 * np.median(size), 0.5 * values.std())
        # Fewer jumps show nothing. A regression on the observation explains little of random ones.
        if not 30 <= flag.sum() <= len(flag) / 2 or self.left[target] < 0.9:
            return False
        often = np.array([flag[rows].mean() for rows in self.surroundings])
        usual = np.bincount(self.action, often) / np.maximum(np.bincount(self.action), 1)
        often -= usual[self.action]
        clustered = mannwhitneyu(often[flag], often[~flag], alternative="greater").pvalue
        if clustered < 0.02:  # there are more jumps near jumps than elsewhere
            return False
        return _is_constant(flag != flag[self.neighbours[:, 0]], self.distances)


def _is_constant(differs: np.ndarray, distances: np.ndarray) -> bool:
    """Whether differences are as frequent in close pairs as in distant ones.

    Boundaries in the observation make differences proportional to the distance. The likelihoods
    of both hypotheses are compared.
    """
    constant = differs.mean()
    if constant == 0:
        return False
    scaled = distances / max(1e-12, float(np.median(distances)))
    likelihoods = []
    for rate in np.geomspace(constant / 10, constant * 10, 41):
        chance = np.clip(-np.expm1(-rate * scaled), 1e-9, 1 - 1e-9)
        likelihoods.append(np.log(np.where(differs, chance, 1 - chance)).sum())
    even = np.log(np.where(differs, constant, 1 - constant)).sum()
    return bool(even - max(likelihoods) > 4)


class CrossFit:
    """Kernel ridge regression, fitted to each half of the rows and evaluated on the other.

    The kernel is linear plus Gaussian: dynamics are almost linear over a step, and bend smoothly.
    """

    def __init__(self, inputs: np.ndarray, first: np.ndarray) -> None:
        """Factorise the kernels of a few widths and degrees of smoothness."""
        self._halves = [np.flatnonzero(first), np.flatnonzero(~first)]
        self._solvers = []
        squares = (inputs**2).sum(axis=1)
        products = inputs @ inputs.T
        apart = np.maximum(squares[:, None] + squares - 2 * products, 0)
        width = max(1, inputs.shape[1])
        for scale in (0.4, 1.0, 3.0):
            kernel = 10 * np.exp(-apart / (2 * scale**2 * width)) + products + 1
            for ridge in (1e-5, 3e-2, 1.0):
                parts = []
                for train, other in (self._halves, self._halves[::-1]):
                    factor = cho_factor(kernel[np.ix_(train, train)] + ridge * np.eye(len(train)))
                    parts.append((factor, kernel[np.ix_(other, train)], train, other))
                self._solvers.append(parts)

    def residuals(self, targets: np.ndarray) -> np.ndarray:
        """Return the residuals (rows, targets) of the best setting, or of no regression."""
        spread = targets.std(axis=0)
        centred = (targets - targets.mean(axis=0)) / np.where(spread > 0, spread, 1)
        best, size = centred.copy(), np.abs(centred).mean(axis=0)
        chosen = np.full(targets.shape[1], -1)
        for number, parts in enumerate(self._solvers):
            missed = centred - self._predicted(parts, centred)
            error = np.abs(missed).mean(axis=0)
            chosen = np.where(error < size, number, chosen)
            best = np.where(error < size, missed, best)
            size = np.minimum(size, error)
        for _ in range(2):  # refit with outliers replaced by residuals of `OUTLIER` medians
            bound = OUTLIER * np.median(np.abs(best), axis=0)
            tamed = centred - best + np.clip(best, -bound, bound)
            for number in np.unique(chosen[chosen >= 0]):
                some = np.flatnonzero(chosen == number)
                predicted = self._predicted(self._solvers[number], tamed[:, some])
                missed = centred[:, some] - predicted
                error = np.abs(missed).mean(axis=0)
                better = error < size[some]
                best[:, some[better]] = missed[:, better]
                size[some] = np.minimum(size[some], error)
        return np.asarray(best * spread)

    def _predicted(self, parts: Sequence[tuple[Any, ...]], targets: np.ndarray) -> np.ndarray:
        """Return the predictions of one setting."""
        predicted = np.empty_like(targets)
        for factor, cross, train, other in parts:
            predicted[other] = cross @ cho_solve(factor, targets[train])
        return predicted


def _cells(inputs: np.ndarray, action: np.ndarray) -> np.ndarray:
    """Return the cell of each row: rows of one action, halved along the widest component.

    Cells have 10 rows or more, unless an action has fewer.
    """
    min_rows = 10
    cell = np.empty(len(inputs), int)
    open_ = [np.flatnonzero(action == value) for value in np.unique(action)]
    number = 0
    while open_:
        rows = open_.pop()
        values = inputs[rows]
        widest = int(np.argmax(values.std(axis=0)))
        column = values[:, widest]
        left = column <= np.median(column)
        if left.all():  # more than half of the values equal the maximum
            left = column < np.median(column)
        if len(rows) < 2 * min_rows or not left.any():
            cell[rows] = number
            number += 1
        else:
            open_ += [rows[left], rows[~left]]
    return cell


def _binned(values: np.ndarray, quantiles: Sequence[float] = (0.25, 0.5, 0.75)) -> np.ndarray:
    """Return the quantile bin of each value."""
    bounds = np.unique(np.quantile(values, quantiles))
    return np.searchsorted(bounds, values)
