# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare.verify.runners import ProbeTenant
from tests.compiled import ROOT, compile_c
from tests.stack import Stack
from tests.stack.bundle import Bundle
from tests.stack.shared import SharedStack
from tests.system.waiting import wait_until

HERE = Path(__file__).parent
MEASURED = '"context-size-measured"'


def ready(stack: Stack) -> Stack:
    """Have it know what a context takes, so that it acts."""
    stack.start_daemon()
    wait_until(lambda: MEASURED in (stack.root / "gpushared.log").read_text())
    return stack


def steps(bundle: Bundle) -> list[str]:
    """Return the steps of the audit against a container."""
    return [
        line["event"].removeprefix("over-quota-")
        for line in bundle.stack.events()
        if line["event"].startswith("over-quota-") and line.get("id") == bundle.id
    ]


def is_frozen(bundle: Bundle) -> bool:
    """Whether the audit has frozen a container."""
    found = bundle.row()
    return found is not None and [held["by"] for held in found["interventions"]] == ["audit"]


def ended(tenant: ProbeTenant) -> bool:
    """Whether a container's program has ended."""
    return tenant.process.poll() is not None


def end(bundle: Bundle, tenant: ProbeTenant) -> None:
    """Kill a container, frozen or not."""
    bundle.stack.client.stop(bundle.id, "KILL", 0)
    wait_until(lambda: ended(tenant))


@pytest.fixture(scope="session")
def auditing() -> Iterator[SharedStack]:
    with SharedStack(lambda: ready(Stack())) as made:
        yield made


@pytest.fixture
def audited(auditing: SharedStack) -> Iterator[Stack]:
    """A daemon that audits, and nothing else in its stack."""
    with auditing.lent() as made:
        yield made


def compiled(output: Path, *words: str | Path) -> Path:
    """Compile what `words` say into `output`."""
    places = ("simulator", "libhook", "libhook/image")
    return compile_c(output, "-w", *(f"-I{ROOT / place}" for place in places), *words)


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The simulated driver as one object, for programs that have it in them."""
    parts = ("simulator", "libhook/image", "libhook/loader")
    sources = [file for part in parts for file in (ROOT / part).glob("*.c")]
    sources.append(ROOT / "libhook/share/futex.c")
    return compiled(tmp_path_factory.mktemp("driver") / "driver.o", "-r", "-nostdlib", *sources)


@pytest.fixture(scope="session")
def taker(driver: Path) -> bytes:
    """A program that has the driver in it, and opens no library at all."""
    output = driver.with_name("taker")
    return compiled(output, "-static", "-pthread", driver, HERE / "taker.c").read_bytes()
