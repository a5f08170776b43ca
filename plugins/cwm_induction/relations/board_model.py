"""Models of boards: stages, consequences, other quantities and payments."""

import re
from dataclasses import dataclass, field, replace

import numpy as np

from cwm_induction.continuous.samples import Array
from cwm_induction.relations.boards import Boards
from cwm_induction.relations.consequences import Consequence, find_consequence
from cwm_induction.relations.decision_list import Bias
from cwm_induction.relations.layout import Layout, Rows, place_of
from cwm_induction.relations.payments import Payments, fit_payments
from cwm_induction.relations.quantities import Quantity, fit_quantity
from cwm_induction.relations.stages import (
    Draft,
    Effect,
    Loop,
    Names,
    Spend,
    Stage,
    Term,
    define,
    fit_stage,
    per_cell,
)
from cwm_induction.relations.turning import SHIFTS, Turn, fit_turn, mismatches, ring_length, turned

LENIENT, CAREFUL, STRICT = 1.0, 8.0, 25.0
"""Prices of a wrong cell in bits, for a stage that others follow, and for the last stage."""

NEARLY = 0.002
"""Share of wrong boards that is put down to chance."""

RARE = 3.0
"""Terms of this price and above are not used for the first guess."""

PRICES = (1.0, RARE)
"""Price limits of the terms of the first stage while its consequences are unknown."""

ROUNDS = 4
"""Times that a stage and the turn after it are learned in turns."""

MAX_ACTIONS = 12
"""With this many actions or more, an action is the number of a cell, not a kind of move."""

AHEAD = ("ahead", "beyond", "third", "fourth")
"""Names of the cells in the direction of the action."""


@dataclass
class BoardModel:
    """A board, the stages of a step in order, other quantities, rewards and ends."""

    layout: Layout
    stages: list[Stage] = field(default_factory=list)
    turn: Turn | None = None
    consequence: Consequence | None = None
    quantities: list[Quantity] = field(default_factory=list)
    payments: Payments | None = None

    def predict(self, before: Array, action: Array) -> tuple[Array, Names]:
        """Return the next observations, and the names that payments may use."""
        names = start_names(self.layout, before, action)
        for stage in self.stages:
            _advance(names, stage.apply(names))
        names["middle"] = names["board"]
        if self.turn:
            _advance(names, self.turn.apply(names))
        if self.consequence:
            board, events = self.consequence.apply(names["board"].values)
            names |= events
            _advance(names, board)
        board, ground = names["board"].values, self.layout.ground
        shown = ground.shown(board) if ground else board
        names["new"] = Boards(shown, np.arange(len(board)))
        after, first = before.copy(), self.layout.first
        after[:, first : first + self.layout.cells] = shown.reshape(len(board), -1)
        for quantity in self.quantities:
            after[:, quantity.component] = quantity.values(names, len(before))
        for component in self.layout.extras:
            names[f"new_x{component}"] = after[:, component]
        return after, names


def _advance(names: Names, board: Array) -> None:
    names["board"] = Boards(board, np.arange(len(board)))


def start_names(layout: Layout, before: Array, action: Array) -> Names:
    """Return the variables of a step before its first stage."""
    boards = layout.boards(before)
    rows = np.arange(len(before))
    cells = before[:, layout.first : layout.first + layout.cells].reshape(boards.shape)
    names: Names = {"action": action, "board": Boards(boards, rows), "old": Boards(cells, rows)}
    names |= {f"x{component}": before[:, component] for component in layout.extras}
    if layout.focus == "agent":
        names["row"], names["column"] = place_of(boards, layout.agent).T
        table = np.zeros((int(action.max()) + 1, 2), np.int64)
        for number, down, right in layout.steps:
            if number < len(table):
                table[number] = down, right
        names["down"], names["right"] = table[action].T
    elif layout.focus == "cell":
        names["row"], names["column"] = np.divmod(action, layout.shape[1])
    elif layout.focus == "column":
        names["column"] = action
        names["row"] = names["board"].count_along(1, action, 0) - 1
    define(prelude(layout), names)
    return names


def prelude(layout: Layout) -> list[Term]:
    """Return the variables that are computed from the board before the first stage."""
    if layout.focus == "agent":
        texts = [f"at(board, row + {k} * down, column + {k} * right)" for k in range(1, 5)]
        texts[0] = "at(board, row + down, column + right)"
        return [
            Term(name, text, "code", 0.5 * number)
            for number, (name, text) in enumerate(zip(AHEAD, texts, strict=True))
        ]
    if layout.focus:
        return [Term("pressed", "at(board, row, column)", "code")]
    return []


