"""Skill and calibration, compared with known values and true distributions."""

import json
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest

import cwm_cli
from cwm_cli.commands.recording import record
from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.data.spaces import Space
from cwm_cli.evaluation import AccuracyMetric, evaluate
from cwm_cli.evaluation.calibration import calibration, uniformity
from cwm_cli.evaluation.skill import SMOOTHING, SkillMetric
from cwm_cli.registry import environment, find
from cwm_cli.views.curves import save_charts
from cwm_cli.views.evaluation import calibration_charts
from cwm_cli.worlds import EnvironmentModel, Predictions
from cwm_cli.worlds.model import WorldModel
from recordings import COUNTER, MOVES, dataset, predictions, truth
from worlds import ICE

LINE = Space("box", "float64", (1,), (-np.inf,), (np.inf,))


def distribution(rows, *answers):
    """Predict the same outcomes for every row: (probability, next, reward, terminated)."""
    leaf = next(iter(rows.observation_space.leaves("next_observations")))
    chances, after, rewards, ends = zip(*answers, strict=True)
    after = np.array(after, dtype=float if leaf.space.is_float else int)
    after = after.reshape(len(answers), *leaf.space.shape)
    columns = {
        leaf.name: after,
        "rewards": np.array(rewards, float),
        "terminations": np.array(ends),
    }
    columns = {name: np.stack([column] * len(rows)) for name, column in columns.items()}
    return Predictions(columns, None, "outcomes", np.array([chances] * len(rows)))


def draws(rows, *answers):
    """Predict each of the same answers once for every row: (next, reward, terminated)."""
    found = distribution(rows, *((1 / len(answers), *answer) for answer in answers))
    return Predictions(found.columns, shape="draws")


COIN = dataset([(0, 1, 0, False)] * 3 + [(0, 2, 0, False)])
"""The next observation is 1 in three of four rows, else 2."""


class TestWholeNumbers:
    metric = SkillMetric.of(COIN)

    def score(self, predicted, rows=COIN):
        return self.metric.score(predicted, rows)

    def test_log_likelihood_is_smoothed_towards_the_baseline(self):
        predicted = distribution(COIN, (0.5, 1, 0, False), (0.5, 2, 0, False))
        found = self.score(predicted)
        mean = (3 * np.log(0.999 * 0.5 + 0.001 * 0.75) + np.log(0.999 * 0.5 + 0.001 * 0.25)) / 4
        assert found.log_likelihood == pytest.approx(mean)
        assert (found.energy, found.impossible) == (None, 0)

    def test_floor_is_the_frequency_of_each_outcome_after_the_action(self):
        found = self.score(distribution(COIN, (1.0, 1, 0, False)))
        assert found.proper_floor == pytest.approx((3 * np.log(0.75) + np.log(0.25)) / 4)
        new = dataset([(0, 9, 0, False)])
        assert self.score(distribution(new, (1.0, 9, 0, False)), new).proper_floor == pytest.approx(
            np.log(1 / 5)
        )

    def test_impossible_outcomes_are_counted_and_have_a_finite_cost(self):
        found = self.score(truth(COIN) | {"next_observations": np.ones(4, int)})
        assert found.impossible == 1
        right, wrong = np.log(0.999 + 0.00075), np.log(0.00025)
        assert found.log_likelihood == pytest.approx((3 * right + wrong) / 4)
        drawn_once = draws(COIN, (1, 0, False), (1, 0, False))
        assert self.score(drawn_once).impossible == 0

    def test_baseline_distribution_has_skill_0(self):
        found = self.score(distribution(COIN, (0.75, 1, 0, False), (0.25, 2, 0, False)))
        assert found.skill == pytest.approx(0, abs=1e-9)
        assert self.score(distribution(COIN, (1.0, 7, 0, False))).value == 0.0

    def test_exact_model_has_skill_1_without_an_environment(self):
        found = self.score(truth(COIN))
        assert (found.skill, found.value, found.proper_ceiling, found.reached) == (1, 1, None, None)

    def test_outcome_includes_reward_and_end_but_no_terminal_observation(self):
        ends = dataset([(0, 5, 1, True), (0, 0, 0, False)])
        metric = SkillMetric.of(ends)
        predicted = distribution(ends, (0.25, 8, 1, True), (0.25, 9, 1, True), (0.5, 0, 1, False))
        held = metric.row_scores(predicted, ends).likelihood
        assert held[0] == pytest.approx(np.log(0.999 * 0.5 + 0.001 * 0.5))
        assert held[1] == pytest.approx(np.log(0.001 * 0.5))

    def test_log_evidence_is_the_sum_over_an_episode(self):
        two = replace(COIN, columns=COIN.columns | {"episodes": np.array([0, 0, 1, 1])})
        found = self.score(distribution(two, (0.5, 1, 0, False), (0.5, 2, 0, False)), two)
        assert found.log_evidence == pytest.approx(2 * found.log_likelihood)

    def test_rows_with_several_recorded_outcomes_are_counted(self):
        assert self.score(truth(COIN)).uncertain == 4
        certain = dataset([(0, 1, 0, False), (1, 2, 0, False)])
        assert self.score(truth(certain), certain).uncertain == 0

    def test_skill_score_contains_the_accuracy(self):
        predicted = predictions(COIN, next_observations=[1, 1, 1, 1])
        plain, found = AccuracyMetric.of(COIN).score(predicted, COIN), self.score(predicted)
        assert (found.accuracy, found.exact, found.floor) == (plain.accuracy, 0.75, plain.floor)
        assert not {"skill", "brier", "impossible"} & plain.model_dump().keys()
        assert {"skill", "brier", "impossible"} <= json.loads(found.model_dump_json()).keys()
        assert "energy" not in found.model_dump()


