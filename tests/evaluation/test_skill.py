"""How what chance decides is scored: by hand on small distributions, and against the true ones."""

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
from cwm_cli.views.calibration import calibration_charts
from cwm_cli.views.curves import save_charts
from cwm_cli.worlds import EnvironmentModel, Predictions
from cwm_cli.worlds.model import WorldModel
from recordings import COUNTER, MOVES, dataset, predictions, truth
from worlds import ICE

LINE = Space("box", "float64", (1,), (-np.inf,), (np.inf,))


def told(rows, *answers):
    """Say the same outcomes of every row: (probability, next, reward, terminated)."""
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


def drawn(rows, *answers):
    """Draw from the same answers of every row, each once."""
    found = told(rows, *((1 / len(answers), *answer) for answer in answers))
    return Predictions(found.columns, shape="draws")


COIN = dataset([(0, 1, 0, False)] * 3 + [(0, 2, 0, False)])
"""One comes about three times out of four, else two."""


class TestWholeNumbers:
    metric = SkillMetric.of(COIN)

    def score(self, said, rows=COIN):
        return self.metric.score(said, rows)

    def test_a_row_scores_the_logarithm_of_its_probability_smoothed_towards_what_is_usual(self):
        said = told(COIN, (0.5, 1, 0, False), (0.5, 2, 0, False))
        found = self.score(said)
        mean = (3 * np.log(0.999 * 0.5 + 0.001 * 0.75) + np.log(0.999 * 0.5 + 0.001 * 0.25)) / 4
        assert found.log_likelihood == pytest.approx(mean)
        assert (found.energy, found.impossible) == (None, 0)

    def test_the_floor_is_how_often_each_outcome_follows_the_action(self):
        found = self.score(told(COIN, (1.0, 1, 0, False)))
        assert found.proper_floor == pytest.approx((3 * np.log(0.75) + np.log(0.25)) / 4)
        new = dataset([(0, 9, 0, False)])
        assert self.score(told(new, (1.0, 9, 0, False)), new).proper_floor == pytest.approx(
            np.log(1 / 5)
        )

    def test_what_was_called_impossible_is_counted_and_costs_much_but_not_all(self):
        found = self.score(truth(COIN) | {"next_observations": np.ones(4, int)})
        assert found.impossible == 1
        right, wrong = np.log(0.999 + 0.00075), np.log(0.00025)
        assert found.log_likelihood == pytest.approx((3 * right + wrong) / 4)
        drawn_once = drawn(COIN, (1, 0, False), (1, 0, False))
        assert self.score(drawn_once).impossible == 0

    def test_whoever_says_what_is_usual_has_no_skill(self):
        found = self.score(told(COIN, (0.75, 1, 0, False), (0.25, 2, 0, False)))
        assert found.skill == pytest.approx(0, abs=1e-9)
        assert self.score(told(COIN, (1.0, 7, 0, False))).value == 0.0

    def test_without_an_environment_the_ceiling_is_to_be_certain_and_right(self):
        found = self.score(truth(COIN))
        assert (found.skill, found.value, found.proper_ceiling, found.reached) == (1, 1, None, None)

    def test_the_reward_and_the_end_belong_to_the_outcome_and_nothing_is_seen_after_it(self):
        ends = dataset([(0, 5, 1, True), (0, 0, 0, False)])
        metric = SkillMetric.of(ends)
        said = told(ends, (0.25, 8, 1, True), (0.25, 9, 1, True), (0.5, 0, 1, False))
        held = metric.row_scores(said, ends).likelihood
        assert held[0] == pytest.approx(np.log(0.999 * 0.5 + 0.001 * 0.5))
        assert held[1] == pytest.approx(np.log(0.001 * 0.5))

    def test_an_episode_has_the_evidence_of_all_that_came_about_in_it(self):
        two = replace(COIN, columns=COIN.columns | {"episodes": np.array([0, 0, 1, 1])})
        found = self.score(told(two, (0.5, 1, 0, False), (0.5, 2, 0, False)), two)
        assert found.log_evidence == pytest.approx(2 * found.log_likelihood)

    def test_a_certain_program_is_told_that_the_data_are_not(self):
        assert self.score(truth(COIN)).uncertain == 4
        certain = dataset([(0, 1, 0, False), (1, 2, 0, False)])
        assert self.score(truth(certain), certain).uncertain == 0

    def test_what_is_exact_stands_beside_it_and_a_plain_score_says_nothing_of_skill(self):
        said = predictions(COIN, next_observations=[1, 1, 1, 1])
        plain, found = AccuracyMetric.of(COIN).score(said, COIN), self.score(said)
        assert (found.accuracy, found.exact, found.floor) == (plain.accuracy, 0.75, plain.floor)
        assert not {"skill", "brier", "impossible"} & plain.model_dump().keys()
        assert {"skill", "brier", "impossible"} <= json.loads(found.model_dump_json()).keys()
        assert "energy" not in found.model_dump()


