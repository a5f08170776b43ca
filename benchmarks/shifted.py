"""Compare the held-out accuracy of induction in shifted and in standard environments.

A case is an environment, shifted or not, and a seed of its data. The seed is also the shift: shift
3 has data of seed 3. Transitions are recorded as by `cwm collect` with its defaults, then
`cwm synthesize` runs on them. Results are saved in a file and not measured again; `--table` only
prints existing results.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from benchmarks.machine import machine
from benchmarks.result_file import ResultFile
from cwm_cli.commands.collect import shipped_name
from cwm_cli.envs.tasks import SUITES
from cwm_cli.text import share

SHIPPED = Path(__file__).parents[1] / "data" / "cwm_data"

COMPARE_PARTS_BELOW = 0.9
"""Print the accuracy of each part if the ratio of shifted to standard accuracy is lower."""

FLOOR = 0.02
"""A normalised accuracy below this is not better than predicting no change."""

PARTS = ("observation", "reward", "terminated")


class Case(NamedTuple):
    """An environment, whether it is shifted (0 or 1), and the seed of its data and shift."""

    env: str
    shifted: int
    seed: int

    @property
    def options(self) -> list[str]:
        """The options of `cwm` that select the environment."""
        return ["--env", self.env, *(["--shift", str(self.seed)] if self.shifted else [])]


def main() -> None:
    """Run the missing cases, seed by seed, and print a line per environment."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("envs", nargs="*", help="ids; default: all that can be shifted")
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2, 3, 4])
    parser.add_argument("--budget", type=int, default=1, help="completions")
    parser.add_argument("--folder", type=Path, default=Path("runs/shifted"))
    parser.add_argument("--table", action="store_true", help="only print existing results")
    chosen = parser.parse_args()
    envs = chosen.envs or SUITES["cwmb-shifted"]
    cases = [Case(e, shifted, seed) for seed in chosen.seeds for e in envs for shifted in (0, 1)]
    results = ResultFile(chosen.folder / f"budget-{chosen.budget}.jsonl", key="case")
    if not chosen.table:
        for case in cases:
            results.measure_once(
                case, lambda case=case: measure(case, chosen.budget, chosen.folder)
            )
    print("\n".join(table(envs, {case: found for case in cases if (found := results.get(case))})))
    print(machine())


def measure(case: Case, budget: int, folder: Path) -> dict[str, Any]:
    """Record or copy transitions, and search; return the scores and seconds."""
    name = f"{case.env}-{'shifted' if case.shifted else 'standard'}-{case.seed}.npz"
    data, shipped = (folder / name).resolve(), SHIPPED / shipped_name(case.env)
    if not data.exists() and not case.shifted and case.seed == 0 and shipped.exists():
        shutil.copy(shipped, data)
    if not data.exists():
        cwm("collect", *case.options, "--seed", str(case.seed), "--out", str(data))
    with tempfile.TemporaryDirectory() as place:
        search = ("--backend", "induction", "--budget", str(budget), "--run", f"{place}/run")
        words = ("synthesize", *case.options, "--dataset", str(data), "--json", *search)
        found = json.loads(cwm(*words))
        program = found["program"] and Path(found["program"]).read_text()
    return {"test": found["test"], "seconds": found["seconds"], "program": program}


def cwm(*words: str) -> bytes:
    """Run a command of `cwm` in its own process; return its output."""
    command = [sys.executable, "-m", "cwm_cli", *words]
    return subprocess.run(command, check=True, capture_output=True).stdout


def table(envs: Iterable[str], done: dict[Case, dict[str, Any]]) -> Iterator[str]:
    """Yield a line per environment: means over seeds, and the parts if the accuracy falls."""
    yield f"{'held-out, normalised':<26} {'standard':>12} {'shifted':>12}  ratio  exact"
    for env in envs:
        both = [
            [done[case]["test"] for case in done if case.env == env and case.shifted == shifted]
            for shifted in (False, True)
        ]
        if not all(both):
            continue
        standard, shifted = (mean(max(0.0, s["normalised"] or 0.0) for s in each) for each in both)
        ratio = f"{shifted / standard:5.2f}" if standard > FLOOR else "floor"
        words = [
            f"{share(value)} ({len(each)})"
            for value, each in zip((standard, shifted), both, strict=True)
        ]
        exact = " ".join(share(mean(s["exact"] for s in each)) for each in both)
        parts = ""
        if standard > FLOOR and shifted < COMPARE_PARTS_BELOW * standard:
            parts = ", ".join(
                f"{part} {' to '.join(share(mean(s[part] for s in each)) for each in both)}"
                for part in PARTS
            )
        yield f"{env:<26} {words[0]:>12} {words[1]:>12}  {ratio}  {exact}  {parts}".rstrip()


if __name__ == "__main__":
    main()
