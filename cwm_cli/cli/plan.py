"""`cwm plan`: play an environment by planning in a world model."""

from __future__ import annotations

import json as jsonlib
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from cwm_cli.cli.boundary import complain
from cwm_cli.cli.options import (
    AllowGapOption,
    EnvArgOption,
    EnvOption,
    JsonOption,
    OptionsOption,
    SeedOption,
    ToolOption,
    parse_env_args,
)
from cwm_cli.errors import CwmError, UnknownNameError

if TYPE_CHECKING:
    from typing import Any

    from rich.table import Table

    from cwm_cli.environments import EnvironmentSpec
    from cwm_cli.episodes import Contest, Episode, Mean, Pilot
    from cwm_cli.packing import Space
    from cwm_cli.sandbox import Limits

WALL_SECONDS = 600.0
CPU_SECONDS = 300.0
"""For one decision: the published CEM takes two million steps of the model."""


class Subject(NamedTuple):
    """A program, the arguments of its environment, and what it may import and use up."""

    text: str
    env_args: dict[str, Any]
    tools: list[str]
    limits: dict[str, Any]


class Choice(NamedTuple):
    """A planner by name and its options, and the limits of a decision."""

    name: str
    options: dict[str, Any]
    limits: Limits


def plan(
    env: EnvOption,
    env_arg: EnvArgOption = None,
    program: Annotated[
        Path | None,
        typer.Option("--program", metavar="FILE", help="A world model.", show_default=False),
    ] = None,
    run: Annotated[
        Path | None,
        typer.Option("--run", metavar="DIR", help="A run; its best program.", show_default=False),
    ] = None,
    planner: Annotated[
        str, typer.Option("--planner", help="mcts, cem, or auto: the one that fits the actions.")
    ] = "auto",
    option: OptionsOption = None,
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
    tool: ToolOption = None,
    allow_gap: AllowGapOption = None,
    seed: SeedOption = 0,
    json: JsonOption = False,
) -> None:
    """Play an environment, planning every action in a world model.

    Where the program fails the action is random, and counted.

    Example: cwm plan --env CartPole-v1 --run runs/CartPole-v1-gif-mcts-0-20260101-120000
    """
    from cwm_cli.cli.data import find_environment
    from cwm_cli.cli.protecting import protected
    from cwm_cli.environments import space_of
    from cwm_cli.episodes import Pilot, contests, step_limit, uniform

    spec = find_environment(env)
    subject = _subject(spec, env_arg, program, run)
    tools = [*subject.tools, *(tool or ())]
    with closing(spec.make(**subject.env_args)) as made:
        spaces = (space_of(made.observation_space), space_of(made.action_space, "actions"))
        name, options, limits = _choice(planner, option or [], spaces[1], subject.limits)
        with protected(limits, tools=tools, accepted=allow_gap or (), workers=1) as sandbox:
            session = sandbox.session(
                subject.text, spaces, planner=name, options=options, seed=seed
            )
            pilot = Pilot(session, uniform(made, seed))
            with session, _progress(f"{spec.id} · {name}", episodes) as show:
                limit = step_limit(made, max_steps)
                played = [
                    show(pair) for pair in contests(made, pilot, episodes, seed=seed, limit=limit)
                ]
    _report(played, pilot, json=json)


def _subject(
    spec: EnvironmentSpec, env_arg: list[str] | None, program: Path | None, run: Path | None
) -> Subject:
    """Gather what is planned with, which a run has all of; a decision has limits of its own."""
    from cwm_cli.cli.data import open_run, read_program

    limits: dict[str, Any] = {"wall_seconds": WALL_SECONDS, "cpu_seconds": CPU_SECONDS}
    if program is not None and run is None:
        return Subject(read_program(program), parse_env_args(env_arg), [], limits)
    if run is None or program is not None:
        raise CwmError("name one world model: --program FILE, or --run DIR")
    found = open_run(run, spec, env_arg)
    config = found.config
    limits = config.options.get("sandbox", {}) | limits
    return Subject(found.best_program(), config.env_args, [*config.tools], limits)


