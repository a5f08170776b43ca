"""The backend `induction`: answers from the transitions of the problem instead of its messages."""

import time
from dataclasses import dataclass
from typing import cast

import numpy as np

from cwm_cli.errors import CwmError
from cwm_cli.evaluation import evaluate
from cwm_cli.llm import Action, Completion, Request, Usage
from cwm_cli.packing import Space
from cwm_cli.problems.world_model import WorldModelProblem
from cwm_cli.transitions import Dataset
from cwm_induction import discrete
from cwm_induction.effort import Effort
from cwm_induction.fallback import unchanged
from cwm_induction.portfolio import Portfolio
from cwm_induction.samples import serves
from cwm_induction.valid_actions import named, without

UNITS = 4_000
"""Work units for one completion: about 20 seconds of one core."""


@dataclass(frozen=True)
class Induction:
    """Writes world models from transitions alone, offline.

    `model` is accepted for the sake of `--model` and must be empty. The work
    per completion is limited by counting it, so that equal requests get equal
    answers; `seconds` only caps that on slow machines.
    """

    model: str = ""
    seconds: float = 30.0

    def __post_init__(self) -> None:
        if self.model:
            raise CwmError("the induction backend uses no model: leave out --model")

    def complete(self, request: Request) -> Completion:
        """Write a program from the rows of the problem that may be fitted to."""
        problem = request.problem
        if not isinstance(problem, WorldModelProblem):
            raise CwmError(
                "the induction backend writes world models from transitions only: "
                "name a language model with --model"
            )
        start = time.monotonic()
        found, program = self._program(request, problem)
        text = f"{found}\n\n```python\n{program.rstrip()}\n```\n"
        return Completion(text, Usage(seconds=time.monotonic() - start))

    def worst_cost(self, request: Request) -> float:
        """Return 0: nothing is paid for."""
        return 0.0

    def _program(self, request: Request, problem: WorldModelProblem) -> tuple[str, str]:
        """Return a sentence on what was found, and the program."""
        if problem.dataset.has_valid_actions:
            plain = without(request, problem)
            found, program = self._program(plain, cast(WorldModelProblem, plain.problem))
            return found, named(program, problem.dataset[problem.dataset.fitted])
        fit = problem.dataset[problem.dataset.fitted]
        if serves(fit):
            effort = Effort(UNITS, self.seconds)
            best = Portfolio(problem, fit, request.seed, effort).best(request.move)
            if best is not None:
                return f"This program predicts {best.fit:.1%} of {_rows(fit)}.", best.program
        elif is_discrete(fit.observation_space) and discrete.supports(fit):
            program = _rules(request, problem, fit)
            if problem.sandbox.predict(program, fit, seed=problem.seed).failure is None:
                return f"These rules were read off {_rows(fit)}.", program
        return f"No rule was found in {_rows(fit)}: nothing changes.", unchanged(fit)


def _rules(request: Request, problem: WorldModelProblem, fit: Dataset) -> str:
    """Write the rules of discrete states: the first question gets the shortest description.

    Improving a program that is wrong somewhere in the fit part remembers what
    was seen there; any other question gets the next description.
    """
    move = request.move
    if move.action is Action.IMPROVE:
        found = evaluate(move.program, fit, problem.sandbox, problem.metric, problem.seed)
        wrong = found.rows < 1.0
        if found.failure is None and wrong.any():
            return discrete.improve(move.program, fit, wrong)
    return discrete.induce(fit, variant=request.step, rng=np.random.default_rng(request.seed))


def is_discrete(space: Space) -> bool:
    """Whether every leaf of an observation takes whole numbers only."""
    leaves = [leaf.space for leaf in space.leaves("observations")]
    kinds = ("discrete", "multidiscrete", "multibinary", "box")
    plain = space.kind != "dict" and all(leaf.kind in kinds for leaf in leaves)
    return plain and not any(leaf.is_float for leaf in leaves)


def _rows(data: Dataset) -> str:
    return f"the {len(data)} transitions that may be fitted to"
