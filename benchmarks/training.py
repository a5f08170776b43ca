"""Compare the returns of trained agents over the number of environment steps.

    python -m benchmarks.training CartPole-v1 --models dreamer ensemble --steps 3000 --oracle 500
    python -m benchmarks.training Catch-v0 --models transformer+actor-critic dreamer --profile tiny

Each model is trained once per seed by `cwm train`, with the tests of that command. Runs are kept in
a folder: interrupted runs continue, and finished runs are not repeated.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.curves import Band
from cwm_cli import train
from cwm_cli.errors import CwmError
from cwm_cli.views.curves import Chart, Series
from cwm_neural.training.runs import TrainingResult

SEEDS = (100, 101, 102)
"""Seeds that were not used for tuning."""


class Returns(NamedTuple):
    """Mean returns of several runs of a model; `values` has shape (runs, steps)."""

    name: str
    steps: list[int]
    values: np.ndarray

    @classmethod
    def of(cls, name: str, runs: Sequence[TrainingResult], oracle: float | None) -> "Returns":
        """Collect the tests that all runs have.

        With the return of an oracle, values are normalised: 0 is random play, 1 is the oracle.
        """
        tests = [{test.steps: test.mean for test in run.tests if test.number} for run in runs]
        steps = sorted(set.intersection(*map(set, tests)))
        values = np.array([[test[step] for step in steps] for test in tests])
        if oracle is not None:
            random = np.array([run.random.mean if run.random else 0.0 for run in runs])[:, None]
            values = (values - random) / (oracle - random)
        return cls(name, steps, values)

    @property
    def band(self) -> Band:
        """Interquartile means over runs, with 95 % bands."""
        return Band.interquartile(self.values, np.zeros(len(self.values)))

    def lines(self) -> list[str]:
        """Return a table row for each number of steps."""
        runs = len(self.values)
        return [
            f"| {self.name} | {steps:,} | {mean:.3g} | {low:.3g} to {high:.3g} | {runs} |"
            for steps, mean, low, high in zip(self.steps, *self.band, strict=True)
        ]

    def series(self) -> Series:
        """Return the curve with its band."""
        mean, low, high = (part.tolist() for part in self.band)
        return Series(self.name, self.steps, mean, (low, high))


def main() -> None:
    """Train the missing agents, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("env")
    parser.add_argument("--models", nargs="+", default=["dreamer"], help="MODEL or MODEL+AGENT")
    parser.add_argument("--seeds", nargs="+", type=int, default=list(SEEDS))
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--profile")
    parser.add_argument(
        "-o", "--option", action="append", default=[], help="an option of cwm train"
    )
    parser.add_argument("--oracle", type=float, help="return of an oracle, to normalise returns")
    parser.add_argument("--folder", type=Path, default=Path("runs/training"))
    parser.add_argument("--figure", type=Path)
    args = parser.parse_args()
    found = []
    for name in args.models:
        model, _, agent = name.partition("+")
        runs = []
        for seed in args.seeds:
            folder = args.folder / f"{args.env}-{name}-{seed}"
            print(f"{folder} ...", flush=True)
            try:
                trained = train(
                    args.env,
                    model=model,
                    agent=agent or None,
                    profile=args.profile,
                    options=args.option,
                    steps=args.steps,
                    seed=seed,
                    run=folder,
                )
            except CwmError as error:
                raise SystemExit(f"{folder}: {error}") from error
            runs.append(trained)
        found.append(Returns.of(name, runs, args.oracle))
    print("\n| model | steps | interquartile mean | 95 % | runs |\n|---|---|---|---|---|")
    print("\n".join(line for each in found for line in each.lines()))
    if args.figure:
        label = "return" if args.oracle is None else "return, 1 is the oracle"
        series = [each.series() for each in found]
        args.figure.write_text(Chart.of(args.env, "steps", label, series).svg())


if __name__ == "__main__":
    main()
