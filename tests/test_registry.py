"""Plugins are found through entry points, and built-in plugins have no privileges."""

import importlib
import json
import re
import subprocess
import sys
from dataclasses import dataclass, field
from importlib.metadata import distribution

import pytest

from cwm_cli import registry
from cwm_cli.data.dataset import Dataset
from cwm_cli.errors import CwmError
from cwm_cli.planning import Planner

STRATEGY = '''
"""A third-party strategy, in the twenty lines of the README."""
from dataclasses import dataclass
from cwm_cli import hookimpl
from cwm_cli.search.contracts import Strategy

@hookimpl
def cwm_strategies():
    return {"greedy": "greedy_plugin:Greedy"}

@dataclass
class Greedy(Strategy):
    patience: int = 3

    def __post_init__(self):
        self.nodes = []

    def select(self, rng, pending):
        from cwm_cli.search.contracts import Move, GENERATE, IMPROVE
        if not self.nodes:
            return Move(GENERATE)
        best = max(self.nodes, key=lambda node: node.verdict.score)
        return Move(IMPROVE, best.id, best.program, best.verdict)

    def update(self, node):
        self.nodes.append(node)

    def state(self, node):
        return ""
'''

COMMAND = """
from cwm_cli import hookimpl

@hookimpl
def cwm_commands(app):
    @app.command("hello")
    def hello():
        "Greet."
        print("hello from a plugin")
"""


def rows(shell):
    answer = shell.inside("plugins", "--json")
    assert answer.returncode == 0, answer.stderr
    return json.loads(answer.stdout)


def names(shell, kind):
    return {name for row in rows(shell) if row["kind"] == kind for name in row["names"]}


@pytest.mark.slow
def test_plugins_command_lists_the_package_of_every_plugin(cwm):
    answer = cwm("plugins", "--json")
    assert answer.returncode == 0, answer.stderr
    found = json.loads(answer.stdout)
    assert {row["kind"] for row in found} >= {"environment", "backend", "strategy"}
    assert all(row["package"].startswith("cwm-cli ") for row in found)
    assert {"gif-mcts", "worldcoder", "zero-shot"} <= names(cwm, "strategy")
    assert {"litellm", "replay", "induction"} <= names(cwm, "backend")
    assert "CartPole-v1" in names(cwm, "environment")


@pytest.mark.slow
def test_third_party_package_adds_a_strategy_and_a_command(cwm):
    cwm.install("greedy_plugin", STRATEGY)
    cwm.install("hello_plugin", COMMAND)
    assert "greedy" in names(cwm, "strategy")
    assert {
        "kind": "command",
        "package": "hello_plugin 1.0 (hello_plugin)",
        "names": ["hello"],
    } in rows(cwm)
    assert cwm("hello").stdout == "hello from a plugin\n"
    assert "hello" in cwm("--help").stdout


def test_removing_an_entry_point_removes_its_strategy(cwm):
    info = cwm.packages / "cwm_cli-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: cwm-cli\nVersion: 0.1.0\n")
    entries = distribution("cwm-cli").read_text("entry_points.txt")
    kept = [line for line in entries.splitlines() if not line.startswith("zero-shot")]
    (info / "entry_points.txt").write_text("\n".join(kept))
    assert "zero-shot" not in names(cwm, "strategy")
    refused = cwm.inside("synthesize", "--env", "CartPole-v1", "--strategy", "zero-shot")
    assert refused.returncode == 1
    assert "unknown strategy 'zero-shot': choose one of" in refused.stderr


@pytest.mark.long
def test_name_of_two_plugins_needs_a_package_as_prefix(cwm):
    cwm.install("greedy_plugin", STRATEGY.replace('"greedy"', '"gif-mcts"'))
    assert "gif-mcts" in names(cwm, "strategy")
    fast = ["synthesize", "--env", "CartPole-v1", "--budget", "1", "--json", "--strategy"]
    refused = cwm.inside(*fast, "gif-mcts")
    assert refused.returncode == 1
    assert "both provide the strategy 'gif-mcts'" in refused.stderr
    assert "write cwm-cli:gif-mcts or greedy_plugin:gif-mcts" in refused.stderr
    for label in ("cwm-cli", "gif-mcts", "greedy_plugin"):
        answer = cwm.inside(*fast, f"{label}:gif-mcts")
        assert json.loads(answer.stdout)["solved"], (label, answer.stderr)


