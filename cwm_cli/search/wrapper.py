"""A backend around another one: what it is asked goes on to that one, but for what is changed."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from cwm_cli.search.contracts import (
    AnswerLength,
    Backend,
    Completion,
    Node,
    Request,
    ScoreRequest,
    Turn,
    Usage,
    unheard,
)

if TYPE_CHECKING:
    import numpy as np

    from cwm_cli.envs.spec import EnvironmentSpec
    from cwm_cli.envs.text_view import TextView

# mypy: disable-error-code="misc,override"
# What a kind of backend is known by are class variables; one around another has those of that one.


class BackendAround(Backend):
    """Passes everything on to the backend `inner`; a subclass changes what it is there for.

    Example::

        class Counting(BackendAround):
            asked = 0

            def complete(self, request):
                self.asked += 1
                return self.inner.complete(request)
    """

    def __init__(self, inner: Backend) -> None:
        self.inner = inner

    @property
    def needs_model(self) -> bool:
        """As the inner one."""
        return self.inner.needs_model

    @property
    def from_data(self) -> bool:
        """As the inner one."""
        return self.inner.from_data

    @property
    def takes_help(self) -> bool:
        """As the inner one."""
        return self.inner.takes_help

    @property
    def can_score(self) -> bool:
        """As the inner one."""
        return self.inner.can_score

    @property
    def normalises(self) -> bool:
        """As the inner one."""
        return self.inner.normalises

    @property
    def reads_messages(self) -> bool:
        """As the inner one."""
        return self.inner.reads_messages

    @property
    def is_language_model(self) -> bool:
        """As the inner one."""
        return self.inner.is_language_model

    @property
    def starts_from(self) -> str:
        """As the inner one."""
        return self.inner.starts_from

    @property
    def caveat(self) -> str:
        """As the inner one."""
        return self.inner.caveat

    @property
    def remedy(self) -> str:
        """As the inner one."""
        return self.inner.remedy

    def ready(self, max_cost: float | None = None) -> None:
        """Refuse what the inner one refuses."""
        self.inner.ready(max_cost)

    def prepare(
        self,
        spec: EnvironmentSpec,
        env_args: Mapping[str, Any],
        tell: Callable[[str], None] = unheard,
    ) -> None:
        """Have the inner one prepare."""
        self.inner.prepare(spec, env_args, tell)

    def assign(self, rng: np.random.Generator, pending: Sequence[str]) -> str:
        """Return the model that the inner one assigns."""
        return self.inner.assign(rng, pending)

    def update(self, node: Node) -> None:
        """Tell the inner one."""
        self.inner.update(node)

    def price(self, prompt_tokens: int, completion_tokens: int) -> float | None:
        """Return the price of the inner one."""
        return self.inner.price(prompt_tokens, completion_tokens)

    def answer_length(self) -> AnswerLength:
        """Return the tokens of an answer of the inner one."""
        return self.inner.answer_length()

    def complete(self, request: Request) -> Completion:
        """Have the inner one answer."""
        return self.inner.complete(request)

    def worst_cost(self, request: Request) -> float | None:
        """Return the worst cost of the inner one."""
        return self.inner.worst_cost(request)

    def recorded(self) -> Sequence[Turn]:
        """Return the turns of the inner one."""
        return self.inner.recorded()

    @property
    def weighed(self) -> Usage:
        """What scoring took the inner one."""
        return self.inner.weighed

    def wording(self, view: TextView) -> str:
        """Say what the inner one says."""
        return self.inner.wording(view)

    def unread(self, view: TextView, rules: str) -> Sequence[str]:
        """Return what the inner one makes nothing of."""
        return self.inner.unread(view, rules)

    def score(self, requests: Sequence[ScoreRequest]) -> Sequence[Sequence[float]]:
        """Have the inner one weigh texts."""
        return self.inner.score(requests)

    def of_candidates(self, questions: Sequence[Any]) -> Sequence[np.ndarray] | None:
        """Have the inner one weigh candidates."""
        return self.inner.of_candidates(questions)


class Waiting(NamedTuple):
    """A request without an answer yet: the model, and when it was sent, in monotonic seconds."""

    model: str
    since: float


class InFlight:
    """The requests of several backends that have no answer yet, for views to draw."""

    def __init__(self) -> None:
        self._waiting: dict[object, Waiting] = {}

    @property
    def oldest(self) -> Waiting | None:
        """The request that waits longest, None if none waits."""
        return min(self._waiting.copy().values(), key=lambda each: each.since, default=None)

    def making(self, factory: Callable[..., Backend]) -> Callable[..., Backend]:
        """Return a factory of the same backends, whose requests are listed here."""
        return lambda **options: _Listed(factory(**options), options["model"], self._waiting)


class _Listed(BackendAround):
    def __init__(self, inner: Backend, model: str, waiting: dict[object, Waiting]) -> None:
        super().__init__(inner)
        self._model, self._waiting = model, waiting

    def complete(self, request: Request) -> Completion:
        key = object()
        self._waiting[key] = Waiting(self._model, time.monotonic())
        try:
            return self.inner.complete(request)
        finally:
            del self._waiting[key]


def innermost(backend: Backend) -> Backend:
    """Return the backend that others stand around, whose options they share."""
    while isinstance(backend, BackendAround):
        backend = backend.inner
    return backend
