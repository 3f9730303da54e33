# SPDX-License-Identifier: Apache-2.0
"""The dashboard in a browser: what a page shows is what gpushared and the history have."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver import ActionChains

from gpushare.history import FOLDER
from gpushare.history.reader import HistoryReader, HistoryUnreadable
from gpushare.quota.size import format_size, format_use
from gpushare.verify.runners import ProbeTenant, spawn
from tests.browser import WAIT_SECONDS, Browser, chromium
from tests.stack import Stack
from tests.stack.program import ServiceProcess

pytestmark = pytest.mark.needs("chromium")
GIB = 1 << 30


def start(stack: Stack) -> ServiceProcess:
    """Start a dashboard of the stack, on a free port, and wait for its address."""
    words = [*stack.cli, "dashboard", "--listen", "127.0.0.1:0"]
    program = stack.start("dashboard", words)
    program.wait_until(lambda: "http" in program.log.read_text())
    return program


def address_of(program: ServiceProcess) -> str:
    """Return the address that it printed last."""
    return str(re.findall(r"https?://\S+", program.log.read_text())[-1])


@pytest.fixture(scope="module")
def own() -> Iterator[Stack]:
    """Two cards, whose daemon may be stopped."""
    with Stack(cards=2) as made:
        made.start_daemon()
        yield made


@pytest.fixture(scope="module")
def tenants(own: Stack) -> Iterator[dict[str, ProbeTenant]]:
    """`train` with 2 of 4 GiB on card 0, and `serve` with 1 of 8 GiB on card 1; both do nothing."""
    train = {"memory": "4GiB", "cores": "30", "devices": "0"}
    serve = {"memory": "8GiB", "devices": "1"}
    with spawn(own.host(), "train", train) as one, spawn(own.host(), "serve", serve) as other:
        for tenant, size in ((one, 2 * GIB), (other, GIB)):
            tenant.start()
            assert tenant.ask(f"alloc {size}")["code"] == 0
        yield {"train": one, "serve": other}


@pytest.fixture(scope="module")
def program(own: Stack, tenants: dict[str, ProbeTenant]) -> ServiceProcess:
    """A dashboard whose history has some samples of both containers."""
    assert len(tenants) == 2
    made = start(own)
    deadline = time.monotonic() + WAIT_SECONDS
    while samples(own) < 3:
        assert time.monotonic() < deadline, "the history has no samples"
        time.sleep(0.5)
    return made


def reader_of(stack: Stack) -> HistoryReader:
    return HistoryReader(stack.root / "state" / FOLDER)


def samples(stack: Stack) -> int:
    """Return how many samples the history has of the container that has fewest."""
    until = time.time() + 60
    try:
        with reader_of(stack) as reader:
            found = reader.containers(0, until)
            counts = [len(reader.series(one, "used_bytes", 0, until)) for one in found]
    except HistoryUnreadable:  # it is made with the first sample
        return 0
    return min(counts) if len(counts) == 2 else 0


@pytest.fixture(scope="module")
def site(program: ServiceProcess) -> Iterator[Browser]:
    with chromium() as browser:
        browser.open(address_of(program))
        yield browser


@pytest.fixture(autouse=True)
def clean(site: Browser) -> Iterator[None]:
    """Every test begins with the overview; none leaves an error in the console."""
    site.log()
    site.errors.clear()
    if site.script("return location.hash") != "#/overview":
        site.go("#/overview")
    yield
    assert site.log() == []


def test_the_page_keeps_a_key_and_not_the_token(site: Browser, program: ServiceProcess) -> None:
    token = address_of(program).partition("#token=")[2]
    kept = site.script(
        "return [location.href, ...Object.values(localStorage), ...Object.values(sessionStorage)]"
    )
    assert token not in "".join(kept)
    key = site.script("return sessionStorage.getItem('gpushare-key')")
    answer = "return fetch('api/now', { headers: { Authorization: `Bearer ${arguments[0]}` } })"
    assert site.script(f"{answer}.then((found) => found.status)", key) == 200
    # Without it, as in another tab, the page asks for the token, and takes a new key for it.
    site.script("sessionStorage.clear(); document.getElementById('now').click()")
    site.until(lambda: site.script("return !!document.querySelector('#message form')"))
    site.find("#token").send_keys(token)
    before = site.updates()
    site.find("#message button").click()
    site.until(lambda: site.updates() > before)
    assert site.script("return sessionStorage.getItem('gpushare-key')") == key
    assert all("(Unauthorized)" in one for one in site.log())
    site.errors.clear()


def same(site: Browser, said: Callable[[], Any], shown: Callable[[], Any]) -> None:
    """Have the page show the same as gpushared says; look again if that changes meanwhile."""

    def holds() -> bool:
        site.refresh()
        return bool(said() == shown())

    deadline = time.monotonic() + WAIT_SECONDS
    while not holds():
        assert time.monotonic() < deadline, f"{said()} and not {shown()}"


def test_the_overview_shows_the_cards_and_containers_that_ls_and_ps_list(
    site: Browser, own: Stack
) -> None:
    def cards() -> list[list[str]]:
        return [
            [
                str(card["index"]),
                card["model"],
                format_use(card["allocated_bytes"], card["memory_bytes"]),
                format_size(card["available_bytes"]),
                "-",
                f"{100 - card['cores_available']} %",
                f"{card['utilization']} %",
                f"{card['tenants']}/{card['max_tenants']}",
                card["mode"],
                f"{card['sensors']['temperature_celsius']} °C",
                f"{round(card['sensors']['power_milliwatts'] / 1000)} W",
                card["health"],
            ]
            for card in own.shown("ls")
        ]

    def containers() -> list[list[str]]:
        return [
            [
                tenant["name"],
                str(card["index"]),
                format_use(card["used_bytes"], card["quota_bytes"], card["limit_bytes"]),
                card["policy"] or "-",
                tenant["isolation"],
            ]
            for tenant in own.shown("ps")
            for card in tenant["cards"]
        ]

    assert (len(cards()), len(containers())) == (2, 2)
    same(site, cards, lambda: site.table("Cards"))
    same(site, containers, lambda: [[*row[:3], row[4], row[6]] for row in site.table("Containers")])


def key_of(stack: Stack, name: str) -> str:
    [key] = [row["key"] for row in stack.client.tenants() if row["name"] == name]
    return str(key)


def test_a_graph_ends_with_the_last_sample_of_the_history(site: Browser, own: Stack) -> None:
    key = key_of(own, "train")
    site.go(f"#/container?id={key}")

    def said() -> str:
        with reader_of(own) as reader:
            [one] = [found for found in reader.containers(0, time.time()) if found.key == key]
            return format_size(int(reader.series(one, "used_bytes", 0, time.time())[-1].mean))

    def shown() -> str:
        found = re.search(r"memory in use: last ([^,]+),", site.graph("Memory"))
        return found[1] if found else ""

    same(site, said, shown)
    assert "memory quota; 0: evicted: last 4 GiB" in site.graph("Memory")
    assert "compute requested; 0: none, or evicted: last 30.0 %" in site.graph(
        "Compute received and requested"
    )
    # The picture has the color of its line, a blue.
    drawn = site.script(
        "const canvas = document.querySelector('figure canvas');"
        "const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;"
        "for (let at = 0; at < data.length; at += 4)"
        " if (data[at + 2] - data[at] > 80 && data[at + 3] > 100) return true;"
        "return false"
    )
    assert drawn


def test_filters_leave_what_passes(site: Browser, own: Stack) -> None:
    site.choose("filter-card", own.shown("ls")[1]["uuid"])
    assert [row[0] for row in site.table("Containers")] == ["serve"]
    assert [row[0] for row in site.table("Cards")] == ["1"]
    assert "card 1" not in site.graph("Utilization of cards")  # one line needs no name
    site.choose("filter-card", "")
    site.choose("filter-mode", "whole")
    assert site.table("Containers") == []
    site.choose("filter-mode", "share")
    assert len(site.table("Containers")) == 2
    site.go("#/overview?container=rai")
    assert [row[0] for row in site.table("Containers")] == ["train"]
    site.go("#/overview?namespace=none")
    assert site.table("Containers") == site.table("Cards") == []


def test_ranges_zoom_and_the_way_back(site: Browser) -> None:
    for name in ("30m", "6h", "12h", "24h", "2d", "7d"):
        site.choose("range", name)
        assert f"range={name}" in site.script("return location.hash")
        assert "last" in site.graph("Memory in use of cards"), name
    site.choose("range", "custom")
    since = site.script("return new URLSearchParams(location.hash.split('?')[1]).get('since')")
    assert site.find("#since").get_attribute("value")
    plot = site.find("figure .plot")
    plot.send_keys("+")  # the range is half as long
    site.until(lambda: "since=" in site.script("return location.hash"))
    site.until(lambda: f"since={since}" not in site.script("return location.hash"))
    site.driver.back()
    site.until(lambda: f"since={since}" in site.script("return location.hash"))
    site.choose("range", "1h")
    site.until(lambda: drag(site))
    ends = site.script(
        "const q = new URLSearchParams(location.hash.split('?')[1]);"
        "return [Number(q.get('since')), Number(q.get('until'))]"
    )
    assert 60 <= ends[1] - ends[0] < 3600


def drag(site: Browser) -> bool:
    """Drag over the middle of a graph; False if it was drawn again meanwhile."""
    actions = ActionChains(site.driver)
    try:
        over = site.find("figure .u-over")
        site.script("arguments[0].scrollIntoView({ block: 'center' })", over)
        actions.move_to_element_with_offset(over, -60, 0).click_and_hold()
        actions.move_by_offset(60, 0).move_by_offset(60, 0).release().perform()
    except StaleElementReferenceException:
        actions.reset_actions()
        return False
    return "range=custom" in str(site.script("return location.hash"))


def test_without_gpushared_the_state_is_unknown_and_the_graphs_stay(
    site: Browser, own: Stack
) -> None:
    key, unknown = key_of(own, "train"), "Unknown: gpushared does not answer."
    own.end_daemon(signal.SIGTERM)
    try:
        site.until(lambda: site.refresh() and "gpushared is not running" in site.text("#message"))
        assert sections(site) == dict.fromkeys(
            ("Problems", "Cards", "Waiting", "Evicted", "Containers"), unknown
        )
        assert "card 0: last" in site.graph("Memory in use of cards")
        site.go("#/card")
        assert sections(site) == dict.fromkeys(("Containers", "Evicted", "Events"), unknown)
        assert site.text("main").count(unknown) == 4  # also the card's own state
        site.go(f"#/container?id={key}")
        assert sections(site) == dict.fromkeys(("Memory by kind", "Events"), unknown)
        assert f"State\n{unknown}" in site.text("main dl")
        assert "memory in use: last" in site.graph("Memory")
        site.go("#/overview")
    finally:
        own.start_daemon()
    site.until(lambda: site.refresh() and len(site.table("Containers")) == 2)
    assert site.script("return document.getElementById('message').hidden")


def sections(site: Browser) -> dict[str, str]:
    """Return what each section of the page but its graphs shows, by its heading."""
    found: dict[str, str] = site.script(
        "return Object.fromEntries([...document.querySelectorAll('main section:not(:has(figure))')]"
        ".map((one) => [one.querySelector('h2').innerText, one.children[1].innerText]))"
    )
    return found
