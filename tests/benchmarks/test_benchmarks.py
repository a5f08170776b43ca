"""The suite of benchmarks: runs, files, and comparison with recorded results."""

import json
from collections import Counter
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from threading import Event, Thread

import pytest

from benchmarks import __main__ as suite
from benchmarks import records
from benchmarks.claims import Claim, Measured
from benchmarks.measuring import calls, in_turn
from benchmarks.results import Result
from benchmarks.script import main
from benchmarks.suite import SCRIPTS
from cwm_cli.search import threads
from cwm_cli.text import clean

CLAIM = Claim(
    "lists",
    "a loop against a list that is built by it",
    lambda quick: Measured([2.0, 3.0, 4.0], {"ours ms": 1.5}, {"calls": 100}),
    goal=2,
)
SLOW = replace(CLAIM, name="slow", in_quick=False)
RESULT = Result.of(CLAIM, quick=True)
KNOWN = records.entries([RESULT])

SCRIPT = """
from benchmarks.claims import Claim, Measured
from benchmarks.script import main

main([Claim("small", "nothing", lambda quick: Measured([1 + quick], {}, {"calls": 7}))])
"""


@pytest.fixture
def scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    (tmp_path / "small_script.py").write_text(SCRIPT)
    (tmp_path / "broken_script.py").write_text(SCRIPT + "raise SystemExit(3)")
    (tmp_path / "missing_script.py").write_text("import missing_module")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return ["missing_script", "broken_script", "small_script"]


