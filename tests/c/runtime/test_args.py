# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Final

import pytest

from .driver import Driver

#: A command line behind argv[0], and what is read of it. BUNDLE has the bundle /b and the ID `ID`.
BUNDLE: Final[dict[str, object]] = {"creates": True, "id": "ID", "bundle": "/b", "unknown": None}
NOT_CREATED: Final[dict[str, object]] = {"creates": False}
NO_CHECKPOINT: Final[dict[str, object]] = {"checkpoints": False}
CHECKPOINT: Final[dict[str, object]] = {"checkpoints": True, "creates": False, "id": "ID"}
LINES: Final[dict[str, dict[str, object]]] = {
    # As containerd calls it.
    "--root /run/x --log /l --log-format json create --bundle /b --pid-file /p ID": {
        **BUNDLE,
        "verb": "create",
        "checkpoints": False,
        "log": "/l",
        "format": "json",
        "config": "config.json",
    },
    **{f"create {flags} ID": BUNDLE for flags in ("--bundle /b", "-bundle=/b", "-b /a -b /b")},
    # As argp of crun: a value glued to its letter, letters together, long names cut short.
    **{f"run ID {flags}": BUNDLE for flags in ("-b/b", "--bund /b", "--b=/b", "-db/b", "-db /b")},
    "--log-f json --deb create -b/b ID": BUNDLE,
    **{f"create {flags} ID": {"unknown": flags.split()[0]} for flags in ("--p /x", "-z", "--=x")},
    "create -zb/b ID": {"unknown": "-zb/b", "bundle": "."},
    "--new-flag value create --bundle /b ID": {**BUNDLE, "unknown": "--new-flag"},
    "create ID --bundle": {"bundle": ".", "id": "ID"},
    "create -b /b -- -b": {"bundle": "/b", "id": "-b"},
    # Another spec of the bundle is looked at, and gpushare does not know the flag.
    "create --config /c -b /b ID": {**BUNDLE, "config": "/c", "unknown": "--config"},
    "create -f/c -b /b ID": {**BUNDLE, "config": "/c", "unknown": "-f/c"},
    **dict.fromkeys(
        (
            "exec ID create", "frobnicate create ID", "--new-flag value state ID", "-h create ID",
            "create --help ID", "--root create state ID", "-root=/x state create",
            "-- state create", "",
        ),
        NOT_CREATED,
    ),
    **dict.fromkeys(
        (
            "--root /run/x checkpoint --image-path /i --leave-running ID",
            "checkpoint ID --work-path=/w --tcp-established",
            "checkpoint --parent-path create -- ID",
        ),
        CHECKPOINT,
    ),
    **dict.fromkeys(("checkpoint --help ID", "exec ID checkpoint", "checkpoints I"), NO_CHECKPOINT),
}  # fmt: skip


@pytest.mark.parametrize("line", LINES)
def test_a_command_line_is_read(driver: Driver, line: str) -> None:
    read = driver.args("gpushare-runtime", *line.split())
    assert read | LINES[line] == read
