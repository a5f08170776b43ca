"""The forms in which a program can be a model, each checked before it is trusted."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from cwm_cli.data.spaces import Space
from cwm_cli.planning.model import Batch, Model, Unbatched
from cwm_cli.planning.program import Program
from cwm_cli.translation.emission import lanes, plain
from cwm_cli.translation.expressions import Refused, TraceNode
from cwm_cli.translation.scalar import Arithmetic
from cwm_cli.translation.states import Trace
from cwm_cli.translation.tables import Table, TableLanes, countable
from cwm_cli.translation.verification import verified, verified_alone

T = TypeVar("T")


class Rows(NamedTuple):
    """Real observations and actions, on which forms of a program are compared with it."""

    observations: list[Any]
    actions: list[Any]


class Source(NamedTuple):
    """The text of a program and the space of its observations."""

    text: str
    observation_space: Space


class Form(NamedTuple):
    """The model to plan with, and the program behind it, which notes in which forms it is used."""

    model: Model
    program: Program


class Noted:
    """A batch that notes when it is used."""

    def __init__(self, batch: Batch, used: set[str]) -> None:
        self._batch, self._used = batch, used
        self.step, self.advance, self.keep = batch.step, batch.advance, batch.keep

    def stand(self, observations: np.ndarray) -> None:
        """Stand at observations."""
        self._used.add("batched")
        self._batch.stand(observations)


def fastest(program: Program, source: Source, rows: Rows, form: str) -> Form:
    """Return a program in the fastest form that agrees with it on real rows.

    That is a table where all its states are few, else plain arithmetic, both
    with a batch for many states at once; or, as where `form` is `scalar`, the
    program itself. `notes` of the program say why there is no other form.
    """
    made = Form(program, program)
    reason = _reason(program, rows)
    if form != "scalar" and reason:
        program.notes.append(f"scalar: {reason}")
    elif form != "scalar":
        widened = Rows(
            [_widened(source.observation_space, each) for each in rows.observations],
            [_widened(program.action_space, each) for each in rows.actions],
        )
        made = Form(_made(program, source, widened), program)
    program.used.clear()  # of what was compared
    return made


def _reason(program: Program, rows: Rows) -> str:
    """Say why there can be no other form, or nothing."""
    if not rows.observations:
        return "no rows of real numbers"
    if program.names_actions:
        return "it returns valid actions"
    return "" if program.deterministic else "it draws random numbers"


def _widened(space: Space, value: Any) -> Any:
    """Return a value in the types in which planners have them."""
    if space.kind == "tuple":
        return tuple(_widened(*pair) for pair in zip(space.children, value, strict=True))
    if space.kind == "dict":
        return {
            name: _widened(child, value[name])
            for name, child in zip(space.keys, space.children, strict=True)
        }
    if not isinstance(value, np.ndarray) or space.kind == "text":
        return value
    return value.astype(np.float64 if space.is_float else np.int64)


def _made(program: Program, source: Source, rows: Rows) -> Model:
    """Return the fastest form."""
    if countable(source.observation_space, program.action_space):
        table = _attempt(program, "a table", lambda: _table(program, source, rows))
        if table is not None:
            return table
    trace = _attempt(program, "traced", lambda: _traced(program, source))
    if trace is None:
        return program
    batch = _attempt(program, "batched", lambda: _batched(program, trace, source, rows))
    program.batch = batch
    model = _attempt(program, "arithmetic", lambda: _arithmetic(program, trace, source, rows))
    return program if model is None else model


def _attempt(program: Program, form: str, make: Callable[[], T]) -> T | None:
    """Make a form of a program, or note why there is none."""
    program.counter[0] += 1  # so that all that is made together does not pass for a long step
    try:
        return make()
    except (Unbatched, Refused) as reason:
        program.notes.append(f"not {form}: {reason}")
    except Exception as error:  # noqa: BLE001  # programs raise what they like, also in other forms
        program.notes.append(f"not {form}: {type(error).__name__}: {error}")
    return None


def _table(program: Program, source: Source, rows: Rows) -> Table:
    """Return a table of all that the program answers."""
    table = Table(program, source.observation_space)
    verified_alone(table, program, *rows)
    if source.observation_space.kind not in ("tuple", "dict"):
        table.batch = Noted(TableLanes(table, source.observation_space), program.used)
    return table


def _traced(program: Program, source: Source) -> Trace:
    """Return what the program computes."""

    def progress() -> None:
        program.counter[0] += 1

    return Trace(source.text, source.observation_space, program.action_space, progress)


def _batched(program: Program, trace: Trace, source: Source, rows: Rows) -> Batch:
    """Return it on arrays."""
    batch = Lanes(trace, source.observation_space)
    verified(batch, program, *rows)
    return Noted(batch, program.used)


def _arithmetic(program: Program, trace: Trace, source: Source, rows: Rows) -> Arithmetic:
    """Return it on plain numbers."""
    model = Arithmetic(program, plain(trace), source.observation_space)
    verified_alone(model, program, *rows)
    return model


_UNKNOWN = "a row needs the interpreted program"


class Lanes:
    """Steps many states in parallel; raises `Unbatched` if only the program can answer."""

    def __init__(self, trace: Trace, observation_space: Space) -> None:
        self._components = tuple(observation_space.shape)
        self._dtype = np.float64 if observation_space.is_float else np.int64
        self._discrete = trace.discrete
        self._count = 0
        self._state: tuple[Any, ...] = ()
        entry = [] if trace.odd_entry is None else [trace.odd_entry]
        odd = [] if trace.odd is None else [trace.odd]
        outputs = [trace.reward, trace.terminated, *odd]
        inputs: Sequence[TraceNode] = [*trace.slots, *trace.action]
        self._odd = 2 if odd else None
        self._enter = lanes(trace, trace.observation, trace.entered, entry)
        self._quick = lanes(trace, inputs, trace.following, outputs)
        self._whole = lanes(trace, inputs, trace.following, [*outputs, *trace.observed])

    def stand(self, observations: np.ndarray) -> None:
        """Set the states by observations: (components, lanes), or (lanes,) for single integers."""
        self._count = observations.shape[-1]
        given = observations.reshape(-1, self._count).astype(self._dtype)
        odd = self._done(self._enter, given)
        if odd and np.any(odd[0]):
            raise Unbatched(_UNKNOWN)

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Take actions; return observations, rewards (lanes,) and terminated (lanes,)."""
        reward, end, *rest = self._taken(self._whole, actions)
        observed = [self._wide(each) for each in (rest if self._odd is None else rest[1:])]
        if self._components:
            seen = np.stack(observed).astype(self._dtype, copy=False)
            seen = seen.reshape(*self._components, self._count)
        else:
            seen = observed[0]
        return seen, self._wide(reward).astype(float), self._wide(end).astype(bool)

    def advance(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Take actions; return rewards and terminated, either one value for all lanes or more."""
        reward, end, *_ = self._taken(self._quick, actions)
        return np.asarray(reward, float), np.asarray(end, bool)

    def keep(self, lanes: np.ndarray) -> None:
        """Keep some lanes only, given by number or by a mask."""
        kept = np.flatnonzero(lanes) if lanes.dtype == bool else lanes
        self._count = len(kept)
        self._state = tuple(each.take(kept) if np.ndim(each) else each for each in self._state)

    def _taken(self, function: Callable[..., Any], actions: np.ndarray) -> tuple[Any, ...]:
        """Take actions; return the outputs of a function other than the state."""
        taken = [actions] if self._discrete else list(actions.reshape(-1, self._count))
        out = self._done(function, [*self._state, *taken])
        if self._odd is not None and np.any(out[self._odd]):
            raise Unbatched(_UNKNOWN)
        return out

    def _done(self, function: Callable[..., Any], inputs: Any) -> tuple[Any, ...]:
        """Run a function and keep the state that it returns."""
        try:
            with np.errstate(all="ignore"):
                state, out = function(*inputs)
        except Exception as error:  # noqa: BLE001  # numpy raises what it likes
            raise Unbatched(f"it does not compute with arrays: {error}") from None
        self._state = tuple(
            each if isinstance(each, np.ndarray) else np.asarray(each)[()] for each in state
        )
        return tuple(out)

    def _wide(self, value: Any) -> np.ndarray:
        return value if np.ndim(value) else np.full(self._count, value)
