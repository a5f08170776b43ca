"""Compare the choices between two models in one search: score and cost of each.

A search uses the expensive model, the cheap model, both in turn, or the choice of a bandit. The
cheap model has a twentieth of the price; in the four settings it is equal, almost as good, worse or
useless. The searches and the sandbox are real, only the answers come from the backend `simulated`,
so the results do not describe any language model. Runs of the same number have the same seed.
Results are saved in a file and not measured again. With `--http`, a loopback server with OpenAI's
protocol answers for two models, through LiteLLM and with its prices.
"""

import argparse
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.curves import Band
from benchmarks.laboratory import LIMITS, make_problem
from benchmarks.machine import machine
from benchmarks.result_file import ResultFile
from benchmarks.world_models import PROGRAMS
from cwm_cli.problems.world_model import WorldModelProblem
from cwm_cli.registry import find
from cwm_cli.sandbox import Sandbox
from cwm_cli.search import models
from cwm_cli.search.contracts import (
    FIX,
    GENERATE,
    IMPROVE,
    Backend,
    Completion,
    Move,
    Node,
    Request,
    Verdict,
)
from cwm_cli.search.loop import Search
from cwm_cli.search.models import BackendWrapper, Choosing, ModelPool, make_backend, model_uses
from cwm_cli.search.reading import extract_program
from cwm_simulated.backend import Simulated
from cwm_simulated.original import CRASHES
from tests.support.openai_server import OpenAIServer, answer

EXPENSIVE, CHEAP = "openai/gpt-4.1", "openai/gpt-4.1-nano"
"""Names whose prices LiteLLM knows. The figures do not describe these models."""

PRICES = {EXPENSIVE: (2e-6, 8e-6), CHEAP: (1e-7, 4e-7)}
"""US dollars per prompt token and per completion token."""

GOOD = {"errors": 6.0, "crashes": 0.1, "fixes": 0.7, "improves": 0.4, "breaks": 0.1}
"""Options of the backend `simulated` for the expensive model, in all settings."""

SETTINGS: Mapping[str, Mapping[str, float]] = {
    "equal": GOOD,
    "almost as good": GOOD | {"errors": 7.0, "improves": 0.3, "breaks": 0.15},
    "worse": GOOD | {"errors": 10.0, "improves": 0.12, "breaks": 0.2},
    "useless": GOOD | {"errors": 30.0, "fixes": 0.0, "improves": 0.0, "breaks": 0.5},
}
"""Options of the backend `simulated` for the cheap model."""

CHOICES = ("expensive", "cheap", "alternate", "bandit")
LIMIT_IN_ANSWERS = 10
"""A cost limit, as a number of answers of the expensive model."""

TASKS = {"CartPole-v1": "cartpole_helpers", "Pendulum-v1": "pendulum_math"}


class Step(NamedTuple):
    """The best normalised score, total cost and model of a search after a completion."""

    best: float
    spent: float
    model: str


class PricedBackend(BackendWrapper):
    """A backend whose answers have the price of a model."""

    def __init__(self, inner: Backend, name: str) -> None:
        super().__init__(inner)
        self.name = name

    def complete(self, request: Request) -> Completion:
        """Return the answer of the inner backend with its cost."""
        found = self.inner.complete(request)
        cost = self.price(found.usage.prompt_tokens, found.usage.completion_tokens)
        return found._replace(usage=replace(found.usage, cost=cost))

    def price(self, prompt_tokens: int, completion_tokens: int) -> float:
        """Return the price of an answer in US dollars."""
        prompt, completion = PRICES[self.name]
        return prompt * prompt_tokens + completion * completion_tokens


@dataclass(frozen=True)
class CachedProblem(WorldModelProblem):
    """A problem that judges equal programs once: simulated runs repeat many programs."""

    known: dict[str, Verdict] = field(default_factory=dict)

    def judge(self, candidate: str) -> Verdict:
        """Return the verdict on a program, from the cache if possible."""
        if candidate not in self.known:
            self.known[candidate] = super().judge(candidate)
        return self.known[candidate]


