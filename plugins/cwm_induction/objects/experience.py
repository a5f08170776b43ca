"""Transitions of objects, the roles of objects, and the properties that rules can test."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from math import inf
from types import CodeType
from typing import Any, NamedTuple

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_cli.data.objects import MISSION, OBJECTS, ObjectSchema
from cwm_induction.decision_list import (
    Bias,
    RelationCondition,
    RelationFeature,
    Spend,
    learn,
)
from cwm_induction.objects.words import ROLES, Language, State


class Experienced(NamedTuple):
    """A transition between two states during a mission."""

    mission: str
    before: State
    action: int
    after: State
    reward: float
    done: bool


@lru_cache(4096)
def compiled(text: str) -> CodeType:
    """Compile an expression of a rule."""
    return compile(text, "<rule>", "eval")


@dataclass(frozen=True)
class Experience:
    """Transitions between states, and the language for rules about the transitions.

    `moves` maps actions to the direction of the agent's step, if the agent has no facing direction.
    """

    language: Language
    rows: Sequence[Experienced]
    moves: Mapping[int, tuple[int, int]] = field(default_factory=dict)

    @classmethod
    def of(cls, data: Dataset) -> Experience:
        """Read the transitions of a dataset with an object view."""
        schema = ObjectSchema.from_json(data.metadata["objects"])
        columns = data.columns
        tables = columns[f"observations.{OBJECTS}"], columns[f"next_observations.{OBJECTS}"]
        missions, actions = columns[f"observations.{MISSION}"].tolist(), columns["actions"].tolist()
        outcomes = columns["rewards"].tolist(), columns["terminations"].tolist()
        rows = list(zip(missions, tables[0], actions, tables[1], *outcomes, strict=True))
        return cls.read(schema, rows)

    @classmethod
    def read(
        cls,
        schema: ObjectSchema,
        rows: Iterable[tuple[str, np.ndarray, int, np.ndarray, float, bool]],
    ) -> Experience:
        """Read transitions: mission, table before, action, table after, reward, end."""
        language = Language(schema)
        kept: dict[bytes, State] = {}

        def state(table: np.ndarray) -> State:
            key = np.asarray(table).tobytes()
            if key not in kept:
                kept[key] = language.state(table)
            return kept[key]

        seen = [
            Experienced(
                str(mission), state(one), int(action), state(two), float(reward), bool(done)
            )
            for mission, one, action, two, reward, done in rows
        ]
        flat, naming = _flat(language, seen), _naming(schema, seen)
        moves = {} if language.faces else _moves(seen)
        things = [thing for row in seen for thing in row.before]
        size = max((t.x for t in things), default=0) + 1, max((t.y for t in things), default=0) + 1
        return cls(Language(schema, flat, naming, size), seen, moves)

    def part(self, rows: Iterable[int]) -> Experience:
        """Return the transitions with the given row numbers."""
        return Experience(self.language, [self.rows[row] for row in rows], self.moves)

    @cached_property
    def kinds(self) -> list[str]:
        """Classes of objects in the data, without the agent's class."""
        seen = {thing.kind for row in self.rows for thing in (*row.before[1:], *row.after[1:])}
        return [kind for kind in self.language.schema.classes[1:] if kind in seen]

    @cached_property
    def single(self) -> list[str]:
        """Classes that change and never have more than one object in a state."""
        most: dict[str, int] = {}
        changing = set()
        for row in self.rows:
            counts: dict[str, int] = {}
            for thing in row.before[1:]:
                counts[thing.kind] = counts.get(thing.kind, 0) + 1
            most |= {kind: max(count, most.get(kind, 0)) for kind, count in counts.items()}
            changing |= {
                one.kind for one, two in zip(row.before, row.after, strict=True) if one != two
            }
        return [kind for kind in self.kinds if most.get(kind) == 1 and kind in changing]

    @cached_property
    def changing(self) -> list[str]:
        """Fields with named values that change, without the direction."""
        return [name for name in self._named if name not in self.language.naming]

    @cached_property
    def _named(self) -> list[str]:
        fields = self.language.schema.fields
        return [
            each.name for each in fields if each.values and each.name not in ("direction", "held")
        ]

    @cached_property
    def roles(self) -> dict[str, str]:
        """The roles of objects: expressions over a state, by name."""
        single = {f"the_{name_of(kind)}": f"the(state, {kind!r})" for kind in self.single}
        return ROLES | single

    def scenes(self, after: bool = False) -> list[dict[str, Any]]:
        """Return the values of the names in rules, for each transition.

        Objects have their roles in the state before the action, or after it if `after`.
        """
        space = self.language.space
        codes = {name: compiled(text) for name, text in self.roles.items()}
        scenes = []
        for row in self.rows:
            state = row.after if after else row.before
            dx, dy = self.way(state, row.action)
            scene: dict[str, Any] = {"state": state, "dx": dx, "dy": dy}
            for name, code in codes.items():
                scene[name] = eval(code, space, scene)  # noqa: S307  # ours
            more = {"state": row.before, "after": row.after, "action": row.action}
            scenes.append(scene | more | {"mission": row.mission})
        return scenes

    def way(self, state: State, action: int) -> tuple[int, int]:
        """Return the step (dx, dy) of an action in a state."""
        if self.language.faces:
            way: tuple[int, int] = self.language.space["DIRECTIONS"].get(state[0].direction, (0, 0))
            return way
        return self.moves.get(action, (0, 0))

    def columns(
        self, properties: Sequence[Property], scenes: Sequence[Mapping[str, Any]]
    ) -> dict[Property, list[Any]]:
        """Return the values of properties in the scenes."""
        space = self.language.space
        return {
            each: [eval(code, space, scene) for scene in scenes]  # noqa: S307  # ours
            for each in properties
            for code in [compiled(each.text)]
        }

    def of_situations(self) -> list[Property]:
        """Return the properties that rules of changes can test."""
        costs = {"front": 1.0, "held": 1.3, "beyond": 1.5, "here": 1.6, "there": 1.7, "other": 2.0}
        properties = [Property(f"{role}.kind", cost) for role, cost in costs.items()]
        for name in self.changing:
            properties += [Property(f"{role}.{name}", cost + 0.2) for role, cost in costs.items()]
            properties += [Property(f"the_{name_of(kind)}.{name}", 3.0) for kind in self.single]
            properties.append(Property(f"agent.{name}", 2.0))
        for name in self.language.naming:
            properties.append(Property(f"front.{name} == held.{name}", 1.4))
            properties.append(Property(f"here.{name} == held.{name}", 1.8))
            properties += [Property(f"{role}.{name}", cost + 1.5) for role, cost in costs.items()]
        if self.language.faces:
            properties.append(Property("agent.direction", 4.0))
        return properties

    def of_outcomes(self) -> list[Property]:
        """Return the properties that rules of the reward can test.

        They describe the state after a step, and the mission.
        """
        costs = {"here": 1.0, "held": 1.1, "front": 1.5, "there": 3.0, "beyond": 3.0}
        properties = [Property(f"{role}.kind", cost) for role, cost in costs.items()]
        properties += [
            Property(f"named({role}, mission)", costs[role]) for role in ("held", "here", "front")
        ]
        for name in self.changing:
            properties += [Property(f"{role}.{name}", cost + 0.3) for role, cost in costs.items()]
            for kind in self.kinds:
                values = {getattr(thing, name) for row in self.rows for thing in row.after
                          if thing.kind == kind}  # fmt: skip
                if len(values) > 1:
                    properties += [Property(f"some(after, {kind!r}, {name}={value!r})", 1.4)
                              for value in sorted(values)]  # fmt: skip
        for one, two in _over(self.language, self.rows):
            counted = f"count_on(after, {one!r}, {two!r})"
            properties.append(Property(f"{counted} - {counted.replace('after', 'state')}", 1.2))
            properties.append(Property(f"all_on(after, {one!r}, {two!r})", 1.3))
        for name in self.language.naming:
            properties += [Property(f"{role}.{name}", cost + 1.5) for role, cost in costs.items()]
        properties += [Property("carried(state).kind", 2.0), Property("after == state", 2.5)]
        return [*properties, Property("action", 2.5)]


