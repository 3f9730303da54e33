# SPDX-License-Identifier: Apache-2.0
"""What a caller of the low-level runtime sees of a container's life: with us the same as without.

Also where the launcher is the runtime's parent, at `create`.
"""

from __future__ import annotations

import array
import ctypes
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.low_level import CallOutcome
from tests.system.waiting import wait_until

from .pair import CREATED, Life, RuntimePair, process_of, script_with

SLEEP = ("sleep", "1000")
#: A hook of the bundle's own that says it is there, and waits to be let go.
WAITS = """#!/bin/sh
cat >/dev/null
echo "$PPID" >"$OUT.part"
mv "$OUT.part" "$OUT"
exec >/dev/null 2>&1 <&-
while [ -e "$OUT" ]; do sleep 0.02; done
"""
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


@pytest.mark.gate
@CREATED
def test_a_whole_life(pair: RuntimePair) -> None:
    def script(life: Life) -> list[CallOutcome]:
        life.bundle(*SLEEP)
        answers = [life.create()]
        life.traces()
        calls = (
            ("state", life.id),
            ("list", "--quiet"),
            ("start", life.id),
            ("start", life.id),
            ("state", life.id),
            ("ps", "--format", "json", life.id),
            ("delete", life.id),
            ("kill", life.id, "KILL"),
        )
        answers += [life.call(*words) for words in calls]
        life.ended()
        life.traces()
        answers += [life.call(verb, life.id) for verb in ("state", "delete", "state")]
        life.traces()
        return answers

    statuses = [bool(answer.status) for answer in pair.same(script)]
    assert statuses == [False] * 4 + [True] + [False] * 2 + [True] + [False] * 3 + [True]


def test_signals_are_forwarded_in_the_foreground(pair: RuntimePair) -> None:
    trap = "trap 'exit 9' TERM; trap 'echo hup' HUP; echo ready; while :; do sleep 0.1; done"

    def script(life: Life) -> tuple[int, bytes]:
        life.bundle("sh", "-c", trap)
        words = life.runtime.argv("run", "--bundle", str(life.path), life.id)
        with subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            # crun takes them only once its container runs; before that they would end it.
            wait_until(lambda: _takes(process.pid, signal.SIGHUP))
            process.send_signal(signal.SIGHUP)
            said = process.stdout.readline()
            process.send_signal(signal.SIGTERM)
        life.traces()
        return process.returncode, said

    assert pair.same(script) == (9, b"hup\n")


def _takes(pid: int, number: signal.Signals) -> bool:
    """Whether the process has a signal of that number handled, or blocked to read it."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    masks = dict(line.split(":\t") for line in lines if line.startswith(("SigBlk", "SigCgt")))
    return any(int(mask, 16) >> (number - 1) & 1 for mask in masks.values())


@pytest.mark.gate
def test_a_further_process(pair: RuntimePair) -> None:
    def script(life: Life) -> list[CallOutcome]:
        life.started("sleep", "1000")
        return [
            life.call("exec", life.id, *words, stdin=stdin)
            for words, stdin in (
                (("sh", "-c", "echo in; echo oops >&2; exit 5"), b""),
                (("cat",), b"hello\n"),
                (("sh", "-c", "kill -9 $$"), b""),
                (("/nonexistent",), b""),
                (("/tmp",), b""),
            )
        ]

    answers = pair.same(script)
    assert answers[0] == CallOutcome(5, "in\n", "oops\n")
    assert answers[1] == CallOutcome(0, "hello\n", "")
    assert [answer.status for answer in answers[2:]] != [0, 0, 0]


@CREATED
def test_a_console_socket_gets_the_terminal(pair: RuntimePair) -> None:
    size = {"height": 33, "width": 77}

    def script(life: Life) -> str:
        process = {"terminal": True, "consoleSize": size}
        life.bundle("sh", "-c", "stty size; tty; read line; echo got $line", process=process)
        console = life.folder / "console.sock"
        console.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(console))
            listener.listen()
            assert life.create("--console-socket", str(console)).status == 0, life.said()
            connection, _ = listener.accept()
            with connection:
                terminal = _received(connection)
        life.call("start", life.id)
        os.write(terminal, b"hello\n")
        said = _until_gone(terminal)
        os.close(terminal)
        life.ended()
        return said

    said = pair.same(script)
    assert said.splitlines()[0] == "33 77"
    assert said.splitlines()[-1] == "got hello"


def _received(connection: socket.socket) -> int:
    """Return the descriptor that was sent."""
    size = array.array("i").itemsize
    _, control, _, _ = connection.recvmsg(4096, socket.CMSG_SPACE(size))
    fds = array.array("i")
    for _, _, data in control:
        fds.frombytes(data[:size])
    return fds[0]


def _until_gone(terminal: int) -> str:
    """Return the output on `terminal`, without the echo of what was typed."""
    said = b""
    while True:
        try:
            part = os.read(terminal, 4096)
        except OSError:  # EIO: no process has the other side open
            break
        if not part:
            break
        said += part
    lines = said.decode().splitlines()
    return "\n".join(line for line in lines if line and line != "hello")


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
        self.runtime = int(self.note.read_text())

    def end(self) -> None:
        """Leave nothing that runs."""
        self.note.unlink(missing_ok=True)
        self.process.kill()
        self.process.wait()


def _is_alive(pid: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


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
