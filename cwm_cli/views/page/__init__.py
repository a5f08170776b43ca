"""The page of a run: one HTML file that needs nothing else, and lets foreign text do nothing.

Every kind of run says what its page has (`Run.sections`); scripts in this folder draw each kind
of section, `cwm.draw.KIND` for the kind KIND. What is shown goes into the page as JSON, is drawn
as text and never as markup, and a policy in the page forbids all but its own scripts and any
address at all.
"""

import hashlib
import json
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from html import escape
from importlib.resources import files as resources
from pathlib import Path
from string import Template
from typing import Any
from zlib import compress

from cwm_cli._version import __version__
from cwm_cli.data.reading import UnreadableError
from cwm_cli.runs.files import replace
from cwm_cli.runs.listing import load_alike, report_of
from cwm_cli.runs.places import placed, send
from cwm_cli.runs.programs import ProgramRun
from cwm_cli.runs.report import RunReport, Section
from cwm_cli.runs.store import Run
from cwm_cli.views.page.measured import measured_sections

PAGE = "report.html"
"""The name of the page in the folder of a run."""

FIRST = "page.js"
"""The script that the others build on."""


def report(*folders: Path | str, html: Path | str | None = None) -> RunReport:
    """Return what a run came to, or several that belong together; `html` also writes the page.

    The page is what `cwm runs report --html` writes. Raises `CwmError` for folders that are no
    runs, or that do not belong together.
    """
    places = [placed(folder) for folder in folders]
    found = report_of(load_alike(places))
    if html is not None:
        write_page(places, Path(html))
    return found


def write_page(folders: Sequence[Path], file: Path) -> None:
    """Write the page of a run, or of several that belong together, whatever state they are in."""
    runs = load_alike(folders)
    title, found = _found(runs)
    sections = [{**section._asdict(), "data": _packed(section.data)} for section in found]
    facts = [[name, value] for run in runs for name, value in _header(run)]
    page = {
        "title": title,
        "facts": facts,
        "damage": [run.damage for run in runs if run.damage],
        "sections": sections,
        "written": f"cwm {__version__}, {datetime.now().astimezone():%Y-%m-%d %H:%M}",
    }
    replace(file, _document(title, page))
    send(file)


def _found(runs: Sequence[Run[Any, Any]]) -> tuple[str, Sequence[Section]]:
    """Return the title of a page and its parts; where a file cannot be read, what it lacks."""
    kind = type(runs[0])
    try:
        measured = measured_sections(runs[0]) if len(runs) == 1 else []
        return kind.report(runs).title, [*kind.sections(runs), *measured]
    except UnreadableError as error:
        lines = [str(error)]
    parts = [Section("notes", "Not shown", {"lines": lines})]
    for run in runs:
        if isinstance(run, ProgramRun):
            parts += run.program_sections()
    return f"{runs[0].kind} run, {runs[0].place}", parts


def _header(run: Run[Any, Any]) -> Iterator[tuple[str, str]]:
    """Yield what a run is: what was looked for, by whom, when, and what programs could do."""
    about = run.summary()
    named = {
        "run": about.run,
        "kind": about.kind,
        "environment": about.environment,
        "strategy": about.strategy,
        "answered by": about.answers,
        "seed": "" if about.seed is None else str(about.seed),
        "done": about.done,
        "result": about.result,
        "created": about.created,
        "protection": run.header.openings,
        "versions": ", ".join(f"{name} {number}" for name, number in run.header.versions.items()),
    }
    yield from ((name, value) for name, value in named.items() if value)


def _document(title: str, page: dict[str, Any]) -> str:
    """Return the whole file."""
    folder = resources(__name__)
    names = sorted(one.name for one in folder.iterdir())
    styles = [folder.joinpath(n).read_text("utf-8") for n in names if n.endswith(".css")]
    names = [FIRST, *(name for name in names if name.endswith(".js") and name != FIRST)]
    scripts = [folder.joinpath(name).read_text("utf-8") for name in names]
    hashes = " ".join(f"'sha256-{_digest(script)}'" for script in scripts)
    return Template(folder.joinpath("page.html").read_text("utf-8")).substitute(
        title=escape(title),
        hashes=hashes,
        style="\n".join(styles),
        data=embedded(page),
        scripts="\n".join(f"<script>{script}</script>" for script in scripts),
    )


def embedded(value: Any) -> str:
    """Write a value as JSON that may stand in a page: no letter of it can end a script.

    Numbers that JSON does not have become null.
    """
    text = json.dumps(_finite(value), ensure_ascii=False, separators=(",", ":"))
    marks = ("<", ">", "&", "\u2028", "\u2029")
    for mark in marks:
        text = text.replace(mark, f"\\u{ord(mark):04x}")
    return text.encode("utf-8", "replace").decode()


def _packed(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Pack what data have as `texts`: many long ones that are much alike, and seldom looked at."""
    if "texts" not in data:
        return data
    texts = json.dumps(data["texts"]).encode()
    rest = {name: value for name, value in data.items() if name != "texts"}
    return rest | {"packed": b64encode(compress(texts, 9)).decode()}


def _finite(value: Any) -> Any:
    """Replace what JSON cannot hold."""
    if isinstance(value, float):
        return value if abs(value) < float("inf") else None
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value if isinstance(value, str | int | None) else str(value)


def _digest(script: str) -> str:
    """Return by what a policy knows a script."""
    return b64encode(hashlib.sha256(script.encode()).digest()).decode()
