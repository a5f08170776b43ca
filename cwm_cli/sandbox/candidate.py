"""The process of one program: guards first, then its job.

The handlers of the jobs that ask for the rows of a dataset, which every worker can do, follow.
"""

import fcntl
import io
import mmap
import os
import socket
import sys
import traceback
from collections.abc import Iterator
from contextlib import suppress
from copy import deepcopy
from itertools import compress
from typing import Any, NoReturn, TextIO

import numpy as np

from cwm_cli.data.spaces import Columns, Space
from cwm_cli.sandbox.abilities import check_source
from cwm_cli.sandbox.confinement import Guards, Room, address_space
from cwm_cli.sandbox.handlers import (
    Complaint,
    ConfinedProgram,
    Handler,
    handler_class,
    mask_writer,
    outcomes_of,
    parts,
    recorder,
    reward_of,
    terminated_of,
    values,
    writer,
)
from cwm_cli.sandbox.job import (
    COUNT,
    KINDS,
    MOST_OUTCOMES,
    SIZE,
    START_BYTES,
    DrawsJob,
    EpisodesJob,
    Job,
    ModelJob,
    OutcomesJob,
    Phase,
    PredictionJob,
    ReceivedJob,
    answer_slots,
)
from cwm_cli.sandbox.linux import die_with_parent, self_stopper
from cwm_cli.sandbox.protocol import Console, Descriptors, JobRequest

PROGRAM = "<program>"
"""The file name of the program in tracebacks."""

READY = b"R"
"""Said once every guard is up, before the program is so much as compiled."""

MOST_DESCRIPTORS = 256
"""More than a worker ever has open."""

READY_DESCRIPTOR = 3
"""Where READY is said; the descriptors of a conversation follow it."""

_RESERVE_BYTES = 1 << 20
"""Memory that is given back so that a failure can be reported when a program took all."""

_ERROR_BYTES = 1 << 16
"""How much a program that prints elsewhere may say on standard error."""

_MESSAGE_CHARACTERS = 4000
"""What has room in the slot of the message."""

TOLERANCE = 1e-6
"""Largest difference between a step and its outcome, absolute plus relative.

It allows for arithmetic in another order, and is less than the metric tolerates.
"""

SURPRISE = 6.0
"""Standard deviations by which outcomes may come more or less often than told: by chance one of a
thousand programs would see that in none of a million outcomes."""

ENOUGH = 10.0
"""The least variance of a count for that: below, it is not spread as the deviations say."""

_SPACE = Space("box", "float64", (2,), (-1.0, -1.0), (1.0, 1.0))
_SMALL_JOB = PredictionJob(
    program="""
class Environment:
    def set_state(self, observation):
        self.state = observation

    def step(self, action):
        return self.state + action, 0.0, False
""",
    observation_space=_SPACE,
    action_space=_SPACE,
    columns=dict.fromkeys(("observations", "actions"), np.zeros((2, 2))),
)
_REHEARSAL, _REHEARSAL_BYTES = _SMALL_JOB.encode(), _SMALL_JOB.layout.size
"""Encoded here, as every process writes to the memory of what it does itself."""


def run(
    requests: socket.socket, ready: int, worker: int, guards: Guards, *, rehearses: bool
) -> NoReturn:
    """Wait for a job, become the process of its program and end with it.

    `worker` is the process that this one must not outlive.
    """
    code = 1
    try:
        os.setsid()
        if rehearses:
            _rehearse()
        before = address_space()
        guards.early()
        die_with_parent()
        if os.getppid() != worker:
            os._exit(code)
        received = JobRequest.receive(requests)
        if received is None:  # the worker is gone
            os._exit(code)
        request, files = received
        job, memory = _settle(request, files, ready)
        handler = _handler(job)
        handler.prepare()
        stop = self_stopper()
        guards.last(request.limits, Room(before, request.job_bytes + request.slot_bytes))
        os.write(READY_DESCRIPTOR, READY)
        os.close(READY_DESCRIPTOR)
        _perform(handler, memory, checks_source=guards.checks_source and not job.trusted)
        code = 0
        stop()  # the worker waits for this
    except BaseException:  # noqa: BLE001  # nothing may escape into the code of the worker
        traceback.print_exc()
    finally:
        os._exit(code)


