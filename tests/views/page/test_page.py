"""A run as a page: one file whose texts are shown and never executed."""

from pathlib import Path

from cwm_cli.runs.report import Grid, RunReport
from cwm_cli.runs.searches import SearchRun
from cwm_cli.views.page import embedded, report
from folders import ROOT
from search_runs import CONFIG, FILES, HEADER


def test_foreign_text_cannot_end_the_script_that_holds_it() -> None:
    hostile = "</script><script>alert(1)</script><!--\u2028\u2029&lt;"
    text = embedded({"<a>": [hostile, float("nan"), "\ud800"]})
    assert not {"<", ">", "&", "\u2028", "\u2029"} & set(text)


def test_tables_and_notes_of_any_report_are_parts_of_a_page() -> None:
    report = RunReport("t", [Grid("one", ["a", "b"], [["x", "1"]])], ["a note"], {"best": {"n": 1}})
    table, notes = report.sections()
    assert (table.kind, table.title) == ("table", "one")
    assert table.data == {"heads": ["a", "b"], "rows": [["x", "1"]], "words": 1, "filters": []}
    assert notes.data == {"lines": ["a note"]}
    (facts,) = RunReport("t", facts={"best": {"n": 1}}).sections()
    assert facts.data == {"rows": [["best.n", 1]]}


def test_a_page_without_javascript_shows_the_verdict_and_the_facts(tmp_path: Path) -> None:
    config = CONFIG.model_copy(update={"env": "Cart<Pole>-v1"})
    SearchRun.begin(tmp_path / "run", HEADER.model_copy(update={"config": config}), FILES)
    report(tmp_path / "run", html=(page := tmp_path / "page.html"))
    _, _, rest = page.read_text("utf-8").partition("<noscript>")
    shown, _, _ = rest.partition("</noscript>")
    assert "<p>No program yet</p>" in shown
    assert "<p>environment: Cart&lt;Pole&gt;-v1</p>" in shown
    assert "<Pole>" not in shown


def test_no_script_of_a_page_makes_markup_of_text() -> None:
    scripts = sorted((ROOT / "cwm_cli/views/page").glob("*.js"))
    assert scripts
    words = ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function(")
    assert [(s.name, word) for s in scripts for word in words if word in s.read_text("utf-8")] == []
