"""A table of exceptions: what follows where few whole numbers decide it and no law was found."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Literal, NamedTuple

import numpy as np

from cwm_induction.continuous.samples import Array
from cwm_induction.refining.patching.needs import Standing

MOST_DECIDING = 3
"""Numbers of an observation that decide, beside the action: with more it is a list of rows."""

MOST_NUMBERS = 8
"""Numbers of an observation that are tried: those that vary least come first."""

MOST_ENTRIES = 60
"""Entries that a reader goes through."""

LEAST_SHARE = 2
"""Wrong values that an entry makes right on average: one each would be memory, and no rule."""

HEADING = "# Looked up, because no rule was found,"

_CLASS = '''

class Environment(Environment):
    """Adds lookup tables for values that no rule predicts."""

{tables}

    def set_state(self, observation):
        """Set the observation to predict from."""
        super().set_state(observation)
        self.known = {values}

    def step(self, action):
        """Predict the outcome of an action, with exceptions from the tables."""
        known, action = self.known, int(action)
        following, reward, terminated, *rest = super().step(action)
{statements}
        return (following, reward, terminated, *rest)
'''


class ExceptionTable(NamedTuple):
    """What one number of an answer is, by what decides it, or what is added to a `base`.

    That is what it was before the step, or what is predicted.
    """

    number: int
    deciding: tuple[int, ...]
    entries: dict[tuple[int, ...], float]
    base: Literal["", "before", "predicted"]
    mended: int


def tables(standing: Standing) -> list[ExceptionTable]:
    """Return a table for each number that is wrong and decided by few, where there is one."""
    data = standing.trials.data
    space = data.observation_space
    plain = not space.children and space.kind != "text" and data.action_space.kind == "discrete"
    if not plain or len(data) == 0 or HEADING in standing.trials.source.text:
        return []
    seen = data.columns["observations"].reshape(len(data), -1).astype(float)
    if not (seen == np.round(seen)).all():
        return []
    known = np.column_stack([seen, data.columns["actions"]]).astype(int)
    order = np.argsort([len(np.unique(column)) for column in seen.T], kind="stable")[:MOST_NUMBERS]
    found = []
    for number in np.flatnonzero(standing.wrong.any(axis=0)).tolist():
        offered = _offered(standing, known, sorted(order.tolist()), number)
        best = next(offered, None)
        if best is not None:
            found.append(best)
    return found


def _offered(
    standing: Standing, known: Array, numbers: list[int], number: int
) -> Iterator[ExceptionTable]:
    """Yield tables for one number of the answer, those that few numbers decide first."""
    wrong, truth = standing.wrong[:, number], standing.outcome.truth[:, number]
    counts = np.ones(len(truth), dtype=bool)
    targets: list[tuple[Literal["", "before", "predicted"], Array]] = [("", truth)]
    if number < standing.outcome.truth.shape[1] - 1:  # an end is a matter of yes or no
        targets.append(("predicted", truth - standing.said[:, number]))
    if number < known.shape[1] - 1:  # what is seen after the end does not matter
        counts = ~standing.trials.data.columns["terminations"]
        targets.insert(0, ("before", truth - known[:, number]))
    for size in range(min(MOST_DECIDING, len(numbers)) + 1):
        fitting = []
        for deciding in combinations(numbers, size):
            keys = known[:, [*deciding, known.shape[1] - 1]]
            for base, target in targets:
                entries = _entries(keys, target, wrong, counts)
                if entries and LEAST_SHARE * len(entries) <= wrong.sum():
                    mended = int(wrong.sum())
                    fitting.append(ExceptionTable(number, deciding, entries, base, mended))
        yield from sorted(fitting, key=lambda table: len(table.entries))[:1]


def _entries(
    keys: Array, target: Array, wrong: Array, counts: Array
) -> dict[tuple[int, ...], float]:
    """Return what each key of a wrong row leads to; nothing where one leads to several."""
    entries = {
        tuple(key): value
        for key, value in zip(keys[wrong].tolist(), target[wrong].tolist(), strict=True)
    }
    if len(entries) > MOST_ENTRIES:
        return {}
    for key, value in zip(keys[counts].tolist(), target[counts].tolist(), strict=True):
        if not np.isclose(entries.get(tuple(key), value), value, rtol=1e-9, atol=1e-9):
            return {}
    return entries


def with_tables(standing: Standing, found: list[ExceptionTable]) -> str:
    """Write tables below a program, in a class of the same name that goes by them."""
    space = standing.trials.data.observation_space
    width = standing.outcome.truth.shape[1] - 2
    names = {width: "REWARD", width + 1: "TERMINATED"}
    single, declared, statements = space.kind == "discrete", [], []
    for table in found:
        name = names.get(table.number, f"NEXT_{table.number}")
        key = "".join(f"known[{index}], " for index in table.deciding) + "action"
        entries = ", ".join(
            f"{entry if len(entry) > 1 else entry[0]}: {_value(table, value, width)}"
            for entry, value in sorted(table.entries.items())
        )
        told = ", ".join([*(f"observation[{index}]" for index in table.deciding), "action"])
        declared += [f"    {HEADING} by {told}.", f"    {name} = {{{entries}}}"]
        statements.append(f"        if ({key}) in self.{name}:")
        looked = f"self.{name}[{key}]"
        place = "following" if single else f"following.flat[{table.number}]"
        place = {width: "reward", width + 1: "terminated"}.get(table.number, place)
        bases = {"": "", "before": f"known[{table.number}] + ", "predicted": f"{place} + "}
        if table.number < width and not single:
            statements.append("            following = np.array(following)")
        statements.append(f"            {place} = {bases[table.base]}{looked}")
        if table.number < width:
            statements.append("            super().set_state(following)")
    values = "[int(observation)]" if single else "np.ravel(observation).astype(int).tolist()"
    text = standing.trials.source.text.rstrip() + "\n"
    if "import numpy as np" not in text and not single:
        text = f"import numpy as np\n{text}"
    statements.append("        self.known = " + values.replace("observation", "following"))
    return text + _CLASS.format(
        tables="\n".join(declared), values=values, statements="\n".join(statements)
    )


def _value(table: ExceptionTable, value: float, width: int) -> str:
    """Write what a table holds as what it is: a whole number, a reward, or whether it ends."""
    if table.number == width + 1:
        return str(bool(value))
    if table.number < width and value == round(value):
        return str(int(value))
    return repr(float(value))