def _rehearse() -> None:
    """Do a small job to the end, so that the memory which that writes to is already our own."""
    handler = _handler(ReceivedJob.decode(_REHEARSAL))
    _perform(handler, mmap.mmap(-1, _REHEARSAL_BYTES), checks_source=False)


def _handler(job: ReceivedJob) -> Handler[Any]:
    """Return what does a job; its module is imported already, or else it cannot be."""
    found = handler_class(job.handler)
    return found(found.job_class(**job.parts))


def _perform(handler: Handler[Any], memory: mmap.mmap, *, checks_source: bool) -> None:
    """Have the program do its job; what it raises is reported."""
    job: Job = handler.job
    slots = job.layout.views(memory)
    reserve = mmap.mmap(-1, _RESERVE_BYTES)
    try:
        if checks_source:
            check_source(job.program, PROGRAM)
        code = compile(job.program, PROGRAM, "exec", dont_inherit=True)
        handler.run(ConfinedProgram(code, job, slots))
        slots["phase"][...] = Phase.DONE
    except BaseException as error:  # noqa: BLE001  # also SystemExit is the program's failure
        reserve.close()  # so that there is some memory to report with when the program took all
        _report(error, slots)


def _report(error: BaseException, slots: Columns) -> None:
    """Write down what went wrong, the kind first in case memory is too short for more."""
    slots["kind"][...] = 1 + KINDS.index(_kind(error, int(slots["phase"])))
    slots["line"][...] = _line(error)
    slots["message"][...] = _text(error).encode("utf-8", "replace")


def _kind(error: BaseException, phase: int) -> str:
    """Name the kind of failure."""
    if isinstance(error, MemoryError):
        return "memory"
    if isinstance(error, Complaint) and error.kind:
        return error.kind
    if phase == Phase.LOADING:
        return "load_error"
    return "wrong_output" if isinstance(error, Complaint) else "step_error"


def _line(error: BaseException) -> int:
    """Return the innermost line of the program that had a part in an error, or 0."""
    if isinstance(error, SyntaxError) and error.filename == PROGRAM:
        return error.lineno or 0
    line, entry = 0, error.__traceback__
    while entry is not None:
        if entry.tb_frame.f_code.co_filename == PROGRAM:
            line = entry.tb_lineno
        entry = entry.tb_next
    if isinstance(error, Complaint):
        line = line or error.line
    return line


def _text(error: BaseException) -> str:
    """Return the type and the text of an error, as far as the program lets us."""
    if isinstance(error, Complaint):
        return str(error)
    name = type(error).__name__
    if isinstance(error, SyntaxError) and error.filename == PROGRAM:
        return f"{name}: {error.msg}"
    try:
        text = str(error)
    except BaseException:  # noqa: BLE001  # the text of an error is a program, too
        return name
    return f"{name}: {text[:_MESSAGE_CHARACTERS]}" if text else name


def _settle(request: JobRequest, files: Descriptors, ready: int) -> tuple[ReceivedJob, mmap.mmap]:
    """Map what the program works on; keep what it prints to, where READY is said, and pipes.

    Nothing else stays open.
    """
    os.dup2(files.log, 1)
    os.dup2(files.log, 2)
    if files.console:
        _connect(files.console)
    else:
        sys.stdout = sys.stderr = _log(request.limits.output_bytes)
    memory = mmap.mmap(files.slots, request.slot_bytes)
    job = ReceivedJob.decode(mmap.mmap(files.job, request.job_bytes, access=mmap.ACCESS_READ))
    kept = [ready, *(files.channel or ())[:2]]
    kept = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, READY_DESCRIPTOR + 3) for descriptor in kept]
    for number, descriptor in enumerate(kept, start=READY_DESCRIPTOR):
        os.dup2(descriptor, number)
    os.closerange(READY_DESCRIPTOR + len(kept), MOST_DESCRIPTORS)
    return job, memory


def _connect(console: Console) -> None:
    """Have the program read and write real files, also where it does so past `sys`."""
    os.dup2(console.stdin, 0)
    os.dup2(console.stdout, 1)
    reader = io.BufferedReader(io.FileIO(0, closefd=False))
    sink = io.BufferedWriter(io.FileIO(1, "w", closefd=False))
    stdin = io.TextIOWrapper(reader, "utf-8", "replace")
    stdout = io.TextIOWrapper(sink, "utf-8", "backslashreplace")
    for stream, mode in ((stdin, "r"), (stdout, "w")):
        vars(stream)["mode"] = mode  # which programs that make streams of their own ask for
    vars(sys).update(stdin=stdin, __stdin__=stdin, stdout=stdout, __stdout__=stdout)
    sys.stderr = _log(_ERROR_BYTES)


