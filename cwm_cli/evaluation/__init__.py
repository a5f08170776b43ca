"""How well a world model predicts recorded transitions.

`metric` scores predictions beside what was recorded, and says what could be reached at all;
`rollouts` has a model live on its own predictions.
"""

from collections.abc import Mapping

from cwm_cli.evaluation.metric import (
    AccuracyMetric,
    Ceiling,
    Evaluation,
    Matches,
    Metric,
    PaperMetric,
    Score,
    baseline,
    close,
    components,
    evaluate,
    failed,
    log_error,
    match,
    unseen,
)
from cwm_cli.evaluation.rollouts import FollowedEpisode, Rollout, rollouts, trajectories

__all__ = [
    "METRICS",
    "AccuracyMetric",
    "Ceiling",
    "Evaluation",
    "FollowedEpisode",
    "Matches",
    "Metric",
    "PaperMetric",
    "Rollout",
    "Score",
    "baseline",
    "close",
    "components",
    "evaluate",
    "failed",
    "log_error",
    "match",
    "rollouts",
    "trajectories",
    "unseen",
]

METRICS: Mapping[str, str] = {
    "accuracy": "cwm_cli.evaluation.metric:AccuracyMetric",
    "paper": "cwm_cli.evaluation.metric:PaperMetric",
    "skill": "cwm_cli.evaluation.skill:SkillMetric",
}
"""Addresses of the metrics by name, the usual one first."""
