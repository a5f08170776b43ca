"""The trusted side of a planning session: observation in, actions out."""

from collections.abc import Sequence
from typing import Any, Literal, Self

import numpy as np

from cwm_cli.data.spaces import Space
from cwm_cli.planning.model import FORMS
from cwm_cli.planning.planner import Moment, Unsuited
from cwm_cli.sandbox.client import Conversation, Sandbox
from cwm_cli.sandbox.failures import KILLED_WORKERS, Failure, printable
from cwm_cli.sandbox.messages import (
    LONGEST_NOTE,
    SIZE,
    PlanningJob,
    PlanningReply,
    Record,
    decode_reply,
    encode_question,
    most_bytes,
)
from cwm_cli.sandbox.pool import WorkerLost
from cwm_cli.sandbox.results import Plan, Report

FORGED = Failure(
    kind="wrong_output",
    message="the program meddled with its process, which answered with no plan",
)


class Session:
    """Plans with a program, one decision after the other; to be closed, as by `with`.

    The program lives in one confined process, which is replaced after it
    failed. The limits hold for each call of `plan`, loading the program included.
    Between the first call and `close` a worker is taken. `steps` counts those of
    the model, `report` says what the last plans were made with.
    """

    def __init__(self, sandbox: Sandbox, job: PlanningJob) -> None:
        self._sandbox = sandbox
        self._job = job
        self.steps = 0
        self.report: Report | None = None
        self._failure: Failure | None = None
        self._process: Conversation | None = None
        self._observations, self._actions = (
            Record(job.observation_space, "observations"),
            Record(job.action_space, "actions"),
        )

    def plan(self, moments: Sequence[Moment]) -> list[Plan]:
        """Return what to do at each of some moments of different episodes.

        Where planning for all of them fails they are planned for one by one.
        `Unsuited` when no planner can plan with the program.
        """
        plans = self._plan(moments) if len(moments) > 1 else []
        return plans or [plan for moment in moments for plan in self._alone(moment)]

    def close(self) -> None:
        """End the process of the program."""
        process, self._process = self._process, None
        if process is not None:
            process.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _alone(self, moment: Moment) -> list[Plan]:
        """Plan for one moment."""
        return self._plan([moment]) or [Plan([], self._failure)]

    def _plan(self, moments: Sequence[Moment]) -> list[Plan]:
        """Plan for moments together; none where that fails."""
        question = encode_question(moments, self._observations)
        reply = self._sandbox.insist(lambda: self._ask(question, moments))
        if reply is None:
            self._failure = KILLED_WORKERS
        if not reply:
            return []
        self.steps += reply.steps
        self.report = Report(
            self._job.planners[reply.planner][0],
            tuple(form for bit, form in enumerate(FORMS) if reply.forms >> bit & 1),
            printable(reply.note, LONGEST_NOTE),
        )
        return [Plan(plan, None) for plan in reply.plans]

    def _ask(self, question: bytes, moments: Sequence[Moment]) -> PlanningReply | Literal[False]:
        """Ask the process, a new one unless there is one; False when that fails."""
        if self._process is None:
            self._process = self._sandbox.converse(self._job)
        process = self._process
        try:
            process.send(SIZE.pack(len(question)) + question)
            reply = self._read(process, moments)
        except EOFError:
            self._process = None
            self._failure = process.failure()
            return False
        except ValueError:
            self.close()
            self._failure = FORGED
            return False
        except WorkerLost:
            self.close()
            raise
        if not reply.plans:
            self.close()
            raise Unsuited(printable(reply.note, LONGEST_NOTE))
        return reply

    def _read(self, process: Conversation, moments: Sequence[Moment]) -> PlanningReply:
        """Return what the process answers; ValueError when it makes no sense."""
        [size] = SIZE.unpack(process.receive(SIZE.size))
        if size > most_bytes(moments, self._actions):
            raise ValueError(f"a reply of {size} bytes")
        reply = decode_reply(process.receive(size), moments, self._actions)
        if reply.planner >= len(self._job.planners):
            raise ValueError(f"the planner {reply.planner}")
        process.rest()
        plans = _admitted(reply.plans, self._job.action_space)
        for plan, moment in zip(plans, moments, strict=bool(plans)):
            if moment.valid is not None and plan[0] not in moment.valid:
                raise ValueError(f"{plan[0]} is not allowed")
        return reply._replace(plans=plans)


def _admitted(plans: list[list[Any]], space: Space) -> list[list[Any]]:
    """Return actions in the type of their environment; ValueError when one is out of bounds."""
    values = np.array([action for plan in plans for action in plan]).reshape(-1, space.size)
    if not ((np.asarray(space.low) <= values) & (values <= np.asarray(space.high))).all():
        raise ValueError("what is planned is no action")
    if space.kind == "discrete":
        return plans
    return [[np.asarray(action, dtype=space.dtype) for action in plan] for plan in plans]
