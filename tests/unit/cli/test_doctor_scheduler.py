# SPDX-License-Identifier: Apache-2.0
"""What `gpushare doctor` says of the scheduler while gpushared is down."""

from __future__ import annotations

import socket
from pathlib import Path

from gpushare.checks import scheduler

LISTENERS = Path("/proc/net/unix")


def test_one_that_goes_on_is_told(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(tmp_path / "scheduler.sock"))
        listener.listen()
        [check] = scheduler.left_alone(tmp_path, LISTENERS)
    assert check.text.startswith("scheduler: it goes on without gpushared")


def test_without_one_nothing_is_said(tmp_path: Path) -> None:
    assert list(scheduler.left_alone(tmp_path, LISTENERS)) == []
    assert list(scheduler.left_alone(tmp_path, tmp_path / "missing")) == []
