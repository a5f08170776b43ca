"""The contract of a program, jobs for programs, and the slots for their answers.

A job goes to the process of a program as raw bytes. Answers come back in shared memory of fixed
size. Each answer has one slot of known type and width, so the trusted side parses nothing, and
anything that a program writes there is at worst a wrong answer.
"""

import ast
import marshal
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from enum import IntEnum
from functools import lru_cache
from math import prod
from mmap import mmap
from struct import Struct
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Self, get_args

import numpy as np

from cwm_cli.data.spaces import Columns, Space

if TYPE_CHECKING:
    from cwm_cli.data.dataset import Dataset

MOST_OUTCOMES = 256
"""Maximum number of outcomes per row; a program with more should draw samples instead."""

CONTROL_BYTES = 4096
"""Size of the control page, the first page of the slots and the only one that the worker reads."""

START_BYTES = 16
"""Bytes of the random state at which a draw begins; arrays hold it as two 64-bit integers."""

NEVER = np.iinfo(np.int64).min
"""Value of an integer slot for an answer that no integer equals, such as 1.5."""

SIZE = Struct("<Q")
"""Number of bytes of a question, sent before the question."""

COUNT = np.dtype("<u4")
"""Number of answers to one question."""

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
"""Failures that a program can report about itself; the slot `kind` has 1 + index, or 0 for none."""

_ALIGNMENT = 16
_SPACE, _ARRAY = "space", "array"


