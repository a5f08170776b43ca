"""Ask a program with memory along whole episodes, and confirm its answers.

The outcome of a step reaches the process of a program only after the program has predicted the
step. But a program can remember outcomes of other episodes in the same process, and episodes may
repeat each other. Therefore episodes are asked twice:

- The first pass uses two processes, which receive alternating episodes of a random order.
- The audit uses more processes, with other combinations of episodes in another order. Some
  processes receive a single episode. If a program predicts the same there, it did not use other
  episodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_cli.data.spaces import Columns
from cwm_cli.sandbox.conversation import Conversation
from cwm_cli.sandbox.failures import Failure, shown
from cwm_cli.sandbox.job import (
    COUNT,
    MOST_OUTCOMES,
    SIZE,
    Abilities,
    EpisodesJob,
    Job,
    abilities_of,
    answer_bytes,
    answer_slots,
)
from cwm_cli.sandbox.prediction import (
    MAX_AUDITED_DRAWS,
    MAX_AUDITED_ROWS,
    TAMPERED,
    ProgramAnswers,
    as_dataset_types,
    as_nondeterministic,
    as_outcomes,
    check_outcome_memory,
    draw_starts,
    find_difference,
    hidden_generator,
    random_permutations,
    select_draws,
    select_rows,
)
from cwm_cli.sandbox.protocol import Limits

SINGLE_EPISODES, MAX_SINGLE_EPISODE_ROWS = 16, 1000
"""Episodes that an audit asks in a process of their own, and the maximum number of their rows.

