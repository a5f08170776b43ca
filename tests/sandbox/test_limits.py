"""Tools that users allow programs to import, and limits that users set."""

import json
from pathlib import Path

import numpy as np
import pytest

from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.data.spaces import Space
from cwm_cli.envs.spec import space_of
from cwm_cli.errors import CwmError
from cwm_cli.evaluation import AccuracyMetric, evaluate
from cwm_cli.runs.searches import SearchRun
from cwm_cli.sandbox import Limits, Sandbox
from cwm_cli.sandbox.protection import GAPS
from cwm_cli.worlds import ProgramModel
from recordings import COUNTER, MOVES

SWING = """
<mujoco>
  <option timestep="0.02" integrator="RK4"/>
  <worldbody>
    <geom type="plane" size="5 5 0.1"/>
    <body pos="0 0 0.52">
      <joint name="hinge" type="hinge" axis="0 1 0" damping="0.05"/>
      <geom type="capsule" fromto="0 0 0 0 0 -0.5" size="0.03"/>
    </body>
  </worldbody>
  <actuator><motor joint="hinge" gear="2"/></actuator>
</mujoco>
"""
SWINGING = f'''
import mujoco
import numpy as np

SWING = """{SWING}"""

class Environment:
    def __init__(self):
        self.model = mujoco.MjModel.from_xml_string(SWING)
        self.data = mujoco.MjData(self.model)

    def set_state(self, observation):
        mujoco.mj_resetData(self.model, self.data)
        self.data.qpos[:], self.data.qvel[:] = observation[:1], observation[1:]

    def step(self, action):
        self.data.ctrl[:] = action
        mujoco.mj_step(self.model, self.data)
        angle = float(self.data.qpos[0])
        return np.concatenate([self.data.qpos, self.data.qvel]), -abs(angle), abs(angle) > 3
'''


@pytest.fixture(scope="module")
def swing():
    """Transitions of a swing that MuJoCo itself has stepped, here."""
    mujoco = pytest.importorskip("mujoco")
    model = mujoco.MjModel.from_xml_string(SWING)
    rng, rows = np.random.default_rng(0), []
    for _ in range(300):
        data = mujoco.MjData(model)
        before = rng.uniform([-3, -5], [3, 5])
        data.qpos[:], data.qvel[:], data.ctrl[:] = before[:1], before[1:], rng.uniform(-1, 1)
        action = data.ctrl.copy()
        mujoco.mj_step(model, data)
        angle = float(data.qpos[0])
        after = np.concatenate([data.qpos, data.qvel])
        rows.append(Transition(before, action, after, -abs(angle), abs(angle) > 3, False, 0))
    bound = (float("inf"),) * 2
    space = Space("box", "float64", (2,), tuple(-x for x in bound), bound)
    actions = Space("box", "float64", (1,), (-1.0,), (1.0,))
    return Dataset.of(rows, observation_space=space, action_space=actions)


STOCK = """
import mujoco
import numpy as np

XML = '''{xml}'''

class Environment:
    def __init__(self):
        self.model = {loading}
        self.data = mujoco.MjData(self.model)

    def set_state(self, observation):
        mujoco.mj_resetData(self.model, self.data)
        count = self.model.nq - {hidden}
        self.data.qpos[{hidden}:], self.data.qvel[:] = observation[:count], observation[count:]

    def step(self, action):
        before = self.data.qpos[0]
        self.data.ctrl[:] = action
        mujoco.mj_step(self.model, self.data, {skip})
        speed = (self.data.qpos[0] - before) / self.model.opt.timestep / {skip}
        velocity = np.clip(self.data.qvel, -{fastest}, {fastest})
        position = self.data.qpos[{hidden}:]
        reward = {weight} * speed + {alive} - {cost} * np.sum(np.square(action))
        return np.concatenate([position, velocity]), reward, False
"""
FROM_TEXT = "mujoco.MjModel.from_xml_string(XML)"
FROM_SPEC = "mujoco.MjSpec.from_string(XML).compile()"
STOCK_MODELS = {
    "HalfCheetah-v5": ("half_cheetah.xml", 1, 5, "inf", 1.0, 0, 0.1),
    "Hopper-v5": ("hopper.xml", 1, 4, 10, 1.0, 1, 1e-3),
    "Walker2d-v5": ("walker2d_v5.xml", 1, 4, 10, 1.0, 1, 1e-3),
    "Swimmer-v5": ("swimmer.xml", 2, 4, "inf", 1.0, 0, 1e-4),
}
"""The file, the coordinates that are not observed, steps of the simulator, the fastest velocity
that is, and the coefficients of the reward."""


