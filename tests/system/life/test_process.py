# SPDX-License-Identifier: Apache-2.0
"""What the container's process is born with, and how its exit is reported."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path
from typing import Any

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


def test_how_it_ended(pair: RuntimePair) -> None:
    def script(life: Life) -> list[int]:
        statuses = []
        for ending in ("exit 0", "exit 1", "exit 255", "/nonexistent"):
            statuses.append(life.ran("sh", "-c", ending).status)
            life.traces()
        return statuses

    assert pair.same(script) == [0, 1, 255, 127]


def test_programs_that_cannot_be_run_fail_alike(pair: RuntimePair) -> None:
    def script(life: Life) -> list[bool]:
        failed = []
        for command in (["/nonexistent"], ["/tmp"], ["/proc/version"], [""], []):
            failed.append(life.ran(*command).status != 0)
            life.traces()
        return failed

    assert all(pair.same(script))


def test_killed_from_outside(pair: RuntimePair) -> None:
    def script(life: Life) -> int:
        life.bundle("sh", "-c", "echo ready; sleep 1000")
        words = life.runtime.argv("run", "--bundle", str(life.path), life.id)
        with subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            # crun lets it begin before it has written down that it is there.
            wait_until(lambda: life.runtime.call("state", life.id).status == 0)
            life.call("kill", life.id, "KILL")
        life.traces()
        return process.returncode

    assert pair.same(script) == 128 + signal.SIGKILL


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


def test_the_callers_environment_stays_outside(pair: RuntimePair) -> None:
    def script(life: Life) -> CallOutcome:
        life.bundle("env")
        where = ("--bundle", str(life.path), life.id)
        return life.call("run", *where, before=script_with("export SECRET=1 LD_PRELOAD="))

    assert "SECRET" not in pair.same(script).stdout


def test_limits_directory_user_and_mask_of_the_spec(pair: RuntimePair) -> None:
    process = {
        "cwd": "/tmp",
        "user": {"uid": 12, "gid": 34, "umask": 0o077, "additionalGids": [5]},
        "rlimits": [{"type": "RLIMIT_NOFILE", "soft": 64, "hard": 128}],
        "env": ["PATH=/bin", "A=1", "A=2", "B="],
    }
    show = (
        "echo $PWD $A; umask; ulimit -n; ulimit -Hn; "
        "cat /proc/self/status | while read a b; do case $a in Uid:|Gid:|Groups:|Cap*|NoNewPrivs:) "
        "echo $a $b;; esac; done"
    )

    def script(life: Life) -> CallOutcome:
        return life.ran("sh", "-c", show, process=process)

    assert pair.same(script).stdout.startswith("/tmp 2\n0077\n64\n128\n")


def test_limits_of_the_caller_are_inherited(pair: RuntimePair) -> None:
    def script(life: Life) -> CallOutcome:
        life.bundle("sh", "-c", "ulimit -n; ulimit -c; umask; cat /proc/self/oom_score_adj")
        where = ("--bundle", str(life.path), life.id)
        return life.call("run", *where, before=script_with("ulimit -n 321; ulimit -c 0; umask 002"))

    assert pair.same(script).stdout.startswith("321\n0\n")


def test_a_command_line_as_long_as_the_kernel_takes(pair: RuntimePair) -> None:
    """One word of 128 KiB is the kernel's most (MAX_ARG_STRLEN); there are eight of half that."""
    word = "x" * (64 << 10)

    def script(life: Life) -> CallOutcome:
        life.started("sleep", "1000")
        inside = ("sh", "-c", 'echo $# ${#1}; echo "$8" | wc -c', "sh", *[word] * 8)
        return life.call("exec", life.id, *inside)

    assert pair.same(script) == CallOutcome(0, f"8 {len(word)}\n{len(word) + 1}\n", "")


def test_nothing_of_ours_is_open_in_the_runtime(pair: RuntimePair) -> None:
    """What the launcher opened would be the runtime's, and then the container's."""

    def script(life: Life) -> CallOutcome:
        inside = 'for fd in /proc/self/fd/*; do echo "${fd##*/}"; done'
        return life.ran("sh", "-c", inside)

    seen = pair.same(script).stdout.split()
    assert seen[:3] == ["0", "1", "2"]
