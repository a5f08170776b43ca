"""Proximal policy optimisation with action masks, in NumPy.

It learns from whole episodes whose rewards are known only afterwards, which no library's loop
gives room for without a rollout buffer of one's own, and from a few thousand steps of a small
network, which takes no more than matrix products: so it is written here, to be read beside
Schulman et al. (2017) and Huang and Ontañón (2022), and its constants are those of
Stable-Baselines3, which published results come from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

FORBIDDEN = np.float32(-1e8)
"""Logit of an action that is not allowed: its probability is 0, and so is its gradient."""

Layers = list[tuple[np.ndarray, np.ndarray]]
"""Weights (inputs, outputs) and biases (outputs,) of each layer, views of one vector."""


class Played(NamedTuple):
    """An episode of n steps to learn from.

    `features` are (n + 1, inputs), the last of what followed the last step; `masks` are
    (n, actions), True where an action was allowed; `actions` and `rewards` are (n,). An episode
    that did not end by itself would have gone on from its last features.
    """

    features: np.ndarray
    masks: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    terminated: bool


@dataclass
class Ppo:
    """A policy and a value function, networks of two layers of 64, and how they are bettered.

    Two with equal fields that learned from equal episodes are equal. `state` is all that has
    changed since the beginning.
    """

    inputs: int
    actions: int
    seed: int = 0
    learning_rate: float = 5e-4
    epochs: int = 20
    batch: int = 64
    gamma: float = 0.99
    trace: float = 0.95  # lambda of the generalised advantage estimate
    clip: float = 0.2
    entropy: float = 0.01
    value: float = 0.5
    norm: float = 0.5  # gradients that are longer are shortened
    hidden: int = 64
    _parameters: np.ndarray = field(init=False, repr=False)
    _first: np.ndarray = field(init=False, repr=False)
    _second: np.ndarray = field(init=False, repr=False)
    _updates: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        rng = np.random.default_rng([self.seed, self.inputs, self.actions])
        # the last layers: all actions about equally likely at first, values of the right size
        self._parameters = np.concatenate(
            [
                np.concatenate([_orthogonal(rng, rows, columns, gain), np.zeros(columns)])
                for last in ((self.actions, 0.01), (1, 1.0))
                for rows, columns, gain in self._shapes(*last)
            ]
        ).astype(np.float32)
        self._first = np.zeros_like(self._parameters)
        self._second = np.zeros_like(self._parameters)

    def _shapes(self, outputs: int, gain: float = 1.0) -> list[tuple[int, int, float]]:
        """Return the layers of a network: rows, columns, and how large weights are at first."""
        hidden = self.hidden
        return [
            (self.inputs, hidden, np.sqrt(2)),
            (hidden, hidden, np.sqrt(2)),
            (hidden, outputs, gain),
        ]

    def _networks(self, vector: np.ndarray) -> tuple[Layers, Layers]:
        """Return views of a vector of parameters as the policy and the value function."""
        start, networks = 0, []
        for outputs in (self.actions, 1):
            layers: Layers = []
            for rows, columns, _ in self._shapes(outputs):
                middle, end = start + rows * columns, start + rows * columns + columns
                layers.append((vector[start:middle].reshape(rows, columns), vector[middle:end]))
                start = end
            networks.append(layers)
        policy, value = networks
        return policy, value

    def probabilities(self, features: np.ndarray, masks: np.ndarray) -> np.ndarray:
        """Return how likely each action is (n, actions) at features (n, inputs)."""
        policy, _ = self._networks(self._parameters)
        logits, _ = _forward(policy, np.asarray(features, np.float32))
        chances: np.ndarray = np.exp(_log_softmax(logits, masks))
        return chances

    def learn(self, episodes: Sequence[Played], rng: np.random.Generator) -> None:
        """Better the policy by episodes that it played itself: many small steps over all rows."""
        policy, value = self._networks(self._parameters)
        estimates = [self._estimated(value, episode) for episode in episodes]
        features = np.concatenate([e.features[:-1] for e in episodes]).astype(np.float32)
        masks = np.concatenate([e.masks for e in episodes])
        actions = np.concatenate([e.actions for e in episodes])
        advantages = np.concatenate([advantage for advantage, _ in estimates])
        returns = np.concatenate([returned for _, returned in estimates])
        before = _log_softmax(_forward(policy, features)[0], masks)
        before = before[np.arange(len(actions)), actions]
        for _ in range(self.epochs):
            for rows in _batches(rng.permutation(len(actions)), self.batch):
                gradient = self._gradient(
                    features[rows],
                    masks[rows],
                    actions[rows],
                    before[rows],
                    advantages[rows],
                    returns[rows],
                )
                self._step(gradient)

    def _estimated(self, value: Layers, episode: Played) -> tuple[np.ndarray, np.ndarray]:
        """Return the advantage and the return of each step of an episode."""
        values = _forward(value, episode.features.astype(np.float32))[0][:, 0]
        if episode.terminated:
            values[-1] = 0.0
        errors = episode.rewards + self.gamma * values[1:] - values[:-1]
        advantages, running = np.empty(len(errors), np.float32), 0.0
        for step in reversed(range(len(errors))):
            running = errors[step] + self.gamma * self.trace * running
            advantages[step] = running
        return advantages, advantages + values[:-1]

    def _gradient(
        self,
        features: np.ndarray,
        masks: np.ndarray,
        actions: np.ndarray,
        before: np.ndarray,
        advantages: np.ndarray,
        returns: np.ndarray,
    ) -> np.ndarray:
        """Return the gradient of the loss of some rows, as a vector like the parameters."""
        policy, value = self._networks(self._parameters)
        count, rows = len(actions), np.arange(len(actions))
        logits, passed = _forward(policy, features)
        logs = _log_softmax(logits, masks)
        chances = np.exp(logs)
        if count > 1:
            advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        ratios = np.exp(logs[rows, actions] - before)
        clipped = np.clip(ratios, 1 - self.clip, 1 + self.clip)
        moving = ratios * advantages <= clipped * advantages  # where the bound does not hold it
        pull = np.where(moving, -advantages * ratios, 0.0) / count
        towards = -chances
        towards[rows, actions] += 1.0
        entropies = -(chances * logs).sum(axis=1, keepdims=True)
        spread = self.entropy / count * chances * (logs + entropies)
        estimates, seen = _forward(value, features)
        off = 2 * self.value / count * (estimates[:, 0] - returns)

        gradient = np.empty_like(self._parameters)
        to_policy, to_value = self._networks(gradient)
        _backward(policy, passed, pull[:, None] * towards + spread, to_policy)
        _backward(value, seen, off[:, None], to_value)
        length = float(np.sqrt(np.dot(gradient, gradient)))
        gradient *= min(1.0, self.norm / (length + 1e-6))
        return gradient

    def _step(self, gradient: np.ndarray) -> None:
        """Go a step of Adam (Kingma and Ba, 2015)."""
        self._updates += 1
        self._first += 0.1 * (gradient - self._first)
        self._second += 0.001 * (gradient * gradient - self._second)
        first = 1 - 0.9**self._updates
        second = np.sqrt(1 - 0.999**self._updates)
        rate = np.float32(self.learning_rate / first)
        self._parameters -= rate * self._first / (np.sqrt(self._second) / second + 1e-5)

    def state(self) -> dict[str, np.ndarray]:
        """Return what was learned, in arrays."""
        return {
            "parameters": self._parameters.copy(),
            "first": self._first.copy(),
            "second": self._second.copy(),
            "updates": np.array(self._updates),
        }

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Go on from a `state`; raises ValueError where it is of other networks."""
        if state["parameters"].shape != self._parameters.shape:
            raise ValueError("it belongs to networks of another size")
        self._parameters = state["parameters"].astype(np.float32)
        self._first = state["first"].astype(np.float32)
        self._second = state["second"].astype(np.float32)
        self._updates = int(state["updates"])


