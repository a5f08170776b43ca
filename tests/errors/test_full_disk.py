"""Writers on a full disk: one line, and nothing half-written."""

import subprocess
import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from cwm_cli import export_transitions
from cwm_cli.commands.recording import record
from cwm_cli.envs.films import write_film
from cwm_cli.errors import CwmError
from cwm_cli.registry import environment

FILL = "fill"
ROOM = 8_192


@pytest.fixture
def disk(tmp_path):
    """Mount a small file system that has `ROOM` bytes left."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(folder)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True, check=False)
    except OSError as error:
        pytest.skip(f"no file system can be mounted here: {error}")
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    try:
        fill(folder, 262_144 - ROOM)
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(disk: Path, size: int) -> None:
    (disk / FILL).write_bytes(bytes(size))


def recorded(env: str = "CartPole-v1", episodes: int = 20):
    return record(environment(env), policy="random", episodes=episodes, test_episodes=0)


def names(disk: Path) -> list[str]:
    return sorted(path.name for path in disk.rglob("*"))


@pytest.mark.slow
def test_minari_on_a_full_disk_is_refused_in_one_line(cwm, disk):
    pytest.importorskip("minari")
    recorded().save(cwm.folder / "d.npz")
    for words in ((), ("--force",)):
        out = str(disk / "x-v0")
        done = cwm("data", "export", "d.npz", "--to", "minari", "--out", out, *words)
        assert done.returncode == 1
        reason = "No space left on device"
        assert (
            done.stderr
            == f"Error: cannot write {out} ({reason}): choose another place with --out\n"
        )
        assert names(disk) == [FILL]


def test_a_file_limit_is_no_crash_of_hdf5(cwm):
    pytest.importorskip("minari")
    recorded().save(cwm.folder / "d.npz")
    limited = (
        "import resource, sys; sys.dont_write_bytecode = True\n"  # it would be cut short
        "resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))\n"
        "from cwm_cli import export_transitions\n"
        "from cwm_cli.errors import CwmError\n"
        "try:\n    export_transitions('d.npz', 'minari', out='x-v0')\n"
        "except CwmError as error:\n    print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", limited],
        cwd=cwm.folder,
        env=cwm.variables(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "cannot write x-v0 (File too large): choose another place with --out\n"
    assert [path.name for path in cwm.folder.iterdir() if path.name != "cache"] == ["d.npz"]


@pytest.mark.parametrize(
    "env", ["CartPole-v1", "FrozenLake-v1", "Blackjack-v1", "RTFM-v0", "Everything-v0", "Catch-v0"]
)
def test_the_reserved_space_is_enough_for_hdf5(env, tmp_path):
    pytest.importorskip("minari")
    from cwm_formats.minari_datasets import largest_size, trajectories

    if env == "Everything-v0":
        gymnasium.register(env, "every_space:Everything")
    try:
        rows = recorded(env, episodes=8)
    finally:
        gymnasium.registry.pop("Everything-v0", None)
    export_transitions(rows, "minari", out=str(tmp_path / "x-v0"))
    files = [file for file in (tmp_path / "x-v0").rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) < largest_size(rows, len(trajectories(rows)))


@pytest.mark.parametrize(
    ("to", "name", "options"),
    [
        ("minari", "x-v0", {}),
        ("minari", "x-v0", {"format": "arrow"}),
        ("minari", "x-v0", {"format": "parquet"}),
        ("parquet", "x.parquet", {}),
        ("csv", "x.csv", {}),
        ("csv", "x.csv.gz", {}),
    ],
    ids=str,
)
def test_exports_to_a_full_disk_leave_nothing(to, name, options, disk):
    if to != "csv":
        pytest.importorskip("minari" if to == "minari" else "pyarrow")
    rows = recorded(episodes=100)
    with pytest.raises(CwmError, match=r"cannot write .*No space left on device\)?.*with --out"):
        export_transitions(rows, to, out=str(disk / name), options=options)
    assert names(disk) == [FILL]


def test_an_export_that_does_not_fit_keeps_the_one_before(disk):
    pytest.importorskip("pyarrow")
    target = disk / "x.parquet"
    export_transitions(recorded(episodes=1), "parquet", out=target)
    before = target.read_bytes()
    with pytest.raises(CwmError, match="No space left on device"):
        export_transitions(recorded(episodes=100), "parquet", out=target, force=True)
    assert target.read_bytes() == before
    assert names(disk) == [FILL, "x.parquet"]


def test_a_dataset_that_does_not_fit_leaves_nothing(disk):
    with pytest.raises(OSError, match="No space left on device"):
        recorded(episodes=100).save(disk / "d.npz")
    assert names(disk) == [FILL]


@pytest.mark.parametrize("name", ["film.gif", "film.mp4"])
def test_a_film_that_does_not_fit_is_no_film(name, disk, capfd):
    pytest.importorskip("imageio_ffmpeg" if name.endswith("mp4") else "PIL")
    rng = np.random.default_rng(0)
    frames = (rng.integers(0, 255, (64, 64, 3), np.uint8) for _ in range(60))
    words = rf"cannot write {disk / name} \(No space left on device\): choose another place"
    with pytest.raises(CwmError, match=words):
        write_film(disk / name, frames, 60, 20.0)
    assert names(disk) == [FILL]
    assert capfd.readouterr() == ("", "")


def test_a_tiny_model_that_does_not_fit_leaves_nothing(disk):
    from cwm_theorize.tiny.model import TinyModel

    weights = {"a": np.random.default_rng(0).normal(size=20_000).astype(np.float32)}
    with pytest.raises(OSError, match="No space left on device"):
        TinyModel([], weights, {}).save(disk / "model.npz")
    assert names(disk) == [FILL]


def test_the_state_of_a_network_that_does_not_fit_is_an_error_of_the_disk(disk):
    torch = pytest.importorskip("torch")
    from cwm_neural.states import save_state

    with pytest.raises(OSError, match="No space left on device"):
        save_state(disk, "model", {}, {"a": torch.zeros(20_000)})
