"""Pictures of a model's reconstructions and of the episodes that it imagines."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cwm_cli.planning.model import EpisodeHistory

if TYPE_CHECKING:
    from cwm_cli.data.dataset import Dataset
    from cwm_cli.worlds.model import WorldModel

RECONSTRUCTIONS, IMAGINED = "reconstructions.png", "imagined.gif"
"""The files in the folder of a run."""

MAX_IMAGES, MAX_EPISODES, MAX_STEPS = 8, 4, 30
"""Images in a row, imagined episodes, and steps of an episode: they fit a screen."""

SIDE, GAP, GRAY = 96, 4, 90
"""Side of an enlarged image in pixels, pixels between images, and the gray of the gaps."""


def illustrate(model: WorldModel, rows: Dataset, folder: Path, *, frame: int) -> None:
    """Write reconstructions and imagined episodes of a model to a folder.

    Args:
        model: The world model.
        rows: Rows with images.
        folder: The existing folder of the files.
        frame: Side length in pixels of the images that the model sees.
    """
    if not len(rows):
        return
    places = np.unique(np.linspace(0, len(rows) - 1, MAX_IMAGES).astype(int))
    panels = reconstructions(model, rows.columns["observations"][places], frame=frame)
    _write([np.concatenate([_row(panel) for panel in panels])], folder / RECONSTRUCTIONS)
    _write(imagined(model, rows), folder / IMAGINED)


def reconstructions(
    model: WorldModel, pictures: np.ndarray, *, frame: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return images (n, height, width, 3) three times: original, scaled down, reconstructed."""
    import torch
    from torch.nn.functional import interpolate

    size, large = (frame, frame), pictures.shape[1:3]
    small = interpolate(torch.from_numpy(pictures).movedim(-1, 1).float(), size, mode="area")
    scaled = interpolate(small, large, mode="nearest-exact").round().to(torch.uint8)
    made = model.seen({"observations": pictures})["observations"]
    return pictures, scaled.movedim(1, -1).numpy(), made


def imagined(model: WorldModel, rows: Dataset, *, seed: int = 0) -> list[np.ndarray]:
    """Return frames with recorded episodes above imagined ones with the same start and actions.

    The last image is repeated after the end of an imagined episode.
    """
    numbers = rows.columns["episodes"]
    _, firsts = np.unique(numbers, return_index=True)
    firsts = np.sort(firsts)[-MAX_EPISODES:]  # the newest, which the model was fitted to least
    lengths = [min(int((numbers == numbers[first]).sum()), MAX_STEPS) for first in firsts]
    space = rows.observation_space
    beginnings = [space.unpack("observations", rows.columns, first) for first in firsts]
    episodes = model.imagine([EpisodeHistory((each,)) for each in beginnings], rows, seed=seed)
    true, made = np.stack(beginnings), np.stack(beginnings)
    frames, over = [_pair(true, made)], np.zeros(len(firsts), bool)
    for step in range(max(lengths)):
        places = [first + min(step, long - 1) for first, long in zip(firsts, lengths, strict=True)]
        found = episodes.step({k: v[places] for k, v in rows.select("actions").items()})
        true = rows.columns["next_observations"][places]
        made = np.where(over[:, None, None, None], made, found.observations["observations"])
        over |= found.terminated
        frames.append(_pair(true, made))
    return frames


def enlarge(pictures: Sequence[np.ndarray] | np.ndarray) -> list[np.ndarray]:
    """Enlarge images with three color channels or one to about `SIDE`, with three channels."""
    times = max(SIDE // max(pictures[0].shape[:2]), 1)
    colors = [0, 1, 2] if pictures[0].shape[2] >= 3 else [0, 0, 0]
    return [each[..., colors].repeat(times, 0).repeat(times, 1) for each in pictures]


def _pair(true: np.ndarray, made: np.ndarray) -> np.ndarray:
    return np.concatenate([_row(true), _row(made)])


def _row(pictures: Sequence[np.ndarray] | np.ndarray) -> np.ndarray:
    """Enlarge images, and put them side by side."""
    large = enlarge(pictures)
    height = large[0].shape[0]
    between = np.full((height, GAP, 3), GRAY, np.uint8)
    found = np.concatenate(list(chain.from_iterable((each, between) for each in large)), axis=1)
    below = np.full((GAP, found.shape[1], 3), GRAY, np.uint8)
    return np.concatenate([found, below])


def _write(frames: Sequence[np.ndarray], file: Path) -> None:
    """Write an image or an animation atomically."""
    from PIL import Image

    partial = file.with_name(f".{file.stem}.part{file.suffix}")
    pictures = [Image.fromarray(frame) for frame in frames]
    # 6 frames per second, slow enough to compare two images
    more = {"save_all": True, "append_images": pictures[1:], "duration": 1000 // 6, "loop": 0}
    try:
        pictures[0].save(partial, **(more if len(pictures) > 1 else {}))
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)
