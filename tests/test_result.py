import json
import typing
from html.parser import HTMLParser
from inspect import isfunction

import cwm_cli as cwm
from cwm_cli.result import Result, html_tables

MARKUP = '<script>alert(1)</script> & "quotes"\x1b[31m'


class Cells(HTMLParser):
    """Reads the rows of tables, and the names of all elements."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.rows, self.elements = [], set()
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.elements.add(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")
        elif tag == "br":
            self.handle_data("\n")

    def handle_data(self, data):
        if self.rows:
            self.rows[-1][-1] += data


def rows(facts):
    return Cells(html_tables(facts)).rows


def test_table_has_a_row_per_value_and_leaves_out_empty_ones():
    facts = {"is_solved": True, "tokens": 12345, "note": "", "cost": None, "gaps": ["one", "two"]}
    assert rows(facts) == [
        ["is solved", "yes"],
        ["tokens", "12,345"],
        ["not covered by data", "one\ntwo"],
    ]
    assert html_tables({}) == html_tables({"cost": None, "parts": {}}) == ""


def test_mappings_with_the_same_keys_are_columns_of_one_table():
    facts = {"train": {"exact": 1.0, "more": {"a": 1}}, "test": {"exact": 0.5, "more": None}}
    assert rows(facts) == [["", "train", "held-out"], ["exact", "1", "0.5"]]


def test_long_lists_are_cut_and_the_table_says_so():
    assert rows({"returns": list(range(12))}) == [
        ["returns", "0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 2 more"]
    ]
    html = html_tables({"rollouts": [{"steps": n, "note": ""} for n in range(12)]})
    assert "rollouts (12, first 10)" in html
    assert Cells(html).rows == [["steps"], *([str(n)] for n in range(10))]


def test_number_that_is_nearly_whole_does_not_look_whole():
    values = [1.0, 0.9999999, 0.12345678, 1e-7, float("nan"), float("inf")]
    assert rows({"x": values}) == [["x", "1, 0.9999999, 0.1235, 1e-07, nan, inf"]]


def test_text_of_a_program_or_user_cannot_become_markup():
    html = html_tables({MARKUP: MARKUP, "list": [{MARKUP: MARKUP}], "test": {MARKUP: [MARKUP]}})
    assert Cells(html).elements == {"table", "caption", "thead", "tbody", "tr", "th", "td"}
    assert html.count("&lt;script&gt;") == 6
    assert "\x1b" not in html


def test_every_public_result_with_plain_data_is_shown_as_a_table():
    functions = [getattr(cwm, name) for name in cwm.__all__]
    returned = {typing.get_type_hints(each)["return"] for each in functions if isfunction(each)}
    plain = {each for each in returned if hasattr(each, "as_json")}
    assert len(plain) >= 10
    assert [each for each in plain if not issubclass(each, Result)] == []


def test_result_of_collect_is_a_table_of_what_json_prints(tmp_path):
    found = cwm.collect("FrozenLake-v1", episodes=1, test_episodes=1, out=tmp_path / "lake.npz")
    facts = json.loads(json.dumps(found.as_json()))
    shown = dict(Cells(found._repr_html_()).rows)
    assert list(shown) == [key for key in facts]
    assert shown["file"] == str(tmp_path / "lake.npz")
    assert shown["transitions"] == str(facts["transitions"])
