"""The section "Recorded transitions" of a prompt: facts about the recorded steps, and chosen steps.

If all distinct steps fit into the allowance, the section lists every step. Otherwise it lists a
choice: steps in a row, ends, rare rewards and rare outcomes next to the most similar other step,
changes of a mode, each action in each mode, one step for each listed effect, and extremes. Steps
that lie far from each other fill the rest of the allowance. Programs with memory need whole
episodes instead, and programs with probabilities need counts of the outcomes of equal situations.
"""

from collections import Counter
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from cwm_cli.data.dataset import VALID, Dataset
from cwm_cli.envs.documented import documented_names
from cwm_cli.evaluation import Metric
from cwm_cli.evaluation.finding import ContractName
from cwm_cli.problems.feedback.facts import list_facts
from cwm_cli.problems.feedback.kinds import MOST_EFFECTS, StepKinds, finite, outcome_counts
from cwm_cli.problems.feedback.steps import MANY_CELLS, RecordedSteps, number
from cwm_cli.problems.feedback.uncertain import hidden_examples
from cwm_cli.text import clean, estimated_tokens

STRETCH = 6
"""Steps in a row; with fewer, the time step and the order of updates stay open."""
DOCUMENTED, SPARED = 300, 0.6
"""A description of at least `DOCUMENTED` tokens states rules that steps would have to show, so the
section leaves the share `SPARED` of its allowance unused."""
RARE = 0.05
"""Largest share of the steps of a rare outcome, which gets an example."""
MOST_KINDS = 8
"""Most rare outcomes, rewards or jumps that get an example."""
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
    found = gather_evidence(
        rows, metric, description, tokens=tokens, variant=variant, contract=contract
    )
    return found.words()


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
        facts = list_facts(kinds, metric, documented, complete=complete, contract=contract)
        facts = _fitting(facts, int(0.45 * tokens))
        room = tokens - estimated_tokens("\n".join([HEAD, "", *facts]))
        if complete and (every := all_steps(steps, room, contract)) is not None:
            return Evidence(tuple(facts), every, complete=True)
    spare = int(SPARED * tokens) if estimated_tokens(description) >= DOCUMENTED else 0
    groups: tuple[StepGroup, ...] = ()
    if contract == "memory":
        groups = tuple(_hidden(rows))
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


def _hidden(rows: Dataset) -> Iterator[StepGroup]:
    """Yield equal situations with different outcomes, each with the step before it."""
    if lines := hidden_examples(rows):
        reason = "Equal observations and actions with different outcomes, and the step before them:"
        yield StepGroup(reason, (), tuple(lines))


def _whole_episodes(steps: RecordedSteps, tokens: int, variant: int) -> Iterator[StepGroup]:
    """Yield episodes in order from their first step: whole ones that fit, then one cut short."""
    starts = np.flatnonzero(~steps.follows)
    runs = [run.tolist() for run in np.split(np.arange(len(steps)), starts[1:])]
    runs = runs[variant % len(runs) :] + runs[: variant % len(runs)]
    head = f"Whole episodes, in order; {_order(steps)}"
    tokens -= estimated_tokens(f"{head}\n\n")
    costs = [_chain_tokens(steps, run) for run in runs]
    whole = [place for place, cost in enumerate(costs) if cost <= tokens / 2]
    whole.sort(key=lambda place: -len(runs[place]))
    for place in whole:
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
        head = f"{name}; {_order(steps)}" if head.startswith("Whole") else f"{name}:"
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
        chain = steps.chain(before)
        tokens -= estimated_tokens("\n".join(["...", *chain, ""]))
        if tokens < 0:
            break
        shown.update(before)
        rows += before
        lines += ["...", *chain] if lines else chain
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
    for members in sorted(kinds.contradictions.values(), key=lambda rows: (-len(rows), rows)):
        line = _conflict_line(kinds.steps, members)
        tokens -= estimated_tokens(f"{line}\n")
        if tokens < 0:
            break
        rows += members
        lines.append(line)
    if lines:
        yield StepGroup(head, tuple(rows), tuple(lines))


def _conflict_line(steps: RecordedSteps, rows: Sequence[int]) -> str:
    """Write one situation and how often each of its outcomes was recorded."""
    seen = Counter(
        f"{steps.changes(row) if steps.is_board else steps.observation(row, after=True)} "
        f"{steps.outcome(row)}"
        for row in rows
    )
    return f"{steps.observation(rows[0])} | {steps.action(rows[0])} > {outcome_counts(seen)}"


def _fitting(lines: Sequence[str], tokens: int) -> list[str]:
    """Return the lines that fit; earlier lines take precedence."""
    kept: list[str] = []
    for line in lines:
        tokens -= estimated_tokens(f"{line}\n")
        if tokens >= 0 or not kept:
            kept.append(line)
    return kept


def all_steps(
    steps: RecordedSteps, tokens: int, contract: ContractName = "plain"
) -> tuple[StepGroup, ...] | None:
    """Show every distinct step in the shorter of two forms, or return None if neither fits."""
    distinct = len(set(steps.dataset.situations()))
    if distinct * estimated_tokens(steps.action(0)) > tokens:
        return None
    forms = [_by_episode(steps)] if steps.follows.mean() > 1 / 2 or contract == "memory" else []
    if bool(steps.whole.all()) and not steps.is_board and contract != "memory":
        forms.append([_by_observation(steps, counted=contract == "chance")])
    sizes = [sum(estimated_tokens("\n".join(g.lines)) for g in form) for form in forms]
    fitting = [(size, place) for place, size in enumerate(sizes) if size <= tokens]
    return tuple(forms[min(fitting)[1]]) if fitting else None


