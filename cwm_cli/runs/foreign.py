"""Runs that another version of cwm wrote: what of them can be read is, and what cannot is said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    """Choices of which nothing is known but that JSON holds them."""

    model_config = ConfigDict(frozen=True, extra="allow")


class ForeignHeader(RunHeader[ForeignConfig]):
    """A header of which this version knows the kind and the circumstances at most."""

    kind: str = "search"


class ForeignLine(BaseModel):
    """A line of a journal of which nothing is known but that it is an object."""

    model_config = ConfigDict(frozen=True, extra="allow")


class ForeignRun(Run[ForeignHeader, ForeignLine]):
    """A run whose header this version cannot read, or whose kind it does not know.

    Its choices, its result and its program are shown as they are; the lines of its journal are
    counted.
    """

    kind: ClassVar[str] = "foreign"
    header_type = ForeignHeader
    record_type = ForeignLine

    def lines(self) -> int:
        """Count the lines of its journal, whatever that is called."""
        found = 0
        for file in sorted(self.folder.glob("*.jsonl")):
            try:
                found += read_text(file).count("\n")
            except UnreadableError:
                continue
        return found

    def summary(self) -> RunSummary:
        """Say of what kind it is, and how many lines its journal has."""
        config = self.config.model_dump()
        named = {name: config.get(name) for name in ("env", "strategy", "model", "seed")}
        words = {name: value if isinstance(value, str) else "" for name, value in named.items()}
        seed, lines = named["seed"], self.lines()
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
        """Return its choices and its result as they are written."""
        base = super().report(runs)
        return RunReport(f"{runs[0].header.kind} run, {runs[0].place}", facts=base.facts)

    @classmethod
    def sections(cls, runs: Sequence[ForeignRun]) -> list[Section]:
        """Return its choices, its result and its program as they are written."""
        run = runs[0]
        told = {"Choices": run.config.model_dump(), "Result": run.result() or {}}
        found = [
            Section("facts", title, {"rows": [[name, value] for name, value in flat(some).items()]})
            for title, some in told.items()
            if some
        ]
        try:
            program = {"text": read_text(run.folder / BEST), "name": BEST, "gaps": []}
        except UnreadableError:
            return found
        return [*found, Section("program", "Program", program)]


def read_foreign(folder: Path, complaint: CwmError) -> Run[Any, Any]:
    """Return what can be read of a run that another version wrote, which says what cannot.

    Raises the complaint about it where this version wrote it, or nothing can be read.
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
        lacking = f"its kind or settings cannot be read by this version ({_reason(complaint)})"
    by = f"cwm {clean(writer, limit=40)}" if writer else "another version"
    run.foreign = f"{run.place} was written by {by}, read by cwm {__version__}: {lacking}"
    return run


def _without_unknown(folder: Path, raw: Mapping[str, Any]) -> tuple[Run[Any, Any] | None, str]:
    """Read a header without the settings that are unknown here, if nothing else is wrong."""
    try:
        of_kind: type[Run[Any, Any]] = find("run kind", str(raw.get("kind", "search")))
        of_kind.header_type.model_validate(raw)
    except ValidationError as error:
        wrong = error.errors(include_url=False, include_context=False, include_input=False)
    except CwmError:
        return None, ""
    else:
        return None, ""
    if any(each["type"] != "extra_forbidden" for each in wrong):
        return None, ""
    known = _copied(raw)
    for each in wrong:
        *path, last = each["loc"]
        place = known
        for step in path:
            place = place[step]
        del place[last]
    names = ", ".join(clean(".".join(map(str, each["loc"])), limit=60) for each in wrong)
    run = of_kind(folder, of_kind.header_type.model_validate(known))
    return run, f"unknown settings are ignored ({names})"


def _copied(value: Any) -> Any:
    """Copy nested objects."""
    return {k: _copied(v) for k, v in value.items()} if isinstance(value, dict) else value


def _header(folder: Path) -> dict[str, Any]:
    """Read a header as JSON holds it, empty where it is none."""
    try:
        raw = read_json(folder / HEADER)
    except UnreadableError:
        return {}
    return raw if isinstance(raw, dict) else {}


def _writer(raw: Mapping[str, Any]) -> str:
    """Return which version wrote a header, as far as it says so."""
    versions = raw.get("versions")
    return str(versions.get(WRITER, "")) if isinstance(versions, dict) else ""


def _reason(complaint: CwmError) -> str:
    """Return what is wrong with a file, in few words."""
    return complaint.reason if isinstance(complaint, UnreadableError) else str(complaint)
