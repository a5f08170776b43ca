"""The fit of the constants of a program to recorded transitions, as in `cwm calibrate`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cwm_cli.commands.subjects import ProgramSource, find_subject, protected
from cwm_cli.commands.synthesize import Scores
from cwm_cli.data.dataset import Dataset
from cwm_cli.errors import CwmError
from cwm_cli.evaluation import AccuracyMetric, evaluate
from cwm_cli.registry import Owner, read_options
from cwm_cli.result import Result
from cwm_cli.runs.observer import SILENT, Observer
from cwm_cli.sandbox import Limits
from cwm_cli.sandbox.job import abilities_of
from cwm_cli.sandbox.protection import check_access
from cwm_cli.worlds.program import ProgramModel
from cwm_induction.refining.calibration import Calibrate, Calibration
from cwm_induction.refining.variants import VariantsJob


@dataclass(frozen=True)
class CalibrationResult(Result):
    """The result of `calibrate`: the program, and its scores before and after the fit.

    `calibration` is None if there was nothing to fit: the program has no constants or is exact.
    """

    program: str
    calibration: Calibration | None
    before: Scores
    scores: Scores

    def as_json(self) -> dict[str, Any]:
        """Return the output of `cwm calibrate --json`."""
        facts: dict[str, Any] = {"program": self.program, "calibration": None}
        if self.calibration is not None:
            facts["calibration"] = asdict(self.calibration)
            del facts["calibration"]["program"]
        for name, scores in (("before", self.before), ("after", self.scores)):
            parts = {"train": scores.train, "test": scores.test}
            facts[name] = {part: score and score.model_dump() for part, score in parts.items()}
        return facts


def calibrate(
    program: ProgramSource,
    *,
    env: str | None = None,
    env_args: Mapping[str, Any] | None = None,
    dataset: Dataset | Path | str | None = None,
    options: Sequence[str] | Mapping[str, Any] = (),
    tools: Sequence[str] = (),
    allow_gap: Sequence[str] = (),
    seed: int = 0,
    output: Path | str | None = None,
    observer: Observer = SILENT,
) -> CalibrationResult:
    """Fit the constants of a program to train transitions, without a language model.

    Some train episodes and the held-out episodes are used for the scores only.

    Args:
        program: A file, a run or the text of a program.
        env: The environment of the program; optional if the dataset names it.
        env_args: Arguments of the environment.
        dataset: The transitions, by default the recorded ones of the environment.
        options: Options such as `calibrate_seconds=60`.
        tools: Additional packages that the program may import.
        allow_gap: Missing protections of the sandbox that are accepted.
        seed: The seed of the fit.
        output: The file for the fitted program.
        observer: An observer of the progress.

    Returns:
        The fitted program, its scores and the findings.

    Raises:
        CwmError: If the program does not run, or has chance or memory.
    """
    if output is not None and not Path(output).parent.is_dir():
        raise CwmError(f"cannot write {output}: its folder does not exist; choose another --output")
    about = find_subject(
        program=program, env=env, env_args=env_args, dataset=dataset, observer=observer
    )
    text = about.text or ""
    if (contract := abilities_of(text).contract) != "plain":
        raise CwmError(
            f"{about.name} is a program with {contract}: only constants of deterministic programs "
            "without memory can be fitted; `cwm synthesize` fits the constants of its own programs"
        )
    owners = [Owner("sandbox", Limits), Owner("calibrate", Calibrate)]
    chosen = read_options(options, owners)
    check_access(tools, allow_gap)
    data = about.transitions(dataset, observer)
    train, metric = data.train, AccuracyMetric.of(data.train)
    guard = protected(
        Limits.chosen(chosen["sandbox"]),
        tools=tools,
        accepted=allow_gap,
        handlers=[VariantsJob.handler],
        observer=observer,
    )
    with guard as sandbox:

        def scores(text: str) -> Scores:
            """Score a program on train and held-out rows."""
            model = ProgramModel(text, sandbox)
            parts = [train, data.test]
            found = [
                evaluate(model, rows, metric, seed=seed) if len(rows) else None for rows in parts
            ]
            if failure := next((each.failure for each in found if each and each.failure), None):
                reason = failure.message.splitlines()[0]
                raise CwmError(f"{about.name} does not run ({reason}): fix it first")
            on_train, on_test = (each and each.score for each in found)
            return Scores(on_train, on_test, None)

        before = after = scores(text)
        rows = train[train.fitted]
        found = Calibrate(**chosen["calibrate"]).fit(
            text, rows, sandbox, metric.weights(rows), seed=seed, tell=observer.note
        )
        if found is not None and found.corrections:
            text, after = found.program, scores(found.program)
    if output is not None:
        Path(output).write_text(text, encoding="utf-8")
    return CalibrationResult(text, found, before, after)
