"""Score a program, or rules in words, on recorded transitions (`cwm evaluate`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from cwm_cli.commands.shifting import Robustness, ShiftedScore, record_similar
from cwm_cli.commands.subjects import ProgramSource, RunSource, Subject, find_subject, protected
from cwm_cli.commands.synthesize import Scores
from cwm_cli.commands.tolerances import component_names, with_tolerances
from cwm_cli.commands.transfer import (
    Algorithm,
    Transfer,
    TransferOptions,
    check_transfer,
    compare_training,
)
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
from cwm_cli.evaluation.finding import usual_metric
from cwm_cli.evaluation.noise import NoiseLevel, is_table, noise_levels
from cwm_cli.evaluation.residuals import with_components
from cwm_cli.evaluation.robustness import PartAccuracy, broken_parts, part_accuracies
from cwm_cli.evaluation.verdicts import explains_all_but_noise
from cwm_cli.problems.feedback import Diagnosis, diagnose, worst
from cwm_cli.problems.feedback.table_rows import worst_values
from cwm_cli.registry import Owner, find, read_options
from cwm_cli.result import Result
from cwm_cli.runs.observer import SILENT, Observer
from cwm_cli.runs.programs import ModelRun
from cwm_cli.runs.storage import placed
from cwm_cli.sandbox import Limits
from cwm_cli.sandbox.failures import Failure
from cwm_cli.sandbox.job import abilities_of
from cwm_cli.sandbox.protection import check_access
from cwm_cli.worlds.environment import EnvironmentModel
from cwm_cli.worlds.messages import ImaginingJob, SteppingJob
from cwm_cli.worlds.model import ExtraScores, WorldModel
from cwm_cli.worlds.program import ProgramModel

Part = Literal["train", "test"]
"""A part of the recorded transitions: the rows of the search, or the held-out rows."""


@dataclass(frozen=True)
class EvaluationResult(Result):
    """The scores and predictions of a program.

    Attributes:
        scores: Scores of each part, such as `scores.test.accuracy`; None without rows.
        failure: Why the program could not be scored, or None.
        rollouts: Errors of predictions over several steps.
        metric: Metric of the scores.
        rows: The transitions of each part.
        found: The evaluation of each part, with the predictions.
        ranks: Scores that only this kind of model has, such as the ranks of rules in words.
        trajectories: Recorded episodes, with the predictions of a program that continues from its
            own predictions.
        baseline: Score of predictions without a model, on held-out rows if they are scored.
        places: Row numbers of each part in the dataset, counted from 0.
        text: Source text of the program; empty for other models.
        robustness: The comparison with shifted environments, if it was requested.
        transfer: The comparison of agents that are trained in the program and in its environment,
            if it was requested.
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
    places: Mapping[Part, np.ndarray] = field(default_factory=dict, repr=False)
    text: str = field(default="", repr=False)
    robustness: Robustness | None = None
    transfer: Transfer | None = None

    @property
    def is_good(self) -> bool:
        """Whether no prediction is wrong, except for noise if the metric measures it."""
        if self.failure is None and self.wrong is None:
            return True
        return explains_all_but_noise(self.scores.train, self.scores.test)

    @property
    def wrong(self) -> Part | None:
        """The first part with a wrong prediction; None after a failure."""
        parts = (part for part, found in self.found.items() if (found.rows < 1).any())
        return None if self.failure else next(parts, None)

    def diagnosis(self) -> Diagnosis | None:
        """Return a diagnosis of the first part with wrong predictions, or None."""
        return diagnose(*self.mistakes(part), self.metric) if (part := self.wrong) else None

    def mistakes(self, part: Part) -> tuple[Dataset, Columns]:
        """Return the rows of a part, and predictions that can be compared with them.

        If the program predicts several possible results, only the rows whose result it excludes
        are returned.
        """
        rows, found = self.metric.tolerant(self.rows[part]), self.found[part]
        if found.answers is None or found.answers.shape == "certain":
            return rows, found.predictions
        wrong = found.rows < 1
        return rows[wrong], {name: column[wrong] for name, column in found.predictions.items()}

    def worst(self, part: Part, count: int) -> list[str]:
        """Describe the worst predictions of a part, of tables with names and labels."""
        rows, predictions = self.mistakes(part)
        if not is_table(rows):
            return worst(rows, predictions, self.metric, count)
        places = self.places.get(part)
        if places is not None and len(places) != len(rows):
            places = places[self.found[part].rows < 1]
        return worst_values(rows, predictions, count, places)

    def calibration(self, part: Part) -> ForecastCalibration | None:
        """Compare predicted probabilities of a part with frequencies; None after a failure."""
        found = self.found.get(part)
        if found is None or found.answers is None:
            return None
        return calibration(found.answers, self.rows[part])

    def as_json(self) -> dict[str, Any]:
        """Return the output of `cwm evaluate --json`."""
        extra: dict[str, dict[Any, Any]] = {}
        for part, each in self.ranks.items():
            extra.setdefault(each.key, {})[part] = each.model_dump(mode="json")
        # only the metric `skill` scores probabilities
        skilled = [part for part, found in self.found.items() if found.score.skill is not None]
        calibrations = {part: self.calibration(part) for part in skilled}
        if calibrations:
            extra["calibration"] = {p: each and each.as_json() for p, each in calibrations.items()}
        if self.robustness is not None:
            extra["robustness"] = self.robustness.as_json()
        if self.transfer is not None:
            extra["transfer"] = self.transfer.as_json()
        return {
            "train": self.scores.train and self.scores.train.model_dump(),
            "test": self.scores.test and self.scores.test.model_dump(),
            "failure": asdict(self.failure) if self.failure else None,
            "rollouts": [rollout._asdict() for rollout in self.rollouts],
            **extra,
        }


