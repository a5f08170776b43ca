"""Episodes: played with plans or at random, several at once, by several workers.

An episode depends on the seed and its number only: not on those beside it, nor on who plays it.
"""

import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from copy import deepcopy
from itertools import islice
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from queue import SimpleQueue
from threading import Event
from types import FrameType
from typing import Any, Generic, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict

from cwm_cli.commands.plugin_failures import plugin_failure
from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.envs.failures import environment_failure
from cwm_cli.envs.tasks import Task, random_action, reward_number, seeds_of
from cwm_cli.errors import CwmError, TracedError
from cwm_cli.evaluation.mismatches import Comparing, Mismatches
from cwm_cli.planning import Moment, Unsuited
from cwm_cli.planning.model import EpisodeHistory
from cwm_cli.sandbox.failures import Failure
from cwm_cli.worlds.model import Plan, PlannedWith, PlanningSession

ABREAST = 8
"""Episodes that a worker plays at the same time.

Planned for together they take as little as a third of the time of one after the other, and with
more of them hardly less.
"""

SHORT, MANY = 20, 128
"""Where some episodes are over and none was longer than so many steps, so many are played at the
same time: comparing them with a model takes about as long for all as for one.
"""


class PlanningCost(NamedTuple):
    """What plans took: decisions, those without a plan, steps of the model, and seconds.

    `unsupported` decisions rest on what no row of the data supports, `confirmed` ones were made
    again, on the trusted side.
    """

    decisions: int = 0
    failures: int = 0
    model_steps: int = 0
    seconds: float = 0.0
    unsupported: int = 0
    confirmed: int = 0

    def plus(self, other: "PlanningCost") -> "PlanningCost":
        """Return the sum of two costs."""
        return PlanningCost(
            self.decisions + other.decisions,
            self.failures + other.failures,
            self.model_steps + other.model_steps,
            self.seconds + other.seconds,
            self.unsupported + other.unsupported,
            self.confirmed + other.confirmed,
        )


class Episode(BaseModel):
    """What an episode came to, and what planning it took.

    `seconds` and `model_steps` are shares of those of all episodes that were planned together.
    In `failures` decisions no plan could be made; `failure` is the first. `unsupported` ones
    rest on steps that no row of the data supports, `confirmed` ones were made again. If that ran
    out of time the episode is not `verified`, and its return counts in no mean. `mismatches`
    counts wrong predictions, None if nothing was compared.
    """

    model_config = ConfigDict(frozen=True)

    number: int
    returned: float
    length: int
    decisions: int = 0
    model_steps: int = 0
    seconds: float = 0.0
    confirmed: int = 0
    verified: bool = True
    failures: int = 0
    unsupported: int = 0
    failure: Failure | None = None
    mismatches: Mismatches | None = None

    @property
    def cost(self) -> PlanningCost:
        """What its plans took."""
        return PlanningCost(
            self.decisions,
            self.failures,
            self.model_steps,
            self.seconds,
            self.unsupported,
            self.confirmed,
        )


class FinishedEpisode(NamedTuple):
    """An episode that is over, its actions, and its rows if some were predicted wrongly."""

    episode: Episode
    actions: list[Any]
    rows: Dataset | None = None


class Underway(NamedTuple):
    """State of a running episode; `rechecking` if only its decisions are still rechecked."""

    number: int
    length: int
    returned: float
    rechecking: bool = False


class Progress(NamedTuple):
    """What playing on came to, up to where every episode is over or needs new actions."""

    finished: list[FinishedEpisode]
    underway: list[Underway]
    cost: PlanningCost
    report: PlannedWith | None


Stream = Generator[Progress, None, None]
"""Plays episodes as it is asked for more."""


def play(
    task: Task,
    numbers: Iterable[int],
    session: PlanningSession | None = None,
    *,
    comparing: Comparing | None = None,
    abreast: int | None = None,
) -> Stream:
    """Play episodes, with plans or at random, so many at a time, or as many as serve best.

    Where there is no plan the action is random. Episodes that are over are compared with what
    a model predicts, where one is given.
    """
    waiting, most, ended, longest = iter(numbers), abreast or ABREAST, 0, 0
    playing: list[_Playing] = []
    try:
        while True:
            for number in islice(waiting, max(0, most - len(playing))):
                playing.append(_Playing(task, number, comparing))
            if not playing:
                return
            cost = _decide(playing, session) if session else PlanningCost()
            for each in playing:
                each.go_on()
            over = [each for each in playing if each.over]
            if over and session:
                states = [each.underway for each in playing]
                yield Progress([], states, cost, session.report)
                cost = _confirm(over, session)
            yield Progress(
                _finished(over, comparing),
                [each.underway for each in playing if not each.over],
                cost,
                session.report if session else None,
            )
            longest = max([longest, *(each.underway.length for each in playing)])
            ended += len(over)
            if abreast is None:
                most = MANY if ended >= ABREAST and longest <= SHORT else ABREAST
            for each in over:
                each.env.close()
            playing = [each for each in playing if not each.over]
    finally:
        for each in playing:
            each.env.close()


