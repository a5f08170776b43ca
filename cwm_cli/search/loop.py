"""The search loop, shared by all strategies, problems and backends.

Each step selects a move (`Strategy.select`), writes its prompt (`Problem.messages`), requests a
completion (`Backend.complete`), reads a candidate from it (`Problem.read`), scores the candidate
(`Problem.judge`), and updates the strategy with the new node (`Strategy.update`).
"""

import ast
import os
import queue
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from cwm_cli.errors import CwmError
from cwm_cli.sandbox.failures import NO_ANSWER, Failure
from cwm_cli.search import threads
from cwm_cli.search.contracts import (
    EVIDENCE,
    GENERATE,
    IMPROVE,
    ROOT,
    SIMPLIFY,
    START,
    Backend,
    Completion,
    Move,
    NextContract,
    Node,
    Problem,
    Record,
    Refinement,
    RefinementTask,
    Refiner,
    Remark,
    Request,
    ScoreRequest,
    Strategy,
    Switch,
    Turn,
    Usage,
    Verdict,
    unheard,
)
from cwm_cli.search.simplification import measure
from cwm_cli.search.spending import CostLimit, Refusal, Reservation, pauses

MAX_REFINEMENTS = 6
"""Maximum number of successive refinements of one candidate. Without a limit two refiners could
alternate forever, since each improvement queues the other refiner again."""


class Pending(NamedTuple):
    """A pending request, with event count and best node at dispatch time.

    A candidate that ranks above `best` is confirmed. The decision uses the best node at dispatch
    time, so it does not depend on the speed of other requests. `asked` is False for a start and
    for a refinement, which request no completion.
    """

    step: int
    move: Move
    known: int = 0
    best: Node | None = None
    asked: bool = True
    model: str = ""


class RefinementQueue(NamedTuple):
    """The names of the refiners that a node still waits for.

    `in_a_row` counts the successive refinements that led to the node.
    """

    node: int
    refiners: tuple[str, ...]
    in_a_row: int = 0


