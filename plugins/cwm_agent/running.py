"""Start an agent under a supervisor, and follow its output."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np

import cwm_cli
from cwm_agent.supervisor import AgentOutcome, AgentTask
from cwm_cli.errors import CwmError
from cwm_cli.sandbox.failures import printable
from cwm_cli.sandbox.linux import FileAccess, landlock_version

SYSTEM = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc", "/opt", "/nix", "/snap"),
    *("/proc", "/sys", "/run"),
)
"""Folders of the system, which an agent may read."""

DEVICES = "/dev"

PASSED = ("PATH", "LANG", "LC_ALL", "TERM", "SSL_CERT_FILE", "SSL_CERT_DIR")
"""Environment variables that every agent gets; they contain no secrets."""

LAST_LINES = 5
LINE_CHARACTERS = 300


class AgentEnd(NamedTuple):
    """The outcome of an agent, and the last lines of its output."""

    outcome: AgentOutcome
    lines: list[str]


def run_agent(task: AgentTask, tell: Callable[[str], None]) -> AgentEnd:
    """Run an agent to its end.

    Args:
        task: The command and its limits.
        tell: Receives each line of its output.
    """
    paths = [str(Path(file).parents[1]) for file in (cwm_cli.__file__ or "", __file__)]
    # The supervisor gets no variables of the user either, because the agent could read them.
    variables = {"PATH": os.environ.get("PATH", os.defpath), "PYTHONPATH": os.pathsep.join(paths)}
    supervisor = subprocess.Popen(
        [sys.executable, "-m", "cwm_agent.supervisor"],
        env=variables,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C reaches it by the end of its input
    )
    assert supervisor.stdin and supervisor.stdout and supervisor.stderr
    lines: deque[str] = deque(maxlen=LAST_LINES)
    with supervisor:
        data = task._asdict() | {"access": task.access and task.access._asdict()}
        supervisor.stdin.write(json.dumps(data).encode() + b"\n")
        supervisor.stdin.flush()
        while piece := supervisor.stderr.readline(1 << 16):
            line = printable(piece.decode("utf-8", "replace"), LINE_CHARACTERS)
            if line:
                lines.append(line)
                tell(line)
        found = supervisor.stdout.read()
        with suppress(BrokenPipeError):
            supervisor.stdin.close()
    try:
        outcome = AgentOutcome(**json.loads(found))
    except (ValueError, TypeError):
        outcome = AgentOutcome("interrupted")
    return AgentEnd(outcome, list(lines))


def find_command(words: Sequence[str]) -> list[str]:
    """Return a command with absolute paths of its program and of arguments that name files.

    Raises:
        CwmError: The program does not exist.
    """
    program = shutil.which(words[0])
    if program is None:
        raise CwmError(
            f"the command {words[0]!r} of the agent does not exist: install it, or correct "
            "-o command"
        )
    # Agents start in a folder of their own, where relative paths would name nothing.
    rest = [str(Path(word).absolute()) if Path(word).is_file() else word for word in words[1:]]
    return [str(Path(program).absolute()), *rest]


def clean_variables(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """Return the environment variables of an agent.

    Args:
        folder: Its folder, which is its HOME and TMPDIR unless these are passed.
        names: Names of further variables to pass.
    """
    passed = {name: os.environ[name] for name in (*PASSED, *names) if name in os.environ}
    return {"HOME": str(folder), "TMPDIR": str(folder), "PYTHONDONTWRITEBYTECODE": "1"} | passed


def file_access(
    folder: Path, command: Sequence[str], variables: Mapping[str, str], readable: Iterable[str]
) -> FileAccess:
    """Return the files that an agent may use: its folder, the system, and its own program.

    Of the Python installation it may read the standard library and NumPy, but no other package,
    because a package may contain the environment or its recorded data.

    Args:
        folder: The folder of the agent.
        command: Its command.
        variables: Its environment variables; it may read the folders of PATH.
        readable: Further files and folders that it may read.

    Raises:
        CwmError: The kernel cannot hide files.
    """
    if not landlock_version():
        raise CwmError(
            "this kernel has no Landlock, which hides your files from the agent: accept that it "
            "can read them with -o hide=false"
        )
    programs = [path for word in command for path in (Path(word), Path(word).resolve())]
    files = [path for path in programs if path.is_absolute() and path.is_file()]
    own = [str(path) for path in files] + [str(files[1].parent)]
    more = [str(Path(each).expanduser()) for each in readable]
    listed, python = _python_files()
    paths = [each for each in variables.get("PATH", "").split(os.pathsep) if each]
    return FileAccess(
        read=[*SYSTEM, *paths, *own, *python, *more],
        listed=listed,
        write=[str(folder), DEVICES],
    )


def _python_files() -> tuple[list[str], list[str]]:
    """Return the folders that may be listed, and the readable files of this Python."""
    library, packages = (Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib"))
    third_party = ("site-packages", "dist-packages")
    standard = [str(each) for each in library.iterdir() if each.name not in third_party]
    numpy = Path(np.__file__).parent
    executable = Path(sys.executable)
    extra = [
        *(executable, executable.resolve(), Path(sys.prefix, "pyvenv.cfg")),
        *(numpy, numpy.with_name("numpy.libs"), Path(sys.base_prefix, "bin")),
        *Path(sys.base_prefix, "lib").glob("libpython*"),
    ]
    listed = [str(library), str(packages), str(numpy.parent), sys.prefix]
    return listed, [*standard, *map(str, extra)]
