"""Compare the contract that `find_contract` reports with the contract that a system needs.

    python -m benchmarks.contracts                   # all systems and all shipped datasets
    python -m benchmarks.contracts Kiln-v0 Taxi-v4   # only these
    python -m benchmarks.contracts --rows 500 --seeds 5

Rows of the systems are recorded with random actions, with the seeds 0, 1 and so on.
"""

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.contracts import CHANCE, MEMORY, PLAIN, SYSTEMS
from benchmarks.machine import machine
from cwm_cli.commands.recording import record
from cwm_cli.data.dataset import Dataset
from cwm_cli.evaluation.finding import find_contract
from cwm_cli.registry import environment

DATA = Path(__file__).parents[2] / "data" / "cwm_data"

SHIPPED_EXPECTED = {
    # The cards are random: 49 of 202 rows have the observation and action of an earlier row but
    # another outcome.
    "Blackjack-v1": CHANCE,
    # `benchmarks/remembering` contains programs with memory, which these two environments need.
    "Ant-v5": PLAIN | MEMORY,
    "Walker2d-v5": PLAIN | MEMORY,
}
"""Acceptable contracts of shipped datasets; the other datasets are plain."""

MIN_SHARE_RIGHT = 29 / 30
"""Share of the recordings of the systems whose contract has to be right."""


class Case(NamedTuple):
    """Rows to examine: a recording of a system, or a shipped dataset if `seed` is None."""

    name: str
    kind: str
    expected: frozenset[str]
    seed: int | None

    def rows(self, count: int) -> Dataset:
        """Record or load the train rows."""
        if self.seed is None:
            return Dataset.load(DATA / f"{self.name}.npz").train
        return record(
            environment(self.name),
            policy="random",
            episodes=1,
            test_episodes=0,
            min_rows=count,
            max_steps=200,  # no system has longer episodes
            seed=self.seed,
        ).train


class Outcome(NamedTuple):
    """The contract found for a case, the time it took, and the reason given by the detector."""

    case: Case
    found: str
    seconds: float
    words: str

    @property
    def is_right(self) -> bool:
        """Whether the contract is acceptable."""
        return self.found in self.case.expected

    def __str__(self) -> str:
        name, kind, expected, seed = self.case
        label = name if seed is None else f"{name} {seed}"
        wanted = " or ".join(sorted(expected))
        mark = " " if self.is_right else "*"
        start = f"{label:26} {kind:12} {wanted:16} {mark}{self.found:8} {self.seconds:6.1f}"
        return f"{start}  {self.words}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line per case and a summary; return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    shipped = [path.stem for path in sorted(DATA.glob("*.npz"))]
    parser.add_argument("names", nargs="*", help="ids of systems and of shipped datasets")
    parser.add_argument("--rows", type=int, default=2000, help="least number of rows to record")
    parser.add_argument("--seeds", type=int, default=2, help="number of recordings per system")
    chosen = parser.parse_args(arguments)
    if unknown := set(chosen.names) - {*SYSTEMS, *shipped}:
        known = ", ".join([*SYSTEMS, *shipped])
        parser.error(f"unknown system {min(unknown)}; choose from {known}")
    print(f"{'system, seed':26} {'kind':12} {'expected':16}  {'found':8} seconds")
    outcomes = []
    for case in _cases(shipped, chosen.seeds):
        if not chosen.names or case.name in chosen.names:
            outcomes.append(examine(case, chosen.rows))
            print(outcomes[-1], flush=True)
    print(machine())
    return report(outcomes)


def _cases(shipped: Sequence[str], seeds: int) -> Iterator[Case]:
    for name, system in SYSTEMS.items():
        for seed in range(seeds):
            yield Case(name, system.kind, system.expected, seed)
    for name in shipped:
        yield Case(name, "shipped", SHIPPED_EXPECTED.get(name, PLAIN), None)


def examine(case: Case, rows: int) -> Outcome:
    """Run the detector on the rows of a case."""
    train = case.rows(rows)
    began = time.perf_counter()
    found = find_contract(train)
    seconds = time.perf_counter() - began
    return Outcome(case, found.contract, seconds, " ".join(found.words().split()))


def report(outcomes: Sequence[Outcome]) -> int:
    """Print the summary line; return 1 if too many contracts are wrong, else 0."""
    recorded = [outcome for outcome in outcomes if outcome.case.seed is not None]
    right = sum(outcome.is_right for outcome in recorded)
    wrong = sum(not outcome.is_right for outcome in outcomes if outcome.case.seed is None)
    print(f"{right} of {len(recorded)} right; wrong on the shipped data: {wrong}")
    return int(right < MIN_SHARE_RIGHT * len(recorded) or wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
