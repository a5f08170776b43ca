"""The actor for enumerable states: value iteration over a state table, and directed exploration."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from cwm_cli.data.objects import OBJECTS, SIDES, relations
from cwm_cli.planning.model import Step
from cwm_learn.actors.base import PLAY_AIMS, Actor, Aim, Intent, Knowledge, OpenQuestion
from cwm_learn.actors.digits import digits_of, split
from cwm_learn.actors.novelty import Novelty, NoveltyLevel
from cwm_learn.actors.numbered_states import (
    COMPLETE,
    PARTIAL,
    DiscreteActor,
    NumberedStates,
    NumberedStep,
)
from cwm_learn.actors.object_novelty import ObjectNovelty
from cwm_learn.actors.stochastic import StochasticActor

if TYPE_CHECKING:
    from cwm_cli.data.dataset import Transition

TOLERANCE = 1e-6
"""Relative difference below which rewards and returns are equal."""

MAX_WRONG, RECENT_STEPS = 3, 20
"""After `MAX_WRONG` wrong rewards or ends in `RECENT_STEPS` steps, the actor explores before it
plays: the program probably promises more wrong returns, and it will be rewritten soon."""

MAX_SHOWN = 3
"""Open questions of one kind to report, and recent starts to consider."""


class TabularActor(DiscreteActor):
    """Plays by value iteration over all states that the program can reach.

    It explores by the shortest path in the program to the most informative untried action or
    unvisited state, see `novelty`.
    """

    def __init__(self, known: Knowledge) -> None:
        super().__init__(known)
        self.table = NumberedStates(known.observation_space, known.action_space)
        self.table.partition = self._property_positions()
        self._steps: list[NumberedStep] = []
        self._wrong_steps: list[int] = []
        self._features: np.ndarray | None = None  # factors, or varying relations of objects
        self._radices: tuple[int, ...] = ()  # of a state that is a single integer
        self._rows_at_inference = 0
        self._relation_names: list[str] = []
        self._relations = np.zeros((0, 0), np.int64)  # all relations, of all states so far
        self._latest_novelty: Novelty | None = None
        self._board_is_explored = False  # nothing was unknown at the start of the episode
        self._rng = np.random.default_rng([known.seed, 0])

    @classmethod
    def stochastic_variant(cls) -> type[Actor]:
        """Return the actor that also estimates probabilities."""
        return StochasticActor

    def rebuild(self) -> None:
        """Start a new table; the program is searched when the current state is known."""
        self._steps.clear()
        self._wrong_steps.clear()
        self.table.clear()
        self._relations = self._relations[:0]
        usual = self.known.usual_reward
        if usual is None:
            rewards = [row.reward for row in self.known.rows if not row.terminated]
            usual = Counter(rewards or [0.0]).most_common(1)[0][0]
        self.table.usual_reward = usual
        self._record_rows()
        self._features = self._latest_novelty = None

    def observe(self, row: Transition) -> None:
        """Record a transition, which overrides the program."""
        self._record_rows()

    def predict(self, observation: Any, action: Any) -> Step | None:
        """Return the recorded outcome of an action, or else what the program predicts."""
        place = self._state(observation, self._first_extent), self.table.action_number(action)
        if not self.table.known[place]:
            return None
        after = self.table.observation(int(self.table.next_states[place]))
        return Step(after, float(self.table.rewards[place]), bool(self.table.terminated[place]))

    def matches(self, predicted: Step, row: Transition) -> bool:
        """Return whether reward, end and next state are right; terminal states may differ."""
        number = self.table.state_number
        same = row.terminated or number(predicted.observation) == number(row.next_observation)
        tolerance = TOLERANCE * max(1.0, abs(row.reward))
        paid = abs(predicted.reward - row.reward) <= tolerance
        return bool(same and paid and predicted.terminated == row.terminated)

    def promised_return(self, observation: Any, left: int) -> float | None:
        """Return the highest return, if it exceeds the usual reward at every step."""
        return self._promise(self._expanded_state(observation, left), left) if left >= 1 else None

    def choose(self, observation: Any, left: int, aim: Aim | None = None) -> Intent | None:
        """Return the best action, or the first one of the shortest path to something unknown."""
        state = self._expanded_state(observation, left)
        if aim is None or aim in PLAY_AIMS:
            promise = self._promise(state, left)
            recent = len(self._steps) - RECENT_STEPS
            is_unreliable = sum(n >= recent for n in self._wrong_steps[-MAX_WRONG:]) == MAX_WRONG
            is_unreliable |= self.known.is_misleading and len(self.known.starts) % 2 == 0
            if promise is not None:
                if aim is None and (is_unreliable or self._waits(state, left)):
                    intent = self._explore(state, left)
                    if intent is not None:
                        return intent
                return self._play(state, left, aim or "exploit")
            if aim is not None:
                return self._play(state, left, aim) if aim == "exploit" else None
        if aim == "probe":
            return self._probe(observation, left)
        intent = self._explore(state, left)
        if intent is None and self.table.expanded[state] < COMPLETE:
            state = self._state(observation)
            intent = self._explore(state, left)
        if left == self.known.limit:
            self._board_is_explored = intent is None
        novelty = self._novelty
        if intent is None and self._board_is_explored and isinstance(novelty, ObjectNovelty):
            intent = self._approach(state, left, novelty.deeper_levels(), "explore")
        return intent or (self._play(state, left, "exploit") if aim is None else None)

    def questions(self) -> list[OpenQuestion]:
        """Return untried actions, ends seen once, and promising states that were never visited."""
        self._record_rows()
        table, describe = self.table, self.known.describe
        tried = {step.action for step in self._steps}
        untried = [action for n, action in enumerate(table.actions) if n not in tried]
        found = [
            OpenQuestion(f"action {action} was never tried", action=action, weight=1.0)
            for action in untried[:MAX_SHOWN]
        ]
        ends = Counter(step[:2] for step in self._steps if step.terminated)
        rewards = {step[:2]: step.reward for step in self._steps}
        for state, action in [end for end, count in ends.items() if count == 1][:MAX_SHOWN]:
            place, chosen = describe(table.observation(state)), table.actions[action]
            text = f"the end of the episode by action {chosen} at {place} was seen once"
            weight = abs(rewards[state, action] - table.usual_reward)
            answers = "whether the episode always ends there"
            found.append(OpenQuestion(text, place, chosen, answers, weight))
        places = []
        if self.known.starts:
            start = self._state(self.known.starts[-1], self._first_extent)
            for level in self._promising_levels(start, self.known.limit):
                states = np.unique(table.next_states[level.unknown])[:MAX_SHOWN]
                places += [describe(table.observation(state)) for state in states.tolist()]
        answers = "whether this state raises the return"
        return found + [
            OpenQuestion(f"never visited: {place}", place, answers=answers)
            for place in list(dict.fromkeys(places))[:MAX_SHOWN]
        ]

    @property
    def is_settled(self) -> bool:
        """Whether no unvisited state could raise the return from the last starts."""
        for observation in self.known.starts[-MAX_SHOWN:]:
            levels = self._promising_levels(self._state(observation), self.known.limit)
            if any(level.unknown.any() for level in levels):
                return False
        return bool(self.known.starts)

    # --- the table

    def _state(self, observation: Any, extent: int = COMPLETE) -> int:
        """Return the number of a state, after searching the program from there."""
        state = self.table.state_number(observation)
        imagination = self._imagination
        if imagination is not None and self.table.expanded[state] < extent:
            if self.table.is_full:
                self.rebuild()
                state = self.table.state_number(observation)
            self._record_rows()
            self.table.expand(imagination, state, extent, self._best_end)
        return state

    def _expanded_state(self, observation: Any, left: int) -> int:
        """Return the number of a state, after a search that is sufficient to act.

        A partial search is sufficient if it promises no return, or if the best play reaches the
        best end that was ever seen.
        """
        state = self._state(observation, self._first_extent)
        if self.table.expanded[state] == COMPLETE or self._promise(state, left) is None:
            return state
        return state if self._reaches_best_end(state, left) else self._state(observation)

    @property
    def _first_extent(self) -> int:
        """The extent of the first search from a state: partial for large tables of objects."""
        return PARTIAL if self.table.is_large and self.known.schema is not None else COMPLETE

    def _property_positions(self) -> list[int]:
        """Return the positions, in the numbers of a state, of object properties except places."""
        schema, first = self.known.schema, 0
        for leaf in self.known.observation_space.leaves("observations"):
            if schema is not None and leaf.name == f"observations.{OBJECTS}":
                named = {each.name for each in schema.fields if each.values} | {"held"}
                columns = sorted([0, *map(schema.column, named & set(schema.names))])
                rows = range(first, first + leaf.space.size, leaf.space.shape[-1])
                return [row + column for row in rows for column in columns]
            first += leaf.space.size
        return []

    def _record_rows(self) -> None:
        """Record new rows in the table, except outcomes that are not the most common one."""
        for place, row in enumerate(self.known.rows[len(self._steps) :], len(self._steps)):
            self._steps.append(self.table.number_step(row))
            self._latest_novelty = None
            if place not in self.known.random_rows and self.table.record(self._steps[-1]):
                self._wrong_steps.append(place)

    # --- expected returns

    def _promise(self, state: int, left: int) -> float | None:
        """Return the best value if it is promising, else None; 7 digits.

        If steps usually cost, a plan is not promising if a good end at the last step returns more.
        """
        table, usual = self.table, self.table.usual_reward
        value = float(table.action_values(state, left).max())
        late_value = float(table.action_values(state, left // 2).max()) if left > 1 else 0.0
        tolerance = TOLERANCE * max(1e-9, float(np.abs(table.rewards).max(initial=0.0)))
        end = min(self._good_ends, default=-np.inf)
        if usual < 0 and value < end + (left - 1) * usual - tolerance:
            return None
        is_promising = self.known.is_promising(value, late_value, left, usual, tolerance)
        return float(f"{value:.7g}") if is_promising else None

    def _play(self, state: int, left: int, aim: Aim) -> Intent | None:
        """Return the best action, None if it is unknown or only idles without a reward."""
        values, usual = self.table.action_values(state, left), self.table.usual_reward
        value = float(values.max())
        best = int(values.argmax())
        is_idle = usual <= 0 or not self.table.known[state, best]
        if is_idle and abs(value - left * usual) <= TOLERANCE * (1 + abs(left * usual)):
            return None
        return Intent(
            self.table.actions[best], aim, "the best action in the program", float(f"{value:.7g}")
        )

    def _waits(self, state: int, left: int) -> bool:
        """Return whether the best play only waits: recorded steps back to the state, for nothing.

        A plan may wait for as long as its reward can also be collected later.
        """
        table, place, gained = self.table, state, 0.0
        max_cycle = 10  # maximum steps of a cycle that counts as waiting
        for length in range(min(left, max_cycle)):
            best = place, int(table.action_values(place, left - length).argmax())
            if table.terminated[best] or not table.recorded[best]:
                return False
            place, gained = int(table.next_states[best]), gained + table.rewards[best]
            if place == state:
                return bool(abs(gained) <= TOLERANCE)
        return False

    @property
    def _best_end(self) -> float | None:
        """The best reward of a terminal transition, if it exceeds the usual reward."""
        ends = self._good_ends
        return max(ends) - TOLERANCE * max(1.0, max(ends)) if ends else None

    @property
    def _good_ends(self) -> list[float]:
        """The rewards of recorded terminal transitions that exceed the usual reward."""
        usual = self.table.usual_reward
        return [step.reward for step in self._steps if step.terminated and step.reward > usual]

    def _reaches_best_end(self, state: int, left: int) -> bool:
        """Return whether the best play reaches the best end that was ever seen."""
        passed, reward = set[int](), self._best_end
        while reward is not None and left and state not in passed:
            passed.add(state)
            action = int(self.table.action_values(state, left).argmax())
            if self.table.terminated[state, action]:
                return bool(self.table.rewards[state, action] >= reward)
            state, left = int(self.table.next_states[state, action]), left - 1
        return False

    def _promising_levels(self, start: int, left: int) -> Iterator[NoveltyLevel]:
        """Yield unvisited states that would raise the return if they paid the best known reward."""
        table, best = self.table, max((step.reward for step in self._steps), default=0.0)
        length = table.shortest_paths(start, left).length
        value = float(table.action_values(start, left).max()) if left else 0.0
        bound = np.where(length >= 0, length * table.usual_reward + best, -np.inf)
        exceeds = bound > value + TOLERANCE * max(1.0, abs(value))
        for width in (1, 2):
            unknown = self._novelty.new_landings(width) & exceeds[:, None]
            reason = f"an unvisited state that may raise the return, width {width}"
            yield NoveltyLevel(reason, unknown)

    # --- exploration

    def _approach(
        self, state: int, left: int, levels: Iterable[NoveltyLevel], aim: Aim
    ) -> Intent | None:
        """Start a shortest path to the first reachable level; ties are broken at random."""
        paths = self.table.shortest_paths(state, left)
        for level in levels:
            states, actions = np.nonzero(level.unknown & (paths.length >= 0)[:, None])
            if len(states):
                lengths = paths.length[states]
                nearest = np.flatnonzero(lengths == lengths.min())
                place = nearest[self._rng.integers(len(nearest))]
                action = paths.first_action(int(states[place]), int(actions[place]))
                return Intent(self.table.actions[action], aim, level.reason)
        return None

    def _explore(self, state: int, left: int) -> Intent | None:
        return self._approach(state, left, self._novelty.levels(), "explore")

    def _probe(self, observation: Any, left: int) -> Intent | None:
        """Test disputed predictions, questions and, after a complete search, promising states."""
        for extent in (self._first_extent, COMPLETE):
            for each, _ in self.known.disputed:
                self._state(each, self._first_extent)
            state = self._state(observation, extent)
            # Each search may rebuild a full table, so the numbers are read after all searches.
            disputed = [
                (self.table.state_number(each), self.table.action_number(action))
                for each, action in self.known.disputed
            ]
            levels = chain(
                self._question_levels(disputed),
                self._promising_levels(state, left) if extent == COMPLETE else (),
            )
            if intent := self._approach(state, left, levels, "probe"):
                return intent
        return None

    def _question_levels(self, disputed: Iterable[tuple[int, int]]) -> Iterator[NoveltyLevel]:
        """Yield disputed pairs of state and action, then the targets of a language model."""
        unknown = np.zeros(self.table.next_states.shape, bool)
        for place in disputed:
            unknown[place] = True
        yield NoveltyLevel("other programs disagree", unknown)
        for target in self.known.targets:
            action, unknown = target.question.action, np.zeros_like(unknown)
            column = slice(None) if action is None else self.table.action_number(action)
            unknown[target.contains(self.table.values), column] = True
            yield NoveltyLevel(target.question.text, unknown)

    @property
    def _novelty(self) -> Novelty:
        """Novelty in the current table. New states change the features, new rows only the rest.

        The digits of integer states are inferred again after 10 % more rows.
        """
        has_objects = self.known.schema is not None
        is_stale = bool(self._radices) and len(self._steps) > 1.1 * self._rows_at_inference
        if self._features is None or len(self._features) != len(self.table) or is_stale:
            self._features = self._varying_relations() if has_objects else self._factors()
            self._latest_novelty = None
        if self._latest_novelty is None:
            known = self.table, self._features, self._steps, self.table.usual_reward
            self._latest_novelty = (
                ObjectNovelty(*known, names=self._relation_names, sides=self._sides())
                if has_objects
                else Novelty(*known, self._radices)
            )
        return self._latest_novelty

    def _factors(self) -> np.ndarray:
        """Return the factors of all states: digits of a single integer, or varying components."""
        values, space = self.table.values, self.known.observation_space
        if space.kind == "discrete" and self._steps:
            numbers = values[:, 0] - int(space.low[0])
            before, action, after, *_ = map(np.array, zip(*self._steps, strict=True))
            self._rows_at_inference = len(self._steps)
            self._radices = digits_of(numbers[before], action, numbers[after], space.count)
            return split(numbers, self._radices)
        _, factors = _varying_columns(values)
        return factors if factors.shape[1] else np.zeros((len(values), 1), np.int64)

    def _varying_relations(self) -> np.ndarray:
        """Return the relations between the objects of all states, without constant ones."""
        assert self.known.schema is not None
        tables = self.table.columns[f"observations.{OBJECTS}"]
        names, new = relations(self.known.schema, tables[len(self._relations) :])
        self._relations = np.concatenate([self._relations.reshape(-1, len(names)), new])
        varying, columns = _varying_columns(self._relations)
        self._relation_names = [names[n] for n in varying]
        return columns

    def _sides(self) -> dict[int, str]:
        """Return the usual direction of movement of each action if the agent faces no direction."""
        schema = self.known.schema
        if schema is None or schema.directions:
            return {}
        tables = self.table.columns[f"observations.{OBJECTS}"]
        position = [schema.column("x"), schema.column("y")]
        moves: dict[int, Counter[tuple[int, ...]]] = {}
        for before, action, after, *_ in self._steps:
            move = (tables[after, 0] - tables[before, 0])[position].tolist()
            if any(move):
                moves.setdefault(action, Counter())[tuple(move)] += 1
        usual = {action: counts.most_common(1)[0][0] for action, counts in moves.items()}
        sides = {move: side for side, move in SIDES.items()}
        return {action: sides[move] for action, move in usual.items() if move in sides}


def _varying_columns(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the indices of the varying columns, and these columns with values numbered from 0."""
    varying = np.flatnonzero((values != values[:1]).any(axis=0))
    columns = [np.unique(values[:, n], return_inverse=True)[1].reshape(-1) for n in varying]
    return varying, np.stack(columns, 1) if columns else np.zeros((len(values), 0), np.int64)
