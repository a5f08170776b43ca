"""Specifications and descriptions of the RTFM environments."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, cast

from cwm_cli.envs.spec import EnvironmentSpec, making
from cwm_rtfm.game import (
    ELEMENTS,
    GROUPS,
    ITEMS,
    MAX_STEPS,
    MODIFIERS,
    MONSTERS,
    PUBLISHED,
    REVISION,
    Rtfm,
)

if TYPE_CHECKING:
    import gymnasium as gym

    from cwm_cli.envs.text_view import TextView

GUIDE = """# Read to Fight Monsters

A text game on a board of 6 x 6 cells. Two monsters, two items and the player are somewhere on the \
board. A manual defines which items beat which monsters, and the group of each monster. A goal \
names a group: find the monster of this group, pick up an item that beats it, and walk into it. \
The monsters never move. The only random parts are {drawn}.

## Observation
{layout}
- `board[row][column][slot]` is a text. Row 0 is at the top, column 0 at the left. A cell has two \
slots for its content, fastest first (the player, then monsters, then items). An unused slot is \
`empty`.
- A text of the board is `empty`, `wall`, `you` (the player), a monster with its element, such as \
`cold dragon`, or an item with its modifier, such as `shimmering axe`. The outermost cells of the \
board are walls.
- `inventory` is the item that the player holds, written as on the board, or `empty`.{told}

Elements: {elements}. Monsters: {monsters}. Modifiers: {modifiers}. Items: {items}.

## Actions
0 stay, 1 up (to the row above), 2 down, 3 left, 4 right. A player who walks into a wall stays in \
place. Valid actions are staying and every direction without a wall. For a dead player, all \
actions are valid and have no effect.

## Rules
- A player who enters a cell with an item takes it. The player can hold only one item: an item \
held before is destroyed, not dropped.
- A player who enters a cell with a monster fights it. The player wins if the modifier of the held \
item beats the element of the monster, according to the manual: the monster disappears, and the \
player is in its cell and still holds the item. Otherwise, and without an item, the player dies \
and disappears from the board; the monster and the inventory do not change.
- Only the modifier of an item and the element of a monster decide a fight; the nouns, such as axe \
and dragon, do not. Only the noun of a monster decides its group.

## {heading}
{book}

## Reward and end
The episode terminates when either monster is defeated or the player is dead. That step rewards \
1 if the monster of the group to defeat is gone and the player lives, otherwise -1: dying and \
defeating the other monster both lose. Every other step rewards {penalty:g}. After {max_steps} \
steps without an end, the player loses as well. The number of steps is not part of the \
observation."""

FIXED_BOOK = {
    "drawn": "the positions at the start",
    "layout": "A tuple `(board, inventory)`.",
    "told": "",
    "heading": "Manual and goal",
    "book": (
        "They are the same in every episode, and are not part of the observation.\n"
        f"Manual: {PUBLISHED.rules.manual}\n"
        f"Goal: {PUBLISHED.rules.goal}"
    ),
}

DRAWN_BOOK = {
    "drawn": "the positions at the start, the manual, the goal, the monsters and the items",
    "layout": "A tuple `(board, inventory, manual, goal)`.",
    "told": (
        "\n- `manual` and `goal` are texts that are drawn for each episode and stay the same in it."
    ),
    "heading": "How to read manual and goal",
    "book": (
        "The manual has one sentence per element, then one per group, always in the order of the "
        "lists here. Each sentence ends with a full stop.\n"
        f"Groups: {', '.join(GROUPS)}.\n"
        f"An example of a manual: {PUBLISHED.rules.manual}\n"
        "Here shimmering items beat cold monsters, and a dragon belongs to the order of the "
        "forest. In another episode, gleaming items may beat cold monsters, and a jinn may belong "
        "to the order of the forest.\n"
        f"An example of a goal: {PUBLISHED.rules.goal}"
    ),
}


def describe(env: gym.Env[Any, Any]) -> str:
    """Return the rules of the game, with its manual and goal or how to read them."""
    game = cast(Rtfm, env.unwrapped)
    return GUIDE.format(
        **(DRAWN_BOOK if game.shuffled else FIXED_BOOK),
        elements=", ".join(ELEMENTS),
        monsters=", ".join(MONSTERS),
        modifiers=", ".join(MODIFIERS),
        items=", ".join(ITEMS),
        penalty=game.time_penalty,
        max_steps=MAX_STEPS,
    )


def specify(name: str, *, shuffled: bool) -> EnvironmentSpec:
    """Return the specification of a game; `shuffled` draws a manual for each episode."""
    return EnvironmentSpec(
        id=name,
        make=partial(_make, name, shuffled),
        describe=describe,
        versions=_versions,
        valid_actions=lambda env: cast(Rtfm, env.unwrapped).valid_actions(),
        restore=lambda env, observation: cast(Rtfm, env.unwrapped).restore(observation),
        text=_text_view,
    )


def _make(name: str, shuffled: bool, /, **env_args: Any) -> gym.Env[Any, Any]:
    """Make a game; raise `CwmError` for invalid arguments."""
    known = set(inspect.signature(Rtfm).parameters) - {"shuffled"}
    with making(name, env_args, known):
        return Rtfm(shuffled=shuffled, **env_args)


def _versions() -> Mapping[str, str]:
    """Return the versions that determine the behaviour of the game."""
    return {"rtfm": REVISION} | {name: version(name) for name in ("gymnasium", "numpy")}


def _text_view(env: gym.Env[Any, Any]) -> TextView:
    from cwm_rtfm.words import RtfmWords

    return RtfmWords(cast(Rtfm, env.unwrapped))
