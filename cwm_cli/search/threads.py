"""Calls in threads whose end nobody waits for, not even the program when it ends."""

from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Thread
from typing import TypeVar

T = TypeVar("T")
Call = Callable[[], object]

free: list[SimpleQueue[Call]] = []
"""Where the threads that have nothing to do wait, each at a queue of its own."""


def start(call: Call) -> None:
    """Begin a call in a thread that is free, or in a new one: to start one takes far longer."""
    try:
        calls = free.pop()
    except IndexError:
        calls = SimpleQueue()
        Thread(target=_work, args=(calls,), daemon=True).start()
    calls.put(call)


def begun(work: Callable[[], T]) -> Future[T]:
    """Begin work, and return what will hold what it returns or raises."""
    done: Future[T] = Future()

    def attempt() -> None:
        try:
            done.set_result(work())
        except BaseException as error:  # noqa: BLE001  # raised again by whoever waits
            done.set_exception(error)

    start(attempt)
    return done


def waited(work: Callable[[], T], seconds: float | None = None) -> T:
    """Return what work returns or raise what it raises; an interrupt ends the wait at once.

    After so many seconds it is a `TimeoutError`, and the work goes on unheard.
    """
    return begun(work).result(seconds)


def _work(calls: SimpleQueue[Call]) -> None:
    """Carry out one call after the other."""
    while True:
        calls.get()()
        free.append(calls)
