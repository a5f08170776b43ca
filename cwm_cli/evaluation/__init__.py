"""How well a program predicts recorded transitions."""

from cwm_cli.evaluation.matching import Matches, close, components, match
from cwm_cli.evaluation.metric import Metric, MetricKind, Score
from cwm_cli.evaluation.novelty import unseen
from cwm_cli.evaluation.predicting import Evaluation, evaluate
from cwm_cli.evaluation.rollouts import Rollout, rollouts

__all__ = [
    "Evaluation",
    "Matches",
    "Metric",
    "MetricKind",
    "Rollout",
    "Score",
    "close",
    "components",
    "evaluate",
    "match",
    "rollouts",
    "unseen",
]
