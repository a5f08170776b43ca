"""Instrumented programs, which record the values of variables and try changes.

A place is an expression that a statement can assign to: a name, an attribute or an element. A site
is a place and the statement that reads it next. One instrumented program contains all changes. The
number of the change is part of the observation, so one prediction of many rows tries many changes.
"""

import ast
import builtins
import io
import tokenize
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_cli.data.spaces import Columns, Space
from cwm_induction.continuous.samples import Array
from cwm_induction.refining.constants import split_lines

BASE = "Uncorrected"
"""The name of the class of the original program within the instrumented one."""

MAX_PLACES = 16
"""Most places that are recorded before a statement: the latest assignments."""

MAX_STATEMENTS = 40
"""Most statements of a program before which a correction is tried."""

MAX_ROWS = 20_000
"""Most rows of one prediction."""

Predict = Callable[[str, Dataset], Columns]
"""Predicts the rows of a dataset; returns {} if the program fails."""


class Site(NamedTuple):
    """A place that the statement with this index is about to read."""

    statement: int
    place: str


class TracedStatement(NamedTuple):
    """A statement of a method.

    Attributes:
        method: The name of the method.
        line: The number of its first line, from 1.
        indent: The indentation in characters.
        reads: The places that it reads.
        known: The places that are assigned before it.
        is_open: Whether lines can be inserted before it.
        block: The first line of its block.
        assigns: The places that it assigns.
    """

    method: str
    line: int
    indent: int
    reads: tuple[str, ...]
    known: tuple[str, ...]
    is_open: bool
    block: int
    assigns: frozenset[str]


@dataclass(frozen=True)
class TracedSource:
    """The text of a program that defines `class Environment`."""

    text: str

    @cached_property
    def tree(self) -> ast.Module:
        """The syntax tree."""
        return ast.parse(self.text)

    @cached_property
    def lines(self) -> list[str]:
        """The lines of the text, with their ends."""
        return split_lines(self.text)

    @cached_property
    def body(self) -> list[ast.stmt]:
        """The statements of the class."""
        classes = [
            node
            for node in self.tree.body
            if isinstance(node, ast.ClassDef) and node.name == "Environment"
        ]
        return classes[-1].body if classes else []

    @cached_property
    def methods(self) -> list[ast.FunctionDef]:
        """The methods that predict, `step` first."""
        methods = [node for node in self.body if isinstance(node, ast.FunctionDef)]
        methods = [node for node in methods if node.name not in ("__init__", "set_state")]
        return sorted(methods, key=lambda node: node.name != "step")

    @cached_property
    def letters(self) -> list[str]:
        """The characters of string constants, such as the cells of a map."""
        nodes = list(ast.walk(self.tree))
        docstrings = [node.value for node in nodes if isinstance(node, ast.Expr)]
        constants = [n for n in nodes if isinstance(n, ast.Constant) and n not in docstrings]
        texts = [each.value for each in constants if isinstance(each.value, str)]
        return sorted(set("".join(texts)))[:8]

    @cached_property
    def statements(self) -> list[TracedStatement]:
        """The statements of the methods."""
        found = []
        for method in self.methods:
            for block, node in _walk_statements(method.body):
                is_elif = self.lines[node.lineno - 1].strip().startswith("elif")
                is_open = self.begins_line(node) and not is_elif
                known = _known_places(method, node)
                reads = tuple(place for place in _read_places(node) if place in known)
                spot = node.lineno, node.col_offset
                assigns = frozenset(place_of(each) for each in ast.walk(node) if _is_stored(each))
                found.append(
                    TracedStatement(method.name, *spot, reads, known, is_open, block, assigns)
                )
        return found[:MAX_STATEMENTS]

    @cached_property
    def sites(self) -> list[Site]:
        """The places that a statement is about to read or that the previous one has assigned."""
        found: dict[Site, None] = {}
        before: dict[int, frozenset[str]] = {}
        for number, statement in enumerate(self.statements):
            fresh = sorted(before.get(statement.block, frozenset()) & set(statement.known))
            before[statement.block] = statement.assigns
            if statement.is_open:
                places = [place for place in statement.reads if place != "action"]
                places += [place for place in fresh if "self" not in place]
                found.update((Site(number, place), None) for place in places)
        return list(found)

    def begins_line(self, node: ast.stmt) -> bool:
        """Whether a statement begins a line, and has no decorators in other lines."""
        is_first = not self.lines[node.lineno - 1][: node.col_offset].strip()
        return is_first and not getattr(node, "decorator_list", [])

    def earliest(self, site: Site) -> int:
        """Return the first statement of the block before which a change has the same effect."""
        found, own = site.statement, self.statements[site.statement]
        for number in range(site.statement - 1, -1, -1):
            statement = self.statements[number]
            if statement.method != own.method or site.place in statement.reads:
                break
            if statement.block == own.block:
                if site.place in statement.assigns or site.place not in statement.known:
                    break
                found = number if statement.is_open else found
        return found

    def with_lines(self, number: int, lines: Sequence[str]) -> str:
        """Return the text with lines inserted before a statement."""
        return self.with_all_lines({number: lines})

    def with_all_lines(self, inserted: Mapping[int, Sequence[str]]) -> str:
        """Return the text with lines inserted before statements."""
        lines = [*self.lines]
        for number, new in inserted.items():
            statement = self.statements[number]
            indent = self.lines[statement.line - 1][: statement.indent]
            text = "".join(f"{indent}{line}\n" for line in new)
            lines[statement.line - 1] = text + lines[statement.line - 1]
        return "".join(lines)


