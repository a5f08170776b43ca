"""The HTML page of a run: one file, without network access, safe against foreign text.

`Run.sections` returns the sections of a page. The scripts in this folder draw them:
`cwm.draw.KIND` draws a section of the kind KIND. The page holds its data as JSON and shows them as
text, never as markup. Its Content-Security-Policy allows only its own scripts and no address.
"""

import hashlib
import json
from base64 import b64encode
from collections.abc import Sequence
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
from cwm_cli.runs.programs import ProgramRun
from cwm_cli.runs.report import RunReport, Section
from cwm_cli.runs.storage import placed, send
from cwm_cli.runs.store import Run
from cwm_cli.views.page.measured import measured_sections

PAGE = "report.html"
"""The name of the page in the folder of a run."""

FIRST = "page.js"
"""The script that defines the helpers of all other scripts."""


def report(*folders: Path | str, html: Path | str | None = None) -> RunReport:
    """Return the report of a run, or of several runs that can be merged.

    Args:
        folders: Run folders.
        html: File for the HTML page; no page by default.

    Raises:
        CwmError: A folder is not a run, or the runs cannot be merged.
    """
    places = [placed(folder) for folder in folders]
    found = report_of(load_alike(places))
    if html is not None:
        write_page(places, Path(html))
    return found


def write_page(folders: Sequence[Path], file: Path) -> None:
    """Write the page of a run, or of several runs that can be merged, also of unfinished runs."""
    runs = load_alike(folders)
    title, verdict, found = _found(runs)
    sections = []
    for section in found:
        data = dict(section.data)
        if "texts" in data:  # long texts with many repetitions
            texts = json.dumps(data.pop("texts")).encode()
            data["packed"] = b64encode(compress(texts, 9)).decode()
        sections.append({**section._asdict(), "data": data})
    facts = [fact for run in runs for fact in _facts(run)]
    page = {
        "title": title,
        "verdict": verdict,
        "facts": facts,
        "damage": [run.damage for run in runs if run.damage],
        "sections": sections,
        "written": f"cwm {__version__}, {datetime.now().astimezone():%Y-%m-%d %H:%M}",
    }
    replace(file, _document(title, page))
    send(file)


def _found(runs: Sequence[Run[Any, Any]]) -> tuple[str, str, Sequence[Section]]:
    """Return title, verdict and sections of a page; name the file that cannot be read."""
    kind = type(runs[0])
    try:
        measured = measured_sections(runs[0]) if len(runs) == 1 else []
        report = kind.report(runs)
        about = runs[0].summary()
        words = report.verdict or ", ".join(filter(None, (about.done, about.result)))
        return report.title, words, [*kind.sections(runs), *measured]
    except UnreadableError as error:
        parts = [Section("notes", "Not shown", {"lines": [str(error)]})]
    for run in runs:
        if isinstance(run, ProgramRun):
            parts += run.program_sections()
    return f"{runs[0].kind} run, {runs[0].place}", "", parts


def _facts(run: Run[Any, Any]) -> list[tuple[str, str]]:
    """Return the settings of a run with their labels, without empty ones."""
    about = run.summary()
    named = {
        "run": about.run,
        "kind": about.kind,
        "environment": about.environment,
        "strategy": about.strategy,
        "model": about.answers,
        "seed": "" if about.seed is None else str(about.seed),
        "created": about.created[:16].replace("T", " "),
        "protection": "" if run.header.openings == "unknown" else run.header.openings,
        "versions": ", ".join(f"{name} {number}" for name, number in run.header.versions.items()),
    }
    return [(name, value) for name, value in named.items() if value]


def _document(title: str, page: dict[str, Any]) -> str:
    """Return the text of the HTML file."""
    folder = resources(__name__)
    names = sorted(one.name for one in folder.iterdir())
    styles = [folder.joinpath(n).read_text("utf-8") for n in names if n.endswith(".css")]
    names = [FIRST, *(name for name in names if name.endswith(".js") and name != FIRST)]
    scripts = [folder.joinpath(name).read_text("utf-8") for name in names]
    # The Content-Security-Policy allows scripts by these hashes only.
    digests = (b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    # Readers without JavaScript get title, verdict and facts as markup.
    summary = [f"<h1>{escape(title)}</h1>"]
    summary += [f"<p>{escape(line)}</p>" for line in (page["verdict"], *page["damage"]) if line]
    summary += [f"<p>{escape(name)}: {escape(value)}</p>" for name, value in page["facts"]]
    return Template(folder.joinpath("page.html").read_text("utf-8")).substitute(
        title=escape(title),
        hashes=" ".join(f"'sha256-{digest}'" for digest in digests),
        style="\n".join(styles),
        data=embedded(page),
        summary="\n".join(summary).encode("utf-8", "replace").decode(),
        scripts="\n".join(f"<script>{script}</script>" for script in scripts),
    )


def embedded(value: Any) -> str:
    """Return a value as JSON that cannot end the script element around it.

    Infinite numbers and NaN become null.
    """
    # As escapes, these characters are JSON still, but no markup and no line ends.
    text = json.dumps(_finite(value), ensure_ascii=False, separators=(",", ":"))
    marks = ("<", ">", "&", "\u2028", "\u2029")
    for mark in marks:
        text = text.replace(mark, f"\\u{ord(mark):04x}")
    return text.encode("utf-8", "replace").decode()


def _finite(value: Any) -> Any:
    """Replace values that JSON cannot represent."""
    if isinstance(value, float):
        return value if abs(value) < float("inf") else None
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value if isinstance(value, str | int | None) else str(value)
