"""The demonstration: a search with each kind of move, with a model on the loopback."""

import pytest

from benchmarks.every_move.__main__ import demonstrate
from cwm_cli.runs.searches import SearchRun
from cwm_cli.search.contracts import FIX, GENERATE, IMPROVE, SIMPLIFY, START


@pytest.mark.long
def test_a_search_makes_each_kind_of_move_and_finds_the_right_program(tmp_path, capfd):
    demonstrate(tmp_path, options=("-o", "calibrate_steps=60000"))
    run = SearchRun.load(tmp_path / "run")
    nodes = list(run.nodes())
    moves = {node.action for node in nodes}
    assert {START, GENERATE, IMPROVE, FIX, SIMPLIFY, "calibrate", "patch", "join"} == moves
    assert nodes[0].action == START
    assert nodes[-1].verdict.solved
    assert run.summary().completions == sum(node.asked for node in nodes) < len(nodes)
    drawn = capfd.readouterr().out
    assert "#0 start" in drawn
    assert all(len(line) <= 80 for line in drawn.splitlines() if "#" in line)
