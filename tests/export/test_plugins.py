"""New plugins: packages that are written from templates install, pass their tests and are used."""

import json
import shlex
import shutil
import site
import subprocess
import sys
import venv
from pathlib import Path
from typing import NamedTuple

import pytest

import cwm_cli as cwm
from cwm_cli.errors import CwmError
from cwm_cli.export.plugins import PLUGIN_KINDS, PluginNames, new_plugin
from cwm_cli.export.publishing import MARK


@pytest.mark.parametrize(
    ("given", "kind", "names"),
    [
        ("maze", "environment", ("maze", "maze", "maze", "maze", "Maze", "Maze-v0")),
        ("cwm-maze", "environment", ("cwm-maze", "cwm_maze", "maze", "maze", "Maze", "Maze-v0")),
        ("cwm_maze", "environment", ("cwm-maze", "cwm_maze", "maze", "maze", "Maze", "Maze-v0")),
        (
            "best-first-strategy",
            "strategy",
            (
                "best-first-strategy",
                "best_first_strategy",
                "best-first-strategy",
                "best_first_strategy",
                "BestFirst",
                "BestFirst-v0",
            ),
        ),
        ("cwm-2", "policy", ("cwm-2", "cwm_2", "cwm-2", "cwm_2", "Cwm2", "Cwm2-v0")),
        (
            "cwm-import",
            "command",
            ("cwm-import", "cwm_import", "import", "import_", *("Import", "Import-v0")),
        ),
    ],
)
def test_all_that_is_in_a_package_is_named_after_it(given, kind, names):
    assert PluginNames.of(given, kind) == names


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("My Maze", "policy", "write my-maze"),
        ("Maze", "policy", "write maze"),
        ("2maze", "policy", "write maze"),
        ("../maze", "policy", "write maze"),
        ("", "policy", "write cwm-maze"),
        ("maze-", "policy", "write maze"),
        ("class", "policy", "use cwm-class"),
        ("json", "policy", "use cwm-json"),
        ("tests", "policy", "use cwm-tests"),
        ("numpy", "policy", "a module numpy already exists"),
        ("cwm-random", "policy", "the policy 'random' already exists"),
        ("maze", "enviroment", "did you mean environment?"),
    ],
)
def test_a_name_that_cannot_be_is_refused_in_one_line(name, kind, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CwmError) as refused:
        cwm.new_plugin(name, kind)
    assert message in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1
    assert [*tmp_path.iterdir()] == []


def test_a_folder_that_holds_anything_is_left_as_it_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    taken, exported, file = tmp_path / "maze", tmp_path / "exported", tmp_path / "file"
    taken.mkdir(), exported.mkdir(), file.write_text("mine")
    (taken / "notes.txt").write_text("mine")
    (exported / "README.md").write_text(f"mine {MARK}")
    for out in (None, exported, file, tmp_path):
        with pytest.raises(CwmError) as refused:
            cwm.new_plugin("maze", "policy", out=out)
        assert "--out" in str(refused.value)
    kept = {path.name: path.read_text() for path in tmp_path.rglob("*") if path.is_file()}
    assert kept == {"notes.txt": "mine", "README.md": f"mine {MARK}", "file": "mine"}
    (tmp_path / "empty").mkdir()
    assert (cwm.new_plugin("maze", "policy", out="empty").folder / "pyproject.toml").is_file()


def test_the_command_says_what_comes_next(cwm):
    written = cwm.inside("plugins", "new", "cwm-maze", "--kind", "environment")
    assert written.returncode == 0, written.stderr
    assert [line.split()[0] for line in written.stdout.splitlines()] == [
        *("written", "install", "test", "use")
    ]
    assert "cwm synthesize --env Maze-v0" in written.stdout
    told = cwm.inside("plugins", "new", "cwm-maze", "--kind", "policy", "--out", "two", "--json")
    facts = json.loads(told.stdout)
    assert (facts["folder"], facts["provides"]) == ("two", "maze")
    assert facts["commands"][0] == "pip install -e './two[test]'"
    files = sorted(str(path.relative_to(cwm.folder)) for path in cwm.folder.glob("two/**/*.*"))
    assert files == [
        "two/README.md",
        "two/cwm_maze/__init__.py",
        "two/cwm_maze/policy.py",
        "two/pyproject.toml",
        "two/tests/test_cwm_maze.py",
    ]
    taken = cwm.inside("plugins", "new", "cwm-learn", "--kind", "command")
    assert "there is a command 'learn' already" in taken.stderr
    assert not (cwm.folder / "cwm-learn").exists()
    refused = cwm.inside("plugins", "new", "cwm-maze", "--kind", "policy")
    assert refused.returncode == 1
    assert "contains other files" in refused.stderr
    assert {path.name for path in cwm.folder.glob("cwm-maze/cwm_maze/*")} == {
        *("__init__.py", "environment.py")
    }


