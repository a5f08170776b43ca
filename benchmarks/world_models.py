"""Planning in world models, with our planners in the sandbox and with the published ones."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Any

import gymnasium as gym
import numpy as np

from benchmarks.published import Entropy, ResetProgram, cem, mcts
from cwm_cli.envs.spec import space_of
from cwm_cli.envs.tasks import Task
from cwm_cli.planning import Moment
from cwm_cli.sandbox import Limits, Sandbox
from cwm_cli.worlds.messages import PlanningJob
from cwm_cli.worlds.program import ProgramSession, random_rows

PROGRAMS = Path(__file__).parent.parent / "tests" / "support" / "world_models"

LIMITS = Limits(wall_seconds=600, cpu_seconds=600, stall_seconds=10)

Act = Callable[[int], int]
"""Makes the decision or plan of a number, and returns the number of model steps."""


class WorldModel:
    """A hand-written program and the environment that it predicts."""

    def __init__(self, name: str, env_id: str) -> None:
        self._text = (PROGRAMS / f"{name}.py").read_text()
        self._env_id = env_id
        self._env = gym.make(env_id)
        self._starts = [self._env.reset(seed=seed)[0] for seed in range(64)]

    def trees(self) -> Act:
        """Return the published tree search."""

        def act(number: int) -> int:
            return mcts(self._program_at(number), range(2), Random(number)).steps

        return act

    def plans(self, entropy: Entropy) -> Act:
        """Return the published cross-entropy method."""
        space = self._env.action_space
        assert isinstance(space, gym.spaces.Box)
        bounds = space.low.astype(float), space.high.astype(float)

        def act(number: int) -> int:
            rng = np.random.default_rng(number)
            return cem(self._program_at(number), bounds, rng, entropy).steps

        return act

    def session(
        self, planner: str, *, episodes: int = 1, workers: int = 1, preset: str = "paper"
    ) -> Callable[[], AbstractContextManager[Act]]:
        """Return a function that opens a session per worker, and plans for episodes in each.

        Without a preset, the planner has its default options.
        """

        @contextmanager
        def ours() -> Iterator[Act]:
            with ExitStack() as stack, ThreadPoolExecutor(workers) as pool:
                sessions = [
                    stack.enter_context(self._open(planner, preset)) for _ in range(workers)
                ]

                def plan(session: ProgramSession, number: int) -> None:
                    moments = [
                        Moment(episode, number, self._start(number + episode), 200)
                        for episode in range(episodes)
                    ]
                    failures = [plan.failure for plan in session.plan(moments) if plan.failure]
                    assert not failures, failures[0]

                def act(number: int) -> int:
                    before = sum(session.steps for session in sessions)
                    if workers == 1:
                        plan(sessions[0], number)
                    else:
                        list(pool.map(plan, sessions, range(number, number + workers)))
                    return sum(session.steps for session in sessions) - before

                yield act

        return ours

    @contextmanager
    def _open(self, planner: str, preset: str) -> Iterator[ProgramSession]:
        """Open a session with a planner in its own sandbox."""
        env = self._env
        spaces = space_of(env.observation_space), space_of(env.action_space, "actions")
        task = Task(lambda: gym.make(self._env_id), seed=0, limit=200)
        columns = random_rows(task, spaces)
        with Sandbox(LIMITS, workers=1) as box:
            job = PlanningJob(
                program=self._text,
                observation_space=spaces[0],
                action_space=spaces[1],
                columns=columns,
                planners=[(planner, {"preset": preset} if preset else {})],
                examples=columns["observations"],
            )
            yield ProgramSession(box, job)

    def _start(self, number: int) -> np.ndarray:
        """Return an initial observation."""
        start: np.ndarray = self._starts[number % len(self._starts)]
        return start

    def _program_at(self, number: int) -> ResetProgram:
        """Return the program at an initial observation, for the published planners."""
        model = ResetProgram(self._environment, self._start(number).astype(float))
        self._environment.set_state(model.observation)
        return model

    @cached_property
    def _environment(self) -> Any:
        """The `Environment` of the program, outside of the sandbox."""
        names: dict[str, Any] = {}
        exec(self._text, names)
        return names["Environment"]()
