"""Conservative Q-learning on recorded rows with the losses of torchrl; it needs no world model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_cli.envs.tasks import Task
from cwm_cli.worlds.model import PlanningSession, WorldModel
from cwm_neural.cql_options import CqlOptions
from cwm_neural.states import (
    EXTRA,
    drawing,
    finite,
    mean_losses,
    save_state,
    saved_state,
    shape_of,
)
from cwm_neural.training.trainer import Agent, AgentTrainer, TrainingTask

if TYPE_CHECKING:
    from cwm_neural.cql_networks import ConservativeLosses


@dataclass
class CqlTrainer(CqlOptions, AgentTrainer):
    """Learns a policy offline, with action values that are low for actions outside the rows.

    Kumar et al. (2020), with the losses of torchrl: the losses of a deep Q-network for discrete
    actions, and of soft actor-critic for bounded real actions.
    """

    needs_model: ClassVar[bool] = False
    requires: ClassVar[tuple[str, ...]] = ("torch", "torchrl")
    extra: ClassVar[str] = EXTRA

    def begin(self, task: TrainingTask) -> Agent:
        """Return an untrained agent."""
        self.check()
        return Cql(self, task)


class Cql(Agent):
    """Learns conservative values from rows, and takes the action with the highest value."""

    def __init__(self, options: CqlTrainer, task: TrainingTask) -> None:
        self._options, self._task = options, task
        self._updates, self._due = 0, 0.0
        self._losses = self._begin(None)

    @property
    def parameters(self) -> Mapping[str, int]:
        """The number of parameters, without the target networks."""
        return {"cql": self._losses.size}

    def fit(self, model: WorldModel | None, rows: Dataset, steps: int) -> Mapping[str, float]:
        """Train on rows, with `updates` updates for each of the `steps` new environment steps."""
        if not self._updates:
            self._losses = self._begin(rows)
        found: list[dict[str, float]] = []
        self._due += steps * self._options.updates
        while self._due >= 1:
            self._due -= 1
            rng = np.random.default_rng([self._task.seed, self._updates])
            with drawing(int(rng.integers(1 << 31))):
                losses = self._losses.update(
                    rows, rng.integers(len(rows), size=self._options.batch)
                )
            found.append(finite(losses, self._updates))
            self._updates += 1
        return mean_losses(found)

    def open(self, task: Task, *, greedy: bool = False, seed: int = 0) -> PlanningSession:
        """Return a session that always takes the action with the highest value."""
        from cwm_neural.actor import ActingSession

        return ActingSession(self._losses.network, None, seed=seed, temperature=0.0)

    def save(self, folder: Path) -> None:
        """Write the networks, the optimiser and the counts to an existing folder."""
        state = self._losses.state() | {"updates": [self._updates, self._due]}
        save_state(folder, "cql", self._shape, state)

    def load(self, folder: Path) -> None:
        """Restore a saved state; raise `CwmError` if it has another kind or shape."""
        with saved_state(folder, "cql", self._shape) as state:
            self._losses.restore(state)
            self._updates, self._due = state["updates"]

    def _begin(self, rows: Dataset | None) -> ConservativeLosses:
        """Return untrained networks, normalised by the rows."""
        from cwm_neural.cql_networks import ConservativeLosses

        with drawing(self._task.seed):
            return ConservativeLosses(self._task, self._options, rows)

    @property
    def _shape(self) -> dict[str, Any]:
        return shape_of(self._task, self._options, "width", "layers", "channels")
