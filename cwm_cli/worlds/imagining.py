"""A program that is imagined with: whole searches, tables and policies, computed where it lives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self
from weakref import finalize

import numpy as np

from cwm_cli.data.dataset import VALID, Dataset
from cwm_cli.data.spaces import Columns
from cwm_cli.errors import CwmError
from cwm_cli.sandbox.failures import KILLED_WORKERS
from cwm_cli.sandbox.pool import WorkerLost
from cwm_cli.worlds.confined_imagining import ImaginingJob, pack, unpack
from cwm_cli.worlds.messages import SIZE
from cwm_cli.worlds.model import ImaginedEpisodes, ImaginedStep
from cwm_cli.worlds.remote import NO_PLAN, Broke

if TYPE_CHECKING:
    from cwm_cli.planning.model import EpisodeHistory
    from cwm_cli.sandbox import Conversation, Sandbox

LARGEST_REPLY = 1 << 28
"""Bytes that a reply may have: a table of a million situations, and no room for mischief."""

TAKEN = 2
"""Places of a sandbox that a prediction takes: only where there are more is a process kept."""


class Imagination:
    """Imagines with a program, which lives in one confined process; to be closed, as by `with`.

    `steps` counts those of the model so far. A program that failed, or reached a limit
    of the sandbox in one question, has a `failure`, and the next question begins a new process.

        with Imagination(sandbox, program, rows) as imagination:
            found = imagination.ask("stepping:follow", columns, space=space.to_json(), key=[0])
    """

    job_class: ClassVar[type[ImaginingJob]] = ImaginingJob

    def __init__(
        self, sandbox: Sandbox, program: str, rows: Dataset, *, seed: int = 0, form: str = "auto"
    ) -> None:
        self.program = program
        self.steps = 0
        self._sandbox = sandbox
        self._job = self.job_class(
            program=program,
            seed=seed,
            observation_space=rows.observation_space,
            action_space=rows.action_space,
            columns=rows.select("observations", "actions"),
            valid=rows.has_valid_actions,
            form=form,
        )
        self._process: Conversation | None = None

    def ask(
        self, function: str, arrays: Mapping[str, np.ndarray] | None = None, **options: Any
    ) -> dict[str, np.ndarray]:
        """Call `module:name` of the handler's modules there, and return the arrays it returns.

        `options` are plain data. `Broke`, with the failure, when the program fails, when a
        limit was reached or when the answer makes no sense.
        """
        question = pack({"function": function, "options": options}, arrays or {})
        found = self._sandbox.insist(lambda: self._ask(SIZE.pack(len(question)) + question))
        if found is None:
            raise Broke(KILLED_WORKERS)
        return found

    def _ask(self, question: bytes) -> dict[str, np.ndarray]:
        """Ask the process, a new one unless there is one."""
        if self._process is None:
            self._process = self._sandbox.converse(self._job)
        process = self._process
        try:
            process.send(question)
            [size] = SIZE.unpack(process.receive(SIZE.size))
            process.rest()  # whoever waits for us to read a long reply does not sleep
            if size > LARGEST_REPLY:
                raise ValueError(f"a reply of {size} bytes")
            head, arrays = unpack(process.receive(size))
            self.steps += int(head["steps"])
        except EOFError:
            self._process = None
            raise Broke(process.failure()) from None
        except (ValueError, TypeError, KeyError):
            self.close()
            raise Broke(NO_PLAN) from None
        except WorkerLost:
            self.close()
            raise
        return arrays

    def rest(self, kept: list[Imagination]) -> None:
        """Be kept for those who imagine next, unless one is or the process is needed elsewhere."""
        if kept or self._sandbox.workers <= TAKEN:
            self.close()
        else:
            kept.append(self)

    def close(self) -> None:
        """End the process of the program."""
        process, self._process = self._process, None
        if process is not None:
            process.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class SteppedEpisodes(ImaginedEpisodes):
    """Episodes in a program without memory, all of which it steps in one question.

    The process is theirs; after them it is `kept`, if there is none yet. Where the program raises,
    or says what is no number, an episode ends with no reward: nothing is known of what follows.
    """

    def __init__(
        self,
        process: Imagination,
        starts: Sequence[EpisodeHistory],
        rows: Dataset,
        seed: int,
        kept: list[Imagination],
    ) -> None:
        self.count, self._rows, self._seed, self._steps = len(starts), rows, seed, 0
        self._process = process
        finalize(self, process.rest, kept)
        self._seen = rows.observation_space.pack(
            "observations", [each.observations[-1] for each in starts]
        )

    def step(self, actions: Columns) -> ImaginedStep:
        """Take an action in each of them."""
        rows, key = self._rows, [self._seed, self._steps]
        try:
            found = self._process.ask(
                "stepping:follow",
                self._seen | actions,
                space=rows.observation_space.to_json(),
                key=key,
                valid=rows.has_valid_actions,
            )
            self._seen = self._read(found)
        except Broke as broke:
            raise CwmError(f"the program failed: {broke.failure.message}") from None
        self._steps += 1
        return ImaginedStep(self._seen, found["rewards"], found["ends"], found.get(VALID))

    def keep(self, places: np.ndarray) -> None:
        """Go on with the episodes at some places only, in that order."""
        self._seen = {name: column[places] for name, column in self._seen.items()}
        self.count = len(places)

    def _read(self, found: Columns) -> Columns:
        """Return what was observed; `Broke` for answers that no honest process gives."""
        rows, count = self._rows, self.count
        leaves = [*rows.observation_space.leaves("observations")]
        wanted = {
            leaf.name: ("U" if leaf.space.kind == "text" else "biuf", leaf.space.shape)
            for leaf in leaves
        }
        wanted |= {"rewards": ("f", ()), "ends": ("b", ())}
        if rows.has_valid_actions:
            wanted[VALID] = "b", (rows.action_space.count,)
        for name, (kinds, shape) in wanted.items():
            column = found.get(name)
            if column is None or column.dtype.kind not in kinds or column.shape != (count, *shape):
                raise Broke(NO_PLAN)
        return {leaf.name: found[leaf.name] for leaf in leaves}
