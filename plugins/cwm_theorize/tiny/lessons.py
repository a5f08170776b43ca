"""Training data of the tiny language model: generated rules and the changes they entail.

The data do not include the true outcomes. States come from random play. A theorist generates rules
from transitions with arbitrary changes. A statistician that reads rules exactly determines the
changes that the rules allow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from math import log
from typing import Any

import numpy as np

from cwm_cli.envs.spec import EnvironmentSpec
from cwm_cli.envs.text_view import Change, TextView
from cwm_cli.registry import Role, default, find
from cwm_cli.search.contracts import (
    GENERATE,
    IMPROVE,
    Backend,
    Move,
    Request,
    ScoreRequest,
    unheard,
)
from cwm_theorize.problem import TheoryProblem
from cwm_theorize.statistician import PredictionQuestion, Statistician, TextTransition
from cwm_theorize.tiny.model import (
    MARKS,
    STATE,
    TinyModel,
    question_text,
    words_of,
)
from cwm_theorize.tiny.training import Course, Lesson, train

MAX_STATES, MAX_ACTIONS = 4000, 32
"""Maximum number of states, rare ones preferred, and of actions in each state: together about as
many transitions as the exact reader caches."""

RULES_PER_BATCH, QUESTIONS_PER_RULES = 8, 8
"""Rules per batch, each with one state, and questions about actions in this state."""

NEW_RULES_FRACTION, NO_RULES_FRACTION = 0.3, 0.03
"""Fraction of new rules, as opposed to edited ones; fraction of questions without rules."""

START_MAX_WORDS, FINAL_MAX_WORDS = 14, 60
"""Maximum number of words in rules at the start (one line with one condition) and at the end."""

ROLES: tuple[Role, Role] = ("theorist", "statistician")
"""Roles whose default backends generate the rules and read them."""


def train_for(
    spec: EnvironmentSpec,
    env_args: Mapping[str, Any],
    view: TextView,
    course: Course,
    tell: Callable[[str], None] = unheard,
) -> TinyModel:
    """Train a model for the vocabulary of an environment."""
    theorist, reader = (find("backend", default(role))() for role in ROLES)
    met = collect_states(spec, env_args, view, course.seed)
    lessons = Lessons(view, met, theorist, reader, course.seed)
    return train(lessons.words, lessons, course, tell)


class GeneratedEvidence(TheoryProblem):
    """A problem with generated evidence, which is independent of the true outcomes."""

    generated: list[TextTransition]

    @property
    def evidence(self) -> list[TextTransition]:
        """Transitions with generated changes."""
        return self.generated


def collect_states(
    spec: EnvironmentSpec, env_args: Mapping[str, Any], view: TextView, seed: int
) -> list[list[TextTransition]]:
    """Return transitions for each state of random play, one per action, with generated changes."""
    rng = np.random.default_rng([seed, 1])
    met: dict[str, list[TextTransition]] = {}
    with closing(spec.make(**env_args)) as env:
        # episodes of random play: enough to meet states that one action in a thousand leads to
        episodes = 400
        max_episode_steps = 100  # maximum number of steps of random play per episode
        for episode in range(episodes):
            observation, _ = env.reset(seed=int(rng.integers(2**31)) if episode else seed)
            for _ in range(max_episode_steps):
                legal, state = view.legal(observation), view.state(observation)
                if state not in met:
                    changes = tuple(view.candidates(observation))
                    looked_at = rng.permutation(legal)[:MAX_ACTIONS].tolist()
                    met[state] = [
                        TextTransition(
                            state, view.action(observation, action), change, changes, facts
                        )
                        for action in looked_at
                        for facts in [view.facts(observation, action)]
                        for change in [_random_change(changes, facts, rng)]
                    ]
                observation, _, terminated, truncated, _ = env.step(int(rng.choice(legal)))
                if terminated or truncated:
                    break
    found = list(met.values())
    if len(found) <= MAX_STATES:
        return found
    facts = [{fact for each in here for fact in each.facts.items()} for here in found]
    times = Counter(fact for here in facts for fact in here)
    rarity = np.array([1 / min(times[fact] for fact in here) for here in facts])
    kept = rng.choice(len(found), MAX_STATES, replace=False, p=rarity / rarity.sum())
    return [found[place] for place in kept]


def _random_change(
    changes: Sequence[Change], facts: Mapping[str, str], rng: np.random.Generator
) -> Change:
    """Draw a change; changes whose fields are present in the facts have more weight."""
    there = {*facts.values()}
    # weight of a generated change whose fields are all present in the facts, relative to other
    # changes: most environments have such changes, and rules about them predict more
    present_weight = 10.0
    weights = np.array(
        [present_weight if {*each.fields.values()} <= there else 1.0 for each in changes]
    )
    return changes[rng.choice(len(changes), p=weights / weights.sum())]


@dataclass
class Lessons:
    """Batches of lessons: a theorist generates rules, and a reader finds the entailed changes."""

    view: TextView
    met: Sequence[Sequence[TextTransition]]
    theorist: Backend
    reader: Backend
    seed: int = 0
    words: tuple[str, ...] = field(init=False)
    _rules: list[str] = field(init=False)
    _model: TinyModel = field(init=False)
    _requests: int = field(default=0, init=False)
    _max_words: int = field(default=START_MAX_WORDS, init=False)

    def __post_init__(self) -> None:
        """Collect the vocabulary."""
        self._rng = np.random.default_rng([self.seed, 2])
        self._problem = GeneratedEvidence(Statistician(self.view, self.reader))
        # size of the pool of rules that are edited further; with fewer, consecutive batches would
        # have similar rules
        pool_size = 256
        self._rules = [""] * pool_size
        # number of rules that contribute words to the vocabulary, besides the words of states,
        # actions and changes
        vocabulary_samples = 1000
        said = {word for _ in range(vocabulary_samples) for word in words_of(self._next_rules())}
        for each in [each for here in self.met for each in here]:
            said |= {*words_of(each.state), *words_of(each.action)}
        for change in {change.text for here in self.met for change in here[0].candidates}:
            said |= {*words_of(change)}
        self.words = ("", "<unknown>", *MARKS, *sorted(said))
        self._model = TinyModel(self.words, {}, {})

    def __call__(self, excess: float) -> list[Lesson]:
        """Return a batch; if the excess loss is small, longer rules are allowed."""
        # excess loss of an answer, in nats, below which the maximum number of words grows by one
        understood_excess = 0.2
        if excess < understood_excess:
            self._max_words = min(FINAL_MAX_WORDS, self._max_words + 1)
        return [self._lesson() for _ in range(RULES_PER_BATCH)]

    def _next_rules(self) -> str:
        """Edit a set of rules in the pool, or replace it by new rules."""
        rng = self._rng
        place = int(rng.integers(len(self._rules)))
        old = self._rules[place]
        new = not old or rng.random() < NEW_RULES_FRACTION
        move = Move(GENERATE) if new else Move(IMPROVE, place, old)
        # number of transitions with generated changes that the theorist sees
        shown_transitions = 12
        shown = [self.met[n] for n in rng.integers(len(self.met), size=shown_transitions).tolist()]
        self._problem.generated = [here[int(rng.integers(len(here)))] for here in shown]
        self._requests += 1
        request = Request((), int(rng.integers(2**31)), move, self._problem, step=self._requests)
        rules = self._problem.read(self.theorist.complete(request).text, move)
        self._rules[place] = rules if len(words_of(rules)) <= self._max_words else ""
        return rules

    def _lesson(self) -> Lesson:
        """Return questions about actions in a state, the same number for each action.

        Exceptions to rules are not more frequent than they are in the state, so that the model
        first learns the usual case, then the exceptions. If all answers were equally frequent, only
        complete rules would distinguish them, and the loss would not start to decrease.
        """
        rng, tokens = self._rng, self._model.tokens
        # maximum number of draws of rules and a state, until the rules distinguish actions in the
        # state
        max_tries = 20
        tries = 0 if rng.random() < NO_RULES_FRACTION else max_tries
        # fraction of rules to use although they do not distinguish actions: some rules predict one
        # change for all actions
        uniform_rules_fraction = 0.25
        for _ in range(tries):
            rules, here = self._next_rules(), self.met[int(rng.integers(len(self.met)))]
            here = [here[n] for n in rng.permutation(len(here)).tolist()]
            if len(words_of(rules)) <= self._max_words:
                allowed = self._allowed(rules, here)
                if len({*allowed}) > 1 or rng.random() < uniform_rules_fraction:
                    break
        else:
            here = self.met[int(rng.integers(len(self.met)))]
            rules, allowed = "", self._allowed("", here)
        state = tokens(f"{STATE} {here[0].state}")
        asked, least = [], 0.0
        for n in [n % len(here) for n in range(QUESTIONS_PER_RULES)]:
            answer = allowed[n][rng.integers(len(allowed[n]))]
            question = tokens(question_text(rules, here[n].state, here[n].action))
            asked.append((question[len(state) :], tokens(answer)))
            least += log(len(allowed[n]))
        return Lesson(state, asked, least)

    def _allowed(self, rules: str, here: Sequence[TextTransition]) -> list[tuple[str, ...]]:
        """Return, for each action, the likeliest changes under the rules."""
        changes = here[0].candidates
        requests = [
            ScoreRequest((), change.text, question)
            for question in [PredictionQuestion(self.view, rules, each) for each in here]
            for change in changes
        ]
        scores = np.array([sum(each) for each in self.reader.score(requests)])
        likeliest = [row >= row.max() - 1e-9 for row in scores.reshape(len(here), -1)]
        return [tuple(changes[n].text for n in np.flatnonzero(row)) for row in likeliest]
