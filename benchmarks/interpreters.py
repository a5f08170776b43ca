"""The wheel under every Python that is here: installed anew, and part of the tests run against it.

    python -m benchmarks.interpreters [--only 3.12] [--wheel FILE] [--tests test_packing]

An interpreter is found as `python3.X` on the path, or in the folders of pyenv and uv. Each gets a
virtual environment of its own, the wheel with some extras, and a copy of the tests, so that what is
tested is what is installed. What a Python has no wheels for is said, not skipped in silence.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
SERVED = ("3.11", "3.12", "3.13", "3.14")
EXTRAS = "llm,minari,mujoco,parquet,render"
TOOLS = ("pytest>=8", "pytest-xdist>=3.5", "hypothesis>=6.100", "psutil>=5.9")
TESTS = ("test_packing", "test_gymnasium", "test_planners", "test_synthesize", "test_export")
"""What stands for the rest: files, environments, planning, the sandbox and searches, packages."""

PLACES = (
    Path.home() / ".pyenv" / "versions",
    Path.home() / ".local" / "share" / "uv" / "python",
)


class Outcome(NamedTuple):
    """What came of an interpreter: versions, the last line of pytest, and whether all passed."""

    python: str
    versions: str
    result: str
    passed: bool


def interpreters() -> dict[str, Path | None]:
    """Return each Python that is served, with its interpreter, None where there is none here."""
    found: dict[str, Path | None] = {}
    for version in SERVED:
        here = sorted(
            p for place in PLACES for p in place.glob(f"*{version}.*/bin/python{version}")
        )
        on_path = shutil.which(f"python{version}")
        found[version] = here[-1] if here else Path(on_path) if on_path else None
    return found


def run(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a command and keep what it says."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    return subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=environment | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def tried(python: Path, wheel: Path, work: Path, tests: tuple[str, ...]) -> Outcome:
    """Install the wheel for an interpreter, and run tests outside of the repository."""
    made = run(python, "-m", "venv", work / "venv", cwd=work)
    own = work / "venv" / "bin" / "python"
    version = run(python, "--version", cwd=work).stdout.strip()
    if made.returncode:
        return Outcome(version, "", f"no virtual environment: {made.stderr.strip()[-200:]}", False)
    install = run(own, "-m", "pip", "install", "-q", f"{wheel}[{EXTRAS}]", *TOOLS, cwd=work)
    if install.returncode:
        return Outcome(version, "", f"not installed: {install.stderr.strip()[-300:]}", False)
    asked = "from importlib.metadata import version as v; import sys; " + (
        "print(*(f'{name} {v(name)}' for name in sys.argv[1:]), sep=', ')"
    )
    versions = run(own, "-c", asked, "gymnasium", "numpy", "scipy", cwd=work).stdout.strip()
    for name in ("tests", "benchmarks"):  # of which some tests take what they need
        shutil.copytree(ROOT / name, work / name)
    (work / "pytest.ini").write_text(
        "[pytest]\npythonpath = . tests\nmarkers =\n    slow: x\n    long: x\n"
    )
    files = [f"tests/{name}.py" for name in tests]
    done = run(
        own, "-m", "pytest", "-q", "-m", "not slow and not long", "-n", "2", *files, cwd=work
    )
    lines = done.stdout.strip().splitlines() or [done.stderr.strip()[-200:]]
    for line in lines:
        if line.startswith(("FAILED", "ERROR", "E   ModuleNotFoundError")):
            print(f"{version}: {line}", file=sys.stderr)
    return Outcome(version, versions, lines[-1], done.returncode == 0)


def built(work: Path) -> Path | None:
    """Build the wheel, from a source distribution as others would; None where that fails."""
    done = run(sys.executable, "-m", "build", "-q", "--outdir", work / "dist", ROOT, cwd=work)
    if done.returncode:
        print(done.stderr, file=sys.stderr)
        return None
    return next((work / "dist").glob("*.whl"))


def main() -> int:
    """Try each interpreter, print a table, and say by the exit code whether all passed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", help="such as 3.12; repeatable")
    parser.add_argument("--wheel", type=Path, help="one that is built already")
    parser.add_argument("--tests", default=",".join(TESTS))
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        wheel = asked.wheel or built(work)
        if wheel is None:
            return 1
        print(f"{wheel.name}, {wheel.stat().st_size:,} bytes\n")
        print("| Python | with | tests |\n|---|---|---|")
        passed = True
        for version, python in interpreters().items():
            if asked.only and version not in asked.only:
                continue
            if python is None:
                print(f"| {version} | | no interpreter here |", flush=True)
                continue
            (work / version).mkdir()
            outcome = tried(python, wheel, work / version, tuple(asked.tests.split(",")))
            passed &= outcome.passed
            print(f"| {outcome.python} | {outcome.versions} | {outcome.result} |", flush=True)
        return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
