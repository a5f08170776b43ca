"""A program with memory as a model, whose state is the history of an episode."""

from collections.abc import Collection, Iterable
from copy import deepcopy
from functools import lru_cache
from itertools import chain
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import numpy as np

from cwm_cli.data.spaces import Space
from cwm_cli.planning.model import Counter, EpisodeHistory, Here, Model, Step, close, copy_value
from cwm_cli.planning.planner import Unsuited
from cwm_cli.planning.program import Checks, Program


class KeptProgram:
    """A snapshot of a program, or its saved memory; equal if the content is equal."""

    __slots__ = ("_content", "environment", "saved")

    def __init__(self, environment: Any, saved: Any = None) -> None:
        self.environment, self.saved = environment, saved
        self._content: Any = None

    @property
    def remembered(self) -> Any:
        """The object to compare snapshots by."""
        return self.environment if self.saved is None else self.saved

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KeptProgram) and self._comparable() == other._comparable()

    def __hash__(self) -> int:
        return hash(self._comparable())

    def _comparable(self) -> Any:
        if self._content is None:
            try:
                self._content = _content(self.remembered)
            except (RecursionError, TypeError):  # the memory contains itself
                self._content = object()
        return self._content


class ProgramWithMemory(Program):
    """A program that follows the history of an episode; planners simulate in copies.

    `stand` sets it to the end of an `EpisodeHistory`: it calls `reset`, then `step` and `correct`
    for each recorded step. Steps of a history that was followed before are not repeated. From
    there it only steps. The result of `here` has a copy of the program with all its attributes, or
    the result of its `save` if it defines `save` and `restore`.
    """

    remembers = hides = True

    def __init__(
        self,
        environment: Any,
        checks: Checks,
        *,
        action_space: Space,
        deterministic: bool = True,
        counter: Counter | None = None,
    ) -> None:
        super().__init__(
            environment,
            checks._replace(outcomes=None),  # `outcomes` does not return the next memory
            action_space=action_space,
            deterministic=deterministic,
            counter=counter,
        )
        self._saves = all(
            callable(getattr(environment, method, None)) for method in ("save", "restore")
        )
        self._source = getattr(environment, "rng", None)
        self._new = KeptProgram(replica(environment, self._source))
        self._followed: list[tuple[EpisodeHistory, Here]] = []
        self._place: Here | None = None
        self._is_apart = False

    @property
    def memoryless(self) -> Model:
        """The program itself, since its memory is its state."""
        return self

    def stand(self, state: Any) -> None:
        """Set the state to a history, a result of `here`, or a first observation."""
        if not isinstance(state, Here):
            is_history = isinstance(state, EpisodeHistory)
            state = self._follow(state if is_history else EpisodeHistory((state,)))
        self._place, self._is_apart = state, False

    def here(self) -> Here:
        """Return the last observation and a snapshot of the program; later steps use a copy."""
        if self._place is None:
            self._place = Here(self._here, self._snapshot())
            self._is_apart = self._saves
        return self._place

    def step(self, action: Any) -> Step:
        """Take an action."""
        self._detach()
        return super().step(action)

    def play(self, actions: Iterable[Any], discount: float = 1.0) -> float:
        """Take actions and return their discounted return; then restore the former state."""
        before = self.here()
        self._detach()
        total = super().play(actions, discount)
        self._place, self._is_apart = before, False
        return total

    def agree(self, one: Here, other: Here) -> bool:
        """Return whether the program is equal in two states, within the tolerance."""
        return _are_close(one.state.remembered, other.state.remembered, set())

    def _detach(self) -> None:
        """Make sure that steps do not modify the snapshot of the current state."""
        if not self._is_apart:
            assert self._place is not None
            self._restore(self._place.state)
        self._place, self._is_apart = None, True

    def _snapshot(self) -> KeptProgram:
        saved = replica(self.environment.save(), self._source) if self._saves else None
        return KeptProgram(self.environment, saved)

    def _restore(self, kept: KeptProgram) -> None:
        self.environment = kept.environment
        if kept.saved is None:
            self.environment = replica(kept.environment, self._source)
        else:
            self.environment.restore(replica(kept.saved, self._source))
        self._step = self.environment.step

    def _follow(self, history: EpisodeHistory) -> Here:
        """Return the state after a history; continue from its longest part followed before.

        The random numbers of a step depend only on its number, so that any process reaches the
        same state.
        """
        known = [entry for entry in self._followed if history.continues(entry[0])]
        before, here = max(known, key=lambda entry: len(entry[0].actions), default=(None, None))
        done = -1 if before is None else len(before.actions)
        if here is None or done < len(history.actions):
            drawn_from = self.drawn_from
            self._restore(here.state if here else self._new)
            for number in range(done + 1, len(history.observations)):
                self._observe(history, number)
            here = Here(history.observations[-1], self._snapshot())
            self.draw_from(drawn_from)
        # Keep 32 histories, four times the number of parallel episodes.
        self._followed = [entry for entry in self._followed if entry[0] is not before]
        self._followed = [*self._followed[1 - 32 :], (history, here)]
        return here

    def _observe(self, history: EpisodeHistory, number: int) -> None:
        """Make the program predict observation n of a history, then correct it."""
        if not self.deterministic:
            self.draw_from([number])
        seen = copy_value(history.observations[number])
        if not number:
            self.environment.reset(seen)
            return
        self.counter[0] += 1
        self.environment.step(copy_value(history.actions[number - 1]))
        self.environment.correct(seen, history.rewards[number - 1])


