"""The section "Recorded transitions" of a prompt: facts about the recorded steps, and chosen steps.

If all distinct steps fit into the allowance, the section lists every step. Otherwise it lists a
choice: steps in a row, ends, rare rewards and rare outcomes next to the most similar other step,
changes of a mode, each action in each mode, one step for each listed effect, and extremes. Steps
that lie far from each other fill the rest of the allowance. Programs with memory need whole
episodes instead, and programs with probabilities need counts of the outcomes of equal situations.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, product, repeat
from typing import NamedTuple

import numpy as np

from cwm_cli.data.dataset import VALID, Dataset
from cwm_cli.envs.documented import documented_names
from cwm_cli.evaluation import Metric
from cwm_cli.evaluation.finding import ContractName
from cwm_cli.evaluation.missing_data import find_gaps
from cwm_cli.problems.feedback.choices import RARE, STRETCH, choose_steps
from cwm_cli.problems.feedback.other_reports import hidden_examples
from cwm_cli.problems.feedback.steps import (
    MANY_CELLS,
    MOST_EFFECTS,
    RecordedSteps,
    StepKinds,
    best_frequencies,
    by_frequency,
    likeliest,
    number,
    outcome_counts,
)
from cwm_cli.text import clean, estimated_tokens, share

DOCUMENTED, SPARED = 300, 0.6
"""A description of at least `DOCUMENTED` tokens states rules that steps would have to show, so the
section leaves the share `SPARED` of its allowance unused."""
HEAD = "## Recorded transitions"


class StepGroup(NamedTuple):
    """Steps that are shown for one reason, and the lines that show them."""

    reason: str
    rows: tuple[int, ...]
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Evidence:
    """Facts about recorded steps, and the groups of steps that are shown.

    `complete` is True if every distinct step is shown. The `rows` of the groups are indices into
    the dataset.
    """

    facts: tuple[str, ...]
    groups: tuple[StepGroup, ...]
    complete: bool

    @property
    def rows(self) -> tuple[int, ...]:
        """The rows that are shown, in the order of the text."""
        return tuple(row for group in self.groups for row in group.rows)

    def words(self) -> str:
        """Write the section; the least important steps come last."""
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
    contract: ContractName = "plain",
) -> str:
    """Return the section "Recorded transitions", or "" without rows or tokens.

    Args:
        rows: The rows that prompts may show.
        metric: The metric that scores programs.
        description: The description of the environment.
        tokens: The allowance, in estimated tokens.
        variant: Another number chooses other steps of equal value if not all are shown.
        contract: The contract of the programs.
    """
    if tokens <= 0 or not len(rows):
        return ""
    options = {"tokens": tokens, "variant": variant}
    return gather_evidence(rows, metric, description, contract=contract, **options).words()


def gather_evidence(
    rows: Dataset,
    metric: Metric,
    description: str = "",
    *,
    tokens: int = 2000,
    variant: int = 0,
    contract: ContractName = "plain",
) -> Evidence:
    """Return the facts and steps of the section; the arguments are the same as for `evidence`."""
    steps = RecordedSteps(rows)
    documented = documented_names(description, rows.observation_space)
    kinds = StepKinds(steps)
    for complete in (True, False):
        facts = _list_facts(kinds, metric, documented, complete=complete, contract=contract)
        facts = _fitting(facts, int(0.45 * tokens))
        room = tokens - estimated_tokens("\n".join([HEAD, "", *facts]))
        if complete and (every := _all_steps(steps, room, contract)) is not None:
            return Evidence(tuple(facts), every, complete=True)
    spare = int(SPARED * tokens) if estimated_tokens(description) >= DOCUMENTED else 0
    groups: tuple[StepGroup, ...] = ()
    if contract == "memory":
        if lines := hidden_examples(rows):
            reason = "Equal observations and actions with different outcomes, and the step before "
            groups = (StepGroup(f"{reason}them:", (), tuple(lines)),)
        room -= _tokens(groups)
        # Rare results, with the steps before them, take the rest of the allowance.
        episodes = tuple(_whole_episodes(steps, int(0.65 * room), variant))
        room -= _tokens(episodes)
        shown = {row for group in episodes for row in group.rows}
        groups += (*episodes, *_rare_in_context(kinds, shown, room, variant))
    elif contract == "chance" and kinds.contradictions:
        # Single steps take the rest of the allowance.
        groups = tuple(_conflicts(kinds, int(0.6 * room)))
        room -= _tokens(groups)
    if contract != "memory" or not any(group.rows for group in groups):
        groups = (*groups, *_chosen(kinds, room, spare, variant))
    return Evidence(tuple(facts), groups, complete=False)


def _tokens(groups: Sequence[StepGroup]) -> int:
    """Return the tokens of groups."""
    return sum(estimated_tokens("\n".join([g.reason, *g.lines, "", ""])) for g in groups)


def _whole_episodes(steps: RecordedSteps, tokens: int, variant: int) -> Iterator[StepGroup]:
    """Yield episodes in order from their first step: whole ones that fit, then one cut short."""
    first = variant % len(steps.episodes)
    runs = steps.episodes[first:] + steps.episodes[:first]
    head = f"Whole episodes, in order; {steps.chain_format}"
    tokens -= estimated_tokens(f"{head}\n\n")
    costs = [_chain_tokens(steps, run) for run in runs]
    whole = [place for place, cost in enumerate(costs) if cost <= tokens / 2]
    whole.sort(key=lambda place: -len(runs[place]))
    for place in whole:
        # An episode that no longer fits may leave room for a shorter one.
        if costs[place] <= tokens:
            tokens -= costs[place]
            yield StepGroup(head, tuple(runs[place]), tuple(steps.chain(runs[place])))
            head = "Another whole episode:"
    rest = [run for place, run in enumerate(runs) if place not in whole]
    if not rest:
        return
    cut = rest[0]
    while len(cut) > 1 and _chain_tokens(steps, cut) > tokens:
        cut = cut[: len(cut) * 9 // 10]
    if len(cut) > 2:
        name = "The beginning of an episode"
        head = f"{name}; {steps.chain_format}" if head.startswith("Whole") else f"{name}:"
        yield StepGroup(head, tuple(cut), tuple(steps.chain(cut)))


def _rare_in_context(
    kinds: StepKinds, shown: set[int], tokens: int, variant: int
) -> Iterator[StepGroup]:
    """Yield six steps of each rare reward, end and result, with the five steps before each."""
    steps = kinds.steps
    few = max(2, RARE * len(steps))
    masks = [steps.ended] + [mask for _, mask in kinds.outcomes if mask.sum() <= few]
    if kinds.reward_values is not None:
        values, counts = kinds.reward_values
        masks += [steps.rewards == values[place] for place in np.argsort(counts)[:-1]]
    events = [np.roll(np.flatnonzero(mask), -variant).tolist() for mask in masks]
    order = [rows[turn] for turn in range(6) for rows in events if turn < len(rows)]
    head = "Rare rewards, results and ends, each with the steps before it:"
    tokens -= estimated_tokens(f"{head}\n\n")
    rows: list[int] = []
    lines: list[str] = []
    for row in order:
        if row in shown:
            continue
        before = steps.up_to(row, 5)
        more = steps.chain(before)
        tokens -= estimated_tokens("\n".join(["...", *more, ""]))
        if tokens < 0:
            break
        shown.update(before)
        rows += before
        lines += ["...", *more] if lines else more
    if lines:
        yield StepGroup(head, tuple(rows), tuple(lines))


def _chain_tokens(steps: RecordedSteps, rows: Sequence[int]) -> int:
    """Return the tokens of an episode, a heading included."""
    return estimated_tokens("\n".join(["Another whole episode:", *steps.chain(rows), "", ""]))


def _conflicts(kinds: StepKinds, tokens: int) -> Iterator[StepGroup]:
    """Yield the outcome counts of situations with several outcomes, the most frequent first."""
    head = (
        "Equal observations and actions with different outcomes "
        "(observation | action > next observation, reward, with counts):"
    )
    tokens -= estimated_tokens(head)
    rows: list[int] = []
    lines: list[str] = []
    steps = kinds.steps
    for members in sorted(kinds.contradictions.values(), key=lambda rows: (-len(rows), rows)):
        seen = Counter(f"{steps.result(row)} {steps.outcome(row)}" for row in members)
        situation = f"{steps.observation(members[0])} | {steps.action(members[0])}"
        line = f"{situation} > {outcome_counts(seen)}"
        tokens -= estimated_tokens(f"{line}\n")
        if tokens < 0:
            break
        rows += members
        lines.append(line)
    if lines:
        yield StepGroup(head, tuple(rows), tuple(lines))


def _fitting(lines: Sequence[str], tokens: int) -> list[str]:
    """Return the lines that fit; earlier lines take precedence."""
    kept: list[str] = []
    for line in lines:
        tokens -= estimated_tokens(f"{line}\n")
        if tokens >= 0 or not kept:
            kept.append(line)
    return kept


def _all_steps(
    steps: RecordedSteps, tokens: int, contract: ContractName
) -> tuple[StepGroup, ...] | None:
    """Show every distinct step in the shorter of two forms, or return None if neither fits."""
    distinct = len(set(steps.dataset.situations()))
    # Do not write all steps if their actions alone are too long.
    if distinct * estimated_tokens(steps.action(0)) > tokens:
        return None
    forms: list[list[StepGroup]] = []
    if steps.follows.mean() > 1 / 2 or contract == "memory":
        heads = chain([f"All steps, in order; {steps.chain_format}"], repeat("Another episode:"))
        forms.append(
            [
                StepGroup(head, tuple(rows), tuple(steps.chain(rows)))
                for head, rows in zip(heads, steps.episodes, strict=False)
            ]
        )
    if bool(steps.whole.all()) and not steps.is_board and contract != "memory":
        forms.append([_by_observation(steps, counted=contract == "chance")])
    sizes = [sum(estimated_tokens("\n".join(g.lines)) for g in form) for form in forms]
    fitting = [(size, place) for place, size in enumerate(sizes) if size <= tokens]
    return tuple(forms[min(fitting)[1]]) if fitting else None


def _by_observation(steps: RecordedSteps, *, counted: bool = False) -> StepGroup:
    """Show the outcome of each action at each observation.

    Counts are shown if outcomes differ; if `counted`, also if one outcome occurred repeatedly.
    """
    usual = by_frequency(steps.rewards)[0][0]
    _, first = np.unique(steps.before, axis=0, return_index=True)
    outcomes: dict[str, dict[str, dict[str, int]]] = {steps.observation(row): {} for row in first}
    for row in sorted(range(len(steps)), key=lambda row: tuple(steps.actions[row])):
        # An observation of one component is written out even if it stays the same.
        is_same = steps.before.shape[1] > 1 and (steps.before[row] == steps.after[row]).all()
        outcome = "same" if is_same else steps.observation(row, after=True)
        if steps.rewards[row] != usual:
            outcome += f" reward {number(steps.rewards[row])}"
        outcome += " ended" if steps.ended[row] else ""
        if steps.dataset.has_valid_actions and not steps.ended[row]:
            valid = steps.dataset.action_space.masked(steps.dataset.columns[VALID][row])
            outcome += f" valid {','.join(map(str, valid))}"
        seen = outcomes[steps.observation(row)].setdefault(steps.action(row), {})
        seen[outcome] = seen.get(outcome, 0) + 1
    lines = [
        f"{text}: "
        + "; ".join(
            f"{action}>{outcome_counts(seen, always=counted)}" for action, seen in acts.items()
        )
        for text, acts in outcomes.items()
    ]
    head = (
        "All distinct steps, by observation; action>next observation, with reward "
        f"{number(usual)} and no end unless stated:"
    )
    return StepGroup(head, tuple(range(len(steps))), tuple(lines))


def _chosen(kinds: StepKinds, tokens: int, spare: int, variant: int) -> Iterator[StepGroup]:
    """Yield the chosen steps that fit, grouped by reason, and leave `spare` tokens unused.

    The first chain may use all tokens.
    """
    steps, shown = kinds.steps, set[int]()
    groups: dict[str, StepGroup] = {}
    board = None
    # An observation of more than a sixth of the allowance is shown in part.
    wide = not steps.is_board and estimated_tokens(steps.observation(0)) > tokens / 6
    part = max(0, tokens - spare // 2)
    for reason, rows, chained in choose_steps(kinds, shown, variant):
        while chained and not wide and len(rows) > 2:
            if estimated_tokens("\n".join(steps.chain(rows))) <= tokens:
                break
            rows = rows[:-1]
        if shown.issuperset(rows) or (rows[0] in shown and not chained):
            continue
        if wide:
            lines = _in_part(steps, rows, part, chained=chained)
        elif chained:
            lines = steps.chain(rows)
            board = rows[0] if board is None else board
        else:
            lines = [steps.line(row, like=board) for row in rows]
        cost = estimated_tokens("\n".join(["", *lines]))
        cost += 0 if reason in groups else estimated_tokens(f"{reason}\n\n")
        if cost > tokens - (spare if len(shown) > STRETCH else 0):
            continue
        tokens -= cost
        shown |= set(rows)
        known = groups.get(reason, StepGroup(reason, (), ()))
        groups[reason] = StepGroup(reason, known.rows + tuple(rows), known.lines + tuple(lines))
    yield from groups.values()
    if bool(steps.whole.all()) and not steps.is_board:
        yield from _more_observations(steps, tokens - spare, variant)


def _more_observations(steps: RecordedSteps, tokens: int, variant: int) -> Iterator[StepGroup]:
    """Yield the outcomes at as many observations as fit, spread evenly."""
    every = _by_observation(steps)
    head = every.reason.replace("All distinct steps", "More steps")
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
    """Show the components that change most, of steps whose observations are too wide."""
    often = (steps.before != steps.after).mean(axis=0)
    most = max(2, tokens // 2 // STRETCH // 7)  # about 7 tokens for a number
    cells = sorted(np.argsort(-often, kind="stable")[:most].tolist())
    lines = [f"(of {len(steps.names)} components {' '.join(steps.names[i] for i in cells)})"]
    for row in rows:
        before, after = (",".join(steps.cell(row, i, at) for i in cells) for at in (0, 1))
        parts = [before, steps.action(row), *([] if chained else [after]), steps.outcome(row)]
        lines.append(" | ".join(parts))
    return [*lines, after] if chained else lines


# --- facts about all steps: counts, ranges, effects, ends, conflicts and gaps


def _list_facts(
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
    if kinds.reward_values is None:
        low, middle, high = np.quantile(steps.rewards, [0, 0.5, 1])
        rewards = f"many values, {low:.6g} to {high:.6g}, median {middle:.6g}"
    else:
        pairs = zip(*kinds.reward_values, strict=True)
        rewards = ", ".join(f"{number(value)} ({count}x)" for value, count in pairs)
    lines = [
        f"{len(steps)} steps of {episodes} episodes{alike}; {'all' if complete else 'some'} "
        "are listed below. If they contradict the description, the steps are right. Programs are "
        "checked on further steps."
        + ("" if complete or contract == "memory" else f" A line is: {steps.line_format}."),
        f"Rewards: {rewards}.",
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


def _on_components(steps: RecordedSteps, documented: Sequence[str]) -> Iterator[str]:
    """Yield the range of each component and the size of its changes."""
    if steps.is_board or bool(steps.is_text.all()):
        if steps.is_text.any():  # every fifth row, since a text takes long to write
            every = product(range(0, len(steps), 5), range(len(steps.names)))
            cells = [steps.cell(row, index) for row, index in every]
        else:
            cells = [number(value) for value in steps.before.reshape(-1)]
        values, _ = by_frequency(np.array(cells))
        listed = ", ".join(map(str, values[: 4 * MOST_EFFECTS]))
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
        rest = steps.before[:, indices[MANY_CELLS:]]
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
    for name, mask in kinds.actions_or_any:
        effects, counts = by_frequency(kinds.cell_effects[mask & ~steps.ended])
        pairs = zip(effects[:MOST_EFFECTS], counts, strict=False)
        listed = ", ".join(f"{effect} ({count}x)" for effect, count in pairs)
        more = f", {len(effects) - MOST_EFFECTS} more kinds" if len(effects) > MOST_EFFECTS else ""
        yield f"- action {name or 'any'}: {listed or 'each step ended'}{more}"


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
    values, counts = by_frequency(moved[rows])
    if len(values) == 1:
        return _signed(values[0]), True
    if same := _same_as(steps, moved, rows):
        return same, True
    deciders = kinds.deciders(moved, rows)
    if not deciders:
        pairs = zip(values[:MOST_EFFECTS], counts, strict=False)
        listed = [f"{_signed(value)} ({count}x)" for value, count in pairs]
        more = [f"{len(values) - MOST_EFFECTS} more"] if len(values) > MOST_EFFECTS else []
        return ", ".join([*listed, *more]), False
    which = " ".join(steps.names[i] for i in deciders)
    parts = [_signed(values[0])]
    for value in sorted(values[1:]):
        there = np.unique(steps.before[rows & (moved == value)][:, deciders], axis=0)
        cells = ", ".join(" ".join(number(x) for x in cell) for cell in there)
        parts.append(f"{_signed(value)} if {which} is {cells}")
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