def _log(limit: int) -> TextIO:
    """Return a stream to the log, which keeps what is printed up to a limit."""
    kept: Any = _Log(limit)
    return io.TextIOWrapper(kept, "utf-8", "backslashreplace", write_through=True)


class _Log(io.RawIOBase):
    """Keeps what is printed up to a limit and takes the rest without a word."""

    def __init__(self, limit: int) -> None:
        self._left = limit

    def writable(self) -> bool:
        """Say that one can print."""
        return True

    def write(self, data: Any) -> int:
        """Keep what there is room for."""
        kept = bytes(data[: self._left])
        self._left -= len(kept)
        with suppress(OSError):  # a program may close its descriptors
            os.write(2, kept)
        return len(data)


class PredictionHandler(Handler[PredictionJob]):
    """Asks for every row."""

    job_class = PredictionJob

    def run(self, program: ConfinedProgram) -> None:
        """Ask for one row after the other; this loop is where the time goes."""
        environment, slots, space = program.load(), program.slots, self.job.observation_space
        write = writer(space, (slots[leaf.name] for leaf in space.leaves("next_observations")))
        write_valid = None
        if self.job.valid:
            write_valid = mask_writer(self.job.action_space, slots["valid_actions"])
        rewards, progress = slots["rewards"], program.counter
        terminations, status = slots["terminations"].data, slots["status"].data
        set_state, step = environment.set_state, environment.step
        for row, (observation, action) in enumerate(self._inputs(program)):
            set_state(observation)
            result = step(action)
            if write_valid:
                *result, valid = parts(result, with_valid=True)
                write_valid(row, valid)
            elif type(result) is not tuple or len(result) != 3:
                result = parts(result)
            next_observation, reward, terminated = result
            write(row, next_observation)
            rewards[row] = reward if type(reward) is float else reward_of(reward)
            terminations[row] = (
                terminated if type(terminated) is bool else terminated_of(terminated)
            )
            status[row] = 1
            progress[0] = row + 1

    def _inputs(self, program: ConfinedProgram) -> Iterator[tuple[Any, Any]]:
        """Yield observations and actions; random numbers are seeded for each."""
        job = self.job
        observations = values(job.observation_space, iter(job.observations))
        actions = values(job.action_space, iter(job.actions))
        pairs = zip(observations, actions, strict=True)
        return pairs if job.starts is None else _seeded(program, job.starts, pairs)


def _seeded(
    program: ConfinedProgram, starts: np.ndarray, pairs: Iterator[tuple[Any, Any]]
) -> Iterator[tuple[Any, Any]]:
    """Yield pairs, and begin a draw before each; `starts` have the shape (rows, 1, 2)."""
    for start, pair in zip(starts, pairs, strict=True):
        program.begin_draw(start.tobytes())
        yield pair


class OutcomesHandler(Handler[OutcomesJob]):
    """Asks for the possible outcomes of every row, and for a step there if the program has one."""

    job_class = OutcomesJob

    def run(self, program: ConfinedProgram) -> None:
        """Ask for one row after the other."""
        environment = program.load()
        try:
            self._ask(program, environment)
        except Complaint as complaint:
            raise complaint.blame(environment.outcomes) from None

    def _ask(self, program: ConfinedProgram, environment: Any) -> None:
        job, slots, progress = self.job, program.slots, program.counter
        every = _flattened(job, slots)
        record = recorder(job.observation_space, every, _allowed(job))
        compared = None
        if job.checked and callable(getattr(environment, "step", None)):
            compared = ComparedSteps(
                job.observation_space, every, _allowed(job), drawn=program.abilities.draws
            )
        pairs: Iterator[tuple[Any, Any]] = zip(
            values(job.observation_space, iter(job.observations)),
            values(job.action_space, iter(job.actions)),
            strict=True,
        )
        pairs = pairs if job.starts is None else _seeded(program, job.starts, pairs)
        for row, (observation, action) in enumerate(pairs):
            environment.set_state(observation)
            told = outcomes_of(environment.outcomes(action), with_valid=job.valid)
            slots["counts"][row] = len(told)
            if len(told) <= job.places:
                first = row * job.places
                for place, outcome in enumerate(told, start=first):
                    record(place, outcome.answer)
                chances = slots["probabilities"][row, : len(told)]
                chances[:] = [outcome.probability for outcome in told]
                if compared is not None:
                    compared.add(environment.step(action), chances, first)
            slots["status"][row] = 1
            progress[0] = row + 1
        if compared is not None:
            compared.judge()


