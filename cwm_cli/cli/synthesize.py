"""`cwm synthesize`: search for a program that predicts an environment."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cwm_cli.cli.answering import advice, answering
from cwm_cli.cli.shared import (
    AllowGapOption,
    ApiBaseOption,
    BackendOption,
    DataSeedOption,
    DatasetOption,
    EnvArgOption,
    JsonOption,
    MaxCostOption,
    MetricOption,
    ModelOption,
    NewOption,
    OptionsOption,
    ParallelOption,
    SeedOption,
    StrategyOption,
    TemperatureOption,
    ToolOption,
    parse_env_args,
)
from cwm_cli.errors import CwmError
from cwm_cli.views.lines import complain

if TYPE_CHECKING:
    from rich.console import Console

    from cwm_cli.agents.job import Job


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
    model: ModelOption = None,
    backend: BackendOption = None,
    strategy: StrategyOption = "gif-mcts",
    option: OptionsOption = None,
    budget: Annotated[int, typer.Option("--budget", min=1, help="Completions to spend.")] = 10,
    parallel: ParallelOption = 1,
    seed: SeedOption = 0,
    data_seed: DataSeedOption = 0,
    dataset: DatasetOption = None,
    metric: MetricOption = "accuracy",
    max_cost: MaxCostOption = None,
    api_base: ApiBaseOption = None,
    temperature: TemperatureOption = None,
    tool: ToolOption = None,
    allow_gap: AllowGapOption = None,
    run: Annotated[
        Path | None,
        typer.Option("--run", metavar="DIR", help="Run folder; continued if it exists."),
    ] = None,
    new: NewOption = False,
    json: JsonOption = False,
) -> None:
    """Search for a program that predicts an environment; a stopped run continues where it was.

    Example: cwm synthesize --env CartPole-v1
    """
    from rich.console import Console

    from cwm_cli.agents.job import Choices
    from cwm_cli.agents.synthesizing import Order, open_job
    from cwm_cli.cli.data import find_environment, load_dataset, recorded_args
    from cwm_cli.cli.protecting import warn

    spec = find_environment(_environment(env, idx))
    answers, (named,) = answering(backend, [model or ""])
    env_args = parse_env_args(env_arg)
    transitions, source = load_dataset(spec, env_args, dataset, data_seed)
    env_args = recorded_args(transitions, env_args)
    flags = {"api_base": api_base, "temperature": temperature}
    choices = Choices(
        strategy=strategy,
        backend=answers,
        model=named,
        options=option or [],
        flags={name: value for name, value in flags.items() if value is not None},
        metric=metric,
        seed=seed,
        parallel=parallel,
        max_cost=max_cost,
        budget=budget,
        tools=tuple(sorted(set(tool or ()))),
        accepted=tuple(allow_gap or ()),
    )
    order = Order(spec, env_args, transitions, str(source), choices)
    with open_job(order, folder=run, new=new) as job:
        err = Console(stderr=True)
        verb = f"continues with {len(job.search.nodes)} nodes" if job.search.nodes else "started"
        warn(job.problem.sandbox.protection)
        complain(str(source), kind="Data")
        complain(f"{job.run.folder} {verb}", kind="Run")
        _search(job, err)
        _report(job, json=json)


def _environment(env: str | None, idx: int | None) -> str:
    """Return the id that was asked for, by name or by position in the benchmark."""
    from cwm_cli.bench.suites import CWMB

    if (env is None) == (idx is None):
        raise CwmError("name one environment: --env CartPole-v1, or --idx 3")
    if env is not None:
        return env
    if idx is not None and idx < len(CWMB):
        return CWMB[idx]
    raise CwmError(f"--idx {idx} is not in the benchmark: choose 0 to {len(CWMB) - 1}")


def _search(job: Job, err: Console) -> None:
    """Run the search under the live view; whatever ends it, what was found is kept."""
    from cwm_cli.views.live import live

    try:
        with live(job.search, budget=job.choices.budget, title=job.title, console=err) as view:
            for node in job.nodes():
                view.learned(node)
    except CwmError as error:
        job.run.log(f"stopped: {error}")
        if not job.search.nodes:
            raise
        raise CwmError(f"{error} (kept in {job.run.folder}: the same command continues)") from error
    except KeyboardInterrupt:
        job.run.log("interrupted")
        if not job.search.nodes:
            raise
        raise KeyboardInterrupt(
            f"interrupted after {len(job.search.nodes)} completions: "
            f"the same command continues the run {job.run.folder}"
        ) from None
    if job.search.given_up:
        complain("nothing better is to be expected from data alone: gave up", kind="Note")
    if job.search.out_of_money:
        complain(f"stopped before --max-cost {job.choices.max_cost:g} was exceeded", kind="Note")


def _report(job: Job, *, json: bool) -> None:
    """Print the scores, what they cost and what to do next."""
    import json as jsonlib

    from cwm_cli.cli.shared import console
    from cwm_cli.views.tables import score_table, titled

    result, scores = job.finish()
    if json:
        typer.echo(jsonlib.dumps(result))
    out = console(json=json)
    if scores["train"] is not None:
        out.print(score_table(titled(scores)))
    cost = "unknown" if result["cost"] is None else f"${result['cost']:.4f}"
    spent = f"{result['completions']} completions, {result['tokens']} tokens, cost {cost}"
    outcome = "solved" if result["solved"] else "not solved"
    out.print(f"{outcome} after {spent}, {result['seconds']:.1f} s", highlight=False)
    out.print(f"program {result['program']}", highlight=False, markup=False, soft_wrap=True)
    out.print(f"next    {job.next_command()}", highlight=False, markup=False, soft_wrap=True)
    if found := advice(job.choices.backend, scores["test"] or scores["train"]):
        out.print(f"advice  {found}", highlight=False, markup=False, soft_wrap=True)
