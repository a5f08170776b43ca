"""Jobs for programs that are world models, and their messages, for both sides of the sandbox.

A question of a `PlanningJob` contains the moments at which plans are due. The reply contains the
plans, the number of model steps that each plan took, and the planner. A question of a `SteppingJob`
contains the start state of the program and the actions that it takes. Questions and replies of an
`ImaginingJob` are JSON data with named arrays.

Each message starts with its length (`SIZE`). The layout of the rest follows from the spaces.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import islice
from math import prod
from struct import Struct
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from cwm_cli.data.spaces import Space
from cwm_cli.planning.model import EpisodeHistory
from cwm_cli.planning.planner import Moment
from cwm_cli.sandbox.handlers import values
from cwm_cli.sandbox.job import ModelJob, abilities_of

SIZE = Struct("<I")
"""The length of the message that follows, in bytes."""

MAX_NOTE_BYTES = 400
"""Maximum length of the note in a reply, in bytes."""

_MOMENT = Struct("<3Qi")  # episode, decision, horizon, number of valid actions
_REPLY = Struct(f"<BBH{MAX_NOTE_BYTES}s")  # planner, forms, length of the note, note
_STEPS = Struct("<Q")
_ALL_VALID = -1


@dataclass(frozen=True, kw_only=True)
class PlanningJob(ModelJob):
    """A job that plans with a program.

    `columns` are recorded observations and actions. A translated form replaces the program only if
    both agree on these rows.

    Args:
        planners: Names or addresses, with options; the first planner that suits the model is used.
        form: "scalar" to use no translated form.
        examples: (rows, components) recorded observations in whose range to plan.
    """

    handler: ClassVar[str] = "cwm_cli.worlds.confined:PlanningHandler"
    planners: Sequence[tuple[str, Mapping[str, Any]]]
    form: str = "auto"
    examples: np.ndarray | None = None


@dataclass(frozen=True, kw_only=True)
class SteppingJob(ModelJob):
    """A job that steps a program, in its fastest form, from states that each question names."""

    handler: ClassVar[str] = "cwm_cli.worlds.confined:SteppingHandler"
    form: str = "auto"
    examples: np.ndarray | None = None


@dataclass(frozen=True, kw_only=True)
class ImaginingJob(ModelJob):
    """A job that calls functions of trusted modules, which step a program inside its process.

    `columns` are recorded rows. A translated form replaces the program only if both agree on
    these rows.
    """

    handler: ClassVar[str] = "cwm_cli.worlds.confined:ImaginingHandler"
    form: str = "auto"


def is_deterministic(job: ModelJob) -> bool:
    """Return whether the same action in the same state always has the same result."""
    abilities = abilities_of(job.program)
    # a program with memory is only stepped, even if it defines `outcomes`
    lists_outcomes = abilities.tells and not abilities.remembers
    return not (job.draws or abilities.draws or lists_outcomes)


class Codec:
    """Converts values of a space to bytes and back, column by column, in the types of programs."""

    def __init__(self, space: Space, name: str) -> None:
        self._space, self._name = space, name
        leaves = []
        for leaf, part in space.leaves(name):
            dtype = "<f8" if part.is_float else "<i8"
            if part.kind == "text":  # one more character shows that a text is too long
                dtype = f"<U{part.max_length + 1}"
            leaves.append((leaf, dtype, part.shape))
        self._leaves = leaves
        # Arrays of actions contain all components of a tuple or a dict.
        self.dtype = "<f8" if space.children else leaves[0][1]
        self.size = sum(np.dtype(dtype).itemsize * prod(shape) for _, dtype, shape in leaves)

    def encode(self, items: Sequence[Any]) -> bytes:
        """Return the bytes of items; raise ValueError if one is not in the space."""
        columns = self._space.pack(self._name, items)
        return b"".join(columns[name].astype(dtype).tobytes() for name, dtype, _ in self._leaves)

    def decode(self, data: bytes, count: int) -> list[Any]:
        """Return `count` items, which share no memory."""
        offset, columns = 0, []
        for _, dtype, shape in self._leaves:
            column: np.ndarray = np.ndarray((count, *shape), dtype, data, offset)
            columns.append(column)
            offset += column.nbytes
        return list(values(self._space, iter(columns)))


class States:
    """Converts the start states of plans to bytes and back; these states are observations."""

    def __init__(self, observations: Codec) -> None:
        self._observations = observations

    def encode(self, episodes: Sequence[int], states: Sequence[Any]) -> bytes:
        """Return the bytes of one state per episode; raise ValueError if one is invalid."""
        return self._observations.encode(states)

    def decode(self, data: bytes, count: int) -> list[Any]:
        """Return the `count` states in the bytes."""
        return self._observations.decode(data, count)


class HistoryStates(States):
    """States that are histories; only steps that the other side does not have yet are sent.

    Both sides keep the same recent histories if one side decodes all states that the other
    encodes, in the same order.
    """

    def __init__(self, observations: Codec, actions: Codec) -> None:
        super().__init__(observations)
        self._actions = actions
        self._known: dict[int, EpisodeHistory] = {}

    def encode(self, episodes: Sequence[int], states: Sequence[EpisodeHistory]) -> bytes:
        """Return the bytes of new steps; raise ValueError if a value is not in its space."""
        parts = []
        for episode, history in zip(episodes, states, strict=True):
            known = self._known.get(episode)
            # A history that does not continue the known one, as after a reset, is sent whole.
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
        """Return the histories; each contains the very objects of the history that it continues."""
        histories, at = [], 0
        for _ in range(count):
            episode, first, steps = _KNOWN.unpack_from(data, at)
            new, at = steps - first, at + _KNOWN.size
            known = self._known[episode] if first else EpisodeHistory(())
            observations = self._observations.decode(data[at:], new + (not first))
            at += len(observations) * self._observations.size
            actions = self._actions.decode(data[at:], new)
            at += new * self._actions.size
            rewards: list[float] = np.frombuffer(data, "<f8", new, at).tolist()
            at += 8 * new
            parts = zip(known, (observations, actions, rewards), strict=True)
            history = EpisodeHistory(*((*before, *more) for before, more in parts))
            histories.append(history)
            self._keep(episode, history)
        return histories

    def _keep(self, episode: int, history: EpisodeHistory) -> None:
        # Both sides forget the same histories, because a dict lists the latest insertion last.
        self._known.pop(episode, None)
        self._known[episode] = history
        if len(self._known) > 64:  # eight times as many episodes as run in parallel
            del self._known[next(iter(self._known))]


_KNOWN = Struct("<QII")
"""An episode, the number of its steps that the other side knows, and the number of all steps."""


def states_of(job: ModelJob) -> States:
    """Return a new encoder or decoder for the states of one process of a program."""
    observations = Codec(job.observation_space, "observations")
    if not abilities_of(job.program).remembers:
        return States(observations)
    return HistoryStates(observations, Codec(job.action_space, "actions"))


def encode_question(moments: Sequence[Moment], states: States) -> bytes:
    """Return a planning question without its length; raise ValueError for an invalid state."""
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
    """Return the moments of a planning question."""
    [count], offset = SIZE.unpack_from(data), SIZE.size
    heads = []
    for _ in range(count):
        episode, decision, horizon, valid_count = _MOMENT.unpack_from(data, offset)
        offset += _MOMENT.size
        valid = None
        if valid_count != _ALL_VALID:
            valid = tuple(np.frombuffer(data, "<i8", valid_count, offset).tolist())
            offset += 8 * valid_count
        heads.append((episode, decision, horizon, valid))
    return [
        Moment(episode, decision, state, horizon, valid)
        for (episode, decision, horizon, valid), state in zip(
            heads, states.decode(data[offset:], count), strict=True
        )
    ]


class PlanningReply(NamedTuple):
    """Plans for the moments of a question; no plans if no planner suits the model.

    Args:
        plans: The actions of each plan.
        steps: The number of model steps that each plan took.
        planner: The index of the planner in the job.
        forms: One bit for each of `FORMS`: whether the model was used in this form.
        note: The reasons why other planners and forms were not used.
    """

    plans: list[list[Any]]
    steps: list[int]
    planner: int
    forms: int
    note: str


def encode_reply(reply: PlanningReply, actions: Codec) -> bytes:
    """Return a planning reply without its length."""
    note = reply.note.encode("utf-8", "replace")[:MAX_NOTE_BYTES]
    head = _REPLY.pack(reply.planner, reply.forms, len(note), note)
    counts = np.array([len(plan) for plan in reply.plans], "<u4").tobytes()
    counts += np.array(reply.steps, "<u8").tobytes()
    return head + counts + actions.encode([action for plan in reply.plans for action in plan])


def decode_reply(data: bytes, moments: Sequence[Moment], actions: Codec) -> PlanningReply:
    """Return the reply to a question about these moments; raise ValueError if it is malformed."""
    # A reply is from an untrusted process: each length is checked before bytes are read.
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
    planned = iter(actions.decode(data[begin:], sum(counts)))
    plans = [list(islice(planned, count)) for count in counts]
    return PlanningReply(plans, steps, planner, forms, text)


def max_reply_bytes(moments: Sequence[Moment], actions: Codec) -> int:
    """Return the maximum length of a valid reply to a question about these moments."""
    per_plan = SIZE.size + _STEPS.size
    return _REPLY.size + sum(per_plan + moment.horizon * actions.size for moment in moments)


class SteppingRequest(IntEnum):
    """The kinds of questions of a `SteppingJob`.

    HERE: return the current observation. WALK: take actions one by one until the episode ends.
    PLAY: the same, but return only the sum of rewards. RETURNS: play plans from several states.
    SEED: draw random numbers from a new key. FORGET: delete all places and undo ANEW.
    ANEW: from now on, set the state to the last observation before every step. OUTCOMES: return all
    possible results of an action. DRAW: return the results of random draws of an action. AGREE:
    compare two places. FREE: delete some places. STEP_ALL: take an action in each of many states.
    LEGAL: return the legal actions in the current state of a game. PLAY_RANDOMLY: play a game with
    random legal moves, and return the gain of the player to move.
    """

    HERE = 0
    WALK = 1
    PLAY = 2
    RETURNS = 3
    SEED = 4
    FORGET = 5
    ANEW = 6
    OUTCOMES = 7
    DRAW = 8
    AGREE = 9
    FREE = 10
    STEP_ALL = 11
    LEGAL = 12
    PLAY_RANDOMLY = 13


class StartKind(IntEnum):
    """The kinds of start states in a question.

    CURRENT: its current state. OBSERVED: observations. PLACE: places, by number. STATELESS:
    observations without a stored state. HISTORY: the end of the history of an episode.
    """

    CURRENT = 0
    OBSERVED = 1
    PLACE = 2
    STATELESS = 3
    HISTORY = 4


STEPPING = Struct("<BB4Qd")
"""The head of a question to a program that steps.

