# SPDX-License-Identifier: Apache-2.0
"""Further processes in a container that runs: exec is never ours, whatever its words are."""

from __future__ import annotations

import json

from tests.system.low_level import CallOutcome

from .pair import Life, RuntimePair, wait_for_text

SLEEP = ("sleep", "1000")
SHOW = 'echo "$A"; echo "$PWD"; test -t 0 && echo terminal; exit 3'


def test_exit_codes_and_output(pair: RuntimePair) -> None:
    def script(life: Life) -> list[CallOutcome]:
        life.started(*SLEEP)
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


def test_the_arguments_of_exec_are_no_verbs(pair: RuntimePair) -> None:
    def script(life: Life) -> list[str]:
        life.started(*SLEEP)
        commands = ("create", "echo create", "echo run --bundle")
        return [life.call("exec", life.id, *words.split()).stdout for words in commands]

    assert pair.same(script)[1:] == ["create\n", "run --bundle\n"]


def test_its_flags(pair: RuntimePair) -> None:
    def script(life: Life) -> CallOutcome:
        life.started(*SLEEP)
        flags = ("--env", "A=1", "--cwd", "/tmp", "--user", "12:34")
        life.call("exec", *flags, life.id, "/bin/sh", "-c", "exit 4")
        life.call("exec", "--frobnicate", life.id, "true")
        life.call("exec", life.id)
        return life.call("exec", *flags, life.id, "/bin/sh", "-c", SHOW)

    assert pair.same(script) == CallOutcome(3, "1\n/tmp\n", "")


def test_a_process_file_detached_with_a_pid_file(pair: RuntimePair) -> None:
    def script(life: Life) -> str:
        life.started(*SLEEP)
        process = {
            "args": ["sh", "-c", "echo $A >/tmp/said"],
            "env": ["PATH=/bin", "A=from the file"],
            "cwd": "/",
            "user": {"uid": 0, "gid": 0},
        }
        file = life.folder / "process.json"
        file.write_text(json.dumps(process))
        life.pid_file.unlink()
        flags = ("--process", str(file), "--detach", "--pid-file", str(life.pid_file))
        life.loose("exec", *flags, life.id)
        assert int(life.pid_file.read_text()) != life.runtime.state(life.id)["pid"]
        said = life.path / "rootfs" / "tmp" / "said"
        wait_for_text(said, "\n")
        text = said.read_text()
        said.unlink()
        return text

    assert pair.same(script) == "from the file\n"


def test_on_a_terminal(pair: RuntimePair) -> None:
    def script(life: Life) -> tuple[int, bool]:
        life.started(*SLEEP)
        status, said = life.runtime.on_a_terminal("exec", "--tty", life.id, "sh", "-c", SHOW)
        return status, "terminal" in said

    assert pair.same(script) == (3, True)
