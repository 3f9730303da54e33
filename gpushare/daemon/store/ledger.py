# SPDX-License-Identifier: Apache-2.0
"""The ledger: all reservations and allocations, and the containers that have them.

A tenant's record is `reserved` before anything of the tenant exists, `bound` when its process is
known, and is deleted (released) when the process has ended. A reservation that is never bound
expires. `none` is a container that requested a GPU and got none, kept so that `ps -a` can say why.

Each tenant has one file with its record (store/record.py), and a copy of that file in a
second folder. So has each prepared ResourceClaim (store/claim.py), which reserves what its
containers share, and each ticket of the queue (store/ticket.py). The record of a start names the
ticket that it took over, which ends with the same write. Every change drafts both files before it
renames them, so a full disk refuses a change as a whole. The order makes a crash distinguishable
from damage:

    change    rename the ledger's file, then the copy
    release   remove the copy, then the ledger's file

At whatever instruction gpushared is killed, a readable file of the ledger is therefore right, and
newer than its copy if they differ. A file of the ledger that is missing or damaged was lost, and
is restored from the copy.

One thread writes. What is published is replaced as a whole, never changed, so any thread may read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from gpushare.daemon.core.log import log
from gpushare.daemon.core.loop import ChangeSignal
from gpushare.daemon.placement.model import AllocationUse, Card
from gpushare.daemon.store.claim import (
    ClaimRecord,
    claim_from_json,
    refuse_above_claim,
    reservations,
)
from gpushare.daemon.store.record import (
    ABOUT,
    CardAllocation,
    EvictionRecord,
    FolderScan,
    FreezeJournal,
    FreezeRecord,
    RecordFolder,
    TenantRecord,
    record_from_json,
    to_json,
)
from gpushare.daemon.store.ticket import PREFIX as TICKET
from gpushare.daemon.store.ticket import TicketRecord, granted_parts, ticket_from_json
from gpushare.errors import UserError


class LedgerError(UserError):
    """The ledger's folders cannot be created or read."""


class TenantNotFound(Exception):
    """No tenant or card, or several, by that name."""

    def __init__(self, message: str, candidates: Sequence[str]) -> None:
        super().__init__(message)
        self.candidates = list(candidates)


class ReservationLost(UserError):
    """A reservation was released while its container was being created, or is another's now."""


Record: TypeAlias = TenantRecord | ClaimRecord | TicketRecord
#: The reader of a record, by the section of its file.
_READERS: Final[Mapping[str, Callable[[Mapping[str, Any]], Record]]] = {
    TenantRecord.section: record_from_json,
    ClaimRecord.section: claim_from_json,
    TicketRecord.section: ticket_from_json,
}


class Records:
    """All that is recorded, by file; nothing of it is ever changed."""

    def __init__(self, records: Mapping[str, Record]) -> None:
        self.by_file = records
        tenants, claims, tickets = dict[str, TenantRecord](), dict[str, ClaimRecord](), {}
        for record in records.values():
            if isinstance(record, TenantRecord):
                tenants[record.key] = record
            elif isinstance(record, ClaimRecord):
                claims[record.uid] = record
            else:
                tickets[record.id] = record
        self.tenants: Mapping[str, TenantRecord] = MappingProxyType(tenants)
        self.claims: Mapping[str, ClaimRecord] = MappingProxyType(claims)
        self.tickets: Mapping[str, TicketRecord] = MappingProxyType(tickets)

    def without(self, file: str) -> dict[str, Record]:
        """Return all records but that of `file`."""
        return {other: record for other, record in self.by_file.items() if other != file}