def evaluate(
    subject: ProgramSource | RunSource,
    *,
    env: str | None = None,
    env_args: Mapping[str, Any] | None = None,
    dataset: Dataset | Path | str | None = None,
    split: Part | None = None,
    metric: str | None = None,
    tolerance: Sequence[str] | Mapping[str, float] = (),
    rollout_count: int = 0,
    trajectory_count: int = 0,
    shifts: Sequence[int | Mapping[str, Any]] = (),
    transfer: Algorithm | None = None,
    options: Sequence[str] | Mapping[str, Any] = (),
    tools: Sequence[str] = (),
    allow_gap: Sequence[str] = (),
    seed: int = 0,
    observer: Observer = SILENT,
) -> EvaluationResult:
    """Score a program, or the world model of a run, on recorded transitions.

    Args:
        subject: A program (file or text) of `env`, or a run, which names its environment.
        env: Id of the environment of a program; optional if the dataset names it.
        env_args: Arguments of the environment.
        dataset: Transitions or their file, by default the rows of the run or of the environment.
        split: The part to score, by default both.
        metric: Name of the metric. By default `skill` for programs with randomness or memory, and
            `accuracy` for others; `explained` instead for programs without randomness if a table
            has noise; for rules, the accuracy of their likeliest prediction.
        tolerance: Absolute tolerances of exactness: `"NAME=VALUE"`, `"VALUE"` for all real
            numbers, or a mapping by name of the component (or `reward`).
        rollout_count: Number of rollouts to score as well.
        trajectory_count: Number of recorded episodes to predict step by step, held-out ones if
            they are scored.
        shifts: Shifted environments to score the program in as well: seeds of `--shift`, or
            arguments that replace the ones of the environment, such as `{"g": 5}`.
        transfer: Train agents with this algorithm in the program and in its environment, and
            compare their returns in the environment. Needs the extra `rl`.
        options: Options of the model, of the transfer and of the sandbox, as for `-o`.
        tools: Modules that the program may import.
        allow_gap: Missing protections of the sandbox that are accepted.
        seed: Random seed.
        observer: Receives notes.

    Returns:
        Scores and predictions. Failures of the program are part of the result.

    Raises:
        CwmError: The request is invalid.
    """
    run = run_of(subject, env)
    about = find_subject(
        run,
        program=None if run is not None else subject,  # type: ignore[arg-type]  # no run is left
        env=env,
        env_args=env_args,
        dataset=dataset,
        options=options,
        observer=observer,
    )
    owners = [Owner("sandbox", Limits), Owner("transfer", TransferOptions)]
    chosen = read_options(about.options, owners)
    limits, training = chosen["sandbox"], owners[1].make(chosen["transfer"])
    check_access(tools, allow_gap)
    if metric is not None:
        find("metric", metric)  # refuse a wrong name before transitions are recorded
    shifted = about.in_shifts(shifts)
    if transfer is not None:
        check_transfer(about)
    data = about.transitions(dataset, observer)
    bounds = Limits.chosen({**about.limits, **limits})
    with ExitStack() as stack:
        model = about.model
        if model is None:
            followers = [SteppingJob.handler, ImaginingJob.handler]
            guard = protected(
                bounds,
                tools=[*about.tools, *tools],
                accepted=allow_gap,
                handlers=followers if rollout_count or trajectory_count else [],
                observer=observer,
            )
            model = ProgramModel(about.text or "", stack.enter_context(guard), about.name)
        scoring = _Scoring(about, model, metric, tolerance, bounds.wall_seconds, seed)
        result = scoring.score(data, split, rollout_count, trajectory_count)
        if shifted and result.found:
            result = replace(result, robustness=scoring.compare(result, data, shifted, observer))
    if transfer is None or result.failure:
        return result
    compared = compare_training(
        about,
        data,
        algorithm=transfer,
        options=training,
        limits=limits,
        tools=tools,
        allow_gap=allow_gap,
        seed=seed,
        observer=observer,
    )
    return replace(result, transfer=compared)


