"""Read to Fight Monsters as an environment of Gymnasium.

The words of the game come first, with the manual and the goal that say what they mean in an
episode; then the board as texts, `board[row][column][slot]`; then the game.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from itertools import permutations, product
from math import isfinite
from typing import TYPE_CHECKING, Any, NamedTuple

import gymnasium as gym
from gymnasium import spaces

if TYPE_CHECKING:
    import numpy as np

EMPTY, WALL, YOU = "empty", "wall", "you"

ELEMENTS = ("cold", "fire", "lightning", "poison")
MODIFIERS = ("grandmasters", "blessed", "shimmering", "gleaming")
GROUPS = ("order of the forest", "rebel enclave", "star alliance")
MONSTERS = ("demon", "dragon", "jinn")
ITEMS = ("axe", "bow", "daggers", "hammer", "polearm", "shield", "staff", "sword")

FOES = frozenset(map(" ".join, product(ELEMENTS, MONSTERS)))
"""Monsters as they stand on the board: "cold dragon"."""

WEAPONS = frozenset(map(" ".join, product(MODIFIERS, ITEMS)))
"""Items as they lie on the board or are held: "shimmering axe"."""

THINGS = FOES | WEAPONS


class Rules(NamedTuple):
    """Which modifier beats each of `ELEMENTS`, who is each of `GROUPS`, and which to defeat."""

    modifiers: tuple[str, ...]
    monsters: tuple[str, ...]
    group: str

    @property
    def manual(self) -> str:
        """The facts, a sentence each."""
        weapons = zip(self.modifiers, ELEMENTS, strict=True)
        members = zip(self.monsters, GROUPS, strict=True)
        facts = [f"{modifier} beat {element}." for modifier, element in weapons]
        return " ".join([*facts, *(f"{monster} are {group}." for monster, group in members)])

    @property
    def goal(self) -> str:
        """What to do."""
        return f"defeat the {self.group}"

    def beats(self, held: str, foe: str) -> bool:
        """Whether who holds this wins against a monster."""
        element = foe.split()[0]
        return held.split()[0] == self.modifiers[ELEMENTS.index(element)]

    def is_target(self, foe: str) -> bool:
        """Whether a monster is the one to defeat."""
        return foe.split()[1] == self.monster(self.group)

    def monster(self, group: str) -> str:
        """Return who is of a group."""
        return self.monsters[GROUPS.index(group)]


class Cast(NamedTuple):
    """The player and the four things of an episode, in the order in which they are placed."""

    player: str
    target: str
    right: str
    wrong: str
    distractor: str


class Scene(NamedTuple):
    """The rules of an episode, and who and what is on its board."""

    rules: Rules
    cast: Cast


PUBLISHED = Scene(
    Rules(
        modifiers=("shimmering", "grandmasters", "blessed", "gleaming"),
        monsters=("dragon", "demon", "jinn"),
        group="order of the forest",
    ),
    Cast(YOU, "cold dragon", "shimmering axe", "grandmasters bow", "fire demon"),
)
"""What the paper's environment has in every episode."""


def draw(rng: np.random.Generator) -> Scene:
    """Draw the rules of an episode, and the monsters and items by them.

    The second monster differs from the one to defeat in group and element, and
    the second item beats the second monster.
    """
    books = list(library().values())
    rules = books[rng.integers(len(books))]
    others = [group for group in GROUPS if group != rules.group]
    first, second = rng.choice(len(ELEMENTS), 2, replace=False)
    right, wrong = rng.choice(ITEMS, 2, replace=False)
    cast = Cast(
        player=YOU,
        target=f"{ELEMENTS[first]} {rules.monster(rules.group)}",
        right=f"{rules.modifiers[first]} {right}",
        wrong=f"{rules.modifiers[second]} {wrong}",
        distractor=f"{ELEMENTS[second]} {rules.monster(others[rng.integers(len(others))])}",
    )
    return Scene(rules, cast)


@cache
def library() -> Mapping[tuple[str, str], Rules]:
    """Return all possible rules by their manual and goal."""
    every = product(permutations(MODIFIERS), permutations(MONSTERS), GROUPS)
    books = [Rules(*choice) for choice in every]
    return {(book.manual, book.goal): book for book in books}


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


MOVES: dict[int, Cell] = {0: (0, 0), 1: (-1, 0), 2: (1, 0), 3: (0, -1), 4: (0, 1)}
"""Stay, up, down, left and right."""

REVISION = "1"
"""Raised whenever the game goes another way."""

MOST_STEPS = 1000
"""The step in which an episode is lost if it is not over before."""

LETTERS = "abcdefghijklmnopqrstuvwxyz ."


