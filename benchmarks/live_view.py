"""What drawing a search takes: time per refresh and share of one core, by size and shape of tree.

python benchmarks/live_view.py
"""

import time
from pathlib import Path
from statistics import median

import numpy as np
from rich.console import Console

from cwm_cli.llm import ROOT, Action, Completion, Move, Request, Usage
from cwm_cli.programs import Failure, Verdict
from cwm_cli.search import Node, Search
from cwm_cli.views.live import Screen
from cwm_cli.views.pane import REFRESHES_PER_SECOND

SIZES = (100, 1_000, 10_000)
SHAPES = {"bushy": 0.5, "deep": 0.05, "wide": 0.98}
NEW = 40
SECONDS = 2.0
BUG = Failure(kind="step_error", message="NameError: name 'observation' is not defined", line=3)


class Idle:
    """Plays all parts of a search that nobody runs."""

    def select(self, rng: np.random.Generator, pending: object) -> Move:
        """Start anew."""
        return Move(Action.GENERATE)

    def update(self, node: Node) -> None:
        """Learn nothing."""

    def state(self, node: int) -> str:
        """Call every fifth node terminal."""
        return "" if node % 5 else "terminal"

    def messages(self, move: Move) -> tuple[()]:
        """Ask nothing."""
        return ()

    def evaluate(self, program: str) -> Verdict:
        """Judge nothing."""
        return Verdict(score=0.0)

    def complete(self, request: Request) -> Completion:
        """Answer nothing."""
        return Completion("")

    def worst_cost(self, request: Request) -> float | None:
        """Cost nothing."""
        return 0.0


def grow(count: int, spread: float) -> list[Node]:
    """Grow a tree: `spread` is how far back in time, as a share of all nodes, parents lie."""
    rng = np.random.default_rng(0)
    return [_node(number, rng, spread) for number in range(count)]


def _node(number: int, rng: np.random.Generator, spread: float) -> Node:
    """Make one node at random."""
    back = 1 + int(rng.random() * spread * number) if number else 1
    root = number == 0 or rng.random() < (0.9 if spread > 0.9 else 0.02)
    bug = rng.random() < 0.2
    return Node(
        id=number,
        step=number,
        parent=ROOT if root else number - back,
        action=Action.GENERATE if root else Action.IMPROVE,
        program="",
        verdict=Verdict(score=0.0, failure=BUG) if bug else Verdict(score=rng.random()),
        prompt="",
        usage=Usage(prompt_tokens=900, completion_tokens=300, cost=0.001),
    )


def measure(nodes: list[Node], console: Console) -> tuple[float, float, float, float]:
    """Return milliseconds per learned node and per refresh (new, unchanged), and the share."""
    idle = Idle()
    search = Search(idle, idle, idle)
    search.resume(nodes[:-NEW])
    screen = Screen(search, budget=len(nodes), title="benchmark", console=console)
    display = screen.display()
    display.auto_refresh = False
    learning, changed, unchanged = [], [], []
    with display:
        for node in nodes[-NEW:]:
            search.learn(node)
            learning.append(_milliseconds(lambda node=node: screen.learned(node)))
            changed.append(_milliseconds(display.refresh))
            unchanged.append(_milliseconds(display.refresh))
    return median(learning), median(changed), median(unchanged), _share(screen)


def _share(screen: Screen) -> float:
    """Return the CPU seconds per second that the display takes while the search waits."""
    with screen.display():
        before = time.process_time()
        time.sleep(SECONDS)
        return (time.process_time() - before) / SECONDS


def _milliseconds(call) -> float:
    """Time a call by the processor, which other work on the machine does not disturb."""
    start = time.thread_time()
    call()
    return 1e3 * (time.thread_time() - start)


def main() -> None:
    """Print a row per shape, size and terminal."""
    print("terminal  tree    nodes  learn ms  refresh ms (new node)  (unchanged)  of one core")
    with Path("/dev/null").open("w") as file:
        for width, height in ((80, 24), (140, 40)):
            console = Console(
                file=file, width=width, height=height, force_terminal=True, color_system="256"
            )
            for shape, spread in SHAPES.items():
                for size in SIZES:
                    learn, new, same, idle = measure(grow(size, spread), console)
                    share = idle + (learn + new - same) * REFRESHES_PER_SECOND / 1e3
                    print(
                        f"{width:>4}x{height:<4} {shape:<6} {size:>6}  {learn:>8.3f}"
                        f"  {new:>21.2f}  {same:>11.2f}  {share:>11.1%}"
                    )


if __name__ == "__main__":
    main()
