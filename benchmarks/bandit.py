"""Two models in one search: score and cost by each alone, in turn, and chosen by a bandit.

Every run is a real search for a real world model in the real sandbox; only the answers are
simulated, by the backend `simulated`, so this says nothing about any language model. One model is
dear, the other costs a twentieth; in the settings the cheap one is equal, nearly as good, worse or
useless. Run number n of every way has the same seed. Results are kept in a file, a line each: what
is there is not run again. With `--http` two models of a server on the loopback that speaks OpenAI's
protocol answer, through LiteLLM and by its prices.
"""

import argparse
import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.curves import Band
from benchmarks.laboratory import LIMITS, _problem
from benchmarks.machine import machine
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

DEAR, CHEAP = "openai/gpt-4.1", "openai/gpt-4.1-nano"
"""Names whose prices LiteLLM knows: 2 and 8 US dollars a million tokens, and a twentieth of that.
No figure here says anything about these models."""

PRICES = {DEAR: (2e-6, 8e-6), CHEAP: (1e-7, 4e-7)}
"""US dollars for a token of the prompt, and one of the answer."""

GOOD = {"errors": 6.0, "crashes": 0.1, "fixes": 0.7, "improves": 0.4, "breaks": 0.1}
"""What the dear model does in every setting, as options of the backend `simulated`."""

SETTINGS: Mapping[str, Mapping[str, float]] = {
    "equal": GOOD,
    "nearly as good": GOOD | {"errors": 7.0, "improves": 0.3, "breaks": 0.15},
    "worse": GOOD | {"errors": 10.0, "improves": 0.12, "breaks": 0.2},
    "useless": GOOD | {"errors": 30.0, "fixes": 0.0, "improves": 0.0, "breaks": 0.5},
}
"""What the cheap model does."""

WAYS = ("dear", "cheap", "alternate", "bandit")
MONEY = 10
"""A limit of cost, in answers of the dear model alone."""

TASKS = {"CartPole-v1": "cartpole_helpers", "Pendulum-v1": "pendulum_math"}


class Step(NamedTuple):
    """What a search had after a completion: the best normalised score, what was spent, on whom."""

    best: float
    spent: float
    model: str


class Priced(BackendWrapper):
    """Answers cost what so many tokens cost of a model of a name."""

    def __init__(self, inner: Backend, name: str) -> None:
        super().__init__(inner)
        self.name = name

    def complete(self, request: Request) -> Completion:
        """Have the inner one answer, and name the price."""
        found = self.inner.complete(request)
        cost = self.price(found.usage.prompt_tokens, found.usage.completion_tokens)
        return found._replace(usage=replace(found.usage, cost=cost))

    def price(self, prompt_tokens: int, completion_tokens: int) -> float:
        """Return the price of so many tokens."""
        prompt, answered = PRICES[self.name]
        return prompt * prompt_tokens + answered * completion_tokens


@dataclass(frozen=True)
class Judged(WorldModelProblem):
    """A problem that judges no text twice: runs of simulated proposals write many alike."""

    known: dict[str, Verdict] = field(default_factory=dict)

    def judge(self, candidate: str) -> Verdict:
        """Judge a program, or know it."""
        if candidate not in self.known:
            self.known[candidate] = super().judge(candidate)
        return self.known[candidate]


class Contest(NamedTuple):
    """What runs have in common."""

    problems: Mapping[str, WorldModelProblem]
    budget: int

    def run(self, setting: str, way: str, seed: int) -> list[Step]:
        """Search until a program is right, or the budget is spent."""
        env = [*self.problems][seed % len(self.problems)]
        file = str(PROGRAMS / f"{TASKS[env]}.py")
        skills = {DEAR: GOOD, CHEAP: SETTINGS[setting]}
        members = {n: Priced(Simulated(program=file, **s), n) for n, s in skills.items()}
        alone = {"dear": members[DEAR], "cheap": members[CHEAP]}
        choosing: Choosing = "bandit" if way == "bandit" else "alternate"
        backend = alone.get(way) or ModelPool(members, choosing=choosing)
        problem = replace(self.problems[env])  # one that has not learned of another run
        search = Search(problem, find("strategy", "gif-mcts")(), backend, seed=seed)
        usual = {"dear": DEAR, "cheap": CHEAP}.get(way, "")
        return steps((record.node for record in search.run(self.budget)), usual)


