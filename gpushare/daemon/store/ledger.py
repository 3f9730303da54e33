# SPDX-License-Identifier: Apache-2.0
"""The ledger: all reservations and allocations, and the containers that have them.

A tenant's record is `reserved` before anything of the tenant exists, `bound` when its process is
known, and is deleted (released) when the process has ended. A reservation that is never bound
expires. `none` is a container that requested a GPU and got none, kept so that `ps -a` can say why.

Each tenant has one file with its record (store/record.py), and a copy of that file in a
second folder. So has each prepared ResourceClaim (store/claim.py), which reserves what its
containers share, and each ticket of the queue (store/ticket.py). Every change drafts both files
before it renames them, so a full disk refuses a change as a whole. The order makes a crash
distinguishable from damage:

    change    rename the ledger's file, then the copy
    release   remove the copy, then the ledger's file

At whatever instruction gpushared is killed, a readable file of the ledger is therefore right, and
newer than its copy if they differ. A file of the ledger that is missing or damaged was lost, and
is restored from the copy.

One thread writes. `entries`, the tenants, `claims`, by UID, and `tickets`, by ID, are mappings
that are replaced, never changed, so any thread may read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from gpushare.daemon.core.log import log
from gpushare.daemon.core.signal import ChangeSignal
from gpushare.daemon.placement.model import AllocationUse, Card
from gpushare.daemon.store.claim import (
    PREFIX,
    ClaimRecord,
    claim_from_json,
    refuse_above_claim,
    reservations,
)
from gpushare.daemon.store.eviction import EvictionRecord
from gpushare.daemon.store.freezes import NOT_FREEZES, FreezeJournal, FreezeRecord
from gpushare.daemon.store.integrity import IntegrityCheck
from gpushare.daemon.store.record import (
    ABOUT,
    CardAllocation,
    FolderScan,
    RecordFolder,
    TenantRecord,
    TenantState,
    record_from_json,
)
from gpushare.daemon.store.ticket import PREFIX as TICKET
from gpushare.daemon.store.ticket import TicketRecord, granted_parts, ticket_from_json
from gpushare.errors import UserError

__all__ = ["CardAllocation", "Ledger", "LedgerError", "TenantRecord", "TenantState"]


class LedgerError(UserError):
    """The ledger's folders cannot be created or read."""


class ReservationLost(UserError):
    """A reservation was released while its container was being created, or is another's now."""


