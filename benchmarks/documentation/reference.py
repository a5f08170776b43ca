"""Generated parts of the reference: commands, options, messages, fields of run folders."""

import ast
import inspect
import re
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import groupby, pairwise
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
    "trainer": "World models to train",
    "agent": "Agents to train",
}
"""Headings of the option page, by kind of part."""


def table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Return a table in Markdown."""
    lines = [heads, ("---",) * len(heads), *rows]
    return "".join(f"| {' | '.join(map(cell, line))} |\n" for line in lines)


def cell(text: str) -> str:
    """Return a text as a table cell: one line, with bars escaped outside of code."""
    pieces = re.split(r"(`[^`]*`)", " ".join(text.split()))
    return "".join(x if x.startswith("`") else x.replace("|", "\\|") for x in pieces)


def prose(text: str) -> str:
    """Escape a text for Markdown, except code in backticks."""
    pieces = re.split(r"(`[^`]*`)", text)
    quoted = [re.sub(r"([<>*_\[\]#])", r"\\\1", piece) for piece in pieces[::2]]
    pieces[::2] = [piece.replace("\\<", "&lt;").replace("\\>", "&gt;") for piece in quoted]
    return "".join(pieces)


def code(text: str) -> str:
    """Return a text as code."""
    return f"`{text}`" if text else ""


# Commands


class Command(NamedTuple):
    """A command with the path that users type."""

    path: str
    parsed: Any


def all_commands() -> list[Command]:
    """Return every command; commands of groups have the name of the group in their path."""
    from typer.main import get_command

    from cwm_cli.cli import command_line

    found = []
    group: Any = get_command(command_line())
    for name in group.list_commands(None):
        command = group.commands[name]
        inner = getattr(command, "commands", None)
        if not inner or getattr(command, "invoke_without_command", False):
            found.append(Command(name, command))
        found += [Command(f"{name} {n}", c) for n, c in (inner or {}).items()]
    return found


def command_list() -> str:
    """Return a table of the commands, each with the first sentence of its help."""
    rows = [
        (f"[`cwm {name}`](#{name.replace(' ', '-')})", prose(parsed.help.partition("\n\n")[0]))
        for name, parsed in all_commands()
    ]
    return table(("command", "description"), rows)


def command(name: str) -> str:
    """Return the section of a command: its help, and a folded table of its parameters."""
    parsed = next(each.parsed for each in all_commands() if each.path == name)
    about, _, example = (parsed.help or "").partition("Example:")
    params = [p for p in parsed.params if not getattr(p, "hidden", False)]
    arguments = [p for p in params if p.param_type_name == "argument"]
    flags = [p for p in params if p.param_type_name == "option" and "--help" not in p.opts]
    usage = " ".join(["cwm", name, *map(_argument, arguments), "[OPTIONS]"])
    tables = [
        ("Arguments", [(code(_argument(p)), prose(p.help or ""), "") for p in arguments]),
        *(
            (panel, [(_flag(p), prose(p.help), _default(p)) for p in panel_flags])
            for panel, panel_flags in groupby(flags, key=lambda p: p.rich_help_panel)
        ),
    ]
    drawn = "\n".join(
        f"**{panel}**\n\n" + table(("option", "meaning", "default"), rows)
        for panel, rows in tables
        if rows
    )
    folded = f'??? info "Options of `cwm {name}`"\n\n' + re.sub("^(?=.)", "    ", drawn, flags=re.M)
    parts = [
        f"### cwm {name} {{ #{name.replace(' ', '-')} }}",
        prose(about.strip()),
        f"Example: {code(' '.join(example.split()))}" if example else "",
        f"```text\n{usage}\n```",
        folded,
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def _argument(param: Any) -> str:
    name = param.metavar or param.name.upper()
    return name if param.required else f"[{name}]"


def _flag(param: Any) -> str:
    names = ", ".join(param.opts)
    if param.secondary_opts:
        names += " / " + ", ".join(param.secondary_opts)
    return code(names if param.is_flag else f"{names} {param.metavar}")


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
    """Return tables of the `-o` options of every part that has options."""
    from cwm_cli import registry
    from cwm_cli.commands.option_lists import option_owners

    parts, last = [], ""
    for kind, name, owner in option_owners():
        heading = HOOKS.get(kind, "Other options")
        if heading != last:
            parts.append(f"## {heading}\n")
            last = heading
        rows = [
            (code(o.name), code(o.type), code(_plain(o.default)), prose(o.meaning))
            for o in owner.describe_options()
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
    """An error message, with … for its variable parts, and the line that raises it."""

    words: str
    module: str
    line: int


HOLE = "…"


@cache
def messages() -> tuple[Message, ...]:
    """Return every error message for users, read from the code of core and plugins."""
    raising = re.compile(rf"\b(?:{'|'.join(_error_names())})\(")
    files = ((path, text) for path, text in _sources().items() if raising.search(text))
    return tuple(dict.fromkeys(each for file in files for each in _messages(*file)))


@cache
def _sources() -> Mapping[Path, str]:
    """Return the code of core and plugins by file."""
    folders = (ROOT / "cwm_cli", ROOT / "plugins")
    files = (path for folder in folders for path in sorted(folder.rglob("*.py")))
    return {path: path.read_text(encoding="utf-8") for path in files}


def _messages(path: Path, text: str) -> Iterator[Message]:
    relative = path.relative_to(ROOT).as_posix()
    for nodes in _scopes(ast.parse(text)):
        calls = [n for n in nodes if isinstance(n, ast.Call) and _called(n) in _error_names()]
        known = _words_by_name(nodes) if calls else {}
        for node in calls:
            if node.args:
                yield Message(_words(node, known), relative, node.lineno)


def _scopes(tree: ast.Module) -> Iterator[list[ast.AST]]:
    """Yield the nodes of each scope: the module, then every function."""
    scopes: list[ast.AST] = [tree]
    while scopes:
        own: list[ast.AST] = []
        left = [*ast.iter_child_nodes(scopes.pop())]
        while left:
            node = left.pop()
            if isinstance(node, ast.FunctionDef):
                scopes.append(node)
            else:
                own.append(node)
                left += ast.iter_child_nodes(node)
        yield own


def _words_by_name(nodes: list[ast.AST]) -> dict[str, ast.expr]:
    """Return the text of each name that a scope assigns exactly once, to a text."""
    given: dict[str, list[ast.expr]] = {}
    for node in nodes:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            given.setdefault(node.targets[0].id, []).append(node.value)
    wordy = (ast.Constant, ast.JoinedStr, ast.BinOp)
    return {n: v[0] for n, v in given.items() if len(v) == 1 and isinstance(v[0], wordy)}


@cache
def _error_names() -> frozenset[str]:
    """Return the names of `CwmError` and its subclasses."""
    heads = re.compile(r"^ *class (\w+)\(([^)]*)\):", re.MULTILINE)
    bases = {
        name: {base.strip().rpartition(".")[2] for base in given.split(",")}
        for text in _sources().values()
        for name, given in heads.findall(text)
    }
    known = {"CwmError"}
    while more := {name for name, of in bases.items() if of & known} - known:
        known |= more
    return frozenset(known)


def _called(node: ast.Call) -> str:
    return node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")


def _words(node: ast.Call, known: Mapping[str, ast.expr]) -> str:
    """Return the message of a call; two classes build theirs from several arguments."""
    said = [_text(argument, known) for argument in node.args]
    if _called(node) == "UnknownNameError":
        return f"unknown {said[0]} {HOLE}: {HOLE}"
    if _called(node) == "UnreadableError" and len(said) > 1:
        hint = said[2] if said[2:] else "restore it or choose another file"
        return f"{HOLE} cannot be read ({said[1]}): {hint}"
    return " ".join(said[0].split())


def _text(node: ast.expr, known: Mapping[str, ast.expr]) -> str:
    """Return the text of an expression, with … for each part that varies."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return re.sub(f"{HOLE}+", HOLE, "".join(_text(value, known) for value in node.values))
    if isinstance(node, ast.FormattedValue):
        return _text(node.value, known) if isinstance(node.value, ast.Name) else HOLE
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _text(node.left, known) + _text(node.right, known)
    if isinstance(node, ast.Name) and node.id in known:
        return _text(known[node.id], {})
    return HOLE


