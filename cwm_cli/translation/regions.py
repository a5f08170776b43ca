"""Exploration of the regions of a program, and the functions that rewritten programs call.

A region is run on all paths through it, and the results are merged into one. For each path,
everything that can change in place is restored first, and it keeps its identity afterwards. If
results have no common shape, or an old value would have to be replaced, the paths stay separate.
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from types import FunctionType, SimpleNamespace
from typing import Any

import numpy as np

from cwm_cli.translation.expressions import TraceNode, Unsupported
from cwm_cli.translation.instrumentation import PREFIX, rewrite
from cwm_cli.translation.modules import BUILTINS, Type
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
    select_number,
    to_numpy,
    tracer,
)
from cwm_cli.translation.paths import AbandonedPath, merge_by_decisions
from cwm_cli.translation.values import (
    ATOMS,
    closure_values,
    collect_reachable,
    flatten,
    memory_owner,
    select_mutable,
)

FILE = "<traced>"  # file name of traced programs

UNBOUND = SimpleNamespace(what="a variable without a value")
UNKNOWN = SimpleNamespace(what="the result of a path that failed")


class MergeError(BaseException):
    """Results of paths cannot become one value."""


class _CachedResults:
    """A copy of the results of a region, for other paths that reach the same region.

    Args:
        around: The values that the region could reach.
        found: The results of its paths.
    """

    def __init__(self, around: list[Any], found: Sequence[Any]) -> None:
        self._around = around
        self._found = self._copy_results(found, {id(each): each for each in around})

    def replay(self, around: list[Any]) -> list[Any] | None:
        """Return a copy for other values in place of `around`, or None if types differ."""
        if list(map(type, around)) != list(map(type, self._around)):
            return None
        pairs = zip(self._around, around, strict=True)
        return self._copy_results(self._found, {id(old): new for old, new in pairs})

    def _copy_results(self, found: Sequence[Any], memo: dict[int, Any]) -> list[Any]:
        return [(taken, fallback, _copy(result, memo)) for taken, fallback, result in found]


def _copy(value: Any, memo: dict[int, Any]) -> Any:  # noqa: PLR0911  # a case for each kind
    """Return a deep copy, with values replaced by `memo`.

    Raises:
        MergeError: The value has a type that cannot be copied, or is a view of an array.
    """
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
        return value.copy()  # the contents of an `Array`: numbers
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
        if value.data.flags.writeable:  # a read-only array has not changed
            value.data[...] = saved
    elif isinstance(value, list):
        # A write-only list ignores its own methods.
        list.__setitem__(value, slice(None), saved)
    else:
        value.clear()
        value.update(saved)


class _Merger:
    """A function that merges the values of two paths.

    Args:
        old: Identities of values that existed before the region; they are never replaced.
    """

    def __init__(self, old: set[int]) -> None:
        self._old = old
        self._memo: dict[Any, Any] = {}

    def merge(self, condition: TraceNode, x: Any, y: Any) -> Any:
        """Return one value for two; `condition` selects the first."""
        if x is y or x is UNKNOWN:
            return y
        if y is UNKNOWN:
            return x
        if is_number(x) and is_number(y):
            types = [(is_python(value), node_of(value).kind) for value in (x, y)]
            if tracer().exact_types and types[0] != types[1]:
                raise MergeError
            return select_number(condition, x, y) if not _is_same(x, y) else x
        if x is UNBOUND or y is UNBOUND:
            return UNBOUND  # reading the variable raises NameError
        if isinstance(x, Array) and isinstance(y, Array):
            if id(memory_owner(x)) in self._old or id(memory_owner(y)) in self._old:
                alike = x.shape == y.shape and memory_owner(x) is memory_owner(y)
                if not alike or not all(map(_is_same, x.data.flat, y.data.flat)):
                    raise MergeError
                return x
        elif id(x) in self._old or id(y) in self._old:
            raise MergeError
        key = condition, id(x), id(y)
        if key not in self._memo:  # aliases stay aliases
            self._memo[key] = self.merge_contents(condition, x, y), x, y
        return self._memo[key][0]

    def merge_contents(self, condition: TraceNode, x: Any, y: Any) -> Any:
        """Return a new container that merges two of the same shape."""
        if isinstance(x, Array | np.ndarray) and isinstance(y, Array | np.ndarray):
            kinds = {each.kind for each in (x, y) if isinstance(each, Array)}
            one, other = raw(x), raw(y)
            if len(kinds) > 1 or one.shape != other.shape:
                raise MergeError
            data = np.empty(one.shape, object)
            for place in np.ndindex(one.shape):
                data[place] = self.merge(condition, one[place], other[place])
            return Array(data, x.kind if isinstance(x, Array) else None)
        if type(x) is type(y):
            if isinstance(x, list | tuple) and len(x) == len(y):
                made = [self.merge(condition, a, b) for a, b in zip(x, y, strict=True)]
                return made if isinstance(x, list) else _tuple(x, made)
            if isinstance(x, dict) and list(x) == list(y):
                return {key: self.merge(condition, x[key], y[key]) for key in x}
            if isinstance(x, str | bytes | set | frozenset | range) and x == y:
                return x
        raise MergeError


def _tuple(like: Any, parts: list[Any]) -> Any:
    """Return a tuple, or a named tuple of the type of `like`."""
    return type(like)(*parts) if hasattr(like, "_fields") else tuple(parts)


def _is_same(x: Any, y: Any) -> bool:
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
    """Run a region on all its paths and return one result; if that fails, fork the current path.

    Args:
        run: The region.
        roots: Values that lead to everything that the region may change.
        others: Further values that existed before the region.
        tagged: Merge only results with the same first element.
    """
    current = tracer()
    around = collect_reachable(roots)
    mutable = select_mutable(around)
    saved = [_copy_contents(thing) for thing in mutable]
    fresh = [True]  # nothing has changed before the first path

    def before() -> None:
        if not fresh[0]:
            for thing, content in zip(mutable, saved, strict=True):
                _restore(thing, content)
        fresh[0] = False

    def explore() -> list[Any]:
        current.depth += 1
        try:
            if current.depth > 60:  # nested regions: the recursion has no known end
                raise Unsupported("it recurs too deeply")
            return current.explore(lambda: (run(), tuple(map(_copy_contents, mutable))), before)
        finally:
            current.depth -= 1

    found = _explore_cached(around, explore)
    if len(found) == 1:
        _, fallback, outcome = found[0]
        if isinstance(outcome, BaseException):
            raise outcome
        result, after = outcome
    else:
        # Results that are numbers share no memory with old values.
        numbers = all(is_number(each[2][0]) for each in found if type(each[2]) is tuple)
        old = mutable if numbers else [*mutable, *select_mutable(collect_reachable(others))]
        results = _RegionResults(found, mutable, old, tagged=tagged)
        if not results.succeeded:
            before()
            raise found[0][2]
        fallback, result, *after = results.merge()
    for thing, content in zip(mutable, after, strict=True):
        _restore(thing, content.data if isinstance(content, Array) else content)
    current.fall_back_if(fallback)
    return result


def _explore_cached(around: list[Any], explore: Callable[[], list[Any]]) -> list[Any]:
    """Return the results of the paths of a region, cached by the decisions before it."""
    current = tracer()
    path = current.path
    assert path is not None
    key = path.next_region()
    cached = path.cache.get(key)
    copies: list[Any] | None = cached.replay(around) if cached else None
    if copies is not None:
        return copies
    work = current.graph.work
    found = explore()
    # Repeating less work costs less than copying the results.
    if current.graph.work - work > 150:
        with suppress(MergeError):
            path.cache[key] = _CachedResults(around, found)
    return found


class _RegionResults:
    """The results of the paths of a region, to be merged."""

    def __init__(
        self, found: Sequence[Any], mutable: Sequence[Any], old: Sequence[Any], *, tagged: bool
    ) -> None:
        self._found, self._mutable, self._old, self._tagged = found, mutable, old, tagged
        self.succeeded = [
            place for place, each in enumerate(found) if not isinstance(each[2], BaseException)
        ]

    def merge(self) -> list[Any]:
        """Return the fallback condition, the result, and the new contents of mutable values."""
        group = self._fork_by(
            self.succeeded, lambda place: self._found[place][2][0][0] if self._tagged else None
        )
        # Merge as many paths as possible: all paths, paths with results of equal shape, or none.
        try:
            return self._merge_group(group)
        except MergeError:
            group = self._fork_by(group, self._shape)
        try:
            return self._merge_group(group)
        except MergeError:
            return self._merge_group(self._fork_by(group, lambda place: place))

    def _fork_by(self, group: Sequence[int], label: Callable[[int], Any]) -> Sequence[int]:
        """Fork the current path by labels of results; return the results with one label."""
        groups: dict[Any, list[int]] = {}
        for place in group:
            groups.setdefault(label(place), []).append(place)
        # After all other groups, the last group needs no decision.
        *first, last = groups.values()
        graph = tracer().graph
        for part in first:
            rows = [(each[0], graph.const(at in part)) for at, each in enumerate(self._found)]
            if tracer().decide(
                merge_by_decisions(rows, lambda c, x, y: graph.apply("select", c, x, y))
            ):
                return part
        return last

    def _merge_group(self, group: Sequence[int]) -> list[Any]:
        """Merge the results of a group; failed paths become a fallback condition."""
        graph = tracer().graph
        old = tracer().constants | {id(thing) for thing in self._old}
        old |= {id(memory_owner(thing)) for thing in self._old if isinstance(thing, Array)}
        merger = _Merger(old)
        rows = []
        for place, (taken, fallback, outcome) in enumerate(self._found):
            if place in group:
                row = [fallback or graph.false, outcome[0], *outcome[1]]
            else:  # a failed path, or one that `_fork_by` has excluded
                failed = graph.const(place not in self.succeeded)
                row = [failed, *[UNKNOWN] * (1 + len(self._mutable))]
            rows.append((taken, row))

        def merge_content(condition: TraceNode, x: Any, y: Any) -> Any:
            if x is UNKNOWN or y is UNKNOWN:
                return y if x is UNKNOWN else x
            merged = merger.merge_contents(condition, x, y)
            return merged.data if isinstance(merged, Array) else merged

        def both(condition: TraceNode, x: list[Any], y: list[Any]) -> list[Any]:
            fallback = graph.apply("select", condition, x[0], y[0])
            merged = merger.merge(condition, x[1], y[1])
            contents = [merge_content(condition, a, b) for a, b in zip(x[2:], y[2:], strict=True)]
            return [fallback, merged, *contents]

        return merge_by_decisions(rows, both)

    def _shape(self, place: int) -> Any:
        """Return a label that is equal for results of equal shape."""
        result, contents = self._found[place][2]
        parts = [Array(each) if isinstance(each, np.ndarray) else each for each in contents]
        try:
            return repr(flatten([result, *parts], []))
        except Unsupported:
            return place


# Functions that rewritten programs call, under their names with the prefix `_w_`.
def run_region(run: Callable[[], Any], calls: bool) -> Any:
    """Evaluate an expression on all paths; without `calls` it cannot change anything in place."""
    if tracer().path is None:
        return run()
    around = _locals(sys._getframe(1))
    return run_and_merge(run, around) if calls else run_and_merge(run, (), around)


def _locals(frame: Any) -> list[Any]:
    """Return the local variables of a frame, without the interpreter's hidden iterators."""
    return [value for name, value in frame.f_locals.items() if not name.startswith((".", PREFIX))]


