# SPDX-License-Identifier: Apache-2.0
"""Keeps the scheduler running, and sends it the share of each tenant on each card.

The shares are recomputed from the ledger after each change, and only differences are sent: a share
may change because of another tenant. All of it happens on a thread of its own, so that no container
waits for it. When the scheduler ends, it is started again at once; until then, each process limits
its container to the share recorded at its gate.
"""

from __future__ import annotations

import array
import contextlib
import os
import signal
import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from gpushare.daemon.core.log import log
from gpushare.daemon.core.loop import Backoff, Worker, credentials, wait_readable
from gpushare.daemon.node import Node
from gpushare.daemon.observed import Observations
from gpushare.daemon.pages.tenants import Pages
from gpushare.daemon.policy import Share, ShareRequest, divide_compute
from gpushare.daemon.state import DaemonState
from gpushare.daemon.store.ledger import Ledger
from gpushare.daemon.store.record import TenantRecord
from gpushare.settings import MPS

PROGRAM: Final = "gpushare-scheduler"
SOCKET: Final = "scheduler.sock"
TenantShares = tuple[tuple[str, Share], ...]  # by the tenant's card number: UUID, and what it gets


def scheduled_shares(state: DaemonState) -> dict[str, TenantShares]:
    """Return the shares of every running tenant that has a gate, by its key.

    Whole cards have no gate, and that of an MPS server's client stays open. A tenant that is only
    reserved takes no time yet, and a frozen or evicted one no more: the others get its share, and
    it does not count as hung.
    """
    running = [
        record
        for record in state.ledger.entries.values()
        if record.shared and record.isolation != MPS and record.state == "bound"
        if _may_run(record, state.ledger)
    ]
    by_card = {
        uuid: _corrected_shares(uuid, shares, state.observed)
        for uuid, shares in shares_by_card(state.node, state.ledger).items()
    }
    return {
        record.key: tuple(
            (allocation.uuid, by_card[allocation.uuid][record.key])
            for allocation in record.allocations
        )
        for record in running
        # The ledger may have changed meanwhile: then we are called again.
        if all(record.key in by_card.get(allocation.uuid, ()) for allocation in record.allocations)
    }


def shares_by_card(node: Node, ledger: Ledger) -> dict[str, dict[str, Share]]:
    """Return the share of each tenant on each card, by the card's UUID and the tenant's key.

    Frozen and whole-card tenants have none, and the clients of an MPS server run together.
    """
    requests: dict[str, list[ShareRequest]] = {}
    for record in ledger.entries.values():
        if record.isolation == MPS or not _may_run(record, ledger):
            continue
        for allocation in record.allocations:
            if not allocation.whole:
                request = ShareRequest(
                    key=record.key,
                    policy=record.policy,
                    cores=allocation.cores,
                    weight=record.weight,
                    class_=record.class_,
                    priority=record.priority,
                    policy_is_set=record.is_set("policy"),
                )
                requests.setdefault(allocation.uuid, []).append(request)
    return {
        uuid: divide_compute(on_card, node.policy_of(uuid)) for uuid, on_card in requests.items()
    }


def _corrected_shares(
    uuid: str, shares: Mapping[str, Share], observed: Observations
) -> dict[str, Share]:
    """Return the shares on a card with the corrections of what was charged lately.

    No correction takes more than half a share: there are drivers that report the same use of a card
    for every process, whatever it does.
    """
    card = observed.usage.cards.get(uuid)
    measured = card is not None and card.utilization is not None
    return {
        key: replace(
            share,
            measured=measured,
            correction_permille=min(
                10 * observed.compute_of(key, uuid).correction_percent, share.permille // 2
            ),
        )
        for key, share in shares.items()
    }


def _may_run(record: TenantRecord, ledger: Ledger) -> bool:
    """Whether a tenant takes turns: not while it is frozen, or its memory off its cards."""
    return record.eviction is None and not ledger.is_frozen(record.key)