class TestRealNumbers:
    """The next observation is -1 or 1, each in half of the rows."""

    rows = Dataset.of(
        [Transition([0.0], 0, [x], 0.0, False, False, n) for n, x in enumerate([-1.0, 1.0] * 10)],
        observation_space=LINE,
        action_space=MOVES,
    )
    metric = SkillMetric.of(rows)

    def energy(self, predicted, rows=None):
        return self.metric.row_scores(predicted, self.rows if rows is None else rows).energy

    def test_energy_of_one_number_is_in_units_of_its_deviation(self):
        both = distribution(self.rows, (0.5, -1, 0, False), (0.5, 1, 0, False))
        # mean distance from the recorded value 1, between two answers 1: 1 - 1 / 2
        assert self.energy(both) == pytest.approx(0.5)
        assert self.metric.score(both, self.rows).skill == pytest.approx(0, abs=1e-9)
        assert self.energy(distribution(self.rows, (1.0, 0, 0, False))) == pytest.approx(1.0)
        wide = replace(self.rows, columns=dict(self.rows.columns))
        wide.columns["next_observations"] = wide.columns["next_observations"] * 10
        tens = distribution(wide, (0.5, -10, 0, False), (0.5, 10, 0, False))
        assert SkillMetric.of(wide).row_scores(tens, wide).energy == pytest.approx(0.5)

    def test_energy_of_draws_estimates_the_energy_of_their_distribution(self):
        # of two draws the mean distance between different ones is 2, not 1 as with itself
        assert self.energy(draws(self.rows, (-1, 0, False), (1, 0, False))) == pytest.approx(0.0)
        rng = np.random.default_rng(0)
        many = [
            self.energy(draws(self.rows, *((x, 0, False) for x in rng.choice([-1, 1], 8)))).mean()
            for _ in range(300)
        ]
        assert np.mean(many) == pytest.approx(0.5, abs=0.02)

    def test_energy_counts_only_answers_with_the_recorded_termination(self):
        half = distribution(
            self.rows, (0.5, 99, 0, True), (0.25, -1, 0, False), (0.25, 1, 0, False)
        )
        assert self.energy(half) == pytest.approx(0.5)
        found = self.metric.score(half, self.rows)
        assert found.log_likelihood == pytest.approx(np.log(0.999 * 0.5 + 0.001))
        never = self.energy(distribution(self.rows, (1.0, 99, 0, True)))
        assert never == pytest.approx(0.5), "the energy of the baseline"

    def test_energy_is_that_of_the_joint_distribution(self):
        plane = replace(LINE, shape=(2,))
        rows = Dataset.of(
            [
                Transition([0, 0], 0, [x, x], 0.0, False, False, n)
                for n, x in enumerate([-1.0, 1.0])
            ],
            observation_space=plane,
            action_space=MOVES,
        )
        metric = SkillMetric.of(rows)
        joint = distribution(rows, (0.5, [1, 1], 0, False), (0.5, [-1, -1], 0, False))
        apart = distribution(rows, (0.5, [1, -1], 0, False), (0.5, [-1, 1], 0, False))
        assert metric.row_scores(joint, rows).energy == pytest.approx(np.sqrt(2) / 2)
        assert metric.row_scores(apart, rows).energy == pytest.approx(2 - np.sqrt(2) / 2)

    def test_infinite_and_undefined_numbers_have_no_skill(self):
        assert (
            self.metric.score(distribution(self.rows, (1.0, np.nan, 0, False)), self.rows).value
            == 0.0
        )
        assert (
            self.metric.score(distribution(self.rows, (1.0, np.inf, 0, False)), self.rows).value
            == 0.0
        )

    def test_values_in_the_range_of_the_draws_are_not_losses(self):
        near = draws(self.rows, (-0.8, 0, False), (0.9, 0, False))
        assert self.metric.losses(near, self.rows).max() == 0
        far = draws(self.rows, (-0.1, 0, False), (0.1, 0, False))
        assert self.metric.losses(far, self.rows).min() > 0


