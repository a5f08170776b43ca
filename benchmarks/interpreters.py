"""Run the default test suite against the wheel, under every supported Python on this machine.

    python -m benchmarks.interpreters [--only 3.12] [--wheel FILE] [--tests test_packing]

An interpreter is found as `python3.X` on the path, or in the folders of pyenv and uv. Each gets a
new virtual environment with the wheel and its extra `test`. The tests run in a copy of the
repository whose source folders are replaced by the files of the wheel: the packages are imported
from the virtual environment, and tests that read source code read the wheel's files too.
A Python that is not installed here gets a row in the table that says so.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple
from zipfile import ZipFile

ROOT = Path(__file__).parent.parent
SUPPORTED = ("3.11", "3.12", "3.13")
SUITE = ("tests", "--pyargs", "cwm_cli.testing")
PACKAGE_PARENTS = (ROOT, ROOT / "plugins", ROOT / "data")
INTERPRETER_FOLDERS = (
    Path.home() / ".pyenv" / "versions",
    Path.home() / ".local" / "share" / "uv" / "python",
)


class Outcome(NamedTuple):
    """The versions in use, the last line of pytest, and whether every test passed."""

    python: str
    versions: str
    result: str
    passed: bool


def interpreters() -> dict[str, Path | None]:
    """Return the interpreter of each supported Python, None if there is none."""
    found: dict[str, Path | None] = {}
    for version in SUPPORTED:
        here = sorted(
            path
            for folder in INTERPRETER_FOLDERS
            for path in folder.glob(f"*{version}.*/bin/python{version}")
        )
        on_path = shutil.which(f"python{version}")
        found[version] = here[-1] if here else Path(on_path) if on_path else None
    return found


def run(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a command without the caller's PYTHONPATH, and capture its output."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    return subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=environment | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def copy_repository(wheel: Path, target: Path) -> None:
    """Copy the repository, taking the source folders of the packages from the wheel."""
    parents = {
        folder.name: parent.relative_to(ROOT)
        for parent in PACKAGE_PARENTS
        for folder in parent.glob("cwm_*")
    }
    packages = tuple(f"{parent / name}/" for name, parent in parents.items())
    listing = ("git", "ls-files", "--cached", "--others", "--exclude-standard")
    for file in run(*listing, cwd=ROOT).stdout.splitlines():
        if not file.startswith(packages) and (ROOT / file).is_file():
            (target / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / file, target / file)
    with ZipFile(wheel) as archive:
        for name in archive.namelist():
            package = name.partition("/")[0]
            if package in parents:
                archive.extract(name, target / parents[package])


def run_tests(python: Path, wheel: Path, work: Path, tests: tuple[str, ...]) -> Outcome:
    """Install the wheel for an interpreter and run tests outside of the repository."""
    made = run(python, "-m", "venv", work / "venv", cwd=work)
    own = work / "venv" / "bin" / "python"
    version = run(python, "--version", cwd=work).stdout.strip()
    if made.returncode:
        return Outcome(version, "", f"no virtual environment: {made.stderr.strip()[-200:]}", False)
    install = run(own, "-m", "pip", "install", "-q", f"{wheel}[test]", cwd=work)
    if install.returncode:
        return Outcome(version, "", f"not installed: {install.stderr.strip()[-300:]}", False)
    code = "from importlib.metadata import version as v; import sys; " + (
        "print(*(f'{name} {v(name)}' for name in sys.argv[1:]), sep=', ')"
    )
    versions = run(own, "-c", code, "gymnasium", "numpy", "scipy", cwd=work).stdout.strip()
    tree = work / "tree"
    copy_repository(wheel, tree)
    # The .pth file puts the copy (for `benchmarks`) after the installed packages on the path; the
    # setting `pythonpath` of pyproject.toml would put it first.
    (site,) = (work / "venv" / "lib").glob("python*/site-packages")
    (site / "tree.pth").write_text(f"{tree}\n")
    done = run(work / "venv" / "bin" / "pytest", "-o", "pythonpath=tests/support", *tests, cwd=tree)
    lines = done.stdout.strip().splitlines() or [done.stderr.strip()[-200:]]
    for line in lines:
        if line.startswith(("FAILED", "ERROR", "E   ModuleNotFoundError")):
            print(f"{version}: {line}", file=sys.stderr)
    return Outcome(version, versions, lines[-1], done.returncode == 0)


def build_wheel(work: Path) -> Path | None:
    """Build the wheel from a source distribution; return None if that fails."""
    done = run(sys.executable, "-m", "build", "-q", "--outdir", work / "dist", ROOT, cwd=work)
    if done.returncode:
        print(done.stderr, file=sys.stderr)
        return None
    return next((work / "dist").glob("*.whl"))


def main() -> int:
    """Test each interpreter and print a table; return 0 if all tests passed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", help="a version such as 3.12; repeatable")
    parser.add_argument("--wheel", type=Path, help="a wheel that is already built")
    parser.add_argument("--tests", help="paths in tests/, such as data/test_packing.py,export")
    chosen = parser.parse_args()
    files = chosen.tests.split(",") if chosen.tests else ()
    tests = tuple(f"tests/{name}" for name in files) or SUITE
    # Shells start background jobs with SIGINT ignored; tests interrupt processes that they start.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        wheel = chosen.wheel.resolve() if chosen.wheel else build_wheel(work)
        if wheel is None:
            return 1
        print(f"{wheel.name}, {wheel.stat().st_size:,} bytes\n")
        print("| Python | with | tests |\n|---|---|---|", flush=True)
        passed = True
        for version, python in interpreters().items():
            if chosen.only and version not in chosen.only:
                continue
            if python is None:
                print(f"| {version} | | no interpreter here |", flush=True)
                continue
            (work / version).mkdir()
            outcome = run_tests(python, wheel, work / version, tests)
            passed &= outcome.passed
            print(f"| {outcome.python} | {outcome.versions} | {outcome.result} |", flush=True)
        return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
