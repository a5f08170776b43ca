"""Plan in the true environments of the benchmark, or in programs that induction writes.

Each environment is planned with the defaults and with the published algorithm, in episodes with the
same initial states. If actions are continuous, both have the same number of model steps per
decision. Results are saved in a file and not measured again.
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
from benchmarks.result_file import ResultFile
from cwm_cli.envs.tasks import SUITES
from cwm_cli.text import share

DISCRETE = (*SUITES["cwmb"][:6], *SUITES["cwmb"][18:])
THOROUGH = ("Pendulum-v1", "Reacher-v5", "InvertedPendulum-v5", "HalfCheetah-v5")
"""Continuous environments with 2000 instead of 500 model steps per decision."""

SHORT_EPISODE_STEPS = 100
"""Steps of an episode in HalfCheetah, and in MuJoCo environments that are not in `THOROUGH`."""

MODELS = (*SUITES["cwmb"][:6], "Pendulum-v1", "FrozenLake-v1", "MountainCarContinuous-v0")


class Variant(NamedTuple):
    """A variant of planning: its name, and its options of `cwm plan`."""

    name: str
    options: Sequence[str]


def main() -> None:
    """Play the missing episodes, and print a line for each environment and variant."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("envs", nargs="*", help="ids; default: all of the benchmark")
    parser.add_argument("--models", action="store_true", help="plan in programs from induction")
    parser.add_argument("--file", type=Path, default=Path("runs/oracles.jsonl"))
    arguments = parser.parse_args()
    results = ResultFile(arguments.file)
    for env in arguments.envs or (MODELS if arguments.models else SUITES["cwmb"]):
        for variant in _variants(env):
            key = [env, variant.name, "model" if arguments.models else "oracle"]
            found = results.measure_once(
                key,
                lambda env=env, variant=variant: {
                    "result": _play(env, variant, model=arguments.models)
                },
            )["result"]
            print(_line(env, variant, found), flush=True)
    print(machine())


def _variants(env: str) -> Iterator[Variant]:
    """Yield the defaults and the published algorithm."""
    if env in DISCRETE or env == "FrozenLake-v1":
        yield Variant("default", ["--episodes", "10"])
        published = ["--episodes", "10", "--planner", "mcts", "-o", "preset=paper"]
        yield Variant("published", published)
        return
    budget = 2000 if env in THOROUGH else 500
    samples = budget // ENTROPY.iterations
    short = ("v5" in env and env not in THOROUGH) or env == "HalfCheetah-v5"
    episodes = ["--episodes", "5" if short else "10"]
    length = ["--max-steps", str(SHORT_EPISODE_STEPS)] if short else []
    yield Variant("default", [*episodes, *length, "-o", f"budget={budget}"])
    elites = max(2, samples * ENTROPY.elites // ENTROPY.samples)
    scaled = ["-o", f"samples={samples}", "-o", f"elites={elites}"]
    yield Variant(
        f"published, {budget} steps",
        [*episodes, *length, "--planner", "cem", "-o", "preset=paper", *scaled],
    )


def _play(env: str, variant: Variant, *, model: bool) -> dict[str, Any]:
    """Run `cwm plan` in the true environment, or in a program of a new run."""
    arguments = ["--env", env]
    if env == "FrozenLake-v1":
        arguments += ["--env-arg", "is_slippery=false"]
    if not model:
        return _cwm("plan", *arguments, "--real-env", *variant.options)
    run = f"runs/induced-{env}"
    made = _cwm("synthesize", *arguments, "--run", run)
    result = _cwm("plan", run, "--oracle", *variant.options)
    return result | {"solved": made["solved"], "test": made["test"]}


def _cwm(*arguments: str) -> dict[str, Any]:
    """Run a command and return its JSON output."""
    command = [sys.executable, "-m", "cwm_cli", *arguments, "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(done.returncode)  # the command has printed the error
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _line(env: str, variant: Variant, found: dict[str, Any]) -> str:
    mean = f"{found['mean']:.4g} ± {found['stderr']:.2g}"
    random = f"{found['random']['mean']:.4g} ± {found['random']['stderr']:.2g}"
    speed = f"{1000 / found['decisions_per_second']:.3g} ms"
    steps = f"{found['model_steps'] / found['decisions']:.0f}"
    parts = [f"{env:26} {variant.name:22} {found['planner']:8} {mean:>18} random {random:>18}"]
    parts.append(f"{steps:>6} steps {speed:>9} per decision, {found['form']}")
    if "solved" in found:
        oracle = found["oracle"] or {"mean": float("nan"), "stderr": float("nan")}
        R = "none" if found["R"] is None else share(found["R"])
        parts.append(f"oracle {oracle['mean']:.4g} ± {oracle['stderr']:.2g}, R {R}")
        parts.append(f"exact on held-out rows: {share(found['test']['exact'])}")
    return "; ".join(parts)


if __name__ == "__main__":
    main()
