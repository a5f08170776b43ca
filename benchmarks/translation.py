"""Measure the form and the duration of decisions of the default planners in the sandbox.

`python -m benchmarks.translation [PROGRAM.py=ENVIRONMENT ...] [--before DIR] [--rounds N]`
uses the programs of the tests, or others. With `--before` it also measures another checkout; the
sides alternate, in separate processes. The first decision includes the translation of the program.
Tests in `tests/translation/` check that forms predict the same as programs.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "tests" / "support" / "world_models"
ENVIRONMENTS = {
    "acrobot_arrays": "Acrobot-v1",
    "acrobot_lists": "Acrobot-v1",
    "cartpole_cramer": "CartPole-v1",
    "cartpole_float32": "CartPole-v1",
    "cartpole_helpers": "CartPole-v1",
    "cheetah_vectors": "HalfCheetah-v5",
    "cliff_branches": "CliffWalking-v1",
    "cliff_grid": "CliffWalking-v1",
    "inverted_pendulum_slices": "InvertedPendulum-v5",
    "mountain_car_clip": "MountainCar-v0",
    "mountain_car_continuous": "MountainCarContinuous-v0",
    "mountain_car_scalars": "MountainCar-v0",
    "pendulum_math": "Pendulum-v1",
    "pendulum_numpy": "Pendulum-v1",
    "taxi_map": "Taxi-v4",
    "taxi_walls": "Taxi-v4",
}
PLANNERS = {"discrete": ("mcts", "tabular"), "box": ("icem",)}
DECISIONS = 6
ROWS = 509


def main() -> None:
    """Measure this checkout, or both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("programs", nargs="*")
    parser.add_argument("--before", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    pairs = [each.split("=") for each in chosen.programs] or [
        [str(FOLDER / f"{name}.py"), env] for name, env in ENVIRONMENTS.items()
    ]
    if chosen.one:
        for path, env in pairs:
            for line in measure(path, env):
                print(json.dumps(line), flush=True)
        return
    sides = [ROOT, *([chosen.before] if chosen.before else [])]
    for path, env in pairs:
        rounds = [[_measure_side(side, path, env) for side in sides] for _ in range(chosen.rounds)]
        _report(Path(path), rounds)


def measure(path: str, env_id: str) -> list[dict[str, Any]]:
    """Plan in a program with each planner for its action space."""
    import gymnasium as gym

    from cwm_cli.planning import Moment
    from cwm_cli.sandbox import Limits, Sandbox

    text, env = Path(path).read_text(), gym.make(env_id)
    spaces, rows = _spaces(env), _rows(env)
    out = []
    for planner in PLANNERS[spaces[1].kind]:
        with (
            Sandbox(Limits(), workers=1) as box,
            _session(box, text, spaces, planner, rows) as session,
        ):
            with _session(box, text, spaces, planner, rows) as first, suppress(Exception):
                first.plan([Moment(0, 0, env.reset(seed=0)[0], 5)])  # starts the worker
            times = []
            for number in range(DECISIONS):
                observation = env.reset(seed=number)[0]
                started = time.perf_counter()
                try:
                    [plan] = session.plan([Moment(0, number, observation, 200)])
                except Exception as error:  # noqa: BLE001  # the planner cannot use the program
                    times = []
                    report = str(error)
                    break
                times.append(time.perf_counter() - started)
                failed = plan.failure.message if plan.failure else ""
                report = failed[:60] or "+".join(session.report.forms) + " " + session.report.note
        out.append({"planner": planner, "ms": [1e3 * each for each in times], "form": report})
    return out


def _measure_side(side: Path, path: str, env: str) -> list[dict[str, Any]]:
    """Measure a checkout in a new process."""
    folders = [str(side), str(side / "plugins"), str(side / "data")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(folders)}
    arguments = [sys.executable, str(Path(__file__).resolve()), "--one", f"{path}={env}"]
    found = subprocess.run(arguments, env=environment, cwd=side, capture_output=True, check=False)
    if found.returncode:
        print(found.stderr.decode()[-800:], file=sys.stderr)
    return [json.loads(line) for line in found.stdout.splitlines()]


def _report(path: Path, rounds: Sequence[Sequence[Sequence[dict[str, Any]]]]) -> None:
    """Print the medians of each checkout."""
    for place, one in enumerate(rounds[0][0]):
        texts = []
        for side in range(len(rounds[0])):
            lines = [each[side][place] for each in rounds if len(each[side]) > place]
            lines = [line for line in lines if line["ms"]]
            if not lines:
                texts.append("none")
                continue
            first = median(line["ms"][0] for line in lines)
            later = min(median(line["ms"][1:]) for line in lines)
            texts.append(f"{first:8.1f} {later:8.2f}  {lines[0]['form'][:60]:20}")
        print(
            f"{path.parent.parent.name[:12]:12} {path.stem:26} {one['planner']:8}",
            " | ".join(texts),
            flush=True,
        )


def _spaces(env: Any) -> Any:
    try:
        from cwm_cli.envs.spec import space_of
    except ImportError:
        from cwm_cli.environments import space_of  # type: ignore[import-not-found,no-redef]
    return space_of(env.observation_space), space_of(env.action_space)


def _rows(env: Any) -> dict[str, Any]:
    """Record observations and random actions."""
    spaces = _spaces(env)
    env.action_space.seed(0)
    observation, _ = env.reset(seed=0)
    pairs = []
    for _ in range(ROWS):
        pairs.append((observation, env.action_space.sample()))
        observation, _, terminated, truncated, _ = env.step(pairs[-1][1])
        if terminated or truncated:
            observation, _ = env.reset()
    observations, actions = zip(*pairs, strict=True)
    packed: dict[str, Any] = spaces[0].pack("observations", observations)
    return packed | spaces[1].pack("actions", actions)


def _session(box: Any, text: str, spaces: Any, planner: str, rows: Any) -> Any:
    if hasattr(box, "session"):
        return box.session(text, spaces, planners=[(planner, {})], rows=rows)
    from cwm_cli.worlds.messages import PlanningJob
    from cwm_cli.worlds.program import ProgramSession

    box.prepare(PlanningJob.handler)
    about = {"observation_space": spaces[0], "action_space": spaces[1], "columns": rows}
    return ProgramSession(box, PlanningJob(program=text, planners=[(planner, {})], **about))


if __name__ == "__main__":
    main()
