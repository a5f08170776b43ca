"""Sentences on all recorded steps: counts, ranges, what did not end, what chance decides."""

from collections.abc import Iterator, Sequence

import numpy as np

from cwm_cli.data.dataset import VALID, Dataset
from cwm_cli.data.spaces import Columns
from cwm_cli.evaluation import Metric
from cwm_cli.evaluation.gaps import gaps
from cwm_cli.problems.feedback.kinds import MOST_EFFECTS, StepKinds, outcome_counts
from cwm_cli.problems.feedback.steps import MANY_CELLS, RecordedSteps, number
from cwm_cli.text import share


def facts_of(
    kinds: StepKinds,
    metric: Metric,
    documented: Sequence[str],
    *,
    complete: bool,
    uncertain: str = "",
) -> list[str]:
    """Say what holds over all steps, the most important first, with what is `uncertain` of them."""
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
        *_on_chance(kinds, metric, uncertain, counted=complete and bool(steps.whole.all())),
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


def _on_chance(kinds: StepKinds, metric: Metric, uncertain: str, *, counted: bool) -> Iterator[str]:
    """Say that equal situations led to different outcomes, and the best that can be reached.

    Where programs can say what is `uncertain` that is said instead. The outcomes of some are listed
    unless a table has all of them `counted`.
    """
    steps, odd = kinds.steps, kinds.contradictions
    if uncertain:
        yield uncertain
    elif odd:
        best = metric.score(likeliest(steps.dataset, metric), steps.dataset).value
        yield (
            f"Chance, or what the observation hides: {len(odd)} pairs of observation and action "
            "were recorded with different outcomes. The best that one answer for each can score "
            f"on these steps is {share(best, 4)}: predict the outcome that weighs most, and stop "
            "there."
        )
    most_first = sorted(odd.values(), key=lambda rows: (-len(rows), rows))
    for rows in most_first[: 0 if counted else MOST_EFFECTS]:
        seen: dict[str, int] = {}
        for row in rows:
            after = steps.changes(row) if steps.is_board else steps.observation(row, after=True)
            outcome = f"{after} {steps.outcome(row)}"
            seen[outcome] = seen.get(outcome, 0) + 1
        yield f"- {steps.observation(rows[0])} | {steps.action(rows[0])} > {outcome_counts(seen)}"


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
