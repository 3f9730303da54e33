# SPDX-License-Identifier: Apache-2.0
"""What the container's process is born with, and how its exit is reported."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.system.low_level import CallOutcome
from tests.system.waiting import wait_until

from .pair import CREATED, Life, RuntimePair, script_with

#: What a hook sees of the runtime that called it, which is what the runtime was given.
GIVEN = """#!/bin/sh
cat >/dev/null
exec >>"$OUT"
tr '\\0' '\\n' </proc/$PPID/cmdline
echo "in $(readlink /proc/$PPID/cwd)"
env | grep -v ^_= | sort
umask
cat /proc/$PPID/limits
grep -E '^(SigBlk|SigIgn|Uid|Gid|Groups|NoNewPrivs|CapEff|CapBnd|Seccomp):' /proc/$PPID/status
cat /proc/$PPID/oom_score_adj /proc/$PPID/sessionid
"""


@CREATED
def test_output_input_and_the_exit_code(pair: RuntimePair) -> None:
    """The setting of what binds changes nothing in `run`."""

    def script(life: Life) -> CallOutcome:
        return life.ran("sh", "-c", "cat; echo oops >&2; exit 7", stdin=b"hello\n")

    assert pair.same(script) == CallOutcome(7, "hello\n", "oops\n")


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


def _hooked(life: Life, **process: Any) -> Path:
    """Write a bundle with a hook that notes what the runtime was given; return its notes."""
    notes = life.folder / "given"
    notes.unlink(missing_ok=True)
    life.bundle("true", process=process)
    hook = life.path / "given.sh"
    hook.write_text(GIVEN.replace("$OUT", str(notes)))
    hook.chmod(0o755)
    given = {"path": str(hook), "args": ["given", "a"]}
    life.bundle("true", hooks={"createRuntime": [given]}, process=process)
    return notes


def test_the_runtime_gets_the_arguments_of_the_caller(pair: RuntimePair) -> None:
    """argv, environment, working directory, limits, mask, signals: as they came.

    A foreign hook, which inherits the caller's environment, is left as it is beside ours.
    """
    words = "ulimit -n 777; ulimit -c 0; umask 027; trap '' USR1; export SECRET='a b'; cd /var/tmp"

    def script(life: Life) -> str:
        notes = _hooked(life)
        where = ("--bundle", str(life.path), life.id)
        assert life.call("run", *where, before=script_with(words)).status == 0
        return notes.read_text()

    given = pair.same(script)
    assert pair.is_crun or "\n0027\n" in given  # crun takes its own
    for text in ("SECRET=a b", "Max open files            777", "--bundle"):
        assert text in given
    assert given.startswith(f"{pair.bare.program[-1]}\n--root\n")


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


def test_a_further_process_on_a_terminal(pair: RuntimePair) -> None:
    def script(life: Life) -> tuple[int, bool]:
        life.started("sleep", "1000")
        status, said = life.runtime.on_a_terminal(
            "exec", "--tty", life.id, "sh", "-c", "test -t 0 && echo terminal; exit 3"
        )
        return status, "terminal" in said

    assert pair.same(script) == (3, True)
