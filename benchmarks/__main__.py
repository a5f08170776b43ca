"""Run the suite: print a line per claim, write tables, and compare with recorded results."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks import records
from benchmarks.machine import machine
from benchmarks.records import Entry, Remark
from benchmarks.results import HEAD, Result
from benchmarks.suite import SCRIPTS, Broken, run


class Outcome(NamedTuple):
    """The results of a run of the suite with their remarks, and the scripts that failed."""

    results: list[tuple[Result, list[Remark]]]
    broken: list[Broken]

    def table(self) -> str:
        """Return the results as a table in Markdown."""
        rows = [
            result.row("; ".join(remark.text for remark in remarks))
            for result, remarks in self.results
        ]
        broken = ["", *(each.line() for each in self.broken)] if self.broken else []
        return "\n".join([machine(), "", HEAD, *rows, *broken]) + "\n"

    def to_json(self) -> str:
        """Return results, remarks and failed scripts as JSON."""
        claims = [
            result.to_json() | {"remarks": [remark.text for remark in remarks]}
            for result, remarks in self.results
        ]
        broken = [each._asdict() for each in self.broken]
        return json.dumps({"claims": claims, "broken": broken}, indent=1) + "\n"

    def fails(self, check: str) -> bool:
        """Return whether a script failed, or a checked figure is worse than recorded.

        Args:
            check: `counts`, `ratios` (which includes counts) or an empty string.
        """
        remarks = [remark for _, several in self.results for remark in several]
        counts = any(remark.is_of_counts for remark in remarks)
        return bool(self.broken or (check and counts) or (check == "ratios" and remarks))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run scripts and write their results; return the exit code."""
    chosen = _parse(arguments)
    effort = "quick" if chosen.quick else "full"
    known = records.read(records.FILE, effort)
    outcome = run_scripts(
        [f"benchmarks.{name}" for name in chosen.scripts], known, quick=chosen.quick
    )
    chosen.out.mkdir(parents=True, exist_ok=True)
    (chosen.out / f"{effort}.md").write_text(outcome.table())
    (chosen.out / f"{effort}.json").write_text(outcome.to_json())
    if chosen.record:
        whole = chosen.scripts == SCRIPTS and not outcome.broken
        new = records.entries(result for result, _ in outcome.results)
        records.write(records.FILE, effort, new if whole else known | new)
    print(f"{machine()}\n{chosen.out / effort}.md")
    return int(outcome.fails(chosen.check))


def run_scripts(modules: Sequence[str], known: dict[str, Entry], *, quick: bool) -> Outcome:
    """Run scripts and print a line for each claim immediately after its measurement."""
    outcome = Outcome([], [])
    for found in run(modules, quick=quick):
        print(found.line(), flush=True)
        if isinstance(found, Broken):
            outcome.broken.append(found)
            continue
        remarks = list(records.remarks(found, known))
        outcome.results.append((found, remarks))
        for remark in remarks:
            print(f"{'':<28} {remark.text}", flush=True)
    return outcome


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("scripts", nargs="*", help=f"default: all of {', '.join(SCRIPTS)}")
    parser.add_argument("--quick", action="store_true", help="fewer rounds, smaller sides")
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks"), metavar="DIR")
    parser.add_argument("--record", action="store_true", help="save the results as reference")
    parser.add_argument(
        "--check",
        choices=["counts", "ratios"],
        default="",
        help="fail if counts (or counts and ratios) are worse than recorded",
    )
    chosen = parser.parse_args(arguments)
    if unknown := [name for name in chosen.scripts if name not in SCRIPTS]:
        parser.error(f"no script of the suite: {', '.join(unknown)}")
    chosen.scripts = tuple(chosen.scripts) or SCRIPTS
    return chosen


if __name__ == "__main__":
    sys.exit(main())
