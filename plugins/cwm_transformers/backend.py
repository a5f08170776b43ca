"""The backend `transformers`: a language model whose weights are loaded into this process."""

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
"""Metadata of fields that may change when a run continues."""


@dataclass
class LoadedModel:
    """A loaded model, its lock, and the usage of scoring so far."""

    model: LanguageModel | None = None
    weighed: Usage = field(default_factory=Usage)
    lock: threading.Lock = field(default_factory=threading.Lock)


@dataclass(frozen=True)
class Transformers(Backend):
    """Any causal language model of the transformers library: a folder, or a name on its hub.

    It scores texts as published (Levy et al., 2025): the log-softmax over the whole vocabulary,
    summed over the tokens of an answer with its end-of-turn mark. It answers by sampling, and
    returns the log-probabilities of its answers.
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
    _loaded_model: LoadedModel = field(
        default_factory=LoadedModel, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        """Check that the libraries are installed and the options are valid."""
        if not all(map(find_spec, ("torch", "transformers"))):
            command = install_command("cwm-cli[transformers]")
            raise CwmError(f"language models in this process need an extra: {command}")
        if not self.model:
            raise CwmError("no language model given: write transformers/FOLDER")
        if self.temperature <= 0:
            raise CwmError("sampling needs a --temperature above 0")

    @property
    def weighed(self) -> Usage:
        """The usage of scoring texts so far."""
        return self._loaded_model.weighed

    def complete(self, request: Request) -> Completion:
        """Sample an answer."""
        with self._loaded_model.lock:
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
        """Score texts in batches.

        A text that answers a `Request` is scored without the end-of-turn mark, like samples.
        """
        with self._loaded_model.lock:
            found, took = self._loaded().weigh(
                [
                    (each.messages, each.text, isinstance(each.question, Request))
                    for each in requests
                ],
                batch=self.batch,
                temperature=self.temperature,
            )
            self._loaded_model.weighed = total([self._loaded_model.weighed, took])
        return found

    def _loaded(self) -> LanguageModel:
        """Return the model; load it on first use."""
        if self._loaded_model.model is None:
            from cwm_transformers.model import LanguageModel

            self._loaded_model.model = LanguageModel(
                self.model, device=self.device, dtype=self.dtype
            )
        return self._loaded_model.model
