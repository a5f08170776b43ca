"""The backend `tiny`: a language model small enough to be trained on the spot."""

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
from cwm_theorize.tiny.lessons import learned
from cwm_theorize.tiny.model import TinyModel, question_text
from cwm_theorize.tiny.training import Course, required

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
    follows, word by word; it proposes no rules. Where no weights ship for an environment's words
    it is trained (that takes `cwm-cli[neural]`), once for the same options: by random play and
    made-up rules, not by what really follows.
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
                    "the tiny language model only weighs predictions: choose another --theorist"
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

    def prepare(
        self,
        spec: EnvironmentSpec,
        env_args: Mapping[str, Any],
        tell: Callable[[str], None] = unheard,
    ) -> None:
        """Learn the words of an environment where no model knows them yet."""
        if self.weights or spec.text is None:
            return
        with closing(spec.make(**env_args)) as env:
            view = spec.text(env)
        key = words_key(view)
        if key in self._models or self._file(key) is not None:
            return
        required()
        cached = self._cached(key)
        tell(f"training a tiny language model for {spec.id}, for at most {self.seconds:g} seconds")
        course = Course(self.steps, self.seconds, seed=self.seed)
        model = learned(spec, env_args, view, course, tell)
        cached.parent.mkdir(parents=True, exist_ok=True)
        model.save(cached)

    def _found(self, key: str) -> TinyModel:
        """Load the model that was named, ships, or was trained."""
        file = Path(self.weights) if self.weights else self._file(key)
        if file is None:
            raise CwmError(
                "no tiny language model was trained for this environment: `cwm theorize "
                "--statistician tiny` "
                "trains one"
            )
        return TinyModel.load(file)

    def _file(self, key: str) -> Path | None:
        """Return where there are weights for the words of this key."""
        files = (SHIPPED / f"{key}.npz", self._cached(key))
        return next((file for file in files if file.is_file()), None)

    def _cached(self, key: str) -> Path:
        """Return where what is trained with these options is kept."""
        import platformdirs

        named = f"{key}-{self.steps}-{self.seconds:g}-{self.seed}.npz"
        return Path(platformdirs.user_cache_dir("cwm")) / "tiny" / named
