"""Jobs on a cluster of Ray: new processes, reported like local ones; nodes may be lost.

The cluster is two nodes on this machine, each with a core; another process has started it.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest

from cwm_cli.bench.executor import Command, Ended, Postponed, Started, carried_out, chosen_executor
from cwm_cli.errors import CwmError
from cwm_cli.registry import find
from cwm_cli.search.spending import open_spending, read_spending
from folders import SUPPORT
from processes import wait_until

pytest.importorskip("ray", reason="the extra `ray` is not installed")


def executor(address: str, **options: Any) -> Any:
    return find("executor", "ray")(address=address, **options)


def command(name: str, script: str, folder: Path, **more: Any) -> Command:
    return Command(name, (sys.executable, "-c", script), folder / "logs" / name, **more)


def alive(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    from cwm_ray.executor import OF_OWN_CLUSTER

    for name, value in OF_OWN_CLUSTER.items():
        monkeypatch.setenv(name, value)
    head = {"num_cpus": 1, "include_dashboard": False}
    made = Cluster(initialize_head=True, head_node_args=head)
    try:
        made.add_node(num_cpus=1)
        yield made
    finally:
        made.shutdown()


FACTS = """
import os, subprocess, sys
print("key", os.environ["WAREHOUSE_API_KEY"], os.environ["CWM_OF_COMMAND"])
print("of Ray", [name for name in os.environ if name.startswith("RAY_")])
print("exit code", subprocess.run([sys.executable, "-c", "raise SystemExit(3)"]).returncode)
print("folder", os.getcwd())
"""
SCRIPTS = {
    "facts": FACTS,
    "failing": "import sys; print('x' * (1 << 20)); sys.exit('Error: no rocks')",
    "killed": "import os; os.kill(os.getpid(), 9)",
    "raising": "1 / 0",
    "large": "memory = bytearray(400 << 20)",
}
REASONS = {
    "facts": None,
    "failing": "no rocks",
    "killed": "its process was ended by SIGKILL",
    "raising": "ZeroDivisionError: division by zero",
    "large": None,
}
ASKS = """
from cwm_cli.search.spending import SpendingRequest, shared_spending
spending = shared_spending()
spending.ask(SpendingRequest(ask="reserve", job="a", reservation="r", amount=0.25))
print(spending.ask(SpendingRequest(ask="settle", job="a", reservation="r", amount=0.125)).left)
"""


@pytest.mark.long
def test_commands_run_in_new_processes_and_can_request_spending(cluster, tmp_path, monkeypatch):
    monkeypatch.setenv("WAREHOUSE_API_KEY", "open sesame")
    spending = tmp_path / "spending.json"
    open_spending(spending, 1.0, lambda: 0.0)
    commands = [
        command(name, script, tmp_path, environment={"CWM_OF_COMMAND": "told"})
        for name, script in SCRIPTS.items()
    ]
    commands.append(command("asking", ASKS, tmp_path, spending=spending))
    running = carried_out(executor(cluster.address), commands)
    ended = {event.name: event for event in running if isinstance(event, Ended)}
    assert {name: one.reason for name, one in ended.items()} == {**REASONS, "asking": None}
    assert not any(one.lost for one in ended.values())
    assert all(one.place for one in ended.values())
    assert ended["large"].peak_memory > 400 << 20 > ended["facts"].peak_memory
    assert all(one.cpu_seconds > 0 for one in ended.values())
    assert (tmp_path / "logs" / "facts").read_text().splitlines() == [
        "key open sesame told",
        "of Ray []",
        "exit code 3",
        f"folder {Path.cwd()}",
    ]
    last = (tmp_path / "logs" / "failing").read_bytes()
    assert len(last) == 256 << 10
    assert last.endswith(b"Error: no rocks\n")
    assert (tmp_path / "logs" / "asking").read_text() == "0.875\n"
    assert read_spending(spending).spent == 0.125
    here = subprocess.run([sys.executable, "-c", "raise SystemExit(3)"])
    assert here.returncode == 3, "a process in a cluster gets the exit status of its jobs"


STAYS = """
import os, subprocess, sys, time
from pathlib import Path
from cwm_cli.bench.executor import end_with_starter
file = Path({file!r})
if file.exists():
    raise SystemExit
