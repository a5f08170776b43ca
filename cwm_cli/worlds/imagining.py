"""A program that is imagined with: whole searches, tables and policies, computed where it lives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

from cwm_cli.sandbox.failures import KILLED_WORKERS
from cwm_cli.sandbox.pool import WorkerLost
from cwm_cli.worlds.confined_imagining import ImaginingJob, pack, unpack
from cwm_cli.worlds.messages import SIZE
from cwm_cli.worlds.program import NO_PLAN
from cwm_cli.worlds.remote import Broke

if TYPE_CHECKING:
    import numpy as np

    from cwm_cli.data.dataset import Dataset
    from cwm_cli.sandbox import Conversation, Sandbox

LARGEST_REPLY = 1 << 28
"""Bytes that a reply may have: a table of a million situations, and no room for mischief."""


class Imagination:
    """Imagines with a program, which lives in one confined process; to be closed, as by `with`.

    `steps` counts those of the model so far. A program that failed, or reached a limit
    of the sandbox in one question, has a `failure`, and the next question begins a new process.

        with Imagination(sandbox, program, rows) as imagination:
            table = imagination.ask("tables:reachable", starts, most=20_000)
    """

    def __init__(
        self, sandbox: Sandbox, program: str, rows: Dataset, *, seed: int = 0, form: str = "auto"
    ) -> None:
        self.program = program
        self.steps = 0
        self._sandbox = sandbox
        self._job = ImaginingJob(
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
        """Call `module:name` of `planning.imagining` there, and return the arrays it returns.

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

    def close(self) -> None:
        """End the process of the program."""
        process, self._process = self._process, None
        if process is not None:
            process.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
