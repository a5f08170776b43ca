"""Search for a program: the loop that every strategy and every problem share."""

import queue
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from cwm_cli.errors import CwmError
from cwm_cli.search import threads
from cwm_cli.search.contracts import (
    ROOT,
    Backend,
    Completion,
    Move,
    Node,
    Problem,
    Record,
    Request,
    Strategy,
)


class Pending(NamedTuple):
    """A completion in flight."""

    step: int
    move: Move
    reserved: float


@dataclass
class Search:
    """One search, resumable at any node because strategies only learn through `update`.

    Each step draws from a generator of its own, seeded by (seed, step), so
    there is no generator state to save. With `parallel` completions in flight
    the nodes are learned in the order in which they arrive, which is what the
    journal records. `doing` holds what backends tell about those in flight.
    """

    problem: Problem
    strategy: Strategy
    backend: Backend
    seed: int = 0
    parallel: int = 1
    max_cost: float | None = None
    journal: Callable[[Record], None] = lambda record: None
    nodes: list[Node] = field(default_factory=list, init=False)
    pending: dict[int, Pending] = field(default_factory=dict, init=False)
    doing: dict[int, str] = field(default_factory=dict, init=False)
    best: Node | None = field(default=None, init=False)
    spent: float = field(default=0.0, init=False)
    out_of_money: bool = field(default=False, init=False)
    given_up: bool = field(default=False, init=False)
    _last_step: int = field(default=-1, init=False)
    _asked: Counter[str] = field(default_factory=Counter, init=False)
    _arrivals: "queue.SimpleQueue[tuple[int, Record | BaseException]]" = field(
        default_factory=queue.SimpleQueue, init=False
    )

    @property
    def solved(self) -> bool:
        """Whether some program is right on the whole train set."""
        return self.best is not None and self.best.verdict.solved

    def __post_init__(self) -> None:
        """Refuse a strategy that makes moves for which the problem has no words."""
        unknown = [move for move in self.strategy.moves if move not in self.problem.moves]
        if unknown:
            raise CwmError(
                f"the strategy {type(self.strategy).__name__} makes moves that "
                f"{type(self.problem).__name__} has no prompt for ({', '.join(unknown)}): "
                "choose another --strategy"
            )

    def learn(self, node: Node) -> None:
        """Take a node into the search: one that was just found, or one of an earlier run."""
        self.nodes.append(node)
        self._last_step = max(self._last_step, node.step)
        self.spent += node.usage.cost or 0.0
        self.given_up = self.given_up or node.final
        if self.best is None or _rank(node) > _rank(self.best):
            self.best = node
        self.strategy.update(node)

    def resume(self, nodes: Iterable[Node]) -> None:
        """Learn the nodes of an earlier run."""
        for node in nodes:
            self._asked[node.prompt] += 1
            self.learn(node)

    def run(self, budget: int) -> Iterator[Record]:
        """Yield records until a program is right, `budget` is spent or the backend gives up.

        A record is in the journal before the search learns it, and learned
        before it is yielded.
        """
        while not (self.solved or self.given_up):
            self._dispatch(budget)
            if not self.pending:
                return
            yield self._take(self._arrival())

    def drain(self) -> Iterator[Record]:
        """Yield what was in flight when `run` ended, by an error or with a right program."""
        while self.pending:
            try:
                record = self._arrival()
            except CwmError:
                continue
            yield self._take(record)

    def _take(self, record: Record) -> Record:
        """Write a record down, then learn it."""
        self.journal(record)
        self.learn(record.node)
        return record

    def _dispatch(self, budget: int) -> None:
        """Keep `parallel` completions in flight, within budget and cost."""
        while len(self.pending) < self.parallel and len(self.nodes) + len(self.pending) < budget:
            step = self._next_step()
            rng = np.random.default_rng([self.seed, step])
            move = self.strategy.select(rng, [flight.move for flight in self.pending.values()])
            seed = int(rng.integers(2**31))
            request = Request(self.problem.messages(move), seed, move, self.problem, step)
            key = request.key
            tell = partial(self.doing.__setitem__, step)
            request = request._replace(occurrence=self._asked[key], tell=tell)
            reserved = self._reserve(request)
            if reserved is None:
                return
            self._asked[key] += 1
            self.pending[step] = Pending(step, move, reserved)
            threads.start(partial(self._answer, step, request))

    def _next_step(self) -> int:
        """Return the number of the next completion."""
        return max(self._last_step, *self.pending, -1) + 1

    def _reserve(self, request: Request) -> float | None:
        """Return the worst cost of a request, or None when it might exceed the limit."""
        if self.max_cost is None:
            return 0.0
        worst = self.backend.worst_cost(request)
        if worst is None:
            raise CwmError("--max-cost needs a model of known price: leave it out for this model")
        reserved = sum(flight.reserved for flight in self.pending.values())
        self.out_of_money = self.spent + reserved + worst > self.max_cost
        return None if self.out_of_money else worst

    def _answer(self, step: int, request: Request) -> None:
        """Ask, read and judge; the outcome, error or not, is put where `run` waits.

        This happens in a thread of its own, also for a single completion, so
        that an interrupt ends the wait for an answer that does not come.
        """
        try:
            completion = self.backend.complete(request)
            record = self._judge(step, request, completion)
        except BaseException as error:  # noqa: BLE001  # raised again by `run`, in its thread
            self._arrivals.put((step, error))
        else:
            self._arrivals.put((step, record))

    def _judge(self, step: int, request: Request, completion: Completion) -> Record:
        """Make a node of a completion; its id is given on arrival."""
        text = completion.text.encode("utf-8", "replace").decode()  # no lone surrogates on disk
        program = self.problem.read(text, request.move)
        node = Node(
            id=ROOT,
            step=step,
            parent=request.move.parent,
            action=request.move.action,
            program=program,
            verdict=self.problem.judge(program),
            prompt=request.key,
            usage=completion.usage,
            final=completion.final,
        )
        return Record(node, text)

    def _arrival(self) -> Record:
        """Wait for the next outcome."""
        step, outcome = self._arrivals.get()
        del self.pending[step]
        self.doing.pop(step, None)
        if isinstance(outcome, BaseException):
            raise outcome
        return Record(replace(outcome.node, id=len(self.nodes)), outcome.text)


def _rank(node: Node) -> tuple[float, float]:
    """Order nodes by score, then by the rows that nothing was fitted to."""
    return node.verdict.score, node.verdict.validation
