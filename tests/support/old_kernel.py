"""A kernel that has neither system call filters nor Landlock, for one command and its children.

    python tests/support/old_kernel.py COMMAND...

The command gets the same errors as there: EINVAL from seccomp, ENOSYS from Landlock.
"""

import errno
import os
import platform
import struct
import sys
from pathlib import Path

import pytest

from cwm_cli.sandbox.linux import filter_system_calls, give_up_new_privileges

SECCOMP_CALLS = {"x86_64": 317, "aarch64": 277}
PRCTL_CALLS = {"x86_64": 157, "aarch64": 167}
LANDLOCK_CALLS = (444, 445, 446)
PR_SET_SECCOMP = 22

LOAD, IF_EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, REFUSE = 0x7FFF0000, 0x00050000
NUMBER, FIRST_ARGUMENT = 0, 16

available = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() not in SECCOMP_CALLS,
    reason="needs Linux on x86_64 or aarch64, to pretend that it is older",
)


def on_old_kernel(command: list[str]) -> list[str]:
    """Return the command that runs another one there."""
    return [sys.executable, str(Path(__file__).resolve()), *command]


def old_filter(machine: str) -> bytes:
    """Return a filter that refuses the calls that an old kernel does not have."""
    prctl = [step(LOAD, FIRST_ARGUMENT), *when(PR_SET_SECCOMP, errno.EINVAL), step(RETURN, ALLOW)]
    code = [step(LOAD, NUMBER), *when(SECCOMP_CALLS[machine], errno.EINVAL)]
    for number in LANDLOCK_CALLS:
        code += when(number, errno.ENOSYS)
    code += [step(IF_EQUAL, PRCTL_CALLS[machine], 0, len(prctl)), *prctl, step(RETURN, ALLOW)]
    return b"".join(code)


def step(operation: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    """Assemble an instruction; the jumps count the instructions to leave out."""
    return struct.pack("=HBBI", operation, if_true, if_false, value)


def when(value: int, error: int) -> list[bytes]:
    """Return instructions that refuse the call if the loaded argument has a value."""
    return [step(IF_EQUAL, value, 0, 1), step(RETURN, REFUSE | error)]


def main() -> None:
    """Become the command, on an old kernel."""
    give_up_new_privileges()
    filter_system_calls(old_filter(platform.machine()))
    os.execvp(sys.argv[1], sys.argv[1:])


if __name__ == "__main__":
    main()
