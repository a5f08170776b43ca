"""Variants of environments: other constants (`shift`), hidden components (`hide`) and `noise`.

Every environment takes these arguments beside its own, so datasets, run configurations and cache
keys contain them.

`shift` draws other constants and rules for the same system from a seed. A language model that
knows an environment by heart predicts it without any data, but not its shifted variants.

`hide` and `noise` act beneath the wrappers, in a subclass of the environment's class. Noise has a
random generator of its own, saving and restoring covers the full state, and planners that simulate
the environment itself see the full state.
"""

from __future__ import annotations

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
"""The argument that is reserved for the seed of a shift."""

HIDE, NOISE = "hide", "noise"
"""The arguments that are reserved for names of what is hidden, and for standard deviations by
name."""

VELOCITIES, ACTION, OBSERVATION = "velocities", "action", "observation"
"""Names for all components that are documented as velocities or speeds, for what is done, and for
all that is observed."""

PIXELS, BRIGHTEST = "pixels", 255
"""The name for all pixels; the noise on them is a share of the largest value of one."""

SPEED = re.compile(r"\b(?:velocit|speed)", re.IGNORECASE)

MOST_NAMES = 12
"""Names are listed up to so many."""

Place = tuple[str | int, ...]
"""Where a part of an observation is: keys of dicts, numbers in tuples, the number of a component
of an array; nothing for all of it."""

Eye = Callable[[Any, Any], Any]
"""Turns an observation into what is seen of it, with noise from a random generator."""


def with_variants(spec: EnvironmentSpec) -> EnvironmentSpec:
    """Add the arguments `shift`, `hide` and `noise` to `make`."""
    return with_disturbances(replace(spec, make=partial(_shifted, spec)))


def check_shift(spec: EnvironmentSpec, seed: int | None) -> None:
    """Raise `CwmError` if a seed is given that is invalid or that the environment cannot use."""
    if seed is None:
        return
    if spec.shift is None:
        raise CwmError(f"{spec.id} has no shifted variants: leave out --shift")
    if type(seed) is not int or seed < 0:
        raise CwmError(f"--shift {seed!r} is not a seed: give a whole number of at least 0")


def _shifted(spec: EnvironmentSpec, /, **env_args: Any) -> gym.Env[Any, Any]:
    import numpy as np  # the command line imports this module for the names of the arguments

    seed = env_args.pop(SHIFT, None)
    check_shift(spec, seed)
    env = spec.make(**env_args)
    if seed is not None and spec.shift is not None:
        spec.shift(env, np.random.default_rng(seed))
    return env


@dataclass(frozen=True)
class Disturbance:
    """What is hidden of an environment, and what noise is added to what.

    `see` turns an observation into what is seen of it, which is something else where it is
    `altered`; of the `size` components of a flat observation those in `gone` are hidden. `action`
    is the standard deviation of the noise on actions, `attributes` has those of the noise on
    numbers that the environment holds. `words` say it all.
    """

    see: Eye
    altered: bool
    size: int
    gone: frozenset[int]
    action: float
    attributes: Mapping[str, float]
    words: str


def with_disturbances(spec: EnvironmentSpec) -> EnvironmentSpec:
    """Let `make` take the arguments `hide` and `noise`; what else the spec does follows them."""
    return replace(
        spec,
        make=partial(_made, spec),
        describe=partial(_described, spec),
        restore=spec.restore and partial(_restored, spec),
        layout=spec.layout and partial(_layout, spec),
        objects=spec.objects and partial(_objects, spec),
        text=spec.text and partial(_text, spec),
    )


def disturbance_of(env: gym.Env[Any, Any]) -> Disturbance | None:
    """Return what is hidden of an environment and what noise is added, None where nothing is."""
    return getattr(type(env.unwrapped), "_disturbance", None)


def _made(spec: EnvironmentSpec, /, **env_args: Any) -> gym.Env[Any, Any]:
    hidden, noise = _names(env_args.pop(HIDE, None)), _deviations(env_args.pop(NOISE, None))
    env = spec.make(**env_args)
    if not hidden and not noise:
        return env
    try:
        _disturb(env, Parts.of(spec, env), hidden, noise)
    except BaseException:
        env.close()
        raise
    return env


