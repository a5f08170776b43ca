"""Writer of programs that remember a board from views of a moving window."""

from collections.abc import Callable
from functools import partial
from json import dumps
from typing import Any

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_induction.discrete.chance_tables import ShareCondition, Shares
from cwm_induction.discrete.expressions import wrapped
from cwm_induction.recalling.windows import NO_CODE, AnswerTree, Window, find_window

_PROGRAM = '''import numpy as np

SHAPE = {shape}  # of a view
MOVES = {moves}  # quarter turns of the cells in view, and their shift
CAN = {can}  # the moves that an action may make, by their numbers
OWN = {own}  # cells of a view that are not part of the board and move with the window
{usual}
{sight}

class Environment:
    """A moving window onto a board; remembers the seen cells and the pose of the window.

    An action moves the window and changes cells in it. A view shows the remembered cells of the
    board; a cell that was not seen in this episode is predicted as the most common one at its
    place in a view.{hidden} `correct` selects the move whose view differs least from the
    remembered cells.
    """

    def reset(self, observation):
        """Start an episode: remember only the first view."""
        self.board, self.guessed, self.pose = {{}}, [], (0, 0, 0)
        self.see(observation)

    def step(self, action):
        """Predict the outcome of an action and move there."""
        view{others} = self.view{numbers}
        reward = self.reward(action, view{others})
        terminated = self.terminated(action, view{others})
        move = self.move(action, view{others})
        cells = {{cell: tuple(view[cell].tolist()) for cell in OWN}}
        for cell, kind in self.changes(action, view{others}):
            if cell in OWN:
                cells[cell] = kind
            else:
                self.board[at(self.pose, *cell)] = kind
        self.before, self.action = self.pose, action
        self.pose = moved(self.pose, MOVES[move])
        view = np.zeros(SHAPE, int)
        for cell in np.ndindex(SHAPE[:2]):
            known = self.board.get(at(self.pose, *cell), USUAL[cell[0]][cell[1]])
            view[cell] = cells.get(cell, known)
{hide}        for cell, kind in shown(view):
            place = at(self.pose, *cell)
            if place not in self.board:
                self.board[place] = kind
                self.guessed.append(place)
        self.view = view
        self.observation = {observation}
        return self.observation, reward, terminated

    def correct(self, observation, reward):
        """Find the pose of the window from the remembered cells, and remember its view."""
        for place in self.guessed:
            self.board.pop(place)
        self.guessed, seen = [], np.reshape(observation{image}, SHAPE)
        if not np.array_equal(seen, self.view):
            poses = [self.pose] + [moved(self.before, MOVES[move]) for move in CAN[self.action]]
            self.pose = min(poses, key=lambda pose: self.wrong(pose, seen))
        self.see(observation)

    def wrong(self, pose, seen):
        """Return how many cells of a view from a pose differ from the remembered ones."""
        cells = [(at(pose, *cell), kind) for cell, kind in shown(seen)]
        return sum(self.board.get(place, kind) != kind for place, kind in cells)

    def see(self, observation):
        """Remember the visible cells of the board."""
        self.observation, self.view = observation, np.reshape(observation{image}, SHAPE)
        for cell, kind in shown(self.view):
            self.board[at(self.pose, *cell)] = kind

    def move(self, action, view{others}):
        """Return the number of the move that an action makes."""
{move}

    def changes(self, action, view{others}):
        """Yield the cells in view that an action changes, and their new values."""
{changes}
{after}
    def reward(self, action, view{others}):
        """Return the reward of a step."""
{reward}

    def terminated(self, action, view{others}):
        """Return whether a step ends the episode."""
{terminated}


def at(pose, x, y):
    """Return the place on the board of a cell in view."""
    turn, left, top = pose
    for _ in range(turn):
        x, y = -y, x
    return x + left, y + top


def moved(pose, move):
    """Return the pose of a window after a move."""
    turn, x, y = move
    turn = (pose[0] - turn) % 4
    x, y = at((turn, 0, 0), x, y)
    return turn, pose[1] - x, pose[2] - y


def shown(view):
    """Yield the cells of the board that are in sight, and their values."""
    for cell in np.ndindex(SHAPE[:2]):
        kind = tuple(view[cell].tolist())
        if {is_shown}:
            yield cell, kind
'''

_HIDE = """\
        seen = lit(view)
        for cell in np.ndindex(SHAPE[:2]):
            if cell not in seen:
                view[cell] = UNSEEN
"""

_LIT = '''

def lit(view):
    """Return the cells in sight: light passes through cells that are not opaque."""
    seen, waiting = set(SEEDS), list(SEEDS)
    while waiting:
        x, y = waiting.pop()
        if tuple(view[x, y].tolist()) in OPAQUE:
            continue
        for way in WAYS:
            cell = x + way[0], y + way[1]
            inside = 0 <= cell[0] < SHAPE[0] and 0 <= cell[1] < SHAPE[1]
            if inside and cell not in seen:
                seen.add(cell)
                waiting.append(cell)
    return seen
'''