SUBJECTS: Mapping[str, tuple[str, ...]] = {
    "Names of environments, plugins and options": (
        "cwm_cli/registry",
        "cwm_cli/commands/installation",
        "cwm_cli/commands/option_lists",
        "cwm_cli/commands/plugin_failures",
        "cwm_cli/presets",
        "cwm_cli/errors",
        "cwm_cli/text",
        "cwm_cli/cli",
    ),
    "Environments": (
        "cwm_cli/envs",
        "cwm_cli/private_parts",
        "plugins/cwm_gymnasium",
        "plugins/cwm_rtfm",
        "plugins/cwm_minigrid",
        "plugins/cwm_sokoban",
        "plugins/cwm_household",
        "plugins/cwm_pettingzoo",
        "plugins/cwm_theorize/playground",
        "plugins/cwm_neural/pictures",
    ),
    "Data: datasets, imports, exports": (
        "cwm_cli/data",
        "cwm_cli/commands/data",
        "cwm_cli/commands/collect",
        "cwm_cli/commands/recording",
        "cwm_cli/commands/policies",
        "plugins/cwm_published",
        "plugins/cwm_formats",
    ),
    "Programs and the sandbox": (
        "cwm_cli/sandbox",
        "cwm_cli/worlds",
        "cwm_cli/translation",
        "cwm_cli/evaluation",
        "cwm_cli/commands/evaluate",
        "cwm_cli/commands/tolerances",
        "plugins/cwm_induction/calibrate",
        "cwm_cli/commands/subjects",
        "cwm_cli/commands/transfer",
    ),
    "Search": (
        "cwm_cli/search",
        "cwm_cli/problems",
        "cwm_cli/commands/synthesize",
        "cwm_cli/commands/choices",
        "plugins/cwm_induction",
        "plugins/cwm_gif_mcts",
        "plugins/cwm_worldcoder",
        "plugins/cwm_zero_shot",
        "plugins/cwm_simulated",
        "plugins/cwm_replay",
        "plugins/cwm_mcp",
    ),
    "Language models": (
        "plugins/cwm_litellm",
        "plugins/cwm_transformers",
        "plugins/cwm_agent",
        "plugins/cwm_theorize/tiny",
    ),
    "Planning and play": (
        "cwm_cli/planning",
        "cwm_cli/commands/plan",
        "cwm_cli/commands/trials",
        "cwm_cli/commands/plays",
        "cwm_cli/commands/episodes",
        "plugins/cwm_play",
        "plugins/cwm_serve",
        "cwm_cli/views",
    ),
    "Learning while acting": ("plugins/cwm_learn",),
    "Rules in words": ("plugins/cwm_theorize", "plugins/cwm_theorize/theories"),
    "Neural world models": ("plugins/cwm_neural/training", "plugins/cwm_neural"),
    "Run folders": ("cwm_cli/runs", "cwm_cli/commands/trackers", "plugins/cwm_remote"),
    "Benchmarks": (
        "cwm_cli/bench",
        "plugins/cwm_benchmark",
        "plugins/cwm_slurm",
        "plugins/cwm_ray",
    ),
    "Coding problems": ("plugins/cwm_apps",),
    "Exported packages": ("cwm_cli/export", "cwm_cli/commands/imagine"),
}
"""Modules whose messages belong to each subject."""

