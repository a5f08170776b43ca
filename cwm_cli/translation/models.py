"""Translated programs as models: plain arithmetic, arrays of many states, and tables.

A model of a few states is a table: the program takes every action once in every state.
"""

import pickle
import sys
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import product, tee
from math import isfinite
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import numpy as np

from cwm_cli.data.spaces import Space
from cwm_cli.planning.model import LARGEST, Here, Model, Step, Unbatched, key
from cwm_cli.planning.program import MemorylessModel, Program
from cwm_cli.translation.emission import ScalarFunctions, emit_batched
from cwm_cli.translation.expressions import TraceNode
from cwm_cli.translation.numbers import DTYPES
from cwm_cli.translation.states import Trace
from cwm_cli.translation.values import closure_values

# A table is filled by at most this many steps of the program, in one or two tenths of a second.
MAX_STEPS = 12_000

# Emitted code raises these if the program has to compute the step, or if there is no state.
ARITHMETIC_ERRORS = (ArithmeticError, LookupError, TypeError, ValueError)

_REPEATABLE = (bytes, list, tuple, np.ndarray)
_FIXED = (ModuleType, BuiltinFunctionType, np.ufunc, np.dtype, property, staticmethod, classmethod)


class TranslatedModel(Model):
    """A model that computes steps of a program, and calls the program if it cannot.

    `play` leaves the state unchanged. The model has no state of its own
    after the end of an episode and after a step of the program; the program then computes the
    next step. `fallbacks` counts how often the program was called.
    """

    deterministic = True
    form = "arithmetic"

    def __init__(self, program: Program) -> None:
        self._program = program
        self._here = Here(None, None)
        self.action_space = program.action_space
        self.counter = program.counter
        self.batch = program.batch
        self.used = program.used
        self.fallbacks = 0

    @cached_property
    def memoryless(self) -> Model:
        """The same form, with the state set from the last observation before every step."""
        return MemorylessModel(self, self._program)

    def stand(self, state: Any) -> None:
        """Set the state by an observation or by a result of `here`."""
        self._here = state if type(state) is Here else Here(state, self._enter_state(state))

    def here(self) -> Any:
        """Return the observation and the state."""
        return self._here

    def step(self, action: Any) -> Step:
        """Take an action."""
        answer = self._take_step(self._here.state, action)
        if answer is None:
            self._restore_program()
            step = self._program.step(action)
            state = None if step.terminated else self._enter_state(step.observation)
            self._here = Here(step.observation, state)
            return step
        self.counter[0] += 1
        self.used.add(self.form)
        observation, reward, terminated, state = answer
        self._here = Here(observation, None if terminated else state)
        return Step(observation, reward, terminated)

    def play(self, actions: Iterable[Any], discount: float = 1.0) -> float:
        """Take actions until they or the episode end; return the discounted sum of rewards."""
        # The program needs the actions again if the translation fails halfway.
        first, again = (actions, actions) if type(actions) in _REPEATABLE else tee(actions)
        answer = self._play_actions(self._here.state, first, discount)
        if answer is None or not isfinite(answer[0]):
            self._restore_program()
            return self._program.play(again, discount)
        total, count = answer
        self.counter[0] += count
        self.used.add(self.form)
        return total

    def returns(self, states: Sequence[Any], plans: np.ndarray, draws: int = 0) -> np.ndarray:
        """Return the returns of plans from the program, which uses its batch if it has one."""
        return self._program.returns(states, plans)

    def _restore_program(self) -> None:
        self.fallbacks += 1
        self._program.stand(self._here.observation)

    @abstractmethod
    def _enter_state(self, observation: Any) -> Any:
        """Return the state for an observation, or None if the program has to be called."""

    @abstractmethod
    def _take_step(self, state: Any, action: Any) -> tuple[Any, float, bool, Any] | None:
        """Return observation, reward, terminated and next state; None to call the program."""

    @abstractmethod
    def _play_actions(
        self, state: Any, actions: Iterable[Any], discount: float
    ) -> tuple[float, int] | None:
        """Return the return of actions and the number of steps; None to call the program."""


