"""Compare rules in words with a program that was synthesized from the same transitions.

A program predicts one outcome, rules give a probability to each candidate. To score both in the
same way, outcomes that the program does not predict get a small probability, the same as in the
backend `symbolic`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cwm_cli.commands.collect import find_environment, recorded_args
from cwm_cli.commands.subjects import protected, read_program
from cwm_cli.commands.synthesize import SynthesisResult, synthesize
from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.envs.text_view import TextView
from cwm_cli.errors import CwmError
from cwm_cli.evaluation import AccuracyMetric, evaluate
from cwm_cli.evaluation.skill import SkillMetric
from cwm_cli.runs.observer import SILENT, Observer
from cwm_cli.runs.programs import Options
from cwm_cli.runs.report import Grid
from cwm_cli.sandbox import Limits
from cwm_cli.search.contracts import total
from cwm_cli.search.loop import Search
from cwm_cli.text import UNKNOWN
from cwm_cli.worlds.model import Predictions
from cwm_cli.worlds.program import ProgramModel
from cwm_theorize.choosing import scoring_backend
from cwm_theorize.experimenters import view_of
from cwm_theorize.parts import TheoryChoices
from cwm_theorize.problem import TheoryProblem
from cwm_theorize.ranking import Ranking, RankSummary
from cwm_theorize.statistician import Statistician, TextTransition, text_transitions
from cwm_theorize.world_model import Theory

NOISE = 0.05
"""Probability shared by all candidates besides the prediction of a program."""


@dataclass(frozen=True)
class ComparedModel:
    """Rules or a program, with scores and effort.

    Attributes:
        name: "rules" or "program".
        text: The rules or the source code.
        ranks: Ranks of the held-out changes.
        exact: Fraction of held-out transitions whose likeliest outcome is right in every part; None
            if the words do not determine observations.
        failure: Why a program has no predictions.
    """

    name: str
    text: str
    ranks: RankSummary
    exact: float | None
    completions: int
    tokens: int
    seconds: float
    failure: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return all fields as plain data."""
        return asdict(self) | {"ranks": self.ranks.model_dump(mode="json")}


@dataclass(frozen=True)
class RulesAndProgram:
    """Rules and a program found from the same `train` transitions."""

    env: str
    train: int
    models: tuple[ComparedModel, ...]

    def as_json(self) -> dict[str, Any]:
        """Return all fields as plain data."""
        models = {each.name: each.as_json() for each in self.models}
        return {"env": self.env, "train": self.train, "models": models}

    def grid(self) -> Grid:
        """Return a table with one line per model."""
        top = [k for k in next(iter(self.models)).ranks.all.top if k in (1, 3)]
        heads = ["", *(f"top {k}" for k in top), "kinds, top 1", "exact", "log-likelihood"]
        heads += ["completions", "tokens", "seconds"]
        lines = [
            [
                each.name,
                *(f"{each.ranks.all.top[k]:.3f}" for k in top),
                f"{each.ranks.mean.top[1]:.3f}",
                UNKNOWN if each.exact is None else f"{each.exact:.3f}",
                f"{-each.ranks.all.nll * each.ranks.all.transitions:.2f}",
                f"{each.completions:,}",
                f"{each.tokens:,}",
                f"{each.seconds:.1f}",
            ]
            for each in self.models
        ]
        held_out = next(iter(self.models)).ranks.all.transitions
        title = f"{self.env}: {self.train:,} transitions, {held_out:,} held out"
        return Grid(title, heads, lines)


