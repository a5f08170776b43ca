"""A real browser to look at pages with: Chromium without a window, one for a module of tests."""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pytest

REQUIRED = "CWM_BROWSER"
"""The environment variable that is `required` where a machine without a browser is a failure."""

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)


class Browser(NamedTuple):
    """A browser with its console messages and requests."""

    driver: Any

    def open(self, file: Path, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Open a file in a window of a size, as a light or a dark system would."""
        self.driver.get("about:blank")
        self.heard()
        self.requested()  # what the browser's first page asked for is not ours
        self.show(width=width, height=height, dark=dark)
        self.driver.get(file.resolve().as_uri())

    def show(self, *, width: int, height: int = 900, dark: bool = False) -> None:
        """Make the window this large, and the system light or dark."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 640}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        still = {"name": "prefers-reduced-motion", "value": "reduce"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme, still]})

    def run(self, script: str) -> Any:
        """Run a script in the page and return its result."""
        return self.driver.execute_script(script)

    def heard(self) -> list[str]:
        """Return what the console said since it was asked last: errors, refusals, violations."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requested(self) -> list[str]:
        """Return the URLs requested since the last call, except local files."""
        entries = [
            json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")
        ]
        return [
            entry["params"]["request"]["url"]
            for entry in entries
            if entry["method"] == "Network.requestWillBeSent"
            and not entry["params"]["request"]["url"].startswith(("file:", "data:", "about:"))
        ]

    def picture(self, file: Path, *, whole: bool = False) -> None:
        """Save the visible part, or the whole page, as a PNG file."""
        from base64 import b64decode

        found = self.driver.execute_cdp_cmd(
            "Page.captureScreenshot", {"format": "png", "captureBeyondViewport": whole}
        )
        file.write_bytes(b64decode(found["data"]))


@contextmanager
def opened_browser() -> Iterator[Browser]:
    """Start a browser with a folder of its own; `FileNotFoundError` where there is none."""
    chromium, chromedriver = (shutil.which(name) for name in ("chromium", "chromedriver"))
    if chromium is None or chromedriver is None:
        raise FileNotFoundError("chromium and chromedriver are needed")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    with TemporaryDirectory(prefix="cwm-browser-", ignore_cleanup_errors=True) as folder:
        options = webdriver.ChromeOptions()
        options.binary_location = chromium
        for flag in (*FLAGS, f"--user-data-dir={folder}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        driver = webdriver.Chrome(options=options, service=Service(chromedriver))
        try:
            yield Browser(driver)
        finally:
            driver.quit()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Return a browser; without one tests are skipped, or fail where one is required."""
    try:
        with opened_browser() as found:
            yield found
    except FileNotFoundError as error:
        if os.environ.get(REQUIRED) == "required":
            raise
        pytest.skip(str(error))