def expected(metric, rows, chances, predicted):
    """Return the expected score of predictions if each row occurs with a probability."""
    return float(chances @ metric.row_scores(predicted, rows).proper)


def test_no_distribution_has_a_higher_expected_score_than_the_true_one() -> None:
    rng = np.random.default_rng(0)
    whole = [(n, n % 3, n == 4) for n in range(5)]
    real = [(float(x), 0.0, x > 1.5) for x in (-2, -0.5, 0, 0.25, 1, 2, 3)]
    gains = {}
    for answers, space in ((whole, COUNTER), (real, LINE)):
        possible = [(0 if space is COUNTER else [0.0], *answer) for answer in answers]
        possible = [(a, b if space is COUNTER else [b], *rest) for a, b, *rest in possible]
        rows = dataset(possible, space)
        metric = SkillMetric.of(
            dataset([possible[n] for n in rng.integers(len(possible), size=50)], space)
        )
        for trial in range(60):
            true, other = rng.dirichlet(np.ones(len(answers)), 2)
            mixed = true + rng.choice([0.01, 0.3, 1.0]) * (other - true)
            best = expected(metric, rows, true, _with(rows, true, answers))
            gains[space.kind, trial] = (
                expected(metric, rows, true, _with(rows, mixed, answers)) - best
            )
    assert max(gains.values()) <= SMOOTHING, "the most that smoothing can be exploited for"
    assert np.mean([gain < 0 for gain in gains.values()]) > 0.95


def _with(rows, chances, answers):
    return distribution(rows, *((p, *answer) for p, answer in zip(chances, answers, strict=True)))


class Dice(WorldModel):
    """Predicts 1 with a probability, else 2."""

    kind = "dice"

    def __init__(self, one, answers=True):
        self.one, self.answers, self.asked = one, answers, []

    def predict(self, rows, *, seed=0, draws=1):
        self.asked.append((len(rows), draws))
        predicted = distribution(rows, (self.one, 1, 0, False), (1 - self.one, 2, 0, False))
        return replace(predicted, answered=np.full(len(rows), self.answers))


class CertainBeyond(Dice):
    """Throws dice at 0, and moves from 7 to 8 with certainty."""

    def __init__(self):
        super().__init__(0.9)

    def predict(self, rows, *, seed=0, draws=1):
        return outcomes(rows, {0: ((0.9, 1), (0.1, 2)), 7: ((1.0, 8),)})


class NoAnswerBeyond(CertainBeyond):
    """Throws dice at 0, and cannot be restored to 7."""

    def predict(self, rows, *, seed=0, draws=1):
        answered = rows.columns["observations"] == 0
        return replace(super().predict(rows), answered=answered)


