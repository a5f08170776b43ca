"""The diagnosis of wrong predictions: where a program is wrong, and what the data show there.

`diagnose` looks for conditions that separate wrong rows from right ones, so that the rows that a
report shows first share a cause. It also looks for conditions of ends and of rare rewards.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_cli.data.spaces import Columns
from cwm_cli.evaluation import Metric
from cwm_cli.problems.feedback.examples import ComparedRows, difference
from cwm_cli.problems.feedback.separation import Quantity, separate
from cwm_cli.problems.feedback.steps import likeliest
from cwm_cli.worlds.contract import component_names

MAX_COMPONENTS = 30
"""Most components that conditions compare. Components that change in more rows come first."""

MIN_FIT = 0.8
"""Least F1 score of a condition that locates mistakes."""

MIN_EXAMPLES = 3
"""Least number of ends, or of rows with a reward, for a rule. Groups of fewer wrong rows come last,
even if their loss is large, because such mistakes may be accidents."""

PREDICTED_BITS = 3.0
"""Extra bits of a condition on a prediction: conditions on observations are preferred."""


class Contrast(NamedTuple):
    """A wrong row, the most similar right row, and the names of the inputs that differ."""

    wrong: int
    right: int
    differs: tuple[str, ...]


class Group(NamedTuple):
    """Rows that are wrong in the same parts under one condition, "" for all rows.

    Of the `rows` under the condition, `wrong` are wrong; of the rows `elsewhere`,
    `wrong_elsewhere` are. `members` are the indices of the rows under the condition. `shown` are
    some of the wrong ones, the smallest error first.
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
    """Rows with the same recorded and the same wrong predicted reward or end.

    `times` is their number, and `row` is the row with the largest loss.
    """

    part: str
    recorded: float
    predicted: float
    times: int
    row: int


class Bracket(NamedTuple):
    """The nearest recorded values on either side of a bound, and the rows that have them."""

    measure: str
    inside: float
    outside: float
    rows: tuple[int, int]


class OutcomeRule(NamedTuple):
    """A condition that separates an end, or a value of the reward, in the recorded rows.

    The condition is true in `holds` of the `total` rows with the outcome, and in `exceptions` other
    rows. If it is a single bound, `bracket` contains the recorded values on either side.
    """

    outcome: str
    condition: str
    total: int
    holds: int
    exceptions: int
    bracket: Bracket | None


class WrongNumbers(NamedTuple):
    """The errors of one component or of the reward, in units of its typical change.

    `right` is the share of right rows; the observation of a final row does not count. `median` and
    `log_error` are the median and the mean decimal logarithm of the errors of the wrong rows.
    """

    name: str
    right: float
    median: float | None
    log_error: float | None


