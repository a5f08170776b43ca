"""The backend `symbolic`: rules in the controlled language, read exactly.

Of the candidates of a transition those are *entailed* that the deciding line of the rules allows:
all of its kind whose fields are as it says; all where no line applies. With the chance `noise`
anything may follow:

    p(o) = (1 - noise) [o is entailed] / entailed + noise / candidates

and nothing is ruled out by a line that no candidate agrees with. These are probabilities among the
candidates. Lines that are no rules of the language say nothing.
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
"""The number of a value that a transition does not have."""

NO_CHANGE = 0
"""The number of what stands where a transition has no more candidates; it is of no kind."""

MOST = 50_000
"""Transitions that are kept as numbers: with forty candidates each, about 10 megabytes."""


class TransitionTable:
    """Transitions as numbers, so that rules are read for many of them at once.

    Every value has a number of its own, and every change: its kind is in `kinds` (changes,) and
    its fields in `fields` (changes, fields of a kind). The `facts` are (transitions, facts), the
    `candidates` are changes (transitions, candidates), and `followed` is the change of each. A
    transition is known by being the same object, and stays in its row; a table that is `full` is
    to be left for another.
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
    def full(self) -> bool:
        """Whether it holds more than is needed again."""
        return len(self._rows) > MOST

    def code(self, word: str) -> int:
        """Return the number of a word: one of its own, whatever other threads ask for."""
        known = self.codes.get(word)
        return self.codes.setdefault(word, next(self._unused)) if known is None else known

    def rows(self, transitions: Sequence[TextTransition]) -> np.ndarray:
        """Return the rows (transitions,) of the table that these stand in."""
        with self._lock:
            new = {id(each): each for each in transitions if id(each) not in self._rows}
            if new:
                self._add(list(new.values()))
        return np.array([self._rows[id(each)][0] for each in transitions], dtype=np.int64)

    def columns(self, rows: np.ndarray, texts: Sequence[str]) -> np.ndarray:
        """Return the places (rows,) of sentences among the candidates of transitions."""
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
            raise CwmError("rules cannot be weighed: this environment lists no possible changes")
        candidates = [self._listed(each.candidates) for each in transitions]
        self._make_room(len(self._rows) + len(transitions), max(map(len, candidates)))
        for row, (transition, numbers) in enumerate(
            zip(transitions, candidates, strict=True), len(self._rows)
        ):
            words = map(transition.facts.get, self.places)
            self.facts[row] = [ABSENT if word is None else self.code(word) for word in words]
            self.candidates[row, : len(numbers)] = numbers
            self.followed[row] = self._number(transition.change)
            self._rows[id(transition)] = row, transition

    def _make_room(self, rows: int, width: int) -> None:
        """Have so many rows at least; they double, so that each is copied twice on average."""
        more = max(rows, 2 * len(self.facts)) - len(self.facts) if rows > len(self.facts) else 0
        wider = max(0, width - self.candidates.shape[1])
        if more or wider:
            below = (0, more)
            self.facts = np.pad(self.facts, (below, (0, 0)), constant_values=ABSENT)
            self.followed = np.pad(self.followed, below, constant_values=NO_CHANGE)
            self.candidates = np.pad(
                self.candidates, (below, (0, wider)), constant_values=NO_CHANGE
            )

    def _listed(self, candidates: tuple[Change, ...]) -> list[int]:
        """Return the numbers of candidates; the actions of a state have the very same ones."""
        if id(candidates) not in self._lists:
            self._lists[id(candidates)] = [*map(self._number, candidates)], candidates
        return self._lists[id(candidates)][0]

    def _number(self, change: Change) -> int:
        """Return the number of a change; most are met many times."""
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
        """Return in which rows (rows,) a condition holds."""
        found, value = self.facts[rows, self.places[comparison.fact]], comparison.value
        same: np.ndarray
        if isinstance(value, Reference):
            same = (found == self.facts[rows, self.places[value.fact]]) & (found != ABSENT)
        else:
            same = found == self.code(value)
        return same if comparison.holds else ~same

    def deciding(self, rules: Ruleset, rows: np.ndarray) -> np.ndarray:
        """Return the line (rows,) that decides: one past the last where none applies."""
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
        """Return which candidates (rows, candidates) the deciding lines allow, if any at all."""
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
        """Return which changes (rows, changes) a conclusion allows."""
        fields = self.fields  # another thread may just add a change, the kind of it first
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
        """Return [the change is entailed] / entailed (rows,): 1 where rules say it exactly."""
        entailed = self.entailed(rules, rows)
        followed = self.candidates[rows] == self.followed[rows, None]
        right = (entailed & followed).any(axis=1)
        return np.asarray(right / np.maximum(entailed.sum(axis=1), 1))

    def probabilities(self, rules: Ruleset, rows: np.ndarray, noise: float) -> np.ndarray:
        """Return the probability (rows, candidates) of each candidate, 0 where there is none."""
        entailed, there = self.entailed(rules, rows), self.candidates[rows] != NO_CHANGE
        entailed[~entailed.any(axis=1)] = True
        entailed &= there
        exact = (1 - noise) * entailed / entailed.sum(axis=1, keepdims=True)
        return np.asarray(exact + noise * there / there.sum(axis=1, keepdims=True))


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
    """Probability of an outcome that no rule entails."""
    _tables: dict[RuleLanguage, TransitionTable] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        if self.model:
            raise CwmError("the symbolic statistician uses no model: leave out --model")

    def complete(self, request: Request) -> Completion:
        """Refuse: it weighs rules, and proposes none."""
        raise CwmError("the symbolic statistician proposes no rules: choose a --theorist")

    def wording(self, view: TextView) -> str:
        """Describe the controlled language, with the words that it has for the environment."""
        return language_of(view).wording

    def unread(self, view: TextView, rules: str) -> Sequence[str]:
        """Return why lines are no rules of the language."""
        return language_of(view).read(rules).problems

    def score(self, requests: Sequence[ScoreRequest]) -> list[Sequence[float]]:
        """Return, for each sentence, the logarithm of its probability among the candidates."""
        asked = [
            each.question for each in requests if isinstance(each.question, PredictionQuestion)
        ]
        if len(asked) < len(requests):
            raise CwmError(
                "the symbolic statistician only weighs changes under rules: choose another backend"
            )
        texts = iter([each.text for each in requests])
        scores: list[Sequence[float]] = []
        for table, rows, weights in self._weighed(asked):
            columns = table.columns(rows, [*islice(texts, len(rows))])
            own = weights[np.arange(len(rows)), columns]
            scores += [(value,) for value in np.log(own).tolist()]
        return scores

    def of_candidates(self, questions: Sequence[PredictionQuestion]) -> list[np.ndarray]:
        """Return the logarithms of the probabilities of all candidates of each question."""
        weights = (own for _, _, several in self._weighed(questions) for own in several)
        return [
            np.log(own[: len(question.transition.candidates)])
            for own, question in zip(weights, questions, strict=True)
        ]

    def _weighed(
        self, questions: Sequence[PredictionQuestion]
    ) -> Iterator[tuple[TransitionTable, np.ndarray, np.ndarray]]:
        """Yield tables, rows, and what the candidates weigh, of questions by the same rules."""
        for (_, rules), same in groupby(questions, key=lambda each: (id(each.view), each.rules)):
            asked = list(same)
            table, rows = self._table(asked[0].view, [each.transition for each in asked])
            ruleset = table.language.read(rules).rules
            yield table, rows, table.probabilities(ruleset, rows, self.noise)

    def _table(
        self, view: TextView, transitions: Sequence[TextTransition]
    ) -> tuple[TransitionTable, np.ndarray]:
        """Return a table that has these transitions, and their rows."""
        language = language_of(view)
        table = self._tables.get(language)
        if table is None or table.full:
            table = self._tables[language] = TransitionTable(language)
        return table, table.rows(transitions)
