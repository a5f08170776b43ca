"""Gymnasium's environments as `cwm` sees them: their names, descriptions and refusals."""

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import gymnasium as gym
import pytest

from cwm_cli.envs.spec import EnvironmentSpec, space_of
from cwm_cli.errors import CwmError, UnknownNameError
from cwm_gymnasium import cwm_environments

LISTED = sorted(cwm_environments())
DOCUMENTED = [
    "Acrobot-v1",
    "Ant-v5",
    "Blackjack-v1",
    "CartPole-v1",
    "CliffWalking-v1",
    "FrozenLake-v1",
    "HalfCheetah-v5",
    "MountainCar-v0",
    "Pendulum-v1",
    "Taxi-v4",
]
HOUSE = '''
import numpy as np
import gymnasium as gym
from gymnasium import spaces

class House(gym.Env):
    """A house with rooms.

    ![plan](plan.png)

    | room | number |
    |------|--------|
    | hall | 0      |

    ## Rendering
    In colour.
    """

    observation_space = spaces.Dict(
        heat=spaces.Box(0, 1, (2,)), room=spaces.Discrete(4), sign=spaces.Text(8)
    )
    action_space = spaces.Tuple([spaces.Discrete(2), spaces.MultiBinary(2)])

    def __init__(self, doors, colour="red"):
        if doors > 9:
            raise ValueError("too many doors")

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return {"room": 0, "sign": "hall", "heat": np.zeros(2, np.float32)}, {}

class Wild(House):
    observation_space = spaces.Sequence(spaces.Discrete(2))

    def __init__(self):
        pass

class Lost(House):
    def __init__(self):
        import a_module_that_nobody_has

gym.register("House-v0", entry_point="houses:House", kwargs={"colour": "blue"})
gym.register("Wild-v3", entry_point="houses:Wild")
gym.register("Lost-v0", entry_point=Lost)
'''


def find(name: str) -> EnvironmentSpec:
    """Look up an environment."""
    return cwm_environments()[name]()


def described(name: str, **env_args: object) -> str:
    """Return the description of an environment."""
    spec = find(name)
    return spec.describe(spec.make(**env_args))


@pytest.fixture
def houses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "houses.py").write_text(HOUSE)
    monkeypatch.syspath_prepend(tmp_path)
    yield "houses"
    sys.modules.pop("houses", None)
    for name in ("House-v0", "Wild-v3", "Lost-v0"):
        gym.registry.pop(name, None)


def test_the_plugin_imports_nothing_heavy() -> None:
    code = "import sys, cwm_gymnasium; print({'numpy', 'pydantic', 'gymnasium'} & {*sys.modules})"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout == "set()\n"


def test_only_what_can_be_made_is_listed() -> None:
    assert {"CartPole-v1", "Taxi-v4", "HalfCheetah-v5", "HalfCheetah-v4"} <= set(LISTED)
    assert not {"HalfCheetah-v2", "Pusher-v4", "GymV21Environment-v0"} & set(LISTED)
    assert len(cwm_environments()) == len({*cwm_environments()})


@pytest.mark.parametrize("name", LISTED)
def test_every_listed_environment_is_described_or_refused_in_one_line(name: str) -> None:
    try:
        text = described(name)
    except CwmError as refusal:
        assert str(refusal).startswith(f"{name} needs ")
        assert "pip install" in str(refusal)
        assert "\n" not in str(refusal)
    else:
        assert "Observation: " in text
        assert "Action: " in text


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("CliffWalking-v0", "CliffWalking-v1"),
        ("Taxi-v3", "Taxi-v4"),
        ("Pusher-v4", "Pusher-v5"),
        ("HalfCheetah-v2", "HalfCheetah-v5"),
        ("LunarLander-v2", "LunarLander-v3"),
    ],
)
def test_a_version_that_is_made_no_more_resolves_to_its_successor(asked: str, found: str) -> None:
    spec = find(asked)
    assert spec.id == found
    assert spec.note == f"Gymnasium no longer includes {asked}: using {found}"


def test_older_versions_that_are_still_made_are_left_alone() -> None:
    for name in ("CartPole-v0", "HalfCheetah-v4"):
        assert (find(name).id, find(name).note) == (name, "")


def test_an_id_without_a_version_is_the_newest_one() -> None:
    assert find("HalfCheetah").id == "HalfCheetah-v5"
    assert find("HalfCheetah").note == "HalfCheetah has no version: using HalfCheetah-v5"


@pytest.mark.parametrize("name", ["Cartpole-v1", "CartPole-v9", "", "no such thing", "CartPole-v"])
def test_unknown_ids_are_not_served(name: str) -> None:
    assert name not in cwm_environments()
    with pytest.raises(KeyError):
        cwm_environments()[name]


def test_a_module_registers_its_own_environments(houses: str) -> None:
    spec = find("houses:House-v0")
    assert spec.id == "houses:House-v0"
    assert type(spec.make(doors=2).unwrapped).__name__ == "House"
    assert find("houses:House").id == "houses:House-v0"
    assert find("houses:Wild-v1").id == "houses:Wild-v3"


def test_a_module_or_environment_that_is_not_there_is_said_to_be(houses: str) -> None:
    with pytest.raises(CwmError, match="there is no module 'nobody' for nobody:House-v0: install"):
        find("nobody:House-v0")
    with pytest.raises(UnknownNameError, match="did you mean houses:House-v0"):
        find("houses:Hous-v0")


