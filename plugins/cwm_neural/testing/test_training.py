"""Conformance tests: trainers and agents fulfil the contracts of their base classes."""

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cwm_cli.commands.recording import record
from cwm_cli.data.dataset import Dataset
from cwm_cli.data.spaces import Columns
from cwm_cli.envs.spec import EnvironmentSpec
from cwm_cli.envs.tasks import Task
from cwm_cli.errors import CwmError
from cwm_cli.hookspecs import Kind
from cwm_cli.planning import Moment
from cwm_cli.planning.model import EpisodeHistory
from cwm_cli.registry import conformance_example, environment, find
from cwm_cli.testing.conftest import Material
from cwm_cli.testing.test_conformance import every
from cwm_cli.worlds.environment import EnvironmentModel
from cwm_cli.worlds.model import ImaginedStep, Planning
from cwm_neural.training.trainer import Agent, Training, TrainingTask

pytestmark = pytest.mark.slow  # most trainers import torch

STEPS = 4
"""Steps for one call of `fit`; at one update per step this is enough for an update."""


@dataclass(frozen=True)
class TrainerCase:
    """A trainer with its smallest options, and rows of an environment that it supports."""

    trainer: Any
    spec: EnvironmentSpec
    rows: Dataset
    task: TrainingTask

    def begin(self) -> Any:
        """Return an untrained model or agent."""
        return self.trainer.begin(self.task)

    @property
    def model(self) -> EnvironmentModel:
        """The world model for agents."""
        return EnvironmentModel(self.spec)


def case_of(kind: Kind, name: str, material: Material) -> TrainerCase:
    """Return the example of a trainer, or its preset `tiny`, and rows that it supports."""
    factory = find(kind, name)
    if missing := factory.missing():
        pytest.skip(f"{missing} is not installed")
    tiny = {"preset": "tiny"} if "tiny" in factory.PRESETS else {}
    example = conformance_example(kind, name)
    trainer = example(material) if example else factory(**tiny)
    refused = ""
    # objects and images: trainers without support for vectors use the first supported one
    other_environments = ("MiniGrid-Empty-5x5-v0", "Catch-v0")
    for known in (material.spec.id, *other_environments):
        try:
            spec = environment(known)
            rows = material.dataset if known == material.spec.id else record_episodes(spec)
            spaces = rows.observation_space, rows.action_space
            task = TrainingTask(*spaces, schema=schema_of(spec), env=spec.id)
            trainer.begin(task)
        except CwmError as error:
            refused = str(error)
            assert len(refused.splitlines()) == 1
            continue
        return TrainerCase(trainer, spec, rows, task)
    pytest.skip(refused)


def record_episodes(spec: EnvironmentSpec) -> Dataset:
    """Record a few short random episodes."""
    return record(spec, policy="random", episodes=4, test_episodes=1, max_steps=12)


def schema_of(spec: EnvironmentSpec) -> Any:
    """Return the schema of an environment's object tables."""
    with closing(spec.make()) as env:
        return None if spec.objects is None else spec.objects(env)


def histories(rows: Dataset, steps: int) -> list[EpisodeHistory]:
    """Return the first steps of each episode."""
    found = []
    for episode in np.unique(rows.columns["episodes"]):
        part = [*rows[rows.columns["episodes"] == episode]][:steps]
        seen = (part[0].observation, *(row.next_observation for row in part))
        done = tuple(row.action for row in part)
        found.append(EpisodeHistory(seen, done, tuple(row.reward for row in part)))
    return found


def actions_of(rows: Dataset, count: int) -> Columns:
    """Return the first recorded actions."""
    return {name: column[:count] for name, column in rows.select("actions").items()}


def is_finite(numbers: Mapping[str, float]) -> bool:
    """Whether all numbers are finite."""
    return all(np.isfinite(number) for number in numbers.values())