def run_statement(run: Any, given: Sequence[Any]) -> Any:
    """Run a statement, as a function of the variables that it assigns to, on all paths."""
    if tracer().path is None:
        return run(*given)
    roots = [*_locals(sys._getframe(1)), *given, *closure_values(run)]
    return run_and_merge(lambda: run(*given), roots, tagged=True)


def wrap_function(function: Any) -> Any:
    """Make a function of a program a region.

    The outermost call of `step` or `set_state` is none: `Trace` merges its paths.
    """
    if not isinstance(function, FunctionType):
        return function

    def call(*args: Any, **options: Any) -> Any:
        outermost = tracer().depth == 0 and function.__name__ in ("step", "set_state")
        if tracer().path is None or outermost:
            return function(*args, **options)
        return run_and_merge(
            lambda: function(*args, **options),
            [*args, *options.values(), *closure_values(function)],
        )

    call.__name__ = function.__name__
    call.__traced_function__ = function  # type: ignore[attr-defined]
    return call


def read_variable(read: Callable[[], Any]) -> Any:
    """Return the value of a variable, or `UNBOUND`."""
    try:
        return read()
    except NameError:
        return UNBOUND


def is_unbound(value: Any) -> bool:
    """Return whether a variable has no value."""
    return value is UNBOUND


