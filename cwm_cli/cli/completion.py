"""Shell completion of names, runs, datasets, and the keys and values of `-o`.

Typer installs the scripts for shells (`cwm --install-completion`) and calls the completers of
this module, which options name by `autocompletion=`. Names that are slow to list, such as all
Gymnasium environments, are cached until a plugin changes. A completer that fails offers nothing.
"""

from __future__ import annotations

import io
import json
import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import partial
from glob import escape, glob
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from cwm_cli.runs.recent import RUNS, recent_runs

if TYPE_CHECKING:
    from cwm_cli.hookspecs import Kind

VARIABLE = "_CWM_COMPLETE"
"""The environment variable that Typer's shell scripts set to ask for completions."""

MAX_FILES = 50
"""Maximum number of runs or datasets that are offered."""

Offer = tuple[str, str]
"""A completed word and a short description."""

Completer = Callable[[typer.Context, str], list[Offer]]


def is_completing() -> bool:
    """Return whether a shell asks for completions."""
    return os.environ.get(VARIABLE, "").startswith("complete_")


def completer(offers: Callable[[typer.Context, str], Iterable[Offer]]) -> Completer:
    """Wrap a source of completions: it must not print or raise while the user types."""

    def complete(ctx: typer.Context, incomplete: str) -> list[Offer]:
        try:
            with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
                found = dict(offers(ctx, incomplete))
        except Exception:  # noqa: BLE001  # an error message would break the typed line
            return []
        fitting = ((word, about) for word, about in found.items() if word.startswith(incomplete))
        # shells and Typer's scripts interpret other characters in descriptions
        return [(word, re.sub(r"[^\w .,;/=+-]+", " ", text).strip()[:60]) for word, text in fitting]

    return complete


@contextmanager
def bash_words() -> Iterator[None]:
    """Undo how bash cuts words at `=` and `:`, so that `-o key=value` is completed as one word.

    The cut words are joined before; what bash keeps is removed from each completion after.
    """
    if os.environ.get(VARIABLE) != "complete_bash":
        yield
        return
    kept, completions = _join_words(), io.StringIO()
    try:
        with redirect_stdout(completions):
            yield
    finally:
        for word in completions.getvalue().splitlines():
            sizes = range(min(len(word), len(kept)), 0, -1)
            cut = next((size for size in sizes if kept.endswith(word[:size])), 0)
            typer.echo(word[cut:])


def _join_words() -> str:
    """Join the words that bash has cut; return the part of the last one that bash keeps."""
    words = os.environ.get("COMP_WORDS", "").split("\n")
    position = os.environ.get("COMP_CWORD", "")
    last = min(int(position) if position.isdecimal() else len(words), len(words) - 1)
    joined: list[str] = []
    for number, word in enumerate(words[: last + 1]):
        follows = number > 0 and words[number - 1] in ("=", ":") and word != ""
        if joined and (word in ("=", ":") or follows):
            joined[-1] += word
        else:
            joined.append(word)
    os.environ["COMP_WORDS"] = "\n".join(map(shlex.quote, joined))
    os.environ["COMP_CWORD"] = str(len(joined) - 1)
    return joined[-1] if words[last] in ("=", ":") else joined[-1].removesuffix(words[last])


# Names, runs and files


def names_of(kind: Kind) -> Completer:
    """Complete the names of an extension point, such as all strategies."""

    def list_names() -> list[str]:
        from cwm_cli import registry

        return registry.names(kind)

    return completer(lambda _ctx, _word: [(n, kind) for n in _cached(f"names {kind}", list_names)])


def one_of(*words: str) -> Completer:
    """Complete one of some fixed words."""
    return completer(lambda _ctx, _word: [(word, "") for word in words])


@completer
def complete_gap(ctx: typer.Context, incomplete: str) -> Iterator[Offer]:
    """Complete the gaps of the sandbox that a user can accept."""
    from cwm_cli.sandbox.protection import ALL_GAPS, GAPS

    yield ALL_GAPS, "all gaps that are open"
    yield from ((name, gap.danger) for name, gap in GAPS.items())


@completer
def complete_model(ctx: typer.Context, incomplete: str) -> Iterator[Offer]:
    """Complete the language models of recent runs, and of `$CWM_MODEL`."""
    models = {run.model: "a recent run" for run in islice(recent_runs(RUNS), MAX_FILES)}
    models[os.environ.get("CWM_MODEL", "")] = "CWM_MODEL"
    yield from ((model, about) for model, about in models.items() if model)


def _runs(ctx: typer.Context, incomplete: str) -> Iterator[Offer]:
    """Yield the newest runs in `runs/` and in the folder that is being typed."""
    typed = Path(incomplete if incomplete.endswith("/") else os.path.dirname(incomplete))  # noqa: PTH120
    for folder in dict.fromkeys((RUNS, typed)):
        for run in islice(recent_runs(folder), MAX_FILES):
            state = "" if run.is_finished else ", running" if run.is_locked else ", unfinished"
            yield str(run.folder), f"{run.kind} {run.environment}{state}"


complete_run = completer(_runs)


@completer
def complete_dataset(ctx: typer.Context, incomplete: str) -> Iterator[Offer]:
    """Complete datasets, here and one folder below."""
    for pattern in (f"{escape(incomplete)}*.npz", f"{escape(incomplete)}*/*.npz"):
        for file in islice(sorted(glob(pattern)), MAX_FILES):  # noqa: PTH207  # as typed
            yield file, "dataset"


@completer
def complete_start(ctx: typer.Context, incomplete: str) -> Iterator[Offer]:
    """Complete the start programs of a search."""

    def offline_backend() -> list[str]:
        from cwm_cli.registry import default

        return [default("backend")]

    yield from ((name, "") for name in (*_cached("offline backend", offline_backend), "none"))
    yield from _runs(ctx, incomplete)


