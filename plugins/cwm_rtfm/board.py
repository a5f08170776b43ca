"""The board as texts, `board[row][column][slot]`, and back."""

from collections.abc import Mapping

from cwm_rtfm.rules import EMPTY, THINGS, WALL, YOU

SIZE = 6
"""Rows and columns; the outer ones are walls."""

Cell = tuple[int, int]
Board = tuple[tuple[tuple[str, str], ...], ...]

INNER: tuple[Cell, ...] = tuple(
    (row, column) for row in range(1, SIZE - 1) for column in range(1, SIZE - 1)
)
"""Cells in which one can stand."""

_INSIDE = frozenset(INNER)


def is_wall(cell: Cell) -> bool:
    """Whether nobody can enter a cell."""
    return cell not in _INSIDE


def board_of(player: Cell | None, things: Mapping[Cell, str]) -> Board:
    """Write down what is in every cell.

    A cell has two slots because the faster of two things in it comes first;
    here nothing ever shares a cell with another, so the second stays empty.
    """
    return tuple(
        tuple((_word((row, column), player, things), EMPTY) for column in range(SIZE))
        for row in range(SIZE)
    )


def placed(board: Board) -> tuple[Cell | None, dict[Cell, str]] | None:
    """Read where the player and all things are, None where that is no board of the game."""
    words = {cell: board[cell[0]][cell[1]][0] for cell in INNER}
    players = [cell for cell, word in words.items() if word == YOU]
    player = players[0] if players else None
    things = {cell: word for cell, word in words.items() if word in THINGS}
    return (player, things) if board_of(player, things) == board else None


def drawn(board: Board, around: Mapping[str, str]) -> str:
    """Draw a board in characters, and under it a line for each text that belongs to it."""
    words = [[slot if slot != EMPTY else "." for slot, _ in row] for row in board]
    widths = [max(map(len, column)) for column in zip(*words, strict=True)]
    rows = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in words]
    return "\n".join([*rows, "", *(f"{name}: {text}" for name, text in around.items())])


def _word(cell: Cell, player: Cell | None, things: Mapping[Cell, str]) -> str:
    """Return what is first in a cell."""
    if is_wall(cell):
        return WALL
    return YOU if cell == player else things.get(cell, EMPTY)
