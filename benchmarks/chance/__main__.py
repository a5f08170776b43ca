"""Measure induced programs for environments with chance or with hidden state.

    python -m benchmarks.chance                       # everything, three seeds: more than an hour
    python -m benchmarks.chance lake cart-pole-force --seeds 10
    python -m benchmarks.chance --table               # only print existing results

No language model is needed. Rows, runs and results are kept in a folder, one line per environment
and seed, and nothing is measured twice.
"""

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from benchmarks.chance.items import ITEMS, Item, Material, Measure
from benchmarks.machine import machine
from cwm_cli.errors import CwmError

SEEDS = (10, 11, 12)
"""Seeds that were not used for tuning."""

Results = dict[tuple[str, int], list[Measure]]


def main() -> None:
    """Measure the missing items, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [item.name for item in ITEMS]
    parser.add_argument("names", nargs="*", help=f"default: all of {', '.join(names)}")
    parser.add_argument("--seeds", type=int, nargs="*", default=list(SEEDS))
    parser.add_argument("--folder", type=Path, default=Path("runs/chance"))
    parser.add_argument("--table", action="store_true", help="only print existing results")
    chosen = parser.parse_args()
    if unknown := set(chosen.names) - set(names):
        parser.error(f"there is no {min(unknown)}: choose from {', '.join(names)}")
    items = [item for item in ITEMS if not chosen.names or item.name in chosen.names]
    file = chosen.folder / "results.jsonl"
    if not chosen.table:
        for seed in chosen.seeds:
            for item in items:
                if (item.name, seed) not in load_results(file):
                    _measure(item, seed, chosen.folder, file)
    print("\n".join(table(items, load_results(file), chosen.seeds)))
    print(machine())


def load_results(file: Path) -> Results:
    """Return the saved measures by item and seed."""
    lines = file.read_text().splitlines() if file.exists() else []
    found = map(json.loads, lines)
    return {
        (each["item"], each["seed"]): [Measure(*one) for one in each["measures"]] for each in found
    }


def _measure(item: Item, seed: int, folder: Path, file: Path) -> None:
    """Measure an item, and save the result."""
    folder.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    try:
        measures = list(item.measure(Material.of(item, seed, folder)))
    except CwmError as error:
        print(f"{item.name}, seed {seed}: {error}", flush=True)
        return
    seconds = round(time.monotonic() - began, 1)
    line = {"item": item.name, "seed": seed, "measures": measures, "seconds": seconds}
    with file.open("a") as lines:
        lines.write(json.dumps(line) + "\n")
    words = ", ".join(f"{each.name} {each.value:.4g}" for each in measures)
    print(f"{item.name}, seed {seed}: {words} ({seconds:.0f} s)", flush=True)


def table(items: Sequence[Item], results: Results, seeds: Sequence[int]) -> Iterator[str]:
    """Yield a line for each figure: median and worst over seeds, and how often it is reached."""
    yield f"{'environment':20s} {'figure':18s} {'median':>9s} {'worst':>9s} {'goal':>6s}  reached"
    for item in items:
        found = [results[item.name, seed] for seed in seeds if (item.name, seed) in results]
        if not found:
            yield f"{item.name:20s} not measured"
        for name in [each.name for each in found[0]] if found else ():
            yield _line(item.name, [one for each in found for one in each if one.name == name])


def _line(name: str, measures: Sequence[Measure]) -> str:
    values = [each.value for each in measures]
    goal, reached = measures[0].goal, [bool(each.is_reached) for each in measures]
    end = "" if goal is None else f"{goal:6g}  {sum(reached)} of {len(reached)}"
    return f"{name:20s} {measures[0].name:18s} {median(values):9.4g} {min(values):9.4g} {end}"


if __name__ == "__main__":
    main()
