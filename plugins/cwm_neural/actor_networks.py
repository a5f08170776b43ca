"""Networks of agents: encoders of observations, policies for each action space, and values."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, log, pi
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
import torch
from torch import Tensor, nn

from cwm_cli.data.dataset import Dataset
from cwm_cli.data.spaces import Columns, Leaf, Space
from cwm_cli.errors import CwmError

WORD_BUCKETS = 256
"""Number of hash buckets for the words of texts; missions have a few dozen words."""

LOG_STD = (-4.0, 1.0)
"""Bounds of a Gaussian's log standard deviation, before samples are squashed."""


class ObservationEncoder(nn.Module):
    """Encodes columns of observations as vectors (n, size), each leaf by its type.

    Images pass convolutions. Real numbers are normalised with the mean and deviation of the rows.
    Whole numbers with few values are symbols, with an embedding for each component and value.
    Texts are bags of hashed words. `layers` more layers follow the concatenated vectors; the
    published network has none.
    """

    def __init__(self, space: Space, *, width: int, channels: int, layers: int) -> None:
        super().__init__()
        self.space = space
        leaves = [*space.leaves("observations")]
        self.names = [leaf.name for leaf in leaves]
        self.parts = nn.ModuleList([_part(leaf, width, channels) for leaf in leaves])
        self.size = sum(part.size for part in self.parts)
        after: list[nn.Module] = []
        for _ in range(layers):
            after += [nn.Linear(self.size, width), nn.LayerNorm(width), nn.SiLU()]
            self.size = width
        self.after = nn.Sequential(*after)

    def normalise(self, rows: Dataset) -> None:
        """Compute the statistics of numbers and symbols from rows."""
        for name, part in zip(self.names, self.parts, strict=True):
            if isinstance(part, _Numbers | _Symbols):
                part.normalise(rows.columns[name])

    def forward(self, columns: Columns) -> Tensor:
        """Return a vector for each row."""
        pairs = zip(self.names, self.parts, strict=True)
        return self.after(torch.cat([part(columns[name]) for name, part in pairs], dim=1))


def _part(leaf: Leaf, width: int, channels: int) -> nn.Module:
    """Return the encoder of a leaf."""
    space = leaf.space
    if space.is_picture:
        return _Picture(space, channels)
    if space.kind == "text":
        return _Words(width)
    ranges = [high - low + 1 for low, high in zip(space.low, space.high, strict=True)]
    # whole numbers with at most this many values are symbols; with more they are quantities
    max_symbol_values = 64
    if space.is_float or max(ranges, default=inf) > max_symbol_values:
        return _Numbers(space.size, width)
    return _Symbols(space, [int(each) for each in ranges], width)


