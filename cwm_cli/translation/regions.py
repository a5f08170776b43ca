"""Regions of a program at work: all their paths are run, and what came of them is merged.

Around a region everything that can change in place is remembered and put back
for each path. What existed before keeps its identity; where that cannot be, or
results have no common shape, the paths stay apart.
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from types import FunctionType, SimpleNamespace
from typing import Any

import numpy as np

from cwm_cli.translation.expressions import TraceNode, Unsupported
from cwm_cli.translation.functions import BUILTINS, Type, select_number
from cwm_cli.translation.numbers import (
    Array,
    Number,
    is_number,
    is_python,
    is_symbolic,
    node_of,
    number,
    op,
    raw,
    to_numpy,
    tracer,
)
from cwm_cli.translation.paths import AbandonedPath, merge_by_decisions
from cwm_cli.translation.rewriting import PREFIX, rewrite
from cwm_cli.translation.values import (
    ATOMS,
    closure_values,
    collect_reachable,
    flatten,
    memory_owner,
    select_mutable,
)

MAX_LOOP_ROUNDS = 3
"""Rounds of a loop whose end is not known; more are left to the program."""

MAX_DEPTH = 60
"""Regions within regions: beyond this a program recurs without a known end."""

MIN_CACHED_WORK = 150
"""Work of a region that is done again rather than remembered."""

MAX_CHOICES = 16
"""Things of which one is chosen by a place without a table of numbers."""

FILE = "<traced>"
"""The file name of programs that are traced."""

UNBOUND = SimpleNamespace(what="a variable without a value")
UNKNOWN = SimpleNamespace(what="what a path that failed would have had")


class MergeError(BaseException):
    """Results of paths that cannot become one value."""


class _CachedResults:
    """What the paths of a region came to, to be used again where the same region comes up.

    Nothing in it is used itself: whoever gets a copy may change that.
    """

    def __init__(self, around: list[Any], found: Sequence[Any]) -> None:
        self._around = around
        self._found = self._copy_results(found, {id(each): each for each in around})

    def replay(self, around: list[Any]) -> list[Any] | None:
        """Return it for things that took the place of those before."""
        if list(map(type, around)) != list(map(type, self._around)):
            return None
        pairs = zip(self._around, around, strict=True)
        return self._copy_results(self._found, {id(old): new for old, new in pairs})

    def _copy_results(self, found: Sequence[Any], memo: dict[int, Any]) -> list[Any]:
        return [(taken, fallback, _copy(result, memo)) for taken, fallback, result in found]


def _copy(value: Any, memo: dict[int, Any]) -> Any:  # noqa: PLR0911  # a case for each kind
    """Return a copy; what has a counterpart is not copied. `Unmergeable` where that cannot be."""
    if is_number(value) or isinstance(value, ATOMS):
        return value
    if id(value) in memo:
        return memo[id(value)]
    if isinstance(value, tuple):
        return _tuple(value, [_copy(each, memo) for each in value])
    if type(value) is list:
        memo[id(value)] = made = list[Any]()
        made += [_copy(each, memo) for each in value]
        return made
    if type(value) is dict:
        memo[id(value)] = table = dict[Any, Any]()
        table.update({key: _copy(each, memo) for key, each in value.items()})
        return table
    if isinstance(value, np.ndarray) and value.dtype == object and value.base is None:
        return value.copy()  # the contents of an array: numbers
    if isinstance(value, Array) and value.data.base is None:
        memo[id(value)] = array = value.copy()
        return array
    if type(value) is set:
        return set(value)
    raise MergeError


def _copy_contents(value: Any) -> Any:
    return value.data.copy() if isinstance(value, Array) else value.copy()


def _restore(value: Any, saved: Any) -> None:
    if isinstance(value, Array):
        if value.data.flags.writeable:  # what cannot be written has not changed
            value.data[...] = saved
    elif isinstance(value, list):
        list.__setitem__(value, slice(None), saved)
    else:
        value.clear()
        value.update(saved)


class _Merger:
    """Merges values of two paths; `old` are the identities of what existed before."""

    def __init__(self, old: set[int]) -> None:
        self._old = old
        self._memo: dict[Any, Any] = {}

    def merge(self, condition: TraceNode, x: Any, y: Any) -> Any:
        """Return one value for two; `condition` says which."""
        if x is y or x is UNKNOWN:
            return y
        if y is UNKNOWN:
            return x
        if is_number(x) and is_number(y):
            if tracer().exact_types and (is_python(x), node_of(x).kind) != (
                is_python(y),
                node_of(y).kind,
            ):
                raise MergeError
            return select_number(condition, x, y) if not _is_same(x, y) else x
        if x is UNBOUND or y is UNBOUND:
            return UNBOUND  # whoever reads it is left to the program
        if isinstance(x, Array) and isinstance(y, Array):
            if id(memory_owner(x)) in self._old or id(memory_owner(y)) in self._old:
                alike = x.shape == y.shape and memory_owner(x) is memory_owner(y)
                if not alike or not all(map(_is_same, x.data.flat, y.data.flat)):
                    raise MergeError
                return x
        elif id(x) in self._old or id(y) in self._old:
            raise MergeError
        key = condition, id(x), id(y)
        if key not in self._memo:  # what was one thing stays one thing
            self._memo[key] = self.merge_contents(condition, x, y), x, y
        return self._memo[key][0]

    def merge_contents(self, condition: TraceNode, x: Any, y: Any) -> Any:
        """Return a new container for two of one shape."""
        if isinstance(x, Array | np.ndarray) and isinstance(y, Array | np.ndarray):
            return self._array(condition, x, y)
        if type(x) is type(y):
            if isinstance(x, list | tuple) and len(x) == len(y):
                made = [self.merge(condition, a, b) for a, b in zip(x, y, strict=True)]
                return made if isinstance(x, list) else _tuple(x, made)
            if isinstance(x, dict) and list(x) == list(y):
                return {key: self.merge(condition, x[key], y[key]) for key in x}
            if isinstance(x, str | bytes | set | frozenset | range) and x == y:
                return x
        raise MergeError

    def _array(self, condition: TraceNode, x: Any, y: Any) -> Array:
        kind = (
            x.kind if isinstance(x, Array) and isinstance(y, Array) and x.kind == y.kind else None
        )
        if isinstance(x, Array) and isinstance(y, Array) and kind is None:
            raise MergeError
        one, other = raw(x), raw(y)
        if one.shape != other.shape:
            raise MergeError
        made = np.empty(one.shape, object)
        for place in np.ndindex(one.shape):
            made[place] = self.merge(condition, one[place], other[place])
        return Array(made, kind)


def _tuple(like: Any, parts: list[Any]) -> Any:
    """Return a tuple of the kind of another."""
    return type(like)(*parts) if hasattr(like, "_fields") else tuple(parts)


def _is_same(x: Any, y: Any) -> bool:
    """Whether two elements are one."""
    if x is y:
        return True
    if type(x) is not type(y) or not is_number(x):
        return False
    if type(x) is Number:
        return x.node is y.node and x.python is y.python
    return node_of(x) is node_of(y)


def run_and_merge(
    run: Callable[[], Any],
    roots: Iterable[Any],
    others: Iterable[Any] = (),
    *,
    tagged: bool = False,
) -> Any:
    """Run all paths of a region and go on with one result; where that fails, they stay apart.

    What can be reached from `roots` may change; `others` existed before, too.
    Results that are `tagged` are merged with those of the same tag only.
    """
    current = tracer()
    around = collect_reachable(roots)
    mutable = select_mutable(around)
    saved = [_copy_contents(thing) for thing in mutable]
    fresh = [True]

    def before() -> None:
        if not fresh[0]:
            for thing, content in zip(mutable, saved, strict=True):
                _restore(thing, content)
        fresh[0] = False

    def explored() -> list[Any]:
        current.depth += 1
        try:
            if current.depth > MAX_DEPTH:
                raise Unsupported("it recurs too deeply")
            return current.explore(lambda: (run(), tuple(map(_copy_contents, mutable))), before)
        finally:
            current.depth -= 1

    found = _explore_cached(around, explored)
    if len(found) == 1:
        _, (fallback, numeric), result = found[0]
        if isinstance(result, BaseException):
            raise result
        for thing, content in zip(mutable, result[1], strict=True):
            _restore(thing, content)
        current.fall_back_if(fallback)
        current.fall_back_if(numeric, numeric=True)
        return result[0]
    numbers = all(is_number(each[2][0]) for each in found if type(each[2]) is tuple)
    before_it = mutable if numbers else [*mutable, *select_mutable(collect_reachable(others))]
    outcome = _RegionResults(found, mutable, before_it, tagged=tagged)
    if not outcome.succeeded:
        before()
        raise found[0][2]
    fallback, numeric, result, *after = outcome.merge()
    for thing, content in zip(mutable, after, strict=True):
        _restore(thing, content.data if isinstance(content, Array) else content)
    current.fall_back_if(fallback)
    current.fall_back_if(numeric, numeric=True)
    return result


def _explore_cached(around: list[Any], explored: Callable[[], list[Any]]) -> list[Any]:
    """Return what the paths of a region came to, from a path that began like this one."""
    current = tracer()
    path = current.path
    assert path is not None
    name = path.next_region()
    known = path.cache.get(name)
    again: list[Any] | None = known.replay(around) if known else None
    if again is not None:
        return again
    work = current.graph.work
    found = explored()
    if current.graph.work - work > MIN_CACHED_WORK:
        with suppress(MergeError):
            path.cache[name] = _CachedResults(around, found)
    return found


class _RegionResults:
    """What came of the paths of a region."""

    def __init__(
        self, found: Sequence[Any], mutable: Sequence[Any], old: Sequence[Any], *, tagged: bool
    ) -> None:
        self._found, self._things, self._old, self._tagged = found, mutable, old, tagged
        self.succeeded = [
            place for place, each in enumerate(found) if not isinstance(each[2], BaseException)
        ]

    def merge(self) -> list[Any]:
        """Return fallback conditions, the result, and the contents of mutable values."""
        group = self._fork_by(
            self.succeeded, lambda place: self._result(place)[0] if self._tagged else None
        )
        try:
            return self._of(group)
        except MergeError:
            group = self._fork_by(group, self._shape)
        try:
            return self._of(group)
        except MergeError:
            return self._of(self._fork_by(group, lambda place: place))

    def _result(self, place: int) -> Any:
        return self._found[place][2][0]

    def _fork_by(self, group: Sequence[int], name: Callable[[int], Any]) -> Sequence[int]:
        """Fork by what became of the paths, not by the paths."""
        kinds: dict[Any, list[int]] = {}
        for place in group:
            kinds.setdefault(name(place), []).append(place)
        *first, last = kinds.values()
        graph = tracer().graph
        for part in first:
            rows = [(each[0], graph.const(at in part)) for at, each in enumerate(self._found)]
            if tracer().decide(
                merge_by_decisions(rows, lambda c, x, y: graph.apply("select", c, x, y))
            ):
                return part
        return last

    def _of(self, group: Sequence[int]) -> list[Any]:
        """Merge the paths of a group; those that failed are fallback, others do not come here."""
        graph = tracer().graph
        old = tracer().constants | {id(thing) for thing in self._old}
        old |= {id(memory_owner(thing)) for thing in self._old if isinstance(thing, Array)}
        merging = _Merger(old)
        rows = []
        for place, (taken, (fallback, numeric), outcome) in enumerate(self._found):
            if place in group:
                row = [fallback or graph.false, numeric or graph.false, outcome[0], *outcome[1]]
            else:
                failed = graph.const(place not in self.succeeded)
                row = [failed, graph.false, *[UNKNOWN] * (1 + len(self._things))]
            rows.append((taken, row))

        def both(condition: TraceNode, x: list[Any], y: list[Any]) -> list[Any]:
            notes = [
                graph.apply("select", condition, a, b) for a, b in zip(x[:2], y[:2], strict=True)
            ]
            merged = merging.merge(condition, x[2], y[2])
            contents = [
                _merge_content(merging, condition, a, b) for a, b in zip(x[3:], y[3:], strict=True)
            ]
            return [*notes, merged, *contents]

        return merge_by_decisions(rows, both)

    def _shape(self, place: int) -> Any:
        """Return the shape of what a path left behind."""
        result, contents = self._found[place][2]
        parts = [Array(each) if isinstance(each, np.ndarray) else each for each in contents]
        try:
            return repr(flatten([result, *parts], []))
        except Unsupported:
            return place


def _merge_content(merging: _Merger, condition: TraceNode, x: Any, y: Any) -> Any:
    """Merge the contents of one thing on two paths."""
    if x is UNKNOWN or y is UNKNOWN:
        return y if x is UNKNOWN else x
    made = merging.merge_contents(condition, x, y)
    return made.data if isinstance(made, Array) else made


# --- what rewritten programs call


def region(run: Callable[[], Any], calls: bool) -> Any:
    """Do an expression with all its paths; without calls nothing can change in place."""
    if tracer().path is None:
        return run()
    around = _locals(sys._getframe(1))
    return run_and_merge(run, around) if calls else run_and_merge(run, (), around)


def _locals(frame: Any) -> list[Any]:
    """Return the variables of a function, without iterators that are the interpreter's."""
    return [value for name, value in frame.f_locals.items() if not name.startswith((".", PREFIX))]


