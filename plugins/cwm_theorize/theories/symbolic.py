"""The backend `symbolic`: an exact reader of rules in the controlled language.

The line of the rules that decides a transition *entails* candidates: all of its kind whose fields
agree with its conclusion. If no line applies, all candidates are entailed. With probability
`noise`, any candidate follows:

    p(o) = (1 - noise) [o is entailed] / entailed + noise / candidates

A line that agrees with no candidate excludes nothing. Lines that cannot be parsed have no effect.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count as counting
from itertools import groupby, islice
from threading import Lock
from typing import Annotated

import numpy as np
from pydantic import Field

from cwm_cli.envs.text_view import Change, TextView
from cwm_cli.errors import CwmError
from cwm_cli.search.contracts import Backend, Completion, Request, ScoreRequest
from cwm_theorize.statistician import PredictionQuestion, TextTransition
from cwm_theorize.theories.language import (
    Comparison,
    Conclusion,
    Reference,
    RuleLanguage,
    Ruleset,
    language_of,
)

ABSENT = -1
"""Code of a missing value."""

NO_CHANGE = 0
"""Code that pads the candidates of a transition; it has no kind."""


class TransitionTable:
    """Transitions as integer codes, to evaluate rules on many transitions in one operation.

    Every value and every change has a code. A transition is identified by its object and keeps its
    row. A table that is `is_full` should be replaced by a new one.

    Attributes:
        kinds: Kind of each change (changes,).
        fields: Field values of each change (changes, fields of a kind).
        facts: Fact values (transitions, facts).
        candidates: Changes (transitions, candidates).
        followed: Recorded change of each transition (transitions,).
    """

    def __init__(self, language: RuleLanguage) -> None:
        self.language = language
        self.codes: dict[str, int] = {}
        self._unused = counting()
        self.places = {fact: place for place, fact in enumerate(language.values)}
        self.slots = {
            kind: {name: place for place, name in enumerate(fields)}
            for kind, fields in language.fields.items()
        }
        self.facts = np.empty((0, len(self.places)), dtype=np.int32)
        self.candidates = np.empty((0, 1), dtype=np.int32)
        self.followed = np.empty(0, dtype=np.int32)
        self.kinds = np.full(1, ABSENT, dtype=np.int32)
        widest = max((len(each) for each in self.slots.values()), default=0)
        self.fields = np.full((1, widest), ABSENT, dtype=np.int32)
        self._rows: dict[int, tuple[int, TextTransition]] = {}
        self._lists: dict[int, tuple[list[int], tuple[Change, ...]]] = {}
        self._changes: dict[tuple[str, str, tuple[str, ...]], int] = {}
        self._texts: dict[str, int] = {}
        self._lock = Lock()

    @property
    def is_full(self) -> bool:
        """Whether the table has reached its maximum size."""
        # maximum number of transitions in a table: about 10 MB with forty candidates each
        max_transitions = 50_000
        return len(self._rows) > max_transitions

    def code(self, word: str) -> int:
        """Return the code of a word; safe for concurrent use."""
        known = self.codes.get(word)
        return self.codes.setdefault(word, next(self._unused)) if known is None else known

    def rows(self, transitions: Sequence[TextTransition]) -> np.ndarray:
        """Return the rows (transitions,) of transitions, after adding missing ones."""
        with self._lock:
            new = {id(each): each for each in transitions if id(each) not in self._rows}
            if new:
                self._add(list(new.values()))
        return np.array([self._rows[id(each)][0] for each in transitions], dtype=np.int64)

    def columns(self, rows: np.ndarray, texts: Sequence[str]) -> np.ndarray:
        """Return the index (rows,) of each sentence among the candidates of its row."""
        changes = np.array([self._texts.get(text, ABSENT) for text in texts], dtype=np.int32)
        there = self.candidates[rows] == changes[:, None]
        columns = there.argmax(axis=1)
        missing = np.flatnonzero(~there[np.arange(len(rows)), columns])
        if len(missing):
            raise CwmError(
                f"{texts[missing[0]]!r} is not among the possible changes: the text view must "
                "list it"
            )
        return np.asarray(columns)

    def _add(self, transitions: Sequence[TextTransition]) -> None:
        if not all(each.candidates for each in transitions):
            raise CwmError("rules cannot be scored: this environment lists no possible changes")
        candidates = [self._candidate_codes(each.candidates) for each in transitions]
        self._make_room(len(self._rows) + len(transitions), max(map(len, candidates)))
        for row, (transition, numbers) in enumerate(
            zip(transitions, candidates, strict=True), len(self._rows)
        ):
            words = map(transition.facts.get, self.places)
            self.facts[row] = [ABSENT if word is None else self.code(word) for word in words]
            self.candidates[row, : len(numbers)] = numbers
            self.followed[row] = self._change_code(transition.change)
            self._rows[id(transition)] = row, transition

    def _make_room(self, rows: int, width: int) -> None:
        """Grow to at least `rows` rows; doubling copies each row twice on average."""
        more = max(rows, 2 * len(self.facts)) - len(self.facts) if rows > len(self.facts) else 0
        wider = max(0, width - self.candidates.shape[1])
        if more or wider:
            below = (0, more)
            self.facts = np.pad(self.facts, (below, (0, 0)), constant_values=ABSENT)
            self.followed = np.pad(self.followed, below, constant_values=NO_CHANGE)
            self.candidates = np.pad(
                self.candidates, (below, (0, wider)), constant_values=NO_CHANGE
            )

    def _candidate_codes(self, candidates: tuple[Change, ...]) -> list[int]:
        """Return the codes of candidates; actions of the same state share the same tuple."""
        if id(candidates) not in self._lists:
            self._lists[id(candidates)] = [*map(self._change_code, candidates)], candidates
        return self._lists[id(candidates)][0]

    def _change_code(self, change: Change) -> int:
        """Return the code of a change; most changes occur many times."""
        key = (change.text, change.kind, tuple(change.fields.values()))
        if key not in self._changes:
            fields = np.full((1, self.fields.shape[1]), ABSENT, dtype=np.int32)
            for name, word in change.fields.items():
                fields[0, self.slots[change.kind][name]] = self.code(word)
            self._changes[key] = self._texts[change.text] = len(self.kinds)
            self.kinds = np.append(self.kinds, np.int32(self.code(change.kind)))
            self.fields = np.concatenate([self.fields, fields])
        return self._changes[key]

    def holding(self, comparison: Comparison, rows: np.ndarray) -> np.ndarray:
        """Return whether a condition holds in each row (rows,)."""
        found, value = self.facts[rows, self.places[comparison.fact]], comparison.value
        same: np.ndarray
        if isinstance(value, Reference):
            same = (found == self.facts[rows, self.places[value.fact]]) & (found != ABSENT)
        else:
            same = found == self.code(value)
        return same if comparison.holds else ~same

    def deciding(self, rules: Ruleset, rows: np.ndarray) -> np.ndarray:
        """Return the index (rows,) of the deciding line; the number of lines if none applies."""
        deciding = np.full(len(rows), len(rules.lines))
        places, left = np.arange(len(rows)), rows
        for number, line in enumerate(rules.lines):
            applies = np.ones(len(left), dtype=bool)
            for condition in line.conditions:
                applies &= self.holding(condition, left)
            if applies.any():
                deciding[places[applies]] = number
                places, left = places[~applies], left[~applies]
            if not len(left):
                break
        return deciding

    def entailed(self, rules: Ruleset, rows: np.ndarray) -> np.ndarray:
        """Return which candidates (rows, candidates) the deciding lines entail."""
        candidates = self.candidates[rows]
        entailed: np.ndarray = candidates != NO_CHANGE
        deciding = self.deciding(rules, rows)
        conclusions = [*(line.conclusion for line in rules.lines), rules.otherwise]
        for number in np.unique(deciding):
            conclusion, decided = conclusions[number], np.flatnonzero(deciding == number)
            if conclusion is not None:
                entailed[decided] = self._agreeing(conclusion, rows[decided], candidates[decided])
        return entailed

    def _agreeing(
        self, conclusion: Conclusion, rows: np.ndarray, changes: np.ndarray
    ) -> np.ndarray:
        """Return which changes (rows, changes) agree with a conclusion."""
        fields = self.fields  # another thread may be adding a change, whose kind comes first
        agreeing: np.ndarray = self.kinds[: len(fields)] == self.code(conclusion.kind)
        slots = self.slots[conclusion.kind]
        for name, value in conclusion.fields:
            if not isinstance(value, Reference):
                agreeing &= fields[:, slots[name]] == self.code(value)
        found = agreeing[changes]
        for name, value in conclusion.fields:
            if isinstance(value, Reference):
                same = self.facts[rows, self.places[value.fact]]
                found &= fields[changes, slots[name]] == same[:, None]
        return np.asarray(found)

    def precision(self, rules: Ruleset, rows: np.ndarray) -> np.ndarray:
        """Return [the recorded change is entailed] / entailed (rows,); 1 is an exact prediction."""
        entailed = self.entailed(rules, rows)
        followed = self.candidates[rows] == self.followed[rows, None]
        right = (entailed & followed).any(axis=1)
        return np.asarray(right / np.maximum(entailed.sum(axis=1), 1))

    def probabilities(self, rules: Ruleset, rows: np.ndarray, noise: float) -> np.ndarray:
        """Return the probability (rows, candidates) of each candidate, 0 for padding."""
        entailed, there = self.entailed(rules, rows), self.candidates[rows] != NO_CHANGE
        entailed[~entailed.any(axis=1)] = True
        entailed &= there
        exact = (1 - noise) * entailed / entailed.sum(axis=1, keepdims=True)
        return np.asarray(exact + noise * there / there.sum(axis=1, keepdims=True))


@dataclass(frozen=True)
class Symbolic(Backend):
    """A statistician without a model: reads rules in the controlled language exactly.

    `model` exists for `--model` and must be empty.
    """

    can_score = True
    normalises = True
    reads_messages = False

    model: str = ""
    noise: Annotated[float, Field(gt=0, lt=1)] = 0.05
    """Probability of an outcome that no rule entails."""
    _tables: dict[RuleLanguage, TransitionTable] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        if self.model:
            raise CwmError("the symbolic statistician uses no model: leave out --model")

    def complete(self, request: Request) -> Completion:
        """Raise `CwmError`: this backend only scores rules."""
        raise CwmError("the symbolic statistician proposes no rules: choose a --theorist")

    def wording(self, view: TextView) -> str:
        """Return the controlled language and its vocabulary for the environment, for prompts."""
        return language_of(view).wording

    def unread(self, view: TextView, rules: str) -> Sequence[str]:
        """Return a message for each line that is not a rule of the language."""
        return language_of(view).read(rules).problems

    def score(self, requests: Sequence[ScoreRequest]) -> list[Sequence[float]]:
        """Return the log-probability of each sentence among its candidates."""
        asked = [
            each.question for each in requests if isinstance(each.question, PredictionQuestion)
        ]
        if len(asked) < len(requests):
            raise CwmError(
                "the symbolic statistician only scores changes under rules: choose another backend"
            )
        texts = iter([each.text for each in requests])
        scores: list[Sequence[float]] = []
        for table, rows, weights in self._grouped_probabilities(asked):
            columns = table.columns(rows, [*islice(texts, len(rows))])
            own = weights[np.arange(len(rows)), columns]
            scores += [(value,) for value in np.log(own).tolist()]
        return scores

    def of_candidates(self, questions: Sequence[PredictionQuestion]) -> list[np.ndarray]:
        """Return the log-probabilities of all candidates of each question."""
        weights = (
            own for _, _, several in self._grouped_probabilities(questions) for own in several
        )
        return [
            np.log(own[: len(question.transition.candidates)])
            for own, question in zip(weights, questions, strict=True)
        ]

    def _grouped_probabilities(
        self, questions: Sequence[PredictionQuestion]
    ) -> Iterator[tuple[TransitionTable, np.ndarray, np.ndarray]]:
        """Yield table, rows and candidate probabilities of questions, grouped by rules."""
        for (_, rules), same in groupby(questions, key=lambda each: (id(each.view), each.rules)):
            asked = list(same)
            table, rows = self._table(asked[0].view, [each.transition for each in asked])
            ruleset = table.language.read(rules).rules
            yield table, rows, table.probabilities(ruleset, rows, self.noise)

    def _table(
        self, view: TextView, transitions: Sequence[TextTransition]
    ) -> tuple[TransitionTable, np.ndarray]:
        """Return a table with these transitions, and their rows."""
        language = language_of(view)
        table = self._tables.get(language)
        if table is None or table.is_full:
            table = self._tables[language] = TransitionTable(language)
        return table, table.rows(transitions)
