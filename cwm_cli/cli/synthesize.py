"""`cwm synthesize`: search for a program that predicts an environment."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, cast

from cwm_cli.cli.shared import (
    ENV,
    ContractOption,
    DataSeedOption,
    DatasetOption,
    DescriptionOption,
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
    ToleranceOption,
    TrackingOptions,
    basic_option,
    emit_json,
    model_option,
    print_parts,
)
from cwm_cli.errors import CwmError

IdxOption = Annotated[
    int | None,
    basic_option("--idx", min=0, help="Position in the benchmark, instead of --env."),
]
BudgetOption = Annotated[
    int, basic_option("--budget", min=1, help="Maximum number of completions.")
]
BodyOption = Annotated[
    str | None,
    model_option(
        "--body",
        metavar="FILE|env",
        help="MuJoCo model (MJCF file) that the program simulates, or env: the environment's own. "
        "Induction finds observation, reward and end in the data.",
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
    tolerance: ToleranceOption = None,
    strategy: StrategyOption = None,
    start: StartOption = None,
    contract: ContractOption = "auto",
    body: BodyOption = None,
    description: DescriptionOption = None,
    parallel: ParallelOption = 1,
    programs: ProgramOptions,
    tracking: TrackingOptions,
    json: JsonOption = False,
) -> None:
    """Search for a program that predicts an environment.

    A command that was stopped continues.

    Example: cwm synthesize --env CartPole-v1
    """
    from cwm_cli.commands.synthesize import synthesize as search
    from cwm_cli.views.search import SearchView, synthesis_report

    result = search(
        _environment(env, idx, dataset),
        env_args=environment.arguments,
        strategy=strategy,
        start=start,
        budget=budget,
        parallel=parallel,
        seed=seed,
        data_seed=data_seed,
        dataset=dataset,
        metric=metric,
        tolerance=tolerance or (),
        contract=cast("Any", contract),
        body=body,
        description=description,
        **language,
        **folder,
        **programs,
        observer=tracking.beside(SearchView()),
    )
    if json:
        emit_json(result.as_json())
    print_parts(synthesis_report(result, budget), json=json)


def _environment(env: str | None, idx: int | None, dataset: Path | None) -> str | None:
    """Return the environment ID, by name or by position in the benchmark.

    It is None if only the dataset names the environment.
    """
    from cwm_cli.envs.tasks import SUITES

    known = SUITES["cwmb"]

    if env is None and idx is None and dataset is not None:
        return None
    if (env is None) == (idx is None):
        raise CwmError("name one environment: --env CartPole-v1, --idx 3 or --dataset FILE")
    if env is not None:
        return env
    if idx is not None and idx < len(known):
        return known[idx]
    raise CwmError(f"--idx {idx} is not in the benchmark: choose 0 to {len(known) - 1}")
