"""Common mistakes end in one line that names the cause and the remedy, without a traceback."""

import pytest

ENVIRONMENTS = '''
import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete


class Walk(gymnasium.Env):
    """Walk left or right for eight steps."""

    observation_space = Box(-10, 10, (2,), np.float64)
    action_space = Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state = np.zeros(2)
        return self.state.copy(), {}

    def step(self, action):
        self.state += [2 * int(action) - 1, 1]
        return self.state.copy(), float(self.state[0]), bool(self.state[1] >= 8), False, {}


class NanObservation(Walk):
    def step(self, action):
        return np.array([np.nan, 0.0]), *super().step(action)[1:]


class LateNan(Walk):
    def step(self, action):
        observation, *rest = super().step(action)
        return (observation if observation[1] < 4 else observation * np.nan), *rest


class NanReward(Walk):
    def step(self, action):
        observation, _, *rest = super().step(action)
        return observation, float("nan"), *rest


class NoReward(Walk):
    def step(self, action):
        observation, _, *rest = super().step(action)
        return observation, None, *rest


class WrongShape(Walk):
    def step(self, action):
        return np.zeros(3), *super().step(action)[1:]


class FourValues(Walk):
    def step(self, action):
        observation, reward, terminated, _, info = super().step(action)
        return observation, reward, terminated, info


class OnlyObservation(Walk):
    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)[0]


class NoSeed(Walk):
    def reset(self):
        return super().reset()


class NoActions(Walk):
    action_space = None


class NoObservations(Walk):
    observation_space = None


class StepRaises(Walk):
    def step(self, action):
        return {}["position"]


class LateError(Walk):
    def step(self, action):
        if self.state[1] >= 4:
            raise OSError("the motor does\\nnot answer")
        return super().step(action)


class ResetRaises(Walk):
    def reset(self, *, seed=None, options=None):
        raise PermissionError(13, "cannot open /dev/robot")


class InitRaises(Walk):
    def __init__(self):
        raise RuntimeError("there is no robot")


class NeedsSize(Walk):
    def __init__(self, size):
        self.size = size


class NoDisplay(Walk):
    metadata = {"render_modes": ["human"]}

    def __init__(self, render_mode="human"):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        import pygame

        pygame.display.init()
        pygame.display.set_mode((10, 10))
        return super().reset(seed=seed)


class Chase:
    """The interface of PettingZoo: several agents act in turn."""

    metadata = {"name": "chase_v1"}
    possible_agents = ["first", "second"]

    def observation_space(self, agent):
        return Discrete(2)

    action_space = observation_space

    def reset(self, seed=None, options=None):
        self.agents = list(self.possible_agents)

    def step(self, action): ...

    def last(self):
        return 0, 0.0, False, False, {}

    def agent_iter(self):
        return iter(self.agents)


class Plain:
    def reset(self):
        return 0


for cls in (Walk, FourValues, NanReward, StepRaises, OnlyObservation):
    gymnasium.register(f"own/{cls.__name__}-v0", cls, max_episode_steps=20)
'''

FINITE = "all numbers of an observation must be finite"
OLD_STEP = (
    "step returned 4 values; it must return (observation, reward, terminated, truncated, info)"
)
OLD_RESET = "reset returned only an observation; it must return (observation, info)"
FAULTY = {
    "NanObservation": f"step returned the observation [nan 0.]; {FINITE}",
    "LateNan": f"step returned the observation [nan nan]; {FINITE}",
    "NanReward": "step returned the reward nan; a reward must be one finite number",
    "NoReward": "step returned the reward None; a reward must be one finite number",
    "WrongShape": "Observation shape (3,) does not match observation_space (2,).",
    "FourValues": OLD_STEP,
    "OnlyObservation": OLD_RESET,
    "NoSeed": "reset does not accept seed and options; "
    "define reset(self, *, seed=None, options=None)",
    "NoActions": "has no action_space: set self.action_space in __init__",
    "NoObservations": "has no observation_space: set self.observation_space in __init__",
    "StepRaises": "step raised KeyError: 'position' (faulty.py, line 77)",
    "LateError": "step raised OSError: the motor does not answer (faulty.py, line 83)",
    "ResetRaises": "reset raised PermissionError: [Errno 13] cannot open /dev/robot (",
    "InitRaises": "cannot be made (RuntimeError: there is no robot)",
    "NeedsSize": "needs the argument 'size': add --env-arg size=VALUE",
    "Chase": "is a PettingZoo environment with several agents: wrap it in a gymnasium.Env that "
    "controls one agent",
    "Plain": "is not a Gymnasium environment: derive Plain from gymnasium.Env",
    "Wlak": "did you mean faulty:Walk?",
    "own/FourValues-v0": OLD_STEP,
    "own/NanReward-v0": "step returned the reward nan",
    "own/StepRaises-v0": "step raised KeyError: 'position'",
    "own/OnlyObservation-v0": OLD_RESET,
}


@pytest.fixture
def user(cwm):
    """A user with environments in a module of their own."""
    (cwm.packages / "faulty.py").write_text(ENVIRONMENTS)
    return cwm


def error_of(done):
    """Return the only error of a command that failed as users expect."""
    assert done.returncode == 1, done
    assert "Traceback" not in done.stderr
    (error,) = [line for line in done.stderr.splitlines() if line.startswith("Error: ")]
    assert done.stderr.splitlines()[-1] == error
    return error


@pytest.mark.parametrize(("name", "words"), FAULTY.items())
def test_collect_reports_a_faulty_environment(user, name, words):
    done = user.inside("collect", "--env", f"faulty:{name}", "--policy", "random")
    assert words in error_of(done)
    assert name in error_of(done)
    assert not list(user.folder.glob("*.npz"))