def test_a_description_is_the_docstring_the_spaces_and_the_arguments(houses: str) -> None:
    assert described("houses:House-v0", doors=2) == (
        "A house with rooms.\n\n"
        "| room | number |\n|---|---|\n| hall | 0 |\n\n"
        "## Spaces\n"
        "Observation: a dict of\n"
        "  - ['heat']: an array of shape (2,), float32, each from 0 to 1\n"
        "  - ['room']: an integer, from 0 to 3\n"
        "  - ['sign']: a text of at most 8 characters\n"
        "Action: a tuple of\n"
        "  - [0]: an integer, from 0 to 1\n"
        "  - [1]: an array of shape (2,), int8, each from 0 to 1\n\n"
        "The environment was made with `colour='blue'`, `doors=2`."
    )


@pytest.mark.parametrize("name", DOCUMENTED)
def test_a_description_keeps_to_the_dynamics(name: str) -> None:
    text = described(name)
    docstring = find(name).make().unwrapped.__doc__ or ""
    assert "## Action Space" in text
    assert len(text) < len(docstring)
    unwanted = ["Version History", "References", "![", "<a ", "```{", "gym.make", "Vectorized"]
    assert not [words for words in unwanted if words in text]
    assert text.count("```") % 2 == 0
    assert "\n\n\n" not in text


def test_tables_stay_tables() -> None:
    assert "| 2 | Pole Angle | ~ -0.418 rad (-24°) | ~ 0.418 rad (24°) |" in described(
        "CartPole-v1"
    )


def test_bounds_are_told_by_component() -> None:
    assert (
        "Observation: an array of shape (3,), float32, by component:\n"
        "  - 0 to 1: from -1 to 1\n"
        "  - 2: from -8 to 8\n"
        "Action: an array of shape (1,), float32, each from -2 to 2"
    ) in described("Pendulum-v1")


def test_the_time_limit_is_told_apart_from_termination() -> None:
    sentence = (
        "Episodes are cut after {} steps by a time limit that is not part of `terminated` "
        "and that the observation does not show."
    )
    assert described("CartPole-v1").endswith(sentence.format(500))
    assert described("CartPole-v1", max_episode_steps=30).endswith(sentence.format(30))
    assert "time limit" not in described("CliffWalking-v1")


def test_only_arguments_that_are_not_the_default_are_told() -> None:
    assert "made with" not in described("FrozenLake-v1")
    assert "made with `is_slippery=False`." in described("FrozenLake-v1", is_slippery=False)
    assert "made with `map_name='8x8'`." in described("FrozenLake8x8-v1")


def test_an_environment_without_a_docstring_is_described_by_what_is_known() -> None:
    text = described("HalfCheetah-v4")
    assert text.startswith("The environment HalfCheetah-v4 (HalfCheetahEnv).")
    assert "It counts as solved at a return of 4800." in text
    assert "Observation: an array of shape (17,), float64, unbounded" in text


def test_versions_name_the_packages_that_decide_the_behaviour(houses: str) -> None:
    base = {"gymnasium": version("gymnasium"), "numpy": version("numpy")}
    assert find("CartPole-v1").versions() == base
    assert find("Ant-v5").versions() == base | {"mujoco": version("mujoco")}


@pytest.mark.slow
def test_an_environment_of_no_package_is_versioned_by_its_file(houses: str, tmp_path: Path) -> None:
    before = find("houses:House-v0").versions()["houses"]
    assert before == find("houses:House-v0").versions()["houses"]
    with (tmp_path / "houses.py").open("a") as file:
        file.write("\n# another house\n")
    assert before != find("houses:House-v0").versions()["houses"]


@pytest.mark.parametrize(
    ("name", "env_args", "message"),
    [
        ("FrozenLake-v1", {"is_slipery": 1}, "'is_slipery': did you mean is_slippery?"),
        ("FrozenLake-v1", {"map_name": "9x9"}, "cannot be made with map_name='9x9'"),
        ("HalfCheetah-v5", {"wings": 2}, "cannot be made with wings=2"),
        ("houses:House-v0", {}, "House-v0 needs the argument 'doors': add --env-arg doors=VALUE"),
        ("houses:House-v0", {"doors": 10}, "cannot be made with doors=10 (ValueError: too many"),
        ("houses:Lost-v0", {}, "Lost-v0 needs the module 'a_module_that_nobody_has': install"),
    ],
)
def test_an_environment_that_cannot_be_made_says_why(
    houses: str, name: str, env_args: dict[str, object], message: str
) -> None:
    with pytest.raises(CwmError) as refusal:
        find(name).make(**env_args)
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_an_observation_that_cannot_be_served_is_refused(houses: str) -> None:
    with pytest.raises(CwmError, match="observations of a space Sequence are not supported"):
        described("houses:Wild-v3")


def test_gymnasium_and_mujoco_say_nothing(tmp_path: Path) -> None:
    code = """
from cwm_gymnasium import cwm_environments
for name in ("CartPole-v0", "Taxi", "HalfCheetah-v4", "HalfCheetah-v5", "Pusher-v4"):
    spec = cwm_environments()[name]()
    env = spec.make()
    spec.describe(env)
    env.reset(seed=0)
    env.step(env.action_space.sample())
"""
    result = subprocess.run(
        [sys.executable, "-W", "default", "-c", code], cwd=tmp_path, capture_output=True, text=True
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    assert not list(tmp_path.iterdir())


def test_a_space_of_its_own_whose_values_are_text_is_served_as_text():
    class Mission(gym.Space):
        def sample(self, mask=None, probability=None):
            return "fetch the key"

    assert space_of(gym.spaces.Dict({"mission": Mission()})).children[0].kind == "text"
