"""Play several episodes in parallel, with plans, random actions or one constant action.

An episode depends only on the seed and its number, not on other episodes or the worker.
"""

import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from copy import deepcopy
from itertools import islice
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from operator import add
from queue import SimpleQueue
from threading import Event
from types import FrameType
from typing import Any, Generic, NamedTuple, TypeVar

from pydantic import BaseModel

from cwm_cli.commands.matches import MOVES, MatchMoves
from cwm_cli.commands.plugin_failures import plugin_failure
from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.envs.tasks import Task, random_action, reward_number, seeds_of
from cwm_cli.errors import CwmError, TracedError, environment_failure
from cwm_cli.evaluation.mismatches import Comparing, Mismatches
from cwm_cli.planning import Moment, Unsuited
from cwm_cli.planning.model import EpisodeHistory
from cwm_cli.sandbox.failures import Failure
from cwm_cli.worlds.model import Plan, PlannedWith, PlanningSession


class PlanningCost(NamedTuple):
    """Cost of planning.

    Attributes:
        decisions: Number of decisions.
        failures: Decisions without a plan.
        model_steps: Steps of the model.
        seconds: Wall time of planning.
        unsupported: Decisions that depend on a step that no row supports.
        confirmed: Decisions that were repeated outside the sandbox.
    """

    decisions: int = 0
    failures: int = 0
    model_steps: int = 0
    seconds: float = 0.0
    unsupported: int = 0
    confirmed: int = 0

    def plus(self, other: "PlanningCost") -> "PlanningCost":
        """Return the sum of two costs."""
        return PlanningCost._make(map(add, self, other))


class Episode(BaseModel, frozen=True):
    """Result of an episode, with the cost of its plans.

    Attributes:
        number: Number of the episode, from 0.
        returned: Undiscounted return.
        length: Number of steps.
        decisions: Number of decisions.
        model_steps: Steps of the model: the episode's share of a joint planning call.
        seconds: Planning time: the episode's share of a joint planning call.
        confirmed: Decisions that were repeated outside the sandbox.
        verified: False if the confirmation ran out of time. Means then exclude the episode.
        failures: Decisions without a plan.
        unsupported: Decisions that depend on a step that no row supports.
        failure: The first failure of planning.
        mismatches: Wrong predictions, None if nothing was compared.
        illegal: Illegal moves in a match, 0 or 1; it loses the game.
        opponent_illegal: Illegal moves of the opponent, 0 or 1.
    """

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
    illegal: int = 0
    opponent_illegal: int = 0

    @property
    def cost(self) -> PlanningCost:
        """The cost of its plans."""
        return PlanningCost._make(getattr(self, name) for name in PlanningCost._fields)


class FinishedEpisode(NamedTuple):
    """A finished episode, its actions, and its rows if some were predicted wrongly."""

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
    """Progress after all planned actions were played, or after decisions were confirmed.

    Attributes:
        finished: Episodes that finished since the previous progress.
        underway: Episodes that continue, or whose decisions are being confirmed.
        cost: Cost since the previous progress.
        report: Report of the planners.
    """

    finished: list[FinishedEpisode]
    underway: list[Underway]
    cost: PlanningCost
    report: PlannedWith | None


class FailedPredictions(Exception):
    """Predictions are much worse in play than on recorded rows (see `Comparing.fails`).

    Attributes:
        found: Counts of all episodes so far.
        rows: Rows of the episodes that did not finish, by their numbers.
    """

    def __init__(self, found: Mismatches, rows: Mapping[int, Dataset]) -> None:
        super().__init__(found, rows)
        self.found, self.rows = found, rows


Stream = Generator[Progress, None, None]
"""Generator that plays the next steps of all its episodes for each `Progress`."""


