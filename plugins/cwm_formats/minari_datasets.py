"""Minari datasets: folders of episodes of n steps with n + 1 observations.

Facts that have no place in Minari's format are stored in its metadata: the metadata of the dataset
under the key `cwm`, and the number and the split of each episode.
"""

import json
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from difflib import get_close_matches
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from cwm_cli._version import __version__
from cwm_cli.commands.data import (
    Exporter,
    Importer,
    Origin,
    TransitionShape,
    check_room,
    written_whole,
)
from cwm_cli.data.dataset import DONE, VALID, Dataset
from cwm_cli.data.reading import parse_json, read_json
from cwm_cli.data.spaces import Columns, Space, raise_for_values
from cwm_cli.envs.spec import EnvironmentSpec, gym_space_of, space_of
from cwm_cli.envs.variants import HIDE, NOISE, SHIFT
from cwm_cli.errors import CwmError, install_command
from cwm_cli.registry import environment
from cwm_cli.runs.observer import Observer
from cwm_formats.columns import (
    Ends,
    RecordedRows,
    fitted,
    flattened,
    note_out_of_bounds,
    split_of,
    too_many,
)

if TYPE_CHECKING:
    from gymnasium.envs.registration import EnvSpec
    from minari.data_collector.episode_buffer import EpisodeBuffer

PREFIX = "minari:"
"""The prefix of names of datasets in Minari's own folder."""

OURS = "cwm"
"""The key in Minari's metadata for the metadata of cwm."""

MASK = "action_mask"
"""The info with a mask of valid actions, as Gymnasium's Taxi names it."""

COLUMN_BYTES, TEXT_BYTES, FILE_BYTES = 4_096, 64, 65_536
"""Upper bounds of the bytes that HDF5 needs besides values, for each column of an episode, each
text and each file. They are about twice the measured sizes."""

SPLITS = {0: "train", 1: "test"}


def library() -> Any:
    """Import Minari, which needs an extra."""
    try:
        with warnings.catch_warnings(action="ignore"):
            import minari
    except ImportError as error:
        raise CwmError(
            f"Minari's datasets need minari: {install_command('cwm-cli[minari]')}"
        ) from error
    return minari


@contextmanager
def quietly() -> Iterator[None]:
    """Hide the warnings of Minari and Gymnasium for their own users."""
    with warnings.catch_warnings(action="ignore"):
        yield


def folder_of(name: str) -> Path:
    """Return the folder of a dataset: `minari:ID` is in Minari's folder, other names are paths."""
    if not name.startswith(PREFIX):
        return Path(name)
    library()
    from minari.storage import get_dataset_path

    folder: Path = get_dataset_path(_checked(name.removeprefix(PREFIX)))
    return folder


def _checked(name: str) -> str:
    """Raise for a name that Minari could not load."""
    from minari.dataset.minari_dataset import parse_dataset_id

    try:
        parse_dataset_id(name)
    except (ValueError, TypeError) as error:
        hint = "write NAME-v0 or NAMESPACE/NAME-v0, of letters, digits, - and _"
        raise CwmError(f"{name!r} is not a valid name of a Minari dataset: {hint}") from error
    return name


def _id_of(folder: Path) -> str:
    """Return Minari's name for the dataset in a folder: its path below Minari's own folder."""
    from minari.storage import get_dataset_path

    folder, root = folder.absolute(), Path(get_dataset_path()).absolute()
    return _checked(folder.relative_to(root).as_posix() if root in folder.parents else folder.name)


class Trajectory(NamedTuple):
    """Consecutive rows, from `start` to before `stop`."""

    start: int
    stop: int