def statement(run: Any, given: Sequence[Any]) -> Any:
    """Do a statement with all its paths."""
    if tracer().path is None:
        return run(*given)
    roots = [*_locals(sys._getframe(1)), *given, *closure_values(run)]
    return run_and_merge(lambda: run(*given), roots, tagged=True)


def function(made: Any) -> Any:
    """Make a function of a program a region; `step` and `set_state` stay apart by path."""
    if not isinstance(made, FunctionType):
        return made

    def call(*args: Any, **options: Any) -> Any:
        outermost = tracer().depth == 0 and made.__name__ in ("step", "set_state")
        if tracer().path is None or outermost:
            return made(*args, **options)
        return run_and_merge(
            lambda: made(*args, **options), [*args, *options.values(), *closure_values(made)]
        )

    call.__name__ = made.__name__
    call.__traced_function__ = made  # type: ignore[attr-defined]
    return call


def value(read: Callable[[], Any]) -> Any:
    """Return the value of a variable, if it has one."""
    try:
        return read()
    except NameError:
        return UNBOUND


def unbound(value: Any) -> bool:
    """Whether a variable has no value."""
    return value is UNBOUND


def going_on(test: Any, number: int) -> Any:
    """Return whether a loop goes on; after a few rounds that depend on numbers it is left alone."""
    current = tracer()
    if type(test) is Number and current.path and current.truth(test.node) is None:
        current.path.counts[number] += 1
        going = bool(test)
        if going and current.path.counts[number] > MAX_LOOP_ROUNDS:
            raise AbandonedPath("a long loop")
        return going
    return test