REST = "Other"


def subject(message: Message) -> str:
    """Return the subject of a message."""
    fitting = [
        (len(prefix), name)
        for name, prefixes in SUBJECTS.items()
        for prefix in prefixes
        if message.module.startswith(prefix)
    ]
    return max(fitting)[1] if fitting else REST


def errors() -> str:
    """Return a table of messages for each subject."""
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
            parts += [f"### {name}\n", table(("message", "module"), rows)]
    return "\n".join(parts)


# Run folders


def run_kinds() -> str:
    """Return a section for each kind of run: header, identity and journal lines."""
    from cwm_cli import registry

    parts = []
    for name in registry.names("run kind"):
        kind = registry.find("run kind", name)
        header = kind.header_type
        records = typing.get_args(kind.record_type) or (kind.record_type,)
        parts.append(f"### {name} {{ #kind-{name} }}\n\n{_about(kind)}\n")
        parts.append(_fields("`run.json`", header))
        parts.append(_fields("`config`, the identity", header.model_fields["config"].annotation))
        parts += [_fields("journal line", record) for record in records]
    return "\n".join(parts)


def run_parts() -> str:
    """Return the fields of the classes that headers and journal lines share."""
    from cwm_cli import registry

    known: dict[str, Any] = {}
    for name in registry.names("run kind"):
        kind = registry.find("run kind", name)
        records = typing.get_args(kind.record_type) or (kind.record_type,)
        config = kind.header_type.model_fields["config"].annotation
        for made in (kind.header_type, config, *records):
            _collect(made, known, inner=False)
    return "\n".join(_fields("part", known[name]) for name in sorted(known))