# Keys and values of -o

OPTION_KINDS: Mapping[str, tuple[str, ...]] = {
    "synthesize": ("strategy", "backend", "refiner", "problem", "search", "sandbox"),
    "benchmark": ("strategy", "backend", "refiner", "problem", "search", "sandbox"),
    "collect": ("policy",),
    "learn": ("learning strategy", "backend", "sandbox"),
    "theorize": ("strategy", "problem", "backend", "policy"),
    "train": ("trainer", "agent", "training", "planner"),
    "plan": ("planner", "planning", "sandbox", "checkpoint"),
    "play": ("planner", "planning", "sandbox", "checkpoint"),
    "calibrate": ("refiner", "sandbox"),
    "evaluate": ("sandbox", "checkpoint", "transfer"),
    "import": ("importer",),
    "export": ("exporter",),
}
"""The kinds of parts whose options a command takes; a command not listed takes all."""

CHOSEN_BY: Mapping[str, tuple[str, ...]] = {
    "strategy": ("strategy", "method"),
    "learning strategy": ("strategy",),
    "backend": ("backend", "theorist", "statistician"),
    "planner": ("planner",),
    "policy": ("policy",),
    "trainer": ("model",),
    "agent": ("agent",),
    "exporter": ("to",),
}
"""The parameters that choose a part of a kind; if none is given, all parts are offered."""


@completer
def complete_option(ctx: typer.Context, incomplete: str) -> Iterator[Offer]:
    """Complete the keys of `-o`, and the values of a key if it has few."""
    key, equals, _ = incomplete.partition("=")
    label, _, bare = key.rpartition(".")
    prefix = f"{label}." if label else ""
    for option in _options_of(ctx):
        name, meaning = option["name"], option["meaning"]
        if equals and name == bare:
            values = _values(option)
        elif not equals and name.startswith(bare):
            # an offer with a value beside `key=`, so that no shell adds a space after `=`
            yield f"{prefix}{name}=", meaning
            values = [option["default"]]
        else:
            continue
        yield from ((f"{prefix}{name}={value}", meaning) for value in values)


@completer
def complete_option_owner(ctx: typer.Context, incomplete: str) -> Iterator[Offer]:
    """Complete the names of parts that have options."""
    yield from ((option["owner"], "") for option in _options_of_kind(None))


def _options_of(ctx: typer.Context) -> Iterator[dict[str, str]]:
    """Yield the options of the parts that the command line names, each name once."""
    seen: set[str] = set()
    for kind in OPTION_KINDS.get(ctx.info_name or "", (None,)):
        chosen = {str(ctx.params.get(each) or "") for each in CHOSEN_BY.get(kind or "", ())} - {""}
        every = _options_of_kind(kind)
        for option in [each for each in every if each["owner"] in chosen] or every:
            if option["name"] not in seen:
                seen.add(option["name"])
                yield option


def _options_of_kind(kind: str | None) -> list[dict[str, str]]:
    return _cached(f"options {kind or 'everything'}", partial(_describe_options, kind))


def _describe_options(kind: str | None) -> list[dict[str, str]]:
    from cwm_cli.commands.option_lists import option_owners

    def written(default: object) -> str:
        plain = default is None or isinstance(default, bool)
        return str(default).lower() if plain else str(default)

    return [
        {
            "owner": each.name,
            "name": option.name,
            "type": option.type,
            "default": written(option.default),
            "meaning": option.meaning[:80],
        }
        for each in option_owners(kind=kind)
        for option in each.owner.describe_options()
    ]


def _values(option: Mapping[str, str]) -> list[str]:
    """Return the values that an option can have, or only its default if they are many."""
    if option["type"] == "bool":
        return ["true", "false"]
    parts = option["type"].split(" | ")
    words = [part for part in parts if part not in ("int", "float", "str", "Path", "bool", "none")]
    choices = words if len(parts) > 1 else []
    return list(dict.fromkeys([*choices, *({"none"} & {*parts}), option["default"]]))


# Cache


def _cached(section: str, compute: Callable[[], list[Any]]) -> list[Any]:
    """Return a list from the user's cache, or compute and store it."""
    import platformdirs

    name = re.sub(r"\W+", "-", section)
    file = Path(platformdirs.user_cache_dir("cwm")) / "completion" / f"{name}-{_digest()}.json"
    try:
        found = json.loads(file.read_bytes())
        if isinstance(found, list):
            return found
    except (OSError, ValueError, RecursionError):
        pass
    found = compute()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        for old in file.parent.glob(f"{name}-????????????????.json"):
            old.unlink(missing_ok=True)
        part = file.with_name(f"{file.name}.{os.getpid()}")
        part.write_text(json.dumps(found))
        part.replace(file)
    except OSError:
        pass  # the next completion computes it again
    return found


def _digest() -> str:
    """Return a digest of everything that provides names: plugins and environment packages."""
    import sys
    from importlib.metadata import PackageNotFoundError, entry_points, version

    from cwm_cli.registry import plugins

    parts = [sys.prefix]
    for plugin in plugins().loaded:
        file = getattr(plugin.module, "__file__", None)
        changed = Path(file).stat().st_mtime_ns if file else 0
        parts += [plugin.name, plugin.package, str(changed)]
    for entry in entry_points(group="gymnasium.envs"):
        parts += [entry.name, str(entry.dist and entry.dist.version)]
    for package in ("gymnasium", "minigrid", "mujoco"):
        try:
            parts.append(version(package))
        except PackageNotFoundError:
            parts.append("")
    return sha256("\n".join(parts).encode()).hexdigest()[:16]
