"""Search for a program: the loop that every strategy and every problem share."""

import queue
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from cwm_cli.errors import CwmError
from cwm_cli.sandbox.failures import NO_ANSWER, Failure
from cwm_cli.search import threads
from cwm_cli.search.contracts import (
    ROOT,
    START,
    Backend,
    Completion,
    Move,
    Node,
    Problem,
    Record,
    RefinementTask,
    Refiner,
    Request,
    Strategy,
    Turn,
    Usage,
    Verdict,
    unheard,
)

NEARLY_AS_GOOD = 0.05
"""A candidate this much worse than the best, of what lies above the floor, is refined as well: one
term may be all that it lacks."""

MOST_OTHERS = 4
"""Other candidates that a refiner is shown: it may carry a part over from each."""


class Pending(NamedTuple):
    """A completion in flight, asked for when so many nodes were known, and which were best.

    What ranks above the best is confirmed, so that it does not depend on how fast others are. One
    that is `answered` is learned already, and being refined.
    """

    step: int
    move: Move
    reserved: float
    known: int = 0
    best: Node | None = None
    others: tuple[Node, ...] = ()
    answered: bool = False


class Arrival(NamedTuple):
    """What came of the completion of a step: records, or an error; `last` if nothing follows."""

    step: int
    outcome: list[Record] | BaseException
    last: bool = True


