"""A run kind whose records are consecutive numbers."""

from pathlib import Path

from pydantic import BaseModel

from cwm_cli.runs.storage import placed
from cwm_cli.runs.store import Run, RunHeader


class CountConfig(BaseModel):
    start: int = 0


class CountHeader(RunHeader[CountConfig]):
    kind: str = "count"


class Count(BaseModel):
    n: int


class CountRun(Run[CountHeader, Count]):
    kind, header_type, record_type = "count", CountHeader, Count


def begin(place: Path | str, start: int = 0) -> CountRun:
    header = CountHeader(kind="count", config=CountConfig(start=start))
    return CountRun.begin(placed(place), header)


def counted(run: CountRun) -> list[int]:
    return [record.n for record in run.records()]


def count_on(url: str) -> None:
    """Count in a run until the process ends."""
    with begin(url) as run:
        done = counted(run)
        for n in range(len(done), 10_000):
            run.log(f"count {n}")
            run.append(Count(n=n))
