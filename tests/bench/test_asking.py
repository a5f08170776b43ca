"""Tests of the prompts for predictions, and of parsing predictions from completions."""

import json
from contextlib import suppress

import gymnasium
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cwm_cli.bench.asking import (
    NoPredictionError,
    PredictedRows,
    PredictedTransition,
    PromptWriter,
    read_answer,
)
from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.data.spaces import Space
from cwm_cli.evaluation import AccuracyMetric
from recordings import COUNTER, MOVES, POINT, dataset

PLAIN = PredictedTransition([1.0, -2.5], 1.0, False)
WORDS = Space("text", max_length=20)


@pytest.mark.parametrize(
    "text",
    [
        '{"next_observation": [1.0, -2.5], "reward": 1.0, "terminated": false}',
        '```json\n{"next_observation": [1.0, -2.5], "reward": 1.0, "terminated": false}\n```',
        'So {x | x > 0} it is.\n{"observation": [1.0, -2.5], "reward": 1, "done": false} Done.',
        "{'next_observation': [1.0, -2.5], 'reward': 1.0, 'terminated': False}",
        "{'next_observation': np.array([1.0, -2.5], dtype=np.float32), 'reward': 1.0,"
        " 'terminated': False,}",
        '{"next_observation": array([1.0, -2.5]), "reward": np.float64(1.0), "terminated": false}',
        '{"prediction": {"next_state": [1.0, -2.5], "reward": 1.0, "done": false}}',
        '{"Next Observation": [1.0, -2.5], "Reward": "1.0", "Terminated": "no"}',
        '{"next_observation": [1.0, -2.5], "reward": 1.0, "terminated": false, "note": "a } b"}',
        '{"next_observation": [9, 9], "reward": 9, "terminated": true} No, rather '
        '{"next_observation": [1.0, -2.5], "reward": 1.0, "terminated": false}',
        '{"next_observation": [1.0,\n  -2.5],  # moved\n "reward": 1.0, "terminated": false}',
        'First { and then\n{"next_observation": [1.0, -2.5], "reward": 1.0, "terminated": false}',
    ],
)
def test_read_answer_accepts_several_notations(text):
    assert read_answer(text) == PLAIN


def test_read_answer_skips_objects_nested_in_the_observation():
    text = '{"next_observation": {"at": {"x": 1}, "has": 0}, "reward": 0, "terminated": true}'
    assert read_answer(text) == PredictedTransition({"at": {"x": 1}, "has": 0}, 0, True)


def test_read_answer_requires_valid_actions_if_requested():
    text = '{"next_observation": 1, "reward": 0, "terminated": false, "valid_actions": [0, 2]}'
    assert read_answer(text, with_valid=True).valid_actions == [0, 2]
    with pytest.raises(NoPredictionError, match="lacks valid_actions"):
        read_answer(text.replace("valid_actions", "legal"), with_valid=True)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("  \n", "is empty"),
        ("I cannot tell.", "contains no JSON object"),
        ('{"observation": [1, 2]', "contains no JSON object"),
        ('{"next_observation": [1, 2], "terminated": false}', "lacks reward"),
        ("{" * 100_000, "contains no JSON object"),
        ("[" * 100_000 + "{" + "[" * 100_000, "contains no JSON object"),
    ],
)
def test_read_answer_names_the_missing_parts(text, reason):
    with pytest.raises(NoPredictionError, match=reason):
        read_answer(text)


@given(st.text(alphabet="{}[]\":, \n\\1.eE-truefalsnxrwd'()#"))
def test_read_answer_raises_no_other_error(text):
    with suppress(NoPredictionError):
        read_answer(text)