end_with_starter()
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"],
                         start_new_session=True)
part = file.with_suffix(".part")
part.write_text(f"{{os.getppid()}} {{os.getpid()}} {{child.pid}}")
part.rename(file)
time.sleep(600)
"""


def stays(name: str, folder: Path) -> Command:
    return command(name, STAYS.format(file=str(folder / f"{name}.txt")), folder)


def pids(name: str, folder: Path) -> list[int]:
    file = folder / f"{name}.txt"
    assert wait_until(file.exists, 60)
    return [int(word) for word in file.read_text().split()]


@pytest.mark.long
def test_lost_jobs_are_started_again_and_leave_no_process(cluster, tmp_path, capfd):
    """If a node is lost together with Ray, the processes of its jobs must end by themselves."""
    names = ("first", "second")
    events, left = [], set[int]()
    running = carried_out(executor(cluster.address), [stays(name, tmp_path) for name in names])
    for event in running:
        events.append(event)
        if sum(isinstance(each, Started) for each in events) == len(names) and not left:
            families = [pids(name, tmp_path) for name in names]
            (node,) = cluster.worker_nodes
            raylet = node.all_processes["raylet"][0].process.pid
            families.sort(key=lambda family: psutil.Process(family[0]).ppid() == raylet)
            assert psutil.Process(families[1][0]).ppid() == raylet, "both are on one node"
            (worker, job, child), (_, other, survivor) = families
            left = {worker, job, child, other}
            os.kill(worker, signal.SIGKILL)
            cluster.remove_node(node, allow_graceful=False)
            os.kill(survivor, signal.SIGKILL)
    assert [event.reason for event in events if isinstance(event, Ended)] == [None, None]
    again = [event for event in events if isinstance(event, Postponed)]
    assert {event.command.name for event in again} == set(names)
    assert all("lost" in event.reason for event in again)
    assert wait_until(lambda: not any(map(alive, left)), 30), [*filter(alive, left)]
    assert "raylet" not in capfd.readouterr().out, "Ray writes between what the command prints"


@pytest.mark.long
def test_command_ends_when_the_executor_closes_or_its_process_is_killed(tmp_path):
    """Ray ends, too, so the processes of a job must end by themselves."""
    jobs, _ = chosen_executor("ray", None, ["executor.address=local", "executor.cores=0.5"])
    with closing(jobs):
        jobs.start(stays("closed", tmp_path))
        _, job, child = pids("closed", tmp_path)
        assert jobs.has_room()
    os.kill(child, signal.SIGKILL)
    assert wait_until(lambda: not alive(job), 30)
    script = (
        f"import sys; sys.path[:0] = {[str(SUPPORT), str(Path(__file__).parent)]}\n"
        "import test_ray as t; from pathlib import Path\n"
        "jobs = t.executor('local'); jobs.start(t.stays('killed', Path(sys.argv[1])))\n"
        "while True: jobs.wait()"
    )
    driver = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)])
    _, job, child = pids("killed", tmp_path)
    driver.kill()
    driver.wait()
    os.kill(child, signal.SIGKILL)
    assert wait_until(lambda: not alive(job), 30)


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("127.0.0.1:1", "cannot join a Ray cluster at '127.0.0.1:1' .*refused.*"),
        ("nowhere", "it is not HOST:PORT"),
        ("ray://127.0.0.1:10001", "run the same command on one of its nodes"),
    ],
)
def test_unreachable_cluster_is_reported_in_one_line(address, words, tmp_path):
    with pytest.raises(CwmError, match=words) as raised:
        executor(address).start(Command("any", ("true",), tmp_path / "log"))
    assert len(str(raised.value).splitlines()) == 1
