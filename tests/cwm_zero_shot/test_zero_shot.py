"""Zero-shot requests independent programs, with reasoning first."""

from dataclasses import dataclass, field

import numpy as np
import pytest

from cwm_cli.sandbox.failures import Failure
from cwm_cli.search.contracts import (
    GENERATE,
    Backend,
    Completion,
    Message,
    Move,
    Problem,
    Verdict,
    unheard,
)
from cwm_cli.search.loop import Search
from cwm_zero_shot.strategy import ZeroShot
from recordings import dataset, problem


@dataclass
class Judge(Problem):
    """Returns its verdicts in turn for any program."""

    verdicts: list[Verdict]

    def messages(self, move):
        return (Message(role="user", content=str(move)),)

    def judge(self, program):
        return self.verdicts.pop(0)


@dataclass
class Listening(Backend):
    """Answers with the seed of the request, and remembers the requests."""

    asked: list = field(default_factory=list)

    def complete(self, request):
        self.asked.append(request)
        return Completion(f"```python\nx = {request.seed}\n```")

    def worst_cost(self, request):
        return 0.0


def verdict(kind, score=0.0):
    return Verdict(score=score, failure=Failure(kind=kind, message="row 1"))


POOR = [verdict("load_error"), verdict("no_program"), verdict("mismatch", 0.1), verdict("memory")]
GOOD = [verdict("mismatch", score) for score in (0.99, 0.5, 0.7, 0.9)]


def asked(verdicts, parallel=1):
    backend = Listening()
    search = Search(Judge(list(verdicts)), ZeroShot(), backend, seed=4, parallel=parallel)
    list(search.run(len(verdicts)))
    requests = sorted(backend.asked, key=lambda request: request.step)
    return [request._replace(problem=None, tell=unheard, shorter=None) for request in requests]


@pytest.mark.parametrize("parallel", [1, 3])
def test_prompts_do_not_depend_on_verdicts(parallel):
    poor, good = asked(POOR, parallel), asked(GOOD, parallel)
    assert poor == good
    assert [request.move for request in poor] == [Move(GENERATE)] * 4


def test_same_prompt_is_sent_with_different_seeds():
    requests = asked(POOR)
    assert len({request.key for request in requests}) == 1
    assert len({request.seed for request in requests}) == 4
    assert [request.occurrence for request in requests] == [0, 1, 2, 3]


def test_best_program_of_the_budget_is_the_result():
    search = Search(Judge(list(POOR + GOOD)), ZeroShot(), Listening())
    list(search.run(8))
    assert search.best.id == len(POOR)


def test_nodes_have_no_state():
    search = Search(Judge(list(GOOD)), ZeroShot(), Listening())
    assert [search.strategy.state(record.node.id) for record in search.run(4)] == [""] * 4


def test_prompt_asks_for_step_by_step_reasoning_before_the_program():
    data = dataset([(n, n + 1, 0, False) for n in range(4)])
    move = ZeroShot().select(np.random.default_rng(0), [])
    question = problem((data, "A counter."), None).messages(move)[-1].content
    instruction = question.index("Think step by step before you write")
    assert question.index("class Environment") < instruction < question.index("the whole program")
