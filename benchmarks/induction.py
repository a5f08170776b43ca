"""Measure the programs that induction writes from new data: accuracy, seconds and memory.

A case is an environment and a seed of its data. Transitions are recorded as by `cwm collect` with
its defaults, then `cwm synthesize` runs on them in its own process. Results are saved in a file and
not measured again.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import mean, median
from typing import Any, NamedTuple

from benchmarks import fresh, hard, novel, unseen
from benchmarks.ceilings import GROUPS, ceiling
from benchmarks.machine import machine
from benchmarks.main_job import run_cwm
from benchmarks.result_file import ResultFile
from benchmarks.variants import VARIANTS
from cwm_cli.data.dataset import Dataset
from cwm_cli.text import share

FLAT = "is_slippery=false"
LAKE = 'desc=["SFFFHFF", "FHFFFFF", "FFFHFFH", "HFFFFFF", "FFHFHFF", "FFFFFFG"]'


class Case(NamedTuple):
    """An environment with its arguments, and a seed for its data."""

    env: str
    arguments: tuple[str, ...] = ()
    seed: int = 0

    @property
    def options(self) -> list[str]:
        """The options of `cwm` that select the environment."""
        return ["--env", self.env, *(word for one in self.arguments for word in ("--env-arg", one))]


SUITES = {
    "known": [
        *map(Case, ("CartPole-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Pendulum-v1")),
        *map(Case, ("InvertedPendulum-v5", "Acrobot-v1", "CliffWalking-v1", "Taxi-v4")),
        Case("FrozenLake-v1", (FLAT,)),
        Case("FrozenLake-v1", (FLAT, 'map_name="8x8"')),
        *map(Case, ("InvertedDoublePendulum-v5", "Reacher-v5")),
    ],
    "changed": [
        *(Case(f"benchmarks.variants:{name}") for name in VARIANTS),
        Case("Pendulum-v1", ("g=5.3",)),
        Case("FrozenLake-v1", (FLAT, LAKE)),
    ],
    "chance": [Case("FrozenLake-v1"), Case("Blackjack-v1")],
    "contact": [*map(Case, ("Hopper-v5", "HalfCheetah-v5", "Walker2d-v5", "Swimmer-v5"))],
    "novel": [Case(f"benchmarks.novel:{name}") for name in novel.IDS],
    "unseen": [Case(f"benchmarks.unseen:{name}") for name in unseen.IDS],
    "hard": [Case(f"benchmarks.hard:{name}") for name in hard.IDS],
    "fresh": [Case(f"benchmarks.fresh:{name}") for name in fresh.IDS],
}
"""Known environments, the same with other constants or maps, and systems made for this test.

`novel` and `hard` helped to develop induction; `unseen` and `fresh` were run once, at the end.
`hard` and `fresh` have computed ceilings.
"""


def main() -> None:
    """Run the missing cases, two at a time, and print a line per environment."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("suites", nargs="*", default=["known"], help=", ".join(SUITES))
    parser.add_argument("--seeds", type=int, nargs="*", default=[201, 202, 203, 204, 205])
    parser.add_argument("--budget", type=int, default=1, help="completions")
    parser.add_argument("--folder", type=Path, default=Path("runs/induction"))
    chosen = parser.parse_args()
    for unknown in set(chosen.suites) - set(SUITES):
        parser.error(f"there is no suite {unknown}: choose from {', '.join(SUITES)}")
    results = ResultFile(chosen.folder / f"budget-{chosen.budget}.jsonl", key="case")

    def run(case: Case) -> dict[str, Any]:
        return results.measure_once(case, lambda: measure(case, chosen.budget, chosen.folder))

    for suite in chosen.suites:
        cases = [case._replace(seed=seed) for seed in chosen.seeds for case in SUITES[suite]]
        with ThreadPoolExecutor(2) as pool:
            done = list(pool.map(run, cases))
        print("\n".join(table(suite, cases, done)), flush=True)
    print(machine())