_SHARED = frozenset(
    {bool, int, float, complex, str, bytes, type(None), type, range, slice}
    | {np.bool_, np.int64, np.int32, np.float64, np.float32, np.str_, np.ufunc}
    | {FunctionType, BuiltinFunctionType, ModuleType}
)
"""Types of immutable values, and of values outside of a state, which copies share."""


def replica(value: Any, *shared: Any) -> Any:
    """Return a deep copy of a value, except for the `shared` objects.

    `deepcopy` takes 2 to 12 times as long, at every step of a planner.

    Raises:
        Unsuited: If something cannot be copied.
    """
    try:
        return _replica(value, {id(part): part for part in shared})
    except (TypeError, RecursionError) as error:
        raise Unsuited(f"has a memory that cannot be copied: {error}") from error


def _replica(value: Any, memo: dict[int, Any]) -> Any:
    kind: Any = type(value)
    if kind in _SHARED:
        return value
    if (known := memo.get(id(value))) is not None:
        return known
    # A container is in the memo before its parts are copied: a part may refer to it.
    if kind is np.ndarray and not value.dtype.hasobject:
        made = memo[id(value)] = value.copy("K")
    elif kind is tuple:
        made = value if _are_immutable(value) else tuple([_replica(part, memo) for part in value])
    elif kind is list:
        made = memo[id(value)] = value.copy()
        if not _are_immutable(value):
            made[:] = [_replica(part, memo) for part in value]
    elif kind is dict and _are_immutable(value):
        made = memo[id(value)] = value.copy()
        if not _are_immutable(value.values()):
            made.update([(name, _replica(part, memo)) for name, part in value.items()])
    elif kind is set and _are_immutable(value):
        made = memo[id(value)] = value.copy()
    elif _has_attributes_only(kind):
        made = memo[id(value)] = object.__new__(kind)
        made.__dict__.update([(name, _replica(part, memo)) for name, part in vars(value).items()])
    else:
        made = deepcopy(value, memo)
    return made


def _are_immutable(values: Collection[Any]) -> bool:
    """Whether copies share all values: plain ones, and tuples of plain ones."""
    kinds = set(map(type, values))
    if tuple in kinds:
        tuples = values if len(kinds) == 1 else [part for part in values if type(part) is tuple]
        kinds = kinds - {tuple} | set(map(type, chain.from_iterable(tuples)))
    return kinds <= _SHARED


def _content(value: Any) -> Any:
    """Return a hashable value, equal for equal states; unique for an unknown type."""
    kind: Any = type(value)
    content: Any = object()
    if kind in _SHARED:
        content = value
    elif kind is np.ndarray and not value.dtype.hasobject:
        content = value.shape, value.dtype.str, value.tobytes()
    elif kind is tuple or kind is list:
        content = tuple([_content(part) for part in value])
    elif kind is dict:
        content = frozenset([(_content(name), _content(part)) for name, part in value.items()])
    elif kind is set or kind is frozenset:
        content = frozenset(map(_content, value))
    elif _has_attributes_only(kind):
        content = kind, _content(vars(value))
    return content


def _are_close(left: Any, right: Any, met: set[tuple[int, int]]) -> bool:
    """Whether two states are equal within the tolerance; `met` has the compared pairs of ids."""
    pair = id(left), id(right)
    if left is right or pair in met:
        return True
    met.add(pair)
    kind: Any = type(left)
    if kind is not type(right):
        return close(left, right)
    if isinstance(left, list | tuple):
        pairs = zip(left, right, strict=False)
        return len(left) == len(right) and all(_are_close(*pair, met) for pair in pairs)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(_are_close(left[n], right[n], met) for n in left)
    if _has_attributes_only(kind):  # type: ignore[arg-type]  # it is hashable
        return _are_close(vars(left), vars(right), met)
    return close(left, right)


@lru_cache(maxsize=256)
def _has_attributes_only(kind: Any) -> bool:
    """Whether `__dict__` has the whole state of an object, and no method changes its copying."""
    others = ("__new__", "__reduce__", "__reduce_ex__", "__getstate__")
    is_heap_type = kind.__flags__ & (1 << 9)  # made by a class statement (Py_TPFLAGS_HEAPTYPE)
    return (
        all("__slots__" not in vars(base) for base in kind.__mro__[:-1])
        and all(getattr(kind, name, None) is getattr(object, name, None) for name in others)
        and not hasattr(kind, "__deepcopy__")
        and not hasattr(kind, "__setstate__")
        and bool(is_heap_type)
    )
