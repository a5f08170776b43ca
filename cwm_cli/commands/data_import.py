"""Import transitions from other formats (`cwm data import`), and the base class of importers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from os.path import realpath
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from cwm_cli.commands.collect import find_environment, formats_of, writing
from cwm_cli.data.dataset import Dataset
from cwm_cli.data.spaces import Space
from cwm_cli.envs.documented import documented_names
from cwm_cli.envs.spec import EnvironmentSpec, space_of
from cwm_cli.envs.variants import HIDE, NOISE, disturbance_of
from cwm_cli.errors import CwmError
from cwm_cli.registry import Owner, find, names, read_options
from cwm_cli.result import Result
from cwm_cli.runs.observer import SILENT, Observer

if TYPE_CHECKING:
    import gymnasium as gym


class Origin(NamedTuple):
    """The environment that a file names, with its arguments."""

    env: str
    env_args: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class TransitionShape:
    """Spaces and conventions of the transitions of an environment.

    Attributes:
        observations: Observation space.
        actions: Action space.
        limit: Number of steps after which the environment truncates, None if it does not.
        valid: Whether the environment lists the valid actions of a state.
        names: Names of the components of a flat observation; empty if not documented.
    """

    observations: Space
    actions: Space
    limit: int | None
    valid: bool
    names: tuple[str, ...] = ()

    @classmethod
    def of(cls, spec: EnvironmentSpec, env_args: Mapping[str, Any]) -> Self:
        """Return the shape of the transitions of an environment."""
        with closing(spec.make(**env_args)) as env:
            observations = space_of(env.observation_space)
            return cls(
                observations,
                space_of(env.action_space, "actions"),
                env.spec.max_episode_steps if env.spec else None,
                _names_valid_actions(spec, env),
                documented_names(spec.describe(env), observations),
            )


def _names_valid_actions(spec: EnvironmentSpec, env: gym.Env[Any, Any]) -> bool:
    if spec.valid_actions is None:
        return False
    env.reset(seed=0)
    return spec.valid_actions(env.unwrapped) is not None


class Importer:
    """Base class of importers, which read transitions from a file in another format.

    An importer is a dataclass. Its fields are its options (`-o importer.KEY=VALUE`); the
    docstring under each field describes the option. `reads` and `read` are required. No method
    may execute code that the file contains.

    Example::

        @dataclass
        class Table(Importer):
            def reads(self, file):
                return file.suffix == ".csv"

            def read(self, file, spec, env_args, observer):
                ...
    """

    def reads(self, file: Path) -> bool:
        """Return whether a path may have this format; it may be a folder or not exist."""
        raise NotImplementedError

    def title(self, file: Path) -> str:
        """Return the name of the dataset without `--out`."""
        return file.stem

    def origin(self, file: Path) -> Origin | None:
        """Return the environment that the file names; `--env` is then optional."""
        return None

    def read(
        self, file: Path, spec: EnvironmentSpec, env_args: Mapping[str, Any], observer: Observer
    ) -> Dataset:
        """Return the transitions of a file.

        Args:
            file: File or folder.
            spec: Specification of the environment that the dataset belongs to.
            env_args: Arguments of the environment.
            observer: Receives notes.

        Raises:
            CwmError: The file cannot be read, or does not fit the environment.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class ImportResult(Result):
    """A file of transitions and its contents."""

    file: Path
    dataset: Dataset

    def as_json(self) -> dict[str, Any]:
        """Return the output of `cwm data import --json`."""
        return describe(self.file, self.dataset)


