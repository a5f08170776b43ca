"""Pictures on a terminal: two pixels a character in colour, or letters of different weight."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from rich.color import Color
from rich.style import Style
from rich.text import Text

HALF = "\N{UPPER HALF BLOCK}"
"""Its colour is that of the pixel above, its background that of the one below."""

WEIGHTS = " .:-=+*#%@"
"""Letters from light to heavy, where there are no colours; what a picture has most of is light."""

LUMA = np.array([0.299, 0.587, 0.114])
"""How bright red, green and blue are to the eye (ITU-R BT.601)."""


def picture_lines(
    picture: np.ndarray, width: int, height: int, *, in_colour: bool = True
) -> list[Text]:
    """Draw a picture (height, width, 3) in at most so many columns and lines of a terminal."""
    pixels = resized(picture, max(width, 1), 2 * max(height, 1))
    if len(pixels) % 2:
        pixels = np.concatenate([pixels, pixels[-1:]])
    if not in_colour:
        brightness = (pixels[::2].astype(float) + pixels[1::2]) / 2 @ LUMA
        if np.median(brightness) > 127:
            brightness = 255 - brightness
        places = (brightness / 256 * len(WEIGHTS)).astype(int)
        return [Text("".join(WEIGHTS[place] for place in row)) for row in places.tolist()]
    lines = []
    for above, below in zip(pixels[::2].tolist(), pixels[1::2].tolist(), strict=True):
        line, run, last = Text(no_wrap=True), 0, None
        for pair in zip(map(tuple, above), map(tuple, below), strict=True):
            if last is not None and pair != last:
                line.append(HALF * run, _style(*last))
                run = 0
            run, last = run + 1, pair
        if last is not None:
            line.append(HALF * run, _style(*last))
        lines.append(line)
    return lines


@lru_cache(maxsize=4096)
def _style(above: tuple[int, int, int], below: tuple[int, int, int]) -> Style:
    return Style(color=Color.from_rgb(*above), bgcolor=Color.from_rgb(*below))


def resized(picture: np.ndarray, width: int, height: int) -> np.ndarray:
    """Fit a picture into a size, in its proportions: by whole factors up, by areas down."""
    rows, columns = picture.shape[:2]
    factor = min(width / columns, height / rows)
    if factor >= 1:
        return picture.repeat(int(factor), axis=0).repeat(int(factor), axis=1)
    for axis, size in enumerate((rows, columns)):
        wanted = max(1, int(size * factor))
        starts = np.arange(wanted) * size // wanted
        counts = np.diff([*starts, size]).reshape([-1, 1, 1] if axis == 0 else [1, -1, 1])
        picture = np.add.reduceat(picture.astype(float), starts, axis=axis) / counts
    return picture.round().astype(np.uint8)


def gauge(value: float, low: float, high: float, width: int) -> str:
    """Draw where a number is between its bounds; nothing where these are endless."""
    if not (np.isfinite([value, low, high]).all() and high > low) or width < 3:
        return ""
    place = round((min(max(value, low), high) - low) / (high - low) * (width - 1))
    return "·" * place + "█" + "·" * (width - 1 - place)
