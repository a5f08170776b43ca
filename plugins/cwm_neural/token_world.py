"""World model of tokens: predictions, imagined episodes, and planning."""

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

MAX_BATCH_TOKENS = 1 << 15
"""Tokens per call of the network; their logits take some megabytes."""

SIGNS = (-1.0, 0.0, 1.0)
"""Reward classes if only the sign of rewards is learned."""


class TokenRows(NamedTuple):
    """Rows for sequence models: tokens before and after each action, actions and outcomes.

    Rewards are classes. `follows` is True for rows that continue the previous row.
    """

    before: Tensor
    after: Tensor
    actions: Tensor
    rewards: Tensor
    ends: Tensor
    follows: np.ndarray
    valid: Tensor | None = None


class ActionCodes:
    """Numbers the actions of a finite space; raises `CwmError` for other spaces."""

    def __init__(self, space: Space) -> None:
        if space.kind not in ("discrete", "multidiscrete", "multibinary"):
            words = "this kind of model takes actions that can be counted, not real numbers"
            raise CwmError(f"{words}: choose --model ensemble")
        # actions have one embedding each; most of a larger number would occur in no row
        max_actions = 1024
        if space.cardinality > max_actions:
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
    """Predicts the tokens of the next observation with a sequence model.

    When the context is full, the last `refilled` frames are kept. Plans sample their steps if equal
    rows have different outcomes (`by_chance`); else they take the most likely ones. `valid` is
    True if the environment names valid actions.
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
        """Whether the model sees more than one observation."""
        return self.network.sizes.context > 2

    @property
    def device(self) -> torch.device:
        """The device of the parameters."""
        return next(self.network.parameters()).device

    def describe(self) -> str:
        """Return a short description with the number of parameters."""
        count = sum(each.numel() for each in self.network.parameters())
        return f"a world model of tokens ({self.name}, {count:,} parameters)"

    def seen(self, observations: Columns) -> Columns:
        """Return observations after a round trip through the tokenizer."""
        return self.tokenizer.decode(self.tokenizer.encode(observations), observations)

    def tensors(self, rows: Dataset) -> TokenRows:
        """Return rows as tensors on the CPU."""
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
        """Return the most likely step of each row, or `draws` samples."""
        data = self.tensors(rows)
        places, skipped = self.contexts(data.follows)
        generator = None if draws == 1 else torch.Generator().manual_seed(seed)
        size = self.network.sizes.count * places.shape[1]
        found = []
        for part in np.array_split(
            np.arange(len(rows)), 1 + len(rows) * size * draws // MAX_BATCH_TOKENS
        ):
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
        """Return a step as columns, with observations under `name`."""
        found = self.tokenizer.decode(step.frames, before)
        columns = {key.replace("observations", name, 1): each for key, each in found.items()}
        columns["rewards"] = self.rewards.values[step.rewards.numpy()]
        columns["terminations"] = step.ends.numpy() == 1
        return columns

    def imagine(
        self, starts: Sequence[EpisodeHistory], rows: Dataset, *, seed: int = 0
    ) -> ImaginedTokens:
        """Return episodes that continue histories; their steps are sampled."""
        seen = [start.observations[-1] for start in starts]
        observations = self.observation_space.pack("observations", seen)
        return ImaginedTokens(self, self.after(starts), observations, seed, valid=self.valid)

    def unroll(
        self, starts: Sequence[EpisodeHistory], plans: Sequence[Sequence[Any]], rows: Dataset
    ) -> Iterator[list[Any]]:
        """Yield the most likely observations of each plan."""
        model = TokenPlanning(self, 0, likeliest=True)
        for start, plan in zip(starts, plans, strict=True):
            model.stand(start)
            yield [model.step(action).observation for action in plan]

    def open(self, planners: Sequence[Planning], task: Task) -> PlanningSession:
        """Return a planning session; plans sample steps only if rows show randomness."""
        return TokenSession(self, planners, task.seed)

    def after(self, starts: Sequence[EpisodeHistory]) -> TokenEpisodes:
        """Return episodes that continue histories; older frames than the context are dropped."""
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

    def contexts(self, follows: np.ndarray) -> tuple[Tensor, Tensor]:
        """Return indices of the rows up to each row (n, context - 1), and the padding (n,)."""
        room = self.network.sizes.context - 1
        age = np.arange(len(follows)) - np.maximum.accumulate(
            np.where(follows, 0, np.arange(len(follows)))
        )
        steps = np.arange(-room + 1, 1)
        places = (np.arange(len(follows))[:, None] + steps).clip(min=0)
        skipped = (room - 1 - age).clip(min=0)
        return torch.from_numpy(places), torch.from_numpy(skipped)


class TokenStep(NamedTuple):
    """One step of several sequences: frames, reward classes, ends, and valid actions."""

    frames: Tensor
    rewards: Tensor
    ends: Tensor
    valid: Tensor


class TokenEpisodes:
    """Parallel sequences, with as many past frames as the context can contain."""

    def __init__(
        self, world: TokenWorld, frames: Tensor, actions: Tensor, skipped: Tensor | None = None
    ) -> None:
        self.world, self.frames, self.actions = world, frames, actions
        self.skipped = skipped if skipped is not None and bool(skipped.any()) else None
        self._state: SequenceState | None = None

    @property
    def last(self) -> Tensor:
        """The last frames (n, count)."""
        return self.frames[:, -1]

    def advance(self, actions: Tensor, generator: torch.Generator | None) -> TokenStep:
        """Take actions (n,), given as numbers; without a generator the step is the likeliest."""
        with torch.no_grad():
            return self._advance(actions, generator)

    def _advance(self, actions: Tensor, generator: torch.Generator | None) -> TokenStep:
        """Take actions without gradients."""
        network, world = self.world.network, self.world
        network.eval()
        if self._state is None or self._state.frames == network.sizes.context:
            self._begin()
        assert self._state is not None
        noise = None
        if generator is not None:
            size = (len(actions), network.sizes.count, network.sizes.vocabulary)
            noise = _gumbel(size, generator).to(world.device)
        acted = actions.to(world.device)
        frames, outcome, self._state = network.step(self._state, acted, noise)
        step = self._sample(frames.cpu(), outcome, generator)
        self.frames = torch.cat([self.frames, step.frames[:, None]], 1)
        self.actions = torch.cat([self.actions, actions[:, None]], 1)
        return step

    def keep(self, places: Tensor) -> None:
        """Keep the sequences at some indices."""
        self.frames, self.actions = self.frames[places], self.actions[places]
        self.skipped = None if self.skipped is None else self.skipped[places]
        if self._state is not None:
            there = places.to(self.world.device)
            self._state = self.world.network.keep(self._state, there)

    def _begin(self) -> None:
        """Start the network's memory: with all frames at first, later with `refilled` frames."""
        count = self.frames.shape[1]
        if self._state is not None:
            count = self.world.refilled
        count = min(count, self.world.network.sizes.context - 1)
        left = self.frames.shape[1] - count
        self.frames, self.actions = self.frames[:, left:], self.actions[:, left:]
        if self.skipped is not None:
            self.skipped = (self.skipped - left).clamp(min=0)
            self.skipped = self.skipped if bool(self.skipped.any()) else None
        device = self.world.device
        skipped = None if self.skipped is None else self.skipped.to(device)
        frames, actions = self.frames.to(device), self.actions.to(device)
        self._state = self.world.network.begin(frames, actions, skipped)

    def _sample(
        self, frames: Tensor, outcome: OutcomeLogits, generator: torch.Generator | None
    ) -> TokenStep:
        """Sample rewards and ends."""
        rewards = outcome.rewards.cpu()[:, : len(self.world.rewards.values)]
        ends = outcome.ends.cpu()
        if generator is not None:
            rewards = rewards + _gumbel(rewards.shape, generator)
            ends = ends + _gumbel(ends.shape, generator)
        valid = outcome.valid.cpu() > 0
        return TokenStep(frames, rewards.argmax(-1), ends.argmax(-1), valid)


