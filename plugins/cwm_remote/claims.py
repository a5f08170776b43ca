"""A renewable lease on a run in an object store, for one writing process at a time.

A process claims a run by creating the next number in `lock.claims`, which only one process can do.
It renews the claim until it releases it. A claim that was not renewed for the duration of its lease
may be taken over. The age of a claim is measured by the clock of the storage, because clocks of
machines may be wrong.
"""

import os
import re
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import NamedTuple
from uuid import uuid4

from pydantic import BaseModel, ConfigDict, ValidationError

from cwm_cli.errors import CwmError
from cwm_cli.runs.storage import BusyError, StorageError
from cwm_cli.sandbox.linux import process_stat
from cwm_remote.objects import ObjectInfo, Objects, modified

LEASE = "CWM_LEASE"
"""The environment variable with the duration of a lease in seconds."""

CLAIMS = "lock.claims"
"""The folder of the claims of a run."""

_NUMBER = re.compile(r"\d{8}")


class LostClaimError(StorageError):
    """A run that another process has taken over, because its claim was not renewed in time."""


class Claim(BaseModel):
    """The holder of a run.

    `machine` is equal for processes that can see each other, and `begun` is the start time of the
    process.
    """

    model_config = ConfigDict(frozen=True)

    id: str
    host: str
    process: int
    machine: str
    begun: str
    lease: float
    released: bool = False

    @classmethod
    def own(cls, lease: float) -> "Claim":
        """Return a new claim of this process."""
        return cls(
            id=uuid4().hex,
            host=socket.gethostname(),
            process=os.getpid(),
            machine=_machine(),
            begun=_begun(os.getpid()),
            lease=lease,
        )

    @property
    def is_dead(self) -> bool:
        """Whether its process was on this machine and has ended."""
        return self.machine == _machine() and _begun(self.process) != self.begun


@dataclass(eq=False)
class RunClaim:
    """The claim of this process on a run, whose objects are `objects`.

    Usage: `take`, `check` before each write, `release`; then it may be taken again.
    """

    objects: Objects
    lease: float = field(default_factory=lambda: _lease())
    _holding: "_Holding | None" = field(default=None, init=False, repr=False)

    @property
    def is_held(self) -> bool:
        """Whether this process has claimed the run and has not noticed a loss."""
        return self._holding is not None

    def take(self, patience: float = 0.0) -> None:
        """Claim the run.

        Args:
            patience: Maximum seconds to wait for another process.

        Raises:
            BusyError: If another process holds the run; the message names it.
        """
        deadline, offset, mine = time.monotonic() + patience, None, Claim.own(self.lease)
        while True:
            claims = _listed(self.objects)
            held = self._held(claims)
            if held is not None and held.claim.id != mine.id:
                offset = self._clock_offset() if offset is None else offset
                left = held.until - (time.time() + offset)
                if left > 0:
                    pause = min(2.0, left)  # seconds until the next check of the claim
                    if time.monotonic() + pause >= deadline:
                        raise BusyError(self._busy_message(held, offset))
                    time.sleep(pause)
                    continue
            number = max(claims, default=0) + 1
            if self._create(number, mine):
                break
        self._holding = _Holding(self.objects, number, mine)
        self.objects.discard([_name(each) for each in claims])

    def check(self) -> None:
        """Raise if another process has taken the run over."""
        if self._holding is not None and not self._holding.is_valid():
            raise self.lost()

    def lost(self) -> LostClaimError:
        """Return the error for a run that another process has taken over."""
        words = f"another process has taken {self.objects.url} over"
        return LostClaimError(f"{words}: this process stops; everything it wrote is kept")

    def release(self) -> None:
        """Release the run for other processes."""
        holding, self._holding = self._holding, None
        if holding is not None:
            holding.end()

    def check_free(self, claims: Mapping[int, ObjectInfo]) -> None:
        """Raise if another process holds the run, according to its listed claims."""
        held = None if self.is_held else self._held(claims)
        if held is not None:
            offset = self._clock_offset()
            if held.until > time.time() + offset:
                raise BusyError(self._busy_message(held, offset))

    def _held(self, claims: Mapping[int, ObjectInfo]) -> "_Held | None":
        """Return the holder according to the newest claim, None if there is certainly no holder."""
        if not claims:
            return None
        top = max(claims)
        try:
            claim = Claim.model_validate_json(self.objects.read([_name(top)])[_name(top)])
        except (FileNotFoundError, ValidationError):
            return None
        if claim.released or claim.is_dead:
            return None
        return _Held(claim, (modified(claims[top]) or time.time()) + claim.lease)

    def _create(self, number: int, claim: Claim) -> bool:
        """Create a claim with a number; return whether it is the newest one."""
        if not self.objects.create(_name(number), claim.model_dump_json().encode()):
            return False
        if max(_listed(self.objects), default=0) == number:
            return True
        self.objects.discard([_name(number)])  # the number of an old, removed claim
        return False

    def _clock_offset(self) -> float:
        """Return the difference of the clocks of the storage and of this machine, in seconds."""
        name, before = f"{CLAIMS}/now-{uuid4().hex}", time.time()
        self.objects.write({name: b""})
        there = self.objects.modified(name)
        self.objects.discard([name])
        return 0.0 if there is None else there - before

    def _busy_message(self, held: "_Held", offset: float) -> str:
        """Return an error message with the holder of the run and the end of its lease."""
        until = time.strftime("%H:%M:%S", time.localtime(held.until - offset))
        who = f"process {held.claim.process} on {held.claim.host}"
        url = self.objects.url
        words = (
            f"another process is using {url} ({who}; its lock expires at {until} if it has ended)"
        )
        return f"{words}: wait until it ends, or choose another --run"


