"""Films of games, and files of their transitions.

A frame shows the panels side by side, with facts, mismatch and title.
"""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np

from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.envs.films import check_film, write_film
from cwm_play.scenes import ComponentRow, GameScene, Panel, format_value

PANEL_SIDE = 240
"""Longer side of a panel in pixels: two panels are as wide as a page of the documentation."""

FONT_SIZE = 13
LINE_HEIGHT, GAP = FONT_SIZE + 4, 8
"""Height of a line of text, and the space around panels, in pixels."""

PAPER, INK, FAINT, RED = (255, 255, 255), (30, 30, 36), (120, 120, 130), (200, 40, 40)

MAX_VALUES, MAX_VALUE_LENGTH = 12, 11
"""Components that a frame without pictures lists, and characters of each of their values."""


class FilmRecorder:
    """A recorder that keeps frames and transitions while it is on, and writes them to two files.

    It needs Pillow once it is on.

    Args:
        file: The film to write, .gif or .mp4. The transitions are written beside it, with .npz
            added to the name of the film.
        fps: Frames per second.
        like: Rows with the spaces of the environment.
        option: The option that named the file, for messages.
    """

    def __init__(self, file: Path, fps: float, like: Dataset, option: str = "--record") -> None:
        self.file, self.fps, self.is_on = file, fps, False
        self.moment: tuple[int, ...] | None = None
        self._like, self._option = like, option
        self._frames: list[tuple[tuple[int, int, int], bytes]] = []
        self._rows: list[Transition] = []

    def switch(self) -> None:
        """Start or stop recording.

        Raises:
            CwmError: The film cannot be written: wrong file type, no folder, or a missing package.
        """
        check_film(self.file, self._option)
        self.is_on = not self.is_on

    def add(self, scene: GameScene) -> None:
        """Keep a frame of a scene if the recorder is on and the game has moved on."""
        if not self.is_on or scene.moment == self.moment:
            return
        self.moment = scene.moment
        picture = draw_frame(scene)
        self._frames.append((picture.shape, zlib.compress(picture.tobytes(), 1)))
        if scene.row is not None:
            self._rows.append(scene.row)

    def write(self) -> list[Path]:
        """Write the film and the transitions, and return the paths of what there is to write."""
        if not self._frames:
            return []
        height, width = (max(shape[axis] for shape, _ in self._frames) for axis in (0, 1))
        # the last frame is repeated, so that viewers see how the game ended
        last_frame_repeats = 10
        frames = [*self._frames, *[self._frames[-1]] * (last_frame_repeats - 1)]
        pictures = (_decode(shape, data, height, width) for shape, data in frames)
        write_film(self.file, pictures, len(frames), self.fps)
        if not self._rows:
            return [self.file]
        beside = self.file.with_name(f"{self.file.name}.npz")
        Dataset.of(
            self._rows,
            observation_space=self._like.observation_space,
            action_space=self._like.action_space,
            metadata=self._like.metadata,
        ).save(beside)
        return [self.file, beside]


class EpisodeKeeper:
    """Records each episode, and writes the episodes that the player wants to keep.

    Args:
        folder: The folder of the episodes; it is created with the first one.
        fps: Frames per second.
        like: Rows with the spaces of the environment.

    Raises:
        CwmError: A package for films is missing.
    """

    QUESTION = "keep this episode? y: yes, n: no"

    def __init__(self, folder: Path, fps: float, like: Dataset) -> None:
        self.kept: list[Path] = []
        self.is_asking = self._was_over = False
        self._folder, self._fps, self._like = folder, fps, like
        folder.mkdir(parents=True, exist_ok=True)
        self._recorder = self._new_recorder()

    def add(self, scene: GameScene) -> None:
        """Keep a frame of a scene; ask the player when the episode has ended."""
        last = self._recorder.moment
        if last is not None and last[0] != scene.moment[0]:
            self._recorder, self._was_over = self._new_recorder(), False
        self._recorder.add(scene)
        self.is_asking |= scene.is_over and not self._was_over
        self._was_over = scene.is_over

    def answer(self, key: str | None) -> None:
        """Keep the episode, or not, if the key answers the question."""
        if key == "y":
            self.kept += self._recorder.write()
        if key in ("y", "n"):
            self.is_asking = False

    def _new_recorder(self) -> FilmRecorder:
        """Return a recorder with a file that does not exist yet."""
        number = 1
        while (file := self._folder / f"episode-{number}.gif").exists():
            number += 1
        recorder = FilmRecorder(file, self._fps, self._like, "--save")
        recorder.switch()
        return recorder


