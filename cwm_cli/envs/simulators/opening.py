"""Make a simulator of an environment with the first rewinder that is exact.

Rewinders are tried from the fastest to the most thorough. Each is tested: the environment is
restored, and must repeat the same steps. Random steps show which attributes change.
"""

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from copy import copy, deepcopy
from functools import partial
from itertools import islice, repeat
from typing import TYPE_CHECKING, Any, NamedTuple, Self, cast

import numpy as np

from cwm_cli.envs.simulators.saving import (
    GLOBAL,
    OWN,
    Attributes,
    Findings,
    fingerprint,
    instance_objects,
    reseed,
    shared_names,
    survey_attributes,
)
from cwm_cli.envs.simulators.simulator import Binder, CachingSimulator, Simulator
from cwm_cli.envs.spec import EnvironmentSpec, Rewinder
from cwm_cli.envs.variants import disturbance_of
from cwm_cli.errors import CwmError
from cwm_cli.planning.model import countable, key

if TYPE_CHECKING:
    import gymnasium as gym

SEQUENCES = 20
STEPS = 10
"""Steps that are compared between two saves."""


class Outcome(NamedTuple):
    """The results of a step, and of the reset after the end of an episode, for comparisons."""

    observation: Any
    reward: bytes
    terminated: bool
    over: bool
    start: Any


def is_exact(
    bind: Callable[["gym.Env[Any, Any]"], Rewinder],
    env: "gym.Env[Any, Any]",
    twin: "gym.Env[Any, Any]",
) -> bool:
    """Return whether `env` repeats the steps of an untouched twin from its saved state.

    The twin is stepped through its wrappers, `env` beneath them: the test fails if wrappers change
    the results.
    """
    env.reset(seed=1)
    twin.reset(seed=0)
    try:
        mine, other = bind(env), bind(twin)
        sequences = islice(_random_actions(twin), SEQUENCES)
        return all(_agrees(env, mine, twin, other, actions) for actions in sequences)
    except Exception:  # noqa: BLE001  # foreign classes may raise any error if parts are missing
        return False


def _agrees(
    env: "gym.Env[Any, Any]",
    mine: Rewinder,
    twin: "gym.Env[Any, Any]",
    other: Rewinder,
    actions: Sequence[Any],
) -> bool:
    """Return whether both environments return the same results twice from the same state."""
    state = other.save()
    expected = outcomes(twin, actions)
    overs = [outcome.over for outcome in expected]
    for _ in range(2):
        mine.load(state)
        state = mine.save()
        if outcomes(env.unwrapped, actions, overs) != expected:
            return False
    return True


def outcomes(
    env: "gym.Env[Any, Any]", actions: Sequence[Any], overs: Sequence[bool | None] = ()
) -> list[Outcome]:
    """Take actions, and reset after the end of an episode.

    Args:
        env: The environment.
        actions: The actions.
        overs: Whether to reset after each action; None follows the environment.
    """
    result = []
    for action, resets in zip(actions, overs or repeat(None), strict=False):
        observation, reward, terminated, truncated, _ = env.step(action)
        over = bool(terminated or truncated) if resets is None else resets
        start = key(env.reset()[0]) if over else None
        number = np.asarray(reward, float).tobytes()
        result.append(Outcome(key(observation), number, bool(terminated), over, start))
    return result


def is_deterministic(env: "gym.Env[Any, Any]", rewinder: Rewinder, seed: int = 0) -> bool:
    """Return whether equal actions have equal results for any random numbers.

    If steps draw random numbers, this is tested from many states. An effect that occurs once in
    thousands of steps may be missed.
    """
    env.reset(seed=seed)
    inner, rng = env.unwrapped, np.random.default_rng(seed)
    sequences = islice(_random_actions(env), SEQUENCES)
    actions = [action for sequence in sequences for action in sequence]
    for index, action in enumerate(actions):
        state, before = rewinder.save(), _fingerprints(rewinder)
        (outcome,) = outcomes(inner, [action], [False])
        if before != _fingerprints(rewinder):  # the step has drawn random numbers
            after = rewinder.save()
            ahead = actions[index : index + 3]  # randomness has to show within three steps
            if not _is_certain(inner, rewinder, state, ahead, rng):
                return False
            rewinder.load(after)
        if outcome.terminated:
            inner.reset()
    return True