@dataclass(frozen=True)
class Diagnosis:
    """The mistakes of predictions; `groups` and `numbers` begin with the largest loss.

    `best_score` is the best score of a program with one answer for each observation and action. It
    is 1 if no pair was recorded with different outcomes.
    """

    comparison: ComparedRows
    score: float
    best_score: float
    numbers: tuple[WrongNumbers, ...]
    groups: tuple[Group, ...]
    kinds: tuple[WrongKind, ...]
    rules: tuple[OutcomeRule, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the data that `cwm evaluate --diagnose --json` prints."""
        groups = [
            group._asdict() | {"contrast": group.contrast and group.contrast._asdict()}
            for group in self.groups
        ]
        for group in groups:
            del group["members"]
        return {
            "transitions": len(self.comparison.dataset),
            "wrong": int(self.comparison.wrong.sum()),
            "score": self.score,
            "best_score": self.best_score,
            "numbers": [numbers._asdict() for numbers in self.numbers],
            "groups": groups,
            "kinds": [kind._asdict() for kind in self.kinds],
            "tellings": [
                rule._asdict() | {"bracket": rule.bracket and rule.bracket._asdict()}
                for rule in self.rules
            ],
        }


def diagnose(
    dataset: Dataset, predictions: Columns, metric: Metric, description: str = ""
) -> Diagnosis:
    """Find where predictions are wrong, and what the wrong rows have in common.

    Args:
        dataset: The recorded rows.
        predictions: One prediction for each row.
        metric: The metric that weighs the rows.
        description: The description of the environment, for the names of components.
    """
    comparison = ComparedRows.of(dataset, predictions, metric, description)
    best = ComparedRows.of(dataset, likeliest(dataset, metric), metric)
    quantities = ComparedQuantities(comparison)
    return Diagnosis(
        comparison,
        comparison.score,
        best.score,
        tuple(_find_wrong_numbers(comparison)),
        tuple(_find_groups(quantities)),
        tuple(_find_wrong_kinds(comparison)),
        tuple(_find_rules(quantities)),
    )


class ComparedQuantities:
    """The quantities that conditions may compare: inputs, predictions and recorded results."""

    def __init__(self, comparison: ComparedRows) -> None:
        self.comparison = comparison

    @cached_property
    def inputs(self) -> list[Quantity]:
        """The observation before a step, and the action."""
        dataset = self.comparison.dataset
        found, space = self._observed(dataset.columns, ""), dataset.action_space
        if space.kind in ("text", "tuple", "dict"):
            return found
        values = dataset.columns["actions"].reshape(len(dataset), -1).astype(np.float64)
        names = component_names(space, "action")[:MAX_COMPONENTS]
        for index, name in enumerate(names):
            is_ordered = space.kind != "discrete"
            found.append(Quantity(name, values[:, index], space.is_float, is_ordered))
        return found

    @cached_property
    def predicted(self) -> list[Quantity]:
        """The inputs and the predicted observation."""
        predictions = self.comparison.predictions
        return [*self.inputs, *self._observed(predictions, "next_", "predicted ")]

    @cached_property
    def recorded(self) -> list[Quantity]:
        """The next observation and the inputs. Conditions on the next observation are preferred."""
        inputs = [quantity._replace(extra=1.0) for quantity in self.inputs]
        results = self._observed(self.comparison.dataset.columns, "next_")
        return [
            *(one._replace(extra=max(0.0, one.extra - PREDICTED_BITS)) for one in results),
            *inputs,
        ]

    @cached_property
    def _chosen_components(self) -> list[int]:
        """The indices of the components that conditions may compare."""
        names = self.comparison.names
        if len(names) <= MAX_COMPONENTS:
            return list(range(len(names)))
        parts = (self.comparison.component(index) for index in range(min(len(names), 2000)))
        changing = np.array([float((part.before != part.recorded).mean()) for part in parts])
        return sorted(np.argsort(-changing, kind="stable")[:MAX_COMPONENTS].tolist())

    def _observed(self, columns: Columns, stem: str, words: str = "") -> list[Quantity]:
        """Return the components of an observation, and pairs that may be places on a map."""
        extra = PREDICTED_BITS if stem else 0.0
        found = []
        for index in self._chosen_components:
            leaf, place = self.comparison.leaves[index]
            column = columns[f"{stem}{leaf.name}"].reshape(len(self.comparison.dataset), -1)
            column = column[:, place]
            name = f"{words}{stem}{self.comparison.names[index]}"
            if column.dtype.kind not in "biuf":
                texts, codes = np.unique(column, return_inverse=True)
                labels = {float(code): repr(str(text)) for code, text in enumerate(texts)}
                found.append(Quantity(name, codes.astype(np.float64), False, False, extra, labels))
                continue
            values = column.astype(np.float64)
            # Real numbers that are all whole are flags, counters or places.
            is_real = leaf.space.is_float and bool((values != np.round(values)).any())
            found.append(Quantity(name, values, is_real, True, extra))
            if is_real and stem:
                found.append(Quantity(f"abs({name})", np.abs(values), True, True, extra + 2.0))
        # Pairs of whole numbers may be places on a map if they take few values.
        whole = [one for one in found if not one.is_real and one.is_ordered]
        whole = [one for one in whole if len(np.unique(one.values)) > 3][:4]
        for one, other in combinations(whole, 2):
            pairs = np.stack([one.values, other.values], axis=1)
            places, codes = np.unique(pairs, axis=0, return_inverse=True)
            if len(places) <= min(150, len(pairs) / 2):
                labels = {float(code): f"({x:g}, {y:g})" for code, (x, y) in enumerate(places)}
                name = f"({one.name}, {other.name})"
                codes = codes.reshape(-1).astype(np.float64)
                found.append(Quantity(name, codes, False, False, one.extra + 2.0, labels))
        return found


# --- groups of wrong rows


class _LocatedMistakes(NamedTuple):
    """Parts that are wrong together, a condition, and masks of its rows and of the wrong rows."""

    parts: tuple[str, ...]
    condition: str
    rows: np.ndarray
    wrong: np.ndarray

    @property
    def fit(self) -> float:
        """The F1 score of the condition for the wrong rows."""
        return _f1_score(self.rows, self.wrong)


def _f1_score(one: np.ndarray, other: np.ndarray) -> float:
    return float(2 * (one & other).sum() / (one.sum() + other.sum()))


def _find_groups(quantities: ComparedQuantities) -> Iterator[Group]:
    """Yield at most three groups of wrong rows, until they contain all wrong rows."""
    comparison = quantities.comparison
    left = comparison.wrong
    searches = 6  # each takes about 50 ms
    found: list[_LocatedMistakes] = []
    while left.any() and len(found) < 3 and searches > 0:
        options = []
        for parts, mask in _joint_mistakes(comparison, left):
            if searches <= 0:
                break
            option = _locate(quantities, parts, mask)
            searches -= 1
            options.append(option)
            if option.fit >= MIN_FIT and (option.rows & left).sum() >= MIN_FIT * left.sum():
                break
        # The loss under a condition counts less if earlier groups explain some of its rows.
        covered = [one.rows & left for one in options]
        worths = [
            float(comparison.lost[mask].sum() * mask.sum() / max(1, one.rows.sum()))
            for mask, one in zip(covered, options, strict=True)
        ]
        best = options[
            max(range(len(options)), key=lambda i: (options[i].fit >= MIN_FIT, worths[i]))
        ]
        found.append(best)
        left = left & ~(best.rows if (best.rows & left).any() else best.wrong)
    groups = [_describe_group(quantities, one) for one in found]
    lost = [float(comparison.lost[one.rows & one.wrong].sum()) for one in found]
    order = sorted(range(len(groups)), key=lambda i: (groups[i].wrong < MIN_EXAMPLES, -lost[i]))
    yield from (groups[place] for place in order)


def _joint_mistakes(
    comparison: ComparedRows, left: np.ndarray
) -> Iterator[tuple[tuple[str, ...], np.ndarray]]:
    """Yield all wrong parts, then parts that are wrong in the same rows, the costliest first."""
    masks: dict[str, np.ndarray] = {}
    wrong = comparison.component_mistakes & left[:, None]
    lost = wrong.T @ comparison.weights
    for index in np.argsort(-lost, kind="stable")[:MAX_COMPONENTS].tolist():
        if lost[index] > 0:
            masks[comparison.names[index]] = wrong[:, index]
    for part, mask in comparison.mistakes.items():
        if part != "observation" and (mask & left).any():
            masks[part] = mask & left
    joint: list[tuple[list[str], np.ndarray]] = []
    for name, mask in masks.items():
        for names, other in joint:
            # Parts with a Jaccard index of at least 0.85 count as one mistake.
            if (mask & other).sum() >= 0.85 * (mask | other).sum():
                names.append(name)
                break
        else:
            joint.append(([name], mask))
    yield tuple(masks), left
    if len(joint) > 1:
        joint.sort(key=lambda one: -float(comparison.weights[one[1]].sum()))
        yield from ((tuple(names), mask) for names, mask in joint)


def _locate(
    quantities: ComparedQuantities, parts: tuple[str, ...], wrong: np.ndarray
) -> _LocatedMistakes:
    """Find the condition under which parts are wrong, "" if there is none.

    A condition is kept if rows under it are wrong at least twice as often as other rows.
    """
    if (cells := _find_cell_condition(quantities.comparison)) is not None:
        return _LocatedMistakes(parts, *cells, wrong)
    everywhere = _LocatedMistakes(parts, "", np.ones(len(wrong), dtype=np.bool_), wrong)
    # If more than 85 % of the rows are wrong, they need no condition.
    if wrong[~quantities.comparison.terminal | wrong].mean() > 0.85:
        return everywhere
    condition = separate(wrong, quantities.predicted)
    if condition is None:
        return everywhere
    rows = condition.holds(quantities.predicted)
    if wrong[rows].mean() < 2.0 * wrong[~rows].mean():
        return everywhere
    return _LocatedMistakes(parts, condition.to_python(quantities.predicted), rows, wrong)


def _find_cell_condition(comparison: ComparedRows) -> tuple[str, np.ndarray] | None:
    """Find a condition of wrong cells of a board: on the values of a cell and its neighbours.

    An observation is a board if it has at least six components of one kind.
    """
    space = comparison.dataset.observation_space
    is_board = not space.children and not space.is_float and 1 <= len(space.shape) <= 2
    if not is_board or space.size < 6 or len(set(space.high)) > 1 or space.kind == "text":
        return None
    count = len(comparison.dataset)
    board = comparison.dataset.columns["observations"].reshape(count, *space.shape).astype(float)
    wrong = comparison.component_mistakes.reshape(-1)
    # The edge of the board counts as a value of its own.
    padded = np.pad(board, [(0, 0), *[(1, 1)] * len(space.shape)], constant_values=-1)
    if len(space.shape) == 1:
        neighbours = {"its left": padded[:, :-2], "its right": padded[:, 2:]}
    else:
        neighbours = {
            "its left": padded[:, 1:-1, :-2],
            "its right": padded[:, 1:-1, 2:],
            "the one above": padded[:, :-2, 1:-1],
            "the one below": padded[:, 2:, 1:-1],
        }
    # One row for each cell of each observation.
    cells = [Quantity("cell", board.reshape(-1), False)]
    cells += [Quantity(side, values.reshape(-1), False) for side, values in neighbours.items()]
    actions = comparison.dataset.action_space
    if actions.kind == "discrete" and actions.count == space.size:
        chosen = comparison.dataset.columns["actions"][:, None] - int(actions.low[0])
        is_cell = (chosen == np.arange(space.size)).astype(float).reshape(-1)
        cells.append(Quantity("action is the cell", is_cell, False))
    condition = separate(wrong, cells)
    if condition is None or _f1_score(condition.holds(cells), wrong) < MIN_FIT:
        return None
    rows = condition.holds(cells).reshape(count, space.size).any(axis=1)
    return f"for some cell {condition.to_python(cells)}", np.asarray(rows, dtype=np.bool_)


def _describe_group(quantities: ComparedQuantities, found: _LocatedMistakes) -> Group:
    """Count the rows of a group, and choose rows to show: the smallest and the median error."""
    comparison = quantities.comparison
    inside = found.rows & found.wrong
    rows = np.flatnonzero(inside if inside.any() else found.wrong)
    order = rows[np.argsort(comparison.errors[rows], kind="stable")]
    shown = dict.fromkeys(order[[0, len(order) // 2]].tolist())
    wrong = {part for part, mask in comparison.mistakes.items() if mask[rows].any()}
    components = np.flatnonzero(comparison.component_mistakes[rows].sum(axis=0))
    wrong |= {comparison.names[index] for index in components.tolist()}
    return Group(
        tuple(name for name in found.parts if name in wrong),
        found.condition,
        int(inside.sum()),
        int(found.rows.sum()),
        int((found.wrong & ~found.rows).sum()),
        int((~found.rows).sum()),
        tuple(np.flatnonzero(found.rows).tolist()),
        tuple(shown),
        _find_contrast(quantities, rows) if found.condition else None,
    )


def _find_contrast(quantities: ComparedQuantities, rows: np.ndarray) -> Contrast | None:
    """Return the most similar pair of a wrong and a right row, by their inputs.

    At most about 100 wrong rows are compared with 500 right ones.
    """
    right = np.flatnonzero(~quantities.comparison.wrong)
    inputs = [one for one in quantities.inputs if not one.labels and np.ptp(one.values) > 0]
    if not len(right) or not inputs:
        return None
    wrong = rows[:: max(1, len(rows) // 100)]
    right = right[:: max(1, len(right) // 500)]
    apart = np.array([one.values[wrong, None] - one.values[None, right] for one in inputs])
    scale = np.array([one.values.std() if one.is_ordered else 0.5 for one in inputs])
    distance = np.abs(apart / scale[:, None, None])
    # Each input that differs costs 0.2 more, so that few inputs differ.
    total = np.where(distance > 0, distance + 0.2, 0.0).sum(axis=0)
    first, second = np.unravel_index(np.argmin(total), total.shape)
    by_input = distance[:, first, second]
    differs = tuple(
        inputs[i].name
        for i in np.argsort(-by_input, kind="stable")[:3]
        if by_input[i] > max(0.1, by_input.max() / 4)
    )
    return Contrast(int(wrong[first]), int(right[second]), differs)


# --- rewards and ends


def _find_wrong_kinds(comparison: ComparedRows) -> Iterator[WrongKind]:
    """Yield the kinds of wrong ends, then of wrong rewards if these take at most 20 values."""
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
            recorded_value, predicted_value = kinds[place].tolist()
            yield WrongKind(part, recorded_value, predicted_value, int(counts[place]), row)


def _find_rules(quantities: ComparedQuantities) -> Iterator[OutcomeRule]:
    """Yield the rules of wrongly predicted ends, and of rewards if they take up to 8 values."""
    comparison = quantities.comparison
    rewards = comparison.dataset.columns["rewards"]
    ends = comparison.terminal
    if comparison.mistakes["terminated"].any() and MIN_EXAMPLES <= ends.sum() < len(ends):
        yield from _find_rule(quantities, "the episode ends", ends)
    wrong = comparison.mistakes["reward"]
    values, counts = np.unique(rewards, return_counts=True)
    if wrong.any() and 1 < len(values) <= 8:
        for value, times in zip(values, counts, strict=True):
            if MIN_EXAMPLES <= times <= len(rewards) / 2 and wrong[rewards == value].any():
                name = f"the reward is {value.item()!r}"
                yield from _find_rule(quantities, name, rewards == value)


def _find_rule(
    quantities: ComparedQuantities, outcome: str, target: np.ndarray
) -> Iterator[OutcomeRule]:
    """Yield the condition of the rows with an outcome, if it has few exceptions.

    Only conditions on plain quantities may have exceptions, in at most 2 % of all rows.
    """
    condition = separate(target, quantities.recorded)
    if condition is None:
        return
    inside = condition.holds(quantities.recorded)
    is_plain = all(literal.form == "plain" for literal in condition.literals)
    most = 0.02 * len(target) if is_plain else 0
    if (inside != target).sum() > most or _f1_score(inside, target) < MIN_FIT:
        return
    literal, bracket = condition.literals[0], None
    if len(condition.literals) == 1 and not literal.values:  # a single bound
        measured = literal.measure(quantities.recorded)
        apart = np.abs(measured[inside][:, None] - measured[~inside][None, :])
        first, second = np.unravel_index(np.argmin(apart), apart.shape)
        rows = int(np.flatnonzero(inside)[first]), int(np.flatnonzero(~inside)[second])
        inner, outer = measured[list(rows)].tolist()
        bracket = Bracket(literal.expression(quantities.recorded), inner, outer, rows)
    yield OutcomeRule(
        outcome,
        condition.to_python(quantities.recorded),
        int(target.sum()),
        int((inside & target).sum()),
        int((inside & ~target).sum()),
        bracket,
    )


# --- sizes of errors


def _find_wrong_numbers(comparison: ComparedRows) -> Iterator[WrongNumbers]:
    """Yield the errors of each wrong component, the costliest first, and of the reward."""
    going = ~comparison.terminal
    wrong = comparison.component_mistakes
    lost = wrong.T @ comparison.weights
    for index in np.argsort(-lost, kind="stable")[:MAX_COMPONENTS].tolist():
        if lost[index] <= 0:
            break
        share = float(comparison.right[going, index].mean())
        if not comparison.is_float(index):
            yield WrongNumbers(comparison.label(index), share, None, None)
            continue
        errors = comparison.component(index).errors[wrong[:, index]]
        yield WrongNumbers(comparison.label(index), share, *_summarise(errors))
    if (mask := comparison.mistakes["reward"]).any():
        recorded = comparison.dataset.columns["rewards"]
        missed = difference(recorded, comparison.predictions["rewards"])
        errors = np.abs(missed) / (recorded.std() or 1.0)
        yield WrongNumbers("reward", float((~mask).mean()), *_summarise(errors[mask]))


def _summarise(errors: np.ndarray) -> tuple[float | None, float | None]:
    """Return the median and the mean decimal logarithm of the finite errors."""
    errors = errors[np.isfinite(errors) & (errors > 0)]
    if not len(errors):
        return None, None
    return float(np.median(errors)), float(np.log10(errors).mean())
