"""A program as a world model: it predicts, and is planned with, inside the sandbox."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from copy import deepcopy
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import count, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from cwm_cli.data.dataset import Dataset
from cwm_cli.data.spaces import Columns, Space
from cwm_cli.envs.spec import space_of
from cwm_cli.envs.tasks import Task, random_action
from cwm_cli.errors import CwmError
from cwm_cli.planning import Moment
from cwm_cli.sandbox.results import Plan
from cwm_cli.worlds.model import Planning, PlanningSession, Predictions, WorldModel

if TYPE_CHECKING:
    from cwm_cli.sandbox import Sandbox, Session
    from cwm_cli.testing.conftest import Material

ROWS = 509
"""Real rows on which faster forms of a program are compared with it.

A prime, so that no axis of an observation is mistaken for that of the rows.
"""

SECONDS = 2.0
"""How long recording them may take: in slow environments fewer have to do."""


@dataclass(frozen=True)
class ProgramModel(WorldModel):
    """A program that defines what its contract asks for; only the sandbox ever runs it."""

    kind: ClassVar[str] = "program"

    text: str
    sandbox: Sandbox
    name: str = "the program"
    _recorded: dict[Task, tuple[tuple[Space, Space], Columns]] = field(
        default_factory=dict, repr=False, compare=False
    )

    @classmethod
    def example(cls, material: Material) -> Self:
        """Make one that says that nothing changes, for the tests of what plugs in."""
        return cls(
            "class Environment:\n"
            "    def set_state(self, observation):\n"
            "        self.observation = observation\n"
            "    def step(self, action):\n"
            "        return self.observation, 1.0, False\n",
            material.sandbox,
        )

    @property
    def digest(self) -> str:
        """The hash of its text."""
        return sha256(self.text.encode()).hexdigest()

    def describe(self) -> str:
        """Say what it is, in a few words."""
        return self.name

    def predict(self, rows: Dataset, *, seed: int = 0, draws: int = 1) -> Predictions:
        """Ask the program for every row; it says one thing for each, or fails."""
        columns, failure = self.sandbox.predict(self.text, rows, seed=seed)
        return Predictions(columns, failure)

    def open(self, planners: Sequence[Planning], task: Task) -> ProgramSession:
        """Begin to plan with the program, in a confined process of its own."""
        from cwm_cli.sandbox.messages import PlanningJob
        from cwm_cli.sandbox.session import Session

        if task not in self._recorded:
            with closing(task.make()) as env:
                spaces = space_of(env.observation_space), space_of(env.action_space, "actions")
            self._recorded[task] = spaces, random_rows(task, spaces)
        (observations, actions), rows = self._recorded[task]
        job = PlanningJob(
            program=self.text,
            seed=task.seed,
            observation_space=observations,
            action_space=actions,
            columns=rows,
            planners=planners,
            valid=task.valid is not None,
        )
        return ProgramSession(Session(self.sandbox, job))

    def save(self, path: Path) -> None:
        """Write the program to a file."""
        path.write_text(self.text, encoding="utf-8")

    @classmethod
    def load(cls, path: Path, *, sandbox: Sandbox | None = None) -> Self:
        """Read a program from a file."""
        if sandbox is None:
            raise CwmError("a program runs in the sandbox only: name one")
        return cls(path.read_text(encoding="utf-8"), sandbox, str(path))


class ProgramSession(PlanningSession):
    """Plans with a program, from observations."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def plan(self, moments: Sequence[Moment]) -> list[Plan]:
        """Return the next actions at each moment."""
        try:
            plans = self._session.plan(moments)
        except ValueError as error:
            raise CwmError(f"the environment breaks its own rules: {error}") from error
        self.steps, self.report = self._session.steps, self._session.report
        return plans

    def close(self) -> None:
        """End the process of the program."""
        self._session.close()


def random_rows(task: Task, spaces: tuple[Space, Space]) -> Columns:
    """Record up to `ROWS` observations and random actions; slow environments give fewer."""
    pairs = list(islice(_pairs(task), ROWS))
    columns: Columns = {}
    for name, space, values in zip(
        ("observations", "actions"), spaces, zip(*pairs, strict=True), strict=True
    ):
        columns |= space.pack(name, values)
    return columns


def _pairs(task: Task) -> Iterator[tuple[Any, Any]]:
    """Yield observations and random actions of many episodes, for a while."""
    deadline = time.monotonic() + SECONDS
    with closing(task.make()) as env:
        space = deepcopy(env.action_space)
        space.seed(task.seed)
        for number in count():
            observation, _ = env.reset(seed=task.seed + number)
            for _ in range(task.limit):
                action = random_action(space, task.allowed(env))
                yield deepcopy(observation), action
                if time.monotonic() > deadline:
                    return
                observation, _, terminated, truncated, _ = env.step(deepcopy(action))
                if terminated or truncated:
                    break
