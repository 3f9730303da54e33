# SPDX-License-Identifier: Apache-2.0
"""The dashboard in a browser: what a page shows is what gpushared and the history have."""

from __future__ import annotations

import csv
import io
import json
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver import ActionChains, Keys

from gpushare.client import Client
from gpushare.history import FOLDER
from gpushare.history.reader import HistoryReader, HistoryUnreadable
from gpushare.quota.size import format_size, format_use
from gpushare.verify import ProbeTenant, spawn
from tests.browser import WAIT_SECONDS, Browser, chromium
from tests.dashboard_pictures import address_of, start
from tests.stack import Stack
from tests.stack.program import ServiceProcess

GIB = 1 << 30


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


def cli(stack: Stack, *words: str) -> Any:
    done = subprocess.run(
        [*stack.cli, *words, "--json"],
        check=True,
        capture_output=True,
        text=True,
        env=stack.environment,
    )
    return json.loads(done.stdout)


def same(site: Browser, said: Callable[[], Any], shown: Callable[[], Any]) -> None:
    """Have the page show the same as gpushared says; look again if that changes meanwhile."""

    def holds() -> bool:
        site.refresh()
        return bool(said() == shown())

    deadline = time.monotonic() + WAIT_SECONDS
    while not holds():
        assert time.monotonic() < deadline, f"{said()} and not {shown()}"


def test_the_overview_shows_the_cards_that_ls_lists(site: Browser, own: Stack) -> None:
    def said() -> list[list[str]]:
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
                f"{card['temperature_celsius']} °C",
                f"{round(card['power_milliwatts'] / 1000)} W",
                card["health"],
            ]
            for card in cli(own, "ls")
        ]

    assert len(said()) == 2
    same(site, said, lambda: site.table("Cards"))


def test_a_cordoned_card_offers_no_memory(site: Browser, own: Stack) -> None:
    client, card = Client(own.socket), cli(own, "ls")[0]["uuid"]
    client.cordon(card, "fan")
    try:
        same(
            site,
            lambda: [
                ("-", "shared, cordoned"),
                (format_size(cli(own, "ls")[1]["available_bytes"]), "shared"),
            ],
            lambda: [(row[3], row[8]) for row in site.table("Cards")],
        )
        site.go(f"#/card?id={card}")
        facts = site.text("main dl")
        assert "Available\n-\n" in facts
        assert "Cores available\n-\n" in facts
        assert "shared, cordoned fan" in facts
    finally:
        client.uncordon(card)


def test_the_overview_shows_the_containers_that_ps_lists(site: Browser, own: Stack) -> None:
    def said() -> list[list[str]]:
        return [
            [
                tenant["name"],
                str(card["index"]),
                format_use(card["used_bytes"], card["quota_bytes"], card["current_limit_bytes"]),
                card["policy"] or "-",
                tenant["isolation"],
            ]
            for tenant in cli(own, "ps")
            for card in tenant["cards"]
        ]

    assert sorted(row[0] for row in said()) == ["serve", "train"]
    same(site, said, lambda: [[*row[:3], row[4], row[6]] for row in site.table("Containers")])


def test_a_container_has_the_memory_by_kind_that_why_says(site: Browser, own: Stack) -> None:
    site.go(f"#/container?id={key_of(own, 'train')}")

    def said() -> list[list[str]]:
        [card] = cli(own, "why", "train")["cards"]
        kinds = {kind: size for kind, size in card["kinds"].items() if size}
        return [
            [kind.replace("_", " "), format_size(kinds[kind])]
            for kind in sorted(kinds, key=lambda kind: -kinds[kind])
        ]

    assert ["buffers", "2 GiB"] in said()
    same(site, said, lambda: site.table("Memory by kind on card 0"))


