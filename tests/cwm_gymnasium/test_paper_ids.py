"""The environment ids of the paper: lookup, descriptions and a step."""

import gymnasium as gym
import numpy as np
import pytest

from cwm_cli.envs.spec import space_of
from cwm_gymnasium import cwm_environments
from cwm_gymnasium.describing import changes

PAPER = [
    "Blackjack-v1",
    "CliffWalking-v0",
    "Taxi-v3",
    "CartPole-v1",
    "MountainCar-v0",
    "Acrobot-v1",
    "Pendulum-v1",
    "Reacher-v4",
    "Pusher-v4",
    "InvertedPendulum-v4",
    "InvertedDoublePendulum-v4",
    "HalfCheetah-v4",
    "Hopper-v4",
    "Swimmer-v4",
    "Walker2d-v4",
    "Ant-v4",
    "Humanoid-v4",
    "HumanoidStandup-v4",
]
SUCCESSORS = {"CliffWalking-v0", "Taxi-v3", "Pusher-v4"}
HISTORY = """A house.

## Version History
* v3:
    - Fixed bug: `doors` opened (related [GitHub issue](https://example.org/1)).
    - Renamed `info["key"]`.
    - Added `frame_skip` argument.
* v2: Windows are counted twice.
* v1: First version.
"""


def make_and_describe(name):
    spec = cwm_environments()[name]()
    env = spec.make()
    return env, spec.describe(env)


@pytest.mark.parametrize("name", PAPER)
def test_paper_id_can_be_described_and_played(name):
    env, text = make_and_describe(name)
    assert text.count("## Action Space") == 1
    assert "## Observation Space" in text
    assert "Version History" not in text
    observation, _ = env.reset(seed=0)
    env.action_space.seed(0)
    following, reward, *_ = env.step(env.action_space.sample())
    space = space_of(env.observation_space)
    space.pack("observations", [observation, following])
    assert np.isfinite(float(reward))


@pytest.mark.parametrize("name", PAPER)
def test_replaced_version_has_a_note(name):
    spec = cwm_environments()[name]()
    assert (spec.note != "") == (spec.id != name) == (name in SUCCESSORS)


@pytest.mark.parametrize(
    "name", [name for name in PAPER if name.endswith("-v4") and name not in SUCCESSORS]
)
def test_documentation_of_a_newer_version_lists_differences(name):
    env, text = make_and_describe(name)
    newer = name.replace("-v4", "-v5")
    assert text.startswith(f"The environment {name} (")
    assert f"It has no documentation of its own. This is the documentation of {newer}" in text
    assert text.index("## Rewards") < text.index("## Differences\n") < text.index("## Spaces\n")
    assert f"shape {env.observation_space.shape}" in text[text.index("## Spaces") :]
    assert "info[" not in differences(text)
    assert "github" not in differences(text).lower()


def differences(text):
    return text[text.index("## Differences\n") : text.index("## Spaces\n")]


@pytest.mark.parametrize(
    ("name", "fact"),
    [
        ("Reacher-v4", "`reward_distance` was based on the state before the physics step"),
        ("Reacher-v4", 'Removed `"z - position_fingertip"` from the observation space'),
        ("InvertedPendulum-v4", "`healthy_reward` was given on every step"),
        ("InvertedDoublePendulum-v4", 'Excluded the `qfrc_constraint` ("constraint force")'),
        ("HalfCheetah-v4", "No documented change from HalfCheetah-v4"),
        ("Walker2d-v4", "different friction values for the two feet"),
        ("Ant-v4", "`use_contact_forces` which defaulted to `False`"),
        ("Humanoid-v4", "Restored `contact_cost`"),
        ("HumanoidStandup-v4", "Excluded the `cinert` & `cvel` & `cfrc_ext` of `worldbody`"),
    ],
)
def test_differences_contain_changes_of_the_next_version(name, fact):
    assert fact in differences(make_and_describe(name)[1])


def test_changes_contain_only_later_changes_of_the_dynamics():
    assert changes(HISTORY, 2) == ["Fixed bug: `doors` opened."]
    assert changes(HISTORY, 1) == ["Fixed bug: `doors` opened.", "Windows are counted twice."]
    assert changes(HISTORY, 3) == changes("A house.", 0) == []


def test_description_without_any_documentation_has_only_spaces(monkeypatch):
    class Silent(gym.Env):
        observation_space = action_space = gym.spaces.Discrete(2)

        def step(self, action):
            return 0, 0.0, False, False, {}

    makers = {
        "CartPole-v7": Silent,
        "CartPole-v8": Silent,
        "CartPole-v9": lambda: Silent(),
        "CartPole-v10": "nobody:House",
    }
    for name, maker in makers.items():
        spec = gym.envs.registration.EnvSpec(name, entry_point=maker)
        monkeypatch.setitem(gym.registry, name, spec)
    text = make_and_describe("CartPole-v7")[1]
    assert text.startswith("The environment CartPole-v7 (Silent).\n\n## Spaces")
