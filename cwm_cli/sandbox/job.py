"""Jobs of programs: their inputs, the slots of the answers, and limits of time and memory.

A job goes to the process of a program as raw bytes. Answers come back in shared
memory of fixed size, where each has one slot of known type and width: there is
nothing to parse, and whatever a program writes there is at worst a wrong answer.
"""

import marshal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import IntEnum
from math import prod
from mmap import mmap
from struct import Struct
from typing import Any, ClassVar, Literal, NamedTuple, Self, get_args

import numpy as np

from cwm_cli.data.spaces import Columns, Space
from cwm_cli.errors import CwmError
from cwm_cli.sandbox.abilities import abilities_of

MOST_OUTCOMES = 256
"""Outcomes that a program may tell for a row: more are better drawn."""

FEW_OUTCOMES = 16
"""Outcomes that each row has room for at first; of what has more all rows would take as much."""

CONTROL_BYTES = 4096
"""Size of the first page, the only one that the worker looks at."""

START_BYTES = 16
"""Bytes of the state at which the random numbers of a draw begin; arrays hold two integers each."""

NEVER = np.iinfo(np.int64).min
"""Stands in integer slots for what no integer can match, such as 1.5."""

CONTROL = (
    ("progress", "<u8", ()),
    ("phase", "u1", ()),
    ("kind", "u1", ()),
    ("line", "<i4", ()),
    ("message", "S4000", ()),
)
"""Fields of the first page; the worker reads the first three where they are."""

ReportedKind = Literal[
    "load_error",
    "step_error",
    "wrong_output",
    "memory",
    "wrong_contract",
    "wrong_probabilities",
    "contradiction",
]

KINDS: tuple[ReportedKind, ...] = get_args(ReportedKind)
"""Failures that a program can report about itself; `kind` counts them from 1, and 0 is none."""

_ALIGNMENT = 16
_SPACE, _ARRAY = "space", "array"


class Phase(IntEnum):
    """How far a program has come."""

    LOADING = 0
    STEPPING = 1
    DONE = 2


class Slot(NamedTuple):
    """Where one column lies and of what type it is."""

    offset: int
    dtype: str
    shape: tuple[int, ...]


Fields = list[tuple[str, str, tuple[int, ...]]]
"""Names, types and shapes of the parts of a record."""


def fields_of(record: np.dtype[Any]) -> Fields:
    """Return the parts of a type of records."""
    parts = [(name, record[name]) for name in record.names or ()]
    return [(name, part.base.str, part.shape) for name, part in parts]