def caught() -> None:
    """Refuse that a program catches what it would not have raised."""
    error = sys.exc_info()[1]
    trace = error.__traceback__ if error else None
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    plain = trace is not None and (
        trace.tb_frame.f_code.co_filename == FILE
        or not is_symbolic(list(trace.tb_frame.f_locals.values()))
    )
    if tracer().path is not None and not plain and not hasattr(error, "__traced__"):
        raise Unsupported("an exception that is caught")


def contained(value: Any, container: Any, negated_: bool) -> Any:
    """Do `in` and `not in`."""
    known = isinstance(value, str) or isinstance(container, str | range)
    if isinstance(container, range) and is_symbolic(value):
        container, known = list(container), False
    if known or not (is_symbolic(value) or is_symbolic(container)):
        return (value in container) is not negated_
    items: Any = container
    if isinstance(container, dict | set | frozenset):
        items = sorted(container, key=repr) if not is_symbolic(list(container)) else list(container)
    out: Any = False
    for item in items:
        out = _logical_or(out, equal(value, item, False))
    return negated(out) if negated_ else out


def _logical_or(one: Any, other: Any) -> Any:
    return number(node_of(op("logical_or", one, other)), True)


def equal(x: Any, y: Any, negated_: bool) -> Any:
    """Do `==` and `!=`; lists and tuples are compared element by element."""
    if isinstance(x, tuple | list) and isinstance(y, tuple | list) and is_symbolic([x, y]):
        out: Any = len(x) == len(y) and isinstance(x, list) is isinstance(y, list)
        for a, b in zip(x, y, strict=False):
            if out is False:
                break
            each = equal(a, b, False)
            out = number(node_of(op("logical_and", out, each)), True)
        return negated(out) if negated_ else out
    return x != y if negated_ else x == y


