"""What is asked to be recorded, in plain data."""

import json
import re
from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Any, NamedTuple, Self, TypedDict, Unpack

import numpy as np

from cwm_cli.agents.collection.policies import POLICIES
from cwm_cli.envs.spec import EnvironmentSpec
from cwm_cli.errors import CwmError, UnknownNameError

COLLECTOR_VERSION = 3
"""Raised whenever the same request would be recorded differently."""


class Options(TypedDict, total=False):
    """What to record: by which policy, how much, and from which seed."""

    policy: str
    episodes: int
    test_episodes: int
    max_steps: int
    seed: int


DEFAULTS: Options = {
    "policy": "curated",
    "episodes": 10,
    "test_episodes": 10,
    "max_steps": 100,
    "seed": 0,
}


class Episode(NamedTuple):
    """One episode to record: its number in the dataset, its split (1 is test), place and seeds.

    Its seeds follow from that of the request, its split and its place.
    """

    number: int
    split: int
    place: int
    seeds: tuple[int, ...]

    @property
    def reset_seed(self) -> int:
        """The seed of the environment, even in train and odd in test, so that no two agree."""
        return int(np.random.SeedSequence(self.seeds).generate_state(2)[0]) & ~1 | self.split

    @property
    def policy_seed(self) -> int:
        """The seed of what chooses the actions."""
        return int(np.random.SeedSequence(self.seeds).generate_state(2)[1])

    def again(self, attempt: int) -> Self:
        """Return the episode from another start, or for attempt 0 as it is."""
        return self._replace(seeds=(*self.seeds, attempt)) if attempt else self


def request(
    spec: EnvironmentSpec, env_args: Mapping[str, Any] | None = None, **options: Unpack[Options]
) -> dict[str, Any]:
    """Return everything that decides what `collect` records, as it is kept in the metadata."""
    chosen = DEFAULTS | options
    if chosen["policy"] not in POLICIES:
        raise UnknownNameError("policy", chosen["policy"], POLICIES)
    if min(chosen["episodes"], chosen["max_steps"]) < 1:
        raise CwmError("nothing to record: ask for at least one episode and one step")
    asked = {
        "env": spec.id,
        "env_args": dict(env_args or {}),
        **chosen,
        "versions": dict(spec.versions()),
        "collector": COLLECTOR_VERSION,
    }
    try:
        plain: dict[str, Any] = json.loads(json.dumps(asked, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise CwmError(f"arguments of {spec.id} must be plain JSON values ({error})") from error
    return plain


def episodes(asked: Mapping[str, Any]) -> Iterator[Episode]:
    """Yield the train episodes, then the test episodes."""
    places = [
        (split, place)
        for split, name in enumerate(("episodes", "test_episodes"))
        for place in range(asked[name])
    ]
    for number, (split, place) in enumerate(places):
        yield Episode(number, split, place, (asked["seed"], split, place))


def file_name(asked: Mapping[str, Any]) -> str:
    """Name a request so that people and programs can tell it from others."""
    content = json.dumps(asked, sort_keys=True).encode()
    name = re.sub(r"[^\w.-]+", "-", asked["env"])
    return f"{name}-{asked['policy']}-{asked['seed']}-{sha256(content).hexdigest()[:12]}.npz"
