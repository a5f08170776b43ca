"""`cwm benchmark`: search for programs of many environments, and compare what was found."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cwm_cli.cli.shared import (
    AllowGapOption,
    ApiBaseOption,
    AskAboveOption,
    BackendOption,
    CacheOption,
    DataSeedOption,
    ExecutorOption,
    HideOption,
    JsonOption,
    MetricOption,
    NoiseOption,
    OptionsOption,
    ShiftOption,
    StartOption,
    TemperatureOption,
    ToolOption,
    TrackerOption,
    TrackOption,
    WorkersOption,
    YesOption,
    asking,
    parse_env_args,
    print_report,
    run_folder,
    tracked,
)
from cwm_cli.errors import CwmError


def benchmark(
    suite: Annotated[
        str, typer.Option("--suite", help="A set of environments: cwmb or cwmb-shifted.")
    ] = "cwmb",
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
    start: StartOption = None,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Searches with each, by seed.")] = 1,
    budget: Annotated[int, typer.Option("--budget", min=1, help="Completions of a job.")] = 10,
    parallel: Annotated[
        int, typer.Option("--parallel", min=1, help="Completions in flight, of each job.")
    ] = 1,
    workers: WorkersOption = None,
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
        typer.Option(
            "--max-cost", metavar="USD", min=0.0, help="Stop before all jobs together cost more."
        ),
    ] = None,
    ask_above: AskAboveOption = 5.0,
    yes: YesOption = False,
    cache: CacheOption = False,
    shift: ShiftOption = None,
    hide: HideOption = None,
    noise: NoiseOption = None,
    data_seed: DataSeedOption = 0,
    api_base: ApiBaseOption = None,
    temperature: TemperatureOption = None,
    tool: ToolOption = None,
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
    executor: ExecutorOption = "local",
    new: Annotated[
        bool, typer.Option("--new", help="Start another benchmark even if one can be continued.")
    ] = False,
    track: TrackOption = None,
    tracker: TrackerOption = None,
    json: JsonOption = False,
) -> None:
    """Search with every strategy, model and seed in many environments, and compare.

    Every job is a run folder of its own, made by a process of its own: one that
    fails is left out of the means, counted, and tried again when the same
    command continues. Budget, episodes, --plan, --ceilings and --max-cost may
    then be others. An option is given to the strategies that have it.

    Example: cwm benchmark --env CartPole-v1 --env Acrobot-v1 --strategy gif-mcts --seeds 3
    """
    from cwm_benchmark.benchmarking import benchmark as compare
    from cwm_benchmark.view import BenchmarkView

    result = compare(
        suite,
        envs=env or (),
        strategies=strategy or (),
        models=model or (),
        backend=backend,
        options=option or (),
        start=start,
        seeds=seeds,
        budget=budget,
        parallel=parallel,
        workers=workers,
        plan=plan,
        episodes=episodes,
        max_steps=max_steps,
        ceilings=ceilings,
        metric=metric,
        max_cost=max_cost,
        ask=asking(ask_above, yes=yes),
        cache=cache,
        shift=shift,
        **parse_env_args(None, hide=hide, noise=noise),
        data_seed=data_seed,
        api_base=api_base,
        temperature=temperature,
        tools=tool or (),
        allow_gap=allow_gap or (),
        run=run,
        new=new,
        executor=executor,
        observer=tracked(BenchmarkView(json=json), track, tracker),
    )
    print_report(result.report, json=json)
    if result.why_nothing:
        words = f"every job failed; the first: {result.why_nothing}"
        raise CwmError(f"{words} (the same command tries again)")
