"""Measure diagnosis or repair of fifty faults per seed: `python -m benchmarks.faults -h`."""

import argparse

import numpy as np

from benchmarks.faults.generator import Fault, answers, faults, tally, wrong
from cwm_cli.problems.feedback.diagnosis import diagnose
from cwm_induction.effort import Effort
from cwm_induction.refining.patches import UNITS, patch_program


def holds_cause(fault: Fault) -> bool:
    """Return whether the first group of rows of a diagnosis contains the cause.

    The group consists of all rows with its condition, predicted correctly or not. More than half
    of its rows must be in the guard of the fault, and it must contain more than half of the wrong
    rows.
    """
    train = fault.dataset.train
    rows = train[train.fitted]
    first = diagnose(rows, answers(fault.program, rows), fault.metric).groups[0]
    covers = first.wrong > wrong(fault.program, rows).sum() / 2
    return covers and float(fault.guard(rows)[list(first.members)].mean()) > 1 / 2


def is_patched(fault: Fault) -> bool:
    """Return whether the refiner `patch` makes the program exact on train and held-out rows.

    The programs come from this project, so they run in this process instead of the sandbox.
    """
    train = fault.dataset.train
    effort = Effort(UNITS, np.inf)
    text, _ = patch_program(fault.program, train[train.fitted], answers, effort)
    return fault.is_repaired_by(text)


MEASURES = {"diagnosis": holds_cause, "patch": is_patched}


def main() -> None:
    """Measure each seed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults", description=__doc__)
    parser.add_argument("measure", choices=MEASURES)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2], metavar="SEED")
    chosen = parser.parse_args()
    for seed in chosen.seeds:
        print(f"seed {seed}\n{tally(faults(seed), MEASURES[chosen.measure])}", flush=True)


if __name__ == "__main__":
    main()
