"""The backend `tiny`: a language model small enough to be trained on the spot."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from cwm_cli.envs.text_view import TextView
from cwm_cli.errors import CwmError
from cwm_cli.search.contracts import Backend, Completion, Request, ScoreRequest
from cwm_cli.worlds.statistician import PredictionQuestion
from cwm_tiny.model import TinyModel, question_text

SHIPPED = Path(__file__).parent / "weights"
"""Models that ship, each named by the words that it reads."""


def words_key(view: TextView) -> str:
    """Name what can be said in a view: one model reads all environments that share it."""
    said = [
        list(view.kinds),
        {name: list(values) for name, values in view.vocabulary.items()},
        {
            kind: {name: list(values) for name, values in fields.items()}
            for kind, fields in view.conclusions.items()
        },
    ]
    return sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Tiny(Backend):
    """A decoder of some 350,000 weights that has learned to read rules in one environment's words.

    It reads the rules, what is seen and what is done, and weighs the sentence that says what
    follows, word by word. It proposes no rules. Weights for one small environment ship.
    """

    can_score = True
    reads_messages = False

    model: str = ""
    weights: str = ""
    """File of a trained model; else the one that ships for the environment's words."""
    _models: dict[str, TinyModel] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        """Refuse the name of a model."""
        if self.model:
            raise CwmError("the tiny language model has no name: leave out --model")

    def complete(self, request: Request) -> Completion:
        """Refuse: it has learned to predict, not to propose."""
        raise CwmError("the tiny language model proposes no rules: choose another --theorist")

    def score(self, requests: Sequence[ScoreRequest]) -> list[Sequence[float]]:
        """Weigh sentences word by word, all that answer one question together."""
        asked: dict[tuple[str, tuple[int, ...]], list[int]] = {}
        for place, request in enumerate(requests):
            question = request.question
            if not isinstance(question, PredictionQuestion):
                raise CwmError(
                    "the tiny language model weighs predictions alone: choose another --theorist"
                )
            asked.setdefault(self._prompt(question), []).append(place)
        found: list[Sequence[float]] = [()] * len(requests)
        for key in {key for key, _ in asked}:
            model = self._models[key]
            prompts = [prompt for of, prompt in asked if of == key]
            places = [asked[key, prompt] for prompt in prompts]
            texts = [[model.tokens(requests[place].text) for place in each] for each in places]
            for each, scores in zip(places, model.of_answers(prompts, texts), strict=True):
                for place, score in zip(each, scores, strict=True):
                    found[place] = score.tolist()
        return found

    def _prompt(self, question: PredictionQuestion) -> tuple[str, tuple[int, ...]]:
        """Return what names the model that reads a question, and the question in its tokens."""
        key = self.weights or words_key(question.view)
        if key not in self._models:
            self._models[key] = self._found(key)
        here = question.transition
        text = question_text(question.rules, here.state, here.action)
        return key, self._models[key].tokens(text)

    def _found(self, key: str) -> TinyModel:
        """Load the model that was named, or ships."""
        if self.weights:
            return TinyModel.load(self.weights)
        shipped = SHIPPED / f"{key}.npz"
        if not shipped.is_file():
            raise CwmError(
                "no tiny language model has learned these words: give -o statistician.weights=FILE"
            )
        return TinyModel.load(shipped)
