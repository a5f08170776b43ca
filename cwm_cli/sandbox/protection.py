"""Gaps in the protection against generated programs: their names, and which the user accepts."""

from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from typing import NamedTuple, Self

from pydantic import BaseModel

from cwm_cli.errors import CwmError, UnknownNameError


class Gap(NamedTuple):
    """A danger from a missing protection, and how to close the gap."""

    danger: str
    remedy: str


_FILTER = "a Linux kernel that filters system calls (seccomp), on x86_64 or aarch64"
_LANDLOCK = "a Linux kernel with seccomp filters, or with Landlock (5.13 or newer)"
_ALWAYS = "unknown: please report this with the output of `cwm doctor --json`"
_LINUX = "Linux, for instance in a container"

GAPS = {
    "read-files": Gap("read your files and the keys in them", _LANDLOCK),
    "see-files": Gap("list your files with sizes and times", _FILTER),
    "write-files": Gap("write and delete your files", _LANDLOCK),
    "network": Gap("use the network", _FILTER),
    "local-sockets": Gap("connect to local services such as Docker's", _FILTER),
    "shared-memory": Gap("leave data in shared memory for later programs", _FILTER),
    "signals": Gap("stop or end your other processes", _FILTER),
    "other-processes": Gap("read the memory and the variables of your processes", _LANDLOCK),
    "secrets": Gap("read environment variables and the keys in them", _ALWAYS),
    "descriptors": Gap("use files that other processes have opened", _ALWAYS),
    "simulator": Gap("import the true environment as its model", _LANDLOCK),
    "privileges": Gap("act as root or gain more rights", _FILTER),
    "memory": Gap("take more memory than its limit", _LINUX),
    "machine-code": Gap("run machine code that it has written", _FILTER),
    "system-calls": Gap("try every system call for a flaw of the kernel", _FILTER),
    "threads": Gap("start threads", _FILTER),
    "processes": Gap("start other programs that may outlive it", _FILTER),
}
"""All gaps by name, in the order of the checks of `probe` and of messages."""

ALL_GAPS = "all"
"""Accepts every gap that the first probe finds open."""


class Unprotected(CwmError):
    """A gap is open that the user has not accepted."""


class Protection(BaseModel, frozen=True):
    """The result of the probe on this machine, and the active guards.

    Attributes:
        blocked: For each name of `GAPS`, whether the attempt of the probe was blocked.
        accepted: Names of accepted gaps, never `ALL_GAPS`.
        layers: The state of each guard: "on", or why it is not on.
        landlock: Version of Landlock in the kernel, or 0.
        kernel: Name and version of the kernel.
        machine: Architecture, such as "x86_64".
        python: Version of Python.
        user: "root" or "ordinary".
    """

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
        """Names of the open gaps."""
        return [name for name, blocked in self.blocked.items() if not blocked]

    def accepting(self, names: Iterable[str]) -> Self:
        """Return a copy with these gaps accepted; `ALL_GAPS` adds the open gaps."""
        accepted = dict.fromkeys(names)
        if ALL_GAPS in accepted:
            accepted = dict.fromkeys([*self.gaps, *accepted])
            del accepted[ALL_GAPS]
        return self.model_copy(update={"accepted": tuple(accepted)})

    def require(self) -> None:
        """Raise `Unprotected` if a gap is open that is not accepted."""
        missing = [name for name in self.gaps if name not in self.accepted]
        if missing:
            flag = ALL_GAPS if len(missing) > 1 else missing[0]
            raise Unprotected(
                f"on this machine generated programs could {dangers(missing)}: see `cwm doctor`, "
                "run cwm in its container (docs/docker.md), or accept the risk with "
                f"--allow-gap {flag}"
            )


def dangers(gaps: Sequence[str]) -> str:
    """Return the dangers of gaps in one phrase: up to four in words, and the number of the rest."""
    named = [GAPS[name].danger for name in gaps[:4]]
    if more := len(gaps) - len(named):
        named.append(f"do {more} more thing{'s' * (more > 1)}")
    *first, last = named
    return f"{', '.join(first)} and {last}" if first else last


def check_access(tools: Iterable[str], accepted: Iterable[str]) -> None:
    """Raise `CwmError` for an unknown gap or a tool that is not installed, before any work.

    The import of a tool is checked later, in the sandbox.
    """
    check_gaps(accepted)
    for tool in tools:
        top = tool.partition(".")[0]
        if not top or find_spec(top) is None:
            raise CwmError(f"the tool {tool!r} is not installed: install it, or leave out --tool")


def check_gaps(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names if each is a gap or `ALL_GAPS`, else raise `UnknownNameError`."""
    for name in names:
        if name not in GAPS and name != ALL_GAPS:
            raise UnknownNameError("gap", name, [*GAPS, ALL_GAPS])
    return tuple(names)
