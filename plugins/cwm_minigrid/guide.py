"""A MiniGrid described for players: its objects, its rules, and what its own class says of it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence

from minigrid.core.constants import COLOR_TO_IDX, OBJECT_TO_IDX, STATE_TO_IDX

from cwm_minigrid.grid import CLASSES, COLORS, DIRECTIONS, STATES, ObjectGrid
from cwm_minigrid.pixels import TILE

ALL = """A dict with two keys.
- `mission` is a text that says what to do. It stays the same for a whole episode.
- `objects` is an array of whole numbers of shape ({slots}, 7), a row for every object. An object \
keeps its row for a whole episode; the agent has row 0. Rows in which every number is 0 are free. \
The columns are:
  - 0 class: {classes}.
  - 1 x, 2 y: the column and the row of its cell. x grows to the right, y downwards, both from 0.
  - 3 direction: {directions}. Only the agent has one, the way in which it looks.
  - 4 color: {colors}. Every object but the agent has one.
  - 5 state: {states}. Only doors are open, closed or locked. An object is hidden while it is in \
a box; it then is where the box is.
  - 6 held: 1 while the agent carries the object, otherwise 0. What is carried is where the agent \
is, and moves with it; at most one object is carried at a time."""

PARTIAL = """A dict with three keys.
- `mission` is a text that says what to do. It stays the same for a whole episode.
- `direction` is the way in which the agent looks: 0 right, 1 down, 2 left, 3 up.
- `image` is an array of whole numbers of shape ({size}, {size}, 3): the cells before the agent, \
as it sees them. `image[{middle}, {last}]` is the cell of the agent itself, in which it sees what \
it carries, and cells with a smaller second number are as many cells ahead; a smaller first \
number is to its left, a larger one to its right. The picture turns with the agent. It sees \
{through}, and nothing outside of these cells: the rest of the grid is hidden, goes on as it is, \
and is to be remembered from when it was seen. The three numbers of a cell are:
  - 0 class: {classes}.
  - 1 color: {colors}; 0 for a cell that is unseen or empty.
  - 2 state: {states}. Only doors have one; 0 for everything else."""

PICTURE = """A picture: an array of bytes of shape {shape}, red, green and blue of every pixel. A \
cell is a square of {tile} pixels, drawn as the package draws it: the agent is a red triangle that \
points to where it looks, walls are grey, a goal is a green square. The mission is not shown, nor \
is what the agent carries, nor what is in a box."""

GUIDE = """# {name}

A grid of {width} x {height} cells, {extent}. {about}

## Observation
{observation}

## Actions
- 0 turn left, 1 turn right: the agent looks in another direction, by a quarter of a turn (right \
of up is right, right of right is down).
- 2 move forward: the agent goes to the cell in front of it if there is nothing in it, or an open \
door, a floor, a goal or lava. Otherwise it stays.
- 3 pick up: if the agent carries nothing and a key, a ball or a box is in the cell in front of \
it, it carries that.
- 4 drop: what the agent carries is put into the cell in front of it if there is nothing in it. \
An open door, a floor, a goal and lava count as something.
- 5 toggle: a closed door in front of the agent opens, and an open one closes. A locked door opens \
if the agent carries a key of its color, which it keeps; otherwise it stays locked. A box \
disappears, and what was hidden in it is in its place, which may be nothing.
- 6 done: nothing moves.
What an action cannot do it does not do, and nothing happens.

## Reward and end
{mission}Moving onto a goal ends the episode with the reward 1, moving onto lava ends it with 0. \
Beyond that the episode ends as follows.
{end}
The step that fulfils the mission rewards 1.0, however late it comes, and a step that the package \
punishes rewards -1.0. All others reward 0.0. The number of steps so far is not part of the \
observation: an episode is cut off after {limit} steps, without `terminated`."""


def guide(env: ObjectGrid) -> str:
    """Describe an environment in full sentences; what is particular is from its documentation."""
    told = inspect.getdoc(type(env.grid)) or ""
    missions = _section(told, "Mission Space")
    end = [
        line
        for line in _section(told, "Termination").splitlines()
        if line.strip() and "Timeout" not in line and "any one of" not in line
    ]
    partial = env.view == "partial"
    return GUIDE.format(
        name=env.spec.id if env.spec else type(env.grid).__name__,
        width=env.grid.width,
        height=env.grid.height,
        extent="of which the agent sees a part"
        if partial
        else "seen from above and as a whole: nothing is out of sight",
        about=" ".join(_section(told, "Description").split()),
        observation=OBSERVATIONS[env.view](env),
        mission=f"The mission is of the form {' '.join(missions.split())}\n" if missions else "",
        end="\n".join("- " + re.sub(r"^\d+\. ", "", line.strip()) for line in end),
        limit=env.limit,
    )


def _all_objects(env: ObjectGrid) -> str:
    return ALL.format(
        slots=1 + env.grid.width * env.grid.height,
        classes=_listed(CLASSES),
        directions=_listed(DIRECTIONS),
        colors=_listed(COLORS),
        states=_listed(STATES),
    )


def _before_the_agent(env: ObjectGrid) -> str:
    size = env.grid.agent_view_size
    return PARTIAL.format(
        size=size,
        middle=size // 2,
        last=size - 1,
        through="through walls and doors"
        if env.grid.see_through_walls
        else "neither through walls nor through doors that are not open",
        classes=_listed(sorted(OBJECT_TO_IDX, key=OBJECT_TO_IDX.__getitem__)),
        colors=_listed(sorted(COLOR_TO_IDX, key=COLOR_TO_IDX.__getitem__)),
        states=_listed(sorted(STATE_TO_IDX, key=STATE_TO_IDX.__getitem__)),
    )


def _picture(env: ObjectGrid) -> str:
    return PICTURE.format(shape=env.observation_space.shape, tile=TILE)


OBSERVATIONS = {"objects": _all_objects, "partial": _before_the_agent, "pixels": _picture}
"""What is said of each view."""


def _section(text: str, title: str) -> str:
    """Return the text under a heading of a documentation."""
    found = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)
    return found[1].strip() if found else ""


def _listed(names: Sequence[str]) -> str:
    """Write names with their numbers."""
    return ", ".join(f"{number} {name}" for number, name in enumerate(names))
