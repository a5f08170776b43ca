"""Compare how often chains visit five rules with the exact posterior, for an uneven proposal."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import exp, log
from pathlib import Path
from typing import Any

import numpy as np

from cwm_cli.registry import find
from cwm_cli.search.contracts import (
    GENERATE,
    IMPROVE,
    Backend,
    Completion,
    Message,
    Move,
    Problem,
    Request,
    ScoreRequest,
    Verdict,
)
from cwm_cli.search.loop import Search

STEPS = 50_000
NAMES = "abcde"


class Table(Problem):
    """A problem with five rules of known likelihood."""

    moves = (GENERATE, IMPROVE)

    def __init__(self, likelihoods: Mapping[str, float]) -> None:
        self.likelihoods = likelihoods

    def messages(self, move: Move) -> tuple[Message, ...]:
        """Return a prompt for one of the rules."""
        return (Message(role="user", content=f"One of {NAMES}, after {move.program!r}."),)

    def read(self, text: str, move: Move) -> str:
        """Return the answer unchanged."""
        return text

    def judge(self, candidate: str) -> Verdict:
        """Return the known likelihood of a rule."""
        likelihood = self.likelihoods[candidate]
        return Verdict(exp(likelihood), log_likelihood=likelihood)


class Proposer(Backend):
    """A backend that proposes rules with known probabilities."""

    can_score = True

    def __init__(self, chances: Mapping[str, np.ndarray]) -> None:
        self.chances = chances

    def complete(self, request: Request) -> Completion:
        """Draw a rule."""
        chances = self.chances[request.move.program]
        place = np.random.default_rng(request.seed).choice(len(NAMES), p=chances)
        return Completion(NAMES[place], log_probability=log(chances[place]))

    def score(self, requests: Sequence[ScoreRequest]) -> Sequence[Sequence[float]]:
        """Return the log-probabilities of proposals."""
        pairs = [(each.question.move.program, each.text) for each in requests]  # type: ignore[attr-defined]
        return [[log(self.chances[given][NAMES.index(text)])] for given, text in pairs]


def balance(case: str, seed: int, folder: Path) -> dict[str, Any]:
    """Return the total variation distance of the states of a chain and the exact posterior."""
    rng = np.random.default_rng(seed)
    likelihoods = dict(zip(NAMES, -2 * rng.random(len(NAMES)) - 0.5, strict=True))
    chances = {given: rng.dirichlet(np.ones(len(NAMES))) * 0.9 + 0.02 for given in ("", *NAMES)}
    strategy = find("strategy", "metropolis")(hastings=case == "corrected")
    search = Search(Table(likelihoods), strategy, Proposer(chances), seed=seed)
    visits: Counter[str] = Counter()
    for _ in search.run(STEPS):
        visits[search.nodes[strategy.held()[0]].program] += 1
    exact = np.exp(list(likelihoods.values()))
    shares = np.array([visits[name] for name in NAMES]) / visits.total()
    return {"variation": float(np.abs(shares - exact / exact.sum()).sum() / 2), "steps": STEPS}


def balance_table(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> Iterator[str]:
    """Yield the distances of corrected and of uncorrected chains from the posterior."""
    for case, runs in found.items():
        every = sorted(each["variation"] for each in runs)
        yield f"{case:15s} total variation {every[0]:.4f} to {every[-1]:.4f}, {STEPS:,} steps"
