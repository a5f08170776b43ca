"""Score a program on recorded transitions: what `cwm evaluate` does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from cwm_cli.agents.subjects import ProgramSource, RunSource, find_subject, protected
from cwm_cli.agents.synthesizing import Scores
from cwm_cli.data.dataset import Dataset
from cwm_cli.evaluation import Evaluation, Metric, Rollout, failed, rollouts
from cwm_cli.evaluation import evaluate as score
from cwm_cli.problems.feedback import Diagnosis, diagnose
from cwm_cli.registry import Owner, find, read_options
from cwm_cli.runs.observer import SILENT, Observer
from cwm_cli.runs.programs import ProgramRun
from cwm_cli.sandbox import Limits
from cwm_cli.sandbox.failures import Failure
from cwm_cli.sandbox.protection import check_access
from cwm_cli.worlds.program import ProgramModel

Part = Literal["train", "test"]
"""A part of the recorded transitions: what a search may see, and what is held out."""


@dataclass(frozen=True)
class EvaluationResult:
    """What `evaluate` came to.

    `scores.test.accuracy` says how right the program is on held-out rows (None for a part without
    rows, or not asked for), `failure` why it could not be judged. `rows` and `found` hold, for
    each part, the transitions and what the
    program predicts for them; `metric` is what they were scored by.
    """

    scores: Scores
    failure: Failure | None
    rollouts: Sequence[Rollout]
    metric: Metric = field(repr=False)
    rows: Mapping[Part, Dataset] = field(repr=False)
    found: Mapping[Part, Evaluation] = field(repr=False)

    @property
    def wrong(self) -> Part | None:
        """The first part of which a transition is predicted wrongly."""
        parts = (part for part, found in self.found.items() if (found.rows < 1).any())
        return None if self.failure else next(parts, None)

    def diagnosis(self) -> Diagnosis | None:
        """Find out what is wrong in the first part that is not right throughout."""
        if (part := self.wrong) is None:
            return None
        return diagnose(self.rows[part], self.found[part].predictions, self.metric)

    def as_json(self) -> dict[str, Any]:
        """Return what `cwm evaluate --json` prints."""
        return {
            "train": self.scores.train and self.scores.train.model_dump(),
            "test": self.scores.test and self.scores.test.model_dump(),
            "failure": asdict(self.failure) if self.failure else None,
            "rollouts": [rollout._asdict() for rollout in self.rollouts],
        }


def evaluate(
    subject: ProgramSource | RunSource,
    *,
    env: str | None = None,
    env_args: Mapping[str, Any] | None = None,
    dataset: Dataset | Path | str | None = None,
    split: Part | None = None,
    metric: str = "accuracy",
    rollout_count: int = 0,
    options: Sequence[str] | Mapping[str, Any] = (),
    tools: Sequence[str] = (),
    allow_gap: Sequence[str] = (),
    seed: int = 0,
    observer: Observer = SILENT,
) -> EvaluationResult:
    """Score a program of `env`, or the best one of a run, which knows its environment.

    It is asked for the transitions of the run, those of `dataset`, or the default ones of the
    environment. With a `rollout_count` it is also rolled out so many times, on held-out rows
    where some were scored.
    """
    run = _run(subject)
    about = find_subject(
        run,
        program=None if run is not None else subject,  # type: ignore[arg-type]  # no run is left
        env=env,
        env_args=env_args,
        observer=observer,
    )
    limits = read_options(options, [Owner("sandbox", Limits)])["sandbox"]
    check_access(tools, allow_gap)
    kind: type[Metric] = find("metric", metric)
    data = about.transitions(dataset, observer)
    measure = kind.of(data.train)
    parts: dict[Part, Dataset] = {"train": data.train, "test": data.test}
    chosen = {part: rows for part, rows in parts.items() if split in (None, part) and len(rows)}
    guard = protected(
        Limits.chosen({**about.limits, **limits}),
        tools=[*about.tools, *tools],
        accepted=allow_gap,
        observer=observer,
    )
    with guard as sandbox:
        model = ProgramModel(about.text or "", sandbox, about.name)
        found: dict[Part, Evaluation] = {}
        failure = None
        for part, rows in chosen.items():
            if failure is not None and failure.is_timeout:  # one limit is enough to wait for
                found[part] = failed(rows, measure, failure)
            else:
                found[part] = score(model, rows, measure, seed=seed)
            failure = failure or found[part].failure
        rolled: list[Rollout] = []
        if rollout_count and chosen and not failure:
            rows = chosen.get("test", next(iter(chosen.values())))
            rolled = rollouts(
                model, rows, rollout_count, seed=seed, seconds=sandbox.limits.wall_seconds
            )
    train, test = (found[part].score if part in found else None for part in parts)
    return EvaluationResult(Scores(train, test, None), failure, rolled, measure, chosen, found)


def _run(subject: ProgramSource | RunSource) -> RunSource | None:
    """Return the subject if it is a run: one that was read, or a folder."""
    if isinstance(subject, ProgramRun):
        return subject
    is_text = isinstance(subject, str) and "\n" in subject
    return subject if not is_text and Path(subject).is_dir() else None
