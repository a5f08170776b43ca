"""The backend `grammar`: a theorist that draws rules and edits with known probabilities.

With these probabilities, a Metropolis-Hastings chain has a known equilibrium (Hastings, 1970).
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


@dataclass(frozen=True)
class Grammar(Backend):
    """A theorist without a model: draws rules from a grammar, and edits of rules.

    `model` exists for `--model` and must be empty.
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
    _known: dict[RuleLanguage, _EvidenceCache] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        if self.model:
            raise CwmError("the grammar uses no model: leave out --model")

    def complete(self, request: Request) -> Completion:
        """Draw rules, or an edit of the current rules."""
        distribution = self._distribution(request)
        rules = distribution.draw(np.random.default_rng(request.seed))
        weight = _log(distribution.probability(rules)) if request.weighed else None
        return Completion(str(rules), log_probability=weight)

    def score(self, requests: Sequence[ScoreRequest]) -> list[Sequence[float]]:
        """Return the log-probability of each text as the answer to its request."""
        scores: list[Sequence[float]] = []
        for request in requests:
            if not isinstance(request.question, Request):
                raise CwmError(
                    "the grammar only scores its own proposals: choose another --statistician"
                )
            distribution = self._distribution(request.question)
            reading = distribution.draft.words.language.read(request.text)
            scores.append(
                [-inf if reading.problems else _log(distribution.probability(reading.rules))]
            )
        return scores

    def _distribution(self, request: Request) -> FirstRules | EditedRules:
        """Return the distribution of answers to a request."""
        problem = request.problem
        if not isinstance(problem, TheoryProblem):
            raise CwmError("the grammar only proposes rules in words: choose a --backend")
        known = self._evidence_cache(language_of(problem.statistician.view), problem.evidence)
        if request.move.action == GENERATE:
            return known.first
        if request.move.program not in known.edited:
            # maximum number of rule sets whose edits are cached; a chain returns to its rules after
            # rejections
            max_cached_edits = 100
            if len(known.edited) > max_cached_edits:
                known.edited.clear()
            draft = replace(
                known.first.draft, rules=known.language.read(request.move.program).rules
            )
            known.edited[request.move.program] = EditedRules(draft, known.first)
        return known.edited[request.move.program]

    def _evidence_cache(
        self, language: RuleLanguage, evidence: Sequence[TextTransition]
    ) -> _EvidenceCache:
        """Return the distributions for the current evidence; they are cached until it changes."""
        known = self._known.get(language)
        if known is not None and known.evidence == evidence:
            return known
        words, examples = Words(language, self.conditions), None
        table = TransitionTable(language) if known is None or known.table.is_full else known.table
        if evidence:
            examples = Examples(words, table, evidence)
        first = FirstRules(Draft(Ruleset(), words, examples, self.from_evidence), self.lines)
        self._known[language] = _EvidenceCache(language, table, list(evidence), first)
        return self._known[language]


@dataclass(frozen=True)
class _EvidenceCache:
    """Distributions that depend on the evidence only."""

    language: RuleLanguage
    table: TransitionTable
    evidence: list[TextTransition]
    first: FirstRules
    edited: dict[str, EditedRules] = field(default_factory=dict)


def _log(probability: float) -> float:
    """Return the logarithm of a probability, -inf for 0."""
    return log(probability) if probability > 0 else -inf