def fit_board(layout: Layout, rows: Rows, spend: Spend) -> BoardModel:
    """Fit stages, consequences, other quantities and payments."""
    before, action, after, rewards, ends = rows
    layout = _without_ring_tail(layout, before, after)
    model = BoardModel(layout)
    names, target = start_names(layout, before, action), layout.boards(after)
    if layout.turns:
        _fit_turning(model, names, target, spend)
    else:
        _fit_stages(model, names, target, spend)
    _fit_quantities(model, rows, spend)
    _, known = model.predict(before, action)
    sums, conditions = _payment_terms(model, known)
    model.payments = fit_payments(sums, conditions, known, rewards, ends, spend)
    return model


def _without_ring_tail(layout: Layout, before: Array, after: Array) -> Layout:
    """Return the layout of the cells that turn as a ring, if a line of cells does."""
    if layout.shape[0] > 1 or layout.focus:
        return layout
    cells = slice(layout.first, layout.first + layout.cells)
    length = ring_length(before[:, cells], after[:, cells])
    return replace(layout, shape=(1, length), wraps=(False, True), turns=True) if length else layout


def _fit_stages(model: BoardModel, names: Names, target: Array, spend: Spend) -> None:
    """Learn the first stage, and its consequences if errors are left."""
    layout = model.layout
    loop = _loop(layout, names, target)
    terms, effects = tuple(_terms(layout, names)), tuple(_effects(layout, names))

    def fit(error_bits: float, price: float = np.inf, mask: Array | None = None) -> Stage:
        usual = tuple(term for term in terms if term.price < price)
        cheap = tuple(effect for effect in effects if effect.price < price)
        return fit_stage(Draft(loop, usual, cheap), names, target, spend, error_bits, mask)

    strict = _without_idle_offsets(fit(STRICT), names)
    model.stages = [strict]
    fewest = int(_wrong(strict.apply(names), target).sum())
    if fewest <= NEARLY * len(target) or min(layout.shape) == 1:
        return
    for price in PRICES:
        middle = fit(LENIENT, price).apply(names)
        consequence = find_consequence(middle, target, 0)
        if consequence is None:
            continue
        # boards without a consequence show the first stage alone
        quiet = (consequence.apply(middle)[0] == middle).all(axis=(1, 2))
        refit = _without_idle_offsets(fit(STRICT, mask=quiet), names)
        final = consequence.apply(refit.apply(names))[0]
        wrong = int(_wrong(final, target).sum())
        if wrong < fewest:
            model.stages, model.consequence, fewest = [refit], consequence, wrong


def _without_idle_offsets(stage: Stage, names: Names) -> Stage:
    """Return a stage whose loop visits only the offsets at which it changes cells."""
    loop = stage.loop
    if loop.kind != "offsets":
        return stage
    board = names["board"].values
    rows, y, x = np.nonzero(stage.apply(names) != board)
    down, right = y - names["row"][rows], x - names["column"][rows]
    changed = set(zip(down % loop.shape[0], right % loop.shape[1], strict=True))
    kept = tuple(o for o in loop.offsets if (o[0] % loop.shape[0], o[1] % loop.shape[1]) in changed)
    wraps = loop.wraps[0] and any(o[0] for o in kept), loop.wraps[1] and any(o[1] for o in kept)
    return replace(stage, loop=loop._replace(offsets=kept, wraps=wraps)) if kept else stage


def _fit_turning(model: BoardModel, names: Names, target: Array, spend: Spend) -> None:
    """Learn a stage and the turn after it, each from what the other leaves, in rounds."""
    layout = model.layout
    loop, count = Loop("all", layout.shape, layout.wraps), len(target)
    terms, effects = tuple(_terms(layout, names)), tuple(_effects(layout, names))
    conditions = [term for term in terms if not per_cell(term)] + _counts(names, "board")
    simple = [term for term in conditions if term.price < RARE]
    off = mismatches(names["board"].values, target)
    likely = off == off.min(axis=1, keepdims=True)
    turn = fit_turn(simple, names, likely, spend, Bias(LENIENT, max_rules=6))
    middle_names, fewest = dict(names), count + 1
    for number in range(ROUNDS):
        bits = (LENIENT, CAREFUL, STRICT)[min(number, 2)]
        shifts = np.array(SHIFTS)[(off + (turn.shifts(middle_names)[:, None] != SHIFTS)).argmin(1)]
        middle = turned(target, -shifts)
        stage = fit_stage(Draft(loop, terms, effects), names, middle, spend, bits)
        middle_names = dict(names)
        _advance(middle_names, stage.apply(names))
        off = mismatches(middle_names["board"].values, target)
        likely = off == off.min(axis=1, keepdims=True)
        bits = (CAREFUL, STRICT)[min(number, 1)]
        turn = fit_turn(conditions, middle_names, likely, spend, Bias(bits))
        wrong = int(_wrong(turn.apply(middle_names), target).sum())
        if wrong < fewest:
            model.stages, model.turn, fewest = [stage], turn, wrong
        if not wrong:
            break


