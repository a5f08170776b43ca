"""Fitting of boards: the stages of a step in order, then quantities, rewards and ends."""

from dataclasses import replace

import numpy as np

from cwm_induction.continuous.samples import Array
from cwm_induction.decision_list import Bias
from cwm_induction.relations.boards import (
    BoardModel,
    Loop,
    RuleStage,
    cell_effects,
    cell_terms,
    codes_of,
    fit_stage,
    start_names,
    step_terms,
)
from cwm_induction.relations.consequences import (
    SHIFTS,
    find_consequence,
    mismatches,
    ring_length,
    turned,
)
from cwm_induction.relations.expressions import Boards, Names
from cwm_induction.relations.layout import BoardLayout
from cwm_induction.relations.model import PartRows
from cwm_induction.relations.rules import (
    EffectRules,
    RuleEffect,
    RuleTerm,
    RuleVocabulary,
    Spend,
    choose_effects,
    define,
    plain_terms,
)

LENIENT, CAREFUL, STRICT = 1.0, 8.0, 25.0
"""Prices of a wrong cell in bits, for a stage that others follow, and for the last stage."""

NEARLY = 0.002
"""Share of wrong boards that is put down to chance."""

CHEAP = 1.0
"""Terms of this price and above are not used for the first guess of a stage."""

MOST_WRONG = 0.5
"""Share of wrong boards above which rewards and ends are not fitted."""

MANY = 0.02
"""Share of wrong boards above which rules for all cells are tried, which takes longer."""

ROUNDS = 4
"""Times that a stage and the turn after it are learned in turns."""


def fit_board(
    layout: BoardLayout, rows: PartRows, spend: Spend, like: BoardModel | None = None
) -> BoardModel:
    """Fit stages, consequences, other quantities and payments.

    Args:
        layout: The cells, and the cell that an action names.
        rows: Transitions.
        spend: Takes multiplications.
        like: A model of fewer rows; only its kind of stages is fitted.
    """
    if layout.shape[0] == 1 and not layout.focus:
        cells = slice(layout.cells)
        length = ring_length(rows.before[:, cells], rows.after[:, cells])
        if length:
            layout = replace(layout, shape=(1, length), turns=True)
    model = BoardModel(layout)
    names, target = start_names(layout, rows.before, rows.action), layout.boards(rows.after)
    if layout.turns:
        _fit_turning(model, names, target, spend)
    elif like is not None and (like.consequence or len(like.stages) > 1):
        _refit_stages(model, like, names, target, spend)
    else:
        _fit_stages(model, names, target, spend)
    predicted, _ = model.predict(rows.before, rows.action)
    wrong = (layout.shown(predicted) != layout.shown(rows.after)).any(axis=(1, 2))
    if wrong.mean() <= MOST_WRONG:
        model.fit_quantities_and_payments(rows, spend)
    return model


def _fit_stages(model: BoardModel, names: Names, target: Array, spend: Spend) -> None:
    """Learn the first stage, and consequences or a second stage if errors are left."""
    layout = model.layout
    loop = find_loop(layout, names, target)
    terms, effects = cell_terms(layout, names), cell_effects(layout, names)

    def fit(error_bits: float, price: float = np.inf, quiet: Array | None = None) -> RuleStage:
        usual = [term for term in terms if term.price < price]
        cheap = [effect for effect in effects if effect.price < price]
        seen, after = (names, target) if quiet is None else (_part(names, quiet), target[quiet])
        return fit_stage(loop, RuleVocabulary(usual, cheap), seen, after, spend, error_bits)

    strict = _without_idle_offsets(fit(STRICT), names)
    model.stages = [strict]
    fewest = _wrong(strict.apply(names), target)
    if fewest <= NEARLY * len(target) or min(layout.shape) == 1:
        return
    middle = fit(LENIENT, CHEAP).apply(names)["board"].values
    consequence = find_consequence(middle, target)
    if consequence:
        # boards without a consequence show the first stage alone
        quiet = (consequence.apply(middle)[0] == middle).all(axis=(1, 2))
        refit = _without_idle_offsets(fit(STRICT, quiet=quiet), names)
        final, _ = consequence.apply(refit.apply(names)["board"].values)
        wrong = _wrong({"board": Boards(final)}, target)
        if wrong < fewest:
            model.stages, model.consequence, fewest = [refit], consequence, wrong
    if fewest <= MANY * len(target):
        return
    # rules for all cells: alone, and after a first stage around the agent
    vocabulary = RuleVocabulary(cell_terms(layout, names, everywhere=True), effects)
    for first in [[], [strict]] if layout.focus == "agent" else [[]]:
        after = first[0].apply(names) if first else names
        loop = Loop("all", layout.shape)
        last = fit_stage(loop, vocabulary, after, target, spend, STRICT)
        wrong = _wrong(last.apply(after), target)
        if wrong < 0.7 * fewest:
            model.stages, model.consequence, fewest = [*first, last], None, wrong


