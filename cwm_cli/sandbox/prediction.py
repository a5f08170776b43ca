"""Asking a program for every row of a dataset, and confirming what it answers.

The next observation of a transition is the observation of the one after it, so
whoever gets both can look up the answer. Nothing in a process can be hidden from the
program that runs in it, nor can it be kept from remembering. Therefore

- a first pass asks in two processes, none of which gets two consecutive rows of an episode.
  That is quick, and enough for a program that does not cheat;
- an audit asks again, in processes where no row lies near another of its episode, so that
  there is nothing to look up. What is answered alike there was not looked up before. A score
  counts only with an audit.
"""

from collections import Counter
from collections.abc import Callable
from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_cli.data.spaces import Columns
from cwm_cli.sandbox.failures import LONGEST_PROGRAM, TOO_LONG, Failure, asked_for, shown
from cwm_cli.sandbox.job import PredictionJob, prediction_layout

if TYPE_CHECKING:
    from cwm_cli.sandbox.client import Reply, Sandbox

APART = 22
"""How many steps lie at least between rows of an episode that one process is audited with.

What was seen a few steps later says a lot about a step, what was seen twenty steps later next
to nothing. It is even, so that no worker gets rows at even and at odd places.
"""

MOST_AUDITED = 10_000
"""Rows of an audit; of more so many are drawn, of which each part in a thousand that is forged
shows with a chance of 0.99995."""

TOLERANCE = 1e-9
"""By how much answers may differ, absolutely plus relatively: solvers that start where they ended
last differ by 1e-16, and the metric forgives 1e-5."""

ADVICE = (
    "The answer has to depend on the observation and the action alone, not on earlier questions, "
    "the other rows that are asked, the clock or the operating system: a score counts only if "
    "other processes give the same answers, among other rows and in another order. Random numbers "
    "may be drawn with the functions of `random` and `numpy.random`, which are seeded anew for "
    "every question."
)


class PredictedColumns(NamedTuple):
    """What a program predicts for the rows of a dataset, in their order.

    The columns are `next_observations` (one per leaf: float64, int64 or str),
    `rewards` (float64) and `terminations` (bool). There are none when the
    program failed.
    """

    columns: Columns
    failure: Failure | None


def predict(sandbox: "Sandbox", program: str, dataset: Dataset, seed: int) -> PredictedColumns:
    """Ask a program for every row of a dataset; the answers are not confirmed."""
    if len(program) > LONGEST_PROGRAM:
        return PredictedColumns({}, TOO_LONG)
    every = split_rows(dataset, 2, _generator("first", dataset, seed))
    parts = [part for part in every if len(part)]
    job = _asking(program, dataset, seed)
    limits = [sandbox.limits.part(len(part) / len(dataset)) for part in parts]
    replies = sandbox.run_apart([[job(part)] for part in parts], limits)
    if failure := _failure(replies):
        return PredictedColumns({}, failure)
    answered = [(part, reply.slots) for part, [reply] in zip(parts, replies, strict=True)]
    return PredictedColumns(merge_answers(dataset, answered), None)


def audit(
    sandbox: "Sandbox", program: str, dataset: Dataset, answers: Columns, seed: int
) -> Failure | None:
    """Have a program confirm its answers, in processes where rows of an episode lie far apart.

    Which rows are asked in which process and order is drawn from what the program does not
    know: the recorded answers.
    """
    if not len(dataset):
        return None
    rng = _generator("audit", dataset, seed)
    parts = split_rows(dataset, APART, rng)
    if len(dataset) > MOST_AUDITED:
        drawn = rng.permutation(len(dataset)) < MOST_AUDITED
        parts = [part[drawn[part]] for part in parts]
    job = _asking(program, dataset, seed)
    sides = [[part for part in parts[side::2] if len(part)] for side in (0, 1)]
    replies = sandbox.run_apart(
        [[job(part) for part in side] for side in sides], [sandbox.limits] * 2
    )
    if failure := _failure(replies):
        return _asked_again(failure)
    answered = [
        (part, reply.slots)
        for side, done in zip(sides, replies, strict=True)
        for part, reply in zip(side, done, strict=True)
    ]
    rows = np.sort(np.concatenate([part for part, _ in answered]))
    again = merge_answers(dataset, answered)
    return contradiction(job(rows), _rows(answers, rows), _rows(again, rows))


def _asking(program: str, dataset: Dataset, seed: int) -> Callable[[np.ndarray], PredictionJob]:
    """Return what makes jobs that ask for some rows of a dataset."""
    inputs = dataset.select("observations", "actions")
    seeds = _seeds(dataset, seed) if "random" in program else None

    def job(rows: np.ndarray) -> PredictionJob:
        return PredictionJob(
            program=program,
            seed=int(seed),
            observation_space=dataset.observation_space,
            action_space=dataset.action_space,
            columns=_rows(inputs, rows),
            valid=dataset.has_valid_actions,
            seeds=None if seeds is None else seeds[rows],
        )

    return job


