"""What recorded steps say about an environment, for whoever writes a program of it.

All distinct steps where they are few enough, else a few that are chosen for what they teach: a
stretch of an episode, ends, rare rewards and rare outcomes each beside the step most like it,
extremes. Around them stand counts and ranges, what did not end, and what no step shows.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from cwm_cli.data.dataset import VALID, Dataset
from cwm_cli.envs.documented import documented_names
from cwm_cli.evaluation import Metric
from cwm_cli.problems.feedback.facts import facts_of
from cwm_cli.problems.feedback.kinds import MOST_EFFECTS, StepKinds, finite, outcome_counts
from cwm_cli.problems.feedback.steps import MANY_CELLS, RecordedSteps, number
from cwm_cli.text import clean, estimated_tokens

STRETCH = 6
"""Steps in a row that are shown: with fewer, time step and order of update stay open."""
MOST_ROWS = 24
"""Steps that are chosen beside the stretch: what more would show was seldom missed."""
DOCUMENTED, SPARED = 300, 0.6
"""From so many tokens on a description says rules that steps would otherwise have to show: this
share of the tokens is then spared, but for a stretch and a pair, which are shown where they fit."""
RARE = 0.05
"""An outcome that no more than this share of the steps has is worth a step of its own."""
MOST_KINDS = 8
"""Kinds of outcome that have a step of their own; rewards, ends and jumps have their own too."""
NEAR_MISSES = 3
"""Ends that no one component tells which are shown: a region of two has to be told from outside."""
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
    rows: Dataset,
    metric: Metric,
    description: str = "",
    *,
    tokens: int = 2000,
    variant: int = 0,
    uncertain: str = "",
) -> str:
    """Say in about so many tokens what steps show; nothing where there are none of either.

    Another `variant` chooses other steps of equal value where not all are shown. What is known of
    chance in them, or of what they hide, is `uncertain`.
    """
    if tokens <= 0 or not len(rows):
        return ""
    found = gathered(rows, metric, description, tokens=tokens, variant=variant, uncertain=uncertain)
    return found.words()


def gathered(
    rows: Dataset,
    metric: Metric,
    description: str = "",
    *,
    tokens: int = 2000,
    variant: int = 0,
    uncertain: str = "",
) -> Evidence:
    """Gather what `evidence` says."""
    steps = RecordedSteps(rows)
    documented = documented_names(description, rows.observation_space)
    kinds = StepKinds(steps)
    for complete in (True, False):
        facts = facts_of(kinds, metric, documented, complete=complete, uncertain=uncertain)
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
        f"{text}: " + "; ".join(f"{action}>{outcome_counts(seen)}" for action, seen in acts.items())
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
    after = finite(steps.after)
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
