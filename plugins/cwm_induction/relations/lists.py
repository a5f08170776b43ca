"""Lists of items, such as queues and stacks: items leave and join at the ends."""

import re
import textwrap
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np

from cwm_induction.continuous.samples import Array
from cwm_induction.decision_list import Bias, RelationFeature, RelationList, learn
from cwm_induction.discrete.expressions import action_lines
from cwm_induction.discrete.transitions import IntegerEncoding
from cwm_induction.relations.boards import FUNCTIONS, evaluate
from cwm_induction.relations.layout import MAX_CODES, BoardRows
from cwm_induction.relations.payments import Payments, fit_payments
from cwm_induction.relations.program import HEAD
from cwm_induction.relations.quantities import RelationQuantity, fit_quantity
from cwm_induction.relations.stages import (
    BoardTerm,
    CellEffect,
    Names,
    Spend,
    branch_lines,
    define,
    mentions,
    needed_terms,
    useful_effects,
)

LEAST_CHANGES = 20
"""Changes of the length of a list at least; fewer do not show how items leave and join."""


@dataclass(frozen=True)
class ListLayout:
    """First component and places of each list; other components are single quantities."""

    lists: tuple[tuple[int, int], ...]
    size: int

    @property
    def extras(self) -> list[int]:
        """Components that belong to no list."""
        used = {c for first, places in self.lists for c in range(first, first + places)}
        return [component for component in range(self.size) if component not in used]


@dataclass(frozen=True)
class ListRules:
    """Rules for one list; effects are texts of the new list."""

    effects: tuple[CellEffect, ...]
    rules: RelationList


@dataclass
class ListModel:
    """Rules for lists and other quantities, all computed from the state before the step."""

    layout: ListLayout
    terms: tuple[BoardTerm, ...]
    lists: list[ListRules] = field(default_factory=list)
    quantities: list[RelationQuantity] = field(default_factory=list)
    payments: Payments | None = None

    def predict(self, before: Array, action: Array) -> tuple[Array, Names]:
        """Return the next observations, and the names that payments may use."""
        names = list_names(self.layout, before, action)
        define(self.terms, names)
        after, count = before.copy(), len(before)
        for number, ((first, places), rules) in enumerate(
            zip(self.layout.lists, self.lists, strict=True)
        ):
            which = rules.rules.effects(names, count)
            results = [
                _result(e.text, before[:, first : first + places], names) for e in rules.effects
            ]
            after[:, first : first + places] = np.stack(results)[which, np.arange(count)]
            names[f"new_length_{number}"] = (after[:, first : first + places] > 0).sum(axis=1)
        for quantity in self.quantities:
            value = quantity.values(names, count)
            after[:, quantity.component] = names[f"new_x{quantity.component}"] = value
        return after, names


def find_lists(rows: BoardRows) -> ListLayout | None:
    """Return the layout of lists: runs of components whose empty places follow the items."""
    seen = np.concatenate([rows.before, rows.after])
    if len(np.unique(seen)) > MAX_CODES or seen.min() < 0:
        return None
    joined = ~((seen[:, :-1] == 0) & (seen[:, 1:] != 0)).any(axis=0)
    tops = seen.max(axis=0)
    joined &= tops[1:] <= tops[:-1]
    lists, first = [], 0
    for place in range(1, seen.shape[1] + 1):
        if place == seen.shape[1] or not joined[place - 1]:
            part = slice(first, place)
            length = (rows.after[:, part] > 0).sum(axis=1) - (rows.before[:, part] > 0).sum(axis=1)
            if place - first > 1 and (length != 0).sum() >= LEAST_CHANGES:
                lists.append((first, place - first))
            first = place
    return ListLayout(tuple(lists), seen.shape[1]) if len(lists) > 1 else None


def list_names(layout: ListLayout, before: Array, action: Array) -> Names:
    """Return length, first and last item of each list, and the other variables."""
    names: Names = {"action": action}
    names |= {f"x{component}": before[:, component] for component in layout.extras}
    for number, (first, places) in enumerate(layout.lists):
        items = before[:, first : first + places]
        length = (items > 0).sum(axis=1)
        names[f"length_{number}"], names[f"first_{number}"] = length, items[:, 0]
        last = items[np.arange(len(items)), np.maximum(length - 1, 0)]
        names[f"last_{number}"] = last
    return names


