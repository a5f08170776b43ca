"""Measure 64 jobs that share a cost limit of half of their total cost.

    python -m benchmarks.spending
    python -m benchmarks.spending --jobs 8 --budget 4 --rate 120

The jobs are processes of `cwm benchmark` on this machine. A loopback server with OpenAI's protocol
reports token counts, and the benchmark adds up the charges at LiteLLM's prices. It prints:

- the charged and the largest reserved amount, and the limit;
- the remaining amount and the maximum cost of one completion: no job stops while more remains;
- the requests per minute and the allowed rate;
- the time to reserve and settle the cost of a completion, if several processes use the same file.
"""

import argparse
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from statistics import median
from typing import Any

import cwm_cli
from benchmarks.machine import machine
from benchmarks.served_programs import WrongPrograms
from benchmarks.world_models import PROGRAMS
from cwm_cli.search.spending import open_spending, read_spending
from tests.support.openai_server import Behaviour, OpenAIServer

ENVIRONMENT, PROGRAM = "CliffWalking-v1", PROGRAMS / "cliff_branches.py"
MODEL = "gpt-4o-mini"
PROMPT_TOKENS, COMPLETION_TOKENS = 2_000, 1_000
"""Token counts that the server reports for each request."""

MAX_TOKENS = 2_000
"""Limit of completion tokens, so that the maximum cost is twice the charge."""

RESERVE_AND_SETTLE = """
import sys, time
from cwm_cli.search.spending import CostLimit
limit = CostLimit.shared(sys.argv[1])
for _ in range(int(sys.argv[2])):
    began = time.perf_counter()
    limit.settle(limit.reserve(1e-6), 1e-6)
    print(time.perf_counter() - began)
"""


def main() -> None:
    """Measure, and print a line for each figure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=64)
    parser.add_argument("--budget", type=int, default=4)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--rate", type=float, default=240.0, help="requests a minute")
    parser.add_argument("--folder", type=Path, default=Path("runs/spending"))
    chosen = parser.parse_args()
    os.environ["OPENAI_API_KEY"] = "sk-none"
    shutil.rmtree(chosen.folder, ignore_errors=True)
    run_jobs(chosen)
    time_reservations(chosen)
    print(machine())


def run_jobs(chosen: argparse.Namespace) -> None:
    """Run the jobs with a limit of half of their total cost."""
    from cwm_litellm.backend import LiteLLM

    price = LiteLLM(f"openai/{MODEL}").price
    each, wanted = price(PROMPT_TOKENS, COMPLETION_TOKENS) or 0.0, chosen.jobs * chosen.budget
    limit = each * wanted / 2
    file, highest, finished = chosen.folder / "bench" / "spending.json", [0.0], threading.Event()
    times, lock = list[float](), threading.Lock()
    programs = WrongPrograms(PROGRAM, tokens=(PROMPT_TOKENS, COMPLETION_TOKENS))

    def respond(body: dict[str, Any]) -> Behaviour:
        with lock:
            times.append(time.monotonic())
        return programs(body)

    def watch() -> None:
        while not finished.wait(0.1):
            state = read_spending(file)
            if state is not None:
                highest[0] = max(highest[0], state.spent + state.lost + state.reserved_amount)

    with OpenAIServer(respond) as server:
        watcher = threading.Thread(target=watch)
        watcher.start()
        cwm_cli.benchmark(
            envs=[ENVIRONMENT],
            models=[f"openai/{MODEL}"],
            strategies=["zero-shot"],
            options=[
                "search.start=none",
                "search.refine=none",
                "search.simplify=0",
                f"backend.max_tokens={MAX_TOKENS}",
                f"backend.requests_per_minute={chosen.rate:g}",
            ],
            seeds=chosen.jobs,
            budget=chosen.budget,
            workers=chosen.workers,
            max_cost=limit,
            api_base=server.url,
            run=chosen.folder / "bench",
        )
        finished.set()
        watcher.join()
    state, charged = read_spending(file), each * len(times)
    assert state is not None and state.left is not None
    max_cost = price(2 * PROMPT_TOKENS, MAX_TOKENS) or 0.0  # no prompt is longer than twice that
    print(
        f"{chosen.jobs} jobs need {wanted} completions for ${each * wanted:.4f}; limit "
        f"${limit:.4f}, charged ${charged:.4f} ({len(times)} completions), largest amount spent or "
        f"reserved ${highest[0]:.4f}"
    )
    print(
        f"left: ${state.left:.5f}, less than the maximum cost of a completion, ${max_cost:.5f}: "
        f"{state.left < max_cost}"
    )
    minutes = (times[-1] - times[0]) / 60 if times else 0.0
    measured = f"{(len(times) - 1) / minutes:.0f}" if minutes > 0 else "too few to measure the"
    print(f"{measured} requests per minute; allowed: {chosen.rate:g}")


def time_reservations(chosen: argparse.Namespace) -> None:
    """Time reservations of one process, and of several processes that use the same file."""
    file = chosen.folder / "reservations.json"
    open_spending(file, 1.0, lambda: 0.0)
    environment = os.environ | {"CWM_SPENDING": f"file:{file}"}
    for count in (1, chosen.workers):
        words = [[sys.executable, "-c", RESERVE_AND_SETTLE, str(n), "100"] for n in range(count)]
        running = [
            subprocess.Popen(w, env=environment, stdout=subprocess.PIPE, text=True) for w in words
        ]
        seconds = sorted(float(line) for each in running for line in each.communicate()[0].split())
        print(
            f"{count} processes: reserving and settling a completion takes "
            f"{1e3 * median(seconds):.1f} ms (95 %: "
            f"{1e3 * seconds[int(0.95 * len(seconds))]:.1f} ms)"
        )


if __name__ == "__main__":
    main()
