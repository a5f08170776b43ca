"""Measure the time, calls and memory that a search adds per node.

The backend has prepared answers, with programs of 60 lines, and the problem has random verdicts.
Time is the processor time of all threads. Memory includes the search and its strategy, without the
texts of the programs: verdicts without parts and with messages of 1,000 characters, hashes of
prompts, usage, statistics. Longer messages need correspondingly more.
"""

import ast
import gc
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from itertools import islice
from pathlib import Path
from statistics import median
from types import FunctionType, ModuleType
from typing import NamedTuple

from benchmarks.claims import Claim, Measured
from benchmarks.journal import RandomProblem, start
from benchmarks.measuring import calls, in_turn, seconds
from benchmarks.script import main
from cwm_cli.registry import find
from cwm_cli.sandbox.failures import Failure
from cwm_cli.search.contracts import (
    GENERATE,
    Backend,
    Completion,
    Message,
    Move,
    Problem,
    Record,
    Request,
    Verdict,
)
from cwm_cli.search.loop import Search

STRATEGIES = ("gif-mcts", "worldcoder", "zero-shot")
NODES, QUICK_NODES = 10_000, 1_000
PARTS = 10
MESSAGE_CHARACTERS = 1_000
MAX_BYTES = 2_048
MAX_PARSES = 2.5
"""Goal of the time per node, in parses of its program: 1 ms at 0.4 ms per parse."""

MAX_GROWTH = {"gif-mcts": 1.5, "zero-shot": 1.2}
"""Goal of the ratio of the times of the last and the first tenth. `worldcoder` has no goal,
because it draws a random number for each program."""

SEARCH_STATE = ("nodes", "strategy", "_prompt_counts")
"""Attributes of a search whose memory counts."""


@dataclass(frozen=True)
class PreparedAnswers(Problem, Backend):
    """A backend with prepared answers, and a problem with random verdicts."""

    drawn: RandomProblem
    answers: list[Completion]

    def messages(self, move: Move) -> tuple[Message, ...]:
        """Return a short prompt."""
        return self.drawn.messages(move)

    def judge(self, program: str) -> Verdict:
        """Return a random score, with a message that no other verdict has."""
        verdict = self.drawn.judge(program)
        kind = "step_error" if verdict.is_bug else "mismatch"
        failure = Failure(kind=kind, message=program[:MESSAGE_CHARACTERS])
        return Verdict(score=verdict.score, failure=failure)

    def complete(self, request: Request) -> Completion:
        """Return the answer for a step."""
        return self.answers[request.step]

    def worst_cost(self, request: Request) -> float | None:
        """Return a cost of 0."""
        return 0.0


@cache
def prepare_answers(nodes: int) -> PreparedAnswers:
    """Write the answers for a number of nodes."""
    drawn, move = RandomProblem(), Move(GENERATE)
    requests = (Request((), seed, move, drawn) for seed in range(nodes))
    return PreparedAnswers(drawn, [drawn.complete(request) for request in requests])


def new_search(strategy: str, nodes: int) -> Search:
    """Return a search that has not started."""
    parts = prepare_answers(nodes)
    return Search(parts, find("strategy", strategy)(), parts)


def finish(search: Search, nodes: int) -> None:
    """Run a search to its end."""
    for _ in search.run(nodes):
        pass


class Tenth(NamedTuple):
    """Seconds of a tenth of the nodes, and seconds to parse their programs."""

    ours: float
    parsing: float


@cache
def searches(strategy: str, quick: bool) -> list[list[Tenth]]:
    """Run three searches, or one in a quick run; return the tenths of each."""
    nodes = QUICK_NODES if quick else NODES
    finish(new_search(strategy, nodes), PARTS)  # loads all modules
    return [list(tenths(new_search(strategy, nodes), nodes)) for _ in range(1 if quick else 3)]


