"""Worlds of real numbers: plans to the end of the episode, policies found in imagination, extremes.

The program says which plays, a plan or a policy: whichever returns more from where the agent
stands. What is unknown lies beyond what was visited, and at the limits that ends were seen at.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import product
from math import isfinite
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from cwm_cli.planning.model import Step
from cwm_cli.text import percent
from cwm_learn.actors.base import (
    PLAY_AIMS,
    Actor,
    Aim,
    Intent,
    Knowledge,
    OpenQuestion,
    TargetedQuestion,
)
from cwm_learn.search import policies

if TYPE_CHECKING:
    from cwm_cli.data.dataset import Transition
    from cwm_cli.data.spaces import Space

Arrays = dict[str, np.ndarray]

GRID, LARGEST_GRID = 3, 3
"""Values of each component of an action that a search tries, and of how many components: a coarse
grid leaves room for more places (7 values lost to 3), and plans are polished beyond it."""

DRAWN = 32
"""Actions that are tried where they have more components, or are many whole numbers."""

CELLS = 20_000
"""About how many cells what was visited is cut into, at least 10 a component."""

PLAN_WORK, POLICY_WORK = 2_000_000, 4_000_000
"""Imagined steps for a plan and for a policy: about two and four seconds of one core."""

STEP_WORK, SAVED_WORK = 100_000, 6_000_000
"""Imagined steps that each decision earns for plans, and how many can be saved up: three plans may
follow each other at once, but where they go off at every step they become as cheap as steps."""

OFF = 0.01
"""Share of the spread by which a plan may be off; from there on another one is made."""

CLOSE = 1e-4
"""How exact a prediction has to be, in units of the data: float32 leaves about 1e-7."""

ALL_BUT = 0.9
"""Share of a bound that a component has to pass so that nothing is open about it."""

FAR = 1e3
"""Bounds beyond this stand for none."""

IDLE = 10
"""Steps after which the frontier is looked for again where nothing lay beyond it."""

NEWS = 0.01
"""How far out, in spreads of the data, something new begins."""

LAST = 8
"""Steps before an end from which nothing may be saved any more."""

TRIES = 2
"""How often one question is pursued: what two plans did not reach is out of reach for now."""


@dataclass
class WayUnderway:
    """A plan under way: what was asked for, from how many steps left on, and what is due."""

    aim: Aim
    left: int
    found: Arrays
    start: np.ndarray

    def place(self, left: int) -> int:
        """Return how many of its actions were played when so many steps are left."""
        return self.left - left

    def due(self, left: int) -> np.ndarray | None:
        """Return what should be observed when so many steps are left, None beyond its end."""
        place = self.place(left)
        if not 0 <= place < self.length:
            return None
        return self.start if place == 0 else self.found["observations"][place - 1]

    @property
    def length(self) -> int:
        """How many actions it has."""
        return len(self.found["actions"])

    def worth(self, left: int) -> float:
        """Return what the rest of it is worth."""
        return float(self.found["rewards"][self.place(left) :].sum())

    @property
    def is_policy(self) -> bool:
        """Whether it is a policy's, which goes on wherever it gets to."""
        return str(self.found["how"]) == "policy"


@dataclass
class Visited:
    """What was observed: extremes, spread, middle and deviation of each component."""

    observations: np.ndarray
    low: np.ndarray = field(init=False)
    high: np.ndarray = field(init=False)
    spread: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self.low, self.high = self.observations.min(0), self.observations.max(0)
        self.spread = np.maximum(self.high - self.low, 1e-6)


