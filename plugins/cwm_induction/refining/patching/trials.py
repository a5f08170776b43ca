"""Trying changed programs on rows, many in one question to the sandbox.

What a row is asked for carries which change applies to it, in numbers beside its observation;
what it answers carries the values that places had. So all changes of a program are one program.
"""

import ast
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_cli.data.spaces import Columns, Space
from cwm_induction.continuous.samples import Array
from cwm_induction.flattening import number_leaves
from cwm_induction.refining.patching.source import PLAIN, CorrectedText, Site

MOST_ROWS = 20_000
"""Rows of one question; more go into several."""

LETTER = 1e6
"""What stands for a text of one character is this and the number of the character."""

Ask = Callable[[str, Dataset], Columns]
"""Predicts the rows of a dataset, {} where the program fails."""

_HELPERS = '''

import numpy as np


class Trial:
    """Which change applies, and what places were seen to hold."""

    variant, site, factor, summand = 0, -1, 1.0, 0.0
    seen = {}


def changed(site, value):
    """Return what a place holds, another value where that is the change."""
    if site != Trial.site or isinstance(value, str):
        return value
    new = Trial.factor * value + Trial.summand
    if isinstance(value, (bool, np.bool_)):
        return bool(new)
    if isinstance(value, (int, np.integer)) and new == int(new):
        return int(new)
    return new


def looked(start, *places):
    """Keep what places hold when a statement is reached for the first time."""
    if start in Trial.seen:
        return
    Trial.seen[start] = 0.0
    for number, place in enumerate(places):
        try:
            value = place()
            if isinstance(value, str):
                value = 1e6 + ord(value) if len(value) == 1 else None
            elif np.ndim(value) != 0:
                value = None
            Trial.seen[start + number] = float(value)
        except Exception:
            Trial.seen[start + number] = float("nan")
'''

_ENVIRONMENT = """
KEPT = {{}}
UNSEEN, FAILED = np.full({width}, 1e300), np.full({width}, -1e300)


class Environment:
    def set_state(self, observation):
        given, trial = observation
        self.given = given
        Trial.variant, Trial.site = int(trial[0]), int(trial[1])
        Trial.factor, Trial.summand = float(trial[2]), float(trial[3])
        Trial.seen = {{}}

    def step(self, action):
        given = self.given if np.ndim(self.given) == 0 else self.given.copy()
        try:
            if Trial.variant not in KEPT:
                KEPT[Trial.variant] = VARIANTS[Trial.variant]()
            environment = KEPT[Trial.variant]
            environment.set_state(given)
            answer, reward, terminated, *rest = environment.step(action)
            answer = {answer}
            reward, terminated = float(reward), bool(terminated)
            if not (np.isfinite(np.asarray(answer, float)).all() and np.isfinite(reward)):
                raise ValueError
            seen = UNSEEN
            if Trial.seen:
                seen = UNSEEN.copy()
                for place, value in Trial.seen.items():
                    seen[place] = value if np.isfinite(value) else 1e300
            return (answer, seen), reward, terminated{rest}
        except Exception:
            return (self.given, FAILED), 0.0, False{none}
"""


class TrialAnswers(NamedTuple):
    """What changed programs say: the usual columns, the rows that failed, and what was seen."""

    columns: Columns
    failed: Array
    seen: Array

    def part(self, start: int, stop: int) -> "TrialAnswers":
        """Return some of the rows."""
        columns = {name: column[start:stop] for name, column in self.columns.items()}
        return TrialAnswers(columns, self.failed[start:stop], self.seen[start:stop])


class PlaceChange(NamedTuple):
    """A change to try on some rows: a variant of the program, or other values at a site.

    There a place holds `factor` times what it held plus `summand`, a number for every row.
    """

    rows: Array
    variant: int = 0
    site: int = -1
    factor: Array | float = 1.0
    summand: Array | float = 0.0


