"""`cwm bench-speed`: how long a transition takes, predicted or for real."""

from __future__ import annotations

from typing import Annotated

import typer

from cwm_cli.cli.shared import (
    AllowGapOption,
    ApiBaseOption,
    DatasetOption,
    EnvArgOption,
    EnvOption,
    JsonOption,
    MaxCostOption,
    ModelBackendOption,
    ModelOption,
    OptionsOption,
    ProgramOption,
    RunOption,
    SeedOption,
    ToolOption,
)


def bench_speed(
    env: EnvOption,
    env_arg: EnvArgOption = None,
    program: ProgramOption = None,
    run: RunOption = None,
    model: ModelOption = None,
    rows: Annotated[
        int, typer.Option("-n", min=1, metavar="N", help="Transitions to predict, held out ones.")
    ] = 10,
    examples: Annotated[
        int, typer.Option("--examples", min=0, help="Solved transitions in each prompt.")
    ] = 3,
    dataset: DatasetOption = None,
    backend: ModelBackendOption = None,
    api_base: ApiBaseOption = None,
    temperature: Annotated[
        float | None,
        typer.Option("--temperature", min=0.0, help="Sampling temperature.", show_default="0"),
    ] = None,
    max_cost: MaxCostOption = None,
    option: OptionsOption = None,
    tool: ToolOption = None,
    allow_gap: AllowGapOption = None,
    seed: SeedOption = 0,
    json: JsonOption = False,
) -> None:
    """Time a transition: in a world model, in the true environment, by a language model.

    All three predict the same N transitions, which says how right they are. The
    world model and the environment are timed on up to 1,000 transitions of the
    dataset, warm, in rounds; a language model is asked once per transition.
    What fails is reported, and the rest is measured.

    Example: cwm bench-speed --env CartPole-v1 --run runs/CartPole-v1-gif-mcts-0-20260101-120000
    """
    from cwm_cli.cli.data import find_environment, recorded_args
    from cwm_cli.cli.measuring import Measuring, Predictor, report
    from cwm_cli.cli.protecting import protected
    from cwm_cli.cli.subjects import find_subject, transitions_of
    from cwm_cli.sandbox.pacing import TimingJob

    spec = find_environment(env)
    subject = find_subject(spec, env_arg, program, run)
    flags = {"api_base": api_base, "temperature": temperature}
    predictor = Predictor.named(backend, model, option or [], flags, max_cost)
    data = transitions_of(spec, subject, dataset)
    subject = subject._replace(env_args=recorded_args(data, subject.env_args))
    tools = sorted({*subject.tools, *(tool or ())})
    limits = predictor.limits(subject.limits)
    with protected(
        limits, tools=tools, accepted=allow_gap or (), handlers=[TimingJob.handler]
    ) as sandbox:
        measuring = Measuring(spec, subject, data, sandbox, rows, examples, seed)
        report(measuring, predictor, json=json)