def rename(text: str, names: dict[str, str]) -> str:
    """Rename names in a program, except attributes."""
    lines, before = text.splitlines(keepends=True), ""
    found: list[tuple[int, int, str]] = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.NAME and token.string in names and before != ".":
            found.append((*token.start, token.string))
        before = token.string
    for row, column, name in reversed(found):
        line = lines[row - 1]
        lines[row - 1] = line[:column] + names[name] + line[column + len(name) :]
    return "".join(lines)


def place_of(node: ast.AST) -> str:
    """Return the text of an expression that is a place, "" for others."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        owner = place_of(node.value)
        return f"{owner}.{node.attr}" if owner else ""
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        owner = place_of(node.value)
        return f"{owner}[{node.slice.value!r}]" if owner else ""
    return ""


def is_loaded(node: ast.AST) -> bool:
    """Whether an expression reads a place."""
    return isinstance(getattr(node, "ctx", None), ast.Load)


def _is_stored(node: ast.AST) -> bool:
    return isinstance(getattr(node, "ctx", None), ast.Store)


def _walk_statements(body: list[ast.stmt]) -> Iterator[tuple[int, ast.stmt]]:
    """Yield the first line of the block and the statement, outer statements first."""
    for statement in body:
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            continue
        yield body[0].lineno, statement
        for name in ("body", "orelse"):
            inner = getattr(statement, name, [])
            if isinstance(inner, list) and not isinstance(statement, ast.FunctionDef):
                yield from _walk_statements(inner)


def _known_places(method: ast.FunctionDef, until: ast.stmt) -> tuple[str, ...]:
    """Return the places that are assigned before a statement, and elements of the state."""
    found = dict.fromkeys(argument.arg for argument in method.args.args if argument.arg != "self")
    loops = [node.target for node in ast.walk(method) if isinstance(node, ast.comprehension)]
    inner = {each.id for loop in loops for each in ast.walk(loop) if isinstance(each, ast.Name)}
    state: dict[str, None] = {}
    for node in ast.walk(method):
        place = place_of(node)
        if not place or place in inner:
            continue
        if _is_stored(node) and getattr(node, "lineno", 0) < until.lineno:
            found.pop(place, None)
            found[place] = None
        if place.startswith("self.") and place.endswith("]") and place.count(".") == 1:
            state[place] = None
    places = [*found][-MAX_PLACES:]
    elements = [place for place in state if place not in found]
    return (*places, *elements[: MAX_PLACES - len(places)])


def _read_places(statement: ast.stmt) -> list[str]:
    """Return the places that a statement reads; for a compound statement, in its head."""
    part: ast.AST = statement
    if isinstance(statement, ast.If | ast.While):
        part = statement.test
    elif isinstance(statement, ast.For):
        part = statement.iter
    found = [place_of(node) for node in ast.walk(part) if is_loaded(node)]
    if isinstance(part, ast.AugAssign):
        found.append(place_of(part.target))
    hidden = set(dir(builtins))
    return list(dict.fromkeys(place for place in found if place and place not in hidden))


_HELPERS = '''

import numpy as np


class Trial:
    """The change of this row, and the recorded values."""

    variant, site, value = 0, -1, 0.0
    seen = {}


def changed(site, value):
    """Return the value of a place, or the other value if this row changes the site."""
    if site != Trial.site or isinstance(value, str):
        return value
    new = Trial.value
    if isinstance(value, (bool, np.bool_)):
        return bool(new)
    if isinstance(value, (int, np.integer)) and new == int(new):
        return int(new)
    return new


def record(start, *places):
    """Record the values of places when a statement is reached for the first time."""
    if start in Trial.seen:
        return
    Trial.seen[start] = 0.0
    for number, place in enumerate(places):
        try:
            value = place()
            is_number = not isinstance(value, str) and np.ndim(value) == 0
            Trial.seen[start + number] = float(value if is_number else "nan")
        except Exception:
            Trial.seen[start + number] = float("nan")
'''

_ENVIRONMENT = """
LOADED = {{}}
UNSEEN, FAILED = np.full({width}, 1e300), np.full({width}, -1e300)


