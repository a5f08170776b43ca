"""The description of a MiniGrid environment: objects, rules and the docstring of its class."""

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
keeps its row for a whole episode; the agent has row 0. Rows of zeros are free. \
The columns are:
  - 0 class: {classes}.
  - 1 x, 2 y: the column and the row of its cell. x grows to the right, y downwards, both from 0.
  - 3 direction: {directions}. Only the agent has one.
  - 4 color: {colors}. Every object but the agent has one.
  - 5 state: {states}. Only doors are open, closed or locked. An object is hidden while it is in \
a box; it then is where the box is.
  - 6 held: 1 while the agent carries the object, otherwise 0. A carried object has the position \
of the agent, and moves with it; at most one object is carried at a time."""

PARTIAL = """A dict with three keys.
- `mission` is a text that says what to do. It stays the same for a whole episode.
- `direction` is the viewing direction of the agent: 0 right, 1 down, 2 left, 3 up.
- `image` is an array of whole numbers of shape ({size}, {size}, 3): the cells before the agent, \
as it sees them. `image[{middle}, {last}]` is the cell of the agent itself, which shows the object \
that it carries. The second number decreases by 1 with each cell ahead. A smaller first number is \
to its left, a larger one to its right. The picture turns with the agent. It sees {through}, and \
nothing outside the picture: the rest of the grid is hidden, keeps its state, and has to be \
remembered. The three numbers of a cell are:
  - 0 class: {classes}.
  - 1 color: {colors}; 0 for a cell that is unseen or empty.
  - 2 state: {states}. Only doors have one; 0 for everything else."""

PICTURE = """A picture: an array of bytes of shape {shape}, red, green and blue of every pixel. A \
cell is a square of {tile} pixels, drawn by the package: the agent is a red triangle that points \
in the direction it looks, walls are grey, a goal is a green square. The picture shows neither the \
mission nor the object that the agent carries nor the content of a box."""

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
- 4 drop: the carried object is put into the cell in front of the agent if that cell is empty. \
A cell with an open door, a floor, a goal or lava is not empty.
- 5 toggle: a closed door in front of the agent opens, and an open one closes. A locked door opens \
if the agent carries a key of its color, which it keeps; otherwise it stays locked. A box \
disappears, and its hidden content, if any, takes its place.
- 6 done: nothing moves.
An action that is impossible changes nothing.

## Reward and end
{mission}Moving onto a goal ends the episode with the reward 1, moving onto lava ends it with 0. \
Beyond that the episode ends as follows.
{end}
The step that fulfils the mission rewards 1.0, however late it comes, and a step that the package \
punishes rewards -1.0. All others reward 0.0. The number of steps so far is not part of the \
observation: an episode is cut off after {limit} steps, without `terminated`."""


def guide(env: ObjectGrid) -> str:
    """Return the description of an environment; details are from the docstring of its class."""
    documentation = inspect.getdoc(type(env.grid)) or ""
    missions = _section(documentation, "Mission Space")
    end = [
        line
        for line in _section(documentation, "Termination").splitlines()
        if line.strip() and "Timeout" not in line and "any one of" not in line
    ]
    partial = env.view == "partial"
    return GUIDE.format(
        name=env.spec.id if env.spec else type(env.grid).__name__,
        width=env.grid.width,
        height=env.grid.height,
        extent="and the agent sees only a part"
        if partial
        else "seen from above and as a whole: nothing is out of sight",
        about=" ".join(_section(documentation, "Description").split()),
        observation=OBSERVATIONS[env.view](env),
        mission=f"The mission is of the form {' '.join(missions.split())}\n" if missions else "",
        end="\n".join("- " + re.sub(r"^\d+\. ", "", line.strip()) for line in end),
        limit=env.limit,
    )


def _describe_objects(env: ObjectGrid) -> str:
    return ALL.format(
        slots=1 + env.grid.width * env.grid.height,
        classes=_enumerate(CLASSES),
        directions=_enumerate(DIRECTIONS),
        colors=_enumerate(COLORS),
        states=_enumerate(STATES),
    )


def _describe_partial(env: ObjectGrid) -> str:
    size = env.grid.agent_view_size
    return PARTIAL.format(
        size=size,
        middle=size // 2,
        last=size - 1,
        through="through walls and doors"
        if env.grid.see_through_walls
        else "neither through walls nor through doors that are not open",
        classes=_enumerate(sorted(OBJECT_TO_IDX, key=OBJECT_TO_IDX.__getitem__)),
        colors=_enumerate(sorted(COLOR_TO_IDX, key=COLOR_TO_IDX.__getitem__)),
        states=_enumerate(sorted(STATE_TO_IDX, key=STATE_TO_IDX.__getitem__)),
    )


def _describe_picture(env: ObjectGrid) -> str:
    return PICTURE.format(shape=env.observation_space.shape, tile=TILE)


OBSERVATIONS = {
    "objects": _describe_objects,
    "partial": _describe_partial,
    "pixels": _describe_picture,
}
"""Functions that describe the observation, by view."""


def _section(text: str, title: str) -> str:
    """Return the text below a heading."""
    found = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)
    return found[1].strip() if found else ""


def _enumerate(names: Sequence[str]) -> str:
    """Return names with their numbers, such as "0 none, 1 right"."""
    return ", ".join(f"{number} {name}" for number, name in enumerate(names))
