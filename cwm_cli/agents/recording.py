"""Record episodes: what is asked for, how far it is, and the dataset that comes of it.

An episode depends on the seed, its split and its place in the split; one that looks back also on
those before it that serve the same. So it does not matter how many there are, who records them,
or whether some were recorded before.
"""

from __future__ import annotations

import json
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from copy import deepcopy
from functools import partial
from math import inf
from typing import Any, NamedTuple, Self, TypedDict, Unpack

import numpy as np

from cwm_cli.agents.episodes import dealt, in_processes
from cwm_cli.agents.policies import Act, Copies, Policy, Stage, told
from cwm_cli.data.dataset import Dataset, Transition, is_fitted
from cwm_cli.data.spaces import Space
from cwm_cli.envs.spec import EnvironmentSpec, space_of
from cwm_cli.errors import CwmError
from cwm_cli.registry import environment, find
from cwm_cli.runs.observer import SILENT, Observer

COLLECTOR_VERSION = 4
"""Raised whenever the same request would be recorded differently."""


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
    def part(self) -> tuple[int, bool]:
        """Its split, and whether it may be fitted to: no other part is looked back on."""
        return self.split, bool(is_fitted(np.array(self.place)))

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


class BeingRecorded(NamedTuple):
    """An episode that is being played, by its number, and what share of it is done."""

    number: int
    share: float


class Recorded(NamedTuple):
    """An episode: its number, how its actions were chosen, its seed, its transitions."""

    number: int
    policy: str
    reset_seed: int
    rows: list[Transition]


Events = Generator[BeingRecorded | Recorded, None, None]


class Recording:
    """Episodes that are asked for, and those that are recorded; begun with those of a dataset.

    An observer is told it when recording begins, then each `BeingRecorded` and `Recorded`.
    """

    def __init__(
        self,
        spec: EnvironmentSpec,
        env_args: Mapping[str, Any] | None = None,
        *,
        begun: Dataset | None = None,
        **options: Unpack[RecordingOptions],
    ) -> None:
        self.spec = spec
        self.asked = request(spec, env_args, **options)
        self.recorded: dict[int, Recorded] = _recorded_in(begun) if begun else {}
        self._policy = make_policy(self.asked)
        known: Mapping[str, Any] = begun.metadata if begun else {}
        self._stage = Stage(
            spec,
            self.asked["env_args"],
            self.asked["seed"],
            self.asked["max_steps"],
            known.get("copies", "measured"),
            known.get("note", ""),
        )

    @property
    def episodes(self) -> int:
        """How many episodes are asked for."""
        count: int = self.asked["episodes"] + self.asked["test_episodes"]
        return count

    @property
    def begun(self) -> bool:
        """Whether there is a train episode, without which there is no dataset."""
        return any(n < self.asked["episodes"] for n in self.recorded)

    def missing(self) -> list[EpisodeRequest]:
        """Return the episodes that are still to be recorded, in the order they are recorded in.

        Train and test take turns, so that there are some of both whenever it is broken off.
        """
        wanted = (each for each in episodes(self.asked) if each.number not in self.recorded)
        return sorted(wanted, key=lambda each: (each.place, each.split))

    def play(
        self, observer: Observer = SILENT, *, workers: int = 1, max_seconds: float | None = None
    ) -> None:
        """Record what is missing, in so many processes, until that is done or time is over.

        Whatever ends it, the episodes that were over by then are kept.
        """
        began = time.monotonic()
        observer.begins(self)
        try:
            self._policy.prepare(self._stage)
            with closing(self._events(workers)) as events:
                for event in events:
                    if isinstance(event, Recorded):
                        self.recorded[event.number] = event
                    observer.advanced(event)
                    if max_seconds is not None and time.monotonic() - began >= max_seconds:
                        return
        finally:
            observer.ends()

    def _events(self, workers: int) -> Events:
        """Play here, or in processes: first what looks back on nothing, then chains of the rest."""
        missing = self.missing()
        if min(workers, len(missing)) < 2:
            yield from _play(self._stage, self.asked, missing, self.recorded)
            return
        free: list[list[EpisodeRequest]] = []
        chains: dict[tuple[int, bool], list[EpisodeRequest]] = {}
        for each in missing:
            if self._policy.looks_back(self._stage, each.place):
                chains.setdefault(each.part, []).append(each)
            else:
                free.append([each])
        for phase in (free, list(chains.values())):
            makers = [
                partial(
                    _play_named,
                    self.asked,
                    self._stage.copies,
                    self._stage.note,
                    [episode for chain in share for episode in chain],
                    dict(self.recorded),
                )
                for share in dealt(phase, workers)
            ]
            with closing(in_processes(makers)) as heard:
                for _, event in heard:
                    yield event

    def dataset(self) -> Dataset:
        """Return what is recorded; `missing` in the metadata numbers what is not."""
        env, done = self._stage.env, [self.recorded[n] for n in sorted(self.recorded)]
        if not self.begun:
            raise CwmError("no train episode was over in time: allow more with --max-seconds")
        observed, acted = space_of(env.observation_space), space_of(env.action_space, "actions")
        metadata = dict(self.asked)
        metadata["policies"] = [each.policy for each in done]
        metadata["reset_seeds"] = [each.reset_seed for each in done]
        if self._stage.copies != "measured":
            metadata["copies"] = self._stage.copies
        if self._stage.note:
            metadata["note"] = self._stage.note
        if missing := self.missing():
            metadata["missing"] = sorted(each.number for each in missing)
        try:
            return Dataset.of(
                _completed([row for each in done for row in each.rows], acted),
                observation_space=observed,
                action_space=acted,
                metadata=metadata,
            )
        except ValueError as error:
            raise CwmError(f"{self.spec.id} breaks its own rules: {error}") from error


