"""The confined process that is timed: the job, its sealed inputs, and its handler.

`timing` holds the clock outside the sandbox. This module must not import it, because workers import
this module before each program.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from struct import Struct
from typing import Any, ClassVar, NamedTuple

import numpy as np

from cwm_cli.planning.model import Batch, Step, Unbatched
from cwm_cli.sandbox.handlers import (
    ConfinedProgram,
    Handler,
    parts,
    reward_of,
    terminated_of,
    values,
    writer,
)
from cwm_cli.sandbox.job import ModelJob, slot_type
from cwm_cli.worlds.confined import load_form
from cwm_cli.worlds.messages import MAX_NOTE_BYTES

TIMED_FORMS = ("scalar", "arithmetic", "batched")
"""The forms that are timed: the program itself, its plain arithmetic, and all rows together."""

ROUND = Struct("<B2I")
"""The question of a round: index in `TIMED_FORMS`, number of passes, number of inputs per pass."""

READY = b"\1"
"""The message that a process has received the sealed inputs of a round."""

PASSED = Struct(f"<B{MAX_NOTE_BYTES}s")
"""The reply to a round: whether the form exists, and if not why. The sums of each pass follow."""

KEY_SIZE = 32
"""Length of the key of a round, in bytes."""


@dataclass(frozen=True, kw_only=True)
class TimingJob(ModelJob):
    """A job that times the steps of a program, in passes over the inputs of each question.

    The answers of a pass are returned as weighted sums, which take little time.

    Args:
        fresh: For each leaf of the observations, whether its values are sent with each input.
            Other leaves and the action come from a recorded row.
    """

    handler: ClassVar[str] = "cwm_cli.worlds.confined_timing:TimingHandler"
    fresh: Sequence[bool] = ()


class TimedInputs(NamedTuple):
    """The inputs of one pass, or of several.

    Args:
        rows: Numbers of rows, (inputs,) or (passes, inputs).
        leaves: The values of the fresh leaves, with the same leading axes. In the batched form the
            inputs are the last axis, as in a `Batch`.
    """

    rows: np.ndarray
    leaves: list[np.ndarray]

    def seal(self, key: bytes) -> bytes:
        """Return the inputs of several passes, encrypted with the key.

        The process receives encrypted inputs before the clock starts, and the key after that.
        Otherwise the time to send many inputs would count as time of the program.
        """
        rows, leaves = self
        passes, count = rows.shape
        padded = np.pad(rows.astype("<u4"), ((0, 0), (0, count % 2)))
        columns = [padded.view("<u8"), *(leaf.reshape(passes, -1).view("<u8") for leaf in leaves)]
        words = np.concatenate(columns, axis=1)
        return (words ^ _key_stream(key).random_raw(words.shape)).tobytes()


class SealedPasses(NamedTuple):
    """Encrypted passes of a job in one form, each with `size` inputs."""

    job: TimingJob
    form: str
    passes: int
    size: int

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """The shapes of the fresh leaves in a pass."""
        shapes = [
            column.shape[1:]
            for is_fresh, column in zip(self.job.fresh, self.job.observations, strict=True)
            if is_fresh
        ]
        is_batched = self.form == "batched"
        return [(*shape, self.size) if is_batched else (self.size, *shape) for shape in shapes]

    @property
    def words(self) -> int:
        """The number of 8-byte words in a pass."""
        return -(-self.size // 2) + sum(map(prod, self.shapes))

    def open(self, sealed: bytes, key: bytes) -> Iterator[TimedInputs]:
        """Decrypt the inputs, and yield them pass by pass."""
        stream, shapes = _key_stream(key), self.shapes
        words, row_words = self.words, -(-self.size // 2)
        # Decrypt several small passes at a time: 4096 words (32 KB) fit into the fastest cache.
        batch = max(1, 4096 // words)
        for first in range(0, self.passes, batch):
            opened = stream.random_raw((min(batch, self.passes - first), words))
            data = np.frombuffer(sealed, "<u8", opened.size, 8 * words * first)
            opened ^= data.reshape(-1, words)
            for one in opened:
                rows, leaves, at = one[:row_words].view("<u4")[: self.size], [], row_words
                for shape in shapes:
                    end = at + prod(shape)
                    leaves.append(one[at:end].view("<f8").reshape(shape))
                    at = end
                yield TimedInputs(rows, leaves)


def _key_stream(key: bytes) -> np.random.SFC64:
    return np.random.SFC64(int.from_bytes(key, "little"))


def sum_columns(columns: Sequence[np.ndarray], weights: np.ndarray) -> np.ndarray:
    """Return the weighted sums over rows of all numbers in some columns; texts as their bytes."""
    sums = []
    for column in columns:
        flat = np.ascontiguousarray(column).view("u1") if column.dtype.kind == "S" else column
        sums.append(sum_rows(flat.reshape(len(column), -1).T, weights))
    return np.concatenate(sums)


def sum_rows(numbers: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the sums of (numbers, rows) with weights (rows,); nan and infinities count as 0."""
    sums: np.ndarray = numbers @ weights
    if np.isfinite(sums).all():
        return sums
    sums = np.nan_to_num(numbers.astype(float), posinf=0.0, neginf=0.0) @ weights
    return sums


Pass = Callable[[TimedInputs, np.ndarray], np.ndarray]
"""A function that steps from inputs, and returns the sums of the answers with given weights."""


