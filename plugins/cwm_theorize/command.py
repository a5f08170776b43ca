"""`cwm theorize`: find rules in words that make the collected data likely."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated, TypedDict

from cwm_cli.cli.shared import (
    ApiBaseOption,
    CacheOption,
    DataSeedOption,
    EnvironmentOptions,
    EnvOption,
    EpisodeStepsOption,
    JsonOption,
    MaxCostOption,
    ModelOption,
    OptionsOption,
    ParallelOption,
    RunOptions,
    SeedOption,
    TemperatureOption,
    TrackingOptions,
    basic_option,
    complete_dataset,
    data_option,
    emit_json,
    model_option,
    names_of,
    print_parts,
    shown,
)

PhasesOption = Annotated[int, basic_option("--phases", min=1, help="Number of phases.")]
ProposalsOption = Annotated[
    int, basic_option("--proposals", min=1, help="Number of proposals per phase.")
]
EpisodesOption = Annotated[
    int, data_option("--episodes", min=1, help="Number of episodes collected per phase.")
]
ExperimenterOption = Annotated[
    str,
    data_option(
        "--experimenter",
        metavar="NAME",
        help="Policy that collects data: random, oracle, enumerate, llm, curiosity or another.",
        autocompletion=names_of("policy"),
    ),
]


class TheoryOptions(TypedDict):
    """Options for the method, the language models and the data that rules are scored on."""

    model: ModelOption
    dataset: Annotated[
        Path | None,
        data_option(
            "--dataset",
            help="Rows to score the rules on: the held-out ones, if any. Default: collected.",
            autocompletion=complete_dataset,
        ),
    ]
    evidence: Annotated[
        str | None,
        data_option(
            "--evidence",
            metavar="NAME",
            help="Data that rules are scored on: cumulative, phase (as published) or window.",
        ),
    ]
    reward: Annotated[
        str | None,
        data_option(
            "--reward",
            metavar="NAME",
            help="Reward of the experimenter curiosity: ll, alp, alpexp, alpll or custom.",
        ),
    ]
    method: Annotated[
        str | None,
        model_option(
            "--method",
            metavar="NAME",
            help="Inference method: metropolis (the default), importance, best-of, or another "
            "strategy.",
            autocompletion=names_of("strategy"),
        ),
    ]
    hastings: Annotated[
        bool, model_option("--hastings", help="Correct for asymmetric proposal probabilities.")
    ]
    particles: Annotated[
        int | None,
        model_option("--particles", min=1, help="Number of chains, or of stored samples."),
    ]
    theorist: Annotated[
        str | None,
        model_option(
            "--theorist",
            metavar="NAME",
            help="Backend that proposes rules: BACKEND, BACKEND/MODEL or PROVIDER/MODEL.",
            autocompletion=names_of("backend"),
        ),
    ]
    statistician: Annotated[
        str | None,
        model_option(
            "--statistician",
            metavar="NAME",
            help="Backend that scores rules: BACKEND, BACKEND/MODEL or PROVIDER/MODEL.",
            autocompletion=names_of("backend"),
        ),
    ]
    api_base: ApiBaseOption
    temperature: TemperatureOption
    cache: CacheOption
    max_cost: MaxCostOption


def theorize(
    *,
    env: EnvOption,
    theory: TheoryOptions,
    phases: PhasesOption = 40,
    proposals: ProposalsOption = 5,
    seed: SeedOption = 0,
    folder: RunOptions,
    experimenter: ExperimenterOption = "random",
    episodes: EpisodesOption = 5,
    data_seed: DataSeedOption = 0,
    environment: EnvironmentOptions,
    max_steps: EpisodeStepsOption = 100,
    parallel: ParallelOption = 1,
    options: OptionsOption,
    tracking: TrackingOptions,
    json: JsonOption = False,
) -> None:
    """Find rules in words that explain an environment.

    A theorist proposes rules, a statistician scores how likely they make the data, and an
    experimenter collects more. Without --model a grammar proposes rules and they are evaluated
    exactly, without a language model. A command that was stopped continues.

    Example: cwm theorize --env Door-v0
    """
    from cwm_cli.views.lines import progress_console
    from cwm_theorize.theorize import theorize as find_rules
    from cwm_theorize.view import save_theory_curves, theorizing_report, theorizing_view

    view = theorizing_view(progress_console())
    with redirect_stdout(sys.stderr):  # environments may print
        result = find_rules(
            env,
            env_args=environment.arguments,
            experimenter=experimenter,
            phases=phases,
            proposals=proposals,
            episodes=episodes,
            max_steps=max_steps,
            data_seed=data_seed,
            options=options,
            parallel=parallel,
            seed=seed,
            observer=tracking.beside(view),
            **theory,
            **folder,
        )
    curve = save_theory_curves(env, result)
    if json:
        emit_json(result.as_json() | {"curve": [shown(file) for file in curve]})
    print_parts(theorizing_report(result, curve[0]), json=json)
