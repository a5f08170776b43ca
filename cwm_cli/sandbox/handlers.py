"""The process of a program: its handler, the program itself, and the values that pass between.

`Handler` does a job with a `ConfinedProgram`. Inputs are columns that become values of a space
(`values`); each answer is checked and written into its slot (`writer`, `recorder`, `outcomes_of`).
"""

import math
import os
import random
import sys
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from itertools import islice
from numbers import Real
from types import CodeType, ModuleType
from typing import Any, ClassVar, Generic, NamedTuple, Self, TypeVar

import numpy as np

from cwm_cli.data.spaces import Columns, Space
from cwm_cli.sandbox.abilities import Abilities, abilities_of
from cwm_cli.sandbox.job import MOST_OUTCOMES, NEVER, Job, Phase, ReportedKind

CHANNEL_DESCRIPTOR = 4
"""The first of two in a conversation: questions come in, replies go out."""

J = TypeVar("J", bound=Job)

Write = Callable[[int, Any], None]
"""Puts the answer for a row into its slot."""

NO_MASK = 2
"""Stands in every place of a mask for actions that the environment does not have."""

_LARGEST = 2**63 - 1


class Handler(Generic[J]):
    """Does a job in the process of a program: one subclass for each kind of job.

    A worker imports it when it starts, so its module has to import everything at the top.
    `prepare` is called before the last guards are up, and `run` after that, once each. An exception
    in `run` is the failure of the program; a `Complaint` has the reason in words.

    A handler for a job that calls a function of a program once:

        class CallHandler(Handler[CallJob]):
            job_class = CallJob

            def run(self, program: ConfinedProgram) -> None:
                names: dict[str, Any] = {}
                exec(program.code, names)
                program.begin()
                print(names[self.job.function]())
    """

    job_class: ClassVar[type[Job]]

    def __init__(self, job: J) -> None:
        self.job = job

    def prepare(self) -> None:
        """Do what the guards would not let; nothing of the program has run yet."""

    def run(self, program: "ConfinedProgram") -> None:
        """Do the job. For a conversation that is to answer until there is nobody left to ask."""
        raise NotImplementedError


class ConfinedProgram:
    """A program in its own process, once every guard is up; `slots` are those of its answers."""

    def __init__(self, code: CodeType, job: Job, slots: Columns) -> None:
        self.code, self.slots = code, slots
        self._job = job
        self._factory: Callable[[], Any] = object
        self.abilities = abilities_of(job.program)
        self.generator = DrawGenerator(job.seed) if self.abilities.draws else None
        """What the program finds as `self.rng`, where it looks for that."""
        self._draws_elsewhere = "random" in job.program.replace("rng.random(", "")

    def load(self) -> Any:
        """Run the text of the program and make its Environment, anew with each call."""
        if self._job.draws:
            reseed(self._job.seed)
        module = ModuleType("world_model")
        sys.modules[module.__name__] = module
        exec(self.code, module.__dict__)  # noqa: S102
        factory = getattr(module, "Environment", None)
        if not callable(factory):
            raise Complaint("the program defines no class Environment")
        self._factory = factory
        environment = self.another()
        _check_methods(environment, self.abilities)
        self.begin()
        return environment

    def another(self) -> Any:
        """Make one more Environment of a program that is loaded."""
        if self.generator is None:
            return self._factory()
        self.generator.put(self._factory)
        environment = self._factory()
        self.generator.put(type(environment), environment)
        return environment

    def begin_draw(self, start: bytes) -> None:
        """Seed all random numbers of the program for one draw, by `START_BYTES` random bytes."""
        if self._draws_elsewhere:
            reseed(*np.frombuffer(start, "<u4").tolist())
        if self.generator is not None:
            self.generator.begin(start)

    def begin(self) -> None:
        """Note that the program is loaded: what takes long or fails from now on is a step."""
        self.slots["phase"][...] = Phase.STEPPING

    @property
    def counter(self) -> memoryview:
        """Where steps are counted, in the first element; a step that takes too long is ended."""
        return self.slots["progress"].reshape(1).data

    def read(self, size: int) -> bytes:
        """Read as many bytes of a question; none when nobody is left to ask."""
        pieces = []
        while size and (piece := os.read(CHANNEL_DESCRIPTOR, size)):
            pieces.append(piece)
            size -= len(piece)
        return b"".join(pieces)

    def write(self, reply: bytes) -> None:
        """Write a reply."""
        while reply:
            reply = reply[os.write(CHANNEL_DESCRIPTOR + 1, reply) :]