def name_of(kind: str) -> str:
    """Convert the name of a class to a part of an identifier."""
    return "".join(letter if letter.isalnum() else "_" for letter in kind.lower())


def _flat(language: Language, rows: Sequence[Experienced]) -> set[str]:
    """Return the classes that never change and share positions with other classes."""
    changing = {
        one.kind
        for row in rows
        for one, two in zip(row.before, row.after, strict=True)
        if one != two
    }
    below = {two for _, two in _over(language, rows)}
    return below - changing


def _over(language: Language, rows: Sequence[Experienced]) -> list[tuple[str, str]]:
    """Return pairs of classes whose objects shared a position, without the agent.

    The second class of a pair never changes.
    """
    pairs = set()
    free = language.schema.classes[0]
    for state in {id(state): state for row in rows for state in (row.before, row.after)}.values():
        cells: dict[tuple[int, int], list[str]] = {}
        for thing in state[1:]:
            if thing.kind != free and not (language.carries and thing.held):
                cells.setdefault((thing.x, thing.y), []).append(thing.kind)
        for kinds in cells.values():
            pairs |= {(one, two) for one in kinds for two in kinds if one != two}
    changing = {
        one.kind
        for row in rows
        for one, two in zip(row.before, row.after, strict=True)
        if one != two
    }
    return sorted((one, two) for one, two in pairs if two not in changing)


