"""Import, export and summarise recorded transitions (`cwm data`).

Other formats are plugins: subclasses of `Importer` and `Exporter`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from os.path import realpath
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryFile
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from cwm_cli.commands.collect import (
    find_environment,
    formats_of,
    load_dataset,
    load_existing,
    writing,
)
from cwm_cli.data.dataset import Dataset
from cwm_cli.data.spaces import Leaf, Space
from cwm_cli.envs.documented import documented_actions, documented_names
from cwm_cli.envs.spec import EnvironmentSpec, space_of
from cwm_cli.envs.variants import HIDE, NOISE, disturbance_of
from cwm_cli.errors import DISK_IS_FULL, CwmError
from cwm_cli.registry import Owner, environment, find, names, read_options
from cwm_cli.result import Result
from cwm_cli.runs.observer import SILENT, Observer

# Import


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
            is_listed = False
            if spec.valid_actions is not None:
                env.reset(seed=0)  # the valid actions depend on the state
                is_listed = spec.valid_actions(env.unwrapped) is not None
            return cls(
                observations,
                space_of(env.action_space, "actions"),
                env.spec.max_episode_steps if env.spec else None,
                is_listed,
                documented_names(spec.describe(env), observations),
            )


@dataclass(frozen=True)
class TableColumns:
    """The roles of the columns of a table that belongs to no environment.

    Columns with usual names are recognised if a role is None; the name `none` prevents this.

    Attributes:
        action: Columns of the action.
        observation: Columns of the observation, by default all that have no other role.
        reward: Column of the reward.
        episode: Column of the episode's number or name.
        time: Column of the time, or a date and a time of day with a comma between.
        terminated: Column that marks the ends of episodes.
        drop_missing: Leave out rows with missing or bad cells.
        resample: Length of the steps to resample to, in seconds or units of the time column.
    """

    action: tuple[str, ...]
    observation: tuple[str, ...] = ()
    reward: str | None = None
    episode: str | None = None
    time: str | None = None
    terminated: str | None = None
    drop_missing: bool = False
    resample: float | None = None


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

    def infer(self, file: Path, columns: TableColumns, observer: Observer) -> Dataset:
        """Return the transitions of a table without an environment, with inferred spaces.

        Args:
            file: File or folder.
            columns: The roles of its columns.
            observer: Receives notes.

        Raises:
            CwmError: The file cannot be read, or is not a table.
        """
        raise CwmError(f"{file} is not a table: --action is for tables; add --env ID")


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
    columns: TableColumns | None = None,
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
        columns: Roles of the columns of a table without an environment; the spaces are inferred.
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
    target = Path(out or f"{importer.title(file)}.npz")
    # a link to the imported file would be overwritten too
    if realpath(target) == realpath(file):
        raise CwmError(f"{target} is the imported file itself: choose another file with --out")
    if columns is None:
        dataset = _read_for_environment(importer, file, env, env_args or {}, observer)
    elif env is not None or env_args:
        raise CwmError(
            "--action is for tables without an environment: leave out --env and its arguments"
        )
    else:
        dataset = importer.infer(file, columns, observer)
    if all_train:
        split = np.zeros_like(dataset.columns["split"])
        dataset = replace(dataset, columns=dataset.columns | {"split": split})
    old = None if force else load_existing(target)
    if old is not None and (old.digest, old.metadata) != (dataset.digest, dataset.metadata):
        hint = "replace it with --force, or choose another file with --out"
        raise CwmError(f"{target} already exists and contains other transitions: {hint}")
    with writing(target):
        dataset.save(target)
    return ImportResult(target, dataset)


def _read_for_environment(
    importer: Importer,
    file: Path,
    env: str | None,
    env_args: Mapping[str, Any],
    observer: Observer,
) -> Dataset:
    """Return the transitions of a file, which fit the spaces of an environment."""
    origin = importer.origin(file)
    if env is None and origin is None:
        raise CwmError(
            f"{file} does not name its environment: add --env ID, or for a table without one "
            "--action COLUMN"
        )
    if env is None and origin is not None and ":" in origin.env:
        raise CwmError(
            f"{file} names the environment {origin.env}, which imports a Python module: "
            f"add --env {origin.env} if you trust it"
        )
    spec = find_environment(env or (origin.env if origin else ""), observer)
    asked = dict(env_args)
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
    return dataset


def _hide_components(
    dataset: Dataset, spec: EnvironmentSpec, env_args: Mapping[str, Any]
) -> Dataset:
    """Return a dataset without the observation components that `env_args` hides."""
    with closing(spec.make(**env_args)) as env:
        disturbance, space = disturbance_of(env), space_of(env.observation_space)
    if disturbance is None:
        return dataset
    shown = {"observations", "next_observations"}
    # columns of nested spaces have names such as `observations.key`
    columns = {k: column for k, column in dataset.columns.items() if k.split(".")[0] not in shown}
    for name in shown:
        rows = [
            dataset.observation_space.unpack(name, dataset.columns, i) for i in range(len(dataset))
        ]
        columns |= space.pack(name, [disturbance.see(row, None) for row in rows])
    metadata = dataset.metadata | {"env_args": dict(env_args)}
    return replace(dataset, columns=columns, observation_space=space, metadata=metadata)


def _importer(
    file: Path, options: Sequence[str] | Mapping[str, Any], source: str | None
) -> Importer:
    """Return the named importer, or the first one that recognises the file."""
    if source is None:
        fitting, known = formats_of(file), names("importer")
        if not known:
            raise CwmError(
                "no installed plugin imports transitions: install one, and check with `cwm plugins`"
            )
        if not fitting and not file.exists():
            raise CwmError(f"there is no {file}: give the path of recorded transitions")
        if not fitting and file.suffix == ".npz":
            raise CwmError(
                f"{file} needs no import: use a dataset of cwm directly, with --dataset {file}"
            )
        if not fitting:
            choices = ", ".join(known)
            raise CwmError(
                f"no importer recognises {file}: choose its format with --from ({choices})"
            )
        source = fitting[0]
    importer: Importer = _make_plugin("importer", source, options)
    return importer


def _make_plugin(kind: str, name: str, options: Sequence[str] | Mapping[str, Any]) -> Any:
    """Create an importer or exporter with its options."""
    factory = find(kind, name)
    return factory(**read_options(options, [Owner(kind, factory)])[kind])


# Export


class Exporter:
    """Base class of exporters, which write transitions in another format.

    An exporter is a dataclass. Its fields are its options (`-o exporter.KEY=VALUE`); the
    docstring under each field describes the option. Only `write` is required. If an importer has
    the same name, export and import must give the same columns.

    Example::

        @dataclass
        class Table(Exporter):
            suffix = ".csv"

            def write(self, dataset, target, observer):
                with written_whole(target) as partial:
                    partial.write_text(...)
    """

    suffix: ClassVar[str] = ""
    """Suffix of the default file name."""

    def locate(self, out: str) -> Path:
        """Return the file or folder that `--out` names."""
        return Path(out)

    def owns(self, target: Path) -> bool:
        """Return whether a file or folder has this format, so that `--force` may replace it."""
        return target.is_file()

    def write(self, dataset: Dataset, target: Path, observer: Observer) -> None:
        """Write all rows to a file or folder, atomically.

        Args:
            dataset: The rows.
            target: File or folder, as returned by `locate`.
            observer: Receives a note about all data that the format cannot store.

        Raises:
            CwmError: The format cannot store the dataset.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class ExportResult(Result):
    """An exported file or folder and its format."""

    path: Path
    format: str
    dataset: Dataset

    def as_json(self) -> dict[str, Any]:
        """Return the output of `cwm data export --json`."""
        return {
            "file": str(self.path),
            "format": self.format,
            "environment": self.dataset.metadata.get("env"),
            "transitions": len(self.dataset),
            "episodes": len(set(self.dataset.columns["episodes"].tolist())),
            "digest": self.dataset.digest,
        }


