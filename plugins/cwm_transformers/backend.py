"""The backend `transformers`: a language model whose weights are read into this process."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING

from cwm_cli.errors import CwmError, install_command
from cwm_cli.search.contracts import (
    Backend,
    Completion,
    Problem,
    Request,
    ScoreRequest,
    Usage,
    total,
)

if TYPE_CHECKING:
    from cwm_transformers.model import LanguageModel

NOT_IDENTITY = {"identity": False}
"""A run may be continued with another value of such a field."""


@dataclass
class Held:
    """A model that was read, and what it weighed so far."""

    model: LanguageModel | None = None
    weighed: Usage = field(default_factory=Usage)
    lock: threading.Lock = field(default_factory=threading.Lock)


@dataclass(frozen=True)
class Transformers(Backend):
    """Any causal language model of the transformers library: a folder, or a name of its hub.

    It weighs texts as published (Levy et al., 2025): the log-softmax over the whole vocabulary,
    summed over the tokens of an answer with the marks of its turn. It answers by sampling, and
    tells how likely its answers were.
    """

    needs_model = True
    can_score = True

    model: str = ""
    device: str = field(default="cpu", metadata=NOT_IDENTITY)
    """Device: `cpu`, `cuda`, `cuda:1` or `mps`."""
    dtype: str = "auto"
    """Data type of the weights, such as `float32` or `bfloat16`; `auto`: the type in the file."""
    batch: int = field(default=16, metadata=NOT_IDENTITY)
    """Number of texts in a batch."""
    temperature: float = 1.0
    """Sampling temperature of answers (`--temperature`)."""
    max_tokens: int | None = None
    """Maximum number of tokens in an answer. none: 200 for rules, as published, and 4096 for a
    program, if the context of the model has room."""
    _held: Held = field(default_factory=Held, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Refuse what is not installed or not named."""
        if not all(map(find_spec, ("torch", "transformers"))):
            command = install_command("cwm-cli[transformers]")
            raise CwmError(f"language models in this process need an extra: {command}")
        if not self.model:
            raise CwmError("no language model given: write transformers/FOLDER")
        if self.temperature <= 0:
            raise CwmError("sampling needs a --temperature above 0")

    @property
    def weighed(self) -> Usage:
        """What weighing texts took so far."""
        return self._held.weighed

    def complete(self, request: Request) -> Completion:
        """Sample an answer."""
        with self._held.lock:
            model, problem = self._loaded(), request.problem
            kind = type(problem) if isinstance(problem, Problem) else Problem
            done = model.answer(
                request.messages,
                seed=request.seed,
                temperature=self.temperature,
                most=self.max_tokens or kind.answer_tokens,
                shorter=request.shorter,
            )
            usage = done.usage
            request.log(
                f"step {request.step}: {self.model} answered in {usage.seconds:.1f} s: "
                f"{usage.prompt_tokens:,} tokens of prompt, {usage.completion_tokens:,} of answer"
                f"{', ' * bool(done.lacking)}{done.lacking}"
            )
        return done

    def score(self, requests: Sequence[ScoreRequest]) -> Sequence[Sequence[float]]:
        """Weigh texts, many at a time.

        A text that answers a `Request` is weighed as it is sampled: without the marks of its turn.
        """
        with self._held.lock:
            found, took = self._loaded().weigh(
                [
                    (each.messages, each.text, isinstance(each.question, Request))
                    for each in requests
                ],
                batch=self.batch,
                temperature=self.temperature,
            )
            self._held.weighed = total([self._held.weighed, took])
        return found

    def _loaded(self) -> LanguageModel:
        """Return the model, read when it is first asked."""
        if self._held.model is None:
            from cwm_transformers.model import LanguageModel

            self._held.model = LanguageModel(self.model, device=self.device, dtype=self.dtype)
        return self._held.model
