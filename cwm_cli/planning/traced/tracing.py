"""A program, run once with symbols instead of numbers, as expressions."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from cwm_cli.data.spaces import Space
from cwm_cli.planning.model import Unbatched
from cwm_cli.planning.traced.functions import FUNCTIONS
from cwm_cli.planning.traced.graph import Graph
from cwm_cli.planning.traced.masks import Masks
from cwm_cli.planning.traced.node import Node
from cwm_cli.planning.traced.rewriting import assuming, ordered
from cwm_cli.planning.traced.standing import changeable, standing_in
from cwm_cli.planning.traced.symbols import HANDLERS, LANES, Symbols
from cwm_cli.planning.traced.symbols import nodes as nodes_of
from cwm_cli.planning.traced.trees import Tree, Trees, leaves, numbers_in, replaced
from cwm_cli.planning.traced.widening import Widening

HANDLERS.update(FUNCTIONS)

LARGEST_DOMAIN = 64
"""So many actions at most are told apart before a program is run."""

_ROUNDS = 8


@dataclass(frozen=True)
class Trace:
    """What `set_state` and `step` compute: nodes of the next state, the observation and so on.

    The state is what steps need of the attributes; nobody steps from a
    terminated state. Where `odd`, or `odd_entry` for `set_state`, is true the
    program does something else.
    """

    graph: Graph
    observation: tuple[Node, ...]
    action: tuple[Node, ...]
    state: tuple[Node, ...]
    entered: tuple[Node, ...]
    following: tuple[Node, ...]
    observed: tuple[Node, ...]
    reward: Node
    terminated: Node
    odd_entry: Node
    odd: Node


class Outputs(NamedTuple):
    """What a step returned, and where it did not."""

    observed: tuple[Node, ...]
    reward: Node
    terminated: Node
    odd: Node


def traced(make: Callable[[], Any], observation_space: Space, action_space: Space) -> Trace:
    """Return what a program does, given what makes its `Environment` for lanes."""
    try:
        return Tracer(make, observation_space, action_space).trace()
    except Unbatched:
        raise
    except Exception as error:  # symbols are no numbers, which may fail anywhere
        raise Unbatched(f"it cannot be run without numbers: {error}") from error


class Tracer:
    """Runs a program that was made for lanes with symbols."""

    def __init__(
        self, make: Callable[[], Any], observation_space: Space, action_space: Space
    ) -> None:
        self._make = make
        self._graph = Graph(actions_of(action_space))
        self._trees = Trees(self._graph)
        self._observation = symbols_of(self._graph, observation_space, "o")
        self._action = symbols_of(self._graph, action_space, "a")
        self._size = observation_space.size
        self._first = vars(self._made())
        self._masks = Masks(self._graph)
        self._entered: dict[str, Tree] = {}

    def trace(self) -> Trace:
        """Return the expressions, without what no step needs."""
        environment = self._made()
        with self._masks.replacing(), standing_in(self._graph):
            environment.set_state(self._observation)
        odd_entry = self._masks.taken()
        self._entered = self._attributes(environment)
        form, after, outputs = self._settled()
        state, entered, following = (
            self._leaves(form, trees) for trees in (form, self._entered, after)
        )
        live = _live(state, following, outputs)
        return Trace(
            self._graph,
            observation=_one_lane(self._observation),
            action=_one_lane(self._action),
            state=tuple(state[place] for place in live),
            entered=tuple(entered[place] for place in live),
            following=tuple(following[place] for place in live),
            observed=outputs.observed,
            reward=outputs.reward,
            terminated=outputs.terminated,
            odd_entry=odd_entry,
            odd=outputs.odd,
        )

    def _made(self) -> Any:
        """Return the object as it is when the program has just been made."""
        environment = self._make()
        for name, value in vars(environment).items():
            setattr(environment, name, changeable(value, self._graph))
        return environment

    def _settled(self) -> tuple[dict[str, Tree], dict[str, Tree], Outputs]:
        """Return a form of the state that no step leaves, and what a step makes of it."""
        widened = Widening(self._graph)
        form = {name: widened(tree, tree) for name, tree in self._entered.items()}
        for _ in range(_ROUNDS):
            count = len(widened.symbols)
            after, outputs = self._stepped(form)
            wider = {
                name: widened(self._tree(form, name), self._tree(after, name))
                for name in form.keys() | after.keys()
            }
            if len(widened.symbols) == count and wider.keys() == form.keys():
                return form, after, outputs
            form = wider
        raise Unbatched("its attributes never settle")

    def _stepped(self, form: Mapping[str, Tree]) -> tuple[dict[str, Tree], Outputs]:
        """Return the attributes after a step that did not end the episode, and its results."""
        environment = self._made()
        for name, tree in form.items():
            setattr(environment, name, self._trees.value(tree))
        with self._masks.replacing(), standing_in(self._graph):
            outputs = self._outputs(environment.step(self._action))
        after = self._attributes(environment)
        nodes = [node for tree in after.values() for node in leaves(tree, tree, self._graph)]
        going_on = assuming(self._graph, nodes, outputs.terminated, holds=False)
        new = dict(zip(nodes, going_on, strict=True))
        return {name: replaced(tree, new) for name, tree in after.items()}, outputs

    def _outputs(self, result: Any) -> Outputs:
        """Return the expressions of what a step returned."""
        if not isinstance(result, tuple) or len(result) != 3:
            raise Unbatched("step does not return three things")
        observed, *others = (tuple(numbers_in(self._trees.tree(part))) for part in result)
        if [len(part) for part in (observed, *others)] != [self._size, 1, 1]:
            raise Unbatched("step does not return numbers of the right shape")
        (reward,), (end,) = others
        if end.kind == "f":
            raise Unbatched("terminated is a real number")
        if end.kind == "i":
            end = self._graph.apply("not_equal", end, self._graph.false, kind="b")
        return Outputs(observed, reward, end, self._masks.taken())

    def _attributes(self, environment: Any) -> dict[str, Tree]:
        """Return the attributes that are not what they were at first."""
        trees = {}
        for name, value in vars(environment).items():
            known = name in self._first
            if known and value is self._first[name] and not isinstance(value, list | dict):
                continue
            tree = self._trees.tree(value)
            if not known or tree != self._trees.tree(self._first[name]):
                trees[name] = tree
        return trees

    def _tree(self, trees: Mapping[str, Tree], name: str) -> Tree:
        """Return the tree of an attribute, which may be what it was at first."""
        return trees[name] if name in trees else self._trees.tree(self._first[name])

    def _leaves(self, form: Mapping[str, Tree], trees: Mapping[str, Tree]) -> list[Node]:
        """Return the nodes of attributes in the order of a form's."""
        pairs = ((form[name], self._tree(trees, name)) for name in sorted(form))
        return [node for pair in pairs for node in leaves(*pair, self._graph)]


