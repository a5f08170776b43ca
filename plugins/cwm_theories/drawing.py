"""Conditions, conclusions and lines of rules drawn by chance, and how likely each was to be drawn.

`Words` draws from all that a language can say. `Examples` draws what is so in recorded transitions:
a line whose conditions hold as one of them begins, and whose conclusion is the change that
followed, said by facts of equal value where there are any. How likely it was to be drawn from each
of them is known, for all transitions at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import TypeVar

import numpy as np

from cwm_cli.worlds.statistician import TextTransition
from cwm_theories.language import (
    Comparison,
    Conclusion,
    Reference,
    RuleLanguage,
    RuleLine,
    Ruleset,
    Value,
)
from cwm_theories.symbolic import ABSENT, TransitionTable

Thing = TypeVar("Thing")

HAS, SAME, OTHER, LACKS = 1.0, 0.5, 0.1, 0.1
"""How often a condition says that a fact has its value, that another fact has the same, that it
has another, and that it lacks a value: each as against the first. What a fact is tells more than
what it is not, and many pairs of facts differ by chance."""

OPEN, WORD, FACT = 1.0, 1.0, 3.0
"""How often a conclusion leaves a field open, says the word, or says it by a fact of that value:
what is said by a fact holds for more transitions."""


def drawn(chances: Mapping[Thing, float], rng: np.random.Generator) -> Thing:
    """Draw one of several things by their chances, which add up to 1."""
    point = rng.random()
    for each, chance in chances.items():
        point -= chance
        if point < 0:
            return each
    return each  # chances that are rounded add up to a little less


def shares(weights: Mapping[Thing, float]) -> dict[Thing, float]:
    """Return weights so that they add up to 1, leaving out what has none."""
    total = sum(weights.values())
    return {each: weight / total for each, weight in weights.items() if weight}


def conditions_of(line: RuleLine) -> dict[str, Comparison] | None:
    """Return the conditions by their facts, None where two are about one fact."""
    found = {each.fact: each for each in line.conditions}
    return found if len(found) == len(line.conditions) else None


class Words:
    """Draws from all that a language can say, whatever was recorded.

    Each fact has its condition in a line with the chance `share`; there is at least one.
    """

    def __init__(self, language: RuleLanguage, conditions: float) -> None:
        self.language = language
        self.share = min(0.5, conditions / len(language.values))
        self.comparisons = {fact: self._comparisons(fact) for fact in language.values}
        self.kinds = shares(dict.fromkeys(language.fields, 1.0))
        self.fields = {
            kind: {name: self._terms(words) for name, words in fields.items()}
            for kind, fields in language.fields.items()
        }

    def _comparisons(self, fact: str) -> dict[Comparison, float]:
        """Return all that can be said of a fact, and the chances."""
        words, shared = self.language.values[fact], self.language.shared[fact]
        weights = {Comparison(fact, word): HAS / len(words) for word in words}
        weights |= {Comparison(fact, word, False): LACKS / len(words) for word in words}
        for other in shared:
            weights[Comparison(fact, Reference(other))] = SAME / len(shared)
            weights[Comparison(fact, Reference(other), False)] = OTHER / len(shared)
        return shares(weights)

    def _terms(self, words: Sequence[str]) -> dict[Value | None, float]:
        """Return all that can be said of a field of a conclusion, and the chances."""
        facts = [fact for fact, known in self.language.values.items() if {*known} & {*words}]
        weights: dict[Value | None, float] = {None: OPEN}
        weights |= {word: WORD / len(words) for word in words}
        weights |= {Reference(fact): FACT / len(facts) for fact in facts}
        return shares(weights)

    def line(self, rng: np.random.Generator) -> RuleLine:
        """Draw a line."""
        found: list[Comparison] = []
        while not found:
            found = [
                drawn(self.comparisons[fact], rng)
                for fact in self.language.values
                if rng.random() < self.share
            ]
        return RuleLine(self.language.ordered(found), self.conclusion(rng))

    def line_chance(self, line: RuleLine) -> float:
        """Return how likely a line was to be drawn."""
        conditions = conditions_of(line)
        if not conditions:
            return 0.0
        facts = len(self.language.values)
        chances = [self.comparisons[fact].get(each, 0.0) for fact, each in conditions.items()]
        said = prod(chances) * self.share ** len(chances)
        unsaid = (1 - self.share) ** (facts - len(chances)) / (1 - (1 - self.share) ** facts)
        return said * unsaid * self.conclusion_chance(line.conclusion)

    def conclusion(self, rng: np.random.Generator) -> Conclusion:
        """Draw a conclusion."""
        kind = drawn(self.kinds, rng)
        said = [(name, drawn(terms, rng)) for name, terms in self.fields[kind].items()]
        return Conclusion(kind, tuple((name, value) for name, value in said if value is not None))

    def conclusion_chance(self, conclusion: Conclusion) -> float:
        """Return how likely a conclusion was to be drawn."""
        said = dict(conclusion.fields)
        terms = self.fields[conclusion.kind].items()
        return self.kinds[conclusion.kind] * prod(each.get(said.get(n), 0.0) for n, each in terms)


class Examples:
    """Draws what is so in recorded transitions, whose rows in the `table` are `rows`."""

    def __init__(
        self, words: Words, table: TransitionTable, transitions: Sequence[TextTransition]
    ) -> None:
        self.words, self.language, self.table = words, words.language, table
        self.transitions = transitions
        self.rows = table.rows(transitions)
        facts = table.facts[self.rows]
        self._there = facts != ABSENT
        self._same = np.zeros(facts.shape, dtype=np.int64)
        self._other = np.zeros(facts.shape, dtype=np.int64)
        for place, fact in enumerate(self.language.values):
            others = [table.places[other] for other in self.language.shared[fact]]
            self._same[:, place] = (facts[:, others] == facts[:, [place]]).sum(axis=1)
            self._other[:, place] = len(others) - self._same[:, place]
        words_of = np.array([len(known) for known in self.language.values.values()])
        self._totals = (
            HAS + SAME * (self._same > 0) + OTHER * (self._other > 0) + LACKS * (words_of > 1)
        )
        unsaid = (1 - words.share) ** self._there.sum(axis=1)
        self._something = 1 - unsaid
        truth = table.truth[self.rows]
        self._kinds = table.kinds[self.rows, truth]
        self._fields = table.fields[self.rows, truth]

    def weights(self, rules: Ruleset | None = None) -> np.ndarray:
        """Return how often each transition (transitions,) is taken for an example.

        All kinds of change are as frequent, however rare they are. Under rules those transitions
        count that the rules do not say, as far as they do not; all where they say everything.
        """
        unsaid = np.ones(len(self.rows))
        if rules is not None:
            unsaid -= self.table.precision(rules, self.rows)
            if not unsaid.any():
                unsaid += 1
        _, kinds = np.unique(self._kinds, return_inverse=True)
        totals = np.bincount(kinds, weights=unsaid)
        return np.asarray(
            unsaid / np.where(totals > 0, totals, 1)[kinds] / np.count_nonzero(totals)
        )

    def comparison(self, row: int, fact: str, rng: np.random.Generator) -> Comparison:
        """Draw what is so of a fact that a transition has."""
        facts, shared = self.transitions[row].facts, self.language.shared[fact]
        same = [other for other in shared if facts.get(other) == facts[fact]]
        other = [each for each in shared if facts.get(each) != facts[fact]]
        lacking = [word for word in self.language.values[fact] if word != facts[fact]]
        weights = {Comparison(fact, facts[fact]): HAS}
        weights |= {Comparison(fact, Reference(each)): SAME / len(same) for each in same}
        weights |= {Comparison(fact, Reference(each), False): OTHER / len(other) for each in other}
        weights |= {Comparison(fact, word, False): LACKS / len(lacking) for word in lacking}
        return drawn(shares(weights), rng)

    def comparison_chances(self, comparison: Comparison) -> np.ndarray:
        """Return how likely this was to be drawn of its fact, from each transition."""
        place = self.table.places[comparison.fact]
        if isinstance(comparison.value, Reference):
            weight = SAME if comparison.holds else OTHER
            among = (self._same if comparison.holds else self._other)[:, place]
        else:
            weight = HAS if comparison.holds else LACKS
            others = len(self.language.values[comparison.fact]) - 1
            among = np.array(1 if comparison.holds else others)
        holding = self.table.holding(comparison, self.rows) & self._there[:, place]
        return np.asarray(holding * weight / np.maximum(among, 1) / self._totals[:, place])

    def there(self, facts: Iterable[str]) -> np.ndarray:
        """Return how many of the facts each transition has."""
        places = [self.table.places[fact] for fact in facts]
        return np.asarray(self._there[:, places].sum(axis=1))

    def line(self, row: int, rng: np.random.Generator) -> RuleLine:
        """Draw a line that says what a transition shows."""
        facts = self.transitions[row].facts
        found: list[Comparison] = []
        while not found:
            found = [
                self.comparison(row, fact, rng)
                for fact in self.language.values
                if fact in facts and rng.random() < self.words.share
            ]
        return RuleLine(self.language.ordered(found), self.conclusion(row, rng))

    def line_chances(self, line: RuleLine) -> np.ndarray:
        """Return how likely a line was to be drawn from each transition."""
        conditions, share = conditions_of(line), self.words.share
        if not conditions:
            return np.zeros(len(self.rows))
        chances: np.ndarray = self.conclusion_chances(line.conclusion) / self._something
        for fact, place in self.table.places.items():
            if fact in conditions:
                chances *= share * self.comparison_chances(conditions[fact])
            else:
                chances *= np.where(self._there[:, place], 1 - share, 1)
        return chances

    def conclusion(self, row: int, rng: np.random.Generator) -> Conclusion:
        """Draw what a transition shows to follow."""
        facts, change = self.transitions[row].facts, self.transitions[row].change
        said: list[tuple[str, Value]] = []
        for name in self.language.fields[change.kind]:
            word = change.fields[name]
            same = [fact for fact in self.language.values if facts.get(fact) == word]
            weights: dict[Value | None, float] = {None: OPEN, word: WORD}
            weights |= {Reference(fact): FACT / len(same) for fact in same}
            value = drawn(shares(weights), rng)
            if value is not None:
                said.append((name, value))
        return Conclusion(change.kind, tuple(said))

    def conclusion_chances(self, conclusion: Conclusion) -> np.ndarray:
        """Return how likely a conclusion was to be drawn from each transition."""
        facts, said = self.table.facts[self.rows], dict(conclusion.fields)
        chances: np.ndarray = (self._kinds == self.table.code(conclusion.kind)).astype(float)
        for name, slot in self.table.slots[conclusion.kind].items():
            word, value = self._fields[:, slot], said.get(name)
            same = (facts == word[:, None]).sum(axis=1)
            total = OPEN + WORD + FACT * (same > 0)
            if value is None:
                chances *= OPEN / total
            elif isinstance(value, Reference):
                agreeing = facts[:, self.table.places[value.fact]] == word
                chances *= agreeing * FACT / np.maximum(same, 1) / total
            else:
                chances *= (word == self.table.code(value)) * WORD / total
        return chances
