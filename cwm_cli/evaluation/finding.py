"""Which contract recorded rows need: plain, chance or memory.

Where situations repeat, equal ones that led to different outcomes are counted: if what happened
before tells the outcomes apart, better than chance can explain, a program needs memory, else
chance. Where no situation repeats, as with real numbers, a smooth regression asks the same:
errors that the step before removes mean memory, errors that look like noise mean chance. What is
neither is plain.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict

from cwm_cli.data.dataset import VALID, Dataset
from cwm_cli.data.spaces import Columns, Space
from cwm_cli.evaluation.metric import MOST_CLASSES, TOLERANCE
from cwm_cli.text import percent

ContractName = Literal["plain", "chance", "memory"]
"""The contracts of programs."""

USUAL_METRICS: Mapping[ContractName, str] = {
    "plain": "accuracy",
    "chance": "skill",
    "memory": "skill",
}
"""By what programs of each contract are scored where nobody says."""

MOST_PARTS = 12
"""Components of the step before that are tried one by one: of boards the whole has to do."""
LONGEST_WAIT = 10
"""Steps since an event beyond which one counts as no other."""
MOST_COMPARED = 1500
"""Rows of situations with several outcomes that are compared: more would only take time."""
SHUFFLES = 24
"""Times that outcomes are dealt out anew: enough for the spread of what chance does."""
STRONG = 7.0
"""Standard deviations by which a context has to beat chance: there are many contexts, and pairs
of rows that share a row are not independent."""
AS_MUCH = 0.05
"""Share by which contexts tell as much: of these the one that is surest is named."""
LEAST_TOLD = 0.3
"""Share of what differs that the past has to tell: with less, chance is the better account."""

SELDOM = 0.1
"""Share of the rows up to which conflicts leave it to the numbers whether chance or memory."""
MOST_FITTED = 300
"""Rows of a regression: inverting their kernel takes milliseconds."""
STRETCH = 20
FOLDS = 5
FEWEST = 60
"""With fewer rows a regression tells nothing."""
ENOUGH = 150
"""With fewer rows a law that is being learned looks like noise."""
LEAST_OPEN = 0.02
"""Share of a typical change that a smooth law may leave open in a plain environment, as far as
anything follows from it."""
MOSTLY_OPEN, MUCH_LESS = 0.4, 0.4
"""Where so much is left open, and so much less of it with the step before, that was what was
missing: real plain environments stay on one side of both."""
NEARLY_NOTHING = 0.02
"""Share of what is left open that remains where the step before tells it exactly."""
HARDLY_LESS = 0.8
EVEN = 6.0
"""How many medians nine of ten errors stay below: 2.4 if normal, 5 if a third of the steps have
no noise, more where a law was missed in places."""
ALIKE = 3.5
"""Standard errors up to which the errors of neighbours may be alike where they are noise."""
LEARNED = 1.2
"""How many times larger errors of noise are with a third of the rows; those of a law that is
being learned are half as large again, mostly several times."""
NARROW, WIDEST = 8, 10
"""Inputs up to which noise, and what is hidden, can be told from a law that is hard to learn."""


class Finding(BaseModel):
    """Which contract rows need, and what they show of it.

    `conflicts` pairs of observation and action led to different outcomes, in `conflicting` of
    the rows; `repeated` are all pairs that came more than once. `told_by` is what tells the
    outcomes apart, and `told` the share of their disagreement that it takes away. Where situations
    do not repeat, `components` are those of the observation that showed it (their number is the
    reward), and `unexplained` the share of a typical change that observation and action leave open.
    """

    model_config = ConfigDict(frozen=True)

    contract: ContractName = "plain"
    rows: int = 0
    repeated: int = 0
    conflicts: int = 0
    conflicting: int = 0
    told_by: str = ""
    told: float = 0.0
    components: tuple[int, ...] = ()
    unexplained: float = 0.0

    def words(self, names: Sequence[str] = ()) -> str:
        """Say in a sentence or two what was found, with names of components where there are any."""
        if self.contract == "plain":
            if not self.repeated:
                return "nothing speaks of chance or of something hidden"
            return f"{self.repeated:,} pairs of observation and action led to the same each time"
        if self.conflicts:
            differ = (
                f"{self.conflicts:,} of {self.repeated:,} pairs of observation and action that "
                f"came again led to different outcomes, in {self.conflicting:,} of "
                f"{self.rows:,} rows"
            )
        else:
            parts = ", ".join(_name(i, names) for i in self.components)
            differ = (
                f"the observation and the action leave {percent(self.unexplained)} of the typical "
                f"change of {parts} open"
            )
        if self.contract == "memory":
            return f"{differ}; {self.told_by} tells {percent(self.told)} of that"
        if self.told_by:
            return f"{differ}; {self.told_by} tells only {percent(self.told)} of that"
        return f"{differ}; what happened before does not tell them apart"


def find_contract(rows: Dataset) -> Finding:
    """Find out whether rows need a program of chance, one with memory, or a plain one.

    The rows of an episode have to follow each other. A plain environment is hardly ever taken
    for anything else; where rows are few, or observations of real numbers are wide, chance and
    memory are not noticed.
    """
    if not len(rows):
        return Finding()
    history = RecordedPast(rows)
    found = _in_conflicts(history)
    if found.contract == "memory" or found.conflicting > SELDOM * len(rows):
        return found
    other = _in_numbers(history)
    if other.contract == "plain":
        return found
    return other.model_copy(update={"rows": len(rows), "repeated": found.repeated})


def reexamine(rows: Dataset, predictions: Columns, contract: ContractName) -> Finding:
    """Find the contract again, given the predictions of the best program so far."""
    return Finding(contract=contract)


def _name(index: int, names: Sequence[str]) -> str:
    return names[index] if index < len(names) else f"component {index}"


class RecordedPast:
    """Rows as codes of what was seen, done and got, with what came before each of them."""

    def __init__(self, rows: Dataset) -> None:
        """Take rows of which those of an episode stand together in their order."""
        self.rows = rows
        columns = rows.columns
        before = _joined(rows, rows.observation_space, "observations")
        after = _joined(rows, rows.observation_space, "next_observations")
        follows = np.zeros(len(rows), np.bool_)
        follows[1:] = columns["episodes"][1:] == columns["episodes"][:-1]
        follows[1:] &= (before[1:] == after[:-1]).all(axis=1) & ~columns["terminations"][:-1]
        self.follows = follows
        """Which rows begin where the one above them led to."""
        self.observation = _codes(before)
        self.action = _codes(_joined(rows, rows.action_space, "actions"))
        self.situation = _paired(self.observation, self.action)
        self.reward = _codes(_rounded(columns["rewards"])[:, None])
        self._before, self._after = before, after

    @property
    def inputs(self) -> np.ndarray:
        """What a step begins with, in numbers: each component, and the action."""
        actions = _joined(self.rows, self.rows.action_space, "actions")
        if self.rows.action_space.kind == "discrete":
            actions = (actions == np.unique(actions)[1:]).astype(np.float64)
        return np.concatenate([self._before, actions], axis=1)

    @property
    def changes(self) -> np.ndarray:
        """By how much each component changed, and last the reward."""
        return np.column_stack([self._after - self._before, self.rows.columns["rewards"]])

    @property
    def real(self) -> list[int]:
        """The columns of `changes` that are real numbers."""
        leaves = [leaf.space for leaf in self.rows.observation_space.leaves("")]
        real = np.concatenate([np.full(space.size, space.is_float) for space in leaves])
        rewards = len(np.unique(self.rows.columns["rewards"])) > MOST_CLASSES
        return [*np.flatnonzero(real).tolist(), *([len(real)] if rewards else [])]

    @property
    def outcome(self) -> np.ndarray:
        """Code what followed: numbers as far as the tolerance goes, nothing seen after an end."""
        columns, goes_on = self.rows.columns, ~self.rows.columns["terminations"]
        after = _joined(self.rows, self.rows.observation_space, "next_observations")
        parts = [_rounded(after) * goes_on[:, None], _rounded(columns["rewards"])[:, None]]
        parts += [goes_on[:, None]]
        parts += [columns[VALID] & goes_on[:, None]] if self.rows.has_valid_actions else []
        return _codes(np.concatenate(parts, axis=1, dtype=np.float64))

    def contexts(self) -> Iterator[tuple[str, np.ndarray]]:
        """Yield what may tell outcomes apart, in words, and its code in each row; simple first."""
        first = self._earlier(np.arange(len(self.rows)), 0) < 0
        yield "the action before", self._earlier(self.action)
        yield "the reward before", self._earlier(self.reward)
        yield "the observation before", self._earlier(self.observation)
        whole = _paired(self.situation, self.reward)
        yield "the step before", self._earlier(whole)
        yield "the two steps before", _paired(self._earlier(whole), self._earlier(whole, 2))
        yield "the action two steps before", self._earlier(self.action, 2)
        yield "how long the episode has lasted", _since(first)
        begun = np.maximum.accumulate(np.where(first, np.arange(len(first)), 0))
        yield "the first observation of the episode", self.observation[begun]
        if self._before.shape[1] <= MOST_PARTS:
            for index, column in enumerate(self._before.T):
                yield f"component {index} before", self._earlier(_codes(column[:, None]))
        yield from self._events(first)

    def _events(self, first: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
        """Yield how long ago each action was taken and each rare reward was got."""
        for name, codes in (("action", self.action), ("reward", self.reward)):
            values, counts = np.unique(codes, return_counts=True)
            if len(values) > MOST_CLASSES:
                continue
            for value in values[np.argsort(counts)][: MOST_PARTS if len(values) > 1 else 0]:
                row = int(np.argmax(codes == value))
                event = np.concatenate([[False], (codes == value)[:-1]])
                wait = _since(event | first)
                last = np.maximum.accumulate(np.where(event & ~first, np.arange(len(first)) + 1, 0))
                begun = np.maximum.accumulate(np.where(first, np.arange(len(first)) + 1, 0))
                happened = last > begun
                wait = np.where(happened, np.minimum(wait, LONGEST_WAIT), -1)
                yield f"how long ago the {name} was {self._told(name, row)}", wait

    def _told(self, name: str, row: int) -> str:
        """Write an action or a reward."""
        one = self.rows.row(row)
        return f"{one.reward:g}" if name == "reward" else str(one.action)

    def _earlier(self, codes: np.ndarray, steps: int = 1) -> np.ndarray:
        """Return the codes so many steps before, -1 where the episode had not begun."""
        known = self.follows.copy() if steps == 0 else np.ones(len(codes), np.bool_)
        for _ in range(steps):
            codes = np.concatenate([[-1], codes[:-1]])
            known = self.follows & np.concatenate([[False], known[:-1]])
        return np.where(known, codes, -1)


def _in_conflicts(history: RecordedPast) -> Finding:
    """Judge by equal situations that led to different outcomes."""
    situation = history.situation
    counts = np.bincount(situation)
    if counts.max() < 2:
        return Finding(rows=len(situation))
    outcome = history.outcome
    odd = np.bincount(np.unique(np.stack([situation, outcome]), axis=1)[0]) > 1
    found = Finding(
        contract="chance" if odd.any() else "plain",
        rows=len(situation),
        repeated=int((counts > 1).sum()),
        conflicts=int(odd.sum()),
        conflicting=int(counts[odd].sum()),
    )
    if not odd.any():
        return found
    some = np.flatnonzero(odd[situation])[:MOST_COMPARED]
    agreement = Agreement(situation[some], outcome[some])
    told = [(*agreement.within(codes[some]), name) for name, codes in history.contexts()]
    strong = [(share, strength, name) for strength, share, name in told if strength >= STRONG]
    if not strong:
        return found
    most = max(share for share, *_ in strong) - AS_MUCH
    _, share, name = max((each[1], *each[::2]) for each in strong if each[0] >= most)
    contract = "memory" if share >= LEAST_TOLD else "chance"
    return found.model_copy(update={"contract": contract, "told_by": name, "told": share})


class Agreement:
    """Whether rows of one situation agree in what followed, more where something else agrees too.

    It is compared with outcomes that are dealt out anew among the rows of each situation, which
    is what chance would do.
    """

    def __init__(self, situation: np.ndarray, outcome: np.ndarray) -> None:
        """Take the codes of situations and outcomes, one per row."""
        rng = np.random.default_rng(0)
        self._situation, outcome = situation, _codes(outcome[:, None])
        place = np.argsort(situation, kind="stable")
        dealt = [outcome]
        for _ in range(SHUFFLES):
            other = np.lexsort((rng.random(len(situation)), situation))
            shuffled = np.empty_like(outcome)
            shuffled[place] = outcome[other]
            dealt.append(shuffled)
        self._dealt = dealt

    def within(self, context: np.ndarray) -> tuple[float, float]:
        """Return how many deviations above chance pairs of rows with an equal context agree.

        And the share of their disagreement by chance that is gone: 1 where the context tells all.
        """
        group = _paired(self._situation, context)
        sizes = np.bincount(group)
        pairs = float((sizes * (sizes - 1.0)).sum() / 2)
        same = np.array([_same_pairs(group, outcome) for outcome in self._dealt])
        usual, spread = same[1:].mean(), max(1.0, float(same[1:].std()))
        if pairs <= usual:
            return 0.0, 0.0
        return float((same[0] - usual) / spread), float((same[0] - usual) / (pairs - usual))


def _same_pairs(group: np.ndarray, outcome: np.ndarray) -> float:
    """Count the pairs of rows of one group with equal outcomes."""
    cells = np.unique(group * (outcome.max() + 1) + outcome, return_counts=True)[1]
    return float((cells * (cells - 1.0)).sum() / 2)


def _joined(rows: Dataset, space: Space, stem: str) -> np.ndarray:
    """Return all components of what was seen or done (rows, components); texts as numbers."""
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
    """Round numbers to ten times the tolerance, so that hardly any two that are equal part."""
    unit = 10 * TOLERANCE * np.maximum(1.0, 2.0 ** np.ceil(np.log2(np.maximum(np.abs(values), 1))))
    rounded: np.ndarray = np.round(values / unit) * unit
    return rounded


def _codes(values: np.ndarray) -> np.ndarray:
    """Return a number for each line of (rows, columns), the same for equal ones."""
    lines = np.ascontiguousarray(values)
    lines = lines.view(np.dtype((np.void, lines.dtype.itemsize * lines.shape[1]))).reshape(-1)
    return np.unique(lines, return_inverse=True)[1].reshape(-1)


def _paired(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return a number for each pair of codes, the same for equal ones."""
    return np.unique(one * (other.max() + 2) + other, return_inverse=True)[1].reshape(-1)


