"""Ensembles of networks: training, predictions, planning, and unsupported data."""

from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces

import cwm_cli
from cwm_cli.commands.recording import record
from cwm_cli.data.dataset import Dataset
from cwm_cli.data.spaces import Space
from cwm_cli.envs.spec import space_of
from cwm_cli.errors import CwmError
from cwm_cli.planning import Decider, Moment, find_planner
from cwm_cli.registry import environment, find
from cwm_cli.sandbox.protection import GAPS
from cwm_neural.training.trainer import Diverged, TrainingTask

torch = pytest.importorskip("torch")
torch.set_num_threads(1)
pytestmark = pytest.mark.slow

PUSH = space_of(spaces.Box(-1, 1, (1,), np.float64), "actions")
TURN = space_of(spaces.Discrete(2), "actions")
LINE = space_of(spaces.Box(-9, 9, (1,), np.float64))


def walked(actions: Space, rows: int = 200) -> Dataset:
    """Return rows of a point that is pushed along a line; the reward is its place, the end is 2."""
    rng = np.random.default_rng(0)
    before = rng.uniform(-3, 3, (rows, 1))
    drawn = rng.uniform(-1, 1, (rows, 1)) if actions.is_float else rng.integers(2, size=rows)
    pushes = drawn.reshape(rows, -1) if actions.is_float else 2.0 * drawn[:, None] - 1
    after = before + pushes
    columns = {
        "observations": before,
        "actions": drawn,
        "next_observations": after,
        "rewards": after[:, 0].copy(),
        "terminations": after[:, 0] > 2,
        "truncations": np.zeros(rows, bool),
        "episodes": np.arange(rows) // 20,
        "split": np.zeros(rows, np.int8),
    }
    return Dataset(columns, LINE, actions)


def untrained(rows: Dataset, seed: int = 0, **options: object):
    task = TrainingTask(rows.observation_space, rows.action_space, seed=seed)
    return find("trainer", "ensemble")(preset="tiny", **options).begin(task)


@pytest.fixture(scope="module")
def pushed():
    training = untrained(walked(PUSH), ratio=2.0)
    training.fit(training_rows := walked(PUSH), 200)
    return training, training_rows


def test_ensemble_learns_changes_rewards_and_ends(pushed) -> None:
    training, rows = pushed
    measures = training.measure(rows)
    assert measures["number_error"] < 0.3
    assert measures["reward_error"] < 0.3
    assert measures["end_error"] < 0.1
    found = training.model.predict(rows)
    assert found.shape == "certain"
    assert np.abs(found.columns["next_observations"] - rows.columns["next_observations"]).max() < 1


def test_samples_differ_and_their_mean_is_accurate(pushed) -> None:
    training, rows = pushed
    found = training.model.predict(rows, draws=8, seed=1)
    assert found.shape == "draws"
    assert found.columns["next_observations"].shape == (len(rows), 8, 1)
    assert found.columns["next_observations"].std(axis=1).min() > 0
    middle = found.likeliest()["next_observations"]
    assert np.abs(middle - rows.columns["next_observations"]).mean() < 0.3


@pytest.mark.parametrize("actions", [PUSH, TURN], ids=["box", "discrete"])
def test_plans_move_towards_rewards(actions: Space) -> None:
    training = untrained(walked(actions), ratio=2.0)
    training.fit(walked(actions), 100)
    [name] = training.model.planners
    session_model = training.model.planning
    decider = Decider([find_planner(name)(horizon=3, budget=120)], session_model, seed=0)
    moments = [Moment(number, 0, np.array([at]), 3) for number, at in enumerate((-2.0, 0.0))]
    plans = decider.plan(moments)
    assert [float(np.ravel(plan[0])[0]) > 0 for plan in plans] == [True, True]
    assert session_model.counter[0] >= 2 * 100


