"""The loop that all strategies share: budget, best program, resuming, parallel runs, costs."""

import threading
from dataclasses import dataclass, field, replace
from random import Random
from time import sleep

import numpy as np
import pytest

from cwm_cli.errors import CwmError
from cwm_cli.sandbox.failures import Failure
from cwm_cli.search.contracts import (
    FIX,
    GENERATE,
    IMPROVE,
    ROOT,
    Backend,
    Completion,
    Message,
    Move,
    Problem,
    Request,
    Usage,
    Verdict,
)
from cwm_cli.search.loop import Search
from cwm_gif_mcts.strategy import GifMcts
from cwm_worldcoder.strategy import WorldCoder
from cwm_zero_shot.strategy import ZeroShot

LENGTH = 16
STRATEGIES = [GifMcts, WorldCoder, ZeroShot]


class Counting(Problem):
    """Line n of a right program is `xn = n`; a program with a line `raise` cannot run."""

    def messages(self, move):
        return (Message(role="user", content=f"{move.action} {move.program} {move.prefix}"),)

    def judge(self, program):
        lines = program.splitlines()
        if "raise" in lines or not program:
            return Verdict(score=0.0, failure=Failure(kind="step_error", message="it raised"))
        right = [line == f"x{number} = {number}" for number, line in enumerate(lines)]
        score, validation = sum(right) / LENGTH, sum(right[: LENGTH // 2]) / LENGTH
        failure = None if score == 1 else Failure(kind="mismatch", message="row 1")
        return Verdict(score=score, validation=validation, failure=failure)


@dataclass
class Writer(Backend):
    """Answers by the request's seed, a little better than the program it is shown."""

    cost: float = 0.0
    worst: float | None = 0.0
    skill: float = 0.1
    asked: list[Move] = field(default_factory=list)

    def complete(self, request):
        self.asked.append(request.move)
        draw = Random(request.seed)
        shown = (request.move.prefix or request.move.program).splitlines()
        lines = [self._line(draw, number, shown) for number in range(draw.choice([4, LENGTH]))]
        lines += ["raise"] * (draw.random() < 0.2)
        return Completion("\n".join(["```python", *lines, "```"]), Usage(cost=self.cost))

    def worst_cost(self, request):
        return self.worst

    def _line(self, draw, number, shown):
        known = number < len(shown) and shown[number] == f"x{number} = {number}"
        right = draw.random() < (0.95 if known else self.skill)
        return f"x{number} = {number if right else 0}"


@dataclass
class Scripted(Backend):
    """Answers the completion of each step by a script: a text, or an error to raise.

    The completions of `late` steps wait for another completion.
    """

    script: list[str | Exception]
    late: tuple[int, ...] = ()
    other: threading.Event = field(default_factory=threading.Event)

    def complete(self, request):
        if request.step in self.late:
            assert self.other.wait(timeout=10)
            sleep(0.05)
        self.other.set()
        answer = self.script[request.step]
        if isinstance(answer, Exception):
            raise answer
        return Completion(answer)

    def worst_cost(self, request):
        return None


def searching(strategy=ZeroShot, backend=None, **settings):
    return Search(Counting(), strategy(), backend or Writer(), **settings)


def program(*right):
    """Return a program whose given lines are right."""
    return "".join(f"x{n} = {n if n in right else -1}\n" for n in range(LENGTH))


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("parallel", [1, 4])
@pytest.mark.parametrize("budget", [0, 1, 7])
def test_a_search_spends_its_budget(strategy, parallel, budget):
    backend = Writer()
    search = searching(strategy, backend, parallel=parallel)
    assert len(list(search.run(budget))) == len(backend.asked) == len(search.nodes) == budget
    assert not search.solved
    assert list(search.run(budget)) == []


def test_a_larger_budget_continues_the_same_search():
    search, uncut = searching(GifMcts), searching(GifMcts)
    records = [*search.run(5), *search.run(12)]
    assert records == list(uncut.run(12))


def test_a_search_stops_at_a_program_that_is_right():
    backend = Scripted([program(1), program(*range(LENGTH)), program(2)])
    search = searching(backend=backend)
    assert len(list(search.run(3))) == 2
    assert search.solved
    assert search.best is search.nodes[1]


def test_a_tree_search_finds_the_right_program():
    search = searching(GifMcts, Writer(skill=0.6), seed=1)
    list(search.run(200))
    assert search.solved
    assert search.best.program == program(*range(LENGTH))
    assert {node.action for node in search.nodes} == set((GENERATE, IMPROVE, FIX))


def test_the_best_program_is_the_earliest_of_equals():
    search = searching(backend=Scripted([program(1), program(2, 3), program(4, 5), program(6)]))
    list(search.run(4))
    assert search.best.id == 1


def test_among_equal_scores_the_better_validated_program_is_best():
    late, early = LENGTH - 1, 0
    search = searching(backend=Scripted([program(late), program(early), program(early)]))
    list(search.run(3))
    assert search.best.id == 1


def test_a_failing_program_is_best_if_all_fail():
    search = searching(backend=Scripted(["no program", "```\nraise\n```"]))
    list(search.run(2))
    assert search.best.id == 0
    assert search.best.program == ""


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_search_cut_anywhere_resumes_to_the_same_nodes(strategy):
    uncut = searching(strategy, seed=5)
    records = list(uncut.run(30))
    assert [node.step for node in uncut.nodes] == list(range(30))
    for cut in range(31):
        resumed = searching(strategy, seed=5)
        resumed.resume(uncut.nodes[:cut])
        assert [*records[:cut], *resumed.run(30)] == records
        assert resumed.best == uncut.best


class Telling(Counting):
    """Adds the number of known programs to a repeated prompt."""

    def __init__(self):
        super().__init__()
        self.known = 0

    def update(self, node):
        self.known += 1

    def messages(self, move):
        return (Message(role="user", content=f"{move.action} {move.parent}"),)

    def varied(self, move, number):
        words = f"{move.action} {move.parent}, {number} of {self.known}"
        return (Message(role="user", content=words),)


def test_a_resumed_search_repeats_the_varied_prompts():
    def telling():
        return Search(Telling(), GifMcts(), Writer(skill=0.02), seed=3)

    uncut = telling()
    records = list(uncut.run(30))
    assert sum("of" in record.messages[0].content for record in records) > 3
    for cut in range(0, 31, 3):
        resumed = telling()
        resumed.resume(uncut.nodes[:cut])
        assert [*records[:cut], *resumed.run(30)] == records


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_another_seed_gives_another_search(strategy):
    one, other = searching(strategy, seed=1), searching(strategy, seed=2)
    assert list(one.run(5)) != list(other.run(5))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_parallel_completions_are_learned_in_order_of_arrival(strategy):
    script = [program(*range(number)) for number in range(9)]
    search = searching(strategy, Scripted(script, late=(0, 4)), parallel=3)
    records = list(search.run(9))
    steps = [record.node.step for record in records]
    assert sorted(steps) == list(range(9))
    assert steps[0] != 0
    assert [record.node.id for record in records] == list(range(9))
    assert all(record.node.program == script[record.node.step] for record in records)


@pytest.mark.parametrize("parallel", [3, 8])
def test_replaying_a_parallel_journal_gives_the_same_strategy(parallel):
    move = Move(GENERATE)
    script = [Writer().complete(Request((), seed, move, None)).text for seed in range(60)]
    search = searching(GifMcts, Scripted(script, late=(0, 7, 20)), parallel=parallel)
    list(search.run(60))
    assert [node.step for node in search.nodes] != list(range(60))
    replayed = GifMcts()
    for node in search.nodes:
        replayed.update(node)
    for draw in range(50):
        rngs = [np.random.default_rng(draw) for _ in range(2)]
        assert search.strategy.select(rngs[0], []) == replayed.select(rngs[1], [])
    for node in search.nodes:
        assert search.strategy.state(node.id) == replayed.state(node.id)


def test_a_resumed_run_with_fewer_in_flight_continues_the_step_numbers():
    wide = searching(GifMcts, Scripted([program(n) for n in range(8)], late=(6, 5, 4)), parallel=8)
    arrived = [record.node for record in wide.run(8)]
    latest_first = sorted(arrived, key=lambda node: -node.step)
    resumed = searching(GifMcts, parallel=1)
    resumed.resume(replace(node, id=n) for n, node in enumerate(latest_first))
    assert [record.node.step for record in resumed.run(10)] == [8, 9]


@pytest.mark.parametrize("parallel", [1, 3])
def test_a_repeated_prompt_says_that_it_is_repeated(parallel):
    search = searching(GifMcts, Scripted([program(1)] * 9), parallel=parallel)
    list(search.run(9))
    assert len({node.prompt for node in search.nodes}) == 9
    again = Counting().varied(Move(GENERATE), 2)
    assert [message.role for message in again] == ["user"]
    assert "asked before (times: 2)" in again[0].content


def test_searches_reuse_threads():
    threads = set()

    class Noting(Writer):
        def complete(self, request):
            threads.add(threading.current_thread())
            return super().complete(request)

    for seed in range(4):
        assert len(list(searching(backend=Noting(skill=0), seed=seed, parallel=3).run(50))) == 50
    assert 1 <= len(threads) < 20  # not 200; a thread may be wanted before it says that it is free


def test_drain_returns_the_other_completions_after_an_error():
    script = [CwmError("the key is refused: set another"), program(1), program(2)]
    journal = []
    search = searching(
        backend=Scripted(script, late=(1, 2)), parallel=3, journal=lambda r: journal.append(r)
    )
    with pytest.raises(CwmError, match="the key is refused"):
        list(search.run(3))
    assert not journal
    drained = list(search.drain())
    assert sorted(record.node.program for record in drained) == sorted(script[1:])
    assert journal == drained
    assert search.nodes == [record.node for record in drained]
    assert not search.pending


def test_drain_ignores_further_errors():
    script = [CwmError("first"), CwmError("second"), program(2)]
    search = searching(backend=Scripted(script, late=(1, 2)), parallel=3)
    with pytest.raises(CwmError, match="first"):
        list(search.run(3))
    assert [record.node.program for record in search.drain()] == [program(2)]


def test_a_record_is_in_the_journal_before_it_is_learned():
    learned_before = []
    search = searching(journal=lambda record: learned_before.append(len(search.nodes)))
    list(search.run(4))
    assert learned_before == [0, 1, 2, 3]


def test_a_record_that_cannot_be_written_is_not_learned():
    def refuse(record):
        raise OSError("no space left on device")

    search = searching(journal=refuse)
    with pytest.raises(OSError, match="no space"):
        list(search.run(4))
    assert search.nodes == []
    assert search.best is None


@pytest.mark.parametrize("parallel", [1, 3, 10])
@pytest.mark.parametrize(("cost", "completions"), [(0.25, 8), (0.0625, 29)])
def test_a_cost_limit_is_used_up_and_never_exceeded(parallel, cost, completions):
    # Every call reserves 0.25: with 2.0 to spend, calls of 0.0625 stop after 1.75 + 0.0625.
    search = searching(
        GifMcts, Writer(cost=cost, worst=0.25), parallel=parallel, max_cost=2.0, seed=4
    )
    for _ in search.run(40):
        assert search.limit.left >= 0
    assert search.out_of_money
    assert len(search.nodes) == completions
    assert search.spent == completions * cost


def test_the_cost_of_an_earlier_run_counts():
    first = searching(backend=Writer(cost=0.25, worst=0.25))
    list(first.run(6))
    resumed = searching(backend=Writer(cost=0.25, worst=0.25), max_cost=2.0)
    resumed.resume(first.nodes)
    assert len(list(resumed.run(40))) == 2


def test_a_cost_limit_needs_a_known_price():
    search = searching(backend=Writer(worst=None), max_cost=1.0)
    with pytest.raises(CwmError, match="known price"):
        list(search.run(3))
    assert search.backend.asked == []


def test_a_strategy_receives_the_moves_in_flight():
    seen = []

    class Watching(ZeroShot):
        def select(self, rng, pending):
            seen.append(len(pending))
            return super().select(rng, pending)

    list(searching(Watching, parallel=3).run(3))
    assert seen == [0, 1, 2]


def test_nodes_record_their_parent_cost_and_prompt():
    search = searching(GifMcts, Writer(cost=0.5), seed=2)
    list(search.run(12))
    for node in search.nodes:
        assert node.parent in {ROOT, *range(node.id)}
        assert node.usage.cost == 0.5
        assert len(node.prompt) == 64
    assert search.spent == 6.0


@dataclass
class Tired(Writer):
    """Reports its progress, and gives up with its second completion."""

    search: Search | None = None
    told: list[dict[int, str]] = field(default_factory=list)

    def complete(self, request):
        request.tell(f"question {request.step}")
        self.told.append(dict(self.search.doing))
        return super().complete(request)._replace(final=request.step == 1)


@pytest.fixture
def tired():
    backend = Tired()
    backend.search = Search(Counting(), ZeroShot(), backend)
    return backend


def test_a_backend_that_gives_up_also_ends_the_resumed_search(tired):
    assert len(list(tired.search.run(10))) == 2
    assert tired.search.given_up
    again = Search(Counting(), ZeroShot(), tired)
    again.resume(tired.search.nodes)
    assert list(again.run(10)) == []


class Improving(Writer):
    """Improves with the listed completions only, and gives up after three without improvement."""

    gives_up_after = 3

    def complete(self, request):
        lines = sum(step <= request.step for step in (0, 3))
        text = "\n".join(f"x{number} = {number}" for number in range(lines))
        return Completion(text)


def test_a_search_ends_after_completions_without_a_better_candidate():
    search = Search(Counting(), ZeroShot(), Improving())
    records = list(search.run(20))
    assert [record.node.final for record in records] == [False] * 6 + [True]
    assert search.given_up
    resumed = Search(Counting(), ZeroShot(), Improving())
    resumed.resume([record.node for record in records[:5]])
    assert len(list(resumed.run(20))) == 2
    search.outdate()
    search.given_up = False
    assert len(list(search.run(20))) == 4  # the first one is the best under new evidence


class Repeating(Writer):
    """Writes two programs from data alone, in turn, with another remark each time."""

    from_data = True
    gives_up_after = 9

    def complete(self, request):
        return Completion(f'"""Attempt {request.step}."""\nx = {request.step % 2}')


def test_an_offline_search_ends_when_it_writes_a_program_again():
    search = Search(Counting(), ZeroShot(), Repeating())
    assert [record.node.final for record in search.run(9)] == [False, False, True]
    search.outdate()
    search.given_up = False
    assert len(list(search.run(9))) == 3


def test_progress_of_a_backend_is_available_while_it_works(tired):
    list(tired.search.run(10))
    assert tired.told == [{0: "question 0"}, {1: "question 1"}]
    assert tired.search.doing == {}
