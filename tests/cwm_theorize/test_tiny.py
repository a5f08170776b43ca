"""The tiny language model: scores, files and training."""

import json
import os
import sys
from contextlib import closing

import numpy as np
import pytest

from cwm_cli.data.dataset import Transition
from cwm_cli.errors import CwmError
from cwm_cli.registry import environment
from cwm_cli.search.contracts import GENERATE, Move, Request, ScoreRequest
from cwm_theorize.statistician import Statistician, text_transitions
from cwm_theorize.tiny.backend import Tiny
from cwm_theorize.tiny.lessons import train_for
from cwm_theorize.tiny.model import (
    MARKS,
    TinyModel,
    question_text,
    read,
    shapes_of,
    windows,
    words_of,
)
from cwm_theorize.tiny.training import Course

WORDS = words_of("if the colour is not blue red, then opened closed. otherwise you hold a key ball")
RULES = ["If colour is blue, then closed. Otherwise, opened.", "", "Always, closed."]
STATE, CHANGES = "A door is closed.", ["The door is opened.", "You hold a door.", "Closed."]


@pytest.fixture(scope="module")
def model():
    """An untrained model of the right form."""
    rng = np.random.default_rng(0)
    shapes = shapes_of(2 + len(MARKS) + len(WORDS))
    weights = {name: rng.normal(size=shape) / 10 for name, shape in shapes.items()}
    return TinyModel(["", "<unknown>", *MARKS, *WORDS], weights, {"steps": 0})


def test_shared_prefixes_do_not_change_scores(model):
    actions = ["You hold a red ball.", "You hold a blue key.", "You hold."]
    asked = [question_text(rules, STATE, action) for rules in RULES for action in actions]
    prompts = [model.tokens(each) for each in asked]
    answers = [[model.tokens(change) for change in CHANGES]] * len(prompts)
    together = model.of_answers(prompts, answers)
    for prompt, each, scores in zip(prompts, answers, together, strict=True):
        for answer, score in zip(each, scores, strict=True):
            alone = model.log_probabilities([*prompt, *answer])[len(prompt) :]
            assert np.allclose(score, alone, rtol=0, atol=1e-4)


def test_next_word_probabilities_add_up_to_one(model):
    prompt = model.tokens(question_text(RULES[0], STATE, "You hold a blue key."))
    scores = model.of_answers([prompt], [[[word] for word in range(len(model.words))]])[0]
    assert np.exp(scores).sum() == pytest.approx(1)


def test_saved_model_loads_with_equal_scores(model, tmp_path):
    file = tmp_path / "model.npz"
    model.save(file)
    again = TinyModel.load(file)
    text = model.tokens(question_text(RULES[0], STATE, "You hold."))
    assert again.words == model.words
    assert again.about["steps"] == 0
    assert np.allclose(
        model.log_probabilities(text), again.log_probabilities(text), atol=0.02
    )  # half precision


def test_invalid_model_file_gives_one_line(model, tmp_path):
    file = tmp_path / "model.npz"
    model.save(file)
    whole = file.read_bytes()
    with np.load(file) as archive:
        arrays = dict(archive)
    for write in (
        lambda: file.write_text("no model"),
        lambda: np.savez(file, other=np.zeros(2)),
        lambda: np.savez(file, about=np.array(json.dumps({"format": 0}))),
        lambda: file.write_bytes(whole[:3000]),
        lambda: file.write_bytes(whole[:3000] + bytes(100) + whole[3100:]),
        lambda: np.savez(file, **{k: v for k, v in arrays.items() if k != "out"}),
        lambda: np.savez(file, **arrays | {"last": np.zeros(3, np.float16)}),
        lambda: np.savez(file, **arrays | {"last": arrays["last"] * np.nan}),
        lambda: np.savez(file, **arrays | {"words": np.array("1.5")}),
        lambda: np.savez(file, **arrays | {"about": np.array("[" * 5000)}),
    ):
        write()
        with pytest.raises(CwmError, match=str(file)) as refused:
            TinyModel.load(file)
        assert "\n" not in str(refused.value)
    os.mkfifo(tmp_path / "pipe.npz")
    for name in ("missing.npz", "pipe.npz"):
        with pytest.raises(CwmError, match=name):
            TinyModel.load(tmp_path / name)


