"""`cwm learn` as a third-party package, which uses public hooks only."""

import json
import re
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest

import cwm_learn

pytestmark = pytest.mark.slow  # several commands, each a process

PACKAGE = Path(cwm_learn.__file__).parent


def install_as_third_party(packages: Path) -> None:
    """Install a copy of the plugin under another name, and hide the built-in one."""
    for file in PACKAGE.rglob("*"):
        copy = packages / "outside" / file.relative_to(PACKAGE)
        if file.suffix in {".py", ".template"}:
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(re.sub(r"\bcwm_learn\b", "outside", file.read_text()))
    cwm = distribution("cwm-cli")
    built_in = [e for e in cwm.entry_points.select(group="cwm") if e.module != "cwm_learn"]
    for name, version, entries in (
        ("outside", "1.0", ["outside = outside"]),
        ("cwm-cli", cwm.version, [f"{entry.name} = {entry.value}" for entry in built_in]),
    ):
        info = packages / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (info / "entry_points.txt").write_text("\n".join(["[cwm]", *entries, ""]))


def test_learn_works_as_a_plugin_of_another_package(cwm):
    install_as_third_party(cwm.packages)
    lake = ("FrozenLake-v1", "--env-arg", "is_slippery=False")
    command = ("learn", "--env", *lake, "--steps", "30", "--run", "lake", "--json")
    learned = cwm(*command)
    assert learned.returncode == 0, learned.stderr
    found = json.loads(learned.stdout)
    assert found["steps"] <= 30
    assert found["program"] == "lake/best.py"

    (listed,) = json.loads(cwm("runs", "list", ".", "--json").stdout)["runs"]
    assert (listed["kind"], listed["environment"]) == ("learn", "FrozenLake-v1")
    assert "promised" in cwm("runs", "show", "lake").stdout
    assert cwm("runs", "report", "lake", "--html", "page.html").returncode == 0
    assert "FrozenLake-v1 · learning" in (cwm.folder / "page.html").read_text()


def test_function_of_another_package_is_part_of_the_python_api(cwm):
    install_as_third_party(cwm.packages)
    lines = (
        "import cwm_cli as cwm, sys",
        "result = cwm.learn('CliffWalking-v1', steps=20)",
        "print(cwm.learn.__module__, result.steps, 'cwm_learn' in sys.modules)",
    )
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)],
        cwd=cwm.folder,
        env=cwm.variables(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "outside.learn 20 False\n"
