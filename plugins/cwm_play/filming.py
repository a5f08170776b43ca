"""Films of games: a frame for each moment, with the panels beside each other and what is said."""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np

from cwm_cli.envs.films import check_film, write_film
from cwm_play.scenes import ComponentRow, GameScene, Panel, number_words

SIDE = 240
"""Pixels of the longer side of a panel: two of them are as wide as a page of documentation."""

TEXT = 13
"""Height of letters in pixels."""

LINE, GAP = TEXT + 4, 8
"""Height of a line, and the space around panels."""

PAPER, INK, FAINT, RED = (255, 255, 255), (30, 30, 36), (120, 120, 130), (200, 40, 40)

MOST_VALUES, LONGEST_CELL = 12, 11
"""Components that a frame tells where there are no pictures, and characters of their values."""

LAST = 10
"""Times that the last frame is shown, so that one sees how it ended."""


class FilmRecorder:
    """Keeps frames while it is on, and writes them to a file; needs Pillow once it is on."""

    def __init__(self, file: Path, fps: float) -> None:
        self.file, self.fps, self.is_on = file, fps, False
        self.moment: tuple[int, ...] | None = None
        self._frames: list[tuple[tuple[int, int, int], bytes]] = []

    def switch(self) -> None:
        """Begin to keep frames, or stop; `CwmError` where no film can be written."""
        check_film(self.file, "--record")
        self.is_on = not self.is_on

    def see(self, scene: GameScene) -> None:
        """Keep a frame of a scene, unless nothing has happened since the last one."""
        if not self.is_on or scene.moment == self.moment:
            return
        self.moment = scene.moment
        picture = frame(scene)
        self._frames.append((picture.shape, zlib.compress(picture.tobytes(), 1)))

    def write(self) -> Path | None:
        """Write the film, nothing where no frame was kept."""
        if not self._frames:
            return None
        height, width = (max(shape[axis] for shape, _ in self._frames) for axis in (0, 1))
        kept = [*self._frames, *[self._frames[-1]] * (LAST - 1)]
        pictures = (_padded(shape, data, height, width) for shape, data in kept)
        write_film(self.file, pictures, len(kept), self.fps)
        return self.file


def _padded(shape: tuple[int, int, int], data: bytes, height: int, width: int) -> np.ndarray:
    """Return a frame in the size of the largest one."""
    picture = np.full((height, width, 3), PAPER, np.uint8)
    found = np.frombuffer(zlib.decompress(data), np.uint8).reshape(shape)
    picture[: shape[0], : shape[1]] = found
    return picture


def frame(scene: GameScene) -> np.ndarray:
    """Draw a scene: (height, width, 3) bytes."""
    from PIL import Image, ImageDraw, ImageFont

    pictures = [_sized(panel) for panel in scene.panels]
    values = [] if any(p is not None for p in pictures) else _value_lines(scene)
    texts = [panel.look.text.splitlines() for panel in scene.panels]
    tallest = max([0, *(p.shape[0] for p in pictures if p is not None)])
    tallest = max([tallest, *(len(lines) * LINE for lines in texts)])
    widths = [SIDE if p is None else max(p.shape[1], SIDE) for p in pictures]
    width = max(sum(widths) + GAP * (len(widths) + 1), 2 * SIDE)
    font = ImageFont.load_default(TEXT)
    height = GAP + LINE * (4 + len(values)) + tallest + 2 * GAP
    image = Image.new("RGB", (width, height), PAPER)
    draw = ImageDraw.Draw(image)

    def line(at: tuple[int, int], text: str, color: tuple[int, int, int]) -> None:
        draw.text(at, _shortened(draw, font, text, width - at[0]), fill=color, font=font)

    line((GAP, GAP), " · ".join(scene.facts), INK)
    left, top = GAP, GAP + 2 * LINE
    for panel, picture, lines, wide in zip(scene.panels, pictures, texts, widths, strict=True):
        words = f"{panel.title} · {panel.note}" if panel.note else panel.title
        color = RED if panel.is_marked else INK
        draw.text((left, top - LINE), _shortened(draw, font, words, wide), fill=color, font=font)
        if picture is not None:
            image.paste(Image.fromarray(picture), (left, top))
            if panel.is_marked:
                box = (left, top, left + picture.shape[1] - 1, top + picture.shape[0] - 1)
                draw.rectangle(box, outline=RED, width=2)
        for number, text in enumerate(lines):
            line((left, top + number * LINE), text, INK)
        left += wide + GAP
    top += tallest + GAP // 2
    for text, is_wrong in values:
        line((GAP, top), text, RED if is_wrong else INK)
        top += LINE
    line((GAP, top), scene.mark or scene.warning, RED)
    line((GAP, top + LINE), scene.title, FAINT)
    return np.asarray(image)


def _shortened(draw: object, font: object, text: str, width: int) -> str:
    """Cut a line that is too wide."""
    length = draw.textlength  # type: ignore[attr-defined]
    if length(text, font=font) <= width:
        return text
    while text and length(text + "…", font=font) > width:
        text = text[:-1]
    return text + "…"


def _sized(panel: Panel) -> np.ndarray | None:
    """Return the picture of a panel in the size of frames: small ones by whole factors."""
    from PIL import Image

    picture = panel.look.picture
    if picture is None:
        return None
    longer = max(picture.shape[:2])
    if longer <= SIDE:
        return picture.repeat(SIDE // longer, axis=0).repeat(SIDE // longer, axis=1)
    height, width = (max(1, round(side * SIDE / longer)) for side in picture.shape[:2])
    return np.asarray(Image.fromarray(picture).resize((width, height), Image.Resampling.BOX))


def _value_lines(scene: GameScene) -> list[tuple[str, bool]]:
    """Tell the components where there is no picture of them."""

    def told(row: ComponentRow) -> str:
        pairs = zip(scene.columns, row.values, strict=True)
        cells = [f"{column} {number_words(value)[:LONGEST_CELL]}" for column, value in pairs]
        return f"{row.component.name}: " + ", ".join(cells)

    return [(told(row), row.is_wrong) for row in scene.rows[:MOST_VALUES]]
