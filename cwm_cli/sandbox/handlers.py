"""What is done in the process of a program, for each kind of job."""

import os
import random
import sys
from collections.abc import Callable, Iterator
from copy import deepcopy
from importlib import import_module
from itertools import compress
from types import CodeType, ModuleType
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np

from cwm_cli.data.spaces import Columns, Space
from cwm_cli.sandbox.abilities import Abilities, abilities_of
from cwm_cli.sandbox.answers import (
    Complaint,
    mask_writer,
    parts,
    recorder,
    reward_of,
    terminated_of,
    values,
    writer,
)
from cwm_cli.sandbox.chance import ComparedSteps, DrawGenerator, outcomes_of
from cwm_cli.sandbox.job import (
    COUNT,
    MOST_OUTCOMES,
    SIZE,
    START_BYTES,
    DrawsJob,
    EpisodesJob,
    Job,
    ModelJob,
    OutcomesJob,
    Phase,
    PredictionJob,
    answer_slots,
)

CHANNEL_DESCRIPTOR = 4
"""The first of two in a conversation: questions come in, replies go out."""

J = TypeVar("J", bound=Job)


class ConfinedProgram:
    """A program in its own process, once every guard is up; `slots` are those of its answers."""

    def __init__(self, code: CodeType, job: Job, slots: Columns) -> None:
        self.code, self.slots = code, slots
        self._job = job
        self._factory: Callable[[], Any] = object
        self.abilities = abilities_of(job.program)
        self.generator = DrawGenerator(job.seed) if self.abilities.draws else None
        """What the program finds as `self.rng`, where it looks for that."""
        self._draws_elsewhere = "random" in job.program.replace("rng.random(", "")

    def load(self) -> Any:
        """Run the text of the program and make its Environment, anew with each call."""
        if self._job.draws:
            reseed(self._job.seed)
        module = ModuleType("world_model")
        sys.modules[module.__name__] = module
        exec(self.code, module.__dict__)  # noqa: S102
        factory = getattr(module, "Environment", None)
        if not callable(factory):
            raise Complaint("the program defines no class Environment")
        self._factory = factory
        environment = self.another()
        _check_methods(environment, self.abilities)
        self.begin()
        return environment

    def another(self) -> Any:
        """Make one more Environment of a program that is loaded."""
        if self.generator is None:
            return self._factory()
        self.generator.put(self._factory)
        environment = self._factory()
        self.generator.put(type(environment), environment)
        return environment

    def begin_draw(self, start: bytes) -> None:
        """Seed all random numbers of the program for one draw, by `START_BYTES` random bytes."""
        if self._draws_elsewhere:
            reseed(*np.frombuffer(start, "<u4").tolist())
        if self.generator is not None:
            self.generator.begin(start)

    def begin(self) -> None:
        """Note that the program is loaded: what takes long or fails from now on is a step."""
        self.slots["phase"][...] = Phase.STEPPING

    @property
    def counter(self) -> memoryview:
        """Where steps are counted, in the first element; a step that takes too long is ended."""
        return self.slots["progress"].reshape(1).data

    def read(self, size: int) -> bytes:
        """Read as many bytes of a question; none when nobody is left to ask."""
        pieces = []
        while size and (piece := os.read(CHANNEL_DESCRIPTOR, size)):
            pieces.append(piece)
            size -= len(piece)
        return b"".join(pieces)

    def write(self, reply: bytes) -> None:
        """Write a reply."""
        while reply:
            reply = reply[os.write(CHANNEL_DESCRIPTOR + 1, reply) :]


class Handler(Generic[J]):
    """Does a job in the process of a program: one subclass for each kind of job.

    A worker imports it when it starts, so what it needs has to be imported at the top
    of its module. `prepare` is called before the last guards are up and `run` after
    that, once each; whatever `run` raises is the failure of the program, and a
    `Complaint` says what is wrong with it in words.

    A handler for a job that calls a function of a program once:

        class CallHandler(Handler[CallJob]):
            job_class = CallJob

            def run(self, program: ConfinedProgram) -> None:
                names: dict[str, Any] = {}
                exec(program.code, names)
                program.begin()
                print(names[self.job.function]())
    """

    job_class: ClassVar[type[Job]]

    def __init__(self, job: J) -> None:
        self.job = job

    def prepare(self) -> None:
        """Do what the guards would not let; nothing of the program has run yet."""

    def run(self, program: ConfinedProgram) -> None:
        """Do the job. For a conversation that is to answer until there is nobody left to ask."""
        raise NotImplementedError


def handler_class(address: str) -> type[Handler[Any]]:
    """Return the handler at an address, module:name."""
    module, _, name = address.partition(":")
    found: type[Handler[Any]] = getattr(import_module(module), name)
    return found


def reseed(*key: int) -> None:
    """Begin the random numbers of Python and numpy anew, so that answers can be repeated."""
    random.seed(repr(key))
    np.random.seed([part % 2**32 for part in key])


