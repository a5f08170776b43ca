"""Jobs for programs that are world models, and what both sides say to each other meanwhile.

Of a planning session a question holds the moments at which plans are due, a reply the plans, how
many steps of the model they took, and what they were made with. Of a session that steps a
question says where the program is to stand and which actions to take. All have a length first,
and the layout of the rest follows from the spaces.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import islice
from math import prod
from struct import Struct
from typing import Any, ClassVar, NamedTuple, Protocol, Self

import numpy as np

from cwm_cli.data.spaces import Space
from cwm_cli.planning.model import EpisodeHistory
from cwm_cli.planning.planner import Moment
from cwm_cli.sandbox.abilities import abilities_of
from cwm_cli.sandbox.handlers import values
from cwm_cli.sandbox.job import ModelJob

SIZE = Struct("<I")
"""Bytes that follow."""

LONGEST_NOTE = 400
"""Bytes of the note of a reply."""

ROUND = Struct("<B2I")
"""The place of a form in `PACED`, the number of passes, and the number of inputs in a pass."""

READY = b"\1"
"""A process has received the sealed inputs of a round."""

PASSED = Struct(f"<B{LONGEST_NOTE}s")
"""Whether there is such a form, and if not why. The sums of every pass follow."""

PACED = ("scalar", "arithmetic", "batched")
"""Forms that are timed: the program itself, its plain arithmetic, all rows at once."""

_MOMENT = Struct("<3Qi")
_REPLY = Struct(f"<BBH{LONGEST_NOTE}s")
_STEPS = Struct("<Q")
_ALL_VALID = -1


@dataclass(frozen=True, kw_only=True)
class PlanningJob(ModelJob):
    """A program to plan with, and how.

    `planners` are names or addresses, and options: the first that suits the program is used.
    `columns` are real observations and actions; only forms of the program that agree
    with it there stand in for it, and none does if `form` is scalar.
    """

    handler: ClassVar[str] = "cwm_cli.worlds.confined:PlanningHandler"
    planners: Sequence[tuple[str, Mapping[str, Any]]]
    form: str = "auto"


@dataclass(frozen=True, kw_only=True)
class TimingJob(ModelJob):
    """A program whose steps are timed, in passes over inputs that it receives with each question.

    `fresh` says for each leaf of the observations whether its values are sent with each input;
    other leaves and the action come from a recorded row. The answers of a pass are returned as
    weighted sums, which take little time.
    """

    handler: ClassVar[str] = "cwm_cli.worlds.confined:TimingHandler"
    fresh: Sequence[bool] = ()


KEY_SIZE = 32
"""Bytes of the key of a round."""


OPENED_WORDS = 4096
"""Words that are opened at a time if passes are small: 32 KB stay in the fastest cache."""


class TimedInputs(NamedTuple):
    """Inputs of one pass or of several: numbers of rows, and values of the fresh leaves.

    Both have the shape (inputs, ...) or (passes, inputs, ...); in the batched form the inputs are
    the last axis of the leaves, as in a `Batch`.
    """

    rows: np.ndarray
    leaves: list[np.ndarray]

    def seal(self, key: bytes) -> bytes:
        """Return the inputs of several passes, unreadable without the key.

        Sealed inputs are sent before the clock starts, and the key after that, since the time
        that it takes to send many inputs would count as time of the program.
        """
        rows, leaves = self
        number, count = rows.shape
        padded = np.pad(rows.astype("<u4"), ((0, 0), (0, count % 2)))
        parts = [padded.view("<u8"), *(leaf.reshape(number, -1).view("<u8") for leaf in leaves)]
        words = np.concatenate(parts, axis=1)
        return (words ^ np.random.SFC64(_seed(key)).random_raw(words.shape)).tobytes()


class SealedPasses(NamedTuple):
    """Sealed passes of a job in one form, each of the same number of inputs."""

    job: TimingJob
    form: str
    passes: int
    size: int

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """The shapes of the fresh leaves in a pass."""
        shapes = [
            column.shape[1:]
            for sent, column in zip(self.job.fresh, self.job.observations, strict=True)
            if sent
        ]
        lanes = self.form == "batched"
        return [(*shape, self.size) if lanes else (self.size, *shape) for shape in shapes]

    @property
    def words(self) -> int:
        """The number of words of 8 bytes in a pass."""
        return -(-self.size // 2) + sum(map(prod, self.shapes))

    def open(self, sealed: bytes, key: bytes) -> Iterator[TimedInputs]:
        """Yield the inputs of one pass after the other."""
        stream, shapes = np.random.SFC64(_seed(key)), self.shapes
        words, half = self.words, -(-self.size // 2)
        together = max(1, OPENED_WORDS // words)
        for first in range(0, self.passes, together):
            opened = stream.random_raw((min(together, self.passes - first), words))
            opened ^= np.frombuffer(sealed, "<u8", opened.size, 8 * words * first).reshape(
                -1, words
            )
            for one in opened:
                rows, leaves, at = one[:half].view("<u4")[: self.size], [], half
                for shape in shapes:
                    end = at + prod(shape)
                    leaves.append(one[at:end].view("<f8").reshape(shape))
                    at = end
                yield TimedInputs(rows, leaves)


def _seed(key: bytes) -> int:
    return int.from_bytes(key, "little")


def summed(columns: Sequence[np.ndarray], weights: np.ndarray) -> np.ndarray:
    """Return weighted sums over rows of all numbers in some columns, texts as their bytes."""
    parts = []
    for column in columns:
        flat = np.ascontiguousarray(column).view("u1") if column.dtype.kind == "S" else column
        parts.append(weighted(flat.reshape(len(column), -1).T, weights))
    return np.concatenate(parts)


def weighted(numbers: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the sums of (numbers, rows) with weights (rows,); nan and infinities count as 0."""
    sums: np.ndarray = numbers @ weights
    if np.isfinite(sums).all():
        return sums
    sums = np.nan_to_num(numbers.astype(float), posinf=0.0, neginf=0.0) @ weights
    return sums


