"""The confined process of a program: handlers that plan, step, or call functions in it.

Outside the sandbox, `program` asks for plans, `remote` for steps, and `imagining` for calls. This
module must not import these modules, because workers import it before each program.
"""

import sys
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from types import ModuleType
from typing import Any, ClassVar

import numpy as np

from cwm_cli.data.spaces import Space
from cwm_cli.errors import describe_exception
from cwm_cli.planning import PLANNERS, Decider, Planner, Unsuited, find_planner, stepping
from cwm_cli.planning.memory import ProgramWithMemory
from cwm_cli.planning.model import FORMS, LARGEST, Here, Model, Step, name
from cwm_cli.planning.program import Checks, Program
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
from cwm_cli.sandbox.job import ModelJob, abilities_of, slot_type
from cwm_cli.translation.forms import Form, Rows, Source, find_fastest_form
from cwm_cli.worlds.messages import (
    NO_PLACE,
    NO_STATE,
    SIZE,
    STEPPING,
    Codec,
    ImaginingJob,
    PlanningJob,
    PlanningReply,
    StartKind,
    SteppingJob,
    SteppingReply,
    SteppingRequest,
    decode_question,
    encode_outcomes,
    encode_reply,
    is_deterministic,
    pack,
    states_of,
    unpack,
)

# Import all planners before the process is confined with a program.
for _name in PLANNERS:
    find_planner(_name)


class PlanningHandler(Handler[PlanningJob]):
    """Plans for the moments of each question; every model step counts as progress."""

    job_class = PlanningJob

    def run(self, program: ConfinedProgram) -> None:
        """Answer questions until the pipe is closed."""
        job = self.job
        form = load_form(program.load(), job, job.form, program.counter)
        form.model.examples = job.examples
        planners = [find_planner(name)(**options) for name, options in job.planners]
        decider = Decider(planners, form.model, seed=job.seed)
        states, actions = states_of(job), Codec(job.action_space, "actions")
        while head := program.read(SIZE.size):
            moments = decode_question(program.read(*SIZE.unpack(head)), states)
            try:
                plans = decider.plan(moments)
            except Unsuited as reason:
                planned = PlanningReply([], [], 0, 0, str(reason))
            except Exception as error:
                if words := describe_planner_error(error, planners[len(decider.passed_over)]):
                    raise Complaint(words, "step_error") from error
                raise
            else:
                passed_over = [
                    f"not {name.rpartition(':')[2]}: it {reason}"
                    for (name, _), reason in zip(job.planners, decider.passed_over, strict=False)
                ]
                note = "; ".join([*passed_over, *form.program.notes])
                used = sum(1 << bit for bit, name in enumerate(FORMS) if name in form.program.used)
                planned = PlanningReply(plans, decider.steps, len(passed_over), used, note)
            reply = encode_reply(planned, actions)
            program.write(SIZE.pack(len(reply)) + reply)


def describe_planner_error(error: Exception, planner: Planner) -> str:
    """Return words for an exception that the code of a planner raised itself, "" for another."""
    file = sys.modules[type(planner).__module__].__file__ or ""
    frames = list(traceback.walk_tb(error.__traceback__))
    if frames[-1][0].f_code.co_filename != file:
        return ""
    return f"the planner raised {describe_exception(error, file)}"


def load_form(environment: Any, job: ModelJob, form: str, counter: Any) -> Form:
    """Return the fastest form of a program that agrees with it on the rows of the job.

    Args:
        environment: An object of the class that the program defines.
        job: The job with the recorded rows.
        form: "auto", or "scalar" for the program itself.
        counter: The counter of steps.
    """
    program = make_program(environment, job, counter)
    # Translated forms set the state from an observation, which a program with memory cannot.
    if program.remembers:
        program.notes.append("scalar: it has a memory")
        return Form(program, program)
    observations = values(job.observation_space, iter(job.observations))
    rows = Rows(list(observations), list(values(job.action_space, iter(job.actions))))
    return find_fastest_form(program, Source(job.program, job.observation_space), rows, form)


