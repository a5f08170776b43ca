"""Run hostile programs in a sandbox, and print the ending and the traces of each.

    python hostile.py '["landlock", "seccomp"]' ['["fork_once"]']

prints one JSON object. The first argument names the active guards, the second the programs; without
a second argument all programs run.
"""

import ctypes
import errno
import json
import os
import platform
import resource
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from struct import pack, unpack

import numpy as np
import psutil
from gymnasium import spaces

from adversaries import ERRORS, GOOD, KEY, LAYERS, PROGRAMS, Adversary
from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.envs.spec import space_of
from cwm_cli.sandbox import Limits, PredictedColumns, Sandbox
from cwm_cli.sandbox.linux import adopt_orphans, landlock_version
from cwm_cli.sandbox.protection import GAPS
from processes import PER_WORKER, WORKERS, wait_until

LIMITS = Limits(
    wall_seconds=30, cpu_seconds=0.6, stall_seconds=0.5, sleep_seconds=0.3, memory_mb=128
)
ROWS = 40


class Surroundings:
    """What programs may do harm to, and what shows that they did."""

    def __init__(self, stack: ExitStack) -> None:
        self.mark = f"cwm-hostile-{secrets.token_hex(8)}"
        self.home = Path.home()
        self.library = self.home / "library"
        self.site = Path(np.__file__).parent.parent
        self.canary = self.home / "canary"
        self.memory = ctypes.create_string_buffer(b"CANARY in the memory of the trusted side")
        self.tcp = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        self.udp = stack.enter_context(socket.socket(type=socket.SOCK_DGRAM))
        self.udp.bind(("127.0.0.1", 0))
        self.path = self._listener(stack, str(self.home / "socket"))
        self.abstract = self._listener(stack, "\0" + self.mark)
        for listener in (self.tcp, self.udp, self.path, self.abstract):
            listener.setblocking(False)
        self.library.mkdir()
        (self.home / ".ssh").mkdir(mode=0o700)
        self._secret_file(self.home / ".ssh" / "id_canary")
        self.victim = self._victim()
        stack.callback(lambda: (self.victim.kill(), self.victim.wait()))
        sys.path.append(str(self.library))
        self.restore()
        self.usual = self._files()

    @property
    def context(self) -> str:
        """Insert the facts that a program needs."""
        known = {
            "CLI": os.getpid(),
            "ADDRESS": ctypes.addressof(self.memory),
            "VICTIM": self.victim.pid,
            "HOME": str(self.home),
            "MARK": self.mark,
            "TCP": self.tcp.getsockname()[1],
            "UDP": self.udp.getsockname()[1],
            "ABSTRACT": self.mark,
            "LIBRARY": str(self.library),
            "SITE": str(self.site),
            "KEY": KEY,
        }
        lines = [f"{name} = {value!r}" for name, value in known.items()]
        return "\n".join([*lines, f"# OWN-{secrets.token_hex(8)}", ""])

    def effects(self) -> list[str]:
        """Return the effects since the last call, and undo them."""
        seen = [name for name, hit in self._checks() if hit]
        self.restore()
        return seen

    def restore(self) -> None:
        """Put everything back in its place."""
        for path in self._marked():
            if path.parent == self.home and path.is_dir() and (path / "id_canary").exists():
                path.rename(self.home / ".ssh")
            else:
                with suppress(FileNotFoundError):  # a worker cleans up after programs, too
                    (path.rmdir if path.is_dir() and not path.is_symlink() else path.unlink)()
        self._secret_file(self.home / "deletable")
        self._secret_file(self.canary)
        os.utime(self.canary, (10**9, 10**9))
        if self.victim.poll() is not None:
            self.victim = self._victim()

    def left(self) -> list[str]:
        """Return files that are there and were not."""
        return sorted(str(path) for path in self._files() - self.usual)

    def workers(self) -> dict[int, dict[int, list[int]]]:
        """Return our children but the victim, their children, and what descends from these.

        Orphans become our children, so nothing can hide.
        """
        children = [child for child in _children(os.getpid()) if child != self.victim.pid]
        return {
            child: {spare: _children(spare) for spare in _children(child)} for child in children
        }

    def comes_to_rest(self, seconds: float = 5.0) -> bool:
        """Wait until there are just our workers, each with the processes that wait for jobs."""
        deadline = time.monotonic() + seconds
        moments = 0
        while moments < 2 and time.monotonic() < deadline:
            moments = moments + 1 if self._is_quiet() else 0
            time.sleep(0.003)
        return moments == 2

    def _is_quiet(self) -> bool:
        workers = self.workers()
        spares = [below for worker in workers.values() for below in worker.values()]
        at_rest = all(len(worker) == PER_WORKER - 1 for worker in workers.values())
        return len(workers) <= WORKERS and at_rest and not any(spares)

    def left_in_workers(self) -> list[str]:
        """Return the files in the folders of the workers."""
        return [str(path) for folder in self._worker_folders() for path in folder.glob("*")]

    def _checks(self) -> Iterator[tuple[str, bool]]:
        status = self.canary.stat()
        yield "file", bool(self._marked())
        yield "gone", not (self.home / "deletable").exists()
        yield "mode", status.st_mode & 0o777 != 0o600
        yield "time", status.st_mtime != 10**9
        yield "victim", self.victim.poll() is not None
        yield "udp", _received(self.udp)
        for name in ("tcp", "path", "abstract"):
            yield name, _accepted(getattr(self, name))

    def _marked(self) -> list[Path]:
        """Return files with our mark in their names, in all folders that a program may write to."""
        folders = {self.home, self.library, self.site, Path("/tmp"), Path("/dev/shm")}
        folders |= {Path.cwd(), Path(tempfile.gettempdir()), *self._worker_folders()}
        return [path for folder in folders for path in folder.glob(f"{self.mark}*")]

    def _files(self) -> set[Path]:
        """Return the files in our own folders, except the folders of workers."""
        return set(self.home.rglob("*")) - self._worker_folders()

    def _worker_folders(self) -> set[Path]:
        return set(Path(tempfile.gettempdir()).glob("cwm-sandbox-*"))

    def _victim(self) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(["sleep", "600"])

    @staticmethod
    def _secret_file(path: Path) -> None:
        path.write_text("secret")
        path.chmod(0o600)

    @staticmethod
    def _listener(stack: ExitStack, address: str) -> socket.socket:
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(address)
        listener.listen(16)
        return listener


