"""Lookup tables for values that a few integers decide but no law predicts."""

from collections.abc import Iterator
from itertools import combinations
from typing import NamedTuple

import numpy as np

from cwm_induction.continuous.samples import Array
from cwm_induction.refining.targets import TracedRows

MAX_KEYS = 3
"""Most components of an observation in a key, besides the action; more would store rows."""

MAX_COMPONENTS = 8
"""Most components of an observation that are tried: those with the fewest values."""

MAX_ENTRIES = 60
"""Most entries of a table, so that it stays readable."""

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


class Table(NamedTuple):
    """The values of one predicted number by key: components of the observation and the action.

    `base` is added to an entry: "" (nothing), "before" (the observed value) or "predicted".
    """

    number: int
    keys: tuple[int, ...]
    entries: dict[tuple[int, ...], float]
    base: str
    corrected: int


def find_tables(traced: TracedRows) -> list[Table]:
    """Return a table for each wrong number that few integers decide."""
    data, space = traced.data, traced.data.observation_space
    is_plain = not space.children and space.kind != "text" and data.action_space.kind == "discrete"
    if not is_plain or len(data) == 0 or HEADING in traced.source.text:
        return []
    observed = data.columns["observations"].reshape(len(data), -1).astype(float)
    if not (observed == np.round(observed)).all():
        return []
    known = np.column_stack([observed, data.columns["actions"]]).astype(int)
    counts = [len(np.unique(column)) for column in observed.T]
    components = sorted(np.argsort(counts, kind="stable")[:MAX_COMPONENTS].tolist())
    wrong = np.flatnonzero(traced.wrong.any(axis=0)).tolist()
    found = (next(_tables(traced, known, components, number), None) for number in wrong)
    return [table for table in found if table is not None]


def _tables(
    traced: TracedRows, known: Array, components: list[int], number: int
) -> Iterator[Table]:
    """Yield tables for one number, those with few keys first."""
    wrong, truth = traced.wrong[:, number], traced.truth[:, number]
    counts = np.ones(len(truth), bool)
    targets = [("", truth)]
    if number < traced.truth.shape[1] - 1:  # the end is no sum
        targets.append(("predicted", truth - traced.predicted[:, number]))
    if number < known.shape[1] - 1:  # observations after the end do not count
        counts = ~traced.data.columns["terminations"]
        targets.insert(0, ("before", truth - known[:, number]))
    for size in range(min(MAX_KEYS, len(components)) + 1):
        fitting = []
        for keys in combinations(components, size):
            rows = known[:, [*keys, known.shape[1] - 1]]
            for base, target in targets:
                entries = _entries(rows, target, wrong, counts)
                # An entry has to correct two values on average: one each would store rows.
                if entries and 2 * len(entries) <= wrong.sum():
                    fitting.append(Table(number, keys, entries, base, int(wrong.sum())))
        if fitting:
            yield min(fitting, key=lambda table: len(table.entries))


def _entries(
    keys: Array, target: Array, wrong: Array, counts: Array
) -> dict[tuple[int, ...], float]:
    """Return the value of each key of a wrong row, {} if a key has several values."""
    pairs = zip(map(tuple, keys[wrong].tolist()), target[wrong].tolist(), strict=True)
    entries = dict(pairs)
    if len(entries) > MAX_ENTRIES:
        return {}
    for key, value in zip(keys[counts].tolist(), target[counts].tolist(), strict=True):
        if not np.isclose(entries.get(tuple(key), value), value, rtol=1e-9, atol=1e-9):
            return {}
    return entries


def add_tables(traced: TracedRows, tables: list[Table]) -> str:
    """Return the program with a subclass that looks values up."""
    width, single = traced.truth.shape[1] - 2, traced.data.observation_space.kind == "discrete"
    declared, statements = [], []
    for table in tables:
        is_observed = table.number < width
        names = {width: "REWARD", width + 1: "TERMINATED"}
        name = names.get(table.number, f"NEXT_{table.number}")
        key = "".join(f"known[{index}], " for index in table.keys) + "action"
        entries = ", ".join(
            f"{entry if len(entry) > 1 else entry[0]}: {_value_text(table, value, width)}"
            for entry, value in sorted(table.entries.items())
        )
        sources = ", ".join([*(f"observation[{index}]" for index in table.keys), "action"])
        declared += [f"    {HEADING} by {sources}.", f"    {name} = {{{entries}}}"]
        place = "following" if single else f"following.flat[{table.number}]"
        place = {width: "reward", width + 1: "terminated"}.get(table.number, place)
        bases = {"": "", "before": f"known[{table.number}] + ", "predicted": f"{place} + "}
        statements.append(f"        if ({key}) in self.{name}:")
        if is_observed and not single:
            statements.append("            following = np.array(following)")
        statements.append(f"            {place} = {bases[table.base]}self.{name}[{key}]")
        if is_observed:
            statements.append("            super().set_state(following)")
    values = "[int(observation)]" if single else "np.ravel(observation).astype(int).tolist()"
    text = traced.source.text.rstrip() + "\n"
    if "import numpy as np" not in text and not single:
        text = f"import numpy as np\n{text}"
    statements.append("        self.known = " + values.replace("observation", "following"))
    return text + _CLASS.format(
        tables="\n".join(declared), values=values, statements="\n".join(statements)
    )


def _value_text(table: Table, value: float, width: int) -> str:
    if table.number == width + 1:
        return str(bool(value))
    is_integer = table.number < width and value == round(value)
    return str(int(value)) if is_integer else repr(float(value))