def import_transitions(
    file: Path | str,
    env: str | None = None,
    *,
    env_args: Mapping[str, Any] | None = None,
    source: str | None = None,
    options: Sequence[str] | Mapping[str, Any] = (),
    out: Path | str | None = None,
    all_train: bool = False,
    force: bool = False,
    observer: Observer = SILENT,
) -> ImportResult:
    """Read transitions from a file in another format, and save them as a dataset.

    Args:
        file: File or folder to import.
        env: Id of the environment; optional if the file names it.
        env_args: Arguments of the environment.
        source: Name of the importer, by default the first one that recognises the file.
        options: Options of the importer.
        out: Dataset to write, by default the importer's name for the file with suffix .npz.
        all_train: Put all rows into the train split, as in published datasets.
        force: Replace a file that contains anything else.
        observer: Receives notes.

    Raises:
        CwmError: The file cannot be imported, or `out` cannot be written.
    """
    file = Path(file)
    importer = _importer(file, options, source)
    origin = importer.origin(file)
    if env is None and origin is None:
        raise CwmError(
            f"{file} does not name its environment: add --env ID, or "
            "--env FILE.py with the spaces of a log without a simulator"
        )
    if env is None and origin is not None and ":" in origin.env:
        raise CwmError(
            f"{file} names the environment {origin.env}, which imports a Python module: "
            f"add --env {origin.env} if you trust it"
        )
    spec = find_environment(env or (origin.env if origin else ""), observer)
    target = Path(out or f"{importer.title(file)}.npz")
    if realpath(target) == realpath(file):
        raise CwmError(f"{target} is the imported file itself: choose another file with --out")
    asked = dict(env_args or {})
    if NOISE in asked:
        raise CwmError("noise cannot be added to recorded transitions: leave out --noise")
    hidden = asked.pop(HIDE, None)
    named_args = origin.env_args if origin and origin.env == spec.id else {}
    if hidden is not None and HIDE in named_args:
        raise CwmError(f"{file} was already recorded with hidden components: leave out --hide")
    given = {**named_args, **asked}
    dataset = importer.read(file, spec, given, observer)
    if hidden is not None:
        dataset = _hide_components(dataset, spec, given | {HIDE: hidden})
    if all_train:
        split = np.zeros_like(dataset.columns["split"])
        dataset = replace(dataset, columns=dataset.columns | {"split": split})
    if target.exists() and not force:
        hint = "replace it with --force, or choose another file with --out"
        try:
            old = Dataset.load(target)
        except CwmError as error:
            raise CwmError(f"{target} already exists and is not a dataset: {hint}") from error
        if (old.digest, old.metadata) != (dataset.digest, dataset.metadata):
            raise CwmError(f"{target} already exists and contains other transitions: {hint}")
    with writing(target):
        dataset.save(target)
    return ImportResult(target, dataset)


def _hide_components(
    dataset: Dataset, spec: EnvironmentSpec, env_args: Mapping[str, Any]
) -> Dataset:
    """Return a dataset without the observation components that `env_args` hides."""
    with closing(spec.make(**env_args)) as env:
        disturbance, space = disturbance_of(env), space_of(env.observation_space)
    if disturbance is None:
        return dataset
    shown = {"observations", "next_observations"}
    columns = {k: column for k, column in dataset.columns.items() if k.split(".")[0] not in shown}
    for name in shown:
        rows = [
            dataset.observation_space.unpack(name, dataset.columns, i) for i in range(len(dataset))
        ]
        columns |= space.pack(name, [disturbance.see(row, None) for row in rows])
    metadata = dataset.metadata | {"env_args": dict(env_args)}
    return replace(dataset, columns=columns, observation_space=space, metadata=metadata)


def describe(file: Path, dataset: Dataset) -> dict[str, Any]:
    """Return the environment, the counts and the digest of a dataset as JSON data."""
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


def _importer(
    file: Path, options: Sequence[str] | Mapping[str, Any], source: str | None
) -> Importer:
    """Return the named importer, or the first one that recognises the file."""
    if source is None:
        fitting = formats_of(file)
        if not fitting:
            raise CwmError(_unread_reason(file, names("importer")))
        source = fitting[0]
    factory = find("importer", source)
    importer: Importer = factory(**read_options(options, [Owner("importer", factory)])["importer"])
    return importer


def _unread_reason(file: Path, known: Sequence[str]) -> str:
    """Return the error message for a file without an importer."""
    if not known:
        return "no installed plugin imports transitions: install one, and check with `cwm plugins`"
    if not file.exists():
        return f"there is no {file}: give the path of recorded transitions"
    if file.suffix == ".npz":
        return f"{file} needs no import: use a dataset of cwm directly, with --dataset {file}"
    return f"no importer recognises {file}: choose its format with --from ({', '.join(known)})"
