# SPDX-License-Identifier: Apache-2.0
"""The cards in MPS mode, each with a control daemon and a thread that supervises it.

No thread that decides waits for a control daemon: what one has to do is submitted to its thread,
and what it has found is published in `Node.mps`.

All of a card runs on its thread, because each command waits for the control daemon. If that ends,
its servers and their clients end too: it is started again with the limits of the containers, whose
processes have to start again.

The limits of a container follow from its quota: under fixed-share, its cores are a percentage of
the multiprocessors, and under every other policy it has all, which the hardware divides. The memory
limit of the server is for each process, and only a second line: the interposer library counts all
processes of the container together, and to the byte.

A fatal fault of one client ends the work of all clients of the server ("Architecture"). The
server's state says that it happened, the log which process caused it. The driver's list of
processes says whose container a PID is.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from gpushare import abi
from gpushare.daemon.core.log import log
from gpushare.daemon.core.loop import Worker
from gpushare.daemon.mps.control import MpsControl, MpsError, TenantLimits
from gpushare.daemon.mps.runner import OUTPUT, ControlRunner
from gpushare.daemon.node import PIPE_ENV, LoadedDriver, MpsCardState, MpsGrant, MpsRefused, Node
from gpushare.daemon.observed import Observations
from gpushare.daemon.pages.status_page import disown_page, opened
from gpushare.daemon.pages.tenants import Pages
from gpushare.daemon.placement.choose import TRUST, are_of_one_user
from gpushare.daemon.placement.model import Card
from gpushare.daemon.policy import FIXED
from gpushare.daemon.state import DaemonState
from gpushare.daemon.store.ledger import Ledger
from gpushare.daemon.store.record import TenantRecord
from gpushare.host.driver import files
from gpushare.host.rooted_tree import RootedTree
from gpushare.oci.bounded_read import replace_file
from gpushare.quota.effective_request import DEFAULT_PRIORITY
from gpushare.settings import MPS

_FIRST_PRIVILEGED: Final = 550
_TRUST_OLD: Final = (
    "set mps_trusted: true for the card in gpushare.yaml if its containers trust each other, or "
    f"use driver {_FIRST_PRIVILEGED} or newer"
)
_VARIABLES_DRAFT: Final = f".{abi.MPS_NAME}"


class CardServer:
    """The server of `card`; every method is the card's thread's, which is `worker`."""

    def __init__(
        self,
        card: Card,
        program: Path,
        state: DaemonState,
        publish: Callable[[MpsCardState], None],
        worker: Worker,
    ) -> None:
        self.state, self.worker = MpsCardState(), worker
        node, ledger, observed = state.node, state.ledger, state.observed
        self.runner = ControlRunner(card, program, node, observed, state.mounts)
        self._card, self._publish = card, publish
        self._node, self._ledger, self._tenants = node, ledger, state.tenants
        self._clients = ClientWatch(card, node, ledger, observed, self.runner.folders.log)
        # By tenant: what its grant was made from, and the host's user.
        self._limits: dict[str, TenantLimits] = {}
        self._uids: dict[str, int] = {}

    def look(self) -> None:
        """Start what has to run, and see what the server and its clients do."""
        change = self.runner.look()
        if change in {"ended", "started"}:  # one that has ended is started at the same look
            self._note_end()
        control = self.runner.control
        if control is not None and change == "adopted":
            self._restore(control, self.runner.kept())
        elif control is not None and change == "started":
            self._restore(control, dict(self._uids))
        if control is not None and not change:
            self._look_at_clients(control)
        self._set(fault=self.runner.fault or self.distrust())

    def admit(self, key: str, uid: int) -> MpsGrant:
        """Make a tenant a client of the server, and return what it needs; MpsRefused."""
        self.look()
        control, record = self.runner.control, self._ledger.entries.get(key)
        if record is None:
            raise MpsRefused("the reservation has expired; create the container again")
        if control is None or self.state.fault:
            raise MpsRefused(f"card {self._card.index} is in MPS mode, and {self.state.fault}")
        self._refuse_other_user(key, uid)
        try:
            return self._add(control, record, uid)
        except (MpsError, OSError) as error:
            raise MpsRefused(
                f"{record.title} cannot be a client of the MPS server of card {self._card.index}: "
                f"{error}; see gpushare doctor"
            ) from error

    def refresh(self) -> None:
        """Set the limits again of containers whose quota has changed."""
        control = self.runner.control
        for key, uid in list(self._uids.items()):
            record = self._ledger.entries.get(key)
            if control is None or record is None or not record.allocations:
                continue
            try:
                if self._limits_of(record) != self._limits[key]:
                    self._add(control, record, uid)
            except (MpsError, OSError) as error:
                place = {**record.named, "card": self._card.uuid}
                log("mps-limits-not-changed", "warning", **place, error=str(error))

    def release(self, key: str) -> None:
        """Forget a tenant that has ended, and its limits."""
        if self._uids.pop(key, None) is None:
            return
        del self._limits[key]
        self._clients.forget(key)
        try:
            if self.runner.control is not None:
                self.runner.control.enforce(self._limits.values())
        except MpsError as error:
            self._log_failure(error)  # the next container that comes or ends sets the limits
        grants = {other: grant for other, grant in self.state.grants.items() if other != key}
        losses = {other: loss for other, loss in self.state.losses.items() if other != key}
        self._set(grants=grants, losses=losses)
        self.runner.keep(self._uids)
        if not self._uids:
            self.runner.renew()

    def terminate(self, key: str) -> None:
        """End the work of a tenant's processes on the card, so that they can be killed."""
        control = self.runner.control
        if control is None:
            return
        try:
            clients = control.clients()
            for client, owner in self._clients.owners(clients).items():
                if owner == key:
                    control.terminate(client, clients[client])
        except MpsError as error:
            self._log_failure(error)

    def _log_failure(self, error: Exception) -> None:
        log("mps-command-failed", "warning", card=self._card.uuid, error=str(error))

    def _note_end(self) -> None:
        """Note that the control daemon has ended, and with it all clients."""
        loss = "the MPS control daemon of its card has ended"
        losses = {**self.state.losses, **dict.fromkeys(self._clients.tenants(), loss)}
        self._set(losses=losses, server_state="")

    def _restore(self, control: MpsControl, known: Mapping[str, int]) -> None:
        """Tell a control daemon of the card's containers, which it may have had before."""
        for key, uid in known.items():
            record = self._ledger.entries.get(key)
            try:
                if record is not None and record.allocations:
                    self._add(control, record, uid)
            except (MpsError, OSError) as error:
                self._log_failure(error)
        self.runner.keep(self._uids)
        if known and not self._uids:
            self.runner.renew()  # all have ended meanwhile

    def _limits_of(self, record: TenantRecord) -> TenantLimits:
        return limits_of(record, self._node.policy_of(self._card.uuid))

    def _refuse_other_user(self, key: str, uid: int) -> None:
        """Refuse whom the server does not serve beside another container: MpsRefused."""
        control, records = self.runner.control, self._ledger.entries
        for other, user in self._uids.items():
            if other == key or other not in records:
                continue
            title, has = records[other].title, f"card {self._card.index} is in MPS mode, and"
            if are_of_one_user(user, uid) and not self._is_trusted:
                raise MpsRefused(f"{has} {title} has host uid {user}; {TRUST}")
            if user != uid and not (control and control.program.multiuser):
                raise MpsRefused(
                    f"{has} its server serves uid {user} ({title}), and the container runs "
                    f"as uid {uid}: a driver before 555 has no server for several users. Run both "
                    "as one user, or use another card."
                )

    def distrust(self) -> str:
        """Why the server is only for containers that trust each other; "" if it is not.

        Before 550, any user sets limits by the socket of clients.
        """
        release = self.runner.release
        if self._is_trusted or release >= _FIRST_PRIVILEGED:
            return ""
        return f"driver {release} lets every container command the MPS server; {_TRUST_OLD}"

    @property
    def _is_trusted(self) -> bool:
        return self._node.rule_of(self._card).mps_trusted

    def _add(self, control: MpsControl, record: TenantRecord, uid: int) -> MpsGrant:
        """Set a container's limits; MpsError."""
        key, limits, folders = record.key, self._limits_of(record), self.runner.folders
        control.enforce({**self._limits, key: limits}.values())
        grant = MpsGrant(
            folder=str(folders.clients),
            shared_memory=str(folders.shared_memory),
            uid=uid,
            percentage=limits.cores_percent,
            variables=limits.variables,
            note=limits.note,
        )
        self._limits[key], self._uids[key] = limits, uid
        self._set(grants={**self.state.grants, key: grant})
        write_variables(grant, self._tenants.pages.get(key))
        self.runner.keep(self._uids)
        return grant

    def _look_at_clients(self, control: MpsControl) -> None:
        # Also where the control daemon answers nobody; without a client, nobody has a fault.
        self._clients.log.cut(_MOST_BYTES if self.state.grants else 0)
        if not self.state.grants:
            return
        try:
            found = self._clients.look(control, self.state, self._limits.values())
            self._publish_state(found)
        except MpsError as error:
            self._log_failure(error)

    def _set(self, **changes: Any) -> None:
        """Publish what has changed."""
        self._publish_state(replace(self.state, **changes))

    def _publish_state(self, state: MpsCardState) -> None:
        if state != self.state:
            self.state = state
            self._publish(state)