@dataclass
class Search:
    """One search, resumable at any node because strategies only learn through `update`.

    Each step draws from a generator of its own, seeded by (seed, step), so
    there is no generator state to save. With `parallel` completions in flight
    the nodes are learned in the order in which they arrive, which is what the
    journal records. `doing` holds what backends tell about those in flight.
    A backend that repeats a recorded search is asked in the turns of that one,
    whatever `parallel` is, so that the same tree grows. What was answered is
    bettered by the `refiners`, in their order, before the next question: the
    nodes that they make cost no completion.
    """

    problem: Problem
    strategy: Strategy
    backend: Backend
    seed: int = 0
    parallel: int = 1
    max_cost: float | None = None
    journal: Callable[[Record], None] = lambda record: None
    refiners: Mapping[str, Refiner] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list, init=False)
    pending: dict[int, Pending] = field(default_factory=dict, init=False)
    doing: dict[int, str] = field(default_factory=dict, init=False)
    best: Node | None = field(default=None, init=False)
    spent: float = field(default=0.0, init=False)
    out_of_money: bool = field(default=False, init=False)
    given_up: bool = field(default=False, init=False)
    _last_step: int = field(default=-1, init=False)
    _asked: Counter[str] = field(default_factory=Counter, init=False)
    _turns: list[Turn] = field(default_factory=list, init=False)
    _prepared: dict[int, Request] = field(default_factory=dict, init=False)
    _arrivals: "queue.SimpleQueue[Arrival]" = field(default_factory=queue.SimpleQueue, init=False)

    @property
    def solved(self) -> bool:
        """Whether some program is right on the whole train set."""
        return self.best is not None and self.best.verdict.solved

    @property
    def completions(self) -> int:
        """How many of the nodes cost a completion."""
        return sum(node.asked for node in self.nodes)

    @property
    def _asked_for(self) -> int:
        """How many completions there are, with those in flight."""
        return self.completions + sum(not flight.answered for flight in self.pending.values())

    def __post_init__(self) -> None:
        """Refuse a strategy that makes moves for which the problem has no words."""
        unknown = [move for move in self.strategy.moves if move not in self.problem.moves]
        if unknown:
            raise CwmError(
                f"the strategy {type(self.strategy).__name__} makes moves that "
                f"{type(self.problem).__name__} has no prompt for ({', '.join(unknown)}): "
                "choose another --strategy"
            )
        self._turns = sorted(self.backend.recorded())

    def learn(self, node: Node) -> None:
        """Take a node into the search: one that was just found, or one of an earlier run."""
        self.nodes.append(node)
        self._last_step = max(self._last_step, node.step)
        self.spent += node.usage.cost or 0.0
        self.given_up = self.given_up or node.final
        if self.best is None or node.verdict.rank > self.best.verdict.rank:
            self.best = node
        self.problem.update(node)
        self.strategy.update(node)

    def begin(self, candidate: str, findings: str = "") -> Iterator[Record]:
        """Yield what a new search begins with: a candidate that nobody was asked for, refined."""
        first = self._record(Move(START), ROOT, candidate, findings=findings)
        for record in self._refined(first, None, unheard):
            yield self._take(record)

    def resume(self, nodes: Iterable[Node]) -> None:
        """Learn the nodes of an earlier run; a best one that was not confirmed is, or is not best.

        Journals of earlier versions do not say of any that it was confirmed.
        """
        for node in nodes:
            self._prepare()
            if self._prepared.pop(node.step, None):
                del self.pending[node.step]
            elif node.asked:
                self._asked[node.prompt] += 1
            self.learn(node)
        if self.best is None or self.best.verdict.confirmed:
            return
        for node in sorted(self.nodes, key=lambda node: node.verdict.rank, reverse=True):
            self.best = replace(node, verdict=self._confirmed(node.program, node.verdict))
            if node.verdict.is_bug or not self.best.verdict.is_bug:
                return

    def _confirmed(self, program: str, verdict: Verdict) -> Verdict:
        """Return a verdict that is confirmed, where there is anything to confirm."""
        if verdict.confirmed or verdict.is_bug:
            return verdict
        return self.problem.confirm(program, verdict)

    def run(self, budget: int) -> Iterator[Record]:
        """Yield records until a program is right, `budget` is spent or the backend gives up.

        A record is in the journal before the search learns it, and learned
        before it is yielded.
        """
        if turns := self.backend.recorded():
            yield from self._repeat(turns, budget)
            return
        while not (self.solved or self.given_up):
            self._dispatch(budget)
            if not self.pending:
                return
            yield from self._arrived()

    def drain(self) -> Iterator[Record]:
        """Yield what was in flight when `run` ended, by an error or with a right program."""
        while self.pending:
            try:
                yield from self._arrived()
            except CwmError:
                continue

    def _take(self, record: Record) -> Record:
        """Give a record its number, write it down, then learn it.

        The parent of a refinement is one of the nodes just before it: below `ROOT` it counts back.
        """
        number, parent = len(self.nodes), record.node.parent
        parent = parent if parent >= ROOT else number + parent - ROOT
        record = record._replace(node=replace(record.node, id=number, parent=parent))
        self.journal(record)
        self.learn(record.node)
        return record

    def _dispatch(self, budget: int) -> None:
        """Keep `parallel` completions in flight, within budget and cost."""
        while len(self.pending) < self.parallel and self._asked_for < budget:
            request = self._request(self._next_step())
            allowance = self._allowance(request)
            if self.out_of_money:
                return
            self._register(request, allowance or 0.0)
            request = request._replace(allowance=allowance)
            threads.start(partial(self._answer, request.step, request))

    def _request(self, step: int) -> Request:
        """Choose a move and word it."""
        rng = np.random.default_rng([self.seed, step])
        awaited = [flight.move for flight in self.pending.values() if not flight.answered]
        move = self.strategy.select(rng, awaited)
        seed = int(rng.integers(2**31))
        request = Request(self.problem.messages(move), seed, move, self.problem, step)
        number, known = 0, set[str]()
        while not self.strategy.repeats and self._asked[request.key] and request.key not in known:
            known.add(request.key)
            number += 1
            request = request._replace(messages=self.problem.varied(move, number))
        return request._replace(
            occurrence=self._asked[request.key],
            tell=partial(self.doing.__setitem__, step),
            shorter=partial(self.problem.shorter, move),
        )

    def _register(self, request: Request, reserved: float) -> None:
        """Count a request among those in flight."""
        self._asked[request.key] += 1
        known = len(self.nodes)
        ranked = sorted(self.nodes, key=lambda node: node.verdict.rank, reverse=True)
        running = tuple(node for node in ranked if not node.verdict.is_bug)[:MOST_OTHERS]
        flight = Pending(request.step, request.move, reserved, known, self.best, running)
        self.pending[request.step] = flight

    def _repeat(self, turns: Sequence[Turn], budget: int) -> Iterator[Record]:
        """Yield the records of a recorded search, each asked when it was asked then."""
        try:
            while self.completions < min(budget, len(turns)):
                if not (self.solved or self.given_up):
                    self._prepare()
                request = self._prepared.pop(turns[self.completions].step, None)
                if request is None:
                    return
                threads.start(partial(self._answer, request.step, request))
                ends = self.completions == len(turns) - 1 < budget - 1
                while request.step in self.pending:
                    for record in self._arrived():
                        told = ends and record.node.asked and not record.node.verdict.solved
                        note = f"the recording ends after {len(turns)} answers"
                        yield record._replace(note=note) if told else record
        finally:
            self.pending.clear()

    def _prepare(self) -> None:
        """Choose what a recorded search had asked by now; no answer is fetched before its turn."""
        while self._turns and self._turns[0].known <= len(self.nodes):
            request = self._request(self._turns.pop(0).step)
            self._register(request, 0.0)
            self._prepared[request.step] = request

    def _next_step(self) -> int:
        """Return the number of the next completion."""
        return max(self._last_step, *self.pending, -1) + 1

    def _allowance(self, request: Request) -> float | None:
        """Return what answering may cost, None where there is no limit; or be out of money.

        It is the worst cost of an answer, or an even share of what is left where that is more:
        one that was cut off may be asked for again, with more tokens.
        """
        if self.max_cost is None:
            return None
        worst = self.backend.worst_cost(request)
        if worst is None:
            raise CwmError("--max-cost needs a model of known price: leave it out for this model")
        reserved = sum(flight.reserved for flight in self.pending.values())
        left = self.max_cost - self.spent - reserved
        self.out_of_money = worst > left
        return max(worst, left / (self.parallel - len(self.pending)))

    def _answer(self, step: int, request: Request) -> None:
        """Ask, read and judge; the outcome, error or not, is put where `run` waits.

        This happens in a thread of its own, also for a single completion, so
        that an interrupt ends the wait for an answer that does not come.
        """
        try:
            completion = self.backend.complete(request)
            record = self._judge(step, request, completion)
            self._arrivals.put(Arrival(step, [record], last=not self.refiners))
            if self.refiners:  # what was paid for is written down before it is refined
                refined = self._refined(record, self.pending[step], request.tell)[1:]
                self._arrivals.put(Arrival(step, refined))
        except BaseException as error:  # noqa: BLE001  # raised again by `run`, in its thread
            self._arrivals.put(Arrival(step, error))

    def _judge(self, step: int, request: Request, completion: Completion) -> Record:
        """Make a node of a completion; its id is given on arrival."""
        text = completion.text.encode("utf-8", "replace").decode()  # no lone surrogates on disk
        program = self.problem.read(text, request.move)
        verdict, best = self._verdict(program, completion.lacking), self.pending[step].best
        if best is None or verdict.rank > best.verdict.rank:
            verdict = self._confirmed(program, verdict)
        node = Node(
            id=ROOT,
            step=step,
            parent=request.move.parent,
            action=request.move.action,
            program=program,
            verdict=verdict,
            prompt=request.key,
            usage=completion.usage,
            final=completion.final,
        )
        return Record(node, text, completion.note)

    def _record(
        self, move: Move, step: int, candidate: str, *, best: Node | None = None, findings: str = ""
    ) -> Record:
        """Judge a candidate that nobody was asked for."""
        verdict = self.problem.judge(candidate)
        if best is None or verdict.rank > best.verdict.rank:
            verdict = self._confirmed(candidate, verdict)
        verdict = replace(verdict, findings=findings)
        node = Node(ROOT, step, move.parent, move.action, candidate, verdict, "", Usage())
        return Record(replace(node, asked=False), findings)

    def _refined(
        self, first: Record, flight: Pending | None, tell: Callable[[str], None]
    ) -> list[Record]:
        """Return a record and what refiners made of it, each of what the one before it made."""
        best = flight.best if flight else None
        step, others = (flight.step, flight.others) if flight else (ROOT, ())
        records = [first]
        for name, refiner in self.refiners.items():
            newest = records[-1].node
            if not _worth_refining(newest, best):
                break
            task = RefinementTask(self.problem, newest, others, self.seed, tell)
            found = refiner.refine(task)
            if found is None or not found.candidate:
                continue
            back = ROOT - 1  # the record just before this one
            leading = max(filter(None, (best, newest)), key=lambda node: node.verdict.rank)
            record = self._record(
                Move(name, back), step, found.candidate, best=leading, findings=found.findings
            )
            if record.node.verdict.rank > newest.verdict.rank:
                records.append(record)
        return records

    def _verdict(self, program: str, lacking: str) -> Verdict:
        """Judge a candidate; where an answer lacks one, or its end, that is what is wrong."""
        if lacking and not program:
            return Verdict(score=0.0, failure=Failure(kind=NO_ANSWER, message=lacking))
        verdict = self.problem.judge(program)
        if lacking and verdict.failure is not None and verdict.failure.kind == "load_error":
            message = f"{lacking}\n{verdict.failure.message}"
            return replace(
                verdict, failure=replace(verdict.failure, kind=NO_ANSWER, message=message)
            )
        return verdict

    def _arrived(self) -> Iterator[Record]:
        """Wait for what comes next of the completions in flight, and yield it learned."""
        step, outcome, last = self._arrivals.get()
        flight = self.pending[step]
        if last:
            del self.pending[step]
            self.doing.pop(step, None)
        else:
            self.pending[step] = flight._replace(answered=True)
        if isinstance(outcome, BaseException):
            raise outcome
        for record in outcome:
            node = record.node
            known = flight.known if node.asked else None
            yield self._take(record._replace(node=replace(node, known=known)))


def _worth_refining(node: Node, best: Node | None) -> bool:
    """Whether a candidate runs, is not right, and is the best or not much worse."""
    if node.verdict.is_bug or node.verdict.solved:
        return False
    return best is None or node.verdict.normalised >= best.verdict.normalised - NEARLY_AS_GOOD
