"""The backend `symbolic`: rules in the controlled language, read exactly.

Of the candidates of a transition those are *entailed* that the deciding line of the rules allows:
all of its kind whose fields are as it says; all where no line applies. With the chance `noise`
anything may follow:

    p(o) = (1 - noise) [o is entailed] / entailed + noise / candidates

and nothing is ruled out by a line that no candidate agrees with. These are probabilities among the
candidates. Lines that are no rules of the language say nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Annotated

import numpy as np
from pydantic import Field

from cwm_cli.envs.text_view import TextView
from cwm_cli.errors import CwmError
from cwm_cli.search.contracts import Backend, Completion, Request, ScoreRequest
from cwm_cli.worlds.statistician import PredictionQuestion, TextTransition
from cwm_theories.language import (
    Comparison,
    Conclusion,
    Reference,
    RuleLanguage,
    Ruleset,
    Value,
    language_of,
)

ABSENT = -1
"""The number of a value that a transition does not have."""

PADDING = -2
"""The number of what stands where a transition has no more candidates; no value has it."""

MOST = 50_000
"""Transitions that are kept as numbers: with forty candidates each, about 50 megabytes."""


class TransitionTable:
    """Transitions as numbers, so that rules are read for many of them at once.

    `facts` are (transitions, facts), `kinds` (transitions, candidates) and `fields` (transitions,
    candidates, fields of a kind), each value having a number of its own; `sizes` count the
    candidates and `truth` is the place of the change among them. A transition is known by being
    the same object, and stays in its row; a table that is `full` is to be left for another.
    """

    def __init__(self, language: RuleLanguage) -> None:
        self.language = language
        self.codes: dict[str, int] = {}
        self.places = {fact: place for place, fact in enumerate(language.values)}
        self.slots = {
            kind: {name: place for place, name in enumerate(fields)}
            for kind, fields in language.fields.items()
        }
        self._widest = max((len(each) for each in self.slots.values()), default=0)
        self._lock = Lock()
        self._known: dict[int, tuple[int, TextTransition, dict[str, int]]] = {}
        self.facts = np.empty((0, len(self.places)), dtype=np.int32)
        self.kinds = np.empty((0, 0), dtype=np.int32)
        self.fields = np.empty((0, 0, self._widest), dtype=np.int32)
        self.sizes = np.empty(0, dtype=np.int64)
        self.truth = np.empty(0, dtype=np.int64)

    @property
    def full(self) -> bool:
        """Whether it holds more than is needed again."""
        return len(self._known) > MOST

    def code(self, word: str) -> int:
        """Return the number of a word."""
        return self.codes.setdefault(word, len(self.codes))

    def rows(self, transitions: Sequence[TextTransition]) -> np.ndarray:
        """Return the rows (transitions,) of the table that these stand in."""
        with self._lock:
            new = {id(each): each for each in transitions if id(each) not in self._known}
            if new:
                self._add(list(new.values()))
        return np.array([self._known[id(each)][0] for each in transitions], dtype=np.int64)

    def column(self, transition: TextTransition, text: str) -> int:
        """Return the place of a sentence among the candidates of a transition that is known."""
        try:
            return self._known[id(transition)][2][text]
        except KeyError:
            raise CwmError(
                f"{text!r} is no candidate of what may follow: the text view has to list it"
            ) from None

    def _add(self, transitions: Sequence[TextTransition]) -> None:
        count, width = len(transitions), max(len(each.candidates) for each in transitions)
        if not width:
            raise CwmError(
                "nothing can be weighed where no candidates of what may follow are known"
            )
        facts = np.full((count, len(self.places)), ABSENT, dtype=np.int32)
        kinds = np.full((count, width), PADDING, dtype=np.int32)
        fields = np.full((count, width, self._widest), ABSENT, dtype=np.int32)
        truth = np.full(count, ABSENT, dtype=np.int64)
        for row, transition in enumerate(transitions):
            for fact, word in transition.facts.items():
                facts[row, self.places[fact]] = self.code(word)
            columns = {}
            for column, change in enumerate(transition.candidates):
                kinds[row, column] = self.code(change.kind)
                for name, word in change.fields.items():
                    fields[row, column, self.slots[change.kind][name]] = self.code(word)
                columns[change.text] = column
            truth[row] = columns.get(transition.change.text, ABSENT)
            self._known[id(transition)] = len(self.sizes) + row, transition, columns
        self.facts = np.concatenate([self.facts, facts])
        self.kinds = _stacked(self.kinds, kinds, PADDING)
        self.fields = _stacked(self.fields, fields, ABSENT)
        sizes = np.array([len(each.candidates) for each in transitions])
        self.sizes = np.concatenate([self.sizes, sizes])
        self.truth = np.concatenate([self.truth, truth])

    def holding(self, comparison: Comparison, rows: np.ndarray) -> np.ndarray:
        """Return in which rows (rows,) a condition holds."""
        found = self.facts[rows, self.places[comparison.fact]]
        same: np.ndarray = (found == self._value(comparison.value, rows)) & (found != ABSENT)
        return same if comparison.holds else ~same

    def deciding(self, rules: Ruleset, rows: np.ndarray) -> np.ndarray:
        """Return the line (rows,) that decides: one past the last where none applies."""
        deciding = np.full(len(rows), len(rules.lines))
        open_rows = np.arange(len(rows))
        for number, line in enumerate(rules.lines):
            applies = np.ones(len(open_rows), dtype=bool)
            for condition in line.conditions:
                applies &= self.holding(condition, rows[open_rows])
            deciding[open_rows[applies]] = number
            open_rows = open_rows[~applies]
        return deciding

    def entailed(self, rules: Ruleset, rows: np.ndarray) -> np.ndarray:
        """Return which candidates (rows, candidates) the deciding lines allow, if any at all."""
        entailed: np.ndarray = self.kinds[rows] != PADDING
        deciding = self.deciding(rules, rows)
        for number, conclusion in enumerate(
            [*(each.conclusion for each in rules.lines), rules.otherwise]
        ):
            decided = np.flatnonzero(deciding == number)
            if conclusion is not None and len(decided):
                entailed[decided] = self._agreeing(conclusion, rows[decided])
        return entailed

    def _agreeing(self, conclusion: Conclusion, rows: np.ndarray) -> np.ndarray:
        agreeing: np.ndarray = self.kinds[rows] == self.code(conclusion.kind)
        for name, value in conclusion.fields:
            slot = self.slots[conclusion.kind][name]
            wanted = np.broadcast_to(self._value(value, rows), len(rows))
            agreeing &= self.fields[rows, :, slot] == wanted[:, None]
        return agreeing

    def _value(self, value: Value, rows: np.ndarray) -> np.ndarray:
        """Return the numbers of a value: one for each row, or one for all."""
        if not isinstance(value, Reference):
            return np.array(self.code(value))
        numbers: np.ndarray = self.facts[rows, self.places[value.fact]]
        return numbers

    def precision(self, rules: Ruleset, rows: np.ndarray) -> np.ndarray:
        """Return [the change is entailed] / entailed (rows,): 1 where rules say it exactly."""
        entailed = self.entailed(rules, rows)
        right = entailed[np.arange(len(rows)), self.truth[rows]] & (self.truth[rows] >= 0)
        precision: np.ndarray = right / np.maximum(entailed.sum(axis=1), 1)
        return precision

    def probabilities(self, rules: Ruleset, rows: np.ndarray, noise: float) -> np.ndarray:
        """Return the probability (rows, candidates) of each candidate, 0 where there is none."""
        entailed, there = self.entailed(rules, rows), self.kinds[rows] != PADDING
        entailed[~entailed.any(axis=1)] = True
        entailed &= there
        exact = (1 - noise) * entailed / entailed.sum(axis=1, keepdims=True)
        anything = noise * there / self.sizes[rows][:, None]
        return np.asarray(exact + anything)


def _stacked(above: np.ndarray, below: np.ndarray, padding: int) -> np.ndarray:
    """Put tables on top of each other, the narrower padded to the width of the wider."""
    width = max(above.shape[1], below.shape[1])
    return np.concatenate(
        [
            np.pad(
                each,
                [(0, 0), (0, width - each.shape[1]), *[(0, 0)] * (each.ndim - 2)],
                constant_values=padding,
            )
            for each in (above, below)
        ]
    )


@dataclass(frozen=True)
class Symbolic(Backend):
    """Reads rules in the controlled language exactly: the statistician that needs no model.

    `model` is accepted for the sake of `--model` and must be empty.
    """

    can_score = True
    normalises = True
    reads_messages = False

    model: str = ""
    noise: Annotated[float, Field(gt=0, lt=1)] = 0.05
    """Chance that something follows that no rule entails."""
    _tables: dict[RuleLanguage, TransitionTable] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        if self.model:
            raise CwmError("the symbolic statistician uses no model: leave out --model")

    def complete(self, request: Request) -> Completion:
        """Refuse: it weighs rules, and proposes none."""
        raise CwmError("the symbolic statistician proposes no rules: name a --theorist")

    def wording(self, view: TextView) -> str:
        """Describe the controlled language, with the words that it has for the environment."""
        return language_of(view).wording

    def unread(self, view: TextView, rules: str) -> Sequence[str]:
        """Return why lines are no rules of the language."""
        return language_of(view).read(rules).problems

    def score(self, requests: Sequence[ScoreRequest]) -> list[Sequence[float]]:
        """Return, for each sentence, the logarithm of its probability among the candidates."""
        groups: defaultdict[tuple[int, str], list[int]] = defaultdict(list)
        questions = []
        for place, request in enumerate(requests):
            question = request.question
            if not isinstance(question, PredictionQuestion):
                raise CwmError(
                    "the symbolic statistician weighs what follows under rules, and nothing else: "
                    "name another backend"
                )
            questions.append(question)
            groups[id(question.view), question.rules].append(place)
        scores: list[Sequence[float]] = [()] * len(requests)
        for places in groups.values():
            asked = [questions[place] for place in places]
            texts = [requests[place].text for place in places]
            for place, value in zip(places, self._weighed(asked, texts), strict=True):
                scores[place] = (float(value),)
        return scores

    def _weighed(self, asked: Sequence[PredictionQuestion], texts: Sequence[str]) -> np.ndarray:
        """Weigh sentences that are asked for under the same rules."""
        language = language_of(asked[0].view)
        table = self._tables.get(language)
        if table is None or table.full:
            table = self._tables[language] = TransitionTable(language)
        transitions = list({id(each.transition): each.transition for each in asked}.values())
        numbers = {id(each): number for number, each in enumerate(transitions)}
        found = [numbers[id(each.transition)] for each in asked]
        rules, rows = language.read(asked[0].rules).rules, table.rows(transitions)
        weights = table.probabilities(rules, rows, self.noise)
        columns = [
            table.column(each.transition, text) for each, text in zip(asked, texts, strict=True)
        ]
        logarithms: np.ndarray = np.log(weights[found, columns])
        return logarithms
