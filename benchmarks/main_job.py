"""Compare the duration of `cwm synthesize --env ID` with the duration of its completions alone.

The cache is empty, so that the command also collects data unless the environment has a shipped
dataset. The memory of the process and all its children is sampled.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import psutil

from benchmarks.claims import Claim, Measured
from benchmarks.script import main

ENVIRONMENTS = ("CartPole-v1", "MountainCar-v0", "Pendulum-v1")
FROZEN = ("FrozenLake-v1", "--env-arg", "is_slippery=false")


class Outcome(NamedTuple):
    """Seconds of a run and of its completions, its peak memory and its JSON output."""

    seconds: float
    completion_seconds: float
    peak_mb: float
    result: dict[str, Any]


def measure(_: bool, *, arguments: tuple[str, ...]) -> Measured:
    """Run three times; return medians of seconds and the largest memory."""
    runs = [run(arguments) for _ in range(3)]
    result = runs[-1].result
    wrong = (1 - result[part]["exact"] for part in ("train", "test"))
    figures = {
        "seconds": median(one.seconds for one in runs),
        "peak MB": max(one.peak_mb for one in runs),
        "held-out accuracy": result["test"]["accuracy"],
    }
    counts = {"completions": result["completions"], "wrong per mille": round(1e3 * max(wrong))}
    return Measured([one.seconds / one.completion_seconds for one in runs], figures, counts)


def run(arguments: tuple[str, ...]) -> Outcome:
    """Run `cwm synthesize` in an empty folder."""
    with tempfile.TemporaryDirectory() as folder:
        words = ["synthesize", "--json", "--run", "run", "--env", *arguments]
        start = time.perf_counter()
        output, peak = run_cwm(words, cwd=folder, env={**os.environ, "XDG_CACHE_HOME": folder})
        seconds = time.perf_counter() - start
        nodes = map(json.loads, Path(folder, "run/nodes.jsonl").read_text().splitlines())
        completion_seconds = sum(node["node"]["usage"]["seconds"] for node in nodes)
    return Outcome(seconds, completion_seconds, peak / 1e6, json.loads(output))


def run_cwm(words: Sequence[str], **options: Any) -> tuple[bytes, int]:
    """Run `cwm` in its own process; return its output and the peak memory in bytes.

    Args:
        words: Arguments of the command.
        options: Further arguments of `subprocess.Popen`.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "cwm_cli", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        **options,
    )
    peak = 0
    while process.poll() is None:
        peak = max(peak, memory(process.pid))
        time.sleep(0.02)
    assert process.stdout is not None
    if process.returncode:
        raise RuntimeError(f"cwm {' '.join(words)} failed with exit code {process.returncode}")
    return process.stdout.read(), peak


def memory(pid: int) -> int:
    """Return the sum of the proportional set sizes of a process and its children, in bytes."""
    try:
        root = psutil.Process(pid)
        family = [root, *root.children(recursive=True)]
        return sum(one.memory_full_info().pss for one in family)
    except psutil.Error:
        return 0


CLAIMS = tuple(
    Claim(
        f"main-job-{arguments[0]}",
        f"`cwm synthesize --env {' '.join(arguments)}` against its completions alone",
        partial(measure, arguments=arguments),
        is_cost=True,
        in_quick=False,
    )
    for arguments in (*((name,) for name in ENVIRONMENTS), FROZEN)
)

if __name__ == "__main__":
    main(CLAIMS)
