"""Every strategy in the shared loop: reproducible, resumable anywhere, true to its rules."""

import threading
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from functools import partial
from random import Random

import numpy as np
import pytest

from cwm_cli.runs.nodes import SearchRecord
from cwm_cli.sandbox.failures import Failure
from cwm_cli.search.contracts import (
    FIX,
    GENERATE,
    IMPROVE,
    ROOT,
    Backend,
    Completion,
    Message,
    Problem,
    Record,
    Verdict,
)
from cwm_cli.search.loop import Search
from cwm_gif_mcts.strategy import GifMcts
from cwm_worldcoder.strategy import WorldCoder
from cwm_zero_shot.strategy import ZeroShot

BUDGET = 24
STRATEGIES = {
    "gif-mcts": GifMcts,
    "gif-mcts of prefixes": partial(GifMcts, selection="mean"),
    "gif-mcts without generate": partial(GifMcts, generate=False),
    "gif-mcts without improve": partial(GifMcts, improve=False),
    "gif-mcts without fix": partial(GifMcts, fix=False),
    "worldcoder": WorldCoder,
    "worldcoder, sequential": partial(WorldCoder, sequential=True),
    "zero-shot": ZeroShot,
}
every_strategy = pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES.keys())


class Digits(Problem):
    """Asks for lines `d = 9`; a program that says `raise` fails, others score by their digits."""

    def messages(self, move):
        lines = f"{move.action}\n{move.program}\n{move.prefix}"
        return (Message(role="user", content=lines),)

    def judge(self, program):
        if "raise" in program:
            return Verdict(score=0.0, failure=Failure(kind="step_error", message="it raised"))
        digits = [int(line.removeprefix("d = ")) for line in program.splitlines()]
        score = sum(digits) / (9 * len(digits))
        failure = None if score == 1 else Failure(kind="mismatch", message="too small")
        return Verdict(score=score, validation=digits[-1] / 9, failure=failure)


@dataclass
class Typist(Backend):
    """Keeps a shown program's lines or types others, as the seed says, and now and then raises.

    It answers immediately, or in a given `order`: each step only after the step
    before it is in the journal.
    """

    order: tuple[int, ...] = ()
    written: dict[int, threading.Event] = field(
        default_factory=lambda: defaultdict(threading.Event)
    )

    def complete(self, request):
        if before := self.order.index(request.step) if self.order else 0:
            assert self.written[self.order[before - 1]].wait(timeout=20)
        draw = Random(request.seed)
        shown = (request.move.prefix or request.move.program).splitlines()
        lines = [line for line in shown if line != "raise"]
        while len(lines) < 8:
            lines.append(f"d = {draw.randrange(9)}")
        lines[draw.randrange(len(lines))] = f"d = {draw.randrange(9)}"
        lines += ["raise"] * (draw.random() < 0.3)
        return Completion("\n".join(["```python", *lines, "```"]))

    def worst_cost(self, request):
        return 0.0

    def journal(self, record):
        self.written[record.node.step].set()


def out_of_order(budget):
    """Answer in the order 1, 0, 2, 4, 3, 5, ...: every second of three answers comes first."""
    triples = ((n + 1, n, n + 2) for n in range(0, budget, 3))
    return tuple(step for triple in triples for step in triple)


def search_with(strategy, *, seed=7, parallel=1, order=()):
    backend = Typist(order)
    return Search(
        Digits(), strategy(), backend, seed=seed, parallel=parallel, journal=backend.journal
    )


def lines_of(records):
    """Return the journal lines of records."""
    return [
        SearchRecord(node=record.node, text=record.text).model_dump_json() for record in records
    ]


def standing(search):
    """Return the next moves of a strategy for 10 generators, and the status of each node."""
    rngs = map(np.random.default_rng, range(10))
    moves = [search.strategy.select(rng, []) for rng in rngs]
    return moves, [search.strategy.state(node.id) for node in search.nodes]


def continued(strategy, nodes, **settings):
    search = search_with(strategy, **settings)
    search.resume(nodes)
    return search


@every_strategy
@pytest.mark.parametrize("seed", [0, 7])
def test_sequential_searches_are_identical(strategy, seed):
    once, again = (list(search_with(strategy, seed=seed).run(BUDGET)) for _ in range(2))
    assert lines_of(once) == lines_of(again)
    assert [record.node.step for record in once] == list(range(BUDGET))


