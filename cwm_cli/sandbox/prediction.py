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

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from hashlib import sha256
from typing import Literal, NamedTuple

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_cli.data.spaces import Columns
from cwm_cli.sandbox.abilities import abilities_of
from cwm_cli.sandbox.conversation import Reply
from cwm_cli.sandbox.failures import Failure, asked_for, shown
from cwm_cli.sandbox.job import (
    MOST_OUTCOMES,
    START_BYTES,
    DrawsJob,
    Job,
    Limits,
    OutcomesJob,
    PredictionJob,
    answer_bytes,
    answer_slots,
)

APART = 22
"""How many steps lie at least between rows of an episode that one process is audited with.

What was seen a few steps later says a lot about a step, what was seen twenty steps later next
to nothing. It is even, so that no worker gets rows at even and at odd places.
"""

MOST_AUDITED = 10_000
"""Rows of an audit; of more so many are drawn, of which each part in a thousand that is forged
shows with a chance of 0.99995."""

MOST_DRAWN_AGAIN = 8
"""Draws of each row that an audit repeats. They are chosen and permuted at random for each row, so
an answer that depends on the number or the order of its draw is not repeated."""

MOST_BYTES = 1 << 26
"""Bytes of answers that a process makes of rows that have several each; the next goes on."""

MOST_TOLD = 1 << 28
"""Bytes that the outcomes of all rows may take: as many in every row as in the most crowded."""

TOLERANCE = 1e-9
"""By how much answers may differ, absolutely plus relatively: solvers that start where they ended
last differ by 1e-16, and the metric forgives 1e-5."""

ADVICE = (
    "A prediction may only depend on the observation and the action, not on earlier calls, other "
    "rows, the clock or the operating system: a score is valid only if other processes return the "
    "same predictions for other selections and orders of the rows. Random outcomes may only use "
    "`self.rng`, a numpy Generator that is provided and seeded again for every prediction, or the "
    "functions of `random` and `numpy.random`, which are seeded likewise."
)


MEDDLED = Failure(
    kind="wrong_output",
    message="the program tampered with its process, which returned no probabilities",
)


class PredictedColumns(NamedTuple):
    """What a program predicts for the rows of a dataset, in their order.

    The columns are `next_observations` (one per leaf: float64, int64 or str),
    `rewards` (float64) and `terminations` (bool). There are none when the
    program failed.
    """

    columns: Columns
    failure: Failure | None


class ProgramAnswers(NamedTuple):
    """All that a program says to the rows of a dataset, in their order.

    The columns are those that are predicted, of a shape: `certain` (rows, ...), `draws`
    (rows, draws, ...), or `outcomes` (rows, outcomes, ...) with `probabilities` (rows, outcomes).
    There are none when the program failed.
    """

    columns: Columns
    failure: Failure | None = None
    shape: Literal["certain", "draws", "outcomes"] = "certain"
    probabilities: np.ndarray | None = None

    def likeliest(self) -> Columns:
        """Return one answer for each row: the likeliest outcome, or the first draw."""
        if self.shape == "certain" or self.failure:
            return self.columns
        rows = np.arange(len(self.columns["rewards"]))
        place = 0 if self.probabilities is None else self.probabilities.argmax(axis=1)
        return {name: column[rows, place] for name, column in self.columns.items()}

    @property
    def draws(self) -> int:
        """How many draws each row has; 1 if the answers are no draws."""
        return self.columns["rewards"].shape[1] if self.shape == "draws" else 1

    def chosen(self, numbers: np.ndarray) -> "ProgramAnswers":
        """Return some of the draws of each row, in the order of their numbers (rows, some)."""
        columns = {name: chosen(column, numbers) for name, column in self.columns.items()}
        return self._replace(columns=columns)

    @property
    def width(self) -> int:
        """How many outcomes each row has room for."""
        return 1 if self.probabilities is None else self.probabilities.shape[1]

    def compared(self, width: int) -> Columns:
        """Return all that has to be the same when it is asked again, as wide as that."""
        if self.probabilities is None:
            return self.columns
        rows, more = len(self.probabilities), width - self.width
        return {
            name: np.concatenate([each, np.zeros((rows, more, *each.shape[2:]), each.dtype)], 1)
            for name, each in {"probabilities": self.probabilities, **self.columns}.items()
        }


