"""Asking a program for every row of a dataset: which rows together, and whether it answers alike.

The next observation of a transition is the observation of the one after it, so
whoever gets both can look up the answer. Therefore a program is asked in two
processes: no process gets two consecutive rows of an episode.
"""

import re
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_cli.data.spaces import Columns
from cwm_cli.sandbox.failures import LONGEST_PROGRAM, TOO_LONG, Failure, asked_for, shown
from cwm_cli.sandbox.job import PredictionJob, prediction_layout

if TYPE_CHECKING:
    from cwm_cli.sandbox.client import Sandbox

REPEATED_ROWS = 64
"""How many rows of a process are asked again, in another order."""

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


class PredictedColumns(NamedTuple):
    """What a program predicts for the rows of a dataset, in their order.

    The columns are `next_observations` (one per leaf: float64, int64 or str),
    `rewards` (float64) and `terminations` (bool). There are none when the
    program failed.
    """

    columns: Columns
    failure: Failure | None


class AskedRows(NamedTuple):
    """Rows in the order in which one process is asked, and the places of those then asked again."""

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


def predict(sandbox: "Sandbox", program: str, dataset: Dataset, seed: int) -> PredictedColumns:
    """Ask a program for every row of a dataset, and for some of them twice."""
    if len(program) > LONGEST_PROGRAM:
        return PredictedColumns({}, TOO_LONG)
    job = partial(_job, program, dataset, seed)
    asked = split_rows(dataset, np.random.default_rng(seed))
    replies = sandbox.run_apart([job(part.asked, again=len(part.again)) for part in asked])
    for part, reply in zip(asked, replies, strict=False):  # none after a failure
        if reply.failure:
            again = reply.slots and reply.slots["progress"] >= len(part.rows)
            return PredictedColumns({}, _asked_again(reply.failure) if again else reply.failure)
    answered = [(part, reply.slots) for part, reply in zip(asked, replies, strict=True)]
    failure = None
    for part, slots in answered:
        question = job(part.repeated)
        failure = failure or contradiction(question, part.first(slots), part.second(slots))
    if answered and not failure and may_differ_between_processes(program):
        part, slots = answered[0]
        question = job(part.repeated)
        [reply] = sandbox.run_apart([question])
        failure = _asked_again(reply.failure) if reply.failure else None
        failure = failure or contradiction(question, part.first(slots), reply.slots)
    return PredictedColumns({} if failure else merge_answers(dataset, answered), failure)


def _job(
    program: str, dataset: Dataset, seed: int, rows: np.ndarray, again: int = 0
) -> PredictionJob:
    """Return the question for some rows of a dataset, the last of them asked again."""
    inputs = dataset.select("observations", "actions")
    return PredictionJob(
        program=program,
        seed=int(seed),
        observation_space=dataset.observation_space,
        action_space=dataset.action_space,
        columns={name: column[rows] for name, column in inputs.items()},
        valid=dataset.has_valid_actions,
        rows=rows,
        again=again,
    )


def split_rows(dataset: Dataset, rng: np.random.Generator) -> list[AskedRows]:
    """Shuffle the rows at even and those at odd places of their episodes; no part is empty."""
    episodes = dataset.columns["episodes"]
    order = np.argsort(episodes, kind="stable")
    starts = np.flatnonzero(np.diff(episodes[order], prepend=np.nan))
    places = np.arange(len(order)) - np.repeat(starts, np.diff(starts, append=len(order)))
    parity = np.empty(len(order), dtype=np.int64)
    parity[order] = places % 2
    rows = [rng.permutation(np.flatnonzero(parity == side)) for side in (0, 1)]
    return [
        AskedRows(part, rng.permutation(len(part))[:REPEATED_ROWS]) for part in rows if len(part)
    ]


def merge_answers(dataset: Dataset, answered: list[tuple[AskedRows, Columns]]) -> Columns:
    """Put answers back into the order of the dataset, in the types that are compared."""
    actions = dataset.action_space.count if dataset.has_valid_actions else 0
    layout = prediction_layout(dataset.observation_space, len(dataset), actions)
    columns: Columns = {}
    for name in layout.answers:
        columns[name] = np.empty(layout.slots[name].shape, layout.slots[name].dtype)
        for part, answers in answered:
            columns[name][part.rows] = answers[name][: len(part.rows)]
        if columns[name].dtype.kind == "S":
            columns[name] = np.char.decode(columns[name], "utf-8", "replace")
    columns["terminations"] = columns["terminations"].astype(np.bool_)
    return columns


def may_differ_between_processes(program: str) -> bool:
    """Whether a program mentions anything by which two processes of it could answer differently.

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
            answers = f"{shown(once[row].tolist())} and then {shown(again[row].tolist())}"
            asked = f"when asked twice for {asked_for(job, row)} the program answered {answers}"
            return Failure(kind="nondeterministic", message=f"{asked}\n{ADVICE}")
    return None


def _asked_again(failure: Failure) -> Failure:
    """Report what a program raised when it was asked once more; other ends are what they are."""
    if failure.kind not in ("load_error", "step_error", "wrong_output"):
        return failure
    message = f"asked again, in another order, the program failed: {failure.message}\n{ADVICE}"
    return Failure(kind="nondeterministic", message=message, line=failure.line)
