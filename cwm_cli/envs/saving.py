"""Save and restore any environment by its attributes.

`Attributes` is the rewinder of environments without their own. A layout defines how each attribute
is saved: unchanged, copied, or as the state of a random generator. Values are compared and copied
by type. The functions on random generators serve other modules, too.
"""

import pickle
import random
from collections import Counter, deque
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from itertools import chain
from operator import is_
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import gymnasium as gym


Generator = np.random.Generator | np.random.RandomState | random.Random

ATOMS: frozenset[type] = frozenset(
    {bool, int, float, complex, str, bytes, type(None), type(...), range, slice}
    | set(np.sctypeDict.values()) - {np.object_, np.void}
)
"""Types whose values never change."""

_FIXED = (type, ModuleType, FunctionType, BuiltinFunctionType, np.ufunc, np.dtype, Enum)


@dataclass
class Survey:
    """The parts of a value.

    `size` is the number of parts; a large array counts as several. `mutable` has the mutable parts
    by id, and `repeats` is whether a mutable part occurs twice. A `plain` value consists of
    containers, arrays and atoms. A `bound` value contains a function or memory that belongs to one
    instance.
    """

    size: int = 0
    plain: bool = True
    bound: bool = False
    repeats: bool = False
    mutable: dict[int, Any] = field(default_factory=dict)
    generators: list[Generator] = field(default_factory=list)

    def enter(self, part: Any, outside: Container[int]) -> Iterable[Any]:
        """Count a part, and return the parts inside it."""
        if type(part) is tuple and ATOMS.issuperset(map(type, part)):
            return ()
        fixed = isinstance(part, _FIXED)
        self.bound = self.bound or _is_bound(part)
        holds_objects = isinstance(part, np.ndarray) and part.dtype.hasobject
        is_plain = fixed or (type(part) in COPIERS and not holds_objects)
        self.plain = self.plain and is_plain and id(part) not in outside
        if fixed or id(part) in outside:
            return ()
        if id(part) in self.mutable:
            self.repeats = True
            return ()
        if isinstance(part, np.ndarray):
            self.size += part.nbytes // 256  # 256 bytes are copied as fast as another part
        if type(part) not in (tuple, frozenset):
            self.mutable[id(part)] = part
        if is_generator(part):
            self.generators.append(part)
            return ()
        return parts(part)


def survey(value: Any, outside: Container[int] = ()) -> Survey:
    """Survey all parts of a value, except inside the parts with ids in `outside`."""
    # A stack instead of recursion: values may be nested deeper than Python can recurse.
    found, waiting = Survey(), [value]
    while waiting:
        part = waiting.pop()
        found.size += 1
        if type(part) not in ATOMS:
            waiting.extend(found.enter(part, outside))
    return found


def parts(value: Any) -> Iterator[Any]:
    """Yield the direct parts of a value."""
    if isinstance(value, Mapping):
        yield from chain(value.keys(), value.values())
    elif isinstance(value, list | tuple | set | frozenset | deque):
        yield from value
    elif isinstance(value, np.ndarray):
        yield from value.ravel().tolist() if value.dtype.hasobject else ()
    elif isinstance(value, MethodType):
        yield value.__self__
    elif isinstance(value, partial):
        yield from (value.func, value.args, value.keywords)
    yield from getattr(value, "__dict__", {}).values()
    for cls in type(value).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                yield getattr(value, name)


def content(value: Any, met: dict[int, tuple[int, Any]]) -> Hashable:
    """Return a hashable that is equal for values with equal content.

    Values are taken apart as in `deepcopy`; a value that cannot be is equal only to itself. A part
    in `met` is represented by its number.
    """
    if type(value) in ATOMS or isinstance(value, _FIXED):
        return value if value == value else repr(value)  # NaN does not equal itself
    if type(value) is np.ndarray and not value.dtype.hasobject:
        return value.shape, value.tobytes()
    if isinstance(value, tuple | set | frozenset):
        kind = tuple if isinstance(value, tuple) else frozenset
        return kind([content(part, met) for part in value])
    # A number for each part makes cycles end, and distinguishes shared parts from equal ones.
    if id(value) in met:
        return met[id(value)][0]
    met[id(value)] = len(met), value  # keeps the value alive, so that its id stays unique
    try:
        reduced = value.__reduce_ex__(4)
    except Exception:  # noqa: BLE001  # foreign classes may raise any error
        return id(value)
    return content(tuple(tuple(p) if isinstance(p, Iterator) else p for p in reduced), met)


def _is_bound(value: Any) -> bool:
    """Return whether a copy of the value would still refer to the old instance."""
    if isinstance(value, FunctionType):
        return value.__closure__ is not None
    # A view of memory that no array owns, such as the state of a C library, cannot be moved.
    while isinstance(value, np.ndarray) and value.base is not None:
        value = value.base
        if not isinstance(value, np.ndarray):
            return True
    return False


