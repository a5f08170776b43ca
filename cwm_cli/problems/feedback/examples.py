"""Predictions compared with recorded transitions: kinds of transition, and examples.

`ComparedRows` compares component by component, `failing_regimes` returns kinds of transition that
a program predicts wrongly as a whole, and `examples` writes chosen transitions at full precision.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple, Self

import numpy as np

from cwm_cli.data.dataset import VALID, Dataset
from cwm_cli.data.spaces import Columns, Leaf
from cwm_cli.envs.documented import LONGEST_NAME, documented_names
from cwm_cli.evaluation import Matches, Metric, components, match
from cwm_cli.problems.feedback.steps import LONGEST_TEXT, rows_by_action, write_value
from cwm_cli.text import clean, percent
from cwm_cli.worlds.contract import component_names


class Component(NamedTuple):
    """One component of the observation in all rows: before, recorded after, predicted after."""

    name: str
    space_is_float: bool
    low: float
    high: float
    before: np.ndarray
    recorded: np.ndarray
    predicted: np.ndarray

    @property
    def typical_change(self) -> float:
        """The mean size of the change in one step, or 1 if nothing changes."""
        change = float(np.abs(self.recorded.astype(np.float64) - self.before).mean())
        return change if np.isfinite(change) and change > 0 else 1.0

    @property
    def residual(self) -> np.ndarray:
        """The recorded minus the predicted values; predictions may be NaN or infinite."""
        return difference(self.recorded, self.predicted)

    @property
    def errors(self) -> np.ndarray:
        """The sizes of the residual, in units of the typical change."""
        return np.asarray(np.abs(self.residual) / self.typical_change)


@dataclass(frozen=True)
class ComparedRows:
    """A dataset, predictions of its rows, and the weight of each row."""

    dataset: Dataset
    predictions: Columns
    weights: np.ndarray
    matches: Matches
    right: np.ndarray
    documented: tuple[str, ...]

    @classmethod
    def of(
        cls, dataset: Dataset, predictions: Columns, metric: Metric, description: str = ""
    ) -> Self:
        """Compare predictions with the recorded transitions."""
        return cls(
            dataset,
            predictions,
            metric.weights(dataset),
            match(predictions, dataset),
            np.concatenate(components(predictions, dataset), axis=1),
            documented_names(description, dataset.observation_space),
        )

    @property
    def terminal(self) -> np.ndarray:
        """Mask of the rows that end an episode; their observation does not count."""
        return np.asarray(self.dataset.columns["terminations"])

    @cached_property
    def losses(self) -> np.ndarray:
        """One minus the score of each row, unweighted."""
        return self.matches.losses(self.terminal)

    @cached_property
    def lost(self) -> np.ndarray:
        """The loss of each row times its weight."""
        return np.asarray(self.losses * self.weights)

    @property
    def score(self) -> float:
        """The weighted mean score of all rows."""
        return float(1.0 - self.lost.sum() / self.weights.sum())

    @property
    def wrong(self) -> np.ndarray:
        """Mask of the rows that are wrong in a part that counts."""
        return self.losses > 0

    @cached_property
    def component_mistakes(self) -> np.ndarray:
        """Mask of the wrong components that count, (rows, components)."""
        return np.asarray(~self.right & ~self.terminal[:, None])

    @cached_property
    def mistakes(self) -> dict[str, np.ndarray]:
        """For each part, the mask of the rows that have it wrong and count it."""
        mistakes = {
            "observation": ~self.right.all(axis=1) & ~self.terminal,
        }
        for part, right in (
            ("reward", self.matches.reward),
            ("terminated", self.matches.terminated),
        ):
            mistakes[part] = np.zeros(len(self.right), bool) if right is None else ~right
        if self.matches.valid_actions is not None:
            mistakes["valid actions"] = ~self.matches.valid_actions & ~self.terminal
        return mistakes

    @cached_property
    def names(self) -> list[str]:
        """The Python expression of each component of the observation."""
        names = component_names(self.dataset.observation_space, "observation")
        return [clean(name, limit=LONGEST_NAME) for name in names]

    def label(self, index: int) -> str:
        """Return the name of a component, with its documented name if there is one."""
        known = self.documented[index] if self.documented else ""
        return f"{self.names[index]} ({known})" if known else self.names[index]

    def component(self, index: int) -> Component:
        """Return one component of the observation."""
        leaf, place = self.leaves[index]
        low, high = (
            (bounds[place] if bounds else bound)
            for bounds, bound in ((leaf.space.low, -np.inf), (leaf.space.high, np.inf))
        )
        values = (self.dataset.columns[f"{stem}{leaf.name}"] for stem in ("", "next_"))
        columns = (*values, self.predictions[f"next_{leaf.name}"])
        vectors = (column.reshape(len(self.dataset), -1)[:, place] for column in columns)
        return Component(self.names[index], leaf.space.is_float, low, high, *vectors)

    def is_float(self, index: int) -> bool:
        """Whether a component is a real number."""
        return self.leaves[index][0].space.is_float

    @cached_property
    def errors(self) -> np.ndarray:
        """The largest error of each row's observation, in units of typical changes."""
        largest = np.zeros(len(self.dataset))
        for index in np.flatnonzero(~self.right.all(axis=0)).tolist():
            if self.is_float(index):
                error = self.component(index).errors
                largest = np.maximum(largest, np.nan_to_num(error, nan=np.inf, posinf=np.inf))
        return largest

    @cached_property
    def leaves(self) -> list[tuple[Leaf, int]]:
        """The leaf of each component, and its index there."""
        leaves = self.dataset.observation_space.leaves("observations")
        return [(leaf, place) for leaf in leaves for place in range(leaf.space.size)]


