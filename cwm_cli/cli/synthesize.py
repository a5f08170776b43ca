"""`cwm synthesize`: search for a program that predicts an environment."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated, Any, cast

from cwm_cli.cli.shared import (
    ENV,
    DataSeedOption,
    DatasetOption,
    EnvironmentOptions,
    JsonOption,
    MetricOption,
    ModelOptions,
    ParallelOption,
    ProgramOptions,
    RunOptions,
    SeedOption,
    StartOption,
    StrategyOption,
    TrackingOptions,
    basic_option,
    console,
    emit_json,
    model_option,
    one_of,
    shown,
)
from cwm_cli.errors import CwmError
from cwm_cli.text import cached_words, money, tokens

if TYPE_CHECKING:
    from cwm_cli.commands.comparison import LearnFrom
    from cwm_cli.commands.synthesize import SynthesisResult
    from cwm_cli.evaluation import Score

POOR = 0.9
"""Share of what lies above the floor below which a result is poor: then there is advice."""


IdxOption = Annotated[
    int | None,
    basic_option("--idx", min=0, help="Position in the benchmark, instead of --env."),
]
BudgetOption = Annotated[
    int, basic_option("--budget", min=1, help="Maximum number of completions.")
]
ContractOption = Annotated[
    str,
    model_option(
        "--contract",
        metavar="FORM",
        help="Form of programs: plain (deterministic), chance (probabilities or draws), memory "
        "(of the episode), or auto (chosen from the data).",
        autocompletion=one_of("auto", "plain", "chance", "memory"),
    ),
]


def synthesize(
    *,
    env: Annotated[str | None, ENV] = None,
    idx: IdxOption = None,
    language: ModelOptions,
    budget: BudgetOption = 10,
    seed: SeedOption = 0,
    folder: RunOptions,
    dataset: DatasetOption = None,
    data_seed: DataSeedOption = 0,
    environment: EnvironmentOptions,
    metric: MetricOption = None,
    strategy: StrategyOption = None,
    start: StartOption = None,
    contract: ContractOption = "auto",
    parallel: ParallelOption = 1,
    programs: ProgramOptions,
    tracking: TrackingOptions,
    json: JsonOption = False,
) -> None:
    """Search for a program that predicts an environment.

    A command that was stopped continues.

    Example: cwm synthesize --env CartPole-v1
    """
    from cwm_cli.commands.comparison import LearnFrom
    from cwm_cli.commands.synthesize import synthesize as search
    from cwm_cli.views.search import SearchView

    result = search(
        _environment(env, idx),
        env_args=environment.arguments,
        strategy=strategy,
        start=start,
        budget=budget,
        parallel=parallel,
        seed=seed,
        data_seed=data_seed,
        dataset=dataset,
        metric=metric,
        contract=cast("Any", contract),
        **language,
        **folder,
        **programs,
        observer=tracking.beside(SearchView()),
    )
    if json:
        emit_json(result.as_json())
    again = LearnFrom(_environment(env, idx), environment.arguments, result.run)
    _print(result, budget, _advice(result, language), again, json=json)


def _print(
    result: SynthesisResult, budget: int, advice: str | None, again: LearnFrom, *, json: bool
) -> None:
    from cwm_cli.runs.progress import models_grid
    from cwm_cli.search.contracts import START
    from cwm_cli.views.tables import GridTable, score_table, titled

    out = console(json=json)
    if result.unasked and not result.completions:
        source = "the start program (--start)" if result.unasked == START else result.unasked
        out.print(f"The model was not asked: {source} had solved it.", highlight=False)
    if result.scores.train is not None:
        out.print(score_table(titled(result.scores._asdict())))
    if len(result.models) > 1:
        out.print(GridTable(models_grid(result.models)))
    spent = f"{result.completions} completion{'' if result.completions == 1 else 's'}"
    cached = cached_words(result.cached_tokens, result.reasoning_tokens)
    spent += f", {tokens(result.tokens)} tokens{cached}, cost {money(result.cost)}"
    out.print(f"{_outcome(result)} after {spent}, {result.seconds:.1f} s", highlight=False)
    plain: Any = {"highlight": False, "markup": False, "soft_wrap": True}
    lines = {
        "program": shown(result.program) if result.program else "none",
        "next": _next(result, budget),
    }
    if advice:
        lines["advice"] = advice
    if words := _learning(result, again):
        lines["learn"] = words
    for place, gap in enumerate(result.gaps):
        out.print(f"{'' if place else 'unseen':<8}{gap}", **plain)
    for name, words in lines.items():
        out.print(f"{name:<8}{words}", **plain)


def _environment(env: str | None, idx: int | None) -> str:
    """Return the id that was asked for, by name or by position in the benchmark."""
    from cwm_cli.envs.suites import SUITES

    known = SUITES["cwmb"]

    if (env is None) == (idx is None):
        raise CwmError("name one environment: --env CartPole-v1, or --idx 3")
    if env is not None:
        return env
    if idx is not None and idx < len(known):
        return known[idx]
    raise CwmError(f"--idx {idx} is not in the benchmark: choose 0 to {len(known) - 1}")


def _outcome(result: SynthesisResult) -> str:
    """Return the verdict on the run in words; the cost follows."""
    by = f" by {result.unasked}" if result.unasked else ""
    if result.solved:
        return f"solved{by}"
    if not result.finished:
        return "not solved"
    if result.settled:
        return "settled: the best reachable score is unknown, and nothing improved any more,"
    if result.scores.refuted:
        return f"not solved: right on the train rows{by}, wrong on held-out rows,"
    events = " and ".join(result.unverified)
    return f"not verified: no row is wrong{by}, but {events} and in no held-out row,"


def _next(result: SynthesisResult, budget: int) -> str:
    """Say what to do with the program, if it is worth anything."""
    score = result.scores.test or result.scores.train
    if score is None:
        return "nothing to plan with: no program was written"
    if _above(score) is None or score.value > score.least:
        return shlex.join(["cwm", "plan", shown(result.run)])
    words = "not worth planning with: no better than saying that nothing changes"
    if result.given_up or result.finished:
        return words
    run = shlex.quote(shown(result.run))
    return f"{words}; --run {run} --budget {result.completions + budget} goes on"


def _above(score: Score) -> float | None:
    """Return how far a program is above the floor, 1 being right; None if nothing tells."""
    return score.normalised if score.skill is None else score.skill


def _learning(result: SynthesisResult, again: LearnFrom) -> str | None:
    """Say how to go on where the program was wrong of rows that it was not fitted to, or plans."""
    from cwm_cli.commands.plays import mismatches_of

    test, planned = result.scores.test, mismatches_of(result.run)
    wrong = [
        "in planning" * bool(planned.mistakes or planned.unanswered),
        "of held-out rows" * bool(test and test.refuted),
    ]
    if not any(wrong):
        return None
    words = shlex.join(again.command)
    return f"{words} (it predicts wrongly {' and '.join(filter(None, wrong))})"


def _advice(result: SynthesisResult, language: ModelOptions) -> str | None:
    """Say what might help where the backend that works from data alone found little."""
    from cwm_cli.commands.synthesize import choose_backend
    from cwm_cli.registry import find

    score = result.scores.test or result.scores.train
    answers = choose_backend(language["backend"], language["model"]).backend
    if score is None or not find("backend", answers).from_data:
        return None
    above = _above(score)
    if (score.accuracy if above is None else above) >= POOR:
        return None
    return (
        "a language model may find more than data alone tell: "
        "--model PROVIDER/NAME, such as --model openai/gpt-5 (needs cwm-cli[llm])"
    )
