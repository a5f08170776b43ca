"""Make a simulator of an environment, in the first way that is exact."""

from collections.abc import Iterable, Mapping
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from cwm_cli.environments import EnvironmentSpec
from cwm_cli.errors import CwmError
from cwm_cli.simulators.attributes import Attributes
from cwm_cli.simulators.chance import reseed
from cwm_cli.simulators.checking import is_deterministic, is_exact, is_observed
from cwm_cli.simulators.layout import Findings
from cwm_cli.simulators.probing import probe
from cwm_cli.simulators.remembering import Remembering
from cwm_cli.simulators.simulator import Binder, Simulator

if TYPE_CHECKING:
    import gymnasium as gym


def simulator(
    spec: EnvironmentSpec, env_args: Mapping[str, Any], seed: int
) -> Simulator | Remembering:
    """Make an environment that is a model of itself, or refuse it where it is not exact."""
    env = spec.make(**env_args)
    bind = _binder(spec, env_args, env)
    deterministic = is_deterministic(env, bind(env))
    observed = deterministic and is_observed(env)
    rng = np.random.default_rng(seed)
    env.reset(seed=int(rng.integers(2**31)))
    for generator in bind(env).generators():
        reseed(generator, rng)
    if "action_space" in vars(env.unwrapped):
        env.unwrapped.action_space = _unchecked(env.unwrapped.action_space)
    valid = spec.valid_actions
    made = Simulator(env, bind, valid_actions=valid, deterministic=deterministic, observed=observed)
    return Remembering(made) if observed else made


def _unchecked(space: "gym.Space[Any]") -> "gym.Space[Any]":
    """Return a space that takes for granted what planners choose from it, which takes time."""
    trusting = copy(space)
    trusting.contains = lambda x: True  # type: ignore[method-assign]
    return trusting


def _binder(spec: EnvironmentSpec, env_args: Mapping[str, Any], env: "gym.Env[Any, Any]") -> Binder:
    """Return the first way of rewinding that is exact."""
    twin = spec.make(**env_args)
    try:
        for bind in _binders(spec, twin):
            if is_exact(bind, env, twin):
                return bind
    finally:
        twin.close()
    raise CwmError(f"{spec.id} cannot be saved and restored: plan without --real-env")


def _binders(spec: EnvironmentSpec, env: "gym.Env[Any, Any]") -> Iterable[Binder]:
    """Yield the environment's own way of rewinding, or else the ways that serve any."""
    if spec.rewinder and spec.rewinder(env):
        yield cast(Binder, spec.rewinder)
        return
    findings = probe(env)
    yield partial(Attributes, findings=findings)
    everything = Findings(spaces=findings.spaces, common=findings.common, whole=True)
    yield partial(Attributes, findings=everything)
