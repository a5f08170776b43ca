"""Rewriting of the syntax tree of a program: regions for tracing, and recording of trails.

- `rewrite` turns comparisons, conditional expressions, branches, loops and functions into regions
  that may fork and merge. Arithmetic stays unchanged. Names that begin with `_w_` are functions of
  `regions`.
- `instrument` inserts calls of a `Recorder`, which records the branches that a program takes and
  the keys that it looks up.
"""

import ast
import operator
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np

from cwm_cli.translation.expressions import Unsupported

PREFIX = "_w_"

MAX_SITES = 4000
"""Maximum number of instrumented places in a program; later places are not instrumented."""

LOOKUP = 1 << 63
"""The bit that marks events as lookups of keys; other events are arms of branches."""

SITE_SHIFT = 40
"""An event is `site << SITE_SHIFT`, plus the number of the arm or a checksum of the key."""

RECORDER = "__trail__"
"""The builtin name under which an instrumented program finds its `Recorder`."""

_LOOKUPS = (PREFIX + "get_item", PREFIX + "get_nested_item")

# Statements that contain these are not regions: paths through them fork, but do not merge.
_UNMERGEABLE = (
    ast.Yield,
    ast.YieldFrom,
    ast.NamedExpr,
    ast.Delete,
    ast.Import,
    ast.ImportFrom,
    ast.FunctionDef,
    ast.ClassDef,
    ast.Try,
    ast.With,
)

_UNSUPPORTED = {
    ast.Global: "a global that is assigned to",
    ast.Nonlocal: "a variable of an outer function that is assigned to",
    ast.AsyncFunctionDef: "an asynchronous function",
    ast.Match: "a match statement",
}


def rewrite(text: str) -> ast.Module:
    """Return a program with its regions as functions.

    Raises:
        Unsupported: The program has a statement that cannot be traced.
    """
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if type(node) in _UNSUPPORTED:
            raise Unsupported(f"line {getattr(node, 'lineno', 0)}: {_UNSUPPORTED[type(node)]}")
        if isinstance(node, ast.ExceptHandler):
            _check_handler(node)
    magic = any(
        isinstance(node, ast.FunctionDef) and node.name.startswith("__") and node.name != "__init__"
        for node in ast.walk(tree)
    )
    _RegionTransformer(magic="property" in text or magic).visit(tree)
    return ast.fix_missing_locations(tree)


def _check_handler(handler: ast.ExceptHandler) -> None:
    """Refuse a handler that would catch `Unsupported`; add a check to all others."""
    if not handler.type or any(
        isinstance(node, ast.Name) and node.id == "BaseException" for node in ast.walk(handler.type)
    ):
        raise Unsupported(f"line {handler.lineno}: everything is caught")
    handler.body.insert(0, ast.Expr(_call_helper("check_caught")))


def _call(function: str, *args: ast.expr) -> ast.Call:
    return ast.Call(ast.parse(function, mode="eval").body, list(args), [])


def _call_helper(name: str, *args: ast.expr) -> ast.Call:
    return _call(PREFIX + name, *args)


def _read_variables(names: Iterable[str]) -> str:
    """Return the text of a tuple of the values of variables, each `UNBOUND` if it has none."""
    return "(" + "".join(f"{PREFIX}read_variable(lambda: {name}), " for name in names) + ")"


def _contains(node: ast.AST, kinds: Any) -> bool:
    return any(isinstance(part, kinds) for part in ast.walk(node))


