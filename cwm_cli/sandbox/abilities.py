"""What a program can be asked beyond one row at a time, read off its text.

The trusted side has to know before anything of the program runs, and never asks the program. What
the text says of itself is checked where the program lives.
"""

import ast
from collections.abc import Collection, Iterator
from functools import lru_cache
from typing import NamedTuple

MARKS = ("outcomes", "correct", "rng")
"""Words of which a program that is more than plain holds one: the others are not parsed."""


ELSEWHERE = frozenset(
    [
        "default_rng",
        "RandomState",
        "Random",
        "SystemRandom",
        "urandom",
        "getrandom",
        "token_bytes",
        "token_hex",
        "randbelow",
        "uuid1",
        "uuid4",
        "time",
        "time_ns",
        "perf_counter",
        "perf_counter_ns",
        "monotonic",
        "monotonic_ns",
        "process_time",
        "process_time_ns",
        "now",
        "today",
        "getpid",
    ]
)
"""Calls for what no seed of ours decides."""

CONTAINERS = frozenset({"dict", "list", "set", "defaultdict", "deque", "Counter", "OrderedDict"})


class Abilities(NamedTuple):
    """What the class `Environment` of a program defines beside `set_state` and `step`.

    One that `tells` has `outcomes(action)`: all that can follow, with probabilities. One that
    `draws` takes what chance decides from `self.rng`. One that `remembers` has
    `correct(observation, reward)`, and is asked along whole episodes. None of them is a plain
    program.
    """

    tells: bool = False
    draws: bool = False
    remembers: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether it answers one row after the other, each with one certain answer."""
        return not any(self)

    @property
    def is_certain(self) -> bool:
        """Whether it gives one answer to each row."""
        return not (self.tells or self.draws)

    @property
    def contract(self) -> str:
        """The contract that it keeps: plain, chance or memory."""
        if self.remembers:
            return "memory"
        return "plain" if self.is_plain else "chance"


@lru_cache(maxsize=256)
def abilities_of(program: str) -> Abilities:
    """Read what a program can be asked; one that cannot be parsed is a plain one, and will fail."""
    if not any(mark in program for mark in MARKS):
        return Abilities()
    try:
        tree = ast.parse(program.removeprefix("\ufeff"))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return Abilities()
    methods = set(_members(tree, "Environment", frozenset()))
    draws = any(isinstance(node, ast.Attribute) and node.attr == "rng" for node in ast.walk(tree))
    return Abilities("outcomes" in methods, draws, "correct" in methods)


def _members(tree: ast.Module, name: str, seen: frozenset[str]) -> Iterator[str]:
    """Yield the names that a class of the module defines, or inherits from others of it."""
    if name in seen:
        return
    for node in tree.body:
        match node:
            case ast.ClassDef(name=found) if found == name:
                for part in node.body:
                    if isinstance(part, ast.FunctionDef):
                        yield part.name
                    elif isinstance(part, ast.Assign):
                        yield from (each.id for each in part.targets if isinstance(each, ast.Name))
                bases = [base.id for base in node.bases if isinstance(base, ast.Name)]
            case ast.Assign(targets=[ast.Name(id=found)], value=ast.Name(id=other)) if (
                found == name
            ):
                bases = [other]
            case _:
                continue
        for base in bases:
            yield from _members(tree, base, seen | {name})


def unrepeatable(program: str) -> int:
    """Return the first line by which answers may differ from process to process, or 0.

    That is a call for random numbers from elsewhere, for the clock or the operating system, or else
    something empty in the module or the class, which is there to be filled.
    """
    try:
        tree = ast.parse(program.removeprefix("\ufeff"))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return 0
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    drawing = [node.lineno for node in calls if _called(node) in ELSEWHERE]
    classes = [node.body for node in tree.body if isinstance(node, ast.ClassDef)]
    filled = [
        node.lineno
        for body in (tree.body, *classes)
        for node in body
        if isinstance(node, ast.Assign | ast.AnnAssign) and _is_empty(node.value)
    ]
    return min(drawing or filled, default=0)


def _called(call: ast.Call) -> str:
    """Return the last word of what is called."""
    match call.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def _is_empty(value: ast.expr | None) -> bool:
    """Return whether a value is a list, dict or set, or the like, with nothing in it."""
    match value:
        case ast.Dict(keys=[]) | ast.List(elts=[]):
            return True
        case ast.Call(args=[]) | ast.Call(func=ast.Name(id="defaultdict")):
            return _called(value) in CONTAINERS
    return False


class MisreadChoice(NamedTuple):
    """A use of a `CHOICES` list as if it were the alternative in force."""

    line: int
    expression: str


def misread_choice(program: str) -> MisreadChoice | None:
    """Return the first use of an entry of `CHOICES` that is not followed by `[0]`.

    `CHOICES = {"integrator": ["euler", "rk4"]}` declares alternatives whose first item is in force.
    A comparison of the list itself with "euler" is False without an error. Entries that are no
    lists, and programs that declare no such dictionary, are not checked.
    """
    if "CHOICES" not in program:
        return None
    try:
        tree = ast.parse(program.removeprefix("\ufeff"))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    listed = set(_listed_choices(tree))
    if not listed:
        return None
    indexed = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Subscript)
        and isinstance(node.slice, ast.Constant)
        and node.slice.value == 0
    }
    misread = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.expr)
        and id(node) not in indexed
        and not isinstance(getattr(node, "ctx", None), ast.Store | ast.Del)
        and _reads_choice(node, listed)
    ]
    if not misread:
        return None
    first = min(misread, key=lambda node: (node.lineno, node.col_offset))
    text = ast.get_source_segment(program.removeprefix("\ufeff"), first) or ast.unparse(first)
    return MisreadChoice(first.lineno, text)


def _listed_choices(tree: ast.Module) -> Iterator[object]:
    """Yield the keys of `CHOICES` whose values are lists."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Dict):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(_is_choices(target) for target in targets):
                for key, value in zip(node.value.keys, node.value.values, strict=True):
                    if isinstance(key, ast.Constant) and isinstance(value, ast.List | ast.Tuple):
                        yield key.value