def difference(recorded: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    """Return recorded minus predicted numbers; predictions may be NaN or infinite."""
    with np.errstate(invalid="ignore", over="ignore"):
        missed: np.ndarray = recorded.astype(np.float64) - predicted
    return missed


def right_share(mask: np.ndarray) -> str:
    """Return the mean of a mask in percent, 100 % for no rows."""
    return percent(float(mask.mean()) if len(mask) else 1.0)


FAR = 3.0
"""Errors are far larger in some rows if their ratio to the remaining rows exceeds this."""


class Regime(NamedTuple):
    """A kind of transition and the mask of the rows of that kind."""

    name: str
    rows: np.ndarray


def _list_regimes(comparison: ComparedRows) -> Iterator[Regime]:
    """Yield ends, first steps of episodes, and rows with a real component or action at a bound.

    A component is at a bound of its space, or at an extreme that repeats exactly, as clipped
    values do.
    """
    columns = comparison.dataset.columns
    yield Regime("the episode terminates", comparison.terminal)
    first = np.zeros(len(comparison.dataset), dtype=np.bool_)
    first[np.unique(columns["episodes"], return_index=True)[1]] = True
    yield Regime("first step of an episode", first)
    indices = [i for i in range(len(comparison.names)) if comparison.is_float(i)]
    for part in map(comparison.component, indices[:40]):
        values = np.concatenate([part.before, part.recorded])
        # Few values repeat without clipping.
        if len(np.unique(values)) <= 10:
            continue
        low, high = values.min(), values.max()
        for word, extreme, bound in (("minimum", low, part.low), ("maximum", high, part.high)):
            if extreme == bound or (values == extreme).sum() > max(4, len(values) // 100):
                rows = (part.before == extreme) | (part.recorded == extreme)
                yield Regime(f"{part.name} is at its {word}, {float(extreme)!r}", rows)
    space = comparison.dataset.action_space
    if space.is_float:
        actions = columns["actions"].reshape(len(comparison.dataset), -1)
        low, high = (np.array(bounds, actions.dtype) for bounds in (space.low, space.high))
        at_bound = ((actions == low) | (actions == high)).any(axis=1)
        yield Regime("some action is at its bound", at_bound)


def failing_regimes(comparison: ComparedRows) -> list[Regime]:
    """Return the kinds of transition with more mistakes than other rows, the costliest first."""
    found = [
        regime
        for regime in _list_regimes(comparison)
        if regime.rows.any()
        and not regime.rows.all()
        and (worse_parts(comparison, regime.rows) or error_ratio(comparison, regime.rows) > FAR)
    ]
    return sorted(found, key=lambda regime: -comparison.lost[regime.rows].sum())


def error_ratio(comparison: ComparedRows, rows: np.ndarray) -> float:
    """Return the typical error of wrong observations in `rows`, relative to other rows."""
    wrong = comparison.mistakes["observation"]
    if not (wrong & rows).any() or not (wrong & ~rows).any():
        return 1.0
    here, elsewhere = (np.median(comparison.errors[wrong & mask]) for mask in (rows, ~rows))
    return float(here / elsewhere) if 0 < elsewhere < np.inf else 1.0


def worse_parts(comparison: ComparedRows, rows: np.ndarray) -> list[str]:
    """Return the parts that are wrong more often in `rows`: by 10 % and two standard errors."""
    worse = []
    for part, wrong in comparison.mistakes.items():
        here, elsewhere = wrong[rows].mean(), wrong[~rows].mean()
        chance = 2 * np.sqrt(elsewhere * (1 - elsewhere) / rows.sum())
        if here > elsewhere + max(0.1, chance):
            worse.append(part)
    return worse


def actions_taken(comparison: ComparedRows) -> list[Regime]:
    """Return the rows of each action, empty if there are more than 20 actions."""
    found = []
    for mask in rows_by_action(comparison.dataset):
        actions = comparison.dataset.columns["actions"].reshape(len(comparison.dataset), -1)
        first = actions[np.argmax(mask)].tolist()
        # The action of a discrete space is a number, others are arrays.
        name = first[0] if comparison.dataset.action_space.kind == "discrete" else first
        found.append(Regime(f"action {name}", mask))
    return found


def _plain(value: Any) -> Any:
    """Turn arrays into lists and numpy numbers into Python's, at full precision."""
    if isinstance(value, tuple):
        return tuple(map(_plain, value))
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def write_exactly(value: Any) -> str:
    """Write a value so that Python can read it back."""
    return repr(_plain(value))


EXAMPLES = "Wrongly predicted transitions, at full precision:"
"""Heading of the examples of a report."""

LONGEST_VALUE = 300
"""Values of more characters are shown by their wrong components only."""


class Example(NamedTuple):
    """A row and the reason for showing it."""

    row: int
    reason: str


def counterexample(
    dataset: Dataset, predictions: Columns, metric: Metric, description: str = ""
) -> str:
    """Show the first wrongly predicted transition, as in the publication."""
    comparison = ComparedRows.of(dataset, predictions, metric, description)
    row = int(np.argmax(comparison.wrong))
    return clean(
        "\n".join(["This transition is predicted wrongly:", "", *write_row(comparison, row)]),
        newlines=True,
    )


def worst(dataset: Dataset, predictions: Columns, metric: Metric, count: int) -> list[str]:
    """Write wrongly predicted rows: the costliest of each kind of mistake, then more."""
    comparison = ComparedRows.of(dataset, predictions, metric)
    chosen = _distinct(comparison, _kinds(comparison), count)
    return [clean("\n".join([reason, *lines]), newlines=True) for reason, lines in chosen]


def examples(
    comparison: ComparedRows, budget: int, first: Iterable[Example] = (), most: int = 8
) -> list[str]:
    """Return the lines of examples that fit into `budget` characters, at least one.

    The examples `first` come first. Others are the smallest error, and one for each part, each kind
    of transition with more mistakes, and each kind of mistake.
    """
    lines: list[str] = []
    candidates = chain(first, _typical_mistakes(comparison), _kinds(comparison))
    chosen = _distinct(comparison, candidates, most, write_value)
    for number, (reason, text) in enumerate(chosen, start=1):
        more = [f"({number}) {reason}", *(f"    {line}" for line in text)]
        budget -= sum(len(line) + 1 for line in more)
        if lines and budget < 0:
            break
        lines += more
    return lines


def write_row(
    comparison: ComparedRows, row: int, write: Callable[[Any], str] = write_exactly
) -> list[str]:
    """Return the lines of one row: input, recorded result and predicted result."""
    columns, predictions = comparison.dataset.columns, comparison.predictions
    space = comparison.dataset.observation_space
    before = write(space.unpack("observations", columns, row))
    action = write(comparison.dataset.action_space.unpack("actions", columns, row))
    kinds = [leaf.space.kind for leaf, _ in comparison.leaves]
    # Texts are useless if they are cut early.
    longest = LONGEST_TEXT if kinds.count("text") > len(kinds) / 2 else LONGEST_VALUE
    lines = [f"observation       {_cut(before, longest)}", f"action            {_cut(action)}"]
    if comparison.mistakes["observation"][row]:
        recorded = write(space.unpack("next_observations", columns, row))
        predicted = write(space.unpack("next_observations", predictions, row))
        if max(len(recorded), len(predicted)) > longest:
            lines += _wrong_components(comparison, row, write)
        else:
            lines.append(f"next observation  recorded  {recorded}")
            lines.append(f"                  predicted {predicted}")
    elif not comparison.wrong[row]:
        recorded = write(space.unpack("next_observations", columns, row))
        lines.append(f"next observation  {_cut(recorded, longest)}, right")
    else:
        right = "not scored after the end" if comparison.terminal[row] else "right"
        lines.append(f"next observation  {right}")
    return [*lines, *_outcomes(comparison, row)]


def _outcomes(comparison: ComparedRows, row: int) -> list[str]:
    """Return the lines of reward and termination, one if both are right, and of valid actions."""
    columns, predictions = comparison.dataset.columns, comparison.predictions
    matches = comparison.matches
    parts = [
        (part, name, bool(right[row]))
        for part, name, right in (
            ("reward", "rewards", matches.reward),
            ("terminated", "terminations", matches.terminated),
        )
        if right is not None
    ]
    if len(parts) == 2 and all(is_right for _, _, is_right in parts):
        reward, ended = (columns[name][row].item() for _, name, _ in parts)
        lines = [f"reward            {reward!r}, terminated {ended}: both right"]
    else:
        lines = []
        for part, name, is_right in parts:
            recorded, predicted = columns[name][row].item(), predictions[name][row].item()
            words = ", right" if is_right else f", predicted {predicted!r}"
            lines.append(f"{part:<17} {'' if is_right else 'recorded  '}{recorded!r}{words}")
    mistakes, space = comparison.mistakes.get("valid actions"), comparison.dataset.action_space
    if mistakes is not None and not comparison.terminal[row]:
        valid = list(space.masked(columns[VALID][row]))
        if mistakes[row]:
            guessed = list(space.masked(predictions[VALID][row] == 1))
            lines.append(f"valid actions     recorded  {valid}, predicted {guessed}")
        else:
            lines.append(f"valid actions     {valid}, right")
    return lines


def _wrong_components(comparison: ComparedRows, row: int, write: Callable[[Any], str]) -> list[str]:
    """Return a line for each of at most six wrong components, evenly spread."""
    wrong = np.flatnonzero(~comparison.right[row])
    total = comparison.right.shape[1]
    lines = [f"next observation  wrong in {len(wrong)} of {total} components"]
    spread = np.linspace(0, len(wrong) - 1, min(len(wrong), 6)).astype(int)
    for index in wrong[spread].tolist():
        part = comparison.component(index)
        values = [column[row] for column in (part.before, part.recorded, part.predicted)]
        if values[1].dtype.kind == "U" and max(map(len, values)) >= LONGEST_VALUE // 3:
            # Show long texts from shortly before their first difference.
            pairs = enumerate(zip(*values[1:], strict=False))
            shorter = min(map(len, values[1:]))
            first = next((at for at, (one, other) in pairs if one != other), shorter)
            start = max(0, first - 20)
            texts = [f"…[{start}:] {str(value)[start : start + 80]!r}" for value in values]
        else:
            texts = [_cut(write(value)) for value in values]
        before, recorded, predicted = texts
        lines.append(f"  {part.name}: was {before}, recorded {recorded}, predicted {predicted}")
    return lines


def _typical_mistakes(comparison: ComparedRows) -> Iterator[Example]:
    """Yield typical errors of real numbers, wrong parts and the worst kinds of transition."""
    rows = np.flatnonzero(comparison.mistakes["observation"])
    if len(rows) and any(leaf.space.is_float for leaf, _ in comparison.leaves):
        order = rows[np.argsort(comparison.errors[rows], kind="stable")]
        yield Example(int(order[0]), "smallest error")
        yield Example(int(order[len(order) // 2]), "typical error")
    for name in ("terminated", "reward", "valid actions"):
        wrong = comparison.mistakes.get(name)
        if wrong is not None and wrong.any():
            yield Example(int(np.argmax(np.where(wrong, comparison.lost, -1.0))), f"{name} wrong")
    for regime in failing_regimes(comparison)[:4]:
        rows = np.flatnonzero(regime.rows & comparison.wrong)
        yield Example(int(rows[np.argmax(comparison.lost[rows])]), regime.name)


def _kinds(comparison: ComparedRows) -> Iterator[Example]:
    """Yield three wrong rows of each kind of mistake in turn, the costliest kind first.

    A kind of mistake is an action and the parts that are wrong.
    """
    names = np.full(len(comparison.dataset), "", dtype=object)
    for regime in actions_taken(comparison):
        names[regime.rows] = f"{regime.name}: "
    groups: dict[str, list[int]] = defaultdict(list)
    for row in np.flatnonzero(comparison.wrong).tolist():
        wrong = [part for part, mask in comparison.mistakes.items() if mask[row]]
        groups[f"{names[row]}{', '.join(wrong)} wrong"].append(row)
    lost = comparison.lost
    costliest = sorted(groups, key=lambda reason: -lost[groups[reason]].sum())
    for turn in range(3):
        for reason in costliest:
            rows = sorted(groups[reason], key=lambda row: -lost[row])
            if turn < len(rows):
                yield Example(rows[turn], f"{reason} ({len(rows)} of this kind)")


def _distinct(
    comparison: ComparedRows,
    candidates: Iterable[Example],
    most: int,
    write: Callable[[Any], str] = write_exactly,
) -> Iterator[tuple[str, list[str]]]:
    """Yield the reason and the lines of at most `most` examples that look different."""
    seen: set[str] = set()
    for row, reason in candidates:
        lines = write_row(comparison, row, write)
        if len(seen) < most and (text := "\n".join(lines)) not in seen:
            seen.add(text)
            yield reason, lines


def _cut(text: str, longest: int = LONGEST_VALUE) -> str:
    """Shorten a long text."""
    if len(text) <= longest:
        return text
    return f"{text[: LONGEST_VALUE // 2]} … ({len(text)} characters, not all shown)"
