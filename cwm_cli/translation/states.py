"""Tracing of a program: the numbers of its state, and the results of a step as nodes.

Attributes are flattened to a shape and numbers. Numbers that can differ are symbols named after
their place in the shape. Shapes that differ are variants of the state. To find all variants,
steps are traced from every variant until no new one appears.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from types import FunctionType
from typing import Any

import numpy as np

from cwm_cli.data.spaces import Space
from cwm_cli.planning.model import LARGEST
from cwm_cli.translation.expressions import (
    AmbiguousType,
    Graph,
    TraceNode,
    Unsupported,
    promote_kinds,
    topological_order,
)
from cwm_cli.translation.instrumentation import PREFIX
from cwm_cli.translation.numbers import (
    Array,
    Current,
    Number,
    array_of,
    is_python,
    node_of,
    number,
    tracer,
)
from cwm_cli.translation.paths import LIMITS, PathResult, Range, Tracer, merge_by_decisions
from cwm_cli.translation.regions import load
from cwm_cli.translation.values import (
    Shape,
    WriteOnlyList,
    collect_reachable,
    flatten,
    memory_owner,
    places,
    rebuild,
    select_mutable,
)

# A program whose state has more shapes has a list that grows with every step.
MAX_VARIANTS = 8


class StateVariant:
    """A shape of the state; numbers that are always equal are constants."""

    def __init__(self, number: int, shape: Shape) -> None:
        self.number, self.shape, self.names = number, shape, places(shape)
        self.nodes: list[TraceNode | None] = [None] * len(self.names)
        self.python: list[bool | None] = [None] * len(self.names)
        self.bounds: list[Range | None] = [None] * len(self.names)

    def numbers(self) -> Iterator[Any]:
        """Yield the numbers of the state."""
        for node, python in zip(self.nodes, self.python, strict=True):
            assert node is not None
            yield number(node, python)


State = tuple[Shape, list[Any], list[Range]]  # shape, numbers and their ranges


class Trace:
    """The nodes of the results of a program.

    Args:
        text: The program.
        observation_space: Its observation space: whole numbers, or a box of real numbers.
        action_space: Its action space.
        progress: Called at regular intervals of work.

    Attributes:
        observation, action: Symbols of the inputs.
        slots: Symbols of the numbers of the state.
        entry_state: The numbers of the state after `set_state`.
        next_state: The numbers of the state after `step`.
        next_observation, reward, terminated: The results of `step`.
        entry_fallback, fallback: The conditions under which the program itself has to compute
            `set_state` and `step`.
        entry_failure, failure: The same conditions, without those for numbers that are too large
            for plain arithmetic to be certain.

    Raises:
        Unsupported: The program cannot be traced.
    """

    def __init__(
        self,
        text: str,
        observation_space: Space,
        action_space: Space,
        progress: Callable[[], None] = lambda: None,
    ) -> None:
        self._text, self._progress = text, progress
        self._observation_space, self._action_space = observation_space, action_space
        self.discrete = action_space.kind == "discrete"
        self._write_only: set[str] = set()
        self._exact_types = False
        try:
            while not self._trace():
                pass
            self._finish()
        except RecursionError as error:
            raise Unsupported("its expressions are nested too deeply") from error

    def _trace(self) -> bool:
        """Trace the program; return False to repeat with write-only lists or exact types."""
        Current.tracer = self.tracer = Tracer(self._progress, exact_types=self._exact_types)
        self._load()
        self.observation = self._symbols(self._observation_space, "o")
        if self.discrete:
            low, high = (
                int(bound[0]) for bound in (self._action_space.low, self._action_space.high)
            )
            if high - low >= 64:  # every action is traced separately
                raise Unsupported("too many actions")
            self.action = [self.tracer.graph.make("action", (), "i")]
            self._actions: list[Any] = list(range(low, high + 1))
        else:
            # A symbol for each component of the actions, which may have several parts.
            symbols = list[TraceNode]()
            for _, leaf in self._action_space.leaves(""):
                is_whole = leaf.kind == "box" and not leaf.is_float
                part = replace(leaf, kind="multidiscrete") if is_whole else leaf
                symbols += self._symbols(part, "a", len(symbols))
            self.action, self._actions = symbols, [None]
        self._variants: list[StateVariant] = []
        # For each variant and action, because each pair has paths of its own.
        self._stepped: dict[tuple[int, Any], list[PathResult]] = {}
        try:
            return self._find_variants()
        except AmbiguousType:
            if self._exact_types:
                raise
            self._exact_types = True
            return False

    def _load(self) -> None:
        """Load the program, and record everything that it could change besides its attributes."""
        self._names = load(self._text)
        if not isinstance(self._names.get("Environment"), type):
            raise Unsupported("it has no class `Environment`")
        hidden = ("__builtins__", PREFIX)
        values = [value for key, value in self._names.items() if not key.startswith(hidden)]
        self._classes = [
            each for each in values if isinstance(each, type) and hasattr(each, "__traced__")
        ]
        self._class_names = [dict(vars(each)) for each in self._classes]
        members = [member for names in self._class_names for member in names.values()]
        functions = [getattr(each, "__traced_function__", each) for each in [*values, *members]]
        defaults = [each.__defaults__ for each in functions if isinstance(each, FunctionType)]
        plain = [
            each
            for names in self._class_names
            for key, each in names.items()
            if not key.startswith("__")
        ]
        kinds = (list, dict, set, tuple, Array, FunctionType, staticmethod, classmethod)
        roots = [
            each
            for each in [*values, *plain]
            if isinstance(each, kinds) or hasattr(type(each), "__traced__")
        ]
        self._shared = select_mutable(collect_reachable([*roots, *defaults]))
        self._shared_contents = [self._identities(each) for each in self._shared]
        self._globals = dict(self._names)
        arrays = (each for each in self._shared if isinstance(each, Array))
        self.tracer.constants = {*map(id, self._shared), *map(id, map(memory_owner, arrays))}

    @staticmethod
    def _identities(value: Any) -> list[int]:
        """Return the identities of the contents of a container."""
        if isinstance(value, Array):
            return [id(each) for each in value.data.flat]
        if isinstance(value, set):
            return sorted(map(hash, value))
        parts = [*value.keys(), *value.values()] if isinstance(value, dict) else value
        return [id(each) for each in parts]

    def _check_unchanged(self) -> None:
        """Refuse a program that changes more than its attributes."""
        for each, names in zip(self._classes, self._class_names, strict=True):
            if any(
                vars(each).get(key) is not value
                for key, value in names.items()
                if key != "__traced__"
            ):
                raise Unsupported("a class changes")
        if [self._identities(each) for each in self._shared] != self._shared_contents:
            raise Unsupported("a global changes")
        if any(self._names.get(key) is not value for key, value in self._globals.items()):
            raise Unsupported("a global changes")

    def _symbols(self, space: Space, letter: str, first: int = 0) -> list[TraceNode]:
        """Return a symbol for each component of a space, with numbers from `first`."""
        whole = space.kind in ("discrete", "multidiscrete", "multibinary")
        if not whole and not (space.kind == "box" and space.is_float):
            raise Unsupported(f"a space of the kind {space.kind}")
        nodes = [
            tracer().graph.make("symbol", (), "i" if whole else "f", f"{letter}{first + place}")
            for place in range(space.size)
        ]
        for node, low, high in zip(nodes, space.low, space.high, strict=True):
            self.tracer.bound(node, *((low, high) if whole else (-LIMITS["f"], LIMITS["f"])))
        return nodes

    def _nested_value(self, space: Space, nodes: Iterator[TraceNode]) -> Any:
        """Return the symbolic value of a space, which takes the next nodes."""
        if space.kind not in ("tuple", "dict"):
            return self._value(space, list(islice(nodes, space.size)))
        parts = [self._nested_value(child, nodes) for child in space.children]
        return tuple(parts) if space.kind == "tuple" else dict(zip(space.keys, parts, strict=True))

    def _value(self, space: Space, nodes: Sequence[TraceNode]) -> Any:
        """Return the symbolic value of a space, as the program receives it."""
        if space.kind == "discrete":
            return Number(nodes[0], True)
        data = np.empty(len(nodes), object)
        for place, node in enumerate(nodes):
            data[place] = Number(node, False)
        return Array(data.reshape(space.shape), nodes[0].kind if nodes else "f")

    def _find_variants(self) -> bool:
        """Find all variants of the state, and the ranges of their numbers.

        Returns False if there are too many, after making lists that grow write-only.
        """
        self._entered = self.tracer.explore(self._enter)
        for _, _, result in self._entered:
            if not isinstance(result, BaseException):
                self._add_state(*result, widen=False)
        if not self._variants:
            raise Unsupported(f"set_state fails: {self._entered[0][2]!r}"[:300])
        max_rounds, rounds_before_widening = 12, 2
        for round_ in range(max_rounds):
            changed = False
            self._stepped = {}
            for variant in list(self._variants):
                for action in self._actions:
                    found = self.tracer.explore(self._make_step(variant, action))
                    self._stepped[variant.number, action] = found
                    # A range that still grows after a few rounds becomes unbounded.
                    widen = round_ >= rounds_before_widening
                    for _, _, result in found:
                        if not isinstance(result, BaseException) and result[3] is not None:
                            changed |= self._add_state(*result[3], widen=widen)
                if len(self._variants) > MAX_VARIANTS:
                    self._forget_growing_lists()
                    return False
            if not changed:
                return True
        raise Unsupported("its attributes keep changing")

    def _forget_growing_lists(self) -> None:
        """Make the lists write-only that have another length in most variants."""
        kinds: dict[str, set[str]] = {}
        for variant in self._variants:
            for name, shape in variant.shape[1:]:
                kinds.setdefault(name, set()).add(repr(shape))
        growing = {name for name, found in kinds.items() if len(found) > MAX_VARIANTS // 2}
        lists = {name for name, shape in self._variants[-1].shape[1:] if shape[0] == "list"}
        if not growing & lists:
            raise Unsupported("the state has too many shapes")
        self._write_only |= growing & lists

    def _enter(self) -> State:
        environment = self._names["Environment"]()
        environment.set_state(self._value(self._observation_space, self.observation))
        return self._read_state(environment)

    def _read_state(self, environment: Any) -> State:
        """Return the shape and numbers of the state of a program, and the ranges of the numbers."""
        self._check_unchanged()
        numbers: list[Any] = []
        attributes = vars(environment)
        kept = {
            name: WriteOnlyList() if name in self._write_only else value
            for name, value in attributes.items()
        }
        shape = flatten(kept, numbers)
        return shape, numbers, [self.tracer.range(node_of(each)) for each in numbers]

    def _make_step(self, variant: StateVariant, action: Any) -> Callable[[], Any]:
        """Return a function that takes an action from a variant of the state."""

        def run() -> Any:
            # `__init__` may draw or count; the attributes come from the variant alone.
            environment = self._names["Environment"].__new__(self._names["Environment"])
            vars(environment).update(rebuild(variant.shape, variant.numbers()))
            nodes = iter(self.action)
            taken = action if self.discrete else self._nested_value(self._action_space, nodes)
            observed, reward, end = self._check_answer(environment.step(taken))
            known = self.tracer.truth(end)
            if known:
                return observed, reward, self.tracer.graph.const(True), None
            shape, numbers, ranges = self._read_state(environment)
            if known is None:  # a next state exists only if the episode continues
                self.tracer.learn(end, False)
                numbers = [self._apply_fact(each) for each in numbers]
            end = end if known is None else self.tracer.graph.false
            return observed, reward, end, (shape, numbers, ranges)

        return run

    def _apply_fact(self, value: Any) -> Any:
        """Return a truth as a constant, if it is known because the episode continues."""
        if type(value) is not Number or value.node.kind != "b":
            return value
        known = self.tracer.truth(value.node)
        return value if known is None else number(self.tracer.graph.const(known), value.python)

    def _check_answer(self, result: Any) -> tuple[list[TraceNode], TraceNode, TraceNode]:
        """Return observation, reward and terminated; refuse results as the sandbox does."""
        if not isinstance(result, tuple | list) or len(result) != 3:
            raise ValueError("step does not return three things")
        observed, space = result[0], self._observation_space
        if isinstance(observed, dict | set | str) or observed is None:
            raise ValueError("the observation is of another kind")
        seen = array_of(observed)
        if not isinstance(seen, Array) or seen.shape != tuple(space.shape):
            raise ValueError("the observation has another shape")
        if not space.is_float and seen.kind not in "bi":
            raise Unsupported("an observation is a real number")
        nodes = [node_of(each) for each in seen.data.flat]
        if not space.is_float:
            nodes = [self.tracer.graph.cast(node, "i") for node in nodes]
        reward, end = node_of(result[1]), node_of(result[2])
        if end.kind != "b":
            low, high = self.tracer.range(end)
            if end.kind != "i" or low < 0 or high > 1:
                raise Unsupported("terminated is not a bool")
        return nodes, self.tracer.graph.cast(reward, "f"), self.tracer.graph.cast(end, "b")

    def _add_state(
        self, shape: Shape, numbers: list[Any], ranges: list[Range], *, widen: bool
    ) -> bool:
        """Add a state to its variant; return whether the variant changed."""
        variant = next((each for each in self._variants if each.shape == shape), None)
        new = variant is None
        if variant is None:
            variant = StateVariant(len(self._variants), shape)
            self._variants.append(variant)
        changed = new
        for place, (value, found) in enumerate(zip(numbers, ranges, strict=True)):
            python = is_python(value)
            if variant.nodes[place] is None:
                variant.python[place] = python
            elif variant.python[place] is not python and variant.python[place] is not None:
                variant.python[place] = None
                changed = True
            changed |= self._add_number(variant, place, node_of(value), found, widen=widen)
        return changed

    def _add_number(
        self, variant: StateVariant, place: int, new: TraceNode, found: Range, *, widen: bool
    ) -> bool:
        """Add a value of one number of a variant; return whether its kind or range changed."""
        old, before, current = variant.nodes[place], variant.bounds[place], self.tracer
        if new is old:  # the symbol itself: the step does not change the number
            return False
        if old is None and new.op == "const":
            variant.nodes[place] = new
            return False
        kind = new.kind
        if old is not None and old.kind != kind:
            kind = promote_kinds([kind, old.kind])
        if old is not None and old.op == "const":
            found = min(old.value, found[0]), max(old.value, found[1])
        elif before is not None:
            found = min(found[0], before[0]), max(found[1], before[1])
        if widen and before and found != before:
            found = (
                found[0] if found[0] == before[0] else -math.inf,
                found[1] if found[1] == before[1] else math.inf,
            )
        limit = LIMITS[kind]
        found = max(found[0], -limit), min(found[1], limit)
        symbol = current.graph.make("symbol", (), kind, variant.names[place])
        changed = symbol is not old or found != before
        variant.nodes[place], variant.bounds[place] = symbol, found
        low, high = current.bounds.get(symbol, found)
        current.bound(symbol, min(low, found[0]), max(high, found[1]))
        return changed

    def _finish(self) -> None:
        """Merge all paths, variants and actions; keep only the numbers that affect results."""
        graph = self.tracer.graph
        slots, self._places = list[TraceNode](), dict[tuple[int, int], int]()
        for variant in self._variants:
            for place, node in enumerate(variant.nodes):
                if node is not None and node.op != "const":
                    if node not in slots:
                        slots.append(node)
                    self._places[variant.number, place] = slots.index(node)
        self._total, size = len(slots), len(self.observation)
        # The state also has the number of its variant.
        tag = graph.make("symbol", (), "i", "tag")
        self.tracer.bound(tag, 0, len(self._variants) - 1)
        entered = self._merge_paths(self._entered, 1 + self._total, self._pack_state)
        fallback, *stepped = self._merge_variants(tag)
        assert fallback is not None
        if fallback.op == "const" and fallback.value:
            raise Unsupported(f"it always fails: {self._failure!r}"[:300])
        outputs = [graph.const(0) if node is None else node for node in stepped[: size + 2]]
        self.next_observation, self.reward = outputs[:size], outputs[size]
        self.terminated = graph.cast(outputs[size + 1], "b")
        slots = [tag, *slots]
        next_state = [
            self._fill_slot(*pair) for pair in zip(stepped[size + 2 :], slots, strict=True)
        ]
        entry_state = [self._fill_slot(*pair) for pair in zip(entered[1:], slots, strict=True)]
        live = self._find_live_slots(
            slots, next_state, [*self.next_observation, self.reward, self.terminated, fallback]
        )
        self.slots, self.next_state, self.entry_state = (
            [nodes[place] for place in live] for nodes in (slots, next_state, entry_state)
        )
        assert entered[0] is not None
        self.entry_failure, self.failure = entered[0], fallback
        low, high = self.tracer.range(self.reward)
        if not -LARGEST < low <= high < LARGEST:
            fallback = graph.apply("logical_or", fallback, graph.exceeds(self.reward, LARGEST))
        self.fallback = self._add_overflow(fallback, self.next_state, self.terminated)
        self.entry_fallback = self._add_overflow(entered[0], self.entry_state, graph.false)

    def _merge_variants(self, tag: TraceNode) -> list[TraceNode | None]:
        """Return the merged results of steps from all variants with all actions."""
        width = len(self.observation) + 3 + self._total
        unifier = Unifier(self.tracer.graph, self.action[0], self._actions)
        # From the last variant on, so that the first one is tested first.
        merged: list[TraceNode | None] = []
        for variant in reversed(self._variants):
            columns = [
                self._merge_paths(
                    self._stepped[variant.number, action],
                    width,
                    lambda result: [*result[0], *result[1:3], *self._pack_state(result[3])],
                )
                for action in self._actions
            ]
            row = [unifier.unify(tuple(nodes)) for nodes in zip(*columns, strict=True)]
            is_variant = self.tracer.graph.apply(
                "equal", tag, self.tracer.graph.const(variant.number)
            )
            if merged:
                row = [_select(is_variant, a, b) for a, b in zip(row, merged, strict=True)]
            merged = row
        return merged

    def _merge_paths(
        self, found: Sequence[PathResult], width: int, pack: Callable[[Any], list[TraceNode | None]]
    ) -> list[TraceNode | None]:
        """Return nodes that merge all paths: the fallback condition, then the packed results."""
        graph = self.tracer.graph
        rows = []
        for decisions, fallback, result in found:
            if isinstance(result, BaseException):
                self._failure = result
                row: list[TraceNode | None] = [graph.const(True), *[None] * width]
            else:
                row = [fallback or graph.false, *pack(result)]
            rows.append((decisions, row))
        return merge_by_decisions(
            rows, lambda c, x, y: [_select(c, a, b) for a, b in zip(x, y, strict=True)]
        )

    _failure: BaseException | None = None

    def _pack_state(self, state: State | None) -> list[TraceNode | None]:
        """Return the number of a variant, and a node for each number of any variant."""
        out: list[TraceNode | None] = [None] * (1 + self._total)
        if state is None:
            return out
        variant = next(each for each in self._variants if each.shape == state[0])
        out[0] = self.tracer.graph.const(variant.number)
        for place, value in enumerate(state[1]):
            if (variant.number, place) in self._places:
                out[1 + self._places[variant.number, place]] = node_of(value)
        return out

    def _fill_slot(self, node: TraceNode | None, slot: TraceNode) -> TraceNode:
        return self.tracer.graph.cast(
            self.tracer.graph.const(0) if node is None else node, slot.kind
        )

    @staticmethod
    def _find_live_slots(
        slots: list[TraceNode], following: list[TraceNode], outputs: Sequence[TraceNode | None]
    ) -> list[int]:
        """Return the positions of the slots that affect the results of any later step."""
        place_of = {slot: place for place, slot in enumerate(slots)}
        # A fixed point: a slot is live if an output or the next value of a live slot reads it.
        live: set[int] = set()
        waiting = [node for node in outputs if node is not None]
        while waiting:
            new = {place_of[node] for node in topological_order(waiting) if node in place_of} - live
            live |= new
            waiting = [following[place] for place in new]
        return sorted(live)

    def _add_overflow(
        self, fallback: TraceNode, nodes: Sequence[TraceNode], ended: TraceNode
    ) -> TraceNode:
        """Add to a fallback condition that a number exceeds the limits that tracing assumed."""
        # One comparison of a sum of squares checks all numbers, each scaled by its limit.
        graph, squares, widest = self.tracer.graph, None, LIMITS["f"]
        for node, slot in zip(nodes, self.slots, strict=True):
            low, high = self.tracer.range(node)
            limit = LIMITS[slot.kind]
            if -limit <= low and high <= limit:
                continue
            real = graph.cast(node, "f")
            if limit != widest:
                real = graph.apply("multiply", real, widest / limit)
            square = graph.apply("multiply", real, real)
            squares = square if squares is None else graph.apply("add", squares, square)
        if squares is not None:
            within = graph.apply("less", squares, widest * widest)
            beyond = graph.negate(graph.apply("logical_or", within, ended))
            fallback = graph.apply("logical_or", fallback, beyond)
        return fallback


def _select(condition: TraceNode, x: TraceNode | None, y: TraceNode | None) -> TraceNode | None:
    """Return one of two nodes; None if the value does not matter."""
    if x is None or y is None:
        return x or y
    return tracer().graph.apply("select", condition, x, y)


# Constants that change no real number, to the last bit.
_NEUTRAL = {"subtract": 0.0, "add": -0.0, "multiply": 1.0, "divide": 1.0}

# A node for each action; None if the value does not matter.
Nodes = tuple[TraceNode | None, ...]


class Unifier:
    """A merger of the nodes of all actions: constants that differ become tables indexed by action.

    Args:
        graph: The graph of the nodes.
        action: The node of the action.
        actions: All actions, which are consecutive integers.
    """

    def __init__(self, graph: Graph, action: TraceNode, actions: Sequence[Any]) -> None:
        self._graph, self._place = graph, action
        if len(actions) > 1 and actions[0] != 0:
            self._place = graph.apply("subtract", action, actions[0])
        self._memo: dict[Nodes, TraceNode | None] = {}

    def unify(self, nodes: Nodes) -> TraceNode | None:
        """Return one node for the nodes of all actions."""
        if len(nodes) == 1:
            return nodes[0]
        if nodes not in self._memo:
            self._graph.count(len(nodes))
            self._memo[nodes] = made = self._unify(self._pad(nodes))
            names = {self._graph.names.get(node) for node in nodes if node is not None}
            if made is not None and len(names) == 1 and (name := names.pop()):
                self._graph.names.setdefault(made, name)
        return self._memo[nodes]

    def _unify(self, nodes: Nodes) -> TraceNode | None:
        present = [node for node in nodes if node is not None]
        distinct = list(dict.fromkeys(present))
        if len(distinct) < 2:
            return distinct[0] if distinct else None
        if all(node.op == "const" for node in present) and len({n.kind for n in present}) == 1:
            values = [present[0].value if node is None else node.value for node in nodes]
            return self._graph.cast(self._graph.gather(values, self._place), present[0].kind)
        # Nodes with one operation are unified if they share the operation and kind of an operand.
        if len(set(map(_head, present))) == 1 and any(
            len({(arg.op, arg.kind) for arg in args}) == 1
            for args in zip(*[node.args for node in distinct], strict=True)
        ):
            return self._operation(nodes, present[0])
        # No common operation: split off the first group of equal operations by a selection.
        groups: dict[Any, list[TraceNode]] = {}
        for node in distinct:
            groups.setdefault("const" if node.op == "const" else _head(node), []).append(node)
        first = set(next(iter(groups.values()))) if len(groups) > 1 else {distinct[0]}
        mask = self._graph.gather([node in first for node in nodes], self._place)
        one = self.unify(tuple(node if node in first else None for node in nodes))
        other = self.unify(tuple(None if node in first else node for node in nodes))
        assert one is not None and other is not None
        return self._graph.apply("select", mask, one, other)

    def _operation(self, nodes: Nodes, first: TraceNode) -> TraceNode:
        """Return one operation on unified operands."""
        args = []
        for place in range(len(first.args)):
            arg = self.unify(tuple(None if node is None else node.args[place] for node in nodes))
            assert arg is not None
            args.append(arg)
        if first.op == "gather":
            return self._graph.gather(first.value, args[0])
        if first.op in ("whole", "real", "single", "isnan"):
            return self._graph.make(first.op, tuple(args), first.kind)
        return self._graph.apply(first.op, *args)

    def _pad(self, nodes: Nodes) -> Nodes:
        """Add a neutral operation to nodes that lack an operation with a constant.

        So `x + 1` for one action and `x` for another become `x + 1` and `x + -0.0`.
        """
        present = [node for node in dict.fromkeys(nodes) if node is not None]
        if len(present) < 2:
            return nodes
        for model in present:
            if model.op not in _NEUTRAL or model.kind != "f" or model.args[1].op != "const":
                continue
            if model.args[0].op in ("const", "symbol"):
                continue
            inner = _signature(model.args[0])
            if any(node.kind == "f" and _signature(node) == inner for node in present):
                neutral = self._graph.const(_NEUTRAL[model.op])
                return tuple(
                    self._graph.make(model.op, (node, neutral), "f")
                    if node is not None and node.kind == "f" and _signature(node) == inner
                    else node
                    for node in nodes
                )
        return nodes


def _head(node: TraceNode) -> Any:
    return node.op, len(node.args), node.kind, repr(node.value)


def _signature(node: TraceNode, depth: int = 3) -> Any:
    """Return a label that is equal for operations of equal structure down to a depth."""
    if node.op == "const":
        return "c"
    if node.op in ("symbol", "action"):
        return node.value
    return (node.op, *[_signature(arg, depth - 1) for arg in node.args]) if depth else node.op
