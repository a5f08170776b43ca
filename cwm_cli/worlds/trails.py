"""Trails: the branches that a program takes and the keys that it looks up in a step.

The program is instrumented so that it records these events. A process of its own then runs it on
each row.
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

MAX_EVENTS = 48
"""Maximum number of different events in a step. The trail of a step with more is unknown."""

MAX_SITES = 4000
"""Maximum number of instrumented places in a program; later places are not instrumented."""

LOOKUP = 1 << 63
"""The bit that marks events as lookups of keys; other events are arms of branches."""

SITE_SHIFT = 40
"""An event is `site << SITE_SHIFT`, plus the number of the arm or a checksum of the key."""

RECORDER = "__trail__"
"""The builtin name under which an instrumented program finds its `Recorder`."""

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


@dataclass(frozen=True, kw_only=True)
class TrailsJob(ModelJob):
    """A job that records the trail of a program on each of its rows."""

    handler: ClassVar[str] = "cwm_cli.worlds.trails:TrailsHandler"
    aim: ClassVar[str] = "every row was answered"

    @property
    def layout(self) -> SlotLayout:
        """Slots for the events of each row, and for the line number of each site."""
        rows = len(self.actions[0])
        return SlotLayout(
            [("events", "<u8", (rows, MAX_EVENTS)), ("lines", "<i8", (MAX_SITES,))], rows
        )


class TrailsHandler(Handler[TrailsJob]):
    """Runs one step of the instrumented program on each row."""

    job_class = TrailsJob

    def run(self, program: ConfinedProgram) -> None:
        """Write the events of each row; if the program fails there, the trail is unknown."""
        job, slots, recorder = self.job, program.slots, Recorder()
        instrumented = instrument(job.program)
        slots["lines"][: len(instrumented.lines)] = instrumented.lines
        setattr(builtins, RECORDER, recorder)
        code = compile(instrumented.tree, "<program>", "exec", dont_inherit=True)
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
                slots["events"][row] = encode_events(list(recorder.events))
            except Exception:  # noqa: BLE001  # programs can raise any exception
                slots["events"][row] = np.iinfo(np.uint64).max
            slots["status"][row] = 1
            program.counter[0] = row + 1


class Trails(NamedTuple):
    """The trails of a program.

    Args:
        events: (rows, MAX_EVENTS), the events of each row as `encode_events` returns them.
        lines: The line number of each site.
    """

    events: np.ndarray
    lines: np.ndarray


def record_trails(sandbox: Sandbox, job: TrailsJob) -> Trails | None:
    """Record the trails of a program. Return None if it fails or cannot be instrumented."""
    reply: Any = sandbox.run(job)
    if reply.failure is not None or not np.all(reply.slots["status"]):
        return None
    return Trails(np.array(reply.slots["events"]), np.array(reply.slots["lines"]))


def encode_events(events: Sequence[int]) -> np.ndarray:
    """Return (MAX_EVENTS,) integers: events, then zeros. All bits are set if there are too many."""
    row = np.zeros(MAX_EVENTS, np.uint64)
    if len(events) > MAX_EVENTS:
        row[:] = np.iinfo(np.uint64).max
    else:
        row[: len(events)] = np.array(events, np.uint64)
    return row


class Recorder:
    """Records events for an instrumented program; `events` has those since `begin`, in order."""

    def __init__(self) -> None:
        self.events: dict[int, None] = {}

    def begin(self) -> None:
        """Delete the recorded events."""
        self.events = {}

    def arm(self, site: int, value: Any) -> Any:
        """Record whether a comparison is true; results that are not bool are not recorded."""
        if isinstance(value, bool | np.bool_):
            self.events[site << SITE_SHIFT | bool(value)] = None
        return value

    def chain(self, site: int, names: str, *values: Any) -> Any:
        """Evaluate `a <= b < c`, and record each comparison up to the first that is false.

        Plain Python would not evaluate the values after that comparison.
        """
        holds: Any = True
        for place, (name, pair) in enumerate(zip(names.split(), pairwise(values), strict=True)):
            holds = self.arm(site + place, _COMPARE[name](*pair))
            if not holds:
                break
        return holds

    def truth(self, site: int, value: Any) -> Any:
        """Record the truth value of a condition; arrays have none."""
        if not isinstance(value, np.ndarray):
            self.events[site << SITE_SHIFT | bool(value)] = None
        return value

    def pick(self, site: int, choose: Callable[..., Any], *values: Any) -> Any:
        """Record which of several values `min` or `max` returns."""
        chosen = choose(*values)
        place = next((n for n, value in enumerate(values) if value is chosen), 0)
        self.events[site << SITE_SHIFT | place] = None
        return chosen

    def key(self, site: int, key: Any) -> Any:
        """Record the lookup of a key."""
        self.events[LOOKUP | site << SITE_SHIFT | crc32(repr(_plain(key)).encode())] = None
        return key

    @staticmethod
    def lookup(table: Any, keys: tuple[Any, ...]) -> Any:
        """Return `table[a][b]` for the keys (a, b)."""
        for key in keys:
            table = table[key]
        return table


def _plain(key: Any) -> Any:
    """Return a key without numpy types, so that equal keys have equal representations."""
    if isinstance(key, tuple | list):
        return tuple(map(_plain, key))
    return key.tolist() if isinstance(key, np.generic | np.ndarray) else key


class InstrumentedProgram(NamedTuple):
    """The tree of a program that calls a `Recorder`, and the line number of each site."""

    tree: ast.Module
    lines: list[int]


def instrument(text: str) -> InstrumentedProgram:
    """Insert calls of a `Recorder` into a program, which otherwise behaves as before."""
    instrumenter = _Instrumenter()
    tree = ast.fix_missing_locations(instrumenter.visit(ast.parse(text)))
    return InstrumentedProgram(tree, instrumenter.lines)


class _Instrumenter(ast.NodeTransformer):
    """Wraps conditions, choices and keys in calls of the recorder."""

    def __init__(self) -> None:
        self.lines: list[int] = [0]  # site 0 is not used, so that no event is 0

    def visit_Compare(self, node: ast.Compare) -> Any:
        """Record the result of a comparison, and the key of `key in table`."""
        self.generic_visit(node)
        if len(node.ops) > 1:
            names = ast.Constant(" ".join(type(op).__name__ for op in node.ops))
            values = names, node.left, *node.comparators
            return self._record(node, "chain", *values, sites=len(node.ops))
        if isinstance(node.ops[0], ast.In | ast.NotIn):
            node.left = self._record(node, "key", node.left)
        return self._record(node, "arm", node)

    def visit_BoolOp(self, node: ast.BoolOp) -> Any:
        """Record each operand that is evaluated."""
        self.generic_visit(node)
        node.values = [self._record_truth(value) for value in node.values]
        return node

    def visit_If(self, node: ast.If) -> Any:
        """Record the condition of a branch."""
        self.generic_visit(node)
        node.test = self._record_truth(node.test)
        return node

    visit_IfExp = visit_While = visit_If  # type: ignore[assignment]

    def visit_Subscript(self, node: ast.Subscript) -> Any:
        """Record the key of `table[key]`, and both keys of `table[a][b]` as one event."""
        if not isinstance(node.ctx, ast.Load):
            self.generic_visit(node)
            return node
        nested = [node]
        while isinstance(nested[-1].value, ast.Subscript):
            nested.append(nested[-1].value)
        slices = [subscript.slice for subscript in nested]
        constant = all(isinstance(part, ast.Constant) for part in slices)
        is_lookup = all(map(_is_key, slices)) and not constant
        nested[-1].value = table = self.visit(nested[-1].value)
        for subscript in nested:
            subscript.slice = self.visit(subscript.slice)
        if is_lookup and len(nested) == 1:
            node.slice = self._record(node, "key", node.slice)
        elif is_lookup:
            # evaluate and record all keys before the first lookup
            keys = ast.Tuple([subscript.slice for subscript in reversed(nested)], ast.Load())
            call = ast.Call(_recorder("lookup"), [table, self._record(node, "key", keys)], [])
            return ast.copy_location(call, node)
        return node

    def visit_Call(self, node: ast.Call) -> Any:
        """Record the key of `table.get(key, default)`, and the choice of `min` and `max`."""
        self.generic_visit(node)
        function = node.func
        if node.keywords or any(isinstance(argument, ast.Starred) for argument in node.args):
            return node
        if isinstance(function, ast.Attribute) and function.attr == "get" and node.args:
            node.args[0] = self._record(node, "key", node.args[0])
        chooses = isinstance(function, ast.Name) and function.id in ("min", "max")
        if chooses and len(node.args) > 1:
            return self._record(node, "pick", function, *node.args)
        return node

    def _record_truth(self, value: ast.expr) -> ast.expr:
        """Record a truth value, unless it is constant or its parts are recorded already."""
        if isinstance(value, ast.BoolOp | ast.Constant):
            return value
        if isinstance(value, ast.Call) and ast.unparse(value.func) == f"{RECORDER}.arm":
            return value
        recorded: ast.expr = self._record(value, "truth", value)
        return recorded

    def _record(self, node: ast.expr, method: str, *args: ast.expr, sites: int = 1) -> Any:
        """Return a call of the recorder at a node; beyond `MAX_SITES` the expression itself."""
        if len(self.lines) + sites > MAX_SITES:
            return node if method in ("chain", "pick") else args[-1]
        site = ast.Constant(len(self.lines))
        self.lines += [node.lineno] * sites
        return ast.copy_location(ast.Call(_recorder(method), [site, *args], []), node)


def _recorder(method: str) -> ast.Attribute:
    return ast.Attribute(ast.Name(RECORDER, ast.Load()), method, ast.Load())


def _is_key(part: ast.expr) -> bool:
    """Return whether a subscript is a key rather than a slice."""
    return not any(isinstance(child, ast.Slice | ast.Starred) for child in ast.walk(part))
