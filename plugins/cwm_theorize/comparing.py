"""Rules in words compared with programs: what comes of the same transitions, in one table.

A program says what follows, and rules how likely everything is that might. So that both are
measured alike, what a program does not say keeps a little chance, as rules read exactly leave it.
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
from cwm_theorize.choosing import weigher
from cwm_theorize.experimenters import view_of
from cwm_theorize.parts import TheoryChoices
from cwm_theorize.problem import TheoryProblem
from cwm_theorize.ranking import Ranking, RankSummary
from cwm_theorize.statistician import Statistician, TextTransition, text_transitions
from cwm_theorize.world_model import Theory

NOISE = 0.05
"""The chance of what a program does not say: as much as who reads rules exactly leaves to it."""


@dataclass(frozen=True)
class ComparedModel:
    """What came of one way: the rules or the program, how well it predicts, what it took.

    `ranks` are of the held-out transitions, of which `exact` are right in every part by the
    likeliest outcome, None where words do not tell what is observed. `failure` says why a program
    predicts nothing.
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
        """Return all of it in plain data."""
        return asdict(self) | {"ranks": self.ranks.model_dump(mode="json")}


@dataclass(frozen=True)
class RulesAndProgram:
    """Rules and a program that were found from the same so many transitions."""

    env: str
    train: int
    models: tuple[ComparedModel, ...]

    def as_json(self) -> dict[str, Any]:
        """Return all of it in plain data."""
        models = {each.name: each.as_json() for each in self.models}
        return {"env": self.env, "train": self.train, "models": models}

    def grid(self) -> Grid:
        """Return the table."""
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
    """Find rules, and a program, from the train rows, and measure both by the held-out ones.

    Rules are looked for by the `parts` with their `options`: in each of the `phases` further
    trajectories become known, and there are so many `proposals`. The program is what `synthesize`
    comes to within a `budget`, in the `folder` of its run.
    """
    spec = find_environment(env, observer)
    args = recorded_args(rows)
    if not (len(rows.train) and len(rows.test)):
        raise CwmError("comparing needs train and held-out rows: record both")
    with closing(spec.make(**args)) as made:
        view = view_of(spec, made)
    chosen = parts.made(options, {})
    chosen.statistician.prepare(spec, args, observer.note)
    reads = Statistician(view, weigher(chosen.statistician, observer.note))
    problem = TheoryProblem(reads, **chosen.problem)
    search = Search(problem, chosen.strategy, chosen.theorist, seed=seed)
    rules = _rules(search, problem, rows, phases, proposals)
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
        program = _program(ProgramModel(text, sandbox), result, view, rows)
    return RulesAndProgram(spec.id, len(rows.train), (rules, program))


def _rules(
    search: Search, problem: TheoryProblem, rows: Dataset, phases: int, proposals: int
) -> ComparedModel:
    """Have rules proposed while ever more trajectories become known, and measure the best."""
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


def _program(
    model: ProgramModel, result: SynthesisResult, view: TextView, rows: Dataset
) -> ComparedModel:
    """Measure a program."""
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
    """Return the logarithm of the chance that each candidate has by what a program predicts.

    What it says has the chance `1 - noise`, shared by outcomes as it shares them, and `noise` is
    left to all candidates alike. One that fails, or says what is no candidate, tells none apart.
    """
    shares = [np.zeros(len(each.candidates)) for each in transitions]
    for columns, chances in predictions.answers() if predictions.failure is None else ():
        for place, (row, transition) in enumerate(zip(rows, transitions, strict=True)):
            said = _said(view, rows, row, columns, place)
            sentences = [each.text for each in transition.candidates]
            if said in sentences:
                shares[place][sentences.index(said)] += chances[place]
    return [np.log((1 - noise) * each + noise / len(each)) for each in shares]


def _said(
    view: TextView, rows: Dataset, row: Transition, columns: dict[str, np.ndarray], place: int
) -> str:
    """Put what a program predicts of a row into words, "" where it makes no sense."""
    following = rows.observation_space.unpack("next_observations", columns, place)
    reward, ended = columns["rewards"][place], columns["terminations"][place]
    predicted = row._replace(
        next_observation=following, reward=float(reward), terminated=bool(ended)
    )
    try:
        return view.change(predicted).text
    except (CwmError, LookupError, ValueError):  # no state of the environment
        return ""