def remember_boards(data: Dataset) -> str:
    """Return a program that remembers a board behind a window, or "" without a window."""
    window = find_window(data)
    return "" if window is None else _write(window)


def _write(window: Window) -> str:
    views = window.views
    shape = (*views.shape[:2], views.kinds.shape[1])
    kinds = [tuple(kind) for kind in views.kinds.tolist()]
    keys = {name: dumps(key) for name, (key, *_) in views.others.items()}
    given = "".join(f", {name}" for name in keys)
    image = f"[{dumps(views.key)}]" if views.key else ""
    shaped = "" if len(views.shape) == 3 else ".reshape(SHAPE[:2])"
    new = ", ".join(f"{key}: self.next_{name}(*now)" for name, key in keys.items())
    parts = ", ".join(part for part in (f"{dumps(views.key)}: view{shaped}", new) if part)
    observation = f"{{**self.observation, {parts}}}" if views.key else f"view{shaped}"
    constants, hide, is_shown = _sight(window, kinds)
    usual = [str([kinds[code] for code in row]) for row in window.usual.reshape(shape[:2]).tolist()]
    text = _PROGRAM.format(
        shape=shape,
        moves=[tuple(move) for move in window.moves],
        can=window.of_action,
        own=[tuple(cell) for cell in np.argwhere(window.own.reshape(shape[:2])).tolist()],
        usual="\n".join(wrapped("USUAL = ", f"[{', '.join(usual)}]")),
        sight=constants,
        hidden=" Cells that light does not reach are out of sight." if window.sight else "",
        others=given,
        numbers="".join(f", int(self.observation[{key}])" for key in keys.values()),
        hide=hide,
        observation=observation,
        image=image,
        move=_tree(window.choice),
        changes=_changes(window, kinds),
        after="".join(_next_number(name, tree, given) for name, tree in window.others.items()),
        reward=_tree(window.reward),
        terminated=_tree(window.terminated),
        is_shown=is_shown,
    )
    if window.others:
        start = f"        reward = self.reward(action, view{given})"
        text = text.replace(start, f"        now = action, view{given}\n{start}", 1)
    return text.rstrip() + "\n" + (_LIT if window.sight else "")


def _sight(window: Window, kinds: list[tuple[int, ...]]) -> tuple[str, str, str]:
    """Write constants of sight, the lines that hide cells, and the test of a visible cell."""
    if window.unseen == NO_CODE:
        return "", "", "cell not in OWN"
    is_shown = "cell not in OWN and kind != UNSEEN"
    constants = [f"UNSEEN = {kinds[window.unseen]}  # value of a cell out of sight"]
    hide, sight = "", window.sight
    if sight is not None:
        seeds = ", ".join(str(tuple(cell)) for cell in np.argwhere(sight.seeds).tolist())
        opaque = ", ".join(str(kinds[code]) for code in sorted(sight.opaque))
        constants += wrapped("SEEDS = ", f"[{seeds}]")
        constants += wrapped("WAYS = ", str(list(sight.ways)))
        constants += wrapped("OPAQUE = ", f"[{opaque}]")
        hide = _HIDE
    return "".join(f"{line}\n" for line in constants), hide, is_shown


def _tree(tree: AnswerTree, statement: Callable[[Any], str] = "return {!r}".format) -> str:
    """Write a decision tree; `statement` writes the line of the most likely answer."""

    def condition_text(condition: ShareCondition) -> str:
        return f"{condition.name} {'<=' if condition.most else '=='} {condition.value}"

    def most_likely(shares: Shares) -> list[str]:
        return [statement(tree.answers[int(np.argmax([float(share) for share in shares]))])]

    return "\n".join(" " * 8 + line for line in tree.table.lines(condition_text, most_likely))


def _changes(window: Window, kinds: list[tuple[int, ...]]) -> str:
    """Write the changes of cells as `yield` statements."""

    def statement(cell: int, code: int) -> str:
        place = divmod(cell, window.views.shape[1])
        return "pass" if code == NO_CODE else f"yield {place}, {kinds[code]}"

    parts = [_tree(tree, partial(statement, cell)) for cell, tree in window.changes.items()]
    return "\n".join(parts) if parts else "        return ()"


def _next_number(name: str, tree: AnswerTree, given: str) -> str:
    """Write the method that returns the next value of a number beside the view."""
    return (
        f"\n    def next_{name}(self, action, view{given}):\n"
        f'        """Return the next {name}."""\n{_tree(tree, "return {}".format)}\n'
    )
