"""Trails: the branches that a program takes and the keys that it looks up in a step.

The program is instrumented so that it records these events. A process of its own then runs it on
each row.
"""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from cwm_cli.sandbox.handlers import ConfinedProgram, Handler, reseed, values
from cwm_cli.sandbox.job import ModelJob, SlotLayout
from cwm_cli.translation.instrumentation import MAX_SITES, RECORDER, Recorder, instrument

if TYPE_CHECKING:
    from cwm_cli.sandbox.client import Sandbox

MAX_EVENTS = 48
"""Maximum number of different events in a step. The trail of a step with more is unknown."""


@dataclass(frozen=True, kw_only=True)
class TrailsJob(ModelJob):
    """A job that records the trail of a program on each of its rows."""

    handler: ClassVar[str] = "cwm_cli.worlds.trails:TrailsHandler"
    aim: ClassVar[str] = "every row was answered"

    @property
    def layout(self) -> SlotLayout:
        """Slots for the events of each row, and for the line number of each site."""
        rows = len(self.actions[0])
        return SlotLayout(
            [("events", "<u8", (rows, MAX_EVENTS)), ("lines", "<i8", (MAX_SITES,))], rows
        )


class TrailsHandler(Handler[TrailsJob]):
    """Runs one step of the instrumented program on each row."""

    job_class = TrailsJob

    def run(self, program: ConfinedProgram) -> None:
        """Write the events of each row; if the program fails there, the trail is unknown."""
        job, slots, recorder = self.job, program.slots, Recorder()
        instrumented = instrument(job.program)
        slots["lines"][: len(instrumented.lines)] = instrumented.lines
        setattr(builtins, RECORDER, recorder)
        code = compile(instrumented.tree, "<program>", "exec", dont_inherit=True)
        environment = ConfinedProgram(code, job, slots).load()
        pairs = zip(
            values(job.observation_space, iter(job.observations)),
            values(job.action_space, iter(job.actions)),
            strict=True,
        )
        for row, (observation, action) in enumerate(islice(pairs, len(slots["events"]))):
            if job.draws:
                reseed(job.seed)
            recorder.begin()
            try:
                environment.set_state(observation)
                environment.step(action)
                slots["events"][row] = encode_events(list(recorder.events))
            except Exception:  # noqa: BLE001  # programs can raise any exception
                slots["events"][row] = np.iinfo(np.uint64).max
            slots["status"][row] = 1
            program.counter[0] = row + 1


class Trails(NamedTuple):
    """The trails of a program.

    Args:
        events: (rows, MAX_EVENTS), the events of each row as `encode_events` returns them.
        lines: The line number of each site.
    """

    events: np.ndarray
    lines: np.ndarray


def record_trails(sandbox: Sandbox, job: TrailsJob) -> Trails | None:
    """Record the trails of a program. Return None if it fails or cannot be instrumented."""
    reply: Any = sandbox.run(job)
    if reply.failure is not None or not np.all(reply.slots["status"]):
        return None
    return Trails(np.array(reply.slots["events"]), np.array(reply.slots["lines"]))


def encode_events(events: Sequence[int]) -> np.ndarray:
    """Return (MAX_EVENTS,) integers: events, then zeros. All bits are set if there are too many."""
    row = np.zeros(MAX_EVENTS, np.uint64)
    if len(events) > MAX_EVENTS:
        row[:] = np.iinfo(np.uint64).max
    else:
        row[: len(events)] = np.array(events, np.uint64)
    return row
