# SPDX-License-Identifier: Apache-2.0
"""Keeps the control daemon of one card running: started, watched, restarted with back-off.

It outlives gpushared, as the containers do. A later gpushared finds it by the file in its folder,
and goes on with it. It is never one that somebody else has started: those are refused.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal

from gpushare.compatibility.rules import parse_version
from gpushare.daemon.core.log import log
from gpushare.daemon.core.loop import Backoff, wait_readable
from gpushare.daemon.identity import processes
from gpushare.daemon.mps.control import ControlProgram, MpsControl, MpsError
from gpushare.daemon.node import Node
from gpushare.daemon.observed import Observations
from gpushare.daemon.pages.mounts import TenantMounts
from gpushare.daemon.placement.model import Card
from gpushare.oci.bounded_read import replace_file

#: The change since the last look. "adopted": an earlier gpushared's was found.
RunChange = Literal["", "started", "adopted", "ended"]

_READY_SECONDS: Final = 30.0  # without persistence mode, a card takes long to initialize
_QUIT_SECONDS: Final = 5.0
_POLL_SECONDS: Final = 0.05
_FIRST_MULTIUSER: Final = 555  # 535 and 550 end at once with the option
_NAME: Final = "nvidia-cuda-mps"  # of server and control daemon, as the kernel shortens it


class ControlRunner:
    """The control daemon of `card`; all of it is the card's thread's.

    `control` is None while none answers, and `fault` says why no container can have it now.
    """

    def __init__(
        self,
        card: Card,
        program: Path,
        node: Node,
        observed: Observations,
        mounts: TenantMounts,
    ) -> None:
        self.control: MpsControl | None = None
        self.fault = ""
        digest = hashlib.sha256(card.uuid.encode()).hexdigest()[:8]
        self.folders = CardFolders(node.config.run_dir / "mps" / digest)
        self._card, self._program = card, program
        self._node, self._observed, self._mounts = node, observed, mounts
        self._process: ControlProcess | None = None
        self._backoff = Backoff(0.5, longest=60.0, steady=60.0, at_once=True)
        self._next_start = 0.0
        self._ended = 0  # the process that gpushared has ended
        self._sockets: list[Path] = []  # of clients, and of commands
        self._is_first = True

    def look(self) -> RunChange:
        """Start what has to run, and say what has changed."""
        change: RunChange = ""
        if self.control is not None and self._process and not self._process.has_ended():
            self._mend_sockets(self._process)
        if self._process is not None and self._process.has_ended():
            pid = self._process.pid
            self._forget()
            if pid != self._ended:
                self._failed(f"process {pid} has ended")
            change = "ended"
        if self._is_first:
            self._is_first = False
            if self._adopt():
                change = "adopted"
        foreign = self._foreign_server()
        if self._process is None and not foreign and time.monotonic() >= self._next_start:
            return "started" if self._start() else change
        if foreign:
            self.fault = (
                f"an MPS server that gpushare did not start uses it (process {foreign}): stop it "
                "with its own nvidia-cuda-mps-control"
            )
        elif self.control is not None:
            self.fault = ""
        return change

    def keep(self, uids: Mapping[str, int]) -> None:
        """Write what a later gpushared has to know: the users of the tenants."""
        if self._process is None or self.control is None:
            return
        try:
            process = {"pid": self._process.pid, "starttime": self._process.starttime}
            state = json.dumps({**process, "tenants": dict(uids)})
            replace_file(self.folders.state, state.encode(), 0o600)
        except OSError as error:
            log("mps-command-failed", "warning", card=self._card.uuid, error=str(error))

    def kept(self) -> dict[str, int]:
        """Return the tenants that were kept last."""
        tenants = self.folders.read_state().get("tenants")
        return tenants if isinstance(tenants, dict) else {}

    def renew(self) -> None:
        """End it, and what its containers have left in /dev/shm; the next look starts another."""
        process = self._process
        if process is None:
            return
        try:
            if self.control is not None:
                self.control.quit(_QUIT_SECONDS)
        except MpsError as error:
            log("mps-command-failed", "warning", card=self._card.uuid, error=str(error))
        if not process.has_ended(2 * _QUIT_SECONDS):
            process.kill()
        log("mps-control-stopped", card=self._card.uuid, pid=process.pid)
        self._ended = process.pid
        with contextlib.suppress(OSError):
            self._mounts.drop_shared_memory(self.folders.shared_memory)

    def stop(self) -> None:
        """End it: the card is not in MPS mode any more."""
        self.renew()
        self._forget()

    def close(self) -> None:
        """Leave it running, for a later gpushared."""
        if self._process is not None:
            self._process.close()
        self._process = self.control = None

    def _start(self) -> bool:
        """Start one, and wait until it answers; whether it does."""
        self._backoff.note_start()
        try:
            self.folders.make()
            program = self._new_program()
            shared_memory = self._mounts.shared_memory(self.folders.shared_memory)
            try:
                process = ControlProcess.start(program, self.folders, shared_memory)
            finally:
                os.close(shared_memory)
            self._process = process
        except (OSError, MpsError) as error:
            self._failed(str(error))
            return False
        control = MpsControl(program)
        while not control.is_ready():
            if process.has_ended() or time.monotonic() > self._backoff.since + _READY_SECONDS:
                why = last_output(self.folders)
                process.kill()
                self._forget()
                self._failed(f"it does not answer{': ' if why else ''}{why}")
                return False
            time.sleep(_POLL_SECONDS)
        self._take(process, control)
        log(
            "mps-control-started",
            card=self._card.uuid,
            pid=process.pid,
            multiuser=program.multiuser,
        )
        return True

    def _take(self, process: ControlProcess, control: MpsControl) -> None:
        """Go on with one that answers; its socket is linked now, or at the next look."""
        self._process, self.control, self.fault = process, control, ""
        with contextlib.suppress(OSError):
            self._sockets = self.folders.open()
            self.folders.link_socket()

    def _mend_sockets(self, process: ControlProcess) -> None:
        """Put the socket of containers back; end a control daemon that nobody can reach."""
        place = {"card": self._card.uuid, "pid": process.pid}
        try:
            was_removed = self.folders.link_socket()
            for path in self._sockets:
                _connect(path)
            process.require_descriptors()
            if was_removed:
                log("mps-socket-repaired", "warning", **place, restarted=False)
        except OSError as error:
            log("mps-socket-repaired", "warning", **place, restarted=True, error=str(error))
            process.kill()

    def _failed(self, why: str) -> None:
        """Note why none runs, and when the next one is tried."""
        wait_seconds = self._backoff.wait_seconds()
        self._next_start = time.monotonic() + wait_seconds
        log(
            "mps-control-failed",
            "error",
            card=self._card.uuid,
            error=why,
            retry_seconds=wait_seconds,
        )
        self.fault = f"its MPS control daemon does not run: {why}"

    def _adopt(self) -> bool:
        """Go on with the one that an earlier gpushared has started, if it runs.

        It may be slow to answer: that is no reason to end the work of its clients.
        """
        state = self.folders.read_state()
        try:
            process = ControlProcess(int(state["pid"]), int(state["starttime"]))
            program = self._new_program()
        except (ProcessLookupError, LookupError, TypeError, ValueError, MpsError):
            return False
        self._take(process, MpsControl(program))
        self._backoff.note_start()
        log("mps-control-adopted", card=self._card.uuid, pid=process.pid)
        return True

    def _new_program(self) -> ControlProgram:
        driver, folders = self._node.loaded(), self.folders
        if not driver.is_simulated and not processes.sees_host():
            raise MpsError(
                "gpushared is not in the host's PID namespace, and an MPS server would not find "
                "its clients: set hostPID: true, or --pid=host"
            )
        return ControlProgram(
            self._program,
            folders.pipe,
            folders.log,
            self._card.uuid,
            multiuser=self.release >= _FIRST_MULTIUSER,
            env=driver.env,
        )

    @property
    def release(self) -> int:
        """The driver's, for example 550; 0 if it is unknown."""
        return (parse_version(self._node.loaded().nvml.driver_version) or (0,))[0]

    def _forget(self) -> None:
        self.close()
        with contextlib.suppress(OSError):
            self.folders.state.unlink()

    def _foreign_server(self) -> int:
        """Return the process of another MPS server that uses the card, 0 for none."""
        card = self._observed.usage.cards.get(self._card.uuid)
        non_tenants = card.non_tenants if card else ()
        pids = [process.pid for process in non_tenants if process.name.startswith(_NAME)]
        if not pids:
            return 0
        own = {0 if self._process is None else self._process.pid}
        if self.control is not None:
            with contextlib.suppress(MpsError):
                own |= self.control.servers().keys()
        found = map(processes.find_outer, pids)  # those that have ended are listed a while
        return next((one.pid for one in found if one and not own & {one.pid, one.parent}), 0)


