"""Private parts of other packages are used only with a guard, and each guard works."""

import ast
import importlib
import inspect
import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from cwm_cli.cli import app
from cwm_cli.errors import CwmError
from cwm_cli.private_parts import MissingPartError, private_part, warn_once
from cwm_cli.registry import environment
from cwm_cli.sandbox import worker
from cwm_gymnasium import restoring, shifted_mujoco, shifted_rules
from cwm_gymnasium.mujoco_batch import Mujoco
from cwm_gymnasium.shifts import SHIFTED
from folders import ROOT

FOLDERS = ("cwm_cli", "plugins", "benchmarks", "examples", "extras")
REWARDS = "plugins/cwm_gymnasium/mujoco_rewards.py"
SHIFTS = "plugins/cwm_gymnasium/shifts.py"
RULES = "plugins/cwm_gymnasium/shifted_rules.py"

STEPPED = "private_part: a warning, and plans are played one at a time"
REFUSED = "private_part: --shift is refused in one line"
RESTORED = "a missing method or attribute means that no observation is restored"

ALLOWED: Mapping[str, Mapping[str, str]] = {
    REWARDS: {
        "_contact_cost_range": STEPPED,
        "_contact_cost_weight": STEPPED,
        "_contact_force_range": STEPPED,
        "_ctrl_cost_weight": STEPPED,
        "_forward_reward_weight": STEPPED,
        "_healthy_angle_range": STEPPED,
        "_healthy_reward": STEPPED,
        "_healthy_state_range": STEPPED,
        "_healthy_z_range": STEPPED,
        "_impact_cost_range": STEPPED,
        "_impact_cost_weight": STEPPED,
        "_main_body": STEPPED,
        "_reward_control_weight": STEPPED,
        "_reward_dist_weight": STEPPED,
        "_reward_near_weight": STEPPED,
        "_terminate_when_unhealthy": STEPPED,
        "_use_contact_forces": STEPPED,
    },
    SHIFTS: {
        "_contact_cost_weight": REFUSED,
        "_ctrl_cost_weight": REFUSED,
        "_forward_reward_weight": REFUSED,
        "_healthy_angle_range": REFUSED,
        "_healthy_reward": REFUSED,
        "_healthy_z_range": REFUSED,
        "_impact_cost_weight": REFUSED,
        "_reward_control_weight": REFUSED,
        "_reward_dist_weight": REFUSED,
        "_reward_near_weight": REFUSED,
    },
    "plugins/cwm_gymnasium/shifted_mujoco.py": {
        "_healthy_reward": "the shift that makes this class refuses in its place (see shifts.py)",
    },
    RULES: {
        "_build_dry_transitions": REFUSED,
        "_build_rainy_transitions": REFUSED,
        "_calculate_transition_prob": REFUSED,
        "_cliff": REFUSED,
        "_get_obs": "an override that the class calls itself in `reset` and `step`",
    },
    "plugins/cwm_gymnasium/restoring.py": {
        "_get_ob": RESTORED,
        "_get_obs": RESTORED,
        "_np_random_seed": RESTORED,
    },
    "plugins/cwm_ray/executor.py": {
        "_private": "_silence: a warning, and Ray's messages appear among the results",
        "_worker_logs_enabled": "_silence: a warning, and Ray's messages appear among the results",
    },
    "benchmarks/variants.py": {
        "_calculate_transition_prob": "private_part: one line",
        "_cliff": "private_part: one line",
    },
}
"""The private parts that are used, by file and name, with the guard of each."""

DOCUMENTED = {"_asdict", "_exit", "_field_defaults", "_fields", "_getframe", "_make", "_replace"}
"""Names of the standard library that its documentation describes, in spite of their underscore."""

PRIVATE = re.compile(r"_[a-z][a-z0-9_]*(?<!_)")
ACCESSORS = {"getattr", "hasattr", "setattr", "delattr", "private_part", "scale", "reduce"}
ACCESSORS |= {"widen", "choose", "derive"}