def stock(name, loading):
    """Return a program around the model that an environment ships with, as its own text."""
    envs = pytest.importorskip("gymnasium.envs.mujoco")
    file, hidden, skip, fastest, weight, alive, cost = STOCK_MODELS[name]
    xml = (Path(envs.__file__).parent / "assets" / file).read_text()
    fastest = "np.inf" if fastest == "inf" else fastest
    return STOCK.format(
        **{"xml": xml, "loading": loading, "hidden": hidden, "skip": skip, "fastest": fastest},
        **{"weight": weight, "alive": alive, "cost": cost},
    )


def stepped(name, steps=40):
    """Step an environment by chance, not so far that it ends."""
    gymnasium = pytest.importorskip("gymnasium")
    env, rows = gymnasium.make(name), []
    env.action_space.seed(0)
    before, _ = env.reset(seed=0)
    for _ in range(steps):
        action = 0.3 * env.action_space.sample()
        after, reward, terminated, *_ = env.step(action)
        if np.abs(before).max() < 10:  # else it is clipped, and does not tell the state
            rows.append(Transition(before, action, after, reward, terminated, False, 0))
        before = env.reset()[0] if terminated else after
    spaces = space_of(env.observation_space), space_of(env.action_space)
    env.close()
    return Dataset.of(rows, observation_space=spaces[0], action_space=spaces[1])


@pytest.fixture(scope="module")
def asset():
    """A model file of an environment."""
    envs = pytest.importorskip("gymnasium.envs.mujoco")
    file = Path(envs.__file__).parent / "assets" / "inverted_pendulum.xml"
    assert file.exists()
    return str(file)


@pytest.fixture(scope="module")
def simulating():
    with Sandbox(tools=["mujoco"]) as sandbox:
        yield sandbox


class TestMujoco:
    @pytest.mark.slow
    def test_program_steps_a_model_in_its_text(self, swing, simulating):
        found = evaluate(ProgramModel(SWINGING, simulating), swing, AccuracyMetric.of(swing))
        assert found.failure is None
        assert found.score.exact == 1.0
        heavier = SWINGING.replace('size="0.03"', 'size="0.06"')
        assert (
            evaluate(ProgramModel(heavier, simulating), swing, AccuracyMetric.of(swing)).score.exact
            < 0.5
        )

    def test_audit_tolerates_rounding_of_warm_started_solvers(self, swing, simulating):
        warm = SWINGING.replace("        mujoco.mj_resetData(self.model, self.data)\n", "")
        model = ProgramModel(warm, simulating)
        found = [model.predict(swing, seed=seed).columns["next_observations"] for seed in (1, 2)]
        assert (found[0] != found[1]).any(), "earlier questions make no difference"
        assert evaluate(model, swing, AccuracyMetric.of(swing)).score.exact == 1.0

    @pytest.mark.parametrize("way", ["by its path", "by including it"])
    def test_model_file_of_an_environment_cannot_be_read(self, swing, simulating, asset, way):
        included = f"from_xml_string('<mujoco><include file=\"{asset}\"/></mujoco>')"
        reading = f"from_xml_path({asset!r})" if way == "by its path" else included
        program = SWINGING.replace("from_xml_string(SWING)", reading)
        program = program.replace("self.data.qpos, self.data.qvel]", "np.zeros(1), np.zeros(1)]")
        refused = simulating.predict(program, swing).failure
        assert refused.kind == "load_error"
        assert "XML" in refused.message or "file" in refused.message
        with Sandbox(tools=["mujoco"], layers=(), accepted=GAPS) as open_sandbox:
            program = program.replace("observation[:1]", "0").replace("observation[1:]", "0")
            assert open_sandbox.predict(program, swing).failure is None

    @pytest.mark.parametrize(
        "name",
        ["HalfCheetah-v5", *(pytest.param(n, marks=pytest.mark.slow) for n in [*STOCK_MODELS][1:])],
    )
    def test_models_of_environments_step_like_the_environments(self, name, simulating):
        rows = stepped(name)
        metric = AccuracyMetric.of(rows)
        for loading in (FROM_TEXT, FROM_SPEC):
            found = evaluate(ProgramModel(stock(name, loading), simulating), rows, metric)
            assert found.failure is None, found.failure
            assert found.score.observation == 1.0
            assert found.score.reward > 0.9  # the observation after the end of an episode differs

    def test_mujoco_cannot_be_imported_without_the_tool(self, swing, sandbox):
        failure = sandbox.predict(SWINGING, swing).failure
        assert failure.kind == "load_error"
        assert "cannot import 'mujoco': only numpy and" in failure.message


