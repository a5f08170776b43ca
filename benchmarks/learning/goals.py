"""Goals of the benchmark: an environment, a return to reach, and a number of steps."""

import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import cwm_cli
from benchmarks.result_file import ResultFile
from cwm_cli.registry import environment

ORACLE_FRACTION = 0.9
"""Default return to reach, as a fraction of the gain of the oracle over random actions."""

ORACLE_EPISODES = 20


class Goal(NamedTuple):
    """An environment and the performance to reach in it.

    Attributes:
        returned: Mean return of 20 fresh episodes. None: `ORACLE_FRACTION` of the gain of the
            oracle, which plans in the environment itself.
        steps: Maximum number of environment steps up to the return, as a goal.
        max_steps: Number of steps after which learning stops.
        lowest: Minimum return of each episode.
    """

    name: str
    env: str
    args: dict[str, Any]
    returned: float | None
    steps: int
    max_steps: int
    lowest: float | None = None


def _goal(
    env: str,
    returned: float | None,
    steps: int,
    *,
    max_steps: int | None = None,
    name: str = "",
    lowest: float | None = None,
    **args: Any,
) -> Goal:
    """Return a goal; learning stops after five times the steps by default."""
    return Goal(
        name or env.partition(":")[2] or env,
        env,
        args,
        returned,
        steps,
        max_steps or max(1000, 5 * steps),
        lowest,
    )


KNOWN = (
    _goal("CartPole-v1", 500, 120, max_steps=3000),
    _goal("Pendulum-v1", -180, 100),
    _goal("Acrobot-v1", -90, 250),
    _goal("MountainCar-v0", -105, 200),
    _goal("CliffWalking-v1", -13, 70),
    _goal("FrozenLake-v1", 1, 50, name="FrozenLake 4x4, dry", is_slippery=False),
    _goal("FrozenLake-v1", 1, 90, name="FrozenLake 8x8, dry", is_slippery=False, map_name="8x8"),
    _goal("Taxi-v4", 7.7, 400),
    _goal("InvertedPendulum-v5", 990, 120, max_steps=3000, lowest=900),
    _goal("InvertedDoublePendulum-v5", 9100, 1000),
    _goal("Reacher-v5", None, 1000),
)
"""Well-known environments. InvertedDoublePendulum has the threshold that Gymnasium registers: its
oracle would plan for hours."""

OBJECTS = (
    _goal("MiniGrid-Empty-5x5-v0", 0.9, 60),
    _goal("MiniGrid-DoorKey-5x5-v0", 0.9, 300),
    _goal("MiniGrid-Unlock-v0", 0.9, 300),
    _goal("MiniGrid-Fetch-6x6-N2-v0", 0.9, 600),
    _goal("MiniGrid-UnlockPickup-v0", 0.9, 1000),
    _goal("Sokoban-v0", 9.2, 500),
    _goal("Sokoban-Teleport-v0", 9.2, 1000),
)
"""Rooms with objects: the goal is 90 % of the return of the shortest solution (1 and 10.2)."""

HELD_OUT = tuple(
    _goal(f"benchmarks.{package}:{name}-v0", None, 1500, max_steps=1500)
    for package, names in {
        "unseen": "Culture Spike Ferry Satellite Cascade Coldroom Orchard Tram",
        "novel": "LightsOut VendingMachine TwoTanks BouncingBall",
    }.items()
    for name in names.split()
)
"""Systems that were not used during the development of the agent."""

SUITES = {"known": KNOWN, "objects": OBJECTS, "held-out": HELD_OUT}


def threshold(goal: Goal, folder: Path) -> float:
    """Return the return to reach; the oracle is measured once, and its result is stored."""
    if goal.returned is not None:
        return goal.returned
    results = ResultFile(folder / "oracles.jsonl", key="name")
    known = results.measure_once(goal.name, lambda: _oracle(goal, folder))
    return float(known["random"] + ORACLE_FRACTION * (known["oracle"] - known["random"]))


def _oracle(goal: Goal, folder: Path) -> dict[str, float]:
    """Return the mean returns of planning in the environment itself, and of random actions."""
    played = cwm_cli.plan(
        env=goal.env,
        env_args=goal.args,
        real_env=True,
        episodes=ORACLE_EPISODES,
        seed=1_000_003,
        folder=folder / "oracles",
    )
    return {"oracle": played.mean, "random": played.random.mean}


def exists(goal: Goal) -> bool:
    """Return whether the environment can be made on this machine."""
    code = (
        f"from benchmarks.learning.goals import make_once; make_once({goal.env!r}, {goal.args!r})"
    )
    return subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0


def make_once(env: str, args: dict[str, Any]) -> None:
    """Make and close an environment."""
    environment(env).make(**args).close()