def export_transitions(
    dataset: Dataset | Path | str,
    to: str,
    *,
    out: Path | str | None = None,
    options: Sequence[str] | Mapping[str, Any] = (),
    force: bool = False,
    observer: Observer = SILENT,
) -> ExportResult:
    """Write transitions in another format.

    Args:
        dataset: The dataset or its file.
        to: Name of the exporter, e.g. minari, csv or parquet.
        out: File or folder in the notation of the format; by default it has the dataset's name.
        options: Options of the exporter.
        force: Replace an existing export of the same format.
        observer: Receives a note about all data that the format cannot store.

    Raises:
        CwmError: The dataset is empty, the format cannot store it, or `out` cannot be written.
    """
    exporter = exporter_of(to, options)
    rows = dataset if isinstance(dataset, Dataset) else load_dataset(Path(dataset))
    name = rows.metadata.get("env", "transitions") if isinstance(dataset, Dataset) else dataset
    target = exporter.locate(str(out or f"{Path(name).stem}{exporter.suffix}"))
    if not len(rows):
        raise CwmError(f"{name} contains no transitions: there is nothing to export")
    with writing(target):
        if os.path.lexists(target):
            if not exporter.owns(target):
                raise CwmError(
                    f"{target} exists and is not an export: choose another place with --out"
                )
            if not force:
                hint = "replace it with --force, or choose another place with --out"
                raise CwmError(f"{target} already exists: {hint}")
        exporter.write(rows, target, observer)
    return ExportResult(target, to.rpartition(":")[2], rows)