class PlanningReply(NamedTuple):
    """Plans for the moments of a question; none when no planner suits the model.

    `steps` are those of the model that each plan took. `planner` is the place of the planner
    among those that were asked for, `forms` has a bit for each of `FORMS` that the model was
    used in.
    """

    plans: list[list[Any]]
    steps: list[int]
    planner: int
    forms: int
    note: str


class Codec:
    """Values of a space as bytes, column by column, in the types that programs see."""

    def __init__(self, space: Space, name: str) -> None:
        self._space, self._name = space, name
        leaves = [(leaf.name, _dtype(leaf.space), leaf.space.shape) for leaf in space.leaves(name)]
        self._leaves = leaves
        self.dtype = leaves[0][1]
        self.size = sum(np.dtype(dtype).itemsize * prod(shape) for _, dtype, shape in leaves)

    def encode(self, some: Sequence[Any]) -> bytes:
        """Return the bytes of values; ValueError when one is not of the space."""
        columns = self._space.pack(self._name, some)
        return b"".join(columns[name].astype(dtype).tobytes() for name, dtype, _ in self._leaves)

    def decode(self, data: bytes, count: int) -> list[Any]:
        """Return so many values that `encode` was given, each all its own."""
        offset, columns = 0, []
        for _, dtype, shape in self._leaves:
            column: np.ndarray = np.ndarray((count, *shape), dtype, data, offset)
            columns.append(column)
            offset += column.nbytes
        return list(values(self._space, iter(columns)))


_KNOWN = Struct("<QII")
"""An episode, how many steps of it are known already, and how many there are in all."""

MOST_KNOWN = 64
"""Episodes whose history both sides keep: eight times as many as are played at a time."""


class States(Protocol):
    """States that plans begin from, as bytes."""

    def encode(self, episodes: Sequence[int], states: Sequence[Any]) -> bytes:
        """Return the bytes of states of some episodes; ValueError for what is none."""

    def decode(self, data: bytes, count: int) -> list[Any]:
        """Return so many states that `encode` was given."""


class ObservedStates:
    """States that are observations."""

    def __init__(self, observations: Codec) -> None:
        self._observations = observations

    def encode(self, episodes: Sequence[int], states: Sequence[Any]) -> bytes:
        """Return the bytes of observations; ValueError for what is none."""
        return self._observations.encode(states)

    def decode(self, data: bytes, count: int) -> list[Any]:
        """Return observations."""
        return self._observations.decode(data, count)


