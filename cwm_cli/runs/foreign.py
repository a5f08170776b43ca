"""Runs of other versions of cwm: show the readable parts and name the unreadable ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, ValidationError

from cwm_cli._version import __version__
from cwm_cli.data.reading import UnreadableError, read_json, read_text
from cwm_cli.errors import CwmError
from cwm_cli.registry import find
from cwm_cli.runs.files import flat
from cwm_cli.runs.report import RunReport, RunSummary, Section
from cwm_cli.runs.store import BEST, HEADER, WRITER, Run, RunHeader
from cwm_cli.text import clean


class ForeignConfig(BaseModel):
    """A configuration with any JSON values."""

    model_config = ConfigDict(frozen=True, extra="allow")


class ForeignHeader(RunHeader[ForeignConfig]):
    """A header of an unknown form: only the kind and the circumstances are known."""

    kind: str = "search"


class ForeignLine(BaseModel):
    """A journal line with any JSON object."""

    model_config = ConfigDict(frozen=True, extra="allow")


class ForeignRun(Run[ForeignHeader, ForeignLine]):
    """A run with a header that this version cannot read, or of an unknown kind.

    Its configuration, result and program are shown unchanged; only the number of journal lines is
    known.
    """

    kind: ClassVar[str] = "foreign"
    header_type = ForeignHeader
    record_type = ForeignLine

    def lines(self) -> int:
        """Return the number of journal lines; the journal may have any name."""
        count = 0
        for file in self.folder.glob("*.jsonl"):
            with suppress(UnreadableError):
                count += read_text(file).count("\n")
        return count

    def summary(self) -> RunSummary:
        """Return the kind, the known settings and the number of journal lines."""
        config = self.config.model_dump()
        words = {
            name: config[name] if isinstance(config.get(name), str) else ""
            for name in ("env", "strategy", "model")
        }
        seed, lines = config.get("seed"), self.lines()
        return RunSummary(
            self.place,
            self.header.kind,
            environment=words["env"],
            strategy=words["strategy"],
            answers=words["model"],
            seed=seed if isinstance(seed, int) else None,
            done=f"{lines} line{'' if lines == 1 else 's'}",
            created=self.header.created,
        )

    @classmethod
    def report(cls, runs: Sequence[ForeignRun]) -> RunReport:
        """Return the facts of the configuration and the result."""
        base = super().report(runs)
        return RunReport(f"{runs[0].header.kind} run, {runs[0].place}", facts=base.facts)

    @classmethod
    def sections(cls, runs: Sequence[ForeignRun]) -> list[Section]:
        """Return the configuration, the result and the program."""
        run = runs[0]
        objects = {"Choices": run.config.model_dump(), "Result": run.result() or {}}
        sections = [
            Section("facts", title, {"rows": [list(item) for item in flat(content).items()]})
            for title, content in objects.items()
            if content
        ]
        try:
            program = {"text": read_text(run.folder / BEST), "name": BEST, "gaps": []}
        except UnreadableError:
            return sections
        return [*sections, Section("program", "Program", program)]


def read_foreign(folder: Path, complaint: CwmError) -> Run[Any, Any]:
    """Return the readable parts of a run of another version, with a `version_note`.

    Args:
        folder: The run folder.
        complaint: The error that this version raised for the run.

    Raises:
        CwmError: The complaint, if this version wrote the run or nothing can be read.
    """
    raw = _header(folder)
    writer = _writer(raw)
    if not raw or writer == __version__:
        raise complaint
    run, lacking = _without_unknown(folder, raw)
    if run is None:
        try:
            run = ForeignRun(folder, ForeignHeader.model_validate(raw))
        except ValidationError:
            raise complaint from None
        reason = complaint.reason if isinstance(complaint, UnreadableError) else complaint
        lacking = f"its kind or settings cannot be read by this version ({reason})"
    by = f"cwm {clean(writer, limit=40)}" if writer else "another version"
    run.version_note = f"{run.place} was written by {by}, read by cwm {__version__}: {lacking}"
    return run


def _without_unknown(folder: Path, raw: Mapping[str, Any]) -> tuple[Run[Any, Any] | None, str]:
    """Return a run without unknown settings, and a message; None if anything else is wrong."""
    try:
        of_kind: type[Run[Any, Any]] = find("run kind", str(raw.get("kind", "search")))
        of_kind.header_type.model_validate(raw)
    except ValidationError as error:
        wrong = error.errors(include_url=False, include_context=False, include_input=False)
    except CwmError:
        return None, ""
    else:
        return None, ""
    if any(entry["type"] != "extra_forbidden" for entry in wrong):
        return None, ""
    known: Any = deepcopy(dict(raw))
    for entry in wrong:
        *path, last = entry["loc"]
        parent = known
        for key in path:
            parent = parent[key]
        del parent[last]
    names = ", ".join(clean(".".join(map(str, entry["loc"])), limit=60) for entry in wrong)
    run = of_kind(folder, of_kind.header_type.model_validate(known))
    return run, f"unknown settings are ignored ({names})"


def _header(folder: Path) -> dict[str, Any]:
    """Return the header as JSON, {} if it cannot be read."""
    try:
        raw = read_json(folder / HEADER)
    except UnreadableError:
        return {}
    return raw if isinstance(raw, dict) else {}


def _writer(raw: Mapping[str, Any]) -> str:
    """Return the version that wrote a header, "" if unknown."""
    versions = raw.get("versions")
    return str(versions.get(WRITER, "")) if isinstance(versions, dict) else ""
