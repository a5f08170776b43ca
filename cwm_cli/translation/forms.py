"""The choice of the fastest form of a program, which must agree with it on real rows."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from cwm_cli.data.spaces import Space
from cwm_cli.planning.model import Batch, Model, Step, Unbatched, close
from cwm_cli.planning.program import Program
from cwm_cli.translation.emission import emit_scalar
from cwm_cli.translation.expressions import Unsupported
from cwm_cli.translation.models import (
    ArithmeticModel,
    TableBatch,
    TableModel,
    TraceBatch,
    TranslatedModel,
    is_enumerable,
)
from cwm_cli.translation.states import Trace

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
    model: Model = program
    if not rows.observations:
        program.notes.append("scalar: no rows of real numbers")
    elif program.names_actions:
        program.notes.append("scalar: it returns valid actions")
    elif not program.deterministic:
        program.notes.append("scalar: it draws random numbers")
    else:
        widened = Rows(
            [_widen(source.observation_space, value) for value in rows.observations],
            [_widen(program.action_space, value) for value in rows.actions],
        )
        model = _build_model(program, source, widened)
    program.used.clear()  # of the forms that the comparison used
    return Form(model, program)


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


TRAJECTORY_STEPS = 30  # of each trajectory that is compared


class StepArrays(NamedTuple):
    """Observations, rewards and terminated, with one row for each step."""

    observations: np.ndarray
    rewards: np.ndarray
    terminated: np.ndarray

    def at(self, rows: Any) -> "StepArrays":
        """Return the given rows."""
        return StepArrays(*(column[rows] for column in self))


def verify_model(
    form: TranslatedModel, program: Model, observations: Sequence[Any], actions: Sequence[Any]
) -> None:
    """Check that a form takes the same steps as its program.

    Compares a step from every observation, some trajectories, and their returns.

    Raises:
        Unbatched: The form differs, or calls the program for more than 10 % of the rows.
    """
    for observation, action in zip(observations, actions, strict=True):
        _check_steps(
            *(list(_play_steps(model, observation, [action])) for model in (form, program))
        )
    for start in range(0, len(actions), max(1, len(actions) // 4)):
        plan = actions[start : start + TRAJECTORY_STEPS]
        steps = [list(_play_steps(model, observations[start], plan)) for model in (form, program)]
        _check_steps(*steps)
        form.stand(observations[start])
        if not close(form.play(plan), float(sum(step.reward for step in steps[1]))):
            raise Unbatched("the returns differ")
    # A form that leaves more than 10 % of the rows to the program is no faster.
    if form.fallbacks > 0.1 * len(observations):
        raise Unbatched("too many rows need the interpreted program")


def _check_steps(here: Sequence[Step], there: Sequence[Step]) -> None:
    if [step.terminated for step in here] != [step.terminated for step in there]:
        raise Unbatched("the ends of episodes differ")
    for one, other in zip(here, there, strict=True):
        if not close(one.reward, other.reward):
            raise Unbatched("the rewards differ")
        if not close(one.observation, other.observation):
            raise Unbatched("the observations differ")


def verify_batch(
    batch: Batch, model: Model, observations: Sequence[Any], actions: Sequence[Any]
) -> None:
    """Check that a batch computes the same steps as its program, without counting the steps.

    Compares a step from every observation, then trajectories with the following actions, then some
    rows once more, in case the program remembers earlier steps. Differences that rounding explains
    are accepted, also if the program amplifies them.

    Raises:
        Unbatched: The batch differs, or there are no rows.
    """
    if not len(observations):
        raise Unbatched("there are no rows to compare it with the program")
    counted = model.counter[0]
    trajectories = 16  # compared side by side
    starts = range(0, len(observations), -(-len(observations) // trajectories))
    try:
        _check_rows(batch, model, observations, actions)
        _check_trajectories(batch, model, observations, actions, starts)
        _check_rows(batch, model, [observations[row] for row in starts], actions[:: starts.step])
    finally:
        model.counter[0] = counted


def _check_rows(
    batch: Batch, model: Model, observations: Sequence[Any], actions: Sequence[Any]
) -> None:
    # No axis of an array has 509 elements, so a program that confuses the lane with another axis
    # fails.
    count, min_lanes = len(observations), 509
    lanes = np.arange(max(count, min_lanes)) % count
    batch.stand(np.take(_stack_lanes(observations), lanes, -1))
    taken = np.take(_stack_actions(model.action_space, actions), lanes, -1)
    found = _lanes_to_rows(batch.step(taken)).at(slice(count))
    pairs = zip(observations, actions, strict=True)
    expected = _to_arrays([next(_play_steps(model, start, [action])) for start, action in pairs])
    wrong = np.flatnonzero(~_find_equal(found, expected))
    if len(wrong) > max(1, 0.05 * count):  # rounding explains only single rows
        raise Unbatched(_describe_difference(found, expected, wrong))
    for row in wrong.tolist():
        if not _is_rounding(model, found.at([row]), observations[row], [actions[row]]):
            raise Unbatched(_describe_difference(found, expected, wrong))


def _check_trajectories(
    batch: Batch,
    model: Model,
    observations: Sequence[Any],
    actions: Sequence[Any],
    starts: Sequence[int],
) -> None:
    """Compare trajectories until they end; ended lanes are removed from the batch."""
    plans = [
        [actions[(row + step) % len(actions)] for step in range(TRAJECTORY_STEPS)] for row in starts
    ]
    expected = [
        list(_play_steps(model, observations[row], plan))
        for row, plan in zip(starts, plans, strict=True)
    ]
    lanes = np.arange(len(starts))
    batch.stand(_stack_lanes([observations[row] for row in starts]))
    for step in range(TRAJECTORY_STEPS):
        taken = _stack_actions(model.action_space, [plans[lane][step] for lane in lanes])
        found = _lanes_to_rows(batch.step(taken))
        there = _to_arrays([expected[lane][step] for lane in lanes])
        alike = _find_equal(found, there)
        for place in np.flatnonzero(~alike):
            start, plan = observations[starts[lanes[place]]], plans[lanes[place]][: step + 1]
            if not _is_rounding(model, found.at([place]), start, plan):
                raise Unbatched(
                    f"{_describe_difference(found, there, [place])}, {step + 1} steps on"
                )
        living = alike & ~there.terminated
        if not living.any():
            return
        if not living.all():
            batch.keep(living)
            lanes = lanes[living]


def _play_steps(model: Model, start: Any, actions: Sequence[Any]) -> Iterator[Step]:
    """Yield the steps of a model for actions, up to the end of the episode."""
    try:
        model.stand(start)
        for action in actions:
            step = model.step(action)
            yield step
            if step.terminated:
                return
    except Exception as error:  # noqa: BLE001  # programs raise anything
        raise Unbatched(f"the program itself fails: {type(error).__name__}: {error}") from None


def _is_rounding(model: Model, found: StepArrays, start: Any, actions: Sequence[Any]) -> bool:
    """Return whether a rounding error in the observation explains the last difference."""
    if not isinstance(start, np.ndarray):
        return False
    expected = _to_arrays(list(_play_steps(model, start, actions))[-1:])
    # A difference is due to rounding if perturbing the observation by a small fraction changes the
    # result of the program by at least 1/20 of the difference.
    size, max_amplification = np.abs(start).max(initial=0.0), 20.0
    for nudge in (2.0**-22, -(2.0**-22)):
        steps = list(_play_steps(model, start + (nudge * size).astype(start.dtype), actions))
        if len(steps) < len(actions) or steps[-1].terminated != expected.terminated[0]:
            return True
        wide, high = (
            max_amplification * np.abs(nudged - plain)
            for nudged, plain in zip(_to_arrays(steps[-1:])[:2], expected[:2], strict=True)
        )
        if _find_equal(found, expected, wide, high).all():
            return True
    return False


def _find_equal(
    found: StepArrays, expected: StepArrays, wide: Any = 0.0, high: Any = 0.0
) -> np.ndarray:
    """Return which rows are equal, apart from rounding and additional tolerances."""
    observations = _find_close(found.observations, expected.observations, wide)
    rewards = _find_close(found.rewards, expected.rewards, high)
    if observations.ndim > 1:
        observations = np.asarray(observations.all(1))
    return np.asarray(observations & rewards & (found.terminated == expected.terminated))


def _find_close(found: np.ndarray, expected: np.ndarray, more: Any) -> np.ndarray:
    if expected.dtype.kind in "biu":
        return np.asarray(found == expected)
    # The absolute tolerance is a fraction of the largest value of a component.
    size = np.abs(expected)
    scale = np.maximum(size.max(0), 0.1)
    return np.asarray(np.abs(found - expected) <= 1e-5 * size + 1e-6 * scale + more)


def _describe_difference(found: StepArrays, expected: StepArrays, rows: Any) -> str:
    count = len(found.rewards)
    found, expected = found.at(rows), expected.at(rows)
    where = f"on {len(rows)} of {count} rows"
    if (found.terminated != expected.terminated).any():
        return f"terminated differs {where}"
    for name in ("rewards", "observations"):
        gap = np.abs(getattr(found, name) - getattr(expected, name).astype(float))
        if not _find_close(getattr(found, name), getattr(expected, name), 0.0).all():
            return f"{name} differ by up to {gap.max():.2g} {where}"
    return f"answers differ {where}"


def _lanes_to_rows(answer: tuple[np.ndarray, np.ndarray, np.ndarray]) -> StepArrays:
    """Convert the result of a batch step, whose last axis is the lane."""
    observations, rewards, terminated = answer
    return StepArrays(np.moveaxis(observations, -1, 0), rewards, terminated)


def _to_arrays(steps: Sequence[Step]) -> StepArrays:
    observations, rewards, terminated, _ = zip(*steps, strict=True)
    return StepArrays(np.array(observations), np.array(rewards, float), np.array(terminated))


def _stack_actions(space: Space, actions: Sequence[Any]) -> np.ndarray:
    """Return actions as an array (*flat_shape, lanes)."""
    return np.moveaxis(space.flatten("actions", space.pack("actions", actions)), 0, -1)


def _stack_lanes(values: Sequence[Any]) -> np.ndarray:
    """Stack observations or actions, with the lane as the last axis."""
    return np.stack([np.asarray(value) for value in values], -1)
