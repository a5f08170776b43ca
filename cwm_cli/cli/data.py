"""`cwm data`: look into recorded transitions; and which transitions a command works with."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cwm_cli.cli.boundary import complain, guarded
from cwm_cli.cli.options import JsonOption, parse_env_args
from cwm_cli.errors import CwmError

if TYPE_CHECKING:
    from cwm_cli.environments import EnvironmentSpec
    from cwm_cli.runs import Run
    from cwm_cli.transitions import Dataset

data = typer.Typer(no_args_is_help=True, help="Look into recorded transitions.")


@data.command("show")
@guarded
def show(
    file: Annotated[Path, typer.Argument(help="A dataset (.npz).", show_default=False)],
    json: JsonOption = False,
) -> None:
    """Describe a dataset.

    Example: cwm data show CartPole-v1.npz
    """
    from cwm_cli.cli.output import emit
    from cwm_cli.transitions import Dataset

    dataset = Dataset.load(file)
    facts = {
        "file": str(file),
        "environment": dataset.metadata.get("env"),
        "env_args": dataset.metadata.get("env_args", {}),
        "transitions": len(dataset),
        "train": len(dataset.train),
        "test": len(dataset.test),
        "episodes": len(set(dataset.columns["episodes"].tolist())),
        "terminations": int(dataset.columns["terminations"].sum()),
        "mean_reward": float(dataset.columns["rewards"].mean()) if len(dataset) else None,
        "digest": dataset.digest,
    }
    emit(facts, json=json)


def find_environment(name: str) -> EnvironmentSpec:
    """Look up an environment; say so once when another version stands in for it."""
    from cwm_cli.registry import environment

    spec = environment(name)
    if spec.note:
        complain(spec.note, kind="Note")
    return spec


def load_dataset(
    spec: EnvironmentSpec, env_args: dict[str, Any], file: Path | None, data_seed: int = 0
) -> tuple[Dataset, Path]:
    """Return the given dataset, or the default one of the environment, and the file it is in."""
    from cwm_cli.collection import default_dataset
    from cwm_cli.transitions import Dataset

    if file is None:
        path, _ = default_dataset(spec, env_args=env_args, data_seed=data_seed)
        return Dataset.load(path), path
    dataset = Dataset.load(file)
    recorded = dataset.metadata.get("env", spec.id)
    if recorded != spec.id:
        raise CwmError(f"{file} holds transitions of {recorded}: name --env {recorded}")
    return dataset, file


def recorded_args(dataset: Dataset, env_args: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of the environment that a dataset was recorded with.

    Others may not be named: the description would be that of another environment.
    """
    recorded: dict[str, Any] = dataset.metadata.get("env_args", env_args)
    if env_args not in ({}, recorded):
        raise CwmError(f"the dataset was recorded with --env-arg {recorded}: leave --env-arg out")
    return recorded


def read_program(file: Path) -> str:
    """Return the text of a program."""
    try:
        return file.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise CwmError(f"there is no {file}: name a .py file or a run folder") from error
    except (OSError, ValueError) as error:
        raise CwmError(f"{file} cannot be read ({error}): name a .py file") from error


def open_run(folder: Path, spec: EnvironmentSpec, env_arg: list[str] | None) -> Run:
    """Open a run of an environment; another one is refused."""
    from cwm_cli.runs import Run

    run = Run.load(folder)
    if run.config.env != spec.id:
        raise CwmError(f"{folder} is a run of {run.config.env}: name --env {run.config.env}")
    if env_arg and parse_env_args(env_arg) != run.config.env_args:
        raise CwmError(f"{folder} was started with other environment arguments: leave them out")
    return run
