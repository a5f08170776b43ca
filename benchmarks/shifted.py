"""What induction alone gives in shifted environments, against the standard ones: held-out rows.

Each case is an environment, its shift or none, and a seed of its data: shift 3 is on data of seed
3, as the standard environment is. Transitions are recorded as `cwm collect` does by default, then
`cwm synthesize` runs on them. Results are kept in a file, one line each: what is there is not run
again, and `--table` only prints what there is.
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
from cwm_cli.commands.collect import shipped_name
from cwm_cli.envs.tasks import SUITES
from cwm_cli.text import share

SHIPPED = Path(__file__).parents[1] / "data" / "cwm_data"

LESS = 0.9
"""Share of what induction gives in the standard environment below which parts are compared."""

FLOOR = 0.02
"""A normalised accuracy below this is no more than that nothing changes."""


class Case(NamedTuple):
    """An environment, whether it is shifted, and the seed of its data and of its shift."""

    env: str
    shifted: bool
    seed: int

    @property
    def options(self) -> list[str]:
        """What names the environment on the command line."""
        return ["--env", self.env, *(["--shift", str(self.seed)] if self.shifted else [])]


def main() -> None:
    """Run what is missing, seed by seed, and print a line per environment."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("envs", nargs="*", help="ids; all that can be shifted unless any is given")
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2, 3, 4])
    parser.add_argument("--budget", type=int, default=1, help="completions")
    parser.add_argument("--folder", type=Path, default=Path("runs/shifted"))
    parser.add_argument("--table", action="store_true", help="run nothing, print what there is")
    chosen = parser.parse_args()
    envs = chosen.envs or SUITES["cwmb-shifted"]
    cases = [Case(e, shifted, seed) for seed in chosen.seeds for e in envs for shifted in (0, 1)]
    chosen.folder.mkdir(parents=True, exist_ok=True)
    file = chosen.folder / f"budget-{chosen.budget}.jsonl"
    known = read(file)
    for case in cases:
        if case not in known and not chosen.table:
            known[case] = measured(case, chosen.budget, chosen.folder)
            with file.open("a") as lines:
                lines.write(json.dumps({"case": case, **known[case]}) + "\n")
    print("\n".join(table(envs, {case: known[case] for case in cases if case in known})))
    print(machine())


def read(file: Path) -> dict[Case, dict[str, Any]]:
    """Return what is kept of earlier runs."""
    lines = file.read_text().splitlines() if file.exists() else []
    return {Case(*found.pop("case")): found for found in map(json.loads, lines)}


def measured(case: Case, budget: int, folder: Path) -> dict[str, Any]:
    """Record transitions, or take those that ship, and search; return the scores and seconds."""
    name = f"{case.env}-{'shifted' if case.shifted else 'standard'}-{case.seed}.npz"
    data, ships = (folder / name).resolve(), SHIPPED / shipped_name(case.env)
    if not data.exists() and not case.shifted and case.seed == 0 and ships.exists():
        shutil.copy(ships, data)
    if not data.exists():
        cwm("collect", *case.options, "--seed", str(case.seed), "--out", str(data))
    with tempfile.TemporaryDirectory() as place:
        how = ("--backend", "induction", "--budget", str(budget), "--run", f"{place}/run")
        words = ("synthesize", *case.options, "--dataset", str(data), "--json", *how)
        found = json.loads(cwm(*words))
        program = found["program"] and Path(found["program"]).read_text()
    return {"test": found["test"], "seconds": found["seconds"], "program": program}


def cwm(*words: str) -> bytes:
    """Run a command in a process of its own; return what it prints."""
    command = [sys.executable, "-m", "cwm_cli", *words]
    return subprocess.run(command, check=True, capture_output=True).stdout


def table(envs: Iterable[str], done: dict[Case, dict[str, Any]]) -> Iterator[str]:
    """Yield a line per environment: means over seeds, and which part loses most where it does."""
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
        if standard > FLOOR and shifted < LESS * standard:
            rights = [{p: mean(s[p] for s in each) for p in PARTS} for each in both]
            parts = ", ".join(f"{p} {share(rights[0][p])} to {share(rights[1][p])}" for p in PARTS)
        yield f"{env:<26} {words[0]:>12} {words[1]:>12}  {ratio}  {exact}  {parts}".rstrip()


PARTS = ("observation", "reward", "terminated")

if __name__ == "__main__":
    main()
