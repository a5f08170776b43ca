"""The text of a program in which regions that may fork and rejoin are functions of their own.

Tests, choices, branches, loops and functions become regions; arithmetic stays
as it is. Names beginning with `_w_` are those of `regions`.
"""

import ast
from collections.abc import Iterable
from typing import Any

from cwm_cli.translation.expressions import Unsupported

PREFIX = "_w_"

_LOOKUPS = (PREFIX + "item", PREFIX + "items")

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
"""Statements with these are no regions; paths through them fork, but do not rejoin."""

_UNSUPPORTED = {
    ast.Global: "a global that is assigned to",
    ast.Nonlocal: "a variable of an outer function that is assigned to",
    ast.AsyncFunctionDef: "an asynchronous function",
    ast.Match: "a match statement",
}


def rewrite(text: str) -> ast.Module:
    """Return a program with its regions; `Refused` where it cannot be traced at all."""
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
    tree = _RegionTransformer(magic="property" in text or magic).visit(tree)
    made: ast.Module = ast.fix_missing_locations(tree)
    return made


def _check_handler(handler: ast.ExceptHandler) -> None:
    """Refuse handlers that would catch what tracing raises; tell the others what they caught."""
    names = (
        {node.id for node in ast.walk(handler.type) if isinstance(node, ast.Name)}
        if handler.type
        else set()
    )
    if not handler.type or "BaseException" in names:
        raise Unsupported(f"line {handler.lineno}: everything is caught")
    handler.body.insert(0, ast.Expr(_call_helper("caught")))


def _call_helper(name: str, *args: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(PREFIX + name, ast.Load()), list(args), [])


def _as_lambda(body: ast.expr) -> ast.Lambda:
    return ast.Lambda(ast.arguments([], [], None, [], [], None, []), body)


def _read_variables(names: Iterable[str]) -> ast.Tuple:
    """Return the values of variables, some of which may have none."""
    return ast.Tuple(
        [_call_helper("value", _as_lambda(ast.Name(name, ast.Load()))) for name in names],
        ast.Load(),
    )


def _tagged_return(how: str, what: ast.expr) -> ast.Return:
    return ast.Return(ast.Tuple([ast.Constant(how), what], ast.Load()))


def _contains(node: ast.AST, kinds: Any) -> bool:
    return any(isinstance(each, kinds) for each in ast.walk(node))


class _ExitTransformer(ast.NodeTransformer):
    """Turns what leaves a statement into tagged results of the function that it becomes."""

    def __init__(self, stored: list[str]) -> None:
        self.found: set[str] = set()
        self._assigned_names = stored
        self._loops = 0

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return node

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        return node

    def visit_Return(self, node: ast.Return) -> ast.AST:
        self.found.add("return")
        return _tagged_return("return", node.value or ast.Constant(None))

    def visit_Break(self, node: ast.Break) -> ast.AST:
        return self._tag_exit(node, "break")

    def visit_Continue(self, node: ast.Continue) -> ast.AST:
        return self._tag_exit(node, "continue")

    def _tag_exit(self, node: ast.stmt, how: str) -> ast.AST:
        if self._loops:
            return node
        self.found.add(how)
        return _tagged_return(how, _read_variables(self._assigned_names))

    def _loop(self, node: Any) -> Any:
        self._loops += 1
        node.body = [self.visit(each) for each in node.body]
        self._loops -= 1
        node.orelse = [self.visit(each) for each in node.orelse]
        return node

    visit_For = visit_While = _loop