def _by_episode(steps: RecordedSteps) -> list[StepGroup]:
    """Show each episode from its first step to its last."""
    starts = np.flatnonzero(~steps.follows).tolist()
    groups = []
    for place, (start, stop) in enumerate(zip(starts, [*starts[1:], len(steps)], strict=True)):
        rows = tuple(range(start, stop))
        head = f"All steps, in order; {_order(steps)}" if not place else "Another episode:"
        groups.append(StepGroup(head, rows, tuple(steps.chain(rows))))
    return groups


def _order(steps: RecordedSteps) -> str:
    """Explain the lines of a chain."""
    if steps.is_board:
        return "each line after the first is: action | changed cells | reward."
    return "a line is: observation | action | reward. The next line has the next observation."


def _by_observation(steps: RecordedSteps, *, counted: bool = False) -> StepGroup:
    """Show the outcome of each action at each observation.

    Counts are shown if outcomes differ; if `counted`, also if one outcome occurred repeatedly.
    """
    values, counts = np.unique(steps.rewards, return_counts=True)
    usual = values[np.argmax(counts)]
    _, first = np.unique(steps.before, axis=0, return_index=True)
    outcomes: dict[str, dict[str, dict[str, int]]] = {steps.observation(row): {} for row in first}
    for row in sorted(range(len(steps)), key=lambda row: tuple(steps.actions[row])):
        outcome = "same" if _same(steps, row) else steps.observation(row, after=True)
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


def _same(steps: RecordedSteps, row: int) -> bool:
    """Return whether a step changes nothing; an observation of one component is written out."""
    return steps.before.shape[1] > 1 and bool((steps.before[row] == steps.after[row]).all())


class ChosenSteps(NamedTuple):
    """Steps to show for a reason; in a chain each step follows the one above."""

    reason: str
    rows: tuple[int, ...]
    chained: bool = False


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
    for reason, rows, chained in _choices(kinds, shown, variant):
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


def _choices(kinds: StepKinds, shown: Set[int], variant: int) -> Iterator[ChosenSteps]:
    """Yield steps to show, the most informative first.

    `shown` holds the rows that are shown so far; the caller adds to it between two steps.
    """
    steps = kinds.steps
    stretch = _stretch(kinds, variant)
    yield ChosenSteps(f"Steps in a row; {_order(steps)}", stretch, chained=True)
    yield from _endings(kinds, variant)
    yield from _rare_rewards(kinds, variant)
    yield from _all_rare(kinds)
    yield from _switches(kinds)
    yield from _rare_outcomes(kinds, variant)
    yield from _each_effect(kinds, shown)
    yield from _mode_changes(kinds, variant)
    yield from _jumps(kinds)
    yield from _extremes(kinds)
    if steps.is_board or not steps.whole.all():
        yield from _spread(kinds, stretch, variant)


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


def _each_effect(kinds: StepKinds, shown: Set[int]) -> Iterator[ChosenSteps]:
    """Yield a step for each effect of an action and each action in a mode that is not shown yet."""
    effects = kinds.effects
    if not effects:
        return
    table = np.stack(effects, axis=1)
    reason = "Each action in each mode, and one step for each effect of an action:"
    tried = np.zeros(len(table), np.bool_)
    while True:
        left = ~table[sorted(shown)].any(axis=0) if shown else np.ones(table.shape[1], np.bool_)
        gain = np.where(tried, 0, table[:, left].sum(axis=1))
        row = int(gain.argmax())
        if not gain[row]:
            return
        tried[row] = True
        yield ChosenSteps(reason, (row,))


def _stretch(kinds: StepKinds, variant: int) -> tuple[int, ...]:
    """Return the most eventful steps in a row; another `variant` returns other steps."""
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
    yield from _near_misses(kinds, left, variant)


def _near_misses(kinds: StepKinds, ends: np.ndarray, variant: int) -> Iterator[ChosenSteps]:
    """Yield three ends that no component explains, each with the nearest step without an end."""
    steps, rows = kinds.steps, np.flatnonzero(ends)
    if not len(rows):
        return
    real = ~steps.whole.all() and not steps.is_board
    after = finite(steps.after)
    reach = np.ptp(after, axis=0)
    after = after / np.where(reach > 0, reach, 1.0)
    free = ~steps.ended
    for row in np.roll(rows, -variant)[:3].tolist():
        other = kinds.nearest(row, free)
        if real and free.any():
            far = np.round(np.abs(after - after[row]).sum(axis=1), 9)
            other = int(np.argmin(np.where(free, far, np.inf)))
            free[other] = False
        reason = "Ends, each above the most similar step that did not end:"
        yield ChosenSteps(reason, (row,) if other is None else (row, other))


def _rare_rewards(kinds: StepKinds, variant: int) -> Iterator[ChosenSteps]:
    """Yield for each reward but the most frequent a step next to the nearest other step."""
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


def _all_rare(kinds: StepKinds) -> Iterator[ChosenSteps]:
    """Yield every step with a rare reward, because each such step weighs much."""
    if kinds.reward_values is None:
        return
    for value, count in zip(*kinds.reward_values, strict=True):
        if 1 < count <= MOST_KINDS:
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


def _spread(kinds: StepKinds, shown: Sequence[int], variant: int) -> Iterator[ChosenSteps]:
    """Yield steps far from each other, each at the largest distance to the steps before it."""
    count = len(kinds.steps)
    far = np.min([kinds.distances(row) for row in shown], axis=0)
    far = np.minimum(far, kinds.distances(variant * 7 % count)) if variant else far
    for _ in range(min(200, count)):
        row = int(np.argmax(far))
        if far[row] <= 0:
            return
        yield ChosenSteps("Other steps, far from each other:", (row,))
        far = np.minimum(far, kinds.distances(row))
