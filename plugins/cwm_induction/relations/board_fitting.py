"""Fitting of boards: the stages of a step in order, then quantities, rewards and ends."""

import re
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from cwm_induction.continuous.samples import Array
from cwm_induction.decision_list import Bias, RelationList
from cwm_induction.relations.board_model import BoardModel, advance
from cwm_induction.relations.consequences import find_consequence
from cwm_induction.relations.layout import BoardLayout, BoardRows
from cwm_induction.relations.payments import fit_payments
from cwm_induction.relations.quantities import fit_quantity
from cwm_induction.relations.stages import (
    BoardTerm,
    CellEffect,
    Loop,
    Names,
    RuleStage,
    Spend,
    StageDraft,
    fit_stage,
    per_cell,
)
from cwm_induction.relations.turning import SHIFTS, fit_turn, mismatches, ring_length, turned
from cwm_induction.relations.vocabulary import (
    cell_effects,
    cell_terms,
    count_terms,
    field_terms,
    find_loop,
    start_names,
)

LENIENT, CAREFUL, STRICT = 1.0, 8.0, 25.0
"""Prices of a wrong cell in bits, for a stage that others follow, and for the last stage."""

NEARLY = 0.002
"""Share of wrong boards that is put down to chance."""

RARE = 3.0
"""Terms of this price and above are not used for the first guess."""

PRICES = (1.0, RARE)
"""Price limits of the terms of the first stage while its consequences are unknown."""

MOST_WRONG = 0.5
"""Share of wrong boards above which rewards and ends are not fitted."""

MANY = 0.02
"""Share of wrong boards above which rules for all cells are tried, which takes longer."""

ROUNDS = 4
"""Times that a stage and the turn after it are learned in turns."""


def fit_board(
    layout: BoardLayout, rows: BoardRows, spend: Spend, like: BoardModel | None = None
) -> BoardModel:
    """Fit stages, consequences, other quantities and payments.

    Args:
        layout: The cells, and the cell that an action names.
        rows: Transitions.
        spend: Takes multiplications.
        like: A model of fewer rows; only its kind of stages is fitted.
    """
    before, action, after, rewards, ends = rows
    layout = _without_ring_tail(layout, before, after)
    model = BoardModel(layout)
    names, target = start_names(layout, before, action), layout.boards(after)
    if layout.turns:
        _fit_turning(model, names, target, spend)
    elif like is not None and (like.consequence or len(like.stages) > 1):
        _refit_stages(model, like, names, target, spend)
    else:
        _fit_stages(model, names, target, spend)
    predicted, _ = model.predict(before, action)
    cells = slice(layout.first, layout.first + layout.cells)
    if (predicted[:, cells] != rows.after[:, cells]).any(axis=1).mean() > MOST_WRONG:
        return model
    _fit_quantities(model, rows, spend)
    _, known = model.predict(before, action)
    sums, conditions = _payment_terms(model, known)
    model.payments = fit_payments(sums, conditions, known, rewards, ends, spend)
    return model


def _without_ring_tail(layout: BoardLayout, before: Array, after: Array) -> BoardLayout:
    """Return the layout of the cells that turn as a ring, if a line of cells does."""
    if layout.shape[0] > 1 or layout.focus:
        return layout
    cells = slice(layout.first, layout.first + layout.cells)
    length = ring_length(before[:, cells], after[:, cells])
    return replace(layout, shape=(1, length), wraps=(False, True), turns=True) if length else layout