def outcomes(rows, chances):
    """Predict outcomes by observation: {observation: ((probability, next), ...)}."""
    predicted = [chances[seen] for seen in rows.columns["observations"].tolist()]
    predicted = [[*each, (0.0, 0)][:2] for each in predicted]
    columns = {
        "next_observations": np.array([[after for _, after in each] for each in predicted]),
        "rewards": np.zeros((len(rows), 2)),
        "terminations": np.zeros((len(rows), 2), bool),
    }
    return Predictions(
        columns, None, "outcomes", np.array([[p for p, _ in each] for each in predicted])
    )


def with_line(rows, episode=None):
    """Add ten rows from 7 to 8, each in an episode of its own or all in one."""
    line = dataset([(7, 8, 0, False)] * 10)
    numbers = 100 + np.arange(10) if episode is None else np.full(10, episode)
    columns = line.columns | {"episodes": numbers}
    joined = {name: np.concatenate([rows.columns[name], columns[name]]) for name in columns}
    return replace(rows, columns=joined)


class TestCeiling:
    rows = dataset([(0, 1, 0, False)] * 90 + [(0, 2, 0, False)] * 10)
    rows = replace(rows, columns=rows.columns | {"episodes": np.arange(100) % 20})

    def score(self, predicted, one=0.9, answers=True, train=None):
        """Score against dice; the baseline predicts 1 and 2 equally often."""
        rows = train or dataset([(0, 1, 0, False), (0, 2, 0, False)])
        dice = Dice(one, answers)
        return SkillMetric.of(rows).with_environment(dice).score(predicted, self.rows), dice

    def test_skill_scales_the_score_between_floor_and_ceiling(self):
        half = (0.5, 1, 0, False), (0.5, 2, 0, False)
        right = (0.9, 1, 0, False), (0.1, 2, 0, False)
        between = (0.7, 1, 0, False), (0.3, 2, 0, False)
        assert self.score(distribution(self.rows, *half))[0].skill == pytest.approx(0, abs=1e-9)
        found, dice = self.score(distribution(self.rows, *right))
        assert (found.skill, found.reached) == (pytest.approx(1.0), True)
        assert found.skill_stderr == pytest.approx(0)
        entropy = -0.9 * np.log(0.9) - 0.1 * np.log(0.1)
        assert found.proper_ceiling == pytest.approx(-entropy, abs=1e-3)
        assert dice.asked == [(2, 1000)], "one query for each situation and outcome"
        share = (0.9 * np.log(1.4) + 0.1 * np.log(0.6)) / (np.log(2) - entropy)
        found, _ = self.score(distribution(self.rows, *between))
        assert found.skill == pytest.approx(share, abs=0.005)
        assert not found.reached

    def test_environment_without_answers_gives_no_ceiling(self):
        found, _ = self.score(distribution(self.rows, (1.0, 1, 0, False)), answers=False)
        assert (found.proper_ceiling, found.reached) == (None, None)

    def test_wrong_rows_without_a_ceiling_count(self):
        rows, metric = with_line(self.rows), self.metric_with(NoAnswerBeyond())
        right = {0: ((0.9, 1), (0.1, 2)), 7: ((1.0, 8),)}
        found = metric.score(outcomes(rows, right), rows)
        assert (found.skill, found.reached) == (pytest.approx(1.0), True)
        found = metric.score(outcomes(rows, right | {7: ((1.0, 9),)}), rows)
        assert found.skill < 0.9 and found.reached is False and found.value < 0.9
        assert (found.impossible, found.open_gap) == (
            10,
            "10 recorded outcomes have probability 0",
        )

    def test_deterministic_rows_must_be_correct_whatever_the_standard_error(self):
        """Errors in a single episode increase the standard error as much as they reduce skill."""
        rows, metric = with_line(self.rows, episode=3), self.metric_with(CertainBeyond())
        predicted = {0: ((0.9, 1), (0.1, 2)), 7: ((0.7, 9), (0.3, 8))}
        found = metric.score(outcomes(rows, predicted), rows)
        assert found.skill + 2 * found.skill_stderr > 0.99
        assert (found.impossible, found.reached) == (0, False)
        assert found.open_gap == "10 rows without chance are predicted wrongly"

    def test_a_skill_above_the_ceiling_refutes_the_ceiling(self):
        found, _ = self.score(truth(self.rows), one=0.6)
        assert (found.proper_ceiling, found.reached, found.open_gap) == (None, None, None)
        assert found.skill == 1.0
        nearly = (0.9, 1, 0, False), (0.1, 2, 0, False)
        found, _ = self.score(distribution(self.rows, *nearly), one=0.86)
        assert 1 < found.skill <= 1 + 2 * found.skill_stderr

    def metric_with(self, environment):
        """Return the metric with this environment; the baseline is 1 or 2 equally often."""
        train = dataset([(0, 1, 0, False), (0, 2, 0, False), (7, 8, 0, False)])
        return SkillMetric.of(train).with_environment(environment)

    def test_skill_is_1_at_the_ceiling_and_else_0_if_floor_and_ceiling_are_equal(self):
        right = distribution(self.rows, (0.9, 1, 0, False), (0.1, 2, 0, False))
        assert self.score(right, train=self.rows)[0].skill == 1.0
        assert (
            self.score(distribution(self.rows, (1.0, 1, 0, False)), train=self.rows)[0].skill == 0.0
        )

    def test_wrong_probabilities_are_found_among_many_certain_rows(self):
        dice = [(seen, 1 + (n < 4), 0, False) for seen in range(50) for n in range(40)]
        rows = dataset(dice + [(77, 78, 0, False)] * 6000)
        rows = replace(rows, columns=rows.columns | {"episodes": np.arange(8000)})

        class ManyDice(Dice):
            def predict(self, rows, *, seed=0, draws=1):
                throws = dict.fromkeys(range(50), ((self.one, 1), (1 - self.one, 2)))
                return outcomes(rows, throws | {77: ((1.0, 78),)})

        metric = SkillMetric.of(rows).with_environment(ManyDice(0.9))
        assert metric.score(ManyDice(0.9).predict(rows), rows).reached
        found = metric.score(ManyDice(0.83).predict(rows), rows)
        assert found.skill > 0.99
        assert found.open_gap == "the skill is below the ceiling by more than its error"

    def test_standard_error_is_over_episodes(self):
        predicted = distribution(self.rows, (0.8, 1, 0, False), (0.2, 2, 0, False))
        found, _ = self.score(predicted)
        kept = []
        for left_out in range(20):
            some = self.rows[self.rows.columns["episodes"] != left_out]
            half = dataset([(0, 1, 0, False), (0, 2, 0, False)])
            metric = SkillMetric.of(half).with_environment(Dice(0.9))
            predicted = distribution(some, (0.8, 1, 0, False), (0.2, 2, 0, False))
            kept.append(metric.score(predicted, some).skill)
        jackknife = np.sqrt(19 / 20 * ((np.array(kept) - np.mean(kept)) ** 2).sum())
        assert found.skill_stderr == pytest.approx(jackknife, rel=0.1)


