"""Choices of recorded steps for a prompt: informative, rightly predicted, or similar steps.

`choose_steps` orders the steps of the section "Recorded transitions", `right_steps` returns steps
that a change of a program has to keep right, and `failing_steps` returns the step that made a
program fail.
"""

import re
from collections.abc import Iterable, Iterator, Set
from typing import NamedTuple

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_cli.problems.feedback.steps import (
    MANY_CELLS,
    MOST_EFFECTS,
    RecordedSteps,
    StepKinds,
    finite,
    number,
)
from cwm_cli.sandbox.failures import Failure, shown
from cwm_cli.text import clean, estimated_tokens

STRETCH = 6
"""Steps in a row; with fewer, the time step and the order of updates stay open."""
RARE = 0.05
"""Largest share of the steps of a rare outcome, which gets an example."""
MOST_KINDS = 8
"""Most rare outcomes, rewards or jumps that get an example."""
RIGHT_STEPS = "Predicted rightly; keep these steps right"
"""Beginning of the section on rightly predicted steps."""


class ChosenSteps(NamedTuple):
    """Steps to show for a reason; in a chain each step follows the one above."""

    reason: str
    rows: tuple[int, ...]
    chained: bool = False


def choose_steps(kinds: StepKinds, visible: Set[int], variant: int) -> Iterator[ChosenSteps]:
    """Yield steps to show, the most informative first.

    `visible` holds the rows that are shown so far; the caller adds to it between two steps.
    """
    steps = kinds.steps
    stretch = _stretch(kinds, variant)
    yield ChosenSteps(f"Steps in a row; {steps.chain_format}", stretch, chained=True)
    yield from _endings(kinds, variant)
    yield from _rare_rewards(kinds, variant)
    yield from _switches(kinds)
    yield from _rare_outcomes(kinds, variant)
    yield from _each_effect(kinds, visible)
    yield from _mode_changes(kinds, variant)
    yield from _jumps(kinds)
    yield from _extremes(kinds)
    if steps.is_board or not steps.whole.all():
        far = np.min([kinds.distances(row) for row in stretch], axis=0)
        if variant:
            far = np.minimum(far, kinds.distances(variant * 7 % len(steps)))
        for row in _farthest(kinds, far, min(200, len(steps))):
            yield ChosenSteps("Other steps, far from each other:", (row,))


def _farthest(kinds: StepKinds, far: np.ndarray, most: int) -> Iterator[int]:
    """Yield at most `most` rows, each at the largest distance to all rows before it.

    `far` are the distances of all rows to the rows that were chosen before.
    """
    for _ in range(most):
        row = int(far.argmax())
        if far[row] <= 0:
            return
        yield row
        far = np.minimum(far, kinds.distances(row))


def _mode_changes(kinds: StepKinds, variant: int) -> Iterator[ChosenSteps]:
    """Yield the steps just before and after six changes of a mode, for each pair of values."""
    steps, found = kinds.steps, 0
    if steps.is_board:
        return
    inside = np.flatnonzero(steps.follows[1:-1] & steps.follows[2:]) + 1
    # A component that changes more often is no mode. If all components are whole numbers, some
    # may be positions, so the bound is lower.
    most = (0.1 if steps.whole.all() else 0.5) * len(inside)
    for index in kinds.modes:
        before, after = steps.before[inside, index], steps.after[inside, index]
        changed = inside[before != after]
        if not 0 < len(changed) <= most:
            continue
        pairs = steps.before[changed, index], steps.after[changed, index]
        for one, other in sorted(set(zip(*(each.tolist() for each in pairs), strict=True))):
            rows = changed[(pairs[0] == one) & (pairs[1] == other)]
            row = int(rows[variant % len(rows)])
            name = f"{steps.names[index]} changes from {number(one)} to {number(other)}"
            reason = f"Steps just before and after {name} (in the second line):"
            yield ChosenSteps(reason, (row - 1, row, row + 1), chained=True)
            found += 1
            if found == 6:
                return


