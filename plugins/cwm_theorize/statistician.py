"""How likely what was recorded is under rules in words, as a backend with log-probabilities says.

The *statistician* is the backend; what it is asked, and how, is here: every transition is put into
words, the rules are given as known facts, and the sentence that says what followed is weighed as
the answer (Levy et al., 2025).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.special import log_softmax

from cwm_cli.envs.text_view import Change, TextView
from cwm_cli.search.contracts import Backend, Message, ScoreRequest

if TYPE_CHECKING:
    from cwm_cli.data.dataset import Transition

SYSTEM = (
    "You predict what happens in a small world that is described to you. You answer with one "
    "sentence in the words of the description, and nothing else."
)

IMPOSSIBLE = -9999.0
"""The log-likelihood of what a model gives no chance at all, as vLLM writes it: one such sentence
shall not hide how likely all others are."""


class TextTransition(NamedTuple):
    """A recorded step in words: what was seen, done and found, and what might have been found.

    `candidates` hold the change itself; there are none where they cannot be listed.
    """

    state: str
    action: str
    change: Change
    candidates: tuple[Change, ...]
    facts: Mapping[str, str]


class PredictionQuestion(NamedTuple):
    """What a prediction is asked by: rules, a transition, and the sentences met so far."""

    view: TextView
    rules: str
    transition: TextTransition
    discovered: tuple[str, ...] = ()


def text_transitions(view: TextView, rows: Iterable[Transition]) -> list[TextTransition]:
    """Put rows into words; `CwmError` where the view cannot list what might have followed."""
    return [
        TextTransition(
            view.state(row.observation),
            view.action(row.observation, row.action),
            view.change(row),
            tuple(view.candidates(row.observation)),
            view.facts(row.observation, row.action),
        )
        for row in rows
    ]


def messages_of(question: PredictionQuestion) -> tuple[Message, ...]:
    """Word a question: the environment, the rules as known facts, what is seen and done."""
    parts = [question.view.guide()]
    if question.rules:
        parts.append(f"What is known to hold:\n{question.rules}")
    if question.discovered:
        listed = "\n".join(f"- {sentence}" for sentence in question.discovered)
        parts.append(f"Answer with one of these sentences:\n{listed}")
    parts.append("Say in one sentence what follows the action.")
    parts.append(f"State: {question.transition.state}\nAction: {question.transition.action}")
    return (
        Message(role="system", content=SYSTEM),
        Message(role="user", content="\n\n".join(parts)),
    )


def normalised(weights: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return log-probabilities among the candidates of each transition."""
    return [log_softmax(each) for each in weights]


@dataclass(frozen=True)
class Statistician:
    """Weighs what followed, under rules or none (""): natural logarithms.

    Of a backend that `normalises` they are log-probabilities among the candidates; of any other
    the sums over the tokens of the sentence, which only compare under one model.
    """

    view: TextView
    backend: Backend

    @property
    def normalises(self) -> bool:
        """Whether what it says are log-probabilities among the candidates."""
        return self.backend.normalises

    def log_likelihoods(
        self,
        rules: str,
        transitions: Sequence[TextTransition],
        discovered: tuple[str, ...] = (),
    ) -> np.ndarray:
        """Return the log-likelihood (transitions,) of what followed each."""
        questions = self._questions(transitions, rules, discovered)
        return self._weigh([(each, (each.transition.change,)) for each in questions])

    def of_candidates(
        self,
        rules: str,
        transitions: Sequence[TextTransition],
        discovered: tuple[str, ...] = (),
    ) -> list[np.ndarray]:
        """Return, for each transition, the log-likelihood of each of its candidates."""
        questions = self._questions(transitions, rules, discovered)
        if (told := self.backend.of_candidates(questions)) is not None:
            return [np.maximum(each, IMPOSSIBLE) for each in told]
        asked = [(each, each.transition.candidates) for each in questions]
        ends = np.cumsum([len(each.candidates) for each in transitions])
        return np.split(self._weigh(asked), ends[:-1]) if asked else []

    def _questions(
        self, transitions: Sequence[TextTransition], rules: str, discovered: tuple[str, ...]
    ) -> list[PredictionQuestion]:
        hint = discovered if self.view.lists_discovered else ()
        return [PredictionQuestion(self.view, rules, each, hint) for each in transitions]

    def _weigh(self, asked: Sequence[tuple[PredictionQuestion, Sequence[Change]]]) -> np.ndarray:
        """Weigh sentences, all in one request to the backend."""
        requests: list[ScoreRequest] = []
        for question, changes in asked:
            messages = messages_of(question) if self.backend.reads_messages else ()
            requests += [ScoreRequest(messages, change.text, question) for change in changes]
        found = [fsum(tokens) for tokens in self.backend.score(requests)]
        return np.maximum(found, IMPOSSIBLE)