class TestRealNumbers:
    """What follows is minus one or one away, and ends half of the time."""

    rows = Dataset.of(
        [Transition([0.0], 0, [x], 0.0, False, False, n) for n, x in enumerate([-1.0, 1.0] * 10)],
        observation_space=LINE,
        action_space=MOVES,
    )
    metric = SkillMetric.of(rows)

    def energy(self, said, rows=None):
        return self.metric.row_scores(said, self.rows if rows is None else rows).energy

    def test_one_number_scores_the_ranked_probability_in_units_of_its_usual_change(self):
        both = told(self.rows, (0.5, -1, 0, False), (0.5, 1, 0, False))
        # the mean distance from what came about is 1, between two answers 1: 1 - 1 / 2
        assert self.energy(both) == pytest.approx(0.5)
        assert self.metric.score(both, self.rows).skill == pytest.approx(0, abs=1e-9)
        assert self.energy(told(self.rows, (1.0, 0, 0, False))) == pytest.approx(1.0)
        wide = replace(self.rows, columns=dict(self.rows.columns))
        wide.columns["next_observations"] = wide.columns["next_observations"] * 10
        tens = told(wide, (0.5, -10, 0, False), (0.5, 10, 0, False))
        assert SkillMetric.of(wide).row_scores(tens, wide).energy == pytest.approx(0.5)

    def test_draws_are_judged_as_what_they_are_drawn_from(self):
        # of two draws the mean distance between different ones is 2, not 1 as with itself
        assert self.energy(drawn(self.rows, (-1, 0, False), (1, 0, False))) == pytest.approx(0.0)
        rng = np.random.default_rng(0)
        many = [
            self.energy(drawn(self.rows, *((x, 0, False) for x in rng.choice([-1, 1], 8)))).mean()
            for _ in range(300)
        ]
        assert np.mean(many) == pytest.approx(0.5, abs=0.02)

    def test_answers_that_end_otherwise_are_judged_by_their_probability_alone(self):
        half = told(self.rows, (0.5, 99, 0, True), (0.25, -1, 0, False), (0.25, 1, 0, False))
        assert self.energy(half) == pytest.approx(0.5)
        found = self.metric.score(half, self.rows)
        assert found.log_likelihood == pytest.approx(np.log(0.999 * 0.5 + 0.001))
        never = self.energy(told(self.rows, (1.0, 99, 0, True)))
        assert never == pytest.approx(0.5), "what is usual stands in"

    def test_several_numbers_are_scored_together(self):
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
        joint = told(rows, (0.5, [1, 1], 0, False), (0.5, [-1, -1], 0, False))
        apart = told(rows, (0.5, [1, -1], 0, False), (0.5, [-1, 1], 0, False))
        assert metric.row_scores(joint, rows).energy == pytest.approx(np.sqrt(2) / 2)
        assert metric.row_scores(apart, rows).energy == pytest.approx(2 - np.sqrt(2) / 2)

    def test_what_is_no_number_costs_and_does_not_break(self):
        assert self.metric.score(told(self.rows, (1.0, np.nan, 0, False)), self.rows).value == 0.0
        assert self.metric.score(told(self.rows, (1.0, np.inf, 0, False)), self.rows).value == 0.0

    def test_what_lies_among_the_draws_is_no_mistake(self):
        near = drawn(self.rows, (-0.8, 0, False), (0.9, 0, False))
        assert self.metric.losses(near, self.rows).max() == 0
        far = drawn(self.rows, (-0.1, 0, False), (0.1, 0, False))
        assert self.metric.losses(far, self.rows).min() > 0


