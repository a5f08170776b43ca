"""Read to Fight Monsters as a Gymnasium environment.

The module defines the words, manuals and goals of the game, then the board as texts,
`board[row][column][slot]`, then the game itself.
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
"""Monsters as texts of the board, such as "cold dragon"."""

WEAPONS = frozenset(map(" ".join, product(MODIFIERS, ITEMS)))
"""Items as texts of the board and the inventory, such as "shimmering axe"."""

THINGS = FOES | WEAPONS


class Rules(NamedTuple):
    """The rules of an episode.

    Attributes:
        modifiers: The modifier that beats each of `ELEMENTS`.
        monsters: The monster of each of `GROUPS`.
        group: The group to defeat.
    """

    modifiers: tuple[str, ...]
    monsters: tuple[str, ...]
    group: str

    @property
    def manual(self) -> str:
        """The text of the manual, with a sentence for each fact."""
        weapons = zip(self.modifiers, ELEMENTS, strict=True)
        members = zip(self.monsters, GROUPS, strict=True)
        facts = [f"{modifier} beat {element}." for modifier, element in weapons]
        return " ".join([*facts, *(f"{monster} are {group}." for monster, group in members)])

    @property
    def goal(self) -> str:
        """The text of the goal."""
        return f"defeat the {self.group}"

    def beats(self, held: str, foe: str) -> bool:
        """Return whether a held item wins against a monster."""
        element = foe.split()[0]
        return held.split()[0] == self.modifiers[ELEMENTS.index(element)]

    def is_target(self, foe: str) -> bool:
        """Return whether a monster belongs to the group to defeat."""
        return foe.split()[1] == self.monster(self.group)

    def monster(self, group: str) -> str:
        """Return the monster of a group."""
        return self.monsters[GROUPS.index(group)]


class Cast(NamedTuple):
    """The player and the four things of an episode, in the order of their placement."""

    player: str
    target: str
    right: str
    wrong: str
    distractor: str


class Scene(NamedTuple):
    """The rules of an episode, and the player and things on its board."""

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
"""The rules and things of all episodes in the paper's environment."""


