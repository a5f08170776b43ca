"""Boards of cells on which an agent moves and changes the cells in front of it.

The rules are read off the cells; ends and rewards may depend on what lies around and on counts.
"""

import re
from collections import Counter
from functools import partial
from itertools import combinations
from typing import NamedTuple

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_induction.discrete.expressions import ConditionWriter, Constants, action_lines, mentions
from cwm_induction.discrete.features import FactoredTransitions, Sizes
from cwm_induction.discrete.outcomes import Outcomes, fit_outcomes
from cwm_induction.discrete.rule_search import RuleVariant
from cwm_induction.discrete.rules import RuleColumn
from cwm_induction.discrete.transitions import IntegerEncoding, Transitions

Codes = tuple[int, ...]

MOST_CODES = 16
"""Different codes above which a table holds numbers rather than kinds of things."""

MOST_AGENT_CODES = 3
"""Codes that an agent may have, as where it stands or what it carries says."""

LEAST_SIDE = 3
"""Rows and columns of a board at least: rules are about three cells in a row."""

LEAST_RIGHT = 0.95
"""Share of the transitions that the rules explain, below which the state is no such board."""

AROUND = ("far", "left_side", "right_side")
"""The cells next to the one beyond: straight on and to the sides."""

PLACE = ("row", "column")
CELLS = ("here", "ahead", "beyond", *AROUND)

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


