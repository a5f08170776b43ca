"""What pages of runs show: the figures of the commands, charts and tables that can be read."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cwm_cli as cwm
from browser import Browser, browser  # noqa: F401  # a fixture
from cwm_cli.commands.synthesize import SynthesisResult
from cwm_cli.problems.feedback.separation import Quantity
from cwm_cli.runs.listing import load
from cwm_cli.runs.nodes import SearchRecord, node_details, tree_data
from cwm_cli.runs.progress import BestSoFar, score_curve, spending_sections
from cwm_cli.runs.report import (
    MOST_POINTS,
    ChartLine,
    LineChart,
    rounded,
    table,
    thinned,
    with_effort,
)
from cwm_cli.search.contracts import ROOT, Node, Usage, Verdict
from cwm_cli.views.page import _document
from cwm_cli.views.page.measured import measured_sections, mistake_information


def node(number: int, score: float, *, asked: bool = True, cost: float | None = 0.5) -> Node:
    usage = Usage(prompt_tokens=10, completion_tokens=5, cost=cost, seconds=1.0)
    verdict = Verdict(score=score, floor=0.2)
    return Node(number, number, number - 1, "improve", "", verdict, "", usage, asked=asked)


def test_a_line_that_is_thinned_keeps_its_ends_and_says_so() -> None:
    assert thinned(3, 5) == [0, 1, 2]
    kept = thinned(10_000, 500)
    assert (len(kept), kept[0], kept[-1]) == (500, 0, 9_999)
    line = ChartLine("a", list(range(2_000)), [0.0] * 2_000)
    data = LineChart("x", "y", [line]).data()
    assert len(data["series"][0]["x"]) == MOST_POINTS
    assert data["note"] == f"Shown: {MOST_POINTS} of 2,000 points, evenly spaced."


def test_numbers_that_are_none_become_gaps() -> None:
    assert [rounded(value) for value in (float("nan"), float("inf"), None, 2.0, 1 / 3)] == [
        None,
        None,
        None,
        2,
        0.333333,
    ]
    assert table(["a", "b"], [[True, float("nan")]])["rows"] == [["yes", None]]


def test_the_best_so_far_never_falls_and_counts_completions_only() -> None:
    nodes = [node(0, 0.5), node(1, 0.7, asked=False), node(2, 0.1), node(3, 0.9)]
    assert BestSoFar.of(nodes) == BestSoFar([1, 2, 3], [0.7, 0.7, 0.9])
    curve = score_curve(nodes)
    assert [len(one["x"]) for one in curve["series"]] == [3, 1, 3]
    assert curve["rules"][0]["y"] == 0.2


def test_a_cost_that_is_unknown_is_said_and_never_counted_as_nothing() -> None:
    nodes = [node(0, 0.1), node(1, 0.2, cost=None), node(2, 0.3)]
    (section,) = spending_sections(nodes)
    cost = next(data for title, _, data in section.data["sections"] if title == "Cost")
    assert cost["series"][0]["y"] == [0, 0.5, None, None]
    assert "1 of 3 completions is unknown" in cost["note"]


def test_a_search_without_costs_has_no_cost_chart_and_sums_begin_at_zero() -> None:
    (section,) = spending_sections([node(0, 0.1, cost=0.0), node(1, 0.2, cost=0.0)])
    panels = {title: data["series"][0]["y"] for title, _, data in section.data["sections"]}
    assert panels == {"Tokens": [0, 10, 20], "Time of completions": [0, 1, 2]}
    (section,) = spending_sections([node(0, 0.1, cost=None), node(1, 0.2, cost=None)])
    assert "Cost" not in {title for title, _, _ in section.data["sections"]}


def test_scores_with_standard_errors_have_a_band() -> None:
    nodes = [node(0, 0.5), node(1, 0.7)]
    assert "low" not in score_curve(nodes)["series"][-1]
    uncertain = [replace(one, verdict=replace(one.verdict, stderr=0.1)) for one in nodes]
    band = score_curve(uncertain)["series"][-1]
    assert (band["low"], band["high"]) == ([0.4, 0.6], [0.6, 0.8])


@pytest.mark.slow
def test_the_verdict_of_a_search_has_its_outcome_and_its_effort(tmp_path: Path) -> None:
    found = cwm.synthesize("CliffWalking-v1", budget=1, run=tmp_path / "run")
    verdict = load(found.run).report([load(found.run)]).verdict
    assert verdict.startswith(
        "Solved: exact on all 934 training and 855 held-out transitions · 1 completion · "
    )
    assert verdict.endswith(" s") and "token" not in verdict and "cost" not in verdict
    report = cwm.report(found.run)
    assert report.markdown().splitlines()[2] == verdict


def test_a_verdict_leaves_out_zeros_and_names_unknown_costs() -> None:
    assert with_effort("Done", completions=0, tokens=0, cost=0.0) == "Done"
    words = with_effort("Done", steps=1200, completions=1, tokens=1234, cost=None, seconds=9.87)
    assert words == "Done · 1,200 steps · 1 completion · 1,234 tokens · cost unknown · 9.9 s"


def test_the_two_numbers_of_a_map_are_those_that_tell_wrong_rows_from_right_ones() -> None:
    rng = np.random.default_rng(0)
    x, y, noise = rng.normal(size=(3, 600))
    wrong = (x > 0.5) & (y < 0)
    named = {
        name: Quantity(name, values) for name, values in zip("xyn", (x, y, noise), strict=True)
    }
    bits = {
        pair: mistake_information(wrong, *(named[name] for name in pair))
        for pair in ("xy", "xn", "yn", "nn")
    }
    assert max(bits, key=lambda pair: bits[pair]) == "xy"
    assert bits["nn"] < 0.05


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> SynthesisResult:
    folder = tmp_path_factory.mktemp("page") / "poles"
    return cwm.synthesize("CartPole-v1", budget=1, run=folder)


@pytest.mark.slow
def test_a_page_has_the_figures_of_evaluate_and_says_where_a_program_is_wrong(
    found: SynthesisResult,
) -> None:
    run = load(found.run)
    known = cwm.evaluate(found.run)
    bars = next(part for part in type(run).sections([run]) if part.kind == "bars")
    accuracy = next(row for row in bars.data["rows"] if row["name"] == "accuracy")
    scores = known.scores.train, known.scores.test
    assert accuracy["values"] == [score and score.accuracy for score in scores]
    assert accuracy["marks"] == [score and score.floor for score in scores]
    episodes = next(part for part in measured_sections(run) if part.kind == "groups")
    panels = episodes.data["groups"][0]["sections"]
    recorded, predicted = panels[0][2]["series"]
    assert recorded["y"] == pytest.approx(predicted["y"], abs=1e-3)

    program = found.run / "best.py"
    text = program.read_text()
    program.write_text(text + "\n_step = Environment.step\n" + WRONG)
    sections = {part.title: part for part in measured_sections(load(found.run))}
    program.write_text(text)
    kinds = {line[0]: line[1] for line in sections["Mismatches by kind"].data["rows"]}
    right = {line[0]: line[1] for line in wrong_rows(found)}
    assert kinds["reward"] == right["reward"] > 0
    assert kinds["observation"] == 0
    assert "Cart Velocity" in str(sections["Conditions of mistakes"].data["rows"])
    assert {"right", "wrong"} == {
        one["name"] for one in sections["Map of right and wrong rows"].data["series"]
    }


WRONG = """
def step(self, action, _step=_step):
    seen, reward, ended = _step(self, action)
    return seen, reward + float(seen[1] > 0.5), ended
