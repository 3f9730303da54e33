# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from tests.bench.shares.machine import Programs
from tests.stack import Stack

from .tenants import SLOW, Place
from .truth import Truth


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Programs:
    return Programs.build(tmp_path_factory.mktemp("programs"))


@pytest.fixture(scope="session")
def shared_place(programs: Programs) -> Iterator[Place]:
    """Two cards in slow motion and a daemon, for all tests of this folder."""
    with made(programs, cards=2, slow_motion=SLOW) as place:
        yield place


@pytest.fixture
def place(shared_place: Place) -> Iterator[Place]:
    """The same; the containers that a test starts are gone after it."""
    before = [*shared_place.running]
    try:
        yield shared_place
    finally:
        shared_place.clear(but=before)


@pytest.fixture(scope="module")
def quick_place(programs: Programs) -> Iterator[Place]:
    """A card in less slow motion, for what takes longest: a wait at the gate until its bound."""
    with made(programs, cards=1, slow_motion=SLOW / 2) as place:
        yield place


@contextmanager
def made(
    programs: Programs, *, cards: int, slow_motion: float, audit: Mapping[str, str] | None = None
) -> Iterator[Place]:
    with Stack(cards=cards, slow_motion=slow_motion) as stack:
        settings = yaml.safe_load(stack.config.read_text())
        stack.config.write_text(yaml.safe_dump({**settings, "audit": dict(audit or {})}))
        stack.start_daemon()
        device = Path(stack.env["GPUSHARE_SIM_DEVICE"])
        truth = Truth(programs.watch, device, stack.root / "readings", cards)
        place = Place(stack, programs.work, truth)
        try:
            yield place
        finally:
            place.clear()
            truth.close()
