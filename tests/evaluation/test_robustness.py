"""Programs in shifted environments: accuracy by part, `evaluate` and `plan` with `--shift`."""

import json

import numpy as np
import pytest

import cwm_cli
from cwm_cli import CwmError
from cwm_cli.cli.shared import parse_shifts
from cwm_cli.commands.subjects import find_subject
from cwm_cli.evaluation.robustness import PartAccuracy, broken_parts, part_accuracies
from cwm_cli.worlds.model import Predictions
from worlds import COUNTER, PENDULUM

RANDOM = {"policy": "random", "episodes": 2, "test_episodes": 2, "max_steps": 30}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def swings(tmp_path):
    """Return a file with transitions of Pendulum with random actions."""
    return cwm_cli.collect("Pendulum-v1", out=tmp_path / "swings.npz", **RANDOM).file


def test_parts_break_only_if_they_get_worse_by_more_than_chance():
    before = {
        "position": PartAccuracy(1.0, 400),
        "speed": PartAccuracy(1.0, 400),
        "reward": PartAccuracy(0.5, 400),
        "terminated": PartAccuracy(0.5, 400, reachable=0.5),
    }
    after = {
        "position": PartAccuracy(0.9, 400),
        "speed": PartAccuracy(0.9975, 400),
        "reward": PartAccuracy(0.52, 400),
        "terminated": PartAccuracy(0.5, 400, reachable=1.0),
    }
    assert broken_parts(before, after) == ["position", "terminated"]
    assert broken_parts(after, after) == []


def test_accuracy_of_parts_counts_observations_only_before_the_end(poles):
    poles, _ = poles
    truth = {
        name: poles.columns[name].copy()
        for name in ("next_observations", "rewards", "terminations")
    }
    names = ("x", "v", "angle", "spin")
    right = part_accuracies(Predictions(truth), poles, names=names)
    assert [*right] == [*names, "reward", "terminated"]
    assert all(part.right == 1 for part in right.values())
    assert right["x"].explained == 1.0 and right["reward"].explained is None
    ends = poles.columns["terminations"]
    assert right["x"].rows == (~ends).sum() and right["reward"].rows == len(poles)
    wrong = dict(truth, next_observations=poles.columns["observations"].astype(float))
    wrong["next_observations"][ends] = 7.0
    still = part_accuracies(Predictions(wrong), poles, names=names)
    assert still["angle"].right < 0.5 and still["angle"].explained == pytest.approx(0.0, abs=0.1)
    assert still["reward"].right == 1


def test_random_predictions_are_scored_by_their_expected_share(poles):
    poles, _ = poles
    columns = {name: poles.columns[name] for name in ("next_observations", "rewards")}
    ends = poles.columns["terminations"]
    both = {name: np.stack([column, column], axis=1) for name, column in columns.items()}
    both["terminations"] = np.stack([ends, ~ends], axis=1)
    chances = np.tile([0.25, 0.75], (len(poles), 1))
    guess = Predictions(both, shape="outcomes", probabilities=chances)
    truth = Predictions(columns | {"terminations": ends})
    found = part_accuracies(guess, poles, truth=truth)["terminated"]
    assert (found.right, found.reachable, found.gap) == pytest.approx((0.25, 1.0, 0.75))


@pytest.mark.slow
def test_evaluate_names_the_parts_that_break(swings):
    shifts = [{"g": 2.0}, {"g": 10.0}, 3]
    found = cwm_cli.evaluate(PENDULUM, env="Pendulum-v1", dataset=swings, shifts=shifts)
    robustness = found.robustness
    assert [each.name for each in robustness.shifted] == ["g=2.0", "g=10.0", "shift=3"]
    assert all(part.right == 1 for part in robustness.parts.values())
    weak, same, seeded = robustness.shifted
    assert "Angular Velocity" in weak.broken and "reward" not in weak.broken
    assert weak.parts["Angular Velocity"].explained < 0.9
    assert same.broken == [] and same.score.exact == 1  # 10 is the default gravity
    assert seeded.broken and seeded.env_args == {"shift": 3}
    assert weak.score.transitions == 60  # recorded like the rows of the own environment
    shown = found.as_json()["robustness"]
    assert json.loads(json.dumps(shown))["shifted"][0]["broken"] == weak.broken


def test_a_program_that_fails_in_a_shifted_environment_is_reported(swings):
    fragile = PENDULUM.replace(
        "        torque =", "        assert abs(self.spin) < 7.9\n        torque ="
    )
    found = cwm_cli.evaluate(fragile, env="Pendulum-v1", dataset=swings, shifts=[{"g": 200.0}])
    assert found.failure is None
    (other,) = found.robustness.shifted
    assert other.failure is not None and other.parts == {} and other.score.exact == 0


@pytest.mark.slow
def test_evaluate_prints_a_column_for_each_environment(cwm, swings):
    (cwm.folder / "swing.py").write_text(PENDULUM)
    words = ("evaluate", "swing.py", "--env", "Pendulum-v1", "--dataset", str(swings))
    done = cwm.inside(*words, "--shift", "g=5", "--shift", "1,2", "--json")
    assert done.returncode == 0, done.stderr
    shifted = json.loads(done.stdout)["robustness"]["shifted"]
    assert [each["name"] for each in shifted] == ["g=5", "shift=1", "shift=2"]
    assert "original" in done.stderr and "shift=2: breaks " in done.stderr


@pytest.mark.slow
def test_plan_plays_in_each_environment(tmp_path):
    options = ["icem.budget=20", "icem.horizon=3"]
    found = cwm_cli.plan(
        program=PENDULUM, env="Pendulum-v1", episodes=1, max_steps=6, planner="icem",
        options=options, shifts=[{"g": 5.0}], folder=tmp_path,
    )  # fmt: skip
    assert found.mismatches.wrong == 0
    (other,) = found.shifted.values()
    assert other.mismatches.wrong == other.mismatches.steps == 6 and len(other.returns) == 1
    assert [*found.as_json()["shifted"]] == ["g=5.0"]


def test_a_shift_to_the_own_environment_is_left_out():
    subject = find_subject(program=PENDULUM, env="Pendulum-v1", env_args={"shift": 1})
    assert [*subject.in_shifts([1, 2])] == ["shift=2"]


@pytest.mark.parametrize(
    ("env", "shift", "words"),
    [
        ("Pendulum-v1", {"gravity": 5}, "unknown argument of Pendulum-v1 'gravity'"),
        ("Pendulum-v1", -1, "--shift -1 is not a seed"),
        ("Swimmer-v5", {"exclude_current_positions_from_observation": False}, "changes the shape"),
        ("RTFM-v0", 1, "RTFM-v0 has no shifted variants: .* --shift KEY=VALUE"),
    ],
)
def test_impossible_shifts_are_refused(env, shift, words):
    subject = find_subject(program=COUNTER, env=env)
    with pytest.raises(CwmError, match=words):
        subject.in_shifts([shift])


def test_shifts_are_read_from_the_command_line():
    assert parse_shifts(["1,2", 'desc=["SF", "FG"],is_slippery=false']) == [
        {"shift": 1},
        {"shift": 2},
        {"desc": ["SF", "FG"], "is_slippery": False},
    ]
    for text, words in {
        "one": "neither seeds .1,2,3. nor KEY=VALUE",
        "map_name=8x8": "write text in quotes, --shift 'map_name=\"8x8\"'",
        "=3": "'=3' has no value",
    }.items():
        with pytest.raises(CwmError, match=words):
            parse_shifts([text])
