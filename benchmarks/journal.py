"""Compare resuming the journal of a search with reading its JSON alone.

A GIF-MCTS search with an instant backend writes the journal, with programs of 60 lines. Then the
journal is resumed as by `cwm synthesize`.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.claims import Claim, Measured
from benchmarks.measuring import calls, in_turn, seconds
from benchmarks.script import main
from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.data.spaces import Space
from cwm_cli.registry import find
from cwm_cli.runs.searches import JOURNAL, SearchConfig, SearchHeader, SearchRun
from cwm_cli.runs.store import DATASET
from cwm_cli.sandbox.failures import Failure
from cwm_cli.search.contracts import (
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

NODES, QUICK_NODES = 10_000, 300
LINES = 60


class RandomProblem(Problem, Backend):
    """A problem with random verdicts, and a backend with random programs."""

    def messages(self, move: Move) -> tuple[Message, ...]:
        """Return a short prompt."""
        return (Message(role="user", content=f"{move.action} {move.parent}"),)

    def judge(self, program: str) -> Verdict:
        """Return a random score, or an error in 30 % of the cases."""
        rng = np.random.default_rng(len(program))
        kind = "step_error" if rng.random() < 0.3 else "mismatch"
        score = 0.0 if kind == "step_error" else float(rng.random() * 0.99)
        return Verdict(score=score, failure=Failure(kind=kind, message="m" * 1000))

    def complete(self, request: Request) -> Completion:
        """Return a program of `LINES` lines."""
        rng = np.random.default_rng(request.seed)
        lines = [f"value_{i} = {rng.random()!r}  # of a program" for i in range(LINES)]
        return Completion("```python\n" + "\n".join(lines) + "\n```", Usage())

    def worst_cost(self, request: Request) -> float | None:
        """Return a cost of 0."""
        return 0.0


def start(folder: Path) -> SearchRun:
    """Start an empty run."""
    space = Space("discrete", low=(0,), high=(1,))
    rows = [Transition(0, 1, 1, 1.0, False)]
    dataset = Dataset.of(rows, observation_space=space, action_space=space)
    config = SearchConfig(env="none", dataset=dataset.digest, strategy="gif-mcts", backend="none")
    header = SearchHeader(config=config, description="", versions={}, source="", created="")
    return SearchRun.start(folder, header, {DATASET: dataset})


def measure(quick: bool) -> Measured:
    """Write a journal; then read its JSON and resume it alternately."""
    nodes, drawn = QUICK_NODES if quick else NODES, RandomProblem()
    with tempfile.TemporaryDirectory() as folder:
        run = start(Path(folder))
        writing = seconds(lambda: write(run, drawn, nodes))
        file = run.folder / JOURNAL
        times = in_turn(lambda _: parse(file), lambda _: resume(run, drawn), 5)
        counts = {
            "calls per node": calls(lambda: resume(run, drawn)) // nodes,
            "bytes per node beside texts": bytes_without_texts(file) // nodes,
        }
    figures = times.milliseconds("JSON", "resume") | {"write ms per node": 1e3 * writing / nodes}
    return Measured(times.costs, figures, counts)


def write(run: SearchRun, drawn: RandomProblem, nodes: int) -> None:
    """Search for a number of nodes."""
    with run:
        search = Search(drawn, find("strategy", "gif-mcts")(), drawn, journal=run.learn)
        for _ in search.run(nodes):
            pass


def parse(file: Path) -> list[dict[str, Any]]:
    """Read the JSON of a journal."""
    return [json.loads(line) for line in file.read_text().splitlines()]


def resume(run: SearchRun, drawn: RandomProblem) -> None:
    """Resume a search with all nodes of a journal."""
    Search(drawn, find("strategy", "gif-mcts")(), drawn).resume(run.nodes())


def bytes_without_texts(file: Path) -> int:
    """Return the size of a journal without programs, answers and error messages, in bytes."""
    lines = parse(file)
    texts = [
        (line["text"], line["node"]["program"], line["node"]["verdict"]["failure"]["message"])
        for line in lines
    ]
    return file.stat().st_size - sum(len(json.dumps(text)) for three in texts for text in three)


CLAIMS = (
    Claim(
        "journal",
        f"resuming a journal of {NODES:,} nodes ({QUICK_NODES} in a quick run) against its JSON",
        measure,
        is_cost=True,
    ),
)

if __name__ == "__main__":
    main(CLAIMS)
