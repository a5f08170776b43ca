"""Tests of running commands: retries, Ctrl-C, CPU time, memory and failure reasons."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from cwm_cli.bench.executor import (
    Command,
    Ended,
    JobProcess,
    LocalProcesses,
    Postponed,
    ProcessEnd,
    Started,
    carried_out,
    reason_of,
)
from processes import wait_until


def command(name: str, script: str, folder: Path) -> Command:
    return Command(name, (sys.executable, "-c", script), folder / f"{name}.txt")


@dataclass
class LosingProcesses(LocalProcesses):
    """Kills the processes of some commands and reports them as lost, like a failing machine."""

    losses: dict[str, int] = field(default_factory=dict)

    def start(self, command: Command) -> None:
        super().start(command)
        if self.losses.get(command.name, 0):
            self._children[-1].process.kill()

    def wait(self) -> list[Ended]:
        found = []
        for ended in super().wait():
            is_lost = self.losses.get(ended.name, 0) > 0
            if is_lost:
                self.losses[ended.name] -= 1
            found.append(ended._replace(lost=is_lost))
        return found


COUNTED = """
import time
from pathlib import Path
file = Path({file!r})
count = len(file.read_text()) if file.exists() else 0
file.write_text("x" * (count + 1))
if count < {busy}:
    raise SystemExit("Error: another process is using it: wait")
memory = bytearray({size})
time.sleep(0.3)
"""


@pytest.mark.slow
def test_lost_and_busy_commands_are_retried_and_later_commands_may_depend_on_events(tmp_path):
    script = {
        name: COUNTED.format(file=str(tmp_path / name), busy=busy, size=size)
        for name, busy, size in (("large", 0, 200 << 20), ("busy", 1, 0), ("after", 0, 0))
    }
    ended: dict[str, Ended] = {}

    def commands() -> Iterator[Command | None]:
        yield command("large", script["large"], tmp_path)
        yield command("busy", script["busy"], tmp_path)
        yield command("away", "", tmp_path)
        yield command("gone", "", tmp_path)
        while "large" not in ended:
            yield None
        yield command("after", script["after"], tmp_path)

    executor = LosingProcesses(workers=2, losses={"away": 2, "gone": 9})
    events = []
    for event in carried_out(executor, commands()):
        events.append(event)
        if isinstance(event, Ended):
            ended[event.name] = event
    starts = [event.command.name for event in events if isinstance(event, Started)]
    again = [event.command.name for event in events if isinstance(event, Postponed)]
    assert {name: starts.count(name) for name in dict.fromkeys(starts)} == {
        "large": 1,
        "busy": 2,
        "away": 3,
        "gone": 4,
        "after": 1,
    }
    assert sorted(again) == ["away"] * 2 + ["busy"] + ["gone"] * 3
    assert {name: each.reason for name, each in ended.items() if each.reason} == {
        "gone": "its process was ended by SIGKILL"
    }
    assert (ended["large"].peak_memory or 0) > 200 << 20
    assert 0 < (ended["after"].peak_memory or 0) < 200 << 20
    assert executor.has_room()


def run(script: str, *words: str) -> ProcessEnd:
    with (
        Path(os.devnull).open("wb") as nothing,
        JobProcess((sys.executable, "-c", script, *words), nothing, os.environ) as process,
    ):
        return process.wait()


SPENDS = """
import os, sys, time
def spend(seconds):
    while time.process_time() < seconds:
        pass
read, write = os.pipe()
if os.fork() == 0:
    spend(0.4)
    os.close(write)
    time.sleep(float(sys.argv[2]))
    os._exit(0)
os.close(write)
os.read(read, 1)
if sys.argv[1] == "waits":
    os.wait()
"""
IN_A_SANDBOX = """
import sys, time
from pathlib import Path
sys.path.insert(0, "tests/support")
from candidates import BOX, predicting, program
from cwm_cli.sandbox import Sandbox
spends = "import time\\nwhile time.process_time() < 0.8: pass"
with Sandbox() as sandbox:
    sandbox.run(predicting(program(top=spends), BOX))
