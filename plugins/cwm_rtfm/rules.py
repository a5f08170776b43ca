"""The words of the game, and the manual and goal that say what they mean in an episode."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from itertools import permutations, product
from typing import TYPE_CHECKING, NamedTuple

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
