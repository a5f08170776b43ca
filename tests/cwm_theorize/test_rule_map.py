"""The map of rules on the page of a run of `cwm theorize`."""

import shutil
import sys
from itertools import pairwise

import numpy as np
import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By

from cwm_cli import report, theorize
from cwm_theorize.rule_map import MAP, AcceptedRules, rule_map
from cwm_theorize.runs import TheoryRun


@pytest.fixture(scope="module", params=["metropolis", "importance", "best-of"])
def run(request, tmp_path_factory) -> TheoryRun:
    pytest.importorskip("sklearn")
    folder = tmp_path_factory.mktemp("runs") / request.param
    asked = {"env": "Door-v0", "env_args": {"rule": "not blue"}, "phases": 8, "proposals": 5}
    return TheoryRun.load(theorize(**asked, method=request.param, run=folder).run)


def label(each: AcceptedRules) -> str:
    return f"phase {each.phase}: {each.rules}"


@pytest.mark.slow
def test_page_shows_each_accepted_rule_once_with_its_phase(run) -> None:
    accepted, phases = run.accepted(), run.phases()
    assert len({each.rules for each in accepted}) == len(accepted) > 3
    assert {each.rules for each in phases} <= {each.rules for each in accepted}
    if run.config.method == "metropolis":
        assert len(accepted) <= 1 + sum(each.accepted for each in phases)
    (section,) = [each for each in TheoryRun.sections([run]) if each.title == MAP]
    line, *points = section.data["series"]
    tips = [tip.rstrip("…") for series in points for tip in series["tips"]]
    for tip, each in zip(sorted(tips), sorted(accepted, key=label), strict=True):
        assert label(each).startswith(tip)
    at = [place for series in points for place in zip(series["x"], series["y"], strict=True)]
    assert {*zip(line["x"], line["y"], strict=True)} <= {*at}
    assert len(line["x"]) == len(phases)


def test_similar_rules_are_near_each_other() -> None:
    pytest.importorskip("sklearn")
    words = ("red opens it", "red opens it always", "big animals eat plants")
    section = rule_map([AcceptedRules(rules, n) for n, rules in enumerate(words, 1)], ["", *words])
    line = section.data["series"][0]
    places = zip(line["x"], line["y"], strict=True)
    steps = [np.hypot(*np.subtract(*pair)) for pair in pairwise(places)]
    assert steps[0] < 0.6 * steps[1]
    assert line["tips"][0] == "phase 2: red opens it"


def test_many_phases_share_colours_and_odd_texts_have_places() -> None:
    pytest.importorskip("sklearn")
    odd = [AcceptedRules(text, 1 + 7 * n) for n, text in enumerate(("?", "!", "…", "a " * 900))]
    section = rule_map(odd, ["?"])
    names = [series["name"] for series in section.data["series"]]
    assert names[:2] == ["best rules by phase", "phases 1 to 4"]
    assert len(names) <= 7
    longest = max(len(tip) for series in section.data["series"] for tip in series["tips"])
    assert longest <= 400
    assert np.isfinite([n for s in section.data["series"] for n in (*s["x"], *s["y"])]).all()


def test_two_rules_have_no_map_and_missing_library_is_named(monkeypatch) -> None:
    two = [AcceptedRules("a", 1), AcceptedRules("b", 2)]
    assert rule_map(two, ["a", "b"]) is None
    monkeypatch.setitem(sys.modules, "sklearn", None)
    note = rule_map([*two, AcceptedRules("c", 3)], ["a", "b", "c"])
    assert note.kind == "notes"
    assert "pip install" in note.data["lines"][0]
    assert "plots" in note.data["lines"][0]


@pytest.mark.parametrize("run", ["metropolis"], indirect=True)
def test_page_of_a_run_with_an_unknown_method_has_no_map(run, tmp_path) -> None:
    shutil.copytree(run.folder, tmp_path / "r")
    header = tmp_path / "r" / "run.json"
    header.write_text(header.read_text().replace('"metropolis"', '"annealing"'))
    copied = TheoryRun.load(tmp_path / "r")
    assert copied.config.method == "annealing"
    (section,) = [each for each in TheoryRun.sections([copied]) if each.title == MAP]
    assert section.data["lines"][0].startswith("unknown strategy 'annealing'")


@pytest.mark.slow
@pytest.mark.parametrize("run", ["metropolis"], indirect=True)
def test_pointer_shows_the_rules_of_the_nearest_point(run, browser, tmp_path) -> None:
    report(run.folder, html=tmp_path / "page.html")
    browser.open(tmp_path / "page.html")
    (chart,) = [
        each
        for each in browser.driver.find_elements(By.CSS_SELECTOR, ".chart")
        if "best rules by phase" in each.text
    ]
    for mark in chart.find_elements(By.CSS_SELECTOR, ".series[data-name^=phase] .dot")[:3]:
        ActionChains(browser.driver).move_to_element(mark).perform()
        tip = chart.find_element(By.CSS_SELECTOR, ".chart-tip")
        assert tip.is_displayed()
        assert tip.text.partition("\n")[2] in [label(each) for each in run.accepted()]
        box, room = tip.rect, chart.rect
        assert box["x"] >= room["x"]
        assert box["x"] + box["width"] <= room["x"] + room["width"] + 1
    assert browser.heard() == []
