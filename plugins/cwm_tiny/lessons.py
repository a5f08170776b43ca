"""What the tiny language model learns from: rules that a theorist makes up, and what they entail.

Nothing of what really follows an action is in it. Situations are met by random play; the rules come
from a theorist that is shown situations in which anything might have followed; and a statistician
that reads rules exactly says which changes they allow.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cwm_cli.envs.spec import EnvironmentSpec
from cwm_cli.envs.text_view import TextView
from cwm_cli.problems.theory import TheoryProblem
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
from cwm_cli.worlds.statistician import PredictionQuestion, Statistician, TextTransition
from cwm_tiny.model import (
    ACTION,
    CHANGE,
    MARKS,
    NOTHING,
    RULES,
    STATE,
    TinyModel,
    words_of,
)
from cwm_tiny.training import Course, Lesson, train

EPISODES = 400
"""Of random play: what is rare in it, such as what one action in a thousand leads to, is met."""

LONGEST_EPISODE = 100
"""Steps of an episode of random play at most."""

RULES_AT_ONCE, ASKED_OF_EACH = 32, 8
"""Rules in a batch, and questions that share the reading of each."""

LOOKED_AT = 3
"""Questions looked at for each that is asked: most rules say the same of nearly all situations, and
what they say of the others is what is hard to learn."""

STARTED, UNKNOWN_RULES = 0.15, 0.03
"""Share of rules that are drawn anew, not by changing others; share of questions without rules."""

SHOWN = 12
"""Situations with made-up changes that the theorist is shown."""

SAMPLED = 1000
"""Rules that the words are taken from, beside the words of the situations."""


READ_BY: tuple[Role, Role] = ("theorist", "statistician")
"""Who makes up rules, and who reads them: those that are taken where nobody is named."""


def learned(
    spec: EnvironmentSpec,
    env_args: Mapping[str, Any],
    view: TextView,
    course: Course,
    tell: Callable[[str], None] = unheard,
) -> TinyModel:
    """Train a model that knows the words of an environment."""
    theorist, reader = (find("backend", default(role))() for role in READ_BY)
    met = situations(spec, env_args, view, course.seed)
    lessons = Lessons(view, met, theorist, reader, course.seed)
    return train(lessons.words, lessons, course, tell)


class MadeUp(TheoryProblem):
    """A problem whose evidence was made up, so that rules about it tell nothing of the truth."""

    made_up: list[TextTransition]

    @property
    def evidence(self) -> list[TextTransition]:
        """Situations in which anything may have followed."""
        return self.made_up


def situations(
    spec: EnvironmentSpec, env_args: Mapping[str, Any], view: TextView, seed: int
) -> list[TextTransition]:
    """Meet situations by random play; what followed is drawn from all that might have."""
    rng = np.random.default_rng([seed, 1])
    met: dict[tuple[str, str], TextTransition] = {}
    with closing(spec.make(**env_args)) as env:
        for episode in range(EPISODES):
            observation, _ = env.reset(seed=int(rng.integers(2**31)) if episode else seed)
            for _ in range(LONGEST_EPISODE):
                action = int(rng.choice(view.legal(observation)))
                state, done = view.state(observation), view.action(observation, action)
                if (state, done) not in met:
                    changes = tuple(view.candidates(observation))
                    change = changes[rng.integers(len(changes))]
                    facts = view.facts(observation, action)
                    met[state, done] = TextTransition(state, done, change, changes, facts)
                observation, _, terminated, truncated, _ = env.step(action)
                if terminated or truncated:
                    break
    return list(met.values())


@dataclass
class Lessons:
    """Batches of lessons: a theorist makes up rules, a reader says what they entail."""

    view: TextView
    met: Sequence[TextTransition]
    theorist: Backend
    reader: Backend
    seed: int = 0
    words: tuple[str, ...] = field(init=False)
    _rules: list[str] = field(init=False)
    _having: list[list[int]] = field(init=False)
    _model: TinyModel = field(init=False)
    _asked: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        """Collect the words, and which situations have which facts."""
        self._rng = np.random.default_rng([self.seed, 2])
        self._problem = MadeUp(Statistician(self.view, self.reader))
        having: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
        for place, each in enumerate(self.met):
            for fact in each.facts.items():
                having[fact].append(place)
        self._having = list(having.values())
        self._rules = [""] * RULES_AT_ONCE
        said = {word for _ in range(SAMPLED) for word in words_of(self._next_rules())}
        for each in self.met:
            said |= {*words_of(each.state), *words_of(each.action)}
            said |= {word for change in each.candidates for word in words_of(change.text)}
        self.words = ("", "<unknown>", *MARKS, *sorted(said))
        self._model = TinyModel(self.words, {}, {})

    def __call__(self) -> list[Lesson]:
        """Return a batch."""
        return [self._lesson(self._next_rules()) for _ in range(RULES_AT_ONCE)]

    def _next_rules(self) -> str:
        """Change one of the rules at hand, or draw new ones in their place."""
        if self._rng.random() < UNKNOWN_RULES:
            return ""
        place = int(self._rng.integers(len(self._rules)))
        old = self._rules[place]
        new = not old or self._rng.random() < STARTED
        move = Move(GENERATE) if new else Move(IMPROVE, place, old)
        shown = self._rng.integers(len(self.met), size=SHOWN)
        self._problem.made_up = [self.met[each] for each in shown]
        self._asked += 1
        seed = int(self._rng.integers(2**31))
        request = Request((), seed, move, self._problem, step=self._asked)
        self._rules[place] = self._problem.read(self.theorist.complete(request).text, move)
        return self._rules[place]

    def _lesson(self, rules: str) -> Lesson:
        """Ask about situations, as often of each fact, and of all that the rules say of them."""
        rng, tokens = self._rng, self._model.tokens
        places = [
            int(rng.choice(self._having[rng.integers(len(self._having))]))
            for _ in range(LOOKED_AT * ASKED_OF_EACH)
        ]
        allowed = self._allowed(rules, places)
        times: Counter[tuple[str, ...]] = Counter()
        turns = []
        for texts in allowed:
            turns.append(times[texts])
            times[texts] += 1
        asked = []
        for n in np.argsort(turns, kind="stable")[:ASKED_OF_EACH]:
            here = self.met[places[n]]
            text = f"{STATE} {here.state} {ACTION} {here.action} {CHANGE}"
            asked.append((tokens(text), tokens(str(rng.choice(allowed[n])))))
        return Lesson(tokens(f"{RULES} {rules}") if rules else (NOTHING,), asked)

    def _allowed(self, rules: str, places: Sequence[int]) -> list[tuple[str, ...]]:
        """Return, for each situation, the changes that are likeliest under rules."""
        requests = []
        for place in places:
            question = PredictionQuestion(self.view, rules, self.met[place])
            changes = question.transition.candidates
            requests += [ScoreRequest((), change.text, question) for change in changes]
        scores = iter(self.reader.score(requests))
        allowed = []
        for place in places:
            changes = self.met[place].candidates
            weights = np.array([sum(next(scores)) for _ in changes])
            best = np.flatnonzero(weights >= weights.max() - 1e-9)
            allowed.append(tuple(changes[n].text for n in best))
        return allowed
