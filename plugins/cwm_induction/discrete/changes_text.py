"""The text of what changes a state: moves, what blocks them, and their exceptions."""

from collections.abc import Iterator

import numpy as np

from cwm_induction.discrete.conditions import broken, either
from cwm_induction.discrete.dynamics import Change, Effect
from cwm_induction.discrete.slide_text import slide_lines
from cwm_induction.discrete.sum_text import weighted
from cwm_induction.discrete.tables import Table
from cwm_induction.discrete.wording import Wording, chain, listed, mentions


def change_lines(wording: Wording) -> tuple[list[str], list[str]]:
    """Write the nominal moves, and where nothing moves and what else changes."""
    slide, names = wording.dynamics.slide, [wording.names[i] for i in wording.moving]
    if slide:
        return slide_lines(wording.constants, slide, wording.names), _exceptions(wording, "")
    targets = [_target(wording, factor) for factor in wording.moving]
    block = wording.dynamics.block
    test = either(wording.speaker.conditions(block.rules, "BLOCKED")) if block else "False"
    cut = mentions(test, "outside")
    moves = []
    for factor, name, target in zip(wording.moving, names, targets, strict=True):
        moves += [f"target_{name} = {target}"] if cut else []
        bounded = _bounded(wording, factor, f"target_{name}" if cut else target)
        moves.append(f"new_{name} = {bounded}")
    if cut:
        sides = f"({listed(names, 'new_')}) != ({listed(names, 'target_')})"
        moves += broken("outside = ", sides)
    return moves, _exceptions(wording, test)


def _target(wording: Wording, factor: int) -> str:
    """Write where the move of a factor leads without bounds."""
    move, name = wording.dynamics.moves[factor], wording.names[factor]
    key = "action" if move.key is None else f"(action, {wording.names[move.key]})"
    entries = [
        f"{action if move.key is None else (action, column)}: {int(delta)}"
        for (action, column), delta in _cells(move.deltas)
        if delta
    ]
    base = name if move.weights is None else weighted(move.weights, factor, wording.names)
    if not entries:
        return base
    display, comment = "{" + ", ".join(entries) + "}", f"change of {name} by {key}"
    step = wording.constants.add(f"{name.upper()}_STEP", display, comment)
    return f"{base} + {step}.get({key}, 0)"


def _bounded(wording: Wording, factor: int, target: str) -> str:
    """Write where a move leads within the bounds."""
    move = wording.dynamics.moves[factor]
    if move.wraps:
        return f"({target}) % {move.radix}"
    return f"min(max({target}, 0), {move.radix - 1})"


def _exceptions(wording: Wording, blocked: str) -> list[str]:
    """Write where nothing moves and what else changes."""
    lines: list[str] = []
    names = [wording.names[i] for i in wording.moving]
    if blocked not in ("", "False"):
        lines += broken("if ", blocked, ":")
        lines.append(f"    {listed(names, 'new_')} = {listed(names)}")
    for change in wording.dynamics.changes:
        lines += _change(wording, change)
        wording.known.add(change.factor)
    return lines


def _change(wording: Wording, change: Change) -> list[str]:
    """Write the exceptions of one factor."""
    name, known = wording.names[change.factor], change.factor in wording.known
    values = {n: _effect(wording, e, change.factor) for n, e in enumerate(change.effects, 1)}
    layers, constant = change.rules.layers, f"{name.upper()}_AFTER"
    settled = all(effect.kind == "set" for effect in change.effects)
    if settled and len(layers) == 1 and isinstance(layers[0], Table):
        default = f"new_{name}" if known else name
        lookup = wording.speaker.lookup(layers[0], values, constant, default)
        return [f"new_{name} = {lookup}"]
    conditions = wording.speaker.conditions(change.rules, constant)
    return chain(conditions, f"new_{name}", values, default=None if known else name)


def _effect(wording: Wording, effect: Effect, factor: int) -> str:
    """Write the value that an effect gives a factor."""
    name, last = wording.names[factor], wording.dynamics.sizes.radices[factor] - 1
    if effect.kind == "set":
        return str(effect.value)
    if effect.kind == "add":
        return f"min(max({name} + {effect.value}, 0), {last})".replace("+ -", "- ")
    if effect.kind == "site":
        return f"{wording.value_at()}[{wording.cell()}]"
    return name if effect.kind == "keep" else wording.names[effect.value]


def _cells(deltas: np.ndarray) -> Iterator[tuple[tuple[int, int], int]]:
    """Yield the cells of a table of moves."""
    for action, row in enumerate(deltas.tolist()):
        for column, delta in enumerate(row):
            yield (action, column), delta