def assert_equal(left: Columns, right: Columns) -> None:
    """Check that all columns are equal."""
    assert left.keys() == right.keys()
    for name, column in left.items():
        np.testing.assert_array_equal(column, right[name], err_msg=name)


@every("trainer")
def test_trained_models_predict_rows_and_imagine_episodes(name: str, material: Material) -> None:
    case = case_of("trainer", name, material)
    training = case.begin()
    assert is_finite(training.fit(case.rows.train, STEPS))
    assert is_finite(training.measure(case.rows.test))
    assert all(count > 0 for count in training.parameters.values())
    model, rows = training.model, case.rows.test
    found = model.predict(rows, seed=1, draws=2).checked(rows)
    assert found.failure is None
    assert_equal(found.columns, model.predict(rows, seed=1, draws=2).columns)
    assert np.isfinite(found.columns["rewards"]).all()

    starts = histories(case.rows.train, 3)
    runs = [_imagined(training, starts, case.rows) for _ in range(2)]
    for step, again in zip(*runs, strict=True):
        assert_equal(step.observations, again.observations)
        np.testing.assert_array_equal(step.rewards, again.rewards)
    for step, count in zip(runs[0], (len(starts), len(starts), 2), strict=True):
        assert step.rewards.shape == step.terminated.shape == (count,)
        assert step.rewards.dtype == np.float64
        assert step.terminated.dtype == np.bool_
        for leaf in case.rows.observation_space.leaves("observations"):
            column = step.observations[leaf.name]
            assert column.shape == (count, *leaf.space.shape)
            leaf.space.check(column)


def _imagined(
    training: Training, starts: Sequence[EpisodeHistory], rows: Dataset
) -> list[ImaginedStep]:
    """Imagine two steps of all episodes, and a third step of two episodes."""
    imagined = training.model.imagine(starts, rows, seed=3)
    assert imagined.count == len(starts)
    steps = [imagined.step(actions_of(rows, len(starts))) for _ in range(2)]
    imagined.keep(np.array([len(starts) - 1, 0]))
    assert imagined.count == 2
    return [*steps, imagined.step(actions_of(rows, 2))]


@every("trainer")
def test_planning_in_trained_models_works_or_raises_one_line(name: str, material: Material) -> None:
    case = case_of("trainer", name, material)
    model = case.begin().model
    task = Task(case.spec.make, 0, 5, case.spec.valid_actions)
    try:
        session = model.open([Planning("mcts", {"simulations": 4, "rollout": 4})], task)
    except CwmError as error:
        assert len(str(error).splitlines()) == 1
        return
    with session, closing(case.spec.make()) as env:
        history = EpisodeHistory((env.reset(seed=0)[0],))
        moment = Moment(0, 0, session.state(env, history), 5, task.allowed(env))
        plan = session.plan([moment])[0]
    assert plan.failure is None
    assert env.action_space.contains(plan.actions[0])
    assert session.steps > 0


@every("trainer")
def test_loaded_training_continues_identically(name: str, material: Material) -> None:
    case = case_of("trainer", name, material)
    rows, test = case.rows.train, case.rows.test
    whole, stopped, continued = case.begin(), case.begin(), case.begin()
    assert whole.fit(rows, STEPS) == stopped.fit(rows, STEPS)
    stopped.save(material.folder)
    continued.load(material.folder)
    assert whole.fit(rows, STEPS) == continued.fit(rows, STEPS)
    assert whole.measure(test) == continued.measure(test)
    predicted = [each.model.predict(test, seed=1).columns for each in (whole, continued)]
    assert_equal(*predicted)
    if (own := whole.agent) is not None:
        assert actions_taken(case, own) == actions_taken(case, continued.agent)


