"""Traces as text: functions on plain numbers, and on arrays whose last axis is the lane."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from struct import Struct
from typing import Any

import numpy as np

from cwm_cli.translation.expressions import OPERATIONS, TraceNode, ordered
from cwm_cli.translation.paths import Tracer
from cwm_cli.translation.scalar import Functions
from cwm_cli.translation.states import Trace

DEEPEST = 20
"""Operations within one line: Python's parser nests brackets up to some 90 deep."""

FILE = "<emitted>"


_NAMES = {name: value for name, value in vars(math).items() if not name.startswith("_")} | {
    "np": np,
    "INF": math.inf,
    "NAN": math.nan,
    "pack": Struct("f").pack,
    "unpack": Struct("f").unpack,
}


_GUARDS = {
    **{name: ("{1}", 0.0, 0.0, False) for name in ("divide", "floor_divide", "remainder", "fmod")},
    "sqrt": ("{0} >= 0", -1e-300, math.inf, True),
    **{name: ("{0} > 0", 0.0, math.inf, True) for name in ("log", "log2", "log10")},
    **{name: ("-1 <= {0} <= 1", -1.0, 1.0, True) for name in ("arcsin", "arccos")},
    **{
        name: ("-1e18 < {0} < 1e18", -1e18, 1e18, True)
        for name in ("whole", "floor", "ceil", "trunc", "rint")
    },
}
"""Where operations on plain numbers do not fail, and the ranges within or without which that is."""


_EXTREMES = {
    "minimum": "np.where({1} < {0}, {1}, {0})",
    "maximum": "np.where({1} > {0}, {1}, {0})",
}
"""As plain numbers have them, where it matters which of two zeros it is."""


class Writer:
    """Writes nodes as lines of text; what is used more than once gets a name."""

    def __init__(
        self,
        outputs: Sequence[TraceNode],
        names: dict[TraceNode, str],
        tracer: Tracer,
        *,
        lanes: bool = False,
    ) -> None:
        self.lines: list[str] = []
        self.tables: dict[str, Any] = {}
        self._names, self._tracer, self._lanes = dict(names), tracer, lanes
        self._depth: dict[TraceNode, int] = {}
        self._uses = Counter(outputs)
        nodes = ordered(outputs, names)
        self._signed = any(node.op in ("copysign", "arctan2") for node in nodes)
        for node in nodes:
            text = self._operation(node) if node.op in OPERATIONS else ""
            for place, arg in enumerate(node.args):
                self._uses[arg] += max(1, text.count(f"{{{place}}}"))

    def text(self, root: TraceNode) -> str:
        """Return the text of a node, and write the lines that it needs."""
        for node in ordered([root], self._names):
            if node.op == "const":
                self._names[node] = self._literal(node)
                continue
            text = self._operation(node).format(*[self._names[arg] for arg in node.args])
            depth = 1 + max((self._depth.get(arg, 0) for arg in node.args), default=0)
            if self._uses[node] > 1 or depth > DEEPEST or self._lanes:
                self.lines.append(f"t{node.number} = {text}")
                text, depth = f"t{node.number}", 0
            self._names[node], self._depth[node] = text, depth
        return self._names[root]

    def texts(self, nodes: Iterable[TraceNode]) -> str:
        """Return a tuple of nodes."""
        return _tuple([self.text(node) for node in nodes])

    def taken(self) -> list[str]:
        """Return the lines since the last call."""
        lines, self.lines = self.lines, []
        return lines

    def checked(self, odd: TraceNode | None) -> list[str]:
        """Return lines that fail where the program has to answer."""
        if odd is None:
            return []
        condition = self.text(odd)
        return [*self.taken(), f"if {condition}: raise OverflowError"]

    def _literal(self, node: TraceNode) -> str:
        value = node.value
        if isinstance(value, float) and not math.isfinite(value):
            return {"inf": "INF", "-inf": "(-INF)"}.get(repr(value), "NAN")
        text = f"({value!r})" if repr(value).startswith("-") else repr(value)
        return f"np.float32({text})" if node.kind == "s" and self._lanes else text

    def _operation(self, node: TraceNode) -> str:
        operation = OPERATIONS[node.op]
        if node.op == "gather":
            return self._lookup(node)
        if self._lanes and self._signed and node.op in _EXTREMES:
            return _EXTREMES[node.op]
        if self._lanes:
            return operation.lanes
        text = self._guarded(node, operation.plain)
        rounds = node.kind == "s" and node.op not in ("single", "select", "minimum", "maximum")
        return (
            f"unpack(pack({text}))[0]"
            if rounds and node.op not in ("absolute", "negative")
            else text
        )

    def _guarded(self, node: TraceNode, text: str) -> str:
        """Keep plain numbers from failing where the result is not needed, as arrays do."""
        guard = _GUARDS.get(node.op)
        if guard is None:
            return text
        condition, least, most, inside = guard
        low, high = self._tracer.range(node.args[-1])
        safe = (low > least and high < most) if inside else (low > most or high < least)
        otherwise = "INF" if node.op == "divide" else "0.0"  # the first is noticed by its size
        return text if safe else f"({text} if {condition} else {otherwise})"

    def _lookup(self, node: TraceNode) -> str:
        table = f"T{node.number}"
        self.tables[table] = np.array(node.value) if self._lanes else node.value
        place = node.args[0]
        low, high = self._tracer.range(place) if not _by_action(place) else (0, 0)
        if not self._lanes or (low >= 0 and high < len(node.value)):
            return f"{table}[{{0}}]"
        return f"{table}.take({{0}}, mode='clip')"