@pytest.mark.slow
def test_environment_model_estimates_probabilities_from_draws(few_draws) -> None:
    spec = environment("FrozenLake-v1")
    rows = record(spec, env_args={}, policy="random", episodes=8, test_episodes=0)
    model = EnvironmentModel(spec)
    found = model.predict(rows, draws=300).checked(rows)
    assert found.shape == "outcomes"
    inside = found.probabilities[found.probabilities > 0]
    assert np.abs(inside[:, None] - [1 / 3, 2 / 3, 1]).min(axis=1).max() < 0.1
    again = model.predict(rows[np.arange(5)], draws=300)
    assert np.array_equal(
        again.probabilities, found.probabilities[:5, : again.probabilities.shape[1]]
    )
    metric = find("metric", "skill").of(rows)
    ceiling = metric.ceiling(model, rows)
    assert (ceiling.skill, ceiling.reached, ceiling.impossible) == (1.0, True, 0)
    assert ceiling.proper_floor < ceiling.proper_ceiling < -0.5
    certain = metric.with_environment(model).score(model.predict(rows), rows)
    assert certain.skill < 0.5 and certain.impossible > 0 and certain.reached is False


@pytest.mark.slow
def test_only_noisy_environments_are_drawn_from_64_times() -> None:
    spec = environment("CartPole-v1")
    rows = record(spec, env_args={}, policy="random", episodes=2, test_episodes=0)
    plain = EnvironmentModel(spec).predict(rows, draws=64)
    assert (plain.shape, plain.probabilities.shape) == ("outcomes", (len(rows), 1))
    metric = SkillMetric.of(rows)
    scored = evaluate(EnvironmentModel(spec), rows, metric).score
    assert (scored.skill, scored.exact, scored.energy) == (1.0, 1.0, 0.0)
    noisy = {"noise": {"force_mag": 5.0}}
    rows = record(spec, env_args=noisy, policy="random", episodes=4, test_episodes=0)
    model = EnvironmentModel(spec, noisy)
    found = model.predict(rows, draws=64)
    assert (found.shape, found.columns["rewards"].shape) == ("draws", (len(rows), 64))
    metric = SkillMetric.of(rows).with_environment(model)
    other = metric.score(model.predict(rows, seed=5, draws=64), rows)
    assert other.skill == pytest.approx(1, abs=0.05) and other.reached
    assert other.uniformity > 0.01
    mean = metric.score(found.likeliest(), rows)
    assert mean.skill < 0.95