The rows are limited because each step is a message. If a program uses almost all other episodes in
one of a hundred rows, 300 rows show this with probability 0.95.
"""

ADVICE = (
    "Predictions may only depend on the actions of their own episode and on the observations given "
    "to reset and correct. Other episodes run in the same process, each with its own Environment, "
    "and a score is valid only if other processes return the same predictions with other episodes. "
    "So store the memory in self, clear it in reset, and store nothing in the module or the class. "
    "Random outcomes may only use `self.rng`, a numpy Generator that is provided and seeded again "
    "for every step."
)


class _StepAnswers(NamedTuple):
    """The answers to one step of some episodes: rows, answers per row, and all answers in order."""

    rows: np.ndarray
    counts: np.ndarray
    answers: np.ndarray


ConverseApart = Callable[
    [
        Sequence[Job],
        Sequence[Limits],
        Callable[[Sequence[tuple[int, Conversation]]], list[_StepAnswers] | Failure],
    ],
    list[_StepAnswers] | Failure,
]
"""Holds a conversation about each job, on workers of two sides (`Sandbox.converse_apart`)."""


class EpisodeQuestions:
    """The questions to a program with memory: the steps of each episode of a dataset, in order."""

    def __init__(
        self, converse: ConverseApart, limits: Limits, program: str, dataset: Dataset, seed: int
    ) -> None:
        self._converse, self._limits = converse, limits
        self._program, self._dataset, self._seed = program, dataset, seed
        self._episodes = episodes_of(dataset)

    def ask(self, draws: int) -> ProgramAnswers:
        """Return unconfirmed answers for all rows, from two processes."""
        rng = hidden_generator("first", self._dataset, self._seed)
        order = rng.permutation(len(self._episodes))
        groups = [[self._episodes[number] for number in order[side::2]] for side in (0, 1)]
        return self._answers(self._pass(draw_starts(self._dataset, self._seed, draws)), groups)

    def audit(self, answers: ProgramAnswers) -> Failure | None:
        """Ask again in processes with other combinations of episodes, and compare.

        The combinations are random. They depend on the recorded answers, which the program does not
        know before it has answered.
        """
        dataset = self._dataset
        rng = hidden_generator("audit", dataset, self._seed)
        order = rng.permutation(len(self._episodes))
        lengths = np.array([len(self._episodes[number]) for number in order], int)
        ends = np.cumsum(lengths)
        sample = [self._episodes[n] for n in order[ends - lengths < MAX_AUDITED_ROWS]]
        if not sample:
            return None
        starts = draw_starts(dataset, self._seed, answers.draws)
        if answers.shape == "draws":  # an episode continues from its first draw: always repeat that
            others = 1 + random_permutations(answers.draws - 1, len(dataset), rng)
            others = others[:, : MAX_AUDITED_DRAWS - 1]
            numbers = np.concatenate([np.zeros((len(dataset), 1), int), others], axis=1)
            answers, starts = answers.select_draws(numbers), select_draws(starts, numbers)
        fitting = np.count_nonzero(ends[: len(sample)] <= MAX_SINGLE_EPISODE_ROWS)
        singles = min(SINGLE_EPISODES, int(fitting))
        groups = [[episode] for episode in sample[:singles]]
        # Six more processes have a third of the episodes of a first-pass process each. So an answer
        # that came from a few other episodes of the process is no longer available.
        groups += [sample[singles:][place::6] for place in range(6)]
        again = self._answers(self._pass(starts, checked=False), groups, share=2.0)
        if again.failure:
            return as_nondeterministic(again.failure, ADVICE)
        rows, width = np.sort(np.concatenate(sample)), max(answers.width, again.width)
        first, second = (select_rows(a.audited_columns(width), rows) for a in (answers, again))
        episodes = self._episodes
        return find_difference(
            first, second, lambda row: describe_step(dataset, episodes, rows[row]), ADVICE
        )

    def _pass(self, starts: np.ndarray, *, checked: bool = True) -> _Pass:
        dataset, abilities = self._dataset, abilities_of(self._program)
        if abilities.tells or not abilities.draws:  # one answer, or all outcomes
            starts = starts[:, :1]
        columns = dataset.select("observations", "actions")
        # Before the first step of an episode there is no reward.
        columns["rewards"] = np.roll(dataset.columns["rewards"], 1)
        columns["rewards"][[episode[0] for episode in self._episodes]] = 0.0
        columns["starts"] = starts
        job = EpisodesJob.of(
            self._program,
            dataset,
            seed=int(self._seed),
            episodes=0,
            question_fields=[
                (
                    name,
                    {"f": "<f8", "U": column.dtype.str}.get(column.dtype.kind, "<i8"),
                    column.shape[1:],
                )
                for name, column in columns.items()
            ],
            draws_per_step=starts.shape[1],
            checked=checked,
        )
        questions = np.zeros(len(dataset), job.question_type)
        for name, column in columns.items():
            questions[name] = column
        return _Pass(dataset, self._episodes, abilities, questions, job)

    def _answers(
        self, one_pass: _Pass, groups: list[list[np.ndarray]], share: float = 1.0
    ) -> ProgramAnswers:
        """Ask along groups of episodes, each group in a process.

        A process gets at least a quarter of the time, since each loads the program.
        """
        groups = [group for group in groups if group]
        jobs = [replace(one_pass.job, episodes=len(group)) for group in groups]
        total = sum(map(len, self._episodes))
        shares = [share * sum(map(len, group)) / total for group in groups]
        limits = self._limits.longer(one_pass.job.draws_per_step)
        answers = self._converse(
            jobs,
            [limits.part(min(1.0, max(0.25, part))) for part in shares],
            lambda opened: _walk_all([_Walk(one_pass, groups[n], talk) for n, talk in opened]),
        )
        if isinstance(answers, Failure):
            return ProgramAnswers({}, answers)
        return one_pass.merge(answers)


@dataclass(frozen=True)
class _Pass:
    """One pass over the episodes of a dataset: its questions, and the job that answers them."""

    dataset: Dataset
    episodes: list[np.ndarray]
    abilities: Abilities
    questions: np.ndarray
    job: EpisodesJob

    def merge(self, parts: list[_StepAnswers]) -> ProgramAnswers:
        """Return the answers in the order of the dataset."""
        rows, counts = np.empty(0, int), np.empty(0, int)
        answers = np.empty(0, self.job.answer_type)
        if parts:
            rows, counts, answers = map(np.concatenate, zip(*parts, strict=True))
        tells = self.abilities.tells
        width = int(counts.max(initial=1)) if tells else self.job.draws_per_step
        # Answer i belongs to row `repeated[i]` and is its answer number `place[i]`.
        repeated = np.repeat(rows, counts)
        place = np.arange(len(answers)) - np.repeat(np.cumsum(counts) - counts, counts)
        shape = len(self.dataset), width
        probabilities = np.zeros(shape)
        probabilities[repeated, place] = answers["probabilities"]
        columns: Columns = {}
        for name, dtype, full_shape in answer_slots(
            self.job.observation_space, shape, self.job.mask_size
        ):
            columns[name] = np.zeros(full_shape, dtype)
            columns[name][repeated, place] = answers[name]
        columns = as_dataset_types(columns)
        if tells:
            return as_outcomes(columns, probabilities, rows)
        if self.abilities.draws:
            return ProgramAnswers(columns, shape="draws")
        return ProgramAnswers({name: column[:, 0] for name, column in columns.items()})


def episodes_of(dataset: Dataset) -> list[np.ndarray]:
    """Return the row numbers of each episode, in order.

    If rows are missing, so that an observation is not the next observation of the row before, a new
    episode begins.
    """
    episodes, count = dataset.columns["episodes"], len(dataset)
    follows = episodes[1:] == episodes[:-1]
    for leaf in dataset.observation_space.leaves("observations"):
        column, before = dataset.columns[leaf.name][1:], dataset.columns[f"next_{leaf.name}"][:-1]
        same = column == before
        if column.dtype.kind == "f":
            same |= np.isnan(column) & np.isnan(before)
        follows = follows & same.all(axis=tuple(range(1, same.ndim)))
    return np.split(np.arange(count), 1 + np.flatnonzero(~follows)) if count else []


def describe_step(dataset: Dataset, episodes: list[np.ndarray], row: int) -> str:
    """Return the calls of a program that lead to the prediction of a row, in words."""
    [episode] = [rows for rows in episodes if rows[0] <= row <= rows[-1]]
    start = dataset.observation_space.unpack("observations", dataset.columns, int(episode[0]))
    action = dataset.action_space.unpack("actions", dataset.columns, int(row))
    steps = int(row - episode[0])
    words = f", {steps} step{'s' * (steps > 1)} with correct" * (steps > 0)
    return f"reset({shown(start)}){words} and step({shown(action)})"


class _InvalidAnswer(Exception):
    """An answer that no honest program gives, or that needs too much memory."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class _Walk:
    """A walk along episodes that advance together, in a conversation with one process.

    For each step: `advance`, and if it returns True, `ask` and `receive`, which sets `answers`.
    """

    def __init__(
        self, one_pass: _Pass, episodes: list[np.ndarray], conversation: Conversation
    ) -> None:
        self._pass, self.conversation = one_pass, conversation
        self._unfinished, self._mask, self._step, self._answered_before = episodes, b"", -1, 0
        self.answers = _StepAnswers(np.empty(0, int), np.empty(0, int), np.empty(0))

    def advance(self) -> bool:
        """Move to the next step; return whether any episode has one."""
        self._step += 1
        self._answered_before += len(self.answers.rows)
        self._mask = bytes(len(episode) > self._step for episode in self._unfinished)
        self._unfinished = [rows for rows in self._unfinished if len(rows) > self._step]
        return bool(self._unfinished)

    def ask(self) -> None:
        """Send the outcome of the previous step, and the question about this step."""
        rows = np.array([episode[self._step] for episode in self._unfinished])
        self.answers = self.answers._replace(rows=rows)
        question = self._mask + self._pass.questions[rows].tobytes()
        self.conversation.send(SIZE.pack(len(question)) + question)

    def receive(self) -> None:
        """Receive the answers of this step; raise `_InvalidAnswer` if they are impossible."""
        rows, job = self.answers.rows, self._pass.job
        counts = np.frombuffer(self.conversation.receive(COUNT.itemsize * len(rows)), COUNT)
        least, most = job.draws_per_step, job.draws_per_step
        if self._pass.abilities.tells:
            least, most = 1, MOST_OUTCOMES
        if counts.min() < least or counts.max() > most:
            raise _InvalidAnswer(TAMPERED)
        dataset_rows, width = len(self._pass.dataset), int(counts.max())
        if failure := check_outcome_memory(dataset_rows, width, answer_bytes(job)):
            raise _InvalidAnswer(failure)
        size = int(counts.sum()) * job.answer_type.itemsize
        answers = np.frombuffer(self.conversation.receive(size), job.answer_type)
        self.conversation.rest()
        self.answers = _StepAnswers(rows, counts.astype(int), answers)

    def failure(self) -> Failure:
        """Return why the process has ended."""
        return self.conversation.failure(self._describe)

    def _describe(self, progress: int) -> str:
        """Return the question in words, given the number of predictions so far."""
        place, rows = progress - self._answered_before, self.answers.rows
        if not 0 <= place < len(rows):
            return ""
        return describe_step(self._pass.dataset, self._pass.episodes, rows[place])


def _walk_all(walks: list[_Walk]) -> list[_StepAnswers] | Failure:
    """Return the answers of all walks, or the first failure.

    No walk waits for another one: a delay of one process must not tell the other process anything.
    """
    answers: list[_StepAnswers] = []
    active = {walk.conversation: walk for walk in walks if walk.advance()}
    walk = walks[0]
    try:
        for walk in active.values():
            walk.ask()
        while active:
            conversation = next(walk.conversation.in_order_of_reply(list(active)))
            walk = active[conversation]
            walk.receive()
            answers.append(walk.answers)
            if walk.advance():
                walk.ask()
            else:
                del active[conversation]
    except EOFError:
        return walk.failure()
    except _InvalidAnswer as error:
        return error.failure
    return answers
