"""The interface of environment plugins, the conversion of Gymnasium spaces, and own environments.

Own environments are classes in Python files of the user.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

from cwm_cli._version import distributions_of
from cwm_cli.data.spaces import Space
from cwm_cli.errors import CwmError, EnvironmentFailure, UnknownNameError, describe_exception
from cwm_cli.text import first_few

if TYPE_CHECKING:
    import gymnasium as gym
    import numpy as np

    from cwm_cli.data.objects import ObjectSchema
    from cwm_cli.envs.text_view import TextView


MAX_COMPONENTS = 10_000
"""Largest number of components of an observation that is not a picture."""

LONGEST_TEXT = 2_000
"""Characters of a text from a space without a limit."""


class Rewinder(Protocol):
    """Saves and restores the state of an environment, without its wrappers.

    A saved state can be loaded into another instance with the same arguments. `how` is the name of
    the method, in one word.
    """

    how: str

    def save(self, *, chance: bool = True) -> Any:
        """Return the complete state of the environment; later steps never change it.

        Args:
            chance: Include the states of the random generators.
        """

    def load(self, state: Any, *, chance: bool = True) -> None:
        """Restore a saved state.

        Args:
            state: The result of `save`.
            chance: Restore the random generators too.
        """

    def generators(self) -> Sequence[Any]:
        """Return the random generators that the environment draws from, each once."""

    def returns(self, states: Sequence[Any], plans: np.ndarray) -> tuple[np.ndarray, int] | None:
        """Return the sums of rewards of plans from saved states, and the number of steps.

        Args:
            states: Saved states.
            plans: Actions with the shape (states, plans, steps, *shape of an action).

        Returns:
            The sums with the shape (states, plans), and the number of steps. None if stepping is
            the fastest method.
        """


@dataclass(frozen=True)
class TwoPlayers:
    """The facts about a game of two players. Each step is the move of one player.

    The reward of a step belongs to the player who moves, and the other player gets the opposite.
    The observation is a dict with the whole state, from the same point of view in every step.

    Args:
        turn: The entry of the observation with the player to move, 0 or 1.
        to_move: Return the player to move in the current state of an environment.
    """

    turn: str
    to_move: Callable[[gym.Env[Any, Any]], int]


NamedComponent = tuple[str, tuple[str, ...]]
"""Name of a component, and the labels of its numbers, counted from 0; without labels, none."""


@dataclass(frozen=True)
class EnvironmentSpec:
    """An environment and the text that describes it to a language model.

    The fields are functions of a made environment, unless noted otherwise.

    Args:
        id: The name of the environment.
        make: Create the environment from its own arguments (`--env-arg`).
        describe: Return the description for a language model.
        versions: Return the versions of the packages that decide the behaviour; no argument.
        note: A message that is shown when the environment is looked up.
        rewinder: Return a rewinder. If it returns None, the attributes are copied, as for any
            environment.
        valid_actions: Return the valid actions in the current state, None if all are valid.
        restore: Set an environment without wrappers to the state of an observation. Return False if
            the observation does not determine the state. It may reset the environment.
        layout: Return plain data that describe `restore`, for `rendering.py` of an exported
            package, which works without `cwm`. None if restoring is more than setting numbers.
        shift: Change the constants and rules in place, beneath the wrappers, with random numbers
            from a generator. The changes are small, so that the task keeps its meaning; the spaces
            never change. `describe` reveals none of the changed constants.
        objects: Return the meaning of the object tables, if the observations are objects.
        action_names: Return the names of the actions, in order.
        text: Return a view that describes transitions in words.
        game: The players, if it is a game of two players with valid actions; no function.
        components: Return the names and labels of the observation components, and of the
            components of an action, in order. By default the names are in the description.
    """

    id: str
    make: Callable[..., gym.Env[Any, Any]]
    describe: Callable[[gym.Env[Any, Any]], str]
    versions: Callable[[], Mapping[str, str]]
    note: str = ""
    rewinder: Callable[[gym.Env[Any, Any]], Rewinder | None] | None = None
    valid_actions: Callable[[gym.Env[Any, Any]], Sequence[int] | None] | None = None
    restore: Callable[[gym.Env[Any, Any], Any], bool] | None = None
    layout: Callable[[gym.Env[Any, Any]], Mapping[str, Any] | None] | None = None
    shift: Callable[[gym.Env[Any, Any], np.random.Generator], None] | None = None
    objects: Callable[[gym.Env[Any, Any]], ObjectSchema | None] | None = None
    action_names: Callable[[gym.Env[Any, Any]], Sequence[str]] | None = None
    text: Callable[[gym.Env[Any, Any]], TextView] | None = None
    components: (
        Callable[[gym.Env[Any, Any]], tuple[Sequence[NamedComponent], Sequence[NamedComponent]]]
        | None
    ) = None
    game: TwoPlayers | None = None

    def has_simulator(self, env_args: Mapping[str, Any]) -> bool:
        """Return whether the environment defines `step` and `reset`, so that agents can act in it.

        A log without a simulator has an environment that only defines its spaces.
        """
        with closing(self.make(**env_args)) as env:
            return is_simulator(env)


def refuse_two_players(spec: EnvironmentSpec, command: str) -> None:
    """Raise CwmError for a game of two players if a command acts for one agent."""
    if spec.game is not None:
        raise CwmError(
            f"{spec.id} is a game of two players, and `{command}` acts for one agent: run "
            "`cwm synthesize`, then `cwm plan`"
        )


def is_simulator(env: gym.Env[Any, Any]) -> bool:
    """Return whether an environment defines `step` and `reset`."""
    import gymnasium as gym

    kind = type(env.unwrapped)
    return kind.step is not gym.Env.step and kind.reset is not gym.Env.reset


@contextmanager
def making(name: str, env_args: Mapping[str, Any], known: Iterable[str]) -> Iterator[None]:
    """Refuse unknown arguments of an environment, and say in one line why it cannot be made."""
    for argument in sorted(env_args.keys() - set(known)):
        raise UnknownNameError(f"argument of {name}", argument, known)
    try:
        yield
    except (TypeError, ValueError, AssertionError) as error:
        given = ", ".join(f"{argument}={value!r}" for argument, value in env_args.items())
        raise CwmError(f"{name} cannot be made with {given}: {error}") from error


def space_of(space: gym.Space[Any], what: str = "observations") -> Space:
    """Return a Gymnasium space as plain data.

    Args:
        space: The space.
        what: The name of its values in messages.

    Raises:
        CwmError: The space is too large, or `cwm` does not support it.
    """
    from gymnasium import spaces

    if isinstance(space, spaces.Tuple):
        return Space("tuple", children=tuple(space_of(child, what) for child in space.spaces))
    if isinstance(space, spaces.Dict):
        if not all(isinstance(key, str) for key in space.spaces):
            hint = "choose an environment with text keys"
            raise CwmError(f"{what} have keys that are not text: {hint}")
        children = tuple(space_of(child, what) for child in space.spaces.values())
        return Space("dict", keys=tuple(space.spaces), children=children)
    if isinstance(space, spaces.Text):
        return Space("text", max_length=int(space.max_length))
    if isinstance(space, spaces.Discrete):
        return Space("discrete", low=(int(space.start),), high=(int(space.start + space.n - 1),))
    if isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary | spaces.Box):
        return _array_space(space, what)
    if isinstance(space.sample(), str):  # a space of a plugin, such as sentences of a grammar
        return Space("text", max_length=LONGEST_TEXT)
    raise CwmError(
        f"{what} of a space {type(space).__name__} are not supported: choose an environment "
        "with Tuple, Dict, Text, Discrete, MultiDiscrete, MultiBinary, Box"
    )


def _array_space(
    space: gym.spaces.MultiDiscrete | gym.spaces.MultiBinary | gym.spaces.Box, what: str
) -> Space:
    from gymnasium import spaces

    shape, dtype = tuple(int(length) for length in space.shape), str(space.dtype)
    if isinstance(space, spaces.MultiBinary):
        return Space("multibinary", dtype, shape, (0,) * prod(shape), (1,) * prod(shape))
    if isinstance(space, spaces.MultiDiscrete):
        low, high = space.start.ravel().tolist(), (space.start + space.nvec - 1).ravel().tolist()
        return Space("multidiscrete", dtype, shape, tuple(low), tuple(high))
    low, high = (bound.ravel().astype(float).tolist() for bound in (space.low, space.high))
    found = Space("box", dtype, shape, tuple(low), tuple(high))
    across = "x".join(map(str, shape))
    if found.is_picture and what != "observations":
        raise CwmError(f"{what} are pixels ({across}): choose an environment with few numbers")
    # A picture has bytes: enough for a screen of 210 x 160, not for a photo.
    most = 1 << 18 if found.is_picture else MAX_COMPONENTS
    if found.size > most:
        raise CwmError(f"{what} have {found.size:,} components ({across}); the limit is {most:,}")
    return found


def gym_space_of(space: Space, characters: str = "") -> gym.Space[Any]:
    """Return the Gymnasium space of a description.

    Args:
        space: The description. Bounds outside the range of its type are clipped to the range.
        characters: The characters of texts.
    """
    import numpy as np
    from gymnasium import spaces

    if space.kind in ("tuple", "dict"):
        parts = [gym_space_of(child, characters) for child in space.children]
        named = dict(zip(space.keys, parts, strict=True)) if space.kind == "dict" else {}
        return spaces.Dict(named) if space.kind == "dict" else spaces.Tuple(parts)
    if space.kind == "text":
        return spaces.Text(max(1, space.max_length), min_length=0, charset=characters)
    if space.kind == "multibinary":
        return spaces.MultiBinary(space.shape[0] if len(space.shape) == 1 else space.shape)
    if space.kind == "discrete":
        return spaces.Discrete(space.count, start=int(space.low[0]))
    dtype = np.dtype(space.dtype)
    low, high = (np.reshape(bound, space.shape) for bound in (space.low, space.high))
    if space.kind == "multidiscrete":
        counts = (high - low + 1).astype(np.int64)
        return spaces.MultiDiscrete(counts, dtype=dtype.type, start=low.astype(np.int64))
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        # The largest 64-bit integers round up to a float that is out of range.
        most = np.nextafter(np.float64(info.max), 0) if info.bits == 64 else info.max
        low, high = np.clip(low, info.min, most), np.clip(high, info.min, most)
    return spaces.Box(low.astype(dtype), high.astype(dtype), space.shape, dtype.type)


def name_in_file(name: str) -> str:
    """Return the `module:environment` that a file holds, and let Python find its folder.

    Args:
        name: `FILE.py` if the file holds one environment, or `FILE.py:Name`. Any other name is
            returned unchanged.

    Raises:
        CwmError: The file is missing or fails, or it holds no environment or several.
    """
    file, _, chosen = (name, "", "") if name.endswith(".py") else name.rpartition(":")
    if not file.endswith(".py"):
        return name
    path = Path(file).resolve()
    if not path.is_file():
        raise CwmError(f"there is no file {file}: name a .py file or an environment id")
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # last, so that no file replaces an installed package
    try:
        module = import_module(path.stem)
    except ModuleNotFoundError as error:
        raise EnvironmentFailure(
            f"{file} cannot be imported: {describe_exception(error)}", error
        ) from error
    # Python returns a module that was imported before, or found earlier on the path.
    if Path(module.__file__ or "").resolve() != path:
        raise CwmError(f"{file} has the name of another Python module: rename the file")
    return f"{path.stem}:{chosen or _only_environment(module, file)}"


def name_in_commands(name: str) -> str:
    """Return the name that finds an environment again: with its file if another folder holds it."""
    module, _, bare = name.rpartition(":")
    file = Path(getattr(sys.modules.get(module), "__file__", None) or "")
    if not module or file.stem != module or file.parent == Path.cwd() or distributions_of(module):
        return name
    return f"{os.path.relpath(file)}:{bare}"


def import_module(name: str) -> ModuleType:
    """Import a module that defines environments.

    Raises:
        CwmError: The module raised an exception or called `sys.exit`.
        ModuleNotFoundError: There is no such module, or one that it imports is missing.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        raise
    except (Exception, SystemExit) as error:
        raise EnvironmentFailure(
            f"{name} cannot be imported: {describe_exception(error)}", error
        ) from error


