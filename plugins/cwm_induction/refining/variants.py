"""Evaluation of many variants of a program on the same rows, in one sandboxed process.

The process gets observations and actions only, and no two consecutive rows of an episode, as in
the evaluation of one program.
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

MAX_BATCH_STEPS = 8192
"""Most steps of a process: one second for a slow program, which may use ten."""

MAX_LOST = 3
"""Number of variants that may end a process, by a hang or a crash, before the rest is skipped."""


class VariantPredictions(NamedTuple):
    """The predictions of a variant, and the mask of the failed rows."""

    columns: Columns
    failed: np.ndarray


def predict_variants(
    sandbox: Sandbox, variants: Sequence[str], rows: Dataset, *, seed: int = 0
) -> list[VariantPredictions]:
    """Return the predictions of each variant for all rows.

    Variants may differ in constants only, because the sandbox checks the first one alone.
    """
    found: list[VariantPredictions] = []
    batch_size, lost = max(1, MAX_BATCH_STEPS // max(1, len(rows))), 0
    answers = ("next_observations", "rewards", "terminations", "valid_actions")
    columns = {n: column for n, column in rows.columns.items() if n.split(".")[0] in answers}
    failure = VariantPredictions(columns, np.ones(len(rows), bool))
    while len(found) < len(variants):
        batch = list(variants[len(found) : len(found) + batch_size])
        if lost > MAX_LOST or max(map(len, batch)) > LONGEST_PROGRAM:
            return found + [failure] * (len(variants) - len(found))
        predicted = _predict_batch(sandbox, batch, rows, seed)
        if len(predicted) < len(batch):
            lost += 1
            predicted.append(failure)
        found += predicted
    return found


def _predict_batch(
    sandbox: Sandbox, batch: list[str], rows: Dataset, seed: int
) -> list[VariantPredictions]:
    """Run a batch in two processes; return fewer predictions if a variant ended its process."""
    rng = np.random.default_rng([seed, len(rows)])
    halves = [part for part in split_rows(rows, 2, rng) if len(part)]
    inputs = rows.select("observations", "actions")
    jobs = [
        VariantsJob.of(
            batch[0],
            rows,
            seed=seed,
            columns={name: column[part] for name, column in inputs.items()},
            variants=batch,
        )
        for part in halves
    ]
    sandbox.prepare(VariantsJob.handler)
    replies = sandbox.run_apart([[job] for job in jobs], [sandbox.limits] * len(jobs))
    done = len(batch)
    for job, [reply] in zip(jobs, replies, strict=True):
        if reply.failure is not None:
            progress = int(reply.slots.get("progress", 0))
            done = min(done, len(batch) - 1, progress // max(1, job.count))
    found = []
    for variant in range(done):
        answers, failed = [], np.ones(len(rows), bool)
        for part, job, [reply] in zip(halves, jobs, replies, strict=True):
            span = slice(variant * job.count, (variant + 1) * job.count)
            slots = {name: slot[span] for name, slot in reply.slots.items() if slot.ndim}
            answers.append((part, slots))
            failed[part] = slots["failed"] != 0
        found.append(VariantPredictions(merge_answers(rows, answers), failed))
    return found


@dataclass(frozen=True, kw_only=True)
class VariantsJob(ModelJob):
    """A request for the predictions of variants of a program, one variant after the other.

    The slots contain predictions, (variants * rows, ...). `failed` is the mask of errors and
    invalid results.
    """

    handler: ClassVar[str] = "cwm_induction.refining.variants:VariantsHandler"
    aim: ClassVar[str] = "every row was answered"
    variants: Sequence[str] = field(default_factory=list)

    @property
    def count(self) -> int:
        """The number of rows."""
        return len(self.actions[0])

    @property
    def layout(self) -> SlotLayout:
        """The layout of the predictions."""
        answers = len(self.variants) * self.count
        actions = self.action_space.count if self.valid else 0
        layout = prediction_layout(self.observation_space, answers, actions)
        columns = [(name, *layout.slots[name][1:]) for name in layout.answers]
        return SlotLayout([*columns, ("failed", "u1", (answers,))], answers)


class VariantsHandler(Handler[VariantsJob]):
    """Runs each variant on all rows, inside the sandbox."""

    job_class = VariantsJob

    def run(self, program: ConfinedProgram) -> None:
        """Load one variant after the other."""
        job, slots = self.job, program.slots
        slots["failed"][:] = 1
        program.begin()
        for variant, text in enumerate(job.variants):
            begin = variant * job.count
            try:
                code = compile(text, PROGRAM, "exec", dont_inherit=True)
                self._predict(ConfinedProgram(code, job, slots).load(), program, begin)
            except Exception:  # noqa: BLE001, S110  # programs raise any error; `failed` stays set
                pass
            slots["status"][begin : begin + job.count] = 1
            program.counter[0] = begin + job.count

    def _predict(self, environment: Any, program: ConfinedProgram, begin: int) -> None:
        """Write the predictions of all rows into the slots, from index `begin` on."""
        job, slots = self.job, program.slots
        space = job.observation_space
        write = writer(space, (slots[leaf.name] for leaf in space.leaves("next_observations")))
        mark = mask_writer(job.action_space, slots["valid_actions"]) if job.valid else None
        observations = values(space, iter(job.observations))
        actions = values(job.action_space, iter(job.actions))
        for place, (observation, action) in enumerate(
            zip(observations, actions, strict=True), start=begin
        ):
            if job.draws:
                reseed(job.seed)
            program.counter[0] = place
            try:
                environment.set_state(observation)
                result = parts(environment.step(action), with_valid=job.valid)
                write(place, result[0])
                slots["rewards"][place] = reward_of(result[1])
                slots["terminations"][place] = terminated_of(result[2])
                if mark:
                    mark(place, result[3])
            except Exception:  # noqa: BLE001  # programs raise any error
                slots["rewards"][place] = np.nan
            else:
                slots["failed"][place] = 0