def _decode(shape: tuple[int, int, int], data: bytes, height: int, width: int) -> np.ndarray:
    """Decompress a frame, and pad it to `(height, width, 3)`."""
    picture = np.full((height, width, 3), PAPER, np.uint8)
    pixels = np.frombuffer(zlib.decompress(data), np.uint8).reshape(shape)
    picture[: shape[0], : shape[1]] = pixels
    return picture


def draw_frame(scene: GameScene) -> np.ndarray:
    """Draw a scene as an array of bytes, (height, width, 3)."""
    from PIL import Image, ImageDraw, ImageFont

    pictures = [_resize(panel) for panel in scene.panels]
    values = [] if any(p is not None for p in pictures) else _value_lines(scene)
    texts = [panel.appearance.text.splitlines() for panel in scene.panels]
    tallest = max([0, *(p.shape[0] for p in pictures if p is not None)])
    tallest = max([tallest, *(len(lines) * LINE_HEIGHT for lines in texts)])
    widths = [PANEL_SIDE if p is None else max(p.shape[1], PANEL_SIDE) for p in pictures]
    width = max(sum(widths) + GAP * (len(widths) + 1), 2 * PANEL_SIDE)
    font = ImageFont.load_default(FONT_SIZE)
    height = GAP + LINE_HEIGHT * (4 + len(values)) + tallest + 2 * GAP
    image = Image.new("RGB", (width, height), PAPER)
    draw = ImageDraw.Draw(image)

    def line(at: tuple[int, int], text: str, color: tuple[int, int, int]) -> None:
        draw.text(at, _shorten(draw, font, text, width - at[0]), fill=color, font=font)

    line((GAP, GAP), " · ".join(scene.facts), INK)
    left, top = GAP, GAP + 2 * LINE_HEIGHT
    for panel, picture, lines, wide in zip(scene.panels, pictures, texts, widths, strict=True):
        words = f"{panel.title} · {panel.note}" if panel.note else panel.title
        color = RED if panel.is_marked else INK
        draw.text(
            (left, top - LINE_HEIGHT), _shorten(draw, font, words, wide), fill=color, font=font
        )
        if picture is not None:
            image.paste(Image.fromarray(picture), (left, top))
            if panel.is_marked:
                box = (left, top, left + picture.shape[1] - 1, top + picture.shape[0] - 1)
                draw.rectangle(box, outline=RED, width=2)
        for number, text in enumerate(lines):
            line((left, top + number * LINE_HEIGHT), text, INK)
        left += wide + GAP
    top += tallest + GAP // 2
    for text, is_wrong in values:
        line((GAP, top), text, RED if is_wrong else INK)
        top += LINE_HEIGHT
    line((GAP, top), scene.mark or scene.warning, RED)
    line((GAP, top + LINE_HEIGHT), scene.title, FAINT)
    return np.asarray(image)


def _shorten(draw: object, font: object, text: str, width: int) -> str:
    length = draw.textlength  # type: ignore[attr-defined]
    if length(text, font=font) <= width:
        return text
    while text and length(text + "…", font=font) > width:
        text = text[:-1]
    return text + "…"


def _resize(panel: Panel) -> np.ndarray | None:
    """Resize the picture of a panel to `PANEL_SIDE`; enlarge by whole factors only."""
    from PIL import Image

    picture = panel.appearance.picture
    if picture is None:
        return None
    longer = max(picture.shape[:2])
    if longer <= PANEL_SIDE:
        return picture.repeat(PANEL_SIDE // longer, axis=0).repeat(PANEL_SIDE // longer, axis=1)
    height, width = (max(1, round(side * PANEL_SIDE / longer)) for side in picture.shape[:2])
    return np.asarray(Image.fromarray(picture).resize((width, height), Image.Resampling.BOX))


def _value_lines(scene: GameScene) -> list[tuple[str, bool]]:
    """Return a line of text for each component, and whether the component is wrong."""

    def describe(row: ComponentRow) -> str:
        pairs = zip(scene.columns, row.values, strict=True)
        cells = [f"{column} {format_value(value)[:MAX_VALUE_LENGTH]}" for column, value in pairs]
        return f"{row.component.name}: " + ", ".join(cells)

    return [(describe(row), row.is_wrong) for row in scene.rows[:MAX_VALUES]]