@pytest.fixture
def few_draws(monkeypatch):
    """Reduce the number of draws from the true environment."""
    monkeypatch.setattr("cwm_cli.worlds.environment.MAX_DRAWS", 6000)


@pytest.fixture(scope="module")
def ice(tmp_path_factory):
    """Record a few episodes of slippery FrozenLake."""
    rows = record(
        environment("FrozenLake-v1"), env_args={}, policy="random", episodes=6, test_episodes=3
    )
    file = tmp_path_factory.mktemp("ice") / "ice.npz"
    rows.save(file)
    return file


@pytest.mark.slow
def test_skill_is_the_default_metric_of_stochastic_programs(ice):
    found = cwm_cli.evaluate(ICE, env="FrozenLake-v1", dataset=ice, rollout_count=2)
    train = found.scores.train
    assert train.skill == pytest.approx(1, abs=0.05) and train.reached
    assert (found.wrong, found.diagnosis(), found.failure) == (None, None, None)
    assert {one.what for one in found.calibration("test").reliability} == {"reward", "terminated"}
    assert cwm_cli.evaluate(ICE, env="FrozenLake-v1", dataset=ice, metric="accuracy").scores.train
    certain = ICE.replace("(-1, 0, 1)", "(0,)").replace("1 / 3", "1")
    wrong = cwm_cli.evaluate(certain, env="FrozenLake-v1", dataset=ice, split="train")
    assert wrong.wrong == "train" and wrong.diagnosis() is not None
    assert wrong.scores.train.skill < 0 == wrong.scores.train.value
    assert wrong.scores.train.impossible == (wrong.found["train"].rows < 1).sum() > 0


@pytest.mark.long
def test_evaluate_reports_skill_and_plots_calibration(cwm, ice):
    (cwm.folder / "ice.py").write_text(ICE)
    about = ("--env", "FrozenLake-v1", "--dataset", str(ice))
    done = cwm.inside("evaluate", "ice.py", *about, "--plot", "ice.svg", "--diagnose", "--json")
    result = json.loads(done.stdout)
    assert result["train"]["reached"] is True and result["diagnosis"] is None
    assert result["calibration"]["test"]["reliability"][1]["what"] == "terminated"
    for words in ("The data are random", "Skill: 0 is the most frequent", "Plot: ice.svg"):
        assert words in done.stderr
    picture = ElementTree.parse(cwm.folder / "ice.svg").getroot()
    assert len(picture) == 1, "there are no real numbers to rank"
    for wrong, words in {
        ("--plot", "ice.pdf"): "ice.pdf is not a picture: use a name that ends in .svg or .png",
        ("--plot", "no/ice.svg"): "there is no folder no: create it first",
        (
            "--plot",
            "b.svg",
            "--metric",
            "accuracy",
        ): "--plot needs probabilities: add --metric skill",
    }.items():
        assert words in cwm.inside("evaluate", "ice.py", *about, *wrong).stderr