class SchedulerSync:
    """Keeps a scheduler running and up to date. Any thread may call `changed` and `check`."""

    def __init__(self, state: DaemonState) -> None:
        self._state = state
        self._worker = Worker("schedule")
        # All below is that thread's.
        self._scheduler: Scheduler | None = None
        self._sent: dict[str, tuple[Pages, TenantShares]] = {}
        self._rejected: dict[str, str] = {}  # by key, why the scheduler rejected it
        self._backoff = Backoff(0.1, longest=5.0, steady=10.0, at_once=True)
        self._waits = False
        self._closed = False

    def changed(self) -> None:
        """Send the changes; returns at once."""
        self._worker.submit_once(self._send_changed)  # further changes are sent with it

    def check(self) -> None:
        """Make sure that a scheduler answers and has all tenants; returns at once."""
        self._worker.submit(lambda: self._do(self._send_missing))

    def close(self, seconds: float) -> None:
        """Send nothing more; the scheduler keeps running."""

        def leave() -> None:
            self._closed = True
            self._disconnect()

        self._worker.submit(leave)
        self._worker.finish(seconds)

    def _do(self, job: Callable[[], None]) -> None:
        if self._closed or self._waits:
            return
        try:
            job()
        except SchedulerLost as error:
            self._lost(str(error))
        else:
            self._state.node.scheduler_fault = next(iter(self._rejected.values()), "")

    def _send_changed(self) -> None:
        if self._scheduler is None:
            self._do(self._send_all)
        else:
            self._do(partial(self._send, self._scheduler))

    def _send_missing(self) -> None:
        """Send what differs, and everything if the scheduler is another one or lacks a tenant."""
        scheduler, command = self._scheduler, self._command()
        if scheduler is not None and scheduler.runs(command.program) and not self._rejected:
            self._send(scheduler)
            answer = scheduler.send(message(COMPLETE))
            state = answer.error, answer.tenants, answer.time_scale
            if state == (0, len(self._sent), command.time_scale):
                return
        self._send_all()

    def _send_all(self) -> None:
        """Name every tenant to a scheduler, from HELLO to COMPLETE."""
        scheduler = self._connected()
        scheduler.send(message(HELLO))
        self._sent = {}
        self._send(scheduler)
        answer = scheduler.send(message(COMPLETE))
        if answer.error:
            raise SchedulerLost(f"process {scheduler.pid} speaks another version")

    def _send(self, scheduler: Scheduler) -> None:
        """Send what differs from what was sent."""
        wanted = self._wanted()
        for key in [key for key in self._sent if key not in wanted]:
            scheduler.send(message(REMOVE, key))
            self._sent.pop(key)
            self._rejected.pop(key, None)
        for key, (pages, shares) in wanted.items():
            before = self._sent.get(key)
            # The same key comes again with other pages: a container that is started once more.
            # A correction applies for some seconds.
            is_same = before is not None and before[0] is pages and before[1] == shares
            if not is_same or any(share.correction_permille for _, share in shares):
                self._send_tenant(scheduler, key, pages, shares)

    def _send_tenant(
        self, scheduler: Scheduler, key: str, pages: Pages, shares: TenantShares
    ) -> None:
        tenant = message(TENANT, key, shares)

        def send(pages: Pages) -> int:
            return scheduler.send(tenant, [pages.directory]).error

        error = pages.look(send, None)
        if error is None:
            return  # it has just ended
        self._sent[key] = pages, shares
        if not error:
            self._rejected.pop(key, None)
            return
        record, why = self._state.ledger.entries.get(key), os.strerror(error)
        text = (
            f"the scheduler does not enforce the share of {record.title if record else key}: {why}"
        )
        if self._rejected.get(key) != text:
            log("share-rejected", "error", tenant=key, error=why)
        self._rejected[key] = text

    def _wanted(self) -> dict[str, tuple[Pages, TenantShares]]:
        shares, pages = scheduled_shares(self._state), self._state.tenants.pages
        return {key: (pages[key], shares[key]) for key in shares if key in pages}

    def _connected(self) -> Scheduler:
        """Return a current scheduler: the connected one, an earlier daemon's, or a new one."""
        command = self._command()
        if self._scheduler is None:
            with contextlib.suppress(SchedulerLost):
                adopted = Scheduler.connect(command.socket)
                self._use(adopted)
                log("scheduler-adopted", pid=adopted.pid)
        if self._scheduler is not None and not self._is_current(self._scheduler, command):
            program = str(command.program)
            log("scheduler-replaced", pid=self._scheduler.pid, program=program)
            self._scheduler.end()
            self._disconnect()
        if self._scheduler is None:
            self._backoff.note_start()  # also of one that cannot be started
            started = Scheduler.start(command)
            self._use(started)
            log("scheduler-started", pid=started.pid, time_scale=command.time_scale)
            return started
        return self._scheduler

    def _is_current(self, scheduler: Scheduler, command: SchedulerCommand) -> bool:
        if not scheduler.runs(command.program):
            return False
        try:
            answer = scheduler.send(message(HELLO))
        except SchedulerLost:
            return False
        return answer.version == VERSION and answer.time_scale == command.time_scale

    def _command(self) -> SchedulerCommand:
        state = self._state
        time_scale = 1 if state.node.driver is None else max(1, round(state.node.driver.time_scale))
        program = state.node.libraries.parent / "bin" / PROGRAM
        return SchedulerCommand(program, state.node.config.run_dir / SOCKET, time_scale)

    def _use(self, scheduler: Scheduler) -> None:
        """Send the shares to a scheduler from now on, and start another one when it ends."""
        self._backoff.note_start()
        self._scheduler = scheduler
        self._state.node.scheduler_pid = scheduler.pid
        loop = self._state.loop

        def ended() -> None:
            loop.forget(scheduler.pidfd)
            self._worker.submit(lambda: self._ended(scheduler))

        loop.call(lambda: loop.read(scheduler.pidfd, ended))

    def _ended(self, scheduler: Scheduler) -> None:
        if scheduler is self._scheduler and not self._closed:
            self._lost(f"process {scheduler.pid} has ended")

    def _lost(self, why: str) -> None:
        """Start another one: at once, unless that was just tried."""
        log("scheduler-lost", "error", reason=why)
        self._state.node.scheduler_pid = 0
        self._state.node.scheduler_fault = f"no scheduler enforces compute shares: {why}"
        if self._scheduler is not None:
            self._scheduler.end()  # it may hang
            self._disconnect()
        self._waits = True
        again = partial(self._worker.submit, self._again)
        self._state.loop.after(self._backoff.wait_seconds(), again)

    def _again(self) -> None:
        self._waits = False
        self._do(self._send_all)

    def _disconnect(self) -> None:
        """Close the connection; on the loop's thread, which may be watching the process."""
        scheduler, self._scheduler = self._scheduler, None
        if scheduler is None:
            return

        def close() -> None:
            self._state.loop.forget(scheduler.pidfd)
            scheduler.close()

        self._state.loop.call(close)


