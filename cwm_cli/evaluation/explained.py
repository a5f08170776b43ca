"""The metric `explained`: the share of the squared change that a program explains, up to noise."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np

from cwm_cli.data.dataset import TOLERANCES, Dataset
from cwm_cli.data.spaces import Columns
from cwm_cli.evaluation.component_scores import ComponentScore
from cwm_cli.evaluation.metric import MOST_CLASSES, AccuracyMetric, Score
from cwm_cli.evaluation.noise import NoiseLevel, noise_levels
from cwm_cli.evaluation.residuals import component_scores
from cwm_cli.evaluation.verdicts import largest_gap

if TYPE_CHECKING:
    from cwm_cli.worlds import Predictions


@dataclass(frozen=True)
class ExplainedMetric(AccuracyMetric):
    """The mean over components of the share explained beyond "nothing changes".

    The rewards of few values and the ends of episodes are parts like components, if they vary:
    their share is the one of wrong values that the program corrects. The ceiling is the share of a
    program at the estimated noise level. It is reached if the errors of each component are at the
    noise level and white, and rewards of few values and ends are exact.
    """

    OUTLIER: ClassVar[float] = 4.0
    """Errors of more noise levels are wrong predictions: of normal noise, 1 in 16,000."""

    levels: Mapping[int, NoiseLevel] = field(default_factory=dict, repr=False)
    remembers: bool = False

    @classmethod
    def of(cls, train: Dataset) -> Self:
        """Estimate the noise of the train rows."""
        return replace(super().of(train), levels=noise_levels(train))

    def with_memory(self) -> Self:
        """Return the metric of programs with memory, which can filter noise."""
        return replace(self, remembers=True)

    def words(self, rows: Dataset) -> str:
        """Return a description of the scoring for prompts."""
        return (
            "The data have noise, so that no program is exact. The score is the mean, over the "
            "components, of 1 - squared error / squared change in one step."
        )

    def score(self, predictions: "Predictions | Columns", rows: Dataset) -> Score:
        """Score predictions of all rows of a dataset."""
        base = super().score(predictions, rows)
        found = component_scores(predictions, rows, self.levels, remembers=self.remembers)
        shares = [max(0.0, each.explained or 0.0) for each in found]
        ceilings = [_ceiling(each) for each in found]
        is_right = True
        for right, name in ((base.reward, "rewards"), (base.terminated, "terminations")):
            counts = np.unique(rows.columns[name], return_counts=True)[1]
            if right is not None and 1 < len(counts) <= MOST_CLASSES:
                usual = counts.max() / len(rows)
                shares.append(max(0.0, (right - usual) / (1 - usual)))
                ceilings.append(1.0)
                is_right &= right == 1
        gap = largest_gap(found)
        reached = bool(found) and is_right and all(each.is_complete for each in found)
        return base.model_copy(
            update={
                "explained": float(np.mean(shares)) if shares else base.exact,
                "explained_ceiling": float(np.mean(ceilings)) if ceilings else 1.0,
                "components": found,
                "reached": reached,
                "open_gap": None if reached else gap or "rewards or ends are wrong",
            }
        )

    def failed(self, rows: Dataset) -> Score:
        """Return the score of a model without predictions."""
        return super().failed(rows).model_copy(update={"explained": 0.0, "reached": False})

    def losses(self, predictions: "Predictions | Columns", rows: Dataset) -> np.ndarray:
        """Return the loss of each row; errors up to four noise levels count as right."""
        return super().losses(predictions, self.tolerant(rows))

    def tolerant(self, rows: Dataset) -> Dataset:
        """Return rows with a tolerance of four noise levels for each noisy component."""
        size = sum(leaf.space.size for leaf in rows.observation_space.leaves(""))
        wide = {
            "reward" if number == size else str(number): self.OUTLIER
            * max(level.reachable(remembers=self.remembers), level.unit)
            for number, level in self.levels.items()
            if level.is_noisy
        }
        for name, given in rows.tolerances.items():
            wide[name] = max(wide.get(name, 0.0), given)
        return replace(rows, metadata=rows.metadata | {TOLERANCES: wide})


def _ceiling(score: ComponentScore) -> float:
    """Return the share explained at the noise level; 1 if the level is unknown."""
    noise, error = score.noise, score.error
    if not noise or not error or score.explained is None or score.explained >= 1:
        return 1.0
    return max(0.0, 1 - (1 - score.explained) * (noise / error) ** (1 if score.is_label else 2))
