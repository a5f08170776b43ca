"""Recorded steps: components as numbers, steps as short lines of text, and kinds of steps.

`RecordedSteps` writes numbers of 32 bits so that they can be read back exactly, longer ones with
nine digits, and a step on a board of many cells by the cells that changed. `StepKinds` finds
outcomes, effects, modes, nearest steps and unusual steps. `likeliest` and `best_frequencies` give
the best answers if equal situations had different outcomes.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, combinations, pairwise
from typing import Any

import numpy as np

from cwm_cli.data.dataset import VALID, Dataset
from cwm_cli.data.spaces import Columns, Space
from cwm_cli.evaluation import Metric
from cwm_cli.text import clean
from cwm_cli.worlds.contract import component_names
from cwm_cli.worlds.model import Predictions

MANY_CELLS = 12
"""An observation of more components that are no real numbers is written by its changes."""
LONGEST_TEXT = 1200
"""Longer texts are cut."""


@dataclass(frozen=True)
class RecordedSteps:
    """A dataset by components: `before` and `after` have a column for each; texts are numbered."""

    dataset: Dataset

    def __len__(self) -> int:
        return len(self.dataset)

    @cached_property
    def names(self) -> list[str]:
        """The name of each component: its index, such as `[2]`, if it has one."""
        names = component_names(self.dataset.observation_space, "observation")
        return [
            clean(name.removeprefix("observation"), limit=40) or "observation" for name in names
        ]

    @property
    def before(self) -> np.ndarray:
        """Observations before the step, (rows, components)."""
        return self._numbers[0]

    @property
    def after(self) -> np.ndarray:
        """Observations after the step, (rows, components)."""
        return self._numbers[1]

    @cached_property
    def _numbers(self) -> tuple[np.ndarray, np.ndarray]:
        space, count = self.dataset.observation_space, len(self)
        parts: tuple[list[np.ndarray], list[np.ndarray]] = [], []
        stems = ("observations", "next_observations")
        for leaves in zip(*(space.leaves(stem) for stem in stems), strict=True):
            columns = [self.dataset.columns[leaf.name].reshape(count, -1) for leaf in leaves]
            if leaves[0].space.kind == "text":
                _, codes = np.unique(np.concatenate(columns), return_inverse=True)
                columns = list(codes.reshape(2, count, -1))
            for part, column in zip(parts, columns, strict=True):
                part.append(column.astype(np.float64))
        before, after = (np.concatenate(part, axis=1) for part in parts)
        return before, after

    @cached_property
    def is_text(self) -> np.ndarray:
        """Mask of the components that are texts."""
        return self._by_leaf(lambda space: space.kind == "text")

    @cached_property
    def whole(self) -> np.ndarray:
        """Mask of the components that are no real numbers, or take only a few whole values."""
        known = ~self._by_leaf(lambda space: space.is_float)
        # A real component of at most 12 values, all whole, is a flag or a counter.
        for index in np.flatnonzero(~known):
            values = np.unique(np.concatenate([self.before[:, index], self.after[:, index]]))
            known[index] = len(values) <= 12 and bool((values == np.round(values)).all())
        return known

    def _by_leaf(self, test: Callable[[Space], bool]) -> np.ndarray:
        leaves = [leaf.space for leaf in self.dataset.observation_space.leaves("")]
        return np.concatenate([np.full(space.size, test(space), np.bool_) for space in leaves])

    @cached_property
    def actions(self) -> np.ndarray:
        """Actions, (rows, components); texts are numbered."""
        leaves = self.dataset.action_space.leaves("actions")
        columns = [self.dataset.columns[leaf.name].reshape(len(self), -1) for leaf in leaves]
        numbers = [
            np.unique(c, return_inverse=True)[1].reshape(c.shape) if c.dtype.kind == "U" else c
            for c in columns
        ]
        return np.concatenate(numbers, axis=1).astype(np.float64)

    @cached_property
    def rewards(self) -> np.ndarray:
        """The recorded rewards."""
        return self.dataset.columns["rewards"]

    @cached_property
    def ended(self) -> np.ndarray:
        """Mask of the steps that terminate an episode."""
        return self.dataset.columns["terminations"]

    @cached_property
    def follows(self) -> np.ndarray:
        """Mask of the steps that continue the step above them in the same episode."""
        episodes = self.dataset.columns["episodes"]
        follows = np.zeros(len(self), np.bool_)
        same = (self.before[1:] == self.after[:-1]).all(axis=1)
        follows[1:] = same & (episodes[1:] == episodes[:-1]) & ~self.ended[:-1]
        return follows

    @cached_property
    def episodes(self) -> list[range]:
        """The rows of each unbroken stretch of an episode."""
        starts = np.flatnonzero(~self.follows).tolist()
        return [range(*bounds) for bounds in pairwise([*starts, len(self)])]

    def up_to(self, row: int, most: int) -> range:
        """Return a step and at most `most` steps before it in the same episode."""
        first = row
        while self.follows[first] and row - first < most:
            first -= 1
        return range(first, row + 1)

    @cached_property
    def is_board(self) -> bool:
        """Whether an observation has many cells that are no real numbers."""
        real = self._by_leaf(lambda space: space.is_float)
        return len(self.names) > MANY_CELLS and bool(real.mean() < 1 / 2)

    # --- in words

    def observation(self, row: int, *, after: bool = False) -> str:
        """Write the whole observation before or after a step."""
        stem = "next_observations" if after else "observations"
        return write_cell(self.dataset.observation_space, stem, self.dataset, row)

    @property
    def line_format(self) -> str:
        """The fields of a line that `line` writes."""
        changes = "changed cells" if self.is_board else "next observation"
        return f"observation | action | {changes} | reward"

    @property
    def chain_format(self) -> str:
        """An explanation of the lines that `chain` writes."""
        if self.is_board:
            return "each line after the first is: action | changed cells | reward."
        return "a line is: observation | action | reward. The next line has the next observation."

    def action(self, row: int) -> str:
        """Write an action."""
        return write_cell(self.dataset.action_space, "actions", self.dataset, row)

    def result(self, row: int) -> str:
        """Write the observation after a step, on a board only the cells that changed."""
        if not self.is_board:
            return self.observation(row, after=True)
        changed = np.flatnonzero(self.before[row] != self.after[row]).tolist()
        cells = [f"{self.names[i]} {self.cell(row, i)}>{self.cell(row, i, 1)}" for i in changed]
        return ", ".join(cells) or "unchanged"

    def cell(self, row: int, index: int, after: int = 0) -> str:
        """Write one component before or after a step."""
        leaf, place = self._places[index]
        stem = "next_observations" if after else "observations"
        value = self.dataset.columns[f"{stem}{leaf}"][row].reshape(-1)[place]
        return number(value) if value.dtype.kind != "U" else repr(str(value))

    @cached_property
    def _places(self) -> list[tuple[str, int]]:
        """The leaf of each component, as the end of its column's name, and its place there."""
        leaves = self.dataset.observation_space.leaves("")
        return [(leaf.name, place) for leaf in leaves for place in range(leaf.space.size)]

    def outcome(self, row: int) -> str:
        """Write the reward, the end, and the valid actions if they are recorded."""
        words = f"{number(self.rewards[row])}{', ended' if self.ended[row] else ''}"
        if self.dataset.has_valid_actions and not self.ended[row]:
            valid = self.dataset.action_space.masked(self.dataset.columns[VALID][row])
            words += f", valid {','.join(map(str, valid))}"
        return words

    def line(self, row: int, *, like: int | None = None) -> str:
        """Write a step: before, action, after, reward.

        On a board, the observation before may be written as its difference from the observation
        of the row `like`.
        """
        before = self.observation(row)
        if like is not None and self.is_board:
            cells = np.flatnonzero(self.before[row] != self.before[like]).tolist()
            words = ", ".join(f"{self.names[i]} {self.cell(row, i)}" for i in cells)
            difference = f"first board above, but {words}" if cells else "first board above"
            before = min(difference, before, key=len)
        return f"{before} | {self.action(row)} | {self.result(row)} | {self.outcome(row)}"

    def chain(self, rows: Sequence[int]) -> list[str]:
        """Write steps that follow each other; each observation is written once."""
        lines = []
        for place, row in enumerate(rows):
            parts = [self.action(row), self.outcome(row)]
            if place == 0 or not self.is_board:
                parts.insert(0, self.observation(row))
            if self.is_board:
                parts.insert(-1, self.result(row))
            lines.append(" | ".join(parts))
        if not self.is_board and rows:
            lines.append(self.observation(rows[-1], after=True))
        return lines


