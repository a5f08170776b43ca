"""The text of programs of boards."""

import textwrap

from cwm_induction.discrete.expressions import action_lines, wrapped
from cwm_induction.discrete.transitions import IntegerEncoding
from cwm_induction.relations.board_model import BoardModel
from cwm_induction.relations.boards import FUNCTIONS
from cwm_induction.relations.stages import (
    mentions,
    needed_terms,
    stage_lines,
)
from cwm_induction.relations.vocabulary import prelude

HEAD = '''{functions}class Environment:
    """{summary}"""

{constants}    def set_state(self, observation):
        """Set the observation to predict from."""
        self.state = np.array(observation)

    def observation(self):
        """Return the observation of the state."""
        return self.state

    def step(self, action):
        """Predict the next observation, the reward and the end of the episode."""
{body}
'''


def write_board(model: BoardModel, encoding: IntegerEncoding, summary: str) -> str:
    """Write the program of a model of a board."""
    constants: list[str] = []
    end = _end_lines(model)
    middle = [line for stage in model.stages for line in stage_lines(stage)]
    if mentions("\n".join(end), "middle"):
        middle.append("middle = board")
    if model.turn:
        middle += model.turn.lines
    if model.consequence:
        middle += model.consequence.lines
    text = "\n".join([*middle, *end])
    start = _start_lines(model, text, constants)
    body = [*action_lines(encoding), *start, *middle, *end]
    loop = model.stages[0].loop
    if loop.kind == "offsets":
        constants += wrapped("NEAR = ", str(list(loop.offsets)))
    text = "\n".join(body)
    functions = [code for name, code in FUNCTIONS.items() if f"{name}(" in text]
    if model.consequence and model.consequence.function:
        functions.append(model.consequence.function)
    program = HEAD.format(
        functions="".join(f"{code}\n\n" for code in functions),
        summary=summary,
        constants="".join(f"    {line}\n" for line in constants) + ("\n" if constants else ""),
        body=textwrap.indent("\n".join(body), "        "),
    )
    return f"import numpy as np\n\n\n{program}"


def _start_lines(model: BoardModel, text: str, constants: list[str]) -> list[str]:
    """Write the variables of the board before the first stage that the text needs."""
    layout = model.layout
    height, width = layout.shape
    lines = ["numbers = self.state.ravel()"]
    lines += [f"x{c} = int(numbers[{c}])" for c in layout.extras]
    last = layout.first + layout.cells
    part = "numbers" if layout.cells == layout.size else f"numbers[{layout.first or ''}:{last}]"
    lines.append(f"old = {part}.reshape({height}, {width})")
    lines.append("board = old.copy()")
    if layout.ground:
        constants += wrapped("MARKED = ", str(list(layout.ground.marked)))
        pairs = {shown: plain for plain, shown in layout.ground.codes}
        constants.append(f"UNMARKED = {pairs}  # values on marked cells as on others")
        lines += ["for y, x in self.MARKED:", "    board[y, x] = self.UNMARKED[int(old[y, x])]"]
    needed = needed_terms(prelude(layout), text)
    whole = "\n".join([text, *(term.text for term in needed)])
    if layout.focus == "agent":
        steps = {action: (down, right) for action, down, right in layout.steps}
        constants.append(f"STEPS = {steps}  # rows and columns by action")
        codes = layout.agent
        test = f"np.isin(board, {codes})" if len(codes) > 1 else f"board == {codes[0]}"
        lines.append(f"row, column = (int(place[0]) for place in np.nonzero({test}))")
        lines.append("down, right = self.STEPS.get(int(action), (0, 0))")
    elif layout.focus == "cell":
        lines.append(f"row, column = divmod(int(action), {layout.across})")
    elif layout.focus == "column":
        lines.append("column = int(action)")
        if mentions(whole, "row") or model.stages[0].loop.kind == "offsets":
            lines.append("row = count_in_column(board, column, 0) - 1  # the lowest empty cell")
    return [*lines, *(f"{term.name} = {term.text}" for term in needed)]


def _end_lines(model: BoardModel) -> list[str]:
    """Write the new observation, the reward and the end."""
    layout, payments = model.layout, model.payments
    assert payments is not None
    lines = []
    if layout.ground:
        shown = {plain: shown for plain, shown in layout.ground.codes}
        lines += [
            "new = board.copy()",
            "for y, x in self.MARKED:",
            f"    new[y, x] = {shown}[int(board[y, x])]",
        ]
    else:
        lines.append("new = board")
    for quantity in model.quantities:
        lines += quantity.lines
    end = payments.lines
    terms = needed_terms(payments.terms, "\n".join(end))
    lines += [*(f"{term.name} = {term.text}" for term in terms), *end]
    if layout.extras:
        first, last = layout.first, layout.first + layout.cells
        lines.append("numbers = numbers.copy()")
        lines.append(f"numbers[{first}:{last}] = new.ravel()")
        lines += [f"numbers[{c}] = new_x{c}" for c in layout.extras]
        lines.append("self.state = numbers.reshape(self.state.shape)")
    else:
        lines.append("self.state = new.reshape(self.state.shape)")
    return [*lines, "return self.state, reward, terminated"]