def play(
    task: Task,
    numbers: Iterable[int],
    session: PlanningSession | None = None,
    *,
    action: Any = None,
    comparing: Comparing | None = None,
    abreast: int | None = None,
) -> Stream:
    """Play episodes with plans, random actions or one constant action.

    Args:
        task: The environment with seed and limit.
        numbers: Numbers of the episodes.
        session: Makes the plans. Without a session or a plan, the action is `action`.
        action: The constant action; None for random actions.
        comparing: Compares finished episodes with the predictions of a model.
        abreast: Number of episodes at the same time. The default is 8, or 128 once 8 or more
            episodes have finished and none took more than 20 steps.

    Raises:
        FailedPredictions: Predictions of played steps fail, and `comparing` stops then.
    """
    # Number of episodes that a worker plays at the same time.
    #
    # Planning for 8 episodes together takes as little as a third of the time of one after the
    # other. With more than 8 the time decreases very little.
    parallel_episodes = 8
    waiting, capacity, finished_count, longest = iter(numbers), abreast or parallel_episodes, 0, 0
    running: list[_RunningEpisode] = []
    # Predictions are checked after 100 steps, and each time the number of steps has doubled.
    found, next_check = Mismatches(), 100
    try:
        while True:
            for number in islice(waiting, max(0, capacity - len(running))):
                running.append(_RunningEpisode(task, number, action, comparing))
            if not running:
                return
            cost = _plan_actions(running, session) if session else PlanningCost()
            for episode in running:
                episode.advance()
            finished = [episode for episode in running if episode.over]
            if finished and session:
                states = [episode.underway for episode in running]
                yield Progress([], states, cost, session.report)
                cost = _confirm(finished, session)
            results = _finish(finished, comparing)
            yield Progress(
                results,
                [episode.underway for episode in running if not episode.over],
                cost,
                session.report if session else None,
            )
            longest = max([longest, *(episode.underway.length for episode in running)])
            finished_count += len(finished)
            if abreast is None:
                # Comparing many short episodes with a model takes about as long as comparing one.
                short = finished_count >= parallel_episodes and longest <= 20
                capacity = 128 if short else parallel_episodes
            for episode in finished:
                episode.env.close()
            running = [episode for episode in running if not episode.over]
            if comparing and comparing.stops:
                for result in results:
                    found = found.plus(result.episode.mismatches or Mismatches())
                compared = found.steps + found.unanswered
                steps = compared + sum(len(episode.steps) for episode in running)
                if steps >= next_check:
                    _check_predictions(running, found, comparing)
                    next_check = 2 * steps
    finally:
        for episode in running:
            episode.env.close()


