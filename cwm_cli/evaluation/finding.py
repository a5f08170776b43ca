"""The contract that recorded rows need: plain, chance, memory or game.

A row is explained by the observation if every row with the same observation and action has the
same outcome. Rows that differ are compared with the history of their episodes: if the history
separates the outcomes better than outcomes that are shuffled among equal rows, a program needs
memory, otherwise chance. If observations are real numbers, almost equal rows are compared, after
a smooth regression on the observation and the action has removed the known part. Everything that
the data do not show to be memory or chance is plain. Rows of a game name the entry of the
observation with the player to move, and are not examined.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from pydantic import BaseModel, Field

from cwm_cli.data.dataset import Dataset
from cwm_cli.data.spaces import Columns
from cwm_cli.evaluation.history import (
    MAX_P_VALUE,
    ContextTests,
    RecordedPast,
    ShuffledOutcomes,
    paired,
)
from cwm_cli.evaluation.metric import match
from cwm_cli.evaluation.noise import NoiseLevel
from cwm_cli.evaluation.similar_rows import SimilarRows, choose_rows
from cwm_cli.text import percent

__all__ = [
    "CERTAIN",
    "USUAL_METRICS",
    "ContractName",
    "Finding",
    "RecordedPast",
    "find_contract",
    "reexamine",
    "usual_metric",
]

ContractName = Literal["plain", "chance", "memory", "game"]
"""The contracts of programs."""

CERTAIN: tuple[ContractName, ...] = ("plain", "game")
"""Contracts of programs that give one certain answer to each row, asked on its own."""

USUAL_METRICS: Mapping[ContractName, str] = {
    "plain": "accuracy",
    "chance": "skill",
    "memory": "skill",
    "game": "accuracy",
}
"""The default metric of each contract for data without noise."""


def usual_metric(contract: ContractName, *, is_noisy: bool) -> str:
    """Return the default metric of a contract.

    With noise, no program without random outcomes is exact, so that `explained` replaces the usual
    metric, unless the contract is chance.
    """
    return "explained" if is_noisy and contract != "chance" else USUAL_METRICS[contract]


FEW = 0.1
"""Conflicts are rare up to this share of the rows; then similar rows are compared as well."""


class Finding(BaseModel, frozen=True):
    """The contract that rows need, with the evidence.

    Attributes:
        contract: The contract that the rows need.
        rows: Number of rows.
        repeated: Pairs of observation and action that occur more than once.
        conflicts: Repeated pairs that have different outcomes.
        conflicting: Rows with a conflict.
        told_by: The part of the history that explains the differences, "" if none does.
        told: Share of the differences that it explains, between 0 and 1.
        components: Components that differ between almost equal rows (their number is the
            reward, one more the end), if no conflict of equal rows decided.
        unexplained: Share of the typical change that the observation and the action do not
            explain.
        tests: Number of tests; `p_value` is corrected for it.
        p_value: Probability of so strong a dependence on the history by chance.
        of_program: Whether the errors of a program were examined instead of the outcomes.
        noise: Noise levels by component, if they were estimated (see `noise_levels`).
        cancelling: Correlation of the residuals of consecutive steps, which is negative under
            sensor noise; 0 if no sensor noise was found.
    """

    contract: ContractName = "plain"
    rows: int = 0
    repeated: int = 0
    conflicts: int = 0
    conflicting: int = 0
    told_by: str = ""
    told: float = 0.0
    components: tuple[int, ...] = ()
    unexplained: float = 0.0
    tests: int = 0
    p_value: float = 1.0
    of_program: bool = False
    noise: dict[int, NoiseLevel] = Field(default_factory=dict)
    cancelling: float = 0.0

    @property
    def is_noisy(self) -> bool:
        """Whether noise keeps all programs from predicting a component exactly."""
        return any(level.is_noisy for level in self.noise.values())

    def words(self, names: Sequence[str] = ()) -> str:
        """Describe the evidence in a sentence, with names of components if given."""
        if self.contract == "plain":
            return "deterministic (no sign of randomness or hidden state in the data)"
        if self.contract == "game":
            return "the data have the player to move and the legal actions of two players"
        if self.cancelling:
            return (
                f"errors of {_name(self.components[0], names)} in consecutive rows cancel "
                f"(correlation {self.cancelling:.2f}), as with sensor noise, so earlier rows lower "
                "the error"
            )
        equal = "equal" if self.conflicts else "almost equal"
        if self.contract == "memory":
            cause = re.sub(r"component (\d+)", lambda m: _name(int(m[1]), names), self.told_by)
            errors = "errors of the program in" if self.of_program else "difference between"
            p = "p < 0.001" if self.p_value < MAX_P_VALUE else f"p = {self.p_value:.2g}"
            return (
                f"{cause} explains {percent(self.told)} of the {errors} rows with {equal} "
                f"observation and action ({p} after correction for {self.tests} tests)"
            )
        if self.conflicts:
            return (
                f"{self.conflicts:,} of {self.repeated:,} pairs of observation and action that "
                f"occur more than once have different outcomes ({self.conflicting:,} of "
                f"{self.rows:,} rows), and the last steps do not explain them"
            )
        parts = ", ".join(_name(i, names) for i in self.components)
        return (
            f"{parts} {'differs' if len(self.components) == 1 else 'differ'} between rows with "
            "almost equal observation and action, and the last steps do not explain it"
        )


def find_contract(rows: Dataset) -> Finding:
    """Find the contract that recorded rows need.

    The tests are strict, so that plain environments stay plain. With few rows, or with many real
    numbers in an observation, chance and memory may go unnoticed.

    Args:
        rows: Rows in the order of their episodes.

    Returns:
        The contract and its evidence.
    """
    if not len(rows):
        return Finding()
    if rows.turn and rows.has_valid_actions:
        return Finding(contract="game", rows=len(rows))
    history = RecordedPast(rows)
    found = _compare_equal_rows(history)
    if found.contract == "memory":
        return found
    often = found.conflicting > FEW * len(rows)
    return _merged(found, _compare_similar_rows(history, history.changes, only_noise=often))


def reexamine(rows: Dataset, predictions: Columns, contract: ContractName) -> Finding:
    """Find the contract again, given the predictions of the best program so far.

    The rows that the program predicts correctly are explained by the observation and the action.
    The errors in the other rows are tested like outcomes are in `find_contract`, which is more
    sensitive because the program has removed the known part of the dynamics.

    Args:
        rows: Rows in the order of their episodes.
        predictions: One prediction per row, with the same column names as the rows.
        contract: The contract of the program. Correct predictions of a program with memory do
            not show that the observation suffices, so that `find_contract` is consulted as well.

    Returns:
        The contract and its evidence; plain if the errors show neither memory nor chance.
    """
    if not len(rows):
        return Finding()
    history = RecordedPast(rows)
    found = _compare_equal_rows(history)
    wrong = match(predictions, rows).losses(rows.columns["terminations"]) > 0
    if found.contract != "memory" and found.conflicting <= FEW * len(rows) and wrong.any():
        errors = history.errors(predictions)
        found = _merged(found, _compare_similar_rows(history, errors, wrong))
    if found.contract == "plain" and contract == "memory":
        return find_contract(rows)
    return found


def _merged(equal: Finding, similar: Finding) -> Finding:
    """Return the finding of similar rows and the counts of equal ones, unless equal ones decide."""
    if similar.contract == "plain" or (equal.contract == similar.contract == "chance"):
        return equal
    return similar.model_copy(update={"rows": equal.rows, "repeated": equal.repeated})


def _name(index: int, names: Sequence[str]) -> str:
    return names[index] if index < len(names) else f"component {index}"


def _compare_equal_rows(history: RecordedPast) -> Finding:
    """Decide by rows with equal observation and action but different outcomes."""
    situation = history.situation
    counts, odd = np.bincount(situation), history.conflicts()
    found = Finding(rows=len(situation), repeated=int((counts > 1).sum()))
    # float32 observations may hide tiny differences, so that few conflicts show nothing
    if odd.sum() < (3 if history.real else 1):
        return found
    found = found.model_copy(
        update={
            "contract": "chance",
            "conflicts": int(odd.sum()),
            "conflicting": int(counts[odd].sum()),
        }
    )
    some = np.flatnonzero(odd[situation])[:1500]  # enough for the tests, which take time
    outcome = paired(situation[some], history.outcome[some])
    shuffled = ShuffledOutcomes(situation[some], _ranked(situation[some], outcome))
    recent, older = list(history.recent()), list(history.older())
    every = [(name, shuffled, codes[some]) for name, codes in recent + older]
    tests = ContextTests(every, np.arange(len(recent)))
    best = tests.strongest(0.15)
    # Chance causes frequent conflicts, so that weaker evidence of memory decides about rare ones.
    if best is None and found.conflicts <= FEW * found.repeated:
        best = tests.strongest(0.9, p_value=0.05)
    if best is None:
        return found
    return found.model_copy(update={"contract": "memory"} | best._asdict())


def _ranked(situation: np.ndarray, outcome: np.ndarray) -> np.ndarray:
    """Return one-hot outcomes, numbered within each situation, the most frequent first.

    From the sixth on, outcomes of a situation count as one.
    """
    max_outcomes = 6
    values, inverse, counts = np.unique(outcome, return_inverse=True, return_counts=True)
    first = np.zeros(len(values), int)
    first[inverse] = situation
    order = np.lexsort((-counts, first))
    starts = np.flatnonzero(np.diff(first[order], prepend=-1))
    number = np.empty(len(values), int)
    number[order] = np.arange(len(values)) - np.repeat(starts, np.diff([*starts, len(values)]))
    return np.eye(max_outcomes)[np.minimum(number, max_outcomes - 1)[inverse]]


def _compare_similar_rows(
    history: RecordedPast,
    targets: np.ndarray,
    wrong: np.ndarray | None = None,
    only_noise: bool = False,
) -> Finding:
    """Decide by rows with almost equal observation and action.

    Args:
        history: The rows.
        targets: Outcomes, or errors of a program, (rows, components).
        wrong: Mask of the rows that a program predicts incorrectly, if targets are its errors.
        only_noise: Whether to look for sensor noise only, because equal rows differ often.
    """
    chosen = choose_rows(history, wrong)
    # Few rows show nothing about real numbers, and of many components no two rows are similar.
    if len(chosen) < 80 or history.inputs.shape[1] > 24:
        return Finding()
    similar = SimilarRows(history, chosen, targets, wrong is not None)
    found = None if only_noise else similar.memory()
    noise = similar.sensor_noise() if found is None and wrong is None else None
    if noise is not None:
        return Finding(
            contract="memory",
            components=(noise.component,),
            cancelling=noise.correlation,
            p_value=noise.p_value,
        )
    if found is None and not only_noise:
        found = similar.chance()
    if found is None:
        return Finding()
    fields = {} if found.explanation is None else found.explanation._asdict()
    return Finding(
        contract="memory" if fields else "chance",
        components=found.components,
        unexplained=found.unexplained,
        of_program=wrong is not None,
        **fields,
    )
