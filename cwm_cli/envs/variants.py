"""Variants of environments: other constants (`shift`), hidden parts (`hide`) and `noise`.

Every environment accepts these arguments in addition to its own, so datasets, run configurations
and cache keys contain them.

`shift` draws other constants and rules for the same system from a seed. A language model that
remembers an environment predicts it without any data, but not its shifted variants.

`hide` and `noise` act beneath the wrappers, in a subclass of the environment's class. Noise draws
from the random generator of the environment. Saving and restoring covers the full state, and
planners that simulate the environment itself see the full state.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

from cwm_cli.envs.documented import documented_parts, without_components
from cwm_cli.errors import CwmError, UnknownNameError

if TYPE_CHECKING:
    import gymnasium as gym

    from cwm_cli.data.objects import ObjectSchema
    from cwm_cli.envs.spec import EnvironmentSpec
    from cwm_cli.envs.text_view import TextView

SHIFT = "shift"
"""The reserved argument for the seed of a shift."""

HIDE, NOISE = "hide", "noise"
"""The reserved arguments for names of hidden components, and for standard deviations."""

VELOCITIES, ACTION, OBSERVATION = "velocities", "action", "observation"
"""Names for all components that are documented as velocities or speeds, for the action, and for the
whole observation.
"""

PIXELS, BRIGHTEST = "pixels", 255
"""The name for all pixels, and the largest pixel value. Noise is a fraction of this value."""


Place = tuple[str | int, ...]
"""Path to a part of an observation: keys of dicts, positions in tuples, the number of a component
of an array. The empty path is the whole observation.
"""

Eye = Callable[[Any, Any], Any]
"""Returns the visible part of an observation, with noise from a random generator."""


def with_variants(spec: EnvironmentSpec) -> EnvironmentSpec:
    """Add the arguments `shift`, `hide` and `noise` to `make`."""
    return with_disturbances(replace(spec, make=partial(_make_shifted, spec)))


def check_shift(spec: EnvironmentSpec, seed: int | None) -> None:
    """Raise `CwmError` if a seed is given that is invalid or that the environment cannot use."""
    if seed is None:
        return
    if spec.shift is None:
        raise CwmError(
            f"{spec.id} has no shifted variants: leave out --shift, or change an argument of the "
            "environment with --env-arg KEY=VALUE (for a run, with --shift KEY=VALUE)"
        )
    if type(seed) is not int or seed < 0:
        raise CwmError(f"--shift {seed!r} is not a seed: give a whole number of at least 0")


def as_changes(shift: int | Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that shift an environment, from a seed or from the arguments."""
    return {SHIFT: shift} if isinstance(shift, int) else dict(shift)


def shift_name(changes: Mapping[str, Any]) -> str:
    """Return changed arguments of an environment as text, such as `shift=1` or `g=5, m=2`."""
    return ", ".join(f"{name}={json.dumps(value)}" for name, value in changes.items())


def _make_shifted(spec: EnvironmentSpec, /, **env_args: Any) -> gym.Env[Any, Any]:
    import numpy as np  # slow: the command line imports this module for the argument names

    seed = env_args.pop(SHIFT, None)
    check_shift(spec, seed)
    env = spec.make(**env_args)
    if seed is not None and spec.shift is not None:
        spec.shift(env, np.random.default_rng(seed))
    return env


@dataclass(frozen=True)
class Disturbance:
    """The hidden components and the noise of an environment.

    `see` returns the visible part of an observation, which differs from the observation if
    `altered`. `gone` are the hidden components of a flat observation with `size` components.
    `action` is the standard deviation of the noise on actions; `attributes` has standard deviations
    for attributes of the environment. `words` is the description for a language model.
    """

    see: Eye
    altered: bool
    size: int
    gone: frozenset[int]
    action: float
    attributes: Mapping[str, float]
    words: str


