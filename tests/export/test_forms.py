"""Exported programs in other forms: plain numbers, NumPy and JAX compute the same steps."""

import sys
from contextlib import closing

import gymnasium
import numpy as np
import pytest

import recordings
from cwm_cli import CwmError
from cwm_cli.commands.collect import collect
from cwm_cli.data.dataset import Dataset
from cwm_cli.export import export_of, publish
from cwm_cli.export.package import make_names
from cwm_cli.sandbox import Limits, Sandbox
from cwm_cli.sandbox.protection import GAPS
from cwm_cli.worlds.translating import is_arithmetic, translated
from folders import WORLD_MODELS
from search_runs import run_of
from worlds import CAR, CARTPOLE, LOOPING, PENDULUM

PROGRAMS = {
    "CartPole-v1": CARTPOLE,
    "Pendulum-v1": PENDULUM,
    "MountainCar-v0": CAR,
    "Taxi-v4": (WORLD_MODELS / "taxi_map.py").read_text(),
}


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """Return recorded transitions of an environment."""
    folder, made = tmp_path_factory.mktemp("rows"), {}

    def record(env):
        if env not in made:
            file = folder / f"{env}.npz"
            collect(env, episodes=3, test_episodes=2, policy="random", out=file)
            made[env] = Dataset.load(file)
        return made[env]

    return record


def translate(program, data, forms=("python", "numpy")):
    with Sandbox(Limits(), accepted=list(GAPS)) as sandbox:
        return translated(sandbox, program, data, forms)


def step_of(text):
    names = {}
    exec(text, names)
    return names["step"]


def arrays(data):
    """Return the states and actions of a dataset in the types of programs."""
    spaces = (data.observation_space, data.action_space)
    columns = (data.columns[name] for name in ("observations", "actions"))
    return [
        column.astype(float if space.is_float else int)
        for space, column in zip(spaces, columns, strict=True)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("env", PROGRAMS)
def test_all_forms_of_a_program_agree(env, rows):
    jax = pytest.importorskip("jax")
    data, program = rows(env), PROGRAMS[env]
    found = translate(program, data, ["python", "numpy", "jax"])
    assert found.reason == "" and [*found.texts] == ["python", "numpy", "jax"]
    assert all(map(is_arithmetic, found.texts.values()))
    states, actions = arrays(data)
    together = step_of(found.texts["numpy"])(states, actions)
    assert together[1].dtype == float and together[2].dtype == bool
    single, names = step_of(found.texts["python"]), {}
    exec(program, names)
    model = names["Environment"]()
    for row in range(0, len(states), 5):
        state, action = states[row].tolist(), actions[row].tolist()
        alone = single(state, action)
        model.set_state(np.array(state) if states.ndim > 1 else state)
        expected = model.step(np.array(action) if actions.ndim > 1 else action)
        for one, many, true in zip(alone, together, expected, strict=True):
            assert np.allclose(one, true, 1e-12, 1e-12)
            assert np.allclose(many[row], true, 1e-12, 1e-12)
    with jax.enable_x64(True):
        lanes = jax.jit(jax.vmap(step_of(found.texts["jax"])))(states, actions)
    for one, many in zip(lanes, together, strict=True):
        assert np.allclose(one, many, 1e-9, 1e-9)


@pytest.mark.slow
def test_translation_keeps_the_names_of_the_program(rows):
    text = translate(CAR, rows("MountainCar-v0")).texts["numpy"]
    assert "GRAVITY = 0.0025\n" in text
    assert "    position, velocity = state.T\n" in text
    assert max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (CAR.replace("0.001 -", "self.rng.normal() -"), "draws random numbers"),
        (CAR.replace("-1.0, bool", "float(str(velocity)), bool"), "the text of a number"),
    ],
)
def test_other_programs_are_refused_with_the_reason(program, reason, rows):
    found = translate(program, rows("MountainCar-v0"))
    assert found.texts == {} and reason in found.reason


@pytest.mark.parametrize(
    "text",
    [
        "import os",
        "import numpy as np\nnp.load('file')",
        "def step(state, action):\n    return open('file')",
        "step = ().__class__",
        "def step(state, action):\n    return (lambda: state)()",
        "",
        "def (",
    ],
)
def test_text_that_does_more_than_arithmetic_is_not_accepted(text):
    assert not is_arithmetic(text)


