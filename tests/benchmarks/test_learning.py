"""The benchmark of learning: its counts and its report."""

import json
from xml.etree import ElementTree

import pytest

from benchmarks.learning.__main__ import baselines, conclusions, figure, is_reached, table
from benchmarks.learning.baselines import TABLE, algorithms, reached
from benchmarks.learning.goals import HELD_OUT, SUITES, threshold
from benchmarks.learning.ours import Case, measured

GOALS = {goal.name: goal for goals in SUITES.values() for goal in goals}
CAR, CLIFF = GOALS["MountainCar-v0"], GOALS["CliffWalking-v1"]


def run(hit: int | None, final: float, *, holds: bool = True, returned: float = -105.0) -> dict:
    return {
        "hit": hit,
        "hit_seconds": 4.0,
        "final": final,
        "returned": returned,
        "seconds": 10.0,
        "writing_seconds": 2.5,
        "checked": {"steps": 5000, "mismatches": 0, "holds": holds},
    }


def test_every_goal_has_a_name_of_its_own_and_twelve_systems_are_held_out() -> None:
    assert len(GOALS) == sum(map(len, SUITES.values()))
    assert len(HELD_OUT) == 12
    assert all(goal.returned is None and goal.most == 1500 for goal in HELD_OUT)


def test_who_plays_worse_in_the_end_has_not_reached_it() -> None:
    assert is_reached(run(150, -104.0))
    assert is_reached(run(150, -109.0))  # 20 other episodes
    assert not is_reached(run(150, -140.0))
    assert not is_reached(run(None, -104.0))
    assert not is_reached({"error": "it broke", "hit": None})


def test_medians_count_what_was_not_reached_as_endless(tmp_path) -> None:
    ours = {
        Case(CAR.name, 10): run(150, -104.0),
        Case(CAR.name, 11): run(190, -103.0, holds=False),
        Case(CAR.name, 12): run(170, -200.0),
    }
    line = list(table([CAR, CLIFF], ours, baselines(tmp_path), [10, 11, 12]))[-1]
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells[:5] == ["MountainCar-v0", "-105", "200", "190 (not reached)", "2 of 3"]
    assert cells[5:8] == ["4", "25.0 %", ""]
    assert cells[8:] == ["PPO 5,120 (at -120)", "27"]
    told = list(conclusions([CAR, CLIFF], ours, [10, 11, 12]))
    assert told[0] == "certificates: 3, of which 1 were exceeded in further steps"
    assert told[-1] == "writing programs took 25.0 % of the time of learning"
    drawn = ElementTree.fromstring(figure([CAR], ours, baselines(tmp_path), [10, 11, 12]))
    texts = [element.text for element in drawn.iter() if element.tag.endswith("text")]
    assert "cwm learn (3 runs)" in texts


def test_what_was_measured_here_comes_before_what_ships(tmp_path) -> None:
    (tmp_path / "baselines.csv").write_text(
        "name,algorithm,seed,returned,hit,steps,best,seconds,machine\n"
        f"{CLIFF.name},{TABLE},0,-13,100,100,-13,1,here\n"
    )
    found = [row for row in baselines(tmp_path) if row["name"] == CLIFF.name]
    assert {row["hit"] for row in found if row["seed"] == "0"} == {"100", "8000"}


def test_a_table_learns_a_dry_lake(tmp_path) -> None:
    lake = GOALS["FrozenLake 4x4, dry"]
    assert algorithms(lake) == ["DQN", TABLE]
    found = reached(lake, threshold(lake, tmp_path), TABLE, seed=0, seconds=60.0)
    assert found.best == 1.0
    assert found.hit is not None
    assert 100 <= found.hit == found.steps <= 5000


@pytest.mark.long
def test_learning_is_measured_with_episodes_from_which_nothing_is_learned() -> None:
    found = measured(CLIFF, -13.0, 10)
    assert json.loads(json.dumps(found)) is not None
    assert found["hit"] <= 150
    assert (found["final"], found["stopped"]) == (-13.0, "certified")
    assert found["checked"]["steps"] >= 5000


def test_the_shipped_baselines_are_of_goals(tmp_path) -> None:
    assert {row["name"] for row in baselines(tmp_path)} <= GOALS.keys()