def test_calibration_picture_has_probabilities_above_ranks(tmp_path):
    rng = np.random.default_rng(0)
    rows = dataset([([0.0], [rng.normal()], 0, n % 3 == 0) for n in range(200)], LINE)
    columns = {
        "next_observations": rng.normal(size=(200, 16, 1)),
        "rewards": np.zeros((200, 16)),
        "terminations": rng.random((200, 16)) < 0.3,
    }
    found = calibration(Predictions(columns, shape="draws"), rows)
    charts = calibration_charts(found, "held-out")
    save_charts(charts, tmp_path / "both.svg")
    first, second = ElementTree.parse(tmp_path / "both.svg").getroot()
    assert (first.get("y"), second.get("y")) == ("0", "430")
    titles = [chart.title for chart in charts]
    assert titles[1] == "Ranks of recorded values among the draws, held-out"
    assert charts[0].series[2].name.startswith("terminated (Brier 0.2")


class TestCalibration:
    def test_reliability_compares_probabilities_with_frequencies(self):
        rows = dataset([(0, 1, n % 4 == 0, n % 4 == 0) for n in range(40)])
        predicted = distribution(rows, (0.3, 1, 1, True), (0.7, 1, 0, False))
        rewards, ends = calibration(predicted, rows).reliability
        assert (ends.what, ends.came, ends.counts) == ("terminated", (0.25,), (40,))
        assert ends.said == pytest.approx((0.3,))
        assert ends.brier == pytest.approx((0.7**2 + 3 * 0.3**2) / 4)
        assert rewards.brier == pytest.approx(2 * ends.brier), "over both values"
        assert rewards.said == pytest.approx((0.3, 0.7))

    def test_ranks_are_uniform_only_for_the_right_spread(self):
        rng = np.random.default_rng(3)
        chances = {}
        for width in (1.0, 0.6):
            rows = Dataset.of(
                [Transition([0.0], 0, [rng.normal()], 0.0, False) for _ in range(500)],
                observation_space=LINE,
                action_space=MOVES,
            )
            columns = {
                "next_observations": width * rng.normal(size=(500, 64, 1)),
                "rewards": np.zeros((500, 64)),
                "terminations": np.zeros((500, 64), bool),
            }
            found = calibration(Predictions(columns, shape="draws"), rows)
            assert sum(found.ranks[0].shares) == pytest.approx(1)
            chances[width] = found.uniformity
        assert chances[1.0] > 0.01 > 1e-6 > chances[0.6]

    def test_ranks_of_discrete_outcomes_are_uniform(self):
        rng = np.random.default_rng(4)
        data = [
            ([0.0], [float(x)], 0, False) for x in rng.choice([0, 1, 5], 900, p=[0.2, 0.5, 0.3])
        ]
        rows = dataset(data, LINE)
        predicted = distribution(rows, (0.2, 0, 0, False), (0.5, 1, 0, False), (0.3, 5, 0, False))
        assert calibration(predicted, rows).uniformity > 0.01
        off = distribution(rows, (0.4, 0, 0, False), (0.3, 1, 0, False), (0.3, 5, 0, False))
        assert calibration(off, rows).uniformity < 1e-6

    def test_uniformity_is_the_p_value_of_kolmogorov_and_smirnov(self):
        # of 100 uniform numbers one in twenty deviates by 0.134, one in a hundred by 0.161
        for deviation, chance in ((0.134, 0.05), (0.161, 0.01)):
            even = (np.arange(100) + 1) / 100
            assert uniformity((even - deviation).clip(0, 1)) == pytest.approx(chance, rel=0.1)

    def test_deterministic_predictions_have_no_ranks(self):
        rows = dataset([([0.0], [1.0], 0, False)] * 30, LINE)
        assert calibration(Predictions(truth(rows)), rows).ranks == ()
        assert calibration(distribution(rows, (1.0, 1, 0, False)), rows).uniformity is None
