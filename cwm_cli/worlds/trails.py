"""Which ways a program takes through its own text: branches, clipped values, keys looked up.

A program is rewritten so that it notes them, and asked row by row in a process of its own.
"""

from __future__ import annotations

import ast
import builtins
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple
from zlib import crc32

import numpy as np

from cwm_cli.sandbox.handlers import ConfinedProgram, Handler, reseed, values
from cwm_cli.sandbox.job import ModelJob, SlotLayout

if TYPE_CHECKING:
    from cwm_cli.sandbox.client import Sandbox

MOST_EVENTS = 48
"""Different events of a step that are told apart; the rules of one that has more are not known."""

MOST_SITES = 4000
"""Places in a text that are watched; what comes after them is not."""

LOOKUP = 1 << 63
"""The bit of events that are keys; the others are arms of branches."""

RECORDER = "__trail__"
"""The name under which a watched program finds what records it."""

_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "Eq": operator.eq,
    "NotEq": operator.ne,
    "Lt": operator.lt,
    "LtE": operator.le,
    "Gt": operator.gt,
    "GtE": operator.ge,
    "Is": operator.is_,
    "IsNot": operator.is_not,
    "In": lambda value, container: value in container,
    "NotIn": lambda value, container: value not in container,
}

SITE = 40
"""By how many bits the number of a site stands above that of an arm."""
_KEY = (1 << 32) - 1


@dataclass(frozen=True, kw_only=True)
class TrailsJob(ModelJob):
    """Which ways a program takes at each of its rows.

    The answers are a row of events for each, all ones where it
    failed, and the line of every site.
    """

    handler: ClassVar[str] = "cwm_cli.worlds.trails:TrailsHandler"
    aim: ClassVar[str] = "every row was answered"

    @property
    def layout(self) -> SlotLayout:
        """Where the answers go."""
        rows = len(self.actions[0])
        return SlotLayout(
            [("events", "<u8", (rows, MOST_EVENTS)), ("lines", "<i8", (MOST_SITES,))], rows
        )


class TrailsHandler(Handler[TrailsJob]):
    """Has the program take a step at every row, rewritten so that it notes its ways."""

    job_class = TrailsJob

    def run(self, program: ConfinedProgram) -> None:
        """Ask for one row after the other; one at which the program fails has no trail."""
        job, slots, recorder = self.job, program.slots, Recorder()
        rewritten = watched(job.program)
        slots["lines"][: len(rewritten.lines)] = rewritten.lines[:MOST_SITES]
        setattr(builtins, RECORDER, recorder)
        code = compile(rewritten.tree, "<program>", "exec", dont_inherit=True)
        environment = ConfinedProgram(code, job, slots).load()
        pairs = zip(
            values(job.observation_space, iter(job.observations)),
            values(job.action_space, iter(job.actions)),
            strict=True,
        )
        for row, (observation, action) in enumerate(islice(pairs, len(slots["events"]))):
            if job.draws:
                reseed(job.seed)
            recorder.begin()
            try:
                environment.set_state(observation)
                environment.step(action)
                slots["events"][row] = as_row(list(recorder.events))
            except Exception:  # noqa: BLE001  # programs raise what they like
                slots["events"][row] = np.iinfo(np.uint64).max
            slots["status"][row] = 1
            program.counter[0] = row + 1


class Trails(NamedTuple):
    """The events of every row that was asked, and the line of every site."""

    events: np.ndarray
    lines: np.ndarray


def trails(sandbox: Sandbox, job: TrailsJob) -> Trails | None:
    """Have a program followed; None where it fails, or cannot be watched."""
    reply: Any = sandbox.run(job)
    if reply.failure is not None or not np.all(reply.slots["status"]):
        return None
    return Trails(np.array(reply.slots["events"]), np.array(reply.slots["lines"]))


class Recorder:
    """Notes what happens at the sites of a watched program; `events` are those since `begin`.

    An arm is a site and which way was taken there, a lookup a site and the key.
    """

    def __init__(self) -> None:
        self.events: dict[int, None] = {}

    def begin(self) -> None:
        """Forget what was noted."""
        self.events = {}

    def arm(self, site: int, value: Any) -> Any:
        """Note whether a condition holds."""
        if isinstance(value, bool | np.bool_):
            self.events[site << SITE | bool(value)] = None
        return value

    def chain(self, site: int, names: str, *values: Any) -> Any:
        """Compare `a <= b < c` link by link, and note which of them hold, up to one that does not.

        Plainly the last values would not be evaluated behind a link that does not hold.
        """
        holds: Any = True
        for place, (name, pair) in enumerate(zip(names.split(), pairwise(values), strict=True)):
            holds = self.arm(site + place, _COMPARE[name](*pair))
            if not holds:
                break
        return holds

    def truth(self, site: int, value: Any) -> Any:
        """Note whether something counts as true."""
        if not isinstance(value, np.ndarray):
            self.events[site << SITE | bool(value)] = None
        return value

    def pick(self, site: int, choose: Callable[..., Any], *values: Any) -> Any:
        """Note which of several values `min` or `max` chooses."""
        chosen = choose(*values)
        place = next((n for n, value in enumerate(values) if value is chosen), 0)
        self.events[site << SITE | place] = None
        return chosen

    def key(self, site: int, key: Any) -> Any:
        """Note a key that is looked up."""
        self.events[LOOKUP | site << SITE | crc32(repr(_plain(key)).encode()) & _KEY] = None
        return key

    @staticmethod
    def lookup(table: Any, keys: tuple[Any, ...]) -> Any:
        """Look up one key after the other."""
        for key in keys:
            table = table[key]
        return table


