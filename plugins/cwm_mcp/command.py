"""`cwm mcp`: serve a run to a coding agent."""

from __future__ import annotations

from typing import Annotated, Any, cast

import typer

from cwm_cli.cli.shared import (
    ENV,
    ContractOption,
    DatasetOption,
    DescriptionOption,
    EnvironmentOptions,
    ProgramOptions,
    RunOptions,
    SeedOption,
    advanced_option,
    basic_option,
    limit_option,
)

SubmissionsOption = Annotated[
    int, basic_option("--budget", min=1, help="Maximum number of submitted programs.")
]
PlanEpisodesOption = Annotated[
    int,
    limit_option(
        "--plan-episodes",
        min=0,
        help="Maximum number of planned episodes in the true environment.",
    ),
]
HttpOption = Annotated[
    str | None,
    basic_option(
        "--http",
        metavar="PORT",
        help="Serve streamable HTTP on this port of 127.0.0.1, instead of stdin and stdout; 0 "
        "chooses a port.",
    ),
]
SkillOption = Annotated[
    bool, advanced_option("--print-skill", help="Print SKILL.md, instructions for agents.")
]


def mcp(
    *,
    env: Annotated[str | None, ENV] = None,
    budget: SubmissionsOption = 20,
    seed: SeedOption = 0,
    folder: RunOptions,
    http: HttpOption = None,
    dataset: DatasetOption = None,
    environment: EnvironmentOptions,
    contract: ContractOption = "auto",
    description: DescriptionOption = None,
    plan_episodes: PlanEpisodesOption = 10,
    programs: ProgramOptions,
    print_skill: SkillOption = False,
) -> None:
    """Serve tools to a coding agent that writes a program (MCP).

    This is a server of the Model Context Protocol. The agent starts it, reads recorded steps and
    submits programs. The run is an ordinary search run.

    Example: cwm mcp --env CartPole-v1 --run pole
    """
    from cwm_cli.views.datasets import RecordingBar
    from cwm_mcp.serving import serve, skill

    if print_skill:
        typer.echo(skill(), nl=False)
        return
    serve(
        env,
        env_args=environment.arguments,
        dataset=dataset,
        description=description,
        budget=budget,
        plan_episodes=plan_episodes,
        seed=seed,
        contract=cast("Any", contract),
        http=http,
        **folder,
        **programs,
        observer=RecordingBar(),
    )