class Real(Actor):
    """Acts where observations are vectors of real numbers."""

    WARMUP_STEPS: ClassVar[int] = 30
    KEEPS_EXCEPTIONS: ClassVar[bool] = False

    def __init__(self, known: Knowledge) -> None:
        super().__init__(known)
        self._shape = known.observation_space.shape
        self._options = _options(known.action_space, known.seed)
        self._weights: np.ndarray | None = None
        self._has_looked = False
        self._way: WayUnderway | None = None
        self._tried: Counter[str] = Counter()
        self._remembered: dict[tuple[bytes, bytes], Step] = {}
        self._seen: list[np.ndarray] = []
        self._cached: Visited | None = None
        self.work = self._idle_until = 0
        self._earned = SAVED_WORK

    @classmethod
    def supports(cls, observation_space: Space, action_space: Space) -> bool:
        """Whether observations are real numbers, and actions are numbered or have bounds."""
        bounded = all(map(isfinite, (*action_space.low, *action_space.high)))
        acts = action_space.kind == "discrete" or (action_space.is_float and bounded)
        return observation_space.is_float and acts

    # --- what is known

    def rebuild(self) -> None:
        """Forget plans of another program; a policy is found when one is needed."""
        self._way, self._has_looked, self._idle_until = None, False, 0

    def observe(self, row: Transition) -> None:
        """Remember what came out otherwise than the program says."""
        self._remembered[_key(row.observation, row.action)] = Step(
            row.next_observation, row.reward, row.terminated
        )

    def predict(self, observation: Any, action: Any) -> Step | None:
        """Return what was seen to follow, or else what the program says."""
        if (known := self._remembered.get(_key(observation, action))) is not None:
            return known
        if not self.known.program:
            return None
        found = self._ask(
            "rollouts:steps",
            {
                "observations": np.asarray(observation, float).reshape(1, -1),
                "actions": np.asarray(action)[None],
            },
        )
        if not found or found["lost"][0]:
            return None
        after = found["observations"][0].reshape(self._shape)
        return Step(after, float(found["rewards"][0]), bool(found["ends"][0]))

    def matches(self, predicted: Step, row: Transition) -> bool:
        """Whether a prediction came about; what is seen at an end counts for nothing."""
        if bool(predicted.terminated) != row.terminated:
            return False
        if abs(predicted.reward - row.reward) > CLOSE * (1 + abs(row.reward)):
            return False
        there = np.asarray(row.next_observation, float)
        off = np.abs(np.asarray(predicted.observation, float) - there).ravel()
        near = bool((off <= CLOSE * (self._visited.spread + np.abs(there.ravel()))).all())
        return near or row.terminated

    # --- what to do

    def promised_return(self, observation: Any, left: int) -> float | None:
        """Return what the better of plan and policy is worth from here."""
        way = self._way_for("exploit", observation, left)
        return None if way is None or way.found["flat"] else way.worth(left)

    def choose(self, observation: Any, left: int, aim: Aim | None = None) -> Intent | None:
        """Return the next action of the plan for an aim."""
        self._earned = min(SAVED_WORK, self._earned + STEP_WORK)
        if aim == "probe":
            for each in self.known.targets:
                if each.question.action is not None and each.contains(np.ravel(observation)):
                    return Intent(each.question.action, aim, each.question.text)
        if aim is None:
            here = np.asarray(observation, float).ravel()
            explores = self._followed("explore", here, left) is not None  # to its end
            explores = explores or self.promised_return(observation, left) is None
            aim = "explore" if explores else "exploit"
        if aim == "verify":
            way = self._way_for("exploit", observation, left)
        else:
            way = self._way_for(aim, observation, left)
        if way is None:
            return None
        if aim in PLAY_AIMS:
            policy = "a policy optimised in the program"
            reason = policy if way.is_policy else "the plan with the highest return"
            return Intent(self._action(way, observation, left), aim, reason, way.worth(left))
        return Intent(self._action(way, observation, left), aim, str(way.found["reason"]))

    def _action(self, way: WayUnderway, observation: Any, left: int) -> Any:
        """Return the action of a plan, in the type of the environment."""
        action = way.found["actions"][way.place(left)]
        if way.is_policy and self._weights is not None:
            here = np.asarray(observation, float).reshape(-1, 1, 1)
            action = policies.act(self._weights[None], here, self._lasting)[..., 0, 0]
        elif "gains" in way.found:
            off = np.asarray(observation, float).ravel() - way.due(left)
            action = action + way.found["gains"][way.place(left)] @ off
            action = np.clip(action, self._options.min(0), self._options.max(0))
        space = self.known.action_space
        if space.kind == "discrete":
            return int(action)
        return np.asarray(action, space.dtype).reshape(space.shape)

    def _followed(self, aim: Aim, here: np.ndarray, left: int) -> WayUnderway | None:
        """Return the way under way for an aim, unless what was due did not come about."""
        way = self._way
        if way is None or way.aim != aim or (due := way.due(left)) is None:
            return None
        if way.is_policy and way.place(left) > 0:
            return way  # wherever that led: a policy goes on, though not in another episode
        return way if (np.abs(here - due) <= OFF * self._visited.spread).all() else None

    def _way_for(self, aim: Aim, observation: Any, left: int) -> WayUnderway | None:
        """Return the way under way, or another one where it is off or for something else."""
        here = np.asarray(observation, float).ravel()
        if (followed := self._followed(aim, here, left)) is not None:
            return followed
        if aim == "explore" and len(self.known.rows) < self._idle_until:
            return None
        makers = {"exploit": self._planned, "explore": self._frontier, "probe": self._probing}
        found = makers[aim](here, left) if self.known.program and left > 0 else None
        self._way = WayUnderway(aim, left, found, here) if found and len(found["actions"]) else None
        return self._way

    def _planned(self, here: np.ndarray, left: int) -> Arrays | None:
        """Return what returns most; nothing where no program of the rows could tell plans apart."""
        if self._is_blind:
            return None
        self._find_policy()
        given = self._lasting | {"start": here}
        if self._weights is not None:
            given["weights"] = self._weights
        way = self._way
        if way is not None and way.aim == "exploit" and 0 < way.place(left) < way.length:
            given["before"] = way.found["actions"][way.place(left) :]
            given["worth"] = np.array(way.worth(left))
        options = {"horizon": left, "best": self._best, "usual": self.known.usual_reward}
        found = self._searched("cells:plan", given, **options)
        if found and found["flat"] and self._best > 0:
            found["flat"] = np.array(False)  # to last is worth something
        return found

    def _find_policy(self) -> None:
        """Find a policy in imagination, beginning with that of the program before."""
        if self._has_looked:
            return
        self._has_looked = True
        seen = self._visited.observations
        self._centre, self._scale = np.median(seen, 0), np.maximum(seen.std(0), 1e-3)
        starts = np.array([np.ravel(start) for start in self.known.starts[-16:]], float)
        given = self._lasting | {"starts": starts, "visited": self._savable}
        bound = self._best * self.known.limit if self._best > 0 else None
        options = {"horizon": self.known.limit, "bound": bound, "seed": self.known.seed}
        found = self._ask("policies:improve", given, **options, most=POLICY_WORK)
        self._weights = found["weights"] if found else None

    def _frontier(self, here: np.ndarray, left: int) -> Arrays | None:
        """Return the way that leads farthest out of what was visited."""
        given = self._lasting | {"start": here}
        found = self._searched("cells:reach", given, horizon=left)
        if not found or found["value"] <= NEWS:
            self._idle_until = len(self.known.rows) + IDLE
            return None
        return found | {"reason": np.array("a way out of the visited region")}

    def _probing(self, here: np.ndarray, left: int) -> Arrays | None:
        """Return the way to where the first question that was not tried too often is answered."""
        asked = [*self.known.targets, *self._pursued()]
        for question, box in sorted(asked, key=lambda each: -each.question.weight):
            if self._tried[question.text] < TRIES:
                self._tried[question.text] += 1
                given = self._lasting | {"start": here, "places": box[None]}
                found = self._searched("cells:reach", given, horizon=left)
                return found and found | {"reason": np.array(question.text)}
        return None

    def _searched(self, function: str, arrays: Arrays, **options: Any) -> Arrays | None:
        """Search with the program, for as long as the decisions since the last search earned."""
        most = int(np.clip(self._earned, STEP_WORK, PLAN_WORK))
        before = self.work
        found = self._ask(function, arrays, **options, most=most)
        self._earned = max(0, self._earned - (self.work - before))
        return found

    def _ask(self, function: str, arrays: Arrays, **options: Any) -> Arrays | None:
        """Imagine with the program; `ProgramFailed` where that fails."""
        if self.known.imagination is None:
            return None
        given = arrays | {"shape": np.array(self._shape, int)}
        found = self.known.imagination.ask(function, given, **options)
        self.work += int(found.get("work", 0))
        return found

    # --- what is open

    def questions(self) -> list[OpenQuestion]:
        """Return what limits and extremes leave open."""
        return [each.question for each in self._pursued()]

    @property
    def is_settled(self) -> bool:
        """Whether there is something to go for, or nothing more than what is promised."""
        return bool(self.known.program) and not self._is_blind

    def _pursued(self) -> list[TargetedQuestion]:
        """Return open questions with where they are answered, what matters most first."""
        return sorted([*self._limits(), *self._extremes()], key=lambda each: -each.question.weight)

    def _limits(self) -> list[TargetedQuestion]:
        """Return between which values of a component ends begin: beyond all that lasted."""
        after = self._after
        ends = np.array([row.terminated for row in self.known.rows], np.bool_)
        if not ends.any() or ends.all():
            return []
        causes = []
        for place, sign in product(range(after.shape[1]), (1, -1)):
            values = sign * after[:, place]
            last, mask = values[~ends].max(), ends & (values > values[~ends].max())
            first = values[mask].min() if mask.any() else last
            gap = (first - last) / self._visited.spread[place]
            causes.append((int(mask.sum()), float(gap), place, sign, mask, last, first))
        found, explained = [], np.zeros(len(ends), np.bool_)
        for count, gap, place, sign, mask, last, first in sorted(
            causes, key=lambda each: each[:2], reverse=True
        ):
            if not (mask & ~explained).any():
                continue  # another component explains these ends, and more of them
            explained |= mask
            low, high = sorted((sign * float(last), sign * float(first)))
            name = self.known.component_name(place)
            text = f"the limit of {name} is between {low:.4g} and {high:.4g}"
            if count == 1:
                text += "; only one such end was seen"
            box = _box(after.shape[1], place, low, high)
            region = f"{name} from {low:.4g} to {high:.4g}"
            answers = (
                "an end there lowers the upper bound of the limit, no end raises the lower bound"
            )
            weight = gap * count / ends.sum() + (count == 1)
            found.append(
                TargetedQuestion(OpenQuestion(text, region, None, answers, float(weight)), box)
            )
        return found

    def _extremes(self) -> list[TargetedQuestion]:
        """Return the components that stayed away from their bounds."""
        space, seen, found = self.known.observation_space, self._visited, []
        for place, sign in product(range(len(seen.low)), (1, -1)):
            bound = (space.high if sign > 0 else space.low)[place]
            most = (seen.high if sign > 0 else seen.low)[place]
            if not isfinite(bound) or abs(bound) > FAR or sign * bound <= 0:
                continue
            share, name = max(0.0, float(most / bound)), self.known.component_name(place)
            if share >= ALL_BUT:
                continue
            text = f"{name} reached at most {percent(share)} of its bound {bound:.4g}"
            low, high = (ALL_BUT * bound, np.inf) if sign > 0 else (-np.inf, ALL_BUT * bound)
            beyond = "above" if sign > 0 else "below"
            region = f"{name} {beyond} {ALL_BUT * bound:.4g}"
            answers = "whether an end or another reward occurs there"
            question = OpenQuestion(text, region, None, answers, 0.1 * (1 - share))
            found.append(TargetedQuestion(question, _box(len(seen.low), place, low, high)))
        return found

    # --- what the rows say

    @property
    def _lasting(self) -> Arrays:
        """What every question about the program needs."""
        seen, space = self._visited, self.known.observation_space
        wide = np.array(space.high) - np.array(space.low)
        width = np.where(np.isfinite(wide) & (wide < FAR), wide, seen.spread)
        cell = np.maximum(seen.spread, width) / max(10.0, CELLS ** (1 / len(seen.low)))
        arrays = {"options": self._options, "cell": cell}
        arrays |= {"low": seen.low, "high": seen.high, "spread": seen.spread}
        if self._has_looked:
            arrays |= {"centre": self._centre, "scale": self._scale}
        return arrays

    @property
    def _visited(self) -> Visited:
        """What was observed so far; taken together once for each row."""
        while len(self._seen) < 2 * len(self.known.rows):
            row = self.known.rows[len(self._seen) // 2]
            self._seen += [np.ravel(row.observation), np.ravel(row.next_observation)]
            self._cached = None
        if self._cached is None:
            self._cached = Visited(np.array(self._seen, float))
        return self._cached

    @property
    def _savable(self) -> np.ndarray:
        """Return observations that were followed by some steps: not those before an end."""
        rows = self.known.rows
        lasted = [
            not any(each.terminated for each in rows[place : place + LAST])
            for place in range(len(rows))
        ]
        chosen = [row for row, good in zip(rows, lasted, strict=True) if good] or rows
        return np.array([np.ravel(row.observation) for row in chosen], float)

    @property
    def _after(self) -> np.ndarray:
        return self._visited.observations[1::2]

    @property
    def _best(self) -> float:
        return max((row.reward for row in self.known.rows), default=0.0)

    @property
    def _is_blind(self) -> bool:
        """Whether rewards never vary and no end was seen: then no plan is better than another."""
        rows = self.known.rows
        return not any(row.terminated for row in rows) and len({row.reward for row in rows}) < 2


def _options(space: Space, seed: int) -> np.ndarray:
    """Return the actions that a search tries: all numbered ones, or a grid between the bounds."""
    if space.kind == "discrete":
        return np.arange(int(space.low[0]), int(space.high[0]) + 1)
    low, high = np.array(space.low, float), np.array(space.high, float)
    if len(low) <= LARGEST_GRID:
        return np.array(list(product(*np.linspace(low, high, GRID).T)))
    drawn = np.random.default_rng(seed).uniform(low, high, (DRAWN, len(low)))
    return np.concatenate([(low + high)[None] / 2, drawn, low[None], high[None]])


def _key(observation: Any, action: Any) -> tuple[bytes, bytes]:
    return np.asarray(observation).tobytes(), np.asarray(action).tobytes()


def _box(count: int, place: int, low: float, high: float) -> np.ndarray:
    """Return a box that is bounded in one component only."""
    box = np.repeat([[-np.inf], [np.inf]], count, 1)
    box[:, place] = low, high
    return box