def draw(rng: np.random.Generator) -> Scene:
    """Draw the rules of an episode, and suitable monsters and items.

    The second monster has another group and element than the target, and the second item beats
    the second monster.
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
    choices = product(permutations(MODIFIERS), permutations(MONSTERS), GROUPS)
    books = [Rules(*choice) for choice in choices]
    return {(book.manual, book.goal): book for book in books}


SIZE = 6
"""Rows and columns; the outer ones are walls."""

Cell = tuple[int, int]
Board = tuple[tuple[tuple[str, str], ...], ...]

INNER: tuple[Cell, ...] = tuple(
    (row, column) for row in range(1, SIZE - 1) for column in range(1, SIZE - 1)
)
"""Cells that the player can enter."""

_INSIDE = frozenset(INNER)


def is_wall(cell: Cell) -> bool:
    """Return whether a cell is a wall or outside the board."""
    return cell not in _INSIDE


def board_of(player: Cell | None, things: Mapping[Cell, str]) -> Board:
    """Return the board as texts.

    A cell has two slots, for the faster and the slower of two things. In this game, no two things
    are in one cell, so the second slot is always empty.
    """
    return tuple(
        tuple((_word((row, column), player, things), EMPTY) for column in range(SIZE))
        for row in range(SIZE)
    )


def read_board(board: Board) -> tuple[Cell | None, dict[Cell, str]] | None:
    """Return the cells of the player and of all things; None if the board is invalid."""
    words = {cell: board[cell[0]][cell[1]][0] for cell in INNER}
    players = [cell for cell, word in words.items() if word == YOU]
    player = players[0] if players else None
    things = {cell: word for cell, word in words.items() if word in THINGS}
    return (player, things) if board_of(player, things) == board else None


def draw_text(board: Board, texts: Mapping[str, str]) -> str:
    """Return a board as lines of text, followed by a line for each of `texts`."""
    words = [[slot if slot != EMPTY else "." for slot, _ in row] for row in board]
    widths = [max(map(len, column)) for column in zip(*words, strict=True)]
    rows = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in words]
    return "\n".join([*rows, "", *(f"{name}: {text}" for name, text in texts.items())])


def _word(cell: Cell, player: Cell | None, things: Mapping[Cell, str]) -> str:
    if is_wall(cell):
        return WALL
    return YOU if cell == player else things.get(cell, EMPTY)


MOVES: dict[int, Cell] = {0: (0, 0), 1: (-1, 0), 2: (1, 0), 3: (0, -1), 4: (0, 1)}
"""Stay, up, down, left and right."""

REVISION = "1"
"""The version of the rules; increase it with every change of behaviour."""

MAX_STEPS = 1000
"""An episode without an end is lost in this step."""


class Rtfm(gym.Env[Any, Any]):
    """Read to Fight Monsters with monsters that do not move (Zhong et al., ICLR 2020).

    The state consists of the observation and the number of steps, which is not observed. The
    1,000th step loses and terminates, because this is a rule of the game with its own reward.
    Episodes are never truncated.

    Args:
        shuffled: Draw a manual, a goal, monsters and items for each episode.
        time_penalty: The reward of a step that does not end the episode.
        render_mode: None or "ansi".

    Raises:
        ValueError: The render mode is unknown, or the penalty is not finite.
    """

    metadata = {"render_modes": ["ansi"], "render_fps": 4}  # noqa: RUF012

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
        """Start an episode with new positions and an empty inventory."""
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
        """Move the player, who takes an item or fights a monster in the new cell."""
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
        """Return the actions that do not lead into a wall; all actions if the player is dead."""
        if self.player is None:
            return tuple(MOVES)
        row, column = self.player
        moves = MOVES.items()
        return tuple(action for action, (y, x) in moves if not is_wall((row + y, column + x)))

    def observation(self) -> tuple[Any, ...]:
        """Return board and inventory; in the shuffled game, also manual and goal."""
        texts = (self.manual, self.goal) if self.shuffled else ()
        return (board_of(self.player, self.things), self.inventory, *texts)

    def restore(self, observation: tuple[Any, ...]) -> bool:
        """Set the game to an observation, and the number of steps to 0.

        Returns:
            False if the observation is invalid; the game then does not change.
        """
        if not self.observation_space.contains(observation):
            return False
        board, inventory, *texts = observation
        positions = read_board(board)
        manual, goal = texts or (PUBLISHED.rules.manual, PUBLISHED.rules.goal)
        is_known = (manual, goal) in library() and inventory in WEAPONS | {EMPTY}
        if positions is None or not is_known:
            return False
        self.player, self.things = positions
        self.inventory, self.manual, self.goal, self.steps = inventory, manual, goal, 0
        return True

    def render(self) -> str | None:
        """Return the board, the inventory, the manual and the goal as text."""
        if self.render_mode is None:
            return None
        texts = {"inventory": self.inventory, "manual": self.manual, "goal": self.goal}
        return draw_text(board_of(self.player, self.things), texts)

    def _enter(self, cell: Cell) -> None:
        """Move the player into a cell, unless it is a wall."""
        if is_wall(cell):
            return
        thing = self.things.get(cell, EMPTY)
        if thing in FOES and not self._rules.beats(self.inventory, thing):
            self.player = None
            return
        if thing in WEAPONS:
            self.inventory = thing  # an item held before is destroyed
        self.things.pop(cell, None)
        self.player = cell

    def _outcome(self) -> tuple[float, bool]:
        """Return the reward of the step, and whether the episode is over."""
        foes = [thing for thing in self.things.values() if thing in FOES]
        dead = self.player is None
        if not (dead or len(foes) < 2 or self.steps >= MAX_STEPS):
            return self.time_penalty, False
        won = not dead and not any(map(self._rules.is_target, foes))
        return (1.0 if won else -1.0), True

    @property
    def _rules(self) -> Rules:
        """The rules in the manual and the goal of the episode."""
        return library()[self.manual, self.goal]

    def _info(self) -> dict[str, Any]:
        return {"valid_actions": self.valid_actions()}


def _observations(*, shuffled: bool) -> spaces.Tuple[Any]:
    """Return the observation space; the shuffled game has two more texts."""
    longest = max(map(len, WEAPONS | FOES))
    board = spaces.Tuple(
        spaces.Tuple(
            spaces.Tuple([_text_space(longest), _text_space(longest)]) for _ in range(SIZE)
        )
        for _ in range(SIZE)
    )
    books = [max(map(len, texts)) for texts in zip(*library(), strict=True)] if shuffled else []
    return spaces.Tuple([board, *map(_text_space, [longest, *books])])


def _text_space(max_length: int) -> spaces.Text:
    return spaces.Text(max_length, charset="abcdefghijklmnopqrstuvwxyz .")
