"""The reports of improve prompts on programs of real environments."""

import json
import re
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import recordings
from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.data.spaces import Space
from cwm_cli.evaluation import AccuracyMetric
from cwm_cli.problems.feedback import counterexample, report, worst
from cwm_cli.problems.feedback.steps import write_value
from cwm_cli.search.contracts import IMPROVE, Move
from recordings import FROZEN_LAKE, PENDULUM, cartpole, problem, record

said = partial(recordings.said, evidence_tokens=0)


class TestContinuousReport:
    def test_components_are_named_by_the_documentation_and_wrong_ones_explained(
        self, poles, sandbox
    ):
        text = said(poles, cartpole(gravity=9.0), sandbox)
        assert "observation[3] (Pole Angular Velocity): right in" in text
        assert re.search(r"adding 0\.0\d+ \* observation\[2\] to the prediction", text)
        assert "always right: observation[0], observation[2]" in text

    def test_the_report_on_a_wrong_integrator_states_the_recorded_rule(self, poles, sandbox):
        text = said(poles, cartpole(position="x + 0.02 * (v + 0.02 * pull)"), sandbox)
        assert "adding -0.02 * (next_observation[1] - observation[1])" in text
        assert "recorded change: 0.02 * observation[1], in 100 % of the transitions" in text

    def test_the_report_on_missed_ends_states_their_threshold(self, poles, sandbox):
        text = said(poles, cartpole(limit=0.3), sandbox)
        ends = int(poles[0][poles[0].fitted].columns["terminations"].sum())
        assert f"{ends} of {ends} ends missed" in text
        bracket = re.search(
            r"the episode ends exactly if abs\(next_observation\[2\]\) > \S+ .*; nearest values of "
            r"abs\(next_observation\[2\]\): (\S+) with it, (\S+) without",
            text,
        )
        assert float(bracket[2]) < 12 * np.pi / 180 < float(bracket[1])
        assert f"terminated if abs(predicted next_observation[2]) > 0.21: wrong in {ends}" in text
        assert f"the episode terminates ({ends}): terminated right in 0 %, otherwise 100 %" in text

    def test_examples_show_every_digit(self, poles, sandbox):
        data, _ = poles
        text = said(poles, cartpole(gravity=9.0), sandbox)
        shown = [
            np.array(json.loads(text), np.float32).tolist()
            for text in re.findall(r"recorded  (\[.*\])", text)
        ]
        recorded = data[data.fitted].columns["next_observations"].tolist()
        assert len(shown) >= 3
        assert all(row in recorded for row in shown)

    def test_only_fitted_rows_are_shown(self, poles, sandbox):
        data, _ = poles
        text = said(poles, cartpole(gravity=5), sandbox)
        hidden = data[~data.fitted].columns["observations"]
        assert not any(write_value(row) in text for row in hidden)
        assert any(write_value(row) in text for row in data[data.fitted].columns["observations"])

    def test_a_wrong_reward_is_explained_by_the_term_that_is_missing(self, sandbox):
        text = said(record("Pendulum-v1", episodes=10), PENDULUM, sandbox)
        assert "The reward" in text
        assert re.search(r"adding -0\.(001|00099999\d*) \* action\[0\]\*\*2 .* 100 % of them", text)

    def test_clipped_values_are_a_kind_of_transition(self, sandbox):
        text = said(record("Pendulum-v1", episodes=10, limit=200), PENDULUM, sandbox)
        clipped = r"- observation\[2\] is at its m\w+, -?8.0 \(\d+\): observation right in"
        assert re.search(rf"{clipped} \S+ %, otherwise 99", text)

    def test_the_report_names_gaps_in_the_data(self, sandbox):
        text = said(record("Pendulum-v1", episodes=3), PENDULUM, sandbox)
        assert "the transitions are right" in text
        assert "no episode terminates" in text
        assert "integrator" in text

    def test_random_real_numbers_are_no_physical_system(self):
        data, guess = wide(4)
        assert "integrator" not in report(data, guess, AccuracyMetric.of(data), "Stock and orders.")


