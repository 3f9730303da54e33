# SPDX-License-Identifier: Apache-2.0
"""Which cards have a control daemon, and where its program is found."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare.daemon.mps import supervisor as module
from gpushare.daemon.mps.supervisor import MpsSupervisor
from tests.unit.daemon import fakes
from tests.unit.daemon.fakes import FakeDaemon, FakeDriver, card
from tests.unit.daemon.test_mps_placement import configured
from tests.unit.daemon.test_mps_supervisor import MODE


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FakeDaemon]:
    """A node of one card in MPS mode, whose control daemons are never started."""
    config = configured(MODE, tmp_path)
    with fakes.node(tmp_path, FakeDriver(card(0)), config) as made:
        yield made


def test_a_program_that_does_not_start_is_a_fault_of_the_card(
    node: FakeDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "nvidia-cuda-mps-control"
    program.write_text("#!/bin/sh\necho no device >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setattr(module, "find_program", lambda _: program)
    monkeypatch.setattr("gpushare.daemon.identity.processes.sees_host", lambda: True)
    supervisor = MpsSupervisor(node)
    node.decide.run(supervisor.check)
    supervisor.close()  # once the first look is done
    assert "does not run: it does not answer: no device" in node.mps.fault_of(card(0).uuid)


def test_without_the_hosts_processes_no_server_is_started(
    node: FakeDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "find_program", lambda _: tmp_path / "none")
    monkeypatch.setattr("gpushare.daemon.identity.processes.sees_host", lambda: False)
    supervisor = MpsSupervisor(node)
    node.decide.run(supervisor.check)
    supervisor.close()
    assert "not in the host's PID namespace" in node.mps.fault_of(card(0).uuid)


def test_partitions_need_a_driver_that_has_them(
    node: FakeDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.config = configured('cards: {"0": {backend: mps, mps_partitions: true}}', tmp_path)
    monkeypatch.setattr(module, "find_program", lambda _: tmp_path / "none")
    monkeypatch.setattr("gpushare.daemon.identity.processes.sees_host", lambda: True)
    supervisor = MpsSupervisor(node)
    node.decide.run(supervisor.check)
    supervisor.close()
    assert "mps_partitions needs a driver of CUDA 13.1" in node.mps.fault_of(card(0).uuid)
