"""Commands are carried out: lost ones again, busy ones later, and Ctrl-C stops and then ends."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from cwm_cli.bench.executor import (
    Command,
    Ended,
    LocalProcesses,
    Postponed,
    Started,
    carried_out,
    reason_of,
)
from processes import wait_until


def command(name: str, script: str, folder: Path) -> Command:
    return Command(name, (sys.executable, "-c", script), folder / f"{name}.txt")


@dataclass
class LosingProcesses(LocalProcesses):
    """Ends the processes of some commands, as a machine does that goes away."""

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
    raise SystemExit("Error: another process works on it: wait")
memory = bytearray({size})
time.sleep(0.3)
"""


def test_lost_commands_are_started_again_busy_ones_later_and_what_comes_may_depend_on_it(tmp_path):
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


def test_a_reason_is_one_line_whatever_was_printed():
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
def test_the_first_ctrl_c_lets_finish_what_runs_and_the_second_ends_it(tmp_path, presses):
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
