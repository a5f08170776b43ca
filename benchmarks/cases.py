"""Cases of a benchmark as commands: here or on a cluster, each a file, and none measured twice.

A case is measured by a process of its own, which claims it by a lock and writes what it found as
a whole: several of these may run side by side, on machines that share the folder, too.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from cwm_cli.bench.executor import (
    ERROR,
    Command,
    Ended,
    Executor,
    carried_out,
    chosen_executor,
    job_process,
)
from cwm_cli.errors import CwmError
from cwm_cli.runs.files import write_object
from cwm_cli.runs.storage import BusyError

ONE = "--one"
"""What the words begin with by which a command is told the case that it measures."""


class MeasuredCase(NamedTuple):
    """A case that is over: the words that name it, and what was found or why nothing was."""

    words: tuple[str, ...]
    found: dict[str, Any] | None
    reason: str | None


def add_executor_options(parser: argparse.ArgumentParser, workers: int | None) -> None:
    """Have a parser take where cases are measured; by default here, so many at a time."""
    parser.add_argument("--executor", default="local", help="local, ray, slurm, or a plugin's")
    parser.add_argument("--workers", type=int, default=workers, help="cases at a time")
    words = "an option of the executor, such as executor.partition=gpu"
    parser.add_argument("-o", "--option", action="append", default=[], help=words)
    parser.add_argument(ONE, nargs="+", help=argparse.SUPPRESS)


def executor_of(chosen: argparse.Namespace) -> Executor:
    """Make the executor that a command line names."""
    try:
        executor, others = chosen_executor(chosen.executor, chosen.workers, chosen.option)
    except CwmError as error:
        sys.exit(f"{ERROR}{error}")
    if others:
        sys.exit(f"{ERROR}{others[0]} is no option of the executor: write executor.KEY=VALUE")
    return executor


def file_of(folder: Path, words: Sequence[str]) -> Path:
    """Return the file with what was found of a case, which some words name."""
    name = re.sub(r"[^\w.]+", "-", "-".join(words)).strip("-")
    # words that differ in signs only have files of their own
    return folder / "cases" / f"{name}-{sha256(chr(0).join(words).encode()).hexdigest()[:8]}.json"


def kept_cases(folder: Path) -> dict[tuple[str, ...], dict[str, Any]]:
    """Return what was found, by the words that name cases."""
    kept = (json.loads(file.read_text()) for file in sorted((folder / "cases").glob("*.json")))
    return {tuple(each["words"]): each["found"] for each in kept}


def measure_one(folder: Path, words: Sequence[str], measure: Callable[[], dict[str, Any]]) -> None:
    """Claim a case, measure it and write down what is found, unless it is there.

    This is what a command does; whoever cannot claim it says so and ends.
    """
    file = file_of(folder, words)
    file.parent.mkdir(parents=True, exist_ok=True)
    with job_process(), file.with_suffix(".lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BusyError("wait for it") from error
        if file.exists():
            return
        began = time.monotonic()
        found = measure()
        found = {"seconds": time.monotonic() - began} | found
        write_object(file, {"words": list(words), "found": found})


def measure_cases(
    module: str,
    cases: Mapping[tuple[str, ...], Sequence[str]],
    folder: Path,
    executor: Executor,
) -> Iterator[MeasuredCase]:
    """Measure cases by `python -m MODULE --one WORDS --folder FOLDER`; yield those that are over.

    `cases` are the words of each by those that name it. Ctrl-C lets finish what runs, a second one
    ends it; either way the same command goes on.
    """
    folder = folder.absolute()
    commands, named = [], {}
    for number, (name, words) in enumerate(cases.items()):
        argv = (sys.executable, "-m", module, "--folder", str(folder), ONE, *words)
        log = folder / "logs" / f"{file_of(folder, name).stem}.txt"
        commands.append(Command(str(number), argv, log))
        named[str(number)] = name
    try:
        with closing(carried_out(executor, commands, stopping=_stopping)) as events:
            for event in events:
                if not isinstance(event, Ended):
                    continue
                words = named[event.name]
                file = file_of(folder, words)
                found = json.loads(file.read_text())["found"] if file.exists() else None
                yield MeasuredCase(words, found, event.reason)
    except KeyboardInterrupt:
        _interrupted()
    except CwmError as error:
        sys.exit(f"{ERROR}{error}")


def _stopping(running: int) -> None:
    print(f"{running} let finish; Ctrl-C again ends them", file=sys.stderr, flush=True)


def _interrupted() -> NoReturn:
    sys.exit("interrupted: the same command goes on")