class _RunningEpisode:
    """A running episode with its own environment."""

    def __init__(
        self, task: Task, number: int, constant: Any = None, comparing: Comparing | None = None
    ) -> None:
        reset, random = seeds_of(task.seed, number)
        self.number = number
        self.over = False
        self.env = task.make_episode(number)
        self._task = task
        self._constant = constant
        self._comparing = comparing
        self.steps: list[Transition] = []
        self._planned: deque[Any] = deque()
        self._space = deepcopy(self.env.action_space)
        self._space.seed(random)
        self.cost = PlanningCost()
        self.verified = True
        self._failure: Failure | None = None
        self._illegal = self._opponent_illegal = 0
        self._returned = 0.0
        self._actions: list[Any] = []
        self._rewards: list[float] = []
        observation, _ = self.env.reset(seed=reset)
        self._observations = [deepcopy(observation)]  # some environments change it in place

    @property
    def underway(self) -> Underway:
        """The current state of the episode, for progress displays."""
        return Underway(self.number, len(self._actions), self._returned, self.over)

    def result(self, rows: Dataset | None, found: Mismatches | None) -> FinishedEpisode:
        """Return the result, with the rows if some were predicted wrongly or not at all."""
        wrong = found and (found.wrong or found.unanswered)
        episode = Episode(
            number=self.number,
            length=len(self._actions),
            returned=self._returned,
            **self.cost._asdict(),
            verified=self.verified,
            failure=self._failure,
            mismatches=found,
            illegal=self._illegal,
            opponent_illegal=self._opponent_illegal,
        )
        return FinishedEpisode(episode, self._actions, rows if wrong else None)

    def moment(self, session: PlanningSession) -> Moment:
        """Return the pending decision of the episode."""
        happened = (self._observations, self._actions, self._rewards)
        state = session.state(self.env, EpisodeHistory(*map(tuple, happened)))
        horizon = self._task.limit - len(self._actions)
        # A planner in a game asks its model for the legal actions.
        allowed = None if self._task.turn else self._task.allowed(self.env)
        return Moment(self.number, self.cost.decisions, state, horizon, allowed)

    def follow(self, plan: Plan, seconds: float, steps: int) -> None:
        """Queue the actions of a plan, and add its share of the cost."""
        self._planned.extend(plan.actions)
        self._failure = self._failure or plan.failure
        failed, doubtful = plan.failure is not None, not plan.supported
        self.cost = self.cost.plus(PlanningCost(1, failed, steps, seconds, doubtful))

    def advance(self) -> None:
        """Play the planned actions; without a plan, the constant action or a random one."""
        if not self._planned and self._constant is not None:
            self._planned.append(self._constant)
        elif not self._planned:
            self._planned.append(random_action(self._space, self._task.allowed(self.env)))
        while self._planned and not self.over:
            action = self._planned.popleft()
            self._actions.append(action)
            seen, reward, terminated, truncated, info = self.env.step(deepcopy(action))
            self._observations.append(deepcopy(seen))
            self._rewards.append(reward_number(reward))
            self._returned += self._rewards[-1]
            if isinstance(moves := info.get(MOVES), MatchMoves):
                self.steps += moves.rows
                self._illegal += moves.illegal
                self._opponent_illegal += moves.opponent_illegal
                self.verified &= moves.verified
            elif self._comparing:
                before, after = self._observations[-2:]
                row = Transition(before, action, after, self._rewards[-1], bool(terminated))
                valid = self._task.listed(self.env)
                self.steps.append(row._replace(episode=self.number, valid=valid))
            self.over = bool(terminated or truncated) or len(self._actions) >= self._task.limit


def _finish(
    finished: Sequence[_RunningEpisode], comparing: Comparing | None
) -> list[FinishedEpisode]:
    """Return the results of episodes, compared in one call with the predictions."""
    if comparing is None:
        return [episode.result(None, None) for episode in finished]
    # A match has no rows if its first move is illegal.
    rows = [comparing.rows(episode.steps) if episode.steps else None for episode in finished]
    found = iter(comparing.compare_all([own for own in rows if own is not None]))
    return [
        episode.result(own, None if own is None else next(found))
        for episode, own in zip(finished, rows, strict=True)
    ]


def _check_predictions(
    running: Sequence[_RunningEpisode], found: Mismatches, comparing: Comparing
) -> None:
    """Compare running episodes, and raise `FailedPredictions` if they fail, with `found`."""
    rows = {episode.number: comparing.rows(episode.steps) for episode in running}
    for each in comparing.compare_all(list(rows.values())):
        found = found.plus(each)
    if comparing.fails(found):
        raise FailedPredictions(found, rows)


def _confirm(finished: Sequence[_RunningEpisode], session: PlanningSession) -> PlanningCost:
    """Confirm decisions of finished episodes outside the sandbox; return the added cost."""
    found = session.confirm({episode.number: episode.cost.seconds for episode in finished})
    for episode in finished:
        decisions, verified = found[episode.number]
        episode.verified &= verified
        episode.cost = episode.cost.plus(PlanningCost(confirmed=decisions))
    return PlanningCost(confirmed=sum(episode.decisions for episode in found.values()))


def _plan_actions(running: Sequence[_RunningEpisode], session: PlanningSession) -> PlanningCost:
    """Plan new actions for all episodes, and divide the cost among them."""
    began, before = time.perf_counter(), session.steps
    plans = session.plan([episode.moment(session) for episode in running])
    seconds, steps = time.perf_counter() - began, session.steps - before
    # whole shares that add up to `steps`, although the planners report only the total
    share, rest = divmod(steps, len(running))
    for place, (episode, plan) in enumerate(zip(running, plans, strict=True)):
        episode.follow(plan, seconds / len(running), share + (place < rest))
    failures = sum(plan.failure is not None for plan in plans)
    doubtful = sum(not plan.supported for plan in plans)
    return PlanningCost(len(running), failures, steps, seconds, doubtful)