def _each_effect(kinds: StepKinds, visible: Set[int]) -> Iterator[ChosenSteps]:
    """Yield a step for each effect of an action and each action in a mode that is not shown yet."""
    effects = kinds.effects
    if not effects:
        return
    table = np.stack(effects, axis=1)
    reason = "Each action in each mode, and one step for each effect of an action:"
    tried = np.zeros(len(table), np.bool_)
    while True:
        left = ~table[sorted(visible)].any(axis=0)
        # The number of effects that no visible row shows.
        gain = np.where(tried, 0, table[:, left].sum(axis=1))
        row = int(gain.argmax())
        if not gain[row]:
            return
        tried[row] = True
        yield ChosenSteps(reason, (row,))


def _stretch(kinds: StepKinds, variant: int) -> tuple[int, ...]:
    """Return the most eventful steps in a row; another `variant` returns other steps."""
    steps = kinds.steps
    runs = [
        episode[place : place + STRETCH]
        for episode in steps.episodes
        for place in range(len(episode))
    ]
    longest = max(map(len, runs))
    runs = [run for run in runs if len(run) == longest]
    changed = (steps.before != steps.after).any(axis=1)
    worth = [
        changed[run].sum() + len(np.unique(steps.actions[run], axis=0)) - steps.ended[run].sum()
        for run in runs
    ]
    # A variant takes a stretch that shares no step with better ones.
    order = np.argsort(-np.array(worth, np.float64), kind="stable").tolist()
    apart: list[range] = []
    for place in order:
        if all(set(runs[place]).isdisjoint(other) for other in apart):
            apart.append(runs[place])
        if len(apart) > variant:
            break
    return tuple(apart[variant % len(apart)])


def _endings(kinds: StepKinds, variant: int) -> Iterator[ChosenSteps]:
    """Yield for each kind of end a step next to the nearest step that did not end."""
    steps = kinds.steps
    if not steps.ended.any() or steps.ended.all():
        return
    left = steps.ended.copy()
    for index in kinds.ending_components:
        for sign, word in ((1, "largest"), (-1, "smallest")):
            column = sign * steps.after[:, index]
            inner = int(np.where(steps.ended, -np.inf, column).argmax())
            beyond = left & (column > column[inner])
            if beyond.any():
                outer = int(np.where(beyond, column, np.inf).argmin())
                name = f"Ends beyond the {word} {steps.names[index]} of steps that did not end"
                yield ChosenSteps(f"{name}, one step on either side:", (outer, inner))
                left &= ~beyond
    # Ends that no component explains: each with the nearest step without an end.
    real = not steps.whole.all() and not steps.is_board
    after = finite(steps.after)
    reach = np.ptp(after, axis=0)
    after = after / np.where(reach > 0, reach, 1.0)
    free = ~steps.ended
    reason = "Ends, each above the most similar step that did not end:"
    for row in np.roll(np.flatnonzero(left), -variant)[:3].tolist():
        other = kinds.nearest(row, free)
        if real and free.any():
            # Ends depend on the observation after the step. Each pair shows another step.
            far = np.round(np.abs(after - after[row]).sum(axis=1), 9)
            other = int(np.argmin(np.where(free, far, np.inf)))
            free[other] = False
        yield ChosenSteps(reason, (row,) if other is None else (row, other))


def _rare_rewards(kinds: StepKinds, variant: int) -> Iterator[ChosenSteps]:
    """Yield a pair of steps for each reward but the most frequent, then all steps with rare ones.

    A pair is a step with the reward and the nearest step without it.
    """
    if kinds.reward_values is None:
        return
    values, counts = kinds.reward_values
    for place in np.argsort(counts, kind="stable")[:-1][:MOST_KINDS].tolist():
        mask = kinds.steps.rewards == values[place]
        found = kinds.threshold(mask, ~mask) if mask.sum() > 1 else None
        if found:
            words, *rows = found
            reason = f"Reward {number(values[place])}: {words}. One step on either side:"
            yield ChosenSteps(reason, tuple(rows))
        else:
            yield from _pairs(kinds, "Rare rewards", mask, mask, variant)
    for value, count in zip(values, counts, strict=True):
        if 1 < count <= MOST_KINDS:  # each step with a rare reward weighs much in the score
            rows = np.flatnonzero(kinds.steps.rewards == value).tolist()
            yield from (ChosenSteps(f"More with reward {number(value)}:", (row,)) for row in rows)


