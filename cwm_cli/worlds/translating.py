"""Translation of the program of an export into plain numbers, NumPy or JAX.

The text is written and verified in a confined process. Outside, it is accepted only if it consists
of arithmetic, so that it can be run for further checks.
"""

import ast
import json
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_cli.sandbox.client import Sandbox
from cwm_cli.sandbox.failures import printable
from cwm_cli.sandbox.job import abilities_of
from cwm_cli.translation.expressions import FUNCTIONS, MATH_NAMES
from cwm_cli.translation.models import is_enumerable
from cwm_cli.translation.source import SourceForm
from cwm_cli.worlds.confined_translation import TranslationJob
from cwm_cli.worlds.imagining import Imagination
from cwm_cli.worlds.remote import ProgramFailed

MAX_ROWS = 20_000
"""Maximum number of recorded rows that are compared."""

TIME_FACTOR = 6
"""Time limits of the process, as a multiple of the limits for a program alone: it is translated,
and steps through all recorded rows and 10,000 random steps."""

_ALLOWED = (
    *(ast.Module, ast.Import, ast.alias, ast.FunctionDef, ast.arguments, ast.arg, ast.Assign),
    *(ast.Return, ast.If, ast.Raise, ast.Expr, ast.Name, ast.Load, ast.Store, ast.Constant),
    *(ast.Tuple, ast.List, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Call),
    *(ast.Attribute, ast.Subscript, ast.Slice, ast.operator, ast.unaryop, ast.boolop, ast.cmpop),
    ast.keyword,
)


class TranslatedProgram(NamedTuple):
    """The texts of a program by form, or its `outcomes` as JSON data, or the reason for neither."""

    texts: dict[SourceForm, str]
    reason: str = ""
    outcomes: str = ""


class TranslatingProcess(Imagination):
    """A program in a confined process that translates it."""

    job_class = TranslationJob


def translated(
    sandbox: Sandbox, program: str, rows: Dataset, forms: Sequence[SourceForm], *, seed: int = 0
) -> TranslatedProgram:
    """Return a program in other forms, each verified in recorded and random steps."""
    if reason := _refusal(program, rows):
        return TranslatedProgram({}, reason)
    spaces = [space.to_json() for space in (rows.observation_space, rows.action_space)]
    kept, no_rows = rows[np.arange(min(len(rows), MAX_ROWS))], rows[np.arange(0)]
    try:
        with TranslatingProcess(sandbox, program, no_rows, seed=seed, form="scalar") as process:
            process.limits = sandbox.limits.scaled(TIME_FACTOR)
            if abilities_of(program).tells:
                found = process.ask("translating:tabulate", spaces=spaces)
            else:
                found = process.ask(
                    "translating:translate",
                    {name: kept.columns[name] for name in ("observations", "actions")},
                    program=program,
                    spaces=spaces,
                    forms=list(forms),
                    seed=seed,
                )
    except ProgramFailed as failure:
        return TranslatedProgram({}, str(failure))
    texts = {name: part.tobytes().decode("utf-8", "replace") for name, part in found.items()}
    if "reason" in texts:
        return TranslatedProgram({}, printable(texts["reason"], 300))
    if "outcomes" in texts:
        return TranslatedProgram({}, outcomes=json.dumps(json.loads(texts["outcomes"])))
    if not all(is_arithmetic(texts.get(form, "")) for form in forms):
        return TranslatedProgram({}, "the program tampered with its translation")
    return TranslatedProgram({form: texts[form] for form in forms})


def _refusal(program: str, rows: Dataset) -> str:
    """Return why a program has no other forms, or nothing."""
    kinds = {rows.observation_space.kind, rows.action_space.kind}
    if kinds & {"tuple", "dict", "text"}:
        return "its observations or actions are not arrays of numbers"
    if rows.has_valid_actions:
        return "it returns valid actions"
    abilities = abilities_of(program)
    if abilities.remembers:
        return "it has a memory"
    if abilities.tells:
        is_small = is_enumerable(rows.observation_space, rows.action_space)
        is_number = rows.observation_space.kind == "discrete"
        return "" if is_small and is_number else "its random outcomes are too many for a table"
    return "it draws random numbers" if abilities.draws or "random" in program else ""


def is_arithmetic(text: str) -> bool:
    """Return whether a module only computes numbers, with functions of `math`, NumPy or JAX."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return bool(tree.body) and all(
        isinstance(node, _ALLOWED) and _is_harmless(node) for node in ast.walk(tree)
    )


_IMPORTS = {"math", "struct", "numpy", "jax.numpy"}
_CALLED = {"math", "np", "jnp", "float", "bool", "int", "abs", "round", "OverflowError", "single"}
_ATTRIBUTES = {
    *("T", "shape", "take", "astype", "array", "asarray", "full", "stack", "where", "nan", "inf"),
    *("logical_not", "abs", "sign", "minimum", "maximum", "remainder", "fmod", "power", "isfinite"),
    *("isnan", "floor", "ceil", "trunc", "rint", "arctan2", "atan2", "hypot", "copysign"),
    *("float32", "int64", "pack", "unpack", *FUNCTIONS, *MATH_NAMES.values()),
}


def _is_harmless(node: ast.AST) -> bool:
    """Return whether a node can neither import, nor reach attributes behind underscores."""
    if isinstance(node, ast.alias):
        return node.name in _IMPORTS
    if isinstance(node, ast.Attribute):
        return node.attr in _ATTRIBUTES
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return node.func.id in _CALLED
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Attribute)
    return not (isinstance(node, ast.Name) and node.id.startswith("__"))
