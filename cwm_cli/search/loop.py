"""Search for a program: the loop that every strategy and every problem share."""

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
from cwm_cli.search.spending import CostLimit, Refusal, Reservation, pauses

NEARLY_AS_GOOD = 0.05
"""A candidate this much worse than the best, of what lies above the floor, is refined as well: one
term may be all that it lacks."""

MOST_OTHERS = 12
"""Other candidates that a refiner is shown: it may carry a part over from each."""

MOST_REFINING = os.cpu_count() or 1
"""Refiners at work at a time: they compute, and do not wait as completions do."""

LEAST_EXPLAINED = 0.5
"""A start that explains fewer of the rows is not improved first: it misleads more than it helps."""

MOST_IN_A_ROW = 6
"""Refinements of one candidate at most: each makes another one worth trying again."""

LEAST_NEARER = 0.1
"""Decimal logarithm by which wrong numbers have to come nearer where the score stays as it is."""


class Pending(NamedTuple):
    """What is in flight since so much was known, and which candidate was best then.

    What ranks above that one is confirmed, so that it does not depend on how fast others are.
    What was not `asked` of a backend is a start or a refiner at work.
    """

    step: int
    move: Move
    known: int = 0
    best: Node | None = None
    asked: bool = True
    model: str = ""


class Refining(NamedTuple):
    """A node that refiners are still to look at, by name, and how often they bettered it so far."""

    node: int
    left: tuple[str, ...]
    bettered: int = 0


