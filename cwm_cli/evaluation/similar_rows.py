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
    MAX_COMPONENTS,
    MAX_LAG,
    MAX_PERIOD,
    ContextTests,
    Explanation,
    RecordedPast,
    ShuffledOutcomes,
    steps_words,
)
from cwm_cli.evaluation.metric import MOST_CLASSES

MAX_FITTED = 1200
"""Rows that are compared with similar ones."""
STRETCH = 20
"""Consecutive rows that are on one side of the split into halves."""
MIN_FITTED = 80
"""Fewer rows show nothing about real numbers."""
MAX_INPUTS = 24
"""With more components no two rows are similar."""
MAX_TARGETS = 6
"""Outcome components that are tested, those with the largest unexplained share."""
MAX_ACTIONS = 8
"""With more actions, rows of different actions are compared, too."""
CELL = 10
"""Rows of a cell of similar rows."""
QUARTILES = (0.25, 0.5, 0.75)
"""Bounds of the bins of a real number in a context."""
TAILED = (0.25, 0.5, 0.75, 0.9, 0.95, 0.975, 0.99)
"""Bounds of the bins of a timer, whose largest values matter."""
MIN_UNEXPLAINED = 0.02
"""Smaller residuals, as a fraction of the spread of a component, are not tested."""
MIN_ABOVE_PRESENT = 0.2
"""Share that the history has to explain above the present row and similar rows."""
MIN_CELLS = 10
"""Effective number of cells of similar rows that have to differ."""
MAX_NOISY = 8
"""With more inputs, noise looks like a law that is hard to fit."""
MIN_NOISY = 150
"""With fewer rows a law that is fitted badly looks like noise."""
MAX_SPLIT = 0.1
"""Share that thresholds in the observation may explain of noise."""
EVEN = 6.0
"""Ninth decile of noise in medians: 2.4 if normal, 5 if a third of the steps have no noise."""
ALIKE = 3.5
"""Largest correlation of neighbouring residuals of noise, in standard errors."""
DISTANT = 2.5
"""Largest correlation of differences of noise with their distance, in standard errors."""
LEARNED = 1.2
"""Largest growth factor of noise residuals with half of the rows."""
JUMP = 10.0
"""Residual of a jump in medians."""
SURROUNDING = 12
"""Rows that are near each row, itself included."""
MIN_JUMPS = 30
"""Fewer jumps show nothing."""
MOSTLY_OPEN = 0.9
"""Share of the spread that a regression on the observation leaves open of random jumps."""
MIN_CLUSTERED = 0.02
"""Smallest p-value of jumps that are independent of other jumps near them."""
ROBUST = 2
"""Repetitions of the regression that limit the influence of outliers."""
OUTLIER = 4.0
"""Larger residuals, in medians, are outliers."""
MIN_LOG_RATIO = 4.0
"""Log-likelihood ratio in favour of differences that do not depend on the distance."""