TRUE = {
    "not blue": "If colour is blue, then closed.\nOtherwise, opened.",
    "not a blue key": "If colour is blue and shape is key, then closed.\nOtherwise, opened.",
    "neither green nor large": (
        "If colour is green, then closed.\nIf size is large, then closed.\nOtherwise, opened."
    ),
    "always": "Always, opened.",
    "never": "Always, closed.",
}
"""The rules of the door in the controlled language."""


def door(rule):
    """The door with a rule in words, and the transition of each of the 27 items."""
    spec = environment("Door-v0")
    with closing(spec.make(rule=rule)) as env:
        view, rows = spec.text(env), []
        for action in range(27):
            seen, _ = env.reset(seed=0)
            after, reward, terminated, *_ = env.step(action)
            rows.append(Transition(seen, action, after, reward, terminated))
    return view, text_transitions(view, rows)


@pytest.mark.parametrize("rule", TRUE)
def test_included_model_prefers_the_right_rules(rule):
    view, transitions = door(rule)
    statistician = Statistician(view, Tiny())
    scores = {
        name: statistician.log_likelihoods(text, transitions).sum() for name, text in TRUE.items()
    }
    unknown = statistician.log_likelihoods("", transitions).sum()
    right = scores.pop(rule)
    assert right > -3
    assert -35 < unknown < -12  # 27 sentences with two possible results each: -18.7
    assert max(scores.values()) < right - 3  # some rules differ in three items only


def test_tiny_model_only_predicts():
    request = Request((), 0, Move(GENERATE), None)
    with pytest.raises(CwmError, match="proposes no rules"):
        Tiny().complete(request)
    with pytest.raises(CwmError, match="only scores predictions"):
        Tiny().score([ScoreRequest((), "Always, opened.", request)])
    with pytest.raises(CwmError, match="leave out --model"):
        Tiny(model="tiny")


def test_unknown_vocabulary_gives_one_line(monkeypatch, tmp_path):
    view, transitions = door("always")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(type(view), "kinds", ("closed", "opened", "broken"))
    with pytest.raises(CwmError, match="no tiny language model was trained for this environment"):
        Statistician(view, Tiny()).log_likelihoods("", transitions)


def test_missing_torch_is_reported_before_training(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("cwm_theorize.tiny.backend.SHIPPED", tmp_path)
    monkeypatch.setitem(sys.modules, "torch", None)
    notes = []
    with pytest.raises(CwmError, match=r"needs torch: pip install .*\[neural\]"):
        Tiny(seed=7).prepare(environment("Door-v0"), {}, notes.append)
    assert not notes


@pytest.mark.long
def test_numpy_scores_equal_torch_scores(monkeypatch, tmp_path):
    torch = pytest.importorskip("torch")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    spec = environment("Door-v0")
    with closing(spec.make()) as env:
        view = spec.text(env)
    notes = []
    model = train_for(spec, {}, view, Course(steps=20, seconds=60), notes.append)
    assert model.about["trained"] == 20
    assert not model.about["capped"]
    assert len(notes) == 20
    text = question_text(RULES[0], view.state(0), view.action(0, 5))
    tokens = model.tokens(f"{text} The door opens.")
    weights = {name: torch.tensor(each) for name, each in model.weights.items()}
    understood, _ = read(torch, weights, torch.tensor(windows((), tokens))[None, None])
    scores = torch.log_softmax(understood[0, 0] @ weights["embedding"].T, -1)
    wanted = [float(scores[n, token]) for n, token in enumerate(tokens[1:])]
    assert np.allclose(model.log_probabilities(tokens)[1:], wanted, rtol=0, atol=1e-4)


@pytest.mark.long
def test_trained_model_is_cached(monkeypatch, tmp_path):
    pytest.importorskip("torch")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("cwm_theorize.tiny.backend.SHIPPED", tmp_path / "none")
    spec, notes = environment("Door-v0"), []
    for _ in range(2):
        Tiny(steps=10, seconds=60).prepare(spec, {}, notes.append)
    assert len([each for each in notes if "training one" in each]) == 1
    view, transitions = door("not blue")
    weighing = Statistician(view, Tiny(steps=10, seconds=60))
    assert np.isfinite(weighing.log_likelihoods("", transitions)).all()
