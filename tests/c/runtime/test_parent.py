# SPDX-License-Identifier: Apache-2.0
"""`create` of a container that the launcher binds: the low-level runtime is its child."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.system.waiting import wait_until

from .fake_daemon import ACK, DONE, ScriptedDaemon, refusal
from .spec import bundle
from .test_launcher import REFUSED, STRONG, LauncherBundle

BINDS = b'{"ok": true, "mode": "shared", "key": "0011223344556677", "bind": "launcher"}'
#: Leaves an init behind that waits at its pipe, as runc does, and then does what $END says.
RUNTIME = """#!/bin/sh
echo "$*" >>"{folder}/calls"
case " $* " in *" delete "*) exit 0 ;; esac
echo $$ >"{folder}/runtime"
mkdir -p "{folder}/state/ID"
mkfifo "{folder}/state/{pipe}"
sh -c 'exec 3<>"{folder}/state/{pipe}"; exec sleep 1000' >/dev/null 2>&1 </dev/null &
echo $! >"{folder}/init"
until [ /proc/$!/fd/3 -ef "{folder}/state/{pipe}" ]; do sleep 0.01; done
{end}
"""


@pytest.fixture
def place(tmp_path: Path, launcher: Path, witness: Path) -> Iterator[LauncherBundle]:
    made = LauncherBundle(tmp_path, launcher, witness)
    bundle(made.bundle, STRONG)
    yield made
    with suppress(OSError):
        os.kill(number(made, "init"), signal.SIGKILL)


def runtime(place: LauncherBundle, end: str, pipe: str = "ID/exec.fifo") -> None:
    folder = place.launcher.parent
    place.witness.write_text(RUNTIME.format(folder=folder, end=end, pipe=pipe))


def number(place: LauncherBundle, name: str) -> int:
    return int((place.launcher.parent / name).read_text())


def calls(place: LauncherBundle) -> list[str]:
    return (place.launcher.parent / "calls").read_text().splitlines()


def is_alive(pid: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


def test_the_init_is_bound_by_a_pidfd_before_the_launcher_returns(place: LauncherBundle) -> None:
    runtime(place, "exit 0")
    inits: list[int] = []

    def init_of(_: object) -> None:
        inits.append(number(place, "init") if len(daemon.asked) > 1 else 0)

    with ScriptedDaemon(place.socket, [ACK, DONE], first=[ACK, BINDS], act=init_of) as daemon:
        ran = place.create()
    assert (ran.status, ran.said) == (0, "")
    create, bind = daemon.asked
    assert create.request["bind"] == "launcher"
    assert bind.request == {"op": "bind", "key": "0011223344556677", "id": "ID"}
    assert len(bind.fds) == 1
    assert "pidfd" in bind.fds[0]
    assert is_alive(inits[1])


def test_what_the_launcher_cannot_cover_is_told_with_the_bind(place: LauncherBundle) -> None:
    runtime(place, "exit 0")
    answer = json.dumps({**json.loads(BINDS), "covers": "driver/none", "copy": "/proc/version"})
    with ScriptedDaemon(place.socket, [ACK, DONE], first=[ACK, answer.encode()]) as daemon:
        assert place.create().status == 0
    told = daemon.asked[1].request["uncovered"]
    assert told == os.strerror(errno.ENOENT)
    assert is_alive(number(place, "init"))


@pytest.mark.parametrize("answer", [refusal("there is no reservation"), b"{"])
def test_a_container_that_is_not_bound_is_taken_away(place: LauncherBundle, answer: bytes) -> None:
    """With the flags of the caller that say where its state is."""
    runtime(place, "exit 0")
    with ScriptedDaemon(place.socket, [ACK, answer], first=[ACK, BINDS]):
        ran = place.create()
    assert ran.status == REFUSED
    assert "was not bound to its GPU" in ran.said
    assert not is_alive(number(place, "init"))
    logged = f"--log {place.log} --log-format json"
    assert calls(place)[1:] == [f"{logged} delete --force ID"]
    last = json.loads(place.log.read_text().splitlines()[-1])
    assert "was not bound to its GPU" in last["msg"]


def test_a_runtime_that_leaves_no_init_is_not_trusted(place: LauncherBundle) -> None:
    runtime(place, "exit 0", pipe="ID/other")
    with ScriptedDaemon(place.socket, [ACK, DONE], first=[ACK, BINDS]) as daemon:
        ran = place.create()
    assert ran.status == REFUSED
    assert '"bind: hook"' in ran.said
    assert len(daemon.asked) == 1


@pytest.mark.parametrize(
    ("end", "status"), [("exit 7", 7), ("kill -TERM $$", -15), ("kill -KILL $$", -9)]
)
def test_the_end_of_the_runtime_is_the_launchers(
    place: LauncherBundle, end: str, status: int
) -> None:
    """Its container is bound by nothing any more, so what it leaves is killed."""
    runtime(place, end)
    with ScriptedDaemon(place.socket, [ACK, DONE], first=[ACK, BINDS]) as daemon:
        ran = place.create()
    assert (ran.status, ran.said) == (status, "")
    assert len(daemon.asked) == 1
    assert not is_alive(number(place, "init"))
    assert len(calls(place)) == 1


@contextmanager
def ended(process: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """End the process with the block, also where an assertion in it fails."""
    with process:
        try:
            yield process
        finally:
            process.kill()


def test_the_runtime_is_killed_with_the_launcher(place: LauncherBundle) -> None:
    runtime(place, "exec sleep 1000")
    with ScriptedDaemon(place.socket, [ACK, DONE], first=[ACK, BINDS]):
        words = [str(place.launcher), "create", "--bundle", str(place.bundle), "ID"]
        with ended(subprocess.Popen(words)) as process:
            wait_until((place.launcher.parent / "init").exists)
            process.kill()
        wait_until(lambda: not is_alive(number(place, "runtime")))