class _Picture(nn.Module):
    """Convolutions of 3 x 3, each with pooling; IRIS has 32, 32, 64 and 64 channels."""

    def __init__(self, space: Space, channels: int) -> None:
        super().__init__()
        height, width, depth = space.shape
        layers: list[nn.Module] = []
        # number of convolutions for images; each is followed by a pooling to half the size
        levels = 4
        for level in range(levels):
            after = channels * (1 + level // 2)
            layers += [nn.Conv2d(depth, after, 3, padding=1), nn.MaxPool2d(2), nn.ReLU()]
            depth = after
        self.layers = nn.Sequential(*layers, nn.Flatten())
        self.size = depth * (height >> levels) * (width >> levels)

    def forward(self, column: np.ndarray) -> Tensor:
        device = next(self.parameters()).device
        pixels = torch.as_tensor(column, device=device).permute(0, 3, 1, 2).float()
        return self.layers(pixels / 127.5 - 1)


class _Numbers(nn.Module):
    """Real numbers, normalised with the mean and the standard deviation of rows."""

    def __init__(self, count: int, width: int) -> None:
        super().__init__()
        self.size = width
        self.register_buffer("mean", torch.zeros(count))
        self.register_buffer("std", torch.ones(count))
        self.layers = nn.Sequential(nn.Linear(count, width), nn.LayerNorm(width), nn.SiLU())

    def normalise(self, column: np.ndarray) -> None:
        numbers = column.reshape(len(column), -1).astype(np.float64)
        std = numbers.std(axis=0)
        self.mean.copy_(torch.as_tensor(numbers.mean(axis=0)))
        self.std.copy_(torch.as_tensor(np.where(std > 0, std, 1.0)))

    def forward(self, column: np.ndarray) -> Tensor:
        numbers = torch.as_tensor(column.reshape(len(column), -1), device=self.mean.device)
        scaled = (numbers - self.mean) / self.std
        # normalised numbers are clipped here, because a model may imagine values of any size
        max_deviation = 10.0
        return self.layers(scaled.clamp(-max_deviation, max_deviation).float())


class _Symbols(nn.Module):
    """Whole numbers with few values: the sum of an embedding for each component and value.

    The mean embedding of the rows is subtracted. Few cells of a board change, so otherwise the
    constant cells would dominate the vector.
    """

    def __init__(self, space: Space, ranges: Sequence[int], width: int) -> None:
        super().__init__()
        self.size = width
        first = np.cumsum([0, *ranges[:-1]]) - np.array(space.low, np.int64)
        self.low, self.high = np.array(space.low), np.array(space.high)
        self.register_buffer("first", torch.as_tensor(first))
        self.register_buffer("usual", torch.zeros(sum(ranges)))
        self.embedding = nn.EmbeddingBag(sum(ranges), width, mode="sum")
        nn.init.normal_(self.embedding.weight, std=len(ranges) ** -0.5)
        self.after = nn.Sequential(nn.LayerNorm(width), nn.SiLU())

    def normalise(self, column: np.ndarray) -> None:
        counts = self._places(column).flatten().bincount(minlength=len(self.usual))
        self.usual.copy_(counts / len(column))

    def forward(self, column: np.ndarray) -> Tensor:
        usual = self.usual @ self.embedding.weight
        return self.after(self.embedding(self._places(column)) - usual)

    def _places(self, column: np.ndarray) -> Tensor:
        numbers = column.reshape(len(column), -1).clip(self.low, self.high).astype(np.int64)
        return torch.as_tensor(numbers, device=self.first.device) + self.first


class _Words(nn.Module):
    """A bag of the words of a text, by their hashes."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.size = width
        self.embedding = nn.EmbeddingBag(WORD_BUCKETS, width, mode="mean")

    def forward(self, column: np.ndarray) -> Tensor:
        texts = [
            [crc32(word.encode()) % WORD_BUCKETS for word in str(text).split()] for text in column
        ]
        first = np.cumsum([0, *map(len, texts[:-1])])
        device = self.embedding.weight.device
        places = torch.tensor([place for text in texts for place in text], dtype=torch.int64)
        return self.embedding(places.to(device), torch.as_tensor(first, device=device))


class ChosenActions(NamedTuple):
    """Actions as columns, and as the tensor that `ActionPolicy.weigh` takes."""

    actions: Columns
    chosen: Tensor


class ActionPolicy:
    """Turns the outputs of a network (n, size) into a distribution of actions.

    The random numbers come from `noise`, so that samples depend on nothing else. `valid` (n,
    actions) is the mask of valid actions, None if all are valid.
    """

    space: Space
    size: int

    def noise(self, rng: np.random.Generator, count: int) -> np.ndarray:
        """Draw the random numbers for `count` choices."""
        raise NotImplementedError

    def choose(
        self,
        outputs: Tensor,
        noise: np.ndarray,
        valid: np.ndarray | None = None,
        *,
        temperature: float = 1.0,
    ) -> ChosenActions:
        """Choose an action in each row; temperature 0 chooses the most likely action."""
        raise NotImplementedError

    def weigh(
        self, outputs: Tensor, chosen: Tensor, valid: np.ndarray | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the log-probabilities (n,) of the chosen actions, and the entropies (n,).

        Both are correct up to a term that does not depend on the outputs.
        """
        raise NotImplementedError


class CategoricalPolicy(ActionPolicy):
    """Distribution over a finite set of actions."""

    def __init__(self, space: Space) -> None:
        self.space, self.size = space, space.count

    def noise(self, rng: np.random.Generator, count: int) -> np.ndarray:
        """Draw Gumbel noise for each action: the largest sum with its logit is a sample."""
        return rng.gumbel(size=(count, self.size))

    def choose(
        self,
        outputs: Tensor,
        noise: np.ndarray,
        valid: np.ndarray | None = None,
        *,
        temperature: float = 1.0,
    ) -> ChosenActions:
        """Choose an action in each row; temperature 0 chooses the most likely action."""
        weighed = (
            _mask_invalid(outputs.detach(), valid).cpu().double().numpy() + temperature * noise
        )
        chosen = weighed.argmax(axis=1)
        return ChosenActions({"actions": chosen + int(self.space.low[0])}, torch.as_tensor(chosen))

    def weigh(
        self, outputs: Tensor, chosen: Tensor, valid: np.ndarray | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the log-probabilities (n,) of the chosen actions, and the entropies (n,)."""
        logs = _mask_invalid(outputs, valid).log_softmax(dim=1)
        entropies = -(logs.exp() * logs.clamp(min=-1e9)).sum(dim=1)
        return logs.gather(1, chosen.to(outputs.device)[:, None])[:, 0], entropies


def _mask_invalid(logits: Tensor, valid: np.ndarray | None) -> Tensor:
    """Return logits with -1e9 for invalid actions."""
    if valid is None:
        return logits
    return logits.masked_fill(~torch.as_tensor(valid, device=logits.device), -1e9)


class GaussianPolicy(ActionPolicy):
    """Gaussian over real numbers, squashed by tanh to the bounds if both bounds are finite."""

    def __init__(self, space: Space) -> None:
        self.space, self.size = space, 2 * space.size
        low, high = np.array(space.low), np.array(space.high)
        self._bounded = np.isfinite(low) & np.isfinite(high)
        low, high = np.where(self._bounded, low, -1.0), np.where(self._bounded, high, 1.0)
        self._middle, self._half = (low + high) / 2, (high - low) / 2

    def noise(self, rng: np.random.Generator, count: int) -> np.ndarray:
        """Draw a normal number for each component."""
        return rng.standard_normal((count, self.space.size))

    def choose(
        self,
        outputs: Tensor,
        noise: np.ndarray,
        valid: np.ndarray | None = None,
        *,
        temperature: float = 1.0,
    ) -> ChosenActions:
        """Choose an action in each row; temperature 0 chooses the mean."""
        mean, log_std = _gaussian(outputs.detach())
        drawn = torch.as_tensor(noise, device=mean.device).to(mean.dtype)
        chosen = mean + temperature * log_std.exp() * drawn
        numbers = chosen.cpu().double().numpy()
        numbers = np.where(self._bounded, np.tanh(numbers), numbers) * self._half + self._middle
        numbers = numbers.clip(self.space.low, self.space.high)
        shaped = numbers.reshape(-1, *self.space.shape).astype(self.space.dtype)
        return ChosenActions({"actions": shaped}, chosen)

    def weigh(
        self, outputs: Tensor, chosen: Tensor, valid: np.ndarray | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the log-probabilities (n,) before squashing, and the entropies (n,).

        Squashing changes the log-probability by a term that depends on the action only.
        """
        mean, log_std = _gaussian(outputs)
        off = (chosen - mean) / log_std.exp()
        logs = -0.5 * off**2 - log_std - 0.5 * log(2 * pi)
        return logs.sum(dim=1), (log_std + 0.5 * log(2 * pi) + 0.5).sum(dim=1)


def _gaussian(outputs: Tensor) -> tuple[Tensor, Tensor]:
    """Return means and log standard deviations."""
    mean, log_std = outputs.chunk(2, dim=1)
    return mean, log_std.clamp(*LOG_STD)


def policy_of(space: Space) -> ActionPolicy:
    """Return the policy for an action space; raise `CwmError` if there is none."""
    if space.kind == "discrete":
        return CategoricalPolicy(space)
    if space.is_float:
        return GaussianPolicy(space)
    raise CwmError(
        f"policies cannot be learned for {space.kind} actions: use a Discrete or Box action space"
    )


class HeadOutputs(NamedTuple):
    """Outputs of a network: parameters of the policy, values (n,), and the memory."""

    outputs: Tensor
    values: Tensor
    memory: Any


class ActorCriticNetwork(nn.Module):
    """A policy head and a value head on one encoder, with an optional LSTM cell between them.

    Values are multiples of `unit`, so that losses have a similar scale for any rewards.
    """

    unit: Tensor

    def __init__(
        self, encoder: ObservationEncoder, policy: ActionPolicy, *, remembers: int
    ) -> None:
        super().__init__()
        self.encoder, self.policy = encoder, policy
        self.cell = nn.LSTMCell(encoder.size, remembers) if remembers else None
        size = remembers or encoder.size
        self.actor, self.critic = nn.Linear(size, policy.size), nn.Linear(size, 1)
        for head in (self.actor, self.critic):  # start with a uniform policy and values of 0
            nn.init.zeros_(head.weight)
            nn.init.zeros_(head.bias)
        self.register_buffer("unit", torch.ones(()))

    def forward(self, columns: Columns, memory: Any = None) -> HeadOutputs:
        """Return the outputs for observations; `memory` is None at the start of episodes."""
        found = self.encoder(columns)
        if self.cell is not None:
            memory = self.cell(found, memory)
            found = memory[0]
        return HeadOutputs(self.actor(found), self.critic(found)[:, 0] * self.unit, memory)

    def set_unit(self, unit: float) -> None:
        """Set the unit, and rescale the value head so that its values stay equal."""
        with torch.no_grad():
            factor = self.unit / unit
            self.critic.weight.mul_(factor)
            self.critic.bias.mul_(factor)
            self.unit.fill_(unit)
