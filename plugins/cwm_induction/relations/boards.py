"""Boards of cells: stages that change cells by equal rules, then turns, falls and lines."""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from cwm_induction.continuous.samples import Array
from cwm_induction.decision_list import Bias
from cwm_induction.discrete.expressions import wrapped
from cwm_induction.relations.consequences import StageConsequence, turned
from cwm_induction.relations.expressions import FUNCTIONS, Boards, Names
from cwm_induction.relations.layout import BoardLayout, place_of
from cwm_induction.relations.model import PartsModel, ProgramText, steps_of
from cwm_induction.relations.rules import (
    EffectRules,
    RuleEffect,
    RuleTerm,
    RuleVocabulary,
    Spend,
    define,
    definitions,
    fit_rules,
    mentions,
    plain_effects,
    plain_terms,
)

MAX_ACTIONS = 12
"""With this many actions or more, an action is the number of a cell, not a kind of move."""

AHEAD = ("ahead", "beyond", "third", "fourth")
"""Names of the cells in the direction of the action."""

NEIGHBOURS = {"left": (0, -1), "right_of": (0, 1), "above": (-1, 0), "below": (1, 0)}


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

    def samples(self, names: Names) -> Names:
        """Return names with one entry per visited cell, `board_of` numbers its board."""
        count, (height, width) = len(names["board"].values), self.shape
        if self.kind == "all":
            rows, y, x = (part.ravel() for part in np.indices((count, height, width)))
            return _sampled(names, rows, {"y": y, "x": x})
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
        local = {name: values[inside] for name, values in {**local, "y": y, "x": x}.items()}
        return _sampled(names, rows[inside], local)

    @property
    def lines(self) -> list[str]:
        """Return the lines of the loop; the body is indented by `depth` levels."""
        height, width = self.shape
        if self.kind == "all":
            across = f"for x in range({width}):"
            down = ["y = 0"] if height == 1 else [f"for y in range({height}):"]
            return [*down, "    " * (self.depth - 1) + across]
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


def _sampled(names: Names, rows: Array, local: Names) -> Names:
    found: Names = {
        name: Boards(value.values, rows) if isinstance(value, Boards) else value[rows]
        for name, value in names.items()
    }
    return {**found, **local, "board_of": rows}


@dataclass(frozen=True)
class RuleStage:
    """Rules for the cells that a loop visits, all computed from the board before the stage."""

    loop: Loop
    rules: EffectRules

    def apply(self, names: Names) -> Names:
        """Return the names with the boards after the stage."""
        found = self.loop.samples(names)
        cells = found["board_of"], found["y"], found["x"]
        after: Array = names["board"].values.copy()
        after[cells] = self.rules.outcomes(found, len(cells[0]))
        return {**names, "board": Boards(after)}

    @property
    def lines(self) -> list[str]:
        """Write the lines of `step`: the new board is computed from `board`."""
        body = self.rules.lines(lambda text: None if text == "here" else f"after[y, x] = {text}")
        if not body:
            return []
        inner = [*definitions(self.rules.terms, "\n".join(body)), *body]
        indent = "    " * self.loop.depth
        return [
            "after = board.copy()",
            *self.loop.lines,
            *(indent + line for line in inner),
            "board = after",
        ]


def fit_stage(
    loop: Loop,
    vocabulary: RuleVocabulary,
    names: Names,
    after: Array,
    spend: Spend,
    error_bits: float,
) -> RuleStage:
    """Learn the rules of a stage.

    Args:
        loop: The cells that may change.
        vocabulary: Terms of conditions and new values; the first effect keeps the value.
        names: Values of the variables, with one entry per board; `board` has the boards.
        after: Boards of shape (boards, rows, columns) after the stage.
        spend: Takes multiplications.
        error_bits: Price of a wrong cell.
    """
    found = loop.samples(names)
    target = after[found["board_of"], found["y"], found["x"]]
    return RuleStage(loop, fit_rules(vocabulary, target, found, spend, Bias(error_bits)))


