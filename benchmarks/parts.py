"""Command line for benchmarks with several parts, cases and seeds.

Each pair of a case and a seed is measured once, by its own process (see `cases`).
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
    load_cases,
    make_executor,
    measure_cases,
    measure_one,
)
from benchmarks.machine import machine
from cwm_cli.bench.executor import Executor

FIRST_SEED = 100
"""The first seed. No setting was tuned on this or later seeds."""


class Job(NamedTuple):
    """A measurement: the name of a part, one of its cases, and the seed."""

    part: str
    case: str
    seed: int


Figures = dict[str, Any]


@dataclass(frozen=True)
class Part:
    """A part of a benchmark.

    Attributes:
        name: Name on the command line.
        cases: Names of the cases.
        measure: Measures a case with a seed; it may use the given folder.
        table: Yields the lines of a table from the figures of each case.
        seeds: Number of seeds of each case, from `first_seed` on.
        about: Description above the table.
        first_seed: The first seed.
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
    """Measure the missing cases that the command line selects, print tables, return all figures.

    Args:
        parts: Parts of the benchmark.
        folder: Default folder of the results.
        words: Description of the command.
        module: `python -m MODULE` must call this function, because it measures single cases.
        shipped: Published results, which are not measured again. Results in the folder override
            them.
    """
    parser = argparse.ArgumentParser(
        description=words, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [part.name for part in parts]
    parser.add_argument("names", nargs="*", help=f"default: all of {', '.join(names)}")
    parser.add_argument("--seeds", type=int, help="number of seeds; default: as the part defines")
    parser.add_argument("--folder", type=Path, default=folder)
    parser.add_argument("--case", help="only cases that begin with this text")
    parser.add_argument("--table", action="store_true", help="only print existing results")
    add_executor_options(parser, workers=1)  # times are measured too
    chosen = parser.parse_args()
    if chosen.one:
        _measure_job(parts, Job(chosen.one[0], chosen.one[1], int(chosen.one[2])), chosen.folder)
        return {}
    if unknown := set(chosen.names) - set(names):
        parser.error(f"there is no {min(unknown)}: choose from {', '.join(names)}")
    known = {**shipped, **_load(chosen.folder)}
    for part in parts:
        if chosen.names and part.name not in chosen.names:
            continue
        cases = [case for case in part.cases if case.startswith(chosen.case or "")]
        seeds = range(part.first_seed, part.first_seed + (chosen.seeds or part.seeds))
        if not chosen.table:
            jobs = [Job(part.name, case, seed) for seed in seeds for case in cases]
            missing = [job for job in jobs if job not in known]
            _measure_missing(missing, chosen.folder, module, make_executor(chosen))
            known |= _load(chosen.folder)
        found = {
            case: [known[job] for seed in seeds if (job := Job(part.name, case, seed)) in known]
            for case in cases
        }
        print(f"\n{part.name}: {part.about}")
        print("\n".join(part.table({case: runs for case, runs in found.items() if runs})))
    print(f"\n{machine()}")
    return known


def _load(folder: Path) -> dict[Job, Figures]:
    """Return saved results; older results are lines of the file `results.jsonl`."""
    file = folder / "results.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    earlier = map(json.loads, lines)
    found = {Job(each["part"], each["case"], each["seed"]): each["figures"] for each in earlier}
    for (part, case, seed), each in load_cases(folder).items():
        found[Job(part, case, int(seed))] = each["figures"]
    return found


def _measure_missing(jobs: Sequence[Job], folder: Path, module: str, executor: Executor) -> None:
    named = [(job.part, job.case, str(job.seed)) for job in jobs]
    cases = {words: words for words in named}
    for (part, case, seed), found, reason in measure_cases(module, cases, folder, executor):
        end = f": {reason}" if found is None else f" ({found['seconds']:.0f} s)"
        print(f"{part}, {case}, seed {seed}{end}", flush=True)


def _measure_job(parts: Sequence[Part], job: Job, folder: Path) -> None:
    part = next(part for part in parts if part.name == job.part)
    words: Sequence[str] = (job.part, *job.case.replace(":", "").split(), str(job.seed))
    own = folder / "-".join(words)
    name = (job.part, job.case, str(job.seed))
    measure_one(folder, name, lambda: {"figures": part.measure(job.case, job.seed, own)})