def note_names(value: Any, names: str) -> Any:
    """Note the names of the variables that a value is assigned to, and return the value."""
    targets, found = names.split(), tracer().graph.names
    parts = value.data if isinstance(value, Array) else value
    parts = parts if isinstance(parts, tuple | list | np.ndarray) else ()
    for name, part in zip(targets, parts if len(targets) > 1 else [value], strict=False):
        if type(part) is Number:
            found.setdefault(part.node, name)
    return value


def continue_loop(test: Any, number: int) -> Any:
    """Return whether a loop continues; abandon the path after a few rounds with open conditions."""
    current = tracer()
    if type(test) is Number and current.path and current.truth(test.node) is None:
        current.path.counts[number] += 1
        going = bool(test)
        if going and current.path.counts[number] > 3:  # the program computes longer loops
            raise AbandonedPath("a long loop")
        return going
    return test


def check_caught() -> None:
    """Refuse to catch an exception that the program itself would not have raised.

    An exception is the program's own if it is marked, or if it comes from the program's text or
    from a function without symbolic arguments.
    """
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


def contains(value: Any, container: Any, negated: bool) -> Any:
    """Evaluate `in` and `not in`."""
    known = isinstance(value, str) or isinstance(container, str | range)
    if isinstance(container, range) and is_symbolic(value):
        container, known = list(container), False
    if known or not (is_symbolic(value) or is_symbolic(container)):
        return (value in container) is not negated
    # Sets have no order of their own, but the nodes must be the same in every process.
    items: Any = container
    if isinstance(container, dict | set | frozenset):
        items = sorted(container, key=repr) if not is_symbolic(list(container)) else list(container)
    out: Any = False
    for item in items:
        out = _join_truths("logical_or", out, equal(value, item, False))
    return negate(out) if negated else out