def _check_methods(environment: Any, abilities: Abilities) -> None:
    """Refuse an environment that lacks a method of its contract."""
    wanted = ["set_state", "outcomes" if abilities.tells else "step"]
    if abilities.remembers:
        wanted = ["reset", "step", "correct", *["outcomes"] * abilities.tells]
    has = {name: getattr(environment, name, None) for name in (*wanted, "correct", "reset")}
    for name in wanted:
        if callable(has[name]):
            continue
        words = f"the class Environment has no method {name}"
        if abilities.remembers:
            words += ": one with correct is asked along episodes, by reset, step and correct"
            raise Complaint(words, "wrong_contract", about=has["correct"])
        if callable(has["reset"]):
            words += ", and with reset it would take correct: write both or neither"
            raise Complaint(words, "wrong_contract", about=has["reset"])
        raise Complaint(words)


class PredictionHandler(Handler[PredictionJob]):
    """Asks for every row."""

    job_class = PredictionJob

    def run(self, program: ConfinedProgram) -> None:
        """Ask for one row after the other; this loop is where the time goes."""
        environment, slots, space = program.load(), program.slots, self.job.observation_space
        write = writer(space, (slots[leaf.name] for leaf in space.leaves("next_observations")))
        write_valid = None
        if self.job.valid:
            write_valid = mask_writer(self.job.action_space, slots["valid_actions"])
        rewards, progress = slots["rewards"], program.counter
        terminations, status = slots["terminations"].data, slots["status"].data
        set_state, step = environment.set_state, environment.step
        for row, (observation, action) in enumerate(self._inputs(program)):
            set_state(observation)
            result = step(action)
            if write_valid:
                *result, valid = parts(result, with_valid=True)
                write_valid(row, valid)
            elif type(result) is not tuple or len(result) != 3:
                result = parts(result)
            next_observation, reward, terminated = result
            write(row, next_observation)
            rewards[row] = reward if type(reward) is float else reward_of(reward)
            terminations[row] = (
                terminated if type(terminated) is bool else terminated_of(terminated)
            )
            status[row] = 1
            progress[0] = row + 1

    def _inputs(self, program: ConfinedProgram) -> Iterator[tuple[Any, Any]]:
        """Yield observations and actions; random numbers are seeded for each."""
        job = self.job
        observations = values(job.observation_space, iter(job.observations))
        actions = values(job.action_space, iter(job.actions))
        pairs = zip(observations, actions, strict=True)
        return pairs if job.starts is None else _seeded(program, job.starts, pairs)


def _seeded(
    program: ConfinedProgram, starts: np.ndarray, pairs: Iterator[tuple[Any, Any]]
) -> Iterator[tuple[Any, Any]]:
    """Yield pairs, and begin a draw before each; `starts` have the shape (rows, 1, 2)."""
    for start, pair in zip(starts, pairs, strict=True):
        program.begin_draw(start.tobytes())
        yield pair


class OutcomesHandler(Handler[OutcomesJob]):
    """Asks what can follow on every row, and has the program take a step there if it can."""

    job_class = OutcomesJob

    def run(self, program: ConfinedProgram) -> None:
        """Ask for one row after the other."""
        environment = program.load()
        try:
            self._ask(program, environment)
        except Complaint as complaint:
            raise complaint.blame(environment.outcomes) from None

    def _ask(self, program: ConfinedProgram, environment: Any) -> None:
        job, slots, progress = self.job, program.slots, program.counter
        every = _flattened(job, slots)
        record = recorder(job.observation_space, every, _allowed(job))
        compared = None
        if job.checked and callable(getattr(environment, "step", None)):
            compared = ComparedSteps(
                job.observation_space, every, _allowed(job), drawn=program.abilities.draws
            )
        pairs: Iterator[tuple[Any, Any]] = zip(
            values(job.observation_space, iter(job.observations)),
            values(job.action_space, iter(job.actions)),
            strict=True,
        )
        pairs = pairs if job.starts is None else _seeded(program, job.starts, pairs)
        for row, (observation, action) in enumerate(pairs):
            environment.set_state(observation)
            told = outcomes_of(environment.outcomes(action), with_valid=job.valid)
            slots["counts"][row] = len(told)
            if len(told) <= job.places:
                first = row * job.places
                for place, outcome in enumerate(told, start=first):
                    record(place, outcome.answer)
                chances = slots["probabilities"][row, : len(told)]
                chances[:] = [outcome.probability for outcome in told]
                if compared is not None:
                    compared.add(environment.step(action), chances, first)
            slots["status"][row] = 1
            progress[0] = row + 1
        if compared is not None:
            compared.judge()