class HistoryStates:
    """States that are histories, of which only the steps that the other side lacks are sent.

    Both sides keep the same: what one has encoded and the other decoded, in the same order.
    """

    def __init__(self, observations: Codec, actions: Codec) -> None:
        self._observations, self._actions = observations, actions
        self._known: dict[int, EpisodeHistory] = {}

    def encode(self, episodes: Sequence[int], states: Sequence[EpisodeHistory]) -> bytes:
        """Return the bytes of what is new in histories; ValueError for what is no observation."""
        parts = []
        for episode, history in zip(episodes, states, strict=True):
            known = self._known.get(episode)
            first = len(known.actions) if known and history.continues(known) else 0
            parts += [
                _KNOWN.pack(episode, first, len(history.actions)),
                self._observations.encode(history.observations[first and first + 1 :]),
                self._actions.encode(history.actions[first:]),
                np.array(history.rewards[first:], "<f8").tobytes(),
            ]
            self._keep(episode, history)
        return b"".join(parts)

    def decode(self, data: bytes, count: int) -> list[EpisodeHistory]:
        """Return histories, that go on from those that were known with the same values."""
        histories, at = [], 0
        for _ in range(count):
            episode, first, steps = _KNOWN.unpack_from(data, at)
            new, at = steps - first, at + _KNOWN.size
            known = self._known[episode] if first else EpisodeHistory(())
            seen = self._observations.decode(data[at:], new + (not first))
            at += len(seen) * self._observations.size
            actions = self._actions.decode(data[at:], new)
            at += new * self._actions.size
            rewards: list[float] = np.frombuffer(data, "<f8", new, at).tolist()
            at += 8 * new
            parts = zip(known, (seen, actions, rewards), strict=True)
            history = EpisodeHistory(*((*before, *more) for before, more in parts))
            histories.append(history)
            self._keep(episode, history)
        return histories

    def _keep(self, episode: int, history: EpisodeHistory) -> None:
        self._known.pop(episode, None)
        self._known[episode] = history
        if len(self._known) > MOST_KNOWN:
            del self._known[next(iter(self._known))]


def is_deterministic(job: ModelJob) -> bool:
    """Whether the same action always leads the program to the same, from the same state."""
    abilities = abilities_of(job.program)
    tells = abilities.tells and not abilities.remembers  # a step of its own moves its memory on
    return not (job.draws or abilities.draws or tells)


def states_of(job: ModelJob) -> States:
    """Return how the states of a program are sent, for one process of it."""
    observations = Codec(job.observation_space, "observations")
    if not abilities_of(job.program).remembers:
        return ObservedStates(observations)
    return HistoryStates(observations, Codec(job.action_space, "actions"))


def encode_question(moments: Sequence[Moment], states: States) -> bytes:
    """Return a question without its length; ValueError for what is no observation."""
    parts = [SIZE.pack(len(moments))]
    for moment in moments:
        valid = moment.valid
        count = _ALL_VALID if valid is None else len(valid)
        parts.append(_MOMENT.pack(moment.episode, moment.decision, moment.horizon, count))
        if valid:
            parts.append(np.array(valid, "<i8").tobytes())
    episodes = [moment.episode for moment in moments]
    return b"".join([*parts, states.encode(episodes, [moment.state for moment in moments])])


def decode_question(data: bytes, states: States) -> list[Moment]:
    """Read what `encode_question` wrote."""
    [count], offset = SIZE.unpack_from(data), SIZE.size
    heads = []
    for _ in range(count):
        episode, decision, horizon, some = _MOMENT.unpack_from(data, offset)
        offset += _MOMENT.size
        valid = None
        if some != _ALL_VALID:
            valid = tuple(np.frombuffer(data, "<i8", some, offset).tolist())
            offset += 8 * some
        heads.append((episode, decision, horizon, valid))
    return [
        Moment(episode, decision, state, horizon, valid)
        for (episode, decision, horizon, valid), state in zip(
            heads, states.decode(data[offset:], count), strict=True
        )
    ]


def encode_reply(reply: PlanningReply, actions: Codec) -> bytes:
    """Return a reply without its length."""
    note = reply.note.encode("utf-8", "replace")[:LONGEST_NOTE]
    head = _REPLY.pack(reply.planner, reply.forms, len(note), note)
    counts = np.array([len(plan) for plan in reply.plans], "<u4").tobytes()
    counts += np.array(reply.steps, "<u8").tobytes()
    return head + counts + actions.encode([action for plan in reply.plans for action in plan])


def decode_reply(data: bytes, moments: Sequence[Moment], actions: Codec) -> PlanningReply:
    """Read a reply to a question about some moments; ValueError when it is none."""
    begin = _REPLY.size + (SIZE.size + _STEPS.size) * len(moments)
    if len(data) != _REPLY.size and len(data) < begin:
        raise ValueError("an incomplete reply")
    planner, forms, size, note = _REPLY.unpack_from(data)
    text = note[:size].decode("utf-8", "replace")
    if len(data) == _REPLY.size:
        return PlanningReply([], [], planner, forms, text)
    middle = begin - _STEPS.size * len(moments)
    counts = [count for [count] in SIZE.iter_unpack(data[_REPLY.size : middle])]
    steps = [count for [count] in _STEPS.iter_unpack(data[middle:begin])]
    if len(data) != begin + sum(counts) * actions.size:
        raise ValueError(f"a reply of {len(data)} bytes")
    for count, moment in zip(counts, moments, strict=True):
        if not 1 <= count <= moment.horizon:
            raise ValueError(f"a plan of {count} actions")
    every = iter(actions.decode(data[begin:], sum(counts)))
    plans = [list(islice(every, count)) for count in counts]
    return PlanningReply(plans, steps, planner, forms, text)


