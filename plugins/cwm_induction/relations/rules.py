"""Rules that choose one of several effects by conditions on terms.

Cells, objects, lists, quantities, rewards and ends all follow such rules.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from cwm_induction.continuous.samples import Array
from cwm_induction.decision_list import Bias, RelationFeature, RelationList, learn
from cwm_induction.relations.expressions import Names, evaluate

Spend = Callable[[float], bool]
"""Takes multiplications and returns whether more may be done."""

MAX_EFFECTS = 16
"""Effects beside the first that rules choose from; rarer ones explain few samples."""


class RuleTerm(NamedTuple):
    """An expression that conditions compare.

    `kind` is "code", "number" or "flag". A `name` other than the `text` is a variable of the
    program. `price` is added to the bits of each condition.
    """

    name: str
    text: str
    kind: str
    price: float = 0.0


class RuleEffect(NamedTuple):
    """An expression of a new value, and the bits that it costs beside its number."""

    text: str
    price: float = 0.0


class RuleVocabulary(NamedTuple):
    """Terms that conditions may compare, and possible effects; the first effect always stays."""

    terms: list[RuleTerm]
    effects: list[RuleEffect]


def plain_terms(kind: str, texts: Iterable[str], price: float = 0.0) -> list[RuleTerm]:
    """Return terms without names of their own."""
    return [RuleTerm(text, text, kind, price) for text in texts]


def plain_effects(texts: Iterable[str], price: float = 0.0) -> list[RuleEffect]:
    """Return effects of the same price."""
    return [RuleEffect(text, price) for text in texts]


def scalar(text: str, names: Names, count: int) -> Array:
    """Return the value of an expression for each of `count` rows."""
    return np.broadcast_to(evaluate(text, names), count)


Result = Callable[[str, Names, int], Array]
"""Returns the outcomes of the effect with a text, with one entry per row."""


@dataclass(frozen=True)
class EffectRules:
    """A decision list over terms whose answers are effects."""

    terms: tuple[RuleTerm, ...]
    effects: tuple[RuleEffect, ...]
    rules: RelationList

    def outcomes(self, names: Names, count: int, result: Result = scalar) -> Array:
        """Return the outcome of the chosen effect for each of `count` rows."""
        known = dict(names)
        define(used_terms(self.terms, self._text), known, count)
        which = self.rules.effects(known, count)
        results = np.stack([result(effect.text, known, count) for effect in self.effects])
        chosen: Array = results[which, np.arange(count)]
        return chosen

    @property
    def _text(self) -> str:
        texts = [condition.text for rule in self.rules.rules for condition in rule.conditions]
        return "\n".join([*texts, *(effect.text for effect in self.effects)])

    def lines(self, assign: Callable[[str], str | None]) -> list[str]:
        """Write the rules as `if` and `elif`.

        `assign` returns the statement of the effect with a text, or None for no statement.
        """
        branches = [
            (
                " and ".join(condition.text for condition in rule.conditions),
                assign(self.effects[rule.effect].text),
            )
            for rule in self.rules.rules
        ]
        last = assign(self.effects[self.rules.default].text)
        while branches and branches[-1][1] == last:
            branches.pop()
        merged = _merged(branches)
        if len(merged) == 1 and merged[0][1] is None and last is not None:
            return [f"if {_opposite(merged[0][0])}:", f"    {last}"]
        lines: list[str] = []
        for number, (test, statement) in enumerate(merged):
            lines += [f"{'elif' if number else 'if'} {test}:", f"    {statement or 'pass'}"]
        if last is not None:
            lines += ["else:", f"    {last}"] if lines else [last]
        return lines


def define(terms: Iterable[RuleTerm], names: Names, count: int) -> None:
    """Evaluate terms in order for `count` rows, and add their values to the names."""
    for term in terms:
        names[term.name] = scalar(term.text, names, count).astype(np.int64)


def fit_rules(
    vocabulary: RuleVocabulary,
    target: Array,
    names: Names,
    spend: Spend,
    bias: Bias = Bias(),  # noqa: B008  # immutable
    result: Result = scalar,
) -> EffectRules:
    """Learn rules that give the outcomes of a target.

    Args:
        vocabulary: Terms and effects that the rules may use.
        target: Outcomes, one entry per row.
        names: Values of variables, one entry per row.
        spend: Takes multiplications.
        bias: Prices of errors.
        result: Returns the outcomes of an effect.
    """
    known = dict(names)
    define(vocabulary.terms, known, len(target))
    texts = [effect.text for effect in vocabulary.effects]
    results = [np.asarray(result(text, known, len(target)) == target) for text in texts]
    correct = np.stack(results, axis=1).reshape(len(target), len(texts), -1).all(axis=2)
    return choose_effects(vocabulary, np.asarray(correct), known, spend, bias)


def choose_effects(
    vocabulary: RuleVocabulary,
    correct: Array,
    names: Names,
    spend: Spend,
    bias: Bias = Bias(),  # noqa: B008  # immutable
) -> EffectRules:
    """Learn rules from a mask of shape (rows, effects): the effect gives the recorded outcome.

    `names` contains the values of the terms.
    """
    terms, effects = vocabulary
    counts = correct[~correct[:, 0]].sum(axis=0)
    ranked = sorted(range(1, len(effects)), key=lambda index: -counts[index])
    useful = [0, *sorted(index for index in ranked[:MAX_EFFECTS] if counts[index] > 0)]
    features = [RelationFeature(t.name, t.kind, names[t.name], t.price) for t in terms]
    bias = bias._replace(effect_bits=[effects[index].price for index in useful])
    rules = learn(features, correct[:, useful], spend, bias)
    return EffectRules(tuple(terms), tuple(effects[index] for index in useful), rules)


def used_terms(terms: Sequence[RuleTerm], text: str) -> list[RuleTerm]:
    """Return the terms that a text or other used terms mention, in order."""
    used: list[RuleTerm] = []
    for term in reversed(terms):
        if mentions(text, term.name):
            used.insert(0, term)
            text += f"\n{term.text}"
    return used


def definitions(terms: Sequence[RuleTerm], text: str) -> list[str]:
    """Write the assignments of the variables that a text needs."""
    named = {term.name: term for term in terms if term.name != term.text}
    return [f"{term.name} = {term.text}" for term in used_terms([*named.values()], text)]


def mentions(text: str, name: str) -> bool:
    """Return whether a text contains a name as a word."""
    return re.search(rf"(?<![\w.]){re.escape(name)}(?!\w)", text) is not None


def _opposite(test: str) -> str:
    opposite = test.removeprefix("not ")
    simple = opposite != test and " and " not in test and " or " not in test
    return opposite if simple else f"not ({test})"


def _merged(branches: list[tuple[str, str | None]]) -> list[tuple[str, str | None]]:
    """Join neighbouring branches with the same statement by `or`."""
    groups: list[tuple[list[str], str | None]] = []
    for test, statement in branches:
        if groups and groups[-1][1] == statement:
            groups[-1][0].append(test)
        else:
            groups.append(([test], statement))
    merged = []
    for tests, statement in groups:
        bracketed = [f"({test})" if " and " in test else test for test in tests]
        merged.append((" or ".join(bracketed) if len(tests) > 1 else tests[0], statement))
    return merged