def handler_class(address: str) -> type[Handler[Any]]:
    """Return the handler at an address, module:name."""
    module, _, name = address.partition(":")
    found: type[Handler[Any]] = getattr(import_module(module), name)
    return found


def reseed(*key: int) -> None:
    """Begin the random numbers of Python and numpy anew, so that answers can be repeated."""
    random.seed(repr(key))
    np.random.seed([part % 2**32 for part in key])


def _check_methods(environment: Any, abilities: Abilities) -> None:
    """Refuse an environment that lacks a method of its contract."""
    wanted = ["set_state", "outcomes" if abilities.tells else "step"]
    if abilities.remembers:
        wanted = ["reset", "step", "correct", *["outcomes"] * abilities.tells]
    has = {name: getattr(environment, name, None) for name in (*wanted, "correct", "reset")}
    for name in wanted:
        if callable(has[name]):
            continue
        words = f"the class Environment has no method {name}"
        if abilities.remembers:
            words += ": a program with correct needs reset, step and correct"
            raise Complaint(words, "wrong_contract", about=has["correct"])
        if callable(has["reset"]):
            words += ", and a program with reset also needs correct: write both or neither"
            raise Complaint(words, "wrong_contract", about=has["reset"])
        raise Complaint(words)


class DrawGenerator:
    """The random generator of a program, `self.rng`, which restarts with every draw.

    It is an attribute of the class, so that it is there before an environment is made, and copies
    of one share it. Each draw begins at a state that the trusted side has drawn.
    """

    def __init__(self, seed: int) -> None:
        self._bits = np.random.PCG64(seed)
        self._rng = np.random.Generator(self._bits)
        self._state: Any = self._bits.state

    def put(self, made_by: Any, environment: Any = None) -> None:
        """Put it where a program finds it, instead of one that an environment has of its own."""
        if isinstance(made_by, type):
            made_by.rng = self._rng  # type: ignore[attr-defined]
        getattr(environment, "__dict__", {}).pop("rng", None)

    def begin(self, start: bytes) -> None:
        """Begin a draw at a state of `START_BYTES` bytes."""
        self._state["state"]["state"] = int.from_bytes(start, "little")
        self._bits.state = self._state  # a generator of its own for each takes ten times as long


class Complaint(Exception):
    """The fault of a program, in words that are complete without the type of the exception.

    `kind` is the kind of the failure, None for a general one. `line` is the line of the program
    that is at fault, 0 if none is.
    """

    def __init__(self, words: str, kind: ReportedKind | None = None, *, about: Any = None) -> None:
        super().__init__(words)
        self.kind, self.line = kind, 0
        if about is not None:
            self.blame(about)

    def blame(self, method: Any) -> Self:
        """Set the line to that of a method of the program, if it is in the text."""
        code = getattr(getattr(method, "__func__", method), "__code__", None)
        self.line = self.line or getattr(code, "co_firstlineno", 0)
        return self


def values(space: Space, columns: Iterator[np.ndarray]) -> Iterator[Any]:
    """Return the values whose leaves are the next columns, each value a copy of its own."""
    if space.kind in ("tuple", "dict"):
        rows = zip(*[values(child, columns) for child in space.children], strict=True)
        if space.kind == "tuple":
            return rows
        return (dict(zip(space.keys, row, strict=True)) for row in rows)
    column = next(columns)
    if space.kind in ("discrete", "text"):
        return iter(column.tolist())
    return (row.copy() for row in column)


def writer(space: Space, slots: Iterator[np.ndarray], label: str = "the observation") -> Write:
    """Return what checks an answer and writes its leaves into the next of the slots."""
    if space.kind == "tuple":
        labels = [f"{label}[{index}]" for index in range(len(space.children))]
    elif space.kind == "dict":
        labels = [f"{label}[{key!r}]" for key in space.keys]
    else:
        return _leaf_writer(space, next(slots), label)
    parts = [writer(child, slots, part) for child, part in zip(space.children, labels, strict=True)]
    if space.kind == "tuple":
        return _tuple_writer(parts, label)
    return _dict_writer(dict(zip(space.keys, parts, strict=True)), label)


def reward_of(value: Any, label: str = "the reward") -> float:
    """Accept any number, also in an array of one element."""
    array = _numbers(value, label)
    if array.size != 1:
        raise Complaint(f"{label} should be a number, got an array of shape {array.shape}")
    return float(array.reshape(())[()])


