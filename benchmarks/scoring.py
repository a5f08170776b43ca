"""Measure the cost of the sandbox: 1000 CartPole rows in it, in a plain loop, and audited.

The sandbox is warm, with all protections, and the rows are in two processes. The loop calls
`set_state` and `step` with prepared inputs and compares nothing. An audit predicts the same rows
in enough processes to separate rows of the same episode.
"""

from collections.abc import Callable, Sequence
from functools import partial
from statistics import median

import gymnasium
import numpy as np

from benchmarks.claims import Claim, Measured
from benchmarks.measuring import calls, in_turn
from benchmarks.script import main
from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.envs.spec import space_of
from cwm_cli.sandbox import Job, Limits, Reply, Sandbox

ROWS = 1000
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


def measure(quick: bool) -> Measured:
    """Run a plain loop and score in the sandbox alternately."""
    dataset = cartpole(ROWS)
    plain = in_process(dataset)
    with Sandbox() as sandbox:
        rounds = 10 if quick else 200
        times = in_turn(lambda _: plain(), lambda _: score(sandbox, dataset), rounds, warm_up=5)
        counts = {"calls": calls(lambda: sandbox.predict(PROGRAM, dataset))}
    more = [1e3 * (ours - theirs) for theirs, ours in zip(*times, strict=True)]
    figures = times.milliseconds("loop", "sandbox") | {"more ms": median(more)}
    return Measured(times.costs, figures, counts)


def measure_audit(quick: bool) -> Measured:
    """Predict and audit the predictions alternately."""
    dataset = cartpole(ROWS)
    with CountingSandbox() as sandbox:
        answers = sandbox.predict(PROGRAM, dataset).columns
        audit = partial(sandbox.audit, PROGRAM, dataset, answers)
        rounds = 10 if quick else 100
        times = in_turn(
            lambda _: sandbox.predict(PROGRAM, dataset), lambda _: audit(), rounds, warm_up=5
        )
        sandbox.processes = 0
        if failure := audit():
            raise SystemExit(f"the audit of a correct program fails: {failure}")
        counts = {"processes": sandbox.processes, "calls": calls(audit)}
    return Measured(times.costs, times.milliseconds("prediction", "audit"), counts)


class CountingSandbox(Sandbox):
    """A sandbox that counts the processes of programs that predict rows."""

    processes = 0

    def run_apart(
        self, sides: Sequence[Sequence[Job]], limits: Sequence[Limits]
    ) -> list[list[Reply]]:
        """Count the jobs and run them."""
        self.processes += sum(map(len, sides))
        return super().run_apart(sides, limits)


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
    """Predict in the sandbox and compare the rows; exit if any row is wrong."""
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
    """Return a loop over `set_state` and `step` with prepared inputs."""
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


CLAIMS = (
    Claim(
        "scoring",
        f"{ROWS} CartPole rows in the sandbox against a plain loop over them",
        measure,
        goal=2.5,
        is_cost=True,
    ),
    Claim(
        "scoring audit",
        f"an audit of {ROWS} CartPole rows against predicting them",
        measure_audit,
        goal=8,
        is_cost=True,
    ),
)

if __name__ == "__main__":
    main(CLAIMS)
