"""Make a simulator of an environment, in the first way that is exact.

Ways are tried from the quickest to the most thorough. Each is checked: the environment is brought
back to where it was, and has to go on just as it did. Which attributes change is found by trying.
"""

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from copy import copy, deepcopy
from functools import partial
from itertools import islice, repeat
from typing import TYPE_CHECKING, Any, NamedTuple, Self, cast

import numpy as np

from cwm_cli.envs.simulators.chance import GLOBAL, fingerprint, reseed
from cwm_cli.envs.simulators.saving import OWN, Attributes, Findings, aliased, owned, surveyed
from cwm_cli.envs.simulators.simulator import Binder, Remembering, Simulator
from cwm_cli.envs.spec import EnvironmentSpec, Rewinder
from cwm_cli.envs.variants import disturbance_of
from cwm_cli.errors import CwmError
from cwm_cli.planning.model import countable, key

if TYPE_CHECKING:
    import gymnasium as gym

STRETCHES = 20
STEPS = 10
"""Steps that are compared between one save and the next."""

MANY = 2000
"""Steps after which an observation has been met often enough to contradict itself."""

FUTURES = 4
"""Ways in which chance may go on from a state."""

AHEAD = 3
"""Steps after which chance has to show."""


class Outcome(NamedTuple):
    """What a step answered, and what a reset did where the episode was over, to compare."""

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
    """Whether `env`, from what is saved of an untouched twin, goes on as the twin does.

    The twin is stepped through its wrappers, the environment beneath them:
    one whose wrappers change what it says would not be the same without.
    """
    env.reset(seed=1)
    twin.reset(seed=0)
    try:
        mine, other = bind(env), bind(twin)
        stretches = islice(_random_actions(twin), STRETCHES)
        return all(_agrees(env, mine, twin, other, actions) for actions in stretches)
    except Exception:  # noqa: BLE001  # a stranger's class may raise anything where parts are missing
        return False


def _agrees(
    env: "gym.Env[Any, Any]",
    mine: Rewinder,
    twin: "gym.Env[Any, Any]",
    other: Rewinder,
    actions: Sequence[Any],
) -> bool:
    """Whether both answer the same to some actions, however often they are asked."""
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
    """Take actions, and reset where an episode is over or is told to be."""
    result = []
    for action, told in zip(actions, overs or repeat(None), strict=False):
        observation, reward, terminated, truncated, _ = env.step(action)
        over = bool(terminated or truncated) if told is None else told
        start = key(env.reset()[0]) if over else None
        number = np.asarray(reward, float).tobytes()
        result.append(Outcome(key(observation), number, bool(terminated), over, start))
    return result


def is_deterministic(env: "gym.Env[Any, Any]", rewinder: Rewinder, seed: int = 0) -> bool:
    """Whether the same actions lead to the same, whatever the random generators would draw.

    Where steps draw from them this is tried from many states: what happens
    once in thousands of steps may be missed.
    """
    env.reset(seed=seed)
    inner, rng = env.unwrapped, np.random.default_rng(seed)
    stretches = islice(_random_actions(env), STRETCHES)
    actions = [action for stretch in stretches for action in stretch]
    for index, action in enumerate(actions):
        state, drawn = rewinder.save(), _drawn(rewinder)
        (outcome,) = outcomes(inner, [action], [False])
        if drawn != _drawn(rewinder):
            after = rewinder.save()
            ahead = actions[index : index + AHEAD]
            if not _is_certain(inner, rewinder, state, ahead, rng):
                return False
            rewinder.load(after)
        if outcome.terminated:
            inner.reset()
    return True


