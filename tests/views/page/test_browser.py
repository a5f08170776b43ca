"""The page of a search in a real browser: hostile texts do nothing, and every node can be read."""

import json
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.wait import WebDriverWait

from browser import Browser
from cwm_cli import report
from cwm_cli.runs.searches import SearchConfig, SearchHeader, SearchRun
from cwm_cli.sandbox.failures import Failure
from cwm_cli.search.contracts import (
    Backend,
    Completion,
    Message,
    Move,
    Problem,
    Usage,
    Verdict,
)
from cwm_cli.search.loop import Search
from cwm_cli.text import clean
from cwm_gif_mcts.strategy import GifMcts

pytestmark = pytest.mark.slow

HOSTILE = (
    "</script><script>window.hacked=1</script>",
    "<img src=x onerror='window.hacked=1'>",
    "<svg onload=window.hacked=1>",
    "javascript:window.hacked=1",
    "]]><!--<script>window.hacked=1//",
    "\u2028window.hacked=1\u2029\u202e",
    "${window.hacked=1} $title &lt;b&gt;",
    "<a href='javascript:window.hacked=1' style='position:fixed;inset:0'>click</a>",
)
ALL = " ".join(HOSTILE)
DESCRIPTION = "The environment is described at length.\n\n" * 150
LAW = "\n".join(f"        # the law number {number} of what follows" for number in range(60))


@dataclass(frozen=True)
class Hostile(Backend):
    """Answers with programs of usual length that contain hostile texts."""

    model: str = ""

    def complete(self, request: Any) -> Completion:
        step = request.step
        program = f"class Environment:\n    NUMBER = {step}\n    TEXT = {ALL!r}\n{LAW}\n"
        text = f"{ALL}\n\n```python\n{program}```\n"
        return Completion("" if step % 40 == 39 else text, Usage(3000, 700, 0.001, 2.0))


class Judged(Problem):
    """Judges immediately, with hostile messages."""

    def messages(self, move: Move) -> tuple[Message, ...]:
        asked = f"{DESCRIPTION}Write it.\n\n{ALL}\n\n{move.program}"
        return (Message(role="system", content="You program."), Message(role="user", content=asked))

    def judge(self, candidate: str) -> Verdict:
        number = int(candidate.split("NUMBER = ")[1].split()[0]) if candidate else 0
        kind = "step_error" if number % 7 == 5 else "mismatch"
        score = 0.0 if number % 7 == 5 else min(0.99, 0.3 + (number * 37 % 100) / 160)
        return Verdict(
            score=score,
            parts={"observation": score, HOSTILE[1]: 0.5},
            failure=Failure(kind, f"TypeError: {ALL}\nat line 2", 2),
            findings=f"{ALL} was found",
        )


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page") / "</script><img src=x onerror=hacked>"
    config = SearchConfig(env=ALL, dataset="0", strategy="gif-mcts", backend=HOSTILE[0], seed=3)
    header = SearchHeader(config=config, description=ALL, source=ALL, versions={HOSTILE[0]: "1"})
    with SearchRun.start(folder, header) as run:
        search = Search(Judged(), GifMcts(), Hostile(), seed=3, journal=run.learn)
        assert len(list(search.run(200))) == 200
        run.write_best(search.best.program)  # type: ignore[union-attr]
        run.save_result({"gaps": [*HOSTILE], "train": None})
    file = folder.parent / "report.html"
    report(folder, html=file)
    return file


@pytest.fixture
def opened(browser: Browser, page: Path) -> Iterator[Browser]:
    browser.open(page)
    yield browser
    assert browser.heard() == []
    assert browser.requested() == []
    assert browser.run("return window.hacked") is None


def wait(browser: Browser, script: str) -> None:
    WebDriverWait(browser.driver, 20).until(lambda _: browser.run(f"return Boolean({script})"))


def press(browser: Browser, *keys: str) -> None:
    for key in keys:
        ActionChains(browser.driver).send_keys(key).perform()