# --- the scheduler's process, the connection to it, and its messages ---
#
# The process outlives gpushared: a restarted daemon finds it running and uses it. The daemon
# identifies it as the listener on its socket and watches it by a pidfd; it is a child only if this
# daemon started it.
#
# The messages are laid out as in scheduler/message.h; tests/c/test_abi_parity.py compiles it and
# compares. Numbers are little endian: gpushare runs where NVIDIA's driver does, on x86-64 and
# arm64.

VERSION: Final = 2

HELLO: Final = 1
TENANT: Final = 2
REMOVE: Final = 3
COMPLETE: Final = 4

MESSAGE: Final = struct.Struct("<II24sII")  # type, version, key, card_count, reserved
SHARE: Final = struct.Struct("<48sIIIIIi")  # as struct schedule_share
ANSWER: Final = struct.Struct("<IiiII")  # version, error, pid, tenants, time_scale


class SchedulerReply(NamedTuple):
    """The reply to each message; `error` is an errno, 0 for success."""

    version: int
    error: int
    pid: int
    tenants: int
    time_scale: int


def message(kind: int, key: str = "", shares: Sequence[tuple[str, Share]] = ()) -> bytes:
    """Return a message: HELLO, COMPLETE, REMOVE of tenant `key`, or TENANT, which has `shares`.

    HELLO is the first of a connection, and the tenants follow; with COMPLETE all have been named. A
    share is a card's UUID and the tenant's part of it.
    """
    packed = [
        SHARE.pack(
            uuid.encode(),
            share.permille,
            share.capped,
            share.online,
            share.priority,
            share.measured,
            share.correction_permille,
        )
        for uuid, share in shares
    ]
    return MESSAGE.pack(kind, VERSION, key.encode(), len(shares), 0) + b"".join(packed)