def split_rows(dataset: Dataset, apart: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Split rows so that those of an episode in one part lie `apart` steps from each other.

    Each part is in an order that is drawn. Rows at the same place of their episodes go
    together, since episodes may repeat each other; where episodes are short, there are
    several parts for each place.
    """
    episodes = dataset.columns["episodes"]
    order = np.argsort(episodes, kind="stable")
    starts = np.flatnonzero(np.diff(episodes[order], prepend=np.nan))
    lengths = np.diff(starts, append=len(order))
    places = np.empty(len(order), dtype=np.int64)
    places[order] = np.arange(len(order)) - np.repeat(starts, lengths)
    longest = 2 * -(-max(lengths, default=1) // 2)
    places += longest * rng.integers(max(1, apart // longest), size=len(places))
    return [rng.permutation(np.flatnonzero(places % apart == part)) for part in range(apart)]


def _seeds(dataset: Dataset, seed: int) -> np.ndarray:
    """Return where the random numbers of each row begin.

    A seed follows from what is asked, so that it tells a program nothing that it is not told
    anyway. Rows in which the same is asked have different ones, handed out at random.
    """
    situations, asked = dataset.situations(), Counter[bytes]()
    seeds = np.empty(len(dataset), dtype=np.int64)
    for row in _generator("seeds", dataset, seed).permutation(len(dataset)):
        situation = situations[row]
        key = f"{seed} {asked[situation]} ".encode() + situation
        seeds[row] = int.from_bytes(sha256(key).digest()[:7], "little")
        asked[situation] += 1
    return seeds


def _generator(purpose: str, dataset: Dataset, seed: int) -> np.random.Generator:
    """Return a generator that no program can foresee, as it sees none of the recorded answers."""
    key = sha256(f"{purpose} {seed} {dataset.digest}".encode()).digest()
    return np.random.default_rng(int.from_bytes(key, "little"))


def _failure(replies: "list[list[Reply]]") -> Failure | None:
    """Return the first failure in the processes of a program."""
    found = [reply.failure for side in replies for reply in side if reply.failure]
    return found[0] if found else None


def _rows(columns: Columns, rows: np.ndarray) -> Columns:
    return {name: column[rows] for name, column in columns.items()}


def merge_answers(dataset: Dataset, answered: list[tuple[np.ndarray, Columns]]) -> Columns:
    """Put answers to some rows each in the order of the dataset, in the types that are compared."""
    actions = dataset.action_space.count if dataset.has_valid_actions else 0
    layout = prediction_layout(dataset.observation_space, len(dataset), actions)
    columns: Columns = {}
    for name in layout.answers:
        columns[name] = np.zeros(layout.slots[name].shape, layout.slots[name].dtype)
        for rows, answers in answered:
            columns[name][rows] = answers[name]
        if columns[name].dtype.kind == "S":
            columns[name] = np.char.decode(columns[name], "utf-8", "replace")
    columns["terminations"] = columns["terminations"].astype(np.bool_)
    return columns


def contradiction(job: PredictionJob, first: Columns, second: Columns) -> Failure | None:
    """Compare two sets of answers to the questions of a job."""
    for name in job.layout.answers:
        differs = ~_alike(first[name], second[name]).reshape(job.count, -1).all(axis=1)
        if differs.any():
            row = int(np.argmax(differs))
            answers = " and then ".join(shown(each[name][row].tolist()) for each in (first, second))
            asked = f"when asked twice for {asked_for(job, row)} the program answered {answers}"
            return Failure(kind="nondeterministic", message=f"{asked}\n{ADVICE}")
    return None


def _alike(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return where answers agree: numbers within the tolerance, what is no number with its like."""
    alike: np.ndarray = first == second
    if first.dtype.kind == "f":
        with np.errstate(invalid="ignore", over="ignore"):
            near = np.abs(first - second) <= TOLERANCE + TOLERANCE * np.abs(first)
        alike |= near & np.isfinite(first) & np.isfinite(second)
        alike |= np.isnan(first) & np.isnan(second)
    return alike


def _asked_again(failure: Failure) -> Failure:
    """Report what a program raised when it was asked once more; other ends are what they are."""
    if failure.kind not in ("load_error", "step_error", "wrong_output"):
        return failure
    message = f"asked again, in another order, the program failed: {failure.message}\n{ADVICE}"
    return Failure(kind="nondeterministic", message=message, line=failure.line)
