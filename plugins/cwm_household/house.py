"""A household as an environment of Gymnasium: places, things, and a mission in words."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from cwm_cli.data.objects import MISSION, OBJECTS, ObjectField, ObjectSchema

REVISION = "1"
"""The version of the rules; increase it with every change of behaviour."""

MAX_STEPS = 30
"""Step limit of an episode; the longest mission takes about 10 steps."""

ROOMS = {
    "kitchen": ("fridge", "microwave", "sink", "countertop", "cabinet"),
    "living room": ("table", "drawer"),
    "study": ("desk", "shelf"),
}
"""The places of the household by room."""

PLACES = tuple(place for places in ROOMS.values() for place in places)
CELLS = [(x, y) for y, places in enumerate(ROOMS.values()) for x in range(len(places))]
"""Coordinates of each place: its number in the room, and the number of the room."""

OPENABLE = ("fridge", "microwave", "cabinet", "drawer")
LAMP, DESK = "lamp", PLACES.index("desk")

FOODS, DISHES, OTHERS = ("apple", "bread", "egg"), ("mug", "plate", "knife"), ("book", "pen")
THINGS = FOODS + DISHES + OTHERS
THING_COUNT = 4
"""Number of things in an episode."""

WORK_PLACES = {"heat": "microwave", "cool": "fridge", "clean": "sink"}
"""The places where things are heated, cooled and cleaned."""

SUITABLE = {"pick": THINGS, "heat": FOODS, "cool": FOODS, "clean": DISHES, "examine": THINGS}
"""The things that missions of each family can name."""

ADJECTIVES = {"pick": "", "heat": "hot ", "cool": "cool ", "clean": "clean "}

ACTIONS = (
    *(f"go to the {place}" for place in PLACES),
    *(f"{verb} the {place}" for place in OPENABLE for verb in ("open", "close")),
    *(f"take the {thing}" for thing in THINGS),
    "put it down",
    "heat it",
    "cool it",
    "clean it",
    "use the lamp",
)

NUMBERS = {sentence: number for number, sentence in enumerate(ACTIONS)}

CLASSES = ("free", "agent", *PLACES, LAMP, *THINGS)
STATES = ("none", "open", "closed", "on", "off")
TEMPERATURES, SURFACES = ("none", "room", "hot", "cool"), ("none", "dirty", "clean")

SCHEMA = ObjectSchema(
    CLASSES,
    (
        ObjectField("x"),
        ObjectField("y"),
        ObjectField("state", STATES),
        ObjectField("temperature", TEMPERATURES),
        ObjectField("surface", SURFACES),
        ObjectField("held"),
    ),
)
"""The columns of the table of objects, and the names of their values."""


class HouseholdItem(NamedTuple):
    """A thing and its state; a held thing has the place of the agent."""

    kind: str
    place: int
    temperature: str = "room"
    surface: str = "dirty"
    held: bool = False


class Chore(NamedTuple):
    """The goal of a mission: a family, a kind of thing, and the place to put it, if any."""

    family: str
    kind: str
    place: str = ""

    @property
    def words(self) -> str:
        """The text of the mission."""
        if self.family == "examine":
            return f"look at the {self.kind} under the lamp"
        preposition = "in" if self.place in (*OPENABLE, "sink") else "on"
        return f"put the {ADJECTIVES[self.family]}{self.kind} {preposition} the {self.place}"


def chores() -> Mapping[str, Chore]:
    """Return all possible chores by the text of their mission."""
    put = (
        Chore(family, kind, place)
        for family in ADJECTIVES
        for kind in SUITABLE[family]
        for place in PLACES
        if place != WORK_PLACES.get(family)
    )
    examine = (Chore("examine", kind) for kind in SUITABLE["examine"])
    return {chore.words: chore for chore in (*put, *examine)}


CHORES = chores()


EFFECTS: dict[str, dict[str, Any]] = {
    "put": {"held": False},
    "heat": {"temperature": "hot"},
    "cool": {"temperature": "cool"},
    "clean": {"surface": "clean"},
}
"""The changes of the held thing by each verb."""


class State(NamedTuple):
    """The state of a household: the agent's place, open places, the lamp and the things."""

    place: int
    opened: frozenset[str]
    lit: bool
    items: tuple[HouseholdItem, ...]

    @property
    def held(self) -> HouseholdItem | None:
        """The held thing, or None."""
        return next((item for item in self.items if item.held), None)

    def after(self, action: int) -> State:
        """Return the state after a valid action."""
        verb, *_, name = ACTIONS[action].split()
        if verb == "go":
            place = PLACES.index(name)
            return self._replace(place=place)._change_items(lambda item: item.held, place=place)
        if verb == "take":
            return self._change_items(lambda item: item.kind == name, held=True)
        if verb in ("open", "close"):
            return self._replace(opened=self.opened ^ {name})
        if verb == "use":
            return self._replace(lit=not self.lit)
        return self._change_items(lambda item: item.held, **EFFECTS[verb])

    def _change_items(self, matches: Callable[[HouseholdItem], bool], **changes: Any) -> State:
        """Return the state after changes of the matching things."""
        items = (item._replace(**changes) if matches(item) else item for item in self.items)
        return self._replace(items=tuple(items))