def measure(case: Case, budget: int, folder: Path) -> dict[str, Any]:
    """Record transitions and search; return the result, seconds per completion and peak memory."""
    data = folder / f"{'-'.join([case.env.split(':')[-1], *case.arguments])}-{case.seed}.npz"
    if not data.exists():
        words = ["collect", *case.options, "--seed", str(case.seed), "--out", str(data.resolve())]
        subprocess.run([sys.executable, "-m", "cwm_cli", *words], check=True, capture_output=True)
    words = ["synthesize", *case.options, "--dataset", str(data.resolve()), "--json", "--new"]
    with tempfile.TemporaryDirectory() as place:
        words += ["--budget", str(budget), "--run", f"{place}/run"]
        output, peak = run_cwm(words)
        found = json.loads(output)
        nodes = [json.loads(line) for line in (Path(place) / "run/nodes.jsonl").open()]
    seconds = [node["node"]["usage"]["seconds"] for node in nodes]
    scores = [node["node"]["verdict"]["score"] for node in nodes]
    result = {name: found[name] for name in ("solved", "train", "test", "unseen")}
    if (env_id := case.env.split(":")[-1]) in GROUPS:
        result["ceiling"] = ceiling(env_id, Dataset.load(data))
    return {**result, "seconds": seconds, "scores": scores, "peak_mb": round(peak / 1e6)}


def table(suite: str, cases: Sequence[Case], done: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield a line per environment: means over the draws of its data."""
    yield f"{suite:<42} draws  held-out  (lowest)  exact  unseen  floor  seconds  peak MB"
    groups: dict[Case, list[dict[str, Any]]] = {}
    for case, found in zip(cases, done, strict=True):
        groups.setdefault(case._replace(seed=0), []).append(found)
    for case, rows in groups.items():
        accuracy = [row["test"]["accuracy"] for row in rows]
        name = " ".join([case.env.split(":")[-1], *case.arguments])[:42]
        unseen = [row["unseen"]["accuracy"] for row in rows if row["unseen"]]
        seconds = median(second for row in rows for second in row["seconds"])
        yield (
            f"{name:<42} {len(rows):5}  {share(mean(accuracy)):>8}  ({share(min(accuracy))})"
            f"  {_mean(row['test']['exact'] for row in rows)}"
            f"   {_mean(unseen)}  {_mean(row['test']['floor'] for row in rows)}"
            f"  {seconds:7.1f}  {max(row['peak_mb'] for row in rows):7}"
        )
    yield f"{'mean':<42} {len(done):5}  {share(mean(row['test']['accuracy'] for row in done)):>8}"
    if all("ceiling" in row for row in done):
        shares = [_share_of_ceiling(row) for row in done]
        exact = share(mean(row["test"]["exact"] == 1 for row in done))
        yield f"mean share of the ceiling: {share(mean(shares))}; exact in {exact} of the draws"
        for group in sorted(set(GROUPS.values())):
            own = [
                value
                for value, case in zip(shares, cases, strict=True)
                if GROUPS[case.env.split(":")[1]] == group
            ]
            yield f"  {group:<10} {share(mean(own))}"
    longest = max(len(row["scores"]) for row in done)
    if longest > 1:
        curve = [mean(max(row["scores"][: n + 1]) for row in done) for n in range(longest)]
        yield "best train score by completions: " + " ".join(share(score) for score in curve)


def _share_of_ceiling(row: dict[str, Any]) -> float:
    """Return accuracy / ceiling, or the skill (0 to 1) of a program with chance or memory."""
    skill = row["test"].get("skill")
    return row["test"]["accuracy"] / row["ceiling"] if skill is None else min(max(skill, 0.0), 1.0)


def _mean(values: Iterable[float]) -> str:
    """Return a mean as text, or a dash if there are no values."""
    found = list(values)
    return share(mean(found)) if found else "    -"


if __name__ == "__main__":
    main()