class _Playing:
    """An episode that is being played, in an environment of its own."""

    def __init__(self, task: Task, number: int, comparing: Comparing | None = None) -> None:
        reset, random = seeds_of(task.seed, number)
        self.number = number
        self.over = False
        self.env = task.make()
        self._task = task
        self._comparing = comparing
        self.steps: list[Transition] = []
        self._planned: deque[Any] = deque()
        self._space = deepcopy(self.env.action_space)
        self._space.seed(random)
        self.cost = PlanningCost()
        self.verified = True
        self._failure: Failure | None = None
        self._returned = 0.0
        self._actions: list[Any] = []
        self._rewards: list[float] = []
        observation, _ = self.env.reset(seed=reset)
        self._observations = [deepcopy(observation)]  # which some environments change in place

    @property
    def underway(self) -> Underway:
        """Number, length and return so far."""
        return Underway(self.number, len(self._actions), self._returned, self.over)

    def finished(self, rows: Dataset | None, found: Mismatches | None) -> FinishedEpisode:
        """Return what the episode came to, and its rows where some were predicted wrongly."""
        wrong = found and (found.wrong or found.unanswered)
        episode = Episode(
            number=self.number,
            length=len(self._actions),
            returned=self._returned,
            **self.cost._asdict(),
            verified=self.verified,
            failure=self._failure,
            mismatches=found,
        )
        return FinishedEpisode(episode, self._actions, rows if wrong else None)

    def moment(self, session: PlanningSession) -> Moment:
        """Return where the episode stands."""
        happened = (self._observations, self._actions, self._rewards)
        state = session.state(self.env, EpisodeHistory(*map(tuple, happened)))
        horizon = self._task.limit - len(self._actions)
        allowed = self._task.allowed(self.env)
        return Moment(self.number, self.cost.decisions, state, horizon, allowed)

    def follow(self, plan: Plan, seconds: float, steps: int) -> None:
        """Take in a plan and its share of what planning took."""
        self._planned.extend(plan.actions)
        self._failure = self._failure or plan.failure
        failed, doubtful = plan.failure is not None, not plan.supported
        self.cost = self.cost.plus(PlanningCost(1, failed, steps, seconds, doubtful))

    def go_on(self) -> None:
        """Play what is planned, or one random action."""
        if not self._planned:
            self._planned.append(random_action(self._space, self._task.allowed(self.env)))
        while self._planned and not self.over:
            action = self._planned.popleft()
            self._actions.append(action)
            seen, reward, terminated, truncated, _ = self.env.step(deepcopy(action))
            self._observations.append(deepcopy(seen))
            self._rewards.append(reward_number(reward))
            self._returned += self._rewards[-1]
            if self._comparing:
                before, after = self._observations[-2:]
                row = Transition(before, action, after, self._rewards[-1], bool(terminated))
                named = self._task.valid and self._task.valid(self.env.unwrapped)
                valid = None if named is None else tuple(map(int, named))
                self.steps.append(row._replace(episode=self.number, valid=valid))
            self.over = bool(terminated or truncated) or len(self._actions) >= self._task.limit


def _finished(over: Sequence[_Playing], comparing: Comparing | None) -> list[FinishedEpisode]:
    """Return what episodes came to, compared all at once with what was predicted."""
    if comparing is None:
        return [each.finished(None, None) for each in over]
    rows = [comparing.rows(each.steps) for each in over]
    found = comparing.compare_all(rows)
    every = zip(over, rows, found, strict=True)
    return [each.finished(own, wrong) for each, own, wrong in every]


def _confirm(over: Sequence[_Playing], session: PlanningSession) -> PlanningCost:
    """Have plans of episodes that are over confirmed; return the cost that this adds."""
    found = session.confirm({each.number: each.cost.seconds for each in over})
    for each in over:
        decisions, each.verified = found[each.number]
        each.cost = each.cost.plus(PlanningCost(confirmed=decisions))
    return PlanningCost(confirmed=sum(each.decisions for each in found.values()))


def _decide(playing: Sequence[_Playing], session: PlanningSession) -> PlanningCost:
    """Have new actions planned for every episode, and share out what that took."""
    began, before = time.perf_counter(), session.steps
    plans = session.plan([each.moment(session) for each in playing])
    seconds, steps = time.perf_counter() - began, session.steps - before
    share, rest = divmod(steps, len(playing))
    for place, (each, plan) in enumerate(zip(playing, plans, strict=True)):
        each.follow(plan, seconds / len(playing), share + (place < rest))
    failures = sum(plan.failure is not None for plan in plans)
    doubtful = sum(not plan.supported for plan in plans)
    return PlanningCost(len(playing), failures, steps, seconds, doubtful)