def limits_of(record: TenantRecord, card_policy: str) -> TenantLimits:
    """Return the limits of a tenant with a share of one card, whose policy the operator set."""
    [allocation] = record.allocations
    is_capped = record.policy_on(allocation, card_policy) == FIXED
    return TenantLimits(
        allocation.burst_limit_bytes,
        (allocation.cores if is_capped else 0) or 100,
        priority=int(record.class_ != "online" and record.priority > DEFAULT_PRIORITY),
    )


#: No command, whose text is any client's.
_CULPRIT: Final = re.compile(
    r"\[[^\]]*\] (?!Cmd:|Unknown command)(?=.*\b(?:fault|fatal|exception)\b)"
    r".*?\bclient\b[^0-9]{0,16}([0-9]+)",
    re.IGNORECASE,
)
_MOST_BYTES: Final = 1 << 20
_KEPT_BYTES: Final = 64 << 10  # of what was read
_PUNCH_HOLE: Final = 3  # FALLOC_FL_PUNCH_HOLE with FALLOC_FL_KEEP_SIZE
_libc: Final = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)


class ControlLog:
    """The log of a control daemon and its servers, read as it grows.

    In the foreground, they write all of it to their standard output (535 to 555). The offset is
    kept in a file, so a later gpushared misses no line. The log grows by each command, and any user
    may send some: what was read is cut out of it (it is not truncated, which would lose lines that
    come meanwhile), and of more than a MiB between two looks, the end is read.

    The manual has no format for the cause of a fault: "the log names the PID" (Multi-Process
    Service manual, "Architecture"). The text in the driver is "Client process %d encountered a
    fatal GPU error.". A line that speaks of a fault and names a client by its PID is taken for it.
    """

    def __init__(self, folder: Path) -> None:
        """Go on where an earlier one has stopped."""
        self._path, self._place = folder / OUTPUT, folder / "offset"
        self._offset = 0
        with contextlib.suppress(OSError, ValueError):
            self._offset = int(self._place.read_bytes())
        self._next = self._offset

    def culprits(self) -> set[int]:
        """Return the PIDs that new lines name as the cause of a fault; the same until `keep`."""
        named = map(_CULPRIT.match, self._new_text().splitlines())
        return {int(one[1]) for one in named if one}

    def keep(self) -> None:
        """Note that the lines have been reported; on a full disk, a later gpushared does again."""
        if self._next != self._offset:
            self._offset = self._next
            with contextlib.suppress(OSError):
                replace_file(self._place, str(self._next).encode(), 0o600)

    def cut(self, most_bytes: int) -> None:
        """Go on at the last so many bytes, or where it has stopped, and free what is before."""
        with contextlib.suppress(OSError), self._path.open("rb+") as opened:
            self._offset = max(self._offset, opened.seek(0, os.SEEK_END) - most_bytes)
            if self._offset > _KEPT_BYTES:
                length = self._offset - _KEPT_BYTES
                _libc.fallocate(opened.fileno(), _PUNCH_HOLE, 0, length)

    def _new_text(self) -> str:
        """Return the whole lines since the last look, the rest of many at the next one."""
        try:
            with self._path.open("rb") as opened:
                opened.seek(self._offset)
                content = opened.read(_MOST_BYTES)
        except OSError:
            return ""
        end = content.rfind(b"\n") + 1 or len(content) // _MOST_BYTES * _MOST_BYTES
        self._next = self._offset + end
        return content[:end].decode(errors="replace")


