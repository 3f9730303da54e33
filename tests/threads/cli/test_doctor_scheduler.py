# SPDX-License-Identifier: Apache-2.0
"""What `gpushare doctor` says of the scheduler while gpushared is down."""

from __future__ import annotations

import socket
from pathlib import Path

from gpushare.checks import machine
from tests.unit.cli.test_doctor_scheduler import LISTENERS


def test_a_scheduler_that_still_runs_is_reported(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(tmp_path / "scheduler.sock"))
        listener.listen()
        [check] = machine.check_orphaned_scheduler(tmp_path, LISTENERS)
    assert check.text.startswith("scheduler: running without gpushared")