def _collect(hint: Any, known: dict[str, Any], *, inner: bool = True) -> None:
    """Collect the classes of this project inside a type."""
    for argument in typing.get_args(hint):
        _collect(argument, known)
    is_ours = isinstance(hint, type) and hint.__module__.startswith("cwm_")
    if not is_ours or hint.__name__ in known or not _hints(hint):
        return
    if inner and not hint.__name__.endswith("Config"):
        known[hint.__name__] = hint
    for each in _hints(hint).values():
        _collect(each, known)


def _about(made: type) -> str:
    return prose(" ".join((inspect.getdoc(made) or "").split("\n\n")[0].split()))


def _fields(where: str, made: Any) -> str:
    """Return a folded section with the docstring and the fields of a model."""
    meanings = _field_docstrings(made)
    rows = [
        (code(name), code(_type_name(hint)), prose(meanings.get(name, "")))
        for name, hint in _hints(made).items()
    ]
    said = "\n\n".join(
        " ".join(each.split()) for each in (inspect.getdoc(made) or "").split("\n\n")
    )
    heads = ("field", "type", "meaning")
    if not any(meaning for *_, meaning in rows):  # the docstring above describes the fields
        heads, rows = heads[:2], [row[:2] for row in rows]
    body = f"{prose(said)}\n\n{table(heads, rows)}"
    folded = re.sub("^(?=.)", "    ", body, flags=re.MULTILINE)
    return f'??? info "{where}: {made.__name__}"\n\n{folded}'


def _hints(made: Any) -> dict[str, Any]:
    if hasattr(made, "model_fields"):
        return {name: field.annotation for name, field in made.model_fields.items()}
    return typing.get_type_hints(made)


def _field_docstrings(made: type) -> dict[str, str]:
    """Return the docstrings below the fields of a class and of its base classes."""
    found: dict[str, str] = {}
    for each in reversed(made.__mro__):
        if not each.__module__.startswith("cwm_") or "[" in each.__name__:
            continue
        [definition] = ast.parse(inspect.cleandoc("\n" + inspect.getsource(each))).body
        body = getattr(definition, "body", [])
        for field, after in pairwise(body):
            if isinstance(field, ast.AnnAssign) and isinstance(after, ast.Expr):
                found[ast.unparse(field.target)] = str(getattr(after.value, "value", ""))
    return found


def _type_name(hint: Any) -> str:
    text = hint.__name__ if isinstance(hint, type) and not typing.get_args(hint) else str(hint)
    return re.sub(r"\b(?:[a-z_]\w*\.)+", "", text)


GENERATED: Mapping[str, Callable[..., str]] = {
    "command-list": command_list,
    "command": command,
    "options": options,
    "errors": errors,
    "run-kinds": run_kinds,
    "run-parts": run_parts,
}
"""Functions that replace `<!-- generated: NAME -->` in a page."""
