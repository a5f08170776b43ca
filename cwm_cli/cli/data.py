"""`cwm data`: read and look into transitions; and which transitions a command works with."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cwm_cli.cli.shared import (
    EnvArgOption,
    EnvOption,
    JsonOption,
    OptionsOption,
    emit,
    guarded,
    parse_env_args,
)
from cwm_cli.errors import CwmError

if TYPE_CHECKING:
    from cwm_cli.data.dataset import Dataset
    from cwm_cli.envs.spec import EnvironmentSpec

data = typer.Typer(no_args_is_help=True, help="Read and look into recorded transitions.")


@data.command("import")
@guarded
def import_(
    file: Annotated[
        Path,
        typer.Argument(
            help="A replay buffer as the paper published it (.pkl).", show_default=False
        ),
    ],
    env: EnvOption,
    env_arg: EnvArgOption = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Where to write. Default: the name, as .npz."),
    ] = None,
    option: OptionsOption = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace a file that holds something else.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Read transitions from elsewhere, such as a published replay buffer; nothing in it is run.

    Example: cwm data import CartPole-v1.pkl --env CartPole-v1
    """
    from cwm_cli.agents.importing import import_transitions
    from cwm_cli.views.lines import Lines

    result = import_transitions(
        file,
        env,
        env_args=parse_env_args(env_arg),
        options=option or (),
        out=out,
        force=force,
        observer=Lines(),
    )
    emit(result.as_json(), json=json)


@data.command("show")
@guarded
def show(
    file: Annotated[Path, typer.Argument(help="A dataset (.npz).", show_default=False)],
    json: JsonOption = False,
) -> None:
    """Describe a dataset.

    Example: cwm data show CartPole-v1.npz
    """
    from cwm_cli.agents.importing import describe
    from cwm_cli.data.dataset import Dataset

    emit(describe(file, Dataset.load(file)), json=json)


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
