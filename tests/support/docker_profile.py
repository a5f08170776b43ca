"""Docker's default seccomp profile, for one command and its children, as an ordinary user.

    python tests/support/docker_profile.py [--without-landlock] COMMAND...

The filter refuses what the profile refuses without CAP_SYS_ADMIN and that Linux would allow an
ordinary user, plus the best known of the other calls: namespaces, mounts, keys, bpf, io_uring and
so on (https://docs.docker.com/engine/security/seccomp/). As there, `clone3` does not exist.
Engines before 20.10.18 refuse Landlock as well.
"""

import ctypes
import errno
import os
import platform
import sys
from pathlib import Path

from cwm_cli.sandbox.linux import filter_system_calls, give_up_new_privileges
from old_kernel import (
    ALLOW,
    FIRST_ARGUMENT,
    IF_EQUAL,
    LANDLOCK_CALLS,
    LOAD,
    NUMBER,
    REFUSE,
    RETURN,
    step,
    when,
)

WITHOUT_LANDLOCK = "--without-landlock"
MAPPED = "65534 0 1"
"""Outside root, inside nobody."""

NEW_USER_NAMESPACE = 0x10000000
NAMESPACE_FLAGS = 0x7E020000
"""The flags of `clone` for new cgroup, IPC, mount, network, process, user and UTS namespaces."""

CLONE = {"x86_64": 56, "aarch64": 220}
CLONE3 = 435
REFUSED = {
    "x86_64": (
        *(103, 155, 163, 165, 166, 167, 168, 169, 175, 176, 179, 237, 238, 239, 246, 248, 249),
        *(250, 272, 279, 298, 304, 308, 312, 313, 320, 321, 323),
    ),
    "aarch64": (
        *(116, 41, 89, 40, 39, 224, 225, 142, 105, 106, 60, 235, 237, 236, 104, 217, 218),
        *(219, 97, 239, 241, 265, 268, 272, 273, 294, 280, 282),
    ),
}
"""syslog pivot_root acct mount umount2 swapon swapoff reboot init_module delete_module quotactl
mbind set_mempolicy get_mempolicy kexec_load add_key request_key keyctl unshare move_pages
perf_event_open open_by_handle_at setns kcmp finit_module kexec_file_load bpf userfaultfd"""

REFUSED_ON_ALL = (425, 426, 427, 428, 429, 430, 431, 432, 433, 438, 440, 442)
"""io_uring_* open_tree move_mount fsopen fsconfig fsmount fspick pidfd_getfd process_madvise
mount_setattr"""

IF_ANY_BIT = 0x45


def under_profile(command: list[str], *, landlock: bool = True) -> list[str]:
    """Return the command that runs another one under the profile."""
    flags = [] if landlock else [WITHOUT_LANDLOCK]
    return [sys.executable, str(Path(__file__).resolve()), *flags, *command]


def profile(machine: str, *, landlock: bool) -> bytes:
    """Return the filter as a classic BPF program."""
    refused = [*REFUSED[machine], *REFUSED_ON_ALL, *(() if landlock else LANDLOCK_CALLS)]
    code = [step(LOAD, NUMBER), *when(CLONE3, errno.ENOSYS)]
    for number in refused:
        code += when(number, errno.EPERM)
    code += [
        step(IF_EQUAL, CLONE[machine], 0, 3),
        step(LOAD, FIRST_ARGUMENT),
        step(IF_ANY_BIT, NAMESPACE_FLAGS, 0, 1),
        step(RETURN, REFUSE | errno.EPERM),
        step(RETURN, ALLOW),
    ]
    return b"".join(code)


def become_ordinary() -> None:
    """Turn root into an ordinary user without capabilities who still owns the files of root."""
    if os.geteuid() == 0:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(NEW_USER_NAMESPACE):
            raise OSError(ctypes.get_errno(), "no user namespace")
        for file, line in (("setgroups", "deny"), ("uid_map", MAPPED), ("gid_map", MAPPED)):
            Path("/proc/self", file).write_text(line)


def main() -> None:
    """Become the command."""
    command = sys.argv[1:]
    landlock = command[0] != WITHOUT_LANDLOCK
    become_ordinary()
    give_up_new_privileges()
    filter_system_calls(profile(platform.machine(), landlock=landlock))
    arguments = command if landlock else command[1:]
    os.execvp(arguments[0], arguments)


if __name__ == "__main__":
    main()
