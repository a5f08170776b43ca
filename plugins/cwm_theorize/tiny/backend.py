"""The backend `tiny`: a language model that can be trained in minutes on a CPU."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from cwm_cli.envs.spec import EnvironmentSpec
from cwm_cli.envs.text_view import TextView
from cwm_cli.errors import CwmError
from cwm_cli.search.contracts import Backend, Completion, Request, ScoreRequest, unheard
from cwm_theorize.statistician import PredictionQuestion
from cwm_theorize.tiny.lessons import train_for
from cwm_theorize.tiny.model import TinyModel, question_text
from cwm_theorize.tiny.training import Course, require_torch

SHIPPED = Path(__file__).parent / "weights"
"""Included models; each file is named after the key of its vocabulary."""


def words_key(view: TextView) -> str:
    """Return a hash of a view's vocabulary; environments with equal vocabularies share a model."""
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
    """A decoder with about 350,000 weights that reads rules in the words of one environment.

    It reads rules, state and action, and scores the sentence of a change word by word. It does not
    propose rules. If no included model knows the vocabulary of the environment, one is trained
    (extra `neural`) and cached by its options. The training data are random play and generated
    rules, never the true outcomes.
    """

    can_score = True
    reads_messages = False

    model: str = ""
    weights: str = ""
    """File of a trained model. Default: a model for the environment's words, included or trained
    earlier."""
    steps: Annotated[int, Field(ge=1)] = 4000
    """Training steps if there is no trained model."""
    seconds: Annotated[float, Field(gt=0)] = 600.0
    """Maximum training time in seconds."""
    seed: int = 0
    """Random seed of the training."""
    _models: dict[str, TinyModel] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        """Reject a model name."""
        if self.model:
            raise CwmError("the tiny language model has no name: leave out --model")

    def complete(self, request: Request) -> Completion:
        """Raise `CwmError`: the model predicts changes, and proposes no rules."""
        raise CwmError("the tiny language model proposes no rules: choose another --theorist")

    def score(self, requests: Sequence[ScoreRequest]) -> list[Sequence[float]]:
        """Score sentences word by word; sentences for the same question share one pass."""
        asked: dict[tuple[str, tuple[int, ...]], list[int]] = {}
        for place, request in enumerate(requests):
            question = request.question
            if not isinstance(question, PredictionQuestion):
                raise CwmError(
                    "the tiny language model only scores predictions: choose another --theorist"
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
        """Return the key of the model for a question, and the question as tokens."""
        key = self.weights or words_key(question.view)
        if key not in self._models:
            self._models[key] = self._load(key)
        here = question.transition
        text = question_text(question.rules, here.state, here.action)
        return key, self._models[key].tokens(text)

    def prepare(
        self,
        spec: EnvironmentSpec,
        env_args: Mapping[str, Any],
        tell: Callable[[str], None] = unheard,
    ) -> None:
        """Train a model for the vocabulary of an environment, unless one exists."""
        if self.weights or spec.text is None:
            return
        with closing(spec.make(**env_args)) as env:
            view = spec.text(env)
        key = words_key(view)
        if key in self._models or self._file(key) is not None:
            return
        require_torch()
        cached = self._cache_file(key)
        tell(f"training a tiny language model for {spec.id}, for at most {self.seconds:g} seconds")
        course = Course(self.steps, self.seconds, seed=self.seed)
        model = train_for(spec, env_args, view, course, tell)
        cached.parent.mkdir(parents=True, exist_ok=True)
        model.save(cached)

    def _load(self, key: str) -> TinyModel:
        """Load the model from `weights`, from the included models, or from the cache."""
        file = Path(self.weights) if self.weights else self._file(key)
        if file is None:
            raise CwmError(
                "no tiny language model was trained for this environment: `cwm theorize "
                "--statistician tiny` trains one"
            )
        return TinyModel.load(file)

    def _file(self, key: str) -> Path | None:
        """Return the weights file for a vocabulary; None if there is none."""
        files = (SHIPPED / f"{key}.npz", self._cache_file(key))
        return next((file for file in files if file.is_file()), None)

    def _cache_file(self, key: str) -> Path:
        """Return the cache file for a vocabulary and these training options."""
        import platformdirs

        named = f"{key}-{self.steps}-{self.seconds:g}-{self.seed}.npz"
        return Path(platformdirs.user_cache_dir("cwm")) / "tiny" / named
