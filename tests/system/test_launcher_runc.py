# SPDX-License-Identifier: Apache-2.0
"""Containers that ask, under runc and crun, before a daemon that is a stand-in."""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from typing import Any

import pytest

from tests.c.runtime.fake_daemon import (
    ACK,
    DONE,
    START,
    ReceivedRequest,
    ScriptedDaemon,
    refusal,
)

from .low_level import (
    CallOutcome,
    LowLevelRuntime,
    behind_launcher,
    low_level,
    program,
    removed_afterwards,
    write_bundle,
)

SLEEP = ("sleep", "1000")
MARKED: dict[str, Any] = {"annotations": {"gpushare.io/memory": "4GiB"}}


class Launched:
    """A low-level runtime behind the launcher."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.folder = folder
        self.socket = folder / "control.sock"
        argv = behind_launcher(folder / "bin", low_level(name), self.socket)
        self.runtime = LowLevelRuntime(argv, folder / "state")
        self.id = f"gpushare-{secrets.token_hex(4)}"

    def bundle(self, *command: str, **changes: Any) -> Path:
        return write_bundle(self.folder / "bundle", *command, **changes)


@pytest.fixture(params=["runc", "crun"])
def launched(request: pytest.FixtureRequest, tmp_path: Path) -> Launched:
    return Launched(request.param, tmp_path)


def _edit(asked: ReceivedRequest, **changes: Any) -> None:
    config = Path(asked.request["bundle"]) / "config.json"
    edited = config.with_name(".config.json.new")
    spec = json.loads(config.read_text())
    spec["process"]["env"].append("GIVEN=a card")
    edited.write_text(json.dumps(spec | changes))
    edited.rename(config)


@pytest.mark.parametrize("verb", ["run", "create"])
def test_the_container_starts_from_the_edited_spec(launched: Launched, verb: str) -> None:
    bundle = launched.bundle("sh", "-c", "echo $GIVEN >/tmp/given", **MARKED)
    with (
        ScriptedDaemon(launched.socket, [ACK, DONE], act=_edit) as daemon,
        removed_afterwards(launched.runtime, launched.id),
    ):
        if verb == "run":
            assert launched.runtime.call("run", "--bundle", str(bundle), launched.id).status == 0
        else:
            assert launched.runtime.create(bundle, launched.id) == 0
            assert launched.runtime.call("start", launched.id).status == 0
            launched.runtime.wait_for(launched.id, "stopped")
    assert (bundle / "rootfs" / "tmp" / "given").read_text() == "a card\n"
    assert daemon.asked[0].fds == [str(bundle), str(bundle / "rootfs")]


@pytest.mark.parametrize("daemon_is_there", [True, False])
def test_a_refused_container_leaves_nothing(launched: Launched, *, daemon_is_there: bool) -> None:
    bundle = launched.bundle("echo", "started", **MARKED)
    if daemon_is_there:
        with ScriptedDaemon(launched.socket, [ACK, refusal("no card has room")]):
            outcome = launched.runtime.call("run", "--bundle", str(bundle), launched.id)
        assert outcome == CallOutcome(1, "", "gpushare: no card has room\n")
    else:
        outcome = launched.runtime.call("run", "--bundle", str(bundle), launched.id)
        assert outcome.status == 1
        assert START in outcome.stderr
    assert launched.runtime.state(launched.id) == {}


def _hooks(socket: Path) -> dict[str, Any]:
    args = ["gpushare-hook", "createRuntime", "--socket", str(socket), "--key", "0011223344556677"]
    environment = {"env": ["PATH=/usr/bin:/bin"], "timeout": 15}
    return {"createRuntime": [{"path": str(program("gpushare-hook")), "args": args} | environment]}


def test_the_hook_reports_the_pid(launched: Launched) -> None:
    bundle = launched.bundle(*SLEEP, hooks=_hooks(launched.socket))
    with (
        ScriptedDaemon(launched.socket, [ACK, DONE]) as daemon,
        removed_afterwards(launched.runtime, launched.id),
    ):
        assert launched.runtime.create(bundle, launched.id) == 0
        pid = launched.runtime.state(launched.id)["pid"]
        assert launched.runtime.call("delete", "--force", launched.id).status == 0
    said = {"op": "bind", "pid": pid, "key": "0011223344556677", "id": launched.id}
    assert [asked.request for asked in daemon.asked] == [said]


def test_a_container_that_is_not_bound_does_not_start(launched: Launched) -> None:
    bundle = launched.bundle("echo", "started", hooks=_hooks(launched.socket))
    with ScriptedDaemon(launched.socket, [ACK, refusal("no reservation")]):
        outcome = launched.runtime.call("run", "--bundle", str(bundle), launched.id)
    assert outcome.status != 0
    assert "started" not in outcome.stdout
    assert launched.name == "crun" or "gpushare: no reservation" in outcome.stderr
    assert launched.runtime.state(launched.id) == {}


@pytest.mark.parametrize("name", ["runc", "crun"])
def test_a_usage_text_names_the_runtime_and_not_the_launcher(name: str, tmp_path: Path) -> None:
    """Installed under its own name, the launcher is what the engine calls."""
    argv = behind_launcher(tmp_path / "bin", low_level(name), tmp_path / "control.sock")
    launcher = tmp_path / "bin" / "gpushare-runtime"
    (tmp_path / "bin" / name).rename(launcher)
    through = LowLevelRuntime([*argv[:-1], str(launcher)], tmp_path / "state").call("run", "--help")
    assert through == LowLevelRuntime(low_level(name), tmp_path / "state").call("run", "--help")
    assert "gpushare" not in through.stdout
