"""`cwm benchmark`: search for programs of many environments, and compare the results."""

from __future__ import annotations

from typing import Annotated, TypedDict

from cwm_cli.cli.shared import (
    METRICS,
    SHIFT_HELP,
    ApiBaseOption,
    BackendOption,
    CacheOption,
    CostOptions,
    DataSeedOption,
    HideOption,
    JsonOption,
    MaxCostOption,
    MaxStepsOption,
    NoiseOption,
    ProgramOptions,
    RunOptions,
    StartOption,
    TemperatureOption,
    TrackingOptions,
    advanced_option,
    basic_option,
    complete_model,
    data_option,
    limit_option,
    names_of,
    one_of,
    parse_env_args,
    print_report,
)
from cwm_cli.errors import CwmError

SuiteOption = Annotated[
    str,
    basic_option(
        "--suite",
        metavar="NAME",
        help="Set of environments: cwmb or cwmb-shifted.",
        autocompletion=one_of("cwmb", "cwmb-shifted"),
    ),
]
BudgetOption = Annotated[
    int, basic_option("--budget", min=1, help="Maximum number of completions per job.")
]
SeedsOption = Annotated[
    int, basic_option("--seeds", min=1, help="Number of random seeds; each is a job.")
]
EpisodesOption = Annotated[
    int | None,
    basic_option(
        "--episodes",
        min=1,
        help="Number of episodes to play with --plan. Default: 10 to 2,000, about 3,000 steps.",
    ),
]
MetricOption = Annotated[
    str,
    data_option("--metric", metavar="NAME", help=METRICS, autocompletion=names_of("metric")),
]
RowsOption = Annotated[
    str,
    data_option(
        "--rows",
        metavar="N,N",
        help="Numbers of train rows to compare, such as 100,300,1000. Default: all rows.",
    ),
]
ParallelOption = Annotated[
    int,
    limit_option("--parallel", min=1, help="Maximum number of simultaneous completions per job."),
]
ExecutorOption = Annotated[
    str,
    advanced_option(
        "--executor",
        metavar="NAME",
        help="Executor of the jobs: local, ray, slurm or a plugin's.",
        autocompletion=names_of("executor"),
    ),
]


class ComparisonOptions(TypedDict):
    """The environments, strategies and models that a benchmark compares, and how."""

    envs: Annotated[
        list[str],
        basic_option(
            "--env",
            metavar="ID",
            help="Environment ID, instead of --suite; repeatable.",
            autocompletion=names_of("environment"),
        ),
    ]
    strategies: Annotated[
        list[str],
        basic_option(
            "--strategy",
            metavar="NAME",
            help="Search strategy; repeatable, to compare several. Default: gif-mcts.",
            autocompletion=names_of("strategy"),
        ),
    ]
    models: Annotated[
        list[str],
        basic_option(
            "--model",
            metavar="PROVIDER/NAME",
            help="LiteLLM model; repeatable, to compare several. Default: $CWM_MODEL.",
            autocompletion=complete_model,
        ),
    ]
    plan: Annotated[
        bool,
        basic_option(
            "--plan/--no-plan", show_default=False, help="Play with the program of every job."
        ),
    ]
    shift: Annotated[int | None, data_option("--shift", metavar="SEED", min=0, help=SHIFT_HELP)]
    ceilings: Annotated[
        bool,
        data_option(
            "--ceilings", help="Also score the true environments, restored from each observation."
        ),
    ]
    backend: BackendOption
    api_base: ApiBaseOption
    temperature: TemperatureOption
    cache: CacheOption
    start: StartOption
    max_cost: MaxCostOption
    max_steps: MaxStepsOption
    workers: Annotated[
        int | None,
        limit_option(
            "--workers", min=1, help="Jobs to run at a time. Default: half the number of cores."
        ),
    ]


def benchmark(
    *,
    suite: SuiteOption = "cwmb",
    comparison: ComparisonOptions,
    budget: BudgetOption = 10,
    seeds: SeedsOption = 1,
    episodes: EpisodesOption = None,
    folder: RunOptions,
    metric: MetricOption = "accuracy",
    data_seed: DataSeedOption = 0,
    rows: RowsOption = "",
    hide: HideOption,
    noise: NoiseOption,
    parallel: ParallelOption = 1,
    costs: CostOptions,
    executor: ExecutorOption = "local",
    programs: ProgramOptions,
    tracking: TrackingOptions,
    json: JsonOption = False,
) -> None:
    """Compare strategies and models on many environments.

    Every combination with a seed is a job with its own process and run folder. Failed jobs are
    counted, excluded from means, and retried by the same command, which may change --budget,
    --episodes, --plan, --ceilings and --max-cost. An -o goes to the strategies that have it.

    Example: cwm benchmark --env CartPole-v1 --env Acrobot-v1 --strategy gif-mcts --seeds 3
    """
    from cwm_benchmark.benchmarking import benchmark as compare
    from cwm_benchmark.configuration import sizes_of
    from cwm_benchmark.view import benchmark_view

    result = compare(
        suite,
        seeds=seeds,
        budget=budget,
        parallel=parallel,
        episodes=episodes,
        metric=metric,
        data_seed=data_seed,
        rows=sizes_of(rows) if rows else (),
        executor=executor,
        ask=costs.confirm,
        observer=tracking.beside(benchmark_view(json=json)),
        **parse_env_args(None, hide=hide, noise=noise),
        **comparison,
        **folder,
        **programs,
    )
    print_report(result.report, json=json)
    if result.failure_reason:
        words = f"every job failed; the first: {result.failure_reason}"
        raise CwmError(f"{words} (the same command tries again)")