def _join_truths(name: str, one: Any, other: Any) -> Any:
    return number(node_of(op(name, one, other)), True)


def equal(x: Any, y: Any, negated: bool) -> Any:
    """Evaluate `==` and `!=`; lists and tuples are compared element by element."""
    if isinstance(x, tuple | list) and isinstance(y, tuple | list) and is_symbolic([x, y]):
        out: Any = len(x) == len(y) and isinstance(x, list) is isinstance(y, list)
        for a, b in zip(x, y, strict=False):
            if out is False:
                break
            out = _join_truths("logical_and", out, equal(a, b, False))
        return negate(out) if negated else out
    return x != y if negated else x == y


def is_same_object(x: Any, y: Any, negated: bool) -> Any:
    """Evaluate `is` and `is not`.

    A symbolic number is no known object. Only a truth can be True or False itself.
    """
    for one, other in ((x, y), (y, x)):
        if type(one) is Number and is_number(other):
            if one.node.kind != "b" or one.python is None or not isinstance(other, bool):
                raise Unsupported("`is` with numbers")
            out = op("equal", one, other) if one.python else False
            return negate(out) if negated else out
    return (x is y) is not negated


def negate(value: Any) -> Any:
    """Evaluate `not`."""
    if isinstance(value, Array) and value.size == 1:
        value = value.item()
    if type(value) is Number:
        return number(node_of(op("logical_not", value)), True)
    return not value


def get_item(container: Any, place: Any) -> Any:
    """Evaluate a subscript."""
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


def get_nested_item(container: Any, *places: Any) -> Any:
    """Evaluate nested subscripts, as in `grid[y][x]`, without a view of the row."""
    first, *rest = places
    if rest and type(first) is Number and isinstance(container, list | tuple) and container:
        try:
            found = [get_nested_item(row, *rest) for row in container]
        except (LookupError, TypeError):
            return get_nested_item(get_item(container, first), *rest)
        return _select_item(found, _normalize_index(first, len(container)))
    found = get_item(container, first)
    return get_nested_item(found, *rest) if rest else found


def _array_element(array: Array, place: Any) -> Any:
    """Return elements of an array: from a table of known numbers, else by selections or forks."""
    parts = place if isinstance(place, tuple) else (place,)
    single = all(type(p) is Number or isinstance(p, int | np.integer) for p in parts)
    if any(type(p) is Number and p.node.kind == "b" for p in parts) or not single:
        return array[place]
    if len(parts) > array.ndim:
        return array[tuple(0 for _ in parts)]  # raises the IndexError of the program
    at: Any = 0
    for part, size in zip(parts, array.shape, strict=False):
        at = at * size + _normalize_index(part, size)
    rest = array.shape[len(parts) :]
    if not rest:
        return to_numpy(_select_item(list(array.data.reshape(-1)), at))
    if id(memory_owner(array)) not in tracer().constants:
        return array[place]  # a view that the program may write to, so fork over the rows
    made = np.empty(rest, object)
    for cell in np.ndindex(rest):
        column = array.data.reshape(-1, *rest)[(slice(None), *cell)]
        made[cell] = to_numpy(_select_item(list(column), at))
    # Writing to this copy of a row would not change the array, so it must fail.
    made.flags.writeable = False
    return Array(made, array.kind)