class TimingHandler(Handler[TimingJob]):
    """Takes steps on request; every transition counts as progress."""

    job_class = TimingJob

    def run(self, program: ConfinedProgram) -> None:
        """Answer questions until the pipe is closed."""
        job, counter = self.job, program.counter
        environment = program.load()
        form = load_form(environment, job, "auto", counter)
        passes = {"scalar": _single_pass(environment.set_state, environment.step, job, counter)}
        if (model := form.model) is not form.program:
            passes["arithmetic"] = _single_pass(model.stand, model.step, job, [0])
        if model.batch is not None:
            passes["batched"] = _batched_pass(model.batch, job, counter)
        while head := program.read(ROUND.size):
            index, number, count = ROUND.unpack(head)
            sealed = SealedPasses(job, TIMED_FORMS[index], number, count)
            data = program.read(8 * number * sealed.words)
            program.write(READY)
            inputs = sealed.open(data, program.read(KEY_SIZE))
            weights = np.frombuffer(program.read(8 * count), "<f8")
            notes, prefix = form.program.notes, f"not {sealed.form}: "
            own = [note.removeprefix(prefix) for note in notes if note.startswith(prefix)]
            reason = "; ".join(own or notes)
            program.write(_take_passes(passes.get(sealed.form), inputs, weights, reason))


def _take_passes(
    take: Pass | None, inputs: Iterator[TimedInputs], weights: np.ndarray, reason: str
) -> bytes:
    """Return the reply to a round: the sums of its passes, or the reason why there are none."""
    if take is not None:
        try:
            sums = [take(one, weights) for one in inputs]
            return PASSED.pack(True, b"") + np.array(sums, "<f8").tobytes()
        except Unbatched as error:
            reason = str(error)
    return PASSED.pack(False, reason.encode("utf-8", "replace")[:MAX_NOTE_BYTES])


def _single_pass(
    stand: Callable[[Any], Any], step: Callable[[Any], Any], job: TimingJob, counter: Any
) -> Pass:
    """Return a pass that steps from one input after the other."""
    recorded_actions = list(values(job.action_space, iter(job.actions)))

    def take(inputs: TimedInputs, weights: np.ndarray) -> np.ndarray:
        actions = [recorded_actions[row] for row in inputs.rows.tolist()]
        answers: list[Any] = []
        keep = answers.append
        # A local number, because reading the shared counter for each step takes time.
        number: int = counter[0]
        for state, action in zip(_observations(job, inputs), actions, strict=True):
            stand(state)
            keep(step(action))
            counter[0] = number = number + 1
        return sum_columns(_columns(job, answers), weights)

    return take


def _observations(job: TimingJob, inputs: TimedInputs) -> Iterable[Any]:
    """Return the observations of inputs, in memory that the program may change."""
    fresh = iter(inputs.leaves)
    if job.observation_space.is_float and job.fresh[0]:
        first: np.ndarray = next(fresh)
        return iter(first)
    leaves = zip(job.fresh, job.observations, strict=True)
    columns = [next(fresh) if is_fresh else column[inputs.rows] for is_fresh, column in leaves]
    return values(job.observation_space, iter(columns))


def _columns(job: TimingJob, answers: list[Any]) -> list[np.ndarray]:
    """Return answers as columns.

    Answers of the usual types become arrays in one call, so that this takes almost no time.
    """
    count, space = len(answers), job.observation_space
    if not (set(map(type, answers)) <= {tuple, Step} and set(map(len, answers)) <= {3, 4}):
        answers = [parts(answer, with_valid=job.valid) for answer in answers]
    observations, rewards, ends, *_ = zip(*answers, strict=True)
    leaves = [leaf.space for leaf in space.leaves("")]
    slots = [np.zeros((count, *leaf.shape), slot_type(leaf)) for leaf in leaves]
    whole = _float_array(observations, slots[0].shape)
    if whole is not None and space.is_float:
        slots = [whole]
    else:
        write = writer(space, iter(slots))
        for place, value in enumerate(observations):
            write(place, value)
    numbers, terminations = _float_array(rewards, (count,)), np.array(ends)
    if numbers is None:
        numbers = np.array(list(map(reward_of, rewards)))
    if terminations.dtype != bool or terminations.shape != (count,):
        terminations = np.array(list(map(terminated_of, ends)))
    return [*slots, numbers, terminations]


def _float_array(items: Sequence[Any], shape: tuple[int, ...]) -> np.ndarray | None:
    """Return items as an array of real numbers of this shape, or None if they are not."""
    with suppress(TypeError, ValueError):
        array = np.array(items)
        return array if array.dtype.kind == "f" and array.shape == shape else None
    return None


def _batched_pass(batch: Batch, job: TimingJob, counter: Any) -> Pass:
    """Return a pass that steps from all inputs together."""
    flat = job.action_space.flatten("actions", job.columns)
    observations, actions = [np.moveaxis(column, 0, -1) for column in (*job.observations, flat)]

    def take(inputs: TimedInputs, weights: np.ndarray) -> np.ndarray:
        batch.stand(inputs.leaves[0] if job.fresh[0] else np.take(observations, inputs.rows, -1))
        answers = batch.step(np.take(actions, inputs.rows, -1))
        counter[0] += len(weights)
        return np.concatenate(
            [sum_rows(answer.reshape(-1, len(weights)), weights) for answer in answers]
        )

    return take
