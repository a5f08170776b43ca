"""What is trained is held to the promises of its seam: world models, and agents."""

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

pytestmark = pytest.mark.slow  # whatever learns by gradient descent imports torch

ELSEWHERE = ("MiniGrid-Empty-5x5-v0", "Catch-v0")
"""Objects and pictures: what is not for vectors is tested on the first of these that it serves."""

PORTION = 4
"""Steps that one `fit` is worth: enough for an update where there is one for each step."""


@dataclass(frozen=True)
class Trained:
    """A trainer with its smallest options, and rows of an environment that it serves."""

    trainer: Any
    spec: EnvironmentSpec
    rows: Dataset
    task: TrainingTask

    def begin(self) -> Any:
        """Begin anew."""
        return self.trainer.begin(self.task)

    @property
    def model(self) -> EnvironmentModel:
        """What agents learn in."""
        return EnvironmentModel(self.spec)


def trained(kind: Kind, name: str, material: Material) -> Trained:
    """Return the example of a trainer, or its preset `tiny`, and rows that it serves."""
    factory = find(kind, name)
    if missing := factory.missing():
        pytest.skip(f"{missing} is not installed")
    tiny = {"preset": "tiny"} if "tiny" in factory.PRESETS else {}
    example = conformance_example(kind, name)
    trainer = example(material) if example else factory(**tiny)
    refused = ""
    for known in (material.spec.id, *ELSEWHERE):
        try:
            spec = environment(known)
            rows = material.dataset if known == material.spec.id else recorded_in(spec)
            spaces = rows.observation_space, rows.action_space
            task = TrainingTask(*spaces, schema=schema_of(spec), env=spec.id)
            trainer.begin(task)
        except CwmError as error:
            refused = str(error)
            assert len(refused.splitlines()) == 1
            continue
        return Trained(trainer, spec, rows, task)
    pytest.skip(refused)


def recorded_in(spec: EnvironmentSpec) -> Dataset:
    """Record a few short random episodes."""
    return record(spec, policy="random", episodes=4, test_episodes=1, max_steps=12)


def schema_of(spec: EnvironmentSpec) -> Any:
    """Return what object tables of an environment stand for."""
    with closing(spec.make()) as env:
        return None if spec.objects is None else spec.objects(env)


def histories(rows: Dataset, steps: int) -> list[EpisodeHistory]:
    """Return how each episode began."""
    found = []
    for episode in np.unique(rows.columns["episodes"]):
        part = [*rows[rows.columns["episodes"] == episode]][:steps]
        seen = (part[0].observation, *(row.next_observation for row in part))
        done = tuple(row.action for row in part)
        found.append(EpisodeHistory(seen, done, tuple(row.reward for row in part)))
    return found


def actions_of(rows: Dataset, count: int) -> Columns:
    """Return actions that were taken."""
    return {name: column[:count] for name, column in rows.select("actions").items()}


def is_finite(numbers: Mapping[str, float]) -> bool:
    """Whether no number is missing or boundless."""
    return all(np.isfinite(number) for number in numbers.values())


def assert_equal(left: Columns, right: Columns) -> None:
    """Compare to the last bit."""
    assert left.keys() == right.keys()
    for name, column in left.items():
        np.testing.assert_array_equal(column, right[name], err_msg=name)


@every("trainer")
def test_what_is_trained_predicts_rows_and_is_imagined_in(name: str, material: Material) -> None:
    it = trained("trainer", name, material)
    training = it.begin()
    assert is_finite(training.fit(it.rows.train, PORTION))
    assert is_finite(training.measure(it.rows.test))
    assert all(count > 0 for count in training.parameters.values())
    model, rows = training.model, it.rows.test
    found = model.predict(rows, seed=1, draws=2).checked(rows)
    assert found.failure is None
    assert_equal(found.columns, model.predict(rows, seed=1, draws=2).columns)
    assert np.isfinite(found.columns["rewards"]).all()

    starts = histories(it.rows.train, 3)
    runs = [_imagined(training, starts, it.rows) for _ in range(2)]
    for step, again in zip(*runs, strict=True):
        assert_equal(step.observations, again.observations)
        np.testing.assert_array_equal(step.rewards, again.rewards)
    for step, count in zip(runs[0], (len(starts), len(starts), 2), strict=True):
        assert step.rewards.shape == step.terminated.shape == (count,)
        assert step.rewards.dtype == np.float64
        assert step.terminated.dtype == np.bool_
        for leaf in it.rows.observation_space.leaves("observations"):
            column = step.observations[leaf.name]
            assert column.shape == (count, *leaf.space.shape)
            leaf.space.check(column)


def _imagined(
    training: Training, starts: Sequence[EpisodeHistory], rows: Dataset
) -> list[ImaginedStep]:
    """Imagine two steps of all episodes, and one more of two of them."""
    imagined = training.model.imagine(starts, rows, seed=3)
    assert imagined.count == len(starts)
    steps = [imagined.step(actions_of(rows, len(starts))) for _ in range(2)]
    imagined.keep(np.array([len(starts) - 1, 0]))
    assert imagined.count == 2
    return [*steps, imagined.step(actions_of(rows, 2))]


