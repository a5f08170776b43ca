"""Common mistakes end in one line that names the cause and the remedy, without a traceback."""

import os
import signal
import subprocess
import sys
from contextlib import suppress

import pytest

from cwm_cli.errors import install_command

SLOW = pytest.mark.slow

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


class Ragged(Walk):
    def step(self, action):
        return [0.0, [1.0, 2.0]], *super().step(action)[1:]


class Outside(Walk):
    observation_space = Box(-1, 1, (2,), np.float64)


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
    "WrongShape": "step: Observation shape (3,) does not match observation_space (2,).",
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
    "NoDisplay": "needs a display for render_mode='human': choose another render_mode",
    "Ragged": "step returned an observation that is not an array",
    "Chase": "is a PettingZoo environment with several agents: wrap it in a gymnasium.Env that "
    "controls one agent",
    "Plain": "is not a Gymnasium environment: derive Plain from gymnasium.Env",
    "Wlak": "did you mean faulty:Walk?",
    "own/FourValues-v0": OLD_STEP,
    "own/NanReward-v0": "step returned the reward nan",
    "own/StepRaises-v0": "step raised KeyError: 'position'",
    "own/OnlyObservation-v0": OLD_RESET,
}


OWN_FILE = """
import gymnasium
from faulty import Walk

class Only(Walk): ...
"""
PROGRAM = """
import numpy as np

class Environment:
    def set_state(self, observation):
        self.state = np.array(observation)

    def step(self, action):
        self.state = self.state + [2 * action - 1, 1]
        return self.state.copy(), float(self.state[0]), bool(self.state[1] >= 8)
"""
EPISODE = ("--episodes", "1", "--max-steps", "10")
COMMANDS = {
    "synthesize": ("synthesize", "--budget", "1"),
    "learn": ("learn", "--steps", "20"),
    "real-env": ("plan", "--real-env", *EPISODE),
    "oracle": ("plan", "--program", "program.py", "--oracle", *EPISODE),
    "processes": ("collect", "--policy", "random", "--workers", "2"),
}
FILES = {
    "own.py": "",
    "./own.py": "",
    "own.py:Only": "",
    "folder/elsewhere.py": "",
    "missing.py": "there is no file missing.py: name a .py file or an environment id",
    "missing:Walk": "there is no module 'missing' for missing:Walk: install it, or name its file: "
    "--env FOLDER/missing.py",
    "several.py": "several.py defines several environments: add --env with one of ",
    "empty.py": "empty.py defines no environment: derive a class from gymnasium.Env",
    "broken.py": "broken cannot be imported: SyntaxError: '(' was never closed (broken.py, line 1)",
    "broken:Walk": "broken cannot be imported: SyntaxError",
    "script.py": "script cannot be imported: SystemExit: 3",
    "lacking.py": "lacking.py cannot be imported: ModuleNotFoundError: No module named 'nothing'",
    "lacking:Walk": "lacking:Walk needs the module 'nothing'",
    "folder/typer.py": "folder/typer.py has the name of another Python module: rename the file",
    "own:Onyl": "unknown environment 'own:Onyl': did you mean own:Only?",
    "zzz": "or name your own: MODULE:NAME or FILE.py",
}
CART = ("--env", "CartPole-v1")
PRICED = (*CART, "--data-seed", "77", "--max-cost", "1", "--model")
OTHERS = {
    ("synthesize", *CART, "--dataset", "x.csv"): "x.csv is a CSV file: run `cwm data import x.csv`",
    ("evaluate", "program.py", *CART, "--dataset", "x.csv"): "x.csv is a CSV file",
    ("data", "export", "x.csv", "--to", "csv"): "x.csv is a CSV file",
    ("synthesize", *PRICED, "openai/gpt-4o-mni"): "did you mean openai/gpt-4o-mini?",
    ("synthesize", *PRICED, "openai/zzz"): "openai/zzz is not in the price list: leave it out",
    ("plan", "--real-env"): "--real-env needs an environment: add --env ID",
    ("plan", "--program", "program.py", "--env", "faulty:Walk", "--render", "x.gif"): "accept "
    "render_mode='rgb_array' in its constructor, or leave --render out",
    ("runs", "rm", "one", "two"): "runs rm would remove one, two: add --yes to remove without a ",
}


def slow(*cases):
    """Mark cases that run in CI only, because similar ones run by default."""
    return [pytest.param(each, marks=SLOW) for each in cases]


@pytest.fixture
def user(cwm, monkeypatch):
    """A user with environments in a module of their own."""
    (cwm.packages / "faulty.py").write_text(ENVIRONMENTS)
    (cwm.folder / "program.py").write_text(PROGRAM)
    (cwm.folder / "x.csv").write_text("a,b\n1,2\n")
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(name, raising=False)
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


@pytest.mark.parametrize("name", ["FourValues", *slow("LateNan", "LateError")])
@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_reports_a_faulty_environment(user, command, name):
    done = user.inside(*COMMANDS[command], "--env", f"faulty:{name}")
    error = error_of(done)
    assert FAULTY[name] in error
    assert "no oracle" not in done.stderr


