"""Cost limits and rate limits, for one job or many.

Before a completion its worst cost is reserved, and afterwards its real cost is settled. So the
total charge never exceeds the limit, even if jobs are killed. A request waits for its turn in the
rate limit of its provider, and a pause that the provider demands holds for all requests.

The state of a single job is in memory. Many jobs share a file: their parent process opens it
(`open_spending`), and any process may send requests to it (`answer_request`). The environment
variable `CWM_SPENDING` tells a job how to send its requests.
"""

import os
import random
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import BaseModel, Field, ValidationError

from cwm_cli.errors import CwmError
from cwm_cli.locks import hold_lock
from cwm_cli.search.contracts import Completion, UnansweredError, unheard

SPENDING = "CWM_SPENDING"
"""Environment variable with the address for spending requests: `file:PATH`, or `fd:N` for a stream
socket. A job writes one line of JSON to the socket and reads one line."""

Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
PerMinute = Annotated[float, Field(gt=0)]


class Reserved(BaseModel, frozen=True):
    """The reservation of a job: its amount in US dollars, and its time in Unix seconds."""

    job: str
    amount: Amount
    since: float


class ProviderRate(BaseModel, frozen=True):
    """The Unix times at which the next request and the next token of a provider are due.

    Requests and tokens are spread evenly, and served in order of arrival.
    """

    requests_due: float = 0.0
    tokens_due: float = 0.0
    paused_until: float = 0.0


class SpendingRequest(BaseModel, frozen=True, extra="forbid"):
    """A request of a job, one line of JSON.

    - "begin": count the open reservations of `job` as lost, and return the rest of the limit.
    - "reserve" `amount` for `job` under the name `reservation`.
    - "settle" a reservation at the cost `amount`, or at its full amount if the cost is unknown
      (None).
    - "charge" `amount` without a reservation.
    - "take" a turn for a request of about `tokens` tokens; `again` after a wait for the turn.
    - "correct" the tokens of an earlier request by `tokens`, which may be negative.
    - "pause" all requests to `provider` for `seconds`.
    """

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


class SpendingReply(BaseModel, frozen=True):
    """The reply to a job, one line of JSON: `left` of the `limit`, and the `seconds` to wait.

    The decision is "wait" if other reservations may become free, and "never" if none may.
    """

    decision: Decision = "granted"
    limit: float | None = None
    left: float | None = None
    seconds: float = 0.0
    error: str = ""


class SpendingState(BaseModel, frozen=True):
    """The limit in US dollars (None means no limit), the costs so far, and the rates of providers.

    `lost` is the sum of the reservations of dead jobs. It is unknown whether the provider charged
    them, so they count at their worst cost.
    """

    limit: Amount | None = None
    spent: Amount = 0.0
    lost: Amount = 0.0
    reserved: dict[str, Reserved] = {}
    providers: dict[str, ProviderRate] = {}

    @property
    def reserved_amount(self) -> float:
        """The sum of all open reservations."""
        return sum(reservation.amount for reservation in self.reserved.values())

    @property
    def left(self) -> float | None:
        """The amount that is neither spent nor reserved."""
        if self.limit is None:
            return None
        return self.limit - self.spent - self.lost - self.reserved_amount

    def answer(self, request: SpendingRequest, now: float) -> "tuple[SpendingState, SpendingReply]":
        """Return the state after a request, and the reply; `now` is in Unix seconds."""
        if request.ask in ("take", "correct", "pause"):
            known = self.providers.get(request.provider, ProviderRate())
            rate, seconds = _next_turn(known, request, now)
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
        elif request.reservation in self.reserved:  # otherwise it is lost, and counts already
            others = dict(self.reserved)
            kept = others.pop(request.reservation).amount
            cost = kept if request.amount is None else request.amount
            after = self._with(spent=self.spent + cost, reserved=others)
        return after, SpendingReply(limit=after.limit, left=after.left)

    def lapsed(self, job: str | None = None) -> "SpendingState":
        """Return the state after a job, or every job, has died: its reservations are lost."""
        gone = {n: r for n, r in self.reserved.items() if job in (None, r.job)}
        if not gone:
            return self
        others = {name: r for name, r in self.reserved.items() if name not in gone}
        lost = self.lost + sum(reservation.amount for reservation in gone.values())
        return self._with(lost=lost, reserved=others)

    def _reserve(
        self, request: SpendingRequest, now: float
    ) -> "tuple[SpendingState, SpendingReply]":
        left, amount = self.left, request.amount or 0.0
        if request.reservation in self.reserved:
            return self, SpendingReply(limit=self.limit, left=left)
        if left is None or amount <= left:
            reserved = Reserved(job=request.job, amount=amount, since=now)
            after = self._with(reserved=self.reserved | {request.reservation: reserved})
            return after, SpendingReply(limit=self.limit, left=after.left)
        # A completion takes ten minutes by default, so a reservation of an hour ago is stale.
        may_free = any(now - reservation.since < 3600 for reservation in self.reserved.values())
        decision: Decision = "wait" if may_free else "never"
        return self, SpendingReply(decision=decision, limit=self.limit, left=left)

    def _with(self, **changed: object) -> "SpendingState":
        return self.model_copy(update=changed)