def trajectories(dataset: Dataset) -> list[Trajectory]:
    """Cut rows at each row that does not continue the row before.

    Rows that were shuffled, or selected from an episode, become separate trajectories.
    """
    columns, rows = dataset.columns, len(dataset)
    continues = ~(columns["terminations"] | columns["truncations"])[:-1]
    for name in ("episodes", "split"):
        continues &= columns[name][1:] == columns[name][:-1]
    for name, column in dataset.select("observations").items():
        after, before = columns[f"next_{name}"][:-1], column[1:]
        same = (after == before) | ((after != after) & (before != before))  # NaN equals NaN
        continues &= same.all(axis=tuple(range(1, same.ndim)))
    starts = [0, *(np.flatnonzero(~continues) + 1).tolist()]
    return [Trajectory(*each) for each in zip(starts, [*starts[1:], rows], strict=True)]


@dataclass
class MinariExporter(Exporter):
    """Writes a Minari dataset for `minari.load_dataset`; pictures are stored without loss.

    `--out minari:ID` writes to Minari's own folder, any other name is a folder.
    """

    format: Literal["hdf5", "arrow", "parquet"] = "hdf5"
    """Format of the files in the dataset; arrow and parquet need `cwm-cli[parquet]`."""

    def locate(self, out: str) -> Path:
        """Return the folder. A name without a version gets one, because Minari requires it."""
        library()
        folder = folder_of(out if re.search(r"-v\d+$", out) else f"{out.rstrip('/')}-v0")
        _id_of(folder)
        return folder

    def owns(self, target: Path) -> bool:
        """Return whether a folder contains a Minari dataset and nothing else."""
        return {path.name for path in target.glob("*")} == {"data"} and (
            target / "data" / "metadata.json"
        ).is_file()

    def write(self, dataset: Dataset, target: Path, observer: Observer) -> None:
        """Write the episodes, and note their number if rows had to be cut."""
        library()
        name, parts = _id_of(target), trajectories(dataset)
        whole = len(np.unique(dataset.columns["episodes"]))
        if len(parts) > whole:
            observer.note(
                f"some rows do not continue the row before: {whole} episodes "
                f"become {len(parts)} of Minari's"
            )
        spec = _spec_of(dataset, observer)
        with written_whole(target) as partial, quietly(), _written(name):
            if self.format == "hdf5":
                check_room(partial.parent, largest_size(dataset, len(parts)))
            _write(dataset, parts, partial.absolute() / "data", name, spec, self.format)
        _keep_namespace(name, target)


def largest_size(dataset: Dataset, episodes: int) -> int:
    """Return an upper bound of the bytes that HDF5 needs for a dataset."""
    columns = dataset.columns.values()
    texts = sum(column.size for column in columns if column.dtype.kind == "U")
    values = sum(column.nbytes for column in columns)
    return values + TEXT_BYTES * texts + COLUMN_BYTES * episodes * len(columns) + FILE_BYTES


@contextmanager
def _written(name: str) -> Iterator[None]:
    """Convert errors of Minari's storage to one-line errors."""
    try:
        yield
    except (OSError, CwmError):
        raise
    except ImportError as error:
        raise CwmError(
            f"this format of Minari needs pyarrow: {install_command('cwm-cli[parquet]')}"
        ) from error
    except Exception as error:  # h5py and pyarrow raise many types
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise CwmError(f"Minari cannot write {name} ({reason}): try another -o format=") from error