def copy_value(value: Any) -> Any:
    """Copy a value; containers, arrays and atoms ten times as fast as `deepcopy`."""
    return COPIERS.get(type(value), deepcopy)(value)


def _copy_list(values: list[Any]) -> list[Any]:
    types = set(map(type, values))
    # Lists of positions are common, and a flat copy is much faster.
    flat = types == {tuple} and ATOMS.issuperset(map(type, chain.from_iterable(values)))
    return values.copy() if flat or types <= ATOMS else list(map(copy_value, values))


def _copy_tuple(values: tuple[Any, ...]) -> tuple[Any, ...]:
    return values if ATOMS.issuperset(map(type, values)) else tuple(map(copy_value, values))


COPIERS: dict[type, Callable[[Any], Any]] = {
    **dict.fromkeys(ATOMS, lambda value: value),
    np.ndarray: np.ndarray.copy,
    list: _copy_list,
    tuple: _copy_tuple,
    dict: lambda values: {key: copy_value(value) for key, value in values.items()},
    set: set.copy,
    frozenset: frozenset.copy,
    bytearray: bytearray.copy,
    deque: lambda values: deque(map(copy_value, values), values.maxlen),
}
"""Copy functions by type; sets are copied shallowly since their members cannot change."""


OWN = ("action_space", "observation_space", "spec")
"""Attributes that one instance never takes over from another."""


@dataclass(frozen=True)
class Findings:
    """Facts about the attributes of an environment.

    `constant` attributes never change and are not copied. Attributes `together` share parts, or
    have unknown types; `plain` attributes do neither; `seen` attributes had a value other than
    None. `spaces` are the spaces whose generators the environment draws from, and `common` the
    global generators of Python and numpy. If `whole` is set, everything that can be copied is
    copied in one piece.
    """

    constant: frozenset[str] = frozenset()
    together: frozenset[str] = frozenset()
    plain: frozenset[str] = frozenset()
    seen: frozenset[str] = frozenset()
    spaces: tuple[str, ...] = ()
    common: tuple[Generator, ...] = ()
    whole: bool = False


class Layout(NamedTuple):
    """The method for saving each attribute.

    `plain` attributes are copied one by one, attributes `together` in one piece. Attributes in
    `left` stay with their instance, including `generators` and constants. Other attributes can only
    be replaced, so references are saved. A layout is valid while the attributes `watched` are the
    `expected` objects: the constants, and None for attributes that may get a value of any type.
    """

    names: frozenset[str]
    plain: tuple[str, ...]
    together: tuple[str, ...]
    left: tuple[str, ...]
    generators: tuple[str, ...]
    watched: tuple[str, ...]
    expected: tuple[Any, ...]


def instance_objects(env: "gym.Env[Any, Any]", findings: Findings) -> list[Any]:
    """Return the objects that belong to an instance, in the same order for every instance."""
    attributes = vars(env)
    names = [name for name in (*OWN, *sorted(findings.constant)) if name in attributes]
    return [env, *(attributes[name] for name in names)]


def outside_generators(env: "gym.Env[Any, Any]", findings: Findings) -> list[Generator]:
    """Return the generators that an environment draws from although they are no attributes."""
    return [*(getattr(env, name).np_random for name in findings.spaces), *findings.common]


def make_layout(env: "gym.Env[Any, Any]", known: Findings) -> Layout:
    """Return the layout for the current attributes of an environment."""
    attributes = vars(env)
    own = instance_objects(env, known)
    fixed = {name for name in attributes if name in OWN or name in known.constant}
    generators = {name for name, value in attributes.items() if is_generator(value)}
    surveys = survey_attributes(env, fixed | generators, own)
    mutable = {name for name, found in surveys.items() if found.mutable}
    strange = {name for name in mutable if not surveys[name].plain}
    # No other instance can take over attributes that are bound or cannot be copied.
    left = {name for name, found in surveys.items() if found.bound and not known.whole}
    left |= {name for name in strange - left if not _can_copy(attributes[name], own)}
    left |= fixed | generators
    # Copies of attributes that share a part must share the copy of the part, too.
    shared = strange | shared_names(surveys) | known.together & surveys.keys()
    together = (mutable if known.whole else shared) - left
    plain = (mutable | known.plain & surveys.keys()) - together - left
    empty = {name for name in surveys if attributes[name] is None} - known.seen - plain - together
    watched = [name for name in attributes if name in empty or name in known.constant]
    return Layout(
        names=frozenset(attributes),
        plain=tuple(filter(plain.__contains__, attributes)),
        together=tuple(filter(together.__contains__, attributes)),
        left=tuple(filter((left | together).__contains__, attributes)),
        generators=tuple(filter(generators.__contains__, attributes)),
        watched=tuple(watched),
        expected=tuple(map(attributes.__getitem__, watched)),
    )


