"""Ask a program for the rows of a dataset, and confirm its answers.

The next observation of a transition is the observation of the following transition, so a process
that receives both can look up the answer. A program can read everything in its process and can
remember earlier questions. Therefore rows are asked twice:

- The first pass uses two processes, and neither receives two consecutive rows of an episode. This
  is fast, and sufficient for a program that does not cheat.
- The audit asks again, in processes whose rows of an episode are far apart, so that there is
  nothing to look up. If the answers are the same, the first ones were not looked up either. A
  score counts only after an audit.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any, Literal, NamedTuple

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_cli.data.spaces import Columns
from cwm_cli.sandbox.conversation import Reply
from cwm_cli.sandbox.failures import Failure, describe_question, shown
from cwm_cli.sandbox.job import (
    MOST_OUTCOMES,
    START_BYTES,
    DrawsJob,
    Job,
    OutcomesJob,
    PredictionJob,
    abilities_of,
    answer_bytes,
    answer_slots,
)
from cwm_cli.sandbox.protocol import Limits

APART = 22
"""Minimum distance in steps between two rows of an episode in one process of an audit.

An observation a few steps later says much about a step, one twenty steps later almost nothing. The
number is even, so that no worker gets both even and odd steps.
"""

MAX_AUDITED_ROWS = 10_000
"""Rows of an audit. From a larger dataset this many rows are sampled: if one row in a thousand is
forged, the sample contains one with probability 0.99995."""

MAX_AUDITED_DRAWS = 8
"""Draws of each row that an audit repeats. They are sampled and permuted for each row, so an answer
that depends on the index or the order of its draw is not repeated."""

ADVICE = (
    "A prediction may only depend on the observation and the action, not on earlier calls, other "
    "rows, the clock or the operating system: a score is valid only if other processes return the "
    "same predictions for other selections and orders of the rows. Random outcomes may only use "
    "`self.rng`, a numpy Generator that is provided and seeded again for every prediction, or the "
    "functions of `random` and `numpy.random`, which are seeded likewise."
)

TAMPERED = Failure(
    kind="wrong_output",
    message="the program tampered with its process, which returned no probabilities",
)


class PredictedColumns(NamedTuple):
    """One predicted answer for each row of a dataset, in the order of the rows.

    The columns are `next_observations` (one per leaf: float64, int64 or str), `rewards` (float64)
    and `terminations` (bool). They are empty if the program failed.
    """

    columns: Columns
    failure: Failure | None


class ProgramAnswers(NamedTuple):
    """All answers of a program for each row of a dataset, in the order of the rows.

    The columns have the names of `PredictedColumns`. `shape` determines their leading axes:
    `certain` (rows, ...), `draws` (rows, draws, ...), or `outcomes` (rows, outcomes, ...) with
    `probabilities` (rows, outcomes). The columns are empty if the program failed.
    """

    columns: Columns
    failure: Failure | None = None
    shape: Literal["certain", "draws", "outcomes"] = "certain"
    probabilities: np.ndarray | None = None

    def likeliest(self) -> Columns:
        """Return one answer for each row: the most likely outcome, or the first draw."""
        if self.shape == "certain" or self.failure:
            return self.columns
        rows = np.arange(len(self.columns["rewards"]))
        place = 0 if self.probabilities is None else self.probabilities.argmax(axis=1)
        return {name: column[rows, place] for name, column in self.columns.items()}

    @property
    def draws(self) -> int:
        """Number of draws per row; 1 if the answers are not draws."""
        return self.columns["rewards"].shape[1] if self.shape == "draws" else 1

    def select_draws(self, numbers: np.ndarray) -> "ProgramAnswers":
        """Return some draws of each row, given their indices (rows, selected)."""
        columns = {name: select_draws(column, numbers) for name, column in self.columns.items()}
        return self._replace(columns=columns)

    @property
    def width(self) -> int:
        """Number of outcomes that each row has room for."""
        return 1 if self.probabilities is None else self.probabilities.shape[1]

    def audited_columns(self, width: int) -> Columns:
        """Return the columns that an audit compares; outcomes are padded with zeros to `width`."""
        if self.probabilities is None:
            return self.columns
        rows, more = len(self.probabilities), width - self.width
        return {
            name: np.concatenate(
                [column, np.zeros((rows, more, *column.shape[2:]), column.dtype)], 1
            )
            for name, column in {"probabilities": self.probabilities, **self.columns}.items()
        }


PartialAnswers = list[tuple[np.ndarray, Columns]]
"""Row numbers, and the slots with the answers for these rows."""

JobMaker = Callable[[np.ndarray], PredictionJob]
"""Returns the job for some rows of a dataset."""

RunApart = Callable[[Sequence[Sequence[Job]], Sequence[Limits]], list[list[Reply]]]
"""Runs the jobs of two sides, each within its limits (`Sandbox.run_apart`)."""


class RowQuestions:
    """The questions to a program without memory: one for each row of a dataset."""

    def __init__(
        self, run_apart: RunApart, limits: Limits, program: str, dataset: Dataset, seed: int
    ) -> None:
        self._run_apart, self._limits = run_apart, limits
        self._program, self._dataset, self._seed = program, dataset, seed

    def ask(self, draws: int) -> ProgramAnswers:
        """Return unconfirmed answers for all rows; `abilities_of` the program chooses the job."""
        rng = hidden_generator("first", self._dataset, self._seed)
        sides = [[part] for part in split_rows(self._dataset, 2, rng)]
        return self._answers(self._job_maker(draws), sides)

    def audit(self, answers: ProgramAnswers) -> Failure | None:
        """Ask again in processes whose rows of an episode are far apart, and compare.

        The assignment of rows to processes, their order, and the repeated draws and their order
        are random. They depend on the recorded answers, which the program does not know.
        """
        dataset = self._dataset
        if not len(dataset):
            return None
        rng = hidden_generator("audit", dataset, self._seed)
        parts = split_rows(dataset, APART, rng)
        if len(dataset) > MAX_AUDITED_ROWS:
            is_sampled = rng.permutation(len(dataset)) < MAX_AUDITED_ROWS
            parts = [part[is_sampled[part]] for part in parts]
        rows, draws, numbers = np.sort(np.concatenate(parts)), 1, None
        if answers.shape == "draws":
            draws = answers.draws
            numbers = random_permutations(draws, len(dataset), rng)[:, :MAX_AUDITED_DRAWS]
            answers = answers.select_draws(numbers)
        job = self._job_maker(draws, numbers, checked=False)
        # Even and odd parts on different sides, so that no worker gets consecutive rows.
        again = self._answers(job, [parts[0::2], parts[1::2]], whole=True)
        if again.failure:
            return as_nondeterministic(again.failure)
        width = max(answers.width, again.width)
        first, second = (select_rows(a.audited_columns(width), rows) for a in (answers, again))
        return find_contradiction(job(rows), first, second)

    def _job_maker(
        self, draws: int, numbers: np.ndarray | None = None, *, checked: bool = True
    ) -> JobMaker:
        """Return a function that makes jobs of the kind that fits the program.

        With `numbers` (rows, selected) the jobs make only these of the `draws` of each row.
        """
        program, dataset = self._program, self._dataset
        abilities, inputs = abilities_of(program), dataset.select("observations", "actions")
        kind: type[PredictionJob] = DrawsJob if abilities.draws else PredictionJob
        options: dict[str, Any] = {}
        if abilities.tells:
            kind, options = OutcomesJob, {"checked": checked}
        starts: np.ndarray | None = None
        if abilities.draws or "random" in program:
            starts = draw_starts(dataset, self._seed, draws if kind is DrawsJob else 1)
        if starts is not None and numbers is not None:
            starts = select_draws(starts, numbers)

        def job(rows: np.ndarray) -> PredictionJob:
            return kind.of(
                program,
                dataset,
                seed=int(self._seed),
                columns=select_rows(inputs, rows),
                starts=None if starts is None else starts[rows],
                **options,
            )

        return job

    def _answers(
        self, job: JobMaker, sides: list[list[np.ndarray]], *, whole: bool = False
    ) -> ProgramAnswers:
        """Ask for the rows of two sides, which share the time or each have the `whole` time."""
        dataset, empty = self._dataset, job(np.arange(0))
        answers, failure = self._run_jobs(job, sides, whole=whole)
        if isinstance(empty, OutcomesJob) and not failure:
            # Ask again for the few rows with more outcomes than the jobs had room for.
            is_crowded = np.zeros(len(dataset), bool)
            for rows, slots in answers:
                is_crowded[rows] = slots["counts"] > empty.places
            if is_crowded.any():
                crowded = [[part[is_crowded[part]] for part in side] for side in sides]
                more, failure = self._run_jobs(lambda rows: _widen(job(rows)), crowded, whole=whole)
                answers += more
        if failure:
            return ProgramAnswers({}, failure)
        if isinstance(empty, OutcomesJob):
            return _merge_outcomes(dataset, answers, answer_bytes(empty))
        if isinstance(empty, DrawsJob):
            columns = merge_answers(dataset, answers, empty.answers_per_row)
            return ProgramAnswers(columns, shape="draws")
        return ProgramAnswers(merge_answers(dataset, answers))

    def _run_jobs(
        self, job: JobMaker, sides: list[list[np.ndarray]], *, whole: bool
    ) -> tuple[PartialAnswers, Failure | None]:
        """Run two sides at the same time, in jobs whose answers take at most 64 MB each."""
        total, limits = len(self._dataset), self._limits
        max_rows = max(1, total)
        if isinstance(empty := job(np.arange(0)), OutcomesJob | DrawsJob):
            row_bytes = empty.answers_per_row * (START_BYTES + answer_bytes(empty))
            max_rows = max(1, (1 << 26) // row_bytes)
        if isinstance(empty, DrawsJob):
            limits = limits.longer(empty.answers_per_row)
        pieces = [
            [part[at : at + max_rows] for part in side for at in range(0, len(part), max_rows)]
            for side in sides
        ]
        pieces = [side for side in pieces if side]
        shares = [1.0 if whole else sum(map(len, side)) / total for side in pieces]
        replies = self._run_apart(
            [[job(rows) for rows in side] for side in pieces],
            [limits.part(share) for share in shares],
        )
        failures = [reply.failure for side in replies for reply in side if reply.failure]
        if failures:
            return [], failures[0]
        return [
            (rows, reply.slots)
            for side, done in zip(pieces, replies, strict=True)
            for rows, reply in zip(side, done, strict=True)
        ], None


def _widen(job: PredictionJob) -> PredictionJob:
    assert isinstance(job, OutcomesJob)
    return replace(job, places=MOST_OUTCOMES)


def _merge_outcomes(dataset: Dataset, answers: PartialAnswers, bytes_each: int) -> ProgramAnswers:
    """Put outcomes in the order of the dataset; the counts in the slots may be forged."""
    counts = np.ones(len(dataset), np.int64)
    for rows, slots in answers:
        counts[rows] = slots["counts"]
    width = int(counts.max(initial=1))
    if counts.min(initial=1) < 1 or width > MOST_OUTCOMES:
        return ProgramAnswers({}, TAMPERED)
    if failure := check_outcome_memory(len(dataset), width, bytes_each):
        return ProgramAnswers({}, failure)
    columns = merge_answers(dataset, answers, width)
    probabilities = np.zeros((len(dataset), width))
    for rows, slots in answers:
        filled = min(width, slots["probabilities"].shape[1])
        probabilities[rows, :filled] = slots["probabilities"][:, :filled]
    # A program may write into places beyond its counts; equal answers must have equal places.
    is_unused = np.arange(width) >= counts[:, None]
    for column in (probabilities, *columns.values()):
        column[is_unused] = np.zeros((), column.dtype)
    rows = np.concatenate([np.arange(0), *(rows for rows, _ in answers)])
    return as_outcomes(columns, probabilities, rows)


def check_outcome_memory(rows: int, width: int, bytes_each: int) -> Failure | None:
    """Return a failure if `width` outcomes in each of the rows need more than 256 MB."""
    if (size := rows * width * bytes_each) <= 1 << 28:
        return None
    message = (
        f"the outcomes of {rows} rows would take {size / 2**20:.0f} MB, with {width} in a row: "
        "return fewer outcomes, or sample in step from self.rng"
    )
    return Failure(kind="wrong_output", message=message)


def as_outcomes(columns: Columns, probabilities: np.ndarray, rows: np.ndarray) -> ProgramAnswers:
    """Return outcomes, or a failure if the probabilities of the given rows do not sum to 1."""
    asked = probabilities[rows]
    # `handlers.outcomes_of` has normalised them, so only rounding is left.
    if not ((asked >= 0).all() and (np.abs(asked.sum(axis=1) - 1) < 1e-9).all()):
        return ProgramAnswers({}, TAMPERED)
    return ProgramAnswers(columns, shape="outcomes", probabilities=probabilities)


def split_rows(dataset: Dataset, apart: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Split row numbers into parts; rows of one episode are far apart within a part.

    Rows at the same step of their episodes are in the same part, since episodes may repeat each
    other. If episodes are short, each step has several parts.

    Args:
        dataset: The transitions.
        apart: Minimum distance in steps of two rows of an episode in one part, and the number of
            parts. It is even.
        rng: Generator for the order of rows in each part.

    Returns:
        The row numbers of each part, in random order.
    """
    episodes = dataset.columns["episodes"]
    order = np.argsort(episodes, kind="stable")
    starts = np.flatnonzero(np.diff(episodes[order], prepend=np.nan))
    lengths = np.diff(starts, append=len(order))
    steps = np.empty(len(order), dtype=np.int64)
    steps[order] = np.arange(len(order)) - np.repeat(starts, lengths)
    # Spread short episodes over all parts: shift each row by a random multiple of an even length,
    # so that even and odd steps stay on different sides.
    longest = 2 * -(-max(lengths, default=1) // 2)
    steps += longest * rng.integers(max(1, apart // longest), size=len(steps))
    return [rng.permutation(np.flatnonzero(steps % apart == part)) for part in range(apart)]


def draw_starts(dataset: Dataset, seed: int, draws: int) -> np.ndarray:
    """Return the random state at which each draw begins (rows, draws, 2), as int64.

    The states are random and hidden, so no program can infer the index of a draw: draws that an
    audit repeats in another order are functions of the row and of an independent state. The states
    for fewer draws are a prefix of the states for more draws.
    """
    rng = hidden_generator("draws", dataset, seed)
    states = np.frombuffer(rng.bytes(START_BYTES * draws * len(dataset)), "<i8")
    return states.reshape(draws, len(dataset), 2).swapaxes(0, 1)


def random_permutations(count: int, rows: int, rng: np.random.Generator) -> np.ndarray:
    """Return an independent permutation of the numbers below `count` for each row (rows, count)."""
    return rng.permuted(np.tile(np.arange(count), (rows, 1)), axis=1)


def select_draws(column: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Return some draws of each row, given their indices (rows, selected)."""
    selected: np.ndarray = column[np.arange(len(column))[:, None], numbers]
    return selected


def hidden_generator(purpose: str, dataset: Dataset, seed: int) -> np.random.Generator:
    """Return a generator whose seed depends on the recorded answers, which no program knows."""
    key = sha256(f"{purpose} {seed} {dataset.digest}".encode()).digest()
    return np.random.default_rng(int.from_bytes(key, "little"))


def select_rows(columns: Columns, rows: np.ndarray) -> Columns:
    """Return the given rows of all columns."""
    return {name: column[rows] for name, column in columns.items()}


def merge_answers(dataset: Dataset, answered: PartialAnswers, width: int | None = None) -> Columns:
    """Return answers in the order and the types of a dataset; rows without an answer are zero.

    Args:
        dataset: The dataset whose rows were asked.
        answered: Row numbers, and the slots with their answers.
        width: Number of answers per row, for draws and outcomes. None if each row has one answer
            and the columns have no axis for answers.
    """
    actions = dataset.action_space.count if dataset.has_valid_actions else 0
    shape = (len(dataset),) if width is None else (len(dataset), width)
    columns: Columns = {}
    for name, dtype, full_shape in answer_slots(dataset.observation_space, shape, actions):
        columns[name] = np.zeros(full_shape, dtype)
        for rows, answers in answered:
            part = answers[name]
            if width is None:
                columns[name][rows] = part
            else:
                columns[name][rows, : part.shape[1]] = part[:, :width]
    return as_dataset_types(columns)


def as_dataset_types(columns: Columns) -> Columns:
    """Convert slots to the types of a dataset: texts to str, terminations to bool."""
    texts = {name: column for name, column in columns.items() if column.dtype.kind == "S"}
    decoded = {name: np.char.decode(column, "utf-8", "replace") for name, column in texts.items()}
    return columns | decoded | {"terminations": columns["terminations"].astype(np.bool_)}


def find_contradiction(job: PredictionJob, first: Columns, second: Columns) -> Failure | None:
    """Compare two sets of answers to the questions of a job."""
    names = [name for name in job.layout.answers if name in first]
    return find_difference(
        {name: first[name] for name in names},
        second,
        lambda row: describe_question(job, row),
        ADVICE,
    )


def find_difference(
    first: Columns, second: Columns, describe: Callable[[int], str], advice: str
) -> Failure | None:
    """Compare two sets of answers.

    Args:
        first: Columns of the first answers.
        second: Columns of the second answers.
        describe: Returns the question of a row, in words.
        advice: Last line of the failure message.

    Returns:
        A failure that names the first row with a difference, or None.
    """
    # Solvers that start at their last solution differ by 1e-16; the metric accepts 1e-5.
    tolerance = 1e-9
    for name, column in first.items():
        again = second[name]
        with np.errstate(over="ignore"):
            equal = (
                np.isclose(again, column, rtol=tolerance, atol=tolerance, equal_nan=True)
                if column.dtype.kind == "f"
                else np.asarray(column == again)
            )
        differs = ~equal.reshape(len(column), -1).all(axis=1)
        if differs.any():
            row = int(np.argmax(differs))
            answers = " and then ".join(shown(part[name][row].tolist()) for part in (first, second))
            message = f"two calls of {describe(row)} returned different results: {answers}"
            return Failure(kind="nondeterministic", message=f"{message}\n{advice}")
    return None


def as_nondeterministic(failure: Failure, advice: str = ADVICE) -> Failure:
    """Return an exception in an audit as nondeterminism; return other failures unchanged."""
    if failure.kind not in ("load_error", "step_error", "wrong_output"):
        return failure
    words = f"in a second run with another order of rows, the program failed: {failure.message}"
    message = f"{words}\n{advice}"
    return Failure(kind="nondeterministic", message=message, line=failure.line)
