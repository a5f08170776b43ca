"""What completions in flight gain, and what a completion takes beside the model.

A server on the loopback, in a process of its own, answers each request after a
fixed time. A real search asks it through the backend `litellm`. Time beside the
model is that of the processor, in all threads of the search's process.
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
from benchmarks.journal import Drawn
from benchmarks.measuring import calls, in_turn, seconds
from benchmarks.script import main
from cwm_cli.registry import find
from cwm_cli.search.contracts import GENERATE, Move, Request
from cwm_cli.search.loop import Search
from tests.support.openai_server import Handler, OpenAIServer, answer

MODEL = "gpt-4o-mini"
LATENCY, SHORTER = 0.5, 0.2
IN_FLIGHT = (2, 4, 8, 16)
TURNS = 8
ENOUGH = 0.9
"""The share of the completions in flight that the gain should be at least, up to 8."""


@contextmanager
def served(latency: float) -> Iterator[str]:
    """Start a server that takes so many seconds to answer; yield its address."""
    os.environ.setdefault("OPENAI_API_KEY", "none")
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    server = context.Process(target=serve, args=(theirs, latency), daemon=True)
    server.start()
    try:
        yield ours.recv()
    finally:
        ours.send("that is all")
        server.join()


def serve(pipe: Connection, latency: float) -> None:
    """Tell the address, and answer until something is heard."""
    drawn = Drawn()
    answered = answer(drawn.complete(Request((), 0, Move(GENERATE), drawn)).text)

    def answer_late(handler: Handler) -> None:
        time.sleep(latency)
        answered(handler)

    with OpenAIServer([answer_late]) as server:
        pipe.send(server.url)
        pipe.recv()


def search(address: str, completions: int, *, parallel: int = 1) -> None:
    """Search with so many completions, of which some are in flight at once."""
    backend = find("backend", "litellm")(model=f"openai/{MODEL}", api_base=address)
    asking = Search(Drawn(), find("strategy", "zero-shot")(), backend, parallel=parallel)
    assert sum(1 for _ in asking.run(completions)) == completions


def gain(in_flight: int, quick: bool) -> Measured:
    """Measure one completion in flight and several in turn: as many answers for each."""
    turns, rounds = (4, 1) if quick else (TURNS, 3)
    with served(SHORTER if quick else LATENCY) as address:
        search(address, in_flight, parallel=in_flight)  # so that all is loaded and connected
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
    """Measure LiteLLM alone and the search with it in turn, and plain HTTP beside them."""
    completions, rounds = 20, 3 if quick else 10
    with served(0.0) as address:
        search(address, 1)
        times = in_turn(
            lambda _: ask_litellm(address, completions),
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


def ask_litellm(address: str, completions: int) -> None:
    """Ask LiteLLM for completions, and nothing more."""
    from cwm_litellm.library import load

    litellm = load()
    for _ in range(completions):
        litellm.completion(f"openai/{MODEL}", messages=_messages(), api_base=address)


def post(address: str, completions: int) -> None:
    """Send the requests without any library for models."""
    with httpx.Client() as client:
        for _ in range(completions):
            body = {"model": MODEL, "messages": _messages()}
            client.post(f"{address}/chat/completions", json=body).json()


def _messages() -> list[dict[str, str]]:
    """Write a prompt."""
    drawn = Drawn().messages(Move(GENERATE))
    return [message.model_dump() for message in drawn]


CLAIMS = (
    *(
        Claim(
            f"completions-{number}",
            f"completions per second with {number} in flight against one, {LATENCY:g} s each"
            f" ({SHORTER:g} s in a quick run)",
            partial(gain, number),
            goal=ENOUGH * number if number <= 8 else None,
            in_quick=number == 8,
        )
        for number in IN_FLIGHT
    ),
    Claim(
        "completions-cost",
        "processor time of a search's completion against LiteLLM's alone",
        cost,
        goal=1.5,
        is_cost=True,
    ),
)

if __name__ == "__main__":
    main(CLAIMS)