class _RegionTransformer(ast.NodeTransformer):
    """Wraps what may fork and rejoin; with `magic`, attributes and operators are calls."""

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
        return _call_helper("region", _as_lambda(node), ast.Constant(calls))

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        return self._region(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        return self._region(node)

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        if len(node.ops) > 1:
            return self._region(node)
        self.generic_visit(node)
        how = node.ops[0]
        for kinds, name in (
            ((ast.In, ast.NotIn), "contained"),
            ((ast.Eq, ast.NotEq), "equal"),
            ((ast.Is, ast.IsNot), "same"),
        ):
            if isinstance(how, kinds):
                negated = ast.Constant(isinstance(how, kinds[1]))
                return _call_helper(name, node.left, node.comparators[0], negated)
        return node

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        self.generic_visit(node)
        return _call_helper("negated", node.operand) if isinstance(node.op, ast.Not) else node

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        self.generic_visit(node)
        if isinstance(node.ctx, ast.Load) and not _contains(node.slice, ast.Slice):
            inner = node.value
            if isinstance(inner, ast.Call) and getattr(inner.func, "id", "") in _LOOKUPS:
                return _call_helper("items", *inner.args, node.slice)
            return _call_helper("item", inner, node.slice)
        return node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        function, args = node.func, node.args
        if isinstance(function, ast.Name) and args:
            if function.id in ("any", "all") and isinstance(args[0], ast.GeneratorExp):
                node.func = ast.Name(PREFIX + function.id, ast.Load())
                return self._region(node)
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
        number = ast.Constant(self._count)
        node.test = _call_helper("going_on", node.test, number)
        made = self._statement(node)
        return made

    def visit_If(self, node: ast.If) -> Any:
        return self._statement(node)

    def visit_For(self, node: ast.For) -> Any:
        if _contains(node, (ast.Break, ast.Continue, ast.Return)):
            return self._statement(node)
        self.generic_visit(node)
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        self.generic_visit(node)
        if node.value is None or not isinstance(node.target, ast.Name) or not self._inside:
            return node
        return ast.Assign([node.target], node.value)

    def _statement(self, node: Any) -> Any:
        """Make a statement a function of the variables that it assigns to."""
        kept = not self._inside or _contains(node, _UNMERGEABLE)
        stored = _assigned_names(node)
        self.generic_visit(node)
        if kept:
            return node
        self._count += 1
        name, taken = f"{PREFIX}r{self._count}", f"{PREFIX}t{self._count}"
        exits = _ExitTransformer(stored)
        node = exits.visit(node)
        given = [ast.arg(each) for each in stored]
        inner = ast.FunctionDef(
            name,
            ast.arguments([], given, None, [], [], None, []),
            [*_delete_unbound(stored), node, _tagged_return("next", _read_variables(stored))],
            [],
        )
        called = _call_helper("statement", ast.Name(name, ast.Load()), _read_variables(stored))
        out: list[ast.stmt] = [inner, ast.Assign([ast.Name(taken, ast.Store())], called)]

        def part(place: int) -> ast.expr:
            return ast.Subscript(ast.Name(taken, ast.Load()), ast.Constant(place), ast.Load())

        def where(how: str, then: ast.stmt) -> ast.stmt:
            return ast.If(ast.Compare(part(0), [ast.Eq()], [ast.Constant(how)]), [then], [])

        if "return" in exits.found:
            out.append(where("return", ast.Return(part(1))))
        if stored:
            targets: list[ast.expr] = [ast.Name(each, ast.Store()) for each in stored]
            out.append(ast.Assign([ast.Tuple(targets, ast.Store())], part(1)))
            out += _delete_unbound(stored)
        if "break" in exits.found:
            out.append(where("break", ast.Break()))
        if "continue" in exits.found:
            out.append(where("continue", ast.Continue()))
        return out

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        if _contains(node, (ast.Yield, ast.YieldFrom)):
            return node
        self._inside += 1
        self.generic_visit(node)
        self._inside -= 1
        node.returns = None
        for each in node.args.args + node.args.kwonlyargs:
            each.annotation = None
        if not node.name.startswith("__"):
            node.decorator_list.append(ast.Name(PREFIX + "function", ast.Load()))
        return node

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        self._inside += 1
        self.generic_visit(node)
        self._inside -= 1
        return node


def _assigned_names(node: ast.AST) -> list[str]:
    """Return the variables that a statement assigns to; comprehensions have their own."""
    comprehensions = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
    hidden = {
        each
        for comprehension in ast.walk(node)
        if isinstance(comprehension, comprehensions)
        for generator in comprehension.generators
        for each in ast.walk(generator.target)
    }
    names = (each for each in ast.walk(node) if isinstance(each, ast.Name) and each not in hidden)
    return sorted({each.id for each in names if isinstance(each.ctx, ast.Store)})


def _delete_unbound(names: list[str]) -> list[ast.stmt]:
    """Return statements that delete variables that have no value after all."""
    return [
        ast.If(
            _call_helper("unbound", ast.Name(name, ast.Load())),
            [ast.Delete([ast.Name(name, ast.Del())])],
            [],
        )
        for name in names
    ]