def test_suite_reports_failing_script_and_runs_the_rest(
    scripts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = suite.run_scripts(scripts, {}, quick=True)
    assert [result.ratio for result, _ in outcome.results] == [2.0, 2.0]
    assert outcome.broken == [("missing_script", 1), ("broken_script", 3)]
    assert outcome.fails("")
    printed = capsys.readouterr().out
    assert "broken_script failed with exit code 3" in printed
    assert printed.index("missing_script failed") < printed.index("small ")


@pytest.mark.parametrize(
    ("count", "fails"), [(0, False), (100, False), (110, False), (111, True), (1000, True)]
)
def test_check_fails_if_count_exceeds_record_by_more_than_tolerance(
    count: int, fails: bool
) -> None:
    result = replace(RESULT, counts={"calls": count})
    outcome = suite.Outcome([(result, list(records.remarks(result, KNOWN)))], [])
    assert [outcome.fails(check) for check in ("", "counts", "ratios")] == [False, fails, fails]
    assert ("calls rose from 100 to" in outcome.table()) == fails


def test_recorded_count_of_zero_has_no_tolerance() -> None:
    known = {"lists": KNOWN["lists"] | {"counts": {"calls": 0}}}
    assert [remark.text for remark in records.remarks(RESULT, known)] == [
        "calls rose from 0 to 100"
    ]


@pytest.mark.parametrize(
    ("is_cost", "ratio", "fell"),
    [(False, 1.4, True), (False, 1.6, False), (True, 5.9, False), (True, 6.1, True)],
)
def test_ratio_that_fell_by_more_than_half_is_reported_and_fails_check_of_ratios(
    is_cost: bool, ratio: float, fell: bool
) -> None:
    result = replace(RESULT, is_cost=is_cost, ratio=ratio)
    outcome = suite.Outcome([(result, list(records.remarks(result, KNOWN)))], [])
    assert ("fell by more than half: 3x was recorded" in outcome.table()) == fell
    assert [outcome.fails(check) for check in ("", "counts", "ratios")] == [False, False, fell]


def test_missing_records_are_reported_as_remarks_about_counts() -> None:
    other = replace(RESULT, counts={"calls": 100, "bytes": 1})
    for result, known in ((RESULT, {}), (other, KNOWN)):
        [remark] = records.remarks(result, known)
        assert remark.is_of_counts
        assert remark.text.endswith("not recorded: run with --record")


def test_table_and_json_contain_all_claims_and_failed_scripts() -> None:
    other = replace(RESULT, name="other", goal=4)
    outcome = suite.Outcome([(RESULT, []), (other, [])], [suite.Broken("benchmarks.none", 1)])
    rows = [line for line in outcome.table().splitlines() if line.startswith("| `")]
    assert [row.count("|") for row in rows] == [9, 9]
    assert "| 3 | 2 to 4 | at least 2 | 3 | ours ms 1.5 | calls 100 |" in rows[0]
    assert "at least 4, missed" in rows[1]
    assert "benchmarks.none failed" in outcome.table()
    found = json.loads(outcome.to_json())
    assert [claim["name"] for claim in found["claims"]] == ["lists", "other"]
    assert found["claims"][0]["machine"].startswith("Python 3")
    assert found["broken"] == [{"module": "benchmarks.none", "code": 1}]


def test_writing_records_of_one_effort_keeps_records_of_other_effort(tmp_path: Path) -> None:
    file = tmp_path / "recorded.json"
    records.write(file, "quick", KNOWN)
    records.write(file, "full", {})
    assert records.read(file, "quick") == KNOWN
    assert list(records.remarks(RESULT, records.read(file, "quick"))) == []
    assert records.read(file, "full") == {}


def test_script_measures_named_claims_and_skips_slow_claims_in_quick_runs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def run(*arguments: str) -> list[str]:
        main([CLAIM, SLOW], ["--json", *arguments])
        return [json.loads(line)["name"] for line in capsys.readouterr().out.splitlines()]

    assert run() == ["lists", "slow"]
    assert run("--quick") == ["lists"]
    assert run("sl") == ["slow"]


def test_script_rejects_unknown_claim_and_lists_the_claims(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        main([CLAIM, SLOW], ["slaw"])
    assert f"slaw: the claims are {CLAIM.name}, {SLOW.name}" in capsys.readouterr().err


def test_spread_of_many_rounds_is_between_percentiles() -> None:
    ratios = [float(number) for number in range(101)]
    many = replace(CLAIM, measure=lambda quick: Measured(ratios, {}))
    assert Result.of(many, quick=False).spread == pytest.approx((5, 95))
    assert RESULT.spread == (2, 4)


def test_calls_between_library_functions_are_not_counted() -> None:
    once = calls(lambda: clean("word", limit=10))
    assert once > 0
    assert calls(lambda: [clean("word", limit=10) for _ in range(3)]) == 3 * once
    assert calls(lambda: json.dumps({"a": [1, 2]}, indent=1)) == 0


def test_calls_in_new_threads_are_counted() -> None:
    def work() -> None:
        thread = Thread(target=clean, args=("word",), kwargs={"limit": 10})
        thread.start()
        thread.join()

    assert calls(work) == calls(lambda: clean("word", limit=10))


def test_calls_in_reused_threads_are_counted_every_time() -> None:
    def work() -> None:
        done = Event()
        threads.start(lambda: (clean("word", limit=10), done.set()))
        done.wait()

    once = calls(lambda: clean("word", limit=10))
    work()
    assert [calls(work) > once for _ in range(3)] == [True] * 3


def test_sides_alternate_and_first_round_is_not_timed() -> None:
    order: list[tuple[str, int]] = []
    sides = (lambda number, name=name: order.append((name, number)) for name in ("theirs", "ours"))
    times = in_turn(*sides, 2)
    assert order == [(name, number) for number in range(3) for name in ("theirs", "ours")]
    assert len(times.theirs) == len(times.ours) == 2


def test_claims_have_unique_names_and_all_quick_claims_are_recorded() -> None:
    claims = [claim for name in SCRIPTS for claim in import_module(f"benchmarks.{name}").CLAIMS]
    assert Counter(claim.name for claim in claims).most_common(1)[0][1] == 1
    quick = {claim.name for claim in claims if claim.in_quick}
    assert quick == records.read(records.FILE, "quick").keys()
