"""A search at work, with the run that records it."""

import json
import shlex
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from cwm_cli.data.dataset import Dataset
from cwm_cli.errors import CwmError
from cwm_cli.evaluation import Score, evaluate, unseen
from cwm_cli.problems.world_model import WorldModelProblem
from cwm_cli.runs.searches import SearchRun
from cwm_cli.search.contracts import Node, total
from cwm_cli.search.loop import Search
from cwm_cli.worlds import ProgramModel


class Choices(NamedTuple):
    """What a user chose on the command line; `flags` are options of the backend.

    `tools` are modules that programs may import, and `accepted` names gaps in
    the protection of this machine that do not matter.
    """

    strategy: str
    backend: str
    model: str
    options: list[str]
    flags: Mapping[str, Any]
    metric: Literal["accuracy", "paper"]
    seed: int
    parallel: int
    max_cost: float | None
    budget: int
    tools: tuple[str, ...] = ()
    accepted: tuple[str, ...] = ()


@dataclass
class Job:
    """A search with the run that records it."""

    run: SearchRun
    search: Search
    dataset: Dataset
    problem: WorldModelProblem
    choices: Choices
    started: float = field(default_factory=time.monotonic)

    @property
    def title(self) -> str:
        """Name the job in a few words."""
        config = self.run.config
        return f"{config.env} · {config.strategy} · {config.model or config.backend}"

    def nodes(self) -> Iterator[Node]:
        """Search; yield each node when it is written down, learned and, if best, saved."""
        stopped: CwmError | None = None
        try:
            for record in self.search.run(self.choices.budget):
                yield self._learned(record.node)
        except CwmError as error:
            stopped = error
        try:
            for record in self.search.drain():  # what is in flight is paid for
                yield self._learned(record.node)
        except KeyboardInterrupt:  # but nobody has to wait for it once a program is right
            if not self.search.solved:
                raise
        if stopped:
            raise stopped

    def finish(self) -> tuple[dict[str, Any], dict[str, Score | None]]:
        """Score the best program on train and held-out rows, and write the result down."""
        best = self.search.best
        parts = {"train": self.dataset.train, "test": self.dataset.test}
        parts["unseen"] = parts["test"][unseen(parts["test"], parts["train"])]
        scores = {name: self._score(best, part) for name, part in parts.items()}
        spent = total([node.usage for node in self.search.nodes])
        result = {
            "run": str(self.run.folder),
            "program": str(self.run.folder / "best.py") if best else None,
            "solved": self.search.solved,
            "given_up": self.search.given_up,
            "completions": len(self.search.nodes),
            "tokens": spent.tokens,
            "cost": spent.cost,
            "seconds": round(time.monotonic() - self.started, 3),
            **{name: score.model_dump() if score else None for name, score in scores.items()},
        }
        self.run.save_result(result)
        self.run.log(f"finished with {len(self.search.nodes)} nodes, solved: {self.search.solved}")
        return result, scores

    def next_command(self) -> str:
        """Return what a user would type next."""
        config = self.run.config
        words = ["cwm", "plan", "--env", config.env]
        for key, value in config.env_args.items():
            words += ["--env-arg", f"{key}={json.dumps(value)}"]
        return shlex.join([*words, "--run", str(self.run.folder)])

    def _learned(self, node: Node) -> Node:
        """Save a program that is the best so far."""
        if self.search.best is node:
            self.run.save_best(node)
        return node

    def _score(self, best: Node | None, rows: Dataset) -> Score | None:
        """Score the best program on some rows, if there are both."""
        if best is None or not len(rows):
            return None
        problem = self.problem
        return evaluate(
            ProgramModel(best.program, problem.sandbox), rows, problem.metric, seed=problem.seed
        ).score
