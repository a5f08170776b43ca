"""The same benchmark on a cluster of Ray that loses a node, and by processes of this machine.

    python -m benchmarks.cluster                                  # 64 searches of 20 completions
    python -m benchmarks.cluster --searches 8 --budget 6 --latency 0.5

Needs the extra `ray`. The cluster is two simulated nodes on this machine, with a core each
(`ray.cluster_utils`), of which one is removed, not gently, when a third of the searches are over,
and another one joins. A server on the loopback answers, in the protocol of OpenAI, with programs
that are wrong and that the seed of the request decides, and counts what is asked. Told are: whether
all journals, best programs and results are what they are without a cluster, byte for byte but for
times; how many completions were asked for twice, and whether any of them had been written down;
seconds of a job that does nothing, on Ray and here; peak memory of jobs by node, and the seconds
of processors that a search takes; what the command itself takes for a job, by the number of jobs.
Runs are kept in `runs/cluster` until they are measured anew.
"""

import argparse
import json
import os
import shutil
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from statistics import median
from typing import Any

import cwm_cli
from benchmarks.machine import machine
from benchmarks.world_models import PROGRAMS
from cwm_benchmark.benchmarking import BenchmarkResult
from cwm_benchmark.results import TrialRow
from cwm_cli.bench.executor import Command, Ended, carried_out
from cwm_cli.registry import find
from cwm_cli.runs.observer import SILENT, Observer
from cwm_cli.runs.searches import JOURNAL
from cwm_cli.runs.store import RESULT
from cwm_cli.search.contracts import GENERATE, Move, Request
from cwm_simulated.backend import Simulated
from tests.support.openai_server import Handler, OpenAIServer, answer

ENVIRONMENT, PROGRAM = "CliffWalking-v1", PROGRAMS / "cliff_branches.py"
MODEL = "openai/gpt-4o-mini"
TIMES = {"seconds", "run", "program"}
"""Entries of nodes and results that are times or places."""