class TestDescription:
    def test_the_description_does_not_depend_on_the_program(self, poles, sandbox):
        asked = problem(poles, sandbox)
        starts = set()
        for limit, gravity in ((0.3, 9.8), (12 * np.pi / 180, 9.0)):
            program = cartpole(limit=limit, gravity=gravity)
            move = Move(IMPROVE, program=program, verdict=asked.judge(program))
            user = asked.messages(move)[1]
            starts.add(user.content[: user.stable])
        [start] = starts
        assert all(
            text in start for text in ("## Episode End", "## Rewards", "Pole Angular Velocity")
        )


class TestDiscreteReport:
    lake = staticmethod(lambda **options: record("FrozenLake-v1", episodes=60, **options))

    def test_mistakes_are_counted_by_action_and_part(self, sandbox):
        recorded = self.lake(is_slippery=False)
        data = recorded[0][recorded[0].fitted]
        actions, cells = data.columns["actions"], data.columns["observations"]
        walled = (actions == 2) & (cells % 4 == 3)
        text = said(recorded, FROZEN_LAKE, sandbox)
        counts = dict(re.findall(r"action (\d) +\d+ +(\d+)", text))
        assert counts == {"0": "0", "1": "0", "2": str(walled.sum()), "3": "0"}
        assert "next observation  recorded  3\n                      predicted 0" in text

    def test_each_transition_is_shown_once(self, sandbox):
        text = said(self.lake(is_slippery=False), FROZEN_LAKE, sandbox)
        blocks = [block.split("\n", 1)[1] for block in re.split(r"\n\(\d\) ", text)[1:]]
        assert len(blocks) == len(set(blocks))

    def test_different_outcomes_of_equal_situations_are_reported(self, sandbox):
        text = said(self.lake(is_slippery=True), FROZEN_LAKE, sandbox)
        assert "pairs of observation and action were recorded with different outcomes" in text
        assert re.search(r"The best score that can be reached here is 0\.\d+", text)

    def test_wrong_rewards_are_counted_by_value(self, sandbox):
        recorded = record("Blackjack-v1", episodes=60)
        program = (
            "class Environment:\n"
            "    def set_state(self, observation): self.seen = observation\n"
            "    def step(self, action): return self.seen, 0.0, False\n"
        )
        text = said(recorded, program, sandbox)
        lost = recorded[0][recorded[0].fitted].columns["rewards"] == -1
        assert f"recorded -1.0, predicted 0.0: {lost.sum()} times" in text


class TestPublishedFeedback:
    def test_published_feedback_is_a_single_transition(self, poles, sandbox):
        text = said(poles, cartpole(gravity=5), sandbox, feedback="paper")
        assert text.startswith("This transition is predicted wrongly:")
        assert text.count("next observation") == 1
        assert len(text.splitlines()) <= 8

    def test_published_feedback_is_the_first_wrong_transition(self):
        space = Space("discrete", low=(0,), high=(9,))
        rows = [Transition(n, 0, n, float(n == 4), False) for n in (1, 2, 3, 4)]
        data = Dataset.of(rows, observation_space=space, action_space=space)
        wrong = data.select("next_observations", "rewards", "terminations")
        wrong["next_observations"] = wrong["next_observations"] + np.array([0, 5, 0, 5])
        assert "observation       2\n" in counterexample(data, wrong, AccuracyMetric.of(data))


