"""What is done in the process of a program that is a world model: it is planned with, or timed.

Predicting rows is the sandbox's own kind of job.
"""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle, islice
from typing import Any

import numpy as np

from cwm_cli.data.spaces import Space
from cwm_cli.planning import PLANNERS, Decider, Moment, Unsuited, find_planner
from cwm_cli.planning.model import LARGEST, Batch, Unbatched, copied
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
from cwm_cli.translation import Form, Rows, Source, fastest
from cwm_cli.worlds.messages import (
    PACED,
    SIZE,
    STEPS_REPLY,
    STEPS_REQUEST,
    Codec,
    PlanningJob,
    PlanningReply,
    TimingJob,
    decode_question,
    encode_reply,
)

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
            Codec(job.observation_space, "observations"),
            Codec(job.action_space, "actions"),
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


Walk = Callable[[int], int]
"""Takes so many steps and returns how many transitions those were."""


class TimingHandler(Handler[TimingJob]):
    """Takes steps on request; every transition counts as progress."""

    job_class = TimingJob

    def run(self, program: ConfinedProgram) -> None:
        """Answer questions until nobody asks any more."""
        job, counter = self.job, program.counter
        environment = program.load()
        form = formed(environment, job, "auto", counter)
        walks = {"scalar": _scalar(environment, job, counter)}
        if form.model is not form.program:
            walks["arithmetic"] = _modelled(form, job)
        if form.model.batch is not None:
            walks["batched"] = _batched(form.model.batch, job, counter)
        while question := program.read(STEPS_REQUEST.size):
            place, steps = STEPS_REQUEST.unpack(question)
            name = PACED[place]
            found = _taken(walks[name], steps) if name in walks else (0, _why(form, name))
            transitions, reason = found
            program.write(STEPS_REPLY.pack(transitions, reason.encode("utf-8", "replace")))


def _taken(walk: Walk, steps: int) -> tuple[int, str]:
    """Take steps, or say why that cannot be."""
    try:
        return walk(steps), ""
    except Unbatched as error:
        return 0, str(error)


def _why(form: Form, name: str) -> str:
    """Say why there is no form of a name."""
    notes, prefix = form.program.notes, f"not {name}: "
    own = [note.removeprefix(prefix) for note in notes if note.startswith(prefix)]
    return "; ".join(own or notes)


def _scalar(environment: Any, job: ModelJob, counter: Any) -> Walk:
    """Return what stands at one row after the other and steps from there."""
    pairs, set_state, step = _pairs(job), environment.set_state, environment.step

    def walk(steps: int) -> int:
        for observation, action in islice(pairs, steps):
            set_state(copied(observation))
            step(action)
            counter[0] += 1
        return steps

    return walk


def _modelled(form: Form, job: ModelJob) -> Walk:
    """Return what does the same with the form of plain arithmetic."""
    pairs, stand, step = _pairs(job), form.model.stand, form.model.step

    def walk(steps: int) -> int:
        for observation, action in islice(pairs, steps):
            stand(observation)
            step(action)
        return steps

    return walk


def _batched(batch: Batch, job: ModelJob, counter: Any) -> Walk:
    """Return what stands at all rows at once and steps from there."""
    rows = rows_of(job)
    lanes = len(rows.observations)
    observations, actions = (
        np.stack([np.asarray(value) for value in values], -1)
        for values in (rows.observations, rows.actions)
    )

    def walk(steps: int) -> int:
        for _ in range(steps):
            batch.stand(observations)
            batch.step(actions)
            counter[0] += lanes
        return steps * lanes

    return walk


def _pairs(job: ModelJob) -> Iterator[tuple[Any, Any]]:
    """Yield observations and actions, round and round."""
    rows = rows_of(job)
    return cycle(zip(rows.observations, rows.actions, strict=True))
