"""What a program computes: the state that it enters, and what a step does with it.

Attributes are flattened to a shape and numbers. Numbers that can differ are
symbols named by their place; shapes that differ are variants of the state. To
find them, steps are traced from all variants until no new ones come up.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from types import FunctionType
from typing import Any

import numpy as np

from cwm_cli.data.spaces import Space
from cwm_cli.planning.model import LARGEST
from cwm_cli.translation.actions import Unifier
from cwm_cli.translation.expressions import (
    AmbiguousType,
    TraceNode,
    Unsupported,
    promote_kinds,
    topological_order,
)
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
from cwm_cli.translation.rewriting import PREFIX
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

MAX_VARIANTS, MAX_ROUNDS, PATIENCE = 8, 12, 2
"""Shapes of the state; rounds of tracing, after some of which ranges are widened to all numbers."""

MAX_ACTIONS = 64


class StateVariant:
    """A shape of the state; what is always the same is a constant."""

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


State = tuple[Shape, list[Any], list[Range]]


class Trace:
    """The nodes of what a program computes.

    `entered` and `following` are the numbers of the state (`slots`) after
    `set_state` and after `step`; `odd` and `odd_entry` are where the program has
    to answer.
    """

    def __init__(
        self,
        text: str,
        observation_space: Space,
        action_space: Space,
        progress: Callable[[], None] = lambda: None,
    ) -> None:
        self._progress = progress
        self._text, self._observation_space, self._action_space = (
            text,
            observation_space,
            action_space,
        )
        self.discrete = action_space.kind == "discrete"
        self._write_only: set[str] = set()
        self._exact_types = False
        try:
            while not self._trace():
                pass
            self._finish()
        except RecursionError as error:
            raise Unsupported("what it computes is nested too deeply") from error

    def _trace(self) -> bool:
        """Trace until the state settles; not yet where more has to be forgotten."""
        Current.tracer = self.tracer = Tracer(self._progress, exact_types=self._exact_types)
        self._load()
        self.observation = self._symbols(self._observation_space, "o")
        if self.discrete:
            low, high = (
                int(bound[0]) for bound in (self._action_space.low, self._action_space.high)
            )
            if high - low >= MAX_ACTIONS:
                raise Unsupported("too many actions")
            self.action = [self.tracer.graph.make("action", (), "i")]
            self._actions: list[Any] = list(range(low, high + 1))
        else:
            self.action, self._actions = self._symbols(self._action_space, "a"), [None]
        self._variants: list[StateVariant] = []
        self._stepped: dict[tuple[int, Any], list[PathResult]] = {}
        try:
            return self._find_variants()
        except AmbiguousType:
            if self._exact_types:
                raise
            self._exact_types = True
            return False

    def _load(self) -> None:
        """Load the program, and remember all that it could change besides its attributes."""
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
        plain = [each for key, each in self._iterate_members()]
        self._shared = select_mutable(
            collect_reachable([*_may_change([*values, *plain]), *defaults])
        )
        self._shared_contents = [self._identities(each) for each in self._shared]
        self._globals = dict(self._names)
        arrays = (each for each in self._shared if isinstance(each, Array))
        self.tracer.constants = {*map(id, self._shared), *map(id, map(memory_owner, arrays))}

    def _iterate_members(self) -> Iterator[tuple[str, Any]]:
        for names in self._class_names:
            yield from ((key, value) for key, value in names.items() if not key.startswith("__"))

    @staticmethod
    def _identities(value: Any) -> list[int]:
        """Return the identities of what a container holds."""
        if isinstance(value, Array):
            return [id(each) for each in value.data.flat]
        parts = [*value.keys(), *value.values()] if isinstance(value, dict) else list(value)
        return (
            [id(each) for each in parts] if not isinstance(value, set) else sorted(map(hash, parts))
        )

    def _check_unchanged(self) -> None:
        """Refuse programs that change more than their attributes."""
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

    def _symbols(self, space: Space, letter: str) -> list[TraceNode]:
        """Return a symbol for every component of a space."""
        whole = space.kind in ("discrete", "multidiscrete", "multibinary")
        if not whole and not (space.kind == "box" and space.is_float):
            raise Unsupported(f"a space of the kind {space.kind}")
        nodes = [
            tracer().graph.make("symbol", (), "i" if whole else "f", f"{letter}{place}")
            for place in range(space.size)
        ]
        for node, low, high in zip(nodes, space.low, space.high, strict=True):
            self.tracer.bound(node, *((low, high) if whole else (-LIMITS["f"], LIMITS["f"])))
        return nodes

    def _value(self, space: Space, nodes: Sequence[TraceNode]) -> Any:
        """Return what a program gets for a value of a space."""
        if space.kind == "discrete":
            return Number(nodes[0], True)
        data = np.empty(len(nodes), object)
        for place, node in enumerate(nodes):
            data[place] = Number(node, False)
        return Array(data.reshape(space.shape), nodes[0].kind if nodes else "f")

    def _find_variants(self) -> bool:
        """Find all variants of the state and what their numbers can be."""
        self._entered = self.tracer.explore(self._enter)
        for _, _, result in self._entered:
            if not isinstance(result, BaseException):
                self._add_state(*result, widen=False)
        if not self._variants:
            raise Unsupported(f"set_state fails: {self._entered[0][2]!r}"[:300])
        for round_ in range(MAX_ROUNDS):
            changed = False
            self._stepped = {}
            for variant in list(self._variants):
                for action in self._actions:
                    found = self.tracer.explore(self._make_step(variant, action))
                    self._stepped[variant.number, action] = found
                    for _, _, result in found:
                        if not isinstance(result, BaseException) and result[3] is not None:
                            changed |= self._add_state(*result[3], widen=round_ >= PATIENCE)
                if len(self._variants) > MAX_VARIANTS:
                    self._forget_growing_lists()
                    return False
            if not changed:
                return True
        raise Unsupported("its attributes keep changing")

    def _forget_growing_lists(self) -> None:
        """Forget attributes whose shapes are different in every variant."""
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
        """Return the state of a program: shape, numbers and between what these are."""
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
        """Return what takes an action from a variant of the state."""

        def run() -> Any:
            environment = self._names["Environment"].__new__(self._names["Environment"])
            vars(environment).update(rebuild(variant.shape, variant.numbers()))
            taken = action if self.discrete else self._value(self._action_space, self.action)
            observed, reward, end = self._check_answer(environment.step(taken))
            known = self.tracer.truth(end)
            if known:
                return observed, reward, self.tracer.graph.const(True), None
            shape, numbers, ranges = self._read_state(environment)
            if known is None:  # nobody goes on from where it ended
                self.tracer.learn(end, False)
                numbers = [self._apply_fact(each) for each in numbers]
            end = end if known is None else self.tracer.graph.false
            return observed, reward, end, (shape, numbers, ranges)

        return run

    def _apply_fact(self, value: Any) -> Any:
        """Return a truth as it is where the episode goes on."""
        if type(value) is not Number or value.node.kind != "b":
            return value
        known = self.tracer.truth(value.node)
        return value if known is None else number(self.tracer.graph.const(known), value.python)

    def _check_answer(self, result: Any) -> tuple[list[TraceNode], TraceNode, TraceNode]:
        """Return observation, reward and end; refuse what would not be accepted."""
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
        """Add what a state can be; return whether that is new."""
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
        """Add what a number of a state can be; return whether that is new."""
        old, before, current = variant.nodes[place], variant.bounds[place], self.tracer
        if new is old:
            return False
        if old is None and new.op == "const":
            variant.nodes[place] = new
            return False
        kind = (
            new.kind
            if old is None
            else new.kind
            if new.kind == old.kind
            else promote_kinds([new.kind, old.kind])
        )
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

    # --- what all paths together compute

    def _finish(self) -> None:
        """Merge paths, variants and actions; keep the numbers that outputs depend on."""
        graph = self.tracer.graph
        slots, self._places = list[TraceNode](), dict[tuple[int, int], int]()
        for variant in self._variants:
            for place, node in enumerate(variant.nodes):
                if node is not None and node.op != "const":
                    if node not in slots:
                        slots.append(node)
                    self._places[variant.number, place] = slots.index(node)
        self._total, size = len(slots), len(self.observation)
        tag = graph.make("symbol", (), "i", "tag")
        self.tracer.bound(tag, 0, len(self._variants) - 1)
        entered = self._merge_paths(self._entered, 1 + self._total, self._pack_state)
        unifier = Unifier(graph, self.action[0], self._actions)
        rows: list[TraceNode | None] = []
        for variant in reversed(self._variants):
            columns = [
                self._merge_paths(
                    self._stepped[variant.number, action], size + 3 + self._total, self._row
                )
                for action in self._actions
            ]
            here = [unifier.one(tuple(column)) for column in zip(*columns, strict=True)]
            is_here = graph.apply("equal", tag, graph.const(variant.number))
            rows = (
                [_select(is_here, a, b) for a, b in zip(here, rows, strict=True)] if rows else here
            )
        odd = _either_of(rows[:2])
        if odd is not None and odd.op == "const" and odd.value:
            raise Unsupported(f"it always fails: {self._failure!r}"[:300])
        outputs = [graph.const(0) if node is None else node for node in rows[2 : size + 4]]
        slots = [tag, *slots]
        self.next_observation, self.reward = outputs[:size], outputs[size]
        self.terminated = graph.cast(outputs[size + 1], "b")
        following = [self._fill_slot(*pair) for pair in zip(rows[size + 4 :], slots, strict=True)]
        first = [self._fill_slot(*pair) for pair in zip(entered[2:], slots, strict=True)]
        live = self._find_live_slots(
            slots, following, [*self.next_observation, self.reward, self.terminated, odd]
        )
        self.slots, following, self.entry_state = (
            [each[k] for k in live] for each in (slots, following, first)
        )
        self.next_state = following
        self.fallback = self._add_overflow(odd, following, self.terminated)
        low, high = self.tracer.range(self.reward)
        if not -LARGEST < low <= high < LARGEST:
            absolute = graph.apply("absolute", self.reward)
            few = graph.apply("less", absolute, graph.const(LARGEST))
            self.fallback = graph.either(self.fallback, graph.negate(few))
        self.entry_fallback = self._add_overflow(
            _either_of(entered[:2]), self.entry_state, graph.false
        )

    def _row(self, result: Any) -> list[TraceNode | None]:
        observed, reward, end, state = result
        return [*observed, reward, end, *self._pack_state(state)]

    def _merge_paths(
        self, found: Sequence[PathResult], width: int, pack: Callable[[Any], list[TraceNode | None]]
    ) -> list[TraceNode | None]:
        """Return one row of nodes for all paths: where it is odd, soft, and the outputs."""
        graph = self.tracer.graph
        rows = []
        for taken, (odd, soft), result in found:
            if isinstance(result, BaseException):
                self._failure = result
                row: list[TraceNode | None] = [graph.const(True), graph.false, *[None] * width]
            else:
                row = [odd or graph.false, soft or graph.false, *pack(result)]
            rows.append((taken, row))
        return merge_by_decisions(
            rows, lambda c, x, y: [_select(c, a, b) for a, b in zip(x, y, strict=True)]
        )

    _failure: BaseException | None = None

    def _pack_state(self, state: State | None) -> list[TraceNode | None]:
        """Return the variant of a state and a node for each of the numbers of all variants."""
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
        """Return which slots the outputs of any later step depend on."""
        place_of = {slot: place for place, slot in enumerate(slots)}
        live: set[int] = set()
        waiting = [node for node in outputs if node is not None]
        while waiting:
            new = {place_of[node] for node in topological_order(waiting) if node in place_of} - live
            live |= new
            waiting = [following[place] for place in new]
        return sorted(live)

    def _add_overflow(
        self, odd: TraceNode | None, nodes: Sequence[TraceNode], ended: TraceNode
    ) -> TraceNode | None:
        """Add to where it is odd that a number leaves the bounds that tracing relied on."""
        graph, squares, widest = self.tracer.graph, None, LIMITS["f"]
        for node, slot in zip(nodes, self.slots, strict=True):
            low, high = self.tracer.range(node)
            limit = LIMITS[slot.kind]
            if -limit <= low and high <= limit:
                continue
            real = graph.cast(node, "f")
            if limit != widest:
                real = graph.apply("multiply", real, graph.const(widest / limit))
            square = graph.apply("multiply", real, real)
            squares = square if squares is None else graph.apply("add", squares, square)
        if squares is not None:
            within = graph.apply("less", squares, graph.const(widest * widest))
            beyond = graph.negate(graph.either(within, ended) or within)
            odd = graph.either(odd, beyond)
        return None if odd is not None and odd.op == "const" and not odd.value else odd


def _select(condition: TraceNode, x: TraceNode | None, y: TraceNode | None) -> TraceNode | None:
    """Return one of two nodes; None stands for anything."""
    if x is None or y is None:
        return x or y
    return tracer().graph.apply("select", condition, x, y)


def _either_of(nodes: Sequence[TraceNode | None]) -> TraceNode | None:
    return tracer().graph.either(nodes[0], nodes[1])


def _may_change(values: Sequence[Any]) -> list[Any]:
    """Return containers, functions and objects of the program."""
    kinds = (list, dict, set, tuple, Array, FunctionType, staticmethod, classmethod)
    return [each for each in values if isinstance(each, kinds) or hasattr(type(each), "__traced__")]
