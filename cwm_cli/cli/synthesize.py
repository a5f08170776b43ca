"""`cwm synthesize`: search for a program that predicts an environment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from cwm_cli.cli.shared import (
    AllowGapOption,
    ApiBaseOption,
    BackendOption,
    CacheOption,
    DataSeedOption,
    DatasetOption,
    EnvArgOption,
    HideOption,
    JsonOption,
    MaxCostOption,
    ModelsOption,
    NewOption,
    NoiseOption,
    OptionsOption,
    ParallelOption,
    RunFolderOption,
    SeedOption,
    ShiftOption,
    StartOption,
    StrategyOption,
    TemperatureOption,
    ToolOption,
    TrackerOption,
    TrackOption,
    emit_json,
    parse_env_args,
    print_parts,
    tracked,
)
from cwm_cli.errors import CwmError

if TYPE_CHECKING:
    pass


def synthesize(
    env: Annotated[
        str | None,
        typer.Option("--env", help="Environment id, such as CartPole-v1.", show_default=False),
    ] = None,
    idx: Annotated[
        int | None,
        typer.Option("--idx", min=0, help="Position in the benchmark.", show_default=False),
    ] = None,
    env_arg: EnvArgOption = None,
    shift: ShiftOption = None,
    hide: HideOption = None,
    noise: NoiseOption = None,
    model: ModelsOption = None,
    backend: BackendOption = None,
    strategy: StrategyOption = None,
    option: OptionsOption = None,
    start: StartOption = None,
    budget: Annotated[int, typer.Option("--budget", min=1, help="Completions to spend.")] = 10,
    parallel: ParallelOption = 1,
    seed: SeedOption = 0,
    data_seed: DataSeedOption = 0,
    dataset: DatasetOption = None,
    metric: Annotated[
        str | None,
        typer.Option(
            "--metric",
            help="accuracy, skill, paper or a plugin's. Default: accuracy where nothing is left "
            "to chance or hidden, else skill.",
            show_default=False,
        ),
    ] = None,
    contract: Annotated[
        str,
        typer.Option(
            "--contract",
            metavar="auto|plain|chance|memory",
            help="What programs have to define: answers that are certain (plain), outcomes with "
            "probabilities or draws (chance), or a memory of the episode. auto finds it out.",
        ),
    ] = "auto",
    max_cost: MaxCostOption = None,
    cache: CacheOption = False,
    api_base: ApiBaseOption = None,
    temperature: TemperatureOption = None,
    tool: ToolOption = None,
    allow_gap: AllowGapOption = None,
    run: RunFolderOption = None,
    new: NewOption = False,
    track: TrackOption = None,
    tracker: TrackerOption = None,
    json: JsonOption = False,
) -> None:
    """Search for a program that predicts an environment; a stopped run continues where it was.

    Example: cwm synthesize --env CartPole-v1
    """
    from cwm_cli.commands.synthesize import synthesize as search
    from cwm_cli.views.search import SearchView
    from cwm_cli.views.synthesis import synthesis_report

    result = search(
        _environment(env, idx),
        env_args=parse_env_args(env_arg, shift, hide, noise),
        model=model,
        backend=backend,
        strategy=strategy,
        options=option or (),
        start=start,
        budget=budget,
        parallel=parallel,
        seed=seed,
        data_seed=data_seed,
        dataset=dataset,
        metric=metric,
        contract=cast("Any", contract),
        max_cost=max_cost,
        cache=cache,
        api_base=api_base,
        temperature=temperature,
        tools=tool or (),
        allow_gap=allow_gap or (),
        run=run,
        new=new,
        observer=tracked(SearchView(), track, tracker),
    )
    if json:
        emit_json(result.as_json())
    print_parts(synthesis_report(result, budget), json=json)


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
