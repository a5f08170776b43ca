"""A grid in words: what the agent has before it and in its hand, and what comes of an action.

The sentences tell what the agent does to itself and to what is before it. Where anything else
happens, as when balls roll by themselves, they say just that.
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
left or up. It can turn left or right, move forward, pick up what is before it, drop what it \
carries, and toggle what is before it. It carries one thing at most. There may be floors, doors, \
keys, balls, boxes, goals and lava, most of them with a color, and a mission says what to do. \
What follows an action is one of these: {kinds}."""

NONE = "none"
MOVED, TURNED, STAYED, TAKEN, DROPPED = "moved", "turned", "stayed", "picked up", "dropped"
OPENED, CLOSED, EMPTIED, ELSE = "opened", "closed", "emptied", "something else"
DEEDS = (STAYED, TURNED, MOVED, TAKEN, DROPPED, OPENED, CLOSED, EMPTIED, ELSE)
"""What can happen in a step, the commonest first."""

WON, LOST, PUNISHED = "won", "lost", "was punished"
ENDS = {WON: 1.0, LOST: 0.0, PUNISHED: -1.0}
"""How an episode can end, and what the last step then rewards."""

_X, _Y, _DIRECTION, _COLOR, _STATE, _HELD = map(SCHEMA.column, SCHEMA.names[1:])
_HIDDEN, _DOOR, _BOX = STATES.index("hidden"), CLASSES.index("door"), CLASSES.index("box")
_PORTABLE = ("key", "ball", "box")
_THINGS = CLASSES[2:]


class GridWords(TextView):
    """What the agent looks at, what it carries, what the mission names, and what follows."""

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
        """Describe the grid, and nothing of what follows what."""
        return GUIDE.format(kinds=", ".join(self.kinds))

    def state(self, observation: Any) -> str:
        """Say where the agent is and what there is, walls aside."""
        agent, *rows = observation[OBJECTS].tolist()
        seen = [
            f"{_name(row)} at {row[_X]}, {row[_Y]}{_how(row)}"
            for row in rows
            if row[0] and CLASSES[row[0]] != "wall" and not row[_HELD] and row[_STATE] != _HIDDEN
        ]
        front, carried = _front(observation[OBJECTS]), _carried(observation[OBJECTS])
        before = "nothing" if front is None else _name(front) + _how(front)
        return (
            f"Mission: {observation[MISSION]}. You are at {agent[_X]}, {agent[_Y]} and look "
            f"{DIRECTIONS[agent[_DIRECTION]]}. Before you is {before}. You "
            f"carry {'nothing' if carried is None else _name(carried)}. There is "
            f"{', '.join(seen) or 'nothing'}."
        )

    def legal(self, observation: Any) -> Sequence[int]:
        """Return all actions: what one cannot do it does not do."""
        return range(len(ACTIONS))

    def action(self, observation: Any, action: int) -> str:
        """Say what is tried."""
        return f"You try to {ACTIONS[action]}." if action < len(ACTIONS) - 1 else "You do nothing."

    def facts(self, observation: Any, action: int) -> Mapping[str, str]:
        """Return what is before the agent, what it carries, and what the mission names first."""
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
        """Say what followed, in the words that tell it exactly."""
        before, after = row.observation[OBJECTS], row.next_observation[OBJECTS]
        if row.terminated:
            [end] = (end for end, reward in ENDS.items() if reward == row.reward)
            deeds = {kind: _meant(before, row.action, kind) for kind in DEEDS}
            exact = (kind for kind, deed in deeds.items() if deed and _tells(before, deed, after))
            return _said(end, by=next(exact, ELSE))
        exact_deeds = (deed for deed in _deeds(before) if _tells(before, deed, after))
        return next(exact_deeds, _said(ELSE)) if row.reward == 0 else _said(ELSE)

    def candidates(self, observation: Any) -> Sequence[Change]:
        """Return all that can happen to what there is, and every end that could come of it."""
        deeds = (*_deeds(observation[OBJECTS]), _said(ELSE))
        kinds = dict.fromkeys(deed.kind for deed in deeds)
        return *deeds, *(_said(end, by=kind) for end in ENDS for kind in kinds)

    def reachable(self, observation: Any) -> Sequence[bool]:
        """Return which candidates an action leads to; the grid stays as it is."""
        rewinder, found = GridRewinder(self._env), list[Change]()
        here = rewinder.save()
        try:
            for action in self.legal(observation):
                if not self._env.restore(observation):
                    raise CwmError("this observation does not show the whole state of the grid")
                after, reward, terminated, *_ = self._env.step(action)
                row = Transition(observation, action, after, reward, terminated)
                found.append(self.change(row))
        finally:
            rewinder.load(here)
        return [change in found for change in self.candidates(observation)]

    def consequence(self, observation: Any, action: int, change: Change) -> Consequence | None:
        """Return what the words mean; what ends an episode happens to what is before the agent."""
        table = observation[OBJECTS]
        deed = _meant(table, action, change.fields["by"]) if change.kind in ENDS else change
        after = None if deed is None else _done(table, deed)
        if after is None:
            return None
        seen = {MISSION: observation[MISSION], OBJECTS: after}
        return Consequence(seen, ENDS.get(change.kind, 0.0), change.kind in ENDS)

    def features(self, observation: Any) -> np.ndarray:
        """Return the table of objects, in one line."""
        return np.asarray(observation[OBJECTS], np.float64).ravel()


