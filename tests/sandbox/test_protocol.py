"""Any bytes of a worker or a program result in a value or in an error with a message."""

import io
import json
import os
import resource
import socket
import struct
import tempfile
import tracemalloc
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from struct import Struct
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from candidates import BOX, LIMITS, dataset_of, open_session, plan_at, predicting, program
from cwm_cli.data.dataset import Dataset
from cwm_cli.data.spaces import Space
from cwm_cli.envs.spec import space_of
from cwm_cli.planning import Moment
from cwm_cli.sandbox import Sandbox, SandboxError
from cwm_cli.sandbox.failures import Failure, failure_of
from cwm_cli.sandbox.job import CONTROL_BYTES, Phase, SlotLayout
from cwm_cli.sandbox.pool import JobResult, WorkerHandle
from cwm_cli.sandbox.prediction import find_contradiction, merge_answers
from cwm_cli.sandbox.protocol import LAYERS, Descriptors, EndReason, Hello, JobReport, JobRequest
from cwm_cli.worlds.messages import SIZE, Codec, PlanningReply

fast = settings(deadline=1000, max_examples=100)

ROOM = 1 << 20
"""Memory limit in bytes, larger than any message of these tests needs."""

REPORT = struct.Struct("<4sBBi2d")
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=9,
)


def sent(send: Any) -> bytes:
    """Return the bytes of a message."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        send(theirs)
        return ours.recv(1 << 16)


@contextmanager
def arriving(message: bytes, files: int = 0) -> Iterator[socket.socket]:
    """Yield a socket that receives bytes and descriptors, and is then closed by the other side."""
    ours, theirs = socket.socketpair()
    with ours, tempfile.TemporaryFile() as file:
        with theirs:
            theirs.settimeout(5)
            if files and message:
                socket.send_fds(theirs, [message], [file.fileno()] * files)
            else:
                theirs.sendall(message)
        ours.settimeout(5)
        yield ours


@contextmanager
def little_memory(room: int = ROOM) -> Iterator[None]:
    """Fail if the code uses more memory than `room`."""
    tracemalloc.start()
    try:
        yield
        _, peak = tracemalloc.get_traced_memory()
        assert peak < room
    finally:
        tracemalloc.stop()


GREETING = sent(Hello(dict.fromkeys(LAYERS, "on"), 7, "").send)
MESSAGES = [
    GREETING,
    sent(JobReport(True, EndReason.EXITED, 0).send),
    sent(lambda control: JobRequest(99, 4096, LIMITS).send(control, Descriptors(0, 1, 2))),
]


@st.composite
def mangled(draw: st.DrawFn) -> bytes:
    """Return a message with some bytes changed, cut out or put in."""
    message = bytearray(draw(st.sampled_from(MESSAGES)))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(message)))
        until = at + draw(st.integers(0, 4))
        message[at:until] = draw(st.binary(max_size=6))
    return bytes(message)


def framed(value: Any) -> bytes:
    """Return a greeting with any JSON value."""
    text = json.dumps(value).encode()
    return struct.pack("<4sI", b"cwm1", len(text)) + text


anything = st.one_of(st.binary(max_size=200), mangled(), JSON.map(framed))


@fast
@given(message=anything)
def test_only_a_report_is_read_as_a_report(message: bytes) -> None:
    with arriving(message) as control, little_memory():
        try:
            report = JobReport.receive(control)
        except (EOFError, ValueError):
            return
    magic, ready, ending, code, *times = REPORT.unpack_from(message)
    assert magic == b"cwm1"
    assert report[:3] == (bool(ready), EndReason(ending), code)
    np.testing.assert_array_equal(report[3:], times)


@fast
@given(message=anything)
def test_only_a_greeting_is_read_as_a_greeting(message: bytes) -> None:
    with arriving(message) as control, little_memory():
        try:
            hello = Hello.receive(control)
        except (EOFError, ValueError):
            return
    assert all(isinstance(key, str) for key in hello.layers)
    assert all(isinstance(says, str) for says in hello.layers.values())
    assert isinstance(hello.landlock, int)
    assert isinstance(hello.complaint, str)
    assert hello.twin >= 0, "negative numbers are groups of processes"


@fast
@given(message=anything, files=st.integers(0, 8))
def test_only_a_request_is_read_as_a_request(message: bytes, files: int) -> None:
    with arriving(message, files) as control, little_memory():
        try:
            received = JobRequest.receive(control)
        except (EOFError, ValueError):
            return
    if received is not None:
        assert len(message) >= struct.calcsize("<4s2Q")
        for descriptor in received[1].all:
            os.close(descriptor)


def test_messages_survive_the_round_trip() -> None:
    hello = Hello({"seccomp": "on", "user": "not here: é"}, 3, "nothing", 7)
    report = JobReport(False, EndReason.ASLEEP, -9, 0.25, 2.5)
    with arriving(sent(hello.send)) as control:
        assert Hello.receive(control) == hello
    with arriving(sent(report.send)) as control:
        assert JobReport.receive(control) == report
    with arriving(MESSAGES[2], files=3) as control:
        request, files = JobRequest.receive(control) or (None, None)
    assert request == JobRequest(99, 4096, LIMITS)
    assert files is not None
    assert files.extra is None
    for descriptor in files.all:
        os.close(descriptor)


@pytest.mark.parametrize(
    "message",
    [
        struct.pack("<4sI", b"cwm1", 2**32 - 1) + b"[",
        struct.pack("<4sI", b"cwm1", 60_000) + b"[" * 60_000,
        struct.pack("<4sI", b"cwm1", 5000) + b"9" * 5000,
        struct.pack("<4sI", b"cwm1", 2) + b"\xff\xff",
        framed({"layers": {}}),
        framed({"layers": {}, "landlock": 0, "complaint": "", "twin": -1}),
    ],
    ids=["a giant", "a deep nest", "a long number", "no text", "a part", "all processes"],
)
def test_malicious_greeting_is_refused(message: bytes) -> None:
    with arriving(message) as control, little_memory(4 * ROOM), pytest.raises(ValueError):
        Hello.receive(control)


@pytest.mark.parametrize("layers", [5, ["on"], {"user": 1}, None])
def test_greeting_with_wrong_types_is_refused(layers: Any) -> None:
    message = framed({"layers": layers, "landlock": 0, "complaint": "", "twin": 0})
    with arriving(message) as control, pytest.raises(ValueError):
        Hello.receive(control)


class Ended:
    """The process of a worker that is no more."""

    stderr = io.BytesIO(b"a\nlast words\n")

    def kill(self) -> None:
        """Do nothing, because it has ended."""


@fast
@given(message=anything)
def test_invalid_messages_of_a_worker_are_sandbox_errors(message: bytes) -> None:
    worker: Any = object.__new__(WorkerHandle)
    worker.process, worker._second = Ended(), None
    with arriving(message) as worker._control, suppress(SandboxError):
        worker.greet()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(message)
        theirs.shutdown(socket.SHUT_WR)
        worker._control = ours
        with suppress(SandboxError):
            report = worker.run(b"a job", 8, LIMITS).report
            assert report.ready, "a report without `ready` is an error"


# The replies that a session reads are written by the program.


class Pipe:
    """Stands for the process of a program that replies with certain bytes and ends."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self.asked = 0

    def send(self, question: bytes) -> None:
        """Take a question."""

    def receive(self, size: int) -> bytes:
        """Return as many bytes; EOFError when there are too few."""
        self.asked = max(self.asked, size)
        part, self._content = self._content[:size], self._content[size:]
        if len(part) < size:
            raise EOFError
        return part

    def rest(self) -> None:
        """End the decision."""


