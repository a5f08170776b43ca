"""Lists of items, such as queues and stacks: items leave and join at the ends."""

from dataclasses import dataclass, field
from functools import partial
from itertools import combinations, pairwise

import numpy as np

from cwm_induction.continuous.samples import Array
from cwm_induction.relations.expressions import Names, evaluate
from cwm_induction.relations.layout import MAX_CODES
from cwm_induction.relations.model import PartRows, PartsLayout, PartsModel, ProgramText
from cwm_induction.relations.rules import (
    EffectRules,
    RuleEffect,
    RuleTerm,
    RuleVocabulary,
    Spend,
    fit_rules,
    mentions,
    plain_effects,
    plain_terms,
)

LEAST_CHANGES = 20
"""Changes of the length of a list at least; fewer do not show how items leave and join."""


@dataclass(frozen=True)
class ListLayout(PartsLayout):
    """Components of each list; other components are single quantities."""

    lists: tuple[slice, ...]
    size: int

    @property
    def extras(self) -> list[int]:
        """Components that belong to no list."""
        used = {c for part in self.lists for c in range(part.start, part.stop)}
        return [component for component in range(self.size) if component not in used]

    @property
    def ends(self) -> list[str]:
        """Names of the first and last items."""
        return [f"{end}_{number}" for number in range(len(self.lists)) for end in ("first", "last")]


@dataclass
class ListModel(PartsModel):
    """Rules for the lists, all computed from the state before the step."""

    layout: ListLayout
    terms: list[RuleTerm]
    lists: list[EffectRules] = field(default_factory=list)

    summary = "Lists of items that leave and join at the ends"

    def moved(self, before: Array, action: Array) -> tuple[Array, Names]:
        """Return the observations after the moves, and the names that later rules may use."""
        names = _names(self.layout, before, action)
        after = before.copy()
        for number, (part, rules) in enumerate(zip(self.layout.lists, self.lists, strict=True)):
            result = partial(_result, before[:, part])
            after[:, part] = rules.outcomes(names, len(before), result)
            names[f"new_length_{number}"] = (after[:, part] > 0).sum(axis=1)
        return after, names

    def quantity_terms(self, names: Names) -> list[RuleTerm]:
        """Return the terms of the rules of single quantities."""
        return list(self.terms)

    def copies(self, component: int) -> list[RuleEffect]:
        """Return first and last items and the other quantities."""
        others = [f"x{other}" for other in self.layout.extras if other != component]
        return plain_effects(self.layout.ends, 0.5) + plain_effects(others, 1.0)

    def payment_terms(self, names: Names) -> tuple[list[RuleTerm], list[RuleTerm]]:
        """Return the terms of weighted sums, and the terms of conditions."""
        lengths = [f"length_{number}" for number in range(len(self.layout.lists))]
        new = [f"new_{length}" for length in lengths]
        changes = [f"{one} - {other}" for one, other in zip(new, lengths, strict=True)]
        moved = " + ".join(f"abs({change})" for change in changes)
        changes += [f"new_x{component} - x{component}" for component in self.layout.extras]
        changes += [" + ".join(lengths), *lengths]
        conditions = [*self.terms, RuleTerm("moved", moved, "number", -1.0)]
        conditions.append(RuleTerm("items", " + ".join(new), "number", -1.0))
        conditions += plain_terms("number", new, 1.0) + plain_terms("number", changes, 0.5)
        extras = self.layout.extras
        conditions += plain_terms("number", [f"new_x{c}" for c in extras], 0.5)
        conditions += plain_terms("flag", [f"(new_x{c} == x{c})" for c in extras], 0.5)
        return plain_terms("number", changes), conditions

    def program_text(self, end: str) -> ProgramText:
        """Write the program up to the moves; `end` is the text after these."""
        moves: list[str] = []
        for number, rules in enumerate(self.lists):
            moves += rules.lines(f"new_list_{number} = {{}}".format)
        start, finish, text = list[str](), list[str](), "\n".join([*moves, end])
        for number, part in enumerate(self.layout.lists):
            own, places = f"list_{number}", part.stop - part.start
            shown = f"numbers[{part.start}:{part.stop}]"
            start.append(f"{own} = [int(item) for item in {shown} if item > 0]")
            values = {"length": f"len({own})", "first": f"{own}[0] if {own} else 0"}
            values["last"] = f"{own}[-1] if {own} else 0"
            for name, value in values.items():
                if mentions(text, f"{name}_{number}"):
                    start.append(f"{name}_{number} = {value}")
            if any("+" in effect.text for effect in self.lists[number].effects):
                moves.append(f"new_{own} = [item for item in new_{own} if item > 0][:{places}]")
            if mentions(text, f"new_length_{number}"):
                moves.append(f"new_length_{number} = len(new_{own})")
            finish.append(f"{shown} = (new_{own} + {places} * [0])[:{places}]")
        return ProgramText([], start, moves, finish)