Answered = list[tuple[np.ndarray, Columns]]
"""Rows, and the slots of the answers to them."""

JobMaker = Callable[[np.ndarray], PredictionJob]
"""Makes the job that asks for some rows of a dataset."""

RunApart = Callable[[Sequence[Sequence[Job]], Sequence[Limits]], list[list[Reply]]]
"""Does the jobs of two sides, each within its limits (`Sandbox.run_apart`)."""


class RowQuestions:
    """The questions to a program without memory: one for each row of a dataset."""

    def __init__(
        self, run_apart: RunApart, limits: Limits, program: str, dataset: Dataset, seed: int
    ) -> None:
        self._run_apart, self._limits = run_apart, limits
        self._program, self._dataset, self._seed = program, dataset, seed

    def ask(self, draws: int) -> ProgramAnswers:
        """Ask for the answers to every row, in the way that the text of the program allows.

        The answers are not confirmed.
        """
        rng = hidden_generator("first", self._dataset, self._seed)
        sides = [[part] for part in split_rows(self._dataset, 2, rng)]
        return self._answers(self._job_maker(draws), sides)

    def audit(self, answers: ProgramAnswers) -> Failure | None:
        """Ask again in processes where the rows of an episode lie far apart, and compare.

        Which rows are asked in which process and order is drawn from the recorded answers, which
        the program does not know. So are the draws of a row that are repeated, and their order.
        """
        dataset = self._dataset
        if not len(dataset):
            return None
        rng = hidden_generator("audit", dataset, self._seed)
        parts = split_rows(dataset, APART, rng)
        if len(dataset) > MOST_AUDITED:
            drawn = rng.permutation(len(dataset)) < MOST_AUDITED
            parts = [part[drawn[part]] for part in parts]
        rows, draws, numbers = np.sort(np.concatenate(parts)), 1, None
        if answers.shape == "draws":
            draws = answers.draws
            numbers = permuted(draws, len(dataset), rng)[:, :MOST_DRAWN_AGAIN]
            answers = answers.chosen(numbers)
        job = self._job_maker(draws, numbers, checked=False)
        again = self._answers(job, [parts[0::2], parts[1::2]], whole=True)
        if again.failure:
            return asked_again(again.failure)
        width = max(answers.width, again.width)
        first, second = (selected(each.compared(width), rows) for each in (answers, again))
        return contradiction(job(rows), first, second)

    def _job_maker(
        self, draws: int, numbers: np.ndarray | None = None, *, checked: bool = True
    ) -> JobMaker:
        """Return a function that makes the jobs for some rows, of the kind of the program.

        With `numbers` (rows, some) the jobs make only these of the `draws` of each row.
        """
        program, dataset = self._program, self._dataset
        able, inputs = abilities_of(program), dataset.select("observations", "actions")
        make: Callable[..., PredictionJob] = PredictionJob
        if able.tells:
            make = partial(OutcomesJob, checked=checked)
        elif able.draws:
            make = DrawsJob
        starts: np.ndarray | None = None
        if able.draws or "random" in program:
            starts = starts_of(dataset, self._seed, draws if make is DrawsJob else 1)
        if starts is not None and numbers is not None:
            starts = chosen(starts, numbers)

        def job(rows: np.ndarray) -> PredictionJob:
            return make(
                program=program,
                seed=int(self._seed),
                observation_space=dataset.observation_space,
                action_space=dataset.action_space,
                columns=selected(inputs, rows),
                valid=dataset.has_valid_actions,
                starts=None if starts is None else starts[rows],
            )

        return job

    def _answers(
        self, job: JobMaker, sides: list[list[np.ndarray]], *, whole: bool = False
    ) -> ProgramAnswers:
        """Ask for the parts of two sides, which share the time, or have the `whole` of it each."""
        dataset, empty = self._dataset, job(np.arange(0))
        answered, failure = self._asked(job, sides, whole=whole)
        if isinstance(empty, OutcomesJob) and not failure:
            crowded = np.zeros(len(dataset), bool)
            for rows, slots in answered:
                crowded[rows] = slots["counts"] > empty.places
            if crowded.any():
                wide = [[part[crowded[part]] for part in side] for side in sides]
                more, failure = self._asked(lambda rows: _with_room(job(rows)), wide, whole=whole)
                answered += more
        if failure:
            return ProgramAnswers({}, failure)
        if isinstance(empty, OutcomesJob):
            return _told(dataset, answered, answer_bytes(empty))
        if isinstance(empty, DrawsJob):
            columns = merge_answers(dataset, answered, empty.several)
            return ProgramAnswers(columns, shape="draws")
        return ProgramAnswers(merge_answers(dataset, answered))

    def _asked(
        self, job: JobMaker, sides: list[list[np.ndarray]], *, whole: bool
    ) -> tuple[Answered, Failure | None]:
        """Ask the two sides at the same time, in jobs that each take a bounded amount of memory."""
        total, limits = len(self._dataset), self._limits
        most = max(1, total)
        if isinstance(empty := job(np.arange(0)), OutcomesJob | DrawsJob):
            most = max(1, MOST_BYTES // (empty.several * (START_BYTES + answer_bytes(empty))))
        if isinstance(empty, DrawsJob):
            limits = limits.longer(empty.several)
        pieces = [
            [part[at : at + most] for part in side for at in range(0, len(part), most)]
            for side in sides
        ]
        pieces = [side for side in pieces if side]
        shares = [1.0 if whole else sum(map(len, side)) / total for side in pieces]
        replies = self._run_apart(
            [[job(rows) for rows in side] for side in pieces],
            [limits.part(share) for share in shares],
        )
        found = [reply.failure for side in replies for reply in side if reply.failure]
        if found:
            return [], found[0]
        return [
            (rows, reply.slots)
            for side, done in zip(pieces, replies, strict=True)
            for rows, reply in zip(side, done, strict=True)
        ], None


def _with_room(job: PredictionJob) -> PredictionJob:
    """Return the job with room for as many outcomes as there may be."""
    assert isinstance(job, OutcomesJob)
    return replace(job, places=MOST_OUTCOMES)


def _told(dataset: Dataset, answered: Answered, bytes_each: int) -> ProgramAnswers:
    """Put outcomes in the order of the dataset; a process may have written anything."""
    counts = np.ones(len(dataset), np.int64)
    for rows, slots in answered:
        counts[rows] = slots["counts"]
    width = int(counts.max(initial=1))
    if counts.min(initial=1) < 1 or width > MOST_OUTCOMES:
        return ProgramAnswers({}, MEDDLED)
    if failure := too_many(len(dataset), width, bytes_each):
        return ProgramAnswers({}, failure)
    columns, chances = merge_answers(dataset, answered, width), np.zeros((len(dataset), width))
    for rows, told in answered:
        wide = min(width, told["probabilities"].shape[1])
        chances[rows, :wide] = told["probabilities"][:, :wide]
    beyond = np.arange(width) >= counts[:, None]
    for column in (chances, *columns.values()):
        column[beyond] = np.zeros((), column.dtype)
    return as_outcomes(columns, chances, np.concatenate([np.arange(0), *(r for r, _ in answered)]))


def too_many(rows: int, width: int, bytes_each: int) -> Failure | None:
    """Refuse as many answers in each of the rows as take more memory than they may."""
    if (size := rows * width * bytes_each) <= MOST_TOLD:
        return None
    words = f"the outcomes of {rows} rows would take {size / 2**20:.0f} MB, with {width} in a row"
    words += ": return fewer outcomes, or sample in step from self.rng"
    return Failure(kind="wrong_output", message=words)


def as_outcomes(columns: Columns, chances: np.ndarray, rows: np.ndarray) -> ProgramAnswers:
    """Return outcomes, if the probabilities of the rows that were asked are some."""
    asked = chances[rows]
    if not ((asked >= 0).all() and (np.abs(asked.sum(axis=1) - 1) < TOLERANCE).all()):
        return ProgramAnswers({}, MEDDLED)
    return ProgramAnswers(columns, shape="outcomes", probabilities=chances)


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


def starts_of(dataset: Dataset, seed: int, draws: int) -> np.ndarray:
    """Return the states at which the random numbers of each draw begin (rows, draws, 2).

    They are random and hidden, so no program can find out which draw of a row it makes: draws
    that an audit repeats, in another order, are functions of the row and an independent start.
    Fewer draws are the first of more.
    """
    rng = hidden_generator("draws", dataset, seed)
    found = np.frombuffer(rng.bytes(START_BYTES * draws * len(dataset)), "<i8")
    return found.reshape(draws, len(dataset), 2).swapaxes(0, 1)


def permuted(count: int, rows: int, rng: np.random.Generator) -> np.ndarray:
    """Return the numbers below `count` in an order of its own for each row (rows, count)."""
    return rng.permuted(np.tile(np.arange(count), (rows, 1)), axis=1)


def chosen(column: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Return some of the draws of each row, in the order of their numbers (rows, some)."""
    found: np.ndarray = column[np.arange(len(column))[:, None], numbers]
    return found


def hidden_generator(purpose: str, dataset: Dataset, seed: int) -> np.random.Generator:
    """Return a generator that no program can foresee, as it sees none of the recorded answers."""
    key = sha256(f"{purpose} {seed} {dataset.digest}".encode()).digest()
    return np.random.default_rng(int.from_bytes(key, "little"))


def selected(columns: Columns, rows: np.ndarray) -> Columns:
    """Return some rows of columns."""
    return {name: column[rows] for name, column in columns.items()}


def merge_answers(dataset: Dataset, answered: Answered, width: int | None = None) -> Columns:
    """Put answers to some rows each in the order of the dataset, in the types that are compared.

    With a `width` each row has so many answers at most.
    """
    actions = dataset.action_space.count if dataset.has_valid_actions else 0
    shape = (len(dataset),) if width is None else (len(dataset), width)
    columns: Columns = {}
    for name, dtype, whole in answer_slots(dataset.observation_space, shape, actions):
        columns[name] = np.zeros(whole, dtype)
        for rows, answers in answered:
            part = answers[name]
            if width is None:
                columns[name][rows] = part
            else:
                columns[name][rows, : part.shape[1]] = part[:, :width]
    return as_compared(columns)


def as_compared(columns: Columns) -> Columns:
    """Return answers as they came in the types of a dataset."""
    texts = {name: column for name, column in columns.items() if column.dtype.kind == "S"}
    decoded = {name: np.char.decode(column, "utf-8", "replace") for name, column in texts.items()}
    return columns | decoded | {"terminations": columns["terminations"].astype(np.bool_)}


def contradiction(job: PredictionJob, first: Columns, second: Columns) -> Failure | None:
    """Compare two sets of answers to the questions of a job."""
    names = [name for name in job.layout.answers if name in first]
    return differing(
        {name: first[name] for name in names}, second, lambda row: asked_for(job, row), ADVICE
    )


def differing(
    first: Columns, second: Columns, asked: Callable[[int], str], advice: str
) -> Failure | None:
    """Say in which row two sets of answers differ, what was asked there, and what to do."""
    for name, column in first.items():
        differs = ~_alike(column, second[name]).reshape(len(column), -1).all(axis=1)
        if differs.any():
            row = int(np.argmax(differs))
            answers = " and then ".join(shown(each[name][row].tolist()) for each in (first, second))
            words = f"two calls of {asked(row)} returned different results: {answers}"
            return Failure(kind="nondeterministic", message=f"{words}\n{advice}")
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


def asked_again(failure: Failure, advice: str = ADVICE) -> Failure:
    """Report what a program raised when it was asked once more; other ends are what they are."""
    if failure.kind not in ("load_error", "step_error", "wrong_output"):
        return failure
    words = f"in a second run with another order of rows, the program failed: {failure.message}"
    message = f"{words}\n{advice}"
    return Failure(kind="nondeterministic", message=message, line=failure.line)
