"""The networks and losses of conservative Q-learning, as torchrl computes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import Tensor, nn
from torchrl.data import Bounded
from torchrl.modules import ProbabilisticActor, TanhNormal, ValueOperator
from torchrl.objectives import CQLLoss, DiscreteCQLLoss, SoftUpdate

from cwm_cli.data.dataset import Dataset
from cwm_cli.data.spaces import Columns
from cwm_cli.errors import CwmError
from cwm_neural.actor_networks import (
    LOG_STD,
    ActionPolicy,
    CategoricalPolicy,
    HeadOutputs,
    ObservationEncoder,
    policy_of,
)
from cwm_neural.cql_options import CqlOptions
from cwm_neural.training.trainer import TrainingTask

LOSS_NAMES = {
    "loss_qvalue": "values",
    "loss_cql": "conservatism",
    "loss_actor": "actor",
    "loss_alpha": "temperature",
}
"""Names of the summed losses in torchrl, and here."""


class SharedObservations:
    """Columns of observations that all copies of a network share."""

    def __init__(self) -> None:
        self.columns: Columns = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> SharedObservations:
        return self  # torchrl copies networks


class RowNetwork(nn.Module):
    """Encodes observations by their row index, so that torchrl passes one number for any space."""

    def __init__(
        self, encoder: ObservationEncoder, head: nn.Module, shared: SharedObservations
    ) -> None:
        super().__init__()
        self.encoder, self.head, self._shared = encoder, head, shared

    def forward(self, places: Tensor, *more: Tensor) -> Any:
        """Return the head's output for row indices (..., 1) and further inputs, e.g. actions."""
        flat = places.reshape(-1).cpu().numpy()
        found = self.encoder({name: each[flat] for name, each in self._shared.columns.items()})
        found = found.reshape(*places.shape[:-1], found.shape[-1])
        return self.head(torch.cat([found, *more], dim=-1))


class ActorNetwork(nn.Module):
    """The network of a session: an encoder, a head, and the policy for the head's outputs.

    For discrete actions the outputs are the action values.
    """

    cell = None

    def __init__(self, encoder: ObservationEncoder, policy: ActionPolicy) -> None:
        super().__init__()
        self.encoder, self.policy = encoder, policy
        self.head = nn.Linear(encoder.size, policy.size)

    def forward(self, columns: Columns, memory: Any = None) -> HeadOutputs:
        """Return the outputs for observations, and the highest value of each row."""
        outputs = self.head(self.encoder(columns))
        return HeadOutputs(outputs, outputs.amax(dim=1), None)


