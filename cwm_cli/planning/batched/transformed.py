"""A program's class, transformed: `set_state` and `step` take values for many lanes."""

import ast
from typing import Any

from cwm_cli.planning.batched import lanes
from cwm_cli.planning.batched.analysis import ENTRIES, read
from cwm_cli.planning.batched.calls import Width
from cwm_cli.planning.batched.constants import changeable, fixed
from cwm_cli.planning.batched.frame import PREFIX
from cwm_cli.planning.batched.translation import translate

FILE = "<batched>"
"""The file name of transformed programs in tracebacks; their lines are those of the program."""


class Transformed:
    """The transformed form of a program whose `environment` has been made.

    `source` is what it was transformed to, for the reader. `changes` says that
    steps may change arrays in place.
    """

    def __init__(self, program: str, environment: Any) -> None:
        known = read(program, environment)
        module, shared = translate(known, ENTRIES)
        self.source = ast.unparse(module)
        self.changes = known.changes
        self._stored = known.stored
        self._width = Width()
        inherited = {name: fixed(known.attributes[name]) for name in known.inherited}
        self._attributes = {
            name: fixed(value) for name, value in known.attributes.items() if name in known.own
        }
        names = shared.names | {
            f"{PREFIX}lanes": lanes,
            f"{PREFIX}width": self._width,
        }
        exec(compile(module, FILE, "exec"), names)  # noqa: S102  # the program, in other words
        methods = {name: names[f"{PREFIX}method_{name}"] for name in ENTRIES}
        self._type = type(known.name, (), inherited | methods)
        names[f"{PREFIX}class"] = self._type

    def make(self, count: int) -> Any:
        """Return an object for so many lanes, as it is when the program has just been made."""
        self.resize(count)
        made = self._type()
        made.__dict__.update(self._attributes)
        for name in self._stored & set(self._attributes):
            made.__dict__[name] = changeable(self._attributes[name], count)
        return made

    def resize(self, count: int) -> None:
        """Have new arrays made for so many lanes from now on."""
        self._width.lanes = count


def location(error: BaseException) -> str:
    """Return where in a transformed program an error was raised."""
    line, entry = 0, error.__traceback__
    while entry is not None:
        if entry.tb_frame.f_code.co_filename == FILE:
            line = entry.tb_lineno
        entry = entry.tb_next
    return f"line {line}: " if line else ""
