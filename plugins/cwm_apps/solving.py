"""The three kinds of work of `cwm apps`, followed and reported."""

from __future__ import annotations

import json as jsonlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import typer
from rich.console import Console

from cwm_apps.configuration import Source, judging, make, now, sandbox, searching, source
from cwm_apps.folder import Folder, Header
from cwm_apps.gathering import Gathered, gather
from cwm_apps.opening import choose_folder, is_left
from cwm_apps.overview import Overview, Standing
from cwm_apps.purse import Purse
from cwm_apps.reading import Tasks, chosen, read
from cwm_apps.rejudging import Rejudging
from cwm_apps.running import Searches
from cwm_apps.solutions import Judging, read_judged, read_solutions
from cwm_apps.view import overview
from cwm_cli import __version__
from cwm_cli.agents.synthesizing import Choices
from cwm_cli.cli.protecting import warn
from cwm_cli.cli.shared import console
from cwm_cli.errors import CwmError
from cwm_cli.runs.searches import SearchConfig
from cwm_cli.sandbox.protection import Protection
from cwm_cli.views.grids import report_parts
from cwm_cli.views.lines import complain


class Asked(NamedTuple):
    """Which problems are asked for, and where what comes of them is kept."""

    data: str | None
    idx: int
    total: int
    difficulty: str
    run: Path | None
    new: bool
    accepted: tuple[str, ...]
    json: bool


class Problems(NamedTuple):
    """The problems that were asked for."""

    data: Source
    tasks: Tasks
    positions: list[int]


def search(asked: Asked, choices: Choices) -> None:
    """Search for programs; a stopped run continues where it was."""
    parts = make(choices)
    data, tasks, positions = _problems(asked)
    config = searching(choices, data, parts)
    with sandbox(config, asked.accepted) as shared:
        warn(shared.protection)
        header = _header(config, tasks, positions, shared.protection)
        folder = choose_folder(
            header, named=asked.run, new=asked.new, is_left=lambda f: is_left(f, choices.budget)
        )
        header = _begin(folder, header)
        backend = parts.backend
        if choices.max_cost is not None:
            spent = sum(map(folder.spent, header.problems))
            backend = Purse(backend, choices.max_cost, spent)
        searches = Searches(
            folder,
            header,
            tasks,
            positions,
            parts.strategy,
            backend,
            shared,
            choices.budget,
            choices.parallel,
        )
        with _continuing(folder):
            _follow(searches.run(), len(positions), folder, json=asked.json)
    folder.skip(searches.skipped)
    if searches.out_of_money:
        complain(f"stopped before --max-cost {choices.max_cost:g} was exceeded", kind="Note")
    _conclude(folder, json=asked.json)


def judge_solutions(asked: Asked, file: Path, *, options: Sequence[str], seed: int) -> None:
    """Judge programs from elsewhere; what was judged before is not judged again."""
    programs = read_solutions(file)
    data, tasks, positions = _problems(asked)
    positions = [position for position in positions if programs.get(tasks.ids[position][0])]
    if not positions:
        raise CwmError(f"{file} has no program of the problems asked for: see --idx and --total")
    config = judging(file, data, options=options, seed=seed)
    with sandbox(config, asked.accepted) as shared:
        warn(shared.protection)
        header = _header(config, tasks, positions, shared.protection)

        def unjudged(folder: Folder) -> bool:
            done, skipped = read_judged(folder), folder.header().skipped
            numbers = [tasks.ids[p][0] for p in positions if tasks.ids[p][0] not in skipped]
            return any((n, i) not in done for n in numbers for i in range(len(programs[n])))

        folder = choose_folder(header, named=asked.run, new=asked.new, is_left=unjudged)
        _begin(folder, header)
        work = Judging(folder, tasks, positions, programs, shared, seed)
        with _continuing(folder):
            _follow(work.run(), len(positions), folder, json=asked.json)
    folder.skip(work.skipped)
    _conclude(folder, json=asked.json)


def judge_again(asked: Asked) -> None:
    """Judge what a run has found once more."""
    if asked.run is None:
        raise CwmError("--judge-only needs the folder of a run: add --run DIR")
    folder = Folder(asked.run)
    header = folder.header()
    if not header.config.strategy:
        raise CwmError(f"{folder.path} holds programs from elsewhere: use --solutions FILE --new")
    with sandbox(header.config, asked.accepted) as shared:
        warn(shared.protection)
        work = Rejudging(folder, shared)
        with _continuing(folder):
            _follow(work.run(), len(work.finished()), folder, json=asked.json)
    for number, words in sorted(work.changed.items()):
        complain(f"problem {number}: {words}", kind="Changed")
    if not work.changed:
        complain("no verdict has changed", kind="Note")
    _conclude(folder, json=asked.json, changed=work.changed)


def print_report(
    gathered: Gathered,
    folders: Sequence[Folder],
    *,
    json: bool,
    changed: dict[int, str] | None = None,
) -> None:
    """Print tables, or one JSON object."""
    report = gathered.report()
    out = console(json=json)
    for part in report_parts(report):
        out.print(part)
    for note in gathered.notes:
        complain(note, kind="Note")
    if gathered.unfinished:
        complain(f"{len(gathered.unfinished)} problems are not finished", kind="Note")
    if json:
        facts = report.as_object() | {"unfinished": gathered.unfinished}
        facts["run"] = " ".join(str(folder.path) for folder in folders)
        facts |= {} if changed is None else {"changed": changed}
        typer.echo(jsonlib.dumps(facts))
    else:
        names = " ".join(str(folder.path) for folder in folders)
        out.print(f"run {names}", highlight=False, markup=False, soft_wrap=True)


def _conclude(folder: Folder, *, json: bool, changed: dict[int, str] | None = None) -> None:
    """Report what is in a folder now, and keep that there."""
    gathered = gather([folder])
    with folder.locked():
        gathered.report().save(folder.path)
    print_report(gathered, [folder], json=json, changed=changed)


def _problems(asked: Asked) -> Problems:
    """Find the problems that were asked for."""
    data = source(asked.data)
    tasks = read(data.path)
    return Problems(data, tasks, chosen(tasks, asked.idx, asked.total, asked.difficulty))


def _header(
    config: SearchConfig, tasks: Tasks, positions: Sequence[int], protection: Protection
) -> Header:
    """Describe a run."""
    return Header(
        config=config,
        problems=tuple(sorted(tasks.ids[position][0] for position in positions)),
        version=__version__,
        created=now(),
        protection=protection,
    )


def _begin(folder: Folder, header: Header) -> Header:
    """Start or continue a run, and say which."""
    verb = "continues" if folder.is_apps else "started"
    header = folder.begin(header)
    complain(f"{folder.path} {verb}", kind="Run")
    return header


def _follow(events: Iterator[Standing], total: int, folder: Folder, *, json: bool) -> None:
    """Do the work under the live view."""
    state = Overview(total)
    config = folder.header().config
    words = (folder.path.name, config.strategy, config.model or config.backend)
    title = " · ".join(filter(None, words))
    erase = json or sys.stdout.isatty()
    with overview(state, title=title, console=Console(stderr=True), erase=erase) as view:
        for event in events:
            state.saw(event)
            view.saw(event)


@contextmanager
def _continuing(folder: Folder) -> Iterator[None]:
    """Say, when something ends the work early, that it can go on."""
    try:
        yield
    except CwmError as error:
        raise CwmError(f"{error} (kept in {folder.path}: the same command continues)") from error
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            f"interrupted: the same command continues the run {folder.path}"
        ) from None
