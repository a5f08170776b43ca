"""Scores and rollouts of programs in the sandbox, and `cwm evaluate`."""

import json

import numpy as np
import pytest

import cwm_cli
from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.errors import CwmError
from cwm_cli.evaluation import AccuracyMetric, evaluate, rollouts
from cwm_cli.worlds import ProgramModel
from recordings import COUNTER, MOVES, POINT, dataset

COUNTING = """
class Environment:
    def set_state(self, observation):
        self.count = observation
    def step(self, action):
        self.count += {step}
        return self.count, 0.0, self.count >= 5
"""


class TestPrograms:
    data = dataset([(n, n + 1, 0, n == 4) for n in range(5)])

    def test_exact_program_scores_1(self, sandbox):
        found = evaluate(
            ProgramModel(COUNTING.format(step=1), sandbox), self.data, AccuracyMetric.of(self.data)
        )
        assert found.failure is None
        assert found.score.accuracy == 1.0
        assert found.rows.tolist() == [1.0] * 5

    def test_rows_have_scores_in_order(self, sandbox):
        found = evaluate(
            ProgramModel(COUNTING.format(step=2), sandbox), self.data, AccuracyMetric.of(self.data)
        )
        assert found.rows.tolist() == pytest.approx([2 / 3] * 3 + [1 / 3, 1])

    def test_program_that_raises_scores_0_and_reports_the_line(self, sandbox):
        program = COUNTING.format(step="missing")
        found = evaluate(ProgramModel(program, sandbox), self.data, AccuracyMetric.of(self.data))
        assert (found.score.accuracy, found.score.exact) == (0.0, 0.0)
        assert found.failure.kind == "step_error"
        assert found.failure.line == 6
        assert found.rows.tolist() == [0.0] * 5


DRIFTING = """
import numpy as np
class Environment:
    def set_state(self, observation):
        self.point = np.array(observation)
    def step(self, action):
        self.point = self.point + [1.0, {drift}]
        {more}
        return self.point, 0.0, False
"""


def walk(length, episode, start=0.0):
    """Record an episode whose first number increases by one per step."""
    return [
        Transition([start + n, 0.0], 0, [start + n + 1, 0.0], 0.0, False, False, episode)
        for n in range(length)
    ]


class TestRollouts:
    data = Dataset.of(
        walk(30, 0) + walk(7, 1, start=50.0), observation_space=POINT, action_space=MOVES
    )

    def roll(self, sandbox, count=2, drift="0.0", more="pass", **options):
        model = ProgramModel(DRIFTING.format(drift=drift, more=more), sandbox)
        return rollouts(model, self.data, count, **options)

    def test_exact_program_has_no_rollout_error(self, sandbox):
        assert self.roll(sandbox) == [(1, 0.0), (5, 0.0), (20, 0.0)]

    def test_rollout_errors_accumulate(self, sandbox):
        errors = self.roll(sandbox, drift="0.5")
        # the second number never changes in the recording, so its deviation counts as 1
        assert errors == [(1, 0.5 / 2), (5, 2.5 / 2), (20, 10.0 / 2)]

    def test_rollout_error_is_in_standard_deviations(self, sandbox):
        program = DRIFTING.format(drift="0.0", more="self.point[0] += 3")
        short = self.data[np.arange(5)]  # the first number is 1, 2, 3, 4 and 5 in turn
        assert rollouts(ProgramModel(program, sandbox), short, 1, [1]) == [(1, 3 / np.sqrt(2) / 2)]

    def test_unreached_horizon_is_omitted(self, sandbox):
        assert [steps for steps, _ in self.roll(sandbox, horizons=[1, 31])] == [1]

    def test_shorter_recordings_do_not_count(self, sandbox):
        errors = dict(self.roll(sandbox, more="self.point[1] += 9 * (self.point[0] > 50)"))
        assert errors[5] == pytest.approx(45 / 2 / 2)  # one of two rollouts is off by 45
        assert errors[20] == 0.0

    def test_error_is_none_after_a_failure(self, sandbox):
        errors = self.roll(sandbox, more="assert self.point[0] < 53", horizons=[1, 2, 3, 5])
        assert errors == [(1, 0.0), (2, 0.0), (3, None), (5, None)]

    def test_error_is_none_if_it_is_not_finite(self, sandbox):
        assert self.roll(sandbox, more="self.point[1] = np.inf", horizons=[1]) == [(1, None)]

    def test_rollout_stops_at_a_gap_between_rows(self, sandbox):
        gap = self.data[np.r_[0:3, 10:14]]
        model = ProgramModel(DRIFTING.format(drift="0.0", more="pass"), sandbox)
        steps = [steps for steps, _ in rollouts(model, gap, 7, [1, 3, 4, 5])]
        assert steps == [1, 3, 4]

    @pytest.mark.slow
    def test_equal_seeds_choose_equal_starts(self, sandbox):
        drift = "0.1 * (self.point[0] > 10)"
        first, again = (self.roll(sandbox, count=9, drift=drift, seed=3) for _ in range(2))
        assert first == again
        assert first != self.roll(sandbox, count=9, drift=drift, seed=4)

    def test_different_whole_numbers_count_1(self, sandbox):
        data = dataset([(n, n + 1, 0, False) for n in range(4)])
        assert rollouts(ProgramModel(COUNTING.format(step=2), sandbox), data, 1, [1]) == [(1, 1.0)]


