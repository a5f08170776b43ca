"""Record transitions of an environment; find those that ship or were recorded before.

`collect` is what `cwm collect` does. `record` plays and records, `default_dataset` keeps what was
recorded, `load_transitions` gives other work its rows.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from copy import deepcopy
from dataclasses import dataclass
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, Self, TypedDict, Unpack

import numpy as np

from cwm_cli.agents.policies import Act, Policy, Stage
from cwm_cli.data.dataset import Dataset, Transition, is_fitted
from cwm_cli.data.spaces import Space
from cwm_cli.envs.spec import EnvironmentSpec, space_of
from cwm_cli.errors import CwmError
from cwm_cli.registry import Owner, environment, find, read_options
from cwm_cli.runs.observer import SILENT, Observer

COLLECTOR_VERSION = 4
"""Raised whenever the same request would be recorded differently."""


class Recording(NamedTuple):
    """What an observer is told when recording begins: of what, and how many episodes."""

    env: str
    episodes: int


@dataclass(frozen=True)
class CollectionResult:
    """A file of transitions, and what is in it."""

    file: Path
    dataset: Dataset

    @property
    def returns(self) -> list[float]:
        """The return of every episode."""
        columns = self.dataset.columns
        found: list[float] = np.bincount(columns["episodes"], columns["rewards"]).tolist()
        return found

    def as_json(self) -> dict[str, Any]:
        """Return what `cwm collect --json` prints."""
        return {
            "file": str(self.file),
            "transitions": len(self.dataset),
            "episodes": len(self.returns),
            "returns": self.returns,
        }


def collect(
    env: str,
    *,
    env_args: Mapping[str, Any] | None = None,
    episodes: int = 10,
    test_episodes: int = 10,
    max_steps: int = 100,
    policy: str = "curated",
    options: Sequence[str] | Mapping[str, Any] = (),
    seed: int = 0,
    out: Path | str | None = None,
    force: bool = False,
    observer: Observer = SILENT,
) -> CollectionResult:
    """Record transitions of an environment in a file (`out`, or ID.npz in the current folder).

    A file that holds just these is kept as it is; over any other `force` alone writes. `options`
    are those of the policy. The observer is told a `Recording` and numbers of episodes.
    """
    spec = find_environment(env, observer)
    chosen = read_options(options, [Owner("policy", find("policy", policy))])["policy"]
    wanted: RecordingOptions = {
        "policy": policy,
        "episodes": episodes,
        "test_episodes": test_episodes,
        "max_steps": max_steps,
        "seed": seed,
    }
    if chosen:
        wanted["policy_options"] = chosen
    file = Path(out or shipped_name(spec.id))
    dataset = None if force else _found(file, request(spec, env_args, **wanted))
    if dataset is not None:
        observer.note(f"{file} holds these transitions already")
    else:
        with writing(file):
            file.parent.mkdir(parents=True, exist_ok=True)
            if not os.access(file.parent, os.W_OK):
                raise PermissionError(f"no permission for {file.parent}")
        dataset = _observed(spec, observer, env_args=env_args, **wanted)
        with writing(file):
            dataset.save(file)
    if note := dataset.metadata.get("note"):
        observer.note(note)
    return CollectionResult(file, dataset)


def find_environment(name: str, observer: Observer = SILENT) -> EnvironmentSpec:
    """Look up an environment; say so once when another version stands in for it."""
    spec = environment(name)
    if spec.note:
        observer.note(spec.note)
    return spec


def load_transitions(
    spec: EnvironmentSpec,
    *,
    env_args: Mapping[str, Any] | None = None,
    dataset: Dataset | Path | str | None = None,
    data_seed: int = 0,
    observer: Observer = SILENT,
) -> tuple[Dataset, str]:
    """Return transitions and where they are from: those given, or the default ones.

    The default ones are recorded and kept if they are not there yet. Transitions of another
    environment, or of one with other arguments than `env_args` names, are refused.
    """
    if dataset is None:
        file, _ = default_dataset(spec, env_args=env_args, data_seed=data_seed, observer=observer)
        rows = Dataset.load(file)
        if note := rows.metadata.get("note"):
            observer.note(note)
        return rows, str(file)
    source = "given" if isinstance(dataset, Dataset) else str(dataset)
    rows = dataset if isinstance(dataset, Dataset) else Dataset.load(Path(dataset))
    recorded = rows.metadata.get("env", spec.id)
    if recorded != spec.id:
        raise CwmError(f"{source} holds transitions of {recorded}: name --env {recorded}")
    if env_args and dict(env_args) != recorded_args(rows, env_args):
        raise CwmError(
            f"{source} was recorded with --env-arg {recorded_args(rows)}: leave --env-arg out"
        )
    return rows, source


def recorded_args(dataset: Dataset, otherwise: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the arguments of the environment that a dataset was recorded with, where it says."""
    return dict(dataset.metadata.get("env_args", otherwise or {}))


