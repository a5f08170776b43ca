"""The scripts of the suite, each run in its own process, one after the other."""

import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from benchmarks.results import Result

SCRIPTS = (
    "startup",
    "scoring",
    "workers",
    "overhead",
    "completions",
    "journal",
    "live_view",
    "planning",
    "batches",
    "induction_time",
    "judging",
    "main_job",
)


class Broken(NamedTuple):
    """A script that failed, with its exit code."""

    module: str
    code: int

    def line(self) -> str:
        """Return a line for a terminal."""
        return f"{self.module} failed with exit code {self.code}"


def run(modules: Iterable[str], *, quick: bool) -> Iterator[Result | Broken]:
    """Run scripts and yield each result immediately after its measurement."""
    for module in modules:
        command = [sys.executable, "-m", module, "--json", *(["--quick"] if quick else [])]
        root = Path(__file__).parents[1]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith("{"):
                    yield Result(**json.loads(line))
                else:  # a message of a library
                    print(line, end="")
        if process.returncode:
            yield Broken(module, process.returncode)
