"""What the process of a program does in a planning session: plan whenever it is asked."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from cwm_cli.data.spaces import Space
from cwm_cli.planning import PLANNERS, Decider, Moment, Unsuited, find_planner
from cwm_cli.planning.model import LARGEST
from cwm_cli.planning.program import Checks, Program
from cwm_cli.sandbox.answers import (
    Complaint,
    actions_of,
    parts,
    reward_of,
    terminated_of,
    values,
    writer,
)
from cwm_cli.sandbox.handlers import ConfinedProgram, Handler, reseed
from cwm_cli.sandbox.job import ModelJob, slot_type
from cwm_cli.sandbox.messages import (
    SIZE,
    PlanningJob,
    PlanningReply,
    Record,
    decode_question,
    encode_reply,
)
from cwm_cli.translation import Form, Rows, Source, fastest

for _name in PLANNERS:
    find_planner(_name)  # imported before a program is confined with it


class PlanningHandler(Handler[PlanningJob]):
    """Plans whenever it is asked; every step of the model counts as progress."""

    job_class = PlanningJob

    def run(self, program: ConfinedProgram) -> None:
        """Answer questions until nobody asks any more."""
        job = self.job
        form = formed(program.load(), job, job.form, program.counter)
        planners = [find_planner(name)(**options) for name, options in job.planners]

        def begin(moment: Moment) -> None:
            reseed(job.seed, moment.episode, moment.decision)

        decider = Decider(planners, form.model, seed=job.seed, begin=begin if job.draws else None)
        observations, actions = (
            Record(job.observation_space, "observations"),
            Record(job.action_space, "actions"),
        )
        while head := program.read(SIZE.size):
            moments = decode_question(program.read(*SIZE.unpack(head)), observations)
            reply = encode_reply(_reply(decider, form, moments), actions)
            program.write(SIZE.pack(len(reply)) + reply)


def formed(environment: Any, job: ModelJob, form: str, counter: Any) -> Form:
    """Return a program in the fastest forms that agree with it on the rows of the job."""
    source = Source(job.program, job.observation_space)
    return fastest(_program(environment, job, counter), source, rows_of(job), form)


def _reply(decider: Decider, form: Form, moments: list[Moment]) -> PlanningReply:
    """Plan for some moments, or say why no planner can."""
    counter = form.model.counter
    before = counter[0]
    try:
        plans = decider.plan(moments)
    except Unsuited as reason:
        return PlanningReply([], counter[0] - before, 0, 0, str(reason))
    passed_over = decider.passed_over
    note = "; ".join([*passed_over, *form.program.notes])
    return PlanningReply(plans, counter[0] - before, len(passed_over), form.used, note)


def _program(environment: Any, job: ModelJob, counter: Any) -> Program:
    """Return the program as a model whose answers are checked."""
    valid = partial(_admitted, job.action_space) if job.valid else None
    checks = Checks(
        partial(parts, with_valid=job.valid),
        _reward,
        terminated_of,
        _reader(job.observation_space),
        valid,
    )
    return Program(
        environment,
        checks,
        action_space=job.action_space,
        deterministic=not job.draws,
        counter=counter,
    )


def _admitted(space: Space, value: Any) -> tuple[int, ...] | None:
    """Return which of the actions that there are may follow, None where a program names none."""
    low, high = int(space.low[0]), int(space.high[0])
    return tuple(sorted({int(a) for a in actions_of(value) if low <= a <= high})) or None


def rows_of(job: ModelJob) -> Rows:
    """Return the real observations and actions that came with the job."""
    observations = values(job.observation_space, iter(job.observations))
    return Rows(list(observations), list(values(job.action_space, iter(job.actions))))


def _reward(value: Any) -> float:
    """Accept any number that returns can be made of."""
    reward = reward_of(value)
    if -LARGEST < reward < LARGEST:
        return reward
    raise Complaint(f"the reward should be a finite number, got {reward}")


def _reader(space: Space) -> Callable[[Any], Any]:
    """Return what checks an observation that a program gave and makes it a value of our own."""
    slots = [np.zeros((1, *leaf.space.shape), slot_type(leaf.space)) for leaf in space.leaves("")]
    write = writer(space, iter(slots))

    def read(answer: Any) -> Any:
        write(0, answer)
        return next(values(space, map(_decoded, slots)))

    return read


def _decoded(slot: np.ndarray) -> np.ndarray:
    """Return texts as texts and numbers as they are."""
    return np.char.decode(slot, "utf-8", "replace") if slot.dtype.kind == "S" else slot
