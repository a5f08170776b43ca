"""Which situations of some transitions also occur in others."""

import numpy as np

from cwm_cli.data.dataset import Dataset


def unseen(rows: Dataset, known: Dataset) -> np.ndarray:
    """Return the mask of rows whose observation and action do not occur together in `known`.

    Where all real numbers differ it says nothing, so it is empty where no row is known.
    """
    familiar = set(_situations(known))
    mask = np.array([one not in familiar for one in _situations(rows)], dtype=bool)
    return mask & ~mask.all()


def _situations(data: Dataset) -> list[bytes]:
    """Return a key for the observation and action of every row."""
    names = [leaf.name for leaf in data.observation_space.leaves("observations")]
    names += [leaf.name for leaf in data.action_space.leaves("actions")]
    columns = [np.ascontiguousarray(data.columns[name]) for name in names]
    return [b"\0".join(column[row].tobytes() for column in columns) for row in range(len(data))]
