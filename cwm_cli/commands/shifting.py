"""Comparison of a world model in its own environment and in shifted ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from cwm_cli.commands.collect import default_dataset
from cwm_cli.commands.recording import DEFAULTS, MIN_ROWS, RecordingOptions
from cwm_cli.commands.subjects import Subject
from cwm_cli.data.dataset import Dataset
from cwm_cli.evaluation import Score
from cwm_cli.evaluation.robustness import PartAccuracy
from cwm_cli.runs.observer import Observer
from cwm_cli.sandbox.failures import Failure


@dataclass(frozen=True)
class ShiftedScore:
    """The score of a world model in a shifted environment.

    Attributes:
        name: The changed arguments, such as "shift=1".
        env_args: All arguments of the environment.
        score: The score of all rows.
        parts: Accuracy of each part of a transition by name; empty after a failure.
        broken: Names of the parts that are predicted worse than in the own environment.
        failure: Why the program could not be scored, or None.
    """

    name: str
    env_args: Mapping[str, Any]
    score: Score
    parts: Mapping[str, PartAccuracy]
    broken: Sequence[str]
    failure: Failure | None

    def as_json(self) -> dict[str, Any]:
        """Return the score as JSON data."""
        return {
            "name": self.name,
            "env_args": dict(self.env_args),
            "score": self.score.model_dump(),
            "parts": {name: asdict(part) for name, part in self.parts.items()},
            "broken": list(self.broken),
            "failure": self.failure and asdict(self.failure),
        }


@dataclass(frozen=True)
class Robustness:
    """Scores of a world model in its own environment and in shifted ones.

    Attributes:
        split: The rows of the own environment: "test", or "train" without held-out rows.
        score: The score in the own environment.
        parts: Accuracy of each part of a transition in the own environment.
        shifted: The scores in the shifted environments.
    """

    split: Literal["train", "test"]
    score: Score
    parts: Mapping[str, PartAccuracy]
    shifted: Sequence[ShiftedScore]

    def as_json(self) -> dict[str, Any]:
        """Return the comparison as JSON data."""
        return {
            "split": self.split,
            "score": self.score.model_dump(),
            "parts": {name: asdict(part) for name, part in self.parts.items()},
            "shifted": [each.as_json() for each in self.shifted],
        }


def record_similar(subject: Subject, like: Dataset, observer: Observer) -> Dataset:
    """Return held-out rows of a subject's environment, recorded like other rows.

    The recording is cached. It has as many episodes as the held-out part of the other rows, with
    the same policy, length and seed, or the defaults if `cwm collect` did not record these rows.

    Args:
        subject: The subject, in a shifted environment.
        like: Rows of the own environment.
        observer: Receives the progress of the recording.
    """
    recorded = like.metadata if "policy" in like.metadata else {}
    options: RecordingOptions = DEFAULTS | {  # type: ignore[assignment]  # only its keys
        name: recorded[name] for name in RecordingOptions.__annotations__ if name in recorded
    }
    seed = options.pop("seed")
    if not options.get("test_episodes"):
        options["test_episodes"] = options["episodes"]
    # A recording has at least one train episode, which is not used.
    options |= {"episodes": 1, "min_rows": 0}
    options.setdefault("min_test_rows", MIN_ROWS)
    file, _ = default_dataset(
        subject.spec, env_args=subject.env_args, data_seed=seed, observer=observer, **options
    )
    return Dataset.load(file).test