def with_disturbances(spec: EnvironmentSpec) -> EnvironmentSpec:
    """Add the arguments `hide` and `noise` to `make`, and adapt the other functions."""
    return replace(
        spec,
        make=partial(_make_disturbed, spec),
        describe=partial(_describe, spec),
        restore=spec.restore and partial(_restore, spec),
        layout=spec.layout and partial(_layout_of, spec),
        objects=spec.objects and partial(_objects_of, spec),
        text=spec.text and partial(_text_of, spec),
    )


def disturbance_of(env: gym.Env[Any, Any]) -> Disturbance | None:
    """Return the hidden components and the noise of an environment, None without any."""
    return getattr(type(env.unwrapped), "_disturbance", None)


def _make_disturbed(spec: EnvironmentSpec, /, **env_args: Any) -> gym.Env[Any, Any]:
    given = env_args.pop(HIDE, None)
    names = [] if given is None else given if isinstance(given, list | tuple) else [given]
    if not all(type(name) in (str, int) for name in names):
        raise CwmError(f"{HIDE}={given!r} is not a list of names: write --hide NAME for each")
    hidden = [str(name) for name in names]
    noise = _read_deviations(env_args.pop(NOISE, None))
    env = spec.make(**env_args)
    if not hidden and not noise:
        return env
    try:
        _disturb(env, Parts.of(spec, env), hidden, noise)
    except BaseException:
        env.close()
        raise
    return env


def _describe(spec: EnvironmentSpec, env: gym.Env[Any, Any]) -> str:
    text, found = spec.describe(env), disturbance_of(env)
    if found is None:
        return text
    return f"{without_components(text, found.size, found.gone)}\n\n{found.words}"


def _restore(spec: EnvironmentSpec, env: gym.Env[Any, Any], observation: Any) -> bool:
    """Restore the state of an observation, unless the observation is altered."""
    found = disturbance_of(env)
    return not (found and found.altered) and bool(spec.restore and spec.restore(env, observation))


def _layout_of(spec: EnvironmentSpec, env: gym.Env[Any, Any]) -> Mapping[str, Any] | None:
    found = disturbance_of(env)
    return None if spec.layout is None or (found and found.altered) else spec.layout(env)


def _objects_of(spec: EnvironmentSpec, env: gym.Env[Any, Any]) -> ObjectSchema | None:
    from cwm_cli.data.objects import OBJECTS

    shown = getattr(env.observation_space, "spaces", {})
    return spec.objects(env) if spec.objects and OBJECTS in shown else None


def _text_of(spec: EnvironmentSpec, env: gym.Env[Any, Any]) -> TextView:
    found = disturbance_of(env)
    if spec.text is None or (found and found.altered):
        raise CwmError(
            f"{spec.id} has words only for undisturbed observations: leave out --{HIDE} and "
            f"--{NOISE}"
        )
    return spec.text(env)


def _read_deviations(given: Any) -> dict[str, float]:
    """Read standard deviations by name, without zeros."""
    given = {} if given is None else given
    if not isinstance(given, Mapping):
        raise CwmError(f"{NOISE}={given!r} is not a mapping: write --noise NAME=STD for each")
    for name, deviation in given.items():
        if type(deviation) not in (int, float) or not 0 <= deviation < inf:
            hint = "a standard deviation must be finite and not negative"
            raise CwmError(f"invalid noise {name}={deviation!r}: {hint}")
    return {str(name): float(deviation) for name, deviation in given.items() if deviation}


