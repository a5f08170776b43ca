"""What is reached in worlds that roll dice and in worlds that hide something.

    python -m benchmarks.chance                       # all of it, three seeds: an hour and more
    python -m benchmarks.chance lake cart-pole-force --seeds 10
    python -m benchmarks.chance --table               # run nothing, print what there is

Programs are induced, without a language model; rows, runs and results are kept in a folder, one
line for each world and seed, and nothing is measured twice.
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
"""None of which anything was tuned on."""

Results = dict[tuple[str, int], list[Measure]]


def main() -> None:
    """Measure what is missing, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [item.name for item in ITEMS]
    parser.add_argument("names", nargs="*", help=f"of {', '.join(names)}")
    parser.add_argument("--seeds", type=int, nargs="*", default=list(SEEDS))
    parser.add_argument("--folder", type=Path, default=Path("runs/chance"))
    parser.add_argument("--table", action="store_true", help="run nothing, print what there is")
    chosen = parser.parse_args()
    if unknown := set(chosen.names) - set(names):
        parser.error(f"there is no {min(unknown)}: choose from {', '.join(names)}")
    items = [item for item in ITEMS if not chosen.names or item.name in chosen.names]
    file = chosen.folder / "results.jsonl"
    if not chosen.table:
        for seed in chosen.seeds:
            for item in items:
                if (item.name, seed) not in kept(file):
                    _measure(item, seed, chosen.folder, file)
    print("\n".join(table(items, kept(file), chosen.seeds)))
    print(machine())


def kept(file: Path) -> Results:
    """Return what was measured, by world and seed."""
    lines = file.read_text().splitlines() if file.exists() else []
    found = map(json.loads, lines)
    return {
        (each["item"], each["seed"]): [Measure(*one) for one in each["measures"]] for each in found
    }


def _measure(item: Item, seed: int, folder: Path, file: Path) -> None:
    """Measure a world, and write that down."""
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
    """Yield a line for each figure: its median and worst over seeds, and whether it is reached."""
    yield f"{'world':20s} {'figure':18s} {'median':>9s} {'worst':>9s} {'goal':>6s}  reached"
    for item in items:
        found = [results[item.name, seed] for seed in seeds if (item.name, seed) in results]
        if not found:
            yield f"{item.name:20s} not measured"
        for name in [each.name for each in found[0]] if found else ():
            yield _line(item.name, [one for each in found for one in each if one.name == name])


def _line(name: str, measures: Sequence[Measure]) -> str:
    """Return the line of a figure."""
    values = [each.value for each in measures]
    goal, reached = measures[0].goal, [bool(each.is_reached) for each in measures]
    end = "" if goal is None else f"{goal:6g}  {sum(reached)} of {len(reached)}"
    return f"{name:20s} {measures[0].name:18s} {median(values):9.4g} {min(values):9.4g} {end}"


if __name__ == "__main__":
    main()
