"""The base class of handlers, the confined program, and the conversion of its answers.

A `Handler` executes a job with a `ConfinedProgram`, in the process of the program. `values` turns
columns of inputs into values of a space. `writer`, `recorder` and `outcomes_of` check each answer
and write it into its slot.
"""

import math
import os
import random
import sys
from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from importlib import import_module
from itertools import islice
from numbers import Real
from types import CodeType, ModuleType
from typing import Any, ClassVar, Generic, NamedTuple, Self, TypeVar

import numpy as np

from cwm_cli.data.spaces import Columns, Space
from cwm_cli.sandbox.job import (
    MOST_OUTCOMES,
    NEVER,
    Abilities,
    Job,
    ModelJob,
    Phase,
    PredictionJob,
    ReportedKind,
    abilities_of,
)

CHANNEL_DESCRIPTOR = 4
"""The descriptor of the questions of a conversation; the next one is that for replies."""

J = TypeVar("J", bound=Job)

Write = Callable[[int, Any], None]
"""Checks the answer for a row and writes it into its slot."""

_MAX_INT = 2**63 - 1


class Handler(Generic[J]):
    """Executes a job in the process of a program; base class with one subclass per kind of job.

    A worker imports handlers when it starts, so the module of a handler has to import everything
    at the top. An exception in `run` is a failure of the program; raise `Complaint` to give the
    reason in words.

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
        """Do work that the guards would refuse; called once, before the last guards and `run`."""

    def run(self, program: "ConfinedProgram") -> None:
        """Execute the job; in a conversation, answer until `program.read` returns no bytes."""
        raise NotImplementedError


class ConfinedProgram:
    """A program in its own process, after all guards are active.

    Args:
        code: The compiled program.
        job: The job.
        slots: Arrays over the slots of the job (`SlotLayout.views`).
    """

    def __init__(self, code: CodeType, job: Job, slots: Columns) -> None:
        self.code, self.slots = code, slots
        self._job = job
        self._factory: Callable[[], Any] = object
        self.abilities = abilities_of(job.program)
        self._generator = DrawGenerator(job.seed) if self.abilities.draws else None
        self._has_other_random = "random" in job.program.replace("rng.random(", "")

    def load(self) -> Any:
        """Execute the text of the program and return a new Environment.

        Raises:
            Complaint: The program has no class `Environment`, or this class lacks a method.
        """
        if self._job.draws:
            reseed(self._job.seed)
        module = ModuleType("world_model")
        sys.modules[module.__name__] = module  # `dataclass` looks up the module of a class there
        exec(self.code, module.__dict__)  # noqa: S102
        factory = getattr(module, "Environment", None)
        if not callable(factory):
            raise Complaint("the program defines no class Environment")
        self._factory = factory
        environment = self.make_environment()
        _check_methods(environment, self.abilities)
        self.begin()
        return environment

    def make_environment(self) -> Any:
        """Return one more Environment of a loaded program."""
        if self._generator is None:
            return self._adapted(self._factory())
        self._generator.install(self._factory)
        environment = self._factory()
        # `Environment` may be a function, or `__init__` may set an `rng` of its own.
        self._generator.install(type(environment), environment)
        return environment

    def _adapted(self, environment: Any) -> Any:
        """Return the environment; steps of a game also return its legal actions, if needed."""
        job = self._job
        if self.abilities.contract != "game" or not (isinstance(job, ModelJob) and job.valid):
            return environment
        _check_methods(environment, self.abilities)
        return GameProgram(environment, job.action_space, is_judged=isinstance(job, PredictionJob))

    def begin_draw(self, start: bytes) -> None:
        """Seed all random numbers of the program for one draw, from `START_BYTES` random bytes."""
        if self._has_other_random:  # takes longer than a typical step
            reseed(*np.frombuffer(start, "<u4").tolist())
        if self._generator is not None:
            self._generator.begin(start)

    def begin(self) -> None:
        """Mark the program as loaded: later failures and time-outs belong to a step."""
        self.slots["phase"][...] = Phase.STEPPING

    @property
    def counter(self) -> memoryview:
        """The number of steps, in the first element; a step that takes too long is ended."""
        return self.slots["progress"].reshape(1).data

    def read(self, size: int) -> bytes:
        """Read a part of a question, `size` bytes, or fewer if the conversation is over."""
        pieces = []
        while size and (piece := os.read(CHANNEL_DESCRIPTOR, size)):
            pieces.append(piece)
            size -= len(piece)
        return b"".join(pieces)

    def write(self, reply: bytes) -> None:
        """Send a reply."""
        while reply:
            reply = reply[os.write(CHANNEL_DESCRIPTOR + 1, reply) :]


def handler_class(address: str) -> type[Handler[Any]]:
    """Import and return the handler at an address, `module:name`."""
    module, _, name = address.partition(":")
    found: type[Handler[Any]] = getattr(import_module(module), name)
    return found


def reseed(*key: int) -> None:
    """Seed the global generators of Python and numpy, so that answers are repeatable."""
    random.seed(repr(key))
    np.random.seed([part % 2**32 for part in key])


def _check_methods(environment: Any, abilities: Abilities) -> None:
    """Raise `Complaint` if an environment lacks a method of its contract."""
    required = ["set_state", "outcomes" if abilities.tells else "step"]
    if abilities.remembers:
        required = ["reset", "step", "correct", *["outcomes"] * abilities.tells]
    if abilities.contract == "game":
        required.append("legal_actions")
    methods = {name: getattr(environment, name, None) for name in (*required, "correct", "reset")}
    for name in required:
        if callable(methods[name]):
            continue
        message = f"the class Environment has no method {name}"
        if abilities.remembers:
            message += ": a program with correct needs reset, step and correct"
            raise Complaint(message, "wrong_contract", about=methods["correct"])
        if callable(methods["reset"]):
            message += ", and a program with reset also needs correct: write both or neither"
            raise Complaint(message, "wrong_contract", about=methods["reset"])
        raise Complaint(message)


class GameProgram:
    """The environment of a program of a game, whose steps also return the legal actions.

    Args:
        environment: An object with `set_state`, `step` and `legal_actions`.
        action_space: The actions.
        is_judged: Whether to check the answers of `legal_actions`. The action of a row must be
            legal before its step. After the step, the answer must be the same as after
            `set_state` with the new observation. Other answers count as wrong.
    """

    def __init__(self, environment: Any, action_space: Space, *, is_judged: bool) -> None:
        self._environment, self._is_judged = environment, is_judged
        self._wrong = [int(action_space.low[0]) - 1]  # never equal to recorded actions
        self.set_state, self.legal_actions = environment.set_state, environment.legal_actions

    def step(self, action: Any) -> tuple[Any, ...]:
        """Return the result of a step, and the legal actions after it: none after the end."""
        environment, is_judged = self._environment, self._is_judged
        is_wrong = is_judged and action not in actions_of(environment.legal_actions())
        observation, reward, terminated = parts(environment.step(action))
        if terminated:
            return observation, reward, terminated, self._wrong if is_wrong else []
        legal = environment.legal_actions()
        if is_judged:
            environment.set_state(deepcopy(observation))
            is_wrong |= {*actions_of(environment.legal_actions())} != {*actions_of(legal)}
        return observation, reward, terminated, self._wrong if is_wrong else legal


class DrawGenerator:
    """The random generator `self.rng` of a program, which the trusted side restarts at each draw.

    It is an attribute of the class, so that it exists before an environment is made and copies of
    an environment share it.
    """

    def __init__(self, seed: int) -> None:
        self._bits = np.random.PCG64(seed)
        self._rng = np.random.Generator(self._bits)
        self._state: Any = self._bits.state

    def install(self, factory: Any, environment: Any = None) -> None:
        """Set `rng` on a class, and remove an `rng` that an environment has made itself."""
        if isinstance(factory, type):
            factory.rng = self._rng  # type: ignore[attr-defined]
        getattr(environment, "__dict__", {}).pop("rng", None)

    def begin(self, start: bytes) -> None:
        """Begin a draw at a state of `START_BYTES` bytes."""
        # A new generator for each draw would take ten times as long.
        self._state["state"]["state"] = int.from_bytes(start, "little")
        self._bits.state = self._state


class Complaint(Exception):
    """A failure of a program, with a message that is complete without the type of the exception.

    `line` is the line of the program that is at fault, or 0.

    Args:
        words: The message.
        kind: Kind of the failure, or None: then the phase of the program decides.
        about: A method of the program whose line is at fault.
    """

    def __init__(self, words: str, kind: ReportedKind | None = None, *, about: Any = None) -> None:
        super().__init__(words)
        self.kind, self.line = kind, 0
        if about is not None:
            self.blame(about)

    def blame(self, method: Any) -> Self:
        """Set `line` to the first line of a method of the program, unless it is set."""
        code = getattr(getattr(method, "__func__", method), "__code__", None)
        self.line = self.line or getattr(code, "co_firstlineno", 0)
        return self


def values(space: Space, columns: Iterator[np.ndarray]) -> Iterator[Any]:
    """Yield the values of a space whose leaves are the next columns, each a separate copy."""
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
    """Return a function that checks a value of a space and writes it into the next slots.

    Args:
        space: Space of the values.
        slots: The slots of the leaves, in order. The iterator is advanced.
        label: Name of the value in messages.
    """
    if space.kind == "tuple":
        parts = [writer(part, slots, f"{label}[{n}]") for n, part in enumerate(space.children)]
        return _tuple_writer(parts, label)
    if space.kind == "dict":
        named = zip(space.keys, space.children, strict=True)
        entries = {key: writer(part, slots, f"{label}[{key!r}]") for key, part in named}
        return _dict_writer(entries, label)
    slot = next(slots)
    if space.kind == "text":
        return _text_writer(slot, label)
    if space.kind == "discrete":
        return _integer_writer(slot, label)
    return _array_writer(slot, label, is_float=space.is_float)


def reward_of(value: Any, label: str = "the reward") -> float:
    """Return a reward as float; any number is valid, also in an array of one element."""
    array = _to_numbers(value, label)
    if array.size != 1:
        raise Complaint(f"{label} should be a number, got an array of shape {array.shape}")
    return float(array.reshape(())[()])


def terminated_of(value: Any) -> bool:
    """Return a termination as bool; valid are bools of Python and numpy, 0 and 1."""
    if isinstance(value, bool | np.bool_ | int | np.integer) and value in (0, 1):
        return bool(value)
    raise Complaint(f"terminated should be True or False, got {_brief(value)}")


def recorder(space: Space, slots: Columns, action_space: Space | None = None) -> Write:
    """Return a function that checks the result of a step and writes it into one place of the slots.

    Args:
        space: Space of the observations.
        slots: The slots of predicted steps (`answer_slots`), with one leading axis.
        action_space: Space of the actions if steps also return the valid actions.
    """
    write = writer(space, (slots[leaf.name] for leaf in space.leaves("next_observations")))
    rewards, terminations = slots["rewards"], slots["terminations"].data
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
    raise Complaint(f"step should return {wanted.rstrip(')')}), got {_brief(result)}")


def actions_of(value: Any) -> list[int]:
    """Return valid actions as a list; valid are integers in a list, tuple, set or array."""
    items = list(value) if isinstance(value, set | frozenset) else value
    array = _to_numbers(items, "the valid actions")
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise Complaint(f"the valid actions should be a list of ints, got {_brief(value)}")
    actions: list[int] = array.tolist()
    return actions


def mask_writer(space: Space, slot: np.ndarray) -> Write:
    """Return a function that writes a list of valid actions as a mask, 1 for each valid action.

    If the list contains an action that is not in the space, the mask is 2 everywhere, so that it
    never equals a true mask.
    """
    low, high = int(space.low[0]), int(space.high[0])

    def write(row: int, value: Any) -> None:
        actions = actions_of(value)
        known = [action - low for action in actions if low <= action <= high]
        slot[row] = 0
        slot[row, known] = 1
        if len(known) < len(actions):
            slot[row] = 2

    return write


def _tuple_writer(parts: list[Write], label: str) -> Write:
    def write(row: int, value: Any) -> None:
        if not isinstance(value, tuple | list) or len(value) != len(parts):
            raise Complaint(f"{label} should be a tuple of {len(parts)} parts, got {_brief(value)}")
        for write_part, part in zip(parts, value, strict=True):
            write_part(row, part)

    return write


def _dict_writer(parts: dict[str, Write], label: str) -> Write:
    def write(row: int, value: Any) -> None:
        if not isinstance(value, dict) or value.keys() != parts.keys():
            keys = ", ".join(map(repr, parts))
            raise Complaint(f"{label} should be a dict with the keys {keys}, got {_brief(value)}")
        for key, write_part in parts.items():
            write_part(row, value[key])

    return write


def _array_writer(slot: np.ndarray, label: str, *, is_float: bool) -> Write:
    shape, array_type = slot.shape[1:], np.ndarray
    kinds = "fiub" if is_float else "ib"

    def write(row: int, value: Any) -> None:
        # A fast path for the common case: this runs for every row.
        if type(value) is not array_type or value.shape != shape or value.dtype.kind not in kinds:
            value = _to_array(value, shape, label)
            value = value if is_float else _to_integers(value)
        slot[row] = value

    return write


def _integer_writer(slot: np.ndarray, label: str) -> Write:
    def write(row: int, value: Any) -> None:
        if type(value) is not int or not -_MAX_INT <= value <= _MAX_INT:
            value = _to_integers(_to_array(value, (), label))
        slot[row] = value

    return write


def _text_writer(slot: np.ndarray, label: str) -> Write:
    def write(row: int, value: Any) -> None:
        if not isinstance(value, str):
            raise Complaint(f"{label} should be a str, got {_brief(value)}")
        slot[row] = value.encode("utf-8", "surrogatepass")

    return write


def _to_array(value: Any, shape: tuple[int, ...], label: str) -> np.ndarray:
    array = _to_numbers(value, label)
    if array.shape != shape:
        raise Complaint(f"{label} should have the shape {shape}, got the shape {array.shape}")
    return array


def _to_numbers(value: Any, label: str) -> np.ndarray:
    try:
        array = np.asarray(value)
        if array.dtype.kind == "O" and all(isinstance(number, Real) for number in array.flat):
            array = array.astype(np.float64)  # Python integers of more than 64 bits
    except (TypeError, ValueError, OverflowError) as error:
        raise Complaint(f"{label} should hold numbers, got {_brief(value)} ({error})") from error
    if array.dtype.kind not in "fiub":
        raise Complaint(f"{label} should hold numbers, got {_brief(value)}")
    return array


def _to_integers(array: np.ndarray) -> np.ndarray:
    """Return numbers as int64; numbers that are not become `NEVER`, which equals no answer."""
    if array.dtype.kind in "ib":
        return array
    if array.dtype.kind == "u":
        return np.where(array > _MAX_INT, NEVER, array.astype(np.int64))
    fits = (np.floor(array) == array) & (np.abs(array) < 2.0**63)
    # The inner `where` avoids the undefined conversion of numbers that do not fit.
    return np.where(fits, np.where(fits, array, 0).astype(np.int64), NEVER)


def _brief(value: Any) -> str:
    """Describe a value for a message: small numbers by themselves, others by type and size."""
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
    """Check the result of `outcomes` and return it with probabilities that sum to 1.

    Args:
        told: The result of the method `outcomes` of a program.
        with_valid: Whether each outcome also contains the valid actions.

    Raises:
        Complaint: The result is not a list of 1 to `MOST_OUTCOMES` outcomes, or the probabilities
            are negative, not finite, or all 0.
    """
    if not isinstance(told, Iterable) or isinstance(told, str | bytes | dict | np.ndarray):
        raise Complaint(f"outcomes should return a list of outcomes, got {_brief(told)}")
    outcomes = list(islice(told, MOST_OUTCOMES + 1))
    if len(outcomes) > MOST_OUTCOMES:
        message = (
            f"outcomes returned more than {MOST_OUTCOMES} outcomes: sample in step, from self.rng"
        )
        raise Complaint(message, "wrong_probabilities")
    if not outcomes:
        raise Complaint(
            "outcomes returned an empty list: at least one outcome is required",
            "wrong_probabilities",
        )
    for outcome in outcomes:
        if not isinstance(outcome, tuple | list) or len(outcome) != 4 + with_valid:
            wanted = (
                "(probability, observation, reward, terminated" + ", valid actions" * with_valid
            )
            raise Complaint(f"an outcome should be {wanted}), got {_brief(outcome)}")
    probabilities = _normalize([outcome[0] for outcome in outcomes])
    return [
        PossibleAnswer(probability, tuple(outcome[1:]))
        for probability, outcome in zip(probabilities, outcomes, strict=True)
    ]


def _normalize(values: list[Any]) -> list[float]:
    numbers = [
        value if type(value) is float else reward_of(value, "a probability") for value in values
    ]
    for number in numbers:
        if not math.isfinite(number) or number < 0:
            message = f"a probability is {number:g}: it must be finite and at least 0"
            raise Complaint(message, "wrong_probabilities")
    largest = max(numbers)
    if not largest:
        message = "the probabilities of the outcomes sum to 0: at least one must be positive"
        raise Complaint(message, "wrong_probabilities")
    total = sum(number / largest for number in numbers)  # the sum itself could overflow
    return [number / largest / total for number in numbers]
