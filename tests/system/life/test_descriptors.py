# SPDX-License-Identifier: Apache-2.0
"""Descriptors: stdin in every form, terminals, those that a caller passes on."""

from __future__ import annotations

import array
import os
import socket

from tests.system.low_level import CallOutcome

from .pair import CREATED, Life, RuntimePair, script_with


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


def test_preserved_ones_arrive(pair: RuntimePair) -> None:
    (pair.folder / "three").write_text("three\n")
    (pair.folder / "four").write_text("four\n")
    opened = script_with(f'exec 3<"{pair.folder}/three" 4<"{pair.folder}/four"')

    def script(life: Life) -> CallOutcome:
        where = ("--bundle", str(life.bundle("sh", "-c", "cat <&3; cat <&4")), life.id)
        return life.call("run", "--preserve-fds", "2", *where, before=opened)

    expected = CallOutcome(0, "three\nfour\n", "")
    found = pair.same(script)
    assert found == expected or pair.is_crun


def test_a_terminal_of_the_callers(pair: RuntimePair) -> None:
    def script(life: Life) -> tuple[int, bool]:
        life.bundle("sh", "-c", "test -t 0 && test -t 1 && tty", process={"terminal": True})
        # crun 1.8 on a loaded machine may show what a short program printed as a line of its log.
        status, said = life.runtime.on_a_terminal("run", "--bundle", str(life.path), life.id)
        return status, "/dev/pts/" in said

    assert pair.same(script) == (0, True)


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
