# SPDX-License-Identifier: Apache-2.0
"""The supervisor of a command of `gpushare run`: what its user sees and can do while it is frozen.

The command is the process that its caller started. The supervisor is a process beside it, outside
its cgroup and session, and no child of it: exit status, signals, terminal and process group stay
the command's own. A frozen process keeps a signal that is sent to it, and the kernel shows that.
The supervisor then has the daemon stop the command: it is resumed with the signal, and killed after
`STOP_SECONDS`. That is the only way in which the command's user can undo a freeze.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpushare.cli.text import printable
from gpushare.errors import UserError
from gpushare.host import cgroups

if TYPE_CHECKING:
    from gpushare.client import Client

STOP_SECONDS: Final = 10
_ENDS: Final = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)
_COMM: Final = "gpushare-super"
_STDERR: Final = 2
_FROZEN_SECONDS: Final = 0.2  # between two looks at a frozen command
_V1_SECONDS: Final = 1.0  # between two looks at a freezer of v1, which reports nothing
_ASK_SECONDS: Final = 1.0  # between two questions to the daemon
_FREEZERS: Final = {"operator": "paused", "idle": "paused", "audit": "frozen", "engine": "paused"}
_STOPPED: Final = "stopped"
_SIGNAL_SETS: Final = re.compile(r"^(SigPnd|ShdPnd|SigBlk|SigIgn):\t([0-9a-f]+)$", re.MULTILINE)


@dataclass(frozen=True)
class Command:
    """A command, and the tenant that it is."""

    pid: int
    key: str
    id: str


def start(client: Client, command: Command) -> None:
    """Start the supervisor of this process, which is about to execute `command`.

    It begins when this process has done so, and ends with it.
    """
    pidfd = os.pidfd_open(command.pid)
    begins, _held = os.pipe()  # exec closes our end
    child = os.fork()
    if not child:
        try:
            if not os.fork():
                _detach({pidfd, begins})
                _Supervisor(client, command, pidfd).run(begins)
        except OSError:
            pass  # the command has just ended, and its files with it
        except Exception:  # noqa: BLE001 - nothing of it may reach the caller's code
            traceback.print_exc()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(pidfd)
    os.close(begins)


def _detach(kept: set[int]) -> None:
    """Hold nothing of the caller's but stderr: others wait until a pipe or a terminal is closed."""
    os.setsid()
    Path("/proc/self/comm").write_text(_COMM, encoding="ascii")
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    os.chdir("/")
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    for fd in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208 - numbers
        if fd > _STDERR and fd not in kept:
            with contextlib.suppress(OSError):
                os.close(fd)


class _Supervisor:
    """Watches one command until it ends."""

    def __init__(self, client: Client, command: Command, pidfd: int) -> None:
        self._client = client
        self._command = command
        self._pidfd = pidfd
        self._name = command.id
        self._asked = 0.0
        self._is_frozen = False
        self._told = ""  # what its user was told of this freeze: paused, frozen, stopped
        self._ignored = 0  # signals that were pending and blocked when it was frozen
        self._said: set[str] = set()

    def run(self, begins: int) -> None:
        """Return when the command has ended; `begins` is closed when it begins."""
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        poll.register(begins, select.POLLIN)
        poll.poll()
        poll.unregister(begins)
        groups = _groups(self._command.id)
        events = [os.open(file, os.O_RDONLY) for file in _files(groups, "cgroup.events")]
        states = [os.open(file, os.O_RDONLY) for file in _files(groups, "freezer.state")]
        for fd in events:
            poll.register(fd, select.POLLPRI)
        usual = _V1_SECONDS * 1000 if states else None
        while not any(
            fd == self._pidfd
            for fd, _ in poll.poll(_FROZEN_SECONDS * 1000 if self._is_frozen else usual)
        ):
            # All of them: what is not read wakes us again.
            frozen = [b"frozen 1" in os.pread(fd, 4096, 0) for fd in events]
            frozen += [os.pread(fd, 4096, 0) == b"FROZEN\n" for fd in states]
            self._look(is_frozen=any(frozen))

    def _look(self, *, is_frozen: bool) -> None:
        self._is_frozen = is_frozen
        if is_frozen and not self._told:
            self._learn()
        elif is_frozen:
            self._stop_if_asked()
        elif self._told:
            if self._told != _STOPPED:
                self._say(f"{self._name} is resumed.")
            self._told = ""
            self._said.clear()

    def _may_ask(self) -> bool:
        """Whether it is time to ask the daemon; it counts as asked."""
        if time.monotonic() - self._asked < _ASK_SECONDS:
            return False
        self._asked = time.monotonic()
        return True

    def _learn(self) -> None:
        """Find out what froze it. Another program's freeze is passed over."""
        if not self._may_ask():
            return
        try:
            row = self._client.tenant(self._command.key)
        except UserError as error:
            self._say(f"{self._name} is frozen, and gpushared does not say why: {error}")
            return
        self._name = row["name"] or self._name
        why = next(
            (
                intervention
                for intervention in row["interventions"]
                if intervention["by"] in _FREEZERS
            ),
            None,
        )
        if why is None:
            return
        self._told = _FREEZERS[why["by"]]
        pending, blocked = _signals(self._command.pid)
        self._ignored = pending & blocked
        reason = f": {why['reason']}" if why["reason"] else ""
        self._say(
            f"{self._name} is {self._told} ({why['by']}{reason}). Ctrl-C or SIGTERM ends it; "
            f"an operator can resume it: gpushare resume {self._name}"
        )

    def _stop_if_asked(self) -> None:
        """Have the command stopped if a signal that ends programs was sent to it."""
        pending, _ = _signals(self._command.pid)
        pending &= ~self._ignored
        sent = next((ending for ending in _ENDS if pending >> (ending - 1) & 1), None)
        if sent is None or self._told == _STOPPED or not self._may_ask():
            return
        why = f"{sent.name} was sent to it while it was {self._told}"
        if sent != signal.SIGKILL:
            end = f"is killed in {STOP_SECONDS} s"
            self._say(f"{self._name} is resumed to exit ({sent.name}), and {end}.")
        try:
            word = sent.name.removeprefix("SIG")
            self._client.stop(self._command.key, word, STOP_SECONDS, why)
        except UserError as error:
            self._say(f"{self._name} cannot be stopped: {error}")
        else:
            self._told = _STOPPED

    def _say(self, text: str) -> None:
        """Print one line on the command's stderr, once for each freeze."""
        if text not in self._said:
            self._said.add(text)
            with contextlib.suppress(OSError):  # the terminal has gone
                os.write(_STDERR, f"gpushare: {printable(text)}\n".encode())


def _groups(identity: str) -> list[Path]:
    roots = cgroups.hierarchies(cgroups.mountinfo())
    return [root / cgroups.PARENT / identity for root in roots]


def _files(groups: list[Path], name: str) -> list[Path]:
    return [group / name for group in groups if (group / name).exists()]


def _signals(pid: int) -> tuple[int, int]:
    """Return the sets of signals that are pending for a process, and that it blocks (proc(5))."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    sets = {name: int(text, 16) for name, text in _SIGNAL_SETS.findall(status)}
    # What is blocked stays pending even if it will be ignored.
    pending = (sets["SigPnd"] | sets["ShdPnd"]) & ~sets["SigIgn"]
    return pending, sets["SigBlk"]