ACTIONS = [
    spaces.Discrete(3, start=-1),
    spaces.Box(-1, 1, (2,)),
    spaces.Box(-1, 1, (2, 2), np.float64),
    spaces.Box(0, 5, (3,), np.uint8),
]
HORIZON = 5
WORD = st.integers(0, 2**32 - 1)
SHORT = st.integers(0, 2**16 - 1)


MOMENTS = [Moment(0, 0, None, HORIZON), Moment(1, 0, None, 1, valid=(1,))]
HEAD, STEPS = Struct("<BBH400s"), Struct("<Q")


def read(space: Space, reply: bytes) -> tuple[PlanningReply | None, int]:
    """Return the plan that a session reads from a reply, and how many bytes it requested."""
    session = open_session(None, "", (BOX.observation_space, space), planners=[("mcts", {})])
    pipe = Pipe(reply)
    try:
        return session._read(pipe, MOMENTS), pipe.asked  # type: ignore[arg-type]
    except (EOFError, ValueError):
        return None, pipe.asked


@pytest.mark.parametrize("actions", ACTIONS, ids=str)
@fast
@given(data=st.data())
def test_only_actions_of_the_space_are_read_as_a_plan(
    actions: gym.Space, data: st.DataObject
) -> None:
    space = space_of(actions)
    size = Codec(space, "actions").size
    count = data.draw(st.integers(1, HORIZON) | st.integers(0, HORIZON + 1) | WORD)
    steps = data.draw(st.integers(0, 2**64 - 1))
    note = data.draw(st.binary(max_size=400))
    body = HEAD.pack(data.draw(st.sampled_from([0, 0, 1, 2])), 255, data.draw(SHORT), note)
    if data.draw(st.booleans()):
        plan = data.draw(st.binary(max_size=HORIZON * size) | bodies(space))[: count * size]
        body += SIZE.pack(count) + SIZE.pack(1) + STEPS.pack(steps) + STEPS.pack(1)
        body += plan + data.draw(bodies(space))[:size]
    length = data.draw(st.just(len(body)) | st.just(len(body)) | WORD)
    with little_memory():
        reply, asked = read(space, SIZE.pack(length) + body)
    assert asked <= HEAD.size + 2 * (SIZE.size + STEPS.size) + (HORIZON + 1) * size
    if reply is not None:
        assert reply.planner == 0
        assert len(reply.plans) in (0, 2)
        for plan, moment in zip(reply.plans, MOMENTS, strict=bool(reply.plans)):
            assert 1 <= len(plan) <= moment.horizon
            assert all(actions.contains(action) for action in plan)
        assert not reply.plans or moment.valid is None or plan[0] in moment.valid


