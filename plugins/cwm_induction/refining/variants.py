"""Evaluation of many variants of a program on the same rows, in one sandboxed process.

The process gets observations and actions only, and no two consecutive rows of an episode, as in
the evaluation of one program.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
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
    recorder,
    reseed,
    values,
)
from cwm_cli.sandbox.job import PredictionJob, SlotLayout, answer_slots
from cwm_cli.sandbox.prediction import merge_answers, select_rows, split_rows

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
    halves = split_rows(rows, 2, np.random.default_rng([seed, len(rows)]))
    inputs = rows.select("observations", "actions")
    jobs = [
        VariantsJob.of(batch[0], rows, seed=seed, columns=select_rows(inputs, part), variants=batch)
        for part in halves
        if len(part)
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
        for part, job, [reply] in zip(filter(len, halves), jobs, replies, strict=True):
            span = slice(variant * job.count, (variant + 1) * job.count)
            slots = {name: slot[span] for name, slot in reply.slots.items() if slot.ndim}
            answers.append((part, slots))
            failed[part] = slots["failed"] != 0
        found.append(VariantPredictions(merge_answers(rows, answers), failed))
    return found


@dataclass(frozen=True, kw_only=True)
class VariantsJob(PredictionJob):
    """A request for the predictions of variants of a program, one variant after the other.

    The slots contain predictions, (variants * rows, ...). `failed` is the mask of errors and
    invalid results.
    """

    handler: ClassVar[str] = "cwm_induction.refining.variants:VariantsHandler"
    variants: Sequence[str] = field(default_factory=list)

    @property
    def layout(self) -> SlotLayout:
        """The layout of the predictions."""
        shape = (len(self.variants) * self.count,)
        answers = answer_slots(self.observation_space, shape, self.mask_size)
        return SlotLayout([*answers, ("failed", "u1", shape)], *shape)


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
            with suppress(Exception):  # as below
                code = compile(text, PROGRAM, "exec", dont_inherit=True)
                self._predict(ConfinedProgram(code, job, slots).load(), program, begin)
            slots["status"][begin : begin + job.count] = 1
            program.counter[0] = begin + job.count

    def _predict(self, environment: Any, program: ConfinedProgram, begin: int) -> None:
        """Write the predictions of all rows into the slots, from index `begin` on."""
        job, failed = self.job, program.slots["failed"]
        record = recorder(
            job.observation_space, program.slots, job.action_space if job.valid else None
        )
        observations = values(job.observation_space, iter(job.observations))
        actions = values(job.action_space, iter(job.actions))
        inputs = zip(observations, actions, strict=True)
        for place, (observation, action) in enumerate(inputs, start=begin):
            if job.draws:
                reseed(job.seed)
            program.counter[0] = place
            with suppress(Exception):  # programs raise any error; `failed` stays set
                environment.set_state(observation)
                record(place, environment.step(action))
                failed[place] = 0
