"""Stages of a step: rules that give the cells of a board new values, equal for all cells."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from cwm_induction.continuous.samples import Array
from cwm_induction.decision_list import Bias, RelationFeature, RelationList, learn
from cwm_induction.relations.boards import Boards, evaluate

Names = dict[str, Any]
Spend = Callable[[float], bool]


class BoardTerm(NamedTuple):
    """An expression that conditions compare.

    `kind` is "code", "number" or "flag". A `name` other than the `text` is a variable of the
    program. `price` is added to the bits of each condition.
    """

    name: str
    text: str
    kind: str
    price: float = 0.0


class CellEffect(NamedTuple):
    """An expression of a new value, and the bits that it costs beside its number."""

    text: str
    price: float = 0.0


class StageSamples(NamedTuple):
    """The cells that a stage may change, one sample per cell: board, row and column of the cell.

    `local` holds the variables of the loop over cells.
    """

    rows: Array
    y: Array
    x: Array
    local: Names


class Loop(NamedTuple):
    """A loop of the program over the cells that may change.

    `kind` is "all", "ahead" (cells in the direction of the action) or "offsets" (cells around
    the cell that the action names). `wraps` says whether rows and columns are rings.
    """

    kind: str
    shape: tuple[int, int]
    wraps: tuple[bool, bool] = (False, False)
    offsets: tuple[tuple[int, int], ...] = ()
    reach: int = 0

    def samples(self, names: Names, count: int) -> StageSamples:
        """Return the cells of `count` boards."""
        height, width = self.shape
        if self.kind == "all":
            rows, y, x = (part.ravel() for part in np.indices((count, height, width)))
            return StageSamples(rows, y, x, {"y": y, "x": x})
        size = self.reach if self.kind == "ahead" else len(self.offsets)
        rows, index = (part.ravel() for part in np.indices((count, size)))
        if self.kind == "ahead":
            local: Names = {"k": index}
            down, right = (index * names[name][rows] for name in ("down", "right"))
        else:
            down, right = np.array(self.offsets)[index].T
            local = {"dy": down, "dx": right}
        y, x = names["row"][rows] + down, names["column"][rows] + right
        y = y % height if self.wraps[0] else y
        x = x % width if self.wraps[1] else x
        inside = (y >= 0) & (y < height) & (x >= 0) & (x < width)
        local = {name: values[inside] for name, values in local.items()}
        y, x = y[inside], x[inside]
        return StageSamples(rows[inside], y, x, {**local, "y": y, "x": x})

    @property
    def lines(self) -> list[str]:
        """Return the lines of the loop; the body is indented by `depth` levels."""
        height, width = self.shape
        if self.kind == "all":
            across = f"for x in range({width}):"
            return (
                ["y = 0", across]
                if height == 1
                else [f"for y in range({height}):", f"    {across}"]
            )
        if self.kind == "ahead":
            head, step = f"for k in range({self.reach}):", ("k * down", "k * right")
        else:
            head, step = "for dy, dx in self.NEAR:", ("dy", "dx")
        y, x = f"row + {step[0]}", f"column + {step[1]}"
        y = f"({y}) % {height}" if self.wraps[0] else y
        x = f"({x}) % {width}" if self.wraps[1] else x
        limits = [f"0 <= y < {height}"] * (not self.wraps[0])
        limits += [f"0 <= x < {width}"] * (not self.wraps[1])
        check = [f"    if not ({' and '.join(limits)}):", "        continue"] if limits else []
        return [head, f"    y, x = {y}, {x}", *check]

    @property
    def depth(self) -> int:
        """Levels of indentation of the body."""
        return 2 if self.kind == "all" and self.shape[0] > 1 else 1


@dataclass(frozen=True)
class RuleStage:
    """Rules for the cells that a loop visits, all computed from the board before the stage."""

    loop: Loop
    terms: tuple[BoardTerm, ...]
    effects: tuple[CellEffect, ...]
    rules: RelationList

    def apply(self, names: Names) -> Array:
        """Return the boards after the stage."""
        board: Array = names["board"].values
        samples = self.loop.samples(names, len(board))
        found = sampled(names, samples)
        values = {
            term.name: found[term.name]
            for term in define(self.terms, found)
            if term.name in self.rules.features
        }
        which = self.rules.effects(values, len(samples.rows))
        after = board.copy()
        for number in np.unique(which).tolist():
            mask = which == number
            value = np.broadcast_to(evaluate(self.effects[number].text, found), mask.shape)
            after[samples.rows[mask], samples.y[mask], samples.x[mask]] = value[mask]
        return after


def sampled(names: Names, samples: StageSamples) -> Names:
    """Return the names of boards with one entry per sample."""
    found: Names = {
        name: Boards(value.values, samples.rows)
        if isinstance(value, Boards)
        else value[samples.rows]
        for name, value in names.items()
    }
    return {**found, **samples.local}


def define(terms: Iterable[BoardTerm], names: Names) -> list[BoardTerm]:
    """Evaluate terms in order and add their values to the names; return the terms."""
    done = []
    for term in terms:
        size = next(len(v) for v in names.values() if isinstance(v, np.ndarray))
        names[term.name] = np.broadcast_to(evaluate(term.text, names), size).astype(np.int64)
        done.append(term)
    return done


class StageDraft(NamedTuple):
    """What the rules of a stage may use; the first effect keeps the value."""

    loop: Loop
    terms: tuple[BoardTerm, ...]
    effects: tuple[CellEffect, ...]


def fit_stage(
    draft: StageDraft,
    names: Names,
    after: Array,
    spend: Spend,
    error_bits: float,
    mask: Array | None = None,
) -> RuleStage:
    """Learn the rules of a stage.

    Args:
        draft: What the rules may use.
        names: Values of the variables, with one entry per board; `board` has the boards.
        after: Boards of shape (boards, rows, columns) after the stage.
        spend: Takes multiplications.
        error_bits: Price of a wrong cell.
        mask: The boards to learn from.
    """
    loop, terms, effects = draft
    samples = loop.samples(names, len(after))
    if mask is not None:
        keep = mask[samples.rows]
        local = {name: values[keep] for name, values in samples.local.items()}
        samples = StageSamples(samples.rows[keep], samples.y[keep], samples.x[keep], local)
    found = sampled(names, samples)
    features = [
        RelationFeature(term.name, term.kind, found[term.name], term.price)
        for term in define(terms, found)
    ]
    target = after[samples.rows, samples.y, samples.x]
    correct = np.stack(
        [np.broadcast_to(evaluate(e.text, found) == target, target.shape) for e in effects], axis=1
    )
    useful = useful_effects(correct)
    bias = Bias(error_bits, [effects[index].price for index in useful])
    rules = learn(features, correct[:, useful], spend, bias)
    return RuleStage(loop, tuple(terms), tuple(effects[index] for index in useful), rules)


def useful_effects(correct: Array, most: int = 16) -> list[int]:
    """Return the effects that explain most samples which the first effect does not, in order."""
    wrong = correct[:, 0] == 0
    counts = correct[wrong].sum(0)
    ranked = sorted(range(1, correct.shape[1]), key=lambda index: -counts[index])
    return [0, *sorted(index for index in ranked[:most] if counts[index] > 0)]


def needed_terms(terms: Sequence[BoardTerm], text: str) -> list[BoardTerm]:
    """Return the terms with a name of their own that a text needs, in order."""
    needed: list[BoardTerm] = []
    for term in reversed(terms):
        if term.name != term.text and mentions(text, term.name):
            needed.insert(0, term)
            text += f"\n{term.text}"
    return needed


def mentions(text: str, name: str) -> bool:
    """Return whether a text contains a name as a word."""
    return re.search(rf"(?<![\w.]){re.escape(name)}(?!\w)", text) is not None


def branch_lines(
    rules: RelationList, effects: Sequence[CellEffect], assign: Callable[[str], str | None]
) -> list[str]:
    """Write rules as `if` and `elif`; `assign` returns the statement of an effect, or None."""
    branches = [
        (
            " and ".join(condition.text for condition in rule.conditions),
            assign(effects[rule.effect].text),
        )
        for rule in rules.rules
    ]
    last = assign(effects[rules.default].text)
    while branches and branches[-1][1] == last:
        branches.pop()
    lines: list[str] = []
    merged = _merged(branches)
    if len(merged) == 1 and merged[0][1] is None and last is not None:
        test = merged[0][0]
        opposite = test.removeprefix("not ")
        simple = opposite != test and " and " not in test and " or " not in test
        return [f"if {opposite if simple else f'not ({test})'}:", f"    {last}"]
    for number, (test, statement) in enumerate(merged):
        lines += [f"{'elif' if number else 'if'} {test}:", f"    {statement or 'pass'}"]
    if last is not None:
        lines += ["else:", f"    {last}"] if lines else [last]
    return lines


def _merged(branches: list[tuple[str, str | None]]) -> list[tuple[str, str | None]]:
    """Join neighbouring branches with the same statement by `or`."""
    groups: list[tuple[list[str], str | None]] = []
    for test, statement in branches:
        if groups and groups[-1][1] == statement:
            groups[-1][0].append(test)
        else:
            groups.append(([test], statement))
    merged = []
    for tests, statement in groups:
        bracketed = [f"({test})" if " and " in test else test for test in tests]
        merged.append((" or ".join(bracketed) if len(tests) > 1 else tests[0], statement))
    return merged


def stage_lines(stage: RuleStage, source: str = "board") -> list[str]:
    """Write a stage as lines of `step`: the new board is computed from `board`."""
    body = branch_lines(
        stage.rules,
        stage.effects,
        lambda text: None if text == "here" else f"after[y, x] = {text}",
    )
    local = needed_terms([t for t in stage.terms if per_cell(t)], "\n".join(body))
    inner = [*(f"{term.name} = {term.text}" for term in local), *body]
    indent = "    " * stage.loop.depth
    return [
        f"after = {source}.copy()",
        *stage.loop.lines,
        *(indent + line for line in inner),
        "board = after",
    ]


def per_cell(term: BoardTerm) -> bool:
    """Return whether a term depends on the cell of the loop."""
    return any(mentions(term.text, name) for name in ("y", "x", "dy", "dx", "k", "here"))
