"""Fit the constants of correct programs to shifted environments.

The programs of `recalled` describe the standard environments. In a shifted environment, each
constant differs by 5 to 25 %, and the integrator and the frame skip may differ. The benchmark
collects the default data of each shifted environment, fits the constants to the fitted rows of the
train episodes, and scores the held-out episodes. Results are saved in a file and not measured
again.

    python -m benchmarks.calibration classic
    python -m benchmarks.calibration mujoco Hopper-v5 3
"""

import argparse
import os
import time
from pathlib import Path
from typing import Any, NamedTuple

import cwm_cli
from benchmarks.machine import machine
from benchmarks.result_file import ResultFile

PROGRAMS = Path(__file__).with_name("recalled")

SEEDS = (1, 2, 3, 4, 5)

MAX_SECONDS = 180
"""Time limit of a fit: the goal for MuJoCo."""


class Case(NamedTuple):
    """An environment, its program, the tools that it needs, and the accuracy to reach."""

    env: str
    program: Path
    tools: tuple[str, ...] = ()
    goal: float = 1.0


MUJOCO = {
    "InvertedPendulum-v5": "inverted_pendulum",
    "InvertedDoublePendulum-v5": "inverted_double_pendulum",
    "Reacher-v5": "reacher",
    "Swimmer-v5": "swimmer",
    "Hopper-v5": "hopper",
    "HalfCheetah-v5": "half_cheetah",
}

CLASSIC = {
    "CartPole-v1": "cart_pole",
    "MountainCar-v0": "mountain_car",
    "Acrobot-v1": "acrobot",
    "Pendulum-v1": "pendulum",
}

CASES = {
    "classic": [Case(env, PROGRAMS / f"{name}.py") for env, name in CLASSIC.items()],
    "mujoco": [
        Case(env, PROGRAMS / f"{name}.py", ("mujoco",), 0.98) for env, name in MUJOCO.items()
    ],
}


def main() -> None:
    """Fit the missing cases, and print a line for each environment and seed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else None)
    parser.add_argument("kind", choices=CASES)
    parser.add_argument("env", nargs="?", help="an environment; default: all of the kind")
    parser.add_argument("seed", nargs="?", type=int, help="a shift; default: 1 to 5")
    parser.add_argument("--seconds", type=float, default=MAX_SECONDS, help="time limit of a fit")
    parser.add_argument("--file", type=Path, default=Path("runs/calibration.jsonl"))
    arguments = parser.parse_args()
    results, folder = ResultFile(arguments.file), arguments.file.with_suffix("")
    for seed in SEEDS if arguments.seed is None else [arguments.seed]:
        for case in CASES[arguments.kind]:
            if arguments.env not in (None, case.env):
                continue
            found = results.measure_once(
                [case.env, seed],
                lambda case=case, seed=seed: {
                    "result": measure(case, seed, folder, arguments.seconds)
                },
            )["result"]
            print(_line(case, seed, found), flush=True)
    print(machine())


def measure(case: Case, seed: int, folder: Path, max_seconds: float) -> dict[str, Any]:
    """Collect the data of a shifted environment and fit a program to them."""
    folder.mkdir(parents=True, exist_ok=True)
    data = folder / f"{case.env}-shift{seed}.npz"
    shift = {"shift": seed}
    cwm_cli.collect(case.env, env_args=shift, out=data)
    began, used = time.perf_counter(), _processor_seconds()
    result = cwm_cli.calibrate(
        case.program,
        env=case.env,
        env_args=shift,
        dataset=data,
        tools=case.tools,
        options={"calibrate_seconds": max_seconds},
        output=folder / f"{case.env}-shift{seed}.py",
    )
    seconds, cpu = time.perf_counter() - began, _processor_seconds() - used
    fit = result.calibration
    assert result.before.test is not None
    assert result.scores.test is not None
    return {
        "before": result.before.test.accuracy,
        "held_out": result.scores.test.accuracy,
        "exact": result.scores.test.exact,
        "seconds": round(seconds, 1),
        "cpu_seconds": round(cpu, 1),
        "steps": fit.steps if fit else 0,
        "stopped": fit.stopped if fit else "",
        "findings": fit.findings if fit else "",
    }


def _processor_seconds() -> float:
    """Return the processor time of this process and of its finished children."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _line(case: Case, seed: int, found: dict[str, Any]) -> str:
    missed = "" if found["held_out"] >= case.goal else f"  below {case.goal:g}"
    stopped = f", stopped after {found['stopped']}" if found["stopped"] else ""
    return (
        f"{case.env:<27} shift {seed}: {found['before']:.3f} -> {found['held_out']:.4f} held-out, "
        f"{found['seconds']:.0f} s ({found['cpu_seconds']:.0f} CPU s, {found['steps']:,} steps"
        f"{stopped}){missed}"
    )


if __name__ == "__main__":
    main()
