"""Facts about a program that its source text shows, without running it.

The trusted side has to know the contract of a program before the program runs, and must not rely on
its answers. The process of the program checks that the text and the class agree.
"""

import ast
import re
from collections.abc import Collection, Iterator
from functools import lru_cache
from typing import NamedTuple


class Abilities(NamedTuple):
    """The optional features of the class `Environment` of a program; a plain program has none.

    Attributes:
        tells: It has `outcomes(action)`, which returns all possible outcomes with probabilities.
        draws: It draws random numbers from `self.rng`.
        remembers: It has `correct(observation, reward)`, so it is asked along whole episodes.
    """

    tells: bool = False
    draws: bool = False
    remembers: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether each row is asked separately and has one certain answer."""
        return not any(self)

    @property
    def contract(self) -> str:
        """The contract of the program: plain, chance or memory."""
        if self.remembers:
            return "memory"
        return "plain" if self.is_plain else "chance"


@lru_cache(maxsize=256)
def abilities_of(program: str) -> Abilities:
    """Return the abilities of a program; a program with a syntax error counts as plain."""
    # Skip parsing if no word occurs that every program with an ability contains.
    if not any(word in program for word in ("outcomes", "correct", "rng")):
        return Abilities()
    if (tree := _parse(program)) is None:
        return Abilities()
    methods = set(_members(tree, "Environment", frozenset()))
    draws = any(isinstance(node, ast.Attribute) and node.attr == "rng" for node in ast.walk(tree))
    return Abilities("outcomes" in methods, draws, "correct" in methods)


def _parse(program: str) -> ast.Module | None:
    try:
        return ast.parse(program.removeprefix("\ufeff"))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _members(tree: ast.Module, name: str, seen: frozenset[str]) -> Iterator[str]:
    """Yield the members that a class defines or inherits from other classes of the module."""
    if name in seen:
        return
    for node in tree.body:
        match node:
            case ast.ClassDef(name=found) if found == name:
                for part in node.body:
                    if isinstance(part, ast.FunctionDef):
                        yield part.name
                    elif isinstance(part, ast.Assign):
                        yield from (t.id for t in part.targets if isinstance(t, ast.Name))
                bases = [base.id for base in node.bases if isinstance(base, ast.Name)]
            case ast.Assign(targets=[ast.Name(id=found)], value=ast.Name(id=other)) if (
                found == name
            ):
                bases = [other]
            case _:
                continue
        for base in bases:
            yield from _members(tree, base, seen | {name})


def find_unrepeatable_line(program: str) -> int:
    """Return the first line that may make answers differ between processes, or 0.

    The line calls a function that reads the clock, the operating system or random numbers without
    our seed. If there is none, it assigns an empty container in the module or a class, which the
    program may use as memory.
    """
    unseeded = re.compile(
        "default_rng|RandomState|Random|SystemRandom|urandom|getrandom|token_bytes|token_hex|"
        "randbelow|uuid1|uuid4|(time|perf_counter|monotonic|process_time)(_ns)?|now|today|getpid"
    )
    if (tree := _parse(program)) is None:
        return 0
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    call_lines = [node.lineno for node in calls if unseeded.fullmatch(_called_name(node))]
    classes = [node.body for node in tree.body if isinstance(node, ast.ClassDef)]
    container_lines = [
        node.lineno
        for body in (tree.body, *classes)
        for node in body
        if isinstance(node, ast.Assign | ast.AnnAssign) and _is_empty_container(node.value)
    ]
    return min(call_lines or container_lines, default=0)


def _called_name(call: ast.Call) -> str:
    """Return the last part of the name of a called function."""
    match call.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def _is_empty_container(value: ast.expr | None) -> bool:
    containers = {"dict", "list", "set", "defaultdict", "deque", "Counter", "OrderedDict"}
    match value:
        case ast.Dict(keys=[]) | ast.List(elts=[]):
            return True
        case ast.Call(args=[]) | ast.Call(func=ast.Name(id="defaultdict")):
            return _called_name(value) in containers
    return False


class MisreadChoice(NamedTuple):
    """A use of a list of alternatives as if it were one alternative."""

    line: int
    expression: str


def find_misread_choice(program: str) -> MisreadChoice | None:
    """Return the first use of an entry of `CHOICES` that is not followed by `[0]`.

    `CHOICES = {"integrator": ["euler", "rk4"]}` declares alternatives; the first item is active. A
    comparison of the list itself with "euler" is False without an error. Entries that are not
    lists, and programs without such a dictionary, are not checked.
    """
    if "CHOICES" not in program or (tree := _parse(program)) is None:
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
    """Return whether an expression is `CHOICES`, as a name or an attribute."""
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


# Modules, functions and attributes that do more than compute, and harmless attributes.
MODULES = """
_thread asyncio builtins codeop concurrent ctypes fcntl gc glob gzip http importlib inspect
linecache mmap multiprocessing os pathlib pickle platform posix pty resource runpy select shelve
shutil signal site socket sqlite3 ssl subprocess tempfile urllib webbrowser zipfile
"""
FUNCTIONS = "open eval exec compile __import__ breakpoint globals vars"
ATTRIBUTES = """
modules meta_path load save savez savez_compressed loadtxt savetxt genfromtxt fromfile tofile memmap
ctypeslib f2py
"""
HARMLESS = "__init__ __name__ __class__ __post_init__ __doc__ __stdin__ __stdout__"

_MODULES, _FUNCTIONS = frozenset(MODULES.split()), frozenset(FUNCTIONS.split())
_ATTRIBUTES, _HARMLESS = frozenset(ATTRIBUTES.split()), frozenset(HARMLESS.split())


class ForbiddenName(SyntaxError):
    """A program uses a name that is forbidden on this machine."""


def check_source(program: str, file: str) -> None:
    """Refuse a program that does more than compute.

    This check is used if the kernel cannot confine a program (macOS, old kernels). It prevents
    accidents, such as a program that reads files because a language model considers that helpful.
    It is not a security boundary: a hostile program can circumvent it.

    Args:
        program: Source text of the program.
        file: File name for the error.

    Raises:
        ForbiddenName: The program uses a name that is not allowed.
        SyntaxError: The text is not Python.
    """
    for node in ast.walk(ast.parse(program, file)):
        for name in _forbidden_names(node):
            line = getattr(node, "lineno", 1)
            raise ForbiddenName(
                f"{name!r} is not allowed: on this machine the only protection is a check of the "
                "program's text, so programs may only compute",
                (file, line, None, None),
            )


def _forbidden_names(node: ast.AST) -> Iterator[str]:
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
