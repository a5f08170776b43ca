"""`cwm theorize`: find rules in words that make what is collected likely."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated

import typer

from cwm_cli.cli.shared import (
    ApiBaseOption,
    CacheOption,
    DataSeedOption,
    EnvArgOption,
    EnvOption,
    HideOption,
    JsonOption,
    MaxCostOption,
    ModelOption,
    NewOption,
    NoiseOption,
    OptionsOption,
    ParallelOption,
    RunFolderOption,
    SeedOption,
    ShiftOption,
    TemperatureOption,
    TrackerOption,
    TrackOption,
    emit_json,
    parse_env_args,
    print_parts,
    shown,
    tracked,
)


def theorize(
    env: EnvOption,
    env_arg: EnvArgOption = None,
    shift: ShiftOption = None,
    hide: HideOption = None,
    noise: NoiseOption = None,
    method: Annotated[
        str | None,
        typer.Option(
            "--method",
            help="metropolis (the default), importance or best-of; or another strategy.",
            show_default=False,
        ),
    ] = None,
    hastings: Annotated[
        bool,
        typer.Option("--hastings", help="Make up for how likely proposals are in both directions."),
    ] = False,
    evidence: Annotated[
        str | None,
        typer.Option(
            "--evidence",
            metavar="POLICY",
            help="What rules are weighed by: cumulative, phase (as published) or window.",
        ),
    ] = None,
    experimenter: Annotated[
        str,
        typer.Option(
            "--experimenter",
            help="Who collects: random, oracle, enumerate, llm, curiosity; or another policy.",
        ),
    ] = "random",
    reward: Annotated[
        str | None,
        typer.Option(
            "--reward", help="What curiosity is paid for: ll, alp, alpexp, alpll or custom."
        ),
    ] = None,
    theorist: Annotated[
        str | None,
        typer.Option(
            "--theorist",
            metavar="NAME",
            help="Who proposes: a backend, BACKEND/MODEL, or PROVIDER/NAME for a language model.",
        ),
    ] = None,
    statistician: Annotated[
        str | None,
        typer.Option("--statistician", metavar="NAME", help="Who weighs, named in the same way."),
    ] = None,
    model: ModelOption = None,
    api_base: ApiBaseOption = None,
    temperature: TemperatureOption = None,
    phases: Annotated[int, typer.Option("--phases", min=1, help="Phases of the run.")] = 40,
    proposals: Annotated[
        int, typer.Option("--proposals", min=1, help="Proposals in each phase.")
    ] = 5,
    particles: Annotated[
        int | None,
        typer.Option(
            "--particles", min=1, help="Chains, or samples that are kept.", show_default=False
        ),
    ] = None,
    episodes: Annotated[
        int, typer.Option("--episodes", min=1, help="Episodes collected in each phase.")
    ] = 5,
    max_steps: Annotated[
        int, typer.Option("--max-steps", min=1, help="Most steps of an episode.")
    ] = 100,
    dataset: Annotated[
        Path | None,
        typer.Option(
            "--dataset",
            metavar="FILE",
            help="Rows to measure rules by, its held-out ones if it has any. Default: collected.",
            show_default=False,
        ),
    ] = None,
    data_seed: DataSeedOption = 0,
    max_cost: MaxCostOption = None,
    cache: CacheOption = False,
    parallel: ParallelOption = 1,
    option: OptionsOption = None,
    run: RunFolderOption = None,
    new: NewOption = False,
    seed: SeedOption = 0,
    track: TrackOption = None,
    tracker: TrackerOption = None,
    json: JsonOption = False,
) -> None:
    """Find rules in words that make what happens in an environment likely.

    A theorist proposes rules, a statistician says how likely they make what was collected, an
    experimenter collects more. No language model is needed: without --model a grammar proposes,
    and rules are read exactly. A command that was stopped continues where it was.

    Example: cwm theorize --env Door-v0
    """
    from cwm_cli.views.lines import progress_console
    from cwm_theorize.theorize import theorize as find_rules
    from cwm_theorize.view import (
        save_theory_curves,
        theorizing_report,
        theorizing_view,
    )

    view = theorizing_view(progress_console())
    with redirect_stdout(sys.stderr):  # what environments print is no result
        result = find_rules(
            env,
            env_args=parse_env_args(env_arg, shift, hide, noise),
            method=method,
            hastings=hastings,
            evidence=evidence,
            experimenter=experimenter,
            reward=reward,
            theorist=theorist,
            statistician=statistician,
            model=model,
            api_base=api_base,
            temperature=temperature,
            phases=phases,
            proposals=proposals,
            particles=particles,
            episodes=episodes,
            max_steps=max_steps,
            dataset=dataset,
            data_seed=data_seed,
            options=option or (),
            max_cost=max_cost,
            cache=cache,
            parallel=parallel,
            seed=seed,
            run=run,
            new=new,
            observer=tracked(view, track, tracker),
        )
    curve = save_theory_curves(env, result)
    if json:
        emit_json(result.as_json() | {"curve": [shown(file) for file in curve]})
    print_parts(theorizing_report(result, curve[0]), json=json)