class Contest(NamedTuple):
    """The problems by environment, and the number of completions of a run."""

    problems: Mapping[str, WorldModelProblem]
    budget: int

    def run(self, setting: str, choice: str, seed: int) -> list[Step]:
        """Search until a program is correct, or the budget is spent."""
        env = [*self.problems][seed % len(self.problems)]
        file = str(PROGRAMS / f"{TASKS[env]}.py")
        skills = {EXPENSIVE: GOOD, CHEAP: SETTINGS[setting]}
        members = {n: PricedBackend(Simulated(program=file, **s), n) for n, s in skills.items()}
        single = {"expensive": EXPENSIVE, "cheap": CHEAP}.get(choice, "")
        choosing: Choosing = "bandit" if choice == "bandit" else "alternate"
        backend = members[single] if single else ModelPool(members, choosing=choosing)
        problem = replace(self.problems[env])  # a new object, without state of other runs
        search = Search(problem, find("strategy", "gif-mcts")(), backend, seed=seed)
        return search_steps((record.node for record in search.run(self.budget)), single)


def search_steps(nodes: Iterator[Node], model: str = "") -> list[Step]:
    """Return the state of a search after each completion; `model` is used if a node has none."""
    best, spent, found = 0.0, 0.0, list[Step]()
    for node in nodes:
        best = max(best, 1.0 if node.verdict.solved else node.verdict.normalised)
        spent += node.usage.cost or 0.0
        found.append(Step(best, spent, node.model or model))
    return found


def main() -> None:
    """Measure the missing runs, and print a table for each setting."""
    chosen = _parse()
    if chosen.http:
        return run_over_http(chosen)
    results, seeds = ResultFile(chosen.file), range(chosen.first, chosen.first + chosen.seeds)
    # Results of the bandit depend on its code and on these options.
    text = Path(models.__file__).read_bytes() + json.dumps([GOOD, SETTINGS]).encode()
    bandit_version = sha256(text).hexdigest()[:12]
    with Sandbox(LIMITS, chosen.workers) as sandbox:
        contest = Contest({env: _cached_problem(env, sandbox) for env in TASKS}, chosen.budget)

        def run(job: tuple[str, str, int]) -> list[Step]:
            setting, choice, seed = job
            version = bandit_version if choice == "bandit" else "1"
            # The expensive model alone is the same in all settings.
            known = (
                ["", [*GOOD.values()]]
                if choice == "expensive"
                else [setting, [*SETTINGS[setting].values()]]
            )
            key = [*known, choice, seed, chosen.budget, version]
            found = results.measure_once(key, lambda: {"steps": contest.run(*job)})
            return [Step(*each) for each in found["steps"]]

        jobs = [(s, choice, seed) for s in chosen.settings for seed in seeds for choice in CHOICES]
        with ThreadPoolExecutor(chosen.workers) as pool:
            found = dict(zip(jobs, pool.map(run, jobs), strict=True))
    for setting in chosen.settings:
        runs = {choice: [found[setting, choice, seed] for seed in seeds] for choice in CHOICES}
        print("\n".join(table(setting, runs, np.array(seeds) % len(TASKS))))
    print(machine())
    return None


def _cached_problem(env: str, sandbox: Sandbox) -> CachedProblem:
    made = make_problem(env, sandbox)
    fields = {n: getattr(made, n) for n, f in made.__dataclass_fields__.items() if f.init}
    return CachedProblem(**fields)


def table(
    setting: str, runs: Mapping[str, Sequence[list[Step]]], strata: np.ndarray
) -> Iterator[str]:
    """Yield the lines of a table with 95 % bands, and the differences of pairs of runs."""
    answer_cost = np.mean([run[-1].spent / len(run) for run in runs["expensive"]])
    limit = LIMIT_IN_ANSWERS * answer_cost
    yield (
        f"\ncheap is {setting}: {len(strata)} runs, "
        f"${answer_cost:.4f} per answer of the expensive model"
    )
    heads = (
        "score",
        "cost, cents",
        "completions",
        "share expensive",
        "solved",
        f"score for ${limit:.2f}",
    )
    yield f"{'':12}" + "".join(f"{head:>22}" for head in heads)
    within = {
        choice: np.array(
            [max((s.best for s in run if s.spent <= limit), default=0.0) for run in some]
        )
        for choice, some in runs.items()
    }
    for choice, some in runs.items():
        figures = [
            np.array([run[-1].best for run in some]),
            np.array([100 * run[-1].spent for run in some]),
            np.array([len(run) for run in some], float),
            np.array([np.mean([step.model == EXPENSIVE for step in run]) for run in some]),
            np.array([float(run[-1].best >= 1) for run in some]),
            within[choice],
        ]
        yield f"{choice:12}" + "".join(f"{_band(values, strata):>22}" for values in figures)
    for choice in CHOICES[:3]:
        difference = _band(within["bandit"] - within[choice], strata)
        pairs = zip(runs["bandit"], runs[choice], strict=True)
        ratio = np.median([a[-1].spent / b[-1].spent for a, b in pairs])
        yield (
            f"bandit minus {choice}: score for ${limit:.2f} {difference}; "
            f"median ratio of costs {ratio:.2f}"
        )


