"""Record transitions of an environment (`cwm collect`), and load recorded transitions.

`collect` records a file. `default_dataset` returns a dataset that ships with cwm or is in the
cache. `load_transitions` returns the rows for other commands.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from cwm_cli.commands.recording import Recording, RecordingOptions, request
from cwm_cli.data.dataset import Dataset, dataset_warnings
from cwm_cli.envs.spec import EnvironmentSpec
from cwm_cli.errors import CwmError
from cwm_cli.registry import Owner, environment, find, names, read_options
from cwm_cli.result import Result
from cwm_cli.runs.observer import SILENT, Observer

log = logging.getLogger("cwm.data")


@dataclass(frozen=True)
class CollectionResult(Result):
    """A file of transitions and its contents."""

    file: Path
    dataset: Dataset

    @property
    def returns(self) -> list[float]:
        """The return of every episode."""
        columns = self.dataset.columns
        _, place = np.unique(columns["episodes"], return_inverse=True)
        found: list[float] = np.bincount(place.reshape(-1), columns["rewards"]).tolist()
        return found

    def as_json(self) -> dict[str, Any]:
        """Return the output of `cwm collect --json`."""
        return {
            "file": str(self.file),
            "transitions": len(self.dataset),
            "episodes": len(self.returns),
            "returns": self.returns,
        }


def collect(
    env: str,
    *,
    env_args: Mapping[str, Any] | None = None,
    episodes: int | None = None,
    test_episodes: int | None = None,
    min_rows: int | None = None,
    max_steps: int = 100,
    policy: str = "curated",
    options: Sequence[str] | Mapping[str, Any] = (),
    seed: int = 0,
    out: Path | str | None = None,
    force: bool = False,
    workers: int = 1,
    max_seconds: float | None = None,
    observer: Observer = SILENT,
) -> CollectionResult:
    """Record transitions of an environment in a file.

    After an interrupt or the time limit, the file contains the finished episodes; after
    `kill -9`, the episodes of the last save, about 10 seconds earlier. The same call then
    records the missing ones. A file that already contains the requested transitions is not
    changed.

    Args:
        env: Id of the environment.
        env_args: Arguments of the environment.
        episodes: Number of train episodes. By default 10, and more until there are 200 rows.
        test_episodes: Number of test episodes, with the same default.
        min_rows: Minimum number of rows of each split; episodes are added until it is reached.
        max_steps: Maximum length of an episode.
        policy: Name of the policy.
        options: Options of the policy.
        seed: Seed of all episodes.
        out: File to write, by default ID.npz in the current folder.
        force: Replace a file that contains anything else.
        workers: Number of processes; the file does not depend on it.
        max_seconds: Time limit in seconds.
        observer: Receives a `Recording`, then each `BeingRecorded` and each `Recorded`.

    Raises:
        CwmError: The request is invalid, the file cannot be written, or it contains other data.
    """
    spec = find_environment(env, observer)
    chosen = read_options(options, [Owner("policy", find("policy", policy))])["policy"]
    wanted: RecordingOptions = {
        "policy": policy,
        "max_steps": max_steps,
        "seed": seed,
    }
    if chosen:
        wanted["policy_options"] = chosen
    if episodes is not None:
        wanted["episodes"] = episodes
    if test_episodes is not None:
        wanted["test_episodes"] = test_episodes
    if min_rows is not None:
        wanted |= {"min_rows": min_rows, "min_test_rows": min_rows}
    file = Path(out or shipped_name(spec.id))
    begun = None if force else load_existing(file)
    if begun is not None:
        # metadata of a recording contain its request, and facts such as `missing`
        asked = request(spec, env_args, **wanted).items()
        if not begun.metadata.items() >= asked:
            hint = "replace it with --force, or choose another file with --out"
            raise CwmError(f"{file} already exists, recorded with other settings: {hint}")
    if begun is not None and not begun.metadata.get("missing"):
        observer.note(f"{file} already contains these transitions")
        dataset = begun
    else:
        with writing(file):
            file.parent.mkdir(parents=True, exist_ok=True)
            if not os.access(file.parent, os.W_OK):
                raise PermissionError(f"no permission for {file.parent}")
        recording = Recording(spec, env_args, begun=begun, **wanted)
        with writing(file):
            dataset = _record_and_save(
                recording, file, observer, workers=workers, max_seconds=max_seconds
            )
    if note := dataset.metadata.get("note"):
        observer.note(note)
    warn_of_rows(dataset, observer)
    return CollectionResult(file, dataset)


def find_environment(name: str, observer: Observer = SILENT) -> EnvironmentSpec:
    """Look up an environment; notify the observer if another version replaces it."""
    spec = environment(name)
    if spec.note:
        observer.note(spec.note)
    return spec


def load_transitions(
    spec: EnvironmentSpec,
    *,
    env_args: Mapping[str, Any] | None = None,
    dataset: Dataset | Path | str | None = None,
    data_seed: int = 0,
    observer: Observer = SILENT,
) -> tuple[Dataset, str]:
    """Return transitions of an environment, and their source.

    Args:
        spec: Specification of the environment.
        env_args: Arguments of the environment.
        dataset: The dataset or its file. By default `default_dataset`, which records the
            transitions if they neither ship nor are in the cache.
        data_seed: Seed of the default dataset.
        observer: Receives notes, and the progress of a recording.

    Returns:
        The transitions, and their file name or "given".

    Raises:
        CwmError: The dataset belongs to another environment or has other arguments.
    """
    if dataset is None:
        file, _ = default_dataset(spec, env_args=env_args, data_seed=data_seed, observer=observer)
        rows = Dataset.load(file)
        if note := rows.metadata.get("note"):
            observer.note(note)
        return rows, str(file)
    source = "given" if isinstance(dataset, Dataset) else str(dataset)
    rows = dataset if isinstance(dataset, Dataset) else load_dataset(Path(dataset))
    recorded = rows.metadata.get("env", spec.id)
    if recorded != spec.id:
        raise CwmError(f"{source} contains transitions of {recorded}: use --env {recorded}")
    if env_args and dict(env_args) != recorded_args(rows, env_args):
        raise CwmError(
            f"{source} was recorded with --env-arg {recorded_args(rows)}: leave out --env-arg"
        )
    return _without_missing_parts(rows, spec), source


def _without_missing_parts(rows: Dataset, spec: EnvironmentSpec) -> Dataset:
    """Mark rewards or ends that a table of transitions lacks, so that they are not scored."""
    parts = {"rewards": "rewards", "ends": "terminations"}
    missing = {name: False for name, column in parts.items() if not rows.columns[column].any()}
    if not missing or spec.has_simulator(recorded_args(rows)):
        return rows
    return replace(rows, metadata=rows.metadata | missing)


def warn_of_rows(rows: Dataset, observer: Observer) -> None:
    """Report problems of a dataset as warnings."""
    for words in dataset_warnings(rows):
        observer.note(words, kind="Warning")


def load_dataset(file: Path) -> Dataset:
    """Load a dataset, or raise `CwmError` with the command that imports another format."""
    if file.suffix != ".npz" and file.exists() and (formats := formats_of(file)):
        kind = file.suffix.lstrip(".").upper() or formats[0]
        raise CwmError(f"{file} is a {kind} file: run `cwm data import {file}` first")
    return Dataset.load(file)


def formats_of(file: Path) -> list[str]:
    """Return the names of the importers that read a file."""
    return [name for name in names("importer") if find("importer", name)().reads(file)]


def environment_in(
    dataset: Dataset | Path | str | None,
    env: str | None = None,
    env_args: Mapping[str, Any] | None = None,
) -> tuple[str | None, Mapping[str, Any] | None]:
    """Return the environment of a request; without an ID, its dataset names the environment.

    Args:
        dataset: The dataset or its file.
        env: Id of the environment, if the user gave it.
        env_args: Arguments of the environment, by default the arguments in the dataset.

    Raises:
        CwmError: The dataset names no environment, or one that imports a Python module, which
            only the user may decide.
    """
    if dataset is None or env_args:
        return env, env_args
    rows = dataset if isinstance(dataset, Dataset) else load_dataset(Path(dataset))
    source = "the dataset" if isinstance(dataset, Dataset) else dataset
    name = rows.metadata.get("env")
    if env not in (None, name):
        return env, env_args
    if name is None:
        raise CwmError(f"{source} does not name its environment: add --env ID")
    if env is None and ":" in name:
        raise CwmError(
            f"{source} names the environment {name}, which imports a Python module: "
            f"add --env {name} if you trust it"
        )
    return name, recorded_args(rows)


def recorded_args(dataset: Dataset, otherwise: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the environment arguments of a dataset, or `otherwise` if it has none."""
    return dict(dataset.metadata.get("env_args", otherwise or {}))


