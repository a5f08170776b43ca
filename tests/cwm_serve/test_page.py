"""The page of `cwm serve` in a real browser."""

from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.wait import WebDriverWait

from browser import Browser
from recordings import FROZEN_LAKE, PENDULUM, record
from served import Served, served

pytestmark = pytest.mark.slow

TOKEN = "a-token-of-the-tests-0123456789"


@pytest.fixture(scope="module")
def lake(tmp_path_factory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("lake")
    record("FrozenLake-v1", episodes=20, is_slippery=False)[0].save(folder / "lake.npz")
    (folder / "lake.py").write_text(FROZEN_LAKE)
    arguments = ("lake.py", "--env", "FrozenLake-v1", "--dataset", "lake.npz")
    with served(folder, *arguments, CWM_SERVE_TOKEN=TOKEN) as server:
        server.client.headers["Authorization"] = f"Bearer {TOKEN}"
        yield server


@pytest.fixture
def opened(browser: Browser, lake: Served) -> Iterator[Browser]:
    open_page(browser, lake.facts["page"])
    yield browser
    assert browser.heard() == []
    hosts = {urlsplit(url).netloc for url in browser.requested() if not url.startswith("blob:")}
    assert hosts <= {urlsplit(lake.facts["url"]).netloc}


def open_page(browser: Browser, address: str) -> None:
    browser.driver.get("about:blank")
    browser.heard()
    browser.requested()
    browser.show(width=1200)
    browser.driver.get(address)
    wait(browser, "document.querySelector('#observation tr')")


def wait(browser: Browser, condition: str) -> None:
    WebDriverWait(browser.driver, 30).until(lambda _: browser.run(f"return Boolean({condition})"))


def text(browser: Browser, selector: str) -> str:
    return browser.run(f"return document.querySelector('{selector}').textContent")


def press(browser: Browser, key: str, step: int) -> None:
    ActionChains(browser.driver).send_keys(key).perform()
    wait(browser, f"document.querySelector('#status').textContent.startsWith('Step {step} ')")


def test_an_episode_is_played_by_buttons_and_keys(opened: Browser) -> None:
    buttons = opened.run(
        "return [...document.querySelectorAll('#actions button')].map(each => each.textContent)"
    )
    assert len(buttons) == 4
    assert buttons[2].endswith("right")
    press(opened, Keys.ARROW_RIGHT, 1)
    assert "1" in text(opened, "#observation")
    opened.run("document.querySelector('#actions button:nth-child(2)').click()")
    wait(opened, "document.querySelector('#status').textContent.startsWith('Step 2 ')")
    assert "The episode has ended." in text(opened, "#status")
    assert "terminated" in text(opened, "#steps")
    assert "terminated" in text(opened, "#episodes")
    assert opened.run("return document.querySelectorAll('#actions button:enabled').length") == 0
    press(opened, Keys.ENTER, 0)
    assert opened.run("return document.querySelectorAll('#actions button:enabled').length") == 4


def test_the_page_plays_by_itself_and_draws(opened: Browser) -> None:
    opened.run("document.querySelector('#speed').value = 30")
    opened.run("document.querySelector('#auto').click()")
    wait(opened, "document.querySelectorAll('#episodes tr').length >= 2")
    opened.run("document.querySelector('#auto').click()")
    assert opened.run("return document.querySelector('#picture').children.length") == 1
    assert opened.run("return document.querySelectorAll('svg.chart').length") == 1
    assert "token" not in opened.driver.current_url


def test_another_session_is_watched(opened: Browser, lake: Served) -> None:
    name = lake.session(seed=1)["session"]
    lake.step(name, 2)
    wait(opened, f"document.querySelector('#watch option[value=\"{name}\"]')")
    opened.run(
        f"const select = document.querySelector('#watch'); select.value = '{name}';"
        "select.dispatchEvent(new Event('change'))"
    )
    wait(opened, "document.querySelector('#status').textContent.startsWith('Step 1 ')")
    lake.step(name, 0)
    wait(opened, "document.querySelector('#status').textContent.startsWith('Step 2 ')")
    assert opened.run("return document.querySelectorAll('#actions button:enabled').length") == 0


def test_without_the_token_the_page_names_the_remedy(browser: Browser, lake: Served) -> None:
    browser.run("sessionStorage.clear()")
    browser.driver.get("about:blank")
    browser.driver.get(lake.facts["url"])
    browser.run("sessionStorage.clear(); location.reload()")
    wait(browser, "!document.querySelector('#error').hidden")
    assert "the token is missing or wrong" in text(browser, "#error")


def test_continuous_actions_have_a_field(browser: Browser, tmp_path) -> None:
    record("Pendulum-v1", episodes=3)[0].save(tmp_path / "rows.npz")
    (tmp_path / "swing.py").write_text(PENDULUM)
    arguments = ("swing.py", "--env", "Pendulum-v1", "--dataset", "rows.npz")
    with served(tmp_path, *arguments) as server:
        open_page(browser, server.facts["page"])
        browser.run("document.querySelector('#actions input').value = 1.5")
        press(browser, Keys.SPACE, 1)
        assert "[1.5]" in text(browser, "#steps")