class TestPredictedRows:
    rows = Dataset.of(
        [Transition([n, 0.0], 0, [n + 1, 0.5], float(n), n == 3) for n in range(4)],
        observation_space=POINT,
        action_space=MOVES,
    )

    def completion(self, row, **changes):
        truth = {"next_observation": [row + 1, 0.5], "reward": row, "terminated": row == 3}
        return json.dumps(truth | changes)

    def test_correct_predictions_have_accuracy_one(self):
        predicted = PredictedRows(self.rows)
        assert [predicted.read(row, self.completion(row)) for row in range(4)] == [""] * 4
        score = predicted.score(AccuracyMetric.of(self.rows), np.arange(4))
        assert (score.accuracy, score.exact, score.transitions) == (1.0, 1.0, 4)

    def test_completion_without_prediction_is_wrong_in_every_part(self):
        predicted = PredictedRows(self.rows)
        assert "JSON" in predicted.read(0, "0")
        assert "shape" in predicted.read(1, self.completion(1, next_observation=[1.0]))
        assert "terminated" in predicted.read(2, self.completion(2, terminated="perhaps"))
        assert predicted.read(3, self.completion(3)) == ""
        score = predicted.score(AccuracyMetric.of(self.rows), np.arange(4))
        assert (score.observation, score.reward, score.terminated) == (0.0, 0.25, 0.25)

    def test_score_ignores_rows_that_are_not_counted(self):
        predicted = PredictedRows(self.rows)
        predicted.read(1, self.completion(1))
        score = predicted.score(AccuracyMetric.of(self.rows), np.array([1]))
        assert (score.accuracy, score.transitions) == (1.0, 1)

    @pytest.mark.parametrize(
        ("space", "values"),
        [
            (COUNTER, [3, 4.0]),
            (WORDS, ["a fly", "the end"]),
            (Space("tuple", children=(COUNTER, POINT)), [(1, [0.5, 2]), (2, [1, 1])]),
            (Space("dict", keys=("n", "w"), children=(COUNTER, WORDS)), [{"n": 1, "w": "é"}] * 2),
        ],
    )
    def test_predictions_of_every_space_are_read(self, space, values):
        rows = Dataset.of(
            [Transition(value, 1, value, 0.0, False) for value in values],
            observation_space=space,
            action_space=MOVES,
        )
        predicted = PredictedRows(rows)
        for row, value in enumerate(values):
            text = json.dumps({"next_observation": value, "reward": 0, "terminated": False})
            assert predicted.read(row, text) == ""
        assert predicted.score(AccuracyMetric.of(rows), np.arange(2)).exact == 1.0


class TestPromptWriter:
    train = dataset([(n, n + 1, float(n == 90), n == 90) for n in range(91)])

    def prompt(self, number=0, **options):
        writer = PromptWriter("A counter.", self.train, **options)
        system, user = writer.messages(Transition(97, 1, 98, 7.5, True), number)
        assert (system.role, user.role) == ("system", "user")
        return user.content

    def test_prompt_contains_inputs_but_not_the_true_outputs(self):
        text = self.prompt()
        assert "A counter." in text
        assert "an int from 0 to 99" in text
        assert "observation: 97\naction: 1" in text
        assert "98" not in text
        assert "7.5" not in text

    def test_examples_contain_each_kind_of_step_before_a_second_of_any_kind(self):
        for number in range(5):
            text = self.prompt(number, examples=2)
            assert text.count("next_observation: ") == 2
            assert "observation: 90\naction: 0\nnext_observation: 91\nreward: 1.0" in text

    def test_examples_depend_on_the_prompt_number_and_the_seed(self):
        assert self.prompt(0) == self.prompt(0)
        assert self.prompt(0) != self.prompt(1)
        assert self.prompt(0) != self.prompt(0, seed=1)

    def test_prompt_without_examples(self):
        assert "There are none." in self.prompt(examples=0)

    def test_float32_values_are_written_with_few_digits(self):
        space = Space("box", "float32", (2,), (-1.0, -1.0), (1.0, 1.0))
        value = np.array([0.1, -0.2], dtype=np.float32)
        rows = Dataset.of(
            [Transition(value, 0, value, 0.1, False)], observation_space=space, action_space=MOVES
        )
        text = PromptWriter("", rows).messages(rows.row(0), 0)[1].content
        assert "observation: [0.1, -0.2]" in text


def test_predictions_in_the_format_of_the_examples_are_read(poles):
    data, description = poles
    text = PromptWriter(description, data).messages(data.row(0), 0)[1].content
    example = text.partition("## Some recorded steps")[2].split("\n\n")[1]
    fields = dict(line.split(": ", 1) for line in example.splitlines())
    parts = {name: json.loads(fields[name]) for name in ("next_observation", "reward")}
    predicted = PredictedRows(data[np.arange(1)])
    assert predicted.read(0, json.dumps(parts | {"terminated": False})) == ""
    assert gymnasium.make("CartPole-v1").observation_space.contains(
        np.array(parts["next_observation"], dtype=np.float32)
    )
