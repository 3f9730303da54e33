# SPDX-License-Identifier: Apache-2.0
"""`create`: what its caller sees of it, also where the launcher is the runtime's parent."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.waiting import wait_until

from .pair import (
    CREATED,
    CREATED_COURSES,
    Life,
    RuntimePair,
    courses,
    process_of,
    script_with,
)

SLEEP = ("sleep", "1000")
#: A hook of the bundle's own that says it is there, and waits to be let go.
WAITS = """#!/bin/sh
cat >/dev/null
set -- $(sed 's/.*) //' /proc/$PPID/stat)
echo "$PPID $2 $3 $4" >"$OUT.part"
mv "$OUT.part" "$OUT"
exec >/dev/null 2>&1 <&-
while [ -e "$OUT" ]; do sleep 0.02; done
"""
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


class Waiting:
    """A runtime in the middle of `create`, in one of its hooks."""

    def __init__(self, life: Life, before: tuple[str, ...] = ()) -> None:
        self.life = life
        self.note = life.folder / "in-hook"
        self.note.unlink(missing_ok=True)
        life.bundle(*SLEEP)
        hook = life.path / "waits.sh"
        hook.write_text(WAITS.replace("$OUT", str(self.note)))
        hook.chmod(0o755)
        life.bundle(*SLEEP, hooks={"createRuntime": [{"path": str(hook)}]})
        words = ("create", "--bundle", str(life.path), "--pid-file", str(life.pid_file), life.id)
        self.process = subprocess.Popen(
            life.runtime.argv(*words, before=before),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        wait_until(self.note.exists)
        #: Of the runtime: its pid, parent, process group and session.
        seen = map(int, self.note.read_text().split())
        self.runtime, self.parent, self.group, self.session = seen

    def go(self) -> int:
        """Let it go on, and return its status."""
        self.note.unlink()
        return self.process.wait()

    def end(self) -> None:
        """Leave nothing that runs."""
        self.note.unlink(missing_ok=True)
        self.process.kill()
        self.process.wait()


@CREATED
def test_the_runtime_is_in_its_callers_group_and_session(pair: RuntimePair) -> None:
    def script(life: Life) -> int:
        waiting = Waiting(life)
        try:
            assert (waiting.group, waiting.session) == (os.getpgrp(), os.getsid(0))
            is_child = waiting.runtime != waiting.process.pid
            launched = life.runtime is pair.launched and life.kind.bind == "launcher"
            assert not is_child or launched
            assert not is_child or waiting.parent == waiting.process.pid
            return waiting.go()
        finally:
            waiting.end()

    assert pair.same(script) == 0


#: crun takes signals between two hooks, of which ours is one: bare, there is only the bundle's.
UNHOOKED = [
    each
    for each in CREATED_COURSES
    if each.runtime != "crun" or not each.kind.asks or each.kind.bind != "hook"
]


@courses(UNHOOKED)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGKILL])
def test_a_signal_to_it_has_the_same_effect(pair: RuntimePair, number: signal.Signals) -> None:
    """Of a status, or a death by that signal, the caller sees the one that the runtime died."""

    def script(life: Life) -> int:
        waiting = Waiting(life)
        try:
            waiting.process.send_signal(number)
            if number != signal.SIGKILL:
                wait_until(lambda: _has_arrived(waiting, number))
            status = waiting.go()
            wait_until(lambda: not _is_alive(waiting.runtime))
            return status
        finally:
            waiting.end()
            life.call("delete", "--force", life.id)

    pair.same(script)


def _has_arrived(waiting: Waiting, number: signal.Signals) -> bool:
    """Whether the runtime has the signal, or has it blocked, as crun while its hooks run."""
    is_passed_on = waiting.runtime == waiting.process.pid or not _is_set(
        waiting.process.pid, number, "SigPnd", "ShdPnd"
    )
    pending = _is_set(waiting.runtime, number, "SigPnd", "ShdPnd")
    return is_passed_on and (not pending or _is_set(waiting.runtime, number, "SigBlk"))


def _is_set(pid: int, number: signal.Signals, *masks: str) -> bool:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return False
    found = [line.split()[1] for line in lines if line.startswith(masks)]
    return any(int(mask, 16) >> (number - 1) & 1 for mask in found)


def _is_alive(pid: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


@CREATED
def test_a_runtime_that_is_killed_is_reported_as_killed(pair: RuntimePair) -> None:
    def script(life: Life) -> int:
        waiting = Waiting(life)
        try:
            os.kill(waiting.runtime, signal.SIGKILL)
            return waiting.process.wait()
        finally:
            waiting.end()
            life.call("delete", "--force", life.id)

    assert pair.same(script) == -signal.SIGKILL


@pytest.mark.gate
@CREATED
def test_its_parents_death_is_its_own(pair: RuntimePair) -> None:
    """As containerd's shim and podman's conmon have it: PR_SET_PDEATHSIG of what they start."""

    def script(life: Life) -> bool:
        waiting = Waiting(life, before=_dying_with("sh"))
        try:
            runtime = waiting.runtime
            waiting.process.kill()  # the parent of what is the runtime to it
            waiting.process.wait()
            wait_until(lambda: not _is_alive(runtime))
            return True
        finally:
            waiting.end()
            life.call("delete", "--force", life.id)

    assert pair.same(script)


def _dying_with(shell: str) -> tuple[str, ...]:
    """Return a program that starts the rest of its arguments as a child that dies with it."""
    return (shell, "-c", 'setpriv --pdeathsig KILL "$@"; exit $?', shell)


@pytest.fixture
def subreaper() -> Iterator[None]:
    """This process adopts, as a shim does, what its children leave behind."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    yield
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