def test_options_lists_both_plugins_that_share_a_name(cwm):
    cwm.install("greedy_plugin", STRATEGY.replace('"greedy"', '"gif-mcts"'))

    def listed(name):
        answer = cwm.inside("options", name, "--json")
        assert answer.returncode == 0, answer.stderr
        return {each["name"] for each in json.loads(answer.stdout)["options"]}

    assert listed("gif-mcts") >= {"patience", "exploration"}
    assert listed("greedy_plugin:gif-mcts") == {"patience"}
    titles = cwm.inside("options", "gif-mcts").stdout
    assert "strategy greedy_plugin:gif-mcts" in titles
    assert "strategy cwm-cli:gif-mcts" in titles


def test_options_accepts_a_package_prefix_for_a_unique_name(cwm):
    cwm.install("greedy_plugin", STRATEGY)
    answer = cwm.inside("options", "greedy_plugin:greedy", "--json")
    assert [each["name"] for each in json.loads(answer.stdout)["options"]] == ["patience"]
    assert cwm.inside("options", "greedy_plugin:gif-mcts").returncode == 1


def test_part_without_the_base_class_of_its_kind_is_an_error(cwm):
    cwm.install("greedy_plugin", STRATEGY.replace("class Greedy(Strategy)", "class Greedy"))
    refused = cwm.inside("synthesize", "--env", "CartPole-v1", "--strategy", "greedy")
    assert refused.returncode == 1
    assert "must be a subclass of cwm_cli.search.contracts.Strategy" in refused.stderr
    assert len(refused.stderr.strip().splitlines()) <= 2


def test_misspelt_hook_is_an_error(cwm):
    cwm.install("greedy_plugin", STRATEGY.replace("cwm_strategies", "cwm_strategys"))
    refused = cwm.inside("plugins")
    assert refused.returncode == 1
    assert refused.stderr == (
        "Error: greedy_plugin 1.0 has an unknown hook cwm_strategys: did you mean cwm_strategies?\n"
    )


FAULTS = {
    "int is no class, function or address": ('"greedy_plugin:Greedy"', "3"),
    "the address 'greedy_plugin' is not of the form module:name": (
        '"greedy_plugin:Greedy"',
        '"greedy_plugin"',
    ),
    "the field 'patience' of Greedy needs a default value": ("patience: int = 3", "patience: int"),
    "invalid option of strategy: patience must be positive": (
        "self.nodes = []",
        "raise ValueError('patience must be positive')",
    ),
}


@pytest.mark.parametrize("words", FAULTS)
def test_faulty_part_is_reported_in_one_line(words, cwm):
    cwm.install("greedy_plugin", STRATEGY.replace(*FAULTS[words]))
    refused = cwm.inside("synthesize", "--env", "CartPole-v1", "--strategy", "greedy")
    assert refused.returncode == 1
    assert words in refused.stderr.splitlines()[-1]
    assert "Traceback" not in refused.stderr


def test_planner_without_its_needs_is_reported(monkeypatch):
    class Nothing(Planner):
        pass

    owner = registry.plugins().loaded[0]
    monkeypatch.setattr(registry, "_owners", lambda kind, name: [(owner, Nothing)])
    with pytest.raises(CwmError, match="the class Nothing must define NEEDS"):
        registry.find("planner", "nothing")


def test_plugin_that_fails_to_import_only_causes_a_warning(cwm):
    cwm.install("broken_plugin", "import module_that_is_not_there")
    answer = cwm("plugins", "--json")
    assert answer.returncode == 0
    assert "Warning: the plugin 'broken_plugin' (broken_plugin 1.0) is left out" in answer.stderr
    assert "module_that_is_not_there" in answer.stderr
    assert "gif-mcts" in answer.stdout


@pytest.mark.parametrize(
    ("kind", "name", "suggestion"),
    [
        ("environment", "Cartpole-v1", "did you mean CartPole-v1?"),
        ("environment", "rtmf", "did you mean rtfm?"),
        ("strategy", "gif_mcts", "did you mean gif-mcts?"),
        ("backend", "litelm", "did you mean litellm?"),
        ("environment", "zzz", "or name your own: MODULE:NAME or FILE.py"),
    ],
)
def test_unknown_name_gets_a_suggestion(kind, name, suggestion):
    with pytest.raises(CwmError, match=f"unknown {kind} '{name}'") as caught:
        registry.find(kind, name)
    assert suggestion in str(caught.value)


@pytest.mark.parametrize("name", ["rtfm", "cwm-cli:rtfm", "rtfm:rtfm"])
def test_alias_of_an_environment_is_found_by_name_and_package(name):
    assert registry.environment(name).id == "RTFM-v0"


def test_full_name_replaces_only_aliases():
    given = ("rtfm", "RTFM-v0", "CartPole-v1", "gymnasium:CartPole-v1", "zzz")
    names = [registry.full_name("environment", name) for name in given]
    assert names == ["RTFM-v0", "RTFM-v0", "CartPole-v1", "gymnasium:CartPole-v1", "zzz"]


