"""Probabilistic networks of an ensemble, computed in parallel and trained independently.

Chua et al. ("Deep reinforcement learning in a handful of trials", 2018), section 4: each member
predicts a Gaussian of the change of numbers; the bounds of its variance are learned as well. Here
the means minimise the squared error, and separate layers learn the variances by the likelihood
given the means. In almost deterministic environments the joint likelihood of both is so steep that
nothing else is learned. A member also predicts symbols, by cross-entropy, and then the reward and
the end of the episode. If episodes have terminal rows, it also learns the value of observations,
by value iteration in the member itself, at recorded observations.
"""

from __future__ import annotations

from copy import deepcopy
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from cwm_neural.features import RowFeatures

MAX_LOG_VARIANCE, MIN_LOG_VARIANCE = 0.5, -10.0
"""Initial bounds of the log variance of standardised changes, as published."""


class Layers(nn.Module):
    """Fully connected layers of all members: (members, rows, inputs) to (..., outputs)."""

    def __init__(self, members: int, sizes: list[int]) -> None:
        super().__init__()
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for inputs, outputs in pairwise(sizes):
            weight = torch.empty(members, inputs, outputs)
            nn.init.trunc_normal_(weight, std=0.5 / inputs**0.5)  # as published
            self.weights.append(nn.Parameter(weight))
            self.biases.append(nn.Parameter(torch.zeros(members, 1, outputs)))

    def forward(self, values: Tensor) -> Tensor:
        """Apply the layers, with swish between them."""
        last = len(self.weights) - 1
        for place, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            values = torch.baddbmm(bias, values, weight)
            values = functional.silu(values) if place < last else values
        return values


class Forecast(NamedTuple):
    """Predictions of members: features, rewards, and end probabilities."""

    states: Tensor
    rewards: Tensor
    ends: Tensor


class NoiseSource(NamedTuple):
    """A random generator; with `common`, all rows of a member get the same noise."""

    generator: torch.Generator
    common: bool = False

    def normal(self, like: Tensor) -> Tensor:
        """Return standard normal noise."""
        return torch.randn(self._shape(like), generator=self.generator).to(like.device)

    def gumbel(self, like: Tensor) -> Tensor:
        """Return Gumbel noise: the largest sum of logit and noise is a sample of the softmax."""
        even = torch.rand(self._shape(like), generator=self.generator).clamp(min=1e-9)
        return -torch.log(-torch.log(even)).to(like.device)

    def _shape(self, like: Tensor) -> tuple[int, ...]:
        members, rows, size = like.shape
        return members, 1 if self.common else rows, size


class RowBatch(NamedTuple):
    """Rows as tensors: features before and after the action, of the action, rewards and ends."""

    states: Tensor
    actions: Tensor
    following: Tensor
    rewards: Tensor
    ends: Tensor