def _refit_stages(
    model: BoardModel, like: BoardModel, names: Names, target: Array, spend: Spend
) -> None:
    """Learn the stages of a model again, from more boards."""
    *before, last = like.stages
    model.consequence, after = like.consequence, names
    for stage in before:
        after = stage.apply(after)
    seen, now = after, target
    if like.consequence:
        middle = last.apply(after)["board"].values
        quiet = (like.consequence.apply(middle)[0] == middle).all(axis=(1, 2))
        seen, now = _part(after, quiet), target[quiet]
    vocabulary = RuleVocabulary(list(last.rules.terms), cell_effects(model.layout, names))
    stage = fit_stage(last.loop, vocabulary, seen, now, spend, STRICT)
    model.stages = [*before, stage]


def _part(names: Names, mask: Array) -> Names:
    """Return the names of some boards."""
    return {
        name: Boards(value.values[mask]) if isinstance(value, Boards) else value[mask]
        for name, value in names.items()
    }


def find_loop(layout: BoardLayout, names: Names, target: Array) -> Loop:
    """Return the loop over the cells that change, relative to the focus."""
    if not layout.focus:
        return Loop("all", layout.shape)
    down, right = _changes(layout, names, target)
    if layout.focus == "agent":
        rows, *_ = np.nonzero(names["board"].values != target)
        steps = names["down"][rows], names["right"][rows]
        on = [int(((down == k * steps[0]) & (right == k * steps[1])).sum()) for k in range(5)]
        reach = [k + 1 for k, count in enumerate(on) if count > max(2, 0.001 * len(target))]
        return Loop("ahead", layout.shape, layout.wraps, reach=max([1, *reach]))
    offsets, counts = np.unique([down, right], axis=1, return_counts=True)
    kept = offsets[:, counts > 0.02 * len(target)].T.tolist()
    return Loop("offsets", layout.shape, layout.wraps, offsets=tuple(map(tuple, kept)))


def _changes(layout: BoardLayout, names: Names, target: Array) -> tuple[Array, Array]:
    """Return the offsets of changed cells from the focus, around rings the shorter way."""
    rows, y, x = np.nonzero(names["board"].values != target)
    offsets = []
    for place, name, size, wraps in zip(
        (y, x), ("row", "column"), layout.shape, layout.wraps, strict=True
    ):
        offset = place - names[name][rows]
        offsets.append((offset + size // 2) % size - size // 2 if wraps else offset)
    return offsets[0], offsets[1]


def _without_idle_offsets(stage: RuleStage, names: Names) -> RuleStage:
    """Return a stage whose loop visits only the offsets at which it changes cells."""
    loop = stage.loop
    if loop.kind != "offsets":
        return stage
    layout = BoardLayout(loop.shape, 0, wraps=loop.wraps)
    changed = set(zip(*_changes(layout, names, stage.apply(names)["board"].values), strict=True))
    kept = tuple(offset for offset in loop.offsets if offset in changed)
    wraps = loop.wraps[0] and any(y for y, _ in kept), loop.wraps[1] and any(x for _, x in kept)
    return replace(stage, loop=loop._replace(offsets=kept, wraps=wraps)) if kept else stage


def _fit_turning(model: BoardModel, names: Names, target: Array, spend: Spend) -> None:
    """Learn a stage and the turn after it, each from what the other leaves, in rounds."""
    layout = replace(model.layout, wraps=(False, True))
    loop, fewest = Loop("all", layout.shape), len(target) + 1
    vocabulary = RuleVocabulary(cell_terms(layout, names), cell_effects(layout, names))
    counts = [f"count(board, {code})" for code in codes_of(names)]
    conditions = step_terms(layout, names) + plain_terms("number", counts, 1.0)
    turn, middle = None, names
    for number in range(ROUNDS):
        off = mismatches(middle["board"].values, target)
        if turn:
            off = off + (turn.outcomes(middle, len(target))[:, None] != SHIFTS)
        unturned = turned(target, -np.array(SHIFTS)[off.argmin(axis=1)])
        bits = (LENIENT, CAREFUL, STRICT)[min(number, 2)]
        stage = fit_stage(loop, vocabulary, names, unturned, spend, bits)
        middle = stage.apply(names)
        bias = Bias((CAREFUL, STRICT)[min(number, 1)])
        turn = _fit_turn(conditions, middle, target, spend, bias)
        after = turned(middle["board"].values, turn.outcomes(middle, len(target)))
        wrong = _wrong({"board": Boards(after)}, target)
        if wrong < fewest:
            model.stages, model.turn, fewest = [stage], turn, wrong
        if not wrong:
            break


def _fit_turn(
    terms: list[RuleTerm], names: Names, target: Array, spend: Spend, bias: Bias
) -> EffectRules:
    """Learn by how many places a ring turns."""
    known = dict(names)
    define(terms, known, len(target))
    off = mismatches(names["board"].values, target)
    effects = [RuleEffect(str(shift), abs(shift) * 0.5) for shift in SHIFTS]
    likely = off == off.min(axis=1, keepdims=True)
    return choose_effects(RuleVocabulary(terms, effects), likely, known, spend, bias)


def _wrong(names: Names, target: Array) -> int:
    """Return how many boards differ from a target."""
    return int((names["board"].values != target).any(axis=(1, 2)).sum())