def tenths(search: Search, nodes: int) -> Iterator[Tenth]:
    """Search, and parse the programs of each tenth of the nodes directly after its search."""
    records = search.run(nodes)
    for _ in range(PARTS):
        found: list[Record] = []
        ours = seconds(partial(found.extend, islice(records, nodes // PARTS)), time.process_time)
        programs = [record.node.program for record in found]
        yield Tenth(ours, seconds(partial(list, map(ast.parse, programs)), time.process_time))


def time_per_node(strategy: str, quick: bool) -> Measured:
    """Compare the time per node with the time to parse its program, and count calls."""
    nodes = QUICK_NODES if quick else NODES
    sums = [Tenth(*map(sum, zip(*parts, strict=True))) for parts in searches(strategy, quick)]
    figures = {"ms per node": 1e3 * median(one.ours for one in sums) / nodes}
    figures["ms to parse"] = 1e3 * median(one.parsing for one in sums) / nodes
    counted = calls(lambda: finish(new_search(strategy, QUICK_NODES), QUICK_NODES))
    ratios = [one.ours / one.parsing for one in sums]
    return Measured(ratios, figures, {f"calls in {QUICK_NODES} nodes": counted})


def growth(strategy: str, quick: bool) -> Measured:
    """Compare the last tenth of the nodes with the first, each relative to its parsing time."""
    ends = [(parts[0], parts[-1]) for parts in searches(strategy, quick)]
    ratios = [last.ours / last.parsing * first.parsing / first.ours for first, last in ends]
    size = (QUICK_NODES if quick else NODES) // PARTS
    figures = {
        "first ms per node": 1e3 * median(first.ours for first, _ in ends) / size,
        "last ms per node": 1e3 * median(last.ours for _, last in ends) / size,
    }
    return Measured(ratios, figures)


def memory_per_node(strategy: str, quick: bool) -> Measured:
    """Compare the memory per node with the goal."""
    nodes = QUICK_NODES if quick else NODES
    search = new_search(strategy, nodes)
    finish(search, nodes)
    size = memory_of(search) // nodes
    return Measured([size / MAX_BYTES], {}, {"bytes per node": size})


def memory_of(search: Search) -> int:
    """Return the bytes of the state of a search, without the texts of its programs."""
    programs = {id(node.program) for node in search.nodes}
    state = [getattr(search, name) for name in SEARCH_STATE]
    return sum(map(sys.getsizeof, _reachable(state, programs)))


def _reachable(found: list[object], seen: set[int]) -> Iterator[object]:
    """Yield objects and all objects that they refer to, each once, except code."""
    while found:
        each = found.pop()
        if id(each) not in seen and not isinstance(each, type | FunctionType | ModuleType):
            seen.add(id(each))
            yield each
            found += gc.get_referents(each)


def with_journal(quick: bool) -> Measured:
    """Search with and without a journal alternately."""
    strategy, nodes = STRATEGIES[0], QUICK_NODES
    with tempfile.TemporaryDirectory() as folder:

        def with_file(number: int) -> None:
            search = new_search(strategy, nodes)
            with start(Path(folder, str(number))) as run:
                search.journal = run.learn
                finish(search, nodes)

        def without_file(_: int) -> None:
            finish(new_search(strategy, nodes), nodes)

        times = in_turn(without_file, with_file, 1 if quick else 5, clock=time.process_time)
    return Measured(times.costs, times.milliseconds("without", "with"))


def claims_of(strategy: str) -> Iterator[Claim]:
    """Yield the claims about searches with a strategy."""
    search = f"a search of {NODES:,} nodes ({QUICK_NODES:,} in a quick run) with `{strategy}`"
    claims: tuple[tuple[str, str, Callable[[str, bool], Measured], float | None], ...] = (
        ("time", "a node against parsing its program", time_per_node, MAX_PARSES),
        ("growth", "the last tenth against the first", growth, MAX_GROWTH.get(strategy)),
        ("memory", "a node without its program against 2 KB", memory_per_node, 1.0),
    )
    for name, says, measure, goal in claims:
        measured = partial(measure, strategy)
        yield Claim(f"overhead-{name}-{strategy}", f"{search}: {says}", measured, goal, True)


CLAIMS = (
    *(claim for strategy in STRATEGIES for claim in claims_of(strategy)),
    Claim(
        "overhead-journal",
        f"a search of {QUICK_NODES:,} nodes with a journal against one without, in processor time",
        with_journal,
        is_cost=True,
    ),
)

if __name__ == "__main__":
    main(CLAIMS)
