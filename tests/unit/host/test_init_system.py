# SPDX-License-Identifier: Apache-2.0
"""Advice names programs that the machine has."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gpushare.host.init_system import advice

if TYPE_CHECKING:
    from pathlib import Path

RESTART = "systemctl restart containerd"


@pytest.mark.parametrize(
    ("folders", "first", "command", "expected"),
    [
        (["run/systemd/system"], "systemd", RESTART, RESTART),
        (["run/openrc"], "init", RESTART, "rc-service containerd restart"),
        ([], "init", RESTART, "service containerd restart"),
        ([], "sh", RESTART, "restart containerd by hand (no init system runs)"),
        ([], "sh", "systemctl reload docker", "kill -HUP $(pidof dockerd)"),
        ([], "sh", "snap restart microk8s", "snap restart microk8s"),
    ],
)
def test_each_init_system_has_its_words(
    tmp_path: Path, folders: list[str], first: str, command: str, expected: str
) -> None:
    for folder in ("proc/1", "etc/init.d", *folders):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "proc/1/comm").write_text(f"{first}\n")
    script = tmp_path / "etc/init.d/containerd"
    script.touch(mode=0o755)
    assert advice(command, tmp_path) == expected
