"""Work through many items in several threads, and hear of all that comes of it in one."""

import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, TypeVar

from cwm_cli.search import threads as daemons

T = TypeVar("T")
R = TypeVar("R")


class _Ended(NamedTuple):
    """A thread is over; `error` says why, if it was not for want of items."""

    error: BaseException | None = None


def stream(
    work: Callable[[T], Iterable[R]],
    items: Iterable[T],
    *,
    threads: int,
    stopping: threading.Event,
) -> Iterator[R]:
    """Yield what `work` yields for each item, as it comes.

    After an error no item is begun any more, those at work are finished, and
    then the error is raised; so it is when someone else sets `stopping`.
    Whoever stops listening, as by Ctrl-C, does not wait for the threads.
    """
    remaining, lock = iter(items), threading.Lock()
    arrivals: queue.SimpleQueue[R | _Ended] = queue.SimpleQueue()

    def labour() -> None:
        try:
            for item in _taken(remaining, lock, stopping):
                for found in work(item):
                    arrivals.put(found)
        except BaseException as error:  # noqa: BLE001  # raised again by the one who listens
            stopping.set()
            arrivals.put(_Ended(error))
        else:
            arrivals.put(_Ended())

    for _ in range(threads):
        daemons.start(labour)
    try:
        yield from _heard(arrivals, threads)
    finally:
        stopping.set()


def _heard(arrivals: "queue.SimpleQueue[R | _Ended]", threads: int) -> Iterator[R]:
    """Yield what arrives until all threads are over, then raise the first error."""
    errors: list[BaseException] = []
    while threads:
        found = arrivals.get()
        if not isinstance(found, _Ended):
            yield found
            continue
        threads -= 1
        errors += [found.error] if found.error else []
    if errors:
        raise errors[0]


def _taken(remaining: Iterator[T], lock: threading.Lock, stopping: threading.Event) -> Iterator[T]:
    """Yield items that no other thread has taken."""
    while not stopping.is_set():
        with lock:
            item = next(remaining, None)
        if item is None:
            return
        yield item
