"""Shifted environments: the same system with other constants and rules, drawn from a seed.

Who knows an environment by heart predicts it without a row of data, and its shifted variants not
at all. `shift` is an argument of every environment whose spec can be shifted, beside its own, and
so it is kept wherever these are: in datasets, runs and the names of what is cached.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from cwm_cli.errors import CwmError

if TYPE_CHECKING:
    import gymnasium as gym

    from cwm_cli.envs.spec import EnvironmentSpec

SHIFT = "shift"
"""The argument that is reserved for the seed of a shift."""


def with_shifts(spec: EnvironmentSpec) -> EnvironmentSpec:
    """Let `make` take the argument `shift`: it shifts what it makes, or says that it cannot."""
    return replace(spec, make=partial(_made, spec))


def check_shift(spec: EnvironmentSpec, seed: int | None) -> None:
    """Refuse a seed, where one is given, that is none or of an environment without variants."""
    if seed is None:
        return
    if spec.shift is None:
        raise CwmError(f"{spec.id} has no shifted variants: leave --shift out")
    if type(seed) is not int or seed < 0:
        raise CwmError(f"--shift {seed!r} is no seed: give a whole number from 0 on")


def _made(spec: EnvironmentSpec, /, **env_args: Any) -> gym.Env[Any, Any]:
    import numpy as np  # the command line reads this module for a name

    seed = env_args.pop(SHIFT, None)
    check_shift(spec, seed)
    env = spec.make(**env_args)
    if seed is not None and spec.shift is not None:
        spec.shift(env, np.random.default_rng(seed))
    return env