def _orthogonal(rng: np.random.Generator, rows: int, columns: int, gain: float) -> np.ndarray:
    """Draw weights that keep lengths as well as they can (Saxe et al., 2014), as a vector."""
    drawn = rng.standard_normal((max(rows, columns), min(rows, columns)))
    found, triangle = np.linalg.qr(drawn)
    found *= np.sign(np.diag(triangle))
    weights = gain * (found if rows >= columns else found.T)
    vector: np.ndarray = weights.ravel()
    return vector


def _forward(layers: Layers, inputs: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return the outputs of a network, and what came into each of its layers."""
    passed = [inputs]
    for weights, biases in layers[:-1]:
        passed.append(np.tanh(passed[-1] @ weights + biases))
    weights, biases = layers[-1]
    return passed[-1] @ weights + biases, passed


def _backward(layers: Layers, passed: list[np.ndarray], output: np.ndarray, into: Layers) -> None:
    """Write the gradients of weights and biases, given that of the outputs."""
    for (weights, _), inputs, (to_weights, to_biases) in zip(
        reversed(layers), reversed(passed), reversed(into), strict=True
    ):
        output = output.astype(np.float32)
        to_weights[:] = inputs.T @ output
        to_biases[:] = output.sum(axis=0)
        if inputs is not passed[0]:
            output = (output @ weights.T) * (1 - inputs * inputs)


def _log_softmax(logits: np.ndarray, masks: np.ndarray) -> np.ndarray:
    """Return log-probabilities among the allowed actions."""
    logits = np.where(masks, logits, FORBIDDEN)
    logits = logits - logits.max(axis=1, keepdims=True)
    found: np.ndarray = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return found


def _batches(order: np.ndarray, size: int) -> Iterator[np.ndarray]:
    """Cut an order into pieces; the last may be smaller."""
    for start in range(0, len(order), size):
        yield order[start : start + size]
