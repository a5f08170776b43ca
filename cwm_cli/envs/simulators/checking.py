"""Check that a rewinder brings an environment back to exactly where it was."""

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from itertools import islice, repeat
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cwm_cli.envs.simulators.chance import fingerprint, reseed
from cwm_cli.envs.spec import Rewinder
from cwm_cli.planning.model import key
from cwm_cli.planning.states import countable

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
    if not countable(observation):
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
