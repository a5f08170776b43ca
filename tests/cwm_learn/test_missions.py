"""Missions in words: plans, predictions and merged programs."""

import pytest

from cwm_cli.sandbox import Limits, Sandbox
from cwm_learn.imagination import SearchImagination
from cwm_learn.missions import (
    content_words,
    merge_programs,
)
from cwm_worldcoder.world_program import WorldProgram
from folders import CORRIDOR
from object_worlds import ACTIONS, MISSION, SCHEMA, Corridor, rows_of, view_of

FOLDER = CORRIDOR
DYNAMICS, PAYS = ((FOLDER / name).read_text() for name in ("transition.py", "reward.py"))


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox(Limits(), 2) as made:
        yield made


def test_search_finds_a_plan_for_the_mission(sandbox) -> None:
    rows = rows_of(Corridor(), 40)
    start, _ = Corridor().reset(seed=5)
    arrays = rows.observation_space.pack("observations", [start])
    asked = {
        "space": rows.observation_space.to_json(),
        "words": content_words(MISSION),
        "actions": ACTIONS,
        "schema": SCHEMA.to_json(),
    }
    reached = []
    for rewards in ({MISSION: PAYS}, {}):
        program = WorldProgram(DYNAMICS, rewards).source(view_of(rows))
        with SearchImagination(sandbox, program, rows, form="scalar") as imagination:
            found = imagination.ask("missions:find_plans", arrays, budget=600, **asked)
        reached.append(bool(found["reached"][0]))
    assert reached == [True, False]  # shaping without a reward is not a success
    env = Corridor()
    env.reset(seed=5)
    with SearchImagination(
        sandbox, WorldProgram(DYNAMICS, {MISSION: PAYS}).source(view_of(rows)), rows
    ) as imagination:
        found = imagination.ask("missions:find_plans", arrays, budget=600, **asked)
    plan = found["plans"][0, : found["lengths"][0]].tolist()
    assert [env.step(action)[1:3] for action in plan][-1] == (1.0, True)


def test_rows_are_predicted_although_the_program_fails_on_some_of_them(sandbox) -> None:
    rows = rows_of(Corridor(), 60)
    broken = DYNAMICS.replace('elif action == "toggle"', 'elif action == "toggle" and 1 / 0')
    program = WorldProgram(broken, {MISSION: PAYS}).source(view_of(rows))
    with SearchImagination(sandbox, program, rows, form="scalar") as imagination:
        found = imagination.ask(
            "missions:predict_rows",
            rows.select("observations", "actions"),
            space=rows.observation_space.to_json(),
        )
    toggled = rows.columns["actions"] == ACTIONS.index("toggle")
    assert ((found["errors"] != "") == toggled).all()
    assert set(found["errors"][toggled]) == {"ZeroDivisionError: division by zero"}


def test_merging_keeps_the_last_definition_and_skips_invalid_code() -> None:
    old = "K = 1\ndef helper():\n    return K\ndef transition(s, a):\n    return helper()\n"
    new = "def helper():\n    return 2\nprint('hello')\ndef unused():\n    return 3\n"
    code = merge_programs(old, new, "def broken(:\n", entries=["transition"])
    names: dict[str, object] = {}
    exec(code, names)
    assert names["transition"](None, None) == 2  # type: ignore[operator]
    assert "unused" not in code
    assert "hello" not in code
    assert "broken" not in code
