"""Compare a benchmark on a Ray cluster that loses a node with local processes.

    python -m benchmarks.cluster                                  # 64 searches of 20 completions
    python -m benchmarks.cluster --searches 8 --budget 6 --latency 0.5

The benchmark needs the extra `ray`. The cluster has two simulated nodes on this machine, with one
core each (`ray.cluster_utils`). When a third of the searches are finished, one node is killed and
another one joins. A loopback server with OpenAI's protocol answers with wrong programs, which the
seed of the request determines, and counts the requests. The benchmark prints:

- whether all journals, best programs and results equal the local ones byte for byte, except times;
- the number of completions that were requested twice, and the number of steps saved twice;
- the seconds of an empty job, on Ray and locally;
- the peak memory of jobs by node, and the processor seconds of a search;
- the processor time of the command itself per job, by the number of jobs.

Runs are kept in `runs/cluster` until the next call.
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
from pathlib import Path
from statistics import median
from typing import Any

import cwm_cli
from benchmarks.machine import machine
from benchmarks.served_programs import WrongPrograms
from benchmarks.world_models import PROGRAMS
from cwm_benchmark.benchmarking import BenchmarkResult
from cwm_benchmark.results import TrialRow
from cwm_cli.bench.executor import Command, Ended, carried_out
from cwm_cli.registry import find
from cwm_cli.runs.observer import SILENT, Observer
from cwm_cli.runs.searches import JOURNAL
from cwm_cli.runs.store import RESULT
from tests.support.openai_server import Behaviour, OpenAIServer

ENVIRONMENT, PROGRAM = "CliffWalking-v1", PROGRAMS / "cliff_branches.py"
MODEL = "openai/gpt-4o-mini"
TIMES_AND_PATHS = {"seconds", "run", "program"}
"""Entries of nodes and results that differ between equal searches."""


def main() -> None:
    """Measure, and print a line for each figure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--searches", type=int, default=64)
    parser.add_argument("--budget", type=int, default=20)
    parser.add_argument("--latency", type=float, default=0.5, help="seconds of an answer")
    parser.add_argument("--folder", type=Path, default=Path("runs/cluster"))
    chosen = parser.parse_args()
    os.environ["OPENAI_API_KEY"] = "sk-none"
    shutil.rmtree(chosen.folder, ignore_errors=True)
    for line in compare(chosen):
        print(line, flush=True)
    print(machine())


