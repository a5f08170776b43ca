"""Gymnasium's environments in `cwm`: names, descriptions and errors."""

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
        import missing_module

gym.register("House-v0", entry_point="houses:House", kwargs={"colour": "blue"})
gym.register("Wild-v3", entry_point="houses:Wild")
gym.register("Lost-v0", entry_point=Lost)
'''


def find(name: str) -> EnvironmentSpec:
    return cwm_environments()[name]()


def describe(name: str, **env_args: object) -> str:
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


def test_plugin_imports_no_heavy_packages() -> None:
    code = "import sys, cwm_gymnasium; print({'numpy', 'pydantic', 'gymnasium'} & {*sys.modules})"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout == "set()\n"


def test_only_usable_versions_are_listed() -> None:
    assert {"CartPole-v1", "Taxi-v4", "HalfCheetah-v5", "HalfCheetah-v4"} <= set(LISTED)
    assert not {"HalfCheetah-v2", "Pusher-v4", "GymV21Environment-v0"} & set(LISTED)
    assert len(cwm_environments()) == len({*cwm_environments()})


@pytest.mark.parametrize("name", LISTED)
def test_listed_environment_has_a_description_or_an_error_on_one_line(name: str) -> None:
    try:
        text = describe(name)
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
def test_retired_version_resolves_to_its_successor(asked: str, found: str) -> None:
    spec = find(asked)
    assert spec.id == found
    assert spec.note == f"Gymnasium no longer includes {asked}: using {found}"


def test_older_usable_versions_are_not_replaced() -> None:
    for name in ("CartPole-v0", "HalfCheetah-v4"):
        assert (find(name).id, find(name).note) == (name, "")


def test_id_without_a_version_means_the_newest_version() -> None:
    assert find("HalfCheetah").id == "HalfCheetah-v5"
    assert find("HalfCheetah").note == "HalfCheetah has no version: using HalfCheetah-v5"


@pytest.mark.parametrize("name", ["Cartpole-v1", "CartPole-v9", "", "no such thing", "CartPole-v"])
def test_unknown_ids_are_not_in_the_mapping(name: str) -> None:
    assert name not in cwm_environments()
    with pytest.raises(KeyError):
        cwm_environments()[name]


def test_module_prefix_finds_environments_of_a_module(houses: str) -> None:
    spec = find("houses:House-v0")
    assert spec.id == "houses:House-v0"
    assert type(spec.make(doors=2).unwrapped).__name__ == "House"
    assert find("houses:House").id == "houses:House-v0"
    assert find("houses:Wild-v1").id == "houses:Wild-v3"


def test_missing_module_or_environment_is_reported(houses: str) -> None:
    with pytest.raises(CwmError, match="there is no module 'nobody' for nobody:House-v0: install"):
        find("nobody:House-v0")
    with pytest.raises(UnknownNameError, match="did you mean houses:House-v0"):
        find("houses:Hous-v0")


def test_description_consists_of_docstring_spaces_and_arguments(houses: str) -> None:
    assert describe("houses:House-v0", doors=2) == (
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
def test_description_contains_only_the_dynamics(name: str) -> None:
    text = describe(name)
    docstring = find(name).make().unwrapped.__doc__ or ""
    assert "## Action Space" in text
    assert len(text) < len(docstring)
    unwanted = ["Version History", "References", "![", "<a ", "```{", "gym.make", "Vectorized"]
    assert not [part for part in unwanted if part in text]
    assert text.count("```") % 2 == 0
    assert "\n\n\n" not in text


def test_description_keeps_tables() -> None:
    assert "| 2 | Pole Angle | ~ -0.418 rad (-24°) | ~ 0.418 rad (24°) |" in describe("CartPole-v1")


def test_description_lists_bounds_by_component() -> None:
    assert (
        "Observation: an array of shape (3,), float32, by component:\n"
        "  - 0 to 1: from -1 to 1\n"
        "  - 2: from -8 to 8\n"
        "Action: an array of shape (1,), float32, each from -2 to 2"
    ) in describe("Pendulum-v1")


def test_description_distinguishes_time_limit_and_termination() -> None:
    sentence = (
        "Episodes are cut after {} steps by a time limit that is not part of `terminated` "
        "and that the observation does not show."
    )
    assert describe("CartPole-v1").endswith(sentence.format(500))
    assert describe("CartPole-v1", max_episode_steps=30).endswith(sentence.format(30))
    assert "time limit" not in describe("CliffWalking-v1")


def test_description_lists_only_changed_arguments() -> None:
    assert "made with" not in describe("FrozenLake-v1")
    assert "made with `is_slippery=False`." in describe("FrozenLake-v1", is_slippery=False)
    assert "made with `map_name='8x8'`." in describe("FrozenLake8x8-v1")


def test_description_without_a_docstring_has_the_known_facts() -> None:
    text = describe("HalfCheetah-v4")
    assert text.startswith("The environment HalfCheetah-v4 (HalfCheetahEnv).")
    assert "It counts as solved at a return of 4800." in text
    assert "Observation: an array of shape (17,), float64, unbounded" in text


def test_versions_contain_the_relevant_packages(houses: str) -> None:
    base = {"gymnasium": version("gymnasium"), "numpy": version("numpy")}
    assert find("CartPole-v1").versions() == base
    assert find("Ant-v5").versions() == base | {"mujoco": version("mujoco")}


@pytest.mark.slow
def test_version_of_a_module_without_a_package_is_its_file_hash(
    houses: str, tmp_path: Path
) -> None:
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
        ("houses:Lost-v0", {}, "Lost-v0 needs the module 'missing_module': install"),
    ],
)
def test_error_names_why_an_environment_cannot_be_made(
    houses: str, name: str, env_args: dict[str, object], message: str
) -> None:
    with pytest.raises(CwmError) as error:
        find(name).make(**env_args)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_unsupported_observation_space_is_an_error(houses: str) -> None:
    with pytest.raises(CwmError, match="observations of a space Sequence are not supported"):
        describe("houses:Wild-v3")


def test_gymnasium_and_mujoco_print_nothing(tmp_path: Path) -> None:
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


def test_custom_space_with_text_values_is_a_text_space():
    class Mission(gym.Space):
        def sample(self, mask=None, probability=None):
            return "fetch the key"

    assert space_of(gym.spaces.Dict({"mission": Mission()})).children[0].kind == "text"
