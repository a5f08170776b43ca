"""Kinds of recorded steps: outcomes, effects, modes, nearest steps and unusual steps."""

from dataclasses import dataclass
from functools import cached_property
from itertools import chain, combinations

import numpy as np

from cwm_cli.problems.feedback.steps import MANY_CELLS, RecordedSteps, number

FEW_REWARDS = 20
"""Up to this many values of the reward are counted one by one, as the score weighs them."""
FAR_OFF = 12.0
"""A step whose error under a linear law is this many times the median error follows another law.
Smooth curvature stays well below."""
MOST_EFFECTS = 6
"""Number of effects of an action that are listed, the most frequent first."""
MOST_PLACES = 10
"""Number of exceptions listed, such as walls, at which a component changes in another way."""
FEW_MODES = 6
"""A whole-numbered component of at most this many values may be a mode."""


@dataclass(frozen=True)
class StepKinds:
    """Recorded steps, grouped by outcome, effect and mode."""

    steps: RecordedSteps

    @cached_property
    def reward_values(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Each value of the reward and its count, None if there are many."""
        values, counts = np.unique(self.steps.rewards, return_counts=True)
        return (values, counts) if len(values) <= FEW_REWARDS else None

    @cached_property
    def action_values(self) -> list[tuple[str, np.ndarray]]:
        """The rows of each action, empty if there are many actions."""
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
        """Observations and actions, scaled so that the range of each component is 1."""
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
        """Mask of the columns of `scaled` whose values are labels: any difference counts as 1."""
        space = self.steps.dataset.action_space
        acts = np.full(self.steps.actions.shape[1], not space.is_float)
        return np.concatenate([self.steps.is_text | self.steps.is_board, acts])

    def distances(self, row: int) -> np.ndarray:
        """Return the distance between the observation and action of each step and of one row."""
        apart = np.abs(self.scaled - self.scaled[row])
        far: np.ndarray = np.where(self.discrete, apart > 0, apart).sum(axis=1)
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
                place = place * (self.codes[:, other].max() + 1) + self.codes[rows, other]
            places = len(np.unique(place))
            if places < fewest and len(np.unique(place * (kinds.max() + 1) + kinds)) == places:
                odd = len(np.unique(place[kinds != np.bincount(kinds).argmax()]))
                if odd <= MOST_PLACES:
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
        """Components of two to `FEW_MODES` whole values."""
        able = np.flatnonzero(self.steps.whole).tolist()
        return [index for index in able if 0 < self.codes[:, index].max() < FEW_MODES]

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
        every = [("", np.ones(len(steps), np.bool_))]
        for _, taken in self.action_values or every:
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
                values, counts = np.unique(column[going], return_counts=True)
                most = values[np.argsort(-counts, kind="stable")][:MOST_EFFECTS]
                found += [going & (column == value) for value in most]
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
        ratio = np.round(missed / scale, 3)
        found: dict[int, float] = {}
        for row, most in zip(ratio.argmax(axis=0).tolist(), ratio.max(axis=0), strict=True):
            if most > FAR_OFF:
                found[row] = max(found.get(row, 0.0), float(most))
        return sorted(found, key=lambda row: -found[row])

    @cached_property
    def contradictions(self) -> dict[bytes, list[int]]:
        """The rows of each situation (observation and action) that led to different outcomes."""
        groups: dict[bytes, list[int]] = {}
        for row, key in enumerate(self.steps.dataset.situations()):
            groups.setdefault(key, []).append(row)
        return {
            key: rows
            for key, rows in groups.items()
            if len(rows) > 1 and len({self.steps.line(row) for row in rows}) > 1
        }


def finite(values: np.ndarray) -> np.ndarray:
    """Replace numbers that are not finite by 0, so that they do not distort distances."""
    return np.where(np.isfinite(values), values, 0.0)


def outcome_counts(seen: dict[str, int], *, always: bool = False) -> str:
    """Write the outcomes of one action, with counts if there are several, or `always`."""
    if len(seen) == 1 and not (always and max(seen.values()) > 1):
        return next(iter(seen))
    most_first = sorted(seen.items(), key=lambda item: -item[1])
    return " or ".join(f"{outcome} ({count}x)" for outcome, count in most_first)
