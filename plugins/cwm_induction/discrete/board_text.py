"""The text of programs whose state is a board."""

import re
from functools import partial

from cwm_induction.discrete.board import Board
from cwm_induction.discrete.board_outcomes import PLACE, feature_names
from cwm_induction.discrete.conditions import Constants, Speaker, either
from cwm_induction.discrete.outcomes import Outcomes
from cwm_induction.discrete.shapes import action_lines
from cwm_induction.discrete.tables import Column
from cwm_induction.discrete.transitions import Frame

STEP = """\
row, column = self.agent()
down, right = self.STEPS.get(action, (0, 0))
cells = [(row + k * down, column + k * right) for k in range(3)]
here, ahead, beyond = (self.code(*cell) for cell in cells)
{before}entered = self.ENTERING.get((ahead, beyond)) or self.ENTERING.get((ahead,))
moves = (down, right) != (0, 0) and entered is not None
if moves:
    for (y, x), code in zip(cells, (self.LEAVING[here], *entered)):
        self.board[y][x] = code
{after}
return self.observation(), reward, terminated"""

BODY = """
def __init__(self):
    self.board = []

def set_state(self, observation):
    self.board = [[int(code) for code in line] for line in observation]

def observation(self):
    return np.array(self.board)

def agent(self):
    \"\"\"Return the row and column of the agent.\"\"\"
    return next(
        (y, x)
        for y, line in enumerate(self.board)
        for x, code in enumerate(line)
        if code in self.AGENT
    )

def code(self, row, column):
    \"\"\"Return what is in a cell, {outside} outside the board.\"\"\"
    inside = 0 <= row < {height} and 0 <= column < {width}
    return self.board[row][column] if inside else {outside}

def count(self, code):
    \"\"\"Return how many cells hold a code.\"\"\"
    return sum(line.count(code) for line in self.board)

def step(self, action):
{step}"""


def write_board(
    board: Board, outcomes: Outcomes, frame: Frame, rewards: tuple[float, ...], findings: list[str]
) -> str:
    """Write the program of a board."""
    constants, names = Constants(), feature_names(board)
    values = tuple(repr(reward) for reward in rewards)
    speaker = Speaker(constants, partial(_spell, names), values)
    step = _step(names, _outcome_lines(outcomes, speaker, values))
    height, width = board.shape
    step_body = "\n".join(f"    {line}" for line in [*action_lines(frame), *step.split("\n")])
    body = BODY.format(outside=board.outside, height=height, width=width, step=step_body)
    if ".count(" not in step:
        body = re.sub(r"\ndef count\(.*?\n\n", "\n", body, flags=re.DOTALL)
    title = f"A state is a board of {height} by {width} cells with an agent."
    doc = [f'"""{title}', "", *findings, '"""', ""]
    whole = [*doc, *_constants(board), *constants.lines, *body.split("\n")]
    indented = [f"    {line}" if line else "" for line in whole]
    return "\n".join(["import numpy as np", "", "", "class Environment:", *indented, ""])


def _spell(names: list[str], column: Column) -> str:
    """Name what a rule looks at."""
    plain = {"action": "action", "same": "not moves", "done": "terminated", "reward": "reward"}
    if column.kind in plain:
        return plain[column.kind]
    if column.kind == "meets":
        factors = column.factor, column.other
        return " == ".join(_spell(names, Column("new", factor, 0)) for factor in factors)
    name = names[column.factor]
    changes = column.kind == "new" and (name in PLACE or name.startswith("count"))
    return f"new_{name}" if changes else name


def _step(names: list[str], lines: list[str]) -> str:
    """Write the body of `step`, with the features that the lines about outcomes use."""
    text = "\n".join(lines)
    looked_at = [name for name in names if name not in (*PLACE, "here", "ahead", "beyond")]
    before = [f"{name} = {_source(name)}" for name in looked_at if _used(text, name)]
    counts = [name for name in names if name.startswith("count_") and _used(text, f"new_{name}")]
    after = [f"new_{name} = {_source(name)}" for name in counts]
    if any(_used(text, f"new_{name}") for name in PLACE):
        after = ["new_row, new_column = self.agent()", *after]
    return STEP.format(
        before="".join(f"{line}\n" for line in before), after="\n".join([*after, *lines])
    )


def _source(name: str) -> str:
    """Write how a feature is computed."""
    if name.startswith("count_"):
        return f"self.count({name.removeprefix('count_')})"
    row, column = {
        "far": ("row + 3 * down", "column + 3 * right"),
        "left_side": ("row + 2 * down - right", "column + 2 * right + down"),
        "right_side": ("row + 2 * down + right", "column + 2 * right - down"),
    }.get(name, ("row", "column"))
    return f"self.code({row}, {column})"


def _used(text: str, name: str) -> bool:
    """Say whether a variable is used."""
    return re.search(rf"(?<![\w.]){name}\b", text) is not None


def _constants(board: Board) -> list[str]:
    """Write what moves and what cells become."""
    return [
        "# codes of the agent's cell",
        f"AGENT = {{{', '.join(map(str, board.agent))}}}",
        "# where each action leads: rows down, columns to the right",
        f"STEPS = {board.steps}",
        "# what the agent's cell becomes when it moves on",
        f"LEAVING = {board.leaving}",
        "# codes ahead (and beyond) with which it moves, and what they become",
        f"ENTERING = {board.entering}",
    ]


def _outcome_lines(outcomes: Outcomes, speaker: Speaker, values: tuple[str, ...]) -> list[str]:
    """Write when the episode ends and what is rewarded, in the order that was found."""
    ends = either(speaker.conditions(outcomes.done.rules, "TERMINAL"))
    if outcomes.always:
        ends = "True" if ends == "False" else f"not ({ends})"
    reward = [f"reward = {values[0]}"]
    for expression, label in speaker.conditions(outcomes.reward.rules, "REWARDED"):
        reward += [f"if {expression}:", f"    reward = {values[label]}"]
    parts = [[f"terminated = {ends}"], reward]
    if outcomes.reward_first:
        parts.reverse()
    return [line for part in parts for line in part]
