"""What a shell offers behind Tab: names that are known here, runs, datasets, keys and values of -o.

Typer writes the scripts of the shells (`cwm --install-completion`) and asks the functions of this
module. What takes long to list, such as the environments of Gymnasium, is kept in the user's cache
until something is installed, removed or changed. Whatever goes wrong, a shell is told nothing.
"""

from __future__ import annotations

import inspect
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
from typing import TYPE_CHECKING, Any, NamedTuple, get_type_hints

import typer

from cwm_cli.cli.next_steps import RUNS, runs_here

if TYPE_CHECKING:
    from cwm_cli.hookspecs import Kind

VARIABLE = "_CWM_COMPLETE"
"""The environment variable by which a shell asks, as Typer's scripts set it."""

MOST_RUNS = 50
"""Runs that are offered: the newest."""

BREAKS = ("=", ":")
"""Characters at which bash cuts words, and replaces only what stands behind the last."""


class Offer(NamedTuple):
    """A word that may stand next, and what it is."""

    word: str
    about: str = ""


Offers = Callable[[typer.Context, str], Iterable[Offer]]
"""Lists what may stand where a word was begun."""

Completer = Callable[[typer.Context, str], list[tuple[str, str]]]


def is_asked() -> bool:
    """Whether a shell asks what may stand next."""
    return os.environ.get(VARIABLE, "").startswith("complete_")


def complete(app: typer.Typer) -> None:
    """Have all commands of an application answer shells."""
    _attach(app, ())


def _attach(app: typer.Typer, above: tuple[str, ...]) -> None:
    """Give every parameter that has offers a completer, if it has none of its own."""
    for command in app.registered_commands:
        if command.callback is None:
            continue
        function = inspect.unwrap(command.callback)
        path = (*above, command.name or function.__name__.replace("_", "-"))
        hints = get_type_hints(function, include_extras=True)
        function.__annotations__.update(hints)  # Typer reads these, not the text that they were
        for name, hint in hints.items():
            for info in getattr(hint, "__metadata__", ()):
                offers = _offers_of(path, name)
                if offers and getattr(info, "autocompletion", True) is None:
                    info.autocompletion = _completer(offers)
    for group in app.registered_groups:
        if group.typer_instance is not None:
            _attach(group.typer_instance, (*above, group.name or ""))


def _offers_of(path: tuple[str, ...], parameter: str) -> Offers | None:
    """Return what lists the values of a parameter: that of the command, else that of the name."""
    return OFFERS.get(f"{' '.join(path)} {parameter}") or OFFERS.get(parameter)