def is_claim(name: str) -> bool:
    """Return whether an object is a claim."""
    return name.startswith(f"{CLAIMS}/")


def claims_by_run(found: Mapping[str, ObjectInfo]) -> dict[str, dict[int, ObjectInfo]]:
    """Return the claims among objects by number, for each run by the name of its folder."""
    runs: dict[str, dict[int, ObjectInfo]] = {}
    for name, info in found.items():
        place, _, number = name.rpartition("/")
        if PurePosixPath(place).name == CLAIMS and _NUMBER.fullmatch(number):
            runs.setdefault(place[: -len(CLAIMS)].rstrip("/"), {})[int(number)] = info
    return runs


class _Held(NamedTuple):
    """A claim of another process, and the end of its lease by the clock of the storage."""

    claim: Claim
    until: float


@dataclass(eq=False)
class _Holding:
    """A claim of this process, renewed in a thread."""

    objects: Objects
    number: int
    claim: Claim

    def __post_init__(self) -> None:
        self._over, self._is_lost, self._renewed = threading.Event(), False, _clock()
        self._thread = threading.Thread(target=self._renew, name="claim", daemon=True)
        self._thread.start()

    def is_valid(self) -> bool:
        """Return whether the run still belongs to this process; check if the lease has expired."""
        if not self._is_lost and _clock() - self._renewed > self.claim.lease:
            self._renew_once()
        return not self._is_lost

    def end(self) -> None:
        """Stop renewals, and release the run."""
        self._over.set()
        self._thread.join()
        if not self._is_lost:
            self._write_claim(self.claim.model_copy(update={"released": True}))

    def _renew(self) -> None:
        """Renew the claim periodically. Errors are left to the next renewal or the next write."""
        renewals = 4  # renewals per lease, so that some may fail
        while not self._over.wait(self.claim.lease / renewals) and not self._is_lost:
            with suppress(CwmError, OSError):
                self._renew_once()

    def _renew_once(self) -> None:
        began = _clock()
        if self._write_claim(self.claim):
            self._renewed = began
        else:
            self._is_lost = True

    def _write_claim(self, claim: Claim) -> bool:
        """Write the claim; return False if it is no longer the newest one."""
        if max(_listed(self.objects), default=0) != self.number:
            return False
        self.objects.write({_name(self.number): claim.model_dump_json().encode()})
        return True


def _name(number: int) -> str:
    """Return the name of the object with a claim."""
    return f"{CLAIMS}/{number:08}"


def _listed(objects: Objects) -> dict[int, ObjectInfo]:
    """Return the claims by number."""
    found = objects.listed_in(CLAIMS)
    return {int(name): info for name, info in found.items() if _NUMBER.fullmatch(name)}


def _clock() -> float:
    """Return monotonic seconds that include sleep of the machine."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def _machine() -> str:
    """Return an id shared by processes that can see each other, unique if it is unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return f"{socket.gethostname()} {uuid4().hex}"


def _begun(process: int) -> str:
    """Return the start time of a process on this machine, empty if it does not run."""
    stat = process_stat(process)
    return "" if stat is None or stat.state in "ZX" else stat.begun


def _lease() -> float:
    """Return the duration of leases in seconds."""
    text = os.environ.get(LEASE, "")
    try:
        # default duration of a lease: longer than usual network failures, and short enough to wait
        # for after a machine was lost
        lease_seconds = 90.0
        seconds = float(text) if text else lease_seconds
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise CwmError(f"${LEASE} is {text!r}: it must be a number of seconds")
    return seconds
