"""What a search gains and loses with eight completions in flight instead of one.

    python -m benchmarks.in_flight                     # both parts
    python -m benchmarks.in_flight score --runs 100    # whether as many completions find as much
    python -m benchmarks.in_flight time                # how much sooner a slow provider is through

`score`: simulated searches with GIF-MCTS (the backend `simulated`, no language model), each twice,
with one completion in flight and with several, on the same problem with the same seed. They differ
in what a question knows: with eight in flight the last seven answers are not there yet. Printed are
the mean score of the best program and the mean of the pairs' differences with its 95 % interval.
`time`: `cwm synthesize` asks a server on the loopback that takes two seconds for each answer. Half
of the rewards of its transitions are drawn at random, so that no program is right and the whole
budget is asked for; with and without refiners, which are work of this machine and no waiting. Both
sides are measured in turn, and told are the seconds of processors that a completion takes, too.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

import cwm_cli
from benchmarks.laboratory import LIMITS, TASKS, Kept, made_of
from benchmarks.machine import machine
from benchmarks.measuring import in_turn
from benchmarks.world_models import PROGRAMS
from cwm_cli.commands.collect import load_transitions
from cwm_cli.data.dataset import Dataset
from cwm_cli.registry import environment
from cwm_cli.sandbox import Sandbox
from cwm_cli.search.contracts import GENERATE, Move, Request
from cwm_simulated.backend import Simulated
from tests.support.openai_server import Handler, OpenAIServer, answer

STRATEGY = "gif-mcts"
IN_FLIGHT = 8
BUDGET = 40
LATENCY = 2.0
"""Seconds that the provider takes."""

ENVIRONMENT = "Acrobot-v1"
PROGRAM = PROGRAMS / "acrobot_arrays.py"
TABLES = ("not refined", "refined")


def main() -> None:
    """Measure what is asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", default=[])
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--first", type=int, default=1000, help="number, and seed, of the first")
    parser.add_argument("--budget", type=int, default=BUDGET)
    parser.add_argument("--in-flight", type=int, default=IN_FLIGHT)
    parser.add_argument("--rounds", type=int, default=1, help="of the part time")
    parser.add_argument("--file", type=Path, default=Path("runs/in_flight.jsonl"))
    asked = parser.parse_args()
    parts = asked.parts or ["score", "time"]
    if "score" in parts:
        print("\n".join(scores(asked)))
    if "time" in parts:
        print("\n".join(times(asked)))
    print(machine())


def scores(asked: argparse.Namespace) -> Iterator[str]:
    """Search with one completion in flight and with several; compare what was found."""
    kept, numbers = Kept(asked.file), range(asked.first, asked.first + asked.runs)
    found: dict[int, np.ndarray] = {}
    with Sandbox(LIMITS, 2) as sandbox:
        tasks = dict(text.split("=", 1) for text in TASKS)
        laboratory = made_of(tasks, sandbox, asked.budget, {})
        for parallel in (1, asked.in_flight):
            laboratory = laboratory._replace(parallel=parallel)
            with ThreadPoolExecutor(2 if parallel == 1 else 4) as pool:
                runs = pool.map(partial(kept.scores, laboratory, STRATEGY), numbers)
                found[parallel] = np.array(list(runs))
    one, several = found[1], found[asked.in_flight]
    places = [place for place in (10, 20, 30, 40, asked.budget) if place <= asked.budget]
    for place in dict.fromkeys(places):
        first, second = one[:, place - 1], several[:, place - 1]
        low, high = _interval(second - first)
        yield (
            f"after {place} completions: {first.mean():.4f} with one in flight, "
            f"{second.mean():.4f} with {asked.in_flight}; "
            f"difference {(second - first).mean():+.4f} [{low:+.4f}, {high:+.4f}]; "
            f"solved {(first >= 1).mean():.2f} and {(second >= 1).mean():.2f} "
            f"of {asked.runs} simulated searches"
        )


def _interval(differences: np.ndarray) -> tuple[float, float]:
    """Return the 95 % interval of the mean of pairs' differences, by the bootstrap."""
    rng = np.random.default_rng(0)
    drawn = rng.choice(differences, (10_000, len(differences))).mean(axis=1)
    return float(np.quantile(drawn, 0.025)), float(np.quantile(drawn, 0.975))


def times(asked: argparse.Namespace) -> Iterator[str]:
    """Search with one completion in flight and with several, of a provider that takes its time."""
    os.environ["OPENAI_API_KEY"] = "sk-none"
    for words in TABLES:
        refine = "all" if words == "refined" else "none"
        with tempfile.TemporaryDirectory() as folder, OpenAIServer(_late(LATENCY)) as server:
            synthesize = partial(_synthesize, server.url, Path(folder), asked.budget, refine)
            before = sum(os.times()[:4])
            taken = in_turn(
                lambda number, go=synthesize: go(number, 1),
                lambda number, go=synthesize: go(number, asked.in_flight),
                asked.rounds,
                warm_up=0,
            )
            worked = (sum(os.times()[:4]) - before) / (2 * asked.rounds * asked.budget)
        yield f"{words}: {worked:.2f} s of processors a completion"
        for theirs, ours in zip(taken.theirs, taken.ours, strict=True):
            yield (
                f"{words}: {asked.budget} completions of {LATENCY:g} s took {theirs:.1f} s with "
                f"one in flight, {ours:.1f} s with {asked.in_flight}: {theirs / ours:.2f} times as "
                "fast"
            )


def _synthesize(
    url: str, folder: Path, budget: int, refine: str, number: int, parallel: int
) -> None:
    """Search as `cwm synthesize` does, in a new run."""
    result = cwm_cli.synthesize(
        ENVIRONMENT,
        model="openai/gpt-4o-mini",
        api_base=url,
        options={"search.refine": refine, "search.start": "none"},
        dataset=_unpredictable(),
        budget=budget,
        parallel=parallel,
        seed=number,
        run=folder / f"{refine}-{parallel}-{number}",
    )
    if result.completions < budget:
        raise SystemExit(f"solved after {result.completions}: nothing can be compared")


@cache
def _unpredictable() -> Dataset:
    """Return transitions whose rewards are drawn at random in half of the rows."""
    rows, _ = load_transitions(environment(ENVIRONMENT))
    rng = np.random.default_rng(0)
    drawn = rng.choice([-1.0, 0.0], len(rows)).astype(rows.columns["rewards"].dtype)
    chosen = rng.random(len(rows)) < 0.5
    rewards = np.where(chosen, drawn, rows.columns["rewards"])
    return replace(rows, columns=rows.columns | {"rewards": rewards})


def _late(latency: float) -> Any:
    """Answer every request after a while: with a wrong program, which its seed decides."""
    simulated = Simulated(program=str(PROGRAM), errors=12.0)

    def respond(body: dict[str, Any]) -> Any:
        request = Request((), body["seed"], Move(GENERATE), None)
        said = answer(simulated.complete(request).text)

        def late(handler: Handler) -> None:
            time.sleep(latency)
            said(handler)

        return late

    return respond


if __name__ == "__main__":
    main()
