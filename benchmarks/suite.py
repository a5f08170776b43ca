"""The scripts of the suite, run one after the other, each in a process of its own."""

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
    """A script that did not come to its end."""

    module: str
    code: int

    def line(self) -> str:
        """Say so."""
        return f"{self.module} broke: it ended with {self.code}"


def run(modules: Iterable[str], *, quick: bool) -> Iterator[Result | Broken]:
    """Yield what each script measures as soon as it does."""
    for module in modules:
        command = [sys.executable, "-m", module, "--json", *(["--quick"] if quick else [])]
        root = Path(__file__).parents[1]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith("{"):
                    yield Result(**json.loads(line))
                else:  # a library had something to say
                    print(line, end="")
        if process.returncode:
            yield Broken(module, process.returncode)
