"""Measure the cases of a benchmark in processes, on this machine or on a cluster.

The process of a case locks it and writes the result to one file, in one step. So several commands
may run at the same time, also on machines that share the folder, and no case is measured twice.
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
from typing import Any, NamedTuple

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
"""Hidden option before the words of the case that a process measures."""


class MeasuredCase(NamedTuple):
    """A finished case.

    Attributes:
        words: Words that identify the case.
        found: Its result, or None if it failed.
        reason: The reason for the failure, or None.
    """

    words: tuple[str, ...]
    found: dict[str, Any] | None
    reason: str | None


def add_executor_options(parser: argparse.ArgumentParser, workers: int | None) -> None:
    """Add the options that select the executor; the default is `workers` local processes."""
    parser.add_argument("--executor", default="local", help="local, ray, slurm, or a plugin's")
    parser.add_argument("--workers", type=int, default=workers, help="cases at a time")
    words = "an option of the executor, such as executor.partition=gpu"
    parser.add_argument("-o", "--option", action="append", default=[], help=words)
    parser.add_argument(ONE, nargs="+", help=argparse.SUPPRESS)


def make_executor(chosen: argparse.Namespace) -> Executor:
    """Return the executor of a command line; exit with a message if an option is wrong."""
    try:
        executor, others = chosen_executor(chosen.executor, chosen.workers, chosen.option)
    except CwmError as error:
        sys.exit(f"{ERROR}{error}")
    if others:
        sys.exit(f"{ERROR}{others[0]} is not an option of the executor: write executor.KEY=VALUE")
    return executor


def case_file(folder: Path, words: Sequence[str]) -> Path:
    """Return the file for the result of a case."""
    name = re.sub(r"[^\w.]+", "-", "-".join(words)).strip("-")
    # The hash distinguishes words that differ only in special characters.
    return folder / "cases" / f"{name}-{sha256(chr(0).join(words).encode()).hexdigest()[:8]}.json"


def load_cases(folder: Path) -> dict[tuple[str, ...], dict[str, Any]]:
    """Return the saved results by the words of their cases."""
    kept = (json.loads(file.read_text()) for file in sorted((folder / "cases").glob("*.json")))
    return {tuple(each["words"]): each["found"] for each in kept}


def measure_one(folder: Path, words: Sequence[str], measure: Callable[[], dict[str, Any]]) -> None:
    """Lock a case, measure it and save the result, unless a result exists.

    The process of a case calls this function.

    Raises:
        BusyError: Another process measures the case.
    """
    file = case_file(folder, words)
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
    """Run `python -m MODULE --one WORDS --folder FOLDER` for each case; yield finished cases.

    After Ctrl-C, running cases finish; a second Ctrl-C ends them. In both cases the same command
    continues the benchmark.

    Args:
        module: The module to run.
        cases: The words of each command, by the words that identify its case.
        folder: Folder of results and logs.
        executor: Executor of the commands.
    """
    folder = folder.absolute()
    commands, named = [], {}
    for number, (name, words) in enumerate(cases.items()):
        argv = (sys.executable, "-m", module, "--folder", str(folder), ONE, *words)
        log = folder / "logs" / f"{case_file(folder, name).stem}.txt"
        commands.append(Command(str(number), argv, log))
        named[str(number)] = name
    try:
        with closing(carried_out(executor, commands, stopping=_print_running)) as events:
            for event in events:
                if not isinstance(event, Ended):
                    continue
                words = named[event.name]
                file = case_file(folder, words)
                found = json.loads(file.read_text())["found"] if file.exists() else None
                yield MeasuredCase(words, found, event.reason)
    except KeyboardInterrupt:
        sys.exit("interrupted: the same command continues")
    except CwmError as error:
        sys.exit(f"{ERROR}{error}")


def _print_running(running: int) -> None:
    print(f"{running} running; Ctrl-C again ends them", file=sys.stderr, flush=True)