def test_verbose_shows_the_traceback_of_an_environment(user):
    done = user.inside("collect", "--env", "faulty:LateError", "--policy", "random", "--verbose")
    assert done.returncode == 1
    *traceback, error = done.stderr.splitlines()
    assert "Traceback (most recent call last):" in traceback
    assert traceback[-2:] == ["OSError: the motor does", "not answer"]
    assert FAULTY["LateError"] in error


@pytest.fixture
def files(user, monkeypatch):
    """A user with environments in files of the working folder."""
    (user.folder / "folder").mkdir()
    contents = {
        "own": OWN_FILE,
        "folder/elsewhere": OWN_FILE,
        "several": ENVIRONMENTS.rpartition("for cls in")[0],
        "empty": "x = 1",
        "broken": "x = (",
        "script": "raise SystemExit(3)",
        "lacking": "import nothing",
        "folder/typer": OWN_FILE,
        "folder/rich": "raise AssertionError('this replaces an installed package')",
    }
    for name, code in contents.items():
        (user.folder / f"{name}.py").write_text(code)
    monkeypatch.setattr(sys, "path", [*sys.path])
    modules = {*sys.modules}
    yield user
    for name in ("own", "elsewhere", *contents):
        if name not in modules:
            sys.modules.pop(name, None)


@pytest.mark.parametrize(("name", "words"), FILES.items())
def test_environments_are_found_in_files_of_the_user(files, name, words):
    done = files.inside("collect", "--policy", "random", "--out", "rows.npz", "--env", name)
    if words:
        assert words in error_of(done)
    else:
        assert done.returncode == 0, done.stderr
        assert (files.folder / "rows.npz").exists()
        found = "folder/elsewhere.py:Only" if "folder" in name else "own:Only"
        assert f"cwm synthesize --env {found} --dataset" in done.stdout


@pytest.mark.parametrize(("command", "words"), OTHERS.items())
def test_other_mistakes_are_reported_in_one_line(user, command, words):
    user.environment["OPENAI_API_KEY"] = "a-key"
    assert words in error_of(user.inside(*command))


def test_collect_names_the_extra_of_minigrid(user, monkeypatch):
    monkeypatch.setitem(sys.modules, "minigrid", None)
    done = user.inside("collect", "--env", "MiniGrid-Empty-5x5-v0")
    assert error_of(done) == (
        f"Error: MiniGrid-Empty-5x5-v0 needs minigrid: {install_command('cwm-cli[minigrid]')}"
    )


@SLOW
def test_few_rows_and_observations_outside_their_space_are_warned_of(user):
    few = "only 16 transitions, which many wrong programs fit: record 20 or more"
    outside = (
        "14 of 16 transitions have observations outside observation_space (observations[1] is 2, "
        "bounds -1 to 1): correct the space"
    )
    env = ("--env", "faulty:Outside")
    few_episodes = ("--episodes", "1", "--test-episodes", "1", "--policy", "random")
    collected = user.inside("collect", *env, *few_episodes, "--out", "x.npz")
    for result in (collected, user.inside("synthesize", *env, "--dataset", "x.npz")):
        assert result.returncode == 0, result.stderr
        assert result.stderr.count(few) == 1
        assert result.stderr.count(outside) == 1
    learned = user.inside("learn", *env, "--steps", "20")
    assert learned.stderr.count("have observations outside observation_space") == 1


@SLOW
def test_real_env_plays_the_environment_of_the_newest_run(user):
    begun = user.inside("learn", "--env", "faulty:Walk", "--steps", "10")
    assert begun.returncode == 0, begun.stderr
    done = user.inside("plan", "--real-env", *EPISODE)
    assert done.returncode == 0, done.stderr
    assert "Environment: faulty:Walk, as in the newest run runs/faulty-Walk-learn-0-" in done.stderr


ANSWERS = {"yes": ("y\n", 0), "enter": ("\n", 1), "ctrl-d": ("\x04", 1), "ctrl-c": ("", 130)}


@pytest.mark.slow
@pytest.mark.parametrize("answer", ["yes", "ctrl-c", *slow("enter", "ctrl-d")])
def test_removing_a_run_asks_on_a_terminal(user, answer):
    user.inside("learn", "--env", "faulty:Walk", "--steps", "10", "--run", "walk")
    mine, theirs = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "cwm_cli", "runs", "rm", "walk"],
        cwd=user.folder,
        env=user.variables(),
        stdin=theirs,
        stdout=subprocess.DEVNULL,
        stderr=theirs,
    )
    os.close(theirs)
    shown = b""
    while b"[y/N]" not in shown:
        shown += os.read(mine, 1000)
    assert b"Remove walk with all files?" in shown
    keys, code = ANSWERS[answer]
    if keys:
        os.write(mine, keys.encode())
    while not keys and process.poll() is None:
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):  # it came just before the answer is read
            process.wait(timeout=15)
    assert process.wait(timeout=60) == code
    assert (user.folder / "walk").exists() == (answer != "yes")
    os.close(mine)


@pytest.mark.slow
def test_removing_a_run_needs_no_question_with_yes(user):
    user.inside("learn", "--env", "faulty:Walk", "--steps", "10", "--run", "walk")
    done = user.inside("runs", "rm", "walk", "--yes")
    assert (done.returncode, done.stdout, done.stderr) == (0, "removed walk\n", "")
    assert not (user.folder / "walk").exists()