@every_strategy
def test_a_journal_cut_anywhere_continues_to_the_same_tree(strategy):
    uncut = search_with(strategy)
    stages, records = [standing(uncut)], []
    for record in uncut.run(BUDGET):
        records.append(record)
        stages.append(standing(uncut))
    for cut in range(BUDGET + 1):
        resumed = continued(strategy, uncut.nodes[:cut])
        assert standing(resumed) == stages[cut]
        assert lines_of(records[:cut]) + lines_of(resumed.run(BUDGET)) == lines_of(records)


@every_strategy
def test_a_journal_of_three_in_flight_cut_anywhere_gives_the_same_tree(strategy):
    uncut = search_with(strategy, parallel=3, order=out_of_order(BUDGET))
    stages = [standing(uncut)] + [standing(uncut) for _ in uncut.run(BUDGET)]
    assert [node.step for node in uncut.nodes] == list(out_of_order(BUDGET))
    for cut in range(BUDGET + 1):
        resumed = continued(strategy, uncut.nodes[:cut])
        assert standing(resumed) == stages[cut]


@every_strategy
def test_the_same_order_of_arrival_gives_the_same_search(strategy):
    order = out_of_order(BUDGET)
    searches = [search_with(strategy, parallel=3, order=order) for _ in range(2)]
    once, again = (lines_of(search.run(BUDGET)) for search in searches)
    assert once == again


@every_strategy
@pytest.mark.parametrize("cut", [1, 5, 17])
def test_three_in_flight_continue_a_journal_within_its_budget(strategy, cut):
    uncut = search_with(strategy)
    list(uncut.run(cut))
    resumed = continued(strategy, uncut.nodes, parallel=3)
    added = list(resumed.run(BUDGET))
    assert resumed.nodes == uncut.nodes + [record.node for record in added]
    assert [node.id for node in resumed.nodes] == list(range(BUDGET))
    assert sorted(node.step for node in resumed.nodes) == list(range(BUDGET))
    assert all(node.parent in range(ROOT, node.id) for node in resumed.nodes)


@every_strategy
@pytest.mark.parametrize("parallel", [1, 3])
def test_a_program_is_fixed_if_it_raised_and_only_then(strategy, parallel):
    search = search_with(strategy, parallel=parallel)
    list(search.run(BUDGET))
    for node in search.nodes:
        if node.parent == ROOT:
            assert node.action == GENERATE
        else:
            parent_raised = search.nodes[node.parent].verdict.is_bug
            assert (node.action == FIX) == parent_raised


def test_all_strategies_begin_with_the_same_request():
    first = [next(search_with(strategy).run(1)) for strategy in STRATEGIES.values()]
    assert isinstance(first[0], Record)
    assert all(record == first[0] for record in first)


def actions(strategy, *, parallel=1):
    """Count the actions of a search: those at the root apart."""
    search = search_with(strategy, parallel=parallel)
    list(search.run(60))
    return Counter((node.action, node.parent == ROOT) for node in search.nodes)


def test_ablations_leave_out_their_move():
    whole = {(GENERATE, True), (GENERATE, False), (IMPROVE, False), (FIX, False)}
    assert actions(partial(GifMcts, selection="mean", prior_generate=0.5)).keys() == whole
    for option, left_out in (("generate", GENERATE), ("improve", IMPROVE), ("fix", FIX)):
        options = {option: False, "selection": "mean", "prior_generate": 0.5}
        assert actions(partial(GifMcts, **options)).keys() == whole - {(left_out, False)}


@pytest.mark.parametrize("parallel", [1, 3])
@pytest.mark.parametrize("sequential", [False, True])
def test_worldcoder_writes_one_seed_program_per_completion_in_flight(sequential, parallel):
    found = actions(partial(WorldCoder, sequential=sequential), parallel=parallel)
    assert found[GENERATE, True] == parallel
    assert found[IMPROVE, False] + found[FIX, False] == 60 - parallel


def test_sequential_worldcoder_is_one_line_of_refinements():
    search = search_with(partial(WorldCoder, sequential=True))
    assert [record.node.parent for record in search.run(BUDGET)] == list(range(ROOT, BUDGET - 1))


def test_worldcoder_refines_good_programs_again_and_again():
    search = search_with(WorldCoder)
    list(search.run(60))
    picks = Counter(node.parent for node in search.nodes if node.parent != ROOT)
    assert len(picks) > 5
    refined = np.mean([search.nodes[parent].verdict.score for parent in picks.elements()])
    assert refined > np.mean([node.verdict.score for node in search.nodes])


def test_zero_shot_repeats_one_prompt():
    search = search_with(ZeroShot, parallel=3)
    list(search.run(BUDGET))
    assert {(node.action, node.parent) for node in search.nodes} == {(GENERATE, ROOT)}
    assert len({node.prompt for node in search.nodes}) == 1
    assert len({node.program for node in search.nodes}) == BUDGET