@contextmanager
def writing(file: Path) -> Iterator[None]:
    """Say why a file cannot be written."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise CwmError(f"cannot write {file} ({reason}): --out names another place") from error


def _found(file: Path, asked: Mapping[str, Any]) -> Dataset | None:
    """Return the file if it holds what is asked for; any other file is not touched."""
    if not file.exists():
        return None
    hint = "--force replaces it, --out names another"
    try:
        dataset = Dataset.load(file)
    except CwmError as error:
        raise CwmError(f"{file} is there already and holds no dataset: {hint}") from error
    if not dataset.metadata.items() >= asked.items():
        raise CwmError(f"{file} is there already, recorded in another way: {hint}")
    return dataset


def _observed(
    spec: EnvironmentSpec,
    observer: Observer,
    *,
    env_args: Mapping[str, Any] | None,
    **options: Unpack[RecordingOptions],
) -> Dataset:
    """Record while an observer is told how far it is."""
    wanted = DEFAULTS | options
    observer.begins(Recording(spec.id, wanted["episodes"] + wanted["test_episodes"]))
    try:
        return record(spec, env_args=env_args, progress=observer.advanced, **options)
    finally:
        observer.ends()


class RecordingOptions(TypedDict, total=False):
    """What to record: by which policy, how much, and from which seed."""

    policy: str
    policy_options: Mapping[str, Any]
    episodes: int
    test_episodes: int
    max_steps: int
    seed: int


DEFAULTS: RecordingOptions = {
    "policy": "curated",
    "episodes": 10,
    "test_episodes": 10,
    "max_steps": 100,
    "seed": 0,
}


class EpisodeRequest(NamedTuple):
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
    spec: EnvironmentSpec,
    env_args: Mapping[str, Any] | None = None,
    **options: Unpack[RecordingOptions],
) -> dict[str, Any]:
    """Return everything that decides what `collect` records, as it is kept in the metadata."""
    chosen = DEFAULTS | options
    make_policy(chosen)
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


def episodes(asked: Mapping[str, Any]) -> Iterator[EpisodeRequest]:
    """Yield the train episodes, then the test episodes."""
    places = [
        (split, place)
        for split, name in enumerate(("episodes", "test_episodes"))
        for place in range(asked[name])
    ]
    for number, (split, place) in enumerate(places):
        yield EpisodeRequest(number, split, place, (asked["seed"], split, place))


def file_name(asked: Mapping[str, Any]) -> str:
    """Name a request so that people and programs can tell it from others."""
    content = json.dumps(asked, sort_keys=True).encode()
    name = re.sub(r"[^\w.-]+", "-", asked["env"])
    return f"{name}-{asked['policy']}-{asked['seed']}-{sha256(content).hexdigest()[:12]}.npz"


Progress = Callable[[float], None]


class Recorded(NamedTuple):
    """An episode: how its actions were chosen, the seed it was reset with, its transitions."""

    policy: str
    reset_seed: int
    rows: list[Transition]


def record(
    spec: EnvironmentSpec,
    *,
    env_args: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
    **options: Unpack[RecordingOptions],
) -> Dataset:
    """Record episodes of a policy; the same request gives the same bytes.

    An episode depends on the seed, its split and its place in the split; one that is
    planned for novelty also on those before it in its split. How many there are does not
    matter. Train and test episodes never start from the same seed. `progress` is called
    with the number of episodes recorded, the one that is played by the share of its steps.
    Where nothing can be planned all episodes are random, and the metadata have a `note`.
    """
    metadata = request(spec, env_args, **options)
    stage = Stage(spec, metadata["env_args"], metadata["seed"], metadata["max_steps"])
    with closing(stage.env) as env:
        observed, acted = space_of(env.observation_space), space_of(env.action_space, "actions")
        recorded = list(_play(stage, metadata, progress or (lambda _: None)))
    metadata["policies"] = [each.policy for each in recorded]
    metadata["reset_seeds"] = [each.reset_seed for each in recorded]
    if stage.note:
        metadata["note"] = stage.note
    try:
        return Dataset.of(
            _completed([row for each in recorded for row in each.rows], acted),
            observation_space=observed,
            action_space=acted,
            metadata=metadata,
        )
    except ValueError as error:
        raise CwmError(f"{spec.id} breaks its own rules: {error}") from error


def make_policy(asked: Mapping[str, Any]) -> Policy:
    """Make the policy that is asked for, or say which there are."""
    policy: Policy = find("policy", asked["policy"])(**asked.get("policy_options", {}))
    return policy


def _play(stage: Stage, asked: Mapping[str, Any], progress: Progress) -> Iterator[Recorded]:
    """Record every episode."""
    policy = make_policy(asked)
    parts: dict[tuple[int, bool], list[Transition]] = {}
    for episode in episodes(asked):
        part = episode.split, bool(is_fitted(np.array(episode.place)))
        earlier = parts.setdefault(part, [])
        recorded = _recorded(stage, policy, episode, earlier, progress)
        earlier += recorded.rows
        progress(episode.number + 1)
        yield recorded


def _recorded(
    stage: Stage,
    policy: Policy,
    episode: EpisodeRequest,
    earlier: Sequence[Transition],
    progress: Progress,
) -> Recorded:
    """Record an episode: from the first start, or from another that alone comes to an end."""
    known = any(row.terminated for row in earlier)
    starts = 1 if known else policy.starts(episode.place)
    attempts: list[Recorded] = []
    for start in range(starts):
        again = episode.again(start)
        with stage.anew() as own:
            name, act = policy.begin(own, again.place, again.policy_seed, earlier)
            rows = []
            for row in _transitions(own, act, again):
                rows.append(row)
                progress(episode.number + (start + len(rows) / (own.max_steps + 1)) / starts)
        attempts.append(Recorded(name, again.reset_seed, rows))
        if rows[-1].terminated or stage.note:
            return attempts[-1]
    return attempts[0]


def _transitions(stage: Stage, act: Act, episode: EpisodeRequest) -> Iterator[Transition]:
    """Yield the transitions of one episode; environments may reuse the arrays they give."""
    env = stage.env
    observation = deepcopy(env.reset(seed=episode.reset_seed)[0])
    for step in range(stage.max_steps):
        action = act(observation, step)
        following, reward, terminated, truncated, _ = env.step(deepcopy(action))
        following = deepcopy(following)
        cut = step + 1 == stage.max_steps and not terminated
        yield Transition(
            observation,
            action,
            following,
            reward=_scalar(reward),
            terminated=bool(terminated),
            truncated=bool(truncated) or cut,
            episode=episode.number,
            split=episode.split,
            valid=_valid(stage),
        )
        if terminated or truncated:
            return
        observation = following


def _valid(stage: Stage) -> tuple[int, ...] | None:
    """Return the actions that are allowed where the environment stands, None where all are."""
    named = stage.spec.valid_actions
    valid = named(stage.env.unwrapped) if named else None
    return None if valid is None else tuple(map(int, valid))


def _completed(transitions: Sequence[Transition], space: Space) -> list[Transition]:
    """Name all actions where all are allowed, if elsewhere only some are."""
    if space.kind != "discrete" or all(row.valid is None for row in transitions):
        return [row._replace(valid=None) for row in transitions]
    every = tuple(range(int(space.low[0]), int(space.high[0]) + 1))
    return [row if row.valid is not None else row._replace(valid=every) for row in transitions]


def _scalar(reward: Any) -> float:
    """Return a reward as a number, also where it comes as an array of one."""
    values = np.asarray(reward, dtype=np.float64)
    if values.size != 1:
        shape = "x".join(map(str, values.shape))
        raise CwmError(f"rewards of the shape {shape} are not served: choose one with one reward")
    return float(values.reshape(()))


PACKAGE = "cwm_data"
"""The package of the datasets that ship."""

INDIFFERENT = ("numpy",)
"""Packages whose versions may differ from those that a shipped dataset was recorded with.

