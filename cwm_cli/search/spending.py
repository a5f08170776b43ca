"""What may be spent, and when: a limit of money and the rates of providers, for one job or many.

Before a completion its worst cost is kept back, and afterwards its real cost is settled, so that
what was charged never exceeds the limit, whoever is killed when. A request waits for its turn in
the rate of its provider, and all wait where one of them was told to. Of one job all that is in
memory; of many it is a file, which whoever began them opens (`open_spending`) and anybody may ask
(`answered`). A job finds in the environment variable `CWM_SPENDING` how it asks there.
"""

import fcntl
import os
import random
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cwm_cli.errors import CwmError
from cwm_cli.search.contracts import Completion, UnansweredError, unheard

SPENDING = "CWM_SPENDING"
"""The environment variable that says how a job asks what it may spend: `file:PATH`, or `fd:N` for
a stream socket, on which it writes one JSON line and reads one."""

STALE_SECONDS = 3600.0
"""What was kept back longer ago, nobody waits for: a completion takes ten minutes by default."""

FIRST_PAUSE = 0.05
"""Seconds after which it is asked again whether something came free, the first time."""

LONGEST_PAUSE = 2.0
"""And later: a completion takes longer, and 200 jobs that wait ask 100 times a second."""

SPREAD_SECONDS = 1.0
"""After a pause requests begin within so many seconds, not all at once."""

MINUTE = 60.0

Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
PerMinute = Annotated[float, Field(gt=0)]


class Reserved(BaseModel):
    """What is kept back for a completion: of which job, how many US dollars, since when."""

    model_config = ConfigDict(frozen=True)

    job: str
    amount: Amount
    since: float


class ProviderRate(BaseModel):
    """When the next request and the next token of a provider are due, in seconds since 1970.

    Requests and tokens are spread evenly: who comes first has the first turn.
    """

    model_config = ConfigDict(frozen=True)

    requests_due: float = 0.0
    tokens_due: float = 0.0
    paused_until: float = 0.0


