"""Terms and effects of boards: the words that rules about cells may use."""

import numpy as np

from cwm_induction.continuous.samples import Array
from cwm_induction.relations.boards import Boards
from cwm_induction.relations.layout import BoardLayout, place_of
from cwm_induction.relations.stages import BoardTerm, CellEffect, Loop, Names, define

MAX_ACTIONS = 12
"""With this many actions or more, an action is the number of a cell, not a kind of move."""

AHEAD = ("ahead", "beyond", "third", "fourth")
"""Names of the cells in the direction of the action."""


def start_names(layout: BoardLayout, before: Array, action: Array) -> Names:
    """Return the variables of a step before its first stage."""
    boards = layout.boards(before)
    rows = np.arange(len(before))
    cells = before[:, layout.first : layout.first + layout.cells].reshape(boards.shape)
    names: Names = {"action": action, "board": Boards(boards, rows), "old": Boards(cells, rows)}
    names |= {f"x{component}": before[:, component] for component in layout.extras}
    if layout.focus == "agent":
        names["row"], names["column"] = place_of(boards, layout.agent).T
        table = np.zeros((int(action.max()) + 1, 2), np.int64)
        for number, down, right in layout.steps:
            if number < len(table):
                table[number] = down, right
        names["down"], names["right"] = table[action].T
    elif layout.focus == "cell":
        names["row"], names["column"] = np.divmod(action, layout.across)
    elif layout.focus == "column":
        names["column"] = action
        names["row"] = names["board"].count_along(1, action, 0) - 1
    define(prelude(layout), names)
    return names


def prelude(layout: BoardLayout) -> list[BoardTerm]:
    """Return the variables that are computed from the board before the first stage."""
    if layout.focus == "agent":
        texts = [f"at(board, row + {k} * down, column + {k} * right)" for k in range(1, 5)]
        texts[0] = "at(board, row + down, column + right)"
        return [
            BoardTerm(name, text, "code", 0.5 * number)
            for number, (name, text) in enumerate(zip(AHEAD, texts, strict=True))
        ]
    if layout.focus:
        return [BoardTerm("pressed", "at(board, row, column)", "code")]
    return []


