"""Find out by trying which attributes of an environment change."""

import pickle
from collections.abc import Iterator
from copy import deepcopy
from typing import TYPE_CHECKING, Any, NamedTuple

from cwm_cli.envs.simulators.chance import GLOBAL, fingerprint
from cwm_cli.envs.simulators.layout import OWN, Findings, aliased, owned, surveyed

if TYPE_CHECKING:
    import gymnasium as gym

STEPS = 200
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
    for step in range(STEPS + 1):
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