class ImaginedTokens(ImaginedEpisodes):
    """Imagined episodes with observations that are decoded after each step."""

    def __init__(
        self, world: TokenWorld, start: TokenEpisodes, seen: Columns, seed: int, *, valid: bool
    ) -> None:
        self._world, self._episodes, self._seen, self._valid = world, start, seen, valid
        self._generator = torch.Generator().manual_seed(seed)
        self.count = len(start.last)

    def step(self, actions: Columns) -> ImaginedStep:
        """Sample the next step."""
        numbers = torch.from_numpy(self._world.actions.encode(actions))
        step = self._episodes.advance(numbers, self._generator)
        columns = self._world.columns(step, self._seen, "observations")
        rewards, ends = columns.pop("rewards"), columns.pop("terminations")
        self._seen = columns
        return ImaginedStep(
            dict(columns), rewards, ends, step.valid.numpy() if self._valid else None
        )

    def keep(self, places: np.ndarray) -> None:
        """Keep the episodes at some indices, in that order."""
        self._episodes.keep(torch.from_numpy(np.asarray(places)))
        self._seen = {name: column[places] for name, column in self._seen.items()}
        self.count = len(places)


class TokenPlanning(Model):
    """The world model in the interface of planners; states are frames and actions."""

    def __init__(self, world: TokenWorld, seed: int, *, likeliest: bool) -> None:
        self.world, self.action_space = world, world.actions.space
        self.deterministic, self.remembers = likeliest, world.remembers
        self.hides = world.remembers
        self.counter = [0]
        self._known: dict[Any, tuple[Here, Step]] = {}
        self.draw_from((seed,))

    def draw_from(self, key: Sequence[int]) -> None:
        """Seed the following samples."""
        super().draw_from(key)
        drawn = int(np.random.default_rng([abs(int(each)) for each in key]).integers(1 << 31))
        self._generator = None if self.deterministic else torch.Generator().manual_seed(drawn)

    def stand(self, state: Any) -> None:
        """Set the state: an observation, a history, or the result of `here`."""
        if not isinstance(state, Here):
            history = state if isinstance(state, EpisodeHistory) else EpisodeHistory((state,))
            episodes = self.world.after([history])
            state = Here(history.observations[-1], _pack(episodes))
        self._here: Here = state

    def here(self) -> Here:
        """Return the current observation, and the frames in the context."""
        return self._here

    def step(self, action: Any) -> Step:
        """Take an action; deterministic steps are cached."""
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
        self._here = Here(after, _pack(episodes))
        if self.deterministic:
            self._known[key] = self._here, step
        return step

    def returns(self, states: Sequence[Any], plans: np.ndarray, draws: int = 0) -> np.ndarray:
        """Return the returns of all plans from all states, computed in parallel."""
        times = max(draws, 1)
        places = np.repeat(np.arange(len(states)), plans.shape[1] * times)
        listed = []
        for state in states:
            self.stand(state)
            listed.append(self._here)
        chosen = plans.repeat(times, axis=1).reshape(-1, plans.shape[2], *plans.shape[3:])
        total = np.zeros(len(places))
        generator = self._generator if draws else None
        size = max(MAX_BATCH_TOKENS // (self.world.network.sizes.count * 4), 1)
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
        """Return sequences at states."""
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
    """A planning session with a world model of tokens."""

    def __init__(self, world: TokenWorld, planners: Sequence[Planning], seed: int) -> None:
        model = TokenPlanning(world, seed, likeliest=not world.by_chance)
        super().__init__(model, planners, seed, form="tokens")

    def state(self, env: gym.Env[Any, Any], history: EpisodeHistory) -> Any:
        """Return the last observation, or the history if the model remembers."""
        return history if self._model.remembers else history.observations[-1]


def _pack(episodes: TokenEpisodes) -> tuple[bytes, bytes]:
    """Return the frames and actions in the context of a single sequence, as bytes."""
    room = episodes.world.network.sizes.context - 1
    skipped = 0 if episodes.skipped is None else int(episodes.skipped[0])
    first = max(skipped, episodes.frames.shape[1] - room)
    frames, actions = episodes.frames[0, first:].numpy(), episodes.actions[0, first:].numpy()
    return frames.tobytes(), actions.tobytes()


def _gumbel(size: Sequence[int], generator: torch.Generator) -> Tensor:
    """Return Gumbel noise: the largest sum of logit and noise is a sample of the softmax."""
    return -torch.empty(tuple(size)).exponential_(generator=generator).log()