def _wrong(boards: Array, target: Array) -> Array:
    mask: Array = (boards != target).any(axis=(1, 2))
    return mask


def _loop(layout: Layout, names: Names, target: Array) -> Loop:
    """Return the loop over the cells that change, relative to the focus."""
    if not layout.focus:
        return Loop("all", layout.shape)
    board = names["board"].values
    rows, y, x = np.nonzero(board != target)
    down, right = y - names["row"][rows], x - names["column"][rows]
    if layout.focus == "agent":
        reach, most = 1, 0
        for k in range(5):
            on = (down == k * names["down"][rows]) & (right == k * names["right"][rows])
            if on.sum() > max(2, 0.001 * len(target)):
                reach = k + 1
            most += int(on.sum())
        return Loop("ahead", layout.shape, layout.wraps, reach=reach)
    down = down % layout.shape[0] if layout.wraps[0] else down
    right = right % layout.shape[1] if layout.wraps[1] else right
    offsets, counts = np.unique(np.stack([down, right], axis=1), axis=0, return_counts=True)
    kept = offsets[counts > 0.02 * len(target)]
    height, width = layout.shape
    near = sorted(
        (
            int((d + height // 2) % height - height // 2) if layout.wraps[0] else int(d),
            int((r + width // 2) % width - width // 2) if layout.wraps[1] else int(r),
        )
        for d, r in kept
    )
    return Loop("offsets", layout.shape, layout.wraps, offsets=tuple(near))


def _codes(names: Names) -> list[int]:
    return [int(code) for code in np.unique(names["board"].values)]


def _shifted(layout: Layout, down: int, right: int) -> str:
    """Write the neighbour of a cell of the loop."""
    height, width = layout.shape
    y = "y" if not down else f"y {'+' if down > 0 else '-'} {abs(down)}"
    x = "x" if not right else f"x {'+' if right > 0 else '-'} {abs(right)}"
    y = f"({y}) % {height}" if down and layout.wraps[0] else y
    x = f"({x}) % {width}" if right and layout.wraps[1] else x
    return f"at(board, {y}, {x})"


def _terms(layout: Layout, names: Names) -> list[Term]:
    """Return what conditions of the first stage may compare."""
    terms = [term._replace(text=term.name) for term in prelude(layout)]
    if layout.focus == "agent":
        terms.append(Term("k", "k", "number"))
    elif layout.focus:
        terms += [Term("dy", "dy", "number", 1.0), Term("dx", "dx", "number", 1.0)]
        near = ("abs(dy) + abs(dx)", "abs(dy)", "abs(dx)", "max(abs(dy), abs(dx))")
        terms += [Term(text, text, "number") for text in near]
        terms += [Term(name, name, "number", 3.0) for name in ("row", "column")]
    terms.append(Term("here", "at(board, y, x)", "code"))
    terms += [
        Term(name, _shifted(layout, *offset), "code", 1.0)
        for name, offset in _neighbours(layout).items()
    ]
    if int(names["action"].max()) < MAX_ACTIONS:
        terms.append(Term("action", "action", "code", 0.5))
    terms += [Term(f"x{component}", f"x{component}", "number", 1.0) for component in layout.extras]
    if layout.shape[0] == 1:
        return [*terms, Term("x", "x", "number", 1.0), *_line_terms(layout, names)]
    terms += [Term("y", "y", "number", 3.0), Term("x", "x", "number", 3.0)]
    if any(layout.wraps):
        return terms
    around = [f"count_around(board, y, x, {code})" for code in _codes(names)]
    return [*terms, *(Term(text, text, "number", 3.0) for text in around)]


def _line_terms(layout: Layout, names: Names) -> list[Term]:
    """Return the values of single places of a line, and how these compare."""
    places = [f"board[0, {place}]" for place in range(layout.cells)]
    terms = [Term(text, text, "code", 1.5) for text in places]
    others = [f"x{component}" for component in layout.extras]
    for place, text in enumerate(places):
        for other in [*places[place + 1 :], *others]:
            equal = f"({text} == {other})"
            terms.append(Term(equal, equal, "flag", 3.0))
        if place + 2 < len(places):
            different = f"distinct({', '.join(places[place : place + 3])})"
            terms.append(Term(different, different, "number", 3.0))
    return terms


def _counts(names: Names, board: str, price: float = 1.0) -> list[Term]:
    texts = [f"count({board}, {code})" for code in _codes(names)]
    return [Term(text, text, "number", price) for text in texts]


def _neighbours(layout: Layout) -> dict[str, tuple[int, int]]:
    found = {"left": (0, -1), "right_of": (0, 1)}
    if layout.shape[0] > 1:
        found |= {"above": (-1, 0), "below": (1, 0)}
    return found


def _effects(layout: Layout, names: Names) -> list[Effect]:
    """Return the new values that a cell may get."""
    codes = _codes(names)
    effects = [Effect("here")]
    if len(codes) == 2 and codes == [0, 1]:
        effects.append(Effect("1 - here", -1.0))
    effects += [Effect(str(code)) for code in codes]
    if layout.focus == "agent":
        effects.append(Effect("at(board, y - down, x - right)"))
    if layout.focus in ("cell", "column"):
        effects.append(Effect("pressed", 1.0))
    effects += [Effect(name, 1.0) for name in _neighbours(layout)]
    effects += [Effect(f"x{component}") for component in layout.extras]
    if layout.shape[0] == 1:
        effects += [Effect(f"board[0, {place}]", 1.0) for place in range(layout.cells)]
    return effects


def _fit_quantities(model: BoardModel, rows: Rows, spend: Spend) -> None:
    """Learn rules for the components that are no cells."""
    layout, after = model.layout, rows.after
    _, names = model.predict(rows.before, rows.action)
    terms = _quantity_terms(model, names)
    copies = [
        Effect(effect.text.replace("board", "old"), 1.0)
        for effect in _effects(layout, names)
        if effect.text.startswith("board[") or effect.text == "pressed"
    ]
    for component in layout.extras:
        target = after[:, component]
        model.quantities.append(fit_quantity(component, target, names, terms, copies, spend))


def _quantity_terms(model: BoardModel, names: Names) -> list[Term]:
    """Return what conditions may compare that belong to no cell: values before the step."""
    terms = [term for term in model.stages[0].terms if not per_cell(term)]
    old = [re.sub(r"\bboard\b", "old", term.text) for term in terms]
    return [
        term._replace(name=text if term.name == term.text else term.name, text=text)
        for term, text in zip(terms, old, strict=True)
    ]


def _payment_terms(model: BoardModel, names: Names) -> tuple[list[Term], list[Term]]:
    """Return what weighted sums and conditions of rewards may use."""
    layout = model.layout
    codes = np.unique(np.concatenate([names["old"].values, names["new"].values])).tolist()
    events = model.consequence.events if model.consequence else []
    sums = [Term(name, name, "number") for name in events]
    middle = "middle" if model.consequence or model.turn else "new"
    changes = [(f"count({middle}, {c}) - count(old, {c})", c) for c in reversed(codes)]
    sums += [Term(text, text, "number") for text, _ in changes]
    sums += [Term(f"new_x{c} - x{c}", f"new_x{c} - x{c}", "number") for c in layout.extras]
    conditions = _quantity_terms(model, names)
    conditions += [Term(f"new_x{c}", f"new_x{c}", "number", 1.0) for c in layout.extras]
    conditions += [Term(name, name, "number", 0.5) for name in events]
    conditions += [
        Term(f"count(new, {code})", f"count(new, {code})", "number", 1.0) for code in codes
    ]
    conditions += [
        Term(f"count(old, {code})", f"count(old, {code})", "number", 3.0) for code in codes
    ]
    conditions += [t._replace(price=2.0) for t in sums[len(events) :]]
    differing = "differing(new, old)"
    conditions.append(Term(differing, differing, "number", 1.0))
    if layout.shape[0] == 1:
        places = range(layout.cells)
        same = [f"(new[0, {place}] == old[0, {place}])" for place in places]
        conditions += [Term(text, text, "flag", 3.0) for text in same]
    if middle == "middle":
        conditions += _counts(names, "middle")
    if layout.focus == "agent":
        moved = f"(at(board, row, column) != {layout.agent})"
        conditions.insert(0, Term("moved", moved, "flag"))
    conditions += [
        Term(f"new[{y}, {x}]", f"new[{y}, {x}]", "code", 4.0)
        for y in range(layout.shape[0])
        for x in range(layout.shape[1])
    ]
    return sums, conditions