class Parts(NamedTuple):
    """The parts of an environment that can be hidden or disturbed, by name.

    A name in `observed` may have several parts, and a part may have several places. `attributes`
    are the attributes of the environment with real numbers.
    """

    id: str
    env: gym.Env[Any, Any]
    observed: Mapping[str, Sequence[tuple[Place, ...]]]
    attributes: tuple[str, ...]

    @classmethod
    def of(cls, spec: EnvironmentSpec, env: gym.Env[Any, Any]) -> Parts:
        """Collect names from the spaces of an environment, its documentation and its attributes."""
        space, inner = env.observation_space, env.unwrapped
        if space is not inner.observation_space:
            hint = "leave out --hide and --noise"
            raise CwmError(f"a wrapper changes the observations of {spec.id}: {hint}")
        observed: dict[str, list[tuple[Place, ...]]] = defaultdict(list)
        pictures = []
        for node, part_space in _nodes(space):
            for place in (node, *((*node, number) for number in range(_size(part_space)))):
                if place:  # the whole observation has a name of its own
                    observed[".".join(map(str, place))].append((place,))
            if part_space.shape and _is_picture(part_space):
                pictures.append(node)
        if pictures:
            observed[PIXELS] = [tuple(pictures)]
        speeds: set[Place] = set()
        for part in documented_parts(spec.describe(env), _size(space)):
            places: tuple[Place, ...] = tuple((number,) for number in part.numbers)
            observed[part.name].append(places)
            if re.search(r"\b(?:velocit|speed)", part.description, re.IGNORECASE):
                speeds.update(places)
        if speeds:
            observed[VELOCITIES] = [tuple(sorted(speeds))]
        # Base classes first, so that derived classes and the instance override their attributes.
        held: dict[str, Any] = {}
        for owner in (*reversed(type(inner).__mro__), inner):
            held |= vars(owner)
        floats = sorted(name for name, value in held.items() if isinstance(value, float))
        return cls(spec.id, env, observed, tuple(floats))

    def places(self, name: str, *, loosely: bool = True) -> tuple[Place, ...]:
        """Return the places of a part of the observation, () if no part has the name.

        Args:
            name: Name of the part.
            loosely: Accept a few words of the name of a single part.

        Raises:
            CwmError: Several parts have the name.
        """
        wanted = _normalize(name)
        if wanted == OBSERVATION and name not in self.observed:
            return ((),)
        called = [known for known in self.observed if _normalize(known) == wanted]
        if not called and loosely:
            called = [known for known in self.observed if f" {wanted} " in f" {_normalize(known)} "]
        # A part may have several names, such as a number and a documented name: it counts once.
        found = {places: known for known in called for places in self.observed[known]}
        if len(found) > 1:
            numbers = [".".join(map(str, places[0])) for places in found if len(places) == 1]
            raise CwmError(f"{name!r} is ambiguous in {self.id}: write {' or '.join(numbers)}")
        return next(iter(found), ())

    def unknown(self, name: str, others: Sequence[str] = ()) -> UnknownNameError:
        """Return the error for an unknown name of a component, or of one of `others`.

        The hint has the known names: a range for numbers, and at most 12 names.
        """
        numbers = [int(known) for known in self.observed if known.isdecimal()]
        names = [*(known for known in self.observed if not known.isdecimal()), *others]
        listed = [f"a number from 0 to {max(numbers)}"] if numbers else []
        listed += [*names[:12], *["and so on"] * (len(names) > 12)]
        hint = f"choose {', '.join(listed)}" if listed else "the observation is a single value"
        kind = f"observation component{' or attribute' * bool(others)} of {self.id}"
        return UnknownNameError(kind, name, [*self.observed, *others], hint)


def _normalize(name: str) -> str:
    """Return a name in lower case, with single spaces as separators."""
    return " ".join(re.split(r"[\s_`-]+", name.lower())).strip()


def _is_picture(space: gym.Space[Any]) -> bool:
    from cwm_cli.envs.spec import space_of  # imports numpy

    return space_of(space).is_picture


def _size(space: gym.Space[Any]) -> int:
    """Return the number of components of a flat observation, 0 for any other."""
    shape = space.shape or ()
    return int(shape[0]) if len(shape) == 1 else 0


def _nodes(space: gym.Space[Any], at: Place = ()) -> Iterator[tuple[Place, gym.Space[Any]]]:
    """Yield a space and all spaces inside it, with their places in an observation."""
    from gymnasium import spaces

    yield at, space
    if isinstance(space, spaces.Dict | spaces.Tuple):
        items = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        for key, child in items:
            yield from _nodes(child, (*at, key))


