"""Pages of reference made of the code: commands, options, messages, files of run folders."""

import ast
import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]

HOOKS = {
    "strategy": "Strategies",
    "backend": "Backends",
    "refiner": "Refiners",
    "problem": "Problems",
    "planner": "Planners",
    "policy": "Policies",
    "importer": "Importers",
    "exporter": "Exporters",
    "learning strategy": "Learning strategies",
    "trainer": "Trainers of world models",
    "agent": "Agents that are trained",
}
"""Kinds of things with options, as headings."""


def table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Return a table in Markdown."""
    lines = [heads, ("---",) * len(heads), *rows]
    return "".join(f"| {' | '.join(map(cell, line))} |\n" for line in lines)


def cell(text: str) -> str:
    """Return a text for a cell: on one line, its bars escaped."""
    return " ".join(text.split()).replace("|", "\\|")


def prose(text: str) -> str:
    """Return words of the code as Markdown: nothing in them is markup but code in backticks."""
    pieces = re.split(r"(`[^`]*`)", text)
    quoted = [re.sub(r"([<>*_\[\]#])", r"\\\1", piece) for piece in pieces[::2]]
    pieces[::2] = [piece.replace("\\<", "&lt;").replace("\\>", "&gt;") for piece in quoted]
    return "".join(pieces)


def code(text: str) -> str:
    """Return a text as code."""
    return f"`{text}`" if text else ""


# Commands


class Command(NamedTuple):
    """A command as users name it."""

    path: str
    parsed: Any


def all_commands() -> list[Command]:
    """Return every command, those of groups with the name of their group."""
    from typer.main import get_command

    from cwm_cli.cli import command_line

    found = []
    for name, command in get_command(command_line()).commands.items():  # type: ignore[attr-defined]
        inner = getattr(command, "commands", None)
        found += [Command(f"{name} {n}", c) for n, c in inner.items()] if inner else []
        found += [] if inner else [Command(name, command)]
    return found


def commands() -> str:
    """Return a section for each command: what it does, its arguments, its options."""
    return "\n".join(_command(each) for each in all_commands())


def command_pieces(name: str) -> str:
    """Return the section of one command."""
    return _command(next(each for each in all_commands() if each.path == name))


def _command(command: Command) -> str:
    about, _, example = (command.parsed.help or "").partition("Example:")
    params = [p for p in command.parsed.params if not getattr(p, "hidden", False)]
    arguments = [p for p in params if p.param_type_name == "argument"]
    flags = [p for p in params if p.param_type_name == "option" and "--help" not in p.opts]
    usage = " ".join(["cwm", command.path, *map(_argument, arguments), "[OPTIONS]"])
    parts = [
        f"### cwm {command.path} {{ #{command.path.replace(' ', '-')} }}\n",
        f"{prose(about.strip())}\n",
    ]
    parts.append(f"```text\n{usage}\n```\n")
    if example:
        parts.append(f"Example: {code(' '.join(example.split()))}\n")
    rows = [(code(_argument(p)), prose(p.help or ""), "") for p in arguments]
    rows += [(_flag(p), prose(p.help or ""), _default(p)) for p in flags]
    parts.append(table(("option", "meaning", "default"), rows))
    return "\n".join(parts)


def _argument(param: Any) -> str:
    name = param.metavar or param.name.upper()
    return name if param.required or name.startswith("[") else f"[{name}]"


def _flag(param: Any) -> str:
    names = ", ".join(param.opts)
    if param.secondary_opts:
        names += " / " + ", ".join(param.secondary_opts)
    return code(names if param.is_flag else f"{names} {param.metavar or _type(param)}")


def _type(param: Any) -> str:
    described = getattr(param, "type_descriptor", None)
    said = getattr(described, "annotation", None) or getattr(param, "type", None)
    return str(getattr(said, "__name__", None) or getattr(said, "name", "value")).upper()


def _default(param: Any) -> str:
    shown = param.show_default
    if isinstance(shown, str):
        return prose(shown)
    value = param.default
    if param.required:
        return "required"
    if value is None or value == () or value == [] or shown is False or callable(value):
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return code(str(getattr(value, "value", value)))


# Options


def options() -> str:
    """Return a table of `-o` options for everything that has some."""
    from cwm_cli import registry
    from cwm_cli.cli.options import named_owners

    parts, last = [], ""
    for kind, name, owner in named_owners(None):
        heading = HOOKS.get(kind, "What belongs to no plugin")
        if heading != last:
            parts.append(f"## {heading}\n")
            last = heading
        rows = [
            (code(o.name), code(o.type), code(_plain(o.default)), prose(o.meaning))
            for o in owner.described()
        ]
        parts.append(
            f"### {name} {{ #{(kind + '-' if kind != name else '') + name} }}\n".replace(" -", "-")
        )
        origin = _origin(registry, kind, name)
        parts.append(origin + ("No options.\n" if not rows else ""))
        if rows:
            parts.append(table(("option", "type", "default", "meaning"), rows))
    return "\n".join(parts)


def _origin(registry: Any, kind: str, name: str) -> str:
    if kind not in HOOKS:
        return ""
    said = inspect.getdoc(registry.find(kind, name)) or ""
    first = said.split("\n\n")[0]
    return f"{prose(' '.join(first.split()))}\n\n"


def _plain(value: object) -> str:
    return "none" if value is None else str(value)


# Messages


@dataclass(frozen=True)
class Message:
    """A message that users meet: its words, with … for what varies, and where it comes from."""

    words: str
    module: str
    line: int


HOLE = "…"


@cache
def messages() -> tuple[Message, ...]:
    """Return every message of an error for users, read from the code of core and plugins."""
    found = []
    for root in ("cwm_cli", "plugins"):
        for path in sorted((ROOT / root).rglob("*.py")):
            found += _messages(path)
    return tuple(dict.fromkeys(found))


def _messages(path: Path) -> Iterator[Message]:
    relative = path.relative_to(ROOT)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and _called(node) in _error_names() and node.args:
            yield Message(_words(node), relative.as_posix(), node.lineno)


@cache
def _error_names() -> frozenset[str]:
    """Return the names of `CwmError` and of all that derive from it."""
    bases: dict[str, set[str]] = {}
    for root in ("cwm_cli", "plugins"):
        for path in (ROOT / root).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef):
                    bases[node.name] = {ast.unparse(base).rpartition(".")[2] for base in node.bases}
    known = {"CwmError"}
    while more := {name for name, of in bases.items() if of & known} - known:
        known |= more
    return frozenset(known)


def _called(node: ast.Call) -> str:
    return node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")


def _words(node: ast.Call) -> str:
    if _called(node) == "UnknownNameError":
        return f"unknown {_text(node.args[0])} {HOLE}: {HOLE}"
    return " ".join(_text(node.args[0]).split())


def _text(node: ast.expr) -> str:
    """Return the words of an expression, with a hole for each part that is not known before."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return re.sub(f"{HOLE}+", HOLE, "".join(_text(value) for value in node.values))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _text(node.left) + _text(node.right)
    return HOLE