def _described(spec: EnvironmentSpec, env: gym.Env[Any, Any]) -> str:
    text, found = spec.describe(env), disturbance_of(env)
    if found is None:
        return text
    return f"{without_components(text, found.size, found.gone)}\n\n{found.words}"


def _restored(spec: EnvironmentSpec, env: gym.Env[Any, Any], observation: Any) -> bool:
    """Stand an environment at an observation, if that is still all that is known of a state."""
    found = disturbance_of(env)
    return not (found and found.altered) and bool(spec.restore and spec.restore(env, observation))


def _layout(spec: EnvironmentSpec, env: gym.Env[Any, Any]) -> Mapping[str, Any] | None:
    """Say how a state is read from an observation, if that is still all that is known of it."""
    found = disturbance_of(env)
    return None if spec.layout is None or (found and found.altered) else spec.layout(env)


def _objects(spec: EnvironmentSpec, env: gym.Env[Any, Any]) -> ObjectSchema | None:
    from cwm_cli.data.objects import OBJECTS

    shown = getattr(env.observation_space, "spaces", {})
    return spec.objects(env) if spec.objects and OBJECTS in shown else None


def _text(spec: EnvironmentSpec, env: gym.Env[Any, Any]) -> TextView:
    """Put an environment into words, if all of it is seen as it is."""
    found = disturbance_of(env)
    if spec.text is None or (found and found.altered):
        raise CwmError(
            f"{spec.id} has words only for undisturbed observations: leave out --{HIDE} and "
            f"--{NOISE}"
        )
    return spec.text(env)


def _names(given: Any) -> list[str]:
    """Read what is to be hidden: a name, or a list of names and numbers."""
    names = [] if given is None else given if isinstance(given, list | tuple) else [given]
    if not all(type(name) in (str, int) for name in names):
        raise CwmError(f"{HIDE}={given!r} is not a list of names: write --hide NAME for each")
    return [str(name) for name in names]


def _deviations(given: Any) -> dict[str, float]:
    """Read standard deviations by name; nothing is left of those that are 0."""
    given = {} if given is None else given
    if not isinstance(given, Mapping):
        raise CwmError(f"{NOISE}={given!r} is not a mapping: write --noise NAME=STD for each")
    for name, deviation in given.items():
        if type(deviation) not in (int, float) or not 0 <= deviation < inf:
            hint = "a standard deviation must be finite and not negative"
            raise CwmError(f"invalid noise {name}={deviation!r}: {hint}")
    return {str(name): float(deviation) for name, deviation in given.items() if deviation}