Environment.step = step
"""


def wrong_rows(found: SynthesisResult) -> list[list[Any]]:
    """Count the train rows after which the cart is faster than 0.5."""
    rows = load(found.run).dataset().train  # type: ignore[attr-defined]  # of a search
    fast = rows.columns["next_observations"][:, 1] > 0.5
    return [["reward", int(fast.sum())]]


@pytest.mark.slow
def test_a_program_that_cannot_run_is_said_in_a_line(found: SynthesisResult) -> None:
    program = found.run / "best.py"
    text = program.read_text()
    program.write_text("raise ValueError('no')\n")
    (section,) = measured_sections(load(found.run))
    program.write_text(text)
    assert section.kind == "notes"
    assert "the program failed" in section.data["lines"][0]


HOSTILE = "</script><script>window.hacked=1</script><img src=x onerror=window.hacked=1>"


def drawn(tmp_path: Path, *sections: tuple[str, dict[str, Any]]) -> Path:
    """Write a page with sections of some kinds."""
    parts = [{"kind": kind, "title": kind, "data": data, "about": ""} for kind, data in sections]
    page = {
        "title": "t",
        "verdict": "",
        "facts": [],
        "damage": [],
        "sections": parts,
        "written": "now",
    }
    file = tmp_path / "page.html"
    file.write_text(_document("t", page), encoding="utf-8")
    return file


@pytest.mark.slow
def test_the_tree_panel_is_as_tall_as_its_content(
    browser: Browser,  # noqa: F811
    tmp_path: Path,
) -> None:
    nodes = [replace(node(n, 0.1), parent=ROOT if n == 0 else 0) for n in range(200)]
    heights = []
    for count in (1, 8, 200):
        found = node_details([SearchRecord(node=one, text="") for one in nodes[:count]], {})
        browser.open(drawn(tmp_path, ("tree", tree_data(found))))
        browser.run("document.querySelector('[title=\"unfold all\"]').click()")
        box = "return document.querySelector('{}').getBoundingClientRect().height"
        panel, content = (browser.run(box.format(part)) for part in (".canvas", ".canvas > g"))
        heights.append(panel)
        assert count == 200 or 0 <= panel - content < 60
    assert heights[0] < heights[1] < heights[2] <= 640


@pytest.mark.slow
def test_series_differ_in_print_and_a_single_point_has_an_error_bar(
    browser: Browser,  # noqa: F811
    tmp_path: Path,
) -> None:
    key = [{"name": "recorded", "tone": 0, "wide": True}, {"name": "predicted", "tone": 1}]
    lines = [ChartLine("recorded", [0, 1], [0.5, 1], tone=0, wide=True)]
    lines += [ChartLine(name, [0, 1], [0, 1], tone=tone) for name, tone in (("a", 1), ("b", 2))]
    clouds = [
        ChartLine("right", [0.5, 1.5], [0.2, 1], loose=True, tone=0),
        ChartLine("wrong", [0.5, 1.5], [0.3, 1], loose=True, tone="bad"),
        ChartLine("test", [1], [0.5], [0.4], [0.6], tone=2),
    ]
    chart = LineChart("x", "y", lines, legend=False).data()
    groups = {"key": key, "groups": [{"title": "g", "sections": [["p", "chart", chart]]}]}
    data = LineChart("x", "y", clouds).data()
    browser.open(drawn(tmp_path, ("groups", groups), ("chart", data)))
    dashes = "return [...document.querySelectorAll('{} .line')].map(l => l.getAttribute('{}'))"
    stage = "[data-kind=groups] .chart-stage"
    assert len(set(browser.run(dashes.format(stage, "stroke-dasharray")))) == 3
    assert browser.run(dashes.format(stage, "class"))[0] == "line wide"
    legend = "[data-kind=groups] .chart-legend .sample"
    assert len(set(browser.run(dashes.format(legend, "stroke-dasharray")))) == 2
    shapes = "[...document.querySelectorAll('[data-kind=chart] .chart-stage {}')]"
    assert browser.run(f"return {shapes.format('circle.dot')}.length") == 2
    assert browser.run(f"return {shapes.format('path.ring')}.length") == 2
    assert browser.run(f"return {shapes.format('.error')}.length") == 1
    assert browser.heard() == []


@pytest.mark.slow
def test_numbers_of_tables_are_rounded_and_words_in_backquotes_are_code(
    browser: Browser,  # noqa: F811
    tmp_path: Path,
) -> None:
    numbers = [0.833890012, 29.7512, 1234.5678, 7, 0.99996, 0.00001234, 12_345_678]
    rows = table(["name", "number"], [["a", number] for number in numbers])
    browser.open(drawn(tmp_path, ("table", rows), ("notes", {"lines": ["run `cwm plan`, then"]})))
    cells = "return [...document.querySelectorAll('td.number')].map(cell => cell.textContent)"
    assert browser.run(cells) == [
        "0.834", "29.8", "1,234.6", "7", "0.99996", "1.23e-5", "12.35M"
    ]  # fmt: skip
    assert browser.run("return document.querySelector('.notes code').textContent") == "cwm plan"


JOBS: dict[str, Any] = {
    "heads": ["environment", "strategy", "score"],
    "rows": [["A", "one", 0.5], ["A", "two", 1.0], ["B", "one", 0.2], [HOSTILE, "two", 0.1]],
    "words": 2,
    "filters": [0, 1],
    "groups": [1],
    "x": "completions",
    "y": "best",
    "curves": [{"x": [1, 2], "y": [0.1, y], "over": True} for y in (0.5, 1.0, 0.2, 0.1)],
}


@pytest.mark.slow
def test_charts_have_a_line_for_each_series_and_filters_change_the_curves(
    browser: Browser,  # noqa: F811
    tmp_path: Path,
) -> None:
    lines = [ChartLine(name, [0, 1], [0, 1]) for name in ("a", "b", HOSTILE)]
    cells = {"frames": [{"name": HOSTILE, "rows": [{"name": "r", "after": [1], "said": [2]}]}]}
    file = drawn(
        tmp_path, ("chart", LineChart("x", "y", lines).data()), ("jobs", JOBS), ("cells", cells)
    )
    browser.open(file, width=390)
    count = "return document.querySelectorAll('{}').length"
    assert browser.run(count.format("[data-kind=chart] .series .line")) == 3
    assert browser.run(count.format("[data-kind=jobs] tbody tr")) == 4
    assert browser.run(count.format("[data-kind=jobs] .series")) == 2
    assert browser.run("return document.documentElement.scrollWidth") == 390
    curve = "return document.querySelector('[data-kind=jobs] .line').getAttribute('d')"
    before = browser.run(curve)
    browser.run(
        "const s = document.querySelector('[data-kind=jobs] select[data-column=\"0\"]');"
        "s.value = [...s.options].find((o) => o.text === 'B').value;"
        "s.dispatchEvent(new Event('change'))"
    )
    assert browser.run(count.format("[data-kind=jobs] tbody tr")) == 1
    assert browser.run(curve) != before
    browser.run("document.querySelector('[data-kind=chart] .chart-key').click()")
    assert browser.run(count.format("[data-kind=chart] .series")) == 2
    browser.run(
        "const c = document.querySelector('[data-kind=chart] .chart-stage > svg'); c.focus();"
        "c.dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowRight'}))"
    )
    assert "x 0" in browser.run("return document.querySelector('.chart-tip').textContent")
    assert browser.run("return document.querySelector('.differs').textContent") == "2 1"
    assert browser.run("return window.hacked") is None
    assert browser.heard() == []