class SpendingRequest(BaseModel):
    """What a job asks, a line of JSON.

    - "begin": what was kept back for `job` and never settled is lost; how much is left?
    - "reserve" `amount` for `job` under the name `reservation`.
    - "settle" a reservation: it cost `amount`, or nobody knows what (None).
    - "charge" `amount` that nothing was kept back for.
    - "take" a turn for a request of so many `tokens`, `again` once one was waited for.
    - "correct" the `tokens` of a request by so many, or fewer.
    - "pause" all requests to `provider` for so many `seconds`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    ask: Literal["begin", "reserve", "settle", "charge", "take", "correct", "pause"]
    job: str = ""
    reservation: str = ""
    amount: Amount | None = None
    provider: str = ""
    requests_per_minute: PerMinute | None = None
    tokens_per_minute: PerMinute | None = None
    tokens: int = 0
    again: bool = False
    seconds: Amount = 0.0


Decision = Literal["granted", "wait", "never"]


class SpendingReply(BaseModel):
    """What a job is told, a line of JSON: `left` of the `limit`, and how many `seconds` to wait.

    "wait" means that what is kept back for others may come free, "never" that it is not enough.
    """

    model_config = ConfigDict(frozen=True)

    decision: Decision = "granted"
    limit: float | None = None
    left: float | None = None
    seconds: float = 0.0
    error: str = ""


class SpendingState(BaseModel):
    """What may be spent in US dollars, None being no limit, and what was.

    `lost` was kept back for completions of jobs that died: nobody knows whether they were
    charged, so they count as charged at their worst.
    """

    model_config = ConfigDict(frozen=True)

    limit: Amount | None = None
    spent: Amount = 0.0
    lost: Amount = 0.0
    reserved: dict[str, Reserved] = {}
    providers: dict[str, ProviderRate] = {}

    @property
    def kept_back(self) -> float:
        """What completions may cost that are under way."""
        return sum(each.amount for each in self.reserved.values())

    @property
    def left(self) -> float | None:
        """What is neither spent nor kept back."""
        if self.limit is None:
            return None
        return self.limit - self.spent - self.lost - self.kept_back

    def answer(self, request: SpendingRequest, now: float) -> "tuple[SpendingState, SpendingReply]":
        """Return the state after a request, and what is replied; `now` is in seconds since 1970."""
        if request.ask in ("take", "correct", "pause"):
            known = self.providers.get(request.provider, ProviderRate())
            rate, seconds = _timed(known, request, now)
            if rate == known:
                return self, SpendingReply(seconds=seconds)
            providers = self.providers | {request.provider: rate}
            return self._with(providers=providers), SpendingReply(seconds=seconds)
        if request.ask == "reserve":
            return self._reserve(request, now)
        after = self
        if request.ask == "begin":
            after = self.lapsed(request.job)
        elif request.ask == "charge":
            after = self._with(spent=self.spent + (request.amount or 0.0))
        elif request.reservation in self.reserved:  # else it was lost, and counts already
            others = dict(self.reserved)
            kept = others.pop(request.reservation).amount
            cost = kept if request.amount is None else request.amount
            after = self._with(spent=self.spent + cost, reserved=others)
        return after, SpendingReply(limit=after.limit, left=after.left)

    def lapsed(self, job: str | None = None) -> "SpendingState":
        """Return the state once a job that settles no more has died, or all of them have."""
        gone = {n: r for n, r in self.reserved.items() if job in (None, r.job)}
        if not gone:
            return self
        left = {name: each for name, each in self.reserved.items() if name not in gone}
        lost = self.lost + sum(each.amount for each in gone.values())
        return self._with(lost=lost, reserved=left)

    def _reserve(
        self, request: SpendingRequest, now: float
    ) -> "tuple[SpendingState, SpendingReply]":
        """Keep back what a completion may cost, if it is there."""
        left, amount = self.left, request.amount or 0.0
        if request.reservation not in self.reserved and (left is None or amount <= left):
            kept = Reserved(job=request.job, amount=amount, since=now)
            after = self._with(reserved=self.reserved | {request.reservation: kept})
            return after, SpendingReply(limit=self.limit, left=after.left)
        decision: Decision = "granted"
        if request.reservation not in self.reserved:
            awaited = any(now - each.since < STALE_SECONDS for each in self.reserved.values())
            decision = "wait" if awaited else "never"
        return self, SpendingReply(decision=decision, limit=self.limit, left=left)

    def _with(self, **changed: object) -> "SpendingState":
        return self.model_copy(update=changed)


def _timed(rate: ProviderRate, request: SpendingRequest, now: float) -> tuple[ProviderRate, float]:
    """Return the rate of a provider after a request, and the seconds until its turn."""
    if request.ask == "pause":
        until = max(rate.paused_until, now + request.seconds)
        return rate.model_copy(update={"paused_until": until}), 0.0
    each, token = request.requests_per_minute, request.tokens_per_minute
    if request.ask == "correct":
        due = rate.tokens_due + request.tokens * MINUTE / token if token else 0.0
        return rate.model_copy(update={"tokens_due": max(due, 0.0)}), 0.0
    if request.again and now >= rate.paused_until:
        return rate, 0.0  # the turn that was waited for has come
    begins = max(now, rate.paused_until)
    begins = max(begins, rate.requests_due) if each else begins
    begins = max(begins, rate.tokens_due) if token else begins
    changed = {}
    if each:
        changed["requests_due"] = begins + MINUTE / each
    if token:
        changed["tokens_due"] = begins + request.tokens * MINUTE / token
    return rate.model_copy(update=changed), begins - now


def open_spending(place: Path, limit: float | None, recorded: Callable[[], float]) -> None:
    """Make the file at `place` ready for jobs, of which none is running yet.

    The limit may be another than before. What was kept back for jobs that died is lost. Where there
    is a limit, what the journals of the jobs add up to (`recorded`, in US dollars) is spent in any
    case: the file may be missing, older than they are, or from when nobody counted.
    """
    place.parent.mkdir(parents=True, exist_ok=True)
    with _locked(place):
        state = (_read(place) or SpendingState()).lapsed()
        spent = state.spent if limit is None else max(state.spent, recorded())
        _write(place, state.model_copy(update={"limit": limit, "spent": spent}))


def lapse(place: Path, job: str) -> None:
    """Take note that a job has ended: what it kept back and never settled is lost."""
    answered(place, SpendingRequest(ask="begin", job=job).model_dump_json().encode())


def read_spending(place: Path) -> SpendingState | None:
    """Return what the file at `place` says, None where there is none."""
    return _read(place)


def answered(place: Path, request: bytes) -> bytes:
    """Answer one JSON line from the file at `place`, at once: whoever has to wait asks again.

    What is wrong is in the reply. The file is whole and on the disk before the reply is given.
    """
    try:
        asked = SpendingRequest.model_validate_json(request)
        with _locked(place):
            state = _read(place)
            if state is None:
                raise CwmError(
                    f"{place} is missing: repeat the command that started the jobs, which "
                    "creates it"
                )
            after, reply = state.answer(asked, time.time())
            if after is not state:
                _write(place, after)
    except (CwmError, OSError) as error:
        reply = SpendingReply(decision="never", error=str(error))
    except ValidationError as error:
        wrong = error.errors(include_url=False, include_context=False, include_input=False)[0]
        reply = SpendingReply(decision="never", error=f"not understood: {wrong['msg']}")
    return reply.model_dump_json().encode() + b"\n"


_in_process = threading.Lock()


@contextmanager
def _locked(place: Path) -> Iterator[None]:
    """Hold the lock of a file, among threads, processes and machines with the same folder.

    The lock is a file of its own, since the other is replaced as a whole. Network file systems
    lock for processes, not for threads.
    """
    with _in_process:
        descriptor = os.open(f"{place}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def _read(place: Path) -> SpendingState | None:
    """Read a file; one that is damaged is no reason to spend more."""
    try:
        return SpendingState.model_validate_json(place.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise CwmError(
            f"{place} is damaged: remove it, and the same command restores it from the journals"
        ) from error


def _write(place: Path, state: SpendingState) -> None:
    """Replace a file as a whole, and return when it is on the disk."""
    partial = place.with_name(f".{place.name}.part")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        content = memoryview(state.model_dump_json(exclude_defaults=True).encode())
        while content:
            content = content[os.write(descriptor, content) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    partial.replace(place)
    folder = os.open(place.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with suppress(OSError):  # where folders cannot be synchronised
            os.fsync(folder)
    finally:
        os.close(folder)


class Spending:
    """Where it is asked what may be spent and when; from several threads."""

    def ask(self, request: SpendingRequest) -> SpendingReply:
        """Return the reply to a request; raises `CwmError` where there is none."""
        raise NotImplementedError


@dataclass
class SpendingInMemory(Spending):
    """What may be spent by this process alone."""

    state: SpendingState = field(default_factory=SpendingState)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    def ask(self, request: SpendingRequest) -> SpendingReply:
        """Answer from memory."""
        with self._lock:
            self.state, reply = self.state.answer(request, time.time())
        return reply


@dataclass(frozen=True)
class SpendingFile(Spending):
    """What is in a file, for whoever has the folder."""

    place: Path

    def ask(self, request: SpendingRequest) -> SpendingReply:
        """Answer from the file."""
        return _understood(answered(self.place, request.model_dump_json().encode()))


class SpendingSocket(Spending):
    """Asks whoever is at the other end of a socket."""

    def __init__(self, descriptor: int) -> None:
        os.set_inheritable(descriptor, False)  # what this process starts has no business there
        self._lines = socket.socket(fileno=descriptor).makefile("rwb")
        self._lock = threading.Lock()

    def ask(self, request: SpendingRequest) -> SpendingReply:
        """Write a line and read one."""
        with self._lock:
            try:
                self._lines.write(request.model_dump_json().encode() + b"\n")
                self._lines.flush()
                line = self._lines.readline()
            except OSError as error:
                line = str(error).encode()
        return _understood(line)


def _understood(line: bytes) -> SpendingReply:
    """Read a reply."""
    try:
        reply = SpendingReply.model_validate_json(line)
    except ValidationError as error:
        raise CwmError(
            "the process that started this job and limits its cost has ended: "
            "the same command continues the job"
        ) from error
    if reply.error:
        raise CwmError(reply.error)
    return reply


def shared_spending() -> Spending | None:
    """Return where this process asks what all jobs together may spend, None for one on its own."""
    return _shared(os.environ.get(SPENDING, ""))


@cache
def _shared(how: str) -> Spending | None:
    """Open what an environment variable names, once: threads share a socket."""
    kind, _, where = how.partition(":")
    if not how:
        return None
    if kind == "file" and where:
        return SpendingFile(Path(where))
    if kind == "fd" and where.isdecimal():
        return SpendingSocket(int(where))
    raise CwmError(f"${SPENDING} is {how!r}: it must be file:PATH or fd:N")


class Refusal(Enum):
    """Why nothing is kept back for a completion."""

    WAIT = "what is kept back for others may come free"
    NEVER = "it might exceed the limit"


class Reservation(NamedTuple):
    """What is kept back for a completion, in US dollars."""

    name: str
    amount: float


@dataclass(frozen=True)
class CostLimit:
    """What completions may cost together: those of one search, or of all jobs there are.

    `job` is the name of this one among the others; "" where there are none: then an answer may
    have all that is left.
    """

    spending: Spending
    job: str = ""

    @classmethod
    def own(cls, limit: float, spent: float = 0.0, job: str = "") -> "CostLimit":
        """Return a limit for this process alone, in US dollars; of several searches with a name."""
        return cls(SpendingInMemory(SpendingState(limit=limit, spent=spent)), job)

    @classmethod
    def shared(cls, job: str) -> "CostLimit | None":
        """Return the limit that this job shares with others; None where there is none.

        What the job kept back before, when it died, is lost.
        """
        spending = shared_spending()
        if spending is None:
            return None
        begun = spending.ask(SpendingRequest(ask="begin", job=job))
        return None if begun.limit is None else cls(spending, job)

    @property
    def left(self) -> float:
        """What is neither spent nor kept back, in US dollars."""
        return self.spending.ask(SpendingRequest(ask="charge", amount=0.0)).left or 0.0

    def reserve(self, worst: float, among: int = 1) -> Reservation | Refusal:
        """Keep back what a completion may cost, at once or not at all.

        That is the `worst` or, within one search, an even share of what is left `among` so many
        where that is more: an answer that was cut off may be asked for again.
        """
        name = uuid.uuid4().hex
        asked = SpendingRequest(ask="reserve", job=self.job, reservation=name, amount=worst)
        if not self.job:
            asked = asked.model_copy(update={"amount": max(worst, self.left / among)})
        reply = self.spending.ask(asked)
        if reply.decision == "granted":
            return Reservation(name, asked.amount or 0.0)
        return Refusal.WAIT if reply.decision == "wait" else Refusal.NEVER

    def settle(self, reservation: Reservation, cost: float | None) -> None:
        """Say what a completion cost; where nobody knows (None) it counts with all of it."""
        self.spending.ask(
            SpendingRequest(ask="settle", job=self.job, reservation=reservation.name, amount=cost)
        )

    def settled(self, reservation: Reservation, ask: Callable[[], Completion]) -> Completion:
        """Return the answer that a reservation pays for, or raise what asking for it raises.

        What it cost is settled at once, so that others may have what is left.
        """
        cost: float | None = None
        try:
            completion = ask()
            cost = completion.usage.cost
        except UnansweredError as error:
            cost = error.cost
            raise
        finally:
            self.settle(reservation, cost)
        return completion

    def charge(self, cost: float) -> None:
        """Count what nothing was kept back for."""
        self.spending.ask(SpendingRequest(ask="charge", amount=cost))

    def recall(self, cost: float) -> None:
        """Count what an earlier run of this job cost, unless that was counted at the time."""
        if not self.job:
            self.charge(cost)


def pauses() -> Iterator[float]:
    """Yield how many seconds to wait each time before it is asked again, ever longer."""
    pause = FIRST_PAUSE
    while True:
        yield pause * random.uniform(0.5, 1.0)  # noqa: S311  # so that not all ask at once
        pause = min(1.5 * pause, LONGEST_PAUSE)


_alone = SpendingInMemory()
"""The rates of a process that shares them with no other."""


@dataclass(frozen=True)
class RateLimit:
    """How often a provider is asked, by all jobs, searches and threads together.

    None is no limit; a pause that a provider asks for holds for all in any case.
    """

    provider: str
    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None

    def wait(self, tokens: int = 0, tell: Callable[[str], None] = unheard) -> float:
        """Wait for the turn of a request that takes about so many tokens; return the seconds."""
        began = time.monotonic()
        seconds = self._ask("take", tokens=tokens)
        while seconds > 0:
            tell(f"waiting {seconds:.0f} s for {self.provider}")
            time.sleep(seconds + (0.0 if self.requests_per_minute else _spread(seconds)))
            seconds = self._ask("take", tokens=tokens, again=True)
        return time.monotonic() - began

    def correct(self, tokens: int) -> None:
        """Say that a request took so many tokens more, or fewer, than was said before."""
        if self.tokens_per_minute and tokens:
            self._ask("correct", tokens=tokens)

    def pause(self, seconds: float) -> None:
        """Have all wait for so many seconds: the provider said so."""
        self._ask("pause", seconds=seconds)

    def _ask(
        self,
        ask: Literal["take", "correct", "pause"],
        *,
        tokens: int = 0,
        again: bool = False,
        seconds: float = 0.0,
    ) -> float:
        """Ask, and return the seconds to wait."""
        spending = shared_spending() or _alone
        request = SpendingRequest(
            ask=ask,
            provider=self.provider,
            requests_per_minute=self.requests_per_minute,
            tokens_per_minute=self.tokens_per_minute,
            tokens=tokens,
            again=again,
            seconds=seconds,
        )
        return spending.ask(request).seconds


def _spread(seconds: float) -> float:
    """Return seconds by which a request begins later than it might."""
    return random.uniform(0.0, min(SPREAD_SECONDS, seconds))  # noqa: S311  # no secret