def packaged(folder, program, data, monkeypatch, form="auto"):
    """Export a run of a program, and return its export and the id of the environment."""
    run = run_of(program, data, folder / "run")
    made = export_of(run.folder, form=form, accepted=list(GAPS))
    publish(made, folder / "export")
    names = make_names(data.metadata["env"])
    monkeypatch.syspath_prepend(folder / "export")
    for known in [name for name in sys.modules if name.split(".")[0] == names.module]:
        monkeypatch.delitem(sys.modules, known)
    gymnasium.registry.pop(names.id, None)
    return made, f"{names.module}:{names.id}"


@pytest.mark.parametrize("program", [CAR, LOOPING], ids=["translated", "in part"])
def test_vector_environment_plays_the_episodes_of_single_environments(
    program, rows, tmp_path, monkeypatch
):
    made, name = packaged(tmp_path, program, rows("MountainCar-v0"), monkeypatch)
    assert made.facts["forms"] == ["numpy"]
    ours, others = (
        gymnasium.make_vec(name, num_envs=4, vectorization_mode=mode, max_episode_steps=90)
        for mode in (None, "sync")
    )
    with closing(ours), closing(others):
        assert (ours.reset(seed=1)[0] == others.reset(seed=1)[0]).all()
        for step in range(200):
            actions = np.array([step // 30 % 2 * 2, step % 3, 2, 0])
            pairs = [*zip(ours.step(actions), others.step(actions), strict=True)][:4]
            assert all(np.allclose(one, other, 1e-6, 1e-7) for one, other in pairs), step


SLIDING = """
class Environment:
    def set_state(self, observation):
        self.place = observation

    def outcomes(self, action):
        there = (self.place + action) % 16
        return [(0.75, there, float(there == 15), there == 15), (0.25, self.place, 0.0, False)]
"""


@pytest.mark.slow
def test_random_outcomes_are_drawn_from_a_table(rows, tmp_path, monkeypatch):
    data = rows("FrozenLake-v1")
    made, name = packaged(tmp_path, SLIDING, data, monkeypatch)
    assert made.facts["forms"] == ["numpy"]
    ours, others = (
        gymnasium.make_vec(name, num_envs=3, vectorization_mode=mode, max_episode_steps=30)
        for mode in (None, "sync")
    )
    _, slow = packaged(tmp_path / "slow", SLIDING, data, monkeypatch, "python")
    program = gymnasium.make_vec(slow, num_envs=3, max_episode_steps=30)
    moved = []
    with closing(ours), closing(others), closing(program):
        before, *_ = [each.reset(seed=8)[0] for each in (ours, others, program)]
        for step in range(400):
            actions = np.array([1, step % 4, 3])
            answers = [each.step(actions)[:4] for each in (ours, others, program)]
            for one, *rest in zip(*answers, strict=True):
                assert all((one == other).all() for other in rest), step
            moved.append(answers[0][0][0] != before[0])
            before = answers[0][0]
    assert 0.65 < np.mean(moved) < 0.85


@pytest.mark.slow
def test_package_in_jax_plays_under_scan(rows, tmp_path, monkeypatch):
    jax = pytest.importorskip("jax")
    made, name = packaged(tmp_path, CAR, rows("MountainCar-v0"), monkeypatch, "jax")
    assert made.facts["forms"] == ["numpy", "jax"]
    module = __import__(f"{name.partition(':')[0]}.jax_environment", fromlist=["step"])
    keys = jax.random.split(jax.random.key(0), 8)

    def advance(states, key):
        answers = jax.vmap(module.step)(jax.random.split(key, 8), states, actions)
        return answers[1], (answers[0], answers[3], answers[1].time)

    actions = jax.numpy.full(8, 2)
    _, states = jax.vmap(module.reset)(keys)
    step_keys = jax.random.split(jax.random.key(1), 250)
    _, (seen, dones, times) = jax.jit(lambda s: jax.lax.scan(advance, s, step_keys))(states)
    assert seen.shape == (250, 8, 2) and (np.abs(seen[..., 1]) <= 0.07).all()
    assert dones.sum() >= 8  # by the time limit of 200 steps
    assert (times[dones] == 0).all() and times.max() == 199


def test_form_that_does_not_exist_is_an_error(rows, tmp_path, monkeypatch):
    data, program = rows("FrozenLake-v1"), recordings.FROZEN_LAKE.replace("col", "random_col")
    drawn = program.replace(
        "def step(self, action):", "def step(self, action):\n        self.rng.random()"
    )
    made, _ = packaged(tmp_path, drawn, data, monkeypatch)
    assert made.facts["forms"] == ["python"] and "runs the program itself" in made.notes[-1]
    with pytest.raises(CwmError, match="the program has no form numpy: "):
        export_of(tmp_path / "run", form="numpy", accepted=list(GAPS))
