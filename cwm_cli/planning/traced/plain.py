"""A trace as three functions of plain numbers."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from cwm_cli.planning.model import LARGEST
from cwm_cli.planning.traced.emission import Writer, compiled
from cwm_cli.planning.traced.node import Node
from cwm_cli.planning.traced.tracing import Trace

State = tuple[bool | int | float, ...]


class Plain(NamedTuple):
    """What a program computes; where it fails they may fail in another way.

    `enter` returns the state at an observation, `step` the next state, the
    observation, the reward and whether the episode ended, and `play` the
    discounted sum of rewards, the number of steps and whether it ended.
    """

    enter: Callable[[Sequence[Any]], State]
    step: Callable[[State | None, Any], tuple[State, State, float, bool]]
    play: Callable[[State | None, Iterable[Any], float], tuple[float, int, bool]]


def plain(trace: Trace) -> Plain:
    """Write and compile the functions of a trace."""
    return Plain(_enter(trace), _step(trace), _play(trace))


def _enter(trace: Trace) -> Callable[..., Any]:
    """Return what leads from an observation to a state."""
    names = _names(trace.observation, "o")
    writer = Writer([*trace.entered, trace.odd_entry], names)
    odd = _refusal(writer, trace.odd_entry)
    state = _tuple([writer.text(node) for node in trace.entered])
    lines = [*_unpacked(trace.observation, "o", "observation"), *odd, *_taken(writer)]
    return compiled("enter(observation)", [*lines, f"return {state}"], writer.tables)


def _step(trace: Trace) -> Callable[..., Any]:
    """Return what takes one step."""
    names = _names(trace.state, "s") | _names(trace.action, "a")
    outputs = [*trace.following, *trace.observed, trace.reward, trace.terminated]
    writer = Writer([*outputs, trace.odd], names)
    odd = _refusal(writer, trace.odd)
    *texts, reward, terminated = [writer.text(node) for node in outputs]
    count = len(trace.following)
    lines = [*_unpacked(trace.state, "s", "state"), *_unpacked(trace.action, "a", "action"), *odd]
    result = f"{_tuple(texts[:count])}, {_tuple(texts[count:])}, float({reward}), {terminated}"
    return compiled(
        "step(state, action)", [*lines, *writer.lines, f"return {result}"], writer.tables
    )


def _play(trace: Trace) -> Callable[..., Any]:
    """Return what takes many steps, without their observations."""
    names = _names(trace.state, "s") | _names(trace.action, "a")
    rewards = [trace.reward] * (1 if bounded(trace.reward) else 2)
    writer = Writer([*trace.following, *rewards, trace.terminated, trace.odd], names)
    odd = _refusal(writer, trace.odd)
    reward = writer.text(trace.reward)
    body = [] if bounded(trace.reward) else [f"if not {-LARGEST} < {reward} < {LARGEST}:"]
    body += ["    raise OverflowError"] * len(body)
    body.append(f"total += factor * {reward}" if reward != "1.0" else "total += factor")
    body = [*odd, *_taken(writer), *body]
    if trace.terminated is not trace.graph.false:
        terminated = writer.text(trace.terminated)
        body += [*_taken(writer), f"if {terminated}:", "    return total, count, True"]
    state = [writer.text(node) for node in trace.following]
    body += [*_taken(writer), "factor *= discount"]
    if state:
        body.append(f"{_tuple(_names(trace.state, 's').values())} = {_tuple(state)}")
    actions = list(_names(trace.action, "a").values())
    action = "action" if actions == ["action"] else _tuple(actions)
    lines = [
        *_unpacked(trace.state, "s", "state"),
        "total, factor, count = 0.0, 1.0, 0",
        f"for count, {action} in enumerate(actions, 1):",
        *[f"    {line}" for line in body],
        "return total, count, False",
    ]
    return compiled("play(state, actions, discount)", lines, writer.tables)


def bounded(node: Node) -> bool:
    """Whether a node has one of a few values that are small enough."""
    if node.operation in ("constant", "table", "index"):
        return all(abs(float(value)) < LARGEST for value in node.values)
    return node.operation == "select" and all(map(bounded, node.operands[1:]))


def _names(nodes: Sequence[Node], letter: str) -> dict[Node, str]:
    """Name symbols; the number of an action is known as that."""
    if len(nodes) == 1 and nodes[0].values == ("action",):
        return {nodes[0]: "action"}
    return {node: f"{letter}{number}" for number, node in enumerate(nodes)}


def _unpacked(nodes: Sequence[Node], letter: str, name: str) -> list[str]:
    """Return a statement that gives symbols their values."""
    names = list(_names(nodes, letter).values())
    return [f"{_tuple(names)} = {name}"] if names and names != [name] else []


def _refusal(writer: Writer, odd: Node) -> list[str]:
    """Return statements that fail where a program does what is not known."""
    if odd.is_constant:
        return []
    text = writer.text(odd)
    return [*_taken(writer), f"if {text}: raise OverflowError"]


def _taken(writer: Writer) -> list[str]:
    """Return the statements written since the last time."""
    lines, writer.lines = writer.lines, []
    return lines


def _tuple(texts: Iterable[str]) -> str:
    """Write a tuple."""
    return "(" + "".join(f"{text}, " for text in texts) + ")"