def same(x: Any, y: Any, negated_: bool) -> Any:
    """Do `is` and `is not`: numbers that are not known are no known object, but for truths."""
    for one, other in ((x, y), (y, x)):
        if type(one) is Number and is_number(other):
            if one.node.kind != "b" or one.python is None or not isinstance(other, bool):
                raise Unsupported("`is` with numbers")
            out = op("equal", one, other) if one.python else False
            return negated(out) if negated_ else out
    return (x is y) is not negated_


def negated(value: Any) -> Any:
    """Do `not`."""
    if isinstance(value, Array) and value.size == 1:
        value = value.item()
    if type(value) is Number:
        return number(node_of(op("logical_not", value)), True)
    return not value


def item(container: Any, place: Any) -> Any:
    """Look something up."""
    if not is_symbolic(place):
        return container[place]
    if isinstance(container, dict):
        return get(container, place, missing=True)
    if isinstance(container, np.ndarray) and container.dtype.kind in "US":
        container = container.tolist()
    if isinstance(container, Array):
        return _array_element(container, place)
    if isinstance(container, list | tuple | str | range) and type(place) is Number:
        return _select_item(list(container), _normalize_index(place, len(container)))
    return container[place]


def items(container: Any, *places: Any) -> Any:
    """Look something up in what is looked up; rows are no values of their own."""
    first, *rest = places
    if rest and type(first) is Number and isinstance(container, list | tuple) and container:
        try:
            found = [items(row, *rest) for row in container]
        except (LookupError, TypeError):
            return items(item(container, first), *rest)
        return _select_item(found, _normalize_index(first, len(container)))
    found = item(container, first)
    return items(found, *rest) if rest else found