def _disturb(
    env: gym.Env[Any, Any], parts: Parts, hidden: Sequence[str], noise: Mapping[str, float]
) -> None:
    """Replace the class of an environment by one that hides components and adds noise."""
    gone: set[Place] = set()
    for name in hidden:
        places = parts.places(name)
        if not places:
            raise parts.unknown(name)
        gone.update(places)
    seen: dict[Place, float] = {}
    done, held = 0.0, {}
    # An exact name of a component wins, then actions and attributes, then a few words of a name.
    for name, deviation in noise.items():
        if places := parts.places(name, loosely=False):
            seen |= dict.fromkeys(places, deviation)
        elif name == ACTION:
            _check_real(env.action_space, f"the actions of {parts.id}")
            done = deviation
        elif name in parts.attributes:
            held[name] = deviation
        elif places := parts.places(name):
            seen |= dict.fromkeys(places, deviation)
        else:
            raise parts.unknown(name, (ACTION, *parts.attributes))
    inner = env.unwrapped
    space, see = _restrict(inner.observation_space, gone, seen, f"the observations of {parts.id}")
    if space is None:
        raise CwmError(f"no observation of {parts.id} would be left: hide fewer components")
    flat = _size(inner.observation_space)
    numbers = frozenset(place[0] for place in gone if flat and isinstance(place[0], int))
    words = "\n\n".join(_explain(hidden, noise))
    found = Disturbance(see, bool(gone or seen), flat, numbers, done, held, words)
    try:
        # A wrapper would not do: `hide` and `noise` act beneath the wrappers that exist already.
        inner.__class__ = _subclass(type(inner), found)
    except TypeError as error:
        raise CwmError(f"{parts.id} does not support --hide and --noise ({error})") from error
    inner.observation_space = space


def _check_real(space: gym.Space[Any], what: str) -> None:
    from gymnasium import spaces

    if not isinstance(space, spaces.Box) or space.dtype.kind != "f":
        raise CwmError(f"{what} are not real numbers: noise can only be added to real numbers")


def _restrict(
    space: Any, gone: set[Place], noise: Mapping[Place, float], what: str
) -> tuple[gym.Space[Any] | None, Eye]:
    """Return the visible part of a space, and a function that maps values to it.

    The space is None if everything is hidden.
    """
    from gymnasium import spaces

    if () in gone:
        return None, lambda value, rng: value
    if not gone and not noise:
        return space, lambda value, rng: value
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        return _restrict_array(space, gone, noise, what)
    named = isinstance(space, spaces.Dict)
    children = dict(space.spaces if isinstance(space, spaces.Dict) else enumerate(space.spaces))
    # Noise on the whole reaches every part, except parts that have their own noise.
    everywhere = {(): noise[()]} if () in noise else {}
    parts = {
        key: _restrict(
            child,
            {place[1:] for place in gone if place[0] == key},
            everywhere | {place[1:]: std for place, std in noise.items() if place[:1] == (key,)},
            what,
        )
        for key, child in children.items()
    }
    left = {key: (part, see) for key, (part, see) in parts.items() if part is not None}
    if not left:
        return None, lambda value, rng: value
    shown: dict[Any, Any] = {key: part for key, (part, _) in left.items()}
    if named:
        return spaces.Dict(shown), lambda value, rng: {
            key: see(value[key], rng) for key, (_, see) in left.items()
        }
    return spaces.Tuple(list(shown.values())), lambda value, rng: tuple(
        see(value[key], rng) for key, (_, see) in left.items()
    )