def _next_turn(
    rate: ProviderRate, request: SpendingRequest, now: float
) -> tuple[ProviderRate, float]:
    """Return the rate of a provider after a request, and the seconds until its turn."""
    if request.ask == "pause":
        until = max(rate.paused_until, now + request.seconds)
        return rate.model_copy(update={"paused_until": until}), 0.0
    requests, tokens = request.requests_per_minute, request.tokens_per_minute
    minute = 60.0
    if request.ask == "correct":
        due = rate.tokens_due + request.tokens * minute / tokens if tokens else 0.0
        return rate.model_copy(update={"tokens_due": max(due, 0.0)}), 0.0
    if request.again and now >= rate.paused_until:
        return rate, 0.0  # the first "take" already counted this turn
    begins = max(now, rate.paused_until)
    begins = max(begins, rate.requests_due) if requests else begins
    begins = max(begins, rate.tokens_due) if tokens else begins
    changed = {}
    if requests:
        changed["requests_due"] = begins + minute / requests
    if tokens:
        changed["tokens_due"] = begins + request.tokens * minute / tokens
    return rate.model_copy(update=changed), begins - now


def open_spending(place: Path, limit: float | None, recorded: Callable[[], float]) -> None:
    """Prepare the spending file before the first job runs.

    The open reservations of dead jobs count as lost.

    Args:
        place: The file; it is created if it is missing.
        limit: The limit in US dollars, which may differ from the earlier one.
        recorded: Returns the sum of the costs in the journals of the jobs, in US dollars. Under a
            limit at least this sum counts as spent, since the file may be missing, older than the
            journals, or from a time without a limit.
    """
    place.parent.mkdir(parents=True, exist_ok=True)
    with hold_lock(_lock_file(place)):
        state = (_read(place) or SpendingState()).lapsed()
        spent = state.spent if limit is None else max(state.spent, recorded())
        _write(place, state.model_copy(update={"limit": limit, "spent": spent}))


def lapse(place: Path, job: str) -> None:
    """Count the open reservations of a job that has ended as lost."""
    answer_request(place, SpendingRequest(ask="begin", job=job).model_dump_json().encode())


def read_spending(place: Path) -> SpendingState | None:
    """Return the state in the spending file, or None if there is no file."""
    return _read(place)


def answer_request(place: Path, request: bytes) -> bytes:
    """Answer one line of JSON from the spending file, without waiting.

    The file is on the disk before this returns. If a job has to wait, it sends its request again.

    Args:
        place: The spending file.
        request: A `SpendingRequest` as JSON.

    Returns:
        A `SpendingReply` as one line of JSON, which also reports errors.
    """
    try:
        parsed = SpendingRequest.model_validate_json(request)
        with hold_lock(_lock_file(place)):
            state = _read(place)
            if state is None:
                raise CwmError(
                    f"{place} is missing: repeat the command that started the jobs, which "
                    "creates it"
                )
            after, reply = state.answer(parsed, time.time())
            if after is not state:
                _write(place, after)
    except (CwmError, OSError) as error:
        reply = SpendingReply(decision="never", error=str(error))
    except ValidationError as error:
        wrong = error.errors(include_url=False, include_context=False, include_input=False)[0]
        reply = SpendingReply(decision="never", error=f"not understood: {wrong['msg']}")
    return reply.model_dump_json().encode() + b"\n"


def _lock_file(place: Path) -> Path:
    """Return the lock of a spending file: a separate file, since `_write` replaces the other."""
    return place.with_name(f"{place.name}.lock")