class Ledger:
    """The ledger in `folder`, with its copies in the folder `copies` beside it. LedgerError.

    `changed` tells its listeners after every change of what is recorded.

    Records of another boot are discarded. `generation` counts the daemons of this boot. `fault`
    says why the files could not be repaired, "" if they are right. `notices` is what an operator
    should know about how the files were found. `unknown` are the keys of tenants of which nothing
    can be read, and why. Unless it `is_complete`, there may have been others.

    `integrity` is told that the ledger and its copies were lost, before anything is changed.
    `submit` has the thread that writes run a job.
    """

    def __init__(
        self,
        folder: Path,
        boot_id: str,
        *,
        submit: Callable[[Callable[[], None]], None] = lambda job: job(),
    ) -> None:
        self.folder = folder
        self.integrity = IntegrityCheck(folder.with_name("integrity-lost"), boot_id)
        self.changed = ChangeSignal()
        self.fault = ""
        self.notices: tuple[str, ...] = ()
        self._unstored: set[str] = set()  # tenants whose freezes could not be written
        try:
            self._ledger = RecordFolder(folder, boot_id)
            self._copies = RecordFolder(folder.with_name("copies"), boot_id)
            ledger, copies = self._ledger.read(_check), self._copies.read(_check)
        except OSError as error:
            raise LedgerError(f"{folder}: {error.strerror}; gpushared needs this folder") from error
        documents = {**copies.documents, **ledger.documents}
        unreadable = {**copies.unreadable, **ledger.unreadable}
        about = documents.pop(ABOUT, None)
        self.is_complete = about is not None
        if about is None and ABOUT in unreadable:
            why = f"the ledger and its copies cannot be read ({unreadable[ABOUT]})"
            self.integrity.add(f"{why}: whole cards may be in use")
        self.generation = 1 if about is None else int(about["generation"]) + 1
        self.unknown: Mapping[str, str] = {
            key: why
            for key, why in unreadable.items()
            # The client of a ticket that is lost takes another one.
            if key not in documents and key != ABOUT and not key.startswith(TICKET)
        }
        records = sorted(map(_record, documents.values()), key=_age)
        taken = {record.ticket for record in records if isinstance(record, TenantRecord)}
        tickets = [record for record in records if isinstance(record, TicketRecord)]
        ended = [ticket for ticket in tickets if ticket.id in taken]
        files = {ticket.file for ticket in ended}
        self._publish({record.file: record for record in records if record.file not in files})
        for ticket in ended:
            self._end_ticket(ticket)
        self.freezes = FreezeJournal(
            lambda key: submit(lambda: self.store_freezes(key)),
            {key: _freezes(entry) for key, entry in documents.items() if entry.get("freezes")},
        )
        self._report(ledger, copies)
        self._repair(ledger, copies)

    @property
    def entries(self) -> Mapping[str, TenantRecord]:
        """The tenants, by key."""
        return self._records.tenants

    @property
    def claims(self) -> Mapping[str, ClaimRecord]:
        """The prepared claims, by UID."""
        return self._records.claims

    @property
    def tickets(self) -> Mapping[str, TicketRecord]:
        """The tickets of the queue, by ID."""
        return self._records.tickets

    def owner_of(self, key: str) -> str:
        """Return what the events of tenant `key` are charged to beside itself, or ""."""
        record = self.entries.get(key)
        return "" if record is None else record.owner

    def name_of(self, key: str) -> tuple[str, str] | None:
        """Return the id and the title of tenant `key`, None where it is not recorded."""
        record = self.entries.get(key)
        return None if record is None else (record.id, record.title)

    def close(self) -> None:
        """Close the folders; all records stay."""
        self._ledger.close()
        self._copies.close()

    def add(self, record: TenantRecord) -> None:
        """Write a new record, in place of an earlier one with the same key; OSError.

        The ticket that it takes over ends with the same write.
        """
        self._write(record.file, _document(record, ()))
        self.freezes.forget(record.key)
        ticket = self.tickets.get(record.ticket)
        kept = self._records.without("" if ticket is None else ticket.file)
        self._publish({**kept, record.file: record})
        if ticket is not None:
            self._end_ticket(ticket)

    def put(self, record: Record) -> None:
        """Write a record, in place of an earlier one of the same holder; OSError."""
        freezes = self.freezes.of(record.file)
        self._write(record.file, _document(record, freezes))
        self._publish({**self._records.by_file, record.file: record})

    def release(self, file: str) -> None:
        """Delete the record in `file`, if there is one: its holder has nothing any more.

        A tenant's file is its key.
        """
        self._remove(file)
        self.freezes.forget(file)
        self._publish(self._records.without(file))

    def is_frozen(self, key: str) -> bool:
        """Whether tenant `key` is frozen, or is about to be; not for a kill."""
        return any(freeze.by != "stop" for freeze in self.freezes.of(key))

    def require(self, record: TenantRecord) -> TenantRecord:
        """Return what is recorded now of the reservation `record`; ReservationLost."""
        now = self.entries.get(record.key)
        if now is None or (now.maker, now.created) != (record.maker, record.created):
            raise ReservationLost(
                f"the reservation of {record.title} was released while its container was created"
            )
        return now

    def change(self, key: str, **changes: Any) -> TenantRecord:
        """Replace fields of the record of tenant `key`, and return it; OSError."""
        record = replace(self.entries[key], **changes)
        self.put(record)
        return record

    def evict(
        self,
        key: str,
        eviction: EvictionRecord | None,
        allocations: tuple[CardAllocation, ...] | None = None,
    ) -> TenantRecord:
        """Record where the tenant's GPU memory is, and on which cards it is to be; OSError."""
        record = self.entries[key]
        kept = record.allocations if allocations is None else allocations
        before = "" if record.eviction is None else record.eviction.state
        restored = record.is_restored or (before == "restoring" and eviction is None)
        return self.change(key, eviction=eviction, allocations=kept, is_restored=restored)

    def reserved_beside(
        self, card: str, card_policy: str, without: str = ""
    ) -> tuple[AllocationUse, ...]:
        """Return what is reserved of a card beside what tenants have.

        That is what claims have beside their containers, and what tickets were granted, but for the
        one in the file `without`.
        """
        if not self.claims and not self.tickets:  # most nodes, and each look at a card asks
            return ()
        tickets = [ticket for ticket in self.tickets.values() if ticket.file != without]
        return (
            *reservations(card, self.claims.values(), self.entries.values(), card_policy),
            *granted_parts(card, tickets),
        )

    @property
    def holders(self) -> Iterator[TenantRecord | TicketRecord]:
        """All that have parts of cards, but for claims: tenants, and tickets that were granted."""
        yield from self.entries.values()
        yield from self.tickets.values()

    @property
    def has_waiting_tickets(self) -> bool:
        """Whether a start waits for its grant."""
        return any(not ticket.is_granted for ticket in self.tickets.values())

    def refuse_above_claim(
        self, record: TenantRecord, cards: Sequence[Card], policy_of: Callable[[str], str]
    ) -> bool:
        """Raise NoRoom if `record` and the other containers of its claim would have more than it.

        False if it has no claim, or if that was released: then its cards decide.
        """
        claim = self.claims.get(record.claim)
        if claim is None:
            return False
        others = [tenant for tenant in self.entries.values() if tenant.key != record.key]
        refuse_above_claim(record, claim, others, cards, policy_of)
        return True

    def confirm(self) -> None:
        """Record that no tenant is missing, or that its loss is known; OSError."""
        for folder in (self._ledger, self._copies):
            folder.set_aside(self.unknown)
        self.unknown = {}
        self._write(ABOUT, self._about())
        self.is_complete = True

    def store_freezes(self, key: str) -> None:
        """Write the freezes of tenant `key`; where that fails, `settle` tries it again."""
        record = self.entries.get(key)
        if record is None:
            return
        try:
            self._write(key, _document(record, self.freezes.of(key)))
        except OSError as error:
            if not self._unstored:
                log("freeze-record-failed", "warning", tenant=key, error=str(error))
            self._unstored.add(key)

    def settle(self) -> None:
        """Repair the files, if this failed before."""
        for key in sorted(self._unstored):
            self._unstored.discard(key)
            self.store_freezes(key)
        if not self.fault:
            return
        self.fault = ""
        try:
            self._repair(self._ledger.read(_check), self._copies.read(_check))
        except OSError as error:
            self.fault = self._why(error)
        if not self.fault:
            log("ledger-write-resumed", tenants=len(self.entries))

    def _publish(self, records: Mapping[str, Record]) -> None:
        self._records = Records(records)
        self.changed()

    def _end_ticket(self, ticket: TicketRecord) -> None:
        """Delete the file of a ticket that a start took over.

        Where that fails, the next daemon does it: the record of the start names the ticket.
        """
        with contextlib.suppress(OSError):
            self._remove(ticket.file)

    def _remove(self, file: str) -> None:
        self._copies.remove(file)
        self._ledger.remove(file)

    def _write(self, name: str, document: Mapping[str, Any]) -> None:
        """Write a file and its copy; OSError: nothing was changed."""
        try:
            self._ledger.draft(name, document)
            self._copies.draft(name, document)
            self._ledger.publish(name)
        except OSError as error:
            for folder in (self._ledger, self._copies):
                with contextlib.suppress(OSError):  # the next daemon removes it
                    folder.remove(f".{name}")
            why = (
                f"{error.strerror}: no reservation can be recorded there; "
                "running containers keep theirs"
            )
            raise OSError(error.errno, why, str(self.folder)) from error
        try:
            self._copies.publish(name)
        except OSError as error:
            log("ledger-copy-failed", "error", tenant=name, error=str(error))

    def _repair(self, ledger: FolderScan, copies: FolderScan) -> None:
        """Have both folders contain what is published, and set damaged files aside."""
        documents = {
            file: _document(record, self.freezes.of(file))
            for file, record in self._records.by_file.items()
        }
        if self.is_complete:
            documents[ABOUT] = self._about()
        try:
            for folder, scan in ((self._ledger, ledger), (self._copies, copies)):
                folder.set_aside(scan.unreadable.keys() - self.unknown.keys())
                for name, document in documents.items():
                    if scan.documents.get(name) != document:
                        folder.write(name, document)
        except OSError as error:
            self.fault = self._why(error)
            log("ledger-write-failed", "error", file=str(self.folder), error=str(error))

    def _about(self) -> dict[str, Any]:
        return {"generation": self.generation}

    def _why(self, error: OSError) -> str:
        return f"{self.folder} cannot be written ({error.strerror})"

    def _report(self, ledger: FolderScan, copies: FolderScan) -> None:
        """Log, and keep for `gpushare doctor`, what is not as the last daemon left it."""
        if ledger.discarded:
            count = sum(name != ABOUT for name in ledger.discarded)
            log("ledger-discarded", tenants=count)
        for folder, scan in ((self._ledger, ledger), (self._copies, copies)):
            if scan.unreadable:
                names = sorted(scan.unreadable)
                why = scan.unreadable[names[0]]
                log("ledger-damaged", "error", folder=str(folder.path), files=names, error=why)
                text = f"{len(names)} files of {folder.path} were damaged ({names[0]}: {why})"
                self.notices += (f"{text}; they are kept as *.damaged",)
        lost = sorted(copies.documents.keys() - ledger.documents.keys() - {ABOUT})
        if lost:
            log("ledger-repaired", "error", tenants=lost)
            self.notices += (
                f"the ledger had lost {len(lost)} records, restored from their copies",
            )


