"""Compare search strategies on simulated proposals. The results do not describe language models.

The searches, problems and the sandbox are real, only the answers come from the backend `simulated`.
Its errors and repairs have given probabilities, or the probabilities of one measurement
(`-o chances=measured`, and `measured-blind` for first prompts without data). Runs of the same
number have the same program and seed for all strategies. Results are saved in a file and not
measured again.
"""

import argparse
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.charts import chart
from benchmarks.curves import Curve, curve
from benchmarks.machine import machine
from benchmarks.result_file import ResultFile
from benchmarks.world_models import PROGRAMS
from cwm_cli.commands.recording import record
from cwm_cli.evaluation import AccuracyMetric
from cwm_cli.problems.world_model import WorldModelProblem
from cwm_cli.registry import Owner, environment, find, iterate_parts, read_options
from cwm_cli.sandbox import Limits, Sandbox
from cwm_cli.search.contracts import Backend, Completion, Request, Strategy
from cwm_cli.search.loop import Search
from cwm_cli.search.models import BackendWrapper
from cwm_simulated.backend import Simulated

STRATEGIES = ("gif-mcts", "gif-mcts,preset=paper", "worldcoder", "zero-shot")
TASKS = (
    f"CartPole-v1={PROGRAMS / 'cartpole_helpers.py'}",
    f"Acrobot-v1={PROGRAMS / 'acrobot_arrays.py'}",
    f"Taxi-v3={PROGRAMS / 'taxi_walls.py'}",
    f"CliffWalking-v1={PROGRAMS / 'cliff_branches.py'}",
    f"Pendulum-v1={PROGRAMS / 'pendulum_math.py'}",
)
PROPOSER = Owner("backend", Simulated)
ROWS = 150
LIMITS = Limits(stall_seconds=0.3, memory_mb=256)
PICTURE = Path(__file__).parents[1] / "docs" / "laboratory.svg"
MEDIAN_LATENCY = 0.1
"""Seconds of an answer, if several are in flight: longer than judging a program takes."""
TITLE = "Simulated proposals, not a language model"
SHOWN = (1, 2, 5, 10, 15, 20, 30, 50, 100)
"""Numbers of completions in the columns of the table."""


class SlowBackend(BackendWrapper):
    """A backend that delays its answers, usually by half to twice the given seconds."""

    def __init__(self, inner: Backend, seconds: float) -> None:
        super().__init__(inner)
        self.seconds = seconds

    def complete(self, request: Request) -> Completion:
        """Return the answer of the inner backend after a random delay."""
        rng = np.random.default_rng([request.seed, request.step, 1])
        time.sleep(self.seconds * float(np.exp(rng.normal(0.0, 0.35))))
        return self.inner.complete(request)


class Laboratory(NamedTuple):
    """The problems and backends by environment, and the settings of all runs.

    With several completions in flight, answers are delayed, so that they arrive in another order
    than requested.
    """

    problems: Mapping[str, WorldModelProblem]
    backends: Mapping[str, Simulated]
    budget: int
    parallel: int = 1

    def key(self, strategy: str, number: int) -> list[Any]:
        """Return everything except the code that determines the outcome of a run."""
        env = self._env(number)
        backend, dataset = self.backends[env], self.problems[env].dataset
        options = PROPOSER.identity(backend) | {"program": _digest(backend.program)}
        key = [strategy, env, number, self.budget, options, dataset.digest[:12]]
        return key if self.parallel == 1 else [*key, self.parallel]

    def run(self, strategy: str, number: int) -> list[float]:
        """Search; return the score of the best program so far after each completion."""
        env = self._env(number)
        backend = self.backends[env].of_system(number)
        problem = replace(self.problems[env])  # a new object, without state of other runs
        source = backend if self.parallel == 1 else SlowBackend(backend, MEDIAN_LATENCY)
        search = Search(problem, _strategy(strategy), source, seed=number, parallel=self.parallel)
        bests = (search.best for _ in search.run(self.budget))
        scores = [best.verdict.score for best in bests if best]
        return scores + [1.0] * (self.budget - len(scores))

    def scores(self, results: ResultFile, strategy: str, number: int) -> list[float]:
        """Return the saved scores of a run, or run it."""
        found: list[float] = results.measure_once(
            self.key(strategy, number), lambda: {"scores": self.run(strategy, number)}
        )["scores"]
        return found

    def _env(self, number: int) -> str:
        return list(self.problems)[number % len(self.problems)]


