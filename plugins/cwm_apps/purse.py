"""Money that many searches share."""

import threading
from dataclasses import dataclass, field

from cwm_cli.errors import CwmError
from cwm_cli.search.contracts import GENERATE, Backend, Completion, Message, Move, Request


class OutOfMoneyError(CwmError):
    """Another completion might cost more than is left."""


@dataclass
class Purse(Backend):
    """A backend whose completions together never cost more than `limit` dollars.

    The worst cost of each call in flight is kept back, at list price. A call
    for which too little is left waits until none is in flight, and then fails.
    One whose cost stays unknown counts with the worst.
    """

    backend: Backend
    limit: float
    spent: float = 0.0
    _reserved: list[float] = field(default_factory=list, init=False)
    _change: threading.Condition = field(default_factory=threading.Condition, init=False)

    def __post_init__(self) -> None:
        """Refuse a model of unknown price."""
        question = (Message(role="user", content="?"),)
        self._worst(Request(question, 0, Move(GENERATE), None))

    def complete(self, request: Request) -> Completion:
        """Answer if there is money for it."""
        worst = self._worst(request)
        cost: float | None = 0.0
        self._take(worst)
        try:
            completion = self.backend.complete(request)
            cost = completion.usage.cost
        finally:
            self._settle(worst, worst if cost is None else cost)
        return completion

    def worst_cost(self, request: Request) -> float | None:
        """Return the worst cost of an answer."""
        return self.backend.worst_cost(request)

    def _worst(self, request: Request) -> float:
        worst = self.backend.worst_cost(request)
        if worst is None:
            raise CwmError("--max-cost needs a model of known price: leave it out for this model")
        return worst

    def _take(self, worst: float) -> None:
        """Keep money back, when others have given back what they did not use if need be."""
        with self._change:
            self._change.wait_for(lambda: not self._reserved or self._has(worst))
            if not self._has(worst):
                raise OutOfMoneyError(f"another completion might exceed --max-cost {self.limit:g}")
            self._reserved.append(worst)

    def _has(self, worst: float) -> bool:
        return self.spent + sum(self._reserved) + worst <= self.limit

    def _settle(self, worst: float, cost: float) -> None:
        """Pay, and let others know what is left."""
        with self._change:
            self.spent += cost
            self._reserved.remove(worst)
            self._change.notify_all()
