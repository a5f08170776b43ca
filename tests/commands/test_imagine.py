"""`cwm.imagine` and `cwm runs export --to`: episodes inside a world model, as a dataset."""

import json

import minari
import numpy as np
import pytest

import cwm_cli as cwm_api
import worlds
from cwm_cli.commands.imagine import imagine
from cwm_cli.data.dataset import Dataset
from cwm_cli.errors import CwmError
from folders import SUPPORT, WORLD_MODELS
from shell import Shell
from worlds import LAKE

PLUGIN = (SUPPORT / "linear_training.py").read_text()
BLACKJACK = (WORLD_MODELS / "blackjack_random.py").read_text()

STRAYING = """
import numpy as np

class Environment:
    def set_state(self, observation):
        self.seen = np.array(observation)

    def step(self, action):
        after = self.seen + [0.2, 0.0]
        if after[0] > 1.0:
            raise ValueError("unknown place")
        return after, 1.0, False
"""


@pytest.fixture(scope="module")
def poles_shell(tmp_path_factory):
    """A shell with a run of CartPole, and its imagined episodes as a Minari dataset."""
    folder = tmp_path_factory.mktemp("work")
    shell = Shell(folder, tmp_path_factory.mktemp("packages"))
    done = shell.inside("synthesize", "--env", "CartPole-v1", "--run", "run")
    assert done.returncode == 0, done.stderr
    asked = ("--to", "minari", "--out", "poles-v0", "--episodes", "3", "--policy", "random")
    done = shell.inside("runs", "export", "run", *asked, "--json")
    assert done.returncode == 0, done.stderr
    return shell, json.loads(done.stdout)


@pytest.mark.slow
def test_minari_itself_loads_them_and_they_say_that_they_are_imagined(poles_shell) -> None:
    shell, facts = poles_shell
    dataset = minari.MinariDataset(shell.folder / "poles-v0" / "data")
    assert (dataset.total_episodes, dataset.total_steps) == (3, facts["transitions"])
    told = facts["imagined"]
    assert (told["by"], told["kind"], told["policy"], told["seed"]) == (
        "run",
        "search",
        "random",
        0,
    )
    assert told["scores"]["held-out"]["exact"] == 1.0 and len(told["digest"]) == 64
    assert told["digest"] in repr(dataset.storage.metadata)


def test_they_are_what_the_true_environment_does_where_the_program_is_right(poles_shell) -> None:
    shell, facts = poles_shell
    rows = imagine(shell.folder / "run", episodes=3, policy="random")
    assert rows.digest == facts["digest"]
    import gymnasium

    env = gymnasium.make("CartPole-v1").unwrapped
    env.reset(seed=0)
    for row in rows:
        env.state = np.array(row.observation, float)
        env.steps_beyond_terminated = None
        seen, reward, over, *_ = env.step(row.action)
        assert np.allclose(seen, row.next_observation, atol=1e-4)
        assert (reward, over) == (row.reward, row.terminated)
    assert rows.columns["terminations"].sum() == 3


@pytest.mark.slow
def test_plans_hold_the_pole_up_in_the_program_and_the_limit_truncates(poles_shell) -> None:
    shell, _ = poles_shell
    rows = cwm_api.imagine(shell.folder / "run", episodes=1, max_steps=40)
    assert len(rows) == 40 and rows.columns["truncations"].tolist() == [False] * 39 + [True]
    assert rows.metadata["imagined"]["policy"] == "auto"


@pytest.mark.slow
def test_an_episode_depends_on_the_seed_and_its_number_and_chance_is_drawn() -> None:
    asked = {"program": BLACKJACK, "env": "Blackjack-v1", "policy": "random", "seed": 4}
    few, many = imagine(episodes=3, **asked), imagine(episodes=12, **asked)
    first = many[many.columns["episodes"] < 3]
    assert few.digest == first.digest
    assert len(set(many.columns["rewards"].tolist())) == 3  # won, lost, and neither


def test_discrete_observations_stay_whole_numbers() -> None:
    slippery = {"is_slippery": False}
    rows = imagine(
        program=LAKE, env="FrozenLake-v1", env_args=slippery, episodes=4, policy="random"
    )
    assert isinstance(rows, Dataset) and rows.columns["next_observations"].dtype == np.int64
    assert rows.columns["next_observations"].max() < 16


def test_what_lies_outside_of_the_space_is_brought_within_and_a_failure_ends_an_episode() -> None:
    told = []

    class Listening(cwm_api.Observer):
        def note(self, text, kind="Note"):
            told.append(f"{kind}: {text}")

    rows = imagine(
        program=STRAYING,
        env="MountainCar-v0",
        episodes=2,
        policy="random",
        observer=Listening(),
    )
    assert rows.columns["next_observations"][:, 0].max() <= np.float32(0.6)
    assert rows.columns["truncations"].sum() == 2
    assert any("episodes ended early because the model failed" in line for line in told), told
    assert any("outside their space: clipped to its bounds" in line for line in told), told


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--episodes", "3"), "--episodes is for imagined episodes: add --to minari"),
        (("-o", "x=1"), "-o is for imagined episodes: add --to minari, or leave it out"),
        (("--to", "papyrus"), "unknown exporter 'papyrus': "),
        (("--to", "minari", "--policy", "agnet"), "unknown policy 'agnet': did you mean agent?"),
        (("--to", "minari", "--policy", "agent"), "run has no agent: choose --policy planner"),
        (("--to", "minari", "--planner", "mtcs"), "unknown planner 'mtcs': did you mean mcts?"),
        (("--to", "minari", "--policy", "random", "--out", "poles-v0"), "already exists"),
    ],
)
def test_mistakes_are_one_line(poles_shell, arguments, words) -> None:
    shell, _ = poles_shell
    done = shell.inside("runs", "export", "run", *arguments)
    assert done.returncode == 1 and done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert words in line


def test_nothing_is_asked_for() -> None:
    with pytest.raises(CwmError, match="--episodes must be at least 1"):
        imagine(program=worlds.PENDULUM, env="Pendulum-v1", episodes=0)


def test_a_trained_model_is_imagined_in_and_its_agent_acts(cwm) -> None:
    cwm.install("linear_training", PLUGIN)
    asked = ("train", "--env", "CartPole-v1", "--model", "linear", "--steps", "80", "--run", "r")
    short = ("-o", "every=40", "-o", "warm_up=40", "-o", "tests=2", "-o", "max_steps=50")
    done = cwm.inside(*asked, *short)
    assert done.returncode == 0, done.stderr
    for policy in ("agent", "random"):
        out = ("--to", "minari", "--out", f"{policy}-v0", "--json")
        few = ("--episodes", "2", "--policy", policy, "--max-steps", "9")
        done = cwm.inside("runs", "export", "r", *out, *few)
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert (found["imagined"]["kind"], found["imagined"]["policy"]) == ("train", policy)
        assert found["episodes"] == 2