def expected(metric, rows, chances, said):
    """Return the mean score of what is said where each row comes about with such a chance."""
    return float(chances @ metric.row_scores(said, rows).proper)


def test_on_average_no_distribution_scores_more_than_the_true_one() -> None:
    rng = np.random.default_rng(0)
    whole = [(n, n % 3, n == 4) for n in range(5)]
    real = [(float(x), 0.0, x > 1.5) for x in (-2, -0.5, 0, 0.25, 1, 2, 3)]
    gains = {}
    for answers, space in ((whole, COUNTER), (real, LINE)):
        usual = [(0 if space is COUNTER else [0.0], *answer) for answer in answers]
        usual = [(a, b if space is COUNTER else [b], *rest) for a, b, *rest in usual]
        rows = dataset(usual, space)
        metric = SkillMetric.of(
            dataset([usual[n] for n in rng.integers(len(usual), size=50)], space)
        )
        for trial in range(60):
            true, other = rng.dirichlet(np.ones(len(answers)), 2)
            mixed = true + rng.choice([0.01, 0.3, 1.0]) * (other - true)
            best = expected(metric, rows, true, _with(rows, true, answers))
            gains[space.kind, trial] = (
                expected(metric, rows, true, _with(rows, mixed, answers)) - best
            )
    assert max(gains.values()) <= SMOOTHING, "what smoothing gives away"
    assert np.mean([gain < 0 for gain in gains.values()]) > 0.95


def _with(rows, chances, answers):
    return told(rows, *((p, *answer) for p, answer in zip(chances, answers, strict=True)))


class Dice(WorldModel):
    """Says now 1, now 2, as often as it likes."""

    kind = "dice"

    def __init__(self, one, answers=True):
        self.one, self.answers, self.asked = one, answers, []

    def predict(self, rows, *, seed=0, draws=1):
        self.asked.append((len(rows), draws))
        said = told(rows, (self.one, 1, 0, False), (1 - self.one, 2, 0, False))
        return replace(said, answered=np.full(len(rows), self.answers))