def _document(record: Record, freezes: Sequence[FreezeRecord]) -> dict[str, Any]:
    document: dict[str, Any] = {record.section: to_json(record)}
    return document | ({"freezes": to_json(tuple(freezes))} if record.section == "record" else {})


def _record(document: Mapping[str, Any]) -> Record:
    """Return the record in a file; ValueError, TypeError, LookupError if it has none."""
    section = next((section for section in _READERS if section in document), "")
    return _READERS[section](document[section])


def _age(record: Record) -> float:
    return record.created if isinstance(record, TenantRecord) else 0.0


def _freezes(document: Mapping[str, Any]) -> tuple[FreezeRecord, ...]:
    return tuple(FreezeRecord(**freeze) for freeze in document["freezes"])


def _check(name: str, document: Mapping[str, Any]) -> None:
    """Raise ValueError, TypeError or LookupError if `document` is not what `name` has to be."""
    if name == ABOUT:
        int(document["generation"])
        return
    record = _record(document)
    if record.file != name:
        raise ValueError("it is the record of another holder")
    if isinstance(record, TenantRecord):
        _freezes(document)


# --- whether all reservations are known; if not, new ones are refused until a confirmation ---


class IntegrityLost(UserError):
    """A reservation is not known any more: a new one could be of the same memory."""


