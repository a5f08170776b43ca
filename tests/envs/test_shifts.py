"""Shifted environments have other constants and rules, drawn from a seed."""

import json
import re
from contextlib import closing
from typing import Any

import numpy as np
import pytest

from cwm_benchmark.configuration import shift_of
from cwm_cli.commands.recording import record
from cwm_cli.data.dataset import Dataset
from cwm_cli.envs.simulators import Attributes, is_exact
from cwm_cli.envs.tasks import SUITES
from cwm_cli.errors import CwmError
from cwm_cli.evaluation import PaperMetric
from cwm_cli.registry import environment
from cwm_cli.worlds import EnvironmentModel
from cwm_gymnasium.shifts import SHIFTED

SHIFTABLE = [name for name in SUITES["cwmb"] if environment(name).shift]


def walk(name: str, shift: int | None, steps: int = 30) -> list[str]:
    """Return the observations of random steps with fixed start and actions."""
    with closing(environment(name).make(shift=shift)) as env:
        env.action_space.seed(1)
        seen = [repr(env.reset(seed=1)[0])]
        for _ in range(steps):
            observation, reward, terminated, *_ = env.step(env.action_space.sample())
            seen.append(repr((observation, reward, terminated)))
            if terminated:
                env.reset()
        return seen


def test_benchmark_environments_without_texts_have_shifted_variants() -> None:
    assert [name for name in SUITES["cwmb"] if name not in SHIFTABLE] == ["RTFM-v0"]


QUICK = ["Blackjack-v1", "CliffWalking-v1", "CartPole-v1", "Acrobot-v1", "Swimmer-v5"]


@pytest.mark.parametrize("name", QUICK)
def test_variant_depends_on_the_seed(name: str) -> None:
    assert walk(name, 3) == walk(name, 3)
    others = [walk(name, shift, 60) for shift in (None, 1, 2, 3, 4)]
    assert len({tuple(each) for each in others}) == 5


@pytest.mark.long
def test_shifted_environment_is_saved_restored_and_played_in_batches() -> None:
    for name in SHIFTABLE:
        spec = environment(name)
        env, twin = spec.make(shift=2), spec.make(shift=2)
        made = spec.rewinder(env) if spec.rewinder else None
        assert is_exact(lambda env, spec=spec: spec.rewinder(env) or Attributes(env), env, twin), (
            name
        )
        if made is None:
            continue
        env.reset(seed=0)
        plans = np.array([[[env.action_space.sample() for _ in range(5)] for _ in range(2)]])
        assert made.returns([made.save()], plans.astype(float)) is not None, name


@pytest.mark.parametrize("name", ["InvertedPendulum-v5", "Reacher-v5"])
def test_shifted_environment_is_restored_from_its_observations(name: str) -> None:
    rows = record(
        environment(name), env_args={"shift": 1}, policy="random", episodes=4, test_episodes=1
    )
    metric = PaperMetric.of(rows.train)
    shifted = metric.ceiling(EnvironmentModel(environment(name), {"shift": 1}), rows.test)
    standard = metric.ceiling(EnvironmentModel(environment(name)), rows.test)
    assert shifted.accuracy > 0.99 > standard.accuracy


def test_description_of_a_shifted_environment_reveals_no_constant() -> None:
    for name in SHIFTABLE:
        spec = environment(name)
        with closing(spec.make()) as old, closing(spec.make(shift=1)) as new:
            text = spec.describe(new).partition("## Spaces")[0]
            assert text.startswith("This is a variant of the environment documented below"), name
            assert "?" in text, name
            before, after = (numbers(env.unwrapped) for env in (old, new))
            assert spec.describe(old) == spec.describe(spec.make()), name
        changed = {number for key in before for number in before[key] ^ after.get(key, set())}
        counts = set(range(400))  # of rows, items, actions and parts
        shown = {abs(float(found)) for found in re.findall(r"\d+\.\d+|\.\d+|\d+", text)}
        assert not shown & (changed - counts), name


