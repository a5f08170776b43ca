"""Facts about all recorded steps: counts, ranges, effects, ends, conflicts and gaps."""

from collections.abc import Iterator, Sequence

import numpy as np

from cwm_cli.data.dataset import VALID, Dataset
from cwm_cli.data.spaces import Columns
from cwm_cli.evaluation import Metric
from cwm_cli.evaluation.finding import ContractName
from cwm_cli.evaluation.missing_data import find_gaps
from cwm_cli.problems.feedback.steps import (
    MANY_CELLS,
    MOST_EFFECTS,
    RecordedSteps,
    StepKinds,
    number,
    rows_by_situation,
)
from cwm_cli.text import share
from cwm_cli.worlds.model import Predictions

RESULTS = ("next_observations", "rewards", "terminations", VALID)
"""The columns that a program predicts."""


def list_facts(
    kinds: StepKinds,
    metric: Metric,
    documented: Sequence[str],
    *,
    complete: bool,
    contract: ContractName = "plain",
) -> list[str]:
    """Return facts about all steps, the most important first.

    Args:
        kinds: The steps.
        metric: The metric that scores programs.
        documented: The names of the components in the documentation, if known.
        complete: Whether all distinct steps are listed below the facts.
        contract: The contract of the programs.
    """
    steps = kinds.steps
    episodes = len(np.unique(steps.dataset.columns["episodes"]))
    distinct = len(set(steps.dataset.situations()))
    alike = f" ({distinct} different pairs of observation and action)" * (distinct < len(steps))
    lines = [
        f"{len(steps)} steps of {episodes} episodes{alike}; {'all' if complete else 'some'} "
        "are listed below. If they contradict the description, the steps are right. Programs are "
        "checked on further steps."
        + ("" if complete or contract == "memory" else f" A line is: {steps.line_format}."),
        _on_rewards(kinds),
        _on_ends(kinds),
        *_on_conflicts(kinds, metric, contract),
    ]
    if not complete:
        lines += _on_components(steps, documented)
        lines += _on_effects(kinds)
    missing = find_gaps(steps.dataset, steps.names)
    if missing:
        lines.append(f"Not covered by these steps: {' '.join(missing)}")
    return lines


def _on_rewards(kinds: StepKinds) -> str:
    """Count the values of the reward, or give their range."""
    rewards = kinds.steps.rewards
    if kinds.reward_values is None:
        low, middle, high = np.quantile(rewards, [0, 0.5, 1])
        return f"Rewards: many values, {low:.6g} to {high:.6g}, median {middle:.6g}."
    pairs = zip(*kinds.reward_values, strict=True)
    listed = ", ".join(f"{number(value)} ({count}x)" for value, count in pairs)
    return f"Rewards: {listed}."


def _on_ends(kinds: StepKinds) -> str:
    """Count the ends, and give the ranges of components without an end."""
    steps = kinds.steps
    count = int(steps.ended.sum())
    line = f"Ends: {count} of {len(steps)} steps ended."
    inner = steps.after[~steps.ended]
    if not (chosen := kinds.ending_components):
        return line
    ranges = ", ".join(
        f"{steps.names[i]} {inner[:, i].min():.7g} to {inner[:, i].max():.7g}" for i in chosen
    )
    after = steps.after[steps.ended][:, chosen]
    low, high = inner[:, chosen].min(axis=0), inner[:, chosen].max(axis=0)
    outside = int(((after < low) | (after > high)).any(axis=1).sum())
    which = "all ends lie" if outside == count else f"{outside} of the ends lie"
    any_range = " at least one range" if len(chosen) > 1 else ""
    return f"{line} Next observations without an end: {ranges}; {which} outside{any_range}."


def _on_conflicts(kinds: StepKinds, metric: Metric, contract: ContractName) -> Iterator[str]:
    """Yield the number of conflicting situations, and the best score that can be reached."""
    steps, odd = kinds.steps, kinds.contradictions
    if not odd or contract == "memory":
        return
    if contract == "chance":
        best = best_frequencies(steps.dataset, metric)
        if best is not None:
            yield (
                "A program that returns the recorded frequencies as probabilities has a mean "
                f"log-likelihood of {best:.4g} nats on these steps, the highest possible. The true "
                "probabilities have a little less."
            )
        return
    score = metric.score(likeliest(steps.dataset, metric), steps.dataset).value
    yield (
        f"{len(odd)} pairs of observation and action were recorded with different outcomes: chance "
        "decides, or the observation hides something. One answer for each pair scores at most "
        f"{share(score, 4)} on these steps. Predict the outcome with the most weight, and do not "
        "try to exceed that score."
    )


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