def exporter_of(name: str, options: Sequence[str] | Mapping[str, Any] = ()) -> Exporter:
    """Create an exporter with its options."""
    exporter: Exporter = _make_plugin("exporter", name, options)
    return exporter


def check_room(folder: Path, size: int) -> None:
    """Check that a file of `size` bytes fits into a folder by reserving the space temporarily.

    HDF5 crashes the process if it runs out of space. The free space alone does not show quotas
    and limits on the file size.

    Raises:
        OSError: There is not enough space.
    """
    with TemporaryFile(dir=folder) as file:
        try:
            os.posix_fallocate(file.fileno(), 0, size)
        except OSError as error:
            if error.errno in DISK_IS_FULL:
                raise
            # other errors: the file system cannot reserve space


@contextmanager
def written_whole(target: Path) -> Iterator[Path]:
    """Yield a temporary path next to `target`; replace `target` by it if the body succeeds.

    If the body fails, the temporary file or folder is deleted and `target` is unchanged.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    partial, old = (
        target.with_name(f".{target.name}.{os.getpid()}.{word}") for word in ("part", "old")
    )
    try:
        yield partial
        if target.is_dir():  # a folder that is not empty cannot be replaced in one step
            target.rename(old)
        try:
            partial.replace(target)
        except BaseException:
            if old.exists():
                old.rename(target)
            raise
    finally:
        for rest in (partial, old):
            if rest.is_dir() and not rest.is_symlink():
                rmtree(rest, ignore_errors=True)
            else:
                rest.unlink(missing_ok=True)


# Summaries


MAX_COUNTED_VALUES = 12
"""Maximum number of different numbers to count one by one; with more there is a histogram."""

BINS = 20
"""Number of bins of a histogram, of equal width from the smallest number to the largest."""


@dataclass(frozen=True)
class NumberSpread:
    """The distribution of real numbers, with the counts of `BINS` bins of equal width."""

    min: float
    median: float
    max: float
    histogram: tuple[int, ...]


@dataclass(frozen=True)
class ValueCount:
    """A value with its number of rows; `name` is its documented meaning, if known."""

    value: float | int | str
    count: int
    name: str = ""


@dataclass(frozen=True)
class ComponentSummary:
    """A component of an observation or an action: either a distribution, or values with counts.

    Attributes:
        column: Column of the dataset, with the index in a row, such as `observations[2]`.
        name: Its documented name, if known.
        different: Number of different values.
        spread: The distribution, if there are many values.
        values: The values, if there are few.
    """

    column: str
    name: str
    different: int
    spread: NumberSpread | None = None
    values: tuple[ValueCount, ...] = ()


@dataclass(frozen=True)
class DatasetSummary:
    """Numbers on a dataset.

    `lengths` and `returns` are the quantiles 0, 25, 50, 75 and 100 % over episodes.
    """

    facts: Mapping[str, Any]
    components: tuple[ComponentSummary, ...]
    rewards: ComponentSummary
    truncations: int
    lengths: tuple[float, ...]
    returns: tuple[float, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the output of `cwm data show --json`."""
        names = ("min", "q25", "median", "q75", "max")
        return {
            **self.facts,
            "truncations": self.truncations,
            "episode_lengths": dict(zip(names, self.lengths, strict=True)),
            "episode_returns": dict(zip(names, self.returns, strict=True)),
            "rewards": _as_json(self.rewards),
            "components": [_as_json(component) for component in self.components],
        }


def _as_json(component: ComponentSummary) -> dict[str, Any]:
    """Return plain data without empty fields."""
    return {name: value for name, value in asdict(component).items() if value not in (None, (), "")}


