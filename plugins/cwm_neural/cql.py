"""Conservative Q-learning from rows alone, by the losses of torchrl: what needs no world model."""

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
from cwm_neural.states import EXTRA, drawing, finite, load_state, restoring, save_state, shape_of
from cwm_neural.training.trainer import Agent, AgentTrainer, TrainingTask

if TYPE_CHECKING:
    from cwm_neural.cql_networks import ConservativeLosses

SHAPING = ("width", "layers", "channels")
"""Options that a saved state has to agree with."""


@dataclass
class CqlTrainer(CqlOptions, AgentTrainer):
    """Values of actions that are low for what no row did, and the policy that follows them.

    It learns offline, in no world model. Kumar et al. (2020), with the losses of torchrl: for one
    of some actions those of a deep Q-network, for bounded numbers those of soft actor-critic.
    """

    needs_model: ClassVar[bool] = False
    requires: ClassVar[tuple[str, ...]] = ("torch", "torchrl")
    extra: ClassVar[str] = EXTRA

    def begin(self, task: TrainingTask) -> Agent:
        """Make an agent that has learned nothing."""
        self.check()
        return Cql(self, task)


class Cql(Agent):
    """Learns conservative values from rows, and takes the action that they are highest for."""

    def __init__(self, options: CqlTrainer, task: TrainingTask) -> None:
        self._options, self._task = options, task
        self._done, self._owed = 0, 0.0
        self._losses = self._begin(None)

    @property
    def parameters(self) -> Mapping[str, int]:
        """How many parameters there are, without the slow copies."""
        return {"cql": self._losses.size}

    def fit(self, model: WorldModel | None, rows: Dataset, steps: int) -> Mapping[str, float]:
        """Learn from rows, as long as so many steps are worth."""
        if not self._done:
            self._losses = self._begin(rows)
        found: list[dict[str, float]] = []
        self._owed += steps * self._options.updates
        while self._owed >= 1:
            self._owed -= 1
            rng = np.random.default_rng([self._task.seed, self._done])
            with drawing(int(rng.integers(1 << 31))):
                losses = self._losses.update(
                    rows, rng.integers(len(rows), size=self._options.batch)
                )
            found.append(finite(losses, self._done))
            self._done += 1
        names = found[0] if found else ()
        return {name: float(np.mean([each[name] for each in found])) for name in names}

    def open(self, task: Task, *, greedy: bool = False, seed: int = 0) -> PlanningSession:
        """Begin to act in episodes of a task: always as is best by the values."""
        from cwm_neural.actor import ActingSession

        return ActingSession(self._losses.network, None, seed=seed, temperature=0.0)

    def save(self, folder: Path) -> None:
        """Write all of it to files in a folder that is there."""
        state = self._losses.state() | {"updates": [self._done, self._owed]}
        save_state(folder, "cql", self._shape, state)

    def load(self, folder: Path) -> None:
        """Go on from what `save` wrote; `CwmError` for what is of another kind or shape."""
        state = load_state(folder, "cql", self._shape)
        with restoring(folder):
            self._losses.restore(state)
            self._done, self._owed = state["updates"]

    def _begin(self, rows: Dataset | None) -> ConservativeLosses:
        """Return networks that have learned nothing."""
        from cwm_neural.cql_networks import ConservativeLosses

        with drawing(self._task.seed):
            return ConservativeLosses(self._task, self._options, rows)

    @property
    def _shape(self) -> dict[str, Any]:
        """What a state is of."""
        return shape_of(self._task, **{name: getattr(self._options, name) for name in SHAPING})
