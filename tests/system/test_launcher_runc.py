# SPDX-License-Identifier: Apache-2.0
"""What runc and crun do with a hook that refuses, and with the launcher in front of them."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

import pytest

from tests.c.runtime.fake_daemon import (
    ACK,
    ScriptedDaemon,
    refusal,
)

from .low_level import (
    LowLevelRuntime,
    behind_launcher,
    low_level,
    program,
    write_bundle,
)


def _hooks(socket: Path) -> dict[str, Any]:
    args = ["gpushare-hook", "createRuntime", "--socket", str(socket), "--key", "0011223344556677"]
    environment = {"env": ["PATH=/usr/bin:/bin"], "timeout": 15}
    return {"createRuntime": [{"path": str(program("gpushare-hook")), "args": args} | environment]}


@pytest.mark.gate
@pytest.mark.parametrize("name", ["runc", "crun"])
def test_a_container_that_is_not_bound_does_not_start(name: str, tmp_path: Path) -> None:
    socket, container = tmp_path / "control.sock", f"gpushare-{secrets.token_hex(4)}"
    argv = behind_launcher(tmp_path / "bin", low_level(name), socket)
    runtime = LowLevelRuntime(argv, tmp_path / "state")
    bundle = write_bundle(tmp_path / "bundle", "echo", "started", hooks=_hooks(socket))
    with ScriptedDaemon(socket, [ACK, refusal("no reservation")]):
        outcome = runtime.call("run", "--bundle", str(bundle), container)
    assert outcome.status != 0
    assert "started" not in outcome.stdout
    assert name == "crun" or "gpushare: no reservation" in outcome.stderr
    assert runtime.state(container) == {}
