# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.stack import Stack
from tools.bench.shares.machine import Programs

from .served import Truth
from .tenants import SLOW, SharedCardStack


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Programs:
    return Programs.build(tmp_path_factory.mktemp("programs"))


@pytest.fixture(scope="session")
def shared_place(programs: Programs) -> Iterator[SharedCardStack]:
    """A card in slow motion and a daemon, for all tests of this folder."""
    with Stack(time_scale=SLOW) as stack:
        stack.start_daemon()
        device = Path(stack.env["GPUSHARE_SIM_DEVICE"])
        truth = Truth(programs.watch, device, stack.root / "readings")
        place = SharedCardStack(stack, programs.work, truth)
        try:
            yield place
        finally:
            place.clear()
            truth.close()


@pytest.fixture
def place(shared_place: SharedCardStack) -> Iterator[SharedCardStack]:
    """The same; the containers that a test starts are gone after it."""
    try:
        yield shared_place
    finally:
        shared_place.clear()
