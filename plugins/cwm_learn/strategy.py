"""Base class of learning strategies, and the session that they learn in.

`cwm learn` has a learning loop of its own. A published agent may need another loop over the same
parts: environments, a sandbox, a language model and budgets. A `LearningSession` provides these
parts, counts their use and stores the results.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

from cwm_cli.presets import WithPresets
from cwm_cli.runs.observer import SILENT, Observer
from cwm_cli.search.models import InFlight
from cwm_cli.search.threads import run_in_thread
from cwm_cli.worlds.remote import OutOfTime

if TYPE_CHECKING:
    from cwm_cli.data.dataset import Transition
    from cwm_cli.data.objects import ObjectSchema
    from cwm_cli.envs.tasks import Task
    from cwm_cli.sandbox import Sandbox
    from cwm_cli.search.contracts import Backend, Completion, Request
    from cwm_learn.runs import SavedModel

Work = Literal["writing", "planning"]
"""Kinds of work whose time a result reports."""

T = TypeVar("T")


@dataclass(frozen=True)
class LearningTask:
    """An environment to learn: its name, its task, its object classes and its action names.

    Actions without a name are identified by their numbers.
    """

    name: str
    task: Task
    schema: ObjectSchema | None = None
    actions: tuple[str, ...] = ()


@dataclass
class LearningSession:
    """Everything that a strategy learns with: environments, sandbox, language model, budgets.

    A strategy learns the `tasks` in order, as a curriculum. It calls `stepped` after each step,
    `ended` after each episode, `wrote` with each program, `trained` with each trained model, and
    `complete` for a completion. It returns when `over` is not empty. A subclass that overrides
    these methods must call the base methods.

    A continued run repeats the strategy from the first step on. `compute` returns the recorded
    results of long computations, so that only their decisions are repeated.
    """

    tasks: Sequence[LearningTask]
    sandbox: Sandbox
    backend: Backend | None = None
    in_flight: InFlight = field(default_factory=InFlight)
    """Requests to the backend without an answer yet."""
    seed: int = 0
    goal: str | None = None
    """Goal in words, which replaces the mission of the environment."""
    steps: float = inf
    seconds: float = inf
    completions: float = inf
    max_cost: float = inf
    observer: Observer = SILENT
    program: str = ""
    """The last program."""
    rows: list[Transition] = field(default_factory=list)
    """All steps, in all environments."""
    returns: list[tuple[int, float, str]] = field(default_factory=list)
    """For each episode: the steps up to its end, its return, and its aim."""
    asked: int = 0
    """Number of completions."""
    cost: float = 0.0
    """Cost of the completions in US dollars."""
    began: float = field(default_factory=time.monotonic)
    work_seconds: dict[Work, float] = field(
        default_factory=lambda: {"writing": 0.0, "planning": 0.0}, init=False
    )
    """Time for programs, and for decisions and predictions."""

    @property
    def over(self) -> str:
        """The spent budget: steps, seconds, completions or money; "" if none is spent."""
        spent = {
            "steps": len(self.rows) >= self.steps,
            "seconds": self.seconds_left() <= 0,
            "completions": self.asked >= self.completions,
            "money": self.cost >= self.max_cost,
        }
        return next((name for name, is_spent in spent.items() if is_spent), "")

    def seconds_left(self) -> float:
        """Return the seconds until the time limit."""
        return self.seconds - (time.monotonic() - self.began)

    @contextmanager
    def timed(self, work: Work) -> Iterator[None]:
        """Add the duration of a block to `work_seconds`."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.work_seconds[work] += time.perf_counter() - began

    def compute(self, work: Work, function: Callable[[], T]) -> T:
        """Return the result of a function, which is recorded so that no replay computes it again.

        Args:
            work: The kind of work, for the measured time.
            function: Returns plain JSON data. It may call `complete`, but no other method.
        """
        with self.timed(work):
            return function()

    def stepped(self, row: Transition, *, aim: str, mismatched: bool = False) -> None:
        """Record a step, its aim, and whether the program predicted another outcome."""
        self.rows.append(row)

    def ended(self, returned: float, *, aim: str) -> None:
        """Record the end of an episode, its return and its aim."""
        self.returns.append((len(self.rows), returned, aim))

    def wrote(self, program: str, note: str = "") -> None:
        """Record a new program, and a note on the reason for it."""
        self.program = program

    def trained(self, trainer: str, options: Mapping[str, Any], training: SavedModel) -> None:
        """Record a trained model, the name of its trainer and the options of the trainer."""

    def complete(self, request: Request) -> Completion:
        """Return a completion of the backend, and count it and its cost.

        Raises:
            OutOfTime: The time limit ended the wait for the completion.
        """
        if (backend := self.backend) is None:
            raise ValueError("the session has no language model")
        left = self.seconds_left()
        try:
            completion = run_in_thread(
                lambda: backend.complete(request), None if left == inf else max(0.0, left)
            )
        except TimeoutError:
            if self.seconds_left() > 0:  # a time limit of the backend
                raise
            self.asked += 1
            raise OutOfTime from None
        self.asked += 1
        self.cost += completion.usage.cost or 0.0
        return completion


class LearningStrategy(WithPresets):
    """A learning loop that learns environments by acting in them.

    A subclass is a dataclass. Its fields are its options (`-o strategy.KEY=VALUE`); the docstring
    below each field is its help. `learn` only resets and steps the environments of the session,
    runs generated code in its sandbox only, and returns when the session is over or nothing is
    left to learn. All randomness depends on the seed of the session.

        @dataclass
        class RandomWalk(LearningStrategy):
            def learn(self, session):
                task = session.tasks[0].task
                with closing(task.make()) as env:
                    ...
    """

    needs_answers: ClassVar[bool] = False
    """Whether the strategy needs a backend: a language model or an offline backend."""

    def learn(self, session: LearningSession) -> None:
        """Learn the tasks of a session; the result is `session.program`."""
        raise NotImplementedError
