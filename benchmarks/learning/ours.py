"""Learn an environment with `cwm learn`, and measure its play meanwhile.

Measurements play 20 fresh episodes with seeds that learning never uses, and the learner does not
learn from them. Each certificate is checked with further steps of the same play.
"""

import shutil
import time
import traceback
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from benchmarks.learning.evaluation import play_episodes
from benchmarks.learning.goals import Goal
from cwm_cli.runs.observer import Observer
from cwm_learn.certificate import Certificate
from cwm_learn.learn import learn
from cwm_learn.learner import Learner

EPISODES, FIRST_EPISODES = 20, 2
"""Episodes of a measurement; it stops after the first ones if their return is too low."""

CHECK_STEPS = 5000
"""Further steps of play that check a certificate."""

LEARNING_SECONDS = 120.0
"""Time limit for learning, without measurements."""

MEASURING_SECONDS = 120.0
"""Time limit of a measurement, and of all measurements before another one starts. A measurement
that exceeds it does not count, and after the total no return is measured before the end of
learning. The goal then counts as not reached, although later play may reach it."""

FIRST_SEED = 10_000_019
"""First seed of measurements."""


class Case(NamedTuple):
    """The name of a goal, and a seed."""

    name: str
    seed: int


class CallingWrapper(gym.Wrapper[Any, Any, Any, Any]):
    """An environment that calls a function before each reset (with True) and step (False)."""

    def __init__(self, env: gym.Env[Any, Any], before: Callable[[bool], None]) -> None:
        super().__init__(env)
        self._before = before

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Call the function, then reset."""
        self._before(True)
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Call the function, then step."""
        self._before(False)
        return self.env.step(action)


class Measuring(Observer):
    """Measures play after new programs and episodes until the return is reached, and at the end."""

    learner: Learner | None = None

    def __init__(self, goal: Goal, returned: float, seed: int) -> None:
        self.goal, self.returned = goal, returned
        self._seeds = iter(range(FIRST_SEED * (seed + 1), FIRST_SEED * (seed + 2)))
        self.seconds = 0.0
        self.began = time.monotonic()
        self.facts: dict[str, Any] = {"hit": None, "hit_seconds": None, "curve": []}
        self._programs = 0
        self._final_returns: list[float] = []

    def begins(self, work: object) -> None:
        """Wrap the environment of the learner."""
        if isinstance(work, Learner):
            self.learner = work
            environment = work.environment
            environment.env = CallingWrapper(environment.env, self._before_action)

    def _before_action(self, is_reset: bool) -> None:
        """Measure play after a new program, or after an episode with news."""
        learner = self.learner
        assert learner is not None
        last = learner.episodes[-1] if is_reset and learner.episodes else None
        changed = len(learner.programs) > self._programs
        changed |= last is not None and (last.mismatched > 0 or not last.is_play)
        if self.facts["hit"] is None and changed and learner.known.program:
            self._programs = len(learner.programs)
            if self.seconds < MEASURING_SECONDS:
                self._measure(learner)

    def advanced(self, event: object) -> None:
        """Check a certificate when the learner issues it."""
        if isinstance(event, Certificate):
            self.facts["certificate"] = event.model_dump(mode="json")
            assert self.learner is not None
            self.facts["checked"] = self._check(event, self.learner)

    def ends(self) -> None:
        """Measure the final play."""
        learner = self.learner
        if learner and learner.known.program:
            same = len(learner.programs) == self._programs and self._final_returns
            returns = self._final_returns if same else self._play(learner, EPISODES)
            if len(returns) == EPISODES:  # otherwise the time was over: not reached
                self.facts["final"] = float(np.mean(returns))
                self.facts["lowest"] = float(min(returns))

    def _measure(self, learner: Learner) -> None:
        """Play fresh episodes; stop early if the first ones return too little."""
        returns = self._play(learner, FIRST_EPISODES)
        if len(returns) < FIRST_EPISODES:
            return
        if np.mean(returns) >= self.returned - 0.05 * abs(self.returned):
            returns += self._play(learner, EPISODES - FIRST_EPISODES)
        self.facts["curve"].append((learner.steps, float(np.mean(returns))))
        enough = self.goal.lowest is None or min(returns) >= self.goal.lowest
        if len(returns) == EPISODES and np.mean(returns) >= self.returned and enough:
            seconds = time.monotonic() - self.began - self.seconds
            self._final_returns = returns
            self.facts |= {"hit": learner.steps, "hit_seconds": round(seconds, 2)}

    def _play(self, learner: Learner, count: int) -> list[float]:
        """Return the returns of fresh episodes, outside the time limit of learning.

        A measurement that exceeds its time limit returns fewer episodes.
        """
        began, planning = time.monotonic(), learner.actor.planning_seconds
        seeds = [next(self._seeds) for _ in range(count)]
        returns = [played.returned for played in play_episodes(learner, seeds, MEASURING_SECONDS)]
        learner.actor.planning_seconds = planning
        self._extend_budget(learner, began)
        return returns

    def _extend_budget(self, learner: Learner, began: float) -> None:
        """Add the time of a measurement to the time limit of learning."""
        self.seconds += time.monotonic() - began
        limit = LEARNING_SECONDS + self.seconds
        learner.budget = learner.budget._replace(seconds=limit)

    def _check(self, certificate: Certificate, learner: Learner) -> dict[str, Any]:
        """Count first mismatches of further episodes, and the steps up to them."""
        began, planning = time.monotonic(), learner.actor.planning_seconds
        steps, wrong = 0, 0
        with closing(play_episodes(learner, self._seeds, MEASURING_SECONDS)) as episodes:
            for played in episodes:
                steps += played.mismatch or played.length
                wrong += played.mismatch is not None
                if steps >= CHECK_STEPS:
                    break
        learner.actor.planning_seconds = planning
        self._extend_budget(learner, began)
        return {"steps": steps, "mismatches": wrong, "holds": certificate.holds(wrong, steps)}


def measure(goal: Goal, returned: float, seed: int) -> dict[str, Any]:
    """Learn once; return the measurements, or the error."""
    folder = Path(mkdtemp(prefix="learning-"))
    measuring = Measuring(goal, returned, seed)
    try:
        result = learn(
            goal.env,
            env_args=goal.args,
            steps=goal.max_steps,
            seconds=LEARNING_SECONDS,
            seed=seed,
            run=folder / "run",
            observer=measuring,
        )
        facts = {
            "steps": result.steps,
            "stopped": result.stopped,
            "changed": result.changed,
            "refits": result.refits,
            "writing_seconds": result.writing_seconds,
            "planning_seconds": result.planning_seconds,
            "program": result.program.read_text() if result.program else None,
        }
    except Exception as error:  # noqa: BLE001 - a seed with an error has not reached the goal
        traceback.print_exc()
        facts = {"error": f"{type(error).__name__}: {error}"}
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    seconds = time.monotonic() - measuring.began - measuring.seconds
    return measuring.facts | facts | {"seconds": round(seconds, 2)}
