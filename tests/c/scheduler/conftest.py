# SPDX-License-Identifier: Apache-2.0
"""The scheduler as a sanitized program, running, and tenants of one card."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from gpushare.daemon.scheduler_sync import Scheduler, SchedulerCommand

from .tenant import ScheduledTenant

ROOT: Final = Path(__file__).resolve().parents[3]
SOURCES: Final = ROOT / "scheduler"
# All but the policy.
_PROGRAM: Final = (
    *(
        "main",
        "wakeup",
        "control",
        "cards",
        "loop",
        "grant_page",
        "priority",
        "privileges",
        "tenant",
        "status_page",
    ),
)
_FLAGS: Final = (
    *("-std=gnu11", "-g", "-O1", "-Wall", "-Wextra", "-Wconversion", "-Wmissing-prototypes"),
    *("-Werror", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
    *("-I", str(SOURCES), "-I", str(ROOT / "runtime"), "-I", str(ROOT / "libhook/include")),
)


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The scheduler, but for its policy."""
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.fail("gcc is not installed: run ./dev setup")
    output = tmp_path_factory.mktemp("scheduler") / "gpushare-scheduler"
    sources = [SOURCES / f"{name}.c" for name in _PROGRAM]
    sources.append(Path(__file__).with_name("fake_card.c"))
    subprocess.run([compiler, *_FLAGS, *map(str, sources), "-o", str(output)], check=True)
    return output


@pytest.fixture
def command(program: Path, tmp_path: Path) -> SchedulerCommand:
    return SchedulerCommand(program, tmp_path / "scheduler.sock")


@pytest.fixture
def scheduler(command: SchedulerCommand) -> Iterator[Scheduler]:
    started = Scheduler.start(command)
    yield started
    started.end()
    started.close()


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., ScheduledTenant]]:
    """Make tenants, with pages each."""
    with ExitStack() as stack:

        def made(*uuids: str) -> ScheduledTenant:
            tenant = ScheduledTenant.make(tmp_path, uuids or ("GPU-a",))
            stack.callback(tenant.pages.close)
            return tenant

        yield made
