"""A run as a page: one file, and what is in it is shown as text and does nothing."""

from cwm_cli.runs.report import Grid, RunReport
from cwm_cli.views.page import embedded
from folders import ROOT


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


def test_no_script_of_a_page_makes_markup_of_text() -> None:
    scripts = sorted((ROOT / "cwm_cli/views/page").glob("*.js"))
    assert scripts
    words = ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function(")
    assert [(s.name, word) for s in scripts for word in words if word in s.read_text("utf-8")] == []