@dataclass
class Search:
    """One search, which can resume after any node.

    Strategies learn only through `update`, and step n draws its random numbers from
    `np.random.default_rng([seed, n])`. So a search resumes from its nodes alone, without a saved
    generator. With `parallel` above 1, nodes are learned in order of arrival, and the journal
    records this order. A backend that replays a recorded search receives its requests in the
    recorded order, so that the same tree grows for any value of `parallel`.

    Starts and refinements cost no completion. The loop writes a node to the journal before the
    first refinement, and each refinement before the next one, so that a crash loses little work.

    Args:
        problem: Writes prompts, reads and scores candidates.
        strategy: Selects moves.
        backend: Completes prompts.
        seed: Seed of all random numbers.
        parallel: Maximum number of completions in flight.
        max_cost: Limit in US dollars on the cost of all completions. None means no limit.
        journal: Called with every event before the search learns it.
        log: Called with lines for the log of the run, from any thread.
        refiners: Refiners by name, which improve candidates one after the other.
        start: Returns the candidate to begin with, given the problem and a progress callback.
        limit: Cost limit that this search shares with others, instead of `max_cost`.
        simplify: Maximum number of completions that shorten a solved program, within the budget.
    """

    problem: Problem
    strategy: Strategy
    backend: Backend
    seed: int = 0
    parallel: int = 1
    max_cost: float | None = None
    journal: Callable[[Record | Remark | Switch], None] = lambda record: None
    log: Callable[[str], None] = unheard
    refiners: Mapping[str, Refiner] = field(default_factory=dict)
    start: Callable[[Any, Callable[[str], None]], Refinement | None] | None = None
    limit: CostLimit | None = None
    simplify: int = 0
    nodes: list[Node] = field(default_factory=list, init=False)
    remarks: dict[int, list[Remark]] = field(default_factory=dict, init=False)
    pending: dict[int, Pending] = field(default_factory=dict, init=False)
    doing: dict[int, str] = field(default_factory=dict, init=False)
    """Progress of the pending requests by step, as reported by backends and refiners."""
    best: Node | None = field(default=None, init=False)
    completions: int = field(default=0, init=False)
    spent: float = field(default=0.0, init=False)
    """Total cost in US dollars."""
    out_of_money: bool = field(default=False, init=False)
    given_up: bool = field(default=False, init=False)
    switches: int = field(default=0, init=False)
    _awaits_start: bool = field(default=True, init=False)
    _improved_at: int = field(default=0, init=False)
    """Number of completions at the last better candidate, switch or new evidence."""
    _first_comparable: int = field(default=0, init=False)
    """Index of the first node since the last switch or new evidence."""
    _previous_best: Node | None = field(default=None, init=False)
    _outdated: int = field(default=0, init=False)
    _events: int = field(default=0, init=False)
    _last_step: int = field(default=-1, init=False)
    _prompt_counts: Counter[str] = field(default_factory=Counter, init=False)
    _move_counts: Counter[tuple[str, int]] = field(default_factory=Counter, init=False)
    _queues: dict[int, RefinementQueue] = field(default_factory=dict, init=False)
    _refined: set[str] = field(default_factory=set, init=False)
    _turns: list[Turn] = field(default_factory=list, init=False)
    _prepared: dict[int, Request] = field(default_factory=dict, init=False)
    _outcomes: "queue.SimpleQueue[tuple[int, Record | Remark | BaseException]]" = field(
        default_factory=queue.SimpleQueue, init=False
    )

    def __post_init__(self) -> None:
        unknown = [move for move in self.strategy.moves if move not in self.problem.moves]
        if unknown:
            raise CwmError(
                f"the strategy {type(self.strategy).__name__} makes moves that "
                f"{type(self.problem).__name__} has no prompt for ({', '.join(unknown)}): "
                "choose another strategy"
            )
        if self.strategy.corrects and not self.backend.can_score:
            raise CwmError(
                f"{type(self.strategy).__name__} needs log-probabilities of completions, which "
                f"{type(self.backend).__name__} does not provide: choose another backend"
            )
        self._turns = sorted(turn for turn in self.backend.recorded() if turn.given is None)
        if self.limit is None and self.max_cost is not None:
            self.limit = CostLimit.own(self.max_cost)

    @property
    def solved(self) -> bool:
        """Whether the best program is solved, or the problem expects no better one."""
        best = self.best
        return best is not None and (best.verdict.solved or self.problem.settled)

    def run(self, budget: int) -> Iterator[Record]:
        """Search until a program is solved, the budget is spent or the backend gives up.

        Args:
            budget: Maximum number of completions, which includes completions of earlier runs.

        Yields:
            Each record, after it was written to the journal and learned.

        Raises:
            CwmError: If a backend refuses a request, for example because of its API key.
        """
        if turns := self.backend.recorded():
            yield from self._replay(turns, budget)
            return
        yield from self._repeat_lost_requests()
        while not self.solved:
            change = self.problem.next_contract if self.completions < budget else None
            if change is None and self.given_up:
                return
            if change is None:
                self._dispatch(budget)
            elif not self.pending:  # a switch waits until no request is in flight
                self.change_contract(change)
                continue
            if not self.pending:
                return
            yield from self._commit(self._next_outcome())
        yield from self._simplify_best(budget)

    def drain(self) -> Iterator[Record]:
        """Yield the records of the completions in flight, after `run` ended.

        `run` ends with completions in flight if a program is solved or a request raised an error.
        Starts and refinements in flight are dropped, since they cost nothing.
        """
        self.pending = {step: flight for step, flight in self.pending.items() if flight.asked}
        while self.pending:
            try:
                outcome = self._next_outcome()
            except CwmError:
                continue
            yield from self._commit(outcome)

    def resume(
        self, events: Iterable[Node | Remark | Switch], answered: Sequence[Turn] = ()
    ) -> None:
        """Learn the events of an earlier run.

        Journals of earlier versions do not record confirmation. So if the best node is not
        confirmed, it is confirmed now, or the next best one is.

        Args:
            events: Events of the journal, in order.
            answered: Requests that have a completion on disk but no node. `run` sends these
                requests again, before any other, in the same state of the search.
        """
        before, events = self.spent, list(events)
        done = {event.step for event in events if isinstance(event, Node) and event.asked}
        lost = [turn for turn in answered if turn.step not in done]
        if lost:
            later = events[lost[0].known :]
            nodes = [event for event in later if isinstance(event, Node) and event.asked]
            turns = (Turn(node.step, node.known) for node in nodes if node.known is not None)
            self._turns = sorted([*lost, *turns])
        for event in events:
            self._prepare_turns()
            if isinstance(event, Node) and event.asked:
                if self._prepared.pop(event.step, None):
                    del self.pending[event.step]
                else:
                    self._prompt_counts[event.prompt] += 1
                    self._move_counts[event.action, event.parent] += 1
            self.learn(event)
        if lost:
            self._prepare_turns()
        if self.limit:
            self.limit.recall(self.spent - before)
        if self.best is None or self.best.verdict.confirmed:
            return
        for node in sorted(self.nodes, key=lambda node: node.verdict.rank, reverse=True):
            self.best = replace(node, verdict=self._confirm(node.program, node.verdict))
            if node.verdict.is_bug or not self.best.verdict.is_bug:
                return

    def learn(self, event: Node | Remark | Switch) -> None:
        """Learn a new event, or an event from the journal of an earlier run."""
        self._events += 1
        if isinstance(event, Switch):
            self._learn_switch(event)
            return
        self._awaits_start = False
        if isinstance(event, Remark):
            self.remarks.setdefault(event.node, []).append(event)
            self._dequeue_refiner(event)
            return
        self.completions += event.asked
        self._last_step = max(self._last_step, event.step)
        self.spent += event.usage.cost or 0.0
        self.given_up = self.given_up or event.final
        self._learn_candidate(event)
        self.backend.update(event)
        if self.refiners:
            self._queue_refiners(event)

    def change_contract(self, change: NextContract) -> None:
        """Judge all nodes under another contract. Call it only while no request is in flight."""
        event = threads.run_in_thread(partial(self._switch_contract, change))
        self.journal(event)
        self.learn(event)

    def charge(self, cost: float) -> None:
        """Add a cost in US dollars that no completion of this search caused."""
        self.spent += cost
        if self.limit:
            self.limit.charge(cost)

    def recall(self, cost: float) -> None:
        """Add the cost of an earlier run, in US dollars."""
        self.spent += cost
        if self.limit:
            self.limit.recall(cost)

    def outdate(self) -> None:
        """Mark all verdicts as outdated, because the problem has new evidence."""
        self._previous_best, self.best = self.best or self._previous_best, None
        self._outdated, self._improved_at = len(self.nodes), self.completions
        self._first_comparable = len(self.nodes)

    def renew(self) -> Iterator[Record]:
        """Judge again the outdated nodes that the strategy holds, and the previous best node.

        Call it only while no request is in flight. Each judged candidate becomes a node with the
        action `EVIDENCE` that cost no completion, in the order of the old ids. Nodes that an
        earlier run already judged again are skipped.

        Yields:
            The record of each new node.
        """
        best = None if self.strategy.forgets else self._previous_best
        held = {*self.strategy.held(), *([best.id] if best else [])}
        done = {node.parent for node in self.nodes[self._outdated :] if node.action == EVIDENCE}
        for number in sorted(id for id in held - done if id < self._outdated):
            node = self.nodes[number]
            move = Move(EVIDENCE, number, node.program, node.verdict)
            found = Refinement(node.program)
            judge = partial(self._record_without_completion, move, node.step, found, self.best)
            yield from self._commit(threads.run_in_thread(judge))

    def _commit(self, event: Record | Remark | Switch) -> Iterator[Record]:
        """Write an event to the journal, then learn it; yield it if it is a record."""
        if isinstance(event, Remark | Switch):
            self.journal(event)
            self.learn(event)
            return
        node = replace(
            event.node, id=len(self.nodes), final=event.node.final or self._stalls(event)
        )
        record = event._replace(node=replace(node, disclosed=self.problem.discloses(node)))
        self.journal(record)
        self.learn(record.node)
        yield record

    def _stalls(self, event: Record) -> bool:
        """Return whether a backend gives up, because this completion improves nothing either.

        A backend that uses the data only gives up when it writes a program again.
        """
        limit, node = self.backend.gives_up_after, event.node
        if limit is None or not node.asked or self.best is None or node.action == SIMPLIFY:
            return False
        if self.backend.from_data and node.program:
            earlier = (n for n in self.nodes[self._first_comparable :] if n.asked)
            code = _code(node.program)
            if any(_code(other.program) == code for other in earlier):
                return True
        improves = node.verdict.rank > self.best.verdict.rank
        return not improves and self.completions + 1 - self._improved_at >= limit

    def _learn_candidate(self, node: Node) -> None:
        self.nodes.append(node)
        if self.best is None or node.verdict.rank > self.best.verdict.rank:
            self.best, self._improved_at = node, self.completions
        self.problem.update(node)
        self.strategy.update(node)

    # Requests: select a move, write its prompt, send it within the limits.

    def _dispatch(self, budget: int) -> None:
        """Send the start, refinements, and up to `parallel` completions, within the limits.

        No completion is requested before the start and all its refinements are known. If
        `parallel` is 1, no completion is requested while a refiner works.
        """
        if self.start and self._awaits_start and ROOT not in self.pending:
            self.pending[ROOT] = Pending(ROOT, Move(START), asked=False)
            threads.start(partial(self._deliver, ROOT, self._make_start))
        # Refiners compute, so more refiners than CPU cores would not be faster.
        max_refining = min(self.parallel, os.cpu_count() or 1)
        for step in [step for step in self._queues if step not in self.pending]:
            if len(self.pending) - self._in_flight < max_refining:
                self._dispatch_refinement(step)
        refining = len(self.pending) > self._in_flight
        if ROOT in self.pending or (self.parallel == 1 and refining):
            return
        while self._in_flight < self.parallel and self.completions + self._in_flight < budget:
            request = self._request(max(self._last_step, *self.pending, -1) + 1)
            if request is None:
                return
            reserved = self._reserve(request) if self.limit else None
            if isinstance(reserved, Refusal):
                self.out_of_money = reserved is Refusal.NEVER
                return
            self._register(request)
            self._send(request, reserved)

    @property
    def _in_flight(self) -> int:
        """The number of completions in flight."""
        return sum(flight.asked for flight in self.pending.values())

    def _request(self, step: int) -> Request | None:
        """Return the request of a step; None while a refiner works on the program to improve."""
        rng = np.random.default_rng([self.seed, step])
        asked = [flight for flight in self.pending.values() if flight.asked]
        move = self._select_move(rng, [flight.move for flight in asked])
        refining = {flight.move.parent for flight in self.pending.values() if not flight.asked}
        if move.action == IMPROVE and move.parent in refining:
            return None
        seed = int(rng.integers(2**31))
        request = Request(self.problem.messages(move), seed, move, self.problem, step)
        # Vary the prompt until it is new, or until the variants repeat.
        number, tried = max(0, self._move_counts[move.action, move.parent] - 1), set[str]()
        while (
            not self.strategy.repeats
            and self._prompt_counts[request.key]
            and request.key not in tried
        ):
            tried.add(request.key)
            number += 1
            request = request._replace(messages=self.problem.varied(move, number))
        return request._replace(
            occurrence=self._prompt_counts[request.key],
            tell=partial(self.doing.__setitem__, step),
            shorter=partial(self.problem.shorter, move),
            weighed=self.strategy.weighs_proposals,
            model=self.backend.assign(rng, [flight.model for flight in asked]),
            log=self.log,
            known=self._events,
        )

    def _select_move(self, rng: np.random.Generator, pending: Sequence[Move]) -> Move:
        """Select a move, with the findings of refiners.

        The first completion generates a program from scratch if the start explains less than half
        of the rows: to improve such a start misleads more than it helps.
        """
        if self._may_simplify:
            assert self.best is not None
            return Move(SIMPLIFY, self.best.id, self.best.program, self.best.verdict)
        move = self.strategy.select(rng, pending)
        self._check_move(move)
        move = self._add_findings(move)
        best, is_first = self.best, not self.completions + self._in_flight
        if is_first and best and GENERATE in self.strategy.moves and best.verdict.explained < 0.5:
            start = self._add_findings(Move(IMPROVE, best.id, best.program, best.verdict))
            return Move(GENERATE, verdict=start.verdict)
        return move

    def _check_move(self, move: object) -> None:
        """Raise an error on a move that `select` must not return; plugins may have defects."""
        method = f"{type(self.strategy).__name__}.select"
        if not isinstance(move, Move):
            raise CwmError(f"{method} returned {type(move).__name__}; it must return a Move")
        if move.action not in self.problem.moves:
            known = ", ".join(self.problem.moves)
            raise CwmError(f"{method} returned the move {move.action!r}: choose one of {known}")
        if move.parent != ROOT and not 0 <= move.parent < len(self.nodes):
            raise CwmError(
                f"{method} returned a move for node {move.parent}, but there are "
                f"{len(self.nodes)} nodes"
            )

    def _add_findings(self, move: Move) -> Move:
        """Add the findings of all remarks on the parent to the verdict of a move."""
        if move.verdict is None or move.parent not in self.remarks:
            return move
        remarks = [remark.findings for remark in self.remarks[move.parent]]
        findings = "\n\n".join(filter(None, [move.verdict.findings, *remarks]))
        return move._replace(verdict=replace(move.verdict, findings=findings))

    def _reserve(self, request: Request) -> Reservation | Refusal:
        """Reserve the worst cost of a request.

        If other requests are in flight, do not wait. Otherwise wait until the reservation is
        granted or can never be granted.
        """
        assert self.limit is not None
        worst = self.backend.worst_cost(request)
        if worst is None:
            raise CwmError(
                "--max-cost needs a model with a known price: leave it out for this model"
            )
        waits = pauses()
        while True:
            reserved = self.limit.reserve(worst, self.parallel - self._in_flight)
            if reserved is not Refusal.WAIT or self.pending:
                return reserved
            time.sleep(next(waits))

    def _register(self, request: Request) -> None:
        """Count a request among those in flight."""
        step, move = request.step, request.move
        self._prompt_counts[request.key] += 1
        self._move_counts[move.action, move.parent] += 1
        self.pending[step] = Pending(step, move, self._events, self.best, model=request.model)

    def _send(self, request: Request, reserved: Reservation | None) -> None:
        work = partial(self._make_node, request, reserved)
        threads.start(partial(self._deliver, request.step, work))

    def _deliver(self, step: int, work: Callable[[], Record | Remark]) -> None:
        """Put the outcome of pending work, a result or an error, into the queue of outcomes.

        Even a single request runs in its own thread, so that an interrupt ends the wait for a
        completion that never arrives.
        """
        try:
            self._outcomes.put((step, work()))
        except BaseException as error:  # noqa: BLE001  # raised again by `run`, in its thread
            self._outcomes.put((step, error))

    def _next_outcome(self) -> Record | Remark:
        """Wait for the next outcome of a pending request."""
        step, outcome = self._outcomes.get()
        while step not in self.pending:  # `drain` dropped it
            step, outcome = self._outcomes.get()
        del self.pending[step]
        self.doing.pop(step, None)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    # Nodes: complete, read, judge, confirm.

    def _make_node(self, request: Request, reserved: Reservation | None = None) -> Record:
        """Complete a request, and read and judge its candidate; the id is set on arrival."""
        completion, flight = self._complete(request, reserved), self.pending[request.step]
        text = completion.text.encode("utf-8", "replace").decode()  # no lone surrogates on disk
        program = self.problem.read(text, request.move)
        verdict, best = self._judge(program, completion.lacking), flight.best
        verdict = self._confirm_better(request.move, program, verdict, best)
        node = Node(
            id=ROOT,
            step=request.step,
            parent=request.move.parent,
            action=request.move.action,
            program=program,
            verdict=verdict,
            prompt=request.key,
            usage=completion.usage,
            final=completion.final,
            known=flight.known,
            seed=request.seed,
            model=request.model,
            requested=self.problem.requested(text),
        )
        node = self._add_log_probabilities(node, request, completion)
        return Record(node, text, completion.note, request.messages)

    def _complete(self, request: Request, reserved: Reservation | None) -> Completion:
        if reserved is None or self.limit is None:
            return self.backend.complete(request)
        request = request._replace(allowance=reserved.amount)
        return self.limit.pay_for(reserved, partial(self.backend.complete, request))

    def _judge(self, program: str, lacking: str) -> Verdict:
        """Judge a candidate; the failure is `NO_ANSWER` if the completion has no whole one."""
        if lacking and not program:
            return Verdict(score=0.0, failure=Failure(kind=NO_ANSWER, message=lacking))
        verdict = self.problem.judge(program)
        if lacking and verdict.failure is not None and verdict.failure.kind == "load_error":
            message = f"{lacking}\n{verdict.failure.message}"
            return replace(
                verdict, failure=replace(verdict.failure, kind=NO_ANSWER, message=message)
            )
        return verdict

    def _confirm_better(
        self, move: Move, program: str, verdict: Verdict, best: Node | None
    ) -> Verdict:
        """Confirm the verdict of a simplification, or of a program that ranks above `best`."""
        refiner = self.refiners.get(move.action)
        if move.action == SIMPLIFY or (refiner is not None and refiner.of_solved):
            return self._credit_simplification(move, program, verdict)
        if best is None or verdict.rank > best.verdict.rank:
            return self._confirm(program, verdict)
        return verdict

    def _confirm(self, program: str, verdict: Verdict) -> Verdict:
        if verdict.confirmed or verdict.is_bug:
            return verdict
        return self.problem.confirm(program, verdict)

    def _add_log_probabilities(self, node: Node, request: Request, completion: Completion) -> Node:
        """Add the log-probabilities of the proposal and its reverse, if the strategy needs them.

        If the backend can score, the forward value leaves out the text around the program: the
        reverse proposal has no such text.
        """
        if not self.strategy.weighs_proposals or node.verdict.is_bug:
            return node
        forward, backward = completion.log_probability, None
        is_bare = completion.text.strip() == node.program.strip()
        if forward is None or (self.backend.can_score and not is_bare):
            forward = self._log_probability(request, node.program)
        if self.strategy.corrects and request.move.parent != ROOT:
            move = request.move._replace(parent=node.id, program=node.program, verdict=node.verdict)
            reverse = request._replace(messages=self.problem.messages(move), move=move)
            backward = self._log_probability(reverse, request.move.program)
        return replace(node, forward=forward, backward=backward)

    def _log_probability(self, request: Request, text: str) -> float:
        (tokens,) = self.backend.score([ScoreRequest(request.messages, text, request)])
        return float(sum(tokens))

    def _make_start(self) -> Record | Remark:
        """Make a node of the starting program, or a remark if there is none."""
        assert self.start is not None
        try:
            found = self.start(self.problem, partial(self.doing.__setitem__, ROOT))
        except Exception as error:  # noqa: BLE001  # a search works without a start
            return Remark(node=ROOT, by=START, note=f"no starting program: {_first_line(error)}")
        if found is None or not found.candidate:
            return Remark(node=ROOT, by=START, note=found.findings if found else "")
        return self._record_without_completion(Move(START), ROOT, found, None)

    def _record_without_completion(
        self, move: Move, step: int, found: Refinement, best: Node | None
    ) -> Record:
        """Judge a candidate that cost no completion; confirm it if it ranks above `best`."""
        verdict = self.problem.judge(found.candidate)
        verdict = self._confirm_better(move, found.candidate, verdict, best)
        verdict = replace(verdict, findings=found.findings)
        node = Node(ROOT, step, move.parent, move.action, found.candidate, verdict, "", Usage())
        return Record(replace(node, asked=False), "")

    # Refinements: improve candidates without completions.

    def _queue_refiners(self, node: Node) -> None:
        """Queue a new node for all refiners except its own.

        The order continues after that refiner and wraps around: one refiner may improve the
        result of another.
        """
        before = self._queues.pop(node.step, None)
        in_a_row = before.in_a_row + 1 if before and not node.asked else 0
        if not self._is_worth_refining(node) or in_a_row >= MAX_REFINEMENTS:
            return
        self._refined.add(node.program)
        names = [name for name, refiner in self.refiners.items() if not refiner.of_solved]
        if node.action in names:
            place = names.index(node.action)
            names = names[place + 1 :] + names[:place]
        if names:
            self._queues[node.step] = RefinementQueue(node.id, tuple(names), in_a_row)

    def _is_worth_refining(self, node: Node) -> bool:
        """Whether a candidate runs, is not solved, and is new and good enough to refine.

        A candidate written from scratch is always good enough, and so is the first one in its
        line that runs: with the right terms but wrong constants it scores no better than the
        floor. Any other one may be at most 5 % worse than the best (scores above the floor),
        since a single missing term may explain the difference.
        """
        verdict = node.verdict
        if verdict.is_bug or verdict.solved or node.program in self._refined:
            return False
        if node.parent == ROOT or self.nodes[node.parent].verdict.is_bug or not node.asked:
            return True
        best = self.best or node
        return verdict.normalised >= best.verdict.normalised - 0.05

    def _dequeue_refiner(self, remark: Remark) -> None:
        """Remove the refiner that made a remark from the queue of its node."""
        step = self.nodes[remark.node].step if remark.node != ROOT else ROOT
        waiting = self._queues.get(step)
        if waiting is None or waiting.node != remark.node:
            return
        refiners = tuple(name for name in waiting.refiners if name != remark.by)
        if refiners:
            self._queues[step] = waiting._replace(refiners=refiners)
        else:
            del self._queues[step]

    def _dispatch_refinement(self, step: int) -> None:
        """Start the next refiner of a queue."""
        waiting = self._queues[step]
        name, node = waiting.refiners[0], self.nodes[waiting.node]
        move = Move(name, node.id, node.program, node.verdict)
        self.pending[step] = Pending(step, move, self._events, self.best, asked=False)
        self.doing[step] = f"{name} of #{node.id}"

        def tell(words: str) -> None:
            self.doing[step] = f"{name} of #{node.id}: {words}"

        # The refiner may copy parts from the 12 best other candidates that run.
        running = {n.program: n for n in reversed(self.nodes) if not n.verdict.is_bug}
        running.pop(node.program, None)
        others = sorted(running.values(), key=lambda node: node.verdict.rank, reverse=True)[:12]
        task = RefinementTask(self.problem, node, others, self.seed, tell)
        threads.start(partial(self._deliver, step, partial(self._refine, name, task, self.best)))

    def _refine(self, name: str, task: RefinementTask, best: Node | None) -> Record | Remark:
        """Refine a candidate; return a remark if the result is no improvement."""
        node = task.node
        try:
            found = self.refiners[name].refine(task)
        except CwmError:
            raise
        except Exception as error:  # noqa: BLE001  # otherwise the search could never resume
            note = f"{name} of #{node.id} failed: {_first_line(error)}"
            return Remark(node=node.id, by=name, note=note)
        if found is None or found.candidate in ("", node.program):
            return Remark(node=node.id, by=name, findings=found.findings if found else "")
        move = Move(name, node.id, node.program, node.verdict)
        record = self._record_without_completion(move, node.step, found, best)
        if _is_improvement(record.node.verdict, node.verdict):
            return record
        tried = f"Tried without success: {found.findings}" if found.findings else ""
        return Remark(node=node.id, by=name, findings=tried)

    # Simplification: shorten a program that is solved.

    @property
    def unsimplified(self) -> Node | None:
        """The best program before its simplification."""
        node = self.best
        while node is not None and node.verdict.saved_bits:
            node = self.nodes[node.parent]
        return node

    @property
    def _may_simplify(self) -> bool:
        """Whether a completion may shorten the best program, which is solved.

        A search that needed no completion requests none.
        """
        if not (self.completions and self.best is not None and self.best.verdict.solved):
            return False
        asked = sum(node.action == SIMPLIFY and node.asked for node in self.nodes)
        return asked < self.simplify and SIMPLIFY in self.problem.moves

    def _simplify_best(self, budget: int) -> Iterator[Record]:
        """Shorten the solved program by refiners, then by completions within the limits.

        An error or an interrupt ends only the simplification, since the program is solved.
        """
        try:
            yield from self.drain()
            yield from self._simplify_offline()
            while self._may_simplify and self.completions < budget:
                request = self._request(self._last_step + 1)
                assert request is not None, "no refiner works on a solved program"
                reserved = self._reserve(request) if self.limit else None
                if isinstance(reserved, Refusal):
                    return
                self._register(request)
                self._send(request, reserved)
                yield from self._commit(self._next_outcome())
                yield from self._simplify_offline()
        except (CwmError, KeyboardInterrupt) as error:
            self.pending.clear()
            self.log(f"simplification stopped: {error or 'interrupted'}")

    def _simplify_offline(self) -> Iterator[Record]:
        """Apply the refiners of solved programs to the best one, until none shortens it."""
        for name, refiner in self.refiners.items():
            best = self.best
            if best is None or not (refiner.of_solved and best.verdict.solved):
                continue
            if any(remark.by == name for remark in self.remarks.get(best.id, ())):
                continue
            task = RefinementTask(self.problem, best, seed=self.seed)
            found = threads.run_in_thread(partial(self._refine, name, task, best))
            yield from self._commit(found)
            if isinstance(found, Record):
                yield from self._simplify_offline()
                return

    def _credit_simplification(self, move: Move, program: str, verdict: Verdict) -> Verdict:
        """Return the confirmed verdict of a simplification, with the saved length if it is as good.

        Wrong digits within the tolerance may grow by a factor of at most 10**0.1.
        """
        known = move.verdict
        assert known is not None
        saved = measure(move.program).bits - measure(program).bits
        is_as_good = (
            verdict.solved
            and (verdict.score, verdict.validation) >= (known.score, known.validation)
            and (known.error is None or (verdict.error or 0.0) <= known.error + 0.1)
        )
        if saved <= 0 or not is_as_good:
            return verdict
        verdict = self._confirm(program, verdict)
        return replace(verdict, saved_bits=known.saved_bits + saved) if verdict.solved else verdict

    # Contracts: change the form of the programs during the search.

    def _switch_contract(self, change: NextContract) -> Switch:
        """Judge every candidate under another contract, and confirm the best one."""
        problem = self.problem.under(change.contract)
        judged: dict[str, Verdict] = {}
        verdicts = {}
        for node in self.nodes:
            lacks_answer = node.verdict.failure and node.verdict.failure.kind == NO_ANSWER
            if not lacks_answer and node.program not in judged:
                judged[node.program] = problem.judge(node.program)
            verdicts[node.id] = node.verdict if lacks_answer else judged[node.program]
        for number in sorted(verdicts, key=lambda id: verdicts[id].rank, reverse=True):
            if verdicts[number].is_bug:
                break
            verdicts[number] = problem.confirm(self.nodes[number].program, verdicts[number])
            if not verdicts[number].is_bug:
                break
        return Switch(contract=change.contract, reason=change.reason, verdicts=verdicts)

    def _learn_switch(self, event: Switch) -> None:
        """Continue under another contract: learn every node again with its new verdict.

        Remarks and refinements are dropped, since they refer to the old contract. The search may
        begin again with a start, and a backend that gave up may have better completions now.
        """
        nodes, self.nodes, self.best = self.nodes, [], None
        self.problem = self.problem.under(event.contract)
        self.strategy = replace(self.strategy)  # type: ignore[type-var]  # each is a dataclass
        self.remarks, self._queues, self._refined = {}, {}, set()
        self.given_up, self._awaits_start = False, True
        self.switches += 1
        for node in nodes:
            self._learn_candidate(event.judged(node))
        self._improved_at, self._first_comparable = self.completions, len(self.nodes)

    # Recorded searches, and requests that an interruption lost.

    def _replay(self, turns: Sequence[Turn], budget: int) -> Iterator[Record]:
        """Yield the records of a recorded search, in the recorded order.

        Recorded completions are requested again; starts, refinements and switches are copied.
        """
        answers = sum(turn.given is None for turn in turns)
        try:
            while self._events < len(turns):
                if self._may_simplify or not (self.solved or self.given_up):
                    self._prepare_turns()
                turn = turns[self._events]
                if turn.given is not None:
                    yield from self._commit(
                        threads.run_in_thread(partial(self._rejudge, turn.given))
                    )
                    continue
                request = self._prepared.pop(turn.step, None)
                if request is None or self.completions >= budget:
                    return
                self._send(request, None)
                for record in self._commit(self._next_outcome()):
                    ends = self.completions == answers < budget and not self.solved
                    note = f"the recording ends after {answers} completions"
                    yield record._replace(note=note) if ends else record
        finally:
            self.pending.clear()

    def _rejudge(self, event: Node | Remark | Switch) -> Record | Remark | Switch:
        """Judge again a recorded event that cost no completion."""
        if isinstance(event, Remark):
            return event
        if isinstance(event, Switch):
            return self._switch_contract(NextContract(event.contract, event.reason))
        found = Refinement(event.program, event.verdict.findings)
        best = None if event.verdict.confirmed else event  # confirm it only if the original was
        move = Move(event.action, event.parent)
        if event.parent != ROOT:
            parent = self.nodes[event.parent]
            move = move._replace(program=parent.program, verdict=parent.verdict)
        return self._record_without_completion(move, event.step, found, best)

    def _prepare_turns(self) -> None:
        """Register each recorded request that was sent when the search had this many events.

        The completion is requested only when its own turn to arrive comes.
        """
        while self._turns and self._turns[0].known <= self._events:
            request = self._request(self._turns.pop(0).step)
            assert request is not None, "no refiner works while a recorded search is repeated"
            self._register(request)
            self._prepared[request.step] = request

    def _repeat_lost_requests(self) -> Iterator[Record]:
        """Send the requests whose completion arrived before an interruption, but not its node."""
        prepared, self._prepared = self._prepared, {}
        for request in prepared.values():
            reserved = self._reserve(request) if self.limit else None
            if isinstance(reserved, Refusal):
                del self.pending[request.step]
            else:
                self._send(request, reserved)
        while any(request.step in self.pending for request in prepared.values()):
            yield from self._commit(self._next_outcome())


def _code(program: str) -> str:
    """Return a program without comments and docstrings, which may contain scores."""
    try:
        tree = ast.parse(program)
    except SyntaxError:
        return program
    for owner in ast.walk(tree):
        match getattr(owner, "body", None):
            case [ast.Expr(ast.Constant()), *rest]:
                owner.body = rest or [ast.Pass()]  # type: ignore[attr-defined]
    return ast.unparse(tree)


def _is_improvement(found: Verdict, known: Verdict) -> bool:
    """Whether a refinement is better, and not only on the rows that it was fitted to.

    At an equal score, wrong numbers must be closer by a factor of at least 10**0.1 (`error` is a
    decimal logarithm).
    """
    if found.is_bug or found.validation < known.validation or found.score < known.score:
        return False
    if found.score > known.score or found.saved_bits > known.saved_bits:
        return True
    return found.error is not None and known.error is not None and known.error - found.error >= 0.1


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]