class Ledger:
    """The ledger in `folder`, with its copies in the folder `copies` beside it. LedgerError.

    `changed` tells its listeners after every change of what is recorded.

    Records of another boot are discarded. `generation` counts the daemons of this boot. `fault`
    says why the files could not be repaired, "" if they are right. `notices` is what an operator
    should know about how the files were found. `unknown` are the keys of tenants of which nothing
    can be read, and why. Unless it `is_complete`, there may have been others.

    `integrity` hears that the ledger and its copies were lost, before anything is changed. `submit`
    has the thread that writes run a job.
    """

    def __init__(
        self,
        folder: Path,
        boot_id: str,
        integrity: IntegrityCheck | None = None,
        *,
        submit: Callable[[Callable[[], None]], None] = lambda job: job(),
    ) -> None:
        self.folder = folder
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
        found = {**copies.documents, **ledger.documents}
        unreadable = {**copies.unreadable, **ledger.unreadable}
        about = found.pop(ABOUT, None)
        self.is_complete = about is not None
        if about is None and ABOUT in unreadable and integrity is not None:
            why = f"the ledger and its copies cannot be read ({unreadable[ABOUT]})"
            integrity.add(f"{why}: whole cards may be in use")
        self.generation = 1 if about is None else int(about["generation"]) + 1
        self.unknown: Mapping[str, str] = {
            key: why
            for key, why in unreadable.items()
            # The client of a ticket that is lost takes another one.
            if key not in found and key != ABOUT and not key.startswith(TICKET)
        }
        claims = [found.pop(name) for name in tuple(found) if name.startswith(PREFIX)]
        self._publish_claims([claim_from_json(document["claim"]) for document in claims])
        tickets = [found.pop(name) for name in tuple(found) if name.startswith(TICKET)]
        self._publish_tickets([ticket_from_json(document["ticket"]) for document in tickets])
        records = [record_from_json(document["record"]) for document in found.values()]
        records.sort(key=lambda record: record.created)
        self._publish({record.key: record for record in records})
        self.freezes = FreezeJournal(
            lambda key: submit(lambda: self.store_freezes(key)),
            {key: _freezes(document) for key, document in found.items() if document["freezes"]},
        )
        self._report(ledger, copies)
        self._repair(ledger, copies)

    def close(self) -> None:
        """Close the folders; all records stay."""
        self._ledger.close()
        self._copies.close()

    def add(self, record: TenantRecord) -> None:
        """Write a new record, in place of an earlier one with the same key; OSError."""
        if record.key in self.unknown:  # it was restored from its pages
            self._set_aside([record.key])
        self._write(record.key, _document(record, ()))
        self.freezes.forget(record.key)
        self._publish({**self.entries, record.key: record})

    def owner_of(self, key: str) -> str:
        """Return what the events of tenant `key` are charged to beside itself, or ""."""
        record = self.entries.get(key)
        return "" if record is None else record.owner

    def name_of(self, key: str) -> tuple[str, str] | None:
        """Return the id and the title of tenant `key`, None where it is not recorded."""
        record = self.entries.get(key)
        return None if record is None else (record.id, record.title)

    def is_frozen(self, key: str) -> bool:
        """Whether tenant `key` is frozen, or is about to be; not for a kill."""
        return any(freeze.by not in NOT_FREEZES for freeze in self.freezes.of(key))

    def require(self, record: TenantRecord) -> TenantRecord:
        """Return what is recorded now of the reservation `record`; ReservationLost."""
        now = self.entries.get(record.key)
        if now is None or (now.maker, now.created) != (record.maker, record.created):
            raise ReservationLost(
                f"the reservation of {record.title} was released while its container was created"
            )
        return now

    def isolate(self, key: str, isolation: str) -> TenantRecord:
        """Record how the tenant's quota is enforced; OSError."""
        return self._replace(replace(self.entries[key], isolation=isolation))

    def describe(
        self, key: str, notes: Sequence[str], uninterposed: Sequence[str], compat: str
    ) -> TenantRecord:
        """Record what the tenant has of the driver; `notes` are added to its others; OSError."""
        record = self.entries[key]
        return self._replace(
            replace(
                record,
                notes=(*record.notes, *notes),
                uninterposed=tuple(uninterposed),
                compat=compat,
            )
        )

    def bind(self, key: str, *, pid: int, starttime: int, cgroup: str) -> TenantRecord:
        """Record the process of a reservation, which lasts as long as the process; OSError."""
        record = self.entries[key]
        return self._replace(
            replace(record, state="bound", pid=pid, starttime=starttime, cgroup=cgroup)
        )

    def rename(self, key: str, name: str, engine: str, labels: Mapping[str, str]) -> TenantRecord:
        """Record the tenant's name and labels in its engine, which is `engine`; OSError."""
        record = self.entries[key]
        found = {**record.labels, **labels}
        return self._replace(replace(record, name=name, engine=engine, labels=found))

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
        return self._replace(
            replace(record, eviction=eviction, allocations=kept, is_restored=restored)
        )

    def resize(self, record: TenantRecord) -> None:
        """Replace a record by one with another quota on the same cards; OSError."""
        self._replace(record)

    def release(self, key: str) -> None:
        """Delete the record of tenant `key`, if there is one: it has no allocation any more."""
        self._copies.remove(key)
        self._ledger.remove(key)
        self.freezes.forget(key)
        self._publish({other: record for other, record in self.entries.items() if other != key})

    def unused_claims(self, card: str, card_policy: str) -> tuple[AllocationUse, ...]:
        """Return what claims have reserved of a card beside what their containers have."""
        if not self.claims:  # most nodes have none, and each look at a card asks
            return ()
        return reservations(card, self.claims.values(), self.entries.values(), card_policy)

    def granted_parts(self, card: str, without: str = "") -> tuple[AllocationUse, ...]:
        """Return what is reserved of a card for tickets other than `without`."""
        if not self.tickets:
            return ()
        return granted_parts(card, [one for one in self.tickets.values() if one.id != without])

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
        others = [one for one in self.entries.values() if one.key != record.key]
        refuse_above_claim(record, claim, others, cards, policy_of)
        return True

    def put_claim(self, claim: ClaimRecord) -> None:
        """Write the record of a claim, in place of an earlier one; OSError."""
        self._write(claim.file, {"claim": claim.to_json()})
        self._publish_claims([*self.claims.values(), claim])

    def release_claim(self, uid: str) -> None:
        """Delete the record of a claim, if there is one: only its containers' are left."""
        self._copies.remove(PREFIX + uid)
        self._ledger.remove(PREFIX + uid)
        self._publish_claims([claim for claim in self.claims.values() if claim.uid != uid])

    def put_ticket(self, ticket: TicketRecord) -> None:
        """Write the record of a ticket, in place of an earlier one; OSError."""
        self._write(ticket.file, {"ticket": ticket.to_json()})
        self._publish_tickets([*self.tickets.values(), ticket])

    def release_ticket(self, identity: str) -> None:
        """Delete the record of a ticket, if there is one, and with it what it reserves."""
        self._copies.remove(TICKET + identity)
        self._ledger.remove(TICKET + identity)
        self._publish_tickets([one for one in self.tickets.values() if one.id != identity])

    def confirm(self) -> None:
        """Record that no tenant is missing, or that its loss is known; OSError."""
        self._set_aside([key for key in self.unknown if key not in self.entries])
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

    def _publish(self, records: dict[str, TenantRecord]) -> None:
        self.entries: Mapping[str, TenantRecord] = MappingProxyType(records)
        self.changed()

    def _publish_claims(self, claims: Sequence[ClaimRecord]) -> None:
        self.claims: Mapping[str, ClaimRecord] = MappingProxyType(
            {claim.uid: claim for claim in claims}
        )
        self.changed()

    def _publish_tickets(self, tickets: Sequence[TicketRecord]) -> None:
        self.tickets: Mapping[str, TicketRecord] = MappingProxyType(
            {ticket.id: ticket for ticket in tickets}
        )
        self.changed()

    def _replace(self, record: TenantRecord) -> TenantRecord:
        self._write(record.key, _document(record, self.freezes.of(record.key)))
        self._publish({**self.entries, record.key: record})
        return record

    def _write(self, name: str, document: Mapping[str, Any]) -> None:
        """Write a file and its copy; OSError: nothing was changed."""
        try:
            self._ledger.draft(name, document)
            self._copies.draft(name, document)
            self._ledger.publish(name)
        except OSError as error:
            for folder in (self._ledger, self._copies):
                with contextlib.suppress(OSError):  # the next daemon removes it
                    folder.discard(name)
            why = (
                f"{error.strerror}: no reservation can be recorded there; "
                "running containers keep theirs"
            )
            raise OSError(error.errno, why, str(self.folder)) from error
        try:
            self._copies.publish(name)
        except OSError as error:
            log("ledger-copy-failed", "error", tenant=name, error=str(error))

    def _set_aside(self, keys: Sequence[str]) -> None:
        for folder in (self._ledger, self._copies):
            folder.set_aside(keys)

    def _repair(self, ledger: FolderScan, copies: FolderScan) -> None:
        """Have both folders contain what is published, and set damaged files aside."""
        documents = {
            key: _document(record, self.freezes.of(key)) for key, record in self.entries.items()
        }
        documents |= {one.file: {"claim": one.to_json()} for one in self.claims.values()}
        documents |= {one.file: {"ticket": one.to_json()} for one in self.tickets.values()}
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
            log("ledger-discarded", boot=ledger.earlier_boot, tenants=count)
        for folder, scan in ((self._ledger, ledger), (self._copies, copies)):
            if scan.unreadable:
                names = sorted(scan.unreadable)
                why = scan.unreadable[names[0]]
                log("ledger-damaged", "error", folder=str(folder.path), files=names, error=why)
                what = f"{len(names)} files of {folder.path} were damaged ({names[0]}: {why})"
                self.notices += (f"{what}; they are kept as *.damaged",)
        lost = sorted(copies.documents.keys() - ledger.documents.keys() - {ABOUT})
        if lost:
            log("ledger-repaired", "error", tenants=lost)
            self.notices += (
                f"the ledger had lost {len(lost)} records, restored from their copies",
            )


def _document(record: TenantRecord, freezes: Sequence[FreezeRecord]) -> dict[str, Any]:
    return {"record": record.to_json(), "freezes": [asdict(one) for one in freezes]}


def _freezes(document: Mapping[str, Any]) -> tuple[FreezeRecord, ...]:
    return tuple(FreezeRecord(**each) for each in document["freezes"])


def _check(name: str, document: Mapping[str, Any]) -> None:
    """Raise ValueError, TypeError or LookupError if `document` is not what `name` has to be."""
    if name == ABOUT:
        int(document["generation"])
    elif name.startswith(PREFIX):
        if claim_from_json(document["claim"]).file != name:
            raise ValueError("it is the record of another claim")
    elif name.startswith(TICKET):
        if ticket_from_json(document["ticket"]).file != name:
            raise ValueError("it is the record of another ticket")
    elif record_from_json(document["record"]).key != name:
        raise ValueError("it is the record of another tenant")
    else:
        _freezes(document)