def _write(
    dataset: Dataset,
    parts: list[Trajectory],
    folder: Path,
    name: str,
    spec: "EnvSpec | None",
    kind: str,
) -> None:
    """Write the folder `data` of a Minari dataset."""
    from minari.dataset.minari_storage import MinariStorage

    # of all texts and of plain English, for text spaces
    texts = [column for column in dataset.columns.values() if column.dtype.kind == "U"]
    plain = {chr(code) for code in range(32, 127)}
    characters = "".join(sorted(plain.union(*("".join(each.ravel().tolist()) for each in texts))))
    folder.mkdir(parents=True)
    storage = MinariStorage.new(
        folder,
        observation_space=gym_space_of(_as_stored(dataset, "observations"), characters),
        action_space=gym_space_of(_as_stored(dataset, "actions"), characters),
        env_spec=spec,
        data_format=kind,
        jpeg_encoding=False,  # JPEG would change pixels
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
    """Yield episodes in Minari's form."""
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
    """Return infos with a first value for the reset, at which all actions count as valid."""
    infos: dict[str, Any] = {}
    if VALID in columns:
        mask = columns[VALID][start:stop].astype(np.int8)
        infos[MASK] = np.concatenate([np.ones_like(mask[:1]), mask])
    if DONE in columns:
        infos[DONE] = [False, *columns[DONE][start:stop].tolist()]
    return infos


def _nested(space: Space, name: str, columns: Mapping[str, np.ndarray]) -> Any:
    """Combine the columns of leaves into Minari's nested form; text is a list."""
    if space.kind == "tuple":
        return tuple(_nested(child, f"{name}.{part}", columns) for part, child in space.parts())
    if space.kind == "dict":
        parts = zip(space.keys, space.parts(), strict=True)
        return {key: _nested(child, f"{name}.{part}", columns) for key, (part, child) in parts}
    return columns[name].tolist() if space.kind == "text" else columns[name]


def _as_stored(dataset: Dataset, name: str) -> Space:
    """Return a space with the dtypes of the columns, which may be wider."""

    def stored(space: Space, name: str) -> Space:
        parts = [stored(child, f"{name}.{part}") for part, child in space.parts()]
        if parts:
            return replace(space, children=tuple(parts))
        wider = space.kind == "box" and str(dataset.columns[name].dtype) != space.dtype
        return replace(space, dtype=str(dataset.columns[name].dtype)) if wider else space

    return stored(
        dataset.observation_space if name == "observations" else dataset.action_space, name
    )


def _metadata(dataset: Dataset, name: str) -> dict[str, Any]:
    """Return Minari's metadata of a dataset.

    Author and code link are left out, because the dataset does not contain them.
    """
    import minari

    about = dataset.metadata
    env = about.get("env", "an unnamed environment")
    versions = about.get("versions")
    metadata: dict[str, Any] = {
        "dataset_id": name,
        "minari_version": minari.__version__,
        "description": f"{len(dataset)} transitions of {env}, written by cwm {__version__}",
        OURS: {"metadata": about},
    }
    if isinstance(about.get("policy"), str):
        metadata["algorithm_name"] = about["policy"]
    if isinstance(versions, dict):
        metadata["requirements"] = [
            f"{name}=={of}" for name, of in versions.items() if _is_package(name)
        ]
    return metadata


def _is_package(name: str) -> bool:
    """Return whether the name of a version is an installed package that can be required."""
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True


def _spec_of(dataset: Dataset, observer: Observer) -> "EnvSpec | None":
    """Return Gymnasium's spec of the environment, None if it makes other spaces or fails."""
    name, env_args = dataset.metadata.get("env"), dataset.metadata.get("env_args", {})
    reason = "the dataset names none"
    if name is not None:
        try:
            with quietly():
                return _checked_spec(name, env_args, dataset)
        except CwmError as error:
            reason = str(error)
        except Exception:  # noqa: BLE001  # an environment may raise any type
            reason = f"Gymnasium cannot make {name}"
    observer.note(f"Minari cannot restore the environment from this dataset ({reason})")
    return None


def _checked_spec(name: str, env_args: Mapping[str, Any], dataset: Dataset) -> "EnvSpec":
    """Return the spec of an environment after a check that Gymnasium restores its spaces."""
    import gymnasium

    if disturbed := sorted({SHIFT, HIDE, NOISE} & env_args.keys()):
        raise CwmError(f"it was recorded with {disturbed[0]}, which Gymnasium does not support")
    with closing(environment(name).make(**env_args)) as env:
        spec = env.spec
    if spec is None:
        raise CwmError(f"Gymnasium cannot make {name}")
    spec.to_json()
    with closing(gymnasium.make(spec)) as env:
        spaces = space_of(env.observation_space), space_of(env.action_space, "actions")
    if spaces != (dataset.observation_space, dataset.action_space):
        raise CwmError(f"{name} of Gymnasium has different spaces")
    return spec


def _keep_namespace(name: str, target: Path) -> None:
    """Register the namespace of a dataset in Minari's own folder."""
    from minari.namespace import create_namespace, list_local_namespaces
    from minari.storage import get_dataset_path

    namespace = name.rpartition("/")[0]
    is_own = get_dataset_path(name).absolute() == target.absolute()
    if namespace and is_own and namespace not in list_local_namespaces():
        create_namespace(namespace)


@dataclass
class MinariImporter(Importer):
    """Reads a Minari dataset: `minari:ID` in Minari's own folder, or a folder."""

    def reads(self, file: Path) -> bool:
        """Return whether the path is a Minari folder or a name with the prefix."""
        inside = file.name == "data" and _is_dataset(file.parent)
        return str(file).startswith(PREFIX) or _is_dataset(file) or inside

    def title(self, file: Path) -> str:
        """Return the last part of the name."""
        name = str(file).removeprefix(PREFIX).rstrip("/").removesuffix("/data")
        return name.rpartition("/")[2]

    def origin(self, file: Path) -> Origin | None:
        """Return the environment in the metadata, of cwm or of Gymnasium."""
        return _origin(_metadata_of(_data_folder(file)))

    def read(
        self, file: Path, spec: EnvironmentSpec, env_args: Mapping[str, Any], observer: Observer
    ) -> Dataset:
        """Read all episodes, and note values out of bounds."""
        library()
        folder = _data_folder(file)
        metadata = _metadata_of(folder)
        _check_spaces(metadata, file)
        shape = TransitionShape.of(spec, env_args)
        steps = metadata.get("total_steps")
        if not isinstance(steps, int) or too_many(steps, shape):
            raise CwmError(f"{file} has too many steps ({steps}): import a part of it")
        episodes = _read_episodes(folder, file)
        if not episodes:
            raise CwmError(f"{file} has no episodes: there is nothing to import")
        try:
            recorded = _combine_episodes(
                episodes, shape, spec.id, observer, is_ours=OURS in metadata
            )
        except ValueError as error:
            reason = " ".join(str(error).split())[:200]
            hint = "correct it, or give the environment of the recording (--env, --env-arg)"
            raise CwmError(f"{file} does not fit {spec.id} ({reason}): {hint}") from error
        origin = _origin(metadata)
        stored: dict[str, Any] = {}
        if origin is not None and origin.env == spec.id:
            stored = _cwm_metadata(metadata)
        about = {"env": spec.id, "env_args": dict(env_args), "source": str(file)}
        dataset = recorded.dataset(shape, {**stored, **about})
        note_out_of_bounds(dataset, observer)
        return dataset


def _is_dataset(folder: Path) -> bool:
    return (folder / "data" / "metadata.json").is_file()


def _data_folder(file: Path) -> Path:
    """Return the folder with the data of a dataset, which the user may have named itself."""
    folder = folder_of(str(file))
    for place in (folder / "data", folder):
        if (place / "metadata.json").is_file():
            return place
    name = str(file)
    if not name.startswith(PREFIX):
        raise CwmError(
            f"{file} is not a Minari dataset: give its folder, which contains a folder data"
        )
    name = name.removeprefix(PREFIX)
    with quietly():  # other datasets there may be damaged
        kept = list(library().list_local_datasets())
    close = get_close_matches(name, kept, n=1)
    hint = f"did you mean {PREFIX}{close[0]}?" if close else f"`minari download {name}` fetches it"
    raise CwmError(f"there is no Minari dataset {name}: {hint}")


def _metadata_of(folder: Path) -> dict[str, Any]:
    """Read Minari's metadata of a dataset."""
    metadata = read_json(folder / "metadata.json")
    if not isinstance(metadata, dict):
        raise CwmError(f"{folder / 'metadata.json'} is damaged: restore it, or import another")
    return metadata


def _cwm_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata of an exported dataset of cwm, if they name an environment."""
    ours = metadata.get(OURS)
    about = ours.get("metadata") if isinstance(ours, dict) else None
    if not isinstance(about, dict) or "env" not in about:
        return {}
    kinds = {"env": str, "env_args": dict, "note": str}
    if not all(isinstance(about.get(name, kind()), kind) for name, kind in kinds.items()):
        return {}
    try:
        json.dumps(about, allow_nan=False)
    except ValueError as error:
        raise CwmError(
            f"metadata.json of {metadata.get('dataset_id')} has NaN or Infinity in its part "
            f"{OURS!r}: replace it by a number, or export the dataset again"
        ) from error
    return about


def _origin(metadata: Mapping[str, Any]) -> Origin | None:
    """Return the environment in the metadata."""
    if about := _cwm_metadata(metadata):
        return Origin(about["env"], about.get("env_args", {}))
    try:
        spec = parse_json(metadata.get("env_spec", ""), finite=True)
        name, kwargs = spec["id"], spec.get("kwargs") or {}
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    if not isinstance(name, str) or not isinstance(kwargs, dict):
        return None
    # arguments that do not affect the dynamics of an environment
    general = ("render_mode", "disable_env_checker", "max_episode_steps")
    return Origin(name, {key: value for key, value in kwargs.items() if key not in general})


def _check_spaces(metadata: Mapping[str, Any], file: Path) -> None:
    """Raise for unsupported spaces before Minari reads values.

    If the metadata contain no spaces, Minari would create the named environment, which could run
    any code.
    """
    for what in ("observation", "action"):
        text = metadata.get(f"{what}_space")
        if text is None:
            raise CwmError(
                f"{file} lacks the space of its {what}s: write it again with a current Minari"
            )
        try:
            space = parse_json(text) if isinstance(text, str) else text
        except ValueError:
            space = None
        for kind in _kinds(space):
            if kind not in SUPPORTED_SPACES:
                supported = ", ".join(SUPPORTED_SPACES)
                raise CwmError(
                    f"{what}s of a space {kind} are not supported ({file}): choose a dataset "
                    f"with {supported}"
                )


SUPPORTED_SPACES = ("Tuple", "Dict", "Text", "Discrete", "MultiDiscrete", "MultiBinary", "Box")


def _kinds(space: Any) -> Iterator[str]:
    """Yield the kinds of a space and of its parts, in Minari's notation."""
    if not isinstance(space, dict):
        yield "unknown"
        return
    yield str(space.get("type"))[:40]
    parts = space.get("subspaces", ())
    parts = list(parts.values()) if isinstance(parts, dict) else parts
    for part in parts if isinstance(parts, list | tuple) else [None]:
        yield from _kinds(part)


class ReadEpisode(NamedTuple):
    """An episode as Minari reads it, with its metadata."""

    data: Any
    about: Mapping[str, Any]


def _read_episodes(folder: Path, file: Path) -> list[ReadEpisode]:
    """Read all episodes with Minari. Any failure is a one-line error."""
    minari = library()
    try:
        with quietly():
            found = minari.MinariDataset(folder)
            episodes = list(found.iterate_episodes())
            about = list(found.storage.get_episode_metadata(found.episode_indices))
            if len(episodes) != found.total_episodes or len(about) != len(episodes):
                raise ValueError(f"it has {len(episodes)} of {found.total_episodes} episodes")
            if not all(isinstance(each, Mapping) for each in about):
                raise ValueError("the metadata of an episode are not an object")
    except ImportError as error:
        raise CwmError(
            f"the format of {file} needs: {install_command('cwm-cli[minari,parquet]')}"
        ) from error
    except Exception as error:  # h5py, pyarrow and Minari raise many types for damaged files
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:160]
        raise CwmError(
            f"Minari cannot read {file} ({reason}): restore it, or import another"
        ) from error
    return [ReadEpisode(*each) for each in zip(episodes, about, strict=True)]


