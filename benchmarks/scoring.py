"""Measure what the sandbox costs: scoring 1000 CartPole rows in it and in a plain loop."""

import argparse
import os
import platform
import sys
import time
from collections.abc import Callable
from statistics import median

import gymnasium
import numpy as np

from cwm_cli.environments import space_of
from cwm_cli.sandbox import Sandbox
from cwm_cli.transitions import Dataset, Transition

ROWS = 1000
WARM_UP_ROUNDS = 5
PROGRAM = '''
import math

import numpy as np


class Environment:
    """The published dynamics of CartPole-v1."""

    def set_state(self, observation):
        self.state = tuple(observation)

    def step(self, action):
        x, v, angle, spin = self.state
        force = 10.0 if action == 1 else -10.0
        cos, sin = math.cos(angle), math.sin(angle)
        push = (force + 0.05 * spin * spin * sin) / 1.1
        turn = (9.8 * sin - cos * push) / (0.5 * (4.0 / 3.0 - 0.1 * cos * cos / 1.1))
        pull = push - 0.05 * turn * cos / 1.1
        state = (x + 0.02 * v, v + 0.02 * pull, angle + 0.02 * spin, spin + 0.02 * turn)
        terminated = bool(abs(state[0]) > 2.4 or abs(state[2]) > 12 * 2 * math.pi / 360)
        self.state = state
        return np.array(state), 1.0, terminated
'''


def main() -> None:
    """Measure both, one after the other in every round, and print one line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    rounds = parser.parse_args().rounds
    dataset = cartpole(ROWS)
    with Sandbox() as sandbox:
        pairs = [
            (seconds(lambda: score(sandbox, dataset)), seconds(in_process(dataset)))
            for _ in range(WARM_UP_ROUNDS + rounds)
        ][WARM_UP_ROUNDS:]
    sandboxed, plain = (median(column) * 1000 for column in zip(*pairs, strict=True))
    more = median(1000 * (one - other) for one, other in pairs)
    print(
        f"{ROWS} CartPole rows: sandbox {sandboxed:.1f} ms, plain loop {plain:.1f} ms,"
        f" difference {more:.1f} ms, ratio {sandboxed / plain:.1f} (medians of {rounds} rounds;"
        f" {machine()})"
    )


def cartpole(rows: int) -> Dataset:
    """Record transitions of a random policy."""
    env = gymnasium.make("CartPole-v1")
    env.action_space.seed(0)
    observation, _ = env.reset(seed=0)
    transitions: list[Transition] = []
    while len(transitions) < rows:
        action = env.action_space.sample()
        after, reward, terminated, truncated, _ = env.step(action)
        transitions.append(
            Transition(observation, action, after, float(reward), terminated, truncated)
        )
        observation = env.reset()[0] if terminated or truncated else after
    spaces = (space_of(env.observation_space), space_of(env.action_space))
    return Dataset.of(transitions, observation_space=spaces[0], action_space=spaces[1])


def score(sandbox: Sandbox, dataset: Dataset) -> None:
    """Predict in the sandbox and compare here; every row has to be right."""
    predicted, failure = sandbox.predict(PROGRAM, dataset)
    columns = dataset.columns
    same = np.isclose(
        predicted["next_observations"], columns["next_observations"], rtol=1e-4, atol=1e-5
    ).all(axis=1)
    same &= np.isclose(predicted["rewards"], columns["rewards"])
    same &= predicted["terminations"] == columns["terminations"]
    if failure or not same.all():
        raise SystemExit(f"{ROWS - same.sum()} rows are wrong; {failure}")


def in_process(dataset: Dataset) -> Callable[[], None]:
    """Return a loop over set_state and step, with the inputs at hand and nothing compared."""
    namespace: dict[str, type] = {}
    exec(PROGRAM, namespace)
    environment = namespace["Environment"]()
    observations = list(dataset.columns["observations"].astype(np.float64))
    actions = dataset.columns["actions"].tolist()

    def loop() -> None:
        answers = []
        for observation, action in zip(observations, actions, strict=True):
            environment.set_state(observation)
            answers.append(environment.step(action))

    return loop


def seconds(function: Callable[[], None]) -> float:
    """Return how long a call takes."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def machine() -> str:
    """Name what the figures depend on."""
    versions = f"Python {platform.python_version()}, numpy {np.__version__}"
    load = f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    return f"{versions}, {sys.platform} {platform.machine()}, {load}"


if __name__ == "__main__":
    main()
