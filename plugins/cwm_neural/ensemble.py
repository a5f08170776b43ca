"""Trainer of an ensemble of probabilistic networks, for planning with all members (PETS)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from cwm_neural.ensemble_options import EnsembleOptions
from cwm_neural.states import EXTRA
from cwm_neural.training.trainer import Trainer, Training, TrainingTask


@dataclass
class EnsembleTrainer(EnsembleOptions, Trainer):
    """Trains several networks to predict changes of numbers from rows (Chua et al., 2018)."""

    requires: ClassVar[tuple[str, ...]] = ("torch",)
    extra: ClassVar[str] = EXTRA

    def begin(self, task: TrainingTask) -> Training:
        """Return untrained networks; raise `CwmError` for images."""
        self.check()
        from cwm_neural.members import EnsembleTraining

        return EnsembleTraining(self, task)
