"""`cwm plan`: play an environment by planning in a world model."""

from __future__ import annotations

from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from cwm_cli.cli.shared import (
    AllowGapOption,
    EnvArgOption,
    EnvOption,
    JsonOption,
    OptionsOption,
    ProgramOption,
    RunOption,
    SeedOption,
    ToolOption,
)

if TYPE_CHECKING:
    from cwm_cli.cli.playing import Contest
    from cwm_cli.envs.films import Camera


def plan(
    env: EnvOption,
    env_arg: EnvArgOption = None,
    program: ProgramOption = None,
    run: RunOption = None,
    real_env: Annotated[
        bool,
        typer.Option("--real-env", help="No model: the oracle plans, in the environment itself."),
    ] = False,
    planner: Annotated[
        str,
        typer.Option(
            "--planner",
            help="mcts or tabular for discrete actions, icem or cem for continuous ones, or auto.",
        ),
    ] = "auto",
    option: OptionsOption = None,
    form: Annotated[
        Literal["auto", "scalar", "compiled"],
        typer.Option(
            "--form",
            help="scalar: use the program just as it is. compiled: as machine code (extra fast), "
            "for which generated code may run such code. auto: in the fastest form without.",
        ),
    ] = "auto",
    episodes: Annotated[int, typer.Option("--episodes", min=1, help="Episodes to play.")] = 10,
    max_steps: Annotated[
        int | None,
        typer.Option(
            "--max-steps",
            min=1,
            help="Steps after which an episode is cut. Default: the environment's limit, or 1000.",
            show_default=False,
        ),
    ] = None,
    workers: Annotated[int, typer.Option("--workers", min=1, help="Processes that plan.")] = 1,
    lockstep: Annotated[
        int, typer.Option("--lockstep", min=1, help="Episodes that a process plans for at once.")
    ] = 8,
    no_oracle: Annotated[
        bool,
        typer.Option("--no-oracle", help="Do not compare with plans in the environment itself."),
    ] = False,
    render: Annotated[
        Path | None,
        typer.Option(
            "--render",
            metavar="FILE",
            help="Film the first episode, as .gif or .mp4.",
            show_default=False,
        ),
    ] = None,
    new: Annotated[bool, typer.Option("--new", help="Forget what was played before.")] = False,
    tool: ToolOption = None,
    allow_gap: AllowGapOption = None,
    seed: SeedOption = 0,
    json: JsonOption = False,
) -> None:
    """Play an environment, planning every action in a world model.

    From the same starts the oracle plans in the environment itself, and
    random draws its actions. R = (model - random) / (oracle - random), where
    the oracle is clearly better than chance; with --real-env there is no R.
    Where the program fails the action is random, and counted. An episode is
    written down when it ends, so that a command that was stopped continues.

    Example: cwm plan --env CartPole-v1 --run runs/CartPole-v1-gif-mcts-0-20260101-120000
    """
    from cwm_cli.agents.plans import Journal
    from cwm_cli.cli.data import find_environment
    from cwm_cli.cli.planned import report
    from cwm_cli.cli.planners import choose
    from cwm_cli.cli.playing import Contest, check_oracle, play_through
    from cwm_cli.cli.protecting import check_form, protected
    from cwm_cli.cli.subjects import find_subject
    from cwm_cli.envs.spec import space_of
    from cwm_cli.envs.tasks import Setting, step_limit
    from cwm_cli.sandbox.messages import PlanningJob

    spec = find_environment(env)
    subject = find_subject(spec, env_arg, program, run, real_env=real_env)
    check_form(form)
    with closing(spec.make(**subject.env_args)) as made:
        spaces = (space_of(made.observation_space), space_of(made.action_space, "actions"))
        setting = Setting(env, subject.env_args, seed, step_limit(made, max_steps))
    choice = choose(planner, option or [], spaces, subject.limits)
    contest = Contest(
        spec,
        setting,
        spaces,
        choice,
        subject,
        subject.sides(no_oracle=no_oracle),
        episodes,
        form,
        workers,
        lanes=lockstep,
    )
    camera = _camera(render, contest)
    check_oracle(contest)
    tools = sorted({*subject.tools, *(tool or ())})
    with ExitStack() as stack:
        guard = protected(
            choice.limits,
            tools=tools,
            accepted=allow_gap or (),
            workers=workers,
            handlers=[PlanningJob.handler],
            compiling=form == "compiled",
        )
        sandbox = stack.enter_context(guard) if subject.text is not None else None
        journal = stack.enter_context(
            Journal.open(subject.folder, contest.identity(tools), new=new)
        )
        contest.prepare(journal, filmed=camera is not None)
        play_through(contest, journal, sandbox, new=new, json=json)
        report(contest, journal, render=render, json=json)
    if camera:
        contest.film(camera)


def _camera(file: Path | None, contest: Contest) -> Camera | None:
    """Return what films an episode, once it has shown that it can."""
    from cwm_cli.envs.films import Camera

    if file is None:
        return None
    camera = Camera(file, contest.spec, contest.setting.env_args)
    camera.check()
    return camera
