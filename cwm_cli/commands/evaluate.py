"""Score a program, or rules, on recorded transitions: what `cwm evaluate` does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from cwm_cli.commands.subjects import ProgramSource, RunSource, find_subject, protected
from cwm_cli.commands.synthesize import Scores
from cwm_cli.data.dataset import Dataset
from cwm_cli.data.spaces import Columns
from cwm_cli.evaluation import (
    Evaluation,
    FollowedEpisode,
    Metric,
    Rollout,
    Score,
    baseline,
    failed_evaluation,
    rollouts,
    trajectories,
)
from cwm_cli.evaluation import evaluate as score
from cwm_cli.evaluation.calibration import ForecastCalibration, calibration
from cwm_cli.problems.feedback import Diagnosis, diagnose
from cwm_cli.registry import Owner, find, read_options
from cwm_cli.result import Result
from cwm_cli.runs.observer import SILENT, Observer
from cwm_cli.runs.places import placed
from cwm_cli.runs.programs import ModelRun
from cwm_cli.sandbox import Limits
from cwm_cli.sandbox.abilities import abilities_of
from cwm_cli.sandbox.failures import Failure
from cwm_cli.sandbox.protection import check_access
from cwm_cli.worlds.environment import EnvironmentModel
from cwm_cli.worlds.model import ExtraScores
from cwm_cli.worlds.program import ProgramModel

DRAWS = 40
"""Episodes that a model of chance imagines beside each recorded one: enough for their quantiles."""

Part = Literal["train", "test"]
"""A part of the recorded transitions: what a search may see, and what is held out."""


@dataclass(frozen=True)
class EvaluationResult(Result):
    """What `evaluate` came to.

    `scores.test.accuracy` says how right the program is on held-out rows (None for a part without
    rows, or not asked for), `failure` why it could not be judged. `rows` and `found` hold, for
    each part, the transitions and what the
    program predicts for them; `metric` is what they were scored by. `ranks` holds scores that only
    this kind of model has, such as the ranks of rules in words. `trajectories` are recorded
    episodes beside what the program makes of them when it lives on its own predictions.
    `baseline` is the score of a prediction without a model, on held-out rows if they are scored.
    """

    scores: Scores
    failure: Failure | None
    rollouts: Sequence[Rollout]
    metric: Metric = field(repr=False)
    rows: Mapping[Part, Dataset] = field(repr=False)
    found: Mapping[Part, Evaluation] = field(repr=False)
    ranks: Mapping[Part, ExtraScores] = field(default_factory=dict, repr=False)
    trajectories: Sequence[FollowedEpisode] = field(default=(), repr=False)
    baseline: Score | None = None

    @property
    def wrong(self) -> Part | None:
        """The first part of which a transition is predicted wrongly."""
        parts = (part for part, found in self.found.items() if (found.rows < 1).any())
        return None if self.failure else next(parts, None)

    def diagnosis(self) -> Diagnosis | None:
        """Find out what is wrong in the first part that is not right throughout."""
        return diagnose(*self.mistakes(part), self.metric) if (part := self.wrong) else None

    def mistakes(self, part: Part) -> tuple[Dataset, Columns]:
        """Return rows of a part and what is predicted for them, in which mistakes can be found.

        Of what chance decides that is only where something else was possible by the program.
        """
        rows, found = self.rows[part], self.found[part]
        if found.answers is None or found.answers.shape == "certain":
            return rows, found.predictions
        wrong = found.rows < 1
        return rows[wrong], {name: column[wrong] for name, column in found.predictions.items()}

    def calibration(self, part: Part) -> ForecastCalibration | None:
        """Say how what is predicted in a part came true; None where the program failed."""
        found = self.found.get(part)
        if found is None or found.answers is None:
            return None
        return calibration(found.answers, self.rows[part])

    def as_json(self) -> dict[str, Any]:
        """Return what `cwm evaluate --json` prints."""
        extra: dict[str, dict[str, Any]] = {}
        for part, each in self.ranks.items():
            extra.setdefault(each.key, {})[part] = each.model_dump(mode="json")
        return {
            "train": self.scores.train and self.scores.train.model_dump(),
            "test": self.scores.test and self.scores.test.model_dump(),
            "failure": asdict(self.failure) if self.failure else None,
            "rollouts": [rollout._asdict() for rollout in self.rollouts],
            **extra,
        } | self._calibrations()

    def _calibrations(self) -> dict[str, Any]:
        """Return how what was predicted came true, where the skill was asked for."""
        skilled = [part for part, found in self.found.items() if found.score.skill is not None]
        found = {part: self.calibration(part) for part in skilled}
        told = {part: each and each.as_json() for part, each in found.items()}
        return {"calibration": told} if told else {}


def evaluate(
    subject: ProgramSource | RunSource,
    *,
    env: str | None = None,
    env_args: Mapping[str, Any] | None = None,
    dataset: Dataset | Path | str | None = None,
    split: Part | None = None,
    metric: str | None = None,
    rollout_count: int = 0,
    trajectory_count: int = 0,
    options: Sequence[str] | Mapping[str, Any] = (),
    tools: Sequence[str] = (),
    allow_gap: Sequence[str] = (),
    seed: int = 0,
    observer: Observer = SILENT,
) -> EvaluationResult:
    """Score a program of `env`, or what a run came to, which knows its environment.

    It is asked for the transitions of the run, those of `dataset`, or the default ones of the
    environment. With a `rollout_count` it is also rolled out so many times, and with a
    `trajectory_count` it follows so many recorded episodes, on held-out rows where some were
    scored. Where no `metric` is named, a program of chance or memory is scored by its skill, and
    any other by its accuracy; rules by that of what they hold to be likeliest.
    """
    run = _run(subject, env)
    about = find_subject(
        run,
        program=None if run is not None else subject,  # type: ignore[arg-type]  # no run is left
        env=env,
        env_args=env_args,
        options=options,
        observer=observer,
    )
    limits = read_options(about.options, [Owner("sandbox", Limits)])["sandbox"]
    check_access(tools, allow_gap)
    plain = abilities_of(about.text or "").is_plain
    kind: type[Metric] = find("metric", metric or ("accuracy" if plain else "skill"))
    data = about.transitions(dataset, observer)
    truth = EnvironmentModel(about.spec, about.env_args)
    measure = kind.of(data.train)
    if not abilities_of(about.text or "").remembers:  # memory knows more than one observation shows
        measure = measure.with_environment(truth, seed=seed)
    parts: dict[Part, Dataset] = {"train": data.train, "test": data.test}
    chosen = {part: rows for part, rows in parts.items() if split in (None, part) and len(rows)}
    bounds = Limits.chosen({**about.limits, **limits})
    with ExitStack() as stack:
        model = about.model
        if model is None:
            guard = protected(
                bounds, tools=[*about.tools, *tools], accepted=allow_gap, observer=observer
            )
            model = ProgramModel(about.text or "", stack.enter_context(guard), about.name)
        found: dict[Part, Evaluation] = {}
        failure = None
        for part, rows in chosen.items():
            if failure is not None and failure.is_timeout:  # one limit is enough to wait for
                found[part] = failed_evaluation(rows, measure, failure)
            else:
                found[part] = score(model, rows, measure, seed=seed)
            failure = failure or found[part].failure
        rolled: list[Rollout] = []
        followed: list[FollowedEpisode] = []
        if chosen and not failure:
            part = "test" if "test" in chosen else "train"
            rows, seconds = chosen[part], bounds.wall_seconds
            if rollout_count:
                rolled = rollouts(model, rows, rollout_count, seed=seed, seconds=seconds)
            answers = found[part].answers
            draws = 1 if answers is None or answers.shape == "certain" else DRAWS
            followed = trajectories(
                model,
                rows,
                trajectory_count,
                known=data.train if len(data.train) else rows,
                draws=draws,
                seconds=seconds,
            )
    train, test = (found[part].score if part in found else None for part in parts)
    scores = Scores(train, test, None)
    scored = {part: model.extra_scores(some) for part, some in chosen.items()}
    extra = {part: each for part, each in scored.items() if each is not None}
    base = baseline(chosen.get("test", chosen.get("train")), data.train)
    return EvaluationResult(scores, failure, rolled, measure, chosen, found, extra, followed, base)


def _run(subject: ProgramSource | RunSource, env: str | None) -> RunSource | None:
    """Return the subject if it is meant as a run: one that was read, a folder, or a bare name."""
    if isinstance(subject, ModelRun):
        return subject
    if isinstance(subject, str) and "\n" in subject:
        return None
    place = placed(subject)
    is_bare = env is None and not place.suffix and not place.exists()
    return subject if place.is_dir() or is_bare else None