def _combine_episodes(
    episodes: list[ReadEpisode],
    shape: TransitionShape,
    env: str,
    observer: Observer,
    *,
    is_ours: bool,
) -> RecordedRows:
    """Combine episodes; raise a `ValueError` if they do not fit."""
    lengths = [np.size(episode.data.rewards) for episode in episodes]
    parts = [_columns_of(episode.data, shape) for episode in episodes]
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def joined(name: str) -> np.ndarray:
        found = [np.asarray(getattr(episode.data, name)).reshape(-1) for episode in episodes]
        return np.concatenate(found)

    rewards = fitted(Space("box", "float64"), joined("rewards"))
    ends = Ends(
        _flags("terminations", joined("terminations")),
        _flags("truncations", joined("truncations")),
        _infos_of(episodes, DONE, lengths),
    )
    if {len(column) for column in (*ends[:2], rewards)} != {sum(lengths)}:
        raise ValueError("rewards, terminations and truncations have different lengths")
    try:
        about = _numbered([episode.about for episode in episodes])
    except ValueError:
        if is_ours:
            raise
        about = None  # other authors use these keys for other things
    numbers = about[0] if about else np.arange(len(episodes))
    rows = np.repeat(numbers, lengths)
    split = np.repeat(about[1], lengths) if about else split_of(rows, observer)
    valid = None
    if shape.valid:
        valid = _infos_of(episodes, MASK, lengths)
        if valid is None or valid.shape[1:] != (shape.actions.count,):
            raise ValueError(f"infos[{MASK!r}] with the valid actions of {env} is missing")
    return RecordedRows(columns, rewards, ends, rows, split, valid)