_NAMED = re.compile(rf"\b(?:(?P<color>{'|'.join(COLORS[1:])}) )?(?P<thing>{'|'.join(_THINGS)})\b")

Row = list[int]
"""The numbers of an object."""


def _name(row: Row) -> str:
    """Name an object: "the yellow key"."""
    color = f"{COLORS[row[_COLOR]]} " if row[_COLOR] else ""
    return f"the {color}{CLASSES[row[0]]}"


def _how(row: Row) -> str:
    return f" ({STATES[row[_STATE]]})" if row[_STATE] else ""


def _carried(table: np.ndarray) -> Row | None:
    """Return what the agent has in its hand, without what may be hidden in it."""
    rows = table[(table[:, _HELD] == 1) & (table[:, _STATE] != _HIDDEN)].tolist()
    return rows[0] if rows else None


def _ahead(table: np.ndarray) -> tuple[int, int]:
    """Return the cell that the agent looks at."""
    agent = table[0].tolist()
    dx, dy = SCHEMA.directions[agent[_DIRECTION] - 1]
    return agent[_X] + dx, agent[_Y] + dy


def _front(table: np.ndarray) -> Row | None:
    """Return what is in the cell that the agent looks at."""
    x, y = _ahead(table)
    there = (table[:, _X] == x) & (table[:, _Y] == y) & (table[:, 0] > 0)
    rows = table[there & (table[:, _HELD] == 0) & (table[:, _STATE] != _HIDDEN)].tolist()
    return rows[0] if rows else None


WORDED = {
    MOVED: "You move forward.",
    TURNED: "You turn to the {to the}.",
    STAYED: "Nothing happens.",
    TAKEN: "You pick up the {color} {thing}.",
    DROPPED: "You drop the {color} {thing}.",
    OPENED: "You open the {color} door.",
    CLOSED: "You close the {color} door.",
    EMPTIED: "You empty the {color} box, which is gone.",
    ELSE: "Something else happens.",
    WON: "You have done what was to be done: {by}.",
    LOST: "That is the end, without a reward: {by}.",
    PUNISHED: "That is the end, and you are punished: {by}.",
}
"""The sentences, by kind of change."""


def _said(kind: str, **fields: str) -> Change:
    fields = {name.replace("_", " "): value for name, value in fields.items()}
    return Change(WORDED[kind].format_map(fields), kind, fields)


def _deed(row: Row, kind: str) -> Change:
    """Say what is done to an object."""
    named = {"thing": CLASSES[row[0]]} if kind in (TAKEN, DROPPED) else {}
    return _said(kind, **named, color=COLORS[row[_COLOR]])


def _done_to(row: Row) -> str | None:
    """Return what can be done to an object beside picking it up."""
    if row[0] == _DOOR:
        return CLOSED if STATES[row[_STATE]] == "open" else OPENED
    return EMPTIED if row[0] == _BOX else None


def _deeds(table: np.ndarray) -> Iterator[Change]:
    """Yield, each once, what can happen to the agent and to each thing that there is."""
    yield from (_said(MOVED), _said(TURNED, to_the="left"), _said(TURNED, to_the="right"))
    yield _said(STAYED)
    met = set[str]()
    for row in table[1:].tolist():
        if not row[0] or row[_STATE] == _HIDDEN:
            continue
        kinds = [DROPPED if row[_HELD] else TAKEN] if CLASSES[row[0]] in _PORTABLE else []
        if not row[_HELD] and (kind := _done_to(row)):
            kinds.append(kind)
        for deed in (_deed(row, kind) for kind in kinds):
            if deed.text not in met:
                met.add(deed.text)
                yield deed


def _meant(table: np.ndarray, action: int, kind: str) -> Change | None:
    """Return what a kind of deed is to what is before the agent, or to what it carries."""
    if kind == TURNED:
        return _said(TURNED, to_the="right" if ACTIONS[action] == "turn right" else "left")
    if kind in (MOVED, STAYED):
        return _said(kind)
    row = _carried(table) if kind == DROPPED else _front(table)
    fitting = row is not None and (
        (kind in (TAKEN, DROPPED) and CLASSES[row[0]] in _PORTABLE) or kind == _done_to(row)
    )
    return _deed(row, kind) if row is not None and fitting else None


def _tells(before: np.ndarray, deed: Change, after: np.ndarray) -> bool:
    """Whether a deed is all that happened."""
    told = _done(before, deed)
    return told is not None and np.array_equal(told, after)


def _done(table: np.ndarray, deed: Change) -> np.ndarray | None:
    """Return what a deed makes of the objects, None where it has no sense."""
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
    """Return which object a deed is done to: one before the agent, otherwise the first."""
    kind = deed.fields.get("thing", "box" if deed.kind == EMPTIED else "door")
    alike = (table[:, 0] == CLASSES.index(kind)) & (table[:, _HELD] == 0)
    alike &= (table[:, _COLOR] == COLORS.index(deed.fields["color"])) & (
        table[:, _STATE] != _HIDDEN
    )
    slots = np.flatnonzero(alike)
    before = [slot for slot in slots.tolist() if (*table[slot, [_X, _Y]].tolist(),) == ahead]
    return before[0] if before else int(slots[0]) if len(slots) else None