@dataclass
class BoardModel(PartsModel):
    """The stages of a step in order, then the turn of a ring, then falls and lines."""

    layout: BoardLayout
    stages: list[RuleStage] = field(default_factory=list)
    turn: EffectRules | None = None
    consequence: StageConsequence | None = None

    summary = "A board whose cells follow the same rules"

    def moved(self, before: Array, action: Array) -> tuple[Array, Names]:
        """Return the observations after the moves, and the names that later rules may use."""
        names = start_names(self.layout, before, action)
        for stage in self.stages:
            names = stage.apply(names)
        board = names["board"].values
        names["middle"] = names["board"]
        if self.turn:
            board = turned(board, self.turn.outcomes(names, len(before)))
        if self.consequence:
            board, events = self.consequence.apply(board)
            names |= events
        names["board"] = Boards(board)
        shown = self.layout.ground.shown(board) if self.layout.ground else board
        names["new"] = Boards(shown)
        after = before.copy()
        after[:, : self.layout.cells] = shown.reshape(len(board), -1)
        return after, names

    def quantity_terms(self, names: Names) -> list[RuleTerm]:
        """Return the terms of single quantities: values before the step."""
        return step_terms(self.layout, names, "old")

    def copies(self, component: int) -> list[RuleEffect]:
        """Return the cells of a line, or the cell that the action names."""
        texts = ["pressed"] if self.layout.focus in ("cell", "column") else []
        return plain_effects([*texts, *_line_places(self.layout, "old")], 1.0)

    def payment_terms(self, names: Names) -> tuple[list[RuleTerm], list[RuleTerm]]:
        """Return the terms of weighted sums, and the terms of conditions."""
        layout = self.layout
        codes = np.unique([names["old"].values, names["new"].values]).tolist()
        events = self.consequence.events if self.consequence else []
        middle = "middle" if self.consequence or self.turn else "new"
        changes = [f"count({middle}, {code}) - count(old, {code})" for code in reversed(codes)]
        changes += [f"new_x{c} - x{c}" for c in layout.extras]
        now, then = ([f"count({board}, {code})" for code in codes] for board in ("new", "old"))
        new = [f"new_x{c}" for c in layout.extras]
        conditions = []
        if layout.focus == "agent":
            moved = " & ".join(f"(at(board, row, column) != {code})" for code in layout.agent)
            conditions.append(RuleTerm("moved", moved, "flag"))
        conditions += step_terms(layout, names, "old")
        conditions += plain_terms("number", events, 0.5)
        conditions += plain_terms("number", [*new, *now, "differing(new, old)"], 1.0)
        conditions += plain_terms("number", changes, 2.0) + plain_terms("number", then, 3.0)
        if layout.shape[0] == 1:
            same = [f"(new[0, {place}] == old[0, {place}])" for place in range(layout.cells)]
            conditions += plain_terms("flag", same, 3.0)
        if layout.turns and layout.extras:
            # cells and the other places of items together
            empty = ["count(new, 0)", *(f"({name} == 0)" for name in new)]
            conditions += plain_terms("number", [" + ".join(empty)], 1.0)
        if middle == "middle":
            counts = [f"count(middle, {code})" for code in codes]
            conditions += plain_terms("number", counts, 1.0)
        cells = [f"new[{y}, {x}]" for y, x in np.ndindex(layout.shape)]
        conditions += plain_terms("code", cells, 4.0)
        return plain_terms("number", [*events, *changes, *reversed(now), *new]), conditions

    def functions(self) -> dict[str, str]:
        """Return the functions that programs may call, by name."""
        return {**FUNCTIONS, "lines": self.consequence.function if self.consequence else ""}

    def program_text(self, end: str) -> ProgramText:
        """Write the program up to the moves; `end` is the text after these."""
        layout, constants = self.layout, list[str]()
        moves = [line for stage in self.stages for line in stage.lines]
        if mentions(end, "middle"):
            moves.append("middle = board")
        if self.turn:
            moves += self.turn.lines("shift = {}".format)
            moves.append("board = np.roll(board, shift, axis=1)")
        moves += self.consequence.lines if self.consequence else []
        if layout.ground:
            constants += wrapped("MARKED = ", str(list(layout.ground.marked)))
            constants.append(f"ON_MARK = {dict(layout.ground.codes)}  # values on marked cells")
            moves.append("new = board.copy()")
            moves += ["for y, x in self.MARKED:", "    new[y, x] = self.ON_MARK[int(board[y, x])]"]
        else:
            moves.append("new = board")
        if any("self.NEAR" in line for line in moves):
            constants += wrapped("NEAR = ", str(list(self.stages[0].loop.offsets)))
        if layout.focus == "agent":
            constants.append(f"STEPS = {layout.steps}  # rows and columns by action")
        start = self._start_lines("\n".join([*moves, end]))
        finish = "self.state = new.reshape(self.state.shape)"
        if layout.extras:
            finish = f"numbers[:{layout.cells}] = new.ravel()"
        return ProgramText(constants, start, moves, [finish])

    def _start_lines(self, text: str) -> list[str]:
        """Write the board and the variables before the first stage that a text needs."""
        layout = self.layout
        height, width = layout.shape
        part = f"numbers[:{layout.cells}]" if layout.extras else "self.state"
        lines = [f"old = {part}.reshape({height}, {width})", "board = old.copy()"]
        if layout.ground:
            lines += [
                "for plain, shown in self.ON_MARK.items():",
                "    board[old == shown] = plain",
            ]
        variables = definitions(prelude(layout), text)
        if layout.focus == "agent":
            codes = layout.agent
            test = f"np.isin(board, {codes})" if len(codes) > 1 else f"board == {codes[0]}"
            if layout.vanishes:
                lines.append(f"places = np.argwhere({test}).tolist()")
                lines.append("row, column = places[0] if places else (-1, -1)")
            else:
                lines.append(f"row, column = (int(place[0]) for place in np.nonzero({test}))")
            lines.append("down, right = self.STEPS.get(int(action), (0, 0))")
        elif layout.focus == "cell":
            lines.append(f"row, column = divmod(int(action), {width})")
        elif layout.focus == "column":
            lines.append("column = int(action)")
            lines.append("row = (board[:, column] == 0).sum() - 1  # the lowest empty cell")
        return [*lines, *variables]


