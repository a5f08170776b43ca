"""Handwritten transitions, transitions of real environments, and programs for them."""

import gymnasium
import numpy as np

from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.data.spaces import Space
from cwm_cli.envs.spec import space_of
from cwm_cli.evaluation import AccuracyMetric
from cwm_cli.problems.world_model import WorldModelProblem

COUNTER = Space("discrete", low=(0,), high=(99,))
POINT = Space("box", "float64", (2,), (-np.inf, -np.inf), (np.inf, np.inf))
MOVES = Space("discrete", low=(0,), high=(1,))


def dataset(rows, space=COUNTER):
    """Make transitions of (observation, next observation, reward, terminated[, truncated])."""
    transitions = [
        Transition(before, 0, after, float(reward), end, *rest)
        for before, after, reward, end, *rest in rows
    ]
    return Dataset.of(transitions, observation_space=space, action_space=MOVES)


def truth(data):
    """Return predictions that equal the rows."""
    return data.select("next_observations", "rewards", "terminations")


def predictions(data, **changes):
    """Return predictions that equal the rows except for some columns."""
    return truth(data) | {name: np.asarray(values) for name, values in changes.items()}


CARTPOLE = """
import math
import numpy as np

class Environment:
    def set_state(self, observation):
        self.state = np.array(observation)

    def step(self, action):
        x, v, angle, spin = self.state
        force = 10.0 if action == 1 else -10.0
        cos, sin = math.cos(angle), math.sin(angle)
        push = (force + 0.05 * spin**2 * sin) / 1.1
        twist = (GRAVITY * sin - cos * push) / (0.5 * (4.0 / 3.0 - 0.1 * cos**2 / 1.1))
        pull = push - 0.05 * twist * cos / 1.1
        moved = x + 0.02 * v
        self.state = np.array([moved, v + 0.02 * pull, angle + 0.02 * spin, spin + 0.02 * twist])
        return self.state, 1.0, bool(abs(moved) > 2.4 or abs(self.state[2]) > LIMIT)
"""


def cartpole(gravity=9.8, limit=12 * np.pi / 180, position="x + 0.02 * v"):
    """Write CartPole with other constants."""
    program = CARTPOLE.replace("GRAVITY", repr(gravity)).replace("LIMIT", repr(float(limit)))
    return program.replace("x + 0.02 * v", position)


FROZEN_LAKE = """
class Environment:
    def set_state(self, observation):
        self.cell = observation

    def step(self, action):
        row, column = divmod(self.cell, 4)
        if action == 0:
            column = max(column - 1, 0)
        elif action == 1:
            row = min(row + 1, 3)
        elif action == 2:
            column = (column + 1) % 4
        else:
            row = max(row - 1, 0)
        self.cell = 4 * row + column
        return self.cell, float(self.cell == 15), self.cell in (5, 7, 11, 12, 15)
"""

PENDULUM = """
import math
import numpy as np

class Environment:
    def set_state(self, observation):
        self.state = np.array(observation)

    def step(self, action):
        cos, sin, speed = self.state
        angle = math.atan2(sin, cos)
        torque = float(np.clip(action[0], -2, 2))
        cost = angle**2 + 0.1 * speed**2
        speed = speed + (15 * sin + 3 * torque) * 0.05
        angle += speed * 0.05
        self.state = np.array([math.cos(angle), math.sin(angle), speed])
        return self.state, -cost, False
"""


def record(name, *, episodes, limit=100, **arguments):
    """Record random episodes of a real environment, and its documentation."""
    env = gymnasium.make(name, max_episode_steps=limit, **arguments)
    env.action_space.seed(0)
    transitions = []
    for episode in range(episodes):
        observation, _ = env.reset(seed=episode)
        over = False
        while not over:
            action = env.action_space.sample()
            after, reward, terminated, truncated, _ = env.step(action)
            step = (observation, action, after, float(reward), terminated, truncated)
            transitions.append(Transition(*step, episode))
            observation, over = after, terminated or truncated
    spaces = (space_of(env.observation_space), space_of(env.action_space))
    data = Dataset.of(transitions, observation_space=spaces[0], action_space=spaces[1])
    return data, env.unwrapped.__doc__


def problem(recorded, sandbox, **options):
    """Return the problem of modelling some rows."""
    data, documentation = recorded
    return WorldModelProblem(documentation, data, sandbox, AccuracyMetric.of(data), **options)


def said(recorded, program, sandbox, **options):
    """Return the feedback on a program."""
    verdict = problem(recorded, sandbox, **options).judge(program)
    assert verdict.failure.kind == "mismatch"
    return verdict.failure.message