def test_an_evicted_container_is_shown_with_its_memory_until_it_is_restored(
    site: Browser, own: Stack, tenants: dict[str, ProbeTenant]
) -> None:
    client, key = Client(own.socket), key_of(own, "serve")
    assert site.text("main").count("No container is evicted.") == 1
    client.evict(key, "lunch")
    try:

        def said() -> list[list[str]]:
            [evicted] = [one["evicted"] for one in client.tenants() if one["key"] == key]
            assert evicted is not None
            host, since = format_size(evicted["bytes"]), shown_time(site, evicted["since"])
            return [["serve", "evicted", since, host, "0 B", "1", "operator: lunch", "-"]]

        same(site, said, lambda: site.table("Evicted containers"))
        states = {row[0]: row[7] for row in site.table("Containers")}
        assert states == {"train": "running", "serve": "evicted"}
        size = said()[0][3]
        assert [row[4] for row in site.table("Cards")] == ["-", size]
        uuids = [card["uuid"] for card in cli(own, "ls")]
        site.go(f"#/card?id={uuids[1]}")
        assert site.table("Evicted containers") == said()
        assert f"{size} of 1 container in host memory" in site.text("main dl")
        site.go(f"#/card?id={uuids[0]}")
        assert "No container is evicted." in site.text("main")
        site.go(f"#/container?id={key}")
        facts = site.text("main dl")
        assert f"In host memory\n{size}" in facts
        assert "Evicted by\noperator: lunch" in facts
        assert "tenant-evicted" in [row[1] for row in site.table("Events")]
        tenants["serve"].tell("spin 1 1")  # its first call gets the memory back
        tenants["serve"].answer("spin")
    finally:
        if any(one["key"] == key and one["evicted"] for one in client.tenants()):
            client.restore(key)
    site.go("#/overview")
    same(site, list, lambda: site.table("Evicted containers"))


def test_a_restore_that_waits_is_a_problem(
    site: Browser, own: Stack, tenants: dict[str, ProbeTenant]
) -> None:
    client, key = Client(own.socket), key_of(own, "serve")
    client.evict(key, hold=True)
    try:
        tenants["serve"].tell("spin 1 1")
        site.until(
            lambda: site.refresh() and "serve uses CUDA while it is evicted" in site.text("main")
        )
        [row] = site.table("Evicted containers")
        assert row[1] == "evicted, waits"
    finally:
        client.restore(key)
    tenants["serve"].answer("spin")


def shown_time(site: Browser, seconds: float) -> str:
    """Return a time as the pages show it, in the browser's time zone."""
    return str(
        site.script(
            "const at = new Date(arguments[0] * 1000);"
            "const two = (value) => String(value).padStart(2, '0');"
            "return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}"
            " ${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`",
            seconds,
        )
    )


def key_of(stack: Stack, name: str) -> str:
    [key] = [row["key"] for row in Client(stack.socket).tenants() if row["name"] == name]
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


def test_events_are_those_of_the_history_command(site: Browser, own: Stack) -> None:
    site.go(f"#/container?id={key_of(own, 'serve')}")

    def said() -> list[str]:
        names = [event["event"] for event in cli(own, "history", "serve", "--since", "1h")]
        return names[::-1]

    assert "tenant-bound" in said()
    same(site, said, lambda: [row[1] for row in site.table("Events")])


def test_the_csv_of_a_graph_is_what_the_server_has(site: Browser, own: Stack) -> None:
    site.go(f"#/container?id={key_of(own, 'train')}")
    [button] = [
        one
        for one in site.driver.find_elements("css selector", "figcaption button")
        if one.get_attribute("aria-label") == "Memory as CSV"
    ]
    button.click()
    file = site.downloads / "memory.csv"
    site.until(file.exists)
    heading, *rows = csv.reader(io.StringIO(file.read_text()))
    assert heading[:2] == ["time", "train used_bytes (bytes)"]
    assert len(rows) >= 3
    assert float(rows[-1][1]) >= 2 * GIB


def test_filters_leave_what_passes(site: Browser, own: Stack) -> None:
    site.choose("filter-card", cli(own, "ls")[1]["uuid"])
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


