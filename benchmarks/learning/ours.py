"""Learn an environment with `cwm learn`, and measure on the way how well it plays by now.

What is measured is never learned from: 20 fresh episodes of seeds that no learning meets. A
certificate is checked with further steps of the same play, which end no episode early.
"""

import shutil
import time
import traceback
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from benchmarks.learning.goals import Goal
from cwm_cli.data.dataset import Transition
from cwm_cli.data.spaces import Space
from cwm_cli.runs.observer import Observer
from cwm_learn.certificate import Certificate
from cwm_learn.learn import learn
from cwm_learn.learner import Learner

FRESH, FIRST = 20, 2
"""Episodes of a measurement, and after how many of them it may be given up as hopeless."""

FURTHER = 5000
"""Steps of its own play with which a certificate is checked."""

SECONDS = 120.0
"""For learning, measurements not counted."""

MEASURING = 600.0
"""For measurements: slow play is measured less often."""

SEEDS = 10_000_019
"""Seeds of measurements begin here."""


class Case(NamedTuple):
    """A goal by name, and a seed."""

    name: str
    seed: int


class Asked(gym.Wrapper[Any, Any, Any, Any]):
    """An environment before whose every reset and step something else is done."""

    def __init__(self, env: gym.Env[Any, Any], before: Callable[[bool], None]) -> None:
        super().__init__(env)
        self._before = before

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset, after that."""
        self._before(True)
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step, after that."""
        self._before(False)
        return self.env.step(action)


class Measuring(Observer):
    """Measures play after each program and episode until the return is reached, and in the end."""

    def __init__(self, goal: Goal, returned: float, seed: int) -> None:
        self.goal, self.returned = goal, returned
        self._seeds = iter(range(SEEDS * (seed + 1), SEEDS * (seed + 2)))
        self.learner: Learner | None = None
        self.seconds = 0.0
        self.began = time.monotonic()
        self.facts: dict[str, Any] = {"hit": None, "hit_seconds": None, "curve": []}
        self._programs = 0
        self._good: list[float] = []

    def begins(self, work: object) -> None:
        """Hear who learns, and be asked before it acts."""
        if isinstance(work, Learner):
            self.learner = work
            work.env = Asked(work.env, self.before)

    def before(self, begins: bool) -> None:
        """Measure where there is another program, or an episode begins after more was seen."""
        learner = self.learner
        assert learner is not None
        last = learner.episodes[-1] if begins and learner.episodes else None
        changed = len(learner.programs) > self._programs
        changed |= last is not None and (last.mismatched > 0 or not last.is_play)
        if self.facts["hit"] is None and changed and learner.known.program:
            self._programs = len(learner.programs)
            if self.seconds < MEASURING:
                self._measure()

    def advanced(self, event: object) -> None:
        """Check a certificate as soon as it is given."""
        if isinstance(event, Certificate):
            self.facts["certificate"] = event.model_dump(mode="json")
            self.facts["checked"] = self._checked(event)

    def ends(self) -> None:
        """Measure what came of it."""
        learner = self.learner
        if learner and learner.known.program:
            same = len(learner.programs) == self._programs and self._good
            returns = self._good if same else self._play(FRESH)
            self.facts["final"] = float(np.mean(returns))
            self.facts["lowest"] = float(min(returns))

    def _measure(self) -> None:
        """Play fresh episodes; a few of them show most of what is not good enough yet."""
        learner = self.learner
        assert learner is not None
        returns = self._play(FIRST)
        if np.mean(returns) >= self.returned - 0.05 * abs(self.returned):
            returns += self._play(FRESH - FIRST)
        self.facts["curve"].append((learner.steps, float(np.mean(returns))))
        enough = self.goal.lowest is None or min(returns) >= self.goal.lowest
        if len(returns) == FRESH and np.mean(returns) >= self.returned and enough:
            spent = time.monotonic() - self.began - self.seconds
            self._good = returns
            self.facts |= {"hit": learner.steps, "hit_seconds": round(spent, 2)}

    def _play(self, count: int) -> list[float]:
        """Play without learning, on a clock of its own."""
        learner, began = self.learner, time.monotonic()
        assert learner is not None
        planning = learner.planning_seconds
        seeds = [next(self._seeds) for _ in range(count)]
        returns = [played.returned for played in learner.play(seeds)]
        learner.planning_seconds = planning
        self._spent(began)
        return returns

    def _spent(self, began: float) -> None:
        """Give learning the time back that measuring took."""
        self.seconds += time.monotonic() - began
        assert self.learner is not None
        self.learner.budget = self.learner.budget._replace(seconds=SECONDS + self.seconds)

    def _checked(self, certificate: Certificate) -> dict[str, Any]:
        """Count mismatches in further steps; of an episode the first, and the steps up to it."""
        learner, began = self.learner, time.monotonic()
        assert learner is not None
        actor, known, steps, wrong = learner.actor, learner.known, 0, 0
        env = learner.task.make()
        while steps < FURTHER and time.monotonic() - began < MEASURING:
            observation = plain(known.observation_space, env.reset(seed=next(self._seeds))[0])
            for left in range(known.limit, 0, -1):
                intent = actor.choose(observation, left, "exploit")
                action = intent.action if intent else env.action_space.sample()
                predicted = actor.predict(observation, action)
                found, reward, terminated, truncated, _ = env.step(deepcopy(action))
                following = plain(known.observation_space, found)
                ended, cut = bool(terminated), bool(truncated)
                row = Transition(observation, action, following, float(reward), ended, cut)
                steps, observation = steps + 1, following
                if predicted is None or not actor.matches(predicted, row):
                    wrong += 1
                    break
                if terminated or truncated:
                    break
        env.close()
        self._spent(began)
        return {"steps": steps, "mismatches": wrong, "holds": certificate.holds(wrong, steps)}


def plain(space: Space, value: Any) -> Any:
    """Return a value as the rows of a dataset have it."""
    return space.unpack("value", space.pack("value", [value]), 0)


def measured(goal: Goal, returned: float, seed: int) -> dict[str, Any]:
    """Learn once; return what came of it, also where that is an error."""
    folder = Path(mkdtemp(prefix="learning-"))
    measuring = Measuring(goal, returned, seed)
    try:
        result = learn(
            goal.env,
            env_args=goal.args,
            steps=goal.most,
            seconds=SECONDS,
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
    except Exception as error:  # noqa: BLE001 - a seed that breaks has not reached anything
        traceback.print_exc()
        facts = {"error": f"{type(error).__name__}: {error}"}
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    spent = time.monotonic() - measuring.began - measuring.seconds
    return measuring.facts | facts | {"seconds": round(spent, 2)}
