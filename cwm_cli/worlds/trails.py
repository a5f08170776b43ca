"""Which ways a program takes through its text, asked row by row in a process of its own."""

import builtins
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar, NamedTuple

import numpy as np

from cwm_cli.sandbox.answers import values
from cwm_cli.sandbox.client import Sandbox
from cwm_cli.sandbox.handlers import ConfinedProgram, Handler, reseed
from cwm_cli.sandbox.job import ModelJob, SlotLayout
from cwm_cli.translation.trails import (
    MOST_EVENTS,
    MOST_SITES,
    RECORDER,
    Recorder,
    as_row,
    watched,
)


@dataclass(frozen=True, kw_only=True)
class TrailsJob(ModelJob):
    """Which ways a program takes at each of its rows.

    The answers are a row of events (`cwm_cli.translation.trails`) for each, all ones where it
    failed, and the line of every site.
    """

    handler: ClassVar[str] = "cwm_cli.worlds.trails:TrailsHandler"
    aim: ClassVar[str] = "every row was answered"

    @property
    def layout(self) -> SlotLayout:
        """Where the answers go."""
        rows = len(self.actions[0])
        return SlotLayout(
            [("events", "<u8", (rows, MOST_EVENTS)), ("lines", "<i8", (MOST_SITES,))], rows
        )


class TrailsHandler(Handler[TrailsJob]):
    """Has the program take a step at every row, rewritten so that it notes its ways."""

    job_class = TrailsJob

    def run(self, program: ConfinedProgram) -> None:
        """Ask for one row after the other; one at which the program fails has no trail."""
        job, slots, recorder = self.job, program.slots, Recorder()
        rewritten = watched(job.program)
        slots["lines"][: len(rewritten.lines)] = rewritten.lines[:MOST_SITES]
        setattr(builtins, RECORDER, recorder)
        code = compile(rewritten.tree, "<program>", "exec", dont_inherit=True)
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
                slots["events"][row] = as_row(list(recorder.events))
            except Exception:  # noqa: BLE001  # programs raise what they like
                slots["events"][row] = np.iinfo(np.uint64).max
            slots["status"][row] = 1
            program.counter[0] = row + 1


class Trails(NamedTuple):
    """The events of every row that was asked, and the line of every site."""

    events: np.ndarray
    lines: np.ndarray


def trails(sandbox: Sandbox, job: TrailsJob) -> Trails | None:
    """Have a program followed; None where it fails, or cannot be watched."""
    reply: Any = sandbox.run(job)
    if reply.failure is not None or not np.all(reply.slots["status"]):
        return None
    return Trails(np.array(reply.slots["events"]), np.array(reply.slots["lines"]))