def main() -> None:
    """Run the missing searches, print a table and draw the curves."""
    arguments = _parse()
    options = read_options(arguments.option, [PROPOSER])[PROPOSER.label]
    results = ResultFile(arguments.file)
    with Sandbox(LIMITS, arguments.workers) as sandbox:
        tasks = dict(text.split("=", 1) for text in arguments.programs)
        laboratory = make_laboratory(tasks, sandbox, arguments.budget, options)
        laboratory = laboratory._replace(parallel=arguments.parallel)
        with ThreadPoolExecutor(arguments.workers) as pool:
            numbers = range(arguments.first, arguments.first + arguments.runs)
            names = [name for number in numbers for name in arguments.strategies]
            runs = [number for number in numbers for _ in arguments.strategies]
            found = list(pool.map(partial(laboratory.scores, results), names, runs))
    places = np.array(numbers) % len(laboratory.problems)
    count = len(arguments.strategies)
    curves = [
        curve(name, np.array(found[place::count]), places)
        for place, name in enumerate(arguments.strategies)
    ]
    print("\n".join(_table(curves, laboratory)))
    chances = next(iter(laboratory.backends.values())).chances
    title = TITLE if chances == "errors" else f"{TITLE} ({chances})"
    arguments.picture.write_text(chart(curves, f"{title}, {arguments.runs} runs each"))
    print(f"{arguments.picture}; {machine()}")


def _parse() -> argparse.Namespace:
    known = {name for _, entries in iterate_parts("strategy") for name in entries}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=200, help="per strategy")
    parser.add_argument("--first", type=int, default=0, help="number, and seed, of the first run")
    parser.add_argument("--budget", type=int, default=30, help="completions per run")
    parser.add_argument("--parallel", type=int, default=1, help="completions in flight per run")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--programs", nargs="+", metavar="ENV=FILE", default=TASKS)
    strategies = [text for text in STRATEGIES if text.split(",")[0] in known]
    parser.add_argument("--strategies", nargs="+", metavar="NAME[,KEY=VALUE]", default=strategies)
    parser.add_argument("-o", dest="option", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--file", type=Path, default=Path("runs/laboratory.jsonl"))
    parser.add_argument("--picture", type=Path, default=PICTURE)
    return parser.parse_args()


def make_laboratory(
    tasks: Mapping[str, str], sandbox: Sandbox, budget: int, options: Mapping[str, Any]
) -> Laboratory:
    """Record transitions of environments, and check that the programs predict all of them.

    Args:
        tasks: Files of correct programs by environment.
        sandbox: Where programs are judged.
        budget: Completions per run.
        options: Options of the backend `simulated`.
    """
    problems = {env: make_problem(env, sandbox) for env in tasks}
    for env, file in tasks.items():
        if not problems[env].judge(Path(file).read_text(encoding="utf-8")).solved:
            raise SystemExit(f"{file} does not predict {env}: name a correct program")
    backends = {env: Simulated(program=file, **options) for env, file in tasks.items()}
    return Laboratory(problems, backends, budget)


def make_problem(env: str, sandbox: Sandbox) -> WorldModelProblem:
    """Record `ROWS` transitions, spread over 30 random episodes, and return the problem."""
    spec = environment(env)
    recorded = record(spec, policy="random", episodes=30, test_episodes=0, max_steps=60)
    dataset = recorded[np.linspace(0, len(recorded) - 1, ROWS).astype(int)]
    return WorldModelProblem("", dataset, sandbox, AccuracyMetric.of(dataset), feedback="paper")


def _strategy(text: str) -> Strategy:
    """Return the strategy of a name and options, such as `gif-mcts,preset=paper`."""
    name, *options = text.split(",")
    owner = Owner("strategy", find("strategy", name))
    made: Strategy = owner.factory(**read_options(options, [owner])[owner.label])
    return made


def _digest(file: str) -> str:
    return sha256(Path(file).read_bytes()).hexdigest()[:12]


def _table(curves: Sequence[Curve], laboratory: Laboratory) -> Iterator[str]:
    """Yield the lines of two tables: score of the best program so far, and share of runs solved."""
    columns = [place for place in SHOWN if place <= laboratory.budget]
    if laboratory.budget not in columns:
        columns.append(laboratory.budget)
    example = next(iter(laboratory.backends.values()))
    numbers = ("errors", "crashes", "fixes", "improves", "breaks")
    chances = [f"{name} {getattr(example, name):g}" for name in numbers]
    words = ", ".join(chances) if example.chances == "errors" else example.chances
    yield f"{TITLE}: {words}"
    width = max(len(line.name) for line in curves) + 2
    for title in ("scores", "solved"):
        yield f"{title:{width}}" + "".join(f"{place:>18}" for place in columns)
        for line in curves:
            cells = line.cells(getattr(line, title), [place - 1 for place in columns])
            yield f"{line.name:{width}}" + "".join(f"{cell:>18}" for cell in cells)


if __name__ == "__main__":
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    main()