def make_program(environment: Any, job: ModelJob, counter: Any) -> Program:
    """Return the program as a model that checks each answer of the program."""
    space = job.action_space

    def read_reward(value: Any) -> float:
        reward = reward_of(value)
        if -LARGEST < reward < LARGEST:  # larger rewards have infinite returns
            return reward
        raise Complaint(f"the reward should be a finite number, got {reward}")

    contract = abilities_of(job.program).contract

    def read_valid_actions(value: Any) -> tuple[int, ...] | None:
        """Return the listed actions that are in the space; None, or () in a game, if none is."""
        low, high = int(space.low[0]), int(space.high[0])
        # Arrays of numbers are slow to check; random games ask after every move.
        plain = type(value) is list and all(type(a) is int for a in value)
        actions = value if plain else actions_of(value)
        found = tuple(sorted({int(a) for a in actions if low <= a <= high}))
        return found if found or contract == "game" else None

    checks = Checks(
        partial(parts, with_valid=job.valid),
        read_reward,
        terminated_of,
        _observation_reader(job.observation_space),
        read_valid_actions if job.valid else None,
        partial(outcomes_of, with_valid=job.valid),
    )
    model_class = ProgramWithMemory if contract == "memory" else Program
    program = model_class(
        environment,
        checks,
        action_space=job.action_space,
        deterministic=is_deterministic(job),
        counter=counter,
    )
    program.turn = job.turn
    # Seeding `random` and `numpy.random` takes time, and only programs that name them need it.
    program.draws_elsewhere = "random" in job.program.replace("rng.random(", "")
    return program


def _observation_reader(space: Space) -> Callable[[Any], Any]:
    """Return a function that checks an observation and copies it into trusted types."""
    # One row of slots is used for all observations, because new arrays would slow every step.
    slots = [np.zeros((1, *leaf.space.shape), slot_type(leaf.space)) for leaf in space.leaves("")]
    write = writer(space, iter(slots))

    def decoded(slot: np.ndarray) -> np.ndarray:
        return np.char.decode(slot, "utf-8", "replace") if slot.dtype.kind == "S" else slot

    def read(answer: Any) -> Any:
        write(0, answer)
        return next(values(space, map(decoded, slots)))

    return read


class SteppingHandler(Handler[SteppingJob]):
    """Steps the program for a planner outside the sandbox."""

    job_class = SteppingJob

    def run(self, program: ConfinedProgram) -> None:
        """Answer questions until the pipe is closed."""
        form = load_form(program.load(), self.job, self.job.form, program.counter)
        form.model.examples = self.job.examples
        stepper = _Stepper(form.model, self.job)
        while head := program.read(SIZE.size):
            reply = stepper.answer(program.read(*SIZE.unpack(head)))
            program.write(SIZE.pack(len(reply)) + reply)


class ImaginingHandler(Handler[ImaginingJob]):
    """Calls functions with the model, on request.

    `modules` contain the functions, by the name before the colon in a request. A subclass adds its
    own modules, which are imported before the process is confined.
    """

    job_class = ImaginingJob
    modules: ClassVar[Mapping[str, ModuleType]] = {"stepping": stepping}

    def run(self, program: ConfinedProgram) -> None:
        """Answer questions until the pipe is closed."""
        model = load_form(program.load(), self.job, self.job.form, program.counter).model
        while head := program.read(SIZE.size):
            call, arrays = unpack(program.read(*SIZE.unpack(head)))
            module, _, name = call["function"].partition(":")
            function = getattr(self.modules[module], name)
            before = model.counter[0]
            results = function(model, arrays, **call["options"])
            reply = pack({"steps": model.counter[0] - before}, results)
            program.write(SIZE.pack(len(reply)) + reply)