class DrawsHandler(Handler[DrawsJob]):
    """Asks for several draws of what follows on every row."""

    job_class = DrawsJob

    def run(self, program: ConfinedProgram) -> None:
        """Ask for one row after the other, and in each for one draw after the other."""
        job, environment = self.job, program.load()
        status, progress = program.slots["status"], program.counter
        record = recorder(job.observation_space, _flattened(job, program.slots), _allowed(job))
        set_state, step, begin = environment.set_state, environment.step, program.begin_draw
        assert job.starts is not None
        place = 0
        for row, starts in enumerate(job.starts):
            observations = _repeated(job.observation_space, job.observations, row, job.several)
            actions = _repeated(job.action_space, job.actions, row, job.several)
            for start, observation, action in zip(
                _split(starts), observations, actions, strict=True
            ):
                begin(start)
                set_state(observation)
                record(place, step(action))
                place += 1
                progress[0] = place
            status[row] = 1


class EpisodesHandler(Handler[EpisodesJob]):
    """Asks along episodes, each with an environment of its own."""

    job_class = EpisodesJob

    def run(self, program: ConfinedProgram) -> None:
        """Answer questions about one step of all episodes until nobody asks any more."""
        self._program, self._answers = program, np.zeros(self._most(), self.job.answer_type)
        slots = {name: self._answers[name] for name in self._answers.dtype.names or ()}
        self._chances = slots.pop("probabilities")
        space, allowed = self.job.observation_space, _allowed(self.job)
        self._record = recorder(space, slots, allowed)
        self._compared = None
        if self.job.checked:
            self._compared = ComparedSteps(space, slots, allowed, drawn=program.abilities.draws)
        first = program.load()
        environments: list[Any] = [None] * self.job.episodes
        try:
            while head := program.read(SIZE.size):
                question = program.read(*SIZE.unpack(head))
                goes_on = question[: len(environments)]
                asked = np.frombuffer(question, self.job.asked_type, offset=len(environments))
                environments = list(compress(environments, goes_on))
                program.write(self._reply(environments, asked, first))
        except Complaint as complaint:
            raise complaint.blame(getattr(first, "outcomes", first.step)) from None

    def _most(self) -> int:
        """Return how many answers there may be to one question."""
        return max(MOST_OUTCOMES, self.job.several)

    def _reply(self, environments: list[Any], asked: np.ndarray, first: Any) -> bytes:
        """Say what happened to each episode, if it has begun, and have it go on."""
        job, program = self.job, self._program
        observations = values(
            job.observation_space, _leaves(job.observation_space, asked, "observations")
        )
        actions = values(job.action_space, _leaves(job.action_space, asked, "actions"))
        counts, answers = [], []
        rows = zip(observations, asked["rewards"].tolist(), asked["starts"], actions, strict=True)
        for number, (observation, reward, starts, action) in enumerate(rows):
            environment = environments[number]
            if environment is None:
                environments[number] = environment = program.another() if number else first
                environment.reset(observation)
            else:
                environment.correct(observation, reward)
            counts.append(self._predict(environment, action, _split(starts)))
            answers.append(self._answers[: counts[-1]].tobytes())
            program.counter[0] += 1
        if self._compared is not None:
            self._compared.judge()
        return np.array(counts, COUNT).tobytes() + b"".join(answers)

    def _predict(self, environment: Any, action: Any, starts: list[bytes]) -> int:
        """Have an environment predict and take a step; return how many answers it gave.

        The environment makes the first draw and continues from it. Its copies make all further
        draws.
        """
        program, (first, *others) = self._program, starts
        if program.abilities.tells:
            program.begin_draw(first)
            told = outcomes_of(environment.outcomes(action), with_valid=self.job.valid)
            for place, outcome in enumerate(told):
                self._record(place, outcome.answer)
                self._chances[place] = outcome.probability
            result = environment.step(action)
            if self._compared is not None:
                self._compared.add(result, self._chances[: len(told)], 0)
            return len(told)
        for place, start in enumerate(others, start=1):
            program.begin_draw(start)
            self._record(place, deepcopy(environment).step(action))
        program.begin_draw(first)
        self._record(0, environment.step(action))
        return len(starts)


def _split(starts: np.ndarray) -> list[bytes]:
    """Return where each draw of a row begins."""
    data = starts.tobytes()
    return [data[at : at + START_BYTES] for at in range(0, len(data), START_BYTES)]


def _leaves(space: Space, records: np.ndarray, name: str) -> Iterator[np.ndarray]:
    """Yield the columns of records that values of a space have under a name."""
    return (records[leaf.name] for leaf in space.leaves(name))


def _repeated(space: Space, leaves: list[np.ndarray], row: int, times: int) -> Iterator[Any]:
    """Yield the value of a row several times, each a copy of its own."""
    columns = (np.broadcast_to(leaf[row], (times, *leaf.shape[1:])) for leaf in leaves)
    return values(space, columns)


def _flattened(job: PredictionJob, slots: Columns) -> Columns:
    """Return the slots of answers of which each row has several, one after the other."""
    names = [name for name, *_ in answer_slots(job.observation_space, (), job.allowable)]
    return {name: slots[name].reshape(-1, *slots[name].shape[2:]) for name in names}


def _allowed(job: ModelJob) -> Space | None:
    """Return the actions of which a step says whether they are valid, where it says so."""
    return job.action_space if job.valid else None
