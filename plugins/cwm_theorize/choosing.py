"""Scores from chat models: the model chooses among the candidates, and votes are counted.

Chat endpoints return log-probabilities of their own completions only, not of given sentences.
Therefore each question lists the candidates by number and is asked several times, with the
candidates in different orders. The score of a candidate is its share of the votes.
"""

from __future__ import annotations

import re
import threading
from collections import deque
from collections.abc import Callable, Sequence
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
"""Default number of votes per question: fewer votes do not separate a guess from knowledge, and
each vote costs a completion."""

IN_FLIGHT = 4
"""Maximum number of concurrent requests."""


@dataclass
class VoteCounts:
    """Votes per question (candidates,), with the number of completions and their usage."""

    found: dict[str, np.ndarray] = field(default_factory=dict)
    completions: int = 0
    usage: Usage = field(default_factory=Usage)
    lock: threading.Lock = field(default_factory=threading.Lock)


@dataclass(frozen=True)
class Chooser(Backend):
    """Scores candidates by the votes of a backend that only completes.

    For |C| candidates and the `smoothing` s, a candidate with v of n votes has the probability (v +
    s / |C|) / (n + s). An answer that names no candidate does not count as a vote. Each question is
    asked once, and its votes are reused.
    """

    can_score = True
    normalises = True
    reads_messages = False

    backend: Backend
    votes: int = VOTES
    smoothing: float = 1.0
    """Number of votes added, shared equally by all candidates, so that none gets probability 0."""
    _votes: VoteCounts = field(default_factory=VoteCounts, init=False, repr=False, compare=False)

    @property
    def weighed(self) -> Usage:
        """Usage of all votes so far."""
        return self._votes.usage

    @property
    def completions(self) -> int:
        """Number of completions so far."""
        return self._votes.completions

    def complete(self, request: Request) -> Completion:
        """Return a completion of the voting backend."""
        return self.backend.complete(request)

    def score(self, requests: Sequence[ScoreRequest]) -> Sequence[Sequence[float]]:
        """Return the logarithm of each candidate's smoothed share of the votes."""
        asked = [(*_sentences(request), request.text) for request in requests]
        questions = {question.key: (question, sentences) for question, sentences, _ in asked}
        self._poll([each for key, each in questions.items() if key not in self._votes.found])
        return [
            [float(np.log(self._shares(question)[sentences.index(text)]))]
            for question, sentences, text in asked
        ]

    def _shares(self, question: Request) -> np.ndarray:
        counts = self._votes.found[question.key]
        shares: np.ndarray = (counts + self.smoothing / len(counts)) / (
            counts.sum() + self.smoothing
        )
        return shares

    def _poll(self, questions: Sequence[tuple[Request, list[str]]]) -> None:
        """Request the votes on questions, at most `IN_FLIGHT` at a time."""
        counts = {question.key: np.zeros(len(sentences)) for question, sentences in questions}
        pending: deque[Future[tuple[str, int | None]]] = deque()

        def count_oldest() -> None:
            key, place = pending.popleft().result()
            if place is not None:
                counts[key][place] += 1

        for question, sentences in questions:
            if len(sentences) == 1:
                counts[question.key][0] = self.votes  # a single candidate needs no question
                continue
            for vote in range(self.votes):
                pending.append(threads.submit(partial(self._vote, question, sentences, vote)))
                if len(pending) >= IN_FLIGHT:
                    count_oldest()
        while pending:
            count_oldest()
        self._votes.found.update(counts)

    def _vote(self, question: Request, sentences: list[str], vote: int) -> tuple[str, int | None]:
        """Ask once, with the candidates shuffled because models prefer some numbers."""
        order = np.random.default_rng([question.seed, vote]).permutation(len(sentences))
        listed = "\n".join(f"{n}. {sentences[place]}" for n, place in enumerate(order, 1))
        user = Message(role="user", content=f"{question.messages[-1].content}\n\n{CHOOSE}{listed}")
        messages = (Message(role="system", content=SYSTEM), user)
        answer = self.backend.complete(
            question._replace(messages=messages, seed=question.seed + vote)
        )
        with self._votes.lock:
            self._votes.completions += 1
            self._votes.usage = total([self._votes.usage, answer.usage])
        chosen = parse_choice(answer.text, [sentences[place] for place in order])
        return question.key, None if chosen is None else int(order[chosen])


def parse_choice(answer: str, listed: Sequence[str]) -> int | None:
    """Return the index of the sentence that an answer names, or None.

    An answer names a sentence by its number or by its full text.
    """
    numbers = re.findall(r"(?<![\w.])\d+(?![\w])", answer)
    first = re.match(r"\W*(\d+)\b", answer)
    for number in [first[1]] if first else numbers[-1:]:  # the last number after reasoning
        if 1 <= int(number) <= len(listed):
            return int(number) - 1
    found = [place for place, sentence in enumerate(listed) if sentence in answer]
    return max(found, key=lambda place: len(listed[place]), default=None)


def scoring_backend(backend: Backend, tell: Callable[[str], None]) -> Backend:
    """Return the backend, or a `Chooser` around it if it has no log-probabilities.

    Args:
        backend: Backend of the statistician.
        tell: Receives one line if the backend is wrapped.

    Raises:
        CwmError: The backend has no log-probabilities and is not a language model, so that it
            cannot choose.
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
    """Return a question, and the distinct sentences to choose from."""
    question = request.question
    if not isinstance(question, PredictionQuestion):
        raise CwmError(
            "a model that only chooses cannot score proposals: use a --theorist whose server "
            "returns log-probabilities"
        )
    sentences = list(dict.fromkeys(change.text for change in question.transition.candidates))
    if request.text not in sentences:
        raise CwmError(
            "this environment lists no possible changes to choose from: use a "
            "--statistician with log-probabilities"
        )
    asked = Request(messages_of(question), 0, Move(GENERATE), problem=None)
    return asked._replace(seed=int(asked.key[:7], 16)), sentences