def tab(browser: Browser, name: str) -> str:
    """Choose a tab of the drawer, and return its content."""
    browser.run(
        "[...document.querySelectorAll('.tabs button')]"
        f".find(one => one.textContent === '{name}').click()"
    )
    return str(browser.run("return document.querySelector('.pane').textContent"))


CURRENT = "document.activeElement.dataset.node"


def test_a_search_of_two_hundred_nodes_is_one_small_file(page: Path) -> None:
    text = page.read_text("utf-8")
    assert len(text.encode()) < 1_000_000
    data = text.split('id="data">')[1].split("</script>")[0]
    sections = json.loads(data)["sections"]
    (tree,) = [section["data"] for section in sections if section["kind"] == "tree"]
    assert len(tree["nodes"]) == 200
    assert "window.hacked" in json.dumps(sections)


def test_hostile_texts_are_shown_as_they_are_and_do_nothing(opened: Browser) -> None:
    assert opened.run("return document.title").startswith(HOSTILE[0])
    for each in HOSTILE:
        assert each in opened.run("return document.getElementById('top').textContent")
        gaps = opened.run("return document.querySelector('.gaps').textContent")
        assert each in gaps or each != clean(each)
    opened.run(
        "document.querySelector('[data-node]').dispatchEvent("
        "new MouseEvent('click', {bubbles: true}))"
    )
    wait(opened, "document.querySelector('.pane').textContent")
    assert ALL in tab(opened, "Prompt")
    assert ALL in tab(opened, "Completion")
    assert f"TEXT = {ALL!r}" in tab(opened, "Program")
    told = opened.run("return document.querySelector('.verdict').textContent")
    assert ALL in told and HOSTILE[1] in told
    made = "img, iframe, object, embed, [onerror], [onload], a[href^=javascript], main script"
    assert opened.run(f"return document.querySelectorAll('{made}').length") == 0


def test_the_policy_of_the_page_refuses_scripts_and_addresses(
    browser: Browser,
    page: Path,
) -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    listening.settimeout(0.5)
    address = f"http://127.0.0.1:{listening.getsockname()[1]}/x"
    browser.open(page)
    browser.run(
        "const s = document.createElement('script'); s.textContent = 'window.hacked = 1';"
        f"document.body.append(s); const i = new Image(); i.src = '{address}';"
        "document.body.append(i)"
    )
    assert browser.run("return window.hacked") is None
    with listening, pytest.raises(TimeoutError):
        listening.accept()
    assert len([line for line in browser.heard() if "Content Security Policy" in line]) == 2


def test_a_click_on_a_node_shows_what_changed_and_keys_walk_on(opened: Browser) -> None:
    opened.run("document.querySelector('[title=\"unfold all\"]').click()")
    child = opened.run(
        "const nodes = JSON.parse(document.getElementById('data').textContent).sections"
        ".find(s => s.kind === 'tree').data.nodes;"
        "return nodes.find(n => n.parent >= 0 && n.difference && n.score > 0 &&"
        " nodes.some(m => m.parent === n.id))"
    )
    number = child["id"]
    opened.run(
        f"document.querySelector('.canvas [data-node=\"{number}\"]').dispatchEvent("
        "new MouseEvent('click', {bubbles: true}))"
    )
    wait(opened, "document.querySelector('.difference .came')")
    went = opened.run("return document.querySelector('.difference .went').textContent")
    came = opened.run("return document.querySelector('.difference .came').textContent")
    assert went.startswith("-    NUMBER = ") and came.startswith("+    NUMBER = ")
    title = "return document.getElementById('drawer-title').textContent"
    assert opened.run(title).startswith(f"#{number} {child['action']}of #{child['parent']}")
    assert opened.run("return location.hash") == f"#node-{number}"
    press(opened, Keys.ARROW_LEFT)
    assert opened.run(f"return {CURRENT}") == str(child["parent"])
    assert opened.run(title).startswith(f"#{child['parent']} ")
    press(opened, Keys.ARROW_RIGHT, Keys.ESCAPE)
    assert opened.run("return document.querySelector('.drawer').hidden")
    press(opened, Keys.ENTER)
    assert not opened.run("return document.querySelector('.drawer').hidden")