class Watched(NamedTuple):
    """A text that tells a `Recorder` its ways, and the line of every site."""

    tree: ast.Module
    lines: list[int]


def watched(text: str) -> Watched:
    """Rewrite a program so that it notes its ways, and otherwise does what it did."""
    tree = ast.parse(text)
    rewriting = _Rewriting()
    made = ast.fix_missing_locations(rewriting.visit(tree))
    return Watched(made, rewriting.lines)


def as_row(events: Sequence[int]) -> np.ndarray:
    """Return events as a row of numbers, zeros behind; all ones where they are too many."""
    row = np.zeros(MOST_EVENTS, np.uint64)
    if len(events) > MOST_EVENTS:
        row[:] = np.iinfo(np.uint64).max
    else:
        row[: len(events)] = np.array(events, np.uint64)
    return row


class _Rewriting(ast.NodeTransformer):
    """Puts calls of the recorder around conditions, choices and keys."""

    def __init__(self) -> None:
        self.lines: list[int] = [0]  # so that no event is 0

    def visit_Compare(self, node: ast.Compare) -> Any:
        """Watch whether a comparison holds, and the key of `in`."""
        self.generic_visit(node)
        if len(node.ops) > 1:
            names = ast.Constant(" ".join(type(op).__name__ for op in node.ops))
            made = self._call(node, "chain", names, node.left, *node.comparators)
            self.lines += [node.lineno] * (len(node.ops) - 1)
            return made
        if isinstance(node.ops[0], ast.In | ast.NotIn):
            node.left = self._call(node, "key", node.left)
        return self._call(node, "arm", node)

    def visit_BoolOp(self, node: ast.BoolOp) -> Any:
        """Watch each operand, as far as they are evaluated."""
        self.generic_visit(node)
        node.values = [self._truth(value) for value in node.values]
        return node

    def visit_If(self, node: ast.If) -> Any:
        """Watch a branch."""
        self.generic_visit(node)
        node.test = self._truth(node.test)
        return node

    visit_IfExp = visit_While = visit_If  # type: ignore[assignment]

    def visit_Subscript(self, node: ast.Subscript) -> Any:
        """Watch the keys of `table[key]`, those of `table[a][b]` together."""
        if not isinstance(node.ctx, ast.Load):
            self.generic_visit(node)
            return node
        keys, inner = [node.slice], node
        while isinstance(inner.value, ast.Subscript):
            inner = inner.value
            keys.append(inner.slice)
        inner.value = self.visit(inner.value)
        if not all(map(_is_key, keys)) or all(isinstance(key, ast.Constant) for key in keys):
            self._visit_keys(node)
            return node
        self._visit_keys(node)
        if len(keys) == 1:
            node.slice = self._call(node, "key", node.slice)
            return node
        return self._jointly(node)

    def visit_Call(self, node: ast.Call) -> Any:
        """Watch the keys of `table.get(key, default)`, and what `min` and `max` choose."""
        self.generic_visit(node)
        function = node.func
        plain = not node.keywords and not any(isinstance(each, ast.Starred) for each in node.args)
        if plain and isinstance(function, ast.Attribute) and function.attr == "get" and node.args:
            node.args[0] = self._call(node, "key", node.args[0])
        chooses = isinstance(function, ast.Name) and function.id in ("min", "max")
        if plain and chooses and len(node.args) > 1:
            return self._call(node, "pick", function, *node.args)
        return node

    def _visit_keys(self, node: ast.expr) -> None:
        """Watch what is within keys."""
        while isinstance(node, ast.Subscript):
            node.slice = self.visit(node.slice)
            node = node.value

    def _jointly(self, node: ast.Subscript) -> Any:
        """Evaluate all keys of nested subscripts, note them as one, then look up."""
        keys: list[ast.expr] = []
        table: ast.expr = node
        while isinstance(table, ast.Subscript):
            keys.insert(0, table.slice)
            table = table.value
        noted = self._call(node, "key", ast.Tuple(keys, ast.Load()))
        looked = _function("lookup")
        return ast.copy_location(ast.Call(looked, [table, noted], []), node)

    def _truth(self, value: ast.expr) -> ast.expr:
        """Watch whether something counts as true, unless that is watched already."""
        if isinstance(value, ast.BoolOp | ast.Constant):
            return value
        if isinstance(value, ast.Call) and ast.unparse(value.func) == f"{RECORDER}.arm":
            return value
        made: ast.expr = self._call(value, "truth", value)
        return made

    def _call(self, node: ast.expr, method: str, *args: ast.expr) -> Any:
        """Have the recorder called where a node is; too many sites are let be."""
        if len(self.lines) >= MOST_SITES:
            return args[-1] if method != "pick" else node
        self.lines.append(node.lineno)
        site = ast.Constant(len(self.lines) - 1)
        call = ast.Call(_function(method), [site, *args], [])
        return ast.copy_location(call, node)


def _function(method: str) -> ast.Attribute:
    return ast.Attribute(ast.Name(RECORDER, ast.Load()), method, ast.Load())


def _is_key(key: ast.expr) -> bool:
    """Whether a subscript looks something up, rather than cutting a part out."""
    return not any(isinstance(part, ast.Slice | ast.Starred) for part in ast.walk(key))


def _plain(key: Any) -> Any:
    """Return a key as it is written, whatever type of number it holds."""
    if isinstance(key, tuple | list):
        return tuple(map(_plain, key))
    return key.tolist() if isinstance(key, np.generic | np.ndarray) else key
