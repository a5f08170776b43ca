"""Whether the history of recorded rows explains differences between their outcomes.

`RecordedPast` encodes what happened earlier in the episode of each row; `ContextTests` are
permutation tests of such codes.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_array

from cwm_cli.data.dataset import VALID, Dataset
from cwm_cli.data.spaces import Columns, Space
from cwm_cli.evaluation.metric import MOST_CLASSES, TOLERANCE


class RecordedPast:
    """Rows as codes of observations, actions and outcomes, with the history of each row."""

    MAX_LAG = 3
    """Steps back whose actions, observations and residuals are tested."""

    MAX_PERIOD = 12
    """Longest period of a hidden phase that is tested."""

    MAX_COMPONENTS = 12
    """Components whose history is tested one by one; wider observations are tested as a whole."""

    def __init__(self, rows: Dataset) -> None:
        """Encode rows, which have to be in the order of their episodes."""
        self.rows = rows
        columns = rows.columns
        before = _joined(rows, rows.observation_space, "observations")
        after = _joined(rows, rows.observation_space, "next_observations")
        follows: np.ndarray = np.zeros(len(rows), np.bool_)
        follows[1:] = np.all(before[1:] == after[:-1], axis=1)
        follows[1:] &= columns["episodes"][1:] == columns["episodes"][:-1]
        follows[1:] &= ~columns["terminations"][:-1]
        self.follows = follows
        """Mask of the rows that continue the row above them."""
        place = np.arange(len(rows))
        self.start = np.maximum.accumulate(np.where(follows, 0, place))
        """Index of the first row of each row's episode."""
        self.step = place - self.start
        """Number of steps since the first row of the episode."""
        self.before, self.after = before, after
        self.actions = _joined(rows, rows.action_space, "actions")
        self.observation = codes_of(before)
        self.action = codes_of(self.actions)
        self.situation = paired(self.observation, self.action)
        self.reward = codes_of(_rounded(columns["rewards"])[:, None])

    @property
    def inputs(self) -> np.ndarray:
        """The components of the observation and the action as numbers, discrete actions one-hot."""
        actions = self.actions
        if self.rows.action_space.kind == "discrete":
            actions = (actions == np.unique(actions)[1:]).astype(np.float64)
        return np.concatenate([self.before, actions], axis=1)

    @property
    def changes(self) -> np.ndarray:
        """The change of each component, the reward, and whether the episode ended."""
        columns = self.rows.columns
        change = self.after - self.before
        return np.column_stack([change, columns["rewards"], columns["terminations"]])

    def errors(self, predictions: Columns) -> np.ndarray:
        """Return recorded minus predicted values in the layout of `changes`, 0 where correct."""
        rows = self.rows
        parts = []
        for leaf in rows.observation_space.leaves("next_observations"):
            predicted, recorded = predictions[leaf.name], rows.columns[leaf.name]
            if recorded.dtype.kind in "US":
                parts.append((predicted != recorded).reshape(len(rows), -1))
            else:
                parts.append(_differences(recorded, predicted).reshape(len(rows), -1))
        error = np.concatenate(parts, axis=1, dtype=np.float64)
        error *= ~rows.columns["terminations"][:, None]
        reward = _differences(rows.columns["rewards"], predictions["rewards"])
        end = _differences(rows.columns["terminations"], predictions["terminations"])
        return np.column_stack([error, reward, end])

    @property
    def outcome(self) -> np.ndarray:
        """Codes of the outcomes: numbers up to the tolerance, no observation after an end."""
        return codes_of(_rounded(self._outcomes()))

    def _outcomes(self) -> np.ndarray:
        columns, goes_on = self.rows.columns, ~self.rows.columns["terminations"]
        parts = [self.after * goes_on[:, None], columns["rewards"][:, None], goes_on[:, None]]
        parts += [columns[VALID] & goes_on[:, None]] if self.rows.has_valid_actions else []
        return np.concatenate(parts, axis=1, dtype=np.float64)

    @property
    def real(self) -> bool:
        """Whether the observation has real numbers."""
        return any(leaf.space.is_float for leaf in self.rows.observation_space.leaves(""))

    def conflicts(self) -> np.ndarray:
        """Return for each situation whether its outcomes differ by more than the tolerance."""
        outcomes = self._outcomes()
        # Sorted, equal situations are segments, and `reduceat` reduces each segment.
        order = np.argsort(self.situation, kind="stable")
        starts = np.flatnonzero(np.diff(self.situation[order], prepend=-1))
        low = np.minimum.reduceat(outcomes[order], starts)
        high = np.maximum.reduceat(outcomes[order], starts)
        size = np.maximum(np.abs(low), np.abs(high))
        # Rounded observations hide differences of up to a unit, which outcomes may show.
        units = np.array([decimal_unit(column) for column in outcomes.T])
        return np.asarray(np.any(high - low > 10 * TOLERANCE * (1 + size) + 3 * units, axis=1))

    def recent(self) -> Iterator[tuple[str, np.ndarray]]:
        """Yield the parts of the last steps: their names and codes."""
        for lag in range(1, self.MAX_LAG + 1):
            yield f"the action {steps_words(lag)} earlier", self.earlier(self.action, lag)
            yield f"the reward {steps_words(lag)} earlier", self.earlier(self.reward, lag)
            yield f"the observation {steps_words(lag)} earlier", self.earlier(self.observation, lag)

    def older(self) -> Iterator[tuple[str, np.ndarray]]:
        """Yield other parts of the history that may separate outcomes: names and codes."""
        before = self.earlier(paired(self.situation, self.reward))
        yield "the whole step before", before
        twice = self.earlier(paired(self.situation, self.reward), 2)
        yield "the two steps before", paired(before, twice)
        yield "the number of steps since the episode began", self.step
        for period in range(2, self.MAX_PERIOD + 1):
            yield f"the number of steps modulo {period}", self.step % period
        yield "the first observation of the episode", self.observation[self.start]
        # Sorted by episode and situation, the row above is the last one with the same situation.
        episode = paired(self.start, self.situation)
        order = np.argsort(episode, kind="stable")
        last = np.full(len(order), -1)
        same = np.flatnonzero(np.diff(episode[order]) == 0)
        last[order[same + 1]] = self.outcome[order[same]]
        yield "the last outcome of the same observation and action in the episode", last
        yield from self.events()
        yield from self.balances()

    def events(self) -> Iterator[tuple[str, np.ndarray]]:
        """Yield how often and how long ago actions, rewards and places occurred."""
        max_wait = 12  # longer waits, and more occurrences, count as equal
        max_places = 60  # whole observations and pairs that are tested: more would take too long
        rewards = list(self.values("reward", self.reward, 3))
        waits = [self.occurred(event)[1] for _, event in rewards]
        kinds = [("action", self.action, MOST_CLASSES), ("reward", self.reward, MOST_CLASSES)]
        if self.before.shape[1] <= self.MAX_COMPONENTS:
            for index, column in enumerate(self.before.T):
                code = codes_of(column[:, None])
                kinds.append((f"component {index}", code, MOST_CLASSES))
                if self.before.shape[1] > 1:
                    pairs = paired(code, self.action)
                    kinds.append((f"component {index} with action", pairs, max_places))
        kinds.append(("observation", self.observation, max_places))
        kinds.append(("observation with action", self.situation, max_places))
        for kind, codes, most in kinds:
            for label, event in self.values(kind, codes, most):
                count, wait = self.occurred(event)
                yield f"whether {label} occurred earlier", (count > 0).astype(int)
                if count.max() > 1:
                    yield f"whether {label} occurred an odd number of times", count % 2
                if most < max_places:
                    yield f"how many steps ago {label} occurred", np.minimum(wait, max_wait)
                    yield f"how many times {label} occurred", np.minimum(count, max_wait)
                for (reward, _), since in zip(rewards, waits, strict=True):
                    if kind != "reward":
                        recent = (wait >= 0) & ((since < 0) | (wait <= since))
                        yield f"whether {label} occurred since {reward}", recent.astype(int)
                    if kind == "action":
                        last = np.where(since < 0, 0, np.arange(len(count)) - since)
                        before = np.where(since < 0, 0, count[last] + event[last])
                        number = np.minimum(count - before, max_wait)
                        yield f"how many times {label} occurred since {reward}", number

    def values(
        self, kind: str, codes: np.ndarray, most: int = 6
    ) -> Iterator[tuple[str, np.ndarray]]:
        """Yield the name and the mask of each value of a kind of event, the rarest last.

        The most frequent reward is no event.
        """
        values, first, counts = np.unique(codes, return_index=True, return_counts=True)
        if len(values) < 2 or len(values) > len(codes) / 2:
            return
        order = np.argsort(-counts, kind="stable")[int(kind == "reward") :][:most]
        for place in order.tolist():
            row = int(first[place])
            one = self.rows.row(row)
            label = f"action {one.action}"
            if kind == "reward":
                label = f"reward {one.reward:g}"
            elif kind != "action":
                index = kind.split()[1] if kind.startswith("component") else ""
                seen = f"observation {one.observation}"
                if index:
                    seen = f"component {index} = {self.before[row, int(index)]:g}"
                label = f"{seen} with {label}" if kind.endswith("action") else seen
            yield label, codes == values[place]

    def balances(self) -> Iterator[tuple[str, np.ndarray]]:
        """Yield bounded stocks that one action increases and another decreases."""
        max_actions = 6  # the pairs of more actions take too long
        actions = list(self.values("action", self.action, max_actions + 1))
        if not 2 <= len(actions) <= max_actions:
            return
        pairs = [(more, less) for more in actions for less in actions if more is not less]
        up = np.array([more[1] for more, _ in pairs]).T.astype(int)
        down = np.array([less[1] for _, less in pairs]).T.astype(int)
        for most in (1, 3):
            stock = np.zeros(up.shape, int)
            for row in np.flatnonzero(self.step > 0).tolist():
                stock[row] = np.clip(stock[row - 1] + up[row - 1] - down[row - 1], 0, most)
            for (more, less), column in zip(pairs, stock.T, strict=True):
                name = f"a stock of 0 to {most} that {more[0]} increases and {less[0]} decreases"
                yield name, column

    def occurred(self, event: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Count events earlier in the episode; return the counts and the steps since the last.

        Without an earlier event the steps are -1. An event of the present row is not counted.
        """
        total = np.cumsum(event) - event
        count = total - total[self.start]
        place = np.arange(len(event))
        # the running maximum of the places of events is the place of the last event
        last = np.maximum.accumulate(np.where(event, place, -1))
        last = np.concatenate([[-1], last[:-1]])
        return count, np.where(count > 0, place - last, -1)

    def earlier(self, values: np.ndarray, steps: int = 1) -> np.ndarray:
        """Return the values `steps` rows earlier, -1 if the episode had not begun."""
        shifted = np.concatenate([values[:1].repeat(steps), values])[: len(values)]
        return np.where(self.step >= steps, shifted, -1)


def decimal_unit(values: np.ndarray) -> float:
    """Return the rounding unit of decimal numbers; 0 for whole numbers or many digits."""
    steps = np.diff(np.unique(values))
    unit = float(steps.min(initial=1.0))
    if not 1e-9 < unit < 1:
        return 0.0
    parts = values / unit
    return unit if np.abs(parts - np.round(parts)).max() < 1e-3 else 0.0


def steps_words(count: int) -> str:
    """Write a number of steps."""
    return f"{count} step" if count == 1 else f"{count} steps"


def _differences(recorded: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    """Return recorded minus predicted numbers, exactly 0 within the tolerance."""
    recorded = np.asarray(recorded, np.float64)
    error = np.nan_to_num(recorded - np.asarray(predicted, np.float64), posinf=1e6, neginf=-1e6)
    return np.where(np.abs(error) <= TOLERANCE + TOLERANCE * np.abs(recorded), 0.0, error)


def _joined(rows: Dataset, space: Space, stem: str) -> np.ndarray:
    """Return all components of observations or actions (rows, components); texts as numbers."""
    parts = []
    for leaf in space.leaves(stem):
        column = rows.columns[leaf.name].reshape(len(rows), -1)
        if column.dtype.kind == "U":
            other = leaf.name.removeprefix("next_")
            known = [rows.columns[name] for name in {other, f"next_{other}"} & rows.columns.keys()]
            values = np.unique(np.concatenate([each.reshape(-1) for each in known]))
            column = np.searchsorted(values, column)
        parts.append(column)
    return np.concatenate(parts, axis=1, dtype=np.float64) + 0.0  # no minus before a zero


def _rounded(values: np.ndarray) -> np.ndarray:
    """Round numbers to ten times the tolerance, so that equal numbers rarely differ."""
    unit = 10 * TOLERANCE * np.maximum(1.0, 2.0 ** np.ceil(np.log2(np.maximum(np.abs(values), 1))))
    return np.asarray(np.round(values / unit) * unit)


def codes_of(values: np.ndarray) -> np.ndarray:
    """Return a number for each line of (rows, columns), the same for equal ones."""
    # With one opaque item per line, `unique` compares whole lines.
    lines = np.ascontiguousarray(values)
    lines = lines.view(np.dtype((np.void, lines.dtype.itemsize * lines.shape[1]))).reshape(-1)
    return np.unique(lines, return_inverse=True)[1].reshape(-1)


def paired(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return a number for each pair of codes, the same for equal ones."""
    return np.unique(one * (other.max() + 2) + other, return_inverse=True)[1].reshape(-1)


MAX_P_VALUE = 0.001
"""Largest p-value, corrected for the number of tests, at which a context counts."""


class ShuffledOutcomes:
    """Outcomes, and copies that are shuffled among the rows of each cell."""

    SHUFFLES = 60
    """Number of copies: enough to fit the distribution of the largest statistic."""

    def __init__(self, cell: np.ndarray, outcomes: np.ndarray) -> None:
        """Take the cell and the outcome (rows, columns) of each row."""
        rng = np.random.default_rng(0)
        self.cell = np.unique(cell, return_inverse=True)[1].reshape(-1)
        self._sizes = np.bincount(self.cell)
        order = np.argsort(self.cell, kind="stable")
        starts = np.flatnonzero(np.diff(self.cell[order], prepend=-1))
        means = np.add.reduceat(outcomes[order], starts) / self._sizes[:, None]
        self.outcomes = outcomes - means[self.cell]
        self._spread = np.bincount(self.cell, (self.outcomes**2).sum(axis=1))
        copies = [self.outcomes]
        for _ in range(self.SHUFFLES):
            # A random second key shuffles the rows of each cell among themselves.
            copy = np.empty_like(self.outcomes)
            copy[order] = self.outcomes[np.lexsort((rng.random(len(cell)), self.cell))]
            copies.append(copy)
        self.copies = np.stack(copies, axis=1).reshape(len(cell), -1).astype(np.float32)

    @property
    def cells(self) -> float:
        """The effective number of cells that the differences are spread over."""
        return float(self._spread.sum() ** 2 / max(1e-300, (self._spread**2).sum()))

    def explained(self, context: np.ndarray) -> float:
        """Return the share of the differences that a context explains, less that by chance."""
        group, usual = self._groups(context)
        left = self._spread.sum() - usual
        if left <= 1e-6 * self._spread.sum():
            return 0.0
        return float((self._between(group, self.outcomes).sum() - usual) / left)

    def strengths(self, context: np.ndarray) -> np.ndarray:
        """Return the standardised statistic of the outcomes and of each shuffled copy."""
        group, usual = self._groups(context)
        between = self._between(group, self.copies).reshape(self.SHUFFLES + 1, -1).sum(axis=1)
        deviation = float(np.sqrt(((between[1:] - usual) ** 2).mean()))
        if deviation <= 1e-6 * self._spread.sum():
            return np.zeros(self.SHUFFLES + 1)
        return np.asarray((between - usual) / deviation)

    def _groups(self, context: np.ndarray) -> tuple[np.ndarray, float]:
        """Return the rows' groups of one cell and context, and the expected spread of means."""
        group = paired(self.cell, context)
        first = np.unique(group, return_index=True)[1]
        groups = np.bincount(self.cell[first], minlength=len(self._sizes))
        usual = self._spread * (groups - 1) / np.maximum(self._sizes - 1, 1)
        return group, float(usual.sum())

    def _between(self, group: np.ndarray, outcomes: np.ndarray) -> np.ndarray:
        """Return the sum of squares between groups, for each column."""
        sizes = np.bincount(group)
        places = np.arange(len(group))
        member = csr_array((np.ones(len(group), outcomes.dtype), (group, places)))
        return np.asarray(((member @ outcomes) ** 2 / sizes[:, None]).sum(axis=0))

    def split(self, inputs: np.ndarray) -> float:
        """Return the share that one threshold per cell explains, less that by chance.

        The best component and threshold are searched in each cell: differences that a boundary
        in the observation explains need neither memory nor chance.
        """
        copies = self.copies.reshape(len(inputs), self.SHUFFLES + 1, -1)
        size = self._sizes[self.cell]
        best = np.zeros((len(self._sizes), self.SHUFFLES + 1))
        for column in inputs.T:
            order = np.lexsort((column, self.cell))
            cells, values = self.cell[order], column[order]
            starts = np.flatnonzero(np.diff(cells, prepend=-1))
            rank = np.arange(len(order)) - starts[cells] + 1
            sums = np.cumsum(copies[order], axis=0, dtype=np.float64)
            before = np.concatenate([np.zeros_like(sums[:1]), sums])[starts]
            sums -= before[cells]  # sums of the rows of a cell up to each threshold
            rest = size[order] - rank
            # no threshold between equal values, and none after the last row of a cell
            apart = np.append(values[1:] > values[:-1], False) & (rest > 0)
            # Outcomes are centred in each cell, so the sums on both sides differ in sign only.
            gain = (sums**2).sum(axis=2) * (1 / rank + 1 / np.maximum(rest, 1))[:, None]
            best = np.maximum(best, np.maximum.reduceat(gain * apart[:, None], starts))
        total = best.sum(axis=0)
        usual, spread = float(total[1:].mean()), float(self._spread.sum())
        return 0.0 if spread <= usual else float((total[0] - usual) / (spread - usual))


class Explanation(NamedTuple):
    """A part of the history that explains differences, as fields of a finding."""

    told_by: str
    told: float
    tests: int
    p_value: float


class ContextTests:
    """Tests whether parts of the history explain outcomes, corrected for their number.

    The largest statistic of all tests on a shuffled copy corrects for the number of tests
    (Westfall and Young, 1993). It follows a Gumbel distribution, so that few copies suffice. It is
    fitted to a sample of the tests; Bonferroni's factor corrects for the remaining tests.
    """

    SAMPLE = 60
    MOST = 20

    def __init__(
        self, tests: Sequence[tuple[str, ShuffledOutcomes, np.ndarray]], recent: np.ndarray
    ) -> None:
        """Evaluate tests.

        Args:
            tests: Name, outcomes and context of each test.
            recent: Indices of the tests of recent steps. They are the likeliest causes, so half of
                the error probability is reserved for them, and they are preferred as explanation.
        """
        self._tests, self._recent = tests, recent
        self.shares = np.array([outcomes.explained(code) for _, outcomes, code in tests])
        best = np.argsort(-self.shares, kind="stable")[: self.MOST]
        sample = np.linspace(0, len(tests) - 1, min(self.SAMPLE, len(tests))).astype(int)
        every = np.union1d(np.union1d(best, sample), recent)
        strengths = {i: tests[i][1].strengths(tests[i][2]) for i in every.tolist()}
        real = np.array([strength[0] for strength in strengths.values()])
        self._strengths, self.p_values = np.zeros(len(tests)), np.ones(len(tests))
        self._strengths[every] = real
        self.p_values[every] = self._tail(strengths, sample, real) * len(tests) / len(sample)
        if len(recent):
            alone = self._tail(strengths, recent, self._strengths[recent])
            self.p_values[recent] = np.minimum(self.p_values[recent], alone)
            self.p_values = np.minimum(1.0, 2 * self.p_values)

    def _tail(
        self, strengths: Mapping[int, np.ndarray], sample: np.ndarray, real: np.ndarray
    ) -> np.ndarray:
        """Return the probability that the largest of the sampled statistics is as large."""
        largest = np.max([strengths[i][1:] for i in sample.tolist()], axis=0)
        # Fit the Gumbel distribution by its moments; a scale below 0.4 would be by chance.
        scale = max(float(largest.std()), 0.4) * np.sqrt(6) / np.pi
        location = float(largest.mean()) - np.euler_gamma * scale
        return np.asarray(-np.expm1(-np.exp(-(real - location) / scale)))

    def significant(self, least: float | np.ndarray, p_value: float = MAX_P_VALUE) -> np.ndarray:
        """Return the tests that are significant and explain at least a share."""
        return np.flatnonzero((self.p_values < p_value) & (self.shares >= least))

    def strongest(
        self, least: float | np.ndarray, p_value: float = MAX_P_VALUE
    ) -> Explanation | None:
        """Return the test that explains most, if one is significant.

        Of tests whose shares differ by less than 0.05, and whose statistics by less than 10 %, the
        first is returned. Older history is only returned if recent steps explain less than three
        quarters of its share.
        """
        some = self.significant(least, p_value)
        if not len(some):
            return None
        recent = np.intersect1d(some, self._recent)
        if len(recent) and self.shares[recent].max() >= 0.75 * self.shares[some].max():
            some = recent
        tied = some[self.shares[some] >= self.shares[some].max() - 0.05]
        strong = self._strengths[tied]
        best = int(tied[strong >= 0.9 * strong.max()][0])
        return Explanation(
            self._tests[best][0],
            float(np.clip(self.shares[best], 0, 1)),
            len(self._tests),
            float(self.p_values[best]),
        )