@pytest.mark.parametrize("kinds", [(), ("--kind", "environment", "--kind", "policy")])
def test_a_package_needs_exactly_one_kind(cwm, kinds):
    refused = cwm.inside("plugins", "new", "cwm-maze", *kinds)
    assert refused.returncode == 1
    assert "a package is written for one kind: give --kind once, environment, " in refused.stderr
    assert len(refused.stderr.splitlines()) == 1
    assert not (cwm.folder / "cwm-maze").exists()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["backend", "world-model"])
def test_a_new_plugin_with_an_example_passes_the_tests_of_all_plugins(kind, cwm):
    names = new_plugin(f"cwm-fresh-{kind}", kind, out=cwm.folder / "new").names
    shutil.copytree(cwm.folder / "new" / names.module, cwm.packages / names.module)
    cwm.install(names.module, "", f"{names.short} = {names.module}")
    (cwm.packages / f"{names.module}.py").unlink()
    tests = ("--pyargs", "cwm_cli.testing", "-k", names.module, "-q", "-p", "no:cacheprovider")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *tests],
        cwd=cwm.folder,
        env=cwm.variables(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


class Installed(NamedTuple):
    """A virtual environment that new plugins were installed into, and the plugins."""

    python: Path
    folder: Path
    plugins: list

    def run(self, *words, cwd=None):
        """Run a Python module without error; return its output."""
        done = subprocess.run(
            [self.python, "-m", *words],
            cwd=cwd or self.folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


ANSWER = """
class Environment:
    def set_state(self, observation):
        self.observation = observation

    def step(self, action):
        return self.observation, 1.0, False
"""


def installed(folder, kinds):
    """Write a plugin of each kind, and install them in addition to the current packages."""
    made = [
        cwm.new_plugin(f"cwm-fresh-{kind}", kind, out=folder / f"cwm-fresh-{kind}")
        for kind in kinds
    ]
    venv.create(folder / "venv", with_pip=False)
    (packages,) = (folder / "venv").glob("lib/*/site-packages")
    here = [path for path in sys.path if path in site.getsitepackages() or "site-packages" in path]
    lines = [f"import site; site.addsitedir({path!r})\n" for path in here]
    (packages / "here.pth").write_text("".join(lines))
    python = folder / "venv" / "bin" / "python"
    quiet = ("-q", "--disable-pip-version-check", "--no-deps", "--no-build-isolation")
    command = [sys.executable, "-m", "pip", "--python", python, "install", *quiet]
    done = subprocess.run(
        [*command, *(plugin.folder for plugin in made)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (folder / "ANSWER.py").write_text(ANSWER)
    return Installed(python, folder, made)


def check(venv):
    """Check that plugins are listed, used, and pass their own and the conformance tests."""
    listed = json.loads(venv.run("cwm_cli", "plugins", "--json"))
    ours = {
        name for row in listed for name in row["names"] if row["package"].startswith("cwm-fresh-")
    }
    assert ours == {plugin.as_json()["provides"] for plugin in venv.plugins}
    plain = ("pytest", "-q", "-n", "0", "-p", "no:cacheprovider")
    folders = [str(plugin.folder) for plugin in venv.plugins]
    assert " passed" in venv.run(*plain, *folders)
    assert " passed" in venv.run(*plain, "--pyargs", "cwm_cli.testing", "-k", "cwm-fresh")
    for plugin in venv.plugins:
        for command in plugin.commands[-1].split(" && "):
            venv.run("cwm_cli", *shlex.split(command)[1:])


@pytest.mark.long
def test_a_new_policy_installs_passes_its_tests_and_is_used(tmp_path):
    check(installed(tmp_path, ["policy"]))


@pytest.mark.long  # one kind after the other: the policy alone is in every run
def test_a_new_plugin_of_each_kind_installs_passes_its_tests_and_is_used(tmp_path):
    venv = installed(tmp_path, PLUGIN_KINDS)
    check(venv)
    result = json.loads((next((tmp_path / "runs").glob("*Fresh*")) / "result.json").read_text())
    assert result["test"]["accuracy"] > 0.95, "accuracy in the corridor"
