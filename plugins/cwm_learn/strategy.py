"""The seam of other ways to learn online: a strategy runs an outer loop of its own.

Without `--strategy` the loop of this package learns. A published agent has another loop, and so
another use of the same things: environments to act in, a sandbox, whoever answers questions, and
budgets. They come as a `LearningSession`, which counts what is used up and keeps what there is.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Any, ClassVar

from cwm_cli.presets import WithPresets
from cwm_cli.runs.observer import SILENT, Observer
from cwm_cli.search.models import InFlight

if TYPE_CHECKING:
    from cwm_cli.data.dataset import Transition
    from cwm_cli.data.objects import ObjectSchema
    from cwm_cli.envs.tasks import Task
    from cwm_cli.sandbox import Sandbox
    from cwm_cli.search.contracts import Backend, Completion, Request
    from cwm_learn.runs import SavedModel


@dataclass(frozen=True)
class LearningTask:
    """An environment to learn, by name: the task, what its objects stand for, its actions' names.

    Actions that nobody named are called by their numbers.
    """

    name: str
    task: Task
    schema: ObjectSchema | None = None
    actions: tuple[str, ...] = ()


@dataclass
class LearningSession:
    """What a strategy learns with: environments, a sandbox, whoever answers, and budgets.

    The `tasks` are learned in their order, as a curriculum. A strategy tells of each step with
    `stepped`, of each episode with `ended`, of each program with `wrote`, of a model that it
    trained with `trained`, asks by `complete`, and stops when it is `over`. Whoever keeps a run
    overrides these, and calls what they override.
    """

    tasks: Sequence[LearningTask]
    sandbox: Sandbox
    backend: Backend | None = None
    in_flight: InFlight = field(default_factory=InFlight)
    """Requests to the backend that have no answer yet."""
    seed: int = 0
    goal: str | None = None
    """What is to be reached instead of the mission, in words."""
    steps: float = inf
    seconds: float = inf
    completions: float = inf
    max_cost: float = inf
    observer: Observer = SILENT
    program: str = ""
    """The last program that was written."""
    rows: list[Transition] = field(default_factory=list)
    """Every step so far, in all of the environments."""
    returns: list[tuple[int, float, str]] = field(default_factory=list)
    """Of each episode: the steps up to its end, the return, and what it was played for."""
    asked: int = 0
    cost: float = 0.0
    began: float = field(default_factory=time.monotonic)

    @property
    def over(self) -> str:
        """Which budget is used up; "" while none is."""
        used = {
            "steps": len(self.rows) >= self.steps,
            "seconds": time.monotonic() - self.began >= self.seconds,
            "completions": self.asked >= self.completions,
            "money": self.cost >= self.max_cost,
        }
        return next((name for name, is_over in used.items() if is_over), "")

    def stepped(self, row: Transition, *, aim: str, mismatched: bool = False) -> None:
        """Take a step in: what it was for, and whether a program had predicted it otherwise."""
        self.rows.append(row)

    def ended(self, returned: float, *, aim: str) -> None:
        """Hear that an episode is over."""
        self.returns.append((len(self.rows), returned, aim))

    def wrote(self, program: str, note: str = "") -> None:
        """Keep a program that is acted on from now on; the note says why it was written."""
        self.program = program

    def trained(self, trainer: str, options: Mapping[str, Any], training: SavedModel) -> None:
        """Keep a model that was trained: by which trainer, with which of its options."""

    def complete(self, request: Request) -> Completion:
        """Ask whoever answers, and count what that took."""
        if self.backend is None:
            raise ValueError("there is no language model to ask")
        completion = self.backend.complete(request)
        self.asked += 1
        self.cost += completion.usage.cost or 0.0
        return completion


class LearningStrategy(WithPresets):
    """Learns environments by acting in them, in a loop of its own.

    A dataclass whose fields are its options (`-o strategy.KEY=VALUE`), with their meaning in the
    docstring under each. `learn` resets and steps the environments of the session and nothing
    else, runs generated code in the session's sandbox only, and returns when the session is over or
    nothing is left to learn. All that is random follows from the seed of the session.

        @dataclass
        class Wanderer(LearningStrategy):
            def learn(self, session):
                task = session.tasks[0].task
                with closing(task.make()) as env:
                    ...
    """

    needs_answers: ClassVar[bool] = False
    """Whether it cannot do without whoever answers: a language model, or an offline backend."""

    def learn(self, session: LearningSession) -> None:
        """Learn the tasks of a session; `session.program` is what came of it."""
        raise NotImplementedError