def _since(event: np.ndarray) -> np.ndarray:
    """Return how many rows ago the last event was."""
    places = np.arange(len(event))
    wait: np.ndarray = places - np.maximum.accumulate(np.where(event, places, 0))
    return wait


def _in_numbers(history: RecordedPast) -> Finding:
    """Judge by what a smooth regression leaves open, where no situation repeats."""
    rows = _stretches(history)
    inputs, targets = history.inputs, history.changes
    if not history.real or len(rows) < FEWEST or inputs.shape[1] > WIDEST:
        return Finding()
    real = [i for i in history.real if np.ptp(targets[rows, i]) > 0]
    change = _scaled(targets[rows][:, real])
    now, earlier = inputs[rows], inputs[rows - 1]
    typical = np.median(np.abs(change - np.median(change, axis=0)), axis=0)
    typical = np.where(typical > 0, typical, 1.0)
    missed = _missed(now, change)
    left = np.median(np.abs(missed), axis=0) / typical
    if not (left > LEAST_OPEN).any():
        return Finding()
    with_more = _missed(np.concatenate([now, now - earlier], axis=1), change)
    rest = np.median(np.abs(with_more), axis=0) / typical / np.maximum(left, 1e-12)
    known = (left > MOSTLY_OPEN) & (rest < MUCH_LESS)
    known |= (left > LEAST_OPEN) & (rest < NEARLY_NOTHING)
    if known.any():
        return Finding(
            contract="memory",
            told_by="the step before",
            told=float(np.clip(1 - np.median(rest[known]), 0, 1)),
            components=tuple(real[i] for i in np.flatnonzero(known)),
            unexplained=float(min(1.0, np.median(left[known]))),
        )
    noisy = (left > LEAST_OPEN) & (rest > HARDLY_LESS)
    told = now.shape[1] <= NARROW and len(rows) >= ENOUGH
    noisy &= told and _is_noise(missed, now, rows)
    if noisy.any():
        parts = np.array_split(np.arange(len(rows)), 3)
        sizes = [np.median(np.abs(_missed(now[part], change[part])), axis=0) for part in parts]
        noisy &= np.mean(sizes, axis=0) < LEARNED * np.median(np.abs(missed), axis=0)
    if not noisy.any():
        return Finding()
    return Finding(
        contract="chance",
        components=tuple(real[i] for i in np.flatnonzero(noisy)),
        unexplained=float(min(1.0, np.median(left[noisy]))),
    )


