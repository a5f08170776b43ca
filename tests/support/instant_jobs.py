"""Benchmarks whose jobs end as soon as they start."""

import json
from dataclasses import dataclass, field
from pathlib import Path

from cwm_benchmark.benchmarking import BenchmarkWork
from cwm_benchmark.configuration import (
    BenchmarkAccess,
    BenchmarkConfig,
    BenchmarkHeader,
    BenchmarkTask,
    BenchmarkTerms,
)
from cwm_benchmark.run import BenchmarkRun
from cwm_cli.bench.executor import BUSY, Command, Ended, Executor


@dataclass
class AtOnce(Executor):
    """Runs jobs instantly; reports the node, its memory, and the number of busy workers."""

    run: BenchmarkRun | None = None
    busy: set[str] = field(default_factory=set)
    ended: list[Ended] = field(default_factory=list)

    def has_room(self) -> bool:
        return len(self.ended) < self.workers

    def start(self, command: Command) -> None:
        if command.name in self.busy:
            self.busy.remove(command.name)
            self.ended.append(Ended(command.name, f"{BUSY}: it has the lock"))
            return
        assert self.run is not None
        kind, name = command.words[4:6]
        if kind == "prepare":
            self.run.keep(BenchmarkTask(kind, name), {"group": "discrete"})
        elif kind == "search":
            folder = self.run.folder / name
            folder.mkdir()
            usage = {"cost": 0.25, "reused": 1}
            line = {"node": {"verdict": {"score": 0.5}, "usage": usage}}
            (folder / "nodes.jsonl").write_text(json.dumps(line) + "\n")
            (folder / "best.py").write_text("program")
            found = {"solved": True, "completions": 1, "program": "best.py"}
            score = {"accuracy": 0.5}
            (folder / "result.json").write_text(json.dumps(found | {"scores": score}))
        self.ended.append(
            Ended(command.name, None, peak_memory=1 << 20, place="node-7", cpu_seconds=1.5)
        )

    def wait(self) -> list[Ended]:
        ended, self.ended = self.ended, []
        return ended

    def close(self) -> None:
        self.ended = []


def work_on(folder: Path, seeds: int, **executor: object) -> BenchmarkWork:
    config = BenchmarkConfig(
        environments=("CliffWalking-v1", "FrozenLake-v1"),
        strategies=("gif-mcts",),
        backend="induction",
        seeds=seeds,
    )
    header = BenchmarkHeader(config=config, terms=BenchmarkTerms(), created="now")
    run = BenchmarkRun.begin(folder, header)
    return BenchmarkWork(run, BenchmarkAccess(), AtOnce(8, run=run, **executor))
