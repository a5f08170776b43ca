"""Evaluation of world models on recorded transitions.

`metric` and `skill` score one-step predictions, `rollouts` multi-step ones, `mismatches` compares
plans with the environment, `finding` tests rows for randomness and hidden state, and `support`
reports which predictions the data support.
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
    failed_evaluation,
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
    "failed_evaluation",
    "log_error",
    "match",
    "rollouts",
    "trajectories",
    "unseen",
]

METRICS: Mapping[str, str] = {
    "accuracy": "cwm_cli.evaluation.metric:AccuracyMetric",
    "explained": "cwm_cli.evaluation.explained:ExplainedMetric",
    "paper": "cwm_cli.evaluation.metric:PaperMetric",
    "skill": "cwm_cli.evaluation.skill:SkillMetric",
}
"""Addresses of the metrics by name, the default first."""