def write_cell(space: Space, stem: str, dataset: Dataset, row: int) -> str:
    """Write a value of a space as in Python, without spaces; long texts are cut."""
    return write_value(space.unpack(stem, dataset.columns, row))


def write_value(value: Any) -> str:
    """Write a value of any space; `number` writes its numbers."""
    match value:
        case np.ndarray() if value.ndim:
            return f"[{','.join(map(write_value, value))}]"
        case tuple():
            return f"({','.join(map(write_value, value))})"
        case dict():
            return f"{{{','.join(f'{key!r}:{write_value(each)}' for key, each in value.items())}}}"
        case str():
            cut = value if len(value) <= LONGEST_TEXT else f"{value[:LONGEST_TEXT]}…"
            plain = json.dumps(clean(cut, newlines=True), ensure_ascii=False)
            return plain if plain.isprintable() else json.dumps(cut)
    return number(value)


def number(value: Any) -> str:
    """Write a number with as few digits as identify it, at most nine."""
    plain = value.item() if isinstance(value, np.generic | np.ndarray) else value
    if not isinstance(plain, float):
        return str(int(plain))
    is_single = getattr(value, "dtype", None) in (np.dtype(np.float32), np.dtype(np.float16))
    short = str(np.float32(value)) if is_single else repr(plain)
    nine = f"{plain:.9g}"
    text = min(short, nine, key=len)
    return text.removesuffix(".0")


