"""Measure the gain of completions in flight, and the processor time of a completion.

A loopback server in its own process answers each request after a fixed time. A real search sends
requests through the backend `litellm`. Processor time includes all threads of its process.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from statistics import median

import httpx

from benchmarks.claims import Claim, Measured
from benchmarks.journal import RandomProblem
from benchmarks.measuring import calls, in_turn, seconds
from benchmarks.script import main
from benchmarks.served_programs import late
from cwm_cli.registry import find
from cwm_cli.search.contracts import GENERATE, Move, Request
from cwm_cli.search.loop import Search
from tests.support.openai_server import OpenAIServer, answer

MODEL = "gpt-4o-mini"
LATENCY, QUICK_LATENCY = 0.5, 0.2
IN_FLIGHT = (2, 4, 8, 16)
TURNS = 8
MIN_GAIN_PER_COMPLETION = 0.9
"""Goal of the gain divided by the number of completions in flight, up to 8."""


@contextmanager
def running_server(latency: float) -> Iterator[str]:
    """Start a server that answers after `latency` seconds; yield its address."""
    os.environ.setdefault("OPENAI_API_KEY", "none")
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    server = context.Process(target=serve, args=(theirs, latency), daemon=True)
    server.start()
    try:
        yield ours.recv()
    finally:
        ours.send("stop")
        server.join()


def serve(pipe: Connection, latency: float) -> None:
    """Send the address through a pipe, and answer requests until a message arrives."""
    drawn = RandomProblem()
    behaviour = answer(drawn.complete(Request((), 0, Move(GENERATE), drawn)).text)
    with OpenAIServer([late(behaviour, latency)]) as server:
        pipe.send(server.url)
        pipe.recv()


def search(address: str, completions: int, *, parallel: int = 1) -> None:
    """Search with a number of completions; `parallel` completions are in flight."""
    backend = find("backend", "litellm")(model=f"openai/{MODEL}", api_base=address)
    running = Search(RandomProblem(), find("strategy", "zero-shot")(), backend, parallel=parallel)
    assert sum(1 for _ in running.run(completions)) == completions


def gain(in_flight: int, quick: bool) -> Measured:
    """Measure one and several completions in flight alternately, with equal numbers of turns."""
    turns, rounds = (4, 1) if quick else (TURNS, 3)
    with running_server(QUICK_LATENCY if quick else LATENCY) as address:
        search(address, in_flight, parallel=in_flight)  # loads modules and opens connections
        times = in_turn(
            lambda _: search(address, turns),
            lambda _: search(address, turns * in_flight, parallel=in_flight),
            rounds,
            warm_up=0,
        )
    figures = {
        "one per second": turns / median(times.theirs),
        f"{in_flight} per second": turns * in_flight / median(times.ours),
    }
    return Measured([in_flight * each for each in times.gains], figures)


def cost(quick: bool) -> Measured:
    """Measure LiteLLM alone and a search with it alternately, and plain HTTP requests."""
    completions, rounds = 20, 3 if quick else 10
    with running_server(0.0) as address:
        search(address, 1)
        times = in_turn(
            lambda _: call_litellm(address, completions),
            lambda _: search(address, completions),
            rounds,
            clock=time.process_time,
        )
        plain = seconds(lambda: post(address, completions), time.process_time)
        counted = calls(lambda: search(address, completions))
    figures = {
        "plain HTTP ms": 1e3 * plain / completions,
        "LiteLLM ms": 1e3 * median(times.theirs) / completions,
        "search ms": 1e3 * median(times.ours) / completions,
    }
    return Measured(times.costs, figures, {f"calls in {completions} completions": counted})


def call_litellm(address: str, completions: int) -> None:
    """Request completions with LiteLLM alone."""
    from cwm_litellm.library import load

    litellm = load()
    for _ in range(completions):
        litellm.completion(f"openai/{MODEL}", messages=_messages(), api_base=address)


def post(address: str, completions: int) -> None:
    """Request completions with plain HTTP."""
    with httpx.Client() as client:
        for _ in range(completions):
            body = {"model": MODEL, "messages": _messages()}
            client.post(f"{address}/chat/completions", json=body).json()


def _messages() -> list[dict[str, str]]:
    return [message.model_dump() for message in RandomProblem().messages(Move(GENERATE))]


CLAIMS = (
    *(
        Claim(
            f"completions-{number}",
            f"completions per second with {number} in flight against one, {LATENCY:g} s each"
            f" ({QUICK_LATENCY:g} s in a quick run)",
            partial(gain, number),
            goal=MIN_GAIN_PER_COMPLETION * number if number <= 8 else None,
            in_quick=number == 8,
        )
        for number in IN_FLIGHT
    ),
    Claim(
        "completions-cost",
        "processor time of a completion of a search against LiteLLM alone",
        cost,
        goal=1.5,
        is_cost=True,
    ),
)

if __name__ == "__main__":
    main(CLAIMS)
