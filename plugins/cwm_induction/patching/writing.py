"""Corrections as code: a class that asks the program and corrects what it says."""

import io
import tokenize
from collections.abc import Sequence
from typing import NamedTuple

from cwm_cli.data.dataset import Dataset
from cwm_cli.data.spaces import Space
from cwm_induction.flattening import built, joined
from cwm_induction.patching.rows import REWARD, TERMINATED, predicted

PLAIN = "Uncorrected"
"""What the class of a program is called once another one corrects it."""

_CLASS = f"\n\nclass Environment({PLAIN}):\n"

_BEGINS = '''    """The program above, with corrections that were read off recorded transitions."""

    def set_state(self, observation):
        """Stand at another observation."""
        super().set_state(observation)
        self.seen = {seen}

    def step(self, action):
        """Predict what follows an action, and correct it."""
        {before} = self.seen
{actions}        observation, reward, terminated{rest} = super().step(action)
        {after} = {numbers}
'''

_ENDS = """
        # What was corrected is where the next step begins.
        numbers = np.array([{after}])
        observation = {observation}
        self.set_state(observation)
        return observation, reward, terminated{rest}
"""


class Correction(NamedTuple):
    """What to set a quantity to, where (everywhere if ""), and why."""

    target: str
    value: str
    condition: str
    comment: str

    def lines(self) -> list[str]:
        """Write the statements."""
        if self.condition:
            return [
                f"# {self.comment}",
                f"if {self.condition}:",
                f"    {self.target} = {self.value}",
            ]
        return [f"# {self.comment}", f"{self.target} = {self.value}"]


def corrected(
    program: str, data: Dataset, names: Sequence[str], corrections: Sequence[Correction]
) -> str:
    """Return a program with corrections; those that it has already come before."""
    begun = _CLASS in program
    text = program if begun else _begin(program, data, names)
    start, ending = _parted(text, data, names)
    body = [line for one in corrections for line in ["", *one.lines()]]
    read = " ".join(f"{one.value} {one.condition}" for one in corrections)
    olds = [name for name in names if predicted(name) in read]
    if olds:
        left, right = ", ".join(map(predicted, olds)), ", ".join(f"{name}_next" for name in olds)
        body = ["", f"{left} = {right}", *body]
    return start + "".join(f"        {line}\n" if line else "\n" for line in body) + ending


def _begin(program: str, data: Dataset, names: Sequence[str]) -> str:
    """Write a class that corrects nothing yet."""
    space, actions = data.observation_space, data.action_space
    comma = "," if len(names) == 1 else ""
    text = _renamed(program).rstrip() + "\n" + _CLASS
    text += _BEGINS.format(
        seen=_floats(joined(space, "observation"), space),
        before=", ".join(names) + comma,
        after=", ".join(f"{name}_next" for name in names) + comma,
        numbers=_floats(joined(space, "observation"), space),
        actions=_actions(actions),
        rest=_rest(data),
    )
    if "import numpy as np" not in text:
        text = _imported(text)
    return text + _ending(data, names)


def _ending(data: Dataset, names: Sequence[str]) -> str:
    space = data.observation_space
    return _ENDS.format(
        after=", ".join(f"{name}_next" for name in names),
        observation=_value(space),
        rest=_rest(data),
    )


def _parted(text: str, data: Dataset, names: Sequence[str]) -> tuple[str, str]:
    """Return what stands before the end of the correcting step, and the end."""
    ending = _ending(data, names)
    start, found, _ = text.rpartition(ending)
    return (start, ending) if found else (text, "")


def _floats(numbers: str, space: Space) -> str:
    """Write a list of Python numbers."""
    return f"{numbers}.tolist()"


def _value(space: Space) -> str:
    """Write the observation that numbers stand for."""
    if space.kind == "discrete":
        return "round(float(numbers[0]))"
    if space.kind == "box" and space.is_float and len(space.shape) == 1:
        return "numbers"
    return built(space, "observation", [0])


def _rest(data: Dataset) -> str:
    return ", valid_actions" if data.has_valid_actions else ""


def _actions(space: Space) -> str:
    """Write the names of the action's numbers, where the action is no number itself."""
    if space.kind == "discrete":
        return ""
    count = sum(leaf.space.size for leaf in space.leaves("actions"))
    names = ", ".join(f"action_{place}" for place in range(count)) + ("," if count == 1 else "")
    return f"        {names} = {joined(space, 'action')}.tolist()\n"


def _imported(text: str) -> str:
    """Import numpy, after a docstring and what is imported from the future."""
    import ast

    last = 0
    for node in ast.parse(text).body:
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if not (is_text or (isinstance(node, ast.ImportFrom) and node.module == "__future__")):
            break
        last = node.end_lineno or 0
    lines = text.splitlines(keepends=True)
    return "".join([*lines[:last], "import numpy as np\n", *lines[last:]])


def _renamed(program: str) -> str:
    """Return the program with another name for its class; words in texts and comments stay."""
    lines = program.splitlines(keepends=True)
    for token in reversed(list(tokenize.generate_tokens(io.StringIO(program).readline))):
        if token.type == tokenize.NAME and token.string == "Environment":
            (row, start), (_, end) = token.start, token.end
            line = lines[row - 1]
            lines[row - 1] = line[:start] + PLAIN + line[end:]
    return "".join(lines)


assert REWARD and TERMINATED