T = TypeVar("T")


class WorkerProgress(NamedTuple, Generic[T]):
    """Progress, and the number of the worker that made it."""

    worker: int
    progress: T


WorkerStream = Generator[WorkerProgress[Progress], None, None]


def deal(numbers: Sequence[T], workers: int) -> list[Sequence[T]]:
    """Distribute episodes over workers in turn; no worker is without an episode."""
    count = min(workers, len(numbers))
    return [numbers[worker::count] for worker in range(count)]


def in_threads(streams: Sequence[Stream], cancel: Callable[[], None] | None = None) -> WorkerStream:
    """Play each stream in its own thread; a single stream uses the calling thread.

    Args:
        streams: The streams.
        cancel: Called if a stream fails; must interrupt blocking calls of all streams.
    """
    if len(streams) == 1:
        with closing(streams[0]) as stream:
            yield from (WorkerProgress(0, progress) for progress in stream)
        return
    events: SimpleQueue[WorkerProgress[Progress] | Future[None]] = SimpleQueue()
    stop = Event()

    def listen(worker: int, stream: Stream) -> None:
        with closing(stream):
            for progress in stream:
                events.put(WorkerProgress(worker, progress))
                if stop.is_set():
                    return

    with ThreadPoolExecutor(len(streams)) as pool:
        try:
            for worker, stream in enumerate(streams):
                pool.submit(listen, worker, stream).add_done_callback(events.put)
            # each stream ends with its future in the queue, after all its progress
            for _ in streams:
                while not isinstance(item := events.get(), Future):
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
    """Run each iterator in its own process, because Python steps environments one at a time.

    Args:
        makers: Functions that return the iterators. Each is pickled and called in its process.

    Raises:
        CwmError: An iterator raised it, or a worker process ended unexpectedly.
        Unsuited: An iterator raised it.
    """
    with ExitStack() as stack:
        workers: dict[Connection, tuple[int, SpawnProcess]] = {}
        for number, maker in enumerate(makers):
            with _interrupt_deferred():
                reader, process = _start_worker(maker)
                # callbacks run in reverse order: kill, then join
                stack.callback(process.join)
                stack.callback(process.kill)
            workers[reader] = number, process
        while workers:
            ready = wait(list(workers))
            for reader in [reader for reader in workers if reader in ready]:
                number, process = workers[reader]
                progress: T | None = _receive(reader, process)
                if progress is None:
                    del workers[reader]
                else:
                    yield WorkerProgress(number, progress)


def _start_worker(maker: Callable[[], Iterator[object]]) -> tuple[Connection, SpawnProcess]:
    """Start a worker process that ignores Ctrl-C, because its parent ends it."""
    context = get_context("spawn")
    reader, writer = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(maker, writer), daemon=True)
    resource_tracker.ensure_running()  # starting it later would unblock the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    writer.close()  # else the parent would hold the pipe open, and never see its end
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
    """Send all progress of an iterator; runs in the worker process."""
    sys.stdout = sys.stderr  # output of environments must not mix with results
    try:
        for progress in maker():
            writer.send(progress)
        writer.send(None)
    except TracedError as error:
        writer.send(error)
    except (Unsuited, CwmError) as error:
        kind = Unsuited if isinstance(error, Unsuited) else CwmError
        writer.send(kind(str(error)))  # subclasses may not be picklable
    except BrokenPipeError:
        pass  # the parent has closed the connection
    except Exception as error:
        failure = environment_failure(error) or plugin_failure(error)
        if failure is None:
            raise
        writer.send(failure)


def _receive(reader: Connection, process: SpawnProcess) -> Any:
    """Return the next progress, None after the last; raise an error of the worker."""
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