@dataclass(frozen=True)
class ProgramTrials:
    """Tries changes of a program on the rows of a dataset; what is asked is counted."""

    source: CorrectedText
    data: Dataset
    ask: Ask
    spend: Callable[[float], bool]
    variants: Sequence[str] = field(default=())

    @cached_property
    def sites(self) -> list[Site]:
        """The sites of the program, which changes name by their number."""
        return self.source.sites

    @cached_property
    def columns(self) -> list[tuple[int, str]]:
        """The position and the place of every number that is seen."""
        return [
            (number, place)
            for number, position in enumerate(self.source.positions)
            if position.is_open
            for place in position.known
        ]

    @cached_property
    def program(self) -> str:
        """The one program that holds all changes."""
        space, valid = self.data.observation_space, self.data.has_valid_actions
        answer = "int(answer)"
        if space.kind != "discrete":
            kind = "float" if space.is_float else "int"
            answer = f"np.asarray(answer).astype({kind}).reshape({space.shape})"
        text = self.source.renamed() + _HELPERS + self._traced()
        names = ["Traced"]
        for number, variant in enumerate(self.variants, 1):
            text += f"\n\nclass Variant{number}({PLAIN}):\n{variant}\n"
            names.append(f"Variant{number}")
        text += f"\n\nVARIANTS = [{', '.join(names)}]\n"
        return text + _ENVIRONMENT.format(
            answer=answer,
            width=self.width,
            rest=", *rest" if valid else "",
            none=", []" if valid else "",
        )

    @property
    def width(self) -> int:
        """How many numbers go beside an observation, both ways."""
        return max(4, len(self.columns))

    def run(self, changes: Sequence[PlaceChange]) -> list[TrialAnswers] | None:
        """Try changes, each on its rows; None where they cannot be tried."""
        total = sum(len(change.rows) for change in changes)
        if not total or not self.spend(20.0 * total):
            return None
        found: list[TrialAnswers] = []
        start = 0
        while start < len(changes):
            stop, count = start, 0
            while stop < len(changes) and (
                count == 0 or count + len(changes[stop].rows) <= MOST_ROWS
            ):
                count += len(changes[stop].rows)
                stop += 1
            answers = self._asked(changes[start:stop])
            if answers is None:
                return None
            found += answers
            start = stop
        return found

    def _asked(self, changes: Sequence[PlaceChange]) -> list[TrialAnswers] | None:
        """Try changes in one question."""
        rows = np.concatenate([change.rows for change in changes])
        padding = np.zeros((len(rows), self.width))
        ends = np.cumsum([len(change.rows) for change in changes])
        starts = ends - [len(change.rows) for change in changes]
        for change, start, end in zip(changes, starts, ends, strict=True):
            padding[start:end, 0], padding[start:end, 1] = change.variant, change.site
            padding[start:end, 2], padding[start:end, 3] = change.factor, change.summand
        columns = self.ask(self.program, self._dataset(rows, padding))
        if not columns:
            return None
        seen = columns.pop("next_observations.1")
        columns = {
            name.replace("next_observations.0", "next_observations"): column
            for name, column in columns.items()
        }
        every = TrialAnswers(
            columns, (seen == -1e300).all(axis=1), np.where(np.abs(seen) > 1e299, np.nan, seen)
        )
        return [every.part(start, end) for start, end in zip(starts, ends, strict=True)]

    def _dataset(self, rows: Array, padding: Array) -> Dataset:
        """Return rows with numbers beside their observations."""
        part = self.data[rows]
        high = (np.inf,) * self.width
        beside = Space("box", "float64", (self.width,), tuple(-value for value in high), high)
        space = Space("tuple", children=(self.data.observation_space, beside))
        columns: Columns = {}
        for name, column in part.columns.items():
            for start in ("observations", "next_observations"):
                if name == start or name.startswith(f"{start}."):
                    name = name.replace(start, f"{start}.0", 1)
                    break
            columns[name] = column
        columns["observations.1"] = columns["next_observations.1"] = padding
        columns["episodes"] = np.arange(len(rows))
        return replace(part, columns=columns, observation_space=space)

    def _traced(self) -> str:
        """Write the methods once more, with what looks at places and changes them."""
        starts: dict[int, int] = {}
        for number, (position, _) in enumerate(self.columns):
            starts.setdefault(position, number)
        sites: dict[int, list[tuple[int, str]]] = {}
        for number, (position, place) in enumerate(self.sites):
            sites.setdefault(position, []).append((number, place))
        by_line = {
            (position.method, position.line): number
            for number, position in enumerate(self.source.positions)
            if position.is_open
        }
        text = f"\n\nclass Traced({PLAIN}):\n"
        for method in self.source.methods:
            copy = deepcopy(method)
            self._instrument(copy.body, copy.name, by_line, starts, sites)
            text += "\n".join(f"    {line}" for line in ast.unparse(copy).splitlines()) + "\n\n"
        return text + ("    pass\n" if not self.source.methods else "")

    def _instrument(
        self,
        body: list[ast.stmt],
        method: str,
        by_line: dict[tuple[str, int], int],
        starts: dict[int, int],
        sites: dict[int, list[tuple[int, str]]],
    ) -> None:
        """Put what looks and changes before every statement of a body."""
        for statement in list(body):
            for name in ("body", "orelse"):
                inner = getattr(statement, name, None)
                if isinstance(inner, list):
                    self._instrument(inner, method, by_line, starts, sites)
            number = by_line.get((method, statement.lineno))
            if number is None:
                continue
            added = []
            if number in starts:
                known = self.source.positions[number].known
                places = ", ".join(f"lambda: {place}" for place in known)
                added.append(f"if Trial.site < 0: looked({starts[number]}, {places})")
            added += [
                f"{place} = changed({site}, {place})" for site, place in sites.get(number, [])
            ]
            body[body.index(statement) : body.index(statement)] = ast.parse("\n".join(added)).body


def outputs(space: Space, columns: Columns) -> Array:
    """Return every number that is predicted, a line for each row: what is seen, reward, end."""
    seen = [
        columns[leaf.name].reshape(len(columns["rewards"]), -1).astype(float)
        for leaf in number_leaves(space, "next_observations")
    ]
    ends = [columns[name].astype(float)[:, None] for name in ("rewards", "terminations")]
    return np.concatenate([*seen, *ends], axis=1)