def _fit_stages(model: BoardModel, names: Names, target: Array, spend: Spend) -> None:
    """Learn the first stage, and consequences or a second stage if errors are left."""
    layout = model.layout
    loop = find_loop(layout, names, target)
    terms, effects = tuple(cell_terms(layout, names)), tuple(cell_effects(layout, names))

    def fit(error_bits: float, price: float = np.inf, mask: Array | None = None) -> RuleStage:
        usual = tuple(term for term in terms if term.price < price)
        cheap = tuple(effect for effect in effects if effect.price < price)
        return fit_stage(StageDraft(loop, usual, cheap), names, target, spend, error_bits, mask)

    strict = _without_idle_offsets(fit(STRICT), names)
    model.stages = [strict]
    few = NEARLY * len(target)
    fewest = int(_wrong(strict.apply(names), target).sum())
    if fewest <= few or min(layout.shape) == 1:
        return
    for price in PRICES:
        guess = fit(LENIENT, price)
        middle = guess.apply(names)
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
    if fewest <= MANY * len(target):
        return
    for stages in _whole_boards(layout, strict, names, target, spend):
        after = dict(names)
        for stage in stages:
            advance(after, stage.apply(after))
        wrong = int(_wrong(after["board"].values, target).sum())
        if wrong < 0.7 * fewest:
            model.stages, model.consequence, fewest = stages, None, wrong
        if fewest <= few:
            return


def _refit_stages(
    model: BoardModel, like: BoardModel, names: Names, target: Array, spend: Spend
) -> None:
    """Learn the stages of a model again, from more boards."""
    effects = tuple(cell_effects(model.layout, names))
    *before, last = like.stages
    draft = StageDraft(last.loop, last.terms, effects)
    model.consequence = like.consequence
    quiet = None
    if like.consequence:
        middle = last.apply(names)
        quiet = (like.consequence.apply(middle)[0] == middle).all(axis=(1, 2))
    after = dict(names)
    for stage in before:
        advance(after, stage.apply(after))
    model.stages = [*before, fit_stage(draft, after, target, spend, STRICT, quiet)]


def _whole_boards(
    layout: BoardLayout, first: RuleStage, names: Names, target: Array, spend: Spend
) -> Iterator[list[RuleStage]]:
    """Yield stages for all cells: alone, and after a first stage at the cell of the action."""
    effects = tuple(cell_effects(layout, names))
    everywhere = Loop("all", layout.shape)
    for wraps in ((False, False), (False, True)):
        terms = tuple(field_terms(replace(layout, wraps=wraps), names))
        draft = StageDraft(everywhere, terms, effects)
        yield [fit_stage(draft, names, target, spend, STRICT)]
        if not layout.focus:
            continue
        cell = Loop("offsets", layout.shape, offsets=((0, 0),))
        starts = [first] if layout.focus == "agent" else []
        for effect in effects[1:] if layout.focus == "cell" else ():
            rules = RelationList((), 0)
            starts.append(RuleStage(cell, terms, (effect,), rules))
        for start in _most_plausible(starts, draft, names, target, spend):
            after = dict(names)
            advance(after, start.apply(names))
            yield [start, fit_stage(draft, after, target, spend, STRICT)]


def _most_plausible(
    starts: list[RuleStage], draft: StageDraft, names: Names, target: Array, spend: Spend
) -> list[RuleStage]:
    """Return the first stage after which rules of cells far away explain most boards."""
    if len(starts) < 2:
        return starts
    local = [term for term in draft.terms if not {"row", "column", "pressed"} & _words(term.text)]
    plain = draft._replace(terms=tuple(local))
    rules = fit_stage(plain, names, target, spend, LENIENT)
    right = []
    for start in starts:
        after = dict(names)
        advance(after, start.apply(names))
        right.append(int((rules.apply(after) == target).sum()))
    return [starts[int(np.argmax(right))]]


def _words(text: str) -> set[str]:
    return set(re.findall(r"[a-z_]+", text))


def _without_idle_offsets(stage: RuleStage, names: Names) -> RuleStage:
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
    terms, effects = tuple(cell_terms(layout, names)), tuple(cell_effects(layout, names))
    conditions = [term for term in terms if not per_cell(term)] + count_terms(names, "board")
    simple = [term for term in conditions if term.price < RARE]
    off = mismatches(names["board"].values, target)
    likely = off == off.min(axis=1, keepdims=True)
    turn = fit_turn(simple, names, likely, spend, Bias(LENIENT, max_rules=6))
    middle_names, fewest = dict(names), count + 1
    for number in range(ROUNDS):
        bits = (LENIENT, CAREFUL, STRICT)[min(number, 2)]
        shifts = np.array(SHIFTS)[(off + (turn.shifts(middle_names)[:, None] != SHIFTS)).argmin(1)]
        middle = turned(target, -shifts)
        stage = fit_stage(StageDraft(loop, terms, effects), names, middle, spend, bits)
        middle_names = dict(names)
        advance(middle_names, stage.apply(names))
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