def terminated_of(value: Any) -> bool:
    """Accept a bool of Python or numpy, 0 and 1."""
    if isinstance(value, bool | np.bool_ | int | np.integer) and value in (0, 1):
        return bool(value)
    raise Complaint(f"terminated should be True or False, got {brief(value)}")


def recorder(space: Space, slots: Columns, action_space: Space | None = None) -> Write:
    """Return what checks all that a step answered and writes it into a place of the slots.

    Where that says which actions are valid, it takes the space of the actions.
    """
    write = writer(space, (slots[leaf.name] for leaf in space.leaves("next_observations")))
    rewards, terminations = slots["rewards"], slots["terminations"]
    write_valid = action_space and mask_writer(action_space, slots["valid_actions"])

    def record(place: int, result: Any) -> None:
        if write_valid:
            *result, valid = parts(result, with_valid=True)
            write_valid(place, valid)
        elif type(result) is not tuple or len(result) != 3:
            result = parts(result)
        observation, reward, terminated = result
        write(place, observation)
        rewards[place] = reward if type(reward) is float else reward_of(reward)
        terminations[place] = terminated if type(terminated) is bool else terminated_of(terminated)

    return record


def parts(result: Any, *, with_valid: bool = False) -> Any:
    """Return the result of `step`, or raise `Complaint` if its number of parts is wrong."""
    if isinstance(result, tuple | list) and len(result) == 3 + with_valid:
        return result
    wanted = "(observation, reward, terminated" + ", valid actions)" * with_valid
    raise Complaint(f"step should return {wanted.rstrip(')')}), got {brief(result)}")


def actions_of(value: Any) -> list[int]:
    """Accept whole numbers in any collection: a list, tuple, set or array."""
    items = list(value) if isinstance(value, set | frozenset) else value
    array = _numbers(items, "the valid actions")
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise Complaint(f"the valid actions should be a list of ints, got {brief(value)}")
    actions: list[int] = array.tolist()
    return actions


def mask_writer(space: Space, slot: np.ndarray) -> Write:
    """Return what writes for each action whether it is valid; others than there are match never."""
    low, high = int(space.low[0]), int(space.high[0])

    def write(row: int, value: Any) -> None:
        actions = actions_of(value)
        known = [action - low for action in actions if low <= action <= high]
        slot[row] = 0
        slot[row, known] = 1
        if len(known) < len(actions):
            slot[row] = NO_MASK

    return write


def _tuple_writer(parts: list[Write], label: str) -> Write:
    """Write each part of a tuple."""

    def write(row: int, value: Any) -> None:
        if not isinstance(value, tuple | list) or len(value) != len(parts):
            raise Complaint(f"{label} should be a tuple of {len(parts)} parts, got {brief(value)}")
        for write_part, part in zip(parts, value, strict=True):
            write_part(row, part)

    return write


def _dict_writer(parts: dict[str, Write], label: str) -> Write:
    """Write each part of a dict."""

    def write(row: int, value: Any) -> None:
        if not isinstance(value, dict) or value.keys() != parts.keys():
            keys = ", ".join(map(repr, parts))
            raise Complaint(f"{label} should be a dict with the keys {keys}, got {brief(value)}")
        for key, write_part in parts.items():
            write_part(row, value[key])

    return write


def _leaf_writer(space: Space, slot: np.ndarray, label: str) -> Write:
    """Choose the writer for a leaf."""
    if space.kind == "text":
        return _text_writer(slot, label)
    if space.kind == "discrete":
        return _integer_writer(slot, label)
    return _float_array_writer(slot, label) if space.is_float else _int_array_writer(slot, label)


def _float_array_writer(slot: np.ndarray, label: str) -> Write:
    """Write arrays of real numbers; the common case is decided in three comparisons."""
    shape, array_type = slot.shape[1:], np.ndarray

    def write(row: int, value: Any) -> None:
        if type(value) is not array_type or value.shape != shape or value.dtype.kind not in "fiub":
            value = _shaped(value, shape, label)
        slot[row] = value

    return write


def _int_array_writer(slot: np.ndarray, label: str) -> Write:
    """Write arrays of integers."""
    shape, array_type = slot.shape[1:], np.ndarray

    def write(row: int, value: Any) -> None:
        if type(value) is not array_type or value.shape != shape or value.dtype.kind not in "ib":
            value = _whole(_shaped(value, shape, label))
        slot[row] = value

    return write