class DrawsHandler(Handler[DrawsJob]):
    """Asks for several draws of the outcome of every row."""

    job_class = DrawsJob

    def run(self, program: ConfinedProgram) -> None:
        """Ask for one row after the other, and in each for one draw after the other."""
        job, environment = self.job, program.load()
        status, progress = program.slots["status"], program.counter
        record = recorder(job.observation_space, _flattened(job, program.slots), _allowed(job))
        set_state, step, begin = environment.set_state, environment.step, program.begin_draw
        assert job.starts is not None
        place = 0
        for row, starts in enumerate(job.starts):
            observations = _repeated(job.observation_space, job.observations, row, job.several)
            actions = _repeated(job.action_space, job.actions, row, job.several)
            for start, observation, action in zip(
                _split(starts), observations, actions, strict=True
            ):
                begin(start)
                set_state(observation)
                record(place, step(action))
                place += 1
                progress[0] = place
            status[row] = 1


class EpisodesHandler(Handler[EpisodesJob]):
    """Asks along episodes, each with an environment of its own."""

    job_class = EpisodesJob

    def run(self, program: ConfinedProgram) -> None:
        """Answer questions about one step of all episodes until nobody asks any more."""
        self._program, self._answers = program, np.zeros(self._most(), self.job.answer_type)
        slots = {name: self._answers[name] for name in self._answers.dtype.names or ()}
        self._chances = slots.pop("probabilities")
        space, allowed = self.job.observation_space, _allowed(self.job)
        self._record = recorder(space, slots, allowed)
        self._compared = None
        if self.job.checked:
            self._compared = ComparedSteps(space, slots, allowed, drawn=program.abilities.draws)
        first = program.load()
        environments: list[Any] = [None] * self.job.episodes
        try:
            while head := program.read(SIZE.size):
                question = program.read(*SIZE.unpack(head))
                goes_on = question[: len(environments)]
                asked = np.frombuffer(question, self.job.asked_type, offset=len(environments))
                environments = list(compress(environments, goes_on))
                program.write(self._reply(environments, asked, first))
        except Complaint as complaint:
            raise complaint.blame(getattr(first, "outcomes", first.step)) from None

    def _most(self) -> int:
        """Return how many answers there may be to one question."""
        return max(MOST_OUTCOMES, self.job.several)

    def _reply(self, environments: list[Any], asked: np.ndarray, first: Any) -> bytes:
        """Say what happened to each episode, if it has begun, and have it go on."""
        job, program = self.job, self._program
        observations = values(
            job.observation_space, _leaves(job.observation_space, asked, "observations")
        )
        actions = values(job.action_space, _leaves(job.action_space, asked, "actions"))
        counts, answers = [], []
        rows = zip(observations, asked["rewards"].tolist(), asked["starts"], actions, strict=True)
        for number, (observation, reward, starts, action) in enumerate(rows):
            environment = environments[number]
            if environment is None:
                environments[number] = environment = program.another() if number else first
                environment.reset(observation)
            else:
                environment.correct(observation, reward)
            counts.append(self._predict(environment, action, _split(starts)))
            answers.append(self._answers[: counts[-1]].tobytes())
            program.counter[0] += 1
        if self._compared is not None:
            self._compared.judge()
        return np.array(counts, COUNT).tobytes() + b"".join(answers)

    def _predict(self, environment: Any, action: Any, starts: list[bytes]) -> int:
        """Have an environment predict and take a step; return how many answers it gave.

        The environment makes the first draw and continues from it. Its copies make all further
        draws.
        """
        program, (first, *others) = self._program, starts
        if program.abilities.tells:
            program.begin_draw(first)
            told = outcomes_of(environment.outcomes(action), with_valid=self.job.valid)
            for place, outcome in enumerate(told):
                self._record(place, outcome.answer)
                self._chances[place] = outcome.probability
            result = environment.step(action)
            if self._compared is not None:
                self._compared.add(result, self._chances[: len(told)], 0)
            return len(told)
        for place, start in enumerate(others, start=1):
            program.begin_draw(start)
            self._record(place, deepcopy(environment).step(action))
        program.begin_draw(first)
        self._record(0, environment.step(action))
        return len(starts)