def bodies(space: Space) -> st.SearchStrategy[bytes]:
    """Return the bytes of numbers that might be actions."""
    count = HORIZON * int(np.prod(space.shape))
    floats = st.lists(st.floats() | st.floats(-1.5, 1.5), min_size=count, max_size=count)
    whole = st.lists(st.integers(-2, 6), min_size=count, max_size=count)
    if space.is_float:
        return floats.map(lambda values: np.array(values, "<f8").tobytes())
    return whole.map(lambda values: np.array(values, "<i8").tobytes())


FORGED = {
    "a giant size": "SIZE.pack(2**32 - 1) + bytes(10**6)",
    "nothing": "SIZE.pack(0)",
    "no actions": "SIZE.pack(416) + HEAD + SIZE.pack(0) + STEPS",
    "a giant number of actions": "SIZE.pack(424) + HEAD + SIZE.pack(2**32 - 1) + STEPS + bytes(8)",
    "too many actions": "SIZE.pack(416 + 8 * 51) + HEAD + SIZE.pack(51) + STEPS + bytes(8 * 51)",
    "half an action": "SIZE.pack(420) + HEAD + SIZE.pack(1) + STEPS + bytes(4)",
    "another planner": "SIZE.pack(424) + bytes([1]) * 404 + SIZE.pack(1) + STEPS + bytes(8)",
}


def test_forged_reply_is_refused_without_using_memory() -> None:
    moves = Space("discrete", low=(0,), high=(1,))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with Sandbox(LIMITS, workers=1) as sandbox:
        for name, reply in FORGED.items():
            text = program(
                f"os.write(5, {reply}); time.sleep(9)",
                top="import struct; SIZE = struct.Struct('<I'); HEAD, STEPS = bytes(404), bytes(8)",
            )
            spaces = (BOX.observation_space, moves)
            with open_session(sandbox, text, spaces, planners=[("mcts", {})]) as session:
                plan = plan_at(session, np.zeros(4), horizon=50)
            assert plan.failure is not None, name
            assert plan.failure.kind == "wrong_output", name
            assert "tampered" in plan.failure.message, name
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 64 << 10  # KiB on Linux


