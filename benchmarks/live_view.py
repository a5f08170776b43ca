"""Compare the CPU time of the live view of a search with 5 % of a core, and with plain lines.

A node is added before each refresh, four times a second, on a terminal of 140 by 40 characters.
CPU time does not depend on other work on the machine.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
from rich.console import Console
from rich.live import Live
from rich.text import Text

from benchmarks.claims import Claim, Measured
from benchmarks.measuring import calls, in_turn, seconds
from benchmarks.script import main
from cwm_cli.sandbox.failures import Failure
from cwm_cli.search.contracts import (
    GENERATE,
    IMPROVE,
    ROOT,
    Backend,
    Completion,
    Move,
    Node,
    Problem,
    Request,
    Strategy,
    Usage,
    Verdict,
)
from cwm_cli.search.loop import Search
from cwm_cli.views.search import Screen
from cwm_cli.views.terminal import REFRESHES_PER_SECOND, Pane

SHAPES = {"bushy": 0.5, "deep": 0.05, "wide": 0.98}
"""Maximum age of a parent, as a share of all nodes, for each shape of tree."""

MAX_CORE_SHARE = 0.05
"""Goal of the share of a core for the live view of a search of 1,000 nodes."""

WIDTH, HEIGHT = 140, 40
BUG = Failure(kind="step_error", message="NameError: name 'observation' is not defined", line=3)


class Idle(Strategy, Problem, Backend):
    """A strategy, problem and backend for a search that does not run."""

    def select(self, rng: np.random.Generator, pending: object) -> Move:
        """Return a move to generate a program."""
        return Move(GENERATE)

    def update(self, node: Node) -> None:
        """Ignore the node."""

    def state(self, node: int) -> str:
        """Return "terminal" for each fifth node."""
        return "" if node % 5 else "terminal"

    def messages(self, move: Move) -> tuple[()]:
        """Return no messages."""
        return ()

    def judge(self, program: str) -> Verdict:
        """Return a score of 0."""
        return Verdict(score=0.0)

    def complete(self, request: Request) -> Completion:
        """Return an empty answer."""
        return Completion("")

    def worst_cost(self, request: Request) -> float | None:
        """Return a cost of 0."""
        return 0.0


def grow(count: int, spread: float) -> list[Node]:
    """Return the nodes of a tree; `spread` is the maximum age of parents, as a share of nodes."""
    rng = np.random.default_rng(0)
    return [_node(number, rng, spread) for number in range(count)]


def _node(number: int, rng: np.random.Generator, spread: float) -> Node:
    back = 1 + int(rng.random() * spread * number) if number else 1
    root = number == 0 or rng.random() < (0.9 if spread > 0.9 else 0.02)
    bug = rng.random() < 0.2
    return Node(
        id=number,
        step=number,
        parent=ROOT if root else number - back,
        action=GENERATE if root else IMPROVE,
        program="",
        verdict=Verdict(score=0.0, failure=BUG) if bug else Verdict(score=rng.random()),
        prompt="",
        usage=Usage(prompt_tokens=900, completion_tokens=300, cost=0.001),
    )


def share(quick: bool, *, size: int, shape: str) -> Measured:
    """Measure the CPU time of adding nodes and drawing, relative to 5 % of a core."""
    nodes = grow(size + 1 + (10 if quick else 40), SHAPES[shape])
    with open_terminal() as console, open_view(nodes[:size], console) as (search, screen, display):

        def learn(node: Node) -> None:
            search.learn(node)
            screen.learned(node)

        learning, drawing = [], []
        for node in nodes[size:-1]:
            learning.append(seconds(partial(learn, node), time.thread_time))
            drawing.append(seconds(display.refresh, time.thread_time))
        counts = {
            "calls to learn": calls(partial(learn, nodes[-1])),
            "calls to draw": calls(display.refresh),
            "calls to draw again": calls(display.refresh),
        }
    pairs = zip(learning, drawing, strict=True)
    ratios = [REFRESHES_PER_SECOND * sum(pair) / MAX_CORE_SHARE for pair in pairs]
    figures = {"learn ms": 1e3 * median(learning), "refresh ms": 1e3 * median(drawing)}
    return Measured(ratios, figures, counts)


def drawing(quick: bool) -> Measured:
    """Refresh plain lines and an unchanged tree alternately."""
    lines = [Text("x" * WIDTH)] * (HEIGHT - 1)
    with open_terminal() as console, open_view(grow(1_000, SHAPES["bushy"]), console) as (*_, tree):
        plain = Pane(lambda width, height: lines, console).display()
        times = in_turn(
            lambda _: plain.refresh(),
            lambda _: tree.refresh(),
            10 if quick else 40,
            clock=time.thread_time,
        )
    return Measured(times.costs, times.milliseconds("plain", "tree"))


@contextmanager
def open_terminal() -> Iterator[Console]:
    """Open a terminal that discards its output."""
    with Path("/dev/null").open("w") as file:
        yield Console(
            file=file, width=WIDTH, height=HEIGHT, force_terminal=True, color_system="256"
        )


@contextmanager
def open_view(nodes: list[Node], console: Console) -> Iterator[tuple[Search, Screen, Live]]:
    """Open the live view of a search with some nodes, without automatic refreshes."""
    idle = Idle()
    search = Search(idle, idle, idle)
    search.resume(nodes)
    screen = Screen(search, budget=2 * len(nodes), title="benchmark", console=console)
    display = screen.pane.display()
    display.auto_refresh = False
    with display:
        yield search, screen, display


CLAIMS = (
    *(
        Claim(
            f"live-view-{shape}",
            f"CPU time of the live view of a {shape} tree of 1,000 nodes against 5 % of a core",
            partial(share, size=1_000, shape=shape),
            goal=1,
            is_cost=True,
        )
        for shape in SHAPES
    ),
    Claim(
        "live-view-10000",
        "the same for a bushy tree of 10,000 nodes",
        partial(share, size=10_000, shape="bushy"),
        is_cost=True,
        in_quick=False,
    ),
    Claim(
        "live-view-plain",
        "one refresh of an unchanged tree against equally many plain lines in the same pane",
        drawing,
        is_cost=True,
    ),
)

if __name__ == "__main__":
    main(CLAIMS)