class _ExitTransformer(ast.NodeTransformer):
    """A transformer that turns exits from a statement into tagged results of a function.

    Args:
        stored: The variables that the statement assigns to.
    """

    def __init__(self, stored: list[str]) -> None:
        self.found: set[str] = set()
        self._stored = stored
        self._loops = 0

    def visit_FunctionDef(self, node: Any) -> Any:
        return node  # its exits are its own

    visit_Lambda = visit_FunctionDef

    def visit_Return(self, node: ast.Return) -> ast.AST:
        self.found.add("return")
        value = node.value or ast.Constant(None)
        return ast.Return(ast.Tuple([ast.Constant("return"), value], ast.Load()))

    def visit_Break(self, node: ast.Break) -> ast.AST:
        return self._tag_exit(node, "break")

    def visit_Continue(self, node: ast.Continue) -> ast.AST:
        return self._tag_exit(node, "continue")

    def _tag_exit(self, node: ast.stmt, tag: str) -> ast.AST:
        if self._loops:  # the exit of an inner loop
            return node
        self.found.add(tag)
        return ast.parse(f"return {tag!r}, {_read_variables(self._stored)}").body[0]

    def visit_For(self, node: Any) -> Any:
        self._loops += 1
        node.body = [self.visit(statement) for statement in node.body]
        self._loops -= 1
        node.orelse = [self.visit(statement) for statement in node.orelse]
        return node

    visit_While = visit_For


class _RegionTransformer(ast.NodeTransformer):
    """A transformer that wraps regions.

    Args:
        magic: The program has properties or operators of its own, so any expression may call.
    """

    def __init__(self, *, magic: bool) -> None:
        self._magic = magic
        self._count = 0
        self._inside = 0

    def _region(self, node: ast.expr) -> ast.expr:
        if _contains(node, (ast.NamedExpr, ast.Yield, ast.YieldFrom)) or not self._inside:
            self.generic_visit(node)
            return node
        calls = self._magic or _contains(node, ast.Call)
        self.generic_visit(node)
        function = ast.Lambda(ast.arguments([], [], None, [], [], None, []), node)
        return _call_helper("run_region", function, ast.Constant(calls))

    visit_IfExp = visit_BoolOp = _region

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        if len(node.ops) > 1:
            return self._region(node)
        self.generic_visit(node)
        operator = node.ops[0]
        for kinds, name in (
            ((ast.In, ast.NotIn), "contains"),
            ((ast.Eq, ast.NotEq), "equal"),
            ((ast.Is, ast.IsNot), "is_same_object"),
        ):
            if isinstance(operator, kinds):
                negated = ast.Constant(isinstance(operator, kinds[1]))
                return _call_helper(name, node.left, node.comparators[0], negated)
        return node

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        self.generic_visit(node)
        return _call_helper("negate", node.operand) if isinstance(node.op, ast.Not) else node

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        self.generic_visit(node)
        if isinstance(node.ctx, ast.Load) and not _contains(node.slice, ast.Slice):
            inner = node.value
            if isinstance(inner, ast.Call) and getattr(inner.func, "id", "") in _LOOKUPS:
                return _call_helper("get_nested_item", *inner.args, node.slice)
            return _call_helper("get_item", inner, node.slice)
        return node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        function, args = node.func, node.args
        if isinstance(function, ast.Name) and args:
            if function.id in ("any", "all") and isinstance(args[0], ast.GeneratorExp):
                node.func = ast.Name(PREFIX + function.id, ast.Load())
                return self._region(node)
            # A new iterator is made again on each path; an older iterator has only one position.
            fresh = isinstance(args[0], ast.GeneratorExp) or (
                isinstance(args[0], ast.Call) and getattr(args[0].func, "id", "") == "iter"
            )
            if function.id == "next" and fresh:
                if isinstance(args[0], ast.Call):
                    args[0].func = ast.Name(PREFIX + "iter", ast.Load())
                node.func = ast.Name(PREFIX + "next", ast.Load())
                return self._region(node)
        self.generic_visit(node)
        if not isinstance(function, ast.Attribute) or node.keywords:
            return node
        if function.attr in ("get", "index", "count"):
            return _call_helper(function.attr, function.value, *node.args)
        return node

    def visit_While(self, node: ast.While) -> Any:
        self._count += 1
        node.test = _call_helper("continue_loop", node.test, ast.Constant(self._count))
        return self._statement(node)

    def visit_For(self, node: ast.For) -> Any:
        if _contains(node, (ast.Break, ast.Continue, ast.Return)):
            return self._statement(node)
        self.generic_visit(node)
        return node

    def visit_Assign(self, node: ast.Assign) -> Any:
        self.generic_visit(node)
        target = node.targets[0]
        parts = target.elts if isinstance(target, ast.Tuple) else [target]
        names = [getattr(part, "id", getattr(part, "attr", "")) for part in parts]
        if self._inside and len(node.targets) == 1 and all(names):
            node.value = _call_helper("note_names", node.value, ast.Constant(" ".join(names)))
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        self.generic_visit(node)
        if node.value is None or not isinstance(node.target, ast.Name) or not self._inside:
            return node
        return ast.Assign([node.target], node.value)

    def _statement(self, node: Any) -> Any:
        """Turn a statement into a function of the variables that it assigns to, and call it."""
        # Look at the statement before its parts are rewritten and contain functions.
        kept = not self._inside or _contains(node, _UNMERGEABLE)
        stored = _assigned_names(node)
        self.generic_visit(node)
        if kept:
            return node
        self._count += 1
        name, result = f"{PREFIX}r{self._count}", f"{PREFIX}t{self._count}"
        exits = _ExitTransformer(stored)
        node = exits.visit(node)
        values = _read_variables(stored)
        deletions = [f"if {PREFIX}is_unbound({each}): del {each}" for each in stored]

        def exit_by(tag: str, then: str) -> list[str]:
            return [f"if {result}[0] == {tag!r}: {then}"] if tag in exits.found else []

        # The function returns (tag, value of `return` or values of the variables).
        lines = [
            f"def {name}({', '.join(stored)}):",
            *[f"  {line}" for line in deletions],
            "  pass",
            f"  return 'next', {values}",
            f"{result} = {PREFIX}run_statement({name}, {values})",
            *exit_by("return", f"return {result}[1]"),
            *([f"{', '.join(stored)}, = {result}[1]"] if stored else []),
            *deletions,
            *exit_by("break", "break"),
            *exit_by("continue", "continue"),
        ]
        function, *rest = ast.parse("\n".join(lines)).body
        assert isinstance(function, ast.FunctionDef)
        function.body[len(deletions)] = node  # instead of `pass`
        return [function, *rest]

    visit_If = _statement

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        if _contains(node, (ast.Yield, ast.YieldFrom)):
            return node
        self._inside += 1
        self.generic_visit(node)
        self._inside -= 1
        # Annotations would be evaluated with symbolic types.
        node.returns = None
        for parameter in node.args.args + node.args.kwonlyargs:
            parameter.annotation = None
        if not node.name.startswith("__"):
            node.decorator_list.append(ast.Name(PREFIX + "wrap_function", ast.Load()))
        return node

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        self._inside += 1
        self.generic_visit(node)
        self._inside -= 1
        return node