class SlotLayout:
    """Slots of the control page, then those of the answers: names, types and shapes.

    There is room for a status of each of `rows` answers, which is 1 once it is given.
    """

    def __init__(self, answers: Iterable[tuple[str, str, tuple[int, ...]]] = (), rows: int = 0):
        columns = list(answers)
        self.answers = [name for name, *_ in columns]
        self.slots: dict[str, Slot] = {}
        self.size = 0
        self._place(CONTROL)
        self.size = CONTROL_BYTES
        self._place([*columns, ("status", "u1", (rows,))])

    def views(self, memory: bytes | bytearray | mmap) -> Columns:
        """Return an array over every slot; writable when the memory is."""
        return {
            name: np.ndarray(slot.shape, slot.dtype, memory, slot.offset)
            for name, slot in self.slots.items()
        }

    def _place(self, columns: Iterable[tuple[str, str, tuple[int, ...]]]) -> None:
        """Append slots, each at a multiple of eight bytes."""
        for name, dtype, shape in columns:
            self.slots[name] = Slot(self.size, dtype, shape)
            self.size += -(-prod(shape) * np.dtype(dtype).itemsize // 8) * 8


def slot_type(leaf: Space) -> str:
    """Return the numpy type in which answers for a leaf are kept.

    Texts have room for one character more than the space allows: what is
    longer is cut to that, and so never matches.
    """
    if leaf.kind == "text":
        return f"S{4 * (leaf.max_length + 1)}"
    return "<f8" if leaf.is_float else "<i8"


def prediction_layout(space: Space, rows: int, actions: int = 0) -> SlotLayout:
    """Return the slots of predictions: next observations, rewards, terminations.

    With `actions` there is one for which of so many actions are valid.
    """
    return SlotLayout(answer_slots(space, (rows,), actions), rows)


def answer_slots(space: Space, shape: tuple[int, ...], actions: int = 0) -> Fields:
    """Return names, types and shapes of what a step answers, in arrays of a shape of answers."""
    leaves = space.leaves("next_observations")
    answers = [(leaf.name, slot_type(leaf.space), (*shape, *leaf.space.shape)) for leaf in leaves]
    answers += [("rewards", "<f8", shape), ("terminations", "u1", shape)]
    return [*answers, ("valid_actions", "u1", (*shape, actions))] if actions else answers


@dataclass(frozen=True, kw_only=True)
class Job:
    """What a program is asked to do in a process that exists for that only; a subclass per kind.

    This is the trusted side's half. The other half is a `Handler`, which does the job
    in the process of the program. A kind of job has its home outside this package as
    well as in it:

    - A dataclass that inherits from `Job`. Its fields are what the handler needs to
      know: numbers, texts, spaces, arrays, and lists or dicts of these. Arrays
      arrive as float64, int64 or texts. `handler` is the address of the handler.
    - A class that inherits from `cwm_cli.sandbox.handlers.Handler`, in a module that
      imports no more than it takes, and never Gymnasium.

    `Sandbox.run` does such a job to its end, `Sandbox.converse` keeps the process and
    asks it again and again. Workers import the handlers of all jobs that they are
    to do when they start, before they are confined and before any program runs. A worker
    that lacks one is replaced; `Sandbox.prepare` with the addresses spares that.
    """

    handler: ClassVar[str]
    """Where the handler is: module:name."""

    in_one_step: ClassVar[bool] = False
    """Whether all CPU time may go into one step, as there are no rows."""

    aim: ClassVar[str] = "every question was answered"
    """What has not yet come about when a program ends its process before its time."""

    method: ClassVar[str] = "step"
    """What is asked of a program in a row."""

    program: str
    seed: int = 0

    @property
    def layout(self) -> SlotLayout:
        """Where the answers go."""
        return SlotLayout()

    @property
    def draws(self) -> bool:
        """Whether the program may draw random numbers, which takes seeding them."""
        return "random" in self.program or abilities_of(self.program).draws

    def question(self, row: int) -> tuple[Any, Any] | None:
        """Return the observation and the action of a row, where a program is asked for rows."""
        return None

    def row(self, progress: int) -> int:
        """Return at which row a program is that has come so far."""
        return progress

    def encode(self, *, trusted: bool = False) -> bytes:
        """Return the length of a header, the header, and the arrays one after the other.

        The source of a `trusted` program, such as the probe, is not checked.
        """
        arrays: list[np.ndarray] = []
        parts = {each.name: _flat(getattr(self, each.name), arrays) for each in fields(self)}
        parts["program"] = self.program.removeprefix("\ufeff")  # as Python does with files
        shapes = [[array.dtype.str, list(array.shape)] for array in arrays]
        text = marshal.dumps((self.handler, trusted, parts, shapes))
        pieces = [len(text).to_bytes(8, "little"), text]
        size = 8 + len(text)
        for array in arrays:
            pieces += [bytes(-size % _ALIGNMENT), array.tobytes()]
            size += -size % _ALIGNMENT + array.nbytes
        return b"".join(pieces)


class ReceivedJob(NamedTuple):
    """A job as it reaches the process of a program: the fields of it, for a handler."""

    handler: str
    trusted: bool
    parts: dict[str, Any]

    @classmethod
    def decode(cls, buffer: Any) -> "ReceivedJob":
        """Read what `Job.encode` wrote; arrays are views of the buffer."""
        offset = 8 + int.from_bytes(buffer[:8], "little")
        read = marshal.loads(buffer[8:offset])  # noqa: S302  # the trusted side wrote it
        handler, trusted, parts, shapes = read
        arrays = []
        for dtype, shape in shapes:
            offset += -offset % _ALIGNMENT
            array: np.ndarray = np.ndarray(shape, dtype, buffer, offset)
            arrays.append(array)
            offset += array.nbytes
        return cls(handler, trusted, _restored(parts, arrays))


@dataclass(frozen=True, kw_only=True)
class ModelJob(Job):
    """A job for a program that is a model of an environment, with columns of real rows.

    With `valid` a step has to say as well which actions are valid after it.
    """

    observation_space: Space
    action_space: Space
    columns: Columns = field(default_factory=dict)
    valid: bool = False

    @property
    def allowable(self) -> int:
        """How many actions a step says the validity of; 0 where it says nothing of it."""
        return self.action_space.count if self.valid else 0

    @property
    def observations(self) -> list[np.ndarray]:
        """The leaves of the observations."""
        return self._leaves("observations", self.observation_space)

    @property
    def actions(self) -> list[np.ndarray]:
        """The leaves of the actions."""
        return self._leaves("actions", self.action_space)

    def _leaves(self, name: str, space: Space) -> list[np.ndarray]:
        columns = self.columns or space.pack(name, [])
        return [columns[leaf.name] for leaf in space.leaves(name)]


@dataclass(frozen=True, kw_only=True)
class PredictionJob(ModelJob):
    """The next observation, reward and end of each row, in the order of the questions.

    The job does not contain the numbers of its rows. `starts` (rows, draws, 2) are the states at
    which the random numbers of each draw begin, for programs that draw. They are random, so a
    program cannot infer the number of a draw.
    """

    handler: ClassVar[str] = "cwm_cli.sandbox.candidate:PredictionHandler"
    aim: ClassVar[str] = "every row was answered"
    starts: np.ndarray | None = None

    @property
    def several(self) -> int:
        """How many answers each row has room for."""
        return 1 if self.starts is None else self.starts.shape[1]

    @property
    def count(self) -> int:
        """How many rows there are."""
        return len(next(iter(self.columns.values())))

    @property
    def layout(self) -> SlotLayout:
        """Where the answers go."""
        return prediction_layout(self.observation_space, self.count, self.allowable)

    def question(self, row: int) -> tuple[Any, Any] | None:
        """Return what a program is asked in a row."""
        if row >= self.count:
            return None
        return (
            self.observation_space.unpack("observations", self.columns, row),
            self.action_space.unpack("actions", self.columns, row),
        )


def answer_bytes(job: ModelJob) -> int:
    """Return how many bytes one answer takes."""
    slots = answer_slots(job.observation_space, (), job.allowable)
    return sum(prod(shape) * np.dtype(dtype).itemsize for _, dtype, shape in slots)


@dataclass(frozen=True, kw_only=True)
class OutcomesJob(PredictionJob):
    """All that can follow on each row, as a program tells it, with probabilities.

    Each row has room for so many outcomes as there are `places`; `counts` say how many a row has,
    and one that has more is left empty. With `checked` steps have to lead to one of them.
    """

    handler: ClassVar[str] = "cwm_cli.sandbox.candidate:OutcomesHandler"
    method: ClassVar[str] = "outcomes"
    places: int = FEW_OUTCOMES
    checked: bool = True

    @property
    def several(self) -> int:
        """How many answers each row has room for."""
        return self.places

    @property
    def layout(self) -> SlotLayout:
        """Where the answers go."""
        shape = self.count, self.places
        answers = answer_slots(self.observation_space, shape, self.allowable)
        answers += [("probabilities", "<f8", shape), ("counts", "<i8", shape[:1])]
        return SlotLayout(answers, self.count)


@dataclass(frozen=True, kw_only=True)
class DrawsJob(PredictionJob):
    """Several draws of the next observation of each row, one for each of its starts."""

    handler: ClassVar[str] = "cwm_cli.sandbox.candidate:DrawsHandler"

    @property
    def layout(self) -> SlotLayout:
        """Where the answers go."""
        shape = self.count, self.several
        return SlotLayout(answer_slots(self.observation_space, shape, self.allowable), self.count)

    def row(self, progress: int) -> int:
        """Return at which row a program is that has made so many draws."""
        return progress // self.several


@dataclass(frozen=True, kw_only=True)
class EpisodesJob(ModelJob):
    """What follows on each step of whole episodes, which advance together: a conversation.

    A question is about one step of every episode that goes on: a byte for each of those before
    that says whether it does, then a record of each, of `asked` fields: the observation, the
    reward of the step before, the `starts` of `several` draws and the action. So a program learns
    the outcome of a step only after its prediction, and never the length of an episode. A reply
    has a `COUNT` for each episode, and then the records of all answers: one answer for each draw,
    or all outcomes that a program returns.
    """

    handler: ClassVar[str] = "cwm_cli.sandbox.candidate:EpisodesHandler"
    episodes: int
    asked: Fields
    several: int = 1
    checked: bool = True

    @property
    def asked_type(self) -> np.dtype[np.void]:
        """The type of a record of a question."""
        return np.dtype([(name, dtype, tuple(shape)) for name, dtype, shape in self.asked])

    @property
    def answer_type(self) -> np.dtype[np.void]:
        """The type of a record of a reply."""
        slots = answer_slots(self.observation_space, (), self.allowable)
        return np.dtype([("probabilities", "<f8", ()), *slots])


SIZE = Struct("<Q")
"""Bytes of a question that follow."""

COUNT = np.dtype("<u4")
"""How many answers there are to one question."""


def _flat(value: Any, arrays: list[np.ndarray]) -> Any:
    """Return a value as `marshal` can write it; tuples stand for spaces and for arrays."""
    if isinstance(value, np.ndarray):
        plain = {"f": "<f8", "U": value.dtype}.get(value.dtype.kind, "<i8")
        arrays.append(value.astype(plain, copy=False))
        return _ARRAY, len(arrays) - 1
    if isinstance(value, Space):
        return _SPACE, value.to_json()
    if isinstance(value, Mapping):
        return {key: _flat(part, arrays) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_flat(part, arrays) for part in value]
    return value


def _restored(value: Any, arrays: list[np.ndarray]) -> Any:
    """Return what `_flat` was given."""
    match value:
        case (str(kind), content) if type(value) is tuple:
            return arrays[content] if kind == _ARRAY else Space.from_json(content)
        case dict():
            return {key: _restored(part, arrays) for key, part in value.items()}
        case list():
            return [_restored(part, arrays) for part in value]
    return value


DRAWS_IN_TIME = 16
"""Draws of each row that add the time limit once more.

A program that answers a row in 30 microseconds then has time for 64 draws of each of 20,000 rows.
"""

_DAY_SECONDS = 86400.0

_SHORTEST, _LONGEST = 0.01, 1e6
_BOUNDS: dict[str, tuple[float, float]] = {
    "wall_seconds": (_SHORTEST, _LONGEST),
    "cpu_seconds": (_SHORTEST, _LONGEST),
    "stall_seconds": (_SHORTEST, _LONGEST),
    "sleep_seconds": (_SHORTEST, _LONGEST),
    "memory_mb": (1, 1 << 20),
    "output_bytes": (0, 1 << 30),
}


@dataclass(frozen=True)
class Limits:
    """Bounds on one program doing one job, or answering one question of a conversation.

    CPU time is what counts, because it does not depend on how busy the machine
    is; wall-clock time is the backstop for programs that sleep. Where the CPU time of
    another process cannot be read (macOS), stalls are measured by the wall clock.

    A program can forge its progress, so a step that takes too long is found immediately only in an
    honest program. The sum holds for all programs: the processes that answer the rows of a dataset
    share the time in proportion to their rows. The processes that confirm the answers have the
    whole time once more for each worker, because each loads the program. Once a program has run out
    of time, no further dataset is asked for. All rollouts of a program together may take as long as
    one process by the wall clock.
    """

    wall_seconds: float = 60.0
    """Maximum wall-clock time of a program in seconds."""

    cpu_seconds: float = 10.0
    """Maximum CPU time of a program in seconds, for all rows of a dataset."""

    stall_seconds: float = 1.0
    """Maximum CPU time in seconds for loading a program or for a single step."""
    # One second is some hundred thousand times what a step of a written-out environment
    # takes, leaves room for tables built at import, and ends a hang ten times sooner.

    sleep_seconds: float = 2.0
    """Maximum time in seconds that a program may sleep or wait; no model needs this."""

    memory_mb: int = 512
    """Maximum memory of a program in megabytes, beyond the memory of an idle process."""

    output_bytes: int = 1 << 20
    """Maximum number of bytes that a program may print."""

    def part(self, share: float) -> Self:
        """Return the limits of a process that has a share of the time."""
        return self.less(
            used=(1 - share) * self.cpu_seconds, slept=(1 - share) * self.sleep_seconds
        )

    def without_time(self) -> Self:
        """Return limits without the remaining time, which depends on earlier processes."""
        return type(self)(
            memory_mb=self.memory_mb, output_bytes=self.output_bytes, cpu_seconds=_DAY_SECONDS
        )

    def longer(self, draws: int) -> Self:
        """Return the limits where each row is drawn so often."""
        factor = 1 + draws // DRAWS_IN_TIME
        return replace(
            self,
            cpu_seconds=min(_LONGEST, factor * self.cpu_seconds),
            wall_seconds=min(_LONGEST, factor * self.wall_seconds),
        )

    def less(self, *, used: float, slept: float, passed: float = 0.0) -> Self:
        """Return the limits that remain for the next process after one that took some time."""
        return replace(
            self,
            cpu_seconds=max(_SHORTEST, self.cpu_seconds - used),
            sleep_seconds=max(_SHORTEST, self.sleep_seconds - slept),
            wall_seconds=max(_SHORTEST, self.wall_seconds - passed),
        )

    def __post_init__(self) -> None:
        """Raise `ValueError` for limits that are meaningless to a kernel or a program."""
        for name, (least, most) in _BOUNDS.items():
            value = getattr(self, name)
            if not least <= value <= most:
                raise ValueError(f"{name} is {value:g}; it must be from {least:g} to {most:.0f}")

    @classmethod
    def chosen(cls, options: Mapping[str, Any]) -> Self:
        """Return the limits that a user set, and the defaults of the other limits."""
        try:
            return cls(**options)
        except (TypeError, ValueError) as error:
            raise CwmError(f"invalid limit of the sandbox: {error}") from error
