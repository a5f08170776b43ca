"""The backend `grammar`: a theorist that draws rules and edits of rules, each with a known chance.

A Markov chain that accepts its proposals by these chances has a known equilibrium (Hastings, 1970).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import inf, log
from typing import Annotated

import numpy as np
from pydantic import Field

from cwm_cli.errors import CwmError
from cwm_cli.search.contracts import GENERATE, Backend, Completion, Request, ScoreRequest
from cwm_theorize.problem import TheoryProblem
from cwm_theorize.statistician import TextTransition
from cwm_theorize.theories.drawing import Examples, Words
from cwm_theorize.theories.edits import Draft, EditedRules, FirstRules
from cwm_theorize.theories.language import RuleLanguage, Ruleset, language_of
from cwm_theorize.theories.symbolic import TransitionTable

MOST_KEPT = 100
"""Rules that are kept ready to be edited: a chain returns to what it rejected proposals for."""


@dataclass(frozen=True)
class Grammar(Backend):
    """Draws rules from a grammar, and edits of rules: the theorist that needs no model.

    `model` is accepted for the sake of `--model` and must be empty.
    """

    can_score = True
    reads_messages = False

    model: str = ""
    lines: Annotated[int, Field(ge=1, le=100)] = 12
    """Maximum number of lines in the rules, without the default line."""
    conditions: Annotated[float, Field(gt=0)] = 2.0
    """Mean number of conditions in a new line."""
    from_evidence: Annotated[float, Field(ge=0, le=1)] = 0.8
    """Fraction of draws from transitions that the rules do not predict; other draws are random
    words."""
    _known: dict[RuleLanguage, _Known] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        if self.model:
            raise CwmError("the grammar uses no model: leave out --model")

    def complete(self, request: Request) -> Completion:
        """Draw rules, or an edit of the rules that are to be bettered."""
        drawing = self._drawing(request)
        rules = drawing.draw(np.random.default_rng(request.seed))
        weight = _log(drawing.chance(rules)) if request.weighed else None
        return Completion(str(rules), log_probability=weight)

    def score(self, requests: Sequence[ScoreRequest]) -> list[Sequence[float]]:
        """Return the logarithm of the chance of each text as the answer to its request."""
        scores: list[Sequence[float]] = []
        for request in requests:
            if not isinstance(request.question, Request):
                raise CwmError(
                    "the grammar only weighs rules that it might have proposed: "
                    "choose another --statistician"
                )
            drawing = self._drawing(request.question)
            reading = drawing.draft.words.language.read(request.text)
            scores.append([-inf if reading.problems else _log(drawing.chance(reading.rules))])
        return scores

    def _drawing(self, request: Request) -> FirstRules | EditedRules:
        """Return what a request is answered from."""
        problem = request.problem
        if not isinstance(problem, TheoryProblem):
            raise CwmError("the grammar only proposes rules in words: choose a --backend")
        known = self._first(language_of(problem.statistician.view), problem.evidence)
        if request.move.action == GENERATE:
            return known.first
        if request.move.program not in known.edited:
            if len(known.edited) > MOST_KEPT:
                known.edited.clear()
            draft = replace(
                known.first.draft, rules=known.language.read(request.move.program).rules
            )
            known.edited[request.move.program] = EditedRules(draft, known.first)
        return known.edited[request.move.program]

    def _first(self, language: RuleLanguage, evidence: Sequence[TextTransition]) -> _Known:
        """Return what first rules are drawn from, and edits of rules while the evidence is this."""
        known = self._known.get(language)
        if known is not None and known.evidence == evidence:
            return known
        words, examples = Words(language, self.conditions), None
        table = TransitionTable(language) if known is None or known.table.full else known.table
        if evidence:
            examples = Examples(words, table, evidence)
        first = FirstRules(Draft(Ruleset(), words, examples, self.from_evidence), self.lines)
        self._known[language] = _Known(language, table, list(evidence), first)
        return self._known[language]


@dataclass(frozen=True)
class _Known:
    """What questions about the same evidence have in common."""

    language: RuleLanguage
    table: TransitionTable
    evidence: list[TextTransition]
    first: FirstRules
    edited: dict[str, EditedRules] = field(default_factory=dict)


def _log(chance: float) -> float:
    """Return a logarithm, that of nothing being minus infinity."""
    return log(chance) if chance > 0 else -inf