#: Runs a program whose /dev/shm is the mount of a descriptor: sys.argv[1], and the program.
_WITH_SHARED_MEMORY: Final = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
NEWNS, REC, PRIVATE, MOVE_MOUNT, EMPTY_PATH = 0x20000, 0x4000, 0x40000, 429, 4
for done in (
    libc.unshare(NEWNS),
    libc.mount(None, b"/", None, REC | PRIVATE, None),
    libc.syscall(MOVE_MOUNT, int(sys.argv[1]), b"", -1, b"/dev/shm", EMPTY_PATH),
):
    if done:
        sys.exit("/dev/shm: " + os.strerror(ctypes.get_errno()))
os.execv(sys.argv[2], sys.argv[2:])
"""
_MOST_BYTES: Final = 1 << 20
#: In the log folder: what the control daemon and its servers print.
OUTPUT: Final = "output.log"
_SOCKET: Final = "control"
_TAIL_BYTES: Final = 4096


class CardFolders:
    """The folders of the control daemon of one card.

    Below the run directory, with short names: a socket's path has at most 107 bytes. The control
    daemon, the host's root, writes through links in its pipe folder (550: the pid file, 535:
    `control_lock`), and takes commands from root by other sockets in it: no container has that
    folder. Containers have one with a hard link to the socket of clients. It is a folder, and not
    the socket, so that a socket of the next control daemon is seen through the mount. Server and
    clients share files of a fixed name in /dev/shm (cuda.shm.*,
    NVIDIA/k8s-device-plugin, issue 467). The control daemon of a card gets one of its own there, in
    a mount namespace of its own, and the card's containers the same: no container sees the host's.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.pipe = root / "p"  # for its sockets; a server of another user passes through it
        self.clients = root / "c"  # for the link
        self.log = root / "log"  # for its logs, and those of its servers
        self.shared_memory = root / "shm"  # its /dev/shm
        self.state = root / "state.json"  # for a later gpushared

    def make(self) -> None:
        """Make them for a start, the pipe folder anew; OSError."""
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self.pipe)
        for folder, mode in (
            (self.root.parent, 0o711),
            (self.root, 0o711),
            (self.pipe, 0o700),
            (self.clients, 0o755),
            (self.log, 0o700),
            (self.shared_memory, 0o1777),
        ):
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(mode)

    def open(self) -> list[Path]:
        """Let a server of another user connect to `control`, and write to the FIFO `log`; OSError.

        With NVIDIA's modes, any user could fill /run by the other files, and read the FIFO empty.
        Return the sockets.
        """
        sockets = []
        for path in self.pipe.iterdir():
            if path.is_socket():
                sockets.append(path)
            else:
                path.chmod(0o622 if path.is_fifo() else 0o600)
        self.pipe.chmod(0o711)
        return sockets

    def link_socket(self) -> bool:
        """Have the socket of clients in their folder; whether it had it not. OSError: none."""
        ours, theirs = self.pipe / _SOCKET, self.clients / _SOCKET
        if theirs.exists() and theirs.samefile(ours):
            return False
        draft = theirs.with_name(".draft")
        draft.unlink(missing_ok=True)
        draft.hardlink_to(ours)
        draft.replace(theirs)
        return True

    def read_state(self) -> dict[str, Any]:
        """Return what an earlier gpushared has written; nothing if that cannot be read."""
        try:
            with self.state.open("rb") as opened:
                state = json.loads(opened.read(_MOST_BYTES))
        except (OSError, ValueError):
            return {}
        return state if isinstance(state, dict) else {}


