"""What is to be reached: a return, in so many steps of an environment."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import cwm_cli
from cwm_cli.registry import environment

SHARE = 0.9
"""Where a goal has no number: the share of what the oracle gains over random actions."""

ORACLE_EPISODES = 20


class Goal(NamedTuple):
    """An environment, the mean return of 20 fresh episodes to reach, and in how many steps.

    Without a return it is `SHARE` of the oracle, which plans in the environment itself.
    `lowest` is what no episode may return less than; after `most` steps learning is given up.
    """

    name: str
    env: str
    args: dict[str, Any]
    returned: float | None
    steps: int
    most: int
    lowest: float | None = None


def _goal(
    env: str,
    returned: float | None,
    steps: int,
    *,
    most: int | None = None,
    name: str = "",
    lowest: float | None = None,
    **args: Any,
) -> Goal:
    """Name a goal after its environment, and give up after five times the steps to reach it in."""
    return Goal(
        name or env.partition(":")[2] or env,
        env,
        args,
        returned,
        steps,
        most or max(1000, 5 * steps),
        lowest,
    )


KNOWN = (
    _goal("CartPole-v1", 500, 120, most=3000),
    _goal("Pendulum-v1", -180, 100),
    _goal("Acrobot-v1", -90, 250),
    _goal("MountainCar-v0", -105, 200),
    _goal("CliffWalking-v1", -13, 70),
    _goal("FrozenLake-v1", 1, 50, name="FrozenLake 4x4, dry", is_slippery=False),
    _goal("FrozenLake-v1", 1, 90, name="FrozenLake 8x8, dry", is_slippery=False, map_name="8x8"),
    _goal("Taxi-v4", 7.7, 400),
    _goal("InvertedPendulum-v5", 990, 120, most=3000, lowest=900),
    _goal("InvertedDoublePendulum-v5", None, 1000),
    _goal("Reacher-v5", None, 1000),
)
"""Environments that everybody knows."""

OBJECTS = (
    _goal("MiniGrid-Empty-5x5-v0", 0.9, 60),
    _goal("MiniGrid-DoorKey-5x5-v0", 0.9, 300),
    _goal("MiniGrid-Unlock-v0", 0.9, 300),
    _goal("MiniGrid-Fetch-6x6-N2-v0", 0.9, 600),
    _goal("MiniGrid-UnlockPickup-v0", 0.9, 1000),
    _goal("Sokoban-v0", 9.2, 500),
    _goal("Sokoban-Teleport-v0", 9.2, 1000),
)
"""Rooms with objects: nine tenths of what the shortest ways return, which is 1 and 10.2."""

HELD_OUT = tuple(
    _goal(f"benchmarks.{package}:{name}-v0", None, 1500, most=1500)
    for package, names in {
        "unseen": "Culture Spike Ferry Satellite Cascade Coldroom Orchard Tram",
        "novel": "LightsOut VendingMachine TwoTanks BouncingBall",
    }.items()
    for name in names.split()
)
"""Systems that nobody looked at while the agent was made."""

SUITES = {"known": KNOWN, "objects": OBJECTS, "held-out": HELD_OUT}


def threshold(goal: Goal, folder: Path) -> float:
    """Return what is to be reached; what the oracle returns is measured once and kept."""
    if goal.returned is not None:
        return goal.returned
    file = folder / "oracles.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    known = {found.pop("name"): found for found in map(json.loads, lines)}
    if goal.name not in known:
        known[goal.name] = _oracle(goal, folder)
        with file.open("a") as out:
            out.write(json.dumps({"name": goal.name} | known[goal.name]) + "\n")
    oracle, random = known[goal.name]["oracle"], known[goal.name]["random"]
    return float(random + SHARE * (oracle - random))


def _oracle(goal: Goal, folder: Path) -> dict[str, float]:
    """Plan in the environment itself."""
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
    """Whether the environment can be made here."""
    code = f"from benchmarks.learning.goals import made; made({goal.env!r}, {goal.args!r})"
    return subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0


def made(env: str, args: dict[str, Any]) -> None:
    """Make an environment once."""
    environment(env).make(**args).close()
