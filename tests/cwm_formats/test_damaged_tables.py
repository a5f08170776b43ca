import contextlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from cwm_cli.cli import app
from cwm_cli.commands.data import TableColumns, import_transitions
from cwm_cli.data.dataset import Dataset
from cwm_cli.errors import CwmError
from tests.support.damaged_tables import MUTILATIONS, Table, damaged

ROLES = ["--action", "valve", "--observation", "level,count", "--reward", "gain"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def source():
    """Return an intact table of 400 rows with timestamps and a gap."""
    rng = np.random.default_rng(5)
    rows = []
    for number in range(400):
        minute = 3 * number + (60 if number >= 150 else 0)
        time = f"2024-03-{1 + minute // 1440:02d}T{minute // 60 % 24:02d}:{minute % 60:02d}:00"
        level = f"{2 + np.sin(number / 9) + rng.normal(0, 0.1):.3f}"
        valve = ("shut", "half", "open")[int(rng.integers(3))]
        rows.append([time, level, str(number % 7), f"{rng.normal():.4f}", valve])
    return Table(["time", "level", "count", "gain", "valve"], rows)


def imported(content, *options, roles=ROLES):
    """Import a file by the command; return its rows and its notes."""
    Path("log.csv").write_bytes(content)
    words = ["data", "import", "log.csv", *roles, *options, "--force"]
    answer = CliRunner().invoke(app, words)
    assert answer.exception is None or isinstance(answer.exception, SystemExit), answer.exception
    if answer.exit_code:
        assert answer.exit_code == 1
        assert len(answer.stderr.splitlines()) == 1 + answer.stderr.count("Note: ")
        return None, answer.stderr
    return Dataset.load(Path("log.npz")), answer.stderr


@pytest.mark.parametrize("name", MUTILATIONS)
def test_damage_gives_the_expected_result_and_never_a_traceback(name):
    expected = MUTILATIONS[name].expected
    content = damaged(name, source())
    roles = ROLES
    if name == "unicode_names":
        names = dict(zip(source().header, content.decode().splitlines()[0].split(","), strict=True))
        roles = [
            "--action",
            names["valve"],
            *("--observation", f"{names['level']},{names['count']}", "--reward", names["gain"]),
        ]
    found, notes = imported(content, roles=roles)
    if found is None and expected == "partial":
        assert "--drop-missing" in notes
        found, notes = imported(content, "--drop-missing", roles=roles)
    if expected == "error":
        assert found is None
    elif expected == "partial":
        assert found is not None
        assert len(found) > 200
        assert "left out" in notes
    elif expected == "equal":
        assert found is not None
        assert_equal(name, found)


def assert_equal(name, found):
    """Check that rows are equal to the rows of the intact table."""
    intact, _ = imported(source().text().encode())
    if name == "thousands_separators":
        scaled = found.columns["observations"][:, 0] / 1e4
        np.testing.assert_allclose(scaled, intact.columns["observations"][:, 0])
        return
    # names of episodes add borders, at which a row has no next one
    rows = {tuple(row) for row in intact.columns["observations"].tolist()}
    assert len(found) >= len(intact) - 8
    assert {tuple(row) for row in found.columns["observations"].tolist()} <= rows
    if len(found) == len(intact):
        for column in ("observations", "actions", "next_observations", "rewards"):
            np.testing.assert_array_equal(found.columns[column], intact.columns[column])


@pytest.mark.parametrize("seed", range(4))
def test_random_byte_changes_never_give_a_traceback(seed):
    rng = np.random.default_rng(seed)
    lines = source().text().splitlines(keepends=True)[:80]
    for _ in range(12):
        content = bytearray("".join(lines).encode())
        for place in rng.integers(30, len(content), 25).tolist():
            content[place] = int(rng.choice(list(b',;"\n\t.-eE 0\xff')))
        Path("log.csv").write_bytes(bytes(content))
        columns = TableColumns(("valve",), drop_missing=bool(rng.integers(2)))
        with contextlib.suppress(CwmError):
            import_transitions("log.csv", columns=columns, force=True)


@pytest.mark.slow
def test_installed_command_prints_one_line_for_a_binary_file(folder):
    (folder / "log.csv").write_bytes(damaged("binary_junk", source()))
    answer = subprocess.run(
        [sys.executable, "-m", "cwm_cli", "data", "import", "log.csv", *ROLES],
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 1
    assert answer.stderr.startswith("Error: log.csv is not")
    assert "Traceback" not in answer.stderr
