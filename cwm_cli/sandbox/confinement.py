"""The guards between a program and the machine, put up in its own process."""

import os
import resource
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from math import ceil
from types import ModuleType

from cwm_cli.sandbox.limits import Limits
from cwm_cli.sandbox.linux import die_with_parent

OPEN_FILES = 32
DUMP_BYTES = 1 << 16
"""Room in the log, beyond what a program may print, for where it hung or crashed."""

_IMPORTABLE = sys.stdlib_module_names | {"numpy"}


def confine(limits: Limits, worker: int) -> None:
    """Put up every guard; `worker` is the process that this one must not outlive."""
    die_with_parent()
    if os.getppid() != worker:
        raise ProcessLookupError("the worker has ended")
    sys.meta_path.insert(0, _ImportGuard())
    _limit_resources(limits)


class _ImportGuard(MetaPathFinder):
    """Refuses what is neither numpy nor standard: the real environment would be a perfect model."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> None:
        """Leave what is allowed to the finders that follow."""
        root = fullname.partition(".")[0]
        if root not in _IMPORTABLE:
            raise ModuleNotFoundError(
                f"cannot import {root!r}: only numpy and the standard library are available",
                name=fullname,
            )


def _limit_resources(limits: Limits) -> None:
    """Have the kernel refuse what goes beyond the limits.

    CPU time is watched more closely by the worker. The number of processes
    does not bind root, whose programs the worker watches for children.
    """
    seconds = ceil(limits.cpu_seconds) + 1
    _lower(resource.RLIMIT_CPU, seconds, seconds + 1)
    _lower(resource.RLIMIT_FSIZE, limits.output_bytes + DUMP_BYTES)
    _lower(resource.RLIMIT_NOFILE, OPEN_FILES)
    _lower(resource.RLIMIT_CORE, 0)
    _lower(resource.RLIMIT_NPROC, 0)
    if sys.platform == "linux":  # elsewhere it is not enforced, or counts what cannot be known
        _lower(resource.RLIMIT_AS, _address_space() + (limits.memory_mb << 20))


def _lower(name: int, soft: int, hard: int | None = None) -> None:
    """Set a limit, or keep the lower one that is set already."""
    _, present = resource.getrlimit(name)
    bounds = (soft, soft if hard is None else hard)
    if present != resource.RLIM_INFINITY:
        bounds = (min(bounds[0], present), min(bounds[1], present))
    resource.setrlimit(name, bounds)


def _address_space() -> int:
    """Return how many bytes of addresses this process uses."""
    statm = os.open("/proc/self/statm", os.O_RDONLY)
    try:
        return int(os.read(statm, 100).split()[0]) * resource.getpagesize()
    finally:
        os.close(statm)