# --- kinds of steps

FEW_KINDS = 20
"""Up to this many values of the reward, and actions, are counted one by one. The score weighs the
rewards in the same way."""
MOST_EFFECTS = 6
"""Number of effects of an action that are listed, the most frequent first."""


@dataclass(frozen=True)
class StepKinds:
    """Recorded steps, grouped by outcome, effect and mode."""

    steps: RecordedSteps

    @cached_property
    def reward_values(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Each value of the reward and its count, None if there are many."""
        values, counts = np.unique(self.steps.rewards, return_counts=True)
        return (values, counts) if len(values) <= FEW_KINDS else None

    @cached_property
    def action_values(self) -> list[tuple[str, np.ndarray]]:
        """The rows of each action, empty if there are many actions."""
        masks = rows_by_action(self.steps.dataset)
        return [(self.steps.action(int(np.argmax(mask))), mask) for mask in masks]

    @property
    def actions_or_any(self) -> list[tuple[str, np.ndarray]]:
        """The rows of each action; all rows, with an empty name, if there are many actions."""
        return self.action_values or [("", np.ones(len(self.steps), np.bool_))]

    @cached_property
    def scaled(self) -> np.ndarray:
        """Observations and actions, scaled so that the range of each component is 1."""
        steps = self.steps
        columns = []
        for values in map(finite, (steps.before, steps.actions)):
            low, high = values.min(axis=0), values.max(axis=0)
            columns.append((values - low) / np.where(high > low, high - low, 1.0))
        return np.concatenate(columns, axis=1)

    @cached_property
    def discrete(self) -> np.ndarray:
        """Mask of the columns of `scaled` whose values are labels: any difference counts as 1."""
        space = self.steps.dataset.action_space
        acts = np.full(self.steps.actions.shape[1], not space.is_float)
        return np.concatenate([self.steps.is_text | self.steps.is_board, acts])

    def distances(self, row: int) -> np.ndarray:
        """Return the distance between the observation and action of each step and of one row."""
        apart = np.abs(self.scaled - self.scaled[row])
        far: np.ndarray = np.where(self.discrete, apart > 0, apart).sum(axis=1)
        # Rounding keeps equal distances equal, so that the first row wins.
        return np.round(far, 9)

    def nearest(self, row: int, among: np.ndarray) -> int | None:
        """Return the step among some that is most similar to one, None if there is none."""
        if not among.any():
            return None
        return int(np.argmin(np.where(among, self.distances(row), np.inf)))

    def threshold(
        self, mask: np.ndarray, others: np.ndarray, *, after: bool = True
    ) -> tuple[str, int, int] | None:
        """Find a bound of one component that separates the rows of a mask from all others.

        Return the bound as words, and the nearest row on either side.
        """
        steps = self.steps
        tenses = [("observation", steps.before)]
        tenses += [("next observation", steps.after)] if after else []
        for tense, values in reversed(tenses):
            for index in np.flatnonzero(~steps.is_text).tolist()[:MANY_CELLS]:
                column = values[:, index]
                if not np.isfinite(column).all():
                    continue
                for name, side in (("{}", column), ("{}", -column), ("|{}|", np.abs(column))):
                    outer, inner = (np.where(rows, side, np.nan) for rows in (mask, others))
                    edge, other = float(np.nanmin(outer)), float(np.nanmax(inner))
                    # Rows of one value would give an equality, not a bound.
                    if not edge > other or (mask.sum() > 1 and np.nanmax(outer) == edge):
                        continue
                    named = name.format(f"{tense} {steps.names[index]}")
                    sign, word, rest = 1, "at least", "at most"
                    if name == "{}" and side is not column:
                        sign, word, rest = -1, "at most", "at least"
                    words = (
                        f"{named} is {word} {number(sign * edge)} there, and {rest} "
                        f"{number(sign * other)} in all other steps"
                    )
                    return words, int(np.nanargmin(outer)), int(np.nanargmax(inner))
        return None

    @cached_property
    def ending_components(self) -> list[int]:
        """Components whose values at ends lie outside the range of all other steps.

        Components that explain most ends come first. Boards and single integers have none: their
        ends are places, and ranges of places mean nothing.
        """
        steps = self.steps
        if steps.dataset.observation_space.kind == "discrete" or steps.is_board:
            return []
        left, found = steps.ended & ~steps.ended.all(), list[int]()
        inner = steps.after[~steps.ended]
        while left.any():
            beyond = (steps.after > inner.max(axis=0)) | (steps.after < inner.min(axis=0))
            explained = np.where(steps.is_text, 0, (beyond & left[:, None]).sum(axis=0))
            if not explained.max():
                break
            found.append(int(explained.argmax()))
            left &= ~beyond[:, found[-1]]
        return found[:MOST_EFFECTS]

    def deciders(self, values: np.ndarray, rows: np.ndarray) -> list[int]:
        """Return one or two components that determine the values of some rows, else none.

        Each combination of their values occurs twice on average; otherwise any component would
        determine anything.
        """
        steps, best = self.steps, list[int]()
        kinds = np.unique(values[rows], return_inverse=True)[1].reshape(-1)
        able = [i for i in np.flatnonzero(steps.whole).tolist() if self.codes[:, i].max() > 0]
        fewest = rows.sum() // 2 + 1
        for chosen in chain(combinations(able, 1), combinations(able, 2)):
            if best and len(best) < len(chosen):
                break
            place = self.codes[rows, chosen[0]]
            for other in chosen[1:]:
                # Number the pairs of values.
                place = place * (self.codes[:, other].max() + 1) + self.codes[rows, other]
            places = len(np.unique(place))
            if places < fewest and len(np.unique(place * (kinds.max() + 1) + kinds)) == places:
                odd = len(np.unique(place[kinds != np.bincount(kinds).argmax()]))
                if odd <= 10:  # more exceptions, such as walls, make no short rule
                    best, fewest = list(chosen), places
        return best

    @cached_property
    def by_itself(self) -> np.ndarray:
        """Mask of the components that change in the same way under every action."""
        steps = self.steps
        found = np.zeros(len(steps.names), np.bool_)
        if steps.is_board or len(steps.names) > MANY_CELLS or len(self.action_values) < 2:
            return found
        moved = steps.after - steps.before
        for index in np.flatnonzero(steps.whole).tolist():
            seen = {frozenset(moved[mask, index].tolist()) for _, mask in self.action_values}
            found[index] = len(seen) == 1 and len(seen.pop()) > 1
        return found

    @cached_property
    def modes(self) -> list[int]:
        """Components of two to six whole values."""
        able = np.flatnonzero(self.steps.whole).tolist()
        return [index for index in able if 0 < self.codes[:, index].max() < 6]

    @cached_property
    def cell_effects(self) -> np.ndarray:
        """For each row the values of the cells that changed, without their places on the board."""
        steps, cells = self.steps, np.flatnonzero(self.steps.whole)
        names = []
        for row in range(len(steps)):
            changed = cells[steps.before[row, cells] != steps.after[row, cells]].tolist()
            pairs = sorted(f"{steps.cell(row, i)}>{steps.cell(row, i, 1)}" for i in changed)
            names.append(" ".join(pairs[:MOST_EFFECTS]) or "nothing")
        return np.array(names, object)

    @cached_property
    def effects(self) -> list[np.ndarray]:
        """Masks of the rows of each action, each action in each mode, and each listed effect."""
        steps, found = self.steps, list[np.ndarray]()
        for _, taken in self.actions_or_any:
            found.append(taken)
            going = taken & ~steps.ended
            if steps.is_board:
                columns = [] if steps.is_text.all() else [self.cell_effects]
            elif len(steps.names) <= MANY_CELLS:
                for index in self.modes:
                    codes = self.codes[:, index]
                    found += [taken & (codes == code) for code in range(codes.max() + 1)]
                columns = [
                    steps.after[:, i] - steps.before[:, i] for i in np.flatnonzero(steps.whole)
                ]
            else:
                columns = []
            for column in columns:
                values, _ = by_frequency(column[going])
                found += [going & (column == value) for value in values[:MOST_EFFECTS]]
        return [mask for mask in found if mask.any()]

    @cached_property
    def codes(self) -> np.ndarray:
        """Observations, with the values of each component numbered from 0."""
        columns = [np.unique(c, return_inverse=True)[1].reshape(-1) for c in self.steps.before.T]
        return np.stack(columns, axis=1)

    @cached_property
    def outcomes(self) -> list[tuple[str, np.ndarray]]:
        """Kinds of outcome (action, change, reward, end) and their rows, the rarest first."""
        for exact in (2, 1, 0):
            names = self._outcome_names(exact)
            kinds, kind, counts = np.unique(names, return_inverse=True, return_counts=True)
            if len(kinds) <= max(40, len(names) // 8):
                order = np.argsort(counts, kind="stable")
                return [(str(kinds[each]), kind == each) for each in order.tolist()]
        return []

    def _outcome_names(self, exact: int) -> list[str]:
        """Return the kind of outcome of each row: changes by value (2), component (1) or none."""
        steps = self.steps
        actions = np.full(len(steps), "", object)
        for name, mask in self.action_values:
            actions[mask] = name
        few = self.reward_values is not None
        changed = steps.before != steps.after
        stays = ~steps.whole[None, :] & ~changed if steps.before.shape[1] <= MANY_CELLS else None
        names = []
        for row in range(len(steps)):
            parts: list[object] = []
            cells = np.flatnonzero(changed[row] & steps.whole & ~self.by_itself).tolist()
            if steps.is_board and exact:
                pairs = [(steps.cell(row, i), steps.cell(row, i, 1)) for i in cells]
                parts += [sorted(pairs) if exact == 2 else len(pairs)]
            elif exact:
                moved = steps.after[row] - steps.before[row]
                parts += [(i, moved[i] if exact == 2 else 0) for i in cells]
            if stays is not None and exact:
                parts.append(np.flatnonzero(stays[row]).tolist())
            reward = float(steps.rewards[row]) if few else None
            names.append(f"{actions[row]} {parts} {reward} {bool(steps.ended[row])}")
        return names

    @cached_property
    def off_the_line(self) -> list[int]:
        """Rows with an unusually large error under a linear law: the largest of each component."""
        steps = self.steps
        inputs = [np.ones((len(steps), 1)), self.scaled]
        inputs += [mask[:, None] for _, mask in self.action_values]
        design = np.concatenate(inputs, axis=1).astype(np.float64)
        if len(steps) < 3 * design.shape[1]:
            return []
        real = ~steps.whole
        targets = [finite(steps.after[:, real]) - finite(steps.before[:, real])]
        targets += [] if self.reward_values else [finite(steps.rewards[:, None])]
        values = np.concatenate(targets, axis=1)
        law, *_ = np.linalg.lstsq(design, values, rcond=1e-9)
        missed = np.abs(design @ law - values)
        scale = np.maximum(np.median(missed, axis=0), 1e-9 * (1 + np.abs(values).max(axis=0)))
        # Rounding keeps ties equal on all machines.
        ratio = np.round(missed / scale, 3)
        found: dict[int, float] = {}
        for row, most in zip(ratio.argmax(axis=0).tolist(), ratio.max(axis=0), strict=True):
            # Smooth curvature stays well below 12 times the median error.
            if most > 12:
                found[row] = max(found.get(row, 0.0), float(most))
        return sorted(found, key=lambda row: -found[row])

    @cached_property
    def contradictions(self) -> dict[bytes, list[int]]:
        """The rows of each situation (observation and action) that led to different outcomes."""
        return {
            key: rows
            for key, rows in rows_by_situation(self.steps.dataset).items()
            if len(rows) > 1 and len({self.steps.line(row) for row in rows}) > 1
        }


def rows_by_situation(dataset: Dataset) -> dict[bytes, list[int]]:
    """Return the rows of each situation: of each pair of observation and action."""
    groups: dict[bytes, list[int]] = defaultdict(list)
    for row, key in enumerate(dataset.situations()):
        groups[key].append(row)
    return groups


def rows_by_action(dataset: Dataset) -> list[np.ndarray]:
    """Return the mask of the rows of each action, none if actions are real, texts or many."""
    space = dataset.action_space
    if space.kind == "text" or space.is_float or space.children:
        return []
    values = dataset.columns["actions"].reshape(len(dataset), -1)
    kinds, kind = np.unique(values, axis=0, return_inverse=True)
    if len(kinds) > FEW_KINDS:
        return []
    return [kind.reshape(-1) == each for each in range(len(kinds))]


def by_frequency(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the different values and their counts, the most frequent (then smallest) first."""
    kinds, counts = np.unique(values, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    return kinds[order], counts[order]


def finite(values: np.ndarray) -> np.ndarray:
    """Replace numbers that are not finite by 0, so that they do not distort distances."""
    return np.where(np.isfinite(values), values, 0.0)


def outcome_counts(seen: dict[str, int], *, always: bool = False) -> str:
    """Write the outcomes of one action, with counts if there are several, or `always`."""
    if len(seen) == 1 and not (always and max(seen.values()) > 1):
        return next(iter(seen))
    most_first = sorted(seen.items(), key=lambda item: -item[1])
    return " or ".join(f"{outcome} ({count}x)" for outcome, count in most_first)


# --- the best answers to situations that were recorded with different outcomes

RESULTS = ("next_observations", "rewards", "terminations", VALID)
"""The columns that a program predicts."""


def best_frequencies(rows: Dataset, metric: Metric) -> float | None:
    """Return the mean log-likelihood of the recorded outcome frequencies on the rows themselves.

    No probabilities have a higher likelihood on these rows. None if observations are real numbers
    or a situation has too many outcomes.
    """
    leaves = rows.observation_space.leaves("observations")
    if any(leaf.space.is_float for leaf in leaves):
        return None
    groups = rows_by_situation(rows)
    width = max(map(len, groups.values()), default=0)
    # With more outcomes of a situation, the table of all outcomes would need too much memory.
    if not 0 < width <= 64:
        return None
    places = np.zeros((len(rows), width), int)
    chances = np.zeros((len(rows), width))
    for members in groups.values():
        places[members, : len(members)] = members
        chances[members, : len(members)] = 1 / len(members)
    columns = {name: column[places] for name, column in rows.select(*RESULTS).items()}
    return metric.score(Predictions(columns, None, "outcomes", chances), rows).log_likelihood


def likeliest(rows: Dataset, metric: Metric) -> Columns:
    """Return for each situation the recorded outcome with the most weight, part by part."""
    weights = metric.weights(rows)
    going = ~rows.columns["terminations"]
    answers = {name: column.copy() for name, column in rows.select(*RESULTS).items()}
    parts = 3 + rows.has_valid_actions
    for members in (group for group in rows_by_situation(rows).values() if len(group) > 1):
        for name, column in answers.items():
            # The score of a final row counts the reward and the end only.
            at_end = 1 / 2 if name in ("rewards", "terminations") else 0.0
            weight = weights[members] * np.where(going[members], 1 / parts, at_end)
            chosen = []
            for cell in rows.columns[name][members].reshape(len(members), -1).T:
                kinds, kind = np.unique(cell, return_inverse=True)
                # Rounding keeps ties equal, so that the first value wins.
                heaviest = np.argmax(np.round(np.bincount(kind.reshape(-1), weight), 12))
                chosen.append(kinds[heaviest])
            column[members] = np.array(chosen, column.dtype).reshape(column.shape[1:])
    return answers