def summarise(file: Path, dataset: Dataset) -> DatasetSummary:
    """Summarise a dataset, with the names that the environment documents if it can be created."""
    columns, names = dataset.columns, _names(dataset)
    # number the episodes from 0 without gaps, so that bincount sums by episode
    _, place = np.unique(columns["episodes"], return_inverse=True)
    lengths = np.bincount(place.reshape(-1))
    returns = np.bincount(place.reshape(-1), columns["rewards"])
    quantiles = [0.0, 0.25, 0.5, 0.75, 1.0]
    some = len(dataset) > 0
    return DatasetSummary(
        describe(file, dataset),
        tuple(_components(dataset, names)) if some else (),
        _component("rewards", "", columns["rewards"])
        if some
        else ComponentSummary("rewards", "", 0),
        int(columns["truncations"].sum()),
        tuple(np.quantile(lengths, quantiles).tolist()) if some else (),
        tuple(np.quantile(returns, quantiles).tolist()) if some else (),
    )


class _Names(NamedTuple):
    """Documented names of the components of a flat observation, and of the actions."""

    components: tuple[str, ...] = ()
    actions: tuple[str, ...] = ()


def _names(dataset: Dataset) -> _Names:
    """Return the names that the environment documents, or none if it cannot be created."""
    name, env_args = dataset.metadata.get("env", ""), dataset.metadata.get("env_args", {})
    if ":" in name:
        # The id would import a module that only the file names, not the user.
        return _Names()
    try:
        spec = environment(name)
        with closing(spec.make(**env_args)) as env:
            description = spec.describe(env)
            named = spec.action_names(env) if spec.action_names else ()
    except Exception:  # noqa: BLE001  # third-party environments raise anything
        return _Names()
    space = dataset.action_space
    count = space.count if space.kind == "discrete" else 0
    actions = tuple(named) or documented_actions(description, count)
    components = documented_names(description, dataset.observation_space)
    return _Names(components, actions if len(actions) == count else ())


def _components(dataset: Dataset, names: _Names) -> Iterator[ComponentSummary]:
    """Yield the components of observations and actions; all pixels of a picture are one."""
    leaves = [
        *dataset.observation_space.leaves("observations"),
        *dataset.action_space.leaves("actions"),
    ]
    for leaf in leaves:
        column = dataset.columns[leaf.name]
        if leaf.space.is_picture:
            yield _component(leaf.name, "pixels", column.reshape(-1), whole=True)
        elif not leaf.space.shape:
            yield _single(leaf, column, names)
        else:
            flat = leaf.name == "observations" and names.components
            for number, place in enumerate(np.ndindex(*leaf.space.shape)):
                name = names.components[number] if flat else ""
                words = ", ".join(map(str, place))
                yield _component(f"{leaf.name}[{words}]", name, column[(slice(None), *place)])


def _single(leaf: Leaf, column: np.ndarray, names: _Names) -> ComponentSummary:
    """Summarise a leaf of one value; for discrete actions, also values without rows."""
    if (
        leaf.name != "actions"
        or leaf.space.kind != "discrete"
        or leaf.space.count > MAX_COUNTED_VALUES
    ):
        return _component(leaf.name, "", column)
    first = int(leaf.space.low[0])
    counts = np.bincount(column - first, minlength=leaf.space.count).tolist()
    values = tuple(
        ValueCount(first + n, count, names.actions[n] if names.actions else "")
        for n, count in enumerate(counts)
    )
    return ComponentSummary(leaf.name, "", sum(count > 0 for count in counts), values=values)


def _component(
    column: str, name: str, values: np.ndarray, *, whole: bool = False
) -> ComponentSummary:
    """Summarise a component: count few numbers, or the 20 most frequent texts."""
    different, counts = np.unique(values, return_counts=True)
    is_text = values.dtype.kind == "U"
    if (is_text or len(different) <= MAX_COUNTED_VALUES) and not whole:
        order = np.argsort(-counts, kind="stable")[:20] if is_text else range(len(counts))
        found = tuple(ValueCount(different[n].item(), int(counts[n])) for n in order)
        return ComponentSummary(column, name, len(different), values=found)
    numbers = values.astype(np.float64)
    numbers = numbers[np.isfinite(numbers)]
    if not len(numbers):
        return ComponentSummary(column, name, len(different))
    low, middle, high = np.quantile(numbers, [0, 0.5, 1]).tolist()
    half = high / 2 - low / 2  # `high - low` may be more than the largest float
    shares = (numbers / 2 - low / 2) / half if half > 0 else np.zeros(len(numbers))
    bins = np.bincount((BINS * shares).astype(np.int64).clip(0, BINS - 1), minlength=BINS).tolist()
    spread = NumberSpread(low, middle, high, tuple(bins))
    return ComponentSummary(column, name, len(different), spread)


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
