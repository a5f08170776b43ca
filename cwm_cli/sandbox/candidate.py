"""The process of one program: it activates the guards, then executes the job.

The module also contains the handlers of the jobs that ask for rows of a dataset, which every worker
knows.
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
from cwm_cli.sandbox.confinement import AddressSpace, Guards, address_space, check_source
from cwm_cli.sandbox.handlers import (
    Complaint,
    ConfinedProgram,
    Handler,
    handler_class,
    outcomes_of,
    recorder,
    values,
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
    ReportedKind,
    answer_slots,
)
from cwm_cli.sandbox.linux import die_with_parent, self_stopper
from cwm_cli.sandbox.protocol import Console, Descriptors, JobRequest

PROGRAM = "<program>"
"""File name of the program in tracebacks."""

READY = b"R"
"""Message to the worker that all guards are active; sent before the program is compiled."""

MAX_DESCRIPTORS = 256
"""More descriptors than a worker ever has open."""

READY_DESCRIPTOR = 3
"""Descriptor for `READY`; the descriptors of a conversation follow it."""

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
# Encoded once, at import: encoding in each process would copy the pages that it writes to.
_REHEARSAL, _REHEARSAL_BYTES = _SMALL_JOB.encode(), _SMALL_JOB.layout.size


def run(
    requests: socket.socket, ready: int, worker: int, guards: Guards, *, rehearses: bool
) -> NoReturn:
    """Wait for a job, execute it, and end the process.

    Args:
        requests: Socket for the request.
        ready: Descriptor for `READY`.
        worker: Process number of the worker, which this process must not outlive.
        guards: The guards to activate.
        rehearses: Whether to execute a small job first, to be faster once the job arrives.
    """
    code = 1
    try:
        os.setsid()  # the worker kills the whole group
        if rehearses:
            _rehearse()
        before = address_space()
        guards.apply_early()
        die_with_parent()
        if os.getppid() != worker:  # it ended before the line above
            os._exit(code)
        received = JobRequest.receive(requests)
        if received is None:  # the worker has ended
            os._exit(code)
        request, files = received
        job, memory = _open_files(request, files, ready)
        handler = _make_handler(job)
        handler.prepare()
        stop = self_stopper()  # needs the process number, which the filter hides
        job_bytes = request.job_bytes + request.slot_bytes
        guards.apply_last(request.limits, AddressSpace(before, job_bytes))
        os.write(READY_DESCRIPTOR, READY)
        os.close(READY_DESCRIPTOR)
        _execute(handler, memory, checks_source=guards.checks_source and not job.trusted)
        code = 0
        stop()  # the worker waits for this
    except BaseException:  # noqa: BLE001  # no exception may reach the code of the worker
        traceback.print_exc()
    finally:
        os._exit(code)


def _rehearse() -> None:
    """Execute a small job, so that the pages that every job writes to are already copied."""
    # Not inline: the frame of `run` would keep the small job, and programs can read that frame.
    handler = _make_handler(ReceivedJob.decode(_REHEARSAL))
    _execute(handler, mmap.mmap(-1, _REHEARSAL_BYTES), checks_source=False)


def _make_handler(job: ReceivedJob) -> Handler[Any]:
    # The guards refuse the import of a module that the worker has not imported.
    handler = handler_class(job.handler)
    return handler(handler.job_class(**job.parts))


def _execute(handler: Handler[Any], memory: mmap.mmap, *, checks_source: bool) -> None:
    """Execute a job and write a failure of the program into its slots."""
    job: Job = handler.job
    slots = job.layout.views(memory)
    reserve = mmap.mmap(-1, 1 << 20)
    try:
        if checks_source:
            check_source(job.program, PROGRAM)
        code = compile(job.program, PROGRAM, "exec", dont_inherit=True)
        handler.run(ConfinedProgram(code, job, slots))
        slots["phase"][...] = Phase.DONE
    except BaseException as error:  # noqa: BLE001  # also SystemExit is the program's failure
        reserve.close()  # memory for the report if the program has used everything
        complaint = error if isinstance(error, Complaint) else None
        kind: ReportedKind = "wrong_output" if complaint else "step_error"
        if slots["phase"] == Phase.LOADING:
            kind = "load_error"
        if complaint and complaint.kind:
            kind = complaint.kind
        # The kind first, in case the memory does not suffice for more.
        slots["kind"][...] = 1 + KINDS.index("memory" if isinstance(error, MemoryError) else kind)
        slots["line"][...] = _failure_line(error)
        slots["message"][...] = _failure_text(error).encode("utf-8", "replace")


def _failure_line(error: BaseException) -> int:
    """Return the innermost line of the program in a traceback, or 0."""
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


def _failure_text(error: BaseException) -> str:
    """Return type and text of an error; only the type if `str(error)` fails."""
    if isinstance(error, Complaint):
        return str(error)
    name = type(error).__name__
    if isinstance(error, SyntaxError) and error.filename == PROGRAM:
        return f"{name}: {error.msg}"
    try:
        text = str(error)
    except BaseException:  # noqa: BLE001  # the program may define `__str__`
        return name
    return f"{name}: {text[:4000]}" if text else name  # the slot has room for 4000 bytes


def _open_files(
    request: JobRequest, files: Descriptors, ready: int
) -> tuple[ReceivedJob, mmap.mmap]:
    """Map the job and its slots, redirect the output, and close all other descriptors.

    Only standard streams, `READY_DESCRIPTOR` and the pipes of a conversation stay open.
    """
    os.dup2(files.log, 1)
    os.dup2(files.log, 2)
    if files.console:
        _connect_console(files.console)
    else:
        sys.stdout = sys.stderr = _log_stream(request.limits.output_bytes)
    memory = mmap.mmap(files.slots, request.slot_bytes)
    job = ReceivedJob.decode(mmap.mmap(files.job, request.job_bytes, access=mmap.ACCESS_READ))
    kept = [ready, *(files.channel or ())[:2]]
    # Copy the descriptors to higher numbers first, so that no `dup2` overwrites a source.
    kept = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, READY_DESCRIPTOR + 3) for descriptor in kept]
    for number, descriptor in enumerate(kept, start=READY_DESCRIPTOR):
        os.dup2(descriptor, number)
    os.closerange(READY_DESCRIPTOR + len(kept), MAX_DESCRIPTORS)
    return job, memory


def _connect_console(console: Console) -> None:
    """Connect standard input and output to files, also for programs that do not use `sys`."""
    os.dup2(console.stdin, 0)
    os.dup2(console.stdout, 1)
    reader = io.BufferedReader(io.FileIO(0, closefd=False))
    sink = io.BufferedWriter(io.FileIO(1, "w", closefd=False))
    stdin = io.TextIOWrapper(reader, "utf-8", "replace")
    stdout = io.TextIOWrapper(sink, "utf-8", "backslashreplace")
    for stream, mode in ((stdin, "r"), (stdout, "w")):
        vars(stream)["mode"] = mode  # programs that make their own streams read it
    vars(sys).update(stdin=stdin, __stdin__=stdin, stdout=stdout, __stdout__=stdout)
    sys.stderr = _log_stream(1 << 16)


def _log_stream(limit: int) -> TextIO:
    """Return a stream to standard error that keeps the first `limit` bytes and drops the rest."""
    raw: Any = _Log(limit)
    return io.TextIOWrapper(raw, "utf-8", "backslashreplace", write_through=True)


class _Log(io.RawIOBase):
    def __init__(self, limit: int) -> None:
        self._left = limit

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        kept = bytes(data[: self._left])
        self._left -= len(kept)
        with suppress(OSError):  # a program may close its descriptors
            os.write(2, kept)
        return len(data)


class PredictionHandler(Handler[PredictionJob]):
    """Predicts each row in turn."""

    job_class = PredictionJob

    def run(self, program: ConfinedProgram) -> None:
        """Predict all rows. This is the hot loop of scoring."""
        job, environment, slots = self.job, program.load(), program.slots
        record = recorder(job.observation_space, slots, _mask_space(job))
        status, progress = slots["status"].data, program.counter
        set_state, step = environment.set_state, environment.step
        for row, (observation, action) in enumerate(_inputs(program, job)):
            set_state(observation)
            record(row, step(action))
            status[row] = 1
            progress[0] = row + 1


def _inputs(program: ConfinedProgram, job: PredictionJob) -> Iterator[tuple[Any, Any]]:
    """Yield the observation and action of each row; begin a draw before each."""
    observations = values(job.observation_space, iter(job.observations))
    actions = values(job.action_space, iter(job.actions))
    pairs = zip(observations, actions, strict=True)
    if job.starts is None:
        return pairs  # a generator around them would slow down the hot loop
    starts = job.starts  # (rows, 1, 2)

    def seeded() -> Iterator[tuple[Any, Any]]:
        for start, pair in zip(starts, pairs, strict=True):
            program.begin_draw(start.tobytes())
            yield pair

    return seeded()


class OutcomesHandler(Handler[OutcomesJob]):
    """Collects the outcomes of each row, and compares them with `step` if the program has it."""

    job_class = OutcomesJob

    def run(self, program: ConfinedProgram) -> None:
        """Collect the outcomes of all rows."""
        environment = program.load()
        try:
            self._ask(program, environment)
        except Complaint as complaint:  # raised by a check, so no line of the program is known
            raise complaint.blame(environment.outcomes) from None

    def _ask(self, program: ConfinedProgram, environment: Any) -> None:
        job, slots, progress = self.job, program.slots, program.counter
        flat = _flatten_answers(job, slots)
        record = recorder(job.observation_space, flat, _mask_space(job))
        comparison = None
        if job.checked and callable(getattr(environment, "step", None)):
            comparison = StepComparison(
                job.observation_space, flat, _mask_space(job), drawn=program.abilities.draws
            )
        for row, (observation, action) in enumerate(_inputs(program, job)):
            environment.set_state(observation)
            outcomes = outcomes_of(environment.outcomes(action), with_valid=job.valid)
            slots["counts"][row] = len(outcomes)
            if len(outcomes) <= job.places:
                first = row * job.places
                for place, outcome in enumerate(outcomes, start=first):
                    record(place, outcome.answer)
                probabilities = slots["probabilities"][row, : len(outcomes)]
                probabilities[:] = [outcome.probability for outcome in outcomes]
                if comparison is not None:
                    comparison.add(environment.step(action), probabilities, first)
            slots["status"][row] = 1
            progress[0] = row + 1
        if comparison is not None:
            comparison.check_frequencies()


class DrawsHandler(Handler[DrawsJob]):
    """Samples the outcome of each row several times."""

    job_class = DrawsJob

    def run(self, program: ConfinedProgram) -> None:
        """Sample all draws of a row, then the next row."""
        job, environment = self.job, program.load()
        status, progress = program.slots["status"], program.counter
        record = recorder(
            job.observation_space, _flatten_answers(job, program.slots), _mask_space(job)
        )
        set_state, step, begin = environment.set_state, environment.step, program.begin_draw
        assert job.starts is not None
        place = 0
        for row, starts in enumerate(job.starts):
            observations = _repeat(
                job.observation_space, job.observations, row, job.answers_per_row
            )
            actions = _repeat(job.action_space, job.actions, row, job.answers_per_row)
            for start, observation, action in zip(
                _split_starts(starts), observations, actions, strict=True
            ):
                begin(start)
                set_state(observation)
                record(place, step(action))
                place += 1
                progress[0] = place
            status[row] = 1


class EpisodesHandler(Handler[EpisodesJob]):
    """Predicts along episodes, each with its own environment."""

    job_class = EpisodesJob

    def run(self, program: ConfinedProgram) -> None:
        """Answer questions about one step of all episodes until the conversation ends."""
        size = max(MOST_OUTCOMES, self.job.draws_per_step)
        self._program, self._answers = program, np.zeros(size, self.job.answer_type)
        slots = {name: self._answers[name] for name in self._answers.dtype.names or ()}
        self._probabilities = slots.pop("probabilities")
        space, mask_space = self.job.observation_space, _mask_space(self.job)
        self._record = recorder(space, slots, mask_space)
        self._comparison = None
        if self.job.checked:
            self._comparison = StepComparison(
                space, slots, mask_space, drawn=program.abilities.draws
            )
        first = program.load()
        environments: list[Any] = [None] * self.job.episodes
        try:
            while head := program.read(SIZE.size):
                question = program.read(*SIZE.unpack(head))
                continues = question[: len(environments)]
                records = np.frombuffer(question, self.job.question_type, offset=len(environments))
                environments = list(compress(environments, continues))
                program.write(self._reply(environments, records, first))
        except Complaint as complaint:
            raise complaint.blame(getattr(first, "outcomes", first.step)) from None

    def _reply(self, environments: list[Any], records: np.ndarray, first: Any) -> bytes:
        """Start each new episode or correct it with its last outcome, and predict its next step."""
        job, program = self.job, self._program
        observations = values(
            job.observation_space, _leaves(job.observation_space, records, "observations")
        )
        actions = values(job.action_space, _leaves(job.action_space, records, "actions"))
        counts, answers = [], []
        rows = zip(
            observations, records["rewards"].tolist(), records["starts"], actions, strict=True
        )
        for number, (observation, reward, starts, action) in enumerate(rows):
            environment = environments[number]
            if environment is None:
                environment = program.make_environment() if number else first
                environments[number] = environment
                environment.reset(observation)
            else:
                environment.correct(observation, reward)
            counts.append(self._predict(environment, action, _split_starts(starts)))
            answers.append(self._answers[: counts[-1]].tobytes())
            program.counter[0] += 1
        if self._comparison is not None:
            self._comparison.check_frequencies()
        return np.array(counts, COUNT).tobytes() + b"".join(answers)

    def _predict(self, environment: Any, action: Any, starts: list[bytes]) -> int:
        """Predict a step and take it; return the number of answers.

        The environment makes the first draw and continues from it. Copies make all other draws.
        """
        program, (first, *others) = self._program, starts
        if program.abilities.tells:
            program.begin_draw(first)
            outcomes = outcomes_of(environment.outcomes(action), with_valid=self.job.valid)
            for place, outcome in enumerate(outcomes):
                self._record(place, outcome.answer)
                self._probabilities[place] = outcome.probability
            result = environment.step(action)
            if self._comparison is not None:
                self._comparison.add(result, self._probabilities[: len(outcomes)], 0)
            return len(outcomes)
        for place, start in enumerate(others, start=1):
            program.begin_draw(start)
            self._record(place, deepcopy(environment).step(action))
        program.begin_draw(first)
        self._record(0, environment.step(action))
        return len(starts)


def _split_starts(starts: np.ndarray) -> list[bytes]:
    """Return the random state of each draw of a row."""
    data = starts.tobytes()
    return [data[at : at + START_BYTES] for at in range(0, len(data), START_BYTES)]


def _leaves(space: Space, records: np.ndarray, name: str) -> Iterator[np.ndarray]:
    return (records[leaf.name] for leaf in space.leaves(name))


def _repeat(space: Space, leaves: list[np.ndarray], row: int, times: int) -> Iterator[Any]:
    """Yield the value of a row several times, each a separate copy."""
    columns = (np.broadcast_to(leaf[row], (times, *leaf.shape[1:])) for leaf in leaves)
    return values(space, columns)


def _flatten_answers(job: PredictionJob, slots: Columns) -> Columns:
    """Return the slots of answers with one leading axis for rows and answers."""
    names = [name for name, *_ in answer_slots(job.observation_space, (), job.mask_size)]
    return {name: slots[name].reshape(-1, *slots[name].shape[2:]) for name in names}


def _mask_space(job: ModelJob) -> Space | None:
    """Return the space of the actions if steps also return the valid actions."""
    return job.action_space if job.valid else None


class StepComparison:
    """A check that the results of `step` agree with the outcomes for the same questions.

    Each result has to be one of the outcomes. If steps are random (`drawn`), each place in the
    lists of outcomes also has to occur as often as its probabilities predict, over all steps.
    """

    def __init__(
        self, space: Space, slots: Columns, action_space: Space | None = None, *, drawn: bool
    ) -> None:
        self._answer = {name: np.zeros_like(column[:1]) for name, column in slots.items()}
        self._record = recorder(space, self._answer, action_space)
        self._slots, self._drawn = slots, drawn
        self._sums = np.zeros((3, MOST_OUTCOMES))  # observed, expected, variance of each place
        self._steps = 0

    def add(self, result: Any, probabilities: np.ndarray, first: int) -> None:
        """Compare the result of a step with the outcomes in the slots from place `first` on.

        Raises:
            Complaint: The result is not among the outcomes with a positive probability.
        """
        self._record(0, result)
        matches, last = probabilities > 0, first + len(probabilities)
        for name, answer in self._answer.items():
            # If the episode ends, only its reward and its end matter.
            lasting = name in ("rewards", "terminations")
            if lasting or not self._answer["terminations"][0]:
                matches &= _equals_outcome(answer[0], self._slots[name][first:last])
        if not matches.any():
            message = f"step returned {repr(result)[:200]}, which is not one of its outcomes"
            raise Complaint(message, "contradiction")
        if self._drawn:
            # If several outcomes match, each counts with its share of their probability.
            shares = np.where(matches, probabilities, 0.0)
            observed, expected, variance = self._sums[:, : len(probabilities)]
            observed += shares / shares.sum()
            expected += probabilities
            variance += probabilities * (1 - probabilities)
            self._steps += 1

    def check_frequencies(self) -> None:
        """Raise `Complaint` if random steps lead to an outcome too often or too rarely.

        The threshold is 6 standard deviations: by chance, one of a thousand programs exceeds it in
        any of a million outcomes. Below a variance of 10, a count is not close enough to a normal
        distribution.
        """
        observed, expected, variance = self._sums
        deviations = np.abs(observed - expected) / np.sqrt(np.maximum(variance, 10.0))
        place = int(np.where(variance >= 10.0, deviations, 0.0).argmax())
        if variance[place] >= 10.0 and deviations[place] > 6.0:
            raise Complaint(
                f"step and outcomes disagree: of {self._steps} steps "
                f"{observed[place]:.0f} led to outcome {place + 1} instead of "
                f"about {expected[place]:.0f}",
                "contradiction",
            )


def _equals_outcome(answer: np.ndarray, outcomes: np.ndarray) -> np.ndarray:
    """Return which outcomes (outcomes, ...) equal an answer, up to rounding."""
    equal: np.ndarray = np.array(outcomes == answer)
    if not equal.all() and outcomes.dtype.kind == "f":
        # Allows for another order of operations, and is less than the tolerance of the metric.
        tolerance = 1e-6
        with np.errstate(invalid="ignore", over="ignore"):
            near = np.abs(outcomes - answer) <= tolerance + tolerance * np.abs(outcomes)
        both_nan = np.isnan(outcomes) & np.isnan(answer)
        equal = np.array(equal | (near & np.isfinite(outcomes)) | both_nan)
    return equal if equal.ndim == 1 else np.array(equal.reshape(len(outcomes), -1).all(axis=1))