def _naming(schema: ObjectSchema, rows: Sequence[Experienced]) -> set[str]:
    """Return the fields with named values that objects never change."""
    names = {each.name for each in schema.fields if each.values} - {"direction", "held"}
    for row in rows:
        for one, two in zip(row.before, row.after, strict=True):
            if one is not two and one.kind == two.kind:
                names = {name for name in names if getattr(one, name) == getattr(two, name)}
    return names


def _moves(rows: Sequence[Experienced]) -> dict[int, tuple[int, int]]:
    """Return the direction of each action whose most frequent movement is a single step."""
    ways: dict[int, list[tuple[int, int]]] = {}
    for row in rows:
        way = row.after[0].x - row.before[0].x, row.after[0].y - row.before[0].y
        if way != (0, 0):
            ways.setdefault(row.action, []).append(way)
    steps = ((1, 0), (0, 1), (-1, 0), (0, -1))
    usual = {action: max(set(each), key=each.count) for action, each in ways.items()}
    return {action: way for action, way in usual.items() if way in steps}


Array = np.ndarray

MISS_BITS = 60.0
"""Price of a wrong row: even one row justifies a product of several tests."""

MAX_PRODUCTS = 8
"""Maximum number of products of a condition; more products would overfit single rows."""


@dataclass(frozen=True)
class Property:
    """A property of a situation: an expression and its cost."""

    text: str
    cost: float


class PropertyTest(NamedTuple):
    """A test that a property has a value, or that it does not have the value if not `holds`."""

    text: str
    value: Any
    holds: bool = True

    def __str__(self) -> str:
        if isinstance(self.value, bool):
            return self.text if self.value == self.holds else f"not {self.text}"
        return f"{self.text} {'==' if self.holds else '!='} {self.value!r}"


Product = tuple[PropertyTest, ...]


@dataclass(frozen=True)
class DecidingCondition:
    """A disjunction of products; a product without literals always holds."""

    products: tuple[Product, ...]

    @property
    def size(self) -> int:
        """Number of products and tests."""
        return sum(1 + len(product) for product in self.products)

    def __str__(self) -> str:
        """Return the shortest source text of the condition, or "" if it always holds."""
        grouped: dict[tuple[str, Product], list[Any]] = {}
        for product in self.products:
            if not product:
                return ""
            first, *rest = product
            is_equality = first.holds and not isinstance(first.value, bool)
            key = (first.text, tuple(rest)) if is_equality else ("", product)
            grouped.setdefault(key, []).append(first.value)
        texts = []
        for (text, others), values in grouped.items():
            one = f"{text} == {values[0]!r}" if len(values) == 1 else f"{text} in {tuple(values)!r}"
            texts.append(" and ".join([one] * bool(text) + [str(each) for each in others]))
        return " or ".join(texts)


