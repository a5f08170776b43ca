"""Worlds whose situations can be counted: the program as a table, and exact plans in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from cwm_cli.data.objects import OBJECTS, SIDES, relations
from cwm_cli.planning.model import Step
from cwm_learn.actors.base import Actor, Aim, Intent, Knowledge, OpenQuestion
from cwm_learn.actors.digits import digits_of, split
from cwm_learn.actors.novelty import Level, Novelty
from cwm_learn.actors.numbered_states import NARROW, WHOLE, Situations, TabularActor, Ways
from cwm_learn.actors.object_novelty import Contacts
from cwm_learn.actors.stochastic import DiceActor

if TYPE_CHECKING:
    from cwm_cli.data.dataset import Transition

SLACK = 1e-6
"""By how much of the rewards returns have to differ to be different."""

DISAPPOINTED, LATELY = 3, 20
"""So many wrong rewards or ends in so many steps make its promises doubtful: more of what they
promise would be wrong alike, and the program is written anew soon."""

SHOWN = 3
"""Open questions of one kind that are told."""


class Counted(TabularActor):
    """Plays by value iteration over all situations that can be reached in the program.

    It goes for the unknown by the shortest way in the program, the most telling first. What is
    unknown is a question of small tuples of factors, see `novelty`.
    """

    def __init__(self, known: Knowledge) -> None:
        super().__init__(known)
        self.table = Situations(known.observation_space, known.action_space)
        self.table.apart = self._kinds()
        self._steps: list[tuple[int, int, int, float, bool]] = []
        self._wrong: list[int] = []
        self._factors: np.ndarray | None = None
        self._related: tuple[list[str], np.ndarray] | None = None
        self._novelty: Novelty | None = None
        self._told = np.zeros((0, 0), np.int64)  # the relations of all situations so far
        self._deep = False  # whether not even a new board offered much that is unknown
        self._rng = np.random.default_rng([known.seed, 0])

    @classmethod
    def stochastic_variant(cls) -> type[Actor]:
        """Return the actor that also counts probabilities."""
        return DiceActor

    def rebuild(self) -> None:
        """Begin a table anew; the program is asked once it is known from where."""
        self._steps.clear()
        self._wrong.clear()
        self.table.forget()
        self._told = self._told[:0]
        self.table.usual = self._usual()
        self._noticed()
        self._factors = self._novelty = None

    def observe(self, row: Transition) -> None:
        """Take note of a step: it outranks the program."""
        self._noticed()

    def predict(self, observation: Any, action: Any) -> Step | None:
        """Return what was seen, or else what the program says."""
        number, chosen = self._met(observation, self._least), self.table.action_number(action)
        if not self.table.answered[number, chosen]:
            return None
        after = self.table.observation(int(self.table.following[number, chosen]))
        place = number, chosen
        return Step(after, float(self.table.rewards[place]), bool(self.table.terminated[place]))

    def matches(self, predicted: Step, row: Transition) -> bool:
        """Whether reward and end came about, and the situation unless the episode ended in it."""
        same = row.terminated or self.table.number(predicted.observation) == self.table.number(
            row.next_observation
        )
        slack = SLACK * max(1.0, abs(row.reward))
        paid = abs(predicted.reward - row.reward) <= slack
        return bool(same and paid and predicted.terminated == row.terminated)

    def promised_return(self, observation: Any, left: int) -> float | None:
        """Return the return of the best play, if it is above the usual reward for ever."""
        if left < 1:
            return None
        return self._promised(self._placed(observation, left), left)

    def _promised(self, number: int, left: int) -> float | None:
        value = float(self.table.worth(number, left).max())
        idle = left * self.table.usual
        scale = max(1e-9, float(np.abs(self.table.rewards).max(initial=0.0)))
        return float(f"{value:.7g}") if value > idle + SLACK * scale else None

    def choose(self, observation: Any, left: int, aim: Aim | None = None) -> Intent | None:
        """Play the best action, or begin the shortest way to what is unknown."""
        number = self._placed(observation, left)
        if aim in (None, "exploit", "verify"):
            promise = self._promised(number, left)
            if promise is not None and aim is None and self._is_disappointed:
                ways = self.table.ways(number, left)
                if intent := self._towards(ways, self._news.levels(), "explore"):
                    return intent
            if promise is not None:
                action = self.table.actions[int(self.table.worth(number, left).argmax())]
                return Intent(action, aim or "exploit", "the best action in the program", promise)
            if aim is not None:
                return None
        if aim == "probe":
            return self._probing(observation, left)
        ways = self.table.ways(number, left)
        found = self._towards(ways, self._news.levels(), "explore")
        if found is None and self.table.expanded[number] < WHOLE:
            number = self._met(observation)
            ways = self.table.ways(number, left)
            found = self._towards(ways, self._news.levels(), "explore")
        if left == self.known.limit:
            self._deep = found is None
        if found is None and self._deep and isinstance(self._news, Contacts):
            return self._towards(ways, self._news.deeper(), "explore")
        return found

    def _probing(self, observation: Any, left: int) -> Intent | None:
        """Go for what is disputed or pursued, where little is to be asked for that, or doubted."""
        for extent in (self._least, WHOLE):
            self._met(observation, extent)
            disputed = self._disputed()  # which may add situations, so before a way is looked for
            number = self._met(observation, extent)
            ways = self.table.ways(number, left)
            doubts = self._doubts(number, ways, left) if extent == WHOLE else iter(())
            if found := self._towards(ways, chain([disputed], self._pursued(), doubts), "probe"):
                return found
        return None

    def questions(self) -> list[OpenQuestion]:
        """Return what the rows leave open: actions never tried, ends seen once, places unseen."""
        self._noticed()
        return [*self._untried(), *self._ends(), *self._unvisited()]

    @property
    def is_settled(self) -> bool:
        """Whether nothing never visited could better the return from any start, if it paid most."""
        limit = self.known.limit
        for observation in self.known.starts[-SHOWN:]:
            start = self._met(observation)
            doubts = self._doubts(start, self.table.ways(start, limit), limit)
            if any(level.unknown.any() for level in doubts):
                return False
        return bool(self.known.starts)

    def _met(self, observation: Any, extent: int = WHOLE) -> int:
        """Return the number of a situation, of which the program was asked."""
        number = self.table.number(observation)
        imagination = self.known.imagination
        if imagination is not None and self.table.expanded[number] < extent:
            if self.table.full:
                self.rebuild()
                number = self.table.number(observation)
            self._noticed()
            self.table.explore(imagination, number, extent, self._best_end)
        return number

    @property
    def _least(self) -> int:
        """How much of a table is asked for first: where objects make them large, little."""
        return NARROW if self.table.large and self.known.schema is not None else WHOLE

    def _kinds(self) -> list[int]:
        """Return the places of the numbers that say what objects are like, but not where."""
        schema, places, first = self.known.schema, list[int](), 0
        for leaf in self.known.observation_space.leaves("observations"):
            if schema is not None and leaf.name == f"observations.{OBJECTS}":
                named = {each.name for each in schema.fields if each.values} | {"held"}
                kept = [0, *map(schema.column, named & set(schema.names))]
                width = leaf.space.shape[-1]
                rows = range(first, first + leaf.space.size, width)
                places = [row + column for row in rows for column in sorted(kept)]
            first += leaf.space.size
        return places

    def _placed(self, observation: Any, left: int) -> int:
        """Return the number of a situation, of which enough is known to act.

        That is little where its play comes to the best end that was ever seen, or where nothing
        promises anything; otherwise it is all that can be reached.
        """
        number = self._met(observation, self._least)
        if self.table.expanded[number] == WHOLE or self._promised(number, left) is None:
            return number
        return number if self._ends_well(number, left) else self._met(observation)

    @property
    def _best_end(self) -> float | None:
        """The best reward that an episode ended with, if it is above the usual one."""
        ends = [reward for *_, reward, ended in self._steps if ended and reward > self.table.usual]
        return max(ends) - SLACK * max(1.0, max(ends)) if ends else None

    def _ends_well(self, number: int, left: int) -> bool:
        """Whether the best play known comes to the best end that was ever seen."""
        passed, reward = set[int](), self._best_end
        while reward is not None and left and number not in passed:
            passed.add(number)
            action = int(self.table.worth(number, left).argmax())
            if self.table.terminated[number, action]:
                return bool(self.table.rewards[number, action] >= reward)
            number, left = int(self.table.following[number, action]), left - 1
        return False

    @property
    def _is_disappointed(self) -> bool:
        """Whether what it promised itself went wrong again and again."""
        since = len(self._steps) - LATELY
        return sum(place >= since for place in self._wrong[-DISAPPOINTED:]) == DISAPPOINTED

    def _noticed(self) -> None:
        """Give new rows their numbers; what chance decided once is no rule."""
        known, table = self.known, self.table
        for place, row in enumerate(known.rows[len(self._steps) :], len(self._steps)):
            self._steps.append(table.numbers_of(row))
            self._novelty = None
            if place not in known.random_rows and table.record(*self._steps[-1]):
                self._wrong.append(place)

    def _usual(self) -> float:
        """Return the reward that can be had again and again, or else the most common one."""
        if (usual := self.known.usual_reward) is not None:
            return usual
        rewards = [row.reward for row in self.known.rows if not row.terminated]
        return Counter(rewards or [0.0]).most_common(1)[0][0]

    @property
    def _news(self) -> Novelty:
        """What is unknown now."""
        if self._factors is None or len(self._factors) != len(self.table):
            self._factors = self._factored()
            self._related = self._novelty = None
        if self._novelty is None:
            known = self.table, self._factors, self._steps, self.table.usual
            self._novelty = self._among_objects() or Novelty(*known)
        return self._novelty

    def _factored(self) -> np.ndarray:
        """Return what situations are made of, numbers from 0: digits, or what varies."""
        values, space = self.table.values, self.known.observation_space
        if space.kind == "discrete" and self._steps:
            low = int(space.low[0])
            before, action, after, *_ = map(np.array, zip(*self._steps, strict=True))
            numbers = values[:, 0] - low
            radices = digits_of(numbers[before], action, numbers[after], space.count)
            return split(numbers, radices)
        found = _varying(values)
        return found if found.shape[1] else np.zeros((len(values), 1), np.int64)

    def _among_objects(self) -> Novelty | None:
        """Return what is unknown among objects, where there are objects."""
        if self.known.schema is None or self._factors is None:
            return None
        if self._related is None:
            tables = self.table.column(f"observations.{OBJECTS}")
            names, told = relations(self.known.schema, tables[len(self._told) :])
            columns = self._told = np.concatenate([self._told.reshape(-1, len(names)), told])
            varying = np.flatnonzero((columns != columns[:1]).any(axis=0))
            self._related = [names[n] for n in varying], _varying(columns)
        named, columns = self._related
        known = self.table, self._factors, self._steps, self.table.usual
        return Contacts(*known, names=named, relations=columns, sides=self._sides())

    def _sides(self) -> dict[int, str]:
        """Return the side to which the agent goes by an action, where it faces none."""
        tables = self.table.column(f"observations.{OBJECTS}")
        ways: dict[int, Counter[tuple[int, int]]] = {}
        schema = self.known.schema
        if schema is None or schema.directions:
            return {}
        x, y = schema.column("x"), schema.column("y")
        for before, action, after, *_ in self._steps:
            way = (tables[after, 0] - tables[before, 0])[[x, y]].tolist()
            if any(way):
                ways.setdefault(action, Counter())[way[0], way[1]] += 1
        usual = {action: counts.most_common(1)[0][0] for action, counts in ways.items()}
        named = {way: side for side, way in SIDES.items()}
        return {action: named[way] for action, way in usual.items() if way in named}

    def _towards(self, ways: Ways, levels: Iterator[Level], aim: Aim) -> Intent | None:
        """Begin the shortest way to the first level that can be reached, any of the nearest."""
        for level in levels:
            rows, columns = np.nonzero(level.unknown & (ways.steps >= 0)[:, None])
            if not len(rows):
                continue
            steps = ways.steps[rows]
            nearest = np.flatnonzero(steps == steps.min())
            place = nearest[self._rng.integers(len(nearest))]
            action = ways.first(int(rows[place]), int(columns[place]))
            return Intent(self.table.actions[action], aim, level.reason)
        return None

    def _doubts(self, start: int, ways: Ways, left: int) -> Iterator[Level]:
        """Yield what was never visited, where the best reward there would better the return."""
        table, best = self.table, max((step[3] for step in self._steps), default=0.0)
        value = float(table.worth(start, left).max()) if left else 0.0
        hoped = np.where(ways.steps >= 0, ways.steps * table.usual + best, -np.inf)
        worth = hoped > value + SLACK * max(1.0, abs(value))
        for width in (1, 2):
            unknown = self._news.landings(width) & worth[:, None]
            yield Level(f"an unvisited state that may raise the return, width {width}", unknown)

    def _disputed(self) -> Level:
        """Return what other programs that replay every row say otherwise of."""
        places = [
            (self._met(o, self._least), self.table.action_number(a)) for o, a in self.known.disputed
        ]
        unknown = np.zeros(self.table.following.shape, bool)
        for place in places:
            unknown[place] = True
        return Level("other programs disagree", unknown[: len(self.table)])

    def _pursued(self) -> Iterator[Level]:
        """Yield where each question of a language model is answered."""
        for each in self.known.targets:
            unknown, action = np.zeros(self.table.following.shape, bool), each.question.action
            column = slice(None) if action is None else self.table.action_number(action)
            unknown[each.contains(self.table.values), column] = True
            yield Level(each.question.text, unknown)

    def _untried(self) -> list[OpenQuestion]:
        tried = {action for _, action, *_ in self._steps}
        names = [action for n, action in enumerate(self.table.actions) if n not in tried]
        return [
            OpenQuestion(f"action {action} was never tried", action=action, weight=1.0)
            for action in names[:SHOWN]
        ]

    def _ends(self) -> list[OpenQuestion]:
        ends = Counter((before, action) for before, action, _, _, ended in self._steps if ended)
        rewards = {step[:2]: step[3] for step in self._steps}
        return [
            OpenQuestion(
                f"the end of the episode by action {self.table.actions[action]} at"
                f" {self.known.describe(self.table.observation(before))} was seen once",
                self.known.describe(self.table.observation(before)),
                self.table.actions[action],
                "whether the episode always ends there",
                abs(rewards[before, action] - self.table.usual),
            )
            for (before, action), count in ends.items()
            if count == 1
        ][:SHOWN]

    def _unvisited(self) -> list[OpenQuestion]:
        if not self.known.starts:
            return []
        start, limit = self._met(self.known.starts[-1], self._least), self.known.limit
        found = []
        for level in self._doubts(start, self.table.ways(start, limit), limit):
            places = np.unique(self.table.following[level.unknown])
            found += [
                self.known.describe(self.table.observation(int(place))) for place in places[:SHOWN]
            ]
        return [
            OpenQuestion(
                f"never visited: {place}", place, answers="whether this state raises the return"
            )
            for place in dict.fromkeys(found)
        ][:SHOWN]


def _varying(values: np.ndarray) -> np.ndarray:
    """Return the columns that vary, their values numbered from 0."""
    varies = np.flatnonzero((values != values[:1]).any(axis=0))
    columns = [np.unique(values[:, v], return_inverse=True)[1].reshape(-1) for v in varies]
    return np.stack(columns, 1) if columns else np.zeros((len(values), 0), np.int64)