def _accepted(listener: socket.socket) -> bool:
    """Whether somebody has connected."""
    hit = False
    with suppress(BlockingIOError):
        while True:
            listener.accept()[0].close()
            hit = True
    return hit


def _received(listener: socket.socket) -> bool:
    """Whether somebody has sent something."""
    hit = False
    with suppress(BlockingIOError):
        while True:
            listener.recv(100)
            hit = True
    return hit


def datasets() -> dict[str, Dataset]:
    """Record one trajectory with the true dynamics, and the same with answers that stand out."""
    scope: dict[str, object] = {}
    exec(GOOD, scope)
    environment = scope["Environment"]()
    state, transitions = [0.01, 0.02, -0.03, 0.01], []
    for number in range(ROWS):
        action = number % 2
        environment.set_state(state)
        following, reward, terminated = environment.step(action)
        transitions.append(Transition(state, action, following, reward, terminated))
        state = following
    poles = Dataset.of(
        transitions,
        observation_space=space_of(spaces.Box(-np.inf, np.inf, (4,), np.float64)),
        action_space=space_of(spaces.Discrete(2)),
    )
    [answer] = unpack("<d", b"ANSWER42")
    columns = poles.columns | {
        "next_observations": np.full((ROWS, 4), answer),
        "rewards": np.full(ROWS, answer),
    }
    unsplit = replace(poles, columns=poles.columns | {"episodes": np.arange(ROWS)})
    return {"poles": poles, "secret": replace(poles, columns=columns), "unsplit": unsplit}


def share_right(predictions: PredictedColumns, dataset: Dataset) -> float:
    """Return the share of rows that are predicted right in every part."""
    columns = predictions.columns
    observations = (columns["next_observations"] == dataset.columns["next_observations"]).all(1)
    rewards = columns["rewards"] == dataset.columns["rewards"]
    terminations = columns["terminations"] == dataset.columns["terminations"]
    return float((observations & rewards & terminations).mean())


def result_of(
    predictions: PredictedColumns, dataset: Dataset, *, is_attack: bool
) -> dict[str, object]:
    """Return the ending of a program."""
    failure, columns = predictions.failure, predictions.columns
    if failure:
        return {"ending": failure.kind, "message": failure.message}
    if is_attack:
        codes = {int(code) for code in np.unique(columns["next_observations"]) if code >= 0}
        reached = bool(columns["rewards"].any())
        return {
            "ending": "reached" if reached else "refused",
            "errors": [_error_name(code) for code in sorted(codes) if code],
        }
    share = share_right(predictions, dataset)
    ending = {1.0: "right", 0.0: "wrong"}.get(share, "partly right")
    return {"ending": ending, "share": share, "rewards": len(np.unique(columns["rewards"]))}


def _error_name(code: int) -> str:
    return ERRORS[code - 1000] if code >= 1000 else errno.errorcode[code]


def trouble_after(sandbox: Sandbox, dataset: Dataset, surroundings: Surroundings) -> list[str]:
    """Return the lasting effects of a program."""
    trouble = []
    following = sandbox.predict(GOOD, dataset)
    if following.failure or share_right(following, dataset) != 1.0:
        trouble.append(f"the next program is affected: {following.failure}")
    if not surroundings.comes_to_rest():
        trouble.append(f"processes are left, or missing: {surroundings.workers()}")
    if left := surroundings.left():
        trouble.append(f"files are left: {left}")
    if not wait_until(lambda: not surroundings.left_in_workers(), 1):
        trouble.append(f"files are left: {surroundings.left_in_workers()}")
    return trouble