def start_names(layout: BoardLayout, before: Array, action: Array) -> Names:
    """Return the variables of a step before its first stage."""
    board = Boards(layout.boards(before))
    names: Names = {"action": action, "board": board, "old": Boards(layout.shown(before))}
    names |= {f"x{component}": before[:, component] for component in layout.extras}
    if layout.focus == "agent":
        names["row"], names["column"] = place_of(board.values, layout.agent).T
        names["down"], names["right"] = steps_of(layout.steps, action)
    elif layout.focus == "cell":
        names["row"], names["column"] = np.divmod(action, layout.shape[1])
    elif layout.focus == "column":
        names["column"] = action
        names["row"] = (board.values[board.rows, :, action] == 0).sum(axis=1) - 1
    define(prelude(layout), names, len(action))
    return names


def prelude(layout: BoardLayout) -> list[RuleTerm]:
    """Return the variables that are computed from the board before the first stage."""
    if layout.focus == "agent":
        steps = ["", *(f"{k} * " for k in range(2, len(AHEAD) + 1))]
        return [
            RuleTerm(name, f"at(board, row + {k}down, column + {k}right)", "code", 0.5 * number)
            for number, (name, k) in enumerate(zip(AHEAD, steps, strict=True))
        ]
    return [RuleTerm("pressed", "at(board, row, column)", "code")] if layout.focus else []


def codes_of(names: Names) -> list[int]:
    """Return the values that cells have."""
    return [int(code) for code in np.unique(names["board"].values)]


