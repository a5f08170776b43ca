"""Transitions that were recorded elsewhere: the contract of importers, and what keeps a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from cwm_cli.agents.collecting import find_environment, writing
from cwm_cli.data.dataset import Dataset
from cwm_cli.envs.disturbances import HIDE, NOISE, disturbance_of
from cwm_cli.envs.spec import EnvironmentSpec, space_of
from cwm_cli.errors import CwmError
from cwm_cli.registry import Owner, find, names, read_options
from cwm_cli.runs.observer import SILENT, Observer


class Importer:
    """Reads a file of transitions in a foreign format.

    A dataclass whose fields are its options (`-o importer.KEY=VALUE`), with
    their meaning in the docstring under each. `reads` looks at a file and says
    whether it may be of the format; `read` makes a dataset of it, and says in
    a `CwmError` what cannot be read, never running anything that the file holds.

    Example::

        @dataclass
        class Table(Importer):
            def reads(self, file):
                return file.suffix == ".csv"

            def read(self, file, spec, env_args, observer):
                ...
    """

    def reads(self, file: Path) -> bool:
        """Say whether a file may be of this format."""
        raise NotImplementedError

    def read(
        self, file: Path, spec: EnvironmentSpec, env_args: Mapping[str, Any], observer: Observer
    ) -> Dataset:
        """Return the transitions of a file as those of an environment."""
        raise NotImplementedError


@dataclass(frozen=True)
class ImportResult:
    """A file of transitions, and what is in it."""

    file: Path
    dataset: Dataset

    def as_json(self) -> dict[str, Any]:
        """Return what `cwm data import --json` prints."""
        return describe(self.file, self.dataset)


def import_transitions(
    file: Path | str,
    env: str,
    *,
    env_args: Mapping[str, Any] | None = None,
    options: Sequence[str] | Mapping[str, Any] = (),
    out: Path | str | None = None,
    all_train: bool = False,
    force: bool = False,
    observer: Observer = SILENT,
) -> ImportResult:
    """Read transitions from elsewhere and keep them as a dataset (`out`, or the name with .npz).

    The first importer that says that it reads the file is taken. `all_train` holds nothing
    back, as published. Over a file that holds something else `force` alone writes.
    """
    file = Path(file)
    spec = find_environment(env, observer)
    target = Path(out or f"{file.stem}.npz")
    if target.resolve() == file.resolve():
        raise CwmError(f"{target} is what is imported itself: --out names another place")
    importer = _importer(file, options)
    given = dict(env_args or {})
    if NOISE in given:
        raise CwmError("what was recorded is as noisy as it is: leave --noise out")
    hidden = given.pop(HIDE, None)
    dataset = importer.read(file, spec, given, observer)
    if hidden is not None:
        dataset = _without(dataset, spec, given | {HIDE: hidden})
    if all_train:
        split = np.zeros_like(dataset.columns["split"])
        dataset = replace(dataset, columns=dataset.columns | {"split": split})
    if target.exists() and not force:
        hint = "--force replaces it, --out names another"
        try:
            old = Dataset.load(target)
        except CwmError as error:
            raise CwmError(f"{target} is there already and holds no dataset: {hint}") from error
        if (old.digest, old.metadata) != (dataset.digest, dataset.metadata):
            raise CwmError(f"{target} is there already and holds other transitions: {hint}")
    with writing(target):
        dataset.save(target)
    return ImportResult(target, dataset)


def _without(dataset: Dataset, spec: EnvironmentSpec, env_args: Mapping[str, Any]) -> Dataset:
    """Return a dataset without what is hidden of an environment that was made with arguments."""
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


def _importer(file: Path, options: Sequence[str] | Mapping[str, Any]) -> Importer:
    """Find who reads a file; where nobody says so, the first one tells why not."""
    known = {name: find("importer", name) for name in names("importer")}
    if not known:
        raise CwmError("no plugin imports transitions: install one (`cwm plugins` lists them)")
    fitting = [name for name, factory in known.items() if factory().reads(file)]
    name = next(iter(fitting or known))
    chosen = read_options(options, [Owner("importer", known[name])])["importer"]
    importer: Importer = known[name](**chosen)
    return importer