@every("trainer")
def test_models_can_be_adopted_or_raise_one_line(name: str, material: Material) -> None:
    case = case_of("trainer", name, material)
    rows, test = case.rows.train, case.rows.test
    known, training = case.begin(), case.begin()
    known.fit(rows, STEPS)
    known.save(material.folder)
    with pytest.raises(CwmError):
        training.adopt("no such part", material.folder)
    with pytest.raises(CwmError):
        training.freeze("no such part")
    try:
        training.adopt("model", material.folder)
    except CwmError as error:
        assert len(str(error).splitlines()) == 1
        return
    predicted = [each.model.predict(test, seed=1).columns for each in (known, training)]
    assert_equal(*predicted)


@every("trainer")
def test_training_refuses_wrong_states(name: str, material: Material) -> None:
    case = case_of("trainer", name, material)
    training = case.begin()
    if not training.parameters:
        pytest.skip("it learns nothing")
    training.save(material.folder)
    check_wrong_states_are_refused(case, training, material.folder)


def check_wrong_states_are_refused(
    case: TrainerCase, training: Training | Agent, folder: Path
) -> None:
    """Check that changed and damaged states raise errors of one line."""
    shape = case.task.action_space
    other = replace(shape, high=tuple(bound + 1 for bound in shape.high))
    try:
        other_training = case.trainer.begin(case.task._replace(action_space=other))
    except CwmError:
        other_training = None
    if other_training is not None:
        with pytest.raises(CwmError) as refused:
            other_training.load(folder)
        assert len(str(refused.value).splitlines()) == 1
    for file in [*folder.rglob("*")]:
        if not file.is_file():
            continue
        content = file.read_bytes()
        for damaged in (b"", content[: len(content) // 2], b"no state"):
            file.write_bytes(damaged)
            with pytest.raises(CwmError) as refused:
                training.load(folder)
            assert len(str(refused.value).splitlines()) == 1
        file.write_bytes(content)
    training.load(folder)


def actions_taken(
    case: TrainerCase, agent: Agent | None, *, seed: int = 1, greedy: bool = False
) -> list[Any]:
    """Act with an agent for a few steps, and return its actions."""
    assert agent is not None
    task = Task(case.spec.make, seed, 20, case.spec.valid_actions)
    done: list[Any] = []
    with closing(case.spec.make()) as env, agent.open(task, greedy=greedy, seed=seed) as session:
        history = EpisodeHistory((env.reset(seed=seed)[0],))
        while len(done) < 3:
            state = session.state(env, history)
            moment = Moment(0, len(done), state, 20 - len(done), task.allowed(env))
            plan = session.plan([moment])[0]
            assert plan.failure is None
            action = plan.actions[0]
            assert env.action_space.contains(action)
            after, reward, *_ = env.step(action)
            history = history.after(action, after, float(reward))
            done.append(np.asarray(action).tolist())
    return done


@every("agent")
def test_agents_with_equal_seeds_learn_and_act_equally(name: str, material: Material) -> None:
    case = case_of("agent", name, material)
    model = case.model if case.trainer.needs_model else None
    one, twin = case.begin(), case.begin()
    losses = one.fit(model, case.rows.train, STEPS)
    assert is_finite(losses)
    assert losses == twin.fit(model, case.rows.train, STEPS)
    for greedy in (False, True):
        assert actions_taken(case, one, greedy=greedy) == actions_taken(case, twin, greedy=greedy)


@every("agent")
def test_loaded_agents_continue_identically(name: str, material: Material) -> None:
    case = case_of("agent", name, material)
    model, rows = case.model if case.trainer.needs_model else None, case.rows.train
    whole, stopped, continued = case.begin(), case.begin(), case.begin()
    assert whole.fit(model, rows, STEPS) == stopped.fit(model, rows, STEPS)
    stopped.save(material.folder)
    continued.load(material.folder)
    assert whole.fit(model, rows, STEPS) == continued.fit(model, rows, STEPS)
    assert actions_taken(case, whole) == actions_taken(case, continued)
    if whole.parameters:
        check_wrong_states_are_refused(case, continued, material.folder)