def find_loop(layout: BoardLayout, names: Names, target: Array) -> Loop:
    """Return the loop over the cells that change, relative to the focus."""
    if not layout.focus:
        return Loop("all", layout.shape)
    board = names["board"].values
    rows, y, x = np.nonzero(board != target)
    down, right = y - names["row"][rows], x - names["column"][rows]
    if layout.focus == "agent":
        reach, most = 1, 0
        for k in range(5):
            on = (down == k * names["down"][rows]) & (right == k * names["right"][rows])
            if on.sum() > max(2, 0.001 * len(target)):
                reach = k + 1
            most += int(on.sum())
        return Loop("ahead", layout.shape, layout.wraps, reach=reach)
    down = down % layout.shape[0] if layout.wraps[0] else down
    right = right % layout.shape[1] if layout.wraps[1] else right
    offsets, counts = np.unique(np.stack([down, right], axis=1), axis=0, return_counts=True)
    kept = offsets[counts > 0.02 * len(target)]
    height, width = layout.shape
    near = sorted(
        (
            int((d + height // 2) % height - height // 2) if layout.wraps[0] else int(d),
            int((r + width // 2) % width - width // 2) if layout.wraps[1] else int(r),
        )
        for d, r in kept
    )
    return Loop("offsets", layout.shape, layout.wraps, offsets=tuple(near))


def codes_of(names: Names) -> list[int]:
    """Return the values that cells have."""
    return [int(code) for code in np.unique(names["board"].values)]


def field_terms(layout: BoardLayout, names: Names) -> list[BoardTerm]:
    """Return what conditions of a stage for all cells may compare, after a first stage or alone."""
    terms = [term for term in cell_terms(layout, names) if term.name not in ("k", "dy", "dx")]
    terms = [term for term in terms if "dx" not in term.name and "dy" not in term.name]
    if layout.focus == "agent":
        target = "(y == row + down) & (x == column + right)"
        terms.append(BoardTerm("entered", target, "flag", 1.0))
    if layout.focus:
        terms.append(BoardTerm("dy", "y - row", "number", 2.0))
        terms.append(BoardTerm("dx", "x - column", "number", 2.0))
    return terms


def _shifted(layout: BoardLayout, down: int, right: int) -> str:
    """Write the neighbour of a cell of the loop."""
    height, width = layout.shape
    y = "y" if not down else f"y {'+' if down > 0 else '-'} {abs(down)}"
    x = "x" if not right else f"x {'+' if right > 0 else '-'} {abs(right)}"
    y = f"({y}) % {height}" if down and layout.wraps[0] else y
    x = f"({x}) % {width}" if right and layout.wraps[1] else x
    return f"at(board, {y}, {x})"


def cell_terms(layout: BoardLayout, names: Names) -> list[BoardTerm]:
    """Return what conditions of the first stage may compare."""
    terms = [term._replace(text=term.name) for term in prelude(layout)]
    if layout.focus == "agent":
        terms.append(BoardTerm("k", "k", "number"))
    elif layout.focus:
        terms += [BoardTerm("dy", "dy", "number", 1.0), BoardTerm("dx", "dx", "number", 1.0)]
        near = ("abs(dy) + abs(dx)", "abs(dy)", "abs(dx)", "max(abs(dy), abs(dx))")
        terms += [BoardTerm(text, text, "number") for text in near]
        terms += [BoardTerm(name, name, "number", 3.0) for name in ("row", "column")]
    terms.append(BoardTerm("here", "at(board, y, x)", "code"))
    terms += [
        BoardTerm(name, _shifted(layout, *offset), "code", 1.0)
        for name, offset in _neighbours(layout).items()
    ]
    if int(names["action"].max()) < MAX_ACTIONS:
        terms.append(BoardTerm("action", "action", "code", 0.5))
    terms += [
        BoardTerm(f"x{component}", f"x{component}", "number", 1.0) for component in layout.extras
    ]
    if layout.shape[0] == 1:
        return [*terms, BoardTerm("x", "x", "number", 1.0), *_line_terms(layout, names)]
    terms += [BoardTerm("y", "y", "number", 3.0), BoardTerm("x", "x", "number", 3.0)]
    if any(layout.wraps):
        return terms
    around = [f"count_around(board, y, x, {code})" for code in codes_of(names)]
    return [*terms, *(BoardTerm(text, text, "number", 3.0) for text in around)]


def _line_terms(layout: BoardLayout, names: Names) -> list[BoardTerm]:
    """Return the values of single places of a line, and how these compare."""
    places = [f"board[0, {place}]" for place in range(layout.cells)]
    terms = [BoardTerm(text, text, "code", 1.5) for text in places]
    others = [f"x{component}" for component in layout.extras]
    for place, text in enumerate(places):
        for other in [*places[place + 1 :], *others]:
            equal = f"({text} == {other})"
            terms.append(BoardTerm(equal, equal, "flag", 3.0))
        if place + 2 < len(places):
            different = f"distinct({', '.join(places[place : place + 3])})"
            terms.append(BoardTerm(different, different, "number", 3.0))
    return terms


def count_terms(names: Names, board: str, price: float = 1.0) -> list[BoardTerm]:
    """Return the numbers of cells with each value."""
    texts = [f"count({board}, {code})" for code in codes_of(names)]
    return [BoardTerm(text, text, "number", price) for text in texts]


def _neighbours(layout: BoardLayout) -> dict[str, tuple[int, int]]:
    found = {"left": (0, -1), "right_of": (0, 1)}
    if layout.shape[0] > 1:
        found |= {"above": (-1, 0), "below": (1, 0)}
    return found


def cell_effects(layout: BoardLayout, names: Names) -> list[CellEffect]:
    """Return the new values that a cell may get."""
    codes = codes_of(names)
    effects = [CellEffect("here")]
    if len(codes) == 2 and codes == [0, 1]:
        effects.append(CellEffect("1 - here", -1.0))
    effects += [CellEffect(str(code)) for code in codes]
    if layout.focus == "agent":
        effects.append(CellEffect("at(board, y - down, x - right)"))
        effects.append(CellEffect("ahead", 1.0))
    if layout.focus in ("cell", "column"):
        effects.append(CellEffect("pressed", 1.0))
    effects += [CellEffect(name, 1.0) for name in _neighbours(layout)]
    effects += [CellEffect(f"x{component}") for component in layout.extras]
    if layout.shape[0] == 1:
        effects += [CellEffect(f"board[0, {place}]", 1.0) for place in range(layout.cells)]
    return effects
