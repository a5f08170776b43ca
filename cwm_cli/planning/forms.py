"""The forms in which a program can be a model, each checked before it is trusted."""

from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np

from cwm_cli.data.spaces import Space
from cwm_cli.planning import compiled
from cwm_cli.planning.batched import Transformed, batched, verified
from cwm_cli.planning.choosing import quicker
from cwm_cli.planning.model import FORMS, Batch, Model, Unbatched
from cwm_cli.planning.program import Program
from cwm_cli.planning.traced.arrays import ArrayBatch
from cwm_cli.planning.traced.model import Traced
from cwm_cli.planning.traced.plain import plain
from cwm_cli.planning.traced.tracing import Trace, traced
from cwm_cli.planning.traced.verification import verified_traced
from cwm_cli.translation.tables import Table, TableLanes, countable

T = TypeVar("T")


class Rows(NamedTuple):
    """Real observations and actions, on which forms of a program are compared with it."""

    observations: list[Any]
    actions: list[Any]


class Source(NamedTuple):
    """The text of a program, its `Environment`, and the space of its observations."""

    text: str
    environment: Any
    observation_space: Space


class Form(NamedTuple):
    """The model to plan with, and the program behind it, which notes in which forms it is used."""

    model: Model
    program: Program

    @property
    def used(self) -> int:
        """A bit for each of `FORMS` in which steps were taken."""
        return sum(1 << bit for bit, name in enumerate(FORMS) if name in self.program.used)


class Noted:
    """A batch that notes when it is used."""

    def __init__(self, batch: Batch, used: set[str]) -> None:
        self._used = used
        self.stand, self.keep = self._stand, batch.keep
        self.step, self.advance = batch.step, batch.advance
        self._batch = batch

    def _stand(self, observations: np.ndarray) -> None:
        """Stand at observations."""
        self._used.add("batched")
        self._batch.stand(observations)


class NotedArrays(Noted):
    """Batches to which lanes can be added."""

    def __init__(self, batch: ArrayBatch, used: set[str]) -> None:
        super().__init__(batch, used)
        self._arrays = batch

    def apart(self) -> Self:
        """Return another batch of the same program, without lanes."""
        return type(self)(self._arrays.apart(), self._used)

    def join(self, other: Self) -> None:
        """Add the lanes of another batch after its own."""
        self._arrays.join(other._arrays)


def fastest(program: Program, source: Source, rows: Rows, form: str) -> Form:
    """Return a program in the fastest forms that agree with it on real rows."""
    made = Form(program, program) if form == "scalar" else _made(program, source, rows, form)
    program.used.clear()  # of what was compared
    return made


def _made(program: Program, source: Source, rows: Rows, form: str) -> Form:
    """Make every form that there is."""
    if reason := _reason(program, rows):
        program.notes.append(f"scalar: {reason}")
        return Form(program, program)
    fresh = _attempt(program, "translated", lambda: _unused(source))
    if fresh is None:
        return Form(program, program)
    return _forms(program, fresh, rows, form)


def _reason(program: Program, rows: Rows) -> str:
    """Say why there can be no other form, or nothing."""
    if not rows.observations:
        return "there are no real rows"
    if program.names_actions:
        return "it says which actions are valid"
    return "" if program.deterministic else "it draws random numbers"


def _unused(source: Source) -> Source:
    """Return a program whose `Environment` keeps the attributes that it has at first."""
    return source._replace(environment=deepcopy(source.environment))


def _forms(program: Program, source: Source, rows: Rows, form: str) -> Form:
    """Make every form of a program that was not used yet."""
    if countable(source.observation_space, program.action_space):
        table = _attempt(program, "a table", lambda: _table(program, source, rows))
        if table is not None:
            return Form(table, program)
    program.batch = _attempt(program, "batched", lambda: _batched(program, source, rows))
    arithmetic = _attempt(program, "arithmetic", lambda: _arithmetic(program, source, rows))
    if arithmetic is None:
        return Form(program, program)
    model, trace = arithmetic
    model.batch = _attempt(program, "in lockstep", lambda: _arrays(program, trace, source, rows))
    if program.batch and model.batch:
        program.batch = quicker(program.batch, model.batch, *rows)
    if form == "compiled":
        machine = _attempt(program, "compiled", lambda: compiled.compiled(model, trace))
        return Form(machine or model, program)
    return Form(model, program)


def _attempt(program: Program, form: str, make: Callable[[], T]) -> T | None:
    """Make a form of a program, or note why there is none."""
    program.counter[0] += 1  # so that all that is made together does not pass for a long step
    try:
        return make()
    except Unbatched as reason:
        program.notes.append(f"not {form}: {reason}")
    except Exception as error:  # noqa: BLE001  # programs raise what they like, also in other forms
        program.notes.append(f"not {form}: {type(error).__name__}: {error}")
    return None


def _table(program: Program, source: Source, rows: Rows) -> Table:
    """Return a table of all that the program answers."""
    table = Table(program, program.environment, source.observation_space)
    verified_traced(table, program, *rows)
    with suppress(Unbatched):
        table.batch = Noted(TableLanes(table, source.observation_space), program.used)
    return table


def _batched(program: Program, source: Source, rows: Rows) -> Batch:
    """Return the batched form."""
    batch = batched(
        source.text,
        source.environment,
        observation_space=source.observation_space,
        action_space=program.action_space,
    )
    verified(batch, program, *rows)
    return Noted(batch, program.used)


def _arrays(program: Program, trace: Trace, source: Source, rows: Rows) -> Batch:
    """Return plain arithmetic on arrays."""
    batch = ArrayBatch(trace, source.observation_space)
    verified(batch, program, *rows)
    return NotedArrays(batch, program.used)


def _arithmetic(program: Program, source: Source, rows: Rows) -> tuple[Traced, Trace]:
    """Return the arithmetic form, and what it was made of."""
    transformed = Transformed(source.text, source.environment)
    trace = traced(lambda: transformed.make(1), source.observation_space, program.action_space)
    model = Traced(program, plain(trace), source.observation_space)
    return verified_traced(model, program, *rows), trace