def steps(nodes: Iterator[Node], usual: str = "") -> list[Step]:
    """Say what a search had after each completion."""
    best, spent, found = 0.0, 0.0, list[Step]()
    for node in nodes:
        best = max(best, 1.0 if node.verdict.solved else node.verdict.normalised)
        spent += node.usage.cost or 0.0
        found.append(Step(best, spent, node.model or usual))
    return found


class KeptSteps:
    """The runs that are in a file, and those that are added to it."""

    def __init__(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        self._file, self._lock = file, threading.Lock()
        lines = file.read_text().splitlines() if file.exists() else []
        self._known = {json.dumps(one["key"]): one["steps"] for one in map(json.loads, lines)}

    def found(self, key: Sequence[Any], make: Callable[[], list[Step]]) -> list[Step]:
        """Return a run, which takes place unless it has already."""
        name = json.dumps(key)
        if name not in self._known:
            made = make()
            with self._lock, self._file.open("a") as file:
                file.write(json.dumps({"key": key, "steps": made}) + "\n")
                self._known[name] = made
        return [Step(*each) for each in self._known[name]]


def version() -> str:
    """Return what tells this way to choose from others."""
    text = Path(models.__file__).read_bytes() + json.dumps([GOOD, SETTINGS]).encode()
    return sha256(text).hexdigest()[:12]


def main() -> None:
    """Run what is missing, and print a table for each setting."""
    chosen = _arguments()
    if chosen.http:
        return over_http(chosen)
    kept, seeds = KeptSteps(chosen.file), range(chosen.first, chosen.first + chosen.seeds)
    with Sandbox(LIMITS, chosen.workers) as sandbox:
        contest = Contest({env: _judged(env, sandbox) for env in TASKS}, chosen.budget)

        def run(job: tuple[str, str, int]) -> list[Step]:
            version_of = version() if job[1] == "bandit" else "1"
            skills = [*SETTINGS[job[0]].values()] if job[1] != "dear" else [*GOOD.values()]
            setting = job[0] if job[1] != "dear" else ""  # which runs alike in every setting
            key = [setting, skills, *job[1:], chosen.budget, version_of]
            return kept.found(key, lambda: contest.run(*job))

        jobs = [(s, way, seed) for s in chosen.settings for seed in seeds for way in WAYS]
        with ThreadPoolExecutor(chosen.workers) as pool:
            found = dict(zip(jobs, pool.map(run, jobs), strict=True))
    for setting in chosen.settings:
        runs = {way: [found[setting, way, seed] for seed in seeds] for way in WAYS}
        print("\n".join(table(setting, runs, np.array(seeds) % len(TASKS), chosen.budget)))
    print(machine())
    return None


def _judged(env: str, sandbox: Sandbox) -> Judged:
    made = _problem(env, sandbox)
    fields = {n: getattr(made, n) for n, f in made.__dataclass_fields__.items() if f.init}
    return Judged(**fields)


def table(
    setting: str, runs: Mapping[str, Sequence[list[Step]]], strata: np.ndarray, budget: int
) -> Iterator[str]:
    """Yield the lines of a table, with 95 % bands, and differences of pairs of runs."""
    each = np.mean([run[-1].spent / len(run) for run in runs["dear"]])
    limit = MONEY * each
    yield f"\ncheap is {setting}: {len(strata)} runs, ${each:.4f} an answer of the dear one"
    heads = (
        "score",
        "cost, cents",
        "completions",
        "share dear",
        "solved",
        f"score for ${limit:.2f}",
    )
    yield f"{'':12}" + "".join(f"{head:>22}" for head in heads)
    within = {
        way: np.array([max((s.best for s in run if s.spent <= limit), default=0.0) for run in some])
        for way, some in runs.items()
    }
    for way, some in runs.items():
        figures = [
            np.array([run[-1].best for run in some]),
            np.array([100 * run[-1].spent for run in some]),
            np.array([len(run) for run in some], float),
            np.array([np.mean([step.model == DEAR for step in run]) for run in some]),
            np.array([float(run[-1].best >= 1) for run in some]),
            within[way],
        ]
        yield f"{way:12}" + "".join(f"{_band(values, strata):>22}" for values in figures)
    for way in WAYS[:3]:
        difference = _band(within["bandit"] - within[way], strata)
        cost = [a[-1].spent / b[-1].spent for a, b in zip(runs["bandit"], runs[way], strict=True)]
        yield (
            f"bandit less {way}: score for ${limit:.2f} {difference}; "
            f"median ratio of costs {np.median(cost):.2f}"
        )


def _band(values: np.ndarray, strata: np.ndarray) -> str:
    """Write a mean and its band."""
    band = Band.of(values, strata)
    return f"{band.mean:.2f} ({band.low:.2f} to {band.high:.2f})"


def over_http(chosen: argparse.Namespace) -> None:
    """Search with two models of a server; print what each took and brought."""
    os.environ.setdefault("OPENAI_API_KEY", "none")
    seeds = range(chosen.first, chosen.first + chosen.seeds)
    with Sandbox(LIMITS, chosen.workers) as sandbox:
        problems = {env: _problem(env, sandbox) for env in TASKS}
        for setting in chosen.settings:
            for choosing in ("alternate", "bandit"):
                found = [
                    _served(problems, setting, choosing, seed, chosen.budget) for seed in seeds
                ]
                nodes = [node for some in found for node in some]
                best = np.mean([steps(iter(some))[-1].best for some in found])
                print(f"\ncheap is {setting}, {choosing}, {len(found)} runs: mean score {best:.3f}")
                for use in model_uses(nodes):
                    print(
                        f"  {use.model:22} {use.completions:4} completions, "
                        f"{use.tokens:9,} tokens, ${use.cost or 0:.4f}, mean {use.mean_score:.3f}"
                    )
    print(machine())


def _served(
    problems: Mapping[str, WorldModelProblem],
    setting: str,
    choosing: Choosing,
    seed: int,
    budget: int,
) -> list[Node]:
    """Search with what a server answers; return the nodes."""
    env = [*problems][seed % len(problems)]
    script = Script(PROGRAMS / f"{TASKS[env]}.py", setting, seed)
    with OpenAIServer(script) as server:
        backend = make_backend(
            find("backend", "litellm"), f"{DEAR},{CHEAP}", {"api_base": server.url}, choosing
        )
        strategy = find("strategy", "gif-mcts")()
        search = Search(replace(problems[env]), strategy, backend, seed=seed)
        nodes = [record.node for record in search.run(budget)]
    asked = [request.body["model"] for request in server.requests]
    if asked != [node.model.removeprefix("openai/") for node in nodes]:
        raise SystemExit("others were asked than were chosen")
    return nodes


class Script:
    """What the server does: proposals of one of two models, told by the name that is asked for.

    A program to better is found in the prompt, where it stands in a block of code.
    """

    def __init__(self, program: Path, setting: str, seed: int) -> None:
        skills = {DEAR: GOOD, CHEAP: SETTINGS[setting]}
        self._models = {
            name.removeprefix("openai/"): Simulated(program=str(program), **some)
            for name, some in skills.items()
        }
        self._seed, self._asked = seed, 0

    def __call__(self, body: Mapping[str, Any]) -> Any:
        """Answer with a proposal, its tokens counted."""
        self._asked += 1
        model = self._models[body["model"]]
        texts = [message["content"] for message in body["messages"]]
        move = self._move(model, "\n".join(texts))
        found = model.complete(Request((), self._seed, move, None, self._asked))
        asked = sum(map(len, texts)) // 4
        return answer(found.text, prompt_tokens=asked, completion_tokens=len(found.text) // 4)

    def _move(self, model: Simulated, prompt: str) -> Move:
        """Tell what is asked for."""
        for block in reversed(prompt.split("```")[1::2]):
            program = extract_program(f"```{block}```")
            errors = model._original.read_all(program) if program else None
            if errors:
                broken = any(edit.kind in CRASHES for edit in errors)
                return Move(FIX if broken else IMPROVE, 0, program)
        return Move(GENERATE)


def _arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=24, help="runs of each way")
    parser.add_argument("--first", type=int, default=2000, help="the first seed")
    parser.add_argument("--budget", type=int, default=40, help="completions per run")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=[*SETTINGS])
    parser.add_argument("--file", type=Path, default=Path("runs/bandit.jsonl"))
    parser.add_argument("--http", action="store_true", help="ask a server on the loopback")
    return parser.parse_args()


if __name__ == "__main__":
    main()