class _Scoring(NamedTuple):
    """Scores a model in its environment, and in others."""

    about: Subject
    model: WorldModel
    metric: str | None
    tolerance: Sequence[str] | Mapping[str, float]
    seconds: float
    seed: int

    def score(
        self, data: Dataset, split: Part | None, rollout_count: int = 0, trajectory_count: int = 0
    ) -> EvaluationResult:
        """Score predictions of the rows of a dataset."""
        about, model, seed = self.about, self.model, self.seed
        abilities = abilities_of(about.text or "")
        data = with_tolerances(data, self.tolerance, about.spec, about.env_args)
        is_simulated = about.spec.has_simulator(about.env_args)
        levels = {} if is_simulated else noise_levels(data.train)
        measure = self.measure(data.train, levels)
        parts: dict[Part, Dataset] = {"train": data.train, "test": data.test}
        chosen = {part: rows for part, rows in parts.items() if split in (None, part) and len(rows)}
        found: dict[Part, Evaluation] = {}
        failure = None
        for part, rows in chosen.items():
            if failure is not None and failure.is_timeout:  # do not wait for a second time limit
                found[part] = failed_evaluation(rows, measure, failure)
            else:
                found[part] = score(model, rows, measure, seed=seed)
                if not is_simulated:
                    found[part] = with_components(
                        found[part], rows, levels, remembers=abilities.remembers
                    )
            failure = failure or found[part].failure
        rolled: list[Rollout] = []
        followed: list[FollowedEpisode] = []
        if chosen and not failure:
            part = "test" if "test" in chosen else "train"
            rows = chosen[part]
            if rollout_count:
                rolled = rollouts(model, rows, rollout_count, seed=seed, seconds=self.seconds)
            answers = found[part].answers
            # 40 imagined episodes for each recorded one are enough for quantiles.
            draws = 1 if answers is None or answers.shape == "certain" else 40
            followed = trajectories(
                model,
                rows,
                trajectory_count,
                known=data.train if len(data.train) else rows,
                draws=draws,
                seconds=self.seconds,
            )
        train, test = (found[part].score if part in found else None for part in parts)
        scored = {part: model.extra_scores(some) for part, some in chosen.items()}
        in_test = data.columns["split"] == 1
        return EvaluationResult(
            Scores(train, test, None),
            failure,
            rolled,
            measure,
            chosen,
            found,
            {part: each for part, each in scored.items() if each is not None},
            followed,
            baseline(chosen.get("test", chosen.get("train")), data.train),
            {"train": np.flatnonzero(~in_test), "test": np.flatnonzero(in_test)},
            about.text or "",
        )

    def measure(self, train: Dataset, levels: Mapping[int, NoiseLevel] | None = None) -> Metric:
        """Create the metric, by default the usual one of the program and the noise of the rows."""
        about, abilities = self.about, abilities_of(self.about.text or "")
        is_noisy = any(level.is_noisy for level in (levels or {}).values())
        name = self.metric or usual_metric(abilities.contract, is_noisy=is_noisy)
        measure: Metric = find("metric", name).of(train)
        if abilities.remembers:
            # The true environment, restored to one observation, is no ceiling for a memory.
            return measure.with_memory()
        truth = EnvironmentModel(about.spec, about.env_args)
        return measure.with_environment(truth, seed=self.seed)

    def compare(
        self,
        result: EvaluationResult,
        data: Dataset,
        shifted: Mapping[str, Subject],
        observer: Observer,
    ) -> Robustness:
        """Score the model in shifted environments, on rows that are recorded like `data`."""
        part: Part = "test" if "test" in result.found else "train"
        names = component_names(data, self.about.spec, self.about.env_args)
        known = self._parts(result.found[part], result.rows[part], result.metric, names)
        found = []
        for name, subject in shifted.items():
            other = self._replace(about=subject)
            rows = record_similar(subject, data, observer)
            rows = with_tolerances(rows, self.tolerance, subject.spec, self.about.env_args)
            metric = other.measure(data.train)
            one = score(self.model, rows, metric, seed=self.seed)
            parts = other._parts(one, rows, metric, names)
            broken = broken_parts(known, parts)
            found.append(
                ShiftedScore(name, subject.env_args, one.score, parts, broken, one.failure)
            )
        return Robustness(part, result.found[part].score, known, found)

    def _parts(
        self, found: Evaluation, rows: Dataset, metric: Metric, names: Sequence[str]
    ) -> dict[str, PartAccuracy]:
        """Return the accuracy of each part of a transition; empty after a failure."""
        if found.answers is None:
            return {}
        truth = None
        if found.answers.shape != "certain":
            environment = EnvironmentModel(self.about.spec, self.about.env_args)
            truth = environment.predict(rows, seed=self.seed, draws=metric.draws)
            if truth is not None and truth.failure:
                truth = None
        return part_accuracies(found.answers, rows, names=names, truth=truth)


def run_of(subject: ProgramSource | RunSource, env: str | None) -> RunSource | None:
    """Return the subject if it is a run: an object, a folder, or a name without suffix."""
    if isinstance(subject, ModelRun):
        return subject
    if isinstance(subject, str) and "\n" in subject:
        return None
    place = placed(subject)
    is_bare = env is None and not place.suffix and not place.exists()
    return subject if place.is_dir() or is_bare else None
