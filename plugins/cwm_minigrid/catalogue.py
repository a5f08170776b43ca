"""The environments of the package minigrid, made so that all of their objects are seen, or few."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from cwm_cli.envs.films import QUIET
from cwm_cli.envs.spec import EnvironmentSpec
from cwm_cli.errors import CwmError, UnknownNameError, install_command

if TYPE_CHECKING:
    import gymnasium as gym

    from cwm_cli.data.objects import ObjectSchema
    from cwm_cli.envs.text_view import TextView
    from cwm_minigrid.grid import GridRewinder


def specify(name: str) -> EnvironmentSpec:
    """Describe how to make an environment, and what can be done with it."""
    return EnvironmentSpec(
        id=name,
        make=partial(_make, name),
        describe=_describe,
        versions=partial(_versions, name),
        rewinder=_rewinder,
        restore=_restore,
        objects=_objects,
        action_names=_action_names,
        text=_words,
    )


def _load(name: str) -> None:
    """Import the package without a screen and without greetings, or say how to install it."""
    os.environ.update({key: text for key, text in QUIET.items() if key not in os.environ})
    try:
        import minigrid  # noqa: F401  # it registers its environments
    except ModuleNotFoundError as error:
        raise CwmError(
            f"{name} needs {error.name}: {install_command('cwm-cli[minigrid]')}"
        ) from error


def _make(
    name: str,
    /,
    *,
    render_mode: str | None = None,
    max_steps: int | None = None,
    view: str = "objects",
    **env_args: Any,
) -> gym.Env[Any, Any]:
    """Make an environment, or say in one line why not."""
    _load(name)
    import gymnasium
    from gymnasium.envs.registration import EnvSpec

    from cwm_minigrid.grid import VIEWS, ObjectGrid

    if name not in gymnasium.registry:
        known = [known for known in gymnasium.registry if known.startswith("MiniGrid-")]
        raise UnknownNameError("environment", name, known)
    if view not in VIEWS:
        raise UnknownNameError(f"view of {name}", str(view), VIEWS)
    given = env_args | ({} if max_steps is None else {"max_steps": max_steps})
    try:
        inner: Any = gymnasium.make(name, disable_env_checker=True, **given).unwrapped
        env = ObjectGrid(inner, render_mode, view)
    except gymnasium.error.DependencyNotInstalled as error:
        raise CwmError(f"{name} cannot be made: {error}") from error
    except Exception as error:
        if not given and render_mode is None:
            raise
        said = ", ".join(f"{key}={value!r}" for key, value in given.items())
        reason = " ".join(str(error).partition(" was raised from ")[0].split())
        raise CwmError(f"{name} cannot be made with {said} ({reason})") from error
    env.spec = EnvSpec(name, disable_env_checker=True)
    return gymnasium.wrappers.TimeLimit(env, env.limit)


def _describe(env: gym.Env[Any, Any]) -> str:
    from cwm_minigrid.guide import guide

    return guide(_grid(env))


def _versions(name: str) -> Mapping[str, str]:
    """Return the versions of the packages that decide how a grid behaves."""
    _load(name)
    return {name: version(name) for name in ("gymnasium", "minigrid", "numpy")}


def _action_names(env: gym.Env[Any, Any]) -> tuple[str, ...]:
    from cwm_minigrid.grid import ACTIONS

    return ACTIONS


def _grid(env: gym.Env[Any, Any]) -> Any:
    return env.unwrapped


def _rewinder(env: gym.Env[Any, Any]) -> GridRewinder:
    """Return what saves and restores a grid by its objects."""
    from cwm_minigrid.grid import GridRewinder

    return GridRewinder(_grid(env))


def _restore(env: gym.Env[Any, Any], observation: Any) -> bool:
    """Stand a grid at an observation; False where that does not tell all that matters."""
    return bool(_grid(env).restore(observation))


def _words(env: gym.Env[Any, Any]) -> TextView:
    """Put a grid into words; a partial view is refused."""
    from cwm_minigrid.words import GridWords

    return GridWords(_grid(env))


def _objects(env: gym.Env[Any, Any]) -> ObjectSchema | None:
    """Say what the numbers of an object stand for, where objects are what is seen."""
    from cwm_minigrid.grid import SCHEMA

    return SCHEMA if _grid(env).view == "objects" else None
