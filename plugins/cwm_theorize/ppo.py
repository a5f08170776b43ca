"""Proximal policy optimisation with action masks, in NumPy.

The rewards of an episode are known only after the phase, which library training loops support only
with a custom rollout buffer. A few thousand steps of a small network need no more than matrix
products. This implementation follows Schulman et al. (2017) and Huang and Ontañón (2022), with the
constants of Stable-Baselines3, which the published results used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

FORBIDDEN = np.float32(-1e8)
"""Logit of a masked action: its probability and its gradient are 0."""

Layers = list[tuple[np.ndarray, np.ndarray]]
"""Weights (inputs, outputs) and biases (outputs,) of each layer, as views of one vector."""


class PpoEpisode(NamedTuple):
    """An episode of n steps to learn from.

    Attributes:
        features: (n + 1, inputs); the last row is the final state.
        masks: (n, actions), True for legal actions.
        actions: (n,)
        rewards: (n,)
        terminated: If false, the return continues with the value of the final state.
    """

    features: np.ndarray
    masks: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    terminated: bool


@dataclass
class Ppo:
    """A policy and a value function, trained by PPO.

    Each is a network with two hidden layers of `hidden` units. Training is deterministic: equal
    fields and equal episodes give equal parameters. `state` contains all that changes during
    training.
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
    norm: float = 0.5  # maximum norm of a gradient
    hidden: int = 64
    _parameters: np.ndarray = field(init=False, repr=False)
    _first_moment: np.ndarray = field(init=False, repr=False)
    _second_moment: np.ndarray = field(init=False, repr=False)
    _updates: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        rng = np.random.default_rng([self.seed, self.inputs, self.actions])
        # Gains of the last layers: a policy close to uniform, and values of unit scale.
        self._parameters = np.concatenate(
            [
                np.concatenate([_orthogonal(rng, rows, columns, gain), np.zeros(columns)])
                for last in ((self.actions, 0.01), (1, 1.0))
                for rows, columns, gain in self._shapes(*last)
            ]
        ).astype(np.float32)
        self._first_moment = np.zeros_like(self._parameters)
        self._second_moment = np.zeros_like(self._parameters)

    def _shapes(self, outputs: int, gain: float = 1.0) -> list[tuple[int, int, float]]:
        """Return the layers of a network: rows, columns, and the gain of the initial weights."""
        hidden = self.hidden
        return [
            (self.inputs, hidden, np.sqrt(2)),
            (hidden, hidden, np.sqrt(2)),
            (hidden, outputs, gain),
        ]

    def _networks(self, vector: np.ndarray) -> tuple[Layers, Layers]:
        """Return the policy and the value function as views of a parameter vector."""
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
        """Return the probabilities (n, actions) of actions at features (n, inputs)."""
        policy, _ = self._networks(self._parameters)
        logits, _ = _forward(policy, np.asarray(features, np.float32))
        chances: np.ndarray = np.exp(_log_softmax(logits, masks))
        return chances

    def learn(self, episodes: Sequence[PpoEpisode], rng: np.random.Generator) -> None:
        """Update both networks with episodes of the current policy, in minibatches."""
        policy, value = self._networks(self._parameters)
        estimates = [self._advantages_and_returns(value, episode) for episode in episodes]
        features = np.concatenate([e.features[:-1] for e in episodes]).astype(np.float32)
        masks = np.concatenate([e.masks for e in episodes])
        actions = np.concatenate([e.actions for e in episodes])
        advantages = np.concatenate([advantage for advantage, _ in estimates])
        returns = np.concatenate([returned for _, returned in estimates])
        before = _log_softmax(_forward(policy, features)[0], masks)
        before = before[np.arange(len(actions)), actions]
        for _ in range(self.epochs):
            order = rng.permutation(len(actions))
            for start in range(0, len(order), self.batch):
                rows = order[start : start + self.batch]
                gradient = self._gradient(
                    features[rows],
                    masks[rows],
                    actions[rows],
                    before[rows],
                    advantages[rows],
                    returns[rows],
                )
                self._adam_step(gradient)

    def _advantages_and_returns(
        self, value: Layers, episode: PpoEpisode
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the advantage and the return of each step (n,)."""
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
        """Return the gradient of the loss on a minibatch, shaped like the parameters."""
        policy, value = self._networks(self._parameters)
        count, rows = len(actions), np.arange(len(actions))
        logits, passed = _forward(policy, features)
        logs = _log_softmax(logits, masks)
        chances = np.exp(logs)
        if count > 1:
            advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        ratios = np.exp(logs[rows, actions] - before)
        clipped = np.clip(ratios, 1 - self.clip, 1 + self.clip)
        unclipped = ratios * advantages <= clipped * advantages  # clipped rows have no gradient
        policy_scale = np.where(unclipped, -advantages * ratios, 0.0) / count
        score_gradient = -chances
        score_gradient[rows, actions] += 1.0
        entropies = -(chances * logs).sum(axis=1, keepdims=True)
        entropy_gradient = self.entropy / count * chances * (logs + entropies)
        estimates, seen = _forward(value, features)
        value_gradient = 2 * self.value / count * (estimates[:, 0] - returns)

        gradient = np.empty_like(self._parameters)
        to_policy, to_value = self._networks(gradient)
        _backward(
            policy, passed, policy_scale[:, None] * score_gradient + entropy_gradient, to_policy
        )
        _backward(value, seen, value_gradient[:, None], to_value)
        length = float(np.sqrt(np.dot(gradient, gradient)))
        gradient *= min(1.0, self.norm / (length + 1e-6))
        return gradient

    def _adam_step(self, gradient: np.ndarray) -> None:
        """Update the parameters with a step of Adam (Kingma and Ba, 2015)."""
        self._updates += 1
        self._first_moment += 0.1 * (gradient - self._first_moment)
        self._second_moment += 0.001 * (gradient * gradient - self._second_moment)
        first = 1 - 0.9**self._updates
        second = np.sqrt(1 - 0.999**self._updates)
        rate = np.float32(self.learning_rate / first)
        self._parameters -= (
            rate * self._first_moment / (np.sqrt(self._second_moment) / second + 1e-5)
        )

    def state(self) -> dict[str, np.ndarray]:
        """Return parameters, moments and the number of updates as arrays."""
        return {
            "parameters": self._parameters.copy(),
            "first": self._first_moment.copy(),
            "second": self._second_moment.copy(),
            "updates": np.array(self._updates),
        }

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Continue from a `state`.

        Raises:
            ValueError: The state belongs to networks of another size.
        """
        if state["parameters"].shape != self._parameters.shape:
            raise ValueError("it belongs to networks of another size")
        self._parameters = state["parameters"].astype(np.float32)
        self._first_moment = state["first"].astype(np.float32)
        self._second_moment = state["second"].astype(np.float32)
        self._updates = int(state["updates"])


def _orthogonal(rng: np.random.Generator, rows: int, columns: int, gain: float) -> np.ndarray:
    """Draw orthogonal weights (Saxe et al., 2014), as a vector."""
    drawn = rng.standard_normal((max(rows, columns), min(rows, columns)))
    found, triangle = np.linalg.qr(drawn)
    found *= np.sign(np.diag(triangle))
    weights = gain * (found if rows >= columns else found.T)
    vector: np.ndarray = weights.ravel()
    return vector


def _forward(layers: Layers, inputs: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return the outputs of a network, and the inputs of each layer."""
    passed = [inputs]
    for weights, biases in layers[:-1]:
        passed.append(np.tanh(passed[-1] @ weights + biases))
    weights, biases = layers[-1]
    return passed[-1] @ weights + biases, passed


def _backward(layers: Layers, passed: list[np.ndarray], output: np.ndarray, into: Layers) -> None:
    """Write the gradients of weights and biases into `into`, given the gradient of the outputs."""
    for (weights, _), inputs, (to_weights, to_biases) in zip(
        reversed(layers), reversed(passed), reversed(into), strict=True
    ):
        output = output.astype(np.float32)
        to_weights[:] = inputs.T @ output
        to_biases[:] = output.sum(axis=0)
        if inputs is not passed[0]:
            output = (output @ weights.T) * (1 - inputs * inputs)


def _log_softmax(logits: np.ndarray, masks: np.ndarray) -> np.ndarray:
    """Return log-probabilities among the legal actions."""
    logits = np.where(masks, logits, FORBIDDEN)
    logits = logits - logits.max(axis=1, keepdims=True)
    found: np.ndarray = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return found