def _by_action(place: TraceNode) -> bool:
    return place.op == "action" or (place.op == "subtract" and place.args[0].op == "action")


def _tuple(texts: Iterable[str]) -> str:
    return "(" + "".join(f"{text}, " for text in texts) + ")"


def _function(header: str, lines: Iterable[str], tables: dict[str, Any]) -> Callable[..., Any]:
    """Compile a function; what it uses becomes default arguments, which are quick to read."""
    body = "\n".join("    " + line for line in lines)
    names = _NAMES | tables
    used = [
        name for name in names if f"{name}(" in body or f"{name}[" in body or name in _CONSTANTS
    ]
    defaults = "".join(f", {name}={name}" for name in used if f"{name}" in body)
    name, _, parameters = header.partition("(")
    text = f"def {name}({parameters[:-1]}{defaults}):\n{body}\n"
    exec(compile(text, FILE, "exec"), names)  # noqa: S102  # written here, of numbers only
    made: Callable[..., Any] = names[name]
    return made


_CONSTANTS = ("INF", "NAN")


def _named(nodes: Sequence[TraceNode], letter: str) -> dict[TraceNode, str]:
    if len(nodes) == 1 and nodes[0].op == "action":
        return {nodes[0]: "action"}
    return {node: f"{letter}{place}" for place, node in enumerate(nodes)}


def _unpacked(names: dict[TraceNode, str], what: str) -> list[str]:
    plain = not names or list(names.values()) == [what]
    return [] if plain else [f"{_tuple(names.values())} = {what}"]


def plain(trace: Trace) -> Functions:
    """Return the functions of a trace on plain numbers."""
    observation, state = _named(trace.observation, "o"), _named(trace.slots, "s")
    action = _named(trace.action, "a")
    odd = [] if trace.odd is None else [trace.odd]
    entry = [] if trace.odd_entry is None else [trace.odd_entry]

    writer = Writer([*trace.entered, *entry], observation, trace.tracer)
    checks = writer.checked(trace.odd_entry)
    result = writer.texts(trace.entered)
    lines = [*_unpacked(observation, "observation"), *checks, *writer.lines, f"return {result}"]
    enter = _function("enter(observation)", lines, writer.tables)

    outputs = [trace.reward, trace.terminated]
    writer = Writer(
        [*trace.following, *trace.observed, *outputs, *odd], state | action, trace.tracer
    )
    checks = writer.checked(trace.odd)
    following, observed = writer.texts(trace.following), writer.texts(trace.observed)
    reward, end = map(writer.text, outputs)
    lines = [*_unpacked(state, "state"), *_unpacked(action, "action"), *checks, *writer.lines]
    lines.append(f"return {following}, {observed}, float({reward}), {end}")
    step = _function("step(state, action)", lines, writer.tables)
    return Functions(enter, step, _play(trace, state, action, odd))


def _play(
    trace: Trace, state: dict[TraceNode, str], action: dict[TraceNode, str], odd: list[TraceNode]
) -> Callable[..., Any]:
    """Return what takes many actions in one loop."""
    outputs = [*trace.following, trace.reward, trace.terminated, *odd]
    writer = Writer(outputs, state | action, trace.tracer)
    body = writer.checked(trace.odd)
    reward = writer.text(trace.reward)
    body += [*writer.taken(), f"total += factor * {reward}"]
    if trace.terminated.op != "const" or trace.terminated.value:
        end = writer.text(trace.terminated)
        body += [*writer.taken(), f"if {end}: return total, count, True"]
    following = writer.texts(trace.following)
    body += [*writer.taken(), "factor *= discount"]
    if trace.following:
        body.append(f"{_tuple(state.values())} = {following}")
    taken = list(action.values())
    each = "action" if taken == ["action"] else _tuple(taken)
    lines = [
        *_unpacked(state, "state"),
        "total, factor, count = 0.0, 1.0, 0",
        f"for count, {each} in enumerate(actions, 1):",
        *["    " + line for line in body],
        "return total, count, False",
    ]
    return _function("play(state, actions, discount)", lines, writer.tables)


def lanes(
    trace: Trace,
    inputs: Sequence[TraceNode],
    state: Sequence[TraceNode],
    others: Sequence[TraceNode],
) -> Callable[..., tuple[tuple[Any, ...], tuple[Any, ...]]]:
    """Return a function on arrays: from inputs to the next state and others."""
    names = {node: f"x{place}" for place, node in enumerate(inputs)}
    writer = Writer([*state, *others], names, trace.tracer, lanes=True)
    first, rest = writer.texts(state), writer.texts(others)
    header = f"lanes({', '.join(names.values())})"
    return _function(header, [*writer.lines, f"return {first}, {rest}"], writer.tables)