def _band(values: np.ndarray, strata: np.ndarray) -> str:
    band = Band.of(values, strata)
    return f"{band.mean:.2f} ({band.low:.2f} to {band.high:.2f})"


def run_over_http(chosen: argparse.Namespace) -> None:
    """Search with two models of a server; print the use and the results of each."""
    os.environ.setdefault("OPENAI_API_KEY", "none")
    seeds = range(chosen.first, chosen.first + chosen.seeds)
    with Sandbox(LIMITS, chosen.workers) as sandbox:
        problems = {env: make_problem(env, sandbox) for env in TASKS}
        for setting in chosen.settings:
            for choosing in ("alternate", "bandit"):
                found = [
                    _search_over_http(problems, setting, choosing, seed, chosen.budget)
                    for seed in seeds
                ]
                nodes = [node for some in found for node in some]
                best = np.mean([search_steps(iter(some))[-1].best for some in found])
                print(f"\ncheap is {setting}, {choosing}, {len(found)} runs: mean score {best:.3f}")
                for use in model_uses(nodes):
                    print(
                        f"  {use.model:22} {use.completions:4} completions, "
                        f"{use.tokens:9,} tokens, ${use.cost or 0:.4f}, mean {use.mean_score:.3f}"
                    )
    print(machine())


def _search_over_http(
    problems: Mapping[str, WorldModelProblem],
    setting: str,
    choosing: Choosing,
    seed: int,
    budget: int,
) -> list[Node]:
    """Search with the answers of a server, check the requested models, and return the nodes."""
    env = [*problems][seed % len(problems)]
    script = Script(PROGRAMS / f"{TASKS[env]}.py", setting, seed)
    with OpenAIServer(script) as server:
        backend = make_backend(
            find("backend", "litellm"), f"{EXPENSIVE},{CHEAP}", {"api_base": server.url}, choosing
        )
        strategy = find("strategy", "gif-mcts")()
        search = Search(replace(problems[env]), strategy, backend, seed=seed)
        nodes = [record.node for record in search.run(budget)]
    requested = [request.body["model"] for request in server.requests]
    if requested != [node.model.removeprefix("openai/") for node in nodes]:
        raise SystemExit("the requested models differ from the chosen models")
    return nodes


class Script:
    """Answers of the server: proposals of the requested model.

    A program to fix or improve is found in the code blocks of the prompt.
    """

    def __init__(self, program: Path, setting: str, seed: int) -> None:
        skills = {EXPENSIVE: GOOD, CHEAP: SETTINGS[setting]}
        self._models = {
            name.removeprefix("openai/"): Simulated(program=str(program), **some)
            for name, some in skills.items()
        }
        self._seed, self._count = seed, 0

    def __call__(self, body: Mapping[str, Any]) -> Any:
        """Return a proposal, with estimated token counts."""
        self._count += 1
        model = self._models[body["model"]]
        texts = [message["content"] for message in body["messages"]]
        move = self._move(model, "\n".join(texts))
        found = model.complete(Request((), self._seed, move, None, self._count))
        prompt_tokens = sum(map(len, texts)) // 4
        return answer(
            found.text, prompt_tokens=prompt_tokens, completion_tokens=len(found.text) // 4
        )

    def _move(self, model: Simulated, prompt: str) -> Move:
        """Return the move that a prompt requests."""
        for block in reversed(prompt.split("```")[1::2]):
            program = extract_program(f"```{block}```")
            errors = model.original.read_all(program) if program else None
            if errors:
                broken = any(edit.kind in CRASHES for edit in errors)
                return Move(FIX if broken else IMPROVE, 0, program)
        return Move(GENERATE)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=24, help="runs of each choice")
    parser.add_argument("--first", type=int, default=2000, help="the first seed")
    parser.add_argument("--budget", type=int, default=40, help="completions per run")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=[*SETTINGS])
    parser.add_argument("--file", type=Path, default=Path("runs/bandit.jsonl"))
    parser.add_argument("--http", action="store_true", help="use a loopback server")
    return parser.parse_args()


if __name__ == "__main__":
    main()