def _pairs(
    kinds: StepKinds, name: str, mask: np.ndarray, alike: np.ndarray, variant: int
) -> Iterator[ChosenSteps]:
    """Yield one step of a mask and the most similar step that is not `alike`."""
    rows = np.flatnonzero(mask)
    if len(rows):
        row = int(rows[variant % len(rows)])
        other = kinds.nearest(row, ~alike)
        reason = f"{name}, each above the most similar step with another result:"
        yield ChosenSteps(reason, (row,) if other is None else (row, other))


def _rare_outcomes(kinds: StepKinds, variant: int) -> Iterator[ChosenSteps]:
    """Yield a step of each rare outcome next to the most similar step of the same action."""
    steps = kinds.steps
    most = max(2, RARE * len(steps))
    rare = [m for _, m in kinds.outcomes if m.sum() <= most and not steps.ended[m].any()]
    for mask in rare[:MOST_KINDS]:
        row = int(np.flatnonzero(mask)[variant % int(mask.sum())])
        other = ~(steps.actions == steps.actions[row]).all(axis=1) & bool(kinds.action_values)
        yield from _pairs(kinds, "Rare outcomes", mask, mask | other, variant)


def _switches(kinds: StepKinds) -> Iterator[ChosenSteps]:
    """Yield the steps on either side of a threshold that switches a whole-numbered component."""
    steps = kinds.steps
    if steps.whole.all() or steps.is_board:
        return
    for index in np.flatnonzero(steps.whole).tolist()[:MOST_EFFECTS]:
        before, after = steps.before[:, index], steps.after[:, index]
        for action, taken in kinds.actions_or_any:
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
                    yield ChosenSteps(f"{name}: {words}. One step on either side:", tuple(rows))


def _jumps(kinds: StepKinds) -> Iterator[ChosenSteps]:
    """Yield steps that follow another law than most, with their neighbours if these are short."""
    steps = kinds.steps
    for row in kinds.off_the_line[:MOST_KINDS]:
        around = range(max(row - 1, 0), min(row + 2, len(steps)))
        if (
            len(steps.names) <= MOST_EFFECTS
            and len(around) == 3
            and steps.follows[row : row + 2].all()
        ):
            reason = (
                "Steps just before and after a departure from a linear law (in the second line):"
            )
            yield ChosenSteps(reason, tuple(around), chained=True)
        else:
            yield ChosenSteps("Steps that depart most from a linear law:", (row,))


def _extremes(kinds: StepKinds) -> Iterator[ChosenSteps]:
    """Yield the steps at the smallest and the largest value of each component."""
    steps = kinds.steps
    if steps.is_board:
        return
    reason = "Steps at the smallest or largest value of a component or the reward:"
    columns = [*steps.before.T[:MANY_CELLS], steps.rewards]
    for column in columns:
        if np.isfinite(column).all() and column.min() < column.max():
            yield ChosenSteps(reason, (int(column.argmin()),))
            yield ChosenSteps(reason, (int(column.argmax()),))


# --- steps for prompts that improve or fix a program


def right_steps(rows: Dataset, right: np.ndarray, tokens: int) -> str:
    """Return as many rightly predicted steps as fit, or "" if there are none.

    Steps that show an effect, a mode or an extreme that no step before them shows come first, then
    steps that lie far from each other.

    Args:
        rows: The rows that prompts may show.
        right: The mask of the rows that are right in every part.
        tokens: The allowance, in estimated tokens.
    """
    steps = RecordedSteps(rows)
    lines = [f"{RIGHT_STEPS} ({steps.line_format}):"]
    tokens -= estimated_tokens(f"{lines[0]}\n")
    board = None
    for row in _varied(StepKinds(steps), right):
        line = steps.line(row, like=board)
        tokens -= estimated_tokens(f"{line}\n")
        if tokens < 0:
            break
        board = row if board is None and steps.is_board else board
        lines.append(line)
    return clean("\n".join(lines), newlines=True) if len(lines) > 1 else ""


