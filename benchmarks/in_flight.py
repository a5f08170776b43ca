"""Compare a search with eight completions in flight with a search with one.

    python -m benchmarks.in_flight                     # both parts
    python -m benchmarks.in_flight score --runs 100    # scores after equal numbers of completions
    python -m benchmarks.in_flight time                # duration with a slow provider

`score` runs each simulated search with GIF-MCTS (backend `simulated`, no language model) twice,
with one and with several completions in flight, on the same problem with the same seed. With eight
in flight, a prompt does not contain the last seven answers. The part prints the mean score of the
best program, and the mean difference of the pairs with its 95 % interval.
`time` runs `cwm synthesize` with a loopback server that takes two seconds per answer. Half of the
rewards of its transitions are random, so that no program is correct and the whole budget is used.
It measures searches with and without refiners, which compute on this machine. Both sides alternate;
the part also prints the processor seconds per completion.
"""

import argparse
import os
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import numpy as np

import cwm_cli
from benchmarks.laboratory import LIMITS, TASKS, make_laboratory
from benchmarks.machine import machine
from benchmarks.measuring import in_turn
from benchmarks.result_file import ResultFile
from benchmarks.served_programs import WrongPrograms
from benchmarks.world_models import PROGRAMS
from cwm_cli.commands.collect import load_transitions
from cwm_cli.data.dataset import Dataset
from cwm_cli.registry import environment
from cwm_cli.sandbox import Sandbox
from tests.support.openai_server import OpenAIServer

STRATEGY = "gif-mcts"
IN_FLIGHT = 8
BUDGET = 40
LATENCY = 2.0
"""Seconds of an answer."""

ENVIRONMENT = "Acrobot-v1"
PROGRAM = PROGRAMS / "acrobot_arrays.py"
REFINERS = {"not refined": "none", "refined": "all"}


def main() -> None:
    """Measure the selected parts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help="score or time; default: both")
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--first", type=int, default=1000, help="number and seed of the first run")
    parser.add_argument("--budget", type=int, default=BUDGET)
    parser.add_argument("--in-flight", type=int, default=IN_FLIGHT)
    parser.add_argument("--rounds", type=int, default=1, help="of the part time")
    parser.add_argument("--file", type=Path, default=Path("runs/in_flight.jsonl"))
    chosen = parser.parse_args()
    parts = chosen.parts or ["score", "time"]
    if "score" in parts:
        print("\n".join(compare_scores(chosen)))
    if "time" in parts:
        print("\n".join(compare_times(chosen)))
    print(machine())


def compare_scores(chosen: argparse.Namespace) -> Iterator[str]:
    """Compare the scores of searches with one and with several completions in flight."""
    results, numbers = ResultFile(chosen.file), range(chosen.first, chosen.first + chosen.runs)
    found: dict[int, np.ndarray] = {}
    with Sandbox(LIMITS, 2) as sandbox:
        tasks = dict(text.split("=", 1) for text in TASKS)
        laboratory = make_laboratory(tasks, sandbox, chosen.budget, {})
        for parallel in (1, chosen.in_flight):
            laboratory = laboratory._replace(parallel=parallel)
            with ThreadPoolExecutor(2 if parallel == 1 else 4) as pool:
                runs = pool.map(partial(laboratory.scores, results, STRATEGY), numbers)
                found[parallel] = np.array(list(runs))
    one, several = found[1], found[chosen.in_flight]
    places = [place for place in (10, 20, 30, 40, chosen.budget) if place <= chosen.budget]
    for place in dict.fromkeys(places):
        first, second = one[:, place - 1], several[:, place - 1]
        low, high = _interval(second - first)
        yield (
            f"after {place} completions: {first.mean():.4f} with one in flight, "
            f"{second.mean():.4f} with {chosen.in_flight}; "
            f"difference {(second - first).mean():+.4f} [{low:+.4f}, {high:+.4f}]; "
            f"solved {(first >= 1).mean():.2f} and {(second >= 1).mean():.2f} "
            f"of {chosen.runs} simulated searches"
        )


def _interval(differences: np.ndarray) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of the mean difference."""
    rng = np.random.default_rng(0)
    drawn = rng.choice(differences, (10_000, len(differences))).mean(axis=1)
    return float(np.quantile(drawn, 0.025)), float(np.quantile(drawn, 0.975))


def compare_times(chosen: argparse.Namespace) -> Iterator[str]:
    """Compare the seconds of searches with one and with several completions in flight."""
    os.environ["OPENAI_API_KEY"] = "sk-none"
    programs = WrongPrograms(PROGRAM, LATENCY)
    for words, refine in REFINERS.items():
        with tempfile.TemporaryDirectory() as folder, OpenAIServer(programs) as server:
            synthesize = partial(_synthesize, server.url, Path(folder), chosen.budget, refine)
            before = sum(os.times()[:4])
            taken = in_turn(
                lambda number, go=synthesize: go(number, 1),
                lambda number, go=synthesize: go(number, chosen.in_flight),
                chosen.rounds,
                warm_up=0,
            )
            worked = (sum(os.times()[:4]) - before) / (2 * chosen.rounds * chosen.budget)
        yield f"{words}: {worked:.2f} s of processor time per completion"
        for theirs, ours in zip(taken.theirs, taken.ours, strict=True):
            yield (
                f"{words}: {chosen.budget} completions of {LATENCY:g} s took {theirs:.1f} s with "
                f"one in flight, {ours:.1f} s with {chosen.in_flight}: {theirs / ours:.2f} times "
                "as fast"
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
        raise SystemExit(f"solved after {result.completions} completions: no comparison")


@cache
def _unpredictable() -> Dataset:
    """Return transitions with random rewards in half of the rows."""
    rows, _ = load_transitions(environment(ENVIRONMENT))
    rng = np.random.default_rng(0)
    drawn = rng.choice([-1.0, 0.0], len(rows)).astype(rows.columns["rewards"].dtype)
    chosen = rng.random(len(rows)) < 0.5
    rewards = np.where(chosen, drawn, rows.columns["rewards"])
    return replace(rows, columns=rows.columns | {"rewards": rewards})


if __name__ == "__main__":
    main()
