"""`cwm apps`: search for programs for coding problems, or judge those of others."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from cwm_cli.cli.shared import (
    AllowGapOption,
    ApiBaseOption,
    AskAboveOption,
    CacheOption,
    JsonOption,
    ModelBackendOption,
    ModelsOption,
    NewOption,
    OptionsOption,
    SeedOption,
    StrategyOption,
    TemperatureOption,
    YesOption,
    asking,
    console,
    emit_json,
    run_folder,
)
from cwm_cli.errors import CwmError

if TYPE_CHECKING:
    from cwm_apps.solving import CodingResult

DIFFICULTIES = "all, introductory, interview or competition."


def apps(
    idx: Annotated[
        int, typer.Option("--idx", min=0, help="Position of the first problem, from 0.")
    ] = 0,
    total: Annotated[
        int,
        typer.Option(
            "--total",
            min=1,
            help="How many problems. (The publication's total_tasks is the number of equal parts "
            "of all problems, its idx the part to do.)",
        ),
    ] = 100,
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
    strategy: StrategyOption = None,
    option: OptionsOption = None,
    model: ModelsOption = None,
    backend: ModelBackendOption = None,
    budget: Annotated[int, typer.Option("--budget", min=1, help="Completions of a problem.")] = 20,
    parallel: Annotated[
        int,
        typer.Option(
            "--parallel",
            min=1,
            help="Completions in flight; with --workers those of each problem at work.",
        ),
    ] = 1,
    executor: Annotated[
        str | None,
        typer.Option(
            "--executor",
            help="Search for each problem in a process of its own: local, ray, slurm, or a "
            "plugin's. Default: in threads of this process.",
            show_default=False,
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers",
            metavar="N",
            min=1,
            help="Problems at a time, each in a process of its own; by itself --executor local.",
            show_default=False,
        ),
    ] = None,
    seed: SeedOption = 0,
    max_cost: Annotated[
        float | None,
        typer.Option(
            "--max-cost", metavar="USD", min=0.0, help="Stop before all problems exceed this."
        ),
    ] = None,
    ask_above: AskAboveOption = 5.0,
    yes: YesOption = False,
    cache: CacheOption = False,
    api_base: ApiBaseOption = None,
    temperature: TemperatureOption = None,
    judge: Annotated[
        Literal["ours", "published"] | None,
        typer.Option(
            "--judge",
            help="By which rules programs are judged: ours (default), or as the published "
            "evaluator does, for comparison (docs/reference/published.md says how they differ).",
            show_default=False,
        ),
    ] = None,
    allow_gap: AllowGapOption = None,
    run: Annotated[
        Path | None,
        typer.Option(
            "--run",
            metavar="DIR",
            help="Folder of all runs; continued if it exists.",
            parser=run_folder,
        ),
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
    what it found. With --workers or --executor each problem is a job, a process
    of its own, here or on a cluster. Machines may also share the work by different
    ranges: `cwm runs report DIR DIR` merges their folders. Budget, --parallel,
    --max-cost, --workers, --executor and the range may change when a run is continued.

    Example: cwm apps --idx 0 --total 12 --model openai/gpt-5 --budget 20 --parallel 4
    """
    import sys

    from cwm_apps import solving
    from cwm_apps.view import CodingView
    from cwm_cli.views.lines import progress_console

    view = CodingView(progress_console(), erase=json or sys.stdout.isatty())
    gaps = allow_gap or ()
    jobs: dict[str, Any] = {"executor": executor, "workers": workers}
    if judge_only:
        used = {"model": model, "backend": backend, "option": option, "data": data, "judge": judge}
        _refuse_with("--judge-only", **used, **jobs, solutions=solutions)
        if run is None:
            raise CwmError("--judge-only needs the folder of a run: add --run DIR")
        _print(solving.judge_again(run, allow_gap=gaps, observer=view), json=json)
        return
    where: dict[str, Any] = {"data": data, "idx": idx, "total": total, "difficulty": difficulty}
    common: dict[str, Any] = {"options": option or (), "seed": seed, "allow_gap": gaps}
    common |= {"judge": judge, "run": run, "new": new}
    if solutions is not None:
        _refuse_with("--solutions", model=model, backend=backend, **jobs)
        result = solving.judge_solutions(solutions, **where, **common, observer=view)
    else:
        result = solving.solve(
            **where,
            **common,
            **jobs,
            strategy=strategy,
            model=model,
            backend=backend,
            budget=budget,
            parallel=parallel,
            max_cost=max_cost,
            ask=asking(ask_above, yes=yes),
            cache=cache,
            api_base=api_base,
            temperature=temperature,
            observer=view,
        )
    _print(result, json=json)


def _refuse_with(flag: str, **others: object) -> None:
    """Refuse options that would be ignored."""
    if given := [name for name, value in others.items() if value]:
        raise CwmError(
            f"{flag} cannot be combined with --{given[0].replace('_', '-')}: leave it out"
        )


def _print(result: CodingResult, *, json: bool) -> None:
    """Print tables, or one JSON object."""
    from cwm_cli.views.tables import report_parts

    out = console(json=json)
    for part in report_parts(result.report):
        out.print(part)
    if json:
        emit_json(result.as_json())
    else:
        out.print(f"run {result.run}", highlight=False, markup=False, soft_wrap=True)