def main() -> None:
    """Measure, and print a line for each finding."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--searches", type=int, default=64)
    parser.add_argument("--budget", type=int, default=20)
    parser.add_argument("--latency", type=float, default=0.5, help="seconds of an answer")
    parser.add_argument("--folder", type=Path, default=Path("runs/cluster"))
    asked = parser.parse_args()
    os.environ["OPENAI_API_KEY"] = "sk-none"
    shutil.rmtree(asked.folder, ignore_errors=True)
    for line in compared(asked):
        print(line, flush=True)
    print(machine())


def compared(asked: argparse.Namespace) -> Iterator[str]:
    """Run the benchmark on both sides, and say in what they differ."""
    from ray.cluster_utils import Cluster

    from cwm_ray.executor import OF_OWN_CLUSTER

    with Answers(asked.latency) as here:
        began = time.perf_counter()
        result = searched(asked, here.url, asked.folder / "local")
        yield f"local: {asked.searches} searches in {time.perf_counter() - began:.0f} s"
        yield from taken_by(result)
    os.environ.update(OF_OWN_CLUSTER)
    head = {"num_cpus": 1, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    folder = asked.folder / "ray"
    try:
        middle = 3.0 + asked.latency * asked.budget / 2  # a job takes a while to begin
        loss = NodeLoss(cluster, cluster.add_node(num_cpus=1), asked.searches // 3, middle)
        with Answers(asked.latency) as there:
            began = time.perf_counter()
            result = searched(asked, there.url, folder, loss, address=cluster.address)
            taken = time.perf_counter() - began
        yield (
            f"ray: {asked.searches} searches in {taken:.0f} s, one of two nodes lost on the way, "
            f"and begun again: {', '.join(loss.again) or 'none'}"
        )
        yield from differences(asked.folder / "local", folder)
        yield from twice(folder, there, asked)
        yield from taken_by(result)
        yield from overhead(asked.folder / "jobs", cluster.address)
    finally:
        cluster.shutdown()
    yield from growth(asked.folder)


def searched(
    asked: argparse.Namespace,
    url: str,
    folder: Path,
    observer: Observer = SILENT,
    address: str = "",
) -> BenchmarkResult:
    """Search with every seed, on the cluster at an address or here.

    Nothing is refined, as refiners that reach a cap of time differ.
    """
    options = ["search.start=none", "search.refine=none", "search.simplify=0"]
    options += [f"executor.address={address}"] if address else []
    return cwm_cli.benchmark(
        envs=[ENVIRONMENT],
        models=[MODEL],
        strategies=["gif-mcts"],
        options=options,
        seeds=asked.searches,
        budget=asked.budget,
        workers=2,
        api_base=url,
        executor="ray" if address else "local",
        run=folder,
        observer=observer,
    )


class Answers:
    """A server whose answers the seed of a request decides; it counts what it is asked."""

    def __init__(self, latency: float) -> None:
        self._simulated = Simulated(program=str(PROGRAM), errors=12.0)
        self._latency, self._lock = latency, threading.Lock()
        self._server = OpenAIServer(self._respond)
        self.asked: Counter[str] = Counter()

    def __enter__(self) -> "Answers":
        self._server.__enter__()
        self.url = self._server.url
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.__exit__(*exception)

    def _respond(self, body: dict[str, Any]) -> Any:
        """Answer after a while."""
        key = sha256(json.dumps([body["seed"], body["messages"]]).encode()).hexdigest()
        with self._lock:
            self.asked[key] += 1
        request = Request((), body["seed"], Move(GENERATE), None)
        said = answer(self._simulated.complete(request).text)

        def late(handler: Handler) -> None:
            time.sleep(self._latency)
            said(handler)

        return late


@dataclass
class NodeLoss(Observer):
    """Removes a node in the middle of its job, as if its power were cut; another one joins.

    That is some `seconds` after a search has begun, once so many are over: it is told of that in
    the main thread, and Ray starts nodes in no other. `again` are the jobs that were lost.
    """

    cluster: Any
    node: Any
    enough: int
    seconds: float
    over: int = 0
    again: list[str] = field(default_factory=list)

    def advanced(self, event: Any) -> None:
        """Count the searches that are over, and those that are begun again."""
        is_search = event.task.kind == "search"
        self.over += event.over and is_search
        self.again += [event.task.name] if event.is_again else []
        if self.node is not None and self.over >= self.enough and is_search and not event.over:
            time.sleep(self.seconds)  # all nodes are at work meanwhile
            node, self.node = self.node, None
            self.cluster.remove_node(node, allow_graceful=False)
            self.cluster.add_node(num_cpus=1)


def differences(one: Path, other: Path) -> Iterator[str]:
    """Say in which files the searches of two benchmarks differ."""
    found: list[str] = []
    searches = sorted(file.parent.name for file in one.glob(f"*/{JOURNAL}"))
    for name in searches:
        for file in (JOURNAL, "best.py", RESULT):
            texts = [_timeless(side / name / file) for side in (one, other)]
            if texts[0] != texts[1]:
                found.append(f"{name}/{file}")
    words = f"differ: {', '.join(found[:5])}" if found else "are equal byte for byte but for times"
    yield f"journals, programs and results of {len(searches)} searches {words}"


def _timeless(file: Path) -> str:
    """Read a file, JSON without times and places."""
    text = file.read_text() if file.exists() else ""
    if file.suffix == ".py":
        return text
    lines = text.splitlines() if file.suffix == ".jsonl" else [text or "null"]
    return "\n".join(json.dumps(_without_times(json.loads(line))) for line in lines)


def _without_times(value: Any) -> Any:
    """Leave entries out that are times or places."""
    if isinstance(value, dict):
        return {k: _without_times(v) for k, v in value.items() if k not in TIMES}
    return [_without_times(each) for each in value] if isinstance(value, list) else value


def twice(folder: Path, server: Answers, asked: argparse.Namespace) -> Iterator[str]:
    """Say what was asked for again: only what nobody had written down, one for each lost job."""
    written = Counter(
        (file.parent.name, json.loads(line)["node"]["step"])
        for file in folder.glob(f"*/{JOURNAL}")
        for line in file.read_text().splitlines()
    )
    repeated = sum(count > 1 for count in written.values())
    more = server.asked.total() - written.total()
    yield (
        f"{server.asked.total()} completions were asked for and {written.total()} written down "
        f"({asked.searches * asked.budget} wanted): {more} were in flight when their node was "
        "lost; "
        f"{repeated} steps were written down twice"
    )


def taken_by(result: BenchmarkResult) -> Iterator[str]:
    """Say what jobs took, by node."""
    rows: dict[str, list[TrialRow]] = defaultdict(list)
    for row in result.rows:
        rows[row.place or "here"].append(row)
    for place, found in rows.items():
        peaks = [row.peak_memory or 0 for row in found]
        seconds = [row.cpu_seconds or 0.0 for row in found]
        yield (
            f"{place}: {len(found)} jobs, peak memory of a process {max(peaks) / 1e6:.0f} MB "
            f"(median {median(peaks) / 1e6:.0f} MB), {median(seconds):.1f} s of processors each "
            "(median)"
        )


def overhead(folder: Path, address: str) -> Iterator[str]:
    """Carry out jobs that do nothing, here and on Ray, in turn."""
    sides: dict[str, list[float]] = {"local": [], "ray": []}
    for turn in range(3):
        for name, seconds in sides.items():
            options = {"address": address} if name == "ray" else {}
            made = find("executor", name)(workers=2, **options)
            words = (sys.executable, "-c", "")
            commands = [
                Command(f"{turn}-{n}", words, folder / name / f"{turn}-{n}") for n in range(20)
            ]
            began = time.perf_counter()
            with closing(carried_out(made, commands)) as events:
                ended = sum(isinstance(each, Ended) for each in events)
            if turn:  # the first turn starts what is started once
                seconds.append((time.perf_counter() - began) / ended)
    theirs, ours = median(sides["ray"]), median(sides["local"])
    yield f"a job that does nothing: {theirs:.3f} s on ray, {ours:.3f} s here (both cores taken)"


def growth(folder: Path, sizes: Sequence[int] = (100, 1000, 10_000)) -> Iterator[str]:
    """Say what the command itself takes for each job, where jobs are over as soon as they begin."""
    from tests.support.instant_jobs import work_on

    for size in sizes:
        place = folder / f"growth-{size}"
        began = time.process_time()
        work = work_on(place, size // 2)  # in each of two environments
        with work.run:
            for _ in work.events():
                work.counts()
        each = (time.process_time() - began) / size
        begun = time.process_time()
        with work_on(place, size // 2).run:
            again = time.process_time() - begun
        yield (
            f"{size} jobs: {1e3 * each:.1f} ms of the command's processor for each, "
            f"{again:.1f} s to begin once all are over"
        )
    searches = [file.parent for file in (folder / "local").glob(f"*/{JOURNAL}")]
    files = [file for search in searches for file in search.iterdir()]
    kilobytes = sum(file.stat().st_size for file in files) / 1e3 / len(searches)
    yield f"a search has {len(files) / len(searches):.0f} files and {kilobytes:.0f} KB"


if __name__ == "__main__":
    main()
