"""Functions of a program, translated: for all lanes, or for those in a mask."""

import ast
from copy import copy

from cwm_cli.planning.batched import calls
from cwm_cli.planning.batched.analysis import Definition, Program, mangled
from cwm_cli.planning.batched.frame import PREFIX, Frame, Globals, assign, call, cannot, load
from cwm_cli.planning.batched.lanes import UNDEFINED
from cwm_cli.planning.batched.proof import Proof
from cwm_cli.planning.batched.properties import never_none, numeric, starts_as_number
from cwm_cli.planning.batched.statements import Statements

_FIRST_MASK = f"{PREFIX}m"


def translate(program: Program, entries: tuple[str, ...]) -> tuple[ast.Module, Globals]:
    """Return a module with some methods, for all lanes, and all that they use."""
    numbers = Proof(program, numeric, starts_as_number)
    known = _set_by_observation(program)
    presence = Proof(program, never_none, lambda name, value: value is not None or name in known)
    shared = Globals(program, numbers, presence)
    for name in entries:
        shared.function(program.methods[name], masked=False)
    module = ast.Module([], [])
    written: set[str] = set()
    while waiting := [name for name in shared.wanted if name not in written]:
        for name in waiting:
            written.add(name)
            module.body.append(_function(shared, name, *shared.wanted[name]))
    return ast.fix_missing_locations(module), shared


def _set_by_observation(program: Program) -> set[str]:
    """Return attributes that `set_state` assigns to in any case."""
    body = program.methods["set_state"].node.body
    targets = (part for node in body if isinstance(node, ast.Assign) for part in node.targets)
    return {
        mangled(part.attr, program.name)
        for target in targets
        for part in ast.walk(target)
        if isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store)
    }


def _function(shared: Globals, name: str, definition: Definition, masked: bool) -> ast.stmt:
    """Translate a function or method."""
    frame = Frame(shared, definition, definition.node, _FIRST_MASK if masked else None)
    return _translated(frame, name)


def inner_function(outer: Statements, node: ast.FunctionDef) -> list[ast.stmt]:
    """Translate a function within a function, in both versions."""
    if node.decorator_list:
        cannot(node, "a decorator")
    frame = outer.frame
    names = [f"{PREFIX}{node.name}_{suffix}" for suffix in ("plain", "masked")]
    written: list[ast.stmt] = []
    for name, mask in zip(names, (None, frame.new("m")), strict=True):
        inner = Frame(frame.shared, frame.definition, node, mask, frame)
        written.append(_translated(inner, name))
    made = call(outer.write.runtime(calls.Function), *map(load, names))
    return [*written, *outer.assignments.store(ast.Name(node.name, ast.Store()), made)]


def _translated(frame: Frame, name: str) -> ast.FunctionDef:
    """Translate the function of a frame."""
    mask = frame.mask
    statements = Statements(frame, inner_function)
    body = statements.block(frame.node.body) + statements.end()
    declared: list[ast.stmt] = []
    undefined = frame.shared.add(UNDEFINED, "undefined")
    own = {*frame.declared, f"{PREFIX}result"} if statements.returns else frame.declared
    arguments = {argument.arg for argument in frame.node.args.args}
    for variable in sorted(own - arguments):
        declared.append(assign(variable, undefined))
    for variable in sorted(frame.declared & frame.doubtful):
        declared.append(assign(f"{PREFIX}set_{variable}", ast.Constant(variable in arguments)))
    written = copy(frame.node)
    written.name, written.args = name, _arguments(frame, mask)
    written.body = [*declared, *body] or [ast.Pass()]
    written.decorator_list, written.returns = [], None
    return written


def _arguments(frame: Frame, mask: str | None) -> ast.arguments:
    """Return the arguments of a function, a mask before them where it has one."""
    source = frame.node.args
    if source.vararg or source.kwarg or source.posonlyargs:
        cannot(frame.node, "a function with *, ** or / among its arguments")
    defaults = [*source.defaults, *(value for value in source.kw_defaults if value)]
    for default in defaults:
        if not isinstance(default, ast.Constant) and not _is_negative(default):
            cannot(default, "a default value that is no number or text")
    names = [ast.arg(argument.arg) for argument in source.args]
    first = [] if mask is None else [ast.arg(mask)]
    keywords = [ast.arg(argument.arg) for argument in source.kwonlyargs]
    return ast.arguments(
        [], [*first, *names], None, keywords, source.kw_defaults, None, source.defaults
    )


def _is_negative(node: ast.expr) -> bool:
    """Whether a default value is a number with a sign."""
    return isinstance(node, ast.UnaryOp) and isinstance(node.operand, ast.Constant)