def _read(place: Path) -> SpendingState | None:
    try:
        return SpendingState.model_validate_json(place.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise CwmError(
            f"{place} is damaged: remove it, and the same command restores it from the journals"
        ) from error


def _write(place: Path, state: SpendingState) -> None:
    """Replace a file atomically, and return when it is on the disk."""
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
        with suppress(OSError):  # some file systems cannot synchronise folders
            os.fsync(folder)
    finally:
        os.close(folder)


class Spending:
    """Base class of connections to a spending state, which several threads may use."""

    def ask(self, request: SpendingRequest) -> SpendingReply:
        """Return the reply to a request; raise `CwmError` if there is none."""
        raise NotImplementedError


@dataclass
class SpendingInMemory(Spending):
    """A spending state in the memory of this process."""

    state: SpendingState = field(default_factory=SpendingState)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    def ask(self, request: SpendingRequest) -> SpendingReply:
        """Return the reply from the state in memory."""
        with self._lock:
            self.state, reply = self.state.answer(request, time.time())
        return reply


@dataclass(frozen=True)
class SpendingFile(Spending):
    """A connection to the spending file."""

    place: Path

    def ask(self, request: SpendingRequest) -> SpendingReply:
        """Return the reply from the file."""
        return _parse_reply(answer_request(self.place, request.model_dump_json().encode()))


class SpendingSocket(Spending):
    """A connection through a socket to the parent process."""

    def __init__(self, descriptor: int) -> None:
        os.set_inheritable(descriptor, False)  # child processes must not use it
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
        return _parse_reply(line)


def _parse_reply(line: bytes) -> SpendingReply:
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
    """Return the connection to the shared state of all jobs, or None for a single job."""
    return _shared(os.environ.get(SPENDING, ""))


@cache
def _shared(address: str) -> Spending | None:
    """Open the address once per process, since threads share a socket."""
    kind, _, where = address.partition(":")
    if not address:
        return None
    if kind == "file" and where:
        return SpendingFile(Path(where))
    if kind == "fd" and where.isdecimal():
        return SpendingSocket(int(where))
    raise CwmError(f"${SPENDING} is {address!r}: it must be file:PATH or fd:N")


class Refusal(Enum):
    """The reason why no amount is reserved for a completion."""

    WAIT = "other reservations may become free"
    NEVER = "it might exceed the limit"


class Reservation(NamedTuple):
    """The reservation for a completion; the amount is in US dollars."""

    name: str
    amount: float


@dataclass(frozen=True)
class CostLimit:
    """A limit on the total cost of the completions of one search, or of all jobs.

    `job` is the name of this job among several. It is "" for a single search, whose answers may
    use the whole rest of the limit.
    """

    spending: Spending
    job: str = ""

    @classmethod
    def own(cls, limit: float, spent: float = 0.0, job: str = "") -> "CostLimit":
        """Return a limit in US dollars for this process alone."""
        return cls(SpendingInMemory(SpendingState(limit=limit, spent=spent)), job)

    @classmethod
    def shared(cls, job: str) -> "CostLimit | None":
        """Return the limit that this job shares with other jobs, or None if there is none.

        The open reservations of an earlier process of this job count as lost.
        """
        spending = shared_spending()
        if spending is None:
            return None
        begun = spending.ask(SpendingRequest(ask="begin", job=job))
        return None if begun.limit is None else cls(spending, job)

    @property
    def left(self) -> float:
        """The amount in US dollars that is neither spent nor reserved."""
        return self.spending.ask(SpendingRequest(ask="charge", amount=0.0)).left or 0.0

    def reserve(self, worst: float, among: int = 1) -> Reservation | Refusal:
        """Reserve the cost of a completion, without waiting.

        Args:
            worst: Worst cost of the completion in US dollars.
            among: Number of completions that share the rest of the limit. A single search
                reserves an even share if it is larger than `worst`: the backend may repeat the
                request if the answer was cut off.

        Returns:
            The reservation, or the reason for its refusal.
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
        """Settle a reservation at the cost of its completion; None counts the full amount."""
        self.spending.ask(
            SpendingRequest(ask="settle", job=self.job, reservation=reservation.name, amount=cost)
        )

    def pay_for(self, reservation: Reservation, ask: Callable[[], Completion]) -> Completion:
        """Return the completion of a reservation, and settle its cost, also after an error."""
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
        """Add a cost without a reservation."""
        self.spending.ask(SpendingRequest(ask="charge", amount=cost))

    def recall(self, cost: float) -> None:
        """Add the cost of an earlier run of this job, unless the shared state has it already."""
        if not self.job:
            self.charge(cost)


def pauses() -> Iterator[float]:
    """Yield the seconds to wait before each new attempt to reserve, from 0.05 to 2.

    With pauses of 2 seconds 200 waiting jobs send 100 requests a second.
    """
    pause = 0.05
    while True:
        yield pause * random.uniform(0.5, 1.0)  # noqa: S311  # spreads the attempts of many jobs
        pause = min(1.5 * pause, 2.0)


_alone = SpendingInMemory()
"""The rates of a process that shares them with no other process."""


@dataclass(frozen=True)
class RateLimit:
    """The rate limit of a provider, over all jobs, searches and threads.

    None means no limit. A pause that the provider demands holds in any case.
    """

    provider: str
    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None

    def wait(self, tokens: int = 0, tell: Callable[[str], None] = unheard) -> float:
        """Wait for the turn of a request of about `tokens` tokens; return the seconds waited."""
        began = time.monotonic()
        seconds = self._ask("take", tokens=tokens)
        while seconds > 0:
            tell(f"waiting {seconds:.0f} s for {self.provider}")
            # After a pause, requests without a rate limit begin within a second, not together.
            spread = 0.0 if self.requests_per_minute else min(1.0, seconds)
            time.sleep(seconds + random.uniform(0.0, spread))  # noqa: S311  # no secret
            seconds = self._ask("take", tokens=tokens, again=True)
        return time.monotonic() - began

    def correct(self, tokens: int) -> None:
        """Add the tokens that a request took in excess of its estimate; may be negative."""
        if self.tokens_per_minute and tokens:
            self._ask("correct", tokens=tokens)

    def pause(self, seconds: float) -> None:
        """Pause all requests for some seconds, as the provider demands."""
        self._ask("pause", seconds=seconds)

    def _ask(
        self,
        ask: Literal["take", "correct", "pause"],
        *,
        tokens: int = 0,
        again: bool = False,
        seconds: float = 0.0,
    ) -> float:
        """Send a request, and return the seconds to wait."""
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
