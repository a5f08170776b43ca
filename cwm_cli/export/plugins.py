"""New plugins: packages that install, work, and say where their author's own code goes."""

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
    """A kind of plugin that there is a template of: what that does, and a command that uses it.

    `provides` is the kind by which it is known once it is installed, None for commands.
    """

    about: str
    use: str
    provides: Kind | None = None


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
"""Kinds of plugin by the name that `cwm plugins new --kind` takes."""

NAME = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*")
PREFIX = "cwm"
"""What packages of plugins begin with, and what their users need not write."""


class PluginNames(NamedTuple):
    """What a package and all in it is called.

    `name` is that of the distribution, `module` that of the package, `short` what commands take,
    `function` the same in Python, `title` what classes begin with, `id` that of an environment.
    """

    name: str
    module: str
    short: str
    function: str
    title: str
    id: str

    @classmethod
    def of(cls, given: str, kind: str) -> PluginNames:
        """Derive all names from one; refuse one that no package could have.

        Names of classes end with the kind, once.
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
    """A plugin that was written: where, what it is called, and the commands that come next."""

    folder: Path
    kind: str
    names: PluginNames
    commands: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """Return what `cwm plugins new --json` prints."""
        return {
            "folder": str(self.folder),
            "kind": self.kind,
            "package": self.names.name,
            "module": self.names.module,
            "provides": self.names.id if self.kind == "environment" else self.names.short,
            "commands": list(self.commands),
        }


def new_plugin(name: str, kind: str, *, out: Path | str | None = None) -> NewPlugin:
    """Write the package of a plugin into a folder (`out`, or one of its name).

    It works as it is, passes its own tests and those of `cwm_cli.testing`. `CwmError` for a kind
    that there is no template of, for a name that is none or that is taken, and for a folder that
    holds anything.
    """
    if kind not in PLUGIN_KINDS:
        raise UnknownNameError("kind of plugin", kind, PLUGIN_KINDS)
    chosen, called = PLUGIN_KINDS[kind], PluginNames.of(name, kind)
    folder = Path(out or called.name)
    _check_free(chosen, called, folder)
    files = _files(kind, called)
    publish(Export(files, {}, {}, ()), folder, replaces=False)
    place = shlex.quote(str(folder))
    commands = (
        f"pip install -e {shlex.quote(f'{_relative(folder)}[test]')}",
        f"pytest {place} && pytest --pyargs cwm_cli.testing -k {called.name}",
        Template(chosen.use).substitute(called._asdict()),
    )
    return NewPlugin(folder, kind, called, commands)


def _relative(folder: Path) -> str:
    """Write a folder so that pip takes it for none of the packages of an index."""
    return str(folder) if folder.is_absolute() else f"./{folder}"


def _check_free(chosen: PluginKind, called: PluginNames, folder: Path) -> None:
    """Refuse a name that hides something else, and the folder in which the user is."""
    found = find_spec(called.module)
    if found is not None and found.origin is not None:
        raise CwmError(
            f"a module {called.module} already exists ({found.origin}): choose another name"
        )
    provided = called.id if chosen.provides == "environment" else called.short
    if chosen.provides and provided in names(chosen.provides):
        raise CwmError(f"the {chosen.provides} {provided!r} already exists: choose another name")
    if Path(os.path.realpath(folder)) == Path.cwd():
        raise CwmError("--out is the current folder: choose a new folder")


def _files(kind: str, called: PluginNames) -> dict[str, bytes]:
    """Fill in the templates of a kind."""
    chosen, part = PLUGIN_KINDS[kind], kind.replace("-", "_")
    filled = called._asdict() | {
        "file": part,
        "about": chosen.about,
        "about_start": chosen.about[0].upper() + chosen.about[1:],
        "use": Template(chosen.use).substitute(called._asdict()),
    }
    paths = {
        "pyproject.toml": "pyproject.toml",
        "README.md": "README.md",
        f"{called.module}/__init__.py": f"{part}/__init__.py",
        f"{called.module}/{part}.py": f"{part}/module.py",
        f"tests/test_{called.module}.py": f"{part}/test.py",
    }
    return {
        path: template(f"plugins/{source}").substitute(filled).encode()
        for path, source in paths.items()
    }