def _fit_quantities(model: BoardModel, rows: BoardRows, spend: Spend) -> None:
    """Learn rules for the components that are no cells."""
    layout, after = model.layout, rows.after
    _, names = model.predict(rows.before, rows.action)
    terms = _quantity_terms(model, names)
    copies = [
        CellEffect(effect.text.replace("board", "old"), 1.0)
        for effect in cell_effects(layout, names)
        if effect.text.startswith("board[") or effect.text == "pressed"
    ]
    for component in layout.extras:
        target = after[:, component]
        model.quantities.append(fit_quantity(component, target, names, terms, copies, spend))


def _quantity_terms(model: BoardModel, names: Names) -> list[BoardTerm]:
    """Return what conditions may compare that belong to no cell: values before the step."""
    terms = [term for term in model.stages[0].terms if not per_cell(term)]
    old = [re.sub(r"\bboard\b", "old", term.text) for term in terms]
    return [
        term._replace(name=text if term.name == term.text else term.name, text=text)
        for term, text in zip(terms, old, strict=True)
    ]


def _payment_terms(model: BoardModel, names: Names) -> tuple[list[BoardTerm], list[BoardTerm]]:
    """Return what weighted sums and conditions of rewards may use."""
    layout = model.layout
    codes = np.unique(np.concatenate([names["old"].values, names["new"].values])).tolist()
    events = model.consequence.events if model.consequence else []
    sums = [BoardTerm(name, name, "number") for name in events]
    middle = "middle" if model.consequence or model.turn else "new"
    changes = [(f"count({middle}, {c}) - count(old, {c})", c) for c in reversed(codes)]
    sums += [BoardTerm(text, text, "number") for text, _ in changes]
    sums += [BoardTerm(f"new_x{c} - x{c}", f"new_x{c} - x{c}", "number") for c in layout.extras]
    levels = [f"count(new, {code})" for code in reversed(codes)]
    levels += [f"new_x{component}" for component in layout.extras]
    conditions = _quantity_terms(model, names)
    conditions += [BoardTerm(f"new_x{c}", f"new_x{c}", "number", 1.0) for c in layout.extras]
    conditions += [BoardTerm(name, name, "number", 0.5) for name in events]
    conditions += [
        BoardTerm(f"count(new, {code})", f"count(new, {code})", "number", 1.0) for code in codes
    ]
    conditions += [
        BoardTerm(f"count(old, {code})", f"count(old, {code})", "number", 3.0) for code in codes
    ]
    conditions += [t._replace(price=2.0) for t in sums[len(events) :]]
    differing = "differing(new, old)"
    conditions.append(BoardTerm(differing, differing, "number", 1.0))
    if layout.shape[0] == 1:
        places = range(layout.cells)
        same = [f"(new[0, {place}] == old[0, {place}])" for place in places]
        conditions += [BoardTerm(text, text, "flag", 3.0) for text in same]
    if layout.turns and layout.extras:
        # cells and the other places of items together
        others = " + ".join(f"(new_x{component} == 0)" for component in layout.extras)
        empty = f"count(new, 0) + {others}"
        conditions.append(BoardTerm(empty, empty, "number", 1.0))
    if middle == "middle":
        conditions += count_terms(names, "middle")
    if layout.focus == "agent":
        here = "at(board, row, column)"
        moved = " & ".join(f"({here} != {code})" for code in layout.agent)
        conditions.insert(0, BoardTerm("moved", moved, "flag"))
    conditions += [
        BoardTerm(f"new[{y}, {x}]", f"new[{y}, {x}]", "code", 4.0)
        for y in range(layout.shape[0])
        for x in range(layout.shape[1])
    ]
    return [*sums, *(BoardTerm(text, text, "number") for text in levels)], conditions