class IntegrityCheck:
    """Refuses new reservations while one is not known, until an operator intervenes.

    `file` (`<run_dir>/integrity-lost`) has the reasons, for boot `boot_id`. An operator removes it
    to confirm that no unknown container uses a GPU. Any thread may read `why`, a sentence for the
    operator, "" if all reservations are known; the rest is the decide thread's.
    """

    def __init__(self, file: Path, boot_id: str) -> None:
        self._file = file
        self._boot_id = boot_id
        self.is_kept = True  # in the file, so the next daemon finds it
        self._set_reasons(self._read())

    def add(self, reason: str) -> None:
        """Refuse new reservations, for `reason`."""
        if reason in self._reasons:
            return
        self._set_reasons((*self._reasons, reason))
        log("integrity-lost", "error", reason=reason)
        self._keep()

    def look(self) -> None:
        """Allow new reservations if an operator has removed the file."""
        if not self.is_kept:
            self._keep()
        elif self._reasons and not self._file.exists():
            self._set_reasons(())
            log("integrity-confirmed", "warning", file=str(self._file))

    def refuse(self) -> None:
        """Raise IntegrityLost if new reservations are refused."""
        self.look()
        if self._reasons:
            raise IntegrityLost(self.why)

    def _set_reasons(self, reasons: tuple[str, ...]) -> None:
        self._reasons = reasons
        self.why = ""
        if reasons:
            self.why = (
                f"new reservations are refused: {'; '.join(reasons)}. Stop the containers that "
                f"use a GPU and are not in gpushare ps, then rm {self._file}, and start them again"
            )

    def _keep(self) -> None:
        """Write the file. On a full disk this fails, and the next daemon finds the same damage."""
        draft = self._file.with_name(f".{self._file.name}")
        self.is_kept = False
        with contextlib.suppress(OSError):
            draft.write_text("\n".join((self._boot_id, *self._reasons)) + "\n", encoding="utf-8")
            draft.rename(self._file)
            self.is_kept = True

    def _read(self) -> tuple[str, ...]:
        try:
            boot_id, *reasons = self._file.read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return ()
        except (OSError, ValueError):
            boot_id, reasons = self._boot_id, ["the reasons of an earlier gpushared are damaged"]
        if boot_id != self._boot_id:
            self._file.unlink(missing_ok=True)
            return ()
        return tuple(reasons)
