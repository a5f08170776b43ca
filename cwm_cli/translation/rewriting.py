"""Rewriting of a program, so that regions that may fork and merge become functions.

Comparisons, conditional expressions, branches, loops and functions become regions. Arithmetic
stays unchanged. Names that begin with `_w_` are functions of `regions`.
"""

import ast
from collections.abc import Iterable
from typing import Any

from cwm_cli.translation.expressions import Unsupported

PREFIX = "_w_"

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


def _call_helper(name: str, *args: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(PREFIX + name, ast.Load()), list(args), [])


def _as_lambda(body: ast.expr) -> ast.Lambda:
    return ast.Lambda(ast.arguments([], [], None, [], [], None, []), body)


def _read_variables(names: Iterable[str]) -> ast.Tuple:
    """Return a tuple of the values of variables, each `UNBOUND` if it has none."""
    return ast.Tuple(
        [_call_helper("read_variable", _as_lambda(ast.Name(name, ast.Load()))) for name in names],
        ast.Load(),
    )


def _tagged_return(tag: str, result: ast.expr) -> ast.Return:
    return ast.Return(ast.Tuple([ast.Constant(tag), result], ast.Load()))


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

    def _tag_exit(self, node: ast.stmt, tag: str) -> ast.AST:
        if self._loops:  # the exit of an inner loop
            return node
        self.found.add(tag)
        return _tagged_return(tag, _read_variables(self._stored))

    def _loop(self, node: Any) -> Any:
        self._loops += 1
        node.body = [self.visit(statement) for statement in node.body]
        self._loops -= 1
        node.orelse = [self.visit(statement) for statement in node.orelse]
        return node

    visit_For = visit_While = _loop


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
        return _call_helper("run_region", _as_lambda(node), ast.Constant(calls))

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        return self._region(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        return self._region(node)

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
        """Turn a statement into a function of the variables that it assigns to, and call it."""
        kept = not self._inside or _contains(node, _UNMERGEABLE)
        stored = _assigned_names(node)
        self.generic_visit(node)
        if kept:
            return node
        self._count += 1
        name, result = f"{PREFIX}r{self._count}", f"{PREFIX}t{self._count}"
        exits = _ExitTransformer(stored)
        node = exits.visit(node)
        given = [ast.arg(variable) for variable in stored]
        inner = ast.FunctionDef(
            name,
            ast.arguments([], given, None, [], [], None, []),
            [*_delete_unbound(stored), node, _tagged_return("next", _read_variables(stored))],
            [],
        )
        called = _call_helper("run_statement", ast.Name(name, ast.Load()), _read_variables(stored))
        out: list[ast.stmt] = [inner, ast.Assign([ast.Name(result, ast.Store())], called)]

        def part(place: int) -> ast.expr:
            return ast.Subscript(ast.Name(result, ast.Load()), ast.Constant(place), ast.Load())

        def on_exit(tag: str, then: ast.stmt) -> ast.stmt:
            return ast.If(ast.Compare(part(0), [ast.Eq()], [ast.Constant(tag)]), [then], [])

        # The call returns (tag, value of `return` or values of the variables).
        if "return" in exits.found:
            out.append(on_exit("return", ast.Return(part(1))))
        if stored:
            targets: list[ast.expr] = [ast.Name(variable, ast.Store()) for variable in stored]
            out.append(ast.Assign([ast.Tuple(targets, ast.Store())], part(1)))
            out += _delete_unbound(stored)
        if "break" in exits.found:
            out.append(on_exit("break", ast.Break()))
        if "continue" in exits.found:
            out.append(on_exit("continue", ast.Continue()))
        return out

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        if _contains(node, (ast.Yield, ast.YieldFrom)):
            return node
        self._inside += 1
        self.generic_visit(node)
        self._inside -= 1
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


def _delete_unbound(names: list[str]) -> list[ast.stmt]:
    """Return statements that delete the variables whose value is `UNBOUND`."""
    return [
        ast.If(
            _call_helper("is_unbound", ast.Name(name, ast.Load())),
            [ast.Delete([ast.Name(name, ast.Del())])],
            [],
        )
        for name in names
    ]