def fit_lists(layout: ListLayout, rows: BoardRows, spend: Spend) -> ListModel:
    """Learn rules for each list and quantity, then rewards and ends."""
    names = list_names(layout, rows.before, rows.action)
    indices = [c for c in layout.extras if 0 < rows.before[:, c].max() < len(layout.lists)]
    terms = _terms(layout, indices)
    define(terms, names)
    model, basic = ListModel(layout, tuple(terms)), list(terms)
    features = [RelationFeature(t.name, t.kind, names[t.name], t.price) for t in terms]
    for number, (first, places) in enumerate(layout.lists):
        part = slice(first, first + places)
        effects = _effects(layout, number)
        results = [_result(effect.text, rows.before[:, part], names) for effect in effects]
        correct = np.stack([(r == rows.after[:, part]).all(axis=1) for r in results], axis=1)
        useful = useful_effects(correct)
        bias = Bias(effect_bits=[effects[index].price for index in useful])
        rules = learn(features, correct[:, useful], spend, bias)
        model.lists.append(ListRules(tuple(effects[index] for index in useful), rules))
    copies = [CellEffect(end, 0.5) for end in _ends(layout)]
    copies += [
        CellEffect(term.name) for term in terms if re.match("chosen_(first|last)", term.name)
    ]
    for component in layout.extras:
        copies += [CellEffect(f"x{other}", 1.0) for other in layout.extras if other != component]
        after = rows.after[:, component]
        model.quantities.append(fit_quantity(component, after, names, terms, copies, spend))
        # later quantities may follow the change of this one
        names[f"new_x{component}"] = after
        same = f"(new_x{component} == x{component})"
        terms += [
            BoardTerm(same, same, "flag"),
            BoardTerm(f"new_x{component}", f"new_x{component}", "number"),
        ]
    _, known = model.predict(rows.before, rows.action)
    sums, conditions = _payment_terms(layout, basic)
    model.payments = fit_payments(sums, conditions, known, rows.rewards, rows.ends, spend)
    return model


def _ends(layout: ListLayout) -> list[str]:
    numbers = range(len(layout.lists))
    return [f"{end}_{number}" for number in numbers for end in ("first", "last")]


def _terms(layout: ListLayout, indices: list[int]) -> list[BoardTerm]:
    """Return what conditions may compare; `indices` are quantities that may number a list."""
    lengths = [f"length_{number}" for number in range(len(layout.lists))]
    terms = [BoardTerm("action", "action", "code", -1.0)]
    terms += [BoardTerm(name, name, "number") for name in lengths]
    terms += [BoardTerm(name, name, "code") for name in _ends(layout)]
    extras = [f"x{component}" for component in layout.extras]
    terms += [BoardTerm(name, name, "number") for name in extras]
    numbers = range(len(layout.lists))
    chosen = []
    for component in indices:
        for part in ("first", "last", "length"):
            name = f"chosen_{part}_{component}"
            values = ", ".join(f"{part}_{number}" for number in numbers)
            kind = "number" if part == "length" else "code"
            terms.append(BoardTerm(name, f"pick(x{component}, {values})", kind))
            chosen.append(name)
    items = [name for name in chosen if "length" not in name]
    for one, other in combinations([*_ends(layout), *extras, *items], 2):
        text = f"({one} == {other})"
        terms.append(BoardTerm(text, text, "flag", 1.0))
    for one, other in combinations([*_ends(layout)], 2):
        text = f"({one} < {other})"
        terms.append(BoardTerm(text, text, "flag", 2.0))
    for one, other in combinations(lengths, 2):
        text = f"{one} - {other}"
        terms.append(BoardTerm(text, text, "number", 2.0))
    return terms


def _effects(layout: ListLayout, number: int) -> list[CellEffect]:
    """Return the new values that a list may get, as texts of programs."""
    own = f"list_{number}"
    effects = [
        CellEffect(own),
        CellEffect(f"{own}[1:]"),
        CellEffect(f"{own}[:-1]"),
        CellEffect("[]", 1.0),
    ]
    items = [name for name in _ends(layout) if not name.endswith(f"_{number}")]
    items += [f"x{component}" for component in layout.extras]
    for item in items:
        effects += [CellEffect(f"{own} + [{item}]"), CellEffect(f"[{item}] + {own}", 0.5)]
    return effects


