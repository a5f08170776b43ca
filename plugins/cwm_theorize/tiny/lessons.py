"""What the tiny language model learns from: rules that a theorist makes up, and what they entail.

Nothing of what really follows an action is in it. Situations are met by random play; the rules come
from a theorist that is shown situations in which anything might have followed; and a statistician
that reads rules exactly says which changes they allow.
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

EPISODES = 400
"""Of random play: what is rare in it, such as what one action in a thousand leads to, is met."""

LONGEST_EPISODE = 100
"""Steps of an episode of random play at most."""

MOST_MET, MOST_ACTIONS = 4000, 32
"""States that are kept, the rarer the rather, and actions that are looked at in each: together
about as many transitions as the exact reader keeps at hand."""

PLAIN = 10.0
"""How often a made-up change is about what is there, as against any other: so is what follows in
most worlds, and rules about it say more."""

RULES_AT_ONCE, ASKED_OF_EACH = 8, 8
"""Rules in a batch, each with one state, and actions that are asked about there."""

AT_HAND = 256
"""Rules that are changed further: of fewer, those of one batch would be much like the last ones."""

STARTED, UNKNOWN_RULES = 0.3, 0.03
"""Share of rules that are drawn anew, not by changing others; share of questions without rules."""

TRIES = 20
"""Draws of rules and a state until the rules tell actions apart there."""

ALIKE = 0.25
"""Share of the rules that do not which are taken all the same: some say what always follows."""

FIRST_WORDS, MOST_WORDS = 14, 60
"""Most words of rules at the beginning, one line with one condition, and at the end."""

UNDERSTOOD = 0.2
"""Nats by which an answer may be less likely than it could be for rules to have a word more."""

SHOWN = 12
"""Transitions with made-up changes that the theorist is shown."""

SAMPLED = 1000
"""Rules that the words are taken from, beside the words of what was met."""

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
) -> list[list[TextTransition]]:
    """Meet states by random play, each with its actions; what follows them is made up."""
    rng = np.random.default_rng([seed, 1])
    met: dict[str, list[TextTransition]] = {}
    with closing(spec.make(**env_args)) as env:
        for episode in range(EPISODES):
            observation, _ = env.reset(seed=int(rng.integers(2**31)) if episode else seed)
            for _ in range(LONGEST_EPISODE):
                legal, state = view.legal(observation), view.state(observation)
                if state not in met:
                    changes = tuple(view.candidates(observation))
                    looked_at = rng.permutation(legal)[:MOST_ACTIONS].tolist()
                    met[state] = [
                        TextTransition(
                            state, view.action(observation, action), change, changes, facts
                        )
                        for action in looked_at
                        for facts in [view.facts(observation, action)]
                        for change in [_made_up(changes, facts, rng)]
                    ]
                observation, _, terminated, truncated, _ = env.step(int(rng.choice(legal)))
                if terminated or truncated:
                    break
    found = list(met.values())
    if len(found) <= MOST_MET:
        return found
    facts = [{fact for each in here for fact in each.facts.items()} for here in found]
    times = Counter(fact for here in facts for fact in here)
    rarity = np.array([1 / min(times[fact] for fact in here) for here in facts])
    kept = rng.choice(len(found), MOST_MET, replace=False, p=rarity / rarity.sum())
    return [found[place] for place in kept]


def _made_up(
    changes: Sequence[Change], facts: Mapping[str, str], rng: np.random.Generator
) -> Change:
    """Draw what might have followed, rather something about what is there."""
    there = {*facts.values()}
    weights = np.array([PLAIN if {*each.fields.values()} <= there else 1.0 for each in changes])
    return changes[rng.choice(len(changes), p=weights / weights.sum())]


@dataclass
class Lessons:
    """Batches of lessons: a theorist makes up rules, a reader says what they entail."""

    view: TextView
    met: Sequence[Sequence[TextTransition]]
    theorist: Backend
    reader: Backend
    seed: int = 0
    words: tuple[str, ...] = field(init=False)
    _rules: list[str] = field(init=False)
    _model: TinyModel = field(init=False)
    _asked: int = field(default=0, init=False)
    _room: int = field(default=FIRST_WORDS, init=False)

    def __post_init__(self) -> None:
        """Collect the words."""
        self._rng = np.random.default_rng([self.seed, 2])
        self._problem = MadeUp(Statistician(self.view, self.reader))
        self._rules = [""] * AT_HAND
        said = {word for _ in range(SAMPLED) for word in words_of(self._next_rules())}
        for each in [each for here in self.met for each in here]:
            said |= {*words_of(each.state), *words_of(each.action)}
        for change in {change.text for here in self.met for change in here[0].candidates}:
            said |= {*words_of(change)}
        self.words = ("", "<unknown>", *MARKS, *sorted(said))
        self._model = TinyModel(self.words, {}, {})

    def __call__(self, excess: float) -> list[Lesson]:
        """Return a batch; where those before are understood rules may have a word more."""
        if excess < UNDERSTOOD:
            self._room = min(MOST_WORDS, self._room + 1)
        return [self._lesson() for _ in range(RULES_AT_ONCE)]

    def _next_rules(self) -> str:
        """Change one of the rules at hand, or draw new ones in their place."""
        rng = self._rng
        place = int(rng.integers(len(self._rules)))
        old = self._rules[place]
        new = not old or rng.random() < STARTED
        move = Move(GENERATE) if new else Move(IMPROVE, place, old)
        shown = [self.met[n] for n in rng.integers(len(self.met), size=SHOWN).tolist()]
        self._problem.made_up = [here[int(rng.integers(len(here)))] for here in shown]
        self._asked += 1
        request = Request((), int(rng.integers(2**31)), move, self._problem, step=self._asked)
        rules = self._problem.read(self.theorist.complete(request).text, move)
        self._rules[place] = rules if len(words_of(rules)) <= self._room else ""
        return rules

    def _lesson(self) -> Lesson:
        """Ask what follows actions in a state, as often of each action.

        The exceptions of rules are not asked about more often than they occur: what holds mostly
        is learned first, and then what does not. Where all answers are as frequent nothing short
        of a whole rule tells them apart, and training finds no beginning.
        """
        rng, tokens = self._rng, self._model.tokens
        tries = 0 if rng.random() < UNKNOWN_RULES else TRIES
        for _ in range(tries):
            rules, here = self._next_rules(), self.met[int(rng.integers(len(self.met)))]
            here = [here[n] for n in rng.permutation(len(here)).tolist()]
            if len(words_of(rules)) <= self._room:
                allowed = self._allowed(rules, here)
                if len({*allowed}) > 1 or rng.random() < ALIKE:
                    break
        else:
            here = self.met[int(rng.integers(len(self.met)))]
            rules, allowed = "", self._allowed("", here)
        state = tokens(f"{STATE} {here[0].state}")
        asked, least = [], 0.0
        for n in [n % len(here) for n in range(ASKED_OF_EACH)]:
            answer = allowed[n][rng.integers(len(allowed[n]))]
            question = tokens(question_text(rules, here[n].state, here[n].action))
            asked.append((question[len(state) :], tokens(answer)))
            least += log(len(allowed[n]))
        return Lesson(state, asked, least)

    def _allowed(self, rules: str, here: Sequence[TextTransition]) -> list[tuple[str, ...]]:
        """Return, for each action, the changes that are likeliest under rules."""
        changes = here[0].candidates
        requests = [
            ScoreRequest((), change.text, question)
            for question in [PredictionQuestion(self.view, rules, each) for each in here]
            for change in changes
        ]
        scores = np.array([sum(each) for each in self.reader.score(requests)])
        likeliest = [row >= row.max() - 1e-9 for row in scores.reshape(len(here), -1)]
        return [tuple(changes[n].text for n in np.flatnonzero(row)) for row in likeliest]
