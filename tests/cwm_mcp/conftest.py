"""A folder with an environment that is not part of the project, and its transitions."""

import shutil

import pytest

from mcp_agents import record_lift
from shell import Shell


@pytest.fixture(scope="session")
def recorded_lift(tmp_path_factory):
    """Record the transitions once for all tests of a process."""
    folder = tmp_path_factory.mktemp("lift")
    record_lift(Shell(folder, folder))
    return folder


@pytest.fixture
def lift(cwm, recorded_lift):
    """Return a shell in a folder with `lift.py` and `lift.npz`."""
    for name in ("lift.py", "lift.npz"):
        shutil.copy(recorded_lift / name, cwm.folder)
    return cwm
