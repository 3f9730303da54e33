# SPDX-License-Identifier: Apache-2.0
"""Takes the screenshots of the dashboard in docs: simulated cards, and an hour of their history.

sudo .venv/bin/python -m tests.dashboard_pictures
"""

from __future__ import annotations

import copy
import math
import re
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpushare.client import Client
from gpushare.history import FOLDER
from gpushare.history.store import HistoryStore
from gpushare.verify.runners import spawn

from .browser import Browser, chromium
from .stack import Stack

if TYPE_CHECKING:
    from gpushare.metrics_schema import Metrics

    from .stack.program import ServiceProcess

PICTURES: Final = Path(__file__).resolve().parents[1] / "docs" / "pictures"
GIB: Final = 1 << 30
KERNEL_NS: Final = 1_000_000
WORK_NS: Final = 60 * 10**9
SLOW: Final = 3  # the machine that draws has other things to do: its delays are a third so large
SETTLED_SECONDS: Final = 12.0  # the ten seconds of the table are of all of them at work
# Of the card that each is on: name, quota, and what it has taken of its memory.
TENANTS: Final = (
    ("train", {"memory": "40GiB", "cores": "30", "policy": "fixed-share", "devices": "0"}, 37),
    ("serve", {"memory": "48GiB", "cores": "50", "policy": "burst-share", "devices": "0"}, 29),
    ("notebook", {"memory": "16GiB", "devices": "0"}, 3),
    ("batch", {"memory": "80GiB", "devices": "1"}, 64),
)
HOUR: Final = 3600
STEP: Final = 10
#: When, in minutes before now, the node was down: a gap is a gap.
DOWN: Final = range(36, 42)
WIDTH, HEIGHT, TALL = 1200, 1000, 1300


def main() -> int:
    """Take them anew."""
    with Stack(cards=2, time_scale=SLOW) as stack, ExitStack() as running:
        with stack.config.open("a") as settings:
            settings.write("metrics_history: {retention_days: 0}\n")  # it is written here
        stack.start_daemon()
        put_to_work(stack, running)
        time.sleep(SETTLED_SECONDS)
        write_history(stack.root / "state" / FOLDER, Client(stack.socket).metrics())
        address = address_of(start(stack))
        browser = running.enter_context(chromium(WIDTH, HEIGHT))
        browser.open(address)
        save(browser, "overview")
        [train] = [row for row in Client(stack.socket).tenants() if row["name"] == "train"]
        browser.driver.set_window_size(WIDTH, TALL)
        browser.go(f"#/container?id={train['key']}")
        save(browser, "container")
    return 0


def put_to_work(stack: Stack, running: ExitStack) -> None:
    """Start the tenants, which end with `running`."""
    for name, quota, taken in TENANTS:
        tenant = running.enter_context(spawn(stack.host(), name, quota))
        tenant.start()
        tenant.ask(f"alloc {taken * GIB}")
        tenant.tell(f"busy {KERNEL_NS} {WORK_NS}")


def start(stack: Stack, *options: str) -> ServiceProcess:
    """Start a dashboard of the stack, on a free port, and wait for its address."""
    words = [*stack.cli, "dashboard", "--listen", "127.0.0.1:0", *options]
    program = stack.start("dashboard", words)
    program.wait_until(lambda: "http" in program.log.read_text())
    return program


def address_of(program: ServiceProcess) -> str:
    """Return the address that it printed last."""
    return str(re.findall(r"https?://\S+", program.log.read_text())[-1])


def write_history(folder: Path, now: Metrics) -> None:
    """Write an hour in which the containers use more and less, around what they use now."""
    store, end = HistoryStore(folder), time.time()
    times = [end - HOUR + STEP * number for number in range(HOUR // STEP)]
    known = [at for at in times if (end - at) // 60 not in DOWN]
    for number, at in enumerate(known):
        store.write(at, _at(now, at, end - HOUR, number))
    store.close()


def _at(now: Metrics, at: float, began: float, number: int) -> Metrics:
    made = copy.deepcopy(now)
    made.node["started"] = began
    for place, tenant in enumerate(made.tenants):
        tenant["created"] = began
        wave = 0.8 + 0.2 * math.sin(at / 400 + 2 * place) + 0.04 * math.sin(at / 17 + place)
        for part in tenant["cards"]:
            part["used_bytes"] = int(part["used_bytes"] * min(1, wave + 0.1))
            part["peak_bytes"] = max(part["peak_bytes"], part["used_bytes"])
            received = (part["utilization"] or 0) * wave
            part["utilization"] = received
            part["gpu_seconds"] = received / 100 * STEP * number
            part["compute"]["throttled_ns"] = round(STEP * number * 0.4 * 1e9)
    for card in made.cards:
        parts = [part for one in made.tenants for part in one["cards"]]
        ours = [part for part in parts if part["uuid"] == card["uuid"]]
        card["used_bytes"] = sum(part["used_bytes"] for part in ours)
        card["utilization"] = round(min(100, sum(part["utilization"] or 0 for part in ours)))
    return made


def save(browser: Browser, name: str) -> None:
    """Write what the window shows."""
    place = PICTURES / f"dashboard-{name}.png"
    browser.driver.save_screenshot(str(place))
    sys.stdout.write(f"wrote {place}\n")


if __name__ == "__main__":
    sys.exit(main())