@every("trainer")
def test_what_is_trained_is_planned_with_or_says_why_it_is_not(
    name: str, material: Material
) -> None:
    it = trained("trainer", name, material)
    model = it.begin().model
    task = Task(it.spec.make, 0, 5, it.spec.valid_actions)
    try:
        session = model.open([Planning("mcts", {"simulations": 4, "rollout": 4})], task)
    except CwmError as error:
        assert len(str(error).splitlines()) == 1
        return
    with session, closing(it.spec.make()) as env:
        history = EpisodeHistory((env.reset(seed=0)[0],))
        moment = Moment(0, 0, session.state(env, history), 5, task.allowed(env))
        plan = session.plan([moment])[0]
    assert plan.failure is None
    assert env.action_space.contains(plan.actions[0])
    assert session.steps > 0


@every("trainer")
def test_training_that_was_saved_and_loaded_goes_on_as_if_it_was_not(
    name: str, material: Material
) -> None:
    it = trained("trainer", name, material)
    rows, test = it.rows.train, it.rows.test
    whole, stopped, continued = it.begin(), it.begin(), it.begin()
    assert whole.fit(rows, PORTION) == stopped.fit(rows, PORTION)
    stopped.save(material.folder)
    continued.load(material.folder)
    assert whole.fit(rows, PORTION) == continued.fit(rows, PORTION)
    assert whole.measure(test) == continued.measure(test)
    predicted = [each.model.predict(test, seed=1).columns for each in (whole, continued)]
    assert_equal(*predicted)
    if (own := whole.agent) is not None:
        assert played(it, own) == played(it, continued.agent)


@every("trainer")
def test_a_model_is_taken_over_and_frozen_or_it_says_that_it_cannot_be(
    name: str, material: Material
) -> None:
    it = trained("trainer", name, material)
    rows, test = it.rows.train, it.rows.test
    known, training = it.begin(), it.begin()
    known.fit(rows, PORTION)
    known.save(material.folder)
    with pytest.raises(CwmError):
        training.adopt("nothing of the kind", material.folder)
    with pytest.raises(CwmError):
        training.freeze("nothing of the kind")
    try:
        training.adopt("model", material.folder)
    except CwmError as error:
        assert len(str(error).splitlines()) == 1
        return
    predicted = [each.model.predict(test, seed=1).columns for each in (known, training)]
    assert_equal(*predicted)


@every("trainer")
def test_training_refuses_a_state_that_is_of_something_else(name: str, material: Material) -> None:
    it = trained("trainer", name, material)
    training = it.begin()
    if not training.parameters:
        pytest.skip("it learns nothing")
    training.save(material.folder)
    refuses_another(it, training, material.folder)


def refuses_another(it: Trained, training: Training | Agent, folder: Path) -> None:
    """Change what was saved, and see it refused in one line each time."""
    shape = it.task.action_space
    other = replace(shape, high=tuple(bound + 1 for bound in shape.high))
    try:
        begun = it.trainer.begin(it.task._replace(action_space=other))
    except CwmError:
        begun = None
    if begun is not None:
        with pytest.raises(CwmError) as refused:
            begun.load(folder)
        assert len(str(refused.value).splitlines()) == 1
    for file in [*folder.rglob("*")]:
        if not file.is_file():
            continue
        content = file.read_bytes()
        for damaged in (b"", content[: len(content) // 2], b"nothing of the kind"):
            file.write_bytes(damaged)
            with pytest.raises(CwmError) as refused:
                training.load(folder)
            assert len(str(refused.value).splitlines()) == 1
        file.write_bytes(content)
    training.load(folder)


def played(it: Trained, agent: Agent | None, *, seed: int = 1, greedy: bool = False) -> list[Any]:
    """Have an agent act for a few steps, and return what it did."""
    assert agent is not None
    task = Task(it.spec.make, seed, 20, it.spec.valid_actions)
    done: list[Any] = []
    with closing(it.spec.make()) as env, agent.open(task, greedy=greedy, seed=seed) as session:
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
def test_an_agent_learns_and_acts_alike_from_the_same_seed(name: str, material: Material) -> None:
    it = trained("agent", name, material)
    model = it.model if it.trainer.needs_model else None
    one, twin = it.begin(), it.begin()
    losses = one.fit(model, it.rows.train, PORTION)
    assert is_finite(losses)
    assert losses == twin.fit(model, it.rows.train, PORTION)
    for greedy in (False, True):
        assert played(it, one, greedy=greedy) == played(it, twin, greedy=greedy)


@every("agent")
def test_an_agent_that_was_saved_and_loaded_goes_on_as_if_it_was_not(
    name: str, material: Material
) -> None:
    it = trained("agent", name, material)
    model, rows = it.model if it.trainer.needs_model else None, it.rows.train
    whole, stopped, continued = it.begin(), it.begin(), it.begin()
    assert whole.fit(model, rows, PORTION) == stopped.fit(model, rows, PORTION)
    stopped.save(material.folder)
    continued.load(material.folder)
    assert whole.fit(model, rows, PORTION) == continued.fit(model, rows, PORTION)
    assert played(it, whole) == played(it, continued)
    if whole.parameters:
        refuses_another(it, continued, material.folder)
