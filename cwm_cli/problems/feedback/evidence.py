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
from typing import NamedTuple

import numpy as np

from cwm_cli.data.dataset import VALID, Dataset
from cwm_cli.envs.documented import documented_names
from cwm_cli.evaluation import Metric
from cwm_cli.evaluation.finding import ContractName
from cwm_cli.problems.feedback.choices import RARE, STRETCH, choose_steps
from cwm_cli.problems.feedback.facts import list_facts
from cwm_cli.problems.feedback.other_reports import hidden_examples
from cwm_cli.problems.feedback.steps import RecordedSteps, StepKinds, number, outcome_counts
from cwm_cli.text import clean, estimated_tokens

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
    starts = np.flatnonzero(~steps.follows)
    runs = [run.tolist() for run in np.split(np.arange(len(steps)), starts[1:])]
    runs = runs[variant % len(runs) :] + runs[: variant % len(runs)]
    head = f"Whole episodes, in order; {steps.chain_format}"
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
    if distinct * estimated_tokens(steps.action(0)) > tokens:
        return None
    forms: list[list[StepGroup]] = []
    if steps.follows.mean() > 1 / 2 or contract == "memory":
        starts = np.flatnonzero(~steps.follows)
        head, episodes = f"All steps, in order; {steps.chain_format}", list[StepGroup]()
        for rows in np.split(np.arange(len(steps)), starts[1:]):
            episode = tuple(rows.tolist())
            episodes.append(StepGroup(head, episode, tuple(steps.chain(episode))))
            head = "Another episode:"
        forms.append(episodes)
    if bool(steps.whole.all()) and not steps.is_board and contract != "memory":
        forms.append([_by_observation(steps, counted=contract == "chance")])
    sizes = [sum(estimated_tokens("\n".join(g.lines)) for g in form) for form in forms]
    fitting = [(size, place) for place, size in enumerate(sizes) if size <= tokens]
    return tuple(forms[min(fitting)[1]]) if fitting else None


def _by_observation(steps: RecordedSteps, *, counted: bool = False) -> StepGroup:
    """Show the outcome of each action at each observation.

    Counts are shown if outcomes differ; if `counted`, also if one outcome occurred repeatedly.
    """
    values, counts = np.unique(steps.rewards, return_counts=True)
    usual = values[np.argmax(counts)]
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