class Board(NamedTuple):
    """Rules about three cells in a row: the agent's, the one ahead and the one beyond.

    `leaving` says what the agent's cell becomes when it moves on. `entering` says
    what the next cells become, by the code ahead, or by those ahead and
    beyond where that matters; otherwise nothing changes.
    """

    shape: tuple[int, int]
    codes: Codes
    agent: Codes
    steps: dict[int, tuple[int, int]]
    leaving: dict[int, int]
    entering: dict[Codes, Codes]

    @property
    def outside(self) -> int:
        """The code that stands for what lies outside."""
        return max(self.codes) + 1

    def find(self, boards: np.ndarray) -> np.ndarray:
        """Return the row and column of the agent on every board."""
        flat = np.isin(boards, self.agent).reshape(len(boards), -1).argmax(axis=1)
        return np.stack(np.divmod(flat, self.shape[1]), axis=1)

    def cells(self, boards: np.ndarray, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the places of the three cells and their codes."""
        step = np.array([self.steps.get(number, (0, 0)) for number in action.tolist()])
        places = self.find(boards)[:, None] + np.arange(3)[None, :, None] * step[:, None]
        return places, self.codes_at(boards, places)

    def codes_at(self, boards: np.ndarray, places: np.ndarray) -> np.ndarray:
        """Return the codes of some cells of every board."""
        inside = ((places >= 0) & (places < self.shape)).all(axis=2)
        safe = places.clip(0, np.array(self.shape) - 1)
        codes = boards[np.arange(len(boards))[:, None], safe[..., 0], safe[..., 1]]
        return np.where(inside, codes, self.outside)

    def predict(self, boards: np.ndarray, action: np.ndarray) -> np.ndarray:
        """Return the boards that follow."""
        places, codes = self.cells(boards, action)
        after = boards.copy()
        for row, (here, ahead, beyond) in enumerate(codes.tolist()):
            entered = self.entering.get((ahead, beyond), self.entering.get((ahead,)))
            if entered and self.steps.get(int(action[row]), (0, 0)) != (0, 0):
                for place, code in zip(places[row], (self.leaving[here], *entered), strict=False):
                    after[row, place[0], place[1]] = code
        return after

    @property
    def feature_names(self) -> list[str]:
        """Names of what outcomes may depend on."""
        return [*PLACE, *CELLS, *(f"count_{code}" for code in self.codes)]

    def features(
        self, before: np.ndarray, action: np.ndarray, after: np.ndarray
    ) -> FactoredTransitions:
        """Describe transitions by the agent's place, the cells around it and counts of codes."""
        places, codes = self.cells(before, action)
        step = places[:, 1] - places[:, 0]
        side = np.stack([-step[:, 1], step[:, 0]], axis=1)
        around = places[:, 2][:, None] + np.stack([step, side, -side], axis=1)
        cells = np.concatenate([codes, self.codes_at(before, around)], axis=1)
        sides = []
        for boards in (before, after):
            counts = np.stack([(boards == code).sum(axis=(1, 2)) for code in self.codes], axis=1)
            sides.append(np.concatenate([self.find(boards), cells, counts], axis=1))
        return FactoredTransitions.of(action, *sides)._replace(aimed=sides[0])


def fit_board(dataset: Dataset, seen: Transitions) -> Board | None:
    """Find an agent and rules about the cells in front of it that explain most transitions."""
    space, shape = dataset.observation_space, dataset.observation_space.shape
    whole = space.kind == "box" and np.issubdtype(space.dtype, np.integer)
    if not whole or len(shape) != 2 or min(shape) < LEAST_SIDE or any(seen.encoding.lows):
        return None
    before, after = (part.reshape(-1, *shape) for part in (seen.before, seen.after))
    codes = np.unique(np.concatenate([before, after]))
    if len(codes) > MOST_CODES or not (agent := _agent(before, after, codes)):
        return None
    board = Board((shape[0], shape[1]), tuple(codes.tolist()), agent, {}, {}, {})
    moved = board.find(after) - board.find(before)
    board = board._replace(steps=_steps(moved, seen.action))
    board = _with_rules(board, before, seen.action, after)
    right = (board.predict(before, seen.action) == after).all(axis=(1, 2))
    return board if right[seen.done == 0].mean() >= LEAST_RIGHT else None


def _agent(before: np.ndarray, after: np.ndarray, codes: np.ndarray) -> Codes:
    """Return the codes of which every board has exactly one, in the place that changes most."""
    boards = np.concatenate([before, after])
    counts = np.stack([(boards == code).sum(axis=(1, 2)) for code in codes], axis=1)
    rare = np.flatnonzero(counts.max(axis=0) == 1).tolist()
    best, most = (), 0
    for number in range(1, MOST_AGENT_CODES + 1):
        for chosen in combinations(rare, number):
            if (counts[:, chosen].sum(axis=1) == 1).all():
                places = np.isin(boards, codes[list(chosen)]).reshape(len(boards), -1).argmax(1)
                moves = int((places[: len(before)] != places[len(before) :]).sum())
                if moves > most:
                    best, most = tuple(codes[list(chosen)].tolist()), moves
    return best


def _steps(moved: np.ndarray, action: np.ndarray) -> dict[int, tuple[int, int]]:
    """Return the commonest step of every action that moves the agent."""
    steps = {}
    for number in np.unique(action).tolist():
        rows = moved[(action == number) & moved.any(axis=1)]
        if len(rows):
            (down, right), _ = Counter(map(tuple, rows.tolist())).most_common(1)[0]
            steps[number] = down, right
    return steps


def _with_rules(board: Board, before: np.ndarray, action: np.ndarray, after: np.ndarray) -> Board:
    """Read off what the three cells become when the agent moves."""
    places, old = board.cells(before, action)
    safe = places.clip(0, np.array(board.shape) - 1)
    new = after[np.arange(len(after))[:, None], safe[..., 0], safe[..., 1]]
    new = np.where(old == board.outside, old, new)
    leaving: dict[int, Counter[int]] = {}
    entering: dict[Codes, Counter[Codes]] = {}
    for row in np.flatnonzero(np.isin(action, list(board.steps))).tolist():
        (here, *front), (left, *become) = old[row].tolist(), new[row].tolist()
        if left != here:
            leaving.setdefault(here, Counter())[left] += 1
        changes = tuple(become) if left != here else ()
        entering.setdefault(tuple(front), Counter())[changes] += 1
    usual = {key: seen.most_common(1)[0][0] for key, seen in sorted(entering.items())}
    floor = sum(leaving.values(), Counter[int]())
    left_behind = {code: leaving.get(code, floor).most_common(1) for code in board.agent}
    return board._replace(
        leaving={code: seen[0][0] for code, seen in left_behind.items() if seen},
        entering=_shortened(usual),
    )


def _shortened(rules: dict[Codes, Codes]) -> dict[Codes, Codes]:
    """Leave out the cell beyond where it neither matters nor changes, and what changes nothing."""
    short: dict[Codes, Codes] = {}
    for ahead in sorted({key[0] for key in rules}):
        own = {key: after for key, after in rules.items() if key[0] == ahead}
        first = {after[:1] for after in own.values()}
        if len(first) == 1 and all(not after or after[1] == key[1] for key, after in own.items()):
            own = {(ahead,): next(iter(first))}
        short |= {key: after for key, after in own.items() if after}
    return short


def board_outcomes(board: Board, seen: Transitions, variant: RuleVariant) -> Outcomes:
    """Fit the rules of termination and reward."""
    before, after = (part.reshape(-1, *board.shape) for part in (seen.before, seen.after))
    factored = board.features(before, seen.action, after)
    highest = max(board.codes)
    area = board.shape[0] * board.shape[1]
    radices = (*board.shape, *[highest + 2] * len(CELLS), *[area + 1] * len(board.codes))
    sizes = Sizes(radices, seen.encoding.actions, named=False)
    return fit_outcomes(seen, factored, sizes, variant, seen.disagreement(after=True))


def write_board(
    board: Board,
    outcomes: Outcomes,
    encoding: IntegerEncoding,
    rewards: tuple[float, ...],
    findings: list[str],
) -> str:
    """Write the program of a board."""
    constants, names = Constants(), board.feature_names
    values = tuple(repr(reward) for reward in rewards)
    writer = ConditionWriter(constants, partial(_spell, names), values)
    step = _step(names, _outcome_lines(outcomes, writer))
    height, width = board.shape
    step_body = "\n".join(f"    {line}" for line in [*action_lines(encoding), *step.split("\n")])
    body = BODY.format(outside=board.outside, height=height, width=width, step=step_body)
    if ".count(" not in step:
        body = re.sub(r"\ndef count\(.*?\n\n", "\n", body, flags=re.DOTALL)
    title = f"A state is a board of {height} by {width} cells with an agent."
    doc = [f'"""{title}', "", *findings, '"""', ""]
    rules = [
        "# codes of the agent's cell",
        f"AGENT = {{{', '.join(map(str, board.agent))}}}",
        "# where each action leads: rows down, columns to the right",
        f"STEPS = {board.steps}",
        "# what the agent's cell becomes when it moves on",
        f"LEAVING = {board.leaving}",
        "# codes ahead (and beyond) with which it moves, and what they become",
        f"ENTERING = {board.entering}",
    ]
    whole = [*doc, *rules, *constants.lines, *body.split("\n")]
    indented = [f"    {line}" if line else "" for line in whole]
    return "\n".join(["import numpy as np", "", "", "class Environment:", *indented, ""])


def _spell(names: list[str], column: RuleColumn) -> str:
    """Name what a rule looks at."""
    plain = {"action": "action", "same": "not moves", "done": "terminated", "reward": "reward"}
    if column.kind in plain:
        return plain[column.kind]
    if column.kind == "meets":
        factors = column.factor, column.other
        return " == ".join(_spell(names, RuleColumn("new", factor, 0)) for factor in factors)
    name = names[column.factor]
    changes = column.kind == "new" and (name in PLACE or name.startswith("count"))
    return f"new_{name}" if changes else name


def _step(names: list[str], lines: list[str]) -> str:
    """Write the body of `step`, with the features that the lines about outcomes use."""
    text = "\n".join(lines)
    looked_at = [name for name in names if name not in (*PLACE, "here", "ahead", "beyond")]
    before = [f"{name} = {_source(name)}" for name in looked_at if mentions(text, name)]
    counts = [name for name in names if name.startswith("count_") and mentions(text, f"new_{name}")]
    after = [f"new_{name} = {_source(name)}" for name in counts]
    if any(mentions(text, f"new_{name}") for name in PLACE):
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


def _outcome_lines(outcomes: Outcomes, writer: ConditionWriter) -> list[str]:
    """Write when the episode ends and what is rewarded, in the order that was found."""
    ends = [f"terminated = {writer.ends(outcomes.done.rules, always=outcomes.always)}"]
    reward = [f"reward = {writer.rewards[0]}"]
    for expression, label in writer.conditions(outcomes.reward.rules, "REWARDED"):
        reward += [f"if {expression}:", f"    reward = {writer.rewards[label]}"]
    return [*reward, *ends] if outcomes.reward_first else [*ends, *reward]
