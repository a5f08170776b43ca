"""Sixty-four jobs that share a limit of half of what they want, of a model that has a price.

    python -m benchmarks.spending
    python -m benchmarks.spending --jobs 8 --budget 4 --rate 120

The jobs are processes of `cwm benchmark` on this machine; a server on the loopback speaks the
protocol of OpenAI, says how many tokens it read and wrote, and adds up what a provider would
charge at LiteLLM's price. Told are: what was charged against the limit, at the end and at the most
while jobs ran; what was left, against the most that a single completion may cost (no job stops
before less than that is left); requests a minute against the rate that was asked for; and what
asking takes for a completion, with so many processes at the same file.
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
from benchmarks.world_models import PROGRAMS
from cwm_cli.search.contracts import GENERATE, Move, Request
from cwm_cli.search.spending import open_spending, read_spending
from cwm_simulated.backend import Simulated
from tests.support.openai_server import OpenAIServer, answer

ENVIRONMENT, PROGRAM = "CliffWalking-v1", PROGRAMS / "cliff_branches.py"
MODEL = "gpt-4o-mini"
PROMPT, WRITTEN = 2_000, 1_000
"""Tokens that the server says it read and wrote for each request."""

MOST = 2_000
"""Most tokens of an answer, so that the worst case is twice what is charged."""

ASKING = """
import sys, time
from cwm_cli.search.spending import CostLimit
limit = CostLimit.shared(sys.argv[1])
for _ in range(int(sys.argv[2])):
    began = time.perf_counter()
    limit.settle(limit.reserve(1e-6), 1e-6)
    print(time.perf_counter() - began)
"""


def main() -> None:
    """Measure, and print a line for each finding."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=64)
    parser.add_argument("--budget", type=int, default=4)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--rate", type=float, default=240.0, help="requests a minute")
    parser.add_argument("--folder", type=Path, default=Path("runs/spending"))
    asked = parser.parse_args()
    os.environ["OPENAI_API_KEY"] = "sk-none"
    shutil.rmtree(asked.folder, ignore_errors=True)
    limited(asked)
    asking(asked)
    print(machine())


def limited(asked: argparse.Namespace) -> None:
    """Run the jobs with a limit of half of what they want."""
    from cwm_litellm.backend import LiteLLM

    price = LiteLLM(f"openai/{MODEL}").price
    each, wanted = price(PROMPT, WRITTEN) or 0.0, asked.jobs * asked.budget
    limit = each * wanted / 2
    place, highest, over = asked.folder / "bench" / "spending.json", [0.0], threading.Event()
    simulated, times, lock = Simulated(program=str(PROGRAM), errors=12.0), [], threading.Lock()

    def respond(body: dict[str, Any]) -> Any:
        with lock:
            times.append(time.monotonic())
        said = simulated.complete(Request((), body["seed"], Move(GENERATE), None)).text
        return answer(said, PROMPT, WRITTEN)

    def watch() -> None:
        while not over.wait(0.1):
            state = read_spending(place)
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
                f"backend.max_tokens={MOST}",
                f"backend.requests_per_minute={asked.rate:g}",
            ],
            seeds=asked.jobs,
            budget=asked.budget,
            workers=asked.workers,
            max_cost=limit,
            api_base=server.url,
            run=asked.folder / "bench",
        )
        over.set()
        watcher.join()
    state, charged = read_spending(place), each * len(times)
    assert state is not None and state.left is not None
    worst = price(2 * PROMPT, MOST) or 0.0  # no prompt of these is longer than twice that
    print(
        f"{asked.jobs} jobs wanted {wanted} completions for ${each * wanted:.4f}: the limit was "
        f"${limit:.4f}, ${charged:.4f} was charged ({len(times)} completions), and never more than "
        f"${highest[0]:.4f} was spent or kept back"
    )
    print(
        f"left: ${state.left:.5f}, less than the worst of a completion, ${worst:.5f}: "
        f"{state.left < worst}"
    )
    minutes = (times[-1] - times[0]) / 60
    print(
        f"{(len(times) - 1) / minutes:.0f} requests a minute, of {asked.rate:g} that were allowed"
    )


def asking(asked: argparse.Namespace) -> None:
    """Have as many processes ask the same file at the same time."""
    place = asked.folder / "asked.json"
    open_spending(place, 1.0, lambda: 0.0)
    environment = os.environ | {"CWM_SPENDING": f"file:{place}"}
    for count in (1, asked.workers):
        words = [[sys.executable, "-c", ASKING, str(n), "100"] for n in range(count)]
        running = [
            subprocess.Popen(w, env=environment, stdout=subprocess.PIPE, text=True) for w in words
        ]
        taken = [float(line) for each in running for line in (each.communicate()[0].split())]
        taken.sort()
        print(
            f"{count} processes: keeping back and settling takes {1e3 * median(taken):.1f} ms of a "
            f"completion (95 %: {1e3 * taken[int(0.95 * len(taken))]:.1f} ms)"
        )


if __name__ == "__main__":
    main()