# The slots and the log after a program has ended.

DATASETS = [
    dataset_of(space, 3)
    for space in (
        spaces.Box(-1, 1, (2,)),
        spaces.Discrete(6),
        spaces.Text(3),
        spaces.Tuple([spaces.Text(2), spaces.MultiBinary(3)]),
    )
]
LOGS = st.binary(max_size=200) | st.sampled_from(
    [
        b'Stack (most recent call first):\n File "<program>", line 999999999 in x',
        b'Fatal Python error: \xff (most recent call first):File "<program>", line 00 in',
        b"\x1b[2J" * 50 + b"\n" * 50,
    ]
)


@st.composite
def memories(draw: st.DrawFn, layout: SlotLayout) -> bytes:
    """Return slots with any bytes, more often with bytes that have a meaning."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    memory = bytearray(rng.bytes(layout.size))
    if draw(st.booleans()):
        memory[CONTROL_BYTES:] = bytes([draw(st.sampled_from([0, 1, 255]))]) * (
            layout.size - CONTROL_BYTES
        )
    for name, values in (
        ("progress", [0, 1, 2, 3, 2**63, 2**64 - 1]),
        ("phase", range(5)),
        ("kind", range(7)),
        ("line", [-(2**31), -1, 0, 1, 2, 2**31 - 1]),
    ):
        slot = layout.slots[name]
        view = np.ndarray((), slot.dtype, memory, slot.offset)
        view[...] = draw(st.sampled_from(values))
    return bytes(memory)


reports = st.builds(
    JobReport,
    st.just(True),
    st.sampled_from(EndReason),
    st.integers(-70, 255) | st.just(-(2**31)) | st.just(2**31 - 1),
)


@pytest.mark.parametrize("dataset", DATASETS, ids=lambda dataset: dataset.observation_space.kind)
@fast
@given(data=st.data())
def test_any_slots_and_log_become_a_failure_or_answers(
    dataset: Dataset, data: st.DataObject
) -> None:
    job = predicting("a\nb\n", dataset)
    layout = job.layout
    memory, log = data.draw(memories(layout)), data.draw(LOGS)
    slots = layout.views(memory)
    report = data.draw(reports)
    with little_memory():
        failure = failure_of(JobResult(report, memory, log), slots, job, LIMITS)
        if failure is None:
            answers = merge_answers(dataset, halved(slots))
    if failure is None:
        assert (report.reason, report.code) == (EndReason.EXITED, 0)
        assert slots["phase"] == Phase.DONE
        assert slots["rewards"].tobytes() == answers["rewards"].tobytes()
        for name, values in dataset.select("next_observations", "rewards").items():
            assert answers[name].shape == values.shape
            assert answers[name].dtype.kind in "fiU"
        assert answers["terminations"].dtype == np.bool_
    else:
        assert len(failure.message) < 4000
        assert failure.line in (None, 1, 2, 3)
        kinds = {
            unicodedata.category(character) for character in failure.message if character != "\n"
        }
        assert not kinds & {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


def halved(slots: dict[str, np.ndarray]) -> list[tuple[np.ndarray, dict[str, np.ndarray]]]:
    """Return the answers of two processes."""
    rows = {name: slot for name, slot in slots.items() if slot.ndim}
    parts = [np.array([2, 0]), np.array([1])]
    return [(part, {name: slot[part] for name, slot in rows.items()}) for part in parts]


@pytest.mark.parametrize("dataset", DATASETS, ids=lambda dataset: dataset.observation_space.kind)
@fast
@given(data=st.data())
def test_any_two_sets_of_answers_are_comparable(dataset: Dataset, data: st.DataObject) -> None:
    job = predicting("", dataset)
    layout = job.layout
    one, other = (layout.views(data.draw(memories(layout))) for _ in range(2))
    assert find_contradiction(job, one, one) is None
    failure = find_contradiction(job, one, other)
    names = [name for name in layout.slots if one[name].ndim and name != "status"]
    same = all(one[name].tobytes() == other[name].tobytes() for name in names)
    assert (failure is None) == same
    assert failure is None or isinstance(failure, Failure)
    assert failure is None or len(failure.message) < 4000
