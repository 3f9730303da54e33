# SPDX-License-Identifier: Apache-2.0
"""Run a command and end everything that it started: `python -m tests.supervise COMMAND...`.

A test run starts daemons, engines and containers in sessions, namespaces and cgroups of their own.
No process group holds them all, so the supervisor is their subreaper (prctl(2),
PR_SET_CHILD_SUBREAPER): whatever loses its parent becomes its child. When the command has ended, or
was interrupted and had its time to clean up, the supervisor kills what is left, and removes the
folders, mounts and cgroups that the run has noted (tests/leftovers.py).

SIGINT, SIGTERM and SIGHUP to the supervisor interrupt the command and what is in its process group
once, by SIGINT; a second one kills the command. A script starts its background jobs with SIGINT and
SIGQUIT ignored, nohup with SIGHUP; the command starts with none ignored. Under nohup it has a
session of its own, which no terminal hangs up.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from tests import leftovers

#: From linux/prctl.h.
PR_SET_PDEATHSIG: Final = 1
PR_SET_CHILD_SUBREAPER: Final = 36
#: si_code of a signal that the kernel sent: a terminal's to its whole foreground group.
SI_KERNEL: Final = 0x80
INTERRUPTS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
AWAITED: Final = (*INTERRUPTS, signal.SIGCHLD)
#: How long an interrupted command may clean up.
GRACE_SECONDS: Final = 60.0
KILL_SECONDS: Final = 60.0


def main(words: list[str]) -> int:
    """Run the command; return its exit status, or 128 and the signal that interrupted it."""
    if words[:1] == ["--until"]:
        _interrupt_after(int(words[1]))
        words = words[2:]
    if not words:
        sys.stderr.write("usage: python -m tests.supervise [--until PID] COMMAND [ARGUMENT...]\n")
        return 2
    traces = leftovers.Traces()
    with tempfile.TemporaryDirectory(prefix="gpushare-supervise-") as folder:
        notes = Path(folder, "notes")
        status = _run(words, {**os.environ, leftovers.NOTES: str(notes)})
        stubborn = end_descendants(notes)
        leftovers.remove_noted(notes, traces)
    if stubborn:
        sys.stderr.write(f"supervise: could not be killed: {stubborn}\n")
    return status


def _run(words: list[str], environment: dict[str, str]) -> int:
    is_nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    for number in (*INTERRUPTS, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    # Queued from here on, and taken by sigtimedwait alone.
    signal.pthread_sigmask(signal.SIG_BLOCK, AWAITED)
    taken = {*AWAITED} - {signal.SIGHUP if is_nohup else None}
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")

    def prepare() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, AWAITED)
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)

    try:
        # The one other thread there may be (see _interrupt_after) only waits.
        started = subprocess.Popen(
            words,
            env=environment,
            preexec_fn=prepare,  # noqa: PLW1509
            start_new_session=is_nohup,
        )
    except OSError as error:
        sys.stderr.write(f"supervise: {words[0]}: {error.strerror}\n")
        return 127
    child = started.pid
    started.returncode = 0  # it is reaped here: without a status, Popen would do so when it goes
    interrupted = 0
    deadline = float("inf")
    while True:
        seconds = min(max(0.0, deadline - time.monotonic()), 3600.0)
        told = signal.sigtimedwait(taken, seconds)
        ended = _reap(child)
        if ended is not None:
            return 128 + interrupted if interrupted else ended
        if told is None or told.si_signo == signal.SIGCHLD:
            if time.monotonic() >= deadline:
                os.kill(child, signal.SIGKILL)
        elif interrupted:
            os.kill(child, signal.SIGKILL)
        else:
            interrupted = told.si_signo
            deadline = time.monotonic() + GRACE_SECONDS
            is_of_terminal = told.si_code == SI_KERNEL and interrupted == signal.SIGINT
            if (is_nohup or not is_of_terminal) and not _interrupt(child):
                os.kill(child, signal.SIGKILL)


def _interrupt(group: int) -> bool:
    """Interrupt a process group as a terminal would; return whether all of it could be."""
    reached = True
    for pid in _descendants():
        with suppress(ProcessLookupError):
            try:
                if os.getpgid(pid) == os.getpgid(group):
                    os.kill(pid, signal.SIGINT)
            except PermissionError:  # sudo: root's supervisor knows by --until
                reached = False
    return reached


def _reap(child: int) -> int | None:
    """Wait for every child that has ended; return the status of `child` where it is among them."""
    status = None
    with suppress(ChildProcessError):
        while True:
            pid, code = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            if pid == child:
                ended = os.waitstatus_to_exitcode(code)
                status = ended if ended >= 0 else 128 - ended
    return status


def _interrupt_after(pid: int) -> None:
    """Interrupt this process when `pid` has ended: sudo hands no signal on that it cannot get."""

    def watch() -> None:
        with suppress(ProcessLookupError):
            select.select([os.pidfd_open(pid)], [], [])
        os.kill(os.getpid(), signal.SIGTERM)

    # A thread starts with the mask of its maker: these signals are for the main thread.
    signal.pthread_sigmask(signal.SIG_BLOCK, AWAITED)
    threading.Thread(target=watch, daemon=True).start()


def end_descendants(notes: Path) -> list[int]:
    """Kill every process below this one; return those that are there after KILL_SECONDS."""
    deadline = time.monotonic() + KILL_SECONDS
    # What has lost its parent is a child at once; a look through /proc may just miss it.
    while _has_children():
        if time.monotonic() > deadline:
            return list(_descendants())
        for pid in _descendants():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        # A process in a frozen cgroup of v1 ends when it is thawed.
        leftovers.thaw_noted(notes)
        signal.sigtimedwait([signal.SIGCHLD], 0.1)
        _reap(0)
    return []


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _descendants() -> Iterator[int]:
    """Yield the processes below this one, without those that only wait to be reaped."""
    children: dict[int, list[tuple[int, str]]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                # The name in brackets may have spaces and brackets itself.
                state, parent, *_ = (entry / "stat").read_text().rpartition(")")[2].split()
                children.setdefault(int(parent), []).append((int(entry.name), state))
    above = [os.getpid()]
    while above:
        for pid, state in children.get(above.pop(), ()):
            above.append(pid)
            if state != "Z":
                yield pid


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
