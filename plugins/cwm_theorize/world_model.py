"""Rules in words as a world model: a statistician gives the probability of each candidate.

The text view of the environment lists the candidates and the consequence of each. No generated code
runs, so planners run in the trusted process.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from cwm_cli.data.dataset import VALID, Dataset, Transition
from cwm_cli.data.spaces import Space
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

UNDETERMINED = "the environment's description in words does not determine the next observation"

MAX_CACHED_SITUATIONS = 20_000
"""Maximum number of cached situations; the cache is cleared when it is full."""

_Situation = tuple[Any, Any]
"""An observation and an action."""


class PossibleChange(NamedTuple):
    """A candidate change, its probability under the rules, and its consequence."""

    probability: float
    change: Change
    meaning: Consequence


class WeighedCandidates(NamedTuple):
    """The candidates of a situation, and the log-weight of each under the rules."""

    candidates: Sequence[Change]
    weights: np.ndarray


@dataclass(frozen=True)
class Theory(WorldModel):
    """Rules in words, and the statistician that predicts with them.

    The probability of a candidate is its weight, normalised over all candidates whose words
    determine the next observation. The statistician gives every candidate some probability, so
    planners only use candidates that are at least as likely as by guessing. With `plausible`,
    predictions are limited to these, too.
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
        """Return a summary of the ranks of the recorded changes."""
        return self.ranking(rows).summary()

    @property
    def view(self) -> TextView:
        """The text view of the environment."""
        return self.statistician.view

    @property
    def digest(self) -> str:
        """Hash of the rules and of the statistician's backend."""
        return sha256(f"{self.statistician.backend!r}\0{self.rules}".encode()).hexdigest()

    @property
    def planned(self) -> Theory:
        """The same rules without implausible candidates, as planners use them."""
        return replace(self, plausible=True)

    def describe(self) -> str:
        """Return a description in a few words."""
        return f"{self.name}, in words"

    def weights(self, transitions: Sequence[TextTransition]) -> list[np.ndarray]:
        """Return the log-weights (candidates,) of each transition.

        All candidate sentences count as discovered.
        """
        found: set[str] = set()
        if self.view.lists_discovered:
            found = {each.text for row in transitions for each in row.candidates}
        return self.statistician.of_candidates(self.rules, transitions, tuple(sorted(found)))

    def weigh(self, situations: Sequence[_Situation]) -> list[WeighedCandidates]:
        """Return the scored candidates of each situation; equal situations are scored once."""
        keys = [key(situation) for situation in situations]
        found = {each: self._known.get(each) for each in keys}
        missing = {k: s for k, s in zip(keys, situations, strict=True) if found[k] is None}
        asked = self._text_transitions([*missing.values()])
        new = {
            each: WeighedCandidates(row.candidates, own)
            for each, row, own in zip(missing, asked, self.weights(asked), strict=True)
        }
        if len(self._known) + len(new) > MAX_CACHED_SITUATIONS:
            self._known.clear()
        self._known.update(new)
        known = {**found, **new}
        return [each for each in (known[k] for k in keys) if each is not None]

    def outcomes(
        self, situations: Sequence[_Situation], *, plausible: bool = False
    ) -> list[list[PossibleChange]]:
        """Return the possible changes of each situation, most likely first.

        The list is empty if no candidate determines the next observation. With `plausible`, it
        contains only candidates that are at least as likely as by guessing.
        """
        weighed = zip(situations, self.weigh(situations), strict=True)
        return [self._possible_changes(*each, plausible=plausible) for each in weighed]

    def predict(self, rows: Dataset, *, seed: int = 0, draws: int = 1) -> Predictions:
        """Predict the likeliest outcome of each row, or with `draws` > 1 all outcomes.

        Rows are unanswered if no candidate determines the next observation.
        """
        every = list(rows)
        situations = [(row.observation, row.action) for row in every]
        found = self.outcomes(situations, plausible=self.plausible)
        answered = np.array([bool(each) for each in found])
        if not answered.any():
            return Predictions({}, Failure(kind="wrong_output", message=UNDETERMINED))
        width = 1 if draws == 1 else max(map(len, found))
        predicted = [
            each
            for row, own in zip(every, found, strict=True)
            for each in self._padded_transitions(row, own[:width], width)
        ]
        made = Dataset.of(
            predicted, observation_space=rows.observation_space, action_space=rows.action_space
        )
        columns = made.select("next_observations", "rewards", "terminations", VALID)
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
        """Start a planning session.

        Raises:
            CwmError: No candidate determines the next observation at the initial state.
        """
        with closing(task.make()) as env:
            observation, _ = env.reset(seed=task.seed)
            space = space_of(env.action_space, "actions")
        legal = self.view.legal(observation)
        if not any(self.outcomes([(observation, action) for action in legal])):
            raise CwmError(
                f"cannot plan with {self.describe()} ({UNDETERMINED}): choose another world model"
            )
        return TrustedSession(TheorySteps(self, space), planners, task.seed, form="rules")

    def _text_transitions(self, situations: Sequence[_Situation]) -> list[TextTransition]:
        """Put situations into words; the recorded change is a placeholder."""
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

    def _possible_changes(
        self, situation: _Situation, weighed: WeighedCandidates, *, plausible: bool
    ) -> list[PossibleChange]:
        """Return the possible changes among scored candidates."""
        candidates, weights = weighed
        shares = np.exp(weights - weights.max())
        chances = (shares / shares.sum()).tolist()
        guess_tolerance = 1 - 1e-9  # factor on the probability of guessing, to allow for rounding
        least = guess_tolerance / len(candidates) if plausible else 0.0
        places = [place for place, chance in enumerate(chances) if chance >= least]
        found = [
            PossibleChange(chances[place], candidates[place], meaning)
            for place in sorted(places, key=lambda place: -chances[place])
            if (meaning := self.view.consequence(*situation, candidates[place])) is not None
        ]
        total = sum(each.probability for each in found)
        return [each._replace(probability=each.probability / total) for each in found if total]

    def _padded_transitions(
        self, row: Transition, found: Sequence[PossibleChange], width: int
    ) -> list[Transition]:
        """Return `width` predicted transitions of a row, padded with the likeliest.

        Without a prediction, the state does not change, as in planning.
        """
        meanings = [each.meaning for each in found] or [Consequence(row.observation, 0.0, False)]
        predicted = []
        for meaning in meanings:
            legal = None
            if row.valid is not None:
                legal = tuple(map(int, self.view.legal(meaning.observation)))
            predicted.append(Transition(row.observation, row.action, *meaning, valid=legal))
        return predicted + predicted[:1] * (width - len(predicted))