def test_plans_include_values_beyond_their_horizon() -> None:
    rows = walked(PUSH, 400)
    rows.columns["rewards"][:] = rows.columns["terminations"]  # the only reward is at the end
    training = untrained(rows, ratio=5.0)
    measures = training.fit(rows, 200)
    assert measures["value"] < 0.01
    at = torch.tensor([[-2.0], [0.0], [1.0], [1.8]]).expand(2, -1, -1)
    with torch.inference_mode():
        values = training.networks.values(at).mean(0).tolist()
    assert values == sorted(values)
    assert 0.5 < values[-1] < 1.5  # the next push may be the last
    session_model = training.model.planning
    short = find_planner("icem")(horizon=1, budget=60)
    moment = Moment(0, 0, np.array([0.0]), 9)
    [plan] = Decider([short], session_model, seed=0).plan([moment])
    assert plan[0] > 0.5
    assert "value" not in untrained(rows, discount=0.0).fit(rows, 10)


def test_seed_determines_the_networks() -> None:
    rows = walked(PUSH, 40)
    digests = []
    for seed in (1, 1, 2):
        training = untrained(rows, seed)
        training.fit(rows, 2)
        digests.append(training.model.digest)
    assert digests[0] == digests[1] != digests[2]


def test_single_symbols_have_outcomes_with_probabilities() -> None:
    spec = environment("FrozenLake-v1")
    rows = record(spec, policy="random", episodes=80, test_episodes=1)
    training = untrained(rows, ratio=1.0)
    training.fit(rows, 250)
    assert training.model.planners == ()
    model = training.model.planning
    model.draw_from((0,))
    model.stand(0)
    measures = model.outcomes(2)
    assert measures is not None
    assert sum(each.probability for each in measures) == pytest.approx(1)
    likely = {each.step.observation for each in measures if each.probability > 0.15}
    assert likely == {0, 1, 4}  # slipping: right, and both sides
    assert model.step(2).observation in {each.step.observation for each in measures}


def test_ensemble_refuses_images_texts_no_rows_and_nan() -> None:
    picture = space_of(spaces.Box(0, 255, (32, 32, 3), np.uint8))
    make = find("trainer", "ensemble")(preset="tiny")
    with pytest.raises(CwmError, match="--model transformer --tokenizer vq"):
        make.begin(TrainingTask(picture, TURN))
    with pytest.raises(CwmError, match="text only"):
        make.begin(TrainingTask(space_of(spaces.Text(5)), TURN))
    rows = walked(PUSH, 40)
    training = untrained(rows)
    with pytest.raises(CwmError, match="no rows"):
        training.fit(rows[np.zeros(40, bool)], 1)
    rows.columns["rewards"][3:] = np.nan
    with pytest.raises(Diverged, match="reward is nan at update 1"):
        training.fit(rows, 1)


def test_cwm_learn_saves_a_model_for_evaluation_and_planning(tmp_path: Path) -> None:
    run = tmp_path / "run"
    options = ["strategy.profile=tiny", "strategy.warm=30", "strategy.every=10"]
    result = cwm_cli.learn(
        "Pendulum-v1", strategy="ensemble", steps=40, options=options, run=run, allow_gap=list(GAPS)
    )
    assert (result.steps, result.trained, result.program) == (40, "ensemble", None)
    assert cwm_cli.evaluate(run) is not None
    done = cwm_cli.plan(run, episodes=1, max_steps=3, options=["budget=60", "horizon=3"])
    assert done.side.report.planner == "icem"


def test_adopted_and_frozen_members_stay_equal(tmp_path: Path) -> None:
    rows = walked(PUSH, 40)
    known, later = untrained(rows, 1), untrained(rows, 2)
    known.fit(rows, 2)
    known.save(tmp_path)
    later.adopt("model", tmp_path)
    assert later.model.digest == known.model.digest
    later.freeze("model")
    assert later.fit(walked(PUSH, 80), 9) == {}
    assert later.model.digest == known.model.digest
    with pytest.raises(CwmError, match="no separate part 'camera'"):
        later.adopt("camera", tmp_path)
