"""Calls in reused daemon threads, which neither a waiting caller nor the end of the program joins.

An interrupt therefore ends a wait, even if the call never returns.
"""

from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Thread
from typing import TypeVar

T = TypeVar("T")
Call = Callable[[], object]

free: list[SimpleQueue[Call]] = []
"""The queues of the idle threads."""


def start(call: Call) -> None:
    """Run a call in an idle thread, or in a new one, which takes far longer to start."""
    try:
        calls = free.pop()
    except IndexError:
        calls = SimpleQueue()
        Thread(target=_work, args=(calls,), daemon=True).start()
    calls.put(call)


def submit(work: Callable[[], T]) -> Future[T]:
    """Run work in a thread; return the future of its result or exception."""
    done: Future[T] = Future()

    def attempt() -> None:
        try:
            done.set_result(work())
        except BaseException as error:  # noqa: BLE001  # raised again by `Future.result`
            done.set_exception(error)

    start(attempt)
    return done


def run_in_thread(work: Callable[[], T], seconds: float | None = None) -> T:
    """Return the result of work that runs in a thread, or raise its exception.

    An interrupt ends the wait. After `seconds` the wait ends with a `TimeoutError`; the
    work continues and its result is dropped.
    """
    return submit(work).result(seconds)


def _work(calls: SimpleQueue[Call]) -> None:
    while True:
        calls.get()()
        free.append(calls)
