"""The backend `induction`: writes programs from the transitions of a problem, not its messages.

Rules for valid actions are induced apart (`legality`), and added to the program.
"""

import time
from dataclasses import dataclass, field, replace
from typing import Annotated, cast

from pydantic import Field

from cwm_cli.data.dataset import VALID, Dataset
from cwm_cli.errors import CwmError
from cwm_cli.evaluation.finding import ContractName
from cwm_cli.evaluation.missing_data import find_gaps
from cwm_cli.problems.feedback import documented_names
from cwm_cli.problems.world_model import MARKER, WorldModelProblem
from cwm_cli.sandbox.job import abilities_of
from cwm_cli.search.contracts import Backend, Completion, Request, Usage
from cwm_cli.search.simplification import simplify
from cwm_cli.text import percent, share
from cwm_induction import noisy, objects
from cwm_induction.attempts import has_rules, unchanged
from cwm_induction.effort import Effort
from cwm_induction.flattening import names_of
from cwm_induction.legality import find_legality
from cwm_induction.portfolio import Portfolio
from cwm_induction.structure import KnownStructure
from cwm_induction.writing.finishing import (
    broken,
    identifier,
    remarked,
    renamed,
    unnamed,
    unremarked,
)

UNITS = 4_000
"""Work units for one completion: about 20 seconds of one core."""

HOPELESS = 0.25
"""If equations have a lower rescaled score (0: constant prediction), no more are requested."""

BEGINS = "class Transitions(Environment):"
"""Beginning of the code that adds valid actions to a program."""

PROGRAM = '''

{begins}
    """Predicts the next observation, the reward and the end of the episode."""


def valid_actions(observation):
    """Return the valid actions in a state; the rules hold in {share} of {count} rows."""
    rules = {{
{rules}
    }}
    return [action for action, holds in rules.items() if holds]


class Environment(Transitions):
    """Adds the valid actions."""

{methods}'''

STEP = '''\
    def step(self, action):
        """Predict the valid actions as well."""
        result = super().step(action)
        return (*result, valid_actions(result[0]))
'''

GAME = '''\
    def set_state(self, observation):
        """Set the state of the game."""
        super().set_state(observation)
        self._state = observation

    def step(self, action):
        """Make a move."""
        result = super().step(action)
        self._state = result[0]
        return result

    def legal_actions(self):
        """Return the legal actions in the current state."""
        return valid_actions(self._state)
'''


@dataclass(frozen=True)
class Induction(Backend):
    """Writes world models from transitions alone, offline.

    `model` exists for `--model` and must be empty. A completion has a limited
    number of work units, so that equal requests get equal programs. `seconds`
    is an additional limit for slow machines.
    """

    from_data = True
    gives_up_after = 3  # later completions improved no program of the shipped environments

    model: str = ""
    seconds: Annotated[float, Field(gt=0)] = 30.0
    """Maximum time of a completion in seconds on a slow machine."""
    learning: bool = False
    """Write programs for a growing dataset, as agents record one: start from earlier results,
    accept a program that is right in most rows, and look the other rows up."""
    _known: KnownStructure = field(
        default_factory=KnownStructure, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        if self.model:
            raise CwmError("the induction backend uses no model: leave out --model")

    def complete(self, request: Request) -> Completion:
        """Write a program from the training rows of the problem."""
        problem = request.problem
        if not isinstance(problem, WorldModelProblem):
            raise CwmError(
                "the induction backend writes world models from transitions only: "
                "choose a language model with --model"
            )
        start = time.monotonic()
        found, program, final = self._program(request, problem)
        text = f"{found}\n\n```python\n{simplify(program).rstrip()}\n```\n"
        return Completion(text, Usage(seconds=time.monotonic() - start), final)

    def worst_cost(self, request: Request) -> float:
        """Return 0, because induction is free of charge."""
        return 0.0

    def _program(self, request: Request, problem: WorldModelProblem) -> tuple[str, str, bool]:
        """Return a summary, the program, and whether further requests would not improve it."""
        fit = problem.dataset[problem.dataset.fitted]
        if problem.dataset.has_valid_actions:
            plain = _without_valid_actions(request, problem)
            found, program, final = self._program(plain, cast(WorldModelProblem, plain.problem))
            return found, _with_valid_actions(program, fit, problem.contract), final
        move = request.move._replace(program=unnamed(unremarked(request.move.program)))
        effort = Effort(UNITS, self.seconds, request.tell)
        portfolio = Portfolio(problem, fit, request._replace(move=move), effort)
        if self.learning:
            known = self._known if request.step == 0 else KnownStructure()
            portfolio = replace(portfolio, known=known)
        best = portfolio.best()
        if best is None:
            found = f"No rule was found in {_rows(fit)}: the program predicts no change."
            return found, unchanged(fit), False
        space = problem.dataset.observation_space
        names = names_of(space) if space.children else documented_names(problem.description, space)
        remembers = abilities_of(best.program).remembers
        where = " from the third step of an episode on" if remembers else ""
        checked = "" if best.checked is None else f", and {share(best.checked)} on held-out rows"
        remark = (
            f"Its skill on {_rows(fit)} is {share(best.fit)}{checked} "
            "(baseline 0, true environment 1)."
            if problem.contract == "chance"
            else ""  # the program lists its errors
            if noisy.lists_errors(best.program)
            else f"It predicts {percent(best.exact)} of {_rows(fit)} exactly in every part "
            f"(reward: {percent(best.reward)}). Its accuracy{where} is {share(best.fit)}."
        )
        called = [identifier(name) for name in names]
        whole = len(called) == space.size and all(called) and len(set(called)) == len(called)
        unseen = [] if objects.supports(fit) else find_gaps(fit, called if whole else ())
        remark = " ".join(filter(None, [remark, *unseen]))
        program = best.program if best.is_complete else broken(renamed(best.program, names))
        program = remarked(program, remark) if remark else program
        found = f"This program predicts {percent(best.exact)} of {_rows(fit)} exactly."
        if best.is_complete:
            if best.contract:
                found += f"\n\n{MARKER} {best.contract}"
            return found, program, remembers or not best.is_right
        hopeless = best.above < HOPELESS and not has_rules(fit)
        return found, program, hopeless or (remembers and best.is_right)


def _rows(data: Dataset) -> str:
    return f"the {len(data)} fitting transitions"


def _without_valid_actions(request: Request, problem: WorldModelProblem) -> Request:
    """Return the request without valid actions in its data and program."""
    columns = {name: part for name, part in problem.dataset.columns.items() if name != VALID}
    program = request.move.program.partition(f"\n\n{BEGINS}")[0]
    contract: ContractName = "plain" if problem.contract == "game" else problem.contract
    dataset = replace(problem.dataset, columns=columns)
    return request._replace(
        problem=replace(problem, dataset=dataset, contract=contract),
        move=request.move._replace(program=program),
    )


def _with_valid_actions(program: str, data: Dataset, contract: ContractName) -> str:
    """Add rules for the valid actions to a program."""
    found = find_legality(data)
    text = PROGRAM.format(
        begins=BEGINS,
        share=percent(found.right),
        count=len(data),
        rules="\n".join(f"        {action}: {rule}," for action, rule in found.rules.items()),
        methods=GAME if contract == "game" else STEP,
    )
    return program.rstrip() + "\n" + text