def record(
    spec: EnvironmentSpec,
    *,
    env_args: Mapping[str, Any] | None = None,
    workers: int = 1,
    **options: Unpack[RecordingOptions],
) -> Dataset:
    """Record episodes of a policy; the same request gives the same bytes.

    Train and test episodes never start from the same seed. Where nothing can be planned the
    metadata have a `note`.
    """
    recording = Recording(spec, env_args, **options)
    recording.play(workers=workers)
    return recording.dataset()


def make_policy(asked: Mapping[str, Any]) -> Policy:
    """Make the policy that is asked for, or say which there are."""
    policy: Policy = find("policy", asked["policy"])(**asked.get("policy_options", {}))
    return policy


def _recorded_in(dataset: Dataset) -> dict[int, Recorded]:
    """Return the episodes of a dataset."""
    rows: dict[int, list[Transition]] = {}
    for row in dataset:
        rows.setdefault(row.episode, []).append(row)
    kept = zip(dataset.metadata["policies"], dataset.metadata["reset_seeds"], strict=True)
    return {n: Recorded(n, *each, rows[n]) for n, each in zip(sorted(rows), kept, strict=True)}


def _play_named(
    asked: Mapping[str, Any],
    copies: Copies,
    note: str,
    requests: Sequence[EpisodeRequest],
    known: dict[int, Recorded],
) -> Events:
    """Record some of the episodes in a process of its own; what copies cost is known."""
    spec = environment(asked["env"])
    stage = Stage(spec, asked["env_args"], asked["seed"], asked["max_steps"], copies, note)
    yield from _play(stage, asked, requests, known)


def _play(
    stage: Stage,
    asked: Mapping[str, Any],
    requests: Iterable[EpisodeRequest],
    known: Mapping[int, Recorded],
) -> Events:
    """Record some of the episodes, given others."""
    policy, known = make_policy(asked), dict(known)
    others = list(episodes(asked))
    for episode in requests:
        before = [
            row
            for other in others
            if other.part == episode.part and other.place < episode.place
            for row in (known[other.number].rows if other.number in known else ())
        ]
        earlier = before if policy.looks_back(stage, episode.place) else []
        for event in _recorded(stage, policy, episode, earlier):
            if isinstance(event, Recorded):
                known[event.number] = event
            yield event


def _recorded(
    stage: Stage, policy: Policy, episode: EpisodeRequest, earlier: Sequence[Transition]
) -> Events:
    """Record an episode: from the first start, or from that of several which is worth most."""
    starts = _starts(stage, episode, policy.starts(stage, episode.place, earlier))
    best, most = None, -inf
    for count, start in enumerate(starts):
        with stage.anew() as own:
            name, act = policy.begin(own, start.place, start.policy_seed, earlier)
            rows: list[Transition] = []
            for row in _transitions(own, act, start):
                rows.append(row)
                share = (count + len(rows) / (own.max_steps + 1)) / len(starts)
                yield BeingRecorded(episode.number, share)
        worth = policy.worth(stage, start.place, rows, earlier)
        if best is None or worth > most:
            best, most = Recorded(episode.number, name, start.reset_seed, rows), worth
        if worth == inf:
            break
    assert best is not None
    yield best


STARTS = 32
"""Starts among which those to try are chosen: an end may be within reach from the rarest only."""


def _starts(stage: Stage, episode: EpisodeRequest, count: int) -> list[EpisodeRequest]:
    """Return the start of an episode, and as many others that lie far from it and each other."""
    if count == 1 or stage.note:
        return [episode.again(attempt) for attempt in range(count)]
    starts = [episode.again(attempt) for attempt in range(STARTS)]
    with stage.anew() as own:
        first = [told(own.env.reset(seed=start.reset_seed)[0]).numbers for start in starts]
    width = np.ptp(first, axis=0)
    places = np.array(first) / np.where(width > 0, width, np.inf)  # what never differs is no place
    chosen = [0]
    while len(chosen) < count:
        apart = np.abs(places[:, None] - places[chosen]).sum(axis=2).min(axis=1)
        chosen.append(int(np.argmax(np.where(np.isin(np.arange(STARTS), chosen), -1, apart))))
    return [starts[index] for index in chosen]


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