def write_variables(grant: MpsGrant, pages: Pages | None) -> None:
    """Write the variables of a tenant's processes, for those that start from now on; OSError.

    The file is beside the tenant's pages, and libhook/cuda/mps.c reads it. The pipe directory is
    there too, so that no variable can redirect it, and its mount point is made with them.
    """
    if pages is None:
        return
    variables = {**grant.variables, PIPE_ENV: abi.PIPES_NAME}
    text = "".join(f"{name}={value}\n" for name, value in variables.items())

    def write(pages: Pages) -> None:
        with contextlib.suppress(FileExistsError):
            os.mkdir(abi.PIPES_NAME, 0o755, dir_fd=pages.directory)
            os.chmod(abi.PIPES_NAME, 0o755, dir_fd=pages.directory)  # noqa: S103 - any user's
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        with opened(pages.directory, _VARIABLES_DRAFT, flags, 0o644) as fd:
            os.fchmod(fd, 0o644)
            disown_page(fd)
            os.write(fd, text.encode())
        os.rename(
            _VARIABLES_DRAFT, abi.MPS_NAME, src_dir_fd=pages.directory, dst_dir_fd=pages.directory
        )

    pages.look(write, None)


_FAULT_STATE: Final = "FAULT"
_UNKNOWN: Final = "UNKNOWN"  # from a driver before 550, and then the containers trust each other
_BYPASS_LOOKS: Final = 3  # in a row: a process connects before or after it is listed


