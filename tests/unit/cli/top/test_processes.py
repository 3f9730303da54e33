# SPDX-License-Identifier: Apache-2.0
"""The user and the command line of a process, from /proc."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

from gpushare.cli.top.processes import with_commands
from gpushare.cli.top.snapshot import ProcessRow, TopSnapshot

from .made import card, container, process

UNUSED_UID = 3_999_999_999


def described(one: ProcessRow, proc: Path = Path("/proc")) -> ProcessRow:
    snapshot = TopSnapshot(0.0, (card(),), (container("train", processes=(one,)),))
    return with_commands(snapshot, proc).containers[0].processes[0]


def written(proc: Path, name: str, uid: int, command: bytes) -> None:
    (proc / "7").mkdir()
    (proc / "7" / "status").write_text(f"Name:\t{name}\nUmask:\t0022\nUid:\t{uid}\t0\t0\t0\n")
    (proc / "7" / "cmdline").write_bytes(command)


def test_this_process_has_its_user_and_arguments() -> None:
    name = Path("/proc/self/comm").read_text().rstrip("\n")
    found = described(process(os.getpid(), name))
    assert found.user == pwd.getpwuid(os.getuid()).pw_name
    assert (
        found.command.split()[0] == Path("/proc/self/cmdline").read_bytes().split(b"\0")[0].decode()
    )


def test_a_user_of_the_container_alone_is_a_number(tmp_path: Path) -> None:
    written(tmp_path, "python", UNUSED_UID, b"python\0train.py\0")
    found = described(process(7), tmp_path)
    assert (found.user, found.command) == (str(UNUSED_UID), "python train.py")


def test_another_process_with_the_same_pid_is_not_described(tmp_path: Path) -> None:
    written(tmp_path, "bash", 0, b"bash\0")
    assert described(process(7), tmp_path) == process(7)
