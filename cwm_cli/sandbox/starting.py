"""Where worker processes come from: an interpreter is started, or a worker forks another."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import ExitStack, suppress
from pathlib import Path
from threading import Lock
from typing import NamedTuple, Self

from cwm_cli.sandbox.protocol import BEGINNING, FLAGS, Setup

_COMMAND = f"{BEGINNING}; from cwm_cli.sandbox.worker import main; main()"
_ENVIRONMENT = {
    "LANG": "C.UTF-8",
    "PATH": "/usr/bin:/bin",
    "PYTHONHASHSEED": "0",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "VECLIB_MAXIMUM_THREADS": "1",
}


class Home(NamedTuple):
    """Both ends of the connection to a worker, and the empty folder that it lives in."""

    control: socket.socket
    theirs: socket.socket
    folder: str

    @classmethod
    def make(cls) -> Self:
        """Return a new one."""
        return cls(*socket.socketpair(), tempfile.mkdtemp(prefix="cwm-sandbox-"))

    def close(self) -> None:
        """Leave nothing of it."""
        self.control.close()
        shutil.rmtree(self.folder, ignore_errors=True)


class Twin:
    """The process of a worker that another one forked, which is a child of this one as well."""

    stderr = None

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._is_over = False
        self._lock = Lock()

    def kill(self) -> None:
        """End it, if nobody has waited for its end: its number may be that of another one, then."""
        with self._lock, suppress(ProcessLookupError):
            if not self._is_over:
                os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> None:
        """Wait for its end."""
        with self._lock, suppress(ChildProcessError):
            if not self._is_over:
                self._is_over = True
                os.waitpid(self.pid, 0)


Process = subprocess.Popen[bytes] | Twin


def start(setup: Setup, home: Home, second: Home | None = None) -> subprocess.Popen[bytes]:
    """Start an interpreter as a worker in one home, with a twin in a second."""
    ends = [each.theirs for each in (home, second) if each]
    words = [str(ends[0].fileno()), setup.encode()]
    words += [str(second.theirs.fileno()), second.folder] if second else []
    with ExitStack() as stack:
        for end in ends:
            stack.enter_context(end)
        return subprocess.Popen(
            [sys.executable, *FLAGS, _COMMAND, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            pass_fds=[end.fileno() for end in ends],
            env=_environment(),
            cwd=home.folder,
            start_new_session=True,
        )


def _environment() -> dict[str, str]:
    """Return variables that say nothing of ours but where modules and libraries are."""
    modules = os.pathsep.join(str(Path(path).absolute()) for path in sys.path)
    libraries = {
        name: os.environ[name]
        for name in ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
        if name in os.environ
    }
    return _ENVIRONMENT | libraries | {"PYTHONPATH": modules}
