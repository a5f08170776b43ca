"""Which rows a program is asked together, and whether it answers twice alike.

The next observation of a transition is the observation of the one after it, so
whoever gets both can look up the answer. Therefore a program is asked in two
processes: no process gets two consecutive rows of an episode.
"""

import re
from typing import NamedTuple

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_cli.data.spaces import Columns
from cwm_cli.sandbox.failures import Failure, asked_for, shown
from cwm_cli.sandbox.job import PredictionJob, prediction_layout

REPEATED_ROWS = 64
"""How many rows of a half are asked again, in another order."""

_REACHING = re.compile(
    r"ctypes|inspect|locals|globals|import_module|builtins|empty"
    r"|\b(os|sys|gc|id|hash|repr|vars|eval|exec|getattr|setattr)\b"
    r"|__(?!init__|name__|main__|future__|post_init__)\w+"
    r"|^\s*import\s[^#\n]*,",
    re.MULTILINE,
)
"""Whatever can tell one process from another, or reach what outlives a program."""

_IMPORT = re.compile(r"^\s*(?:import|from)\s+(\w+)(?:.*\bas\s+(\w+))?", re.MULTILINE)
_KEEPING = r"\b(?:{})(?:\.\w+)+\s*(?:[-+*/|&]?=(?!=)|\.?(?:append|add|update)\b)"
_PLAIN = frozenset(
    ("__future__", "abc", "collections", "copy", "dataclasses", "enum", "functools", "itertools")
) | {"math", "numpy", "random", "typing"}

ADVICE = (
    "The answer has to depend on the observation and the action alone, not on earlier questions, "
    "the clock or the operating system. Random numbers may be drawn with the functions of `random` "
    "and `numpy.random`, which are seeded anew for every question."
)


class Half(NamedTuple):
    """Rows in the order in which they are asked, and the places of those then asked again."""

    rows: np.ndarray
    again: np.ndarray

    @property
    def repeated(self) -> np.ndarray:
        """The rows that are asked again."""
        repeated: np.ndarray = self.rows[self.again]
        return repeated

    @property
    def asked(self) -> np.ndarray:
        """All rows that are asked, one after the other."""
        return np.concatenate([self.rows, self.repeated])

    def first(self, slots: Columns) -> Columns:
        """Return the first answers to the rows that are asked again."""
        return {name: slot[self.again] for name, slot in slots.items() if slot.ndim}

    def second(self, slots: Columns) -> Columns:
        """Return the second answers to them."""
        return {name: slot[len(self.rows) :] for name, slot in slots.items() if slot.ndim}


def halves(dataset: Dataset, rng: np.random.Generator) -> list[Half]:
    """Shuffle the rows at even and those at odd places of their episodes; no half is empty."""
    episodes = dataset.columns["episodes"]
    order = np.argsort(episodes, kind="stable")
    starts = np.flatnonzero(np.diff(episodes[order], prepend=np.nan))
    places = np.arange(len(order)) - np.repeat(starts, np.diff(starts, append=len(order)))
    parity = np.empty(len(order), dtype=np.int64)
    parity[order] = places % 2
    rows = [rng.permutation(np.flatnonzero(parity == side)) for side in (0, 1)]
    return [Half(half, rng.permutation(len(half))[:REPEATED_ROWS]) for half in rows if len(half)]


def merged(dataset: Dataset, answered: list[tuple[Half, Columns]]) -> Columns:
    """Put answers back into the order of the dataset, in the types that are compared."""
    actions = dataset.action_space.count if dataset.has_valid_actions else 0
    layout = prediction_layout(dataset.observation_space, len(dataset), actions)
    columns: Columns = {}
    for name in layout.answers:
        columns[name] = np.empty(layout.slots[name].shape, layout.slots[name].dtype)
        for half, answers in answered:
            columns[name][half.rows] = answers[name][: len(half.rows)]
        if columns[name].dtype.kind == "S":
            columns[name] = np.char.decode(columns[name], "utf-8", "replace")
    columns["terminations"] = columns["terminations"].astype(np.bool_)
    return columns


def may_outlast(program: str) -> bool:
    """Whether a program mentions anything by which two processes of it could differ.

    What it draws, reads off the clock or carries over from row to row shows in a
    single process, where it is loaded anew for the rows that are asked again,
    unless it keeps that in a module of others.
    """
    imports = _IMPORT.findall(program)
    if _REACHING.search(program) or any(module not in _PLAIN for module, _ in imports):
        return True
    names = "|".join(name for found in imports for name in found if name)
    return bool(names and re.search(_KEEPING.format(names), program))


def contradiction(job: PredictionJob, first: Columns, second: Columns) -> Failure | None:
    """Compare two sets of answers to the questions of a job, to the last bit."""
    for name in job.layout.answers:
        once, again = first[name], second[name]
        if once.tobytes() != again.tobytes():
            pairs = enumerate(zip(once, again, strict=True))
            row = next(row for row, (a, b) in pairs if a.tobytes() != b.tobytes())
            return _nondeterministic(
                job, row, f"{shown(once[row].tolist())} and then {shown(again[row].tolist())}"
            )
    return None


def broke_down(failure: Failure) -> Failure:
    """Report what a program raised when it was asked once more; other ends are what they are."""
    if failure.kind not in ("load_error", "step_error", "wrong_output"):
        return failure
    message = f"asked again, in another order, the program failed: {failure.message}\n{ADVICE}"
    return Failure(kind="nondeterministic", message=message, line=failure.line)


def _nondeterministic(job: PredictionJob, row: int, answers: str) -> Failure:
    question = asked_for(job, row)
    message = f"when asked twice for {question} the program answered {answers}\n{ADVICE}"
    return Failure(kind="nondeterministic", message=message)
