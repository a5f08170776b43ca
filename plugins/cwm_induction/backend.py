"""The backend `induction`: answers from the transitions of the problem instead of its messages."""

import time
from dataclasses import dataclass
from typing import cast

from cwm_cli.data.dataset import Dataset
from cwm_cli.errors import CwmError
from cwm_cli.problems.feedback import documented_names
from cwm_cli.problems.world_model import WorldModelProblem
from cwm_cli.search.contracts import Backend, Completion, Request, Usage
from cwm_induction.arrangements import names_of
from cwm_induction.effort import Effort
from cwm_induction.fallback import unchanged
from cwm_induction.families import has_rules
from cwm_induction.portfolio import Candidate, Portfolio
from cwm_induction.valid_actions import named, without
from cwm_induction.writing.line_breaks import broken
from cwm_induction.writing.naming import renamed, unnamed
from cwm_induction.writing.remarks import remarked, unremarked

UNITS = 4_000
"""Work units for one completion: about 20 seconds of one core."""

HOPELESS = 0.25
"""Share of what lies above a constant prediction below which equations are given up."""


@dataclass(frozen=True)
class Induction(Backend):
    """Writes world models from transitions alone, offline.

    `model` is accepted for the sake of `--model` and must be empty. The work
    per completion is limited by counting it, so that equal requests get equal
    answers; `seconds` only caps that on slow machines.
    """

    from_data = True

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
        found, program, final = self._program(request, problem)
        text = f"{found}\n\n```python\n{program.rstrip()}\n```\n"
        return Completion(text, Usage(seconds=time.monotonic() - start), final)

    def worst_cost(self, request: Request) -> float:
        """Return 0: nothing is paid for."""
        return 0.0

    def _program(self, request: Request, problem: WorldModelProblem) -> tuple[str, str, bool]:
        """Return a sentence on what was found, the program, and whether that is all to expect."""
        if problem.dataset.has_valid_actions:
            plain = without(request, problem)
            found, program, final = self._program(plain, cast(WorldModelProblem, plain.problem))
            return found, named(program, problem.dataset[problem.dataset.fitted]), final
        fit = problem.dataset[problem.dataset.fitted]
        move = request.move._replace(program=unnamed(unremarked(request.move.program)))
        effort = Effort(UNITS, self.seconds, request.tell)
        best = Portfolio(problem, fit, request._replace(move=move), effort).best()
        if best is None:
            return f"No rule was found in {_rows(fit)}: nothing changes.", unchanged(fit), False
        space = problem.dataset.observation_space
        names = names_of(space) if space.children else documented_names(problem.description, space)
        program = remarked(broken(renamed(best.program, names)), _remark(best, fit))
        found = f"This program predicts {best.exact:.1%} of {_rows(fit)}."
        return found, program, best.above < HOPELESS and not has_rules(fit)


def _remark(best: Candidate, fit: Dataset) -> str:
    """Say how right a program is."""
    share = f"It predicts {best.exact:.1%} of {_rows(fit)} in every part"
    return f"{share}; its accuracy on them is {best.fit:.3f}."


def _rows(data: Dataset) -> str:
    return f"the {len(data)} transitions that may be fitted to"
