"""What a search adds to its backend and its problem: time, calls and memory per node.

The backend has its answers ready, with programs of some 60 lines, and the
problem draws its verdicts. Time is that of the processor, in all threads.
Memory is what the search and its strategy keep beside the texts of the
programs: verdicts without parts, whose messages have 1,000 characters, hashes
of prompts, usage, statistics. A longer message counts for as much more.
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
from benchmarks.journal import Drawn, start
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
NODES, FEWER = 10_000, 1_000
PARTS = 10
MESSAGE = 1_000
ALLOWED_BYTES = 2_048
ALLOWED_PARSES = 2.5
"""How often a program could be parsed in the time of its node: 1 ms at 0.4 ms each."""

ALLOWED_GROWTH = {"gif-mcts": 1.5, "zero-shot": 1.2}
"""How many times as long the last tenth may take; `worldcoder` draws a number for every program."""

KEPT = ("nodes", "strategy", "_prompt_counts")


@dataclass(frozen=True)
class Given(Problem, Backend):
    """A backend that has its answers ready, and a problem that draws its verdicts."""

    drawn: Drawn
    answers: list[Completion]

    def messages(self, move: Move) -> tuple[Message, ...]:
        """Ask for nothing in particular."""
        return self.drawn.messages(move)

    def judge(self, program: str) -> Verdict:
        """Draw a score; the message is no other verdict's."""
        verdict = self.drawn.judge(program)
        kind = "step_error" if verdict.is_bug else "mismatch"
        return Verdict(score=verdict.score, failure=Failure(kind=kind, message=program[:MESSAGE]))

    def complete(self, request: Request) -> Completion:
        """Give the answer for this step."""
        return self.answers[request.step]

    def worst_cost(self, request: Request) -> float | None:
        """Cost nothing."""
        return 0.0


@cache
def given(nodes: int) -> Given:
    """Write answers for so many nodes."""
    drawn, move = Drawn(), Move(GENERATE)
    requests = (Request((), seed, move, drawn) for seed in range(nodes))
    return Given(drawn, [drawn.complete(request) for request in requests])


def searching(strategy: str, nodes: int) -> Search:
    """Return a search that is about to begin."""
    parts = given(nodes)
    return Search(parts, find("strategy", strategy)(), parts)


def finish(search: Search, nodes: int) -> None:
    """Search to the end."""
    for _ in search.run(nodes):
        pass


class Tenth(NamedTuple):
    """Seconds that a tenth of the nodes took, and those that parsing their programs takes."""

    ours: float
    parsing: float


@cache
def searches(strategy: str, quick: bool) -> list[list[Tenth]]:
    """Search several times, or once in a quick run."""
    nodes = FEWER if quick else NODES
    finish(searching(strategy, nodes), PARTS)  # so that all is loaded
    return [list(tenths(searching(strategy, nodes), nodes)) for _ in range(1 if quick else 3)]


def tenths(search: Search, nodes: int) -> Iterator[Tenth]:
    """Search, and parse the programs of every tenth of the nodes right after it was searched."""
    records = search.run(nodes)
    for _ in range(PARTS):
        found: list[Record] = []
        ours = seconds(partial(found.extend, islice(records, nodes // PARTS)), time.process_time)
        programs = [record.node.program for record in found]
        yield Tenth(ours, seconds(partial(list, map(ast.parse, programs)), time.process_time))


def time_per_node(strategy: str, quick: bool) -> Measured:
    """Compare the time per node with that of parsing its program, and count calls."""
    nodes = FEWER if quick else NODES
    sums = [Tenth(*map(sum, zip(*parts, strict=True))) for parts in searches(strategy, quick)]
    figures = {"ms per node": 1e3 * median(one.ours for one in sums) / nodes}
    figures["ms to parse"] = 1e3 * median(one.parsing for one in sums) / nodes
    counted = calls(lambda: finish(searching(strategy, FEWER), FEWER))
    ratios = [one.ours / one.parsing for one in sums]
    return Measured(ratios, figures, {f"calls in {FEWER} nodes": counted})


def growth(strategy: str, quick: bool) -> Measured:
    """Compare the last tenth of the nodes with the first, each by what parsing took then."""
    ends = [(parts[0], parts[-1]) for parts in searches(strategy, quick)]
    ratios = [last.ours / last.parsing * first.parsing / first.ours for first, last in ends]
    size = (FEWER if quick else NODES) // PARTS
    figures = {
        "first ms per node": 1e3 * median(first.ours for first, _ in ends) / size,
        "last ms per node": 1e3 * median(last.ours for _, last in ends) / size,
    }
    return Measured(ratios, figures)


def memory_per_node(strategy: str, quick: bool) -> Measured:
    """Compare the memory per node with what is allowed."""
    nodes = FEWER if quick else NODES
    search = searching(strategy, nodes)
    finish(search, nodes)
    taken = kept(search) // nodes
    return Measured([taken / ALLOWED_BYTES], {}, {"bytes per node": taken})


def kept(search: Search) -> int:
    """Add up the bytes of all that a search has learned, without the texts of its programs."""
    programs = {id(node.program) for node in search.nodes}
    return sum(map(sys.getsizeof, _reachable([getattr(search, name) for name in KEPT], programs)))


def _reachable(found: list[object], seen: set[int]) -> Iterator[object]:
    """Yield objects and all that they refer to, each once, without code."""
    while found:
        each = found.pop()
        if id(each) not in seen and not isinstance(each, type | FunctionType | ModuleType):
            seen.add(id(each))
            yield each
            found += gc.get_referents(each)


def with_journal(quick: bool) -> Measured:
    """Search with and without a journal in turn."""
    strategy, nodes = STRATEGIES[0], FEWER
    with tempfile.TemporaryDirectory() as folder:

        def recorded(number: int) -> None:
            search = searching(strategy, nodes)
            with start(Path(folder, str(number))) as run:
                search.journal = run.learn
                finish(search, nodes)

        def unrecorded(_: int) -> None:
            finish(searching(strategy, nodes), nodes)

        times = in_turn(unrecorded, recorded, 1 if quick else 5, clock=time.process_time)
    return Measured(times.costs, times.milliseconds("without", "with"))


def claims_of(strategy: str) -> Iterator[Claim]:
    """Yield what is claimed of the search with a strategy."""
    search = f"a search of {NODES:,} nodes ({FEWER:,} in a quick run) with `{strategy}`"
    claims: tuple[tuple[str, str, Callable[[str, bool], Measured], float | None], ...] = (
        ("time", "a node against parsing its program", time_per_node, ALLOWED_PARSES),
        ("growth", "the last tenth against the first", growth, ALLOWED_GROWTH.get(strategy)),
        ("memory", "a node, beside its program, against 2 KB", memory_per_node, 1.0),
    )
    for name, says, measure, goal in claims:
        measured = partial(measure, strategy)
        yield Claim(f"overhead-{name}-{strategy}", f"{search}: {says}", measured, goal, True)


CLAIMS = (
    *(claim for strategy in STRATEGIES for claim in claims_of(strategy)),
    Claim(
        "overhead-journal",
        f"a search of {FEWER:,} nodes with a journal against one without, in processor time",
        with_journal,
        is_cost=True,
    ),
)

if __name__ == "__main__":
    main(CLAIMS)
