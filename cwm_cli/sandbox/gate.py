"""A look at the text of a program where the kernel cannot hold it back (macOS, old kernels).

This stops accidents, such as a program that reads files because a model of the
language thinks that it helps. It is no boundary: whoever wants to get around it can.
"""

import ast
from collections.abc import Iterator

MODULES = """
_thread asyncio builtins codeop concurrent ctypes fcntl gc glob gzip http importlib inspect
linecache mmap multiprocessing os pathlib pickle platform posix pty resource runpy select shelve
shutil signal site socket sqlite3 ssl subprocess tempfile urllib webbrowser zipfile
"""
"""Those that reach beyond computing."""

FUNCTIONS = "open eval exec compile __import__ breakpoint globals vars"
ATTRIBUTES = """
modules meta_path load save savez savez_compressed loadtxt savetxt genfromtxt fromfile tofile memmap
ctypeslib f2py
"""
HARMLESS = "__init__ __name__ __class__ __post_init__ __doc__ __stdin__ __stdout__"

_MODULES, _FUNCTIONS = frozenset(MODULES.split()), frozenset(FUNCTIONS.split())
_ATTRIBUTES, _HARMLESS = frozenset(ATTRIBUTES.split()), frozenset(HARMLESS.split())


class Refused(SyntaxError):
    """A program uses what it may not use on this machine, at a line."""


def check(program: str, file: str) -> None:
    """Refuse a program that reaches beyond computing; SyntaxError if it is none."""
    for node in ast.walk(ast.parse(program, file)):
        for name in _names(node):
            line = getattr(node, "lineno", 1)
            raise Refused(
                f"{name!r} may not be used: on this machine programs are held back by their text "
                "alone, so they may do nothing but compute",
                (file, line, None, None),
            )


def _names(node: ast.AST) -> Iterator[str]:
    """Yield what a part of a program uses that it may not."""
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