class ArithmeticModel(TranslatedModel):
    """A program as plain arithmetic on Python numbers."""

    def __init__(
        self, program: Program, functions: ScalarFunctions, observation_space: Space
    ) -> None:
        super().__init__(program)
        self._enter, self._step, self._play = functions
        self._takes_integers = program.action_space.kind == "discrete"
        self._takes_vectors = len(program.action_space.shape) == 1
        self._components = program.action_space.components
        self._observes_integers = observation_space.kind == "discrete"
        self._dtype = np.float64 if observation_space.is_float else np.int64
        self._shape = observation_space.shape

    def _enter_state(self, observation: Any) -> Any:
        try:
            return self._enter(np.ravel(observation).tolist())
        except ARITHMETIC_ERRORS:
            return None

    def _take_step(self, state: Any, action: Any) -> tuple[Any, float, bool, Any] | None:
        try:
            state, components, reward, terminated = self._step(
                state, action if self._takes_integers else self._components(action)
            )
            if not (-LARGEST < reward < LARGEST and isfinite(sum(components))):
                return None
        except ARITHMETIC_ERRORS:
            return None
        if self._observes_integers:
            return int(components[0]), reward, terminated, state
        observation = np.array(components, self._dtype)
        if len(self._shape) != 1:
            observation = observation.reshape(self._shape)
        return observation, reward, terminated, state

    def _play_actions(
        self, state: Any, actions: Iterable[Any], discount: float
    ) -> tuple[float, int] | None:
        if self._takes_vectors:
            actions = map(np.ndarray.tolist, actions)
        elif not self._takes_integers:
            actions = map(self._components, actions)
        try:
            return self._play(state, actions, discount)[:2]
        except ARITHMETIC_ERRORS:
            return None


class TraceBatch:
    """A traced program at many states at a time.

    Raises:
        Unbatched: Only the program itself can compute a row.
    """

    def __init__(self, trace: Trace, observation_space: Space) -> None:
        self._components = tuple(observation_space.shape)
        self._dtype = np.float64 if observation_space.is_float else np.int64
        self._discrete = trace.discrete
        self._kinds = [node.kind for node in trace.action]
        self._count = 0
        self._state: tuple[Any, ...] = ()
        outputs = [trace.fallback, trace.reward, trace.terminated]
        inputs: Sequence[TraceNode] = [*trace.slots, *trace.action]
        self._enter = emit_batched(
            trace, trace.observation, trace.entry_state, [trace.entry_fallback]
        )
        self._advance = emit_batched(trace, inputs, trace.next_state, outputs)
        self._step = emit_batched(
            trace, inputs, trace.next_state, [*outputs, *trace.next_observation]
        )

    def stand(self, observations: np.ndarray) -> None:
        """Set the states by observations: (components, lanes), or (lanes,) for single integers."""
        self._count = observations.shape[-1]
        self._run(self._enter, observations.reshape(-1, self._count).astype(self._dtype))

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Take actions; return observations, rewards (lanes,) and terminated (lanes,)."""
        reward, end, *columns = map(self._broadcast, self._take(self._step, actions))
        observations = columns[0]
        if self._components:
            observations = np.stack(columns).astype(self._dtype, copy=False)
            observations = observations.reshape(*self._components, self._count)
        return observations, reward.astype(float), end.astype(bool)

    def advance(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Take actions; return rewards and terminated, each (lanes,) or one value for all."""
        reward, end, *_ = self._take(self._advance, actions)
        return np.asarray(reward, float), np.asarray(end, bool)

    def keep(self, lanes: np.ndarray) -> None:
        """Keep only the given lanes, by number or by a mask."""
        kept = np.flatnonzero(lanes) if lanes.dtype == bool else lanes
        self._count = len(kept)
        self._state = tuple(
            numbers.take(kept) if np.ndim(numbers) else numbers for numbers in self._state
        )

    def _take(self, function: Callable[..., Any], actions: np.ndarray) -> tuple[Any, ...]:
        columns = [actions] if self._discrete else list(actions.reshape(-1, self._count))
        if actions.dtype.kind == "f" and "i" in self._kinds:  # parts of a tuple or a dict
            pairs = zip(columns, self._kinds, strict=True)
            columns = [column.astype(DTYPES[kind]) for column, kind in pairs]
        return self._run(function, [*self._state, *columns])

    def _run(self, function: Callable[..., Any], inputs: Any) -> tuple[Any, ...]:
        """Run a function, store the state that it returns, and return its other outputs."""
        try:
            with np.errstate(all="ignore"):
                state, (fallback, *outputs) = function(*inputs)
        except Exception as error:  # noqa: BLE001  # numpy raises errors of many types
            raise Unbatched(f"it does not compute with arrays: {error}") from None
        # Most programs never need a fallback: their functions return the constant False.
        if fallback is not False and np.any(fallback):
            raise Unbatched("a row needs the interpreted program")
        # State numbers that are equal in all lanes stay single numbers.
        self._state = tuple(
            numbers if isinstance(numbers, np.ndarray) else np.asarray(numbers)[()]
            for numbers in state
        )
        return tuple(outputs)

    def _broadcast(self, value: Any) -> np.ndarray:
        return value if np.ndim(value) else np.full(self._count, value)