def environments_in(module: ModuleType) -> tuple[list[str], list[str]]:
    """Return the ids that a module registers, and the names of its environment classes."""
    import gymnasium as gym

    def is_environment(value: Any) -> bool:
        return (
            inspect.isclass(value)
            and value.__module__ == module.__name__
            and issubclass(value, gym.Env)
            and not issubclass(value, gym.Wrapper)
        )

    def is_inside(entry_point: Any) -> bool:
        if isinstance(entry_point, str):
            return entry_point.partition(":")[0] == module.__name__
        return getattr(entry_point, "__module__", "") == module.__name__

    ids = [name for name, spec in gym.registry.items() if is_inside(spec.entry_point)]
    return ids, [name for name, value in vars(module).items() if is_environment(value)]


def _only_environment(module: ModuleType, file: str) -> str:
    """Return the only environment that a file registers, or else the only one that it defines."""
    ids, classes = environments_in(module)
    for names in (ids, classes):
        if len(names) == 1:
            return names[0]
    if not (found := classes or ids):
        raise CwmError(f"{file} defines no environment: derive a class from gymnasium.Env")
    # Python finds modules of the current folder by name, others need their file.
    prefix = module.__name__ if Path(file).resolve().parent == Path.cwd() else file
    choices = first_few([f"{prefix}:{name}" for name in found], 6)
    raise CwmError(f"{file} defines several environments: add --env with one of {choices}")