def _assigned_names(node: ast.AST) -> list[str]:
    """Return the variables that a statement assigns to, without comprehension variables."""
    comprehensions = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
    hidden = {
        part
        for comprehension in ast.walk(node)
        if isinstance(comprehension, comprehensions)
        for generator in comprehension.generators
        for part in ast.walk(generator.target)
    }
    names = (part for part in ast.walk(node) if isinstance(part, ast.Name) and part not in hidden)
    return sorted({name.id for name in names if isinstance(name.ctx, ast.Store)})


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
        """Record whether a condition is true; arrays are not recorded."""
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
        sliced = any(_contains(part, ast.Slice | ast.Starred) for part in slices)
        is_lookup = not sliced and not constant
        nested[-1].value = table = self.visit(nested[-1].value)
        for subscript in nested:
            subscript.slice = self.visit(subscript.slice)
        if is_lookup and len(nested) == 1:
            node.slice = self._record(node, "key", node.slice)
        elif is_lookup:
            # evaluate and record all keys before the first lookup
            keys = ast.Tuple([subscript.slice for subscript in reversed(nested)], ast.Load())
            call = _call(f"{RECORDER}.lookup", table, self._record(node, "key", keys))
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
        return ast.copy_location(_call(f"{RECORDER}.{method}", site, *args), node)
