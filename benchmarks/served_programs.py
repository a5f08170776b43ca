"""Answers of a loopback server: wrong programs of the backend `simulated`, after a delay."""

import time
from pathlib import Path
from typing import Any

from cwm_cli.search.contracts import GENERATE, Move, Request
from cwm_simulated.backend import Simulated
from tests.support.openai_server import Behaviour, Handler, answer


class WrongPrograms:
    """Answers of a server: programs with 12 errors on average, determined by the request's seed.

    Args:
        program: The correct program.
        latency: Seconds before an answer.
        tokens: Numbers of prompt and completion tokens that the server reports, if they matter.
    """

    def __init__(self, program: Path, latency: float = 0.0, tokens: tuple[int, ...] = ()) -> None:
        self._simulated = Simulated(program=str(program), errors=12.0)
        self._latency, self._tokens = latency, tokens

    def __call__(self, body: dict[str, Any]) -> Behaviour:
        """Return the answer to a request."""
        request = Request((), body["seed"], Move(GENERATE), None)
        return late(answer(self._simulated.complete(request).text, *self._tokens), self._latency)


def late(behaviour: Behaviour, seconds: float) -> Behaviour:
    """Delay an answer."""

    def answer_late(handler: Handler) -> None:
        time.sleep(seconds)
        behaviour(handler)

    return answer_late