Planning may go another way with another numpy, but what is recorded is what the environment
did: its own package, and MuJoCo, decide that.
"""


def default_dataset(
    spec: EnvironmentSpec,
    *,
    env_args: Mapping[str, Any] | None = None,
    data_seed: int = 0,
    observer: Observer = SILENT,
    **options: Unpack[RecordingOptions],
) -> tuple[Path, bool]:
    """Return the recording of a request that ships or is in the cache, and whether it was there."""
    options["seed"] = data_seed
    asked = request(spec, env_args, **options)
    shipped = _shipped(spec.id)
    if shipped and _essential(asked) == _essential(_request_of(shipped, asked)):
        return shipped, True
    path = _cache() / file_name(asked)
    if _request_of(path, asked) == asked:
        return path, True
    dataset = _observed(spec, observer, env_args=env_args, **options)
    try:
        dataset.save(path)
    except OSError as error:
        hint = "set XDG_CACHE_HOME to a folder that can be written"
        raise CwmError(f"cannot keep the transitions in {path} ({error}): {hint}") from error
    return path, False


def _shipped(env: str) -> Path | None:
    """Return where the dataset of an environment would ship, if any are installed."""
    package = find_spec(PACKAGE)
    folders = (package.submodule_search_locations or []) if package else []
    return next((Path(folder) / shipped_name(env) for folder in folders), None)


def shipped_name(env: str) -> str:
    """Return the id of an environment as the name of its dataset."""
    return re.sub(r"[^\w.-]+", "-", env) + ".npz"


def _request_of(path: Path, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was asked for when a file was recorded, in the terms of a request."""
    try:
        found = Dataset.load(path).metadata
    except CwmError:
        return {}  # missing, or spoilt by a crash of the machine: recorded anew
    return {name: found.get(name) for name in asked}


def _essential(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return a request without the versions that do not matter."""
    versions = asked.get("versions") or {}
    kept = {name: number for name, number in versions.items() if name not in INDIFFERENT}
    return {**asked, "versions": kept}


def _cache() -> Path:
    """Return the folder of cached recordings."""
    import platformdirs

    return Path(platformdirs.user_cache_dir("cwm")) / "datasets"