def _choice(name: str, pairs: list[str], action_space: Space, limits: dict[str, Any]) -> Choice:
    """Choose the planner and read the options."""
    from dataclasses import asdict

    from cwm_cli.planning import PLANNERS, fitting
    from cwm_cli.registry import Owner, read_options
    from cwm_cli.sandbox import Limits

    names = fitting(action_space)
    if name not in (*PLANNERS, "auto"):
        raise UnknownNameError("planner", name, (*PLANNERS, "auto"))
    if not names:
        needs = " or ".join(planner.NEEDS for planner in PLANNERS.values())
        raise CwmError(f"no planner serves these actions: choose an environment with {needs}")
    if name not in (*names, "auto"):
        raise CwmError(f"{name} needs {PLANNERS[name].NEEDS}: choose --planner {names[0]}")
    chosen = names[0] if name == "auto" else name
    options = read_options(pairs, [Owner("planner", PLANNERS[chosen]), Owner("sandbox", Limits)])
    bounds = Limits.chosen(limits | options["sandbox"])
    try:
        return Choice(chosen, asdict(PLANNERS[chosen](**options["planner"])), bounds)
    except ValueError as error:
        raise CwmError(f"{chosen} refuses its options: {error}") from error


@contextmanager
def _progress(title: str, total: int) -> Iterator[Callable[[Contest], Contest]]:
    """Show on stderr how many episodes are played, and their mean return."""
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import MofNCompleteColumn, Progress, TextColumn

    console, returns = Console(stderr=True), []
    mean = TextColumn("{task.fields[mean]}")
    columns = (*Progress.get_default_columns(), MofNCompleteColumn(), mean)
    bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)

    def show(contest: Contest) -> Contest:
        returns.append(contest.planned.returned)
        text = f"mean return {sum(returns) / len(returns):.4g}"
        bar.update(task, completed=len(returns), mean=text)
        return contest

    with bar:
        task = bar.add_task(escape(title), total=total, mean="")
        yield show


def _report(played: list[Contest], pilot: Pilot, *, json: bool) -> None:
    """Print what the episodes came to."""
    from cwm_cli.cli.output import console
    from cwm_cli.episodes import mean_of

    sides = {"world model": [c.planned for c in played], "random": [c.random for c in played]}
    means = [mean_of([episode.returned for episode in side]) for side in sides.values()]
    speeds = [count / pilot.seconds for count in (pilot.decisions, pilot.model_steps)]
    failure = pilot.first_failure
    if json:
        facts = {
            "returns": [episode.returned for episode in sides["world model"]],
            "lengths": [episode.length for episode in sides["world model"]],
            **means[0]._asdict(),
            "random": means[1]._asdict(),
            "oracle": None,
            "R": None,
            "decisions_per_second": speeds[0],
            "model_steps_per_second": speeds[1],
            "failures": pilot.failures,
            "failure": failure.model_dump() if failure else None,
        }
        typer.echo(jsonlib.dumps(facts))
    out = console(json=json)
    out.print(_table(sides, means))
    out.print(f"{speeds[0]:,.4g} decisions/s, {speeds[1]:,.0f} model steps/s", highlight=False)
    if failure:
        where = f", line {failure.line}" if failure.line else ""
        complain(
            f"the program failed in {pilot.failures} of {pilot.decisions} decisions, which were "
            f"random instead; the first: {failure.kind}{where}: {failure.message}",
            kind="Warning",
        )


def _table(sides: dict[str, list[Episode]], means: list[Mean]) -> Table:
    """Compare planned and random episodes."""
    from rich import box
    from rich.table import Table

    table = Table("", box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("return", "length"):
        table.add_column(name, justify="right")
    for (name, episodes), mean in zip(sides.items(), means, strict=True):
        error = "" if mean.stderr is None else f" \N{PLUS-MINUS SIGN} {mean.stderr:.3g}"
        length = sum(episode.length for episode in episodes) / len(episodes)
        table.add_row(name, f"{mean.mean:.5g}{error}", f"{length:.4g}")
    return table
