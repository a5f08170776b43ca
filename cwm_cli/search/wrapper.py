"""A backend that wraps another backend."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from cwm_cli.search.contracts import Backend, Completion, Request


class BackendWrapper(Backend):
    """Delegates all attributes and methods to the backend `inner`; a subclass overrides some.

    Example::

        class Counting(BackendWrapper):
            requests = 0

            def complete(self, request):
                self.requests += 1
                return self.inner.complete(request)
    """

    def __init__(self, inner: Backend) -> None:
        self.inner = inner


def _delegate(name: str) -> property:
    return property(lambda wrapper: getattr(wrapper.inner, name))


# `__getattr__` would not do: it is only called for names that `Backend` does not define.
for _name in vars(Backend):
    if not _name.startswith("_"):
        setattr(BackendWrapper, _name, _delegate(_name))


class Waiting(NamedTuple):
    """A request without an answer yet: its model and its start in monotonic seconds."""

    model: str
    since: float


class InFlight:
    """The requests in flight of several backends, for live views."""

    def __init__(self) -> None:
        self._waiting: dict[object, Waiting] = {}

    @property
    def oldest(self) -> Waiting | None:
        """The request that has waited longest, or None."""
        return min(self._waiting.copy().values(), key=lambda request: request.since, default=None)

    def making(self, factory: Callable[..., Backend]) -> Callable[..., Backend]:
        """Return a factory of the same backends that registers their requests here."""
        return lambda **options: _Registered(factory(**options), options["model"], self._waiting)


class _Registered(BackendWrapper):
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
    """Return the backend inside all wrappers, which has the options."""
    while isinstance(backend, BackendWrapper):
        backend = backend.inner
    return backend
