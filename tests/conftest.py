"""What many tests share: the `cwm` command as users run it, and plugins for one test."""

import gc
import os
import signal
import sys

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # one per test process; numpy reads it once

import pytest
from hypothesis import settings

from browser import browser  # noqa: F401  # a fixture for all
from cwm_cli.sandbox import Sandbox
from recordings import record
from shell import Shell

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a job that a script runs with `&`
    signal.signal(signal.SIGINT, signal.default_int_handler)  # or all subprocesses ignore it, too

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

# Keep compiled modules even if the shell forbids it: each test process and each `cwm` that a test
# starts would otherwise compile the code and the tests again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False


def pytest_collection_finish() -> None:
    """Exclude the imported modules and collected tests from all later garbage collections."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def cwm(tmp_path):
    folder, packages = tmp_path / "work", tmp_path / "packages"
    folder.mkdir()
    packages.mkdir()
    return Shell(folder, packages)


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox() as sandbox:
        yield sandbox


@pytest.fixture(scope="module")
def poles():
    return record("CartPole-v1", episodes=20)