def _completer(offers: Offers) -> Completer:
    """Return what Typer calls: it never fails, and prints nothing."""

    def answer(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
        said = io.StringIO()
        try:
            with redirect_stdout(said), redirect_stderr(said):
                found = {each.word: each for each in offers(ctx, incomplete)}.values()
        except Exception:  # noqa: BLE001  # nobody wants to read of it behind a half typed word
            return []
        fitting = (each for each in found if each.word.startswith(incomplete))
        return [(each.word, _harmless(each.about)) for each in fitting]

    return answer


def _harmless(about: str) -> str:
    """Leave out what shells and Typer's scripts read as more than text."""
    return re.sub(r"[^\w .,;/=+-]+", " ", about).strip()[:60]


@contextmanager
def for_shell() -> Iterator[None]:
    """Let bash complete words at whose `=` and `:` it cuts: `-o key=value` is three words to it.

    Before, they are put together again; behind, what bash has kept is left out of every answer.
    """
    if os.environ.get(VARIABLE) != "complete_bash":
        yield
        return
    kept, answers = _join_words(), io.StringIO()
    try:
        with redirect_stdout(answers):
            yield
    finally:
        for word in answers.getvalue().splitlines():
            sizes = range(min(len(word), len(kept)), 0, -1)
            cut = next((size for size in sizes if kept.endswith(word[:size])), 0)
            typer.echo(word[cut:])


def _join_words() -> str:
    """Join the words that bash has cut; return what it keeps of the last, whatever is answered."""
    words = os.environ.get("COMP_WORDS", "").split("\n")
    asked = os.environ.get("COMP_CWORD", "")
    place = min(int(asked) if asked.isdecimal() else len(words), len(words) - 1)
    joined: list[str] = []
    for number, word in enumerate(words[: place + 1]):
        follows = number > 0 and words[number - 1] in BREAKS and word != ""
        if joined and (word in BREAKS or follows):
            joined[-1] += word
        else:
            joined.append(word)
    last = words[place]
    os.environ["COMP_WORDS"] = "\n".join(map(shlex.quote, joined))
    os.environ["COMP_CWORD"] = str(len(joined) - 1)
    return joined[-1] if last in BREAKS else joined[-1].removesuffix(last)


# What is known here.


def known(*kinds: Kind) -> Offers:
    """Offer the names of what is installed of some kinds."""

    def offers(ctx: typer.Context, incomplete: str) -> Iterator[Offer]:
        for kind in kinds:
            for name in _remembered(f"names of {kind}", partial(_names, kind)):
                yield Offer(name, kind)

    return offers


def gaps(ctx: typer.Context, incomplete: str) -> Iterator[Offer]:
    """Offer the gaps that can be accepted."""
    from cwm_cli.sandbox.protection import ALL_GAPS, GAPS

    yield Offer(ALL_GAPS, "all gaps that are open")
    for name, gap in GAPS.items():
        yield Offer(name, gap.danger)


def fixed(*words: str) -> Offers:
    """Offer the same words always."""
    return lambda ctx, incomplete: map(Offer, words)


def _starts() -> list[str]:
    from cwm_cli.registry import default

    return [default("backend"), "none"]


def _names(kind: Kind) -> list[str]:
    from cwm_cli import registry

    return registry.names(kind)


def models(ctx: typer.Context, incomplete: str) -> Iterator[Offer]:
    """Offer the language models of earlier runs, and the usual one."""
    named = [(os.environ.get("CWM_MODEL", ""), "CWM_MODEL")]
    named += [(run.model, "an earlier run") for run in islice(runs_here(RUNS), MOST_RUNS)]
    for model, about in dict(reversed([each for each in named if each[0]])).items():
        yield Offer(model, about)


def runs(ctx: typer.Context, incomplete: str) -> Iterator[Offer]:
    """Offer the folders of runs, the newest first: those of `runs`, and of the folder typed."""
    begun = Path(incomplete if incomplete.endswith("/") else os.path.dirname(incomplete))  # noqa: PTH120
    for place in dict.fromkeys((RUNS, begun)):
        for run in islice(runs_here(place), MOST_RUNS):
            state = "" if run.is_over else ", at work" if run.is_busy else ", unfinished"
            yield Offer(str(run.folder), f"{run.kind} {run.environment}{state}")


def datasets(ctx: typer.Context, incomplete: str) -> Iterator[Offer]:
    """Offer files of transitions, here and one folder below."""
    for pattern in (f"{escape(incomplete)}*.npz", f"{escape(incomplete)}*/*.npz"):
        for file in islice(sorted(glob(pattern)), MOST_RUNS):  # noqa: PTH207  # as typed
            yield Offer(file, "dataset")


def starts(ctx: typer.Context, incomplete: str) -> Iterator[Offer]:
    """Offer what a search may begin with."""
    yield from (Offer(name) for name in _remembered("starts", _starts))
    yield from runs(ctx, incomplete)


# What -o takes.

EVERYTHING = "everything"
OPTION_OWNERS: Mapping[str, tuple[str, ...]] = {
    "synthesize": ("strategy", "backend", "refiner", "problem", "search", "sandbox"),
    "benchmark": ("strategy", "backend", "refiner", "problem", "search", "sandbox"),
    "collect": ("policy",),
    "learn": ("learning strategy", "backend", "sandbox"),
    "theorize": ("strategy", "problem", "backend", "policy"),
    "train": ("trainer", "agent", "training", "planner"),
    "plan": ("planner", "planning", "sandbox", "checkpoint"),
    "play": ("planner", "planning", "sandbox", "checkpoint"),
    "calibrate": ("refiner", "sandbox"),
    "evaluate": ("sandbox", "checkpoint"),
    "import": ("importer",),
    "export": ("exporter",),
}
"""Kinds of what has options in a command; in others all are offered."""

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
"""Parameters that choose one of a kind; where none is named, the options of all are offered."""


def options(ctx: typer.Context, incomplete: str) -> Iterator[Offer]:
    """Offer the keys of -o, and the values of a key that has few."""
    key, separator, _ = incomplete.partition("=")
    label, _, bare = key.rpartition(".")
    prefix = f"{label}." if label else ""
    for option in _options_of(ctx):
        if separator and option["name"] != bare:
            continue
        values = _values(option)
        if not separator and option["name"].startswith(bare):
            # beside `key=` a second offer with a value, so that no shell adds a space behind `=`
            yield Offer(f"{prefix}{option['name']}=", option["meaning"])
            values = [str(option["default"])]
        for value in values:
            yield Offer(f"{prefix}{option['name']}={value}", option["meaning"])


def _options_of(ctx: typer.Context) -> Iterator[dict[str, Any]]:
    """Yield the options of what a command line chose so far, each name once."""
    wanted = OPTION_OWNERS.get(ctx.info_name or "", (EVERYTHING,))
    seen: set[str] = set()
    for kind in wanted:
        chosen = {str(ctx.params.get(each) or "") for each in CHOSEN_BY.get(kind, ())} - {""}
        every = _remembered(f"options of {kind}", partial(_described, kind))
        fitting = [each for each in every if each["owner"] in chosen] if chosen else every
        for option in fitting or every:
            if option["name"] not in seen:
                seen.add(option["name"])
                yield option


def _values(option: Mapping[str, Any]) -> list[str]:
    """Return the values that an option may have, where they are few, else what it usually is."""
    kind, default = str(option["type"]), str(option["default"])
    if kind == "bool":
        return ["true", "false"]
    parts = kind.split(" | ")
    plain = {"int", "float", "str", "none", "Path", "bool"}
    choices = [part for part in parts if part not in plain] if len(parts) > 1 else []
    return list(dict.fromkeys([*choices, *(["none"] if "none" in parts else []), default]))


def _described(kind: str) -> list[dict[str, Any]]:
    """Describe the options of all of a kind."""
    from cwm_cli.cli.options import named_owners

    found = named_owners(None, None if kind == EVERYTHING else kind)
    return [
        {
            "owner": each.name,
            "name": option.name,
            "type": option.type,
            "default": _default_words(option.default),
            "meaning": option.meaning[:80],
        }
        for each in found
        for option in each.owner.described()
    ]


def _default_words(default: object) -> str:
    return str(default).lower() if default is None or isinstance(default, bool) else str(default)


def owners(ctx: typer.Context, incomplete: str) -> Iterator[Offer]:
    """Offer the names of what has options."""
    for option in _remembered(f"options of {EVERYTHING}", lambda: _described(EVERYTHING)):
        yield Offer(option["owner"])


OFFERS: Mapping[str, Offers] = {
    "env": known("environment"),
    "strategy": known("strategy"),
    "learn strategy": known("learning strategy"),
    "method": known("strategy"),
    "backend": known("backend"),
    "theorist": known("backend"),
    "statistician": known("backend"),
    "planner": known("planner"),
    "policy": known("policy"),
    "metric": known("metric"),
    "executor": known("executor"),
    "to": known("exporter"),
    "agent": known("agent"),
    "tracker": known("tracker"),
    "model": models,
    "train model": known("trainer"),
    "option": options,
    "options name": owners,
    "run": runs,
    "run_option": runs,
    "folder": runs,
    "first": runs,
    "second": runs,
    "world": runs,
    "start": starts,
    "learn start": runs,
    "dataset": datasets,
    "data show file": datasets,
    "data export file": datasets,
    "contract": fixed("auto", "plain", "chance", "memory"),
    "allow_gap": gaps,
    "device": fixed("auto", "cpu", "cuda", "mps"),
    "suite": fixed("cwmb", "cwmb-shifted"),
}
"""What is offered, by parameter, or by command and parameter."""


# The cache.


def _remembered(section: str, compute: Callable[[], list[Any]]) -> list[Any]:
    """Return a list from the cache, computed if it is not there; a cache may be missing."""
    import platformdirs

    name = re.sub(r"\W+", "-", section)
    file = Path(platformdirs.user_cache_dir("cwm")) / "completion" / f"{name}-{_installed()}.json"
    try:
        found = json.loads(file.read_bytes())
        if isinstance(found, list):
            return found
    except (OSError, ValueError, RecursionError):
        pass
    made = compute()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        for old in file.parent.glob(f"{name}-????????????????.json"):
            old.unlink(missing_ok=True)
        part = file.with_name(f"{file.name}.{os.getpid()}")
        part.write_text(json.dumps(made))
        part.replace(file)
    except OSError:
        pass  # it is computed again
    return made


def _installed() -> str:
    """Return a short digest of all that provides names: plugins, and packages of environments."""
    import sys
    from importlib.metadata import entry_points

    from cwm_cli.registry import plugins

    parts = [sys.prefix]
    for plugin in plugins().loaded:
        file = getattr(plugin.module, "__file__", None)
        changed = os.stat(file).st_mtime_ns if file else 0  # noqa: PTH116
        parts += [plugin.name, plugin.package, str(changed)]
    for entry in entry_points(group="gymnasium.envs"):
        parts += [entry.name, str(entry.dist and entry.dist.version)]
    parts += [_version(name) for name in ("gymnasium", "minigrid", "mujoco")]
    return sha256("\n".join(parts).encode()).hexdigest()[:16]


def _version(package: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return ""
