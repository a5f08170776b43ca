"""How long the main job takes and what memory it needs, as a user starts it.

Run with `python -m benchmarks.main_job`. Starts `cwm synthesize --env ID`
with an empty cache, so that collection is part of it, and samples the memory
of the process and all its children. Goals for CartPole-v1: 15 s, 400 MB.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

import psutil

ENVIRONMENTS = ("CartPole-v1", "MountainCar-v0", "Pendulum-v1")
FROZEN = ("FrozenLake-v1", "--env-arg", "is_slippery=false")


def measure(arguments: tuple[str, ...]) -> tuple[float, float, dict[str, dict[str, float]]]:
    """Return seconds, peak memory in MB and the result of one run."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        words = ["synthesize", "--json", "--env", *arguments]
        where = {"cwd": folder, "env": {**os.environ, "XDG_CACHE_HOME": folder}}
        output, peak = watched(words, **where)
        return time.perf_counter() - start, peak / 1e6, json.loads(output)


def watched(words: Sequence[str], **where: Any) -> tuple[bytes, int]:
    """Run `cwm` in a process of its own; return what it prints and its peak memory in bytes."""
    process = subprocess.Popen(
        [sys.executable, "-m", "cwm_cli", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        **where,
    )
    peak = 0
    while process.poll() is None:
        peak = max(peak, memory(process.pid))
        time.sleep(0.02)
    assert process.stdout is not None
    if process.returncode:
        raise RuntimeError(f"cwm {' '.join(words)} ended with {process.returncode}")
    return process.stdout.read(), peak


def memory(pid: int) -> int:
    """Add up the proportional memory of a process and its children, in bytes."""
    try:
        root = psutil.Process(pid)
        family = [root, *root.children(recursive=True)]
        return sum(one.memory_full_info().pss for one in family)
    except psutil.Error:
        return 0


def main() -> None:
    """Print a line per environment."""
    print("environment        seconds  peak MB  train   held-out")
    for arguments in (*((name,) for name in ENVIRONMENTS), FROZEN):
        seconds, peak, result = measure(arguments)
        train, test = result["train"]["accuracy"], result["test"]["accuracy"]
        print(f"{arguments[0]:<18} {seconds:7.1f} {peak:8.0f}  {train:.4f}  {test:.4f}")


if __name__ == "__main__":
    main()