class CertainBeyond(Dice):
    """Throws dice at 0, and always goes from 7 to 8."""

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
    said = [chances[seen] for seen in rows.columns["observations"].tolist()]
    said = [[*each, (0.0, 0)][:2] for each in said]
    columns = {
        "next_observations": np.array([[after for _, after in each] for each in said]),
        "rewards": np.zeros((len(rows), 2)),
        "terminations": np.zeros((len(rows), 2), bool),
    }
    return Predictions(columns, None, "outcomes", np.array([[p for p, _ in each] for each in said]))


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

    def score(self, said, one=0.9, answers=True, train=None):
        """Score against dice, where half of what is usual are ones."""
        usual = train or dataset([(0, 1, 0, False), (0, 2, 0, False)])
        dice = Dice(one, answers)
        return SkillMetric.of(usual).knowing(dice).score(said, self.rows), dice

    def test_the_skill_is_the_share_of_the_way_from_the_floor_to_the_true_environment(self):
        half = (0.5, 1, 0, False), (0.5, 2, 0, False)
        right = (0.9, 1, 0, False), (0.1, 2, 0, False)
        between = (0.7, 1, 0, False), (0.3, 2, 0, False)
        assert self.score(told(self.rows, *half))[0].skill == pytest.approx(0, abs=1e-9)
        found, dice = self.score(told(self.rows, *right))
        assert (found.skill, found.reached) == (pytest.approx(1.0), True)
        assert found.skill_stderr == pytest.approx(0)
        entropy = -0.9 * np.log(0.9) - 0.1 * np.log(0.1)
        assert found.proper_ceiling == pytest.approx(-entropy, abs=1e-3)
        assert dice.asked == [(2, 1000)], "every situation and outcome is asked about once"
        share = (0.9 * np.log(1.4) + 0.1 * np.log(0.6)) / (np.log(2) - entropy)
        found, _ = self.score(told(self.rows, *between))
        assert found.skill == pytest.approx(share, abs=0.005)
        assert not found.reached

    def test_there_is_none_where_the_environment_has_no_answer(self):
        found, _ = self.score(told(self.rows, (1.0, 1, 0, False)), answers=False)
        assert (found.proper_ceiling, found.reached) == (None, None)

    def test_wrong_rows_without_a_ceiling_keep_a_program_from_being_right(self):
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

    def test_rows_without_chance_have_to_be_right_whatever_the_standard_error(self):
        """All mistakes are in one episode: that widens the error as much as it costs skill."""
        rows, metric = with_line(self.rows, episode=3), self.metric_with(CertainBeyond())
        said = {0: ((0.9, 1), (0.1, 2)), 7: ((0.7, 9), (0.3, 8))}
        found = metric.score(outcomes(rows, said), rows)
        assert found.skill + 2 * found.skill_stderr > 0.99
        assert (found.impossible, found.reached) == (0, False)
        assert found.open_gap == "10 rows without chance are predicted wrongly"

    def test_a_skill_above_the_ceiling_refutes_the_ceiling(self):
        found, _ = self.score(truth(self.rows), one=0.6)
        assert (found.proper_ceiling, found.reached, found.open_gap) == (None, None, None)
        assert found.skill == 1.0
        nearly = (0.9, 1, 0, False), (0.1, 2, 0, False)
        found, _ = self.score(told(self.rows, *nearly), one=0.86)
        assert 1 < found.skill <= 1 + 2 * found.skill_stderr

    def metric_with(self, environment):
        """Return the metric with this environment; ones and twos are equally usual."""
        usual = dataset([(0, 1, 0, False), (0, 2, 0, False), (7, 8, 0, False)])
        return SkillMetric.of(usual).knowing(environment)

    def test_where_the_usual_is_all_that_can_be_known_saying_it_is_enough(self):
        right = told(self.rows, (0.9, 1, 0, False), (0.1, 2, 0, False))
        assert self.score(right, train=self.rows)[0].skill == 1.0
        assert self.score(told(self.rows, (1.0, 1, 0, False)), train=self.rows)[0].skill == 0.0

    def test_the_standard_error_is_over_episodes(self):
        said = told(self.rows, (0.8, 1, 0, False), (0.2, 2, 0, False))
        found, _ = self.score(said)
        kept = []
        for left_out in range(20):
            some = self.rows[self.rows.columns["episodes"] != left_out]
            half = dataset([(0, 1, 0, False), (0, 2, 0, False)])
            metric = SkillMetric.of(half).knowing(Dice(0.9))
            said = told(some, (0.8, 1, 0, False), (0.2, 2, 0, False))
            kept.append(metric.score(said, some).skill)
        jackknife = np.sqrt(19 / 20 * ((np.array(kept) - np.mean(kept)) ** 2).sum())
        assert found.skill_stderr == pytest.approx(jackknife, rel=0.1)


def test_the_environment_tells_what_chance_decides_by_counting_its_draws(few_draws) -> None:
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
    certain = metric.knowing(model).score(model.predict(rows), rows)
    assert certain.skill < 0.5 and certain.impossible > 0 and certain.reached is False