def _is_choices(node: ast.expr) -> bool:
    """Return whether an expression is `CHOICES`, of the module, the class or an object."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name == "CHOICES"
    return False


def _reads_choice(node: ast.expr, listed: Collection[object]) -> bool:
    """Return whether an expression is `CHOICES[key]` or `CHOICES.get(key)` for a listed key."""
    match node:
        case ast.Subscript(value=value, slice=key):
            pass
        case ast.Call(func=ast.Attribute(value=value, attr="get"), args=[key, *_]):
            pass
        case _:
            return False
    return _is_choices(value) and (not isinstance(key, ast.Constant) or key.value in listed)


MODULES = """
_thread asyncio builtins codeop concurrent ctypes fcntl gc glob gzip http importlib inspect
linecache mmap multiprocessing os pathlib pickle platform posix pty resource runpy select shelve
shutil signal site socket sqlite3 ssl subprocess tempfile urllib webbrowser zipfile
"""
"""Those that reach beyond computing, as do the functions and attributes that follow."""

FUNCTIONS = "open eval exec compile __import__ breakpoint globals vars"
ATTRIBUTES = """
modules meta_path load save savez savez_compressed loadtxt savetxt genfromtxt fromfile tofile memmap
ctypeslib f2py
"""
HARMLESS = "__init__ __name__ __class__ __post_init__ __doc__ __stdin__ __stdout__"

_MODULES, _FUNCTIONS = frozenset(MODULES.split()), frozenset(FUNCTIONS.split())
_ATTRIBUTES, _HARMLESS = frozenset(ATTRIBUTES.split()), frozenset(HARMLESS.split())


class ForbiddenName(SyntaxError):
    """A program uses a name that is forbidden on this machine, at a line."""


def check_source(program: str, file: str) -> None:
    """Refuse a program that does more than compute.

    This is done if the kernel cannot confine a program (macOS, old kernels). It stops accidents,
    such as a program that reads files because a language model thinks that it helps. It is no
    boundary: a hostile program can get around it.

    Raises:
        ForbiddenName: The program uses a name that is not allowed.
        SyntaxError: The text is not Python.
    """
    for node in ast.walk(ast.parse(program, file)):
        for name in _names(node):
            line = getattr(node, "lineno", 1)
            raise ForbiddenName(
                f"{name!r} is not allowed: on this machine the only protection is a check of the "
                "program's text, so programs may only compute",
                (file, line, None, None),
            )


def _names(node: ast.AST) -> Iterator[str]:
    """Yield the forbidden names that a part of a program uses."""
    if isinstance(node, ast.Import):
        yield from (a.name for a in node.names if a.name.partition(".")[0] in _MODULES)
    elif isinstance(node, ast.ImportFrom):
        module = node.module or ""
        yield from (module,) if module.partition(".")[0] in _MODULES else ()
    elif isinstance(node, ast.Name):
        yield from (node.id,) if node.id in _FUNCTIONS else ()
    elif isinstance(node, ast.Attribute):
        hidden = node.attr.startswith("__") and node.attr not in _HARMLESS
        yield from (node.attr,) if hidden or node.attr in _MODULES | _ATTRIBUTES else ()