SUBJECTS: Mapping[str, tuple[str, ...]] = {
    "Naming things: environments, plugins, options": (
        "cwm_cli/registry",
        "cwm_cli/presets",
        "cwm_cli/errors",
        "cwm_cli/text",
        "cwm_cli/cli",
    ),
    "Environments": (
        "cwm_cli/envs",
        "plugins/cwm_gymnasium",
        "plugins/cwm_rtfm",
        "plugins/cwm_minigrid",
        "plugins/cwm_sokoban",
        "plugins/cwm_household",
        "plugins/cwm_playground",
        "plugins/cwm_pictures",
    ),
    "Data: datasets, imports, exports": (
        "cwm_cli/data",
        "cwm_cli/agents/importing",
        "cwm_cli/agents/exporting",
        "cwm_cli/agents/collecting",
        "cwm_cli/agents/recording",
        "cwm_cli/agents/policies",
        "plugins/cwm_published",
        "plugins/cwm_formats",
    ),
    "Programs and the sandbox": (
        "cwm_cli/sandbox",
        "cwm_cli/worlds",
        "cwm_cli/translation",
        "cwm_cli/evaluation",
        "cwm_cli/agents/evaluating",
        "cwm_cli/agents/calibrating",
        "cwm_cli/agents/subjects",
    ),
    "Searching": (
        "cwm_cli/search",
        "cwm_cli/problems",
        "cwm_cli/agents/synthesizing",
        "cwm_cli/agents/unasked",
        "plugins/cwm_induction",
        "plugins/cwm_gif_mcts",
        "plugins/cwm_worldcoder",
        "plugins/cwm_zero_shot",
        "plugins/cwm_simulated",
        "plugins/cwm_replay",
    ),
    "Language models": ("plugins/cwm_litellm", "plugins/cwm_transformers", "plugins/cwm_tiny"),
    "Planning and playing": (
        "cwm_cli/planning",
        "cwm_cli/agents/playing",
        "cwm_cli/agents/plays",
        "cwm_cli/agents/episodes",
        "cwm_cli/agents/comparison",
        "cwm_cli/agents/interacting",
        "cwm_cli/views",
    ),
    "Learning while acting": ("cwm_cli/agents/learning",),
    "Rules in words": ("cwm_cli/agents/theorizing", "plugins/cwm_theories"),
    "Neural world models": ("cwm_cli/agents/training", "plugins/cwm_neural"),
    "Run folders": ("cwm_cli/runs",),
    "Benchmarks": ("cwm_cli/bench",),
    "Coding problems": ("plugins/cwm_apps",),
    "Exported packages": ("cwm_cli/export",),
}
"""What a user was doing, and the code that says so."""

REST = "Other"


def subject(message: Message) -> str:
    """Return what a user was doing who meets a message."""
    fitting = [
        (len(prefix), name)
        for name, prefixes in SUBJECTS.items()
        for prefix in prefixes
        if message.module.startswith(prefix)
    ]
    return max(fitting)[1] if fitting else REST


def errors() -> str:
    """Return the messages as tables, by what a user was doing."""
    parts = []
    for name in [*SUBJECTS, REST]:
        theirs = sorted(
            {m for m in messages() if subject(m) == name}, key=lambda m: m.words.lower()
        )
        said: dict[str, set[str]] = {}
        for message in theirs:
            if message.words.strip(f"{HOLE}: "):
                said.setdefault(message.words, set()).add(message.module)
        if said:
            rows = [(prose(w), ", ".join(map(code, sorted(of)))) for w, of in said.items()]
            parts += [f"### {name}\n", table(("message", "comes from"), rows)]
    return "\n".join(parts)


# Run folders


def run_kinds() -> Mapping[str, Any]:
    """Return every kind of run, by name."""
    from cwm_cli import registry

    return {name: registry.find("run kind", name) for name in registry.names("run kind")}


GENERATED = {"commands": commands, "options": options, "errors": errors}
"""What may stand for `<!-- generated: NAME -->` in a page."""