def wide(size, rows=60):
    """Return transitions of `size` numbers, and predictions that are wrong in every number."""
    rng = np.random.default_rng(size)
    space = Space("box", "float64", (size,), (-np.inf,) * size, (np.inf,) * size)
    action = Space("box", "float32", (3,), (-1.0,) * 3, (1.0,) * 3)
    columns = {
        "observations": rng.normal(size=(rows, size)),
        "actions": rng.uniform(-1, 1, (rows, 3)).astype(np.float32),
        "next_observations": rng.normal(size=(rows, size)),
        "rewards": rng.normal(size=rows),
        "terminations": np.zeros(rows, dtype=np.bool_),
        "truncations": np.zeros(rows, dtype=np.bool_),
        "episodes": np.arange(rows) // 10,
        "split": np.zeros(rows, dtype=np.int8),
    }
    data = Dataset(columns, space, action)
    guess = {"next_observations": columns["observations"], "rewards": np.zeros(rows)}
    return data, guess | {"terminations": columns["truncations"]}


texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=300)


class TestAnyObservation:
    @pytest.mark.parametrize("size", [1, 4, 17, 105, 2000])
    def test_the_length_of_a_report_is_bounded(self, size):
        data, guess = wide(size)
        assert 1000 < len(report(data, guess, AccuracyMetric.of(data))) < 5000

    def test_predictions_that_are_not_finite_are_counted(self):
        data, guess = wide(4)
        broken = guess["next_observations"].copy()
        broken[:7, 2], broken[:, 3] = np.nan, np.inf
        text = report(data, guess | {"next_observations": broken}, AccuracyMetric.of(data))
        assert "not a finite number in 7 rows" in text
        assert "observation[3]: right in 0 %; never a finite number" in text

    def test_missing_effect_of_a_part_of_a_mixed_action_is_named(self):
        data, guess = wide(2)
        label = Space("discrete", low=(0,), high=(2,))
        feed = Space("box", "float64", (1,), (0.0,), (9.0,))
        space = Space("dict", keys=("heating", "feed"), children=(label, feed))
        rng = np.random.default_rng(1)
        columns = {name: each for name, each in data.columns.items() if name != "actions"}
        columns["actions.heating"] = rng.integers(0, 3, len(data))
        columns["actions.feed"] = rng.uniform(0, 9, (len(data), 1))
        change = np.concatenate([0.7 * columns["actions.feed"], np.zeros((len(data), 1))], axis=1)
        columns["next_observations"] = columns["observations"] + change
        mixed = Dataset(columns, data.observation_space, space)
        text = report(mixed, guess, AccuracyMetric.of(mixed))
        assert "adding 0.7 * action['feed'][0] to the prediction makes 100 % of them right" in text

    @settings(max_examples=25, deadline=None)
    @given(texts, texts, st.text(min_size=1, max_size=30))
    def test_reports_contain_no_control_characters(self, one, other, key):
        space = Space("dict", keys=(key,), children=(Space("text", max_length=300),))
        rows = [
            Transition({key: one}, 0, {key: other + "!"}, 0.0, False),
            Transition({key: other}, 1, {key: one}, 1.0, True),
        ]
        data = Dataset.of(
            rows, observation_space=space, action_space=Space("discrete", low=(0,), high=(1,))
        )
        guess = {f"next_{name}": column for name, column in data.select("observations").items()}
        guess |= {"rewards": np.array([0.0, 3.0]), "terminations": np.array([True, True])}
        texts = [write(data, guess, AccuracyMetric.of(data)) for write in (report, counterexample)]
        for text in (*texts, *worst(data, guess, AccuracyMetric.of(data), 3)):
            assert all(c == "\n" or c.isprintable() for c in text)
            assert len(text) < 5000

    def test_long_texts_are_shown_from_their_first_difference(self):
        space = Space("text", max_length=2000)
        before, after = "." * 1500, "." * 1200 + "@" + "." * 299
        data = Dataset.of(
            [Transition(before, 0, after, 0.0, False)],
            observation_space=space,
            action_space=Space("discrete", low=(0,), high=(0,)),
        )
        guess = data.select("rewards", "terminations") | {"next_observations": np.array([before])}
        assert re.search(r"\[1180:\] '\.{20}@\.+'", report(data, guess, AccuracyMetric.of(data)))