def _children(process: int) -> list[int]:
    """Return the living children of all threads of a process."""
    found: list[int] = []
    with suppress(OSError):
        for task in Path(f"/proc/{process}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    return [child for child in found if _is_alive(child)]


def _is_alive(process: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{process}/stat").read_bytes().rpartition(b") ")[2][:1] not in b"ZX"
    return False


def try_out(
    sandbox: Sandbox, adversary: Adversary, data: dict[str, Dataset], surroundings: Surroundings
) -> dict[str, object]:
    """Run one program and look around."""
    began = time.monotonic()
    dataset = data[adversary.dataset]
    text = surroundings.context + adversary.text if adversary.is_attack else adversary.text
    predictions = sandbox.predict(text, dataset)
    if not predictions.failure:
        failure = sandbox.audit(text, dataset, predictions.columns)
        predictions = predictions._replace(failure=failure)
    result = result_of(predictions, dataset, is_attack=adversary.is_attack)
    seconds = time.monotonic() - began
    effects = surroundings.effects()
    trouble = trouble_after(sandbox, data["poles"], surroundings)
    effects += [effect for effect in surroundings.effects() if effect not in effects]
    return result | {"effects": effects, "trouble": trouble, "seconds": seconds}


def facts() -> list[str]:
    """Return what this machine has of what attacks need."""
    landlock = landlock_version()
    core = Path("/proc/sys/kernel")
    found = {
        "landlock4": landlock == 0 or landlock >= 4,
        "landlock6": landlock == 0 or landlock >= 6,
        "ptrace": _number(core / "yama/ptrace_scope") in (None, 0),
        "userns": _may_unshare(),
        "io_uring": _number(core / "io_uring_disabled") in (None, 0),
        "perf": _may_count_events(),
        "userfaultfd": Path("/proc/sys/vm/unprivileged_userfaultfd").exists(),
        "x86_64": platform.machine() == "x86_64",
        "glibc": platform.libc_ver()[0] == "glibc",
        "bounded-root": not _has_capability(24),
    }
    return [name for name, there in found.items() if there]


def _number(path: Path) -> int | None:
    return int(path.read_text()) if path.exists() else None


def _has_capability(number: int) -> bool:
    """Whether this process has a capability; 24 lets it raise its limits."""
    lines = Path("/proc/self/status").read_text().splitlines()
    [line] = [line for line in lines if line.startswith("CapEff")]
    return bool(int(line.split()[1], 16) >> number & 1)


def _may_unshare() -> bool:
    """Whether a process may have a user namespace of its own."""
    code = "import ctypes; raise SystemExit(ctypes.CDLL(None).unshare(0x10000000) != 0)"
    return subprocess.run([sys.executable, "-c", code]).returncode == 0


def _may_count_events() -> bool:
    """Whether the kernel lets processes without privileges count events of the processor."""
    number = 241 if platform.machine() == "aarch64" else 298
    attributes = ctypes.create_string_buffer(pack("=2IQ", 1, 112, 0), 112)
    child = os.fork()
    if child == 0:
        with suppress(OSError):
            os.setuid(65534)
        os._exit(ctypes.CDLL(None).syscall(number, attributes, 0, -1, -1, 0) < 0)
    return os.waitpid(child, 0)[1] == 0


def main() -> None:
    """Run programs and print their endings and effects."""
    layers = tuple(json.loads(sys.argv[1]))
    names = json.loads(sys.argv[2]) if len(sys.argv) > 2 else list(PROGRAMS)
    accepted = () if layers == LAYERS else tuple(GAPS)
    adopt_orphans()
    data = datasets()
    data["poles"].save(Path.home() / "dataset.npz")
    results = {}
    with ExitStack() as stack:
        surroundings = Surroundings(stack)
        sandbox = stack.enter_context(Sandbox(LIMITS, layers=layers, accepted=accepted))
        protection = sandbox.protection
        before = trouble_after(sandbox, data["poles"], surroundings)
        this = psutil.Process()
        memory, descriptors = this.memory_info().rss, this.num_fds()
        for name in names:
            results[name] = try_out(sandbox, PROGRAMS[name], data, surroundings)
        growth = (this.memory_info().rss - memory) >> 20
        more_descriptors = this.num_fds() - descriptors
        split = sandbox.predict(PROGRAMS["lookup_cheat"].text, data["unsplit"])
        cheat = result_of(split, data["unsplit"], is_attack=False)
    summary = {
        "programs": results,
        "cheat": cheat,
        "before": before,
        "growth_mb": growth,
        "more_descriptors": more_descriptors,
        "peak_mb": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10,
        "layers": protection.layers,
        "gaps": protection.gaps,
        "facts": facts(),
    }
    sys.stdout.write(json.dumps(summary))


if __name__ == "__main__":
    main()
