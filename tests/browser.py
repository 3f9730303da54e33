# SPDX-License-Identifier: Apache-2.0
"""Debian's chromium without a window, as the tests of the dashboard use it."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By

from .stack.program import find

#: It runs as root, without a GPU, and is to look nothing up.
_ARGUMENTS: Final = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)
WAIT_SECONDS: Final = 300.0  # of a very busy machine
_LOOK_SECONDS: Final = 0.1


class Browser:
    """A browser with one page."""

    def __init__(self, driver: webdriver.Chrome, downloads: Path) -> None:
        self.driver = driver
        self.requested: list[str] = []
        self.errors: list[str] = []
        self.downloads = downloads

    def open(self, address: str) -> None:
        """Open an address, and wait until the page has its figures."""
        self.driver.get(address)
        self.shown()

    def go(self, place: str) -> None:
        """Show a place of the pages (`#/card?range=6h`)."""
        before = self.updates()
        self.script(f"location.hash = {json.dumps(place)}")
        self.until(lambda: self.updates() > before)

    def refresh(self) -> bool:
        """Have the page ask for all figures again; return true when it shows them."""
        before = self.updates()
        self.script("document.getElementById('now').click()")
        return bool(self.until(lambda: self.updates() > before))

    def shown(self) -> None:
        """Wait until the page has its figures."""
        self.until(lambda: self.updates() > 0)

    def until(self, holds: Callable[[], Any]) -> Any:
        """Return what `holds` returns once that is true."""
        deadline = time.monotonic() + WAIT_SECONDS
        while not (found := holds()):
            if time.monotonic() > deadline:
                raise AssertionError(f"the page shows:\n{self.text('body')}\n{self.log()}")
            time.sleep(_LOOK_SECONDS)
        return found

    def script(self, text: str, *words: Any) -> Any:
        return self.driver.execute_script(text, *words)

    def find(self, selector: str) -> Any:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def text(self, selector: str) -> str:
        """Return what a reader sees of an element."""
        return str(self.script("return document.querySelector(arguments[0])?.innerText", selector))

    def table(self, label: str) -> list[list[str]]:
        """Return the cells of a table's rows."""
        rows: list[list[str]] = self.script(
            "return [...document.querySelectorAll(`table[aria-label='${arguments[0]}'] tbody tr`)]"
            ".map((row) => [...row.cells].map((cell) => cell.innerText.trim()))",
            label,
        )
        return rows

    def graph(self, title: str) -> str:
        """Return the text that stands for a graph."""
        return str(
            self.script(
                "return [...document.querySelectorAll('figure')].find((one) => "
                "one.querySelector('figcaption span').innerText === arguments[0])"
                "?.querySelector('.plot').getAttribute('aria-label')",
                title,
            )
        )

    def choose(self, identity: str, value: str) -> None:
        """Choose a value of a select, as a user does, and wait for the figures."""
        before = self.updates()
        self.script(
            "const one = document.getElementById(arguments[0]); one.value = arguments[1];"
            "one.dispatchEvent(new Event('change', { bubbles: true }))",
            identity,
            value,
        )
        self.until(lambda: self.updates() > before)

    def log(self) -> list[str]:
        """Return what the console has and what was requested so far, as two lists in `self`."""
        self.errors += [entry["message"] for entry in self._entries("browser")]
        for entry in self._entries("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                self.requested.append(message["params"]["request"]["url"])
        return self.errors

    def _entries(self, kind: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.driver.get_log(kind)
        return found

    def updates(self) -> int:
        """Return how often the page has shown new figures."""
        return int(self.script("return document.getElementById('main')?.dataset.shown ?? 0"))


@contextmanager
def chromium(width: int = 1280, height: int = 900) -> Iterator[Browser]:
    """Start a browser; what it downloads is in `browser.downloads`."""
    with tempfile.TemporaryDirectory(prefix="gpushare-chromium-") as folder:
        options = webdriver.ChromeOptions()
        options.binary_location = find("chromium")
        for argument in (*_ARGUMENTS, f"--window-size={width},{height}"):
            options.add_argument(argument)
        options.add_argument(f"--user-data-dir={folder}")
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        downloads = {"download.default_directory": str(Path(folder) / "downloads")}
        options.add_experimental_option("prefs", downloads)
        driver = webdriver.Chrome(options=options, service=Service(find("chromedriver")))
        try:
            yield Browser(driver, Path(folder) / "downloads")
        finally:
            driver.quit()