class MemberNetworks(nn.Module):
    """Predicts the step for features and actions (members, rows, ...), separately per member."""

    def __init__(
        self,
        seen: RowFeatures,
        done: RowFeatures,
        *,
        members: int,
        width: int,
        layers: int,
        discount: float,
    ) -> None:
        super().__init__()
        self.seen, self.done, self.members = seen, done, members
        numbers, hidden = seen.numbers, [width] * layers
        before = seen.size + done.size
        self.moving = Layers(members, [before, *hidden, seen.size])
        self.spreading = Layers(members, [before, width, numbers])
        self.paying = Layers(members, [before + seen.size, *hidden, 2])
        self.discount = discount
        self.valuing = Layers(members, [seen.size, *hidden, 1])
        nn.init.zeros_(self.valuing.weights[-1])  # initial values are 0
        self.valued = deepcopy(self.valuing).requires_grad_(False)
        self.highest = nn.Parameter(torch.full((numbers,), MAX_LOG_VARIANCE))
        self.lowest = nn.Parameter(torch.full((numbers,), MIN_LOG_VARIANCE))
        for name, size in (("state", seen.size), ("action", done.size), ("change", numbers)):
            self.register_buffer(f"{name}_mean", torch.zeros(size))
            self.register_buffer(f"{name}_scale", torch.ones(size))
        self.register_buffer("reward_mean", torch.zeros(1))
        self.register_buffer("reward_scale", torch.ones(1))
        self.register_buffer("bounds", torch.zeros(2, numbers))
        self.register_buffer("reward_bounds", torch.zeros(2))
        self.register_buffer("endless", torch.tensor(True))
        self.register_buffer("vagueness", torch.tensor(1.0))
        self.register_buffer("groups", torch.as_tensor(seen.symbols))

    def standardise(self, rows: RowBatch) -> None:
        """Measure the units of rows: mean and deviation of numbers; symbols stay unscaled."""
        numbers = self.seen.numbers
        both = torch.cat([rows.states, rows.following])[:, :numbers]
        changes = rows.following[:, :numbers] - rows.states[:, :numbers]
        measured = {
            "state": (both, numbers),
            "action": (rows.actions, self.done.numbers),
            "change": (changes, numbers),
            "reward": (rows.rewards[:, None], 1),
        }
        # smaller deviations are rounding errors: then the scale is 1, and the mean is predicted
        min_scale = 1e-6
        for name, (values, count) in measured.items():
            if not count:
                continue
            scale = values[:, :count].std(0, unbiased=False)
            getattr(self, f"{name}_mean")[:count] = values[:, :count].mean(0)
            getattr(self, f"{name}_scale")[:count] = torch.where(scale > min_scale, scale, 1.0)

    def bound(self, rows: RowBatch) -> None:
        """Set the bounds of numbers and rewards, and whether rows have no end of an episode."""
        self.endless.fill_(not bool(rows.ends.any()))
        self.reward_bounds[0] = rows.rewards.amin().clamp(max=0)
        self.reward_bounds[1] = rows.rewards.amax().clamp(min=0)
        if numbers := self.seen.numbers:
            both = torch.cat([rows.states, rows.following])[:, :numbers]
            low, high = both.amin(0), both.amax(0)
            # Predictions stay finite: they are clipped to the recorded range, which is extended on
            # both sides by this number of ranges.
            max_ranges = 10.0
            room = max_ranges * (high - low)
            self.bounds[0], self.bounds[1] = low - room, high + room

    @torch.no_grad()
    def measure_vagueness(self, rows: RowBatch) -> None:
        """Measure the mean distance of rows from an end; it grows as members become certain."""
        wide = (each.expand(self.members, -1, -1) for each in rows[:3])
        distance = self._reward_end_outputs(*wide)[..., 1].abs().mean()
        # Mean absolute logit of softened ends. At minus this logit the end probability is 8 %.
        mean_end_logit = 2.5
        self.vagueness.fill_(distance / mean_end_logit).clamp_(min=1)

    def soften_ends(self, ends: Tensor) -> Tensor:
        """Return end probabilities, softened as if members were less certain."""
        return torch.sigmoid(torch.logit(ends) / self.vagueness)

    def losses(self, rows: RowBatch, others: Tensor | None = None) -> dict[str, Tensor]:
        """Return the mean of each loss over rows (members, rows, ...).

        With `others`, alternative actions (members, rows, n, ...), also the loss of values.
        """
        numbers = self.seen.numbers
        inputs = self._inputs(rows.states, rows.actions)
        moved = self.moving(inputs)
        outputs = self._reward_end_outputs(rows.states, rows.actions, rows.following)
        rewards = (rows.rewards - self.reward_mean) / self.reward_scale
        found = {
            "reward": (rewards - outputs[..., 0]).square().mean(),
            "end": functional.binary_cross_entropy_with_logits(outputs[..., 1], rows.ends),
        }
        if numbers:
            changes = rows.following[..., :numbers] - rows.states[..., :numbers]
            errors = (
                moved[..., :numbers] - (changes - self.change_mean) / self.change_scale
            ).square()
            spread = self._log_variance(inputs)
            found["numbers"] = errors.sum(-1).mean()
            found["spread"] = (errors.detach() * (-spread).exp() + spread).sum(-1).mean()
        if self.seen.groups:
            truth = rows.following[..., numbers:]
            logs = self._log_probabilities(moved[..., numbers:])
            found["symbols"] = -(truth * logs).sum(-1).mean()
        if others is not None:
            values = self.valuing(self._standardise(rows.states))[..., 0]
            errors = values - self._value_targets(rows, others)
            found["value"] = errors.square().mean()
        return found

    @torch.no_grad()
    def _value_targets(self, rows: RowBatch, others: Tensor) -> Tensor:
        """Return the value of the best action (members, rows), as members predict it."""
        tried = torch.cat([rows.actions[:, :, None], others], 2)
        members, count, each = tried.shape[:3]
        here = rows.states.repeat_interleave(each, 1)
        found = self.step(here, tried.flatten(1, 2))
        later = self.discount * (1 - found.ends) * self._clipped_values(self.valued, found.states)
        best: Tensor = (found.rewards + later).view(members, count, each).amax(-1)
        return best / self._value_unit

    @torch.no_grad()
    def update_targets(self) -> None:
        """Move the target values towards the learned values."""
        for slow, quick in zip(self.valued.parameters(), self.valuing.parameters(), strict=True):
            slow.lerp_(quick, 0.02)

    def values(self, states: Tensor) -> Tensor:
        """Return discounted values of features (members, rows, ...).

        They are clipped to the values of receiving the lowest or highest reward forever.
        """
        return self._clipped_values(self.valuing, states)

    def _clipped_values(self, layers: Layers, states: Tensor) -> Tensor:
        found: Tensor = layers(self._standardise(states))[..., 0] * self._value_unit
        return torch.clamp(found, *self.reward_bounds / (1 - self.discount))

    def step(self, states: Tensor, actions: Tensor, noise: NoiseSource | None = None) -> Forecast:
        """Predict a step from features and actions (members, rows, ...); sample it with `noise`."""
        numbers, inputs = self.seen.numbers, self._inputs(states, actions)
        moved = self.moving(inputs)
        change = moved[..., :numbers]
        if noise is not None and numbers:
            change = change + (self._log_variance(inputs) / 2).exp() * noise.normal(change)
        after = torch.addcmul(states[..., :numbers] + self.change_mean, change, self.change_scale)
        after = torch.clamp(after, self.bounds[0], self.bounds[1])
        if self.seen.groups:
            shares = self._log_probabilities(moved[..., numbers:])
            shares = shares if noise is None else shares + noise.gumbel(shares)
            likeliest = shares >= self._symbol_maxima(shares)[..., self.groups]
            after = torch.cat([after, likeliest.float()], -1)
        return Forecast(after, *self.rewards_and_ends(states, actions, after))

    def rewards_and_ends(
        self, states: Tensor, actions: Tensor, after: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the mean rewards and the end probabilities of steps."""
        found = self._reward_end_outputs(states, actions, after)
        rewards = found[..., 0] * self.reward_scale + self.reward_mean
        ends = torch.sigmoid(found[..., 1])
        return rewards, torch.zeros_like(ends) if self.endless else ends

    def probabilities(self, states: Tensor, actions: Tensor) -> Tensor:
        """Return the probability of each value of each symbol, (rows, values): members' mean."""
        moved = self.moving(self._inputs(states, actions))
        return self._log_probabilities(moved[..., self.seen.numbers :]).exp().mean(0)

    def _reward_end_outputs(self, states: Tensor, actions: Tensor, after: Tensor) -> Tensor:
        return self.paying(torch.cat([self._inputs(states, actions), self._standardise(after)], -1))

    def _inputs(self, states: Tensor, actions: Tensor) -> Tensor:
        done = (actions - self.action_mean) / self.action_scale
        return torch.cat([self._standardise(states), done], -1)

    def _standardise(self, states: Tensor) -> Tensor:
        return (states - self.state_mean) / self.state_scale

    @property
    def _value_unit(self) -> Tensor:
        """The unit of values: about the largest possible sum of rewards."""
        return (self.reward_mean.abs() + self.reward_scale) / (1 - self.discount)

    def _log_variance(self, inputs: Tensor) -> Tensor:
        """Return the log variance of each change."""
        spread = self.highest - functional.softplus(self.highest - self.spreading(inputs))
        return self.lowest + functional.softplus(spread - self.lowest)

    def _log_probabilities(self, logits: Tensor) -> Tensor:
        """Return the log probabilities of the values of each symbol."""
        maxima = self._symbol_maxima(logits)
        sums = torch.zeros_like(maxima).index_add_(
            -1, self.groups, (logits - maxima[..., self.groups]).exp()
        )
        return logits - (maxima + sums.log())[..., self.groups]

    def _symbol_maxima(self, values: Tensor) -> Tensor:
        """Return the largest value of each symbol."""
        shape = (*values.shape[:-1], len(self.seen.groups))
        empty = torch.full(shape, -torch.inf, device=values.device)
        places = self.groups.expand(values.shape)
        return empty.scatter_reduce(-1, places, values, "amax").detach()
