"""`cwm data`: read and look into transitions; and which transitions a command works with."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cwm_cli.cli.shared import EnvArgOption, EnvOption, JsonOption, guarded, parse_env_args
from cwm_cli.errors import CwmError
from cwm_cli.views.lines import complain

if TYPE_CHECKING:
    from cwm_cli.data.dataset import Dataset
    from cwm_cli.envs.spec import EnvironmentSpec
    from cwm_cli.importing import Buffer
    from cwm_cli.runs.searches import SearchRun

MOST_VERSIONS = 10
"""Versions of an environment that are tried, from 0, when a file fits none that was named."""

data = typer.Typer(no_args_is_help=True, help="Read and look into recorded transitions.")


@data.command("import")
@guarded
def import_(
    file: Annotated[
        Path,
        typer.Argument(help="A replay buffer as the paper published it.", show_default=False),
    ],
    env: EnvOption,
    env_arg: EnvArgOption = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Where to write. Default: the name, as .npz."),
    ] = None,
    drop_corrupt_first_rows: Annotated[
        bool,
        typer.Option("--drop-corrupt-first-rows", help="Leave out the first row of each episode."),
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Replace a file that holds something else.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Read a published replay buffer; nothing in it is run.

    Example: cwm data import CartPole-v1.pkl --env CartPole-v1
    """
    from cwm_cli.cli.shared import emit
    from cwm_cli.importing import MisfitError, convert, read_buffer

    spec = find_environment(env)
    target = out or Path(f"{file.stem}.npz")
    if target.resolve() == file.resolve():
        raise CwmError(f"{target} is the replay buffer itself: --out names another place")
    buffer = read_buffer(file)
    try:
        dataset, limited = convert(
            buffer,
            spec,
            env_args=parse_env_args(env_arg),
            drop_corrupt_first_rows=drop_corrupt_first_rows,
        )
    except MisfitError as error:
        raise CwmError(f"{error}: {_where_it_fits(buffer, spec)}") from error
    _keep(dataset, target, force=force)
    _remark(spec, dataset, limited)
    emit(_facts(target, dataset), json=json)


@data.command("show")
@guarded
def show(
    file: Annotated[Path, typer.Argument(help="A dataset (.npz).", show_default=False)],
    json: JsonOption = False,
) -> None:
    """Describe a dataset.

    Example: cwm data show CartPole-v1.npz
    """
    from cwm_cli.cli.shared import emit
    from cwm_cli.data.dataset import Dataset

    emit(_facts(file, Dataset.load(file)), json=json)


def _facts(file: Path, dataset: Dataset) -> dict[str, Any]:
    """Describe a dataset in a few numbers."""
    columns = dataset.columns
    return {
        "file": str(file),
        "environment": dataset.metadata.get("env"),
        "env_args": dataset.metadata.get("env_args", {}),
        "transitions": len(dataset),
        "train": len(dataset.train),
        "test": len(dataset.test),
        "episodes": len(set(columns["episodes"].tolist())),
        "terminations": int(columns["terminations"].sum()),
        "mean_reward": float(columns["rewards"].mean()) if len(dataset) else None,
        "digest": dataset.digest,
    }


def _keep(dataset: Dataset, file: Path, *, force: bool) -> None:
    """Write a dataset, but over no file that holds something else."""
    from cwm_cli.agents.collecting import writing
    from cwm_cli.data.dataset import Dataset

    if file.exists() and not force:
        hint = "--force replaces it, --out names another"
        try:
            old = Dataset.load(file)
        except CwmError as error:
            raise CwmError(f"{file} is there already and holds no dataset: {hint}") from error
        if (old.digest, old.metadata) != (dataset.digest, dataset.metadata):
            raise CwmError(f"{file} is there already and holds other transitions: {hint}")
    with writing(file):
        dataset.save(file)


def _where_it_fits(buffer: Buffer, spec: EnvironmentSpec) -> str:
    """Say in which other version of the environment a buffer may have been recorded."""
    from cwm_cli.importing import fits
    from cwm_cli.registry import environment

    name = re.sub(r"-v\d+$", "", spec.id)
    for other in (f"{name}-v{number}" for number in range(MOST_VERSIONS)):
        try:
            found = environment(other)
        except CwmError:
            continue
        if found.id == other != spec.id and fits(buffer, found):
            return f"it may be of {other}, name --env {other}"
    return "name the environment it was recorded in, with --env and --env-arg"


def _remark(spec: EnvironmentSpec, dataset: Dataset, limited: int) -> None:
    """Say what in the data may not be what it seems."""
    from cwm_cli.importing import corrupt_first_rows

    if limited:
        rows = "row ends" if limited == 1 else "rows end"
        complain(
            f"{limited} {rows} an episode just at a time limit: read as truncated, not terminated",
            kind="Note",
        )
    if dataset.metadata["drop_corrupt_first_rows"]:
        return
    if corrupt := corrupt_first_rows(spec, dataset):
        complain(
            f"the first rows of about {corrupt} episodes do not follow from their observations: "
            "--drop-corrupt-first-rows leaves out all first rows",
            kind="Note",
        )


def find_environment(name: str) -> EnvironmentSpec:
    """Look up an environment; say so once when another version stands in for it."""
    from cwm_cli.agents import collecting
    from cwm_cli.views.lines import Lines

    return collecting.find_environment(name, Lines())


def load_dataset(
    spec: EnvironmentSpec, env_args: dict[str, Any], file: Path | None, data_seed: int = 0
) -> tuple[Dataset, Path]:
    """Return the given dataset, or the default one of the environment, and the file it is in."""
    from cwm_cli.agents.collecting import load_transitions
    from cwm_cli.views.recording import RecordingBar

    rows, source = load_transitions(
        spec, env_args=env_args, dataset=file, data_seed=data_seed, observer=RecordingBar()
    )
    return rows, Path(source)


def recorded_args(dataset: Dataset, env_args: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of the environment that a dataset was recorded with."""
    from cwm_cli.agents import collecting

    return collecting.recorded_args(dataset, env_args)


def read_program(file: Path) -> str:
    """Return the text of a program."""
    try:
        return file.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise CwmError(f"there is no {file}: name a .py file or a run folder") from error
    except (OSError, ValueError) as error:
        raise CwmError(f"{file} cannot be read ({error}): name a .py file") from error


def open_run(folder: Path, spec: EnvironmentSpec, env_arg: list[str] | None) -> SearchRun:
    """Open a run of an environment; another one is refused."""
    from cwm_cli.runs.searches import SearchRun

    run = SearchRun.load(folder)
    if run.config.env != spec.id:
        raise CwmError(f"{folder} is a run of {run.config.env}: name --env {run.config.env}")
    if env_arg and parse_env_args(env_arg) != run.config.env_args:
        raise CwmError(f"{folder} was started with other environment arguments: leave them out")
    return run
