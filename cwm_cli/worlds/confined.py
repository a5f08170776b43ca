"""What is done in the process of a program that is a world model: it is planned with, or timed.

Predicting rows is the sandbox's own kind of job.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np

from cwm_cli.data.spaces import Space
from cwm_cli.planning import PLANNERS, Decider, Moment, Unsuited, find_planner
from cwm_cli.planning.memory import ProgramWithMemory
from cwm_cli.planning.model import FORMS, LARGEST, Batch, Here, Model, Step, Unbatched, name
from cwm_cli.planning.program import Checks, Program
from cwm_cli.sandbox.abilities import abilities_of
from cwm_cli.sandbox.handlers import (
    Complaint,
    ConfinedProgram,
    Handler,
    actions_of,
    outcomes_of,
    parts,
    reward_of,
    terminated_of,
    values,
    writer,
)
from cwm_cli.sandbox.job import ModelJob, slot_type
from cwm_cli.translation import Form, Rows, Source, find_fastest_form
from cwm_cli.worlds.messages import (
    KEY_SIZE,
    LONGEST_NOTE,
    NO_PLACE,
    NO_STATE,
    PACED,
    PASSED,
    READY,
    ROUND,
    SIZE,
    STEPPING,
    Ask,
    Codec,
    PlanningJob,
    PlanningReply,
    SealedPasses,
    Stand,
    SteppingJob,
    SteppingReply,
    TimedInputs,
    TimingJob,
    decode_question,
    encode_outcomes,
    encode_reply,
    is_deterministic,
    states_of,
    summed,
    weighted,
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
        decider = Decider(planners, form.model, seed=job.seed)
        states, actions = states_of(job), Codec(job.action_space, "actions")
        while head := program.read(SIZE.size):
            moments = decode_question(program.read(*SIZE.unpack(head)), states)
            reply = encode_reply(_reply(decider, form, moments), actions)
            program.write(SIZE.pack(len(reply)) + reply)


def formed(environment: Any, job: ModelJob, form: str, counter: Any) -> Form:
    """Return a program in the fastest forms that agree with it on the rows of the job."""
    program = made_program(environment, job, counter)
    if program.remembers:
        program.notes.append("scalar: it has a memory")
        return Form(program, program)
    source = Source(job.program, job.observation_space)
    return find_fastest_form(program, source, rows_of(job), form)


def _reply(decider: Decider, form: Form, moments: list[Moment]) -> PlanningReply:
    """Plan for some moments, or say why no planner can."""
    try:
        plans = decider.plan(moments)
    except Unsuited as reason:
        return PlanningReply([], [], 0, 0, str(reason))
    passed_over = decider.passed_over
    note = "; ".join([*passed_over, *form.program.notes])
    used = sum(1 << bit for bit, name in enumerate(FORMS) if name in form.program.used)
    return PlanningReply(plans, decider.steps, len(passed_over), used, note)


def made_program(environment: Any, job: ModelJob, counter: Any) -> Program:
    """Return the program as a model whose answers are checked."""
    valid = partial(_admitted, job.action_space) if job.valid else None
    checks = Checks(
        partial(parts, with_valid=job.valid),
        _reward,
        terminated_of,
        _reader(job.observation_space),
        valid,
        partial(outcomes_of, with_valid=job.valid),
    )
    made = ProgramWithMemory if abilities_of(job.program).remembers else Program
    program = made(
        environment,
        checks,
        action_space=job.action_space,
        deterministic=is_deterministic(job),
        counter=counter,
    )
    program.draws_elsewhere = "random" in job.program.replace("rng.random(", "")
    return program


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


class SteppingHandler(Handler[SteppingJob]):
    """Steps wherever it is asked to: the planner that asks is on the trusted side."""

    job_class = SteppingJob

    def run(self, program: ConfinedProgram) -> None:
        """Answer questions until nobody asks any more."""
        job = self.job
        form = formed(program.load(), job, job.form, program.counter)
        walker = _Walker(form.model, job)
        while head := program.read(SIZE.size):
            reply = walker.answer(program.read(*SIZE.unpack(head)))
            program.write(SIZE.pack(len(reply)) + reply)


class _Walker:
    """Answers questions about the steps of a model, whose places it numbers."""

    def __init__(self, model: Model, job: SteppingJob) -> None:
        self._plain = self._model = model
        self._job = job
        self._numbers: dict[Any, int] = {}
        self._places: list[Any] = []
        self._histories = states_of(job)
        self._observations, self._actions = (
            Codec(job.observation_space, "observations"),
            Codec(job.action_space, "actions"),
        )

    def answer(self, question: bytes) -> bytes:
        """Stand where that is to be, and do what is asked."""
        ask, way, place, several, count, length, discount = STEPPING.unpack_from(question)
        body = question[STEPPING.size :]
        if ask in (Ask.BEGIN, Ask.FORGET, Ask.ANEW, Ask.FREE):
            return self._settle(ask, np.frombuffer(body, "<u8").tolist())
        states, size = self._states(way, place, several, body)
        if ask == Ask.AGREE:
            return SteppingReply(0, self._model.agree(*states)).encode()
        if ask == Ask.RETURNS:
            shape = (several, count, length, *self._job.action_space.shape)
            plans: np.ndarray = np.frombuffer(bytearray(body[size:]), self._actions.dtype)
            return self._returns(states, plans.reshape(shape), int(discount))
        for state in states:
            self._model.stand(state)
        actions = self._actions.decode(body[size:], count)
        match ask:
            case Ask.HERE:
                reply = self._reply(self._model.counter[0], Step(None, 0.0, False))
            case Ask.PLAY:
                reply = self._play(actions, discount)
            case Ask.OUTCOMES | Ask.DRAWN:
                reply = self._possible(actions[0], length)
            case _:
                reply = self._walk(actions, stands=bool(length))
        return reply

    def _settle(self, ask: int, key: list[int]) -> bytes:
        """Be as a decision or a model begins, or without places."""
        if ask == Ask.BEGIN:
            self._model.draw_from(key)
        elif ask == Ask.FREE:
            for number in key:
                del self._numbers[name(self._places[number])]
                self._places[number] = None
        elif ask == Ask.ANEW:
            self._model = self._plain.memoryless
        else:
            self._model = self._plain
            self._numbers.clear()
            self._places.clear()
        return b""

    def _states(self, way: int, place: int, several: int, body: bytes) -> tuple[list[Any], int]:
        """Return the states to stand at, and how many bytes say which these are."""
        if way == Stand.NAMED:
            numbers = np.frombuffer(body, "<u8", several).tolist()
            return [self._places[number] for number in numbers], 8 * several
        if way == Stand.FOLLOWED:
            return self._histories.decode(body[:place], several), place
        size = several * self._observations.size
        states = self._observations.decode(body[:size], several)
        return [Here(each, None) for each in states] if way == Stand.STATELESS else states, size

    def _play(self, actions: list[Any], discount: float) -> bytes:
        counter = self._model.counter
        before = counter[0]
        total = self._model.play(actions, discount)
        return SteppingReply(counter[0] - before, total).encode()

    def _walk(self, actions: list[Any], *, stands: bool) -> bytes:
        """Take actions one by one, from where the model stands then or where it says it is."""
        model, replies = self._model, []
        for number, action in enumerate(actions):
            if stands and number:
                model.stand(model.here())
            before, step = model.counter[0], model.step(action)
            replies.append(self._reply(before, step))
            if step.terminated:
                break
        return b"".join(replies)

    def _possible(self, action: Any, times: int) -> bytes:
        """Say what can follow an action, by what the model tells or by so many draws."""
        model, before = self._model, self._model.counter[0]
        found = model.sample_outcomes(action, times) if times else model.outcomes(action) or []
        replies = [self._said(0, each.step, each.state) for each in found]
        steps = SteppingReply(model.counter[0] - before).encode()
        return steps + encode_outcomes([each.probability for each in found], replies)

    def _reply(self, before: int, step: Step) -> bytes:
        """Say what a step led to, and where the model stands."""
        steps = self._model.counter[0] - before
        return self._said(steps, step, self._model.here()).encode()

    def _said(self, steps: int, step: Step, here: Any) -> SteppingReply:
        """Return a step, and the state that it led to, as they are told."""
        observation = here.observation if isinstance(here, Here) else here
        seen = self._observations.encode([observation])
        place = self._number(here)
        return SteppingReply(steps, step.reward, step.terminated, place, step.valid, seen)

    def _returns(self, states: list[Any], plans: np.ndarray, draws: int) -> bytes:
        counter = self._model.counter
        before = counter[0]
        returns = self._model.returns(states, plans, draws)
        head = SteppingReply(counter[0] - before)
        return head.encode() + returns.astype("<f8").tobytes()

    def _number(self, here: Any) -> int:
        """Return the number of a place, the same for equal ones."""
        if not isinstance(here, Here):
            return NO_PLACE
        if here.state is None:
            return NO_STATE
        number = self._numbers.setdefault(name(here), len(self._places))
        if number == len(self._places):
            self._places.append(here)
        return number


Pass = Callable[[TimedInputs, np.ndarray], np.ndarray]
"""Steps from inputs, and returns the sums of the answers with some weights."""


class TimingHandler(Handler[TimingJob]):
    """Takes steps on request; every transition counts as progress."""

    job_class = TimingJob

    def run(self, program: ConfinedProgram) -> None:
        """Answer questions until there are no more."""
        job, counter = self.job, program.counter
        environment = program.load()
        form = formed(environment, job, "auto", counter)
        passes = {"scalar": _alone(environment.set_state, environment.step, job, counter)}
        if (model := form.model) is not form.program:
            passes["arithmetic"] = _alone(model.stand, model.step, job, [0])
        if form.model.batch is not None:
            passes["batched"] = _batched(form.model.batch, job, counter)
        while head := program.read(ROUND.size):
            place, number, count = ROUND.unpack(head)
            sealed = SealedPasses(job, PACED[place], number, count)
            data = program.read(8 * number * sealed.words)
            program.write(READY)
            inputs = sealed.open(data, program.read(KEY_SIZE))
            weights = np.frombuffer(program.read(8 * count), "<f8")
            program.write(
                _passed(passes.get(sealed.form), inputs, weights, _why(form, sealed.form))
            )


def _passed(
    take: Pass | None, inputs: Iterator[TimedInputs], weights: np.ndarray, reason: str
) -> bytes:
    """Take the steps of a round, or return the reason why that cannot be."""
    if take is not None:
        try:
            sums = [take(each, weights) for each in inputs]
            return PASSED.pack(True, b"") + np.array(sums, "<f8").tobytes()
        except Unbatched as error:
            reason = str(error)
    return PASSED.pack(False, reason.encode("utf-8", "replace")[:LONGEST_NOTE])


def _why(form: Form, name: str) -> str:
    """Say why there is no form of a name."""
    notes, prefix = form.program.notes, f"not {name}: "
    own = [note.removeprefix(prefix) for note in notes if note.startswith(prefix)]
    return "; ".join(own or notes)


def _alone(
    stand: Callable[[Any], Any], step: Callable[[Any], Any], job: TimingJob, counter: Any
) -> Pass:
    """Return a pass that steps from one input after the other."""
    every = list(values(job.action_space, iter(job.actions)))

    def take(inputs: TimedInputs, weights: np.ndarray) -> np.ndarray:
        actions = [every[row] for row in inputs.rows.tolist()]
        answers: list[Any] = []
        keep = answers.append
        number: int = counter[0]
        for state, action in zip(_states(job, inputs), actions, strict=True):
            stand(state)
            keep(step(action))
            counter[0] = number = number + 1
        return summed(_columns(job, answers), weights)

    return take


def _states(job: TimingJob, inputs: TimedInputs) -> Iterable[Any]:
    """Return the observations of inputs, which a program may change."""
    fresh = iter(inputs.leaves)
    if job.observation_space.is_float and job.fresh[0]:
        first: np.ndarray = next(fresh)
        return iter(first)
    leaves = zip(job.fresh, job.observations, strict=True)
    columns = [next(fresh) if sent else column[inputs.rows] for sent, column in leaves]
    return values(job.observation_space, iter(columns))


def _columns(job: TimingJob, answers: list[Any]) -> list[np.ndarray]:
    """Return answers as columns; what can be is taken together, as that takes next to no time."""
    count, space = len(answers), job.observation_space
    if not (set(map(type, answers)) <= {tuple, Step} and set(map(len, answers)) <= {3, 4}):
        answers = [parts(each, with_valid=job.valid) for each in answers]
    seen, rewards, ends, *_ = zip(*answers, strict=True)
    leaves = [leaf.space for leaf in space.leaves("")]
    slots = [np.zeros((count, *leaf.shape), slot_type(leaf)) for leaf in leaves]
    if (together := _together(seen, slots[0].shape)) is not None and space.is_float:
        slots = [together]
    else:
        write = writer(space, iter(slots))
        for place, value in enumerate(seen):
            write(place, value)
    numbers, terminations = _together(rewards, (count,)), np.array(ends)
    if numbers is None:
        numbers = np.array(list(map(reward_of, rewards)))
    if terminations.dtype != bool or terminations.shape != (count,):
        terminations = np.array(list(map(terminated_of, ends)))
    return [*slots, numbers, terminations]


def _together(some: Sequence[Any], shape: tuple[int, ...]) -> np.ndarray | None:
    """Return real numbers of a shape as an array, None where that is not what they are."""
    with suppress(TypeError, ValueError):
        array = np.array(some)
        return array if array.dtype.kind == "f" and array.shape == shape else None
    return None


def _batched(batch: Batch, job: TimingJob, counter: Any) -> Pass:
    """Return a pass that steps from all inputs together."""
    [observed, acted] = [np.moveaxis(each, 0, -1) for each in (*job.observations, *job.actions)]

    def take(inputs: TimedInputs, weights: np.ndarray) -> np.ndarray:
        batch.stand(inputs.leaves[0] if job.fresh[0] else np.take(observed, inputs.rows, -1))
        answers = batch.step(np.take(acted, inputs.rows, -1))
        counter[0] += len(weights)
        return np.concatenate(
            [weighted(each.reshape(-1, len(weights)), weights) for each in answers]
        )

    return take
