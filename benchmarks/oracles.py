"""Play the benchmark by planning: true environments, or the programs that induction writes.

Each environment is planned with the defaults and with the published algorithm, at
the same number of model steps per decision where the actions are continuous, in
episodes that begin alike. Results are kept in a file, one line each: what is
there is not played again.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.machine import machine
from benchmarks.published import ENTROPY
from cwm_cli.envs.tasks import SUITES
from cwm_cli.text import share

DISCRETE = (*SUITES["cwmb"][:6], *SUITES["cwmb"][18:])
THOROUGH = ("Pendulum-v1", "Reacher-v5", "InvertedPendulum-v5", "HalfCheetah-v5")
"""Continuous environments with 2000 steps of the model per decision, not 500."""

FIRST_STEPS = 100
"""Steps of an episode in MuJoCo but for `THOROUGH`, and in HalfCheetah."""

MODELS = (*SUITES["cwmb"][:6], "Pendulum-v1", "FrozenLake-v1", "MountainCarContinuous-v0")


class Way(NamedTuple):
    """A way to plan: what it is called, and the options of `cwm plan` for it."""

    name: str
    options: Sequence[str]


def main() -> None:
    """Play what is missing and print a line for every environment and way to plan."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("envs", nargs="*", help="ids; all of the benchmark unless any is given")
    parser.add_argument("--models", action="store_true", help="plan in programs from induction")
    parser.add_argument("--file", type=Path, default=Path("runs/oracles.jsonl"))
    arguments = parser.parse_args()
    arguments.file.parent.mkdir(parents=True, exist_ok=True)
    for env in arguments.envs or (MODELS if arguments.models else SUITES["cwmb"]):
        for way in _ways(env):
            key = [env, way.name, "model" if arguments.models else "oracle"]
            found = _kept(arguments.file, key)
            if found is None:
                found = _played(env, way, model=arguments.models)
                with arguments.file.open("a") as file:
                    file.write(json.dumps({"key": key, "result": found}) + "\n")
            print(_line(env, way, found), flush=True)
    print(machine())


def _ways(env: str) -> Iterator[Way]:
    """Yield the defaults and the published algorithm."""
    if env in DISCRETE or env == "FrozenLake-v1":
        yield Way("default", ["--episodes", "10"])
        yield Way("published", ["--episodes", "10", "--planner", "mcts", "-o", "preset=paper"])
        return
    budget = 2000 if env in THOROUGH else 500
    samples = budget // ENTROPY.iterations
    short = ("v5" in env and env not in THOROUGH) or env == "HalfCheetah-v5"
    episodes = ["--episodes", "5" if short else "10"]
    length = ["--max-steps", str(FIRST_STEPS)] if short else []
    yield Way("default", [*episodes, *length, "-o", f"budget={budget}"])
    elites = max(2, samples * ENTROPY.elites // ENTROPY.samples)
    scaled = ["-o", f"samples={samples}", "-o", f"elites={elites}"]
    yield Way(
        f"published, {budget} steps",
        [*episodes, *length, "--planner", "cem", "-o", "preset=paper", *scaled],
    )


def _played(env: str, way: Way, *, model: bool) -> dict[str, Any]:
    """Run `cwm plan`; the program comes from a run of its own if that is wanted."""
    arguments = ["--env", env]
    if env == "FrozenLake-v1":
        arguments += ["--env-arg", "is_slippery=false"]
    if not model:
        return _cwm("plan", *arguments, "--real-env", *way.options)
    run = f"runs/induced-{env}"
    made = _cwm("synthesize", *arguments, "--run", run)
    result = _cwm("plan", run, "--oracle", *way.options)
    return result | {"solved": made["solved"], "test": made["test"]}


def _cwm(*arguments: str) -> dict[str, Any]:
    """Run a command and return what it prints as JSON."""
    command = [sys.executable, "-m", "cwm_cli", *arguments, "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(done.returncode)  # it has said why
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _kept(file: Path, key: list[str]) -> dict[str, Any] | None:
    """Return a result that was kept."""
    lines = file.read_text().splitlines() if file.exists() else []
    entries = [entry for entry in map(json.loads, lines) if entry["key"] == key]
    return entries[-1]["result"] if entries else None


def _line(env: str, way: Way, found: dict[str, Any]) -> str:
    """Describe a result."""
    mean = f"{found['mean']:.4g} ± {found['stderr']:.2g}"
    random = f"{found['random']['mean']:.4g} ± {found['random']['stderr']:.2g}"
    speed = f"{1000 / found['decisions_per_second']:.3g} ms"
    steps = f"{found['model_steps'] / found['decisions']:.0f}"
    parts = [f"{env:26} {way.name:22} {found['planner']:8} {mean:>18} random {random:>18}"]
    parts.append(f"{steps:>6} steps {speed:>9} per decision, {found['form']}")
    if "solved" in found:
        oracle = found["oracle"] or {"mean": float("nan"), "stderr": float("nan")}
        R = "none" if found["R"] is None else share(found["R"])
        parts.append(f"oracle {oracle['mean']:.4g} ± {oracle['stderr']:.2g}, R {R}")
        parts.append(f"exact on held-out rows: {share(found['test']['exact'])}")
    return "; ".join(parts)


if __name__ == "__main__":
    main()
