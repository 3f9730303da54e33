# SPDX-License-Identifier: Apache-2.0
"""The scheduler as a sanitized program, running, and tenants of one card."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from gpushare.daemon.scheduler_sync import Scheduler, SchedulerCommand
from tests.compiled import ROOT, SANITIZED, compile_c

from .tenant import ScheduledTenant

SOURCES: Final = ROOT / "scheduler"
# All but the policy.
_PROGRAM: Final = (
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
)


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The scheduler, but for its policy."""
    sources = [SOURCES / f"{name}.c" for name in _PROGRAM]
    sources.append(Path(__file__).with_name("fake_card.c"))
    include = (f"-I{SOURCES}", f"-I{ROOT}/runtime")
    output = tmp_path_factory.mktemp("scheduler") / "gpushare-scheduler"
    return compile_c(output, *SANITIZED, *include, *sources)


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