@CREATED
@pytest.mark.usefixtures("subreaper")
def test_the_init_is_its_subreapers_child(pair: RuntimePair) -> None:
    """And not reaped: the shim has its exit status."""

    def script(life: Life) -> int:
        life.bundle("sh", "-c", "exit 23")
        assert life.create().status == 0, life.said()
        init = process_of(life.pid_file)
        life.call("start", life.id)
        _, status = os.waitpid(init, 0)
        return os.waitstatus_to_exitcode(status)

    assert pair.same(script) == 23


@CREATED
def test_a_caller_that_ignores_sigchld(pair: RuntimePair) -> None:
    """The kernel reaps what its children leave, and waits for nothing of them."""

    def script(life: Life) -> int:
        life.bundle(*SLEEP)
        assert life.create(before=script_with("trap '' CHLD")).status == 0, life.said()
        return life.call("start", life.id).status

    assert pair.same(script) == 0


@CREATED
def test_sockets_of_a_service_arrive_at_create(pair: RuntimePair) -> None:
    """LISTEN_PID names the runtime's process, whichever that is."""
    (pair.folder / "three").write_text("three\n")
    opened = script_with(f'exec 3<"{pair.folder}/three"; export LISTEN_FDS=1 LISTEN_PID=$$')

    def script(life: Life) -> str:
        life.bundle("sh", "-c", "cat <&3; echo $LISTEN_FDS $LISTEN_PID")
        assert life.create(before=opened).status == 0, life.said()
        life.call("start", life.id)
        life.ended()
        return life.said()

    said = pair.same(script)
    assert pair.is_crun or said == "three\n1 1\n"


@CREATED
def test_nothing_is_open_in_the_container_that_the_caller_did_not_open(pair: RuntimePair) -> None:
    def script(life: Life) -> str:
        life.bundle("sh", "-c", 'for fd in /proc/self/fd/*; do echo "${fd##*/}"; done')
        assert life.create().status == 0, life.said()
        life.call("start", life.id)
        life.ended()
        return life.said()

    assert pair.same(script).split()[:3] == ["0", "1", "2"]


@CREATED
@pytest.mark.parametrize("command", [("/nonexistent",), ("",)], ids=repr)
def test_a_create_that_fails_leaves_nothing(pair: RuntimePair, command: tuple[str, ...]) -> None:
    def script(life: Life) -> int:
        life.bundle(*command, mounts=[{"destination": "/x", "type": "bind", "source": "/no/where"}])
        status = life.create().status
        life.traces()
        return status

    assert pair.same(script) != 0