def is_observed(env: "gym.Env[Any, Any]") -> bool:
    """Return whether observations identify the states of a deterministic environment.

    The test uses random actions: the same action after the same observation must always have the
    same outcome. Observations with real numbers are excluded.
    """
    observation, _ = env.reset(seed=0)
    if not countable(observation) or disturbance_of(env):
        return False
    known: dict[Any, Outcome] = {}
    # Within 2000 steps observations repeat often enough to show a contradiction.
    here, sequences = key(observation), islice(_random_actions(env), 2000 // STEPS)
    for action in (action for sequence in sequences for action in sequence):
        [outcome] = outcomes(env, [action])
        result = outcome._replace(start=None, over=outcome.terminated)
        if known.setdefault((here, key(action)), result) != result:
            return False
        here = outcome.start if outcome.over else outcome.observation
    return True


def _is_certain(
    env: "gym.Env[Any, Any]",
    rewinder: Rewinder,
    state: Any,
    actions: Sequence[Any],
    rng: np.random.Generator,
) -> bool:
    """Return whether a few actions have equal results in several random futures of a state."""
    futures = []
    for _ in range(4):
        rewinder.load(state)
        for generator in rewinder.generators():
            reseed(generator, rng)
        futures.append(_until_over(env, actions))
    return all(future == futures[0] for future in futures)


def _fingerprints(rewinder: Rewinder) -> list[bytes]:
    return [fingerprint(generator) for generator in rewinder.generators()]


def _until_over(env: "gym.Env[Any, Any]", actions: Sequence[Any]) -> list[Outcome]:
    result = []
    for action in actions:
        result += outcomes(env, [action], [False])
        if result[-1].terminated:
            break
    return result


def _random_actions(env: "gym.Env[Any, Any]") -> Iterator[list[Any]]:
    """Yield random actions without using the environment's own generators."""
    space = deepcopy(env.action_space)
    space.seed(0)
    while True:
        yield [space.sample() for _ in range(STEPS)]


SPACES = ("action_space", "observation_space")


class Look(NamedTuple):
    """The attributes that share parts at one moment, and the large ones with their content."""

    together: set[str]
    large: dict[str, tuple[Any, object]]


def probe(env: "gym.Env[Any, Any]", seed: int = 0) -> Findings:
    """Step an environment at random, and return which attributes and generators change."""
    inner = env.unwrapped
    inner.reset(seed=seed)
    spaces, common = _space_fingerprints(inner), _global_fingerprints()
    looks = list(_looks(inner, seed))
    first = looks[0].large
    constant = [name for name in first if all(_same(name, first, look.large) for look in looks)]
    return Findings(
        constant=frozenset(constant),
        together=frozenset().union(*(look.together for look in looks)),
        spaces=tuple(n for n, state in _space_fingerprints(inner).items() if state != spaces[n]),
        common=tuple(
            generator
            for generator, before, after in zip(GLOBAL, common, _global_fingerprints(), strict=True)
            if before != after
        ),
    )


def _looks(env: "gym.Env[Any, Any]", seed: int) -> Iterator[Look]:
    space = deepcopy(env.action_space)
    space.seed(seed)
    for step in range(201):
        if step % 40 == 0:
            yield _look(env)
        _, _, terminated, truncated, _ = env.step(space.sample())
        if terminated or truncated:
            env.reset()


def _look(env: "gym.Env[Any, Any]") -> Look:
    surveys = survey_attributes(env, set(OWN), instance_objects(env, Findings()))
    # Small values are always copied, whether they change or not.
    large = [name for name, found in surveys.items() if found.mutable and found.size > 100]
    values = {name: vars(env)[name] for name in large}
    return Look(
        shared_names(surveys), {name: (value, _pickled(value)) for name, value in values.items()}
    )


def _same(name: str, first: dict[str, tuple[Any, object]], large: dict[str, Any]) -> bool:
    """Return whether an attribute is still the same object with the same content."""
    value, written = large.get(name, (None, None))
    return value is first[name][0] and written == first[name][1]


def _pickled(value: Any) -> object:
    """Return the pickled value; a value that cannot be pickled equals nothing else."""
    try:
        return pickle.dumps(value)
    except Exception:  # noqa: BLE001  # foreign classes may raise any error
        return object()


def _space_fingerprints(env: "gym.Env[Any, Any]") -> dict[str, bytes]:
    return {name: fingerprint(getattr(env, name).np_random) for name in SPACES}


def _global_fingerprints() -> list[bytes]:
    return [fingerprint(generator) for generator in GLOBAL]


class Opening(NamedTuple):
    """The method for simulating an environment, which holds for every instance."""

    spec: EnvironmentSpec
    env_args: Mapping[str, Any]
    bind: Binder
    deterministic: bool
    observed: bool

    @classmethod
    def of(cls, spec: EnvironmentSpec, env_args: Mapping[str, Any]) -> Self:
        """Find the method by tests.

        Raises:
            CwmError: No rewinder is exact for this environment.
        """
        with closing(spec.make(**env_args)) as env:
            env.reset(seed=0)  # a checked environment reports wrong results here
            for actions in islice(_random_actions(env), SEQUENCES // 2):
                outcomes(env, actions)
            bind = _binder(spec, env_args, env)
            deterministic = is_deterministic(env, bind(env))
            return cls(spec, env_args, bind, deterministic, deterministic and is_observed(env))

    def simulator(self, seed: int) -> Simulator | CachingSimulator:
        """Return a simulator with its own instance of the environment."""
        env = self.spec.make(**self.env_args)
        rng = np.random.default_rng(seed)
        env.reset(seed=int(rng.integers(2**31)))
        for generator in self.bind(env).generators():
            reseed(generator, rng)
        if "action_space" in vars(env.unwrapped):
            env.unwrapped.action_space = _without_checks(env.unwrapped.action_space)
        disturbance = disturbance_of(env)
        simulator = Simulator(
            env,
            self.bind,
            valid_actions=self.spec.valid_actions,
            deterministic=self.deterministic,
            observed=self.observed,
            hides=bool(disturbance and disturbance.altered),
        )
        return CachingSimulator(simulator) if self.observed else simulator


def simulator(
    spec: EnvironmentSpec, env_args: Mapping[str, Any], seed: int
) -> Simulator | CachingSimulator:
    """Return a simulator of an environment.

    Raises:
        CwmError: No rewinder is exact for this environment.
    """
    return Opening.of(spec, env_args).simulator(seed)


def _without_checks(space: "gym.Space[Any]") -> "gym.Space[Any]":
    """Return a space that accepts every action: planners need no checks, which are slow."""
    unchecked = copy(space)
    always = object.__instancecheck__  # returns True for every value, without Python code
    unchecked.contains = always  # type: ignore[assignment, method-assign]
    return unchecked


def _binder(spec: EnvironmentSpec, env_args: Mapping[str, Any], env: "gym.Env[Any, Any]") -> Binder:
    twin = spec.make(**env_args)
    try:
        for bind in _binders(spec, twin):
            if is_exact(bind, env, twin):
                return bind
    finally:
        twin.close()
    raise CwmError(f"{spec.id} cannot be saved and restored: plan without --real-env")


def _binders(spec: EnvironmentSpec, env: "gym.Env[Any, Any]") -> Iterable[Binder]:
    """Yield the environment's own rewinder, or else the general ones."""
    if spec.rewinder and spec.rewinder(env):
        yield cast(Binder, spec.rewinder)
        return
    findings = probe(env)
    yield partial(Attributes, findings=findings)
    everything = Findings(spaces=findings.spaces, common=findings.common, whole=True)
    yield partial(Attributes, findings=everything)
