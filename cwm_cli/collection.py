"""Record episodes of an environment, and keep the default recordings in a cache."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypedDict, Unpack

import numpy as np

from cwm_cli.environments import EnvironmentSpec, space_of
from cwm_cli.errors import CwmError, UnknownNameError
from cwm_cli.transitions import Dataset, Transition

if TYPE_CHECKING:
    import gymnasium as gym

COLLECTOR_VERSION = 1
"""Raised whenever the same request would be recorded differently."""

Progress = Callable[[int], None]
Act = Callable[[Any], Any]


class Options(TypedDict, total=False):
    """What to record: by which policy, how much, and from which seed."""

    policy: str
    episodes: int
    test_episodes: int
    max_steps: int
    seed: int


DEFAULTS: Options = {
    "policy": "random",
    "episodes": 10,
    "test_episodes": 10,
    "max_steps": 100,
    "seed": 0,
}


class Episode(NamedTuple):
    """One episode to record: its number in the dataset, its split (1 is test), and its seeds."""

    number: int
    split: int
    reset_seed: int
    policy_seed: int


class Policy(Protocol):
    """Decides how the actions of an episode are chosen, which may differ between episodes."""

    def __call__(self, env: "gym.Env[Any, Any]", episode: Episode) -> tuple[str, Act]:
        """Return what is recorded as the policy of the episode, and observation -> action."""


def uniform(env: "gym.Env[Any, Any]", episode: Episode) -> tuple[str, Act]:
    """Draw every action from the action space."""
    space = deepcopy(env.action_space)
    space.seed(episode.policy_seed)
    return "random", lambda _: space.sample()


POLICIES: Mapping[str, Policy] = {"random": uniform}


def collect(
    spec: EnvironmentSpec,
    *,
    env_args: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
    **options: Unpack[Options],
) -> Dataset:
    """Record episodes of a policy; the same request gives the same bytes.

    An episode depends on the seed, its split and its place in the split, not
    on how many others there are. Train and test episodes never start from the
    same seed. `progress` is called with the number of episodes recorded.
    """
    metadata = request(spec, env_args, **options)
    env = spec.make(**metadata["env_args"])
    try:
        spaces = (space_of(env.observation_space), space_of(env.action_space, "actions"))
        policies: list[str] = []
        transitions: list[Transition] = []
        for episode in _episodes(metadata):
            name, act = POLICIES[metadata["policy"]](env, episode)
            transitions += _record(env, act, episode, metadata["max_steps"])
            policies.append(name)
            if progress is not None:
                progress(len(policies))
    finally:
        env.close()
    try:
        return Dataset.of(
            transitions,
            observation_space=spaces[0],
            action_space=spaces[1],
            metadata=metadata | {"policies": policies},
        )
    except ValueError as error:
        raise CwmError(f"{spec.id} breaks its own rules: {error}") from error


def default_dataset(
    spec: EnvironmentSpec,
    *,
    env_args: Mapping[str, Any] | None = None,
    data_seed: int = 0,
    progress: Progress | None = None,
    **options: Unpack[Options],
) -> tuple[Path, bool]:
    """Return the cached recording of a request, and whether it was there already."""
    options["seed"] = data_seed
    asked = request(spec, env_args, **options)
    path = _cache() / f"{_file_name(asked)}.npz"
    try:
        if Dataset.load(path).metadata.items() >= asked.items():
            return path, True
    except CwmError:
        pass  # missing, or spoilt by a crash of the machine: recorded anew
    dataset = collect(spec, env_args=env_args, progress=progress, **options)
    try:
        dataset.save(path)
    except OSError as error:
        hint = "set XDG_CACHE_HOME to a folder that can be written"
        raise CwmError(f"cannot keep the transitions in {path} ({error}): {hint}") from error
    return path, False


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


def _episodes(asked: Mapping[str, Any]) -> Iterator[Episode]:
    """Yield the train episodes, then the test episodes.

    Reset seeds are even in train and odd in test, so that no two agree.
    """
    places = [
        (split, place)
        for split, name in enumerate(("episodes", "test_episodes"))
        for place in range(asked[name])
    ]
    for number, (split, place) in enumerate(places):
        sequence = np.random.SeedSequence([asked["seed"], split, place])
        reset, policy = (int(word) for word in sequence.generate_state(2))
        yield Episode(number, split, reset & ~1 | split, policy)


def _record(
    env: "gym.Env[Any, Any]", act: Act, episode: Episode, max_steps: int
) -> Iterator[Transition]:
    """Yield the transitions of one episode; environments may reuse the arrays they give."""
    observation = deepcopy(env.reset(seed=episode.reset_seed)[0])
    for step in range(1, max_steps + 1):
        action = act(observation)
        following, reward, terminated, truncated, _ = env.step(deepcopy(action))
        following = deepcopy(following)
        yield Transition(
            observation,
            action,
            following,
            reward=_scalar(reward),
            terminated=bool(terminated),
            truncated=bool(truncated) or (step == max_steps and not terminated),
            episode=episode.number,
            split=episode.split,
        )
        if terminated or truncated:
            return
        observation = following


def _scalar(reward: Any) -> float:
    """Return a reward as a number, also where it comes as an array of one."""
    values = np.asarray(reward, dtype=np.float64)
    if values.size != 1:
        shape = "x".join(map(str, values.shape))
        raise CwmError(f"rewards of the shape {shape} are not served: choose one with one reward")
    return float(values.reshape(()))


def _cache() -> Path:
    """Return the folder of cached recordings."""
    import platformdirs

    return Path(platformdirs.user_cache_dir("cwm")) / "datasets"


def _file_name(asked: Mapping[str, Any]) -> str:
    """Name a request so that people and programs can tell it from others."""
    content = json.dumps(asked, sort_keys=True).encode()
    name = re.sub(r"[^\w.-]+", "-", asked["env"])
    return f"{name}-{asked['policy']}-{asked['seed']}-{sha256(content).hexdigest()[:12]}"