def choose_rows(history: RecordedPast, wrong: np.ndarray | None) -> np.ndarray:
    """Return at most `MAX_FITTED` rows: stretches spread over all episodes, wrong rows first."""
    count = len(history.rows)
    place = np.arange(count)
    if count <= MAX_FITTED:
        return place
    starts = np.linspace(0, count - STRETCH, MAX_FITTED // STRETCH).astype(int)
    chosen = np.unique(starts[:, None] + np.arange(STRETCH))
    if wrong is None or not wrong.any():
        return chosen
    bad = np.flatnonzero(wrong)
    bad = bad[np.linspace(0, len(bad) - 1, min(len(bad), MAX_FITTED // 3)).astype(int)]
    return np.union1d(
        bad, chosen[np.linspace(0, len(chosen) - 1, MAX_FITTED - len(bad)).astype(int)]
    )


class UnexplainedRows(NamedTuple):
    """Components that differ between similar rows, and the history that explains it, if any."""

    components: tuple[int, ...]
    unexplained: float
    explanation: Explanation | None = None


class SimilarRows:
    """Rows with the residuals of a regression on the observation and the action."""

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
        inputs, targets = history.inputs[chosen], targets[chosen]
        self.history, self.chosen, self.inputs = history, chosen, _scaled(inputs)
        self.targets = targets
        self.names, lagged = self._lagged()
        self.fit = CrossFit(self.inputs, chosen // STRETCH % 2 == 0)
        residuals = self.fit.residuals(targets)
        residuals[history.rows.columns["terminations"][chosen], :-2] = 0  # ends show no state
        spread = targets.std(axis=0)
        left = np.sqrt((residuals**2).mean(axis=0)) / np.where(spread > 0, spread, 1)
        order = np.argsort(-left, kind="stable")[:MAX_TARGETS]
        self.open = order[(left[order] > MIN_UNEXPLAINED) & (spread[order] > 0)]
        self.left, self.residuals = left, residuals
        self.lagged = lagged
        self.splits: dict[int, float] = {}
        action = history.action[chosen]
        self.action = action if len(np.unique(action)) <= MAX_ACTIONS else np.zeros_like(action)
        self.cell = _cells(self.inputs, self.action)
        self._nearest()

    def _lagged(self) -> tuple[list[str], np.ndarray]:
        """Return names and values of components and real actions up to `MAX_LAG` steps back."""
        history = self.history
        names, columns = [], []
        parts = [(f"component {i} seen", column) for i, column in enumerate(history.before.T)]
        if history.rows.action_space.kind != "discrete":
            one = history.actions.shape[1] == 1
            for i, column in enumerate(history.actions.T):
                parts.append(("the action" if one else f"part {i} of the action", column))
        longest = min(MAX_LAG, int(history.step[self.chosen].max()))
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
            for lag in range(1, MAX_LAG + 1):
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
        for period in range(2, MAX_PERIOD + 1):
            yield f"the number of steps modulo {period}", history.step[chosen] % period
        yield "the number of steps since the episode began", _binned(history.step[chosen], TAILED)
        for label, event in history.values("action", history.action, MOST_CLASSES):
            count, wait = history.occurred(event)
            yield f"whether {label} occurred earlier", (count > 0)[chosen].astype(int)
            yield f"whether {label} occurred an odd number of times", count[chosen] % 2
            yield f"how many steps ago {label} occurred", np.minimum(wait, 6)[chosen]
            yield f"how many times {label} occurred", np.minimum(count, 6)[chosen]
        for name, stock in history.balances():
            yield name, stock[chosen]
        for index, column in enumerate(history.before.T[:MAX_COMPONENTS]):
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
        if not self.of_program or self.inputs.shape[1] > MAX_NOISY:
            return  # a bad fit has similar residuals in consecutive steps, too
        place = np.full(len(history.rows), -1)
        place[chosen] = np.arange(len(chosen))
        for lag in range(1, MAX_LAG + 1):
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

    def _nearest(self) -> None:
        """Find similar rows of the same action that are not of the same stretch of time."""
        far = 10 * (1 + np.abs(self.inputs).max())
        points = np.column_stack([self.inputs, far * self.action])
        distance, near = cKDTree(points).query(points, k=min(SURROUNDING, len(points)))
        apart = np.abs(self.chosen[near] - self.chosen[:, None]) > 3
        first = np.argsort(~apart, axis=1, kind="stable")[:, :2]
        self.neighbours = np.take_along_axis(near, first, axis=1)
        self.distances = np.take_along_axis(distance, first, axis=1)[:, 0]
        self.surroundings = [
            rows[ok] if ok.any() else rows for rows, ok in zip(near, apart, strict=True)
        ]

    def tested(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yield targets with their residuals, also without the weight of outliers."""
        for target in self.open.tolist():
            residual = self.residuals[:, target]
            yield target, residual
            bound = OUTLIER * np.median(np.abs(residual))
            if bound > MIN_UNEXPLAINED * self.targets[:, target].std():
                yield target, np.clip(residual, -bound, bound)

    def memory(self) -> UnexplainedRows | None:
        """Return the difference if the history explains the residuals."""
        tests, floors, recent = list[Any](), [], list[int]()
        last = list(self.recent())
        contexts = [*last, *self.older()]
        for target, residual in self.tested():
            shuffled = ShuffledOutcomes(self.cell, residual[:, None])
            split = shuffled.split(self.inputs)
            self.splits[target] = max(split, self.splits.get(target, 0.0))
            if shuffled.cells < MIN_CELLS:
                continue
            present = max(shuffled.explained(code) for code in self.present(target))
            floor = max(present, split) + MIN_ABOVE_PRESENT
            recent += range(len(tests), len(tests) + len(last))
            tests += [(name, shuffled, code) for name, code in contexts]
            for name, _ in contexts:
                more = MIN_ABOVE_PRESENT if name.startswith("the error") else 0.0
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
        if self.inputs.shape[1] > MAX_NOISY or len(self.chosen) < MIN_NOISY:
            return None
        noisy = [
            target
            for target in self.open.tolist()
            if self._is_jump(target) or (self.splits[target] < MAX_SPLIT and self._is_noise(target))
        ]
        if not noisy:
            return None
        unexplained = float(min(1.0, np.median(self.left[noisy])))
        return UnexplainedRows(tuple(noisy), unexplained)

    def _is_noise(self, target: int) -> bool:
        """Whether residuals are alike everywhere and independent of their neighbours'.

        Residuals of a law that was fitted badly are similar in neighbouring situations and in
        consecutive steps, larger in some places than in others, and shrink with more rows.
        """
        residual = self.residuals[:, target]
        size = np.abs(residual)
        distinct = len(np.unique(self.targets[:, target]))
        if distinct <= MOST_CLASSES or np.quantile(size, 0.9) >= EVEN * np.median(size):
            return False
        residual = np.clip(residual, -OUTLIER * np.median(size), OUTLIER * np.median(size))
        near = residual[self.neighbours[:, 0]]
        after = np.flatnonzero(np.diff(self.chosen) == 1) + 1
        alike = (
            pearsonr(residual[after], residual[after - 1]).statistic,
            pearsonr(residual, near).statistic,
        )
        distant = pearsonr(np.abs(residual - near), rankdata(self.distances)).statistic
        errors = np.sqrt(len(residual))
        if max(alike) * errors >= ALIKE or distant * errors >= DISTANT:
            return False
        few = np.flatnonzero(self.chosen // STRETCH % 4 < 2)
        fit = CrossFit(self.inputs[few], self.chosen[few] // STRETCH % 4 == 0)
        fewer = np.abs(fit.residuals(self.targets[few][:, [target]])).mean()
        return bool(fewer < LEARNED * size.mean())

    def _is_jump(self, target: int) -> bool:
        """Whether rare or discrete differences are scattered among similar rows."""
        values = self.targets[:, target]
        codes, counts = np.unique(values, return_counts=True)
        if len(codes) <= MOST_CLASSES:
            flag = values != codes[np.argmax(counts)]
        else:
            size = np.abs(self.residuals[:, target])
            flag = size > max(JUMP * np.median(size), 0.5 * values.std())
        if not MIN_JUMPS <= flag.sum() <= len(flag) / 2 or self.left[target] < MOSTLY_OPEN:
            return False
        often = np.array([flag[rows].mean() for rows in self.surroundings])
        usual = np.bincount(self.action, often) / np.maximum(np.bincount(self.action), 1)
        often -= usual[self.action]
        clustered = mannwhitneyu(often[flag], often[~flag], alternative="greater").pvalue
        if clustered < MIN_CLUSTERED:
            return False
        return _is_constant(flag != flag[self.neighbours[:, 0]], self.distances)


def _is_constant(differs: np.ndarray, distances: np.ndarray) -> bool:
    """Whether differences are as frequent in close pairs as in distant ones.

    Boundaries in the observation make differences proportional to the distance. Compare the
    likelihoods of both hypotheses.
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
    return bool(even - max(likelihoods) > MIN_LOG_RATIO)


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
        for _ in range(ROBUST):  # outliers count as residuals of `OUTLIER` medians
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
        residuals: np.ndarray = best * spread
        return residuals

    def _predicted(self, parts: Sequence[tuple[Any, ...]], targets: np.ndarray) -> np.ndarray:
        """Return the predictions of one setting."""
        predicted = np.empty_like(targets)
        for factor, cross, train, other in parts:
            predicted[other] = cross @ cho_solve(factor, targets[train])
        return predicted


def _cells(inputs: np.ndarray, action: np.ndarray) -> np.ndarray:
    """Return the cell of each row: rows of one action, halved along the widest component."""
    cell = np.empty(len(inputs), int)
    open_ = [np.flatnonzero(action == value) for value in np.unique(action)]
    number = 0
    while open_:
        rows = open_.pop()
        values = inputs[rows]
        widest = int(np.argmax(values.std(axis=0)))
        column = values[:, widest]
        left = column <= np.median(column)
        if len(rows) < 2 * CELL or left.all():
            left = column < np.median(column)
        if len(rows) < 2 * CELL or left.all() or not left.any():
            cell[rows] = number
            number += 1
        else:
            open_ += [rows[left], rows[~left]]
    return cell


def _binned(values: np.ndarray, quantiles: Sequence[float] = QUARTILES) -> np.ndarray:
    """Return the quantile bin of each value."""
    bounds = np.unique(np.quantile(values, quantiles))
    return np.searchsorted(bounds, values)


def _scaled(values: np.ndarray) -> np.ndarray:
    """Give each column mean 0 and deviation 1; a constant one is 0."""
    spread = values.std(axis=0)
    scaled: np.ndarray = (values - values.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    return scaled
