"""How fast, how right and at what cost a language model predicts transitions."""

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from cwm_cli.bench.speed.pace import Pace
from cwm_cli.bench.speed.predicted import Predicted
from cwm_cli.bench.speed.question import Questioner
from cwm_cli.data.dataset import Dataset
from cwm_cli.errors import CwmError
from cwm_cli.evaluation import Metric, Score
from cwm_cli.search import threads as daemons
from cwm_cli.search.contracts import GENERATE, Backend, Completion, Move, Request, Usage, total

T = TypeVar("T")

MOST_REFUSALS = 2
"""After so many questions in a row that brought no answer no more are asked."""

INTERRUPTED = "interrupted"
"""Why no further rows were asked for where the user ended it."""


@dataclass
class Asked:
    """What came of asking a language model for rows.

    `unread` says, by row, why an answer is no prediction, which then counts as wrong.
    `refused` says why there was no answer, which counts as nothing, and `stopped`
    why further rows were not asked for. `answers` are texts, by row.
    """

    usages: list[Usage] = field(default_factory=list)
    answers: dict[int, str] = field(default_factory=dict)
    unread: dict[int, str] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)
    stopped: str = ""
    score: Score | None = None

    @property
    def pace(self) -> Pace | None:
        """How long answers take, waits after failed attempts included."""
        seconds = [usage.seconds for usage in self.usages]
        return Pace.of(seconds, len(seconds), seconds[0]) if seconds else None

    @property
    def spent(self) -> Usage:
        """What all answers took."""
        return total(self.usages)


@dataclass(frozen=True)
class Inquiry:
    """Asks a backend for rows, one after the other, up to a cost in US dollars."""

    backend: Backend
    questioner: Questioner
    metric: Metric
    max_cost: float | None = None

    def ask(self, rows: Dataset, heard: Callable[[int], None] = lambda count: None) -> Asked:
        """Ask for every row, or until that has no use; `heard` is told how many are done.

        What was answered is kept when the user interrupts.
        """
        asked, predicted = Asked(), Predicted(rows)
        try:
            for number in range(len(rows)):
                self._ask(rows, number, asked, predicted)
                heard(number + 1)
                if asked.stopped:
                    break
        except KeyboardInterrupt:
            asked.stopped = INTERRUPTED
        if asked.answers:
            asked.score = predicted.score(self.metric, np.array(sorted(asked.answers)))
        return asked

    def _ask(self, rows: Dataset, number: int, asked: Asked, predicted: Predicted) -> None:
        """Ask for a row and take its answer in, if there is any."""
        messages = self.questioner.messages(rows.row(number), number)
        request = Request(messages, number, Move(GENERATE), self.questioner, number)
        try:
            completion = self._complete(request, asked)
        except CwmError as error:
            asked.refused[number] = str(error)
            latest = range(number - MOST_REFUSALS + 1, number + 1)
            if number == 0 or all(row in asked.refused for row in latest):
                asked.stopped = str(error)
            return
        if completion is None:
            asked.stopped = f"the next answer might exceed --max-cost {self.max_cost:g}"
            return
        asked.usages.append(completion.usage)
        asked.answers[number] = completion.text
        if reason := predicted.take(number, completion.text):
            asked.unread[number] = reason

    def _complete(self, request: Request, asked: Asked) -> Completion | None:
        """Return the answer; none where it might cost too much."""
        if self.max_cost is not None:
            worst, spent = self.backend.worst_cost(request), asked.spent.cost
            if worst is None or spent is None:
                raise CwmError("--max-cost needs a model of known price: leave it out")
            if spent + worst > self.max_cost:
                return None
        return waited(lambda: self.backend.complete(request))


def waited(work: Callable[[], T]) -> T:
    """Return what work returns or raise what it raises; an interrupt ends the wait at once."""
    done: Future[T] = Future()

    def attempt() -> None:
        try:
            done.set_result(work())
        except BaseException as error:  # noqa: BLE001  # raised again by whoever waits
            done.set_exception(error)

    daemons.start(attempt)
    return done.result()