@contextmanager
def writing(file: Path) -> Iterator[None]:
    """Convert an `OSError` into a `CwmError` that names the file and suggests `--out`."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise CwmError(
            f"cannot write {file} ({reason}): choose another place with --out"
        ) from error


def load_existing(file: Path) -> Dataset | None:
    """Return the dataset of a file that a command would replace, None if there is no file.

    Raises:
        CwmError: The file is not a dataset.
    """
    if not file.exists():
        return None
    try:
        return Dataset.load(file)
    except CwmError as error:
        hint = "replace it with --force, or choose another file with --out"
        raise CwmError(f"{file} already exists and is not a dataset: {hint}") from error


def _record_and_save(
    recording: Recording,
    file: Path,
    observer: Observer,
    *,
    workers: int = 1,
    max_seconds: float | None = None,
) -> Dataset:
    """Record the missing episodes, and save the finished ones regularly and after an error."""
    if recording.recorded:
        observer.note(f"continuing {file}: {_count(recording)}")

    def save() -> None:
        if recording.begun:
            recording.dataset().save(file)

    try:
        recording.play(observer, workers=workers, max_seconds=max_seconds, save=save)
    except BaseException:  # also Ctrl-C, which is no `Exception`
        if recording.begun:
            save()
            observer.note(f"{_count(recording)} are in {file}; the same command continues")
        raise
    dataset = recording.dataset()
    dataset.save(file)
    # the time limit has ended the recording
    if recording.done < recording.episodes:
        observer.note(f"{_count(recording)} are in {file}; the same command continues")
    return dataset


def _count(recording: Recording) -> str:
    return f"{recording.done} of {recording.episodes} episodes"


def file_name(requested: Mapping[str, Any]) -> str:
    """Return a readable file name with a hash of all settings of a request."""
    return f"{hashed_name(requested, requested['policy'])}.npz"


def hashed_name(settings: Mapping[str, Any], method: str) -> str:
    """Return a readable name with a hash of all `settings`, which have `env` and `seed`."""
    digest = sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]
    return f"{_file_word(settings['env'])}-{method}-{settings['seed']}-{digest}"


def _file_word(env: str) -> str:
    return re.sub(r"[^\w.-]+", "-", env)


def default_dataset(
    spec: EnvironmentSpec,
    *,
    env_args: Mapping[str, Any] | None = None,
    data_seed: int = 0,
    observer: Observer = SILENT,
    **options: Unpack[RecordingOptions],
) -> tuple[Path, bool]:
    """Return the file of a request, recorded into the cache if it does not exist.

    Args:
        spec: Specification of the environment.
        env_args: Arguments of the environment.
        data_seed: Seed of the recording.
        observer: Receives the progress of a recording.
        options: Options of the recording, except for the seed.

    Returns:
        The file, which ships with cwm or is in the cache, and whether it existed before.
    """
    import platformdirs

    options["seed"] = data_seed
    requested = request(spec, env_args, **options)
    package = find_spec("cwm_data")  # the datasets that ship with cwm are a package of their own
    folders = (package.submodule_search_locations or []) if package else []
    shipped = next((Path(folder) / shipped_name(spec.id) for folder in folders), None)
    if shipped is not None:
        recorded = _recorded_request(shipped, requested)
        if _without_numpy(recorded) == _without_numpy(requested):
            log.info("using the transitions that ship with cwm: %s", shipped)
            return shipped, True
    cache = Path(platformdirs.user_cache_dir("cwm")) / "datasets"
    path, begun = cache / file_name(requested), None
    if _recorded_request(path, requested) == requested:
        begun = Dataset.load(path)
        if not begun.metadata.get("missing"):
            log.info("using transitions from the cache: %s", path)
            return path, True
    log.info("recording transitions into the cache: %s", path)
    recording = Recording(spec, env_args, begun=begun, **options)
    try:
        _record_and_save(recording, path, observer)
    except OSError as error:
        hint = "set XDG_CACHE_HOME to a writable folder"
        raise CwmError(f"cannot write the transitions to {path} ({error}): {hint}") from error
    return path, False


def shipped_name(env: str) -> str:
    """Return the file name of the dataset of an environment."""
    return f"{_file_word(env)}.npz"


def _recorded_request(path: Path, requested: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a file's metadata for the keys of a request; empty if unreadable."""
    try:
        found = Dataset.load(path).metadata
    except CwmError:
        return {}  # no file, or damaged by a crash: record again
    return {name: found.get(name) for name in requested}


def _without_numpy(requested: Mapping[str, Any]) -> dict[str, Any]:
    """Return a request without the version of numpy.

    Another numpy may change the plans of a policy, but the recorded transitions remain valid:
    they depend on the package of the environment and on MuJoCo.
    """
    versions = requested.get("versions") or {}
    kept = {name: number for name, number in versions.items() if name != "numpy"}
    return {**requested, "versions": kept}