class Parts(NamedTuple):
    """What can be hidden or disturbed in an environment, by name.

    A name of `observed` may be that of several parts, and each part may have several places.
    `attributes` are the real numbers that the environment holds.
    """

    id: str
    env: gym.Env[Any, Any]
    observed: Mapping[str, Sequence[tuple[Place, ...]]]
    attributes: tuple[str, ...]

    @classmethod
    def of(cls, spec: EnvironmentSpec, env: gym.Env[Any, Any]) -> Parts:
        """Find the names in the spaces of an environment, its documentation and its attributes."""
        space, inner = env.observation_space, env.unwrapped
        if space is not inner.observation_space:
            hint = "leave out --hide and --noise"
            raise CwmError(f"a wrapper changes the observations of {spec.id}: {hint}")
        observed: dict[str, list[tuple[Place, ...]]] = defaultdict(list)
        for place in _places(space):
            observed[".".join(map(str, place))].append((place,))
        if pictures := [place for place, leaf in _leaves(space) if _is_picture(leaf)]:
            observed[PIXELS] = [tuple(pictures)]
        speeds: set[Place] = set()
        for part in documented_parts(spec.describe(env), _size(space)):
            places: tuple[Place, ...] = tuple((number,) for number in part.numbers)
            observed[part.name].append(places)
            speeds.update(places if SPEED.search(part.says) else ())
        if speeds:
            observed[VELOCITIES] = [tuple(sorted(speeds))]
        held: dict[str, Any] = {}
        for each in (*reversed(type(inner).__mro__), inner):
            held |= vars(each)
        floats = sorted(name for name, value in held.items() if isinstance(value, float))
        return cls(spec.id, env, observed, tuple(floats))

    def places(self, name: str, *, loosely: bool = True) -> tuple[Place, ...]:
        """Return where a part of the observation is, nothing where none is called so.

        If `loosely`, the name may be a few words of that of a single part.
        """
        wanted = _plain(name)
        if wanted == OBSERVATION and name not in self.observed:
            return ((),)
        called = [known for known in self.observed if _plain(known) == wanted]
        if not called and loosely:
            called = [known for known in self.observed if f" {wanted} " in f" {_plain(known)} "]
        found = {places: known for known in called for places in self.observed[known]}
        if len(found) > 1:
            numbers = [".".join(map(str, places[0])) for places in found if len(places) == 1]
            raise CwmError(f"{name!r} is ambiguous in {self.id}: write {' or '.join(numbers)}")
        return next(iter(found), ())

    def hidden(self, name: str) -> tuple[Place, ...]:
        """Return where something is that is to be hidden, or say what there is."""
        places = self.places(name)
        if not places:
            what, known = f"observation component of {self.id}", self._listed(())
            raise UnknownNameError(what, name, self.observed, known)
        return places

    def unknown(self, name: str) -> UnknownNameError:
        """Say what can be disturbed."""
        others = (ACTION, *self.attributes)
        known = self._listed(others)
        return UnknownNameError(
            f"observation component or attribute of {self.id}",
            name,
            [*self.observed, *others],
            known,
        )

    def _listed(self, others: Sequence[str]) -> str:
        """List what there is, numbers as a range and the first of many names."""
        numbers = [int(name) for name in self.observed if name.isdecimal()]
        names = [*(name for name in self.observed if not name.isdecimal()), *others]
        listed = [f"a number from 0 to {max(numbers)}"] if numbers else []
        listed += [*names[:MOST_NAMES], *["and so on"] * (len(names) > MOST_NAMES)]
        return f"choose {', '.join(listed)}" if listed else "the observation is a single value"


def _plain(name: str) -> str:
    """Return a name without what it may be written with or without."""
    return " ".join(re.split(r"[\s_`-]+", name.lower())).strip()


def _is_picture(space: gym.Space[Any]) -> bool:
    """Whether a part of an observation is a picture."""
    from cwm_cli.envs.spec import space_of  # numpy comes with it

    return space_of(space).is_picture


def _size(space: gym.Space[Any]) -> int:
    """Return how many components a flat observation has, 0 for any other."""
    shape = space.shape or ()
    return int(shape[0]) if len(shape) == 1 else 0


def _places(space: gym.Space[Any], at: Place = ()) -> Iterator[Place]:
    """Yield all places in an observation but that of all of it."""
    from gymnasium import spaces

    if at:
        yield at
    if isinstance(space, spaces.Dict):
        for key, child in space.spaces.items():
            yield from _places(child, (*at, key))
    elif isinstance(space, spaces.Tuple):
        for number, child in enumerate(space.spaces):
            yield from _places(child, (*at, number))
    else:
        yield from ((*at, number) for number in range(_size(space)))


def _leaves(space: gym.Space[Any], at: Place = ()) -> Iterator[tuple[Place, gym.Space[Any]]]:
    """Yield the parts of an observation that are no dicts and no tuples, and where they are."""
    from gymnasium import spaces

    if not isinstance(space, spaces.Dict | spaces.Tuple):
        yield at, space
        return
    parts = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
    for key, child in parts:
        yield from _leaves(child, (*at, key))