ADDER = """
SIZE = 1

def add(count):
    return count + SIZE
"""
ADDING = """
import adder

class Environment:
    def set_state(self, observation):
        self.count = observation
    def step(self, action):
        self.count = adder.add(self.count)
        return self.count, 0.0, self.count >= 5
"""
TEACHER = f'''
"""A backend that always returns a program that imports a tool."""
from dataclasses import dataclass
from cwm_cli import hookimpl
from cwm_cli.search.contracts import Backend

@hookimpl
def cwm_backends():
    return {{"teacher": Teacher}}

@dataclass(frozen=True)
class Teacher(Backend):
    model: str = ""
    told: str = ""

    def complete(self, request):
        from cwm_cli.search.contracts import Completion, Usage
        assert self.told in request.messages[-1].content, request.messages[-1].content
        return Completion("""```python{ADDING}```""", Usage())
'''
COUNTED = ("--env", "FrozenLake-v1", "--dataset", "counter.npz")
PLANNED = ("plan", "--env", "FrozenLake-v1", "--episodes", "1", "--max-steps", "2", "--json")
COMMANDS = {
    "synthesize": ("synthesize", *COUNTED, "--run", "here", "--budget", "1"),
    "evaluate": ("evaluate", "adding.py", *COUNTED),
    "plan": (*PLANNED, "--program", "adding.py", "-o", "simulations=2"),
}


@pytest.fixture
def adding(cwm):
    """A module, a program that needs it, transitions and a backend that writes the program."""
    rows = [
        Transition(n, 0, n + 1, 0.0, n == 4, False, part, part) for part in (0, 1) for n in range(5)
    ]
    spaces = {"observation_space": COUNTER, "action_space": MOVES}
    Dataset.of(rows, **spaces).save(cwm.folder / "counter.npz")
    (cwm.folder / "adding.py").write_text(ADDING)
    cwm.install("adder", ADDER, entries="")
    (cwm.packages / "adder-1.0.dist-info" / "top_level.txt").write_text("adder\n")
    cwm.install("teacher_plugin", TEACHER)
    return cwm