def find_lists(rows: PartRows) -> ListLayout | None:
    """Return the layout of lists: runs of components whose empty places follow the items."""
    seen = np.concatenate([rows.before, rows.after])
    if len(np.unique(seen)) > MAX_CODES or seen.min() < 0:
        return None
    joined = ~((seen[:, :-1] == 0) & (seen[:, 1:] != 0)).any(axis=0)
    tops = seen.max(axis=0)
    joined &= tops[1:] <= tops[:-1]
    cuts = [0, *(1 + np.flatnonzero(~joined)).tolist(), seen.shape[1]]
    lists = []
    for first, last in pairwise(cuts):
        part = slice(first, last)
        length = (rows.after[:, part] > 0).sum(axis=1) - (rows.before[:, part] > 0).sum(axis=1)
        if last - first > 1 and (length != 0).sum() >= LEAST_CHANGES:
            lists.append(part)
    return ListLayout(tuple(lists), seen.shape[1]) if len(lists) > 1 else None


def fit_lists(
    layout: ListLayout, rows: PartRows, spend: Spend, like: ListModel | None = None
) -> ListModel:
    """Learn rules for each list and quantity, then rewards and ends; `like` is not used."""
    model = ListModel(layout, _terms(layout))
    names = _names(layout, rows.before, rows.action)
    for number, part in enumerate(layout.lists):
        vocabulary = RuleVocabulary(model.terms, _effects(layout, number))
        result = partial(_result, rows.before[:, part])
        rules = fit_rules(vocabulary, rows.after[:, part], names, spend, result=result)
        model.lists.append(rules)
    model.fit_quantities_and_payments(rows, spend)
    return model


def _names(layout: ListLayout, before: Array, action: Array) -> Names:
    """Return length, first and last item of each list, and the other variables."""
    names: Names = {"action": action}
    names |= {f"x{component}": before[:, component] for component in layout.extras}
    for number, part in enumerate(layout.lists):
        items = before[:, part]
        length = (items > 0).sum(axis=1)
        names[f"length_{number}"], names[f"first_{number}"] = length, items[:, 0]
        names[f"last_{number}"] = items[np.arange(len(items)), np.maximum(length - 1, 0)]
    return names


def _terms(layout: ListLayout) -> list[RuleTerm]:
    """Return what conditions may compare."""
    lengths, ends = [f"length_{number}" for number in range(len(layout.lists))], layout.ends
    extras = [f"x{component}" for component in layout.extras]
    terms = plain_terms("code", ["action"], -1.0) + plain_terms("number", lengths)
    terms += plain_terms("code", ends) + plain_terms("number", extras)
    pairs = combinations([*ends, *extras], 2)
    return terms + plain_terms("flag", [f"({one} == {other})" for one, other in pairs], 1.0)


def _effects(layout: ListLayout, number: int) -> list[RuleEffect]:
    """Return the new values that a list may get, as texts of programs."""
    own = f"list_{number}"
    effects = [*plain_effects([own, f"{own}[1:]", f"{own}[:-1]"]), RuleEffect("[]", 1.0)]
    items = [name for name in layout.ends if not name.endswith(f"_{number}")]
    for item in [*items, *(f"x{component}" for component in layout.extras)]:
        effects += [RuleEffect(f"{own} + [{item}]"), RuleEffect(f"[{item}] + {own}", 0.5)]
    return effects


def _result(items: Array, text: str, names: Names, count: int) -> Array:
    """Return the lists after an effect, filled up with empty places."""
    places, after = items.shape[1], items.copy()
    length = (items > 0).sum(axis=1)
    if text.endswith("[1:]"):
        after = np.pad(items[:, 1:], ((0, 0), (0, 1)))
    elif text.endswith("[:-1]"):
        after[np.arange(count), np.maximum(length - 1, 0)] = 0
    elif text == "[]":
        after[:] = 0
    elif "+" in text:
        value = evaluate(text[text.index("[") + 1 : text.index("]")], names)
        if text.startswith("["):
            return np.column_stack([value, items[:, :-1]])
        # an item does not join a full list
        room = (length < places) & (value > 0)
        after[np.flatnonzero(room), length[room]] = value[room]
    return after
