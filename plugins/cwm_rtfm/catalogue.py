"""The game as environments that can be made, described and restored."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, cast

from cwm_cli.envs.spec import EnvironmentSpec
from cwm_cli.errors import CwmError, UnknownNameError
from cwm_rtfm.describing import describe
from cwm_rtfm.game import REVISION, Rtfm

if TYPE_CHECKING:
    import gymnasium as gym


def specify(name: str, *, shuffled: bool) -> EnvironmentSpec:
    """Describe how to make an environment, and what can be done with it."""
    return EnvironmentSpec(
        id=name,
        make=partial(_make, name, shuffled),
        describe=describe,
        versions=_versions,
        valid_actions=_valid_actions,
        restore=_restore,
    )


def _make(name: str, shuffled: bool, /, **env_args: Any) -> gym.Env[Any, Any]:
    """Make an environment, or say in one line why not."""
    known = set(inspect.signature(Rtfm).parameters) - {"shuffled"}
    for argument in sorted(env_args.keys() - known):
        raise UnknownNameError(f"argument of {name}", argument, known)
    try:
        return Rtfm(shuffled=shuffled, **env_args)
    except (TypeError, ValueError) as error:
        given = ", ".join(f"{argument}={value!r}" for argument, value in env_args.items())
        raise CwmError(f"{name} cannot be made with {given}: {error}") from error


def _versions() -> Mapping[str, str]:
    """Name what decides how the game goes, with its versions."""
    return {"rtfm": REVISION} | {name: version(name) for name in ("gymnasium", "numpy")}


def _valid_actions(env: gym.Env[Any, Any]) -> Sequence[int]:
    """Return the actions that are allowed where a game stands."""
    return cast(Rtfm, env.unwrapped).valid_actions()


def _restore(env: gym.Env[Any, Any], observation: Any) -> bool:
    """Stand a game at an observation; False where it is none of the game."""
    return cast(Rtfm, env.unwrapped).restore(observation)