@pytest.mark.slow
def test_plugin_adds_an_alias_of_its_own_part(cwm):
    cwm.install("greedy_plugin", STRATEGY.replace("{", '{"fast": "greedy", ', 1))
    assert {"fast", "greedy"} <= names(cwm, "strategy")
    assert "fast (= greedy)" in cwm("plugins").stdout
    solved = cwm.inside("synthesize", "--env", "CartPole-v1", "--budget", "1", "--strategy", "fast")
    assert solved.returncode == 0, solved.stderr


def owners():
    return [
        registry.Owner("strategy", registry.find("strategy", "gif-mcts")),
        registry.Owner("backend", registry.find("backend", "litellm")),
    ]


def test_options_that_identify_a_run():
    @dataclass
    class Parts:
        size: int = 1
        retries: int = field(default=2, metadata={"identity": False})
        later: str = field(default="", metadata={"identity": "changed"})

    owner = registry.Owner("parts", Parts)
    assert owner.identity(Parts(retries=5)) == {"size": 1}
    assert owner.identity(Parts(later="on")) == {"size": 1, "later": "on"}


def test_option_without_prefix_goes_to_the_owner_that_has_it():
    values = registry.read_options(["exploration=0.2", "backend.top_p=0.8"], owners())
    assert values == {"strategy": {"exploration": 0.2}, "backend": {"top_p": 0.8}}


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        ("explorat=1", "did you mean exploration?"),
        ("exploration=high", "invalid option exploration=high"),
        ("exploration", "write -o exploration=VALUE"),
        ("backend.exploration=1", "unknown option 'backend.exploration'"),
        ("model=x", "unknown option 'model'"),
        (
            "zzz=1",
            "choose one of api_base, backoff, batch, context, count_new, discount",
        ),
    ],
)
def test_invalid_option_is_an_error(pair, message):
    with pytest.raises(CwmError) as caught:
        registry.read_options([pair], owners())
    assert message in str(caught.value)


def test_option_of_two_owners_needs_a_prefix():
    twice = [registry.Owner(label, registry.find("strategy", "gif-mcts")) for label in "ab"]
    with pytest.raises(CwmError, match=r"write -o a\.exploration= or -o b\.exploration="):
        registry.read_options(["exploration=1"], twice)


POLICY = """
from dataclasses import dataclass
from cwm_cli import hookimpl
from cwm_cli.commands.policies import Policy

@hookimpl
def cwm_policies():
    return {"always": "always_plugin:Always"}

@dataclass
class Always(Policy):
    "Takes one action."
    action: int = 0
    "The action to take."

    def begin(self, stage, place, seed, earlier):
        return f"always {self.action}", lambda observation, step: self.action
"""


