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


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The scheduler, sanitized."""
    include = (f"-I{SOURCES}", f"-I{ROOT}/runtime")
    output = tmp_path_factory.mktemp("scheduler") / "gpushare-scheduler"
    return compile_c(output, *SANITIZED, *include, *SOURCES.glob("*.c"))


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
