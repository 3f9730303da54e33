# SPDX-License-Identifier: Apache-2.0
"""Descriptors: stdin in every form, terminals, those that a caller passes on."""

from __future__ import annotations

import array
import os
import socket

import pytest

from tests.stack.distribution import DEBIAN13
from tests.system.low_level import CallOutcome

from .pair import COURSES, CREATED, Life, RuntimePair, script_with

#: crun 1.21 itself crashes where stdio is closed (SIGSEGV in nine runs of ten, with us or without).
STEADY = [each for each in COURSES if (each.distribution, each.runtime) != (DEBIAN13, "crun")]


@pytest.mark.parametrize("course", STEADY, indirect=True, ids=str)
def test_closed_ones(pair: RuntimePair) -> None:
    def script(life: Life) -> list[CallOutcome]:
        answers = []
        for closed in ("<&-", ">&-", "2>&-", "<&- >&-", "<&- >&- 2>&-"):
            life.bundle("sh", "-c", "echo out; echo error >&2; echo >/tmp/done")
            done = life.path / "rootfs" / "tmp" / "done"
            done.unlink(missing_ok=True)
            where = ("--bundle", str(life.path), life.id)
            answers.append(life.call("run", *where, before=script_with(f"exec {closed}")))
            life.note(done.exists())
            life.call("delete", "--force", life.id)
        return answers

    assert len(pair.same(script, made=False)) == 5


def test_stdin_is_a_file_a_pipe_or_nothing(pair: RuntimePair) -> None:
    (pair.folder / "input").write_text("of a file\n")

    def script(life: Life) -> list[str]:
        life.bundle("cat")
        where = ("--bundle", str(life.path), life.id)
        said = []
        for stdin in (f"<{pair.folder}/input", "</dev/null", ""):
            life.bundle("cat")
            before = script_with(f"exec {stdin}" if stdin else ":")
            said.append(life.call("run", *where, stdin=b"of a pipe\n", before=before).stdout)
        return said

    assert pair.same(script) == ["of a file\n", "", "of a pipe\n"]


def test_much_output(pair: RuntimePair) -> None:
    """Twice what a pipe holds."""

    def script(life: Life) -> int:
        line = "0123456789abcdef" * 8
        loop = f"i=0; while [ $i -lt 1000 ]; do echo {line}; i=$((i+1)); done"
        outcome = life.ran("sh", "-c", loop)
        return len(outcome.stdout)

    assert pair.same(script) == 1000 * 129


@pytest.mark.parametrize("verb", ["run", "exec"])
def test_preserved_ones_arrive(pair: RuntimePair, verb: str) -> None:
    (pair.folder / "three").write_text("three\n")
    (pair.folder / "four").write_text("four\n")
    opened = script_with(f'exec 3<"{pair.folder}/three" 4<"{pair.folder}/four"')
    read = ("sh", "-c", "cat <&3; cat <&4")

    def script(life: Life) -> CallOutcome:
        if verb == "exec":
            life.started("sleep", "1000")
            return life.call("exec", "--preserve-fds", "2", life.id, *read, before=opened)
        where = ("--bundle", str(life.bundle(*read)), life.id)
        return life.call("run", "--preserve-fds", "2", *where, before=opened)

    expected = CallOutcome(0, "three\nfour\n", "")
    found = pair.same(script)
    assert found == expected or pair.is_crun


def test_sockets_of_a_service_arrive(pair: RuntimePair) -> None:
    (pair.folder / "three").write_text("three\n")
    opened = script_with(f'exec 3<"{pair.folder}/three"; export LISTEN_FDS=1 LISTEN_PID=$$')

    def script(life: Life) -> CallOutcome:
        life.bundle("sh", "-c", "cat <&3; echo $LISTEN_FDS $LISTEN_PID")
        return life.call("run", "--bundle", str(life.path), life.id, before=opened)

    # crun leaves LISTEN_PID to whoever writes the spec.
    assert pair.same(script).stdout.startswith("three\n1")


def test_a_terminal_of_the_callers(pair: RuntimePair) -> None:
    def script(life: Life) -> tuple[int, bool]:
        life.bundle("sh", "-c", "test -t 0 && test -t 1 && tty", process={"terminal": True})
        # crun 1.8 on a loaded machine may show what a short program printed as a line of its log.
        status, said = life.runtime.on_a_terminal("run", "--bundle", str(life.path), life.id)
        return status, "/dev/pts/" in said

    assert pair.same(script) == (0, True)


def test_a_terminal_without_one_to_show_it_on(pair: RuntimePair) -> None:
    def script(life: Life) -> CallOutcome:
        return life.ran("true", process={"terminal": True})

    pair.same(script, made=False)


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
