"""A household as an environment of Gymnasium: places, things, and a mission in words."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from cwm_cli.data.objects import MISSION, OBJECTS, ObjectField, ObjectSchema

REVISION = "1"
"""Raised whenever the household goes another way."""

MOST_STEPS = 30
"""Steps after which an episode is cut off; the longest task takes about ten."""

ROOMS = {
    "kitchen": ("fridge", "microwave", "sink", "countertop", "cabinet"),
    "living room": ("table", "drawer"),
    "study": ("desk", "shelf"),
}
"""The places of the house, by room."""

PLACES = tuple(place for places in ROOMS.values() for place in places)
CELLS = [(x, y) for y, places in enumerate(ROOMS.values()) for x in range(len(places))]
"""The column and the row of each place: its number in its room, and the number of the room."""

OPENABLE = ("fridge", "microwave", "cabinet", "drawer")
LAMP, DESK = "lamp", PLACES.index("desk")

FOODS, DISHES, OTHERS = ("apple", "bread", "egg"), ("mug", "plate", "knife"), ("book", "pen")
THINGS = FOODS + DISHES + OTHERS
THERE = 4
"""Things that are there in an episode."""

WORK = {"heat": "microwave", "cool": "fridge", "clean": "sink"}
"""Where something can be heated, cooled and cleaned."""

SUITED = {"pick": THINGS, "heat": FOODS, "cool": FOODS, "clean": DISHES, "examine": THINGS}
"""What the missions of each family are about."""

WORDS = {"pick": "", "heat": "hot ", "cool": "cool ", "clean": "clean "}

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
"""What the numbers of an object stand for."""

LONGEST_MISSION = 60
LETTERS = "abcdefghijklmnopqrstuvwxyz "


class Belonging(NamedTuple):
    """A thing: where it lies, and how it is. The place of what is held is where the agent is."""

    kind: str
    place: int
    temperature: str = "room"
    surface: str = "dirty"
    held: bool = False


class Chore(NamedTuple):
    """What a mission asks for: something done with a thing, and where it is to be put."""

    family: str
    kind: str
    place: str = ""

    @property
    def words(self) -> str:
        """The mission."""
        if self.family == "examine":
            return f"look at the {self.kind} under the lamp"
        return f"put the {WORDS[self.family]}{self.kind} {_into(self.place)} the {self.place}"


def _into(place: str) -> str:
    return "in" if place in (*OPENABLE, "sink") else "on"


def chores() -> Mapping[str, Chore]:
    """Return every chore that there is, by its words."""
    put = (
        Chore(family, kind, place)
        for family in WORDS
        for kind in SUITED[family]
        for place in PLACES
        if place != WORK.get(family)
    )
    looked = (Chore("examine", kind) for kind in SUITED["examine"])
    return {chore.words: chore for chore in (*put, *looked)}


CHORES = chores()


DONE: dict[str, dict[str, Any]] = {
    "put": {"held": False},
    "heat": {"temperature": "hot"},
    "cool": {"temperature": "cool"},
    "clean": {"surface": "clean"},
}
"""What changes about the thing that is held, by the verb."""


class State(NamedTuple):
    """How a household stands: all that an action depends on, and all that it changes."""

    place: int
    opened: frozenset[str]
    lit: bool
    items: tuple[Belonging, ...]

    @property
    def held(self) -> Belonging | None:
        """What the agent has in its hand."""
        return next((item for item in self.items if item.held), None)

    def after(self, action: int) -> State:
        """Return where an action leads that can be carried out."""
        verb, *_, name = ACTIONS[action].split()
        if verb == "go":
            place = PLACES.index(name)
            return self._replace(place=place)._changed(lambda item: item.held, place=place)
        if verb == "take":
            return self._changed(lambda item: item.kind == name, held=True)
        if verb in ("open", "close"):
            return self._replace(opened=self.opened ^ {name})
        if verb == "use":
            return self._replace(lit=not self.lit)
        return self._changed(lambda item: item.held, **DONE[verb])

    def _changed(self, which: Callable[[Belonging], bool], **changes: Any) -> State:
        """Return the state in which something of some things is changed."""
        items = (item._replace(**changes) if which(item) else item for item in self.items)
        return self._replace(items=tuple(items))


class Household(gym.Env[Any, Any]):
    """A task in a house, which is drawn anew for each episode."""

    metadata = {"render_modes": ["ansi"], "render_fps": 2}  # noqa: RUF012

    def __init__(self, families: Sequence[str], *, render_mode: str | None = None) -> None:
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise ValueError(f"unknown render mode {render_mode!r}: choose 'ansi'")
        self.families = tuple(families)
        self.render_mode = render_mode
        self.work = dict(WORK)
        slots = 2 + len(PLACES) + THERE
        highest = [len(CLASSES), *(1 + np.max(CELLS, axis=0)), len(STATES)]
        highest += [len(TEMPERATURES), len(SURFACES), 2]
        self._empty = np.zeros((slots, len(highest)), np.int64)
        high = np.tile(np.array(highest) - 1, (slots, 1))
        told = spaces.Text(LONGEST_MISSION, charset=LETTERS)
        seen = spaces.Box(self._empty, high, dtype=np.int64)
        self.observation_space = spaces.Dict({MISSION: told, OBJECTS: seen})
        self.action_space = spaces.Discrete(len(ACTIONS))
        self.chore = Chore("", "")
        self.state: State | None = None
        self._valid: tuple[State | None, tuple[int, ...]] = (None, ())

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode: another mission, other things, in other places."""
        super().reset(seed=seed)

        def draw(among: Sequence[Any]) -> Any:
            return among[int(self.np_random.integers(len(among)))]

        family = draw(self.families)
        self.chore = draw([chore for chore in CHORES.values() if chore.family == family])
        others = [kind for kind in THINGS if kind != self.chore.kind]
        kinds = [self.chore.kind, *self.np_random.permutation(others)[: THERE - 1].tolist()]
        free = [place for place, name in enumerate(PLACES) if name != self.chore.place]
        items = tuple(Belonging(kind, draw(free)) for kind in sorted(kinds, key=THINGS.index))
        opened = frozenset(name for name in OPENABLE if self.np_random.random() < 1 / 4)
        self.state = State(draw(range(len(PLACES))), opened, False, items)
        return self.observation(), self._info()

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Do what a sentence says, if it can be done; a mission that is fulfilled rewards 1."""
        if not self.action_space.contains(action):
            raise ValueError(f"there is no action {action!r}: choose one of {self.action_space}")
        if self.state is None:
            raise gym.error.ResetNeeded("reset the environment before its first step")
        if action in self.valid_actions():
            self.state = self.state.after(int(action))
        done = self.fulfilled(self.state)
        return self.observation(), float(done), done, False, self._info()

    def valid_actions(self) -> tuple[int, ...]:
        """Return the actions that can be carried out."""
        state = self.state
        if state is None:
            return tuple(range(len(ACTIONS)))
        if self._valid[0] is not state:
            sentences = (NUMBERS[sentence] for sentence in self._possible(state))
            self._valid = (state, tuple(sorted(sentences)))
        return self._valid[1]

    def _possible(self, state: State) -> Iterator[str]:
        """Yield the sentences that can be carried out."""
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
            yield from (f"{verb} it" for verb, place in self.work.items() if place == here)

    def fulfilled(self, state: State) -> bool:
        """Whether a mission is fulfilled where a household stands."""
        chore = self.chore
        item = next(item for item in state.items if item.kind == chore.kind)
        if chore.family == "examine":
            return item.held and state.lit and state.place == DESK
        wanted = WORDS[chore.family].strip()
        as_asked = not wanted or wanted in (item.temperature, item.surface)
        return not item.held and as_asked and PLACES[item.place] == chore.place

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
        shines = STATES.index("on" if state.lit else "off")
        table[lamp] = CLASSES.index(LAMP), *CELLS[DESK], shines, 0, 0, 0
        for row, item in enumerate(state.items, lamp + 1):
            how = TEMPERATURES.index(item.temperature), SURFACES.index(item.surface)
            table[row] = CLASSES.index(item.kind), *CELLS[item.place], 0, *how, item.held
        return {MISSION: self.chore.words, OBJECTS: table}

    def restore(self, observation: Any) -> bool:
        """Stand at an observation; False where it is none of the household."""
        if not self.observation_space.contains(observation) or observation[MISSION] not in CHORES:
            return False
        chore, things = CHORES[observation[MISSION]], SCHEMA.decode(observation[OBJECTS])
        cells = [(int(thing["x"]), int(thing["y"])) for thing in things]
        if len(things) != len(self._empty) or not set(cells) <= set(CELLS):
            return False
        places = [CELLS.index(cell) for cell in cells]
        opened = frozenset(thing.kind for thing in things if thing["state"] == "open")
        lying = zip(things[-THERE:], places[-THERE:], strict=True)
        items = tuple(
            Belonging(
                thing.kind,
                place,
                str(thing["temperature"]),
                str(thing["surface"]),
                bool(thing["held"]),
            )
            for thing, place in lying
        )
        if chore.kind not in {item.kind for item in items}:
            return False
        lit = things[-THERE - 1]["state"] == "on"
        self.chore, self.state = chore, State(places[0], opened, lit, items)
        return np.array_equal(self.observation()[OBJECTS], observation[OBJECTS])

    def render(self) -> str | None:
        """Say in words what is where, and what to do."""
        if self.render_mode is None or self.state is None:
            return None
        return in_words(self.state, self.chore)

    def _info(self) -> dict[str, Any]:
        return {"valid_actions": self.valid_actions()}


def in_words(state: State, chore: Chore) -> str:
    """Write down a household, a line for each place."""
    lines = [f"Mission: {chore.words}.", ""]
    for room, names in ROOMS.items():
        lines.append(f"In the {room}:")
        for name in names:
            place = PLACES.index(name)
            door = " (open)" if name in state.opened else " (closed)" if name in OPENABLE else ""
            lamp = f" with the lamp {'on' if state.lit else 'off'}" if place == DESK else ""
            things = [_named(item) for item in state.items if item.place == place and not item.held]
            inside = f": {', '.join(things)}" if things else ""
            here = " <- you are here" if state.place == place else ""
            lines.append(f"  the {name}{door}{lamp}{inside}{here}")
    held = state.held
    return "\n".join([*lines, "", f"You hold {_named(held) if held else 'nothing'}."])


def _named(item: Belonging) -> str:
    """Name a thing with what was done to it."""
    words = [word for word in (item.surface, item.temperature) if word not in ("dirty", "room")]
    return " ".join(["the", *words, item.kind])
