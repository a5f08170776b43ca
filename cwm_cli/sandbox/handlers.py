"""What is done in the process of a program, for each kind of job."""

import os
import random
import sys
from collections.abc import Iterator
from importlib import import_module
from types import CodeType, ModuleType
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np

from cwm_cli.data.spaces import Columns
from cwm_cli.sandbox.answers import (
    Complaint,
    mask_writer,
    parts,
    reward_of,
    terminated_of,
    values,
    writer,
)
from cwm_cli.sandbox.job import Job, Phase, PredictionJob

CHANNEL_DESCRIPTOR = 4
"""The first of two in a conversation: questions come in, replies go out."""

J = TypeVar("J", bound=Job)


class ConfinedProgram:
    """A program in its own process, once every guard is up; `slots` are those of its answers."""

    def __init__(self, code: CodeType, job: Job, slots: Columns) -> None:
        self.code, self.slots = code, slots
        self._job = job

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
        environment = factory()
        for method in ("set_state", "step"):
            if not callable(getattr(environment, method, None)):
                raise Complaint(f"the class Environment has no method {method}")
        self.begin()
        return environment

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
        for row, (observation, action) in enumerate(self._inputs()):
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

    def _inputs(self) -> Iterator[tuple[Any, Any]]:
        """Yield observations and actions; random numbers begin anew with each."""
        job = self.job
        observations = values(job.observation_space, iter(job.observations))
        actions = values(job.action_space, iter(job.actions))
        pairs = zip(observations, actions, strict=True)
        return pairs if job.seeds is None else _reseeded(job.seeds, pairs)


def _reseeded(seeds: np.ndarray, pairs: Iterator[tuple[Any, Any]]) -> Iterator[tuple[Any, Any]]:
    """Yield pairs, before each of which random numbers begin at a seed of its own."""
    for seed, pair in zip(seeds.tolist(), pairs, strict=True):
        reseed(seed)
        yield pair
