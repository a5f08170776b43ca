"""New plugins: packages that install, pass their tests, and mark where to add code."""

from __future__ import annotations

import keyword
import os
import re
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from string import Template
from types import MappingProxyType
from typing import Any, NamedTuple

from cwm_cli.errors import CwmError, UnknownNameError
from cwm_cli.export.publishing import Export, publish, template
from cwm_cli.hookspecs import Kind
from cwm_cli.registry import names
from cwm_cli.result import Result


class PluginKind(NamedTuple):
    """A kind of plugin with a template: its description, and a command that uses it.

    `provides` is the kind under which the plugin is registered, or None for commands.
    """

    about: str
    use: str
    provides: Kind | None = None


# Kinds of plugin, by the value of `cwm plugins new --kind`.
PLUGIN_KINDS: Mapping[str, PluginKind] = MappingProxyType(
    {
        "environment": PluginKind(
            "an environment, a corridor with a door and its key",
            "cwm synthesize --env $id",
            "environment",
        ),
        "backend": PluginKind(
            "a backend that answers from a file or asks an address over HTTP",
            "cwm synthesize --env CartPole-v1 --backend $short --model ANSWER.py --budget 1",
            "backend",
        ),
        "strategy": PluginKind(
            "a strategy of search, best-first",
            "cwm synthesize --env CartPole-v1 --strategy $short",
            "strategy",
        ),
        "planner": PluginKind(
            "a planner, random shooting",
            "cwm plan --env CartPole-v1 --real-env --planner $short --episodes 2",
            "planner",
        ),
        "world-model": PluginKind(
            "a world model, the most similar recorded row",
            "cwm train --env CartPole-v1 --model $short --agent random --steps 500",
            "trainer",
        ),
        "policy": PluginKind(
            "a policy that collects with sticky actions",
            "cwm collect --env CartPole-v1 --policy $short --out $short.npz",
            "policy",
        ),
        "command": PluginKind(
            "a command that tabulates recorded transitions",
            "cwm collect --env CartPole-v1 --out poles.npz && cwm $short poles.npz",
        ),
    }
)

NAME = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*")
PREFIX = "cwm"  # of package names; names of plugins leave it out


class PluginNames(NamedTuple):
    """The names of a package and its parts.

    Attributes:
        name: The distribution.
        module: The package.
        short: The value of options of commands.
        function: The same in Python.
        title: The beginning of class names.
        id: The id of an environment.
    """

    name: str
    module: str
    short: str
    function: str
    title: str
    id: str

    @classmethod
    def of(cls, given: str, kind: str) -> PluginNames:
        """Derive all names from a package name; names of classes end with the kind only once.

        Raises:
            CwmError: No package can have the name.
        """
        if not NAME.fullmatch(given):
            words = re.findall(r"[a-z0-9]+", given.lower())
            better = "-".join(words).lstrip("-0123456789") or "cwm-maze"
            raise CwmError(
                f"{given!r} is not a valid package name (lower-case letters, digits and hyphens, "
                f"a letter first): write {better}"
            )
        words = re.split("[-_]", given)
        module = "_".join(words)
        if keyword.iskeyword(module) or module in sys.stdlib_module_names or module == "tests":
            raise CwmError(f"{given!r} is reserved in Python: use {PREFIX}-{given}")
        rest = words[1:] if words[0] == PREFIX and words[1:] and words[1].isalpha() else words
        kinds = kind.split("-")
        named = rest[: -len(kinds)] if rest[-len(kinds) :] == kinds and rest != kinds else rest
        title = "".join(word.capitalize() for word in named)
        short, function = "-".join(rest), "_".join(rest)
        if keyword.iskeyword(function):
            function = f"{function}_"
        return cls("-".join(words), module, short, function, title, f"{title}-v0")


@dataclass(frozen=True)
class NewPlugin(Result):
    """A new plugin: its folder, kind and names, and the next commands."""

    folder: Path
    kind: str
    names: PluginNames
    commands: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the output of `cwm plugins new --json`."""
        return {
            "folder": str(self.folder),
            "kind": self.kind,
            "package": self.names.name,
            "module": self.names.module,
            "provides": self.names.id if self.kind == "environment" else self.names.short,
            "commands": list(self.commands),
        }


def new_plugin(name: str, kind: str, *, out: Path | str | None = None) -> NewPlugin:
    """Write the package of a new plugin, which passes its own tests and the conformance tests.

    Args:
        name: The name of the package.
        kind: A key of `PLUGIN_KINDS`.
        out: The folder; by default a folder with the name of the package.

    Raises:
        CwmError: The kind is unknown, the name is invalid or in use, or the folder is not empty.
    """
    if kind not in PLUGIN_KINDS:
        raise UnknownNameError("kind of plugin", kind, PLUGIN_KINDS)
    chosen, plugin = PLUGIN_KINDS[kind], PluginNames.of(name, kind)
    folder = Path(out or plugin.name)
    _check_free(chosen, plugin, folder)
    filled, part = plugin._asdict(), kind.replace("-", "_")
    use = Template(chosen.use).substitute(filled)
    filled |= {
        "file": part,
        "about": chosen.about,
        "about_start": chosen.about[0].upper() + chosen.about[1:],
        "use": use,
    }
    sources = {
        "pyproject.toml": "pyproject.toml",
        "README.md": "README.md",
        f"{plugin.module}/__init__.py": f"{part}/__init__.py",
        f"{plugin.module}/{part}.py": f"{part}/module.py",
        f"tests/test_{plugin.module}.py": f"{part}/test.py",
    }
    files = {
        path: template(f"plugins/{source}").substitute(filled).encode()
        for path, source in sources.items()
    }
    publish(Export(files, {}, {}, ()), folder, replaces=False)
    place = shlex.quote(str(folder))
    # Without ./, pip may take the path for the name of a package.
    path = str(folder) if folder.is_absolute() else f"./{folder}"
    commands = (
        f"pip install -e {shlex.quote(f'{path}[test]')}",
        f"pytest {place} && pytest --pyargs cwm_cli.testing -k {plugin.name}",
        use,
    )
    return NewPlugin(folder, kind, plugin, commands)


def _check_free(chosen: PluginKind, plugin: PluginNames, folder: Path) -> None:
    """Refuse a name that is in use, and the current folder."""
    found = find_spec(plugin.module)
    if found is not None and found.origin is not None:
        raise CwmError(
            f"a module {plugin.module} already exists ({found.origin}): choose another name"
        )
    provided = plugin.id if chosen.provides == "environment" else plugin.short
    if chosen.provides and provided in names(chosen.provides):
        raise CwmError(f"the {chosen.provides} {provided!r} already exists: choose another name")
    if Path(os.path.realpath(folder)) == Path.cwd():
        raise CwmError("--out is the current folder: choose a new folder")
