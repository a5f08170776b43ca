"""Minari's datasets: episodes of n steps with n + 1 observations, in a folder.

What Minari has no place for is kept in its metadata: under `cwm` the metadata and the spaces of
the dataset as they were, and for each episode its number and its split.
"""

import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from cwm_cli import __version__
from cwm_cli.agents.exporting import Exporter, written_whole
from cwm_cli.data.dataset import DONE, VALID, Dataset
from cwm_cli.data.spaces import Space
from cwm_cli.envs.disturbances import HIDE, NOISE
from cwm_cli.envs.shifts import SHIFT
from cwm_cli.envs.spec import gym_space_of, space_of
from cwm_cli.errors import CwmError
from cwm_cli.registry import environment
from cwm_cli.runs.observer import Observer

if TYPE_CHECKING:
    from gymnasium.envs.registration import EnvSpec
    from minari.data_collector.episode_buffer import EpisodeBuffer

PREFIX = "minari:"
"""What goes before the name of a dataset that Minari keeps itself."""

OURS = "cwm"
"""The key of Minari's metadata with what it has no place for."""

MASK = "action_mask"
"""The info with the actions that are allowed, as Gymnasium's Taxi names it: one mark each."""

SPLITS = {0: "train", 1: "test"}


def library() -> Any:
    """Import Minari, which comes with an extra."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import minari
    except ImportError as error:
        raise CwmError("Minari's datasets need minari: pip install 'cwm-cli[minari]'") from error
    return minari


@contextmanager
def quietly() -> Iterator[None]:
    """Leave out what Minari and Gymnasium warn their own users of."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def folder_of(name: str) -> Path:
    """Return the folder of a dataset: `minari:ID` is one that Minari keeps, else it is a path."""
    if not name.startswith(PREFIX):
        return Path(name)
    library()
    from minari.storage import get_dataset_path

    folder: Path = get_dataset_path(_checked(name.removeprefix(PREFIX)))
    return folder


def _checked(name: str) -> str:
    """Refuse a name that Minari would not find again."""
    from minari.dataset.minari_dataset import parse_dataset_id

    try:
        parse_dataset_id(name)
    except (ValueError, TypeError) as error:
        hint = "write NAME-v0 or NAMESPACE/NAME-v0, of letters, digits, - and _"
        raise CwmError(f"Minari has no datasets called {name!r}: {hint}") from error
    return name


def _id_of(folder: Path) -> str:
    """Return what Minari calls the dataset in a folder: its path below the datasets' own folder."""
    from minari.storage import get_dataset_path

    folder, root = folder.absolute(), Path(get_dataset_path()).absolute()
    return _checked(folder.relative_to(root).as_posix() if root in folder.parents else folder.name)


class Trajectory(NamedTuple):
    """Rows that follow each other, from `start` to before `stop`."""

    start: int
    stop: int


def trajectories(dataset: Dataset) -> list[Trajectory]:
    """Cut rows wherever one does not go on where the row before it ended.

    Rows of one episode that were shuffled, or picked out of it, are cut from each other.
    """
    columns, rows = dataset.columns, len(dataset)
    goes_on = ~(columns["terminations"] | columns["truncations"])[:-1]
    for name in ("episodes", "split"):
        goes_on &= columns[name][1:] == columns[name][:-1]
    for name, column in dataset.select("observations").items():
        after, before = columns[f"next_{name}"][:-1], column[1:]
        same = (after == before) | ((after != after) & (before != before))  # what is no number
        goes_on &= same.all(axis=tuple(range(1, same.ndim)))
    starts = [0, *(np.flatnonzero(~goes_on) + 1).tolist()]
    return [Trajectory(*each) for each in zip(starts, [*starts[1:], rows], strict=True)]


