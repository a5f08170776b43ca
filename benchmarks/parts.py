"""Benchmarks in parts: cases that are measured with several seeds, and nothing twice.

Each is measured by a process of its own, here or where `--executor` says.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from benchmarks.cases import (
    add_executor_options,
    executor_of,
    kept_cases,
    measure_cases,
    measure_one,
)
from benchmarks.machine import machine
from cwm_cli.bench.executor import Executor

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

    Every case is measured with `seeds` seeds, from `first_seed` on.
    """

    name: str
    cases: Sequence[str]
    measure: Callable[[str, int, Path], Figures]
    table: Callable[[Mapping[str, Sequence[Figures]]], Iterator[str]]
    seeds: int = 10
    about: str = field(default="", compare=False)
    first_seed: int = FIRST_SEED


def measure_parts(
    parts: Sequence[Part],
    folder: Path,
    words: str,
    module: str,
    shipped: Mapping[Job, Figures] = MappingProxyType({}),
) -> Mapping[Job, Figures]:
    """Measure what is missing of what the command line names, print tables, return all there is.

    `python -m MODULE` has to do this, too: that is how a case is measured elsewhere. `shipped` are
    results from elsewhere, which are not measured again; those in the folder override them.
    """
    parser = argparse.ArgumentParser(
        description=words, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [part.name for part in parts]
    parser.add_argument("names", nargs="*", help=f"of {', '.join(names)}")
    parser.add_argument("--seeds", type=int, help="how many; without it as many as a part has")
    parser.add_argument("--folder", type=Path, default=folder)
    parser.add_argument("--case", help="only cases that begin so")
    parser.add_argument("--table", action="store_true", help="run nothing, print what there is")
    add_executor_options(parser, workers=1)  # what takes how long is measured, too
    chosen = parser.parse_args()
    if chosen.one:
        _measure_job(parts, Job(chosen.one[0], chosen.one[1], int(chosen.one[2])), chosen.folder)
        return {}
    if unknown := set(chosen.names) - set(names):
        parser.error(f"there is no {min(unknown)}: choose from {', '.join(names)}")
    kept = {**shipped, **_kept(chosen.folder)}
    for part in parts:
        if chosen.names and part.name not in chosen.names:
            continue
        cases = [case for case in part.cases if case.startswith(chosen.case or "")]
        seeds = range(part.first_seed, part.first_seed + (chosen.seeds or part.seeds))
        if not chosen.table:
            jobs = [Job(part.name, case, seed) for seed in seeds for case in cases]
            missing = [job for job in jobs if job not in kept]
            _measure_missing(missing, chosen.folder, module, executor_of(chosen))
            kept |= _kept(chosen.folder)
        found = {
            case: [kept[job] for seed in seeds if (job := Job(part.name, case, seed)) in kept]
            for case in cases
        }
        print(f"\n{part.name}: {part.about}")
        print("\n".join(part.table({case: runs for case, runs in found.items() if runs})))
    print(f"\n{machine()}")
    return kept


def _kept(folder: Path) -> dict[Job, Figures]:
    """Return what was measured; earlier results are lines of one file."""
    file = folder / "results.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    earlier = map(json.loads, lines)
    found = {Job(each["part"], each["case"], each["seed"]): each["figures"] for each in earlier}
    for (part, case, seed), each in kept_cases(folder).items():
        found[Job(part, case, int(seed))] = each["figures"]
    return found


def _measure_missing(jobs: Sequence[Job], folder: Path, module: str, executor: Executor) -> None:
    """Measure cases, and print a line for each."""
    named = [(job.part, job.case, str(job.seed)) for job in jobs]
    cases = {words: words for words in named}
    for (part, case, seed), found, reason in measure_cases(module, cases, folder, executor):
        end = f": {reason}" if found is None else f" ({found['seconds']:.0f} s)"
        print(f"{part}, {case}, seed {seed}{end}", flush=True)


def _measure_job(parts: Sequence[Part], job: Job, folder: Path) -> None:
    """Measure a case in this process, and write that down."""
    part = next(part for part in parts if part.name == job.part)
    words: Sequence[str] = (job.part, *job.case.replace(":", "").split(), str(job.seed))
    own = folder / "-".join(words)
    name = (job.part, job.case, str(job.seed))
    measure_one(folder, name, lambda: {"figures": part.measure(job.case, job.seed, own)})