class ClientWatch:
    """Watches the clients of one card's server; the card's thread's."""

    def __init__(
        self, card: Card, node: Node, ledger: Ledger, observed: Observations, logs: Path
    ) -> None:
        self._card, self._mps = card, node.mps
        self._ledger, self._observed = ledger, observed
        self.log = ControlLog(logs)
        self._owners: dict[int, str] = {}  # tenants of the clients at the last look, by PID
        self._is_faulted = False
        self._is_named = False  # the log has named a process for it
        self._is_early = False  # it did, while the server said nothing of a fault
        self._suspects: dict[tuple[str, int], int] = {}  # looks in a row, by tenant and PID
        self._bypasses: frozenset[str] = frozenset()

    def tenants(self) -> set[str]:
        """Return the tenants that had clients at the last look."""
        return set(self._owners.values())

    def forget(self, key: str) -> None:
        """Forget a tenant that has ended."""
        self._owners = {pid: owner for pid, owner in self._owners.items() if owner != key}

    def owners(self, clients: Iterable[int]) -> dict[int, str]:
        """Return the tenants of those clients that are known."""
        known = {**self._owners, **self._listed()}
        return {client: known[client] for client in clients if client in known}

    def look(
        self, control: MpsControl, before: MpsCardState, limits: Collection[TenantLimits]
    ) -> MpsCardState:
        """Return the card's state after a look at servers and clients; MpsError."""
        servers, clients = control.servers(), control.clients()
        is_faulted = _FAULT_STATE in servers.values()
        owners = self.owners(clients)
        if changed := control.enforce(limits, [*servers]):
            log("mps-limits-changed", "warning", card=self._card.uuid, found=changed)
        # Any client can write a line, by a command with a line break. So a line is believed beside
        # the server's state, or once the clients are gone; the next look reads it again for that.
        named, losses = self.log.culprits(), before.losses
        is_over = is_faulted or _UNKNOWN in servers.values() or not self._owners.keys() & {*clients}
        is_named = bool(named) and is_over
        if (is_named and not self._is_named) or (is_faulted and not self._is_faulted):
            losses = {**losses, **self._fault(named, {**self._owners, **owners})}
        self._is_early = bool(named) and not is_over and not self._is_early
        if not self._is_early:
            self.log.keep()
        # A tenant whose processes have started again is a client again.
        if not is_faulted:
            again = {owners[pid] for pid in owners.keys() - self._owners.keys()}
            losses = {key: loss for key, loss in losses.items() if key not in again}
        self._owners, self._is_faulted = owners, is_faulted or is_named
        self._is_named = is_named or (is_faulted and self._is_named)
        return replace(
            before,
            server_state=_FAULT_STATE if is_faulted else next(iter(servers.values()), ""),
            losses=losses,
            bypasses=self._bypassing(clients),
        )

    def _fault(self, named: set[int], owners: Mapping[int, str]) -> dict[str, str]:
        """Log who caused a fault and whose processes it has ended; return the losses.

        If several clients are named, one of them may have written of the others: none is the cause.
        """
        records = self._ledger.entries
        pids = named & owners.keys() or named
        pid = next(iter(pids)) if len(pids) == 1 else 0
        culprit = owners.get(pid, "")
        victims = sorted(key for key in {*owners.values()} - {culprit} if key in records)
        who = records[culprit].title if culprit in records else "a client"
        cause = f"{who} (process {pid})" if pid else who
        names = [records[key].title for key in victims]
        log(
            "mps-server-faulted",
            "error",
            card=self._card.uuid,
            tenant=culprit,
            name=who if culprit else "",
            pid=pid,
            ended=names,
        )
        for key in victims:
            place = {**records[key].named, "card": self._card.uuid, "cause": cause}
            log("tenant-lost-mps-server", "error", **place, pod=records[key].of_pod)
        reason = f"a fatal fault of {cause} ended the work of all clients of the MPS server"
        losses = dict.fromkeys(victims, reason)
        if culprit in records:
            losses[culprit] = f"process {pid} of it had a fatal fault"
        return losses

    def _listed(self) -> dict[int, str]:
        """Return the tenants of the processes that the driver lists, by PID."""
        return {
            use.pid: key
            for key, uses in self._observed.usage.processes.items()
            for uuid, use in uses
            if uuid == self._card.uuid
        }

    def _bypassing(self, clients: Collection[int]) -> dict[str, int]:
        """Return the tenants with a process that uses the card and is no client, and that process.

        Neither the control daemon nor the driver lists it as one, several looks in a row.
        """
        records = self._ledger.entries
        suspects = {
            (key, use.pid): self._suspects.get((key, use.pid), 0) + 1
            for key, uses in self._observed.usage.processes.items()
            if key in records and records[key].isolation == MPS
            for uuid, use in uses
            if uuid == self._card.uuid and not use.is_mps and use.pid not in clients
        }
        self._suspects = suspects
        bypasses = {key: pid for (key, pid), looks in suspects.items() if looks >= _BYPASS_LOOKS}
        for key in sorted(bypasses.keys() - self._bypasses):
            place = {**records[key].named, "card": self._card.uuid}
            log(
                "tenant-bypasses-mps",
                "warning",
                **place,
                pid=bypasses[key],
                pod=records[key].of_pod,
            )
            self._mps.bypassed(key, bypasses[key])
        self._bypasses = frozenset(bypasses)
        return bypasses


