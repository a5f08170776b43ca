"""Benchmarks in parts: cases that are measured with several seeds, and nothing twice."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.machine import machine
from cwm_cli.errors import CwmError

FIRST_SEED = 100
"""Seeds begin here: nothing was tuned on them."""


class Job(NamedTuple):
    """One run: the part that it belongs to, what it is a measure of, and the seed."""

    part: str
    case: str
    seed: int


Figures = dict[str, Any]


@dataclass(frozen=True)
class Part:
    """A part of the benchmark: its cases, how one is measured, and how its table is told.

    Every case is measured with each of so many `seeds`.
    """

    name: str
    cases: Sequence[str]
    measure: Callable[[str, int, Path], Figures]
    table: Callable[[Mapping[str, Sequence[Figures]]], Iterator[str]]
    seeds: int = 10
    about: str = field(default="", compare=False)


def measure_parts(parts: Sequence[Part], folder: Path, words: str) -> Mapping[Job, Figures]:
    """Measure what is missing of what the command line names, print tables, return all there is."""
    parser = argparse.ArgumentParser(
        description=words, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [part.name for part in parts]
    parser.add_argument("names", nargs="*", help=f"of {', '.join(names)}")
    parser.add_argument("--seeds", type=int, help="how many; without it as many as a part has")
    parser.add_argument("--folder", type=Path, default=folder)
    parser.add_argument("--case", help="only cases that begin so")
    parser.add_argument("--table", action="store_true", help="run nothing, print what there is")
    chosen = parser.parse_args()
    if unknown := set(chosen.names) - set(names):
        parser.error(f"there is no {min(unknown)}: choose from {', '.join(names)}")
    file = chosen.folder / "results.jsonl"
    for part in parts:
        if chosen.names and part.name not in chosen.names:
            continue
        cases = [case for case in part.cases if case.startswith(chosen.case or "")]
        seeds = range(FIRST_SEED, FIRST_SEED + (chosen.seeds or part.seeds))
        if not chosen.table:
            for seed in seeds:
                for case in cases:
                    _measure(part, Job(part.name, case, seed), chosen.folder, file)
        kept = _kept(file)
        found = {
            case: [kept[job] for seed in seeds if (job := Job(part.name, case, seed)) in kept]
            for case in cases
        }
        print(f"\n{part.name}: {part.about}")
        print("\n".join(part.table({case: runs for case, runs in found.items() if runs})))
    print(f"\n{machine()}")
    return _kept(file)


def _kept(file: Path) -> dict[Job, Figures]:
    """Return what was measured."""
    lines = file.read_text().splitlines() if file.exists() else []
    found = map(json.loads, lines)
    return {Job(each["part"], each["case"], each["seed"]): each["figures"] for each in found}


def _measure(part: Part, job: Job, folder: Path, file: Path) -> None:
    """Measure a case that was not measured before, and write that down."""
    if job in _kept(file):
        return
    began = time.monotonic()
    words: Sequence[str] = (job.part, *job.case.replace(":", "").split(), str(job.seed))
    try:
        figures = part.measure(job.case, job.seed, folder / "-".join(words))
    except CwmError as error:
        print(f"{job.part}, {job.case}, seed {job.seed}: {error}", flush=True)
        return
    folder.mkdir(parents=True, exist_ok=True)
    with file.open("a") as lines:
        lines.write(json.dumps({**job._asdict(), "figures": figures}) + "\n")
    seconds = time.monotonic() - began
    print(f"{job.part}, {job.case}, seed {job.seed} ({seconds:.0f} s)", flush=True)