class Household(gym.Env[Any, Any]):
    """A household with a random mission and random things in each episode.

    Args:
        families: The families of missions.
        render_mode: None or "ansi".

    Raises:
        ValueError: The render mode is unknown.
    """

    metadata = {"render_modes": ["ansi"], "render_fps": 2}  # noqa: RUF012

    def __init__(self, families: Sequence[str], *, render_mode: str | None = None) -> None:
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise ValueError(f"unknown render mode {render_mode!r}: choose 'ansi'")
        self.families = tuple(families)
        self.render_mode = render_mode
        self.work_places = dict(WORK_PLACES)
        slots = 2 + len(PLACES) + THING_COUNT
        highest = [len(CLASSES), *(1 + np.max(CELLS, axis=0)), len(STATES)]
        highest += [len(TEMPERATURES), len(SURFACES), 2]
        self._empty = np.zeros((slots, len(highest)), np.int64)
        high = np.tile(np.array(highest) - 1, (slots, 1))
        mission = spaces.Text(60, charset="abcdefghijklmnopqrstuvwxyz ")
        objects = spaces.Box(self._empty, high, dtype=np.int64)
        self.observation_space = spaces.Dict({MISSION: mission, OBJECTS: objects})
        self.action_space = spaces.Discrete(len(ACTIONS))
        self.chore = Chore("", "")
        self.state: State | None = None
        self._valid: tuple[State | None, tuple[int, ...]] = (None, ())

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode with a new mission and new things in new places."""
        super().reset(seed=seed)

        def draw(among: Sequence[Any]) -> Any:
            return among[int(self.np_random.integers(len(among)))]

        family = draw(self.families)
        self.chore = draw([chore for chore in CHORES.values() if chore.family == family])
        others = [kind for kind in THINGS if kind != self.chore.kind]
        kinds = [self.chore.kind, *self.np_random.permutation(others)[: THING_COUNT - 1].tolist()]
        free = [place for place, name in enumerate(PLACES) if name != self.chore.place]
        items = tuple(HouseholdItem(kind, draw(free)) for kind in sorted(kinds, key=THINGS.index))
        opened = frozenset(name for name in OPENABLE if self.np_random.random() < 1 / 4)
        self.state = State(draw(range(len(PLACES))), opened, False, items)
        return self.observation(), self._info()

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take an action, if it is valid; the step that fulfils the mission rewards 1."""
        if not self.action_space.contains(action):
            raise ValueError(f"there is no action {action!r}: choose one of {self.action_space}")
        if self.state is None:
            raise gym.error.ResetNeeded("reset the environment before its first step")
        if action in self.valid_actions():
            self.state = self.state.after(int(action))
        done = self.is_fulfilled(self.state)
        return self.observation(), float(done), done, False, self._info()

    def valid_actions(self) -> tuple[int, ...]:
        """Return the valid actions; before the first reset, all actions."""
        state = self.state
        if state is None:
            return tuple(range(len(ACTIONS)))
        if self._valid[0] is not state:
            numbers = (NUMBERS[sentence] for sentence in self._valid_sentences(state))
            self._valid = (state, tuple(sorted(numbers)))
        return self._valid[1]

    def _valid_sentences(self, state: State) -> Iterator[str]:
        here, held = PLACES[state.place], state.held
        yield from (f"go to the {place}" for place in PLACES if place != here)
        if here in OPENABLE:
            yield f"{'close' if here in state.opened else 'open'} the {here}"
        if state.place == DESK:
            yield "use the lamp"
        if here in OPENABLE and here not in state.opened:
            return
        if held is None:
            yield from (
                f"take the {item.kind}" for item in state.items if item.place == state.place
            )
        else:
            yield "put it down"
            yield from (f"{verb} it" for verb, place in self.work_places.items() if place == here)

    def is_fulfilled(self, state: State) -> bool:
        """Return whether a state fulfils the mission."""
        chore = self.chore
        item = next(item for item in state.items if item.kind == chore.kind)
        if chore.family == "examine":
            return item.held and state.lit and state.place == DESK
        adjective = ADJECTIVES[chore.family].strip()
        has_property = not adjective or adjective in (item.temperature, item.surface)
        return not item.held and has_property and PLACES[item.place] == chore.place

    def observation(self) -> dict[str, Any]:
        """Return the mission and the table of objects."""
        table, state = self._empty.copy(), self.state
        if state is None:
            return {MISSION: "", OBJECTS: table}
        lamp = len(PLACES) + 1
        table[0] = CLASSES.index("agent"), *CELLS[state.place], 0, 0, 0, 0
        for row, name in enumerate(PLACES, 1):
            door = "open" if name in state.opened else "closed" if name in OPENABLE else "none"
            table[row] = CLASSES.index(name), *CELLS[row - 1], STATES.index(door), 0, 0, 0
        on_or_off = STATES.index("on" if state.lit else "off")
        table[lamp] = CLASSES.index(LAMP), *CELLS[DESK], on_or_off, 0, 0, 0
        for row, item in enumerate(state.items, lamp + 1):
            properties = TEMPERATURES.index(item.temperature), SURFACES.index(item.surface)
            table[row] = CLASSES.index(item.kind), *CELLS[item.place], 0, *properties, item.held
        return {MISSION: self.chore.words, OBJECTS: table}

    def restore(self, observation: Any) -> bool:
        """Set the household to an observation; return False if the observation is invalid."""
        if not self.observation_space.contains(observation) or observation[MISSION] not in CHORES:
            return False
        chore, things = CHORES[observation[MISSION]], SCHEMA.decode(observation[OBJECTS])
        cells = [(int(thing["x"]), int(thing["y"])) for thing in things]
        if len(things) != len(self._empty) or not set(cells) <= set(CELLS):
            return False
        places = [CELLS.index(cell) for cell in cells]
        opened = frozenset(thing.kind for thing in things if thing["state"] == "open")
        items_and_places = zip(things[-THING_COUNT:], places[-THING_COUNT:], strict=True)
        items = tuple(
            HouseholdItem(
                thing.kind,
                place,
                str(thing["temperature"]),
                str(thing["surface"]),
                bool(thing["held"]),
            )
            for thing, place in items_and_places
        )
        if chore.kind not in {item.kind for item in items}:
            return False
        lit = things[-THING_COUNT - 1]["state"] == "on"
        self.chore, self.state = chore, State(places[0], opened, lit, items)
        return np.array_equal(self.observation()[OBJECTS], observation[OBJECTS])

    def render(self) -> str | None:
        """Return the mission and the places with their things as text."""
        if self.render_mode is None or self.state is None:
            return None
        return draw_text(self.state, self.chore)

    def _info(self) -> dict[str, Any]:
        return {"valid_actions": self.valid_actions()}


def draw_text(state: State, chore: Chore) -> str:
    """Return a household as text, with a line for each place."""
    lines = [f"Mission: {chore.words}.", ""]
    for room, names in ROOMS.items():
        lines.append(f"In the {room}:")
        for name in names:
            place = PLACES.index(name)
            door = " (open)" if name in state.opened else " (closed)" if name in OPENABLE else ""
            lamp = f" with the lamp {'on' if state.lit else 'off'}" if place == DESK else ""
            things = [
                _item_name(item) for item in state.items if item.place == place and not item.held
            ]
            inside = f": {', '.join(things)}" if things else ""
            here = " <- you are here" if state.place == place else ""
            lines.append(f"  the {name}{door}{lamp}{inside}{here}")
    held = state.held
    return "\n".join([*lines, "", f"You hold {_item_name(held) if held else 'nothing'}."])


def _item_name(item: HouseholdItem) -> str:
    """Return the name of a thing with its changed properties, such as "the hot apple"."""
    words = [word for word in (item.surface, item.temperature) if word not in ("dirty", "room")]
    return " ".join(["the", *words, item.kind])