class TestTools:
    def test_program_may_import_only_the_named_tools(self, adding):
        alone = json.loads(adding.inside(*COMMANDS["evaluate"], "--json").stdout)
        assert alone["failure"]["kind"] == "load_error"
        assert "cannot import 'adder': only numpy and" in alone["failure"]["message"]
        done = adding.inside(
            *COMMANDS["evaluate"], "--json", "--tool", "adder", "--tool", "sqlite3"
        )
        result = json.loads(done.stdout)
        assert result["failure"] is None
        assert result["test"]["accuracy"] == 1.0

    @pytest.mark.slow
    def test_planning_uses_tools(self, adding):
        assert json.loads(adding.inside(*COMMANDS["plan"]).stdout)["failures"] == 2
        done = adding.inside(*COMMANDS["plan"], "--tool", "adder")
        assert json.loads(done.stdout)["failures"] == 0, done.stderr

    @pytest.mark.slow
    def test_commands_take_the_tools_of_a_run(self, adding):
        told = ("--backend", "teacher", "-o", "told=Available: numpy, adder and the modules")
        done = adding.inside(*COMMANDS["synthesize"], *told, "--tool", "adder", "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["solved"]
        run = SearchRun.load(adding.folder / "here")
        assert run.config.tools == ("adder",)
        assert run.header.versions["adder"] == "1.0"
        scored = json.loads(adding.inside("evaluate", "here", *COUNTED[:2], "--json").stdout)
        assert scored["test"]["accuracy"] == 1.0
        played = json.loads(adding.inside(*PLANNED, "--run", "here", "-o", "simulations=2").stdout)
        assert played["failures"] == 0
        shown = adding.inside("runs", "show", "here").stdout.splitlines()
        assert ["tools", "adder"] in [line.split() for line in shown]
        assert ["protection", "no", "gaps"] in [line.split() for line in shown]

    @pytest.mark.long
    def test_tools_identify_a_run_in_any_order(self, adding):
        start = (*COMMANDS["synthesize"], "--tool", "sqlite3", "--tool", "adder")
        assert adding.inside(*start, "--tool", "adder").returncode == 0
        assert SearchRun.load(adding.folder / "here").config.tools == ("adder", "sqlite3")
        same = adding.inside(*COMMANDS["synthesize"], "--tool", "adder", "--tool", "sqlite3")
        assert "here continues with 1 nodes" in same.stderr
        other = adding.inside(*COMMANDS["synthesize"], "--tool", "adder")
        assert other.returncode == 1
        assert "here was started with other settings, tools (" in other.stderr

    @pytest.mark.slow
    def test_unavailable_tool_is_refused_in_one_line(self, adding):
        adding.install("peeking", "import gymnasium", entries="")
        adding.install("broken", "raise ValueError('two\\nlines')", entries="")
        before, wrong = sorted(adding.folder.iterdir()), {}
        for command, tool, words in (
            ("evaluate", "not_there", "the tool 'not_there' is not installed"),
            ("evaluate", "gymnasium", "the tool 'gymnasium' imports gymnasium, which would let"),
            ("evaluate", "peeking", "the tool 'peeking' imports gymnasium, which would let"),
            ("evaluate", "broken", "the tool 'broken' cannot be imported (ValueError: two lines)"),
            ("synthesize", "broken", "the tool 'broken' cannot be imported (ValueError: two lines"),
            ("plan", "broken", "the tool 'broken' cannot be imported (ValueError: two lines)"),
        ):
            done = adding.inside(*COMMANDS[command], "--tool", tool)
            told = [line for line in done.stderr.splitlines() if not line.startswith("Note: ")]
            one_line = len(told) == 1 and told[0].startswith(f"Error: {words}")
            if (done.returncode, done.stdout, one_line) != (1, "", True):
                wrong[command, tool] = done
        assert wrong == {}
        assert sorted(adding.folder.iterdir()) == before


HUNGRY = """
import numpy as np

class Environment:
    def __init__(self):
        self.table = np.ones(20_000_000)  # 160 MB
    def set_state(self, observation):
        self.count = observation
    def step(self, action):
        return self.count + 1, 0.0, self.count >= 4
"""
SLOW = """
import time

class Environment:
    def set_state(self, observation):
        self.count = observation
        self.clock = lambda: time.process_time()  # cannot be pickled, so it cannot become a table
    def step(self, action):
        end = self.clock() + 0.12
        while self.clock() < end:
            pass
        self.count += 1
        return self.count, 0.0, self.count >= 5
"""


class TestLimits:
    @pytest.fixture
    def judged(self, adding):
        """Judge a program under limits."""

        def judge(text, *options):
            (adding.folder / "program.py").write_text(text)
            flags = [word for option in options for word in ("-o", option)]
            done = adding.inside("evaluate", "program.py", *COUNTED, "--json", *flags)
            failure = json.loads(done.stdout)["failure"]
            return failure["kind"] if failure else None

        return judge

    @pytest.mark.slow
    def test_memory_limit_can_be_changed(self, judged):
        assert judged(HUNGRY) is None
        assert judged(HUNGRY, "sandbox.memory_mb=100") == "memory"

    @pytest.mark.slow
    def test_time_limit_can_be_changed(self, judged):
        assert judged(SLOW) is None
        assert judged(SLOW, "stall_seconds=0.04") == "timeout_cpu"
        assert judged(SLOW, "sandbox.cpu_seconds=0.2") == "timeout_cpu"

    @pytest.mark.long
    def test_decision_has_its_own_limits(self, adding):
        (adding.folder / "slow.py").write_text(SLOW)
        slow = (*PLANNED, "--program", "slow.py", "-o", "simulations=8", "-o", "rollout=8")
        allowed = json.loads(adding.inside(*slow).stdout)
        assert allowed["failures"] == 0
        refused = json.loads(adding.inside(*slow, "-o", "sandbox.cpu_seconds=0.2").stdout)
        assert refused["failures"] > 0
        assert refused["failure"]["kind"] == "timeout_cpu"

    @pytest.mark.long
    def test_run_keeps_its_limits_for_later_evaluation(self, adding):
        start = (*COMMANDS["synthesize"], "--backend", "teacher", "--tool", "adder")
        assert adding.inside(*start, "-o", "sandbox.memory_mb=100", "-o", "told=").returncode == 0
        run = SearchRun.load(adding.folder / "here")
        assert run.config.options["sandbox"] == vars(Limits(memory_mb=100))
        other = adding.inside(*start, "-o", "told=")
        assert other.returncode == 1
        assert "here was started with other settings, sandbox.memory_mb" in other.stderr
        (run.folder / "best.py").write_text(HUNGRY)
        judge = ("evaluate", "here", *COUNTED[:2], "--json")
        assert json.loads(adding.inside(*judge).stdout)["failure"]["kind"] == "memory"
        more = json.loads(adding.inside(*judge, "-o", "memory_mb=900").stdout)
        assert more["failure"] is None

    @pytest.mark.parametrize("command", COMMANDS)
    def test_invalid_limits_are_refused_in_one_line(self, adding, command):
        done = adding.inside(*COMMANDS[command], "-o", "sandbox.memory_mb=0")
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.splitlines()[-1] == (
            "Error: invalid limit of the sandbox: memory_mb is 0; it must be from 1 to 1048576"
        )
        assert not (adding.folder / "here").exists()

    @pytest.mark.parametrize(
        ("option", "value"),
        [
            ("wall_seconds", -1.0),
            ("cpu_seconds", 0.0),
            ("stall_seconds", float("nan")),
            ("sleep_seconds", float("inf")),
            ("memory_mb", 1 << 50),
            ("output_bytes", -1),
        ],
    )
    def test_invalid_limit_names_the_allowed_range(self, option, value):
        with pytest.raises(ValueError, match=f"{option} is .*; it must be from .* to "):
            Limits(**{option: value})
        with pytest.raises(CwmError, match=f"invalid limit of the sandbox: {option}"):
            Limits.chosen({option: value})

    def test_misspelt_limit_gets_a_hint(self, adding):
        done = adding.inside(*COMMANDS["evaluate"], "-o", "memory=100")
        assert done.returncode == 1
        assert "unknown option 'memory'" in done.stderr