The request and the kind of start. The number of bytes of the start. The number of start states.
The number of actions, of plans, or of integers in a key. A length: of plans, the number of draws,
the number of random moves, or 1 to restore the state that the last action led to before each
action. Last, the discount, the number of draws that all plans share, or the seed of random moves.
"""

STEPPED = Struct("<QdBqi")
"""The head of a reply: steps taken, reward or return, whether the episode ended, number of the
current place, and number of valid actions."""

NO_PLACE, NO_STATE = -1, -2
"""Instead of the number of a place: the observation is the whole state, or there is no state."""


class SteppingReply(NamedTuple):
    """A reply of a program that steps; the observation is encoded with a `Codec`."""

    steps: int
    reward: float = 0.0
    terminated: bool = False
    place: int = NO_PLACE
    valid: tuple[int, ...] | None = None
    observation: bytes = b""

    def encode(self) -> bytes:
        """Return the bytes of the reply."""
        valid = b"" if self.valid is None else np.array(self.valid, "<i8").tobytes()
        count = _ALL_VALID if self.valid is None else len(self.valid)
        head = STEPPED.pack(self.steps, self.reward, self.terminated, self.place, count)
        return head + valid + self.observation

    @classmethod
    def decode(cls, data: bytes, size: int) -> list[Self]:
        """Return replies with observations of `size` bytes; raise ValueError if malformed."""
        replies, at = [], 0
        while at < len(data):
            steps, reward, terminated, place, count = STEPPED.unpack_from(data, at)
            middle = at + STEPPED.size
            end = middle + 8 * max(0, count)
            valid = None
            if count != _ALL_VALID:
                valid = tuple(np.frombuffer(data[middle:end], "<i8").tolist())
            at = end + size
            replies.append(cls(steps, reward, bool(terminated), place, valid, data[end:at]))
        if at != len(data):
            raise ValueError("an incomplete reply")
        return replies


def encode_outcomes(probabilities: Sequence[float], replies: Sequence[SteppingReply]) -> bytes:
    """Return the bytes of the possible results of a step."""
    head = SIZE.pack(len(probabilities)) + np.array(probabilities, "<f8").tobytes()
    return head + b"".join(reply.encode() for reply in replies)


def decode_outcomes(data: bytes, size: int) -> list[tuple[float, SteppingReply]]:
    """Return results that `encode_outcomes` encoded; raise ValueError if they are malformed."""
    [count] = SIZE.unpack_from(data)
    middle = SIZE.size + 8 * count
    probabilities = np.frombuffer(data[SIZE.size : middle], "<f8").tolist()
    return list(zip(probabilities, SteppingReply.decode(data[middle:], size), strict=True))


def pack(head: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> bytes:
    """Return the bytes of a head of plain JSON data, and of named arrays of numbers or texts."""
    columns = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    shapes = [[name, column.dtype.str, column.shape] for name, column in columns.items()]
    text = json.dumps([head, shapes]).encode()
    return b"".join([SIZE.pack(len(text)), text, *(c.tobytes() for c in columns.values())])


def unpack(data: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the head and the arrays of packed bytes; raise ValueError if they are malformed."""
    if len(data) < SIZE.size:
        raise ValueError("a reply without a head")
    [size] = SIZE.unpack_from(data)
    offset = SIZE.size + size
    try:
        head, shapes = json.loads(data[SIZE.size : offset])
        arrays: dict[str, np.ndarray] = {}
        for name, kind, shape in shapes:
            dtype, whole = np.dtype(str(kind)), tuple(map(int, shape))
            # Numbers and texts only: an array of objects would be a pointer from the program.
            if dtype.kind not in "biufU" or min(whole, default=0) < 0:
                raise ValueError("an array of something else")
            if offset + dtype.itemsize * prod(whole) > len(data):
                raise ValueError("an array that is not there")
            arrays[str(name)] = np.ndarray(whole, dtype, data, offset).copy()
            offset += arrays[str(name)].nbytes
    except (TypeError, KeyError, RecursionError) as error:
        raise ValueError("a reply that makes no sense") from error
    return head, arrays
