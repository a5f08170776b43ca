"""PPO of Stable-Baselines3, unchanged, in an exported world model and in the true environment.

    python -m benchmarks.elsewhere [--seeds 3] [--steps 60000]

A program of CartPole is found from recorded transitions (`cwm synthesize`) and exported as a
package (`cwm runs export`). `PPO("MlpPolicy", env)` with its own settings trains in either, with
seeds that are drawn anew each time, and every policy is scored in the TRUE CartPole over 20
episodes. Beside that: steps per second of single and of vectorised environments with random
actions. Needs `pip install 'cwm-cli[rl]'`.
"""

import argparse
import secrets
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np

import cwm_cli as cwm
from benchmarks.machine import machine
from cwm_cli.export import export_of, publish

ENV = "CartPole-v1"
MODEL = "cartpole_v1_world_model:WorldModel/CartPole-v1"
EPISODES = 20


class Trained(NamedTuple):
    """What a policy is worth in the true environment, and how long it was trained."""

    mean: float
    worst: float
    seconds: float


def exported(folder: Path) -> str:
    """Find a program, export it and make it importable; return the id of its environment."""
    found = cwm.synthesize(ENV, run=folder / "run")
    publish(export_of(found.run), folder / "package")
    sys.path.insert(0, str(folder / "package"))
    return MODEL


def trained(name: str, *, steps: int, seed: int) -> Trained:
    """Train PPO in an environment, and score its policy in the true one."""
    from stable_baselines3 import PPO

    agent = PPO("MlpPolicy", gymnasium.make(name), seed=seed, device="cpu")
    began = time.perf_counter()
    agent.learn(steps)
    seconds = time.perf_counter() - began
    returns = scored(lambda seen: int(agent.predict(seen, deterministic=True)[0]), seed)
    return Trained(float(np.mean(returns)), min(returns), seconds)


def scored(act: Any, seed: int) -> list[float]:
    """Play episodes in the true environment, and return what each came to."""
    env, returns = gymnasium.make(ENV), []
    for number in range(EPISODES):
        seen, _ = env.reset(seed=seed + 1 + number)
        returned, over = 0.0, False
        while not over:
            seen, reward, terminated, truncated, _ = env.step(act(seen))
            returned, over = returned + float(reward), terminated or truncated
        returns.append(returned)
    return returns


def pace(name: str, mode: str | None, count: int = 8, steps: int = 3000) -> float:
    """Return how many steps a second environments take side by side, with random actions."""
    env = gymnasium.make_vec(name, num_envs=count, vectorization_mode=mode)
    env.reset(seed=0)
    actions = [env.action_space.sample() for _ in range(steps)]
    began = time.perf_counter()
    for action in actions:
        env.step(action)
    seconds = time.perf_counter() - began
    env.close()
    return count * steps / seconds


def main() -> None:
    """Print the tables."""
    import torch

    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=60_000)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = exported(Path(folder))
        print(f"| {asked.steps:,} steps of PPO in | seed | return in the true | worst | s |")
        print("|---|---:|---:|---:|---:|")
        for _ in range(asked.seeds):
            seed = secrets.randbelow(1 << 30)
            for title, name in (("the true CartPole", ENV), ("the exported world model", model)):
                one = trained(name, steps=asked.steps, seed=seed)
                cells = f"{one.mean:.1f} | {one.worst:.0f} | {one.seconds:.0f}"
                print(f"| {title} | {seed} | {cells} |", flush=True)
        rng = np.random.default_rng(seed)
        returns = scored(lambda _: int(rng.integers(2)), seed)
        print(
            f"| nothing: random actions | {seed} | {np.mean(returns):.1f} | {min(returns):.0f} | |"
        )
        print("\n| 8 side by side | steps a second |\n|---|---:|")
        for title, name, mode in (
            ("the true CartPole, SyncVectorEnv", ENV, "sync"),
            ("the world model, SyncVectorEnv", model, "sync"),
            ("the world model, AsyncVectorEnv", model, "async"),
            ("the world model, its own WorldModelVectorEnv", model, None),
        ):
            print(f"| {title} | {pace(name, mode):,.0f} |", flush=True)
    print(f"\n{machine()}")


if __name__ == "__main__":
    main()
