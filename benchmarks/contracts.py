"""Compare the model type that `find_contract` reports with the type that each system needs.

    python -m benchmarks.contracts                   # all systems and all shipped datasets
    python -m benchmarks.contracts Vault-v0 Taxi-v4  # only these
    python -m benchmarks.contracts --rows 500 --seeds 5

The suites `novel`, `unseen`, `hard` and `fresh` provide the systems. Further cases are known
environments with hidden velocities or with noise. Rows are recorded with random actions.
"""

import argparse
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import fresh, hard, novel, unseen
from benchmarks.machine import machine
from cwm_cli.commands.recording import record
from cwm_cli.data.dataset import Dataset
from cwm_cli.evaluation.finding import find_contract
from cwm_cli.registry import environment

DATA = Path(__file__).parents[1] / "data" / "cwm_data"

PLAIN, CHANCE, MEMORY = frozenset({"plain"}), frozenset({"chance"}), frozenset({"memory"})

GROUPS = {"hybrid": PLAIN, "objects": PLAIN, "chance": CHANCE, "memory": MEMORY}
"""Types of the groups of `hard` and `fresh`."""

RANDOM = ("MachineMaintenance-v0", "PortalDrift-v0", "Press-v0")
"""Systems of `novel` and `unseen` with chance; all other systems are deterministic."""

HIDDEN = ("CartPole-v1", "MountainCar-v0", "Acrobot-v1", "Pendulum-v1", "MountainCarContinuous-v0")
"""Environments whose velocities are hidden in some cases."""

NOISY = {
    "CartPole-v1": {"force_mag": 1.0},
    "MountainCar-v0": {"force": 0.0003},
    "Pendulum-v1": {"action": 0.3},
}
"""Environments with Gaussian noise in some cases, and its standard deviations."""

SHIPPED = {
    # The cards are random: 49 of 202 rows have the observation and action of an earlier row but
    # another outcome.
    "Blackjack-v1": CHANCE,
    # `benchmarks/remembering` contains programs with memory, which these two environments need.
    "Ant-v5": PLAIN | MEMORY,
    "Walker2d-v5": PLAIN | MEMORY,
}
"""Acceptable types of shipped datasets; the other datasets are plain."""


class Case(NamedTuple):
    """Rows to examine, and the acceptable model types.

    Attributes:
        name: The label in the output.
        expected: Acceptable types.
        env: Id of the environment to record, or None for a shipped dataset.
        arguments: Arguments of the environment.
    """

    name: str
    expected: frozenset[str]
    env: str | None
    arguments: dict[str, Any]

    def rows(self, count: int, seed: int) -> Dataset:
        """Record or load the train rows."""
        if self.env is None:
            return Dataset.load(DATA / f"{self.name}.npz").train
        return record(
            environment(self.env),
            env_args=self.arguments,
            policy="random",
            episodes=1,
            test_episodes=0,
            min_rows=count,
            seed=seed,
        ).train


def cases() -> Iterator[Case]:
    """Yield all cases: systems, known environments with disturbances, shipped datasets."""
    for suite in (novel, unseen):
        for name in suite.IDS:
            kind = CHANCE if name in RANDOM else PLAIN
            yield Case(name, kind, f"{suite.__name__}:{name}", {})
    for graded in (hard, fresh):
        for name, group in graded.GROUPS.items():
            yield Case(name, GROUPS[group], f"{graded.__name__}:{name}", {})
    for name in HIDDEN:
        yield Case(f"{name} hidden", MEMORY, name, {"hide": ["velocities"]})
    for name, noise in NOISY.items():
        yield Case(f"{name} noisy", CHANCE, name, {"noise": noise})
    for path in sorted(DATA.glob("*.npz")):
        yield Case(path.stem, SHIPPED.get(path.stem, PLAIN), None, {})


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line per recording, and the numbers of right types."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="ids of systems and of shipped datasets")
    parser.add_argument("--rows", type=int, default=2000, help="least number of rows to record")
    parser.add_argument("--seeds", type=int, default=2, help="number of recordings per system")
    chosen = parser.parse_args(arguments)
    known = {case.name: case for case in cases()}
    if unknown := set(chosen.names) - known.keys():
        parser.error(f"unknown system {min(unknown)}; choose from {', '.join(known)}")
    right, total = Counter[str](), Counter[str]()
    print(f"{'system, seed':28} {'expected':16}  {'found':8} seconds")
    for case in (known[name] for name in chosen.names or known):
        expected = " or ".join(sorted(case.expected))
        for seed in range(1 if case.env is None else chosen.seeds):
            train = case.rows(chosen.rows, seed)
            began = time.perf_counter()
            found = find_contract(train)
            seconds = time.perf_counter() - began
            is_right = found.contract in case.expected
            right[expected] += is_right
            total[expected] += 1
            label = f"{case.name} {seed}"
            start = f"{label:28} {expected:16} {' ' if is_right else '*'}{found.contract:8}"
            print(f"{start} {seconds:6.1f}  {' '.join(found.words().split())}", flush=True)
    print(machine())
    for kind, count in total.items():
        print(f"{kind}: {right[kind]} of {count} right")


if __name__ == "__main__":
    main()