class Spread(nn.Module):
    """Means and standard deviations, with the same bounds as in `GaussianPolicy`."""

    def forward(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Split outputs (..., 2 n) into both."""
        mean, log_std = outputs.chunk(2, dim=-1)
        return mean, log_std.clamp(*LOG_STD).exp()


class ConservativeLosses:
    """The trained networks, their losses, and the optimiser.

    The statistics of the first `rows` normalise real numbers permanently, because the target
    networks were made with them.
    """

    def __init__(self, task: TrainingTask, options: CqlOptions, rows: Dataset | None) -> None:
        self._options, self._shared, self._device = options, SharedObservations(), task.device
        self._task, self._rows = task, rows
        policy = policy_of(task.action_space)
        self.network = ActorNetwork(self._encoder(), policy)
        discrete = isinstance(policy, CategoricalPolicy)
        loss = self._discrete() if discrete else self._continuous()
        loss.make_value_estimator(gamma=options.discount)
        self._loss = loss.to(task.device)
        self._target = SoftUpdate(self._loss, tau=options.follow)
        self._optimiser = torch.optim.Adam(self._loss.parameters(), lr=options.rate)

    @property
    def size(self) -> int:
        """The number of trained parameters."""
        return sum(each.numel() for each in self._loss.parameters())

    def update(self, rows: Dataset, places: np.ndarray) -> dict[str, Tensor]:
        """Make one gradient step on some rows, and return the losses."""
        self._shared.columns = {
            leaf.name: np.concatenate(
                [rows.columns[leaf.name][places], rows.columns[f"next_{leaf.name}"][places]]
            )
            for leaf in rows.observation_space.leaves("observations")
        }
        found = self._loss(self._batch(rows, places))
        losses = {name: each for name, each in found.items() if name in LOSS_NAMES}
        weight = {"loss_cql": self._options.conservatism}
        self._optimiser.zero_grad()
        sum(weight.get(name, 1.0) * each for name, each in losses.items()).backward()
        nn.utils.clip_grad_norm_(self._loss.parameters(), self._options.clip)
        self._optimiser.step()
        self._target.step()
        return {LOSS_NAMES[name]: each.detach() for name, each in losses.items()}

    def state(self) -> dict[str, Any]:
        """Return the complete state of the training."""
        return {"loss": dict(self._loss.state_dict()), "optimiser": self._optimiser.state_dict()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `state`."""
        self._loss.load_state_dict(state["loss"])
        self._optimiser.load_state_dict(state["optimiser"])

    def _encoder(self) -> ObservationEncoder:
        """Return a new encoder, normalised by the rows."""
        options, space = self._options, self._task.observation_space
        made = ObservationEncoder(
            space, width=options.width, channels=options.channels, layers=options.layers
        )
        if self._rows is not None:
            made.normalise(self._rows)
        return made

    def _batch(self, rows: Dataset, places: np.ndarray) -> TensorDict:
        """Return rows in the format of torchrl, with indices of `_shared` as observations."""
        count, space = len(places), self._task.action_space
        columns = {name: rows.columns[name][places] for name in ("actions", "rewards")}
        over = torch.as_tensor(rows.columns["terminations"][places])[:, None]
        if space.kind == "discrete":
            actions = torch.as_tensor(columns["actions"].astype(np.int64) - int(space.low[0]))
        else:
            actions = torch.as_tensor(columns["actions"].reshape(count, -1)).float()
        after = {
            "observation": torch.arange(count, 2 * count)[:, None],
            "reward": torch.as_tensor(columns["rewards"]).float()[:, None],
            "terminated": over,
            "done": over,  # after a time limit the value of the next state counts
        }
        batch = {"observation": torch.arange(count)[:, None], "action": actions, "next": after}
        return TensorDict(batch, [count], device=self._device)

    def _discrete(self) -> Any:
        """Return the loss of a deep Q-network."""
        values = RowNetwork(self.network.encoder, self.network.head, self._shared)
        return DiscreteCQLLoss(values, action_space="categorical")

    def _continuous(self) -> Any:
        """Return the loss of an actor and two value networks."""
        space, width = self._task.action_space, self._options.width
        if not np.isfinite([*space.low, *space.high]).all():
            raise CwmError("cql needs bounded Box actions: this environment has others")
        low, high = (
            torch.tensor(bounds, device=self._device) for bounds in (space.low, space.high)
        )
        spread = nn.Sequential(self.network.head, Spread())
        actor = ProbabilisticActor(
            TensorDictModule(
                RowNetwork(self.network.encoder, spread, self._shared),
                in_keys=["observation"],
                out_keys=["loc", "scale"],
            ),
            in_keys=["loc", "scale"],
            spec=Bounded(low, high),
            distribution_class=TanhNormal,
            distribution_kwargs={"low": low, "high": high},
        )
        encoder = self._encoder()
        head = nn.Sequential(
            nn.Linear(encoder.size + space.size, width), nn.SiLU(), nn.Linear(width, 1)
        )
        values = ValueOperator(
            RowNetwork(encoder, head, self._shared), in_keys=["observation", "action"]
        )
        return CQLLoss(actor, values, action_spec=Bounded(low, high), deactivate_vmap=True)
