"""World models of two programs."""

import numpy as np

from cwm_cli.sandbox import Limits, Sandbox
from cwm_cli.worlds import ProgramModel
from cwm_worldcoder.world_program import WorldProgram, nearest_missions
from folders import CORRIDOR
from object_worlds import MISSION, Corridor, rows_of, view_of

DYNAMICS, PAYS = ((CORRIDOR / name).read_text() for name in ("transition.py", "reward.py"))


def test_two_programs_join_to_a_program_that_predicts_the_rows() -> None:
    rows = rows_of(Corridor())
    world = WorldProgram(DYNAMICS, {MISSION: PAYS})
    program = world.source(view_of(rows))
    with Sandbox(Limits(), 1) as sandbox:
        found = ProgramModel(program, sandbox).predict(rows)
    assert found.failure is None
    assert np.array_equal(
        found.columns["next_observations.objects"], rows.columns["next_observations.objects"]
    )
    assert np.array_equal(found.columns["rewards"], rows.columns["rewards"])
    assert np.array_equal(found.columns["terminations"], rows.columns["terminations"])


def test_nearest_missions_differ_in_the_fewest_words() -> None:
    known = ["pick up the red ball", "open the red door", "get to the green goal square"]
    assert nearest_missions("pick up the blue ball!", known, 2) == known[:2]