def read_reply(packet: bytes) -> SchedulerReply:
    """Parse a reply; ValueError if it is not one."""
    if len(packet) != ANSWER.size:
        raise ValueError(f"an answer of {len(packet)} bytes, not {ANSWER.size}")
    return SchedulerReply(*ANSWER.unpack(packet))


_ANSWER_SECONDS: Final = 2.0  # it answers in microseconds: longer is a process that hangs
_START_SECONDS: Final = 5.0
_END_SECONDS: Final = 1.0


class SchedulerLost(Exception):
    """It cannot be started, has ended, or does not answer; the text says which."""


@dataclass(frozen=True)
class SchedulerCommand:
    """The command that starts the scheduler."""

    program: Path
    socket: Path
    time_scale: int = 1  # the factor of its own durations
    switch_us: int | None = None  # what a switch between tenants takes; None: as on an H200

    @property
    def argv(self) -> list[str]:
        """The command line."""
        options = ["--socket", self.socket, "--time-scale", self.time_scale]
        if self.switch_us is not None:
            options += ["--switch-us", self.switch_us]
        return list(map(str, (self.program, *options)))


class Scheduler:
    """A running scheduler that this process is connected to."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._socket.settimeout(_ANSWER_SECONDS)
        self.pid, _ = credentials(connected)
        try:
            self.pidfd = os.pidfd_open(self.pid)
        except OSError as error:
            connected.close()
            raise SchedulerLost(f"process {self.pid}: {error.strerror}") from error

    @classmethod
    def connect(cls, path: Path) -> Scheduler:
        """Return the one that listens at `path`; SchedulerLost where none does."""
        connecting = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        try:
            connecting.settimeout(_ANSWER_SECONDS)
            connecting.connect(str(path))
        except OSError as error:
            connecting.close()
            raise SchedulerLost(f"{path}: {error.strerror or error}") from error
        return cls(connecting)

    @classmethod
    def start(cls, command: SchedulerCommand) -> Scheduler:
        """Start one, and return it once it listens; SchedulerLost where it does not."""
        read_end, write_end = os.pipe2(os.O_CLOEXEC)
        try:
            # Nothing of ours is handed on: neither the environment nor descriptors.
            pid = os.posix_spawn(
                command.program,
                command.argv,
                {},
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_DUP2, write_end, 1),
                ],
            )
            os.close(write_end)
            write_end = -1
            if not (wait_readable(read_end, _START_SECONDS) and os.read(read_end, 256)):
                os.kill(pid, signal.SIGKILL)
                status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                raise SchedulerLost(f"{command.program} did not start (exit status {status})")
        except OSError as error:
            raise SchedulerLost(f"{command.program}: {error.strerror}") from error
        finally:
            for fd in (read_end, write_end):
                if fd >= 0:
                    os.close(fd)
        return cls.connect(command.socket)

    def send(self, message: bytes, descriptors: Sequence[int] = ()) -> SchedulerReply:
        """Send a message with descriptors and return the reply; SchedulerLost without one."""
        rights = array.array("i", descriptors)
        control = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)] if descriptors else []
        try:
            self._socket.sendmsg([message], control)
            packet = self._socket.recv(ANSWER.size + 1)
            if not packet:
                raise SchedulerLost(f"process {self.pid} closed the connection")
            return read_reply(packet)
        except TimeoutError as error:
            raise SchedulerLost(f"process {self.pid} does not answer") from error
        except (OSError, ValueError) as error:
            raise SchedulerLost(f"process {self.pid}: {error}") from error

    def runs(self, program: Path) -> bool:
        """Whether it is the program that is there now, not one that was installed before."""
        try:
            ours, its = program.stat(), Path(f"/proc/{self.pid}/exe").stat()
        except OSError:
            return False
        return (ours.st_dev, ours.st_ino) == (its.st_dev, its.st_ino)

    def end(self) -> None:
        """Stop the scheduler. Its gates stay as they are: this opens none of them."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGTERM)
            if not wait_readable(self.pidfd, _END_SECONDS):
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
                wait_readable(self.pidfd, _END_SECONDS)

    def close(self) -> None:
        """Close our descriptors. The process keeps running, and is waited for if it was a child."""
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED | os.WNOHANG)
        os.close(self.pidfd)
        self._socket.close()
