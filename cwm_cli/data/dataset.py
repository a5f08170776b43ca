"""Transitions of an environment and the datasets that hold them."""

import io
import json
import os
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from threading import get_ident
from typing import Any, NamedTuple, Self

import numpy as np

from cwm_cli.data.spaces import Columns, Space
from cwm_cli.errors import CwmError

VALIDATION_SHARE = 0.3
"""Share of the train trajectories that nothing is fitted to."""

VECTORS = {
    "rewards": np.float64,
    "terminations": np.bool_,
    "truncations": np.bool_,
    "episodes": np.int64,
    "split": np.int8,
}


VALID = "valid_actions"
"""Column of the actions that are allowed after a transition, one element per action."""

DONE = "dones"
"""Column of an imported file whose one mark for an end stands at limits of time, too."""


class Transition(NamedTuple):
    """One step of an environment: what was seen, what was done, what followed.

    `split` is 0 for train and 1 for test (held out). `valid` are the actions that
    are allowed afterwards, where the environment says so.
    """

    observation: Any
    action: Any
    next_observation: Any
    reward: float
    terminated: bool
    truncated: bool = False
    episode: int = 0
    split: int = 0
    valid: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Dataset:
    """Transitions as numpy columns of equal length, one `.npz` file on disk, without pickle.

    The columns are `observations`, `actions` and `next_observations` (one per
    leaf of their space, see `packing`), `rewards` (float64), `terminations`,
    `truncations`, `episodes` (the number of the trajectory) and `split`. Where the
    environment says which actions are allowed there is `valid_actions`: for each
    action whether it may follow the transition. Where an imported file marks limits of
    time as ends, its marks are kept in `dones`.
    `metadata` says where the data came from.
    """

    columns: Columns
    observation_space: Space
    action_space: Space
    metadata: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        transitions: Sequence[Transition],
        *,
        observation_space: Space,
        action_space: Space,
        metadata: Mapping[str, Any] | None = None,
    ) -> Self:
        """Gather transitions into columns."""
        names = ("observation", "action", "next_observation")
        spaces = (observation_space, action_space, observation_space)
        columns: Columns = {}
        for name, space in zip(names, spaces, strict=True):
            columns |= space.pack(f"{name}s", [getattr(row, name) for row in transitions])
        fields = ("reward", "terminated", "truncated", "episode", "split")
        for (column, dtype), name in zip(VECTORS.items(), fields, strict=True):
            columns[column] = np.array([getattr(row, name) for row in transitions], dtype=dtype)
        allowed = [row.valid for row in transitions if row.valid is not None]
        if allowed and len(allowed) == len(transitions):
            columns[VALID] = np.array([action_space.mask(actions) for actions in allowed])
        return cls(columns, observation_space, action_space, dict(metadata or {}))

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a file written by `save`; anything else is refused in one line."""
        try:
            with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as archive:
                columns = {name: archive[name] for name in archive.files}
            header = json.loads(str(columns.pop("metadata")))
            observation = Space.from_json(header.pop("observation_space"))
            action = Space.from_json(header.pop("action_space"))
            return cls(columns, observation, action, header)._checked()
        except FileNotFoundError as error:
            raise CwmError(f"there is no dataset {path}: record one with `cwm collect`") from error
        except (
            OSError,
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
            EOFError,
            zipfile.BadZipFile,
        ) as error:
            raise CwmError(
                f"{path} is no dataset of cwm ({_one_line(error)}): record one with `cwm collect`"
            ) from error

    def save(self, path: Path) -> None:
        """Write the file at once or not at all; equal data gives equal bytes."""
        spaces = {
            "observation_space": self.observation_space.to_json(),
            "action_space": self.action_space.to_json(),
        }
        header = json.dumps(spaces | self.metadata, sort_keys=True, allow_nan=False)
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.{os.getpid()}-{get_ident()}.part")
        try:
            with zipfile.ZipFile(partial, "w") as archive:
                for name, column in (self.columns | {"metadata": np.array(header)}).items():
                    member = zipfile.ZipInfo(f"{name}.npy")  # dated 1980, whatever the day
                    member.compress_type = zipfile.ZIP_DEFLATED
                    with archive.open(member, "w", force_zip64=True) as file:
                        np.lib.format.write_array(file, column, allow_pickle=False)
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)

    @property
    def digest(self) -> str:
        """Hash of the transitions: what a search can learn from is all in it."""
        digest = sha256()
        for name in sorted(self.columns):
            column = np.ascontiguousarray(self.columns[name])
            digest.update(f"{name} {column.dtype.str} {column.shape};".encode())
            digest.update(column.tobytes())
        return digest.hexdigest()

    @property
    def train(self) -> Self:
        """The rows a search may see."""
        return self[self.columns["split"] == 0]

    @property
    def test(self) -> Self:
        """The held-out rows, which no search ever sees."""
        return self[self.columns["split"] == 1]

    @property
    def has_valid_actions(self) -> bool:
        """Whether programs have to say which actions are allowed after a step."""
        return VALID in self.columns

    @property
    def fitted(self) -> np.ndarray:
        """Mask of the rows that may be fitted to and shown in prompts.

        70 % of the trajectories, spread evenly, the first among them always.
        """
        numbers, rank = np.unique(self.columns["episodes"], return_inverse=True)
        position = np.arange(1, len(numbers) + 1) * VALIDATION_SHARE
        held_back = np.floor(position + 1e-9) > np.floor(position - VALIDATION_SHARE + 1e-9)
        mask: np.ndarray = ~held_back[rank.reshape(-1)]
        return mask

    def select(self, *names: str) -> Columns:
        """Return the columns of the given fields, such as `observations` and `actions`."""
        return {key: column for key, column in self.columns.items() if key.split(".")[0] in names}

    def row(self, index: int) -> Transition:
        """Return one transition."""
        row = Transition(
            self.observation_space.unpack("observations", self.columns, index),
            self.action_space.unpack("actions", self.columns, index),
            self.observation_space.unpack("next_observations", self.columns, index),
            *(self.columns[name][index].item() for name in VECTORS),
        )
        if not self.has_valid_actions:
            return row
        return row._replace(valid=self.action_space.masked(self.columns[VALID][index]))

    def __getitem__(self, rows: np.ndarray) -> Self:
        """Select rows by mask or by index."""
        columns = {name: column[rows] for name, column in self.columns.items()}
        return type(self)(columns, self.observation_space, self.action_space, self.metadata)

    def extended(self, rows: Self) -> Self:
        """Add rows behind these; they have to have the same columns."""
        columns = {
            name: np.concatenate([column, rows.columns[name]])
            for name, column in self.columns.items()
        }
        return type(self)(columns, self.observation_space, self.action_space, self.metadata)

    def __len__(self) -> int:
        return len(self.columns["rewards"])

    def __iter__(self) -> Iterator[Transition]:
        return (self.row(index) for index in range(len(self)))

    def _checked(self) -> Self:
        """Refuse columns that are missing or of unequal length; split files that are not split."""
        if "split" not in self.columns:
            _, rank = np.unique(self.columns["episodes"], return_inverse=True)
            self.columns["split"] = (rank.reshape(-1) % 5 == 4).astype(np.int8)
        leaves = [
            leaf.name
            for name, space in (
                ("observations", self.observation_space),
                ("actions", self.action_space),
                ("next_observations", self.observation_space),
            )
            for leaf in space.leaves(name)
        ]
        optional = [name for name in (VALID, DONE) if name in self.columns]
        for name in (*leaves, *VECTORS, *optional):
            if len(self.columns[name]) != len(self.columns["rewards"]):
                raise ValueError(f"the column {name} has another length than rewards")
        return self


def _one_line(error: Exception) -> str:
    """Return the first line of an error's text."""
    return f"{type(error).__name__}: {error}".splitlines()[0][:120]
