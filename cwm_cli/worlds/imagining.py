"""Calls into the process of a program, outside the sandbox: functions and imagined episodes.

`confined.ImaginingHandler` runs the functions in that process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import TYPE_CHECKING, Any, ClassVar, Self
from weakref import finalize

import numpy as np

from cwm_cli.data.dataset import VALID, Dataset
from cwm_cli.data.spaces import Columns, Space
from cwm_cli.errors import CwmError
from cwm_cli.sandbox.failures import KILLED_WORKERS, printable
from cwm_cli.sandbox.pool import WorkerLost
from cwm_cli.worlds.messages import MAX_NOTE_BYTES, SIZE, ImaginingJob, pack, unpack
from cwm_cli.worlds.model import ImaginedEpisodes, ImaginedStep, ObservedEpisodes
from cwm_cli.worlds.remote import NO_PLAN, OutOfTime, ProgramFailed, RemoteModel

if TYPE_CHECKING:
    from cwm_cli.planning.model import EpisodeHistory
    from cwm_cli.sandbox import Conversation, Sandbox


class Imagination:
    """Calls functions inside the confined process of a program; close it with `with`.

    `steps` counts the steps of the model so far. After a failure, such as a limit of the sandbox
    in one call, the next call starts a new process. `limits` are the limits of the sandbox unless
    replaced before the first call. A call raises `OutOfTime` when `seconds_left`, which a caller
    may replace, returns 0 or less.

        with Imagination(sandbox, program, rows) as imagination:
            found = imagination.ask("stepping:follow", columns, space=space.to_json(), key=[0])
    """

    job_class: ClassVar[type[ImaginingJob]] = ImaginingJob

    def __init__(
        self, sandbox: Sandbox, program: str, rows: Dataset, *, seed: int = 0, form: str = "auto"
    ) -> None:
        self.program = program
        self.steps = 0
        self.seconds_left: Callable[[], float] = lambda: inf
        self.limits = sandbox.limits
        self._sandbox = sandbox
        inputs = rows.select("observations", "actions")
        self._job = self.job_class.of(program, rows, seed=seed, columns=inputs, form=form)
        self._process: Conversation | None = None

    def ask(
        self, function: str, arrays: Mapping[str, np.ndarray] | None = None, **options: Any
    ) -> dict[str, np.ndarray]:
        """Call a function in the process, and return the arrays that it returns.

        Args:
            function: `module:name`, a function in one of the handler's modules.
            arrays: Arrays for the function.
            **options: Plain JSON data for the function.

        Raises:
            ProgramFailed: If the program fails, exceeds a limit, or the reply is malformed.
            OutOfTime: If no seconds are left.
        """
        question = pack({"function": function, "options": options}, arrays or {})
        results = self._sandbox.insist(lambda: self._ask(SIZE.pack(len(question)) + question))
        if results is None:
            raise ProgramFailed(KILLED_WORKERS)
        return results

    def _ask(self, question: bytes) -> dict[str, np.ndarray]:
        if self._process is None:
            self._process = self._sandbox.converse(self._job, limits=self.limits)
        process = self._process
        try:
            process.send(question)
            if not process.wait(self.seconds_left()) and self.seconds_left() <= 0:
                self.close()
                raise OutOfTime
            [size] = SIZE.unpack(process.receive(SIZE.size))
            process.rest()  # the time to read a long reply does not count as time of the program
            if size > 1 << 28:  # 256 MB, enough for a table of a million situations
                raise ValueError(f"a reply of {size} bytes")
            head, arrays = unpack(process.receive(size))
            self.steps += int(head["steps"])
        except EOFError:
            self._process = None
            raise ProgramFailed(process.failure()) from None
        except (ValueError, TypeError, KeyError):
            self.close()
            raise ProgramFailed(NO_PLAN) from None
        except WorkerLost:
            self.close()
            raise
        return arrays

    def retire(self, idle: list[Imagination]) -> None:
        """Append this object to empty `idle` for later use, or close it if workers are scarce."""
        # a prediction needs two workers
        if idle or self._sandbox.workers <= 2:
            self.close()
        else:
            idle.append(self)

    def close(self) -> None:
        """End the process of the program."""
        process, self._process = self._process, None
        if process is not None:
            process.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class SteppedEpisodes(ObservedEpisodes):
    """Episodes in a program without memory, which steps all episodes in one call.

    If the program raises an exception or returns no valid numbers, that episode terminates with
    reward 0, since its continuation is unknown. `process` is appended to `idle` afterwards, unless
    `idle` already contains one.
    """

    def __init__(
        self,
        process: Imagination,
        starts: Sequence[EpisodeHistory],
        rows: Dataset,
        seed: int,
        idle: list[Imagination],
    ) -> None:
        super().__init__(starts, rows, seed)
        self._process = process
        finalize(self, process.retire, idle)

    def step(self, actions: Columns) -> ImaginedStep:
        """Take one action in each episode."""
        rows = self._rows
        try:
            results = self._process.ask(
                "stepping:follow",
                self._observations | actions,
                space=rows.observation_space.to_json(),
                key=[self._seed, self._steps],
                valid=rows.has_valid_actions,
            )
            # The arrays are from an untrusted process, which can return other shapes.
            self._observations = self._check(results)
        except ProgramFailed as error:
            raise CwmError(f"the program failed: {error.failure.message}") from None
        self._steps += 1
        return ImaginedStep(
            self._observations, results["rewards"], results["ends"], results.get(VALID)
        )

    def _check(self, results: Columns) -> Columns:
        """Return the observations; raise ProgramFailed if a column has another type or shape."""
        rows, count = self._rows, self.count
        leaves = [*rows.observation_space.leaves("observations")]
        expected = {
            leaf.name: ("U" if leaf.space.kind == "text" else "biuf", leaf.space.shape)
            for leaf in leaves
        }
        expected |= {"rewards": ("f", ()), "ends": ("b", ())}
        if rows.has_valid_actions:
            expected[VALID] = "b", (rows.action_space.count,)
        for name, (kinds, shape) in expected.items():
            column = results.get(name)
            if column is None or column.dtype.kind not in kinds or column.shape != (count, *shape):
                raise ProgramFailed(NO_PLAN)
        return {leaf.name: results[leaf.name] for leaf in leaves}


class FollowedEpisodes(ImaginedEpisodes):
    """Episodes in a program with memory, which sees each history and then its own predictions.

    One process steps the episodes one after the other, each from its own saved state.
    """

    def __init__(
        self, model: RemoteModel, starts: Sequence[EpisodeHistory], space: Space, seed: int
    ) -> None:
        self.count = len(starts)
        self._model, self._places, self._space = model, list[Any](starts), space
        self._seed, self._steps = seed, 0
        self._end = finalize(self, model.close)  # also if no caller closes it

    def step(self, actions: Columns) -> ImaginedStep:
        """Take one action in each episode."""
        model, space, steps = self._model, self._model.action_space, []
        try:
            for number, place in enumerate(self._places):
                if not model.deterministic:
                    model.draw_from([self._seed, self._steps, number])
                model.stand(place)
                steps.append(model.step(space.unpack("actions", actions, number)))
                self._places[number] = model.here()
        except (ProgramFailed, WorkerLost) as error:
            message = printable(str(error), MAX_NOTE_BYTES)
            raise CwmError(f"the program failed: {message}") from error
        model.reported.clear()
        self._steps += 1
        names_valid = any(step.valid is not None for step in steps)
        return ImaginedStep.of(steps, self._space, space, with_valid=names_valid)

    def keep(self, places: np.ndarray) -> None:
        """Keep only the episodes at these indices, in this order."""
        self._places = [self._places[place] for place in np.asarray(places).tolist()]
        self.count = len(self._places)

    def close(self) -> None:
        """End the process."""
        self._end()
