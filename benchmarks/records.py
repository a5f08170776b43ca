"""What was recorded of earlier runs, and how far new results are from it."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.results import Result

FILE = Path(__file__).with_name("recorded.json")

TOLERANCE = 1.1
"""How many times a recorded count may be reached: versions of libraries change a little."""

HALF = 2.0
"""How many times worse than recorded a ratio is told."""

Entry = dict[str, Any]
"""The ratio and the counts of a claim, and the machine they were recorded on."""


class Remark(NamedTuple):
    """What is wrong with a result: with its counts, which are exact, or with its ratio."""

    is_of_counts: bool
    text: str


def read(file: Path, effort: str) -> dict[str, Entry]:
    """Return what was recorded with an effort, by the names of claims."""
    known = json.loads(file.read_text()) if file.exists() else {}
    return dict(known.get(effort, {}))


def write(file: Path, effort: str, entries: dict[str, Entry]) -> None:
    """Replace what was recorded with an effort."""
    known = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps(known | {effort: entries}, indent=1, sort_keys=True) + "\n")


def entries(results: Iterable[Result]) -> dict[str, Entry]:
    """Return what is recorded of results."""
    return {
        each.name: {
            "ratio": round(each.ratio, 4),
            "counts": dict(each.counts),
            "machine": each.machine,
        }
        for each in results
    }


def remarks(result: Result, known: dict[str, Entry]) -> Iterator[Remark]:
    """Say where a result is worse than recorded."""
    if result.name not in known:
        yield Remark(True, "not recorded: run with --record")
        return
    entry = known[result.name]
    for name, value in result.counts.items():
        if name not in entry["counts"]:
            yield Remark(True, f"{name} is not recorded: run with --record")
        elif value > TOLERANCE * entry["counts"][name]:
            yield Remark(True, f"{name} rose from {entry['counts'][name]:,} to {value:,}")
    worse = result.ratio / entry["ratio"] if result.is_cost else entry["ratio"] / result.ratio
    if worse > HALF:
        yield Remark(False, f"fell by more than half: {entry['ratio']:.3g}x was recorded")
