"""What a program cannot do on this machine, as a probe found by trying."""

from collections.abc import Iterable
from importlib.util import find_spec
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict

from cwm_cli.errors import CwmError, UnknownNameError
from cwm_cli.sandbox.confinement import NOT_HERE


class Gap(NamedTuple):
    """What a program could do if a protection is missing, and what would close the gap."""

    danger: str
    remedy: str


_FILTER = "a Linux kernel that filters system calls (seccomp), on x86_64 or aarch64"
_LANDLOCK = "a Linux kernel with seccomp filters, or with Landlock (5.13 or newer)"
_ALWAYS = "nothing that is known: please report this, with the output of `cwm doctor --json`"
_LINUX = "Linux, for instance in a container"

GAPS = {
    "read-files": Gap("read your files, with any keys and answers in them", _LANDLOCK),
    "see-files": Gap("see which files there are, their sizes and times", _FILTER),
    "write-files": Gap("write, change and delete your files", _LANDLOCK),
    "network": Gap("send and receive over the network", _FILTER),
    "local-sockets": Gap("talk to services of this machine, such as Docker's", _FILTER),
    "shared-memory": Gap("leave something in memory for the programs after it", _FILTER),
    "signals": Gap("stop or end your other processes", _FILTER),
    "other-processes": Gap("read the memory and the variables of your processes", _LANDLOCK),
    "secrets": Gap("see environment variables, with any keys in them", _ALWAYS),
    "descriptors": Gap("use files that other processes have opened", _ALWAYS),
    "simulator": Gap("import the true environment as its model", _LANDLOCK),
    "privileges": Gap("act as root, or gain further rights", _FILTER),
    "memory": Gap("take more memory than it is allowed", _LINUX),
    "machine-code": Gap("run machine code of its own making", _FILTER),
    "system-calls": Gap("try every system call for a flaw of the kernel", _FILTER),
    "threads": Gap("start threads", _FILTER),
    "processes": Gap("start other programs, which may go on after it", _FILTER),
}
"""By name, in the order of the checks of `probe`."""


class Unprotected(CwmError):
    """A program could do what nobody has agreed to."""


class Protection(BaseModel):
    """What a program could not do when it tried, and what keeps it from that.

    `blocked` has an entry for each of `GAPS`; `layers` says of each guard
    whether it is on, or why not.
    """

    model_config = ConfigDict(frozen=True)

    blocked: dict[str, bool]
    accepted: tuple[str, ...] = ()
    layers: dict[str, str]
    landlock: int
    kernel: str
    machine: str
    python: str
    user: str

    @property
    def gaps(self) -> list[str]:
        """What a program could do."""
        return [name for name, blocked in self.blocked.items() if not blocked]

    @property
    def checks_source(self) -> bool:
        """Whether programs are looked through before they run, as the kernel cannot hold them."""
        return self.layers["seccomp"].startswith(NOT_HERE)

    def require(self) -> None:
        """Refuse gaps that were not accepted."""
        missing = [name for name in self.gaps if name not in self.accepted]
        if missing:
            dangers = "; ".join(f"{GAPS[name].danger} ({name})" for name in missing)
            flags = " ".join(f"--allow-gap {name}" for name in missing)
            raise Unprotected(
                f"on this machine a generated program could: {dangers}. `cwm doctor` says how "
                f"to close this; to run all the same, add {flags}"
            )


def check_access(tools: Iterable[str], accepted: Iterable[str]) -> None:
    """Refuse gaps that do not exist, and tools that are not installed, before any work is done.

    Whether a tool can be let in is found out where it is.
    """
    check_gaps(accepted)
    for tool in tools:
        top = tool.partition(".")[0]
        if not top or find_spec(top) is None:
            raise CwmError(f"the tool {tool!r} is not installed: install it, or leave --tool out")


def check_gaps(names: Iterable[str]) -> tuple[str, ...]:
    """Return names of gaps; one that does not exist is refused."""
    for name in names:
        if name not in GAPS:
            raise UnknownNameError("gap", name, GAPS)
    return tuple(names)
