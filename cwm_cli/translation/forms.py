"""The choice of the fastest form of a program, and the form for many states at a time."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from cwm_cli.data.spaces import Space
from cwm_cli.planning.model import Batch, Model, Unbatched
from cwm_cli.planning.program import Program
from cwm_cli.translation.emission import emit_batched, emit_scalar
from cwm_cli.translation.expressions import TraceNode, Unsupported
from cwm_cli.translation.scalar import ArithmeticModel
from cwm_cli.translation.states import Trace
from cwm_cli.translation.tables import TableBatch, TableModel, is_enumerable
from cwm_cli.translation.verification import verify_batch, verify_model

T = TypeVar("T")


class Rows(NamedTuple):
    """Real observations and actions, for the comparison of a form with its program."""

    observations: list[Any]
    actions: list[Any]


class Source(NamedTuple):
    """The text of a program and its observation space."""

    text: str
    observation_space: Space


class Form(NamedTuple):
    """A model for planning, and the program behind it, which records the forms in use."""

    model: Model
    program: Program


class RecordingBatch:
    """A batch that adds `batched` to the forms in use when it is used."""

    def __init__(self, batch: Batch, used: set[str]) -> None:
        self._batch, self._used = batch, used
        self.step, self.advance, self.keep = batch.step, batch.advance, batch.keep

    def stand(self, observations: np.ndarray) -> None:
        """Set the states by observations."""
        self._used.add("batched")
        self._batch.stand(observations)


def find_fastest_form(program: Program, source: Source, rows: Rows, form: str) -> Form:
    """Return the fastest form of a program that agrees with it on real rows.

    The order is: a table if the program has few states, else plain arithmetic, else the program
    itself. All but the last also get a batch for many states at a time, if possible.
    `program.notes` explains why a form is missing.

    Args:
        program: The program in the types that planners use.
        source: Its text and observation space.
        rows: Real rows; without any the program itself is returned.
        form: `scalar` requests the program itself.
    """
    if form == "scalar":
        return Form(program, program)
    reason = _find_obstacle(program, rows)
    model: Model = program
    if reason:
        program.notes.append(f"scalar: {reason}")
    else:
        widened = Rows(
            [_widen(source.observation_space, value) for value in rows.observations],
            [_widen(program.action_space, value) for value in rows.actions],
        )
        model = _build_model(program, source, widened)
    program.used.clear()  # of the forms that the comparison used
    return Form(model, program)


def _find_obstacle(program: Program, rows: Rows) -> str:
    """Return why no other form is possible, or an empty string."""
    if not rows.observations:
        return "no rows of real numbers"
    if program.names_actions:
        return "it returns valid actions"
    return "" if program.deterministic else "it draws random numbers"


def _widen(space: Space, value: Any) -> Any:
    """Convert arrays to float64 or int64, as planners pass them."""
    if space.kind == "tuple":
        return tuple(_widen(*pair) for pair in zip(space.children, value, strict=True))
    if space.kind == "dict":
        return {
            name: _widen(child, value[name])
            for name, child in zip(space.keys, space.children, strict=True)
        }
    if not isinstance(value, np.ndarray) or space.kind == "text":
        return value
    return value.astype(np.float64 if space.is_float else np.int64)


def _build_model(program: Program, source: Source, rows: Rows) -> Model:
    space = source.observation_space

    def build_table() -> TableModel:
        table = TableModel(program, space)
        verify_model(table, program, *rows)
        if space.kind not in ("tuple", "dict"):
            table.batch = RecordingBatch(TableBatch(table, space), program.used)
        return table

    def report_progress() -> None:
        program.counter[0] += 1

    if is_enumerable(space, program.action_space):
        table = _attempt(program, "a table", build_table)
        if table is not None:
            return table
    trace = _attempt(
        program,
        "traced",
        lambda: Trace(source.text, space, program.action_space, report_progress),
    )
    if trace is None:
        return program

    def build_batch() -> Batch:
        batch = TraceBatch(trace, space)
        verify_batch(batch, program, *rows)
        return RecordingBatch(batch, program.used)

    def build_arithmetic() -> ArithmeticModel:
        model = ArithmeticModel(program, emit_scalar(trace), space)
        verify_model(model, program, *rows)
        return model

    # The arithmetic model takes over this batch.
    program.batch = _attempt(program, "batched", build_batch)
    return _attempt(program, "arithmetic", build_arithmetic) or program


def _attempt(program: Program, form: str, build: Callable[[], T]) -> T | None:
    """Build a form, or note why that fails and return None."""
    program.counter[0] += 1  # progress: else all attempts together look like one long step
    try:
        return build()
    except (Unbatched, Unsupported) as reason:
        program.notes.append(f"not {form}: {reason}")
    except Exception as error:  # noqa: BLE001  # programs raise anything, also in other forms
        program.notes.append(f"not {form}: {type(error).__name__}: {error}")
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
        self._count = 0
        self._state: tuple[Any, ...] = ()
        entry = [] if trace.entry_fallback is None else [trace.entry_fallback]
        fallback = [] if trace.fallback is None else [trace.fallback]
        outputs = [trace.reward, trace.terminated, *fallback]
        inputs: Sequence[TraceNode] = [*trace.slots, *trace.action]
        self._fallback_index = 2 if fallback else None
        self._enter = emit_batched(trace, trace.observation, trace.entry_state, entry)
        self._advance = emit_batched(trace, inputs, trace.next_state, outputs)
        self._step = emit_batched(
            trace, inputs, trace.next_state, [*outputs, *trace.next_observation]
        )

    def stand(self, observations: np.ndarray) -> None:
        """Set the states by observations: (components, lanes), or (lanes,) for single integers."""
        self._count = observations.shape[-1]
        fallback = self._run(self._enter, observations.reshape(-1, self._count).astype(self._dtype))
        if fallback:
            _require_no_fallback(fallback[0])

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Take actions; return observations, rewards (lanes,) and terminated (lanes,)."""
        reward, end, *rest = self._take(self._step, actions)
        columns = [
            self._broadcast(column)
            for column in (rest if self._fallback_index is None else rest[1:])
        ]
        if self._components:
            observations = np.stack(columns).astype(self._dtype, copy=False)
            observations = observations.reshape(*self._components, self._count)
        else:
            observations = columns[0]
        return (
            observations,
            self._broadcast(reward).astype(float),
            self._broadcast(end).astype(bool),
        )

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
        outputs = self._run(function, [*self._state, *columns])
        if self._fallback_index is not None:
            _require_no_fallback(outputs[self._fallback_index])
        return outputs

    def _run(self, function: Callable[..., Any], inputs: Any) -> tuple[Any, ...]:
        """Run a function, store the state that it returns, and return its other outputs."""
        try:
            with np.errstate(all="ignore"):
                state, outputs = function(*inputs)
        except Exception as error:  # noqa: BLE001  # numpy raises errors of many types
            raise Unbatched(f"it does not compute with arrays: {error}") from None
        # State numbers that are equal in all lanes stay single numbers.
        self._state = tuple(
            numbers if isinstance(numbers, np.ndarray) else np.asarray(numbers)[()]
            for numbers in state
        )
        return tuple(outputs)

    def _broadcast(self, value: Any) -> np.ndarray:
        return value if np.ndim(value) else np.full(self._count, value)


def _require_no_fallback(mask: Any) -> None:
    if np.any(mask):
        raise Unbatched("a row needs the interpreted program")