def _array_element(array: Array, place: Any) -> Any:
    """Look up elements of an array: by a table where all is known, else by choices or forks."""
    parts = place if isinstance(place, tuple) else (place,)
    single = all(type(p) is Number or isinstance(p, int | np.integer) for p in parts)
    if any(type(p) is Number and p.node.kind == "b" for p in parts) or not single:
        return array[place]
    if len(parts) > array.ndim:
        return array[tuple(0 for _ in parts)]  # which fails
    at: Any = 0
    for part, size in zip(parts, array.shape, strict=False):
        at = at * size + _normalize_index(part, size)
    rest = array.shape[len(parts) :]
    if not rest:
        return to_numpy(_select_item(list(array.data.reshape(-1)), at))
    if id(memory_owner(array)) not in tracer().constants:
        return array[place]  # a view, of each row on a path of its own
    made = np.empty(rest, object)
    for cell in np.ndindex(rest):
        column = array.data.reshape(-1, *rest)[(slice(None), *cell)]
        made[cell] = to_numpy(_select_item(list(column), at))
    made.flags.writeable = False
    return Array(made, array.kind)


def _normalize_index(place: Any, size: int) -> Any:
    """Return a place from 0 to the size; where there is none the program answers."""
    if type(place) is not Number and not isinstance(place, int | np.integer):
        raise Unsupported("an index that is not a number")
    graph, current = tracer().graph, tracer()
    node = node_of(place)
    if node.kind in "sf" or (node.kind == "b" and not is_python(place)):
        raise Unsupported("something other than a whole number is an index or key")
    if not size:
        raise IndexError("nothing is there")
    node = graph.cast(node, "i")
    low, high = current.range(node)
    if low < 0:
        below = graph.apply("less", node, graph.const(0))
        node = graph.apply("select", below, graph.apply("add", node, graph.const(size)), node)
        low, high = current.range(node)
    if low < 0 or high >= size:
        below = graph.apply("less", node, graph.const(0))
        above = graph.apply("less", graph.const(size - 1), node)
        current.fall_back_if(graph.apply("logical_or", below, above))
        least = graph.apply("maximum", node, graph.const(0))
        node = graph.apply("minimum", least, graph.const(size - 1))
    return number(node, True)


