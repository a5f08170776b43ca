"""Recorded steps by what they teach: kinds of outcome, what is nearest, what stands out."""

from dataclasses import dataclass
from functools import cached_property
from itertools import chain, combinations

import numpy as np

from cwm_cli.problems.feedback.steps import MANY_CELLS, RecordedSteps, number

FEW_REWARDS = 20
"""With no more values than this each is counted, as the score weighs them."""
FAR_OFF = 12.0
"""How many times the median error of a linear law a step misses it by where another law acts:
smooth curvature stays well below."""
MOST_EFFECTS = 6
"""Outcomes of an action that are counted, the most frequent first."""
MOST_PLACES = 10
"""Places at which a component changes otherwise than elsewhere, such as walls, that are listed."""


@dataclass(frozen=True)
class StepKinds:
    """Recorded steps by what they teach: kinds of outcome, what is nearest, what stands out."""

    steps: RecordedSteps

    @cached_property
    def reward_values(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Each value of the reward and how often it came, None where there are many."""
        values, counts = np.unique(self.steps.rewards, return_counts=True)
        return (values, counts) if len(values) <= FEW_REWARDS else None

    @cached_property
    def action_values(self) -> list[tuple[str, np.ndarray]]:
        """The rows of each action, where actions are few."""
        space = self.steps.dataset.action_space
        if space.kind == "text" or space.is_float or space.children:
            return []
        _, kind = np.unique(self.steps.actions, axis=0, return_inverse=True)
        kind = kind.reshape(-1)
        if kind.max() >= FEW_REWARDS:
            return []
        masks = [kind == each for each in range(int(kind.max()) + 1)]
        return [(self.steps.action(int(np.argmax(mask))), mask) for mask in masks]

    @cached_property
    def scaled(self) -> np.ndarray:
        """Observations and actions, one unit being the range of a component, or any change."""
        steps = self.steps
        real = [steps.before, steps.actions]
        columns = []
        for values in real:
            values = finite(values)
            low, high = values.min(axis=0), values.max(axis=0)
            columns.append((values - low) / np.where(high > low, high - low, 1.0))
        return np.concatenate(columns, axis=1)

    @cached_property
    def discrete(self) -> np.ndarray:
        """Which columns of `scaled` differ or do not, however far."""
        space = self.steps.dataset.action_space
        acts = np.full(self.steps.actions.shape[1], not space.is_float)
        return np.concatenate([self.steps.is_text | self.steps.is_board, acts])

    def distances(self, row: int) -> np.ndarray:
        """Return how far each step's situation is from that of one."""
        apart = np.abs(self.scaled - self.scaled[row])
        far: np.ndarray = np.where(self.discrete, apart > 0, apart).sum(axis=1)
        return np.round(far, 9)

    def nearest(self, row: int, among: np.ndarray) -> int | None:
        """Return the step of some that is most like one, None where there is none."""
        if not among.any():
            return None
        return int(np.argmin(np.where(among, self.distances(row), np.inf)))

    def threshold(
        self, mask: np.ndarray, others: np.ndarray, *, after: bool = True
    ) -> tuple[str, int, int] | None:
        """Find one component beyond a value of which all rows of a mask lie, and none of others.

        Return words on it and the rows on either side that are nearest to it.
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
                    if not edge > other or (mask.sum() > 1 and np.nanmax(outer) == edge):
                        continue
                    told = name.format(f"{tense} {steps.names[index]}")
                    sign, word, rest = 1, "at least", "at most"
                    if name == "{}" and side is not column:
                        sign, word, rest = -1, "at most", "at least"
                    words = (
                        f"{told} is {word} {number(sign * edge)} there and {rest} "
                        f"{number(sign * other)} in all others"
                    )
                    return words, int(np.nanargmin(outer)), int(np.nanargmax(inner))
        return None

    @cached_property
    def ending_components(self) -> list[int]:
        """The components that lie, at ends, where they lie nowhere else: those that explain most.

        Where ends are single places, such as a cell, a range says nothing.
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
        """Return one or two components by which the values of some rows are told, else none.

        Each place that they tell apart was seen twice in the mean: else anything would tell.
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
                place = place * (self.codes[:, other].max() + 1) + self.codes[rows, other]
            places = len(np.unique(place))
            if places < fewest and len(np.unique(place * (kinds.max() + 1) + kinds)) == places:
                odd = len(np.unique(place[kinds != np.bincount(kinds).argmax()]))
                if odd <= MOST_PLACES:
                    best, fewest = list(chosen), places
        return best

    @cached_property
    def by_itself(self) -> np.ndarray:
        """Which components change, but alike whatever is done."""
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
    def codes(self) -> np.ndarray:
        """Observations with the values of each component counted from 0."""
        columns = [np.unique(c, return_inverse=True)[1].reshape(-1) for c in self.steps.before.T]
        return np.stack(columns, axis=1)

    @cached_property
    def outcomes(self) -> list[tuple[str, np.ndarray]]:
        """Kinds of outcome with their rows: action, what changed how, reward, end."""
        for exact in (2, 1, 0):
            names = self._outcome_names(exact)
            kinds, kind, counts = np.unique(names, return_inverse=True, return_counts=True)
            if len(kinds) <= max(40, len(names) // 8):
                order = np.argsort(counts, kind="stable")
                return [(str(kinds[each]), kind == each) for each in order.tolist()]
        return []

    def _outcome_names(self, exact: int) -> list[str]:
        """Name for each row its kind of outcome: changes by value, by component, or not at all."""
        steps = self.steps
        actions = np.full(len(steps), "", object)
        for name, mask in self.action_values:
            actions[mask] = name
        few = self.reward_values is not None
        changed = steps.before != steps.after
        stays = ~steps.whole[None, :] & ~changed if steps.before.shape[1] <= MANY_CELLS else None
        names = []
        for row in range(len(steps)):
            told: list[object] = []
            cells = np.flatnonzero(changed[row] & steps.whole & ~self.by_itself).tolist()
            if steps.is_board and exact:
                pairs = [(steps.cell(row, i), steps.cell(row, i, 1)) for i in cells]
                told += [sorted(pairs) if exact == 2 else len(pairs)]
            elif exact:
                moved = steps.after[row] - steps.before[row]
                told += [(i, moved[i] if exact == 2 else 0) for i in cells]
            if stays is not None and exact:
                told.append(np.flatnonzero(stays[row]).tolist())
            reward = float(steps.rewards[row]) if few else None
            names.append(f"{actions[row]} {told} {reward} {bool(steps.ended[row])}")
        return names

    @cached_property
    def off_the_line(self) -> list[int]:
        """Rows that miss a linear law by far more than most do, of each component the farthest."""
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
        ratio = np.round(missed / scale, 3)
        found: dict[int, float] = {}
        for row, most in zip(ratio.argmax(axis=0).tolist(), ratio.max(axis=0), strict=True):
            if most > FAR_OFF:
                found[row] = max(found.get(row, 0.0), float(most))
        return sorted(found, key=lambda row: -found[row])

    @cached_property
    def contradictions(self) -> dict[bytes, list[int]]:
        """The rows of each situation that led to different outcomes."""
        groups: dict[bytes, list[int]] = {}
        for row, key in enumerate(self.steps.dataset.situations()):
            groups.setdefault(key, []).append(row)
        return {
            key: rows
            for key, rows in groups.items()
            if len(rows) > 1 and len({self.steps.line(row) for row in rows}) > 1
        }


def finite(values: np.ndarray) -> np.ndarray:
    """Put nothing where there is no finite number, so that one such row hides no other."""
    return np.where(np.isfinite(values), values, 0.0)


def outcome_counts(seen: dict[str, int]) -> str:
    """Write the outcomes of one action, with how often each came where there are several."""
    if len(seen) == 1:
        return next(iter(seen))
    most_first = sorted(seen.items(), key=lambda item: -item[1])
    return " or ".join(f"{outcome} ({count}x)" for outcome, count in most_first)