@pytest.fixture
def counting(tmp_path):
    """Score a program on transitions of a counter, train and held-out."""
    rows = [
        Transition(n, 0, n + 1, 0.0, n == 4, False, episode, int(episode == 2))
        for episode in range(3)
        for n in range(5)
    ]
    data = Dataset.of(rows, observation_space=COUNTER, action_space=MOVES)
    data.save(tmp_path / "counter.npz")

    def evaluate(step, **options):
        return cwm_cli.evaluate(
            COUNTING.format(step=step), env="FrozenLake-v1", dataset=data, **options
        )

    return evaluate


class TestLibrary:
    def test_evaluate_scores_train_and_held_out_rows(self, counting):
        result = counting(1, rollout_count=2)
        assert result.scores.train.accuracy == result.scores.test.accuracy == 1.0
        assert (result.scores.train.transitions, result.scores.test.transitions) == (10, 5)
        assert (result.failure, result.rollouts) == (None, [(1, 0.0), (5, 0.0)])
        part = counting(2, split="test", metric="paper")
        assert part.scores.train is None
        assert 0 < part.scores.test.paper == part.scores.test.accuracy < 1
        assert (part.found.keys(), part.rollouts) == ({"test"}, [])

    def test_failing_program_is_a_result(self, counting):
        result = counting("missing", rollout_count=2)
        assert result.scores.train.accuracy == result.scores.test.accuracy == 0.0
        assert (result.failure.kind, result.failure.line) == ("step_error", 6)
        assert "missing" in result.failure.message
        assert result.rollouts == []

    def test_invalid_input_is_an_error_of_one_line(self, counting):
        wrong = {}
        for words, how in {
            "nowhere is not a run folder: `cwm runs list` lists the runs here": {
                "subject": "nowhere",
                "env": None,
            },
            "there is no nowhere.py: give a .py file or a run folder": {"subject": "nowhere.py"},
            "--program needs an environment: add --env ID or --dataset FILE": {
                "subject": COUNTING,
                "env": None,
            },
            "unknown metric 'papers': did you mean paper?": {
                "subject": COUNTING,
                "metric": "papers",
            },
        }.items():
            try:
                wrong[words] = cwm_cli.evaluate(**{"env": "FrozenLake-v1"} | how)
            except CwmError as error:
                if str(error) != words:
                    wrong[words] = str(error)
        assert wrong == {}


@pytest.mark.slow
def test_command_prints_the_result_of_the_library(cwm, counting, tmp_path):
    (cwm.folder / "wrong.py").write_text(COUNTING.format(step=2))
    (cwm.folder / "broken.py").write_text(COUNTING.format(step="missing"))
    data = ("--env", "FrozenLake-v1", "--dataset", str(tmp_path / "counter.npz"))
    done = cwm.inside("evaluate", "wrong.py", *data, "--rollouts", "2", "--json")
    assert json.loads(done.stdout) == counting(2, rollout_count=2).as_json()
    for text in (done.stderr, cwm.inside("evaluate", "wrong.py", *data, "--rollouts", "2").stdout):
        assert "held-out" in text
        assert "next observation  recorded  1\n                  predicted 2" in text
        assert "Open-loop error" in text
    result = cwm.inside("evaluate", "wrong.py", *data, "--diagnose", "--json")
    assert json.loads(result.stdout)["diagnosis"]["groups"][0]["parts"][0] == "observation"
    assert "What the mistakes have in common (train)" in result.stderr
    broken = cwm.inside("evaluate", "broken.py", *data, "--json")
    assert json.loads(broken.stdout)["failure"]["kind"] == "step_error"
    assert "the program failed: step error, line 6" in broken.stderr
    assert cwm.inside("evaluate", "wrong.py", *data, "--split", "half").returncode == 2


@pytest.mark.slow
def test_run_is_scored_on_its_own_dataset_and_environment(cwm, counting, tmp_path):
    data = tmp_path / "counter.npz"
    ran = cwm.inside(
        "synthesize", "--env", "FrozenLake-v1", "--dataset", str(data), "--backend",
        "induction", "--run", "here", "--budget", "1", "--json",
    )  # fmt: skip
    expected = json.loads(ran.stdout)
    data.unlink()
    result = cwm_cli.evaluate(cwm.folder / "here").as_json()
    assert (result["train"], result["test"]) == (expected["train"], expected["test"])
    done = cwm.inside("evaluate", "here", "--env", "Taxi-v4")
    assert done.returncode == 1
    assert (
        "here is a run of FrozenLake-v1: use --env FrozenLake-v1, or leave out --env" in done.stderr
    )
