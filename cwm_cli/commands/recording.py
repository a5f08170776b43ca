"""Record the episodes of a dataset, in one or several processes, also in several calls.

An episode depends on the seed, its split and its place in the split. If its policy looks back, it
also depends on the earlier episodes of its part. Therefore the number of episodes, the number of
processes and interruptions do not change an episode. Episodes are added until each split has its
minimum number of rows.
"""

from __future__ import annotations

import json
import time
from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from copy import deepcopy
from functools import partial
from itertools import count, filterfalse
from math import ceil, inf
from typing import Any, NamedTuple, Self, TypedDict, Unpack

import numpy as np

from cwm_cli.commands.episodes import deal, in_processes
from cwm_cli.commands.policies import Act, Copies, EarlierRows, Policy, Stage, told
from cwm_cli.data.dataset import TURN, Dataset, Transition, is_fitted
from cwm_cli.data.objects import OBJECTS
from cwm_cli.data.spaces import Space
from cwm_cli.envs.spec import EnvironmentSpec, space_of
from cwm_cli.errors import CwmError
from cwm_cli.registry import environment, find
from cwm_cli.runs.observer import SILENT, Observer

COLLECTOR_VERSION = 7
"""Version of the recording: increase it if the same request gives different rows."""


class RecordingOptions(TypedDict, total=False):
    """Options of a recording.

    A split has at least the requested number of episodes, and more until it has its minimum
    number of rows and its policy needs no further episode (`Policy.needs_more`). The minimum is
    200. It is 0 if the number of episodes of the split is given; then the policy cannot add any.
    """

    policy: str
    policy_options: Mapping[str, Any]
    episodes: int
    test_episodes: int
    min_rows: int
    min_test_rows: int
    max_steps: int
    seed: int


DEFAULTS: RecordingOptions = {
    "policy": "curated",
    "episodes": 10,
    "test_episodes": 10,
    "max_steps": 100,
    "seed": 0,
}

MIN_ROWS = 200
"""Default minimum of rows of a split: ten hands of Blackjack show too few of its rules."""

SAVE_SECONDS = 10.0
"""Seconds of a recording between two saves, so that a killed process loses little."""

MAX_SAVING_SHARE = 0.05
"""Maximum share of the time that saves take; large files are saved less often."""

MAX_GROWTH = 3
"""Largest number of episodes of a split as a multiple of the number that has its minimum of rows.

It limits the time of a recording whose policy looks for outcomes that never occur again.
"""

Key = tuple[int, int]
"""Split of an episode (0 train, 1 test), and its place in the split, from 0."""


class EpisodeRequest(NamedTuple):
    """One episode to record.

    Attributes:
        split: 0 for train, 1 for test.
        place: Place in the split, from 0.
        seeds: Seed of the recording, split and place; further starts append their number.
    """

    split: int
    place: int
    seeds: tuple[int, ...]

    @property
    def key(self) -> Key:
        """Split and place."""
        return self.split, self.place

    @property
    def reset_seed(self) -> int:
        """The seed of the environment: even in train, odd in test, so that none is in both."""
        # clear the lowest bit, then set it to the split
        return int(np.random.SeedSequence(self.seeds).generate_state(2)[0]) & ~1 | self.split

    @property
    def part(self) -> tuple[int, bool]:
        """Split, and whether the episode may be fitted to; policies look back on this part only."""
        return self.split, bool(is_fitted(np.array(self.place)))

    @property
    def policy_seed(self) -> int:
        """The seed of the actions."""
        return int(np.random.SeedSequence(self.seeds).generate_state(2)[1])

    def again(self, attempt: int) -> Self:
        """Return the same episode with another start; attempt 0 is the first start."""
        return self._replace(seeds=(*self.seeds, attempt)) if attempt else self