def compare_with_program(
    env: str,
    rows: Dataset,
    *,
    parts: TheoryChoices,
    folder: Path,
    phases: int = 10,
    proposals: int = 50,
    budget: int = 10,
    model: str | None = None,
    backend: str | None = None,
    options: Options = (),
    program_options: Options = (),
    allow_gap: Sequence[str] = (),
    seed: int = 0,
    observer: Observer = SILENT,
) -> RulesAndProgram:
    """Find rules and a program from the train rows, and score both on the held-out rows.

    Args:
        env: Environment ID.
        rows: Dataset with train and held-out rows.
        parts: Method, theorist and statistician of the rules.
        folder: Run folder of the program's synthesis.
        phases: Number of phases; each adds further trajectories to the evidence.
        proposals: Proposals of rules per phase.
        budget: Completions for the program.
        model: Language model for the program.
        backend: Backend for the program.
        options: Options of `parts`.
        program_options: Options of `synthesize`.
        allow_gap: Accepted gaps of the sandbox.
        seed: Random seed of both searches.
        observer: Receives notes and progress.

    Raises:
        CwmError: Train or held-out rows are missing, or a backend fails.
    """
    spec = find_environment(env, observer)
    args = recorded_args(rows)
    if not (len(rows.train) and len(rows.test)):
        raise CwmError("comparing needs train and held-out rows: record both")
    with closing(spec.make(**args)) as made:
        view = view_of(spec, made)
    chosen = parts.make(options, {})
    chosen.statistician.prepare(spec, args, observer.note)
    reads = Statistician(view, scoring_backend(chosen.statistician, observer.note))
    problem = TheoryProblem(reads, **chosen.problem)
    search = Search(problem, chosen.strategy, chosen.theorist, seed=seed)
    rules = _find_rules(search, problem, rows, phases, proposals)
    result = synthesize(
        env,
        env_args=args,
        dataset=rows,
        model=model,
        backend=backend,
        options=program_options,
        budget=budget,
        seed=seed,
        run=folder,
        allow_gap=allow_gap,
        observer=observer,
    )
    with protected(Limits(), accepted=allow_gap, observer=observer) as sandbox:
        text = read_program(result.program)[1] if result.program else ""
        program = _score_program(ProgramModel(text, sandbox), result, view, rows)
    return RulesAndProgram(spec.id, len(rows.train), (rules, program))


def _find_rules(
    search: Search, problem: TheoryProblem, rows: Dataset, phases: int, proposals: int
) -> ComparedModel:
    """Search for rules while trajectories are added; score the best on the held-out rows."""
    began, train, reads = time.perf_counter(), rows.train, problem.statistician
    episodes, asked = train.columns["episodes"], 0
    for some in np.array_split(np.unique(episodes), phases):
        if len(some):
            problem.observe(list(train[np.isin(episodes, some)]))
        search.outdate()
        for _ in search.renew():
            pass
        asked += proposals
        for _ in search.run(asked):
            pass
    seconds = time.perf_counter() - began
    best = Theory(search.best.program if search.best else "", reads)
    found = evaluate(best, rows.test, AccuracyMetric.of(train))
    spent = total([*(node.usage for node in search.nodes), reads.backend.weighed])
    return ComparedModel(
        "rules",
        best.rules,
        best.ranking(rows.test).summary(),
        None if found.failure else found.score.exact,
        search.completions,
        spent.tokens,
        seconds,
    )


def _score_program(
    model: ProgramModel, result: SynthesisResult, view: TextView, rows: Dataset
) -> ComparedModel:
    """Score the program on the held-out rows."""
    metric = AccuracyMetric.of(rows.train)
    transitions = text_transitions(view, rows.test)
    predicted = model.predict(rows.test, draws=SkillMetric.draws)
    said = program_weights(view, rows.test, transitions, predicted)
    return ComparedModel(
        "program",
        model.text,
        Ranking.of(transitions, said).summary(),
        evaluate(model, rows.test, metric).score.exact,
        result.completions,
        result.tokens,
        result.seconds,
        predicted.failure.message if predicted.failure else "",
    )


def program_weights(
    view: TextView,
    rows: Dataset,
    transitions: Sequence[TextTransition],
    predictions: Predictions,
    noise: float = NOISE,
) -> list[np.ndarray]:
    """Return the log-probability of each candidate under the predictions of a program.

    Predicted outcomes share the probability `1 - noise` as the program weights them, and all
    candidates share `noise` equally. If the program fails or predicts none of the candidates, all
    candidates are equally likely.
    """
    shares = [np.zeros(len(each.candidates)) for each in transitions]
    for columns, chances in predictions.answers() if predictions.failure is None else ():
        for place, (row, transition) in enumerate(zip(rows, transitions, strict=True)):
            said = _predicted_sentence(view, rows, row, columns, place)
            sentences = [each.text for each in transition.candidates]
            if said in sentences:
                shares[place][sentences.index(said)] += chances[place]
    return [np.log((1 - noise) * each + noise / len(each)) for each in shares]


def _predicted_sentence(
    view: TextView, rows: Dataset, row: Transition, columns: dict[str, np.ndarray], place: int
) -> str:
    """Return a prediction in words; "" if it is no valid change."""
    following = rows.observation_space.unpack("next_observations", columns, place)
    reward, ended = columns["rewards"][place], columns["terminations"][place]
    predicted = row._replace(
        next_observation=following, reward=float(reward), terminated=bool(ended)
    )
    try:
        return view.change(predicted).text
    except (CwmError, LookupError, ValueError):  # not a state of the environment
        return ""
