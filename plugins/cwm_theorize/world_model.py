"""Rules in words as a world model: a statistician says how likely each candidate is under them.

What may follow is what the text view of an environment lists, and what that means is what the view
says of it. Nobody's code runs here, so that plans are made on the trusted side.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from cwm_cli.data.dataset import VALID, Dataset, Transition
from cwm_cli.data.spaces import Columns, Space
from cwm_cli.envs.spec import space_of
from cwm_cli.envs.text_view import Change, Consequence, TextView
from cwm_cli.errors import CwmError
from cwm_cli.planning.model import Counter, Model, PossibleStep, Step, copy_value, key
from cwm_cli.sandbox.failures import Failure
from cwm_cli.worlds.model import (
    Planning,
    PlanningSession,
    Predictions,
    TrustedSession,
    WorldModel,
)
from cwm_theorize.ranking import Ranking, RankSummary
from cwm_theorize.statistician import Statistician, TextTransition, text_transitions

if TYPE_CHECKING:
    from cwm_cli.envs.tasks import Task

UNTOLD = "the environment's description in words does not determine the next observation"

LARGEST = 20_000
"""Situations whose candidates are kept weighed; with more they are begun anew, so that memory
stays bounded."""

GUESSING = 1 - 1e-9
"""Of the share of a candidate by guessing, what it takes to be as likely: but for rounding."""

_Situation = tuple[Any, Any]
"""An observation and an action."""


class PossibleChange(NamedTuple):
    """What may follow an action, how likely it is under the rules, and what its words mean."""

    probability: float
    change: Change
    meaning: Consequence


class WeighedCandidates(NamedTuple):
    """What may follow in a situation, and the weight of each under the rules, a logarithm."""

    candidates: Sequence[Change]
    weights: np.ndarray


@dataclass(frozen=True)
class Theory(WorldModel):
    """Rules in words, and the statistician that predicts by them.

    The probability of a candidate is its weight, normalised over all that may follow; those whose
    words do not tell what is observed next give theirs to the others. A statistician leaves a
    little to every candidate: plans are made by those that are as likely as by guessing, and with
    `plausible` no others are predicted.
    """

    kind: ClassVar[str] = "theory"
    can_be_timed: ClassVar[bool] = False

    rules: str
    statistician: Statistician
    name: str = "the rules"
    plausible: bool = False
    _known: dict[Any, WeighedCandidates] = field(default_factory=dict, repr=False, compare=False)

    def ranking(self, rows: Dataset) -> Ranking:
        """Rank the recorded change of each row among its candidates."""
        weighed = self.weigh([(row.observation, row.action) for row in rows])
        return Ranking.of(text_transitions(self.view, rows), [each.weights for each in weighed])

    def extra_scores(self, rows: Dataset) -> RankSummary:
        """Return the ranks of the recorded changes."""
        return self.ranking(rows).summary()

    @property
    def view(self) -> TextView:
        """The words that it predicts in."""
        return self.statistician.view

    @property
    def digest(self) -> str:
        """The hash of the rules and of who reads them."""
        return sha256(f"{self.statistician.backend!r}\0{self.rules}".encode()).hexdigest()

    @property
    def planned(self) -> Theory:
        """The rules without what no plan reckons with."""
        return replace(self, plausible=True)

    def describe(self) -> str:
        """Say what it is, in a few words."""
        return f"{self.name}, in words"

    def weights(self, transitions: Sequence[TextTransition]) -> list[np.ndarray]:
        """Return the weight of each candidate of each transition, a logarithm.

        All of them count as discovered.
        """
        found: set[str] = set()
        if self.view.lists_discovered:
            found = {each.text for row in transitions for each in row.candidates}
        return self.statistician.of_candidates(self.rules, transitions, tuple(sorted(found)))

    def weigh(self, situations: Sequence[_Situation]) -> list[WeighedCandidates]:
        """Return what may follow in each of some situations; equal ones are weighed once."""
        keys = [key(situation) for situation in situations]
        found = {each: self._known.get(each) for each in keys}
        missing = {k: s for k, s in zip(keys, situations, strict=True) if found[k] is None}
        asked = self._in_words([*missing.values()])
        new = {
            each: WeighedCandidates(row.candidates, own)
            for each, row, own in zip(missing, asked, self.weights(asked), strict=True)
        }
        if len(self._known) + len(new) > LARGEST:
            self._known.clear()
        self._known.update(new)
        known = {**found, **new}
        return [each for each in (known[k] for k in keys) if each is not None]

    def outcomes(
        self, situations: Sequence[_Situation], *, plausible: bool = False
    ) -> list[list[PossibleChange]]:
        """Return what may follow in each situation, the likeliest first.

        That is nothing where no words tell what it is, and with `plausible` only what is as likely
        as by guessing.
        """
        weighed = zip(situations, self.weigh(situations), strict=True)
        return [self._told(*each, plausible=plausible) for each in weighed]

    def predict(self, rows: Dataset, *, seed: int = 0, draws: int = 1) -> Predictions:
        """Say what follows each row: the likeliest outcome, or all of them where draws are asked.

        There is no answer to rows of which no candidate tells what is observed next.
        """
        every = list(rows)
        situations = [(row.observation, row.action) for row in every]
        found = self.outcomes(situations, plausible=self.plausible)
        answered = np.array([bool(each) for each in found])
        if not answered.any():
            return Predictions({}, Failure(kind="wrong_output", message=UNTOLD))
        width = 1 if draws == 1 else max(map(len, found))
        told = [
            each
            for row, own in zip(every, found, strict=True)
            for each in self._spread(row, own[:width], width)
        ]
        columns = _columns(told, rows)
        if draws == 1:
            return Predictions(columns, answered=answered)
        chances = np.zeros((len(every), width))
        for place, own in enumerate(found):
            chances[place, : max(len(own), 1)] = [each.probability for each in own] or 1.0
        shaped = {
            name: column.reshape(len(every), width, *column.shape[1:])
            for name, column in columns.items()
        }
        return Predictions(shaped, None, "outcomes", chances, answered)

    def open(self, planners: Sequence[Planning], task: Task) -> PlanningSession:
        """Begin to plan by the rules; `CwmError` where nothing tells what may be observed next."""
        with closing(task.make()) as env:
            observation, _ = env.reset(seed=task.seed)
            space = space_of(env.action_space, "actions")
        legal = self.view.legal(observation)
        if not any(self.outcomes([(observation, action) for action in legal])):
            raise CwmError(
                f"cannot plan with {self.describe()} ({UNTOLD}): choose another world model"
            )
        return TrustedSession(TheorySteps(self, space), planners, task.seed, form="rules")

    def _in_words(self, situations: Sequence[_Situation]) -> list[TextTransition]:
        """Put situations into words, an observation once; what followed is not known."""
        view = self.view
        seen = {
            id(observation): (view.state(observation), tuple(view.candidates(observation)))
            for observation in {id(each): each for each, _ in situations}.values()
        }
        asked = []
        for observation, action in situations:
            state, candidates = seen[id(observation)]
            done, facts = view.action(observation, action), view.facts(observation, action)
            asked.append(TextTransition(state, done, candidates[0], candidates, facts))
        return asked

    def _told(
        self, situation: _Situation, weighed: WeighedCandidates, *, plausible: bool
    ) -> list[PossibleChange]:
        """Return what the words tell of the candidates."""
        candidates, weights = weighed
        shares = np.exp(weights - weights.max())
        chances = (shares / shares.sum()).tolist()
        least = GUESSING / len(candidates) if plausible else 0.0
        places = [place for place, chance in enumerate(chances) if chance >= least]
        found = [
            PossibleChange(chances[place], candidates[place], meaning)
            for place in sorted(places, key=lambda place: -chances[place])
            if (meaning := self.view.consequence(*situation, candidates[place])) is not None
        ]
        total = sum(each.probability for each in found)
        return [each._replace(probability=each.probability / total) for each in found if total]

    def _spread(
        self, row: Transition, found: Sequence[PossibleChange], width: int
    ) -> list[Transition]:
        """Return so many transitions: what may follow a row, and the first of it again.

        Where nothing is known to follow nothing changes, as plans have it.
        """
        meanings = [each.meaning for each in found] or [Consequence(row.observation, 0.0, False)]
        told = [self._followed(row, each) for each in meanings]
        return told + told[:1] * (width - len(told))

    def _followed(self, row: Transition, meaning: Consequence) -> Transition:
        """Return a row as it is predicted."""
        observation, reward, terminated = meaning
        valid = None if row.valid is None else tuple(map(int, self.view.legal(observation)))
        return Transition(row.observation, row.action, observation, reward, terminated, valid=valid)


def _columns(told: Sequence[Transition], rows: Dataset) -> Columns:
    """Return the columns of what follows."""
    made = Dataset.of(
        told, observation_space=rows.observation_space, action_space=rows.action_space
    )
    return made.select("next_observations", "rewards", "terminations", VALID)


class TheorySteps(Model):
    """Steps by rules from observation to observation, which are its states.

    Where nothing tells what follows an action, nothing changes.
    """

    deterministic = False

    def __init__(self, theory: Theory, action_space: Space) -> None:
        self.action_space = action_space
        self.counter: Counter = [0]
        self._theory = theory
        self._here: Any = None
        self._told: dict[Any, dict[int, list[PossibleStep]]] = {}
        self._rng = np.random.default_rng(0)

    def stand(self, state: Any) -> None:
        """Stand at an observation."""
        self._here = state

    def here(self) -> Any:
        """Return the observation."""
        return self._here

    def draw_from(self, key: Sequence[int]) -> None:
        """Have what chance decides follow from a key."""
        super().draw_from(key)
        self._rng = np.random.default_rng(key)

    def step(self, action: Any) -> Step:
        """Take an action; what follows is drawn from all that plausibly may."""
        found = self.outcomes(action)
        chances = np.cumsum([each.probability for each in found])
        place = int(np.searchsorted(chances, self._rng.random() * chances[-1], side="right"))
        self._here = found[min(place, len(found) - 1)].state
        return found[min(place, len(found) - 1)].step

    def outcomes(self, action: Any) -> list[PossibleStep]:
        """Return all that plausibly follows; all legal actions of a state are weighed at once."""
        self.counter[0] += 1
        here, action, place = self._here, int(action), key(self._here)
        if action not in self._told.get(place, ()):
            if len(self._told) > LARGEST:
                self._told.clear()
            actions = {*map(int, self._theory.view.legal(here)), action}
            found = self._theory.outcomes([(here, each) for each in actions], plausible=True)
            nothing = PossibleStep(1.0, Step(here, 0.0, False, self._valid(here)), here)
            self._told.setdefault(place, {}).update(
                (each, [*map(self._possible, own)] or [nothing])
                for each, own in zip(actions, found, strict=True)
            )
        return self._told[place][action]

    def _possible(self, outcome: PossibleChange) -> PossibleStep:
        observation, reward, terminated = outcome.meaning
        step = Step(observation, reward, terminated, self._valid(observation))
        return PossibleStep(outcome.probability, step, copy_value(observation))

    def _valid(self, observation: Any) -> tuple[int, ...] | None:
        """Return the actions that may follow, None where all may."""
        legal = tuple(map(int, self._theory.view.legal(observation)))
        return legal if 0 < len(legal) < self.action_space.count else None