T = TypeVar("T")


class WorkerProgress(NamedTuple, Generic[T]):
    """Progress, and the number of the worker that made it."""

    worker: int
    progress: T


WorkerStream = Generator[WorkerProgress[Progress], None, None]


def dealt(numbers: Sequence[T], workers: int) -> list[Sequence[T]]:
    """Deal episodes out, to no more workers than there are episodes."""
    count = min(workers, len(numbers))
    return [numbers[worker::count] for worker in range(count)]


def in_threads(streams: Sequence[Stream], cancel: Callable[[], None] | None = None) -> WorkerStream:
    """Play each stream in a thread; `cancel` has to end what they wait for when one fails.

    One stream is played here.
    """
    if len(streams) == 1:
        with closing(streams[0]) as stream:
            yield from (WorkerProgress(0, progress) for progress in stream)
        return
    heard: SimpleQueue[WorkerProgress[Progress] | Future[None]] = SimpleQueue()
    stop = Event()

    def listen(worker: int, stream: Stream) -> None:
        with closing(stream):
            for progress in stream:
                heard.put(WorkerProgress(worker, progress))
                if stop.is_set():
                    return

    with ThreadPoolExecutor(len(streams)) as pool:
        try:
            for worker, stream in enumerate(streams):
                pool.submit(listen, worker, stream).add_done_callback(heard.put)
            for _ in streams:
                while not isinstance(item := heard.get(), Future):
                    yield item
                item.result()
        except BaseException:
            stop.set()
            if cancel:
                cancel()
            raise


def in_processes(
    makers: Sequence[Callable[[], Iterator[T]]],
) -> Generator[WorkerProgress[T], None, None]:
    """Play each in a process of its own, for environments that would keep each other waiting.

    A maker is sent to its process, where it is called. `CwmError` and `Unsuited` come back.
    """
    with ExitStack() as stack:
        workers: dict[Connection, tuple[int, SpawnProcess]] = {}
        for number, maker in enumerate(makers):
            with _interrupt_deferred():
                reader, process = _started(maker)
                stack.callback(process.join)
                stack.callback(process.kill)
            workers[reader] = number, process
        while workers:
            ready = wait(list(workers))
            for reader in [reader for reader in workers if reader in ready]:
                number, process = workers[reader]
                progress: T | None = _received(reader, process)
                if progress is None:
                    del workers[reader]
                else:
                    yield WorkerProgress(number, progress)


def _started(maker: Callable[[], Iterator[object]]) -> tuple[Connection, SpawnProcess]:
    """Start a worker process, which ignores Ctrl-C: this process ends it."""
    context = get_context("spawn")
    reader, writer = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(maker, writer), daemon=True)
    resource_tracker.ensure_running()  # which would unblock the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    writer.close()
    return reader, process


@contextmanager
def _interrupt_deferred() -> Iterator[None]:
    """Raise the KeyboardInterrupt of a Ctrl-C after the block instead of inside it.

    Blocking the signal in this thread does not suffice: if another thread receives it, Python
    still interrupts the main thread, and a worker that has half of its arguments prints an error.
    """
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    received: list[tuple[int, FrameType | None]] = []
    signal.signal(signal.SIGINT, lambda number, frame: received.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if received:
            handler(*received[0])


def _work(maker: Callable[[], Iterator[object]], writer: "Connection[Any, Any]") -> None:
    """Play, and send all progress; this runs in the process that was started."""
    sys.stdout = sys.stderr  # what environments print is no result
    try:
        for progress in maker():
            writer.send(progress)
        writer.send(None)
    except TracedError as error:
        writer.send(error)
    except (Unsuited, CwmError) as error:
        kind = Unsuited if isinstance(error, Unsuited) else CwmError
        writer.send(kind(str(error)))  # subclasses may not survive being sent
    except BrokenPipeError:
        pass  # nobody listens any more
    except Exception as error:
        failure = environment_failure(error) or plugin_failure(error)
        if failure is None:
            raise
        writer.send(failure)


def _received(reader: Connection, process: SpawnProcess) -> Any:
    """Receive progress, None after the last; an error of the process is raised here."""
    try:
        item = reader.recv()
    except (EOFError, OSError) as error:
        process.join()
        code = process.exitcode or 0
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        raise CwmError(
            f"a worker process that played the environment ended unexpectedly ({how}): lower "
            "--workers"
        ) from error
    if isinstance(item, Exception):
        raise item
    return item
