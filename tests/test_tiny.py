import json
from pathlib import Path

import numpy as np
import pytest

from cwm_cli.errors import CwmError
from cwm_tiny.model import MARKS, TinyModel, question_text

WORDS = [
    "if",
    "the",
    "colour",
    "is",
    "not",
    "blue",
    "red",
    "then",
    "opened",
    "closed",
    "otherwise",
    "you",
    "hold",
    "a",
    "key",
    "ball",
    ".",
    ",",
]
RULES = ["If colour is blue, then closed. Otherwise, opened.", "", "Always, closed."]
STATE, CHANGES = "A door is closed.", ["The door is opened.", "You hold a door.", "Closed."]


@pytest.fixture(scope="module")
def model():
    """A model of the right form that has learned nothing."""
    rng = np.random.default_rng(0)
    width, layers = 96, 3
    shapes = {
        "embedding": (2 + len(MARKS) + len(WORDS), width),
        "qkv": (layers, width, 3 * width),
        "out": (layers, width, width),
        "up": (layers, width, 4 * width),
        "down": (layers, 4 * width, width),
        "before_attention": (layers, width),
        "before_inner": (layers, width),
        "last": (width,),
    }
    weights = {name: rng.normal(size=shape) / 10 for name, shape in shapes.items()}
    return TinyModel(["", "<unknown>", *MARKS, *WORDS], weights, {"steps": 0})


def test_the_shared_beginnings_of_questions_change_no_score(model):
    actions = ["You hold a red ball.", "You hold a blue key.", "You hold."]
    asked = [question_text(rules, STATE, action) for rules in RULES for action in actions]
    prompts = [model.tokens(each) for each in asked]
    answers = [[model.tokens(change) for change in CHANGES]] * len(prompts)
    together = model.of_answers(prompts, answers)
    for prompt, each, scores in zip(prompts, answers, together, strict=True):
        for answer, score in zip(each, scores, strict=True):
            alone = model.log_probabilities([*prompt, *answer])[len(prompt) :]
            assert np.allclose(score, alone, rtol=0, atol=1e-10)


def test_what_may_come_next_has_probabilities_that_add_up_to_one(model):
    prompt = model.tokens(question_text(RULES[0], STATE, "You hold a blue key."))
    scores = model.of_answers([prompt], [[[word] for word in range(len(model.words))]])[0]
    assert np.exp(scores).sum() == pytest.approx(1)


def test_a_model_is_the_same_after_it_was_written_down(model, tmp_path):
    file = tmp_path / "model.npz"
    model.save(file)
    again = TinyModel.load(file)
    text = model.tokens(question_text(RULES[0], STATE, "You hold."))
    assert again.words == model.words
    assert again.about["steps"] == 0
    assert np.allclose(
        model.log_probabilities(text), again.log_probabilities(text), atol=0.02
    )  # half precision


def test_a_file_that_is_no_model_is_refused_in_one_line(tmp_path):
    file = tmp_path / "model.npz"
    for write in (
        lambda: file.write_text("no model"),
        lambda: np.savez(file, other=np.zeros(2)),
        lambda: np.savez(file, about=np.array(json.dumps({"format": 0}))),
    ):
        write()
        with pytest.raises(CwmError, match=str(file)) as refused:
            TinyModel.load(file)
        assert "\n" not in str(refused.value)
    with pytest.raises(CwmError):
        TinyModel.load(Path(tmp_path / "missing.npz"))
