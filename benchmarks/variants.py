"""Known environments with other constants or another map, to test learning from data.

Importing the module registers them, and `--env benchmarks.variants:HeavyCartPole-v0` imports it.
"""

from importlib.resources import files
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.classic_control.acrobot import AcrobotEnv
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from gymnasium.envs.classic_control.continuous_mountain_car import Continuous_MountainCarEnv
from gymnasium.envs.classic_control.mountain_car import MountainCarEnv
from gymnasium.envs.toy_text.cliffwalking import CliffWalkingEnv

from cwm_cli.private_parts import private_part


class HeavyCartPole(CartPoleEnv):
    """Another planet, another pole, a stronger push."""

    def __init__(self, **options: Any) -> None:
        """Change the constants."""
        super().__init__(**options)
        self.gravity, self.masscart, self.masspole, self.length = 14.3, 1.7, 0.23, 0.8
        self.total_mass = self.masspole + self.masscart
        self.polemass_length = self.masspole * self.length
        self.force_mag, self.tau = 13.0, 0.015
        self.theta_threshold_radians = 0.33


class SteepMountainCar(MountainCarEnv):
    """A stronger engine on a steeper hill."""

    def __init__(self, **options: Any) -> None:
        """Change the constants."""
        super().__init__(**options)
        self.force, self.gravity = 0.0017, 0.0031
        self.goal_position = 0.45


class SteepMountainCarContinuous(Continuous_MountainCarEnv):
    """A stronger engine, and another goal."""

    def __init__(self, **options: Any) -> None:
        """Change the constants."""
        super().__init__(**options)
        self.power, self.goal_position = 0.0021, 0.4


class LongAcrobot(AcrobotEnv):
    """Other links."""

    LINK_LENGTH_1, LINK_LENGTH_2 = 1.2, 0.8
    LINK_MASS_1, LINK_MASS_2 = 1.4, 0.7
    LINK_COM_POS_1, LINK_COM_POS_2 = 0.55, 0.45


class OtherCliff(CliffWalkingEnv):
    """The cliff between other columns, with another price."""

    def __init__(self, **options: Any) -> None:
        """Move the cliff, and recompute the transitions."""
        super().__init__(**options)
        on_cliff = private_part(self, "_cliff")
        outcomes = private_part(self, "_calculate_transition_prob")
        on_cliff[:] = False
        on_cliff[3, 2:-3] = on_cliff[1, 5:8] = True
        for state in range(self.nS):
            position = np.array(np.unravel_index(state, self.shape))
            for action in range(4):
                self.P[state][action] = outcomes(position, action)


def model_file(name: str, *changes: tuple[str, str]) -> str:
    """Write a model of MuJoCo with some replaced text; return the path of the file."""
    text = (Path(str(files("gymnasium"))) / "envs/mujoco/assets" / name).read_text()
    for old, new in changes:
        if old not in text:
            raise ValueError(f"{name} does not contain {old!r}")
        text = text.replace(old, new)
    with NamedTemporaryFile("w", prefix="variant", suffix=".xml", delete=False) as file:
        file.write(text)
    return file.name


def other_model(entry: str, name: str, *changes: tuple[str, str]) -> Any:
    """Return a function that makes an environment of MuJoCo with another model."""

    def make(**options: Any) -> gymnasium.Env[Any, Any]:
        spec = gymnasium.spec(entry)
        return gymnasium.make(spec, xml_file=model_file(name, *changes), **options).unwrapped

    return make


LONG_POLE = ("0 0 0.6", "0 0 0.9")
VARIANTS: dict[str, tuple[Any, int]] = {
    "HeavyCartPole-v0": (HeavyCartPole, 500),
    "SteepMountainCar-v0": (SteepMountainCar, 200),
    "SteepMountainCarContinuous-v0": (SteepMountainCarContinuous, 999),
    "LongAcrobot-v0": (LongAcrobot, 500),
    "OtherCliff-v0": (OtherCliff, 200),
    "LongInvertedPendulum-v0": (
        other_model(
            "InvertedPendulum-v5",
            "inverted_pendulum.xml",
            ('gear="100"', 'gear="70"'),
            ("0.001 0 0.6", "0.001 0 0.9"),
        ),
        1000,
    ),
    "LongInvertedDoublePendulum-v0": (
        other_model(
            "InvertedDoublePendulum-v5",
            "inverted_double_pendulum.xml",
            ('gear="500"', 'gear="350"'),
            ('gravity="1e-5 0 -9.81"', 'gravity="1e-5 0 -7"'),
        ),
        1000,
    ),
    "OtherReacher-v0": (
        other_model(
            "Reacher-v5",
            "reacher.xml",
            ('gear="200.0"', 'gear="150.0"'),
            ('damping="1"', 'damping="1.5"'),
        ),
        50,
    ),
}
for _id, (_maker, _steps) in VARIANTS.items():
    gymnasium.register(_id, entry_point=_maker, max_episode_steps=_steps)