def _varied(kinds: StepKinds, right: np.ndarray) -> list[int]:
    """Return right rows, ordered by the variety that they add."""
    chosen = dict[int, None]()
    # Greedy set cover of the effects that right rows show.
    table = np.array(kinds.effects, np.bool_).reshape(-1, len(right)).T & right[:, None]
    left = table.any(axis=0)
    while left.any():
        row = int(table[:, left].sum(axis=1).argmax())
        chosen[row] = None
        left &= ~table[row]
    if not kinds.steps.is_board:
        for column in (*kinds.steps.before.T, kinds.steps.rewards):
            some = np.where(right & np.isfinite(column), column, np.nan)
            if not np.isnan(some).all() and np.nanmin(some) < np.nanmax(some):
                chosen |= dict.fromkeys((int(np.nanargmin(some)), int(np.nanargmax(some))))
    most = min(int(right.sum()), 200)
    far = np.where(right, np.inf, -np.inf)
    for row in chosen:
        far = np.minimum(far, kinds.distances(row))
    return [*chosen, *_farthest(kinds, far, most - len(chosen))]


def failing_steps(rows: Dataset, visible: np.ndarray, failure: Failure) -> str:
    """Return the recorded step of the call that failed, and similar steps, or "" if unknown.

    The message of the failure contains the arguments of the call. The result of a hidden row is
    never shown.

    Args:
        rows: All rows that the program was asked for.
        visible: The mask of the rows that prompts may show.
        failure: The failure of the program.
    """
    found = re.search(r"when asked for (.*)", failure.message)
    if found is None or not visible.any():
        return ""
    call = found[1].strip()
    memory = call.startswith("reset(")
    steps = RecordedSteps(rows)
    failed = list(_find_failed(steps, call))
    if not failed:
        return ""
    kinds, shape = StepKinds(steps), f"({steps.line_format})"
    known = [row for row in failed if visible[row]]
    different = len({steps.line(row) for row in failed})
    lines: list[str] = []
    if not known:
        lines.append("The call that failed belongs to a recorded step that is not shown.")
    elif memory:
        lines.append(
            "The recorded episode up to the step that failed (observation | action | reward):"
        )
        lines += steps.chain(steps.up_to(known[0], 12))
    else:
        cut = "" if different == 1 else f", one of {different} that the error message may mean"
        lines += [f"The recorded step that failed{cut} {shape}:", steps.line(known[0])]
    free = visible.copy()
    free[failed] = False
    near: list[int] = []
    while not memory and len(near) < 3 and (row := kinds.nearest(failed[0], free)) is not None:
        near.append(row)
        free[row] = False
    if near:
        lines.append(f"Similar recorded steps {shape}:")
        lines += [steps.line(row, like=known[0] if known else None) for row in near]
    return clean("\n".join(lines), newlines=True)


def _find_failed(steps: RecordedSteps, call: str) -> Iterator[int]:
    """Yield the rows that a call may be about, from the arguments in its description.

    The call is `set_state` and `step`, or `reset` and the steps of an episode.
    """
    rows = steps.dataset
    # Each row that the call may be about, and the row whose observation starts the call.
    candidates: Iterable[tuple[int, int]]
    if memory := call.startswith("reset("):
        count = re.search(r", (\d+) steps? with correct", call)
        place = int(count[1]) if count else 0
        candidates = [(run[place], run[0]) for run in steps.episodes if place < len(run)]
    else:
        candidates = ((row, row) for row in range(len(rows)))
    for row, first in candidates:
        action = rows.action_space.unpack("actions", rows.columns, row)
        if call.endswith(f"({shown(action)})"):
            observation = rows.observation_space.unpack("observations", rows.columns, first)
            given = shown(observation)
            if call.startswith(f"reset({given})" if memory else f"set_state({given}) and "):
                yield row