def _select_item(items: list[Any], place: Any) -> Any:
    """Return what is at a place."""
    node = node_of(place)
    if node.op == "const":
        return items[int(node.value)]
    try:
        return _gather_items(items, node)
    except MergeError:
        return items[tracer().fork_on_value(node)]


def _gather_items(items: list[Any], place: TraceNode) -> Any:
    """Return one thing that is what is at a place; things of different shapes are not one."""
    graph, first = tracer().graph, items[0]
    if all(map(is_number, items)):
        plain = [type(each) is not Number for each in items]
        kinds = {node_of(each).kind for each in items}
        flags = {isinstance(each, np.generic) for each in items} if all(plain) else {None}
        python = (
            not flags.pop() if len(flags) == 1 and None not in flags and len(kinds) == 1 else None
        )
        if all(plain) and len(kinds) > 1 and kinds != {"i", "f"}:
            raise MergeError
        if all(plain):
            return number(graph.gather(items, place), python)
        if len(items) > MAX_CHOICES:
            raise MergeError
        out = items[-1]
        for at in range(len(items) - 2, -1, -1):
            out = select_number(graph.apply("equal", place, graph.const(at)), items[at], out)
        return out
    if any(type(each) is not type(first) for each in items):
        raise MergeError
    if isinstance(first, tuple) and all(len(each) == len(first) for each in items):
        return _tuple(
            first, [_gather_items(list(column), place) for column in zip(*items, strict=True)]
        )
    raise MergeError


def get(container: Any, *args: Any, missing: bool = False) -> Any:
    """Do `get` of a dict, or what has that name; `missing` keys raise for an index."""
    if not isinstance(container, dict) or not is_symbolic(args[0]):
        return container[args[0]] if missing else container.get(*args)

    def run() -> Any:
        for key, found in container.items():
            if equal(args[0], key, False):
                return found
        if missing:
            raise KeyError(args[0])
        return args[1] if len(args) > 1 else None

    return run_and_merge(run, ())


def index(container: Any, *args: Any) -> Any:
    """Do `index` of a list, or what has that name."""
    if not isinstance(container, list | tuple) or not is_symbolic([container, *args]):
        return container.index(*args)
    if len(args) > 1:
        raise Unsupported("index between bounds")

    def run() -> Any:
        for place, found in enumerate(container):
            if equal(found, args[0], False):
                return place
        raise ValueError("not in the list")

    return run_and_merge(run, ())


def count(container: Any, *args: Any) -> Any:
    """Do `count` of a list, or what has that name."""
    if not isinstance(container, list | tuple) or not is_symbolic([container, *args]):
        return container.count(*args)
    out: Any = 0
    for found in container:
        out = out + number(tracer().graph.cast(node_of(equal(found, args[0], False)), "i"), True)
    return out


def _junction(name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
    """Return `any` or `all` of values that all were computed."""

    def call(items: Any) -> Any:
        values = list(items)
        if not is_symbolic(values):
            return plain(values)
        out: Any = name == "logical_and"
        for each in values:
            truth = op("not_equal", each, 0) if type(each) is Number else bool(each)
            out = number(node_of(op(name, out, truth)), True)
        return out

    return call


_HELPERS = {
    name: globals()[name]
    for name in [
        "region",
        "statement",
        "function",
        "value",
        "unbound",
        "going_on",
        "caught",
        "contained",
        "equal",
        "same",
        "negated",
        "item",
        "items",
        "get",
        "index",
        "count",
    ]
} | {"any": any, "all": all, "next": next, "iter": iter}


def load(text: str) -> dict[str, Any]:
    """Return the namespace of a program that takes numbers that are not known."""
    names: dict[str, Any] = {PREFIX + name: helper for name, helper in _HELPERS.items()}
    junctions = {"any": _junction("logical_or", any), "all": _junction("logical_and", all)}
    names |= {"__builtins__": BUILTINS | junctions, "__name__": "world_model"}
    exec(compile(rewrite(text), FILE, "exec"), names)  # noqa: S102  # the program, in regions
    for each in names.values():
        if (
            isinstance(each, type)
            and not isinstance(each, Type)
            and each.__module__ == "world_model"
        ):
            each.__traced__ = True  # type: ignore[attr-defined]
    return names
