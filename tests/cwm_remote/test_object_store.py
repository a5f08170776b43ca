"""Runs on S3, as moto serves it on this machine: by the command line, from one machine and another.

A machine is a process here; each has its own copy of the run.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from folders import SUPPORT

pytest.importorskip("moto.server")
pytest.importorskip("s3fs")

MOST_REQUESTS = 6
"""Uploads per completion: prompt, node and program. Start and end of a run need others."""

SERVER = """
import sys
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server
application, log = DomainDispatcherApplication(create_backend_app), open(sys.argv[2], "a", 1)
def counted(environment, start):
    log.write(environment["REQUEST_METHOD"] + " " + environment["PATH_INFO"] + "\\n")
    return application(environment, start)
make_server("127.0.0.1", int(sys.argv[1]), counted, threaded=True).serve_forever()
"""


class Store(NamedTuple):
    """A server of S3, and how programs are started that use it."""

    environment: dict[str, str]
    log: Path

    def cwm(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "cwm_cli", *words]
        return subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=300
        )

    def done(self, *words: str) -> str:
        ended = self.cwm(*words)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    def requests(self, part: str = "") -> int:
        return sum(part in line for line in self.log.read_text().splitlines())


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    folder = tmp_path_factory.mktemp("store")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = folder / "requests.txt"
    log.touch()
    environment = {
        **os.environ,
        "AWS_ACCESS_KEY_ID": "nobody",
        "AWS_SECRET_ACCESS_KEY": "nothing",
        "AWS_DEFAULT_REGION": "us-east-1",
        "FSSPEC_S3_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "CWM_LEASE": "20",
    }
    command = [sys.executable, "-c", SERVER, str(port), str(log)]
    server = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with socket.socket() as tried:
                if tried.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        made = "import fsspec; fsspec.filesystem('s3').mkdir('bucket')"
        subprocess.run([sys.executable, "-c", made], env=environment, check=True)
        yield Store(environment, log)
    finally:
        server.kill()
        server.wait()


COUNTING = """
import sys
sys.path.insert(0, sys.argv[1])
from counting_runs import Count, begin, counted
with begin(sys.argv[2]) as run:
    done = counted(run)
    for n in range(len(done), len(done) + 10):
        run.append(Count(n=n))
print(len(done))
"""


def test_run_is_started_and_continued_by_processes_that_share_only_the_store(store: Store) -> None:
    command = [sys.executable, "-c", COUNTING, str(SUPPORT), "s3://bucket/count"]
    for wanted in ("0\n", "10\n"):
        before = store.requests()
        done = subprocess.run(command, env=store.environment, capture_output=True, text=True)
        assert done.stdout == wanted, done.stderr
        assert store.requests() - before < 10 + 40, "each line is a request, and little besides"


def nodes(text: str) -> list[dict[str, object]]:
    """Read the nodes of a journal without costs, which contain times and depend on prompts.

    The prompt of a new program may have other examples of mistakes after a search was continued.
    """
    found = [json.loads(line)["node"] for line in text.splitlines()]
    for node in found:
        del node["usage"], node["prompt"]
    return found


@pytest.mark.long
def test_killed_search_continues_elsewhere_with_the_same_nodes(
    store: Store, tmp_path: Path
) -> None:
    program = tmp_path / "right"
    store.done("synthesize", "--env", "CartPole-v1", "--run", str(program))
    search = ["synthesize", "--env", "CartPole-v1", "--backend", "simulated", "--start", "none"]
    search += ["-o", f"backend.program={program / 'best.py'}", "-o", "refine=none"]
    search += ["-o", "backend.fixes=0.1", "-o", "backend.improves=0.1", "--budget", "20", "--json"]
    here, there = str(tmp_path / "here"), "s3://bucket/runs/search"
    store.done(*search, "--run", here)
    command = [sys.executable, "-m", "cwm_cli", *search, "--run", there]
    before = store.requests()
    killed = subprocess.Popen(command, env=store.environment, stdout=subprocess.DEVNULL)
    while store.requests("search/nodes.jsonl.parts") < 5:
        assert killed.poll() is None
        time.sleep(0.01)
    killed.send_signal(signal.SIGSTOP)  # it still exists, so its claim holds
    busy = store.cwm(*search, "--run", there)
    assert busy.returncode == 1 and f"another process is using {there}" in busy.stderr
    killed.kill()
    killed.wait()
    result = json.loads(store.done(*search, "--run", there))
    assert result["run"] == there and result["completions"] == 20
    assert store.requests() - before < 20 * MOST_REQUESTS + 80
    read = "import fsspec; fs = fsspec.filesystem('s3')\n"
    read += "for path in sorted(fs.find('bucket/runs/search/nodes.jsonl.parts')): "
    read += "print(fs.cat(path).decode(), end='')"
    journal = subprocess.run(
        [sys.executable, "-c", read], env=store.environment, capture_output=True, text=True
    )
    kept, plain = nodes(journal.stdout), nodes((tmp_path / "here" / "nodes.jsonl").read_text())
    assert len(kept) == len(plain)
    for one, other in zip(kept, plain, strict=True):
        assert not {name: (one[name], other[name]) for name in one if one[name] != other[name]}
    assert there in store.done("runs", "list", "s3://bucket/runs")
    differences = json.loads(store.done("runs", "diff", here, there, "--json"))
    assert differences["runs"] == [here, there] and not differences["settings"]
    assert {*differences["results"]} <= {"seconds", "tokens"}
    store.done("runs", "report", there, "--html")
    assert store.requests("PUT /bucket/runs/search/report.html") == 1
    store.done("runs", "rm", "--yes", there)
    assert "there are no runs in s3://bucket/runs" in store.done("runs", "list", "s3://bucket/runs")


@pytest.mark.long
def test_benchmark_workers_use_their_own_copies(store: Store) -> None:
    place = "s3://bucket/bench"
    words = ["--env", "CartPole-v1", "--seeds", "2", "--budget", "2", "--workers", "2", "--json"]
    told = json.loads(store.done("benchmark", *words, "--run", place))
    again = json.loads(store.done("runs", "report", place, "--json"))
    assert [row["run"] for row in told["rows"]] == [row["run"] for row in again["rows"]]
    assert all(row["run"].startswith(place) and row["solved"] for row in again["rows"])
    assert store.requests("PUT /bucket/bench/data/") == 1, "finished jobs do not run again"
    store.done("benchmark", *words, "--run", place)
    assert store.requests("PUT /bucket/bench/data/") == 1
