"""Films of episodes: the actions are replayed in an environment that renders itself."""

import errno
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, redirect_stdout
from copy import deepcopy
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import pairwise
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cwm_cli.envs.spec import EnvironmentSpec
from cwm_cli.errors import DISK_IS_FULL, CwmError, EnvironmentFailure, install_command

if TYPE_CHECKING:
    import gymnasium as gym

EXTRA = "cwm-cli[render]"
NEEDED = {".gif": ("PIL",), ".mp4": ("imageio", "imageio_ffmpeg")}
"""Required packages by file type."""

QUIET = {
    "PYGAME_HIDE_SUPPORT_PROMPT": "1",
    "SDL_VIDEODRIVER": "dummy",
    "SDL_AUDIODRIVER": "dummy",
    "SDL_NO_SIGNAL_HANDLERS": "1",
}
"""Settings for pygame: no screen, no messages, no handler of SIGTERM."""


@dataclass(frozen=True)
class Camera:
    """Records an episode of an environment in a .gif or .mp4 file."""

    file: Path
    spec: EnvironmentSpec
    env_args: dict[str, Any]

    def check(self) -> None:
        """Render the first frame, so that a film that must fail does so before the episode.

        Raises:
            CwmError: The file or its type is unusable, a package is missing, or rendering fails.
        """
        check_film(self.file, "--render")
        with self._recording() as env:
            next(_frames(env, 0, ()))

    def film(self, seed: int, actions: Sequence[Any]) -> None:
        """Replay actions from a reset with a seed, and write the film."""
        with self._recording() as env:
            fps = float(env.metadata.get("render_fps") or 30)
            write_film(self.file, _frames(env, seed, actions), len(actions) + 1, fps)

    @contextmanager
    def _recording(self) -> "Iterator[gym.Env[Any, Any]]":
        """Make an environment that renders itself; report any failure on one line."""
        # pygame reads these variables when it is imported, which `make` may do.
        os.environ.update({name: text for name, text in QUIET.items() if name not in os.environ})
        env: gym.Env[Any, Any] | None = None
        try:
            with warnings.catch_warnings(action="ignore"), redirect_stdout(sys.stderr):
                env = self.spec.make(**self.env_args | {"render_mode": "rgb_array"})
                with closing(env):
                    yield env
        except EnvironmentFailure as error:
            if env is not None:  # it failed in the episode, not because of the render_mode
                raise
            hint = "accept render_mode='rgb_array' in its constructor, or leave --render out"
            raise CwmError(f"{self.spec.id} cannot be rendered: {hint}") from error
        except CwmError:
            raise
        except Exception as error:
            raise CwmError(self._advice(env, error)) from error

    def _advice(self, env: "gym.Env[Any, Any] | None", error: Exception) -> str:
        words = f"{self.spec.id} cannot be rendered"
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        if find_spec("pygame") is None and "pygame" in reason:
            return f"{words} without pygame: {install_command(EXTRA)}"
        if env is not None and hasattr(env.unwrapped, "mujoco_renderer"):
            return f"{words} ({reason}): without a screen, set MUJOCO_GL=egl or MUJOCO_GL=osmesa"
        return f"{words} ({reason}): leave out --render"


def check_film(file: Path, option: str) -> None:
    """Raise `CwmError` if no film can be written to a file; `option` names it in the message."""
    packages = NEEDED.get(file.suffix.lower())
    if packages is None:
        raise CwmError(f"{file} is not a film: give a .gif or .mp4 file")
    for package in packages:
        if find_spec(package) is None:
            raise CwmError(f"{option} {file} needs {package}: {install_command(EXTRA)}")
    if not file.parent.is_dir():
        raise CwmError(f"there is no folder {file.parent}: create it, or choose another")


def write_film(file: Path, frames: Iterator[np.ndarray], count: int, fps: float) -> None:
    """Write frames of equal size as a .gif or .mp4 file, completely or not at all.

    Args:
        file: The file.
        frames: RGB arrays of shape (height, width, 3).
        count: Number of frames.
        fps: Frames per second.

    Raises:
        CwmError: The disk is full.
    """
    # The suffix stays the last part of the name, because the writers choose a format by it.
    partial = file.with_name(f".{file.stem}.part{file.suffix}")
    write = _write_gif if file.suffix.lower() == ".gif" else _write_mp4
    try:
        write(partial, frames, count, fps)
        partial.replace(file)
    except OSError as error:
        if error.errno not in DISK_IS_FULL:
            raise
        raise CwmError(f"cannot write {file} ({error.strerror}): choose another place") from error
    finally:
        partial.unlink(missing_ok=True)


def _frames(env: "gym.Env[Any, Any]", seed: int, actions: Sequence[Any]) -> Iterator[np.ndarray]:
    """Yield a frame after the reset, and one after each action."""
    env.reset(seed=seed)
    yield _picture(env)
    for action in actions:
        env.step(deepcopy(action))  # some environments clip actions in place
        yield _picture(env)


def _picture(env: "gym.Env[Any, Any]") -> np.ndarray:
    frame = env.render()
    if not isinstance(frame, np.ndarray) or frame.ndim != 3:
        raise ValueError(f"render() returned {type(frame).__name__}, not an RGB array")
    return frame


def _write_gif(file: Path, frames: Iterator[np.ndarray], count: int, fps: float) -> None:
    """Write a GIF with times in hundredths of a second, at most 50 frames per second."""
    from PIL import Image

    every = ceil(fps / 50)  # viewers play faster GIFs at a much lower rate
    starts = [10 * round(100 * frame / fps) for frame in range(0, count + every, every)]
    images = (Image.fromarray(frame) for number, frame in enumerate(frames) if number % every == 0)
    next(images).save(
        file,
        format="GIF",
        save_all=True,
        append_images=images,
        duration=[later - start for start, later in pairwise(starts)],
        loop=0,
    )


def _write_mp4(file: Path, frames: Iterator[np.ndarray], count: int, fps: float) -> None:
    """Write an MP4 and check that it is complete, since imageio ignores errors of ffmpeg."""
    from imageio.v2 import get_writer
    from imageio_ffmpeg import count_frames_and_secs

    options = {"fps": fps, "macro_block_size": 2, "ffmpeg_log_level": "quiet"}
    try:
        with closing(get_writer(file, format="FFMPEG", mode="I", **options)) as writer:
            for frame in frames:
                writer.append_data(frame)
        count_frames_and_secs(file)
    except (BrokenPipeError, RuntimeError) as error:  # ffmpeg reports no reason
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from error