def _flags(name: str, values: np.ndarray) -> np.ndarray:
    """Return flags, which may be booleans or the numbers 0 and 1."""
    marks: np.ndarray = flattened(Space("discrete", low=(0,), high=(1,)), name, values)[name] != 0
    return marks


def _columns_of(data: Any, shape: TransitionShape) -> Columns:
    """Return the columns of an episode, which has one more observation than steps."""
    steps = np.size(data.rewards)
    seen = flattened(shape.observations, "observations", data.observations)
    columns = flattened(shape.actions, "actions", data.actions)
    for name, column in seen.items():
        if len(column) != steps + 1:
            raise ValueError(f"an episode of {steps} steps has {len(column)} observations")
        columns |= {name: column[:-1], f"next_{name}": column[1:]}
    if wrong := [name for name, column in columns.items() if len(column) != steps]:
        raise ValueError(f"an episode of {steps} steps has a different number of {wrong[0]}")
    return columns


def _infos_of(episodes: list[ReadEpisode], name: str, lengths: list[int]) -> np.ndarray | None:
    """Return an info after each step, if all episodes have it. The first one is of the reset."""
    found = []
    for episode, length in zip(episodes, lengths, strict=True):
        infos = episode.data.infos
        values = np.asarray(infos[name]) if isinstance(infos, dict) and name in infos else None
        if values is None or values.shape[:1] != (length + 1,) or values.dtype.kind not in "biu":
            return None
        raise_for_values(
            (values != 0) & (values != 1), values, f"infos[{name!r}]: {{}} is neither 0 nor 1"
        )
        found.append(values[1:].astype(np.bool_))
    return np.concatenate(found)


def _numbered(about: list[Mapping[str, Any]]) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the numbers and splits of episodes, None if no episode has them."""
    if not any(each.keys() & {"episode", "split"} for each in about):
        return None
    words = {word: number for number, word in SPLITS.items()}
    numbers, splits = np.empty(len(about), np.int64), np.empty(len(about), np.int8)
    for place, each in enumerate(about):
        number, split = _plain(each.get("episode")), _plain(each.get("split"))
        if type(number) is not int or not 0 <= number < 2**63:
            raise ValueError(
                f"metadata of episode {place}: {number!r:.40} is not an episode number"
            )
        if split not in words:
            raise ValueError(
                f"metadata of episode {place}: {split!r:.40} is neither train nor test"
            )
        numbers[place], splits[place] = number, words[split]
    return numbers, splits


def _plain(value: Any) -> Any:
    """Convert a numpy scalar to Python; values that are not scalars become text."""
    value = value.item() if isinstance(value, np.generic) else value
    return value if isinstance(value, int | float | str) else str(value)