class Environment:
    def set_state(self, observation):
        given, trial = observation
        self.given = given
        Trial.variant, Trial.site, Trial.value = int(trial[0]), int(trial[1]), float(trial[2])
        Trial.seen = {{}}

    def step(self, action):
        given = self.given if np.ndim(self.given) == 0 else self.given.copy()
        try:
            if Trial.variant not in LOADED:
                LOADED[Trial.variant] = VARIANTS[Trial.variant]()
            environment = LOADED[Trial.variant]
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


class TrialResult(NamedTuple):
    """The results of a changed program.

    Attributes:
        predicted: The predicted numbers: of the observation, the reward and the end.
        failed: The mask of the failed rows.
        seen: The recorded values.
    """

    predicted: Array
    failed: Array
    seen: Array


class SourceChange(NamedTuple):
    """A change that is tried on some rows: a variant of the program, or new values at a site.

    `values` has a number for each row. Without a site (-1), all places are recorded; with site -2,
    none are.
    """

    rows: Array
    variant: int = 0
    site: int = -1
    values: Array | float = 0.0


@dataclass(frozen=True)
class ProgramTracer:
    """Tries changes of a program on the rows of a dataset, and spends work for them.

    `variants` are texts that replace a method or a value of the class.
    """

    source: TracedSource
    data: Dataset
    predict: Predict
    spend: Callable[[float], bool]
    variants: Sequence[str] = ()

    @cached_property
    def columns(self) -> list[Site]:
        """The recorded values: the known places before each statement."""
        return [
            Site(number, place)
            for number, statement in enumerate(self.source.statements)
            if statement.is_open
            for place in statement.known
        ]

    @property
    def width(self) -> int:
        """How many numbers are added to an observation, in both directions."""
        return max(3, len(self.columns))

    @cached_property
    def program(self) -> str:
        """The instrumented program."""
        space, valid = self.data.observation_space, self.data.has_valid_actions
        answer = "int(answer)"
        if space.kind != "discrete":
            kind = "float" if space.is_float else "int"
            answer = f"np.asarray(answer).astype({kind}).reshape({space.shape})"
        classes = [
            f"\n\nclass Variant{number}({BASE}):\n{variant}\n"
            for number, variant in enumerate(self.variants, 1)
        ]
        names = [BASE, *(f"Variant{n}" for n in range(1, len(self.variants) + 1))]
        environment = _ENVIRONMENT.format(
            answer=answer,
            width=self.width,
            rest=", *rest" if valid else "",
            none=", []" if valid else "",
        )
        variants = f"\n\nVARIANTS = [{', '.join(names)}]\n"
        program = rename(self._instrumented(), {"Environment": BASE})
        return "".join([program, _HELPERS, *classes, variants, environment])

    def run(self, changes: Sequence[SourceChange]) -> list[TrialResult] | None:
        """Try changes, each on its rows; return None if the program fails or no work is left."""
        total = sum(len(change.rows) for change in changes)
        if not total or not self.spend(20.0 * total):
            return None
        batches = np.cumsum([len(change.rows) for change in changes]) // MAX_ROWS
        found: list[TrialResult] = []
        for batch in np.unique(batches):
            chosen = [changes[n] for n in np.flatnonzero(batches == batch).tolist()]
            results = self._run_batch(chosen)
            if results is None:
                return None
            found += results
        return found

    def _run_batch(self, changes: Sequence[SourceChange]) -> list[TrialResult] | None:
        sizes = [len(change.rows) for change in changes]
        rows, extra = np.concatenate([change.rows for change in changes]), []
        for change, size in zip(changes, sizes, strict=True):
            given = np.zeros((size, self.width))
            given[:, 0], given[:, 1], given[:, 2] = change[1:]
            extra.append(given)
        columns = self.predict(self.program, self._dataset(rows, np.concatenate(extra)))
        if not columns:
            return None
        seen = columns["next_observations.1"]
        predicted = flat_predictions(
            {**columns, "next_observations": columns["next_observations.0"]}
        )
        failed = (seen == -1e300).all(axis=1)
        seen = np.where(np.abs(seen) > 1e299, np.nan, seen)
        parts = [np.split(each, np.cumsum(sizes)[:-1]) for each in (predicted, failed, seen)]
        return [TrialResult(*each) for each in zip(*parts, strict=True)]

    def _dataset(self, rows: Array, extra: Array) -> Dataset:
        """Return rows with numbers added to their observations."""
        part, high = self.data[rows], (np.inf,) * self.width
        added = Space("box", "float64", (self.width,), tuple(-value for value in high), high)
        space = Space("tuple", children=(self.data.observation_space, added))
        fields = ("observations", "next_observations")
        columns = {f"{n}.0" if n in fields else n: c for n, c in part.columns.items()}
        columns["observations.1"] = columns["next_observations.1"] = extra
        columns["episodes"] = np.arange(len(rows))
        return replace(part, columns=columns, observation_space=space)

    def _instrumented(self) -> str:
        """Return the text with calls that record and change the places before each statement."""
        inserted = {}
        for number, statement in enumerate(self.source.statements):
            if not statement.is_open:
                continue
            inserted[number] = [
                f"{site.place} = changed({index}, {site.place})"
                for index, site in enumerate(self.source.sites)
                if site.statement == number
            ]
            if statement.known:
                start = self.columns.index(Site(number, statement.known[0]))
                places = ", ".join(f"lambda: {place}" for place in statement.known)
                call = f"if Trial.site == -1: record({start}, {places})"
                inserted[number].insert(0, call)
        return self.source.with_all_lines(inserted)


def flat_predictions(columns: Columns) -> Array:
    """Return the predicted numbers of each row: the observation, the reward and the end."""
    names = ("next_observations", "rewards", "terminations")
    count = len(columns["rewards"])
    return np.concatenate([columns[n].reshape(count, -1).astype(float) for n in names], axis=1)