class Abilities(NamedTuple):
    """The optional features of the class `Environment` of a program; a plain program has none.

    The trusted side has to know the contract of a program before the program runs, and must not
    rely on its answers. The process of the program checks that the text and the class agree.

    Attributes:
        tells: It has `outcomes(action)`, which returns all possible outcomes with probabilities.
        draws: It draws random numbers from `self.rng`.
        remembers: It has `correct(observation, reward)`, so it is asked along whole episodes.
        lists_legal: It has `legal_actions()`, the legal actions in the current state of a game.
    """

    tells: bool = False
    draws: bool = False
    remembers: bool = False
    lists_legal: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether each row is asked separately and has one certain answer."""
        return not (self.tells or self.draws or self.remembers)

    @property
    def contract(self) -> Literal["plain", "chance", "memory", "game"]:
        """The contract of the program: plain, chance, memory or game."""
        if self.remembers:
            return "memory"
        if not self.is_plain:
            return "chance"
        return "game" if self.lists_legal else "plain"


@lru_cache(maxsize=256)
def abilities_of(program: str) -> Abilities:
    """Return the abilities of a program; a program with a syntax error counts as plain."""
    # Skip parsing if no word occurs that every program with an ability contains.
    if not any(word in program for word in ("outcomes", "correct", "rng", "legal_actions")):
        return Abilities()
    if (tree := parse_program(program)) is None:
        return Abilities()
    methods = set(_members(tree, "Environment", frozenset()))
    draws = any(isinstance(node, ast.Attribute) and node.attr == "rng" for node in ast.walk(tree))
    has = [name in methods for name in ("outcomes", "correct", "legal_actions")]
    return Abilities(has[0], draws, *has[1:])


def parse_program(program: str) -> ast.Module | None:
    """Return the syntax tree of a program, or None if it cannot be parsed."""
    try:
        return ast.parse(program.removeprefix("\ufeff"))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _members(tree: ast.Module, name: str, seen: frozenset[str]) -> Iterator[str]:
    """Yield the members that a class defines or inherits from other classes of the module."""
    if name in seen:
        return
    for node in tree.body:
        match node:
            case ast.ClassDef(name=found) if found == name:
                for part in node.body:
                    if isinstance(part, ast.FunctionDef):
                        yield part.name
                    elif isinstance(part, ast.Assign):
                        yield from (t.id for t in part.targets if isinstance(t, ast.Name))
                bases = [base.id for base in node.bases if isinstance(base, ast.Name)]
            case ast.Assign(targets=[ast.Name(id=found)], value=ast.Name(id=other)) if (
                found == name
            ):
                bases = [other]
            case _:
                continue
        for base in bases:
            yield from _members(tree, base, seen | {name})


class Phase(IntEnum):
    """The progress of a program; a process starts in `LOADING`."""

    LOADING = 0
    STEPPING = 1
    DONE = 2


class Slot(NamedTuple):
    """Offset, numpy type and shape of one column."""

    offset: int
    dtype: str
    shape: tuple[int, ...]


Fields = list[tuple[str, str, tuple[int, ...]]]
"""Names, numpy types and shapes of the fields of a record."""


class SlotLayout:
    """The memory layout of a job: the control page, then one slot for each column of answers.

    Args:
        answers: Name, numpy type and shape of each column of answers.
        rows: Length of the column `status`, which is 1 for each row that has been answered.
    """

    def __init__(self, answers: Iterable[tuple[str, str, tuple[int, ...]]] = (), rows: int = 0):
        columns = list(answers)
        self.answers = [name for name, *_ in columns]
        self.slots: dict[str, Slot] = {}
        self.size = 0
        # The worker reads the first three at fixed offsets (`worker._PROGRESS`).
        self._place(
            [
                ("progress", "<u8", ()),
                ("phase", "u1", ()),
                ("kind", "u1", ()),
                ("line", "<i4", ()),
                ("message", "S4000", ()),
            ]
        )
        self.size = CONTROL_BYTES
        self._place([*columns, ("status", "u1", (rows,))])

    def views(self, memory: bytes | bytearray | mmap) -> Columns:
        """Return an array over each slot, writable if the memory is."""
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
    """Return the numpy type of the slot for a leaf of a space.

    Texts have room for one character more than the space allows. A longer text is cut to that
    length, so it never equals a valid one.
    """
    if leaf.kind == "text":
        return f"S{4 * (leaf.max_length + 1)}"
    return "<f8" if leaf.is_float else "<i8"


def prediction_layout(space: Space, rows: int, actions: int = 0) -> SlotLayout:
    """Return the layout of one prediction per row (see `answer_slots`)."""
    return SlotLayout(answer_slots(space, (rows,), actions), rows)


def answer_slots(space: Space, shape: tuple[int, ...], actions: int = 0) -> Fields:
    """Return names, types and shapes of the columns of predicted steps.

    Args:
        space: Space of the observations; each leaf is a column.
        shape: Leading axes, such as (rows,) or (rows, draws).
        actions: Number of actions. If positive, there is a mask of valid actions.
    """
    leaves = space.leaves("next_observations")
    answers = [(leaf.name, slot_type(leaf.space), (*shape, *leaf.space.shape)) for leaf in leaves]
    answers += [("rewards", "<f8", shape), ("terminations", "u1", shape)]
    return [*answers, ("valid_actions", "u1", (*shape, actions))] if actions else answers


@dataclass(frozen=True, kw_only=True)
class Job:
    """A request to a program in a process of its own; base class of all kinds of jobs.

    A job is the trusted side of the request. A `Handler` executes it in the process of the
    program. To add a kind of job, in this package or outside it, write:

    - A dataclass that inherits from `Job`. Its fields are the data that the handler needs: numbers,
      texts, spaces, arrays, and nested lists or dicts. Arrays arrive as float64, int64 or texts.
      `handler` is the address of the handler.
    - A class that inherits from `cwm_cli.sandbox.handlers.Handler`, in a module that imports only
      what the handler needs, and never Gymnasium.

    `Sandbox.run` runs such a job to its end. `Sandbox.converse` keeps the process and sends it
    questions. A worker imports the handlers of all its jobs when it starts, before it is confined
    and before any program runs. A worker that lacks a handler is replaced; to avoid that, call
    `Sandbox.prepare` with the addresses first.

    Args:
        program: Source text of the program.
        seed: Seed of the random numbers that the program draws.
    """

    handler: ClassVar[str]
    """Address of the handler, `module:name`."""

    in_one_step: ClassVar[bool] = False
    """Whether one step may use all the CPU time, because the job has no rows."""

    aim: ClassVar[str] = "every question was answered"
    """Condition for a finished job, for the message about a program that exits before."""

    method: ClassVar[str] = "step"
    """The method of the program that a row calls, for failure messages."""

    program: str
    seed: int = 0

    @property
    def layout(self) -> SlotLayout:
        """The slots for the answers."""
        return SlotLayout()

    @property
    def draws(self) -> bool:
        """Whether the program may draw random numbers, which then have to be seeded."""
        return "random" in self.program or abilities_of(self.program).draws

    def question(self, row: int) -> tuple[Any, Any] | None:
        """Return the observation and the action of a row, or None if the job has no rows."""
        return None

    def row(self, progress: int) -> int:
        """Return the row at which a program is, given the counter of its progress."""
        return progress

    def encode(self, *, trusted: bool = False) -> bytes:
        """Return the job as bytes: the length of a header, the header, and the arrays.

        Args:
            trusted: Whether to skip the check of the source, for our own programs such as the
                probe.
        """
        arrays: list[np.ndarray] = []
        parts = {part.name: _flatten(getattr(self, part.name), arrays) for part in fields(self)}
        parts["program"] = self.program.removeprefix("\ufeff")  # as Python does with files
        shapes = [[array.dtype.str, list(array.shape)] for array in arrays]
        text = marshal.dumps((self.handler, trusted, parts, shapes))
        pieces = [len(text).to_bytes(8, "little"), text]
        size = 8 + len(text)
        for array in arrays:  # aligned, so that `decode` can return views of the buffer
            pieces += [bytes(-size % _ALIGNMENT), array.tobytes()]
            size += -size % _ALIGNMENT + array.nbytes
        return b"".join(pieces)


class ReceivedJob(NamedTuple):
    """A decoded job in the process of a program: `parts` are the fields of the `Job`."""

    handler: str
    trusted: bool
    parts: dict[str, Any]

    @classmethod
    def decode(cls, buffer: Any) -> "ReceivedJob":
        """Read the result of `Job.encode`; arrays are views of the buffer."""
        offset = 8 + int.from_bytes(buffer[:8], "little")
        decoded = marshal.loads(buffer[8:offset])  # noqa: S302  # the trusted side wrote it
        handler, trusted, parts, shapes = decoded
        arrays = []
        for dtype, shape in shapes:
            offset += -offset % _ALIGNMENT
            array: np.ndarray = np.ndarray(shape, dtype, buffer, offset)
            arrays.append(array)
            offset += array.nbytes
        return cls(handler, trusted, _unflatten(parts, arrays))


@dataclass(frozen=True, kw_only=True)
class ModelJob(Job):
    """A job for a program that is a model of an environment.

    Args:
        observation_space: Space of the observations.
        action_space: Space of the actions.
        columns: Observations and actions of recorded rows, one column for each leaf.
        valid: Whether each step also returns the actions that are valid after it.
        turn: In a game of two players, the entry of the observation with the player to move.
    """

    observation_space: Space
    action_space: Space
    columns: Columns = field(default_factory=dict)
    valid: bool = False
    turn: str = ""

    @classmethod
    def of(cls, program: str, rows: "Dataset", **parts: Any) -> Self:
        """Return a job with the spaces of `rows`, and with valid actions if `rows` have them.

        Args:
            program: The text of the program.
            rows: Recorded transitions. The job contains none of them unless `parts` has `columns`.
            **parts: Further fields of the job.
        """
        return cls(
            program=program,
            observation_space=rows.observation_space,
            action_space=rows.action_space,
            valid=rows.has_valid_actions,
            turn=rows.turn,
            **parts,
        )

    @property
    def mask_size(self) -> int:
        """Length of the mask of valid actions; 0 if steps return no valid actions."""
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
    """Predict the next observation, reward and termination of each row, in the given order.

    The job does not contain the numbers of its rows in the dataset.

    Args:
        starts: Random states at which the draws of each row begin (rows, draws, 2), for programs
            that draw. They are random, so a program cannot infer the index of a draw.
    """

    handler: ClassVar[str] = "cwm_cli.sandbox.candidate:PredictionHandler"
    aim: ClassVar[str] = "every row was answered"
    starts: np.ndarray | None = None

    @property
    def answers_per_row(self) -> int:
        """Number of answers that each row has room for."""
        return 1 if self.starts is None else self.starts.shape[1]

    @property
    def count(self) -> int:
        """Number of rows."""
        return len(next(iter(self.columns.values())))

    @property
    def layout(self) -> SlotLayout:
        """One prediction per row."""
        return prediction_layout(self.observation_space, self.count, self.mask_size)

    def question(self, row: int) -> tuple[Any, Any] | None:
        """Return the observation and the action of a row, or None beyond the last row."""
        if row >= self.count:
            return None
        return (
            self.observation_space.unpack("observations", self.columns, row),
            self.action_space.unpack("actions", self.columns, row),
        )


def answer_bytes(job: ModelJob) -> int:
    """Return the size of one answer in bytes."""
    slots = answer_slots(job.observation_space, (), job.mask_size)
    return sum(prod(shape) * np.dtype(dtype).itemsize for _, dtype, shape in slots)


@dataclass(frozen=True, kw_only=True)
class OutcomesJob(PredictionJob):
    """Return all possible outcomes of each row, with their probabilities.

    Args:
        places: Number of outcomes that each row has room for. The slot `counts` has the number of
            outcomes of each row; a row with more than `places` is left empty. The default is
            small because every row takes the memory of the largest.
        checked: Whether the result of `step` has to be among the outcomes.
    """

    handler: ClassVar[str] = "cwm_cli.sandbox.candidate:OutcomesHandler"
    method: ClassVar[str] = "outcomes"
    places: int = 16
    checked: bool = True

    @property
    def answers_per_row(self) -> int:
        """Number of outcomes that each row has room for."""
        return self.places

    @property
    def layout(self) -> SlotLayout:
        """`places` outcomes per row, their probabilities, and their counts."""
        shape = self.count, self.places
        answers = answer_slots(self.observation_space, shape, self.mask_size)
        answers += [("probabilities", "<f8", shape), ("counts", "<i8", shape[:1])]
        return SlotLayout(answers, self.count)


@dataclass(frozen=True, kw_only=True)
class DrawsJob(PredictionJob):
    """Sample the outcome of each row several times, once from each of its `starts`."""

    handler: ClassVar[str] = "cwm_cli.sandbox.candidate:DrawsHandler"

    @property
    def layout(self) -> SlotLayout:
        """One prediction per row and draw."""
        shape = self.count, self.answers_per_row
        return SlotLayout(answer_slots(self.observation_space, shape, self.mask_size), self.count)

    def row(self, progress: int) -> int:
        """Return the row of a draw, given the number of draws so far."""
        return progress // self.answers_per_row


@dataclass(frozen=True, kw_only=True)
class EpisodesJob(ModelJob):
    """A conversation that predicts each step of whole episodes, which advance together.

    A question is about one step of every unfinished episode. It has one byte for each episode of
    the previous question, which is 1 if the episode continues. Then follows a record of
    `question_type` for each continuing episode: the observation, the reward of the previous step,
    the random states of the draws, and the action. So a program receives the outcome of a step only
    after its prediction, and never the length of an episode.

    A reply has a `COUNT` for each episode, and then the records of all answers: one answer for each
    draw, or all outcomes that the program returns.

    Args:
        episodes: Number of episodes.
        question_fields: Fields of a record of a question.
        draws_per_step: Draws of each step.
        checked: Whether the result of `step` has to be among the outcomes.
    """

    handler: ClassVar[str] = "cwm_cli.sandbox.candidate:EpisodesHandler"
    episodes: int
    question_fields: Fields
    draws_per_step: int = 1
    checked: bool = True

    @property
    def question_type(self) -> np.dtype[np.void]:
        """The numpy type of a record of a question."""
        return np.dtype(
            [(name, dtype, tuple(shape)) for name, dtype, shape in self.question_fields]
        )

    @property
    def answer_type(self) -> np.dtype[np.void]:
        """The numpy type of a record of a reply."""
        slots = answer_slots(self.observation_space, (), self.mask_size)
        return np.dtype([("probabilities", "<f8", ()), *slots])


def _flatten(value: Any, arrays: list[np.ndarray]) -> Any:
    """Return a value that `marshal` can write; append its arrays to `arrays`.

    Spaces and arrays become tuples. No other value is a tuple, since tuples become lists.
    """
    if isinstance(value, np.ndarray):
        dtype = {"f": "<f8", "U": value.dtype}.get(value.dtype.kind, "<i8")
        arrays.append(value.astype(dtype, copy=False))
        return _ARRAY, len(arrays) - 1
    if isinstance(value, Space):
        return _SPACE, value.to_json()
    if isinstance(value, Mapping):
        return {key: _flatten(part, arrays) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_flatten(part, arrays) for part in value]
    return value


def _unflatten(value: Any, arrays: list[np.ndarray]) -> Any:
    match value:
        case (str(kind), content) if type(value) is tuple:
            return arrays[content] if kind == _ARRAY else Space.from_json(content)
        case dict():
            return {key: _unflatten(part, arrays) for key, part in value.items()}
        case list():
            return [_unflatten(part, arrays) for part in value]
    return value
