"""`cwm apps`: search for programs for coding problems, or judge those of others."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cwm_cli.cli.answering import asking
from cwm_cli.cli.shared import (
    AllowGapOption,
    ApiBaseOption,
    JsonOption,
    ModelBackendOption,
    ModelOption,
    NewOption,
    OptionsOption,
    ParallelOption,
    SeedOption,
    StrategyOption,
    TemperatureOption,
)
from cwm_cli.errors import CwmError

DIFFICULTIES = "all, introductory, interview or competition."


def apps(
    idx: Annotated[
        int, typer.Option("--idx", min=0, help="Position of the first problem, from 0.")
    ] = 0,
    total: Annotated[int, typer.Option("--total", min=1, help="How many problems.")] = 100,
    data: Annotated[
        str | None,
        typer.Option(
            "--data",
            metavar="PATH|hub",
            help="APPS on disk: a folder, a .jsonl file, or hub to download it. "
            "Default: the twelve problems that ship.",
            show_default=False,
        ),
    ] = None,
    difficulty: Annotated[
        str, typer.Option("--difficulty", help=f"Which problems count: {DIFFICULTIES}")
    ] = "all",
    strategy: StrategyOption = "gif-mcts",
    option: OptionsOption = None,
    model: ModelOption = None,
    backend: ModelBackendOption = None,
    budget: Annotated[int, typer.Option("--budget", min=1, help="Completions of a problem.")] = 20,
    parallel: ParallelOption = 1,
    seed: SeedOption = 0,
    max_cost: Annotated[
        float | None,
        typer.Option(
            "--max-cost", metavar="USD", min=0.0, help="Stop before all problems exceed this."
        ),
    ] = None,
    api_base: ApiBaseOption = None,
    temperature: TemperatureOption = None,
    allow_gap: AllowGapOption = None,
    run: Annotated[
        Path | None,
        typer.Option("--run", metavar="DIR", help="Folder of all runs; continued if it exists."),
    ] = None,
    new: NewOption = False,
    judge_only: Annotated[
        bool,
        typer.Option("--judge-only", help="Judge the finished problems of --run again; no model."),
    ] = False,
    solutions: Annotated[
        Path | None,
        typer.Option(
            "--solutions",
            metavar="FILE",
            help="Judge programs from elsewhere (JSON: id -> list of programs); no model.",
            show_default=False,
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Search for programs that solve coding problems, each in a run folder of its own.

    The first half of a problem's tests guide the search, and the others judge
    what it found. Machines may share the work by different ranges: `cwm runs
    report DIR DIR` merges their folders. Budget, --parallel, --max-cost and the
    range may change when a run is continued.

    Example: cwm apps --idx 0 --total 12 --model openai/gpt-5 --budget 20 --parallel 4
    """
    from cwm_apps.solving import Asked, judge_again, judge_solutions, search
    from cwm_cli.agents.synthesizing import Choices
    from cwm_cli.registry import default

    asked = Asked(
        data=data,
        idx=idx,
        total=total,
        difficulty=difficulty,
        run=run,
        new=new,
        accepted=tuple(allow_gap or ()),
        json=json,
    )
    if judge_only:
        _refuse_with(
            "--judge-only",
            model=model,
            backend=backend,
            option=option,
            data=data,
            solutions=solutions,
        )
        judge_again(asked)
        return
    if solutions is not None:
        _refuse_with("--solutions", model=model, backend=backend)
        judge_solutions(asked, solutions, options=option or [], seed=seed)
        return
    answers, named = asking(backend, model)
    flags = {"api_base": api_base, "temperature": temperature}
    choices = Choices(
        strategy=strategy or default("strategy"),
        backend=answers,
        model=named,
        options=option or [],
        flags={name: value for name, value in flags.items() if value is not None},
        metric="accuracy",
        seed=seed,
        parallel=parallel,
        max_cost=max_cost,
        budget=budget,
        accepted=tuple(allow_gap or ()),
    )
    search(asked, choices)


def _refuse_with(flag: str, **others: object) -> None:
    """Refuse options that would be ignored."""
    if given := [name for name, value in others.items() if value]:
        raise CwmError(f"{flag} has no use for --{given[0].replace('_', '-')}: leave it out")