class DecidingCases:
    """Properties of rows, and a search for conditions that separate two groups of rows."""

    def __init__(self, columns: Mapping[Property, Sequence[Any]], spend: Spend) -> None:
        self.spend = spend
        self.values = {each.text: np.array(column, object) for each, column in columns.items()}
        self.kinds = {each.text: sorted(set(column), key=str) for each, column in columns.items()}
        self.features: list[RelationFeature] = []
        for each, column in columns.items():
            codes = np.array([self.kinds[each.text].index(value) for value in column])
            kind = "flag" if isinstance(column[0], bool) else "code"
            if kind == "flag":
                codes = np.array(column, int)
            self.features.append(RelationFeature(each.text, kind, codes, each.cost))

    def condition(
        self, wanted: Array, refused: Array, keys: Sequence[tuple[str, ...]] = ()
    ) -> DecidingCondition:
        """Return a condition that holds in wanted rows but in no refused row.

        Args:
            wanted: Mask of the rows to cover; the greedy search covers the most at each step.
            refused: Mask of the rows that the condition must not cover.
            keys: Groups of properties. Each product then begins with a test of all properties of
                one group, so that the condition does not hold for values that no wanted row has.
                The group that leaves the fewest wanted rows is chosen, then the shortest one.
        """
        if not keys:
            return self._products(wanted, refused)
        candidates = [self._keyed(key, wanted, refused) for key in keys]
        return min(candidates, key=lambda each: (self._uncovered(each, wanted), each.size))

    def holds(self, condition: DecidingCondition, rows: int) -> Array:
        """Return a mask that is true for each row if the condition holds."""
        mask = np.zeros(rows, np.bool_)
        for product in condition.products:
            part = np.ones(rows, np.bool_)
            for text, value, positive in product:
                part &= np.array(self.values[text] == value, np.bool_) == positive
            mask |= part
        return mask

    def _uncovered(self, condition: DecidingCondition, wanted: Array) -> int:
        return int((wanted & ~self.holds(condition, len(wanted))).sum())

    def _keyed(self, keys: tuple[str, ...], wanted: Array, refused: Array) -> DecidingCondition:
        """Return a condition whose products begin with tests of the key properties."""
        columns, products = [self.values[key] for key in keys], list[Product]()
        for values in sorted(set(zip(*(each[wanted] for each in columns), strict=True)), key=str):
            parts = [column == value for column, value in zip(columns, values, strict=True)]
            mask = np.array(np.logical_and.reduce(parts), np.bool_)
            condition = self._products(wanted & mask, refused & mask)
            first = tuple(map(PropertyTest, keys, values))
            products += [(*first, *each) for each in condition.products]
        return DecidingCondition(tuple(products))

    def _products(self, wanted: Array, refused: Array) -> DecidingCondition:
        """Return products that cover the wanted rows and no refused row."""
        if not refused.any():
            return DecidingCondition(((),))
        rows = np.flatnonzero(wanted | refused)
        features = [each._replace(values=each.values[rows]) for each in self.features]
        correct = np.stack([~wanted[rows], wanted[rows]], axis=1)
        # Only the second effect is allowed, so that all rules together are a disjunction.
        bias = Bias(MISS_BITS, (inf, 0.0), MAX_PRODUCTS, default=0)
        found = learn(features, correct, self.spend, bias)
        return DecidingCondition(
            tuple(tuple(map(self._test, rule.conditions)) for rule in found.rules)
        )

    def _test(self, condition: RelationCondition) -> PropertyTest:
        """Convert a condition on a code or flag."""
        if not condition.operator:
            return PropertyTest(condition.feature, True, bool(condition.value))
        value = self.kinds[condition.feature][condition.value]
        return PropertyTest(condition.feature, value, condition.operator == "==")
