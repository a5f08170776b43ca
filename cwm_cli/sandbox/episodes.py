"""Asking a program with memory along whole episodes: it predicts, then it is told what followed.

What followed on a step reaches the process of a program when its prediction has left it. But a
program cannot be kept from remembering what it was told in other episodes, which may repeat each
other. Therefore

- a first pass asks in two processes, to which the episodes go in turn;
- an audit asks again in more of them, where other episodes lie beside each, in another order,
  and none beside some. What a program predicts alike there, it did not know from other episodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_cli.data.spaces import Columns
from cwm_cli.sandbox.abilities import Abilities, abilities_of
from cwm_cli.sandbox.conversation import Conversation
from cwm_cli.sandbox.failures import Failure, shown
from cwm_cli.sandbox.job import (
    COUNT,
    MOST_OUTCOMES,
    SIZE,
    EpisodesJob,
    Job,
    Limits,
    answer_bytes,
    answer_slots,
    fields_of,
)
from cwm_cli.sandbox.prediction import (
    MEDDLED,
    MOST_AUDITED,
    MOST_DRAWN_AGAIN,
    ProgramAnswers,
    as_compared,
    as_outcomes,
    asked_again,
    chosen,
    differing,
    hidden_generator,
    permuted,
    selected,
    starts_of,
    too_many,
)

LEAST_SHARE = 0.25
"""Of the time of a program, for a process that has few rows: each loads the program."""

PASSES = 6
"""Processes of an audit with several episodes each: a third of those that lay beside each other
before, so that what few of them tell is missing."""

ALONE, MOST_ALONE = 16, 1000
"""Episodes that an audit asks for with none beside them, and rows that these may have, as each step
is a message: what is known from nearly all others, in one of a hundred rows, shows in some of
300 with a chance of 0.95."""

ADVICE = (
    "Predictions may only depend on the actions of their own episode and on the observations given "
    "to reset and correct. Other episodes run in the same process, each with its own Environment, "
    "and a score is valid only if other processes return the same predictions with other episodes. "
    "So store the memory in self, clear it in reset, and store nothing in the module or the class. "
    "Random outcomes may only use `self.rng`, a numpy Generator that is provided and seeded again "
    "for every step."
)


class _Heard(NamedTuple):
    """What was answered in one step of some episodes: how many answers to each row, and these."""

    rows: np.ndarray
    counts: np.ndarray
    answers: np.ndarray


ConverseApart = Callable[
    [
        Sequence[Job],
        Sequence[Limits],
        Callable[[Sequence[tuple[int, Conversation]]], list[_Heard] | Failure],
    ],
    list[_Heard] | Failure,
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
        """Ask for the answers to every row, in two processes. The answers are not confirmed."""
        rng = hidden_generator("first", self._dataset, self._seed)
        order = rng.permutation(len(self._episodes))
        groups = [[self._episodes[number] for number in order[side::2]] for side in (0, 1)]
        return self._answers(self._pass(starts_of(self._dataset, self._seed, draws)), groups)

    def audit(self, answers: ProgramAnswers) -> Failure | None:
        """Ask again in processes where other episodes lie beside each, and compare.

        Which these are is drawn from the recorded answers, which the program does not know before
        it has answered.
        """
        dataset = self._dataset
        rng = hidden_generator("audit", dataset, self._seed)
        order = rng.permutation(len(self._episodes))
        lengths = np.array([len(self._episodes[number]) for number in order], int)
        before = np.cumsum(lengths) - lengths
        drawn = [self._episodes[number] for number in order[before < MOST_AUDITED]]
        if not drawn:
            return None
        starts = starts_of(dataset, self._seed, answers.draws)
        if answers.shape == "draws":  # an episode continues from its first draw: always make that
            others = 1 + permuted(answers.draws - 1, len(dataset), rng)[:, : MOST_DRAWN_AGAIN - 1]
            numbers = np.concatenate([np.zeros((len(dataset), 1), int), others], axis=1)
            answers, starts = answers.chosen(numbers), chosen(starts, numbers)
        rows_before = (before + lengths)[: len(drawn)]
        alone = min(ALONE, int(np.count_nonzero(rows_before <= MOST_ALONE)))
        groups = [[episode] for episode in drawn[:alone]]
        groups += [drawn[alone:][place::PASSES] for place in range(PASSES)]
        again = self._answers(self._pass(starts, checked=False), groups, share=2.0)
        if again.failure:
            return asked_again(again.failure, ADVICE)
        rows, width = np.sort(np.concatenate(drawn)), max(answers.width, again.width)
        first, second = (selected(each.compared(width), rows) for each in (answers, again))
        every = self._episodes
        return differing(first, second, lambda row: asked_along(dataset, every, rows[row]), ADVICE)

    def _pass(self, starts: np.ndarray, *, checked: bool = True) -> _Pass:
        """Return the questions of one pass, for draws with these random states."""
        dataset, able = self._dataset, abilities_of(self._program)
        if able.tells or not able.draws:  # one answer, or all outcomes
            starts = starts[:, :1]
        questions = _questions(dataset, self._episodes, starts)
        job = EpisodesJob(
            program=self._program,
            seed=int(self._seed),
            observation_space=dataset.observation_space,
            action_space=dataset.action_space,
            valid=dataset.has_valid_actions,
            episodes=0,
            asked=fields_of(questions.dtype),
            several=starts.shape[1],
            checked=checked,
        )
        return _Pass(dataset, self._episodes, able, questions, job)

    def _answers(
        self, asked: _Pass, groups: list[list[np.ndarray]], share: float = 1.0
    ) -> ProgramAnswers:
        """Ask along groups of episodes, each group in a process that has a share of the time."""
        groups = [group for group in groups if group]
        jobs = [replace(asked.job, episodes=len(group)) for group in groups]
        total = sum(map(len, self._episodes))
        shares = [max(LEAST_SHARE, share * sum(map(len, group)) / total) for group in groups]
        whole = self._limits.longer(asked.job.several)
        heard = self._converse(
            jobs,
            [whole.part(min(1.0, each)) for each in shares],
            lambda opened: _walked([_Walk(asked, groups[place], talk) for place, talk in opened]),
        )
        return ProgramAnswers({}, heard) if isinstance(heard, Failure) else asked.merged(heard)


@dataclass(frozen=True)
class _Pass:
    """The questions of one pass over the episodes of a dataset, and the job that asks them."""

    dataset: Dataset
    every: list[np.ndarray]
    able: Abilities
    questions: np.ndarray
    job: EpisodesJob

    def merged(self, heard: list[_Heard]) -> ProgramAnswers:
        """Return the answers in the order of the dataset."""
        rows, counts = np.empty(0, int), np.empty(0, int)
        answers = np.empty(0, self.job.answer_type)
        if heard:
            rows, counts, answers = map(np.concatenate, zip(*heard, strict=True))
        width = self.job.several if not self.able.tells else int(counts.max(initial=1))
        place = np.arange(len(answers)) - np.repeat(np.cumsum(counts) - counts, counts)
        chances = np.zeros((len(self.dataset), width))
        chances[np.repeat(rows, counts), place] = answers["probabilities"]
        columns: Columns = {}
        shape = len(self.dataset), width
        for name, dtype, whole in answer_slots(
            self.job.observation_space, shape, self.job.allowable
        ):
            columns[name] = np.zeros(whole, dtype)
            columns[name][np.repeat(rows, counts), place] = answers[name]
        columns = as_compared(columns)
        if self.able.tells:
            return as_outcomes(columns, chances, rows)
        if self.able.draws:
            return ProgramAnswers(columns, shape="draws")
        return ProgramAnswers({name: column[:, 0] for name, column in columns.items()})


def episodes_of(dataset: Dataset) -> list[np.ndarray]:
    """Return the rows of each episode, in their order.

    Where rows are missing, as an observation is not what followed before it, another one begins.
    """
    episodes, count = dataset.columns["episodes"], len(dataset)
    follows = episodes[1:] == episodes[:-1]
    for leaf in dataset.observation_space.leaves("observations"):
        seen, before = dataset.columns[leaf.name][1:], dataset.columns[f"next_{leaf.name}"][:-1]
        same = seen == before
        if seen.dtype.kind == "f":
            same |= np.isnan(seen) & np.isnan(before)
        follows = follows & same.all(axis=tuple(range(1, same.ndim)))
    return np.split(np.arange(count), 1 + np.flatnonzero(~follows)) if count else []


def asked_along(dataset: Dataset, every: list[np.ndarray], row: int) -> str:
    """Describe the question to a program in a row of an episode."""
    [episode] = [each for each in every if each[0] <= row <= each[-1]]
    begin = dataset.observation_space.unpack("observations", dataset.columns, int(episode[0]))
    action = dataset.action_space.unpack("actions", dataset.columns, int(row))
    steps = int(row - episode[0])
    words = f", {steps} step{'s' * (steps > 1)} with correct" * (steps > 0)
    return f"reset({shown(begin)}){words} and step({shown(action)})"


class _Refused(Exception):
    """An answer that cannot be: the program meddled, or tells too much."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class _Walk:
    """Goes along episodes that advance together, in a conversation with one process.

    For each step in turn: while it `goes_on`, `ask` and `hear`, upon which it is in `heard`.
    """

    def __init__(
        self, asked: _Pass, episodes: list[np.ndarray], conversation: Conversation
    ) -> None:
        self._pass, self.conversation = asked, conversation
        self._going, self._mask, self._step, self._before = episodes, b"", -1, 0
        self.heard = _Heard(np.empty(0, int), np.empty(0, int), np.empty(0))

    def goes_on(self) -> bool:
        """Take the next step of all episodes that have one, and say whether any has."""
        self._step += 1
        self._before += len(self.heard.rows)
        self._mask = bytes(len(episode) > self._step for episode in self._going)
        self._going = [episode for episode in self._going if len(episode) > self._step]
        return bool(self._going)

    def ask(self) -> None:
        """Say what followed on the step before, and ask for the next."""
        rows = np.array([episode[self._step] for episode in self._going])
        self.heard = self.heard._replace(rows=rows)
        question = self._mask + self._pass.questions[rows].tobytes()
        self.conversation.send(SIZE.pack(len(question)) + question)

    def hear(self) -> None:
        """Receive the answers; `_Refused` where they cannot be."""
        rows, job, able = self.heard.rows, self._pass.job, self._pass.able
        counts = np.frombuffer(self.conversation.receive(COUNT.itemsize * len(rows)), COUNT)
        least, most = (1, MOST_OUTCOMES) if able.tells else (job.several,) * 2
        if counts.min() < least or counts.max() > most:
            raise _Refused(MEDDLED)
        if failure := too_many(len(self._pass.dataset), int(counts.max()), answer_bytes(job)):
            raise _Refused(failure)
        size = int(counts.sum()) * job.answer_type.itemsize
        answers = np.frombuffer(self.conversation.receive(size), job.answer_type)
        self.conversation.rest()
        self.heard = _Heard(rows, counts.astype(int), answers)

    def failure(self) -> Failure:
        """Say why the process has ended."""
        return self.conversation.failure(self._asked)

    def _asked(self, progress: int) -> str:
        """Describe what is asked of a program that has made so many predictions."""
        place, rows = progress - self._before, self.heard.rows
        if not 0 <= place < len(rows):
            return ""
        return asked_along(self._pass.dataset, self._pass.every, rows[place])


