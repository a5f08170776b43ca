"""Specifications of the MiniGrid environments, which `ObjectGrid` wraps."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, cast

from cwm_cli.envs.films import QUIET
from cwm_cli.envs.spec import EnvironmentSpec
from cwm_cli.errors import CwmError, UnknownNameError, install_command

if TYPE_CHECKING:
    import gymnasium as gym

    from cwm_cli.data.objects import ObjectSchema
    from cwm_cli.envs.text_view import TextView
    from cwm_minigrid.grid import GridRewinder, ObjectGrid


def specify(name: str) -> EnvironmentSpec:
    """Return the specification of a MiniGrid environment."""
    return EnvironmentSpec(
        id=name,
        make=partial(_make, name),
        describe=_describe,
        versions=partial(_versions, name),
        rewinder=_rewinder,
        restore=lambda env, observation: _grid(env).restore(observation),
        objects=_objects,
        action_names=_action_names,
        text=_text_view,
    )


def _import_minigrid(name: str) -> None:
    """Import minigrid without a screen and messages; raise `CwmError` if it is not installed."""
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
    """Make an environment.

    Args:
        name: The id of the environment.
        render_mode: None, "rgb_array" or "ansi".
        max_steps: Step limit of an episode; None for the default of the package.
        view: One of `VIEWS`.
        env_args: Further arguments of the package.

    Raises:
        CwmError: The id, the view or an argument is invalid, or minigrid is not installed.
    """
    _import_minigrid(name)
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
        arguments = ", ".join(f"{key}={value!r}" for key, value in given.items())
        reason = " ".join(str(error).partition(" was raised from ")[0].split())
        raise CwmError(f"{name} cannot be made with {arguments} ({reason})") from error
    env.spec = EnvSpec(name, disable_env_checker=True)
    return gymnasium.wrappers.TimeLimit(env, env.limit)


def _grid(env: gym.Env[Any, Any]) -> ObjectGrid:
    return cast("ObjectGrid", env.unwrapped)


def _describe(env: gym.Env[Any, Any]) -> str:
    from cwm_minigrid.guide import guide

    return guide(_grid(env))


def _versions(name: str) -> Mapping[str, str]:
    """Return the versions of the packages that determine the behaviour of a grid."""
    _import_minigrid(name)
    return {name: version(name) for name in ("gymnasium", "minigrid", "numpy")}


def _action_names(env: gym.Env[Any, Any]) -> tuple[str, ...]:
    from cwm_minigrid.grid import ACTIONS

    return ACTIONS


def _rewinder(env: gym.Env[Any, Any]) -> GridRewinder:
    from cwm_minigrid.grid import GridRewinder

    return GridRewinder(_grid(env))


def _text_view(env: gym.Env[Any, Any]) -> TextView:
    from cwm_minigrid.words import GridWords

    return GridWords(_grid(env))


def _objects(env: gym.Env[Any, Any]) -> ObjectSchema | None:
    """Return the columns of the object table, or None for other views."""
    from cwm_minigrid.grid import SCHEMA

    return SCHEMA if _grid(env).view == "objects" else None
