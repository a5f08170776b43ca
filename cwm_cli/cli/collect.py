"""`cwm collect`: record transitions of an environment."""

from __future__ import annotations

import json as jsonlib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cwm_cli.cli.shared import (
    EnvArgOption,
    EnvOption,
    JsonOption,
    SeedOption,
    complain,
    parse_env_args,
    recording,
    writing,
)
from cwm_cli.errors import CwmError

if TYPE_CHECKING:
    from typing import Any

    from cwm_cli.data.dataset import Dataset


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
    policy: Annotated[
        str, typer.Option("--policy", help="How actions are chosen: curated, planner or random.")
    ] = "curated",
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

    Half of the episodes of --policy curated are random. The actions of the others are
    planned in a copy of the environment: some for reward, with an effort that rises from
    episode to episode, and some to see what no episode has shown yet. With --policy
    planner all are planned for reward, with --policy random all are drawn. Where planning
    is not possible actions are drawn, and a note says so.

    Example: cwm collect --env CartPole-v1 --episodes 20
    """
    from cwm_cli.agents import collection
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
        _check_folder(file)
        with recording(spec.id, episodes + test_episodes) as progress:
            dataset = collection.collect(spec, env_args=env_args, progress=progress, **options)
        with writing(file):
            dataset.save(file)
    if note := dataset.metadata.get("note"):
        complain(note, kind="Note")
    _report(dataset, file, json=json)


def _recorded(file: Path, asked: dict[str, Any]) -> Dataset | None:
    """Return the file if it holds what is asked for; any other file is not touched."""
    from cwm_cli.data.dataset import Dataset

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


def _check_folder(file: Path) -> None:
    """Refuse a place that cannot be written before anything is recorded for it."""
    with writing(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        if not os.access(file.parent, os.W_OK):
            raise PermissionError(f"no permission for {file.parent}")


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
    low, mean, high = min(returns), sum(returns) / len(returns), max(returns)
    spread = f"returns from {low:.4g} to {high:.4g}, {mean:.4g} in the mean"
    typer.echo(f"{len(dataset)} transitions in {len(returns)} episodes, {spread}: {file}")