def _walked(walks: list[_Walk]) -> list[_Heard] | Failure:
    """Return all answers of walks, or the first failure.

    No walk waits for another one: a late answer would tell the other process something.
    """
    heard: list[_Heard] = []
    at = {walk.conversation: walk for walk in walks if walk.goes_on()}
    walk = walks[0]
    try:
        for walk in at.values():
            walk.ask()
        while at:
            conversation = next(walk.conversation.as_answered(list(at)))
            walk = at[conversation]
            walk.hear()
            heard.append(walk.heard)
            if walk.goes_on():
                walk.ask()
            else:
                del at[conversation]
    except EOFError:
        return walk.failure()
    except _Refused as refused:
        return refused.failure
    return heard


def _questions(dataset: Dataset, every: list[np.ndarray], starts: np.ndarray) -> np.ndarray:
    """Return what is asked in each row: observation and action, and the reward before them."""
    columns = dataset.select("observations", "actions")
    begins = np.array([episode[0] for episode in every], int)
    columns["rewards"] = np.roll(dataset.columns["rewards"], 1)
    columns["rewards"][begins] = 0.0
    columns["starts"] = starts
    plain = {"f": "<f8", "U": ""}
    types = [
        (name, plain.get(column.dtype.kind, "<i8") or column.dtype.str, column.shape[1:])
        for name, column in columns.items()
    ]
    questions = np.zeros(len(dataset), np.dtype(types))
    for name, column in columns.items():
        questions[name] = column
    return questions