def _integer_writer(slot: np.ndarray, label: str) -> Write:
    """Write single integers."""

    def write(row: int, value: Any) -> None:
        if type(value) is not int or not -_LARGEST <= value <= _LARGEST:
            value = _whole(_shaped(value, (), label))
        slot[row] = value

    return write


def _text_writer(slot: np.ndarray, label: str) -> Write:
    """Write texts."""

    def write(row: int, value: Any) -> None:
        if not isinstance(value, str):
            raise Complaint(f"{label} should be a str, got {brief(value)}")
        slot[row] = value.encode("utf-8", "surrogatepass")

    return write


def _shaped(value: Any, shape: tuple[int, ...], label: str) -> np.ndarray:
    """Turn a value into an array of numbers of the right shape."""
    array = _numbers(value, label)
    if array.shape != shape:
        raise Complaint(f"{label} should have the shape {shape}, got the shape {array.shape}")
    return array


def _numbers(value: Any, label: str) -> np.ndarray:
    """Turn a value into an array of numbers."""
    try:
        array = np.asarray(value)
        if array.dtype.kind == "O" and all(isinstance(number, Real) for number in array.flat):
            array = array.astype(np.float64)  # integers beyond 64 bits
    except (TypeError, ValueError, OverflowError) as error:
        raise Complaint(f"{label} should hold numbers, got {brief(value)} ({error})") from error
    if array.dtype.kind not in "fiub":
        raise Complaint(f"{label} should hold numbers, got {brief(value)}")
    return array


def _whole(array: np.ndarray) -> np.ndarray:
    """Return numbers as integers; others become `NEVER`, which matches nothing."""
    if array.dtype.kind in "ib":
        return array
    if array.dtype.kind == "u":
        return np.where(array > _LARGEST, NEVER, array.astype(np.int64))
    fits = (np.floor(array) == array) & (np.abs(array) < 2.0**63)
    return np.where(fits, np.where(fits, array, 0).astype(np.int64), NEVER)


def brief(value: Any) -> str:
    """Name a value by its type and size, or by itself when it is a plain number."""
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype} of shape {value.shape}"
    if isinstance(value, dict):
        return f"a dict with the keys {', '.join(map(repr, list(value)[:20]))[:200]}"
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)} parts"
    if value is None or isinstance(value, bool | float) or value in range(-999, 1000):
        return str(value)
    return f"a value of type {type(value).__name__}"


class PossibleAnswer(NamedTuple):
    """A possible outcome and its probability; `answer` has the parts that `step` returns."""

    probability: float
    answer: tuple[Any, ...]


def outcomes_of(told: Any, *, with_valid: bool = False) -> list[PossibleAnswer]:
    """Accept what `outcomes` returned; the probabilities sum to 1 afterwards."""
    if not isinstance(told, Iterable) or isinstance(told, str | bytes | dict | np.ndarray):
        raise Complaint(f"outcomes should return a list of outcomes, got {brief(told)}")
    some = list(islice(told, MOST_OUTCOMES + 1))
    if len(some) > MOST_OUTCOMES:
        words = (
            f"outcomes returned more than {MOST_OUTCOMES} outcomes: sample in step, from self.rng"
        )
        raise Complaint(words, "wrong_probabilities")
    if not some:
        raise Complaint(
            "outcomes returned an empty list: at least one outcome is required",
            "wrong_probabilities",
        )
    for each in some:
        if not isinstance(each, tuple | list) or len(each) != 4 + with_valid:
            wanted = (
                "(probability, observation, reward, terminated" + ", valid actions" * with_valid
            )
            raise Complaint(f"an outcome should be {wanted}), got {brief(each)}")
    chances = _shares([each[0] for each in some])
    return [PossibleAnswer(p, tuple(each[1:])) for p, each in zip(chances, some, strict=True)]


def _shares(told: list[Any]) -> list[float]:
    """Return probabilities that sum to 1."""
    numbers = [
        float(each) if type(each) is float else reward_of(each, "a probability") for each in told
    ]
    for number in numbers:
        if not math.isfinite(number) or number < 0:
            words = f"a probability is {number:g}: it must be finite and at least 0"
            raise Complaint(words, "wrong_probabilities")
    most = max(numbers)
    if not most:
        words = "the probabilities of the outcomes sum to 0: at least one must be positive"
        raise Complaint(words, "wrong_probabilities")
    total = sum(number / most for number in numbers)
    return [number / most / total for number in numbers]
