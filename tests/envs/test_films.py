"""Films of episodes have the right frames and the right speed."""

import importlib.util
import json

import pytest
from PIL import Image

from cwm_cli.envs.films import Camera
from cwm_cli.envs.spec import EnvironmentSpec
from cwm_cli.errors import CwmError
from folders import SUPPORT
from lamp import Lamp


def camera(file, **env_args) -> Camera:
    spec = EnvironmentSpec("Lamp-v0", Lamp, lambda env: "a lamp", lambda: {})
    return Camera(file, spec, env_args)


def film(file) -> list[tuple[int, float]]:
    """Return the brightness of each frame of a GIF, and its milliseconds."""
    frames = []
    with Image.open(file) as image:
        for number in range(image.n_frames):
            image.seek(number)
            frames.append((image.convert("L").getpixel((0, 0)), image.info["duration"]))
    return frames


def test_film_shows_the_start_and_the_result_of_every_action(tmp_path) -> None:
    shot = camera(tmp_path / "lamp.gif")
    shot.check()
    shot.film(7, [0, 2, 1])
    env = Lamp()
    start, _ = env.reset(seed=7)
    lights = [start, start + 10, start + 40, start + 60]
    assert film(tmp_path / "lamp.gif") == [(light, 50) for light in lights]
    assert list(tmp_path.iterdir()) == [tmp_path / "lamp.gif"]


@pytest.mark.parametrize("fps", [4, 30, 50, 60, 125])
def test_film_lasts_as_long_as_the_episode(tmp_path, fps) -> None:
    camera(tmp_path / "lamp.gif", fps=fps).film(7, [0] * 10)
    durations = [milliseconds for _, milliseconds in film(tmp_path / "lamp.gif")]
    assert min(durations) >= 20
    shown = -(-11 // -(-fps // 50)) * -(-fps // 50)
    assert sum(durations) == pytest.approx(1000 * shown / fps, abs=10)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("lamp.avi", "lamp.avi is not a film: give a .gif or .mp4 file"),
        ("lamp", "give a .gif or .mp4 file"),
        ("nowhere/lamp.gif", "there is no folder .*nowhere: create it"),
    ],
)
def test_unwritable_films_are_refused_before_the_episode(tmp_path, name, words) -> None:
    with pytest.raises(CwmError, match=words):
        camera(tmp_path / name).check()


@pytest.mark.parametrize(
    ("trouble", "words"),
    [
        (RuntimeError("no\nscreen"), r"Lamp-v0 cannot be rendered \(RuntimeError: no screen\)"),
        (ImportError("pygame is not installed"), "cannot be rendered"),
        (None, r"render\(\) returned NoneType, not an RGB array\): leave out --render"),
    ],
)
def test_environment_without_rendering_is_an_error_of_one_line(
    tmp_path, monkeypatch, trouble, words
) -> None:
    monkeypatch.setattr(Lamp, "trouble", trouble)
    if trouble is None:
        monkeypatch.setattr(Lamp, "render", lambda env: None)
    with pytest.raises(CwmError, match=words) as caught:
        camera(tmp_path / "lamp.gif").check()
    assert len(str(caught.value).splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_missing_screen_is_reported_with_the_variable_to_set(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(Lamp, "trouble", RuntimeError("no OpenGL"))
    monkeypatch.setattr(Lamp, "mujoco_renderer", None, raising=False)
    with pytest.raises(CwmError, match="set MUJOCO_GL=egl or MUJOCO_GL=osmesa"):
        camera(tmp_path / "lamp.gif").check()


@pytest.mark.parametrize(
    ("name", "package"), [("a.gif", "PIL"), ("a.mp4", "imageio"), ("a.mp4", "imageio_ffmpeg")]
)
def test_missing_package_is_reported_with_its_installation(
    tmp_path, monkeypatch, name, package
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        "cwm_cli.envs.films.find_spec",
        lambda asked: None if asked == package else asked if name == "a.mp4" else found(asked),
    )
    with pytest.raises(CwmError, match=rf"needs {package}: pip install .*\[render\]"):
        camera(tmp_path / name).check()


def test_failing_film_leaves_no_file(tmp_path, monkeypatch) -> None:
    shot = camera(tmp_path / "lamp.gif")
    (tmp_path / "lamp.gif").write_text("an older film")
    with pytest.raises(CwmError, match="cannot be rendered"):
        shot.film(7, [0, "up"])
    assert (tmp_path / "lamp.gif").read_text() == "an older film"
    assert list(tmp_path.iterdir()) == [tmp_path / "lamp.gif"]


def test_mp4_has_every_frame(tmp_path) -> None:
    pytest.importorskip("imageio_ffmpeg")
    from imageio.v3 import immeta, imread

    camera(tmp_path / "lamp.mp4", fps=25).film(7, [0] * 9)
    assert imread(tmp_path / "lamp.mp4").shape == (10, 6, 8, 3)
    assert immeta(tmp_path / "lamp.mp4")["fps"] == 25
    assert list(tmp_path.iterdir()) == [tmp_path / "lamp.mp4"]


PLUGIN = """
from cwm_cli import hookimpl
from lamp import Lamp

@hookimpl
def cwm_environments():
    from cwm_cli.envs.spec import EnvironmentSpec
    return {"Lamp-v0": lambda: EnvironmentSpec("Lamp-v0", Lamp, lambda env: "a lamp", lambda: {})}
"""


@pytest.mark.long
def test_plan_films_the_first_episode_of_a_continued_run(cwm) -> None:
    cwm.install("lamp_plugin", PLUGIN)
    cwm.environment["PYTHONPATH"] = f"{cwm.packages}:{SUPPORT}"
    options = ("-o", "simulations=3", "-o", "rollout=3", "--max-steps", "3", "--json")
    command = ("plan", "--env", "Lamp-v0", "--real-env", "--planner", "mcts", *options)
    first = cwm(*command, "--episodes", "1", "--render", "film.gif")
    assert first.returncode == 0, first.stderr
    assert "Film: film.gif" in first.stderr
    assert json.loads(first.stdout)["render"] == "film.gif"
    pictures = film(cwm.folder / "film.gif")
    assert len(pictures) == 4
    (cwm.folder / "film.gif").unlink()
    more = cwm(*command, "--episodes", "2", "--render", "film.gif")
    assert "continuing" in more.stderr
    assert film(cwm.folder / "film.gif") == pictures
