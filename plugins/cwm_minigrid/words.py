"""A MiniGrid in words: the object in front of the agent, the carried object, and the effects.

The sentences describe effects on the agent and on the object in front of the agent. If anything
else happens, for example if balls roll by themselves, the sentence is "Something else happens."
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from cwm_cli.data.dataset import Transition
from cwm_cli.data.objects import MISSION, OBJECTS
from cwm_cli.envs.text_view import Change, Consequence, TextView
from cwm_cli.errors import CwmError
from cwm_minigrid.grid import (
    ACTIONS,
    CLASSES,
    COLORS,
    DIRECTIONS,
    SCHEMA,
    STATES,
    GridRewinder,
    ObjectGrid,
)

GUIDE = """A grid of cells with walls, seen from above, and an agent in it that looks right, down, \
left or up. It can turn left or right, move forward, pick up the object in front, drop the object \
that it carries, and toggle the object in front. It carries one object at most. There may be \
floors, doors, keys, balls, boxes, goals and lava, most with a color, and a mission. \
An action has one of the effects {kinds}."""

NONE = "none"
MOVED, TURNED, STAYED, TAKEN, DROPPED = "moved", "turned", "stayed", "picked up", "dropped"
OPENED, CLOSED, EMPTIED, ELSE = "opened", "closed", "emptied", "something else"
DEEDS = (STAYED, TURNED, MOVED, TAKEN, DROPPED, OPENED, CLOSED, EMPTIED, ELSE)
"""The possible effects of a step, the most common first."""

WON, LOST, PUNISHED = "won", "lost", "was punished"
ENDS = {WON: 1.0, LOST: 0.0, PUNISHED: -1.0}
"""The possible ends of an episode, and the reward of its last step."""

_X, _Y, _DIRECTION, _COLOR, _STATE, _HELD = map(SCHEMA.column, SCHEMA.names[1:])
_HIDDEN, _DOOR, _BOX = STATES.index("hidden"), CLASSES.index("door"), CLASSES.index("box")
_PORTABLE = ("key", "ball", "box")
_THINGS = CLASSES[2:]


class GridWords(TextView):
    """A text view of a MiniGrid.

    Its facts are the object in front of the agent, the carried object, and the first object that
    the mission names.

    Raises:
        CwmError: The view of the environment is not "objects".
    """

    kinds = (*DEEDS, *ENDS)
    vocabulary: Mapping[str, tuple[str, ...]] = {
        "action": ACTIONS,
        "front": ("nothing", *_THINGS),
        "color of front": COLORS,
        "state of front": STATES,
        "carried": ("nothing", *_THINGS),
        "color of carried": COLORS,
        "wanted": (NONE, *_THINGS),
        "color of wanted": COLORS,
    }
    conclusions: Mapping[str, Mapping[str, tuple[str, ...]]] = {
        MOVED: {},
        TURNED: {"to the": ("left", "right")},
        STAYED: {},
        TAKEN: {"thing": _PORTABLE, "color": COLORS[1:]},
        DROPPED: {"thing": _PORTABLE, "color": COLORS[1:]},
        OPENED: {"color": COLORS[1:]},
        CLOSED: {"color": COLORS[1:]},
        EMPTIED: {"color": COLORS[1:]},
        ELSE: {},
        **{end: {"by": DEEDS} for end in ENDS},
    }

    def __init__(self, env: ObjectGrid) -> None:
        if env.view != "objects":
            raise CwmError(
                f"the view {env.view} has no description in words: use view='\"objects\"'"
            )
        self._env = env

    def guide(self) -> str:
        """Return a description of the grid, without the effects of actions."""
        return GUIDE.format(kinds=", ".join(self.kinds))

    def state(self, observation: Any) -> str:
        """Return a description of the mission, the agent and all objects except walls."""
        agent, *rows = observation[OBJECTS].tolist()
        seen = [
            f"{_name(row)} at {row[_X]}, {row[_Y]}{_state_suffix(row)}"
            for row in rows
            if row[0] and CLASSES[row[0]] != "wall" and not row[_HELD] and row[_STATE] != _HIDDEN
        ]
        front, carried = _front(observation[OBJECTS]), _carried(observation[OBJECTS])
        before = "nothing" if front is None else _name(front) + _state_suffix(front)
        return (
            f"Mission: {observation[MISSION]}. You are at {agent[_X]}, {agent[_Y]} and look "
            f"{DIRECTIONS[agent[_DIRECTION]]}. Before you is {before}. You "
            f"carry {'nothing' if carried is None else _name(carried)}. There is "
            f"{', '.join(seen) or 'nothing'}."
        )

    def legal(self, observation: Any) -> Sequence[int]:
        """Return all actions: an impossible action changes nothing."""
        return range(len(ACTIONS))

    def action(self, observation: Any, action: int) -> str:
        """Return a sentence about the attempted action."""
        return f"You try to {ACTIONS[action]}." if action < len(ACTIONS) - 1 else "You do nothing."

    def facts(self, observation: Any, action: int) -> Mapping[str, str]:
        """Return the object in front, the carried object, and the first object of the mission."""
        front, carried = _front(observation[OBJECTS]), _carried(observation[OBJECTS])
        named = _NAMED.search(observation[MISSION])
        return {
            "action": ACTIONS[action],
            "front": "nothing" if front is None else CLASSES[front[0]],
            "color of front": NONE if front is None else COLORS[front[_COLOR]],
            "state of front": NONE if front is None else STATES[front[_STATE]],
            "carried": "nothing" if carried is None else CLASSES[carried[0]],
            "color of carried": NONE if carried is None else COLORS[carried[_COLOR]],
            "wanted": named["thing"] if named else NONE,
            "color of wanted": named["color"] or NONE if named else NONE,
        }

    def change(self, row: Transition) -> Change:
        """Return the change that describes a transition exactly, or "something else"."""
        before, after = row.observation[OBJECTS], row.next_observation[OBJECTS]
        if row.terminated:
            [end] = (end for end, reward in ENDS.items() if reward == row.reward)
            deeds = {kind: _deed_of_kind(before, row.action, kind) for kind in DEEDS}
            exact = (
                kind for kind, deed in deeds.items() if deed and _explains(before, deed, after)
            )
            return _change(end, by=next(exact, ELSE))
        exact_deeds = (deed for deed in _possible_deeds(before) if _explains(before, deed, after))
        return next(exact_deeds, _change(ELSE)) if row.reward == 0 else _change(ELSE)

    def candidates(self, observation: Any) -> Sequence[Change]:
        """Return all effects on the existing objects, and every end of an episode."""
        deeds = (*_possible_deeds(observation[OBJECTS]), _change(ELSE))
        kinds = dict.fromkeys(deed.kind for deed in deeds)
        return *deeds, *(_change(end, by=kind) for end in ENDS for kind in kinds)

    def reachable(self, observation: Any) -> Sequence[bool]:
        """Return for each candidate whether an action leads to it; the grid does not change."""
        rewinder, found = GridRewinder(self._env), list[Change]()
        saved = rewinder.save()
        try:
            for action in self.legal(observation):
                if not self._env.restore(observation):
                    raise CwmError("this observation does not show the whole state of the grid")
                after, reward, terminated, *_ = self._env.step(action)
                row = Transition(observation, action, after, reward, terminated)
                found.append(self.change(row))
        finally:
            rewinder.load(saved)
        return [change in found for change in self.candidates(observation)]

    def consequence(self, observation: Any, action: int, change: Change) -> Consequence | None:
        """Return the next observation, reward and end; ends concern the object in front."""
        table = observation[OBJECTS]
        deed = _deed_of_kind(table, action, change.fields["by"]) if change.kind in ENDS else change
        after = None if deed is None else _apply(table, deed)
        if after is None:
            return None
        next_observation = {MISSION: observation[MISSION], OBJECTS: after}
        return Consequence(next_observation, ENDS.get(change.kind, 0.0), change.kind in ENDS)

    def features(self, observation: Any) -> np.ndarray:
        """Return the table of objects as a vector."""
        return np.asarray(observation[OBJECTS], np.float64).ravel()


_NAMED = re.compile(rf"\b(?:(?P<color>{'|'.join(COLORS[1:])}) )?(?P<thing>{'|'.join(_THINGS)})\b")

Row = list[int]
"""A row of the table of objects."""


def _name(row: Row) -> str:
    """Return the name of an object, such as "the yellow key"."""
    color = f"{COLORS[row[_COLOR]]} " if row[_COLOR] else ""
    return f"the {color}{CLASSES[row[0]]}"


def _state_suffix(row: Row) -> str:
    return f" ({STATES[row[_STATE]]})" if row[_STATE] else ""


def _carried(table: np.ndarray) -> Row | None:
    """Return the carried object, not the content of a carried box."""
    rows = table[(table[:, _HELD] == 1) & (table[:, _STATE] != _HIDDEN)].tolist()
    return rows[0] if rows else None


def _ahead(table: np.ndarray) -> tuple[int, int]:
    """Return the coordinates of the cell in front of the agent."""
    agent = table[0].tolist()
    dx, dy = SCHEMA.directions[agent[_DIRECTION] - 1]
    return agent[_X] + dx, agent[_Y] + dy


def _front(table: np.ndarray) -> Row | None:
    """Return the object in front of the agent."""
    x, y = _ahead(table)
    in_front = (table[:, _X] == x) & (table[:, _Y] == y) & (table[:, 0] > 0)
    rows = table[in_front & (table[:, _HELD] == 0) & (table[:, _STATE] != _HIDDEN)].tolist()
    return rows[0] if rows else None


SENTENCES = {
    MOVED: "You move forward.",
    TURNED: "You turn to the {to the}.",
    STAYED: "Nothing happens.",
    TAKEN: "You pick up the {color} {thing}.",
    DROPPED: "You drop the {color} {thing}.",
    OPENED: "You open the {color} door.",
    CLOSED: "You close the {color} door.",
    EMPTIED: "You empty the {color} box, which is gone.",
    ELSE: "Something else happens.",
    WON: "You complete the mission: {by}.",
    LOST: "The episode ends without a reward: {by}.",
    PUNISHED: "The episode ends, and you are punished: {by}.",
}
"""The sentences, by kind of change."""


def _change(kind: str, **fields: str) -> Change:
    fields = {name.replace("_", " "): value for name, value in fields.items()}
    return Change(SENTENCES[kind].format_map(fields), kind, fields)


def _deed(row: Row, kind: str) -> Change:
    """Return an effect of this kind on an object."""
    named = {"thing": CLASSES[row[0]]} if kind in (TAKEN, DROPPED) else {}
    return _change(kind, **named, color=COLORS[row[_COLOR]])


def _toggle_kind(row: Row) -> str | None:
    """Return the effect of toggling an object, or None if there is none."""
    if row[0] == _DOOR:
        return CLOSED if STATES[row[_STATE]] == "open" else OPENED
    return EMPTIED if row[0] == _BOX else None


def _possible_deeds(table: np.ndarray) -> Iterator[Change]:
    """Yield the possible effects on the agent and on each object, each once."""
    yield from (_change(MOVED), _change(TURNED, to_the="left"), _change(TURNED, to_the="right"))
    yield _change(STAYED)
    texts = set[str]()
    for row in table[1:].tolist():
        if not row[0] or row[_STATE] == _HIDDEN:
            continue
        kinds = [DROPPED if row[_HELD] else TAKEN] if CLASSES[row[0]] in _PORTABLE else []
        if not row[_HELD] and (kind := _toggle_kind(row)):
            kinds.append(kind)
        for deed in (_deed(row, kind) for kind in kinds):
            if deed.text not in texts:
                texts.add(deed.text)
                yield deed


def _deed_of_kind(table: np.ndarray, action: int, kind: str) -> Change | None:
    """Return the effect of this kind on the object in front, or on the carried object."""
    if kind == TURNED:
        return _change(TURNED, to_the="right" if ACTIONS[action] == "turn right" else "left")
    if kind in (MOVED, STAYED):
        return _change(kind)
    row = _carried(table) if kind == DROPPED else _front(table)
    if row is None:
        return None
    is_portable = kind in (TAKEN, DROPPED) and CLASSES[row[0]] in _PORTABLE
    return _deed(row, kind) if is_portable or kind == _toggle_kind(row) else None


def _explains(before: np.ndarray, deed: Change, after: np.ndarray) -> bool:
    """Return whether an effect alone leads from one table to the other."""
    predicted = _apply(before, deed)
    return predicted is not None and np.array_equal(predicted, after)


def _apply(table: np.ndarray, deed: Change) -> np.ndarray | None:
    """Return the table of objects after an effect, or None if it is impossible."""
    after, held = table.copy(), table[:, _HELD] == 1
    x, y = _ahead(table)
    if min(x, y) < 0 or deed.kind == ELSE:
        return None
    if deed.kind == STAYED:
        return after
    if deed.kind == TURNED:
        by = 1 if deed.fields["to the"] == "right" else -1
        after[0, _DIRECTION] = 1 + (table[0, _DIRECTION] - 1 + by) % (len(DIRECTIONS) - 1)
        return after
    if deed.kind in (MOVED, DROPPED):
        moving = held | (np.arange(len(table)) == 0) if deed.kind == MOVED else held
        after[moving, _X], after[moving, _Y] = x, y
        after[held, _HELD] = int(deed.kind == MOVED)
        return after
    slot = _slot(table, deed, (x, y))
    if slot is None:
        return None
    inside = (table[:, _X] == table[slot, _X]) & (table[:, _Y] == table[slot, _Y])
    inside &= (table[:, _STATE] == _HIDDEN) & ~held
    if deed.kind == TAKEN:
        inside[slot] = True
        after[inside, _X], after[inside, _Y], after[inside, _HELD] = *table[0, [_X, _Y]], 1
    elif deed.kind == EMPTIED:
        after[slot], after[inside, _STATE] = 0, 0
    else:
        after[slot, _STATE] = STATES.index("open" if deed.kind == OPENED else "closed")
    return after


def _slot(table: np.ndarray, deed: Change, ahead: tuple[int, int]) -> int | None:
    """Return the row of the object of an effect: the one in front, otherwise the first match."""
    kind = deed.fields.get("thing", "box" if deed.kind == EMPTIED else "door")
    matches = (table[:, 0] == CLASSES.index(kind)) & (table[:, _HELD] == 0)
    matches &= table[:, _COLOR] == COLORS.index(deed.fields["color"])
    matches &= table[:, _STATE] != _HIDDEN
    slots = np.flatnonzero(matches).tolist()
    in_front = [slot for slot in slots if (*table[slot, [_X, _Y]].tolist(),) == ahead]
    return next(iter(in_front or slots), None)