def _result(text: str, items: Array, names: Names) -> Array:
    """Return the lists after an effect, filled up with empty places."""
    count, places = items.shape
    length = (items > 0).sum(axis=1)
    after = items.copy()
    if text.endswith("[1:]"):
        after = np.concatenate([items[:, 1:], np.zeros((count, 1), np.int64)], axis=1)
    elif text.endswith("[:-1]"):
        after[np.arange(count), np.maximum(length - 1, 0)] = 0
    elif text == "[]":
        after[:] = 0
    elif "+" in text:
        front = text.startswith("[")
        value = evaluate(text[text.index("[") + 1 : text.index("]")], names)
        if front:
            return np.concatenate([value[:, None], items[:, :-1]], axis=1)
        # an item does not join a full list
        room = (length < places) & (value > 0)
        after[np.flatnonzero(room), length[room]] = value[room]
    return after


def _payment_terms(
    layout: ListLayout, terms: list[BoardTerm]
) -> tuple[list[BoardTerm], list[BoardTerm]]:
    numbers = range(len(layout.lists))
    changes = [f"new_length_{number} - length_{number}" for number in numbers]
    changes += [f"new_x{component} - x{component}" for component in layout.extras]
    before = " + ".join(f"length_{number}" for number in numbers)
    changes += [before, *(f"length_{number}" for number in numbers)]
    sums = [BoardTerm(text, text, "number") for text in changes]
    moved = " + ".join(f"abs(new_length_{number} - length_{number})" for number in numbers)
    conditions = [*terms, BoardTerm("moved", moved, "number", -1.0)]
    lengths = [f"new_length_{number}" for number in numbers]
    total = " + ".join(lengths)
    conditions.append(BoardTerm("items", total, "number", -1.0))
    conditions += [BoardTerm(name, name, "number", 1.0) for name in lengths]
    conditions += [term._replace(price=0.5) for term in sums]
    for component in layout.extras:
        conditions.append(BoardTerm(f"new_x{component}", f"new_x{component}", "number", 0.5))
        same = f"(new_x{component} == x{component})"
        conditions.append(BoardTerm(same, same, "flag", 0.5))
    return sums, conditions


def write_lists(model: ListModel, encoding: IntegerEncoding, summary: str) -> str:
    """Write the program of a model of lists."""
    layout, payments = model.layout, model.payments
    assert payments is not None
    moves: list[str] = []
    for number, rules in enumerate(model.lists):
        moves += branch_lines(rules.rules, rules.effects, f"new_list_{number} = {{}}".format)
    for quantity in model.quantities:
        moves += quantity.lines
    end = payments.lines
    chosen = needed_terms(model.terms, "\n".join([*moves, *end]))
    known = {term.name for term in chosen}
    terms = [t for t in needed_terms(payments.terms, "\n".join(end)) if t.name not in known]
    end = [*(f"{term.name} = {term.text}" for term in terms), *end]
    picked = [f"{term.name} = {term.text}" for term in chosen]
    text = "\n".join([*picked, *moves, *end])
    start, finish = ["numbers = self.state.ravel()"], ["numbers = numbers.copy()"]
    start += [f"x{component} = int(numbers[{component}])" for component in layout.extras]
    middle = []
    for number, (first, places) in enumerate(layout.lists):
        part, own, new = (
            f"numbers[{first}:{first + places}]",
            f"list_{number}",
            f"new_list_{number}",
        )
        start.append(f"{own} = [int(item) for item in {part} if item > 0]")
        values = {"length": f"len({own})", "first": f"{own}[0] if {own} else 0"}
        values["last"] = f"{own}[-1] if {own} else 0"
        start += [
            f"{name}_{number} = {value}"
            for name, value in values.items()
            if mentions(text, f"{name}_{number}")
        ]
        if any("+" in effect.text for effect in model.lists[number].effects):
            middle.append(f"{new} = [item for item in {new} if item > 0][:{places}]")
        if mentions(text, f"new_length_{number}"):
            middle.append(f"new_length_{number} = len({new})")
        finish.append(f"{part} = ({new} + {places} * [0])[:{places}]")
    finish += [f"numbers[{component}] = new_x{component}" for component in layout.extras]
    finish.append("self.state = numbers.reshape(self.state.shape)")
    finish.append("return self.state, reward, terminated")
    body = [*action_lines(encoding), *start, *picked, *moves, *middle, *end, *finish]
    functions = f"{FUNCTIONS['pick']}\n\n" if mentions(text, "pick") else ""
    indented = textwrap.indent("\n".join(body), "        ")
    program = HEAD.format(functions=functions, summary=summary, constants="", body=indented)
    return f"import numpy as np\n\n\n{program}"