def test_branches_are_folded_and_unfolded(opened: Browser) -> None:
    count = "return document.querySelectorAll('.canvas .node').length"
    first = opened.run(count)
    assert first < 200  # more would be too small to read
    opened.run("document.querySelector('[title=\"unfold all\"]').click()")
    assert opened.run(count) == 200
    opened.run("document.querySelector('[title=\"go to the best node\"]').click()")
    press(opened, Keys.HOME)
    while opened.run("return document.activeElement.getAttribute('aria-level') !== '1'"):
        press(opened, Keys.ARROW_LEFT)
    press(opened, Keys.SPACE)
    assert opened.run("return document.activeElement.getAttribute('aria-expanded')") == "false"
    assert opened.run(count) < 200
    press(opened, Keys.SPACE)
    assert opened.run(count) == 200


def test_the_tree_is_moved_and_zoomed_by_wheel_keys_and_pointer(opened: Browser) -> None:
    seen = "return document.querySelector('.canvas > g').getAttribute('transform')"
    opened.run("document.querySelector('[title=\"go to the best node\"]').click()")
    views = [opened.run(seen)]
    press(opened, "+")
    views.append(opened.run(seen))
    opened.run(
        "document.querySelector('.canvas').dispatchEvent("
        "new WheelEvent('wheel', {deltaY: 200, bubbles: true, cancelable: true}))"
    )
    views.append(opened.run(seen))
    canvas = opened.driver.find_element(By.CSS_SELECTOR, ".canvas")
    opened.run("document.querySelector('.tree').scrollIntoView()")
    ActionChains(opened.driver).drag_and_drop_by_offset(canvas, 80, 60).perform()
    views.append(opened.run(seen))
    press(opened, "0")
    views.append(opened.run(seen))
    assert len(set(views)) == 5
    assert opened.run("return document.querySelector('.drawer').hidden")  # a drag is no click


def test_the_verdict_is_at_the_top_of_the_page(opened: Browser) -> None:
    words = opened.run("return document.querySelector('#top .outcome').textContent")
    assert "200 completions" in words and "tokens" in words and "cost $0.2000" in words


@pytest.mark.parametrize("width", [1280, 390])
def test_no_tab_is_cut_off(browser: Browser, page: Path, width: int) -> None:
    browser.open(page, width=width, height=844)
    hidden = (
        "const bar = document.getElementById('contents'), box = bar.getBoundingClientRect();"
        "return [...bar.children].filter(tab => tab.getBoundingClientRect().right > box.right"
        " || tab.getBoundingClientRect().bottom > box.bottom).map(tab => tab.textContent)"
    )
    assert browser.run(hidden) == []
    assert browser.run("return document.querySelectorAll('#contents a').length") > 4


def test_a_phone_shows_a_list_and_nothing_is_cut_off(browser: Browser, page: Path) -> None:
    browser.open(page, width=390, height=844)
    wide = "return document.documentElement.scrollWidth"
    assert browser.run(wide) == 390
    assert (
        browser.run("return getComputedStyle(document.querySelector('.canvas')).display") == "none"
    )
    assert browser.run("return document.querySelectorAll('.list li').length") > 5
    browser.run("document.querySelector('.list li .name').click()")
    wait(browser, "document.querySelector('.pane').textContent")
    assert browser.run("return document.querySelector('.drawer').clientWidth") <= 390
    for name in ("Program", "Prompt", "Completion", "Difference"):
        tab(browser, name)
        assert browser.run(wide) == 390
    assert browser.heard() == []


def test_light_and_dark_follow_the_system_and_the_switch(browser: Browser, page: Path) -> None:
    ground = (
        "return getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3)"
        ".reduce((sum, each) => sum + Number(each), 0) / 765"
    )
    browser.open(page)
    assert browser.run(ground) > 0.9
    browser.open(page, dark=True)
    assert browser.run(ground) < 0.15
    switch = "document.getElementById('theme').click()"
    browser.run(switch)
    assert browser.run(ground) > 0.9
    browser.run(switch)
    browser.show(width=1280, dark=False)
    assert browser.run(ground) < 0.15
    browser.run(switch)
    assert browser.run(ground) > 0.9
