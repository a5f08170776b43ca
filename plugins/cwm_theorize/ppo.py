"""Proximal policy optimisation with action masks, by Stable-Baselines3 (extra `rl`).

The rewards of an episode are known only after its phase was scored. The rollout buffer of the
library is therefore filled with finished episodes, as its own training loop fills it (Schulman et
al., 2017; Huang and Ontañón, 2022).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from cwm_cli.errors import CwmError, install_command


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
    """A policy and a value function, each with two hidden layers of 64 units, trained by PPO.

    Training is deterministic: equal fields and equal episodes give equal parameters. `state`
    contains all that changes during training. The library sets the seeds of the global generators
    of Python, NumPy and PyTorch.

    Raises:
        CwmError: Stable-Baselines3 is not installed.
    """

    inputs: int
    actions: int
    seed: int = 0
    learning_rate: float = 5e-4
    epochs: int = 20
    batch: int = 64
    gamma: float = 0.99
    clip: float = 0.2
    entropy: float = 0.01
    _model: Any = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if find_spec("sb3_contrib") is None:
            command = install_command("cwm-cli[rl]")
            raise CwmError(f"the experimenter curiosity needs Stable-Baselines3: {command}")
        from sb3_contrib import MaskablePPO
        from stable_baselines3.common.logger import Logger

        spaces: gym.Env[Any, Any] = gym.Env()  # only its spaces are used: nothing is played here
        spaces.observation_space = gym.spaces.Box(-np.inf, np.inf, (self.inputs,))
        spaces.action_space = gym.spaces.Discrete(self.actions)
        self._model = MaskablePPO(
            "MlpPolicy",
            spaces,
            learning_rate=self.learning_rate,
            n_epochs=self.epochs,
            gamma=self.gamma,
            clip_range=self.clip,
            ent_coef=self.entropy,
            seed=self.seed,
            device="cpu",
        )
        self._model.set_logger(Logger(None, []))
        self._model.policy.set_training_mode(False)

    def probabilities(self, features: np.ndarray, masks: np.ndarray) -> np.ndarray:
        """Return the probabilities (n, actions) of actions at features (n, inputs)."""
        import torch

        with torch.no_grad():
            seen = torch.as_tensor(features, dtype=torch.float32)
            drawn = self._model.policy.get_distribution(seen, action_masks=masks)
        chances: np.ndarray = drawn.distribution.probs.numpy()
        return chances

    def learn(self, episodes: Sequence[PpoEpisode], seed: Sequence[int]) -> None:
        """Update the networks with episodes of the current policy.

        Args:
            episodes: The episodes, with at least one step each.
            seed: Seed of the order of rows in minibatches.
        """
        import torch

        model, count = self._model, sum(len(each.actions) for each in episodes)
        features = np.concatenate([each.features[:-1] for each in episodes], dtype=np.float32)
        actions = np.concatenate([each.actions for each in episodes])
        masks = np.concatenate([each.masks for each in episodes])
        rewards = np.concatenate([each.rewards for each in episodes], dtype=np.float32)
        ends = np.cumsum([len(each.actions) for each in episodes])
        begins = np.isin(np.arange(count), [0, *ends])
        finals = np.stack([each.features[-1] for each in episodes], dtype=np.float32)
        with torch.no_grad():
            after = model.policy.predict_values(torch.as_tensor(finals)).numpy()[:, 0]
            values, logs, _ = model.policy.evaluate_actions(
                torch.as_tensor(features), torch.as_tensor(actions), action_masks=masks
            )
        # The value of a final state that does not terminate is a part of the last reward.
        goes_on = np.array([not each.terminated for each in episodes])
        rewards[ends - 1] += self.gamma * after * goes_on
        buffer = type(model.rollout_buffer)(
            count,
            model.observation_space,
            model.action_space,
            model.device,
            gae_lambda=model.gae_lambda,
            gamma=model.gamma,
        )
        for n in range(count):
            row = (features[n], actions[n], rewards[n], begins[n : n + 1], values[n], logs[n])
            buffer.add(*row, action_masks=masks[n])
        buffer.compute_returns_and_advantage(torch.zeros(1), np.ones(1))
        model.rollout_buffer = buffer
        # The library divides by the deviation of a minibatch, which a single row does not have.
        model.normalize_advantage = count > 1
        sizes = range(self.batch, count + self.batch)
        model.batch_size = next((n for n in sizes if count % n != 1), count)
        np.random.seed(seed)  # the library shuffles with this generator
        model.train()
        model.policy.set_training_mode(False)

    def state(self) -> dict[str, np.ndarray]:
        """Return the parameters of the networks, and the moments of the optimiser, as arrays."""
        policy = self._model.policy
        found = {f"policy.{name}": value for name, value in policy.state_dict().items()}
        for place, moments in policy.optimizer.state_dict()["state"].items():
            found |= {f"optimizer.{place}.{name}": value for name, value in moments.items()}
        return {name: value.numpy().copy() for name, value in found.items()}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Continue from a `state`.

        Raises:
            ValueError: The state belongs to other networks.
        """
        import torch

        policy, moments = self._model.policy, dict[int, dict[str, Any]]()
        weights = {}
        for name, values in state.items():
            kind, _, rest = name.partition(".")
            if kind == "policy":
                weights[rest] = torch.as_tensor(values)
            elif kind == "optimizer":
                place, _, moment = rest.partition(".")
                moments.setdefault(int(place), {})[moment] = torch.as_tensor(values)
        try:
            policy.load_state_dict(weights)
        except RuntimeError as error:
            raise ValueError("it belongs to other networks") from error
        groups = policy.optimizer.state_dict()["param_groups"]
        policy.optimizer.load_state_dict({"state": moments, "param_groups": groups})