def sources() -> dict[str, ast.Module]:
    paths = (path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py")))
    return {str(path.relative_to(ROOT)): ast.parse(path.read_bytes()) for path in paths}


def defined_in(tree: ast.AST) -> Iterator[str]:
    """Yield the names that a file defines: of functions, classes, variables and attributes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            if isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"):
                yield node.attr
        elif isinstance(node, ast.Dict):  # the attributes of a class that `type` makes
            yield from (text for key in node.keys if key for text in texts(key))


def texts(node: ast.AST) -> Iterator[str]:
    """Yield the texts within an expression."""
    for part in ast.walk(node):
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield part.value


def used_in(tree: ast.Module) -> Iterator[tuple[int, str, bool]]:
    """Yield the private names that a file uses: line, name, whether the owner is `self` or `cls`.

    Names come from attributes, imports, texts given to functions such as `getattr`, and constants
    of the module, whose texts may be given to such functions.
    """
    found: list[tuple[int, str]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            is_self = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            if is_self and is_private(node.attr):
                yield node.lineno, node.attr, True
            elif not is_self:
                found.append((node.lineno, node.attr))
        elif isinstance(node, ast.ImportFrom) and not node.level:
            parts = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
            found += [(node.lineno, part) for part in parts]
        elif isinstance(node, ast.Import):
            names = (part for alias in node.names for part in alias.name.split("."))
            found += [(node.lineno, part) for part in names]
        elif isinstance(node, ast.Call):
            found += [(node.lineno, name) for name in names_in_call(node)]
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            found += [(statement.lineno, text) for text in texts(statement.value)]
    yield from ((line, name, False) for line, name in found if is_private(name))


def names_in_call(call: ast.Call) -> Iterator[str]:
    """Yield the names that a call gives as texts, or to Ray as keywords."""
    function = call.func.attr if isinstance(call.func, ast.Attribute) else call.func
    name = function.id if isinstance(function, ast.Name) else function
    if name in ACCESSORS:
        yield from (text for given in call.args for text in texts(given))
    elif name == "import_module":
        yield from (
            part for given in call.args for text in texts(given) for part in text.split(".")
        )
    elif name == "init":
        yield from (keyword.arg for keyword in call.keywords if keyword.arg)


def is_private(name: str) -> bool:
    return PRIVATE.fullmatch(name) is not None and name not in DOCUMENTED


def families(trees: Mapping[str, ast.Module]) -> dict[str, set[str]]:
    """Return, for each file, the files that define a base of one of its classes, and itself."""
    homes: dict[str, set[str]] = defaultdict(set)
    bases: dict[str, set[str]] = {}
    for path, tree in trees.items():
        classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
        for node in classes:
            homes[node.name].add(path)
        names = [ast.unparse(base).partition("[")[0] for node in classes for base in node.bases]
        bases[path] = {name.rpartition(".")[2] for name in names}
    found = {path: {path} for path in trees}
    for family in found.values():
        waiting = list(family)
        while waiting:
            new = set().union(*(homes[name] for name in bases[waiting.pop()])) - family
            family |= new
            waiting += new
    return found


@pytest.mark.slow
def test_private_parts_of_other_packages_have_a_guard() -> None:
    trees = sources()
    defined = {path: set(defined_in(tree)) for path, tree in trees.items()}
    # a name that is private to a package may be ours in another file
    anywhere = set().union(*defined.values()).difference(*ALLOWED.values())
    problems = []
    for path, family in families(trees).items():
        own, allowed = set().union(*(defined[each] for each in family)), ALLOWED.get(path, {})
        others = anywhere | defined[path]
        used = set(used_in(trees[path]))
        problems += [
            f"{path}:{line}: {name} is private to another package: use a public way, or guard it "
            f"with cwm_cli.private_parts and add it to ALLOWED in {Path(__file__).name}"
            for line, name, is_self in sorted(used)
            if name not in allowed and name not in (own if is_self else others)
        ]
        unused = allowed.keys() - {name for _, name, _ in used}
        problems += [f"{path}: {name} is in ALLOWED, but no longer used" for name in unused]
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize(
    "code",
    [
        "env._cliff",
        "import ray._private.worker",
        "from functools import _lru_cache_wrapper",
        "import_module('ray._private.worker')",
        "getattr(env, '_cliff', None)",
        "scale('_ctrl_cost_weight')",
        "READERS = ('_get_obs',)",
        "self._add_info(infos)",
        "ray.init(_system_config={})",
    ],
)
def test_the_scan_finds_private_parts(code: str) -> None:
    assert [line for line, *_ in used_in(ast.parse(code))] == [1]


@pytest.mark.parametrize("code", ["point._replace(x=1)", "cls.__name__", "os._exit(0)", "_own()"])
def test_the_scan_ignores_documented_names(code: str) -> None:
    assert not list(used_in(ast.parse(code)))


def test_shifted_classes_override_no_private_method_of_gymnasium() -> None:
    """Gymnasium might rename a method, and the override would then have no effect."""
    for module in (shifted_rules, shifted_mujoco):
        for cls in vars(module).values():
            if inspect.isclass(cls) and cls.__module__ == module.__name__:
                path = f"plugins/{module.__name__.replace('.', '/')}.py"
                names = {name for name in vars(cls) if PRIVATE.fullmatch(name)}
                overridden = {name for name in names if hasattr(cls.__base__, name)}
                assert overridden <= ALLOWED[path].keys()


# --- guards


@pytest.fixture(autouse=True)
def forget_warnings() -> Iterator[None]:
    """Clear the cache of logged warnings around every test."""
    warn_once.cache_clear()
    yield
    warn_once.cache_clear()


@pytest.fixture
def rename(monkeypatch: pytest.MonkeyPatch):
    """Return a function that makes Gymnasium use another name for an attribute.

    It runs the source of the module with the other name, so the environment works as before.
    """

    def renamed(module: str, attribute: str) -> None:
        original = importlib.import_module(module)
        text = Path(str(original.__file__)).read_text()
        assert re.search(rf"\b{attribute}\b", text)
        changed = ModuleType(module)
        changed.__file__ = original.__file__
        changed.__package__ = original.__package__
        text = re.sub(rf"\b{attribute}\b", f"{attribute}_renamed", text)
        exec(compile(text, str(original.__file__), "exec"), vars(changed))
        monkeypatch.setitem(sys.modules, module, changed)

    return renamed


MUJOCO = {
    "Ant-v4": ("_use_contact_forces",),
    "Ant-v5": ("_contact_cost_weight", "_contact_force_range", "_main_body", "_healthy_reward"),
    "HalfCheetah-v5": ("_forward_reward_weight", "_ctrl_cost_weight"),
    "Hopper-v5": ("_healthy_state_range", "_healthy_z_range", "_terminate_when_unhealthy"),
    "Humanoid-v5": ("_contact_cost_range",),
    "HumanoidStandup-v5": ("_impact_cost_weight", "_impact_cost_range"),
    "InvertedDoublePendulum-v5": ("_healthy_reward",),
    "Pusher-v5": ("_reward_near_weight",),
    "Reacher-v5": ("_reward_dist_weight", "_reward_control_weight"),
    "Walker2d-v5": ("_healthy_angle_range",),
}


def module_of(name: str) -> str:
    import gymnasium

    return str(gymnasium.spec(name).entry_point).partition(":")[0]


def test_every_private_reward_is_renamed_in_a_test() -> None:
    assert {name for names in MUJOCO.values() for name in names} == ALLOWED[REWARDS].keys()


@pytest.mark.parametrize(
    ("name", "attribute"), [(name, part) for name, parts in MUJOCO.items() for part in parts]
)
def test_plans_are_played_one_at_a_time_without_a_private_reward(
    rename, name: str, attribute: str, caplog: pytest.LogCaptureFixture
) -> None:
    rename(module_of(name), attribute)
    with closing(environment(name).make()) as env:
        env.reset(seed=0)
        plans = np.array([[[env.action_space.sample() for _ in range(3)]]], float)
        for _ in range(2):
            rewinder = Mujoco(env)
            assert rewinder.returns([rewinder.save()], plans) is None
        assert np.isfinite(env.step(env.action_space.sample())[1])
    (message,) = caplog.messages
    assert re.fullmatch(
        rf"gymnasium [\d.]+ has no \w+\.{attribute}: plans are simulated one at a time, "
        "which is slower",
        message,
    )


SHIFTABLE = {
    "Ant-v5": ("_healthy_z_range", "_contact_cost_weight"),
    "CliffWalking-v1": ("_cliff", "_calculate_transition_prob"),
    "Hopper-v5": ("_forward_reward_weight", "_ctrl_cost_weight", "_healthy_angle_range"),
    "HumanoidStandup-v5": ("_impact_cost_weight",),
    "InvertedDoublePendulum-v5": ("_healthy_reward",),
    "Pusher-v5": ("_reward_near_weight", "_reward_dist_weight", "_reward_control_weight"),
    "Taxi-v4": ("_build_dry_transitions",),
}


def test_every_private_part_of_a_shift_is_renamed_in_a_test() -> None:
    renamed = {name for names in SHIFTABLE.values() for name in names}
    assert renamed | {"_build_rainy_transitions", "_get_obs"} == (
        ALLOWED[SHIFTS].keys() | ALLOWED[RULES].keys()
    )


def refusal(name: str, **env_args: object) -> str:
    """Return the error message of a refused shift."""
    with pytest.raises(CwmError) as error:
        environment(name).make(shift=1, **env_args)
    return str(error.value)


@pytest.mark.parametrize(
    ("name", "attribute"), [(name, part) for name, parts in SHIFTABLE.items() for part in parts]
)
def test_a_shift_is_refused_without_a_private_part(
    rename, monkeypatch: pytest.MonkeyPatch, name: str, attribute: str
) -> None:
    rename(module_of(name), attribute)
    if name == "InvertedDoublePendulum-v5":  # its shifted class has to be based on the new one
        monkeypatch.delitem(sys.modules, shifted_mujoco.__name__)
    message = refusal(name)
    assert message.startswith(f"{name} cannot be shifted (gymnasium ")
    assert f".{attribute})" in message
    assert message.endswith(": leave out --shift")
    environment(name).make().close()


def test_a_shift_of_a_rainy_taxi_is_refused_without_its_private_part(rename) -> None:
    rename(module_of("Taxi-v4"), "_build_rainy_transitions")
    assert "TaxiEnv._build_rainy_transitions" in refusal("Taxi-v4", is_rainy=True)


@pytest.mark.parametrize(
    ("name", "attribute"), [("CartPole-v1", "kinematics_integrator"), ("CartPole-v1", "total_mass")]
)
def test_a_shift_is_refused_without_a_public_attribute(rename, name: str, attribute: str) -> None:
    rename(module_of(name), attribute)
    assert f"CartPoleEnv.{attribute}" in refusal(name)


def test_every_shift_still_works() -> None:
    from gymnasium import registry

    names = [name for name, spec in registry.items() if str(spec.entry_point) in SHIFTED]
    for name in names:
        with closing(environment(name).make(shift=3)) as env:
            env.reset(seed=0)
            env.step(env.action_space.sample())


def test_the_command_line_prints_a_refused_shift_in_one_line(rename) -> None:
    from typer.testing import CliRunner

    rename(module_of("CliffWalking-v1"), "_cliff")
    found = CliRunner().invoke(app, ["collect", "--env", "CliffWalking-v1", "--shift", "1"])
    assert found.exit_code == 1
    (line,) = found.stderr.splitlines()
    assert "CliffWalking-v1 cannot be shifted (gymnasium" in line


def test_a_warning_is_one_line_of_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    from cwm_cli.views.lines import speak

    speak("usual")
    for _ in range(2):
        warn_once("gymnasium 9.9 has no A._b")
    assert capsys.readouterr().err == "Warning: gymnasium 9.9 has no A._b\n"


@pytest.mark.parametrize("name", ["Pendulum-v1", "Hopper-v5", "Reacher-v5"])
def test_an_observation_is_restored_rightly_or_not_without_the_method_that_observes(
    rename, name: str
) -> None:
    rename(module_of(name), "_get_obs")
    assert_restored_or_refused(name, "_get_obs_renamed")


def test_an_observation_is_restored_rightly_or_not_without_the_attribute_of_the_seed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(restoring, "SEED", "_np_random_seed_renamed")
    assert_restored_or_refused("Pendulum-v1", "_get_obs")


def assert_restored_or_refused(name: str, observe: str) -> None:
    """Check that an observation of another episode is shown after it was restored."""
    spec = environment(name)
    assert spec.restore is not None
    with closing(spec.make()) as env:
        observation, _ = env.reset(seed=0)
        env.reset(seed=1)
        if spec.restore(env.unwrapped, observation):
            assert np.allclose(getattr(env.unwrapped, observe)(), observation, atol=1e-5)


def test_the_message_names_package_version_and_owner() -> None:
    with pytest.raises(MissingPartError, match=r"^numpy [\d.]+ has no Generator\._nothing$"):
        private_part(np.random.default_rng(0), "_nothing")


def test_ray_keeps_its_messages_without_its_private_switch(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from cwm_ray.executor import _silence

    monkeypatch.setitem(sys.modules, "ray", ModuleType("ray"))
    monkeypatch.setitem(sys.modules, "ray._private", ModuleType("ray._private"))
    monkeypatch.setitem(sys.modules, "ray._private.worker", ModuleType("ray._private.worker"))
    _silence()
    monkeypatch.delitem(sys.modules, "ray._private.worker")
    _silence()
    assert len(caplog.messages) == 2
    assert all(": messages of Ray about its nodes will appear" in each for each in caplog.messages)


SLIM = """
import gymnasium

def make(**options):
    return gymnasium.make("HalfCheetah-v5", **options).unwrapped

gymnasium.register("Slim-v0", entry_point=make, max_episode_steps=20)
"""
COLLECT = (
    "collect --episodes 1 --test-episodes 1 --max-steps 12 --policy random --out rows.npz --env"
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        f"{COLLECT} HalfCheetah-v5",
        f"{COLLECT} slim:Slim-v0",
        f"{COLLECT} CliffWalking-v1",
        "plan --env HalfCheetah-v5 --real-env --episodes 1 --max-steps 2",
    ],
)
def test_no_warning_of_another_package_reaches_the_terminal(command: str, tmp_path: Path) -> None:
    (tmp_path / "slim.py").write_text(SLIM)
    paths = os.pathsep.join(path for path in sys.path if path)
    done = subprocess.run(
        [sys.executable, "-W", "default", "-m", "cwm_cli", *command.split()],
        cwd=tmp_path,
        env={**os.environ, "PYTHONWARNINGS": "default", "PYTHONPATH": paths, "CI": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not re.search("warning|deprecat", done.stdout + done.stderr, re.IGNORECASE)
    assert not list(tmp_path.glob("*.TXT")), "MuJoCo writes warnings to a file as well"


def test_an_exported_package_does_not_show_warnings_of_mujoco(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    import gymnasium
    import mujoco

    from cwm_cli.export.templates.rendering import without_mujoco_warnings

    monkeypatch.chdir(tmp_path)
    before = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(None)
    try:
        with without_mujoco_warnings("HalfCheetah-v5"):
            gymnasium.make("HalfCheetah-v5").close()
        assert mujoco.get_mju_user_warning() is None
    finally:
        mujoco.set_mju_user_warning(before)
    assert capfd.readouterr().err == ""
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("failing", ["from_xml_string", "usethread"])
def test_a_mujoco_that_compiles_in_threads_only_is_refused_as_a_tool(failing: str) -> None:
    mujoco = pytest.importorskip("mujoco")

    class Model:
        """Refuses the option that MuJoCo has today."""

        @staticmethod
        def from_xml_string(xml: str) -> object:
            if failing == "from_xml_string" and "usethread" in xml:
                raise ValueError("unrecognized attribute: 'usethread'")
            return xml

    class Specification:
        """Has no such option."""

        def compile(self) -> None:
            """Compile nothing."""

        recompile = compile

    assert mujoco.MjModel.from_xml_string("<mujoco/>")
    other = SimpleNamespace(MjModel=Model, MjSpec=Specification)
    with pytest.raises(worker.BadTool, match="this 'mujoco' compiles models only in threads"):
        worker.WITHOUT_THREADS["mujoco"](other)