def _connect(path: Path) -> None:
    """Connect to a socket, and end the connection; OSError if nobody listens there."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
        client.setblocking(False)
        with contextlib.suppress(BlockingIOError):  # its queue is full
            client.connect(str(path))


class ControlProcess:
    """A running control daemon: this gpushared's child, or an earlier one's."""

    def __init__(
        self, pid: int, starttime: int, child: subprocess.Popen[bytes] | None = None
    ) -> None:
        """Hold process `pid`; ProcessLookupError if it has ended, or is another by now."""
        self.pid, self.starttime, self._child = pid, starttime, child
        # A child keeps its PID until it is waited for, also one that has ended already.
        pidfd = processes.open_pidfd(pid, starttime) if child is None else os.pidfd_open(pid)
        if pidfd is None:
            raise ProcessLookupError(f"process {pid} has ended")
        self.pidfd = pidfd

    @classmethod
    def start(
        cls, program: ControlProgram, folders: CardFolders, shared_memory: int
    ) -> ControlProcess:
        """Start one with a mount for its /dev/shm; OSError. Its output is in its log folder."""
        helper = (sys.executable, "-I", "-S", "-c", _WITH_SHARED_MEMORY)
        argv = [*helper, str(shared_memory), *program.arguments()]
        with (folders.log / OUTPUT).open("ab") as output:
            child = subprocess.Popen(
                argv,
                env=program.environment(),
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                pass_fds=[shared_memory],
                umask=0o022,
            )
        return cls(child.pid, processes.start_time(child.pid) or 0, child)

    def require_descriptors(self) -> None:
        """OSError if no descriptor is left with which it could accept a connection.

        NVIDIA's program (535 to 555) loses a descriptor for each client that connects and leaves
        before it has said its type, and any user may connect. With none left, the program fills its
        log and answers nobody.
        """
        with contextlib.suppress(PermissionError):
            limit, _ = resource.prlimit(self.pid, resource.RLIMIT_NOFILE)
            if len(os.listdir(f"/proc/{self.pid}/fd")) >= limit:  # noqa: PTH208 - to count
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    def has_ended(self, seconds: float = 0.0) -> bool:
        """Whether it has ended within so many seconds; a child is then waited for."""
        ended = wait_readable(self.pidfd, seconds)
        if ended and self._child is not None:
            self._child.poll()
        return ended

    def kill(self) -> None:
        """Kill it."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
            self.has_ended(1.0)

    def close(self) -> None:
        """Watch it no more; it keeps running."""
        os.close(self.pidfd)


def last_output(folders: CardFolders) -> str:
    """Return the last line that a control daemon has printed, "" for none."""
    with contextlib.suppress(OSError), (folders.log / OUTPUT).open("rb") as output:
        output.seek(max(0, output.seek(0, os.SEEK_END) - _TAIL_BYTES))
        lines = output.read().decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")
    return ""
