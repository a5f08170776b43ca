"""Jobs on a Slurm cluster: submitted as arrays, reported as lost, cancelled."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import slurm_cluster
from cwm_cli.bench.executor import Command, Ended, carried_out
from cwm_cli.errors import CwmError, install_command
from cwm_cli.registry import find
from processes import wait_until

pytest.importorskip("submitit")

SLEEP = "import time; time.sleep(600)"


def command(folder: Path, name: str, script: str, **more) -> Command:
    return Command(name, (sys.executable, "-c", script), folder / "logs" / f"{name}.txt", **more)


def all_ended(executor, count: int) -> dict[str, Ended]:
    """Wait until `count` commands run."""
    found: dict[str, Ended] = {}
    deadline = time.monotonic() + 60
    while len(found) < count and time.monotonic() < deadline:
        found |= {ended.name: ended for ended in executor.wait()}
    return found


def processes_of(file: Path) -> int:
    """Read the id that a process has written to a file."""
    assert wait_until(lambda: file.exists() and file.read_text().endswith("\n"), 30)
    return int(file.read_text())


WRITES_ITS_ID = (
    "import os, time; from pathlib import Path; "
    "Path({file!r}).write_text(str(os.getpid()) + chr(10)); time.sleep(600)"
)


def is_gone(process: int) -> bool:
    return not Path(f"/proc/{process}").exists()


def test_missing_slurm_or_submitit_gives_a_line_with_remedy(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        CwmError, match=r"Slurm is not installed on this machine.*executor.cluster=local"
    ):
        find("executor", "slurm")(workers=2)
    code = (
        "import sys; sys.modules['submitit'] = None\n"
        "from cwm_slurm.executor import SlurmExecutor\nSlurmExecutor(workers=1)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert f"needs an extra: {install_command('cwm-cli[slurm]')}" in done.stderr.splitlines()[-1]


@pytest.mark.slow
def test_killed_job_is_lost_and_other_processes_end_with_the_executor(tmp_path):
    executor = find("executor", "slurm")(workers=3, cluster="local")
    asks = "import os; print(os.environ['ASKED'], os.environ['CWM_SPENDING'], os.getcwd())"
    given = {"environment": {"ASKED": "yes"}, "spending": tmp_path / "spent.json"}
    executor.start(command(tmp_path, "asks", asks, **given))
    first, second = tmp_path / "first", tmp_path / "second"
    executor.start(command(tmp_path, "killed", WRITES_ITS_ID.format(file=str(first))))
    executor.start(command(tmp_path, "left", WRITES_ITS_ID.format(file=str(second))))
    assert not executor.has_room()
    found = all_ended(executor, 1)
    assert found["asks"].reason is None and not found["asks"].lost
    assert found["asks"].place and found["asks"].peak_memory > 1 << 20
    assert found["asks"].cpu_seconds > 0
    printed = (tmp_path / "logs" / "asks.txt").read_text()
    assert printed == f"yes file:{tmp_path / 'spent.json'} {Path.cwd()}\n"
    process = processes_of(first)
    job = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(job, signal.SIGKILL)  # like a failing node, except for the command itself
    found = all_ended(executor, 1)
    assert found["killed"].lost and "without a result" in found["killed"].reason
    os.kill(process, signal.SIGKILL)  # only processes of cwm end with the job
    process = processes_of(second)
    executor.close()
    assert wait_until(lambda: is_gone(process))
    assert not list((tmp_path / "logs").glob("slurm-*"))


@pytest.mark.long
def test_commands_are_submitted_as_arrays_and_states_are_reported(tmp_path, monkeypatch):
    for name, value in slurm_cluster.install(tmp_path / "cluster").items():
        monkeypatch.setenv(name, value)
    jobs = tmp_path / "cluster" / "jobs"
    options = {"partition": "debug", "minutes": 90, "memory_gb": 2, "poll_seconds": 0.3}
    executor = find("executor", "slurm")(
        workers=6, setup="export READY=yes", flags={"gres": "gpu:1"}, **options
    )
    says = "import os; print(os.environ['READY'])"
    executor.start(command(tmp_path, "says", says, cores=1.5))
    executor.start(command(tmp_path, "fails", "import sys; sys.exit('Error: no rocks')"))
    for name in ("node", "preempted", "timely", "left"):
        executor.start(command(tmp_path, name, WRITES_ITS_ID.format(file=str(tmp_path / name))))
    found = all_ended(executor, 2)
    assert found["says"] == found["says"]._replace(reason=None, lost=False)
    assert (tmp_path / "logs" / "says.txt").read_text() == "yes\n"
    assert (found["fails"].reason, found["fails"].lost) == ("no rocks", False)

    scripts = [file.read_text() for file in sorted(jobs.glob("*.sh"))]
    assert len(scripts) == 2  # one for two cores, and one array for jobs of one core
    text = next(script for script in scripts if "--array" in script)
    for flag in ("array=0-4%5", "time=90", "mem=2GB", "partition=debug", "cpus-per-task=1"):
        assert f"#SBATCH --{flag}\n" in text, flag
    assert "#SBATCH --gres=gpu:1\n" in text and "#SBATCH --no-requeue\n" in text

    running = {name: processes_of(tmp_path / name) for name in ("node", "preempted", "timely")}
    number = max(int(file.stem) for file in jobs.glob("*.sh") if "--array" in file.read_text())
    slurm_cluster.end(jobs, f"{number}_1", "NODE_FAIL")
    slurm_cluster.end(jobs, f"{number}_2", "PREEMPTED")
    slurm_cluster.tell(jobs, f"{number}_3", signal.SIGUSR2)
    found = all_ended(executor, 3)
    assert {name: ended.lost for name, ended in found.items()} == dict.fromkeys(running, True)
    assert found["node"].reason == "its node failed"
    assert found["preempted"].reason == "another job took its place"
    assert "its time was up" in found["timely"].reason
    assert wait_until(lambda: all(map(is_gone, running.values())))

    process = processes_of(tmp_path / "left")
    executor.close()
    assert wait_until(lambda: is_gone(process))
    assert "CANCELLED by 1000" in slurm_cluster.states(jobs).values()
    assert not list((tmp_path / "logs").glob("slurm-*"))


@pytest.mark.long
def test_lost_jobs_are_repeated_even_without_accounts(tmp_path, monkeypatch):
    for name, value in slurm_cluster.install(tmp_path / "cluster").items():
        monkeypatch.setenv(name, value)
    jobs = tmp_path / "cluster" / "jobs"
    (jobs / "no-accounts").touch()
    executor = find("executor", "slurm")(workers=2, poll_seconds=0.3)
    file = tmp_path / "tries"
    once = (
        f"import os, signal, time; from pathlib import Path; file = Path({str(file)!r})\n"
        "file.open('a').write('try' + chr(10))\n"
        "if len(file.read_text().split()) == 1:\n"
        "    os.killpg(0, signal.SIGKILL)"
    )
    commands = [command(tmp_path, "once", once), command(tmp_path, "other", "print(1)")]
    events = list(carried_out(executor, commands))
    ended = {each.name: each.reason for each in events if isinstance(each, Ended)}
    assert ended == {"once": None, "other": None}
    assert file.read_text().split() == ["try", "try"]

    broken = find("executor", "slurm")(workers=1, poll_seconds=0.3, setup="exit 3")
    (jobs / "no-accounts").unlink()
    ended = [e for e in carried_out(broken, commands[1:]) if isinstance(e, Ended)]
    assert "broke before the command began" in ended[0].reason

    closed = find("executor", "slurm")(workers=1, partition="closed")
    with pytest.raises(CwmError, match=r"does not take the jobs: .*invalid partition"):
        list(carried_out(closed, commands))


def plain(text: str) -> str:
    """Remove times, memory and paths of runs from the output of a benchmark."""
    facts = json.loads(text)
    for row in (*facts["rows"], *facts["groups"]):
        for name in ("seconds", "cpu_seconds", "peak_memory", "place", "run", "folder"):
            row.pop(name, None)
    return json.dumps([facts["rows"], facts["groups"]])


@pytest.mark.long
def test_benchmark_on_slurm_has_the_same_results_as_locally(cwm):
    asked = ("benchmark", "--env", "CliffWalking-v1", "--backend", "simulated", "--seeds", "1")
    found = []
    for executor in (("local",), ("slurm", "-o", "executor.cluster=local")):
        run = f"run-{executor[0]}"
        done = cwm(*asked, "--budget", "3", "--run", run, "--json", "--executor", *executor)
        assert done.returncode == 0, done.stderr
        found.append(re.sub(r"run-\w+", "run", plain(done.stdout)))
        assert "slurm-" not in str(list(cwm.folder.rglob("*")))
    assert found[0] == found[1]
