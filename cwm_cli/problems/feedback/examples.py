"""Single transitions at full precision, chosen for what they teach."""

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from cwm_cli.data.dataset import VALID, Dataset
from cwm_cli.data.spaces import Columns, Space
from cwm_cli.evaluation import Metric
from cwm_cli.problems.feedback.comparison import Comparison
from cwm_cli.problems.feedback.regimes import actions_taken, failing
from cwm_cli.text import clean

MOST_EXAMPLES = 8
MOST_COMPONENTS = 6
LONGEST_VALUE = 300
"""Values that take more characters are shown by their wrong components alone."""

LONGEST_TEXT = 1200
"""The same for values that are made of texts, which say nothing when they are cut."""


class Example(NamedTuple):
    """A row and why it is shown."""

    row: int
    reason: str


def counterexample(
    dataset: Dataset, predictions: Columns, metric: Metric, description: str = ""
) -> str:
    """Show the one transition that loses the most weight, as published."""
    comparison = Comparison.of(dataset, predictions, metric, description)
    row = int(np.argmax(comparison.lost))
    return clean(
        "\n".join(["This transition is predicted wrongly:", "", *drawn(comparison, row)]),
        newlines=True,
    )


def worst(dataset: Dataset, predictions: Columns, metric: Metric, count: int) -> list[str]:
    """Draw rows that are predicted wrongly: of each kind of mistake the costliest, then more."""
    comparison = Comparison.of(dataset, predictions, metric)
    chosen = _distinct(comparison, _kinds(comparison), count)
    return [clean("\n".join([reason, *lines]), newlines=True) for reason, lines in chosen]


def examples(comparison: Comparison, budget: int) -> list[str]:
    """Return the lines of as many examples as fit into `budget` characters, one at least."""
    lines: list[str] = []
    ways = (_sizes, _parts, _regimes, _kinds)
    candidates = chain.from_iterable(way(comparison) for way in ways)
    chosen = _distinct(comparison, candidates, MOST_EXAMPLES)
    for number, (reason, drawing) in enumerate(chosen, start=1):
        more = [f"({number}) {reason}", *(f"    {line}" for line in drawing)]
        budget -= sum(len(line) + 1 for line in more)
        if lines and budget < 0:
            break
        lines += more
    return lines


def drawn(comparison: Comparison, row: int) -> list[str]:
    """Return the lines that show one row: what was asked, recorded and predicted."""
    columns, predictions = comparison.dataset.columns, comparison.predictions
    space = comparison.dataset.observation_space
    before = _text(space.unpack("observations", columns, row))
    action = _text(comparison.dataset.action_space.unpack("actions", columns, row))
    longest = _longest(space)
    lines = [f"observation       {_cut(before, longest)}", f"action            {_cut(action)}"]
    if comparison.observation_wrong[row]:
        recorded = _text(space.unpack("next_observations", columns, row))
        predicted = _text(space.unpack("next_observations", predictions, row))
        if max(len(recorded), len(predicted)) > longest:
            lines += _wrong_components(comparison, row)
        else:
            lines.append(f"next observation  recorded  {recorded}")
            lines.append(f"                  predicted {predicted}")
    else:
        right = "does not count after the end" if comparison.terminal[row] else "right"
        lines.append(f"next observation  {right}")
    return [*lines, *_outcomes(comparison, row), *_valid_actions(comparison, row)]


def _outcomes(comparison: Comparison, row: int) -> list[str]:
    """Return the lines on reward and termination, one line when both are right."""
    columns = ("rewards", "terminations")
    recorded = [comparison.dataset.columns[name][row].item() for name in columns]
    predicted = [comparison.predictions[name][row].item() for name in columns]
    if comparison.matches.reward[row] and comparison.matches.terminated[row]:
        return [f"reward            {recorded[0]!r}, terminated {recorded[1]}: both right"]
    right = (comparison.matches.reward[row], comparison.matches.terminated[row])
    return [
        f"{name:<17} {f'{true!r}, right' if same else f'recorded  {true!r}, predicted {said!r}'}"
        for name, true, said, same in zip(
            ("reward", "terminated"), recorded, predicted, right, strict=True
        )
    ]


def _valid_actions(comparison: Comparison, row: int) -> list[str]:
    """Return a line on the valid actions, where programs name them."""
    mistakes, space = comparison.mistakes.get("valid actions"), comparison.dataset.action_space
    if mistakes is None or comparison.terminal[row]:
        return []
    recorded = list(space.masked(comparison.dataset.columns[VALID][row]))
    if not mistakes[row]:
        return [f"valid actions     {recorded}, right"]
    predicted = list(space.masked(comparison.predictions[VALID][row] == 1))
    return [f"valid actions     recorded  {recorded}, predicted {predicted}"]


