"""The confined process that records trails: the branches and keys of a program in each row.

The program is instrumented so that it records these events. `cwm_cli.evaluation.support` counts
the rows with the same events, outside that process.
"""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import ClassVar

import numpy as np

from cwm_cli.sandbox.handlers import ConfinedProgram, Handler, reseed, values
from cwm_cli.sandbox.job import ModelJob, SlotLayout
from cwm_cli.translation.instrumentation import MAX_SITES, RECORDER, Recorder, instrument

MAX_EVENTS = 48
"""Maximum number of different events in a step. The trail of a step with more is unknown."""

UNKNOWN = np.iinfo(np.uint64).max
"""Value of all events of a row whose events are unknown."""


@dataclass(frozen=True, kw_only=True)
class TrailsJob(ModelJob):
    """A job that records the trail of a program on each of its rows.

    The slot `events` (rows, MAX_EVENTS) has the events of each row as `encode_events` returns
    them, and `lines` has the line number of each instrumented site.
    """

    handler: ClassVar[str] = "cwm_cli.worlds.confined_trails:TrailsHandler"
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
        # The recorder is a builtin, so that the program needs no import, which could fail.
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
                slots["events"][row] = UNKNOWN
            slots["status"][row] = 1
            program.counter[0] = row + 1


def encode_events(events: Sequence[int]) -> np.ndarray:
    """Return (MAX_EVENTS,) integers: events, then zeros. All bits are set if there are too many."""
    row = np.zeros(MAX_EVENTS, np.uint64)
    if len(events) > MAX_EVENTS:
        row[:] = UNKNOWN
    else:
        row[: len(events)] = np.array(events, np.uint64)
    return row
