"""Weighing what might follow with a model that can only answer: it chooses among the candidates.

Chat endpoints tell how likely their own words were, not how likely others would have been. They are
asked which of the numbered sentences follows, several times in several orders, and a candidate
weighs what share of the votes it got.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from cwm_cli.errors import CwmError
from cwm_cli.search import threads
from cwm_cli.search.contracts import (
    GENERATE,
    Backend,
    Completion,
    Message,
    Move,
    Request,
    ScoreRequest,
    Usage,
    total,
)
from cwm_cli.search.models import innermost
from cwm_theorize.statistician import PredictionQuestion, messages_of

SYSTEM = (
    "You predict what happens in a small world that is described to you. You choose one of the "
    "sentences that are listed, and answer with its number and nothing else."
)

CHOOSE = "Which of these follows? Answer with its number alone.\n"

VOTES = 3
"""How often each question is asked: fewer do not tell a guess from what is known, and each costs a
completion."""

IN_FLIGHT = 4
"""How many questions are in flight at once."""


@dataclass
class Polls:
    """What was asked so far: the votes on each question, and what they took."""

    found: dict[str, np.ndarray] = field(default_factory=dict)
    completions: int = 0
    usage: Usage = field(default_factory=Usage)
    lock: threading.Lock = field(default_factory=threading.Lock)


@dataclass(frozen=True)
class Chooser(Backend):
    """Weighs each candidate by the votes of a backend that only completes.

    Of n votes on the set C of candidates, one that got v weighs (v + s / |C|) / (n + s), s being
    the `smoothing`. An answer that names none is no vote. Every question is asked once, however
    often its candidates are weighed.
    """

    can_score = True
    normalises = True
    reads_messages = False

    backend: Backend
    votes: int = VOTES
    smoothing: float = 1.0
    """How many votes all candidates share beforehand, so that none is impossible."""
    _polls: Polls = field(default_factory=Polls, init=False, repr=False, compare=False)

    @property
    def weighed(self) -> Usage:
        """What the votes took so far."""
        return self._polls.usage

    @property
    def completions(self) -> int:
        """How many votes were asked for so far."""
        return self._polls.completions

    def complete(self, request: Request) -> Completion:
        """Answer as the backend does that votes."""
        return self.backend.complete(request)

    def score(self, requests: Sequence[ScoreRequest]) -> Sequence[Sequence[float]]:
        """Return the logarithm of each candidate's smoothed share of the votes."""
        asked = [(*_sentences(request), request.text) for request in requests]
        questions = {question.key: (question, said) for question, said, _ in asked}
        self._poll([each for key, each in questions.items() if key not in self._polls.found])
        return [
            [float(np.log(self._shares(question)[said.index(text)]))]
            for question, said, text in asked
        ]

    def _shares(self, question: Request) -> np.ndarray:
        """Return the smoothed shares of the candidates."""
        counts = self._polls.found[question.key]
        shares: np.ndarray = (counts + self.smoothing / len(counts)) / (
            counts.sum() + self.smoothing
        )
        return shares

    def _poll(self, questions: Sequence[tuple[Request, list[str]]]) -> None:
        """Ask each question as often as there are votes, some at a time."""
        counts = {question.key: np.zeros(len(said)) for question, said in questions}
        for question, said in questions:
            if len(said) == 1:
                counts[question.key][0] = self.votes  # there is nothing to ask
        flying: list[Future[tuple[str, int | None]]] = []

        def take() -> None:
            key, place = flying.pop(0).result()
            if place is not None:
                counts[key][place] += 1

        for ballot in self._ballots(questions):
            flying.append(threads.submit(ballot))
            if len(flying) >= IN_FLIGHT:
                take()
        while flying:
            take()
        self._polls.found.update(counts)

    def _ballots(
        self, questions: Sequence[tuple[Request, list[str]]]
    ) -> Iterator[Callable[[], tuple[str, int | None]]]:
        """Yield every vote that is to be asked for."""
        for question, said in questions:
            for vote in range(self.votes if len(said) > 1 else 0):
                yield partial(self._vote, question, said, vote)

    def _vote(self, question: Request, said: list[str], vote: int) -> tuple[str, int | None]:
        """Ask once, the candidates in an order of its own: models favour some numbers."""
        order = np.random.default_rng([question.seed, vote]).permutation(len(said))
        listed = "\n".join(f"{n}. {said[place]}" for n, place in enumerate(order, 1))
        user = Message(role="user", content=f"{question.messages[-1].content}\n\n{CHOOSE}{listed}")
        messages = (Message(role="system", content=SYSTEM), user)
        answer = self.backend.complete(
            question._replace(messages=messages, seed=question.seed + vote)
        )
        with self._polls.lock:
            self._polls.completions += 1
            self._polls.usage = total([self._polls.usage, answer.usage])
        named = chosen(answer.text, [said[place] for place in order])
        return question.key, None if named is None else int(order[named])


def chosen(answer: str, listed: Sequence[str]) -> int | None:
    """Return which of the sentences an answer names: by its number, or in full; None for none."""
    numbers = re.findall(r"(?<![\w.])\d+(?![\w])", answer)
    first = re.match(r"\W*(\d+)\b", answer)
    for number in [first[1]] if first else numbers[-1:]:  # what thinking ends with
        if 1 <= int(number) <= len(listed):
            return int(number) - 1
    found = [place for place, sentence in enumerate(listed) if sentence in answer]
    return max(found, key=lambda place: len(listed[place]), default=None)


def weigher(backend: Backend, tell: Callable[[str], None]) -> Backend:
    """Return what weighs candidates: a backend itself or, said in one line, its choices.

    Only a language model can choose; any other backend without log-probabilities is refused.
    """
    if backend.can_score:
        return backend
    name = getattr(innermost(backend), "model", "") or type(backend).__name__
    if not backend.needs_model:
        raise CwmError(f"{name} provides no log-probabilities: choose another --statistician")
    votes = getattr(innermost(backend), "votes", VOTES)
    tell(
        f"{name} returns no log-probabilities of prompts: it chooses among the candidates, "
        f"{votes} times for each question"
    )
    return Chooser(backend, votes)


def _sentences(request: ScoreRequest) -> tuple[Request, list[str]]:
    """Return a question and the sentences to choose from."""
    question = request.question
    if not isinstance(question, PredictionQuestion):
        raise CwmError(
            "a model that only chooses cannot weigh proposals: use a --theorist whose server "
            "returns log-probabilities"
        )
    said = list(dict.fromkeys(change.text for change in question.transition.candidates))
    if request.text not in said:
        raise CwmError(
            "this environment lists no possible changes to choose from: use a "
            "--statistician with log-probabilities"
        )
    asked = Request(messages_of(question), 0, Move(GENERATE), problem=None)
    return asked._replace(seed=int(asked.key[:7], 16)), said
