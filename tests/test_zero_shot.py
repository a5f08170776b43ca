"""Zero-shot asks for independent programs."""

import numpy as np

from cwm_cli.llm import ROOT, Action, Move, Usage
from cwm_cli.programs import Failure, Verdict
from cwm_cli.search import Node
from cwm_zero_shot.strategy import ZeroShot


def test_every_program_is_written_from_scratch():
    strategy, rng = ZeroShot(), np.random.default_rng(0)
    for number, kind in enumerate(["mismatch", "load_error", "mismatch"]):
        assert strategy.select(rng, [Move(Action.GENERATE)]) == Move(Action.GENERATE)
        verdict = Verdict(score=0.5, failure=Failure(kind=kind, message="row 1"))
        node = Node(
            id=number,
            step=number,
            parent=ROOT,
            action=Action.GENERATE,
            program="x = 1\n",
            verdict=verdict,
            prompt="",
            usage=Usage(),
        )
        strategy.update(node)
        assert strategy.state(number) == ""
