"""Checks of the results of environments, with errors that say how to fix the environment."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from math import isfinite
from traceback import walk_tb
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np

from cwm_cli.envs.tasks import reward_number
from cwm_cli.errors import CwmError, EnvironmentFailure, environment_failure
from cwm_cli.text import clean

if TYPE_CHECKING:
    from cwm_cli.envs.spec import EnvironmentSpec

RESET = "(observation, info)"
STEP = "(observation, reward, terminated, truncated, info)"


def with_checks(spec: EnvironmentSpec) -> EnvironmentSpec:
    """Return the spec with a `make` whose environments check their observations and rewards."""
    return replace(spec, make=partial(_make, spec))


def _make(spec: EnvironmentSpec, /, **env_args: Any) -> gym.Env[Any, Any]:
    env = spec.make(**env_args)
    try:
        return CheckedEnv(env, spec.id)
    except EnvironmentFailure:
        env.close()
        raise


def no_simulator(name: str) -> EnvironmentFailure:
    """Return the error of an environment that only defines its spaces."""
    return EnvironmentFailure(
        f"{name} has no simulator: define reset and step to act in it, or export a program with "
        "cwm runs export and act in the export"
    )


class CheckedEnv(gym.Wrapper[Any, Any, Any, Any]):
    """An environment that raises `EnvironmentFailure` if it breaks the interface of Gymnasium.

    Args:
        env: The environment with all of its wrappers.
        name: Its id, for messages.
    """

    def __init__(self, env: gym.Env[Any, Any], name: str) -> None:
        super().__init__(env)
        self._name = name
        variables = ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER")
        has_display = sys.platform != "linux" or any(map(os.environ.get, variables))
        if env.render_mode == "human" and not has_display:  # some libraries would abort the process
            hint = "choose another render_mode, or run cwm with xvfb-run"
            raise EnvironmentFailure(f"{name} needs a display for render_mode='human': {hint}")
        for attribute in ("observation_space", "action_space"):
            if not isinstance(getattr(env, attribute, None), gym.Space):
                hint = f"set self.{attribute} in __init__, such as gymnasium.spaces.Discrete(2)"
                raise EnvironmentFailure(f"{name} has no {attribute}: {hint}")
        self._check_reset_arguments()

    @property
    def spec(self) -> Any:  # type: ignore[override]  # Gymnasium has a property as well
        """The registered spec of the environment."""
        return self.env.spec

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        """Reset the environment and check the observation."""
        # The base class only seeds its generator and returns None, which wrappers report badly.
        if type(self.unwrapped).reset is gym.Env.reset:
            raise no_simulator(self._name)
        try:
            result = self.env.reset(**options)
        except Exception as error:
            if failure := environment_failure(error):
                raise failure from error
            raise
        if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], Mapping)):
            raise EnvironmentFailure(
                f"{self._name}: reset returned {_describe(result)}; it must return {RESET}, "
                "as Gymnasium has it since version 0.26"
            )
        self._check_observation(result[0], "reset")
        return result

    def step(self, action: Any) -> Any:
        """Take an action and check the observation and the reward."""
        try:
            result = self.env.step(action)
        except Exception as error:
            if failure := environment_failure(error):
                raise failure from error
            innermost = list(walk_tb(error.__traceback__))[-1][0]
            if not str(innermost.f_globals.get("__name__")).startswith("gymnasium.wrappers"):
                raise
            result = self.unwrapped.step(action)  # a wrapper could not unpack the result
        if not isinstance(result, tuple) or len(result) != 5:
            raise EnvironmentFailure(
                f"{self._name}: step returned {_describe(result)}; it must return {STEP}, "
                "as Gymnasium has it since version 0.26"
            )
        observation, reward = result[:2]
        self._check_observation(observation, "step")
        if type(reward) is not float or not isfinite(reward):  # the usual case takes no call
            try:
                reward_number(reward)
            except (TypeError, ValueError, CwmError) as error:
                raise EnvironmentFailure(
                    f"{self._name}: step returned the reward {clean(repr(reward), limit=60)}; "
                    "a reward must be one finite number"
                ) from error
        return result

    def _check_reset_arguments(self) -> None:
        """Require that `reset` accepts a seed, and options if the environment is wrapped."""
        try:
            parameters = inspect.signature(self.unwrapped.reset).parameters
        except ValueError:  # a compiled method without a signature
            return
        # The wrappers of `gymnasium.make` always pass options.
        needed = ["seed", "options"] if self.env is not self.unwrapped else ["seed"]
        if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
            return
        if missing := [name for name in needed if name not in parameters]:
            raise EnvironmentFailure(
                f"{self._name}: reset does not accept {' and '.join(missing)}; "
                "define reset(self, *, seed=None, options=None)"
            )

    def _check_observation(self, observation: Any, method: str) -> None:
        """Require that an observation of a Box has its shape and is finite."""
        space = self.observation_space
        if not isinstance(space, gym.spaces.Box):
            return
        try:
            array = np.asarray(observation)
        except ValueError as error:
            raise EnvironmentFailure(
                f"{self._name}: {method} returned an observation that is not an array ({error})"
            ) from error
        if array.shape != space.shape:
            raise EnvironmentFailure(
                f"{self._name}, {method}: Observation shape {array.shape} does not match "
                f"observation_space {space.shape}."
            )
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            listed = clean(np.array2string(array, threshold=10), limit=60)
            raise EnvironmentFailure(
                f"{self._name}: {method} returned the observation {listed}; "
                "all numbers of an observation must be finite"
            )


def _describe(result: Any) -> str:
    """Describe a wrong result in a few words."""
    if isinstance(result, tuple):
        return f"{len(result)} values"
    return "only an observation" if isinstance(result, np.ndarray) else f"{type(result).__name__}"
