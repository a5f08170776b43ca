"""Recorded results of earlier runs, and comparison of new results with them."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.results import Result

FILE = Path(__file__).with_name("recorded.json")

TOLERANCE = 1.1
"""Allowed ratio between a count and its recorded value: library versions change it slightly."""

MAX_RATIO_LOSS = 2.0
"""Report a ratio that is worse than recorded by more than this factor."""

Entry = dict[str, Any]
"""Ratio, counts and machine of a recorded claim."""


class Remark(NamedTuple):
    """A deviation of a result from its record, in its counts or in its ratio."""

    is_of_counts: bool
    text: str


def read(file: Path, effort: str) -> dict[str, Entry]:
    """Return the recorded entries of an effort (`quick` or `full`) by the names of claims."""
    known = json.loads(file.read_text()) if file.exists() else {}
    return dict(known.get(effort, {}))


def write(file: Path, effort: str, entries: dict[str, Entry]) -> None:
    """Replace the recorded entries of an effort."""
    known = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps(known | {effort: entries}, indent=1, sort_keys=True) + "\n")


def entries(results: Iterable[Result]) -> dict[str, Entry]:
    """Return the entries to record for some results."""
    return {
        each.name: {
            "ratio": round(each.ratio, 4),
            "counts": dict(each.counts),
            "machine": each.machine,
        }
        for each in results
    }


def remarks(result: Result, known: dict[str, Entry]) -> Iterator[Remark]:
    """Yield a remark for each figure that is not recorded or worse than recorded."""
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
    if worse > MAX_RATIO_LOSS:
        yield Remark(False, f"fell by more than half: {entry['ratio']:.3g}x was recorded")
