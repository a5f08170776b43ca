"""`cwm benchmark`: search for programs of many environments, and compare what was found."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cwm_cli.cli.answering import answering
from cwm_cli.cli.shared import (
    AllowGapOption,
    ApiBaseOption,
    BackendOption,
    DataSeedOption,
    JsonOption,
    MetricOption,
    OptionsOption,
    TemperatureOption,
    ToolOption,
)
from cwm_cli.errors import CwmError, UnknownNameError
from cwm_cli.views.lines import complain

if TYPE_CHECKING:
    from cwm_cli.bench.report import Report
    from cwm_cli.bench.running import Benchmark


def benchmark(
    suite: Annotated[str, typer.Option("--suite", help="A set of environments.")] = "cwmb",
    env: Annotated[
        list[str] | None,
        typer.Option("--env", help="Environments instead of a suite; repeatable."),
    ] = None,
    strategy: Annotated[
        list[str] | None,
        typer.Option("--strategy", help="Search strategies; repeatable. Default: gif-mcts."),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            metavar="PROVIDER/NAME",
            help="LiteLLM models; repeatable. Default: $CWM_MODEL.",
        ),
    ] = None,
    backend: BackendOption = None,
    option: OptionsOption = None,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Searches with each, by seed.")] = 1,
    budget: Annotated[int, typer.Option("--budget", min=1, help="Completions of a job.")] = 10,
    parallel: Annotated[
        int | None,
        typer.Option(
            "--parallel",
            min=1,
            help="Jobs at a time. Default: half as many as cores.",
            show_default=False,
        ),
    ] = None,
    plan: Annotated[
        bool, typer.Option("--plan/--no-plan", help="Play with every program that was found.")
    ] = False,
    episodes: Annotated[
        int, typer.Option("--episodes", min=1, help="Episodes to play with --plan.")
    ] = 10,
    max_steps: Annotated[
        int | None,
        typer.Option(
            "--max-steps", min=1, help="Steps after which an episode is cut.", show_default=False
        ),
    ] = None,
    ceilings: Annotated[
        bool,
        typer.Option(
            "--ceilings", help="Score the true environments, stood at each observation, too."
        ),
    ] = False,
    metric: MetricOption = "accuracy",
    max_cost: Annotated[
        float | None,
        typer.Option("--max-cost", metavar="USD", min=0.0, help="Stop a job before it costs more."),
    ] = None,
    data_seed: DataSeedOption = 0,
    api_base: ApiBaseOption = None,
    temperature: TemperatureOption = None,
    tool: ToolOption = None,
    allow_gap: AllowGapOption = None,
    run: Annotated[
        Path | None,
        typer.Option("--run", metavar="DIR", help="Folder of all runs; continued if it exists."),
    ] = None,
    new: Annotated[
        bool, typer.Option("--new", help="Start another benchmark even if one can be continued.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Search with every strategy, model and seed in many environments, and compare.

    Every job is a run folder of its own, made by a process of its own: one that
    fails is left out of the means, counted, and tried again when the same
    command continues. Budget, episodes, --plan, --ceilings and --max-cost may
    then be others. An option is given to the strategies that have it.

    Example: cwm benchmark --env CartPole-v1 --env Acrobot-v1 --strategy gif-mcts --seeds 3
    """
    import os
    import time

    from cwm_cli import __version__
    from cwm_cli.bench.configuration import Access, Configuration, Header, Terms
    from cwm_cli.bench.opening import choose_folder
    from cwm_cli.bench.options import check
    from cwm_cli.bench.report import Report
    from cwm_cli.bench.running import Benchmark

    answers, models = answering(backend, model or [])
    configuration = Configuration(
        environments=_environments(suite, env),
        strategies=tuple(dict.fromkeys(strategy or ["gif-mcts"])),
        models=models,
        backend=answers,
        seeds=seeds,
        options=tuple(option or ()),
        temperature=temperature,
        tools=tuple(sorted(set(tool or ()))),
        metric=metric,
        data_seed=data_seed,
        max_steps=max_steps,
    )
    terms = Terms(budget=budget, max_cost=max_cost, plan=plan, episodes=episodes, ceilings=ceilings)
    access = Access(api_base=api_base, accepted=tuple(allow_gap or ()))
    check(configuration, access)
    header = Header(
        configuration=configuration,
        terms=terms,
        version=__version__,
        created=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    )
    folder = choose_folder(header, named=run, new=new)
    with folder.locked() as lock:
        verb = "continues" if folder.is_benchmark else "started"
        header = folder.begin(header)
        complain(f"{folder.path} {verb}", kind="Run")
        at_once = parallel or max(1, (os.cpu_count() or 1) // 2)
        _work(Benchmark(folder, header, access, at_once, lock), json=json)
        report = Report.of(folder)
        report.save()
    print_report(report, json=json)
    _fail_if_all_failed(report)


def print_report(report: Report, *, json: bool) -> None:
    """Print the tables of a benchmark, or one JSON object."""
    import json as jsonlib

    from cwm_cli.cli.shared import console
    from cwm_cli.views.grids import report_parts

    out = console(json=json)
    for part in report_parts(report):
        out.print(part)
    if json:
        typer.echo(jsonlib.dumps(report.as_object()))


def _work(benchmark: Benchmark, *, json: bool) -> None:
    """Do what is left to do under the live view; whatever ends it, what was found is kept."""
    import sys

    from rich.console import Console

    from cwm_cli.bench.overview import Overview
    from cwm_cli.views.benchmark import overview

    state = Overview(benchmark)
    title = f"cwm benchmark · {benchmark.folder.path.name}"
    console = Console(stderr=True)
    erase = json or sys.stdout.isatty()
    try:
        with overview(state, title=title, console=console, erase=erase) as view:
            for event in benchmark.run():
                view.saw(event)
    except KeyboardInterrupt:
        path = benchmark.folder.path
        raise KeyboardInterrupt(
            f"interrupted: the same command continues {path}; "
            f"`cwm runs report {path}` shows what there is"
        ) from None


def _environments(suite: str, env: list[str] | None) -> tuple[str, ...]:
    """Return the environments, each once."""
    from cwm_cli.bench.suites import CWMB

    suites = {"cwmb": CWMB}
    if not env and suite not in suites:
        raise UnknownNameError("suite", suite, suites)
    return tuple(dict.fromkeys(env or suites[suite]))


def _fail_if_all_failed(report: Report) -> None:
    """End with an error where nothing was found at all."""
    if all(row.state == "failed" for row in report.rows):
        reason = report.rows[0].reason
        raise CwmError(f"every job failed; the first: {reason} (the same command tries again)")
