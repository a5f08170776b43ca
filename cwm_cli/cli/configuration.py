"""`cwm.toml`: defaults of options.

The file is read from the working folder, or from `--config` or `$CWM_CONFIG`. Keys are the long
names of options. A table of a command's name sets options of that command; keys above all tables
set options of every command that has them::

    model = "openai/gpt-5"

    [synthesize]
    budget = 20
    option = {exploration = 0.2}

    [runs.list]
    json = true

The command line has priority over the file, and the file over `$CWM_MODEL`. Only the command line
reads the file, so that a run does not depend on it.
"""

from __future__ import annotations

import inspect
import json
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from cwm_cli.cli.declarations import option_info, value_type
from cwm_cli.errors import CwmError, UnknownNameError
from cwm_cli.text import clean

if TYPE_CHECKING:
    import typer

FILE = Path("cwm.toml")
"""The default file."""

VARIABLE = "CWM_CONFIG"
"""The environment variable that names a file."""

NEVER = {"allow-gap": "name it on the command line or in $CWM_ALLOW_GAP"}
"""Options that a file cannot set, with the remedy: each user must accept a danger in person."""

NAMED_ONLY = ("api-base", "tool")
"""Options that are only read from a file that the user names.

A downloaded folder must not send the user's keys to a foreign server, or give modules to programs.
"""

OTHER_MEANING = {("learn", "strategy"), ("train", "model"), ("data", "import", "option")}
"""Options with a meaning of their own: only the table of their command sets them."""

MAX_BYTES = 1 << 20
"""A larger file is refused: it is not a file of defaults."""

MAX_SHOWN = 80
"""Maximum number of characters of a wrong value in a message."""

WANTED = {
    str: "text in quotes",
    Path: "text in quotes",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
}
"""The expected value in words, by the type of the option."""


class Flag(NamedTuple):
    """An option of a command: its parameter, the type of its values and their bounds."""

    parameter: str
    type: type
    repeats: bool
    pairs: bool
    least: float | None
    most: float | None


@dataclass(frozen=True)
class Configuration:
    """The content of a file, and the defaults that it sets; `file` is None if there is none."""

    file: Path | None = None
    given: Mapping[str, Any] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """By command and parameter, as Click takes a default map."""

    def as_json(self) -> dict[str, Any]:
        """Return the part of `cwm doctor --json`."""
        return {"file": str(self.file) if self.file else None, "given": dict(self.given)}

    def rows(self) -> dict[str, str]:
        """Return the file and each of its values, by name."""
        if self.file is None:
            return {"file": f"none ({FILE} in the working folder, --config or ${VARIABLE})"}
        named = {".".join(path): json.dumps(value) for path, value in _leaves(self.given)}
        return {"file": str(self.file), **named}


def read_configuration(app: typer.Typer, named: Path | None = None) -> Configuration:
    """Read and check the file that is named, or the file of the working folder."""
    file = named or FILE
    if named is None and not file.is_file():
        return Configuration()
    given = _read(file)
    return Configuration(file, given, _Reader(file, named is not None, flags_of(app)).read(given))


def _read(file: Path) -> dict[str, Any]:
    """Return the content of a TOML file."""
    try:
        with file.open("rb") as stream:
            found = stream.read(MAX_BYTES + 1)
        if len(found) > MAX_BYTES:
            raise CwmError(f"{file} is too large for defaults of options: name another file")
        return tomllib.loads(found.decode())
    except FileNotFoundError:
        raise CwmError(f"there is no file {file}: name another with --config") from None
    except IsADirectoryError:
        raise CwmError(f"{file} is a folder: name the file in it, --config FILE") from None
    except UnicodeDecodeError:
        raise CwmError(f"{file} is no text in UTF-8: write it in TOML") from None
    except (ValueError, RecursionError) as error:  # a ValueError also for 5,000 digits
        reason = clean(str(error), limit=MAX_SHOWN)
        words = reason[:1].lower() + reason[1:]
        raise CwmError(f"{file} is not TOML ({words}): correct it") from None


Commands = Mapping[tuple[str, ...], Mapping[str, Flag]]
"""The options of each command by their long names, by the words that call it."""