def _stretches(history: RecordedPast) -> np.ndarray:
    """Return rows with a row before them, in stretches that are spread over all episodes."""
    rows = np.flatnonzero(history.follows & ~history.rows.columns["terminations"])
    if len(rows) <= MOST_FITTED:
        return rows
    starts = np.linspace(0, len(rows) - STRETCH, MOST_FITTED // STRETCH).astype(int)
    return np.unique(rows[starts[:, None] + np.arange(STRETCH)])


def _missed(inputs: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Return the errors of kernel ridge regression on stretches that it was not fitted to.

    Of a few widths and degrees of smoothness the best is taken for each target. The kernel is
    linear plus Gaussian: dynamics are nearly linear over a step, and bend smoothly.
    """
    inputs = _scaled(inputs)
    number, width = inputs.shape
    products = inputs @ inputs.T
    sizes = np.diag(products)
    apart = sizes[:, None] + sizes - 2 * products
    parts = np.array_split(np.arange(number), FOLDS)
    best = np.full(targets.shape[1], np.inf)
    errors = np.zeros_like(targets)
    for scale in (1.0, 4.0):
        kernel = 10 * np.exp(-apart / (2 * scale**2 * width)) + products + 1
        for rigid in (1e-5, 1e-2, 0.3):
            inverse = np.linalg.inv(kernel + rigid * np.eye(number))
            weights, missed = inverse @ targets, np.empty_like(targets)
            for part in parts:  # what leaving a fold out does to its rows, in closed form
                missed[part] = np.linalg.solve(inverse[np.ix_(part, part)], weights[part])
            size = np.median(np.abs(missed), axis=0)
            errors = np.where(size < best, missed, errors)
            best = np.minimum(size, best)
    return errors


def _is_noise(missed: np.ndarray, inputs: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Say of which targets the errors look like noise: alike everywhere, and as if drawn anew.

    The errors of a law that was missed are alike in neighbouring situations and in the steps of a
    stretch, and far larger in some places than in others.
    """
    size = np.abs(missed)
    even = np.quantile(size, 0.9, axis=0) < EVEN * np.median(size, axis=0)
    ranks = missed.argsort(axis=0).argsort(axis=0) / len(missed) - 0.5
    after = np.flatnonzero(np.diff(rows) == 1) + 1
    scaled = _scaled(inputs)
    apart = ((scaled[:, None] - scaled) ** 2).sum(axis=2)
    apart[np.abs(rows[:, None] - rows) <= 3] = np.inf  # steps of one stretch are no neighbours
    nearest = apart.argmin(axis=1)
    variance = (ranks**2).mean(axis=0)
    in_time = (ranks[after] * ranks[after - 1]).mean(axis=0) / variance
    in_space = (ranks * ranks[nearest]).mean(axis=0) / variance
    bound = ALIKE / np.sqrt(len(rows))
    fresh: np.ndarray = even & (in_time < bound) & (in_space < bound)
    return fresh


def _scaled(values: np.ndarray) -> np.ndarray:
    """Give each column mean 0 and deviation 1; one that is constant is 0."""
    spread = values.std(axis=0)
    scaled: np.ndarray = (values - values.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    return scaled