def compare(chosen: argparse.Namespace) -> Iterator[str]:
    """Run the benchmark locally and on the cluster; yield lines about the differences."""
    from ray.cluster_utils import Cluster

    from cwm_ray.executor import OF_OWN_CLUSTER

    programs = CountedPrograms(PROGRAM, chosen.latency)
    with OpenAIServer(programs) as server:
        began = time.perf_counter()
        result = search(chosen, server.url, chosen.folder / "local")
        yield f"local: {chosen.searches} searches in {time.perf_counter() - began:.0f} s"
        yield from resources(result)
    os.environ.update(OF_OWN_CLUSTER)
    head = {"num_cpus": 1, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    folder = chosen.folder / "ray"
    try:
        middle = 3.0 + chosen.latency * chosen.budget / 2  # a job takes 3 s to start
        loss = NodeLoss(cluster, cluster.add_node(num_cpus=1), chosen.searches // 3, middle)
        programs = CountedPrograms(PROGRAM, chosen.latency)
        with OpenAIServer(programs) as server:
            began = time.perf_counter()
            result = search(chosen, server.url, folder, loss, address=cluster.address)
            elapsed = time.perf_counter() - began
        yield (
            f"ray: {chosen.searches} searches in {elapsed:.0f} s, one of two nodes lost, "
            f"restarted jobs: {', '.join(loss.restarted) or 'none'}"
        )
        yield from differences(chosen.folder / "local", folder)
        yield from repeated_requests(folder, programs.count, chosen)
        yield from resources(result)
        yield from empty_jobs(chosen.folder / "jobs", cluster.address)
    finally:
        cluster.shutdown()
    yield from growth(chosen.folder)


def search(
    chosen: argparse.Namespace,
    url: str,
    folder: Path,
    observer: Observer = SILENT,
    address: str = "",
) -> BenchmarkResult:
    """Search with each seed, on the cluster at an address or locally.

    Refiners are off, because refiners that reach a time limit give different programs.
    """
    options = ["search.start=none", "search.refine=none", "search.simplify=0"]
    options += [f"executor.address={address}"] if address else []
    return cwm_cli.benchmark(
        envs=[ENVIRONMENT],
        models=[MODEL],
        strategies=["gif-mcts"],
        options=options,
        seeds=chosen.searches,
        budget=chosen.budget,
        workers=2,
        api_base=url,
        executor="ray" if address else "local",
        run=folder,
        observer=observer,
    )


class CountedPrograms(WrongPrograms):
    """Wrong programs as answers of a server, with the number of requests."""

    def __init__(self, program: Path, latency: float) -> None:
        super().__init__(program, latency)
        self.count, self._lock = 0, threading.Lock()

    def __call__(self, body: dict[str, Any]) -> Behaviour:
        """Count a request and return its answer."""
        with self._lock:
            self.count += 1
        return super().__call__(body)


@dataclass
class NodeLoss(Observer):
    """Kills a node during its job, without a shutdown, and adds another one.

    An observer is called in the main thread, and Ray can start nodes only in the main thread.

    Attributes:
        cluster: The simulated cluster.
        node: The node to kill.
        enough: Number of finished searches before the loss.
        seconds: Seconds between the start of the next search and the loss.
        finished: Number of finished searches.
        restarted: Names of the jobs that were restarted.
    """

    cluster: Any
    node: Any
    enough: int
    seconds: float
    finished: int = 0
    restarted: list[str] = field(default_factory=list)

    def advanced(self, event: Any) -> None:
        """Count finished and restarted searches, and kill the node at the right moment."""
        is_search = event.task.kind == "search"
        self.finished += event.over and is_search
        self.restarted += [event.task.name] if event.is_again else []
        if self.node is not None and self.finished >= self.enough and is_search and not event.over:
            time.sleep(self.seconds)  # all nodes work during this time
            node, self.node = self.node, None
            self.cluster.remove_node(node, allow_graceful=False)
            self.cluster.add_node(num_cpus=1)


def differences(one: Path, other: Path) -> Iterator[str]:
    """Yield a line with the files that differ between the searches of two benchmarks."""
    found: list[str] = []
    searches = sorted(file.parent.name for file in one.glob(f"*/{JOURNAL}"))
    for name in searches:
        for file in (JOURNAL, "best.py", RESULT):
            texts = [_comparable_text(side / name / file) for side in (one, other)]
            if texts[0] != texts[1]:
                found.append(f"{name}/{file}")
    words = f"differ: {', '.join(found[:5])}" if found else "are equal byte for byte, except times"
    yield f"journals, programs and results of {len(searches)} searches {words}"


def _comparable_text(file: Path) -> str:
    """Return the text of a file; JSON without times and paths."""
    text = file.read_text() if file.exists() else ""
    if file.suffix == ".py":
        return text
    lines = text.splitlines() if file.suffix == ".jsonl" else [text or "null"]
    return "\n".join(json.dumps(_without_times(json.loads(line))) for line in lines)


def _without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_times(v) for k, v in value.items() if k not in TIMES_AND_PATHS}
    return [_without_times(each) for each in value] if isinstance(value, list) else value


def repeated_requests(folder: Path, requests: int, chosen: argparse.Namespace) -> Iterator[str]:
    """Yield a line about repeated requests: at most one unsaved completion per lost job."""
    saved = Counter(
        (file.parent.name, json.loads(line)["node"]["step"])
        for file in folder.glob(f"*/{JOURNAL}")
        for line in file.read_text().splitlines()
    )
    repeated = sum(count > 1 for count in saved.values())
    yield (
        f"{requests} completions were requested and {saved.total()} saved, of "
        f"{chosen.searches * chosen.budget}: {requests - saved.total()} were in flight when "
        f"their node was lost; {repeated} steps were saved twice"
    )


def resources(result: BenchmarkResult) -> Iterator[str]:
    """Yield a line with the memory and processor time of the jobs of each node."""
    rows: dict[str, list[TrialRow]] = defaultdict(list)
    for row in result.rows:
        rows[row.place or "local"].append(row)
    for place, found in rows.items():
        peaks = [row.peak_memory or 0 for row in found]
        seconds = [row.cpu_seconds or 0.0 for row in found]
        yield (
            f"{place}: {len(found)} jobs, peak memory of a process {max(peaks) / 1e6:.0f} MB "
            f"(median {median(peaks) / 1e6:.0f} MB), {median(seconds):.1f} s of processor time "
            "each (median)"
        )


def empty_jobs(folder: Path, address: str) -> Iterator[str]:
    """Run empty jobs alternately on this machine and on Ray; yield their seconds."""
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
            if turn:  # the first turn includes the start of Ray
                seconds.append((time.perf_counter() - began) / ended)
    theirs, ours = median(sides["ray"]), median(sides["local"])
    yield f"an empty job: {theirs:.3f} s on ray, {ours:.3f} s locally (both cores in use)"


def growth(folder: Path, sizes: Sequence[int] = (100, 1000, 10_000)) -> Iterator[str]:
    """Yield the processor time of the command itself per job, for jobs that end immediately."""
    from tests.support.instant_jobs import work_on

    for size in sizes:
        place = folder / f"growth-{size}"
        began = time.process_time()
        work = work_on(place, size // 2)  # for each of two environments
        with work.run:
            for _ in work.events():
                work.counts()
        each = (time.process_time() - began) / size
        began = time.process_time()
        with work_on(place, size // 2).run:
            restart = time.process_time() - began
        yield (
            f"{size} jobs: {1e3 * each:.1f} ms of processor time of the command for each, "
            f"{restart:.1f} s to start again after all have finished"
        )
    searches = [file.parent for file in (folder / "local").glob(f"*/{JOURNAL}")]
    files = [file for search in searches for file in search.iterdir()]
    kilobytes = sum(file.stat().st_size for file in files) / 1e3 / len(searches)
    yield f"a search has {len(files) / len(searches):.0f} files and {kilobytes:.0f} KB"


if __name__ == "__main__":
    main()
