"""Likelihood of recorded transitions under rules in words.

The *statistician* is a backend with log-probabilities. This module puts each transition into words
and builds the question: the rules are stated as known facts, and the backend scores the sentence
that describes the change as the answer (Levy et al., 2025).
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
"""Lower bound of a log-likelihood, as in vLLM: with -inf, a single impossible sentence would
hide the likelihood of all others."""


class TextTransition(NamedTuple):
    """A recorded transition in words.

    `candidates` are all possible changes, including the recorded `change`. They are empty if the
    text view cannot list them. `facts` are the values that rules can refer to.
    """

    state: str
    action: str
    change: Change
    candidates: tuple[Change, ...]
    facts: Mapping[str, str]


class PredictionQuestion(NamedTuple):
    """A prediction task: rules, a transition, and the sentences discovered so far."""

    view: TextView
    rules: str
    transition: TextTransition
    discovered: tuple[str, ...] = ()


def text_transitions(view: TextView, rows: Iterable[Transition]) -> list[TextTransition]:
    """Put rows into words.

    Raises:
        CwmError: The text view cannot list the possible changes.
    """
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
    """Return the prompt: environment, rules as known facts, state and action."""
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


def normalise(weights: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return log-probabilities among the candidates of each transition."""
    return [log_softmax(each) for each in weights]


@dataclass(frozen=True)
class Statistician:
    """Scores recorded changes under rules, or under no rules (""), as natural logarithms.

    If the backend `normalises`, the scores are log-probabilities among the candidates. Otherwise
    they are sums over the tokens of the sentence, which are comparable under one model only.
    """

    view: TextView
    backend: Backend

    @property
    def normalises(self) -> bool:
        """Whether scores are log-probabilities among the candidates."""
        return self.backend.normalises

    def log_likelihoods(
        self,
        rules: str,
        transitions: Sequence[TextTransition],
        discovered: tuple[str, ...] = (),
    ) -> np.ndarray:
        """Return the log-likelihood (transitions,) of each recorded change.

        `discovered` lists the sentences of the answer in the prompt, if the text view asks for it.
        """
        questions = self._questions(transitions, rules, discovered)
        return self._weigh([(each, (each.transition.change,)) for each in questions])

    def of_candidates(
        self,
        rules: str,
        transitions: Sequence[TextTransition],
        discovered: tuple[str, ...] = (),
    ) -> list[np.ndarray]:
        """Return, for each transition, the log-likelihoods (candidates,) of its candidates."""
        questions = self._questions(transitions, rules, discovered)
        if (scores := self.backend.of_candidates(questions)) is not None:
            return [np.maximum(each, IMPOSSIBLE) for each in scores]
        asked = [(each, each.transition.candidates) for each in questions]
        ends = np.cumsum([len(each.candidates) for each in transitions])
        return np.split(self._weigh(asked), ends[:-1]) if asked else []

    def _questions(
        self, transitions: Sequence[TextTransition], rules: str, discovered: tuple[str, ...]
    ) -> list[PredictionQuestion]:
        hint = discovered if self.view.lists_discovered else ()
        return [PredictionQuestion(self.view, rules, each, hint) for each in transitions]

    def _weigh(self, asked: Sequence[tuple[PredictionQuestion, Sequence[Change]]]) -> np.ndarray:
        """Score all sentences in one call of the backend."""
        requests: list[ScoreRequest] = []
        for question, changes in asked:
            messages = messages_of(question) if self.backend.reads_messages else ()
            requests += [ScoreRequest(messages, change.text, question) for change in changes]
        found = [fsum(tokens) for tokens in self.backend.score(requests)]
        return np.maximum(found, IMPOSSIBLE)
