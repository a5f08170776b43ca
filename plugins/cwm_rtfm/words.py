"""The game in words: the next cell, the held item, and the facts of the manual about both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from cwm_cli.data.dataset import Transition
from cwm_cli.envs.text_view import Change, Consequence, TextView
from cwm_cli.errors import CwmError
from cwm_rtfm.game import (
    ELEMENTS,
    EMPTY,
    FOES,
    GROUPS,
    INNER,
    ITEMS,
    MODIFIERS,
    MONSTERS,
    MOVES,
    PUBLISHED,
    THINGS,
    WEAPONS,
    Cell,
    Rtfm,
    Rules,
    board_of,
    is_wall,
    library,
    read_board,
)

GUIDE = """A game on a board of four by four cells, with walls around. There are monsters, each \
with an element, and items, each with a modifier. A manual says which modifiers beat which \
elements, and defines the group of each kind of monster; a goal says which group to defeat. The \
player holds one item at most. Elements: {elements}. Monsters: {monsters}. Modifiers: {modifiers}. \
Items: {items}. Groups: {groups}."""

DIRECTIONS = ("stay", "up", "down", "left", "right")
NONE = "none"

MOVED, STAYED, TOOK, DIED, WON, MISSED, LATE = (
    "moved",
    "stayed",
    "took",
    "died",
    "won",
    "missed",
    "ran out of time",
)
"""Kinds of change."""

SENTENCES = {
    MOVED: "You go into the next cell.",
    STAYED: "You stay where you are.",
    DIED: "You die.",
    WON: "You defeat the monster of the goal.",
    MISSED: "You defeat another monster than the goal demands.",
    LATE: "You run out of time.",
}
PLAIN = {kind: Change(text, kind) for kind, text in SENTENCES.items()}


class RtfmState(NamedTuple):
    """The content of an observation.

    Attributes:
        player: The cell of the player; None if the player is dead.
        things: Monsters and items by cell.
        held: The held item, or `EMPTY`.
        rules: The rules of the episode.
        texts: The manual and the goal, if they are part of observations.
    """

    player: Cell | None
    things: Mapping[Cell, str]
    held: str
    rules: Rules
    texts: tuple[str, ...]

    def ahead(self, action: int) -> Cell | None:
        """Return the target cell of an action, or None if the player is dead."""
        if self.player is None:
            return None
        row, column = MOVES[action]
        return self.player[0] + row, self.player[1] + column

    def observation(self) -> tuple[Any, ...]:
        """Return the observation with this content."""
        return board_of(self.player, self.things), self.held, *self.texts


class RtfmWords(TextView):
    """A text view of the game.

    Its facts are the direction, the content of the next cell, the held item, and the facts of the
    manual about them.
    """

    kinds = (MOVED, STAYED, TOOK, DIED, WON, MISSED, LATE)
    vocabulary: Mapping[str, tuple[str, ...]] = {
        "way": DIRECTIONS,
        "ahead": ("nothing", "wall", "monster", "item"),
        "element ahead": (NONE, *ELEMENTS),
        "group ahead": (NONE, *GROUPS),
        "modifier ahead": (NONE, *MODIFIERS),
        "item ahead": (NONE, *ITEMS),
        "modifier held": (NONE, *MODIFIERS),
        "element that it beats": (NONE, *ELEMENTS),
        "group to defeat": GROUPS,
    }
    conclusions: Mapping[str, Mapping[str, tuple[str, ...]]] = {
        kind: {"modifier": MODIFIERS, "item": ITEMS} if kind == TOOK else {} for kind in kinds
    }

    def __init__(self, game: Rtfm) -> None:
        self._penalty = game.time_penalty
        self._copy = Rtfm(shuffled=game.shuffled, time_penalty=game.time_penalty)

    def guide(self) -> str:
        """Return a description of the game without the effects of actions."""
        return GUIDE.format(
            elements=", ".join(ELEMENTS),
            monsters=", ".join(MONSTERS),
            modifiers=", ".join(MODIFIERS),
            items=", ".join(ITEMS),
            groups=", ".join(GROUPS),
        )

    def state(self, observation: Any) -> str:
        """Return the positions of everything, the held item, the manual and the goal."""
        now = read_state(observation)
        things = [f"a {word} at {_place(cell)}" for cell, word in sorted(now.things.items())]
        you = "You are dead." if now.player is None else f"You are at {_place(now.player)}."
        held = "nothing" if now.held == EMPTY else f"the {now.held}"
        parts = (you, f"You hold {held}.", f"There is {', '.join(things) or 'nothing'}.")
        return " ".join((*parts, f"Manual: {now.rules.manual}", f"Goal: {now.rules.goal}."))

    def legal(self, observation: Any) -> Sequence[int]:
        """Return the actions that do not lead into a wall."""
        now = read_state(observation)
        cells = {action: now.ahead(action) for action in MOVES}
        return tuple(action for action, cell in cells.items() if cell is None or not is_wall(cell))

    def action(self, observation: Any, action: int) -> str:
        """Return a sentence about the direction."""
        return f"You go {DIRECTIONS[action]}." if action else "You stay."

    def facts(self, observation: Any, action: int) -> Mapping[str, str]:
        """Return the content of the next cell, the held item, and the facts about them."""
        now = read_state(observation)
        cell = now.ahead(action)
        word = now.things.get(cell, EMPTY) if cell else EMPTY
        first, _, noun = word.partition(" ")
        foe, weapon = word in FOES, word in WEAPONS
        wall = cell is not None and is_wall(cell)
        modifier = NONE if now.held == EMPTY else now.held.split()[0]
        rules = now.rules
        return {
            "way": DIRECTIONS[action],
            "ahead": "wall" if wall else "monster" if foe else "item" if weapon else "nothing",
            "element ahead": first if foe else NONE,
            "group ahead": GROUPS[rules.monsters.index(noun)] if foe else NONE,
            "modifier ahead": first if weapon else NONE,
            "item ahead": noun if weapon else NONE,
            "modifier held": modifier,
            "element that it beats": (
                NONE if modifier == NONE else ELEMENTS[rules.modifiers.index(modifier)]
            ),
            "group to defeat": rules.group,
        }

    def change(self, row: Transition) -> Change:
        """Return the change of a transition."""
        before, after = read_state(row.observation), read_state(row.next_observation)
        if row.terminated and after.player is None:
            return PLAIN[DIED]
        if row.terminated and len(FOES & {*after.things.values()}) < 2:
            return PLAIN[WON if row.reward > 0 else MISSED]
        if row.terminated:
            return PLAIN[LATE]
        gone = before.things.keys() - after.things.keys()
        if gone:
            return _take_item(before.things[gone.pop()])
        return PLAIN[STAYED if before.player == after.player else MOVED]

    def candidates(self, observation: Any) -> Sequence[Change]:
        """Return every change without fields, and a change for each item on the board."""
        items = sorted(WEAPONS & {*read_state(observation).things.values()})
        return *PLAIN.values(), *map(_take_item, items)

    def reachable(self, observation: Any) -> Sequence[bool]:
        """Return for each candidate whether an action leads to it, with all steps remaining."""
        found = []
        for action in self.legal(observation):
            self._copy.restore(observation)
            after, reward, terminated, *_ = self._copy.step(action)
            found.append(self.change(Transition(observation, action, after, reward, terminated)))
        return [change in found for change in self.candidates(observation)]

    def consequence(self, observation: Any, action: int, change: Change) -> Consequence | None:
        """Return the meaning of a change; None for a dead player or the step limit."""
        now = read_state(observation)
        cell = now.ahead(action)
        if cell is None or change.kind == LATE:
            return None
        ended = change.kind in (DIED, WON, MISSED, LATE)
        reward = self._penalty if not ended else 1.0 if change.kind == WON else -1.0
        if change.kind == DIED:
            now = now._replace(player=None)
        elif change.kind != STAYED:
            if is_wall(cell):
                return None
            left = {place: word for place, word in now.things.items() if place != cell}
            held = " ".join(change.fields.values()) or now.held
            now = now._replace(player=cell, things=left, held=held)
        return Consequence(now.observation(), reward, ended)

    def features(self, observation: Any) -> np.ndarray:
        """Return one-hot codes of the word in each cell, the held item and the rules."""
        now = read_state(observation)
        words = [now.things.get(cell, "you" if cell == now.player else EMPTY) for cell in INNER]
        vocabulary = (EMPTY, "you", *sorted(THINGS))
        numbers = [vocabulary.index(word) for word in (*words, now.held)]
        rules = [MODIFIERS.index(name) for name in now.rules.modifiers]
        rules += [MONSTERS.index(name) for name in now.rules.monsters]
        rules.append(GROUPS.index(now.rules.group))
        one_hot_rules = np.eye(len(MODIFIERS))[rules]
        return np.concatenate([np.eye(len(vocabulary))[numbers].ravel(), one_hot_rules.ravel()])


def read_state(observation: Any) -> RtfmState:
    """Read the content of an observation.

    Raises:
        CwmError: It is no observation of the game.
    """
    board, held, *texts = observation
    positions = read_board(board)
    rules = library().get(tuple(texts)) if texts else PUBLISHED.rules
    if positions is None or rules is None:
        raise CwmError("this is not an observation of the game: it has no description in words")
    return RtfmState(*positions, held, rules, tuple(texts))


def _take_item(word: str) -> Change:
    modifier, item = word.split()
    return Change(f"You take the {word}.", TOOK, {"modifier": modifier, "item": item})


def _place(cell: Cell) -> str:
    return f"row {cell[0]}, column {cell[1]}"
