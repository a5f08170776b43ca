"""Several probabilistic networks on rows, and planning by what all of them foresee (PETS)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from cwm_neural.ensemble_options import EnsembleOptions
from cwm_neural.states import EXTRA
from cwm_neural.training.trainer import Trainer, Training, TrainingTask


@dataclass
class EnsembleTrainer(EnsembleOptions, Trainer):
    """Learns what numbers change by, from rows, with several networks (Chua et al., 2018)."""

    requires: ClassVar[tuple[str, ...]] = ("torch",)
    extra: ClassVar[str] = EXTRA

    def begin(self, task: TrainingTask) -> Training:
        """Make networks that have learned nothing; pictures are refused."""
        self.check()
        from cwm_neural.members import EnsembleTraining

        return EnsembleTraining(self, task)
