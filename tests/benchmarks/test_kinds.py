"""The comparison of kinds of world models on the same rows."""

from contextlib import suppress

import numpy as np
import pytest

from benchmarks.kinds import measures, tables
from benchmarks.parts import Job, Part, measure_parts
from cwm_cli.text import UNKNOWN


@pytest.fixture
def small(monkeypatch):
    """Make the benchmark as small as possible."""
    for name, value in {
        "SIZES": (60,),
        "ROLLOUTS": 2,
        "EPISODES": 1,
        "MAX_STEPS": 4,
        "TRAINED": {kind: {**how, "steps": 20} for kind, how in measures.TRAINED.items()},
    }.items():
        monkeypatch.setattr(measures, name, value)


RESULTS = {
    Job("references", "CartPole-v1 oracle", 200): {"return": 90.0, "random": 10.0},
    Job("references", "CartPole-v1 recalled", 200): {"return": 110.0, "random": 10.0, "size": 36},
    Job("CartPole-v1", "ensemble 100", 200): {"return": 35.0, "exact": 0.25, "seconds": 20.0},
    Job("CartPole-v1", "ensemble 100", 201): {"return": 85.0, "exact": 0.75, "seconds": 30.0},
    Job("CartPole-v1", "cql 1000", 200): {"return": -190.0, "size": 4866, "seconds": 9.0},
    Job("CartPole-v1", "dreamer 100", 200): {"limit": 600},
}


def test_results_survive_the_csv_file(tmp_path):
    found = {job: {**each, "machine": "2 cores, load 5"} for job, each in RESULTS.items()}
    tables.save(found, tmp_path / "results.csv")
    assert tables.load(tmp_path / "results.csv") == found
    assert tables.load(tmp_path / "missing.csv") == {}
    lines = (tmp_path / "results.csv").read_text().splitlines()
    assert lines[1].startswith("CartPole-v1,oracle,,200,")


def test_shipped_results_belong_to_cases_of_the_benchmark():
    cases = {f"{env} {case}" for env in measures.ENVIRONMENTS for case in measures.cases_of()}
    found = tables.load(tables.SHIPPED)
    assert found
    for job in found:
        name = job.case if job.part == tables.REFERENCES else f"{job.part} {job.case}"
        assert name in cases | set(measures.references())
        assert job.seed >= measures.PLAY_SEED


def test_normalised_return_compares_with_the_better_reference():
    cells = tables.by_cell(RESULTS)
    found = cells[tables.Cell("CartPole-v1", "ensemble", "100")]
    assert [each["normalised"] for each in found] == [0.25, 0.75]
    assert cells[tables.Cell("CartPole-v1", "cql", "1000")][0]["normalised"] == -2.0
    assert cells[tables.Cell("CartPole-v1", "dreamer", "100")][0]["normalised"] is None


def test_tables_show_ranges_over_seeds_and_cells_over_the_limit():
    lines = [line.replace(" ", "").replace(UNKNOWN, "?") for line in tables.markdown(RESULTS)]
    assert any(line.startswith("|ensemble|100|0.50(0.25to0.75)|?|") for line in lines)
    assert any(line.startswith("|dreamer|100|over600s|?|") for line in lines)
    assert "|ensemble|100|2of21|0|25(30)|?|" in lines
    assert "|dreamer|100|1of21|1|?|?|" in lines
    assert "|cql|1,000|1of21|0|9(9)|4,866parameters|" in lines
    assert "|transformer|100|0of21|0|?|?|" in lines
    assert sum(line.startswith("|transformer|") for line in lines) == 3


def test_figure_has_a_line_for_each_kind_and_cuts_very_low_returns():
    chart = tables.figure("CartPole-v1", RESULTS)
    assert chart.startswith("<svg")
    assert "ensemble" in chart and "cql" in chart and "transformer" not in chart
    assert "-2" not in [piece.split("<")[0] for piece in chart.split(">")]
    assert tables.figure("Taxi-v4", RESULTS) == ""


def test_a_case_over_its_time_limit_is_recorded_as_such(monkeypatch, tmp_path):
    def endless(*_):
        while True:
            with suppress(OSError, RuntimeError, TimeoutError):  # as libraries do
                sum(range(1000))

    monkeypatch.setattr(measures, "_measure", endless)
    monkeypatch.setattr(measures, "LIMIT_SECONDS", 0.1)
    found = measures.measure_case("CartPole-v1")("induction 100", 200, tmp_path)
    assert found["limit"] == 0.1 and "return" not in found


def test_shipped_results_are_not_measured_again(monkeypatch, tmp_path, capsys):
    def refuse(*_):
        raise AssertionError("measured again")

    part = Part("p", ["a"], refuse, lambda runs: map(str, runs.items()), seeds=1, first_seed=7)
    shipped = {Job("p", "a", 7): {"x": 1}}
    monkeypatch.setattr("sys.argv", ["program", "--folder", str(tmp_path)])
    assert measure_parts([part], tmp_path, "", "no.such.module", shipped) == shipped
    assert "('a', [{'x': 1}])" in capsys.readouterr().out


def test_smaller_sets_are_the_beginning_of_larger_ones():
    few, many = (measures._rows("CliffWalking-v1", 201, size) for size in (50, 1200))
    other = measures._rows("CliffWalking-v1", 202, 50)
    assert (len(few.train), len(many.train)) == (50, 1200)
    for name, column in few.train.columns.items():
        assert np.array_equal(column, many.train.columns[name][:50])
    assert np.array_equal(few.test.columns["rewards"], other.test.columns["rewards"])
    assert not np.array_equal(
        few.train.columns["observations"], other.train.columns["observations"]
    )


@pytest.mark.long
def test_a_recalled_program_is_measured_like_any_other_kind(small, tmp_path):
    found = measures.measure_case("")("CartPole-v1 recalled", 200, tmp_path / "recalled")
    assert found["exact"] > 0.9
    assert found["return"] == 4
    assert found["size"] > 20


@pytest.mark.long
@pytest.mark.parametrize("kind", [measures.INDUCTION, *measures.TRAINED])
def test_every_kind_is_made_from_the_same_rows(small, tmp_path, kind):
    if kind != measures.INDUCTION:
        pytest.importorskip("torch").set_num_threads(1)
    for env in ("CartPole-v1", "CliffWalking-v1"):
        found = measures.measure_case(env)(f"{kind} 60", 200, tmp_path / env / kind)
        assert found["size"] > 0 and found["seconds"] > 0
        assert "return" in found
        assert 0 <= found.get("exact", 0) <= 1
