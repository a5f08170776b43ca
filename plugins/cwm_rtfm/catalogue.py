"""The game as environments that can be made, restored, and described as a guide for players."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, cast

from cwm_cli.envs.spec import EnvironmentSpec, making
from cwm_rtfm.game import (
    ELEMENTS,
    GROUPS,
    ITEMS,
    MODIFIERS,
    MONSTERS,
    MOST_STEPS,
    PUBLISHED,
    REVISION,
    Rtfm,
)

if TYPE_CHECKING:
    import gymnasium as gym

    from cwm_cli.envs.text_view import TextView

GUIDE = """# Read to Fight Monsters

A game of words on a board of 6 x 6 cells. Two monsters and two items are somewhere on the board, \
and so is the player. A manual says which items beat which monsters and to which group each \
monster belongs, and a goal says which group to defeat: find out which of the two monsters that \
is, pick up an item that beats it, and walk into it. The monsters never move, and nothing is left \
to chance but where everything {drawn}.

## Observation
{layout}
- `board[row][column][slot]` is a text. Row 0 is at the top, column 0 at the left. A cell has two \
slots for what is in it, fastest first (the player, then monsters, then items), and a slot that \
is not used is `empty`.
- A text of the board is `empty`, `wall`, `you` (the player), a monster with its element, such as \
`cold dragon`, or an item with its modifier, such as `shimmering axe`. The outermost cells of the \
board are walls.
- `inventory` is the item that the player holds, written as on the board, or `empty`.{told}

Elements: {elements}. Monsters: {monsters}. Modifiers: {modifiers}. Items: {items}.

## Actions
0 stay, 1 up (to the row above), 2 down, 3 left, 4 right. Who walks into a wall stays in place. \
Valid are staying and every direction in which there is no wall; a dead player may choose any \
action, and none does anything.

## Rules
- Who enters a cell with an item takes it at once. Only one item can be held: what was held before \
is destroyed, it is not dropped.
- Who enters a cell with a monster fights it at once. The player wins if the modifier of the held \
item beats the element of the monster, by the manual: then the monster disappears and the player \
stands in its cell, still holding the item. Otherwise, and without an item, the player dies and \
disappears from the board; the monster stays, and the inventory stays as it was.
- Only the modifier of an item and the element of a monster decide a fight; the nouns, such as axe \
and dragon, do not. Only the noun of a monster decides to which group it belongs.

## {heading}
{book}

## Reward and end
The episode terminates when either monster is defeated or the player is dead. That step rewards \
1 if the monster of the group to defeat is gone and the player lives, otherwise -1: dying and \
defeating the other monster both lose. Every other step rewards {penalty:g}. Who has done neither \
after {most} steps loses as well; the number of steps so far is not part of the observation."""

FIXED = {
    "drawn": "stands at the start",
    "layout": "A tuple `(board, inventory)`.",
    "told": "",
    "heading": "Manual and goal",
    "book": (
        "They are the same in every episode, and are not part of the observation.\n"
        f"Manual: {PUBLISHED.rules.manual}\n"
        f"Goal: {PUBLISHED.rules.goal}"
    ),
}

READ = {
    "drawn": "stands at the start and what manual, goal, monsters and items there are",
    "layout": "A tuple `(board, inventory, manual, goal)`.",
    "told": (
        "\n- `manual` and `goal` are texts that are drawn for each episode and stay the same in it."
    ),
    "heading": "How to read manual and goal",
    "book": (
        "The manual has one sentence per element, then one per group, always in the order in "
        "which they are listed here, each ending in a full stop.\n"
        f"Groups: {', '.join(GROUPS)}.\n"
        f"An example of a manual: {PUBLISHED.rules.manual}\n"
        "Here shimmering items beat cold monsters, and a dragon belongs to the order of the "
        "forest. In another episode it may be gleaming items that beat cold monsters, and a jinn "
        "that belongs to the order of the forest.\n"
        f"An example of a goal: {PUBLISHED.rules.goal}"
    ),
}


def describe(env: gym.Env[Any, Any]) -> str:
    """Say how the game is played, and what its manual and goal say or how they are read."""
    game = cast(Rtfm, env.unwrapped)
    return GUIDE.format(
        **(READ if game.shuffled else FIXED),
        elements=", ".join(ELEMENTS),
        monsters=", ".join(MONSTERS),
        modifiers=", ".join(MODIFIERS),
        items=", ".join(ITEMS),
        penalty=game.time_penalty,
        most=MOST_STEPS,
    )


def specify(name: str, *, shuffled: bool) -> EnvironmentSpec:
    """Describe how to make an environment, and what can be done with it."""
    return EnvironmentSpec(
        id=name,
        make=partial(_make, name, shuffled),
        describe=describe,
        versions=_versions,
        valid_actions=_valid_actions,
        restore=_restore,
        text=_words,
    )


def _make(name: str, shuffled: bool, /, **env_args: Any) -> gym.Env[Any, Any]:
    """Make an environment, or say in one line why not."""
    known = set(inspect.signature(Rtfm).parameters) - {"shuffled"}
    with making(name, env_args, known):
        return Rtfm(shuffled=shuffled, **env_args)


def _versions() -> Mapping[str, str]:
    """Name what decides how the game goes, with its versions."""
    return {"rtfm": REVISION} | {name: version(name) for name in ("gymnasium", "numpy")}


def _valid_actions(env: gym.Env[Any, Any]) -> Sequence[int]:
    """Return the actions that are allowed where a game stands."""
    return cast(Rtfm, env.unwrapped).valid_actions()


def _words(env: gym.Env[Any, Any]) -> TextView:
    """Put a game into words."""
    from cwm_rtfm.words import RtfmWords

    return RtfmWords(cast(Rtfm, env.unwrapped))


def _restore(env: gym.Env[Any, Any], observation: Any) -> bool:
    """Stand a game at an observation; False where it is none of the game."""
    return cast(Rtfm, env.unwrapped).restore(observation)