@dataclass
class MinariExporter(Exporter):
    """Writes a dataset of Minari, which `minari.load_dataset` loads; pictures are kept as they are.

    `--out minari:ID` puts it where Minari keeps its own, any other name is a folder.
    """

    format: Literal["hdf5", "arrow", "parquet"] = "hdf5"
    """The files in it; arrow and parquet need `cwm-cli[parquet]`."""

    def locate(self, out: str) -> Path:
        """Return the folder; one without a version is given one, because Minari needs it."""
        library()
        folder = folder_of(out if re.search(r"-v\d+$", out) else f"{out.rstrip('/')}-v0")
        _id_of(folder)
        return folder

    def owns(self, target: Path) -> bool:
        """Whether a folder holds a dataset of Minari, and nothing else."""
        return {path.name for path in target.glob("*")} == {"data"} and (
            target / "data" / "metadata.json"
        ).is_file()

    def write(self, dataset: Dataset, target: Path, observer: Observer) -> None:
        """Write the episodes, and say how many there are where rows had to be cut."""
        library()
        name, parts = _id_of(target), trajectories(dataset)
        whole = len(np.unique(dataset.columns["episodes"]))
        if len(parts) > whole:
            observer.note(
                f"not every row goes on where the row before it ended: {whole} episodes "
                f"become {len(parts)} of Minari's"
            )
        spec = _spec_of(dataset, observer)
        with written_whole(target) as partial, quietly(), _written(name):
            _write(dataset, parts, partial / "data", name, spec, self.format)
        _keep_namespace(name, target)


@contextmanager
def _written(name: str) -> Iterator[None]:
    """Say in a line what Minari's storage cannot hold."""
    try:
        yield
    except (OSError, CwmError):
        raise
    except ImportError as error:
        raise CwmError("this format of Minari needs: pip install 'cwm-cli[parquet]'") from error
    except Exception as error:  # whatever h5py or pyarrow make of a value
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise CwmError(
            f"Minari cannot write {name} ({reason}): another -o format= may do"
        ) from error


def _write(
    dataset: Dataset,
    parts: list[Trajectory],
    folder: Path,
    name: str,
    spec: "EnvSpec | None",
    kind: str,
) -> None:
    """Write the folder `data` of a dataset of Minari."""
    from minari.dataset.minari_storage import MinariStorage

    characters = _characters(dataset)
    folder.mkdir(parents=True)
    storage = MinariStorage.new(
        folder,
        observation_space=gym_space_of(_as_stored(dataset, "observations"), characters),
        action_space=gym_space_of(_as_stored(dataset, "actions"), characters),
        env_spec=spec,
        data_format=kind,
        jpeg_encoding=False,  # what was recorded is kept to the last pixel
    )
    storage.update_metadata(_metadata(dataset, name))
    storage.update_episodes(_episodes(dataset, parts))
    numbers, splits = dataset.columns["episodes"], dataset.columns["split"]
    storage.update_episode_metadata(
        [
            {
                "episode": int(numbers[part.start]),
                "split": SPLITS.get(int(splits[part.start]), str(splits[part.start])),
            }
            for part in parts
        ]
    )


def _episodes(dataset: Dataset, parts: list[Trajectory]) -> Iterator["EpisodeBuffer"]:
    """Yield episodes as Minari writes them."""
    from minari.data_collector.episode_buffer import EpisodeBuffer

    columns = dataset.columns
    for start, stop in parts:
        seen = {
            name: np.concatenate([column[start:stop], columns[f"next_{name}"][stop - 1 : stop]])
            for name, column in dataset.select("observations").items()
        }
        done = {name: column[start:stop] for name, column in dataset.select("actions").items()}
        yield EpisodeBuffer(
            observations=_nested(dataset.observation_space, "observations", seen),
            actions=_nested(dataset.action_space, "actions", done),
            rewards=columns["rewards"][start:stop],
            terminations=columns["terminations"][start:stop],
            truncations=columns["truncations"][start:stop],
            infos=_infos(columns, start, stop),
        )


def _infos(columns: Mapping[str, np.ndarray], start: int, stop: int) -> dict[str, Any]:
    """Return infos, each with a value for the reset first: as far as known, all is allowed then."""
    infos: dict[str, Any] = {}
    if VALID in columns:
        mask = columns[VALID][start:stop].astype(np.int8)
        infos[MASK] = np.concatenate([np.ones_like(mask[:1]), mask])
    if DONE in columns:
        infos[DONE] = [False, *columns[DONE][start:stop].tolist()]
    return infos


