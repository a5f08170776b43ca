"""Objects that have a row and a column each, and move one after another."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import NamedTuple

import numpy as np

from cwm_induction.continuous.samples import Array
from cwm_induction.relations.expressions import FUNCTIONS, Names, Places, evaluate
from cwm_induction.relations.model import (
    PartRows,
    PartsLayout,
    PartsModel,
    ProgramText,
    Steps,
    common_steps,
    steps_of,
)
from cwm_induction.relations.rules import (
    EffectRules,
    RuleEffect,
    RuleTerm,
    RuleVocabulary,
    Spend,
    definitions,
    fit_rules,
    mentions,
    plain_effects,
    plain_terms,
)

SINGLE_STEPS = 0.75
"""Share of the moves that lead to a neighbouring cell, if objects have rows and columns. Other
moves cross the edge of a ring or return to a start."""

SAME_STEPS = 0.9
"""Share of the moves of the actor that are the most common step of the action."""

EXPECTED_MOVES = 12.0
"""Moves that would be expected in a region of rest if objects moved there as elsewhere."""

FAR = 99
"""Row and column of the nearest object if there is none."""

WRONG = 0.02
"""A rule for several objects may have this share of wrong moves more than separate rules."""

DIRECTIONS = ("row - 1, column", "row + 1, column", "row, column - 1", "row, column + 1")


@dataclass(frozen=True)
class PlaceLayout(PartsLayout):
    """Components that are rows and columns of objects, and the size of the field.

    `steps` contains the moves of object `actor` by action.
    """

    pairs: tuple[tuple[int, int], ...]
    size: int
    height: int
    width: int
    actor: int
    steps: Steps

    @property
    def extras(self) -> list[int]:
        """Components that are neither rows nor columns."""
        used = {component for pair in self.pairs for component in pair}
        return [component for component in range(self.size) if component not in used]

    def places(self, observations: Array) -> Array:
        """Return the places of shape (rows, objects, 2)."""
        return observations[:, np.array(self.pairs)]


class Herd(NamedTuple):
    """Objects that move by the same rules, and the region where they never move, or ""."""

    objects: tuple[int, ...]
    rest: str

    def resting(self, places: Array) -> Array:
        """Return the mask of objects at rest, of shape (rows, objects)."""
        return in_region(places[:, list(self.objects)], self.rest)


class Mover(NamedTuple):
    """Rules for the moves of some objects in turn; each object sees the earlier moves.

    Terms may compare the nearest object that is not at rest of a `herd`.
    """

    own: Herd
    rules: EffectRules
    herd: Herd | None = None


@dataclass
class PlaceModel(PartsModel):
    """Objects that move in turn."""

    layout: PlaceLayout
    movers: list[Mover] = field(default_factory=list)

    summary = "Objects that move one after another"

    def moved(self, before: Array, action: Array) -> tuple[Array, Names]:
        """Return the observations after the moves, and the names that later rules may use."""
        layout = self.layout
        old = layout.places(before)
        now = old.copy()
        for mover in self.movers:
            for number in mover.own.objects:
                names = object_names(layout, now, action, number, before, mover.herd)
                now[:, number] = mover.rules.outcomes(names, len(now), _cell)
        after = before.copy()
        after[:, np.array(layout.pairs)] = now
        names = {"action": action}
        names |= {f"x{component}": before[:, component] for component in layout.extras}
        for prefix, places in (("old_", old), ("", now)):
            for number in range(len(layout.pairs)):
                row, column = places[:, number].T
                names[f"{prefix}row_{number}"], names[f"{prefix}column_{number}"] = row, column
            for name, herd in self.resting.items():
                names[prefix + name] = herd.resting(places).sum(axis=1)
        return after, names

    @property
    def resting(self) -> dict[str, Herd]:
        """Groups with a region of rest by the name of the number of resting objects."""
        herds = [mover.own for mover in self.movers if mover.own.rest]
        return {f"resting_{place}": herd for place, herd in enumerate(herds)}

    def quantity_terms(self, names: Names) -> list[RuleTerm]:
        """Return the terms of the rules of single quantities."""
        return self._end_terms()[1]

    def payment_terms(self, names: Names) -> tuple[list[RuleTerm], list[RuleTerm]]:
        """Return the terms of weighted sums, and the terms of conditions."""
        sums, terms = self._end_terms()
        new = [f"new_x{component}" for component in self.layout.extras]
        changes = [f"new_x{component} - x{component}" for component in self.layout.extras]
        sums += plain_terms("number", changes)
        terms += plain_terms("number", [*new, *changes], 1.0)
        levels = [term for term in terms if term.name.startswith(("steps_", "nearest_", "new_x"))]
        return [*sums, *(term for term in levels if " " not in term.name)], terms

    def _end_terms(self) -> tuple[list[RuleTerm], list[RuleTerm]]:
        """Return the terms that need no next value of a quantity."""
        actor, numbers = self.layout.actor, range(len(self.layout.pairs))
        changes = [f"{name} - old_{name}" for name in self.resting]
        terms, pairs = plain_terms("number", self.resting), list(combinations(numbers, 2))
        terms += [RuleTerm(f"steps_{i}_{j}", _steps(i, j), "number", 1.0) for i, j in pairs]
        for herd in (mover.own for mover in self.movers if len(mover.own.objects) > 1):
            for other in [i for i in numbers if i not in herd.objects]:
                near = [f"steps_{min(i, other)}_{max(i, other)}" for i in herd.objects]
                terms.append(RuleTerm(f"nearest_{other}", f"min({', '.join(near)})", "number"))
        moved = f"abs(row_{actor} - old_row_{actor}) + abs(column_{actor} - old_column_{actor})"
        terms += plain_terms("code", ["action"], 0.5) + plain_terms("number", [moved], 0.5)
        coordinates = [f"{axis}_{number}" for number in numbers for axis in ("row", "column")]
        terms += plain_terms("number", coordinates, 2.0)
        changes += [
            f"steps_{i}_{j} - ({_steps(i, j, 'old_')})" for i, j in pairs if actor in (i, j)
        ]
        terms += plain_terms("number", changes, 2.0)
        extras = [f"x{component}" for component in self.layout.extras]
        return plain_terms("number", changes), terms + plain_terms("number", extras, 1.0)

    def functions(self) -> dict[str, str]:
        """Return the functions that programs may call, by name."""
        sizes = {"height": self.layout.height, "width": self.layout.width}
        return {name: code.format(**sizes) for name, code in FUNCTIONS.items()}

    def program_text(self, end: str) -> ProgramText:
        """Write the program up to the moves; `end` is the text after these."""
        layout = self.layout
        moves = [line for mover in self.movers for line in self._mover_lines(mover)]
        shown = []
        for prefix, places in (("old_", "before"), ("", "places")):
            for name, herd in self.resting.items():
                if mentions(end, prefix + name):
                    inside = _region(herd.rest, f"{places}[i]")
                    shown.append(f"{prefix}{name} = sum({inside} for i in {herd.objects})")
            for number in range(len(layout.pairs)):
                names = f"{prefix}row_{number}", f"{prefix}column_{number}"
                if any(mentions(end, name) for name in names):
                    shown.append(f"{', '.join(names)} = {places}[{number}]")
        start = ["places = [[int(numbers[i]), int(numbers[j])] for i, j in self.PLACES]"]
        if mentions("\n".join(shown), "before"):
            start.append("before = [list(place) for place in places]")
        constants = [
            f"PLACES = {list(layout.pairs)}  # components with row and column of each object",
            f"STEPS = {layout.steps}  # rows and columns by action",
        ]
        finish = [
            "for (i, j), place in zip(self.PLACES, places):",
            "    numbers[i], numbers[j] = place",
        ]
        return ProgramText(constants, start, [*moves, *shown], finish)

    def _mover_lines(self, mover: Mover) -> list[str]:
        """Write the moves of one object, or a loop over several."""
        objects, herd = mover.own.objects, mover.herd
        index = "number" if len(objects) > 1 else str(objects[0])
        rules = mover.rules.lines(
            lambda text: None if text == "row, column" else f"places[{index}] = [{text}]"
        )
        if not rules:
            return []
        lines = [*definitions(mover.rules.terms, "\n".join(rules)), *rules]
        text = "\n".join(lines)
        start = [f"row, column = places[{index}]"]
        if mentions(text, "down"):
            start.append("down, right = self.STEPS.get(int(action), (0, 0))")
        for other in range(len(self.layout.pairs)):
            if mentions(text, f"row_{other}") or mentions(text, f"column_{other}"):
                start.append(f"row_{other}, column_{other} = places[{other}]")
        if herd and (mentions(text, "row_n") or mentions(text, "column_n")):
            outside = f" if not ({_region(herd.rest, 'places[i]')})" if herd.rest else ""
            start.append(f"others = [places[i] for i in {herd.objects}{outside}]")
            start.append("row_n, column_n = nearest(others, row, column)")
        lines = [*start, *lines]
        if len(objects) > 1:
            return [f"for number in {objects}:", *(f"    {line}" for line in lines)]
        return lines


def find_places(rows: PartRows) -> PlaceLayout | None:
    """Return the layout of places: pairs of components that change by single steps."""
    size = rows.before.shape[1]
    tops = np.concatenate([rows.before, rows.after]).max(axis=0) + 1
    change = rows.after - rows.before
    for first in (0, 1):
        pairs = []
        for start in range(first, size - 1, 2):
            pair = slice(start, start + 2)
            moves = change[change[:, pair].any(axis=1), pair]
            single = (np.abs(moves).max(axis=1) <= 1).mean() if len(moves) else 1.0
            several = len(np.unique(rows.before[:, pair], axis=0)) >= 8
            if tops[pair].min() >= 4 and several and single >= SINGLE_STEPS:
                pairs.append((start, start + 1))
        if len(pairs) < 2:
            continue
        height, width = (int(max(tops[pair[axis]] for pair in pairs)) for axis in (0, 1))
        for actor, places in enumerate(pairs):
            # the actor is the object that actions move
            steps, share = common_steps(change[:, places], rows.action)
            if len(set(steps.values())) > 1 and share > SAME_STEPS:
                return PlaceLayout(tuple(pairs), size, height, width, actor, steps)
    return None


def object_names(
    layout: PlaceLayout, now: Array, action: Array, number: int, before: Array, herd: Herd | None
) -> Names:
    """Return the variables that rules of one object may use."""
    row, column = now[:, number].T.copy()
    places = Places(now.copy(), layout.height, layout.width)
    names: Names = {"action": action, "row": row, "column": column, "places": places}
    for other in range(len(layout.pairs)):
        names[f"row_{other}"], names[f"column_{other}"] = places.values[:, other].T
    names |= {f"x{component}": before[:, component] for component in layout.extras}
    if number == layout.actor:
        names["down"], names["right"] = steps_of(layout.steps, action)
    if herd:
        others = places.values[:, list(herd.objects)]
        steps = np.abs(others - now[:, number, None]).sum(axis=2).astype(float)
        if herd.rest:
            steps[herd.resting(now)] = np.inf
        found = others[np.arange(len(now)), steps.argmin(axis=1)]
        found[np.isinf(steps).all(axis=1)] = FAR
        names["row_n"], names["column_n"] = found.T
    return names


def in_region(places: Array, region: str) -> Array:
    """Return the mask of the places in a region."""
    return evaluate(region, {"row": places[..., 0], "column": places[..., 1]})


def _region(region: str, place: str) -> str:
    """Write the condition that a place is in a region."""
    return re.sub(r"\brow\b", f"{place}[0]", re.sub(r"\bcolumn\b", f"{place}[1]", region))


def find_rest(layout: PlaceLayout, old: Array, new: Array) -> str:
    """Return the corner of the field that stops the objects, or "" if there is none.

    Args:
        layout: The field.
        old: Places of shape (moves, 2).
        new: Places after the moves.
    """
    moved = (old != new).any(axis=1)
    best, most = "", EXPECTED_MOVES
    rows, columns = (
        [f"{name} {sign} {n}" for n in range(size - 1) for sign in ("<=", ">=")]
        for name, size in (("row", layout.height), ("column", layout.width))
    )
    for row in rows:
        for column in columns:
            region = f"({row}) & ({column})"
            inside = in_region(old, region)
            if not inside.any() or inside.all() or moved[inside].any():
                continue
            expected = float(moved[~inside].mean() * inside.sum())
            if expected > most:
                best, most = region, expected
    return best


def fit_places(
    layout: PlaceLayout, rows: PartRows, spend: Spend, like: PlaceModel | None = None
) -> PlaceModel:
    """Learn the moves of the objects in order, the actor first, then rewards and ends.

    Args:
        layout: The components of the objects.
        rows: Transitions.
        spend: Takes multiplications.
        like: A model of fewer rows, whose groups of objects are taken.
    """
    model = PlaceModel(layout)
    order = [layout.actor, *(i for i in range(len(layout.pairs)) if i != layout.actor)]
    after, now = layout.places(rows.after), layout.places(rows.before).copy()
    for known in like.movers if like else ():
        model.movers.append(_fit_mover(model, rows, now, known.own.objects, spend)[0])
        now[:, known.own.objects] = after[:, known.own.objects]
    while order and not like:
        group: tuple[int, ...] = (order.pop(0),)
        mover, errors = _fit_mover(model, rows, now, group, spend)
        while order and layout.actor not in group:
            more, more_errors = _fit_mover(model, rows, now, (*group, order[0]), spend)
            if more_errors > (errors * len(group) + WRONG) / (len(group) + 1) + WRONG:
                break
            group = (*group, order.pop(0))
            mover, errors = more, more_errors
        model.movers.append(mover)
        now[:, group] = after[:, group]
    model.fit_quantities_and_payments(rows, spend)
    return model


def _fit_mover(
    model: PlaceModel, rows: PartRows, now: Array, group: tuple[int, ...], spend: Spend
) -> tuple[Mover, float]:
    """Learn the moves of a group of objects; return them and the share of wrong moves."""
    layout, state = model.layout, now.copy()
    after = layout.places(rows.after)
    herds = [mover.own for mover in model.movers if len(mover.own.objects) > 1]
    herd = herds[-1] if herds else None
    parts: list[Names] = []
    for number in group:
        parts.append(object_names(layout, state, rows.action, number, rows.before, herd))
        state[:, number] = after[:, number]
    names: Names = {
        name: np.concatenate([part[name] for part in parts])
        for name, value in parts[0].items()
        if isinstance(value, np.ndarray)
    }
    values = np.concatenate([part["places"].values for part in parts])
    names["places"] = Places(values, layout.height, layout.width)
    old, new = (np.concatenate([places[:, i] for i in group]) for places in (now, after))
    rest = find_rest(layout, old, new)
    vocabulary = _vocabulary(layout, group, herd)
    if rest:
        vocabulary.terms.append(RuleTerm("resting", rest, "flag", -1.0))
    rules = fit_rules(vocabulary, new, names, spend, result=_cell)
    right = (rules.outcomes(names, len(new), _cell) == new).all(axis=1)
    return Mover(Herd(group, rest), rules, herd), 1 - float(right.mean())


def _cell(text: str, names: Names, count: int) -> Array:
    """Return the cells, of shape (rows, 2), that an effect moves an object to."""
    return evaluate(text, names).T


def _vocabulary(layout: PlaceLayout, group: Sequence[int], herd: Herd | None) -> RuleVocabulary:
    """Return the terms and effects for the moves of a group."""
    others = [i for i in range(len(layout.pairs)) if i not in group]
    effects, terms = [RuleEffect("row, column")], list[RuleTerm]()
    if layout.actor in group:
        effects.append(RuleEffect("row + down, column + right"))
        for number in others:
            meets = f"(row + down == row_{number}) & (column + right == column_{number})"
            terms.append(RuleTerm(f"meets_{number}", meets, "flag", 0.5))
    else:
        for name in [*map(str, others), *["n"] * bool(herd)]:
            price = 0.0 if name in ("n", str(layout.actor)) else 1.0
            terms += _distance_terms(name, price)
            effects += _relative_moves(name, price)
    effects += plain_effects(DIRECTIONS, 2.0)
    for text, price in effects[1:]:
        if not text.startswith("row_"):
            terms += plain_terms("flag", [f"free(places, {text})"], price)
    for sign in "+-":
        around = f"(row {sign} 1) % {layout.height}", f"(column {sign} 1) % {layout.width}"
        effects += plain_effects([f"{around[0]}, column", f"row, {around[1]}"], 3.0)
    terms += plain_terms("code", ["action"]) + plain_terms("number", ["row", "column"], 1.5)
    totals = {"row + column": 3.0}
    if layout.actor in others:
        totals[f"row_{layout.actor} + column_{layout.actor}"] = 2.0
    for total, price in totals.items():
        terms += plain_terms("code", [f"({total}) % {n}" for n in (2, 3, 4)], price)
    extras = [f"x{component}" for component in layout.extras]
    return RuleVocabulary(terms + plain_terms("number", extras, 1.0), effects)


def _distance_terms(name: str, price: float) -> list[RuleTerm]:
    """Return terms of the distance to an object, along rows and columns."""
    down, right = f"down_{name}", f"right_{name}"
    return [
        RuleTerm(down, f"row_{name} - row", "number", price + 1),
        RuleTerm(right, f"column_{name} - column", "number", price + 1),
        RuleTerm(f"steps_{name}", f"abs({down}) + abs({right})", "number", price),
        *plain_terms("number", [f"abs({down}) - abs({right})"], price),
        *plain_terms("number", [f"max(abs({down}), abs({right}))"], price + 1),
    ]


def _relative_moves(name: str, price: float) -> list[RuleEffect]:
    """Return moves toward an object, away from it and to its place."""
    down, right = f"down_{name}", f"right_{name}"
    moves = [
        move
        for word in ("toward", "away")
        for move in (f"row + {word}({down}), column", f"row, column + {word}({right})")
    ]
    place = RuleEffect(f"row_{name}, column_{name}", price + 1)
    return [*plain_effects(moves, price), place]


def _steps(one: int, other: int, prefix: str = "") -> str:
    """Write the steps between two objects, along rows and columns."""
    down = f"{prefix}row_{one} - {prefix}row_{other}"
    right = f"{prefix}column_{one} - {prefix}column_{other}"
    return f"abs({down}) + abs({right})"
