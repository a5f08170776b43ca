"""Why a program predicts wrongly: where its mistakes are, beside what, and what the data say there.

`diagnose` looks for the conditions that separate wrong rows from right ones, so that the rows that
are shown first have a cause in common, and for what tells ends and rare rewards.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_cli.data.spaces import Columns
from cwm_cli.evaluation import Metric
from cwm_cli.problems.feedback.examples import ComparedRows
from cwm_cli.problems.feedback.separation import Conjunction, Quantity, separate
from cwm_cli.worlds.contract import component_names

MOST_COMPONENTS = 30
"""Components that conditions may be about; of more, those that change most often."""

MOST_GROUPS = 3
MOST_SEARCHES = 6
"""Conditions that are looked for in one diagnosis; each takes about 50 ms."""

NEARLY_ALL = 0.85
"""A larger share of wrong rows needs no condition: they are wrong everywhere."""

FEWEST_WRONG = 3
"""Groups of fewer wrong rows come last, however much these weigh: they may be accidents."""

GOOD = 0.8
"""Share of right answers, of both kinds, from which a condition says where a program is wrong."""

CLEARLY = 2.0
"""How many times as often rows have to be wrong under a condition as elsewhere, at least."""

ALIKE = 0.85
"""Parts that are wrong in the same rows but for so many are one mistake."""

PREDICTED = 3.0
"""Bits that a condition has to be better to be about what is predicted and not what is observed."""

MOST_PLACES = 150
"""Pairs of whole components with no more different values than this may be places on a map."""

CELLS = 6
"""From so many components of one kind on an observation is a board of cells."""

FEWEST_ENDS = 3
MOST_VALUES = 8
"""Of more different rewards it is not said what tells each."""

EXCEPTIONS = 0.02
"""Share of the rows that what tells a value may be wrong about; they are counted."""


class Contrast(NamedTuple):
    """A row that is predicted wrongly, the most alike one that is not, and in what they differ."""

    wrong: int
    right: int
    differs: tuple[str, ...]


class Group(NamedTuple):
    """Rows that are wrong in the same parts and under one condition, "" where it is everywhere.

    `wrong` of the `rows` under the condition are wrong, and `wrong_elsewhere` of those `elsewhere`.
    `members` are the rows under the condition, and `shown` some of the wrong ones among them, the
    smallest mistake first.
    """

    parts: tuple[str, ...]
    condition: str
    wrong: int
    rows: int
    wrong_elsewhere: int
    elsewhere: int
    members: tuple[int, ...]
    shown: tuple[int, ...]
    contrast: Contrast | None


class WrongKind(NamedTuple):
    """Rewards or ends of one recorded and one predicted value; `row` is the costliest."""

    part: str
    recorded: float
    predicted: float
    times: int
    row: int


class Bracket(NamedTuple):
    """The nearest values on either side of a bound, and the rows that have them."""

    measure: str
    inside: float
    outside: float
    rows: tuple[int, int]


class Telling(NamedTuple):
    """What tells, in the recordings, a value of the reward or an end from all others.

    The condition `holds` in so many of the `total` rows with the value, and in `exceptions`
    others. Where it is a single bound, `bracket` is what was recorded on either side of it.
    """

    outcome: str
    condition: str
    total: int
    holds: int
    exceptions: int
    bracket: Bracket | None


class WrongNumbers(NamedTuple):
    """How far one component, or the reward, is off, in units of its typical change.

    `right` is a share of the rows that count; `log_error` the mean decimal logarithm of the errors
    of the wrong rows.
    """

    name: str
    right: float
    median: float | None
    log_error: float | None


@dataclass(frozen=True)
class Diagnosis:
    """What is wrong with predictions; `as_json` is what `cwm evaluate --diagnose --json` prints.

    `groups` come the costliest first. `best_score` is what can be reached where the same
    observation and action led to different outcomes, else 1.
    """

    comparison: ComparedRows
    score: float
    best_score: float
    numbers: tuple[WrongNumbers, ...]
    groups: tuple[Group, ...]
    kinds: tuple[WrongKind, ...]
    tellings: tuple[Telling, ...]

    def as_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "transitions": len(self.comparison.dataset),
            "wrong": int(self.comparison.wrong.sum()),
            "score": self.score,
            "best_score": self.best_score,
            "numbers": [each._asdict() for each in self.numbers],
            "groups": [_plain(each) for each in self.groups],
            "kinds": [each._asdict() for each in self.kinds],
            "tellings": [
                each._asdict() | {"bracket": each.bracket and each.bracket._asdict()}
                for each in self.tellings
            ],
        }


def _plain(group: Group) -> dict[str, Any]:
    """Return a group as plain data, without the list of all its rows."""
    data = group._asdict() | {"contrast": group.contrast and group.contrast._asdict()}
    del data["members"]
    return data


def diagnose(
    dataset: Dataset, predictions: Columns, metric: Metric, description: str = ""
) -> Diagnosis:
    """Find out where predictions of a dataset are wrong, and what the rows have in common."""
    comparison = ComparedRows.of(dataset, predictions, metric, description)
    quantities = ComparedQuantities(comparison)
    return Diagnosis(
        comparison,
        float(1.0 - comparison.lost.sum() / comparison.weights.sum()),
        reachable(comparison),
        tuple(wrong_numbers(comparison)),
        tuple(groups(quantities)),
        tuple(wrong_kinds(comparison)),
        tuple(tellings(quantities)),
    )


class ComparedQuantities:
    """What conditions may be about: what was asked, what the program said, what followed."""

    def __init__(self, comparison: ComparedRows) -> None:
        self.comparison = comparison

    @cached_property
    def asked(self) -> list[Quantity]:
        """The observation before a step and the action."""
        return [*self._observed(self.comparison.dataset.columns, ""), *self._actions()]

    @cached_property
    def said(self) -> list[Quantity]:
        """What was asked and what the program said to it."""
        told = self._observed(self.comparison.predictions, "next_", "predicted ")
        return [*self.asked, *told]

    @cached_property
    def recorded(self) -> list[Quantity]:
        """What was asked and what followed; an outcome is rather told by what followed."""
        asked = [quantity._replace(extra=1.0) for quantity in self.asked]
        followed = self._observed(self.comparison.dataset.columns, "next_")
        return [*(one._replace(extra=max(0.0, one.extra - PREDICTED)) for one in followed), *asked]

    @cached_property
    def chosen(self) -> np.ndarray:
        """The components that may be asked for, at most so many."""
        names = self.comparison.names
        if len(names) <= MOST_COMPONENTS:
            return np.arange(len(names))
        parts = (self.comparison.component(index) for index in range(min(len(names), 2000)))
        often = np.array([float((part.before != part.recorded).mean()) for part in parts])
        return np.sort(np.argsort(-often, kind="stable")[:MOST_COMPONENTS])

    def _observed(self, columns: Columns, stem: str, words: str = "") -> list[Quantity]:
        """Return the components of an observation, and pairs of whole ones: they may be places."""
        extra = PREDICTED if stem else 0.0
        found = []
        for index in self.chosen.tolist():
            leaf, place = self.comparison.place(index)
            column = columns[f"{stem}{leaf.name}"].reshape(len(self.comparison.dataset), -1)[
                :, place
            ]
            name = f"{words}{stem}{self.comparison.names[index]}"
            if column.dtype.kind not in "biuf":
                values, codes = np.unique(column, return_inverse=True)
                labels = {float(code): repr(str(value)) for code, value in enumerate(values)}
                found.append(Quantity(name, codes.astype(np.float64), False, False, extra, labels))
                continue
            values = column.astype(np.float64)
            is_real = leaf.space.is_float and bool((values != np.round(values)).any())
            found.append(Quantity(name, values, is_real, True, extra))
            if is_real and stem:
                found.append(Quantity(f"abs({name})", np.abs(values), True, True, extra + 2.0))
        return [*found, *_places(found)]

    def _actions(self) -> list[Quantity]:
        """Return the components of the action."""
        space = self.comparison.dataset.action_space
        if space.kind in ("text", "tuple", "dict"):
            return []
        taken = self.comparison.dataset.columns["actions"]
        values = taken.reshape(len(taken), -1).astype(np.float64)
        names = component_names(space, "action")[:MOST_COMPONENTS]
        return [
            Quantity(name, values[:, index], space.is_float, space.kind != "discrete")
            for index, name in enumerate(names)
        ]


def _places(quantities: Sequence[Quantity]) -> Iterator[Quantity]:
    """Yield pairs of whole components that may be places on a map: they take few values."""
    whole = [one for one in quantities if not one.is_real and one.is_ordered]
    whole = [one for one in whole if len(np.unique(one.values)) > 3][:4]
    for one, other in combinations(whole, 2):
        pairs = np.stack([one.values, other.values], axis=1)
        values, codes = np.unique(pairs, axis=0, return_inverse=True)
        if len(values) <= min(MOST_PLACES, len(pairs) / 2):
            labels = {float(code): f"({x:g}, {y:g})" for code, (x, y) in enumerate(values)}
            name = f"({one.name}, {other.name})"
            codes = codes.reshape(-1).astype(np.float64)
            yield Quantity(name, codes, False, False, one.extra + 2.0, labels)


# --- where it is wrong


class _Found(NamedTuple):
    """A condition for where some parts are wrong, its rows, and those that are wrong there."""

    parts: tuple[str, ...]
    words: str
    rows: np.ndarray
    wrong: np.ndarray

    @property
    def fit(self) -> float:
        """How well the condition and the mistakes agree."""
        return _agree(self.rows, self.wrong)


def _agree(one: np.ndarray, other: np.ndarray) -> float:
    """Return how well two masks agree on what they hold, from 0 to 1."""
    return float(2 * (one & other).sum() / (one.sum() + other.sum()))


def groups(quantities: ComparedQuantities) -> Iterator[Group]:
    """Yield what is wrong under one condition each, until most of what is lost is explained."""
    comparison = quantities.comparison
    left = comparison.wrong
    searches = MOST_SEARCHES
    found: list[_Found] = []
    while left.any() and len(found) < MOST_GROUPS and searches > 0:
        options = []
        for parts, mask in _mistakes(comparison, left):
            if searches <= 0:
                break
            option = _located(quantities, parts, mask)
            searches -= 1
            options.append(option)
            if option.fit >= GOOD and (option.rows & left).sum() >= GOOD * left.sum():
                break
        best = max(options, key=lambda one: (one.fit >= GOOD, _explained(comparison, one, left)))
        found.append(best)
        left = left & ~(best.rows if (best.rows & left).any() else best.wrong)
    made = [_group(quantities, one) for one in found]
    lost = [float(comparison.lost[one.rows & one.wrong].sum()) for one in found]
    order = sorted(range(len(made)), key=lambda i: (made[i].wrong < FEWEST_WRONG, -lost[i]))
    yield from (made[place] for place in order)


def _explained(comparison: ComparedRows, option: _Found, left: np.ndarray) -> float:
    """Return how much of what is lost a condition covers, less for right rows under it."""
    covered = option.rows & left
    return float(comparison.lost[covered].sum() * covered.sum() / max(1, option.rows.sum()))


def _mistakes(
    comparison: ComparedRows, left: np.ndarray
) -> Iterator[tuple[tuple[str, ...], np.ndarray]]:
    """Yield parts that are wrong together, and the rows: all of it first, then the costliest."""
    named: dict[str, np.ndarray] = {}
    going = ~comparison.terminal
    wrong = ~comparison.right & (going & left)[:, None]
    lost = wrong.T @ comparison.weights
    for index in np.argsort(-lost, kind="stable")[:MOST_COMPONENTS].tolist():
        if lost[index] > 0:
            named[comparison.names[index]] = wrong[:, index]
    for part, mask in comparison.mistakes.items():
        if part != "observation" and (mask & left).any():
            named[part] = mask & left
    together: list[tuple[list[str], np.ndarray]] = []
    for name, mask in named.items():
        for names, other in together:
            if (mask & other).sum() >= ALIKE * (mask | other).sum():
                names.append(name)
                break
        else:
            together.append(([name], mask))
    yield tuple(named), left
    if len(together) > 1:
        together.sort(key=lambda one: -float(comparison.weights[one[1]].sum()))
        yield from ((tuple(names), mask) for names, mask in together)


def _located(quantities: ComparedQuantities, parts: tuple[str, ...], wrong: np.ndarray) -> _Found:
    """Find the condition under which some parts are wrong, "" where they are nearly everywhere."""
    if (cells := _located_in_cells(quantities.comparison)) is not None:
        return _Found(parts, *cells, wrong)
    everywhere = _Found(parts, "", np.ones(len(wrong), dtype=np.bool_), wrong)
    if wrong[~quantities.comparison.terminal | wrong].mean() > NEARLY_ALL:
        return everywhere
    condition = separate(wrong, quantities.said)
    if condition is None:
        return everywhere
    rows = condition.holds(quantities.said)
    if wrong[rows].mean() < CLEARLY * wrong[~rows].mean():
        return everywhere
    return _Found(parts, condition.words(quantities.said), rows, wrong)


def _located_in_cells(comparison: ComparedRows) -> tuple[str, np.ndarray] | None:
    """Find around which cells of a board it is wrong: by what they hold, and their neighbours."""
    space = comparison.dataset.observation_space
    is_board = not space.children and not space.is_float and 1 <= len(space.shape) <= 2
    if not is_board or space.size < CELLS or len(set(space.high)) > 1 or space.kind == "text":
        return None
    count = len(comparison.dataset)
    board = comparison.dataset.columns["observations"].reshape(count, *space.shape).astype(float)
    wrong = ~comparison.right & ~comparison.terminal[:, None]
    padded = np.pad(board, [(0, 0), *[(1, 1)] * len(space.shape)], constant_values=-1)
    if len(space.shape) == 1:
        around = {"its left": padded[:, :-2], "its right": padded[:, 2:]}
    else:
        around = {
            "its left": padded[:, 1:-1, :-2],
            "its right": padded[:, 1:-1, 2:],
            "the one above": padded[:, :-2, 1:-1],
            "the one below": padded[:, 2:, 1:-1],
        }
    cells = [Quantity("cell", board.reshape(-1), False)]
    cells += [Quantity(side, values.reshape(-1), False) for side, values in around.items()]
    actions = comparison.dataset.action_space
    if actions.kind == "discrete" and actions.count == space.size:
        chosen = comparison.dataset.columns["actions"][:, None] - int(actions.low[0])
        at = (chosen == np.arange(space.size)).astype(float).reshape(-1)
        cells.append(Quantity("action is the cell", at, False))
    condition = separate(wrong.reshape(-1), cells)
    if condition is None or _agree(condition.holds(cells), wrong.reshape(-1)) < GOOD:
        return None
    inside = condition.holds(cells).reshape(count, space.size)
    rows = np.asarray(inside.any(axis=1), dtype=np.bool_)
    return f"for some cell {condition.words(cells)}", rows


def _group(quantities: ComparedQuantities, found: _Found) -> Group:
    """Put a group together, with rows to show."""
    comparison = quantities.comparison
    inside = found.rows & found.wrong
    rows = np.flatnonzero(inside if inside.any() else found.wrong)
    order = rows[np.argsort(comparison.errors[rows], kind="stable")]
    shown = dict.fromkeys(order[[0, len(order) // 2]].tolist())
    mask = np.zeros(len(found.wrong), dtype=np.bool_)
    mask[rows] = True
    parts = [name for name in found.parts if _is_wrong(comparison, name, mask)]
    return Group(
        tuple(parts),
        found.words,
        int(inside.sum()),
        int(found.rows.sum()),
        int((found.wrong & ~found.rows).sum()),
        int((~found.rows).sum()),
        tuple(np.flatnonzero(found.rows).tolist()),
        tuple(shown),
        contrast(quantities, rows) if found.words else None,
    )


def _is_wrong(comparison: ComparedRows, name: str, rows: np.ndarray) -> bool:
    """Whether a part or a component is wrong in some rows."""
    if name in comparison.mistakes:
        return bool(comparison.mistakes[name][rows].any())
    index = comparison.names.index(name)
    return bool((~comparison.right[:, index] & rows & ~comparison.terminal).any())


def contrast(quantities: ComparedQuantities, rows: np.ndarray) -> Contrast | None:
    """Return the pair of a wrong and a right row that are most alike in what was asked."""
    comparison = quantities.comparison
    right = np.flatnonzero(~comparison.wrong)
    asked = [one for one in quantities.asked if not one.labels and np.ptp(one.values) > 0]
    if not len(right) or not asked:
        return None
    some = rows[:: max(1, len(rows) // 100)]
    others = right[:: max(1, len(right) // 500)]
    apart = np.array([one.values[some, None] - one.values[None, others] for one in asked])
    scale = np.array([one.values.std() if one.is_ordered else 0.5 for one in asked])
    distance = np.abs(apart / scale[:, None, None])
    total = np.where(distance > 0, distance + 0.2, 0.0).sum(axis=0)
    place = np.unravel_index(np.argmin(total), total.shape)
    one, other = int(some[place[0]]), int(others[place[1]])
    each = distance[:, place[0], place[1]]
    most = np.argsort(-each, kind="stable")[:3]
    return Contrast(
        one, other, tuple(asked[i].name for i in most if each[i] > max(0.1, each.max() / 4))
    )


# --- kinds of rewards and ends


def wrong_kinds(comparison: ComparedRows) -> Iterator[WrongKind]:
    """Yield every kind of wrong end, then of wrong rewards where rewards have few values."""
    columns, predictions = comparison.dataset.columns, comparison.predictions
    for part, name in (("terminated", "terminations"), ("reward", "rewards")):
        wrong = np.flatnonzero(comparison.mistakes[part])
        recorded, predicted = columns[name].astype(float), predictions[name].astype(float)
        if not len(wrong) or (part == "reward" and len(np.unique(recorded)) > 20):
            continue
        pairs = np.stack([recorded[wrong], predicted[wrong]], axis=1)
        kinds, kind, counts = np.unique(pairs, axis=0, return_inverse=True, return_counts=True)
        for place in np.argsort(-counts, kind="stable").tolist():
            rows = wrong[kind.reshape(-1) == place]
            row = int(rows[np.argmax(comparison.lost[rows])])
            one, other = kinds[place].tolist()
            yield WrongKind(part, one, other, int(counts[place]), row)


def tellings(quantities: ComparedQuantities) -> Iterator[Telling]:
    """Yield what tells ends, and each of a few rewards, where predictions are wrong about them."""
    comparison = quantities.comparison
    rewards = comparison.dataset.columns["rewards"]
    ends = comparison.terminal
    if comparison.mistakes["terminated"].any() and FEWEST_ENDS <= ends.sum() < len(ends):
        yield from _told(quantities, "the episode ends", ends)
    wrong = comparison.mistakes["reward"]
    values, counts = np.unique(rewards, return_counts=True)
    if wrong.any() and 1 < len(values) <= MOST_VALUES:
        for value, times in zip(values, counts, strict=True):
            if FEWEST_ENDS <= times <= len(rewards) / 2 and wrong[rewards == value].any():
                yield from _told(quantities, f"the reward is {value.item()!r}", rewards == value)


def _told(quantities: ComparedQuantities, outcome: str, rows: np.ndarray) -> Iterator[Telling]:
    """Yield the condition that tells some rows, if one does nearly without exception."""
    condition = separate(rows, quantities.recorded)
    if condition is None:
        return
    inside = condition.holds(quantities.recorded)
    missed = int((inside != rows).sum())
    is_plain = all(literal.form == "plain" for literal in condition.literals)
    if missed > (EXCEPTIONS * len(rows) if is_plain else 0) or _agree(inside, rows) < GOOD:
        return
    bracket = _bracket(condition, quantities.recorded, inside)
    words = condition.words(quantities.recorded)
    counts = int(rows.sum()), int((inside & rows).sum()), int((inside & ~rows).sum())
    yield Telling(outcome, words, *counts, bracket)


def _bracket(
    condition: Conjunction, quantities: Sequence[Quantity], inside: np.ndarray
) -> Bracket | None:
    """Return what lies on either side of a condition that is a single bound."""
    literal = condition.literals[0]
    if len(condition.literals) > 1 or literal.values:
        return None
    measured = literal.measure(quantities)
    apart = np.abs(measured[inside][:, None] - measured[~inside][None, :])
    one, other = np.unravel_index(np.argmin(apart), apart.shape)
    rows = int(np.flatnonzero(inside)[one]), int(np.flatnonzero(~inside)[other])
    subject = literal.subject(quantities)
    return Bracket(subject, float(measured[rows[0]]), float(measured[rows[1]]), rows)


# --- numbers, and chance


def wrong_numbers(comparison: ComparedRows) -> Iterator[WrongNumbers]:
    """Yield how far off each wrong component is, the costliest first, and the reward."""
    going = ~comparison.terminal
    wrong = ~comparison.right & going[:, None]
    lost = wrong.T @ comparison.weights
    for index in np.argsort(-lost, kind="stable")[:MOST_COMPONENTS].tolist():
        if lost[index] <= 0:
            break
        share = float(comparison.right[going, index].mean())
        if not comparison.is_float(index):
            yield WrongNumbers(comparison.label(index), share, None, None)
            continue
        part = comparison.component(index)
        with np.errstate(invalid="ignore", over="ignore"):
            errors = np.abs(part.predicted - part.recorded.astype(np.float64)) / part.typical_change
        yield WrongNumbers(comparison.label(index), share, *_sizes(errors[wrong[:, index]]))
    if (mask := comparison.mistakes["reward"]).any():
        recorded = comparison.dataset.columns["rewards"]
        with np.errstate(invalid="ignore", over="ignore"):
            errors = np.abs(comparison.predictions["rewards"] - recorded) / (recorded.std() or 1.0)
        yield WrongNumbers("reward", float((~mask).mean()), *_sizes(errors[mask]))


def _sizes(errors: np.ndarray) -> tuple[float | None, float | None]:
    """Return the median and the mean decimal logarithm of errors that are numbers."""
    errors = errors[np.isfinite(errors) & (errors > 0)]
    if not len(errors):
        return None, None
    return float(np.median(errors)), float(np.log10(errors).mean())


def reachable(comparison: ComparedRows) -> float:
    """Return the best score of one answer for each observation and action, on these rows."""
    dataset = comparison.dataset
    asked = dataset.situations()
    order: dict[bytes, list[int]] = {}
    for row, question in enumerate(asked):
        order.setdefault(question, []).append(row)
    repeated = [rows for rows in order.values() if len(rows) > 1]
    lost = sum(_least_lost(comparison, np.array(rows)) for rows in repeated)
    return float(1.0 - lost / comparison.weights.sum())


def _least_lost(comparison: ComparedRows, rows: np.ndarray) -> float:
    """Return the weight that the best single answer to some rows loses, part by part."""
    dataset = comparison.dataset
    columns, terminal = dataset.columns, comparison.terminal[rows]
    each = comparison.weights[rows] / np.where(terminal, 2, 3 + dataset.has_valid_actions)
    lost = sum(_fewer(columns[name][rows], each) for name in ("rewards", "terminations"))
    leaves = list(dataset.observation_space.leaves("next_observations"))
    for leaf in leaves:
        values = columns[leaf.name][rows].reshape(len(rows), -1)
        own = each * ~terminal / (len(leaves) * values.shape[1])
        lost += sum(_fewer(values[:, place], own) for place in range(values.shape[1]))
    return lost


def _fewer(values: np.ndarray, weights: np.ndarray) -> float:
    """Return the weight of all values but the one that weighs most."""
    _, kinds = np.unique(values, return_inverse=True)
    return float(weights.sum() - np.bincount(kinds.reshape(-1), weights).max())