def _restrict_array(
    space: Any, gone: set[Place], noise: Mapping[Place, float], what: str
) -> tuple[gym.Space[Any] | None, Eye]:
    """Return the visible part of an array space, and a function that maps values to it.

    The function adds noise before it hides components.
    """
    import numpy as np
    from gymnasium import spaces

    deviation, is_picture = np.zeros(space.shape or ()), _is_picture(space)
    for place, std in noise.items():
        if not is_picture:
            _check_real(space, what)
        deviation[tuple(map(int, place)) or ...] = std * BRIGHTEST if is_picture else std
    kept: Any = ...
    if gone:
        kept = [number for number in range(_size(space)) if (number,) not in gone]
        if not kept:
            return None, lambda value, rng: value
    left = space
    if isinstance(space, spaces.Box) and not is_picture:
        # Noise from a normal distribution has no bounds.
        low, high = (
            np.where(deviation, end, bound) for end, bound in ((-inf, space.low), (inf, space.high))
        )
        left = spaces.Box(low[kept], high[kept], dtype=space.dtype.type)
    elif isinstance(space, spaces.MultiDiscrete):
        left = spaces.MultiDiscrete(
            space.nvec[kept], dtype=space.dtype.type, start=space.start[kept]
        )
    elif isinstance(space, spaces.MultiBinary):
        left = spaces.MultiBinary(len(kept))

    def see(value: Any, rng: Any) -> Any:
        array = np.asarray(value)
        if noise:
            array = array + deviation * rng.standard_normal(deviation.shape)
            if is_picture:
                array = array.round().clip(0, BRIGHTEST)
            array = array.astype(space.dtype)
        return array[kept].copy()  # the environment may change its array at the next step

    return left, see


def _subclass(kind: Any, found: Disturbance) -> type:
    """Return a subclass with noise on actions, attributes and observations."""
    import numpy as np

    def step(self: Any, action: Any) -> Any:
        if found.action:
            space = self.action_space
            action = action + found.action * self.np_random.standard_normal(space.shape)
            action = np.clip(action, space.low, space.high).astype(space.dtype)
        with _noisy_attributes(self, found.attributes):
            observation, *rest = kind.step(self, action)
        return found.see(observation, self.np_random), *rest

    def reset(self: Any, **options: Any) -> Any:
        observation, info = kind.reset(self, **options)
        return found.see(observation, self.np_random), info

    # With the same name and module, messages and versions refer to the original class.
    own = {name: getattr(kind, name) for name in ("__doc__", "__module__", "__qualname__")}
    return type(
        kind.__name__, (kind,), {**own, "step": step, "reset": reset, "_disturbance": found}
    )


@contextmanager
def _noisy_attributes(env: Any, attributes: Mapping[str, float]) -> Iterator[None]:
    """Add noise to attributes during a step; values that the step sets are kept."""
    held = vars(env)
    # An attribute of the class is shadowed during the step, and the shadow deleted after it.
    before = {name: held[name] for name in attributes if name in held}
    shaken = {
        name: getattr(env, name) + std * env.np_random.standard_normal()
        for name, std in attributes.items()
    }
    held.update(shaken)
    try:
        yield
    finally:
        # If the step has replaced the value, the attribute is a state and not a constant.
        for name, value in shaken.items():
            if held.get(name) is value and name in before:
                held[name] = before[name]
            elif held.get(name) is value:
                del held[name]


def _explain(hidden: Sequence[str], noise: Mapping[str, float]) -> Iterator[str]:
    """Yield paragraphs about hidden components and noise for a description."""
    if hidden:
        yield (
            "## Hidden\n"
            f"These components are not observed: {', '.join(f'`{name}`' for name in hidden)}. "
            "They keep changing, and later observations depend on them. The observed components "
            "are numbered as under Spaces, even if the documentation has other numbers and shapes."
        )
    if noise:
        yield (
            "## Noise\nAt every step, noise from a normal distribution is added:\n"
            + "\n".join(
                f"- to `{name}`, with a standard deviation of {deviation:g}"
                f"{' of their largest value' * (name == PIXELS)}"
                f"{', before it is clipped to its bounds' * (name in (ACTION, PIXELS))}."
                for name, deviation in noise.items()
            )
        )