class TheorySteps(Model):
    """A planning model whose states are observations and whose steps follow the rules.

    If no candidate determines the next observation, the state does not change.
    """

    deterministic = False

    def __init__(self, theory: Theory, action_space: Space) -> None:
        self.action_space = action_space
        self.counter: Counter = [0]
        self._theory = theory
        self._here: Any = None
        self._outcomes: dict[Any, dict[int, list[PossibleStep]]] = {}
        self._rng = np.random.default_rng(0)

    def stand(self, state: Any) -> None:
        """Set the current observation."""
        self._here = state

    def here(self) -> Any:
        """Return the current observation."""
        return self._here

    def draw_from(self, key: Sequence[int]) -> None:
        """Seed the random draws with a key."""
        super().draw_from(key)
        self._rng = np.random.default_rng(key)

    def step(self, action: Any) -> Step:
        """Take an action; draw its outcome from the plausible changes."""
        found = self.outcomes(action)
        chances = np.cumsum([each.probability for each in found])
        place = int(np.searchsorted(chances, self._rng.random() * chances[-1], side="right"))
        self._here = found[min(place, len(found) - 1)].state
        return found[min(place, len(found) - 1)].step

    def outcomes(self, action: Any) -> list[PossibleStep]:
        """Return all plausible outcomes of an action.

        All legal actions of the state are scored in one call.
        """
        self.counter[0] += 1
        here, action, place = self._here, int(action), key(self._here)
        if action not in self._outcomes.get(place, ()):
            if len(self._outcomes) > MAX_CACHED_SITUATIONS:
                self._outcomes.clear()
            actions = {*map(int, self._theory.view.legal(here)), action}
            found = self._theory.outcomes([(here, each) for each in actions], plausible=True)
            nothing = PossibleStep(1.0, Step(here, 0.0, False, self._valid(here)), here)
            self._outcomes.setdefault(place, {}).update(
                (each, [*map(self._possible, own)] or [nothing])
                for each, own in zip(actions, found, strict=True)
            )
        return self._outcomes[place][action]

    def _possible(self, outcome: PossibleChange) -> PossibleStep:
        observation, reward, terminated = outcome.meaning
        step = Step(observation, reward, terminated, self._valid(observation))
        return PossibleStep(outcome.probability, step, copy_value(observation))

    def _valid(self, observation: Any) -> tuple[int, ...] | None:
        """Return the legal actions, or None if all actions are legal."""
        legal = tuple(map(int, self._theory.view.legal(observation)))
        return legal if 0 < len(legal) < self.action_space.count else None
