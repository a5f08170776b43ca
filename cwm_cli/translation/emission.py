"""Python source for traces: functions on plain numbers, and on arrays of many lanes.

The last axis of every array is the lane.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from struct import Struct
from typing import Any, NamedTuple

import numpy as np

from cwm_cli.translation.expressions import OPERATIONS, TraceNode, topological_order
from cwm_cli.translation.paths import Tracer
from cwm_cli.translation.states import Trace

FILE = "<emitted>"

_CONSTANTS = {"INF": math.inf, "NAN": math.nan}
_GLOBALS = {name: value for name, value in vars(math).items() if not name.startswith("_")} | {
    "np": np,
    **_CONSTANTS,
    "pack": Struct("f").pack,
    "unpack": Struct("f").unpack,
}

# For each operation that can raise on plain numbers: the condition under which it does not,
# a low and a high bound, and whether the last operand is safe inside (True) or outside them.
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

# Python's choice between 0.0 and -0.0, for programs that use the sign of zero.
_EXTREMES = {
    "minimum": "np.where({1} < {0}, {1}, {0})",
    "maximum": "np.where({1} > {0}, {1}, {0})",
}


class CodeWriter:
    """A writer of nodes as lines of Python; values that are used repeatedly get a variable.

    Args:
        outputs: The nodes that will be written.
        names: Variables of the inputs.
        tracer: The tracer of the nodes, which knows their ranges.
        lanes: Write NumPy code instead of plain Python.
    """

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
        nodes = topological_order(outputs, names)
        self._signed = any(node.op in ("copysign", "arctan2") for node in nodes)
        for node in nodes:
            # A guard or a NaN check repeats its operand, which then needs a variable.
            text = self._template(node) if node.op in OPERATIONS else ""
            for place, arg in enumerate(node.args):
                self._uses[arg] += max(1, text.count(f"{{{place}}}"))

    def text(self, root: TraceNode) -> str:
        """Return an expression for a node, after writing the lines that it depends on."""
        for node in topological_order([root], self._names):
            if node.op == "const":
                self._names[node] = self._literal(node)
                continue
            text = self._template(node).format(*[self._names[arg] for arg in node.args])
            depth = 1 + max((self._depth.get(arg, 0) for arg in node.args), default=0)
            # Python's parser fails at about 90 nested brackets.
            if self._uses[node] > 1 or depth > 20 or self._lanes:
                self.lines.append(f"t{node.number} = {text}")
                text, depth = f"t{node.number}", 0
            self._names[node], self._depth[node] = text, depth
        return self._names[root]

    def tuple_text(self, nodes: Iterable[TraceNode]) -> str:
        """Return a tuple expression for nodes."""
        return _tuple([self.text(node) for node in nodes])

    def take_lines(self) -> list[str]:
        """Return the lines written since the last call."""
        lines, self.lines = self.lines, []
        return lines

    def fallback_check(self, fallback: TraceNode) -> list[str]:
        """Return lines that raise OverflowError if the program has to compute the step."""
        if fallback.op == "const" and not fallback.value:
            return []
        condition = self.text(fallback)
        return [*self.take_lines(), f"if {condition}: raise OverflowError"]

    def _literal(self, node: TraceNode) -> str:
        value = node.value
        if isinstance(value, float) and not math.isfinite(value):
            return {"inf": "INF", "-inf": "(-INF)"}.get(repr(value), "NAN")
        text = f"({value!r})" if repr(value).startswith("-") else repr(value)
        return f"np.float32({text})" if node.kind == "s" and self._lanes else text

    def _template(self, node: TraceNode) -> str:
        operation = OPERATIONS[node.op]
        if node.op == "gather":
            return self._lookup_template(node)
        if self._lanes and self._signed and node.op in _EXTREMES:
            return _EXTREMES[node.op]
        if self._lanes:
            return operation.lanes
        text = self._guard(node, operation.plain)
        exact = ("single", "select", "minimum", "maximum", "absolute", "negative")
        # Packing rounds a Python float to single precision.
        return f"unpack(pack({text}))[0]" if node.kind == "s" and node.op not in exact else text

    def _guard(self, node: TraceNode, text: str) -> str:
        """Make an operation return a number instead of raising, as arrays do."""
        if node.op not in _GUARDS:
            return text
        condition, least, most, inside = _GUARDS[node.op]
        low, high = self._tracer.range(node.args[-1])
        safe = (low > least and high < most) if inside else (low > most or high < least)
        otherwise = "INF" if node.op == "divide" else "0.0"  # the size check detects INF
        return text if safe else f"({text} if {condition} else {otherwise})"

    def _lookup_template(self, node: TraceNode) -> str:
        table = f"T{node.number}"
        self.tables[table] = np.array(node.value) if self._lanes else node.value
        place = node.args[0]
        low, high = self._tracer.range(place) if not _is_action_index(place) else (0, 0)
        # Lanes whose program has ended or failed may have an index outside the table.
        if not self._lanes or (low >= 0 and high < len(node.value)):
            return f"{table}[{{0}}]"
        return f"{table}.take({{0}}, mode='clip')"


def _is_action_index(place: TraceNode) -> bool:
    return place.op == "action" or (place.op == "subtract" and place.args[0].op == "action")


def _tuple(texts: Iterable[str]) -> str:
    return "(" + "".join(f"{text}, " for text in texts) + ")"


def _compile_function(
    header: str, lines: Iterable[str], tables: dict[str, Any]
) -> Callable[..., Any]:
    """Compile a function; names from outside become default arguments, which are fast to read."""
    body = "\n".join("    " + line for line in lines)
    names = _GLOBALS | tables
    used = [
        name
        for name in names
        if f"{name}(" in body or f"{name}[" in body or (name in _CONSTANTS and name in body)
    ]
    defaults = "".join(f", {name}={name}" for name in used)
    name, _, parameters = header.partition("(")
    text = f"def {name}({parameters[:-1]}{defaults}):\n{body}\n"
    exec(compile(text, FILE, "exec"), names)  # noqa: S102  # our own text, of numbers only
    function: Callable[..., Any] = names[name]
    return function


def _input_names(nodes: Sequence[TraceNode], letter: str) -> dict[TraceNode, str]:
    if len(nodes) == 1 and nodes[0].op == "action":
        return {nodes[0]: "action"}
    return {node: f"{letter}{place}" for place, node in enumerate(nodes)}


def _unpack(names: dict[TraceNode, str], variable: str) -> list[str]:
    if not names or list(names.values()) == [variable]:
        return []
    return [f"{_tuple(names.values())} = {variable}"]


class ScalarFunctions(NamedTuple):
    """Emitted functions on plain numbers: enter a state, take a step, play actions."""

    enter: Callable[[Sequence[Any]], Any]
    step: Callable[[Any, Any], tuple[Any, Sequence[Any], float, bool]]
    play: Callable[[Any, Iterable[Any], float], tuple[float, int, bool]]


def emit_scalar(trace: Trace) -> ScalarFunctions:
    """Return the functions of a trace on plain numbers."""
    observation, state = _input_names(trace.observation, "o"), _input_names(trace.slots, "s")
    action = _input_names(trace.action, "a")

    writer = CodeWriter([*trace.entry_state, trace.entry_fallback], observation, trace.tracer)
    checks = writer.fallback_check(trace.entry_fallback)
    result = writer.tuple_text(trace.entry_state)
    lines = [*_unpack(observation, "observation"), *checks, *writer.lines, f"return {result}"]
    enter = _compile_function("enter(observation)", lines, writer.tables)

    outputs = [trace.reward, trace.terminated]
    writer = CodeWriter(
        [*trace.next_state, *trace.next_observation, *outputs, trace.fallback],
        state | action,
        trace.tracer,
    )
    checks = writer.fallback_check(trace.fallback)
    next_state = writer.tuple_text(trace.next_state)
    observed = writer.tuple_text(trace.next_observation)
    reward, end = map(writer.text, outputs)
    lines = [*_unpack(state, "state"), *_unpack(action, "action"), *checks, *writer.lines]
    lines.append(f"return {next_state}, {observed}, float({reward}), {end}")
    step = _compile_function("step(state, action)", lines, writer.tables)
    return ScalarFunctions(enter, step, _emit_play(trace, state, action))


def _emit_play(
    trace: Trace, state: dict[TraceNode, str], action: dict[TraceNode, str]
) -> Callable[..., Any]:
    """Return a function that takes many actions in one loop."""
    outputs = [*trace.next_state, trace.reward, trace.terminated, trace.fallback]
    writer = CodeWriter(outputs, state | action, trace.tracer)
    body = writer.fallback_check(trace.fallback)
    reward = writer.text(trace.reward)
    body += [*writer.take_lines(), f"total += factor * {reward}"]
    if trace.terminated.op != "const" or trace.terminated.value:
        end = writer.text(trace.terminated)
        body += [*writer.take_lines(), f"if {end}: return total, count, True"]
    next_state = writer.tuple_text(trace.next_state)
    body += [*writer.take_lines(), "factor *= discount"]
    if trace.next_state:
        body.append(f"{_tuple(state.values())} = {next_state}")
    variables = list(action.values())
    target = "action" if variables == ["action"] else _tuple(variables)
    lines = [
        *_unpack(state, "state"),
        "total, factor, count = 0.0, 1.0, 0",
        f"for count, {target} in enumerate(actions, 1):",
        *["    " + line for line in body],
        "return total, count, False",
    ]
    return _compile_function("play(state, actions, discount)", lines, writer.tables)


def emit_batched(
    trace: Trace,
    inputs: Sequence[TraceNode],
    state: Sequence[TraceNode],
    others: Sequence[TraceNode],
) -> Callable[..., tuple[tuple[Any, ...], tuple[Any, ...]]]:
    """Return a NumPy function from the inputs to two tuples: the next state, other outputs."""
    names = {node: f"x{place}" for place, node in enumerate(inputs)}
    writer = CodeWriter([*state, *others], names, trace.tracer, lanes=True)
    first, rest = writer.tuple_text(state), writer.tuple_text(others)
    header = f"lanes({', '.join(names.values())})"
    return _compile_function(header, [*writer.lines, f"return {first}, {rest}"], writer.tables)