def survey_attributes(
    env: "gym.Env[Any, Any]", without: set[str], own: list[Any]
) -> dict[str, Survey]:
    """Survey the attributes of an environment, except inside the objects of the instance."""
    outside = set(map(id, own))
    return {
        name: survey(value, outside) for name, value in vars(env).items() if name not in without
    }


def shared_names(surveys: Mapping[str, Survey]) -> set[str]:
    """Return the names of attributes that contain a part twice or share one with another."""
    holders = Counter(key for found in surveys.values() for key in found.mutable)
    twice = {key for key, count in holders.items() if count > 1}
    return {
        name for name, found in surveys.items() if found.repeats or twice & found.mutable.keys()
    }


def _can_copy(value: Any, own: list[Any]) -> bool:
    try:
        deepcopy(value, {id(part): part for part in own})
    except Exception:  # noqa: BLE001  # foreign classes may raise any error
        return False
    return True


class Piece(NamedTuple):
    """Attributes that were copied in one piece, with tokens for the objects of the instance."""

    values: dict[str, Any]
    tokens: list[object]
    belonged: list[Any]


@dataclass(slots=True, eq=False)
class Saved:
    """A saved state; states with equal content are equal, also with different layouts."""

    layout: Layout
    values: dict[str, Any]
    piece: Piece | None
    luck: list[Any] | None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Saved) and self._content() == other._content()

    def __hash__(self) -> int:
        return hash(self._content())

    def _content(self) -> Hashable:
        piece = self.piece or Piece({}, [], [])
        held = dict(sorted({**self.values, **piece.values}.items()))
        tokens = {id(token): (place, token) for place, token in enumerate(piece.tokens)}
        return *held, content((*held.values(), self.luck), tokens)


class Attributes:
    """A rewinder that copies attributes, each as fast as its type allows.

    Replaced attributes are always saved. Attributes that change in place are saved unless they are
    known to be constant.
    """

    def __init__(self, env: "gym.Env[Any, Any]", findings: Findings | None = None) -> None:
        findings = findings or Findings()
        self.how = "deepcopy" if findings.whole else "attributes"
        self._env = env.unwrapped
        self._env.np_random  # noqa: B018  # creates the generator on first access
        self._attributes = vars(self._env)
        self._known = findings
        self._layout = make_layout(self._env, findings)
        self._update_layout()

    def save(self, *, chance: bool = True) -> Saved:
        """Return the complete state of the environment; later steps never change it."""
        attributes = self._attributes
        layout = self._layout if self._is_current() else self._update_layout()
        # One copy of the dict and a few deletions are faster than a loop over all attributes.
        values = attributes.copy()
        for name in layout.left:
            del values[name]
        for name in layout.plain:
            copy = COPIERS.get(type(values[name]))
            if copy is None:  # the attribute got a value of a type that only `deepcopy` copies
                self._update_layout()
                return self.save(chance=chance)
            values[name] = copy(values[name])
        # One call of `deepcopy` for all attributes together keeps the parts that they share.
        piece = self._detach(layout) if layout.together else None
        luck = [save_state(generator) for generator in self.generators()] if chance else None
        return Saved(layout, values, piece, luck)

    def load(self, state: Saved, *, chance: bool = True) -> None:
        """Restore a saved state; without `chance` the random generators stay unchanged."""
        layout, values, piece, luck = state.layout, state.values, state.piece, state.luck
        attributes = self._attributes
        if piece is not None:
            attributes.update(self._attach(piece))
        attributes.update(values)
        # Later steps must not change the saved state, so the attributes get copies.
        for name in layout.plain:
            value = values[name]
            attributes[name] = COPIERS[type(value)](value)
        if len(attributes) != len(layout.names):
            for name in attributes.keys() - layout.names:
                del attributes[name]
        if chance and luck is not None:
            for generator, drawn in zip(self.generators(), luck, strict=False):
                restore(generator, drawn)

    def generators(self) -> list[Generator]:
        """Return the random generators that the environment draws from, each once."""
        attributes = self._attributes
        layout = self._layout if self._is_current() else self._update_layout()
        found = [attributes[name] for name in layout.generators]
        found += outside_generators(self._env, self._known)
        if layout.together:
            outside = set(map(id, instance_objects(self._env, self._known)))
            together = [attributes[name] for name in layout.together]
            found += survey(together, outside).generators
        return list({id(generator): generator for generator in found}.values())  # each once

    def returns(self, states: Sequence[Any], plans: np.ndarray) -> None:
        """Return None: stepping is the fastest method."""

    def _is_current(self) -> bool:
        """Return whether the attributes still have the kinds of the layout."""
        attributes, layout = self._attributes, self._layout
        # This runs at every save, so it only compares identities, and only of a few attributes.
        watched = map(attributes.get, layout.watched)
        return len(attributes) == len(layout.names) and all(map(is_, watched, layout.expected))

    def _update_layout(self) -> Layout:
        """Update the layout; an attribute that changed once is never constant again."""
        attributes, known = self._attributes, self._known
        watched = zip(self._layout.watched, self._layout.expected, strict=True)
        replaced = {name for name, value in watched if attributes.get(name) is not value}
        # Findings only accumulate: an attribute that alternates between two kinds must not cause
        # a new layout at every save.
        known = replace(
            known,
            constant=known.constant - replaced,
            seen=known.seen | {name for name in attributes if attributes[name] is not None},
        )
        self._layout = layout = make_layout(self._env, known)
        self._known = replace(
            known,
            together=known.together.union(layout.together),
            plain=known.plain.union(layout.plain),
        )
        return layout

    def _belongings(self) -> list[Any]:
        return [*instance_objects(self._env, self._known), *self.generators()]

    def _detach(self, layout: Layout) -> Piece:
        """Copy attributes in one piece, with tokens instead of the objects of this instance."""
        belonged = self._belongings()
        tokens = [object() for _ in belonged]
        known = {id(thing): token for thing, token in zip(belonged, tokens, strict=True)}
        together = {name: self._attributes[name] for name in layout.together}
        return Piece(deepcopy(together, known), tokens, belonged)

    def _attach(self, piece: Piece) -> dict[str, Any]:
        """Copy a piece, with the objects of this instance instead of tokens."""
        mine = self._belongings()
        # If this instance has fewer generators than the saved one, it gets copies.
        mine += map(deepcopy, piece.belonged[len(mine) :])
        known = {id(token): thing for token, thing in zip(piece.tokens, mine, strict=False)}
        return deepcopy(piece.values, known)


