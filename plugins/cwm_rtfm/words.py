"""The game in words: what is ahead and what is held, and what the manual says of both."""

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
    placed,
)

GUIDE = """A game on a board of four by four cells, with walls around. There are monsters, each \
with an element, and items, each with a modifier. A manual says which modifiers beat which \
elements, and to which group each kind of monster belongs; a goal says which group to defeat. The \
player holds one item at most. Elements: {elements}. Monsters: {monsters}. Modifiers: {modifiers}. \
Items: {items}. Groups: {groups}."""

WAYS = ("stay", "up", "down", "left", "right")
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

SAID = {
    MOVED: "You go into the next cell.",
    STAYED: "You stay where you are.",
    DIED: "You die.",
    WON: "You defeat the monster that you were to defeat.",
    MISSED: "You defeat a monster that you were not to defeat.",
    LATE: "You run out of time.",
}
PLAIN = {kind: Change(text, kind) for kind, text in SAID.items()}
ENDS = (DIED, WON, MISSED, LATE)


class RtfmState(NamedTuple):
    """What an observation tells."""

    player: Cell | None
    things: Mapping[Cell, str]
    held: str
    rules: Rules
    told: tuple[str, ...]

    def ahead(self, action: int) -> Cell | None:
        """Return where an action leads to, None where nobody is there to act."""
        if self.player is None:
            return None
        row, column = MOVES[action]
        return self.player[0] + row, self.player[1] + column

    def observation(self) -> tuple[Any, ...]:
        """Return what is seen."""
        return board_of(self.player, self.things), self.held, *self.told


class RtfmWords(TextView):
    """Where the player goes, what is there, and what the manual says of it."""

    kinds = (MOVED, STAYED, TOOK, DIED, WON, MISSED, LATE)
    vocabulary: Mapping[str, tuple[str, ...]] = {
        "way": WAYS,
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
        """Describe what there is, and nothing of what happens."""
        return GUIDE.format(
            elements=", ".join(ELEMENTS),
            monsters=", ".join(MONSTERS),
            modifiers=", ".join(MODIFIERS),
            items=", ".join(ITEMS),
            groups=", ".join(GROUPS),
        )

    def state(self, observation: Any) -> str:
        """Say where everything is, and what manual and goal say."""
        now = situation(observation)
        lying = [f"a {word} at {_place(cell)}" for cell, word in sorted(now.things.items())]
        you = "You are dead." if now.player is None else f"You are at {_place(now.player)}."
        held = "nothing" if now.held == EMPTY else f"the {now.held}"
        parts = (you, f"You hold {held}.", f"There is {', '.join(lying) or 'nothing'}.")
        return " ".join((*parts, f"Manual: {now.rules.manual}", f"Goal: {now.rules.goal}."))

    def legal(self, observation: Any) -> Sequence[int]:
        """Return the ways that lead into no wall."""
        now = situation(observation)
        cells = {action: now.ahead(action) for action in MOVES}
        return tuple(action for action, cell in cells.items() if cell is None or not is_wall(cell))

    def action(self, observation: Any, action: int) -> str:
        """Say which way is taken."""
        return f"You go {WAYS[action]}." if action else "You stay."

    def facts(self, observation: Any, action: int) -> Mapping[str, str]:
        """Return what is ahead and held, and what manual and goal say of them."""
        now = situation(observation)
        cell = now.ahead(action)
        word = now.things.get(cell, EMPTY) if cell else EMPTY
        first, _, noun = word.partition(" ")
        foe, weapon = word in FOES, word in WEAPONS
        wall = cell is not None and is_wall(cell)
        modifier = NONE if now.held == EMPTY else now.held.split()[0]
        rules = now.rules
        return {
            "way": WAYS[action],
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
        """Say what followed."""
        before, after = situation(row.observation), situation(row.next_observation)
        if row.terminated and after.player is None:
            return PLAIN[DIED]
        if row.terminated and len(FOES & {*after.things.values()}) < 2:
            return PLAIN[WON if row.reward > 0 else MISSED]
        if row.terminated:
            return PLAIN[LATE]
        gone = before.things.keys() - after.things.keys()
        if gone:
            return _took(before.things[gone.pop()])
        return PLAIN[STAYED if before.player == after.player else MOVED]

    def candidates(self, observation: Any) -> Sequence[Change]:
        """Return every kind of change, and taking each of the items on the board."""
        items = sorted(WEAPONS & {*situation(observation).things.values()})
        return *PLAIN.values(), *map(_took, items)

    def reachable(self, observation: Any) -> Sequence[bool]:
        """Return which candidates an action leads to, with all steps to go."""
        found = []
        for action in self.legal(observation):
            self._copy.restore(observation)
            after, reward, terminated, *_ = self._copy.step(action)
            found.append(self.change(Transition(observation, action, after, reward, terminated)))
        return [change in found for change in self.candidates(observation)]

    def consequence(self, observation: Any, action: int, change: Change) -> Consequence | None:
        """Return what the words mean, None where nobody is there, or time is what ran out."""
        now = situation(observation)
        cell = now.ahead(action)
        if cell is None or change.kind == LATE:
            return None
        ended = change.kind in ENDS
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
        """Return which word is in each cell, what is held, and the rules, one by one."""
        now = situation(observation)
        words = [now.things.get(cell, "you" if cell == now.player else EMPTY) for cell in INNER]
        every = (EMPTY, "you", *sorted(THINGS))
        seen = [every.index(word) for word in (*words, now.held)]
        rules = [MODIFIERS.index(name) for name in now.rules.modifiers]
        rules += [MONSTERS.index(name) for name in now.rules.monsters]
        rules.append(GROUPS.index(now.rules.group))
        told = np.eye(len(MODIFIERS))[rules]
        return np.concatenate([np.eye(len(every))[seen].ravel(), told.ravel()])


def situation(observation: Any) -> RtfmState:
    """Read an observation; `CwmError` where it is none of the game."""
    board, held, *told = observation
    found = placed(board)
    rules = library().get(tuple(told)) if told else PUBLISHED.rules
    if found is None or rules is None:
        raise CwmError("this is not an observation of the game: it has no description in words")
    return RtfmState(*found, held, rules, tuple(told))


def _took(word: str) -> Change:
    modifier, item = word.split()
    return Change(f"You take the {word}.", TOOK, {"modifier": modifier, "item": item})


def _place(cell: Cell) -> str:
    return f"row {cell[0]}, column {cell[1]}"