def _on_components(steps: RecordedSteps, documented: Sequence[str]) -> Iterator[str]:
    """Yield the range of each component and the size of its changes."""
    if steps.is_board or bool(steps.is_text.all()):
        values, counts = np.unique(
            [steps.cell(row, i) for row in range(0, len(steps), 5) for i in range(len(steps.names))]
            if steps.is_text.any()
            else [number(value) for value in steps.before.reshape(-1)],
            return_counts=True,
        )
        order = np.argsort(-counts, kind="stable")[: 4 * MOST_EFFECTS]
        listed = ", ".join(str(values[i]) for i in order)
        yield f"Values of the {len(steps.names)} cells, the most frequent first: {listed}."
        return
    if steps.dataset.observation_space.kind == "discrete":
        return
    yield "Components of the observation: range; rounded size of a change (median, largest)."
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
            line += f": {values[0]:.7g} to {values[-1]:.7g}"
        if len(change) and change.max() > 0:
            line += f"; {np.median(change):.3g}, {change.max():.3g}"
            still = int((change == 0).sum())
            line += f"; unchanged in {still} steps" if still else ""
        yield line
    if len(indices) > MANY_CELLS:
        rest = np.concatenate([steps.before[:, indices[MANY_CELLS:]]])
        yield f"- {len(indices) - MANY_CELLS} more: {rest.min():.3g} to {rest.max():.3g}"


def _on_effects(kinds: StepKinds) -> Iterator[str]:
    """Yield the changes of whole-numbered components by action, with their exceptions."""
    steps = kinds.steps
    if not steps.is_board:
        few = len(steps.names) <= MANY_CELLS
        whole = np.flatnonzero(steps.whole).tolist() if few else []
        if lines := [line for index in whole for line in _changes(kinds, index)]:
            yield "Changes of whole-numbered components, in steps that did not end:"
            yield from lines
        return
    if steps.is_text.all():
        return
    yield "Effects of actions on cells, in steps that did not end:"
    for name, mask in kinds.action_values or [("any", np.ones(len(steps), np.bool_))]:
        effects, counts = np.unique(kinds.cell_effects[mask & ~steps.ended], return_counts=True)
        order = np.argsort(-counts, kind="stable").tolist()
        listed = ", ".join(f"{effects[i]} ({counts[i]}x)" for i in order[:MOST_EFFECTS])
        more = f", {len(order) - MOST_EFFECTS} more kinds" if len(order) > MOST_EFFECTS else ""
        yield f"- action {name}: {listed or 'each step ended'}{more}"


def _changes(kinds: StepKinds, index: int) -> Iterator[str]:
    """Yield the changes of one component: equal under every action, or for each action."""
    steps, name = kinds.steps, kinds.steps.names[index]
    going = ~steps.ended
    moved = steps.after[:, index] - steps.before[:, index]
    if not moved[going].any():
        return
    text, known = _change_words(kinds, moved, going)
    if known or not kinds.action_values:
        yield f"- {name} under any action: {text}"
        return
    listed = []
    for action, mask in kinds.action_values:
        if moved[mask & going].any():
            listed.append(f"{action}: {_change_words(kinds, moved, mask & going)[0]}")
    yield f"- {name} under action {'; '.join(listed)}"


def _change_words(kinds: StepKinds, moved: np.ndarray, rows: np.ndarray) -> tuple[str, bool]:
    """Write the changes of a component in some rows; return also whether a rule explains all.

    A rule holds if one or two whole-numbered components determine the change in all rows.
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
    parts = [_signed(usual)]
    for place in sorted(order[1:]):
        there = np.unique(steps.before[rows & (moved == values[place])][:, deciders], axis=0)
        cells = ", ".join(" ".join(number(x) for x in cell) for cell in there)
        parts.append(f"{_signed(values[place])} if {which} is {cells}")
    return ", but ".join(parts), True


def _same_as(steps: RecordedSteps, moved: np.ndarray, rows: np.ndarray) -> str:
    """Return the component that equals the change in all of some rows, "" if there is none."""
    for tense, values in (("", steps.before), ("next ", steps.after)):
        for index, column in enumerate(values[rows].T):
            for sign, change in (("+", column), ("-", -column)):
                if (moved[rows] == change).all():
                    return f"{sign}{tense}{steps.names[index]}"
    return ""


def _signed(change: float) -> str:
    """Write the change of a whole number."""
    return f"{change:+g}" if change else "unchanged"