def symbols_of(graph: Graph, space: Space, name: str) -> Symbols:
    """Return symbols for a value of a space; the last axis is the lane."""
    if space.kind not in ("discrete", "box"):
        raise Unbatched(f"it has to do with values of the kind {space.kind}")
    kind = np.dtype(space.dtype).kind.replace("u", "i")
    nodes = [graph.symbol(f"{name}{number}", kind) for number in range(space.size)]
    if name == "a" and space.kind == "discrete":
        nodes = [graph.action]
    lane = np.empty((space.size, 1), object)
    lane[:, 0] = nodes
    lanes = np.repeat(lane.reshape(*space.shape, 1), LANES, -1)
    return Symbols.of(lanes, graph, space.dtype)


def actions_of(space: Space) -> Sequence[int]:
    """Return all actions, where they are few."""
    if space.kind != "discrete" or space.high[0] - space.low[0] >= LARGEST_DOMAIN:
        return ()
    return range(int(space.low[0]), int(space.high[0]) + 1)


def _one_lane(symbols: Symbols) -> tuple[Node, ...]:
    """Return the nodes of one lane."""
    return tuple(nodes_of(symbols)[..., 0].flat) if symbols.ndim > 1 else (nodes_of(symbols)[0],)


def _live(state: Sequence[Node], following: Sequence[Node], outputs: Outputs) -> list[int]:
    """Return the places of the symbols in a state that what a step returns may depend on."""
    places = {node: place for place, node in enumerate(state) if node.operation == "symbol"}
    live: set[int] = set()
    waiting = [*outputs.observed, outputs.reward, outputs.terminated, outputs.odd]
    while waiting:
        found = {places[node] for node in ordered(waiting) if node in places} - live
        live |= found
        waiting = [following[place] for place in found]
    return sorted(live)
