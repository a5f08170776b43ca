"""A controlled English for rules: one rule per line, and the first that applies decides.

    If verb is release and under foot is seed, then grown with product the same as seed.
    If verb is go to and target is not the same as under foot, then standing with object cow.
    Otherwise, standing.

Conditions use the `vocabulary` of a `TextView`, and conclusions use its kinds of change and the
fields of its `conclusions`. A field that a conclusion does not mention may have any value. Lines
that cannot be parsed are reported and have no effect.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from cwm_cli.envs.text_view import TextView
from cwm_cli.text import clean

SAME_AS = "the same as "
"""Prefix of a fact's name that is used in place of a value."""

_MARK = re.compile(r"^\s*(?:[-*\u2022]|\(?\d+[.)])\s+")
_RULE = re.compile(r"^if\s+(?P<conditions>.+?),?\s+then\s+(?P<conclusion>.+?)\.?$", re.IGNORECASE)
_LAST = re.compile(
    r"^(?:otherwise|always|in any case)\b,?\s*(?P<conclusion>.+?)\.?$", re.IGNORECASE
)


class Reference(NamedTuple):
    """The value of another fact."""

    fact: str

    def __str__(self) -> str:
        return f"{SAME_AS}{self.fact}"


Value = str | Reference
"""A word, or a reference to a fact."""


class Comparison(NamedTuple):
    """A condition: a fact has, or does not have, a value."""

    fact: str
    value: Value
    holds: bool = True

    def __str__(self) -> str:
        return f"{self.fact} is {'' if self.holds else 'not '}{self.value}"


class Conclusion(NamedTuple):
    """A predicted kind of change, with the values of known fields, in the order of the view."""

    kind: str
    fields: tuple[tuple[str, Value], ...] = ()

    def __str__(self) -> str:
        named = " and ".join(f"{name} {value}" for name, value in self.fields)
        return f"{self.kind} with {named}" if named else self.kind


class RuleLine(NamedTuple):
    """A conclusion, and its conditions, which must all hold; they are distinct and ordered."""

    conditions: tuple[Comparison, ...]
    conclusion: Conclusion

    def __str__(self) -> str:
        return f"If {' and '.join(map(str, self.conditions))}, then {self.conclusion}."


class Ruleset(NamedTuple):
    """Lines and a default conclusion; the first line that applies decides."""

    lines: tuple[RuleLine, ...] = ()
    otherwise: Conclusion | None = None

    def __str__(self) -> str:
        last = "Otherwise" if self.lines else "Always"
        end = [] if self.otherwise is None else [f"{last}, {self.otherwise}."]
        return "\n".join([*map(str, self.lines), *end])


class Reading(NamedTuple):
    """The rules in a text, and a message for each line that could not be parsed."""

    rules: Ruleset
    problems: tuple[str, ...] = ()


@lru_cache(maxsize=16)  # each new environment has its own view
def language_of(view: TextView) -> RuleLanguage:
    """Return the language of rules for an environment."""
    return RuleLanguage(view)