def _wrong_components(comparison: Comparison, row: int) -> list[str]:
    """Return a line for some of the components that are wrong."""
    wrong = np.flatnonzero(~comparison.right[row])
    total = comparison.right.shape[1]
    lines = [f"next observation  wrong in {len(wrong)} of {total} components"]
    spread = np.linspace(0, len(wrong) - 1, min(len(wrong), MOST_COMPONENTS)).astype(int)
    for index in wrong[spread].tolist():
        part = comparison.component(index)
        values = [_plain(column[row]) for column in (part.before, part.recorded, part.predicted)]
        before, recorded, predicted = _windows(*values)
        lines.append(f"  {part.name}: was {before}, recorded {recorded}, predicted {predicted}")
    return lines


def _windows(before: Any, recorded: Any, predicted: Any) -> list[str]:
    """Write three values of a component; of long texts the part from the first difference on."""
    values = (before, recorded, predicted)
    if not isinstance(recorded, str) or max(map(len, values)) < LONGEST_VALUE // 3:
        return [_cut(repr(value)) for value in values]
    pairs = enumerate(zip(recorded, predicted, strict=False))
    first = next((i for i, (one, other) in pairs if one != other), min(map(len, values[1:])))
    start = max(0, first - 20)
    return [f"…[{start}:] {value[start : start + 80]!r}" for value in values]


def _sizes(comparison: Comparison) -> Iterator[Example]:
    """Yield the smallest and a typical error, where observations are real numbers."""
    if not comparison.has_floats:
        return
    rows = np.flatnonzero(comparison.observation_wrong)
    if len(rows):
        order = rows[np.argsort(comparison.errors[rows], kind="stable")]
        yield Example(int(order[0]), "the smallest error")
        yield Example(int(order[len(order) // 2]), "a typical error")


def _parts(comparison: Comparison) -> Iterator[Example]:
    """Yield the costliest row of each part that is wrong, but for the observation."""
    for name in ("terminated", "reward", "valid actions"):
        wrong = comparison.mistakes.get(name)
        if wrong is not None and wrong.any():
            yield Example(int(np.argmax(np.where(wrong, comparison.lost, -1.0))), f"{name} wrong")


def _regimes(comparison: Comparison) -> Iterator[Example]:
    """Yield the costliest wrong row of each of the kinds of transition that lose the most."""
    for regime in failing(comparison)[:4]:
        rows = np.flatnonzero(regime.rows & comparison.wrong)
        yield Example(int(rows[np.argmax(comparison.lost[rows])]), regime.name)


def _kinds(comparison: Comparison) -> Iterator[Example]:
    """Yield wrong rows of each kind of mistake in turn, the costliest kind first."""
    groups: dict[str, list[int]] = {}
    reasons = _reasons(comparison)
    for row in np.flatnonzero(comparison.wrong):
        groups.setdefault(reasons[row], []).append(int(row))
    lost = comparison.lost
    costliest = sorted(groups, key=lambda reason: -lost[groups[reason]].sum())
    for turn in range(MOST_EXAMPLES):
        for reason in costliest:
            rows = sorted(groups[reason], key=lambda row: -lost[row])
            if turn < len(rows):
                yield Example(rows[turn], f"{reason} ({len(rows)} like this)")


def _reasons(comparison: Comparison) -> list[str]:
    """Name for each row the action and the parts that are wrong."""
    names = np.full(len(comparison.dataset), "", dtype=object)
    for regime in actions_taken(comparison):
        names[regime.rows] = f"{regime.name}: "
    reasons = []
    for row in range(len(comparison.dataset)):
        wrong = [part for part, mask in comparison.mistakes.items() if mask[row]]
        reasons.append(f"{names[row]}{', '.join(wrong)} wrong")
    return reasons


def _distinct(
    comparison: Comparison, candidates: Iterable[Example], most: int
) -> Iterator[tuple[str, list[str]]]:
    """Yield the reason and the drawing of examples that look different, at most so many."""
    seen: set[str] = set()
    for row, reason in candidates:
        lines = drawn(comparison, row)
        if len(seen) < most and (text := "\n".join(lines)) not in seen:
            seen.add(text)
            yield reason, lines


def _plain(value: Any) -> Any:
    """Turn arrays into lists and numpy numbers into Python's, at full precision."""
    if isinstance(value, tuple):
        return tuple(map(_plain, value))
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def _text(value: Any) -> str:
    """Write a value so that it can be read back."""
    return repr(_plain(value))


def _longest(space: Space) -> int:
    """Return how many characters a value may take to be shown whole."""
    leaves = [leaf.space.kind for leaf in space.leaves("")]
    return LONGEST_TEXT if leaves.count("text") > len(leaves) / 2 else LONGEST_VALUE


def _cut(text: str, longest: int = LONGEST_VALUE) -> str:
    """Shorten what is too long to be read."""
    if len(text) <= longest:
        return text
    return f"{text[: LONGEST_VALUE // 2]} … ({len(text)} characters, not all shown)"
