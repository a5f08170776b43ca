"""An actor for continuous observations: plans to the end of the episode, and linear policies.

The actor follows the plan or the policy with the higher return in the program. It explores
observations beyond the visited range, and limits at which episodes ended.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import product
from math import isfinite
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from cwm_cli.planning.model import Step
from cwm_learn.actors.base import (
    PLAY_AIMS,
    Actor,
    Aim,
    Intent,
    Knowledge,
    OpenQuestion,
)
from cwm_learn.actors.range_questions import MAX_BOUND, RangeQuestions, VisitedRange
from cwm_learn.search import policies
from cwm_learn.search.cells import MAX_BEAM, MIN_SCORE_GAIN

if TYPE_CHECKING:
    from cwm_cli.data.dataset import Transition
    from cwm_cli.data.spaces import Space

Arrays = dict[str, np.ndarray]

GRID_VALUES, MAX_GRID_COMPONENTS = 3, 3
"""Values per component of the actions that a search tries, and the maximum number of components.
A coarse grid leaves time for more cells (7 values were worse than 3), and plans are polished."""

PLAN_WORK, POLICY_WORK, EXPLORING_WORK = 2_000_000, 4_000_000, 500_000
"""Maximum simulated steps for a plan, for a policy and for a way out of the visited range: about
two, four and half a second of one core. The first programs are often wrong, and exploration in a
wrong program fails after a few steps."""

STEP_WORK, SAVED_WORK, MIN_SEARCH_WORK = 10_000, PLAN_WORK, 100_000
"""Simulated steps that each decision adds to the planning budget, the maximum budget, and the
budget that a search needs. Without that budget, the agent continues a plan although the state
deviates from it. With a new plan at each step, play in a wrong program took 1.3 s per step."""

FINAL_STEPS = 8
"""Policies do not start from the last steps before an end, since no action may prevent that end."""

MAX_END_TRIPS = 5
"""Ways out of the visited range to try while play costs and no end was seen. An end saves the cost
of all later steps, but many environments have no end."""

MAX_TRIES = 2
"""Plans per question; after two plans without an answer, the question is out of reach for now."""


@dataclass
class CurrentPlan:
    """The arrays of a plan, and the steps `left` in the episode and observation at its start."""

    aim: Aim
    left: int
    found: Arrays
    start: np.ndarray

    @property
    def length(self) -> int:
        """The number of actions."""
        return len(self.found["actions"])

    @property
    def is_policy(self) -> bool:
        """Whether the plan comes from a policy, which also covers deviations from the plan."""
        return str(self.found["source"]) == "policy"

    def index(self, left: int) -> int:
        """Return the index of the next action."""
        return self.left - left

    def expected(self, left: int) -> np.ndarray | None:
        """Return the expected observation, None after the end of the plan."""
        index = self.index(left)
        if not 0 <= index < self.length:
            return None
        return self.start if index == 0 else self.found["observations"][index - 1]

    def value(self, left: int) -> float:
        """Return the sum of the remaining rewards."""
        return float(self.found["rewards"][self.index(left) :].sum())


class ContinuousActor(Actor):
    """An actor for observations that are vectors of real numbers."""

    WARMUP_STEPS: ClassVar[int] = 30
    KEEPS_EXCEPTIONS: ClassVar[bool] = False

    def __init__(self, known: Knowledge) -> None:
        super().__init__(known)
        self._shape = known.observation_space.shape
        self._options = _action_options(known.action_space, known.seed)
        self._weights: np.ndarray | None = None
        self._policy_is_current = self._rivals_are_due = False
        self._plan: CurrentPlan | None = None
        self._tries: Counter[str] = Counter()
        self._end_trips = 0
        self._outcomes: dict[tuple[bytes, bytes], Step] = {}
        self._observations: list[np.ndarray] = []
        self._visited_cache: VisitedRange | None = None
        self.work = self._next_exploration = self._last_left = 0
        self._budget = SAVED_WORK

    @classmethod
    def supports(cls, observation_space: Space, action_space: Space) -> bool:
        """Return whether observations are real, and actions are discrete or bounded and real."""
        bounded = all(map(isfinite, (*action_space.low, *action_space.high)))
        acts = action_space.kind == "discrete" or (action_space.is_float and bounded)
        return observation_space.is_float and acts

    # --- predictions

    def rebuild(self) -> None:
        """Drop the plan for the earlier program; a new policy is optimised when needed.

        The first plans in a new program get the whole budget.
        """
        self._plan, self._policy_is_current, self._next_exploration = None, False, 0
        self._budget = SAVED_WORK
        self._rivals_are_due = True

    def observe(self, row: Transition) -> None:
        """Store the outcome of a step."""
        step = Step(row.next_observation, row.reward, row.terminated)
        self._outcomes[_key(row.observation, row.action)] = step
        self._rivals_are_due |= row.terminated

    def predict(self, observation: Any, action: Any) -> Step | None:
        """Return the recorded outcome, or else the prediction of the program."""
        if (known := self._outcomes.get(_key(observation, action))) is not None:
            return known
        if not self.known.program:
            return None
        here, actions = np.asarray(observation, float).reshape(1, -1), np.asarray(action)[None]
        found = self._ask("rollouts:predict_steps", {"observations": here, "actions": actions})
        if not found or found["diverged"][0]:
            return None
        after = found["observations"][0].reshape(self._shape)
        return Step(after, float(found["rewards"][0]), bool(found["ends"][0]))

    def matches(self, predicted: Step, row: Transition) -> bool:
        """Return whether a prediction was correct; terminal observations are not compared."""
        if bool(predicted.terminated) != row.terminated:
            return False
        # maximum error of a correct prediction, in units of the data; float32 causes about 1e-7
        prediction_tolerance = 1e-4
        if abs(predicted.reward - row.reward) > prediction_tolerance * (1 + abs(row.reward)):
            return False
        after = np.asarray(row.next_observation, float)
        error = np.abs(np.asarray(predicted.observation, float) - after).ravel()
        scale = self._visited.spread + np.abs(after.ravel())
        return row.terminated or bool((error <= prediction_tolerance * scale).all())

    # --- decisions

    def promised_return(self, observation: Any, left: int) -> float | None:
        """Return the predicted return of the better of plan and policy."""
        plan = self._plan_for("exploit", observation, left)
        return None if plan is None or plan.found["flat"] else plan.value(left)

    def choose(self, observation: Any, left: int, aim: Aim | None = None) -> Intent | None:
        """Return the next action of the plan for an aim."""
        if left != self._last_left:
            self._budget = min(SAVED_WORK, self._budget + STEP_WORK)
            self._last_left = left
        if aim == "probe":
            for each in self.known.targets:
                if each.question.action is not None and each.contains(np.ravel(observation)):
                    return Intent(each.question.action, aim, each.question.text)
        if aim is None:
            aim = self._free_aim(observation, left)
        plan = self._plan_for("exploit" if aim == "verify" else aim, observation, left)
        if plan is None:
            return None
        action = self._action(plan, observation, left)
        if aim not in PLAY_AIMS:
            return Intent(action, aim, str(plan.found["reason"]))
        reasons = "the plan with the highest return", "a policy optimised in the program"
        return Intent(action, aim, reasons[plan.is_policy], plan.value(left))

    def _free_aim(self, observation: Any, left: int) -> Aim:
        """Return the aim of a step if the learner requires none."""
        here = np.asarray(observation, float).ravel()
        for aim in ("probe", "explore"):
            if self._continue_plan(aim, here, left) is not None:
                return aim
        if self.promised_return(observation, left) is None:
            return "explore"
        if self._probe_rivals(here, left):
            return "probe"
        return "explore" if self._seek_end(here, left) else "exploit"

    def _seek_end(self, here: np.ndarray, left: int) -> bool:
        """Return whether a new plan leaves the visited range to look for an end of the episode.

        Trips are tried while no end was seen, and the best plan costs more than an end would.
        """
        plan = self._plan
        is_tried = self._end_trips >= MAX_END_TRIPS or self._is_out_of_work
        if is_tried or plan is None or plan.value(left) >= 0 or self._has_ended:
            return False
        trip = self._plan_for("explore", here, left)
        if trip is None:
            return False
        self._end_trips += 1
        trip.found["reason"] = np.array("steps cost, so look for an end beyond the visited region")
        return True

    def _probe_rivals(self, here: np.ndarray, left: int) -> bool:
        """Return whether a new plan leads to a place that decides between rival causes of ends.

        This is tried once after each program and each end, and only if play avoids the ends:
        otherwise play itself tests the cause.
        """
        plan = self._plan
        if not self._rivals_are_due or plan is None or plan.found["ended"]:
            return False
        self._rivals_are_due = False
        # maximum simulated steps for a plan to a place that decides between causes
        rival_work = 200_000
        for question, boxes in self._range_questions.rivals():
            if self._tries[question.text] >= MAX_TRIES:
                continue
            self._tries[question.text] += 1
            arrays = self._arrays | {"start": here, "boxes": boxes}
            found = self._search("cells:reach", arrays, rival_work, horizon=left)
            if found and found["value"] >= -MIN_SCORE_GAIN:
                found |= {"reason": np.array(question.text)}
                self._plan = CurrentPlan("probe", left, found, here)
                return True
        return False

    def _action(self, plan: CurrentPlan, observation: Any, left: int) -> Any:
        """Return the next action of a plan, in the type of the environment."""
        here, index = np.asarray(observation, float), plan.index(left)
        action = plan.found["actions"][index]
        if plan.is_policy and self._weights is not None:
            weights = self._weights[None]
            action = policies.act(weights, here.reshape(-1, 1, 1), self._arrays)[..., 0, 0]
        elif "gains" in plan.found:
            deviation = here.ravel() - plan.expected(left)
            action = action + plan.found["gains"][index] @ deviation
            action = np.clip(action, self._options.min(0), self._options.max(0))
        space = self.known.action_space
        if space.kind == "discrete":
            return int(action)
        return np.asarray(action, space.dtype).reshape(space.shape)

    def _continue_plan(self, aim: Aim, here: np.ndarray, left: int) -> CurrentPlan | None:
        """Return the current plan for an aim, unless the observation deviates from it."""
        plan = self._plan
        if plan is None or plan.aim != aim or (expected := plan.expected(left)) is None:
            return None
        follows = plan.is_policy or self._is_out_of_work
        if follows and plan.index(left) > 0:  # at index 0 a new episode may have begun
            return plan
        # replan when a component deviates from the plan by this share of its spread
        plan_tolerance = 0.01
        close = np.abs(here - expected) <= plan_tolerance * self._visited.spread
        return plan if close.all() else None

    def _plan_for(self, aim: Aim, observation: Any, left: int) -> CurrentPlan | None:
        """Return the current plan, or a new one if it has another aim or the state deviates."""
        here = np.asarray(observation, float).ravel()
        if (plan := self._continue_plan(aim, here, left)) is not None:
            return plan
        if aim == "explore" and len(self.known.rows) < self._next_exploration:
            return None
        makers = {"exploit": self._exploit, "explore": self._explore, "probe": self._probe}
        found = makers[aim](here, left) if self.known.program and left > 0 else None
        if not found or not len(found["actions"]):
            return None
        self._plan = CurrentPlan(aim, left, found, here)
        return self._plan

    def _exploit(self, here: np.ndarray, left: int) -> Arrays | None:
        """Return the plan with the highest return."""
        if not self.is_settled:
            return None
        self._optimise_policy()
        arrays = self._arrays | {"start": here}
        if self._weights is not None:
            arrays["weights"] = self._weights
        plan = self._plan
        if plan is not None and plan.aim == "exploit" and 0 < plan.index(left) < plan.length:
            arrays["previous"] = plan.found["actions"][plan.index(left) :]
            arrays["previous_value"] = np.array(plan.value(left))
        rewards: dict[str, Any] = {
            "max_reward": self._max_reward,
            "usual_reward": self.known.usual_reward,
        }
        found = self._search("cells:plan", arrays, horizon=left, **rewards)
        if found and found["flat"] and self._max_reward > 0:
            found["flat"] = np.array(False)  # longer episodes have higher returns
        return found

    def _optimise_policy(self) -> None:
        """Optimise the policy in the program, once per program, from the earlier policy.

        Episodes that a search with the widest beam covers need no policy.
        """
        widest = 2 * self.known.limit * len(self._options) * MAX_BEAM
        if self._policy_is_current or widest <= PLAN_WORK:
            return
        self._policy_is_current = True
        observations = self._visited.observations
        self._centre = np.median(observations, 0)
        self._scale = np.maximum(observations.std(0), 1e-3)
        limit, max_reward = self.known.limit, self._max_reward
        starts = np.array([np.ravel(start) for start in self.known.starts[-16:]], float)
        found = self._ask(
            "policies:improve",
            self._arrays | {"starts": starts, "visited": self._early_observations()},
            horizon=limit,
            bound=max_reward * limit if max_reward > 0 else None,
            seed=self.known.seed,
            budget=POLICY_WORK,
        )
        self._weights = found["weights"] if found else None

    def _early_observations(self) -> np.ndarray:
        """Return observations that are not among the last `FINAL_STEPS` before an end."""
        rows = self.known.rows
        kept = [
            row
            for place, row in enumerate(rows)
            if not any(each.terminated for each in rows[place : place + FINAL_STEPS])
        ]
        return np.array([np.ravel(row.observation) for row in kept or rows], float)

    def _explore(self, here: np.ndarray, left: int) -> Arrays | None:
        """Return the plan that leads farthest out of the visited range.

        Without work for a search, the plan has random actions.
        """
        # steps until the next search for unvisited observations, if the last search found none
        explore_interval = 10
        if self._is_out_of_work:
            rng = np.random.default_rng([self.known.seed, len(self.known.rows), left])
            count = min(left, explore_interval)
            return {
                "actions": rng.choice(self._options, count),
                "observations": np.full((count, len(here)), np.nan),
                "source": np.array("nothing"),
                "reason": np.array("random actions until there is time for a plan"),
            }
        arrays = self._arrays | {"start": here}
        found = self._search("cells:reach", arrays, EXPLORING_WORK, horizon=left)
        # minimum distance of a new observation from the visited range, in spreads of the data
        min_novelty = 0.01
        if not found or found["value"] <= min_novelty:
            self._next_exploration = len(self.known.rows) + explore_interval
            return None
        return found | {"reason": np.array("a way out of the visited region")}

    def _probe(self, here: np.ndarray, left: int) -> Arrays | None:
        """Return a plan to the region of the most important question with tries left."""
        questions = [*self.known.targets, *self._range_questions.own()]
        for question, box in sorted(questions, key=lambda each: -each.question.weight):
            if self._tries[question.text] < MAX_TRIES:
                self._tries[question.text] += 1
                arrays = self._arrays | {"start": here, "boxes": box[None]}
                found = self._search("cells:reach", arrays, horizon=left)
                return found and found | {"reason": np.array(question.text)}
        return None

    @property
    def _is_out_of_work(self) -> bool:
        """Whether the planning budget is too small for a search."""
        return self._budget < MIN_SEARCH_WORK

    def _search(
        self, function: str, arrays: Arrays, most: int = PLAN_WORK, **options: Any
    ) -> Arrays | None:
        """Call a search with the planning budget, at most `most`, and subtract its work."""
        before = self.work
        budget = int(np.clip(self._budget, MIN_SEARCH_WORK, most))
        found = self._ask(function, arrays, **options, budget=budget)
        self._budget -= self.work - before
        return found

    def _ask(self, function: str, arrays: Arrays, **options: Any) -> Arrays | None:
        """Call a function in the process of the program; raise `ProgramFailed` if that fails."""
        if self.known.imagination is None:
            return None
        shape = {"shape": np.array(self._shape, int)}
        found = self.known.imagination.ask(function, arrays | shape, **options)
        self.work += int(found.get("work", 0))
        return found

    # --- open questions

    def questions(self) -> list[OpenQuestion]:
        """Return the questions about limits and bounds."""
        asked = self._range_questions
        rivals = [question for question, _ in asked.rivals()]
        return [*rivals, *(each.question for each in asked.own())]

    @property
    def is_settled(self) -> bool:
        """Whether the rows can rank plans: their rewards vary, or an end was recorded."""
        rows = self.known.rows
        varies = self._has_ended or len({row.reward for row in rows}) > 1
        return bool(self.known.program) and varies

    @property
    def _has_ended(self) -> bool:
        """Whether a recorded transition ended its episode."""
        return any(row.terminated for row in self.known.rows)

    @property
    def _range_questions(self) -> RangeQuestions:
        return RangeQuestions(self.known, self._visited)

    # --- statistics of the rows

    @property
    def _arrays(self) -> Arrays:
        """The arrays for every search and policy."""
        visited, space = self._visited, self.known.observation_space
        width = np.array(space.high) - np.array(space.low)
        usable = np.isfinite(width) & (width < MAX_BOUND)
        width = np.maximum(visited.spread, np.where(usable, width, visited.spread))
        # approximate number of cells of the visited range; each component has at least 10
        cells = 20_000
        cell = width / max(10.0, cells ** (1 / len(width)))
        arrays = {"options": self._options, "cell": cell}
        arrays |= {"low": visited.low, "high": visited.high, "spread": visited.spread}
        if self._policy_is_current:
            arrays |= {"centre": self._centre, "scale": self._scale}
        return arrays

    @property
    def _visited(self) -> VisitedRange:
        """The range of all observations so far, computed once per row."""
        seen, new = self._observations, self.known.rows[len(self._observations) // 2 :]
        for row in new:
            seen += [np.ravel(row.observation), np.ravel(row.next_observation)]
        if self._visited_cache is None or new:
            self._visited_cache = VisitedRange(np.array(seen, float))
        return self._visited_cache

    @property
    def _max_reward(self) -> float:
        return max((row.reward for row in self.known.rows), default=0.0)


def _action_options(space: Space, seed: int) -> np.ndarray:
    """Return the actions that a search tries: all discrete ones, a grid, or random ones."""
    if space.kind == "discrete":
        return np.arange(int(space.low[0]), int(space.high[0]) + 1)
    low, high = np.array(space.low, float), np.array(space.high, float)
    if len(low) <= MAX_GRID_COMPONENTS:
        return np.array(list(product(*np.linspace(low, high, GRID_VALUES).T)))
    random_actions = 32  # random actions that a search tries if actions have more components
    drawn = np.random.default_rng(seed).uniform(low, high, (random_actions, len(low)))
    return np.concatenate([(low + high)[None] / 2, drawn, low[None], high[None]])


def _key(observation: Any, action: Any) -> tuple[bytes, bytes]:
    return np.asarray(observation).tobytes(), np.asarray(action).tobytes()