def flags_of(app: typer.Typer, above: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    """Return the options of every command of an application."""
    found: dict[tuple[str, ...], Any] = {}
    for command in app.registered_commands:
        if command.callback is not None:
            name = command.name or command.callback.__name__.replace("_", "-")
            found[(*above, name)] = dict(_flags(command.callback))
    for group in app.registered_groups:
        if group.typer_instance is not None and group.name:
            found |= flags_of(group.typer_instance, (*above, group.name))
    return found


def _flags(callback: Callable[..., Any]) -> Iterator[tuple[str, Flag]]:
    """Yield the options of a command by their long names."""
    for parameter in inspect.signature(callback, eval_str=True).parameters.values():
        info = option_info(parameter)
        names = (info.default, *(info.param_decls or ())) if info else ()
        long = next((n for n in names if isinstance(n, str) and n.startswith("--")), "")
        if info and long:
            kind, repeats = value_type(parameter)
            pairs = repeats and "=" in (info.metavar or "")
            flag = Flag(parameter.name, kind, repeats, pairs, info.min, info.max)
            yield long.partition("/")[0].removeprefix("--"), flag


class _Reader(NamedTuple):
    """Converts the content of a file to defaults of parameters; refuses unknown keys."""

    file: Path
    is_named: bool
    commands: Commands

    def read(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the defaults by command and parameter."""
        defaults: dict[str, Any] = {}
        for name, value in given.items():
            if isinstance(value, dict):
                continue
            key = name.replace("_", "-")
            having = [path for path, flags in self.commands.items() if key in flags]
            if not having:
                every = {known for flags in self.commands.values() for known in flags}
                raise self._unknown("key", name, every)
            for path in having:  # an option at the top is for every command that has it
                if (*path, key) not in OTHER_MEANING:
                    self._set(defaults, path, name, value)
        tables = {name: value for name, value in given.items() if isinstance(value, dict)}
        for path, table in self._tables(tables):
            for key, value in table.items():
                if key.replace("_", "-") not in self.commands[path]:
                    raise self._unknown("key", key, self.commands[path], place=path)
                self._set(defaults, path, key, value)
        return defaults

    def _tables(
        self, tables: Mapping[str, Any], above: tuple[str, ...] = ()
    ) -> Iterator[tuple[tuple[str, ...], Mapping[str, Any]]]:
        """Yield the table of each command, also from the tables of groups."""
        for name, table in tables.items():
            path = (*above, name)
            calls = [each for each in self.commands if each[: len(path)] == path]
            if not calls or not isinstance(table, dict):
                depth = len(above)
                known = {".".join(c[: depth + 1]) for c in self.commands if c[:depth] == above}
                raise self._unknown("table", ".".join(path), known)
            if path in calls:
                yield path, table
            else:
                yield from self._tables(table, path)

    def _set(self, defaults: dict[str, Any], path: tuple[str, ...], name: str, value: Any) -> None:
        """Set an option of one command."""
        key = name.replace("_", "-")
        if key in NEVER:
            raise CwmError(f"{self.file}: {name} cannot be set in a file: {NEVER[key]}")
        if key in NAMED_ONLY and not self.is_named:
            words = f"--config {self.file} or {VARIABLE}={self.file}"
            raise CwmError(f"{self.file}: {name} is only read from a file that you name: {words}")
        flag = self.commands[path][key]
        place = reduce(lambda table, word: table.setdefault(word, {}), path, defaults)
        if flag.pairs and isinstance(value, dict):
            pairs = ((".".join(names), each) for names, each in _leaves(value))
            place[flag.parameter] = [f"{n}={_written(key, each)}" for n, each in pairs]
        elif flag.repeats:
            some = value if isinstance(value, list) else [value]
            place[flag.parameter] = [self._checked(flag, each, name) for each in some]
        else:
            place[flag.parameter] = self._checked(flag, value, name)

    def _checked(self, flag: Flag, value: Any, name: str) -> Any:
        """Return a value, or refuse it if its type is wrong or it is out of bounds."""
        wanted = {Path: (str,), float: (int, float)}.get(flag.type, (flag.type,))
        if not isinstance(value, wanted) or isinstance(value, bool) != (flag.type is bool):
            try:
                shown = clean(json.dumps(value, default=str), limit=MAX_SHOWN)
            except ValueError:  # a number of more than 4,300 digits
                shown = "a number with thousands of digits"
            words = f"{WANTED.get(flag.type, 'another type')}, not {shown}"
            raise CwmError(f"{self.file}: {name} takes {words}: correct it")
        number: Any = value
        if flag.least is not None and number < flag.least:
            raise CwmError(f"{self.file}: {name} has to be at least {flag.least:g}: correct it")
        if flag.most is not None and number > flag.most:
            raise CwmError(f"{self.file}: {name} has to be at most {flag.most:g}: correct it")
        return value

    def _unknown(
        self, kind: str, name: str, known: Iterable[str], *, place: tuple[str, ...] = ()
    ) -> CwmError:
        """Return the error for an unknown key or table, with the nearest known one."""
        words = [each.replace("-", "_") if "_" in name else each for each in known]
        otherwise = f"`cwm {' '.join(place) or 'COMMAND'} --help` lists the options"
        message = str(UnknownNameError(kind, name, words, otherwise if kind == "key" else ""))
        where = f" in [{'.'.join(place)}]" if place else ""
        return CwmError(f"{self.file}: {message.replace(f'{name!r}:', f'{name!r}{where}:', 1)}")


def _leaves(
    table: Mapping[str, Any], above: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield each value of nested tables with its path of names."""
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _leaves(value, (*above, name))
        else:
            yield (*above, name), value


def _written(key: str, value: Any) -> str:
    """Return the text of a value after KEY=; text for `-o` has no quotes."""
    if isinstance(value, str) and key != "env-arg":
        return value
    return json.dumps(value, ensure_ascii=False, default=str)