def test_a_certain_environment_is_looked_at_a_few_times_and_a_noisy_one_is_drawn_from() -> None:
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
    metric = SkillMetric.of(rows).knowing(model)
    other = metric.score(model.predict(rows, seed=5, draws=64), rows)
    assert other.skill == pytest.approx(1, abs=0.05) and other.reached
    assert other.uniformity > 0.01
    mean = metric.score(found.likeliest(), rows)
    assert mean.skill < 0.95


@pytest.fixture
def few_draws(monkeypatch):
    """Have the true environment drawn from less often."""
    monkeypatch.setattr("cwm_cli.worlds.environment.MAX_DRAWS", 6000)


@pytest.fixture(scope="module")
def ice(tmp_path_factory):
    """Record a few episodes on slippery ice."""
    rows = record(
        environment("FrozenLake-v1"), env_args={}, policy="random", episodes=6, test_episodes=3
    )
    file = tmp_path_factory.mktemp("ice") / "ice.npz"
    rows.save(file)
    return file


@pytest.mark.slow
def test_a_program_of_chance_is_scored_by_its_skill_where_no_metric_is_named(ice):
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
def test_the_command_tells_skill_and_draws_how_probabilities_came_true(cwm, ice):
    (cwm.folder / "ice.py").write_text(ICE)
    about = ("--env", "FrozenLake-v1", "--dataset", str(ice))
    done = cwm.inside("evaluate", "ice.py", *about, "--plot", "ice.svg", "--diagnose", "--json")
    told = json.loads(done.stdout)
    assert told["train"]["reached"] is True and told["diagnosis"] is None
    assert told["calibration"]["test"]["reliability"][1]["what"] == "terminated"
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


def test_a_picture_has_the_probabilities_and_the_ranks_below_each_other(tmp_path):
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
    def test_probabilities_are_compared_with_what_came_about(self):
        rows = dataset([(0, 1, n % 4 == 0, n % 4 == 0) for n in range(40)])
        said = told(rows, (0.3, 1, 1, True), (0.7, 1, 0, False))
        rewards, ends = calibration(said, rows).reliability
        assert (ends.what, ends.came, ends.counts) == ("terminated", (0.25,), (40,))
        assert ends.said == pytest.approx((0.3,))
        assert ends.brier == pytest.approx((0.7**2 + 3 * 0.3**2) / 4)
        assert rewards.brier == pytest.approx(2 * ends.brier), "over both values"
        assert rewards.said == pytest.approx((0.3, 0.7))

    def test_ranks_are_uniform_for_the_truth_and_not_for_too_little_spread(self):
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

    def test_ties_are_drawn_so_that_counted_outcomes_are_uniform_too(self):
        rng = np.random.default_rng(4)
        data = [
            ([0.0], [float(x)], 0, False) for x in rng.choice([0, 1, 5], 900, p=[0.2, 0.5, 0.3])
        ]
        rows = dataset(data, LINE)
        said = told(rows, (0.2, 0, 0, False), (0.5, 1, 0, False), (0.3, 5, 0, False))
        assert calibration(said, rows).uniformity > 0.01
        off = told(rows, (0.4, 0, 0, False), (0.3, 1, 0, False), (0.3, 5, 0, False))
        assert calibration(off, rows).uniformity < 1e-6

    def test_the_chance_of_deviating_is_that_of_kolmogorov_and_smirnov(self):
        # of 100 uniform numbers one in twenty deviates by 0.134, one in a hundred by 0.161
        for deviation, chance in ((0.134, 0.05), (0.161, 0.01)):
            even = (np.arange(100) + 1) / 100
            assert uniformity((even - deviation).clip(0, 1)) == pytest.approx(chance, rel=0.1)

    def test_what_is_certain_has_no_ranks(self):
        rows = dataset([([0.0], [1.0], 0, False)] * 30, LINE)
        assert calibration(Predictions(truth(rows)), rows).ranks == ()
        assert calibration(told(rows, (1.0, 1, 0, False)), rows).uniformity is None