def _normalize_index(place: Any, size: int) -> Any:
    """Return an index from 0 to `size - 1`; outside this range the program computes the step."""
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
        below = graph.apply("less", node, 0)
        node = graph.apply("select", below, graph.apply("add", node, size), node)
        low, high = current.range(node)
    if low < 0 or high >= size:
        below = graph.apply("less", node, 0)
        above = graph.apply("less", size - 1, node)
        current.fall_back_if(graph.apply("logical_or", below, above))
        # The table is also read in lanes that fall back, so the index stays inside it.
        least = graph.apply("maximum", node, 0)
        node = graph.apply("minimum", least, size - 1)
    return number(node, True)


def _select_item(items: list[Any], place: Any) -> Any:
    """Return the item at an index, by a table or selections if possible, else by a fork."""
    node = node_of(place)
    if node.op == "const":
        return items[int(node.value)]
    try:
        return _gather_items(items, node)
    except MergeError:
        return items[tracer().fork_on_value(node)]


def _gather_items(items: list[Any], place: TraceNode) -> Any:
    """Return the items at an index as one value; raise `MergeError` if their shapes differ."""
    graph, first = tracer().graph, items[0]
    if all(map(is_number, items)):
        if all(type(each) is not Number for each in items):
            kinds = {node_of(each).kind for each in items}
            if len(kinds) > 1 and kinds != {"i", "f"}:
                raise MergeError
            of_numpy = {isinstance(each, np.generic) for each in items}
            python = not of_numpy.pop() if len(of_numpy) == len(kinds) == 1 else None
            return number(graph.gather(items, place), python)
        if len(items) > 16:  # a longer chain becomes a fork
            raise MergeError
        out = items[-1]
        for at in range(len(items) - 2, -1, -1):
            out = select_number(graph.apply("equal", place, at), items[at], out)
        return out
    if any(type(each) is not type(first) for each in items):
        raise MergeError
    if isinstance(first, tuple) and all(len(each) == len(first) for each in items):
        return _tuple(
            first, [_gather_items(list(column), place) for column in zip(*items, strict=True)]
        )
    raise MergeError


def get(container: Any, *args: Any, missing: bool = False) -> Any:
    """Call `get` of a dict, or another method of that name.

    With `missing`, an unknown key raises KeyError, as for a subscript.
    """
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
    """Call `index` of a list, or another method of that name."""
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
    """Call `count` of a list, or another method of that name."""
    if not isinstance(container, list | tuple) or not is_symbolic([container, *args]):
        return container.count(*args)
    out: Any = 0
    for found in container:
        out = out + number(tracer().graph.cast(node_of(equal(found, args[0], False)), "i"), True)
    return out


def _junction(name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
    """Return `any` or `all` for values that were all computed before."""

    def call(items: Any) -> Any:
        values = list(items)
        if not is_symbolic(values):
            return plain(values)
        out: Any = name == "logical_and"
        for each in values:
            truth = op("not_equal", each, 0) if type(each) is Number else bool(each)
            out = _join_truths(name, out, truth)
        return out

    return call


_FUNCTIONS = (
    *(run_region, run_statement, wrap_function, read_variable, is_unbound, note_names),
    continue_loop,
    *(check_caught, contains, equal, is_same_object, negate, get_item, get_nested_item),
    *(get, index, count, any, all, next, iter),
)


def load(text: str) -> dict[str, Any]:
    """Return the namespace of a program that computes with symbolic numbers."""
    names: dict[str, Any] = {PREFIX + function.__name__: function for function in _FUNCTIONS}
    junctions = {"any": _junction("logical_or", any), "all": _junction("logical_and", all)}
    names |= {"__builtins__": BUILTINS | junctions, "__name__": "world_model"}
    exec(compile(rewrite(text), FILE, "exec"), names)  # noqa: S102  # in the sandbox
    for value in names.values():
        own = isinstance(value, type) and not isinstance(value, Type)
        if own and value.__module__ == "world_model":
            value.__traced__ = True
    return names
