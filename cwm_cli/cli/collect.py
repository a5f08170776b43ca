"""`cwm collect`: record transitions of an environment."""

from __future__ import annotations

import json as jsonlib
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cwm_cli.cli.boundary import complain
from cwm_cli.cli.options import EnvArgOption, EnvOption, JsonOption, SeedOption, parse_env_args
from cwm_cli.errors import CwmError

if TYPE_CHECKING:
    from typing import Any

    from cwm_cli.transitions import Dataset


def collect(
    env: EnvOption,
    env_arg: EnvArgOption = None,
    episodes: Annotated[int, typer.Option("--episodes", min=1, help="Train episodes.")] = 10,
    test_episodes: Annotated[
        int, typer.Option("--test-episodes", min=0, help="Test episodes, held out.")
    ] = 10,
    max_steps: Annotated[
        int, typer.Option("--max-steps", min=1, help="Steps after which an episode is cut.")
    ] = 100,
    policy: Annotated[str, typer.Option("--policy", help="How actions are chosen.")] = "random",
    seed: SeedOption = 0,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Where to write. Default: ID.npz, here."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace a file that holds something else.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Record transitions of an environment in a file.

    Example: cwm collect --env CartPole-v1 --episodes 20
    """
    from cwm_cli import collection
    from cwm_cli.cli.data import find_environment

    spec = find_environment(env)
    options: collection.Options = {
        "policy": policy,
        "episodes": episodes,
        "test_episodes": test_episodes,
        "max_steps": max_steps,
        "seed": seed,
    }
    env_args = parse_env_args(env_arg)
    file = out or Path(re.sub(r"[^\w.-]+", "-", spec.id) + ".npz")
    asked = collection.request(spec, env_args, **options)
    dataset = None if force else _recorded(file, asked)
    if dataset is not None:
        complain(f"{file} holds these transitions already", kind="Note")
    else:
        with _progress(spec.id, episodes + test_episodes) as progress:
            dataset = collection.collect(spec, env_args=env_args, progress=progress, **options)
        _save(dataset, file)
    _report(dataset, file, json=json)


def _recorded(file: Path, asked: dict[str, Any]) -> Dataset | None:
    """Return the file if it holds what is asked for; any other file is not touched."""
    from cwm_cli.transitions import Dataset

    if not file.exists():
        return None
    hint = "--force replaces it, --out names another"
    try:
        dataset = Dataset.load(file)
    except CwmError as error:
        raise CwmError(f"{file} is there already and holds no dataset: {hint}") from error
    if not dataset.metadata.items() >= asked.items():
        raise CwmError(f"{file} is there already, recorded in another way: {hint}")
    return dataset


def _save(dataset: Dataset, file: Path) -> None:
    """Write the file, or say why it cannot be written."""
    try:
        dataset.save(file)
    except OSError as error:
        reason = error.strerror or str(error)
        raise CwmError(f"cannot write {file} ({reason}): --out names another place") from error


@contextmanager
def _progress(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show on stderr how many episodes are recorded."""
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import MofNCompleteColumn, Progress

    console = Console(stderr=True)
    columns = (*Progress.get_default_columns(), MofNCompleteColumn())
    bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    with bar:
        task = bar.add_task(f"recording {escape(title)}", total=total)
        yield lambda done: bar.update(task, completed=done)


def _report(dataset: Dataset, file: Path, *, json: bool) -> None:
    """Print what is in the file."""
    import numpy as np

    returns = np.bincount(dataset.columns["episodes"], dataset.columns["rewards"]).tolist()
    if json:
        facts = {
            "file": str(file),
            "transitions": len(dataset),
            "episodes": len(returns),
            "returns": returns,
        }
        typer.echo(jsonlib.dumps(facts))
        return
    mean = sum(returns) / len(returns)
    typer.echo(
        f"{len(dataset)} transitions in {len(returns)} episodes, mean return {mean:.4g}: {file}"
    )