def test_reports_are_those_of_the_command(site: Browser, own: Stack) -> None:
    site.go("#/reports?id=usage")
    title = "GPU usage"
    assert sorted(row[0] for row in site.table(title)) == ["serve", "train"]
    done = cli(own, "report", "usage", "--since", "1h")
    assert len(done["rows"]) == len(site.table(title))
    site.choose("by", "card")
    assert sorted(row[0] for row in site.table(title)) == ["0", "1"]
    for one in site.script(
        "return [...document.getElementById('choose').options].map((o) => o.value)"
    ):
        site.choose("choose", one)
        assert site.find("main h1").text == "Reports"
    site.go("#/reports?id=usage")
    site.find("#save-html").click()
    file = site.downloads / "gpushare-usage.html"
    site.until(file.exists)
    assert "train" in file.read_text()


def test_colors_can_be_light_or_dark(site: Browser) -> None:
    def background() -> str:
        return str(site.script("return getComputedStyle(document.body).backgroundColor"))

    found = {}
    for name in ("light", "dark"):
        site.script(
            "const one = document.getElementById('theme'); one.value = arguments[0];"
            "one.dispatchEvent(new Event('change', { bubbles: true }))",
            name,
        )
        found[name] = background()
    assert found == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 26)"}
    site.script("localStorage.setItem('gpushare-theme', 'auto')")


def test_a_phone_shows_all_pages_without_scrolling_sideways(site: Browser, own: Stack) -> None:
    size = {"mobile": True, "width": 360, "height": 740, "deviceScaleFactor": 2}
    site.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        for place in ("overview", "card", f"container?id={key_of(own, 'train')}", "reports"):
            site.go(f"#/{place}{'&' if '?' in place else '?'}range=6h")
            width = site.script("return document.documentElement.scrollWidth")
            assert width <= 360, place
    finally:
        site.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_everything_is_reached_with_the_keyboard(site: Browser) -> None:
    site.choose("refresh", "0")
    site.script("document.activeElement.blur()")
    reached: list[str] = []
    for _ in range(60):
        site.driver.switch_to.active_element.send_keys(Keys.TAB)
        reached.append(
            site.script(
                "const one = document.activeElement;"
                "return one.id || one.dataset.page || one.className"
            )
        )
    wanted = {"skip", "overview", "card", "container", "reports", "range", "refresh", "now"}
    wanted |= {"filter-card", "filter-mode", "filter-container", "theme", "plot"}
    assert wanted <= set(reached)
    site.script("document.querySelector('nav [data-page=card]').focus()")
    site.driver.switch_to.active_element.send_keys(Keys.ENTER)
    site.until(lambda: site.text("main h1") == "Card")
    # What has the focus keeps it when the figures are new.
    site.script("document.getElementById('choose').focus()")
    site.go("#/card?range=30m")
    assert site.script("return document.activeElement.id") == "choose"


def test_the_pages_refresh_by_themselves(site: Browser) -> None:
    site.choose("refresh", "5")
    before = int(site.script("return document.getElementById('main').dataset.shown"))
    site.until(
        lambda: int(site.script("return document.getElementById('main').dataset.shown")) > before
    )


def test_nothing_comes_from_another_server(site: Browser, program: ServiceProcess) -> None:
    site.log()
    origin = address_of(program).partition("#")[0]
    assert len(site.requested) > 20
    fetched = [one for one in site.requested if one.startswith(("http", "ws"))]
    assert [one for one in fetched if not one.startswith(origin)] == []
    assert not [one for one in fetched if "token" in one.partition("#")[0]]


def test_a_browser_without_the_token_is_asked_for_it(program: ServiceProcess) -> None:
    address, _, token = address_of(program).partition("#token=")
    with chromium() as browser:
        browser.driver.get(address)
        browser.until(lambda: "it has the token" in browser.text("#message"))
        assert "train" not in browser.text("body")
        browser.find("#token").send_keys(token)
        browser.find("#message button").click()
        browser.shown()
        assert "train" in browser.text("main")


def test_without_gpushared_the_state_is_unknown_and_the_graphs_stay(
    site: Browser, own: Stack
) -> None:
    assert own.daemon is not None
    key, unknown = key_of(own, "train"), "Unknown: gpushared does not answer."
    own.daemon.stop()
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
