"""What recorded steps say about an environment, for whoever writes a program of it.

All distinct steps where they are few enough, else a few that are chosen for what they teach: a
stretch of an episode, ends, rare rewards and rare outcomes each beside the step most like it,
extremes. Around them stand counts and ranges, what did not end, and what no step shows.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, combinations
from typing import NamedTuple

import numpy as np

from cwm_cli.data.dataset import VALID, Dataset
from cwm_cli.data.spaces import Columns
from cwm_cli.evaluation import Metric
from cwm_cli.evaluation.gaps import gaps
from cwm_cli.problems.feedback.examples import documented_names
from cwm_cli.problems.feedback.steps import MANY_CELLS, RecordedSteps, number
from cwm_cli.text import clean, estimated_tokens, share

STRETCH = 6
"""Steps in a row that are shown: with fewer, time step and order of update stay open."""
MOST_ROWS = 24
"""Steps that are chosen beside the stretch: what more would show was seldom missed."""
DOCUMENTED, SPARED = 300, 0.6
"""From so many tokens on a description says rules that steps would otherwise have to show: this
share of the tokens is then spared, but for a stretch and a pair, which are shown where they fit."""
FEW_REWARDS = 20
"""With no more values than this each is counted, as the score weighs them."""
RARE = 0.05
"""An outcome that no more than this share of the steps has is worth a step of its own."""
MOST_KINDS = 8
"""Kinds of outcome that have a step of their own; rewards, ends and jumps have their own too."""
FAR_OFF = 12.0
"""How many times the median error of a linear law a step misses it by where another law acts:
smooth curvature stays well below."""
MOST_EFFECTS = 6
"""Outcomes of an action that are counted, the most frequent first."""
NEAR_MISSES = 3
"""Ends that no one component tells which are shown: a region of two has to be told from outside."""
MOST_PLACES = 10
"""Places at which a component changes otherwise than elsewhere, such as walls, that are listed."""
FACTS = 0.45
"""Share of the tokens that words about all steps may take; steps take the rest."""
WIDE = 6
"""An observation that takes more than one in so many of all tokens is shown in part."""

HEAD = "## What was recorded"


class StepGroup(NamedTuple):
    """Steps that are shown for one reason, and the lines that show them."""

    reason: str
    rows: tuple[int, ...]
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Evidence:
    """What steps say: sentences on all of them, and those that are shown.

    `complete` says that every distinct step is shown. `rows` of the groups are those of the
    dataset that it was made of.
    """

    facts: tuple[str, ...]
    groups: tuple[StepGroup, ...]
    complete: bool

    @property
    def rows(self) -> tuple[int, ...]:
        """The rows that are shown, in the order in which they stand."""
        return tuple(row for group in self.groups for row in group.rows)

    def words(self) -> str:
        """Write all of it as a section of a prompt; what matters least stands last."""
        blocks = ["\n".join(self.facts)]
        blocks += ["\n".join([group.reason, *group.lines]) for group in self.groups]
        return clean("\n\n".join([HEAD, *filter(None, blocks)]), newlines=True)


def evidence(
    rows: Dataset, metric: Metric, description: str = "", *, tokens: int = 2000, variant: int = 0
) -> str:
    """Say in about so many tokens what steps show; nothing where there are none of either.

    Another `variant` chooses other steps of equal value where not all are shown.
    """
    if tokens <= 0 or not len(rows):
        return ""
    return gathered(rows, metric, description, tokens=tokens, variant=variant).words()


def gathered(
    rows: Dataset, metric: Metric, description: str = "", *, tokens: int = 2000, variant: int = 0
) -> Evidence:
    """Gather what `evidence` says."""
    steps = RecordedSteps(rows)
    documented = documented_names(description, rows.observation_space)
    kinds = StepKinds(steps)
    for complete in (True, False):
        facts = _facts(kinds, metric, documented, complete=complete)
        facts = _fitting(facts, int(tokens * FACTS))
        room = tokens - estimated_tokens("\n".join([HEAD, "", *facts]))
        if complete and (every := all_steps(steps, room)) is not None:
            return Evidence(tuple(facts), every, complete=True)
    spare = int(SPARED * tokens) if estimated_tokens(description) >= DOCUMENTED else 0
    return Evidence(tuple(facts), tuple(_chosen(kinds, room, spare, variant)), complete=False)


def _fitting(lines: Sequence[str], tokens: int) -> list[str]:
    """Keep the lines that fit, those first that stand first."""
    kept: list[str] = []
    for line in lines:
        tokens -= estimated_tokens(f"{line}\n")
        if tokens >= 0 or not kept:
            kept.append(line)
    return kept


# --- all steps


def all_steps(steps: RecordedSteps, tokens: int) -> tuple[StepGroup, ...] | None:
    """Show every distinct step, in the shorter of two ways; None where neither fits."""
    distinct = len(set(steps.dataset.situations()))
    if distinct * estimated_tokens(steps.action(0)) > tokens:
        return None
    ways = [_by_episode(steps)] if steps.follows.mean() > 1 / 2 else []
    if bool(steps.whole.all()) and not steps.is_board:
        ways.append([_by_observation(steps)])
    sizes = [sum(estimated_tokens("\n".join(g.lines)) for g in way) for way in ways]
    fitting = [(size, place) for place, size in enumerate(sizes) if size <= tokens]
    return tuple(ways[min(fitting)[1]]) if fitting else None


def _by_episode(steps: RecordedSteps) -> list[StepGroup]:
    """Show each episode from its first step to its last."""
    starts = np.flatnonzero(~steps.follows).tolist()
    groups = []
    for place, (start, stop) in enumerate(zip(starts, [*starts[1:], len(steps)], strict=True)):
        rows = tuple(range(start, stop))
        head = f"Every step, in order; {_order(steps)}" if not place else ""
        groups.append(StepGroup(head or "Another episode:", rows, tuple(steps.chain(rows))))
    return groups


def _order(steps: RecordedSteps) -> str:
    """Say what stands in a line of a chain."""
    if steps.is_board:
        return "a line but for the first is: action | cells that changed | reward."
    return "a line is: observation | action | reward, and the next one begins with what followed."


def _by_observation(steps: RecordedSteps) -> StepGroup:
    """Show what each action led to at each observation, counted where it differed."""
    values, counts = np.unique(steps.rewards, return_counts=True)
    usual = values[np.argmax(counts)]
    _, first = np.unique(steps.before, axis=0, return_index=True)
    told: dict[str, dict[str, dict[str, int]]] = {steps.observation(row): {} for row in first}
    for row in sorted(range(len(steps)), key=lambda row: tuple(steps.actions[row])):
        outcome = "same" if _same(steps, row) else steps.observation(row, after=True)
        if steps.rewards[row] != usual:
            outcome += f" reward {number(steps.rewards[row])}"
        outcome += " ended" if steps.ended[row] else ""
        if steps.dataset.has_valid_actions and not steps.ended[row]:
            valid = steps.dataset.action_space.masked(steps.dataset.columns[VALID][row])
            outcome += f" valid {','.join(map(str, valid))}"
        seen = told[steps.observation(row)].setdefault(steps.action(row), {})
        seen[outcome] = seen.get(outcome, 0) + 1
    lines = [
        f"{text}: " + "; ".join(f"{action}>{_counted(seen)}" for action, seen in acts.items())
        for text, acts in told.items()
    ]
    head = (
        "Every distinct step, by observation; action>next observation, with reward "
        f"{number(usual)} and no end unless said:"
    )
    return StepGroup(head, tuple(range(len(steps))), tuple(lines))


def _same(steps: RecordedSteps, row: int) -> bool:
    """Whether a step changes nothing; short observations are rather written."""
    return steps.before.shape[1] > 1 and bool((steps.before[row] == steps.after[row]).all())


def _counted(seen: dict[str, int]) -> str:
    """Write the outcomes of one action, with how often each came where there are several."""
    if len(seen) == 1:
        return next(iter(seen))
    most_first = sorted(seen.items(), key=lambda item: -item[1])
    return " or ".join(f"{outcome} ({count}x)" for outcome, count in most_first)


# --- what kinds of steps there are


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
            values = _finite(values)
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
        targets = [_finite(steps.after[:, real]) - _finite(steps.before[:, real])]
        targets += [] if self.reward_values else [_finite(steps.rewards[:, None])]
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


def _finite(values: np.ndarray) -> np.ndarray:
    """Put nothing where there is no finite number, so that one such row hides no other."""
    return np.where(np.isfinite(values), values, 0.0)


# --- which steps are shown


class ChosenSteps(NamedTuple):
    """Steps to show for a reason; in a chain each follows the one above."""

    reason: str
    rows: tuple[int, ...]
    chained: bool = False


def _chosen(kinds: StepKinds, tokens: int, spare: int, variant: int) -> Iterator[StepGroup]:
    """Yield as many chosen steps as fit, by the reason for which they are shown.

    So many tokens are to `spare` but for a stretch and a pair.
    """
    steps, shown = kinds.steps, set[int]()
    groups: dict[str, StepGroup] = {}
    chosen, board = 0, None
    wide = not steps.is_board and estimated_tokens(steps.observation(0)) > tokens / WIDE
    part = max(0, tokens - spare // 2)
    for reason, rows, chained in _choices(kinds, variant):
        while chained and not wide and len(rows) > 2:
            if estimated_tokens("\n".join(steps.chain(rows))) <= tokens:
                break
            rows = rows[:-1]
        if wide:
            lines = _in_part(steps, rows, part, chained=chained)
        elif chained:
            lines = steps.chain(rows)
            board = rows[0]
        else:
            lines = [steps.line(row, like=board) for row in rows]
        if rows[0] in shown or (chosen and not chained and chosen + len(rows) > MOST_ROWS):
            continue
        cost = estimated_tokens("\n".join(["", *lines]))
        cost += 0 if reason in groups else estimated_tokens(f"{reason}\n\n")
        if cost > tokens - (spare if chosen else 0):
            continue
        tokens -= cost
        chosen += 0 if chained else len(set(rows) - shown)
        shown |= set(rows)
        known = groups.get(reason, StepGroup(reason, (), ()))
        groups[reason] = StepGroup(reason, known.rows + tuple(rows), known.lines + tuple(lines))
    yield from groups.values()
    if bool(steps.whole.all()) and not steps.is_board:
        yield from _more_observations(steps, tokens - spare, variant)


def _more_observations(steps: RecordedSteps, tokens: int, variant: int) -> Iterator[StepGroup]:
    """Yield what was recorded at as many observations as fit, spread evenly."""
    every = _by_observation(steps)
    head = every.reason.replace("Every distinct step", "More steps")
    costs = np.array([estimated_tokens(f"{line}\n") for line in every.lines])
    room = tokens - estimated_tokens(f"{head}\n\n\n")
    for count in range(len(costs), 2, -1):
        places = np.linspace(0, len(costs) - 1, count).astype(int)
        places = np.sort((places + variant) % len(costs))
        if costs[places].sum() <= room:
            _, which = np.unique(steps.before, axis=0, return_inverse=True)
            rows = np.flatnonzero(np.isin(which.reshape(-1), places)).tolist()
            yield StepGroup(head, tuple(rows), tuple(every.lines[place] for place in places))
            return


def _in_part(steps: RecordedSteps, rows: Sequence[int], tokens: int, *, chained: bool) -> list[str]:
    """Show some components of steps whose observations are too wide: those that change most."""
    often = (steps.before != steps.after).mean(axis=0)
    most = max(2, tokens // 2 // STRETCH // 7)  # about 7 tokens for a number
    cells = sorted(np.argsort(-often, kind="stable")[:most].tolist())
    lines = [f"(of {len(steps.names)} components {' '.join(steps.names[i] for i in cells)})"]
    for row in rows:
        before, after = (",".join(steps.cell(row, i, at) for i in cells) for at in (0, 1))
        parts = [before, steps.action(row), *([] if chained else [after]), steps.outcome(row)]
        lines.append(" | ".join(parts))
    return [*lines, after] if chained else lines


def _choices(kinds: StepKinds, variant: int) -> Iterator[ChosenSteps]:
    """Yield what is worth showing, the most telling first."""
    steps = kinds.steps
    stretch = _stretch(kinds, variant)
    yield ChosenSteps(f"Steps in a row; {_order(steps)}", stretch, chained=True)
    yield from _endings(kinds, variant)
    yield from _rare_rewards(kinds, variant)
    yield from _all_rare(kinds)
    yield from _switches(kinds)
    yield from _rare_outcomes(kinds, variant)
    yield from _jumps(kinds)
    yield from _extremes(kinds)
    if steps.is_board or not steps.whole.all():
        yield from _spread(kinds, stretch, variant)


def _stretch(kinds: StepKinds, variant: int) -> tuple[int, ...]:
    """Return steps that follow each other in which the most happens; `variant` takes others."""
    steps = kinds.steps
    runs, start = [], 0
    for row in range(1, len(steps) + 1):
        if row == len(steps) or not steps.follows[row]:
            runs += [range(first, min(first + STRETCH, row)) for first in range(start, row)]
            start = row
    longest = max(map(len, runs))
    runs = [run for run in runs if len(run) == longest]
    changed = (steps.before != steps.after).any(axis=1)
    worth = [
        changed[run].sum() + len(np.unique(steps.actions[run], axis=0)) - steps.ended[run].sum()
        for run in runs
    ]
    order = np.argsort(-np.array(worth, np.float64), kind="stable").tolist()
    apart: list[range] = []
    for place in order:
        if all(set(runs[place]).isdisjoint(other) for other in apart):
            apart.append(runs[place])
        if len(apart) > variant:
            break
    return tuple(apart[variant % len(apart)])


def _endings(kinds: StepKinds, variant: int) -> Iterator[ChosenSteps]:
    """Yield for each kind of end a step beside the nearest that went on."""
    steps = kinds.steps
    if not steps.ended.any() or steps.ended.all():
        return
    left = steps.ended.copy()
    for index in kinds.ending_components:
        for sign, word in ((1, "most"), (-1, "least")):
            column = sign * steps.after[:, index]
            inner = int(np.where(steps.ended, -np.inf, column).argmax())
            beyond = left & (column > column[inner])
            if beyond.any():
                outer = int(np.where(beyond, column, np.inf).argmin())
                told = f"Ends beyond the {word} that {steps.names[index]} was without an end"
                yield ChosenSteps(f"{told}, on either side:", (outer, inner))
                left &= ~beyond
    yield from _near_misses(kinds, left, variant)


def _near_misses(kinds: StepKinds, ends: np.ndarray, variant: int) -> Iterator[ChosenSteps]:
    """Yield ends that no one component tells, each beside what came nearest to it and went on."""
    steps, rows = kinds.steps, np.flatnonzero(ends)
    if not len(rows):
        return
    real = ~steps.whole.all() and not steps.is_board
    after = _finite(steps.after)
    reach = np.ptp(after, axis=0)
    after = after / np.where(reach > 0, reach, 1.0)
    free = ~steps.ended
    for row in np.roll(rows, -variant)[:NEAR_MISSES].tolist():
        other = kinds.nearest(row, free)
        if real and free.any():
            far = np.round(np.abs(after - after[row]).sum(axis=1), 9)
            other = int(np.argmin(np.where(free, far, np.inf)))
            free[other] = False
        told = "Ends, each above the step most like it that went on:"
        yield ChosenSteps(told, (row,) if other is None else (row, other))


def _rare_rewards(kinds: StepKinds, variant: int) -> Iterator[ChosenSteps]:
    """Yield for each value of the reward but the most frequent a step beside the nearest other."""
    if kinds.reward_values is None:
        return
    values, counts = kinds.reward_values
    for place in np.argsort(counts, kind="stable")[:-1][:MOST_KINDS].tolist():
        mask = kinds.steps.rewards == values[place]
        found = kinds.threshold(mask, ~mask) if mask.sum() > 1 else None
        if found:
            words, *rows = found
            told = f"Reward {number(values[place])}: {words}"
            yield ChosenSteps(f"{told}. On either side:", tuple(rows))
        else:
            yield from _pairs(kinds, "Rare rewards", mask, mask, variant)


def _all_rare(kinds: StepKinds) -> Iterator[ChosenSteps]:
    """Yield every step with a reward that came so seldom that each weighs much."""
    if kinds.reward_values is None:
        return
    for value, count in zip(*kinds.reward_values, strict=True):
        if 1 < count <= MOST_KINDS:
            rows = np.flatnonzero(kinds.steps.rewards == value).tolist()
            yield from (ChosenSteps(f"All with reward {number(value)}:", (row,)) for row in rows)


def _pairs(
    kinds: StepKinds, name: str, mask: np.ndarray, alike: np.ndarray, variant: int
) -> Iterator[ChosenSteps]:
    """Yield one step of a mask and the one most like it that is not of its kind, if there are."""
    rows = np.flatnonzero(mask)
    if len(rows):
        row = int(rows[variant % len(rows)])
        other = kinds.nearest(row, ~alike)
        told = f"{name}, each above the step most like it that is another:"
        yield ChosenSteps(told, (row,) if other is None else (row, other))


def _rare_outcomes(kinds: StepKinds, variant: int) -> Iterator[ChosenSteps]:
    """Yield a step of each rare kind of outcome beside the most like one of the same action."""
    steps = kinds.steps
    most = max(2, RARE * len(steps))
    rare = [m for _, m in kinds.outcomes if m.sum() <= most and not steps.ended[m].any()]
    for mask in rare[:MOST_KINDS]:
        row = int(np.flatnonzero(mask)[variant % int(mask.sum())])
        other = ~(steps.actions == steps.actions[row]).all(axis=1) & bool(kinds.action_values)
        yield from _pairs(kinds, "Rare outcomes", mask, mask | other, variant)


def _switches(kinds: StepKinds) -> Iterator[ChosenSteps]:
    """Yield the steps on either side of what switches a component between whole values."""
    steps = kinds.steps
    if steps.whole.all() or steps.is_board:
        return
    everywhere = [("", np.ones(len(steps), np.bool_))]
    for index in np.flatnonzero(steps.whole).tolist()[:MOST_EFFECTS]:
        before, after = steps.before[:, index], steps.after[:, index]
        for action, taken in kinds.action_values or everywhere:
            for value in np.unique(before):
                alike = taken & (before == value)
                moved = alike & (after != value)
                if not moved.any() or not (alike & ~moved).any():
                    continue
                found = kinds.threshold(moved, alike & ~moved, after=False)
                if found:
                    words, *rows = found
                    name = f"{steps.names[index]} changes from {number(value)}"
                    name += f" under action {action}" if action else ""
                    yield ChosenSteps(f"{name}: {words}. On either side:", tuple(rows))


def _jumps(kinds: StepKinds) -> Iterator[ChosenSteps]:
    """Yield steps where another law acts than in most."""
    for row in kinds.off_the_line[:MOST_KINDS]:
        yield ChosenSteps("Steps that depart most from what a linear law says:", (row,))


def _extremes(kinds: StepKinds) -> Iterator[ChosenSteps]:
    """Yield the steps at the least and the largest value of each component."""
    steps = kinds.steps
    if steps.is_board:
        return
    reason = "Steps at the least or largest value of a component, or of the reward:"
    columns = [*steps.before.T[:MANY_CELLS], steps.rewards]
    for column in columns:
        if np.isfinite(column).all() and column.min() < column.max():
            yield ChosenSteps(reason, (int(column.argmin()),))
            yield ChosenSteps(reason, (int(column.argmax()),))


def _spread(kinds: StepKinds, shown: Sequence[int], variant: int) -> Iterator[ChosenSteps]:
    """Yield steps that lie far from each other, each as far as can be from those before it."""
    count = len(kinds.steps)
    far = np.min([kinds.distances(row) for row in shown], axis=0)
    far = np.minimum(far, kinds.distances(variant * 7 % count)) if variant else far
    for _ in range(min(MOST_ROWS, count)):
        row = int(np.argmax(far))
        if far[row] <= 0:
            return
        yield ChosenSteps("Others, far from each other:", (row,))
        far = np.minimum(far, kinds.distances(row))


# --- sentences on all steps


def _facts(
    kinds: StepKinds, metric: Metric, documented: Sequence[str], *, complete: bool
) -> list[str]:
    """Say what holds over all steps, the most important first."""
    steps = kinds.steps
    episodes = len(np.unique(steps.dataset.columns["episodes"]))
    distinct = len(set(steps.dataset.situations()))
    told = "all of them stand" if complete else "some of them stand"
    alike = f" ({distinct} different situations)" if distinct < len(steps) else ""
    line = "cells that changed" if steps.is_board else "next observation"
    lines = [
        f"{len(steps)} steps of {episodes} episodes{alike}, {told} below; where they and the "
        "description disagree, they are right."
        + ("" if complete else f" A line is: observation | action | {line} | reward."),
        _on_rewards(kinds),
        _on_ends(kinds),
        *_on_chance(kinds, metric, counted=complete and bool(steps.whole.all())),
    ]
    if not complete:
        lines += _on_components(steps, documented)
        lines += _on_effects(kinds)
    missing = gaps(steps.dataset, steps.names)
    if missing:
        lines.append(f"What they do not show: {' '.join(missing)}")
    return lines


def _on_rewards(kinds: StepKinds) -> str:
    """Count the values of the reward, or give its range."""
    rewards = kinds.steps.rewards
    if kinds.reward_values is None:
        low, middle, high = np.quantile(rewards, [0, 0.5, 1])
        return f"Rewards: {low:.6g} to {high:.6g}, median {middle:.6g}, many values."
    pairs = zip(*kinds.reward_values, strict=True)
    listed = ", ".join(f"{number(value)} ({count}x)" for value, count in pairs)
    return f"Rewards: {listed}."


def _on_ends(kinds: StepKinds) -> str:
    """Say how many steps ended, and where the others went without an end."""
    steps = kinds.steps
    count = int(steps.ended.sum())
    line = f"Ends: {count} of {len(steps)} steps ended."
    inner = steps.after[~steps.ended]
    told = [
        f"{steps.names[i]} {inner[:, i].min():.5g} to {inner[:, i].max():.5g}"
        for i in kinds.ending_components
    ]
    return f"{line} Without an end were {', '.join(told)}; ends lie beyond." if told else line


def _on_chance(kinds: StepKinds, metric: Metric, *, counted: bool) -> Iterator[str]:
    """Say that equal situations led to different outcomes, and the best that can be reached.

    The outcomes of some are listed unless a table has all of them `counted`.
    """
    steps, odd = kinds.steps, kinds.contradictions
    if not odd:
        return
    best = metric.score(likeliest(steps.dataset, metric), steps.dataset).value
    yield (
        f"Chance, or what the observation hides: {len(odd)} pairs of observation and action were "
        f"recorded with different outcomes. The best that one answer for each can score on these "
        f"steps is {share(best, 4)}: predict the outcome that weighs most, and stop there."
    )
    most_first = sorted(odd.values(), key=lambda rows: (-len(rows), rows))
    for rows in most_first[: 0 if counted else MOST_EFFECTS]:
        seen: dict[str, int] = {}
        for row in rows:
            after = steps.changes(row) if steps.is_board else steps.observation(row, after=True)
            outcome = f"{after} {steps.outcome(row)}"
            seen[outcome] = seen.get(outcome, 0) + 1
        yield f"- {steps.observation(rows[0])} | {steps.action(rows[0])} > {_counted(seen)}"


def likeliest(rows: Dataset, metric: Metric) -> Columns:
    """Answer every situation with what weighs most among its recorded outcomes, part by part."""
    weights = metric.weights(rows)
    going = ~rows.columns["terminations"]
    groups: dict[bytes, list[int]] = {}
    for row, key in enumerate(rows.situations()):
        groups.setdefault(key, []).append(row)
    names = [leaf.name for leaf in rows.observation_space.leaves("next_observations")]
    names += ["rewards", "terminations", *([VALID] if rows.has_valid_actions else [])]
    answers = {name: rows.columns[name].copy() for name in names}
    for members in (group for group in groups.values() if len(group) > 1):
        for name, column in answers.items():
            of_all = name in ("rewards", "terminations")
            parts = 3 + (VALID in answers)
            value = np.where(going[members], 1 / parts, 1 / 2 if of_all else 0.0)
            flat = rows.columns[name][members].reshape(len(members), -1)
            chosen = [_heaviest(cell, weights[members] * value) for cell in flat.T]
            column[members] = np.array(chosen, column.dtype).reshape(column.shape[1:])
    return answers


def _heaviest(values: np.ndarray, weights: np.ndarray) -> object:
    kinds, kind = np.unique(values, return_inverse=True)
    return kinds[np.argmax(np.round(np.bincount(kind.reshape(-1), weights), 12))]


def _on_components(steps: RecordedSteps, documented: Sequence[str]) -> Iterator[str]:
    """Give the range of each component and how much it changes in a step."""
    if steps.is_board or bool(steps.is_text.all()):
        values, counts = np.unique(
            [steps.cell(row, i) for row in range(0, len(steps), 5) for i in range(len(steps.names))]
            if steps.is_text.any()
            else [number(value) for value in steps.before.reshape(-1)],
            return_counts=True,
        )
        order = np.argsort(-counts, kind="stable")[: 4 * MOST_EFFECTS]
        listed = ", ".join(str(values[i]) for i in order)
        yield f"Cells of the {len(steps.names)} hold, the most frequent first: {listed}."
        return
    if steps.dataset.observation_space.kind == "discrete":
        return
    yield "Components of the observation: range; the size of a change, median and largest."
    indices = np.flatnonzero(~steps.is_text)
    for index in indices[:MANY_CELLS].tolist():
        before, after = steps.before[:, index], steps.after[:, index]
        values = np.unique(np.concatenate([before, after]))
        change = np.abs(after - before)[~steps.ended]
        name = documented[index] if documented else ""
        line = f"- {steps.names[index]} {name}".rstrip()
        if len(values) <= MOST_EFFECTS:
            line += f": {', '.join(number(value) for value in values)}"
        else:
            line += f": {values[0]:.5g} to {values[-1]:.5g}"
        if len(change) and change.max() > 0:
            line += f"; {np.median(change):.3g}, {change.max():.3g}"
            still = int((change == 0).sum())
            line += f"; no change in {still}" if still > 0 else ""
        yield line
    if len(indices) > MANY_CELLS:
        rest = np.concatenate([steps.before[:, indices[MANY_CELLS:]]])
        yield f"- {len(indices) - MANY_CELLS} more: {rest.min():.3g} to {rest.max():.3g}"


def _on_effects(kinds: StepKinds) -> Iterator[str]:
    """Say what changed the components that take whole values, and where it did otherwise."""
    steps = kinds.steps
    if steps.is_board:
        yield from _on_cells(kinds)
    elif len(steps.names) <= MANY_CELLS:
        lines = [line for i in np.flatnonzero(steps.whole).tolist() for line in _changes(kinds, i)]
        if lines:
            yield "Changes of whole-numbered components, where nothing ended:"
            yield from lines


def _on_cells(kinds: StepKinds) -> Iterator[str]:
    """Count what each action did to the cells of a board."""
    steps = kinds.steps
    if steps.is_text.all():
        return
    lines = []
    cells = np.flatnonzero(steps.whole)
    for name, mask in kinds.action_values or [("any", np.ones(len(steps), np.bool_))]:
        seen: dict[str, int] = {}
        for row in np.flatnonzero(mask & ~steps.ended).tolist():
            effect = _effect(steps, row, cells)
            seen[effect] = seen.get(effect, 0) + 1
        most = sorted(seen.items(), key=lambda item: -item[1])
        told = ", ".join(f"{effect} ({count}x)" for effect, count in most[:MOST_EFFECTS])
        told = told or "each step ended"
        more = f", {len(most) - MOST_EFFECTS} more kinds" if len(most) > MOST_EFFECTS else ""
        lines.append(f"- action {name}: {told}{more}")
    yield "What actions did to cells, where nothing ended:"
    yield from lines


def _effect(steps: RecordedSteps, row: int, cells: np.ndarray) -> str:
    """Say which cells a step changed to what, wherever they are."""
    changed = [i for i in cells.tolist() if steps.before[row, i] != steps.after[row, i]]
    pairs = sorted(f"{steps.cell(row, i)}>{steps.cell(row, i, 1)}" for i in changed)
    return " ".join(pairs[:MOST_EFFECTS]) or "nothing"


def _changes(kinds: StepKinds, index: int) -> Iterator[str]:
    """Yield what changed one component: under any action alike, or under each."""
    steps, name = kinds.steps, kinds.steps.names[index]
    going = ~steps.ended
    moved = steps.after[:, index] - steps.before[:, index]
    if not moved[going].any():
        return
    told, known = _told_change(kinds, moved, going)
    if known or not kinds.action_values:
        yield f"- {name} under any action: {told}"
        return
    listed = []
    for action, mask in kinds.action_values:
        if moved[mask & going].any():
            listed.append(f"{action}: {_told_change(kinds, moved, mask & going)[0]}")
    yield f"- {name} under action {'; '.join(listed)}"


def _told_change(kinds: StepKinds, moved: np.ndarray, rows: np.ndarray) -> tuple[str, bool]:
    """Say by how much a component changed in some rows, and where otherwise; whether that is known.

    It is where one or two components that take whole values decide it, in all rows.
    """
    steps = kinds.steps
    values, counts = np.unique(moved[rows], return_counts=True)
    order = np.argsort(-counts, kind="stable").tolist()
    usual = values[order[0]]
    if len(values) == 1:
        return _signed(usual), True
    if same := _same_as(steps, moved, rows):
        return same, True
    deciders = kinds.deciders(moved, rows)
    if not deciders:
        listed = [f"{_signed(values[i])} ({counts[i]}x)" for i in order[:MOST_EFFECTS]]
        more = [f"{len(values) - MOST_EFFECTS} more"] if len(values) > MOST_EFFECTS else []
        return ", ".join([*listed, *more]), False
    which = " ".join(steps.names[i] for i in deciders)
    told = [_signed(usual)]
    for place in sorted(order[1:]):
        there = np.unique(steps.before[rows & (moved == values[place])][:, deciders], axis=0)
        cells = ", ".join(" ".join(number(x) for x in cell) for cell in there)
        told.append(f"{_signed(values[place])} where {which} is {cells}")
    return ", but ".join(told), True


def _same_as(steps: RecordedSteps, moved: np.ndarray, rows: np.ndarray) -> str:
    """Name the component that another one changes by in all of some rows, if there is one."""
    for tense, values in (("", steps.before), ("next ", steps.after)):
        for index, column in enumerate(values[rows].T):
            for sign, change in (("+", column), ("-", -column)):
                if (moved[rows] == change).all():
                    return f"{sign}{tense}{steps.names[index]}"
    return ""


def _signed(change: float) -> str:
    """Write a change of a whole number."""
    return f"{change:+g}" if change else "same"