class Rtfm(gym.Env[Any, Any]):
    """Read to Fight Monsters, with monsters that stand still (Zhong et al., ICLR 2020).

    The state is what is observed, and the number of steps, which is not: the
    thousandth step loses, and `terminated` says so, because that is a rule of
    the game with a reward of its own. Nothing is ever truncated.
    """

    metadata = {"render_modes": ["ansi"], "render_fps": 4}  # noqa: RUF012  # Gymnasium's way

    def __init__(
        self,
        *,
        shuffled: bool = False,
        time_penalty: float = 0.0,
        render_mode: str | None = None,
    ) -> None:
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise ValueError(f"unknown render mode {render_mode!r}: choose 'ansi'")
        if not isfinite(time_penalty):
            raise ValueError(f"the time penalty {time_penalty} is not a finite number")
        self.shuffled = shuffled
        self.time_penalty = float(time_penalty)
        self.render_mode = render_mode
        self.observation_space = _observations(shuffled=shuffled)
        self.action_space = spaces.Discrete(len(MOVES))
        self.player: Cell | None = None
        self.things: dict[Cell, str] = {}
        self.inventory = EMPTY
        self.manual = self.goal = ""
        self.steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode: everything stands somewhere else, nothing is held."""
        super().reset(seed=seed)
        rules, cast = draw(self.np_random) if self.shuffled else PUBLISHED
        self.manual, self.goal = rules.manual, rules.goal
        places = self.np_random.choice(len(INNER), len(cast), replace=False)
        self.player, *others = (INNER[place] for place in places)
        self.things = dict(zip(others, cast[1:], strict=True))
        self.inventory = EMPTY
        self.steps = 0
        return self.observation(), self._info()

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Move, take what lies there, or fight whoever stands there."""
        if not self.action_space.contains(action):
            raise ValueError(f"there is no action {action!r}: choose one from 0 to 4")
        if not self.manual:
            raise gym.error.ResetNeeded("reset the environment before its first step")
        self.steps += 1
        if self.player is not None:
            row, column = MOVES[int(action)]
            self._enter((self.player[0] + row, self.player[1] + column))
        reward, terminated = self._outcome()
        return self.observation(), reward, terminated, False, self._info()

    def valid_actions(self) -> tuple[int, ...]:
        """Return the actions that walk into no wall; all of them once the player is dead."""
        if self.player is None:
            return tuple(MOVES)
        row, column = self.player
        moves = MOVES.items()
        return tuple(action for action, (y, x) in moves if not is_wall((row + y, column + x)))

    def observation(self) -> tuple[Any, ...]:
        """Return what is seen: the manual and the goal only where they differ between episodes."""
        told = (self.manual, self.goal) if self.shuffled else ()
        return (board_of(self.player, self.things), self.inventory, *told)

    def restore(self, observation: tuple[Any, ...]) -> bool:
        """Stand at an observation, with all steps to go; False where it is none of the game."""
        if not self.observation_space.contains(observation):
            return False
        board, inventory, *told = observation
        found = placed(board)
        manual, goal = told or (PUBLISHED.rules.manual, PUBLISHED.rules.goal)
        known = (manual, goal) in library() and inventory in WEAPONS | {EMPTY}
        if found is None or not known:
            return False
        self.player, self.things = found
        self.inventory, self.manual, self.goal, self.steps = inventory, manual, goal, 0
        return True

    def render(self) -> str | None:
        """Return the board, the inventory, the manual and the goal as text."""
        if self.render_mode is None:
            return None
        texts = {"inventory": self.inventory, "manual": self.manual, "goal": self.goal}
        return drawn(board_of(self.player, self.things), texts)

    def _enter(self, cell: Cell) -> None:
        """Arrive in a cell; a wall lets nobody in."""
        if is_wall(cell):
            return
        thing = self.things.get(cell, EMPTY)
        if thing in FOES and not self._rules.beats(self.inventory, thing):
            self.player = None
            return
        if thing in WEAPONS:
            self.inventory = thing  # what was held before is gone
        self.things.pop(cell, None)
        self.player = cell

    def _outcome(self) -> tuple[float, bool]:
        """Return the reward, and whether the episode is over."""
        foes = [thing for thing in self.things.values() if thing in FOES]
        dead = self.player is None
        if not (dead or len(foes) < 2 or self.steps >= MOST_STEPS):
            return self.time_penalty, False
        won = not dead and not any(map(self._rules.is_target, foes))
        return (1.0 if won else -1.0), True

    @property
    def _rules(self) -> Rules:
        """The rules of the episode, as the manual and the goal have them."""
        return library()[self.manual, self.goal]

    def _info(self) -> dict[str, Any]:
        return {"valid_actions": self.valid_actions()}


def _observations(*, shuffled: bool) -> spaces.Tuple[Any]:
    """Return the space of board and inventory, and of manual and goal where these are drawn."""
    longest = max(map(len, WEAPONS | FOES))
    board = spaces.Tuple(
        spaces.Tuple(spaces.Tuple([_texts(longest), _texts(longest)]) for _ in range(SIZE))
        for _ in range(SIZE)
    )
    told = [max(map(len, texts)) for texts in zip(*library(), strict=True)] if shuffled else []
    return spaces.Tuple([board, *map(_texts, [longest, *told])])


def _texts(longest: int) -> spaces.Text:
    return spaces.Text(longest, charset=LETTERS)