def most_bytes(moments: Sequence[Moment], actions: Codec) -> int:
    """Return how long a reply can be."""
    each = SIZE.size + _STEPS.size
    return _REPLY.size + sum(each + moment.horizon * actions.size for moment in moments)


@dataclass(frozen=True, kw_only=True)
class SteppingJob(ModelJob):
    """A program that stands where it is told and steps from there, in its fastest form."""

    handler: ClassVar[str] = "cwm_cli.worlds.confined:SteppingHandler"
    form: str = "auto"


class Ask(IntEnum):
    """What a program that steps is asked.

    HERE what it sees where it stands, WALK to take actions one by one up to the end of the
    episode, PLAY to say what they return, RETURNS to play plans from
    several observations or places, BEGIN to draw its random numbers from a key on, FORGET the
    places that it has named, ANEW to stand at its last observation before every step up to that,
    OUTCOMES to tell all that can follow an action, DRAWN what so many draws of it lead to, AGREE
    whether two places are the same, FREE to let go of places.
    """

    HERE = 0
    WALK = 1
    PLAY = 2
    RETURNS = 3
    BEGIN = 4
    FORGET = 5
    ANEW = 6
    OUTCOMES = 7
    DRAWN = 8
    AGREE = 9
    FREE = 10


class Stand(IntEnum):
    """Where to stand before that.

    Where it stands, at observations, at a place it has named, where a history leads.
    """

    THERE = 0
    OBSERVED = 1
    NAMED = 2
    STATELESS = 3
    FOLLOWED = 4


STEPPING = Struct("<BB4Qd")
"""What is asked, where to stand; four numbers: of the place, or of bytes of a history; of
observations or places; of actions, plans, or numbers of a key; how long plans are, how often to
draw, or whether to stand anew before each action where the one before led; and the discount, or
how many draws plans share."""

STEPPED = Struct("<QdBqi")
"""Steps that were taken, the reward or return, whether the episode ended, the number of the place
where the program stands now, and how many actions are valid."""

NO_PLACE, NO_STATE = -1, -2
"""In place of a number: an observation is all there is to know, or a place has no state."""


class SteppingReply(NamedTuple):
    """What a program that steps answers; the observation is in bytes, for a `Codec`."""

    steps: int
    reward: float = 0.0
    terminated: bool = False
    place: int = NO_PLACE
    valid: tuple[int, ...] | None = None
    observation: bytes = b""

    def encode(self) -> bytes:
        """Return the bytes of a reply."""
        valid = b"" if self.valid is None else np.array(self.valid, "<i8").tobytes()
        count = _ALL_VALID if self.valid is None else len(self.valid)
        head = STEPPED.pack(self.steps, self.reward, self.terminated, self.place, count)
        return head + valid + self.observation

    @classmethod
    def decode(cls, data: bytes, size: int) -> list[Self]:
        """Read some, with observations of a size; ValueError when it is something else."""
        replies, at = [], 0
        while at < len(data):
            steps, reward, terminated, place, count = STEPPED.unpack_from(data, at)
            middle = at + STEPPED.size
            end = middle + 8 * max(0, count)
            valid = None if count == _ALL_VALID else tuple(_numbers(data[middle:end]))
            at = end + size
            seen = data[end:at]
            replies.append(cls(steps, reward, bool(terminated), place, valid, seen))
        if at != len(data):
            raise ValueError("an incomplete reply")
        return replies


def encode_outcomes(shares: Sequence[float], replies: Sequence[SteppingReply]) -> bytes:
    """Return the bytes of what can follow a step, with probabilities."""
    head = SIZE.pack(len(shares)) + np.array(shares, "<f8").tobytes()
    return head + b"".join(reply.encode() for reply in replies)


def decode_outcomes(data: bytes, size: int) -> list[tuple[float, SteppingReply]]:
    """Read what `encode_outcomes` wrote; ValueError when it is something else."""
    [count] = SIZE.unpack_from(data)
    middle = SIZE.size + 8 * count
    shares = np.frombuffer(data[SIZE.size : middle], "<f8").tolist()
    return list(zip(shares, SteppingReply.decode(data[middle:], size), strict=True))


def _numbers(data: bytes) -> list[int]:
    numbers: list[int] = np.frombuffer(data, "<i8").tolist()
    return numbers


def _dtype(leaf: Space) -> str:
    """Return the type that a leaf is sent in; a text that is too long stays so."""
    if leaf.kind == "text":
        return f"<U{leaf.max_length + 1}"
    return "<f8" if leaf.is_float else "<i8"
