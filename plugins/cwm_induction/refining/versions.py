"""Many versions of a program, asked for the same rows in one process: what a fit tries out.

What was recorded to follow stays outside: a process gets observations and actions, and no two
consecutive rows of an episode, as when a program is scored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_cli.data.spaces import Columns
from cwm_cli.sandbox.candidate import PROGRAM
from cwm_cli.sandbox.failures import LONGEST_PROGRAM
from cwm_cli.sandbox.handlers import (
    ConfinedProgram,
    Handler,
    mask_writer,
    parts,
    reseed,
    reward_of,
    terminated_of,
    values,
    writer,
)
from cwm_cli.sandbox.job import ModelJob, SlotLayout, prediction_layout
from cwm_cli.sandbox.prediction import merge_answers, split_rows

if TYPE_CHECKING:
    from cwm_cli.sandbox.client import Sandbox
    from cwm_cli.sandbox.conversation import Reply

STEPS_AT_ONCE = 8192
"""Steps of a process: a second's worth for a slow program, of the ten that a process has."""

MOST_LOST = 3
"""Versions that may end a process, by a hang or a crash, before the others are given up."""


@dataclass(frozen=True, kw_only=True)
class VersionsJob(ModelJob):
    """What follows on each row by each of some versions of a program, one after the other.

    The slots are those of predictions, (versions * rows, ...); `failed` says where a version
    raised, or answered what is none.
    """

    handler: ClassVar[str] = "cwm_induction.refining.versions:VersionsHandler"
    aim: ClassVar[str] = "every row was answered"
    versions: Sequence[str] = field(default_factory=list)

    @property
    def count(self) -> int:
        """How many rows there are."""
        return len(self.actions[0])

    @property
    def layout(self) -> SlotLayout:
        """Where the answers go."""
        answers = len(self.versions) * self.count
        actions = self.action_space.count if self.valid else 0
        layout = prediction_layout(self.observation_space, answers, actions)
        columns = [(name, *layout.slots[name][1:]) for name in layout.answers]
        return SlotLayout([*columns, ("failed", "u1", (answers,))], answers)


class VersionsHandler(Handler[VersionsJob]):
    """Has each version take a step at every row; one that fails there has no answer to it."""

    job_class = VersionsJob

    def run(self, program: ConfinedProgram) -> None:
        """Load one version after the other."""
        job, slots = self.job, program.slots
        slots["failed"][:] = 1
        program.begin()
        for version, text in enumerate(job.versions):
            begin = version * job.count
            try:
                code = compile(text, PROGRAM, "exec", dont_inherit=True)
                environment = ConfinedProgram(code, job, slots).load()
            except Exception:  # noqa: BLE001  # programs raise what they like
                environment = None
            if environment is not None:
                self._ask(environment, program, begin)
            slots["status"][begin : begin + job.count] = 1
            program.counter[0] = begin + job.count

    def _ask(self, environment: Any, program: ConfinedProgram, begin: int) -> None:
        """Ask a version for every row; the answers go from a place of the slots on."""
        job, slots = self.job, program.slots
        space = job.observation_space
        write = writer(space, (slots[leaf.name] for leaf in space.leaves("next_observations")))
        mark = mask_writer(job.action_space, slots["valid_actions"]) if job.valid else None
        counter, failed = program.counter, slots["failed"]
        observations = values(space, iter(job.observations))
        actions = values(job.action_space, iter(job.actions))
        for place, (observation, action) in enumerate(
            zip(observations, actions, strict=True), start=begin
        ):
            if job.draws:
                reseed(job.seed)
            counter[0] = place
            try:
                environment.set_state(observation)
                result = parts(environment.step(action), with_valid=job.valid)
                write(place, result[0])
                slots["rewards"][place] = reward_of(result[1])
                slots["terminations"][place] = terminated_of(result[2])
                if mark:
                    mark(place, result[3])
            except Exception:  # noqa: BLE001  # programs raise what they like
                slots["rewards"][place] = np.nan
            else:
                failed[place] = 0


class VersionAnswers(NamedTuple):
    """What a version says to every row, and where it says nothing."""

    columns: Columns
    failed: np.ndarray


def ask_versions(
    sandbox: Sandbox, versions: Sequence[str], rows: Dataset, *, seed: int = 0
) -> list[VersionAnswers]:
    """Ask versions of a program for all rows of a dataset, as many at once as is quick.

    They may differ by numbers alone: what a program may say at all is checked by the first.
    """
    found: list[VersionAnswers] = []
    at_once = max(1, STEPS_AT_ONCE // max(1, len(rows)))
    lost = 0
    while len(found) < len(versions):
        batch = list(versions[len(found) : len(found) + at_once])
        if lost > MOST_LOST or max(map(len, batch)) > LONGEST_PROGRAM:
            found += [_nothing(rows)] * (len(versions) - len(found))
            break
        answers = _asked(sandbox, batch, rows, seed)
        if len(answers) < len(batch):
            lost += 1
            answers.append(_nothing(rows))
        found += answers
    return found


def _asked(sandbox: Sandbox, batch: list[str], rows: Dataset, seed: int) -> list[VersionAnswers]:
    """Ask versions in two processes; fewer come back than were asked if one ended its process."""
    rng = np.random.default_rng([seed, len(rows)])
    every = [part for part in split_rows(rows, 2, rng) if len(part)]
    inputs = rows.select("observations", "actions")
    jobs = [
        VersionsJob.of(
            batch[0],
            rows,
            seed=seed,
            columns={name: column[part] for name, column in inputs.items()},
            versions=batch,
        )
        for part in every
    ]
    sandbox.prepare(VersionsJob.handler)
    replies = sandbox.run_apart([[job] for job in jobs], [sandbox.limits] * len(jobs))
    done = min(map(len, replies)) and min(
        _versions_done(reply, job, len(batch)) for [reply], job in zip(replies, jobs, strict=True)
    )
    found = []
    for version in range(done):
        answered = []
        for part, job, [reply] in zip(every, jobs, replies, strict=True):
            span = slice(version * job.count, (version + 1) * job.count)
            answered.append((part, {name: slot[span] for name, slot in _columns(reply).items()}))
        failed = np.ones(len(rows), bool)
        for part, slots in answered:
            failed[part] = slots["failed"] != 0
        found.append(VersionAnswers(merge_answers(rows, answered), failed))
    return found


def _versions_done(reply: Reply, job: VersionsJob, asked: int) -> int:
    """Return how many versions a process answered before it ended."""
    if reply.failure is None:
        return asked
    if "progress" not in reply.slots:
        return 0
    return min(asked - 1, int(reply.slots["progress"]) // max(1, job.count))


def _columns(reply: Reply) -> Columns:
    """Return the slots that have a place for each answer."""
    return {name: slot for name, slot in reply.slots.items() if slot.ndim}


def _nothing(rows: Dataset) -> VersionAnswers:
    """Return what a version says that cannot be asked."""
    columns = {
        name: column
        for name, column in rows.columns.items()
        if name.split(".")[0] in ("next_observations", "rewards", "terminations", "valid_actions")
    }
    return VersionAnswers(columns, np.ones(len(rows), bool))
