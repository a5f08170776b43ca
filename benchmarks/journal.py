"""How long a journal of 10,000 nodes takes to resume, against reading its JSON alone.

Run with `python -m benchmarks.journal [NODES]`. A GIF-MCTS search with an
instant backend writes the journal, with programs of some 60 lines; then the
journal is resumed as `cwm synthesize` does it. Goal: 5 s for 10,000 nodes.
"""

import json
import platform
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from cwm_cli.llm import Completion, Message, Move, Request, Usage
from cwm_cli.packing import Space
from cwm_cli.programs import Failure, Verdict
from cwm_cli.registry import find
from cwm_cli.runs import JOURNAL, Header, Run, RunConfig
from cwm_cli.search import Search
from cwm_cli.transitions import Dataset, Transition

NODES = 10_000
LINES = 60


class Drawn:
    """A problem whose verdicts and a backend whose programs are drawn at random."""

    def messages(self, move: Move) -> tuple[Message, ...]:
        """Ask for nothing in particular."""
        return (Message(role="user", content=f"{move.action} {move.parent}"),)

    def evaluate(self, program: str) -> Verdict:
        """Draw a score, or a failure."""
        rng = np.random.default_rng(len(program))
        kind = "step_error" if rng.random() < 0.3 else "mismatch"
        score = 0.0 if kind == "step_error" else float(rng.random() * 0.99)
        return Verdict(score=score, failure=Failure(kind=kind, message="m" * 1000))

    def complete(self, request: Request) -> Completion:
        """Write some lines."""
        rng = np.random.default_rng(request.seed)
        lines = [f"value_{i} = {rng.random()!r}  # of a program" for i in range(LINES)]
        return Completion("```python\n" + "\n".join(lines) + "\n```", Usage())

    def worst_cost(self, request: Request) -> float | None:
        """Cost nothing."""
        return 0.0


def start(folder: Path) -> Run:
    """Start an empty run."""
    space = Space("discrete", low=(0,), high=(1,))
    rows = [Transition(0, 1, 1, 1.0, False)]
    dataset = Dataset.of(rows, observation_space=space, action_space=space)
    config = RunConfig(env="none", dataset=dataset.digest, strategy="gif-mcts", backend="none")
    header = Header(config=config, description="", versions={}, source="", created="")
    return Run.start(folder, header, dataset)


def main() -> None:
    """Write a journal, resume it, and print the times."""
    nodes = int(sys.argv[1]) if len(sys.argv) > 1 else NODES
    strategy = find("strategy", "gif-mcts")
    with tempfile.TemporaryDirectory() as folder:
        run, drawn = start(Path(folder)), Drawn()
        with run:
            search = Search(drawn, strategy(), drawn, journal=run.append)
            began = time.perf_counter()
            for _ in search.run(nodes):
                pass
            writing = time.perf_counter() - began
        began = time.perf_counter()
        resumed = Search(drawn, strategy(), drawn)
        resumed.resume(run.nodes())
        resuming = time.perf_counter() - began
        began = time.perf_counter()
        for line in (run.folder / JOURNAL).read_text().splitlines():
            json.loads(line)
        parsing = time.perf_counter() - began
        size = (run.folder / JOURNAL).stat().st_size / 1e6
    print(f"Python {platform.python_version()}, {len(resumed.nodes)} nodes, {size:.0f} MB")
    print(f"search and journal {writing / nodes * 1e3:.2f} ms per node")
    print(f"resume {resuming:.2f} s (goal 5 s), {resuming / parsing:.1f} x its JSON alone")


if __name__ == "__main__":
    main()
