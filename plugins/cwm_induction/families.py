"""The families of programs behind one interface: rules for whole numbers, equations for real ones.

An attempt is given a task, and answers with a program and with further
attempts that its program suggests.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_cli.data.spaces import Columns
from cwm_induction import discrete
from cwm_induction.arrangements import Arrangement, is_numeric, is_whole
from cwm_induction.continuous.hypothesis import Hypothesis
from cwm_induction.continuous.inducing import induce, write
from cwm_induction.continuous.samples import Array
from cwm_induction.effort import Effort
from cwm_induction.fallback import unchanged
from cwm_induction.losses import losses, wrong_rows
from cwm_induction.writing.emission import EmissionError

DEFAULT = Hypothesis()
WITHOUT = {
    "mechanics": Hypothesis(mechanics=False),
    "regimes": Hypothesis(regimes=False),
}
SIMPLE = Hypothesis(level=1, mechanics=False, regimes=False)


@dataclass(frozen=True)
class Task:
    """Transitions to explain: equations are not fitted to the rows held back.

    `step` numbers the question in its search, so that no two are answered alike.
    """

    data: Dataset
    held_back: Array
    seed: int
    step: int
    effort: Effort


class Answer(NamedTuple):
    """A program, "" for none, and what else is worth trying.

    `judged` is the program to believe in as far as it predicts the rows held
    back, where that is another one: of rules that remember every row it is
    the one that never saw them.
    """

    program: str
    more: "tuple[Attempt, ...]" = ()
    judged: str = ""


class Attempt(Protocol):
    """A way to come to a program."""

    def __call__(self, task: Task) -> Answer:
        """Write a program; it is not run yet."""
        ...


@dataclass(frozen=True)
class Rules:
    """Reads rules off whole numbers."""

    def __call__(self, task: Task) -> Answer:
        """Write rules for all rows, and where equations compete also without those held back."""
        task.effort.tell("reading rules off whole numbers")
        program = self._written(task.data, task)
        if not has_equations(task.data) or not task.held_back.any():
            return Answer(program)
        return Answer(program, judged=self._written(task.data[~task.held_back], task))

    def _written(self, data: Dataset, task: Task) -> str:
        view, rng = readable(data), np.random.default_rng(task.seed)
        return view.nested(discrete.induce(view.flat(data), variant=task.step, rng=rng))


@dataclass(frozen=True)
class Memory:
    """Remembers the usual outcome where a program of rules is wrong."""

    program: str
    wrong: Array

    def __call__(self, task: Task) -> Answer:
        """Add what is to be remembered to the program."""
        view = readable(task.data)
        program = view.flattened(self.program)
        return Answer(view.nested(discrete.improve(program, view.flat(task.data), self.wrong)))


@dataclass(frozen=True)
class Equations:
    """Looks for equations; without those that only some families have if they are not exact."""

    hypothesis: Hypothesis = DEFAULT

    def __call__(self, task: Task) -> Answer:
        """Write a program of equations, or none if they cannot be put in order."""
        task.effort.tell("looking for equations")
        view, rng = real(task.data), np.random.default_rng(task.seed)
        try:
            data = view.flat(task.data)
            findings = induce(data, task.held_back, self.hypothesis, rng, task.effort)
            program = view.nested(write(findings))
        except (EmissionError, np.linalg.LinAlgError):
            return Answer("", (Equations(SIMPLE),) if self.hypothesis != SIMPLE else ())
        families = sorted(findings.dynamics.families) if self.hypothesis == DEFAULT else ()
        return Answer(program, tuple(Equations(WITHOUT[name]) for name in families))


@dataclass(frozen=True)
class Unchanged:
    """Predicts that nothing changes, which is better than much that is wrong."""

    def __call__(self, task: Task) -> Answer:
        """Write the program."""
        return Answer(unchanged(task.data))


def attempts(data: Dataset) -> Iterator[Attempt]:
    """Yield what to try for a new program, the likeliest first."""
    if has_rules(data):
        yield Rules()
    if has_equations(data):
        yield Equations()
    yield Unchanged()


def improvements(task: Task, program: str, predictions: Columns) -> Iterator[Attempt]:
    """Yield what to try instead of a program that runs: mend the part that is wrong most.

    Rows that stay wrong are remembered where observations recur.
    """
    if has_equations(task.data):
        view = real(task.data)
        shares = losses(view.flat(task.data), view.flat_columns(predictions), task.held_back)
        wrong = sorted((part for part in shares if shares[part] > 0), key=lambda p: -shares[p])
        if wrong:
            yield Equations(replace(DEFAULT, deeper=frozenset(wrong[:1])))
            yield Equations(replace(DEFAULT, deeper=frozenset(wrong)))
    if has_rules(task.data):
        rows = wrong_rows(predictions, task.data)
        if rows.any():
            yield Memory(program, rows)


def fixes(data: Dataset, culprit: frozenset[str]) -> Iterator[Attempt]:
    """Yield what to try instead of a program that fails where the culprit is computed."""
    if has_equations(data):
        yield Equations(replace(DEFAULT, plain=culprit))


def has_rules(data: Dataset) -> bool:
    """Whether rules can explain these transitions: few whole numbers."""
    if discrete.supports(data):
        return True
    whole = is_numeric(data.observation_space) and is_whole(data)
    return whole and discrete.supports(readable(data).flat(data))


def has_equations(data: Dataset) -> bool:
    """Whether equations can explain these transitions: numbers that are more than labels."""
    kinds = {leaf.space.kind for leaf in data.observation_space.leaves("observations")}
    numbers = is_numeric(data.observation_space) and is_numeric(data.action_space)
    return len(data) > 0 and numbers and bool(kinds & {"box", "multidiscrete"})


def readable(data: Dataset) -> Arrangement:
    """Arrange observations as whole numbers, unless rules can read them as they are."""
    return Arrangement.of(data, "" if discrete.supports(data) else "int64")


def real(data: Dataset) -> Arrangement:
    """Arrange observations as real numbers, rounded as they were stored."""
    leaves = [*data.observation_space.leaves("observations")]
    floats = {data.columns[leaf.name].dtype for leaf in leaves if leaf.space.is_float}
    return Arrangement.of(data, "float32" if floats == {np.dtype("float32")} else "float64")
