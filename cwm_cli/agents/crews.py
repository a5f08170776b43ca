"""Several workers that play episodes at the same time, each some of them."""

import signal
import sys
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from queue import SimpleQueue
from threading import Event
from typing import Any

from cwm_cli.agents.episodes import Round, Rounds, play
from cwm_cli.agents.pilots import Oracle, Planning
from cwm_cli.envs.simulators import simulator
from cwm_cli.envs.tasks import Setting
from cwm_cli.errors import CwmError
from cwm_cli.planning import Unsuited
from cwm_cli.registry import environment

Heard = tuple[int, Round]
"""A round, and the number of the worker that played it."""

Hearing = Generator[Heard, None, None]


def dealt(numbers: Sequence[int], workers: int) -> list[Sequence[int]]:
    """Deal episodes out, to no more workers than there are episodes."""
    count = min(workers, len(numbers))
    return [numbers[worker::count] for worker in range(count)]


def alone(rounds: Rounds) -> Hearing:
    """Play here."""
    with closing(rounds):
        for played in rounds:
            yield 0, played


def in_threads(streams: Sequence[Rounds], cancel: Callable[[], None]) -> Hearing:
    """Play in a thread each; `cancel` has to end what they wait for when one fails."""
    if len(streams) == 1:
        yield from alone(streams[0])
        return
    heard: SimpleQueue[Heard | Future[None]] = SimpleQueue()
    stop = Event()
    with ThreadPoolExecutor(len(streams)) as pool:
        try:
            for worker, stream in enumerate(streams):
                ended = pool.submit(_listen, stream, worker, heard.put, stop)
                ended.add_done_callback(heard.put)
            for _ in streams:
                while not isinstance(item := heard.get(), Future):
                    yield item
                item.result()
        except BaseException:
            stop.set()
            cancel()
            raise


def in_processes(
    setting: Setting, planners: Sequence[Planning], shares: Sequence[Sequence[int]], *, lanes: int
) -> Hearing:
    """Play with plans made in the true environment, in a process each."""
    with ExitStack() as stack:
        workers: dict[Connection, tuple[int, SpawnProcess]] = {}
        for number, share in enumerate(shares):
            reader, process = _started(setting, planners, share, lanes)
            stack.callback(_end, process)
            workers[reader] = number, process
        while workers:
            ready = wait(list(workers))
            for reader in [reader for reader in workers if reader in ready]:
                number, process = workers[reader]
                item = _received(reader, process)
                if item is None:
                    del workers[reader]
                else:
                    yield number, item


def in_this_process(
    setting: Setting, planners: Sequence[Planning], numbers: Sequence[int], *, lanes: int
) -> Rounds:
    """Play with plans made in the true environment."""
    spec = environment(setting.env)
    model = simulator(spec, setting.env_args, setting.seed)
    oracle = Oracle(model, planners, setting.seed)
    yield from play(setting.task(spec), numbers, oracle, lanes=lanes)


def _listen(stream: Rounds, worker: int, tell: Callable[[Heard], None], stop: Event) -> None:
    """Play until the end, or until it is time to stop."""
    with closing(stream):
        for played in stream:
            tell((worker, played))
            if stop.is_set():
                return


def _started(
    setting: Setting, planners: Sequence[Planning], numbers: Sequence[int], lanes: int
) -> tuple[Connection, SpawnProcess]:
    """Start a process that plays; Ctrl-C is left to this one."""
    context = get_context("spawn")
    reader, writer = context.Pipe(duplex=False)
    process = context.Process(
        target=_work, args=(setting, planners, numbers, lanes, writer), daemon=True
    )
    resource_tracker.ensure_running()  # which would let the signal through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    writer.close()
    return reader, process


def _work(
    setting: Setting,
    planners: Sequence[Planning],
    numbers: Sequence[int],
    lanes: int,
    writer: "Connection[Any, Any]",
) -> None:
    """Play, and send every round; this runs in the process that was started."""
    sys.stdout = sys.stderr  # what environments print is no result
    try:
        for played in in_this_process(setting, planners, numbers, lanes=lanes):
            writer.send(played)
        writer.send(None)
    except Unsuited as reason:
        writer.send(Unsuited(str(reason)))
    except CwmError as error:
        writer.send(CwmError(str(error)))
    except BrokenPipeError:
        pass  # nobody listens any more


def _received(reader: Connection, process: SpawnProcess) -> Round | None:
    """Receive a round, None after the last one; an error of the process is raised here."""
    try:
        item = reader.recv()
    except (EOFError, OSError) as error:
        process.join()
        code = process.exitcode or 0
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        raise CwmError(
            f"a process that played the true environment ended early ({how}): lower --workers"
        ) from error
    if isinstance(item, Exception):
        raise item
    assert item is None or isinstance(item, Round)
    return item


def _end(process: SpawnProcess) -> None:
    """End a process, whatever it does."""
    process.kill()
    process.join()
