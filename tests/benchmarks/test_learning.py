"""The benchmark of learning: goals, table, summary and baselines."""

import json
from xml.etree import ElementTree

import pytest

from benchmarks.learning.__main__ import (
    draw_figure,
    is_reached,
    load_baselines,
    summary_lines,
    table,
)
from benchmarks.learning.baselines import TABLE, algorithms, measure_baseline
from benchmarks.learning.goals import HELD_OUT, SUITES, threshold
from benchmarks.learning.ours import Case, measure

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


def test_goal_names_are_unique_and_twelve_systems_are_held_out() -> None:
    assert len(GOALS) == sum(map(len, SUITES.values()))
    assert len(HELD_OUT) == 12
    assert all(goal.returned is None and goal.max_steps == 1500 for goal in HELD_OUT)


def test_goal_is_not_reached_if_the_final_play_is_worse() -> None:
    assert is_reached(run(150, -104.0))
    assert is_reached(run(150, -109.0))  # 20 other episodes
    assert not is_reached(run(150, -140.0))
    assert not is_reached(run(None, -104.0))
    assert not is_reached({"error": "it broke", "hit": None})


def test_medians_treat_failed_runs_as_infinite(tmp_path) -> None:
    ours = {
        Case(CAR.name, 10): run(150, -104.0),
        Case(CAR.name, 11): run(190, -103.0, holds=False),
        Case(CAR.name, 12): run(170, -200.0),
    }
    line = list(table([CAR, CLIFF], ours, load_baselines(tmp_path), [10, 11, 12]))[-1]
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells[:5] == ["MountainCar-v0", "-105", "200", "190 (not reached)", "2 of 3"]
    assert cells[5:8] == ["4", "25.0 %", ""]
    assert cells[8:] == ["PPO 5,120 (at -120)", "27"]
    lines = list(summary_lines([CAR, CLIFF], ours, [10, 11, 12]))
    assert lines[0] == "certificates: 3 (1 exceeded in further steps)"
    assert lines[-1] == "writing programs took 25.0 % of the time of learning"
    svg = ElementTree.fromstring(draw_figure([CAR], ours, load_baselines(tmp_path), [10, 11, 12]))
    texts = [element.text for element in svg.iter() if element.tag.endswith("text")]
    assert "cwm learn (3 runs)" in texts


def test_baselines_measured_here_override_those_of_the_package(tmp_path) -> None:
    (tmp_path / "baselines.csv").write_text(
        "name,algorithm,seed,returned,hit,steps,best,seconds,machine\n"
        f"{CLIFF.name},{TABLE},0,-13,100,100,-13,1,here\n"
    )
    found = [row for row in load_baselines(tmp_path) if row["name"] == CLIFF.name]
    assert {row["hit"] for row in found if row["seed"] == "0"} == {"100", "8000"}


def test_tabular_q_learning_solves_a_dry_lake(tmp_path) -> None:
    lake = GOALS["FrozenLake 4x4, dry"]
    assert algorithms(lake) == ["DQN", TABLE]
    found = measure_baseline(lake, threshold(lake, tmp_path), TABLE, seed=0, seconds=60.0)
    assert found.best == 1.0
    assert found.hit is not None
    assert 100 <= found.hit == found.steps <= 5000


@pytest.mark.long
def test_measurement_of_learning_ends_with_a_checked_certificate() -> None:
    found = measure(CLIFF, -13.0, 10)
    assert json.loads(json.dumps(found)) is not None
    assert found["hit"] <= 150
    assert (found["final"], found["stopped"]) == (-13.0, "certified")
    assert found["checked"]["steps"] >= 5000


def test_baselines_of_the_package_are_for_known_goals(tmp_path) -> None:
    assert {row["name"] for row in load_baselines(tmp_path)} <= GOALS.keys()
