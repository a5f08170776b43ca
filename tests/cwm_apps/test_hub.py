"""Downloading APPS from a loopback server in place of the hub."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cwm_cli.errors import install_command
from hub_server import COMMIT, HubServer

SAY = """
import sys
from cwm_apps.reading import hub
from cwm_cli.errors import CwmError
try:
    print(hub())
except CwmError as error:
    sys.exit(f"Error: {error}")
"""
LARGE = os.urandom(30 << 20)
"""Larger than what the library keeps before it writes."""


@pytest.fixture
def download(tmp_path):
    """Ask for the file in a process of its own, as the library reads its variables once."""

    def ask(endpoint: str, **variables: str) -> subprocess.CompletedProcess[str]:
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "HUGGING"))}
        own = {"HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path / "home"), "NO_PROXY": "127.0.0.1"}
        done = subprocess.run(
            [sys.executable, "-c", SAY],
            env=clean | own | variables,
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert "Traceback" not in done.stderr, done.stderr
        return done

    return ask


def found(done: subprocess.CompletedProcess[str]) -> Path:
    """Return the path that was printed."""
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


@pytest.mark.slow
def test_file_is_downloaded_once_and_cached_under_its_commit(download, tmp_path) -> None:
    with HubServer(b'{"id": 0}\n') as server:
        path = found(download(server.url))
        assert path.read_bytes() == server.content
        assert path.name == "test.jsonl"
        assert path.parent.name == COMMIT
        assert path.is_relative_to(tmp_path / "home")
        assert len(server.bodies) == 1
        asked = list(server.requests)
        assert found(download(server.url)) == path
        assert server.requests == asked
    assert found(download(server.url)) == path  # the server is stopped


@pytest.mark.slow
def test_interrupted_download_resumes(download) -> None:
    with HubServer(LARGE, cuts=2) as server:
        assert found(download(server.url)).read_bytes() == LARGE
        whole, *rest = server.bodies
        assert whole == ""
        assert len(rest) == 2
        assert all(given.startswith("bytes=") for given in rest)


def test_damaged_download_is_repeated(download) -> None:
    with HubServer(b"abcdefgh" * 1000, damages=1) as server:
        assert found(download(server.url)).read_bytes() == server.content
        assert len(server.bodies) == 2


@pytest.mark.slow
def test_repeatedly_damaged_file_is_never_accepted(download) -> None:
    with HubServer(b"abcdefgh" * 1000, damages=3) as server:
        done = download(server.url)
        assert (done.returncode, done.stdout) == (1, "")
        [line] = [line for line in done.stderr.splitlines() if line.startswith("Error: ")]
        assert "is damaged" in line
        assert "--data PATH" in line
        assert len(server.bodies) == 2
        assert found(download(server.url)).read_bytes() == server.content
        assert len(server.bodies) == 4


@pytest.mark.slow
def test_damaged_file_in_cache_is_downloaded_again(download) -> None:
    with HubServer(b"abcdefgh" * 1000) as server:
        path = found(download(server.url))
        path.resolve().write_bytes(b"spoilt")
        assert found(download(server.url)) == path
        assert path.read_bytes() == server.content


@pytest.mark.parametrize("offline", ["", "1"])
def test_missing_server_and_cache_give_a_line_with_remedy(download, offline) -> None:
    with HubServer(b"") as server:
        url = server.url
    done = download(url, HF_HUB_OFFLINE=offline)
    assert (done.returncode, done.stdout) == (1, "")
    [line] = done.stderr.splitlines()
    assert line.startswith("Error: cannot download codeparrot/apps (")
    assert "offline mode" in line if offline else "Connection refused" in line
    assert line.endswith("--data PATH")


def test_address_without_file_is_reported_in_one_line(download) -> None:
    with HubServer(b"") as server:
        done = download(server.url + "/elsewhere")
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert line.startswith("Error: cannot download codeparrot/apps (")
    assert "--data PATH" in line


def test_missing_package_is_reported_with_install_command(download, tmp_path) -> None:
    (tmp_path / "huggingface_hub.py").write_text("raise ImportError('not here')\n")
    done = download("http://127.0.0.1:9", PYTHONPATH=str(tmp_path))
    assert done.returncode == 1
    assert done.stderr.strip().endswith(install_command("cwm-cli[hub]"))
