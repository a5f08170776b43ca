"""`cwm bench-speed`: how long a transition takes, predicted or for real."""

from __future__ import annotations

from typing import Annotated

import typer

from cwm_cli.cli.shared import (
    AllowGapOption,
    ApiBaseOption,
    DatasetOption,
    EnvArgOption,
    JsonOption,
    MaxCostOption,
    ModelBackendOption,
    ModelOption,
    OptionsOption,
    ProgramOption,
    RunOption,
    SeedOption,
    ToolOption,
    parse_env_args,
)


def bench_speed(
    env: Annotated[
        str | None,
        typer.Option("--env", help="Environment id; a run knows its own.", show_default=False),
    ] = None,
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

    Example: cwm bench-speed --run runs/CartPole-v1-gif-mcts-0-20260101-120000
    """
    from cwm_cli.agents.collecting import recorded_args
    from cwm_cli.agents.subjects import find_subject, protected
    from cwm_cli.cli.measuring import Measuring, Predictor, report
    from cwm_cli.sandbox.pacing import TimingJob
    from cwm_cli.views.recording import RecordingBar

    observer = RecordingBar()
    subject = find_subject(
        run, program=program, env=env, env_args=parse_env_args(env_arg), observer=observer
    )
    flags = {"api_base": api_base, "temperature": temperature}
    predictor = Predictor.named(backend, model, option or [], flags, max_cost)
    data = subject.transitions(dataset, observer)
    subject = subject._replace(env_args=recorded_args(data, subject.env_args))
    limits = predictor.limits(dict(subject.limits))
    guard = protected(
        limits,
        tools=[*subject.tools, *(tool or ())],
        accepted=allow_gap or (),
        handlers=[TimingJob.handler],
        observer=observer,
    )
    with guard as sandbox:
        measuring = Measuring(subject.spec, subject, data, sandbox, rows, examples, seed)
        report(measuring, predictor, json=json)
