"""Draw pictures on a terminal: two coloured pixels per character, or letters without colours."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from rich.color import Color
from rich.style import Style
from rich.text import Text

HALF = "\N{UPPER HALF BLOCK}"
"""Its foreground is the colour of the upper pixel, its background of the lower pixel."""


def picture_lines(
    picture: np.ndarray, width: int, height: int, *, in_colour: bool = True
) -> list[Text]:
    """Draw a picture as lines of a terminal.

    Args:
        picture: Bytes (height, width, 3).
        width: Maximum number of columns.
        height: Maximum number of lines.
        in_colour: Draw two coloured pixels per character; otherwise letters.
    """
    pixels = resize(picture, max(width, 1), 2 * max(height, 1))
    if len(pixels) % 2:
        pixels = np.concatenate([pixels, pixels[-1:]])
    if not in_colour:
        # weights of red, green and blue in the perceived brightness (ITU-R BT.601)
        luma = np.array([0.299, 0.587, 0.114])
        brightness = (pixels[::2].astype(float) + pixels[1::2]) / 2 @ luma
        if np.median(brightness) > 127:  # draw the most common brightness with light letters
            brightness = 255 - brightness
        weights = " .:-=+*#%@"  # letters from light to heavy for terminals without colours
        places = (brightness / 256 * len(weights)).astype(int)
        return [Text("".join(weights[place] for place in row)) for row in places.tolist()]
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


def resize(picture: np.ndarray, width: int, height: int) -> np.ndarray:
    """Fit a picture into a size and keep its proportions.

    Small pictures are enlarged by whole factors. Large pictures are reduced by averaging areas.
    """
    rows, columns = picture.shape[:2]
    factor = min(width / columns, height / rows)
    if factor >= 1:
        return picture.repeat(int(factor), axis=0).repeat(int(factor), axis=1)
    for axis, size in enumerate((rows, columns)):
        new_size = max(1, int(size * factor))
        starts = np.arange(new_size) * size // new_size
        counts = np.diff([*starts, size]).reshape([-1, 1, 1] if axis == 0 else [1, -1, 1])
        picture = np.add.reduceat(picture.astype(float), starts, axis=axis) / counts
    return picture.round().astype(np.uint8)


def gauge(value: float, low: float, high: float, width: int) -> str:
    """Draw the position of a number between its bounds; empty if a bound is infinite."""
    if not (np.isfinite([value, low, high]).all() and high > low) or width < 3:
        return ""
    place = round((min(max(value, low), high) - low) / (high - low) * (width - 1))
    return "·" * place + "█" + "·" * (width - 1 - place)