def step_terms(layout: BoardLayout, names: Names, board: str = "board") -> list[RuleTerm]:
    """Return terms that have one value per step, which a board with a name shows."""
    terms = [term._replace(text=term.name) for term in prelude(layout)]
    if layout.focus in ("cell", "column"):
        terms += plain_terms("number", ["row", "column"], 3.0)
    if int(names["action"].max()) < MAX_ACTIONS:
        terms += plain_terms("code", ["action"], 0.5)
    extras = [f"x{component}" for component in layout.extras]
    terms += plain_terms("number", extras, 1.0)
    places = _line_places(layout, board)
    terms += plain_terms("code", places, 1.5)
    for place, text in enumerate(places):
        others = [*places[place + 1 :], *extras]
        terms += plain_terms("flag", [f"({text} == {other})" for other in others], 3.0)
    triples = zip(places, places[1:], places[2:], strict=False)
    return terms + plain_terms("number", [f"distinct({', '.join(t)})" for t in triples], 3.0)


def _line_places(layout: BoardLayout, board: str) -> list[str]:
    """Return the cells of a line one by one; boards with several rows have too many cells."""
    if layout.shape[0] > 1:
        return []
    return [f"{board}[0, {place}]" for place in range(layout.cells)]


def cell_terms(layout: BoardLayout, names: Names, everywhere: bool = False) -> list[RuleTerm]:
    """Return terms of the cell of a loop around the focus, or of a loop over all cells."""
    terms = step_terms(layout, names)
    if everywhere and layout.focus:
        if layout.focus == "agent":
            entered = "(y == row + down) & (x == column + right)"
            terms.append(RuleTerm("entered", entered, "flag", 1.0))
        offsets = ("dy", "y - row"), ("dx", "x - column")
        terms += [RuleTerm(*offset, "number", 2.0) for offset in offsets]
    elif layout.focus == "agent":
        terms += plain_terms("number", ["k"])
    elif layout.focus:
        terms += plain_terms("number", ["dy", "dx"], 1.0)
        near = ["abs(dy) + abs(dx)", "abs(dy)", "abs(dx)", "max(abs(dy), abs(dx))"]
        terms += plain_terms("number", near)
    terms.append(RuleTerm("here", "at(board, y, x)", "code"))
    for name, offset in _neighbours(layout).items():
        terms.append(RuleTerm(name, _shifted(layout, *offset), "code", 1.0))
    if layout.shape[0] == 1:
        return [*terms, *plain_terms("number", ["x"], 1.0)]
    terms += plain_terms("number", ["y", "x"], 3.0)
    if any(layout.wraps):
        return terms
    around = [f"count_around(board, y, x, {code})" for code in codes_of(names)]
    return [*terms, *plain_terms("number", around, 3.0)]


def _neighbours(layout: BoardLayout) -> dict[str, tuple[int, int]]:
    return dict(list(NEIGHBOURS.items())[: 2 if layout.shape[0] == 1 else 4])


def _shifted(layout: BoardLayout, down: int, right: int) -> str:
    """Write the neighbour of a cell of the loop."""
    place = []
    for name, step, size, wraps in zip(
        "yx", (down, right), layout.shape, layout.wraps, strict=True
    ):
        text = f"{name} {'+' if step > 0 else '-'} {abs(step)}" if step else name
        place.append(f"({text}) % {size}" if step and wraps else text)
    return f"at(board, {', '.join(place)})"


def cell_effects(layout: BoardLayout, names: Names) -> list[RuleEffect]:
    """Return the new values that a cell may get."""
    codes = codes_of(names)
    effects = [RuleEffect("here")]
    if codes == [0, 1]:
        effects.append(RuleEffect("1 - here", -1.0))
    effects += plain_effects(map(str, codes))
    if layout.focus == "agent":
        effects.append(RuleEffect("at(board, y - down, x - right)"))
        effects.append(RuleEffect("ahead", 1.0))
    elif layout.focus:
        effects.append(RuleEffect("pressed", 1.0))
    effects += plain_effects(_neighbours(layout), 1.0)
    effects += plain_effects(f"x{component}" for component in layout.extras)
    return effects + plain_effects(_line_places(layout, "board"), 1.0)