class _Stepper:
    """Answers questions about the steps of a model, and numbers the states (places) it reaches."""

    def __init__(self, model: Model, job: SteppingJob) -> None:
        self._original = self._model = model
        self._job = job
        self._numbers: dict[Any, int] = {}
        self._places: list[Any] = []
        self._histories = states_of(job)
        self._observations = Codec(job.observation_space, "observations")
        self._actions = Codec(job.action_space, "actions")

    def answer(self, question: bytes) -> bytes:
        """Set the state that the question names, and answer its request."""
        request, kind, start_size, starts, count, length, discount = STEPPING.unpack_from(question)
        body = question[STEPPING.size :]
        # These requests come first, because the other ones change the state of the model.
        if self._is_settled(request, body):
            return b""
        if request == SteppingRequest.STEP_ALL:
            return self._step_all(body, starts, count)
        states, size = self._read_states(kind, start_size, starts, body)
        if request == SteppingRequest.AGREE:
            return SteppingReply(0, self._model.agree(*states)).encode()
        if request == SteppingRequest.RETURNS:
            shape = (starts, count, length, *self._job.action_space.flat_shape)
            # A copy, because programs may change the actions that they get.
            plans: np.ndarray = np.frombuffer(bytearray(body[size:]), self._actions.dtype)
            before = self._model.counter[0]
            returns = self._model.returns(states, plans.reshape(shape), int(discount))
            head = SteppingReply(self._model.counter[0] - before)
            return head.encode() + returns.astype("<f8").tobytes()
        for state in states:
            self._model.stand(state)
        actions = self._actions.decode(body[size:], count)
        match request:
            case SteppingRequest.HERE:
                reply = self._reply(self._model.counter[0], Step(None, 0.0, False))
            case SteppingRequest.LEGAL:
                step = Step(None, 0.0, False, self._model.legal())
                reply = self._reply(self._model.counter[0], step)
            case SteppingRequest.PLAY_RANDOMLY:
                before = self._model.counter[0]
                total = self._model.play_randomly(int(discount), length)
                reply = SteppingReply(self._model.counter[0] - before, total).encode()
            case SteppingRequest.PLAY:
                before = self._model.counter[0]
                total = self._model.play(actions, discount)
                reply = SteppingReply(self._model.counter[0] - before, total).encode()
            case SteppingRequest.OUTCOMES | SteppingRequest.DRAW:
                reply = self._outcomes(actions[0], length)
            case _:
                reply = self._walk(actions, restores=bool(length))
        return reply

    def _is_settled(self, request: int, body: bytes) -> bool:
        """Handle a request that needs no state and no reply; return False for other requests."""
        match request:
            case SteppingRequest.SEED:
                self._model.draw_from(np.frombuffer(body, "<u8").tolist())
            case SteppingRequest.FORGET:
                self._model = self._original
                self._numbers.clear()
                self._places.clear()
            case SteppingRequest.ANEW:
                self._model = self._original.memoryless
            case SteppingRequest.FREE:
                # The numbers of other places stay, so the list keeps its length.
                for number in np.frombuffer(body, "<u8").tolist():
                    del self._numbers[name(self._places[number])]
                    self._places[number] = None
            case _:
                return False
        return True

    def _read_states(
        self, kind: int, start_size: int, starts: int, body: bytes
    ) -> tuple[list[Any], int]:
        """Return the start states, and the number of bytes that encode them."""
        if kind == StartKind.PLACE:
            numbers = np.frombuffer(body, "<u8", starts).tolist()
            return [self._places[number] for number in numbers], 8 * starts
        if kind == StartKind.HISTORY:
            return self._histories.decode(body[:start_size], starts), start_size
        size = starts * self._observations.size
        states = self._observations.decode(body[:size], starts)
        return [Here(s, None) for s in states] if kind == StartKind.STATELESS else states, size

    def _walk(self, actions: list[Any], *, restores: bool) -> bytes:
        """Take actions until the episode ends, optionally restoring the state before each step."""
        model, replies = self._model, []
        for number, action in enumerate(actions):
            if restores and number:
                # Steps as the planner would take them one by one, each from a restored state.
                model.stand(model.here())
            before, step = model.counter[0], model.step(action)
            replies.append(self._reply(before, step))
            if step.terminated:
                break
        return b"".join(replies)

    def _outcomes(self, action: Any, draws: int) -> bytes:
        """Return the results of this many draws of an action, or all possible results if 0."""
        model, before = self._model, self._model.counter[0]
        found = model.sample_outcomes(action, draws) if draws else model.outcomes(action) or []
        replies = [self._encode(0, result.step, result.state) for result in found]
        steps = SteppingReply(model.counter[0] - before).encode()
        return steps + encode_outcomes([result.probability for result in found], replies)

    def _step_all(self, body: bytes, lanes: int, count: int) -> bytes:
        """Take one action in all states, which are arrays of real numbers, or one in each."""
        space, before = self._job.observation_space, self._model.counter[0]
        states = np.frombuffer(body, "<f8", lanes * space.size).reshape(lanes, space.size).T
        # A copy, because programs may change the actions that they get.
        actions: np.ndarray = np.frombuffer(bytearray(body[states.nbytes :]), self._actions.dtype)
        shape = (count, *self._job.action_space.flat_shape)
        found, rewards, ends = self._model.step_all(states, actions.reshape(shape))
        head = SteppingReply(self._model.counter[0] - before).encode()
        return b"".join(
            (head, found.T.astype("<f8").tobytes(), rewards.astype("<f8").tobytes(), ends.tobytes())
        )

    def _reply(self, before: int, step: Step) -> bytes:
        """Return the reply to a step that began when the counter was `before`."""
        steps = self._model.counter[0] - before
        return self._encode(steps, step, self._model.here()).encode()

    def _encode(self, steps: int, step: Step, here: Any) -> SteppingReply:
        observation = here.observation if isinstance(here, Here) else here
        encoded = self._observations.encode([observation])
        place = NO_PLACE
        if isinstance(here, Here):
            place = NO_STATE
            if here.state is not None:  # equal places have the same number
                place = self._numbers.setdefault(name(here), len(self._places))
                if place == len(self._places):
                    self._places.append(here)
        return SteppingReply(steps, step.reward, step.terminated, place, step.valid, encoded)