@dataclass
class Search:
    """One search, resumable at any node because strategies only learn through `update`.

    Each step draws from a generator of its own, seeded by (seed, step), so
    there is no generator state to save. With `parallel` completions in flight
    the nodes are learned in the order in which they arrive, which is what the
    journal records. `doing` holds what is told of those in flight.
    A backend that repeats a recorded search is asked in the turns of that one,
    whatever `parallel` is, so that the same tree grows.

    A search may begin with a candidate that `start` comes to, and `refiners`
    better, one after the other, what was answered: the nodes that they make cost
    no completion. One that was asked for is written down before it is refined,
    and each refinement before the next, so that little is lost with a process.

    All completions together cost `max_cost` US dollars at most, or share the `limit` of others;
    None is no limit.
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
    nodes: list[Node] = field(default_factory=list, init=False)
    remarks: dict[int, list[Remark]] = field(default_factory=dict, init=False)
    pending: dict[int, Pending] = field(default_factory=dict, init=False)
    doing: dict[int, str] = field(default_factory=dict, init=False)
    best: Node | None = field(default=None, init=False)
    completions: int = field(default=0, init=False)
    spent: float = field(default=0.0, init=False)
    out_of_money: bool = field(default=False, init=False)
    given_up: bool = field(default=False, init=False)
    switches: int = field(default=0, init=False)
    _awaits_start: bool = field(default=True, init=False)
    _former: Node | None = field(default=None, init=False)
    _outdated: int = field(default=0, init=False)
    _known: int = field(default=0, init=False)
    _last_step: int = field(default=-1, init=False)
    _asked: Counter[str] = field(default_factory=Counter, init=False)
    _moves: Counter[tuple[str, int]] = field(default_factory=Counter, init=False)
    _refining: dict[int, Refining] = field(default_factory=dict, init=False)
    _refined: set[str] = field(default_factory=set, init=False)
    _turns: list[Turn] = field(default_factory=list, init=False)
    _prepared: dict[int, Request] = field(default_factory=dict, init=False)
    _arrivals: "queue.SimpleQueue[tuple[int, Record | Remark | BaseException]]" = field(
        default_factory=queue.SimpleQueue, init=False
    )

    @property
    def solved(self) -> bool:
        """Whether some program is right on the whole train set, or as good as any will be."""
        best = self.best
        return best is not None and (best.verdict.solved or self.problem.settled)

    def __post_init__(self) -> None:
        """Refuse a strategy that makes moves for which the problem has no words."""
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

    def charge(self, cost: float) -> None:
        """Count what was spent on something else than completions, in US dollars."""
        self.spent += cost
        if self.limit:
            self.limit.charge(cost)

    def recall(self, cost: float) -> None:
        """Count what an earlier run spent, in US dollars."""
        self.spent += cost
        if self.limit:
            self.limit.recall(cost)

    def learn(self, event: Node | Remark | Switch) -> None:
        """Learn an event that was just found, or one from the journal of an earlier run."""
        self._known += 1
        if isinstance(event, Switch):
            self._learn_switch(event)
            return
        self._awaits_start = False
        if isinstance(event, Remark):
            self.remarks.setdefault(event.node, []).append(event)
            self._tried(event)
            return
        self.completions += event.asked
        self._last_step = max(self._last_step, event.step)
        self.spent += event.usage.cost or 0.0
        self.given_up = self.given_up or event.final
        self._learn_candidate(event)
        self.backend.update(event)
        if self.refiners:
            self._to_refine(event)

    def _learn_candidate(self, node: Node) -> None:
        """Learn a node whose completion is counted."""
        self.nodes.append(node)
        if self.best is None or node.verdict.rank > self.best.verdict.rank:
            self.best = node
        self.problem.update(node)
        self.strategy.update(node)

    def _learn_switch(self, event: Switch) -> None:
        """Continue under another contract: learn every node again with its new verdict.

        Remarks and refinements were about the old contract. The search may begin again with a
        candidate from `start`, and a backend that had given up may have more to offer.
        """
        nodes, self.nodes, self.best = self.nodes, [], None
        self.problem = self.problem.under(event.contract)
        self.strategy = replace(self.strategy)  # type: ignore[type-var]  # each is a dataclass
        self.remarks, self._refining, self._refined = {}, {}, set()
        self.given_up, self._awaits_start = False, True
        self.switches += 1
        for node in nodes:
            self._learn_candidate(event.judged(node))

    def _judged_again(self, change: NextContract) -> Switch:
        """Judge every candidate under another contract; the best one is confirmed."""
        problem = self.problem.under(change.contract)
        judged: dict[str, Verdict] = {}
        verdicts = {}
        for node in self.nodes:
            lacks_answer = node.verdict.failure and node.verdict.failure.kind == NO_ANSWER
            if not lacks_answer and node.program not in judged:
                judged[node.program] = problem.judge(node.program)
            verdicts[node.id] = node.verdict if lacks_answer else judged[node.program]
        order = sorted(verdicts, key=lambda number: verdicts[number].rank, reverse=True)
        for number in order:
            program, verdict = self.nodes[number].program, verdicts[number]
            if verdict.is_bug:
                break
            verdicts[number] = problem.confirm(program, verdict)
            if not verdicts[number].is_bug:
                break
        return Switch(contract=change.contract, reason=change.reason, verdicts=verdicts)

    def resume(
        self, events: Iterable[Node | Remark | Switch], answered: Sequence[Turn] = ()
    ) -> None:
        """Learn what an earlier run did; a best node that was not confirmed is, or is not best.

        Journals of earlier versions do not say of any that it was confirmed. The turns of
        `answered` requests without a node are repeated, and `run` sends these requests first.
        """
        before, events = self.spent, list(events)
        done = {event.step for event in events if isinstance(event, Node) and event.asked}
        lost = [turn for turn in answered if turn.step not in done]
        if lost:
            self._turns = sorted([*lost, *_asked_since(events, lost[0].known)])
        for event in events:
            self._prepare()
            if isinstance(event, Node) and event.asked:
                if self._prepared.pop(event.step, None):
                    del self.pending[event.step]
                else:
                    self._asked[event.prompt] += 1
                    self._moves[event.action, event.parent] += 1
            self.learn(event)
        if lost:
            self._prepare()
        if self.limit:
            self.limit.recall(self.spent - before)
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

        The budget is one of completions. A record is in the journal before the search learns
        it, and learned before it is yielded.
        """
        if turns := self.backend.recorded():
            yield from self._repeat(turns, budget)
            return
        yield from self._answered_before()
        while not self.solved:
            change = self.problem.next_contract if self.completions < budget else None
            if change is None and self.given_up:
                return
            if change is None:
                self._dispatch(budget)
            elif not self.pending:
                yield from self._take(threads.waited(partial(self._judged_again, change)))
                continue
            if not self.pending:
                return
            yield from self._take(self._arrival())

    def _answered_before(self) -> Iterator[Record]:
        """Yield the records of answers that arrived before an interruption."""
        prepared, self._prepared = self._prepared, {}
        for request in prepared.values():
            kept = self._reserve(request) if self.limit else None
            if isinstance(kept, Refusal):
                del self.pending[request.step]
                continue
            work = partial(self._answered, request, kept)
            threads.start(partial(self._deliver, request.step, work))
        while any(request.step in self.pending for request in prepared.values()):
            yield from self._take(self._arrival())

    def drain(self) -> Iterator[Record]:
        """Yield what was in flight when `run` ended, by an error or with a right program.

        What is not paid for is left.
        """
        self.pending = {step: flight for step, flight in self.pending.items() if flight.asked}
        while self.pending:
            try:
                arrived = self._arrival()
            except CwmError:
                continue
            yield from self._take(arrived)

    def _take(self, arrived: Record | Remark | Switch) -> Iterator[Record]:
        """Write an event to the journal, then learn it; yield it if it is a record."""
        if isinstance(arrived, Remark | Switch):
            self.journal(arrived)
            self.learn(arrived)
            return
        node = replace(arrived.node, id=len(self.nodes))
        record = arrived._replace(node=replace(node, disclosed=self.problem.discloses(node)))
        self.journal(record)
        self.learn(record.node)
        yield record

    def _dispatch(self, budget: int) -> None:
        """Keep `parallel` completions in flight, within budget and cost; refiners work beside.

        Nothing is asked before the start is known, with all that refiners make of it; where a
        single completion is to be in flight, nor before refiners are done with the one before.
        """
        if self.start and self._awaits_start and ROOT not in self.pending:
            self.pending[ROOT] = Pending(ROOT, Move(START), asked=False)
            threads.start(partial(self._deliver, ROOT, self._begun))
        most = min(self.parallel, MOST_REFINING)
        for step in [step for step in self._refining if step not in self.pending]:
            if len(self.pending) - self._in_flight < most:
                self._refine(step)
        waits = self.parallel == 1 and len(self.pending) > self._in_flight
        if ROOT in self.pending or waits:
            return
        while self._in_flight < self.parallel and self._asked_for < budget:
            request = self._request(self._next_step())
            if request is None:
                return
            kept = self._reserve(request) if self.limit else None
            if isinstance(kept, Refusal):
                self.out_of_money = kept is Refusal.NEVER
                return
            self._register(request)
            work = partial(self._answered, request, kept)
            threads.start(partial(self._deliver, request.step, work))

    def outdate(self) -> None:
        """Take note that the problem knows more: verdicts so far are of what it knew before."""
        self._former, self.best = self.best or self._former, None
        self._outdated = len(self.nodes)

    def renew(self) -> Iterator[Record]:
        """Judge again what verdicts are outdated of: what the strategy holds, and the former best.

        Nothing may be in flight. Each becomes a node with the action `EVIDENCE` that nobody was
        asked for, in the order of their ids; those that a run has already are not made again.
        """
        former = None if self.strategy.forgets else self._former
        held = {*self.strategy.held(), *([former.id] if former else [])}
        known = {node.parent for node in self.nodes[self._outdated :] if node.action == EVIDENCE}
        for place in sorted(each for each in held - known if each < self._outdated):
            node = self.nodes[place]
            move = Move(EVIDENCE, place, node.program, node.verdict)
            work = partial(self._unasked, move, node.step, Refinement(node.program), self.best)
            yield from self._take(threads.waited(work))

    @property
    def _asked_for(self) -> int:
        """How many completions there are, with those in flight."""
        return self.completions + self._in_flight

    @property
    def _in_flight(self) -> int:
        """How many completions are in flight."""
        return len([flight for flight in self.pending.values() if flight.asked])

    def _request(self, step: int) -> Request | None:
        """Choose a move and word it; None while a refiner works on the program to improve."""
        rng = np.random.default_rng([self.seed, step])
        asked = [flight for flight in self.pending.values() if flight.asked]
        awaited, answering = [each.move for each in asked], [each.model for each in asked]
        move = self._remarked(self.strategy.select(rng, awaited))
        if self._starts_over and (best := self.best):
            start = self._remarked(Move(IMPROVE, best.id, best.program, best.verdict))
            move = Move(GENERATE, verdict=start.verdict)
        at_work = {flight.move.parent for flight in self.pending.values() if not flight.asked}
        if move.action == IMPROVE and move.parent in at_work:
            return None
        seed = int(rng.integers(2**31))
        request = Request(self.problem.messages(move), seed, move, self.problem, step)
        number, known = max(0, self._moves[move.action, move.parent] - 1), set[str]()
        while not self.strategy.repeats and self._asked[request.key] and request.key not in known:
            known.add(request.key)
            number += 1
            request = request._replace(messages=self.problem.varied(move, number))
        return request._replace(
            occurrence=self._asked[request.key],
            tell=partial(self.doing.__setitem__, step),
            shorter=partial(self.problem.shorter, move),
            weighed=self.strategy.weighs_proposals,
            model=self.backend.assign(rng, answering),
            log=self.log,
            known=self._known,
        )

    @property
    def _starts_over(self) -> bool:
        """Whether nothing was asked yet and the start explains too little to be improved."""
        if self._asked_for or self.best is None or GENERATE not in self.strategy.moves:
            return False
        return self.best.verdict.explained < LEAST_EXPLAINED

    def _remarked(self, move: Move) -> Move:
        """Add to the verdict of a move what refiners found since."""
        if move.verdict is None or move.parent not in self.remarks:
            return move
        told = [move.verdict.findings, *(each.findings for each in self.remarks[move.parent])]
        findings = "\n\n".join(filter(None, told))
        return move._replace(verdict=replace(move.verdict, findings=findings))

    def _register(self, request: Request) -> None:
        """Count a request among those in flight."""
        step, move = request.step, request.move
        self._asked[request.key] += 1
        self._moves[move.action, move.parent] += 1
        self.pending[step] = Pending(step, move, self._known, self.best, model=request.model)

    def _repeat(self, turns: Sequence[Turn], budget: int) -> Iterator[Record]:
        """Yield the records of a recorded search, each asked, or taken as it is, when it was."""
        answers = sum(turn.given is None for turn in turns)
        try:
            while self._known < len(turns):
                if not (self.solved or self.given_up):
                    self._prepare()
                turn = turns[self._known]
                if turn.given is not None:
                    yield from self._take(threads.waited(partial(self._given, turn.given)))
                    continue
                request = self._prepared.pop(turn.step, None)
                if request is None or self.completions >= budget:
                    return
                threads.start(partial(self._deliver, turn.step, partial(self._answered, request)))
                for record in self._take(self._arrival()):
                    ends = self.completions == answers < budget and not self.solved
                    note = f"the recording ends after {answers} completions"
                    yield record._replace(note=note) if ends else record
        finally:
            self.pending.clear()

    def _prepare(self) -> None:
        """Choose what a recorded search had asked by now; no answer is fetched before its turn."""
        while self._turns and self._turns[0].known <= self._known:
            request = self._request(self._turns.pop(0).step)
            assert request is not None, "no refiner works while a recorded search is repeated"
            self._register(request)
            self._prepared[request.step] = request

    def _next_step(self) -> int:
        """Return the number of the next completion."""
        return max(self._last_step, *self.pending, -1) + 1

    def _reserve(self, request: Request) -> Reservation | Refusal:
        """Keep back what answering may cost.

        While something is in flight it is better to go on with that than to wait for what others
        have kept back; else it is asked for until it is granted or will never be.
        """
        assert self.limit is not None
        worst = self.backend.worst_cost(request)
        if worst is None:
            raise CwmError(
                "--max-cost needs a model with a known price: leave it out for this model"
            )
        waits = pauses()
        while True:
            kept = self.limit.reserve(worst, self.parallel - self._in_flight)
            if kept is not Refusal.WAIT or self.pending:
                return kept
            time.sleep(next(waits))

    def _deliver(self, step: int, work: Callable[[], Record | Remark]) -> None:
        """Do what is in flight; the outcome, error or not, is put where `run` waits.

        This happens in a thread of its own, also for a single completion, so
        that an interrupt ends the wait for an answer that does not come.
        """
        try:
            self._arrivals.put((step, work()))
        except BaseException as error:  # noqa: BLE001  # raised again by `run`, in its thread
            self._arrivals.put((step, error))

    def _completed(self, request: Request, kept: Reservation | None) -> Completion:
        """Ask, paid by what was kept back, if anything was."""
        if kept is None or self.limit is None:
            return self.backend.complete(request)
        request = request._replace(allowance=kept.amount)
        return self.limit.settled(kept, partial(self.backend.complete, request))

    def _answered(self, request: Request, kept: Reservation | None = None) -> Record:
        """Ask, read and judge: make a node of a completion; its id is given on arrival."""
        completion, flight = self._completed(request, kept), self.pending[request.step]
        text = completion.text.encode("utf-8", "replace").decode()  # no lone surrogates on disk
        program = self.problem.read(text, request.move)
        verdict, best = self._verdict(program, completion.lacking), flight.best
        if best is None or verdict.rank > best.verdict.rank:
            verdict = self._confirmed(program, verdict)
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
        node = self._weighed(node, request, completion)
        return Record(node, text, completion.note, request.messages)

    def _weighed(self, node: Node, request: Request, completion: Completion) -> Node:
        """Add how likely the candidate was, and the way back, where the strategy needs to know.

        What stood around the candidate in its answer counts only if nothing else can be known: on
        the way back nothing stands there.
        """
        if not self.strategy.weighs_proposals or node.verdict.is_bug:
            return node
        forward, backward = completion.log_probability, None
        bare = completion.text.strip() == node.program.strip()
        if forward is None or (self.backend.can_score and not bare):
            forward = self._log_probability(request, node.program)
        if self.strategy.corrects and request.move.parent != ROOT:
            move = request.move._replace(parent=node.id, program=node.program, verdict=node.verdict)
            back = request._replace(messages=self.problem.messages(move), move=move)
            backward = self._log_probability(back, request.move.program)
        return replace(node, forward=forward, backward=backward)

    def _log_probability(self, request: Request, text: str) -> float:
        """Return the logarithm of the chance that a request is answered so."""
        (tokens,) = self.backend.score([ScoreRequest(request.messages, text, request)])
        return float(sum(tokens))

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

    def _begun(self) -> Record | Remark:
        """Make a node of what the search begins with."""
        assert self.start is not None
        try:
            found = self.start(self.problem, partial(self.doing.__setitem__, ROOT))
        except Exception as error:  # noqa: BLE001  # a search can do without, and begins anyway
            return Remark(node=ROOT, by=START, note=f"no starting program: {_in_a_line(error)}")
        if found is None or not found.candidate:
            return Remark(node=ROOT, by=START, note=found.findings if found else "")
        return self._unasked(Move(START), ROOT, found, None)

    def _unasked(self, move: Move, step: int, found: Refinement, best: Node | None) -> Record:
        """Judge a candidate that no completion was asked for."""
        verdict = self.problem.judge(found.candidate)
        if best is None or verdict.rank > best.verdict.rank:
            verdict = self._confirmed(found.candidate, verdict)
        verdict = replace(verdict, findings=found.findings)
        node = Node(ROOT, step, move.parent, move.action, found.candidate, verdict, "", Usage())
        return Record(replace(node, asked=False), "")

    def _given(self, event: Node | Remark | Switch) -> Record | Remark | Switch:
        """Judge again what a recorded search found without asking."""
        if isinstance(event, Remark):
            return event
        if isinstance(event, Switch):
            return self._judged_again(NextContract(event.contract, event.reason))
        found = Refinement(event.program, event.verdict.findings)
        best = None if event.verdict.confirmed else event  # confirmed only if it was then
        return self._unasked(Move(event.action, event.parent), event.step, found, best)

    def _to_refine(self, node: Node) -> None:
        """Note which refiners are to look at a new node: all but the one that made it.

        Their order goes round, since what one of them betters another may better again.
        """
        before = self._refining.pop(node.step, None)
        bettered = before.bettered + 1 if before and not node.asked else 0
        if not self._worth_refining(node) or bettered >= MOST_IN_A_ROW:
            return
        self._refined.add(node.program)
        names = [*self.refiners]
        if node.action in names:
            place = names.index(node.action)
            names = names[place + 1 :] + names[:place]
        if names:
            self._refining[node.step] = Refining(node.id, tuple(names), bettered)

    def _worth_refining(self, node: Node) -> bool:
        """Whether a candidate runs, is not right yet, and is new and good enough to be refined.

        That is one which is nearly as good as the best, or was written from scratch, or begins to
        run: a draft with the right terms and wrong constants scores no better than the floor.
        """
        verdict = node.verdict
        if verdict.is_bug or verdict.solved or node.program in self._refined:
            return False
        if node.parent == ROOT or self.nodes[node.parent].verdict.is_bug or not node.asked:
            return True
        best = self.best or node
        return verdict.normalised >= best.verdict.normalised - NEARLY_AS_GOOD

    def _tried(self, remark: Remark) -> None:
        """Cross a refiner off the list of a node."""
        step = self.nodes[remark.node].step if remark.node != ROOT else ROOT
        work = self._refining.get(step)
        if work is None or work.node != remark.node:
            return
        left = tuple(name for name in work.left if name != remark.by)
        if left:
            self._refining[step] = work._replace(left=left)
        else:
            del self._refining[step]

    def _refine(self, step: int) -> None:
        """Let the next refiner look at a node."""
        work = self._refining[step]
        name, node = work.left[0], self.nodes[work.node]
        move = Move(name, node.id, node.program, node.verdict)
        self.pending[step] = Pending(step, move, self._known, self.best, asked=False)
        self.doing[step] = f"{name} of #{node.id}"

        def tell(words: str) -> None:
            self.doing[step] = f"{name} of #{node.id}: {words}"

        task = RefinementTask(self.problem, node, self._others(node), self.seed, tell)
        threads.start(partial(self._deliver, step, partial(self._bettered, name, task, self.best)))

    def _others(self, node: Node) -> list[Node]:
        """Return the best other candidates that run, the best first, each once."""
        running = {n.program: n for n in reversed(self.nodes) if not n.verdict.is_bug}
        running.pop(node.program, None)
        ranked = sorted(running.values(), key=lambda node: node.verdict.rank, reverse=True)
        return ranked[:MOST_OTHERS]

    def _bettered(self, name: str, task: RefinementTask, best: Node | None) -> Record | Remark:
        """Have a candidate refined; what does not better it is a remark."""
        node = task.node
        try:
            found = self.refiners[name].refine(task)
        except CwmError:
            raise
        except Exception as error:  # noqa: BLE001  # else a search could never go on from here
            note = f"{name} of #{node.id} failed: {_in_a_line(error)}"
            return Remark(node=node.id, by=name, note=note)
        if found is None or found.candidate in ("", node.program):
            return Remark(node=node.id, by=name, findings=found.findings if found else "")
        record = self._unasked(Move(name, node.id), node.step, found, best)
        if _betters(record.node.verdict, node.verdict):
            return record
        tried = f"Tried without success: {found.findings}" if found.findings else ""
        return Remark(node=node.id, by=name, findings=tried)

    def _arrival(self) -> Record | Remark:
        """Wait for the next outcome of what is in flight."""
        step, outcome = self._arrivals.get()
        while step not in self.pending:  # one that was left
            step, outcome = self._arrivals.get()
        del self.pending[step]
        self.doing.pop(step, None)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome


def _asked_since(events: Sequence[Node | Remark | Switch], known: int) -> list[Turn]:
    """Return the turns of the nodes that follow the first `known` events."""
    nodes = [event for event in events[known:] if isinstance(event, Node) and event.asked]
    return [Turn(node.step, node.known) for node in nodes if node.known is not None]


def _betters(found: Verdict, known: Verdict) -> bool:
    """Whether a refinement is an improvement, and not only on the rows that it was fitted to."""
    if found.is_bug or found.validation < known.validation or found.score < known.score:
        return False
    if found.score > known.score:
        return True
    if found.error is None or known.error is None:
        return False
    return known.error - found.error >= LEAST_NEARER


def _in_a_line(error: Exception) -> str:
    """Name an error in few words."""
    return f"{type(error).__name__}: {error}".splitlines()[0]