class TableModel(TranslatedModel):
    """A lookup table of the steps of a program.

    A state is the attributes of the program. So the table contains everything that the program
    remembers besides the observation.
    """

    form = "table"

    def __init__(self, program: Program, observation_space: Space) -> None:
        super().__init__(program)
        self._low = int(program.action_space.low[0])
        self._count = program.action_space.count
        self._starts: dict[Any, int] = {}
        builder = _TableBuilder(program, range(self._low, self._low + self._count))
        for observation in _enumerate(observation_space):
            number = builder.enter(observation)
            if number is not None:
                self._starts[key(observation)] = number * self._count
        self._rows = builder.build_rows()

    def _enter_state(self, observation: Any) -> Any:
        return self._starts.get(key(observation))

    def _take_step(self, state: Any, action: Any) -> tuple[Any, float, bool, Any] | None:
        return None if state is None else self._rows[state + int(action) - self._low]

    def _play_actions(
        self, state: Any, actions: Iterable[Any], discount: float
    ) -> tuple[float, int] | None:
        rows, low, total, factor, count = self._rows, self._low, 0.0, 1.0, 0
        if state is None:
            return None
        for action in actions:
            row = rows[state + action - low]
            if row is None:
                return None
            count += 1
            _, reward, terminated, state = row
            total += factor * reward
            if terminated:
                break
            factor *= discount
        return total, count


class TableBatch:
    """A table at many states at a time.

    Raises:
        Unbatched: Observations are not arrays, or only the program itself can compute a row.
    """

    def __init__(self, table: TableModel, observation_space: Space) -> None:
        rows = table._rows
        self._discrete = observation_space.kind == "discrete"
        if not self._discrete and observation_space.kind in ("tuple", "dict"):
            raise Unbatched("observations are not arrays")
        self._starts, self._low = table._starts, table._low
        known = [row for row in rows if row is not None]
        if not known:
            raise Unbatched("it always fails")
        self._fails = np.array([row is None for row in rows])
        self._any_fails = bool(self._fails.any())
        answers = [known[0] if row is None else row for row in rows]
        self._observations = np.stack([np.asarray(row[0]) for row in answers], -1)
        self._rewards = np.array([row[1] for row in answers], float)
        self._ends = np.array([row[2] for row in answers], bool)
        self._next = np.array([0 if row[3] is None else row[3] for row in answers])
        self._state = np.zeros(0, np.int64)

    def stand(self, observations: np.ndarray) -> None:
        """Set the states by observations; the last axis is the lane."""
        lanes = np.moveaxis(np.asarray(observations), -1, 0)
        names = lanes.tolist() if self._discrete else [lane.tobytes() for lane in lanes]
        try:
            self._state = np.array([self._starts[name] for name in names], np.int64)
        except KeyError:
            raise Unbatched("a row is in an unknown state") from None

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Take actions; return observations, rewards and terminated."""
        places = self._move(actions)
        return self._observations[..., places], self._rewards[places], self._ends[places]

    def advance(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Take actions; return rewards and terminated."""
        places = self._move(actions)
        return self._rewards[places], self._ends[places]

    def keep(self, lanes: np.ndarray) -> None:
        """Keep only the given lanes, by number or by a mask."""
        self._state = self._state[lanes]

    def _move(self, actions: np.ndarray) -> np.ndarray:
        """Enter the next states; return the rows of the steps."""
        rows: np.ndarray = self._state + actions - self._low
        if self._any_fails and self._fails[rows].any():
            raise Unbatched("a row needs the interpreted program")
        self._state = self._next[rows]
        return rows


