"""`cwm apps`: search for programs for coding problems, or judge existing programs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict

from cwm_cli.cli.shared import (
    AllowGapOption,
    CostOptions,
    JsonOption,
    ModelOptions,
    OptionsOption,
    RunOptions,
    SeedOption,
    StrategyOption,
    advanced_option,
    basic_option,
    console,
    data_option,
    emit_json,
    limit_option,
    names_of,
)
from cwm_cli.errors import CwmError

if TYPE_CHECKING:
    from cwm_apps.solving import CodingResult

IdxOption = Annotated[
    int, basic_option("--idx", min=0, help="Position of the first problem, from 0.")
]
TotalOption = Annotated[int, basic_option("--total", min=1, help="Number of problems.")]
BudgetOption = Annotated[
    int, basic_option("--budget", min=1, help="Maximum number of completions per problem.")
]
DifficultyOption = Annotated[
    str,
    data_option(
        "--difficulty",
        metavar="NAME",
        help="Difficulty of problems: all, introductory, interview or competition.",
    ),
]
DataOption = Annotated[
    str | None,
    data_option(
        "--data",
        metavar="PATH|hub",
        help="The APPS dataset: a folder, a .jsonl file, or hub to download it. Default: the "
        "twelve problems that ship with cwm.",
    ),
]
JudgeOption = Annotated[
    Literal["ours", "published"] | None,
    data_option(
        "--judge",
        help="Rules of the judge: ours, or the rules of the published evaluator.",
        show_default="ours",
    ),
]
JudgeOnlyOption = Annotated[
    bool, data_option("--judge-only", help="Judge the finished problems of --run again; no model.")
]
SolutionsOption = Annotated[
    Path | None,
    data_option("--solutions", help="Judge the programs in a JSON file (ID: list); no model."),
]
ParallelOption = Annotated[
    int,
    limit_option(
        "--parallel",
        min=1,
        help="Maximum number of simultaneous completions, per problem with --workers.",
    ),
]


class JobOptions(TypedDict):
    """How problems are distributed over processes."""

    workers: Annotated[
        int | None,
        limit_option("--workers", min=1, help="Problems to solve at a time, each in a process."),
    ]
    executor: Annotated[
        str | None,
        advanced_option(
            "--executor",
            metavar="NAME",
            help="Executor of one process per problem: local, ray, slurm or a plugin's. Default: "
            "threads, or local with --workers.",
            autocompletion=names_of("executor"),
        ),
    ]


def apps(
    *,
    idx: IdxOption = 0,
    total: TotalOption = 100,
    language: ModelOptions,
    budget: BudgetOption = 20,
    seed: SeedOption = 0,
    folder: RunOptions,
    data: DataOption = None,
    difficulty: DifficultyOption = "all",
    judge: JudgeOption = None,
    judge_only: JudgeOnlyOption = False,
    solutions: SolutionsOption = None,
    strategy: StrategyOption = None,
    parallel: ParallelOption = 1,
    jobs: JobOptions,
    costs: CostOptions,
    options: OptionsOption,
    allow_gap: AllowGapOption,
    json: JsonOption = False,
) -> None:
    """Search for programs that solve coding problems.

    One half of the tests guides the search, the other half judges its result. `cwm runs report DIR
    DIR` merges the folders of machines that solve different ranges. Budget, limits, executor and
    range may change when a run continues.

    Example: cwm apps --idx 0 --total 12 --model openai/gpt-5 --budget 20 --parallel 4
    """
    from cwm_apps import solving
    from cwm_apps.view import coding_view
    from cwm_cli.views.lines import progress_console

    view = coding_view(progress_console(), erase=json or sys.stdout.isatty())
    asked: dict[str, Any] = {"model": language["model"], "backend": language["backend"], **jobs}
    where: dict[str, Any] = {"data": data, "idx": idx, "total": total, "difficulty": difficulty}
    common: dict[str, Any] = {"options": options, "seed": seed, "allow_gap": allow_gap}
    common |= {"judge": judge, **folder, "observer": view}
    if judge_only:
        others = {"option": options, "data": data, "judge": judge, "solutions": solutions}
        _refuse_with("--judge-only", **asked, **others)
        if folder["run"] is None:
            raise CwmError("--judge-only needs the folder of a run: add --run DIR")
        result = solving.judge_again(folder["run"], allow_gap=allow_gap, observer=view)
    elif solutions is not None:
        _refuse_with("--solutions", **asked)
        result = solving.judge_solutions(solutions, **where, **common)
    else:
        result = solving.solve(
            **where,
            **common,
            **jobs,
            **language,
            strategy=strategy,
            budget=budget,
            parallel=parallel,
            ask=costs.confirm,
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
