"""Describe an environment to a language model."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from cwm_cli.envs.spec import space_of
from cwm_gymnasium.documentation import changes, clean
from cwm_gymnasium.quiet import load
from cwm_gymnasium.wording import words

if TYPE_CHECKING:
    import gymnasium as gym
    from gymnasium.envs.registration import EnvSpec


def describe(env: gym.Env[Any, Any]) -> str:
    """Say what is known about an environment: its documentation, spaces and arguments."""
    documented = clean(_docstring(type(env.unwrapped)))
    spaces = (
        "## Spaces\n"
        f"Observation: {words(space_of(env.observation_space))}\n"
        f"Action: {words(space_of(env.action_space, 'actions'))}"
    )
    about = [documented] if documented else ["\n".join(_title(env)), *_borrowed(env)]
    return "\n\n".join([*about, spaces, *_arguments(env), *_time_limit(env)])


def _docstring(environment: type) -> str:
    """Return the docstring of a class, or of the one whose `step` it inherits."""
    for cls in inspect.getmro(environment):
        if cls.__doc__ or "step" in vars(cls):
            return inspect.cleandoc(cls.__doc__ or "")
    return ""


def _borrowed(env: gym.Env[Any, Any]) -> Iterator[str]:
    """Yield the documentation of the next version that has one, and what changed until then."""
    for newer in _newer(env.spec) if env.spec else ():
        docstring = _documentation_of(newer)
        if env.spec and docstring:
            changed = [f"- {change}" for change in changes(docstring, env.spec.version or 0)]
            yield (
                f"It has no documentation of its own. This is the one of {newer.id}, "
                f"and below it stands what differs in {env.spec.id}:"
            )
            yield clean(docstring)
            yield f"## Differences\n{_differences(env.spec.id, newer.id, changed)}"
            return


def _differences(name: str, newer: str, changed: list[str]) -> str:
    """Say what changed after an environment, and so holds the other way round in it."""
    if not changed:
        return f"Nothing that is said to have changed from {name} to {newer} concerns the dynamics."
    heading = f"This is {name}: it behaves as before these changes, which came with {newer}."
    return "\n".join([heading, *changed, f"The spaces below are those of {name}."])


def _newer(spec: EnvSpec) -> list[EnvSpec]:
    """Return the later versions of an environment, the next one first."""
    named = (spec.namespace, spec.name)
    others = [other for other in load().registry.values() if (other.namespace, other.name) == named]
    later = [other for other in others if (other.version or 0) > (spec.version or 0)]
    return sorted(later, key=lambda other: other.version or 0)


def _documentation_of(spec: EnvSpec) -> str:
    """Return the docstring of the class of an environment; nothing where it cannot be imported."""
    creator: Any = spec.entry_point
    if isinstance(creator, str):
        try:
            creator = load().envs.registration.load_env_creator(creator)
        except Exception:  # noqa: BLE001  # a stranger's module may raise anything
            return ""
    return _docstring(creator) if inspect.isclass(creator) else ""


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