def _disturb(
    env: gym.Env[Any, Any], parts: Parts, hidden: Sequence[str], noise: Mapping[str, float]
) -> None:
    """Let a class that hides and adds noise take the place of that of an environment."""
    gone = {place for name in hidden for place in parts.hidden(name)}
    seen: dict[Place, float] = {}
    done, held = 0.0, {}
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
            raise parts.unknown(name)
    inner = env.unwrapped
    space, see = _seen(inner.observation_space, gone, seen, f"the observations of {parts.id}")
    if space is None:
        raise CwmError(f"no observation of {parts.id} would be left: hide fewer components")
    flat = _size(inner.observation_space)
    numbers = frozenset(place[0] for place in gone if flat and isinstance(place[0], int))
    words = "\n\n".join(_words(hidden, noise))
    found = Disturbance(see, bool(gone or seen), flat, numbers, done, held, words)
    try:
        inner.__class__ = _disturbed(type(inner), found)
    except TypeError as error:
        raise CwmError(f"{parts.id} does not support --hide and --noise ({error})") from error
    inner.observation_space = space


def _check_real(space: gym.Space[Any], what: str) -> None:
    from gymnasium import spaces

    if not isinstance(space, spaces.Box) or space.dtype.kind != "f":
        raise CwmError(f"{what} are not real numbers: noise can only be added to real numbers")


def _seen(
    space: Any, gone: set[Place], noise: Mapping[Place, float], what: str
) -> tuple[gym.Space[Any] | None, Eye]:
    """Return what is left of a space, nothing if all is gone, and what makes it of a value."""
    from gymnasium import spaces

    if () in gone:
        return None, lambda value, rng: value
    if not gone and not noise:
        return space, lambda value, rng: value
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        return _seen_array(space, gone, noise, what)
    named = isinstance(space, spaces.Dict)
    children = dict(space.spaces if isinstance(space, spaces.Dict) else enumerate(space.spaces))
    everywhere = {(): noise[()]} if () in noise else {}
    parts = {
        key: _seen(
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


def _seen_array(
    space: Any, gone: set[Place], noise: Mapping[Place, float], what: str
) -> tuple[gym.Space[Any] | None, Eye]:
    """Return what is left of an array, and what makes it of a value: noise comes first."""
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
        return array[kept].copy()

    return left, see


def _disturbed(kind: Any, found: Disturbance) -> type:
    """Return a class that hides what another shows, and adds noise before and after its steps."""
    import numpy as np

    def step(self: Any, action: Any) -> Any:
        if found.action:
            space = self.action_space
            action = action + found.action * self.np_random.standard_normal(space.shape)
            action = np.clip(action, space.low, space.high).astype(space.dtype)
        with _shaken(self, found.attributes):
            observation, *rest = kind.step(self, action)
        return found.see(observation, self.np_random), *rest

    def reset(self: Any, **options: Any) -> Any:
        observation, info = kind.reset(self, **options)
        return found.see(observation, self.np_random), info

    own = {name: getattr(kind, name) for name in ("__doc__", "__module__", "__qualname__")}
    return type(
        kind.__name__, (kind,), {**own, "step": step, "reset": reset, "_disturbance": found}
    )


@contextmanager
def _shaken(env: Any, attributes: Mapping[str, float]) -> Iterator[None]:
    """Add noise to attributes for as long as a step takes; what that sets itself stays."""
    held = vars(env)
    before = {name: held[name] for name in attributes if name in held}
    shaken = {
        name: getattr(env, name) + std * env.np_random.standard_normal()
        for name, std in attributes.items()
    }
    held.update(shaken)
    try:
        yield
    finally:
        for name, value in shaken.items():
            if held.get(name) is value and name in before:
                held[name] = before[name]
            elif held.get(name) is value:
                del held[name]


def _words(hidden: Sequence[str], noise: Mapping[str, float]) -> Iterator[str]:
    """Yield what a description has to say besides."""
    if hidden:
        yield (
            "## Hidden\n"
            f"Not all of this is observed: hidden are {', '.join(f'`{name}`' for name in hidden)}. "
            "They go on changing, and what follows depends on them. What is still observed is "
            "numbered as under Spaces, whatever the documentation says of numbers and shapes."
        )
    if noise:
        yield (
            "## Noise\nDrawn anew at every step, from a normal distribution, and added:\n"
            + "\n".join(
                f"- to `{name}`, with a standard deviation of {deviation:g}"
                f"{' of their largest value' * (name == PIXELS)}"
                f"{', before it is clipped to its bounds' * (name in (ACTION, PIXELS))}."
                for name, deviation in noise.items()
            )
        )
