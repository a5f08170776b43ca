"""Valid actions for programs that were induced without them: those that are the most common."""

from collections import Counter
from dataclasses import replace

from cwm_cli.data.dataset import VALID, Dataset
from cwm_cli.problems.world_model import WorldModelProblem
from cwm_cli.search.contracts import Request

_BEGINS = "class Transitions(Environment):"

_PROGRAM = '''

{begins}
    """What follows from an observation and an action."""


class Environment(Transitions):
    """The same, with the valid actions that are the most common: {share:.0%} of {count}."""

    def step(self, action):
        """Predict the valid actions as well."""
        return (*super().step(action), {actions})
'''


def without(request: Request, problem: WorldModelProblem) -> Request:
    """Ask for a program that says nothing about valid actions."""
    columns = {name: part for name, part in problem.dataset.columns.items() if name != VALID}
    program = request.move.program.partition(f"\n\n{_BEGINS}")[0]
    return request._replace(
        problem=replace(problem, dataset=replace(problem.dataset, columns=columns)),
        move=request.move._replace(program=program),
    )


def named(program: str, data: Dataset) -> str:
    """Add the most common valid actions to what a program answers."""
    masks = Counter(data.action_space.masked(mask) for mask in data.columns[VALID])
    [(actions, count)] = masks.most_common(1)
    text = _PROGRAM.format(
        begins=_BEGINS, share=count / len(data), count=len(data), actions=list(actions)
    )
    return program.rstrip() + "\n" + text
