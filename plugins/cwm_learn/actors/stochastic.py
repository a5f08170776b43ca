"""Worlds that roll dice: chances as a program tells them and rows count them, and plans by both."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cwm_cli.planning.model import Step
from cwm_cli.worlds.remote import NO_PLAN, ProgramFailed
from cwm_learn.actors.base import Actor, Aim, Intent, Knowledge, OpenQuestion
from cwm_learn.actors.numbered_states import Situations, TabularActor

if TYPE_CHECKING:
    from cwm_cli.data.dataset import Transition

TRUST = 30.0
"""So many rows of a pair count as much as what the program tells of it: it was written from all
rows, which share its rules."""

NEAR = 0.97
"""What the unknown is worth a step later: of two ways the shorter one is taken."""

CURIOUS = 4
"""One episode in so many goes for the unknown although there is something to play for: what pays
best may not have been met."""

SLACK = 1e-4
"""By how much of their size returns have to differ to be different."""

HASTE = 1e-7
"""Share of the largest reward that a step costs: of ways that return as much the shortest."""

UNTRIED = 0.5
"""What an action is worth that the program knows and no row shows, beside a place never seen."""

SLIGHT = 0.02
"""Chance of meeting the unknown below which it is not gone for."""

FARTHEST = 200
"""Steps beyond which the unknown is worth next to nothing."""

MOST_LEVELS = 1_000
"""Steps to go beyond which values are taken for those of as many."""


class Odds(NamedTuple):
    """What can follow, a line for each outcome of a pair: situation times actions plus action."""

    pair: np.ndarray
    chance: np.ndarray
    following: np.ndarray
    reward: np.ndarray
    ended: np.ndarray


class DiceActor(TabularActor):
    """Plays by value iteration with the chances of what can follow.

    Those that the program tells are bettered by counting rows, as by a Dirichlet prior. What no row
    has shown, situations and actions, is gone for as long as something is known of how to get
    there: first of all, and later in some episodes.
    """

    def __init__(self, known: Knowledge) -> None:
        super().__init__(known)
        self._table = Situations(known.observation_space, known.action_space)
        self._told: Odds | None = None
        self._seen: list[tuple[int, int, int, float, bool]] = []
        self._odds: Odds | None = None
        self._counted = 0
        self._values: list[np.ndarray] = []
        self._net, self._silent = np.zeros(0), np.zeros((0, 0), bool)
        self._unknown: np.ndarray | None = None
        self._rng = np.random.default_rng([known.seed, 2])

    @classmethod
    def stochastic_variant(cls) -> type[Actor]:
        """Return this one."""
        return cls

    def rebuild(self) -> None:
        """Ask the program for all that can follow in what can be reached from anywhere."""
        self._table.forget()
        self._seen.clear()
        self._told = None
        self._notice()
        if self.known.imagination is not None and len(self._table):
            self._ask(np.arange(len(self._table)))
        self._odds = None

    def observe(self, row: Transition) -> None:
        """Count what followed."""
        self._notice()

    def predict(self, observation: Any, action: Any) -> Step | None:
        """Return what is likeliest to follow."""
        odds, pair = self._known(), self._pair(observation, action)
        lines = np.flatnonzero(odds.pair == pair)
        if not len(lines):
            return None
        best = int(lines[odds.chance[lines].argmax()])
        after = self._table.observation(int(odds.following[best]))
        return Step(after, float(odds.reward[best]), bool(odds.ended[best]))

    def matches(self, predicted: Step, row: Transition) -> bool:
        """Whether what followed was possible, if not the likeliest."""
        odds, pair = self._known(), self._pair(row.observation, row.action)
        after = self._table.number(row.next_observation)
        lines = odds.pair == pair
        same = (odds.following == after) | (odds.ended & row.terminated)
        paid = np.isclose(odds.reward, row.reward) & (odds.ended == row.terminated)
        return bool((lines & same & paid).any())

    def promised_return(self, observation: Any, left: int) -> float | None:
        """Return what play is worth on the mean, if it matters what is done."""
        worth = self._worth(self._met(observation), left)
        matters = worth.max() > worth.min() + SLACK * (1 + np.abs(worth).max())
        return float(worth.max()) if matters or self._pays(worth, left) else None

    def _pays(self, worth: np.ndarray, left: int) -> bool:
        """Whether play is worth more than what is usual."""
        idle = left * (self.known.usual_reward or 0.0)
        return bool(worth.max() > idle + SLACK * (1 + abs(idle)))

    def choose(self, observation: Any, left: int, aim: Aim | None = None) -> Intent | None:
        """Play the best action, or go for what no row has shown: first if nothing pays."""
        number, promise = self._met(observation), self.promised_return(observation, left)
        if aim is None:
            curious = len(self.known.starts) % CURIOUS == 0
            if not curious and self._pays(self._worth(number, left), left):
                return self._play(number, left, promise, "exploit")
            return self._look(number, "explore") or self._play(number, left, promise, "exploit")
        if aim in ("exploit", "verify"):
            return self._play(number, left, promise, aim)
        return self._look(number, aim)

    def questions(self) -> list[OpenQuestion]:
        """Return what no row has shown."""
        odds = self._known()
        visited = {number for number, *_ in self._seen} | {after for _, _, after, *_ in self._seen}
        left = np.unique(odds.following[~odds.ended & (odds.chance > 0)])
        names = [n for n in left.tolist() if n not in visited][:3]
        return [
            OpenQuestion(f"never visited: {self.known.describe(self._table.observation(n))}")
            for n in names
        ]

    @property
    def is_settled(self) -> bool:
        """Whether next to nothing unknown can be reached from any start of late."""
        starts = [self._met(start) for start in self.known.starts[-3:]]
        return bool(starts) and all(self._curiosity()[n].max() < SLIGHT for n in starts)

    def _play(self, number: int, left: int, promise: float | None, aim: Aim) -> Intent | None:
        """Play the best action, if there is anything to play for."""
        if promise is None:
            return None
        worth = self._worth(number, left)
        best = np.flatnonzero(worth >= worth.max() - 1e-9)
        action = self._table.actions[int(best[0])]
        return Intent(action, aim, "the best expected return", promise)

    def _look(self, number: int, aim: Aim) -> Intent | None:
        """Begin a way to what is unknown, if one is likely enough to lead there."""
        hopes = self._curiosity()[number]
        if hopes.max() < SLIGHT:
            return None
        best = self._rng.choice(np.flatnonzero(hopes >= hopes.max() - 1e-9))
        return Intent(self._table.actions[int(best)], aim, "a likely way to unrecorded transitions")

    # --- what follows

    def _met(self, observation: Any) -> int:
        """Return the number of a situation; one that nothing is known of is asked about."""
        number, known = self._table.number(observation), self._known()
        size = len(self._table.actions)
        fresh = not ((known.pair >= number * size) & (known.pair < (number + 1) * size)).any()
        if fresh and self.known.imagination is not None and not self._table.expanded[number]:
            self._ask(np.array([number]))
            self._odds = None
        return number

    def _pair(self, observation: Any, action: Any) -> int:
        number = self._table.number(observation)
        return number * len(self._table.actions) + self._table.action_number(action)

    def _notice(self) -> None:
        """Give new rows their numbers."""
        self._seen += map(self._table.numbers_of, self.known.rows[len(self._seen) :])

    def _ask(self, roots: np.ndarray) -> None:
        """Ask the program for what can be reached from some situations."""
        assert self.known.imagination is not None
        found = self.known.imagination.ask(
            "reachable:outcomes",
            {name: column[roots] for name, column in self._table.columns.items()},
            space=self._table.space.to_json(),
        )
        try:
            leaves = [leaf.name for leaf in self._table.space.leaves("observations")]
            new = self._table.numbered({name: found[name] for name in leaves})
            numbers = np.concatenate([roots, new])
            size, known = len(self._table.actions), found["following"] >= 0
            lines = Odds(
                (numbers[found["before"]] * size + found["action"])[known],
                found["probability"][known],
                numbers[found["following"][known]],
                found["rewards"][known],
                found["terminated"][known],
            )
        except (KeyError, ValueError, IndexError, TypeError) as error:
            raise ProgramFailed(NO_PLAN) from error
        self._table.expanded[numbers] = 1
        told = self._told
        if told is not None:
            fresh = ~np.isin(lines.pair, told.pair)
            lines = Odds(*(np.concatenate([a, b[fresh]]) for a, b in zip(told, lines, strict=True)))
        self._told = lines

    def _known(self) -> Odds:
        """Return what can follow: as told, and as often as rows showed it."""
        if self._odds is None or self._is_old:
            self._odds = self._together()
            self._counted = len(self._seen)
            self._values, self._unknown = [], None
        return self._odds

    @property
    def _is_old(self) -> bool:
        """Whether rows were counted since that say more: of the last episodes, or by a tenth."""
        return len(self._seen) - self._counted > 0.1 * self._counted

    def _together(self) -> Odds:
        """Join what the program tells and what rows count."""
        size = len(self._table.actions)
        counts = Counter(
            (before * size + action, after, reward, ended)
            for before, action, after, reward, ended in self._seen
        )
        weights: dict[tuple[int, int, float, bool], float] = {}
        if self._told is not None:
            lines = zip(*(part.tolist() for part in self._told), strict=True)
            for pair, chance, after, reward, ended in lines:
                line = pair, after, reward, ended
                weights[line] = weights.get(line, 0.0) + TRUST * chance
        for line, count in counts.items():
            weights[line] = weights.get(line, 0.0) + count
        if not weights:
            nothing = np.zeros(0, np.int64)
            return Odds(nothing, np.zeros(0), nothing, np.zeros(0), np.zeros(0, bool))
        pair, after, reward, ended = map(np.array, zip(*weights, strict=True))
        weight = np.array(list(weights.values()))
        totals = np.bincount(pair, weight)
        return Odds(pair, weight / totals[pair], after, reward, ended)

    # --- plans

    def _backed_up(self, odds: Odds, rewards: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Return what every action in every situation is worth, one step before the values."""
        worth = odds.chance * (rewards + np.where(odds.ended, 0.0, values[odds.following]))
        size = len(self._table.actions)
        pairs = np.bincount(odds.pair, worth, minlength=len(self._table) * size)
        return pairs.reshape(-1, size)

    def _worth(self, number: int, left: int) -> np.ndarray:
        """Return what every action in a situation is worth with so many steps left.

        One of which nothing is known pays what is usual for ever.
        """
        odds, usual = self._known(), self.known.usual_reward or 0.0
        left = min(left, MOST_LEVELS)
        if not self._values or len(self._values[0]) != len(self._table):
            self._values = [np.zeros(len(self._table))]
            size = len(self._table.actions)
            self._silent = np.bincount(odds.pair, minlength=len(self._table) * size) == 0
            self._silent = self._silent.reshape(-1, size)
            self._net = odds.reward - HASTE * max(1e-9, np.abs(odds.reward).max(initial=0.0))
        while len(self._values) <= left:
            steps = len(self._values)
            worth = self._backed_up(odds, self._net, self._values[-1])
            self._values.append(np.where(self._silent, usual * steps, worth).max(axis=1))
        worth = self._backed_up(odds, self._net, self._values[left - 1])[number]
        told: np.ndarray = np.where(self._silent[number], usual * left, worth)
        return told

    def _curiosity(self) -> np.ndarray:
        """Return the discounted chance of coming to what is unknown, by every action."""
        odds = self._known()
        if self._unknown is not None and len(self._unknown) == len(self._table):
            return self._unknown
        size, count = len(self._table.actions), len(self._table)
        tried, visited = np.zeros(count * size, bool), np.zeros(count, bool)
        for before, action, after, *_ in self._seen:
            tried[before * size + action] = True
            visited[[before, after]] = True
        news = (~visited[odds.following]).astype(float)
        asked = np.bincount(odds.pair, minlength=count * size) > 0
        hopes = np.zeros((count, size))
        least = np.where(tried, 0.0, np.where(asked, UNTRIED, 1.0)).reshape(count, size)
        lines = odds._replace(ended=odds.ended | (news > 0))
        for _ in range(min(2 * self.known.limit, FARTHEST)):
            again = NEAR * self._backed_up(lines, news / NEAR, hopes.max(axis=1))
            again = np.maximum(again, least)
            if np.abs(again - hopes).max(initial=0.0) < SLIGHT / 100:
                break
            hopes = again
        self._unknown = hopes
        return hopes