def numbers(env: Any) -> dict[str, set[float]]:
    """Return the absolute values of the numbers of an environment, by attribute."""
    found = dict(vars(env))
    found |= {name: getattr(env, name) for name in dir(type(env)) if name.isupper()}
    if hasattr(env, "model"):
        options = env.model.opt
        found |= {name: getattr(options, name) for name in ("timestep", "gravity", "viscosity")}
        found |= {name: getattr(env.model, name) for name in ("dof_damping", "actuator_gear")}
        found["dt"] = env.dt
    kept = {}
    for name, value in found.items():
        if isinstance(value, float | int | tuple | np.ndarray) and name != "np_random":
            flat = np.ravel(np.array(value, dtype=object))
            kept[name] = {abs(float(n)) for n in flat if isinstance(n, float | int)}
    return kept


def test_invalid_shifts_are_errors_of_one_line(cwm) -> None:
    for words, message in {
        ("RTFM-v0", "--shift", "3"): "RTFM-v0 has no shifted variants: leave out --shift",
        ("CartPole-v1", "--shift", "3", "--env-arg", "shift=4"): "name one",
        ("CartPole-v1", "--env-arg", "shift=-4"): "--shift -4 is not a seed",
    }.items():
        result = cwm.inside("collect", "--env", *words)
        assert (result.returncode, result.stderr.count("\n")) == (1, 1), words
        assert message in result.stderr
    with pytest.raises(CwmError, match="is not a seed"):
        environment("Hopper-v5").make(shift=True)


def test_shift_is_stored_with_the_dataset_and_used_later(cwm) -> None:
    few = ("--policy", "random", "--episodes", "2", "--test-episodes", "1")
    cwm.inside("collect", "--env", "Reacher-v5", "--shift", "3", *few, "--out", "r.npz")
    assert Dataset.load(cwm.folder / "r.npz").metadata["env_args"] == {"shift": 3}
    (cwm.folder / "p.py").write_text(STILL)
    rows = ("p.py", "--env", "Reacher-v5", "--dataset", "r.npz")
    result = cwm.inside("evaluate", *rows, "--json")
    assert json.loads(result.stdout)["test"]["accuracy"] > 0
    other = cwm.inside("evaluate", *rows, "--shift", "4")
    assert other.returncode == 1
    assert "was recorded with --env-arg {'shift': 3}" in other.stderr


STILL = """
class Environment:
    def set_state(self, observation):
        self.observation = observation

    def step(self, action):
        return self.observation, 0.0, False
"""


def test_classes_in_the_table_are_registered_by_gymnasium() -> None:
    import gymnasium

    known = {str(spec.entry_point) for spec in gymnasium.registry.values()}
    assert SHIFTED.keys() <= known


@pytest.mark.long
def test_benchmark_searches_scores_and_plays_in_shifted_environments(cwm) -> None:
    result = cwm(
        *("benchmark", "--env", "CliffWalking-v1", "--shift", "2", "--budget", "1"),
        *("--backend", "induction", "--ceilings", "--plan", "--episodes", "1"),
        *("--max-steps", "20", "--run", "b"),
    )
    assert result.returncode == 0, result.stderr
    assert "Environments are shifted by seed 2" in (cwm.folder / "b" / "table.md").read_text()
    rows = Dataset.load(cwm.folder / "b" / "data" / "CliffWalking-v1.npz")
    assert rows.metadata["env_args"] == {"shift": 2}
    (row,) = json.loads((cwm.folder / "b" / "result.json").read_text())["rows"]
    assert row["ceiling"]["test"]["accuracy"] == 1.0


def test_shifted_suite_has_a_default_seed() -> None:
    assert shift_of("cwmb-shifted", [], None) == 0
    assert shift_of("cwmb-shifted", [], 3) == 3
    assert shift_of("cwmb", [], None) is None
    assert list(SUITES["cwmb-shifted"]) == SHIFTABLE
