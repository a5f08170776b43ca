"""A world model of tokens: what it answers to rows, imagined in, and planned with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from cwm_cli.data.dataset import VALID, Dataset
from cwm_cli.errors import CwmError
from cwm_cli.planning.model import EpisodeHistory, Here, Model, Step
from cwm_cli.worlds.model import (
    ImaginedEpisodes,
    ImaginedStep,
    Planning,
    PlanningSession,
    Predictions,
    TrustedSession,
    WorldModel,
)
from cwm_neural.sequence import FrameSequence, OutcomeLogits, SequenceState
from cwm_neural.tokens import Codes, Tokenizer

if TYPE_CHECKING:
    import gymnasium as gym

    from cwm_cli.data.spaces import Columns, Space
    from cwm_cli.envs.tasks import Task

MOST_ACTIONS = 1024
"""Actions that have an embedding each; of more most would never be met."""

TOGETHER = 1 << 15
"""Tokens that are asked for at once: their logits fit into some megabytes."""

SIGNS = (-1.0, 0.0, 1.0)
"""Rewards where only their sign is learned."""


class TokenRows(NamedTuple):
    """TokenRows as a sequence model sees them: tokens before and after, and what lies between.

    `follows` says of each row whether it goes on from the one before it. Rewards are classes.
    """

    before: Tensor
    after: Tensor
    actions: Tensor
    rewards: Tensor
    ends: Tensor
    follows: np.ndarray
    valid: Tensor | None = None


class ActionCodes:
    """Actions of a finite space by number; `CwmError` for others."""

    def __init__(self, space: Space) -> None:
        if space.kind not in ("discrete", "multidiscrete", "multibinary"):
            words = "this kind of model takes actions that can be counted, not real numbers"
            raise CwmError(f"{words}: choose --model ensemble")
        if space.cardinality > MOST_ACTIONS:
            raise CwmError(f"{space.cardinality:,} actions are too many for this kind of model")
        self.space, self.count = space, int(space.cardinality)

    def encode(self, actions: Columns) -> np.ndarray:
        """Return the number of each action (n,)."""
        low, high = np.array(self.space.low), np.array(self.space.high)
        column = actions["actions"].reshape(len(actions["actions"]), len(low)) - low
        sizes = tuple((high - low + 1).astype(int).tolist())
        numbers: np.ndarray = np.ravel_multi_index(column.astype(np.int64).T, sizes, mode="clip")
        return numbers


@dataclass
class TokenWorld(WorldModel):
    """Predicts the tokens of the next observation by a sequence model.

    `refilled` is with how many frames it goes on once the context is full. Where its rows show
    chance (`by_chance`), plans draw what follows; else they take what is likeliest. `valid`: the
    environment names valid actions.
    """

    kind: ClassVar[str] = "tokens"

    name: str
    network: FrameSequence
    tokenizer: Tokenizer
    observation_space: Space
    actions: ActionCodes
    rewards: Codes
    refilled: int = 1
    by_chance: bool = False
    valid: bool = False

    @property
    def remembers(self) -> bool:
        """Whether it sees more than one observation."""
        return self.network.sizes.context > 2

    @property
    def device(self) -> torch.device:
        """Where its parameters are."""
        return next(self.network.parameters()).device

    def describe(self) -> str:
        """Say what it is, and how large."""
        count = sum(each.numel() for each in self.network.parameters())
        return f"a world model of tokens ({self.name}, {count:,} parameters)"

    def seen(self, observations: Columns) -> Columns:
        """Return observations as the tokens have them."""
        return self.tokenizer.decode(self.tokenizer.encode(observations), observations)

    def tensors(self, rows: Dataset) -> TokenRows:
        """Return rows as tensors, on the CPU."""
        before = rows.select("observations")
        after = {name: rows.columns[f"next_{name}"] for name in before}
        seen, followed = self.tokenizer.encode(before).cpu(), self.tokenizer.encode(after).cpu()
        follows = np.zeros(len(rows), np.bool_)
        episodes = rows.columns["episodes"]
        follows[1:] = (episodes[1:] == episodes[:-1]) & ~rows.columns["terminations"][:-1]
        follows[1:] &= (seen[1:] == followed[:-1]).all(1).numpy()
        valid = torch.from_numpy(rows.columns[VALID]).float() if rows.has_valid_actions else None
        return TokenRows(
            seen,
            followed,
            torch.from_numpy(self.actions.encode(rows.select("actions"))),
            torch.from_numpy(self.rewards.encode(rows.columns["rewards"])),
            torch.from_numpy(rows.columns["terminations"].astype(np.int64)),
            follows,
            valid,
        )

    def predict(self, rows: Dataset, *, seed: int = 0, draws: int = 1) -> Predictions:
        """Say what is likeliest after each row, or draw it as often as asked for."""
        data = self.tensors(rows)
        places, skipped = self.behind(data.follows)
        generator = None if draws == 1 else torch.Generator().manual_seed(seed)
        size = self.network.sizes.count * places.shape[1]
        found = []
        for part in np.array_split(np.arange(len(rows)), 1 + len(rows) * size * draws // TOGETHER):
            each = torch.from_numpy(part).repeat_interleave(draws)
            moment = TokenEpisodes(
                self, data.before[places[each]], data.actions[places[each]][:, :-1], skipped[each]
            )
            found.append(moment.advance(data.actions[each], generator))
        steps = TokenStep(*map(torch.cat, zip(*found, strict=True)))
        before = {key: each.repeat(draws, 0) for key, each in rows.select("observations").items()}
        columns = self.columns(steps, before, "next_observations")
        if rows.has_valid_actions:
            columns[VALID] = steps.valid.numpy()
        if draws == 1:
            return Predictions(columns)
        shaped = {key: each.reshape(-1, draws, *each.shape[1:]) for key, each in columns.items()}
        return Predictions(shaped, shape="draws")

    def columns(self, step: TokenStep, before: Columns, name: str) -> Columns:
        """Return what a step led to as columns."""
        found = self.tokenizer.decode(step.frames, before)
        columns = {key.replace("observations", name, 1): each for key, each in found.items()}
        columns["rewards"] = self.rewards.values[step.rewards.numpy()]
        columns["terminations"] = step.ends.numpy() == 1
        return columns

    def imagine(
        self, starts: Sequence[EpisodeHistory], rows: Dataset, *, seed: int = 0
    ) -> ImaginedTokens:
        """Go on with several episodes; all of them are drawn."""
        seen = [start.observations[-1] for start in starts]
        observations = self.observation_space.pack("observations", seen)
        return ImaginedTokens(self, self.standing(starts), observations, seed, valid=self.valid)

    def unroll(
        self, starts: Sequence[EpisodeHistory], plans: Sequence[Sequence[Any]], rows: Dataset
    ) -> Iterator[list[Any]]:
        """Yield what is likeliest to be observed, for each start."""
        model = TokenPlanning(self, 0, likeliest=True)
        for start, plan in zip(starts, plans, strict=True):
            model.stand(start)
            yield [model.step(action).observation for action in plan]

    def open(self, planners: Sequence[Planning], task: Task) -> PlanningSession:
        """Begin to plan: with draws where chance was seen, and else with what is likeliest."""
        return TokenSession(self, planners, task.seed)

    def standing(self, starts: Sequence[EpisodeHistory]) -> TokenEpisodes:
        """Return where histories lead, as far as they can be seen."""
        room = self.network.sizes.context - 1
        seen = [start.observations[-room:] for start in starts]
        done = [
            start.actions[len(start.actions) - len(each) + 1 :]
            for start, each in zip(starts, seen, strict=True)
        ]
        tokens = self.tokenizer.encode(
            self.observation_space.pack("observations", [one for each in seen for one in each])
        ).cpu()
        numbers = self.actions.encode(
            self.actions.space.pack("actions", [one for each in done for one in each])
        )
        length = max(map(len, seen))
        frames = torch.zeros(len(starts), length, tokens.shape[1], dtype=torch.int64)
        actions = torch.zeros(len(starts), length - 1, dtype=torch.int64)
        skipped = torch.tensor([length - len(each) for each in seen])
        mask = torch.arange(length) >= skipped[:, None]
        frames[mask] = tokens
        actions[mask[:, :-1]] = torch.from_numpy(numbers)
        return TokenEpisodes(self, frames, actions, skipped)

    def behind(self, follows: np.ndarray) -> tuple[Tensor, Tensor]:
        """Return for each row the rows that led to it and itself, and how many are none."""
        room = self.network.sizes.context - 1
        age = np.arange(len(follows)) - np.maximum.accumulate(
            np.where(follows, 0, np.arange(len(follows)))
        )
        steps = np.arange(-room + 1, 1)
        places = (np.arange(len(follows))[:, None] + steps).clip(min=0)
        skipped = (room - 1 - age).clip(min=0)
        return torch.from_numpy(places), torch.from_numpy(skipped)


class TokenStep(NamedTuple):
    """What several sequences were led to: frames, classes of rewards, ends, valid actions."""

    frames: Tensor
    rewards: Tensor
    ends: Tensor
    valid: Tensor


class TokenEpisodes:
    """Sequences that go on side by side, of which as many frames are kept as can be seen."""

    def __init__(
        self, world: TokenWorld, frames: Tensor, actions: Tensor, skipped: Tensor | None = None
    ) -> None:
        self.world, self.frames, self.actions = world, frames, actions
        self.skipped = skipped if skipped is not None and bool(skipped.any()) else None
        self._standing: SequenceState | None = None

    @property
    def last(self) -> Tensor:
        """The last frames (n, count)."""
        return self.frames[:, -1]

    def advance(self, actions: Tensor, generator: torch.Generator | None) -> TokenStep:
        """Take actions (n,), by number; without a generator what is likeliest follows."""
        with torch.no_grad():
            return self._advance(actions, generator)

    def _advance(self, actions: Tensor, generator: torch.Generator | None) -> TokenStep:
        """Take actions, of which no gradient is wanted."""
        network, world = self.world.network, self.world
        network.eval()
        if self._standing is None or self._standing.frames == network.sizes.context:
            self._begin()
        assert self._standing is not None
        noise = None
        if generator is not None:
            size = (len(actions), network.sizes.count, network.sizes.vocabulary)
            noise = _gumbel(size, generator).to(world.device)
        acted = actions.to(world.device)
        frames, outcome, self._standing = network.step(self._standing, acted, noise)
        step = self._drawn(frames.cpu(), outcome, generator)
        self.frames = torch.cat([self.frames, step.frames[:, None]], 1)
        self.actions = torch.cat([self.actions, actions[:, None]], 1)
        return step

    def keep(self, places: Tensor) -> None:
        """Go on with some of them."""
        self.frames, self.actions = self.frames[places], self.actions[places]
        self.skipped = None if self.skipped is None else self.skipped[places]
        if self._standing is not None:
            there = places.to(self.world.device)
            self._standing = self.world.network.keep(self._standing, there)

    def _begin(self) -> None:
        """See the last frames: what led here at first, and `refilled` once the context is full."""
        most = self.frames.shape[1]
        if self._standing is not None:
            most = self.world.refilled
        most = min(most, self.world.network.sizes.context - 1)
        left = self.frames.shape[1] - most
        self.frames, self.actions = self.frames[:, left:], self.actions[:, left:]
        if self.skipped is not None:
            self.skipped = (self.skipped - left).clamp(min=0)
            self.skipped = self.skipped if bool(self.skipped.any()) else None
        device = self.world.device
        skipped = None if self.skipped is None else self.skipped.to(device)
        frames, actions = self.frames.to(device), self.actions.to(device)
        self._standing = self.world.network.begin(frames, actions, skipped)

    def _drawn(
        self, frames: Tensor, outcome: OutcomeLogits, generator: torch.Generator | None
    ) -> TokenStep:
        """Draw what comes with a step."""
        rewards = outcome.rewards.cpu()[:, : len(self.world.rewards.values)]
        ends = outcome.ends.cpu()
        if generator is not None:
            rewards = rewards + _gumbel(rewards.shape, generator)
            ends = ends + _gumbel(ends.shape, generator)
        valid = outcome.valid.cpu() > 0
        return TokenStep(frames, rewards.argmax(-1), ends.argmax(-1), valid)


class ImaginedTokens(ImaginedEpisodes):
    """Episodes of which observations are decoded at every step."""

    def __init__(
        self, world: TokenWorld, start: TokenEpisodes, seen: Columns, seed: int, *, valid: bool
    ) -> None:
        self._world, self._episodes, self._seen, self._valid = world, start, seen, valid
        self._generator = torch.Generator().manual_seed(seed)
        self.count = len(start.last)

    def step(self, actions: Columns) -> ImaginedStep:
        """Draw what follows."""
        numbers = torch.from_numpy(self._world.actions.encode(actions))
        step = self._episodes.advance(numbers, self._generator)
        columns = self._world.columns(step, self._seen, "observations")
        rewards, ends = columns.pop("rewards"), columns.pop("terminations")
        self._seen = columns
        return ImaginedStep(
            dict(columns), rewards, ends, step.valid.numpy() if self._valid else None
        )

    def keep(self, places: np.ndarray) -> None:
        """Go on with the episodes at some places only, in that order."""
        self._episodes.keep(torch.from_numpy(np.asarray(places)))
        self._seen = {name: column[places] for name, column in self._seen.items()}
        self.count = len(places)


class TokenPlanning(Model):
    """A world model of tokens as planners step through it; states are frames and actions."""

    def __init__(self, world: TokenWorld, seed: int, *, likeliest: bool) -> None:
        self.world, self.action_space = world, world.actions.space
        self.deterministic, self.remembers = likeliest, world.remembers
        self.hides = world.remembers
        self.counter = [0]
        self._known: dict[Any, tuple[Here, Step]] = {}
        self.draw_from((seed,))

    def draw_from(self, key: Sequence[int]) -> None:
        """Have draws follow from a key."""
        super().draw_from(key)
        drawn = int(np.random.default_rng([abs(int(each)) for each in key]).integers(1 << 31))
        self._generator = None if self.deterministic else torch.Generator().manual_seed(drawn)

    def stand(self, state: Any) -> None:
        """Stand at an observation, where a history leads, or at what `here` returned."""
        if not isinstance(state, Here):
            history = state if isinstance(state, EpisodeHistory) else EpisodeHistory((state,))
            episodes = self.world.standing([history])
            state = Here(history.observations[-1], _packed(episodes))
        self._here: Here = state

    def here(self) -> Here:
        """Return the observation, and the frames that can be seen."""
        return self._here

    def step(self, action: Any) -> Step:
        """Take an action; what is certain is asked once."""
        self.counter[0] += 1
        key = self._here.state, np.asarray(action).tobytes()
        if self.deterministic and key in self._known:
            self._here, step = self._known[key]
            return step
        episodes = self._episodes([self._here])
        number = self.world.actions.encode(self.action_space.pack("actions", [action]))
        taken = episodes.advance(torch.from_numpy(number), self._generator)
        space = self.world.observation_space
        before = space.pack("observations", [self._here.observation])
        columns = self.world.columns(taken, before, "observations")
        after = space.unpack("observations", columns, 0)
        valid = self.action_space.masked(taken.valid[0].numpy()) if self.world.valid else None
        step = Step(
            after, float(columns["rewards"][0]), bool(columns["terminations"][0]), valid or None
        )
        self._here = Here(after, _packed(episodes))
        if self.deterministic:
            self._known[key] = self._here, step
        return step

    def returns(self, states: Sequence[Any], plans: np.ndarray, draws: int = 0) -> np.ndarray:
        """Play all plans from all states at once."""
        times = max(draws, 1)
        places = np.repeat(np.arange(len(states)), plans.shape[1] * times)
        listed = []
        for state in states:
            self.stand(state)
            listed.append(self._here)
        chosen = plans.repeat(times, axis=1).reshape(-1, plans.shape[2], *plans.shape[3:])
        total = np.zeros(len(places))
        generator = self._generator if draws else None
        size = max(TOGETHER // (self.world.network.sizes.count * 4), 1)
        for part in np.array_split(np.arange(len(places)), 1 + len(places) // size):
            episodes = self._episodes([listed[place] for place in places[part]])
            alive = np.ones(len(part), np.bool_)
            for time in range(plans.shape[2]):
                numbers = self.world.actions.encode({"actions": chosen[part, time]})
                step = episodes.advance(torch.from_numpy(numbers), generator)
                total[part] += alive * self.world.rewards.values[step.rewards.numpy()]
                self.counter[0] += int(alive.sum())
                alive &= step.ends.numpy() == 0
                if not alive.any():
                    break
        returns: np.ndarray = total.reshape(*plans.shape[:2], times).mean(axis=2)
        return returns

    def _episodes(self, states: Sequence[Here]) -> TokenEpisodes:
        """Return sequences that stand at states."""
        count = self.world.network.sizes.count
        frames = [np.frombuffer(each.state[0], np.int64).reshape(-1, count) for each in states]
        length = max(map(len, frames))
        found = torch.zeros(len(states), length, count, dtype=torch.int64)
        actions = torch.zeros(len(states), length - 1, dtype=torch.int64)
        for place, (state, seen) in enumerate(zip(states, frames, strict=True)):
            found[place, length - len(seen) :] = torch.from_numpy(seen.copy())
            done = np.frombuffer(state.state[1], np.int64)
            actions[place, length - len(seen) :] = torch.from_numpy(done.copy())
        skipped = torch.tensor([length - len(each) for each in frames])
        return TokenEpisodes(self.world, found, actions, skipped)


class TokenSession(TrustedSession):
    """Plans with a world model of tokens."""

    def __init__(self, world: TokenWorld, planners: Sequence[Planning], seed: int) -> None:
        model = TokenPlanning(world, seed, likeliest=not world.by_chance)
        super().__init__(model, planners, seed, form="tokens")

    def state(self, env: gym.Env[Any, Any], history: EpisodeHistory) -> Any:
        """Return what was observed last; all that happened, where more of it is seen."""
        return history if self._model.remembers else history.observations[-1]


def _packed(episodes: TokenEpisodes) -> tuple[bytes, bytes]:
    """Return what can be seen of a single sequence."""
    room = episodes.world.network.sizes.context - 1
    skipped = 0 if episodes.skipped is None else int(episodes.skipped[0])
    first = max(skipped, episodes.frames.shape[1] - room)
    frames, actions = episodes.frames[0, first:].numpy(), episodes.actions[0, first:].numpy()
    return frames.tobytes(), actions.tobytes()


def _gumbel(size: Sequence[int], generator: torch.Generator) -> Tensor:
    """Return noise, with which the largest logit is a draw."""
    return -torch.empty(tuple(size)).exponential_(generator=generator).log()