PROGRAM: Final = "nvidia-cuda-mps-control"
_LOOK_SECONDS: Final = 0.8  # and the rest of a second to repair what it has found
_FINISH_SECONDS: Final = 2.0


def find_program(driver: LoadedDriver, tree: RootedTree | None = None) -> Path | None:
    """Return the program of the control daemon, None if this machine has none.

    Its CDI spec has the files of a driver; that of a simulated driver is beside its device.
    """
    for mount in driver.files.cdi.everything.mounts:
        if Path(mount.host_path).name == PROGRAM:
            return Path(mount.host_path)
    for device in driver.env.values():
        return Path(device).with_name(PROGRAM)
    beside = str(Path(driver.files.cuda.host_path).parent)
    paths = (Path(program.host_path) for program in files.programs(tree or RootedTree(), beside))
    return next((path for path in paths if path.name == PROGRAM), None)


class MpsSupervisor:
    """Keeps the control daemons of `state`'s cards; the decide thread's, mostly."""

    def __init__(self, state: DaemonState) -> None:
        self._state = state
        self._cards: dict[str, CardServer] = {}
        # By card: the thread that ends its control daemon, which the next one has to wait for.
        self._ending: dict[str, Worker] = {}
        state.loop.every(lambda: _LOOK_SECONDS, self._look)

    def changed(self) -> None:
        """Look soon, after a new quota, driver or configuration; returns at once."""
        self._state.decide.submit_once(self.check)

    def check(self) -> None:
        """Have a control daemon for each card in MPS mode, and none for the others."""
        state, driver = self._state, self._state.node.driver
        if driver is None:
            return
        cards = () if state.node.config.driver_released else driver.cards
        wanted = {card.uuid: card for card in cards if state.node.backend_of(card) == MPS}
        program = find_program(driver) if wanted else None
        for uuid in self._cards.keys() - wanted.keys():
            self._end(uuid)
        for uuid, card in wanted.items():
            if uuid in self._cards:
                self._cards[uuid].worker.submit(self._cards[uuid].refresh)
            elif program is None:
                why = f"this machine has no {PROGRAM}, which is part of NVIDIA's driver"
                self._publish(uuid, MpsCardState(fault=why))
            else:
                self._begin(card, program)

    def release(self, key: str) -> None:
        """End what a tenant that was released had of its server; returns at once."""
        for server in list(self._cards.values()):
            server.worker.submit(partial(server.release, key))

    def close(self) -> None:
        """Look no more; the control daemons keep running, as the containers do."""
        for server in self._cards.values():
            server.worker.submit(server.runner.close)
            server.worker.finish(_FINISH_SECONDS)

    def _begin(self, card: Card, program: Path) -> None:
        publish = partial(self._publish, card.uuid)
        worker = self._ending.pop(card.uuid, None) or Worker(f"mps-{card.index}")
        server = self._cards[card.uuid] = CardServer(card, program, self._state, publish, worker)
        publish(server.state)
        server.worker.submit_once(server.look)

    def _end(self, uuid: str) -> None:
        """Stop a card's control daemon: nothing of it is left, or nothing new is placed there."""
        server = self._cards.pop(uuid)

        def forget() -> None:
            if uuid not in self._cards:
                self._publish(uuid, None)

        def stop() -> None:
            server.runner.stop()
            self._state.decide.submit(forget)

        server.worker.submit(stop)
        self._ending[uuid] = server.worker

    def _publish(self, uuid: str, state: MpsCardState | None) -> None:
        mps = self._state.node.mps
        cards = {**mps.cards, uuid: state}
        mps.cards = MappingProxyType(
            {uuid: card for uuid, card in cards.items() if card is not None}
        )

    def _look(self) -> None:
        """Have each card looked at; the loop's."""
        for server in list(self._cards.values()):
            server.worker.submit_once(server.look)

    def _server_of(self, key: str) -> CardServer | None:
        record = self._state.ledger.entries.get(key)
        uuids = [allocation.uuid for allocation in record.allocations] if record else []
        return next((self._cards[uuid] for uuid in uuids if uuid in self._cards), None)

    def admit(self, key: str, uid: int) -> MpsGrant:
        """Make a tenant a client of its card's server, and return what it needs; MpsRefused.

        It waits for the control daemon, so it is not for the decide thread.
        """
        server = self._server_of(key)
        if server is None:
            raise MpsRefused("its card is not in MPS mode any more; create the container again")
        return server.worker.run(lambda: server.admit(key, uid))

    def terminate(self, key: str, then: Callable[[], None]) -> None:
        """End a tenant's work on its card, then call `then`; any thread, returns at once.

        A client that is killed amid its work may leave the server undefined (manual, "When to Use
        MPS").
        """
        server = self._server_of(key)
        if server is None:
            then()
            return

        def terminate() -> None:
            try:
                server.terminate(key)
            finally:
                then()

        server.worker.submit(terminate)
