"""`cwm.toml`: what options are where the command line does not say it.

The file of the working folder is read, or the one named by `--config` or `$CWM_CONFIG`. Its keys
are the long names of options: those of one command stand in a table of its name, those above all
tables are for every command that has them::

    model = "openai/gpt-5"

    [synthesize]
    budget = 20
    option = {exploration = 0.2}

    [runs.list]
    json = true

What is typed counts more than the file, and the file more than `$CWM_MODEL`. Only the command line
reads it: a run is the same wherever its choices came from.
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
"""What is read where no file is named."""

VARIABLE = "CWM_CONFIG"
"""The environment variable that names a file."""

NEVER = {"allow-gap": "name it on the command line or in $CWM_ALLOW_GAP"}
"""Options that no file sets, and what to do: what may harm this machine, each user accepts."""

NAMED_ONLY = ("api-base", "tool")
"""Options that count only in a file which the user named.

A folder may come from strangers: whoever works in it does not want to send his keys to their
server, or to open his modules to their programs.
"""

OTHER_MEANING = {("learn", "strategy"), ("train", "model"), ("data", "import", "option")}
"""Options that mean something else than others of their name: only their own table sets them."""

MOST_BYTES = 1 << 20
"""A file of defaults is never as large as this."""

LONGEST_SHOWN = 80
"""Maximal number of characters of a wrong value in a message."""

WANTED = {
    str: "text in quotes",
    Path: "text in quotes",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
}
"""What a value has to be, by the type of its option."""


class Flag(NamedTuple):
    """An option of a command: the parameter behind it, its type, and how its values are written."""

    parameter: str
    type: type
    repeats: bool
    pairs: bool
    least: float | None
    most: float | None


@dataclass(frozen=True)
class Configuration:
    """The file that was read, None if there is none, and what it gives, as the file has it."""

    file: Path | None = None
    given: Mapping[str, Any] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """By command and parameter, as Click takes a default map."""

    def as_json(self) -> dict[str, Any]:
        """Return what `cwm doctor --json` prints."""
        return {"file": str(self.file) if self.file else None, "given": dict(self.given)}

    def rows(self) -> dict[str, str]:
        """Write the file and every value in it, by name."""
        if self.file is None:
            return {"file": f"none ({FILE} in the working folder, --config or ${VARIABLE})"}
        named = {".".join(path): json.dumps(value) for path, value in _leaves(self.given)}
        return {"file": str(self.file), **named}


def read_configuration(app: typer.Typer, named: Path | None = None) -> Configuration:
    """Read the file that is named, or that of the working folder, and check all that it says."""
    file = named or FILE
    if named is None and not file.is_file():
        return Configuration()
    given = _read(file)
    return Configuration(file, given, _Reader(file, named is not None, flags_of(app)).read(given))


def _read(file: Path) -> dict[str, Any]:
    """Read a file of TOML."""
    try:
        with file.open("rb") as stream:
            found = stream.read(MOST_BYTES + 1)
        if len(found) > MOST_BYTES:
            raise CwmError(f"{file} is too large for defaults of options: name another file")
        return tomllib.loads(found.decode())
    except FileNotFoundError:
        raise CwmError(f"there is no file {file}: name another with --config") from None
    except IsADirectoryError:
        raise CwmError(f"{file} is a folder: name the file in it, --config FILE") from None
    except UnicodeDecodeError:
        raise CwmError(f"{file} is no text in UTF-8: write it in TOML") from None
    except (ValueError, RecursionError) as error:  # a ValueError also for 5,000 digits
        reason = clean(str(error), limit=LONGEST_SHOWN)
        words = reason[:1].lower() + reason[1:]
        raise CwmError(f"{file} is not TOML ({words}): mend it") from None


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
    """Turns what a file says into defaults of parameters, and refuses what none has."""

    file: Path
    is_named: bool
    commands: Commands

    def read(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the defaults by command and parameter."""
        defaults: dict[str, Any] = {}
        for name, value in given.items():
            if not isinstance(value, dict):
                self._give_all(defaults, name, value)
        tables = {name: value for name, value in given.items() if isinstance(value, dict)}
        for path, table in self._tables(tables):
            for key, value in table.items():
                if key.replace("_", "-") not in self.commands[path]:
                    raise self._unknown("key", key, self.commands[path], place=path)
                self._give(defaults, path, key, value)
        return defaults

    def _tables(
        self, tables: Mapping[str, Any], above: tuple[str, ...] = ()
    ) -> Iterator[tuple[tuple[str, ...], Mapping[str, Any]]]:
        """Yield the table of each command; those of a group stand in a table of its name."""
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

    def _give_all(self, defaults: dict[str, Any], name: str, value: Any) -> None:
        """Give a value to every command that has such an option."""
        key = name.replace("_", "-")
        having = [path for path, flags in self.commands.items() if key in flags]
        if not having:
            every = {known for flags in self.commands.values() for known in flags}
            raise self._unknown("key", name, every)
        for path in having:
            if (*path, key) not in OTHER_MEANING:
                self._give(defaults, path, name, value)

    def _give(self, defaults: dict[str, Any], path: tuple[str, ...], name: str, value: Any) -> None:
        """Give a value to one command."""
        key = name.replace("_", "-")
        if key in NEVER:
            raise CwmError(f"{self.file}: {name} is not taken from a file: {NEVER[key]}")
        if key in NAMED_ONLY and not self.is_named:
            words = f"--config {self.file} or {VARIABLE}={self.file}"
            raise CwmError(f"{self.file}: {name} counts only in a file that you name: {words}")
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

    def _checked(self, flag: Flag, value: Any, said: str) -> Any:
        """Refuse a value of another type, or beyond a bound."""
        wanted = {Path: (str,), float: (int, float)}.get(flag.type, (flag.type,))
        if not isinstance(value, wanted) or isinstance(value, bool) != (flag.type is bool):
            try:
                shown = clean(json.dumps(value, default=str), limit=LONGEST_SHOWN)
            except ValueError:  # a number of more than 4,300 digits
                shown = "a number with thousands of digits"
            words = f"{WANTED.get(flag.type, 'another type')}, not {shown}"
            raise CwmError(f"{self.file}: {said} takes {words}: mend it")
        number: Any = value
        if flag.least is not None and number < flag.least:
            raise CwmError(f"{self.file}: {said} has to be at least {flag.least:g}: mend it")
        if flag.most is not None and number > flag.most:
            raise CwmError(f"{self.file}: {said} has to be at most {flag.most:g}: mend it")
        return value

    def _unknown(
        self, kind: str, name: str, known: Iterable[str], *, place: tuple[str, ...] = ()
    ) -> CwmError:
        """Say what is not known, with the nearest that is."""
        words = [each.replace("-", "_") if "_" in name else each for each in known]
        otherwise = f"`cwm {' '.join(place) or 'COMMAND'} --help` lists the options"
        said = str(UnknownNameError(kind, name, words, otherwise if kind == "key" else ""))
        where = f" in [{'.'.join(place)}]" if place else ""
        return CwmError(f"{self.file}: {said.replace(f'{name!r}:', f'{name!r}{where}:', 1)}")


def _leaves(
    table: Mapping[str, Any], above: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield every value of nested tables with the names that lead to it."""
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _leaves(value, (*above, name))
        else:
            yield (*above, name), value


def _written(key: str, value: Any) -> str:
    """Write a value as it would be typed after KEY=: text of `-o` stands without quotes."""
    if isinstance(value, str) and key != "env-arg":
        return value
    return json.dumps(value, ensure_ascii=False, default=str)
