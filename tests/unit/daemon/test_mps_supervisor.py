# SPDX-License-Identifier: Apache-2.0
"""Which cards have a control daemon, and where its program is found."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare.daemon.cards.mps_state import MpsRefused
from gpushare.daemon.mps import supervisor as module
from gpushare.daemon.mps.supervisor import MpsSupervisor
from gpushare.daemon.operator.reload import set_node_setting
from gpushare.quota.node_settings import RELEASED

from . import fakes
from .fakes import FakeDaemon, FakeDriver, card
from .test_mps_placement import configured

MODE = 'cards: {"0": {backend: mps}}'


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FakeDaemon]:
    """A node of one card in MPS mode, whose control daemons are never started."""
    config = configured(MODE, tmp_path)
    with fakes.node(tmp_path, FakeDriver(card(0)), config) as made:
        yield made


def test_a_machine_without_the_program_says_so(
    node: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "find_program", lambda _: None)
    supervisor = MpsSupervisor(node)
    node.decide.run(supervisor.check)
    assert "has no nvidia-cuda-mps-control" in node.node.mps.fault_of(card(0).uuid)


def test_no_server_holds_a_driver_that_is_about_to_be_unloaded(
    node: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "find_program", lambda _: pytest.fail("it looks for the program"))
    set_node_setting(RELEASED, "yes", "node label x", node.node, node.ledger)
    supervisor = MpsSupervisor(node)
    node.decide.run(supervisor.check)
    assert node.node.mps.fault_of(card(0).uuid) == ""


def test_a_first_card_is_looked_at_within_a_second(
    node: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wait is chosen before it is there."""
    waits: list[float] = []
    monkeypatch.setattr(node.loop, "every", lambda seconds, _: waits.append(seconds()))
    MpsSupervisor(node)
    [wait] = waits
    assert wait < 1


def test_a_container_that_is_no_tenant_of_such_a_card_is_not_admitted(node: FakeDaemon) -> None:
    with pytest.raises(MpsRefused, match="not in MPS mode any more"):
        node.servers.admit("0" * 16, 0)
    done: list[str] = []
    node.servers.terminate("0" * 16, lambda: done.append("killed"))
    assert done == ["killed"]  # a kill never waits for a server that is not there