Path(sys.argv[1]).write_text(str(time.process_time()))
"""


@pytest.mark.slow
def test_cpu_seconds_include_only_descendants_whose_parent_waited(tmp_path):
    waits, leaves = run(SPENDS, "waits", "0"), run(SPENDS, "leaves", "1")
    assert waits.cpu_seconds > 0.4 > leaves.cpu_seconds > 0
    own = tmp_path / "own"
    assert run(IN_A_SANDBOX, str(own)).cpu_seconds > float(own.read_text()) + 0.8


def test_short_process_returns_quickly_and_context_exit_kills_the_process(tmp_path):
    begun = time.monotonic()
    assert run("import sys; sys.exit(3)").code == 3
    seconds = time.monotonic() - begun
    begun = time.monotonic()
    subprocess.run((sys.executable, "-c", "import sys; sys.exit(3)"))
    assert seconds < 2 * (time.monotonic() - begun) + 0.1
    with pytest.raises(KeyError), Path(os.devnull).open("wb") as nothing:
        words = (sys.executable, "-c", "import time; time.sleep(60)")
        with JobProcess(words, nothing, os.environ) as process:
            raise KeyError
    end = process.ended()
    assert end is not None and end.code == -signal.SIGKILL


def test_failure_reason_is_one_line():
    for code, text, reason in (
        (0, "Error: no", None),
        (1, "", "its process ended with exit code 1"),
        (1, "Error: first\nTraceback\nlast", "first"),
        (1, "one\n\n two \n", "two"),
        (-9, "Error: first", "its process was ended by SIGKILL"),
        (-63, "", "its process was ended by signal 63"),
    ):
        assert reason_of(code, text) == reason, (code, text)


DRIVER = """
import sys, threading
from pathlib import Path
from cwm_cli.bench.executor import Command, Idle, LocalProcesses, carried_out

script = (
    "import subprocess, sys, time; from pathlib import Path;"
    "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'],"
    " start_new_session=True);"
    "Path(sys.argv[1]).touch();"
    "[time.sleep(0.05) for _ in iter(lambda: Path('go').exists(), True)];"
    "child.kill()"
)
names = ("first", "second", "third")
made = (Command(n, (sys.executable, "-c", script, n), Path(n + ".txt")) for n in names)
told = lambda running: print("stopping", running, flush=True)
try:
    for event in carried_out(LocalProcesses(workers=2), made, stopping=told):
        if not isinstance(event, Idle):
            print(type(event).__name__, flush=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.mark.parametrize("presses", [1, 2])
def test_first_ctrl_c_waits_for_running_commands_and_second_ends_them(tmp_path, presses):
    driver = subprocess.Popen(
        (sys.executable, "-c", DRIVER), cwd=tmp_path, stdout=subprocess.PIPE, text=True
    )
    assert driver.stdout is not None
    assert [driver.stdout.readline() for _ in range(2)] == ["Started\n"] * 2
    assert wait_until(lambda: (tmp_path / "first").exists() and (tmp_path / "second").exists())
    family = psutil.Process(driver.pid).children(recursive=True)
    assert len(family) == 4
    os.kill(driver.pid, signal.SIGINT)
    assert driver.stdout.readline() == "stopping 2\n"
    assert driver.poll() is None
    if presses == 2:
        os.kill(driver.pid, signal.SIGINT)
    else:
        (tmp_path / "go").touch()
    rest, _ = driver.communicate(timeout=30)
    assert rest.split() == [*(["Ended"] * 2 if presses == 1 else []), "interrupted"]
    assert not (tmp_path / "third").exists()
    gone = [not each.is_running() or each.status() == psutil.STATUS_ZOMBIE for each in family]
    assert all(gone), family