def is_observed(env: "gym.Env[Any, Any]") -> bool:
    """Whether observations without real numbers tell the states of a deterministic environment.

    As far as random actions show: the same action in the same observation
    always had the same outcome.
    """
    observation, _ = env.reset(seed=0)
    if not countable(observation) or disturbance_of(env):
        return False
    known: dict[Any, Outcome] = {}
    here, actions = key(observation), _random_actions(env)
    for action in (action for stretch in islice(actions, MANY // STEPS) for action in stretch):
        [outcome] = outcomes(env, [action])
        told = outcome._replace(start=None, over=outcome.terminated)
        if known.setdefault((here, key(action)), told) != told:
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
    """Whether a few actions lead to the same in several futures of a state."""
    futures = []
    for _ in range(FUTURES):
        rewinder.load(state)
        for generator in rewinder.generators():
            reseed(generator, rng)
        futures.append(_until_over(env, actions))
    return all(future == futures[0] for future in futures)


def _drawn(rewinder: Rewinder) -> list[bytes]:
    return [fingerprint(generator) for generator in rewinder.generators()]


def _until_over(env: "gym.Env[Any, Any]", actions: Sequence[Any]) -> list[Outcome]:
    """Take actions up to the end of the episode."""
    result = []
    for action in actions:
        result += outcomes(env, [action], [False])
        if result[-1].terminated:
            break
    return result


def _random_actions(env: "gym.Env[Any, Any]") -> Iterator[list[Any]]:
    """Yield random actions, without drawing from the environment's own generators."""
    space = deepcopy(env.action_space)
    space.seed(0)
    while True:
        yield [space.sample() for _ in range(STEPS)]


PROBE_STEPS = 200
EVERY = 40
"""Steps between two looks at the attributes."""

SMALL = 100
"""Values of up to so many parts are copied whether they were seen to change or not."""

SPACES = ("action_space", "observation_space")


class Look(NamedTuple):
    """The attributes that share parts at a moment, and the large ones with what they held."""

    together: set[str]
    large: dict[str, tuple[Any, object]]


def probe(env: "gym.Env[Any, Any]", seed: int = 0) -> Findings:
    """Step an environment at random, and tell what changes from what does not."""
    inner = env.unwrapped
    inner.reset(seed=seed)
    spaces, common = _drawn_spaces(inner), _drawn_common()
    looks = list(_looks(inner, seed))
    first = looks[0].large
    constant = [name for name in first if all(_same(name, first, look.large) for look in looks)]
    return Findings(
        constant=frozenset(constant),
        together=frozenset().union(*(look.together for look in looks)),
        spaces=tuple(n for n, drawn in _drawn_spaces(inner).items() if drawn != spaces[n]),
        common=tuple(g for g, a, b in zip(GLOBAL, common, _drawn_common(), strict=True) if a != b),
    )


def _looks(env: "gym.Env[Any, Any]", seed: int) -> Iterator[Look]:
    """Play at random, and look now and then."""
    space = deepcopy(env.action_space)
    space.seed(seed)
    for step in range(PROBE_STEPS + 1):
        if step % EVERY == 0:
            yield _look(env)
        _, _, terminated, truncated, _ = env.step(space.sample())
        if terminated or truncated:
            env.reset()


def _look(env: "gym.Env[Any, Any]") -> Look:
    surveys = surveyed(env, set(OWN), owned(env, Findings()))
    large = [name for name, found in surveys.items() if found.mutable and found.size > SMALL]
    values = {name: vars(env)[name] for name in large}
    return Look(
        aliased(surveys), {name: (value, _written(value)) for name, value in values.items()}
    )


def _same(name: str, first: dict[str, tuple[Any, object]], large: dict[str, Any]) -> bool:
    """Whether an attribute is still the same object that holds the same."""
    value, written = large.get(name, (None, None))
    return value is first[name][0] and written == first[name][1]


def _written(value: Any) -> object:
    """Write a value down; what cannot be written is never the same."""
    try:
        return pickle.dumps(value)
    except Exception:  # noqa: BLE001  # whatever a stranger's class may raise
        return object()


def _drawn_spaces(env: "gym.Env[Any, Any]") -> dict[str, bytes]:
    return {name: fingerprint(getattr(env, name).np_random) for name in SPACES}


def _drawn_common() -> list[bytes]:
    return [fingerprint(generator) for generator in GLOBAL]


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
            env.reset(seed=0)  # a checked environment reports wrong results here
            for actions in islice(_random_actions(env), STRETCHES // 2):
                outcomes(env, actions)
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
        disturbance = disturbance_of(env)
        made = Simulator(
            env,
            self.bind,
            valid_actions=self.spec.valid_actions,
            deterministic=self.deterministic,
            observed=self.observed,
            hides=bool(disturbance and disturbance.altered),
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