class Values:
    """A rewinder that saves a few attributes, which are replaced and never changed in place.

    It fits environments whose state is these values and their random generator.
    """

    how = "values"

    def __init__(self, env: "gym.Env[Any, Any]", *names: str) -> None:
        self._env, self._names = env.unwrapped, names

    def save(self, *, chance: bool = True) -> tuple[Any, ...]:
        """Return the values, and the state of the generator."""
        values = [getattr(self._env, name) for name in self._names]
        return *values, save_state(self._env.np_random) if chance else None

    def load(self, state: tuple[Any, ...], *, chance: bool = True) -> None:
        """Restore saved values; without `chance` the generator stays unchanged."""
        *values, drawn = state
        for name, value in zip(self._names, values, strict=True):
            setattr(self._env, name, value)
        if chance and drawn is not None:
            restore(self._env.np_random, drawn)

    def generators(self) -> list[Generator]:
        """Return the generator of the environment."""
        return [self._env.np_random]

    def returns(self, states: Sequence[Any], plans: np.ndarray) -> None:
        """Return None: stepping is the fastest method."""


GLOBAL: tuple[Generator, ...] = (random.random.__self__, np.random.random_sample.__self__)  # type: ignore[attr-defined]
"""The generators behind the functions of `random` and `numpy.random`."""


def is_generator(value: object) -> bool:
    """Return whether a value is a random generator whose state can be saved."""
    return isinstance(value, Generator) and not isinstance(value, random.SystemRandom)


def save_state(generator: Generator) -> Any:
    """Return the state of a generator; later draws do not change it."""
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    if isinstance(generator, np.random.RandomState):
        return generator.get_state()
    return generator.getstate()


def fingerprint(generator: Generator) -> bytes:
    """Return bytes that stay equal until the generator draws a number."""
    # The states contain arrays, which `==` does not compare as a whole.
    return pickle.dumps(save_state(generator))


def restore(generator: Generator, state: Any) -> None:
    """Restore the state of a generator."""
    if isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    elif isinstance(generator, np.random.RandomState):
        generator.set_state(state)
    else:
        generator.setstate(state)


def reseed(generator: Generator, rng: np.random.Generator) -> None:
    """Give a generator a new random state; equal states of `rng` give equal results."""
    # `Generator` has no method `seed`, so the state of a new bit generator is copied.
    if isinstance(generator, np.random.Generator):
        kind = type(generator.bit_generator)
        generator.bit_generator.state = kind(int(rng.integers(2**63))).state
    else:
        generator.seed(int(rng.integers(2**32)))
