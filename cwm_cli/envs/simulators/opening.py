"""Make a simulator of an environment, in the first way that is exact."""

from collections.abc import Iterable, Mapping
from contextlib import closing
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Self, cast

import numpy as np

from cwm_cli.envs.simulators.attributes import Attributes
from cwm_cli.envs.simulators.chance import reseed
from cwm_cli.envs.simulators.checking import is_deterministic, is_exact, is_observed
from cwm_cli.envs.simulators.layout import Findings
from cwm_cli.envs.simulators.probing import probe
from cwm_cli.envs.simulators.remembering import Remembering
from cwm_cli.envs.simulators.simulator import Binder, Simulator
from cwm_cli.envs.spec import EnvironmentSpec
from cwm_cli.errors import CwmError

if TYPE_CHECKING:
    import gymnasium as gym


class Opening(NamedTuple):
    """How an environment becomes a model of itself: once found out, it holds for every instance."""

    spec: EnvironmentSpec
    env_args: Mapping[str, Any]
    bind: Binder
    deterministic: bool
    observed: bool

    @classmethod
    def of(cls, spec: EnvironmentSpec, env_args: Mapping[str, Any]) -> Self:
        """Find it out, or refuse an environment for which no way is exact."""
        with closing(spec.make(**env_args)) as env:
            bind = _binder(spec, env_args, env)
            deterministic = is_deterministic(env, bind(env))
            return cls(spec, env_args, bind, deterministic, deterministic and is_observed(env))

    def simulator(self, seed: int) -> Simulator | Remembering:
        """Make an environment that is a model of itself."""
        env = self.spec.make(**self.env_args)
        rng = np.random.default_rng(seed)
        env.reset(seed=int(rng.integers(2**31)))
        for generator in self.bind(env).generators():
            reseed(generator, rng)
        if "action_space" in vars(env.unwrapped):
            env.unwrapped.action_space = _unchecked(env.unwrapped.action_space)
        made = Simulator(
            env,
            self.bind,
            valid_actions=self.spec.valid_actions,
            deterministic=self.deterministic,
            observed=self.observed,
        )
        return Remembering(made) if self.observed else made


def simulator(
    spec: EnvironmentSpec, env_args: Mapping[str, Any], seed: int
) -> Simulator | Remembering:
    """Make an environment that is a model of itself, or refuse it where it is not exact."""
    return Opening.of(spec, env_args).simulator(seed)


def _unchecked(space: "gym.Space[Any]") -> "gym.Space[Any]":
    """Return a space that takes for granted what planners choose from it, which takes time."""
    trusting = copy(space)
    always = object.__instancecheck__  # everything is an object, and C says so
    trusting.contains = always  # type: ignore[assignment, method-assign]
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
