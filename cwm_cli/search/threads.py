"""Calls in threads whose end nobody waits for, not even the program when it ends."""

from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread

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


def _work(calls: SimpleQueue[Call]) -> None:
    """Carry out one call after the other."""
    while True:
        calls.get()()
        free.append(calls)
