"""Describe an environment to a language model."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from cwm_cli.environments import space_of
from cwm_gymnasium.documentation import clean
from cwm_gymnasium.wording import words

if TYPE_CHECKING:
    import gymnasium as gym


def describe(env: gym.Env[Any, Any]) -> str:
    """Say what is known about an environment: its documentation, spaces and arguments."""
    documented = clean(_docstring(type(env.unwrapped)))
    spaces = (
        "## Spaces\n"
        f"Observation: {words(space_of(env.observation_space))}\n"
        f"Action: {words(space_of(env.action_space, 'actions'))}"
    )
    parts = [documented or "\n".join(_title(env)), spaces, *_arguments(env), *_time_limit(env)]
    return "\n\n".join(parts)


def _docstring(environment: type) -> str:
    """Return the docstring of a class, or of the one whose `step` it inherits."""
    for cls in inspect.getmro(environment):
        if cls.__doc__ or "step" in vars(cls):
            return inspect.cleandoc(cls.__doc__ or "")
    return ""


def _title(env: gym.Env[Any, Any]) -> Iterator[str]:
    """Yield what is known of an environment that nobody documented."""
    spec = env.spec
    name = type(env.unwrapped).__name__
    yield f"The environment {spec.id} ({name})." if spec else f"The environment {name}."
    if spec and spec.reward_threshold is not None:
        yield f"It counts as solved at a return of {spec.reward_threshold:g}."
    if spec and spec.nondeterministic:
        yield "It is not deterministic."


def _arguments(env: gym.Env[Any, Any]) -> Iterator[str]:
    """Yield the arguments that are not the class's own defaults."""
    parameters = inspect.signature(type(env.unwrapped)).parameters
    given = [
        f"`{name}={value!r}`"
        for name, value in (env.spec.kwargs if env.spec else {}).items()
        if name != "render_mode"
        if name not in parameters or not _same(parameters[name].default, value)
    ]
    if given:
        yield f"The environment was made with {', '.join(given)}."


def _same(default: Any, value: Any) -> bool:
    """Whether an argument is the default; what cannot be compared is not."""
    return type(default) is type(value) and repr(default) == repr(value)


def _time_limit(env: gym.Env[Any, Any]) -> Iterator[str]:
    """Yield the limit that ends episodes without being part of the dynamics."""
    if env.spec and env.spec.max_episode_steps:
        yield (
            f"Episodes are cut after {env.spec.max_episode_steps} steps by a time limit that is "
            "not part of `terminated` and that the observation does not show."
        )
