# SPDX-License-Identifier: Apache-2.0
"""What a caller of the low-level runtime sees of a container's life: with us the same as without.

Also where the launcher is the runtime's parent, at `create`.
"""

from __future__ import annotations

import array
import os
import socket

import pytest

from tests.system.low_level import CallOutcome

from .pair import CREATED, Life, RuntimePair, script_with

SLEEP = ("sleep", "1000")


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