class _TableBuilder:
    """An exploration of all states of a program; a state is its pickled attributes."""

    def __init__(self, program: Program, actions: range) -> None:
        environment = program.environment
        try:
            self._attributes: dict[str, Any] = vars(environment)
            self._initial = pickle.dumps(self._attributes)
        except Exception as error:  # noqa: BLE001  # attributes of any type
            raise Unbatched(f"its attributes cannot be copied: {error}") from None
        self._program, self._type, self._actions = program, type(environment), actions
        self._external_state = _external_state(self._type)
        self._numbers: dict[bytes, int] = {}
        self._states: list[bytes] = []
        self._max_states = 0

    def enter(self, observation: Any) -> int | None:
        """Return the number of the state for an observation, or None if the program fails."""
        # A program that counts its steps has more states for each observation, without end.
        self._max_states += 3
        self._program.counter[0] += 1
        self._set_attributes(self._initial)
        try:
            self._program.stand(observation)
        except Exception:  # noqa: BLE001  # raised again when the step is used
            return None
        return self._state_number()

    def build_rows(self) -> list[tuple[Any, float, bool, int | None] | None]:
        """Return the results of every action in every state; None if the program fails.

        A row has observation, reward, terminated and the first row of the next state. The row
        of an action is the first row of the state plus the position of the action.
        """
        rows: list[tuple[Any, float, bool, int | None] | None] = []
        count = len(self._actions)
        for state in self._states:  # grows during the loop
            for action in self._actions:
                self._set_attributes(state)
                try:
                    observation, reward, terminated, _ = self._program.step(action)
                except Exception:  # noqa: BLE001  # raised again when the step is used
                    rows.append(None)
                    continue
                first_row = None if terminated else self._state_number() * count
                rows.append((observation, reward, terminated, first_row))
        self._set_attributes(self._initial)
        # A global that the steps changed would make results differ between calls.
        if _external_state(self._type) != self._external_state:
            raise Unbatched("more changes than its attributes")
        return rows

    def _set_attributes(self, state: bytes) -> None:
        self._attributes.clear()
        self._attributes.update(pickle.loads(state))  # noqa: S301  # our own pickle

    def _state_number(self) -> int:
        """Return the number of the current state; a new state gets the next number."""
        try:
            state = pickle.dumps(self._attributes)
        except Exception as error:  # noqa: BLE001  # attributes of any type
            raise Unbatched(f"its attributes cannot be copied: {error}") from None
        number = self._numbers.setdefault(state, len(self._states))
        if number == len(self._states):
            if number > self._max_states or number * len(self._actions) > MAX_STEPS:
                raise Unbatched("its memory is too large")
            self._states.append(state)
        return number


def is_enumerable(observation_space: Space, action_space: Space) -> bool:
    """Return whether a table of all observations and actions is small enough to be filled."""
    if action_space.kind != "discrete":
        return False
    return observation_space.cardinality * action_space.count <= MAX_STEPS


def _enumerate(space: Space) -> Iterator[Any]:
    """Yield all values of a finite space, in the types that programs receive."""
    if space.kind == "tuple":
        yield from product(*map(list, map(_enumerate, space.children)))
    elif space.kind == "dict":
        for parts in product(*map(list, map(_enumerate, space.children))):
            yield dict(zip(space.keys, parts, strict=True))
    elif space.kind == "discrete":
        yield from range(int(space.low[0]), int(space.high[0]) + 1)
    else:
        bounds = zip(space.low, space.high, strict=True)
        for numbers in product(*(range(int(low), int(high) + 1) for low, high in bounds)):
            yield np.array(numbers, np.int64).reshape(space.shape)


def _external_state(program: type) -> str:
    """Return everything that a program could change besides its attributes, as text."""
    names = getattr(program.__dict__.get("step"), "__globals__", None)
    if names is None:
        raise Unbatched("its step is not a plain function")
    seen: set[int] = set()
    return repr(_describe({k: v for k, v in names.items() if not k.startswith("__")}, seen))


def _describe(value: Any, seen: set[int]) -> Any:
    """Return a value as nested lists that can be printed."""
    if isinstance(value, bool | int | float | complex | str | bytes | None | np.generic):
        return value
    if isinstance(value, _FIXED) or id(value) in seen:
        return ""
    seen.add(id(value))
    return [_describe(part, seen) for part in _contained_values(value)]


def _contained_values(value: Any) -> Iterable[Any]:
    if isinstance(value, np.ndarray):
        return [value.tolist()] if value.dtype == object else [value.tobytes()]
    if isinstance(value, dict):
        return [*value, *value.values()]
    if isinstance(value, list | tuple | set | frozenset | range):
        return value
    if isinstance(value, FunctionType):
        return value.__defaults__, value.__kwdefaults__, *closure_values(value)
    if isinstance(value, type):
        # Only classes of the program itself change.
        known = value.__module__ in sys.modules
        own = {k: v for k, v in vars(value).items() if not (known or k.startswith("__"))}
        return [*own, *own.values()]
    if not hasattr(value, "__dict__"):
        raise Unbatched(f"it keeps a {type(value).__name__} outside its attributes")
    return list(vars(value).values())
