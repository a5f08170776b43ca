"""The text of programs of objects with a row and a column each."""

import re
import textwrap
from collections.abc import Sequence

from cwm_induction.decision_list import RelationCondition
from cwm_induction.discrete.expressions import action_lines
from cwm_induction.discrete.transitions import IntegerEncoding
from cwm_induction.relations.places import FUNCTIONS, Mover, PlaceModel, resting_groups
from cwm_induction.relations.program import HEAD
from cwm_induction.relations.stages import branch_lines, mentions, needed_terms


def write_places(model: PlaceModel, encoding: IntegerEncoding, summary: str) -> str:
    """Write the program of a model of objects that move in turn."""
    layout, payments = model.layout, model.payments
    assert payments is not None
    moves = [line for mover in model.movers for line in _mover_lines(model, mover)]
    end = [line for quantity in model.quantities for line in quantity.lines]
    end += payments.lines
    terms = needed_terms(payments.terms, "\n".join(end))
    end = [*(f"{term.name} = {term.text}" for term in terms), *end]
    end = [*_end_names(model, "\n".join(end)), *end]
    text = "\n".join([*moves, *end])
    start = ["numbers = self.state.ravel()"]
    start += [f"x{c} = int(numbers[{c}])" for c in layout.extras if mentions(text, f"x{c}")]
    start.append("places = [[int(numbers[i]), int(numbers[j])] for i, j in self.PLACES]")
    if mentions(text, "before"):
        start.append("before = [list(place) for place in places]")
    finish = [
        "numbers = numbers.copy()",
        "for (i, j), place in zip(self.PLACES, places):",
        "    numbers[i], numbers[j] = place",
        *(f"numbers[{c}] = new_x{c}" for c in layout.extras),
        "self.state = numbers.reshape(self.state.shape)",
        "return self.state, reward, terminated",
    ]
    steps = {action: (down, right) for action, down, right in layout.steps}
    constants = [
        f"    PLACES = {list(layout.pairs)}  # components with row and column of each object\n",
        f"    STEPS = {steps}  # rows and columns by action\n\n",
    ]
    field = {"height": layout.height, "width": layout.width}
    functions = [code.format(**field) for name, code in FUNCTIONS.items() if mentions(text, name)]
    body = [*action_lines(encoding), *start, *moves, *end, *finish]
    program = HEAD.format(
        functions="".join(f"{code}\n\n" for code in functions),
        summary=summary,
        constants="".join(constants),
        body=textwrap.indent("\n".join(body), "        "),
    )
    return f"import numpy as np\n\n\n{program}"


def _mover_lines(model: PlaceModel, mover: Mover) -> list[str]:
    """Write the moves of one object, or a loop over several."""
    several = len(mover.objects) > 1
    index = "number" if several else str(mover.objects[0])

    def assign(text: str) -> str | None:
        return None if text == "row, column" else f"places[{index}] = [{text}]"

    rules = branch_lines(mover.rules, mover.effects, assign)
    if not rules:
        return []
    terms = needed_terms(mover.terms, "\n".join(rules))
    lines = [*(f"{term.name} = {term.text}" for term in terms), *rules]
    text = "\n".join(lines)
    start = [f"row, column = places[{index}]"]
    if mentions(text, "down"):
        start.append("down, right = self.STEPS.get(int(action), (0, 0))")
    for other in range(len(model.layout.pairs)):
        if mentions(text, f"row_{other}") or mentions(text, f"column_{other}"):
            start.append(f"row_{other}, column_{other} = places[{other}]")
    if mentions(text, "row_n") or mentions(text, "column_n"):
        outside = f" if not ({_region(mover.herd_rest, 'places[i]')})" if mover.herd_rest else ""
        start.append(f"others = [places[i] for i in {mover.herd}{outside}]")
        start.append("row_n, column_n = nearest(others, row, column)")
    lines = [*start, *lines]
    if several:
        lines = [f"for number in {mover.objects}:", *(f"    {line}" for line in lines)]
    return lines


def _region(rest: Sequence[RelationCondition], place: str) -> str:
    texts = [condition.text for condition in rest]
    plain = " and ".join(texts)
    return re.sub(r"\brow\b", f"{place}[0]", re.sub(r"\bcolumn\b", f"{place}[1]", plain))


def _end_names(model: PlaceModel, text: str) -> list[str]:
    """Write the variables that rewards and ends use."""
    lines = []
    for name, objects, rest in resting_groups(model):
        for prefix, places in (("old_", "before"), ("", "places")):
            if mentions(text, prefix + name):
                inside = _region(rest, f"{places}[i]")
                lines.append(f"{prefix}{name} = sum({inside} for i in {objects})")
    for number in range(len(model.layout.pairs)):
        for prefix, places in (("old_", "before"), ("", "places")):
            names = f"{prefix}row_{number}", f"{prefix}column_{number}"
            if any(mentions(text, name) for name in names):
                lines.append(f"{', '.join(names)} = {places}[{number}]")
    return lines