def conformance(shell, packages):
    """Run the conformance tests on packages, as their authors would."""
    chosen = ["--pyargs", "cwm_cli.testing", "-k", packages, "-q", "-p", "no:cacheprovider"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *chosen],
        cwd=shell.folder,
        env=shell.variables(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.slow
def test_conformance_tests_name_the_packages_if_none_matches(cwm):
    cwm.install("always_plugin", POLICY)
    failed = conformance(cwm, "always-plugin")
    assert failed.returncode == pytest.ExitCode.NO_TESTS_COLLECTED
    line = "No plugin matches -k 'always-plugin'. Installed packages: always_plugin, cwm-cli."
    assert line in failed.stdout


@pytest.mark.slow
def test_conformance_tests_find_an_undocumented_option_and_unseeded_randomness(cwm):
    documented = '    patience: int = 3\n    "Maximal number of nodes without progress."\n'
    valid = STRATEGY.replace(
        "class Greedy(Strategy):\n", 'class Greedy(Strategy):\n    "Greedy."\n'
    )
    cwm.install("greedy_plugin", valid.replace("    patience: int = 3\n", documented))
    cwm.install("always_plugin", POLICY)
    passed = conformance(cwm, "greedy_plugin or always_plugin")
    assert "6 passed" in passed.stdout, passed.stdout
    random = valid.replace(
        "best = max(self.nodes", "import random; best = random.choice(self.nodes)"
    )
    cwm.install("greedy_plugin", random.replace(", key=lambda node: node.verdict.score)", ""))
    failed = conformance(cwm, "greedy_plugin")
    assert "patience" in failed.stdout  # it has no docstring
    assert "tree differs" in failed.stdout or "run_search(name, seed=2).nodes" in failed.stdout
    assert "2 failed, 2 passed" in failed.stdout, failed.stdout


ENVIRONMENT = """
import gymnasium as gym
from cwm_cli import hookimpl
from cwm_cli.envs.spec import EnvironmentSpec

class Count(gym.Env):
    observation_space = gym.spaces.Discrete(LARGEST + 1)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at = 0
        return self.at, {}

    def step(self, action):
        self.at = min(self.at + 1, 3)
        return self.at, 0.0, False, False, {}

def restore(env, observation):
    env.at = observation
    return RESTORED

@hookimpl
def cwm_environments():
    return {"Count-v0": lambda: EnvironmentSpec(
        NAME, Count, lambda env: "It counts to 3.", lambda: {"count": "1"}, restore=restore)}
"""


@pytest.mark.slow
def test_conformance_tests_find_faults_of_an_environment(cwm):
    def outcome(name, largest, restored):
        text = ENVIRONMENT.replace("NAME", repr(name)).replace("LARGEST", largest)
        cwm.install("count_plugin", text.replace("RESTORED", restored))
        return conformance(cwm, "count_plugin").stdout

    assert "2 passed, 2 skipped" in outcome("Count-v0", "3", "True")
    found = outcome("Count-v1", "3", "None")
    assert "the hook and the description have different names" in found
    assert "what restore returns has to return a bool" in found
    assert "2 failed, 2 skipped" in found
    assert "2 is outside its space" in outcome("Count-v0", "1", "True")


def test_third_party_policy_records_data_and_has_options(cwm):
    cwm.install("always_plugin", POLICY)
    answer = cwm.inside(
        "collect", "--env", "CartPole-v1", "--policy", "always", "-o", "action=1", "--episodes", "2"
    )
    assert answer.returncode == 0, answer.stderr
    rows = Dataset.load(cwm.folder / "CartPole-v1.npz")
    assert set(rows.columns["actions"].tolist()) == {1}
    listed = json.loads(cwm.inside("options", "always", "--json").stdout)["options"]
    assert [(each["name"], each["meaning"]) for each in listed] == [
        ("action", "The action to take.")
    ]


PLANNER = """
from dataclasses import dataclass
from typing import ClassVar
from cwm_cli import hookimpl
from cwm_cli.planning import Planner

@hookimpl
def cwm_planners():
    return {"first": "first_plugin:First"}

@dataclass(frozen=True)
class First(Planner):
    "Takes the first action after a number of skipped ones."
    NEEDS: ClassVar[str] = "discrete actions"
    skip: int = 0
    "Number of skipped actions."

    @classmethod
    def serves(cls, action_space):
        return action_space.kind == "discrete"

    def plan(self, model, situations):
        return [[int(model.action_space.low[0]) + self.skip] for _ in situations]
"""

STILL = """
class Environment:
    def set_state(self, observation):
        self.observation = observation

    def step(self, action):
        return self.observation, 1.0, False
"""


@pytest.mark.slow
def test_third_party_planner_plans_in_the_sandbox_and_in_the_environment(cwm):
    cwm.install("first_plugin", PLANNER)
    (cwm.folder / "still.py").write_text(STILL)
    asked = ["--env", "CartPole-v1", "--program", "still.py", "--episodes", "2", "--json"]
    answer = cwm("plan", *asked, "--planner", "first", "--oracle", "-o", "skip=1")
    assert answer.returncode == 0, answer.stderr
    result = json.loads(answer.stdout)
    assert result["planner"] == "first" and not result["failures"] and result["model_steps"] == 0
    assert result["returns"] == result["oracle_returns"], "always pushed to the right"
    assert max(result["lengths"]) <= 12, "which no other planner does"
    broken = PLANNER.replace("return [[int(", "return [[{}['bug'], int(")
    cwm.install("first_plugin", broken)
    answer = cwm("plan", *asked, "--planner", "first", "--max-steps", "3")
    assert answer.returncode == 1
    words = "step error: the planner raised KeyError: 'bug' (first_plugin.py, line 23)"
    assert words in answer.stderr
    cwm.install("first_plugin", PLANNER)
    answer = cwm.inside("plan", *asked, "--planner", "first_plugin:first", "--max-steps", "3")
    assert json.loads(answer.stdout)["planner"] == "first_plugin:first", answer.stderr


@pytest.mark.parametrize(
    ("former", "present", "name"),
    [
        ("commands.data_import", "commands.data", "Importer"),
        ("commands.data_export", "commands.data", "Exporter"),
        ("runs.places", "runs.storage", "storage_of"),
    ],
)
def test_former_address_works_with_a_warning(former, present, name):
    sys.modules.pop(f"cwm_cli.{former}", None)
    with pytest.warns(DeprecationWarning, match=re.escape(f"is now cwm_cli.{present}")):
        old = importlib.import_module(f"cwm_cli.{former}")
    assert getattr(old, name) is getattr(importlib.import_module(f"cwm_cli.{present}"), name)