@dataclass(frozen=True, eq=False)
class RuleLanguage:
    """Parses rules in the words of a view; `str(rules)` writes them.

    Attributes:
        values: Values of each fact.
        fields: For each kind of change, its fields and their values.
        shared: For each fact, the later facts that have a value in common with it.
    """

    view: TextView
    values: dict[str, tuple[str, ...]] = field(init=False)
    fields: dict[str, dict[str, tuple[str, ...]]] = field(init=False)
    shared: dict[str, tuple[str, ...]] = field(init=False)

    def __post_init__(self) -> None:
        values = {fact: tuple(known) for fact, known in self.view.vocabulary.items()}
        kinds = {
            kind: {
                name: tuple(known) for name, known in self.view.conclusions.get(kind, {}).items()
            }
            for kind in self.view.kinds
        }
        facts = list(values)
        shared = {
            fact: tuple(other for other in facts[place + 1 :] if {*values[fact]} & {*values[other]})
            for place, fact in enumerate(facts)
        }
        object.__setattr__(self, "values", values)
        object.__setattr__(self, "fields", kinds)
        object.__setattr__(self, "shared", shared)

    @property
    def wording(self) -> str:
        """The form and the vocabulary of rules, for prompts."""

        def listed(known: Mapping[str, Sequence[str]]) -> list[str]:
            same: dict[tuple[str, ...], list[str]] = {}
            for name, words in known.items():
                same.setdefault(tuple(words), []).append(name)
            # maximum number of values per fact in a prompt; positions, for example, can have many
            # more
            max_listed_values = 40
            return [
                f"- {'; '.join(alike)}: {', '.join(words[:max_listed_values])}"
                + ", ..." * (len(words) > max_listed_values)
                for words, alike in same.items()
            ]

        fields = {
            f"{name} (of {kind})": words
            for kind, each in self.fields.items()
            for name, words in each.items()
        }
        return "\n".join(
            [
                "The reader is a program that has only your rules, without the description, and "
                "understands only these two forms:",
                "",
                "If FACT is VALUE and FACT is not VALUE, then KIND with FIELD VALUE.",
                "Otherwise, KIND.",
                "",
                "The first rule whose conditions all hold decides; `Otherwise` is the last rule. "
                "A rule has one condition or several joined by `and`; a field that it leaves out "
                f"may have any value. `{SAME_AS}FACT` may replace a value.",
                "",
                "Facts and their values:",
                *listed(self.values),
                "",
                f"Kinds of change: {', '.join(self.fields)}. Their fields and values:",
                *listed(fields),
            ]
        ).removesuffix(" Their fields and values:")

    @lru_cache(maxsize=4096)  # noqa: B019 - few languages exist, for the whole process
    def read(self, text: str) -> Reading:
        """Parse rules; list markers, line numbers and capital letters are ignored."""
        lines: list[RuleLine] = []
        otherwise: Conclusion | None = None
        problems: list[str] = []
        for number, raw in enumerate(text.splitlines(), 1):
            said = _MARK.sub("", raw).strip()
            if not said:
                continue
            try:
                if otherwise is not None:
                    raise _ParseError("it comes after the line that always applies")
                if last := _LAST.match(said):
                    otherwise = self._conclusion(last["conclusion"])
                elif rule := _RULE.match(said):
                    conditions = self._conditions(rule["conditions"])
                    lines.append(RuleLine(conditions, self._conclusion(rule["conclusion"])))
                else:
                    raise _ParseError(
                        "it is not of the form 'If ..., then ...' or 'Otherwise, ...'"
                    )
            except _ParseError as error:
                problems.append(f"line {number} is no rule, {error}: {clean(said, limit=80)}")
        return Reading(Ruleset(tuple(lines), otherwise), tuple(problems))

    def compare(self, fact: str, value: Value, holds: bool = True) -> Comparison:
        """Return a condition; if it compares two facts, they are in the order of the view."""
        facts = list(self.values)
        if isinstance(value, Reference) and facts.index(value.fact) < facts.index(fact):
            fact, value = value.fact, Reference(fact)
        return Comparison(fact, value, holds)

    def ordered(self, conditions: Sequence[Comparison]) -> tuple[Comparison, ...]:
        """Return conditions without duplicates, in the order of the view's facts."""
        facts = {fact: place for place, fact in enumerate(self.values)}
        return tuple(sorted(set(conditions), key=lambda each: (facts[each.fact], str(each))))

    def _conditions(self, text: str) -> tuple[Comparison, ...]:
        found, rest = [], text
        while True:
            fact, rest = self._word(rest, self.values, "fact")
            verb = re.match(r"\s+is\s+(not\s+)?", rest, re.IGNORECASE)
            if verb is None:
                raise _ParseError(f"'is' has to follow {fact!r}")
            value, rest = self._value(rest[verb.end() :], self.values[fact], fact)
            if value == Reference(fact):
                raise _ParseError(f"it compares {fact!r} with itself")
            found.append(self.compare(fact, value, not verb[1]))
            if not rest.strip():
                return self.ordered(found)
            rest = _after(rest, r",?\s+and\s+|,\s+", "conditions are joined by 'and'")

    def _conclusion(self, text: str) -> Conclusion:
        kind, rest = self._word(text, self.fields, "kind of change")
        fields: dict[str, Value] = {}
        joint = r"\s+with\s+"
        while rest.strip():
            rest = _after(rest, joint, "'with' has to come before the fields of a change")
            name, rest = self._word(rest, self.fields[kind], f"field of {kind!r}")
            rest = _after(rest, r"\s+(?:is\s+)?", f"{name!r} has no value")
            if name in fields:
                raise _ParseError(f"it says {name!r} twice")
            fields[name], rest = self._value(rest, self.fields[kind][name], name)
            joint = r",?\s+and\s+(?:with\s+)?|,\s+"
        return Conclusion(
            kind, tuple((name, fields[name]) for name in self.fields[kind] if name in fields)
        )

    def _value(self, text: str, known: Sequence[str], of: str) -> tuple[Value, str]:
        """Split a word or a reference off the start of a text."""
        same = re.match(SAME_AS, text, re.IGNORECASE)
        if same and not any(word.lower().startswith(SAME_AS) for word in known):
            fact, rest = self._word(text[same.end() :], self.values, "fact")
            return Reference(fact), rest
        return self._word(text, known, f"value of {of!r}")

    def _word(self, text: str, known: Iterable[str], what: str) -> tuple[str, str]:
        """Split the longest known word off the start of a text, with or without "the"."""
        pattern, words = _words(tuple(known))
        found = pattern.match(text)
        if found is None:
            raise _ParseError(f"it has no {what} at {clean(text.strip(), limit=30)!r}")
        return words.get(found[1]) or words[found[1].lower()], text[found.end() :]


class _ParseError(Exception):
    """The reason why a line is not a rule."""


@lru_cache(maxsize=256)
def _words(known: tuple[str, ...]) -> tuple[re.Pattern[str], dict[str, str]]:
    """Return a pattern for any of the words, and the words by their lower-case form."""
    longest = sorted(known, key=len, reverse=True)
    either = "|".join(map(re.escape, longest)) or r"(?!)"
    pattern = re.compile(rf"\s*(?:the\s+)?({either})(?=$|[\s,])", re.IGNORECASE)
    return pattern, {word.lower(): word for word in longest} | {word: word for word in longest}


def _after(text: str, joint: str, otherwise: str) -> str:
    """Return the text after a joint, such as "and", at its start."""
    found = re.match(joint, text, re.IGNORECASE)
    if found is None:
        raise _ParseError(otherwise)
    return text[found.end() :]