def _nested(space: Space, name: str, columns: Mapping[str, np.ndarray]) -> Any:
    """Put the columns of leaves together as Minari has them: text as a list."""
    if space.kind == "tuple":
        return tuple(_nested(child, f"{name}.{part}", columns) for part, child in space.parts())
    if space.kind == "dict":
        parts = zip(space.keys, space.parts(), strict=True)
        return {key: _nested(child, f"{name}.{part}", columns) for key, (part, child) in parts}
    return columns[name].tolist() if space.kind == "text" else columns[name]


def _as_stored(dataset: Dataset, name: str) -> Space:
    """Return a space whose types are those of the columns, which may be wider."""

    def stored(space: Space, name: str) -> Space:
        parts = [stored(child, f"{name}.{part}") for part, child in space.parts()]
        if parts:
            return replace(space, children=tuple(parts))
        wider = space.kind == "box" and str(dataset.columns[name].dtype) != space.dtype
        return replace(space, dtype=str(dataset.columns[name].dtype)) if wider else space

    return stored(
        dataset.observation_space if name == "observations" else dataset.action_space, name
    )


def _characters(dataset: Dataset) -> str:
    """Return all characters of the texts, and those of plain English, for their spaces."""
    texts = [column for column in dataset.columns.values() if column.dtype.kind == "U"]
    plain = {chr(code) for code in range(32, 127)}
    return "".join(sorted(plain.union(*("".join(text.ravel().tolist()) for text in texts))))


def _metadata(dataset: Dataset, name: str) -> dict[str, Any]:
    """Say where the transitions are from, and keep what Minari has no place for.

    Nobody is named as the author and no code is linked: a dataset of ours does not know them.
    """
    import minari

    about = dataset.metadata
    env = about.get("env", "an unnamed environment")
    versions = about.get("versions")
    told: dict[str, Any] = {
        "dataset_id": name,
        "minari_version": minari.__version__,
        "description": f"{len(dataset)} transitions of {env}, written by cwm {__version__}",
        OURS: {
            "metadata": about,
            "observation_space": dataset.observation_space.to_json(),
            "action_space": dataset.action_space.to_json(),
        },
    }
    if isinstance(about.get("policy"), str):
        told["algorithm_name"] = about["policy"]
    if isinstance(versions, dict):
        told["requirements"] = [
            f"{name}=={of}" for name, of in versions.items() if _is_package(name)
        ]
    return told


def _is_package(name: str) -> bool:
    """Whether a part of an environment is a package, which can be required, and no module."""
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True


def _spec_of(dataset: Dataset, observer: Observer) -> "EnvSpec | None":
    """Return what Gymnasium makes the environment from, if it makes one with the same spaces."""
    name, env_args = dataset.metadata.get("env"), dataset.metadata.get("env_args", {})
    reason = "the dataset does not say of which it is"
    if name is not None:
        try:
            with quietly():
                return _made_alike(name, env_args, dataset)
        except Exception as error:  # noqa: BLE001  # whatever an environment may raise
            reason = " ".join(str(error).split())[:120]
    observer.note(f"Minari will not recover the environment ({reason})")
    return None


def _made_alike(name: str, env_args: Mapping[str, Any], dataset: Dataset) -> "EnvSpec":
    """Return the spec of an environment that Gymnasium makes as it was recorded."""
    import gymnasium

    if disturbed := sorted({SHIFT, HIDE, NOISE} & env_args.keys()):
        raise CwmError(f"it was made with {disturbed[0]}, which Gymnasium does not know")
    with closing(environment(name).make(**env_args)) as env:
        spec = env.spec
    if spec is None:
        raise CwmError(f"Gymnasium does not make {name}")
    spec.to_json()
    with closing(gymnasium.make(spec)) as env:
        spaces = space_of(env.observation_space), space_of(env.action_space, "actions")
    if spaces != (dataset.observation_space, dataset.action_space):
        raise CwmError(f"{name} of Gymnasium has other spaces")
    return spec


def _keep_namespace(name: str, target: Path) -> None:
    """Tell Minari of the namespace of a dataset among its own."""
    from minari.namespace import create_namespace, list_local_namespaces
    from minari.storage import get_dataset_path

    namespace = name.rpartition("/")[0]
    is_own = get_dataset_path(name).absolute() == target.absolute()
    if namespace and is_own and namespace not in list_local_namespaces():
        create_namespace(namespace)
