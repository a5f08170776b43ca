"""Objects that have a row and a column each, and move one after another."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from cwm_induction.continuous.samples import Array
from cwm_induction.decision_list import (
    Bias,
    RelationCondition,
    RelationFeature,
    RelationList,
    learn,
)
from cwm_induction.relations.boards import evaluate
from cwm_induction.relations.layout import BoardRows
from cwm_induction.relations.payments import Payments, fit_payments
from cwm_induction.relations.quantities import RelationQuantity, fit_quantity
from cwm_induction.relations.stages import (
    BoardTerm,
    CellEffect,
    Names,
    Spend,
    define,
    useful_effects,
)

SINGLE_STEPS = 0.75
"""Share of the moves that lead to a neighbouring cell, if objects have rows and columns. Other
moves cross the edge of a ring or return to a start."""

EXPECTED_MOVES = 12.0
"""Moves that would be expected in a region of rest if objects moved there as elsewhere."""

FAR = 99
"""Row and column of the nearest object if there is none."""

WRONG = 0.02
"""A rule for several objects may have this share of wrong moves more than separate rules."""

FUNCTIONS = {
    "free": '''def free(places, row, column):
    """Return whether a cell is inside the field and no object is there."""
    return 0 <= row < {height} and 0 <= column < {width} and [row, column] not in places
''',
    "inside": '''def inside(row, column):
    """Return whether a cell is inside the field."""
    return 0 <= row < {height} and 0 <= column < {width}
''',
    "toward": '''def toward(distance):
    """Return the step that makes a distance smaller."""
    return 1 if distance > 0 else -1
''',
    "away": '''def away(distance):
    """Return the step that makes a distance larger."""
    return 1 if distance < 0 else -1
''',
    "sign": '''def sign(number):
    """Return the sign of a number."""
    return (number > 0) - (number < 0)
''',
    "nearest": '''def nearest(places, row, column):
    """Return the place with the fewest steps from a cell, the first of equals."""
    steps = [abs(place[0] - row) + abs(place[1] - column) for place in places]
    return places[steps.index(min(steps))] if steps else (99, 99)
''',
}
"""Functions that programs of places call."""


@dataclass(frozen=True)
class PlaceLayout:
    """Components that are rows and columns of objects, and the size of the field.

    `steps` lists action, rows and columns of the moves of object `actor`.
    """

    pairs: tuple[tuple[int, int], ...]
    size: int
    height: int
    width: int
    actor: int
    steps: tuple[tuple[int, int, int], ...]

    @property
    def extras(self) -> list[int]:
        """Components that are neither rows nor columns."""
        used = {component for pair in self.pairs for component in pair}
        return [component for component in range(self.size) if component not in used]

    def places(self, observations: Array) -> Array:
        """Return the places of shape (rows, objects, 2)."""
        return observations[:, np.array(self.pairs)]


class Places:
    """Current places of objects, read with one entry per sample."""

    def __init__(self, values: Array, rows: Array, height: int, width: int) -> None:
        self.values, self.rows, self.height, self.width = values, rows, height, width

    def inside(self, row: Array, column: Array) -> Array:
        """Return the mask of samples whose cell is inside the field."""
        mask: Array = (row >= 0) & (row < self.height) & (column >= 0) & (column < self.width)
        return mask

    def free(self, row: Array, column: Array) -> Array:
        """Return the mask of samples whose cell is inside and empty."""
        now = self.values[self.rows]
        taken = ((now[..., 0] == row[:, None]) & (now[..., 1] == column[:, None])).any(axis=1)
        return np.asarray(self.inside(row, column) & ~taken)


class Mover(NamedTuple):
    """Rules for the moves of some objects in turn; each object sees the earlier moves.

    The objects never move in the region `rest`. Terms may compare the nearest object of `herd`
    outside the region `herd_rest`.
    """

    objects: tuple[int, ...]
    terms: tuple[BoardTerm, ...]
    effects: tuple[CellEffect, ...]
    rules: RelationList
    rest: tuple[RelationCondition, ...] = ()
    herd: tuple[int, ...] = ()
    herd_rest: tuple[RelationCondition, ...] = ()


@dataclass
class PlaceModel:
    """Objects that move in turn, then rewards and ends."""

    layout: PlaceLayout
    movers: list[Mover] = field(default_factory=list)
    quantities: list[RelationQuantity] = field(default_factory=list)
    payments: Payments | None = None

    def predict(self, before: Array, action: Array) -> tuple[Array, Names]:
        """Return the next observations, and the names that payments may use."""
        layout = self.layout
        now = layout.places(before).copy()
        for mover in self.movers:
            for number in mover.objects:
                names = object_names(layout, now, action, number, before)
                add_nearest(names, now, mover.herd, mover.herd_rest)
                define(
                    [t for t in mover.terms if t.name in mover.rules.features or not _plain(t)],
                    names,
                )
                which = mover.rules.effects(names, len(now))
                targets = [_destination(effect, names) for effect in mover.effects]
                now[:, number] = np.stack(targets, axis=1)[np.arange(len(now)), which]
        after = before.copy()
        after[:, np.array(layout.pairs)] = now
        names = end_names(self, before, action, now)
        for quantity in self.quantities:
            value = quantity.values(names, len(now))
            after[:, quantity.component] = names[f"new_x{quantity.component}"] = value
        return after, names


def _plain(term: BoardTerm) -> bool:
    return term.name == term.text


def _destination(effect: CellEffect, names: Names) -> Array:
    row, column = effect.text.split(", ", 1) if effect.text.count(", ") == 1 else ("row", "column")
    count = len(names["row"])
    return np.stack(
        [np.broadcast_to(evaluate(text, names), count) for text in (row, column)], axis=1
    )


def find_places(rows: BoardRows) -> PlaceLayout | None:
    """Return the layout of places: pairs of components that change by single steps."""
    before, after, size = rows.before, rows.after, rows.before.shape[1]
    tops = np.concatenate([before, after]).max(axis=0) + 1
    change = after - before
    for first in (0, 1):
        pairs = []
        for start in range(first, size - 1, 2):
            part, now = change[:, start : start + 2], before[:, start : start + 2]
            moved = part.any(axis=1)
            small = np.abs(part[moved]).max(axis=1) <= 1
            wide = min(tops[start], tops[start + 1]) >= 4 and len(np.unique(now, axis=0)) >= 8
            if wide and (not moved.any() or small.mean() >= SINGLE_STEPS):
                pairs.append((start, start + 1))
        if len(pairs) < 2:
            continue
        height, width = (int(max(tops[pair[axis]] for pair in pairs)) for axis in (0, 1))
        actor = _actor(change, rows.action, pairs)
        if actor is not None:
            return PlaceLayout(tuple(pairs), size, height, width, *actor)
    return None


def _actor(
    change: Array, action: Array, pairs: Sequence[tuple[int, int]]
) -> tuple[int, tuple[tuple[int, int, int], ...]] | None:
    """Return the object that actions move, and its steps."""
    for number, pair in enumerate(pairs):
        moved = change[:, list(pair)]
        steps, right, total = [], 0, 0
        for value in np.unique(action).tolist():
            own = moved[(action == value) & moved.any(axis=1)]
            if len(own):
                (step, count), *_ = Counter(map(tuple, own.tolist())).most_common(1)
                steps.append((value, int(step[0]), int(step[1])))
                right, total = right + count, total + len(own)
        if len({step[1:] for step in steps}) > 1 and right > 0.9 * total:
            return number, tuple(steps)
    return None


def object_names(
    layout: PlaceLayout, now: Array, action: Array, number: int, before: Array
) -> Names:
    """Return the variables that rules of one object may use."""
    count = len(now)
    names: Names = {"action": action, "row": now[:, number, 0], "column": now[:, number, 1]}
    places = Places(now, np.arange(count), layout.height, layout.width)
    names |= {"places": places, "free": Places.free, "inside": places.inside}
    names |= {"toward": _toward, "away": lambda d: -_toward_zero(d), "sign": np.sign}
    for other in range(len(layout.pairs)):
        names[f"row_{other}"], names[f"column_{other}"] = now[:, other].T
    names |= {f"x{component}": before[:, component] for component in layout.extras}
    if number == layout.actor:
        table = np.zeros((int(action.max()) + 1, 2), np.int64)
        for value, down, right in layout.steps:
            if value < len(table):
                table[value] = down, right
        names["down"], names["right"] = table[action].T
    return names


def _toward(distance: Array) -> Array:
    return np.where(distance > 0, 1, -1)


def _toward_zero(distance: Array) -> Array:
    return np.where(distance < 0, -1, 1)


def add_nearest(
    names: Names, now: Array, herd: tuple[int, ...], rest: tuple[RelationCondition, ...]
) -> None:
    """Add the place of the nearest object of a herd to the names."""
    if not herd:
        return
    others = now[:, list(herd)]
    steps = np.abs(others[..., 0] - names["row"][:, None])
    steps = steps + np.abs(others[..., 1] - names["column"][:, None])
    if rest:
        steps = np.where(in_region(others, rest), 10_000, steps)
    chosen = steps.argmin(axis=1)
    found = others[np.arange(len(now)), chosen]
    found = np.where((steps.min(axis=1) < 10_000)[:, None], found, FAR)
    names["row_n"], names["column_n"] = found.T


def in_region(places: Array, rest: tuple[RelationCondition, ...]) -> Array:
    """Return the mask of the places that meet all conditions of a region."""
    mask = np.ones(places.shape[:-1], bool)
    for condition in rest:
        mask &= condition.holds({"row": places[..., 0], "column": places[..., 1]})
    return mask


def find_rest(layout: PlaceLayout, old: Array, new: Array) -> tuple[RelationCondition, ...]:
    """Return the corner of the field that stops the objects, if there is one.

    Args:
        layout: The field.
        old: Places of shape (moves, 2).
        new: Places after the moves.
    """
    moved = (old != new).any(axis=1)
    best: tuple[RelationCondition, ...] = ()
    most = EXPECTED_MOVES
    rows = [
        RelationCondition("row", sign, n) for n in range(layout.height - 1) for sign in ("<=", ">=")
    ]
    for row in rows:
        for sign in ("<=", ">="):
            for number in range(layout.width - 1):
                region = (row, RelationCondition("column", sign, number))
                inside = in_region(old, region)
                if not inside.any() or inside.all() or moved[inside].any():
                    continue
                expected = float(moved[~inside].mean() * inside.sum())
                if expected > most:
                    best, most = region, expected
    return best


def fit_places(
    layout: PlaceLayout, rows: BoardRows, spend: Spend, like: PlaceModel | None = None
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
    after = layout.places(rows.after)
    now = layout.places(rows.before).copy()
    for known_mover in like.movers if like else ():
        group = list(known_mover.objects)
        model.movers.append(_fit_mover(model, rows, now, after, group, spend)[0])
        now[:, group] = after[:, group]
    while order and not like:
        group = [order.pop(0)]
        mover, errors = _fit_mover(model, rows, now, after, group, spend)
        if group[0] != layout.actor:
            while order:
                more, more_errors = _fit_mover(model, rows, now, after, [*group, order[0]], spend)
                known = (errors * len(group) + WRONG) / (len(group) + 1) + WRONG
                if more_errors > known:
                    break
                group.append(order.pop(0))
                mover, errors = more, more_errors
        model.movers.append(mover)
        now[:, group] = after[:, group]
    _, names = model.predict(rows.before, rows.action)
    _, terms = _payment_terms(model)
    for component in layout.extras:
        target = rows.after[:, component]
        model.quantities.append(fit_quantity(component, target, names, terms, (), spend))
    _, names = model.predict(rows.before, rows.action)
    sums, conditions = _payment_terms(model)
    model.payments = fit_payments(sums, conditions, names, rows.rewards, rows.ends, spend)
    return model


def _fit_mover(
    model: PlaceModel, rows: BoardRows, now: Array, after: Array, group: list[int], spend: Spend
) -> tuple[Mover, float]:
    """Learn the moves of a group of objects; return them and the share of wrong moves."""
    layout = model.layout
    earlier = [mover for mover in model.movers if layout.actor not in mover.objects]
    herds = [mover for mover in earlier if len(mover.objects) > 1]
    herd, herd_rest = (herds[-1].objects, herds[-1].rest) if herds else ((), ())
    parts: list[Names] = []
    state = now.copy()
    for number in group:
        names = object_names(layout, state.copy(), rows.action, number, rows.before)
        add_nearest(names, state, herd, herd_rest)
        parts.append(names)
        state[:, number] = after[:, number]
    others = [i for i in range(len(layout.pairs)) if i not in group]
    terms, effects = _vocabulary(layout, group, others, herd)
    old, new = (part[:, group].swapaxes(0, 1).reshape(-1, 2) for part in (now, after))
    rest = find_rest(layout, old, new)
    if rest:
        region = " & ".join(f"({condition.text})" for condition in rest)
        terms.append(BoardTerm("resting", region, "flag", -1.0))
    columns: list[list[Array]] = [[] for _ in terms]
    correct = []
    for number, names in zip(group, parts, strict=True):
        define(terms, names)
        for column, term in zip(columns, terms, strict=True):
            column.append(names[term.name])
        target = after[:, number]
        correct.append(
            np.stack([(_destination(e, names) == target).all(axis=1) for e in effects], axis=1)
        )
    features = [
        RelationFeature(term.name, term.kind, np.concatenate(column), term.price)
        for term, column in zip(terms, columns, strict=True)
    ]
    table = np.concatenate(correct)
    useful = useful_effects(table, 12)
    bias = Bias(effect_bits=[effects[index].price for index in useful])
    rules = learn(features, table[:, useful], spend, bias)
    values = {feature.name: feature.values for feature in features}
    chosen = rules.effects(values, len(table))
    wrong = 1 - float(table[:, useful][np.arange(len(table)), chosen].mean())
    used = tuple(effects[index] for index in useful)
    mover = Mover(tuple(group), tuple(terms), used, rules, rest, herd, herd_rest)
    return mover, wrong


def _vocabulary(
    layout: PlaceLayout, group: list[int], others: list[int], herd: tuple[int, ...]
) -> tuple[list[BoardTerm], list[CellEffect]]:
    """Return the terms and effects for the moves of a group."""
    effects = [CellEffect("row, column")]
    terms: list[BoardTerm] = []
    if group == [layout.actor]:
        effects.append(CellEffect("row + down, column + right"))
        for number in others:
            meets = f"(row + down == row_{number}) & (column + right == column_{number})"
            terms.append(BoardTerm(f"meets_{number}", meets, "flag", 0.5))
    else:
        for name in [str(other) for other in others] + ["n"] * bool(herd):
            price = 0.0 if name in ("n", str(layout.actor)) else 1.0
            terms += _distance_terms(name, price)
            effects += _relative_moves(name, price)
    for down, right in ((-1, 0), (1, 0), (0, -1), (0, 1)):
        effects.append(CellEffect(f"{_plus('row', down)}, {_plus('column', right)}", 2.0))
    for effect in effects[1:]:
        if not effect.text.startswith("row_"):
            free, within = f"free(places, {effect.text})", f"inside({effect.text})"
            terms.append(BoardTerm(free, free, "flag", effect.price))
            terms.append(BoardTerm(within, within, "flag", effect.price + 1))
    height, width = layout.height, layout.width
    effects += [
        CellEffect(text, 3.0)
        for sign in "+-"
        for text in (f"(row {sign} 1) % {height}, column", f"row, (column {sign} 1) % {width}")
    ]
    terms.append(BoardTerm("action", "action", "code", 0.0))
    terms += [BoardTerm("row", "row", "number", 1.5), BoardTerm("column", "column", "number", 1.5)]
    prices = {f"row_{n} + column_{n}": 2.0 if n == layout.actor else 6.0 for n in others}
    for total, price in {"row + column": 3.0, **prices}.items():
        terms += [
            BoardTerm(f"({total}) % {n}", f"({total}) % {n}", "code", price) for n in (2, 3, 4)
        ]
    terms += [
        BoardTerm(f"x{component}", f"x{component}", "number", 1.0) for component in layout.extras
    ]
    return terms, effects


def _distance_terms(name: str, price: float) -> list[BoardTerm]:
    """Return terms of the distance to an object, along rows and columns."""
    down, right = f"down_{name}", f"right_{name}"
    larger, most = f"abs({down}) - abs({right})", f"max(abs({down}), abs({right}))"
    return [
        BoardTerm(down, f"row_{name} - row", "number", price + 1),
        BoardTerm(right, f"column_{name} - column", "number", price + 1),
        BoardTerm(f"steps_{name}", f"abs({down}) + abs({right})", "number", price),
        BoardTerm(larger, larger, "number", price),
        BoardTerm(most, most, "number", price + 1),
    ]


def _relative_moves(name: str, price: float) -> list[CellEffect]:
    """Return moves toward an object, away from it and to its place."""
    down, right = f"down_{name}", f"right_{name}"
    moves = [
        move
        for word in ("toward", "away")
        for move in (f"row + {word}({down}), column", f"row, column + {word}({right})")
    ]
    moves.append(f"row + sign({down}), column + sign({right})")
    moves.append(f"row - sign({down}), column - sign({right})")
    return [
        *(CellEffect(move, price) for move in moves),
        CellEffect(f"row_{name}, column_{name}", price + 1),
    ]


def _plus(name: str, number: int) -> str:
    return f"{name} {'+' if number > 0 else '-'} {abs(number)}" if number else name


def end_names(model: PlaceModel, before: Array, action: Array, now: Array) -> Names:
    """Return the variables that rewards and ends may use."""
    layout = model.layout
    old = layout.places(before)
    names: Names = {"action": action}
    for number in range(len(layout.pairs)):
        names[f"old_row_{number}"], names[f"old_column_{number}"] = old[:, number].T
        names[f"row_{number}"], names[f"column_{number}"] = now[:, number].T
    names |= {f"x{component}": before[:, component] for component in layout.extras}
    for name, objects, rest in resting_groups(model):
        for prefix, places in (("old_", old), ("", now)):
            names[f"{prefix}{name}"] = in_region(places[:, list(objects)], rest).sum(axis=1)
    return names


def resting_groups(
    model: PlaceModel,
) -> list[tuple[str, tuple[int, ...], tuple[RelationCondition, ...]]]:
    """Return name, objects and resting place of the groups that have one."""
    found = [(mover.objects, mover.rest) for mover in model.movers if mover.rest]
    return [(f"resting_{place}", *pair) for place, pair in enumerate(found)]


def _payment_terms(model: PlaceModel) -> tuple[list[BoardTerm], list[BoardTerm]]:
    """Return what weighted sums and conditions of rewards may use."""
    layout, count = model.layout, len(model.layout.pairs)
    groups = [name for name, _, _ in resting_groups(model)]
    sums = [BoardTerm(f"{name} - old_{name}", f"{name} - old_{name}", "number") for name in groups]
    terms = [BoardTerm(name, name, "number", 0.0) for name in groups]
    pairs = [(one, other) for one in range(count) for other in range(one + 1, count)]
    terms += [
        BoardTerm(f"steps_{one}_{other}", _steps(one, other), "number", 1.0) for one, other in pairs
    ]
    actor = layout.actor
    for mover in model.movers:
        for other in range(count) if len(mover.objects) > 1 else ():
            if other not in mover.objects:
                near = [f"steps_{min(i, other)}_{max(i, other)}" for i in mover.objects]
                terms.append(
                    BoardTerm(f"nearest_{other}", f"min({', '.join(near)})", "number", 0.0)
                )
    moved = f"abs(row_{actor} - old_row_{actor}) + abs(column_{actor} - old_column_{actor})"
    terms += [BoardTerm("action", "action", "code", 0.5), BoardTerm(moved, moved, "number", 0.5)]
    for number in range(count):
        terms += [
            BoardTerm(f"{axis}_{number}", f"{axis}_{number}", "number", 2.0)
            for axis in ("row", "column")
        ]
    for one, other in pairs:
        if actor in (one, other):
            change = f"steps_{one}_{other} - ({_steps(one, other, 'old_')})"
            sums.append(BoardTerm(change, change, "number"))
    terms += [term._replace(price=2.0) for term in sums]
    terms += [
        BoardTerm(f"x{component}", f"x{component}", "number", 1.0) for component in layout.extras
    ]
    known = [quantity.component for quantity in model.quantities]
    terms += [
        BoardTerm(f"new_x{component}", f"new_x{component}", "number", 1.0) for component in known
    ]
    changes = [f"new_x{component} - x{component}" for component in known]
    sums += [BoardTerm(text, text, "number") for text in changes]
    terms += [BoardTerm(text, text, "number", 1.0) for text in changes]
    levels = [term for term in terms if term.name.startswith(("steps_", "nearest_", "new_x"))]
    return [*sums, *(term for term in levels if " " not in term.name)], terms


def _steps(one: int, other: int, prefix: str = "") -> str:
    """Write the steps between two objects, along rows and columns."""
    down = f"{prefix}row_{one} - {prefix}row_{other}"
    right = f"{prefix}column_{one} - {prefix}column_{other}"
    return f"abs({down}) + abs({right})"