def request(
    spec: EnvironmentSpec,
    env_args: Mapping[str, Any] | None = None,
    **options: Unpack[RecordingOptions],
) -> dict[str, Any]:
    """Return all settings that determine a recording, as stored in the metadata.

    Raises:
        CwmError: There is nothing to record, or an argument is not plain JSON.
    """
    chosen = DEFAULTS | options
    chosen.setdefault("min_rows", 0 if "episodes" in options else MIN_ROWS)
    chosen.setdefault("min_test_rows", 0 if "test_episodes" in options else MIN_ROWS)
    make_policy(chosen)
    if min(chosen["episodes"], chosen["max_steps"]) < 1:
        raise CwmError("nothing to record: --episodes and --max-steps must be at least 1")
    asked = {
        "env": spec.id,
        "env_args": dict(env_args or {}),
        **chosen,
        "versions": dict(spec.versions()),
        "collector": COLLECTOR_VERSION,
    }
    if spec.game:
        asked[TURN] = spec.game.turn
    try:
        plain: dict[str, Any] = json.loads(json.dumps(asked, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise CwmError(f"arguments of {spec.id} must be plain JSON values ({error})") from error
    return plain


class BeingRecorded(NamedTuple):
    """Progress of a running episode; `share` is the finished share, in [0, 1]."""

    key: Key
    share: float


class Recorded(NamedTuple):
    """A recorded episode, with a description of how its actions were chosen."""

    key: Key
    policy: str
    reset_seed: int
    rows: list[Transition]


Events = Generator[BeingRecorded | Recorded, None, None]


class _SplitProgress:
    """Sorted places of the recorded episodes of a split, and totals of their rows.

    `totals[n]` is the number of rows in the first n episodes, up to the first missing place.
    `enough` is the number of episodes after which the policy needs no more, None if unknown.
    """

    def __init__(self) -> None:
        self.places: list[int] = []
        self.totals = [0]
        self.enough: int | None = None


class Recording:
    """Requested and recorded episodes of a dataset.

    An observer receives the `Recording` at the start, then each `BeingRecorded` and `Recorded`.

    Args:
        spec: Specification of the environment.
        env_args: Arguments of the environment.
        begun: Incomplete dataset of the same request to continue.
        options: Options of the recording.
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
        self.recorded: dict[Key, Recorded] = {}
        self._splits = (_SplitProgress(), _SplitProgress())
        self._policy = make_policy(self.asked)
        for episode in _episodes_of(begun) if begun else ():
            self._add(episode)
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
        """The total number of episodes; an estimate while rows are missing."""
        return self._needed_episodes(0) + self._needed_episodes(1)

    @property
    def done(self) -> int:
        """The number of recorded episodes among `episodes`."""
        return sum(
            bisect_left(progress.places, self._needed_episodes(split))
            for split, progress in enumerate(self._splits)
        )

    @property
    def begun(self) -> bool:
        """Whether a train episode is recorded; a dataset needs at least one."""
        return bool(self._splits[0].places)

    def missing(self) -> Iterator[EpisodeRequest]:
        """Yield the missing episodes in recording order.

        Train and test episodes alternate, so that an interrupted recording has both. Episodes
        recorded during the iteration are taken into account.
        """
        # every earlier place is recorded in both splits
        for place in count(min(len(progress.totals) - 1 for progress in self._splits)):
            wanted = [split for split in (0, 1) if place < self._needed_episodes(split)]
            if not wanted:
                return
            for split in wanted:
                if (split, place) not in self.recorded:
                    yield EpisodeRequest(split, place, (self.asked["seed"], split, place))

    def _needed_episodes(self, split: int) -> int:
        """Return the number of episodes that a split needs.

        While rows are missing, this is an estimate from the mean length of its episodes so far.
        """
        min_episodes, rows = self._minima(split)
        progress = self._splits[split]
        totals = progress.totals
        known = len(totals) - 1
        if known < min_episodes or min_episodes == 0:
            return min_episodes
        if totals[-1] < rows:
            return known + ceil((rows - totals[-1]) * known / totals[-1])
        # totals increase: find the first one that reaches the minimum
        least = bisect_left(totals, rows, min_episodes)
        if rows == 0:
            return least
        # assume that the policy needs a quarter more, until it needs none
        return progress.enough or min(MAX_GROWTH * least, known + ceil(least / 4))

    def _minima(self, split: int) -> tuple[int, int]:
        """Return the minimum number of episodes and of rows of a split."""
        names = (("episodes", "min_rows"), ("test_episodes", "min_test_rows"))[split]
        return int(self.asked[names[0]]), int(self.asked[names[1]])

    def _add(self, episode: Recorded) -> None:
        self.recorded[episode.key] = episode
        split, place = episode.key
        progress, (episodes, rows) = self._splits[split], self._minima(split)
        totals = progress.totals
        insort(progress.places, place)
        # episodes may arrive in any order: extend the totals up to the next missing place
        while following := self.recorded.get((split, len(totals) - 1)):
            totals.append(totals[-1] + len(following.rows))
            known = len(totals) - 1
            # If these episodes have enough rows, ask the policy whether it needs more.
            if progress.enough or not rows or known < episodes or totals[-1] < rows:
                continue
            fitted = np.flatnonzero(is_fitted(np.arange(known))).tolist()
            if not self._policy.needs_more([self.recorded[split, n].rows for n in fitted]):
                progress.enough = known

    def play(
        self,
        observer: Observer = SILENT,
        *,
        workers: int = 1,
        max_seconds: float | None = None,
        save: Callable[[], None] | None = None,
    ) -> None:
        """Record the missing episodes.

        Finished episodes are kept in memory even if an error or an interrupt ends the call.

        Args:
            observer: Receives the progress.
            workers: Number of processes.
            max_seconds: Time limit in seconds, checked after each progress event.
            save: Saves the finished episodes; called after an episode, about every 10 seconds.
        """
        began = time.monotonic()
        next_save = began + SAVE_SECONDS
        self._spaces()  # unusable ones are reported before any step
        observer.begins(self)
        try:
            self._policy.prepare(self._stage)
            with closing(self._events(workers)) as events:
                for event in events:
                    if isinstance(event, Recorded):
                        self._add(event)
                    observer.advanced(event)
                    now = time.monotonic()
                    if max_seconds is not None and now - began >= max_seconds:
                        return
                    if save is not None and now >= next_save and isinstance(event, Recorded):
                        save()
                        saving = time.monotonic() - now
                        next_save = now + max(SAVE_SECONDS, saving / MAX_SAVING_SHARE)
        finally:
            observer.ends()

    def _events(self, workers: int) -> Events:
        # several rounds, because the number of missing episodes is only estimated
        while workers > 1 and len(missing := list(self.missing())) > 1:
            yield from self._play_in_processes(missing, workers)
        yield from _play(self._stage, self.asked, self.missing(), self.recorded)

    def _play_in_processes(self, missing: Sequence[EpisodeRequest], workers: int) -> Events:
        # Independent episodes come first. Dependent episodes of one part form a chain, which one
        # process records in order, because each depends on all earlier ones.
        free: list[list[EpisodeRequest]] = []
        chains: dict[tuple[int, bool], list[EpisodeRequest]] = {}
        for episode in missing:
            if self._policy.looks_back(self._stage, episode.place):
                chains.setdefault(episode.part, []).append(episode)
            else:
                free.append([episode])
        for phase in (free, list(chains.values())):
            makers = [
                partial(
                    _play_in_worker,
                    self.asked,
                    self._stage.copies,
                    self._stage.note,
                    [episode for chain in share for episode in chain],
                    dict(self.recorded),
                )
                for share in deal(phase, workers)
            ]
            with closing(in_processes(makers)) as events:
                for _, event in events:
                    yield event

    def _spaces(self) -> tuple[Space, Space]:
        """Return the spaces of observations and actions; `CwmError` if they are not supported."""
        env = self._stage.env
        return space_of(env.observation_space), space_of(env.action_space, "actions")

    def dataset(self) -> Dataset:
        """Return the recorded episodes; `missing` in the metadata lists the missing places.

        Raises:
            CwmError: No train episode is recorded, or the rows do not match the spaces.
        """
        if not self.begun:
            raise CwmError("no train episode finished within the time limit: raise --max-seconds")
        env, missing = self._stage.env, list(self.missing())
        # Processes may have recorded more episodes than needed: leave them out.
        kept = [
            self.recorded[key]
            for key in sorted(self.recorded)
            if missing or key[1] < self._needed_episodes(key[0])
        ]
        observed, acted = self._spaces()
        metadata = dict(self.asked)
        metadata["policies"] = [each.policy for each in kept]
        metadata["reset_seeds"] = [each.reset_seed for each in kept]
        if self._stage.copies != "measured":
            metadata["copies"] = self._stage.copies
        if self._stage.note:
            metadata["note"] = self._stage.note
        if schema := self.spec.objects and self.spec.objects(env):
            metadata[OBJECTS] = schema.to_json()
        if missing:
            metadata["missing"] = [[e.place for e in missing if e.split == n] for n in (0, 1)]
        rows = [row._replace(episode=n) for n, each in enumerate(kept) for row in each.rows]
        try:
            return Dataset.of(
                rows,
                observation_space=observed,
                action_space=acted,
                metadata=metadata,
            ).validate()
        except ValueError as error:
            raise CwmError(f"{self.spec.id} does not match its spaces: {error}") from error


def record(
    spec: EnvironmentSpec,
    *,
    env_args: Mapping[str, Any] | None = None,
    workers: int = 1,
    **options: Unpack[RecordingOptions],
) -> Dataset:
    """Record episodes of a policy; the same request gives the same bytes.

    Train and test episodes never start from the same seed. If no episode can be planned, the
    metadata contain the reason as `note`.
    """
    recording = Recording(spec, env_args, **options)
    recording.play(workers=workers)
    return recording.dataset()


def make_policy(asked: Mapping[str, Any]) -> Policy:
    """Create the requested policy with its options."""
    policy: Policy = find("policy", asked["policy"])(**asked.get("policy_options", {}))
    return policy


def _episodes_of(dataset: Dataset) -> Iterator[Recorded]:
    """Yield the episodes of a dataset, with their places in the split."""
    rows: dict[int, list[Transition]] = {}
    for row in dataset:
        rows.setdefault(row.episode, []).append(row)
    missing = dataset.metadata.get("missing") or [[], []]
    # the episodes are stored in the order of their places, without the missing ones
    places = [filterfalse(set(gone).__contains__, count()) for gone in missing]
    known = zip(dataset.metadata["policies"], dataset.metadata["reset_seeds"], strict=True)
    for number, (policy, seed) in zip(sorted(rows), known, strict=True):
        split = rows[number][0].split
        yield Recorded((split, next(places[split])), policy, seed, rows[number])


def _play_in_worker(
    asked: Mapping[str, Any],
    copies: Copies,
    note: str,
    requests: Sequence[EpisodeRequest],
    known: dict[Key, Recorded],
) -> Events:
    """Record episodes in a worker process; `copies` and `note` are known already."""
    spec = environment(asked["env"])
    stage = Stage(spec, asked["env_args"], asked["seed"], asked["max_steps"], copies, note)
    yield from _play(stage, asked, requests, known)


def _play(
    stage: Stage,
    asked: Mapping[str, Any],
    requests: Iterable[EpisodeRequest],
    known: Mapping[Key, Recorded],
) -> Events:
    """Record the requested episodes; `known` has the episodes recorded before."""
    policy, known = make_policy(asked), dict(known)
    parts: dict[tuple[int, bool], EarlierRows] = defaultdict(EarlierRows)
    reached: dict[tuple[int, bool], int] = defaultdict(int)
    for episode in requests:
        earlier, part = EarlierRows(), episode.part
        if policy.looks_back(stage, episode.place):
            earlier = parts[part]
            for place in range(reached[part], episode.place):  # places only increase
                other = episode._replace(place=place)
                if other.part == part and other.key in known:
                    earlier += known[other.key].rows
            reached[part] = episode.place
        for event in record_episode(stage, policy, episode, earlier):
            if isinstance(event, Recorded):
                known[event.key] = event
            yield event


def record_episode(
    stage: Stage, policy: Policy, episode: EpisodeRequest, earlier: Sequence[Transition]
) -> Events:
    """Record an episode from the start with the highest worth.

    Args:
        stage: The environment.
        policy: The policy, which sets the number of starts and rates them.
        episode: The episode to record.
        earlier: Earlier rows of its part; empty if the policy does not look back.
    """
    starts = _starts(stage, episode, policy.starts(stage, episode.place, earlier))
    best, most = None, -inf
    for number, start in enumerate(starts):
        with stage.anew() as own:
            name, act = policy.begin(own, start.place, start.policy_seed, earlier)
            rows: list[Transition] = []
            for row in _transitions(own, act, start):
                rows.append(row)
                # + 1 keeps the share below 1 until the episode is recorded
                share = (number + len(rows) / (own.max_steps + 1)) / len(starts)
                yield BeingRecorded(episode.key, share)
        worth = policy.worth(stage, start.place, rows, earlier)
        if best is None or worth > most:
            best, most = Recorded(episode.key, name, start.reset_seed, rows), worth
        if worth == inf:
            break
    assert best is not None
    yield best


def _starts(stage: Stage, episode: EpisodeRequest, count: int) -> list[EpisodeRequest]:
    """Return `count` starts of an episode: the first one, and others far from each other.

    The others are chosen from 32 starts, because an end may be in reach only from a rare start.
    """
    if count == 1 or stage.note:
        return [episode.again(attempt) for attempt in range(count)]
    starts = [episode.again(attempt) for attempt in range(32)]
    with stage.anew() as own:
        first = [told(own.env.reset(seed=start.reset_seed)[0]).numbers for start in starts]
    width = np.ptp(first, axis=0)
    places = np.array(first) / np.where(width > 0, width, np.inf)  # constant components become 0
    chosen = [0]
    # farthest-point sampling by the L1 distance
    while len(chosen) < count:
        apart = np.abs(places[:, None] - places[chosen]).sum(axis=2).min(axis=1)
        chosen.append(int(np.argmax(np.where(np.isin(np.arange(len(starts)), chosen), -1, apart))))
    return [starts[index] for index in chosen]


def _transitions(stage: Stage, act: Act, episode: EpisodeRequest) -> Iterator[Transition]:
    env = stage.env
    # copy observations and actions, because environments may reuse or change their arrays
    observation = deepcopy(env.reset(seed=episode.reset_seed)[0])
    action = act(observation, 0)
    for step in range(1, stage.max_steps + 1):
        following, reward, terminated, truncated, _ = env.step(deepcopy(action))
        following = deepcopy(following)
        over = terminated or truncated or step == stage.max_steps
        next_action = None if over else act(following, step)
        yield Transition(
            observation,
            action,
            following,
            reward=_scalar(reward),
            terminated=bool(terminated),
            truncated=bool(truncated or (next_action is None and not terminated)),
            episode=episode.place,
            split=episode.split,
            valid=stage.task.listed(env),
        )
        if next_action is None:
            return
        observation, action = following, next_action


def _scalar(reward: Any) -> float:
    """Return a reward as a number; arrays of one element are accepted."""
    values = np.asarray(reward, dtype=np.float64)
    if values.size != 1:
        shape = "x".join(map(str, values.shape))
        raise CwmError(
            f"rewards of shape {shape} are not supported: choose an environment with one "
            "reward per step"
        )
    return float(values.reshape(()))
