"""Recordings that are there already: those that ship, and those of the cache."""

import re
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Unpack

from cwm_cli.agents.collection.recording import Progress, collect
from cwm_cli.agents.collection.requests import Options, file_name, request
from cwm_cli.data.dataset import Dataset
from cwm_cli.envs.spec import EnvironmentSpec
from cwm_cli.errors import CwmError

PACKAGE = "cwm_data"
"""The package of the datasets that ship."""

INDIFFERENT = ("numpy",)
"""Packages whose versions may differ from those that a shipped dataset was recorded with.

Planning may go another way with another numpy, but what is recorded is what the environment
did: its own package, and MuJoCo, decide that.
"""


def default_dataset(
    spec: EnvironmentSpec,
    *,
    env_args: Mapping[str, Any] | None = None,
    data_seed: int = 0,
    progress: Progress | None = None,
    **options: Unpack[Options],
) -> tuple[Path, bool]:
    """Return the recording of a request that ships or is in the cache, and whether it was there."""
    options["seed"] = data_seed
    asked = request(spec, env_args, **options)
    shipped = _shipped(spec.id)
    if shipped and _essential(asked) == _essential(_recorded(shipped, asked)):
        return shipped, True
    path = _cache() / file_name(asked)
    if _recorded(path, asked) == asked:
        return path, True
    dataset = collect(spec, env_args=env_args, progress=progress, **options)
    try:
        dataset.save(path)
    except OSError as error:
        hint = "set XDG_CACHE_HOME to a folder that can be written"
        raise CwmError(f"cannot keep the transitions in {path} ({error}): {hint}") from error
    return path, False


def _shipped(env: str) -> Path | None:
    """Return where the dataset of an environment would ship, if any are installed."""
    package = find_spec(PACKAGE)
    folders = (package.submodule_search_locations or []) if package else []
    return next((Path(folder) / shipped_name(env) for folder in folders), None)


def shipped_name(env: str) -> str:
    """Return the id of an environment as the name of its dataset."""
    return re.sub(r"[^\w.-]+", "-", env) + ".npz"


def _recorded(path: Path, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was asked for when a file was recorded, in the terms of a request."""
    try:
        found = Dataset.load(path).metadata
    except CwmError:
        return {}  # missing, or spoilt by a crash of the machine: recorded anew
    return {name: found.get(name) for name in asked}


def _essential(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return a request without the versions that do not matter."""
    versions = asked.get("versions") or {}
    kept = {name: number for name, number in versions.items() if name not in INDIFFERENT}
    return {**asked, "versions": kept}


def _cache() -> Path:
    """Return the folder of cached recordings."""
    import platformdirs

    return Path(platformdirs.user_cache_dir("cwm")) / "datasets"