def _split(starts: np.ndarray) -> list[bytes]:
    """Return where each draw of a row begins."""
    data = starts.tobytes()
    return [data[at : at + START_BYTES] for at in range(0, len(data), START_BYTES)]


def _leaves(space: Space, records: np.ndarray, name: str) -> Iterator[np.ndarray]:
    """Yield the columns of records that values of a space have under a name."""
    return (records[leaf.name] for leaf in space.leaves(name))


def _repeated(space: Space, leaves: list[np.ndarray], row: int, times: int) -> Iterator[Any]:
    """Yield the value of a row several times, each a copy of its own."""
    columns = (np.broadcast_to(leaf[row], (times, *leaf.shape[1:])) for leaf in leaves)
    return values(space, columns)


def _flattened(job: PredictionJob, slots: Columns) -> Columns:
    """Return the slots of answers of which each row has several, one after the other."""
    names = [name for name, *_ in answer_slots(job.observation_space, (), job.allowable)]
    return {name: slots[name].reshape(-1, *slots[name].shape[2:]) for name in names}


def _allowed(job: ModelJob) -> Space | None:
    """Return the actions of which a step says whether they are valid, where it says so."""
    return job.action_space if job.valid else None


class ComparedSteps:
    """Holds what `step` answers against the outcomes that were told for the same question.

    Each answer has to be one of them; where steps are `drawn`, all of them together as often as
    was told, place by place in the lists.
    """

    def __init__(
        self, space: Space, slots: Columns, action_space: Space | None = None, *, drawn: bool
    ) -> None:
        self._answer = {name: np.zeros_like(column[:1]) for name, column in slots.items()}
        self._record = recorder(space, self._answer, action_space)
        self._slots, self._drawn = slots, drawn
        self._seen = np.zeros((3, MOST_OUTCOMES))
        self._steps = 0

    def add(self, result: Any, chances: np.ndarray, first: int) -> None:
        """Compare a step with outcomes that lie in the slots from a place on."""
        self._record(0, result)
        alike, last = chances > 0, first + len(chances)
        for name, answer in self._answer.items():
            if name in _LASTING or not self._answer["terminations"][0]:
                alike &= _near(answer[0], self._slots[name][first:last])
        if not alike.any():
            words = f"step returned {repr(result)[:200]}, which is not one of its outcomes"
            raise Complaint(words, "contradiction")
        if self._drawn:
            shares = np.where(alike, chances, 0.0)
            observed, expected, variance = self._seen[:, : len(chances)]
            observed += shares / shares.sum()
            expected += chances
            variance += chances * (1 - chances)
            self._steps += 1

    def judge(self) -> None:
        """Complain of drawn steps that lead to some outcomes too often or too rarely."""
        observed, expected, variance = self._seen
        off = np.abs(observed - expected) / np.sqrt(np.maximum(variance, ENOUGH))
        place = int(np.where(variance >= ENOUGH, off, 0.0).argmax())
        if variance[place] >= ENOUGH and off[place] > SURPRISE:
            raise Complaint(
                f"step and outcomes disagree: of {self._steps} steps "
                f"{observed[place]:.0f} led to outcome {place + 1} instead of "
                f"about {expected[place]:.0f}",
                "contradiction",
            )


_LASTING = ("rewards", "terminations")
"""What counts of an answer that ends an episode."""


def _near(answer: np.ndarray, told: np.ndarray) -> np.ndarray:
    """Return which outcomes (outcomes, ...) have a part that agrees with an answer."""
    alike: np.ndarray = np.array(told == answer)
    if not alike.all() and told.dtype.kind == "f":
        with np.errstate(invalid="ignore", over="ignore"):
            near = np.abs(told - answer) <= TOLERANCE + TOLERANCE * np.abs(told)
        both = np.isnan(told) & np.isnan(answer)
        alike = np.array(alike | (near & np.isfinite(told)) | both)
    return alike if alike.ndim == 1 else np.array(alike.reshape(len(told), -1).all(axis=1))
