"""A program with memory as a model: where an episode stands is what happened in it so far."""

from collections.abc import Collection, Iterable
from copy import deepcopy
from functools import lru_cache
from itertools import chain
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import numpy as np

from cwm_cli.data.spaces import Space
from cwm_cli.planning.model import Counter, EpisodeHistory, Here, Model, Step, close, copied
from cwm_cli.planning.planner import Unsuited
from cwm_cli.planning.program import Checks, Program

MOST_FOLLOWED = 32
"""Episodes that can go on from where they were left: four times as many as are played at once."""


class KeptProgram:
    """A program as it was, or what it has saved of itself: equal where all of that is equal."""

    __slots__ = ("_content", "environment", "saved")

    def __init__(self, environment: Any, saved: Any = None) -> None:
        self.environment, self.saved = environment, saved
        self._content: Any = None

    @property
    def remembered(self) -> Any:
        """What it is told from others by."""
        return self.environment if self.saved is None else self.saved

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KeptProgram) and self._named() == other._named()

    def __hash__(self) -> int:
        return hash(self._named())

    def _named(self) -> Any:
        if self._content is None:
            try:
                self._content = _content(self.remembered)
            except (RecursionError, TypeError):  # what it remembers contains itself
                self._content = object()
        return self._content


class ProgramWithMemory(Program):
    """A program that is followed along an episode, and planned with from copies of it.

    It stands where an `EpisodeHistory` leads: after `reset`, and `step` and `correct` for what
    really happened, which is not done again for what was followed before. From there on it only
    steps. What `here` returns holds the program as it was, with all its attributes, or what its
    `save` returned where it defines `save` and `restore`.
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
        """Stand nowhere yet; `environment` is new."""
        super().__init__(
            environment,
            checks._replace(outcomes=None),  # which say nothing of what is remembered then
            action_space=action_space,
            deterministic=deterministic,
            counter=counter,
        )
        self._saves = all(
            callable(getattr(environment, each, None)) for each in ("save", "restore")
        )
        self._source = getattr(environment, "rng", None)
        self._new = KeptProgram(replica(environment, self._source))
        self._followed: list[tuple[EpisodeHistory, Here]] = []
        self._place: Here | None = None
        self._is_apart = False

    @property
    def anew(self) -> Model:
        """The same one: what it remembers is its state."""
        return self

    def stand(self, state: Any) -> None:
        """Stand where the history of an episode leads, or where `here` said.

        At an observation an episode begins.
        """
        if not isinstance(state, Here):
            is_history = isinstance(state, EpisodeHistory)
            state = self._follow(state if is_history else EpisodeHistory((state,)))
        self._place, self._is_apart = state, False

    def here(self) -> Here:
        """Return the last observation, and the program as it is: steps are taken by a copy."""
        if self._place is None:
            self._place = Here(self._here, self._kept())
            self._is_apart = self._saves
        return self._place

    def step(self, action: Any) -> Step:
        """Take an action."""
        self._stand_apart()
        return super().step(action)

    def play(self, actions: Iterable[Any], discount: float = 1.0) -> float:
        """Take actions and return their return; then the model stands where it stood before."""
        before = self.here()
        self._stand_apart()
        total = super().play(actions, discount)
        self._place, self._is_apart = before, False
        return total

    def agree(self, one: Here, other: Here) -> bool:
        """Whether the program is the same in both, but for rounding."""
        return _alike(one.state.remembered, other.state.remembered, set())

    def _stand_apart(self) -> None:
        """Have a program that may be stepped."""
        if not self._is_apart:
            assert self._place is not None
            self._put(self._place.state)
        self._place, self._is_apart = None, True

    def _kept(self) -> KeptProgram:
        """Return what `_put` needs to have the program again as it is now."""
        saved = replica(self.environment.save(), self._source) if self._saves else None
        return KeptProgram(self.environment, saved)

    def _put(self, kept: KeptProgram) -> None:
        """Have a program that is as it was kept; what saves itself lives on in each episode."""
        self.environment = kept.environment
        if kept.saved is None:
            self.environment = replica(kept.environment, self._source)
        else:
            self.environment.restore(replica(kept.saved, self._source))
        self._step = self.environment.step

    def _follow(self, history: EpisodeHistory) -> Here:
        """Return where a history leads, from the longest part of it that was followed before.

        Random numbers on the way depend on the number of the step alone, so that it leads there
        again in any process.
        """
        known = [each for each in self._followed if history.continues(each[0])]
        before, here = max(known, key=lambda each: len(each[0].actions), default=(None, None))
        done = -1 if before is None else len(before.actions)
        if here is None or done < len(history.actions):
            drawn_from = self.drawn_from
            self._put(here.state if here else self._new)
            for number in range(done + 1, len(history.observations)):
                self._see(history, number)
            here = Here(history.observations[-1], self._kept())
            self.draw_from(drawn_from)
        self._followed = [each for each in self._followed if each[0] is not before]
        self._followed = [*self._followed[1 - MOST_FOLLOWED :], (history, here)]
        return here

    def _see(self, history: EpisodeHistory, number: int) -> None:
        """Have the program see an observation of an episode: before that it predicts it."""
        if not self.deterministic:
            self.draw_from([number])
        seen = copied(history.observations[number])
        if not number:
            self.environment.reset(seen)
            return
        self.counter[0] += 1
        self.environment.step(copied(history.actions[number - 1]))
        self.environment.correct(seen, history.rewards[number - 1])


_SHARED = frozenset(
    {bool, int, float, complex, str, bytes, type(None), type, range, slice}
    | {np.bool_, np.int64, np.int32, np.float64, np.float32, np.str_, np.ufunc}
    | {FunctionType, BuiltinFunctionType, ModuleType}
)
"""Types of what never changes, or is no part of a state: copies have the same."""


def replica(value: Any, *shared: Any) -> Any:
    """Return a copy that has nothing in common with a value that can change, but what is `shared`.

    `deepcopy` does the same and takes two to twelve times as long, at every step that is tried.
    `Unsuited` where something cannot be copied.
    """
    try:
        return _replica(value, {id(each): each for each in shared})
    except (TypeError, RecursionError) as error:
        raise Unsuited(f"has a memory that cannot be copied: {error}") from error


def _replica(value: Any, memo: dict[int, Any]) -> Any:
    kind: Any = type(value)
    if kind in _SHARED:
        return value
    if (known := memo.get(id(value))) is not None:
        return known
    if kind is np.ndarray and not value.dtype.hasobject:
        made = memo[id(value)] = value.copy("K")
    elif kind is tuple:
        made = value if _are_final(value) else tuple([_replica(part, memo) for part in value])
    elif kind is list:
        made = memo[id(value)] = value.copy()
        if not _are_final(value):
            made[:] = [_replica(part, memo) for part in value]
    elif kind is dict and _are_final(value):
        made = memo[id(value)] = value.copy()
        if not _are_final(value.values()):
            made.update([(name, _replica(part, memo)) for name, part in value.items()])
    elif kind is set and _are_final(value):
        made = memo[id(value)] = value.copy()
    elif _has_attributes_only(kind):
        made = memo[id(value)] = object.__new__(kind)
        made.__dict__.update([(name, _replica(part, memo)) for name, part in vars(value).items()])
    else:
        made = deepcopy(value, memo)
    return made


def _are_final(some: Collection[Any]) -> bool:
    """Whether all of some values are shared by copies: plain ones, and tuples of these."""
    kinds = set(map(type, some))
    if tuple in kinds:
        tuples = some if len(kinds) == 1 else [each for each in some if type(each) is tuple]
        kinds = kinds - {tuple} | set(map(type, chain.from_iterable(tuples)))
    return kinds <= _SHARED


def _content(value: Any) -> Any:
    """Return something hashable that is equal for equal states; what cannot be told is its own."""
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


def _alike(left: Any, right: Any, met: set[tuple[int, int]]) -> bool:
    """Whether two states are the same but for rounding; `met` are those that were compared."""
    pair = id(left), id(right)
    if left is right or pair in met:
        return True
    met.add(pair)
    kind: Any = type(left)
    if kind is not type(right):
        return close(left, right)
    if isinstance(left, list | tuple):
        pairs = zip(left, right, strict=False)
        return len(left) == len(right) and all(_alike(*each, met) for each in pairs)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(_alike(left[n], right[n], met) for n in left)
    if _has_attributes_only(kind):  # type: ignore[arg-type]  # it is hashable
        return _alike(vars(left), vars(right), met)
    return close(left, right)


@lru_cache(maxsize=256)
def _has_attributes_only(kind: Any) -> bool:
    """Whether all of an object is in its `__dict__`, and it does not say otherwise."""
    others = ("__new__", "__reduce__", "__reduce_ex__", "__getstate__")
    return (
        all("__slots__" not in vars(each) for each in kind.__mro__[:-1])
        and all(getattr(kind, each, None) is getattr(object, each, None) for each in others)
        and not hasattr(kind, "__deepcopy__")
        and not hasattr(kind, "__setstate__")
        and bool(kind.__flags__ & _HEAP)
    )


_HEAP = 1 << 9
"""The flag of types that are made by a class statement (Py_TPFLAGS_HEAPTYPE)."""
