"""Who may write to a run on an object store: one process at a time claims it, and renews that.

A run is claimed by making the next number in `lock.claims`, which one process alone can do. Who
holds it renews it until it is released; one that was not renewed for its lease may be taken over.
How old it is, is told by the clock of the storage: that of another machine may be wrong.
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
"""The environment variable with the seconds for which a claim holds that is not renewed."""

LEASE_SECONDS = 90.0
"""For how long a claim holds without it: longer than networks usually fail, and short enough to
wait for when a machine was lost."""

RENEWALS = 4
"""Renewals within a lease: some may fail."""

LOOK_SECONDS = 2.0
"""How often a process that waits looks at the claim."""

CLAIMS = "lock.claims"
"""The folder of the claims of a run."""

_NUMBER = re.compile(r"\d{8}")


class LostClaimError(StorageError):
    """A run that another process has taken over, because its claim was not renewed in time."""


class Claim(BaseModel):
    """Who holds a run: `machine` tells processes apart that see each other, `begun` when it was."""

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
        """Return a new one of this process."""
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
    """The claim of a run for this process, among `objects`, those of the run.

    A life: `take`, `check` before anything is written, `release`; then it may be taken again.
    """

    objects: Objects
    lease: float = field(default_factory=lambda: _lease())
    _holding: "_Holding | None" = field(default=None, init=False, repr=False)

    @property
    def is_held(self) -> bool:
        """Whether this process has claimed the run, as far as it knows."""
        return self._holding is not None

    def take(self, patience: float = 0.0) -> None:
        """Claim the run; wait for up to `patience` seconds.

        Raises `BusyError`, which says who holds it.
        """
        deadline, offset, mine = time.monotonic() + patience, None, Claim.own(self.lease)
        while True:
            claims = _listed(self.objects)
            held = self._held(claims)
            if held is not None and held.claim.id != mine.id:
                offset = self._clock_offset() if offset is None else offset
                left = held.until - (time.time() + offset)
                if left > 0:
                    if time.monotonic() + min(LOOK_SECONDS, left) >= deadline:
                        raise BusyError(self._told(held, offset))
                    time.sleep(min(LOOK_SECONDS, left))
                    continue
            number = max(claims, default=0) + 1
            if self._made(number, mine):
                break
        self._holding = _Holding(self.objects, number, mine)
        self.objects.discard([_name(each) for each in claims])

    def check(self) -> None:
        """Refuse to write what another process may write as well."""
        if self._holding is not None and not self._holding.is_valid():
            raise self.lost()

    def lost(self) -> LostClaimError:
        """Return what is raised once another process holds the run."""
        words = f"another process has taken {self.objects.url} over"
        return LostClaimError(f"{words}: this process stops; everything it wrote is kept")

    def release(self) -> None:
        """Let others claim the run."""
        holding, self._holding = self._holding, None
        if holding is not None:
            holding.end()

    def check_free(self, claims: Mapping[int, ObjectInfo]) -> None:
        """Refuse what another process holds; `claims` are those of the run, as they were listed."""
        held = None if self.is_held else self._held(claims)
        if held is not None:
            offset = self._clock_offset()
            if held.until > time.time() + offset:
                raise BusyError(self._told(held, offset))

    def _held(self, claims: Mapping[int, ObjectInfo]) -> "_Held | None":
        """Return who holds the run, by the newest claim, None if nobody does for sure."""
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

    def _made(self, number: int, claim: Claim) -> bool:
        """Make a claim of a number; whether it is the newest then."""
        if not self.objects.create(_name(number), claim.model_dump_json().encode()):
            return False
        if max(_listed(self.objects), default=0) == number:
            return True
        self.objects.discard([_name(number)])  # an old number was free again
        return False

    def _clock_offset(self) -> float:
        """Return by how many seconds the clock of the storage is ahead of that of this machine."""
        name, before = f"{CLAIMS}/now-{uuid4().hex}", time.time()
        self.objects.write({name: b""})
        there = self.objects.modified(name)
        self.objects.discard([name])
        return 0.0 if there is None else there - before

    def _told(self, held: "_Held", offset: float) -> str:
        """Say who holds the run, and for how long."""
        until = time.strftime("%H:%M:%S", time.localtime(held.until - offset))
        who = f"process {held.claim.process} on {held.claim.host}"
        url = self.objects.url
        words = (
            f"another process is using {url} ({who}; its lock expires at {until} if it has ended)"
        )
        return f"{words}: wait until it ends, or choose another --run"


def is_claim(name: str) -> bool:
    """Whether an object says who holds the run that it belongs to."""
    return name.startswith(f"{CLAIMS}/")


def claims_by_run(found: Mapping[str, ObjectInfo]) -> dict[str, dict[int, ObjectInfo]]:
    """Return the claims among objects, by their numbers, of each run by the name of its folder."""
    runs: dict[str, dict[int, ObjectInfo]] = {}
    for name, info in found.items():
        place, _, number = name.rpartition("/")
        if PurePosixPath(place).name == CLAIMS and _NUMBER.fullmatch(number):
            runs.setdefault(place[: -len(CLAIMS)].rstrip("/"), {})[int(number)] = info
    return runs


class _Held(NamedTuple):
    """A claim of another process, and until when it holds by the clock of the storage."""

    claim: Claim
    until: float


@dataclass(eq=False)
class _Holding:
    """A claim that this process has, renewed in a thread."""

    objects: Objects
    number: int
    claim: Claim

    def __post_init__(self) -> None:
        self._over, self._is_lost, self._renewed = threading.Event(), False, _clock()
        self._thread = threading.Thread(target=self._renew, name="claim", daemon=True)
        self._thread.start()

    def is_valid(self) -> bool:
        """Whether the run is still this process's; asked there if the lease has run out."""
        if not self._is_lost and _clock() - self._renewed > self.claim.lease:
            self._try()
        return not self._is_lost

    def end(self) -> None:
        """Renew no more, and say that others may claim the run."""
        self._over.set()
        self._thread.join()
        if not self._is_lost:
            self._written(self.claim.model_copy(update={"released": True}))

    def _renew(self) -> None:
        """Renew the claim again and again; a failure is for the next time, or who writes."""
        while not self._over.wait(self.claim.lease / RENEWALS) and not self._is_lost:
            with suppress(CwmError, OSError):
                self._try()

    def _try(self) -> None:
        """Renew the claim."""
        began = _clock()
        if self._written(self.claim):
            self._renewed = began
        else:
            self._is_lost = True

    def _written(self, claim: Claim) -> bool:
        """Write the claim anew; whether it was still the newest."""
        if max(_listed(self.objects), default=0) != self.number:
            return False
        self.objects.write({_name(self.number): claim.model_dump_json().encode()})
        return True


def _name(number: int) -> str:
    """Return the name of the object that holds a claim."""
    return f"{CLAIMS}/{number:08}"


def _listed(objects: Objects) -> dict[int, ObjectInfo]:
    """List the claims, by their numbers."""
    found = objects.listed_in(CLAIMS)
    return {int(name): info for name, info in found.items() if _NUMBER.fullmatch(name)}


def _clock() -> float:
    """Return seconds that go on while the machine sleeps."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def _machine() -> str:
    """Return what processes have in common that see each other's numbers, empty if unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return f"{socket.gethostname()} {uuid4().hex}"


def _begun(process: int) -> str:
    """Return when a process on this machine began, empty if there is none."""
    stat = process_stat(process)
    return "" if stat is None or stat.state in "ZX" else stat.begun


def _lease() -> float:
    """Read for how long claims hold."""
    text = os.environ.get(LEASE, "")
    try:
        seconds = float(text) if text else LEASE_SECONDS
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise CwmError(f"${LEASE} is {text!r}: it must be a number of seconds")
    return seconds
